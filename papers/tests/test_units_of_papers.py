"""Small decisions of the studies, each on a few numbers: which end, which of two, from how many on."""

import json
import types

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.errors import CorpusError, MeasureError, ModelError, UsageError
from anisoscope.models.series import Checkpoint
from anisoscope.store import as_records
from anisoscope_papers import runner, series_charts, study_charts, study_names
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
    found = [compared(None), compared(1.0), compared(1.0), compared(9.0)]
    assert count_comparisons(found) == "1 open, 2 agree, 1 differ"
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
    assert hours == ["10 hours", "10.0 hours", "0.9 hours", "56 minutes", "1 minutes"]


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
