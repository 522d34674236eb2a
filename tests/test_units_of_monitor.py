"""What is logged of a training: which layer, head, policy and step, each on a few records by hand."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import PrinterCallback, ProgressCallback

from anisoscope.errors import ExtraError, UsageError
from anisoscope.integrations import transformers_callback
from anisoscope.monitor import monitor as monitors, scalars, trackers
from anisoscope.monitor.monitor import Monitor
from anisoscope.store import as_records


def records(rows, **every):
    return as_records(pd.DataFrame(rows), kind="self", **every)


def test_each_layer_of_each_stack_has_its_own_means_and_maxima():
    """Two stacks with layers of the same numbers, heads whose cosines have both signs, metrics that are not logged."""
    rows, expected = [], {}
    for place, (stack, layer) in enumerate((s, n) for s in ("encoder", "decoder") for n in (1, 2)):  # fmt: skip
        heads = np.array([0.1, -0.5, 0.3]) + place / 100
        for head, value in enumerate(heads):
            of_head = {"stack": stack, "layer": layer, "head": head, "value": value}
            for metric, site in (
                ("query_key.cosine", "query.raw"),
                ("query_key.cosine", "query.rotated"),
                ("attention.entropy", "attention"),
                ("logits.largest", "attention"),
                ("row_max", "attention"),
            ):
                shift = 7 if site == "query.rotated" else 0
                rows.append(of_head | {"metric": metric, "site": site, "value": value + shift})  # fmt: skip
            for component in (".2", ".3", ".4"):
                rate = value + float(component)
                rows.append(
                    of_head
                    | {"metric": "sinks.rate", "site": "extremes", "value": rate}
                    | {"component": component}
                )
        for metric, site, component, value in (
            ("mean_cosine", "hidden", None, 0.2), ("mean_cosine", "final", None, 99.0),
            ("mean_cosine", "key.raw", None, 99.0), ("drift", "hidden", None, 0.4),
            ("massive.largest", "hidden", "1", 5.0), ("massive.largest", "hidden", "2", 99.0),
            ("massive.over_median", "hidden", None, 8.0), ("kurtosis", "hidden", None, np.nan),
        ):  # fmt: skip
            rows.append(
                {"stack": stack, "layer": layer, "metric": metric, "site": site}
            )
            rows[-1] |= {"component": component, "value": value + place}
        name = f"mine/{stack}.{layer}/"
        expected |= {
            f"{name}A": 0.2 + place, f"{name}drift": 0.4 + place,
            f"{name}cosine_query_key": np.abs(heads).mean(),
            f"{name}cosine_query_key_max": np.abs(heads).max(),
            f"{name}entropy": heads.mean(), f"{name}entropy_max": heads.max(),
            f"{name}logit_max": heads.max(),
            f"{name}sink_rate": heads.mean() + 0.3, f"{name}sink_rate_max": heads.max() + 0.3,
            f"{name}activation_max": 5.0 + place, f"{name}activation_over_median": 8.0 + place,
        }  # fmt: skip
    found = scalars.summarise_layers(records(rows), "mine")
    assert found == pytest.approx(expected)


def test_of_several_policies_the_first_counts_and_values_without_one_too():
    rows = [
        {"metric": "mean_cosine", "token_policy": policy, "value": value}
        for policy, value in (("content", 0.1), ("all", 0.7))
    ]
    rows.append({"metric": "massive.over_median", "value": 3.0})
    found = scalars.summarise_layers(records(rows, stack="e", layer=1, site="hidden"))
    assert found == {"anisoscope/e.1/A": 0.1, "anisoscope/e.1/activation_over_median": 3.0}  # fmt: skip


def test_names_of_all_that_is_logged():
    assert scalars.LOGGED.keys() >= scalars.OF_HEADS | scalars.OF_MAXIMA
    assert len(set(scalars.LOGGED.values())) == len(scalars.LOGGED)
    assert not scalars.OF_HEADS & scalars.OF_MAXIMA


# ---- trackers --------------------------------------------------------------------------------------------------------


def test_steps_and_seeds_become_runs_of_a_tracker():
    """Seed 5 before seed 12, each with its own steps; a run without seed or step is step 0 of one run."""
    rows = [
        {"seed": seed, "step": step, "value": seed + step / 1000}
        for seed, step in ((12, 20), (5, 100), (5, 20), (12, 0))
    ]
    every = {"metric": "mean_cosine", "stack": "e", "layer": 1, "site": "hidden"}
    split = trackers._split_by_seed(records(rows, **every), "mine")
    name = "anisoscope/e.1/A"
    assert split == {
        "mine-seed-5": {20: {name: 5.02}, 100: {name: 5.1}},
        "mine-seed-12": {0: {name: 12.0}, 20: {name: 12.02}},
    }
    assert list(split) == ["mine-seed-5", "mine-seed-12"]
    one = trackers._split_by_seed(records([{"value": 1.0}], **every), "mine")
    assert one == {"mine": {0: {name: 1.0}}}
    single = trackers._split_by_seed(records([{"value": 1.0, "seed": 3, "step": 7}], **every), "mine")  # fmt: skip
    assert single == {"mine": {7: {name: 1.0}}}


def test_every_tracker_logs_every_run(monkeypatch, tmp_path):
    given_on = []

    def log(name):
        def act(steps, run, folder, project):
            given_on.append((name, steps, run, folder, project))
            return f"{name} {run}"

        return act

    monkeypatch.setattr(trackers, "_LOGGERS", {name: log(name) for name in trackers.PACKAGES})  # fmt: skip
    monkeypatch.setattr(trackers, "find_spec", lambda _: object())
    rows = [{"seed": seed, "step": 1, "value": 0.5} for seed in (1, 2)]
    given = records(rows, metric="mean_cosine", stack="e", layer=1, site="hidden")
    lines = trackers.log_run(given, ("wandb", "tensorboard"), name="n", folder=tmp_path, project="p")  # fmt: skip
    assert lines == [
        f"{t} n-seed-{s}" for t in ("wandb", "tensorboard") for s in (1, 2)
    ]
    assert {one[3:] for one in given_on} == {(tmp_path, "p")}
    assert given_on[1][1] == {1: {"anisoscope/e.1/A": 0.5}}
    with pytest.raises(UsageError, match="got 'wandbb'"):
        trackers.log_run(given, ("tensorboard", "wandbb"), name="n", folder=tmp_path)
    missing = {"trackio"}
    monkeypatch.setattr(
        trackers, "find_spec", lambda name: None if name in missing else 1
    )
    with pytest.raises(
        ExtraError, match=r"got an installation without trackio\..*install trackio"
    ):
        trackers.check_trackers(("wandb", "trackio"))


# ---- the monitor -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "early", "due"),
    [
        (10, True, [0, 1, 2, 4, 8, 10, 20, 30]),
        (10, False, [0, 10, 20, 30]),
        (1, True, [*range(33)]),
        (16, True, [0, 1, 2, 4, 8, 16, 32]),
        (7, True, [0, 1, 2, 4, 7, 14, 21, 28]),
    ],
)
def test_at_which_steps_it_looks(every, early, due):
    monitor = Monitor(torch.ones(2, 3), every=every, early=early)
    assert [step for step in range(33) if monitor.is_due(step)] == due


def test_a_look_is_made_once_a_step_by_the_process_that_should(monkeypatch):
    """In step all processes look, and the first one logs; else the first one alone looks."""
    looked = []
    monitor = Monitor(torch.ones(2, 3), every=5)

    def look(_model, step):
        looked.append(step)
        monitor.last = step
        return {"A": 1.0}

    monkeypatch.setattr(monitor, "look", look)
    for rank, in_step, values, looks in (
        (0, False, {"A": 1.0}, 1),
        (0, True, {"A": 1.0}, 1),
        (1, False, None, 0),
        (1, True, None, 1),
    ):
        looked.clear()
        monitor.last = None
        monkeypatch.setattr(monitors, "rank_and_world", lambda r=rank: (r, 2))
        monkeypatch.setattr(monitors, "is_in_step", lambda _model, s=in_step: s)
        assert monitor(None, 5) == values and len(looked) == looks
        assert monitor(None, 6) is None and len(looked) == looks
        assert monitor(None, 5) == (values if not looks else None)
    monitor.last = 10
    assert monitor(None, 5) is None or looked


def test_what_is_measured_and_written(monkeypatch, tmp_path):
    """The body in evaluation, the whole model if its processes go in step; only the first process writes."""
    model = nn.Module()
    model.base_model = nn.Linear(2, 2)
    asked = []
    rows = records([{"metric": "mean_cosine", "stack": "e", "layer": 1, "site": "hidden", "value": 0.5}])  # fmt: skip

    def measure(body, batches, settings):
        asked.append((body, batches, settings))
        return SimpleNamespace(records=lambda: rows)

    monkeypatch.setattr(monitors, "measure_probe", measure)
    monkeypatch.setattr(Monitor, "_make_batches", lambda *_: ["one", "two"])
    monitor = Monitor(torch.ones(2, 3), every=4, output=tmp_path, prefix="p", blocks=("x",))  # fmt: skip
    monitor.also("kurtosis", "mean_cosine", "matrix_entropy")
    for rank, in_step, body in ((1, True, model), (0, False, model.base_model)):
        monkeypatch.setattr(monitors, "rank_and_world", lambda r=rank: (r, 2))
        monkeypatch.setattr(monitors, "is_in_step", lambda _m, s=in_step: s)
        assert monitor.look(model, 12) == {"p/e.1/A": 0.5} and monitor.last == 12
        assert asked[-1][0] is body and asked[-1][1] == ["one", "two"]
        assert (tmp_path / "step-12.parquet").exists() is (rank == 0)
    settings = asked[-1][2]
    assert settings.metrics == (*monitors.METRICS, "kurtosis", "matrix_entropy")
    assert settings.tokens == ("all",) and settings.blocks == ("x",)
    assert (settings.groups, settings.sample) == (8, monitors.SAMPLE)
    described = json.loads((tmp_path / "monitor.json").read_text())
    assert (described["every"], described["batches"]) == (4, 2)
    assert described["settings"]["blocks"] == ["x"] and "command" in described
    monitor.look(model, 4)
    kept = monitor.records
    assert kept["step"].tolist() == [4, 12] and kept["value"].tolist() == [0.5, 0.5]
    nothing = Monitor(torch.ones(2, 3), output=tmp_path / "none").records
    assert len(nothing) == 0 and list(nothing.columns) == list(kept.columns)


def test_batches_are_made_once_for_each_model(monkeypatch):
    made = []
    monkeypatch.setattr(
        Monitor, "_make_batches", lambda _self, m: made.append(m) or [m]
    )
    monitor = Monitor(torch.ones(2, 3))
    one, other = nn.Linear(1, 1), nn.Linear(1, 1)
    models = [one, one, other, other, one]
    assert [monitor._get_batches(m) for m in models] == [[m] for m in models]
    assert made == [one, other, one]


def test_lists_of_texts_are_named_from_lists_of_inputs():
    are_texts = monitors._are_texts
    assert are_texts(["a", "b"]) and are_texts(("a",))
    for probe in ([], ["a", 1], "a", [torch.ones(1)], {"a": "b"}):
        assert not are_texts(probe)


@pytest.mark.parametrize("children", [1, 2])
def test_only_a_wrapper_around_one_model_is_taken_off(children):
    inner = nn.Linear(2, 2)
    model = nn.Module()
    model.module = inner
    if children == 2:
        model.other = nn.ReLU()
    assert monitors._unwrap_body(model) is (inner if children == 1 else model)
    model.base_model = "no module"
    assert monitors._unwrap_body(model) is (inner if children == 1 else model)


# ---- the trainer -----------------------------------------------------------------------------------------------------


def test_printers_are_silent_only_inside_of_the_block():
    quiet = SimpleNamespace(name="tracker")
    every = [PrinterCallback(), quiet, ProgressCallback()]
    trainer = SimpleNamespace(callback_handler=SimpleNamespace(callbacks=every))
    with (
        pytest.raises(ValueError, match="inside"),
        transformers_callback._mute_printers(trainer),
    ):
        assert trainer.callback_handler.callbacks == [quiet]
        raise ValueError("inside")
    assert trainer.callback_handler.callbacks is every


def test_a_log_of_the_monitor_does_not_use_up_that_of_the_trainer(monkeypatch):
    """Whether the trainer's own loss of the step is due stays as it was, either way."""
    callback = transformers_callback.TrainerMonitor(lambda _model, step: {"A": 1.0} if step == 3 else None)  # fmt: skip
    logged = []
    for due in (True, False):
        control = SimpleNamespace(should_log=due)

        def log(values, control=control):
            logged.append(values)
            control.should_log = False

        trainer = SimpleNamespace(
            log=log, callback_handler=SimpleNamespace(callbacks=[])
        )
        monkeypatch.setattr(callback, "_find_trainer", lambda _frame, t=trainer: t)
        for step in (3, 4):
            state = SimpleNamespace(global_step=step, log_history=[])
            callback.on_step_end(None, state, control, model=None)
            assert control.should_log is due and state.log_history == []
    assert logged == [{"A": 1.0}] * 2
