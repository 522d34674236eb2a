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

ROUNDING = {torch.float64: 1e-6, torch.float32: 5e-6, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}
"""How far outputs of attention may lie apart by rounding, as a share of their size, by the type of their numbers: some
five to thirty times what was measured over 13 families. Of float64, too, many families compute the softmax in float32.
"""
OF_SCORES = {torch.float64: 2e-7, torch.float32: 2e-7, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""How much more per unit of the largest score, which the model rounds before the softmax."""
EXACT_SCORES = ("sdpa", "flash", "flex")
"""Backends that keep the scores of numbers of 16 bits in float32."""
OUTPUTS = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
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
        return self.outputs is not None and not self.outputs <= max(self.limit, 10 * self.noise)

    def merge(self, other: "Proof") -> "Proof":
        """Combine two proofs: the larger error of each layer."""
        attention = dict(self.attention)
        for place, (error, limit) in other.attention.items():
            worst = max(attention.get(place, (0.0, limit)), (error, limit))
            attention[place] = worst
        figures = [proof.outputs for proof in (self, other) if proof.outputs is not None]
        unheard = self.unheard | other.unheard
        outputs = max(figures, default=None)
        limit, noise = max(self.limit, other.limit), max(self.noise, other.noise)
        return Proof(outputs, noise, limit, self.skipped or other.skipped, attention, unheard)

    def to_json(self) -> str:
        """Return the proof as JSON text, for `from_json`."""
        attention = [[*place, *figures] for place, figures in self.attention.items()]
        kept = {"attention": attention, "unheard": [list(place) for place in self.unheard]}
        return json.dumps(vars(self) | kept)

    @classmethod
    def from_json(cls, text: str) -> "Proof":
        """Read a proof from the JSON text that `to_json` wrote."""
        kept = json.loads(text)
        kept["attention"] = {(s, layer, kind): (error, limit) for s, layer, kind, error, limit in kept["attention"]}
        kept["unheard"] = {(stack, layer, kind) for stack, layer, kind in kept["unheard"]}
        return cls(**kept)

    def described(self) -> dict[str, Any]:
        """Return the entries of the proof in a run's manifest, for JSON.

        `outputs_moved` is by how much the capture changed the outputs, `outputs_limit` what rounding allows;
        `attention_error` and `attention_limit` are those of the worst accepted layer; `attention_compared` and
        `attention_not_compared` count layers; `attention_refused` holds the errors of the layers that were left out, if
        any.
        """
        moved = "other shapes" if self.outputs == math.inf else self.outputs
        described: dict[str, Any] = {"outputs_moved": moved, "outputs_limit": self.limit}
        if self.skipped:
            described["outputs_skipped"] = self.skipped
        within = [(error, limit) for error, limit in self.attention.values() if error <= limit]
        error, limit = max(within, default=(None, None))
        described |= {"attention_error": error, "attention_limit": limit}
        described |= {"attention_compared": len(self.attention), "attention_not_compared": len(self.unheard)}
        beyond = {place: error for place, (error, limit) in self.attention.items() if not error <= limit}
        if beyond:
            named = {f"{stack}.{layer}{'.cross' * (kind == 'cross')}": x for (stack, layer, kind), x in beyond.items()}
            described["attention_refused"] = {
                name: x if math.isfinite(x) else "not finite" for name, x in named.items()
            }
        return described


def compare_attention(call: Call, output: Tensor, keys: Tensor, real: Tensor | None) -> tuple[float, float] | None:
    """Compare the `output` that captured rows give [sequence, query, head, dim] with the model's own attention output.

    Returns (relative error of the worst head, limit for rounding), or None if the model's output is not known or has
    another shape. Only real queries that see a key are compared (`keys` [sequence, head, query]).
    """
    own = _get_own_output(call)
    if own is None:
        return None
    ours = call.finish(output.to(own.dtype)) if call.finish is not None else output
    if ours.shape != own.shape and ours.numel() == own.numel():  # heads side by side
        own = own.reshape(ours.shape)
    if ours.shape != own.shape:
        return None
    dtype = own.dtype if own.dtype in ROUNDING else torch.float32
    used = (keys > 0).transpose(1, 2) if call.finish is None else (keys > 0).any(1)
    if real is not None:
        used = used & (real if call.finish is not None else real.unsqueeze(-1))
    ours, own = ours.double(), own.double()
    used = used.to(own.device) & own.isfinite().all(-1)  # a model may overflow by itself
    if not bool(used.any()):
        return None
    limit = ROUNDING[dtype]
    if not any(name in call.backend for name in EXACT_SCORES) or dtype.itemsize >= 4:
        limit += OF_SCORES[dtype] * call.largest_score()
    axes = tuple(axis for axis in range(used.dim()) if call.finish is not None or axis != 2)
    count = used.sum(axes)
    apart, size = (torch.where(used, x.square().sum(-1), 0.0).sum(axes) / count.clamp(min=1) for x in (ours - own, own))
    size = size.clamp(min=float(size.mean()) * 1e-4)  # a head may give next to nothing
    share = (apart / size.clamp(min=torch.finfo(torch.float32).tiny)).sqrt()
    return (math.inf if bool(share.isnan().any()) else float(share.max())), limit


def _get_own_output(call: Call) -> Tensor | None:
    """Return the attention output that the model itself computes in a call; None if it is not a plain float tensor."""
    made = call.result() if call.result is not None else None
    made = made[0] if isinstance(made, list | tuple) and made else made
    return made if isinstance(made, Tensor) and made.is_floating_point() and not made.is_nested else None


class Outputs:
    """The outputs of one forward call of a model, reduced to what a comparison with another call needs."""

    def __init__(self, output: Any) -> None:
        """Keep a checksum and a sample of every tensor in the output of a model."""
        self.parts = [_Part(x) for x in _tensors(output)]

    @property
    def dtype(self) -> torch.dtype:
        """Return the coarsest number type among the outputs, by which the limit for rounding is chosen."""
        types = [part.dtype for part in self.parts if part.dtype in OUTPUTS]
        return max(types, key=lambda dtype: OUTPUTS[dtype], default=torch.float32)

    def apart_from(self, other: "Outputs") -> float:
        """Return the largest difference from the outputs of another forward call, as a share of the largest number.

        Infinite if the shapes differ.
        """
        if [part.shape for part in self.parts] != [part.shape for part in other.parts]:
            return math.inf
        return max((a.apart_from(b) for a, b in zip(self.parts, other.parts, strict=True)), default=0.0)


class _Part:
    """One output tensor, kept as a checksum over all its bits and a sample of its numbers."""

    def __init__(self, x: Tensor) -> None:
        """Keep shape, type, checksum and a sample of a tensor's numbers."""
        x = x.detach()
        if x.is_nested:
            x = x.values() if x.layout == torch.jagged else torch.cat([part.flatten() for part in x.unbind()])
        self.shape, self.dtype = tuple(x.shape), x.dtype
        flat = x.reshape(-1)
        self.sample = flat[:: max(1, flat.numel() // SAMPLED)].clone()
        self.total = _sum_of_bits(flat) if flat.numel() > SAMPLED else 0

    def apart_from(self, other: "_Part") -> float:
        """Return the largest relative difference from another tensor; 0 only if checksum and sample are equal."""
        if self.total == other.total and _same(self.sample, other.sample):
            return 0.0
        a, b = (x.sample.double() for x in (self, other))
        if bool((a.isfinite() != b.isfinite()).any()):
            return math.inf
        finite = a.isfinite()
        if not bool(finite.any()):
            return math.inf
        largest = float(a[finite].abs().max()) or 1.0
        apart = float((a - b)[finite].abs().max()) / largest
        return apart or torch.finfo(torch.float64).tiny  # it is in what was not kept


def _same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal in all entries, with NaN equal to NaN."""
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _sum_of_bits(flat: Tensor) -> int:
    """Return a checksum that changes if any bit of the tensor does."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(flat.itemsize)
    if bits is None or flat.dtype.is_complex:
        return 0
    view, total = flat.view(bits), 0
    for number, piece in enumerate(torch.split(view, 1 << 24)):
        weight = torch.arange(1, len(piece) + 1, device=piece.device) * (2 * number + 1)
        total += int((piece.to(torch.int64) * weight).sum())
    return total


def _tensors(output: Any) -> Iterator[Tensor]:
    """Yield the tensors of a model's output in order; other objects, such as caches, are skipped."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)


def copy_inputs(inputs: Any) -> Any:
    """Copy the inputs of a forward call, in case the call changes them."""
    if isinstance(inputs, Tensor):
        return inputs.clone()
    if isinstance(inputs, Mapping):
        return {name: copy_inputs(value) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple) and not hasattr(inputs, "_fields"):
        return type(inputs)(copy_inputs(value) for value in inputs)
    return deepcopy(inputs)


def _list_of(path: str) -> str:
    """Return the path of the module list that a block belongs to: its own path up to the first number."""
    return ".".join(takewhile(lambda part: not part.isdigit(), path.split(".")))


class Positions:
    """The block numbers of each module, known from the lists of blocks only; they check under which layer attention is
    read.

    names  paths of the modules. If the blocks of a stack come from several lists, as of a tower and the language model
           behind it, numbers with and without the lists before are accepted, since a list may not run in a call.
    """

    def __init__(self, blocks: Mapping[str, list[nn.Module]], names: Mapping[nn.Module, str] | None = None) -> None:
        """Number the blocks of each stack, and note which modules are in them."""
        self.numbers: dict[nn.Module, set[tuple[str, int]]] = {}
        self.depth = {stack: len(listed) for stack, listed in blocks.items()}
        paths = names or {}
        for stack, listed in blocks.items():
            before = {0}
            for _, own in groupby(listed, lambda block: _list_of(paths.get(block, ""))):
                numbered = list(enumerate(own, start=1))
                for number, block in numbered:
                    for module in block.modules():
                        self.numbers.setdefault(module, set()).update((stack, n + number) for n in before)
                before |= {n + len(numbered) for n in before}

    def contradict(self, module: nn.Module, site: Site) -> bool:
        """Return whether attention of `module` was read under the wrong layer.

        False for layers after the last block: they belong to a model that runs its blocks repeatedly.

        site   where the attention was read, with the number of the layer
        """
        numbers = self.numbers.get(module)
        if numbers is None or (site.layer or 0) > self.depth.get(site.stack, 0):
            return False
        return (site.stack, site.layer) not in numbers
