"""What a study asks for: settings and context reach every run and every training, field by field."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pandas as pd
import pytest

from anisoscope.models.series import Checkpoint
from anisoscope_papers.fosse2023 import grid, measurements, trained_cells
from anisoscope_papers.fosse2023.grid import QUICK, Cell, Grid
from anisoscope_papers.godey2024 import (
    biased_block,
    checkpoints,
    fig06_bias,
    fig17_18_cosine_law,
    layer_curves,
)
from anisoscope_papers.godey2024.layer_curves import Systems
from anisoscope_papers.study import Context
from anisoscope_papers.training.recipe import ATTENTION, ClassifierRecipe


class Stop(Exception):
    """What was asked for has been seen."""


def stop(*_, **__):
    raise Stop


@pytest.fixture
def context(tmp_path):
    return Context(
        tmp_path, tmp_path / "cache", device="cuda", dtype="bfloat16", batch_tokens=99
    )


def first_of(monkeypatch, module, ask):
    """The first job that `module` has run."""
    jobs = []
    monkeypatch.setattr(module, "run", lambda job, **_: jobs.append(job) or stop())
    with pytest.raises(Stop):
        ask()
    return jobs[0]


@pytest.mark.parametrize("packaged", [False, True])
def test_settings_and_context_reach_the_runs_of_layers(monkeypatch, context, packaged):
    """Published systems and packaged ones: a limit, or the dimension of a map's vectors, could be lost on the way."""
    monkeypatch.setattr(layer_curves, "find_path", lambda _name: None)
    names = (
        {"packaged": ("builtin:crepe-tiny",)}
        if packaged
        else {"models": ("bert-base",)}
    )
    systems = Systems(
        corpus="somewhere", limit=7, flatten="image", policies=("content",), **names
    )
    job = first_of(
        monkeypatch, layer_curves, lambda: layer_curves.measure(systems, context)
    )
    assert (job.corpus, job.limit, job.device, job.batch_tokens) == (
        "somewhere",
        7,
        "cuda",
        99,
    )
    assert (job.settings.flatten, job.settings.tokens, job.settings.sample) == (
        "image",
        ("content",),
        0,
    )
    assert (
        job.model == (names.get("packaged") or names["models"])[0]
        and job.untrained == packaged
    )


def test_settings_and_context_reach_the_runs_of_points_and_of_norms_beside_the_block(
    monkeypatch, context
):
    points = fig17_18_cosine_law.Points((("bert-base", "somewhere"),), limit=7)
    (study,) = (s for s in fig17_18_cosine_law.STUDIES if s.name == "fig18")
    monkeypatch.setattr(biased_block, "run_experiment", lambda *_: None)
    beside = biased_block.BlockSettings(trained=points.models, limit=7)
    for ask in (
        lambda: study.measure(points, context),
        lambda: fig06_bias.measure(beside, context),
    ):
        job = first_of(monkeypatch, fig17_18_cosine_law, ask)
        assert (job.model, job.corpus, job.limit) == ("bert-base", "somewhere", 7)
        assert (job.device, job.batch_tokens) == ("cuda", 99)


def test_a_piece_of_the_block_is_of_the_type_and_the_device_asked_for(
    monkeypatch, context
):
    asked = []
    monkeypatch.setattr(
        biased_block, "build_untrained", lambda *given: asked.append(given) or stop()
    )
    with pytest.raises(Stop):
        biased_block.measure_piece(
            "bert:raw-table", biased_block.Size(), 3, (0.0,), context
        )
    assert asked == [("bert:raw-table", biased_block.Size(), 3, "cuda", "bfloat16")]


@pytest.mark.parametrize("share", [None, 0.25])
def test_settings_and_context_reach_every_checkpoint_of_a_series(
    monkeypatch, context, share
):
    """Points are kept where they are shown; a share is of all tokens of the probe."""
    steps, jobs = (0, 1, 10, 100), []
    found = [Checkpoint(f"seed-0/step-{step}", step, 0) for step in steps]

    def measure_series(checkpoints_, job_of, _output, **_):
        jobs.extend(job_of(each) for each in checkpoints_)
        raise Stop

    monkeypatch.setattr(checkpoints, "list_checkpoints", lambda *_: found)
    monkeypatch.setattr(checkpoints, "measure_series", measure_series)
    monkeypatch.setattr(checkpoints, "load_subject", lambda job: job)
    monkeypatch.setattr(
        checkpoints, "open_plan_of", lambda *_: [SimpleNamespace(tokens=[30, 10])]
    )
    series = checkpoints.CheckpointSettings(
        corpus="somewhere",
        limit=7,
        sequences=5,
        points=33,
        shown=(0.0, 1.0),
        share=share,
    )
    with pytest.raises(Stop):
        checkpoints.measure(series, context)
    for job in jobs:
        assert (job.corpus, job.limit, job.sequences) == ("somewhere", 7, 5)
        assert (job.device, job.dtype, job.batch_tokens) == ("cuda", "bfloat16", 99)
        assert job.settings.sample_heads and job.settings.tokens == ("all",)
    assert [job.settings.sample for job in jobs] == (
        [33, 0, 0, 33] if share is None else [10] * 4
    )


# ---- classifiers of the grid -----------------------------------------------------------------------------------------

GRID = Grid(
    corpora=("synthetic",),
    encoder="builtin:minilm",
    fine_epochs=21,
    fine_limit=22,
    fine_length=23,
    fine_rate=24.0,
    fine_batch=25,
    limit=26,
    epochs=27,
    patience=28,
    warmup=29,
    clip=30.0,
    vector_norm=31.0,
    vector_cosine=0.32,
)
SAME = {"limit": 26, "seed": 4, "epochs": 27, "patience": 28}
VECTORS = {"vectors": "builtin:minilm", "vector_norm": 31.0}
DEEP = {"warmup": 29, "clip": 30.0}
ASKED = {
    "one layer": ({}, SAME | VECTORS),
    "two layers": ({"layers": 2}, SAME | VECTORS | DEEP | {"layers": 2}),
    "a penalty": (
        {"weight": 0.5},
        SAME | VECTORS | {"penalty": "entropy", "weight": 0.5},
    ),
    "vectors as they are": (
        {"start": grid.RAW},
        SAME | VECTORS | {"vector_norm": None},
    ),
    "vectors with a common direction": (
        {"start": grid.COMMON},
        SAME | VECTORS | {"vector_cosine": 0.32},
    ),
    "vectors drawn": (
        {"start": grid.DRAWN},
        SAME | {"vectors": "random", "dim": grid.WIDTH},
    ),
    "another size": (
        {"dim": 48, "heads": 6},
        SAME | {"vectors": "random", "dim": 48, "heads": 6},
    ),
    "other attention": ({"arm": "frozen"}, SAME | VECTORS | {"attention": "frozen"}),
    "fewer examples": ({"examples": 9}, SAME | VECTORS | {"limit": 9}),
    "an encoder": (
        {"model": "builtin:minilm"},
        {
            "limit": 22,
            "max_length": 23,
            "epochs": 21,
            "patience": 21,
            "rate": 24.0,
            "batch": 25,
            "seed": 4,
        },
    ),
}
OF_MEASURING = {
    "corpora",
    "seeds",
    "depths",
    "weights",
    "large",
    "sizes",
    "contrast",
    "size_seeds",
    "starts",
}
OF_MEASURING |= {
    "position_seeds",
    "direction_seeds",
    "length",
    "freezing",
    "length_seeds",
    "splits",
}
OF_MEASURING |= {
    "start_seeds",
    "examples",
    "arm_seeds",
    "even_seeds",
    "fine_seeds",
    "utterances",
    "erased",
    "train",
}


@pytest.mark.parametrize("name", ASKED)
def test_a_cell_is_trained_as_its_grid_says_and_otherwise_as_published(name):
    """Field by field: a rate, a limit or the start of vectors could be forgotten for one family of cells."""
    of_cell, expected = ASKED[name]
    given = {"model": "attention"} | of_cell
    cell = Cell("synthetic", seed=4, **given)
    assert GRID.recipe(cell) == ClassifierRecipe(
        model=cell.model, corpus="synthetic", **expected
    )


def test_every_field_of_a_grid_changes_a_training_or_only_what_is_looked_at():
    cells = [
        Cell("synthetic", **{"model": "attention"} | of_cell)
        for of_cell, _ in ASKED.values()
    ]
    moving = set()
    for field in fields(Grid):
        value = getattr(GRID, field.name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            # A mean cosine stays below 1.
            changed = value / 2 if field.name == "vector_cosine" else value + 1
            other = replace(GRID, **{field.name: changed})
            if [other.recipe(cell) for cell in cells] != [
                GRID.recipe(cell) for cell in cells
            ]:
                moving.add(field.name)
    assert moving | {"encoder"} | OF_MEASURING == {field.name for field in fields(Grid)}
    assert not moving & OF_MEASURING


def test_an_encoder_is_looked_at_before_its_tuning_too_and_what_was_not_tuned_once(
    monkeypatch, tmp_path
):
    monkeypatch.setattr(
        measurements, "measure_once", lambda _trained, _name, make: make()
    )
    monkeypatch.setattr(
        measurements,
        "_measure_split",
        lambda trained, _split: pd.DataFrame([{"model": trained.label}]),
    )
    monkeypatch.setattr(measurements, "load", lambda name: SimpleNamespace(model=name))
    monkeypatch.setattr(
        measurements,
        "measure_similarities",
        lambda name, _batches: pd.DataFrame([{"of": name}]),
    )
    monkeypatch.setattr(trained_cells.Trained, "batches", lambda *_: ())
    found = {
        (kind.__name__, model): measurements.measure_geometry(
            kind(Cell("synthetic", model), QUICK, tmp_path)
        )["model"].tolist()
        for kind in (trained_cells.Trained, trained_cells.CellAtStart)
        for model in (ATTENTION, "builtin:minilm")
    }
    own = "attention L=1 λ=0 d=384 h=1"
    assert found == {
        ("Trained", ATTENTION): [own],
        ("Trained", "builtin:minilm"): ["builtin:minilm", "builtin:minilm pre-trained"],
        ("CellAtStart", ATTENTION): [f"{own} untrained"],
        ("CellAtStart", "builtin:minilm"): ["builtin:minilm untrained"],
    }
