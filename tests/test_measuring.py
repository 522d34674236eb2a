"""The loop: the same values and intervals however a corpus is cut, stopped and put together again; bad numbers
counted, never averaged.
"""

import itertools
import math
import os
import signal
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import tiny
import torch
from torch import nn

import anisoscope
from anisoscope.axes import SUBSET_FAMILIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import CorpusError, MeasureError, UsageError
from anisoscope.measure import loop
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.calls import Caller
from anisoscope.measure.inputs import GivenInputs
from anisoscope.measure.loop import Interrupted, measure_head_means, run_pass
from anisoscope.measure.masks import Masks
from anisoscope.measure.settings import Settings
from anisoscope.metrics import (
    Sample,
    attention,
    calibrated,
    intra_sequence,
    mean_cosine,
    scan,
    spectrum,
)
from anisoscope.runs.run import _check_counted
from anisoscope.store import COLUMNS, select
from anisoscope.sums.groups import Sums
from anisoscope.sums.reservoir import hash_tokens

SETTINGS = Settings(
    groups=6, spectrum_groups=3, sample=40, medians=True, bins=(-1.0, 0.0, 1.0)
)
KEYS = ["stack", "kind", "layer", "head", "site", "token_policy", "metric", "component"]
SAME = 1e-9
DOCUMENTS = tiny.documents(14)


def table(records):
    """Records as {key: (value, low, high, n_vectors, n_units)}."""
    frame = records.astype({"component": "string"}).fillna(
        {key: "—" for key in KEYS if key not in ("layer", "head")}
    )
    frame[["layer", "head"]] = frame[["layer", "head"]].astype("float64").fillna(-1)
    indexed = frame.set_index(KEYS).sort_index()
    assert indexed.index.is_unique
    return indexed[["value", "low", "high", "n_vectors", "n_units"]].astype("float64")


def check_same(got, expected, tolerance=SAME):
    """Equal rows; values and both ends of every interval within `tolerance`, absolute and relative."""
    got, expected = table(got), table(expected)
    assert got.index.equals(expected.index)
    np.testing.assert_allclose(
        got.to_numpy(), expected.to_numpy(), rtol=tolerance, atol=tolerance
    )


def measured(name, settings=SETTINGS, **plan):
    return run_pass(
        tiny.model(name),
        tiny.Plan(DOCUMENTS, decoder=name in tiny.TWO_STACKS, **plan),
        settings,
    )


_WHOLE = {}


def whole(name):
    """All documents in one go, batches of 4, measured once."""
    if name not in _WHOLE:
        _WHOLE[name] = measured(name).records()
    return _WHOLE[name]


NAMES = ("bert", "qwen3", "t5")


# ---- however the corpus is cut ---------------------------------------------------------------------------------------


def check_batches(name="bert", **plan):
    check_same(measured(name, **plan).records(), whole(name))


PLANS = [{"batch": 7}, {"batch": 1000}, {"batch": 3, "order": 8}]


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("bert", {"batch": 1}),
        *itertools.product(("bert", "t5"), PLANS),
        ("qwen3", PLANS[2]),
    ],
    ids=str,
)
def test_batch_size_and_order_do_not_matter(name, plan):
    check_batches(name, **plan)


def test_padding_side_does_not_matter_to_a_model_with_rotary_positions():
    """A rotary model sees distances only; on the left, position 0 is still the first real token."""
    left = measured("qwen3", left=True)
    rotated = [
        "query.rotated",
        "key.rotated",
    ]  # this stage depends on absolute positions
    keep = [r[~(r["site"].isin(rotated))] for r in (left.records(), whole("qwen3"))]
    check_same(keep[0], keep[1], 1e-5)  # the models turn by float32 angles


@pytest.mark.parametrize("name", NAMES)
def test_two_merged_halves_are_the_whole(name):
    halves = [
        measured(name, units=range(first, len(DOCUMENTS), 2), batch=3)
        for first in (1, 0)
    ]
    check_same(halves[0].merge(halves[1]).records(), whole(name))


def test_shards_of_one_plan_merge():
    plan = tiny.Plan(DOCUMENTS)
    parts = [
        run_pass(tiny.model("bert"), plan, SETTINGS, only=range(i, len(plan), 3))
        for i in range(3)
    ]
    check_same(parts[2].merge(parts[0]).merge(parts[1]).records(), whole("bert"))
    batches = [plan[i] for i in range(len(plan))]
    listed = [
        run_pass(tiny.model("bert"), iter(batches), SETTINGS, only=range(i, 99, 3))
        for i in range(3)
    ]
    check_same(listed[0].merge(listed[1]).merge(listed[2]).records(), whole("bert"))


def test_merging_with_nothing_changes_nothing():
    some = measured("bert")
    for merged in (
        some.merge(Measurement(SETTINGS)),
        Measurement(SETTINGS).merge(some),
    ):
        check_same(merged.records(), whole("bert"), 0)


def test_measurements_of_other_settings_do_not_merge():
    for name, value in {"groups": 5, "tokens": ("all",), "medians": True}.items():
        with pytest.raises(UsageError, match=name):
            Measurement(Settings()).merge(Measurement(Settings(**{name: value})))


def test_plain_dictionaries_are_measured_like_a_plan():
    """`measure` on batches as a data loader gives them; units named or one per sequence."""
    plan = tiny.Plan(DOCUMENTS, window=99)
    dicts = [
        plan[i].inputs
        | {
            "unit": plan[i].unit,
            "special_tokens_mask": plan[i].streams["encoder"].special,
        }
        for i in range(len(plan))
    ]
    settings = {
        "groups": 6,
        "panel": ("hidden",),
        "sample": 0,
        "tokens": ("content", "all"),
    }
    expected = run_pass(
        tiny.model("bert"), tiny.Plan(DOCUMENTS, window=99), Settings(**settings)
    ).records()
    no_bins = [
        r[~r["component"].str.contains("frequency").fillna(False)]
        for r in (tiny.measure(tiny.model("bert"), dicts, **settings), expected)
    ]
    check_same(no_bins[0], no_bins[1], 1e-12)
    nameless = [{k: v for k, v in d.items() if k != "unit"} for d in dicts]
    check_same(
        tiny.measure(tiny.model("bert"), nameless, ["mean_cosine", "norms"], groups=6),
        tiny.measure(tiny.model("bert"), dicts, ["mean_cosine", "norms"], groups=6),
        1e-12,
    )


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_sample_of_plain_batches_takes_each_token_once(side):
    """Sequences of one unit are told apart, whatever the batches and their padding."""
    generator = torch.Generator().manual_seed(0)
    sequences = [
        torch.randint(3, 99, (length,), generator=generator)
        for length in (7, 3, 9, 5, 8, 2)
    ]
    model, units = tiny.model("qwen3"), [4, 4, 4, 7, 7, 9]

    def batches(size):
        for first in range(0, 6, size):
            part = sequences[first : first + size]
            ids = torch.nn.utils.rnn.pad_sequence(
                part, batch_first=True, padding_side=side
            )
            mask = torch.nn.utils.rnn.pad_sequence(
                [torch.ones_like(s) for s in part], batch_first=True, padding_side=side
            )
            yield {
                "input_ids": ids,
                "attention_mask": mask,
                "unit": units[first : first + size],
            }

    settings = Settings(metrics=("calibrated",), sample=20, groups=3)
    runs = [
        run_pass(model, GivenInputs(batches(size)), settings).reservoirs["decoder"]
        for size in (1, 2, 6)
    ]
    assert len(set(runs[0].hash.tolist())) == 20
    for other in runs[1:]:
        assert torch.equal(other.hash, runs[0].hash) and torch.equal(
            other.unit, runs[0].unit
        )
        torch.testing.assert_close(
            other.vectors["decoder.0.hidden"], runs[0].vectors["decoder.0.hidden"]
        )


def test_values_are_those_of_the_vectors():
    """From captured hidden states, document by document, to the table: A, its interval's centre, counts, and
    similarity inside windows.
    """
    records = whole("bert")
    plan = tiny.Plan(DOCUMENTS, batch=1)
    from anisoscope.capture import capture

    vectors, windows = {}, []
    for i in range(len(plan)):
        with torch.no_grad(), capture(tiny.model("bert"), ("hidden",)) as tap:
            tiny.model("bert")(**plan[i].inputs)
        x = tap["encoder.2.hidden"][0].numpy()
        vectors.setdefault(int(plan[i].unit), []).append(x)
        windows.append(x)
    units = [np.concatenate(v) for v in vectors.values()]
    row = select(
        records, site="hidden", layer=2, metric="mean_cosine", token_policy="all"
    ).iloc[0]
    assert row.value == pytest.approx(mean_cosine.reference(units)[""], rel=SAME)
    assert row.n_vectors == sum(map(len, DOCUMENTS)) and row.n_units == len(DOCUMENTS)
    assert row.low < row.value < row.high
    inside = select(
        records, site="hidden", layer=2, metric="intra_sequence", token_policy="all"
    ).iloc[0]
    assert inside.value == pytest.approx(
        intra_sequence.reference(windows)[""], rel=SAME
    )
    content = select(
        records, site="hidden", layer=2, metric="mean_cosine", token_policy="content"
    ).iloc[0]
    special = sum(
        1 + sum(token % tiny.SPECIAL_EVERY == 0 for token in document[1:])
        for document in DOCUMENTS
    )
    assert content.n_vectors == row.n_vectors - special
    no_first = select(
        records, site="hidden", layer=2, metric="mean_cosine", token_policy="no-first"
    ).iloc[0]
    assert no_first.n_vectors == row.n_vectors - len(windows)
    settings = Settings(
        metrics=("calibrated",), sample=10_000, groups=3
    )  # a sample that holds all
    sampled = run_pass(tiny.model("bert"), plan, settings).records()
    for name, value in calibrated.reference(units).items():
        found = select(
            sampled, site="hidden", layer=2, metric=f"calibrated.{name}"
        ).iloc[0]
        assert (found.value, found.n_vectors) == (
            pytest.approx(value, abs=1e-6),
            row.n_vectors,
        )


def _list_drawn_vectors(share, seed):
    """The hidden vectors of layer 2 that a share of the tokens has, document by document, by plain Python."""
    from anisoscope.capture import capture

    plan = tiny.Plan(DOCUMENTS, batch=1)
    places = {}
    units = {}
    for i in range(len(plan)):
        with torch.no_grad(), capture(tiny.model("bert"), ("hidden",)) as tap:
            tiny.model("bert")(**plan[i].inputs)
        unit = int(plan[i].unit)
        for x in tap["encoder.2.hidden"][0].numpy():
            index = places[unit] = places.get(unit, -1) + 1
            if (
                int(hash_tokens(seed, torch.tensor(unit), torch.tensor(index)))
                < share * 2**63
            ):
                units.setdefault(unit, []).append(x)
    return [np.array(vectors) for vectors in units.values()]


@pytest.mark.parametrize("plan", [{}, *PLANS], ids=str)
def test_a_share_of_the_tokens_has_the_spectrum_of_the_tokens_drawn(plan):
    """However they are batched; nothing else changes."""
    settings = Settings(
        panel=("hidden", "spectrum"),
        sample=0,
        spectrum_share=0.4,
        seed=3,
        groups=6,
        spectrum_groups=3,
    )
    records = measured("bert", settings, **plan).records()
    drawn = _list_drawn_vectors(0.4, 3)
    count = sum(map(len, drawn))
    assert 0.3 < count / sum(map(len, DOCUMENTS)) < 0.5
    expected = spectrum.reference(drawn)
    for name in ("effective_rank", "effective_rank_uncentred", "participation_ratio"):
        row = select(records, site="hidden", layer=2, metric=f"spectrum.{name}").iloc[0]
        assert (row.value, row.n_vectors) == (
            pytest.approx(expected[name], rel=SAME),
            count,
        )
        assert row.low < row.value < row.high
    of_all = measured("bert", replace(settings, spectrum_share=1.0), **plan).records()
    with_spectrum = [
        found["metric"].str.startswith("spectrum.") for found in (records, of_all)
    ]
    check_same(records[~with_spectrum[0]], of_all[~with_spectrum[1]])
    assert of_all[with_spectrum[1]]["n_vectors"].min() > count


def test_halves_of_a_share_are_the_whole():
    settings = Settings(
        panel=("spectrum",), sample=0, spectrum_share=0.4, groups=6, spectrum_groups=3
    )
    halves = [
        measured("t5", settings, units=range(first, len(DOCUMENTS), 2), batch=3)
        for first in (1, 0)
    ]
    check_same(halves[0].merge(halves[1]).records(), measured("t5", settings).records())


def test_position_bins_begin_where_their_names_say():
    """The last four families of `Masks`, of 130 tokens between padding, each counted from the first real one."""
    real = torch.zeros(1, 140).bool()
    real[0, 5:135] = True
    special = torch.zeros(1, 140).bool()
    special[0, [2, 5, 6, 134]] = True
    made = Masks.of(
        Stream(real, special, torch.zeros(1, dtype=torch.int64)),
        ("all", "content", "no-first"),
    )
    names = [name for family in SUBSET_FAMILIES.values() for name in family]
    at = {
        name: made.subsets[0, i].nonzero().flatten().tolist()
        for i, name in enumerate(names)
    }
    assert (at["special"], at["first"]) == ([6, 134], [5]) and at["content"] == [
        *range(7, 134)
    ]
    edges = {
        "position 0": (0, 1),
        "position 1–7": (1, 8),
        "position 8–31": (8, 32),
        "position 32–127": (32, 128),
    }
    for name, (begin, end) in (edges | {"position 128+": (128, 130)}).items():
        assert at[name] == [*range(5 + begin, 5 + end)], name
    assert made.policies[0].sum(1).tolist() == [130, 127, 129] and not any(
        at[f"frequency {i}"] for i in range(1, 6)
    )


def test_token_subsets_are_what_their_names_say():
    """Counted document by document: kinds, frequency bins, position bins inside windows of 9."""
    n = measured("bert").sums.at("encoder.2.hidden")["subset_n"].sum(0)[:, 0].tolist()
    names = [name for family in SUBSET_FAMILIES.values() for name in family]
    tokens = [
        (p % 9, p == 0 or t % tiny.SPECIAL_EVERY == 0, t)
        for document in DOCUMENTS
        for p, t in enumerate(document)
    ]
    expected = {
        "special": sum(special and p > 0 for p, special, _ in tokens),
        "first": sum(p == 0 for p, _, _ in tokens),
        "content": sum(p > 0 and not special for p, special, _ in tokens),
        "position 0": sum(p == 0 for p, _, _ in tokens),
        "position 1–7": sum(0 < p < 8 for p, _, _ in tokens),
        "position 8–31": sum(p >= 8 for p, _, _ in tokens),
        "position 32–127": 0,
        "position 128+": 0,
    }
    expected |= {
        f"frequency {i + 1}": sum(
            t * 5 // 100 == i and not special for _, special, t in tokens
        )
        for i in range(5)
    }
    assert dict(zip(names, n, strict=True)) == expected
    assert (
        min(
            expected[name]
            for name in ("special", "frequency 1", "frequency 5", "position 8–31")
        )
        > 0
    )


def test_rows_have_the_columns_of_the_long_table_and_honest_counts():
    records = whole("t5")
    assert list(records.columns) == list(COLUMNS)
    weights = records["metric"] == "partition"  # of no layer and of no unit
    assert (
        set(records.loc[weights, "site"]) == {"embedding.input"}
        and records.loc[weights, "n_units"].isna().all()
    )
    records = records[~weights]
    assert set(records["stack"]) == {"encoder", "decoder"} and set(records["kind"]) == {
        "self",
        "cross",
    }
    assert (
        records["low"]
        .le(records["value"] + 1e-12)
        .where(records["low"].notna(), True)
        .all()
    )
    tokens = sum(map(len, DOCUMENTS))
    assert set(select(records, metric="attention.entropy")["n_vectors"]) == {tokens}
    assert set(records.loc[records["head"].isna(), "site"]) == {"hidden", "final"}


def test_one_metric_alone_is_measured_with_the_sums_it_needs():
    """Every metric by name gives the rows it gives among all others."""
    everything = whole("bert")
    for metric in sorted({m.split(".")[0] for m in everything["metric"]}):
        alone = measured("bert", replace(SETTINGS, metrics=(metric,))).records()
        of_all = everything[everything["metric"].str.split(".").str[0] == metric]
        assert len(alone) >= len(of_all) > 0, metric
        joined = table(alone).loc[table(of_all).index]
        np.testing.assert_allclose(
            joined.to_numpy(),
            table(of_all).to_numpy(),
            rtol=1e-12,
            atol=1e-12,
            err_msg=metric,
        )


# ---- stopped and resumed ---------------------------------------------------------------------------------------------


def stop_after(batches, number):
    """A progress callback that sends this process a signal after so many batches."""
    calls = []

    def progress(done, total):
        calls.append((done, total))
        if len(calls) == batches:
            os.kill(os.getpid(), number)

    return progress


@patch("anisoscope.sums.moments.FEW", 0)
@patch("anisoscope.sums.moments.NARROW", 0)
def check_resume(tmp_path, name="bert", number=signal.SIGTERM, after=5, expected=None):
    """Interrupted in the middle of what is summed in float32 before float64, and of the sample; then gone on."""
    model, plan, state = (
        in_float32(name),
        in_threes(name),
        tmp_path / "state.safetensors",
    )
    with pytest.raises(Interrupted) as caught:
        run_pass(model, plan, SETTINGS, state=state, progress=stop_after(after, number))
    assert caught.value.number == number
    half = Measurement.restore(state, SETTINGS, plan.fingerprint)
    assert (
        half.batches == set(range(after))
        and half.moments.pending
        and any(len(r.hash) for r in half.reservoirs.values())
    )
    progress = []
    resumed = run_pass(
        model,
        plan,
        SETTINGS,
        state=state,
        resume=True,
        progress=lambda *done: progress.append(done),
    )
    assert len(progress) == len(plan) - after
    assert progress[-1] == (sum(plan.tokens), sum(plan.tokens)) and progress[0][
        0
    ] == sum(plan.tokens[: after + 1])
    check_same(
        resumed.records(),
        (uninterrupted(name) if expected is None else expected).records(),
        1e-12,
    )


def in_threes(name):
    return tiny.Plan(DOCUMENTS, batch=3, decoder=name in tiny.TWO_STACKS)


@patch("anisoscope.sums.moments.FEW", 0)
@patch("anisoscope.sums.moments.NARROW", 0)
def uninterrupted(name):
    return run_pass(in_float32(name), in_threes(name), SETTINGS)


_FLOAT32 = {}


def in_float32(name):
    return _FLOAT32.setdefault(name, tiny.build(name, torch.float32))


@pytest.fixture(scope="module")
def of_each():
    """What `uninterrupted` gives for a model, measured once."""
    return cache(uninterrupted)


@pytest.mark.parametrize(
    ("name", "after", "number"),
    [
        pytest.param("bert", 2, signal.SIGTERM, marks=pytest.mark.nightly),
        ("bert", 4, signal.SIGINT),
        pytest.param("bert", 6, signal.SIGTERM, marks=pytest.mark.nightly),
        ("t5", 4, signal.SIGTERM),
    ],
)
def test_resume_gives_the_numbers_of_an_uninterrupted_run(
    tmp_path, of_each, name, after, number
):
    check_resume(tmp_path, name, number, after, of_each(name))


def test_a_signal_after_the_last_batch_loses_nothing(tmp_path):
    plan, state = tiny.Plan(DOCUMENTS, batch=8), tmp_path / "state.safetensors"
    with pytest.raises(Interrupted):
        run_pass(
            tiny.model("bert"),
            plan,
            SETTINGS,
            state=state,
            progress=stop_after(len(plan), signal.SIGTERM),
        )
    resumed = run_pass(tiny.model("bert"), plan, SETTINGS, state=state, resume=True)
    check_same(resumed.records(), whole("bert"))


def test_the_state_is_saved_now_and_then(tmp_path, monkeypatch):
    """A kill that cannot be caught costs at most a minute."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(loop, "SAVE_RATE", math.inf)
    plan, state, seen = (
        tiny.Plan(DOCUMENTS, batch=8),
        tmp_path / "state.safetensors",
        [],
    )

    def progress(*_):
        seen.append(
            len(Measurement.restore(state, SETTINGS).batches) if state.exists() else 0
        )

    run_pass(tiny.model("bert"), plan, SETTINGS, state=state, progress=progress)
    assert seen == list(range(len(plan)))
    assert [p.name for p in tmp_path.iterdir()] == [
        "state.safetensors"
    ]  # no temporary file stays


def test_a_state_of_another_plan_is_refused(tmp_path):
    measured("bert").save(tmp_path / "state")
    with pytest.raises(
        MeasureError, match=r"sums of another corpus or other settings in .*--overwrite"
    ):
        Measurement.restore(tmp_path / "state", SETTINGS, "that plan")


def test_resuming_a_plain_iterable_skips_what_was_done(tmp_path):
    plan, state = tiny.Plan(DOCUMENTS, batch=3), tmp_path / "state.safetensors"
    batches = [plan[i] for i in range(len(plan))]
    with pytest.raises(Interrupted):
        run_pass(
            tiny.model("bert"),
            (b for b in batches),
            SETTINGS,
            state=state,
            progress=stop_after(4, signal.SIGTERM),
        )
    resumed = run_pass(
        tiny.model("bert"), (b for b in batches), SETTINGS, state=state, resume=True
    )
    check_same(resumed.records(), whole("bert"))


def test_signals_are_given_back():
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    measured("bert", Settings(panel=("hidden",), sample=0))
    assert [
        signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)
    ] == handlers


def test_saved_and_restored_is_the_same_value(tmp_path):
    some = measured("t5")
    some.save(tmp_path / "state")
    back = Measurement.restore(tmp_path / "state", SETTINGS, some.plan)
    assert (
        back.sites == some.sites
        and back.sums.units == some.sums.units
        and back.batches == some.batches
    )
    assert back.weights.keys() == some.weights.keys() == {"embedding.input"}
    check_same(back.records(), some.records(), 0)


# ---- bad numbers -----------------------------------------------------------------------------------------------------


class Spoiled:
    """Makes one vector of the output of block `layer` what it should not be."""

    def __init__(self, model, layer, value, unit, position):
        self.value, self.position, self.unit = value, position, unit
        self.handle = model.encoder.layer[layer - 1].register_forward_hook(self.spoil)
        self.batch_units = None

    def spoil(self, _module, _inputs, output):
        output = output[0] if isinstance(output, tuple) else output
        for row, unit in enumerate(self.batch_units):
            if unit == self.unit:
                output[row, self.position] = self.value


def spoiled_run(value, unit=4, position=2, layer=2, units=range(12)):
    """Units of one window each; in one of them a vector after block `layer` is spoiled."""
    model = tiny.build("bert")
    documents = tiny.documents(12, shortest=6, longest=9)
    plan = tiny.Plan(documents, batch=3, units=units)
    spoiled = Spoiled(model, layer, value, unit, position)
    batches = []
    for i in range(len(plan)):
        batches.append(plan[i])

    def one_by_one():
        for batch in batches:
            spoiled.batch_units = batch.unit.tolist()
            yield batch

    try:
        settings = Settings(groups=4, sample=30, spectrum_groups=2, medians=True)
        return run_pass(model, one_by_one(), settings), documents
    finally:
        spoiled.handle.remove()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_counted_per_layer_and_left_out(value):
    run, documents = spoiled_run(value)
    excluded = run.excluded()
    assert excluded["encoder.2.hidden"]["nonfinite"] == 1
    assert excluded["encoder.3.hidden"]["nonfinite"] == len(
        documents[4]
    )  # attention spreads it over the sequence
    assert excluded["encoder.3.attention"]["nonfinite"] == tiny.HEADS * len(
        documents[4]
    )
    assert (
        not {"encoder.0.hidden", "encoder.1.hidden", "encoder.2.attention"}
        & excluded.keys()
    )
    records = run.records()
    assert np.isfinite(records["value"]).all()
    clean, _ = spoiled_run(0.0, unit=-1, units=[u for u in range(12) if u != 4])
    expected = table(clean.records())
    for metric in (
        "mean_cosine",
        "norms.std",
        "drift",
        "intra_sequence",
        "attention.entropy",
        "attention.score",
        "attention.row_similarity",
    ):
        got = table(
            select(records, layer=3, metric=metric, site=["hidden", "attention"])
        )
        chosen = expected.loc[got.index]
        np.testing.assert_allclose(
            got[["value", "n_vectors"]],
            chosen[["value", "n_vectors"]],
            rtol=SAME,
            err_msg=metric,
        )


def test_zero_vectors_are_counted_and_left_out():
    run, documents = spoiled_run(0.0)
    assert run.excluded()["encoder.2.hidden"] == {"zero": 1, "nonfinite": 0}
    row = select(
        run.records(), site="hidden", layer=2, metric="mean_cosine", token_policy="all"
    ).iloc[0]
    assert row.n_vectors == sum(map(len, documents)) - 1
    assert np.isfinite(run.records()["value"]).all()


# ---- small and odd corpora -------------------------------------------------------------------------------------------


def test_one_unit_has_values_and_no_interval():
    records = tiny.measure(
        tiny.model("bert"), [{"input_ids": torch.randint(3, 99, (1, 7))}]
    )
    assert set(records["n_units"].dropna()) == {1}
    assert records[["low", "high"]].isna().all(None)
    assert np.isfinite(select(records, metric="mean_cosine")["value"]).all()
    assert select(records, metric="mean_cosine.between")["value"].isna().all()


def test_one_token_is_measured():
    records = tiny.measure(tiny.model("bert"), [{"input_ids": torch.tensor([[5]])}])
    assert select(records, metric="mean_cosine")["value"].isna().all()
    assert (
        select(
            records, metric="norms.mean", site="hidden", token_policy=["all", "content"]
        )["value"]
        > 0
    ).all()
    assert select(records, metric="attention.entropy")["value"].abs().max() < 1e-12
    assert select(records, metric="attention.entropy_normalised")["value"].isna().all()
    assert (select(records, metric="attention.rows_seeing_one_key")["value"] == 1).all()


def test_fewer_units_than_groups_are_groups_of_their_own():
    """Three units, 32 groups: the interval has two degrees of freedom and is that of 3 groups."""
    documents = tiny.documents(3)
    few, many = (
        run_pass(
            tiny.model("bert"),
            tiny.Plan(documents),
            Settings(groups=g, panel=("hidden",), sample=0),
        ).records()
        for g in (3, 32)
    )
    check_same(few, many, 1e-12)
    assert np.isfinite(select(many, metric="mean_cosine")["low"]).all()


def test_an_empty_corpus_is_an_error_with_its_cure():
    with pytest.raises(CorpusError, match="a corpus with at least one batch; got none"):
        tiny.measure(tiny.model("bert"), [])


def test_a_site_that_changes_width_is_an_error():
    run = Measurement(Settings(panel=("hidden",), sample=0))
    for width in (4, 5):
        run.begin(Batch({}, torch.tensor([0])), torch.device("cpu"))
        if width == 4:
            run.receive(Site("encoder", 0, "hidden"), torch.randn(1, 3, width))
    with pytest.raises(MeasureError, match="one width in the whole corpus"):
        run.receive(Site("encoder", 0, "hidden"), torch.randn(1, 3, 5))


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"panel": ("hiden",)}, "did you mean hidden"),
        ({"metrics": ("mean_cosin",)}, "did you mean mean_cosine"),
    ],
)
def test_unknown_names_come_with_near_matches(wrong, message):
    with pytest.raises(UsageError, match=message):
        Settings(**wrong)


# ---- the model afterwards --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_training_mode_is_restored_module_by_module(fails):
    """Measured in evaluation mode (dropout would show), handed back as it came, also after an error."""
    model = tiny.build(
        "bert", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5
    ).train()
    model.encoder.layer[1].eval()
    modes = [m.training for m in model.modules()]
    batches = [
        {
            "input_ids": torch.randint(
                3, 99, (4, 6), generator=torch.Generator().manual_seed(0)
            )
        }
    ]
    if fails:
        with pytest.raises(ValueError, match="unpack"):  # the model's own
            tiny.measure(model, [{"input_ids": torch.zeros(1, 2, 3).long()}])
    else:
        check_same(
            tiny.measure(model, batches, ["mean_cosine"]),
            tiny.measure(tiny.model("bert"), batches, ["mean_cosine"]),
            1e-12,
        )
    assert [m.training for m in model.modules()] == modes


def test_parameters_get_no_gradient():
    model = tiny.build("bert")
    tiny.measure(model, [{"input_ids": torch.randint(3, 99, (2, 5))}], ["mean_cosine"])
    assert all(p.grad is None for p in model.parameters())
    assert "row_similarity" in attention.METRIC.needs


# ---- what reads batches twice, and what is sampled


class Again:
    """Batches that can be read again and again, and not be indexed: as a loader of torch."""

    def __init__(self, listed):
        self.listed = listed

    def __iter__(self):
        return iter(self.listed)


def test_means_of_heads_take_what_can_be_read_twice():
    model, plan = tiny.build("bert"), tiny.Plan(tiny.documents(4), batch=2)
    listed = [plan[i] for i in range(len(plan))]
    means = measure_head_means(model, listed, Settings())
    again = measure_head_means(model, Again(listed), Settings())
    assert means and means.keys() == again.keys()
    for place, pair in means.items():
        torch.testing.assert_close(again[place], pair, msg=str(place))
    with pytest.raises(UsageError, match="batches that can be read twice"):
        measure_head_means(model, iter(listed), Settings())


def test_metrics_of_the_sample_are_at_every_layer_and_say_whose_tokens_they_are_of():
    settings = Settings(
        metrics=("calibrated", "mean_cosine", "drift"),
        tokens=("content", "all"),
        sample=16,
    )
    records = run_pass(
        tiny.build("bert"), tiny.Plan(tiny.documents(6), batch=3), settings
    ).records()
    of_sample = records[records["metric"].eq("calibrated.centred")]
    layers = records[
        records["metric"].eq("drift") & records["site"].isin(["hidden", "final"])
    ]
    layers = layers[layers["token_policy"].eq("all")][["layer", "site"]]
    assert (
        sorted(of_sample[["layer", "site"]].values.tolist())
        == sorted(layers.values.tolist())
        and len(layers) == 4
    )
    assert set(of_sample["token_policy"]) == {"content"}
    assert set(records[records["metric"].eq("mean_cosine")]["token_policy"]) == {
        "content",
        "all",
    }


@pytest.mark.parametrize(
    "name",
    sorted(name for name, metric in scan().items() if isinstance(metric.reads, Sample)),
)
def test_a_metric_of_the_sample_is_of_the_first_policy(name):
    settings = Settings(metrics=(name,), tokens=("content", "all"), sample=16)
    records = run_pass(
        tiny.build("bert"), tiny.Plan(tiny.documents(6), batch=3), settings
    ).records()
    assert set(records["token_policy"]) == {"content"}


class Named(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.forward = forward
        self.weight = nn.Parameter(torch.zeros(1))


def test_what_is_given_by_place_has_the_names_of_the_model():
    """Token ids, vectors in their place, pairs with labels; more than there are names is refused."""
    ids, mask, labels = (
        torch.ones(4, 6).long(),
        torch.ones(4, 6).long(),
        torch.arange(4),
    )
    text = Named(lambda input_ids=None, attention_mask=None, inputs_embeds=None: None)  # noqa: ARG005
    alone = Named(lambda x: None)  # noqa: ARG005
    for model, item, expected, told in (
        (text, ids, {"input_ids": ids}, 0),
        (text, (ids, mask), {"input_ids": ids, "attention_mask": mask}, 0),
        (text, [ids, labels], {"input_ids": ids}, 1),
        (text, torch.zeros(4, 6, 2), {"inputs_embeds": torch.zeros(4, 6, 2)}, 0),
        (alone, (ids, mask), {"x": ids}, 1),
        (alone, {"x": ids}, {"x": ids}, 0),
    ):
        caller = Caller(model, None)
        found = caller.name_arguments(item)
        assert found.keys() == expected.keys() and len(caller.warnings) == told
        assert all(torch.equal(found[name], x) for name, x in expected.items())
    with pytest.raises(UsageError, match="at most 1 arguments"):
        Caller(alone, None).name_arguments((ids, mask, mask))
    with pytest.raises(UsageError, match="with named arguments; got none"):
        Caller(Named(lambda *_given: None), None).name_arguments(ids)
    assert Caller(None, None).name_arguments(torch.zeros(2, 3)).keys() == {
        "pixel_values"
    }
    assert Caller(None, None).name_arguments((ids,)).keys() == {"input_ids"}


@pytest.mark.parametrize(
    ("left_out", "counted", "says"),
    [
        (
            {"zero": 3, "nonfinite": 0},
            0,
            "none at any site (3 with zero at encoder.0.hidden)",
        ),
        (
            {"zero": 1, "nonfinite": 2},
            0,
            "none at any site (1 with zero and 2 with NaN or Inf at encoder.0.hidden)",
        ),
        ({"zero": 1, "nonfinite": 2}, 5, ""),
    ],
)
def test_a_pass_that_counts_no_vector_is_an_error(left_out, counted, says):
    sums = Sums(2)
    sums.buffer("encoder.0.hidden", "n", (2, 1)).add_(counted)
    measured = SimpleNamespace(
        sums=sums, excluded=lambda: {"encoder.0.hidden": left_out}
    )
    if says:
        with pytest.raises(MeasureError) as found:
            _check_counted(measured)
        assert says in str(found.value)
    else:
        _check_counted(measured)
    _check_counted(SimpleNamespace(sums=Sums(2), excluded=dict))


def test_parts_of_a_batch_keep_what_belongs_to_each_sequence():
    """Where memory is short a batch is cut: inputs however nested, units, masks and labels by the same rows."""
    inputs = {
        "x": torch.arange(10).view(5, 2),
        "more": {"y": torch.arange(5.0)},
        "flag": True,
        "scale": torch.tensor(2),
    }
    mask = torch.arange(15).view(5, 3) % 4 > 0
    stream = Stream(mask, ~mask, torch.zeros(5, dtype=torch.int64))
    whole = Batch(
        inputs,
        torch.tensor([3, 3, 4, 5, 9]),
        {"encoder": stream},
        label=torch.tensor([0, 1, 1, 0, 2]),
    )
    parts = whole.split(2)
    assert [len(part.unit) for part in parts] == [3, 2] and whole.split(1) == [whole]
    for name, get in {
        "x": lambda b: b.inputs["x"],
        "y": lambda b: b.inputs["more"]["y"],
        "unit": lambda b: b.unit,
        "mask": lambda b: b.streams["encoder"].mask,
        "special": lambda b: b.streams["encoder"].special,
        "label": lambda b: b.label,
    }.items():
        assert torch.equal(torch.cat([get(part) for part in parts]), get(whole)), name
    assert all(
        part.inputs["flag"] is True and part.inputs["scale"] == 2 for part in parts
    )
    with pytest.raises(UsageError, match=r"a tensor \[4\] for 5 sequences"):
        Batch({"x": torch.zeros(4)}, whole.unit).split(2)


def test_no_interval_goes_beyond_what_a_value_can_be():
    """One unit of forty is opposite to the others: half as wide again, the interval of A would hold more than 1."""
    x = np.tile(np.eye(4)[0], (80, 1)) + 1e-3 * np.random.default_rng(0).normal(
        size=(80, 4)
    )
    x[:2] *= -1
    records = anisoscope.measure(x, units=np.arange(80) // 2, quiet=True).records
    checked = 0
    for metric in scan().values():
        for value, bounds in metric.bounds.items():
            rows = records[
                records["metric"].eq(f"{metric.name}.{value}" if value else metric.name)
            ]
            rows = rows[rows["low"].notna()]
            if callable(bounds) or rows.empty:
                continue
            assert (
                rows["low"].ge(bounds[0]).all() and rows["high"].le(bounds[1]).all()
            ), (metric.name, value)
            checked += 1
    assert checked > 3
    (a,) = records[
        records["metric"].eq("mean_cosine") & records["component"].isna()
    ].itertuples()
    assert a.low < 0.6 < a.value < 0.95 < a.high < 1
