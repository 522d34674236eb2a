"""Switch modes for a while: evaluation, full float32 precision, denormals to zero."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode inside a `with` block, and restore the mode of every module after it:"""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def full_precision() -> Iterator[None]:
    """Compute products of float32 in float32 inside a `with` block: no TF32, which keeps 3 digits."""
    convolutions, products = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Treat numbers below the smallest normal one (1.2e-38 in float32) as zero, if the processor can: In this
    thread, and for good in threads begun meanwhile. Those are torch's own where this is entered before the first
    large product of a process; else they go on as they were.
    """
    before = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
