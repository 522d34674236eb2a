"""One batch: inputs of a model, and for each stack which positions are real, which are special, and of which unit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol

import torch
from torch import Tensor

from anisoscope.errors import UsageError


@dataclass(frozen=True)
class Stream:
    """Positions of one stack's sequences: which are real, which are special.

    mask       [sequence, token] bool: a real token (True) or padding (False)
    special    [sequence, token] bool: a token added by the tokenizer or the model ([CLS], </s>, class token, register)
    start      [sequence] int64: number of the first token (column 0) in its unit, so that (unit, start + column)
               identifies a token
    frequency  [sequence, token] int64 or None: token-frequency bin, 0 = rarest; −1 where undefined (special, padding)
    punctuation  [sequence, token] bool or None: a token of nothing but punctuation or line breaks
    image      [sequence, token] bool or None: a token that stands for a part of an image
    """

    mask: Tensor
    special: Tensor
    start: Tensor
    frequency: Tensor | None = None
    punctuation: Tensor | None = None
    image: Tensor | None = None

    def __post_init__(self) -> None:
        """Raise UsageError unless all tensors have the shape of the mask, and `start` one number per sequence."""
        shape = tuple(self.mask.shape)
        for name in ("special", "frequency", "punctuation", "image"):
            tensor = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != shape:
                raise UsageError(
                    f"`{name}` of the mask's shape {shape}",
                    str(tuple(tensor.shape)),
                    f"give `{name}` that shape",
                )
        if len(shape) != 2 or tuple(self.start.shape) != shape[:1]:
            got = f"a mask of {shape} and starts of {tuple(self.start.shape)}"
            raise UsageError(
                "a mask [sequence, token] and a start for each sequence",
                got,
                "give both the same number of sequences",
            )

    def to(self, device: torch.device) -> "Stream":
        """Return a copy of the stream on a device."""
        return self.map_tensors(lambda x: x.to(device))

    def map_tensors(self, act: Callable[[Tensor], Tensor]) -> "Stream":
        """Return a copy of the stream with `act` applied to each of its tensors; what is None stays None."""

        def act_if_any(x: Tensor | None) -> Tensor | None:
            """Return `act` of a tensor; None for None."""
            return None if x is None else act(x)

        return Stream(
            act(self.mask),
            act(self.special),
            act(self.start),
            act_if_any(self.frequency),
            act_if_any(self.punctuation),
            act_if_any(self.image),
        )


@dataclass(frozen=True)
class Batch:
    """One forward call: `inputs` are the model's keyword arguments, `unit` [sequence] the index of each sequence's
    unit in the corpus, `streams` the positions of each stack (`encoder`, `decoder`); a stack not named here has one
    fully real stream. `call` runs the model on the inputs; None: it is simply called with them. `label` [sequence]:
    the number of each sequence's class (below 0: none), of the plan's `classes`.
    """

    inputs: dict[str, Any]
    unit: Tensor
    streams: dict[str, Stream] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    label: Tensor | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for a batch without sequences, or if labels or masks are not one for each sequence."""
        count = len(self.unit)
        if not count:
            raise UsageError(
                "a batch of at least one sequence",
                "an empty one",
                "leave empty batches out of the plan",
            )
        if self.label is not None and tuple(self.label.shape) != (count,):
            expected = f"labels of {count} sequences, as many as there are units"
            raise UsageError(
                expected,
                str(tuple(self.label.shape)),
                "give one label per sequence, in order",
            )
        for name, stream in self.streams.items():
            if len(stream.mask) != count:
                got = f"{len(stream.mask)} in the stream {name}"
                raise UsageError(
                    f"masks of {count} sequences, as many as there are units",
                    got,
                    "give both the same number of sequences",
                )

    def split(self, count: int) -> "list[Batch]":
        """Split the batch into `count` smaller batches of whole sequences, to run it in less memory.

        UsageError if an input tensor has not one row per sequence.
        """
        if count == 1:
            return [self]
        # Rounded up, so that there are at most `count` parts and the last may be
        # shorter.
        size = ceil(len(self.unit) / count)
        return [
            self._select(slice(first, first + size))
            for first in range(0, len(self.unit), size)
        ]

    def _select(self, rows: slice) -> "Batch":
        """Return a batch of only these sequences: inputs, units, streams and labels."""

        def cut(value: Any) -> Any:
            """Return the rows of a tensor, or of all tensors in a mapping; other values unchanged.

            UsageError for a tensor that has not one row per sequence.
            """
            if isinstance(value, Mapping):
                return {name: cut(x) for name, x in value.items()}
            # Numbers without a dimension hold for all sequences alike.
            if isinstance(value, Tensor) and value.dim():
                if len(value) != len(self.unit):
                    got = f"a tensor {list(value.shape)} for {len(self.unit)} sequences"
                    raise UsageError(
                        "inputs that can be cut into sequences, since memory is full",
                        got,
                        "give smaller batches",
                    )
                return value[rows]
            return value

        streams = {
            stack: stream.map_tensors(lambda x: x[rows])
            for stack, stream in self.streams.items()
        }
        label = None if self.label is None else self.label[rows]
        return Batch(cut(self.inputs), self.unit[rows], streams, self.call, label)

    @property
    def n_tokens(self) -> int:
        """Return the number of real tokens of the first stream; without streams, the number of sequences."""
        first = next(iter(self.streams.values()), None)
        return len(self.unit) if first is None else int(first.mask.sum())


class BatchPlan(Protocol):
    """A deterministic list of batches: the same for every rank and after every resume.

    `len(plan)` batches; `plan[i]` builds batch i (padding, tensors) on demand; `plan.tokens[i]` its real tokens (for
    progress); `plan.fingerprint` a hash of corpus and settings; `plan.n_units`, the number of units;
    `plan.frequency_bins`, their labels. A plan may say in `plan.words` what its corpus calls things (`axes.WORDS`), and
    in `plan.classes` what the classes of labelled sequences are called.
    """

    tokens: list[int]
    fingerprint: str
    n_units: int
    frequency_bins: list[str]

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> Batch: ...
    def __iter__(self) -> Iterator[Batch]: ...
