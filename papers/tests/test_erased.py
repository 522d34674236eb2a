"""Retrained erasure: what is erased of a corpus, what a classifier trained on it can still do, and what follows."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from anisoscope.charts import export
from anisoscope.classes.faithfulness import select_highest
from anisoscope.data.labelled import SPLITS, Example
from anisoscope.store import as_records, select
from anisoscope_papers import runner
from anisoscope_papers.beyond import erased
from anisoscope_papers.beyond.erased import (
    ATTENTION,
    DIRECTIONS,
    FIFTH,
    FOUND,
    HALF,
    MAPS,
    RANDOM,
    name_arm,
)
from anisoscope_papers.fosse2023 import grid, trained_cells
from anisoscope_papers.fosse2023.grid import Cell
from anisoscope_papers.study import Context

(STUDY,) = (study for study in runner.find_studies() if study.name == "erased")
PLAN = replace(
    grid.QUICK, corpora=("synthetic",), seeds=1, limit=600, epochs=12, patience=4
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A classifier that has learnt the synthetic keywords, the records of the study on it, and the maps it used."""
    folder = tmp_path_factory.mktemp("erased")
    context = Context(folder, folder / "cache")
    used, of_study = [], erased.Maps
    with pytest.MonkeyPatch.context() as patch:  # two arms, as every one takes seconds
        patch.setattr(
            erased, "choose_shares", lambda _corpus: {HALF: (DIRECTIONS, RANDOM)}
        )
        patch.setattr(
            erased, "Maps", lambda trained: used.append(of_study(trained)) or used[-1]
        )
        records = STUDY.measure(PLAN, context)
    (trained,) = trained_cells.apply_to_each(
        [Cell("synthetic")], PLAN, context, lambda t: t
    )
    (maps,) = used
    return trained, records, context, maps


@pytest.fixture(scope="module")
def maps(measured):
    return measured[3]


def test_an_example_keeps_what_is_not_erased_of_either_text():
    pair = Example(("a", "b", "c"), 1, ("d", "e"), (0.0, 1.0, 0.0, 1.0, 0.0))
    keep = np.array([True, False, True, False, False])
    assert erased.keep_words(pair, keep) == Example(("a", "c"), 1, ())
    assert erased.keep_words(
        Example(("a", "b"), 0), np.array([False, True])
    ) == Example(("b",), 0)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("share", [HALF, FIFTH])
def test_every_map_erases_as_many_words_of_each_sentence_of_each_split(
    maps, name, share
):
    corpus, less = maps.trained.corpus, maps.erased(name, share)
    for split in SPLITS:
        for before, after in zip(corpus.splits[split], less.splits[split], strict=True):
            n = len(before.words)
            assert (
                len(after.words) == n - max(1, round(share * n))
                and after.label == before.label
            )
            words = iter(before.words)
            assert all(word in words for word in after.words), (
                "the words that are left, in their order"
            )


def test_directions_take_the_synthetic_words_whichever_class_is_found_and_chance_does_not(
    maps,
):
    """Words of a sentence that people would mark, as far as they are left of one half."""
    corpus, taken = maps.trained.corpus, {}
    for name in MAPS:
        marked = []
        for example, (_, scores) in zip(
            corpus.splits["test"], maps.scored["test"], strict=True
        ):
            marked += select_highest(scores[name], HALF)[
                np.array(example.rationale) > 0
            ].tolist()
        taken[name] = np.mean(marked)
    assert (
        abs(taken[RANDOM] - 0.5) < 0.06
        and min(taken[DIRECTIONS], taken[FOUND], taken[ATTENTION]) > 0.8
    ), taken


def test_only_the_control_knows_the_class_found(maps, measured):
    """Of two classes: by the class found, a word for the other class comes last; by any class, first as well."""
    _, scores = maps.scored["test"][0]
    assert (scores[DIRECTIONS] >= np.abs(scores[FOUND]) - 1e-12).all()
    np.testing.assert_allclose(scores[DIRECTIONS], np.abs(scores[FOUND]), atol=1e-9)
    examples = measured[0].corpus.splits["test"]
    assert maps.predicted["test"] == measured[0].predicted(
        measured[0].encoded(examples)
    )


def test_what_was_learnt_is_gone_with_its_words_and_the_class_found_leaks(measured):
    trained, records, context, _ = measured
    of = select(records, metric="retrained.accuracy").set_index("component")["value"]
    before = select(records, metric="accuracy", component="test")["value"].item()
    assert trained.found.accuracy() == before > 0.8
    assert of[name_arm(DIRECTIONS, HALF)] < 0.65 < of[name_arm(RANDOM, HALF)]
    again = STUDY.measure(replace(PLAN, train=False), context)
    there = again[again["metric"] != "missing"].reset_index(drop=True)
    pd.testing.assert_frame_equal(there, records)


def test_arms_that_are_not_trained_are_counted_not_trained_by_finished(
    measured, monkeypatch
):
    context = measured[2]
    monkeypatch.setattr(
        erased, "train_classifier", lambda *_a, **_k: pytest.fail("trained")
    )
    found = STUDY.measure(replace(PLAN, train=False), context)
    lost = select(found, metric="missing")["component"].tolist()
    planned = [
        name_arm(name, share)
        for share, names in erased.choose_shares("synthetic").items()
        for name in names
    ]
    assert lost == [
        name
        for name in planned
        if name not in (name_arm(DIRECTIONS, HALF), name_arm(RANDOM, HALF))
    ]
    verdicts = STUDY.judge(found)
    assert {v.outcome for v in verdicts} == {"undecided"}
    assert all(
        "5 of the planned classifiers not trained yet" in v.reason for v in verdicts
    )


def row(metric, value, component, corpus, seed):
    cell = Cell(corpus, seed=seed)
    return {"metric": metric, "value": value, "component": component} | {
        "model": cell.label,
        "corpus": corpus,
        "seed": seed,
    }


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(0.1, "holds"), (-0.1, "fails"), (0.02, "undecided"), (0.0, "fails")],
)
def test_a_map_is_faithful_by_what_is_lost_without_its_words(gap, expected):
    """Two points more are the least that counts: none, significant, fails."""
    order = {RANDOM: 0, ATTENTION: 1, DIRECTIONS: 2, FOUND: 0}
    rows = []
    for corpus in grid.REAL:
        for s in range(4):
            rows.append(row("accuracy", 0.8, "test", corpus, s))
            for share, names in erased.choose_shares(corpus).items():
                for name in names:
                    value = (
                        0.7
                        - gap * order[name]
                        + 0.001 * np.sin(7 * s + 3 * order[name])
                    )
                    rows.append(
                        row(
                            "retrained.accuracy",
                            value,
                            name_arm(name, share),
                            corpus,
                            s,
                        )
                    )
                    value = (
                        0.6
                        + gap * (name == FOUND)
                        + 0.001 * np.sin(5 * s + order[name])
                    )
                    rows.append(
                        row(
                            "retrained.agreement",
                            value,
                            name_arm(name, share),
                            corpus,
                            s,
                        )
                    )
    given = as_records(pd.DataFrame(rows))
    verdicts = STUDY.judge(given)
    twice = [
        v.outcome for v in verdicts if v.claim == "directions are faithful"
    ]  # by as much again
    assert {v.outcome for v in verdicts if v.claim != "directions are faithful"} == {
        expected
    }
    assert set(twice) == {"holds" if gap == 0.02 else expected}
    assert {v.claim for v in verdicts} == {claim.name for claim in STUDY.claims}
    assert (
        sum(v.claim == "directions are more faithful than attention" for v in verdicts)
        == 3
    )
    (chart,) = STUDY.draw(given).values()
    assert export.to_svg(chart).startswith("<svg")
