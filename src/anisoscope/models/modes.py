"""Context managers that switch modes for a while: evaluation, full float32 precision, denormals to zero."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode within a `with` block, and restore the mode of every module afterwards."""
    # Of every module, since a user may have frozen some in evaluation mode.
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


@contextmanager
def full_precision() -> Iterator[None]:
    """Within a `with` block, compute products of float32 in full float32: without TF32, which keeps only 3 digits."""
    convolutions, products = (
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )
    # cuDNN's flag is for convolutions, the precision for products of matrices.
    torch.backends.cudnn.allow_tf32 = False
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.set_float32_matmul_precision(products)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Within a `with` block, treat numbers below the smallest normal one (1.2e-38 in float32) as zero, if the
    CPU can.

    This holds in this thread, and permanently in threads started meanwhile. torch's own threads are among those only
    if the block is entered before the first large product of the process.
    """
    # The product of a denormal is 0 only if denormals were flushed before.
    before = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def is_compiled(model: nn.Module) -> bool:
    """Return whether a model, or a module in it, is compiled by `torch.compile` or `model.compile`."""
    for module in model.modules():
        # `model.compile()` sets the attribute, `torch.compile(model)` wraps the model.
        if (
            module._compiled_call_impl is not None
            or type(module).__name__ == "OptimizedModule"
        ):
            return True
    return False


@contextmanager
def run_eagerly(model: nn.Module) -> Iterator[None]:
    """Run a compiled model without its compiled code inside a `with` block; does nothing for other models.

    Compiled code does not know hooks that came later, and would run on without them.
    """
    if not is_compiled(model):
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
