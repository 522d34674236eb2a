"""Training a classifier: the attention-only model of Fosse et al. 2023 from scratch, or any encoder, fine-tuned.

<output>/config.json, model.safetensors, tokenizer files    the epoch with the lowest validation loss
<output>/training.json     written last: settings, corpus, losses, accuracies, versions, command
<output>/checkpoints/      while it is under way: what an interrupted training resumes from
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from anisoscope.data.labelled import TEST, TRAIN, VALIDATION, LabelledCorpus
from anisoscope.provenance import code_version, provenance, run_id
from anisoscope.training import classifier_folder as place
from anisoscope.training.recipe import ClassifierRecipe

Progress = Callable[[int, int], None]
"""Called after every step with steps done and steps at most."""


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
    def recipe(self) -> ClassifierRecipe:
        given = dict(self.training["recipe"])
        return ClassifierRecipe(**given | {"penalty_layers": tuple(given["penalty_layers"])})

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
    recipe: ClassifierRecipe,
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
    """The value as JSON gives it back."""
    return json.loads(json.dumps(x))


def _train(
    recipe: ClassifierRecipe, corpus: LabelledCorpus, parts: Any, checkpoints: Path, device: str, progress: Progress
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


def _arguments(recipe: ClassifierRecipe, folder: Path, device: str) -> dict[str, Any]:
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
