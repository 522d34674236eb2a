"""Models keep the name of the attention that they were loaded with, and run on whatever a watcher meets."""

import sys
import types

import pytest
import tiny
import torch
import transformers
from families import _LATENT
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import anisoscope
from anisoscope.capture import capture, entry_points, heads
from anisoscope.capture.backends import intercept_attention
from anisoscope.errors import UnseenError

SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GROUPED = SMALL | {"num_key_value_heads": 2}
LATENT = SMALL | {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
INDEX = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 16}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 8,
}
HYBRIDS = {
    "mamba2": (
        "Mamba2Config",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_heads": 8,
            "head_dim": 8,
            "state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
        },
    ),
    "bamba": ("BambaConfig", GROUPED | MAMBA | {"attn_layer_indices": [1]}),
    "zamba2": (
        "Zamba2Config",
        SMALL
        | {
            "num_key_value_heads": 4,
            "layers_block_type": ["mamba", "hybrid"],
            "mamba_d_state": 8,
            "mamba_ngroups": 1,
            "n_mamba_heads": 8,
            "mamba_headdim": 8,
            "chunk_size": 8,
            "num_mem_blocks": 1,
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        GROUPED
        | {
            "hybrid_override_pattern": "M*",
            "mamba_num_heads": 8,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 8,
            "head_dim": 8,
        },
    ),
    "granite_hybrid": (
        "GraniteMoeHybridConfig",
        GROUPED
        | MAMBA
        | {
            "layer_types": ["mamba", "attention"],
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 16,
        },
    ),
    "falcon_h1": (
        "FalconH1Config",
        GROUPED | MAMBA | {"mamba_d_ssm": 64, "head_dim": 8},
    ),
}
"""Families whose state-space layers contract several axes in one einsum, beside attention."""
EVERYTHING = ("hidden", "query", "key", "value", "attention")


def built(config, sizes, backend=None):
    torch.manual_seed(0)
    made = getattr(transformers, config)(**sizes)
    return transformers.AutoModel.from_config(made, attn_implementation=backend).eval()


def token_ids(sequences=2, length=24):
    return torch.randint(
        3, 90, (sequences, length), generator=torch.Generator().manual_seed(1)
    )


def with_capture(model, what=EVERYTHING, optional=EVERYTHING[1:], **inputs):
    """(output without, output inside, tap)."""
    with torch.no_grad():
        plain = model(**inputs)
        with capture(model, what, optional=optional) as tap:
            inside = model(**inputs)
    return plain, inside, tap


# ---- the name of the backend


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("config", ["DeepseekV32Config", "GlmMoeDsaConfig"])
def test_sparse_attention_keeps_its_index(config, backend):
    """Models that read the name of their backend built no index under another one: outputs moved by 1.2."""
    model = built(config, LATENT | INDEX, backend)
    plain, inside, tap = with_capture(model, input_ids=token_ids())
    assert torch.equal(plain.last_hidden_state, inside.last_hidden_state)
    for layer in (1, 2):
        keys = tap[f"decoder.{layer}.attention"]["keys"]
        assert float(keys.max()) == INDEX["index_topk"]


class Reading(nn.Module):
    """A module that writes down which backend its configuration names while it runs."""

    def __init__(self, config, names):
        super().__init__()
        self.config, self.names = config, names

    def forward(self, x):
        self.names.append(self.config._attn_implementation)
        return x


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_a_model_sees_the_name_that_it_was_loaded_with(backend):
    names = []
    model = built("LlamaConfig", GROUPED, backend)
    model.layers[1].mlp.add_module("reading", Reading(model.config, names))
    down = model.layers[1].mlp.down_proj.forward
    model.layers[1].mlp.down_proj.forward = lambda x: model.layers[1].mlp.reading(
        down(x)
    )
    _, _, tap = with_capture(model, input_ids=token_ids())
    assert names == [backend, backend]
    assert "decoder.2.attention" in tap.sites


def test_the_interface_is_put_back():
    """After one capture, after several within each other, and after an exception."""
    model = built("LlamaConfig", GROUPED)

    def state():
        files = [vars(sys.modules[type(m).__module__]) for m in model.modules()]
        eager = [file.get("eager_attention_forward") for file in files]
        return (
            dict(vars(AttentionInterface)),
            dict(AttentionInterface._global_mapping),
            eager,
        )

    before = state()
    with (
        capture(model, ("attention",)),
        capture(built("GPT2Config", {}), ("attention",)),
    ):
        assert state() != before
    assert state() == before
    with pytest.raises(KeyError), capture(model, ("attention",)):
        raise KeyError
    assert state() == before


class OldStyle(nn.Module):
    """Attention as files of 2024 call it: their own function by its name, others from the mapping."""

    def __init__(self, config):
        super().__init__()
        self.config, self.is_causal, self.num_key_value_groups = config, False, 1

    def forward(self, x):
        q = x.unflatten(-1, (2, 4)).transpose(1, 2)
        attention = sys.modules[type(self).__module__].eager_attention_forward
        if self.config._attn_implementation != "eager":
            attention = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        return attention(self, q, q, q, None, scaling=0.5, dropout=0.0)[0].flatten(2)


def eager_attention_forward(_module, query, key, value, _mask, scaling, **_):
    weights = (query @ key.mT * scaling).softmax(-1)
    return (weights @ value).transpose(1, 2), weights


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_older_code_is_seen_too(backend, monkeypatch):
    file = types.ModuleType("modeling_old")
    file.eager_attention_forward = eager_attention_forward
    monkeypatch.setitem(sys.modules, "modeling_old", file)
    monkeypatch.setattr(OldStyle, "__module__", "modeling_old")
    calls, model = [], OldStyle(types.SimpleNamespace(_attn_implementation=backend))
    x = torch.randn(2, 5, 8)
    plain = model(x)
    with intercept_attention(model, calls.append):
        assert torch.equal(model(x), plain)
    (call,) = calls
    assert call.backend == backend and call.scale == 0.5
    assert file.eager_attention_forward is eager_attention_forward


def test_captures_within_each_other_see_the_same_calls():
    model, counts = built("LlamaConfig", GROUPED), ([], [])
    with intercept_attention(model, counts[0].append), torch.no_grad():
        with intercept_attention(model, counts[1].append):
            model(input_ids=token_ids())
        model(input_ids=token_ids())
    assert [len(calls) for calls in counts] == [4, 2]


# ---- whatever a watcher meets, the model runs on


@pytest.mark.parametrize("name", HYBRIDS)
def test_state_space_models_run_in_a_capture(name):
    """Products whose axes are not those of attention ended the forward pass of the model."""
    model = built(*HYBRIDS[name])
    plain, inside, tap = with_capture(model, input_ids=token_ids())
    assert torch.equal(plain.last_hidden_state, inside.last_hidden_state)
    assert not tap.unseen and not tap.refused
    eager = built(*HYBRIDS[name], "eager")
    with torch.no_grad():
        maps = eager(input_ids=token_ids(), output_attentions=True)
    maps = [p for p in getattr(maps, "attentions", None) or () if p is not None]
    seen = [tap[site]["entropy"] for site in tap.sites if site.endswith("attention")]
    assert len(seen) == len(maps)
    for entropy, weights in zip(seen, maps, strict=True):
        expected = torch.special.entr(weights.double()).sum(-1)
        torch.testing.assert_close(entropy.double(), expected, atol=2e-5, rtol=1e-5)


def test_the_vision_encoder_of_sam_runs_in_a_capture():
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "mlp_dim": 24,
        "output_channels": 8,
    }
    sizes |= {
        "image_size": 64,
        "patch_size": 8,
        "window_size": 3,
        "global_attn_indexes": [1],
    }
    torch.manual_seed(0)
    model = transformers.SamVisionModel(transformers.SamVisionConfig(**sizes)).eval()
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    plain, inside, _ = with_capture(model, pixel_values=pixels)
    assert torch.equal(plain.last_hidden_state, inside.last_hidden_state)


def test_wav2vec2_bert_runs_in_a_capture():
    sizes = SMALL | {"feature_projection_input_dim": 20, "add_adapter": False}
    model = built("Wav2Vec2BertConfig", sizes)
    features = torch.randn(2, 30, 20, generator=torch.Generator().manual_seed(1))
    plain, inside, tap = with_capture(model, input_features=features)
    assert torch.equal(plain.last_hidden_state, inside.last_hidden_state)
    assert "encoder.2.hidden" in tap.sites


@pytest.mark.parametrize(
    "equation, shapes",
    [
        ("bhld,lrd->bhlr", [(2, 2, 5, 4), (5, 5, 4)]),  # a table for each query
        (
            "bclhn,bcshn->bclsh",
            [(2, 3, 4, 2, 5), (2, 3, 4, 2, 5)],
        ),  # heads behind the map
        ("bhwc,hkc->bhwk", [(2, 3, 4, 5), (3, 4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("...id,...jd->...ij", [(2, 2, 5, 4), (2, 2, 5, 4)]),
        ("bij,bkl->bijkl", [(2, 3, 4), (2, 5, 6)]),
        ("bii,bij->bij", [(2, 3, 3), (2, 3, 4)]),
    ],
)
def test_products_of_any_axes_are_computed_as_without(equation, shapes):
    class Contracting(nn.Module):
        def forward(self, *tensors):
            return torch.einsum(equation, *tensors)

    tensors = [torch.randn(shape) for shape in shapes]
    model, plain = Contracting(), torch.einsum(equation, *tensors)
    with entry_points.watch_entry_points({model}, lambda _call: None):
        assert torch.equal(model(*tensors), plain)


class Dotted(nn.Module):
    """Attention by einsum with an ellipsis in place of its leading axes."""

    def forward(self, q, k, v):
        weights = torch.einsum("...id,...jd->...ij", q, k).softmax(-1)
        return torch.einsum("...ij,...jd->...id", weights, v)


def test_an_ellipsis_stands_for_the_leading_axes():
    q, k, v = torch.randn(3, 2, 3, 5, 4)
    calls, model = [], Dotted()
    with entry_points.watch_entry_points({model}, calls.append):
        model(q, k, v)
    (call,) = calls
    assert (
        torch.equal(call.query, q)
        and torch.equal(call.key, k)
        and torch.equal(call.value, v)
    )


def fail_in(module, error, after=0):
    """Rows that cannot be computed for the calls of one module, but for the first few."""
    rows, calls = heads.Heads._compute_rows, []

    def failing(self, call, *given, **named):
        if call.module is module:
            calls.append(None)
            if len(calls) > after:
                raise error
        return rows(self, call, *given, **named)

    return failing


def test_a_layer_that_cannot_be_read_is_named_and_the_rest_measured(monkeypatch):
    inputs, _ = tiny.padded("llama", "right")
    model = tiny.model("llama")
    expected = anisoscope.measure(model, inputs).records
    monkeypatch.setattr(
        heads.Heads,
        "_compute_rows",
        fail_in(model.layers[1].self_attn, RuntimeError("no such rows")),
    )
    run = anisoscope.measure(model, inputs)
    (said,) = [
        w for w in run.manifest["warnings"] if "left out" in w and "attention" in w
    ]
    assert (
        "attention of layers 2 of decoder: in LlamaAttention: RuntimeError: no such rows"
        in said
    )
    left_out = (expected["layer"] == 2).fillna(False) & (expected["site"] != "hidden")
    ours, theirs = (
        frame.drop(columns="run").reset_index(drop=True)
        for frame in (run.records, expected[~left_out])
    )
    assert left_out.sum() > 100 and ours.equals(theirs)


def test_a_layer_that_fails_later_is_left_out_of_the_whole_run(monkeypatch):
    """Not summed over the batches before."""
    inputs, _ = tiny.padded("llama", "right")
    model, error = tiny.model("llama"), ValueError("in the second batch")
    monkeypatch.setattr(
        heads.Heads, "_compute_rows", fail_in(model.layers[1].self_attn, error, after=1)
    )
    run = anisoscope.measure(model, [inputs, inputs, inputs])
    of_rows = run.records[run.records["site"] == "attention"]
    assert set(of_rows["layer"].dropna()) == {1, 3}
    assert any("in the second batch" in w for w in run.manifest["warnings"])


def test_attention_asked_for_by_name_that_cannot_be_read_is_an_error_with_the_reason(
    monkeypatch,
):
    inputs, _ = tiny.padded("llama", "right")

    def failing(*_given, **_named):
        raise RuntimeError("no such rows")

    monkeypatch.setattr(heads, "attention_rows", failing)
    with pytest.raises(UnseenError, match="no such rows"):
        anisoscope.measure(tiny.model("llama"), inputs, panel="attention")


def test_what_the_receiver_raises_is_raised():
    """A full disk or a mistake of one's own is no attention that cannot be read."""
    inputs, _ = tiny.padded("llama", "right")

    def receive(site, _value):
        if site.quantity == "attention":
            raise ValueError("of the receiver")

    model = tiny.model("llama")
    with (
        pytest.raises(ValueError, match="of the receiver"),
        capture(model, EVERYTHING, receive=receive),
    ):
        model(**inputs)


def test_an_entry_point_that_cannot_be_read_is_named_if_it_was_attention(monkeypatch):
    """Scores by hand: the softmax is not read, so that the count of what was computed says what is missing."""
    model = built(
        "BloomConfig", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}
    )

    def failing(*_given, **_named):
        raise IndexError("an axis too many")

    monkeypatch.setattr(entry_points._Watch, "softmax", failing)
    run = anisoscope.measure(model, {"input_ids": token_ids(40)})
    (said,) = [w for w in run.manifest["warnings"] if "not seen" in w]
    assert "softmax: IndexError: an axis too many in BloomBlock" in said
    assert set(run.records["site"]) == {"hidden", "final", "embedding.input"}


def test_keys_that_are_no_tokens_leave_the_rest_of_the_default_run():
    """A layer whose keys stand for several tokens was an error of the whole run."""
    sizes = _LATENT | {
        "layer_types": ["sliding_attention", "heavily_compressed_attention"]
    }
    sizes["compress_rates"] = {
        "compressed_sparse_attention": 2,
        "heavily_compressed_attention": 4,
    }
    config = transformers.AutoConfig.for_model("deepseek_v4", **sizes)
    model = transformers.AutoModel.from_config(config).eval()
    _, _, tap = with_capture(
        model, EVERYTHING[1:], EVERYTHING[1:], input_ids=token_ids()
    )
    (why,) = tap.refused.values()
    assert (
        tap.refused.keys() == {("decoder", 2, "self")}
        and "30 keys for 24 positions" in why
    )
    assert {site.split(".")[1] for site in tap.sites} == {"1"}


def test_a_backend_that_calls_another_is_looked_at_once():
    """Both have wrappers: a call inside a call that is seen already would count twice."""

    def falling_back(*given, **settings):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](*given, **settings)

    AttentionInterface.register("falls_back", falling_back)
    config = transformers.BertConfig(**SMALL)
    model = transformers.BertModel(config).eval()
    model.set_attn_implementation("falls_back")
    ids, calls = torch.arange(6).view(1, 6), []
    with (
        torch.no_grad(),
        intercept_attention(model, lambda call: calls.append(call.backend)),
    ):
        model(input_ids=ids)
    assert calls == ["falls_back"] * 2
