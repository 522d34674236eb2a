"""Remember hashes of large files and of the weights in them, so that each is computed once on a machine.

What only looks a model up reads this module, so it loads nothing heavy.
"""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from anisoscope.provenance.sources import find_cache_folder

LARGE = 1 << 27
"""Bytes from which on a hash is remembered: it takes more than a tenth of a second."""
MOST_KEPT = 500
"""Hashes that are kept, each in a file of 64 bytes; the oldest are removed."""
FORM = 1
"""A number that changes with the meaning of what is kept."""


def hash_large_file(path: Path) -> str:
    """Return the SHA-256 of a file; that of a large file is cached until its size or modification time changes."""

    def compute() -> str:
        """Read the file and hash it."""
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    return recall_hash([path], lambda: ["file"], compute)


def recall_hash(
    files: Sequence[Path], ask: Callable[[], list[Any]], compute: Callable[[], str]
) -> str:
    """Return the hash that `compute` gives, from a cache on disk if the files are large and have not changed.

    files     what `compute` reads; if there are none, or they are small, it is always called
    ask       returns what else the hash depends on; it is called for large files only
    compute   returns a SHA-256 in hexadecimal
    """
    if not files or sum(path.stat().st_size for path in files) < LARGE:
        return compute()
    return _recall([*ask(), [_identify_file(path) for path in files]], compute)


def _identify_file(path: Path) -> tuple[str, int, int]:
    """Return (path without links, bytes, time of change in ns) of a file."""
    stat = path.stat()
    return str(path.resolve()), stat.st_size, stat.st_mtime_ns


def _recall(asked: Any, compute: Callable[[], str]) -> str:
    """Return the hash cached for a key; if there is none, compute and cache it.

    asked   the key: everything that the hash depends on

    If several processes ask at the same time, one computes and the others wait. If the cache cannot be written, each
    computes its own.
    """
    # Imported here, because it loads pandas, which a mere look-up of a model does not need.
    from anisoscope.store import make_once, write_atomic

    name = hashlib.sha256(json.dumps([FORM, asked]).encode()).hexdigest()[:32]
    path = find_cache_folder() / "hashes" / name
    computed: list[str] = []

    def make() -> None:
        """Compute the hash and keep it."""
        computed.append(compute())
        write_atomic(path, lambda temporary: temporary.write_text(computed[0], "utf-8"))
        _remove_oldest(path.parent)

    with suppress(OSError):
        make_once(path, make)
        kept = path.read_text("utf-8")
        # A file that was damaged or cut off counts as none.
        if re.fullmatch("[0-9a-f]{64}", kept):
            return kept
    # Computed already, if only writing it failed.
    return computed[0] if computed else compute()


def _remove_oldest(folder: Path) -> None:
    """Remove the oldest of the kept hashes, if there are too many, with the locks that were held to make them."""
    kept = [path for path in folder.glob("*") if not path.name.startswith(".")]
    kept.sort(key=lambda path: path.stat().st_mtime)
    for path in kept[:-MOST_KEPT]:
        path.unlink(missing_ok=True)
        path.with_name(f".{path.name}.lock").unlink(missing_ok=True)
