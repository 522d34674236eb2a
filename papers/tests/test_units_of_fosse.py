"""Small decisions of the studies of Fosse et al. 2023, each on a few numbers that are all unlike."""

import contextlib
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from anisoscope.data.labelled import TEST, TRAIN, Example, LabelledCorpus
from anisoscope.errors import CorpusError, DivergedError, ModelError, OutputError
from anisoscope.store import as_records, select
from anisoscope.sums.jackknife import estimate_over_seeds
from anisoscope_papers.fosse2023 import (
    __main__ as program,
    entry,
    explained_words,
    fig2_directions,
    grid,
    measurements,
    replaced_attention,
    sec2_cones,
    sec3_curve,
    sec5_compensation,
    simulated_forms,
    table1_accuracy,
    table2_examples,
    table3_depth,
    table4_penalty,
    trained_cells,
)
from anisoscope_papers.fosse2023.entry import Evidence, Measure, Seeds
from anisoscope_papers.fosse2023.grid import (
    COMMON,
    RECIPES,
    Cell,
    Grid,
    add_options,
)
from anisoscope_papers.study import SHARE, Context

NAN = float("nan")
CORPORA = ("yelphat", "hatexplain", "esnli")

# ---- what tables and figures have in common --------------------------------------------------------------------------


def make_evidence(rows, corpus="yelphat", study="table1"):
    frame = as_records(pd.DataFrame(rows))
    return Evidence(study, frame, corpus)


def make_row(metric, value, seed=0, corpus="yelphat", model="m", **more):
    place = {"model": model, "corpus": corpus, "seed": seed}
    return {"metric": metric, "value": value, **place, **more}


def test_classifiers_that_collapsed_are_left_out_with_all_their_rows():
    rows = []
    for model, corpus, seed in product("mn", ("yelphat", "esnli"), (0, 1)):
        lost = (model, corpus, seed) == ("m", "esnli", 1)
        value = 100 * (model == "n") + 10 * (corpus == "esnli") + seed
        rows.append(make_row("accuracy", value, seed, corpus, model))
        rows.append(make_row("collapsed", float(lost), seed, corpus, model))
        # Another number of 1 is no sign of collapse.
        rows.append(make_row("norms.mean", 1.0, seed, corpus, model))
    whole = make_evidence(rows, "")
    assert sorted(whole.find(metric="accuracy")["value"]) == [
        *(0, 1, 10, 100, 101, 110, 111),
    ]
    assert len(whole.sound) == 21 and len(whole.records) == 24
    assert [here.corpus for here in whole.corpora] == ["yelphat", "esnli"]
    assert whole.title == "all corpora" and whole.corpora[1].title == "e-SNLI"


def test_values_are_by_key_and_seed_and_nan_where_there_is_none():
    rows = [
        make_row("accuracy", 10.0 * layer + seed, seed, layer=layer, component=part)
        for layer, seed, part in ((1, 0, "a"), (1, 4, "a"), (2, 4, "b"), (2, 2, "b"))
    ]
    here = make_evidence(rows)
    assert here.seeds == [0, 2, 4]
    found = here.table("layer", metric="accuracy")
    np.testing.assert_array_equal(found[1], [10, NAN, 14])
    np.testing.assert_array_equal(found[2], [NAN, 22, 24])
    np.testing.assert_array_equal(found[3], [NAN] * 3)
    several = here.table("layer", "component", metric="accuracy")
    assert set(several) == {(1, "a"), (2, "b")}
    np.testing.assert_array_equal(several[1, "b"], [NAN] * 3)
    nothing = make_evidence([make_row("missing", 1.0, None)])
    assert nothing.seeds == []
    np.testing.assert_array_equal(nothing.table("layer", metric="x")[1], [NAN])


LOST = [
    make_row("missing", 1.0, 7),
    make_row("missing", 1.0, 8),
    make_row("diverged", 1.0, 9),
    make_row("collapsed", 1.0, 1),
    make_row("collapsed", 1.0, 1, model="n"),
    make_row("collapsed", 1.0, 2),
    make_row("collapsed", 0.0, 0),
    make_row("accuracy", 0.5, 0),
]
MISSING = "2 of the planned classifiers not trained yet"
DIVERGED = "1 diverged: their loss was not finite"


@pytest.mark.parametrize(
    ("values", "collapsed"),
    [
        # By seed: 0, 1, 2, 7, 8, 9.
        ([1, NAN, NAN, NAN, NAN, NAN], 2),
        ([1, NAN, 1, 1, 1, 1], 1),
        ([NAN, 1, 1, 1, 1, 1], 0),
        ([1, 1, 1, 1, 1, 1], 0),
        ([1, 1], 0),
    ],
)
def test_a_note_counts_the_seeds_without_a_number_that_collapsed(values, collapsed):
    here = make_evidence(LOST)
    expected = [MISSING, DIVERGED]
    if collapsed:
        expected.append(f"{collapsed} collapsed and left out")
    assert here.note_on(np.array(values, float)) == "; ".join(expected)
    # Of all of them, by classifier.
    assert here.note == f"{MISSING}; {DIVERGED}; 3 collapsed and left out"
    # Where they count, none is left out.
    assert here.note_with_collapsed == f"{MISSING}; {DIVERGED}"


def test_notes_of_all_corpora_are_those_of_each_once():
    rows = [
        make_row("missing", 1.0, 0, "yelphat"),
        make_row("missing", 1.0, 0, "esnli"),
        make_row("diverged", 1.0, 0, "synthetic:3"),
        make_row("accuracy", 1.0, 0, "hatexplain"),
    ]
    whole = make_evidence(rows, "")
    one = "1 of the planned classifiers not trained yet"
    other = (
        f"{DIVERGED}; generated corpus `synthetic:3` in place of HateXplain, "
        "which is not at hand"
    )
    assert whole.note == f"{one}; {other}" == whole.note_on(np.array([NAN]))
    assert whole.note_with_collapsed == whole.note
    collapsed = make_evidence([*rows, make_row("collapsed", 1.0, 1, "esnli")], "")
    assert "1 collapsed and left out" in collapsed.note
    assert collapsed.note_with_collapsed == whole.note


def test_a_test_between_two_ends_lies_around_its_centre():
    rows = [make_row("accuracy", 0.5, seed) for seed in range(4)]
    here = make_evidence([*rows, make_row("collapsed", 1.0, 3)], study="table3")
    values = np.array([0.5, 0.6, 0.7, NAN])
    name = "keys of one layer as published"
    within = here.claims[name].within
    test = here.test(name, values, "L = 2", around=0.55)
    assert test.inside == pytest.approx((0.55 - within, 0.55 + within))
    assert test.subject == "YelpHat, L = 2" and test.value == pytest.approx(0.6)
    assert "1 collapsed and left out" in test.note
    known = here.test(name, values[:3], of_several=True)
    assert known.subject == "YelpHat"
    assert "1 collapsed and left out" in known.note
    assert "collapsed" not in here.test(name, values[:3]).note
    assert "collapsed" not in here.test(name, values, with_collapsed=True).note


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_an_interval_is_drawn_from_three_seeds_on(n):
    values = [0.90, 0.97, 0.99][:n]
    rows = [make_row("accuracy", x, s, layer=1) for s, x in enumerate(values)]
    # Words keep the order in which they come, numbers are sorted.
    for order, (corpus, layer) in enumerate((("z", 3), ("z", 2), ("a", 2))):
        for seed in range(3):
            value = order / 10 + seed / 100
            rows.append(make_row("drift", value, seed, corpus, layer=layer))
    rows.append(make_row("accuracy", NAN, 9, layer=1))
    frame = as_records(pd.DataFrame(rows))
    mine = frame[frame["metric"] == "accuracy"]
    found = entry.average_seeds(mine, "corpus", "layer")
    assert len(found) == bool(n)
    if n:
        (row,) = found.to_dict("records")
        value, low, high = estimate_over_seeds(np.array(values), bounds=SHARE)
        assert (row["value"], row["seeds"]) == (pytest.approx(value), n)
        ends = (low, high) if n == 3 else (NAN, NAN)
        assert (row["low"], row["high"]) == pytest.approx(ends, nan_ok=True)
        assert n < 3 or row["high"] <= 1
        (wide,) = entry.average_seeds(mine, "layer", bounds=(-9.0, 9.0)).to_dict(
            "records"
        )
        assert n < 3 or wide["high"] > 1
    others = entry.average_seeds(frame[frame["metric"] == "drift"], "corpus", "layer")
    keys = others[["corpus", "layer"]].to_numpy().tolist()
    assert keys == [["z", 2], ["z", 3], ["a", 2]]
    assert others["value"].tolist() == pytest.approx([0.11, 0.01, 0.21])
    panels = entry.average_panels({"x": mine, "y": frame[:0]}, "layer")
    assert panels["quantity"].tolist() == ["x"] * bool(n)


def test_growth_is_from_the_first_layer_or_from_step_0_to_the_last_layer():
    nothing = np.full(2, NAN)
    values = {
        (1, 1): [0.9, 0.8],
        (2, 1): [0.1, 0.2],
        (2, 2): [0.4, 0.3],
        (3, 1): [0.3, NAN],
        (3, 2): [9.0, 9.0],
        (3, 3): [0.8, 0.7],
    }
    start = {
        (2, 1): [5.0, 5.0],
        (2, 2): [0.35, 0.1],
        (3, 3): [0.2, 0.5],
        (3, 1): [7.0, 7.0],
    }
    table, first = (
        Seeds({key: np.array(x) for key, x in each.items()}, nothing)
        for each in (values, start)
    )
    found = entry.compute_growth(table)
    assert found == pytest.approx([(0.3 + 0.5) / 2, 0.1])
    found = entry.compute_growth(table, first)
    assert found == pytest.approx([(0.05 + 0.6) / 2, (0.2 + 0.2) / 2])
    alone = Seeds({(1, 1): np.array([0.5, 0.6])}, nothing)
    assert np.isnan(entry.compute_growth(alone)).all()


def test_a_rank_correlation_passes_over_points_that_either_side_lacks():
    x = np.array([1.0, 5.0, NAN, 3.0, 4.0, 9.0])
    y = np.array([2.0, 4.0, -9.0, NAN, 8.0, 6.0])
    expected = stats.spearmanr([1, 5, 4, 9], [2, 4, 8, 6]).statistic
    assert entry.compute_spearman(x, y) == pytest.approx(expected)
    assert entry.compute_spearman(x, y, 4) == pytest.approx(expected)
    assert np.isnan(entry.compute_spearman(x, y, 5))
    ones = np.ones(3)
    assert np.isnan(entry.compute_spearman(ones, np.arange(3.0)))
    assert np.isnan(entry.compute_spearman(np.arange(3.0), ones))


def test_quantities_are_correlated_over_the_keys_that_both_have():
    draw = np.random.default_rng(0)
    nothing = np.full(3, NAN)
    x, y = (
        Seeds({key: draw.uniform(size=3) for key in keys}, nothing)
        for keys in ("abcdef", "gfebcd")
    )
    found = entry.compute_correlation(x, y, 5)
    for seed in range(3):
        both = [[table[key][seed] for key in "bcdef"] for table in (x, y)]
        assert found[seed] == pytest.approx(stats.spearmanr(*both).statistic)
    assert np.isnan(entry.compute_correlation(x, y, 6)).all()


def test_a_published_number_is_compared_with_the_mean_of_its_rows():
    here = make_evidence([make_row("accuracy", 0.5)])
    values = [0.5, 0.7, 0.9]
    rows = as_records(
        pd.DataFrame([make_row("accuracy", x, s) for s, x in enumerate(values)])
    )
    found = here.compared("a place", 0.4, rows, "a note")
    ends = estimate_over_seeds(np.array(values), bounds=SHARE)
    assert (found.value, found.low, found.high) == pytest.approx(ends)
    assert (found.n, found.published, found.note) == (3, 0.4, "a note")
    assert found.place == "YelpHat, a place" and found.spread == pytest.approx(0.2)
    one = here.compared("a place", 0.4, rows[:1])
    assert (one.value, one.low, one.spread, one.n) == (0.5, None, None, 1)
    two = here.compared("a place", 0.4, rows[:2])
    assert two.spread == pytest.approx(0.1 * 2**0.5) and two.low < 0.5 < two.high
    none = here.compared("a place", 0.4, rows[:0])
    assert (none.value, none.n) == (None, 0)


def test_a_study_measures_what_it_looks_at_and_its_control(monkeypatch, tmp_path):
    plan, context = Grid(corpora=CORPORA), Context(tmp_path, tmp_path)
    cells = [Cell("yelphat", seed=seed) for seed in (0, 1)]
    asked = []

    def rows(name, *sites):
        named = [{"metric": m, "site": s, "value": 1.0} for m, s in sites]
        return as_records(pd.DataFrame(named), model=name)

    def gather(*given):
        asked.append(given)
        sites = [
            ("norms.mean", "key.raw"),
            ("norms.mean", "value"),
            ("norms.variation", None),
            ("drift", "value"),
        ]
        return rows("trained", *sites)

    def look(_):
        raise AssertionError

    def control(cell):
        return rows(cell, ("norms.mean", "hidden"), ("intra_sequence", "key.raw"))

    def list_untrained(*given):
        asked.append(given)
        return ["first", "second"]

    monkeypatch.setattr(entry, "gather", gather)
    monkeypatch.setattr(entry, "iter_untrained", list_untrained)
    measure = Measure(lambda given: cells * (given is plan), (look,), control)
    found = measure(plan, context)
    assert asked == [
        (cells, plan, context, entry.read_accuracies, look),
        (cells, plan, context),
    ]
    kept = found[["model", "metric", "site"]].to_numpy().tolist()
    assert kept == [
        ["trained", "norms.mean", "key.raw"],
        ["trained", "drift", "value"],
        ["first", "intra_sequence", "key.raw"],
        ["second", "intra_sequence", "key.raw"],
    ]
    asked.clear()
    assert len(replace(measure, control=None)(plan, context)) == 2
    assert len(asked) == 1
    # One trained classifier is enough to look at.
    assert not measure.at_hand(plan, tmp_path)
    folder = trained_cells.name_folder(cells[1], plan, tmp_path)
    folder.mkdir(parents=True)
    assert not measure.at_hand(plan, tmp_path)
    (folder / trained_cells.TOLD).touch()
    assert measure.at_hand(plan, tmp_path)


def test_numbers_are_compared_corpus_by_corpus_if_any_were_published():
    rows = [
        make_row("accuracy", 0.5, 0, name) for name in ("yelphat", "synthetic", "esnli")
    ]
    study = entry.declare_entry(
        "table1",
        measure=lambda *_: None,
        tests=lambda _: [],
        draw=lambda whole: whole.corpus,
        compare=lambda here: [here.corpus],
    )
    records = as_records(pd.DataFrame(rows))
    assert study.compare(records) == ["yelphat", "esnli"]
    assert study.judge(records) == [] and study.draw(records) == ""
    assert study.paper == "fosse2023" and study.at_hand is None


# ---- the grid --------------------------------------------------------------------------------------------------------


def make_plan(**given):
    return Grid(corpora=CORPORA, **given)


def test_cells_of_every_part_of_the_grid():
    plan = make_plan(
        seeds=2,
        depths={"yelphat": 3, "hatexplain": 2, "esnli": 1},
        weights=(0.0, 0.5),
        large=(7.0,),
        sizes=((48, 2, 1), (96, 3, 2)),
        contrast=(0.0, 0.25),
        size_seeds=3,
        start_seeds=4,
        examples=(20, 60),
        fine_seeds=3,
        position_seeds=(5, 1),
        direction_seeds=3,
        splits=3,
        arm_seeds=(3, 1),
        even_seeds=2,
        encoder="an/encoder",
    )
    expected = {
        "by_depth": [
            Cell(name, layers=n, seed=seed)
            for seed in range(2)
            for name, depth in zip(CORPORA, (3, 2, 1), strict=True)
            for n in range(1, depth + 1)
        ],
        "by_weight": [
            Cell(name, weight=weight, seed=seed)
            for seed in range(2)
            for name in CORPORA
            for weight in (0.0, 0.5, 7.0)
        ],
        "by_start": [
            Cell(name, seed=seed, start=start)
            for seed in range(4)
            for name in CORPORA
            for start in ("raw", "random")
        ],
        "by_size": [
            Cell("yelphat", "attention", layers, weight, dim, heads, seed)
            for seed in range(3)
            for dim, heads, layers in ((48, 2, 1), (96, 3, 2))
            for weight in (0.0, 0.25)
        ],
        "by_examples": [
            Cell("esnli", seed=seed, examples=count)
            for count in (20, 60)
            for seed in range(3)
        ],
        "fine_tuned": [
            Cell(name, "an/encoder", seed=seed) for seed in range(3) for name in CORPORA
        ],
        "by_split": [
            Cell(name, seed=seed, arm=arm, positions=kind, split=split)
            for seed in range(5)
            for kind in ("sinusoidal", "none")
            for name in CORPORA
            for arm in ("learned", "uniform")
            for split in (range(3) if name == "yelphat" else [0])
        ],
        "by_direction": [
            Cell(name, seed=seed, positions=kind, start=start)
            for seed in range(3)
            for kind in ("sinusoidal", "none")
            for name in CORPORA
            for start in ("scaled", COMMON)
        ],
    }
    assert RECIPES["sinusoids"] == ("sinusoidal", 1.0)
    for name, cells in expected.items():
        assert getattr(plan, name)() == cells, name
    arms = plan.by_arm()
    assert len(arms) == len(set(arms))
    every = ("learned", "uniform", "random", "frozen")
    # Seed by seed all corpora and arms, so that what is half trained can be judged.
    asked = [(1, 0, every), (1, 1, every), (1, 2, every), (2, 0, every)]
    assert arms == [
        Cell(name, layers=layers, seed=seed, arm=arm)
        for layers, seed, of_seed in [*asked, (2, 1, ("learned", "uniform"))]
        for name in CORPORA
        for arm in of_seed
    ]
    whole = plan.everything()
    of_weights = [c for c in expected["by_weight"] if c.weight != 7]
    assert whole[: len(of_weights)] == of_weights
    behind = whole[len(of_weights) :]
    assert behind[: len(expected["fine_tuned"])] == expected["fine_tuned"]
    assert behind[len(expected["fine_tuned"])].weight == 7


def test_cells_of_later_seeds_are_trained_last():
    plan = make_plan(seeds=5, weights=(0.0, 0.5), large=(7.0,))
    whole = plan.everything()
    places = {cell: place for place, cell in enumerate(whole)}
    late = [places[c] for c in plan.by_weight() if c.seed > 2 and c.weight]
    others = [c for c in whole if c not in set(plan.by_weight())]
    assert min(late) > max(places[c] for c in others)


def test_options_are_read_back_from_every_name():
    given = {
        "own": {},
        "other size": {"dim": 48, "heads": 4},
        "other start": {"start": "raw"},
        "fixed length": {"steps": 480, "freeze_after": 38, "arm": "frozen"},
        "other split": {"split": 3, "positions": "none"},
        "other positions": {"scale": 0.25, "arm": "uniform"},
        "other attention": {"arm": "random", "layers": 3},
        "fewer examples": {"examples": 2000, "weight": 0.01},
    }
    names = {Cell("c", **more).label: family for family, more in given.items()}
    names |= {Cell("c").label + " untrained": "untrained"}
    names |= {"an/encoder": "fine-tuned", "an/encoder pre-trained": "pre-trained"}
    names |= {"an/encoder untrained": "untrained"}
    records = as_records(
        pd.DataFrame([{"model": name, "value": 1.0} for name in names])
    )
    found = add_options(records).set_index("model")
    assert found["family"].to_dict() == names
    for more in given.values():
        cell = Cell("c", **more)
        row = found.loc[cell.label]
        for option in (
            *("layers", "weight", "dim", "heads", "start", "arm", "positions"),
            *("scale", "split"),
        ):
            assert row[option] == getattr(cell, option), (cell.label, option)
        for option in ("steps", "freeze_after", "examples"):
            known = getattr(cell, option)
            assert row[option] == known or (known is None and np.isnan(row[option]))


@pytest.mark.parametrize("lost", grid.REAL)
def test_real_corpora_are_taken_only_if_all_are_at_hand(monkeypatch, lost):
    monkeypatch.setattr(grid, "find_copy", lambda name: name != lost)
    assert Grid().names() == grid.SYNTHETIC
    monkeypatch.setattr(grid, "find_copy", lambda _: True)
    assert Grid().names() == grid.REAL
    assert make_plan().names() == CORPORA


def test_every_study_asks_for_its_own_classifiers_and_looks_at_them_in_its_own_way():
    plan = make_plan(
        seeds=2, weights=(0.0, 0.1, 0.2), large=(6.0,), fine_seeds=2, examples=(20,)
    )
    tuned, deep = plan.fine_tuned(), plan.by_depth()
    one_layer = [cell for cell in deep if cell.layers == 1]
    geometry = measurements.measure_geometry
    short = measurements.measure_population
    expected = {
        table1_accuracy: ([*tuned, *one_layer, *plan.by_examples()], (), None),
        table2_examples: (
            [cell for cell in tuned if cell.corpus == "yelphat"],
            (table2_examples.find_examples,),
            None,
        ),
        table3_depth: (deep, (geometry,), geometry),
        table4_penalty: ([*plan.by_weight(), *plan.by_start()], (short,), short),
        fig2_directions: (tuned, (fig2_directions.measure_directions,), None),
        sec2_cones: (plan.by_weight(large=False), (sec2_cones.measure_cones,), None),
        sec3_curve: (tuned, (geometry,), geometry),
        sec5_compensation: (plan.by_size(), (geometry,), None),
        replaced_attention: (
            [*plan.to_replace(), *tuned],
            (geometry, replaced_attention.measure_replaced),
            None,
        ),
        explained_words: ([*deep, *tuned], (explained_words.explain_words,), None),
    }
    for module, (cells, looks, control) in expected.items():
        measure = module.STUDY.measure
        assert list(measure.cells(plan)) == cells, module.__name__
        assert (measure.looks, measure.control) == (looks, control), module.__name__
        assert module.STUDY.at_hand == measure.at_hand


# ---- trained classifiers ---------------------------------------------------------------------------------------------


def make_corpus(fingerprint="f"):
    splits = {
        split: tuple(
            Example((f"{split}{i}",), label=label)
            for i, label in enumerate([0, 0, 0, 0, 1, 1, 1, 1])
        )
        for split in (TRAIN, "validation", TEST)
    }
    corpus = LabelledCorpus("reviews", ("a", "b"), splits)
    return SimpleNamespace(
        fingerprint=fingerprint,
        splits=corpus.splits,
        labels=corpus.labels,
        name="reviews",
    )


def make_trained(monkeypatch, tmp_path, training):
    plan = make_plan(limit=50, utterances=4)
    opened = []

    def open_corpus(*given):
        opened.append(given)
        return make_corpus()

    monkeypatch.setattr(trained_cells, "open_corpus", open_corpus)
    monkeypatch.setattr(trained_cells, "hash_read", lambda _: {"vectors": "h"})
    made = trained_cells.Trained(Cell("yelphat", split=3), plan, tmp_path)
    made.__dict__["found"] = SimpleNamespace(training=training, max_length=9)
    return made, opened


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"corpus": {"fingerprint": "f"}}, ""),
        ({"corpus": {"fingerprint": "f"}, "read": {"vectors": "h"}}, ""),
        ({"corpus": {"fingerprint": "g"}}, "the reviews that the classifiers"),
        (
            {"corpus": {"fingerprint": "f"}, "read": {"vectors": "i"}},
            "the vectors that the classifier in .* was trained with",
        ),
    ],
)
def test_what_a_classifier_is_measured_on_is_what_it_was_trained_on(
    monkeypatch, tmp_path, training, words
):
    made, opened = make_trained(monkeypatch, tmp_path, training)
    if words:
        with pytest.raises(OutputError, match=words) as caught:
            _ = made.corpus
        # Of a corpus that changed all classifiers are told, of a file this one.
        folder = tmp_path if "read" in training else tmp_path.parent
        assert f" in {folder} " in str(caught.value)
        return
    assert made.corpus.name == "reviews"
    assert opened == [("yelphat", 50, 3)]
    # As many of each class, of the test split unless another is named.
    assert [e.words[0] for e in made.examples(4)] == [
        "test0",
        "test1",
        "test4",
        "test5",
    ]
    assert [e.words[0] for e in made.examples(2, TRAIN)] == ["train0", "train4"]


def test_classes_and_directions_are_of_the_measured_utterances(monkeypatch, tmp_path):
    training = {"corpus": {"fingerprint": "f"}}
    made, _ = make_trained(monkeypatch, tmp_path, training)
    made.__dict__["classifier"] = ("model", SimpleNamespace(pad_token_id=5))
    asked = []

    def encode(examples, tokenizer, length):
        assert length == 9 and tokenizer.pad_token_id == 5
        return SimpleNamespace(labels=[e.label for e in examples], examples=examples)

    def pool(model, batches):
        asked.append((model, batches))
        n = len(batches[0].examples)
        return np.arange(1.0, 1 + n * 6).reshape(n, 3, 2)

    monkeypatch.setattr(trained_cells, "encode", encode)
    monkeypatch.setattr(trained_cells, "LabelledPlan", lambda *given: given)
    monkeypatch.setattr(trained_cells, "pool_vectors", pool)
    monkeypatch.setattr(
        trained_cells,
        "predict_classes",
        lambda model, encoded, pad: [(model, len(encoded.labels), pad)] * 4,
    )
    labels, predicted = made.classes
    assert labels.tolist() == [0, 0, 1, 1]
    assert predicted[0].tolist() == ["model", "4", "5"]
    vectors = np.arange(1.0, 25).reshape(4, 3, 2)[:, -1]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose(made.directions(), unit)
    made.directions("another")
    assert [model for model, _ in asked] == ["model", "another"]
    assert {batches[1] for _, batches in asked} == {5}
    encoded, pad = made.batches(2, TRAIN)
    assert [e.words[0] for e in encoded.examples] == ["train0", "train4"] and pad == 5
    # Some tokenizers have no padding token.
    made.__dict__["classifier"] = ("model", SimpleNamespace(pad_token_id=None))
    assert made._pad == 0


def test_a_corpus_is_opened_at_its_limit_and_divided_by_its_own_seed(monkeypatch):
    monkeypatch.setattr(trained_cells, "open_labelled", lambda name, **how: (name, how))
    # Not the cached function: others would get this one.
    found = trained_cells.open_corpus.__wrapped__("yelphat", 5, 3)
    assert found == ("yelphat", {"limit": 5, "seed": 3})


@pytest.mark.parametrize(("model", "limit"), [("attention", 50), ("an/encoder", 7)])
def test_a_start_reads_the_corpus_that_its_training_would(
    monkeypatch, tmp_path, model, limit
):
    opened = []
    monkeypatch.setattr(
        trained_cells, "open_corpus", lambda *given: opened.append(given)
    )
    cell, plan = Cell("yelphat", model, split=3), make_plan(limit=50, fine_limit=7)
    _ = trained_cells.CellAtStart(cell, plan, tmp_path).corpus
    assert opened == [("yelphat", limit, 3)]


def test_a_start_is_one_for_all_that_begin_with_it(monkeypatch, tmp_path):
    cells = [
        Cell("yelphat", layers=2, weight=0.5),
        Cell("yelphat", layers=2, arm="uniform"),
        Cell("yelphat", layers=2),
        Cell("yelphat", layers=2, start="raw"),
        Cell("lost"),
        Cell("yelphat", "lost/encoder"),
        Cell("yelphat", layers=2, seed=1),
    ]
    told = []
    context = Context(tmp_path, tmp_path, progress=lambda *given: told.append(given))

    def open_corpus(name, *_):
        if name == "lost":
            raise CorpusError("a corpus", "none", "fetch it")
        return make_corpus()

    monkeypatch.setattr(trained_cells, "open_corpus", open_corpus)

    def load(start):
        if not start.cell.attention:
            raise ModelError("an encoder", "none", "fetch it")
        return "model", "t"

    monkeypatch.setattr(trained_cells.CellAtStart, "classifier", property(load))
    plan = make_plan()
    found = list(trained_cells.iter_untrained(cells, plan, context))
    own = [Cell("yelphat", layers=2), Cell("yelphat", layers=2, seed=1)]
    assert [start.cell for start in found] == own
    assert [start.label for start in found] == [c.label + " untrained" for c in own]
    for start in found:
        named = trained_cells.name_folder(start.cell, plan, tmp_path).name
        assert start.folder == tmp_path / "untrained" / named
    assert told == [("models at step 0", n, 4) for n in (1, 2, 3, 4)]


@pytest.mark.parametrize("attention", [True, False])
def test_a_start_has_the_weights_of_its_seed_and_reads_no_validation_texts(
    monkeypatch, tmp_path, attention
):
    """A classifier of attention is as it is built; an encoder is drawn again from the seed, with the same sizes."""
    seeds, built = [], []

    class Network(torch.nn.Linear):
        def __init__(self, config):
            super().__init__(*config)
            self.config = config

    def build(recipe, corpus):
        built.append((recipe.seed, set(corpus.splits)))
        # Weights that were loaded: more random numbers are used up.
        torch.randn(5)
        return trained_cells.Parts(Network((3, 2)), "words", {}, {"max_length": 17})

    set_seed = trained_cells.set_seed
    monkeypatch.setattr(
        trained_cells, "set_seed", lambda seed: seeds.append(seed) or set_seed(seed)
    )
    monkeypatch.setattr(trained_cells, "build_parts", build)
    corpus = LabelledCorpus("reviews", ("a", "b"), dict(make_corpus().splits))
    monkeypatch.setattr(trained_cells.CellAtStart, "corpus", corpus, raising=False)
    cell = Cell("yelphat", seed=6)
    if not attention:
        cell = replace(cell, model="builtin:minilm")
    assert bool(cell.attention) == attention
    start = trained_cells.CellAtStart(cell, make_plan(), tmp_path)
    model, tokenizer = start.classifier
    assert tokenizer == "words" and start.max_length == 17 and not model.training
    assert built == [(6, {TRAIN, TEST})]
    assert seeds == ([6] if attention else [6, 6])
    set_seed(6)
    if attention:
        torch.randn(5)
    assert (model.weight == Network((3, 2)).weight).all()


def test_a_classifier_that_is_lacking_has_a_row_that_says_how(monkeypatch, tmp_path):
    plan, context = make_plan(), Context(tmp_path, tmp_path)
    cells = [Cell("yelphat", seed=seed) for seed in range(4)]
    for seed in (1, 3):
        folder = trained_cells.name_folder(cells[seed], plan, tmp_path)
        folder.mkdir(parents=True)
        (folder / trained_cells.DIVERGED).touch()

    def apply(given, own_plan, own_context, look):
        assert (given, own_plan, own_context) == (cells, plan, context)
        # A classifier that was found counts, whatever lies in its folder.
        return [look(SimpleNamespace(cell=cells[seed])) for seed in (0, 3)]

    def look(name):
        return lambda trained: as_records(
            pd.DataFrame([{"metric": name, "value": float(trained.cell.seed)}])
        )

    monkeypatch.setattr(measurements, "apply_to_each", apply)
    found = measurements.gather(cells, plan, context, look("x"), look("y"))
    assert list(zip(found["metric"], found["value"], strict=True)) == [
        *(("x", 0), ("y", 0), ("x", 3), ("y", 3)),
        *(("diverged", 1), ("missing", 1)),
    ]
    assert found["seed"].tolist()[4:] == [1, 2]
    assert found["model"].tolist()[4:] == [cells[1].label] * 2


def test_a_loss_that_is_not_finite_is_noted_and_the_training_not_repeated(
    monkeypatch, tmp_path
):
    plan, cell = make_plan(limit=5), Cell("yelphat", split=2, seed=4)
    asked = []

    def train(recipe, folder, **how):
        asked.append((recipe, folder, how))
        folder.mkdir(exist_ok=True)
        raise DivergedError("a finite loss", "nan", "a smaller rate")

    monkeypatch.setattr(trained_cells, "train_classifier", train)
    monkeypatch.setattr(trained_cells, "open_corpus", lambda *given: given)
    for _ in range(2):
        trained_cells.train_cell(cell, plan, tmp_path / "cell", "cuda")
    how = {"resume": True, "device": "cuda", "corpus": ("yelphat", 5, 2)}
    assert asked == [(plan.recipe(cell), tmp_path / "cell", how)]
    assert (tmp_path / "cell" / trained_cells.DIVERGED).exists()


def test_heads_are_averaged_and_other_numbers_kept(monkeypatch):
    rows = []
    for layer, site, policy in product(
        (1, 2), ("key.raw", "value"), ("all", "content")
    ):
        place = {"stack": "encoder", "kind": "self", "layer": layer, "site": site}
        place |= {"token_policy": policy, "metric": "intra_sequence"}
        for head in (0, 1):
            value = 100 * layer + 10 * (site == "value") + (policy == "all")
            rows.append(place | {"head": head, "value": value + head})
    of_queries = {"stack": "encoder", "kind": "self", "layer": 3, "site": "attention"}
    for head, value in enumerate((0.25, 0.75)):
        named = {"metric": "attention.row_similarity", "head": head, "value": value}
        rows.append(of_queries | named)
    whole = {"layer": 0, "site": "hidden", "metric": "intra_sequence", "value": 7.0}
    rows.append(whole | {"low": 6.0, "high": 8.0})
    rows.append(whole | {"metric": "norms.mean"})
    # What no study reads.
    rows.append(whole | {"metric": "norms"})
    rows.append(whole | {"component": "0"})
    measured = SimpleNamespace(records=lambda: as_records(pd.DataFrame(rows)))

    def run(*given):
        assert given == ("model", "batches", measurements.MEASURED)
        return measured

    monkeypatch.setattr(measurements, "run_pass", run)
    found = measurements.measure_similarities("model", "batches")
    assert found["head"].isna().all() and len(found) == 11
    # Statistics of the rows of heads are of no token policy.
    of_rows = found[found["metric"] == "attention.row_similarity"]
    assert of_rows["value"].tolist() == [0.5]
    own = found[found["layer"] == 0]
    assert own[["value", "low", "high"]].iloc[0].tolist() == [7, 6, 8]
    for row in found[found["layer"].isin((1, 2))].itertuples():
        place = 10 * (row.site == "value") + (row.token_policy == "all")
        assert row.value == 100 * row.layer + place + 0.5
        assert (row.stack, row.kind, row.metric) == (
            "encoder",
            "self",
            "intra_sequence",
        )


def test_what_studies_read_of_a_classifier_is_measured_and_kept(monkeypatch):
    names = ["intra_sequence", "norms.mean", "norms.variation"]
    names += ["attention.entropy_normalised", "attention.row_similarity"]
    place = {"layer": 1, "site": "key.raw", "value": 1.0}
    given = [*names, "norms.max", "attention.entropy", "attention.row_max"]
    frame = as_records(pd.DataFrame([place | {"metric": name} for name in given]))
    measured = SimpleNamespace(records=lambda: frame)
    monkeypatch.setattr(measurements, "run_pass", lambda *_: measured)
    found = measurements.measure_similarities("model", "batches")
    assert found["metric"].tolist() == names
    asked = measurements.MEASURED
    assert asked.metrics == ("intra_sequence", "norms", "attention")
    assert asked.tokens == ("all", "content", "no-first")


def test_entropies_have_the_ends_of_their_own_form(monkeypatch):
    lengths = [3, 9, 5]
    ends = measurements.find_ends(np.array(lengths))
    values = {}
    for n, form in enumerate(ends, 1):
        values[form] = np.array([0.1, 0.2, 0.6]) * n
    asked = []

    def measure(*given):
        asked.append(given)
        return values

    monkeypatch.setattr(measurements, "measure_entropies", measure)
    batches = SimpleNamespace(encoded=SimpleNamespace(lengths=lengths))
    found = measurements.measure_entropy("model", batches, layer=2)
    assert asked == [("model", batches, (2,))]
    expected = {}
    for form, (low, high) in ends.items():
        expected["cls_entropy", form] = values[form].mean()
        expected["cls_entropy.floor", form] = low
        expected["cls_entropy.ceiling", form] = high
    keys = zip(found["metric"], found["component"], strict=True)
    assert dict(zip(keys, found["value"], strict=True)) == pytest.approx(expected)
    assert set(found["layer"]) == {2} and set(found["n_units"]) == {3}


@pytest.mark.parametrize("name", ["attention", "an/encoder"])
def test_an_encoder_is_measured_on_fewer_utterances_and_before_its_tuning(
    monkeypatch, name
):
    plan = make_plan(utterances=30, erased=7)
    made = SimpleNamespace(
        cell=Cell("yelphat", name),
        plan=plan,
        classifier=("tuned", None),
        corpus=SimpleNamespace(splits={TEST: ()}),
        batches=lambda *given: given,
    )
    asked = []

    def keep(metric):
        def measure(*given):
            asked.append((metric, *given))
            return as_records(pd.DataFrame([{"metric": metric, "value": 1.0}]))

        return measure

    for module in (measurements, replaced_attention):
        monkeypatch.setattr(
            module, "measure_once", lambda _, name, make: make().assign(run=name)
        )
    monkeypatch.setattr(measurements, "measure_similarities", keep("similar"))
    monkeypatch.setattr(measurements, "measure_entropy", keep("entropy"))
    monkeypatch.setattr(replaced_attention, "measure_ablations", keep("replaced"))
    monkeypatch.setattr(
        measurements, "load", lambda name: SimpleNamespace(model=f"{name} as it was")
    )
    geometry = measurements.measure_geometry(made)
    replaced = replaced_attention.measure_replaced(made)
    assert set(geometry["run"]) == {"geometry"} and set(replaced["run"]) == {"replaced"}
    if name == "attention":
        assert asked == [
            ("similar", "tuned", (30, TEST)),
            ("entropy", "tuned", (30, TEST)),
            ("replaced", "tuned", (30,)),
        ]
        return
    assert asked == [
        ("similar", "tuned", (30, TEST)),
        ("similar", "an/encoder as it was", (30,)),
        ("replaced", "tuned", (7,)),
    ]
    assert geometry["model"].iloc[-1] == "an/encoder pre-trained"
    asked.clear()
    # Of YelpHat, its reviews of 50 words.
    measurements.measure_population(made)
    assert asked[0] == ("similar", "tuned", (30, TEST))
    asked.clear()
    made.corpus.splits["test_yelp50"] = ()
    short = measurements.measure_population(made)
    assert asked == [("similar", "tuned", (30, "test_yelp50"))]
    assert set(short["run"]) == {"geometry-short"}


def test_attention_is_replaced_at_the_two_largest_weights_of_the_paper():
    plan = make_plan(seeds=1, weights=(0.0, 0.1, 0.2), large=(6.0,), start_seeds=1)
    weights = {cell.weight for cell in plan.to_replace()}
    # Those beyond the paper's are no part of it.
    assert weights == {0.0, 0.1, 0.2}
    plan = make_plan(seeds=1, weights=(0.1, 0.2), large=(0.2, 6.0), start_seeds=1)
    found = plan.to_replace()
    assert {cell.weight for cell in found if cell.start == "scaled"} == {0.0, 0.1, 0.2}
    assert len(found) == len(set(found))


def test_a_classifier_is_measured_once_for_all_studies_that_ask(
    tmp_path, monkeypatch, capsys
):
    one, other = Cell("yelphat", seed=0), Cell("yelphat", seed=1)
    seen = []
    looks = []
    for name in "abc":
        looks.append(lambda trained, name=name: seen.append((trained.cell.seed, name)))
    asking = (
        Measure(lambda _: (one, other), tuple(looks[:2])),
        Measure(lambda _: (one,), tuple(looks[1:])),
        # Of classifiers that are not of the grid.
        lambda *_: None,
    )
    studies = [SimpleNamespace(measure=measure) for measure in asking]
    monkeypatch.setattr(program.runner, "choose", lambda _: studies)
    plan = SimpleNamespace(everything=lambda: (one, other))
    monkeypatch.setattr(program, "SETTINGS", {"quick": plan})

    def apply_to_each(cells, _plan, context, measure):
        assert context.cache == tmp_path / "cache"
        context.progress("classifiers", 1, 2)
        for cell in cells:
            found = SimpleNamespace(accuracy=lambda: 0.75, collapsed=cell is other)
            yield measure(SimpleNamespace(cell=cell, found=found))

    reports = []

    @contextlib.contextmanager
    def show_progress(title, unit, *, quiet):
        assert (title, unit, quiet) == (
            "2 classifiers of fosse2023",
            "classifiers",
            False,
        )
        yield lambda done, total: reports.append((done, total))

    monkeypatch.setattr(program, "show_progress", show_progress)
    monkeypatch.setattr(program, "apply_to_each", apply_to_each)
    words = ["fosse2023", "--settings", "quick", "--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    program.main()
    assert seen == [(0, "a"), (0, "b"), (0, "c"), (1, "a"), (1, "b")]
    assert reports == [(1, 2)]
    assert capsys.readouterr().out.splitlines() == [
        f"yelphat {one.label} seed 0: 0.750",
        f"yelphat {other.label} seed 1: 0.750 collapsed",
    ]


def test_rows_are_drawn_anew_for_every_number_of_a_simulated_form(
    monkeypatch, tmp_path
):
    lengths = {"a": np.array([3, 5]), "b": np.array([4, 4, 9])}
    monkeypatch.setattr(simulated_forms, "_read_lengths", lambda name, _: lengths[name])
    monkeypatch.setattr(simulated_forms, "DRAWS", 3)
    told = []
    context = Context(tmp_path, tmp_path, progress=lambda *given: told.append(given))
    found = simulated_forms.measure(Grid(corpora=("a", "b")), context)
    assert told == [("corpora", 1, 2), ("corpora", 2, 2)]
    steps = [f"{step:g}" for step in simulated_forms.STEPS]
    kinds = {simulated_forms.DRAWN: 3, simulated_forms.ONE_WORD: 1}
    for (name, own), (kind, draws) in product(lengths.items(), kinds.items()):
        rows = select(found, metric="forms.simulated", corpus=name, site=kind)
        assert set(rows["n_units"]) == {len(own)}
        assert len(rows) == draws * 2 * len(steps)
        for draw in range(draws):
            expected = simulated_forms.simulate_forms(kind, own, draw)
            for form, values in expected.items():
                one = select(rows, seed=draw, component=form)
                assert one["model"].tolist() == steps
                assert one["value"].tolist() == values.tolist()
    mean = select(found, metric="forms.length")
    assert dict(zip(mean["corpus"], mean["value"], strict=True)) == {
        "a": 4,
        "b": pytest.approx(17 / 3),
    }


def test_a_program_without_words_trains_the_paper_s_grid_where_studies_look(
    monkeypatch,
):
    asked = []
    plans = {
        name: SimpleNamespace(everything=tuple, name=name) for name in grid.SETTINGS
    }
    monkeypatch.setattr(program, "SETTINGS", plans)
    monkeypatch.setattr(program.runner, "choose", lambda _: [])

    def apply_to_each(_cells, plan, context, _look):
        asked.append((plan.name, context.folder, context.cache))
        return ()

    monkeypatch.setattr(program, "apply_to_each", apply_to_each)
    monkeypatch.setattr("sys.argv", ["fosse2023"])
    program.main()
    place = Path("runs/reproduction")
    assert asked == [("paper", place, place / "cache")]


# ---- what single studies ask for and compare -------------------------------------------------------------------------


def test_words_are_explained_on_as_few_texts_as_are_erased(monkeypatch):
    asked = []

    def measure(*given, **more):
        asked.append((given, more))
        return "records"

    monkeypatch.setattr(explained_words, "measure_explanations", measure)
    monkeypatch.setattr(
        explained_words, "measure_once", lambda one, name, make: (one, name, make())
    )
    one = SimpleNamespace(
        plan=Grid(erased=7, utterances=99),
        found=SimpleNamespace(max_length=31),
        classifier=("model", "tokenizer"),
        corpus="corpus",
    )
    found = explained_words.explain_words(one)
    assert found == (one, "explained", "records")
    given = ("model", "tokenizer", "corpus")
    assert asked == [(given, {"limit": 7, "max_length": 31})]


@pytest.mark.parametrize("limit", [None, 40])
def test_a_classifier_of_a_part_is_tested_on_the_test_split_of_all(monkeypatch, limit):
    asked = []
    corpus = SimpleNamespace(splits={TEST: "texts", TRAIN: "others"})
    result = {
        "n": 9,
        "accuracy": 0.5,
        "majority": 0.25,
        "by_class": {"a": 0.75, "b": 0.125},
    }

    def measure(*given):
        asked.append(given)
        return result

    monkeypatch.setattr(measurements, "measure_result", measure)
    monkeypatch.setattr(
        measurements, "open_corpus", lambda *given: asked.append(given) or corpus
    )
    monkeypatch.setattr(
        measurements, "measure_once", lambda _one, name, make: (name, make())
    )
    one = SimpleNamespace(
        plan=Grid(limit=limit),
        cell=Cell("esnli", examples=20),
        encoded=lambda texts: f"encoded {texts}",
        predicted=lambda encoded: f"classes of {encoded}",
    )
    name, found = measurements._test_split_model(one)
    assert name == f"tested-{limit or 'all'}"
    assert asked == [
        ("esnli", limit),
        (corpus, TEST, "classes of encoded texts"),
    ]
    rows = found[["metric", "component", "value"]].itertuples(index=False, name=None)
    assert list(rows) == [
        ("accuracy", TEST, 0.5),
        ("majority", TEST, 0.25),
        ("class_accuracy", "a", 0.75),
        ("class_accuracy", "b", 0.125),
    ]
    assert found["n_units"].dropna().tolist() == [9, 9]


@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_examples_of_table_2_are_found_again_by_their_place_in_the_whole_split(
    monkeypatch,
):
    texts = [Example((word,), 0) for word in ("left", "out")]
    words = (("A", "b"), ("a", "c"), ("B",), ("d", "A"), ("e", "b"), ("f", "A", "B"))
    labels, found = np.array([1, 0, 0, 1, 0, 1]), np.array([1, 1, 0, 0, 0, 1])
    measured = [
        Example(text, int(label)) for text, label in zip(words, labels, strict=True)
    ]
    angles = np.radians([10.0, 0.0, 20.0, 50.0, 75.0, 100.0])
    unit = np.stack([np.cos(angles), np.sin(angles)], 1)
    whole = (*texts, *measured)
    monkeypatch.setattr(
        table2_examples,
        "open_corpus",
        lambda name: {"esnli": SimpleNamespace(splits={TEST: whole})}[name],
    )
    monkeypatch.setattr(
        table2_examples, "measure_once", lambda _one, _name, make: make()
    )
    one = SimpleNamespace(
        cell=Cell("esnli"),
        plan=Grid(utterances=6),
        corpus=SimpleNamespace(labels=("no", "yes")),
        classes=(labels, found),
        directions=lambda: unit,
        examples=lambda limit: tuple(measured) if limit == 6 else None,
    )
    records = table2_examples.find_examples(one)
    rows = records[records["metric"] == "example"]
    # The first text of class 0 that is classified correctly is number 2, at 20°.
    assert rows["component"].tolist() == [
        "representative | no | 4",
        "nearest, same class | no | 3",
        "nearest, other class | yes | 2",
        "median, other class | yes | 5",
        "farthest, same class | no | 6",
    ]
    degrees = np.array([0.0, 20, 10, 30, 55])
    assert rows["value"].tolist() == pytest.approx(np.cos(np.radians(degrees)).tolist())
    (overlap,) = records.loc[records["metric"] == "overlap", "value"]
    # Without case: {b} shares nothing with {a, c}, and half of its words with {e, b};
    # for {e, b}, the same half is with {b}: two others have no rank correlation of 3.
    assert np.isnan(overlap)
    one.classes = (np.array([0, 0, 0, 0, 0, 1]), np.where(np.arange(6) == 2, 0, 1))
    records = table2_examples.find_examples(one)
    (overlap,) = records.loc[records["metric"] == "overlap", "value"]
    lower = [{word.lower() for word in text} for text in words]
    others = [0, 1, 3, 4]
    shares = [len(lower[i] & lower[2]) / len(lower[i] | lower[2]) for i in others]
    cosines = [float(unit[i] @ unit[2]) for i in others]
    assert overlap == pytest.approx(stats.spearmanr(cosines, shares).statistic)
    # Without a text of class 0 that is classified correctly there is nothing to show.
    one.classes = (np.array([0, 0, 0, 1, 1, 1]), np.array([1, 1, 1, 0, 0, 1]))
    assert len(table2_examples.find_examples(one)) == 0


def test_shared_words_are_asked_of_every_representative_in_its_own_class():
    draw = np.random.default_rng(2)
    unit = draw.normal(size=(10, 3))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
    words = [frozenset(draw.choice(list("abcdefgh"), 5)) for _ in labels]
    expected = []
    for one, others in ((0, (1, 2, 3)), (2, (0, 1, 3)), (5, (4, 6, 7))):
        cosine = [unit[one] @ unit[i] for i in others]
        share = [
            len(words[one] & words[i]) / len(words[one] | words[i]) for i in others
        ]
        expected.append(stats.spearmanr(cosine, share).statistic)
    assert len({round(x, 6) for x in expected}) > 1
    # The third class has one other text, which has no ranks.
    able = np.array([0, 2, 5, 8])
    found = table2_examples.correlate_overlap(unit, labels, able, words)
    assert found == pytest.approx(np.mean(expected))


def test_published_numbers_are_compared_with_the_rows_that_they_are_about():
    here = SimpleNamespace(
        numbers={"a": {"a": 0.9, "b": 0.1}, "b": {"a": 0.2, "b": 0.8}},
        find=lambda **where: where,
        compared=lambda *given: given,
    )
    place = {"metric": "first.0.5", "site": "tuned"}
    assert list(fig2_directions.compare(here)) == [
        (f"median of {of} to a representative of {to}", x, place | {"component": rows})
        for of, to, x, rows in (
            ("a", "a", 0.9, "a → a"),
            ("b", "a", 0.1, "a → b"),
            ("a", "b", 0.2, "b → a"),
            ("b", "b", 0.8, "b → b"),
        )
    ]
    here.numbers = {"keys": [[0.1], [0.2, 0.3]], "values": [[0.4], [0.5, 0.6]]}
    here.describe_classifiers = lambda **where: (
        f"of {where['layers']} {where['family']}"
    )
    found = []
    for words, published, rows, note in table3_depth.compare(here):
        kept = (rows["site"], rows["layers"], rows["layer"], rows["metric"])
        found.append((words, published, *kept, note))
    alike = "intra_sequence"
    assert found == [
        ("L = 1, layer 1, keys", 0.1, "key.raw", 1, 1, alike, "of 1 own"),
        ("L = 1, layer 1, values", 0.4, "value", 1, 1, alike, "of 1 own"),
        ("L = 2, layer 1, keys", 0.2, "key.raw", 2, 1, alike, "of 2 own"),
        ("L = 2, layer 2, keys", 0.3, "key.raw", 2, 2, alike, "of 2 own"),
        ("L = 2, layer 1, values", 0.5, "value", 2, 1, alike, "of 2 own"),
        ("L = 2, layer 2, values", 0.6, "value", 2, 2, alike, "of 2 own"),
    ]


SEVERAL = {
    table3_depth: {
        *("keys converge", "keys converge by training"),
        *("values converge", "values converge by training"),
        *("deeper models converge more", "keys and values together"),
    },
    sec5_compensation: {
        *("values converge more in larger models", "larger models lose less"),
    },
    replaced_attention: {"geometry replaces attention", "geometry keeps the decision"},
    explained_words: {"the first layer, if any"},
    sec2_cones: set(),
    sec3_curve: set(),
    table2_examples: set(),
    table4_penalty: set(),
}
"""Claims on numbers that come from several classifiers of a seed each."""


@pytest.mark.parametrize("module", SEVERAL, ids=lambda module: module.STUDY.name)
def test_all_that_collapsed_are_told_of_numbers_over_several_classifiers(module):
    """Two classifiers of one seed; of a number that is of one classifier, seeds are counted."""
    rows = [make_row("accuracy", 0.5, 1)]
    rows += [make_row("collapsed", 1.0, 0, model=model) for model in "mn"]
    frame = add_options(as_records(pd.DataFrame(rows)))
    tests = module.make_tests(Evidence(module.STUDY.name, frame))
    found = {test.claim.name: test.note.partition(" and left out")[0] for test in tests}
    assert found == {
        claim.name: f"{2 if claim.name in SEVERAL[module] else 1} collapsed"
        for claim in module.STUDY.claims
    }
    assert SEVERAL[module] <= found.keys()


def test_a_change_of_similarity_may_be_as_large_as_two(monkeypatch):
    rows = []
    # Similarities from −1 to 1, so that their changes are 2, 2 and 1.4.
    for seed, (before, after) in enumerate(((-1.0, 1.0), (-1.0, 1.0), (-0.7, 0.7))):
        for weight, value in ((0, before), (0.1, after)):
            model = f"attention L=1 λ={weight} d=48 h=1"
            one = {"model": model, "corpus": "yelphat", "seed": seed}
            place = {"layer": 1, "site": "value", "token_policy": "all"}
            alike = {"metric": "intra_sequence", "value": value}
            rows.append(one | place | alike)
            right = {
                "metric": "accuracy",
                "component": "test",
                "value": (1 + value) / 2,
            }
            rows.append(one | right)
    drawn = []
    monkeypatch.setattr(
        sec5_compensation.charts, "bars", lambda frame, **_: drawn.append(frame)
    )
    frame = add_options(as_records(pd.DataFrame(rows)))
    sec5_compensation.draw(Evidence("sec5", frame))
    (frame,) = drawn
    assert frame["size"].tolist() == ["d = 48, 1 head, L = 1"] * 2
    ends = frame.set_index("quantity")[["value", "high"]]
    for name, values, most in (
        ("change of sim(V) of layer 1", [2.0, 2.0, 1.4], 2.0),
        ("change of accuracy", [1.0, 1.0, 0.7], 1.0),
    ):
        plain = np.mean(values) + stats.t.ppf(0.975, 2) * stats.sem(values)
        assert plain > most
        assert ends.loc[name, "value"] == pytest.approx(np.mean(values))
        assert ends.loc[name, "value"] < ends.loc[name, "high"] <= most


def test_classifiers_are_described_by_their_test_split_and_without_the_collapsed():
    rows = []
    for seed, (accuracy, lost) in enumerate(((0.75, 0.0), (0.875, 0.0), (0.5, 1.0))):
        # The majority of validation comes first, and is another.
        rows.append(make_row("majority", 0.25, seed, component="validation"))
        rows.append(make_row("majority", 0.625, seed, component="test"))
        rows.append(make_row("accuracy", 0.125, seed, component="validation"))
        rows.append(make_row("accuracy", accuracy, seed, component="test"))
        rows.append(make_row("collapsed", lost, seed))
        rows.append(make_row("accuracy", 0.0, seed, component="test", model="n"))
    here = make_evidence(rows)
    found = here.describe_classifiers(model="m")
    assert found == "accuracy 0.812, majority 0.625, 1 collapsed, left out"
    assert here.describe_classifiers(model="n") == "accuracy 0.000"
    assert here.describe_classifiers(model="o") == ""


def test_a_number_that_cannot_be_compared_says_why():
    rows = [make_row("accuracy", value, seed) for seed, value in enumerate((0.5, 0.75))]
    for corpus, why in (("yelphat", "fewer texts"), ("esnli", "")):
        here = make_evidence(rows, corpus)
        here.published = {"not_comparable": {"yelphat": "fewer texts"}}
        found = here.compared("a place", 0.5, here.records, "a note")
        assert (found.apart, found.note) == (why, "a note")
        assert found.place == f"{here.title}, a place"
        assert found.verdict == ("not comparable" if why else "open")


@pytest.mark.parametrize(
    ("corpus", "name", "key"),
    [
        ("yelphat", "", "table1_yelphat"),
        ("synthetic:3", "", "table1_synthetic3"),
        ("", "", "table1"),
        ("esnli", "own", "own"),
    ],
)
def test_a_chart_is_named_by_its_study_and_corpus(corpus, name, key):
    frame = pd.DataFrame({"corpus": ["yelphat", "synthetic"], "value": [1, 2]})
    here = make_evidence([make_row("accuracy", 0.5)], corpus)

    def build(given, **more):
        return given["corpus"].tolist(), more

    found = here.chart(build, frame, name, size=3)
    assert found == {key: (["YelpHat", "synthetic"], {"size": 3})}
    assert here.chart(build, frame.iloc[:0], name) == {}


class Caught:
    """A model of two layers and two heads: what `capture` sees of an utterance is drawn from its number."""

    def __init__(self):
        self.receive = None

    @contextlib.contextmanager
    def capture(self, model, sites, *, receive):
        assert model is self and sites == sec2_cones.SITES
        self.receive = receive
        yield

    def draw(self, number, layer):
        draw = torch.Generator().manual_seed(10 * number + layer)
        return torch.randn(3, 2, 6, 4, generator=draw)

    def __call__(self, numbers):
        for layer in (1, 2):
            # [utterance, side, head, token, dim]
            found = torch.stack([self.draw(number, layer) for number in numbers])
            for side, name in enumerate(sec2_cones.SITES):
                self.receive(SimpleNamespace(layer=layer, label=name), found[:, side])


def test_cones_are_of_the_first_layer_and_of_the_mean_over_heads(monkeypatch):
    model = Caught()
    monkeypatch.setattr(sec2_cones, "capture", model.capture)
    lengths = {0: 6, 1: 2, 2: 1, 3: 4}
    batches = []
    for numbers in ((0, 1), (2, 3)):
        # Padding is on the right.
        mask = torch.arange(6) < torch.tensor([[lengths[i]] for i in numbers])
        stream = {"encoder": SimpleNamespace(mask=mask)}
        batches.append(SimpleNamespace(inputs={"numbers": numbers}, streams=stream))
    made = SimpleNamespace(
        plan=Grid(erased=7),
        classifier=(model, None),
        batches=lambda limit: batches if limit == 7 else None,
    )
    found = sec2_cones._measure_each(made)
    expected = []
    # A text of one token has no pair.
    for number in (0, 1, 3):
        query, key, value = model.draw(number, 1)[:, :, : lengths[number]].double()
        heads = [
            sec2_cones.compute_statements(query[head], key[head], value[head])
            for head in (0, 1)
        ]
        expected.append(
            {name: (heads[0][name] + heads[1][name]) / 2 for name in heads[0]}
        )
    pd.testing.assert_frame_equal(found, pd.DataFrame(expected), rtol=1e-12)


def test_a_cone_of_values_is_about_the_mean_of_their_directions():
    """Three short values at 0° and two long ones at ±100°: the mean direction is 0°, that of their sum 180°."""
    turned = np.radians([0, 0, 0, 100, -100])
    value = np.stack([np.cos(turned), np.sin(turned)], 1)
    value[3:] *= 10
    # The first query sees the first key alone, the others see all keys alike.
    query, key = np.zeros((5, 2)), np.zeros((5, 2))
    query[0, 0] = key[0, 0] = 40
    found = sec2_cones.compute_statements(*map(torch.from_numpy, (query, key, value)))
    assert (found["cone.inside"], found["cone.narrow"]) == (0.2, 0)


def test_keys_and_queries_are_changed_each_alone():
    draw = np.random.default_rng(4)
    query, key, value = draw.normal(size=(3, 5, 3)) * draw.uniform(0.2, 3, (3, 5, 1))

    def unit(x):
        return x / np.linalg.norm(x, axis=-1, keepdims=True)

    def turn(x):
        return np.linalg.norm(x, axis=1, keepdims=True) * unit(x.mean(0))

    def weigh(query, key):
        raised = np.exp(query @ key.T / 3**0.5)
        return raised / raised.sum(1, keepdims=True)

    def entropy(rows):
        return -(rows * np.log(rows)).sum(1).mean() / np.log(5)

    def alike(x):
        return np.mean([unit(x)[i] @ unit(x)[j] for i, j in combinations(range(5), 2)])

    found = sec2_cones.compute_statements(*map(torch.from_numpy, (query, key, value)))
    expected = {
        "keys.similarity": alike(key),
        "keys.plain": entropy(weigh(query, key)),
        "keys.equal": 1.0,
        "keys.parallel": entropy(weigh(query, turn(key))),
        "queries.plain": alike(weigh(query, key)),
        "queries.equal": 1.0,
        "queries.parallel": alike(weigh(turn(query), key)),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_a_class_that_is_never_predicted_has_no_representative():
    """Those after it have theirs."""
    draw = np.random.default_rng(1)
    unit = draw.normal(size=(9, 3))
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    labels = np.repeat([0, 1, 2], 3)
    found = fig2_directions.compare_directions(unit, labels, labels != 1, tuple("abc"))
    first = [row["component"] for row in found if row["metric"] == "first.0.5"]
    assert first == [f"{one} → {other}" for one in "ac" for other in "abc"]


def test_generated_pairs_are_judged_as_the_pairs_that_they_stand_for():
    rows = []
    for corpus in ("synthetic", "synthetic-pairs"):
        for name, value in (("neutral", 0.9), ("contradiction", 0.5)):
            row = make_row("others.mean", value, 0, corpus, "builtin:minilm")
            rows.append(row | {"site": "tuned", "component": name})
    frame = add_options(as_records(pd.DataFrame(rows)))
    tests = fig2_directions.make_tests(Evidence("fig2", frame))
    found = {
        test.subject: test.value
        for test in tests
        if test.claim.name == "contradiction sees two classes alike"
    }
    assert found == {"synthetic-pairs": 0.5}


@pytest.mark.parametrize("short", [True, False])
def test_lengths_of_attention_rows_are_those_of_the_texts_of_table_4(
    monkeypatch, short
):
    def make_texts(*lengths):
        return tuple(
            Example(("word",) * n, label)
            for n, label in zip(lengths, (0, 0, 0, 1, 1, 1), strict=True)
        )

    splits = {TRAIN: make_texts(1, 1, 1, 1, 1, 1), TEST: make_texts(9, 8, 7, 6, 5, 4)}
    if short:
        splits["test_yelp50"] = make_texts(12, 11, 13, 15, 14, 16)
    corpus = LabelledCorpus("c", ("a", "b"), splits)
    monkeypatch.setattr(
        simulated_forms, "open_corpus", lambda *given: {("c", 30): corpus}[given]
    )
    found = simulated_forms._read_lengths("c", Grid(limit=30, utterances=4))
    # With [CLS], as many texts of each class.
    assert sorted(found) == ([12, 13, 15, 16] if short else [6, 7, 9, 10])
