"""`Monitor` as a callback of Lightning: `Trainer(callbacks=[LightningMonitor(monitor)])`.

Needs `pip install 'anisoscope[integrations]'`.
"""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback
from torch import nn
from transformers import PreTrainedModel

from anisoscope.monitor.monitor import Monitor


class LightningMonitor(Callback):  # type: ignore[misc]  # lightning may be absent
    """Measures the model at the steps that `monitor` chooses, and logs to every logger of the trainer.

    model   finds the network in the Lightning module; default: its first transformers model, else the module itself
    """

    def __init__(
        self, monitor: Monitor, model: Callable[[Any], nn.Module] | None = None
    ) -> None:
        """Keep the monitor, and the function that finds the network in the Lightning module."""
        self.monitor, self.model = monitor, model or _first

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        """Measure the model if the step is due, and log the values to every logger of the trainer."""
        values = self.monitor(self.model(pl_module), trainer.global_step)
        for logger in trainer.loggers if values else ():
            logger.log_metrics(values, step=trainer.global_step)

    on_train_start = on_train_batch_end


def _first(module: nn.Module) -> nn.Module:
    """Return the first transformers model inside a module, or the module itself."""
    return next(
        (child for child in module.modules() if isinstance(child, PreTrainedModel)),
        module,
    )
