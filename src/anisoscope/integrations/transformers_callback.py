"""`Monitor` as a callback of transformers' Trainer.

>>> trainer = Trainer(model, arguments, callbacks=[TrainerMonitor(monitor)])
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback

from anisoscope.monitor.monitor import Monitor


class TrainerMonitor(TrainerCallback):
    """Measures the model when `monitor` says so, and logs through the trainer, hence to every tracker that it
    reports to.

    Give it as `callbacks=[TrainerMonitor(monitor)]`, or to `trainer.add_callback`; it finds its trainer itself. The
    values reach the trainer's trackers (TensorBoard, W&B …), its log history and the monitor's output folder, at the
    step of the look; they are not printed on the terminal, as they are dozens of numbers. What the trainer logs itself
    stays as it is.
    """

    def __init__(self, monitor: Monitor) -> None:
        """Keep the monitor that decides at which steps the model is measured."""
        self.monitor = monitor

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Measure the model if the step is due, and log the values through the trainer."""
        values = self.monitor(given["model"], state.global_step)
        if values is None:
            return
        trainer = self._find_trainer(sys._getframe(1))
        if trainer is None:  # called by hand, without a trainer
            state.log_history.append({**values, "step": state.global_step})
            return
        # logging clears this flag, by which the trainer knows that its own loss of this step is to be logged
        due = control.should_log
        with _mute_printers(trainer):
            trainer.log(values)
        control.should_log = due

    on_train_begin = on_step_end

    def _find_trainer(self, frame: FrameType | None) -> Trainer | None:
        """Return the running trainer that holds this callback; it is found on the call stack, since events do not
        name it.
        """
        while frame is not None:
            owner = frame.f_locals.get("self")
            if isinstance(owner, Trainer) and any(
                each is self for each in owner.callback_handler.callbacks
            ):
                return owner
            frame = frame.f_back
        return None


@contextmanager
def _mute_printers(trainer: Trainer) -> Iterator[None]:
    """Remove the callbacks that print logged values, inside a `with` block."""
    handler = trainer.callback_handler
    every = handler.callbacks
    handler.callbacks = [
        each
        for each in every
        if not isinstance(each, PrinterCallback | ProgressCallback)
    ]
    try:
        yield
    finally:
        handler.callbacks = every
