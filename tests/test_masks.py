"""Who sees whom, in every way in which models say it: numbers added to scores, windows and padding of other backends.

A pair is seen if its weight is not 0 in the model's own arithmetic.
"""

from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
import transformers
from attention_matrix import plain_statistics, real_tokens, visible_pairs
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel, modeling_flash_attention_utils as flash

from anisoscope.capture import capture
from anisoscope.capture.entry_points import watch_entry_points
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores

HEADS, LENGTH, DIM = 2, 9, 4
CONVENTIONS = {
    "boolean": None,
    "-1e4": -1e4,
    "-65504": -65504.0,
    "-1e9": -1e9,
    "-1e30": -1e30,
    "smallest of float32": torch.finfo(torch.float32).min,
    "smallest of float16": torch.finfo(torch.float16).min,
    "minus infinity": -torch.inf,
}
NEAR = {"rtol": 2e-5, "atol": 2e-6}


# ---- eight conventions, ten modules


def shown(seen, convention):
    """A mask as a model adds it, or hands it on: [sequence, 1, query, key]."""
    number = CONVENTIONS[convention]
    return (
        seen if number is None else torch.zeros(seen.shape).masked_fill(~seen, number)
    )


def added(seen, convention):
    """The same for a module that adds it itself."""
    return shown(seen, "minus infinity" if convention == "boolean" else convention)


class Projecting(nn.Module):
    """Queries, keys and values of `x` [sequence, token, head · dim]."""

    num_heads = HEADS

    def __init__(self):
        super().__init__()
        drawn = torch.randn(
            3, HEADS * DIM, HEADS * DIM, generator=torch.Generator().manual_seed(3)
        )
        self.weight = nn.Parameter(0.6 * drawn)

    def heads(self, x):
        return [
            (x @ w).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for w in self.weight
        ]


class Fused(Projecting):
    def forward(self, x, seen, convention):
        q, k, v = self.heads(x)
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=shown(seen, convention)
        )


class Products(Projecting):
    def forward(self, x, seen, convention):
        q, k, v = self.heads(x)
        return (q @ k.mT * DIM**-0.5 + added(seen, convention)).softmax(-1) @ v


class Einsum(Projecting):
    def forward(self, x, seen, convention):
        q, k, v = self.heads(x)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * DIM**-0.5 + added(
            seen, convention
        )
        return torch.einsum("bhij,bhjd->bhid", functional.softmax(scores, -1), v)


class Baddbmm(Projecting):
    def forward(self, x, seen, convention):
        q, k, v = (y.flatten(0, 1) for y in self.heads(x))
        mask = (
            added(seen, convention).expand(len(x), HEADS, LENGTH, LENGTH).flatten(0, 1)
        )
        return torch.bmm(torch.baddbmm(mask, q, k.mT, alpha=DIM**-0.5).softmax(-1), v)


class Whole(nn.Module):
    """torch's own attention, whose masks say what is hidden; `slow` turns its fast path off."""

    def __init__(self, slow):
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.MultiheadAttention(HEADS * DIM, HEADS, batch_first=True).eval()
        self.slow = slow

    def forward(self, x, seen, convention):
        seen = seen.expand(len(x), HEADS, LENGTH, LENGTH).flatten(0, 1)
        mask = ~seen if convention == "boolean" else shown(seen, convention)
        torch.backends.mha.set_fastpath_enabled(not self.slow)
        try:
            return self.inner(x, x, x, attn_mask=mask, need_weights=False)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)


class Layer(nn.Module):
    """The fast path of torch's own layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.inner = nn.TransformerEncoderLayer(
            HEADS * DIM, HEADS, 12, batch_first=True
        ).eval()

    def forward(self, x, seen, convention):
        mask = seen[0, 0]  # the same for all sequences
        return self.inner(
            x, src_mask=~mask if convention == "boolean" else shown(mask, convention)
        )


MODULES = {
    "fused product": Fused,
    "products": Products,
    "einsum": Einsum,
    "baddbmm": Baddbmm,
    "torch's attention, fast": partial(Whole, False),
    "torch's attention, slow": partial(Whole, True),
    "torch's layer": Layer,
}
INTERFACE = {"sdpa": Fused, "eager": Products, "another": Products}
"""Backends at the attention interface, and what computes as they do."""


def pairs(name):
    """Who sees whom [sequence, 1, query, key]: padding and the future hidden; the same for all in torch's layer."""
    lengths = (LENGTH,) * 2 if name == "torch's layer" else (LENGTH, 5)
    real = real_tokens(lengths, "right")
    return torch.from_numpy(visible_pairs("causal", real)).unsqueeze(
        1
    ), torch.from_numpy(real)


def statistics(call, real):
    made = attention_rows(
        call.query, call.key, call.masking, scale=call.scale, real=real, median=True
    )
    return made, sum_scores(
        call.query, call.key, call.masking, scale=call.scale, real=real
    )


def check(call, seen, real):
    """What is measured of a call is the plain computation over the pairs that are seen."""
    rows, sums = statistics(call, real)
    for i in range(len(real)):
        for head in range(HEADS):
            query, key, value = (
                x[i, head].detach().double().numpy()
                for x in (call.query, call.key, call.value)
            )
            wanted = plain_statistics(
                query, key, value, seen[i, 0].numpy(), real[i].numpy(), scale=call.scale
            )
            for name in (
                "entropy",
                "row_max",
                "row_min",
                "row_median",
                "first_mass",
                "keys",
                "score",
            ):
                got = rows[name][i, head][real[i]].double().numpy()
                np.testing.assert_allclose(got, wanted[name], **NEAR, err_msg=name)
            scores = query @ key.T * call.scale
            inside = [
                np.var(scores[t][seen[i, 0, t].numpy()])
                for t in np.flatnonzero(real[i].numpy())
            ]
            np.testing.assert_allclose(
                float(sums["row_variance"][i, head]), sum(inside), rtol=1e-5
            )


def inputs(scale=1.0):
    return scale * torch.randn(
        2, LENGTH, HEADS * DIM, generator=torch.Generator().manual_seed(4)
    )


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("name", MODULES)
def test_a_hidden_pair_is_hidden_by_any_convention(name, convention):
    """Of −10,000, −65,504, −1e9 and −1e30 handed to the fused product, every pair counted as seen."""
    module, calls = MODULES[name](), []
    seen, real = pairs(name)
    with torch.no_grad(), watch_entry_points(set(module.modules()), calls.append):
        module(inputs(), seen, convention)
    (call,) = calls
    check(call, seen, real)


@pytest.mark.parametrize("convention", CONVENTIONS)
@pytest.mark.parametrize("backend", INTERFACE)
def test_at_the_attention_interface_too(backend, convention):
    q, k, v = Projecting().heads(inputs())
    seen, real = pairs(backend)
    call = Call(
        SimpleNamespace(),
        q,
        k,
        v,
        shown(seen, convention),
        {"is_causal": True},
        backend=backend,
    )
    check(call, seen, real)


@pytest.mark.parametrize("number", [-1e4, -65504.0, -1e9])
def test_scores_that_fit_well_do_not_show_what_is_hidden(number):
    """Scores of some hundreds stand beside −10,000 still."""
    q, k, v = (x.detach() for x in Projecting().heads(inputs(6.0)))
    seen, real = pairs("")
    mask = torch.zeros(seen.shape).masked_fill(~seen, number)
    call = Call(SimpleNamespace(), q, k, v, mask, {})
    assert float((q @ k.mT).abs().max()) > 100
    rows, _ = statistics(call, real)
    expected, _ = statistics(Call(SimpleNamespace(), q, k, v, seen, {}), real)
    for name in ("keys", "entropy", "score", "first_mass"):
        torch.testing.assert_close(rows[name], expected[name], equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_hides_a_pair_whose_weight_is_0(dtype):
    """As ALiBi does in long windows: what lies 200 below has no weight in float32, and has one in float64."""
    generator = torch.Generator().manual_seed(5)
    q, k, v = torch.randn(3, 2, HEADS, 40, DIM, generator=generator, dtype=dtype)
    distance = torch.arange(40)[:, None] - torch.arange(40)
    slopes = torch.tensor([20.0, 0.5]).view(1, HEADS, 1, 1)
    bias = (-slopes * distance.abs()).to(dtype)
    call = Call(SimpleNamespace(), q, k, v, bias, {})
    weights = (q @ k.mT * DIM**-0.5 + bias).softmax(-1)
    assert (weights == 0).any() and (weights[:, 1] > 0).all()
    rows, sums = statistics(call, None)
    assert torch.equal(rows["keys"], (weights > 0).sum(-1).to(rows["keys"]))
    smallest = torch.where(weights > 0, weights, torch.inf).amin(-1)
    torch.testing.assert_close(
        rows["row_min"], smallest, rtol=0.2, atol=0
    )  # of the last digits there are
    assert (rows["row_min"] > 0).all() and sums["row_variance"].isfinite().all()


def test_a_bias_that_hides_nothing_is_left_as_it_is():
    q, k, v = Projecting().heads(inputs())
    bias = torch.randn(
        1, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(6)
    )
    call = Call(
        SimpleNamespace(), q, k, v, None, {"position_bias": bias, "is_causal": False}
    )
    assert call.masking.keys is None and call.masking.bias is bias


def test_masks_of_integers_say_what_is_seen():
    seen, _ = pairs("")
    read = Masking.read(
        SimpleNamespace(), torch.zeros(2, HEADS, LENGTH, DIM), seen.long(), {}
    )
    assert torch.equal(read.keys, seen)


def test_a_missing_mask_means_what_its_backend_makes_of_it():
    """Eager and flex attention see every key then, whatever the module is called; the fused product goes by the module,
    and is causal if that does not say.
    """
    query, causal = torch.zeros(2, HEADS, LENGTH, DIM), SimpleNamespace(is_causal=True)
    read = {
        b: Masking.read(causal, query, None, {}, backend=b).causal
        for b in ("eager", "flex_attention", "sdpa")
    }
    assert read == {"eager": False, "flex_attention": False, "sdpa": True}
    silent = {
        b: Masking.read(SimpleNamespace(), query, None, {}, backend=b).causal
        for b in ("sdpa", "of one's own")
    }
    assert silent == {"sdpa": True, "of one's own": False}


# ---- FlashAttention under transformers' own masks, by a stub of its kernels


def attended(
    query,
    key,
    value,
    *,
    causal,
    window_size=(-1, -1),
    softmax_scale=None,
    softcap=0.0,
    s_aux=None,
):
    """A sequence [token, head, dim] as FlashAttention defines it: inclusive windows, last query at the last key."""
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    scores = (
        q @ k.mT * (q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale)
    )
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    ahead = (
        torch.arange(k.shape[1])
        - torch.arange(q.shape[1])[:, None]
        - (k.shape[1] - q.shape[1])
    )
    hidden = (ahead > 0) if causal else torch.zeros_like(ahead, dtype=torch.bool)
    for edge, beyond in ((window_size[0], -ahead), (window_size[1], ahead)):
        hidden |= (beyond > edge) if edge >= 0 else False
    scores = scores.masked_fill(hidden, -torch.inf)
    if s_aux is not None:
        scores = torch.cat(
            (scores, s_aux.to(scores).view(-1, 1, 1).expand(*scores.shape[:2], 1)), -1
        )
    return (scores.softmax(-1)[..., : k.shape[1]] @ v).transpose(0, 1)


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    s_aux=None,
):
    """Sequences of one length [sequence, token, head, dim]."""
    assert dropout_p == 0
    how = {
        "causal": causal,
        "window_size": window_size,
        "softmax_scale": softmax_scale,
        "softcap": softcap,
    }
    return torch.stack(
        [attended(*each, **how, s_aux=s_aux) for each in zip(q, k, v, strict=True)]
    )


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    s_aux=None,
):
    """Sequences of any lengths, one after another [token, head, dim]."""
    assert dropout_p == 0 and max_seqlen_q <= len(q) and max_seqlen_k <= len(k)
    how = {
        "causal": causal,
        "window_size": window_size,
        "softmax_scale": softmax_scale,
        "softcap": softcap,
    }
    parts = []
    for i in range(len(cu_seqlens_q) - 1):
        of_q, of_k = (
            slice(int(ends[i]), int(ends[i + 1]))
            for ends in (cu_seqlens_q, cu_seqlens_k)
        )
        parts.append(attended(q[of_q], k[of_k], v[of_k], **how, s_aux=s_aux))
    return torch.cat(parts)


@pytest.fixture
def stub(monkeypatch):
    """The kernels of FlashAttention 2, in plain torch."""
    process = flash._lazy_define_process_function(flash_attn_varlen_func)
    replaced = {
        "_loaded_implementation": "flash_attention_2",
        "_flash_fn": flash_attn_func,
        "_flash_varlen_fn": flash_attn_varlen_func,
        "_flash_with_kvcache_fn": None,
        "_pad_fn": flash._pad_input,
        "_unpad_fn": flash._unpad_input,
        "_process_flash_kwargs_fn": process,
        "_process_with_kvcache_kwargs_fn": process,
    }
    for name, value in replaced.items():
        monkeypatch.setattr(flash, name, value)


@contextmanager
def on_backend(model, name):
    """The model as if loaded with another backend."""
    configs = {
        id(m.config): m.config
        for m in model.modules()
        if isinstance(m, PreTrainedModel)
    }
    before = {
        key: config._attn_implementation_internal for key, config in configs.items()
    }
    for config in configs.values():
        config._attn_implementation_internal = name
    try:
        yield model
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]


GROUPED = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "llama": ("LlamaConfig", GROUPED),
    "mistral": ("MistralConfig", GROUPED | {"sliding_window": 4}),
    "qwen2": (
        "Qwen2Config",
        GROUPED
        | {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "gemma2": (
        "Gemma2Config",
        GROUPED | {"sliding_window": 4, "attn_logit_softcapping": 3.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        GROUPED
        | {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "modernbert": tiny.ARCHITECTURES["modernbert"],
    "bert": tiny.ARCHITECTURES["bert"],
    "gpt2": tiny.ARCHITECTURES["gpt2"],
    "gpt_oss": (
        "GptOssConfig",
        GROUPED
        | {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
}
"""Families with windows in some layers or all, with none, a cap, sinks: what FlashAttention is told in its own ways."""


def family(name, dtype=torch.float64):
    config, sizes = FAMILIES[name]
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(
        getattr(transformers, config)(**sizes), attn_implementation="eager"
    )
    for parameter in model.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def batch(side):
    real = torch.from_numpy(
        real_tokens((12, 7, 1) if side != "none" else (12,) * 3, side)
    )
    ids = torch.randint(3, 90, real.shape, generator=torch.Generator().manual_seed(1))
    given = {"input_ids": torch.where(real, ids, 0)}
    return given | ({} if side == "none" else {"attention_mask": real.long()}), real


def seen_on(model, backend, side):
    """(rows of every layer on a backend, the model's own weights by its eager attention, real tokens)."""
    given, real = batch(side)
    with torch.no_grad(), tiny.exact_softmax():
        maps = model(**given, output_attentions=True).attentions
        with on_backend(model, backend):
            plain = model(**given).last_hidden_state
            with capture(model, ("attention",), median=True) as tap:
                tap.real = dict.fromkeys(("encoder", "decoder"), real)
                inside = model(**given).last_hidden_state
    assert torch.equal(plain, inside)
    return [tap[site] for site in tap.sites], maps, real


def compare_maps(rows, weights, real):
    """Entropy, extremes and counts of real rows against the weights."""
    seen = real[:, None].expand(weights.shape[:3])
    sink = (1 - weights.sum(-1)).clamp(min=0)
    entropy = torch.special.entr(weights).sum(-1) + torch.special.entr(sink)
    positive = torch.where(weights > 0, weights, torch.inf)
    wanted = {
        "entropy": entropy,
        "row_max": weights.amax(-1),
        "row_min": positive.amin(-1),
    }
    wanted["keys"] = (weights > 0).sum(-1).double()
    for name, value in wanted.items():
        torch.testing.assert_close(
            rows[name][seen].double(), value[seen], rtol=1e-5, atol=1e-5, msg=name
        )


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize("name", FAMILIES)
def test_windows_and_padding_of_flash_attention(name, side):
    """Windows are in no mask there: entropies were those of full attention; a padded batch was an error."""
    model = family(
        name, torch.float32 if name == "gpt_oss" else torch.float64
    )  # experts know no float64
    layers, maps, real = seen_on(model, "flash_attention_2", side)
    assert len(layers) == len(maps)
    for rows, weights in zip(layers, maps, strict=True):
        compare_maps(rows, weights.double(), real)


@pytest.mark.usefixtures("stub")
def test_sequences_packed_into_one_do_not_see_each_other():
    model = family("mistral")
    lengths = (7, 5)
    ids = torch.randint(
        3, 90, (1, sum(lengths)), generator=torch.Generator().manual_seed(1)
    )
    position = torch.cat([torch.arange(n) for n in lengths])[None]
    with torch.no_grad(), on_backend(model, "flash_attention_2"):
        with capture(model, ("attention",)) as packed:
            model(input_ids=ids, position_ids=position)
        for start, n in ((0, 7), (7, 5)):
            with capture(model, ("attention",)) as alone:
                model(input_ids=ids[:, start : start + n])
            for name in ("entropy", "keys", "row_max"):
                part = packed["decoder.2.attention"][name][..., start : start + n]
                torch.testing.assert_close(
                    part, alone["decoder.2.attention"][name], rtol=1e-9, atol=1e-9
                )


def test_ends_of_packed_sequences_say_so_too():
    query = torch.zeros(1, HEADS, 5, DIM)
    read = Masking.read(
        SimpleNamespace(is_causal=False),
        query,
        None,
        {"cu_seq_lens_k": torch.tensor([0, 2, 5])},
        backend="flash_attention_2",
    )
    expected = torch.block_diag(torch.ones(2, 2), torch.ones(3, 3)).bool()
    assert torch.equal(read.keys[0, 0], expected)


def test_ends_of_sequences_in_several_rows_go_on_from_row_to_row():
    query, settings = (
        torch.zeros(2, HEADS, 4, DIM),
        {"cu_seq_lens_k": torch.tensor([0, 1, 4, 6, 8])},
    )
    read = Masking.read(
        SimpleNamespace(is_causal=False),
        query,
        None,
        settings,
        backend="flash_attention_2",
    )
    for row, lengths in enumerate([(1, 3), (2, 2)]):
        expected = torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool()
        assert torch.equal(read.keys[row, 0], expected)


def test_fewer_queries_than_keys_stand_at_the_end_in_flash_attention():
    """As with a cache."""
    query, module = torch.zeros(1, HEADS, 3, DIM), SimpleNamespace(is_causal=True)
    read = partial(Masking.read, module, query, backend="flash_attention_2", keys=5)
    ahead = torch.arange(5) - (torch.arange(3)[:, None] + 2)
    assert torch.equal(read(None, {}).keys[0, 0], ahead <= 0)
    assert torch.equal(
        read(None, {"sliding_window": 2}).keys[0, 0], (ahead <= 0) & (ahead > -2)
    )
    short = torch.ones(1, 4, dtype=torch.bool)  # a cache with room for more
    assert not read(short, {}).keys[..., 4].any()


# ---- flex attention


@pytest.fixture
def flexible(monkeypatch):
    """Flex attention without compilation, which takes a minute."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from transformers import masking_utils
    from transformers.integrations import flex_attention as integration

    def block_mask(**given):
        return create_block_mask(**given | {"_compile": False})

    def attend(query, key, value, **given):
        given.pop("training")
        return flex_attention(query, key, value, **given)

    monkeypatch.setattr(masking_utils, "create_block_mask", block_mask)
    monkeypatch.setattr(integration, "compile_friendly_flex_attention", attend)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.usefixtures("flexible")
@pytest.mark.parametrize("side", ["none", "right", "left"])
@pytest.mark.parametrize(
    "name", ["llama", "mistral", "gemma2", "gemma3", "modernbert", "bert"]
)
def test_masks_of_flex_attention(name, side):
    model = family(name, torch.float32)
    layers, maps, real = seen_on(model, "flex_attention", side)
    assert len(layers) == len(maps)
    for rows, weights in zip(layers, maps, strict=True):
        compare_maps(rows, weights.double(), real)
