"""Small decisions of the studies `beyond`, each on a few numbers that are all unlike."""

import gzip
import json
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from slow_numbers import keep_drawn

from anisoscope.classes.faithfulness import DIRECTED
from anisoscope.data.labelled import TEST, Example, LabelledCorpus
from anisoscope.errors import DivergedError
from anisoscope.store import Busy, as_records
from anisoscope_papers.beyond import (
    arms,
    causes,
    cells,
    common,
    crossed,
    dimension,
    erased,
    frozen,
    modalities,
    needed,
    outcomes,
    reactions,
    small_cells,
    small_models,
    trained,
)
from anisoscope_papers.beyond.cells import AFTERWARDS, RIGHT, pack_bits
from anisoscope_papers.beyond.positions import STUDY as OF_POSITIONS
from anisoscope_papers.fosse2023 import entry, measurements
from anisoscope_papers.fosse2023.entry import Evidence, Seeds
from anisoscope_papers.fosse2023.grid import PAPER, Cell, Grid, add_options
from anisoscope_papers.study import Claim, Context, Verdict
from anisoscope_papers.training.classifier import TrainedClassifier

NAN = float("nan")

# ---- cells: classifiers that are measured once and not kept ----------------------------------------------------------


def test_one_measured_cell_is_enough_to_look_at(tmp_path):
    asked = (Cell("yelphat", seed=0), Cell("yelphat", seed=1))
    study = cells.declare_cell_study(
        "crossed", lambda _: asked, tests=lambda _: [], draw=lambda _: {}
    )
    plan = Grid(corpora=("yelphat",))
    assert not study.at_hand(plan, tmp_path)
    path = cells.find_table(asked[1], plan, tmp_path)
    path.parent.mkdir()
    path.touch()
    assert study.at_hand(plan, tmp_path)


@pytest.mark.parametrize(
    ("study", "of"),
    [
        (OF_POSITIONS, Grid.by_positions),
        (frozen.STUDY, Grid.by_length),
        (crossed.STUDY, Grid.by_split),
        (common.STUDY, Grid.by_direction),
    ],
)
def test_a_study_measures_the_cells_that_its_claims_are_about(monkeypatch, study, of):
    asked = []

    def collect(*given):
        asked.append(given)
        return as_records(pd.DataFrame({"metric": [RIGHT, "accuracy", "norms.mean"]}))

    monkeypatch.setattr(cells, "collect_records", collect)
    found = study.measure(PAPER, "context")
    assert asked == [(of(PAPER), PAPER, "context")]
    # Bits of utterances are read by one study alone, which reads no geometry.
    of_utterances = study is crossed.STUDY
    assert found["metric"].tolist() == (
        [RIGHT, "accuracy"] if of_utterances else ["accuracy", "norms.mean"]
    )


def test_geometry_and_separation_are_measured_of_every_kind_of_attention(monkeypatch):
    asked = []

    def gather(*given):
        asked.append(given)
        return as_records(pd.DataFrame({"metric": ["accuracy"]}))

    monkeypatch.setattr(entry, "gather", gather)
    needed.STUDY.measure(PAPER, "context")
    looks = (measurements.measure_geometry, measurements.measure_separation)
    assert asked == [
        (PAPER.by_arm(), PAPER, "context", measurements.read_accuracies, *looks)
    ]


# ---- crossed: seeds or splits × utterances ---------------------------------------------------------------------------


def estimate_slowly(table):
    """Return (mean, half of the interval) by sums over single cells of the table."""
    rows, columns = len(table), len(table[0])
    mean = sum(map(sum, table)) / (rows * columns)
    by_row = [sum(row) / columns for row in table]
    by_column = [sum(row[j] for row in table) / rows for j in range(columns)]
    of_rows = columns * sum((x - mean) ** 2 for x in by_row) / (rows - 1)
    of_columns = rows * sum((x - mean) ** 2 for x in by_column) / (columns - 1)
    rest = 0.0
    for i, j in product(range(rows), range(columns)):
        rest += (table[i][j] - by_row[i] - by_column[j] + mean) ** 2
    rest /= (rows - 1) * (columns - 1)
    total = of_rows + of_columns - rest
    freedom = total**2 / (
        of_rows**2 / (rows - 1)
        + of_columns**2 / (columns - 1)
        + rest**2 / ((rows - 1) * (columns - 1))
    )
    if total <= max(of_rows, of_columns):
        total, freedom = max((of_rows, rows - 1), (of_columns, columns - 1))
    half = stats.t.ppf(0.975, max(freedom, 1)) * np.sqrt(total / (rows * columns))
    return mean, float(half)


TABLES = {
    "both vary": [[0, 3, 1, 9], [2, 4, 4, 12], [7, 8, 9, 15]],
    "rows alone vary": [[0, 1, 0, 1], [9, 8, 9, 8], [20, 21, 21, 20]],
    "columns alone vary": [[0, 9, 20], [1, 8, 21], [0, 9, 21], [1, 8, 20]],
    # ±r ±c ±t with r² = c² = 1.1 and t = 1: Satterthwaite's degrees would be 0.42.
    "hardly a degree of freedom": [
        [1.0 + 2 * 1.1**0.5, -1.0],
        [-1.0, 1.0 - 2 * 1.1**0.5],
    ],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_crossed_interval_is_that_of_an_analysis_of_variance(name):
    mean, half = estimate_slowly(TABLES[name])
    found = crossed.estimate_crossed_interval(np.array(TABLES[name], float))
    assert found[:3] == pytest.approx((mean, mean - half, mean + half))
    if name == "hardly a degree of freedom":
        assert found[3] == 1 and half == pytest.approx(12.7062 * 1.2**0.5, rel=1e-5)


COUNTS = {"yelphat": 11, "esnli": 13}
TITLES = {"yelphat": "YelpHat", "esnli": "e-SNLI"}
SPLITS = {"yelphat": (0, 3, 5), "esnli": (0, 2)}
PLAIN, BARE = "sinusoids", "no positions"


def make_bits():
    """Records of single utterances, and {(corpus, positions, split, arm, seed, what): [bool]}."""
    draw = np.random.default_rng(0)
    rows, bits = [], {}
    for corpus, positions, arm, seed in product(
        COUNTS, ("sinusoidal", "none"), ("learned", "uniform", "frozen"), range(5)
    ):
        # Learned and uniform attention have three seeds in common.
        if (arm, seed) in (("learned", 4), ("uniform", 0)):
            continue
        # Of the text's recipe there are two common seeds alone.
        if positions == "none" and seed == 2:
            continue
        for split in SPLITS[corpus]:
            after = 0 if arm == "frozen" else None
            cell = Cell(
                corpus,
                arm=arm,
                seed=seed,
                split=split,
                positions=positions,
                freeze_after=after,
            )
            for what in ("test", AFTERWARDS)[: 1 if arm == "uniform" else 2]:
                right = draw.random(COUNTS[corpus]) < 0.6
                bits[corpus, positions, split, arm, seed, what] = right
                named = {"model": cell.label, "corpus": corpus, "seed": seed}
                named |= {"value": float(right.mean()), "n_units": len(right)}
                rows.append(
                    named | {"metric": RIGHT, "component": pack_bits(what, right)}
                )
                rows.append(named | {"metric": "accuracy", "component": what})
                # Another split of another size must not tell the number of utterances.
                other = {"metric": "accuracy", "component": "train", "n_units": 5}
                rows.append(named | other)
    return as_records(pd.DataFrame(rows)), bits


def subtract_slowly(bits, corpus, positions, claim, split):
    """Return the table [seed, utterance] of uniform less learned attention."""
    arm, what = ("uniform", "test")
    seeds = (1, 2, 3)
    if claim == "not used":
        arm, what = ("learned", AFTERWARDS)
        seeds = (0, 1, 2, 3)
    table = []
    for seed in seeds:
        if positions == "none" and seed == 2:
            continue
        other = bits[corpus, positions, split, arm, seed, what].astype(int)
        table.append(other - bits[corpus, positions, split, "learned", seed, "test"])
    return np.array(table, float)


def test_a_difference_of_utterances_is_paired_by_seed_and_averaged_over_splits(
    monkeypatch,
):
    records, bits = make_bits()
    whole = Evidence("crossed", add_options(records), paper="beyond")
    expected = {}
    for corpus, (positions, recipe), claim in product(
        COUNTS,
        (("sinusoidal", PLAIN), ("none", BARE)),
        ("not needed", "not used"),
    ):
        tables = [
            subtract_slowly(bits, corpus, positions, claim, split)
            for split in SPLITS[corpus]
        ]
        # Two splits do not say how splits differ: the seeds of the first one count.
        drawn = f"{len(tables[0])} seeds × {COUNTS[corpus]} utterances"
        table = tables[0]
        if len(tables) == 3:
            table = np.array([each.mean(0) for each in tables])
            drawn = f"3 splits × {COUNTS[corpus]} utterances"
        expected[claim, f"{TITLES[corpus]}, {recipe}"] = (table, drawn)
    found = {}
    for test in crossed.make_tests(whole):
        assert (test.claim.name, test.subject) not in found
        found[test.claim.name, test.subject] = test
    assert found.keys() == expected.keys()
    for key, (table, drawn) in expected.items():
        test = found[key]
        assert test.note.startswith(drawn) and test.n == len(table), key
        assert test.value == pytest.approx(table.mean()), key
        margin = test.claim.within
        assert f"(claim: {-margin:.3g} to {margin:.3g})" in test.statistic
        if len(table) < 3:
            assert np.isnan(test.low) and test.inside is None
            continue
        mean, half = estimate_slowly(table)
        assert (test.low, test.high) == pytest.approx((mean - half, mean + half)), key
        assert test.inside == (-margin, margin)
    assert {len(table) for table, _ in expected.values()} == {2, 3, 4}
    shown = keep_drawn(monkeypatch)
    crossed.draw(whole)
    ((frame, _),) = shown
    bars = frame.set_index("what")
    assert len(bars) == 3 * len(expected)
    for (claim, subject), (table, _) in expected.items():
        mean, half = estimate_slowly(table)
        alone = stats.t.ppf(0.975, len(table) - 1) * stats.sem(table.mean(1))
        for way, width in (("crossed", half), ("seeds or splits alone", alone)):
            bar = bars.loc[f"{subject}, {claim}: {way}"]
            assert bar["value"] == pytest.approx(mean) and bar["seeds"] == len(table)
            assert (bar["low"], bar["high"]) == pytest.approx(
                (mean - width, mean + width)
            )
        drawn_again = crossed.bootstrap_interval(table)
        bar = bars.loc[f"{subject}, {claim}: bootstrap of both"]
        assert (bar["value"], bar["low"], bar["high"]) == pytest.approx(drawn_again)


# ---- dimension -------------------------------------------------------------------------------------------------------


def test_the_width_that_is_enough_is_near_the_widest_and_not_the_best():
    by_width = {
        2: [0.50, 0.88, 0.879, 0.9],
        4: [0.95, 0.70, 0.90, 0.9],
        8: [0.89, 0.95, 0.90, NAN],
        128: [0.90, 0.90, 0.90, 0.9],
    }
    accuracy = Seeds({k: np.array(v) for k, v in by_width.items()}, np.full(4, NAN))
    found = dimension.find_saturation(accuracy)
    np.testing.assert_array_equal(found, [4, 8, 4, NAN])
    assert np.isnan(dimension.find_saturation(Seeds({}, np.full(3, NAN)))).all()


def test_growth_needs_three_numbers_of_classes():
    needed = {
        2: pd.Series([2.0, 4.0, NAN], [3, 5, 7]),
        4: pd.Series([4.0, NAN, 4.0], [3, 5, 7]),
        16: pd.Series([16.0, 64.0, 64.0], [3, 5, 7]),
        32: pd.Series([32.0, 256.0, NAN], [3, 5, 7]),
    }
    slope = np.polyfit([1, 4, 5], [2, 6, 8], 1)[0]
    np.testing.assert_allclose(dimension.fit_growth(needed), [1, slope, NAN])
    assert np.isnan(dimension.fit_growth({})).all()
    assert [dimension.count_classes(name) for name in ("ud_ewt", "synthetic:3")] == [
        17,
        3,
    ]


def test_the_needed_width_is_compared_with_that_of_the_same_seed():
    """Each corpus has seeds of its own; 1 and 4 alone have three numbers of classes."""
    enough = {2: {0: 2, 1: 2, 4: 4}, 5: {1: 4, 4: 4}, 10: {1: 16, 2: 2, 4: 8}}
    rows = []
    for count, of_seed in enough.items():
        for (seed, width), dim in product(of_seed.items(), (2, 4, 8, 16)):
            corpus = f"synthetic:{count}"
            model = small_models.SmallCell(corpus, dim=dim).label
            place = {"model": model, "corpus": corpus, "seed": seed}
            value = 0.9 if dim >= width else 0.5
            one = {"metric": "accuracy", "component": "test", "value": value}
            rows.append(place | one)
    frame = small_cells.add_setting_columns(as_records(pd.DataFrame(rows)))
    *_, test = dimension.make_tests(small_cells.OfSmall("dimension", frame))
    slopes = []
    for seed in (1, 4):
        needed_ = [of_seed[seed] for of_seed in enough.values()]
        slopes.append(np.polyfit(np.log2([2, 5, 10]), np.log2(needed_), 1)[0])
    assert test.claim.name == "more classes need more dimensions"
    assert (test.n, test.value) == (2, pytest.approx(np.mean(slopes)))


# ---- erased ----------------------------------------------------------------------------------------------------------


WORDS = {"train": 5, "validation": 3, TEST: 4}
"""Words of the texts of each split, which has two texts."""


def make_corpus():
    splits = {}
    for split, count in WORDS.items():
        splits[split] = tuple(
            Example(tuple(f"{split}{i}{j}" for j in range(count)), label=i)
            for i in range(2)
        )
    return LabelledCorpus("reviews", ("a", "b", "c"), splits)


def test_directions_are_of_validation_texts_and_every_text_of_a_split_is_scored(
    monkeypatch,
):
    asked, given = [], []

    def batches(limit, split=TEST):
        asked.append((limit, split))
        words = [tuple(range(WORDS[split]))] * 2
        return SimpleNamespace(split=split, encoded=SimpleNamespace(words=words))

    def measure(model, found, classes):
        given.append((model, found.split, classes))
        return "directions"

    def attribute(one, directions):
        assert directions == "directions"
        tokens = np.arange(float(one.count))
        attention, values = tokens + one.number, tokens * (one.found + 1)
        return {(erased.ATTENTION, 1): attention, (erased.VALUES, 1): values}

    def capture(model, found):
        assert model == "model"
        for number in (1, 0):
            yield number, Text(number, found=2 - number, count=WORDS[found.split])

    monkeypatch.setattr(erased, "measure_class_directions", measure)
    monkeypatch.setattr(erased, "compute_attributions", attribute)
    monkeypatch.setattr(erased, "iter_captured", capture)
    monkeypatch.setattr(
        erased, "replace", lambda one, found: Text(one.number, found, one.count)
    )
    # The last word of each is a second text: words of both are scored.
    corpus = make_corpus()
    pairs = {}
    for split, examples in corpus.splits.items():
        pairs[split] = tuple(
            Example(one.words[:-1], one.label, second=one.words[-1:])
            for one in examples
        )
    made = SimpleNamespace(
        classifier=("model", "tokenizer"),
        corpus=replace(corpus, splits=pairs),
        cell=Cell("yelphat", seed=7),
        batches=batches,
    )
    scored = erased.Maps(made).scored
    assert given == [("model", "validation", 3)]
    assert asked == [
        (DIRECTED, "validation"),
        *((2 * 3, split) for split in erased.SPLITS),
    ]
    draw = np.random.default_rng(7)
    for split in erased.SPLITS:
        tokens = np.arange(float(WORDS[split]))
        drawn = {number: draw.random(WORDS[split]) for number in (1, 0)}
        for number, (found, scores) in enumerate(scored[split]):
            assert found == 2 - number
            expected = {
                erased.ATTENTION: tokens + number,
                erased.FOUND: tokens * (found + 1),
                erased.DIRECTIONS: tokens * 3,
                erased.RANDOM: drawn[number],
            }
            assert scores.keys() == expected.keys()
            for name, values in expected.items():
                np.testing.assert_array_equal(scores[name], values)


class Text:
    def __init__(self, number, found, count):
        self.number, self.found, self.count = number, found, count


def make_maps():
    """Maps that score the words of each text in an order of their own."""
    corpus, draw = make_corpus(), np.random.default_rng(0)
    maps = erased.Maps(SimpleNamespace(corpus=corpus))
    scored = {}
    for split, examples in corpus.splits.items():
        scored[split] = []
        for number, example in enumerate(examples):
            scores = {n: draw.random(len(example.words)) for n in erased.MAPS}
            scored[split].append((number + 1, scores))
    maps.__dict__["scored"] = scored
    return maps


@pytest.mark.parametrize("share", [erased.HALF, erased.FIFTH])
@pytest.mark.parametrize("name", erased.MAPS)
def test_the_words_of_the_highest_scores_are_erased_of_all_splits(name, share):
    maps = make_maps()
    found = maps.erased(name, share)
    assert found.name == f"reviews without {name}, {'50%' if share == 0.5 else '20%'}"
    assert found.labels == ("a", "b", "c")
    for split, examples in make_corpus().splits.items():
        # Halves of 5 and 3 words are 2 (rounded to even) and 2, of 4 words 2.
        count = 2 if share == 0.5 else 1
        for number, example in enumerate(examples):
            scores = maps.scored[split][number][1][name].tolist()
            taken = sorted(scores)[-count:]
            left = [
                word
                for word, score in zip(example.words, scores, strict=True)
                if score not in taken
            ]
            assert found.splits[split][number] == Example(tuple(left), label=number)


@pytest.mark.parametrize("ends", [False, True])
def test_a_classifier_trained_again_is_compared_by_text_with_the_one_before(
    monkeypatch, tmp_path, ends
):
    cell, plan = Cell("yelphat", seed=3), Grid(corpora=("yelphat",))
    results = {
        split: {"accuracy": x}
        for split, x in (("train", 0.9), ("validation", 0.7), (TEST, 0.6))
    }
    less = make_corpus()
    maps = SimpleNamespace(
        erased=lambda name, share: {("random", 0.2): less}[name, share],
        predicted={"train": [9], "validation": [9], TEST: [0, 2, 1, 1]},
    )

    def train(recipe, place, *, corpus):
        assert recipe == plan.recipe(cell) and corpus is less
        if ends:
            raise DivergedError("a finite loss", "nan", "a smaller rate")
        return TrainedClassifier(place, {"results": results})

    class Again:
        def __init__(self, own, grid, place):
            assert (own, grid, place.name) == (cell, plan, "classifier")

        def encoded(self, examples):
            assert examples == less.splits[TEST]
            return "encoded"

        def predicted(self, encoded):
            assert encoded == "encoded"
            return [0, 1, 1, 1]

    monkeypatch.setattr(erased, "train_classifier", train)
    monkeypatch.setattr(erased, "Trained", Again)
    made = SimpleNamespace(cell=cell, plan=plan, folder=tmp_path)
    rows = erased._retrain(made, maps, "random", 0.2)
    found = dict(zip(rows["metric"], rows["value"], strict=True))
    expected = {"retrained.accuracy": 0.6, "retrained.agreement": 0.75}
    assert found == ({"diverged": 1.0} if ends else expected)
    assert set(rows["component"]) == {"random, 20%"} and set(rows["n_units"]) == {4}


@pytest.mark.parametrize("corpus", ["yelphat", "synthetic:3", "any other"])
def test_of_pairs_of_texts_one_half_alone_is_erased(corpus):
    maps = ("attention", "directions", "class found", "random")
    without_control = ("attention", "directions", "random")
    found = erased.choose_shares(corpus)
    assert found == {0.5: maps, 0.2: without_control}
    for pairs in ("esnli", "synthetic-pairs"):
        assert erased.choose_shares(pairs) == {0.5: maps}


def test_every_map_and_share_has_a_table_of_its_own(monkeypatch, tmp_path):
    made = []

    def retrain(trained_, maps, name, share):
        assert (trained_, maps) == (one, "maps of it")
        made.append((name, share))
        place = {"component": f"{name}, {share:.0%}", "value": len(made)}
        return as_records(pd.DataFrame([{"metric": "retrained.accuracy", **place}]))

    monkeypatch.setattr(erased, "Maps", lambda _: "maps of it")
    monkeypatch.setattr(erased, "_retrain", retrain)
    waits, make_once = [], erased.make_records_once
    monkeypatch.setattr(
        erased,
        "make_records_once",
        lambda *given, wait: waits.append(wait) or make_once(*given, wait=wait),
    )
    cell = Cell("yelphat", layers=2, seed=5)
    one = SimpleNamespace(
        cell=cell, folder=tmp_path, plan=SimpleNamespace(train=True), wait=False
    )
    rows = erased.measure_retrained(one)
    assert waits == [False] * 7
    names = ("attention", "directions", "class found", "random")
    expected = [(name, 0.5) for name in names]
    expected += [(name, 0.2) for name in names if name != "class found"]
    assert made == expected and rows["value"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert set(rows["model"]) == {cell.label}
    assert set(rows["corpus"]) == {"yelphat"} and set(rows["seed"]) == {5}
    pd.testing.assert_frame_equal(erased.measure_retrained(one), rows)
    assert len(made) == 7


def test_all_corpora_of_a_seed_come_before_the_next_seed(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(erased, "gather", lambda *asked: given.append(asked))
    plan = Grid(corpora=("yelphat", "esnli"), seeds=3)
    context = Context(tmp_path, tmp_path)
    erased.measure(plan, context)
    ((cells, *others),) = given
    assert cells == [
        Cell(name, seed=seed) for seed in range(3) for name in ("yelphat", "esnli")
    ]
    assert others == [
        plan,
        context,
        erased.read_accuracies,
        erased.measure_retrained,
    ]


# ---- outcomes, needed ------------------------------------------------------------------------------------------------


def test_a_discriminant_is_fitted_on_training_words_and_asked_about_test_words(
    monkeypatch, tmp_path
):
    draw, asked = np.random.default_rng(0), []

    def read(found, tokenizer, path, sentences, window):
        assert found is model
        asked.append((tokenizer, path, sentences, window))
        words = np.repeat([[0.0, 0], [9, 0]], 10, 0) + draw.normal(size=(20, 2))
        tags = np.repeat(["NOUN", "VERB"], 10)
        # Five of the test words are called what the training words are not.
        if path.name == "test.jsonl.gz":
            tags[:5] = "VERB"
        return words, tags

    monkeypatch.setattr(outcomes, "_read_words", read)
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=17))
    (row,) = outcomes._probe_words(model, "tokenizer", tmp_path)
    assert row == {"metric": "probing.accuracy", "value": 0.75}
    assert asked == [
        ("tokenizer", tmp_path / f"{split}.jsonl.gz", count, 17)
        for split, count in (("train", 2000), ("test", 1000))
    ]


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(5, [0, 2, 4, 6, 8]), (2, [0, 8]), (9, range(9)), (99, range(9))],
)
def test_sentences_are_picked_from_the_first_to_the_last(tmp_path, count, chosen):
    path = tmp_path / "train.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"number": n}) + "\n" for n in range(9))
    found = outcomes._pick_sentences(path, count)
    assert [sentence["number"] for sentence in found] == list(chosen)


def test_windows_are_found_by_the_mean_of_their_tokens_over_all_batches():
    """Two batches; the mean of each window points along an axis, single tokens and dimensions do not."""
    along = {0: (3.0, 0.0), 1: (2.0, 0.1), 2: (0.1, 2.0), 3: (0.0, 1.0), 4: (1.0, 0.2)}
    unit = {0: 5, 1: 5, 2: 6, 3: 5, 4: 6}
    away = torch.tensor([[7.0, -9.0], [-7.0, 9.0], [0.0, 0.0]])

    def run(numbers):
        states = torch.stack([torch.tensor(along[n]) + away for n in numbers])
        return SimpleNamespace(last_hidden_state=states)

    texts = [
        SimpleNamespace(
            inputs={"numbers": numbers}, unit=torch.tensor([unit[n] for n in numbers])
        )
        for numbers in ([0, 1], [2, 3, 4])
    ]
    rows = list(outcomes._measure_retrieval(SimpleNamespace(bert=run), texts))
    # Nearest: 0 to 1, 1 to 0, 2 to 3 (another document), 3 to 2 (another), 4 to 1 (another).
    assert rows == [{"metric": "retrieval.precision", "value": 0.4}]


@pytest.mark.parametrize("treebank", [None, "a folder"])
def test_each_outcome_is_measured_on_its_own_windows(monkeypatch, treebank):
    """Sinks and outliers on windows of text, retrieval on those prepared for it; the probe needs a treebank."""
    asked = {}
    for part in ("sinks", "outliers", "retrieval"):

        def measure(model, batches, part=part):
            assert not model.training
            asked[part] = batches
            return [{"metric": part, "value": 1.0}]

        monkeypatch.setattr(outcomes, f"_measure_{part}", measure)

    def probe(model, *given):
        assert not model.training
        asked["probe"] = given
        return [{"metric": "probe", "value": 1.0}]

    monkeypatch.setattr(outcomes, "_probe_words", probe)
    monkeypatch.setattr(outcomes, "find_path", {"ud_ewt": treebank}.get)
    model = torch.nn.Linear(1, 1)
    found = outcomes.measure_outcomes(model, "t", "plan", "texts")
    expected = {"sinks": "plan", "outliers": "plan", "retrieval": "texts"}
    if treebank:
        expected["probe"] = ("t", "a folder")
    assert asked == expected and model.training
    assert list(found["metric"]) == list(expected)


def test_outcomes_of_other_word_vectors_or_penalties_are_no_arm_of_attention():
    kept = {Cell("esnli", arm=arm).label for arm in ("learned", "uniform", "frozen")}
    left_out = {
        Cell("esnli", **other).label
        for other in (
            {"weight": 0.1},
            {"start": "raw"},
            {"dim": 48},
            {"positions": "none"},
            {"steps": 5},
            {"split": 1},
            {"examples": 9},
        )
    }
    rows = []
    for name in sorted({*kept, *left_out}):
        place = {"model": name, "corpus": "esnli", "seed": 0, "value": 0.5}
        rows.append({"metric": "accuracy", "component": "test", **place})
        rows.append({"metric": "accuracy", "component": "train", **place})
        rows.append({"metric": "collapsed", **place | {"value": 1.0}})
    here = Evidence(
        "needed", add_options(as_records(pd.DataFrame(rows))), "esnli", "beyond"
    )
    found = needed._select_outcome(here, "accuracy")
    assert sorted(found["model"]) == sorted(kept)


def test_values_are_those_of_the_last_layer_of_each_depth():
    rows = []
    for layers in (1, 2, 3):
        place = {"model": Cell("esnli", layers=layers).label, "corpus": "esnli"}
        for layer, policy in product(range(layers + 1), ("all", "content")):
            value = 100 * layers + 10 * layer + (policy == "content")
            row = {"metric": "intra_sequence", "site": "value", "layer": layer}
            rows.append(
                place | row | {"token_policy": policy, "value": value, "seed": 0}
            )
    here = Evidence(
        "needed", add_options(as_records(pd.DataFrame(rows))), "esnli", "beyond"
    )
    found = needed._select_outcome(here, "sim(V) of the last layer")
    assert sorted(found["value"]) == [110, 220, 330]


# ---- causes ----------------------------------------------------------------------------------------------------------


def make_cells(rows):
    """Return records from (arm, seed, step, metric, site, layer, head, value) in each row."""
    names = ["model", "seed", "step", "metric", "site", "layer", "head", "value"]
    return as_records(pd.DataFrame(rows, columns=names))


def test_cells_are_averaged_over_layers_and_heads_by_size_at_either_end():
    rows = []
    for arm, seed, step in product(("base", "type"), (0, 1), (0, 4, 9)):
        shift = (arm == "type") / 8 + seed / 16 + step / 100
        for layer, head in product((1, 2), (0, 1)):
            value = (1 if head else -1) * (0.1 * layer + shift)
            rows.append((arm, seed, step, "query_key.cosine", None, layer, head, value))
            rows.append((arm, seed, step, "drift", "query", layer, head, value))
            rows.append((arm, seed, step, "drift", "key", layer, head, 5.0))
    records = make_cells(rows)
    for start, step in ((True, 0), (False, 9)):
        cosine = causes.average_cells(records, "query_key.cosine", start=start)
        drift = causes.average_cells(records, "drift", "query", start=start)
        for arm, seed in product(("base", "type"), (0, 1)):
            shift = (arm == "type") / 8 + seed / 16 + step / 100
            # Cosines count by absolute value; other numbers with their sign.
            assert cosine[arm, seed] == pytest.approx(0.15 + shift)
            assert drift[arm, seed] == pytest.approx(0)
        assert len(cosine) == len(drift) == 4


def test_a_claim_on_the_last_layer_compares_it_at_both_ends():
    rows = []
    for layer, (first, last) in enumerate(((9.0, 9.0), (0.1, 0.2), (0.3, 0.7))):
        rows.append(("type", 2, 0, "mean_cosine", "hidden", layer, None, first))
        rows.append(("type", 2, 8, "mean_cosine", "hidden", layer, None, last))
    given = {"metric": "mean_cosine", "site": "hidden", "against": "start"}
    found = []
    for over in (None, "last"):
        claim = Claim("c", "of the last layer", "", systems=("type",), **given)
        of_layers = replace(claim, over=over)
        found.append(causes.subtract_paired(of_layers, make_cells(rows), "type"))
    assert [pairs.to_dict() for pairs in found] == [
        {2: pytest.approx(0.25)},
        {2: pytest.approx(0.4)},
    ]


def test_differences_are_of_seeds_that_both_have():
    rows = []
    for arm, seeds in (("base", (0, 1, 2)), ("type", (1, 2, 3))):
        for seed in seeds:
            value = seed**2 + 10.0 * (arm == "type")
            rows.append((arm, seed, 5, "drift", None, 1, 0, value))
    records = make_cells(rows)
    claim = Claim("c", "s", "", metric="drift", systems=("type",))
    assert causes.subtract_paired(claim, records, "type").to_dict() == {1: 10, 2: 10}
    zero = replace(claim, against="zero")
    own = causes.subtract_paired(zero, records, "type").to_dict()
    assert own == {1: 11, 2: 14, 3: 19}
    for arm, other in (("untied", claim), ("type", replace(claim, against="untied"))):
        assert not len(causes.subtract_paired(other, records, arm))


def test_an_effect_has_an_interval_from_two_seeds_on():
    rows = [
        (arm, seed, 5, "drift", "query", 1, 0, value)
        for arm, values in (
            ("base", (1.0, 2.0, 4.0)),
            ("type", (2.0, 5.0)),
            ("untied", (9.0,)),
            ("decay", (0.0, 0.0, 0.0)),
        )
        for seed, value in enumerate(values)
    ]
    rows.append(("type", 0, 5, "drift", "key", 1, 0, 99.0))
    claim = Claim("c", "s", "", metric="drift", site="query", systems=("decay",))
    found = causes.compute_effects(claim, make_cells(rows)).set_index("arm")
    # Not of `base` itself, and not of one seed.
    assert list(found.index) == ["type", "decay"]
    half = stats.t.ppf(0.975, 1) * np.sqrt(2) / np.sqrt(2)
    of_type = found.loc["type", ["value", "low", "high"]].tolist()
    assert of_type == pytest.approx([2, 2 - half, 2 + half])
    assert found.loc["decay", "value"] == pytest.approx(-7 / 3)


def test_skill_that_just_reaches_what_counts_as_learnt_does():
    claim = Claim("c", "s", "", metric="drift", systems=("type",))
    learnt = causes.LEARNT
    skill = pd.Series(
        {
            ("type", 0): learnt,
            ("base", 0): learnt,
            ("type", 1): learnt,
            ("base", 1): np.nextafter(learnt, 0),
            ("type", 2): np.nextafter(learnt, 0),
            ("base", 2): learnt,
            ("type", 3): 0.5,
            ("base", 3): 0.5,
        }
    )
    pairs = pd.Series([1.0, 10.0, 100.0, 3.0], index=[0, 1, 2, 3])
    records = make_cells([("base", 0, 0, "drift", None, 1, 0, 1.0)])
    test = causes._make_test(claim, records, "type", pairs, skill, "the guess", "sub")
    assert (test.value, test.n, test.subject) == (2.0, 2, "sub")
    means = (skill["type"].mean(), skill["base"].mean())
    assert "skill over the guess {:.2f}, of base {:.2f}".format(*means) in test.note
    assert f"a cell whose skill is below {learnt:g} says nothing" in test.note
    # Against its own start, the arm alone must have learnt something.
    start = replace(claim, against="start")
    test = causes._make_test(start, records, "type", pairs, skill, "a", "")
    assert (test.value, test.n) == (pytest.approx(14 / 3), 3)


@pytest.mark.parametrize(
    ("premise", "lost", "why"),
    [
        (None, None, ""),
        (0.74, None, ""),
        (0.75, None, "type has 0.750, and a test needs more than 0.75"),
        (0.76, None, "type has 0.750, and a test needs more than 0.76"),
        (None, 0.25, ""),
        (None, 0.26, "training took 25.0% off type, and a test needs 26%"),
        (0.75, 0.25, "type has 0.750, and a test needs more than 0.75"),
        (0.74, 0.25, ""),
    ],
)
def test_what_is_compared_with_must_have_enough_of_the_effect(premise, lost, why):
    rows = []
    for arm, first, last in (("type", 1.0, 0.75), ("base", 0.9, 0.1)):
        rows.append((arm, 0, 0, "drift", "query", 1, 0, first))
        rows.append((arm, 0, 9, "drift", "query", 1, 0, last))
        rows.append((arm, 0, 9, "drift", "key", 1, 0, 7.0))
    given = {"metric": "drift", "site": "query", "systems": ("base",)}
    claim = Claim("c", "s", "", **given, against="type", premise=premise, lost=lost)
    assert causes._explain_untestable(claim, make_cells(rows)) == why
    absent = replace(claim, against="untied")
    assert bool(causes._explain_untestable(absent, make_cells(rows))) == (
        premise is not None or lost is not None
    )


@pytest.mark.parametrize("outcome", ["holds", "fails", "undecided"])
def test_nothing_rests_on_an_arm_that_is_not_shown_to_be_made(outcome):
    """Verdicts on the arm itself, on another against it, on another alone, and on one subject of two."""
    claims = [
        Claim("made", "s", "", statistic="A", systems=("held",), makes=True),
        Claim("on it", "s", "", systems=("held",)),
        Claim("against it", "s", "", systems=("type",), against="held"),
        Claim("on another", "s", "", systems=("type",)),
        Claim("on two", "s", "", systems=("held", "type")),
    ]
    verdicts = [
        Verdict("made", outcome, "", value=0.1234),
        Verdict("on it", "fails", "", failing="contrary", reason="why"),
        Verdict("against it", "holds", ""),
        Verdict("on another", "holds", ""),
        Verdict("on two", "holds", "", subject="held"),
        Verdict("on two", "holds", "", subject="type"),
    ]
    found = causes._discount_failed_arms(claims, verdicts)
    if outcome == "holds":
        assert found == verdicts
        return
    words = "`held` is not what its name says: A 0.123: no conclusion"
    assert found == [
        verdicts[0],
        replace(verdicts[1], outcome="undecided", failing="", reason=f"{words}; why"),
        replace(verdicts[2], outcome="undecided", reason=words),
        verdicts[3],
        replace(verdicts[4], outcome="undecided", reason=words),
        verdicts[5],
    ]


# ---- trained ---------------------------------------------------------------------------------------------------------


def test_shares_of_tokens_are_counted_without_special_tokens():
    """Windows of [9 0] x x x [9]: only those chosen count, one more for every token of the vocabulary."""
    ids = np.array([[9, 0, 1, 2, 2, 9], [9, 0, 2, 3, 4, 9], [9, 0, 1, 1, 1, 9]])
    tokens = SimpleNamespace(
        vocabulary=10,
        room=3,
        affixes=SimpleNamespace(prefix=(9, 0), suffix=(9,)),
        rows=lambda chosen: ids[chosen],
    )
    shares = trained.compute_unigram_shares(tokens, np.array([0, 1]))
    counts = np.array([1, 2, 4, 2, 2, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(shares, counts / 16)


def test_the_loss_of_a_guess_is_of_hidden_tokens_alone():
    shares = np.array([0.5, 0.25, 0.25])
    labels = [[trained.UNMASKED, 0, 1], [2, trained.UNMASKED, trained.UNMASKED]]
    examples = [{"labels": torch.tensor(row)} for row in labels]
    found = trained.compute_unigram_loss(shares, examples)
    assert found == pytest.approx((1 + 2 + 2) / 3 * np.log(2))


def test_a_model_of_images_is_measured_on_its_probe_alone(monkeypatch, tmp_path):
    asked = []

    def open_plan(*given, **how):
        asked.append((given, how))
        return "plan", {}

    def train(*given):
        asked.append(given)

    made = SimpleNamespace(model="model", processor="processor")
    monkeypatch.setattr(modalities, "prepare_material", lambda *_: made)
    monkeypatch.setattr(modalities, "open_plan", open_plan)
    monkeypatch.setattr(
        modalities, "compute_guess_loss", lambda *_: float(torch.rand(1)) * 0 + 0.5
    )
    monkeypatch.setattr(modalities, "train_and_measure", train)
    recipe = modalities.KindRecipe("vit", 4, looks=(2,), probe=6)
    before = torch.get_rng_state()
    recipe.train(arms.BASE, 3, tmp_path, "cpu")
    # What the guess draws is not missing in the training.
    assert torch.equal(torch.get_rng_state(), before)
    opened, (of, how, *rest) = asked
    corpus = "builtin:digits"
    assert opened == ((corpus, "model", "processor"), {"modality": "image", "limit": 6})
    assert of is made and how.settings["use_cpu"] and how.settings["max_steps"] == 4
    assert how.settings["seed"] == 3
    named = {"model": arms.BASE, "seed": 3, "corpus": corpus}
    assert rest == ["plan", (0, 2, 4), 0.5, tmp_path, named]


# ---- reactions, small models -----------------------------------------------------------------------------------------


def test_every_claim_on_reactions_has_the_number_that_it_names():
    draw = np.random.default_rng(0)
    names = (reactions.ALIKE, reactions.DIRECTION)
    # Six layers behind the input; growing, so that there are shares of the growth.
    before, after = (
        {name: draw.uniform(0.1, 0.2, size=(3, 7)).cumsum(1) for name in names}
        for _ in range(2)
    )
    after[reactions.DIRECTION] += np.linspace(0, 1, 7)
    found = reactions.compute_claimed(before, after)
    alike, auc = after[reactions.ALIKE], after[reactions.DIRECTION]
    auc_before = before[reactions.DIRECTION]
    gain = auc[:, 6] - auc_before[:, 6]
    expected = {
        "tokens converge by fine-tuning": alike[:, 6] - before[reactions.ALIKE][:, 6],
        "grows with depth": alike[:, 6] - alike[:, 0],
        "most in the last layers": (alike[:, 6] - alike[:, 4])
        / (alike[:, 6] - alike[:, 0]),
        "the direction separates": gain,
        "not before fine-tuning": auc_before[:, 6] - 0.5,
        "the direction comes last": (gain - (auc[:, 4] - auc_before[:, 4])) / gain,
    }
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, err_msg=name)


def test_the_direction_of_a_class_is_of_unit_vectors_whatever_their_lengths():
    """A long vector counts as much as a short one: directions (1, 1), (0, 1) and (−1, 0)."""
    vectors = np.array([[100.0, 0], [0, 1], [0, 5], [0, 0.1], [-3, 0]])
    found = small_cells.compare_classes(vectors, np.array([2, 2, 5, 5, 7]))
    root = np.sqrt(0.5)
    assert found == pytest.approx({"mean": (root - root + 0) / 3, "most": root})


@pytest.mark.parametrize("alone", [False, True])
def test_a_small_model_s_records_know_their_sentences(monkeypatch, alone):
    truth = torch.tensor([0, 0, 0, 1, 1, 0])
    if alone:
        truth = truth * 0
    vectors = torch.eye(6)[:, :4] + torch.arange(24.0).reshape(6, 4)
    units = torch.tensor([0, 0, 1, 1, 2, 2])
    said = torch.tensor([0, 0, 0, 1, 1, 0])
    given = []

    def separate(states, labels, names, *, units):
        given.append((states, labels, names, units))
        return as_records(pd.DataFrame([{"metric": "class_direction.auc", "value": 1}]))

    rows = [
        ("intra_sequence", None, "hidden"),
        ("intra_sequence", None, "value"),
        ("intra_sequence", None, "key"),
        ("intra_sequence", "more", "hidden"),
        ("intra_sequence.isotropic", None, "hidden"),
    ]
    alike = pd.DataFrame(rows, columns=["metric", "component", "site"])
    alike = as_records(alike.assign(value=0.5, head=0))
    sentences = SimpleNamespace(
        encoded={TEST: [None] * 3, "train": [None] * 8},
        tokenizer=SimpleNamespace(pad_token_id=4),
        labels=lambda read: {"each": ("x", "y")}[read],
    )
    model = torch.nn.Module()
    model.classifier = lambda _: torch.nn.functional.one_hot(said * (not alone), 2)
    monkeypatch.setattr(small_cells, "_read", lambda *_: (vectors, truth, units))
    monkeypatch.setattr(small_cells, "LabelledPlan", lambda *given: given)
    monkeypatch.setattr(small_cells, "make_separability_records", separate)

    def run(*asked):
        batches = (sentences.encoded[TEST], 4)
        assert asked == (model, batches, small_cells.MEASURED)
        return SimpleNamespace(records=lambda: alike.copy())

    monkeypatch.setattr(small_cells, "run_pass", run)
    monkeypatch.setattr(small_cells, "MOST", 5)
    monkeypatch.setattr(
        small_cells, "compare_classes", lambda *_: {"mean": 0.25, "most": 0.5}
    )
    cell = small_models.SmallCell("synthetic:3", "each", layers=2)
    found = small_cells.measure_model(model, cell, sentences)
    ((states, labels, names, of),) = given
    assert states.shape == (5, 1, 4) and states[4, 0].tolist() == vectors[4].tolist()
    assert labels.tolist() == truth[:5].tolist() and names == ("x", "y")
    assert of.tolist() == [0, 0, 1, 1, 2]
    values = {
        (r.metric, r.component): r.value
        for r in found[found["site"].isna()].itertuples()
    }
    # Of a single class everything is right by chance.
    expected = {
        ("accuracy", TEST): 1,
        ("majority", TEST): 1 if alone else pytest.approx(4 / 6),
        ("collapsed", TEST): float(alone),
        ("class_cosine.mean", None): 0.25,
        ("class_cosine.most", None): 0.5,
        ("class_direction.auc", None): 1,
    }
    assert {(m, None if pd.isna(c) else c): x for (m, c), x in values.items()} == (
        expected
    )
    kept = found[found["site"].notna()]
    assert list(zip(kept["metric"], kept["site"], strict=True)) == [
        ("intra_sequence", "hidden"),
        ("intra_sequence", "value"),
    ]
    assert kept["head"].isna().all()
    of_sentences = found["metric"].isin(["accuracy", "majority", "collapsed"])
    assert set(found.loc[of_sentences, "n_units"]) == {3}
    apart = found[found["metric"] == "class_direction.auc"]
    assert apart["layer"].tolist() == [2]


def test_weights_of_a_small_model_are_drawn_from_its_seed():
    sentences = small_models.open_material("synthetic:3", 30, 30, 0)
    found = []
    for seed in (1, 1, 2):
        cell = small_models.SmallCell("synthetic:3", "each", dim=8, seed=seed)
        model = small_models.build_untrained(cell, sentences)
        found.append(model.classifier.weight.detach())
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    assert found[0].shape == (4, 8)


def test_small_models_are_listed_seed_by_seed():
    grid = small_models.SmallGrid(
        (("a", "first"), ("b", "each")),
        blocks=("norm", "plain"),
        layers=(1, 3),
        dims=(8, 16),
        seeds=2,
    )
    expected = [
        small_models.SmallCell(task, read, blocks, layers, dim, seed)
        for seed in (0, 1)
        for task, read in (("other", "first"), ("b", "each"))
        for blocks in ("norm", "plain")
        for layers in (1, 3)
        for dim in (8, 16)
    ]
    assert grid.cells({"a": "other"}) == expected
    assert expected[-1].label == "read=each blocks=plain L=3 d=16"
    assert {cell.task for cell in grid.cells()} == {"a", "b"}


# ---- how many numbers a rank correlation needs -----------------------------------------------------------------------


def test_a_correlation_with_steps_needs_four_of_them():
    values = {step: np.array([float(step), -step]) for step in (0, 10, 38)}
    values[-1] = np.array([99.0, 99.0])  # uniform attention has no place among steps
    nothing = np.full(2, NAN)
    assert np.isnan(frozen.correlate_with_steps(Seeds(values, nothing))).all()
    values[240] = np.array([20.0, -240])
    found = frozen.correlate_with_steps(Seeds(values, nothing))
    ranks = stats.spearmanr([1, 2, 3, 4], [1, 2, 4, 3]).statistic
    assert found.tolist() == pytest.approx([ranks, -1])


@pytest.mark.parametrize("depth", [2, 3])
def test_values_and_losses_are_correlated_over_six_cells_at_least(depth):
    rows, lost, alike = [], [], []
    draw = np.random.default_rng(0)
    for corpus, layers in product(("yelphat", "hatexplain"), range(1, depth + 1)):
        model = f"attention L={layers} λ=0 d=384 h=1"
        numbers = draw.uniform(size=4)
        for arm, (accuracy, value) in zip(
            ("", " attention=uniform"), numbers.reshape(2, 2), strict=True
        ):
            place = {"model": model + arm, "corpus": corpus, "seed": 0}
            one = {"metric": "accuracy", "component": "test", "value": accuracy}
            rows.append(place | one)
            one = {"metric": "intra_sequence", "site": "value", "value": value}
            rows.append(place | one | {"layer": layers, "token_policy": "all"})
        lost.append(numbers[0] - numbers[2])
        alike.append(numbers[1])
    frame = add_options(as_records(pd.DataFrame(rows)))
    whole = Evidence("needed", frame, paper="beyond")
    found = needed.correlate_values_with_loss(whole)
    if len(lost) < 6:
        assert np.isnan(found).all()
    else:
        assert found == pytest.approx(stats.spearmanr(alike, lost).statistic)


# ---- cells of language models ----------------------------------------------------------------------------------------


def make_recipe(tmp_path):
    return SimpleNamespace(folder=lambda arm, seed: tmp_path / f"{arm}-{seed}")


@pytest.mark.parametrize("asked", [False, True])
def test_a_cell_is_finished_with_all_of_its_files(tmp_path, asked):
    experiment = trained.Experiment(("a", "b"), 2, make_recipe(tmp_path), asked=asked)
    names = [trained.SEEN, trained.ASKED][: 1 + asked]
    assert experiment.files == tuple(names)
    folder = tmp_path / "b-1"
    folder.mkdir()
    for name in names:
        assert not experiment.has("b", 1)
        (folder / name).touch()
    assert experiment.has("b", 1) and not experiment.has("a", 1)


def test_the_first_two_arms_are_trained_with_every_seed_before_the_others():
    experiment = trained.Experiment(("a", "b", "c", "d"), 2, None)
    assert experiment.cells() == [
        *(("a", 0), ("b", 0), ("a", 1), ("b", 1)),
        *(("c", 0), ("d", 0), ("c", 1), ("d", 1)),
    ]


@pytest.mark.parametrize("train", [False, True])
def test_cells_are_trained_or_only_the_finished_ones_read(monkeypatch, tmp_path, train):
    made, checked, reports = [], [], []

    class Recipe:
        def folder(self, arm, seed):
            return tmp_path / f"{arm}-{seed}"

        def hash_data(self):
            return {"text": "hash"}

        def train(self, arm, seed, folder, device):
            # What is read is noted first: a training may be interrupted.
            noted = json.loads((folder / trained.READ).read_text())
            assert noted == self.hash_data()
            made.append((arm, seed, device))
            self.write(seed, folder)

        def write(self, seed, folder):
            folder.mkdir(exist_ok=True)
            for number, name in enumerate((trained.SEEN, trained.ASKED)):
                row = {"metric": f"m{number}", "value": 10.0 * seed + number}
                as_records(pd.DataFrame([row])).to_parquet(folder / name)

    recipe = Recipe()
    recipe.write(1, tmp_path / "a-1")
    monkeypatch.setattr(trained, "check_noted", lambda *given: checked.append(given))
    experiment = trained.Experiment(("a", "b"), 2, recipe, train=train, asked=True)
    context = Context(
        tmp_path, tmp_path, "cuda", progress=lambda *given: reports.append(given)
    )
    found = trained.measure(experiment, context)
    cells_ = [("a", 0), ("b", 0), ("a", 1), ("b", 1)] if train else [("a", 1)]
    assert set(made) == {(*cell, "cuda") for cell in cells_ if cell != ("a", 1)}
    assert sorted(checked) == sorted(
        (tmp_path / f"{a}-{s}" / trained.READ, {"text": "hash"}, tmp_path / f"{a}-{s}")
        for a, s in cells_
    )
    rows = zip(
        found["model"].astype(str),
        found["seed"],
        found["metric"],
        found["value"],
        strict=True,
    )
    assert sorted(rows) == sorted(
        (arm, seed, f"m{number}", 10.0 * seed + number)
        for arm, seed in cells_
        for number in (0, 1)
    )
    n = len(cells_)
    assert reports == [("cells", done, n) for done in range(1, n + 1)]
    for arm, seed in cells_:
        noted = tmp_path / f"{arm}-{seed}" / trained.READ
        assert (arm, seed) == ("a", 1) or json.loads(noted.read_text()) == {
            "text": "hash"
        }


def test_a_model_that_another_process_trains_is_waited_for_last(monkeypatch, tmp_path):
    recipe = make_recipe(tmp_path)
    recipe.hash_data = dict
    experiment = trained.Experiment(("a", "b"), 1, recipe, asked=True)

    def once(folder, _make, *, marker, wait):
        assert marker == trained.ASKED
        if folder.name == "a-0" and not wait:
            raise Busy(folder)
        folder.mkdir()
        for name in (trained.SEEN, trained.ASKED):
            row = {"metric": name, "value": 1.0}
            as_records(pd.DataFrame([row])).to_parquet(folder / name)

    monkeypatch.setattr(trained, "make_once", once)
    found = trained.measure(experiment, Context(tmp_path, tmp_path))
    assert found["model"].tolist() == ["b", "b", "a", "a"]


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("arm", ["base", "type", "softmax1", "untied+sigmoid"])
def test_numbers_of_a_softmax_are_kept_of_arms_that_have_one(monkeypatch, arm, last):
    sites = ("hidden", "query.raw", "key.raw", "attention", "scores", "centred")
    place = {"metric": "m", "low": 0.0, "high": 1.0}
    rows = [
        place | {"site": site, "value": float(number)}
        for number, site in enumerate((*sites, "value"))
    ]
    rows.append(place | {"site": "hidden", "component": "7", "value": 99.0})
    asked = []

    def look(how):
        def measured(of, plan, settings):
            # A single look puts the model in evaluation mode itself.
            assert model.training == (how == "probe")
            asked.append((how, of, plan, settings))
            return SimpleNamespace(records=lambda: as_records(pd.DataFrame(rows)))

        return measured

    monkeypatch.setattr(trained, "run_pass", look("pass"))
    monkeypatch.setattr(trained, "measure_probe", look("probe"))
    model = torch.nn.Linear(1, 1)
    model.base_model, model.config = "base model", SimpleNamespace(arm=arm)
    plan = ["first", "second"]
    found = trained._measure_step(model, plan, last=last)
    softmax = arm in ("base", "type")
    expected = [0, 1, 2, 3, 4, 5] if softmax else [0, 1, 2, 4]
    assert found["value"].tolist() == expected
    assert found[["low", "high"]].isna().all(axis=None) and model.training
    ((how, of, batches, settings),) = asked
    assert (how, of, list(batches)) == (
        "pass" if last else "probe",
        "base model",
        plan,
    )
    metrics = trained.AT_THE_END if last else trained.ALONG
    assert (settings.metrics, settings.tokens) == (metrics, ("all",))
    assert (settings.groups, settings.sample) == (8, 0)


@pytest.mark.parametrize("there", [(), (trained.CORPUS,), (trained.PROBE,)])
def test_either_text_that_is_not_there_is_replaced(monkeypatch, there):
    monkeypatch.setattr(trained, "find_path", lambda name: name in there or None)
    expected = [
        name if name in there else "builtin:python-docs"
        for name in ("pretrain_text", "wikitext/wiki.valid.raw")
    ]
    assert list(trained.list_corpora()) == expected
    # Both are noted, since either may change under its name.
    monkeypatch.setattr(trained, "hash_corpora", lambda *names: list(names))
    recipe = trained.Recipe("causal-lm", causes.SIZE, 4, looks=())
    assert recipe.hash_data() == expected


def test_a_model_reads_one_text_and_is_measured_on_windows_of_another(
    monkeypatch, tmp_path
):
    """Every part is handed on to where it belongs: two texts, two sizes of a probe, three kinds of windows."""
    size = replace(causes.SIZE, batch=5, rate=0.25)
    recipe = trained.Recipe("causal-lm", size, 6, looks=(2,), probe=7)
    tokens = SimpleNamespace(parts=lambda: (np.arange(8), np.array([8, 9])))
    model = SimpleNamespace(token_weights=torch.zeros(3))
    shares, fitted, measured = np.array([0.25, 0.5, 0.25]), [], []

    def prepare(*given):
        assert given == ("text of read", "causal-lm", size.vocabulary, size.window)
        return "tokenizer", tokens

    def open_plan(name, *given, modality, sequences):
        assert given == (model, "tokenizer") and modality == "text"
        return f"{sequences} of {name}", {}

    def count(of, windows):
        assert of is tokens and windows.tolist() == list(range(8))
        return shares

    def guess(of, examples):
        assert of is shares and examples is fitted_on["held"]
        return 1.25

    fitted_on = {}

    def examples(of, windows, n, seed, *, shuffled=True):
        kind = "read" if shuffled else "held"
        fitted_on[kind] = SimpleNamespace(given=(of is tokens, list(windows), n, seed))
        return fitted_on[kind]

    monkeypatch.setattr(trained, "list_corpora", lambda: ("read", "probed"))
    monkeypatch.setattr(trained, "open_training_corpus", "text of {}".format)
    monkeypatch.setattr(trained, "prepare", prepare)
    monkeypatch.setattr(trained, "open_plan", open_plan)
    monkeypatch.setattr(trained, "compute_unigram_shares", count)
    monkeypatch.setattr(trained, "compute_unigram_loss", guess)
    monkeypatch.setattr(trained, "Examples", examples)
    monkeypatch.setattr(outcomes, "WINDOWS", 11)
    build = {("balanced+decay", size, "tokenizer", 3): model}
    monkeypatch.setattr(arms, "build_untrained", lambda *given: build[given])
    monkeypatch.setattr(
        trained, "train_and_measure", lambda *given: fitted.append(given)
    )

    def measure(*given):
        measured.append(given)
        return pd.DataFrame([{"metric": "probing.accuracy", "value": 0.5}])

    monkeypatch.setattr(outcomes, "measure_outcomes", measure)
    (tmp_path / "resume").mkdir()
    trained._train("balanced+decay", 3, recipe, tmp_path, "cpu")
    ((made, how, plan, seen, known, folder, named),) = fitted
    assert (made.model, made.train, made.validation) == (
        model,
        fitted_on["read"],
        fitted_on["held"],
    )
    assert fitted_on["read"].given == (True, list(range(8)), 6 * 5, 3)
    assert fitted_on["held"].given == (True, [8, 9], 2, 0)
    weights = trained.compute_balanced_weights(shares).tolist()
    assert model.token_weights.tolist() == weights
    settings = ("weight_decay", "max_steps", "seed", "learning_rate", "use_cpu")
    assert [how.settings[name] for name in settings] == [0.1, 6, 3, 0.25, True]
    cell = {"model": "balanced+decay", "seed": 3, "corpus": "probed"}
    assert (plan, seen, known) == ("7 of probed", (0, 2, 6), 1.25)
    assert (folder, named) == (tmp_path, cell)
    assert measured == [(model, "tokenizer", "7 of probed", "11 of probed")]
    (row,) = pd.read_parquet(tmp_path / trained.ASKED).to_dict("records")
    assert {name: row[name] for name in cell} == cell
    assert (row["step"], row["value"]) == (6, 0.5)
    assert not (tmp_path / "resume").exists()


def test_studies_of_sinks_and_of_use_are_asked_for_more_than_a_look():
    for name, of_name in causes.SETTINGS.items():
        asked = name in ("sinks", "useful")
        for which in ("quick", "paper", "finished"):
            experiment = of_name[which]
            assert experiment.asked == asked, (name, which)
            assert experiment.train == (which != "finished")
            quick = which == "quick"
            assert experiment.seeds == (2 if quick else 4 if asked else 6)
            arms_ = causes.ARMS[name]
            assert experiment.arms == (arms_[:2] if quick else arms_)
            assert experiment.recipe == (causes.BRIEF if quick else causes.FULL)


def test_queries_or_keys_of_either_spelling_are_changed_and_nothing_else():
    for names in (("query", "key", "value"), ("q_proj", "k_proj", "v_proj")):
        for side, place in (("queries-centred", 0), ("keys-centred", 1)):
            attention = torch.nn.Module()
            for name in names:
                setattr(attention, name, torch.nn.Linear(2, 2))
            model = torch.nn.Sequential(attention)
            before = [getattr(attention, name) for name in names]
            arms.CHANGES[side].model(model)
            for number, name in enumerate(names):
                now = getattr(attention, name)
                assert isinstance(now, arms.Centred) == (number == place)
                assert now.weight is before[number].weight


# ---- what is measured of a classifier before it goes -----------------------------------------------------------------


@pytest.mark.parametrize("arm", ["learned", "frozen", "uniform"])
def test_attention_is_made_uniform_in_every_layer_where_it_was_not(monkeypatch, arm):
    labels = [0, 1, 2, 1]
    asked = []

    def average(model, batches, kind, layers):
        asked.append((model, batches.limit, kind, layers))
        # Of four utterances three are right as it is, and one without attention.
        return (np.array([0, 1, 2, 0] if not layers else [1, 1, 0, 0]),)

    monkeypatch.setattr(cells, "average_outcome", average)
    results = {
        "validation": {"accuracy": 0.25, "n": 8, "majority": 0.125},
        TEST: {"accuracy": 0.75, "n": 4, "majority": 0.5},
        "test_yelp50": {"accuracy": 0.875, "n": 2, "majority": 0.625},
    }
    one = SimpleNamespace(
        cell=Cell("esnli", layers=3, seed=5, arm=arm),
        found=SimpleNamespace(
            training={
                "results": results,
                "collapsed": True,
                "steps": 77,
                "kept_step": 66,
            }
        ),
        classifier=("model", "tokenizer"),
        corpus=SimpleNamespace(labels=("a", "b", "c")),
        batches=lambda limit: SimpleNamespace(
            limit=limit, encoded=SimpleNamespace(labels=labels)
        ),
    )
    found = cells._measure_accuracies(one)
    # So many that none of a class is left out, whatever the others have.
    kinds = [()] if arm == "uniform" else [(), (1, 2, 3)]
    assert asked == [("model", 12, "uniform", layers) for layers in kinds]
    assert set(found["seed"]) == {5} and set(found["corpus"]) == {"esnli"}
    assert set(found["model"]) == {one.cell.label}
    accuracy = found[found["metric"] == "accuracy"].set_index("component")
    expected = {name: (of["accuracy"], of["n"]) for name, of in results.items()}
    if arm != "uniform":
        expected[AFTERWARDS] = (0.25, 4)
    pairs = zip(accuracy["value"], accuracy["n_units"], strict=True)
    assert dict(zip(accuracy.index, pairs, strict=True)) == expected
    others = found[~found["metric"].isin(["accuracy", RIGHT])]
    assert dict(zip(others["metric"], others["value"], strict=True)) == {
        "majority": 0.5,
        "collapsed": 1.0,
        "steps": 77.0,
        "kept_step": 66.0,
    }
    bits = [
        (*cells.unpack_bits(row.component, 4), row.value)
        for row in found[found["metric"] == RIGHT].itertuples()
    ]
    names = [name for name, _, _ in bits]
    assert names == [TEST, AFTERWARDS][: len(kinds)]
    rights = [[True, True, True, False], [False, True, False, False]]
    assert [right.tolist() for _, right, _ in bits] == rights[: len(kinds)]
    assert [share for _, _, share in bits] == [0.75, 0.25][: len(kinds)]


@pytest.mark.parametrize("arm", ["learned", "uniform"])
@pytest.mark.parametrize("short", [False, True])
def test_geometry_is_of_the_sites_that_claims_are_about(monkeypatch, arm, short):
    rows = []
    for number, (metric, site, component, head) in enumerate(
        (
            ("intra_sequence", "hidden", None, None),
            ("intra_sequence", "key.raw", None, 0),
            ("intra_sequence", "value", None, 0),
            ("intra_sequence", "query.raw", None, 0),
            ("intra_sequence", "hidden", "x", None),
            ("norms.mean", "key.raw", None, 0),
            ("norms.variation", "key.raw", None, 0),
            ("norms.mean", "hidden", None, None),
            ("norms", "key.raw", None, 0),
        )
    ):
        place = {"site": site, "component": component, "head": head, "layer": 1}
        rows.append(place | {"metric": metric, "value": float(number)})
    asked = []

    def entropy(model, batches, layer):
        asked.append((model, batches, layer))
        both = [
            {"metric": "cls_entropy", "component": "row", "value": 100.0 + layer},
            {"metric": "cls_entropy.floor", "component": "row", "value": 0.0},
        ]
        return as_records(pd.DataFrame(both), layer=layer)

    monkeypatch.setattr(cells, "measure_entropy", entropy)
    monkeypatch.setattr(
        cells,
        "run_pass",
        lambda *_: SimpleNamespace(records=lambda: as_records(pd.DataFrame(rows))),
    )
    splits = (TEST, "test_yelp50") if short else (TEST,)
    one = SimpleNamespace(
        cell=Cell("yelphat", layers=2, seed=5, arm=arm),
        plan=Grid(utterances=33),
        corpus=SimpleNamespace(splits=splits),
        classifier=("model", "tokenizer"),
        batches=lambda limit, split: (limit, split),
        label="its name",
    )
    found = cells._measure_geometry(one)
    batches = (33, splits[-1])
    entropies = [] if arm == "uniform" else [101.0, 102.0]
    assert asked == [("model", batches, 1 + n) for n in range(len(entropies))]
    assert sorted(found["value"]) == [0, 1, 2, 5, 6, *entropies]
    assert found["head"].isna().all() and set(found["model"]) == {"its name"}
    assert set(found["seed"]) == {5} and set(found["corpus"]) == {"yelphat"}
