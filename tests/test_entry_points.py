"""Attention off the interface, mechanism by mechanism: what is handed on computes what the model computed."""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import anisoscope
from anisoscope.capture import capture, entry_points
from anisoscope.capture.counting import Counting
from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores

FLAT = {"vocab_size": 100}
HUGGING = {
    "bloom": ("BloomConfig", {"hidden_size": 32, "n_layer": 2, "n_head": 4}, "dense"),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4}, "out_proj"),
    "gptj": (
        "GPTJConfig",
        {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
        "out_proj",
    ),
    "falcon": (
        "FalconConfig",
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
        "dense",
    ),
    "deberta": (
        "DebertaV2Config",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 40,
            "relative_attention": True,
            "pos_att_type": ["c2p", "p2c"],
        },
        "attention.output.dense",
    ),
    "xlnet": (
        "XLNetConfig",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40},
        "",
    ),
}
"""Families that score by hand: configuration, and the projection that is called with the heads' outputs."""


def watched(model, *args, **named):
    """The calls handed on, and the output, which stays the same bit for bit."""
    calls = []
    with torch.no_grad():
        plain = model(*args, **named)
        with entry_points.watch_entry_points(set(model.modules()), calls.append):
            inside = model(*args, **named)
        after = model(*args, **named)
    for output in (inside, after):
        assert all(
            torch.equal(x, y)
            for x, y in zip(tensors(plain), tensors(output), strict=True)
        )
    return calls, plain


def tensors(output):
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if hasattr(output, "values") else output
    return [x for part in values if part is not None for x in tensors(part)]


def context(call):
    """Weights by the softmax of what wchecked by hand, in float64, and the outputs of the heads side by side."""
    mask = (
        call.mask
        if call.mask is None or call.mask.dtype == torch.bool
        else call.mask.double()
    )
    q, k, v = (x.double() for x in (call.query, call.key, call.value))
    weights = replace(call, query=q, key=k, mask=mask).weights()
    heads = weights @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)
    return weights, heads.transpose(1, 2).flatten(2)


def check_rows(call, weights, real):
    """Entropy and largest weight of real rows, as `attention_rows` gives them, against the weights."""
    rows = attention_rows(call.query, call.key, call.masking, scale=call.scale)
    seen = real[:, None].expand_as(rows["entropy"])
    torch.testing.assert_close(
        rows["entropy"].double()[seen],
        torch.special.entr(weights).sum(-1)[seen],
        atol=2e-6,
        rtol=0,
    )
    torch.testing.assert_close(
        rows["row_max"].double()[seen], weights.amax(-1)[seen], atol=2e-6, rtol=0
    )


def parts(call):
    return call.query, call.key, call.value


def random(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def padding(side):
    """Which of 9 tokens are real in each of 2 sequences."""
    lengths = torch.tensor([9, 6])
    real = torch.arange(9) < lengths[:, None]
    return real.flip(1) if side == "left" else real


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", HUGGING)
def test_models_that_score_by_hand(name, side):
    config, sizes, projection = HUGGING[name]
    model = transformers.AutoModel.from_config(
        getattr(transformers, config)(**FLAT, **sizes), attn_implementation="eager"
    )
    random(model)
    real = padding(side)
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(1))
    inputs = []
    handles = [
        module.register_forward_pre_hook(
            lambda _m, args: inputs.append(args[0].double())
        )
        for path, module in model.named_modules()
        if projection
        and path.endswith(projection)
        and ("attention" in path or "attn" in path)
    ]
    calls, output = watched(
        model, input_ids=ids, attention_mask=real.long(), output_attentions=True
    )
    assert len(calls) == 2
    for call, own in zip(calls, output.attentions, strict=True):
        weights, _ = context(call)
        own = own if own.shape == weights.shape else own.permute(2, 3, 0, 1)
        sees = real[:, None, :, None].expand_as(weights)
        torch.testing.assert_close(weights[sees], own.double()[sees], atol=2e-6, rtol=0)
        check_rows(call, weights, real)
    for call, given in zip(calls, inputs[: len(handles)], strict=bool(projection)):
        heads = context(call)[1]
        torch.testing.assert_close(
            heads[real], given.view_as(heads)[real], atol=2e-5, rtol=1e-5
        )


@pytest.mark.parametrize("training", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("hidden", ["keys", "left keys", "pairs", "both", "added"])
def test_torch_s_own_attention(training, need_weights, hidden):
    attention = random(nn.MultiheadAttention(16, 4, batch_first=True)).train(training)
    real = padding("left" if hidden == "left keys" else "right")
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2))
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    masks = {"keys": {"key_padding_mask": ~real}, "pairs": {"attn_mask": later}}
    masks |= {"both": masks["keys"] | masks["pairs"], "left keys": masks["keys"]}
    masks["added"] = {
        "attn_mask": torch.randn(9, 9, generator=torch.Generator().manual_seed(3))
    }
    given = masks[hidden] | {
        "need_weights": need_weights,
        "average_attn_weights": False,
    }
    (call,), (output, own) = watched(attention, x, x, x, **given)
    weights, heads = context(call)
    expected = functional.linear(
        heads, attention.out_proj.weight.double(), attention.out_proj.bias.double()
    )
    torch.testing.assert_close(
        output.double()[real], expected[real], atol=2e-6, rtol=1e-5
    )
    projected = functional.linear(x, attention.in_proj_weight, attention.in_proj_bias)
    for got, part in zip(
        (call.query, call.key, call.value), projected.chunk(3, -1), strict=True
    ):
        torch.testing.assert_close(
            got.transpose(1, 2).flatten(2), part, atol=2e-6, rtol=1e-5
        )
    check_rows(call, weights, real)
    if need_weights:
        torch.testing.assert_close(weights, own.double(), atol=2e-6, rtol=0)


def test_cross_attention_of_torch_s_own_layers():
    attention = random(nn.MultiheadAttention(16, 4, batch_first=True))
    x, y = torch.randn(2, 5, 16), torch.randn(2, 9, 16)
    (call,), (output, _) = watched(
        attention, x, y, y, key_padding_mask=~padding("right"), need_weights=False
    )
    expected = functional.linear(
        context(call)[1],
        attention.out_proj.weight.double(),
        attention.out_proj.bias.double(),
    )
    torch.testing.assert_close(output.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", ["", "left", "right"])
def test_the_fast_path_of_torch_s_encoder(norm_first, padded):
    """Its fused layer is taken, inside as outside; queries, keys and values are those of the slow path."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first
    )
    encoder = random(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    )
    real = padding(padded)
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2))
    mask = {"src_key_padding_mask": ~real} if padded else {}
    fast, _ = watched(encoder, x, **mask)
    assert [type(call.module) for call in fast] == [nn.TransformerEncoderLayer] * 2
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        slow, _ = watched(encoder, x, **mask)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    counted = real if padded else torch.ones_like(real)
    for ours, theirs in zip(fast, slow, strict=True):
        for a, b in zip(parts(ours), parts(theirs), strict=True):
            torch.testing.assert_close(
                a.transpose(1, 2)[counted],
                b.transpose(1, 2)[counted],
                atol=5e-6,
                rtol=1e-5,
            )
        check_rows(ours, context(theirs)[0], counted)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_the_output_of_a_fused_layer_follows_from_its_attention(norm_first, activation):
    """What a capture proves itself by: another norm or activation would refuse attention that is right."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, activation=activation
    )
    encoder = random(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    calls, _ = watched(
        encoder, torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2))
    )
    assert len(calls) == 2
    for call in calls:
        attended = (call.weights() @ call.value).transpose(1, 2)
        torch.testing.assert_close(
            call.finish(attended), call.result(), atol=5e-6, rtol=1e-5
        )


class Grouped(nn.Module):
    """Keys shared by heads, through torch's fused product."""

    def forward(self, x, **named):
        q, k, v = (
            x.view(2, 9, 4, 8).transpose(1, 2),
            x[..., :16].view(2, 9, 2, 8).transpose(1, 2),
            x[..., 16:].view(2, 9, 2, 8).transpose(1, 2),
        )
        return functional.scaled_dot_product_attention(
            q, k, v, enable_gqa=True, **named
        )


@pytest.mark.parametrize(
    "named",
    [
        {},
        {"is_causal": True},
        {"scale": 0.7},
        {"attn_mask": torch.ones(9, 9).tril().bool()},
        {"attn_mask": torch.randn(2, 1, 9, 9)},
    ],
    ids=["plain", "causal", "scale", "boolean", "added"],
)
def test_the_fused_product(named):
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(2))
    (call,), output = watched(Grouped(), x, **named)
    weights, heads = context(call)
    torch.testing.assert_close(
        output.transpose(1, 2).flatten(2).double(), heads, atol=2e-6, rtol=1e-5
    )
    check_rows(call, weights, torch.ones(2, 9, dtype=torch.bool))


class ByHand(nn.Module):
    """One head, scored as a textbook does; `ends` with an exception."""

    def __init__(self, ends=False):
        super().__init__()
        self.soft, self.ends = nn.Softmax(dim=-1), ends

    def forward(self, x):
        weights = self.soft(x @ x.mT / x.shape[-1] ** 0.5)
        if self.ends:
            raise RuntimeError("in the middle")
        return weights @ x


def test_a_textbook_s_attention():
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(2))
    (call,), output = watched(ByHand(), x)
    torch.testing.assert_close(context(call)[1], output.double(), atol=2e-6, rtol=1e-5)
    assert call.scale == 8**-0.5


@pytest.mark.parametrize("ends", [False, True])
def test_no_trace_is_left(ends):
    places = (torch, functional, torch.Tensor)
    before = [dict(vars(place)) for place in places]
    module = ByHand(ends)
    try:
        with entry_points.watch_entry_points(set(module.modules()), lambda *_: None):
            assert torch.matmul is not before[0]["matmul"]
            module(torch.randn(2, 3, 4))
    except RuntimeError as error:
        assert ends and str(error) == "in the middle"
    assert [dict(vars(place)) for place in places] == before


def test_other_modules_and_what_is_no_attention_are_left_alone():
    x, calls = torch.randn(2, 9, 8), []
    with entry_points.watch_entry_points({nn.Linear(2, 2)}, calls.append):
        ByHand()(x)
        (x @ x.mT).softmax(-1) @ x
    assert not calls


# ---- every mechanism, by a computation in float64 by hand


class Attend(nn.Module):
    """Queries of `x`, keys and values of `y`, through one mechanism; keys of fewer heads are repeated by hand where the
    mechanism does not.
    """

    def __init__(self, how, key_heads):
        super().__init__()
        self.how, self.key_heads, self.num_heads = how, key_heads, 4
        self.weight = nn.Parameter(
            0.3 * torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(4))
        )

    def projected(self, x, y, dtype=torch.float32):
        heads = (4, self.key_heads, self.key_heads)
        made = zip((x, y, y), self.weight.detach().to(dtype), heads, strict=True)
        return [
            (z.to(dtype) @ w[:, : 4 * n]).unflatten(-1, (n, 4)).transpose(1, 2)
            for z, w, n in made
        ]

    def forward(self, x, y, mask):
        q, k, v = self.projected(x, y)
        if self.how == "fused":
            return functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, enable_gqa=self.key_heads < 4
            )
        k, v = (z.repeat_interleave(4 // self.key_heads, 1) for z in (k, v))
        shown = (
            mask
            if mask.dtype != torch.bool
            else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
        )
        if self.how == "products":
            return ((q @ k.mT) * 0.5 + shown).softmax(-1) @ v
        if self.how == "einsum":
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * 0.5 + shown
            return torch.einsum("bhij,bhjd->bhid", functional.softmax(scores, -1), v)
        flat = [z.flatten(0, 1) for z in (q, k, v)]
        wide = shown.expand(len(q), 4, q.shape[2], k.shape[2]).flatten(0, 1)
        return torch.bmm(
            torch.baddbmm(wide, flat[0], flat[1].mT, alpha=0.5).softmax(-1), flat[2]
        ).view(q.shape)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("key_heads", [4, 2], ids=["heads", "grouped"])
@pytest.mark.parametrize("crossing", [False, True], ids=["self", "cross"])
@pytest.mark.parametrize("kind", ["boolean", "additive"])
@pytest.mark.parametrize("how", ["fused", "products", "einsum", "baddbmm"])
def test_every_mechanism_is_what_it_computes_by_hand(
    how, kind, crossing, key_heads, side
):
    drawn = torch.Generator().manual_seed(5)
    y, x = (
        torch.randn(2, 9, 16, generator=drawn),
        torch.randn(2, 5, 16, generator=drawn),
    )
    x, real = x if crossing else y, padding(side)
    mask = real[:, None, None, :].expand(2, 1, x.shape[1], 9)
    bias = torch.zeros(mask.shape, dtype=torch.float64)
    if kind == "additive":
        bias = torch.randn(mask.shape, generator=drawn).double()
    module = Attend(how, key_heads)
    (call,), output = watched(
        module,
        x,
        y,
        mask if kind == "boolean" else bias.float().masked_fill(~mask, -torch.inf),
    )
    q, k, v = module.projected(x, y, torch.float64)
    shared = 4 // key_heads
    k, v = (z.repeat_interleave(shared, 1) for z in (k, v))
    weights = (q @ k.mT * 0.5 + bias.masked_fill(~mask, -torch.inf)).softmax(-1)
    counted = torch.ones(2, 5, dtype=torch.bool) if crossing else real
    check_rows(call, weights, counted)
    torch.testing.assert_close(output.double(), weights @ v, atol=5e-6, rtol=1e-5)
    repeated = shared if how == "fused" else 1
    ours = (
        call.query,
        *(z.repeat_interleave(repeated, 1) for z in (call.key, call.value)),
    )
    for captured_, by_hand in zip(ours, (q, k, v), strict=True):
        torch.testing.assert_close(captured_.double(), by_hand, atol=2e-6, rtol=1e-5)


# ---- through a capture: sites, layers, kinds


def captured(
    model,
    *args,
    what=("hidden", "query", "key", "value", "attention"),
    blocks=(),
    **named,
):
    """{site: tensor} of one call, whose output is the same as without."""
    with torch.no_grad():
        plain = model(*args, **named)
        with capture(model, what, blocks=blocks) as tap:
            inside = model(*args, **named)
    assert all(
        torch.equal(x, y) for x, y in zip(tensors(plain), tensors(inside), strict=True)
    )
    return tap.kept


@pytest.mark.parametrize("name", HUGGING)
def test_every_layer_has_its_attention(name):
    config, sizes, _ = HUGGING[name]
    model = random(
        transformers.AutoModel.from_config(
            getattr(transformers, config)(**FLAT, **sizes)
        )
    )
    ids = torch.randint(3, 90, (2, 9), generator=torch.Generator().manual_seed(1))
    kept = captured(model, input_ids=ids, attention_mask=padding("right").long())
    stack = "encoder" if name in ("deberta", "xlnet") else "decoder"
    rows = [kept[f"{stack}.{layer}.attention"]["entropy"] for layer in (1, 2)]
    assert [r.shape for r in rows] == [
        (2, 4, 9)
    ] * 2 and f"{stack}.0.attention" not in kept
    stage = "rotated" if name in ("gptj", "falcon") else "raw"
    assert kept[f"{stack}.1.head.query.{stage}"].shape == (2, 4, 9, 8)


@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_s_transformer_keeps_its_fast_path(norm_first):
    """Hooks on its blocks turned the fast path off, and moved outputs of padded batches by 1e-6."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first
    )
    model = random(nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first))
    x = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(2))
    calls, fast = [], torch._transformer_encoder_layer_fwd
    with patch.object(
        torch,
        "_transformer_encoder_layer_fwd",
        lambda *given: calls.append(1) or fast(*given),
    ):
        kept = captured(model, x, src_key_padding_mask=~padding("right"))
    assert len(calls) == 4
    assert {name for name in kept if "attention" in name} == {
        "encoder.1.attention",
        "encoder.2.attention",
    }
    assert torch.equal(kept["encoder.0.hidden"][0], x[0]) and kept[
        "encoder.2.hidden"
    ].shape == (2, 9, 16)
    assert "forward" not in vars(model.layers[0])


def test_self_and_cross_attention_of_torch_s_transformer():
    torch.manual_seed(0)
    model = random(nn.Transformer(16, 4, 1, 2, 32, batch_first=True))
    kept = captured(model, torch.randn(2, 9, 16), torch.randn(2, 9, 16))
    names = {name for name in kept if "attention" in name}
    assert names == {"encoder.1.attention"} | {
        f"decoder.{k}.{c}attention" for k in (1, 2) for c in ("", "cross.")
    }


def test_any_module_is_measured_with_its_attention():
    """A module without transformers was measured in its hidden states only."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = random(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    run = anisoscope.measure(
        model, torch.randn(40, 9, 16, generator=torch.Generator().manual_seed(2))
    )
    entropy = run.records[run.records["metric"] == "attention.entropy"]
    assert set(entropy["layer"].dropna()) == {1, 2} and entropy["value"].notna().any()


def test_heads_that_are_scored_outside_of_blocks_are_left_alone():
    """The pooling of SigLIP, behind the last block, would have been one more attention of the last layer."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = transformers.SiglipVisionConfig(**sizes, image_size=16, patch_size=8)
    kept = captured(
        random(transformers.SiglipVisionModel(config)), torch.randn(2, 3, 16, 16)
    )
    assert kept["encoder.2.attention"]["entropy"].shape == (2, 4, 4)


class ByName(nn.Module):
    """A textbook's attention whose arguments are given by name, and products that are none."""

    def forward(self, x):
        torch.einsum(x, [0, 1, 2], x, [0, 1, 2], [0])
        scores = torch.bmm(input=x, mat2=x.mT) * x.shape[-1] ** -0.5
        return torch.matmul(input=torch.softmax(input=scores, dim=-1), other=x)


def test_arguments_by_name_are_read_too():
    """A model that calls torch by names ended in a TypeError of ours."""
    x = torch.randn(2, 9, 8, generator=torch.Generator().manual_seed(2))
    (call,), output = watched(ByName(), x)
    torch.testing.assert_close(context(call)[1], output.double(), atol=2e-6, rtol=1e-5)


def test_scores_of_no_known_form_are_not_handed_on():
    assert watched(ByHand(), torch.randn(2, 3, 2, 9, 8))[0] == []


class InWindows(nn.Module):
    """Blocks that attend within windows of a sequence and of its padding."""

    class WindowAttention(nn.Module):
        def forward(self, x):
            windows = functional.pad(x, (0, 0, 0, 3)).reshape(-1, 4, x.shape[-1])
            windows = (windows @ windows.mT).softmax(-1) @ windows
            return windows.reshape(len(x), 12, -1)[:, :9]

    class TwoAttentions(nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = (x @ x.mT).softmax(-1) @ x
            return x

    def __init__(self, block):
        super().__init__()
        self.layers = nn.ModuleList(getattr(self, block)() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.mark.parametrize("block", ["WindowAttention", "TwoAttentions"])
def test_attention_that_cannot_be_seen_whole_is_left_out_and_said(block):
    """Its hidden states are measured; asked for by name, it is an error."""
    x = torch.randn(40, 9, 16, generator=torch.Generator().manual_seed(2))
    run = anisoscope.measure(InWindows(block), {"x": x}, blocks=("layers.*",))
    assert set(run.records["site"]) == {"hidden"} and any(
        "not seen" in w for w in run.manifest["warnings"]
    )
    with pytest.raises(anisoscope.errors.MeasureError):
        anisoscope.measure(
            InWindows(block), {"x": x}, blocks=("layers.*",), panel="attention"
        )


# ---- windows, and what is not seen at all


EVERY = ("layers.*",)
WINDOWED = ("query", "key", "value", "attention", "scores")


ALL = Masking(None, False, None)


class Blocks(nn.Module):
    """Two blocks of one kind, after which nothing comes."""

    def __init__(self, *blocks):
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Windowed(nn.Module):
    """A block that attends within windows of 3 positions, one after another."""

    def __init__(self):
        super().__init__()
        self.num_heads = 2

    def forward(self, x):
        q = x.reshape(-1, 3, 2, 4).transpose(1, 2)
        return (
            functional.scaled_dot_product_attention(q, 2 * q, 3 * q)
            .transpose(1, 2)
            .reshape(x.shape)
        )


def test_windows_are_seen_as_parts_of_their_sequence():
    x = torch.randn(4, 9, 8, generator=torch.Generator().manual_seed(2))
    kept = captured(Blocks(Windowed(), Windowed()), x, what=WINDOWED, blocks=EVERY)
    whole = x.view(4, 9, 2, 4).transpose(1, 2)
    for name, factor in (("query.raw", 1), ("key.raw", 2), ("value", 3)):
        assert torch.equal(kept[f"encoder.1.head.{name}"], factor * whole)
    q = whole.double().unflatten(2, (3, 3))  # sequence, head, window, token, dim
    weights = (q @ (2 * q).mT / 2).softmax(-1)
    rows = kept["encoder.1.attention"]
    entropy = torch.special.entr(weights).sum(-1).flatten(2)
    torch.testing.assert_close(rows["entropy"].double(), entropy, atol=2e-6, rtol=0)
    assert (rows["keys"] == 3).all() and rows["row_similarity"].shape == (4, 2)
    u = weights / weights.norm(dim=-1, keepdim=True)
    alike = (
        (u @ u.mT).sum((-1, -2)) - 3
    ) / 6  # of the pairs of rows inside each window
    torch.testing.assert_close(
        rows["row_similarity"].double(), alike.mean(2), atol=2e-6, rtol=0
    )
    sums = kept["encoder.1.scores"]
    assert (sums["rows"] == 9).all()
    torch.testing.assert_close(
        sums["query"], whole.double().sum(2) / 2, atol=1e-5, rtol=0
    )
    alone = sum_scores(
        q.flatten(0, 2).unsqueeze(1), (2 * q).flatten(0, 2).unsqueeze(1), ALL, scale=0.5
    )
    for (
        name,
        value,
    ) in (
        alone.items()
    ):  # [sequence · head · window, 1, …]: windows of a sequence add up
        wanted = value.squeeze(1).unflatten(0, (4, 2, 3)).sum(2)
        torch.testing.assert_close(sums[name], wanted, atol=1e-4, rtol=1e-5, msg=name)
    run = anisoscope.measure(
        Blocks(Windowed(), Windowed()), {"x": x.repeat(10, 1, 1)}, blocks=("layers.*",)
    )
    assert {"attention", "query.raw"} <= set(run.records["site"])


class Scripted(nn.Module):
    """Attention that torch's entry points never see: called at the library's own operators."""

    num_heads = 2

    def forward(self, x):
        q = x.view(*x.shape[:2], 2, 4).transpose(1, 2)
        heads = torch.ops.aten.scaled_dot_product_attention(q, q, q)
        return heads.transpose(1, 2).reshape(x.shape)


class ByOperators(nn.Module):
    def forward(self, x):
        weights = torch.ops.aten.softmax.int(torch.ops.aten.bmm(x, x.mT), -1)
        return torch.ops.aten.bmm(weights.clone(), x)


class Seen(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x


class Gate(nn.Module):
    """Called attention, but none."""

    def forward(self, x):
        return x * x.softmax(-1)


@pytest.mark.parametrize("kind", [Scripted, ByOperators])
def test_what_runs_unseen_is_named_and_the_rest_measured(kind):
    """0 calls seen and 1 run was taken for a model without attention."""
    x = torch.randn(40, 9, 8, generator=torch.Generator().manual_seed(2))
    model = Blocks(Seen(), kind(), Seen())
    kept = captured(model, x, blocks=EVERY)
    assert {name for name in kept if "attention" in name} == {
        "encoder.1.attention",
        "encoder.3.attention",
    }
    run = anisoscope.measure(model, {"x": x}, blocks=("layers.*",))
    (said,) = [w for w in run.manifest["warnings"] if "not seen" in w]
    assert "layers 2 of encoder (aten::" in said and f"in {kind.__name__}" in said
    of_rows = run.records[run.records["metric"] == "attention.entropy"]
    assert set(of_rows["layer"].dropna()) == {1, 3}


def test_a_model_without_attention_says_nothing_of_it():
    x = torch.randn(40, 9, 8, generator=torch.Generator().manual_seed(2))
    run = anisoscope.measure(
        Blocks(Gate(), nn.Linear(8, 8)), {"x": x}, blocks=("layers.*",)
    )
    assert not any("not seen" in w for w in run.manifest["warnings"])


@pytest.mark.parametrize("ends", [False, True])
def test_counting_leaves_no_trace(ends):
    model, x = Blocks(Seen(), ByHand(ends)), torch.randn(2, 3, 4)
    depth = torch._C._len_torch_dispatch_stack()
    with capture(model, ("attention",), optional=("attention",), blocks=EVERY):
        for _ in range(2):
            try:
                model(x)
            except RuntimeError as error:
                assert ends and str(error) == "in the middle"
            assert torch._C._len_torch_dispatch_stack() == depth
    assert not model._forward_hooks and not model._forward_hooks_always_called


def test_only_the_first_call_is_counted():
    model, x, calls = Blocks(Seen(), Seen()), torch.randn(2, 3, 4), []
    with (
        capture(model, ("attention",), blocks=EVERY),
        patch.object(Counting, "__torch_dispatch__", counted(calls)),
    ):
        model(x)
        first = len(calls)
        model(x)
    assert first and len(calls) == first


@pytest.mark.parametrize("below", [False, True])
def test_what_is_measured_is_not_counted(below):
    """It does not even pass through the mode, unless another mode lies above: then it is not counted."""
    model, x, depths, ran = Blocks(Seen(), Seen()), torch.randn(2, 3, 4), [], []
    before = torch._C._len_torch_dispatch_stack()
    above = FlopCounterMode(display=False) if below else nullcontext()

    def enter(*_):
        above.__enter__()

    def leave(*_):
        above.__exit__(None, None, None)

    def receive(_site, _value):
        depths.append(torch._C._len_torch_dispatch_stack() - before)
        functional.scaled_dot_product_attention(*torch.randn(3, 1, 1, 4, 4))

    with capture(model, ("hidden", "attention"), blocks=EVERY, receive=receive) as tap:
        tap.counting.ran = ran.append
        model.register_forward_pre_hook(enter)
        model.register_forward_hook(leave, prepend=True)
        model(x)
    assert len(ran) == 2  # the model's own
    assert set(depths) == ({2} if below else {0})


def counted(calls):
    def dispatch(_mode, func, _types, args=(), kwargs=None):
        calls.append(func)
        return func(*args, **(kwargs or {}))

    return dispatch


class Reading(nn.Module):
    """A block that reads nine vectors of memory with the five of its input, and scores them by hand."""

    def __init__(self):
        super().__init__()
        self.reader = Attend("products", 4)
        memory = torch.randn(1, 9, 16, generator=torch.Generator().manual_seed(6))
        self.register_buffer("memory", memory)

    def forward(self, x):
        mask = torch.ones(1, 1, 1, 9, dtype=torch.bool)
        mixed = self.reader(x, self.memory.expand(len(x), -1, -1), mask)
        return x + mixed.transpose(1, 2).flatten(2)


def test_keys_of_another_length_are_cross_attention_by_hand_too():
    model = nn.Sequential(Reading(), Reading())
    kept = captured(
        model, torch.randn(2, 5, 16), what={"attention", "hidden"}, blocks=("Reading",)
    )
    assert {name for name in kept if "attention" in name} == {
        f"encoder.{n}.cross.attention" for n in (1, 2)
    }


class Added(nn.Module):
    """Attention whose mask is a number added to the scores."""

    def __init__(self, number):
        super().__init__()
        self.number = number

    def forward(self, q, k, v, seen):
        scores = torch.matmul(q, k.mT) * 0.7 + (1.0 - seen.to(q)) * self.number
        return torch.matmul(torch.softmax(scores, -1), v)


@pytest.mark.parametrize("number", [-1e4, -1e5, -1e9, -3.4e38])
def test_what_hides_a_key_may_be_any_large_number(number):
    """Of keys hidden by −10,000, as older code has it, those that fit better than all seen ones counted as seen: they
    led the scale astray, and the scores with it.
    """
    q, k, v = (
        4 * torch.randn(2, 3, 7, 8, generator=torch.Generator().manual_seed(seed))
        for seed in range(3)
    )
    seen = torch.arange(7) < torch.tensor([5, 7])[:, None, None, None]
    (call,), _ = watched(Added(number), q, k, v, seen)
    assert call.scale == pytest.approx(0.7, rel=1e-4)
    rows, expected = (
        attention_rows(q, k, m, scale=0.7)
        for m in (call.masking, Masking(seen, False, None))
    )
    for name in ("keys", "score", "entropy", "row_min"):
        torch.testing.assert_close(
            rows[name], expected[name], atol=1e-3, rtol=1e-4, msg=name
        )


class Scores(nn.Module):
    def forward(self, query, key):
        return torch.matmul(query, key.transpose(-1, -2)).softmax(-1)


class Mixture(nn.Module):
    def forward(self, weights, value):
        return torch.matmul(weights, value)


class Whole(nn.Module):
    def forward(self, query, key, value):
        weights = torch.matmul(query, key.transpose(-1, -2)).softmax(-1)
        return torch.matmul(weights, value)


def test_what_one_module_computed_is_no_part_of_another_s_attention():
    """What another module had is let go of: its scores are not taken for those of this one."""
    scores, mixture, whole, calls = Scores(), Mixture(), Whole(), []
    x = [torch.randn(1, 2, 4, 3) for _ in range(3)]
    with (
        torch.no_grad(),
        entry_points.watch_entry_points(
            {scores, mixture, whole}, lambda call: calls.append(call.module)
        ),
    ):
        mixture(scores(x[0], x[1]), x[2])
        assert calls == []
        whole(*x)
    assert calls == [whole]
