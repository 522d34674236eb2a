"""Find out how a model is spread over the processes of a job, which decides who reads which batch."""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import nn

from anisoscope.errors import MeasureError


@dataclass(frozen=True)
class Spread:
    """How a model is spread over the processes of a job.

    in_step   whether a forward call waits for other processes, which must then call the model equally often
    ranks     of tensor parallelism: the processes in the order of the parts, each of which reads every batch;
              else empty: each process reads batches of its own
    """

    in_step: bool = False
    ranks: tuple[int, ...] = ()


def find_spread(model: nn.Module) -> Spread:
    """Find out how `model` is spread over the processes of a job: not at all, by FSDP or DDP, or by tensor parallelism.

    MeasureError for a model that is spread in two of these ways at once, and for tensor parallelism over only some of
    the processes: nobody knows then which of them read the same batch.
    """
    if not (
        dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    ):
        return Spread()
    wrapped = _is_wrapped(model)
    parameters = list(model.parameters())
    most_split = max(parameters, key=_count_split_axes, default=None)
    # transformers 4 counts the parts of tensor parallelism, but keeps plain tensors.
    counted = getattr(model, "_tp_size", None) or 1
    # FSDP alone splits along one axis; one more is tensor parallelism.
    split_by_tensor_parallelism = _count_split_axes(most_split) > wrapped
    if split_by_tensor_parallelism or (counted > 1 and not wrapped):
        return Spread(True, _find_ranks(model, most_split, counted, wrapped=wrapped))
    # DeepSpeed gives this attribute to the parameters that it splits.
    of_deepspeed = any(hasattr(parameter, "ds_id") for parameter in parameters)
    return Spread(wrapped or of_deepspeed)


def _is_wrapped(model: nn.Module) -> bool:
    """Return whether FSDP or DDP spread the model, or a part of it, over the processes."""
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    wrappers = (
        FSDPModule,
        FullyShardedDataParallel,
        nn.parallel.DistributedDataParallel,
    )
    return any(isinstance(module, wrappers) for module in model.modules())


def _find_ranks(
    model: nn.Module, parameter: Any, counted: int, *, wrapped: bool
) -> tuple[int, ...]:
    """Return the processes of tensor parallelism in the order of the parts.

    MeasureError if they are not all processes of the job, or if the model is spread in another way too.

    parameter   the one that is split along most axes
    counted     how many parts transformers counts
    wrapped     whether FSDP or DDP spread the model
    """
    world = dist.get_world_size()
    mesh = getattr(parameter, "device_mesh", None)
    # transformers 4 has no mesh: parts lie in the order of the processes.
    ranks = (
        tuple(range(counted)) if mesh is None else tuple(mesh.mesh.flatten().tolist())
    )
    # On a mesh of several axes, a parameter split along two of them is spread in two
    # ways.
    if (
        not wrapped
        and len(ranks) == world
        and (mesh is None or mesh.ndim == 1 or _count_split_axes(parameter) == 1)
    ):
        return ranks
    expected = "a model that is spread over all processes in one way: by tensor parallelism, or by FSDP"
    came = f"{type(model).__name__}, by tensor parallelism of {len(ranks)} of {world} processes"
    came += " and by FSDP or DDP" * wrapped
    cure = "start as many processes as there are parts, or spread its weights with FSDP2 alone (fully_shard)"
    raise MeasureError(expected, came, cure)


def _count_split_axes(parameter: Any) -> int:
    """Count the axes of the process mesh along which a parameter is split; one for FSDP."""
    placements = getattr(parameter, "placements", ())
    return sum(not placement.is_replicate() for placement in placements)
