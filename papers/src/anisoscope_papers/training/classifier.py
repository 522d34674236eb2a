"""Train a classifier: the attention-only model of Fosse et al. 2023 from scratch, or any encoder, fine-tuned.

<output>/config.json, model.safetensors, tokenizer files    the epoch with the lowest validation loss
<output>/training.json     written last: settings, corpus, losses, accuracies, versions, command
<output>/checkpoints/      only during training: its identity, and the state to resume from
"""

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
    set_seed,
)

from anisoscope.classes.pooling import predict_classes
from anisoscope.data.labelled import TEST, TRAIN, LabelledCorpus
from anisoscope.errors import OutputError
from anisoscope.models import ports
from anisoscope.models.modes import flush_denormals
from anisoscope.progress import Progress
from anisoscope.provenance import describe_environment, json_roundtrip, make_run_id
from anisoscope.renamed import rename_described
from anisoscope.store import (
    RunFolder,
    check_output,
    clear_temporary,
    list_changed_fields,
    write_json,
)
from anisoscope_papers.origin import hash_training_code, is_code_of
from anisoscope_papers.training.classifier_parts import Parts, build_parts
from anisoscope_papers.training.contents import hash_read
from anisoscope_papers.training.entropy_penalty import EntropyPenalty
from anisoscope_papers.training.fit import BEST, Fitting, check_training_device, fit
from anisoscope_papers.training.recipe import VARIANTS, ClassifierRecipe

POOL = 50
"""Batches whose examples are sorted by length together."""


@dataclass(frozen=True)
class TrainedClassifier:
    """A trained classifier: its folder, and `training`, the content of training.json."""

    folder: Path
    training: dict[str, Any]

    def accuracy(self, split: str = TEST) -> float:
        """Return the accuracy on a split."""
        return float(self.training["results"][split]["accuracy"])

    @property
    def collapsed(self) -> bool:
        """Whether the classifier learnt nothing: its test accuracy is not above the majority rate (one-sided, 5 %)."""
        return bool(self.training["collapsed"])

    @property
    def recipe(self) -> ClassifierRecipe:
        """The recipe that the classifier was trained by."""
        return ClassifierRecipe.read(self.training["recipe"])

    def classifier(self) -> tuple[Any, Any]:
        """Load the classifier: (model in evaluation mode, tokenizer)."""
        ports.register()
        model = AutoModelForSequenceClassification.from_pretrained(self.folder)
        return model.eval(), AutoTokenizer.from_pretrained(self.folder)

    @property
    def max_length(self) -> int:
        """The number of tokens at which the classifier cuts utterances."""
        return int(self.training["max_length"])


def train_classifier(
    recipe: ClassifierRecipe,
    output: Path | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress = lambda _done, _total: None,
    corpus: LabelledCorpus | None = None,
) -> TrainedClassifier:
    """Train a classifier into `output`, or into a folder below runs/ named after the recipe.

    With `resume`, a finished training of the same recipe is returned as it is, and an interrupted one goes on. With
    `overwrite`, a finished training in the folder is kept until this one is finished. Raises Interrupted on SIGINT or
    SIGTERM, after the state was saved. `corpus`: None for the one that the recipe names.
    """
    check_training_device(device)
    recipe = recipe.filled()
    corpus = corpus or recipe.open()
    # All that the trained weights depend on. What is read by name (vectors, base
    # weights) is hashed, since a file may change under its name.
    identity = {
        "recipe": json_roundtrip(recipe.described()),
        "corpus": corpus.fingerprint,
    }
    identity |= {"read": hash_read(recipe), "code": hash_training_code(__name__)}
    folder = (
        output
        or Path("runs")
        / f"classifier-{recipe.corpus.replace('/', '-')}-{make_run_id(identity)[:8]}"
    )
    described = folder / "training.json"
    checkpoints = folder / "checkpoints"
    check_output(folder)
    # Left by a process that was killed while it wrote.
    for place in (folder, checkpoints):
        clear_temporary(place)
    if not overwrite and (done := _read_finished(folder, identity, resume=resume)):
        # State of another training is of one that is to take the place of this one.
        if RunFolder(checkpoints).identity() in (identity, None):
            shutil.rmtree(checkpoints, ignore_errors=True)
        return TrainedClassifier(folder, done)
    # Before the model is built: its weights are drawn from this seed as well.
    set_seed(recipe.seed)
    with flush_denormals():
        parts = build_parts(recipe, corpus)
        if overwrite:
            shutil.rmtree(checkpoints, ignore_errors=True)
        # So that a later start knows whose state lies here.
        RunFolder(checkpoints).note(identity)
        training = json_roundtrip(
            _train(recipe, corpus, parts, checkpoints, device, progress)
        )
        training |= {"read": identity["read"], "trained_by": identity["code"]}
    # training.json says that a training is finished: it goes before the first file of
    # the new one is written, and comes back last.
    described.unlink(missing_ok=True)
    parts.model.save_pretrained(folder)
    parts.tokenizer.save_pretrained(folder)
    write_json(described, training)
    shutil.rmtree(checkpoints, ignore_errors=True)
    return TrainedClassifier(folder, training)


def _read_finished(
    folder: Path, identity: dict[str, Any], *, resume: bool
) -> dict[str, Any] | None:
    """Return the content of training.json if the folder holds exactly this training and `resume` is set; None if it is
    free.

    OutputError if the folder holds something else, or this training without `resume`. `identity`: everything the
    training depends on.
    """
    training = _read_training(folder / "training.json")
    done = _complete_identity(_identify_training(training), identity)
    begun = _complete_identity(RunFolder(folder / "checkpoints").identity(), identity)
    # This training, finished or begun.
    if identity in (done, begun):
        if not resume:
            cure = "add --resume to go on, or --overwrite"
            raise OutputError(
                f"{folder} to be new",
                "a folder that already holds this same training",
                cure,
            )
        return training if identity == done else None
    if training or begun:
        # The first fields that differ, in the message: which option was another one?
        other = done if training else begun
        differ = ", ".join(list_changed_fields(identity, other or {})[:6])
        cure = "choose another --output, or --overwrite"
        raise OutputError(
            f"{folder} to be new or of this training",
            f"another training ({differ} differ)",
            cure,
        )
    # Folders alone may be ours, if we were killed before the first file.
    if any(not path.is_dir() for path in folder.rglob("*")):
        raise OutputError(
            f"{folder} to be empty",
            "files that belong to no training run",
            "choose another --output",
        )
    return None


def _read_training(path: Path) -> dict[str, Any]:
    """Read a training.json, with today's names; empty if there is none. OutputError if it is damaged."""
    if not path.exists():
        return {}
    try:
        return dict(rename_described(json.loads(path.read_text())))
    except ValueError as error:
        raise OutputError(
            f"JSON in {path}", str(error), "train again with --overwrite"
        ) from error


def _identify_training(training: dict[str, Any]) -> dict[str, Any]:
    """Return the identity of a finished training from its training.json."""
    version = training.get("code", {}).get("version")
    return {
        "recipe": training.get("recipe"),
        "corpus": training.get("corpus", {}).get("fingerprint"),
        "read": training.get("read"),
        # Older trainings recorded only the version of the program.
        "code": training.get("trained_by", version),
    }


def _complete_identity(
    noted: dict[str, Any] | None, identity: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the recorded identity of a training (`noted`), made comparable with the present one (`identity`).

    Older programs did not record hashes of what was read: they are taken from `identity`. So is the code, if the
    recorded one counts as equal.
    """
    if not noted:
        return noted
    completed = dict(noted)
    if noted.get("read") is None:
        completed["read"] = identity["read"]
    if is_code_of(noted.get("code"), identity["code"]):
        completed["code"] = identity["code"]
    return completed


def _build_trainer_settings(recipe: ClassifierRecipe, device: str) -> dict[str, Any]:
    """Return {keyword: value} of `TrainingArguments` for this recipe."""
    settings = BEST | {
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "logging_strategy": "epoch",
        "per_device_train_batch_size": recipe.batch,
        # No gradients are kept in evaluation, so that a batch may be larger.
        "per_device_eval_batch_size": 4 * (recipe.batch or 1),
        "learning_rate": recipe.rate,
        "weight_decay": recipe.decay,
        "warmup_steps": recipe.warmup,
        "max_grad_norm": recipe.clip,
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "use_cpu": device == "cpu",
    }
    # A number of steps is exact: the last weights are kept, and not those of the best
    # epoch.
    if recipe.steps is None:
        settings["num_train_epochs"] = recipe.epochs
    else:
        settings |= {"max_steps": recipe.steps, "load_best_model_at_end": False}
    return settings


def _train(
    recipe: ClassifierRecipe,
    corpus: LabelledCorpus,
    parts: Parts,
    checkpoints: Path,
    device: str,
    progress: Progress,
) -> dict[str, Any]:
    """Train, leave the best epoch in `parts.model`, and test it; return the content of training.json.

    The optimiser is AdamW; without weight decay it is Adam. `checkpoints`: the folder of the state to resume from.
    """
    history = fit(
        parts.material,
        _build_fitting(recipe, parts, device),
        lambda step, last, _model: progress(step, last),
        checkpoints,
    )
    results = {}
    for split, encoded in parts.encoded.items():
        if split != TRAIN:
            results[split] = measure_result(
                corpus, split, predict_classes(parts.model, encoded, parts.pad_id)
            )
    loss = _number_epochs(history["loss"])
    held = _number_epochs(history["validation_loss"])
    # Which epoch `fit` has loaded. A fixed number of steps has one evaluation, at its
    # end.
    best_epoch, _loss = min(held, key=lambda item: item[1])
    kept_step = recipe.steps
    # Epochs count from 1, the list from 0.
    if kept_step is None:
        kept_step = history["validation_loss"][best_epoch - 1][0]
    return {
        "recipe": recipe.described(),
        "corpus": corpus.described(),
        **parts.described,
        "steps": history["steps"],
        "epochs": len(held),
        "best_epoch": best_epoch,
        "kept_step": kept_step,
        "loss": loss,
        "validation_loss": held,
        "seconds": history["seconds"],
        "results": results,
        "collapsed": results[TEST]["accuracy"] <= results[TEST]["above_chance"],
        **describe_environment(),
    }


def _build_fitting(recipe: ClassifierRecipe, parts: Parts, device: str) -> Fitting:
    """Return how a recipe is trained: penalty, order of the examples, what is frozen, and when it is evaluated.

    Attention rows other than [CLS]'s are computed only if the penalty reads them: this is set in `parts.model`.
    """
    # Without a penalty it has weight 0, and its form does not matter.
    variant = VARIANTS[0] if recipe.penalty == "none" else recipe.penalty
    penalty = EntropyPenalty(
        recipe.weight, variant=variant, layers=recipe.penalty_layers
    )
    if recipe.is_attention:
        # Column sums need every row of attention. The head and the penalty on a row
        # read that of [CLS] alone, in validation too.
        columns = penalty.weight and penalty.variant == "entropy-columns"
        parts.model.attention_classifier.row_only = "never" if columns else "always"
    order = None
    if recipe.buckets:
        order = Buckets(parts.encoded[TRAIN].lengths, recipe.batch or 1, recipe.seed)
    freezing: tuple[TrainerCallback, ...] = ()
    if recipe.attention == "frozen":
        freezing = (FrozenAttention(recipe.freeze_after),)
    # A fixed number of steps is not stopped early, and evaluated only at its end.
    patience = recipe.patience
    evaluated: frozenset[int] = frozenset()
    if recipe.steps is not None:
        patience = None
        evaluated = frozenset({recipe.steps})
    return Fitting(
        _build_trainer_settings(recipe, device),
        patience=patience,
        evaluated=evaluated,
        penalty=penalty,
        order=order,
        callbacks=freezing,
    )


def _number_epochs(losses: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return (epoch, loss) for each (step, loss), counted from 1."""
    return [(epoch, loss) for epoch, (_, loss) in enumerate(losses, 1)]


class FrozenAttention(TrainerCallback):
    """Freeze attention after some steps (None: after the first epoch): queries and keys of every layer keep their
    weights.

    No gradient passes through attention weights. Scores still depend on word vectors and on layers below, whose values
    go on training.
    """

    def __init__(self, after: int | None = None) -> None:
        """Freeze after this number of steps; None: after the first epoch."""
        self.after = after

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Freeze attention at once if the training starts, or goes on, at or after the step of freezing."""
        self.kept: list[Tensor] = []
        self._freeze(given["model"], state)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Undo what momentum and weight decay did to frozen weights; freeze attention if its step is reached."""
        with torch.no_grad():
            # Nothing is kept before the step of freezing: then the shorter list is
            # empty.
            for now, before in zip(
                self._parameters(given["model"]), self.kept, strict=False
            ):
                now.copy_(before)  # momentum and decay move what has no gradient
        self._freeze(given["model"], state)

    def _freeze(self, model: Any, state: Any) -> None:
        """If the step is reached, keep a copy of the weights to freeze and stop the gradient through attention
        weights. `state`: the trainer's, which counts steps and epochs.
        """
        reached = (
            (state.epoch or 0) >= 1
            if self.after is None
            else state.global_step >= self.after
        )
        if self.kept or not reached:
            return
        self.kept = [part.detach().clone() for part in self._parameters(model)]
        for block in model.attention_classifier.blocks:
            block.attention.detach = True

    def _parameters(self, model: Any) -> list[Tensor]:
        """Return the parameters that make queries and keys: two thirds of weight and bias of each layer's stacked
        projection.
        """
        # The stacked projection makes queries, keys and values, in this order.
        inner = [block.attention.in_proj for block in model.attention_classifier.blocks]
        return [p[: 2 * len(p) // 3] for linear in inner for p in linear.parameters()]


class Buckets(Sampler[int]):
    """A sampler that yields indices of utterances so that each batch has similar lengths.

    Batches are formed by length in pools of `POOL` batches, shuffled by seed and epoch. An incomplete batch comes last.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        """Sample utterances of these numbers of tokens in batches of `batch`."""
        self.lengths, self.batch, self.seed, self.epoch = (
            torch.tensor(lengths),
            batch,
            seed,
            0,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the epoch, on which the order of utterances depends."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of one epoch, batch after batch."""
        # A large prime apart, so that no epoch of one seed has the order of an epoch of
        # another.
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        # The rest, less than a batch, is not sorted in: all other batches are full.
        whole = len(order) // self.batch * self.batch
        pools = torch.split(order[:whole], self.batch * POOL)
        batches: list[Tensor] = []
        for pool in pools:
            batches.extend(
                torch.split(pool[self.lengths[pool].argsort(stable=True)], self.batch)
            )
        # Sorted pools would train from short to long texts.
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield from batches[i].tolist()
        yield from order[whole:].tolist()


def measure_result(
    corpus: LabelledCorpus, split: str, predicted: list[int]
) -> dict[str, Any]:
    """Return how good the class indices `predicted` [utterance] are on a split.

    Keys: `n`, `accuracy`, `majority` (rate), `by_class` (accuracy of each), `predicted` (number of predictions of
    each), and `above_chance`, the largest accuracy that is not significantly above the majority rate (one-sided, 5 %).
    """
    truth = [e.label for e in corpus.splits[split]]
    n = len(truth)
    majority = corpus.majority(split)
    right = Counter(t for t, p in zip(truth, predicted, strict=True) if t == p)
    count = Counter(truth)
    named = Counter(predicted)
    return {
        "n": n,
        "accuracy": sum(right.values()) / n,
        "majority": majority,
        # One-sided 5 %, normal approximation of a binomial share.
        "above_chance": majority + 1.645 * math.sqrt(majority * (1 - majority) / n),
        # A class without utterances in this split has no accuracy.
        "by_class": {
            label: right[i] / count[i]
            for i, label in enumerate(corpus.labels)
            if count[i]
        },
        "predicted": {label: named[i] for i, label in enumerate(corpus.labels)},
    }
