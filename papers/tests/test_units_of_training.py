"""Small decisions of trainings, each on a few numbers that are all unlike."""

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.errors import Interrupted, OutputError, UsageError
from anisoscope.store import RunFolder, write_json
from anisoscope_papers.training import (
    classifier,
    classifier_parts,
    contents,
    entropy_forms,
    fit,
    kinds,
    language_model,
    photographs_and_speech,
    text,
    train_small,
)
from anisoscope_papers.training.recipe import (
    ClassifierRecipe,
    ModelSize,
    Sizes,
    Training,
    check_penalty,
)

SIZE = ModelSize(3, 24, 4, 50, 12, 30, 2e-3, 400, 0.25)

# ---- recipes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "rising"), [(100, 5), (10, 1), (1, 1), (400_000, 10_000)]
)
def test_the_learning_rate_rises_for_a_twentieth_and_falls_to_nothing(steps, rising):
    training = Training(own_size=SIZE, steps=steps)
    assert training.share(0) == pytest.approx(1 / rising)
    assert training.share(rising - 1) == 1
    for step in (rising, (rising + steps) // 2, steps - 1):
        if step >= rising and step < steps:
            falling = (steps - step) / (steps - rising)
            assert training.share(step) == pytest.approx(falling)
    assert training.share(steps) == 0 == training.share(steps + 9)


def test_what_is_not_asked_for_is_that_of_the_size_or_the_seed():
    plain = Training(own_size=SIZE, seed=7)
    assert (plain.last, plain.order, plain.size) == (400, 7, SIZE)
    asked = Training(own_size=SIZE, seed=7, data_seed=0, steps=3)
    assert (asked.last, asked.order) == (3, 0)


def test_a_batch_is_divided_by_processes_and_parts(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    training = Training(
        own_size=SIZE,
        accumulate=5,
        dtype="float16",
        seed=4,
        data_seed=9,
        device="cuda",
        report_to=("wandb",),
    )
    found = language_model.build_settings(training, 3)
    assert found == {
        "max_steps": 400,
        "per_device_train_batch_size": 2,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 5,
        "learning_rate": 2e-3,
        "bf16": False,
        "fp16": True,
        "seed": 4,
        "data_seed": 9,
        "use_cpu": False,
        "train_sampling_strategy": "sequential",
        # Two hundred losses in a training.
        "logging_steps": 2,
        "report_to": ["wandb"],
    }
    with pytest.raises(UsageError, match="30 sequences over 12 parts"):
        Training(own_size=SIZE, accumulate=4)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("entropy", 0.0, ()), ""),
        (("entropy-columns", 2.0, (1, 3)), ""),
        (("entropie", 1.0, (1,)), "a penalty among entropy, entropy-columns"),
        (("entropy", -0.1, (1,)), "a penalty weight of at least 0"),
        (("entropy", math.inf, (1,)), "a penalty weight of at least 0"),
        (("entropy", math.nan, (1,)), "a penalty weight of at least 0"),
        (("entropy", 1.0, (2, 0)), "layers counted from 1"),
    ],
)
def test_a_penalty_is_refused_for_what_is_wrong_with_it(given, words):
    if not words:
        check_penalty(*given)
        return
    with pytest.raises(UsageError, match=words):
        check_penalty(*given)


@pytest.mark.parametrize("weight", [-0.5, 0.5])
def test_a_weight_without_a_penalty_is_refused(weight):
    with pytest.raises(UsageError) as error:
        ClassifierRecipe(weight=weight)
    assert str(error.value) == (
        f"expected a penalty for --weight {weight}; got none. "
        "Cure: add --penalty entropy"
    )


@pytest.mark.parametrize(
    ("made", "name", "allowed", "refused"),
    [
        (ClassifierRecipe, "max_length", 3, 2),
        (ClassifierRecipe, "dim", 2, 1),
        (ClassifierRecipe, "vector_cosine", 0.0, -0.01),
        (ClassifierRecipe, "position_scale", 0.0, -0.01),
        (partial(ClassifierRecipe, attention="frozen"), "freeze_after", 0, -1),
        (Sizes, "vocab_size", 300, 299),
        (Sizes, "window", 4, 3),
        (Sizes, "rate", 0.0, -0.01),
        (Sizes, "dropout", 0.0, -0.01),
        (Sizes, "dropout", 0.9, 0.91),
    ],
)
def test_a_field_may_have_the_end_of_its_range_and_nothing_beyond(
    made, name, allowed, refused
):
    assert getattr(made(**{name: allowed}), name) == allowed
    with pytest.raises(UsageError, match=f"{name}.*; got {refused}"):
        made(**{name: refused})


# ---- text ------------------------------------------------------------------------------------------------------------


def make_tokens(length, window=6, prefix=(2,), suffix=(3, 4), **more):
    affixes = SimpleNamespace(prefix=prefix, suffix=suffix)
    affixes = type(
        "Around",
        (SimpleNamespace,),
        {"__len__": lambda self: len(self.prefix) + len(self.suffix)},
    )(**vars(affixes))
    ids = np.arange(10, 10 + length, dtype=np.uint16)
    return text.Tokens(ids, affixes, window, 900, **more)


def test_windows_follow_one_another_with_special_tokens_around():
    tokens = make_tokens(17)
    assert (tokens.room, tokens.count) == (3, 5)
    assert tokens.rows(np.array([4, 0])).tolist() == [
        [2, 22, 23, 24, 3, 4],
        [2, 10, 11, 12, 3, 4],
    ]
    assert make_tokens(18).count == 6


@pytest.mark.parametrize("count", [2, 99, 100, 199, 200, 250, 6400, 12_900, 1_300_000])
def test_every_hundredth_block_is_held_out(count):
    """Blocks have at most 64 windows, and so few that a hundred fill the corpus."""
    tokens = make_tokens(0, window=4, prefix=(), suffix=())
    tokens = replace(tokens, ids=np.empty(4 * count + 3, np.uint8))
    block = max(1, min(64, count // 100))
    last = (count - 1) // block
    held = [n for n in range(count) if n // block % 100 == min(99, last)]
    train, validation = tokens.parts()
    assert len(train) == count - len(held) and not set(train) & set(held)
    if len(held) <= 512:
        assert validation.tolist() == held
    else:
        assert len(validation) == 512 == len(set(validation))
        assert set(validation) <= set(held)
        assert (validation[0], validation[-1]) == (held[0], held[-1])
        # Evenly spread over all blocks that are held out.
        assert len({n // block for n in validation}) == len({n // block for n in held})


def test_a_causal_example_is_its_window_and_nothing_predicts_its_first_token():
    tokens = make_tokens(30)
    windows = np.array([7, 1, 4])
    plain = text.Examples(tokens, windows, 9, seed=3, shuffled=False)
    assert len(plain) == 9
    batch = plain.__getitems__([0, 1, 5])
    rows = tokens.rows(np.array([7, 1, 4]))
    assert batch["input_ids"].tolist() == rows.tolist()
    labels = rows.copy()
    labels[:, 0] = text.UNMASKED
    assert batch["labels"].tolist() == labels.tolist()
    shuffled = text.Examples(tokens, windows, 9, seed=3)
    for turn in range(3):
        order = np.random.default_rng([3, turn]).permutation(windows)
        found = [shuffled._window(3 * turn + place) for place in range(3)]
        assert found == order.tolist()
    # A pass may be asked for again.
    assert shuffled._window(0) == np.random.default_rng([3, 0]).permutation(windows)[0]


def test_one_number_chooses_a_token_and_another_decides_what_becomes_of_it(monkeypatch):
    tokens = make_tokens(30, window=8, suffix=(3,), mask_id=1)
    # Of 8 places the first and the last are special: they are never chosen.
    choice = [0.0, 0.149, 0.151, 0.0, 0.1, 0.1, 0.14, 0.0]
    fate = [0.0, 0.09, 0.0, 0.11, 0.19, 0.21, 0.99, 0.5]
    other = [0.5, 0.5, 0.5, 0.25, 0.999, 0.5, 0.5, 0.5]
    monkeypatch.setattr(
        text.Examples, "_draws", lambda *_: np.array([choice, fate, other])
    )
    examples = text.Examples(tokens, np.array([2]), 1, 0, shuffled=False)
    one = examples[0]
    ids = [2, *range(22, 28), 3]
    assert one["labels"].tolist() == [-100, 22, -100, 24, 25, 26, 27, -100]
    assert one["input_ids"].tolist() == [2, 22, 23, 225, 899, 1, 1, 3]
    assert ids[0] == 2 and one["input_ids"].dtype == torch.int64


def test_numbers_of_an_example_depend_on_its_own_number_and_the_seed():
    tokens = make_tokens(30)
    first, again, other = (
        text.Examples(tokens, np.arange(9), 9, seed) for seed in (5, 5, 6)
    )
    drawn = first._draws(3)
    assert drawn.shape == (3, 6) and drawn.min() >= 0 and drawn.max() < 1
    for _ in range(2):
        np.testing.assert_array_equal(again._draws(3), drawn)
    assert (
        len({float(one._draws(n)[0, 0]) for one in (first, other) for n in (3, 4)}) == 4
    )


@pytest.mark.parametrize(("masked", "between"), [(True, 8), (False, 9)])
def test_documents_are_separated_and_none_follows_the_last(
    monkeypatch, masked, between
):
    monkeypatch.setattr(text, "cut_pieces", lambda document: document.split("|"))
    monkeypatch.setattr(
        text,
        "tokenise",
        lambda pieces, _: [np.array([ord(c) for c in piece]) for piece in pieces],
    )

    class Vocabulary(SimpleNamespace):
        def __len__(self):
            return self.size

    made = Vocabulary(
        sep_token_id=8, eos_token_id=9, mask_token_id=5 if masked else None, size=65_535
    )
    found = text._tokenise(made, ["ab|c", "d", "e|f"])
    expected = [*map(ord, "abc"), between, ord("d"), between, *map(ord, "ef")]
    assert found.tolist() == expected and found.dtype == np.uint16
    made.size = 65_536
    assert text._tokenise(made, ["a"]).dtype == np.int32


# ---- language models -------------------------------------------------------------------------------------------------


class Words(SimpleNamespace):
    def __len__(self):
        return 60


@pytest.mark.parametrize("task", ["masked-lm", "causal-lm"])
def test_a_language_model_has_the_size_that_is_asked_for(task):
    words = Words(pad_token_id=7, eos_token_id=8)
    config = language_model.build_untrained(task, SIZE, words, 0).config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (
        *(60, 24, 3),
    )
    assert (config.num_attention_heads, config.max_position_embeddings) == (4, 12)
    if task == "masked-lm":
        assert (config.intermediate_size, config.pad_token_id) == (96, 7)
        dropout = (config.hidden_dropout_prob, config.attention_probs_dropout_prob)
        assert dropout == (0.25, 0.25)
    else:
        assert (config.bos_token_id, config.eos_token_id) == (8, 8)
        assert {config.resid_pdrop, config.embd_pdrop, config.attn_pdrop} == {0.25}
        assert not config.use_cache


def test_a_batch_in_which_nothing_is_hidden_has_no_loss():
    words = Words(pad_token_id=0, eos_token_id=1)
    model = language_model.build_untrained("masked-lm", SIZE, words, 0)
    ids = torch.arange(12).view(2, 6)
    labels = torch.full((2, 6), text.UNMASKED)
    assert model(ids, labels).loss.item() == 0
    labels[0, 1] = 5
    whole = model.eval()(ids, labels).loss.item()
    # One of four positions of the whole step.
    part = model(ids, labels, num_items_in_batch=4).loss.item()
    assert part == pytest.approx(whole / 4)


def test_padding_is_not_looked_at_whether_there_are_labels_or_not():
    words = Words(pad_token_id=0, eos_token_id=1)
    model = language_model.build_untrained("masked-lm", SIZE, words, 0).eval()
    ids, mask = torch.arange(12).view(2, 6), torch.ones(2, 6)
    mask[1, 4:] = 0
    labels = torch.full((2, 6), text.UNMASKED)
    labels[0, 1], labels[1, 2] = 5, 7
    library = transformers.BertForMaskedLM.forward
    scores = library(model, ids, attention_mask=mask).logits
    assert torch.equal(model(ids, attention_mask=mask).logits, scores)
    expected = torch.nn.functional.cross_entropy(
        scores[[0, 1], [1, 2]], labels[labels > 0]
    )
    found = model(ids, labels, attention_mask=mask).loss
    torch.testing.assert_close(found, expected)
    assert abs(model(ids, labels).loss.item() - found.item()) > 1e-5


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_a_folder_holds_of_another_training_goes_if_it_may(tmp_path, overwrite):
    code = {"code": {"m": "1"}}
    language_model._begin(
        tmp_path / "out", {"size": 1, **code}, resume=False, overwrite=False
    )
    for name in ("step-0", "step-40", "resume", "others"):
        (tmp_path / "out" / name).mkdir()
    (tmp_path / "out" / "training.json").touch()
    given = {"resume": False, "overwrite": overwrite}
    if not overwrite:
        with pytest.raises(OutputError):
            language_model._begin(tmp_path / "out", {"size": 2, **code}, **given)
        assert (tmp_path / "out" / "step-40").exists()
        return
    language_model._begin(tmp_path / "out", {"size": 2, **code}, **given)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert "others" in left
    assert not left & {"step-0", "step-40", "resume", "training.json"}
    assert RunFolder(tmp_path / "out").identity()["size"] == 2


# ---- the loop of training --------------------------------------------------------------------------------------------


def make_following(monkeypatch, *, resumable=True, stopped=(), patience=None):
    """Return (callback, the trainer that it follows, what the trainer was told, the clock)."""
    told, clock = [], [1000.0]
    trainer = SimpleNamespace(
        on_step=lambda *given: told.append(given),
        how=SimpleNamespace(evaluated=frozenset({4}), patience=patience),
        started=900.0,
        _tr_loss=0.5,
        _globalstep_last_logged=0,
    )
    monkeypatch.setattr(fit.time, "monotonic", lambda: clock[0])
    made = fit._Following(trainer, list(stopped), resumable=resumable)
    return made, trainer, told, clock


def take_step(made, step, epoch=0.5):
    control = SimpleNamespace(should_evaluate=False, should_save=False)
    state = SimpleNamespace(global_step=step, max_steps=9, epoch=epoch)
    args = SimpleNamespace(world_size=1)
    made.on_step_end(args, state, control, model="model")
    return control.should_evaluate, control.should_save


def test_a_state_is_saved_now_and_then_but_not_at_the_end_of_an_epoch(monkeypatch):
    made, _, told, clock = make_following(monkeypatch)
    assert take_step(made, 3) == (False, False)
    assert take_step(made, 4) == (True, False)
    assert told == [(3, 9, "model"), (4, 9, "model")]
    clock[0] += fit.SAVE_SECONDS
    assert take_step(made, 5) == (False, False)
    clock[0] += 1
    assert take_step(made, 6, epoch=2.0) == (False, False)
    assert take_step(made, 6, epoch=2.1) == (False, True)
    # From here on the time counts anew.
    assert take_step(made, 7) == (False, False)
    no_state, *_, clock = make_following(monkeypatch, resumable=False)
    clock[0] += 9999
    assert take_step(no_state, 5) == (False, False)


@pytest.mark.parametrize("resumable", [True, False])
def test_a_signal_ends_a_training_after_its_state_is_saved(monkeypatch, resumable):
    made, *_ = make_following(monkeypatch, resumable=resumable, stopped=[15])
    if not resumable:
        with pytest.raises(Interrupted) as caught:
            take_step(made, 3)
        assert caught.value.args == Interrupted(15).args
        return
    assert take_step(made, 3, epoch=0.5) == (False, True)
    with pytest.raises(Interrupted):
        made.on_save(None, None, None)
    # At the end of an epoch it is saved anyway.
    made, *_ = make_following(monkeypatch, stopped=[15])
    assert take_step(made, 3, epoch=1.0) == (False, False)
    with pytest.raises(Interrupted):
        made.on_save(None, None, None)
    made, *_ = make_following(monkeypatch)
    take_step(made, 3)
    made.on_save(None, None, None)
    # Of two signals the first one is told.
    made, *_ = make_following(monkeypatch, stopped=[15, 2])
    take_step(made, 3)
    with pytest.raises(Interrupted) as caught:
        made.on_save(None, None, None)
    assert caught.value.number == 15


@pytest.mark.parametrize("patience", [None, 1, 2, 3])
def test_a_training_stops_after_so_many_evaluations_without_a_lower_loss(
    monkeypatch, patience
):
    made, *_ = make_following(monkeypatch, patience=patience)
    losses = (3.0, 1.0, 1.5, 1.0)
    log = [{"eval_loss": loss} for loss in losses]
    log.insert(2, {"loss": 0.1})
    for stops_already in (False, True):
        control = SimpleNamespace(should_training_stop=stops_already)
        made.on_evaluate(None, SimpleNamespace(log_history=log), control)
        # Two evaluations after the first that was lowest.
        stops = stops_already or (patience is not None and patience <= 2)
        assert control.should_training_stop == stops


def test_a_training_that_goes_on_counts_its_earlier_seconds_and_losses(monkeypatch):
    made, trainer, *_ = make_following(monkeypatch)
    made.on_train_begin(None, SimpleNamespace(stateful_callbacks={}), None)
    assert (trainer.started, trainer._tr_loss) == (900.0, 0.5)
    before = {"seconds": 30.0, "loss": 2.0, "logged": 7}
    state = SimpleNamespace(stateful_callbacks={fit.UNFINISHED: before})
    made.on_train_begin(None, state, None)
    found = (trainer.started, trainer._tr_loss, trainer._globalstep_last_logged)
    assert found == (870.0, 2.5, 7)


# ---- classifiers -----------------------------------------------------------------------------------------------------

CODE = {"m": "1"}


def make_identity(**more):
    own = {"recipe": {"rate": 1, "seed": 2}, "corpus": "c", "read": {"v": "h"}}
    return own | {"code": CODE} | more


def write_training(folder, identity):
    described = {
        "recipe": identity["recipe"],
        "corpus": {"fingerprint": identity["corpus"]},
        "read": identity["read"],
        "trained_by": identity["code"],
        "results": 1,
    }
    write_json(folder / "training.json", described)
    return described


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("begun", [False, True])
def test_a_folder_of_the_same_training_is_gone_on_with_if_that_is_asked(
    tmp_path, begun, resume
):
    identity = make_identity()
    if begun:
        RunFolder(tmp_path / "checkpoints").note(identity)
        (tmp_path / "checkpoints" / "more").touch()
        described = None
    else:
        described = write_training(tmp_path, identity)
    if not resume:
        with pytest.raises(OutputError, match="already holds this same training"):
            classifier._read_finished(tmp_path, identity, resume=False)
        return
    found = classifier._read_finished(tmp_path, identity, resume=True)
    assert found == described


@pytest.mark.parametrize("begun", [False, True])
def test_a_folder_of_another_training_is_refused_by_what_differs(tmp_path, begun):
    other = make_identity(recipe={"rate": 9, "seed": 2}, corpus="d")
    if begun:
        RunFolder(tmp_path / "checkpoints").note(other)
    else:
        write_training(tmp_path, other)
    with pytest.raises(OutputError, match=r"another training \(") as caught:
        classifier._read_finished(tmp_path, make_identity(), resume=True)
    assert "rate" in str(caught.value) and "corpus" in str(caught.value)
    assert "seed" not in str(caught.value)


def test_of_two_other_trainings_in_a_folder_the_finished_one_is_told(tmp_path):
    write_training(tmp_path, make_identity(corpus="d"))
    RunFolder(tmp_path / "checkpoints").note(make_identity(recipe={"rate": 9}))
    with pytest.raises(OutputError, match=r"another training \(corpus differ\)"):
        classifier._read_finished(tmp_path, make_identity(), resume=True)


def test_an_empty_folder_is_free_and_one_with_other_files_is_not(tmp_path):
    (tmp_path / "checkpoints" / "inner").mkdir(parents=True)
    assert classifier._read_finished(tmp_path, make_identity(), resume=False) is None
    (tmp_path / "checkpoints" / "inner" / "notes.txt").touch()
    with pytest.raises(OutputError, match="files that belong to no training run"):
        classifier._read_finished(tmp_path, make_identity(), resume=True)
    (tmp_path / "training.json").write_text("{")
    with pytest.raises(OutputError, match="train again with --overwrite"):
        classifier._read_finished(tmp_path, make_identity(), resume=True)


def test_an_older_training_is_completed_by_what_it_did_not_note():
    identity = make_identity()
    complete = classifier._complete_identity
    assert complete(None, identity) is None and complete({}, identity) == {}
    noted = make_identity(read=None)
    assert complete(noted, identity) == identity and noted["read"] is None
    other = make_identity(read={"v": "another"}, code={"m": "2"})
    assert complete(other, identity) == other
    older = {"recipe": 1, "code": {"version": "0.1"}, "corpus": {"fingerprint": "f"}}
    assert classifier._identify_training(older) == {
        "recipe": 1,
        "corpus": "f",
        "read": None,
        "code": "0.1",
    }


@pytest.mark.parametrize("steps", [None, 70])
def test_settings_of_a_classifier_s_training_are_those_of_its_recipe(steps):
    given = {} if steps else {"epochs": 6}
    recipe = ClassifierRecipe(
        rate=0.5, decay=0.25, batch=3, warmup=7, clip=2.0, seed=9, steps=steps, **given
    )
    found = classifier._build_trainer_settings(recipe.filled(), "cuda")
    expected = {
        "per_device_train_batch_size": 3,
        "per_device_eval_batch_size": 12,
        "learning_rate": 0.5,
        "weight_decay": 0.25,
        "warmup_steps": 7,
        "max_grad_norm": 2.0,
        "seed": 9,
        "data_seed": 9,
        "use_cpu": False,
        "load_best_model_at_end": steps is None,
    }
    assert {name: found[name] for name in expected} == expected
    length = {name: found.get(name) for name in ("num_train_epochs", "max_steps")}
    assert length == {"num_train_epochs": given.get("epochs"), "max_steps": steps}
    every = {found[name] for name in found if name.endswith("_strategy")}
    assert every == {"epoch"}
    assert classifier._build_trainer_settings(recipe, "cpu")["use_cpu"]


def test_the_epoch_of_the_lowest_loss_is_kept_by_its_step(monkeypatch):
    history = {
        "steps": 40,
        "seconds": 1.5,
        "loss": [(10, 3.0), (20, 2.0), (30, 1.0), (40, 0.5)],
        "validation_loss": [(10, 2.0), (20, 1.0), (30, 1.0), (40, 4.0)],
    }
    monkeypatch.setattr(classifier, "fit", lambda *_: history)
    monkeypatch.setattr(classifier, "_build_fitting", lambda *_: None)
    monkeypatch.setattr(classifier, "predict_classes", lambda *given: given)
    shares = {"validation": (0.9, 0.1), "test": (0.6, 0.6)}

    def measure(_, split, predicted):
        assert predicted == ("model", f"{split} encoded", 5)
        return dict(zip(("accuracy", "above_chance"), shares[split], strict=True))

    monkeypatch.setattr(classifier, "measure_result", measure)
    parts = SimpleNamespace(
        material=None,
        model="model",
        pad_id=5,
        encoded={
            split: f"{split} encoded" for split in ("train", "validation", "test")
        },
        described={"parameters": 3},
    )
    corpus = SimpleNamespace(described=lambda: {"name": "c"})

    def train(**given):
        recipe = ClassifierRecipe(**given)
        return classifier._train(recipe, corpus, parts, None, "cpu", print)

    found = train()
    assert (found["best_epoch"], found["kept_step"], found["epochs"]) == (2, 20, 4)
    assert found["loss"] == [(1, 3.0), (2, 2.0), (3, 1.0), (4, 0.5)]
    assert found["validation_loss"][3] == (4, 4.0)
    assert set(found["results"]) == {"validation", "test"} and found["parameters"] == 3
    # No more than chance gives is nothing.
    assert found["collapsed"]
    shares["test"] = (0.61, 0.6)
    assert not train()["collapsed"]
    assert train(steps=35)["kept_step"] == 35


def test_a_trained_classifier_tells_the_accuracy_of_the_split_that_is_asked_for():
    results = {"validation": {"accuracy": 0.75}, "test": {"accuracy": 0.5}}
    done = classifier.TrainedClassifier(Path("run"), {"results": results})
    assert (done.accuracy(), done.accuracy("validation")) == (0.5, 0.75)


@pytest.mark.parametrize(
    ("penalty", "weight", "rows"),
    [
        ("none", 0.0, "always"),
        ("entropy", 0.5, "always"),
        ("entropy-columns", 0.5, "never"),
        ("entropy-columns", 0.0, "always"),
    ],
)
def test_all_rows_of_attention_are_computed_only_for_a_penalty_on_columns(
    penalty, weight, rows
):
    inner = SimpleNamespace()
    parts = SimpleNamespace(
        model=SimpleNamespace(attention_classifier=inner),
        encoded={
            "train": SimpleNamespace(lengths=[3, 1, 2]),
            "test": SimpleNamespace(lengths=[9]),
        },
    )
    recipe = ClassifierRecipe(penalty=penalty, weight=weight, batch=7, seed=5)
    order = classifier._build_fitting(recipe.filled(), parts, "cpu").order
    assert inner.row_only == rows
    assert (order.batch, order.seed, order.lengths.tolist()) == (7, 5, [3, 1, 2])


def test_texts_are_sorted_by_length_within_pools_and_an_incomplete_batch_is_last(
    monkeypatch,
):
    assert classifier.POOL == 50
    monkeypatch.setattr(classifier, "POOL", 3)
    lengths = [100 - i for i in range(15)]
    found = [*classifier.Buckets(lengths, 2, seed=5)]
    generator = torch.Generator().manual_seed(5 * 1_000_003)
    *drawn, last = torch.randperm(15, generator=generator).tolist()
    batches = []
    for pool in (drawn[:6], drawn[6:12], drawn[12:]):
        ordered = sorted(pool, key=lambda i: lengths[i])
        batches += [ordered[k : k + 2] for k in range(0, len(ordered), 2)]
    in_twos = [found[k : k + 2] for k in range(0, 14, 2)]
    assert sorted(in_twos) == sorted(batches) and in_twos != batches
    assert found[14:] == [last]


def test_no_epoch_of_a_seed_has_the_order_of_an_epoch_of_another():
    orders = set()
    for seed in range(4):
        sampler = classifier.Buckets([3] * 40, 4, seed)
        for epoch in range(4):
            sampler.set_epoch(epoch)
            orders.add(tuple(sampler))
    assert len(orders) == 16


def test_a_result_is_that_of_its_own_split_and_of_the_classes_that_it_has():
    splits = {
        split: tuple(Example(("a",), label, None) for label in labels)
        for split, labels in {
            "train": (0, 1, 2),
            "validation": (0, 1, 1, 1),
            "test": (0, 2, 0, 1),
        }.items()
    }
    corpus = LabelledCorpus("texts", ("no", "yes", "never"), splits)
    found = classifier.measure_result(corpus, "validation", [0, 1, 0, 1])
    assert found == {
        "n": 4,
        "accuracy": 0.75,
        "majority": 0.75,
        "above_chance": 0.75 + 1.645 * math.sqrt(0.75 * 0.25 / 4),
        "by_class": {"no": 1.0, "yes": 2 / 3},
        "predicted": {"no": 2, "yes": 2, "never": 0},
    }


def make_blocks(*sizes):
    blocks = []
    for n in sizes:
        linear = torch.nn.Linear(2, 3 * n)
        blocks.append(
            SimpleNamespace(attention=SimpleNamespace(in_proj=linear, detach=False))
        )
    return SimpleNamespace(attention_classifier=SimpleNamespace(blocks=blocks))


@pytest.mark.parametrize(
    ("after", "reached"),
    [
        (0, [(0, 0.0), (5, 0.5)]),
        (3, [(3, 0.1), (4, 0.2)]),
        (None, [(9, 1.0), (10, 1.5)]),
    ],
)
def test_queries_and_keys_are_frozen_from_their_step_on(after, reached):
    model = make_blocks(2, 4)
    freezing = classifier.FrozenAttention(after)

    def state(step, epoch):
        return SimpleNamespace(global_step=step, epoch=epoch)

    def move():
        with torch.no_grad():
            for block in model.attention_classifier.blocks:
                for part in block.attention.in_proj.parameters():
                    part += 1.0

    def weights():
        return [
            part.detach().clone()
            for block in model.attention_classifier.blocks
            for part in block.attention.in_proj.parameters()
        ]

    begun = [] if after == 0 else [(after - 1 if after else 8, 0.9)]
    freezing.on_train_begin(None, state(*(begun or reached)[0]), None, model=model)
    for at in begun:
        before = weights()
        move()
        freezing.on_step_end(None, state(*at), None, model=model)
        for now, then in zip(weights(), before, strict=True):
            torch.testing.assert_close(now, then + 1)
        assert not model.attention_classifier.blocks[1].attention.detach
    freezing.on_step_end(None, state(*reached[0]), None, model=model)
    assert all(block.attention.detach for block in model.attention_classifier.blocks)
    before = weights()
    for _ in range(2):
        move()
        freezing.on_step_end(None, state(*reached[1]), None, model=model)
    for now, then in zip(weights(), before, strict=True):
        frozen = 2 * len(now) // 3
        torch.testing.assert_close(now[:frozen], then[:frozen])
        torch.testing.assert_close(now[frozen:], then[frozen:] + 2)


def test_validation_texts_are_sorted_by_length_and_training_texts_are_not():
    def rows(*lengths):
        return SimpleNamespace(
            rows=[{"input_ids": list(range(n)), "labels": n} for n in lengths]
        )

    encoded = {"train": rows(3, 1, 2), "validation": rows(4, 2, 3), "test": rows(9)}
    made = classifier_parts.Parts("model", SimpleNamespace(pad_token_id=7), encoded, {})
    material = made.material
    assert [row["labels"] for row in material.train] == [3, 1, 2]
    assert [row["labels"] for row in material.validation] == [2, 3, 4]
    batch = material.collate(material.train[:2])
    assert batch["input_ids"].tolist() == [[0, 1, 2], [0, 7, 7]]
    none = replace(made, tokenizer=SimpleNamespace(pad_token_id=None))
    assert (made.pad_id, none.pad_id) == (7, 0)


# ---- what is read, forms of entropy, speech --------------------------------------------------------------------------


def test_inputs_that_have_changed_are_named(tmp_path):
    noted, kept = tmp_path / "read.json", tmp_path / "model"
    contents.check_noted(noted, {"a": "1"}, kept)
    noted.write_text(json.dumps({"a": "1", "b": "2", "c": "3"}))
    contents.check_noted(noted, {"a": "1", "b": "2", "c": "3"}, kept)
    with pytest.raises(OutputError, match=r"the a, c that the model in .*model was"):
        contents.check_noted(noted, {"a": "0", "b": "2", "c": "0"}, kept)


@pytest.mark.parametrize(
    ("written", "base"),
    [
        ({"base_model_name_or_path": "org/base"}, "org/base"),
        ({"base_model_name_or_path": None}, ""),
        ({"base_model_name_or_path": 3}, ""),
        ({}, ""),
        ([], ""),
        ("{", ""),
        (None, ""),
        ("itself", ""),
    ],
)
def test_an_adapter_names_its_base(tmp_path, written, base):
    path = tmp_path / contents.ADAPTER
    if written == "itself":
        written = {"base_model_name_or_path": str(tmp_path)}
    if written is not None:
        path.write_text(written if written == "{" else json.dumps(written))
    assert contents._read_base(tmp_path) == base


def test_files_count_with_their_names_and_contents(tmp_path, monkeypatch):
    for name in ("one", "two", "three"):
        (tmp_path / name / "inner").mkdir(parents=True)
        (tmp_path / name / "inner" / "a.txt").write_text("text")
        (tmp_path / name / "b.txt").write_text("text")
    (tmp_path / "two" / "inner" / "a.txt").rename(tmp_path / "two" / "inner" / "c.txt")
    (tmp_path / "three" / "b.txt").write_text("other")
    (tmp_path / "alone.txt").write_text("text")
    monkeypatch.setattr(
        contents, "find_path", lambda n: tmp_path / n if n != "hub" else None
    )
    names = ("one", "two", "three", "alone.txt", "hub", "one")
    found = contents.hash_corpora(*names)
    assert list(found) == list(names[:-1]) and found["hub"] == "hub"
    assert len(set(found.values())) == 5


def test_a_file_may_be_named_from_the_user_s_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "vectors.txt").write_text("a 1 2")
    found = contents.hash_named("~/vectors.txt")
    assert found == contents.hash_named(str(tmp_path / "vectors.txt"))


def test_forms_of_entropy_by_hand():
    """Three tokens; rows of attention that are all unlike."""
    weights = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])

    def entropy(*p):
        return -sum(x * math.log(x) for x in p)

    def softmax(*x):
        powers = [math.exp(value) for value in x]
        return [power / sum(powers) for power in powers]

    row = entropy(0.2, 0.5, 0.3)
    expected = {
        "row": row / math.log(3),
        "reported": row / math.log(2),
        "columns": entropy(*softmax(0.9, 1.2)) / math.log(2),
        "again": entropy(*softmax(0.5, 0.3)) / math.log(2),
    }
    assert entropy_forms.compute_by_definition(weights) == pytest.approx(expected)
    two = entropy_forms.compute_of_row(np.array([0.25, 0.75]))
    assert two == pytest.approx(
        {"row": entropy(0.25, 0.75) / math.log(2), "reported": 0, "again": 0}
    )
    assert set(entropy_forms.compute_of_row(np.ones(1)).values()) == {0}
    # Two utterances of three tokens count twice.
    ends = entropy_forms.find_ends(np.array([22, 3, 3]))
    of_22, of_3 = (entropy_forms._find_ends(n) for n in (22, 3))
    assert of_22["again"][0] == pytest.approx(0.987, abs=5e-4)
    for form, (low, high) in ends.items():
        assert low == pytest.approx((of_22[form][0] + 2 * of_3[form][0]) / 3)
        assert high == pytest.approx((of_22[form][1] + 2 * of_3[form][1]) / 3)
    assert ends["row"] == pytest.approx((0, 1))
    assert ends["columns"][0] < ends["columns"][1] == pytest.approx(1)


def test_hidden_frames_are_told_from_other_hidden_frames():
    frames, negatives = 40, 200
    hidden, others = photographs_and_speech._draw_spans(
        frames, negatives, np.random.default_rng(0)
    )
    places = np.flatnonzero(hidden)
    # Spans of ten frames each, of which three begin somewhere.
    starts = np.random.default_rng(0).choice(30, round(0.65 * 40 / 10), replace=False)
    expected = sorted({int(s) + k for s in starts for k in range(10)})
    assert places.tolist() == expected
    assert others.shape == (frames, negatives)
    for place in range(frames):
        if hidden[place]:
            assert set(others[place].tolist()) == set(expected) - {place}
        else:
            assert not others[place].any()
    sizes = {"conv_kernel": (10, 3), "conv_stride": (5, 2)}
    # 32,000 samples: (32000 − 10) / 5 + 1 = 6399, (6399 − 3) / 2 + 1 = 3199.
    assert photographs_and_speech._count_frames(sizes) == 3199


# ---- digits, spoken digits, windows of texts -------------------------------------------------------------------------


def test_levels_of_grey_are_spread_over_all_that_a_pixel_can_be():
    from sklearn.datasets import load_digits

    digits = load_digits()
    _, train, held, _ = kinds.make_examples(kinds.KINDS["vit"])
    assert [e["labels"] for e in held] == digits.target[400:600].tolist()
    assert [e["labels"] for e in train] == digits.target[600:].tolist()
    for number, example in ((600, train[0]), (400, held[0])):
        pixels = example["pixel_values"]
        assert pixels.shape == (3, 32, 32)
        # Levels 0 to 16 are −1 to 1; a mean stays when a picture is made larger.
        expected = digits.images[number].mean() / 8 - 1
        assert float(pixels.mean()) == pytest.approx(expected, abs=0.02)
        assert torch.equal(pixels[0], pixels[2])
        assert float(pixels.min()) == -1


def test_a_level_of_grey_is_rounded_to_the_nearest_byte(monkeypatch):
    levels = np.arange(17)
    images = np.repeat(levels, 64).reshape(17, 8, 8).astype(float)
    digits = SimpleNamespace(images=images, target=levels)
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: digits)
    monkeypatch.setitem(kinds.MEASURED, kinds.IMAGE, 0)
    monkeypatch.setitem(kinds.VALIDATION, kinds.IMAGE, 5)
    _, train, held, _ = kinds._make_images.__wrapped__()
    examples = held + train
    assert [e["labels"] for e in examples] == levels.tolist()
    for level, example in zip(levels.tolist(), examples, strict=True):
        expected = torch.full((3, 32, 32), round(level * 255 / 16) / 127.5 - 1)
        torch.testing.assert_close(example["pixel_values"], expected)


def test_word_pieces_are_as_many_and_texts_as_long_as_their_kind_says(monkeypatch):
    asked = []

    def learn(*given, **more):
        asked.append((given, more))
        return "words"

    monkeypatch.setattr(text, "train_word_pieces", learn)
    sizes = (("hidden_size", 8), ("vocab_size", 77), ("intermediate_size", 12))
    kind = replace(kinds.KINDS["token-lm"], sizes=sizes, window=9)
    assert kinds._build_tokenizer(kind, ("a", "b")) == "words"
    assert asked == [((("a", "b"), 77), {"model_max_length": 9})]


def test_clips_are_cut_after_a_second_and_padded_to_the_longest(monkeypatch, tmp_path):
    import soundfile

    folder = tmp_path / kinds.CORPORA[kinds.SPEECH]
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    lengths = {"0_a_0": 500, "1_a_0": 8100, "2_b_1": 300, "3_a_1": 8000}
    for name, length in lengths.items():
        samples = draw.uniform(-0.5, 0.5, length)
        soundfile.write(folder / f"{name}.wav", samples, kinds.RATE)
    (folder / "other.wav").touch()
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    assert [path.stem for path in kinds._list_clips()] == list(lengths)
    extractor, train, held, collate = kinds._make_speech.__wrapped__()
    assert extractor.sampling_rate == kinds.RATE == 8000
    assert [(e["labels"], len(e["samples"])) for e in train] == [(0, 500), (1, 8000)]
    assert [(e["labels"], len(e["samples"])) for e in held] == [(2, 300), (3, 8000)]
    batch = collate(train)
    assert batch["input_values"].shape == (2, 8000)
    assert batch["attention_mask"].sum(1).tolist() == [500, 8000]
    assert batch["labels"].tolist() == [0, 1]
    first = batch["input_values"][0, :500]
    assert float(first.mean()) == pytest.approx(0, abs=1e-3)
    assert float(first.std()) == pytest.approx(1, abs=1e-2)


def test_windows_of_a_document_are_filled_one_after_the_other():
    class Letters:
        cls_token_id, sep_token_id = 1, 2

        def __call__(self, documents, **how):
            assert how == {"add_special_tokens": False, "verbose": False}
            return {"input_ids": [[*range(10, 10 + n)] for n in documents]}

    found = kinds._cut_windows([25, 7, 18, 8], Letters(), 12)
    assert [window["input_ids"] for window in found] == [
        [1, *range(10, 20), 2],
        [1, *range(20, 30), 2],
        # Five that are left of the first are too few, and seven; eight are not.
        [1, *range(10, 20), 2],
        [1, *range(20, 28), 2],
        [1, *range(10, 18), 2],
    ]


def test_a_kind_is_built_of_its_own_library_with_its_own_sizes(monkeypatch):
    monkeypatch.setattr(kinds, "make_examples", lambda _: ("p", [1], [2], "collate"))
    heads = {
        "token-lm": "BertForMaskedLM",
        "vit": "ViTForImageClassification",
        "vit-masked": "ViTForMaskedImageModeling",
        "speech-cnn": "SpeechCnnForSequenceClassification",
        "speech-masked": "Wav2Vec2ForPreTraining",
    }
    for name, head in heads.items():
        made = kinds.prepare_material(kinds.KINDS[name], 0)
        assert type(made.model).__name__ == head
        given = (made.processor, made.train, made.validation, made.collate)
        assert given == ("p", [1], [2], "collate")
        config, kind = made.model.config, kinds.KINDS[name]
        for option, value in kind.sizes:
            own = getattr(config, option)
            assert own == (list(value) if isinstance(value, tuple) else value)
        if kind.modality == kinds.TEXT:
            assert config.max_position_embeddings == kind.window
        else:
            assert config.num_labels == 10


# ---- what counts as another training ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("config.json", True),
        ("adapter_config.json", True),
        ("model-00001.safetensors", True),
        ("pytorch_model.bin", True),
        ("tokenizer.json", True),
        ("tokenizer_config.json", True),
        ("vocab.txt", True),
        ("merges.txt", True),
        ("spiece.model", True),
        ("special_tokens_map.json", True),
        ("added_tokens.json", True),
        ("README.md", False),
        ("training.json", False),
    ],
)
def test_a_checkpoint_is_its_weights_its_configuration_and_its_tokenizer(
    monkeypatch, tmp_path, name, counts
):
    monkeypatch.setattr(
        contents, "checkpoint_path", lambda given: SimpleNamespace(path=given)
    )
    (tmp_path / "config.json").write_text("{}")
    before = contents.hash_named(str(tmp_path))
    (tmp_path / name).write_text("[]")
    assert (contents.hash_named(str(tmp_path)) != before) == counts


def test_an_adapter_is_another_with_another_base(monkeypatch, tmp_path):
    monkeypatch.setattr(
        contents, "checkpoint_path", lambda given: SimpleNamespace(path=given)
    )
    for name in ("adapter", "base"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(name)
    named = {"base_model_name_or_path": str(tmp_path / "base")}
    (tmp_path / "adapter" / contents.ADAPTER).write_text(json.dumps(named))
    before = contents.hash_named(str(tmp_path / "adapter"))
    (tmp_path / "base" / "config.json").write_text("changed")
    assert contents.hash_named(str(tmp_path / "adapter")) != before


@pytest.mark.parametrize(
    ("recipe", "found"),
    [
        (ClassifierRecipe(vectors="v"), {"vectors": "hash of v"}),
        (ClassifierRecipe(vectors="random"), {}),
        (ClassifierRecipe("encoder"), {"model": "hash of encoder"}),
    ],
)
def test_a_classifier_reads_its_word_vectors_or_its_encoder(monkeypatch, recipe, found):
    monkeypatch.setattr(contents, "hash_named", lambda name: f"hash of {name}")
    assert contents.hash_read(recipe) == found


def test_a_changed_input_is_named_with_what_to_remove(tmp_path):
    noted, kept = tmp_path / "read.json", tmp_path / "model"
    noted.write_text(json.dumps({"corpus": "1"}))
    with pytest.raises(OutputError) as error:
        contents.check_noted(noted, {"corpus": "2"}, kept)
    assert str(error.value) == (
        f"expected the corpus that the model in {kept} was trained with; got other "
        f"contents. Cure: remove {kept} to train it again, or use the files of that "
        "training"
    )


def test_the_cache_is_where_the_user_says(monkeypatch, tmp_path):
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "of all"))
    assert text.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("ANISOSCOPE_CACHE")
    assert text.cache_folder() == tmp_path / "of all" / "anisoscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(text.Path, "home", lambda: tmp_path / "home")
    assert text.cache_folder() == tmp_path / "home" / ".cache" / "anisoscope"


def test_bytes_are_numbered_in_order_behind_the_special_tokens():
    tokenizer = text.build_single_bytes(model_max_length=9)
    # `!` is the first byte with a character of its own; a blank has the sign Ġ.
    assert tokenizer("!A~").input_ids == [2, 5, 5 + 32, 5 + 93, 3]
    assert len(tokenizer) == 261 and tokenizer.model_max_length == 9
    assert tokenizer.decode(tokenizer("a é").input_ids[1:-1]) == "a é"
    assert tokenizer.convert_ids_to_tokens(range(5)) == list(text.SPECIAL)


# ---- options that a recipe would not use -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name", "other"),
    [
        ({"vectors": "random", "vector_norm": 2.0}, "vector-norm", "--vectors random"),
        (
            {"vectors": "random", "vector_cosine": 0.5},
            "vector-cosine",
            "--vectors random",
        ),
        (
            {"tokens": "checkpoint", "separator": True},
            "separator",
            "--tokens checkpoint",
        ),
        ({"penalty_layers": (2,)}, "penalty-layers", "--penalty none"),
        (
            {"penalty": "entropy", "weight": 0.1, "attention": "uniform"},
            "attention",
            "--penalty entropy",
        ),
        ({"freeze_after": 3}, "freeze-after", "--attention learned"),
        (
            {"positions": "none", "position_scale": 0.5},
            "position-scale",
            "--positions none",
        ),
        (
            {"text": True, "positions": "learned"},
            "positions",
            "--text (the paper's equations have none)",
        ),
        ({"steps": 9, "epochs": 2}, "epochs", "--steps"),
        ({"steps": 9, "patience": 2}, "patience", "--steps"),
        (
            {"model": "encoder", "layers": 2},
            "layers",
            "the model encoder (only the attention-only model has it)",
        ),
        (
            {"model": "encoder", "frozen": True},
            "frozen",
            "the model encoder (only the attention-only model has it)",
        ),
        *(
            (
                {"model": "encoder", name.replace("-", "_"): value},
                name,
                "the model encoder (only the attention-only model has it)",
            )
            for name, value in {
                "vector-cosine": 0.5,
                "attention": "uniform",
                "freeze-after": 3,
                "positions": "none",
                "position-scale": 0.5,
            }.items()
        ),
    ],
)
def test_an_option_that_would_not_be_used_is_refused_with_what_excludes_it(
    given, name, other
):
    with pytest.raises(UsageError) as error:
        ClassifierRecipe(**given)
    field = name.replace("-", "_")
    value = given[field]
    assert str(error.value) == (
        f"expected no --{name} with {other}; got {value!r}. Cure: leave --{name} out"
    )
    # Without it, or with its usual value, nothing is wrong.
    usual = getattr(ClassifierRecipe, field)
    ClassifierRecipe(**given | {field: usual})


def test_published_values_fill_what_is_not_given():
    found = ClassifierRecipe(rate=0.5, patience=2).filled()
    assert (found.rate, found.decay, found.batch) == (0.5, 0.0, 64)
    assert (found.epochs, found.patience) == (50, 2)
    found = ClassifierRecipe("encoder").filled()
    assert (found.rate, found.decay) == (5e-5, 0.01)
    assert (found.batch, found.epochs, found.patience) == (64, 50, 5)
    # Nought is a value like any other.
    found = ClassifierRecipe("encoder", rate=0.0, decay=0.0).filled()
    assert (found.rate, found.decay) == (0.0, 0.0)
    found = ClassifierRecipe(steps=7).filled()
    assert (found.epochs, found.patience, found.batch) == (None, None, 64)


# ---- kinds of small models -------------------------------------------------------------------------------------------


def test_data_that_are_missing_are_named_with_the_folder_that_lacks_them(
    monkeypatch, tmp_path
):
    photographs = kinds.KINDS["vit-masked"]
    clips, digits = kinds.KINDS["speech-masked"], kinds.KINDS["speech-cnn"]
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    assert photographs.missing == f"no cifar10/test.parquet below {tmp_path}"
    assert clips.missing == f"no speech/librispeech_test_other below {tmp_path}"
    assert digits.missing == f"no speech/fsdd_test below {tmp_path}"
    assert kinds.KINDS["vit"].missing == "" == kinds.KINDS["byte-lm"].missing
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "test.parquet").touch()
    assert photographs.missing == "" != clips.missing
    monkeypatch.delenv("ANISOSCOPE_DATA")
    assert photographs.missing == "ANISOSCOPE_DATA is not set: no cifar10/test.parquet"
    limits = {name: kind.limit for name, kind in kinds.KINDS.items()}
    assert limits == {
        **dict.fromkeys(("token-lm", "byte-lm"), 60),
        **dict.fromkeys(("vit", "resnet", "convnext"), 400),
        **dict.fromkeys(("speech-transformer", "speech-cnn"), None),
        **dict.fromkeys(("vit-photographs", "vit-masked"), 400),
        "speech-masked": 5,
    }


def test_files_of_data_are_known_by_name_and_size(tmp_path):
    for name, content in (("b.wav", "1234"), ("a.wav", "12")):
        (tmp_path / name).write_text(content)
    found = kinds._describe_files([tmp_path / "b.wav", tmp_path / "a.wav"])
    assert found == ["b.wav 4", "a.wav 2"]


def test_photographs_are_trained_on_from_the_other_table(monkeypatch, tmp_path):
    monkeypatch.setenv("ANISOSCOPE_DATA", str(tmp_path))
    found = photographs_and_speech.list_files("cifar10/test.parquet")
    assert found == [tmp_path / "cifar10" / "train.parquet"]
    (tmp_path / "clips").mkdir()
    for name in ("84-121-0002", "84-121-0001", "251-136-0001"):
        (tmp_path / "clips" / f"{name}.flac").touch()
    (tmp_path / "clips" / "84-121.txt").touch()
    found = photographs_and_speech.list_files("clips")
    assert [path.stem for path in found] == [
        "251-136-0001",
        "84-121-0001",
        "84-121-0002",
    ]
    speakers = [photographs_and_speech.read_speaker(path) for path in found]
    assert speakers == ["251", "84", "84"]


@pytest.mark.parametrize(("extra", "pieces"), [(-1, 1), (0, 2), (1, 2)])
def test_a_piece_that_ends_with_its_clip_is_whole(monkeypatch, extra, pieces):
    length = 32_000
    samples = np.arange(2 * length + extra)
    monkeypatch.setattr("soundfile.read", lambda *_, **__: (samples, 16_000))
    found = list(photographs_and_speech._iter_pieces("a.flac"))
    expected = [samples[i * length : (i + 1) * length] for i in range(pieces)]
    assert len(found) == pieces
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_last_speakers_decide_when_to_stop_and_the_first_are_measured(monkeypatch):
    read = {f"{speaker}-1-{n}": (speaker, n) for speaker in "cabd" for n in (1, 2)}
    paths = [photographs_and_speech.Path(f"{name}.flac") for name in read]
    monkeypatch.setattr(photographs_and_speech, "list_files", lambda _: paths)
    monkeypatch.setattr(
        photographs_and_speech, "_iter_pieces", lambda path: [read[path.stem]]
    )
    sizes = {"conv_kernel": (10, 3), "conv_stride": (5, 2), "num_negatives": 4}
    _, train, held, _ = photographs_and_speech.make_clips("name", 1, sizes, True)
    assert [one["samples"] for one in train] == [
        *(("c", 1), ("c", 2), ("b", 1), ("b", 2)),
    ]
    assert [one["samples"] for one in held] == [("d", 1), ("d", 2)]
    frames = ((32_000 - 10) // 5 + 1 - 3) // 2 + 1
    assert {one["hidden"].shape for one in held} == {(frames,)}
    assert {one["others"].shape for one in held} == {(frames, 4)}
    assert "hidden" not in train[0]


@pytest.mark.parametrize("masked", [False, True])
def test_the_last_photographs_validate_and_six_patches_of_ten_are_hidden(
    monkeypatch, masked
):
    drawn = np.random.default_rng(0).integers(0, 256, (7, 3, 32, 32), dtype=np.uint8)
    pixels = torch.from_numpy(drawn)
    assert photographs_and_speech.VALIDATION == 1000
    monkeypatch.setattr(photographs_and_speech, "VALIDATION", 3)
    monkeypatch.setattr(photographs_and_speech, "list_files", lambda name: [name])
    monkeypatch.setattr(
        photographs_and_speech, "_read_pixels", {"name": (pixels, [*range(7)])}.get
    )
    sizes = {"image_size": 32, "patch_size": 2}
    _, train, held, collate = photographs_and_speech.make_photographs(
        "name", 5, sizes, masked
    )
    assert [e["labels"] for e in train] == [0, 1, 2, 3]
    assert [e["labels"] for e in held] == [4, 5, 6]
    batch = collate(held)
    torch.testing.assert_close(batch.pop("pixel_values"), pixels[4:] / 127.5 - 1)
    if not masked:
        assert batch.keys() == {"labels"} and batch["labels"].tolist() == [4, 5, 6]
        return
    assert batch.keys() == {"bool_masked_pos"}
    once = torch.rand(3, 256, generator=torch.Generator().manual_seed(0)) < 0.6
    assert torch.equal(batch["bool_masked_pos"], once)
    torch.manual_seed(1)
    hidden = collate(train)["bool_masked_pos"]
    torch.manual_seed(1)
    expected = torch.stack([torch.rand(256) < 0.6 for _ in train])
    assert torch.equal(hidden, expected)


def test_clips_are_scaled_and_their_hidden_frames_are_those_of_torch_s_seed(
    monkeypatch,
):
    draw = np.random.default_rng(0)
    clips = {
        f"{speaker}-1-{n}": draw.normal(3, 2, 60).astype(np.float32)
        for speaker in "ab"
        for n in (1, 2)
    }
    paths = [Path(f"{name}.flac") for name in clips]
    monkeypatch.setattr(photographs_and_speech, "list_files", lambda _: paths)
    monkeypatch.setattr(
        photographs_and_speech, "_iter_pieces", lambda path: [clips[path.stem]]
    )
    # A frame is 0.1 s: there are 20 in a piece.
    sizes = {"conv_kernel": (1600,), "conv_stride": (1600,), "num_negatives": 4}
    _, train, held, collate = photographs_and_speech.make_clips("name", 0, sizes, True)
    batch = collate(held)
    scaled = [(x - x.mean()) / x.std() for x in (clips["b-1-1"], clips["b-1-2"])]
    torch.testing.assert_close(
        batch["input_values"], torch.from_numpy(np.stack(scaled))
    )
    for row, example in enumerate(held):
        assert batch["mask_time_indices"][row].tolist() == example["hidden"].tolist()
        # Frames are counted over the whole batch.
        others = batch["sampled_negative_indices"][row].numpy()
        np.testing.assert_array_equal(others, 20 * row + example["others"])
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(collate(train)["sampled_negative_indices"])
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
    _, train, _, collate = photographs_and_speech.make_clips("name", 0, sizes, False)
    assert "mask_time_indices" not in collate(train)


def test_every_seed_of_every_kind_is_trained_by_one_recipe(monkeypatch, tmp_path):
    asked = []

    def train(kind, seed, *given):
        asked.append(given)
        return kind.name, seed

    monkeypatch.setattr(train_small, "train_or_load", train)
    recipe = train_small.SmallModelRecipe(seeds=3)
    found = train_small.train_all(recipe, ("vit", "resnet"), tmp_path, print)
    assert found == [(name, n) for name in ("vit", "resnet") for n in range(3)]
    assert asked == [(recipe, tmp_path, print)] * 6


def test_checkpoints_of_a_small_model_are_in_the_order_of_their_steps(
    monkeypatch, tmp_path
):
    def make_once(folder, *_, marker):
        for step in (100, 9, 0, 16):
            (folder / f"step-{step}").mkdir(parents=True)
        write_json(folder / marker, {"best": 16})

    monkeypatch.setattr(train_small, "make_once", make_once)
    recipe = train_small.SmallModelRecipe()
    found = train_small.train_or_load(kinds.KINDS["vit"], 0, recipe, tmp_path)
    assert (found.steps, found.best) == ((0, 9, 16, 100), 16)
    assert found.checkpoint(16) == found.folder / "step-16"


@pytest.mark.parametrize("patience", [None, 3])
@pytest.mark.parametrize("steps", [8, 80, 400])
def test_small_models_are_looked_at_eight_times_in_the_steps_of_their_kind(
    steps, patience
):
    kind = replace(kinds.KINDS["vit"], steps=160, batch=5, rate=0.5)
    found = train_small.build_fitting(kind, 7, steps, patience)
    settings = found.settings
    every = {8: 1, 80: 10, 400: 20}[steps]
    assert settings["logging_steps"] == every
    assert settings["warmup_steps"] == {8: 1, 80: 4, 400: 8}[steps]
    assert (settings["max_steps"], settings["learning_rate"]) == (steps, 0.5)
    assert (settings["seed"], settings["data_seed"]) == (7, 7)
    assert settings["per_device_train_batch_size"] == 5
    assert found.patience == patience
    if patience is None:
        powers = {1 << k for k in range(20) if 1 << k <= steps}
        assert found.evaluated == powers | {steps}
        assert settings["lr_scheduler_type"] == "linear"
    else:
        assert not found.evaluated and settings["greater_is_better"] is False
        assert (settings["eval_steps"], settings["save_steps"]) == (every, every)
        assert settings["lr_scheduler_type"] == "constant_with_warmup"


# ---- whole sentences of what is wrong with a training ----------------------------------------------------------------


def test_a_training_that_is_there_is_refused_with_what_to_do(tmp_path):
    write_training(tmp_path / "same", make_identity())
    write_training(tmp_path / "other", make_identity(corpus="d"))
    RunFolder(tmp_path / "begun" / "checkpoints").note(make_identity(corpus="d"))
    (tmp_path / "foreign" / "inner").mkdir(parents=True)
    (tmp_path / "foreign" / "inner" / "notes.txt").touch()
    another = "another training (corpus differ). Cure: choose another --output, or --overwrite"
    for name, message in {
        "same": "to be new; got a folder that already holds this same training. Cure: "
        "add --resume to go on, or --overwrite",
        "other": f"to be new or of this training; got {another}",
        "begun": f"to be new or of this training; got {another}",
        "foreign": "to be empty; got files that belong to no training run. Cure: "
        "choose another --output",
    }.items():
        folder = tmp_path / name
        with pytest.raises(OutputError) as error:
            classifier._read_finished(folder, make_identity(), resume=False)
        assert str(error.value) == f"expected {folder} {message}"


def make_texts(*, pairs=False):
    second = ("c",) if pairs else None
    texts = tuple(Example(("a", "b"), label, second) for label in (0, 1, 1))
    splits = {"train": texts, "validation": texts, "test": texts}
    return LabelledCorpus("texts", ("no", "yes"), splits)


def test_fields_that_do_not_fit_the_corpus_or_the_vectors_are_refused(monkeypatch):
    recipe = ClassifierRecipe(vectors="random", dim=8, separator=True)
    with pytest.raises(UsageError) as error:
        classifier_parts._build_attention(recipe, make_texts())
    assert str(error.value) == (
        "expected pairs of texts for --separator; got texts, which has single texts. "
        "Cure: leave --separator out"
    )
    _, tokenizer, about = classifier_parts._build_attention(
        recipe, make_texts(pairs=True)
    )
    assert about == {"source": "random", "dim": 8}
    assert "<sep>" in tokenizer.get_vocab()
    vectors = SimpleNamespace(matrix=torch.zeros(9, 6), found=3, source="v")
    monkeypatch.setattr(
        classifier_parts, "_prepare_words", lambda *_: (tokenizer, vectors)
    )
    with pytest.raises(UsageError) as error:
        classifier_parts._build_attention(
            ClassifierRecipe(vectors="v", dim=8), make_texts()
        )
    assert str(error.value) == (
        "expected --dim 6, that of the vectors; got 8. Cure: leave --dim out, or use "
        "--vectors random"
    )


@pytest.mark.parametrize("frozen", [False, True])
def test_word_vectors_are_taken_over_and_trained_unless_they_are_frozen(
    monkeypatch, frozen
):
    tokenizer = classifier_parts.build_tokenizer(make_texts(), max_length=9)
    matrix = torch.arange(6.0 * len(tokenizer)).view(len(tokenizer), 6)
    asked = []

    def read(name, words, special, **adjusted):
        asked.append((name, list(words), list(special), adjusted))
        return SimpleNamespace(matrix=matrix, found=2, source="of v")

    monkeypatch.setattr(classifier_parts, "word_vectors", read)
    recipe = ClassifierRecipe(
        vectors="v",
        vector_norm=3.0,
        vector_cosine=0.25,
        frozen=frozen,
        layers=2,
        heads=3,
        seed=7,
        attention="random",
        position_scale=0.5,
        max_length=9,
    )
    model, tokenizer, about = classifier_parts._build_attention(recipe, make_texts())
    ((name, words, special, adjusted),) = asked
    assert (name, adjusted) == ("v", {"norm": 3.0, "cosine": 0.25})
    assert words == tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    assert special == tokenizer.all_special_tokens
    embedding = model.attention_classifier.embeddings.weight
    assert torch.equal(embedding, matrix) and embedding.requires_grad != frozen
    assert about == {"found": 2, "source": "of v", "dim": 6}
    config = model.config
    assert (config.num_hidden_layers, config.num_attention_heads) == (2, 3)
    assert (config.attention, config.attention_seed) == ("random", 7)
    assert (config.position_scale, config.max_position_embeddings) == (0.5, 9)
    assert config.id2label == {0: "no", 1: "yes"}
    assert config.label2id == {"no": 0, "yes": 1}


def test_of_a_checkpoint_s_matrix_rows_without_a_token_are_left_out(monkeypatch):
    """They are no word vectors: their norms and directions counted in the mean that was asked for."""

    class Tokenizer(SimpleNamespace):
        def __len__(self):
            return 5

    asked = []

    def adjust(matrix, name, **how):
        asked.append((tuple(matrix.shape), name, how))
        matrix *= 2

    weight = torch.nn.Parameter(torch.arange(28.0).view(7, 4))
    subject = SimpleNamespace(
        name="org/m",
        model=SimpleNamespace(
            get_input_embeddings=lambda: SimpleNamespace(weight=weight)
        ),
        processor=Tokenizer(model_max_length=512, pad_token_id=3),
    )
    monkeypatch.setattr(classifier_parts, "load", {"of the hub": subject}.get)
    monkeypatch.setattr(classifier_parts, "adjust_vectors", adjust)
    recipe = ClassifierRecipe(
        tokens="checkpoint", vectors="of the hub", vector_norm=2.0, vector_cosine=0.25
    )
    tokenizer, vectors = classifier_parts._prepare_words(recipe, make_texts(), 11)
    assert tokenizer is subject.processor and tokenizer.model_max_length == 11
    assert asked == [((5, 4), "of the hub", {"norm": 2.0, "cosine": 0.25})]
    expected = 2 * torch.arange(20.0).view(5, 4)
    assert torch.equal(vectors.matrix, expected)
    assert (vectors.found, vectors.source) == (5, "org/m")
    # The checkpoint keeps its own.
    assert torch.equal(weight, torch.arange(28.0).view(7, 4))
    config = classifier_parts._configure_attention(recipe, make_texts(), tokenizer, 4)
    assert (config.vocab_size, config.pad_token_id) == (5, 3)


def test_what_is_said_of_a_classifier_s_parts_counts_frozen_weights_too():
    recipe = ClassifierRecipe(vectors="random", dim=8, frozen=True, max_length=3)
    # <cls> and three words: one too many.
    longer = tuple(Example(("a", "b", "c"), label, None) for label in (0, 1))
    corpus = make_texts()
    corpus = replace(corpus, splits=corpus.splits | {"test": longer})
    made = classifier_parts.build_parts(recipe, corpus)
    count = len(made.tokenizer)
    assert made.described == {
        "max_length": 3,
        "truncated": {"train": 0, "validation": 0, "test": 2},
        # Word vectors, the stacked projection, the one of the output, the classes.
        "parameters": 8 * count + 24 * 9 + 8 * 9 + 2 * 9,
        "vocabulary": count,
        "vectors": {"source": "random", "dim": 8},
    }
    recipe = ClassifierRecipe(vectors="random")
    _, _, about = classifier_parts._build_attention(recipe, corpus)
    assert about["dim"] == 300


def test_the_paper_s_equations_have_no_positions():
    recipe = ClassifierRecipe(vectors="random", dim=8, text=True, attention="frozen")
    model, _, _ = classifier_parts._build_attention(recipe, make_texts())
    config = model.config
    assert (config.positions, config.norm) == ("none", "layer_norm")
    assert not config.attention_bias and not config.output_projection
    # Frozen attention is learnt until it is frozen.
    assert config.attention == "learned" and config.max_position_embeddings == 1024
