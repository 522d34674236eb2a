"""Files as text: unpacked where they are gzipped, UTF-8, every line end as \\n, with one error for each thing wrong."""

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from anisoscope.errors import CorpusError

PACKED = (EOFError, zlib.error, gzip.BadGzipFile)  # what a damaged gzip file raises
_UNDECODED = re.compile("[\ud800-\udfff]")


def ending(path: Path) -> str:
    """The last part of a file's name in lower case, that before `.gz` of a packed one: `.jsonl` of `a.JSONL.gz`."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz")).suffix


def stem(path: Path) -> str:
    """A file's name without its ending and `.gz`."""
    name = path.name.removesuffix(".gz")
    return Path(name).stem


def files_below(folder: Path) -> list[Path]:
    """All files below a folder but the hidden ones, in the order of their paths."""
    return [file for file in sorted(folder.rglob("*")) if file.is_file() and not file.name.startswith(".")]


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.name.lower().endswith(".gz") else data
    except (*PACKED, OSError) as error:
        raise unreadable(path, error) from None


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    data = read_bytes(path)
    expected = f"UTF-8 text in {path}"
    cure = "name a text file or a table; convert text in another encoding (UTF-16, Latin-1) with iconv"
    if b"\0" in data:
        raise CorpusError(expected, "a binary file (it holds NUL bytes)", cure)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorpusError(expected, f"a byte that is not UTF-8 at position {error.start}", cure) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file without their ends, read as they are asked for. A line may be no text: `fault_of`."""
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=None) as file:
            for line in file:
                yield line.removesuffix("\n")
    except (*PACKED, OSError) as error:
        raise unreadable(path, error) from None


def fault_of(line: str) -> str:
    """Why a line is no text; empty where it is."""
    if "\0" in line:
        return "NUL bytes (a binary file, or text in UTF-16)"
    return "" if line.isascii() or not _UNDECODED.search(line) else "bytes that are not UTF-8"


def unreadable(path: Path, error: Exception) -> CorpusError:
    """The error for a file that cannot be opened, or unpacked to its end."""
    if isinstance(error, PACKED):
        return CorpusError(f"a gzip file in {path}", str(error), "copy the file again: it is damaged or not gzip")
    got = (getattr(error, "strerror", None) or str(error))[:120]
    return CorpusError(f"a readable file at {path}", got, "check path and rights")
