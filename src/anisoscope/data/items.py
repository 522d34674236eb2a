"""Clips and images one by one, out of folders and manifests."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.data.files import ending
from anisoscope.data.local import ENDINGS, MANIFESTS, manifest_in, modality_of, path_in
from anisoscope.data.tables import read_table
from anisoscope.errors import CorpusError, UsageError

SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
CLIPS = ("", "clips")
"""Folders, from the manifest's own, in which the paths of a manifest are looked for (`clips`: Common Voice)."""

NAMED = 5
"""How many faulty items an error names; the rest are counted."""


class Item(NamedTuple):
    """One clip or image: its name in messages, its unit's name (None: a unit of its own), and where its bytes are — a
    stretch of a file, or here; `fault`: why it cannot be had.
    """

    name: str
    unit: str | None
    place: Path | bytes
    offset: int = 0
    size: int = -1
    fault: str = ""

    def read(self) -> bytes:
        """The encoded bytes. CorpusError where they cannot be had."""
        if self.fault:
            raise CorpusError(f"a readable {self.name}", self.fault)
        if isinstance(self.place, bytes):
            return self.place
        try:
            with self.place.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except (OSError, ValueError) as error:
            got = getattr(error, "strerror", None) or str(error)
            raise CorpusError(f"a readable file {self.name}", got) from None


class Found(NamedTuple):
    """Items of a source in order, and what the manifest of a run says of the source."""

    items: Iterable[Item]
    source: dict[str, object]


def named(bad: list[str]) -> str:
    """`3 faulty: a.wav (…), b.wav (…), …`."""
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return f"{len(bad)} faulty: {', '.join(bad[:NAMED])}{more}"


def local_items(path: Path, modality: str, column: str | None = None) -> Found:
    """Items of a file, of a manifest (whose `column` names the files), or of a folder (by the manifest in it or above
    it, where there is one).
    """
    kind = "folder" if path.is_dir() else "manifest" if ending(path) in MANIFESTS else "file"
    source: dict[str, object] = {"kind": kind, "path": str(path.resolve())}
    if kind == "manifest":
        return Found(_listed(path, None, column), source)
    if column is not None:
        raise UsageError("a manifest, or a hub data set, where a column is named", str(path), "leave --column out")
    if kind == "file":
        return Found([Item(path.name, None, path)], source)
    for manifest in filter(None, map(manifest_in, (path, path.resolve().parent))):
        listed = [] if modality_of(manifest) != modality else list(_listed(manifest, path.resolve()))
        if listed:
            return Found(listed, {**source, "manifest": str(manifest.resolve())})
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
    fitting = (file for file in files if file.suffix.lower() in ENDINGS[modality])
    items = [Item(file.relative_to(path).as_posix(), None, file) for file in fitting]
    if not items:
        expected = f"files ending in {', '.join(ENDINGS[modality][:4])} … in {path}"
        raise CorpusError(expected, f"none (it holds {modality_of(path) or 'other'} files)", "name another folder")
    return Found(items, source)


def _listed(manifest: Path, inside: Path | None, column: str | None = None) -> Iterator[Item]:
    """Items of a manifest, of those below the folder `inside` where one is given. A missing file and a row that cannot
    be read are faulty items.
    """
    for row in read_table(manifest):
        name = None if row.fault else path_in(row, manifest, column)
        if not isinstance(name, str) or not name:
            fault = row.fault or f"{name!r} for a path"
            yield Item(f"row of {manifest.name} ({row.place})", None, b"", fault=fault)
            continue
        tries = [manifest.resolve().parent / folder / name for folder in CLIPS]
        path = next((place for place in tries if _is_file(place)), tries[0])
        if inside is None or inside in path.parents:
            yield Item(name, speaker_of(row.columns), path)


def speaker_of(row: dict[str, Any]) -> str | None:
    """Who speaks, where a row says so."""
    return next((str(row[name]) for name in SPEAKER_COLUMNS if row.get(name) not in (None, "")), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False
