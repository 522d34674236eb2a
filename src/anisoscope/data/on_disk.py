"""Keep texts and token ids in memory if they are few, else in a temporary file.

The file has no name, so nothing is left of it however the process ends.
"""

import os
import sys
import tempfile
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import CorpusError

TEXTS_HELD = 1 << 24  # bytes of texts that stay in memory
IDS_HELD = 1 << 22  # token ids that stay in memory: as many bytes
BLOCK = 1 << 20  # bytes read at once
LARGE_TEMPORARY = "/var/tmp"  # on the disk, where `/tmp` is memory on many systems
# variables by which a user chooses the folder
OF_USER = frozenset(("TMPDIR", "TEMP", "TMP"))


class _NamelessFile:
    """A temporary file that is written once, and read at any place by any thread."""

    def __init__(self) -> None:
        """Open it in the folder that the user chose, else where the system keeps large temporary files."""
        folder = tempfile.gettempdir()
        if OF_USER.isdisjoint(os.environ) and os.access(LARGE_TEMPORARY, os.W_OK):
            folder = LARGE_TEMPORARY
        # it is open as long as this object lives
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._folder = Path(folder)
        self._lock = Lock()
        self.size = 0

    def append(self, data: bytes | memoryview) -> None:
        """Write data behind what is there. CorpusError if the disk is full."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._refuse(error) from None
        self.size += len(data)

    def finish(self) -> None:
        """Write what is still in a buffer. CorpusError if the disk is full."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._refuse(error) from None

    def _refuse(self, error: OSError) -> CorpusError:
        """Make the error for data that cannot be written. The caller raises it."""
        expected = (
            f"room in {self._folder} for the texts of the corpus and 4 bytes per token"
        )
        return CorpusError(
            expected,
            str(error.strerror or error),
            "set TMPDIR to a folder with more room",
        )

    def read(self, first: int, last: int) -> bytes:
        """Return the bytes from `first` to before `last`."""
        # All threads share one position in the file: moving it and reading must not be
        # interrupted.
        with self._lock:
            self._file.seek(first)
            return self._file.read(last - first)

    def read_into(self, targets: Iterable[tuple[int, memoryview]]) -> None:
        """Fill each target with the bytes from its place on."""
        with self._lock:
            for place, target in targets:
                self._file.seek(place)
                self._file.readinto(target)


class TextsOnDisk(Sequence[str]):
    """A sequence of texts in a temporary file; 8 bytes a text are in memory."""

    def __init__(self, texts: Iterable[str]) -> None:
        """Write the texts to a temporary file. CorpusError if the disk is full."""
        self._file = _NamelessFile()
        self._ends = array("q", [0])
        for text in texts:
            # A text may hold surrogates, which plain UTF-8 refuses.
            self._file.append(text.encode("utf-8", "surrogatepass"))
            self._ends.append(self._file.size)
        self._file.finish()

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """Return a text, or a list of texts."""
        places = range(len(self))[index]
        if isinstance(places, range):
            return [self[place] for place in places]
        return self._read(places, places + 1)[0]

    def __iter__(self) -> Iterator[str]:
        """Yield the texts in order, read by blocks."""
        first = 0
        while first < len(self):
            # as many as fit into a block, one at least
            last = max(
                first + 1, bisect_right(self._ends, self._ends[first] + BLOCK) - 1
            )
            yield from self._read(first, last)
            first = last

    def _read(self, first: int, last: int) -> list[str]:
        """Return the texts from number `first` to before `last`."""
        begin = self._ends[first]
        data = self._file.read(begin, self._ends[last])
        texts = []
        for place in range(first, last):
            part = data[self._ends[place] - begin : self._ends[place + 1] - begin]
            texts.append(part.decode("utf-8", "surrogatepass"))
        return texts


def keep_texts(texts: Iterable[str]) -> Sequence[str]:
    """Return the texts as a list, or in a temporary file if they take more than `TEXTS_HELD` bytes."""
    held: list[str] = []
    size = 0
    rest = iter(texts)
    for text in rest:
        held.append(text)
        size += sys.getsizeof(text)
        if size > TEXTS_HELD:
            return TextsOnDisk(chain(empty_list(held), rest))
    return held


def empty_list(held: list[str]) -> Iterator[str]:
    """Yield the texts of a list in order, and remove each from it, so that memory is freed on the way."""
    held.reverse()
    while held:
        yield held.pop()


class IdsOnDisk:
    """Token ids [position] int32 in a temporary file."""

    def __init__(self, pieces: Iterable[NDArray[np.int32]]) -> None:
        """Write the ids, which come in pieces [position], to a temporary file. CorpusError if the disk is full."""
        self._file = _NamelessFile()
        for piece in pieces:
            self._file.append(_view_bytes(piece))
        self._file.finish()

    def __len__(self) -> int:
        """Return the number of ids."""
        return self._file.size // 4

    @property
    def nbytes(self) -> int:
        """The size of the ids in bytes."""
        return self._file.size

    def iter_blocks(self) -> Iterator[NDArray[np.int32]]:
        """Yield all ids in order, some at a time."""
        for first in range(0, self._file.size, BLOCK):
            yield np.frombuffer(
                self._file.read(first, min(first + BLOCK, self._file.size)), np.int32
            )

    def read_ranges(
        self, first: NDArray[Any], count: NDArray[Any]
    ) -> NDArray[np.int32]:
        """Return `count[i]` ids from position `first[i]` on, for all i, joined in one array [id]."""
        ends = np.cumsum(count)
        found = np.empty(int(ends[-1]), np.int32)
        target = _view_bytes(found)
        ranges = zip(
            first.tolist(), (ends - count).tolist(), ends.tolist(), strict=True
        )
        self._file.read_into(
            (4 * place, target[4 * begin : 4 * end]) for place, begin, end in ranges
        )
        return found


Ids = NDArray[np.int32] | IdsOnDisk


def keep_ids(pieces: Iterable[NDArray[np.int32]]) -> Ids:
    """Join pieces of token ids: in memory, or in a temporary file if there are more than `IDS_HELD`."""
    held = array("i")
    rest = iter(pieces)
    for piece in rest:
        held.frombytes(_view_bytes(piece))
        if len(held) > IDS_HELD:
            return IdsOnDisk(chain(_empty_ids(held), rest))
    return np.array(held, np.int32)


def _empty_ids(held: "array[int]") -> Iterator[NDArray[np.int32]]:
    """Yield the ids of an array in order, then empty it."""
    for first in range(0, len(held), BLOCK // 4):
        yield np.array(held[first : first + BLOCK // 4], np.int32)
    del held[:]


def iter_blocks(ids: Ids) -> Iterator[NDArray[np.int32]]:
    """Yield token ids in order, some at a time."""
    if isinstance(ids, IdsOnDisk):
        yield from ids.iter_blocks()
        return
    for first in range(0, len(ids), BLOCK // 4):
        yield ids[first : first + BLOCK // 4]


def _view_bytes(ids: NDArray[np.int32]) -> memoryview:
    """Return the bytes of token ids without a copy."""
    return ids.view(np.uint8).data
