"""How a training is driven and resumed, what ends it and in which words, and what a language model is trained on."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from anisoscope.data.text import TextCorpus
from anisoscope.errors import (
    CorpusError,
    DivergedError,
    ModelError,
    OutputError,
    UsageError,
)
from anisoscope_papers import origin
from anisoscope_papers.training import classifier_parts, fit, language_model, text
from anisoscope_papers.training.recipe import ModelSize, Training

# ---- what ends a training --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError("no  space\nleft"), "no space left"),
        (SafetensorError("I/O error"), "I/O error"),
        (RuntimeError("[enforce] file write failed"), "[enforce] file write failed"),
        (RuntimeError("unexpected pos 64 vs 12"), "unexpected pos 64 vs 12"),
        (OSError("x" * 300), "x" * 200),
        (RuntimeError("mat1 and mat2 cannot be multiplied"), ""),
    ],
)
def test_a_full_disk_is_told_from_other_faults_with_its_folder_and_cure(
    tmp_path, error, words
):
    found = fit._explain_error(error, tmp_path)
    if not words:
        assert found is error
        return
    assert isinstance(found, OutputError)
    assert found.expected == f"to write checkpoints into {tmp_path}"
    assert found.got == words
    assert found.cure == "free space; the training stays resumable (--resume)"


class Penalty:
    weight = 0.5

    def __init__(self, weight=0.5):
        self.weight, self.watched = weight, []

    @contextmanager
    def watching(self, model, mask):
        self.watched.append((model, mask))
        yield "watch"

    def value(self, watch):
        assert watch == "watch"
        return torch.tensor(0.25)


def make_trainer(monkeypatch, loss, penalty=None, **how):
    """A trainer whose library gives this loss; what it was asked for is kept."""
    asked = []

    def compute_loss(_self, *given):
        asked.append(given)
        return torch.tensor(loss), "outputs"

    monkeypatch.setattr(fit.Trainer, "compute_loss", compute_loss)
    trainer = object.__new__(fit.FittingTrainer)
    trainer.how = fit.Fitting({}, penalty=penalty, **how)
    trainer.state = SimpleNamespace(global_step=7)
    return trainer, asked


@pytest.mark.parametrize("weight", [None, 0.0, 0.5])
def test_a_penalty_is_added_to_the_loss_of_what_it_watched(monkeypatch, weight):
    penalty = None if weight is None else Penalty(weight)
    trainer, asked = make_trainer(monkeypatch, 2.0, penalty)
    inputs = {"attention_mask": "mask", "input_ids": "ids"}
    expected = 2.25 if weight else 2.0
    assert trainer.compute_loss("model", inputs).item() == expected
    loss, outputs = trainer.compute_loss("model", inputs, True, 9)
    assert (loss.item(), outputs) == (expected, "outputs")
    # How many items a whole step has is handed on.
    assert asked == [("model", inputs, True, None), ("model", inputs, True, 9)]
    if penalty is not None:
        assert penalty.watched == [("model", "mask")] * (2 if weight else 0)


@pytest.mark.parametrize(
    ("penalty", "other"),
    [(None, "train in float32"), (Penalty(), "add --warmup 100 --clip 1")],
)
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_ends_a_training_with_a_cure(
    monkeypatch, penalty, other, loss
):
    trainer, _ = make_trainer(monkeypatch, loss, penalty)
    with pytest.raises(DivergedError) as error:
        trainer.compute_loss("model", {"attention_mask": None})
    assert str(error.value) == (
        f"expected a training whose loss stays finite; got a loss of {loss} at step 7. "
        f"Cure: lower --rate, or {other}; the last checkpoint is kept as it was"
    )


def test_one_card_among_several_is_refused_and_the_first_one_too(monkeypatch):
    monkeypatch.setattr(fit, "device_of", torch.device)
    fit.check_training_device("cpu")
    fit.check_training_device("cuda")
    for name in ("cuda:0", "cuda:1"):
        with pytest.raises(UsageError) as error:
            fit.check_training_device(name)
        assert str(error.value) == (
            f"expected a kind of device, cpu or cuda; got '{name}'. "
            "Cure: choose the GPU with CUDA_VISIBLE_DEVICES"
        )


# ---- how a training is driven ----------------------------------------------------------------------------------------


def test_the_learning_rate_follows_the_share_if_there_is_one(monkeypatch):
    asked = []
    monkeypatch.setattr(
        fit.Trainer, "create_scheduler", lambda _self, *given: asked.append(given) or 1
    )
    trainer, _ = make_trainer(monkeypatch, 0.0)
    assert trainer.create_scheduler(30, "optimizer") == 1
    assert asked == [(30, "optimizer")]
    trainer, _ = make_trainer(monkeypatch, 0.0, share=lambda step: 1 / (1 + step))
    own, given = (torch.optim.SGD([torch.zeros(1)], lr=lr) for lr in (4.0, 6.0))
    trainer.optimizer = own
    for optimizer, rates in ((None, [4, 2, 4 / 3]), (given, [6, 3, 2])):
        scheduler = trainer.create_scheduler(30, optimizer)
        assert trainer.lr_scheduler is scheduler and len(asked) == 1
        found = []
        for _ in rates:
            found.append(scheduler.get_last_lr()[0])
            scheduler.optimizer.step()
            scheduler.step()
        assert found == pytest.approx(rates)


def test_examples_come_in_the_order_that_is_given(monkeypatch):
    monkeypatch.setattr(
        fit.Trainer, "_get_train_sampler", lambda _self, data: ("own", data)
    )
    trainer, _ = make_trainer(monkeypatch, 0.0)
    assert trainer._get_train_sampler("data") == ("own", "data")
    trainer, _ = make_trainer(monkeypatch, 0.0, order="order")
    assert trainer._get_train_sampler("data") == "order"


@pytest.mark.parametrize("penalty", [None, Penalty()])
def test_a_trainer_gets_its_material_and_the_settings_that_are_asked_for(
    monkeypatch, tmp_path, penalty
):
    asked, added, removed = [], [], []

    class Arguments(SimpleNamespace):
        n_gpu = 4

    def begin(self, **given):
        asked.append(given)
        self.model_accepts_loss_kwargs = True

    monkeypatch.setattr(fit, "TrainingArguments", Arguments)
    monkeypatch.setattr(fit.Trainer, "__init__", begin)
    monkeypatch.setattr(
        fit.Trainer, "add_callback", lambda _self, one: added.append(one)
    )
    monkeypatch.setattr(
        fit.Trainer, "pop_callback", lambda _self, one: removed.append(one)
    )
    monkeypatch.chdir(tmp_path)
    made = fit.Material("model", "processor", "train", "validation", "collate")
    how = fit.Fitting(
        {"weight_decay": 0.5, "max_steps": 9},
        penalty=penalty,
        callbacks=("first", "second"),
    )
    trainer = fit.FittingTrainer(made, how, "on_step", fit.Path("out"))
    ((given),) = asked
    arguments = vars(given.pop("args"))
    assert given == {
        "model": "model",
        "data_collator": "collate",
        "train_dataset": "train",
        "eval_dataset": "validation",
    }
    # One device, whatever the machine has; what is asked for counts before the rest.
    assert arguments.pop("_n_gpu") == 1
    changed = {"weight_decay": 0.5, "max_steps": 9, "output_dir": str(tmp_path / "out")}
    assert arguments == fit.COMMON | changed
    assert added == ["first", "second"] and removed == [fit.PrinterCallback]
    assert trainer.folder == tmp_path / "out" and trainer.on_step == "on_step"
    assert trainer.can_return_loss
    assert trainer.model_accepts_loss_kwargs == (penalty is None)


def test_the_lowest_evaluation_is_the_best_and_no_model_is_saved_on_the_way():
    assert fit.BEST == {
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": False,
        "lr_scheduler_type": "constant_with_warmup",
    }
    assert fit.COMMON == {
        "optim": "adamw_torch_fused",
        "remove_unused_columns": False,
        "prediction_loss_only": True,
        "logging_nan_inf_filter": False,
        "save_total_limit": 1,
        "ddp_find_unused_parameters": False,
        # Of no tracker, also if one is installed.
        "report_to": [],
        "save_strategy": "no",
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "disable_tqdm": True,
    }


def test_a_saved_state_notes_seconds_and_the_losses_that_are_not_yet_logged(
    monkeypatch,
):
    saved = []
    monkeypatch.setattr(
        fit.Trainer, "_save_checkpoint", lambda _self, *given: saved.append(given)
    )
    monkeypatch.setattr(fit.time, "monotonic", lambda: 130.0)
    trainer, _ = make_trainer(monkeypatch, 0.0)
    trainer.state.stateful_callbacks = {"other": 1}
    trainer.accelerator = SimpleNamespace(gather=lambda loss: torch.stack([loss] * 2))
    trainer._tr_loss, trainer._globalstep_last_logged = torch.tensor(3.5), 4
    trainer.started = 100.0
    trainer._save_checkpoint("model", None)
    noted = {"loss": 3.5, "logged": 4, "seconds": 30.0}
    assert trainer.state.stateful_callbacks == {"other": 1, "unfinished": noted}
    assert saved == [("model", None)]


class Weights(nn.Linear):
    def __init__(self, value=0.0):
        super().__init__(1, 1)
        self.weight.data.fill_(value)

    @classmethod
    def from_pretrained(cls, path):
        return cls({"best": 5.0, "given": 7.0}[path])


def test_weights_are_read_into_the_model_that_is_named_or_its_own():
    trainer = object.__new__(fit.FittingTrainer)
    trainer.model, other = Weights(), Weights()
    trainer.state = SimpleNamespace(best_model_checkpoint="best")
    trainer._load_from_checkpoint(None)
    assert trainer.model.weight.item() == 0
    trainer._load_from_checkpoint("given", other)
    assert (trainer.model.weight.item(), other.weight.item()) == (0, 7)
    trainer._load_best_model()
    assert trainer.model.weight.item() == 5


def test_several_processes_agree_at_every_tenth_step_alone(monkeypatch):
    calls = []

    def reduce(both, kind):
        calls.append(both.tolist())
        assert kind == torch.distributed.ReduceOp.MAX
        # Another process got signal 15, and has no need to save.
        both.copy_(torch.maximum(both, torch.tensor([15, 0])))

    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    following = object.__new__(fit._Following)
    args = SimpleNamespace(world_size=1, device="cpu")
    assert following._agreed(2, True, args, 3) == (2, True) and calls == []
    args.world_size = 2
    for step in (3, 19, 21):
        assert following._agreed(2, True, args, step) == (0, False)
    assert calls == []
    assert following._agreed(2, True, args, 20) == (15, True)
    assert following._agreed(0, False, args, 30) == (15, False)
    assert calls == [[2, 1], [0, 0]]


# ---- what is kept and read again -------------------------------------------------------------------------------------


def write_state(folder, step, text='{"global_step": %d, "best_global_step": 20}'):
    (folder / f"checkpoint-{step}").mkdir(parents=True)
    (folder / f"checkpoint-{step}" / "trainer_state.json").write_text(
        text % step if "%" in text else text
    )


def test_a_training_goes_on_from_the_newest_state_that_is_whole(tmp_path):
    path, state = fit._find_last_state(tmp_path)
    assert path is None and state.global_step == 0
    # Neither the first nor the last by their names.
    for step in (1000, 2000, 90):
        write_state(tmp_path, step)
    path, state = fit._find_last_state(tmp_path)
    assert path == str(tmp_path / "checkpoint-2000") and state.global_step == 2000
    # A state that was being written, and one that was not yet.
    write_state(tmp_path, 3000, "{")
    (tmp_path / "checkpoint-4000").mkdir()
    path, state = fit._find_last_state(tmp_path)
    assert path == str(tmp_path / "checkpoint-2000") and state.global_step == 2000


@pytest.mark.parametrize(
    ("losses", "stale"), [((), 0), ((3.0,), 0), ((2, 1, 1, 4), 2), ((4, 3, 2), 0)]
)
def test_evaluations_count_as_stale_after_the_first_that_was_lowest(losses, stale):
    log = [{"loss": 0.1}]
    for loss in losses:
        log += [{"eval_loss": loss}, {"loss": 0.0}]
    assert fit._count_stale(SimpleNamespace(log_history=log)) == stale


def test_a_folder_is_saved_whole_by_one_process_and_then_left_alone(
    monkeypatch, tmp_path
):
    ranks = [1]
    monkeypatch.setattr(fit, "rank_and_world", lambda: (ranks[0], 2))
    saved = []

    def make(name):
        def save(folder):
            folder.mkdir(exist_ok=True)
            (folder / name).touch()
            saved.append((name, folder.name))

        return SimpleNamespace(save_pretrained=save)

    parts = (make("model"), make("tokenizer"))
    folder = tmp_path / "step-3"
    fit.keep(folder, *parts)
    assert saved == [] and not folder.exists()
    ranks[0] = 0
    # What a process that was killed had begun is no part of it.
    (tmp_path / ".step-3").mkdir()
    (tmp_path / ".step-3" / "half").touch()
    fit.keep(folder, *parts)
    assert saved == [("model", ".step-3"), ("tokenizer", ".step-3")]
    assert {path.name for path in folder.iterdir()} == {"model", "tokenizer"}
    assert not (tmp_path / ".step-3").exists()
    fit.keep(folder, *parts)
    assert len(saved) == 2


class FakeTrainer:
    """A trainer that notes what it is asked for."""

    error: Exception | None = None
    given: tuple = ()

    def __init__(self, *given):
        type(self).given = given
        self.folder, self.seconds, self.asked = given[-1], 12.345, []
        self.state = None
        type(self).last = self

    def add_callback(self, callback):
        self.callback = callback

    def _load_from_checkpoint(self, path):
        self.asked.append(("load", path))

    def train(self, *, resume_from_checkpoint):
        self.asked.append(("train", resume_from_checkpoint))
        if self.error:
            raise self.error
        self.state = fit.TrainerState(
            global_step=9,
            log_history=[
                {"step": 3, "loss": 2.0},
                {"step": 5, "eval_loss": 1.0},
                {"step": 6, "loss": 0.5},
                {"step": 9, "eval_loss": 0.25},
            ],
        )


@pytest.fixture
def trainers(monkeypatch):
    class Own(FakeTrainer):
        pass

    monkeypatch.setattr(fit, "FittingTrainer", Own)
    return Own


@pytest.fixture
def material():
    moved = []
    model = SimpleNamespace(
        to=lambda device: moved.append(device) or model,
        eval=lambda: moved.append("eval"),
    )
    return fit.Material(model, None, None, None, dict), moved


def test_a_training_says_its_steps_its_seconds_and_both_losses(
    tmp_path, trainers, material
):
    made, moved = material
    how = fit.Fitting({})
    found = fit.fit(made, how, "on_step", tmp_path)
    assert found == {
        "steps": 9,
        "seconds": 12.35,
        "loss": [(3, 2.0), (6, 0.5)],
        "validation_loss": [(5, 1.0), (9, 0.25)],
    }
    assert moved == ["cpu", "eval"]
    assert trainers.given == (made, how, "on_step", tmp_path)
    assert trainers.last.asked == [("train", None)]
    assert trainers.last.callback.resumable
    # Without a folder there is none to resume from.
    fit.fit(made, how, "on_step")
    assert not trainers.last.callback.resumable
    assert not trainers.given[-1].exists()


@pytest.mark.parametrize(("patience", "ends"), [(None, 0), (1, 1), (2, 1), (3, 0)])
def test_a_training_that_had_ended_is_only_read_again(
    tmp_path, trainers, material, patience, ends
):
    log = '[{"eval_loss": 1.0}, {"eval_loss": 2.0}, {"eval_loss": 1.5}]'
    state = f'{{"global_step": 40, "best_global_step": 20, "log_history": {log}}}'
    log = log.replace("{", '{"step": 5, ')
    write_state(tmp_path, 40, state.replace('{"eval', '{"step": 5, "eval'))
    found = fit.fit(material[0], fit.Fitting({}, patience=patience), None, tmp_path)
    if ends:
        best = str(tmp_path / "checkpoint-20")
        assert trainers.last.asked == [("load", best)] and found["steps"] == 40
        assert found["validation_loss"] == [(5, 1.0), (5, 2.0), (5, 1.5)]
    else:
        newest = str(tmp_path / "checkpoint-40")
        assert trainers.last.asked == [("train", newest)] and found["steps"] == 9


def test_a_fault_of_a_training_is_explained_by_its_own_folder(
    tmp_path, trainers, material
):
    trainers.error = OSError("full")
    with pytest.raises(OutputError, match=f"checkpoints into {tmp_path}; got full"):
        fit.fit(material[0], fit.Fitting({}), None, tmp_path)
    trainers.error = RuntimeError("other")
    with pytest.raises(RuntimeError, match=r"^other$"):
        fit.fit(material[0], fit.Fitting({}), None, tmp_path)


@pytest.mark.parametrize("due", [False, True])
def test_an_evaluation_that_is_due_anyway_is_made(due):
    asked = []
    trainer = SimpleNamespace(
        how=SimpleNamespace(evaluated={4}), on_step=lambda *at: asked.append(at)
    )
    following = fit._Following(trainer, [], resumable=True)
    for step in (4, 5):
        control = SimpleNamespace(should_evaluate=due, should_save=False)
        state = SimpleNamespace(global_step=step, max_steps=9, epoch=0.5)
        args = SimpleNamespace(world_size=1)
        following.on_step_end(args, state, control, model="m")
        assert control.should_evaluate == (due or step == 4)
    assert asked == [(4, 9, "m"), (5, 9, "m")]


# ---- language models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "per_octave", "steps"),
    [
        (16, 1, [0, 1, 2, 4, 8, 16]),
        (17, 1, [0, 1, 2, 4, 8, 16, 17]),
        (9, 3, [0, 1, 2, 3, 4, 5, 6, 8, 9]),
        (1, 2, [0, 1]),
        (6, 2, [0, 1, 2, 3, 4, 6]),
    ],
)
def test_checkpoints_lie_evenly_in_every_doubling_up_to_the_last(
    last, per_octave, steps
):
    assert language_model.choose_checkpoint_steps(last, per_octave) == steps


SIZE = ModelSize(3, 24, 4, 50, 12, 30, 2e-3, 400, 0.25)


@pytest.fixture
def language_training(monkeypatch, tmp_path):
    """A training of which all that is heavy is a stand-in; what each part is asked for, by name."""
    asked = {}

    def keep(name, answer=None):
        def called(*given, **more):
            asked.setdefault(name, []).append((given, more))
            return answer

        return called

    corpus = SimpleNamespace(name="texts", fingerprint="f1", source={"split": "dev"})
    windows, held = np.arange(7), np.arange(3)
    tokens = SimpleNamespace(
        vocabulary=49, ids=range(99), parts=lambda: (windows, held)
    )
    model = SimpleNamespace(parameters=lambda: [torch.zeros(1000), torch.zeros(234)])
    history = {"steps": 20, "loss": [(1, 2.0)]}
    for name, answer in (
        ("check_training_device", None),
        ("open_training_corpus", corpus),
        ("prepare", ("tokenizer", tokens)),
        ("hash_tokenizer", "words"),
        ("build_untrained", model),
        ("keep", None),
        ("fit", history),
    ):
        monkeypatch.setattr(language_model, name, keep(name, answer))
    monkeypatch.setattr(
        language_model, "Examples", lambda *given, **more: (given, more)
    )
    monkeypatch.setattr(language_model, "describe_environment", lambda: {"tool": "1"})
    training = Training(
        task="causal-lm",
        own_size=SIZE,
        corpus="c",
        split="s",
        column="text",
        limit=8,
        vocabulary="v",
        steps=20,
        seed=5,
        data_seed=6,
        per_octave=1,
    )
    return training, tmp_path / "out", asked, (tokens, windows, held, model)


def test_a_language_model_is_trained_on_what_its_recipe_names(language_training):
    training, folder, asked, (tokens, windows, held, model) = language_training
    progress = []
    given = {"progress": lambda *at: progress.append(at)}
    assert language_model.train(training, folder, **given) == folder
    assert asked["check_training_device"] == [(("cpu",), {})]
    options = {"split": "s", "column": "text", "limit": 8}
    assert asked["open_training_corpus"] == [(("c",), options)]
    ((prepared, _),) = asked["prepare"]
    assert prepared[1:] == ("causal-lm", 50, 12, "v")
    assert asked["build_untrained"] == [(("causal-lm", SIZE, "tokenizer", 5), {})]
    (((made, how, on_step, resumed), _),) = asked["fit"]
    assert resumed == folder / "resume"
    assert made.model is model and made.processor == "tokenizer"
    # Examples of all steps, in the order of the seed of the data; each held window once.
    assert made.train == ((tokens, windows, 20 * SIZE.batch, 6), {})
    assert made.validation == ((tokens, held, 3, 0), {"shuffled": False})
    assert how.evaluated == {0, 1, 2, 4, 8, 16, 20} and how.patience is None
    assert how.share == training.share
    assert how.settings == language_model.build_settings(training, 1)
    at_start = ((folder / "step-0", model, "tokenizer"), {})
    assert asked["keep"] == [at_start]
    for step in (3, 4):
        on_step(step, 20, "now")
    assert asked["keep"] == [at_start, ((folder / "step-4", "now", "tokenizer"), {})]
    assert progress == [(3, 20), (4, 20)]
    noted = json.loads((folder / "training.json").read_text())
    assert noted["model"] == "SimpleNamespace, 1,234 parameters"
    assert noted["corpus"] == {"name": "texts", "fingerprint": "f1", "split": "dev"}
    assert noted["windows"] == {"train": 7, "validation": 3, "tokens": 99}
    assert noted["checkpoints"] == [0, 1, 2, 4, 8, 16, 20]
    assert noted["training"]["tokenizer"] == "words"
    identity = training.identity("f1", 49)
    assert noted["training"] == identity | {"tokenizer": "words"}
    assert (noted["steps"], noted["tool"], noted["processes"]) == (20, "1", 1)
    assert noted["device"] == "cpu"


def test_of_several_processes_the_first_alone_begins_and_tells(
    language_training, monkeypatch
):
    training, folder, asked, _ = language_training
    told = []
    for rank in (1, 0):
        monkeypatch.setattr(
            language_model, "rank_and_world", lambda rank=rank: (rank, 3)
        )
        language_model.train(training, folder, progress=lambda *at: told.append(at))
        _, how, on_step, _ = asked["fit"][-1][0]
        # A step's batch is divided by all of them.
        assert how.settings == language_model.build_settings(training, 3)
        on_step(4, 20, "now")
        assert told == ([] if rank else [(4, 20)]) and folder.exists() == (not rank)
    noted = json.loads((folder / "training.json").read_text())
    assert noted["processes"] == 3


def test_a_finished_language_model_is_not_trained_again(language_training):
    training, folder, asked, _ = language_training
    language_model.train(training, folder)
    (folder / "resume").mkdir()
    assert language_model.train(training, folder, resume=True) == folder
    assert len(asked["fit"]) == 1 and not (folder / "resume").exists()
    language_model.train(training, folder, overwrite=True)
    assert len(asked["fit"]) == 2


def test_an_older_training_is_the_same_if_its_version_is(monkeypatch, tmp_path):
    """A folder from before code was hashed noted the version of the tool."""
    monkeypatch.setattr(origin.tool, "describe_code_version", lambda: {"version": 2})
    how = {"resume": True, "overwrite": False}
    language_model._begin(tmp_path / "a", {"size": 1, "code": "2"}, **how)
    language_model._begin(tmp_path / "a", {"size": 1, "code": {"m": "h"}}, **how)
    with pytest.raises(OutputError):
        language_model._begin(tmp_path / "a", {"size": 3, "code": {"m": "h"}}, **how)
    language_model._begin(tmp_path / "b", {"size": 1, "code": "1"}, **how)
    with pytest.raises(OutputError):
        language_model._begin(tmp_path / "b", {"size": 1, "code": {"m": "h"}}, **how)


# ---- its text --------------------------------------------------------------------------------------------------------


class Corpus:
    def __init__(self, *documents, fingerprint="f"):
        self.documents, self.fingerprint = documents, fingerprint


@pytest.fixture
def cached(monkeypatch, tmp_path):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


WORDS = "The red fox saw a blue bird. It sang all day, and the fox slept.\n"


def test_text_is_prepared_once_for_each_corpus_size_and_task(cached, monkeypatch):
    corpus = Corpus(WORDS, WORDS.upper())
    tokenizer, tokens = text.prepare(corpus, "masked-lm", 60, 8)
    assert tokenizer.model_max_length == tokens.window == 8
    assert tokens.vocabulary == len(tokenizer) <= 60
    assert tokens.mask_id == tokenizer.mask_token_id is not None
    assert (len(tokens.affixes), tokens.room) == (2, 6)
    # Both cases are one word, and the documents have one separator between them.
    ids = tokens.ids.tolist()
    middle = ids.index(tokenizer.sep_token_id)
    assert ids[:middle] == ids[middle + 1 :]
    seen = {path.name for path in cached.iterdir()}
    monkeypatch.setattr(
        text, "train_word_pieces", lambda *_: pytest.fail("learnt again")
    )
    again, other = text.prepare(corpus, "masked-lm", 60, 9)
    assert again.model_max_length == other.window == 9
    assert {path.name for path in cached.iterdir()} == seen
    causal, tokens = text.prepare(corpus, "causal-lm", 300, 8)
    assert tokens.mask_id is None and len(causal) <= 300
    assert len(tokens.affixes) == 0
    text.prepare(corpus, "causal-lm", 270, 8)
    text.prepare(Corpus(*corpus.documents, fingerprint="g"), "causal-lm", 270, 8)
    assert len(list(cached.glob("[!.]*"))) == 4


@pytest.mark.usefixtures("cached")
def test_text_for_two_windows_is_needed():
    documents = Corpus("abcdefgh" * 2)
    _, tokens = text.prepare(documents, "causal-lm", 257, 8)
    assert tokens.count == 2 and len(tokens.ids) == 16
    with pytest.raises(CorpusError) as error:
        text.prepare(documents, "causal-lm", 257, 9)
    assert str(error.value) == (
        "expected text for at least 2 windows of 9 tokens; got 16 tokens. "
        "Cure: name a longer corpus"
    )


def test_a_vocabulary_that_is_taken_over_is_part_of_the_cache(cached, monkeypatch):
    documents = [WORDS] * 3
    first = text.train_word_pieces(documents, 60)
    other = text.train_word_pieces(documents, 45)
    asked = []

    def load(name, task):
        asked.append((name, task))
        return {"first": first, "other": other}[name]

    monkeypatch.setattr(text, "_load_tokenizer", load)
    for name, made in (("first", first), ("other", other)):
        found, _ = text.prepare(Corpus(*documents), "masked-lm", 50, 8, name)
        assert found.get_vocab() == made.get_vocab()
    assert asked == [("first", "masked-lm"), ("other", "masked-lm")]
    assert len(list(cached.glob("[!.]*"))) == 2


@pytest.mark.usefixtures("cached")
def test_a_causal_model_hides_nothing_even_with_a_vocabulary_that_could(monkeypatch):
    made = text.train_word_pieces([WORDS] * 3, 60)
    made.eos_token = "[SEP]"
    monkeypatch.setattr(text, "_load_tokenizer", lambda *_: made)
    _, tokens = text.prepare(Corpus(WORDS, WORDS), "causal-lm", 60, 8, "first")
    assert tokens.mask_id is None


def test_neighbouring_examples_share_no_random_number():
    tokens = text.Tokens(np.arange(90), text.Affixes([], []), 9, 90, 5)
    examples = text.Examples(tokens, np.arange(10), 10, 3)
    drawn = np.concatenate([examples._draws(n).ravel() for n in range(6)])
    assert len(drawn) == len(set(drawn.tolist())) == 6 * 27


def test_a_tokenizer_is_known_by_its_words_and_by_its_rules():
    one, same = (text.train_word_pieces([WORDS], 60) for _ in range(2))
    assert text.hash_tokenizer(one) == text.hash_tokenizer(same)
    same.backend_tokenizer.normalizer = text.normalizers.NFC()
    assert one.get_vocab() == same.get_vocab()
    assert text.hash_tokenizer(one) != text.hash_tokenizer(same)
    fewer = text.train_word_pieces([WORDS], 40)
    assert text.hash_tokenizer(one) != text.hash_tokenizer(fewer)
    plain = [SimpleNamespace(get_vocab=lambda n=n: {"a": n}) for n in (1, 1, 2)]
    first, equal, unlike = map(text.hash_tokenizer, plain)
    assert first == equal != unlike
    # Of the same words, but of a class that may cut them otherwise.
    assert text.hash_tokenizer(FewWords()) != text.hash_tokenizer(plain[0])


class FewWords(SimpleNamespace):
    def get_vocab(self):
        return {"a": 1}


def test_word_pieces_are_of_lower_case_and_have_the_special_tokens_first():
    made = text.train_word_pieces([WORDS * 3], 60, model_max_length=33)
    assert made("FOX").input_ids == made("fox").input_ids
    assert made.convert_ids_to_tokens(range(5)) == list(text.SPECIAL)
    ids = made("fox").input_ids
    assert (ids[0], ids[-1]) == (made.cls_token_id, made.sep_token_id)
    assert made.model_max_length == 33 and made.mask_token == "[MASK]"
    assert made.decode(made("the red fox").input_ids[1:-1]) == "the red fox"


def test_byte_pairs_can_write_what_no_document_has():
    made = text.train_byte_pairs([WORDS], 300)
    assert made.decode(made("Ω, é!\t").input_ids) == "Ω, é!\t"
    assert made.bos_token == made.eos_token == text.END


def test_what_is_no_text_is_no_corpus_to_train_on(monkeypatch):
    asked = []

    def open_corpus(name, **options):
        asked.append((name, options))
        return object.__new__(TextCorpus) if name == "texts" else "images"

    monkeypatch.setattr(text, "open_corpus", open_corpus)
    assert isinstance(text.open_training_corpus("texts", limit=3), TextCorpus)
    with pytest.raises(CorpusError) as error:
        text.open_training_corpus("photos", split="dev")
    assert str(error.value) == (
        "expected a text corpus; got photos, which holds something else. "
        "Cure: name a text corpus"
    )
    assert asked == [
        ("texts", {"modality": "text", "limit": 3}),
        ("photos", {"modality": "text", "split": "dev"}),
    ]


@pytest.mark.parametrize(
    ("task", "tokens", "lacking"),
    [
        ("masked-lm", ("mask_token", "pad_token"), ""),
        ("masked-lm", ("mask_token", "eos_token"), "pad_token"),
        ("masked-lm", ("eos_token",), "mask_token, pad_token"),
        ("causal-lm", ("eos_token",), ""),
        ("causal-lm", ("mask_token", "pad_token"), "eos_token"),
    ],
)
def test_a_vocabulary_lacks_what_its_task_needs(monkeypatch, task, tokens, lacking):
    names = ("mask_token", "pad_token", "eos_token")
    made = SimpleNamespace(**{name: "x" if name in tokens else None for name in names})
    asked = []
    monkeypatch.setattr(text, "locate", lambda *given: given)
    monkeypatch.setattr(
        text,
        "download",
        lambda *given, **more: (
            asked.append((given, more)) or SimpleNamespace(path="here")
        ),
    )
    monkeypatch.setattr(text.Auto, "from_pretrained", lambda path: {"here": made}[path])
    if not lacking:
        assert text._load_tokenizer("org/model@main", task) is made
    else:
        with pytest.raises(ModelError) as error:
            text._load_tokenizer("org/model@main", task)
        assert str(error.value) == (
            f"expected a tokenizer for {task}; got org/model@main without {lacking}. Cure: "
            "take the vocabulary of a model of this task, or leave --vocabulary out to learn one"
        )
    cure = "Leave --vocabulary out to learn one."
    place = ("org/model", "main", "org/model@main", cure)
    assert asked == [((place, "org/model@main"), {"weights": False})]


def test_a_checkpoint_without_a_tokenizer_is_named(monkeypatch):
    monkeypatch.setattr(text, "locate", lambda *_: None)
    monkeypatch.setattr(text, "download", lambda *_, **__: SimpleNamespace(path="here"))

    def fail(_):
        raise OSError("no   such\nfile")

    monkeypatch.setattr(text.Auto, "from_pretrained", fail)
    with pytest.raises(ModelError) as error:
        text._load_tokenizer("org/model", "causal-lm")
    assert str(error.value) == (
        "expected a tokenizer in org/model; got no such file. "
        "Cure: name a checkpoint that has one"
    )


# ---- checkpoints that are fine-tuned --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["", "tokenizer", "model", "padding"])
def test_a_checkpoint_that_cannot_be_fine_tuned_is_named(monkeypatch, fault):
    asked = []
    pad = None if fault == "padding" else 0

    def read(name, made):
        def from_pretrained(path, **more):
            asked.append((name, path, more))
            if fault == name:
                raise ValueError("  no such\n  thing")
            return made

        return SimpleNamespace(from_pretrained=from_pretrained)

    tokenizer = SimpleNamespace(pad_token_id=pad)
    monkeypatch.setattr("transformers.AutoTokenizer", read("tokenizer", tokenizer))
    monkeypatch.setattr(
        "transformers.AutoModelForSequenceClassification", read("model", "model")
    )
    monkeypatch.setattr(
        classifier_parts,
        "checkpoint_path",
        lambda name: SimpleNamespace(path=f"/at/{name}"),
    )
    monkeypatch.setattr(
        classifier_parts, "_describe_labels", lambda corpus: {"labels": corpus}
    )
    recipe = SimpleNamespace(model="org/m")
    expected = {
        "tokenizer": "an encoder that transformers can fine-tune; got org/m (no such thing). "
        "Cure: name a hub id or a folder",
        "padding": "a tokenizer with a padding token; got org/m. Cure: name an encoder",
    }
    expected["model"] = expected["tokenizer"]
    if fault:
        with pytest.raises(ModelError) as error:
            classifier_parts._load_checkpoint(recipe, "corpus")
        assert str(error.value) == f"expected {expected[fault]}"
        return
    found = classifier_parts._load_checkpoint(recipe, "corpus")
    assert found == ("model", tokenizer, {"source": "org/m"})
    assert asked == [
        ("tokenizer", "/at/org/m", {}),
        ("model", "/at/org/m", {"labels": "corpus"}),
    ]


# ---- which code made a number ----------------------------------------------------------------------------------------


def test_what_only_judges_or_only_measures_counts_where_it_changes_a_number(
    monkeypatch,
):
    asked = []
    code = {
        "anisoscope.measure.plan": "1",
        "anisoscope.metrics.drift": "2",
        "anisoscope.reads.names": "3",
        "anisoscope.sums.groups": "4",
        "anisoscope.models.hub": "5",
        "anisoscope_papers.training.fit": "6",
    }

    def hash_code(*modules, leave_out):
        asked.append((modules, set(leave_out)))
        return code

    monkeypatch.setattr(origin.tool, "hash_code", hash_code)
    assert origin.hash_measuring_code("a", "b") == code
    judging = ("judge", "study_names", "needs", "processes", "runner", "study")
    left = {"anisoscope_papers", "anisoscope_papers.origin"}
    left |= {f"anisoscope_papers.{name}" for name in judging}
    assert asked == [(("a", "b"), left)]
    assert origin.hash_training_code("c") == {
        "anisoscope.models.hub": "5",
        "anisoscope_papers.training.fit": "6",
    }


def test_code_that_was_noted_as_a_version_is_compared_as_one(monkeypatch):
    monkeypatch.setattr(origin.tool, "describe_code_version", lambda: {"version": 2})
    assert origin.is_code_of("2", {"m": "1"}) and not origin.is_code_of("1", {})
    assert origin.is_code_of({"m": "1"}, {"m": "1"})
    assert not origin.is_code_of({"m": "1"}, {"m": "2"})
    assert not origin.is_code_of(None, {"m": "2"})


def test_numbers_note_the_commit_of_studies_and_of_trainings(monkeypatch):
    asked = []

    def find(package, parts):
        asked.append((package, parts))
        return {"commit": "c"}

    monkeypatch.setattr(origin.tool, "find_commit", find)
    monkeypatch.setattr(origin.tool, "describe_environment", lambda: {"tool": "1"})
    found = origin.describe_provenance()
    ((package, parts),) = asked
    assert package == origin.PACKAGE and package.name == "anisoscope_papers"
    assert set(parts) == {*origin.STUDIES, "training"}
    # Of every paper: a changed study is no study of its commit.
    papers = {path.parent.name for path in package.glob("*/published.toml")}
    assert len(papers) == 5 and papers <= set(parts)
    assert found["tool"] == "1" and found["papers"]["commit"] == "c"
    assert set(found["papers"]) == {"version", "commit"}
