"""`Monitor` as a callback of transformers' Trainer.

>>> trainer = Trainer(model, arguments, …)
>>> TrainerMonitor(monitor).attach(trainer)
"""

from typing import Any

from transformers import TrainerCallback

from anisoscope.training.monitor import Monitor


class TrainerMonitor(TrainerCallback):
    """Looks at the model as `monitor` says and logs through the trainer, hence to whatever it reports to.

    Without `attach` (given as `callbacks=[…]`, where a callback does not know its trainer) the values go to the
    trainer's log history and to the monitor's output folder.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.trainer: Any = None

    def attach(self, trainer: Any) -> "TrainerMonitor":
        """Add the callback to `trainer`, whose trackers then get the values."""
        self.trainer = trainer
        trainer.add_callback(self)
        return self

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        values = self.monitor(given["model"], state.global_step)
        if values is not None and self.trainer is not None:
            self.trainer.log(values)
        elif values is not None:
            state.log_history.append({**values, "step": state.global_step})

    on_train_begin = on_step_end
