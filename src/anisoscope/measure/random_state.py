"""Keep the random numbers of a training as they would have been: states of the CPU and of every accelerator."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch

WITHOUT_INDEX = "mps"
"""The kind of device of which there is one, so that its functions take no index."""
WITHOUT_STATE = ("cpu", "meta")
"""Kinds that have no random numbers of their own; those of the CPU are always kept."""


@contextmanager
def fork_random_state(devices: Iterable[torch.device]) -> Iterator[None]:
    """Restore the states of torch's random number generators at the end of a `with` block.

    devices   whose generators are restored, in addition to the CPU's; those whose state torch cannot read (XLA) are
              not
    """
    by_kind: dict[str, set[int]] = {}
    for device in devices:
        by_kind.setdefault(device.type, set()).add(device.index or 0)
    # The CPU's always: a model on an accelerator may draw there too.
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        for kind, indices in sorted(by_kind.items()):
            if kind == WITHOUT_INDEX:
                stack.callback(torch.mps.set_rng_state, torch.mps.get_rng_state())
            elif kind not in WITHOUT_STATE and hasattr(
                getattr(torch, kind, None), "get_rng_state"
            ):
                stack.enter_context(
                    torch.random.fork_rng(sorted(indices), device_type=kind)
                )
        yield
