"""What is kept is found again by all that made it: each thing that a number depends on moves the place, or is refused.

A test goes over every field; a new one that no test names fails until somebody says what it is.
"""

import json
import re
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

import anisoscope_papers
from anisoscope.data.opening import open_labelled
from anisoscope.errors import OutputError
from anisoscope.store import as_records, write_json
from anisoscope_papers import origin
from anisoscope_papers.beyond import small_cells, small_models, trained
from anisoscope_papers.fosse2023 import measurements, trained_cells
from anisoscope_papers.fosse2023.grid import Cell, Grid
from anisoscope_papers.godey2024 import biased_block, checkpoints, layer_curves
from anisoscope_papers.godey2024.untrained_models import Size
from anisoscope_papers.origin import hash_measuring_code, hash_training_code
from anisoscope_papers.study import Context
from anisoscope_papers.training import (
    classifier,
    kinds,
    recipe as recipe_module,
    text,
    train_small,
)
from anisoscope_papers.training.recipe import SIZES, ClassifierRecipe, Training


def apart(values):
    """Whether all of them differ."""
    return len(
        {json.dumps(value, default=str, sort_keys=True) for value in values}
    ) == len(values)


OTHER_RECIPES = (
    {"limit": 64},
    {"text_column": "t"},
    {"layers": 2},
    {"vectors": "random", "dim": 8},
    {"seed": 10},
)


def test_a_recipe_is_described_by_all_its_fields():
    """Heads, warm-up or the norm of vectors could be no part of where a trained classifier lies."""
    names = {field.name for field in fields(ClassifierRecipe)}
    columns = {name for name in names if name.endswith("_column")}
    described = ClassifierRecipe(vector_cosine=0.5).described()
    assert described.keys() == names - columns | {"columns"} and len(columns) == 5
    given = ClassifierRecipe(text_column="t", penalty="entropy", weight=1)
    assert given.described()["columns"] == {"text": "t"}
    assert ClassifierRecipe.read(json.loads(json.dumps(given.described()))) == given


def test_a_cell_is_found_again_by_its_recipe(monkeypatch, tmp_path):
    folders = []
    for more in ({}, *OTHER_RECIPES):
        monkeypatch.setattr(
            Grid, "recipe", lambda _plan, _cell, more=more: ClassifierRecipe(**more)
        )
        folders.append(trained_cells.name_folder(Cell("synthetic"), Grid(), tmp_path))
    assert apart(folders)


@pytest.fixture
def no_training(monkeypatch):
    """A classifier's training without what takes long; what is written at its end is there."""
    saved = SimpleNamespace(save_pretrained=lambda _folder: None)
    monkeypatch.setattr(
        classifier,
        "build_parts",
        lambda *_: SimpleNamespace(model=saved, tokenizer=saved),
    )

    def train(recipe, corpus, _parts, _checkpoints, _device, _progress):
        return {
            "recipe": recipe.described(),
            "corpus": corpus.described(),
            **classifier.describe_environment(),
            "results": {},
        }

    monkeypatch.setattr(classifier, "_train", train)


@pytest.mark.usefixtures("no_training")
def test_a_finished_training_is_that_of_its_recipe_corpus_and_code(
    monkeypatch, tmp_path
):
    corpus, recipe = open_labelled("synthetic", limit=30), ClassifierRecipe().filled()
    go = partial(
        classifier.train_classifier, output=tmp_path / "run", resume=True, corpus=corpus
    )
    first = go(recipe)
    assert go(recipe).training == first.training
    for more in OTHER_RECIPES:
        with pytest.raises(OutputError, match="another training"):
            go(replace(recipe, **more))
    with pytest.raises(OutputError, match="another training"):
        go(recipe, corpus=open_labelled("synthetic", limit=30, seed=1))
    code = hash_training_code("anisoscope_papers.training.classifier")
    other = code | {"anisoscope_papers.training.fit": "other"}
    monkeypatch.setattr(classifier, "hash_training_code", lambda _name: other)
    with pytest.raises(
        OutputError,
        match=r"another training \(code\.anisoscope_papers\.training\.fit differ\)",
    ):
        go(recipe)


@pytest.mark.usefixtures("no_training")
def test_a_training_that_is_overwritten_counts_as_unfinished_while_files_are_written(
    monkeypatch, tmp_path
):
    corpus = open_labelled("synthetic", limit=30)
    recipe = ClassifierRecipe(vectors="random")
    told = tmp_path / "run" / "training.json"
    classifier.train_classifier(recipe, told.parent, corpus=corpus)
    seen = []

    def save(_folder):
        seen.append(told.exists())

    saved = SimpleNamespace(save_pretrained=save)
    parts = SimpleNamespace(model=saved, tokenizer=saved)
    monkeypatch.setattr(classifier, "build_parts", lambda *_: parts)
    assert told.exists()
    classifier.train_classifier(recipe, told.parent, corpus=corpus, overwrite=True)
    assert seen == [False, False] and told.exists()


@pytest.mark.usefixtures("no_training")
def test_a_training_without_a_folder_is_named_by_its_corpus_and_identity(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    corpus = open_labelled("synthetic", limit=30)
    found = []
    for seed in (0, 1):
        recipe = ClassifierRecipe(corpus="org/texts", vectors="random", seed=seed)
        found.append(classifier.train_classifier(recipe, corpus=corpus).folder)
    for folder in found:
        assert folder.parent == Path("runs") and (folder / "training.json").exists()
        assert re.fullmatch("classifier-org-texts-[0-9a-f]{8}", folder.name)
    assert apart(found)


@pytest.mark.usefixtures("no_training")
def test_a_training_from_before_code_was_noted_is_compared_by_its_version(
    monkeypatch, tmp_path
):
    corpus, recipe = open_labelled("synthetic", limit=30), ClassifierRecipe().filled()
    go = partial(
        classifier.train_classifier,
        recipe,
        tmp_path / "run",
        resume=True,
        corpus=corpus,
    )
    go()
    told = tmp_path / "run" / "training.json"
    older = {
        name: value
        for name, value in json.loads(told.read_text()).items()
        if name != "trained_by"
    }
    told.write_text(json.dumps(older))
    assert go().training == older
    monkeypatch.setattr(
        "anisoscope.provenance.describe_code_version", lambda: {"version": "0"}
    )
    with pytest.raises(OutputError, match=r"another training \(code differ\)"):
        go()


def test_code_that_trains_is_that_of_all_it_uses_and_none_that_only_measures():
    of_classifier, of_models = (
        hash_training_code(f"anisoscope_papers.training.{n}")
        for n in ("classifier", "language_model")
    )
    for name in (
        "anisoscope_papers.training.entropy_penalty",
        "anisoscope.classes.cls_entropy",
    ):
        assert name in of_classifier
    assert (
        "anisoscope_papers.training.text" in of_models
        and "anisoscope_papers.training.fit" in of_models
    )
    for name in of_classifier | of_models:
        assert not name.startswith(
            ("anisoscope.metrics", "anisoscope.reads", "anisoscope_papers.judge")
        ), name


def test_the_identity_of_a_language_model_knows_every_field_corpus_vocabulary_and_code(
    monkeypatch,
):
    whole = Training().identity("c", 9)
    in_size = {"preset", "own_size", "vocab_size", "window", "batch", "rate", "dropout"}
    of_machine = {"device", "report_to"}
    renamed = {"dtype": "precision"}
    names = (
        {renamed.get(field.name, field.name) for field in fields(Training)}
        - in_size
        - of_machine
    )
    assert whole.keys() == names | {
        "size",
        "corpus_fingerprint",
        "vocabulary_size",
        "code",
    }
    assert whole["size"] == asdict(SIZES["small"])
    others = (
        {"task": "causal-lm"},
        {"own_size": SIZES["mini"]},
        {"window": 9},
        {"steps": 3},
        {"data_seed": 5},
    )
    found = [replace(Training(), **more).identity("c", 9) for more in others]
    found += [
        Training().identity("c", 9),
        Training().identity("d", 9),
        Training().identity("c", 8),
    ]
    assert Training(device="cuda", report_to=("wandb",)).identity(
        "c", 9
    ) == Training().identity("c", 9)
    monkeypatch.setattr(
        recipe_module, "hash_training_code", lambda _name: {"m": "other"}
    )
    assert apart([*found, Training().identity("c", 9)])


def test_what_nobody_asks_for_is_as_it_was_in_trainings_that_are_kept():
    """Another default would be another training, and would not be told by its options."""
    none = ("limit", "max_length", "dim", "vector_norm", "freeze_after", "steps")
    none += ("rate", "decay", "batch", "epochs", "patience", "columns")
    off = ("text", "frozen", "separator")
    assert ClassifierRecipe().described() == {
        **dict.fromkeys(none),
        **dict.fromkeys(off, False),
        **dict.fromkeys(("split_seed", "warmup", "clip", "weight", "seed"), 0),
        **dict.fromkeys(("layers", "heads", "position_scale"), 1),
        "model": "attention",
        "corpus": "synthetic",
        "vectors": "builtin:minilm",
        "tokens": "paper",
        "attention": "learned",
        "positions": "sinusoidal",
        "penalty": "none",
        "penalty_layers": (1,),
        "buckets": True,
    }
    found = Training().identity("c", 9)
    del found["code"]
    assert found == {
        **dict.fromkeys(("split", "column", "limit", "vocabulary")),
        "task": "masked-lm",
        "corpus": "builtin:python-docs",
        "steps": 10_000,
        "seed": 0,
        "data_seed": 0,
        "per_octave": 2,
        "accumulate": 1,
        "precision": "float32",
        "size": {
            "layers": 4,
            "width": 128,
            "heads": 4,
            "vocabulary": 4096,
            "window": 64,
            "batch": 32,
            "rate": 1e-3,
            "steps": 10_000,
            "dropout": 0.0,
        },
        "corpus_fingerprint": "c",
        "vocabulary_size": 9,
    }


def test_a_language_model_is_the_same_however_its_settings_are_said():
    said = Training(seed=4).identity("c", 9)
    size = SIZES["small"]
    for same in (
        Training(seed=4, data_seed=4),
        Training(seed=4, steps=size.steps),
        Training(seed=4, own_size=size),
        Training(seed=4, preset="mini", own_size=size),
        Training(seed=4, window=size.window, rate=size.rate),
    ):
        assert same.identity("c", 9) == said


def test_a_tokenised_corpus_is_kept_by_task_size_vocabulary_and_text(
    monkeypatch, tmp_path
):
    """A causal model's vocabulary is another than a masked one's of the same size."""
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path))
    kept = []

    class Enough(Exception):
        pass

    def once(folder, *_, **__):
        kept.append(folder)
        raise Enough

    monkeypatch.setattr(text, "make_once", once)
    words = SimpleNamespace(get_vocab=lambda: {"a": 0})
    monkeypatch.setattr(
        text,
        "_load_tokenizer",
        lambda name, _task: words if name == "a" else SimpleNamespace(get_vocab=dict),
    )
    one, other = (SimpleNamespace(fingerprint=name, documents=[]) for name in "xy")
    asked = [
        (one, "masked-lm", 300),
        (one, "causal-lm", 300),
        (one, "masked-lm", 400),
        (other, "masked-lm", 300),
    ]
    for given in [*asked, (*asked[0], "a"), (*asked[0], "b")]:
        corpus, task, size, *source = given
        with pytest.raises(Enough):
            text.prepare(corpus, task, size, 12, *source)
    assert apart(kept)


def test_a_small_model_is_found_again_by_its_kind_seed_recipe_and_data(
    monkeypatch, tmp_path
):
    kind, recipe, folders = kinds.KINDS["vit"], train_small.SmallModelRecipe(), []
    monkeypatch.setattr(kinds.Kind, "data", property(lambda _kind: data))
    monkeypatch.setattr(
        train_small,
        "make_once",
        lambda folder, *_, **__: write_json(folder / "training.json", {}),
    )
    asked = [(kind, 0, recipe), (kind, 1, recipe)]
    asked += [
        (replace(kind, **{name: value}), 0, recipe)
        for name, value in {"steps": 7, "rate": 7.0}.items()
    ]
    asked += [(replace(kind, batch=7), 0, recipe), (replace(kind, sizes=()), 0, recipe)]
    more = {"share": 0.9, "seeds": 9, "patience": 9, "longest": 9}
    assert more.keys() == {field.name for field in fields(recipe)}
    asked += [
        (kind, 0, replace(recipe, **{name: value})) for name, value in more.items()
    ]
    data = "digits"
    folders = [train_small.train_or_load(*each, tmp_path).folder for each in asked]
    data = "other digits"
    assert apart([*folders, train_small.train_or_load(*asked[0], tmp_path).folder])


def test_a_piece_of_the_biased_block_knows_system_size_seed_norms_and_type(
    monkeypatch, tmp_path
):
    """Another number of heads, other norms or float64 could find the records of before."""
    paths = []

    class Enough(Exception):
        pass

    def side_by_side(_work, missing, _processes):
        paths.extend(piece[0].name for piece in missing)
        raise Enough

    monkeypatch.setattr(biased_block, "run_in_parallel", side_by_side)
    sizes = {
        "sequences": 3,
        "tokens": 9,
        "blocks": 2,
        "width": 24,
        "heads": 6,
        "scale": 2.0,
    }
    assert sizes.keys() == {field.name for field in fields(Size)}
    one = biased_block.BlockSettings(("gpt2",), 1, (Size(),), (0.0, 1.0))
    asked = [
        one,
        replace(one, systems=("t5",)),
        replace(one, norms=(0.0, 2.0)),
        replace(one, norms=(0.0, 1.0, 2.0)),
    ]
    asked += [
        replace(one, sizes=(replace(Size(), **{name: value}),))
        for name, value in sizes.items()
    ]
    for settings in asked:
        with pytest.raises(Enough):
            biased_block.run_experiment(settings, Context(tmp_path, tmp_path))
    with pytest.raises(Enough):
        biased_block.run_experiment(one, Context(tmp_path, tmp_path, dtype="float64"))
    with pytest.raises(Enough):
        biased_block.run_experiment(replace(one, seeds=2), Context(tmp_path, tmp_path))
    assert paths[-2] == paths[0] and apart(
        paths[1:]
    )  # the first seed of two is the one that was alone


def test_a_series_of_a_figure_is_kept_by_all_its_settings(monkeypatch, tmp_path):
    seen = []

    class Enough(Exception):
        pass

    def measure_series(_found, _job_of, output, **_):
        seen.append(output)
        raise Enough

    at = SimpleNamespace(subject="x", step=1, seed=0)
    monkeypatch.setattr(checkpoints, "list_checkpoints", lambda *_: [at])
    monkeypatch.setattr(checkpoints, "measure_series", measure_series)
    monkeypatch.setattr(
        checkpoints, "open_plan_of", lambda *_: [SimpleNamespace(tokens=[3])]
    )
    monkeypatch.setattr(checkpoints, "load_subject", lambda _: None)
    other = {
        "checkpoints": "y",
        "recipe": train_small.LONG,
        "kind": "vit",
        "corpus": "c",
        "limit": 3,
    }
    other |= {
        "sequences": 3,
        "points": 3,
        "shown": (0.5,),
        "share": 0.3,
        "cells": trained.Experiment((), 1, None),
    }
    one = checkpoints.CheckpointSettings(corpus="x")
    assert other.keys() == {field.name for field in fields(one)}
    for series in (
        one,
        *(replace(one, **{name: value}) for name, value in other.items()),
    ):
        with pytest.raises(Enough):
            checkpoints.measure(series, Context(tmp_path, tmp_path))
    assert apart(seen)


def test_what_is_measured_of_a_small_model_is_its_first_units_by_settings_and_code(
    monkeypatch, tmp_path
):
    """Those after them are trained on; and other settings could find the records of before."""
    found = SimpleNamespace(
        seed=0,
        folder=tmp_path,
        checkpoint=lambda step: tmp_path / f"step-{step}",
        best=4,
    )
    jobs, paths = [], []
    monkeypatch.setattr(layer_curves, "train_all", lambda *_: [found])

    def measured(job, _context):
        jobs.append(job)
        return as_records(pd.DataFrame([{"metric": "mean_cosine", "value": 0.0}]))

    def records_once(path, make):
        paths.append(path.name)
        return make()

    monkeypatch.setattr(layer_curves, "run_measurement", measured)
    monkeypatch.setattr(layer_curves, "make_records_once", records_once)
    context = Context(tmp_path, tmp_path)
    for more in ({}, {"flatten": "image"}, {"policies": ("all",)}):
        rows = list(
            layer_curves._measure_small("vit", layer_curves.Systems(**more), context)
        )
        assert [str(part["model"].iloc[0]) for part in rows] == [
            "small ViT, untrained",
            "small ViT, trained",
        ]
    assert {(job.step, job.limit, job.corpus) for job in jobs} == {
        (s, 400, "builtin:digits") for s in (0, 4)
    }
    assert [job.model.rpartition("/")[2] for job in jobs[:2]] == [
        "step-0",
        "step-4",
    ] and apart(paths)


def test_records_of_a_classifier_are_kept_by_how_many_utterances_were_measured(
    monkeypatch, tmp_path
):
    paths = []

    def records_once(path, make, **_):
        paths.append(path.name)
        return make()

    monkeypatch.setattr(measurements, "make_records_once", records_once)
    plans = [Grid(), replace(Grid(), utterances=7), replace(Grid(), erased=7)]
    for plan, name in [(plan, "look") for plan in plans] + [(Grid(), "other")]:
        cell = SimpleNamespace(
            cell=Cell("synthetic", seed=3),
            plan=plan,
            folder=tmp_path,
            wait=True,
            label="m",
        )
        rows = measurements.measure_once(
            cell, name, lambda: pd.DataFrame([{"metric": "x", "value": 1.0}])
        )
        assert rows[["model", "corpus", "seed"]].to_numpy().tolist() == [
            ["m", "synthetic", 3]
        ]
    assert apart(paths)


def test_a_cell_of_ours_is_kept_by_every_axis_and_by_how_it_is_trained(
    monkeypatch, tmp_path
):
    paths = []

    def records_once(path, _make, **_):
        paths.append(path.name)

    monkeypatch.setattr(small_cells, "make_records_once", records_once)
    cell, plan = (
        small_models.SmallCell("synthetic:3"),
        small_models.SmallGrid((("synthetic:3", "first"),)),
    )
    axes = {
        "task": "synthetic:5",
        "read": "mean",
        "blocks": "whole",
        "layers": 2,
        "dim": 8,
        "seed": 1,
    }
    assert axes.keys() == {field.name for field in fields(cell)}
    how = {"steps": 9, "batch": 9, "rate": 9.0, "limit": 9, "held": 9}
    assert how.keys() | {"tasks", "blocks", "layers", "dims", "seeds", "train"} == {
        f.name for f in fields(plan)
    }
    asked = [
        (cell, plan),
        *((replace(cell, **{name: value}), plan) for name, value in axes.items()),
    ]
    asked += [(cell, replace(plan, **{name: value})) for name, value in how.items()]
    for each in asked:
        small_cells.read_or_measure(*each, Context(tmp_path, tmp_path), wait=True)
    assert apart(paths)


def test_an_arm_is_kept_by_its_recipe_seed_and_the_texts_that_are_read(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path))
    monkeypatch.setattr(trained, "list_corpora", lambda: ("a", "b"))
    recipe = trained.Recipe("causal-lm", SIZES["tiny"], 4, (2,))
    other = {
        "task": "masked-lm",
        "size": SIZES["small"],
        "steps": 5,
        "looks": (1,),
        "probe": 3,
    }
    assert other.keys() == {field.name for field in fields(recipe)}
    found = [
        recipe.folder("base", 0),
        recipe.folder("type", 0),
        recipe.folder("base", 1),
    ]
    found += [
        replace(recipe, **{name: value}).folder("base", 0)
        for name, value in other.items()
    ]
    for corpora in (("c", "b"), ("a", "c")):
        monkeypatch.setattr(trained, "list_corpora", lambda corpora=corpora: corpora)
        found.append(recipe.folder("base", 0))
    assert apart(found)


def test_a_study_says_which_code_of_the_papers_made_it(monkeypatch):
    """The commit of the checkout and whether it was changed, of the papers' own sources beside the tool's."""
    asked = []
    monkeypatch.setattr(
        origin.tool,
        "find_commit",
        lambda *given: asked.append(given) or {"commit": "abc"},
    )
    told = origin.describe_provenance()["papers"]
    assert told == {"version": anisoscope_papers.__version__, "commit": "abc"}
    ((folder, names),) = [given for given in asked if given[0] == origin.PACKAGE]
    assert {"judge", "godey2024", "fosse2023", "beyond", "networks", "training"} <= set(
        names
    )
    assert all(
        (folder / name).is_dir() or (folder / f"{name}.py").is_file() for name in names
    )


def test_what_a_study_keeps_is_named_by_the_code_that_measured_it():
    """Of the tool and of the studies; not by what judges and shows."""
    code = hash_measuring_code("anisoscope_papers.godey2024.biased_block")
    inside = {name for name in code if name.startswith("anisoscope_papers.")}
    assert {
        "anisoscope.metrics.drift",
        "anisoscope.sums.groups",
        "anisoscope.capture.tap",
    } <= set(code)
    assert {
        "anisoscope_papers.godey2024.biased_block",
        "anisoscope_papers.godey2024.row_scores",
    } <= inside
    assert not inside & {
        f"anisoscope_papers.{name}"
        for name in ("judge", "runner", "study", "fosse2023", "beyond")
    }


def test_what_is_measured_of_a_classifier_is_named_by_the_code_of_who_measures_it(
    monkeypatch, tmp_path
):
    """`measure_once` is called with a function of another module, whose formula it is."""
    asked = []
    monkeypatch.setattr(
        measurements,
        "hash_measuring_code",
        lambda *modules: asked.append(modules) or {},
    )
    monkeypatch.setattr(
        measurements,
        "make_records_once",
        lambda *_, **__: pd.DataFrame({"model": ["m"]}),
    )
    cell = SimpleNamespace(
        cell=Cell("synthetic"), plan=Grid(), folder=tmp_path, wait=True, label="m"
    )
    measurements.measure_once(cell, "look", lambda: None)
    assert asked == [("anisoscope_papers.fosse2023.measurements", __name__)]
