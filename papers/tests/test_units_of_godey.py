"""Small decisions of the studies of Godey et al. 2024, each on a few numbers that are all unlike."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from anisoscope.errors import CorpusError, ModelError, OutputError, UsageError
from anisoscope.models.series import Checkpoint
from anisoscope.runs.job import Job
from anisoscope.store import as_records
from anisoscope.sums.isotropic import cosine_quantile, mean_cosine_quantile, q95
from anisoscope.sums.jackknife import estimate_over_seeds, holm, jackknife_interval
from anisoscope_papers import study_charts
from anisoscope_papers.godey2024 import (
    checkpoints,
    fig01_04_layers,
    fig05_16_drift,
    fig06_bias,
    fig07_scores,
    fig08_10_attention,
    fig11_12_trajectories,
    fig13_14_alignment,
    fig15_entropy,
    fig17_18_cosine_law,
    layer_curves,
    norm_claims,
    row_scores,
)
from anisoscope_papers.godey2024.norm_claims import Curves
from anisoscope_papers.judge import POSITIVE, compute_p_of_replicates
from anisoscope_papers.study import SIGNED, Claim, Context, Verdict
from anisoscope_papers.training.kinds import KINDS, TEXT
from anisoscope_papers.training.train_small import LONG

# ---- figures 5 and 16 ------------------------------------------------------------------------------------------------


def make_layers(model, seed=0, n=5, groups=6):
    """Return records of A and drift by layer, {metric: replicates [1 + group, layer]}; no two values are alike."""
    draw = np.random.default_rng([len(model), seed])
    found, rows = {}, []
    for metric in ("mean_cosine", "drift"):
        values = draw.uniform(0.1, 0.9, (1 + groups, n))
        # Leaving out a group moves every value by its own small number.
        values[1:] = values[0] + (values[1:] - 0.5) / 50
        found[metric] = values
        for group, layer in np.ndindex(values.shape):
            row = {"model": model, "seed": seed, "stack": "encoder", "layer": layer}
            row |= {"site": "hidden", "token_policy": "all", "n_units": 70 + seed}
            row |= {"metric": metric, "value": values[group, layer]}
            if group:
                row |= {"metric": metric + ".left_out", "component": str(group - 1)}
            rows.append(row)
    for layer in range(n):
        place = {"model": model, "seed": seed, "stack": "encoder", "layer": layer}
        place |= {"site": "hidden", "token_policy": "all"}
        bound = {"metric": "mean_cosine.isotropic_q95", "value": q95(64)}
        rows.append(place | bound)
    return rows, found


@pytest.mark.parametrize("kind", fig05_16_drift.KINDS)
def test_a_correlation_is_of_all_units_and_its_interval_of_groups_left_out(kind):
    expected, rows = {}, []
    for model, seed in (("a", 0), ("a", 1), ("other", 0)):
        of_model, found = make_layers(model, seed)
        rows += of_model
        drift, a = found["drift"], found["mean_cosine"]
        scipys = {"spearman": stats.spearmanr, "pearson": stats.pearsonr}[kind]
        r = [scipys(x, y).statistic for x, y in zip(drift, a, strict=True)]
        ends = jackknife_interval(np.array(r), bounds=SIGNED)
        test = fig05_16_drift.run_permutation_test(kind, drift[0], a[0])
        p = (test.p, test.smallest, scipys(drift[0], a[0]).pvalue, 5)
        expected[model, seed] = (r[0], *p, ends.low, ends.high, 70 + seed)
    found = fig05_16_drift.compute_correlations(as_records(pd.DataFrame(rows)), kind)
    table = fig05_16_drift.make_table(as_records(found))
    names = ["r", "p", "p_smallest", "p_scipy", "layers", "low", "high", "n_units"]
    assert len(table) == 3
    for (model, seed), values in expected.items():
        own = table[(table["model"] == model) & (table["seed"] == seed)]
        np.testing.assert_allclose(own[names].to_numpy(float)[0], values)


def test_orders_that_give_the_coefficient_that_was_seen_count():
    """One layer of ten differs: in one order of ten it is the same layer."""
    x = np.eye(10)[3]
    found = fig05_16_drift.run_permutation_test("pearson", x, x)
    assert found.p == pytest.approx(0.1, abs=0.005) and not found.exact
    small = fig05_16_drift.run_permutation_test("pearson", x[2:6], x[2:6])
    assert (small.p, small.smallest, small.exact, small.n) == (0.25, 0.25, True, 4)


@pytest.mark.parametrize("kind", fig05_16_drift.KINDS)
def test_walks_are_tested_as_scipy_tests_them(kind):
    value, low, high = fig05_16_drift.estimate_false_positive_rate(
        kind, layers=6, walks=300, seed=5
    )
    x, y = np.random.default_rng(5).standard_normal((2, 300, 6)).cumsum(-1)
    hits = sum(
        fig05_16_drift.default_p(kind, a, b) < 0.05 for a, b in zip(x, y, strict=True)
    )
    assert 0 < hits < 300 and value == hits / 300
    exact = stats.binomtest(hits, 300).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((exact.low, exact.high))


def make_table_rows(**r):
    names = ("layers", "low", "high", "n_units", "p", "p_smallest")
    rows = []
    for model, value in r.items():
        row = {"model": model, "seed": 0, "r": value, "p_scipy": 0.5}
        rows.append(row | dict(zip(names, (9, -0.5, 0.9, 50, 0.2, 0.1), strict=True)))
    return [row for _, row in pd.DataFrame(rows).iterrows()]


def test_a_system_whose_norms_are_pinned_corrects_no_other():
    rows = make_table_rows(bert=0.95, roberta=0.9, electra=0.99)
    spread = {"bert": 0.5, "roberta": 0.4, "electra": fig05_16_drift.PINNED / 2}
    norms = {model: fig05_16_drift.Norms(x, (1.0, 2.0)) for model, x in spread.items()}
    found = fig05_16_drift._judge_single_systems("spearman", rows, norms)
    p = [fig05_16_drift.walk_p("spearman", 9, r) for r in (0.95, 0.9)]
    corrected = holm(np.array(p))
    assert [v.p for v in found] == [*map(pytest.approx, corrected), None]
    assert [v.subject for v in found] == ["bert", "roberta", "electra"]
    # At the bound itself norms are not pinned.
    norms["electra"] = fig05_16_drift.Norms(fig05_16_drift.PINNED, (1.0, 2.0))
    three = [*p, fig05_16_drift.walk_p("spearman", 9, 0.99)]
    found = fig05_16_drift._judge_single_systems("spearman", rows, norms)
    assert [v.p for v in found] == pytest.approx(holm(np.array(three)).tolist())


def test_speech_is_shown_without_a_test_and_pinned_norms_without_p():
    rows = []
    for seed, r in enumerate((0.2, 0.5, 0.8)):
        row = {"seed": seed, "r": r, "layers": 9.0, "p": r / 10, "p_smallest": 0.25}
        rows.append(row | {"model": "wav2vec2-base, trained"})
    seeds = pd.DataFrame(rows)
    free, pinned = (fig05_16_drift.Norms(x, (1.0, 2.0)) for x in (0.5, 0.05))
    papers = "the paper's test over 9 layers: p 0.02, 0.05, 0.08"
    papers += " (smallest possible 0.25)"
    test = fig05_16_drift._make_test(seeds, free)
    assert test.claim == fig05_16_drift.SPEECH
    assert (test.statistic, test.n, test.subject, test.note) == (
        *("coefficient:", 3, "wav2vec2-base", papers),
    )
    assert test.value == pytest.approx(0.5) and np.isnan(test.up)
    # What is claimed of another kind is that there is no correlation: between two ends.
    for model, claim in (
        ("gpt2, trained", fig05_16_drift.NONE),
        ("small token LM, trained", fig05_16_drift.TEXT),
    ):
        of_model = seeds.assign(model=model)
        test = fig05_16_drift._make_test(of_model, free)
        assert test.claim == claim and not np.isnan(test.up)
        assert test.statistic.startswith("coefficient (claim: ")
        assert test.note.startswith(papers)
        test = fig05_16_drift._make_test(of_model, pinned)
        assert test.value == pytest.approx(0.5)
        assert np.isnan([test.up, test.down, test.against]).all()
        assert test.inside is None


def test_a_small_p_shows_a_correlation_of_what_the_paper_speaks_of():
    rows = make_table_rows(**{"bert-base": 0.9, "gpt2": 0.8, "wav2vec2-base": 0.7})
    outcomes = {}
    for row, p in product(rows, (0.04, 0.05)):
        verdict = fig05_16_drift._judge_one(row, p)
        outcomes[verdict.subject, p] = verdict.outcome
        numbers = (verdict.value, verdict.low, verdict.high, verdict.n, verdict.p)
        assert numbers == (row.r, -0.5, 0.9, 50, p)
    assert outcomes == {
        ("bert-base", 0.04): "holds",
        ("gpt2", 0.04): "fails",
        # Nothing is claimed of speech, and at the level itself nothing is shown.
        ("wav2vec2-base", 0.04): "undecided",
        **dict.fromkeys(
            ((name, 0.05) for name in ("bert-base", "gpt2", "wav2vec2-base")),
            "undecided",
        ),
    }
    fails = Verdict(fig05_16_drift.NONE.name, "fails", "r", failing="beyond")
    pinned = fig05_16_drift.Norms(0.05, (1.0, 2.0))
    found = fig05_16_drift._add_norms(fails, pinned)
    assert (found.outcome, found.failing) == ("identity", "")


def test_what_no_system_decides_is_undecided_and_nothing_is_asked_of_speech():
    of_model, _ = make_layers("bert-base", 0, n=4)
    records = as_records(pd.DataFrame(of_model))
    found = fig05_16_drift.compute_correlations(records, "spearman")
    both = pd.concat([records, as_records(found)], ignore_index=True)
    verdicts = fig05_16_drift.judge(both)
    assert [v.claim for v in verdicts if v.statistic == "not measured"] == [
        *(fig05_16_drift.VISION.name, fig05_16_drift.NONE.name),
    ]


def test_two_layers_have_a_p_of_1_and_one_has_none():
    x = np.array([1.0, 2.0])
    two = fig05_16_drift.run_permutation_test("pearson", x, x)
    assert (two.p, two.smallest, two.exact, two.n) == (1.0, 1.0, True, 2)
    one = fig05_16_drift.run_permutation_test("pearson", x[:1], x[:1])
    assert np.isnan([one.p, one.smallest]).all() and (one.exact, one.n) == (True, 1)
    many = fig05_16_drift.run_permutation_test("pearson", np.ones(10), np.arange(10.0))
    assert np.isnan(many.p) and not many.exact


def test_two_seeds_of_a_system_are_judged_together_and_one_by_walks():
    rows = []
    for model, seeds in (("bert, trained", (0, 1)), ("roberta", (0,))):
        for seed in seeds:
            of_model, _ = make_layers(model, seed, n=4)
            rows += of_model
    untrained, _ = make_layers("bert, untrained", 0, n=4)
    records = as_records(pd.DataFrame(rows + untrained))
    found = fig05_16_drift.compute_correlations(records, "pearson")
    both = pd.concat([records, as_records(found)], ignore_index=True)
    verdicts = [v for v in fig05_16_drift.judge(both) if v.subject]
    assert [(v.subject, v.n) for v in verdicts] == [("bert", 2), ("roberta", 70)]
    r = found[found["metric"] == "correlation.pearson"].set_index(["model", "seed"])
    assert verdicts[0].value == pytest.approx(r["value"]["bert, trained"].mean())
    assert verdicts[1].value == pytest.approx(r["value"]["roberta", 0])
    p = fig05_16_drift.walk_p("pearson", 4, float(r["value"]["roberta", 0]))
    assert verdicts[1].p == pytest.approx(p)


def test_records_that_figures_share_count_once(monkeypatch, tmp_path):
    relu = layer_curves.Systems(relus=("ReLU", "conv"))
    figures = (
        layer_curves.Systems(models=("a",), others=(relu, layer_curves.Systems())),
        layer_curves.Systems(models=("b",)),
    )
    rows = {name: make_layers(name)[0] for name in ("shared", "a", "b")}
    asked = []

    def measure(systems, context):
        asked.append((systems.models, systems.others, context))
        own = rows[systems.models[0]]
        return as_records(pd.DataFrame([*rows["shared"], *own]))

    monkeypatch.setattr(layer_curves, "measure", measure)
    monkeypatch.setattr(
        fig05_16_drift, "estimate_false_positive_rate", lambda _: (0.5, 0.4, 0.6)
    )
    context = Context(tmp_path, tmp_path)
    found = fig05_16_drift.measure(
        fig05_16_drift.Correlated("spearman", figures), context
    )
    others = (layer_curves.Systems(),)
    assert asked == [(("a",), others, context), (("b",), (), context)]
    measured = found[~found["metric"].str.contains("correlation|false")]
    assert len(measured) == 3 * len(rows["a"])
    assert found["metric"].eq("correlation.spearman").sum() == 3
    (walks,) = found[found["model"] == "random walks"].to_dict("records")
    numbers = [walks[name] for name in ("metric", "value", "low", "high")]
    assert numbers == ["false_positive_rate.spearman", 0.5, 0.4, 0.6]


def test_seeds_of_one_system_have_rows_of_their_own(monkeypatch):
    rows = []
    for model, seed, n in (("c", 0, 1), ("a", 0, 2), ("a", 3, 5), ("b", 3, 5)):
        of_model, _ = make_layers(model, seed, n=n)
        rows += of_model
    found = fig05_16_drift.compute_correlations(
        as_records(pd.DataFrame(rows)), "pearson"
    )
    given = []
    monkeypatch.setattr(
        fig05_16_drift, "draw_p_values", lambda data, level: given.append((data, level))
    )
    charts = fig05_16_drift.draw("fig16", as_records(found))
    ((data, level),) = given
    assert list(charts) == ["fig16"] and level == fig05_16_drift.LEVEL
    names = [name.replace(".0", "") for name in data["system"]]
    # A single layer has no p and no row; two have one, which scipy does not give.
    assert names == ["a, seed 0", "a, seed 3", "b"]
    assert data["p_scipy"].isna().tolist() == [True, False, False]
    by_name = dict(zip(found["metric"], found["value"], strict=True))
    last = data.iloc[-1]
    assert last["p"] == by_name["correlation.pearson.p"]
    assert last["p_smallest"] == by_name["correlation.pearson.p_smallest"]
    assert last["p_scipy"] == by_name["correlation.pearson.p_scipy"]


# ---- figure 6 --------------------------------------------------------------------------------------------------------

NORMS = (0.0, 1.0, 31.62)
WIDE = {"net": "uniform inputs 4 × 9 × 64", "gpt2": "uniform inputs 4 × 9 × 16"}


def make_block(layers=(0, 1, 2), heads=0):
    """Return records of untrained blocks, and {(system, metric, layer, seed, N): value}."""
    draw, values, rows = np.random.default_rng(0), {}, []
    for system, metric, layer, seed, norm in product(
        WIDE, ("mean_cosine", "drift", "norms.mean"), layers, range(4), NORMS
    ):
        value = draw.uniform(0.2, 0.8)
        values[system, metric, layer, seed, norm] = value
        place = {"model": system, "corpus": WIDE[system], "seed": seed, "layer": layer}
        place |= {"site": "hidden", "metric": metric, "component": f"{norm:g}"}
        rows.append(place | {"value": value})
        rows += [
            place | {"head": head, "value": value + (head - 1) / (seed + 2)}
            for head in range(heads)
        ]
    return rows, values


def test_a_of_the_output_less_a_of_the_input_is_paired_by_seed():
    rows, values = make_block()
    found = fig06_bias._subtract_input(as_records(pd.DataFrame(rows)))
    assert len(found) == len(WIDE) * len(NORMS)
    for system, norm in product(WIDE, NORMS):
        differences = [
            values[system, "mean_cosine", 2, seed, norm]
            - values[system, "mean_cosine", 0, seed, norm]
            for seed in range(4)
        ]
        one = found[(found["reading"] == system) & (found["N"] == norm)]
        # The difference of two cosines lies between −2 and 2.
        ends = estimate_over_seeds(np.array(differences), bounds=(-2.0, 2.0))
        assert one[["value", "low", "high"]].to_numpy()[0] == pytest.approx(ends)
        assert ends.value == pytest.approx(np.mean(differences))


def make_trained(model, width, norms):
    """Records of trained layers: the first is the input of the blocks."""
    rows = []
    for layer, norm in enumerate(norms):
        place = {"model": model, "site": "hidden", "layer": layer, "corpus": "text"}
        rows.append(place | {"metric": "drift", "value": norm})
        rows.append(place | {"metric": "norms.mean", "value": 3 * norm})
        bound = {"metric": "mean_cosine.isotropic_q95", "value": q95(width)}
        rows.append(place | bound)
    return rows


TRAINED = [
    *make_trained("bert", 16, (80.0, 4.0, 12.0)),
    *make_trained("gpt2-small", 64, (0.1, 2.0, 6.0)),
]


def test_norms_of_trained_layers_are_shares_of_the_root_of_their_width():
    blocks, _ = make_block()
    records = as_records(pd.DataFrame([*blocks, *TRAINED]))
    expected = {"drift": (1.0, 3.0, 0.25, 0.75), "norms.mean": (3, 9, 0.75, 2.25)}
    for metric, shares in expected.items():
        found = fig06_bias._select_trained_share(records, metric)
        assert found["share"].tolist() == pytest.approx(list(shares))
        # In the width of the first untrained system: 64.
        band = fig06_bias._find_trained_band(records, metric)
        assert band == pytest.approx((8 * min(shares), 8 * max(shares)))
    none = as_records(pd.DataFrame(blocks))
    assert fig06_bias._find_trained_band(none, "drift") is None
    alone = as_records(pd.DataFrame(TRAINED))
    assert fig06_bias._find_trained_band(alone, "drift") is None


def make_fixed(system, kind, crossed):
    """Records of the fixed points of each seed, `crossed`: [(N*, norm there) of each crossing]."""
    rows = []
    for seed, points in enumerate(crossed):
        place = {"model": system, "corpus": WIDE[system], "seed": seed}
        place |= {"site": "hidden"}
        name = f"fixed_point.{kind}"
        rows.append(place | {"metric": f"{name}.crossings", "value": len(points)})
        for number, (at, norm) in enumerate(points, start=1):
            place["component"] = str(number)
            rows.append(place | {"metric": name, "value": at})
            rows.append(place | {"metric": f"{name}.norm", "value": norm})
    return rows


CROSSED = [[(4.0, 6.0)], [(5.0, 7.0), (50.0, 90.0)], [], [(7.0, 9.5)]]


def test_the_order_of_a_norm_is_its_ratio_to_the_mean_of_trained_layers():
    rows = [*TRAINED, *make_fixed("net", "mean_norm", CROSSED)]
    records = as_records(pd.DataFrame(rows))
    trained = fig06_bias._select_trained_share(records, "drift")
    test = fig06_bias._make_test_of_order(records, "net", trained)
    ratios = np.array([6.0, 7.0, 9.5]) / 8 / 1.25
    half = stats.t.ppf(0.975, 2) * stats.sem(np.log(ratios))
    middle = np.log(ratios).mean()
    ends = np.exp([middle, middle - half, middle + half])
    assert (test.value, test.low, test.high) == pytest.approx(tuple(ends))
    assert test.n == 3 and test.subject == "net"
    assert test.note.startswith(
        f"‖mean‖/√d = {7.5 / 8:.3f}; in trained layers of bert, gpt2-small: 0.250 to 3.000"
    )
    assert norm_claims.describe_one_more(ratios) in test.note
    none = fig06_bias._make_test_of_order(records, "gpt2", trained)
    assert none.statistic == "no fixed point" and np.isnan(none.value)


def test_marks_are_of_the_first_crossing_and_say_how_many_seeds_have_one():
    blocks, _ = make_block()
    rows = [*blocks, *make_fixed("net", "mean_norm", CROSSED)]
    every = [[(2.0, 3.0)], [(2.5, 4.0)], [(3.0, 5.0)]]
    rows += make_fixed("gpt2", "mean_norm", every)
    rows += make_fixed("net", "token_norm", [[(1.0, 1.0)]])
    found = fig06_bias._make_marks(as_records(pd.DataFrame(rows)), "mean_norm")
    first, second = found.itertuples(index=False)
    assert first[:3] == ("net", pytest.approx(16 / 3), 7.5)
    assert first.at_text.endswith("(3 of 4 seeds)")
    assert second[:3] == ("gpt2", 2.5, 4.0)
    half = stats.t.ppf(0.975, 2) * 0.5 / np.sqrt(3)
    assert second.at_text == f"N* = 2 ± {half:.0f}"


def test_a_fixed_point_is_told_with_its_crossings_and_the_norm_there():
    crossed = [[(1.0, 2.0)], [(5.0, 7.0), (50.0, 90.0)], [], [(20.0, 30.0)]]
    rows = make_fixed("net", "mean_norm", crossed)
    # Of another quantity, and of another system.
    rows += make_fixed("net", "token_norm", [[(1.0, 2.0)]] * 4)
    rows += make_fixed("gpt2", "mean_norm", [[(1.0, 3.0)]] * 4)
    records = as_records(pd.DataFrame(rows))
    found = fig06_bias._judge_fixed(fig06_bias.MEAN, records, "net")
    at, norm = np.array([1.0, 5.0, 20.0]), np.array([2.0, 7.0, 30.0])
    ends = estimate_over_seeds(at, bounds=POSITIVE)
    assert (found.value, found.low, found.high) == pytest.approx(tuple(ends))
    # Norms are not below 0.
    assert estimate_over_seeds(at).low < 0 <= ends.low
    assert (found.n, found.statistic, found.subject) == (3, "N* =", "net")
    there = estimate_over_seeds(norm, bounds=POSITIVE)
    assert found.outcome == "undecided" and found.reason == (
        "crossings: one in 2 seeds, none in 1 seeds, several in 1 seeds; "
        f"norm there 13 [{there.low:.4g}, {there.high:.4g}]; "
        + norm_claims.describe_one_more(at)
    )
    mark = fig06_bias._make_marks(records, "mean_norm").iloc[0]
    text = fig06_bias._format_with_error(*map(float, ends))
    assert mark["at_text"] == f"N* = {text} (3 of 4 seeds)"


def test_a_fixed_point_of_one_seed_alone_has_no_interval():
    """It read `norm there 6 [nan, nan]`."""
    rows = make_fixed("net", "mean_norm", [[(4.0, 6.0)], [], []])
    records = as_records(pd.DataFrame(rows))
    found = fig06_bias._judge_fixed(fig06_bias.MEAN, records, "net")
    assert found.reason == "crossings: one in 1 seeds, none in 2 seeds; norm there 6"
    assert (found.value, found.low, found.high, found.n) == (4.0, None, None, 1)


DIFFERENCE = "A of the output − A of the input"


def deep_in(row):
    """Whether a row is of a layer inside a stack, which figures 6a and 6b do not show."""
    return row["layer"] == 2 and row["metric"] == "mean_cosine"


@pytest.mark.parametrize("layers", [(0, 1), (0, 1, 2, 3)])
def test_figure_6_draws_the_input_and_the_last_output(monkeypatch, layers):
    blocks, values = make_block(layers)
    crossings = make_fixed("net", "mean_norm", CROSSED)
    crossings += make_fixed("net", "token_norm", CROSSED[:2])
    given = {}

    def keep(frame, *marks, **settings):
        name = settings["title"]
        given[name] = (frame, marks, settings)
        return name

    def keep_depth(frame, **settings):
        given["depth"] = (frame, (), settings)
        return "depth"

    monkeypatch.setattr(study_charts, "draw_against_norm", keep)
    monkeypatch.setattr(study_charts, "draw_norms", keep)
    monkeypatch.setattr(fig06_bias.charts, "layer_curve", keep_depth)
    between = [{**row, "component": "5.623"} for row in blocks[::3] if deep_in(row)]
    records = as_records(pd.DataFrame([*blocks, *crossings, *TRAINED, *between]))
    names = set(fig06_bias.draw(records))
    deep = {"fig6_depth"} if len(layers) > 2 else set()
    assert names == {
        *("fig6a", "fig6a_difference", "fig6b", "fig6b_tokens"),
        *deep,
    }
    of_metric = {
        "anisotropy A": "mean_cosine",
        "norm of the average": "drift",
        "mean norm of the tokens": "norms.mean",
    }
    for title, metric in of_metric.items():
        frame, _, _ = given[title]
        found = {
            (r.model, r.place, r.N): r.value for r in frame.itertuples(index=False)
        }
        places = {"input": 0, "output": layers[-1]}
        expected = {
            (system, place, norm): np.mean(
                [values[system, metric, places[place], s, norm] for s in range(4)]
            )
            for system, place, norm in product(WIDE, places, NORMS)
        }
        assert found == pytest.approx(expected)
    for title, metric in (("anisotropy A", "zero"), (DIFFERENCE, "scale")):
        _, _, settings = given[title]
        assert settings[metric] == {"zero": True, "scale": "log"}[metric]
    assert given[DIFFERENCE][2]["series"] == "reading"
    for title, kind, metric in (
        ("norm of the average", "mean_norm", "drift"),
        ("mean norm of the tokens", "token_norm", "norms.mean"),
    ):
        _, (marks,), settings = given[title]
        expected = fig06_bias._make_marks(records, kind)
        pd.testing.assert_frame_equal(marks, expected)
        assert settings["trained"] == fig06_bias._find_trained_band(records, metric)
    if deep:
        frame, _, settings = given["depth"]
        assert settings == {"series": "bias", "panel": "reading"}
        assert set(frame["layer"]) == set(layers) and set(frame["metric"]) == {
            "mean_cosine"
        }
        # A line for each of few N.
        assert set(frame["bias"]) == {"N = 0", "N = 1", "N = 31.62"}


# ---- claims over norms -----------------------------------------------------------------------------------------------

ANY = Claim("any", "s", "", statistic="x", floor=0.25)
VALUES = np.array([[0.1, 0.3, 0.9], [0.2, 0.5, 0.7], [0.1, 0.2, 0.6]])


def test_a_floor_is_asked_of_every_norm_unless_only_the_last_must_hold():
    curve = Curves("net", NORMS, VALUES)
    nothing = Curves("net", NORMS, 0 * VALUES)
    every = list(norm_claims.test_above(ANY, nothing, curve))
    assert ["by 0.25" in test.statistic for test in every] == [True] * 3
    last = list(norm_claims.test_trend(ANY, curve))
    assert ["by 0.25" in test.statistic for test in last] == [False, True]
    assert {test.claim for test in (*every, *last)} == {ANY}
    # The least number is the weakest if it should be large, and no margin is known else.
    assert [test.margin for test in every] == pytest.approx(VALUES.mean(0).tolist())
    below = Claim("any", "s", "", statistic="x", below=0.5)
    for test in norm_claims.test_above(below, nothing, curve):
        assert np.isnan(test.margin)
    assert all(np.isnan(test.margin) for test in last)


def test_every_claim_of_a_figure_is_judged_by_its_own_name(monkeypatch):
    claims = {
        name: Claim(name, "s", "", metric="m", site="hidden") for name in ("a", "b")
    }
    monkeypatch.setattr(norm_claims, "read_claims", lambda *_: claims)
    monkeypatch.setattr(norm_claims, "test_trends", lambda *_: [Verdict("t", "x", "")])
    asked = []
    judges = {"b": lambda *given: asked.append(given) or [Verdict("own", "x", "")]}
    found = norm_claims.judge("fig7", judges, "records")
    assert [v.claim for v in found] == ["t", "own"]
    assert asked == [(claims["b"], "records")]


def test_each_norm_has_its_own_draws_and_its_start_is_the_mean_of_the_seeds():
    (early, last) = norm_claims.test_trend(ANY, Curves("net", NORMS, VALUES))
    start = VALUES[:, 0].mean()
    for test, at in ((early, 1), (last, 2)):
        change = VALUES[:, at] - VALUES[:, 0]
        assert test.note == norm_claims.describe_one_more(change)
        assert test.statistic.startswith(f"change from N = 0 ({start:.4g}) (claim")
        assert test.words == "N hold"
    one = norm_claims.test_at_norm(ANY, Curves("net", NORMS, VALUES), 1.0, 0.2, "w")
    assert one.statistic.startswith("at N = 1 (claim: ") and one.subject == "net"
    level = np.array([[0.5, 0.5], [0.5, 0.6], [0.5, 0.4], [0.5, 0.3]])
    share = norm_claims.judge_share(ANY, Curves("net", NORMS[:2], level))
    # A curve that ends where it began does not rise.
    assert (share.value, share.reason) == (0.25, "1 seeds up, 3 down")


def test_untrained_systems_have_a_seed_and_uniform_inputs():
    rows = [
        {"model": "net", "seed": 0, "corpus": "uniform inputs 1 × 2 × 3"},
        {"model": "small, trained", "seed": 1, "corpus": "text"},
        {"model": "published", "seed": None, "corpus": "uniform texts"},
    ]
    assert norm_claims.list_systems(as_records(pd.DataFrame(rows))) == ["net"]


def test_what_has_no_heads_is_drawn_without_a_range():
    rows, _ = make_block(layers=(2,), heads=2)
    bare = [row for row in rows if "head" not in row or row["metric"] != "drift"]
    found = norm_claims.summarise_heads(as_records(pd.DataFrame(bare)))
    assert len(found) == len(WIDE) * 3 * len(NORMS)
    of_drift = (found["metric"] == "drift").tolist()
    assert found["lowest"].isna().tolist() == of_drift and any(of_drift)


def test_the_range_of_heads_is_from_the_lowest_to_the_highest_of_all_seeds():
    rows, values = make_block(layers=(2,), heads=3)
    found = norm_claims.summarise_heads(as_records(pd.DataFrame(rows)))
    assert len(found) == len(WIDE) * 3 * len(NORMS)
    for row in found.itertuples():
        own = [values[row.model, row.metric, 2, seed, row.N] for seed in range(4)]
        heads = [
            value + (head - 1) / (seed + 2)
            for (seed, value), head in product(enumerate(own), range(3))
        ]
        assert row.value == pytest.approx(np.mean(own))
        assert (row.lowest, row.highest) == pytest.approx((min(heads), max(heads)))


# ---- figure 7 --------------------------------------------------------------------------------------------------------


def test_histograms_count_scores_by_system_and_ascending_bias():
    places = {
        ("bert", "10"): {3: 7, 5: 2},
        ("bert", "3.162"): {0: 4},
        ("t5", "0"): {1: 9},
    }
    rows = [
        {"metric": "m", "model": model, "component": f"{n} {at}", "value": float(value)}
        for (model, n), bins in places.items()
        for at, value in bins.items()
    ]
    other = {"metric": "other", "model": "bert", "component": "0 0", "value": 1.0}
    found = fig07_scores._counts(pd.DataFrame([*rows, other]), "m")
    assert {system: [*counts] for system, counts in found.items()} == {
        "bert": ["N = 3.162", "N = 10"],
        "t5": ["N = 0"],
    }
    for (model, n), bins in places.items():
        counts = found[model][f"N = {n}"]
        assert len(counts) == len(fig07_scores.MIDDLES)
        assert {at: counts[at] for at in np.flatnonzero(counts)} == bins


def test_scores_are_binned_again_without_moving_them():
    """Ten scores between two edges, thirty between two others: each part lies between the edges it came from."""
    edges = row_scores.EDGES
    counts = np.zeros(row_scores.BINS)
    counts[60], counts[240] = 10, 30
    unit = 0.01
    found = fig07_scores.compute_shares(counts, unit)
    ends = np.arcsinh(edges / unit)
    middle = np.arcsinh(found["score"].to_numpy())
    # Bins are of one width on the axis, from two bins below the first to two above the last.
    assert np.diff(middle) == pytest.approx(np.full(len(middle) - 1, 0.2))
    assert middle[0] == pytest.approx(ends[60] - 0.4 + 0.1)
    assert ends[241] + 0.1 < middle[-1] < ends[241] + 0.4
    assert found["value"].sum() == pytest.approx(1)
    assert found["value"].iloc[0] == found["value"].iloc[-1] == 0
    for low, high, share in ((60, 61, 0.25), (240, 241, 0.75)):
        near = (middle + 0.1 > ends[low]) & (middle - 0.1 < ends[high])
        assert found["value"][near].sum() == pytest.approx(share)


def test_the_density_of_equal_scores_is_equal_and_keeps_its_middle():
    """Scores that are evenly spread from −1 to 1, a tenth of them below 0."""
    edges = row_scores.EDGES
    within = np.clip(edges, -1, 1)
    below = np.where(within < 0, 0.1 * (within + 1), 0.1 + 0.9 * within)
    counts = np.diff(below) * 1e6
    found = fig07_scores.estimate_density(counts, 2.0)
    x, height = found.to_numpy().T
    assert x.min() == -2 and x.max() == 2 and 0.0 in x
    assert height.max() == 1
    inner = (np.abs(x) > 0.2) & (np.abs(x) < 0.7)
    # Between edges that are joined the slope is even: left of 0 a ninth as steep as right of it.
    left, right = height[inner & (x < 0)], height[inner & (x > 0)]
    assert left == pytest.approx(right[0] / 9, rel=0.02)
    assert right == pytest.approx(right[0], rel=0.02)
    assert (height[np.abs(x) > 1.3] == 0).all()
    # No score has moved over 0.
    whole = np.trapezoid(height, x)
    share = np.trapezoid(height[x <= 0], x[x <= 0]) / whole
    assert share == pytest.approx(0.1, abs=0.005)


def test_scores_are_drawn_in_units_of_the_block_without_a_bias(monkeypatch):
    rows, rms = [], {}
    draw = np.random.default_rng(0)
    for system, seed, norm in product(WIDE, (0, 1), (0.0, 10.0, 100.0)):
        place = {"model": system, "corpus": WIDE[system], "seed": seed, "layer": 1}
        place |= {"site": "attention", "component": f"{norm:g}"}
        for metric in fig07_scores.QUANTITIES:
            value = draw.uniform(1, 2) * (1 + norm)
            rms[system, metric, seed, norm] = value
            rows.append(place | {"metric": metric, "value": value})
    for system, norm, metric in product(
        WIDE, ("0", "100", "10"), row_scores.HISTOGRAMS
    ):
        for at in (140, 150 + len(norm)):
            component = {"component": f"{norm} {at}", "value": float(at)}
            rows.append({"model": system, "metric": metric, "layer": 1} | component)
    given = []

    def keep(frame, **settings):
        given.append((frame, settings))
        return SimpleNamespace(resolve_scale=lambda **how: how)

    monkeypatch.setattr(fig07_scores.charts, "trajectory", keep)
    monkeypatch.setattr(study_charts, "draw_against_norm", keep)
    shares = fig07_scores.compute_shares
    units = []

    def note(binned, unit):
        units.append((unit, np.flatnonzero(binned).tolist()))
        return shares(binned, unit)

    monkeypatch.setattr(fig07_scores, "compute_shares", note)
    charts = fig07_scores.draw(as_records(pd.DataFrame(rows)))
    (inside, of_rows), (pooled, of_all), (spread, settings) = given
    # Scores less their row's mean have no unit that systems share.
    assert charts["fig7_within"] == {"x": "independent"}
    assert list(charts) == ["fig7", "fig7_within", "fig7_spread"]
    for asked, titles in (
        (of_rows, ("score less the mean of its row", "density / its peak")),
        (of_all, ("score / unit", "share per bin")),
    ):
        assert (asked["x"], asked["series"], asked["panel"]) == (
            *("score", "N", "reading"),
        )
        assert asked["titles"] == titles
    assert of_all["scale"] == "symlog" and "scale" not in of_rows
    assert settings["scale"] == "log"
    expected = []
    for system in WIDE:
        unit = np.mean([rms[system, fig07_scores.RMS, s, 0.0] for s in (0, 1)])
        expected += [(pytest.approx(unit), [140, 150 + n]) for n in (1, 2, 3)]
    assert units == expected
    by_system = [expected[0][0].expected, expected[3][0].expected]
    assert list(dict.fromkeys(inside["reading"])) == list(WIDE)
    assert list(dict.fromkeys(pooled["reading"])) == [
        f"{system} · unit {unit:.2g}"
        for system, unit in zip(WIDE, by_system, strict=True)
    ]
    for frame in (inside, pooled):
        assert list(dict.fromkeys(frame["N"])) == ["N = 0", "N = 10", "N = 100"]
    assert settings["series"] == "quantity"
    assert set(spread["quantity"]) == set(fig07_scores.QUANTITIES.values())
    for row in spread.itertuples():
        own = [rms[row.model, row.metric, seed, row.N] for seed in (0, 1)]
        assert row.value == pytest.approx(np.mean(own))
        assert row.quantity == fig07_scores.QUANTITIES[row.metric]


# ---- scores of rows --------------------------------------------------------------------------------------------------


def test_scores_beyond_the_outermost_edges_count_in_the_outermost_bins():
    """Three sequences of which the first is not counted; the other two have counts of their own."""
    edges = row_scores.EDGES
    inner = (edges[1:] + edges[:-1]) / 2
    scores = torch.tensor(
        [
            [[[inner[5], inner[6]], [inner[7], inner[8]]]],
            [[[edges[0] * 9, inner[150]], [inner[20], edges[-1] * 9]]],
            [[[inner[200], inner[3]], [inner[200], inner[200]]]],
        ],
        dtype=torch.float64,
    )
    masking = torch.tensor([[True, False], [True, True]])
    counted = torch.tensor([False, True, True])
    found = row_scores._counts(scores, torch.zeros(3, 1, 2), masking, counted)
    bins = [{i: int(c) for i, c in enumerate(row) if c} for row in found.tolist()]
    assert bins == [{}, {0: 1, 20: 1, 299: 1}, {200: 3}]
    shifted = torch.zeros(3, 1, 2, dtype=torch.float64)
    shifted[2, 0, 1] = float(inner[100] - inner[200])
    found = row_scores._counts(scores, shifted, masking, counted)
    assert {i: int(c) for i, c in enumerate(found[2].tolist()) if c} == {200: 1, 100: 2}


@pytest.mark.parametrize("biased", [False, True])
def test_with_a_bias_of_positions_what_a_softmax_gives_is_left_out(biased):
    draw = np.random.default_rng(0)
    names = ("score", "score_square", "within", "pairs", "some_rows", "row_median")
    terms = {
        name: draw.uniform(1, 2, (2, 3))
        for name in (*names, "entropy", "entropy_normalised")
    }
    terms["score_square"] += 5
    found = row_scores.compute_metrics(terms, biased)
    mean = terms["score"] / terms["pairs"]
    square = terms["score_square"] / terms["pairs"]
    expected = {
        "attention.score": mean,
        "attention.score_rms": square**0.5,
        "attention.score_spread": (square - mean**2) ** 0.5,
        "attention.score_spread_within": (terms["within"] / terms["pairs"]) ** 0.5,
    }
    if not biased:
        for name in ("row_median", "entropy", "entropy_normalised"):
            expected[f"attention.{name}"] = terms[name] / terms["some_rows"]
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values)


# ---- figures 8 to 10 -------------------------------------------------------------------------------------------------


def test_growth_up_to_a_fixed_point_is_read_between_logarithms():
    rows, norms = [], (0.0, 1.0, 10.0, 100.0)
    curves = np.random.default_rng(0).uniform(1, 2, (5, 4)).cumsum(1)
    # Seed 1 has no fixed point, that of seed 3 lies beyond the norms, that of 4 at the last.
    fixed = {0: 3.0, 2: 30.0, 3: 101.0, 4: 100.0}
    for seed in range(5):
        place = {"model": "net", "corpus": WIDE["net"], "seed": seed, "layer": 1}
        for norm, value in zip(norms, curves[seed], strict=True):
            row = {"metric": "attention.row_max", "site": "attention"}
            rows.append(place | row | {"component": f"{norm:g}", "value": value})
        if seed in fixed:
            row = {"metric": "fixed_point.mean_norm", "site": "hidden"}
            rows.append(place | row | {"component": "1", "value": fixed[seed]})
            rows.append(place | row | {"component": "2", "value": 0.5})
    claim = Claim("any", "s", "", metric="attention.row_max", site="attention", above=2)
    (test,) = fig08_10_attention.judge_at_fixed_point(
        claim, as_records(pd.DataFrame(rows))
    )
    expected = []
    for seed, (low, high) in {0: (1, 2), 2: (2, 3), 4: (2, 3)}.items():
        x0, x1, x = (np.log(n + 0.1) for n in (norms[low], norms[high], fixed[seed]))
        y0, y1 = curves[seed, [low, high]] / curves[seed, 0]
        expected.append(y0 + (y1 - y0) * (x - x0) / (x1 - x0))
    assert test.value == pytest.approx(np.mean(expected)) and test.n == 3
    assert test.note.startswith("ratio to N = 0; N* 3 to 100; one more draw")
    assert norm_claims.describe_one_more(np.array(expected)) in test.note
    assert "2 of 5 seeds have no number" in test.note
    assert test.statistic.startswith("at N* (claim: ")


def test_the_growth_of_both_extremes_is_in_units_of_the_row_without_a_bias():
    draw = np.random.default_rng(4)
    values, rows = {}, []
    for name in ("row_max", "sequence_max"):
        values[name] = draw.uniform(0.1, 0.9, (4, 3))
        for seed, at in np.ndindex(4, 3):
            place = {"model": "net", "corpus": WIDE["net"], "seed": seed, "layer": 1}
            place |= {"site": "attention", "component": f"{NORMS[at]:g}"}
            value = values[name][seed, at]
            rows.append(place | {"metric": f"attention.{name}", "value": value})
    claim = Claim("any", "s", "", statistic="x")
    (test,) = fig08_10_attention.judge_clearer(claim, as_records(pd.DataFrame(rows)))
    start = values["row_max"][:, 0]
    of_rows, of_sequences = ((x[:, -1] - x[:, 0]) / start for x in values.values())
    assert test.value == pytest.approx((of_sequences - of_rows).mean())
    assert (test.where, test.subject) == ("N = 31.62", "net")


def test_weights_are_drawn_beside_the_uniform_one_and_entropies_up_to_1(monkeypatch):
    rows, values = [], {}
    names = ("row_max", "row_median", "row_min", "entropy_normalised")
    names += ("sequence_max", "sequence_min")
    for place, metric in enumerate(names):
        values[metric] = place + 0.5
        for head in (None, 0, 1):
            row = {"model": "bert:a", "corpus": WIDE["net"], "seed": 0, "layer": 1}
            row |= {"site": "attention", "metric": f"attention.{metric}"}
            rows.append(row | {"head": head, "component": "1", "value": place + 0.5})
    given = []
    monkeypatch.setattr(
        study_charts,
        "draw_against_norm",
        lambda frame, **settings: given.append((frame, settings)) or len(given),
    )
    records = as_records(pd.DataFrame(rows))
    for chosen in (
        fig08_10_attention.DRAWN_IN_ROWS,
        fig08_10_attention.DRAWN_IN_SEQUENCES,
    ):
        drawn = fig08_10_attention.draw_weights(chosen, records)
        assert list(drawn) == list(chosen)
    shown = [dict(zip(x["weight"], x["value"], strict=True)) for x, _ in given]
    assert shown == [
        {
            "largest": values["row_max"],
            "median": values["row_median"],
            "smallest": values["row_min"],
        },
        {"entropy": values["entropy_normalised"]},
        {"largest": values["sequence_max"]},
        {"smallest": values["sequence_min"]},
    ]
    line = {"series": "weight", "scale": "log", "line": (1 / 9, "uniform")}
    assert [settings for _, settings in given] == [
        line | {"title": "attention weight"},
        {"series": "weight", "title": "entropy / ln(keys)"},
        line | {"title": "largest weight"},
        line | {"title": "smallest weight"},
    ]


def test_of_single_heads_the_last_block_s_normalised_entropy_is_kept_and_n_of_all(
    monkeypatch, tmp_path
):
    rows = []
    for layer, metric, head in product(
        (1, 2),
        ("attention.row_max", "attention.entropy", "attention.entropy_normalised"),
        (None, 0, 1),
    ):
        place = {"model": "bert", "layer": layer, "head": head, "site": "attention"}
        rows.append(place | {"metric": metric, "value": float(len(rows))})
    for name in ("", ".crossings", ".norm"):
        metric = f"fixed_point.mean_norm{name}"
        rows.append({"model": "bert", "site": "hidden", "metric": metric})
    records = as_records(pd.DataFrame(rows))
    given = []
    monkeypatch.setattr(
        fig08_10_attention.biased_block,
        "run_experiment",
        lambda *asked: given.append(asked) or records,
    )
    context = Context(tmp_path, tmp_path)
    found = fig08_10_attention.measure_rows("settings", context)
    assert given == [("settings", context)] * 2
    of_last = [9, 10, 11, 12, 15, 16, 17]
    assert found["value"].dropna().tolist() == of_last
    assert found["metric"].tolist()[7:] == [
        *("fixed_point.mean_norm", "fixed_point.mean_norm.crossings"),
    ]
    assert found.index.tolist() == list(range(9))


@pytest.mark.parametrize(
    ("systems", "expected"),
    [
        ({"bert:raw-table": "uniform inputs 4 × 9 × 64"}, (1 / 9, "uniform")),
        (
            dict.fromkeys(("bert:a", "bert:b"), "uniform inputs 4 × 5 × 64"),
            (0.2, "uniform"),
        ),
        (
            {
                "bert:a": "uniform inputs 4 × 9 × 64",
                "gpt2": "uniform inputs 4 × 9 × 64",
            },
            None,
        ),
        (
            {
                "bert:a": "uniform inputs 4 × 9 × 64",
                "bert:b": "uniform inputs 4 × 8 × 64",
            },
            None,
        ),
    ],
)
def test_the_uniform_weight_is_that_of_a_row_over_all_tokens(systems, expected):
    rows = [{"model": model, "corpus": name} for model, name in systems.items()]
    found = fig08_10_attention._find_uniform_weight(as_records(pd.DataFrame(rows)))
    assert found == expected


@pytest.mark.parametrize("other", [64, 32])
def test_heads_of_several_dimensions_have_no_common_bound(monkeypatch, other):
    """Four heads each: of 64 or 32 dimensions in all."""
    rows = []
    for model, width in (("bert", 64), ("gpt2", other)):
        corpus = f"uniform inputs 4 × 9 × {width}"
        for site, metric, head, norm in product(
            ("query.raw", "key.raw"),
            ("mean_cosine", "norms.mean"),
            (None, 0, 1, 2, 3),
            ("0", "1"),
        ):
            place = {"model": model, "corpus": corpus, "seed": 0, "layer": 1}
            place |= {"site": site, "metric": metric, "head": head, "component": norm}
            rows.append(place | {"value": 0.5})
    given = {}

    def keep(frame, **settings):
        given[settings["title"]] = (frame, settings)

    monkeypatch.setattr(study_charts, "draw_against_norm", keep)
    fig08_10_attention.draw_vectors(as_records(pd.DataFrame(rows)))
    line = given["anisotropy A"][1]["line"]
    expected = (pytest.approx(q95(16)), "q95 of one pair") if other == 64 else None
    assert line == expected
    for title, metric in (("anisotropy A", "mean_cosine"), ("mean norm", "norms.mean")):
        frame, settings = given[title]
        assert set(frame["metric"]) == {metric}
        assert set(frame["vectors"]) == {"queries", "keys"}
        assert settings["series"] == "vectors"
    assert given["anisotropy A"][1]["zero"]
    assert given["mean norm"][1]["scale"] == "log"


# ---- figures 11 to 14 ------------------------------------------------------------------------------------------------

STEPS = (0, 5, 40)


class MadePiece:
    """A checkpoint of two query heads per key head in two layers; points are sampled at the last two steps."""

    def __init__(self, seed, step):
        self.seed, self.step = seed, step
        draw = torch.Generator().manual_seed(10 * seed + STEPS.index(step))
        self.tensors = {}
        for layer, side in product((1, 3), ("query", "key")):
            heads = 4 if side == "query" else 2
            x = torch.randn(heads, 7, 5, generator=draw, dtype=torch.float64)
            x = x + torch.randn(heads, 1, 5, generator=draw, dtype=torch.float64)
            self.tensors[f"{layer} {side} moment"] = x.transpose(1, 2) @ x
            self.tensors[f"{layer} {side} mean"] = x.mean(1)
            if step:
                points = x[:, :3].transpose(0, 1).contiguous()
                self.tensors[f"{layer} {side} points"] = points

    def heads(self):
        return self.tensors


PIECES = [MadePiece(seed, step) for seed, step in product((4, 2), STEPS)]


def find_slow_plane(seed, layer, head, basis):
    """Return the two main directions [2][dim] of a head, by the eigenvectors of summed moments."""
    total, mean = 0, None
    for piece in PIECES:
        if piece.seed != seed:
            continue
        query = piece.tensors[f"{layer} query moment"][head].numpy()
        key = piece.tensors[f"{layer} key moment"][head // 2].numpy()
        total = total + {"query": query, "key": key, "union": query + key}[basis]
        mean = piece.tensors[f"{layer} query mean"][head].numpy()
    values, vectors = np.linalg.eigh(total)
    order = np.argsort(-values)[:2]
    return [vectors[:, i] * np.sign(vectors[:, i] @ mean) for i in order]


@pytest.mark.parametrize("basis", fig11_12_trajectories.BASES)
def test_paths_of_every_head_lie_in_its_own_plane(basis):
    found = fig11_12_trajectories.measure_planes(PIECES, [basis])
    table = found.set_index(["metric", "seed", "step", "layer", "head"])
    for seed, layer, head in product((4, 2), (1, 3), range(4)):
        first, second = find_slow_plane(seed, layer, head, basis)
        whole, _ = find_slow_plane(seed, layer, head, "union")
        own, of_union = [], []
        for side in ("query", "key"):
            at_head = head if side == "query" else head // 2
            for piece in PIECES:
                if piece.seed != seed:
                    continue
                mean = piece.tensors[f"{layer} {side} mean"][at_head].numpy()
                key = (f"svd.{basis}.{side}", seed, piece.step, layer, head)
                at = table.loc[[key]].set_index("component")["value"]
                assert at["1"] == pytest.approx(mean @ first)
                assert at["2"] == pytest.approx(mean @ second)
                own.append(mean @ first)
                of_union.append(mean @ whole)
        of_last = PIECES[2] if seed == 4 else PIECES[5]
        ends = [
            of_last.tensors[f"{layer} query mean"][head].numpy(),
            of_last.tensors[f"{layer} key mean"][head // 2].numpy(),
        ]
        expected = {
            "drift_share": sum((x @ first) ** 2 for x in ends)
            / sum(x @ x for x in ends),
            "agreement": abs(first @ whole),
            "path_agreement": abs(np.corrcoef(own, of_union)[0, 1]),
        }
        for name, value in expected.items():
            key = (f"svd.{basis}.{name}", seed, 40, layer, head)
            assert table.loc[[key], "value"].item() == pytest.approx(value), name


def test_clouds_are_of_the_first_seed_and_of_the_keys_of_the_head():
    chosen = [(3, 2), (1, 1)]
    found = fig11_12_trajectories.measure_clouds(PIECES, "key", chosen)
    assert set(found["seed"]) == {4} and set(found["step"]) == {5, 40}
    expected = {}
    for (layer, head), (number, step) in product(chosen, ((1, 5), (2, 40))):
        directions = find_slow_plane(4, layer, head, "key")
        for side in ("query", "key"):
            points = PIECES[number].tensors[f"{layer} {side} points"].numpy()
            at_head = head if side == "query" else head // 2
            for point, direction in product(range(3), range(2)):
                component = f"{point} {direction + 1}"
                key = (f"svd.key.cloud.{side}", step, layer, head, component)
                expected[key] = points[point, at_head] @ directions[direction]
    names = ["metric", "step", "layer", "head", "component"]
    keys = found[names].itertuples(index=False, name=None)
    assert dict(zip(keys, found["value"], strict=True)) == pytest.approx(expected)


def make_heads(cosine, extra=()):
    """Return records of cosines [seed, step, layer, head] of heads of 64 dimensions, in layers 1 and on."""
    rows = list(extra)
    for seed, step, layer, head in np.ndindex(cosine.shape):
        place = {"seed": seed, "step": STEPS[step], "layer": layer + 1, "head": head}
        place |= {"site": "query.raw"}
        value = float(cosine[seed, step, layer, head])
        rows.append(place | {"metric": "query_key.cosine", "value": value})
        bound = {"metric": "mean_cosine.isotropic_q95", "value": q95(64)}
        rows.append(place | bound)
    return as_records(pd.DataFrame(rows))


def test_heads_that_are_drawn_are_found_in_layers_of_more_heads_than_layers():
    cosine = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 3, 2, 5))
    cosine[0, -1, 1, 2], cosine[0, -1, 0, 4] = 0.9, -0.8
    # Larger ones in another seed, and at another step.
    cosine[1, -1, 0, 0], cosine[0, 0, 0, 0] = 0.95, 0.95
    # A step at which only the loss is known is no step of heads, and hidden states have another width.
    extra = [{"metric": "training.loss", "seed": 0, "step": 7, "value": 3.0}]
    hidden = {"metric": "mean_cosine.isotropic_q95", "site": "hidden"}
    extra.append(hidden | {"value": q95(256)})
    # A head without a value at the end is neither.
    cosine[0, -1, 1, 4] = np.nan
    alignment = fig13_14_alignment.Alignment.of(make_heads(cosine, extra))
    assert alignment.table.steps == STEPS and alignment.table.layers == (1, 2)
    assert alignment.bound == float(cosine_quantile(0.975, 64))
    np.testing.assert_allclose(alignment.cosine, cosine)
    assert alignment.chosen() == {"similar": (2, 2), "opposite": (1, 4)}
    assert alignment.name("similar") == "similar: layer 2, head 2 (cos +0.90)"
    assert alignment.name("opposite") == "opposite: layer 1, head 4 (cos −0.80)"


def test_onsets_are_medians_over_the_heads_of_a_kind():
    """Of three steps at 0, 1/8 and all of training; opposite heads of a seed: onsets 0, 1/8, 1/8 and 1."""
    cosine = np.full((3, 3, 2, 4), 0.9)
    for seed in range(3):
        cosine[seed, :, 1] = -0.9
        cosine[seed, :1, 1, :3] = 0.01 * (seed + 1)
        cosine[seed, :2, 1, 2] = 0.0
        cosine[seed, :, 1, 3] = (-0.9, -0.9, -0.9)
        cosine[seed, 0, 0, 1] = 0.0
    records = make_heads(cosine)
    verdicts = {v.claim: v for v in fig11_12_trajectories.judge_paths(records)}
    first, later, about, after = fig11_12_trajectories.read_claims("godey2024", "fig12")
    assert verdicts[first].value == 0
    # The mean would be (0 + 1/8 + 1/8 + 1) / 4.
    assert verdicts[about].value == pytest.approx(1 / 8)
    assert verdicts[later].value == pytest.approx(1 / 8)
    assert verdicts[after].outcome == "undecided"
    counts = "12 similar, 12 opposite, of 24 heads"
    # A tenth and a twelfth of 40 steps: the nearest checkpoint is that of 5 steps.
    near = f"{counts}; the checkpoint nearest to"
    for name in (first, about):
        assert verdicts[name].reason.startswith(near)
        assert "lies at 0.12 of training" in verdicts[name].reason
    assert verdicts[later].reason.startswith(counts) and near not in (
        verdicts[later].reason
    )


def keep_charts(monkeypatch, module, *names):
    """The calls of some drawing functions, [(name, arguments, named ones)]."""
    given = []
    for name in names:
        monkeypatch.setattr(
            module,
            name,
            lambda *asked, name=name, **more: given.append((name, asked, more)) or name,
        )
    return given


def test_two_heads_of_the_first_seed_are_drawn_in_their_own_plane(monkeypatch):
    cosine = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 3, 2, 3))
    cosine[0, -1, 1, 2], cosine[0, -1, 0, 1] = 0.9, -0.8
    records = make_heads(cosine)
    given = keep_charts(
        monkeypatch,
        fig11_12_trajectories.series_charts,
        *("draw_paths", "draw_clouds"),
    )
    draw = fig11_12_trajectories.draw
    assert draw("fig20", "key", False, records) == {"fig20": "draw_paths"}
    assert set(draw("fig19", "key", True, records)) == {
        *("fig19_similar", "fig19_opposite"),
    }
    (_, (paths, basis), _), *clouds = given
    assert basis == "key" and [title for title, _ in paths] == [
        *("similar: layer 2, head 2 (cos +0.90)",),
        *("opposite: layer 1, head 1 (cos −0.80)",),
    ]
    assert [(title, basis) for _, (_, basis, title), _ in clouds] == [
        (title, "key") for title, _ in paths
    ]
    drawn = [rows for _, rows in paths] + [rows for _, (rows, *_), _ in clouds]
    for rows, place in zip(drawn, [(2, 2), (1, 1)] * 2, strict=True):
        found = set(zip(rows["seed"], rows["layer"], rows["head"], strict=True))
        assert found == {(0, *place)}
        assert set(rows["step"]) == set(STEPS)


def test_heads_are_drawn_of_the_first_seed_and_in_figure_23_of_all(monkeypatch):
    records = make_heads(np.random.default_rng(3).uniform(-0.5, 0.5, (3, 3, 2, 2)))
    charts = fig13_14_alignment.series_charts
    given = keep_charts(monkeypatch, charts, "draw_heads", "draw_products")
    for name, drawn in (
        ("fig13", {"fig13": "draw_heads"}),
        ("fig14", {"fig14": "draw_products"}),
        ("fig23", {"fig23": "draw_heads", "fig23_seeds": "draw_heads"}),
    ):
        assert fig13_14_alignment.draw(name, records) == drawn
    alignment = fig13_14_alignment.Alignment.of(records)
    seeds, bounds = [], []
    for _, (rows, endings, *bound), more in given:
        pd.testing.assert_series_equal(endings, alignment.endings())
        seeds.append((set(rows["seed"]), more))
        bounds.append(bound)
    every = {0, 1, 2}
    assert seeds == [({0}, {}), ({0}, {}), (every, {}), (every, {"apart": True})]
    bound = [alignment.bound]
    assert bounds == [bound, [], bound, bound]


def test_shares_of_heads_are_told_with_how_many_heads_they_are_of():
    cosine = np.zeros((3, 3, 2, 2))
    cosine[:, -1, 0], cosine[:, -1, 1, 0] = 0.9, -0.9
    share = np.random.default_rng(5).uniform(0.1, 0.9, (3, 2, 2))
    rows = []
    for seed, layer, head in np.ndindex(share.shape):
        place = {"seed": seed, "step": 40, "layer": layer + 1, "head": head}
        for metric in ("svd.union.drift_share", "svd.key.agreement"):
            rows.append(place | {"metric": metric, "value": share[seed, layer, head]})
    records = make_heads(cosine, rows)
    found = fig11_12_trajectories.judge_clouds(records)
    every, kinds = fig11_12_trajectories.read_claims("godey2024", "fig11")
    assert [(v.claim, v.subject, v.reason) for v in found] == [
        (every, "", "12 heads of 3 seeds"),
        (kinds, "similar", "6 heads of 3 seeds"),
        (kinds, "opposite", "3 heads of 3 seeds"),
    ]
    assert [v.value for v in found] == pytest.approx(
        [share.mean(), share[:, 0].mean(), share[:, 1, 0].mean()]
    )
    (found,) = fig11_12_trajectories.judge_agreement(
        "fig19", "svd.key.agreement", records
    )
    assert found.value == pytest.approx(share.mean())
    least = ", ".join(f"{of_seed.min():.2f}" for of_seed in share)
    assert found.reason == f"least of 4 heads, by seed: {least}"


def test_an_onset_by_the_loss_is_told_with_the_heads_that_it_is_of():
    cosine = np.full((3, 3, 2, 4), 0.9)
    cosine[:, :, 1] = -0.9
    for head, onset in enumerate((1, 1, 2, 0)):
        cosine[:, :onset, 1, head] = 0.0
    # The fall of the loss is counted from the first checkpoint that has one.
    losses = [
        {"metric": "training.loss", "seed": seed, "step": step, "value": value}
        for seed, (step, value) in product(range(3), ((5, 3.0), (40, 1.0)))
    ]
    *_, verdict = fig11_12_trajectories.judge_paths(make_heads(cosine, losses))
    *_, after = fig11_12_trajectories.read_claims("godey2024", "fig12")
    # Shares of the fall of 0, 0, 1 and 0: their mean would be a quarter.
    assert (verdict.claim, verdict.value) == (after, 0.0)
    assert verdict.reason.startswith("12 similar, 12 opposite, of 24 heads")


def test_an_alignment_that_is_highest_at_its_end_does_not_recede():
    rising = np.array([0.1, 0.2, 0.6])[:, None, None] + np.zeros((4, 3, 2, 2))
    found = {v.claim: v for v in fig13_14_alignment.judge_cosine(make_heads(rising))}
    verdict = found["alignment-recedes"]
    assert (verdict.outcome, verdict.failing) == ("fails", "too small")
    assert (verdict.value, verdict.n) == (0.0, 4)
    assert verdict.reason == "highest at step 40 of 40"


@pytest.mark.parametrize("layers", [2, 3])
def test_a_sign_by_depth_needs_three_layers(layers):
    cosine = np.random.default_rng(1).uniform(-0.9, 0.9, (4, 3, layers, 2))
    found = {v.claim: v for v in fig13_14_alignment.judge_cosine(make_heads(cosine))}
    assert ("sign-falls-with-depth" in found) == (layers == 3)
    if layers == 3:
        by_layer = cosine[:, -1].mean(-1)
        rho = [stats.spearmanr(range(3), x).statistic for x in by_layer]
        assert found["sign-falls-with-depth"].value == pytest.approx(np.mean(rho))


def test_layers_of_seeds_are_compared_less_what_all_layers_do():
    """The order of layers and steps of four seeds, less the mean over layers of each step."""
    draw = np.random.default_rng(2)
    cosine = draw.uniform(0.05, 0.5, (4, 3, 4, 2)) * draw.choice([-1, 1], (4, 3, 4, 2))
    # All layers rise together, which is no agreement on layers.
    cosine *= np.array([1, 1.5, 1.9])[:, None, None]
    found = {v.claim: v for v in fig13_14_alignment.judge_seeds(make_heads(cosine))}
    curves = np.abs(cosine).mean(-1)
    rest = curves - curves.mean(2, keepdims=True)
    profile = cosine[:, -1].mean(-1)
    profile = profile - profile.mean(1, keepdims=True)
    for name, rows in (
        ("same-layers-over-seeds", rest.reshape(4, -1)),
        ("same-signs-over-seeds", profile),
    ):
        pairs = [
            rows[a] @ rows[b] / np.sqrt((rows[a] @ rows[a]) * (rows[b] @ rows[b]))
            for a in range(4)
            for b in range(a)
        ]
        assert found[name].value == pytest.approx(np.mean(pairs)), name
    whole = curves.reshape(4, -1)
    r = [np.corrcoef(whole[i], np.delete(whole, i, 0).mean(0))[0, 1] for i in range(4)]
    same = found["same-trends-over-seeds"]
    assert same.value == pytest.approx(np.mean(np.arctanh(r)))
    assert same.reason.startswith("r by seed: " + ", ".join(f"{x:.2f}" for x in r))


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_small_models_are_measured_on_as_many_units_as_there_are_windows():
    settings = checkpoints.SETTINGS
    names = ("byte-lm", "vit", "speech-transformer", "vit-masked", "speech-masked")
    keys = ("bytes", "vision", "speech", "photographs", "clips")
    for key, name in zip(keys, names, strict=True):
        kind, found = KINDS[name], settings[key]
        assert (found.kind, found.corpus) == (name, kind.corpus)
        assert found.limit == min(kind.limit or 128, 128)
        assert found.sequences == (128 if kind.modality == TEXT else None)
        assert found.recipe.seeds == checkpoints.SEEDS


def test_vectors_are_sampled_at_the_steps_that_are_shown(monkeypatch, tmp_path):
    steps = (0, 10, 100, 500, 1000)
    every = [Checkpoint(f"m{n}", n, seed) for seed in (0, 1) for n in steps]
    monkeypatch.setattr(checkpoints, "list_checkpoints", lambda *_: every)
    jobs, asked = {}, []

    def measure(given, job_of, output, **more):
        asked.append((given, output, more))
        for one in given:
            jobs[one.seed, one.step] = job_of(one)
        runs = {one: SimpleNamespace(folder=tmp_path / one.subject) for one in given}
        return SimpleNamespace(runs=runs, skipped={"lost": "why"})

    monkeypatch.setattr(checkpoints, "measure_series", measure)
    told = []
    context = Context(
        tmp_path,
        tmp_path,
        dtype="float64",
        batch_tokens=99,
        progress=lambda *given: told.append(given),
    )
    series = checkpoints.CheckpointSettings(
        "a/{0,1}", corpus="c", limit=7, sequences=5, points=33, shown=(0.0, 0.1, 1.0)
    )
    pieces = checkpoints.measure(series, context)
    samples = {n: job.settings.sample for (_, n), job in jobs.items()}
    assert samples == {0: 33, 10: 0, 100: 33, 500: 0, 1000: 33}
    job = jobs[1, 10]
    assert (job.corpus, job.limit, job.sequences) == ("c", 7, 5)
    assert (job.dtype, job.batch_tokens) == ("float64", 99)
    assert job.settings.metrics == checkpoints.METRICS and job.settings.sample_heads
    ((_, _, more),) = asked
    assert more["skip_bad"] and more["derived"].name == "heads.safetensors"
    assert more["derived"].make.keywords == {"sampled": False}
    # Of ten checkpoints, by the parts of them all.
    for parts in ((0, 0), (7, 40), (40, 40)):
        more["progress"](*parts)
    assert told == [("checkpoints", 1, 10), ("checkpoints", 10, 10)]
    assert [(piece.seed, piece.step) for piece in pieces] == [
        (seed, step) for seed in (0, 1) for step in steps
    ]
    assert {piece.subject for piece in pieces} == {f"m{n}" for n in steps}
    assert [row["model"] for row in context.lacking] == ["lost"]


@pytest.mark.parametrize("found", [None, "there"])
def test_a_share_of_the_tokens_is_sampled_of_whole_folders(
    monkeypatch, tmp_path, found
):
    every = [Checkpoint(f"m{n}", n, 0) for n in (0, 10)]
    monkeypatch.setattr(checkpoints, "list_checkpoints", lambda *_: every)
    monkeypatch.setattr(checkpoints, "find_path", lambda _: found)
    asked = []

    def measure(_given, job_of, _output, **more):
        asked.append((job_of(every[0]), more))
        runs = {one: SimpleNamespace(folder=tmp_path / one.subject) for one in every}
        return SimpleNamespace(runs=runs, skipped={})

    def open_plan(job, subject):
        # Its weights are not needed to count tokens.
        assert subject == replace(job, untrained=True)
        return [SimpleNamespace(tokens=[30, 10, 5])]

    monkeypatch.setattr(checkpoints, "measure_series", measure)
    monkeypatch.setattr(checkpoints, "load_subject", lambda job: job)
    monkeypatch.setattr(checkpoints, "open_plan_of", open_plan)
    series = checkpoints.CheckpointSettings("a/seed-*", share=0.2)
    pieces = checkpoints.measure(series, Context(tmp_path, tmp_path))
    ((job, more),) = asked
    assert job.settings.sample == 9
    text = "wikitext/wiki.valid.raw" if found else "builtin:python-docs"
    assert job.corpus == text
    # What lies here must be whole.
    assert not more["skip_bad"]
    assert more["derived"].name == "sampled.safetensors"
    assert more["derived"].make.keywords == {"sampled": True}
    assert {piece.named for piece in pieces} == {"sampled.safetensors"}
    assert [piece.folder.name for piece in pieces] == ["m0", "m10"]


def test_checkpoints_that_cannot_be_loaded_are_counted(monkeypatch, tmp_path):
    every = [Checkpoint(f"m{n}", n, 0) for n in (0, 10, 20, 30)]
    monkeypatch.setattr(checkpoints, "list_checkpoints", lambda *_: every)
    left = {every[1]: SimpleNamespace(folder=tmp_path)}
    lost = dict.fromkeys(("m0", "m20", "m30"), "gone")
    monkeypatch.setattr(
        checkpoints,
        "measure_series",
        lambda *_, **__: SimpleNamespace(runs=left, skipped=lost),
    )
    series = checkpoints.CheckpointSettings("a/step-{0,10,20,30}", corpus="c")
    with pytest.raises(ModelError, match=r"fewer \(3 could not be loaded\)") as error:
        checkpoints.measure(series, Context(tmp_path, tmp_path))
    assert "every seed of a/step-{0,10,20,30} has" in str(error.value)
    # Or there was but one step in the first place.
    monkeypatch.undo()
    one = [Checkpoint("m", step, seed) for step, seed in ((0, 0), (5, 0), (5, 1))]
    monkeypatch.setattr(checkpoints, "expand", lambda _: one)
    with pytest.raises(UsageError, match="fewer, of 2 seeds"):
        checkpoints.list_checkpoints(series, Context(tmp_path, tmp_path))


def test_small_models_of_a_series_are_looked_at_at_all_of_their_steps(
    monkeypatch, tmp_path
):
    kind = SimpleNamespace(label="a kind", missing="", corpus="c", limit=7)
    monkeypatch.setitem(checkpoints.KINDS, "kind", kind)
    asked = []

    def train(*given):
        asked.append(given)
        return [
            SimpleNamespace(
                seed=seed,
                steps=steps,
                best=40,
                checkpoint=lambda step, seed=seed: f"{seed}/step-{step}",
            )
            for seed, steps in ((3, (0, 20, 40, 60)), (5, (0, 20, 40)))
        ]

    monkeypatch.setattr(checkpoints, "train_all", train)
    context = Context(tmp_path, tmp_path / "cache")
    series = checkpoints.CheckpointSettings("", LONG, "kind")
    found = checkpoints.list_checkpoints(series, context)
    assert [(c.subject, c.step, c.seed) for c in found] == [
        (f"{seed}/step-{step}", step, seed) for seed in (3, 5) for step in (0, 20, 40)
    ]
    assert asked == [(LONG, ("kind",), tmp_path / "cache", context.progress)]
    kind.missing = "no clips"
    with pytest.raises(UsageError, match="the data of a kind; got no clips"):
        checkpoints.list_checkpoints(series, context)


def test_numbers_of_heads_of_cells_are_of_self_attention_and_of_no_part(monkeypatch):
    wanted = {"metric": "m", "kind": "self", "site": "scores"}
    rows = [
        wanted | {"value": float(number)} | change
        for number, change in enumerate(
            (
                {"metric": "n"},
                {"kind": "cross"},
                {"component": "1"},
                {"site": "hidden"},
                {},
                {"site": "query.raw"},
            )
        )
    ]
    monkeypatch.setattr(
        checkpoints, "measure_cells", lambda *_: as_records(pd.DataFrame(rows))
    )
    found = checkpoints.measure_heads(["m"], checkpoints.CAUSAL["causal"], None)
    assert found["value"].tolist() == [4, 5] and found.index.tolist() == [0, 1]


def test_a_seed_ends_at_its_largest_step_in_whatever_order_they_are_listed(
    monkeypatch, tmp_path
):
    given = [Checkpoint("m", step, 0) for step in (40, 0, 5)]
    given += [Checkpoint("m", step, 3) for step in (5, 40, 0, 20)]
    monkeypatch.setattr(checkpoints, "expand", lambda _: given)
    series, context = checkpoints.CheckpointSettings("p"), Context(tmp_path, tmp_path)
    found = checkpoints.list_checkpoints(series, context)
    assert [(c.seed, c.step) for c in found] == [
        (seed, step) for seed in (0, 3) for step in (0, 5, 40)
    ]
    given.append(Checkpoint("m", 1000, 3))
    with pytest.raises(UsageError, match="seed 0 at step 40 of 1,000"):
        checkpoints.list_checkpoints(series, context)


# ---- layers of several models ----------------------------------------------------------------------------------------


def make_curve(model, values, *, stack="encoder", seed=None, policies=("all",)):
    """Rows of A and of q95 by layer, with four groups left out."""
    rows = []
    for (layer, value), policy in product(enumerate(values), policies):
        place = {"model": model, "seed": seed, "stack": stack, "layer": layer}
        place |= {"site": "hidden", "token_policy": policy, "n_units": 40, "step": 70}
        ends = {"low": value - 0.05, "high": value + 0.02, "n_vectors": 300}
        rows.append(place | {"metric": "mean_cosine", "value": value} | ends)
        bound = {"metric": "mean_cosine.isotropic_q95", "value": q95(64)}
        rows.append(place | bound)
        for group in range(4):
            left_out = {"metric": "mean_cosine.left_out", "component": str(group)}
            moved = value + (group - 1.5) / 1000
            rows.append(place | left_out | {"value": moved})
    return rows


def test_every_system_of_every_kind_is_measured(monkeypatch, tmp_path):
    told, jobs = [], []
    context = Context(
        tmp_path, tmp_path, progress=lambda text, *given: told.append((text, *given))
    )

    def row(name):
        return as_records(pd.DataFrame([{"model": name, "value": 1.0}]))

    def run(job, **given):
        assert given == {"context": context}
        jobs.append(job)
        return row(job.model)

    monkeypatch.setattr(layer_curves, "run_measurement", run)
    for name in ("_measure_small", "_measure_packaged"):
        monkeypatch.setattr(
            layer_curves,
            name,
            lambda which, systems, _, name=name: [
                row(f"{name} {which} {systems.limit}")
            ],
        )
    systems = layer_curves.Systems(
        models=("a", "b"),
        corpus="c",
        limit=7,
        small=("s", "t"),
        packaged=("p", "q"),
        others=(
            layer_curves.Systems(models=("x",)),
            layer_curves.Systems(small=("y",)),
        ),
    )
    found = layer_curves.measure(systems, context)
    assert found["model"].tolist() == [
        *("a", "b", "_measure_small s 7", "_measure_small t 7"),
        *("_measure_packaged p 7", "_measure_packaged q 7"),
        *("x", "_measure_small y None"),
    ]
    assert [(job.model, job.corpus, job.limit) for job in jobs] == [
        *(("a", "c", 7), ("b", "c", 7), ("x", "", None)),
    ]
    assert told == [("a", 1, 2), ("b", 2, 2), ("x", 1, 1)]
    assert len(layer_curves.measure(layer_curves.Systems(), context)) == 0


@pytest.mark.parametrize(
    ("corpus", "read"), [("common-voice", "librispeech"), ("named", ""), ("alone", "")]
)
def test_a_stand_in_is_read_and_noted_if_it_can_be_had(
    monkeypatch, tmp_path, corpus, read
):
    known = {
        "common-voice": SimpleNamespace(stand_in="librispeech"),
        "librispeech": SimpleNamespace(stand_in=""),
        "alone": SimpleNamespace(stand_in=""),
    }
    monkeypatch.setattr(layer_curves, "named_corpora", lambda: known)
    asked = []
    missing = {corpus}

    def measure(job):
        asked.append((job.model, job.corpus))
        if job.corpus in missing:
            raise CorpusError("a corpus", job.corpus, "fetch it")
        return f"measured on {job.corpus}"

    def ask():
        context = Context(tmp_path, tmp_path)
        job = Job("model", corpus=corpus)
        return layer_curves.measure_if_available(job, context, measure), context.lacking

    found, lacking = ask()
    (row,) = lacking
    if read:
        assert found == [f"measured on {read}"]
        assert asked == [("model", corpus), ("model", read)]
        assert (row["metric"], row["model"], row["corpus"]) == (
            *("stands in", corpus, read),
        )
        missing.add(read)
        found, (row,) = ask()
    # Without either it is the model that is left out.
    assert found == [] and (row["metric"], row["model"]) == ("withheld", "model")
    damaged = OutputError("a file", "another", "remove it")

    def fail(_):
        raise damaged

    with pytest.raises(OutputError):
        layer_curves.measure_if_available(
            Job("model", corpus=corpus), Context(tmp_path, tmp_path), fail
        )


def test_a_claim_on_layers_is_about_the_models_and_the_stack_that_it_names():
    rows = [
        *make_curve("bert-base", (0.5, 0.6)),
        *make_curve("bert-large", (0.5, 0.6)),
        *make_curve("not-bert", (0.5, 0.6)),
        *make_curve("bert-base", (0.1,), stack="decoder"),
    ]
    curves = layer_curves.select_curves(as_records(pd.DataFrame(rows)))

    def name(**given):
        found = layer_curves._select_named(Claim("c", "", "", **given), curves)
        return sorted({(r.model, r.stack) for r in found.itertuples()})

    base, large, other = (
        (model, "encoder") for model in ("bert-base", "bert-large", "not-bert")
    )
    decoder = ("bert-base", "decoder")
    assert name() == [decoder, base, large, other]
    assert name(systems=("bert",)) == [decoder, base, large]
    assert name(systems=("bert",), but=("bert-l",)) == [decoder, base]
    assert name(but=("bert", "base")) == [other]
    assert name(systems=("bert",), stack="decoder") == [decoder]


def test_replicates_have_all_layers_and_the_groups_in_order():
    rows = make_curve("m", (0.2, 0.4, 0.6), seed=3, policies=("all", "content"))
    rows += make_curve("m", (0.9, 0.9, 0.9), seed=4)
    # Another group of one layer alone is no replicate.
    for row in rows:
        if row["seed"] == 3 and row["metric"] == "mean_cosine.left_out":
            row["component"] = {"0": "0", "1": "2", "2": "10", "3": "11"}[
                row["component"]
            ]
    lost = [
        row
        for row in rows
        if (row["seed"], row["layer"], row.get("component")) != (3, 1, "11")
    ]
    records = as_records(pd.DataFrame(lost[::-1]))
    curves = layer_curves.select_curves(records)
    own = curves[curves["seed"] == 3]
    found = layer_curves.select_replicates(records, own, "mean_cosine")
    layers = np.array([0.2, 0.4, 0.6])
    expected = [layers, *(layers + (group - 1.5) / 1000 for group in range(3))]
    np.testing.assert_allclose(found, expected)
    without = [
        row for row in lost if row["layer"] != 1 or "left_out" not in row["metric"]
    ]
    with pytest.raises(ValueError, match="a layer of m has no mean_cosine"):
        layer_curves.select_replicates(
            as_records(pd.DataFrame(without)), own, "mean_cosine"
        )


def test_what_was_not_measured_is_the_reason_of_claims_without_a_verdict():
    claims = [Claim("a", "", ""), Claim("b", "", "")]
    rows = [
        {"model": "x", "metric": "skipped", "component": "no data"},
        {"model": "y", "metric": "withheld", "component": "gated"},
        {"model": "z", "metric": "mean_cosine", "component": None, "value": 1.0},
    ]
    verdicts = [Verdict("a", "holds", "")]

    def reason(some):
        records = as_records(pd.DataFrame(some))
        (found,) = layer_curves.make_undecided(claims, verdicts, records)
        assert (found.claim, found.outcome) == ("b", "undecided")
        return found.reason

    assert reason(rows) == "x: no data; y: gated"
    assert reason(rows[2:]).startswith("no system of these settings")
    for model, step, words in (
        ("m, trained", 1500, "trained for 1,500 steps"),
        ("m, trained", np.nan, ""),
        ("m, untrained", 0, ""),
        ("m", 7, ""),
    ):
        assert layer_curves.describe_steps(model, step) == words
    manifest = {"preprocessing": {"decoder_prompt": "p"}}
    assert layer_curves.reads_prompt_only({"corpus": manifest})
    manifest["preprocessing"]["decoder_reads"] = "transcripts"
    assert not layer_curves.reads_prompt_only({"corpus": manifest})
    for other in ({"preprocessing": {}}, {}, "a name", None):
        assert not layer_curves.reads_prompt_only({"corpus": other})


def test_names_of_networks_are_short():
    for name, label in (
        ("builtin:whisper-tiny.en", "whisper-tiny.en"),
        ("folder/net-0123abcd.pt", "net"),
        ("folder/net-0123abc.pt", "net-0123abc"),
        ("net.onnx", "net"),
    ):
        assert layer_curves._label(name) == label
    systems = layer_curves.Systems(corpus="speech/clips/test.parquet")
    assert layer_curves._describe_system("builtin:n", systems) == "n on clips"
    relus = layer_curves.Systems(corpus="speech/clips", relus=("a", "b"))
    assert layer_curves._describe_system("builtin:n", relus) == "n, ReLUs on clips"
    rows = as_records(
        pd.DataFrame(
            {"model": ["n on clips, trained"] * 2, "stack": ["encoder", "decoder"]}
        )
    )
    found = layer_curves.tell_stacks_apart(rows)
    assert found["model"].tolist() == [
        *("n, encoder on clips, trained", "n, decoder on clips, trained"),
    ]


def test_figure_4_is_drawn_after_and_before_the_relu(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        layer_curves, "draw", lambda *given: drawn.append(given) or {given[0]: 1}
    )
    assert set(fig01_04_layers.draw("fig4", "r")) == {"fig4", "fig4-before-relu"}
    assert drawn == [("fig4", "r"), ("fig4-before-relu", "r", "pre_relu")]
    assert set(fig01_04_layers.draw("fig3a", "r")) == {"fig3a"}


def test_a_layer_is_compared_with_its_published_value_but_not_after_a_norm(monkeypatch):
    expected = {"m": [0.5, 0.25, 0.9], "n": [0.7]}
    expected |= {"final_norm": ["m"], "within": 0.125, "source": "S"}
    published = {"godey2024": {"fig1": {"expected": expected}, "fig2": {}}}
    monkeypatch.setattr(fig01_04_layers, "read_published", published.__getitem__)
    rows = [*make_curve("m", (0.9, -0.4, 0.3)), *make_curve("n", (0.1, 0.5))]
    records = as_records(pd.DataFrame([*rows, *make_curve("other", (0.1, 0.2))]))
    found = fig01_04_layers.compare("fig1", records)
    values = [(one.place, one.published, one.value, one.verdict) for one in found]
    assert values == [
        # Cosines were published without their sign.
        ("m, layer 1", 0.5, 0.4, "agrees"),
        ("m, layer 2", 0.25, 0.3, "agrees"),
        ("m, layer 3", 0.9, None, "not comparable"),
        ("n, layer 1", 0.7, 0.5, "differs"),
    ]
    assert {one.note for one in found} == {"within 0.125; S"}
    assert fig01_04_layers.compare("fig2", records) == []


# ---- figure 15 -------------------------------------------------------------------------------------------------------


def test_entropies_of_our_own_models_come_with_their_losses(monkeypatch):
    """Without the losses the tests by the fall of the loss would be left out, and nobody would see it."""
    monkeypatch.setattr(
        checkpoints, "measure_heads", lambda metrics, *_: pd.Series(metrics)
    )
    series = SimpleNamespace(cells="of an experiment")
    found = list(fig15_entropy.measure(series, None))
    assert found == [*fig15_entropy.KEPT, "training.loss"]


def test_a_course_that_is_lowest_at_its_end_does_not_turn():
    claim = Claim("c", "s", "", statistic="rise", floor=0.05)
    steps = (0, 100, 1000, 4000)
    falling = np.array(
        [[3.0, 2.0, 1.5, 1.0], [4.0, 3.0, 2.0, 1.0], [3.0, 2.5, 2.0, 1.1]]
    )
    verdict = fig15_entropy.make_test_of_turn(claim, falling, steps, "layer 2")
    assert (verdict.outcome, verdict.failing) == ("fails", "too small")
    assert (verdict.value, verdict.n, verdict.subject) == (0.0, 3, "layer 2")
    assert "lowest at the last step, 4,000" in verdict.reason
    turning = np.array(
        [[3.0, 2.0, 0.5, 1.0], [4.0, 1.0, 2.0, 1.5], [3.0, 2.5, 0.1, 1.1]]
    )
    test = fig15_entropy.make_test_of_turn(claim, turning, steps, "layer 2")
    # The others are lowest at the steps 1000 (1.05), 1000 (0.3) and 1000 (1.25).
    assert test.value == pytest.approx(np.mean([0.5, -0.5, 1.0]))
    assert test.note.startswith("lowest at step 1,000 of 4,000; 75% of training")
    assert fig15_entropy._list_steps((0, 40, 1000, 2000), [3, 1, 3]) == "40 and 2,000"
    share = fig15_entropy._compute_share(np.array([1.0, 2, 3]), np.array([2.0, 0, -1]))
    np.testing.assert_array_equal(share, [0.5, np.nan, np.nan])
    numbers = fig15_entropy._list_numbers(np.array([0.126, -1.0]), ".2f")
    assert numbers == "0.13, -1.00"


@pytest.mark.parametrize("limit", [0.5, 0.4])
def test_the_largest_rise_by_centred_keys_decides(limit):
    rows = [
        {"metric": "centred_attention.key_rise", "value": x, "head": head}
        for head, x in enumerate((0.1, -0.5, 0.3))
    ]
    claim = Claim("c", "s", "", statistic="rise", below=limit, identity=True)
    verdict = fig15_entropy._judge_mean_key(claim, as_records(pd.DataFrame(rows)))
    assert verdict.outcome == ("identity" if limit == 0.5 else "fails")
    assert (verdict.value, verdict.n) == (0.5, 3)


def test_without_cosines_neither_order_is_measured_and_at_the_end_none_is_known():
    claims = fig15_entropy.read_claims("godey2024", "fig15")
    before, after = "alignment-before-sharpness", "sharpens-after-alignment"
    entropy = np.array([[4.0, 3.0, 2.0], [4.5, 3.0, 2.5], [4.0, 3.5, 2.0]])
    ask = fig15_entropy.make_tests_of_order
    nothing = as_records(pd.DataFrame([{"metric": "attention.entropy"}]))
    found = list(ask(claims, nothing, entropy, STEPS))
    assert [(v.claim, v.outcome, v.statistic) for v in found] == [
        (name, "undecided", "not measured") for name in (before, after)
    ]
    rising = np.array([0.1, 0.2, 0.6])[:, None, None] + np.zeros((3, 3, 2, 2))
    _, last = ask(claims, make_heads(rising), entropy, STEPS)
    assert (last.claim, last.outcome, last.n) == (after, "undecided", 3)
    assert last.statistic == "|cos| is highest at the end"
    assert last.reason == (
        "|cos| is highest at step 40, 0.60, and ends at 0.60; "
        "the entropy falls by 2.00 in all"
    )
    # One seed whose others peak earlier is enough to test.
    rising[0, 1] = rising[1, 1] = 0.9
    rising[2, 1] = 0.0
    _, last = ask(claims, make_heads(rising), entropy, STEPS)
    assert last.value == pytest.approx(-1.5 / 3) and "step 5 and 40" in last.note


def test_what_must_move_first_moves_by_the_floors_of_its_own_claims():
    cosine = fig13_14_alignment.read_claims("godey2024", "fig13")["cosine-grows"]
    entropy = fig15_entropy.read_claims("godey2024", "fig15")["entropy-decays"]
    assert {
        "query_key.cosine": cosine.floor,
        "attention.entropy": entropy.floor,
    } == fig15_entropy.MOVED
    records = make_heads(
        np.array([0.1, 0.17, 0.18])[:, None, None] + np.zeros((3, 3, 1, 1))
    )
    falls = np.array([[4.0, 3.9, 3.8]] * 3)
    claims = fig15_entropy.read_claims("godey2024", "fig15")
    first, _ = fig15_entropy.make_tests_of_order(claims, records, falls, STEPS)
    # |cos| rises by .08: more than the entropy must fall by, and less than it must itself.
    assert first.n == 0 and first.statistic == "no seed has it"


# ---- figures 17 and 18 -----------------------------------------------------------------------------------------------


def test_every_layer_is_far_from_its_own_quantile():
    rows = [*make_curve("m", (0.5, 0.1, 0.9)), *make_curve("n", (0.3, 0.4))]
    for row in rows:
        # Of one network the layers have unlike dimensions.
        if (row["model"], row["layer"]) == ("n", 1) and "q95" in row["metric"]:
            row["value"] = q95(16)
    records = as_records(pd.DataFrame(rows))
    layers = fig17_18_cosine_law.select_layers(records)
    assert layers["d"].tolist() == [64, 64, 64, 64, 16]
    assert layers["q95"].tolist() == pytest.approx([q95(64)] * 4 + [q95(16)])
    found = {v.subject: v for v in fig17_18_cosine_law.judge_points(records)}
    assert (found["m"].outcome, found["n"].outcome) == ("fails", "undecided")
    assert found["m"].value == 0.1 and "layer 1" in found["m"].statistic
    times = np.array([0.5, 0.1, 0.9]) / q95(64)
    assert (
        f"the layers {times.min():.1f} to {times.max():.1f} times" in found["m"].reason
    )
    assert "encoder" not in found["m"].statistic
    # Of each model its own layers, each beside its own quantile.
    times = np.array([0.3 / q95(64), 0.4 / q95(16)])
    assert (
        f"the layers {times.min():.1f} to {times.max():.1f} times" in found["n"].reason
    )
    below = mean_cosine_quantile(0.95, 64, 300)
    assert f"over 300 isotropic vectors stay below {below:.2g}" in found["m"].reason


def test_layers_of_a_model_of_two_stacks_are_told_apart_by_dimension_and_seed():
    rows = make_curve("t5", (0.5, 0.3), seed=4)
    rows += make_curve("t5", (0.9, 0.8), seed=4, stack="decoder")
    for row in rows:
        if row["stack"] == "decoder" and "q95" in row["metric"]:
            row["value"] = q95(16)
    found = fig17_18_cosine_law.select_layers(as_records(pd.DataFrame(rows)))
    seen = list(zip(found["stack"], found["value"], found["d"], strict=True))
    assert seen == [
        *(("encoder", 0.5, 64), ("encoder", 0.3, 64)),
        *(("decoder", 0.9, 16), ("decoder", 0.8, 16)),
    ]
    assert set(found["seed"]) == {4}
    (verdict,) = fig17_18_cosine_law.judge_points(as_records(pd.DataFrame(rows)))
    assert verdict.value == 0.3 and "layer 1" in verdict.statistic


def test_densities_go_from_light_to_dark_by_the_logarithm_of_their_dimension(
    monkeypatch,
):
    rows = []
    for d, at in product((64, 16), ("-0.250000", "0.500000")):
        row = {"model": f"isotropic d = {d}", "metric": "cosine_law.density"}
        rows.append(row | {"component": at, "value": d + float(at)})
        rows.append(row | {"metric": "cosine_law.q95", "value": 0.5})
    given = keep_charts(monkeypatch, fig17_18_cosine_law.charts, "trajectory")
    assert fig17_18_cosine_law.draw_law(as_records(pd.DataFrame(rows))) == {
        "fig17": "trajectory"
    }
    ((_, (data,), asked),) = given
    assert data.to_numpy().tolist() == [
        *([-0.25, 63.75, 6], [0.5, 64.5, 6], [-0.25, 15.75, 4], [0.5, 16.5, 4]),
    ]
    assert asked["gradient"] and (asked["x"], asked["series"]) == ("cosine", "log₂ d")
    assert asked["titles"] == ("cosine of an isotropic pair", "density")


def test_networks_with_a_vector_for_each_position_are_kept():
    made = layer_curves.Systems
    whole = made(models=("a",), flatten="image")
    others = (made(models=("b",), flatten="image"), made(models=("c",)))
    both = made(models=("d",), others=others)
    kept = fig17_18_cosine_law.keep_by_position(both)
    assert kept == (made(models=("d",)), made(models=("c",)))
    assert fig17_18_cosine_law.keep_by_position(whole) == ()


def test_lines_of_the_law_are_of_a_pair_and_of_a_mean(monkeypatch):
    given = []
    monkeypatch.setattr(
        fig17_18_cosine_law, "draw_over_dimensions", lambda *each: given.append(each)
    )
    records = as_records(pd.DataFrame(make_curve("m", (0.5, 0.1))))
    assert list(fig17_18_cosine_law.draw_points(records)) == ["fig18"]
    ((rows, laws),) = given
    assert rows["value"].tolist() == [0.5, 0.1] and len(laws) == 2 * 77
    pairs, means = (part for _, part in laws.groupby("law", sort=False))
    assert pairs["value"].tolist() == pytest.approx(q95(pairs["d"].to_numpy()).tolist())
    expected = mean_cosine_quantile(0.95, means["d"].to_numpy(), 1000)
    assert means["value"].tolist() == pytest.approx(expected.tolist())
    assert (pairs["d"].min(), pairs["d"].max()) == (4, 16384)


@pytest.mark.parametrize("p", [0.004, 0.02])
def test_a_sample_departs_from_the_law_if_its_p_is_small_among_all(p):
    rows = []
    for d, ks_p, distance in ((256, 0.9, 0.02), (16, p, 0.01), (64, 0.5, 0.03)):
        one = {"q95": q95(d), "dimension": d, "ks_p": ks_p, "ks_distance": distance}
        for name, value in one.items():
            row = {"model": f"isotropic d = {d}", "metric": f"cosine_law.{name}"}
            rows.append(row | {"value": float(value), "n_vectors": 80})
    shrinks, closed = fig17_18_cosine_law.judge_law(as_records(pd.DataFrame(rows)))
    assert shrinks.value == pytest.approx(q95(256)) and shrinks.statistic == (
        "q95 at d = 256:"
    )
    assert f"q95·√d goes from {4 * q95(16):.3f} (d = 16)" in shrinks.reason
    assert closed.p == pytest.approx(3 * p) and (closed.value, closed.n) == (0.03, 40)
    assert closed.outcome == ("fails" if p == 0.004 else "identity")


def test_a_density_is_drawn_as_far_as_it_is_asked():
    counts = np.zeros(row_scores.BINS)
    counts[100:200] = 1
    reach = fig07_scores.find_reach(counts)
    for widest in (reach / 2, reach * 2):
        x = fig07_scores.estimate_density(counts, widest)["score"]
        assert (x.min(), x.max()) == pytest.approx((-widest, widest))
        # Half of the points lie within the reach of the counts themselves.
        assert (np.abs(x) <= min(reach, widest) * (1 + 1e-9)).sum() >= 81


# ---- ends, words and places ------------------------------------------------------------------------------------------


def test_a_head_ends_in_neither_way_at_the_bound_and_stays_from_its_last_rise_on():
    bound = float(cosine_quantile(0.975, 64))
    cosine = np.zeros((1, 3, 2, 3))
    cosine[0, -1, 0] = (bound, -bound, bound * 1.01)
    cosine[0, -1, 1] = (-bound * 1.01, 0.5, -0.5)
    # Above from the start, from the second step, and above, below and above again.
    cosine[0, :2, 1] = [(0.9, 0.0, -0.9), (0.9, 0.6, 0.0)]
    alignment = fig13_14_alignment.Alignment.of(make_heads(cosine))
    assert alignment.bound == pytest.approx(bound)
    assert alignment.ending().tolist() == [[[0, 0, 1], [-1, 1, -1]]]
    expected = [[[np.nan, np.nan, 1.0], [0.0, 5 / 40, 1.0]]]
    np.testing.assert_allclose(alignment.onset(), expected)
    clock = np.array([[0.0, 0.5, 0.75]])
    np.testing.assert_allclose(
        alignment.onset(clock), [[[np.nan, np.nan, 0.75], [0.0, 0.5, 0.75]]]
    )
    endings = alignment.endings()
    assert endings[0, 1, 2] == 1 and endings[0, 2, 0] == -1
    masks = {name: mask.sum() for name, mask in alignment.groups().items()}
    assert masks == {"similar": 2, "opposite": 2, "all heads": 6}


def test_norms_of_a_published_model_need_no_seed():
    rows = []
    for layer, (norm, drift, a) in enumerate(((8.0, 2.0, 0.5), (10.0, 3.0, 0.25))):
        place = {"model": "m", "stack": "encoder", "layer": layer, "site": "hidden"}
        place |= {"token_policy": "all"}
        for metric, value in (
            ("norms.mean", norm),
            ("drift", drift),
            ("mean_cosine", a),
        ):
            rows.append(place | {"metric": metric, "value": value})
    found = fig05_16_drift.measure_norms(as_records(pd.DataFrame(rows)), "m")
    assert found.spread == pytest.approx(2 / 9)
    assert found.ratio == pytest.approx((8.0, 36.0))
    seeds = pd.DataFrame(
        {"layers": [7.0, 7.0], "p": [0.0123, 0.5], "p_smallest": [0.0004, 0.1]}
    )
    assert fig05_16_drift._describe_papers_p(seeds) == (
        "the paper's test over 7 layers: p 0.012, 0.5 (smallest possible 0.0004)"
    )


def test_a_number_over_layers_is_tested_against_floor_and_no_effect():
    claim = Claim("c", "s", "", statistic="A", floor=0.1, above=0.2)
    draw = np.random.default_rng(0)
    theta = 0.35 + draw.normal(size=9) / 200
    layers = pd.DataFrame(
        [{"model": "m, trained", "step": 70, "n_units": 12}, {"model": "x", "step": 1}]
    )
    test = fig01_04_layers._test(claim, "sub", theta, layers, 4)
    value, low, high, up, down = compute_p_of_replicates(theta, 0.3)
    *_, against = compute_p_of_replicates(theta, 0.2)
    numbers = (test.value, test.low, test.high, test.up, test.down, test.against)
    assert numbers == pytest.approx((value, low, high, up, down, against))
    assert test.margin == test.value == theta[0] and test.n == 12
    assert (test.subject, test.seed, test.over) == ("sub", 4, "all")
    assert (test.note, test.units) == ("trained for 70 steps", "units")


@pytest.mark.parametrize("kind", ["depth", "training", "type vector"])
def test_a_test_over_layers_is_named_by_its_system_and_seed(kind):
    rows = []
    for model, values in (
        ("resnet-50, untrained", (0.0, 0.1, 0.2, 0.3)),
        ("resnet-50, trained", (0.9, 0.8, 0.5, 0.3)),
        ("small token LM, untrained", (0.1, 0.3)),
        ("small token LM, trained", (0.5, 0.3)),
        ("vit", (0.9, 0.1)),
    ):
        rows += make_curve(model, values, seed=3)
    for row in rows:
        row["step"] = 0 if row["model"].endswith("untrained") else 70
    records = as_records(pd.DataFrame(rows))
    curves = layer_curves.select_curves(records)
    if kind == "depth":
        about = curves[~curves["model"].str.endswith("untrained")]
        claim = Claim("c", "s", "", systems=("resnet",))
        found = list(fig01_04_layers._test_depth(claim, records, about))
        assert found[0].value == pytest.approx(
            -np.polyfit(np.arange(4) / 3, (0.9, 0.8, 0.5, 0.3), 1)[0]
        )
    else:
        claim = Claim(fig01_04_layers.TRAINING, "s", "", statistic="x")
        found = list(fig01_04_layers._test_change(claim, records, curves))
        assert [test.subject for test in found] == ["resnet-50", "small token LM"]
        (found, shared) = found[:1], found[1]
        assert found[0].value == pytest.approx((0.8 + 0.5 + 0.3 - 0.1 - 0.2 - 0.3) / 3)
        if kind == "type vector":
            assert np.isnan(shared.value) and (shared.seed, shared.over) == (3, "all")
            assert shared.note == fig01_04_layers.SHARED
    (test,) = found
    assert (test.subject, test.seed, test.note) == (
        *("resnet-50", 3, "trained for 70 steps"),
    )


def test_that_the_paper_s_models_have_no_untrained_partner_is_not_reported():
    records = as_records(pd.DataFrame(make_curve("vit-base", (0.5, 0.6))))
    found = fig01_04_layers.judge("fig3b", records)
    undecided = {v.claim for v in found if v.statistic == "not measured"}
    claims = fig01_04_layers.read_claims("godey2024", "fig3b")
    assert fig01_04_layers.TRAINING in claims
    assert undecided == set(claims) - {fig01_04_layers.TRAINING} - {
        v.claim for v in found if v.statistic != "not measured"
    }


def test_that_several_systems_are_needed_is_said():
    claim = Claim("several", "s", "")
    for n, words in (
        (0, "; these settings have 0"),
        (1, "; these settings have 1"),
        (2, ""),
    ):
        verdicts = [Verdict("anisotropic", "holds", "")] * n
        found = fig01_04_layers._judge_several(claim, verdicts)
        assert found.reason == "two are needed" + words and found.value == n
        assert found.statistic == f"systems of which it holds, of {n}:"
