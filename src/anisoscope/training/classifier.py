"""Training a classifier: the attention-only model of Fosse et al. 2023 from scratch, or any encoder, fine-tuned.

<output>/config.json, model.safetensors, tokenizer files    the epoch with the lowest validation loss
<output>/training.json     written last: settings, corpus, losses, accuracies, versions, command
<output>/checkpoints/      while it is under way: what an interrupted training resumes from
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anisoscope.data.labelled import TEST, TRAIN, VALIDATION, LabelledCorpus, open_labelled
from anisoscope.errors import UsageError
from anisoscope.models.vectors import RANDOM
from anisoscope.provenance import code_version, provenance, run_id
from anisoscope.training import classifier_folder as place
from anisoscope.training.entropy_penalty import VARIANTS, EntropyPenalty

ATTENTION = "attention"
PUBLISHED = {
    True: {"rate": 1e-3, "decay": 0.0, "batch": 64, "epochs": 50, "patience": 5},
    False: {"rate": 5e-5, "decay": 0.01, "batch": 64, "epochs": 50, "patience": 5},
}
"""What the authors' code uses: for the attention-only model (True), and for BERT (False)."""

OF_ATTENTION = ("layers", "heads", "dim", "text", "vectors", "vector_norm", "frozen", "tokens", "separator")
"""Fields that only the attention-only model uses."""

Progress = Callable[[int, int], None]
"""Called after every step with steps done and steps at most."""


@dataclass(frozen=True)
class Recipe:
    """How a classifier is trained. Everything here is part of its identity. None: the published value, or see there.

    model        `attention`, or any checkpoint that transformers knows as a sequence classifier
    corpus, columns, limit     see `data.classification.open_labelled`; `split_seed`: of splits the corpus does not have
    layers, heads, dim         of the attention-only model; dim: that of the vectors, else 300
    text         the paper's equations instead of its code (`attention_classifier.PAPER_TEXT`)
    vectors      `random`, a file of vectors, or a checkpoint; `vector_norm`: their mean norm; `frozen`: not trained
    tokens       `paper` (words of the training split), or `checkpoint` (the tokenizer of `vectors`, whole matrix)
    separator    `<sep>` between the texts of a pair, as in the paper's text
    penalty      `none`, `entropy` or `entropy-columns`, with `weight` λ, on `penalty_layers` (from 1; empty: all)
    warmup       steps; `clip`: largest gradient norm, 0: none; rate is constant after warm-up
    """

    model: str = ATTENTION
    corpus: str = "planted"
    columns: Mapping[str, str] | None = None
    limit: int | None = None
    layers: int = 1
    heads: int = 1
    dim: int | None = None
    text: bool = False
    vectors: str = "builtin:minilm"
    vector_norm: float | None = None
    frozen: bool = False
    tokens: str = "paper"
    separator: bool = False
    penalty: str = "none"
    weight: float = 0.0
    penalty_layers: tuple[int, ...] = (1,)
    rate: float | None = None
    decay: float | None = None
    batch: int | None = None
    epochs: int | None = None
    patience: int | None = None
    warmup: int = 0
    clip: float = 0.0
    buckets: bool = True
    max_length: int | None = None
    seed: int = 0
    split_seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("layers", 1), ("heads", 1), ("batch", 1), ("epochs", 1), ("patience", 1), ("warmup", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{name} of at least {least}", str(value), f"raise --{name}")
        for name in ("rate", "decay", "clip"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"a finite {name} of at least 0", str(value), f"change --{name}")
        norm = self.vector_norm
        if norm is not None and not (math.isfinite(norm) and norm > 0):
            raise UsageError("a finite vector norm above 0", str(norm), "change --vector-norm")
        if self.penalty != "none":
            self.entropy_penalty()
        elif self.weight != 0:
            raise UsageError(f"a penalty for --weight {self.weight}", "none", f"add --penalty {VARIANTS[0]}")
        self._refuse_unused()

    def _refuse_unused(self) -> None:
        """A UsageError where an option is set that this training does not use."""
        own = f"the model {self.model} (only the attention-only model has it)"
        unused = [] if self.is_attention else [(name, own) for name in OF_ATTENTION]
        if self.vectors == RANDOM:
            unused.append(("vector_norm", "--vectors random"))
        if self.tokens == "checkpoint":
            unused.append(("separator", "--tokens checkpoint"))
        if self.penalty == "none":
            unused.append(("penalty_layers", "--penalty none"))
        for name, other in unused:
            value, option = getattr(self, name), f"--{name.replace('_', '-')}"
            if value != getattr(Recipe, name):
                raise UsageError(f"no {option} with {other}", repr(value), f"leave {option} out")

    @property
    def is_attention(self) -> bool:
        return self.model == ATTENTION

    def entropy_penalty(self) -> EntropyPenalty:
        if self.penalty == "none":
            return EntropyPenalty(0.0)
        return EntropyPenalty(self.weight, variant=self.penalty, layers=self.penalty_layers)

    def filled(self) -> "Recipe":
        """With the published values in place of None."""
        published: dict[str, Any] = PUBLISHED[self.is_attention]
        return replace(self, **{name: value for name, value in published.items() if getattr(self, name) is None})

    def open(self) -> LabelledCorpus:
        """The corpus it trains on."""
        return open_labelled(self.corpus, columns=self.columns, seed=self.split_seed, limit=self.limit)


@dataclass(frozen=True)
class TrainedClassifier:
    """A finished training: its folder, and `training`, the content of training.json."""

    folder: Path
    training: dict[str, Any]

    def accuracy(self, split: str = TEST) -> float:
        return float(self.training["results"][split]["accuracy"])

    @property
    def collapsed(self) -> bool:
        """Whether its accuracy on the test split is not above the majority rate (one-sided, 5 %)."""
        return bool(self.training["collapsed"])

    @property
    def recipe(self) -> Recipe:
        given = dict(self.training["recipe"])
        return Recipe(**given | {"penalty_layers": tuple(given["penalty_layers"])})

    def classifier(self) -> tuple[Any, Any]:
        """(model with its head in evaluation mode, tokenizer)."""
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from anisoscope.models import ports

        ports.register()
        model = AutoModelForSequenceClassification.from_pretrained(self.folder)
        return model.eval(), AutoTokenizer.from_pretrained(self.folder)

    @property
    def max_length(self) -> int:
        return int(self.training["max_length"])


def train_classifier(
    recipe: Recipe,
    output: Path | None = None,
    *,
    root: Path = Path("runs"),
    resume: bool = False,
    overwrite: bool = False,
    device: str = "cpu",
    progress: Progress = lambda _done, _total: None,
    corpus: LabelledCorpus | None = None,
) -> TrainedClassifier:
    """Train into `output`, or a folder below `root` named after the recipe. With `resume` a finished training of the
    same recipe is returned as it is, and an interrupted one goes on at its last epoch. With `overwrite` a finished
    training in the folder is kept until this one is finished.
    """
    from transformers import set_seed

    from anisoscope.training.checkpoints import check_device
    from anisoscope.training.classifier_parts import parts_of
    from anisoscope.training.denormals import flushed

    check_device(device)

    recipe = recipe.filled()
    corpus = corpus or recipe.open()
    identity = {"recipe": _plain(asdict(recipe)), "corpus": corpus.fingerprint, "code": code_version()["version"]}
    folder = output or root / f"classifier-{recipe.corpus.replace('/', '-')}-{run_id(identity)[:8]}"
    finished = place.finished(folder, identity, resume=resume, overwrite=overwrite)
    if finished is not None:
        return TrainedClassifier(folder, finished)
    set_seed(recipe.seed)
    with flushed():
        parts = parts_of(recipe, corpus)
        place.begin(folder, identity, overwrite=overwrite)
        training = _plain(_train(recipe, corpus, parts, folder / "checkpoints", device, progress))
    place.finish(folder, identity, training, (parts.model, parts.tokenizer))
    return TrainedClassifier(folder, training)


def _plain(x: Any) -> Any:
    """As JSON gives it back."""
    return json.loads(json.dumps(x))


def _train(
    recipe: Recipe, corpus: LabelledCorpus, parts: Any, checkpoints: Path, device: str, progress: Progress
) -> dict[str, Any]:
    """Train, leave the best epoch in `parts.model`, test; the content of training.json."""
    from transformers.utils import logging

    from anisoscope.training import classifier_loop as loop

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    penalty = recipe.entropy_penalty()
    if recipe.is_attention:
        columns = penalty.weight and penalty.variant == "entropy-columns"
        parts.model.attention_classifier.row_only = "never" if columns else "always"
    trainer = loop.trainer_of(
        parts.model,
        parts.encoded[TRAIN],
        parts.encoded[VALIDATION],
        parts.pad_id,
        penalty,
        _arguments(recipe, checkpoints, device),
        patience=recipe.patience or 1,
        buckets=recipe.buckets,
        on_step=progress,
    )
    trainer.train(resume_from_checkpoint=loop.last_checkpoint(checkpoints))
    parts.model.to("cpu").eval()
    found = {
        s: loop.predicted(parts.model, encoded, parts.pad_id) for s, encoded in parts.encoded.items() if s != TRAIN
    }
    results = {split: result(corpus, split, labels) for split, labels in found.items()}
    return {
        "recipe": asdict(recipe),
        "corpus": corpus.described(),
        **parts.described,
        **_history(trainer.state),
        "results": results,
        "collapsed": results[TEST]["accuracy"] <= results[TEST]["above_chance"],
        **provenance(),
    }


def _arguments(recipe: Recipe, folder: Path, device: str) -> dict[str, Any]:
    """Fields of `TrainingArguments`. Without decay AdamW is Adam."""
    return {
        "output_dir": str(folder),
        "num_train_epochs": recipe.epochs,
        "per_device_train_batch_size": recipe.batch,
        "per_device_eval_batch_size": 4 * (recipe.batch or 1),
        "learning_rate": recipe.rate,
        "weight_decay": recipe.decay,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": recipe.warmup,
        "max_grad_norm": recipe.clip,
        "seed": recipe.seed,
        "data_seed": recipe.seed,
        "use_cpu": device == "cpu",
    }


def _history(state: Any) -> dict[str, Any]:
    """Losses by epoch, steps, which epoch was kept, and the seconds of all sessions (but for work that was lost)."""
    log = state.log_history
    held = [(round(entry["epoch"]), entry["eval_loss"]) for entry in log if "eval_loss" in entry]
    return {
        "steps": state.global_step,
        "epochs": len(held),
        "best_epoch": min(held, key=lambda item: item[1])[0],
        "loss": [(round(entry["epoch"]), entry["loss"]) for entry in log if "loss" in entry],
        "validation_loss": held,
        "seconds": round(log[-1]["seconds"], 2),
    }


def result(corpus: LabelledCorpus, split: str, predicted: list[int]) -> dict[str, Any]:
    """Accuracy beside the majority rate, and the largest accuracy that is not above it (one-sided, 5 %)."""
    truth = [e.label for e in corpus.splits[split]]
    n, majority = len(truth), corpus.majority(split)
    right = Counter(t for t, p in zip(truth, predicted, strict=True) if t == p)
    count, named = Counter(truth), Counter(predicted)
    return {
        "n": n,
        "accuracy": sum(right.values()) / n,
        "majority": majority,
        "above_chance": majority + 1.645 * math.sqrt(majority * (1 - majority) / n),
        "by_class": {label: right[i] / count[i] for i, label in enumerate(corpus.labels) if count[i]},
        "predicted": {label: named[i] for i, label in enumerate(corpus.labels)},
    }
