"""Vectors computed elsewhere: one array per layer, in memory or in a file, read in blocks as needed."""

import math
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.batch import Batch, Stream
from anisoscope.data.plans import Index, Plan, batch_in_order
from anisoscope.errors import CorpusError, UsageError

STACK = "vectors"  # the stack of vectors that no model made here
BLOCK_BYTES = 1 << 25  # bytes of vectors read at once: 32 MiB of float64 of one layer
MOST_ROWS = 4096  # of a batch: narrow vectors would fill it with a hundred thousand
CURE = "store numbers [vector, dim] or [sequence, token, dim]"


@dataclass(frozen=True)
class VectorArrays:
    """Vectors to measure: an array for each layer, [vector, dim] or [sequence, token, dim], of the same vectors in
    each.

    units   [vector] or [sequence]: number of the unit (independent piece of data) that it belongs to
    labels  [vector]: index of its class in `classes`; None: no classes
    mask    [sequence, token] bool: True for real tokens; None: all are real
    """

    name: str
    layers: Mapping[str, Any]
    units: Index
    labels: Index | None = None
    classes: tuple[str, ...] = ()
    mask: NDArray[np.bool_] | None = None
    source: dict[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every layer's array."""
        return tuple(next(iter(self.layers.values())).shape)

    @property
    def are_sequences(self) -> bool:
        """Return whether the arrays hold sequences [sequence, token, dim] rather than single vectors [vector, dim]."""
        return len(self.shape) == 3

    def block(self, layer: str, rows: Index) -> Tensor:
        """Read rows of a layer into memory, as a floating-point tensor [sequence, token, dim]."""
        # Rows of a batch lie next to each other, so a slice is enough: of a mapped file
        # only these are read.
        part = self.layers[layer][rows[0] : rows[-1] + 1]
        if not isinstance(part, Tensor):
            part = torch.from_numpy(to_native(part))
        x = part.detach().cpu()
        if x.dtype not in (torch.float32, torch.float64):
            # a float32 does not hold all whole numbers of more than two bytes
            is_long_integer = not x.is_floating_point() and x.dtype.itemsize > 2
            x = x.double() if is_long_integer else x.float()
        # Capture and sums know sequences alone: a single vector is a sequence of one
        # token.
        if x.dim() == 2:
            x = x.unsqueeze(1)
        return x


def to_native(x: NDArray[Any]) -> NDArray[Any]:
    """Copy an array to a type that PyTorch has: native byte order, at most 8 bytes a number."""
    # numpy's longdouble has 16
    if x.dtype.itemsize > 8 and x.dtype.kind == "f":
        return np.array(x, np.float64)
    return np.array(x, x.dtype.newbyteorder("="))


def to_dense(x: Any) -> Any:
    """Turn a sparse or quantised array or tensor into a dense one. UsageError for a nested tensor."""
    if isinstance(x, Tensor):
        if x.is_nested:
            cure = "pad it: torch.nested.to_padded_tensor(x, 0.0), and give a mask"
            raise UsageError("a tensor with a shape", "a nested tensor", cure)
        # Measured are the numbers, not the integers that stand for them.
        if x.is_quantized:
            return x.dequantize()
        if x.layout == torch.strided:
            return x
        return x.to_dense()
    # by the name of its module: scipy is not imported for those who do not use it
    if type(x).__module__.startswith("scipy.sparse"):
        return x.toarray()
    return x


def wrap_vectors(
    arrays: Any,
    *,
    units: Iterable[Hashable] | None = None,
    labels: Iterable[Hashable] | None = None,
    mask: Any = None,
    name: str = "vectors",
    source: dict[str, Any] | None = None,
) -> VectorArrays:
    """Check arrays of vectors and make `VectorArrays` of them.

    arrays   an array or tensor [vector, dim] or [sequence, token, dim]; or a list or dict with one for each layer. A
             list of arrays [token, dim] of different lengths holds sequences, as serving engines return them; a
             generator yields vectors or sequences one by one, never layers
    units    for each vector or sequence, its unit (independent piece of data); None: each is its own
    labels   the class of each vector; None: no classes
    mask     which tokens are real [sequence, token]; None: all
    name     of the vectors, for errors and the run
    source   the manifest's entry on where they are from

    UsageError if these do not fit together.
    """
    is_generator = isinstance(arrays, Iterator)
    # A generator can be read only once, and shapes and lengths are needed before.
    if is_generator:
        arrays = list(arrays)
    if is_generator or _are_ragged(arrays):
        _refuse_mask_of_items(mask)
        arrays, mask = _join_items(arrays)
    layers = _check_layers(arrays, name)
    # All layers have the vectors of the same texts: the first one stands for all.
    first = next(iter(layers.values()))
    if len(first) == 0:
        raise CorpusError("at least one vector", f"an empty array in {name}", CURE)
    # a label belongs to a vector, and a sequence has several
    if labels is not None and first.ndim == 3:
        raise UsageError(
            "labels only with single vectors [vector, dim]",
            f"sequences {list(first.shape)}",
            "pool them: x.mean(1)",
        )
    if mask is not None:
        mask = _check_mask(mask, first)
    unit_numbers = _number_units(units, len(first))
    label_numbers: Index | None = None
    classes: tuple[str, ...] = ()
    if labels is not None:
        label_numbers, classes = _number_entries(labels, len(first), "label")
    return VectorArrays(
        name, layers, unit_numbers, label_numbers, classes, mask, source or {}
    )


def _refuse_mask_of_items(mask: Any) -> None:
    """Raise UsageError if a mask was given for sequences that are not padded."""
    if mask is not None:
        cure = "leave the mask out: the lengths say which tokens are real"
        raise UsageError(
            "a mask only with padded sequences",
            "one with sequences of their own lengths",
            cure,
        )


def _number_units(units: Iterable[Hashable] | None, count: int) -> Index:
    """Return the number of each vector's or sequence's unit; without units, each is its own.

    count   how many vectors or sequences there are
    """
    if units is None:
        return np.arange(count)
    numbers, _ = _number_entries(units, count, "unit")
    return numbers


def _check_mask(mask: Any, array: Any) -> NDArray[np.bool_]:
    """Return the mask [sequence, token] as booleans. UsageError if it does not fit the array [sequence, token, dim]."""
    expected = array.shape[:2]
    if array.ndim != 3 or tuple(mask.shape) != tuple(expected):
        raise UsageError(
            f"a mask of the shape {list(expected)}",
            str(list(mask.shape)),
            "give one entry per token",
        )
    # A mask of 0 and 1, of numpy or of torch, serves as well.
    return np.asarray(mask).astype(bool)


def _check_layers(arrays: Any, name: str) -> dict[str, Any]:
    """Return dense arrays by layer. UsageError if one cannot be vectors, or layers are not of the same vectors.

    arrays   one, a list or a dict of them
    name     of what holds them, for errors
    """
    layers: dict[str, Any] = {}
    for layer, x in _name_layers(arrays).items():
        layers[layer] = to_dense(x)
    if not layers:
        raise UsageError("at least one array of vectors", "none", CURE)
    first = next(iter(layers.values()))
    for layer, x in layers.items():
        _check_array(layer, x, name)
        if x.shape[:-1] != first.shape[:-1]:
            got = (
                f"{list(x.shape)} in {layer!r} and {list(first.shape)} in another layer"
            )
            raise UsageError(
                "layers of the same shape, as they are of the same vectors",
                got,
                "measure these layers separately",
            )
    return layers


def _name_layers(arrays: Any) -> Mapping[str, Any]:
    """Return {name of a layer: its array}: a dict unchanged, a list with the names "0", "1" …, one array as "0"."""
    if isinstance(arrays, Mapping):
        return arrays
    if not isinstance(arrays, list | tuple):
        arrays = [arrays]
    return {str(number): x for number, x in enumerate(arrays)}


def _are_ragged(arrays: Any) -> bool:
    """Return whether a list holds sequences rather than layers: arrays [token, dim] of different lengths."""
    if not isinstance(arrays, list | tuple):
        return False
    if not all(getattr(x, "ndim", 0) == 2 for x in arrays):
        return False
    widths = {x.shape[1] for x in arrays}
    # Layers of one text have the same length, so different ones mean sequences.
    lengths = set(map(len, arrays))
    return len(widths) == 1 and len(lengths) > 1


def _join_items(
    items: list[Any] | tuple[Any, ...],
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Join vectors [dim] to one array [vector, dim], or sequences [token, dim] to a padded one [sequence, token, dim].

    Returns (array, which tokens are real [sequence, token] or None for vectors). UsageError for items of other shapes.
    """
    parts = list(map(_convert_item, items))
    widths = {x.shape[-1:] for x in parts}
    axes = {x.ndim for x in parts}
    # All of them vectors, or all of them sequences: a mixture has no meaning.
    if len(widths) != 1 or axes not in ({1}, {2}):
        got = ", ".join(str(list(x.shape)) for x in parts[:3]) or "nothing"
        raise UsageError(
            "vectors [dim], or sequences [token, dim], of one width", got, CURE
        )
    if axes == {1}:
        return np.stack(parts), None
    lengths = np.array(list(map(len, parts)))
    # [1, token] < [sequence, 1]
    mask = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros((*mask.shape, parts[0].shape[1]), np.result_type(*parts))
    # a boolean index runs row by row: sequence after sequence
    padded[mask] = np.concatenate(parts)
    return padded, mask


def _convert_item(x: Any) -> NDArray[Any]:
    """Return a vector or sequence as a numpy array; half precision becomes float32, since numpy has no bfloat16."""
    if isinstance(x, Tensor):
        x = to_dense(x.detach().cpu())
        if x.is_floating_point() and x.dtype.itemsize < 4:
            x = x.float()
    return np.asarray(x)


def _check_array(layer: str, x: Any, name: str) -> None:
    """Raise UsageError for an array that cannot be vectors; CorpusError for text that came from a file.

    layer   name of the array `x`
    name    the file that it came from; `vectors` if it came from the caller
    """
    shape = getattr(x, "shape", None)
    kind = str(getattr(x, "dtype", type(x).__name__))
    if isinstance(x, np.ndarray):
        # `float64` of big-endian numbers too
        kind = str(x.dtype.newbyteorder("="))
    if shape is None:
        raise UsageError(
            "arrays or tensors as vectors", kind, "convert them: numpy.asarray(…)"
        )
    is_from_file = name != "vectors"
    if len(shape) not in (2, 3):
        cure = "add an axis: x[None]" if len(shape) == 1 else CURE
        place = f" in {name}, {layer!r}" if is_from_file else ""
        raise UsageError(
            "vectors [vector, dim] or [sequence, token, dim]",
            f"{list(shape)}{place}",
            cure,
        )
    if re.search("float|int", kind):
        return
    # numpy's types of texts: <U5, |S3
    is_text = re.fullmatch(r"[<>|=]?[US]\d+", kind) is not None
    if is_text:
        kind = "text"
    got = f"{kind} in {layer!r}"
    if is_text and is_from_file:
        raise CorpusError("real numbers as vectors", got, CURE)
    raise UsageError("real numbers as vectors", got, CURE)


def _number_entries(
    entries: Iterable[Hashable], count: int, what: str
) -> tuple[Index, tuple[str, ...]]:
    """Number the distinct entries in order of appearance. Returns (number of each entry, names of the numbers).

    what   what the entries are, for errors

    UsageError for missing entries, or if there are not `count` of them.
    """
    # numpy cannot read a tensor that is on an accelerator
    given: Any = entries.cpu() if isinstance(entries, Tensor) else list(entries)
    values = np.asarray(given)
    if len(values) != count:
        raise UsageError(
            f"a {what} for each of {count} vectors or sequences",
            str(len(values)),
            f"give one {what} per vector or sequence",
        )
    numbers, names = pd.factorize(values)
    # pandas gives -1 to what is missing
    if (numbers < 0).any():
        raise UsageError(
            f"a {what} for every vector",
            f"{(numbers < 0).sum()} missing",
            f"fill in the {what}s",
        )
    return numbers.astype(np.int64), tuple(map(str, names))


class VectorPlan(Plan):
    """Batches of vectors: a single vector counts as a sequence of one token; sequences stay as they are."""

    def __init__(self, vectors: VectorArrays) -> None:
        """Divide the vectors into batches whose arrays hold at most `BLOCK_BYTES`, in order."""
        self.vectors = vectors
        self.classes = vectors.classes
        count = vectors.shape[0]
        self.length = vectors.shape[1] if vectors.are_sequences else 1
        real = np.full(count, self.length)
        if vectors.mask is not None:
            real = vectors.mask.sum(axis=1)
        widest = max(math.prod(x.shape[1:]) for x in vectors.layers.values())
        # a sequence wider than the budget is still a batch of its own
        rows = max(1, min(MOST_ROWS, BLOCK_BYTES // (8 * widest)))
        batches = batch_in_order(count, rows)
        position = "token" if vectors.are_sequences else "vector"
        words = {"position": position, "counted": position}
        super().__init__(batches, real, vectors.units, self._identity(batches), words)

    def _identity(self, batches: list[Index]) -> Iterator[Any]:
        """Yield everything that the plan's hash depends on: numbers, units, labels, mask and class names.

        batches   row numbers of each batch
        """
        # The numbers themselves, block by block, so that a file larger than memory can
        # be hashed.
        vectors = self.vectors
        for layer, x in vectors.layers.items():
            yield f"{layer} {list(x.shape)} {x.dtype}"
            for rows in batches:
                yield vectors.block(layer, rows).contiguous().numpy()
        # a word in place of what is missing: else units without labels would hash like labels without units
        for part in (vectors.units, vectors.labels, vectors.mask):
            yield "none" if part is None else part
        yield repr(vectors.classes)

    def build(self, rows: Index) -> Batch:
        """Build the batch of these rows: a block of every layer, with mask, units (documents, clips, images) and
        labels.
        """
        vectors = self.vectors
        layers = {layer: vectors.block(layer, rows) for layer in vectors.layers}
        mask = torch.ones(len(rows), self.length, dtype=torch.bool)
        if vectors.mask is not None:
            mask = torch.from_numpy(vectors.mask[rows])
        stream = Stream(
            # Tokens of a sequence are counted through: (unit, start + column) must name
            # one token.
            mask,
            torch.zeros_like(mask),
            torch.from_numpy(rows) * self.length,
        )
        label = None
        if vectors.labels is not None:
            label = torch.from_numpy(vectors.labels[rows])
        return Batch(
            layers, torch.from_numpy(vectors.units[rows]), {STACK: stream}, label=label
        )
