"""A capture proves itself on the first batch; planted lies are seen: a lost window, a wrong scale, a swapped layer."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import test_backends
import test_masks
import tiny
import torch
import transformers
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import anisoscope
from anisoscope.axes import Site
from anisoscope.capture import capture, heads, proof
from anisoscope.capture.heads import Heads
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.proof import Outputs, Positions, Proof
from anisoscope.capture.tap import HEADS, Tap
from anisoscope.errors import MeasureError
from anisoscope.measure import trial
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings

EVERY_LAYER = {1, 2, 3}


def measured(model, inputs, **how):
    """A default run: what cannot be had of attention is left out."""
    return anisoscope.measure(
        model, inputs, groups=4, spectrum_groups=1, sample=0, **how
    )


def layers_of(run, site="attention"):
    return set(run.records.loc[run.records["site"] == site, "layer"].dropna())


def hidden_of(run):
    rows = run.records[run.records["site"] == "hidden"]
    return rows.drop(columns="run").reset_index(drop=True)


def warned(run, text):
    return any(text in warning for warning in run.manifest["warnings"])


# ---- an honest capture


@pytest.mark.parametrize("attention", ["model", "fused"])
@pytest.mark.parametrize("side", ["right", "left", "none"])
@pytest.mark.parametrize(
    "name", ["bert", "modernbert", "gpt2", "llama", "gemma2", "t5"]
)
def test_both_figures_stand_in_the_manifest(name, side, attention):
    inputs, _ = tiny.padded(name, side)
    # the default run once of each; the proof is the same whatever is summed of what was captured
    panel = {} if side == "right" else {"panel": ("hidden", "attention")}
    run = measured(
        tiny.build(name, torch.float32), inputs, attention=attention, **panel
    )
    told = run.manifest["capture"]
    assert (
        told["outputs_moved"]
        <= told["outputs_limit"]
        <= (0 if attention == "model" else 1e-5)
    )
    assert told["attention_error"] < 1e-6 < told["attention_limit"] < 1e-4
    expected = {"t5": 9}.get(name, 3)
    assert (told["attention_compared"], told["attention_not_compared"]) == (expected, 0)
    assert not warned(run, "left out, attention")


@pytest.mark.parametrize("name", ["canine", "cvt", "vit", "whisper", "wav2vec2"])
def test_attention_of_other_modalities_is_compared_too(name):
    import tiny_models

    model, inputs = (
        tiny_models.build(name, torch.float32),
        tiny_models.inputs(name, dtype=torch.float32),
    )
    with torch.no_grad(), capture(model, ("attention",)) as tap:
        tap.proof = tried = Proof()
        model(**inputs)
    assert tried.attention and not tried.unheard and not tap.refused
    assert max(error for error, _ in tried.attention.values()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounding_of_16_bits_is_no_lie(dtype):
    inputs, _ = tiny.padded("llama", "right")
    told = measured(tiny.build("llama", dtype), inputs).manifest["capture"]
    assert told["outputs_moved"] == 0 and told["attention_compared"] == 3
    assert 1e-5 < told["attention_error"] < told["attention_limit"]


def test_a_trial_costs_one_call_and_changes_no_number():
    model, inputs = tiny.build("llama"), tiny.padded("llama", "right")[0]
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(None))
    run = measured(model, [inputs] * 3)
    handle.remove()
    assert len(calls) == 3 + 1
    without = tiny.measure(model, [inputs] * 3, groups=4, spectrum_groups=1, sample=0)
    assert np.array_equal(run.records["value"].dropna(), without["value"].dropna())


def test_a_model_that_is_spread_over_processes_is_not_called_once_more():
    model, inputs, calls = tiny.build("llama"), tiny.padded("llama", "right")[0], []
    with capture(model, ("attention",)) as tap:
        tried = trial.Trial(tap, gives_up=True, skipped="it is spread")
        tried(lambda **given: calls.append(None) or model(**given), inputs)
    assert len(calls) == 1 and len(tried.proof.attention) == 3
    assert tried.proof.describe()["outputs_skipped"] == "it is spread"


# ---- lies


def read_without_windows(read):
    def reading(module, query, mask, settings, **how):
        masking = read(module, query, mask, settings, **how)
        real = None if masking.keys is None else masking.keys.any(2, keepdim=True)
        return replace(masking, keys=real, causal=True)

    return reading


def rows_without(name):
    rows = heads.attention_rows

    def without(*given, **named):
        return rows(*given, **named | {name: None})

    return without


def swap_layers(site_of):
    def swapped(self, call, by_hand):
        at = site_of(self, call, by_hand)
        layer = {1: 2, 2: 1}.get(at("attention").layer, at("attention").layer)
        return lambda *given: replace(at(*given), layer=layer)

    return swapped


def swap_queries(look):
    before = []

    def looking(self, call, **how):
        query, before[:] = (before[0] if before else call.query), [call.query]
        return look(self, replace(call, query=query), **how)

    return looking


def test_a_dropped_window_is_seen(monkeypatch):
    """In the layers that have one: the others are measured."""
    model, inputs = (
        tiny.build("gemma3", torch.float32),
        tiny.padded("gemma3", "right")[0],
    )
    honest = measured(model, inputs)
    monkeypatch.setattr(Masking, "read", read_without_windows(Masking.read))
    run = measured(model, inputs)
    assert layers_of(honest) == EVERY_LAYER and layers_of(run) == {2}
    assert warned(
        run,
        "attention of layers 1, 3 of decoder: softmax(scores)·values is not the output of Gemma3Attention",
    )
    assert run.manifest["capture"]["attention_refused"].keys() == {
        "decoder.1",
        "decoder.3",
    }
    assert hidden_of(run).equals(hidden_of(honest))


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
@pytest.mark.parametrize("factor", [0.5, 1.01])
def test_a_wrong_scale_is_seen(monkeypatch, backend, factor):
    model, inputs = tiny.build("llama", torch.float32), tiny.padded("llama", "right")[0]
    model.set_attn_implementation(backend)
    honest, scale = measured(model, inputs), Call.scale.fget
    monkeypatch.setattr(Call, "scale", property(lambda call: factor * scale(call)))
    run = measured(model, inputs)
    assert layers_of(run) == layers_of(run, "query.raw") == set() and hidden_of(
        run
    ).equals(hidden_of(honest))


def test_a_lost_sink_is_seen(monkeypatch):
    model = test_masks.family("gpt_oss", torch.float32)
    inputs, _ = test_masks.batch("right")
    assert layers_of(measured(model, inputs)) == {1, 2}
    monkeypatch.setattr(heads, "attention_rows", rows_without("sinks"))
    assert layers_of(measured(model, inputs)) == set()


def test_a_lost_cap_is_seen(monkeypatch):
    model, inputs = (
        tiny.build("gemma2", torch.float32),
        tiny.padded("gemma2", "right")[0],
    )
    monkeypatch.setattr(heads, "attention_rows", rows_without("softcap"))
    assert layers_of(measured(model, inputs)) == set()


def test_a_lost_bias_is_seen(monkeypatch):
    model, inputs = tiny.build("t5", torch.float32), tiny.padded("t5", "right")[0]
    read = Masking.read
    monkeypatch.setattr(
        Masking, "read", lambda *given, **how: replace(read(*given, **how), bias=None)
    )
    run = measured(model, inputs)
    assert set(run.records.loc[run.records["site"] == "attention", "kind"]) <= {
        "cross"
    }  # which have none


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_padding_that_counts_as_seen_is_seen(monkeypatch, name):
    model, inputs = tiny.build(name, torch.float32), tiny.padded(name, "right")[0]
    read = Masking.read

    def unmasked(*given, **how):
        masking = read(*given, **how)
        return replace(masking, keys=None, causal=name == "llama")

    monkeypatch.setattr(Masking, "read", unmasked)
    run = measured(model, inputs)
    # right padding lies in no causal window of a real query
    assert layers_of(run) == (EVERY_LAYER if name == "llama" else set())


@pytest.mark.parametrize("lie", ["layers", "queries"])
def test_a_swapped_layer_is_seen(monkeypatch, lie):
    model, inputs = tiny.build("llama", torch.float32), tiny.padded("llama", "right")[0]
    if lie == "layers":
        monkeypatch.setattr(Heads, "_make_site", swap_layers(Heads._make_site))
    else:
        monkeypatch.setattr(Heads, "look", swap_queries(Heads.look))
    run = measured(model, inputs)
    assert layers_of(run) == ({3} if lie == "layers" else {1})
    assert lie == "queries" or warned(
        run, "LlamaAttention, which belongs to another block, was found there"
    )


def rename_backend(attach, name):
    """Attach as was done before: under another name, if attention is looked at."""

    def attaching(self, *given):
        if "attention" in self.wanted:
            config = self.model.config
            kept, config._attn_implementation_internal = (
                config._attn_implementation,
                name,
            )
            self.ends.callback(setattr, config, "_attn_implementation_internal", kept)
        attach(self, *given)

    return attaching


@pytest.fixture
def renaming(monkeypatch):
    """Captures that rename the backend of a model, as they did."""
    AttentionInterface.register("renamed", AttentionInterface._global_mapping["sdpa"])
    AttentionMaskInterface.register("renamed", sdpa_mask)
    monkeypatch.setattr(Tap, "attach", rename_backend(Tap.attach, "renamed"))
    yield
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop("renamed")


def sparse():
    model = test_backends.built(
        "DeepseekV32Config", test_backends.LATENT | test_backends.INDEX
    )
    return model, {"input_ids": test_backends.token_ids(40)}


def test_a_renamed_backend_is_seen(request):
    """Outputs of a sparse model move by 1.2, and every hidden state with them: these are measured without attention."""
    model, inputs = sparse()
    honest = measured(model, inputs)
    request.getfixturevalue("renaming")
    run = measured(model, inputs)
    assert layers_of(honest) == {1, 2} and layers_of(run) == set()
    assert warned(run, "attention of every stack: the capture moves the outputs by ")
    assert run.manifest["capture"]["outputs_moved"] == 0  # of what was measured
    assert hidden_of(run).equals(hidden_of(honest))


@pytest.mark.usefixtures("renaming")
def test_attention_alone_of_a_model_that_moves_is_an_error():
    model, inputs = sparse()
    with pytest.raises(
        MeasureError,
        match=r"the capture moves the outputs by .* Cure: measure hidden states",
    ):
        anisoscope.measure(model, inputs, panel="attention")


def test_a_model_that_ends_within_a_capture_only_is_measured_in_its_hidden_states(
    monkeypatch,
):
    model, inputs = tiny.build("llama", torch.float32), tiny.padded("llama", "right")[0]
    honest = measured(model, inputs)
    monkeypatch.setattr(
        heads.Heads, "begin", lambda *_: 1 / 0
    )  # a hook of ours, outside of any guard
    monkeypatch.setattr(Tap, "_start", start_without(Tap._start))
    run = measured(model, inputs)
    assert layers_of(run) == set() and hidden_of(run).equals(hidden_of(honest))
    assert warned(
        run,
        "the model ends with ZeroDivisionError within the capture, and without it does not",
    )


def start_without(start):
    """The hook before a call, which does nothing of attention if none is looked at."""

    def starting(self, *given):
        if "attention" in self.wanted:
            return start(self, *given)
        self.running.clear()
        self._now.clear()
        self.inside = True
        return None

    return starting


class Drawing(nn.Module):
    """A model that is never quite the same: by torch's random numbers, or by a count of its own."""

    def __init__(self, counts):
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.counts, self.number = counts, 0

    def forward(self, x):
        self.number += 1
        noise = (
            torch.full_like(x, 1e-3 * self.number)
            if self.counts
            else 1e-3 * torch.randn_like(x)
        )
        return self.encoder(x + noise * x)


@pytest.mark.parametrize("counts", [False, True])
def test_a_model_that_is_never_quite_the_same_is_not_blamed(counts):
    """Random numbers are drawn alike; what differs without a capture too is no lie, and is told."""
    x = torch.randn(40, 9, 16, generator=torch.Generator().manual_seed(2))
    run = measured(Drawing(counts).eval(), {"x": x})
    told = run.manifest["capture"]
    assert layers_of(run) == {1, 2} and (told["outputs_moved"] > 1e-6) == counts


class Keeping(nn.Module):
    """A model that writes into its inputs."""

    def __init__(self):
        super().__init__()
        self.inner = Drawing(False).encoder

    def forward(self, x):
        return self.inner(x.mul_(2.0))


def test_inputs_that_a_model_writes_into_are_the_same_for_both_calls():
    x = torch.randn(40, 9, 16, generator=torch.Generator().manual_seed(2))
    run = measured(Keeping().eval(), {"x": x})
    assert run.manifest["capture"]["outputs_moved"] == 0


# ---- what is kept of a proof


def test_a_proof_is_kept_and_the_worse_of_two_is_told(tmp_path):
    places = [("decoder", layer, "self") for layer in (1, 2, 3)]
    first = Proof(
        0.0,
        attention={places[0]: (1e-7, 1e-5), places[1]: (3e-7, 1e-5)},
        unheard={places[2]},
    )
    second = Proof(2e-6, limit=1e-5, attention={places[0]: (5e-7, 1e-5)})
    assert Proof.from_json(first.to_json()) == first
    whole = first.merge(second)
    assert whole == second.merge(first)
    assert (whole.outputs, whole.limit, whole.unheard) == (2e-6, 1e-5, {places[2]})
    assert whole.attention == {places[0]: (5e-7, 1e-5), places[1]: (3e-7, 1e-5)}
    kept = Measurement(Settings())
    kept.note_proof(first)
    kept.refuse({places[2]: "a reason"})
    kept.save(tmp_path / "state")
    again = Measurement.restore(tmp_path / "state", Settings())
    assert again.proof == first and again.refused == {places[2]: "a reason"}
    merged = again.merge(Measurement(Settings(), batches={1}))
    assert merged.proof == first and merged.refused == again.refused


def test_a_layer_that_is_refused_is_not_in_the_figures():
    place = ("decoder", 1, "self")
    told = Proof(
        0.0, attention={place: (0.3, 1e-5), ("decoder", 2, "self"): (1e-7, 1e-5)}
    ).describe()
    assert told["attention_error"] == 1e-7 and told["attention_compared"] == 2


@pytest.mark.parametrize("large", [False, True])
def test_outputs_are_compared_bit_for_bit(monkeypatch, large):
    if large:
        monkeypatch.setattr(
            proof, "SAMPLED", 4
        )  # of a large output some numbers are kept
    x = torch.arange(1.0, 13.0).view(3, 4)
    output = transformers.modeling_outputs.BaseModelOutput(
        last_hidden_state=x, attentions=(x, torch.tensor([1, 2]))
    )
    assert Outputs(output).measure_difference(Outputs(output)) == 0
    for place in range(12):
        moved = x.clone()
        moved.view(-1)[place] = torch.nextafter(
            moved.view(-1)[place], torch.tensor(100.0)
        )
        other = transformers.modeling_outputs.BaseModelOutput(
            last_hidden_state=moved, attentions=output.attentions
        )
        assert 0 < Outputs(output).measure_difference(Outputs(other)) < 1e-6
    swapped = x[[1, 0, 2]]
    assert Outputs(x).measure_difference(Outputs(swapped)) > 0
    assert (
        Outputs(x).measure_difference(Outputs(x[:2]))
        == Outputs(x).measure_difference(Outputs((x, x)))
        == torch.inf
    )
    spoiled = x.clone()
    spoiled[0, 0] = torch.nan
    assert Outputs(spoiled).measure_difference(Outputs(spoiled.clone())) == 0
    assert Outputs(x).measure_difference(Outputs(spoiled)) == torch.inf


def test_positions_are_those_of_the_list_of_blocks():
    shared, blocks = nn.Linear(2, 2), [nn.Sequential(nn.Linear(2, 2)) for _ in range(2)]
    blocks = [nn.Sequential(block, shared) for block in blocks]
    positions = Positions({"decoder": blocks})

    def at(layer):
        return SimpleNamespace(stack="decoder", layer=layer)

    assert not positions.contradict(blocks[1][0], at(2)) and positions.contradict(
        blocks[1][0], at(1)
    )
    assert not positions.contradict(shared, at(1)) and not positions.contradict(
        shared, at(2)
    )
    assert not positions.contradict(nn.Linear(2, 2), at(1))  # outside of blocks
    assert not positions.contradict(blocks[0][0], at(3))  # of blocks that run again


def test_positions_do_not_count_a_list_of_blocks_that_does_not_run():
    """A language model behind a tower, given text alone; within a list a block stays in its place."""
    blocks = [nn.Linear(2, 2) for _ in range(5)]
    names = {block: f"visual.blocks.{i}" for i, block in enumerate(blocks[:2])}
    names |= {block: f"language.layers.{i}" for i, block in enumerate(blocks[2:])}
    positions = Positions({"decoder": blocks}, names)

    def is_apart(block, layer):
        return positions.contradict(
            blocks[block], SimpleNamespace(stack="decoder", layer=layer)
        )

    assert [layer for layer in range(1, 6) if not is_apart(3, layer)] == [2, 4]
    assert [layer for layer in range(1, 6) if not is_apart(1, layer)] == [2]


def test_what_was_refused_does_not_count_as_seen():
    """Attention that was asked for and refused is missing, though it had fired before."""
    tap = Tap(
        tiny.model("bert"), frozenset({"attention", "hidden"}), None, "position", None
    )
    for quantity in ("attention", "hidden"):
        tap.emit(Site("encoder", 1, quantity), torch.zeros(1, 2, 3))
    assert tap.fired >= {"attention", "hidden"}
    tap.refuse(
        Site("encoder", 1, "attention").place, "it is not what the model computes"
    )
    assert "hidden" in tap.fired and not tap.fired & HEADS
    assert tap.sites == ["encoder.1.hidden"]
