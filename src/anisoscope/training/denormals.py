"""Numbers below the smallest normal one (1.2e-38 in float32), which processors multiply up to a hundred times slower.

Sharp attention makes them by the million: a softmax that is almost one-hot has gradients just above zero.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushed() -> Iterator[None]:
    """Take them for zero, where the processor can: in this thread, and for good in threads begun meanwhile. Those are
    torch's own where this is entered before the first large product of a process; else they go on as they were.
    """
    before = not (torch.tensor(1e-40) * 1).item()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
