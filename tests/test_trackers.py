"""Runs and series sent to experiment trackers: what TensorBoard reads back, what others are called with."""

import sys
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
from typed import invoke

import anisoscope
from anisoscope.errors import ExtraError, UsageError
from anisoscope.monitor.scalars import summarise_layers
from anisoscope.monitor.trackers import check_trackers, log_run


@pytest.fixture
def run():
    vectors = np.random.default_rng(0).normal(size=(200, 8)) + 1
    return anisoscope.measure(
        [vectors, vectors * [3, 1, 1, 1, 1, 1, 1, 1]], panel="hidden"
    )


def scalars(folder):
    """What TensorBoard reads: {tag: [(step, value)]}."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {
        tag: [(e.step, e.value) for e in reader.Scalars(tag)]
        for tag in reader.Tags()["scalars"]
    }


def test_tensorboard_reads_the_values_of_every_layer(run, tmp_path):
    (line,) = run.log("tensorboard", name="mine", folder=tmp_path)
    assert str(tmp_path) in line
    found = scalars(tmp_path / "mine")
    rows = run.records[
        (run.records["metric"] == "mean_cosine")
        & (run.records["token_policy"] == "all")
    ]
    for layer, value in zip(rows["layer"], rows["value"], strict=True):
        assert found[f"anisoscope/vectors.{layer}/A"] == [(0, pytest.approx(value))]
    assert "anisoscope/vectors.0/drift" in found


def test_values_are_those_of_the_first_token_policy(run):
    """They were means over all policies, which no table of the run has."""
    policies = {"all": 1.0, "content": 3.0, "no-first": 7.0}
    records = run.records[run.records["token_policy"] == "all"]
    several = pd.concat(
        [
            records.assign(token_policy=name, value=value)
            for name, value in policies.items()
        ]
    )
    assert set(
        summarise_layers(several.astype({"token_policy": "string"})).values()
    ) == {1.0}
    unnamed = records.assign(token_policy=pd.NA).astype({"token_policy": "string"})
    assert summarise_layers(unnamed) == summarise_layers(records)


def test_a_series_is_a_run_for_each_seed_with_its_steps(run, tmp_path):
    parts = [
        run.records.assign(seed=seed, step=step)
        for seed in (0, 1)
        for step in (10, 200)
    ]
    records = pd.concat(parts).astype({"seed": "Int64", "step": "Int64"})
    log_run(records, ("tensorboard",), name="series", folder=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "series-seed-0",
        "series-seed-1",
    ]
    for path in tmp_path.iterdir():
        assert [step for step, _ in scalars(path)["anisoscope/vectors.0/A"]] == [
            10,
            200,
        ]


@pytest.mark.parametrize("tracker", ["wandb", "trackio"])
def test_others_are_begun_given_every_step_and_ended(
    run, tmp_path, monkeypatch, tracker
):
    calls = []
    stub = ModuleType(tracker)
    stub.__spec__ = sys.__spec__
    stub.init = lambda **given: calls.append(("init", given))
    stub.log = lambda values, step: calls.append(("log", step, values))
    stub.finish = lambda: calls.append(("finish",))
    monkeypatch.setitem(sys.modules, tracker, stub)
    log_run(run.records, (tracker,), name="mine", folder=tmp_path)
    first, (_, step, values), last = calls
    assert (
        first == ("init", {"project": "anisoscope", "name": "mine"})
        and last == ("finish",)
        and step == 0
    )
    assert set(values) >= {"anisoscope/vectors.0/A", "anisoscope/vectors.1/drift"}


def test_trackers_that_are_not_there_are_refused_before_anything_is_measured(
    monkeypatch,
):
    with pytest.raises(
        UsageError, match=r"tensorboard, wandb, trackio.*did you mean tensorboard"
    ):
        check_trackers(("tensorbord",))
    monkeypatch.setattr("anisoscope.monitor.trackers.find_spec", lambda _: None)
    with pytest.raises(ExtraError, match="pip install wandb"):
        check_trackers(("wandb",))


def test_a_run_with_nothing_to_draw_is_refused(tmp_path):
    spectrum = anisoscope.measure(
        np.random.default_rng(0).normal(size=(50, 4)), panel="spectrum"
    )
    with pytest.raises(UsageError, match="hidden states or attention"):
        spectrum.log("tensorboard", folder=tmp_path)


def test_the_command_logs_beside_its_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("v.npy", np.random.default_rng(0).normal(size=(60, 4)) + 1)
    done = invoke(
        [
            "measure",
            "v.npy",
            "-o",
            "run",
            "--panel",
            "hidden",
            "--report-to",
            "tensorboard",
            "-q",
        ]
    )
    assert done.exit_code == 0 and "tensorboard --logdir" in done.stderr
    assert scalars(tmp_path / "run" / "tensorboard" / "run")
    wrong = invoke(["measure", "v.npy", "-o", "other", "--report-to", "tensorbord"])
    assert (
        wrong.exit_code == 2
        and "tensorboard" in str(wrong.exception)
        and not (tmp_path / "other").exists()
    )
