"""Claims about the biased block and the law of the cosine: records that should hold, fail, or decide nothing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anisoscope.store import COLUMNS, as_records, select
from anisoscope.sums.isotropic import mean_cosine_quantile, q95
from anisoscope_papers import judge
from anisoscope_papers.godey2024 import (
    fig06_bias,
    fig07_scores,
    fig08_10_attention,
    fig17_18_cosine_law,
    layer_curves,
    norm_claims,
)
from anisoscope_papers.godey2024.biased_block import BlockSettings
from anisoscope_papers.godey2024.untrained_models import Size
from anisoscope_papers.judge import Test as Check
from anisoscope_papers.study import Claim, Context, Outcome, Study, Verdict

FULL, RAW = "bert:full-embedding", "bert:raw-table"
STUDIES: tuple[Study, ...] = (
    fig06_bias.STUDY,
    fig07_scores.STUDY,
    *fig08_10_attention.STUDIES,
)
NAMED = {study.name: study for study in STUDIES}
SEEDS = 6
ANY = Claim("any", "Any claim", "")
NORMS = (0.0, 0.1, 1.0, 10.0, 100.0)


def synthetic(
    metric: str,
    site: str,
    curve: Callable[[float], float],
    noise: float,
    layer: int = 1,
) -> pd.DataFrame:
    """Records of one system with seeds of its own: a shift shared by all N of a seed, and noise of each value."""
    drawn = np.random.default_rng(len(metric) + layer)
    rows = []
    for seed in range(SEEDS):
        for n in NORMS:
            value = curve(n) + noise * drawn.normal()
            rows.append(
                {
                    "metric": metric,
                    "site": site,
                    "layer": layer,
                    "seed": seed,
                    "component": f"{n:g}",
                    "value": value,
                }
            )
    return as_records(
        pd.DataFrame(rows), model="block", corpus="uniform inputs 16 × 512 × 64"
    )


def trend(*given, **more):
    (verdict,) = judge.judge_tests(list(norm_claims.test_trend(*given, **more)))
    return verdict


def judged_above(*given):
    (verdict,) = judge.judge_tests(list(norm_claims.test_above(*given)))
    return verdict


def curve(
    records: pd.DataFrame, metric: str = "m", site: str = "hidden"
) -> norm_claims.Curves:
    (found,) = norm_claims.iter_curves(records, metric, site)
    return found


@pytest.mark.parametrize(
    ("shape", "noise", "outcome", "reason"),
    [
        (lambda n: np.log1p(n), 1e-3, "holds", "4 of 4 N hold, from N = 0.1 on"),
        (lambda n: 0.03 * n, 0.05, "holds", "2 of 4 N hold, from N = 10 on"),
        (
            lambda n: -n,
            1e-3,
            "fails",
            "0 of 4 N hold; against the claim at N = 0.1, N = 1, N = 10, N = 100",
        ),
        (
            lambda n: n if n > 1 else -n,
            1e-3,
            "fails",
            "2 of 4 N hold, from N = 10 on; against the claim at N = 0.1, N = 1",
        ),
        (lambda _n: 0.0, 1.0, "undecided", "0 of 4 N hold"),
    ],
)
def test_trends_hold_fail_or_stay_open(
    shape: Callable[[float], float], noise: float, outcome: str, reason: str
) -> None:
    verdict = trend(ANY, curve(synthetic("m", "hidden", shape, noise)))
    assert (
        verdict.outcome == outcome
        and verdict.reason.startswith(reason)
        and "one more draw" in verdict.reason
    )
    assert (
        verdict.low is not None
        and verdict.high is not None
        and verdict.low <= shape(100) - shape(0) <= verdict.high
    )
    assert verdict.n == SEEDS


def test_the_last_layer_is_that_of_each_system() -> None:
    """Systems of two and of three layers; a value names its layer, its seed and its N."""
    tables = []
    for system, layers in (("shallow", 2), ("deep", 3)):
        for layer in range(1, layers + 1):
            made = synthetic("m", "hidden", lambda n: n, 0.0, layer=layer)
            value = made["value"] + 1000 * layer + made["seed"] / 8
            tables.append(made.assign(model=system, value=value))
    records = pd.concat(tables, ignore_index=True)
    drawn = np.arange(SEEDS)[:, None] / 8 + np.array(NORMS)
    for layer, expected in ((None, (2, 3)), (1, (1, 1))):
        found = list(norm_claims.iter_curves(records, "m", "hidden", layer))
        assert [each.system for each in found] == ["shallow", "deep"]
        for each, last in zip(found, expected, strict=True):
            assert each.norms == NORMS
            np.testing.assert_allclose(each.values, drawn + 1000 * last)


@pytest.mark.parametrize(
    ("right", "start"),
    [
        ("0101", ", from d on"),
        ("0111", ", from b on"),
        ("1111", ", from a on"),
        ("1110", ""),
    ],
)
def test_the_onset_is_where_significance_begins_to_last(right: str, start: str) -> None:
    tests = [Check(ANY, "x", where=name) for name in "abcd"]
    outcomes: list[Outcome] = [
        "holds" if mark == "1" else "undecided" for mark in right
    ]
    assert judge._describe_course(tests, outcomes) == start


def test_a_falling_quantity_is_judged_the_other_way_round() -> None:
    falls = curve(synthetic("m", "hidden", lambda n: -n, 1e-3))
    assert trend(replace(ANY, below=0.0), falls).outcome == "holds"


@pytest.mark.parametrize(
    ("gap", "outcome"),
    [
        (lambda _n: 1e-5, "holds"),
        (lambda n: -1e-5 if n == 10 else 1e-5, "fails"),
        (lambda n: 0.0 if n == 10 else 1e-5, "undecided"),
    ],
)
def test_output_above_input_is_paired_over_seeds(
    gap: Callable[[float], float], outcome: str
) -> None:
    """Seeds differ by 0.1 and the difference is 1e-5: only paired differences can tell."""
    drawn = np.random.default_rng(3)
    shared = 0.5 + 0.1 * drawn.normal(size=(SEEDS, 1)) + np.zeros((SEEDS, len(NORMS)))
    above = shared + [gap(n) for n in NORMS] + 1e-7 * drawn.normal(size=shared.shape)
    verdict = judged_above(
        ANY, *(norm_claims.Curves("block", NORMS, x) for x in (shared, above))
    )
    assert verdict.outcome == outcome
    assert outcome == "holds" or "N = 10" in verdict.statistic


def test_the_weakest_norm_is_the_one_with_the_smallest_number() -> None:
    """.0992 stood as the weakest, of an N with .0125: the largest p belongs to what varies most."""
    drawn = np.random.default_rng(3).normal(size=(SEEDS, len(NORMS)))
    gap = np.where(np.array(NORMS) == 10, 0.05 + 0.012 * drawn, 0.01 + 1e-5 * drawn)
    lower = norm_claims.Curves("block", NORMS, np.zeros_like(gap))
    verdict = judged_above(ANY, lower, norm_claims.Curves("block", NORMS, gap))
    assert verdict.value == pytest.approx(
        0.01, rel=0.01
    ) and "N = 10" not in verdict.statistic.replace("N = 100", "")


def test_what_is_left_of_the_distance_is_judged_where_all_is_nearly_anisotropic() -> (
    None
):
    """Near A = 1 a difference of 1e-5 closes a tenth of what is left; at A = .5 it is nothing."""
    noise = 1e-7 * np.random.default_rng(3).normal(size=(SEEDS, 1))
    for level, outcome in ((1 - 1e-4, "holds"), (0.5, "fails")):
        lower, upper = (
            norm_claims.Curves("block", NORMS[:1], np.full((SEEDS, 1), level + x))
            for x in (0, 1e-5)
        )
        upper = replace(upper, values=upper.values + noise)
        (verdict,) = judge.judge_tests(
            list(norm_claims.test_gap_closes(replace(ANY, floor=0.001), lower, upper))
        )
        assert verdict.outcome == outcome


def test_where_one_more_draw_would_lie_is_wider_than_where_the_mean_does() -> None:
    """By simulation: of further draws 95 % lie there, whatever the six that were made."""
    rng = np.random.default_rng(0)
    inside = 0
    for *drawn, further in rng.normal(5.0, 2.0, size=(2000, 7)):
        ends = (
            norm_claims.describe_one_more(np.array(drawn))
            .removeprefix("one more draw: ")
            .split(" to ")
        )
        inside += float(ends[0]) <= further <= float(ends[1])
    assert inside / 2000 == pytest.approx(0.95, abs=0.02)  # four standard errors
    assert norm_claims.describe_one_more(np.array([1.0, 2.0])) == ""


def test_a_floor_is_for_the_end_of_a_trend_and_not_for_its_beginning() -> None:
    grows = replace(ANY, floor=0.5)
    assert (
        trend(grows, curve(synthetic("m", "hidden", lambda n: 0.01 * n, 1e-4))).outcome
        == "holds"
    )
    assert (
        trend(grows, curve(synthetic("m", "hidden", lambda n: 0.001 * n, 1e-5))).outcome
        == "fails"
    )


def test_what_must_hold_at_every_norm_is_one_test_and_its_contrary_is_many() -> None:
    """A difference with p = .011 holds at one N and at five alike; that it is negative at any of five needs more."""
    drawn = np.random.default_rng(0).normal(size=(SEEDS, 1))
    drawn = (drawn - drawn.mean()) / drawn.std(ddof=1)
    t = 3.3  # one-sided p = .011 with 5 degrees of freedom
    values = np.repeat(drawn + t / np.sqrt(SEEDS), 5, axis=1)
    alone, five = (
        norm_claims.Curves("block", NORMS[:k], values[:, :k]) for k in (1, 5)
    )
    zero = [
        norm_claims.Curves("block", c.norms, np.zeros_like(c.values))
        for c in (alone, five)
    ]
    for lower, upper in zip(zero, (alone, five), strict=True):
        verdict = judged_above(ANY, lower, upper)
        assert (verdict.outcome, verdict.p) == (
            "holds",
            pytest.approx(0.01075, abs=5e-5),
        )
    assert judged_above(ANY, alone, zero[0]).outcome == "fails"
    assert judged_above(ANY, five, zero[1]).outcome == "undecided"
    others = [
        one
        for k in range(5)
        for one in norm_claims.test_above(
            ANY, zero[0], replace(alone, system=f"block {k}")
        )
    ]
    assert {v.outcome for v in judge.judge_tests(others)} == {"undecided"}, (
        "five systems are five questions"
    )


def test_one_seed_decides_nothing() -> None:
    values = np.arange(5.0)[None]
    verdict = trend(ANY, norm_claims.Curves("block", NORMS, values))
    assert verdict.outcome == "undecided"


def test_share_of_seeds_has_an_exact_interval() -> None:
    values = np.zeros((8, 2))
    values[:, 1] = [1, 1, 1, -1, -1, -1, -1, -1]
    verdict = norm_claims.judge_share(
        ANY, norm_claims.Curves("block", (0.0, 1.0), values)
    )
    assert (verdict.outcome, verdict.value) == ("holds", 3 / 8)
    assert (verdict.low, verdict.high) == pytest.approx((0.0852, 0.7551), abs=1e-3)
    values[:, 1] = 1
    assert (
        norm_claims.judge_share(
            ANY, norm_claims.Curves("block", (0.0, 1.0), values)
        ).outcome
        == "undecided"
    )


def crossings(counts: list[int], norms: list[float]) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for seed, (count, n) in enumerate(zip(counts, norms, strict=True)):
        rows.append(
            {"metric": "fixed_point.mean_norm.crossings", "seed": seed, "value": count}
        )
        if count:
            rows.append(
                {
                    "metric": "fixed_point.mean_norm",
                    "component": "1",
                    "seed": seed,
                    "value": n,
                }
            )
            rows.append(
                {
                    "metric": "fixed_point.mean_norm.norm",
                    "component": "1",
                    "seed": seed,
                    "value": n,
                }
            )
    return as_records(
        pd.DataFrame(rows),
        model="block",
        site="hidden",
        corpus="uniform inputs 16 × 512 × 64",
    )


@pytest.mark.parametrize(
    ("counts", "outcome", "words"),
    [
        ([1, 1, 1], "holds", "one in 3 seeds"),
        ([0, 0, 0], "fails", "none in 3 seeds"),
        ([1, 0, 1], "undecided", "one in 2 seeds, none in 1 seeds"),
        ([2, 1, 1], "undecided", "several in 1 seeds"),
    ],
)
def test_existence_of_a_fixed_point_is_stated(
    counts: list[int], outcome: str, words: str
) -> None:
    verdict = fig06_bias._judge_fixed(
        fig06_bias.MEAN, crossings(counts, [5.0, 6.0, 7.0]), "block"
    )
    assert verdict.outcome == outcome
    assert words in verdict.reason
    assert (verdict.value is None) == (not any(counts))


@pytest.mark.parametrize(
    ("scale", "outcome"),
    [(1.0, "holds"), (2.0, "holds"), (10.0, "fails"), (0.1, "fails")],
)
def test_norms_at_the_fixed_point_are_compared_per_dimension(
    scale: float, outcome: str
) -> None:
    """Trained: width 16, norms of the mean 4 (= √16). The block of width 64 meets them at 8 = √64. Token norms are
    another thing: the norm of a mean is compared with norms of means.
    """
    rows = [{"layer": layer, "metric": "drift", "value": 4.0} for layer in (1, 2)]
    rows += [
        {"layer": layer, "metric": "norms.mean", "value": 400.0} for layer in (1, 2)
    ]
    rows += [
        {"layer": layer, "metric": "mean_cosine.isotropic_q95", "value": q95(16)}
        for layer in (1, 2)
    ]
    trained = as_records(pd.DataFrame(rows), model="trained", site="hidden")
    records = pd.concat(
        [crossings([1, 1, 1], [8 * scale, 8.1 * scale, 7.9 * scale]), trained],
        ignore_index=True,
    )
    share = fig06_bias._select_trained_share(records, "drift")
    (verdict,) = judge.judge_tests(
        [fig06_bias._make_test_of_order(records, "block", share)]
    )
    assert verdict.value == pytest.approx(scale, rel=0.01)
    assert verdict.outcome == outcome


@pytest.mark.parametrize(
    ("value", "half", "text"),
    [
        (9.943, 0.84, "9.9 ± 0.8"),
        (27.71234, 0.0003, "27.7123 ± 0.0003"),
        (120.4, 31.0, "120 ± 31"),
        (5.0, np.nan, "5"),
    ],
)
def test_a_fixed_point_is_written_to_its_own_precision(
    value: float, half: float, text: str
) -> None:
    assert fig06_bias._format_with_error(value, value - half, value + half) == text


@pytest.mark.parametrize("d", (2, 3, 64, 384, 768, 8192))
def test_the_width_is_read_back_from_its_quantile(d: int) -> None:
    # However it was rounded when it was recorded.
    for bound in (q95(d), np.nextafter(q95(d), 0), np.nextafter(q95(d), 1)):
        assert layer_curves.infer_width(float(bound)) == d


def test_growth_too_small_to_see_is_no_sharpening() -> None:
    parts = []
    for name, base, step in (
        ("row_max", 0.002, 1e-6),
        ("row_min", 0.001, -5e-7),
        ("entropy", 6.0, -1e-6),
    ):
        parts.append(
            synthetic(
                f"attention.{name}",
                "attention",
                lambda n, b=base, s=step: b + s * n,
                1e-9,
            )
        )
    verdicts = {
        v.claim: v
        for v in NAMED["fig9"].judge(
            pd.concat([*parts, fixed_points(5.0)], ignore_index=True)
        )
    }
    assert {v.outcome for v in verdicts.values()} == {"fails"}


def fixed_points(norm: float) -> pd.DataFrame:
    """N* of every seed."""
    rows = [
        {
            "metric": "fixed_point.mean_norm",
            "site": "hidden",
            "seed": seed,
            "component": "1",
            "value": norm * (1 + 0.01 * seed),
        }
        for seed in range(SEEDS)
    ]
    return as_records(
        pd.DataFrame(rows), model="block", corpus="uniform inputs 16 × 512 × 64"
    )


@pytest.mark.parametrize(
    ("norm", "outcome"), [(50.0, "holds"), (5.0, "fails"), (None, "undecided")]
)
def test_the_largest_weight_is_judged_where_the_block_keeps_its_bias(
    norm: float | None, outcome: str
) -> None:
    """At N = 100, 16 times beyond N*, it had grown sixfold, where at N* it had by 2 %."""
    grown = synthetic(
        "attention.row_max", "attention", lambda n: 0.002 * (1 + n / 20), 1e-7
    )
    others = [
        synthetic(f"attention.{name}", "attention", lambda _n: 1.0, 1e-7)
        for name in ("row_min", "entropy")
    ]
    parts = [grown, *others] + ([] if norm is None else [fixed_points(norm)])
    verdicts = {
        v.claim: v for v in NAMED["fig9"].judge(pd.concat(parts, ignore_index=True))
    }
    assert verdicts["row-max-doubles-by-100"].outcome == "holds"
    assert verdicts["row-max-doubles"].outcome == outcome
    if norm == 5.0:
        assert verdicts["row-max-doubles"].word == "too small"


@pytest.mark.parametrize(
    ("a", "outcome"), [(0.25, "holds"), (0.15, "fails"), (float(q95(64)), "undecided")]
)
def test_queries_are_held_against_the_quantile_of_a_head(
    a: float, outcome: str
) -> None:
    """Width 768 and 12 heads: q95(64) = .206, where q95(768) is .059."""
    drawn = np.random.default_rng(0).normal(size=(SEEDS, len(NORMS)))
    rows = [
        {
            "metric": metric,
            "site": f"{side}.raw",
            "seed": i,
            "component": f"{n:g}",
            "head": head,
            "value": a + 0.001 * drawn[i, j],
        }
        for metric in ("mean_cosine", "norms.mean")
        for side in ("query", "key")
        for (i, j), n in np.ndenumerate(np.broadcast_to(NORMS, drawn.shape))
        for head in (None, 11)
    ]
    records = as_records(
        pd.DataFrame(rows),
        model="block",
        layer=1,
        corpus="uniform inputs 16 × 512 × 768",
    )
    found = [v for v in NAMED["fig8"].judge(records) if "without-bias" in v.claim]
    assert [v.outcome for v in found] == [outcome, outcome]
    assert "0.206" in found[0].statistic


@pytest.mark.parametrize(("factor", "outcome"), [(2.0, "holds"), (0.5, "fails")])
def test_sequences_are_compared_with_rows_by_growth(
    factor: float, outcome: str
) -> None:
    """The level of an extreme over a sequence is above that over rows by construction; its growth need not be."""
    parts = [
        synthetic("attention.row_max", "attention", lambda n: 0.1 + 0.001 * n, 1e-5),
        synthetic(
            "attention.sequence_max",
            "attention",
            lambda n: 0.2 + factor * 0.001 * n,
            1e-5,
        ),
        synthetic(
            "attention.sequence_min", "attention", lambda n: 0.1 - 0.001 * n, 1e-5
        ),
    ]
    verdicts = {
        v.claim: v.outcome
        for v in NAMED["fig10"].judge(pd.concat(parts, ignore_index=True))
    }
    assert verdicts == {
        "sequence-max-grows": "holds",
        "sequence-min-shrinks": "holds",
        "clearer-than-in-rows": outcome,
    }


# --- the studies as a whole ---


@pytest.fixture(scope="module")
def small_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[BlockSettings, Context]:
    folder = tmp_path_factory.mktemp("studies")
    size = Size(sequences=3, tokens=20, width=32, heads=4)
    settings = BlockSettings(
        (RAW, FULL), 3, (size,), (0.0, 1.0, 10.0, 31.62, 100.0), trained=()
    )
    return settings, Context(folder, folder / "cache")


def test_histograms_are_added_over_seeds_and_drawn_without_loss(
    small_run: tuple[BlockSettings, Context],
) -> None:
    records = fig07_scores.measure(*small_run)
    counts = select(
        records,
        metric="attention.score_histogram_within",
        model="bert:raw-table, width 32, heads 4",
    )
    at = counts[counts["component"].str.startswith("10 ")]
    assert (
        at["value"].sum() == 3 * 3 * 4 * 1 * 20
    )  # seeds, sequences, heads, every 16th of 20 rows, keys
    bins = at["component"].str.split(" ").str[1].astype(int).to_numpy()
    size = np.abs(np.repeat(fig07_scores.MIDDLES[bins], at["value"].astype(int)))
    counts = np.bincount(bins, at["value"], len(fig07_scores.MIDDLES))
    reach = fig07_scores.find_reach(counts)
    assert (size < reach).mean() < 0.995 <= (size <= reach).mean()
    x, height = fig07_scores.estimate_density(counts, 2 * reach).to_numpy().T
    assert height.max() == 1
    spread = np.sqrt(np.trapezoid(x**2 * height, x) / np.trapezoid(height, x))
    assert spread == pytest.approx(np.sqrt((size**2).mean()), rel=0.05)
    x, share = fig07_scores.compute_shares(counts, 1e-3).to_numpy().T
    assert share.sum() == pytest.approx(1)
    assert 1e-3 * np.sqrt((x**2 * share).sum()) == pytest.approx(
        np.sqrt((size**2).mean()), rel=0.05
    )


def test_curves_inside_rows_share_the_axis_of_the_largest_norm(
    small_run: tuple[BlockSettings, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[np.ndarray[Any, Any], float]] = []
    estimate = fig07_scores.estimate_density

    def note(counts: np.ndarray[Any, Any], widest: float) -> pd.DataFrame:
        given.append((counts, widest))
        return estimate(counts, widest)

    monkeypatch.setattr(fig07_scores, "estimate_density", note)
    fig07_scores.draw(fig07_scores.measure(*small_run))
    n_norms = len(small_run[0].norms)
    assert len(given) == 2 * n_norms
    for first in (0, n_norms):
        of_system = given[first : first + n_norms]
        reach = [fig07_scores.find_reach(counts) for counts, _ in of_system]
        assert reach[-1] > 10 * reach[0]
        assert {widest for _, widest in of_system} == {reach[-1]}


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_every_study_measures_judges_and_draws(
    study: Study, small_run: tuple[BlockSettings, Context]
) -> None:
    records = study.measure(*small_run)
    assert list(records.columns) == list(COLUMNS)
    verdicts = list(study.judge(records))
    assert {v.subject for v in verdicts} == {
        f"{system}, width 32, heads 4" for system in (RAW, FULL)
    }
    judged = {v.claim for v in verdicts}
    assert judged == {claim.name for claim in study.claims} - (
        {fig06_bias.TRAINED.name} if study.name == "fig6" else set()
    )
    charts = study.draw(records)
    assert charts
    for name, chart in charts.items():
        assert name.startswith(study.name)
        assert "raw table" in str(chart.to_dict()["datasets"])


def test_the_law_of_the_cosine_is_sampled_and_judged(tmp_path: Path) -> None:
    fig17, fig18 = fig17_18_cosine_law.STUDIES
    records = fig17.measure(
        fig17_18_cosine_law.Law((4, 64), 3000), Context(tmp_path, tmp_path)
    )
    assert [v.outcome for v in fig17.judge(records)] == ["identity", "identity"]
    wrong = records.assign(
        value=records["value"].where(records["metric"] != "cosine_law.ks_p", 1e-6)
    )
    assert [v.outcome for v in fig17.judge(wrong)] == ["identity", "fails"]
    (drawn,) = (chart.to_dict() for chart in fig17.draw(records).values())
    assert {row["value"] for data in drawn["datasets"].values() for row in data} <= {
        *records["value"]
    } | {None}
    assert fig18.settings["quick"].models == (
        ("builtin:minilm", "builtin:python-docs"),
    )


@pytest.mark.parametrize(
    ("a", "outcome"), [(0.5, "holds"), (0.05, "fails"), (q95(384), "undecided")]
)
def test_layers_are_held_against_the_quantile_of_their_width(
    a: float, outcome: str
) -> None:
    rows = []
    for layer in (0, 1):
        rows.append(
            {"metric": "mean_cosine", "layer": layer, "value": 0.5 if layer else a}
        )
        rows.append(
            {"metric": "mean_cosine.isotropic_q95", "layer": layer, "value": q95(384)}
        )
    frame = pd.DataFrame(rows).assign(
        low=lambda x: x["value"] - 0.01, high=lambda x: x["value"] + 0.01
    )
    records = as_records(
        frame, model="m", site="hidden", stack="encoder", n_units=60, n_vectors=1000
    )
    (verdict,) = fig17_18_cosine_law.judge_points(records)
    assert isinstance(verdict, Verdict) and verdict.outcome == outcome
    assert "q95(384) = 0.084" in verdict.reason
    chart = fig17_18_cosine_law.draw_points(records)["fig18"].to_dict()
    laws: dict[str, dict[int, float]] = {}
    for data in chart["datasets"].values():
        for row in data:
            if row.get("law"):
                laws.setdefault(row["law"], {})[row["d"]] = row["value"]
    one_pair, mean = (
        laws[f"95 % of {name}"]
        for name in ("isotropic pairs", "means over 1,000 vectors")
    )
    # A mean of many pairs stays far closer to 0 than a single one.
    assert one_pair == pytest.approx({d: q95(d) for d in one_pair})
    assert mean == pytest.approx({d: mean_cosine_quantile(0.95, d, 1000) for d in mean})
    assert set(one_pair) == set(mean) >= {4, 16384}
