"""What a pass costs, when it saves, stops or starts again, and what processes agree on: step by step, on stand-ins."""

from collections import UserDict
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from anisoscope.axes import EVERYWHERE, LAYER_QUANTITIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture.proof import Proof
from anisoscope.errors import (
    Interrupted,
    MeasureError,
    UnseenError,
    UsageError,
)
from anisoscope.measure import cost, distributed, loop
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import PANELS, Settings
from anisoscope.measure.trial import MovedError
from anisoscope.models.parallelism import Spread
from anisoscope.renamed import SETTINGS

CPU = torch.device("cpu")


def stream_of(*rows):
    real = torch.tensor(rows).bool()
    return Stream(real, ~real, torch.zeros(len(rows), dtype=torch.int64))


def sentence(call, *given, kind=MeasureError, **how):
    """The whole message of the error that a call raises."""
    with pytest.raises(kind) as raised:
        call(*given, **how)
    return str(raised.value)


# ---- what a model costs


def bert(**how):
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(vocab_size=11, intermediate_size=20, **sizes, **how)
    return BertModel(config, add_pooling_layer=False)


def test_flops_of_a_model_are_those_of_its_matrices_and_of_its_attention():
    """Of two layers of width 8: four projections and two matrices of 8 × 20, and two products of queries and keys."""
    model = bert().requires_grad_(False)
    ids = torch.arange(60).view(2, 30) % 11
    mask = torch.ones(2, 30, dtype=torch.bool)
    mask[0, :10] = mask[0, 17:] = False
    stream = Stream(mask, ~mask, torch.zeros(2, dtype=torch.int64))
    seen = []

    def call(**given):
        torch.rand(3)
        seen.append(given)
        return model(**given)

    inputs = {"input_ids": ids, "attention_mask": mask.long()}
    batch = Batch(inputs, torch.arange(2), {"encoder": stream}, call)
    model.train()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    shapes = cost.find_shapes(model, batch, Settings(panel=("hidden", "attention")))
    assert torch.equal(torch.rand(2), expected), "nothing is drawn from the pass"
    assert model.training
    assert seen[0]["input_ids"].tolist() == ids[:1, 10:17].tolist()
    assert seen[0]["attention_mask"].tolist() == [[1] * 7]
    assert shapes.tokens == 7 and shapes.dtype == torch.float32
    assert shapes.parameters == sum(x.numel() for x in model.parameters()) > 0
    assert shapes.attention == 2 * 4 * 8
    assert shapes.flops == 2 * 2 * (4 * 8 * 8 + 2 * 8 * 20)
    labels = {site.label for site in shapes.sites}
    assert {"hidden", "attention", "value"} <= labels
    by_label = {site.label: shape for site, shape in shapes.sites.items()}
    assert by_label["hidden"] == (0, 8) and by_label["attention"] == (2, 4)
    plain = cost.find_shapes(model, batch, Settings(panel=("hidden",)))
    assert plain.attention == 2 * 4 * 8, "attention is computed, measured or not"
    assert {site.quantity for site in plain.sites} <= {*LAYER_QUANTITIES}
    last = cost.find_shapes(model, batch, Settings(panel=("hidden",), layers=(-1,)))
    assert {site.layer for site in last.sites} == {2}


def test_a_look_at_a_model_finds_blocks_as_the_settings_say(monkeypatch):
    asked = []

    @contextmanager
    def capture(model, what, **how):
        asked.append((model, what, how))
        yield

    monkeypatch.setattr(cost, "capture", capture)
    model = nn.Linear(3, 3)
    settings = Settings(blocks=("B",), tokens_first=True, flatten="image")
    batch = Batch({"input": torch.ones(2, 3)}, torch.arange(2))
    given = model, batch, settings, {"hidden"}, {"query"}
    assert cost._run_once(*given) == ({}, 2 * 9, 1)
    ((_, what, how),) = asked
    assert what == {"hidden"} and how["optional"] == {"hidden", "query"}
    found = [how[name] for name in ("blocks", "tokens_first", "flatten", "shapes_only")]
    assert found == [("B",), True, "image", False]


def test_an_encoder_and_its_decoder_are_looked_at_without_numbers():
    """Attention of each kind is a site of its own."""
    from transformers import T5Config, T5Model

    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2}
    with torch.device("meta"):
        model = T5Model(T5Config(vocab_size=11, decoder_start_token_id=0, **sizes))
    shapes = cost.find_shapes_on_meta(model.eval(), Settings(panel=("attention",)))
    found = {(s.stack, s.kind) for s in shapes.sites if s.quantity == "attention"}
    assert found == {("encoder", "self"), ("decoder", "self"), ("decoder", "cross")}
    assert shapes.attention == 3 * 4 * 8 and shapes.tokens == cost.SHORT


def test_inputs_of_a_look_at_a_model_are_cut_to_their_first_tokens():
    mask = torch.ones(2, 40, dtype=torch.bool)
    stream = Stream(mask, ~mask, torch.zeros(2, dtype=torch.int64))
    given = {
        "input_ids": torch.arange(80).view(2, 40),
        "token_types": torch.zeros(2, 40, 2, dtype=torch.int64),
        "sound": torch.ones(2, 40),
        "other": torch.ones(2, 7, dtype=torch.int64),
        "patches": torch.ones(3, 40, dtype=torch.int64),
        "scale": torch.tensor(3),
    }

    def shapes(streams, label=None, **more):
        batch = Batch(given | more, torch.arange(2), streams, label=label)
        cut = cost._cut_first_sequence(batch)
        return [tuple(cut[name].shape) for name in given]

    uncut = [(1, 40), (1, 7), (3, 40), ()]
    with_streams = {"encoder": stream}
    assert shapes(with_streams) == [(1, 16), (1, 16, 2), *uncut]
    whole = [(1, 40), (1, 40, 2), *uncut]
    assert shapes({}) == whole
    assert shapes(with_streams, torch.tensor([0, 1])) == whole
    assert shapes(with_streams, pixel_values=torch.ones(2, 3)) == whole
    row = torch.arange(8)[None]
    real = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0]).bool()
    assert cost._cut_to_real(row, real, 3).tolist() == [[2, 3, 4]]
    assert cost._cut_to_real(row, real, None).tolist() == [[2, 3, 4, 5]]


def test_layers_are_counted_from_the_end_of_their_own_stack():
    sites = [Site("encoder", layer, "hidden") for layer in range(3)]
    sites += [Site("decoder", layer, "hidden") for layer in range(6)]
    sites += [Site("encoder", None, "final"), Site("decoder", None, "final")]

    def chosen(*layers):
        settings = Settings(layers=layers)
        found = (s for s in sites if cost._is_chosen(s, sites, settings))
        return [(s.stack[0], s.layer) for s in found]

    assert chosen(-1) == [("e", 2), ("d", 5), ("e", None), ("d", None)]
    assert chosen(0) == [("e", 0), ("d", 0)]
    assert chosen(-3, 5) == [("e", 0), ("d", 3), ("d", 5), ("d", None)]
    assert len(chosen()) == len(sites)


def test_an_estimate_counts_every_byte_and_each_token(monkeypatch):
    """Of wider vectors products in float32 are kept for each group, and one mean for all of them."""
    monkeypatch.setattr("anisoscope.sums.moments.NARROW", 0)
    cost._count_bytes.cache_clear()
    sites = {Site("e", layer, "hidden"): (0, 6) for layer in range(3)}
    shapes = cost.Shapes(sites, 50.0, 2.0, 4, 10, torch.bfloat16)
    settings = Settings(
        panel=("spectrum", "hidden"), groups=4, sample=5, spectrum_groups=2
    )
    found = cost.estimate_cost(shapes, settings, 8)
    cost._count_bytes.cache_clear()
    of_sums = 8 * (2 * 2 * 36 + 2 * 6 + 2)
    of_pending = 4 * (2 * (7 * 7 + 6 * 6) + 6)
    assert found.moments == 3 * (of_sums + of_pending)
    assert found.state == found.sums + found.moments + found.sample
    assert (found.weights, found.sample, found.sites) == (10 * 2, 5 * 3 * 6 * 4, 3)
    assert list(found.panels) == ["hidden", "spectrum"]
    longer = cost.estimate_cost(shapes, settings, 16)
    assert longer.panels == pytest.approx(found.panels, rel=0.2)
    assert (longer.model, found.model) == (50 + 2 * 16, 50 + 2 * 8)
    double = cost.Shapes(sites, 50.0, 2.0, 4, 10, torch.float64)
    assert cost.estimate_cost(double, settings, 8).sample == 5 * 3 * 6 * 8
    one = cost.Shapes(dict([*sites.items()][:1]), 50.0, 2.0, 4, 10, torch.bfloat16)
    alone = cost.estimate_cost(one, settings, 8)
    assert found.sums == 3 * alone.sums
    assert found.panels["hidden"] == pytest.approx(3 * alone.panels["hidden"])


def test_sites_that_are_too_wide_have_no_spectrum_and_do_no_work_for_it():
    wide = {Site("e", 1, "hidden"): (0, 3000)}
    shapes = cost.Shapes(wide, 1.0, 1.0, 4, 1, torch.float32)
    found = cost.estimate_cost(shapes, Settings(panel=("hidden", "spectrum"), sample=0))
    assert (found.unmeasured, found.sites, found.moments) == (1, 1, 0)
    assert found.panels["spectrum"] == 0 < found.panels["hidden"]
    assert found.without_spectrum == cost.explain_missing_spectrum(1, 1)
    narrow = cost.Shapes({Site("e", 2, "hidden"): (0, 30)} | wide, 1.0, 1.0, 4, 1, torch.float32)  # fmt: skip
    both = cost.estimate_cost(narrow, Settings(panel=("hidden", "spectrum"), sample=0))
    assert (both.unmeasured, both.sites) == (1, 2)
    assert both.without_spectrum.startswith("no spectrum at 1 of 2 sites, which are")
    plain = cost.estimate_cost(narrow, Settings(panel=("hidden",), sample=0))
    assert plain.unmeasured == 0 and plain.without_spectrum == ""
    named = cost.estimate_cost(narrow, Settings(metrics=("mean_cosine",)))
    assert named.panels == {}


def test_a_cost_is_one_line():
    panels = {"hidden": 50.0, "spectrum": 4.0, "attention": 0.0}
    found = cost.Cost(1500, 0, 250, 2000.0, panels, 0, 8)
    assert found.line == (
        "memory 1.75 kB (sums 1.5 kB, sample 250 B); extra work per token, of the model's 2 kflop: "
        "hidden 2.5%, spectrum 0.2%"
    )
    assert cost.Cost(1, 2, 0, 0.0, {}, 0, 8).line == "memory 3 B (sums 1 B, second moments 2 B)"  # fmt: skip
    found = cost.Cost(1, 0, 0, 0.0, {"hidden": 3.0}, 0, 8).line
    assert found.endswith("of the model's 0 flop: hidden 300.0%")
    for number, text in ((999.4, "999 "), (999.6, "1 k"), (1234, "1.23 k"), (2**30, "1.07 G")):  # fmt: skip
        assert cost.format_scaled(number) == text


# ---- a pass that starts again


@pytest.fixture
def attempts(monkeypatch):
    """Let a pass end as a list says. Returns (what each attempt was given, the list, remarks)."""
    given, ends, remarks = [], [], []

    def run(_model, _plan, _settings, seen, state, saves, progress, only, pieces):
        given.append((seen, state, list(saves), progress, only, pieces))
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(loop, "_run_pass_in_pieces", run)
    monkeypatch.setattr(loop, "remark", lambda _progress, text: remarks.append(text))
    return given, ends, remarks


def test_a_batch_that_does_not_fit_is_run_in_more_parts(attempts, monkeypatch):
    given, ends, remarks = attempts
    model, settings = nn.Linear(1, 1), Settings(panel=("hidden",))
    ends += [loop._MemoryFull(4), loop._MemoryFull(3), "done"]
    found = loop.run_pass(
        model,
        [],
        settings,
        state="state",
        resume=True,
        only={1},
        progress="p",
        prove=True,
    )
    assert found == "done" and [each[-1] for each in given] == [1, 2, 4]
    assert given[0][1:5] == ("state", [True], "p", {1})
    seen = given[0][0]
    assert (seen.prove, seen.moved_by, seen.means) == (True, None, {})
    assert (seen.what, seen.optional) == settings.what_of(model)
    assert remarks == [
        "out of memory: goes on with batches in 2 parts",
        "out of memory: goes on with batches in 4 parts",
    ]
    given.clear()
    ends += [loop._MemoryFull(2)] * 2
    assert sentence(loop.run_pass, model, [], settings) == (
        "expected memory for a batch of one sequence; got a full memory. Cure: shorten sequences "
        "(--max-length), or use --dtype bfloat16, fewer --layers or panels"
    )
    assert [each[-1] for each in given] == [1, 2] and given[0][2] == [False]
    monkeypatch.setattr(loop, "is_in_step", lambda _model: True)
    ends += [loop._MemoryFull(8)]
    assert sentence(loop.run_pass, model, [], settings) == (
        "expected memory for every batch of a model that is spread over processes; got a full memory in "
        "one process. Cure: give smaller batches (--batch-tokens)"
    )


def test_attention_that_moves_the_outputs_is_given_up(attempts):
    given, ends, remarks = attempts
    model = nn.Linear(1, 1)
    moved = MovedError(Proof(), "why it moves")
    ends += [moved, "done"]
    assert loop.run_pass(model, [], Settings()) == "done"
    first, second = (each[0] for each in given)
    layers = {*LAYER_QUANTITIES}
    assert first.what > layers and first.optional and first.moved_by is None
    assert (second.what, second.optional, second.moved_by) == (layers, set(), moved.why)
    assert remarks == ["why it moves: goes on with hidden states alone"]
    ends += [moved]
    assert sentence(loop.run_pass, model, [], Settings(panel=("attention",))) == (
        "expected attention of Linear that gives the same outputs while it is captured; got why it moves. "
        "Cure: measure hidden states (--panel hidden,spectrum)"
    )


def test_means_of_heads_are_measured_first_if_there_are_any(attempts, monkeypatch):
    given, ends, _ = attempts

    class ToyAttention(nn.Module):
        """Is attention by its name."""

    model = ToyAttention()
    monkeypatch.setattr(loop, "measure_head_means", lambda *_: {"a": "mean"})
    wide = Settings(panel=("hidden", "extremes", "alignment"))
    ends += ["done"] * 2
    loop.run_pass(model, [], wide)
    assert given[-1][0].means == {"a": "mean"} and "centred" in given[-1][0].what

    def fail(*_):
        raise UnseenError("a", "b", "c")

    monkeypatch.setattr(loop, "measure_head_means", fail)
    loop.run_pass(model, [], wide)
    assert given[-1][0].means == {} and "centred" not in given[-1][0].what
    with pytest.raises(UnseenError):
        loop.run_pass(model, [], Settings(panel=("alignment",)))
    assert len(given) == 2


def test_a_full_memory_is_told_with_the_sequences_of_its_batch():
    batch = Batch({}, torch.arange(3), {"e": stream_of([1, 1], [1, 1], [1, 1])})
    for error in (MemoryError(), RuntimeError("out of memory")):
        with pytest.raises(loop._MemoryFull) as raised, loop._detect_full_memory(batch):
            raise error
        assert raised.value.sequences == 3
    with pytest.raises(RuntimeError, match="other"), loop._detect_full_memory(batch):
        raise RuntimeError("other")


# ---- one pass


def vectors_plan(count=3, tokens=()):
    def batch(number):
        x = torch.full((2, 1, 3), number + 1.0)
        return Batch({"0": x}, torch.arange(2) + 2 * number, {"vectors": stream_of([1], [1])})  # fmt: skip

    class Plan(list):
        fingerprint = "plan"

    plan = Plan(map(batch, range(count)))
    plan.tokens = list(tokens)
    return plan


SETTINGS_OF_VECTORS = Settings(metrics=("norms",), tokens=("all",), groups=2)


def test_progress_counts_tokens_and_states_are_saved_in_between(monkeypatch, tmp_path):
    """What a state holds counts as done; batches without a known size count by their real tokens."""
    shown, saved, waits = [], [], []
    clock = iter(range(1000))
    ticking = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(loop, "time", ticking)
    save = Measurement.save

    def note(self, path, *more):
        saved.append(sorted(self.batches))
        save(self, path, *more)

    def is_due(_measurement, seconds):
        waits.append(seconds)
        return len(waits) != 2

    monkeypatch.setattr(Measurement, "save", note)
    monkeypatch.setattr(loop, "_is_save_due", is_due)
    path = tmp_path / "state"

    def run(plan, **how):
        shown.clear()
        return loop.run_pass(
            loop.Arrays(),
            plan,
            SETTINGS_OF_VECTORS,
            progress=lambda *given: shown.append(given),
            **how,
        )

    run(vectors_plan(3, [10, 0, 30]), state=path)
    assert shown == [(10, 40), (12, 40), (42, 40)]
    assert saved == [[0], [0, 1, 2]] and waits == [1, 1, 2]
    run(vectors_plan(4, [10, 0, 30, 5]), state=path, resume=True)
    assert shown == [(45, 45)]
    found = run(vectors_plan(4, [10, 20, 30, 5]), state=path, only={1, 3})
    assert shown == [(20, 25), (25, 25)] and found.batches == {1, 3}
    waits.clear()
    again = run(vectors_plan(2), state=path)
    assert again.batches == {0, 1}, (
        "a file that it was not asked to continue is not read"
    )
    assert shown == [(2, 0), (4, 0)]


def test_a_further_attempt_goes_on_from_what_an_earlier_one_saved(
    monkeypatch, tmp_path
):
    """Only from a file that this pass wrote, or was asked to continue."""
    monkeypatch.setattr(loop, "_is_save_due", lambda _kept, _seconds: True)
    path = tmp_path / "state"
    seen = loop._Captured({"hidden"}, set(), {})

    def run(saves, count, pieces=1):
        given = loop.Arrays(), vectors_plan(count), SETTINGS_OF_VECTORS, seen
        found = loop._run_pass_in_pieces(*given, path, saves, None, None, pieces)
        return sorted(found.batches), found.pieces

    saves = [False]
    assert run(saves, 2) == ([0, 1], 1) and saves == [False, True, True]
    measured(5).save(path)
    assert run(saves, 2, 4) == ([0, 1, 5], 4)
    measured(5).save(path)
    assert run([True], 1) == ([0, 5], 1)
    measured(5).save(path)
    assert run([False], 1) == ([0], 1)


def test_a_signal_ends_a_pass_with_its_state_saved(monkeypatch, tmp_path):
    signals = []
    monkeypatch.setattr(loop, "find_stop_signal", lambda _own: signals.pop(0))
    path = tmp_path / "state"
    for heard, held in (([0, 2], {0}), ([0, 0, 0, 15], {0, 1}), ([2], set())):
        signals[:] = heard
        with pytest.raises(Interrupted):
            loop.run_pass(loop.Arrays(), vectors_plan(2), SETTINGS_OF_VECTORS, state=path)  # fmt: skip
        assert Measurement.restore(path, SETTINGS_OF_VECTORS).batches == held
    signals[:] = [0, 0, 0, 0]
    found = loop.run_pass(loop.Arrays(), vectors_plan(2), SETTINGS_OF_VECTORS)
    assert found.batches == {0, 1} and signals == []


@pytest.fixture
def captured(monkeypatch):
    """A capture that captures nothing: notes how it is asked, and what it is given for each part of a batch."""
    tap = SimpleNamespace(unseen={"u"}, refused={("e", 1, "self"): "why"}, real=None)
    notes = SimpleNamespace(tap=tap, asked=[], trials=[])

    @contextmanager
    def capture(model, what, **how):
        notes.asked.append((model, what, how))
        yield tap

    class Trial:
        def __init__(self, tap, **how):
            self.proof, self.given = None, (tap, how)
            notes.trials.append(self)

        def __call__(self, run, inputs):
            self.proof = Proof(0.5)
            run(**inputs)

    monkeypatch.setattr(loop, "capture", capture)
    monkeypatch.setattr(loop, "Trial", Trial)
    return notes


class Toy(nn.Module):
    """Notes what it is called with."""

    def __init__(self):
        super().__init__()
        self.own = nn.Linear(1, 1)
        self.called = []

    def forward(self, **given):
        self.called.append({name: x.tolist() for name, x in given.items()})
        assert not torch.is_grad_enabled() and not self.training


def test_a_capture_is_asked_for_all_that_the_settings_say(captured):
    settings = Settings(
        panel=("hidden",),
        blocks=("B",),
        tokens_first=True,
        medians=True,
        bins=(0.0, 2.0),
        flatten="image",
        attention="fused",
        layers=(1, -1),
    )
    model, kept = Toy(), Measurement(settings)
    seen = loop._Captured({"hidden"}, {"query"}, {"a": "mean"})
    with loop.capture_into(model, kept, seen):
        pass
    ((asked_model, what, how),) = captured.asked
    assert asked_model is model and what == {"hidden"}
    assert how.pop("histogram").tolist() == [0, 2]
    assert how == {
        "optional": {"query"},
        "receive": kept.receive,
        "blocks": ("B",),
        "tokens_first": True,
        "median": True,
        "flatten": "image",
        "fused": True,
        "layers": (1, -1),
    }
    assert captured.tap.means == {"a": "mean"} and captured.tap.parts == {}
    with loop.capture_into(model, Measurement(Settings()), seen, together=True):
        pass
    how = captured.asked[-1][2]
    assert (how["fused"], how["histogram"], how["layers"]) == (False, None, ())
    alone, shared = (trial.given[1] for trial in captured.trials)
    assert alone == {"gives_up": False, "skipped": ""}
    reason = "the model is spread over processes, which wait for each other"
    assert shared == {"gives_up": False, "skipped": reason}
    seen = loop._Captured({"hidden", "query"}, set(), {})
    with loop.capture_into(model, kept, seen):
        pass
    assert captured.trials[-1].given[1]["gives_up"] is True


def test_a_batch_is_run_in_parts_and_all_that_is_learnt_is_kept(captured):
    model, kept = Toy(), Measurement(Settings(panel=("hidden",), groups=2))
    kept.pieces = 2
    real = stream_of([1, 1], [1, 0], [1, 1])
    own = []
    batch = Batch(
        {"x": torch.arange(3)},
        torch.arange(3),
        {"encoder": real},
        lambda **given: own.append(captured.tap.sequences) or model(**given),
    )
    with loop.capture_into(
        model, kept, loop._Captured({"hidden"}, set(), {}, True)
    ) as run:
        run(batch, 7)
        assert kept.proof == Proof(0.5) and len(captured.trials) == 1
    assert [each["x"] for each in model.called] == [[0, 1], [2]]
    assert own == [2, 1], "the batch's own call, with the sequences of each part"
    assert captured.tap.real["encoder"].tolist() == [[True, True]]
    assert kept.batches == {7} and kept.unseen == {"u"}
    assert kept.refused == {("e", 1, "self"): "why"} and kept.sums.units == {0, 1, 2}
    unproved = Measurement(Settings(panel=("hidden",), groups=2))
    with loop.capture_into(
        model, unproved, loop._Captured({"hidden"}, set(), {})
    ) as run:
        run(batch, 1)
    assert unproved.proof is None


@pytest.mark.usefixtures("captured")
def test_further_batches_of_a_measurement_have_further_numbers():
    model, kept = Toy(), Measurement(Settings(panel=("hidden",), groups=2))
    batch = Batch({"x": torch.arange(1)}, torch.arange(1), {"encoder": stream_of([1])})
    loop.measure_into(model, kept, [batch, batch])
    assert kept.batches == {0, 1} and kept.proof is None
    loop.measure_into(model, kept, [batch], prove=True)
    assert kept.batches == {0, 1, 2} and kept.proof == Proof(0.5)


def test_a_probe_leaves_the_training_as_it_was(captured):
    class Drawing(Toy):
        def forward(self, **given):
            super().forward(**given)
            assert not torch.is_autocast_enabled("cpu")
            torch.rand(5)

    model = Drawing().train()
    batch = Batch({"x": torch.arange(1)}, torch.arange(1), {"encoder": stream_of([1])})
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with torch.autocast("cpu", enabled=True):
        found = loop.measure_probe(
            model, [batch], Settings(panel=("hidden",), groups=2)
        )
    assert torch.equal(torch.rand(2), expected) and model.training
    assert found.batches == {0}
    assert captured.asked


def test_batches_of_a_job_are_shared_if_there_are_enough(monkeypatch):
    runs = []

    def run(_model, _plan, _settings, only=None):
        runs.append(None if only is None else list(only))
        return "part"

    monkeypatch.setattr(loop, "run_pass", run)
    monkeypatch.setattr(loop, "gather_parts", lambda part: f"whole of {part}")
    monkeypatch.setattr(loop, "rank_and_world", lambda: (1, 3))
    monkeypatch.setattr(loop.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(loop, "reads_same_batches", lambda model: model == "split")
    assert loop._measure_shared("m", [0] * 7, None) == "whole of part"
    assert runs.pop() == [1, 4]
    for model, plan in (("m", [0] * 2), ("split", [0] * 7), ("m", iter([0] * 7))):
        assert loop._measure_shared(model, plan, None) == "part"
        assert runs.pop() is None
    monkeypatch.setattr(loop.dist, "is_initialized", lambda: False)
    assert loop._measure_shared("m", [0] * 7, None) == "part"


def test_means_need_batches_that_can_be_read_twice(monkeypatch):
    kept = SimpleNamespace(sites={})
    monkeypatch.setattr(loop, "_measure_shared", lambda *_: kept)

    class Loader:
        def __iter__(self):
            return iter([1])

    inside = SimpleNamespace(batches=iter([1]))
    loop.measure_head_means(None, Loader(), Settings())
    loop.measure_head_means(None, SimpleNamespace(batches=[1]), Settings())
    for once in (iter([1]), inside):
        assert sentence(
            loop.measure_head_means, None, once, Settings(), kind=UsageError
        ) == (
            "expected batches that can be read twice (attention is centred on means, which take a pass of "
            "their own); got an iterator. Cure: give a list of batches"
        )


def test_tensors_are_found_in_any_mapping():
    given = UserDict({"a": torch.ones(1), "b": (torch.ones(1), [torch.ones(1)])})
    found = loop._map_tensors(lambda x: x + 1, given)
    assert found == {"a": torch.tensor([2.0]), "b": (torch.tensor([2.0]), [torch.tensor([2.0])])}  # fmt: skip
    assert isinstance(found["b"], tuple) and isinstance(found["b"][1], list)


def test_both_sides_of_the_embeddings_are_kept_apart():
    class Sided(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Embedding(5, 3), nn.Linear(3, 7, bias=False)

        def get_input_embeddings(self):
            return self.into

        def get_output_embeddings(self):
            return self.out

    settings = Settings(metrics=("partition",))
    found = loop.summarise_embeddings(Sided(), settings)
    assert list(found) == ["embedding.input", "embedding.output"]
    one, two = found.values()
    assert any(x.shape != two[name].shape or not torch.equal(x, two[name]) for name, x in one.items())  # fmt: skip


# ---- settings


def test_settings_of_older_files_have_todays_names():
    saved = {"panels": ["hidden"], "policies": ["content"], "median": True, "groups": 4}
    found = Settings.read(saved)
    assert (found.panel, found.tokens) == (("hidden",), ("content",))
    assert (found.medians, found.groups) == (True, 4)
    assert Settings.read({"medians": True}).medians and len(SETTINGS) == 3


def test_settings_that_cannot_be_are_told_whole():
    edges = (
        "expected `bins` with at least two finite edges, each above the one before; got"
    )
    for edge in ("nan", "inf", "-inf"):
        with pytest.raises(UsageError, match="expected a finite bins"):
            Settings(bins=(0.0, float(edge)))
    for bins in ((1.0,), (2.0, 1.0), (1.0, 1.0)):
        assert sentence(Settings, bins=bins, kind=UsageError) == (
            f"{edges} {bins!r}. Cure: sort them"
        )
    assert sentence(Settings, tokens=(), kind=UsageError) == (
        "expected at least one token policy; got none. Cure: choose from all, content, no-first"
    )
    assert sentence(Settings, panel=(), kind=UsageError) == (
        "expected at least one panel; got none. Cure: choose from hidden, spectrum, attention, "
        "alignment, extremes, floor, class"
    )


def test_a_family_without_queries_has_no_attention_to_lack():
    plain = nn.Linear(1, 1)
    plain.config = SimpleNamespace(model_type="rwkv")
    assert Settings().what_of(plain) == ({*LAYER_QUANTITIES}, set())
    assert Settings(panel=("attention",)).what_of(plain)[0] >= {"query", "key"}
    mixed = Settings(metrics=("mean_cosine", "sinks"))
    assert mixed.what_of(plain)[1] == set(), "what was asked for by name must be there"
    layers = Settings(metrics=("mean_cosine", "floor"))
    what, optional = layers.what_of(nn.Linear(1, 1))
    assert what == optional | {*LAYER_QUANTITIES} and "key" in optional
    floor = Settings(panel=(*PANELS, "floor"))
    assert floor.what_of(nn.Linear(1, 1))[1]
    some = Settings(panel=("hidden", "attention", "floor"))
    assert some.what_of(nn.Linear(1, 1))[1] == set()


def test_metrics_of_one_kind_are_kept_by_one_keeper():
    settings = Settings(metrics=("mean_cosine", "norms", "spectrum", "floor", "sinks"))
    kinds = [type(keeper).__name__ for keeper in settings.keepers]
    assert len(kinds) == len(set(kinds))
    together = settings.list_terms("hidden")
    for name in ("mean_cosine", "norms", "spectrum"):
        assert Settings(metrics=(name,)).list_terms("hidden") <= together
    assert Settings(metrics=("class_direction", "norms")).labelled
    assert not Settings(metrics=("norms",)).labelled
    assert Settings(metrics=("norms",), sample=9).sampled == 0
    assert Settings(metrics=("norms", "floor"), sample=9).sampled == 9


# ---- processes


def test_texts_are_tokenised_once_and_put_back_in_their_order(monkeypatch):
    asked = []

    class Tokenizer:
        vocab = "words"

        def __len__(self):
            return 5

        def __call__(self, texts, **how):
            asked.append((texts, how))
            return {"input_ids": [[len(text)] for text in texts]}

        def tokenize(self):
            """Is there."""

    inner = Tokenizer()
    shared = distributed._SharedTokenizer(inner)
    assert (shared.vocab, len(shared), shared.unshared) == ("words", 5, inner)
    texts = ["a", "bb", "ccc", "dddd", "eeeee"]

    def gather(world, counts):
        def fill(parts, ours):
            for rank in range(world):
                share = texts[: counts[rank]][rank::world]
                parts[rank] = [[len(text)] for text in share]
            assert ours == parts[place]

        return fill

    for world, place in ((2, 0), (2, 1), (3, 2), (7, 6)):
        monkeypatch.setattr(distributed, "rank_and_world", lambda r=place, w=world: (r, w))  # fmt: skip
        fill = gather(world, [5] * world)
        monkeypatch.setattr(distributed.dist, "all_gather_object", fill)
        found = shared(texts, truncation=True)
        assert found == {"input_ids": [[1], [2], [3], [4], [5]]}
    assert asked[0] == (["a", "ccc", "eeeee"], {"truncation": True})
    assert len(asked) == 3, "none of no texts"
    place = 0
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (0, 2))
    monkeypatch.setattr(distributed.dist, "all_gather_object", gather(2, [5, 2]))
    assert sentence(shared, texts) == (
        "expected the same corpus for every process; got texts that differ in number. "
        "Cure: give each machine the same copy"
    )
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
    images = SimpleNamespace(pad=1)
    assert distributed.share_tokenizer(images) is images
    assert isinstance(distributed.share_tokenizer(inner), distributed._SharedTokenizer)
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (0, 1))
    assert distributed.share_tokenizer(inner) is inner
    monkeypatch.setattr(distributed.dist, "is_initialized", lambda: False)
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (0, 2))
    assert distributed.share_tokenizer(inner) is inner


def test_a_stop_of_one_process_is_the_stop_of_all(monkeypatch):
    class Store(dict):
        def set(self, name, value):
            self[name] = value

        def check(self, names):
            return all(name in self for name in names)

    store = Store()
    monkeypatch.setattr(distributed._Notices, "store", store)
    assert distributed.find_stop_signal([]) == 0
    assert distributed.find_stop_signal([15, 2]) == 15 and store == {"stopped": "15"}
    assert distributed.find_stop_signal([]) == 15
    assert distributed.find_stop_signal([2]) == 2
    monkeypatch.setattr(distributed._Notices, "store", None)
    assert distributed.find_stop_signal([]) == 0
    assert distributed.find_stop_signal([15, 2]) == 15


def test_processes_in_step_leave_at_the_same_batch(monkeypatch):
    other = [0, 0, 0]

    def reduce(flags, op):
        assert op == distributed.dist.ReduceOp.MAX
        flags.copy_(torch.maximum(flags, torch.tensor(other)))

    monkeypatch.setattr(distributed.dist, "all_reduce", reduce)

    def agree(spread, busy, signal, other_busy, other_signal):
        monkeypatch.setattr(distributed, "find_spread", lambda _model: spread)
        other[:] = [int(other_busy), other_signal, -int(other_busy)]
        return distributed.Steps(None, CPU).agree(busy, signal)

    alone, fsdp, split = Spread(), Spread(True), Spread(True, (0, 1))
    for spread, in_step, reads_same in (
        (alone, False, False),
        (fsdp, True, False),
        (split, True, True),
    ):
        monkeypatch.setattr(distributed, "find_spread", lambda _model, s=spread: s)
        assert distributed.is_in_step(None) is in_step
        assert distributed.reads_same_batches(None) is reads_same
    assert agree(alone, True, 3, False, 9) == (True, 3)
    for spread in (fsdp, split):
        assert agree(spread, True, 0, True, 0) == (True, 0)
        assert agree(spread, False, 0, False, 0) == (False, 0)
        assert agree(spread, True, 0, False, 15) == (True, 15)
        assert agree(spread, False, 2, False, 0) == (False, 2)
    assert agree(fsdp, True, 0, False, 0) == agree(fsdp, False, 0, True, 0) == (True, 0)
    for busy in (True, False):
        assert sentence(agree, split, busy, 0, not busy, 0) == (
            "expected the same batches in every process of tensor parallelism; got fewer in one of them. "
            "Cure: give each process the whole list, not a share of it"
        )


def test_a_process_that_ends_is_told_from_other_errors():
    lost = (
        "expected every process of the torchrun job to go on to the end; got another process that has ended "
        "(it says why). Cure: correct what it reports; then the same command with --resume continues"
    )

    def call(together, text):
        with distributed.explain_lost_process_in_call(together):
            raise RuntimeError(text)

    words = "Connection closed|Connection reset by peer|NCCL error|Socket Timeout|Broken pipe"
    for text in words.split("|"):
        assert sentence(call, True, text) == lost
        with pytest.raises(RuntimeError, match=text):
            call(False, text)
    with pytest.raises(RuntimeError, match="shapes"):
        call(True, "shapes")


def test_what_one_process_knows_all_know(monkeypatch):
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (0, 1))
    assert distributed.broadcast_from_first("own") == "own"
    assert distributed.is_true_anywhere(True) and not distributed.is_true_anywhere(
        False
    )
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (1, 3))

    def first(box):
        box[0] = "first"

    monkeypatch.setattr(distributed.dist, "broadcast_object_list", first)
    assert distributed.broadcast_from_first("own") == "first"
    for others, found in (([False, True, False], True), ([False] * 3, False)):

        def gather(every, _value, others=others):
            every[:] = others

        monkeypatch.setattr(distributed.dist, "all_gather_object", gather)
        assert distributed.is_true_anywhere(False) is found
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.undo()
    assert distributed.rank_and_world() == (0, 1)


def test_ranks_are_those_of_the_whole_job(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert distributed.rank_and_world() == (5, 8)


def measured(*batches):
    kept = Measurement(SETTINGS_OF_VECTORS, "plan")
    plan = vectors_plan(6)
    for number in batches:
        loop._add_arrays(kept, plan[number], number)
    return kept


def test_states_of_several_processes_become_one(tmp_path):
    own = tmp_path / "own"

    def take(*states, plan="plan"):
        return distributed.take_over_states(
            list(states), SETTINGS_OF_VECTORS, plan, own
        )

    measured(2).save(tmp_path / "0")
    assert take(tmp_path / "0") == {2}
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    assert Measurement.restore(own, SETTINGS_OF_VECTORS).batches == {2}
    # An earlier take-over ended before it removed what it had added up.
    measured(2, 3, 4).save(own)
    measured(2).save(tmp_path / "0")
    measured(5).save(tmp_path / "1")
    assert take(tmp_path / "0", tmp_path / "1", own) == {2, 3, 4, 5}
    found = Measurement.restore(own, SETTINGS_OF_VECTORS)
    assert found.batches == {2, 3, 4, 5}
    term = next(iter(found.sums.terms))
    whole = measured(2, 3, 4, 5).sums.terms[term]
    assert torch.allclose(found.sums.terms[term], whole)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
    with pytest.raises(MeasureError, match="sums of another corpus"):
        take(own, plan="other")


def test_parts_of_all_processes_are_gathered_field_by_field(monkeypatch):
    """Sums, extremes and samples are shared in ways of their own; all else is joined."""
    ours, theirs = measured(0, 2), measured(1)
    for number, part in enumerate((ours, theirs)):
        part.plan, part.pieces = "plan", 4 - number
        part.weights = {f"w{number}": {}}
        part.unseen = {f"u{number}"}
        part.refused = {("e", number, "self"): f"why {number}"}
        part.proof = Proof(0.5 - number / 4)
    theirs.classes = ("x", "y")
    whole = ours.merge(theirs)
    names = ("batches", "weights", "classes", "unseen")
    joined = {name: getattr(theirs, name) for name in names}
    rest = Measurement(SETTINGS_OF_VECTORS, "plan", **joined)
    rest.sites, rest.pieces = theirs.sites, theirs.pieces
    rest.refused, rest.proof = theirs.refused, theirs.proof
    ours.reservoirs["b"], shared = ours.reservoirs["a"], []
    monkeypatch.setattr(distributed, "rank_and_world", lambda: (0, 2))

    def gather(every, own):
        every[:] = [own, (rest, ["c", "a"])]

    monkeypatch.setattr(distributed.dist, "all_gather_object", gather)
    monkeypatch.setattr(type(ours.sums), "all_reduce", lambda _self: whole.sums)
    monkeypatch.setattr(type(ours.extremes), "all_reduce", lambda _self: whole.extremes)
    sample = type(ours.reservoirs["a"])
    monkeypatch.setattr(sample, "all_reduce", lambda self: shared.append(self) or self)
    found = distributed.gather_parts(ours)
    assert found.sums is whole.sums and found.moments.sums is whole.sums
    assert found.extremes is whole.extremes
    for name in ("plan", "batches", "weights", "classes", "unseen", "pieces"):
        assert getattr(found, name) == getattr(whole, name), name
    assert found.refused == whole.refused and len(found.refused) == 2
    assert found.proof == whole.proof and found.proof.outputs == 0.5
    assert found.pieces == 4 and found.batches == {0, 1, 2}
    assert found.sites.keys() == whole.sites.keys()
    names = sorted(found.reservoirs)
    assert {"a", "b", "c"} <= set(names) and len(shared) == len(names)
    assert [found.reservoirs[n] for n in names] == [ours.reservoirs[n] for n in names]
    assert shared == [ours.reservoirs[name] for name in names], (
        "everywhere in one order"
    )
    assert EVERYWHERE not in found.refused
