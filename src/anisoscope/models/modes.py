"""Modes for a while: of evaluation, of every module, and of the processor, that takes the smallest numbers for zero."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; outside, after an exception too, every module is in the mode it was in: `model.train()`
    would also wake parts that the user keeps in evaluation mode (a frozen encoder, frozen batch norms).
    """
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def whole_digits() -> Iterator[None]:
    """Products of float32 are of float32 inside: no TF32, which keeps 3 digits, and which convolutions use unasked."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


@contextmanager
def flushed() -> Iterator[None]:
    """Numbers below the smallest normal one (1.2e-38 in float32) are zero, where the processor can: it multiplies them
    up to a hundred times slower, and sharp attention makes them by the million, as gradients of an almost one-hot
    softmax. In this thread, and for good in threads begun meanwhile. Those are torch's own where this is entered before
    the first large product of a process; else they go on as they were.
    """
    before = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
