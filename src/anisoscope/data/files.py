r"""Read files as text: gzip unpacked, UTF-8, line ends as `\n`, and one clear error for each thing that can be wrong.

Files are read in pieces, and no more than a budget of memory holds, since a small file may unpack to any size.
"""

import codecs
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from anisoscope.errors import CorpusError

PACKED = (EOFError, zlib.error, gzip.BadGzipFile)  # what a damaged gzip file raises
PIECE = 1 << 20  # bytes that are read at once
LONGEST_LINE = 1 << 28  # characters: more are no line of a text or a table
SHARE = 0.25  # of the memory that is free, for one file: what is made of it takes several times as much
FREE = 1 << 30  # bytes taken to be free when the system does not say
_UNDECODED = re.compile("[\ud800-\udfff]")


def get_ending(path: Path) -> str:
    """Return the last part of a file's name in lower case, without `.gz`: `.jsonl` for `a.JSONL.gz`."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def get_stem(path: Path) -> str:
    """Return a file's name without its ending and `.gz`."""
    name = path.name.removesuffix(".gz")
    return Path(name).stem


def list_files_below(folder: Path) -> list[Path]:
    """List all files below a folder in path order, without hidden ones."""
    return [
        file
        for file in sorted(folder.rglob("*"))
        if file.is_file() and not file.name.startswith(".")
    ]


# ---- budgets ---------------------------------------------------------------------------------------------------------


def get_memory_budget() -> int:
    """Return how many bytes one file may take in memory: a fixed share of the memory that is free now."""
    try:
        text = Path("/proc/meminfo").read_text("ascii")
        # The line is `MemAvailable: N kB`.
        free = int(text.partition("MemAvailable:")[2].split()[0]) * 1024
    except (OSError, ValueError, IndexError):  # not Linux
        try:
            # Neither of them on every system: macOS does not know the first name,
            # Windows has no `sysconf`.
            free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError, AttributeError):
            free = FREE
    return int(SHARE * free)


def refuse_large_file(path: Path, size: int, budget: int, cure: str) -> CorpusError:
    """Make the error for a file that would take more memory than its budget. The caller raises it.

    size, budget   in bytes
    cure           what to do
    """
    expected = f"at most {_write_size(budget)} of content in {path}, a quarter of the free memory"
    return CorpusError(expected, f"{_write_size(size)} or more", cure)


def _write_size(size: int) -> str:
    """Write a number of bytes in MiB or GiB."""
    if size >= 1 << 30:
        return f"{size / (1 << 30):.1f} GiB"
    return f"{size / (1 << 20):.0f} MiB"


SMALLER = "read less of it with --limit, or divide it into several files"


# ---- content ---------------------------------------------------------------------------------------------------------


def open_unpacked(path: Path) -> IO[bytes]:
    """Open a file for reading bytes; gzip is unpacked on the fly."""
    if path.name.lower().endswith(".gz"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return path.open("rb")


def read_bytes(path: Path) -> bytes:
    """Read the whole content of a file, unpacked. CorpusError if it is too large or cannot be read."""
    budget, size, pieces = get_memory_budget(), 0, []
    try:
        with open_unpacked(path) as file:
            while piece := file.read(PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > budget:
                    raise refuse_large_file(
                        path, size, budget, "divide it into several files"
                    )
    except (*PACKED, OSError) as error:
        raise refuse_unreadable(path, error) from None
    return b"".join(pieces)


def read_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a UTF-8 file piece by piece, reading only what is asked for. CorpusError if it is not text."""
    expected = f"UTF-8 text in {path}"
    cure = "name a text file or a table; convert text in another encoding (UTF-16, Latin-1) with iconv"
    # `utf-8-sig` drops a byte order mark; \r\n becomes \n even if a piece ends between
    # them.
    decoder = io.IncrementalNewlineDecoder(
        codecs.getincrementaldecoder("utf-8-sig")(), translate=True
    )
    read = 0
    try:
        with open_unpacked(path) as file:
            while True:
                piece = file.read(PIECE)
                # Before decoding: this is how binary files and text in UTF-16 are
                # recognised.
                if b"\0" in piece:
                    raise CorpusError(
                        expected, "a binary file (it holds NUL bytes)", cure
                    )
                try:
                    text = decoder.decode(piece, final=not piece)
                except UnicodeDecodeError as error:
                    # The decoder holds back the bytes of an unfinished character, so
                    # that what it decodes may begin before this piece.
                    place = read + len(piece) - len(error.object) + error.start
                    raise CorpusError(
                        expected, f"a byte that is not UTF-8 at position {place}", cure
                    ) from None
                read += len(piece)
                if text:
                    yield text
                if not piece:
                    return
    except (*PACKED, OSError) as error:
        raise refuse_unreadable(path, error) from None


def read_text(path: Path) -> str:
    """Read the whole text of a UTF-8 file."""
    return read_start(path)[0]


def read_start(path: Path, at_least: int | None = None) -> tuple[str, bool]:
    """Read the beginning of a UTF-8 file, and return (text, whether that is all of it).

    at_least   number of characters; None: all
    """
    budget, size, pieces = get_memory_budget(), 0, []
    for piece in read_pieces(path):
        pieces.append(piece)
        size += len(piece)
        if at_least is not None and size > at_least:
            return "".join(pieces), False
        if size > budget:
            raise refuse_large_file(path, size, budget, SMALLER)
    return "".join(pieces), True


def iter_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file without their ends, reading only what is asked for.

    A line may hold bytes that are no text; `find_fault` tells. CorpusError for a line that is too long.
    """
    number = 0
    try:
        with open_unpacked(path) as raw:
            # Bytes that are not UTF-8 become lone surrogates, which `find_fault`
            # recognises: one bad line does not end the reading.
            file = io.TextIOWrapper(
                cast("Any", raw),
                encoding="utf-8-sig",
                errors="surrogateescape",
                newline=None,
            )
            # With a limit, since a file without line ends would fill the memory.
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    cure = "name a file with shorter lines"
                    raise CorpusError(
                        f"lines of at most {LONGEST_LINE:,} characters in {path}",
                        f"a longer one, line {number}",
                        cure,
                    )
                yield line.removesuffix("\n")
    except (*PACKED, OSError) as error:
        raise refuse_unreadable(path, error) from None


def find_fault(line: str) -> str:
    """Say why a line, as `iter_lines` yields it, is not UTF-8 text; empty if it is."""
    if "\0" in line:
        return "NUL bytes (a binary file, or text in UTF-16)"
    # nearly all lines are ASCII, which is known without a search
    if line.isascii() or not _UNDECODED.search(line):
        return ""
    return "bytes that are not UTF-8"


def refuse_unreadable(path: Path, error: Exception) -> CorpusError:
    """Make the error for a file that cannot be opened, or not unpacked to its end. The caller raises it."""
    if isinstance(error, PACKED):
        return CorpusError(
            f"a gzip file in {path}",
            str(error),
            "copy the file again: it is damaged or not gzip",
        )
    got = (getattr(error, "strerror", None) or str(error))[:120]
    return CorpusError(
        f"a readable file at {path}", got, "check the path and its permissions"
    )
