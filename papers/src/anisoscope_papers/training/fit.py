"""Train with transformers' Trainer, to a last step or to the lowest validation loss.

A resumed training gives bit for bit the same result as an uninterrupted one.
"""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback, TrainerState
from transformers.utils import logging

from anisoscope.errors import DivergedError, Interrupted, OutputError, UsageError
from anisoscope.measure.distributed import rank_and_world
from anisoscope.models.devices import device_of
from anisoscope.models.modes import flush_denormals
from anisoscope.progress import deferred_signals
from anisoscope_papers.training.entropy_penalty import EntropyPenalty

OnStep = Callable[[int, int, Any], None]
"""Called after every step with its number, the last step's (at most), and the model."""
SAVE_SECONDS = 120.0
"""Seconds between two states to go on from."""
AGREED = 10
"""Steps after which several processes agree whether to save or to stop."""
UNFINISHED = "unfinished"
"""Key in a saved state of the seconds so far, and of the losses that the next entry of the log is the mean of."""

# What the Trainer would do otherwise and must not: drop columns that it does not know,
# keep logits of the evaluation, and hide a loss that is NaN from its log.
COMMON: dict[str, Any] = {
    "optim": "adamw_torch_fused",
    "remove_unused_columns": False,
    "prediction_loss_only": True,
    "logging_nan_inf_filter": False,
    "save_total_limit": 1,
    "ddp_find_unused_parameters": False,
    "report_to": [],
    "save_strategy": "no",
    "weight_decay": 0.01,
    "max_grad_norm": 1.0,
    "disable_tqdm": True,
}
BEST: dict[str, Any] = {
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": False,
    "lr_scheduler_type": "constant_with_warmup",
}
"""Settings that all trainings share unless they say otherwise; settings of those that keep the best evaluation."""


@dataclass(frozen=True)
class Material:
    """What a training needs: a model, its processor (saved with it), examples, and a function that makes a batch."""

    model: Any
    processor: Any
    train: Any
    validation: Any
    collate: Callable[[list[Any]], dict[str, Any]]


@dataclass(frozen=True)
class Fitting:
    """Settings of the training loop.

    settings    fields of `TrainingArguments`, in addition to the `COMMON` ones
    patience    evaluations without a lower validation loss that end the training
    evaluated   steps after which it is evaluated, whatever the settings say
    share       step → share of the learning rate; none: as the settings say
    penalty     added to the loss, which is then a mean over utterances
    order       the order of the examples; none: as the settings say
    callbacks   further callbacks of the Trainer
    """

    settings: Mapping[str, Any]
    patience: int | None = None
    evaluated: frozenset[int] = frozenset()
    share: Callable[[int], float] | None = None
    penalty: EntropyPenalty | None = None
    order: Sampler[int] | None = None
    callbacks: tuple[TrainerCallback, ...] = ()


def check_training_device(name: str) -> None:
    """Raise ModelError if the device `name` is missing, UsageError if it names one card (cuda:1), which the Trainer
    does not choose.
    """
    if device_of(name).index is not None:
        raise UsageError(
            "a kind of device, cpu or cuda",
            repr(name),
            "choose the GPU with CUDA_VISIBLE_DEVICES",
        )


def keep(folder: Path, *parts: Any) -> None:
    """Save model and processor (`parts`) in a folder, complete or not at all, by one process; an existing folder
    stays.
    """
    if rank_and_world()[0] or folder.exists():
        return
    temporary = folder.with_name(f".{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    for part in parts:
        part.save_pretrained(temporary)
    temporary.rename(folder)


def fit(
    made: Material, how: Fitting, on_step: OnStep, folder: Path | None = None
) -> dict[str, Any]:
    """Train a model in place; return {"steps", "seconds", "loss", "validation_loss"}, the losses as (step, loss).

    On SIGINT or SIGTERM it saves its state in `folder` and raises Interrupted. DivergedError if the loss is not finite;
    OutputError on a full disk.

    made      the model, its processor and its examples
    how       settings of the training loop
    on_step   called with (step, last step, model) after every step
    folder    holds the state, from which an interrupted training resumes; None: no state is saved
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # tied weights are no missing ones
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with (
        tempfile.TemporaryDirectory() as scratch,
        deferred_signals() as stopped,
        flush_denormals(),
    ):
        trainer = FittingTrainer(made, how, on_step, folder or Path(scratch))
        trainer.add_callback(_Following(trainer, stopped, resumable=folder is not None))
        # None if nothing was saved: then the training begins at step 0.
        checkpoint, state = _find_last_state(trainer.folder)
        try:
            # It had ended, and was not yet recorded.
            if how.patience is not None and _count_stale(state) >= how.patience:
                trainer.state = state
                trainer._load_from_checkpoint(
                    str(trainer.folder / f"checkpoint-{state.best_global_step}")
                )
            else:
                trainer.train(resume_from_checkpoint=checkpoint)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise _explain_error(error, trainer.folder) from error
    # Whoever asked for the training saves or measures the model next, on any device.
    made.model.to("cpu").eval()
    log = trainer.state.log_history
    return {
        "steps": trainer.state.global_step,
        "seconds": round(trainer.seconds, 2),
        "loss": [(entry["step"], entry["loss"]) for entry in log if "loss" in entry],
        "validation_loss": [
            (entry["step"], entry["eval_loss"]) for entry in log if "eval_loss" in entry
        ],
    }


def _find_last_state(folder: Path) -> tuple[str | None, TrainerState]:
    """Return (path, state) of the newest complete checkpoint in a folder; (None, an empty state) if there is none."""
    # By number, newest first: as text, checkpoint-1000 would come before
    # checkpoint-200.
    for path in sorted(
        folder.glob("checkpoint-*"), key=lambda path: -int(path.name.rpartition("-")[2])
    ):
        try:
            return str(path), TrainerState.load_from_json(
                str(path / "trainer_state.json")
            )
        except (OSError, ValueError):  # killed while it was written
            continue
    return None, TrainerState()


def _count_stale(state: TrainerState) -> int:
    """Return how many evaluations came after the one with the lowest loss."""
    losses = [entry["eval_loss"] for entry in state.log_history if "eval_loss" in entry]
    if losses:
        return len(losses) - 1 - losses.index(min(losses))
    return 0


def _explain_error(error: Exception, folder: Path) -> Exception:
    """Return an OutputError if the error means a full disk (it reaches us in three forms); else the error itself."""
    text = " ".join(str(error).split())
    # An OSError of Python, an error of safetensors, or a RuntimeError in torch's words.
    disk = (
        isinstance(error, OSError | SafetensorError)
        or "file write failed" in text
        or "unexpected pos" in text
    )
    cure = "free space; the training stays resumable (--resume)"
    if disk:
        return OutputError(f"to write checkpoints into {folder}", text[:200], cure)
    return error


class FittingTrainer(Trainer):
    """transformers' Trainer with a penalty, an order of examples and a step callback.

    It loads weights by `from_pretrained`, since the library's way skips weights saved under other names.
    """

    def __init__(
        self, made: Material, how: Fitting, on_step: OnStep, folder: Path
    ) -> None:
        """Prepare a training.

        made      the model, its processor and its examples
        how       settings of the training loop
        on_step   called with (step, last step, model) after every step
        folder    holds the state
        """
        self.how, self.on_step, self.folder, self.started = (
            how,
            on_step,
            folder.absolute(),
            time.monotonic(),
        )
        arguments = TrainingArguments(
            **COMMON | dict(how.settings), output_dir=str(self.folder)
        )
        # Otherwise each of the machine's devices would get a batch.
        arguments._n_gpu = min(arguments.n_gpu, 1)
        super().__init__(
            model=made.model,
            args=arguments,
            data_collator=made.collate,
            train_dataset=made.train,
            eval_dataset=made.validation,
        )
        # Also of a model whose examples have no labels, as of masked patches.
        self.can_return_loss = True
        self.pop_callback(PrinterCallback)
        for callback in how.callbacks:
            self.add_callback(callback)
        # The loss must be a mean over the utterances of a batch, as the penalty is.
        # Otherwise the Trainer may ask the model for a sum, divided by the items of a
        # whole step.
        if how.penalty is not None:
            self.model_accepts_loss_kwargs = False

    @property
    def seconds(self) -> float:
        """Seconds of training, including earlier sessions (but not work that was lost)."""
        return time.monotonic() - self.started

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Return the loss plus the penalty, in training and in validation; with `return_outputs`, (loss, outputs).

        DivergedError if it is not finite.
        """
        # A weight of 0 costs nothing: attention is not looked at.
        penalty = self.how.penalty
        if penalty is None or penalty.weight == 0:
            loss, outputs = super().compute_loss(
                model, inputs, True, num_items_in_batch
            )
        else:
            with penalty.watching(model, inputs["attention_mask"]) as watch:
                loss, outputs = super().compute_loss(
                    model, inputs, True, num_items_in_batch
                )
            loss = loss + penalty.value(watch)
        # Stopped at once: every further step would only spread the NaN, and the next
        # state to be saved would hold it.
        if not math.isfinite(loss.item()):
            got = f"a loss of {loss.item()} at step {self.state.global_step}"
            other = (
                "train in float32" if penalty is None else "add --warmup 100 --clip 1"
            )
            cure = f"lower --rate, or {other}; the last checkpoint is kept as it was"
            raise DivergedError("a training whose loss stays finite", got, cure)
        if return_outputs:
            return (loss, outputs)
        return loss

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Make the learning rate follow `how.share` (step → share of the rate), if it is given; else as transformers
        does.
        """
        if self.how.share is None:
            return super().create_scheduler(num_training_steps, optimizer)
        chosen: Any = optimizer or self.optimizer
        self.lr_scheduler, self._created_lr_scheduler = (
            LambdaLR(chosen, self.how.share),
            True,
        )
        return self.lr_scheduler

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Return the order of the examples that `how.order` gives, or that of transformers."""
        if self.how.order is None:
            return super()._get_train_sampler(train_dataset)
        return self.how.order

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:  # noqa: ARG002
        """Skip the computation of the gradient norm, a whole pass that only the log needs."""
        return grad_norm

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint of the model, with seconds and unlogged loss, so that a resumed training continues both.

        trial   the Trainer's own argument, for a search of hyperparameters, which is not used here
        """
        # The loss is logged as a mean over several steps: the sum since the last entry
        # would be lost.
        loss = self.accelerator.gather(self._tr_loss).mean().item()
        kept: Any = self.state.stateful_callbacks
        kept[UNFINISHED] = {
            "loss": loss,
            "logged": self._globalstep_last_logged,
            "seconds": self.seconds,
        }
        super()._save_checkpoint(model, trial)

    def _load_best_model(self) -> None:
        """Load the weights of the best checkpoint."""
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str | None, model: Any = None
    ) -> None:
        """Load weights from a checkpoint by `from_pretrained`, since transformers' own way skips weights saved under
        other names.
        """
        into: Any = self.model if model is None else model
        if resume_from_checkpoint is not None:
            into.load_state_dict(
                type(into).from_pretrained(resume_from_checkpoint).state_dict()
            )


class _Following(TrainerCallback):
    """A callback that reports every step, saves the state regularly, and stops on a signal or if the loss no longer
    falls.
    """

    def __init__(
        self, trainer: FittingTrainer, stopped: list[int], *, resumable: bool
    ) -> None:
        self.trainer, self.stopped, self.resumable = trainer, stopped, resumable
        self.saved, self.signal = time.monotonic(), 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """If an interrupted training is resumed, continue its counted seconds and its unlogged loss."""
        before = state.stateful_callbacks.get(UNFINISHED)
        # Counted as if the training had begun so much earlier.
        if before:
            self.trainer.started -= before["seconds"]
            self.trainer._tr_loss += before["loss"]
            self.trainer._globalstep_last_logged = before["logged"]

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Report the step; evaluate, save or stop if it is time."""
        self.trainer.on_step(state.global_step, state.max_steps, given["model"])
        # Steps of evaluation that are no multiple of a number, such as powers of two,
        # which the Trainer's own settings cannot say.
        control.should_evaluate |= state.global_step in self.trainer.how.evaluated
        due = time.monotonic() - self.saved > SAVE_SECONDS
        self.signal, due = self._agreed(
            self.stopped[0] if self.stopped else 0, due, args, state.global_step
        )
        # No state is kept, so that there is nothing to wait for.
        if self.signal and not self.resumable:
            raise Interrupted(self.signal)
        # At the end of an epoch it is saved anyway.
        if (
            (self.signal or due)
            and self.resumable
            and not float(state.epoch).is_integer()
        ):
            control.should_save, self.saved = True, time.monotonic()

    def _agreed(self, number: int, due: bool, args: Any, step: int) -> tuple[int, bool]:
        """Return (signal that any of the processes got, whether it is time for any of them to save).

        number   the signal that this process got; 0: none
        due      whether it is time for this process to save

        Processes compare notes every `AGREED` steps only; at other steps of several processes it is (0, False).
        """
        if args.world_size == 1:
            return number, due
        if step % AGREED:
            return 0, False
        # The largest of all processes: one signal is enough to stop them, at the same
        # step.
        both = torch.tensor([number, due], device=args.device)
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX)
        return int(both[0]), bool(both[1])

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Stop if the validation loss has not fallen for `patience` evaluations."""
        patience = self.trainer.how.patience
        control.should_training_stop |= (
            patience is not None and _count_stale(state) >= patience
        )

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Raise Interrupted if the state was saved because of a signal."""
        if self.signal:
            raise Interrupted(self.signal)
