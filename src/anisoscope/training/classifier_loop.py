"""The loop of a classifier's training: transformers' Trainer with the penalty in its loss and batches by length."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from anisoscope.data.encoding import Encoded, collated
from anisoscope.errors import DivergedError
from anisoscope.models.modes import evaluating
from anisoscope.training.checkpoints import FaithfulTrainer
from anisoscope.training.entropy_penalty import EntropyPenalty

OnStep = Callable[[int, int], None]
POOL = 50
"""Batches whose examples are sorted by length together."""


EVERY_EPOCH: dict[str, Any] = {
    "eval_strategy": "epoch",
    "save_strategy": "epoch",
    "logging_strategy": "epoch",
    "save_total_limit": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
    "restore_callback_states_from_checkpoint": True,
    "optim": "adamw_torch_fused",
    "remove_unused_columns": False,
    "prediction_loss_only": True,
    "report_to": [],
    "disable_tqdm": True,
}
"""Validated and saved after every epoch; the best one is kept."""


class Buckets(Sampler[int]):
    """Indices in batches of similar length: examples are shuffled, sorted within pools of `POOL` batches, and the
    batches shuffled; a function of seed and epoch alone. The one short batch comes last.
    """

    def __init__(self, lengths: Sequence[int], batch: int, seed: int) -> None:
        self.lengths, self.batch, self.seed, self.epoch = torch.tensor(lengths), batch, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self.lengths), generator=generator)
        whole = len(order) // self.batch * self.batch
        pools = torch.split(order[:whole], self.batch * POOL)
        batches = [b for pool in pools for b in torch.split(pool[self.lengths[pool].argsort(stable=True)], self.batch)]
        for i in torch.randperm(len(batches), generator=generator).tolist():
            yield from batches[i].tolist()
        yield from order[whole:].tolist()


class ClassifierTrainer(FaithfulTrainer):
    """Cross-entropy plus penalty, in training and in validation. A loss that is not finite ends it with its step."""

    def __init__(self, *, penalty: EntropyPenalty, sampler: Sampler[int] | None, **given: Any) -> None:
        super().__init__(**given)
        self.penalty, self.sampler = penalty, sampler
        self.model_accepts_loss_kwargs = False

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        return self.sampler if self.sampler is not None else super()._get_train_sampler(train_dataset)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:  # noqa: ARG002 (a whole pass, for the log only)
        return grad_norm

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,  # noqa: ARG002 (means over utterances)
    ) -> Any:
        if self.penalty.weight == 0:
            outputs = model(**inputs)
            loss = outputs.loss
        else:
            with self.penalty.watching(model, inputs["attention_mask"]) as watch:
                outputs = model(**inputs)
            loss = outputs.loss + self.penalty.value(watch)
        self._check(loss)
        return (loss, outputs) if return_outputs else loss

    def _check(self, loss: Tensor) -> None:
        if not math.isfinite(loss.item()):
            got = f"{loss.item()} at step {self.state.global_step}"
            cure = "lower --rate, or add --warmup 100 --clip 1; the last checkpoint is kept as it was"
            raise DivergedError("a training whose loss stays finite", f"a loss of {got}", cure)


class _Watching(TrainerCallback):
    """Hands every step on, and logs the `seconds` of training so far, those of earlier sessions among them."""

    def __init__(self, on_step: OnStep) -> None:
        self.on_step, self.started = on_step, time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        before = state.log_history[-1].get("seconds", 0.0) if state.log_history else 0.0
        self.started = time.monotonic() - before

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        state.log_history[-1]["seconds"] = time.monotonic() - self.started

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.on_step(state.global_step, state.max_steps)


def trainer_of(
    model: Any,
    train: Encoded,
    validation: Encoded,
    pad_id: int,
    penalty: EntropyPenalty,
    settings: dict[str, Any],
    *,
    patience: int,
    buckets: bool,
    on_step: OnStep,
) -> ClassifierTrainer:
    """The trainer of one model. `settings`: fields of `TrainingArguments`, beside those of `EVERY_EPOCH`; without
    evaluation `patience` is not used.
    """
    arguments = TrainingArguments(**EVERY_EPOCH | settings)
    arguments._n_gpu = min(arguments.n_gpu, 1)  # else a batch on each of the machine's devices
    sampler = Buckets(train.lengths, arguments.per_device_train_batch_size, arguments.seed) if buckets else None
    in_order = sorted(validation.rows, key=lambda row: len(row["input_ids"]))
    trainer = ClassifierTrainer(
        penalty=penalty,
        sampler=sampler,
        model=model,
        args=arguments,
        data_collator=lambda rows: collated(rows, pad_id),
        train_dataset=train.rows,
        eval_dataset=in_order,
        callbacks=[_Watching(on_step)],
    )
    trainer.pop_callback(PrinterCallback)
    if arguments.load_best_model_at_end:
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=patience))
    return trainer


def last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint of an interrupted training."""
    found = [path for path in folder.glob("checkpoint-*") if (path / "trainer_state.json").exists()]
    return str(max(found, key=lambda path: int(path.name.rpartition("-")[2]))) if found else None


@torch.no_grad()
def predicted(model: Any, encoded: Encoded, pad_id: int, batch: int = 256) -> list[int]:
    """The class of every example, in order."""
    order = sorted(range(len(encoded)), key=lambda i: len(encoded.rows[i]["input_ids"]))
    device = next(model.parameters()).device
    found = [0] * len(encoded)
    for first in range(0, len(order), batch):
        part = order[first : first + batch]
        inputs = collated([encoded.rows[i] for i in part], pad_id)
        inputs.pop("labels")
        with evaluating(model):
            logits = model(**{name: value.to(device) for name, value in inputs.items()}).logits
        for i, label in zip(part, logits.argmax(-1).tolist(), strict=True):
            found[i] = label
    return found
