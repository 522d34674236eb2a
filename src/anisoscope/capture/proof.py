"""Verify a capture on the model at hand: compare what is captured with what the model itself computes.

Two figures result. `outputs`: how far the model's outputs differ with and without the capture. `attention`: how far
softmax(captured scores) · values differs from the output of the attention module, layer by layer.
"""

import json
import math
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import Place, Site
from anisoscope.capture.masking import Call

ROUNDING = {
    torch.float64: 1e-6,
    torch.float32: 5e-6,
    torch.bfloat16: 1e-2,
    torch.float16: 1.5e-3,
}
"""How far outputs of attention may differ by rounding, as a share of their size, by the type of their numbers: five to
thirty times what was measured over 13 families. Many families compute the softmax in float32 even in a float64 model.
"""
OF_SCORES = {
    torch.float64: 2e-7,
    torch.float32: 2e-7,
    torch.bfloat16: 8e-3,
    torch.float16: 1e-3,
}
"""How much more per unit of the largest score, which the model rounds before the softmax."""
EXACT_SCORES = ("sdpa", "flash", "flex")
"""Backends that keep the scores of numbers of 16 bits in float32."""
OUTPUTS = {
    torch.float64: 1e-10,
    torch.float32: 1e-5,
    torch.bfloat16: 4e-2,
    torch.float16: 5e-3,
}
"""How far outputs of the model may lie apart by rounding, as a share of the largest, by type: of models that are
compiled without a capture, and of attention that is fused with it.
"""
SAMPLED = 1 << 20
"""Numbers of an output that are kept for the size of a difference; a sum over all bits tells whether there is one."""


@dataclass
class Proof:
    """What the first batch showed about a capture: whether it changes the model, and whether it reads attention
    correctly.

    outputs    largest difference of the model's outputs with and without the capture, as a share of the largest of
               them: 0 if they are the same bit for bit; None if they were not compared, for the reason in `skipped`
    noise      the difference between two calls without the capture, measured if `outputs` is not 0
    attention  for every layer that was compared, the error of the worst head (root mean square, as a share of the size
               of the outputs) and how large it may be by rounding
    unheard    layers of which the model's own attention output is not known
    """

    outputs: float | None = None
    noise: float = 0.0
    limit: float = 0.0
    skipped: str = ""
    attention: dict[Place, tuple[float, float]] = field(default_factory=dict)
    unheard: set[Place] = field(default_factory=set)

    @property
    def moved(self) -> bool:
        """Return whether the capture changes the outputs of the model by more than rounding or noise."""
        return self.outputs is not None and not self.outputs <= max(
            self.limit, 10 * self.noise
        )

    def merge(self, other: "Proof") -> "Proof":
        """Combine two proofs: for each layer, the larger error counts."""
        attention = dict(self.attention)
        for place, figures in other.attention.items():
            if place in attention:
                figures = max(attention[place], figures)
            attention[place] = figures
        outputs = [
            proof.outputs for proof in (self, other) if proof.outputs is not None
        ]
        return Proof(
            outputs=max(outputs, default=None),
            noise=max(self.noise, other.noise),
            limit=max(self.limit, other.limit),
            skipped=self.skipped or other.skipped,
            attention=attention,
            unheard=self.unheard | other.unheard,
        )

    def to_json(self) -> str:
        """Return the proof as JSON text, for `from_json`."""
        attention = [[*place, *figures] for place, figures in self.attention.items()]
        kept = {
            "attention": attention,
            "unheard": [list(place) for place in self.unheard],
        }
        return json.dumps(vars(self) | kept)

    @classmethod
    def from_json(cls, text: str) -> "Proof":
        """Read a proof from the JSON text that `to_json` wrote."""
        kept = json.loads(text)
        kept["attention"] = {
            (s, layer, kind): (error, limit)
            for s, layer, kind, error, limit in kept["attention"]
        }
        kept["unheard"] = {
            (stack, layer, kind) for stack, layer, kind in kept["unheard"]
        }
        return cls(**kept)

    def describe(self) -> dict[str, Any]:
        """Return the entries of the proof for the manifest of a run, as plain values for JSON.

        `outputs_moved` is by how much the capture changed the outputs, `outputs_limit` what rounding allows;
        `attention_error` and `attention_limit` are those of the worst accepted layer; `attention_compared` and
        `attention_not_compared` count layers; `attention_refused` holds the errors of the layers that were left out, if
        any.
        """
        accepted: list[tuple[float, float]] = []
        refused: dict[str, float | str] = {}
        for (stack, layer, kind), (error, limit) in self.attention.items():
            # Not `error > limit`: an error that is NaN is no match.
            if error <= limit:
                accepted.append((error, limit))
                continue
            name = f"{stack}.{layer}.cross" if kind == "cross" else f"{stack}.{layer}"
            refused[name] = error if math.isfinite(error) else "not finite"
        error_of_worst, limit_of_worst = max(accepted, default=(None, None))
        entries: dict[str, Any] = {
            "outputs_moved": "other shapes"
            if self.outputs == math.inf
            else self.outputs,
            "outputs_limit": self.limit,
        }
        if self.skipped:
            entries["outputs_skipped"] = self.skipped
        entries["attention_error"] = error_of_worst
        entries["attention_limit"] = limit_of_worst
        entries["attention_compared"] = len(self.attention)
        entries["attention_not_compared"] = len(self.unheard)
        if refused:
            entries["attention_refused"] = refused
        return entries


def compare_attention(
    call: Call, output: Tensor, keys: Tensor, real: Tensor | None
) -> tuple[float, float] | None:
    """Compare attention output that was computed from captured rows with the model's own.

    output   computed from captured rows [sequence, query, head, dim]
    keys     how many keys each query sees [sequence, head, query]; queries that see none are not compared
    real     which queries are real tokens [sequence, query], the only ones compared; None: all

    Returns (relative error of the worst head, how large it may be by rounding), or None if the model's output is not
    known or has another shape.
    """
    own = _get_own_output(call)
    if own is None:
        return None
    ours = output
    if call.finish is not None:
        ours = call.finish(output.to(own.dtype))
    if ours.shape != own.shape and ours.numel() == own.numel():
        own = own.reshape(ours.shape)  # from heads side by side
    if ours.shape != own.shape:
        return None
    # From the type of the model's output, before it is widened.
    limit = _get_limit(call, own.dtype)
    ours = ours.double()
    own = own.double()
    used = _find_comparable(call, keys, real).to(own.device)
    used = used & own.isfinite().all(-1)  # a model may overflow by itself
    if not bool(used.any()):
        return None
    # A finished output has no axis of heads any more.
    by_head = call.finish is None
    return _measure_error(ours, own, used, by_head=by_head), limit


def _measure_error(ours: Tensor, own: Tensor, used: Tensor, *, by_head: bool) -> float:
    """Return the error of the worst head: root mean square, as a share of that of its outputs; infinite if it is NaN.

    ours, own   captured outputs of attention and the model's own [sequence, query, head, dim]; without `by_head`,
                [sequence, query, dim], which count as one head
    used        which of them are compared, in the same shape without the last axis
    """
    axes = (0, 1) if by_head else tuple(range(used.dim()))
    count = used.sum(axes).clamp(min=1)
    difference = torch.where(used, (ours - own).square().sum(-1), 0.0).sum(axes) / count
    size = torch.where(used, own.square().sum(-1), 0.0).sum(axes) / count
    # A head may give next to nothing: its size is that of all heads then.
    size = size.clamp(min=float(size.mean()) * 1e-4)
    error = (difference / size.clamp(min=torch.finfo(torch.float32).tiny)).sqrt()
    if bool(error.isnan().any()):
        return math.inf
    return float(error.max())


def _get_limit(call: Call, dtype: torch.dtype) -> float:
    """Return how far outputs of attention may differ by rounding, as a share of their size.

    dtype   the number type of the outputs
    """
    if dtype not in ROUNDING:
        dtype = torch.float32
    keeps_scores = any(name in call.backend for name in EXACT_SCORES)
    if keeps_scores and dtype.itemsize < 4:
        return ROUNDING[dtype]
    return ROUNDING[dtype] + OF_SCORES[dtype] * call.largest_score()


def _find_comparable(call: Call, keys: Tensor, real: Tensor | None) -> Tensor:
    """Return which attention outputs can be compared: those of real queries that see a key.

    The shape is [sequence, query, head], or [sequence, query] if the call has `finish`, which joins the heads.

    keys   how many keys each query sees [sequence, head, query]
    real   which queries are real tokens [sequence, query]; None: all
    """
    if call.finish is None:
        comparable = (keys > 0).transpose(1, 2)
        if real is not None:
            comparable = comparable & real.unsqueeze(-1)
        return comparable
    comparable = (keys > 0).any(1)
    if real is not None:
        comparable = comparable & real
    return comparable


def _get_own_output(call: Call) -> Tensor | None:
    """Return the attention output that the model itself computes in a call; None if it is not a plain float tensor."""
    if call.result is None:
        return None
    output = call.result()
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if (
        isinstance(output, Tensor)
        and output.is_floating_point()
        and not output.is_nested
    ):
        return output
    return None


class Outputs:
    """The outputs of one forward call of a model, reduced to what a comparison with another call needs."""

    def __init__(self, output: Any) -> None:
        """Keep a checksum and a sample of every tensor in the output of a model."""
        self.parts = [_Part(x) for x in iter_tensors(output)]

    @property
    def dtype(self) -> torch.dtype:
        """Return the coarsest number type among the outputs, by which the limit for rounding is chosen."""
        types = [part.dtype for part in self.parts if part.dtype in OUTPUTS]
        return max(types, key=lambda dtype: OUTPUTS[dtype], default=torch.float32)

    def measure_difference(self, other: "Outputs") -> float:
        """Return the largest difference from another call's outputs, relative to the largest number in them.

        Infinite if the shapes differ.
        """
        if [part.shape for part in self.parts] != [part.shape for part in other.parts]:
            return math.inf
        differences = [
            part.measure_difference(theirs)
            for part, theirs in zip(self.parts, other.parts, strict=True)
        ]
        return max(differences, default=0.0)


class _Part:
    """One output tensor, kept as a checksum over all its bits and a sample of its numbers."""

    def __init__(self, x: Tensor) -> None:
        """Keep shape, type, checksum and a sample of a tensor's numbers."""
        x = x.detach()
        if x.is_nested:
            x = (
                x.values()
                if x.layout == torch.jagged
                else torch.cat([part.flatten() for part in x.unbind()])
            )
        self.shape = tuple(x.shape)
        self.dtype = x.dtype
        flat = x.reshape(-1)
        self.sample = flat[:: max(1, flat.numel() // SAMPLED)].clone()
        self.total = _sum_of_bits(flat) if flat.numel() > SAMPLED else 0

    def measure_difference(self, other: "_Part") -> float:
        """Return the largest relative difference from another tensor; 0 only if checksum and sample are equal."""
        if self.total == other.total and _are_same(self.sample, other.sample):
            return 0.0
        a = self.sample.double()
        b = other.sample.double()
        if bool((a.isfinite() != b.isfinite()).any()):
            return math.inf
        finite = a.isfinite()
        if not bool(finite.any()):
            return math.inf
        largest = float(a[finite].abs().max()) or 1.0
        difference = float((a - b)[finite].abs().max()) / largest
        # Checksums differ: if the samples do not, the difference is in numbers that were not kept.
        return difference or torch.finfo(torch.float64).tiny


def _are_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal in all entries, with NaN equal to NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _sum_of_bits(flat: Tensor) -> int:
    """Return a checksum that changes if any bit of the tensor does."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(
        flat.itemsize
    )
    if bits is None or flat.dtype.is_complex:
        return 0
    view = flat.view(bits)
    total = 0
    for number, piece in enumerate(torch.split(view, 1 << 24)):
        # Weighted by place: the same numbers in another order must give another sum.
        weight = torch.arange(1, len(piece) + 1, device=piece.device) * (2 * number + 1)
        total += int((piece.to(torch.int64) * weight).sum())
    return total


def iter_tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of a model's output in order; other objects, such as caches, are skipped."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from iter_tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from iter_tensors(value)


def copy_inputs(inputs: Any) -> Any:
    """Copy the inputs of a forward call, in case the call changes them."""
    if isinstance(inputs, Tensor):
        return inputs.clone()
    if isinstance(inputs, Mapping):
        return {name: copy_inputs(value) for name, value in inputs.items()}
    # A named tuple takes its values one by one, not as a list: `deepcopy` below knows
    # how.
    if isinstance(inputs, list | tuple) and not hasattr(inputs, "_fields"):
        return type(inputs)(copy_inputs(value) for value in inputs)
    return deepcopy(inputs)


def _find_list_path(path: str) -> str:
    """Return the path of the module list that a block belongs to: its own path up to the first number."""
    parts = takewhile(lambda part: not part.isdigit(), path.split("."))
    return ".".join(parts)


class Positions:
    """The block numbers of each module, known from the lists of blocks only; they check under which layer attention is
    read.

    names  paths of the modules. If the blocks of a stack come from several lists, as of a tower and the language model
           behind it, numbers with and without the lists before are accepted, since a list may not run in a call.
    """

    def __init__(
        self,
        blocks: Mapping[str, list[nn.Module]],
        names: Mapping[nn.Module, str] | None = None,
    ) -> None:
        """Number the blocks of each stack, and note which modules are in them."""
        self.numbers: dict[nn.Module, set[tuple[str, int]]] = {}
        self.depth = {stack: len(listed) for stack, listed in blocks.items()}
        paths = names or {}
        for stack, listed in blocks.items():
            # Numbers of blocks that may have run before a list: each earlier list may have run or not.
            before = {0}
            for _, own in groupby(
                listed, lambda block: _find_list_path(paths.get(block, ""))
            ):
                of_list = list(own)
                for number, block in enumerate(of_list, start=1):
                    for module in block.modules():
                        numbers = self.numbers.setdefault(module, set())
                        numbers.update((stack, n + number) for n in before)
                before |= {n + len(of_list) for n in before}

    def contradict(self, module: nn.Module, site: Site) -> bool:
        """Return whether attention of `module` was assigned to a layer that does not contain this module.

        False for layers after the last block: they belong to a model that runs its blocks repeatedly.

        site   the stack and layer that the attention was assigned to
        """
        numbers = self.numbers.get(module)
        if numbers is None or (site.layer or 0) > self.depth.get(site.stack, 0):
            return False
        return (site.stack, site.layer) not in numbers
