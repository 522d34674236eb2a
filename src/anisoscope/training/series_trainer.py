"""The Trainer of a series: checkpoints in hub format at chosen steps, its own state now and then, a stop on signals."""

import math
import shutil
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainingArguments
from transformers.utils import logging

from anisoscope.errors import MeasureError, OutputError
from anisoscope.measure.distributed import rank_and_world
from anisoscope.measure.loop import Interrupted, listening
from anisoscope.progress import Progress
from anisoscope.training.checkpoints import FaithfulTrainer
from anisoscope.training.language_model import checkpoint_steps
from anisoscope.training.presets import Training
from anisoscope.training.windows import Examples, as_fetched

SAVE_SECONDS = 120.0
"""Seconds between two states to resume from (several processes, whose clocks differ: every `SAVE_STEPS` steps)."""
SAVE_STEPS = 500
LOGS = 200
"""Entries of the loss in a training."""
CLIP, DECAY = 1.0, 0.01


def fit(
    training: Training,
    model: Any,
    tokenizer: Any,
    examples: Examples,
    validation: Examples,
    output: Path,
    progress: Progress | None,
) -> dict[str, Any]:
    """Train `model` in place, from the last saved state where there is one; losses of training and validation."""
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # tied weights are no missing ones
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with listening() as stopped:
        keeper = _Keeper(training, tokenizer, output, progress, stopped)
        trainer = _Warmed(
            model=model,
            args=_arguments(training, output),
            data_collator=as_fetched,  # type: ignore[arg-type]
            train_dataset=examples,
            eval_dataset=validation,
            callbacks=[keeper],
        )
        for name in ("PrinterCallback", "ProgressCallback"):
            trainer.pop_callback(_callback(name))
        try:
            trainer.train(resume_from_checkpoint=_last_state(output))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise _explained(error, output) from error
        if stopped and trainer.state.global_step < training.last:
            raise Interrupted(stopped[0])
    history = trainer.state.log_history
    return {
        "loss": [(entry["step"], entry["loss"]) for entry in history if "loss" in entry],
        "validation_loss": [(entry["step"], entry["eval_loss"]) for entry in history if "eval_loss" in entry],
    }


class _Warmed(FaithfulTrainer):
    """The rate rises linearly from the first step on, where the library's own schedule begins with a step at rate 0
    (which would make of step 1 another checkpoint of step 0), then falls to 0 after the last.
    """

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        rising: int = self.args.get_warmup_steps(num_training_steps)
        chosen: Any = optimizer or self.optimizer

        def share(step: int) -> float:
            falling = (num_training_steps - step) / max(1, num_training_steps - rising)
            return max(0.0, min((step + 1) / rising, falling))

        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(chosen, share)
            self._created_lr_scheduler = True
        return self.lr_scheduler


def _callback(name: str) -> Any:
    import transformers.trainer_callback as callbacks

    return getattr(callbacks, name)


def _explained(error: Exception, output: Path) -> Exception:
    """A full disk as an OutputError (it reaches us in three forms); anything else as it is."""
    text = " ".join(str(error).split())
    disk = isinstance(error, OSError | SafetensorError) or "file write failed" in text or "unexpected pos" in text
    if not disk:
        return error
    cure = "free space; the training stays resumable (--resume)"
    return OutputError(f"to write checkpoints into {output}", text[:200], cure)


def _last_state(output: Path) -> str | None:
    """The newest whole state to resume from."""
    found = [path.parent for path in (output / "resume").glob("checkpoint-*/trainer_state.json")]
    return str(max(found, key=lambda path: int(path.name.split("-")[1]))) if found else None


def _arguments(training: Training, output: Path) -> TrainingArguments:
    world = rank_and_world()[1]
    rows = training.size.batch // (world * training.accumulate)
    return TrainingArguments(
        output_dir=str(output / "resume"),
        max_steps=training.last,
        per_device_train_batch_size=rows,
        per_device_eval_batch_size=2 * rows,
        gradient_accumulation_steps=training.accumulate,
        learning_rate=training.size.rate,
        warmup_steps=training.warm_up,
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        bf16=training.precision == "bfloat16",
        fp16=training.precision == "float16",
        seed=training.seed,
        data_seed=training.order,
        use_cpu=training.device == "cpu",
        train_sampling_strategy="sequential",
        remove_unused_columns=False,
        prediction_loss_only=True,
        logging_strategy="steps",
        logging_steps=max(1, training.last // LOGS),
        logging_nan_inf_filter=False,
        save_strategy="steps" if world > 1 else "no",
        save_steps=SAVE_STEPS,
        save_total_limit=1,
        eval_strategy="no",
        ddp_find_unused_parameters=False,
        report_to=list(training.report_to),
        disable_tqdm=True,
    )


class _Keeper(TrainerCallback):
    """Keeps the series' checkpoints, asks for the Trainer's own state in time, and stops on a signal or on NaN."""

    def __init__(
        self, training: Training, tokenizer: Any, output: Path, progress: Progress | None, stopped: list[int]
    ) -> None:
        self.steps = set(checkpoint_steps(training.last, training.per_octave))
        self.tokenizer, self.output, self.progress, self.stopped = tokenizer, output, progress, stopped
        self.last, self.saved = training.last, time.monotonic()

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        if state.global_step == 0:
            self._keep(0, given["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        step = state.global_step
        if step in self.steps:
            self._keep(step, given["model"])
            control.should_evaluate = True
        if self.progress is not None and state.is_world_process_zero:
            self.progress(step, self.last)
        if args.world_size > 1:
            return  # processes stop and save together only at steps known to all
        if self.stopped or time.monotonic() - self.saved > SAVE_SECONDS:
            control.should_save = True
            self.saved = time.monotonic()
        if self.stopped:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        loss = given["logs"].get("loss", 0.0)
        if not math.isfinite(loss):
            cure = "lower --rate, or train in float32"
            raise MeasureError("a finite loss", f"{loss} at step {state.global_step}", cure)

    def _keep(self, step: int, model: Any) -> None:
        """Model and tokenizer of one step, whole or not at all."""
        folder, temporary = self.output / f"step-{step}", self.output / f".step-{step}"
        if rank_and_world()[0] or folder.exists():
            return
        shutil.rmtree(temporary, ignore_errors=True)
        model.save_pretrained(temporary)
        self.tokenizer.save_pretrained(temporary)
        temporary.rename(folder)
