"""What the plans (lists of batches) of all modalities share: batches within a budget, counted, numbered and hashed."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anisoscope.axes import WORDS
from anisoscope.data.on_disk import BLOCK, IdsOnDisk
from anisoscope.errors import UsageError

if TYPE_CHECKING:  # it loads torch, which hashing needs not
    from anisoscope.batch import Batch

Index = NDArray[np.int64]
Column = NDArray[np.signedinteger[Any]]
"""Integers of whatever type takes little memory."""


class Plan:
    """The list of batches of one corpus for one model.

    `plan[i]` builds batch i, the same in every process and every run. `call` runs a model that is not simply called
    with the batch. Subclasses say what a row is (window, clip, image, vector) and, in `build`, how rows become a
    batch.
    """

    frequency_bins: list[str]
    classes: tuple[str, ...] = ()
    call: Callable[..., Any] | None = None

    def __init__(
        self,
        batches: list[Index],
        real: Column,
        unit: Column,
        identity: Iterable[object],
        words: Mapping[str, str],
        warnings: Iterable[str] = (),
    ) -> None:
        """Set up the batches.

        batches   row numbers of each batch
        real      [row]: number of positions without padding
        unit      [row]: number of its unit (document, clip, image)
        identity  everything the batches depend on, for the hash
        words     what the corpus calls positions, units and so on
        """
        self.batches, self.unit = batches, unit
        self.tokens = [int(real[rows].sum()) for rows in batches]
        self.n_units = _count_different(unit)
        self.fingerprint = hash_parts(identity)
        self.words = WORDS | dict(words)
        self.warnings = list(warnings)
        self.frequency_bins = []

    def build(self, rows: Index) -> "Batch":
        """Build the batch of these rows."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    def __getitem__(self, index: int) -> "Batch":
        """Build batch number `index`."""
        batch = self.build(self.batches[index])
        return batch if self.call is None else replace(batch, call=self.call)

    def __iter__(self) -> Iterator["Batch"]:
        """Yield all batches in order, each built when it is asked for."""
        return map(self.__getitem__, range(len(self)))


def _count_different(numbers: Column) -> int:
    """Count the different numbers. `np.unique` would take more memory."""
    ordered = np.sort(numbers)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(1, len(ordered))


def pack(lengths: Column, budget: int) -> list[Index]:
    """Group rows into batches whose padded size (rows × longest row) is at most `budget`; at least one row each.

    The longest rows come first, equal ones by row number, so that the result depends on `lengths` and `budget` alone.
    UsageError for a budget below 1.
    """
    if budget < 1:
        raise UsageError(
            "a budget of at least 1 token per batch",
            str(budget),
            "raise --batch-tokens",
        )
    # small integers are sorted: in two bytes each they take a fraction of the time
    shorter_by = lengths.max(initial=0) - lengths
    if len(lengths) and shorter_by.max() < 1 << 16:
        shorter_by = shorter_by.astype(np.uint16)
    order = np.argsort(shorter_by, kind="stable").astype(np.int64, copy=False)
    batches = []
    first = 0
    while first < len(order):
        # Rows are sorted, so that the first of a batch is its longest.
        rows = max(1, budget // max(1, int(lengths[order[first]])))
        batches.append(order[first : first + rows])
        first += rows
    return batches


def batch_in_order(count: int, rows: int) -> list[Index]:
    """Group `count` rows into batches of `rows`, in the order of the corpus."""
    return np.split(np.arange(count), range(rows, count, rows))


NUMBERS = 1 << 53
"""Numbers of units are below this, so that a float64 holds them exactly: records have them as floats."""


def number_by_content(unit: Column, hashes: Sequence[str]) -> Index:
    """Number units (documents, clips, images) by the content of their file, whatever other files are measured.

    unit     [row]: number of the unit, of which `unit mod len(hashes)` is the file, and the rest the place in it
    hashes   of the content of each file; files of equal content stay apart

    Each file begins at a number made of its hash, and goes on from there, so that its units fall into all groups. Two
    files of 10,000 with 100,000 units each share a number in one corpus out of a thousand.
    """
    seen = Counter[str]()
    starts = np.empty(len(hashes), np.int64)
    for file, hashed in enumerate(hashes):
        # A file that occurs twice begins at another number the second time.
        starts[file] = int(hash_parts([hashed, seen[hashed]])[:16], 16) % NUMBERS
        seen[hashed] += 1
    numbers: Index = (starts[unit % len(hashes)] + unit // len(hashes)) % NUMBERS
    return numbers


class Int64(NamedTuple):
    """An array of integers [row] that is hashed as int64, whatever type it has in memory."""

    array: Column

    @property
    def nbytes(self) -> int:
        """The size of the array as int64, in bytes."""
        return 8 * len(self.array)

    def iter_blocks(self) -> Iterator[Index]:
        """Yield the integers in order as int64, some at a time."""
        for first in range(0, len(self.array), BLOCK // 8):
            yield self.array[first : first + BLOCK // 8].astype(np.int64)


def hash_parts(parts: Iterable[object]) -> str:
    """Return the SHA-256 of the parts in order.

    Arrays (token ids on the disk too) are hashed by their bytes, text as UTF-8, the rest as JSON; each part is preceded
    by its length.
    """
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, IdsOnDisk | Int64):
            # The length comes first, or the parts "ab", "c" would hash like "a", "bc".
            total.update(part.nbytes.to_bytes(8, "little"))
            for block in part.iter_blocks():
                total.update(_to_bytes(block))
            continue
        if isinstance(part, np.ndarray):
            data: bytes | memoryview = _to_bytes(part)
        elif isinstance(part, str):
            data = part.encode("utf-8", "surrogatepass")
        else:
            data = json.dumps(part, sort_keys=True).encode()
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.hexdigest()


def _to_bytes(array: NDArray[Any]) -> bytes | memoryview:
    """Return the bytes of an array in row order, without a copy if it is contiguous."""
    if array.dtype.kind in "biufc" and array.flags.c_contiguous and array.size:
        return array.reshape(-1).view(np.uint8).data
    return np.ascontiguousarray(array).tobytes()


def find_decoder_start(config: Any) -> int:
    """Return the id of the token that a decoder's input begins with, as the model's configuration names it; else 0."""
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return int(value)
    return 0
