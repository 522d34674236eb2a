"""Differences between runs: paired by unit where units are the same; what they say is compared with simulation."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

import anisoscope
from anisoscope.errors import MeasureError, UsageError
from anisoscope.metrics import mean_cosine
from anisoscope.report.comparison import _build_lines, _collect_values
from anisoscope.runs.comparison import compare, describe_met, list_cautions
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
from anisoscope.runs.layers_of_heads import average_heads
from anisoscope.store import as_records
from anisoscope.sums.groups import Totals

GROUPS = 16


def make_run(
    name, values, *, layers=None, units="same", metric="mean_cosine", head=None
):
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
    (unpaired,) = compare_runs(
        first, make_run("b", [after], units="others"), "mean_cosine"
    )
    assert unpaired.low < 0 < unpaired.high
    assert unpaired.value == paired.value == after[0] - before[0]
    assert "Paired by unit" in explain_pairing(first, second)


def test_the_paired_interval_is_the_jackknife_of_the_difference():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 1 + GROUPS))
    (one,) = compare_runs(make_run("a", [a]), make_run("b", [b]), "mean_cosine")
    d = (b - a)[1:]
    error = np.sqrt((GROUPS - 1) / GROUPS * ((d - d.mean()) ** 2).sum())
    assert np.isclose(
        one.high - one.value, 2.131449545559323 * error
    )  # Student's t, 15 degrees of freedom


def test_the_unpaired_interval_is_welch_s():
    """Of errors that differ much the degrees of freedom are nearly those of the larger one."""
    rng = np.random.default_rng(4)
    a, b = rng.normal(size=(2, 1 + GROUPS)) * [[0.01], [1.0]]
    (one,) = compare_runs(
        make_run("a", [a]), make_run("b", [b], units="other"), "mean_cosine"
    )
    squares = [
        (GROUPS - 1) / GROUPS * ((x[1:] - x[1:].mean()) ** 2).sum() for x in (a, b)
    ]
    freedom = sum(squares) ** 2 / sum(square**2 / (GROUPS - 1) for square in squares)
    assert freedom < GROUPS
    assert np.isclose(
        one.high - one.value,
        stats.t.ppf(0.975, freedom) * np.sqrt(sum(squares)),
        rtol=1e-9,
    )


# `test_benchmarks.py` simulates the same intervals, over paired and other units; what is compared is seen above
@pytest.mark.nightly
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
        other = make_run(
            "b",
            [mean_cosine_replicates(y + shift, unit % GROUPS)],
            units="same" if same else "other",
        )
        (one,) = compare_runs(first, other, "mean_cosine")
        covered += one.low <= truth <= one.high
    assert 0.90 <= covered / draws <= 0.985, covered / draws


def test_layers_of_stacks_of_other_depth_are_matched_by_their_share_of_the_way():
    flat = np.full(1 + GROUPS, 0.5)
    shallow, deep = make_run("a", [flat] * 4), make_run("b", [flat] * 13)
    assert [one.layer_other for one in compare_runs(shallow, deep, "mean_cosine")] == [
        0,
        4,
        8,
        12,
    ]


def test_a_group_without_vectors_of_a_place_changes_nothing_there():
    values = np.linspace(0.1, 0.2, 1 + GROUPS)
    missing = values.copy()
    missing[5] = np.nan
    (one,) = compare_runs(
        make_run("a", [values]), make_run("b", [missing]), "mean_cosine"
    )
    assert np.isfinite(one.low)
    # Left out, the group changes the first run alone, by as much as it does there.
    without = missing - values
    without[5] = values[0] - values[5]
    error = np.sqrt(
        (GROUPS - 1) / GROUPS * ((without[1:] - without[1:].mean()) ** 2).sum()
    )
    assert np.isclose(
        one.high - one.value, 2.131449545559323 * error
    )  # Student's t, 15 degrees of freedom


def test_runs_without_replicates_or_of_other_units_are_not_compared_silently():
    values = np.linspace(0.1, 0.2, 1 + GROUPS)
    first = make_run("a", [values])
    bare = KeptRun("old", first.records)
    (one,) = compare_runs(first, bare, "mean_cosine")
    assert np.isnan(one.low)
    assert not one.paired
    assert "old kept no replicates" in explain_pairing(first, bare)
    assert "different units" in explain_pairing(
        first, make_run("b", [values], units="other")
    )


def make_drift():
    """A run of two values of one metric."""
    parts = [
        make_run("d", [np.ones(1 + GROUPS)], metric=f"drift.{name}")
        for name in ("norm", "share")
    ]
    records = pd.concat([part.records for part in parts], ignore_index=True)
    return KeptRun(
        "d", records, np.concatenate([part.replicates for part in parts]), "same"
    )


def test_a_metric_that_a_run_lacks_is_refused_with_near_names():
    run = make_run("a", [np.ones(1 + GROUPS)])
    with pytest.raises(UsageError, match="mean_cosine"):
        compare_runs(run, run, "mean_cosin")
    with pytest.raises(UsageError, match=r"did you mean anisotropy\?"):
        compare_runs(run, run, "anisotrpy")
    heads = make_run("h", [np.ones(1 + GROUPS)], metric="attention.entropy", head=2)
    with pytest.raises(UsageError, match="leave --heads out"):
        compare_runs(run, run, "mean_cosine", heads=True)
    with pytest.raises(UsageError, match=r"drift\.norm or drift\.share"):
        compare_runs(make_drift(), make_drift(), "drift")
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
    [
        ("A.last > +.02", False),
        ("A > .02", True),
        ("A.0 > .02", True),
        ("A.max>0.2", False),
        ("A.min < -.05", True),
    ],
)
def test_conditions(text, met):
    flat = np.zeros(1 + GROUPS)
    runs = [
        make_run("a", [flat] * 3),
        make_run("b", [flat + 0.1, flat - 0.1, flat + 0.01]),
    ]
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
        assert (
            Condition("", "mean_cosine", "any", sign, limit).is_met(differences)[0]
            is met
        )
    for sign, limit, met in (("<", high + 1e-9, True), ("<", high - 1e-9, False)):
        assert (
            Condition("", "mean_cosine", "any", sign, limit).is_met(differences)[0]
            is met
        )
    assert list(tabulate_differences(differences)["difference"]) == [0.05]


def measure_to(folder, x, units):
    anisoscope.measure(x, units=units, output=folder)
    return open_kept_run(folder)


def test_measured_runs_of_the_same_units_are_paired(tmp_path):
    rng = np.random.default_rng(0)
    x, units = draw_documents(rng, units=20)
    first = measure_to(tmp_path / "a", x, units)
    second = measure_to(tmp_path / "b", x + 0.03, units)
    (one,) = [
        one
        for one in compare_runs(first, second, "mean_cosine")
        if one.where["token_policy"] == "all"
    ]
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
        if (
            row.metric
            in ("drift.norm", "spectrum.effective_rank", "calibrated.centred")
            and len(present) > 2
        ):
            error = np.sqrt(
                (len(present) - 1)
                / len(present)
                * ((present - present.mean()) ** 2).sum()
            )
            assert row.high >= row.value
            assert (row.high > row.value) == (error > 0)
            checked += 1
    assert checked


# ---- comparisons: what is said of runs, and what a comparison gives ----


def make_manifest(**changes):
    corpus = {
        "name": "docs",
        "fingerprint": "f",
        "max_length": 128,
        "limit": None,
        "n_units": 16,
    }
    settings = {
        "documents": "auto",
        "shard": [0, 1],
        "settings": {"seed": 0, "sample": 2048, "layers": []},
    }
    found = {
        "corpus": corpus,
        "settings": settings,
        "dtype": "float32",
        "plan": "p",
        "code": {"version": "1"},
    }
    return found | {"units": "u"} | changes


def make_kept(name, values=None, **changes):
    run = make_run(name, values or [np.linspace(0.1, 0.2, 1 + GROUPS)])
    return KeptRun.of(name, run.records, make_manifest(**changes), run.replicates)


OTHER_CORPUS = {"name": "news", "fingerprint": "g", "max_length": 128}
CAUTIONS = {
    "Another corpus (a: docs; b: news)": {"corpus": OTHER_CORPUS, "units": "v"},
    "Other --limit (a: none; b: 8)": {
        "corpus": make_manifest()["corpus"] | {"limit": 8}
    },
    "as other tokens (another tokenizer)": {"plan": "q"},
    "as other tokens (windows of 128 and 64 tokens)": {
        "plan": "q",
        "corpus": make_manifest()["corpus"] | {"max_length": 64},
    },
    "Another dtype (a: float32; b: bfloat16)": {"dtype": "bfloat16"},
    "Other vectors were sampled (--seed) (a: 0; b: 1)": {
        "settings": {"settings": {"seed": 1}}
    },
    "b is shard 1 of 2": {"settings": {"shard": [0, 2]}},
    "Measured by other versions (a: 1; b: 2)": {"code": {"version": "2"}},
    "other code of the same version": {"code": {"version": "1", "sources": "y"}},
}


@pytest.mark.parametrize("expected", CAUTIONS)
def test_what_sets_runs_apart_is_said(expected):
    first = make_kept("a", code={"version": "1", "sources": "x"})
    alike = list_cautions(
        first, make_kept("b", code={"version": "1", "sources": "x"}), (object(),) * 0
    )
    assert alike == [
        "Paired by unit: both runs measured the same units.",
        "No layer in common.",
    ]
    notes = list_cautions(first, make_kept("b", **CAUTIONS[expected]))
    assert any(expected in note for note in notes), notes


def test_shards_of_one_run_saw_other_units():
    """Both parts of one run have the corpus in common and no document."""
    parts = [make_kept(name, settings={"shard": [i, 2]}) for i, name in enumerate("ab")]
    assert "different units" in explain_pairing(*parts)


def test_only_some_layers_are_matched_by_their_numbers():
    """Layers 0 and 2 of a model of 12 were taken for its input and its output."""
    flat = np.full(1 + GROUPS, 0.5)
    whole = make_run("a", [flat] * 5)
    some = make_run("b", [flat] * 2, layers=[0, 2])
    some = KeptRun(
        some.name,
        some.records,
        some.replicates,
        "same",
        {"settings": {"settings": {"layers": [0, 2]}}},
    )
    assert [one.layer_other for one in compare_runs(whole, some, "A")] == [0, 2]
    lacking = make_run("b", [flat] * 4, layers=[0, 1, 2, 4])
    assert [one.where["layer"] for one in compare_runs(whole, lacking, "A")] == [
        0,
        1,
        2,
        4,
    ]


def test_final_norms_are_compared_with_each_other_even_if_layers_are_matched_by_number():
    """One comes after 4 blocks, the other after 12, of which only 0 and 2 were measured."""
    flat = np.full(1 + GROUPS, 0.5)
    runs = []
    for name, layers in (("a", [0, 2, 4]), ("b", [0, 2, 12])):
        kept = make_run(name, [flat] * 3, layers=layers)
        records = kept.records.assign(site=["hidden", "hidden", "final"])
        runs.append(
            KeptRun(
                name,
                records,
                kept.replicates,
                "same",
                {"settings": {"settings": {"layers": [0, 2]}}},
            )
        )
    found = compare_runs(*runs, "A")
    assert [(one.where["site"], one.layer_other) for one in found] == [
        ("hidden", 0),
        ("hidden", 2),
        ("final", 12),
    ]


def test_an_encoder_stands_beside_a_decoder():
    flat = np.full(1 + GROUPS, 0.5)
    encoder, decoder = make_run("a", [flat] * 3), make_run("b", [flat + 0.1] * 3)
    decoder = KeptRun(
        "b", decoder.records.assign(stack="decoder"), decoder.replicates, "same"
    )
    found = compare([encoder, decoder])
    assert len(found.table) == 3
    assert any(
        "Stacks of other kinds (a: encoder; b: decoder)" in note for note in found.notes
    )


def make_heads(name, values, metric="attention.first_mass"):
    """One layer whose heads have the given replicates."""
    parts = [
        make_run(name, [one], layers=[1], metric=metric, head=head)
        for head, one in enumerate(values)
    ]
    records = pd.concat([part.records for part in parts], ignore_index=True)
    return KeptRun(
        name, records, np.concatenate([part.replicates for part in parts]), "same"
    )


def test_a_mean_over_heads_is_the_jackknife_of_the_mean():
    """Heads that move against each other have a mean that does not move."""
    rng = np.random.default_rng(0)
    wave = 0.02 * rng.normal(size=1 + GROUPS)
    wave[0] = 0
    run = make_heads("a", [0.3 + wave, 0.5 - wave])
    rows, left_out = average_heads(run.records, run.replicates)
    (row,) = rows.itertuples()
    assert row.value == pytest.approx(0.4)
    assert row.high - row.low < 1e-12
    assert pd.isna(row.head)
    together = make_heads("b", [0.3 + wave, 0.5 + wave])
    (row,) = average_heads(together.records, together.replicates)[0].itertuples()
    error = np.sqrt((GROUPS - 1) / GROUPS * ((wave[1:] - wave[1:].mean()) ** 2).sum())
    assert row.high - row.value == pytest.approx(
        2.131449545559323 * error, rel=0.1
    )  # on the logit scale
    np.testing.assert_allclose(left_out, np.full((1, GROUPS), 0.4))
    (one,) = compare_runs(
        run, make_heads("b", [0.35 + wave, 0.55 - wave]), "attention.first_mass"
    )
    assert one.value == pytest.approx(0.05)
    (row,) = average_heads(run.records)[0].itertuples()
    assert np.isnan(row.low)


def test_heads_come_layer_by_layer_as_in_the_records():
    """All layers of head 0 came first."""
    runs = [make_heads(name, [np.full(1 + GROUPS, 0.3)] * 4) for name in "ab"]
    for run in runs:
        run.records["layer"] = [1, 1, 2, 2]
        run.records["head"] = [0, 1, 0, 1]
    found = compare_runs(*runs, "attention.first_mass", heads=True)
    assert [(one.where["layer"], one.where["head"]) for one in found] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_aligned_and_opposite_heads_do_not_cancel():
    run = make_heads(
        "a",
        [np.full(1 + GROUPS, 0.9), np.full(1 + GROUPS, -0.9)],
        metric="query_key.cosine",
    )
    assert average_heads(run.records, run.replicates)[0][
        "value"
    ].tolist() == pytest.approx([0.9])
    # Sizes that move against each other have a mean that does not move, whatever the signs.
    wave = 0.02 * np.random.default_rng(0).normal(size=1 + GROUPS)
    wave[0] = 0
    run = make_heads("a", [0.5 + wave, wave - 0.5], metric="query_key.cosine")
    (row,) = average_heads(run.records, run.replicates)[0].itertuples()
    assert row.value == pytest.approx(0.5) and row.high - row.low < 1e-12


def test_a_comparison_says_what_differs_and_judges_conditions():
    rng = np.random.default_rng(0)
    wave = 0.001 * rng.normal(size=(3, 1 + GROUPS))
    wave[:, 0] = 0
    found = compare(
        [
            make_kept("a", list(0.5 + wave)),
            make_kept("b", list(0.5 + wave[::-1] + [[0.1], [-0.1], [0]])),
        ]
    )
    (finding,) = found.findings
    assert finding.text.startswith(
        "b against a: more anisotropic at layer 0 (.600 against .500: +.100 [+.0"
    )
    assert ", paired); less anisotropic at layer 1 (" in finding.text
    assert finding.text.endswith("no clear difference at layer 2.")
    assert found.judge("A.last > 0") == []
    ((name, beyond),) = found.judge("anisotropy.first > .05")
    assert (name, len(beyond)) == ("b", 1)
    assert describe_met("A > .05", name, beyond).startswith(
        "A > .05 is met by ‘b’: +.100 [+.0"
    )


def test_a_condition_that_nothing_can_judge_does_not_pass():
    """Runs without a layer in common passed every condition."""
    first = make_kept("a")
    other = make_kept("b")
    other = KeptRun.of(
        "b", other.records.assign(site="final"), make_manifest(), other.replicates
    )
    with pytest.raises(MeasureError, match="no layer in common"):
        compare([first, other]).judge("A > .1")
    undefined = KeptRun.of(
        "b", first.records.assign(value=np.nan), make_manifest(), first.replicates
    )
    with pytest.raises(MeasureError, match="defined in both"):
        compare([first, undefined]).judge("A > .1")


def test_runs_without_replicates_are_told_apart_by_gaps():
    rows = make_run("a", [np.full(1 + GROUPS, 0.5)]).records
    old = [
        KeptRun(name, rows.assign(low=low, high=low + 0.1))
        for name, low in (("a", 0.4), ("b", 0.7))
    ]
    found = compare(old)
    assert "more anisotropic at layer 0" in found.findings[0].text
    assert any("kept no replicates" in note for note in found.notes)


@pytest.mark.parametrize("joined", [[True, True], [True, False]])
def test_a_diamond_is_explained_only_if_a_figure_has_one(joined):
    frame = pd.DataFrame(
        {
            "panel": "",
            "run": "a",
            "depth": [0.0, 1.0],
            "value": [0.1, 0.2],
            "n": 9,
            "joined": joined,
        }
    )
    figure = _build_lines("values", "A of every run", frame, ("depth", "A"), True)
    assert ("diamond" in figure.caption) is (not all(joined))


@pytest.mark.parametrize("stacks", [("encoder",), ("encoder", "decoder")])
def test_stacks_are_drawn_apart_where_a_run_has_several(stacks):
    """An encoder beside a decoder shares its panel; the encoder and the decoder of one model do not."""
    runs = []
    for name in "ab":
        parts = [make_run(name, [np.full(1 + GROUPS, 0.5)] * 3) for _ in stacks]
        records = pd.concat(
            [x.records.assign(stack=s) for x, s in zip(parts, stacks, strict=True)],
            ignore_index=True,
        )
        runs.append(
            KeptRun(
                name, records, np.concatenate([x.replicates for x in parts]), "same"
            )
        )
    drawn = _collect_values(compare(runs))
    assert drawn["panel"].unique().tolist() == ([*stacks] if len(stacks) > 1 else [""])


def test_a_comparison_of_three_runs_has_a_page_and_pictures(tmp_path):
    x, units = draw_documents(np.random.default_rng(0), units=20)
    layers = {"first": x, "second": x + 0.5}
    runs = [
        anisoscope.measure({k: y + shift for k, y in layers.items()}, units=units)
        for shift in (0, 0.03, -0.03)
    ]
    found = anisoscope.compare(*runs)
    assert found.table()["run"].unique().tolist() == ["vectors (2)", "vectors (3)"]
    assert found.differences["paired"].all()
    assert any("Paired by row" in note for note in found.notes)
    assert found.fails("A.last > 0")
    assert found.explain("A.max > 9") == []
    assert found.figures == ["values", "differences"]
    chart = found.plot().to_dict()
    assert {row["run"] for rows in chart["datasets"].values() for row in rows} == {
        "vectors",
        "vectors (2)",
        "vectors (3)",
    }
    with pytest.raises(UsageError, match="differences"):
        found.plot("diferences")
    page = found.report(tmp_path / "page").read_text("utf-8")
    assert found.findings[0].text in page.replace("&#39;", "'")
    assert "http" not in page.replace("http-equiv", "").split("<svg", 1)[0]
    assert (tmp_path / "page" / "figures" / "values.svg").exists()
    kept = pd.read_parquet(tmp_path / "page" / "differences.parquet")
    assert len(kept) == len(found.differences)
    assert "<table" in found._repr_html_()


def test_what_a_run_in_memory_kept_is_saved_with_it(tmp_path):
    x, units = draw_documents(np.random.default_rng(0), units=20)
    run = anisoscope.measure(x, units=units)
    saved = run.save(tmp_path / "kept")
    np.testing.assert_array_equal(saved.replicates, run.replicates)
    assert anisoscope.compare(run, saved).differences["paired"].all()


def test_inputs_of_the_same_content_are_paired():
    """Before and after a training, on tensors of one's own: it was not known which units they were."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), torch.randn(40, 5, 8)
    before = anisoscope.measure(model, x, panel="hidden", blocks="Linear")
    with torch.no_grad():
        model[0].bias += 0.5
    after = anisoscope.measure(model, x, panel="hidden", blocks="Linear")
    assert anisoscope.compare(before, after).differences["paired"].all()
    other = anisoscope.measure(
        model, torch.randn(40, 5, 8), panel="hidden", blocks="Linear"
    )
    assert not anisoscope.compare(before, other).differences["paired"].any()


def test_a_run_says_what_state_it_keeps_and_keeps_none_if_asked(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3, 5)).astype(np.float32)
    kept = anisoscope.measure(x, panel="hidden", output=tmp_path / "kept")
    none = anisoscope.measure(
        x, panel="hidden", no_state=True, output=tmp_path / "none"
    )
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "kept").iterdir()}
    names = ("reservoir.safetensors", "replicates.parquet")
    assert kept.manifest["state_bytes"] == {name: sizes[name] for name in names}
    assert none.manifest["state_bytes"] == {}
    assert not {path.name for path in (tmp_path / "none").iterdir()} & {*names}
    assert none.records["value"].equals(kept.records["value"])
    again = anisoscope.measure(x, panel="hidden", output=tmp_path / "none", resume=True)
    assert again.manifest["state_bytes"] == {}  # the same run: it is not measured again
