"""Vectors that were made elsewhere: arrays in memory or in a file, one per layer, in blocks that are read as needed."""

import re
import zlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor

from anisoscope.batch import Batch, Stream
from anisoscope.data.plans import Index, Plan, in_order
from anisoscope.errors import CorpusError, UsageError, near_matches
from anisoscope.store import read_table

ENDINGS = (".npy", ".npz", ".safetensors", ".parquet", ".csv", ".tsv")
STACK = "vectors"  # the stack of vectors that no model made here
BLOCK_BYTES = 1 << 25  # bytes of vectors read at once: 32 MiB of float64 of one layer
UNITS, LABELS, MASK = ("units", "unit"), ("labels", "label"), ("mask", "attention_mask")
"""Names that arrays beside the vectors go by in a .npz or .safetensors file."""
CURE = "store numbers [vector, dim] or [sequence, token, dim]"
DAMAGED = (
    OSError,
    ValueError,
    EOFError,
    SafetensorError,
    BadZipFile,
    zlib.error,
    TokenError,
    RuntimeError,
    SyntaxError,
)
"""What readers of such files raise: an archive that wants a password RuntimeError, a header that is no Python the last.
"""


def holds_vectors(name: str | Path) -> bool:
    """Whether `name` is a file of vectors, by its ending."""
    path = Path(name).expanduser()
    return path.suffix.lower() in ENDINGS and path.is_file()


@dataclass(frozen=True)
class Vectors:
    """Arrays by layer, each [vector, dim] or [sequence, token, dim] of as many vectors (or sequences) as the others.

    units   [vector] or [sequence]: the number of its independent piece of data
    labels  [vector]: the number of its class, of `classes`; None: no classes
    mask    [sequence, token] bool: what is real; None: everything
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
        return tuple(next(iter(self.layers.values())).shape)

    @property
    def are_sequences(self) -> bool:
        return len(self.shape) == 3

    def block(self, layer: str, rows: Index) -> Tensor:
        """Vectors of a layer [sequence, token, dim], floating-point, of rows that follow one another."""
        part = self.layers[layer][rows[0] : rows[-1] + 1]
        x = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(native(part))
        if not x.is_floating_point() and x.dtype.itemsize > 2:  # a float32 does not hold them
            x = x.double()
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
        return x if x.dim() == 3 else x.unsqueeze(1)


def native(x: NDArray[Any]) -> NDArray[Any]:
    """A copy of an array in a type that torch has: in the byte order of this machine, of 8 bytes a number at most."""
    return np.array(x, np.float64 if x.dtype.itemsize > 8 and x.dtype.kind == "f" else x.dtype.newbyteorder("="))


def given_vectors(
    arrays: Any,
    *,
    units: Iterable[Hashable] | None = None,
    labels: Iterable[Hashable] | None = None,
    mask: Any = None,
    name: str = "vectors",
    source: dict[str, Any] | None = None,
) -> Vectors:
    """Vectors from an array or tensor, a list of them (layer by layer), or a dict of them.

    UsageError where they do not fit together: other shapes than [vector, dim] or [sequence, token, dim], layers of
    different lengths, units, labels or a mask of another length.
    """
    if not isinstance(arrays, Mapping):
        arrays = {str(i): x for i, x in enumerate(arrays if isinstance(arrays, list | tuple) else [arrays])}
    if not arrays:
        raise UsageError("at least one array of vectors", "none", CURE)
    layers = dict(arrays)
    first = next(iter(layers.values()))
    for layer, x in layers.items():
        _check_array(layer, x, name)
        if x.shape[:-1] != first.shape[:-1]:
            got = f"{list(x.shape)} in {layer!r} beside {list(first.shape)}"
            raise UsageError("layers of the same vectors", got, "measure what differs apart")
    count, sequences = len(first), first.ndim == 3
    if count == 0:
        raise CorpusError("at least one vector", f"an empty array in {name}", CURE)
    if labels is not None and sequences:
        raise UsageError("labels of vectors [vector, dim]", f"sequences {list(first.shape)}", "pool them: x.mean(1)")
    if mask is not None and (not sequences or tuple(mask.shape) != tuple(first.shape[:2])):
        raise UsageError(f"a mask of the shape {list(first.shape[:2])}", str(list(mask.shape)), "one entry a token")
    number, _ = _numbered(units, count, "unit") if units is not None else (np.arange(count), ())
    classes, names = _numbered(labels, count, "label") if labels is not None else (None, ())
    real = None if mask is None else np.asarray(mask).astype(bool)
    return Vectors(name, layers, number, classes, names, real, source or {})


def _check_array(layer: str, x: Any, name: str) -> None:
    """UsageError for what cannot be vectors; CorpusError for the text of a file."""
    shape, kind = getattr(x, "shape", None), str(getattr(x, "dtype", type(x).__name__))
    kind = str(x.dtype.newbyteorder("=")) if isinstance(x, np.ndarray) else kind
    if shape is None:
        raise UsageError("arrays or tensors as vectors", kind, "convert them: numpy.asarray(…)")
    if len(shape) not in (2, 3):
        cure = "add an axis: x[None]" if len(shape) == 1 else CURE
        where = f" in {name}, {layer!r}" if name != "vectors" else ""
        raise UsageError("vectors [vector, dim] or [sequence, token, dim]", f"{list(shape)}{where}", cure)
    if not re.search("float|int", kind):
        text = re.fullmatch(r"[<>|=]?[US]\d+", kind)
        error = CorpusError if text and name != "vectors" else UsageError
        raise error("real numbers as vectors", f"{'text' if text else kind} in {layer!r}", CURE)


def _numbered(entries: Iterable[Hashable], count: int, what: str) -> tuple[Index, tuple[str, ...]]:
    """Each entry's number and the names of the numbers, in order of appearance. UsageError for missing ones."""
    values = np.asarray(entries.cpu() if isinstance(entries, Tensor) else list(entries))
    if len(values) != count:
        raise UsageError(f"a {what} for each of {count} vectors or sequences", str(len(values)), f"one {what} each")
    numbers, names = pd.factorize(values)
    if (numbers < 0).any():
        raise UsageError(f"a {what} for every vector", f"{(numbers < 0).sum()} missing", f"fill in the {what}s")
    return numbers.astype(np.int64), tuple(str(name) for name in names)


def open_vectors(path: str | Path, *, unit_column: str | None = None, label_column: str | None = None) -> Vectors:
    """Vectors in a file: an array (.npy, read in blocks), several by layer (.npz, .safetensors), or a table (.parquet,
    .csv, .tsv) whose numbers are dimensions, or whose columns of lists are layers.

    unit_column, label_column  the column, or the array beside the vectors, of units and of classes. CorpusError for a
    file that cannot be read, and for one with objects instead of numbers
    """
    place = Path(path).expanduser()
    if place.suffix.lower() not in ENDINGS:
        raise CorpusError(f"a file of vectors ({', '.join(ENDINGS)})", str(path), "convert it, for instance to .npy")
    try:
        found = _read(place)
    except DAMAGED as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        objects = any(word in reason.lower() for word in ("pickle", "object"))
        reason = "a file of objects, or none of numpy's" if objects else reason
        cure = "store numbers, not objects" if objects else "write the file again"
        raise CorpusError(f"vectors in {place}", reason, cure) from error
    units, labels = _beside(found, unit_column, UNITS), _beside(found, label_column, LABELS)
    mask = _beside(found, None, MASK)
    if found and isinstance(next(iter(found.values())), pd.Series):
        found = _of_columns(found, place)
    source = {"kind": "vectors", "path": str(place.resolve())}
    return given_vectors(found, units=units, labels=labels, mask=mask, name=place.name, source=source)


def _read(path: Path) -> dict[str, Any]:
    """What a file holds, by name: arrays, read where they are sliced if the format lets them, or columns of a table."""
    kind = path.suffix.lower()
    if kind in (".parquet", ".csv", ".tsv"):
        frame = read_table(path) if kind == ".parquet" else pd.read_csv(path, sep="\t" if kind == ".tsv" else ",")
        return {str(name): frame[name] for name in frame}
    if kind == ".safetensors":
        file = safe_open(path, framework="pt")
        return {name: file.get_tensor(name) for name in sorted(file.keys(), key=_natural)}  # type: ignore[no-untyped-call]
    loaded = np.load(path, mmap_mode="r", allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return {path.stem: loaded}
    return {name: loaded[name] for name in sorted(loaded.files, key=_natural)}


def _natural(name: str) -> list[Any]:
    """`layer.2` before `layer.10`."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name)]


def _beside(found: dict[str, Any], asked: str | None, known: Sequence[str]) -> Any:
    """What stands beside the vectors, taken out of them: as asked for, or by a known name."""
    if asked is not None and asked not in found:
        raise CorpusError("a column or an array of the file", repr(asked), near_matches(asked, found))
    name = asked or next((name for name in known if name in found), None)
    if name is None:
        return None
    return np.asarray(found.pop(name)) if known is MASK else found.pop(name).tolist()


def _of_columns(found: dict[str, Any], path: Path) -> dict[str, Any]:
    """The layers of a table: its columns of lists, else all its numbers as one."""
    lists = {n: c for n, c in found.items() if len(c) and isinstance(c.iloc[0], list | tuple | np.ndarray)}
    try:
        if lists:
            return {name: np.stack([np.asarray(row, dtype=np.float64) for row in c]) for name, c in lists.items()}
        words = [name for name, column in found.items() if not pd.api.types.is_numeric_dtype(column)]
        if words:
            cure = "name it: --unit-column, --label-column; leave out the others"
            raise CorpusError(f"columns of numbers in {path}", f"text in {', '.join(words)}", cure)
        return {path.stem: np.stack([column.to_numpy(np.float64) for column in found.values()], axis=1)}
    except ValueError as error:
        raise CorpusError(f"lists of one length in {path}", str(error), "every row has the same dimensions") from error


class VectorPlan(Plan):
    """Blocks of vectors as batches: a vector is a sequence of one token, or its sequences are as they came."""

    def __init__(self, vectors: Vectors) -> None:
        self.vectors, self.classes = vectors, vectors.classes
        count, widest = vectors.shape[0], max(int(np.prod(x.shape[1:])) for x in vectors.layers.values())
        self.length = vectors.shape[1] if vectors.are_sequences else 1
        real = np.full(count, self.length) if vectors.mask is None else vectors.mask.sum(axis=1)
        batches = in_order(count, max(1, min(4096, BLOCK_BYTES // (8 * widest))))
        position = "token" if vectors.are_sequences else "vector"
        words = {"position": position, "counted": position}
        super().__init__(batches, real, vectors.units, self._identity(batches), words)

    def _identity(self, batches: list[Index]) -> Iterator[Any]:
        """Every number, and units, labels and mask."""
        vectors = self.vectors
        for layer, x in vectors.layers.items():
            yield f"{layer} {list(x.shape)} {x.dtype}"
            for rows in batches:
                yield vectors.block(layer, rows).contiguous().numpy()
        for beside in (vectors.units, vectors.labels, vectors.mask):
            yield "none" if beside is None else beside
        yield repr(vectors.classes)

    def build(self, rows: Index) -> Batch:
        vectors = self.vectors
        layers = {layer: vectors.block(layer, rows) for layer in vectors.layers}
        mask = torch.ones(len(rows), self.length, dtype=torch.bool)
        if vectors.mask is not None:
            mask = torch.from_numpy(vectors.mask[rows])
        stream = Stream(mask, torch.zeros_like(mask), torch.from_numpy(rows) * self.length)
        label = None if vectors.labels is None else torch.from_numpy(vectors.labels[rows])
        return Batch(layers, torch.from_numpy(vectors.units[rows]), {STACK: stream}, label=label)
