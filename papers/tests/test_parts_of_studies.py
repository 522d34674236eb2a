"""What studies train, read and measure of each model, step by step, with what is slow replaced by a few numbers."""

import contextlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.charts import builders
from anisoscope.data.labelled import TEST, Example, LabelledCorpus
from anisoscope.errors import CorpusError, ModelError, OutputError
from anisoscope.metrics.class_direction import separability
from anisoscope.provenance import describe_code_version
from anisoscope.store import Busy, as_records, make_once, read_table, select
from anisoscope_papers import series_charts
from anisoscope_papers.beyond import (
    causes,
    cells,
    erased,
    outcomes,
    small_cells,
    small_models,
    trained,
)
from anisoscope_papers.fosse2023 import (
    fig2_directions,
    measurements,
    sec2_cones,
    sec3_curve,
    table2_examples,
    trained_cells,
)
from anisoscope_papers.fosse2023.entry import Evidence, compute_spearman
from anisoscope_papers.fosse2023.grid import COMMON, RAW, RECIPES, WIDTH, Cell, Grid
from anisoscope_papers.godey2024 import (
    fig01_04_layers,
    fig05_16_drift,
    fig15_entropy,
    layer_curves,
)
from anisoscope_papers.study import Context, Verdict, read_claims
from anisoscope_papers.training.fit import Fitting
from anisoscope_papers.training.recipe import ARMS, ClassifierRecipe
from anisoscope_papers.training.train_small import LONG

CORPORA = ("yelphat", "hatexplain", "esnli")


# ---- the grid of classifiers -----------------------------------------------------------------------------------------


def make_grid(**given):
    return Grid(corpora=CORPORA, **given)


def test_a_recipe_has_what_its_cell_and_the_grid_say():
    plain = ClassifierRecipe()
    grid = make_grid(limit=100, epochs=9, patience=2, warmup=7, clip=0.5)
    grid = replace(grid, vector_norm=3.0, vector_cosine=0.2, encoder="e")

    def fields(*names, **cell):
        found = grid.recipe(Cell("esnli", **cell))
        return tuple(getattr(found, name) for name in names)

    assert fields("limit", "seed", "split_seed", seed=3, split=2) == (100, 3, 2)
    assert fields("limit", examples=40) == (40,)
    assert fields("epochs", "patience", "steps") == (9, 2, plain.steps)
    assert fields("epochs", "steps", steps=77) == (plain.epochs, 77)
    assert fields("warmup", "clip") == (plain.warmup, plain.clip)
    assert fields("layers", "warmup", "clip", layers=2) == (2, 7, 0.5)
    assert fields("penalty", "weight") == (plain.penalty, plain.weight)
    assert fields("penalty", "weight", weight=0.1) == ("entropy", 0.1)
    of_vectors = ("vectors", "vector_norm", "vector_cosine", "dim")
    assert fields(*of_vectors) == ("e", 3.0, plain.vector_cosine, plain.dim)
    assert fields(*of_vectors, start=RAW) == ("e", None, plain.vector_cosine, plain.dim)
    assert fields(*of_vectors, start=COMMON) == ("e", 3.0, 0.2, plain.dim)
    drawn = fields(*of_vectors, start="random")
    assert (drawn[0], drawn[3]) == ("random", WIDTH)
    assert fields("vectors", "dim", "heads", dim=48, heads=6) == ("random", 48, 6)
    arm = {"arm": "frozen", "freeze_after": 5, "scale": 0.5}
    names = ("attention", "freeze_after", "positions", "position_scale")
    assert fields(*names, **arm) == ("frozen", 5, plain.positions, 0.5)
    assert fields("positions", positions="learned") == ("learned",)


def test_an_encoder_is_tuned_for_all_its_epochs_on_a_part_of_the_corpus():
    grid = make_grid(limit=100, fine_limit=30, fine_length=12, fine_epochs=4)
    grid = replace(grid, fine_rate=0.1, fine_batch=5)
    found = grid.recipe(Cell("esnli", "an/encoder", seed=3))
    assert (found.model, found.limit, found.max_length) == ("an/encoder", 30, 12)
    assert (found.epochs, found.patience, found.seed) == (4, 4, 3)
    assert (found.rate, found.batch) == (0.1, 5)


def test_attention_is_replaced_at_every_depth_and_at_the_two_largest_weights():
    grid = make_grid(seeds=2, weights=(0.0, 0.1, 0.2, 0.4), start_seeds=1)
    found = grid.to_replace()
    assert len(found) == len(set(found))
    one = [cell for cell in found if cell.layers == 1 and cell.corpus == "esnli"]
    assert {cell.weight for cell in one} == {0.0, 0.2, 0.4}
    assert {cell.start for cell in one if cell.weight == 0} == {
        "scaled",
        "raw",
        "random",
    }
    deep = {(cell.corpus, cell.layers) for cell in found if cell.layers > 1}
    assert deep == {
        *(("yelphat", n) for n in (2, 3, 4, 5)),
        *(("hatexplain", n) for n in (2, 3, 4, 5)),
        ("esnli", 2),
    }
    large = make_grid().by_weight()
    assert {cell.weight for cell in large} > {1.0, 6.0}
    assert 1.0 not in {cell.weight for cell in make_grid().by_weight(large=False)}


@pytest.mark.parametrize("seeds", [(6, 3), (3, 6)])
def test_every_recipe_of_positions_is_trained_with_every_seed(seeds):
    found = make_grid(position_seeds=seeds).by_positions()
    expected = {
        (corpus, layers, seed, arm, *recipe)
        for corpus in CORPORA
        for layers, n in enumerate(seeds, 1)
        for seed in range(n)
        for arm in ("learned", "uniform", "frozen")
        for recipe in RECIPES.values()
    }
    keys = [(c.corpus, c.layers, c.seed, c.arm, c.positions, c.scale) for c in found]
    assert set(keys) == expected and len(keys) == len(expected)
    frozen = [c.arm == "frozen" for c in found]
    assert frozen == sorted(frozen)
    assert {c.freeze_after for c in found if c.arm == "frozen"} == {0}
    assert {c.freeze_after for c in found if c.arm != "frozen"} == {None}
    # Of each depth first four seeds of all recipes, one layer before two.
    learned = [(c.layers, c.seed >= 4) for c in found if c.arm != "frozen"]
    assert learned == sorted(learned)
    # And of those seeds first the recipes of the paper's text and of its code.
    first = (RECIPES["no positions"], RECIPES["sinusoids"])
    later = [
        (c.arm == "frozen", c.layers, c.seed >= 4, (c.positions, c.scale) not in first)
        for c in found
    ]
    assert later == sorted(later)


def test_curves_of_two_seeds_are_whole_before_the_next_begin():
    grid = make_grid(length=50, freezing=(0, 7), length_seeds=3)
    found = grid.by_length()
    assert {c.steps for c in found} == {50} and len(found) == len(set(found))
    arms = {("frozen", 0), ("frozen", 7), (ARMS[0], None), ("uniform", None)}
    for corpus in CORPORA:
        for seed in range(3):
            for name in ("sinusoids", "no positions"):
                own = [
                    (c.arm, c.freeze_after)
                    for c in found
                    if (c.corpus, c.seed) == (corpus, seed)
                    and (c.positions, c.scale) == RECIPES[name]
                ]
                assert set(own) == arms and len(own) == 4
    order = [(c.seed // 2, c.positions == "none") for c in found]
    assert order == sorted(order)


# ---- records of classifiers ------------------------------------------------------------------------------------------


def test_the_majority_of_a_collapsed_classifier_is_that_of_the_test_split():
    def row(metric, value, seed=0, component=None):
        place = {"model": "m", "corpus": "yelphat", "seed": seed}
        return {"metric": metric, "value": value, "component": component, **place}

    rows = [
        row("majority", 0.9, component="train"),
        row("majority", 0.6, component="test"),
        row("accuracy", 0.95, component="train"),
        row("accuracy", 0.75, component="test"),
        row("accuracy", 0.5, seed=1, component="test"),
        row("collapsed", 1.0, seed=1),
        row("collapsed", 0.0),
    ]
    here = Evidence("table1", as_records(pd.DataFrame(rows)), "yelphat")
    expected = "accuracy 0.750, majority 0.600, 1 collapsed, left out"
    assert here.describe_classifiers(model="m") == expected


def at_once(_trained, _name, make):
    return make()


@pytest.mark.parametrize("examples", [None, 40])
def test_only_what_was_trained_on_all_is_tested_on_its_own_split(monkeypatch, examples):
    results = {}
    for split, right in (("train", 0.9), ("validation", 0.8), (TEST, 0.7)):
        results[split] = {"n": 10, "accuracy": right, "majority": right - 0.3}
        results[split]["by_class"] = {"a": right + 0.05, "b": right - 0.05}
    training = {"results": results, "collapsed": False, "parameters": 99, "epochs": 4}
    training["truncated"] = {"train": 3, TEST: 2}
    again = as_records(pd.DataFrame([{"metric": "accuracy", "value": 0.1}]))
    again = again.assign(component=TEST)
    monkeypatch.setattr(measurements, "_test_split_model", lambda _: again)
    made = SimpleNamespace(
        cell=Cell("esnli", examples=examples), found=SimpleNamespace(training=training)
    )
    rows = measurements.read_accuracies(made)
    found = {(r.metric, r.component): r.value for r in rows.itertuples()}
    assert found["accuracy", "train"] == 0.9
    assert found["majority", "validation"] == pytest.approx(0.5)
    whole = examples is None
    assert found["accuracy", TEST] == (0.7 if whole else 0.1)
    assert (("class_accuracy", "a") in found) == whole
    others = {r.metric: r.value for r in rows.itertuples() if pd.isna(r.component)}
    assert others == {"collapsed": 0, "parameters": 99, "epochs": 4, "truncated": 5}


def test_classes_are_told_apart_by_the_vectors_of_the_last_layer(monkeypatch):
    labels = np.array([0, 0, 0, 1, 1, 1])
    last = np.array([[1.0, 0.1], [1, 0], [1, 0.2], [0.1, 1], [0, 1], [0.2, 1]])
    first = np.ones((6, 2)) + np.arange(12.0).reshape(6, 2) % 5
    vectors = np.stack([first, first[::-1], last], 1)
    monkeypatch.setattr(measurements, "measure_once", at_once)
    monkeypatch.setattr(
        measurements, "pool_vectors", lambda _model, limit: vectors[:limit]
    )
    made = SimpleNamespace(
        classes=(labels, labels),
        classifier=(None, None),
        batches=lambda limit: limit,
        plan=Grid(utterances=6, erased=2),
        corpus=SimpleNamespace(labels=("a", "b")),
        cell=Cell("esnli", layers=2),
    )
    rows = measurements.measure_separation(made)
    unit = last / np.linalg.norm(last, axis=1, keepdims=True)
    expected = separability(unit, labels, 2)
    assert set(rows["layer"]) == {2}
    for name, (value, _, _) in expected.items():
        quantity, _, index = name.partition(".")
        own = rows[rows["metric"] == f"class_direction.{quantity}"]
        own = own[own["component"] == "ab"[int(index)]] if index else own
        assert own["value"].iloc[0] == pytest.approx(float(value)), name


def test_directions_of_both_stages_have_their_own_ends(monkeypatch):
    draw = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 8)
    stages = {}
    for name, apart in (("tuned", 2.0), ("pretrained", 0.3)):
        x = draw.normal(size=(24, 5)) + apart * np.eye(5)[labels]
        stages[name] = x / np.linalg.norm(x, axis=1, keepdims=True)
    before = object()
    monkeypatch.setattr(fig2_directions, "measure_once", at_once)
    monkeypatch.setattr(
        fig2_directions, "load", lambda name: SimpleNamespace(model=(name, before))
    )
    made = SimpleNamespace(
        cell=Cell("esnli", "an/encoder"),
        classes=(labels, labels),
        corpus=SimpleNamespace(labels=("a", "b", "c")),
        directions=lambda model=None: stages[
            {None: "tuned", ("an/encoder", before): "pretrained"}[model]
        ],
    )
    rows = fig2_directions.measure_directions(made)
    for site, unit in stages.items():
        for name, ends in separability(unit, labels, 3).items():
            quantity, _, index = name.partition(".")
            own = select(rows, site=site, metric=f"separability.{quantity}")
            own = own[own["component"] == "abc"[int(index)]] if index else own
            found = own[["value", "low", "high"]].to_numpy(float)[0]
            np.testing.assert_allclose(found, np.array(ends, float)), name
            assert set(own["n_units"]) == {24}


def test_cones_are_averaged_and_keys_compared_with_the_plain_entropy(monkeypatch):
    found = pd.DataFrame(
        {
            "keys.similarity": [0.1, 0.4, 0.2, 0.5],
            "keys.plain": [0.9, 0.7, 0.3, 0.2],
            "cone.inside": [1.0, 1.0, 0.5, 0.0],
        }
    )
    monkeypatch.setattr(sec2_cones, "measure_once", at_once)
    monkeypatch.setattr(sec2_cones, "_measure_each", lambda _: found)
    rows = sec2_cones.measure_cones(None)
    expected = {f"cones.{name}": found[name].mean() for name in found}
    # Ranks (0, 2, 1, 3) and (3, 2, 1, 0): Σd² = 9 + 0 + 0 + 9, 1 − 6 · 18 / 60.
    assert compute_spearman(*found.to_numpy().T[:2]) == pytest.approx(-0.8)
    expected["cones.keys.correlation"] = -0.8
    assert dict(zip(rows["metric"], rows["value"], strict=True)) == pytest.approx(
        expected
    )
    assert set(rows["n_units"]) == {4} and set(rows["layer"]) == {1}


def test_the_last_third_is_at_least_one_layer():
    for depth, start in ((1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (12, 8)):
        curve = np.cumsum(np.arange(depth + 1.0))[None]
        share = (curve[0, -1] - curve[0, start]) / curve[0, -1]
        assert sec3_curve.measure_late_share(curve) == pytest.approx([share]), depth


def test_the_middle_of_an_even_number_of_texts_is_the_nearer_one():
    labels = np.array([1, 0, 1, 0, 0, 0, 1])
    cosine = np.array([0.2, 0.7, 1.0, -0.3, 0.1, 0.4, -0.6])
    found = table2_examples.choose_rows(cosine, labels, 2)
    # Class 0 from the least alike: 3, 4, 5, 1.
    assert list(found.values()) == [0, 1, 5, 6]


def test_a_text_is_cut_where_it_would_not_fit(monkeypatch):
    width = table2_examples.SNIPPET
    texts = [(("x" * n,), None) for n in (width - 1, width, width + 1)]
    texts += [(("a", "b"), ("c", "d")), (("y" * (width - 2), "zzzz"), None)]
    split = tuple(Example(one, 0, second=two) for one, two in texts)
    corpus = LabelledCorpus("c", ("l",), {TEST: split})
    monkeypatch.setattr(table2_examples, "open_corpus", lambda _: corpus)
    assert table2_examples._read_texts("c", [0, 1, 2, 3, 4]) == [
        "x" * (width - 1),
        "x" * width,
        "x" * (width - 1) + "…",
        "a b / c d",
        "y" * (width - 2) + "…",
    ]


def test_what_is_missing_is_named_and_asked_for_once(monkeypatch, tmp_path):
    """An attention-only classifier lacks the encoder of its word vectors, another one the encoder that it tunes."""
    tried = []

    def train(cell, _plan, _folder, _device):
        tried.append((cell.corpus, cell.model))
        if cell.corpus == "esnli":
            raise CorpusError("a corpus", "none", "fetch it")
        raise ModelError("a model", "none", "fetch it")

    monkeypatch.setattr(trained_cells, "train_cell", train)
    told = []
    context = Context(tmp_path, tmp_path, progress=lambda *given: told.append(given))
    asked = [
        Cell("yelphat", "an/encoder"),
        Cell("hatexplain", "an/encoder"),
        Cell("esnli"),
        Cell("esnli", seed=1),
        Cell("yelphat"),
    ]
    plan = make_grid(encoder="builtin:vectors")
    looked = trained_cells.apply_to_each(asked, plan, context, lambda _: None)
    assert list(looked) == []
    assert tried == [
        ("yelphat", "an/encoder"),
        ("esnli", "attention"),
        ("yelphat", "attention"),
    ]
    said = [row["model"] for row in context.lacking]
    assert said == ["an/encoder", "esnli", "builtin:vectors"]
    assert told == [("classifiers", n, 5) for n in (1, 2, 3, 4, 5)]


def test_a_stopped_training_goes_on_and_one_in_other_hands_comes_last(
    monkeypatch, tmp_path
):
    plan, context = make_grid(), Context(tmp_path, tmp_path, device="cuda:1")
    asked = [Cell("esnli", seed=seed) for seed in range(3)]
    busy, stopped, _ = (
        trained_cells.name_folder(cell, plan, tmp_path) for cell in asked
    )
    # A folder without its last file is no finished classifier.
    stopped.mkdir(parents=True)
    trained = []

    def make(folder, work, *, marker, wait):
        if folder == busy and not wait:
            raise Busy(folder)
        make_once(folder, work, marker=marker, wait=wait)

    def train(cell, given, folder, device):
        assert given is plan
        trained.append((cell.seed, device))
        folder.mkdir(exist_ok=True)
        (folder / trained_cells.TOLD).touch()

    monkeypatch.setattr(trained_cells, "make_once", make)
    monkeypatch.setattr(trained_cells, "train_cell", train)
    looked = trained_cells.apply_to_each(
        asked, plan, context, lambda found: (found.cell.seed, found.folder, found.wait)
    )
    folders = [trained_cells.name_folder(cell, plan, tmp_path) for cell in asked]
    assert list(looked) == [
        (1, folders[1], False),
        (2, folders[2], False),
        (0, folders[0], True),
    ]
    assert trained == [(1, "cuda:1"), (2, "cuda:1"), (0, "cuda:1")]


# ---- cells that are measured once ------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["learned", "uniform", "frozen"])
def test_the_start_is_measured_with_one_arm_alone(monkeypatch, tmp_path, arm):
    folder = tmp_path / "cell"

    def train(_cell, _plan, where, _device):
        where.mkdir()
        (where / cells.TOLD).touch()

    def measure(kind):
        return lambda given: as_records(
            pd.DataFrame([{"metric": kind, "value": 1.0}]), model=given.label
        )

    monkeypatch.setattr(cells, "train_cell", train)
    monkeypatch.setattr(cells, "_measure_accuracies", measure("accuracy"))
    monkeypatch.setattr(cells, "_measure_geometry", measure("norms.mean"))
    cell = Cell("esnli", arm=arm, steps=5)
    rows = cells._train_and_measure(cell, make_grid(), folder, "cpu")
    assert not folder.exists()
    assert set(rows["revision"]) == {str(describe_code_version()["sources"])}
    found = list(zip(rows["metric"], rows["model"], strict=True))
    expected = [("accuracy", cell.label), ("norms.mean", cell.label)]
    if arm == "learned":
        start = Cell("esnli").label + " untrained"
        expected.append(("norms.mean", start))
    assert found == expected


def test_a_loss_that_was_not_finite_is_noted_and_nothing_is_measured(
    monkeypatch, tmp_path
):
    folder, cell = tmp_path / "cell", Cell("esnli", layers=2, seed=4)

    def train(_cell, _plan, where, _device):
        where.mkdir()
        (where / cells.DIVERGED).touch()

    monkeypatch.setattr(cells, "train_cell", train)
    (row,) = cells._train_and_measure(cell, make_grid(), folder, "cpu").itertuples()
    assert (row.metric, row.value) == ("diverged", 1)
    assert (row.model, row.corpus, row.seed) == (cell.label, "esnli", 4)
    assert not folder.exists()


def test_what_a_cell_reads_is_noted_before_it_is_trained(monkeypatch, tmp_path):
    """A corpus is cut and split as the recipe says; the seed of the weights is not that of the split."""
    noted, asked = tmp_path / "cell.json", []
    cell, plan = Cell("esnli", seed=3, split=2), make_grid(limit=100)
    device = object()

    def open_corpus(*given):
        assert given == ("esnli", 100, 2)
        return SimpleNamespace(fingerprint="of the corpus")

    def train(*given):
        told = {"corpus": "of the corpus", "vectors": "of the vectors"}
        assert json.loads(noted.read_text()) == told
        asked.append(given)
        return as_records(pd.DataFrame([{"metric": "accuracy", "value": 0.75}]))

    monkeypatch.setattr(cells, "open_corpus", open_corpus)
    monkeypatch.setattr(cells, "hash_read", lambda _: {"vectors": "of the vectors"})
    monkeypatch.setattr(cells, "_train_and_measure", train)
    table = tmp_path / "cell.parquet"
    cells._keep_measured(cell, plan, table, device)
    assert asked == [(cell, plan, tmp_path / "cell", device)]
    assert read_table(table)["value"].tolist() == [0.75]


@pytest.mark.parametrize("error", [CorpusError, ModelError])
def test_a_cell_is_read_where_its_corpus_or_its_vectors_are_not(
    monkeypatch, tmp_path, error
):
    def lost(*_):
        raise error("what it read", "none", "fetch it")

    monkeypatch.setattr(cells, "hash_inputs", lost)
    (tmp_path / "cell.json").write_text('{"corpus": "another"}')
    cells.check_inputs(Cell("esnli"), make_grid(), tmp_path / "cell.parquet")
    monkeypatch.setattr(cells, "hash_inputs", lambda *_: {"corpus": "this one"})
    with pytest.raises(
        OutputError, match=r"the corpus that the model in .*cell\.parquet"
    ):
        cells.check_inputs(Cell("esnli"), make_grid(), tmp_path / "cell.parquet")


def test_bits_of_utterances_are_read_back():
    right = np.array([True, False, False, True, True, False, False, False, True, True])
    text = cells.pack_bits("test, uniform afterwards", right)
    name, found = cells.unpack_bits(text, 10)
    assert name == "test, uniform afterwards" and found.tolist() == right.tolist()


class Words(torch.nn.Module):
    """A model whose states are its inputs."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def states(self, vectors):
        return vectors


@pytest.mark.parametrize("read", [small_models.EACH, small_models.MEAN])
def test_words_that_are_read_know_their_sentence(read):
    """300 sentences, of which the last has the number 299: they are read by 256."""
    several = read == small_models.EACH
    untagged = small_models.UNTAGGED

    def batch(_split, chosen, _read):
        number = torch.tensor(chosen)
        if not several:
            return {"vectors": number[:, None].float()}, number % 3
        # Three places a sentence: [CLS] has no tag, and of even sentences the last has none.
        labels = torch.stack([number * 0 + untagged, number % 5, number % 2], 1)
        labels[number % 2 == 0, 2] = untagged
        return {"vectors": number[:, None, None].float().expand(-1, 3, 2)}, labels

    sentences = SimpleNamespace(encoded={TEST: [None] * 300}, batch=batch)
    vectors, labels, units = small_cells._read(Words(read), sentences)
    assert vectors[:, 0].tolist() == units.tolist()
    expected = []
    for n in range(300):
        if several:
            expected += [(n, n % 5)] + ([(n, 1)] if n % 2 else [])
        else:
            expected.append((n, n % 3))
    assert list(zip(units.tolist(), labels.tolist(), strict=True)) == expected


@pytest.mark.parametrize(("n", "whole"), [(6, 3), (5, 2), (7, 3), (2, 1)])
def test_batches_are_of_one_order_until_it_does_not_fill_one(n, whole):
    draw = torch.Generator().manual_seed(1)
    found = list(small_models._draw_batches(n, 2, 3 * whole, draw))
    again = torch.Generator().manual_seed(1)
    expected = []
    for _ in range(3):
        order = torch.randperm(n, generator=again).tolist()
        expected += [order[2 * i : 2 * i + 2] for i in range(whole)]
    assert found == expected


@pytest.mark.parametrize(("dim", "factor"), [(64, 1.0), (256, 0.5), (16, 2.0)])
def test_a_wide_model_takes_smaller_steps(monkeypatch, dim, factor):
    assert small_models.WIDTH == 64
    given = []

    class Stop(Exception):
        pass

    def optimiser(_parameters, rate, **more):
        given.append((rate, more["weight_decay"]))
        raise Stop

    monkeypatch.setattr(torch.optim, "AdamW", optimiser)
    cell = small_models.SmallCell("synthetic:3", small_models.EACH, dim=dim)
    plan = SimpleNamespace(rate=0.004, steps=10, batch=2)
    with contextlib.suppress(Stop):
        small_models.train(torch.nn.Linear(1, 1), cell, None, plan)
    assert given == [(pytest.approx(0.004 * factor), 0.0)]


def test_words_are_scored_for_the_class_that_is_found(monkeypatch):
    """Token t of text i scores 10 i + t for class 0, and 1000 less or more for the others."""
    shift = (0.0, -1000.0, 2000.0)

    def attribute(one, _directions):
        tokens = 10.0 * one.number + np.arange(2.0)
        return {
            (erased.ATTENTION, 1): -tokens,
            (erased.VALUES, 1): tokens + shift[one.found],
        }

    def captured(_model, _batches):
        for number in (1, 0):  # sorted by length, not in the order of the corpus
            yield number, Captured(number, found=number + 1)

    made = SimpleNamespace(
        classifier=(None, None),
        corpus=SimpleNamespace(
            labels=("a", "b", "c"),
            splits={split: (Example(("u", "v"), 0),) * 2 for split in erased.SPLITS},
        ),
        cell=Cell("esnli", seed=4),
        batches=lambda *_: SimpleNamespace(
            encoded=SimpleNamespace(words=[(0, 1), (0, 1)])
        ),
    )
    monkeypatch.setattr(erased, "measure_class_directions", lambda *_: None)
    monkeypatch.setattr(erased, "iter_captured", captured)
    monkeypatch.setattr(erased, "compute_attributions", attribute)
    monkeypatch.setattr(erased, "average_over_words", lambda x, _words, _n: x)
    monkeypatch.setattr(
        erased, "replace", lambda one, found: Captured(one.number, found)
    )
    maps = erased.Maps(made)
    for split in erased.SPLITS:
        assert maps.predicted[split] == [1, 2]
        for i, (_, scores) in enumerate(maps.scored[split]):
            tokens = 10.0 * i + np.arange(2.0)
            assert scores[erased.ATTENTION].tolist() == (-tokens).tolist()
            assert scores[erased.FOUND].tolist() == (tokens + shift[i + 1]).tolist()
            assert scores[erased.DIRECTIONS].tolist() == (tokens + 2000).tolist()
            assert len(scores[erased.RANDOM]) == 2


class Captured:
    def __init__(self, number, found):
        self.number, self.found = number, found


# ---- language models -------------------------------------------------------------------------------------------------


def test_an_outlier_is_a_dimension_s_share_over_all_batches():
    # [layer][batch]: [sequence, token, dim] of two, three and four.
    draw = torch.Generator().manual_seed(0)
    hidden = [
        [torch.randn(2, 3, 4, generator=draw) * (layer + 1) for layer in range(3)]
        for _ in range(2)
    ]
    model = SimpleNamespace(
        bert=lambda number, **_: SimpleNamespace(hidden_states=hidden[number])
    )
    plan = [SimpleNamespace(inputs={"number": number}) for number in range(2)]
    rows = list(outcomes._measure_outliers(model, plan))
    assert [row["layer"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert (row["site"], row["stack"]) == ("hidden", "encoder")
        x = torch.cat([of_batch[row["layer"]] for of_batch in hidden]).double()
        squares = (x**2).reshape(-1, 4).sum(0)
        assert row["value"] == pytest.approx(float(squares.max() / squares.sum()))


def test_skill_is_what_training_took_off_a_guess(monkeypatch, tmp_path):
    seen, calls = (0, 3, 5), []

    def fit(_made, how, on_step, folder):
        assert how.evaluated == {0, 3, 5} and folder == tmp_path / "resume"
        for step in range(1, 6):
            on_step(step, 5, f"model at {step}")
        return {"validation_loss": [(0, 4.0), (3, 2.0), (5, 1.0)]}

    def measure(model, plan, *, last):
        calls.append((model, plan, last))
        return as_records(pd.DataFrame([{"metric": "drift", "value": len(calls)}]))

    monkeypatch.setattr(trained, "fit", fit)
    monkeypatch.setattr(trained, "_measure_step", measure)
    made = SimpleNamespace(model="model at 0")
    named = {"model": "an arm", "seed": 3, "corpus": "a corpus"}
    how = Fitting({}, share=1.0)
    trained.train_and_measure(made, how, "plan", seen, 4.0, tmp_path, named)
    assert calls == [
        ("model at 0", "plan", False),
        ("model at 3", "plan", False),
        ("model at 5", "plan", True),
    ]
    rows = pd.read_parquet(tmp_path / trained.SEEN)
    found = {
        metric: list(zip(part["step"], part["value"], strict=True))
        for metric, part in rows.groupby("metric")
    }
    assert found == {
        "drift": [(0, 1), (3, 2), (5, 3)],
        trained.LOSS: [(0, 4.0), (3, 2.0), (5, 1.0)],
        trained.SKILL: [(0, 0.0), (3, 0.5), (5, 0.75)],
    }
    assert {*rows["model"]} == {"an arm"} and {*rows["seed"]} == {3}
    assert {*rows["corpus"]} == {"a corpus"}


def test_what_was_learnt_is_asked_at_the_end():
    """No model has skill at step 0; one of four has none at the end, and its pair says nothing."""
    rows = []
    for arm, far in (("base", 0.3), ("softmax1", 0.1)):
        for seed in range(4):
            skill = 0.3
            if (arm, seed) == ("softmax1", 2):
                skill = causes.LEARNT / 2
            share = {
                "metric": "sinks.first_share",
                "layer": 1,
                "value": far + seed / 99,
            }
            for step, learnt in ((0, 0.0), (9, skill)):
                place = {"model": arm, "seed": seed, "step": step}
                rows.append({"metric": trained.SKILL, "value": learnt, **place})
                rows.append(place | share)
    found = [
        verdict
        for verdict in causes.judge("sinks", as_records(pd.DataFrame(rows)))
        if verdict.value is not None
    ]
    assert found
    for verdict in found:
        assert verdict.n == 3
        learnt = (0.9 + causes.LEARNT / 2) / 4
        assert f" {learnt:.2f}, of base 0.30" in verdict.reason
        assert "says nothing" in verdict.reason


# ---- curves over layers ----------------------------------------------------------------------------------------------


def test_small_models_are_measured_before_and_after_training(monkeypatch, tmp_path):
    kind = SimpleNamespace(label="a kind", missing="", corpus="c", limit=7)
    monkeypatch.setitem(layer_curves.KINDS, "kind", kind)
    checkpoint = SimpleNamespace(
        best=40,
        steps=(0, 40, 60),
        seed=3,
        folder=tmp_path,
        checkpoint=lambda step: tmp_path / f"step-{step}",
    )
    asked = []
    monkeypatch.setattr(
        layer_curves, "train_all", lambda *given: asked.append(given) or [checkpoint]
    )

    def measure(job, _context):
        assert (job.corpus, job.limit) == ("c", 7)
        assert Path(job.model).name == f"step-{job.step}"
        return as_records(pd.DataFrame([{"metric": "drift", "value": float(job.step)}]))

    monkeypatch.setattr(layer_curves, "run_measurement", measure)
    systems = layer_curves.Systems(small=("other", "kind"), recipe=LONG)
    context = Context(tmp_path, tmp_path / "cache")
    rows = pd.concat(layer_curves._measure_small("kind", systems, context))
    assert asked == [(LONG, ("kind",), tmp_path / "cache", context.progress)]
    found = list(zip(rows["model"], rows["seed"], rows["value"], strict=True))
    assert found == [("a kind, untrained", 3, 0.0), ("a kind, trained", 3, 40.0)]


def test_bands_hold_the_intervals_of_all_seeds(monkeypatch):
    given = []
    monkeypatch.setattr(
        builders, "layer_curve", lambda frame, **more: given.append((frame, more))
    )

    def rows(model, bound):
        for seed, value in ((0, 0.2), (1, 0.5)):
            for layer in (0, 1):
                place = {"model": model, "seed": seed, "layer": layer}
                place |= {"site": "hidden", "token_policy": "all", "stack": "encoder"}
                ends = {"low": value - 0.1, "high": value + 0.2 * (1 + layer)}
                yield {"metric": "mean_cosine", "value": value, **ends, **place}
                q95 = {"metric": "mean_cosine.isotropic_q95", "value": bound}
                yield q95 | place

    def draw(*models):
        records = as_records(pd.DataFrame([row for m in models for row in rows(*m)]))
        layer_curves.draw("fig1", records)
        return given.pop()

    frame, more = draw(("a", 0.05), ("b", 0.05))
    assert more["isotropic"] == pytest.approx(0.05)
    for row in frame.itertuples():
        assert row.value == pytest.approx(0.35)
        assert row.low == pytest.approx(0.1)
        assert row.high == pytest.approx(0.5 + 0.2 * (1 + row.layer))
    _, more = draw(("a", 0.05), ("b", 0.08))
    assert more["isotropic"] == pytest.approx({"a": 0.05, "b": 0.08})


def test_two_systems_are_enough_and_one_that_is_left_may_be_the_second():
    claim = next(iter(read_claims("godey2024", "fig1").values()))

    def outcome(holds, fails, others):
        words = ["holds"] * holds + ["fails"] * fails + ["undecided"] * others
        verdicts = [Verdict("anisotropic", word, "") for word in words]
        verdicts.append(Verdict("another", "holds", ""))
        return fig01_04_layers._judge_several(claim, verdicts).outcome

    assert outcome(2, 0, 0) == outcome(2, 3, 1) == "holds"
    assert outcome(1, 1, 0) == outcome(0, 2, 1) == outcome(1, 3, 0) == "fails"
    assert outcome(0, 2, 2) == outcome(1, 2, 1) == outcome(0, 0, 2) == "undecided"
    assert outcome(1, 0, 0) == outcome(0, 1, 0) == outcome(0, 0, 0) == "undecided"
    for holds, others, reason in (
        (1, 0, "two are needed; these settings have 1"),
        (0, 1, "two are needed; these settings have 1"),
        (0, 0, "two are needed; these settings have 0"),
        (1, 2, "two are needed"),
    ):
        words = ["holds"] * holds + ["undecided"] * others
        verdicts = [Verdict("anisotropic", word, "") for word in words]
        found = fig01_04_layers._judge_several(claim, verdicts)
        assert (found.value, found.reason) == (holds, reason)
        assert found.statistic == f"systems of which it holds, of {holds + others}:"


def test_small_models_are_compared_within_a_seed_and_others_with_all(monkeypatch):
    claim = SimpleNamespace(systems=("char",))
    systems = [
        ("char, trained", 0),
        ("char, trained", 1),
        ("word, trained", 0),
        ("word, trained", 1),
        ("published", 5),
    ]
    monkeypatch.setattr(
        fig01_04_layers,
        "iter_systems",
        lambda _: [(name, seed, (name, seed)) for name, seed in systems],
    )
    numbers = {layers: np.arange(3.0) * i for i, layers in enumerate(systems)}
    monkeypatch.setattr(
        fig01_04_layers, "_average_layers", lambda _, layers: numbers[layers]
    )
    monkeypatch.setattr(
        fig01_04_layers,
        "_test",
        lambda _, subject, theta, layers, seed: (subject, seed, layers[1], theta[1]),
    )
    assert list(fig01_04_layers._test_characters(claim, None, None)) == [
        ("char above word", 0, 0, -2.0),
        ("char above published", 0, 0, -4.0),
        ("char above word", 1, 1, -2.0),
        ("char above published", 1, 1, -3.0),
    ]


def test_the_order_that_was_seen_is_one_of_those_that_are_drawn():
    x = np.arange(14.0)
    found = fig05_16_drift.run_permutation_test("pearson", x, x)
    assert found.p == found.smallest == 1 / (fig05_16_drift.DRAWS + 1)
    assert (found.exact, found.n) == (False, 14)
    exact = fig05_16_drift.run_permutation_test("pearson", x[:5], x[:5])
    assert exact.p == exact.smallest == pytest.approx(2 / math.factorial(5))
    assert exact.exact


def test_parts_of_entropy_are_drawn_under_their_own_names(monkeypatch):
    values = {
        "attention.entropy": 1.0,
        "attention.entropy_normalised": 2.0,
        "centred_attention.query": 3.0,
        "centred_attention.key": 4.0,
        "score_terms.mean_query_share": 5.0,
        "score_terms.centred_share": 6.0,
    }
    rows = []
    for metric, value in values.items():
        for seed in range(3):
            for head, more in ((0, -0.5), (1, 0.5)):
                place = {"seed": seed, "head": head, "layer": 1, "step": 8}
                rows.append({"metric": metric, "value": value + more, **place})

    def keep(frame, *_args, **_more):
        if isinstance(frame, dict):
            return {name: keep(part) for name, part in frame.items()}
        return frame["value"].tolist()

    monkeypatch.setattr(series_charts, "draw_layers", keep)
    monkeypatch.setattr(series_charts, "draw_parts", keep)
    assert fig15_entropy.draw(as_records(pd.DataFrame(rows))) == {
        "fig15": [1.0],
        "fig15_normalised": [2.0],
        "fig15_centred": {
            "as it is": [1.0],
            "queries centred": [3.0],
            "keys centred": [4.0],
        },
        "fig15_terms": {"by the mean query": [5.0], "by deviations": [6.0]},
    }


def test_the_layers_of_sinks_count_from_one(monkeypatch):
    """Weights of two layers, two heads: those of the first row, which has no choice, would change every share.

    Of the three sequences one is a batch alone: each counts as much as any other.
    """
    # [layer][batch][sequence][head]: what the second row, of 4, and the third, of 8, give to the first key.
    to_first = (
        ([[(1, 2), (2, 4)]], [[(3, 6), (0, 0)], [(2, 4), (1, 2)]]),
        ([[(3, 2), (0, 8)]], [[(4, 8), (4, 8)], [(2, 4), (3, 6)]]),
    )
    looks = []

    def weigh(sequences):
        return torch.tensor(
            [
                [[[9.0, 0, 0], [a, 4 - a, 0], [b, 0, 8 - b]] for a, b in heads]
                for heads in sequences
            ]
        )

    def intercept(_model, look):
        looks.append(look)
        return contextlib.nullcontext()

    def call(number):
        for layer, batches in enumerate(to_first):
            module, weights = SimpleNamespace(layer_idx=layer), weigh(batches[number])
            looks[0](SimpleNamespace(module=module, scores=lambda w=weights: w))

    monkeypatch.setattr(outcomes, "intercept_attention", intercept)
    monkeypatch.setattr(outcomes.arms, "find_form", lambda _: None)
    monkeypatch.setattr(outcomes.forms, "compute_weights", lambda _, scores: scores)
    model = SimpleNamespace(config=SimpleNamespace(arm="base"), bert=call)
    plan = [SimpleNamespace(inputs={"number": number}) for number in (0, 1)]
    rows = list(outcomes._measure_sinks(model, plan))
    found = [(row["layer"], row["head"], row["value"]) for row in rows]
    expected = [(1, 0, 0.5), (1, 1, 0.25), (2, 0, 2 / 3), (2, 1, 0.75)]
    assert found == [(*place, pytest.approx(share)) for *place, share in expected]
    assert {(row["site"], row["stack"]) for row in rows} == {("attention", "encoder")}
