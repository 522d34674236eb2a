"""Evaluation mode for a while, and the mode of every module as it was afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; outside, after an exception too, every module is in the mode it was in.

    Module by module: `model.train()` would also wake parts that the user keeps in evaluation mode (a frozen encoder,
    frozen batch norms).
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
