"""One training by `transformers.Trainer`: AdamW, warm-up, then linear decay to the planned last step (or a constant
rate with early stopping).
"""

import tempfile
from collections.abc import Callable
from typing import Any

from anisoscope.training.kinds import Kind, Material

OnStep = Callable[[int, Any], None]
WARM_UP = 0.05
CLIP = 1.0
DECAY = 0.01
EVALUATIONS = 8
"""Evaluations per `Kind.steps` where the validation loss decides when to stop."""


def fit(
    made: Material, kind: Kind, seed: int, steps: int, on_step: OnStep, patience: int | None = None
) -> dict[str, Any]:
    """Train `made.model` in place; `on_step(step, model)` is called before the first step (0) and after each.

    With `patience` the learning rate stays constant after warm-up, and training ends when that many evaluations in a
    row brought no lower validation loss. Returns steps taken, losses and validation loss.
    """
    from transformers import EarlyStoppingCallback
    from transformers.utils import logging

    from anisoscope.training.checkpoints import FaithfulTrainer

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]

    callbacks: list[Any] = [_watching(on_step)]
    if patience is not None:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=patience))
    with tempfile.TemporaryDirectory() as scratch:
        trainer = FaithfulTrainer(
            model=made.model,
            args=_arguments(scratch, kind, seed, steps, patience is not None),
            data_collator=made.collate,
            train_dataset=made.train,
            eval_dataset=made.validation,
            callbacks=callbacks,
        )
        trainer.pop_callback(_printer())
        trainer.train()
        losses = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
        held = [(entry["step"], entry["eval_loss"]) for entry in trainer.state.log_history if "eval_loss" in entry]
        held = held or [(trainer.state.global_step, trainer.evaluate()["eval_loss"])]
    made.model.to("cpu").eval()
    return {"steps": trainer.state.global_step, "loss": losses, "validation_loss": held}


def _printer() -> Any:
    from transformers.trainer_callback import PrinterCallback

    return PrinterCallback


def _arguments(folder: str, kind: Kind, seed: int, steps: int, until_converged: bool) -> Any:
    """Arguments of the Trainer. It writes nothing but the best model of an early-stopped training, into `folder`."""
    from transformers import TrainingArguments

    every = max(1, min(steps, kind.steps) // EVALUATIONS)
    stopping: dict[str, Any] = {"eval_strategy": "no", "save_strategy": "no", "lr_scheduler_type": "linear"}
    if until_converged:
        stopping = {
            "eval_strategy": "steps",
            "eval_steps": every,
            "save_strategy": "steps",
            "save_steps": every,
            "save_total_limit": 1,
            "save_only_model": True,
            "load_best_model_at_end": True,
            "metric_for_best_model": "eval_loss",
            "lr_scheduler_type": "constant_with_warmup",
        }
    return TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=kind.batch,
        per_device_eval_batch_size=2 * kind.batch,
        learning_rate=kind.rate,
        warmup_steps=max(1, int(WARM_UP * min(steps, kind.steps))),
        weight_decay=DECAY,
        max_grad_norm=CLIP,
        optim="adamw_torch_fused",
        seed=seed,
        data_seed=seed,
        use_cpu=True,
        remove_unused_columns=False,
        logging_steps=every,
        report_to=[],
        disable_tqdm=True,
        **stopping,
    )


def _watching(on_step: OnStep) -> Any:
    """A callback that hands every step on."""
    from transformers import TrainerCallback

    class Watching(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            on_step(0, kwargs["model"])

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
            on_step(state.global_step, kwargs["model"])

    return Watching()
