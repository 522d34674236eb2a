"""Join what tensor parallelism splits: each process of the job holds some heads of attention, or some tokens."""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anisoscope.capture.masking import Call
from anisoscope.capture.proof import iter_tensors
from anisoscope.errors import MeasureError
from anisoscope.models.identity import gather_whole
from anisoscope.models.parallelism import find_spread

Pause = Callable[[], AbstractContextManager[None]]
AXES = 5
"""Axes that a tensor may have, at most."""
COMPARED = 64
"""Numbers of a tensor by which it is told whether processes hold the same one."""
ALIKE = 1e-3
"""Tensors of two processes that lie nearer together than this, as a share of the largest number, are the same one."""


class Parts:
    """The processes among which tensor parallelism splits a model. All of them must ask for the same tensors.

    A tensor's numbers show whether it is split: processes hold the same ones, or different ones. No name of a module or
    plan is needed, and every process comes to the same answer.
    """

    def __init__(self, ranks: tuple[int, ...]) -> None:
        """Note the processes in the order of their parts."""
        self.ranks = ranks

    @classmethod
    def find(cls, model: nn.Module) -> "Parts | None":
        """Return the processes among which tensor parallelism splits a model; None if it is not split."""
        ranks = find_spread(model).ranks
        return cls(ranks) if ranks else None

    def join(self, x: Tensor, axis: int, *, zeros_are_split: bool = False) -> Tensor:
        """Join the parts of a tensor that the processes hold along `axis`; return `x` if all hold the same tensor.

        zeros_are_split   what to do if all processes hold zeros: True joins them, False takes them for the same tensor

        MeasureError if the parts differ in size along another axis.
        """
        if hasattr(x, "full_tensor"):
            return gather_whole(x)  # type: ignore[no-any-return]
        # Every process gets all summaries, so that all of them decide alike.
        summaries = self._gather(_summarise(x))
        all_zeros = not summaries[0][AXES:].any()
        if _are_alike(summaries) and not (zeros_are_split and all_zeros):
            return x
        axis %= x.dim()
        shapes = [summary[:AXES].long().tolist() for summary in summaries]
        lengths = [shape[axis] for shape in shapes]
        _require_equal_but_for(axis, shapes)

        # `all_gather` exchanges tensors of one shape: shorter parts are padded, and cut to their length afterwards.
        padding = max(lengths) - x.shape[axis]
        if padding:
            shape_of_padding = [*x.shape[:axis], padding, *x.shape[axis + 1 :]]
            x = torch.cat([x, x.new_zeros(shape_of_padding)], axis)
        padded = self._gather(x)
        parts = [
            part.narrow(axis, 0, length)
            for part, length in zip(padded, lengths, strict=True)
        ]
        return torch.cat(parts, axis)

    def require_same_inputs(
        self, pause: Pause, model: nn.Module, args: Any, kwargs: Any
    ) -> None:
        """Raise MeasureError if processes call the model with different inputs; a forward pre-hook of the model.

        pause   returns a context manager that stops the detection of attention while the processes communicate
        """
        digest = hashlib.blake2b(digest_size=7)
        for x in iter_tensors([args, kwargs]):
            digest.update(f"{tuple(x.shape)}{x.dtype}".encode())
            raw = gather_whole(x).detach().cpu().contiguous().flatten()
            # An empty tensor cannot be viewed as bytes.
            if raw.numel():
                digest.update(raw.view(torch.uint8).numpy().data)
        # Seven bytes of a digest fit a 64-bit integer, which every backend of `torch.distributed` can send.
        device = next(iter(model.parameters())).device
        with pause():
            every = self._gather(
                torch.tensor([int.from_bytes(digest.digest())], device=device)
            )
        if len({int(each) for each in every}) > 1:
            expected = "the same inputs in every process of tensor parallelism, since each holds a part of every layer"
            raise MeasureError(
                expected,
                "different ones",
                "give each process the whole data, not a share of it",
            )

    def join_call(self, call: Call, *, with_output: bool) -> Call:
        """Return an attention call with the heads of all processes; this process computes only some of them.

        with_output   also join the model's own output of attention
        """
        query = self.join_heads_of(call.module, call.query)
        key = self.join_heads_of(call.module, call.key)
        value = self.join_heads_of(call.module, call.value)
        # Masks and position biases may have an entry for each head, and sinks (`s_aux`) always do.
        own_heads = call.query.shape[1]
        mask = self._join_by_head(call.mask, own_heads, 1)
        settings = dict(call.settings)
        for name, axis in (("position_bias", 1), ("s_aux", 0)):
            if settings.get(name) is not None:
                settings[name] = self._join_by_head(settings[name], own_heads, axis)
        whole = replace(
            call, query=query, key=key, value=value, mask=mask, settings=settings
        )
        # Queries that are not split leave the output whole too.
        if not with_output or query is call.query:
            return whole
        # Now, and not when it is asked for: all processes must ask.
        output = _read_output(call)
        if output is not None:
            output = self.join(output, 2)
        return replace(whole, result=lambda: output, finish=None)

    def join_heads_of(self, module: nn.Module, x: Tensor) -> Tensor:
        """Join the queries, keys or values [sequence, head, token, dim] of an attention module over all processes."""
        return self.join(x, 1, zeros_are_split=_has_split_rows(module))

    def _join_by_head(self, x: Any, heads: int, axis: int) -> Any:
        """Join a tensor that has an entry for each head over all processes; return any other value unchanged.

        heads   how many heads this process holds
        axis    the axis of heads, by which such a tensor is recognised
        """
        if not isinstance(x, Tensor) or x.dim() <= axis:
            return x
        # Only masks and biases of four axes have one of heads, between those of sequences and queries.
        may_have_heads = axis == 0 or x.dim() == 4
        if not may_have_heads or x.shape[axis] != heads:
            return x
        return self.join(x, axis)

    def _gather(self, x: Tensor) -> list[Tensor]:
        """Return the tensors of all processes, which have the same shape, in the order of the parts."""
        x = x.contiguous()
        every = [torch.empty_like(x) for _ in self.ranks]
        dist.all_gather(every, x)
        # `all_gather` orders by rank; the parts of the model may be in another order.
        return [every[rank] for rank in self.ranks]


def _require_equal_but_for(axis: int, shapes: list[list[int]]) -> None:
    """Raise MeasureError if shapes of parts differ along another axis than `axis`."""
    other_lengths = set()
    for shape in shapes:
        other_lengths.add((*shape[:axis], *shape[axis + 1 :]))
    if len(other_lengths) > 1:
        expected = f"parts of a tensor that differ in size only along axis {axis}"
        raise MeasureError(
            expected,
            f"parts of {shapes}",
            "measure the model with FSDP2, or in one process",
        )


def _read_output(call: Call) -> Tensor | None:
    """Return the model's own output of an attention call [sequence, query, head, value_dim]; None if it is not known.

    What a whole layer gives is no output of attention, and neither is a tensor of another number of axes.
    """
    if call.result is None or call.finish is not None:
        return None
    output = call.result()
    # Attention functions return (output, weights).
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, Tensor) or output.dim() != 4 or output.is_nested:
        return None
    return output


def _has_split_rows(module: nn.Module) -> bool:
    """Return whether a weight of a module is split over processes along its output axis, as those of queries are."""
    for parameter in module.parameters():
        for placement in getattr(parameter, "placements", ()):
            if placement.is_shard(0):
                return True
    return False


def _summarise(x: Tensor) -> Tensor:
    """Return the shape of a tensor, its size and some of its numbers, in float64."""
    shape = torch.zeros(AXES, dtype=torch.float64, device=x.device)
    shape[: x.dim()] = torch.tensor(x.shape, dtype=torch.float64)
    flat = x.detach().reshape(-1)
    # The step is rounded up, so that there are never more numbers than `COMPARED`.
    step = max(1, -(-flat.numel() // COMPARED))
    some = flat[::step].double()
    some = torch.cat([some, some.new_zeros(COMPARED - len(some))])
    size = some.new_zeros(())
    if flat.numel():
        size = torch.linalg.vector_norm(flat.double())
    return torch.cat([shape, size[None], some])  # [AXES + 1 + COMPARED]


def _are_alike(summaries: list[Tensor]) -> bool:
    """Return whether processes hold the same tensor, up to rounding, by its summary in each (`_summarise`)."""
    shape_of_first = summaries[0][:AXES]
    for summary in summaries:
        if bool((summary[:AXES] != shape_of_first).any()):
            return False
    numbers = torch.stack(summaries)[:, AXES:].nan_to_num()  # [process, 1 + COMPARED]
    largest = numbers.abs().amax(0)
    # The size is compared with itself, and every number with the largest: a small one may be all rounding.
    scale_of_size = largest[:1]
    scale_of_numbers = largest[1:].amax().expand(len(largest) - 1)
    scale = torch.cat([scale_of_size, scale_of_numbers])
    difference = (numbers - numbers[0]).abs()
    return bool((difference <= ALIKE * scale).all())
