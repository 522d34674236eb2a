"""The monitor: what it logs is what `measure` says, and the training does not notice it."""

import json
import os
import random
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainerCallback, TrainingArguments

import anisoscope
from anisoscope.errors import CorpusError, UsageError
from anisoscope.integrations.transformers_callback import TrainerMonitor
from anisoscope.store import as_records, select
from anisoscope.training.monitor import Monitor, _body

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def model_of(seed=0, **changes):
    torch.manual_seed(seed)
    return BertForMaskedLM(BertConfig(vocab_size=50, max_position_embeddings=16, **SIZES, **changes))


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
    rest = (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist())
    return model.state_dict(), losses, states, rest


def same(one, other):
    assert all(torch.equal(value, other[0][name]) for name, value in one[0].items())
    assert one[1:] == other[1:]


def test_a_training_is_bit_for_bit_the_same_with_and_without():
    monitor = Monitor(probe(), every=2)
    seen = []
    same(plain_loop(None), plain_loop(lambda model, step: seen.append(monitor(model, step))))
    assert [values is not None for values in seen] == [True, True, False, True] + [False, True] * 2
    with pytest.raises(AssertionError):  # the comparison can fail
        same(plain_loop(None), plain_loop(lambda model, _step: model(input_ids=probe()[0]["input_ids"])))


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
    given = {"metrics": monitor.settings.metrics, "tokens": "all", "groups": 8, "sample": 0}
    expected = anisoscope.measure(model.bert, probe(), **given).records
    of = select(expected, token_policy="all", component=None)
    a = select(of, metric="mean_cosine", site="hidden", layer=2)["value"].item()
    assert abs(values["anisoscope/encoder.2/A"] - a) <= 1e-12
    cosines = select(expected, metric="query_key.cosine", site="query.raw", layer=1, component=None)["value"]
    assert len(cosines) == 2
    assert abs(values["anisoscope/encoder.1/cosine_query_key"] - cosines.abs().mean()) <= 1e-12
    entropy = select(expected, metric="attention.entropy", layer=2, component=None)["value"]
    assert abs(values["anisoscope/encoder.2/entropy"] - entropy.mean()) <= 1e-12
    assert (
        abs(values["anisoscope/encoder.0/drift"] - select(of, metric="drift", site="hidden", layer=0)["value"].item())
        <= 1e-12
    )
    names = {name.rpartition("/")[2] for name in values}
    assert names == {"A", "drift", "cosine_query_key", "entropy"} and len(values) == 3 * 2 + 2 * 2
    monitor(model, 8)
    kept = monitor.records
    assert kept["step"].unique().tolist() == [4, 8] and (tmp_path / "monitor.json").exists()
    np.testing.assert_allclose(select(kept, step=4)["value"], expected["value"], rtol=0, atol=1e-12)


def test_steps_that_are_due():
    assert [s for s in range(1100) if Monitor(probe()).due(s)] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 500, 1000]
    assert [s for s in range(30) if Monitor(probe(), every=10, early=False).due(s)] == [0, 10, 20]
    monitor, model = Monitor(probe(), every=1), model_of()
    assert monitor(model, 3) is not None and monitor(model, 3) is None


def test_bad_input_is_told():
    with pytest.raises(UsageError, match="at least 1 step"):
        Monitor(probe(), every=0)
    with pytest.raises(CorpusError, match="at least one batch"):
        Monitor([])
    with pytest.raises(UsageError, match="an output folder"):
        assert Monitor(probe()).records is None


class Tracker(TrainerCallback):
    """What a tracker would be told."""

    def __init__(self):
        self.told = []

    def on_log(self, args, state, control, logs, **given):  # noqa: ARG002
        self.told.append((state.global_step, dict(logs)))


def trained(folder, add):
    ids = torch.randint(5, 50, (32, 10), generator=torch.Generator().manual_seed(2))
    arguments = TrainingArguments(
        str(folder), max_steps=6, per_device_train_batch_size=4, logging_steps=2, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True, seed=3,
    )  # fmt: skip
    tracker = Tracker()
    trainer = Trainer(model_of(), arguments, train_dataset=[{"input_ids": x, "labels": x} for x in ids])
    trainer.add_callback(tracker)
    add(trainer)
    trainer.train()
    return trainer.model.state_dict(), tracker.told, trainer.state.log_history


def test_a_trainer_reports_it_and_trains_the_same(tmp_path):
    plain, _, _ = trained(tmp_path / "plain", lambda _trainer: None)
    monitor = Monitor(probe(), every=3, output=tmp_path / "monitor")
    watched, told, history = trained(tmp_path / "watched", lambda trainer: TrainerMonitor(monitor).attach(trainer))
    assert all(torch.equal(value, watched[name]) for name, value in plain.items())
    assert [step for step, logs in told if "anisoscope/encoder.1/A" in logs] == [0, 1, 2, 3, 6]
    assert [entry["step"] for entry in history if "anisoscope/encoder.2/entropy" in entry] == [0, 1, 2, 3, 6]
    assert monitor.records["step"].unique().tolist() == [0, 1, 2, 3, 6]
    _, _, history = trained(tmp_path / "loose", lambda trainer: trainer.add_callback(TrainerMonitor(Monitor(probe()))))
    assert [entry["step"] for entry in history if "anisoscope/encoder.2/entropy" in entry] == [0, 1, 2, 4]


def test_a_corpus_is_a_probe(minilm):
    monitor = Monitor.on_corpus("builtin:python-docs", minilm.model, minilm.processor, sequences=3, limit=2)
    assert sum(len(batch.unit) for batch in monitor.probe) == 3


def test_lightning_s_loggers_are_given_each_look(monkeypatch):
    """With a stand-in for the library, which need not be installed: which network, at which step, and to whom."""
    stand_in = SimpleNamespace(Callback=object)
    monkeypatch.setitem(sys.modules, "lightning", SimpleNamespace(pytorch=stand_in))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    monkeypatch.delitem(sys.modules, "anisoscope.integrations.lightning_callback", raising=False)
    from anisoscope.integrations.lightning_callback import LightningMonitor

    model, looked, logged = model_of(), [], []
    module = torch.nn.ModuleDict({"head": torch.nn.Linear(2, 2), "net": model})

    def monitor(network, step):
        looked.append((network, step))
        return {"A": 0.5} if step == 2 else {}

    loggers = [SimpleNamespace(log_metrics=lambda values, step: logged.append((values, step))) for _ in range(2)]
    for chosen in (None, lambda each: each["head"]):
        watch = LightningMonitor(monitor, chosen)
        watch.on_train_start(SimpleNamespace(global_step=1, loggers=loggers), module)
        watch.on_train_batch_end(SimpleNamespace(global_step=2, loggers=loggers), module, None, None, 0)
    assert looked == [(model, 1), (model, 2), (module["head"], 1), (module["head"], 2)]
    assert logged == [({"A": 0.5}, 2)] * 4
    monkeypatch.delitem(sys.modules, "anisoscope.integrations.lightning_callback")


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


def test_lightning_is_told_at_every_look_and_at_no_other_step(monkeypatch):
    """What Lightning calls, without Lightning: the callback's own lines."""
    import sys
    from types import ModuleType, SimpleNamespace

    stand_in = ModuleType("lightning.pytorch")
    stand_in.Callback = object
    monkeypatch.setitem(sys.modules, "lightning", ModuleType("lightning"))
    monkeypatch.setitem(sys.modules, "lightning.pytorch", stand_in)
    monkeypatch.delitem(sys.modules, "anisoscope.integrations.lightning_callback", raising=False)
    from anisoscope.integrations.lightning_callback import LightningMonitor

    seen, told = [], []
    inner, plain = model_of(), torch.nn.Linear(2, 2)
    module = torch.nn.ModuleDict({"plain": plain, "network": inner})
    loggers = [SimpleNamespace(log_metrics=lambda values, step: told.append((values, step)))] * 2

    def monitor(model, step):
        seen.append((model, step))
        return {"A": 0.5} if step == 2 else None

    for chosen, expected in ((None, inner), (lambda given: given["plain"], plain)):
        seen.clear(), told.clear()
        watch = LightningMonitor(monitor, chosen)
        watch.on_train_start(SimpleNamespace(global_step=0, loggers=loggers), module)
        for step in (1, 2):
            watch.on_train_batch_end(SimpleNamespace(global_step=step, loggers=loggers), module, None, None, step)
        assert [(model is expected, step) for model, step in seen] == [(True, 0), (True, 1), (True, 2)]
        assert told == [({"A": 0.5}, 2)] * 2
    monkeypatch.delitem(sys.modules, "anisoscope.integrations.lightning_callback")
    assert LightningMonitor(monitor).model(plain) is plain, "without a transformers model it is the module itself"


def test_the_trainer_logs_what_is_attached_and_else_its_state_keeps_it():
    from types import SimpleNamespace

    logged, state = [], SimpleNamespace(global_step=3, log_history=[])
    alone = TrainerMonitor(lambda _model, step: {"A": 0.5} if step == 3 else None)
    alone.on_step_end(None, state, None, model=None)
    alone.on_train_begin(None, SimpleNamespace(global_step=4, log_history=None), None, model=None)
    assert state.log_history == [{"A": 0.5, "step": 3}]
    trainer = SimpleNamespace(log=logged.append, add_callback=logged.append)
    assert alone.attach(trainer) is alone
    alone.on_step_end(None, state, None, model=None)
    assert logged == [alone, {"A": 0.5}] and len(state.log_history) == 1


def test_what_a_monitor_is_asked_reaches_its_look_and_what_it_keeps(tmp_path):
    """Blocks, prefix, output and how often: each could be read and forgotten."""
    monitor = Monitor(probe(), every=7, output=tmp_path, blocks=("encoder.layer",), prefix="mine")
    assert monitor.settings.blocks == ("encoder.layer",)
    monitor = Monitor(probe(2), every=7, output=tmp_path, prefix="mine")
    assert {name.partition("/")[0] for name in monitor(model_of(), 7)} == {"mine"}
    described = json.loads((tmp_path / "monitor.json").read_text())
    assert (described["every"], described["batches"]) == (7, 2)
    for step in (70, 14):
        monitor(model_of(), step)
    assert monitor.records["step"].unique().tolist() == [7, 14, 70], "by number, not by name"


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
            {"modality": "text", "sequences": given.get("sequences", 64), "limit": given.get("limit")},
        )
    ]


def test_the_body_is_found_below_every_wrapper():
    """Data parallelism and compilation wrap a model; its head is left out."""
    model = model_of()
    assert _body(model) is model.bert and _body(torch.nn.Linear(2, 2)).in_features == 2
    for name in ("module", "_orig_mod"):
        wrapped = torch.nn.Module()
        setattr(wrapped, name, model)
        again = torch.nn.Module()
        again.module = wrapped
        assert _body(wrapped) is _body(again) is model.bert


def test_cross_attention_is_kept_and_not_logged():
    """Two kinds of attention of one layer would be averaged."""
    rows = [
        {"metric": "attention.entropy", "site": "attention", "kind": kind, "head": head, "value": value}
        for kind, value in (("self", 1.0), ("cross", 5.0))
        for head in (0, 1)
    ]
    records = as_records(pd.DataFrame(rows), stack="decoder", layer=1)
    assert Monitor(probe())._logged(records) == {"anisoscope/decoder.1/entropy": 1.0}
