"""The monitor: what it logs is what `measure` says, and the training does not notice it."""

import importlib
import json
import os
import random
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import anisoscope
from anisoscope.errors import CorpusError, UsageError
from anisoscope.integrations.transformers_callback import TrainerMonitor
from anisoscope.monitor.monitor import Monitor, _unwrap_body
from anisoscope.monitor.scalars import summarise_layers
from anisoscope.store import as_records, select

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def model_of(seed=0, **changes):
    torch.manual_seed(seed)
    return BertForMaskedLM(
        BertConfig(vocab_size=50, max_position_embeddings=16, **SIZES, **changes)
    )


def probe(n=3):
    draw = torch.Generator().manual_seed(1)
    ids = [torch.randint(5, 50, (4, 10), generator=draw) for _ in range(n)]
    mask = torch.ones(4, 10, dtype=torch.long)
    mask[0, 6:] = 0
    return [{"input_ids": x, "attention_mask": mask} for x in ids]


def plain_loop(watch, steps=8):
    """A training with dropout in a plain loop; every state it leaves behind."""
    model = model_of().train()
    model.bert.encoder.layer[1].eval()  # a mode of its own, to be found again
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    states, losses = [], []
    for step in range(1, steps + 1):
        ids = torch.randint(5, 50, (4, 10))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        if watch is not None:
            watch(model, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        states.append([module.training for module in model.modules()])
    rest = (
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),
    )
    return model.state_dict(), losses, states, rest


def same(one, other):
    assert all(torch.equal(value, other[0][name]) for name, value in one[0].items())
    assert one[1:] == other[1:]


def test_a_training_is_bit_for_bit_the_same_with_and_without():
    monitor = Monitor(probe(), every=2)
    seen = []
    same(
        plain_loop(None),
        plain_loop(lambda model, step: seen.append(monitor(model, step))),
    )
    assert [values is not None for values in seen] == [True, True, False, True] + [
        False,
        True,
    ] * 2
    with pytest.raises(AssertionError):  # the comparison can fail
        same(
            plain_loop(None),
            plain_loop(lambda model, _step: model(input_ids=probe()[0]["input_ids"])),
        )


def test_hooks_are_there_during_a_look_only():
    model, monitor = model_of(), Monitor(probe(), every=5, early=False)
    monitor(model, 5)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.config._attn_implementation == "sdpa"
    calls = []
    model.bert.register_forward_hook(lambda *_: calls.append(1))
    assert monitor(model, 6) is None and not calls


def test_autocast_of_the_training_does_not_reach_the_probe():
    model, monitor = model_of().eval(), Monitor(probe())
    plain = monitor.look(model, 0)
    with torch.autocast("cpu", torch.bfloat16):
        assert monitor.look(model, 0) == plain


def test_it_logs_what_measure_says(tmp_path):
    model, monitor = model_of().train(), Monitor(probe(), output=tmp_path)
    values = monitor(model, 4)
    assert model.training
    given = {
        "metrics": monitor.settings.metrics,
        "tokens": "all",
        "groups": 8,
        "sample": 0,
    }
    expected = anisoscope.measure(model.bert, probe(), **given).records
    of = select(expected, token_policy="all", component=None)
    a = select(of, metric="mean_cosine", site="hidden", layer=2)["value"].item()
    assert abs(values["anisoscope/encoder.2/A"] - a) <= 1e-12
    cosines = select(
        expected, metric="query_key.cosine", site="query.raw", layer=1, component=None
    )["value"]
    assert len(cosines) == 2
    assert (
        abs(values["anisoscope/encoder.1/cosine_query_key"] - cosines.abs().mean())
        <= 1e-12
    )
    entropy = select(expected, metric="attention.entropy", layer=2, component=None)[
        "value"
    ]
    assert abs(values["anisoscope/encoder.2/entropy"] - entropy.mean()) <= 1e-12
    for name, rows in (("cosine_query_key", cosines.abs()), ("entropy", None)):
        of_layer = (
            rows
            if rows is not None
            else select(expected, metric="attention.entropy", layer=1, component=None)[
                "value"
            ]
        )
        assert abs(values[f"anisoscope/encoder.1/{name}_max"] - of_layer.max()) <= 1e-12
        assert (
            values[f"anisoscope/encoder.1/{name}_max"]
            > values[f"anisoscope/encoder.1/{name}"]
        )
    for layer in (
        0,
        1,
        2,
    ):  # queries, keys and values of a layer have a drift of their own
        drift = select(of, metric="drift", site="hidden", layer=layer)["value"].item()
        assert abs(values[f"anisoscope/encoder.{layer}/drift"] - drift) <= 1e-12
    names = {name.rpartition("/")[2] for name in values}
    sinks = select(expected, metric="attention.first_mass", layer=1, component=None)[
        "value"
    ]
    assert abs(values["anisoscope/encoder.1/first_mass_max"] - sinks.max()) <= 1e-12
    of_heads = {
        "cosine_query_key",
        "entropy",
        "entropy_normalised",
        "first_mass",
        "sink_rate",
    }
    of_heads |= {f"{name}_max" for name in of_heads}
    largest = select(expected, metric="logits.largest", layer=2, component=None)[
        "value"
    ]
    assert values["anisoscope/encoder.2/logit_max"] == pytest.approx(
        largest.max(), abs=1e-12
    )
    rates = select(expected, metric="sinks.rate", layer=1, component=".3")["value"]
    assert values["anisoscope/encoder.1/sink_rate"] == pytest.approx(
        rates.mean(), abs=1e-12
    )
    assert values["anisoscope/encoder.1/sink_rate_max"] == pytest.approx(
        rates.max(), abs=1e-12
    )
    for name, metric, component in (
        ("activation_max", "massive.largest", "1"),
        ("activation_over_median", "massive.over_median", None),
    ):
        (row,) = select(expected, metric=metric, layer=2, component=component)["value"]
        assert values[f"anisoscope/encoder.2/{name}"] == pytest.approx(row, rel=1e-9)
    of_layers = {"A", "drift", "activation_max", "activation_over_median"}
    assert (
        names == of_layers | of_heads | {"logit_max"} and len(values) == 3 * 4 + 2 * 11
    )
    monitor(model, 8)
    kept = monitor.records
    assert (
        kept["step"].unique().tolist() == [4, 8]
        and (tmp_path / "monitor.json").exists()
    )
    np.testing.assert_allclose(
        select(kept, step=4)["value"], expected["value"], rtol=0, atol=1e-12
    )


def test_further_metrics_are_measured_at_every_look():
    model, monitor = (
        model_of(),
        Monitor(probe()).also("matrix_entropy", "kurtosis", "drift"),
    )
    values = monitor.look(model, 0)
    expected = anisoscope.measure(
        model.bert, probe(), metrics=("matrix_entropy", "kurtosis"), tokens="all"
    ).records
    for metric in ("matrix_entropy", "kurtosis"):
        (row,) = select(expected, metric=metric, layer=2, component=None)["value"]
        assert values[f"anisoscope/encoder.2/{metric}"] == pytest.approx(row, rel=1e-9)
    assert len(values) == 3 * 6 + 2 * 11
    with pytest.raises(UsageError, match=r"the name of a metric.*'kurtosi'.*kurtosis"):
        Monitor(probe()).also("kurtosi")


def test_steps_that_are_due():
    assert [s for s in range(1100) if Monitor(probe()).is_due(s)] == [
        0,
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        500,
        1000,
    ]
    assert [
        s for s in range(30) if Monitor(probe(), every=10, early=False).is_due(s)
    ] == [0, 10, 20]
    monitor, model = Monitor(probe(), every=1), model_of()
    assert monitor(model, 3) is not None and monitor(model, 3) is None


def test_bad_input_is_told():
    with pytest.raises(UsageError, match="at least 1 step"):
        Monitor(probe(), every=0)
    with pytest.raises(CorpusError, match="at least one batch"):
        Monitor([])
    with pytest.raises(UsageError, match="a tensor, an array, a dict"):
        Monitor(7)
    with pytest.raises(UsageError, match=r"arguments of BertModel .* got 'pixels'"):
        Monitor({"pixels": torch.ones(2, 3)}).look(model_of(), 0)
    with pytest.raises(UsageError, match="an output folder"):
        assert Monitor(probe()).records is None


class Tracker(TrainerCallback):
    """What a tracker would be told."""

    def __init__(self):
        self.told = []

    def on_log(self, args, state, control, logs, **given):  # noqa: ARG002
        self.told.append((state.global_step, dict(logs)))


def trained(folder, callbacks, report_to=()):
    ids = torch.randint(5, 50, (32, 10), generator=torch.Generator().manual_seed(2))
    arguments = TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=4, logging_steps=2, report_to=list(report_to),
        use_cpu=True, save_strategy="no", disable_tqdm=True, seed=3,
    )  # fmt: skip
    tracker = Tracker()
    rows = [{"input_ids": x, "labels": x} for x in ids]
    trainer = Trainer(
        model_of(), arguments, train_dataset=rows, callbacks=[*callbacks, tracker]
    )
    trainer.train()
    return trainer.model.state_dict(), tracker.told, trainer.state.log_history


def test_a_trainer_reports_it_and_trains_the_same(tmp_path, capsys):
    plain, told_plain, _ = trained(tmp_path / "plain", [])
    printed = capsys.readouterr().out
    monitor = Monitor(probe(), every=3, output=tmp_path / "monitor")
    watched, told, history = trained(tmp_path / "watched", [TrainerMonitor(monitor)])
    assert all(torch.equal(value, watched[name]) for name, value in plain.items())
    assert [step for step, logs in told if "anisoscope/encoder.1/A" in logs] == [
        0,
        1,
        2,
        3,
        6,
    ]
    assert [
        entry["step"]
        for entry in history
        if "anisoscope/encoder.2/entropy_max" in entry
    ] == [0, 1, 2, 3, 6]
    assert monitor.records["step"].unique().tolist() == [0, 1, 2, 3, 6]
    assert "anisoscope" not in capsys.readouterr().out and "'loss'" in printed
    losses = [
        [(step, logs["loss"]) for step, logs in each if "loss" in logs]
        for each in (told_plain, told)
    ]
    assert losses[0] == losses[1] and [step for step, _ in losses[1]] == [2, 4, 6], (
        "the trainer's own logs are all there"
    )


def test_a_callback_that_is_added_later_finds_its_trainer_among_several(tmp_path):
    told = {}
    for name in ("one", "other"):
        added = TrainerMonitor(Monitor(probe(), early=False, every=6))
        tracker = Tracker()
        arguments = TrainingArguments(
            str(tmp_path / name),
            max_steps=6,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
        )
        rows = [{"input_ids": x, "labels": x} for x in probe()[0]["input_ids"]]
        trainer = Trainer(
            model_of(), arguments, train_dataset=rows, callbacks=[tracker]
        )
        trainer.add_callback(added)
        trainer.train()
        told[name] = [
            step for step, logs in tracker.told if "anisoscope/encoder.1/A" in logs
        ]
    assert told == {"one": [0, 6], "other": [0, 6]}


def test_tensorboard_has_every_look(tmp_path, monkeypatch):
    """As TensorBoard reads its files back; the values are those of the monitor's own records."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    _, told, _ = trained(
        tmp_path / "run", [TrainerMonitor(Monitor(probe(), every=3))], ["tensorboard"]
    )
    found = {}
    for path in (tmp_path / "board").rglob("events*"):
        events = accumulator.EventAccumulator(str(path))
        events.Reload()
        found |= {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    logged = {step: logs for step, logs in told if "anisoscope/encoder.1/A" in logs}
    names = {name for name in logged[0] if name.startswith("anisoscope/")}
    assert len(names) == 3 * 4 + 2 * 11
    for name in names:
        scalars = found[f"train/{name}"]
        assert [each.step for each in scalars] == [0, 1, 2, 3, 6]
        assert [each.value for each in scalars] == pytest.approx(
            [logged[each.step][name] for each in scalars]
        )


def wandb_records(path):
    """Records of a file of an offline run: LevelDB's log format, blocks of 32 KiB after a header of 7 bytes."""
    content, position, parts = path.read_bytes(), 7, []
    assert content[:4] == b":W&B"
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        length, kind = (
            int.from_bytes(content[position + 4 : position + 6], "little"),
            content[position + 6],
        )
        if left < 7 or kind == 0:  # the rest of a block is empty
            position += left
            continue
        parts.append(content[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield b"".join(parts)
            parts = []


def test_wandb_has_every_look_without_a_network(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    _, told, _ = trained(
        tmp_path / "run", [TrainerMonitor(Monitor(probe(), every=3))], ["wandb"]
    )
    wandb.finish()
    logged = {
        step: logs["anisoscope/encoder.1/A"]
        for step, logs in told
        if "anisoscope/encoder.1/A" in logs
    }
    (path,) = tmp_path.rglob("*.wandb")
    found = {}
    for record in map(Record.FromString, wandb_records(path)):
        items = {
            "/".join(item.nested_key) or item.key: json.loads(item.value_json)
            for item in record.history.item
        }
        if "train/anisoscope/encoder.1/A" in items:
            found[items["train/global_step"]] = items["train/anisoscope/encoder.1/A"]
    assert found == pytest.approx(logged) and [*found] == [0, 1, 2, 3, 6]


IDS = probe()[0]["input_ids"]
PROBES = {
    "a tensor": IDS,
    "an array": IDS.numpy(),
    "a dict": {"input_ids": IDS},
    "a dict with labels": {"input_ids": IDS, "labels": IDS},
    "a tuple": (IDS, torch.ones_like(IDS)),
    "a list of tensors": [IDS[:2], IDS[2:]],
    "a generator": ({"input_ids": part} for part in (IDS[:2], IDS[2:])),
    "a loader": torch.utils.data.DataLoader(
        [{"input_ids": ids} for ids in IDS], batch_size=3
    ),
}


@pytest.mark.parametrize("kind", PROBES)
def test_a_probe_is_whatever_measure_takes(kind):
    model = model_of().eval()
    monitor = Monitor(PROBES[kind])
    expected = Monitor([{"input_ids": IDS}]).look(model, 0)
    for step in (0, 1):  # what can be read once only is kept
        looked = monitor.look(model, step)
        assert looked.keys() == expected.keys()
        assert [looked[name] for name in expected] == pytest.approx(
            list(expected.values()), abs=1e-6
        )


def test_a_loader_that_shuffles_is_the_same_probe_at_every_look_and_draws_no_number():
    loader = torch.utils.data.DataLoader(
        [{"input_ids": ids} for ids in torch.cat([IDS] * 4)], 4, shuffle=True
    )
    torch.manual_seed(3)
    monitor = Monitor(loader)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), drawn)
    assert monitor.look(model_of(), 0) == monitor.look(model_of(), 1)


def test_texts_are_a_probe_with_their_tokenizer(minilm):
    texts = ["The cat sat.", "A dog barked at it.", "A narrow cone."]
    values = Monitor(texts, processor=minilm.processor).look(minilm.model, 0)
    expected = anisoscope.measure(
        minilm, texts, metrics=("mean_cosine",), tokens="all"
    ).records
    a = select(expected, metric="mean_cosine", site="hidden", layer=3, component=None)[
        "value"
    ].item()
    assert values["anisoscope/encoder.3/A"] == pytest.approx(a, abs=1e-12)
    windows = Monitor("builtin:python-docs", processor=minilm.processor)
    assert (
        sum(
            len(batch.unit)
            for batch in windows._get_batches(_unwrap_body(minilm.model))
        )
        == 64
    )
    for probe_of_texts in (texts, "builtin:python-docs"):
        with pytest.raises(UsageError, match="a tokenizer for a probe of texts"):
            Monitor(probe_of_texts)


def test_a_call_of_one_s_own_and_units_of_the_probe():
    model = model_of().eval()
    units = torch.tensor([0, 0, 1, 1])
    own = Monitor(
        {"x": IDS, "unit": units}, forward=lambda net, given: net(input_ids=given["x"])
    )
    assert own.look(model, 0) == Monitor({"input_ids": IDS}).look(model, 0)
    (batch,) = own._get_batches(_unwrap_body(model))
    assert batch.unit.tolist() == [0, 0, 1, 1]


def test_a_corpus_is_a_probe(minilm):
    monitor = Monitor.on_corpus(
        "builtin:python-docs", minilm.model, minilm.processor, sequences=3, limit=2
    )
    assert sum(len(batch.unit) for batch in monitor.probe) == 3


@pytest.fixture
def lightning_monitor(monkeypatch):
    """`LightningMonitor` with a stand-in for the library, which need not be installed."""
    name = "anisoscope.integrations.lightning_callback"
    stand_in = SimpleNamespace(Callback=object)
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace(pytorch=stand_in))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module(name).LightningMonitor
    # Not by monkeypatch, which would put it back for the tests of the library itself.
    sys.modules.pop(name)


def test_lightning_is_told_at_every_look_and_at_no_other_step(lightning_monitor):
    """Which network, at which step, and to whom."""
    model, looked, logged = model_of(), [], []
    module = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "net": model})

    def monitor(network, step):
        looked.append((network, step))
        return {"A": 0.5} if step == 2 else None

    loggers = [
        SimpleNamespace(log_metrics=lambda values, step: logged.append((values, step)))
        for _ in range(2)
    ]
    for chosen, expected in (
        (None, model),
        (lambda each: each["head"], module["head"]),
    ):
        looked.clear(), logged.clear()
        watch = lightning_monitor(monitor, chosen)
        watch.on_train_start(SimpleNamespace(global_step=0, loggers=loggers), module)
        for step in (1, 2):
            trainer = SimpleNamespace(global_step=step, loggers=loggers)
            watch.on_train_batch_end(trainer, module, None, None, step)
        assert looked == [(expected, 0), (expected, 1), (expected, 2)]
        assert logged == [({"A": 0.5}, 2)] * 2
    plain = torch.nn.Linear(2, 2)
    assert lightning_monitor(monitor).model(plain) is plain, (
        "without a transformers model it is the module itself"
    )


def test_lightning_logs_it_and_trains_the_same(tmp_path):
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from lightning.pytorch.loggers import CSVLogger

    from anisoscope.integrations.lightning_callback import LightningMonitor

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = model_of()

        def training_step(self, batch, _):
            return self.network(input_ids=batch, labels=batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), 1e-2)

    def fit(callbacks):
        lightning.seed_everything(1, verbose=False)
        ids = torch.randint(5, 50, (24, 10))
        logger = CSVLogger(tmp_path)
        trainer = lightning.Trainer(
            max_steps=6, accelerator="cpu", logger=logger, callbacks=callbacks, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
        )  # fmt: skip
        module = Module()
        trainer.fit(module, torch.utils.data.DataLoader(ids, 4, shuffle=True))
        return module.state_dict(), logger.experiment.metrics

    plain, _ = fit([])
    watched, told = fit([LightningMonitor(Monitor(probe(), every=3))])
    assert all(torch.equal(value, watched[name]) for name, value in plain.items())
    logger_rows = [row for row in told if "anisoscope/encoder.1/A" in row]
    text = "\n".join(path.read_text() for path in tmp_path.rglob("metrics.csv"))
    assert logger_rows or "anisoscope/encoder.1/A" in text


def test_only_the_first_process_looks(monkeypatch):
    monkeypatch.setitem(os.environ, "RANK", "1")
    assert Monitor(probe(), every=1)(model_of(), 1) is None


def test_without_a_trainer_the_state_keeps_it():
    state = SimpleNamespace(global_step=3, log_history=[])
    alone = TrainerMonitor(lambda _model, step: {"A": 0.5} if step == 3 else None)
    alone.on_step_end(None, state, None, model=None)
    alone.on_train_begin(
        None, SimpleNamespace(global_step=4, log_history=None), None, model=None
    )
    assert state.log_history == [{"A": 0.5, "step": 3}]


def test_what_a_monitor_is_asked_reaches_its_look_and_what_it_keeps(tmp_path):
    """Blocks, prefix, output and how often: each could be read and forgotten."""
    monitor = Monitor(
        probe(), every=7, output=tmp_path, blocks=("encoder.layer",), prefix="mine"
    )
    assert monitor.settings.blocks == ("encoder.layer",)
    monitor = Monitor(probe(2), every=7, output=tmp_path, prefix="mine")
    assert {name.partition("/")[0] for name in monitor(model_of(), 7)} == {"mine"}
    described = json.loads((tmp_path / "monitor.json").read_text())
    assert (described["every"], described["batches"]) == (7, 2)
    for step in (70, 14):
        monitor(model_of(), step)
    assert monitor.records["step"].unique().tolist() == [7, 14, 70], (
        "by number, not by name"
    )


@pytest.mark.parametrize("given", [{"sequences": 5}, {"sequences": 5, "limit": 9}, {}])
def test_a_probe_is_read_as_it_is_asked_for(monkeypatch, given):
    from anisoscope.data import opening

    asked = []

    def open_plan(*place, **how):
        asked.append((place, how))
        return probe(), None

    monkeypatch.setattr(opening, "open_plan", open_plan)
    Monitor.on_corpus("somewhere", "a model", "its tokenizer", every=3, **given)
    assert asked == [
        (
            ("somewhere", "a model", "its tokenizer"),
            {
                "modality": "text",
                "sequences": given.get("sequences", 64),
                "limit": given.get("limit"),
            },
        )
    ]


def test_the_body_is_found_below_every_wrapper():
    """Data parallelism and compilation wrap a model; its head is left out."""
    model = model_of()
    assert (
        _unwrap_body(model) is model.bert
        and _unwrap_body(torch.nn.Linear(2, 2)).in_features == 2
    )
    for name in ("module", "_orig_mod"):
        wrapped = torch.nn.Module()
        setattr(wrapped, name, model)
        again = torch.nn.Module()
        again.module = wrapped
        assert _unwrap_body(wrapped) is _unwrap_body(again) is model.bert


def test_cross_attention_is_kept_and_not_logged():
    """Two kinds of attention of one layer would be averaged."""
    rows = [
        {
            "metric": "attention.entropy",
            "site": "attention",
            "kind": kind,
            "head": head,
            "value": value,
        }
        for kind, value in (("self", 1.0), ("cross", 5.0))
        for head in (0, 1)
    ]
    records = as_records(pd.DataFrame(rows), stack="decoder", layer=1)
    names = ("entropy", "entropy_max")
    assert summarise_layers(records) == {
        f"anisoscope/decoder.1/{name}": 1.0 for name in names
    }
