"""Processes started by torchrun: which part of a plan each of them measures, and the whole from the parts."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from anisoscope.measure.accumulator import Measurement
from anisoscope.sums.moments import Moments
from anisoscope.sums.reservoir import Reservoir


def rank_and_world() -> tuple[int, int]:
    """This process' rank and the number of processes, as torchrun gives them; (0, 1) without it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def process_group() -> Iterator[None]:
    """The process group of a torchrun job while inside; nothing where there is one process, or a group already."""
    _, world = rank_and_world()
    ours = world > 1 and not dist.is_initialized()
    if ours:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        if ours:
            dist.destroy_process_group()


def gathered(part: Measurement) -> Measurement:
    """The whole from each process' part: one flat all-reduce of the sums, one gather of the samples."""
    _, world = rank_and_world()
    if world == 1:
        return part
    if part.moments is not None:
        part.moments.flush()
    whole = Measurement(part.settings)
    whole.sums = part.sums.all_reduce()
    whole.sites, whole.done = part.sites, part.done * world
    whole.moments = None if part.moments is None else Moments(whole.sums, part.moments.groups)
    samples: list[dict[str, Reservoir]] = [part.reservoirs] * world
    dist.all_gather_object(samples, part.reservoirs)
    for theirs in samples:
        for stack, sample in theirs.items():
            whole.reservoirs[stack] = whole.reservoirs[stack].merge(sample) if stack in whole.reservoirs else sample
    return whole
