"""Differences between runs: paired by unit where units are the same; what they say is compared with simulation."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import anisoscope
from anisoscope.errors import UsageError
from anisoscope.metrics import mean_cosine
from anisoscope.runs.differences import (
    Condition,
    KeptRun,
    compare_runs,
    explain_pairing,
    open_kept_run,
    parse_condition,
    read_replicates,
    tabulate_differences,
    write_replicates,
)
from anisoscope.store import as_records
from anisoscope.sums.groups import Totals

GROUPS = 16


def make_run(name, values, *, layers=None, units="same", metric="mean_cosine", head=None):
    """A run of a metric whose replicates [1 + group] are given by layer."""
    layers = range(len(values)) if layers is None else layers
    rows = [
        {
            "metric": metric,
            "stack": "encoder",
            "kind": "self",
            "layer": layer,
            "head": head,
            "site": "hidden",
            "token_policy": "all",
            "value": replicates[0],
        }
        for layer, replicates in zip(layers, values, strict=True)
    ]
    replicates = np.stack([np.asarray(replicates)[1:] for replicates in values])
    return KeptRun(name, as_records(pd.DataFrame(rows)), replicates, units)


def mean_cosine_replicates(x, group):
    """A and A without each group, by the metric itself."""
    direction = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = np.array([(group == g).sum() for g in range(GROUPS)], dtype=float)
    unit = np.stack([direction[group == g].sum(0) for g in range(GROUPS)])
    return mean_cosine.compute(Totals({"n": n, "unit": unit}))[""]


def draw_documents(rng, units=48, tokens=12, d=12):
    """Vectors that are clustered by document, and their documents."""
    documents = rng.normal(size=(units, d)) + 0.6
    x = np.repeat(documents, tokens, axis=0) + rng.normal(size=(units * tokens, d))
    return x, np.repeat(np.arange(units), tokens)


def test_a_small_shift_of_the_same_documents_is_seen_paired_and_not_unpaired():
    rng = np.random.default_rng(0)
    x, unit = draw_documents(rng)
    before, after = (mean_cosine_replicates(y, unit % GROUPS) for y in (x, x + 0.03))
    first, second = make_run("a", [before]), make_run("b", [after])
    (paired,) = compare_runs(first, second, "mean_cosine")
    assert paired.paired
    assert paired.low > 0
    (unpaired,) = compare_runs(first, make_run("b", [after], units="others"), "mean_cosine")
    assert unpaired.low < 0 < unpaired.high
    assert unpaired.value == paired.value == after[0] - before[0]
    assert "Paired by unit" in explain_pairing(first, second)


def test_the_paired_interval_is_the_jackknife_of_the_difference():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 1 + GROUPS))
    (one,) = compare_runs(make_run("a", [a]), make_run("b", [b]), "mean_cosine")
    d = (b - a)[1:]
    error = np.sqrt((GROUPS - 1) / GROUPS * ((d - d.mean()) ** 2).sum())
    assert np.isclose(one.high - one.value, 2.131449545559323 * error)  # Student's t, 15 degrees of freedom


def test_the_unpaired_interval_is_welch_s():
    """Of errors that differ much the degrees of freedom are nearly those of the larger one."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(2, 1 + GROUPS)) * [[0.01], [1.0]]
    (one,) = compare_runs(make_run("a", [a]), make_run("b", [b], units="other"), "mean_cosine")
    squares = [(GROUPS - 1) / GROUPS * ((x[1:] - x[1:].mean()) ** 2).sum() for x in (a, b)]
    freedom = sum(squares) ** 2 / sum(square**2 / (GROUPS - 1) for square in squares)
    assert freedom < GROUPS
    assert np.isclose(one.high - one.value, stats.t.ppf(0.975, freedom) * np.sqrt(sum(squares)), rtol=1e-9)


@pytest.mark.parametrize("same", [True, False])
def test_intervals_cover_the_difference_in_simulation(same):
    """Nominal 95 %: 300 draws, of which 93 to 97 % would be 279 to 291; six binomial standard errors are allowed."""
    rng = np.random.default_rng(2)
    big, big_unit = draw_documents(rng, units=4000)
    shift = 0.2

    def population(x, unit):
        n = np.bincount(unit).astype(float)
        direction = x / np.linalg.norm(x, axis=1, keepdims=True)
        total = direction.sum(0)
        return (total @ total - n.sum()) / (n.sum() * (n.sum() - 1))

    truth = population(big + shift, big_unit) - population(big, big_unit)
    covered = 0
    draws = 300
    for _ in range(draws):
        x, unit = draw_documents(rng)
        y = x if same else draw_documents(rng)[0]
        first = make_run("a", [mean_cosine_replicates(x, unit % GROUPS)])
        other = make_run("b", [mean_cosine_replicates(y + shift, unit % GROUPS)], units="same" if same else "other")
        (one,) = compare_runs(first, other, "mean_cosine")
        covered += one.low <= truth <= one.high
    assert 0.90 <= covered / draws <= 0.985, covered / draws


def test_layers_of_stacks_of_other_depth_are_matched_by_their_share_of_the_way():
    flat = np.full(1 + GROUPS, 0.5)
    shallow, deep = make_run("a", [flat] * 4), make_run("b", [flat] * 13)
    assert [one.layer_other for one in compare_runs(shallow, deep, "mean_cosine")] == [0, 4, 8, 12]


def test_a_group_without_vectors_of_a_place_changes_nothing_there():
    values = np.linspace(0.1, 0.2, 1 + GROUPS)
    missing = values.copy()
    missing[5] = np.nan
    (one,) = compare_runs(make_run("a", [values]), make_run("b", [missing]), "mean_cosine")
    assert np.isfinite(one.low)


def test_runs_without_replicates_or_of_other_units_are_not_compared_silently():
    values = np.linspace(0.1, 0.2, 1 + GROUPS)
    first = make_run("a", [values])
    bare = KeptRun("old", first.records)
    (one,) = compare_runs(first, bare, "mean_cosine")
    assert np.isnan(one.low)
    assert not one.paired
    assert "old kept no replicates" in explain_pairing(first, bare)
    assert "different units" in explain_pairing(first, make_run("b", [values], units="other"))


def test_a_metric_that_a_run_lacks_is_refused_with_near_names():
    run = make_run("a", [np.ones(1 + GROUPS)])
    with pytest.raises(UsageError, match="mean_cosine"):
        compare_runs(run, run, "mean_cosin")
    heads = make_run("h", [np.ones(1 + GROUPS)], metric="attention.entropy", head=2)
    with pytest.raises(UsageError, match="--heads"):
        compare_runs(heads, heads, "attention.entropy")
    (one,) = compare_runs(heads, heads, "attention.entropy", heads=True)
    assert one.where["head"] == 2


def test_replicates_come_back_from_the_disk(tmp_path):
    left_out = np.random.default_rng(0).normal(size=(3, GROUPS))
    write_replicates(tmp_path / "replicates.parquet", np.array([0, 2, 5]), left_out)
    found = read_replicates(tmp_path, 6)
    np.testing.assert_array_equal(found[[0, 2, 5]], left_out)
    assert np.isnan(found[[1, 3, 4]]).all()
    assert read_replicates(tmp_path / "nowhere", 6) is None


@pytest.mark.parametrize(
    ("text", "met"),
    [("A.last > +.02", False), ("A > .02", True), ("A.0 > .02", True), ("A.max>0.2", False), ("A.min < -.05", True)],
)
def test_conditions(text, met):
    flat = np.zeros(1 + GROUPS)
    runs = [make_run("a", [flat] * 3), make_run("b", [flat + 0.1, flat - 0.1, flat + 0.01])]
    assert parse_condition(text).is_met(compare_runs(*runs, "mean_cosine"))[0] is met


@pytest.mark.parametrize("text", ["A", "A >= 3", "> 3", "A > x"])
def test_a_condition_that_cannot_be_read_is_refused(text):
    with pytest.raises(UsageError, match="--fail-if"):
        parse_condition(text)


def test_a_condition_counts_only_what_its_whole_interval_supports():
    rng = np.random.default_rng(3)
    noisy = np.concatenate([[0.05], 0.05 + rng.normal(size=GROUPS) * 0.05])
    runs = [make_run("a", [np.zeros(1 + GROUPS)]), make_run("b", [noisy])]
    differences = compare_runs(*runs, "mean_cosine")
    assert differences[0].value > 0.02 > differences[0].low
    assert not Condition("", "mean_cosine", "any", ">", 0.02).is_met(differences)[0]
    low, high = differences[0].low, differences[0].high
    for sign, limit, met in ((">", low - 1e-9, True), (">", low + 1e-9, False)):
        assert Condition("", "mean_cosine", "any", sign, limit).is_met(differences)[0] is met
    for sign, limit, met in (("<", high + 1e-9, True), ("<", high - 1e-9, False)):
        assert Condition("", "mean_cosine", "any", sign, limit).is_met(differences)[0] is met
    assert list(tabulate_differences(differences)["difference"]) == [0.05]


def measure_to(folder, x, units):
    anisoscope.measure(x, units=units, output=folder)
    return open_kept_run(folder)


def test_measured_runs_of_the_same_units_are_paired(tmp_path):
    rng = np.random.default_rng(0)
    x, units = draw_documents(rng, units=20)
    first = measure_to(tmp_path / "a", x, units)
    second = measure_to(tmp_path / "b", x + 0.03, units)
    (one,) = [one for one in compare_runs(first, second, "mean_cosine") if one.where["token_policy"] == "all"]
    assert one.paired
    assert one.low > 0
    others = measure_to(tmp_path / "c", x[:-12], units[:-12])
    (apart,) = compare_runs(first, others, "mean_cosine")
    assert not apart.paired


def test_replicates_of_a_run_give_its_own_intervals(tmp_path):
    x, units = draw_documents(np.random.default_rng(1), units=20)
    run = measure_to(tmp_path / "a", x, units)
    checked = 0
    for row, left_out in zip(run.records.itertuples(), run.replicates, strict=True):
        present = left_out[~np.isnan(left_out)]
        if row.metric in ("drift.norm", "spectrum.effective_rank", "calibrated.centred") and len(present) > 2:
            error = np.sqrt((len(present) - 1) / len(present) * ((present - present.mean()) ** 2).sum())
            assert row.high >= row.value
            assert (row.high > row.value) == (error > 0)
            checked += 1
    assert checked
