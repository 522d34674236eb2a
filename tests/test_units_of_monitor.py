"""What is logged of a training: which layer, head, policy and step, each on a few records by hand."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from transformers import PrinterCallback, ProgressCallback

from anisoscope.data.in_memory import are_texts
from anisoscope.errors import CorpusError, ExtraError, UsageError
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
    assert (settings.groups, settings.sample) == (8, 1024)
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


def test_lists_of_texts_are_told_from_lists_of_inputs():
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
    # data parallelism around another of its kind, such as Lightning's
    outer = nn.Module()
    outer.module = model
    assert monitors._unwrap_body(outer) is (inner if children == 1 else model)
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


# ---- what is refused, and what reaches where -------------------------------------------------------------------------


def message_of(error, call, *given, **more):
    with pytest.raises(error) as caught:
        call(*given, **more)
    return str(caught.value)


def test_a_monitor_says_what_it_cannot_do():
    for every in (0, -5):
        assert message_of(UsageError, Monitor, torch.ones(2, 3), every=every) == (
            f"expected at least 1 step between two measurements; got {every}. Cure: raise `every`"
        )
    for processor, got in ((None, "none"), (nn.ReLU(), "ReLU")):
        for probe in ("a corpus", ["a", "b"], iter(["a", "b"])):
            assert message_of(UsageError, Monitor, probe, processor=processor) == (
                f"expected a tokenizer for a probe of texts; got {got}. Cure: give processor=, the model's tokenizer"
            )
    empty = torch.utils.data.TensorDataset(torch.ones(0, 1))
    for probe in ([], torch.utils.data.DataLoader(empty)):
        with pytest.raises(CorpusError, match="with at least one batch; got none"):
            Monitor(probe)
    monitor = Monitor(torch.ones(2, 3))
    assert message_of(UsageError, lambda: monitor.records) == (
        "expected a monitor with an output folder; got none. Cure: make it with output=…"
    )
    assert (monitor.every, monitor.early, monitor.prefix) == (500, True, "anisoscope")
    assert monitor.output is None and monitor.last is None


def test_a_metric_is_measured_once_however_often_it_is_asked_for():
    monitor = Monitor(torch.ones(2, 3))
    assert monitor.also("kurtosis") is monitor
    monitor.also("matrix_entropy", "kurtosis").also("kurtosis", "drift")
    assert monitor.settings.metrics == (*monitors.METRICS, "kurtosis", "matrix_entropy")
    with pytest.raises(UsageError):
        monitor.also("kurtossis")


@pytest.mark.parametrize(
    ("probe", "asked"),
    [
        ("a corpus", [("plan", "a corpus", "model", "P", "text", 64, None)]),
        (["a", "b"], [("texts", ["a", "b"], "model", "P", 64)]),
        ([{"x": torch.ones(1)}], [("inputs", "model", "F")]),
    ],
)
def test_a_probe_is_read_by_the_reader_of_its_kind(monkeypatch, probe, asked):
    """A corpus, texts or inputs: with the tokenizer, the model and the function that were given."""
    from anisoscope.data import opening

    found = []

    def open_plan(name, model, processor, *, modality, sequences, limit):
        found.append(("plan", name, model, processor.name, modality, sequences, limit))
        return ["one", "two"], {}

    def open_texts(texts, model, processor, *, sequences):
        found.append(("texts", texts, model, processor.name, sequences))
        return iter(["one", "two"]), {}

    def given_inputs(_probe, model=None, forward=None):
        if model is None:
            return SimpleNamespace(batches=_probe)
        found.append(("inputs", model, forward))
        return iter(["one", "two"])

    monkeypatch.setattr(opening, "open_plan", open_plan)
    monkeypatch.setattr(opening, "open_texts", open_texts)
    monkeypatch.setattr(monitors, "GivenInputs", given_inputs)
    processor = SimpleNamespace(name="P", tokenize=None)
    monitor = Monitor(probe, processor=processor, forward="F")
    assert monitor._make_batches("model") == ["one", "two"] and found == asked


def test_windows_of_a_corpus_are_a_probe_with_its_limit(monkeypatch):
    asked = []

    def choose(*given, **more):
        asked.append((given, more))
        return [torch.ones(2, 3)]

    monkeypatch.setattr(monitors, "_choose_windows", choose)
    given = {"every": 7, "early": False, "prefix": "p", "blocks": ("b",)}
    monitor = Monitor.on_corpus("c", "model", "P", sequences=5, limit=9, **given)
    assert asked == [(("c", "model", "P"), {"sequences": 5, "limit": 9})]
    assert (monitor.every, monitor.early, monitor.prefix) == (7, False, "p")
    assert monitor.settings.blocks == ("b",)
    Monitor.on_corpus("c", "model", "P")
    assert asked[1][1] == {"sequences": 64, "limit": None}


def test_a_shuffled_probe_is_drawn_once_and_draws_nothing_of_the_training():
    torch.manual_seed(3)
    expected = torch.rand(2)
    data = torch.utils.data.TensorDataset(torch.arange(20.0)[:, None])
    loader = torch.utils.data.DataLoader(data, batch_size=5, shuffle=True)
    torch.manual_seed(3)
    monitor = Monitor(loader)
    assert torch.equal(torch.rand(2), expected) and len(monitor.probe) == 4


def test_records_of_steps_are_in_order_of_their_number(tmp_path):
    """By name, step 1000 would come before step 200."""
    monitor = Monitor(torch.ones(2, 3), output=tmp_path, every=300)
    rows = records([{"metric": "drift", "value": 0.5}], stack="e", layer=1)
    for step in (1000, 5, 200):
        monitor._write_records(tmp_path, rows, step, 3)
    assert monitor.records["step"].tolist() == [5, 200, 1000]
    kept = json.loads((tmp_path / "monitor.json").read_text())
    assert (kept["every"], kept["batches"]) == (300, 3)
    Monitor(torch.ones(2, 3), every=9)._write_records(tmp_path, rows, 7, 1)
    again = json.loads((tmp_path / "monitor.json").read_text())
    assert again["every"] == 300, "the settings of the first look stay"


def test_layers_of_cross_attention_are_kept_apart():
    """It has the names of the decoder's own attention; infinite values are left out as well as missing ones."""
    every = {"stack": "d", "layer": 1, "metric": "attention.entropy", "site": "attention"}  # fmt: skip
    values = ((0.25, "self"), (0.75, "self"), (9.0, "cross"))
    rows = pd.DataFrame([every | {"value": v, "kind": k} for v, k in values])
    found = scalars.summarise_layers(as_records(rows))
    assert found == {"anisoscope/d.1/entropy": 0.5, "anisoscope/d.1/entropy_max": 0.75}
    values = [np.inf, -np.inf, np.nan]
    rows = [every | {"layer": k, "value": v} for k, v in enumerate(values)]
    assert scalars.summarise_layers(records(rows)) == {}
    other = [every | {"site": "mlp", "value": 0.5}]
    assert scalars.summarise_layers(records(other)) == {}


def test_trackers_say_what_is_missing(monkeypatch, tmp_path):
    assert message_of(UsageError, trackers.check_trackers, ("zzz", "wandb")) == (
        "expected trackers (tensorboard, wandb, trackio); got 'zzz'. Cure: known names: tensorboard, trackio, wandb"
    )
    monkeypatch.setattr(trackers, "find_spec", lambda name: None if name == "trackio" else 1)  # fmt: skip
    assert message_of(ExtraError, trackers.check_trackers, ("wandb", "trackio")) == (
        "expected the package of --report-to trackio; got an installation without trackio. Cure: pip install trackio"
    )
    empty = records([{"metric": "other", "value": 1.0}], stack="e", layer=1, site="hidden")  # fmt: skip
    given = {"name": "n", "folder": tmp_path}
    assert message_of(UsageError, trackers.log_run, empty, ("wandb",), **given) == (
        "expected a run of hidden states or attention (--panel hidden,attention); "
        "got none of the values that trackers draw. Cure: leave --report-to out"
    )


def test_a_step_without_values_does_not_keep_the_others_back(monkeypatch, tmp_path):
    logged = []
    monkeypatch.setattr(trackers, "find_spec", lambda _: 1)
    monkeypatch.setitem(trackers._LOGGERS, "wandb", lambda *given: logged.append(given) or "line")  # fmt: skip
    rows = [
        {"metric": "drift", "step": 1, "value": 0.5},
        {"metric": "other", "step": 2, "value": 0.5},
    ]
    given = records(rows, stack="e", layer=1, site="hidden")
    lines = trackers.log_run(given, ("wandb",), name="n", folder=tmp_path)
    assert lines == ["line"]
    assert logged == [({1: {"anisoscope/e.1/drift": 0.5}, 2: {}}, "n", tmp_path, "anisoscope")]  # fmt: skip


def test_a_line_says_where_each_tracker_has_the_values(monkeypatch, tmp_path):
    calls = []
    package = SimpleNamespace(
        init=lambda **given: calls.append(given),
        log=lambda values, step: calls.append((step, values)),
        finish=lambda: calls.append("end"),
    )
    monkeypatch.setattr(trackers, "import_module", lambda name: calls.append(name) or package)  # fmt: skip
    steps = {3: {"a": 1.0}, 5: {"a": 2.0, "b": 3.0}}
    for name in ("wandb", "trackio"):
        calls.clear()
        line = trackers._LOGGERS[name](steps, "run", tmp_path, "p")
        assert line == f"logged to {name}: project p, run run"
        assert calls == [name, {"project": "p", "name": "run"}, *steps.items(), "end"]


# ---- callbacks -------------------------------------------------------------------------------------------------------


def test_without_a_trainer_the_state_keeps_the_values():
    asked = []
    callback = transformers_callback.TrainerMonitor(lambda *given: asked.append(given) or {"A": 1.0})  # fmt: skip
    state = SimpleNamespace(global_step=7, log_history=[{"loss": 2}])
    control = SimpleNamespace(should_log=True)
    for act in (callback.on_step_end, callback.on_train_begin):
        act(None, state, control, model="model")
    assert state.log_history == [{"loss": 2}] + [{"A": 1.0, "step": 7}] * 2
    assert asked == [("model", 7)] * 2 and control.should_log is True


def test_a_callback_finds_the_trainer_that_holds_it():
    """Not another one on the way to it, even if that one has a monitor of its own."""
    module = transformers_callback
    callback, other = (module.TrainerMonitor(None) for _ in range(2))

    def trainer(*callbacks):
        made = object.__new__(module.Trainer)
        made.callback_handler = SimpleNamespace(callbacks=[*callbacks])
        return made

    def frame(owner, back=None):
        return SimpleNamespace(f_locals={"self": owner}, f_back=back)

    own, others = trainer(other, callback), trainer(other)
    assert callback._find_trainer(frame(others, frame(1, frame(own)))) is own
    assert callback._find_trainer(frame(others, frame(1))) is None
    assert callback._find_trainer(None) is None


def test_tensorboard_is_given_every_value_at_its_step(monkeypatch, tmp_path):
    calls = []

    class Writer:
        def __init__(self, folder):
            calls.append(folder)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            calls.append("closed")

        def add_scalar(self, key, value, step):
            calls.append((key, value, step))

    module = SimpleNamespace(SummaryWriter=Writer)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    steps = {3: {"a": 1.0}, 5: {"a": 2.0, "b": 3.0}}
    line = trackers._log_to_tensorboard(steps, "run", tmp_path, "p")
    assert line == f"logged to TensorBoard: tensorboard --logdir {tmp_path}"
    values = [("a", 1.0, 3), ("a", 2.0, 5), ("b", 3.0, 5)]
    assert calls == [str(tmp_path / "run"), *values, "closed"]


def test_the_output_of_a_monitor_may_be_named_by_the_home_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Monitor(torch.ones(2, 3), output="~/x").output == tmp_path / "x"
    assert Monitor(torch.ones(2, 3), output=tmp_path).output == tmp_path


def test_each_metric_is_logged_under_its_own_name():
    """Charts of several versions lie in one place only as long as the names stay."""
    names = {
        ("mean_cosine", "hidden", None): ["A"], ("drift", "hidden", None): ["drift"],
        ("query_key.cosine", "query.raw", None): ["cosine_query_key", "cosine_query_key_max"],
        ("attention.entropy", "attention", None): ["entropy", "entropy_max"],
        ("attention.entropy_normalised", "attention", None): ["entropy_normalised", "entropy_normalised_max"],
        ("attention.first_mass", "attention", None): ["first_mass", "first_mass_max"],
        ("logits.largest", "attention", None): ["logit_max"],
        ("sinks.rate", "extremes", ".3"): ["sink_rate", "sink_rate_max"],
        ("massive.largest", "extremes", "1"): ["activation_max"],
        ("massive.over_median", "extremes", None): ["activation_over_median"],
        ("matrix_entropy", "hidden", None): ["matrix_entropy"], ("kurtosis", "hidden", None): ["kurtosis"],
    }  # fmt: skip
    for (metric, site, component), logged in names.items():
        row = {"stack": "e", "layer": 2, "metric": metric, "site": site}
        row |= {"component": component, "value": 0.5}
        found = scalars.summarise_layers(records([row]), "p")
        assert found == {f"p/e.2/{name}": 0.5 for name in logged}
