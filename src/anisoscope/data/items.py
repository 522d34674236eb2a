"""Clips and images one by one: out of folders, manifests and hub data sets; which are readable, and from which unit."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from anisoscope.data.files import ending
from anisoscope.data.plans import Index, digest
from anisoscope.data.tables import Row, known_column, read_table
from anisoscope.errors import CorpusError, UsageError, near_matches

ENDINGS = {
    "speech": (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".au"),
    "image": (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
    "text": (".txt", ".md", ".rst", ".gz", ".parquet"),
}
"""How files of each modality end; a manifest, a table with a column of paths, has that of the files it names."""

MANIFESTS = (".csv", ".tsv", ".jsonl", ".json")
MANIFEST_NAMES = tuple(f"{stem}{ending}" for stem in ("manifest", "metadata") for ending in MANIFESTS)
LOOKED = 1000
"""Rows of a manifest, and files of a folder, that tell what it holds."""
PATH_COLUMNS = ("path", "file", "file_name", "filename", "audio", "image", "wav", "audio_filepath")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
CLIPS = ("", "clips")
"""Folders, from the manifest's own, in which the paths of a manifest are looked for (`clips`: Common Voice)."""

NAMED = 5
"""How many faulty items an error names; the rest are counted."""

Info = TypeVar("Info")


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
    """Items of a source in order, what the manifest of a run says of the source, and what must live as long."""

    items: Iterable[Item]
    source: dict[str, object]
    keep: Any = None


@dataclass(frozen=True)
class Gathered(Generic[Info]):
    """The readable items: `infos` what the check of each said, `unit` [item] its unit, units in order of appearance."""

    items: list[Item]
    infos: list[Info]
    unit: Index
    fingerprint: str
    source: dict[str, object] = field(repr=False)
    keep: Any = field(default=None, repr=False)


def gather(
    name: str, found: Found, check: Callable[[Item, bytes], Info], *, limit: int | None, skip_bad: bool
) -> Gathered[Info]:
    """Read and check every item, up to the one that begins unit `limit` + 1.

    `check` looks at the encoded bytes and raises a CorpusError for an item that cannot be read. All such items are
    named and counted in one error, or left out and counted in the source with `skip_bad`.
    """
    items: list[Item] = []
    infos: list[Info] = []
    units: dict[str, int] = {}
    unit: list[int] = []
    hashes: list[str] = []
    bad: list[str] = []
    for item in found.items:
        try:
            data = item.read()
            info = check(item, data)
        except CorpusError as error:
            bad.append(f"{item.name} ({error.got})")
            continue
        key = f"item {len(items)}" if item.unit is None else f"unit {item.unit}"
        if key not in units and len(units) == limit:
            break
        unit.append(units.setdefault(key, len(units)))
        items.append(item)
        infos.append(info)
        hashes.append(hashlib.sha256(data).hexdigest())
    if bad and not skip_bad:
        raise CorpusError(f"readable files in {name}", named(bad), "repair or remove them, or pass --skip-bad")
    if not items:
        raise CorpusError(f"at least one readable file in {name}", f"{len(bad)} that are not", "name another corpus")
    known = "speaker" if any(item.unit is not None for item in items) else "file"
    counts: dict[str, object] = {"unit": known, "items": len(items), "limit": limit, "skipped": len(bad)}
    source = {**found.source, **counts, **({"skipped_items": bad[:20]} if bad else {})}
    return Gathered(items, infos, np.array(unit, dtype=np.int64), digest([hashes, unit]), source, found.keep)


def named(bad: list[str]) -> str:
    """`3 faulty: a.wav (…), b.wav (…), …`."""
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return f"{len(bad)} faulty: {', '.join(bad[:NAMED])}{more}"


def find_path(name: str) -> Path | None:
    """The file or folder that `name` stands for, here or under $ANISOSCOPE_DATA; None where there is none."""
    root = os.environ.get("ANISOSCOPE_DATA")
    candidates = [Path(name).expanduser(), *([Path(root, name)] if root else [])]
    return next((path for path in candidates if name and path.exists()), None)


def folders(modality: str) -> dict[str, Path]:
    """Folders under $ANISOSCOPE_DATA that hold files of a modality, themselves or by a manifest, by name."""
    root = Path(os.environ.get("ANISOSCOPE_DATA") or "/nonexistent")
    inner = (path for path in sorted(root.rglob("*")) if path.is_dir())
    return {path.relative_to(root).as_posix(): path for path in inner if _holds(path, ENDINGS[modality], modality)}


def _holds(folder: Path, endings: tuple[str, ...], modality: str) -> bool:
    if any(path.suffix.lower() in endings for path in folder.iterdir()):
        return True
    manifest = _manifest_in(folder)
    return manifest is not None and modality_of(manifest) == modality


def modality_of(path: Path) -> str | None:
    """What a file or folder holds most of, by the endings of its (or its manifest's) file names; None: none known."""
    names: Iterable[str] = [path.name]
    if path.is_dir():
        names = (file.name for file in path.rglob("*") if not file.name.startswith("."))
    elif ending(path) in MANIFESTS:
        try:
            names = [str(path_in(row, path)) for row in islice(read_table(path), LOOKED) if not row.fault]
        except CorpusError:
            names = []
    counts = dict.fromkeys(ENDINGS, 0)
    for name in names:
        for modality, endings in ENDINGS.items():
            counts[modality] += Path(name).suffix.lower() in endings
    most = max(counts, key=lambda modality: counts[modality])
    return most if counts[most] else None


def local_items(path: Path, modality: str, column: str | None = None) -> Found:
    """Items of a file, of a manifest (whose `column` names the files), or of a folder (by the manifest in it or above
    it, where there is one).
    """
    if path.is_file() and ending(path) in MANIFESTS:
        return Found(_listed(path, None, column), {"kind": "manifest", "path": str(path.resolve())})
    if column is not None:
        raise UsageError("a manifest, or a hub data set, where a column is named", str(path), "leave --column out")
    if path.is_file():
        return Found([Item(path.name, None, path)], {"kind": "file", "path": str(path.resolve())})
    source: dict[str, object] = {"kind": "folder", "path": str(path.resolve())}
    for manifest in filter(None, map(_manifest_in, (path, path.resolve().parent))):
        listed = [] if modality_of(manifest) != modality else list(_listed(manifest, path.resolve()))
        if listed:
            return Found(listed, {**source, "manifest": str(manifest.resolve())})
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith("."))
    items = [Item(file.relative_to(path).as_posix(), None, file) for file in files if _is(file, modality)]
    if not items:
        expected = f"files ending in {', '.join(ENDINGS[modality][:4])} … in {path}"
        raise CorpusError(expected, f"none (it holds {modality_of(path) or 'other'} files)", "name another folder")
    return Found(items, source)


def unknown(name: str, presets: Iterable[str], modality: str) -> CorpusError:
    """The error for a name that is neither here nor the id of a data set."""
    unset = "" if os.environ.get("ANISOSCOPE_DATA") else " (ANISOSCOPE_DATA, a folder of corpora, is not set)"
    kind = {"speech": "a speech corpus", "image": "an image corpus"}[modality]
    near = near_matches(name, [*presets, *folders(modality)]) + unset
    return CorpusError(f"{kind}: a folder, a manifest, a preset or a hub data set", f"{name!r}", near)


def _is(file: Path, modality: str) -> bool:
    return file.suffix.lower() in ENDINGS[modality]


def _manifest_in(folder: Path) -> Path | None:
    return next((folder / name for name in MANIFEST_NAMES if (folder / name).is_file()), None)


def _listed(manifest: Path, inside: Path | None, column: str | None = None) -> Iterator[Item]:
    """Items of a manifest, of those below the folder `inside` where one is given. A missing file and a row that cannot
    be read are faulty items.
    """
    for row in read_table(manifest):
        where = f"row of {manifest.name} ({row.place})"
        named = None if row.fault else path_in(row, manifest, column)
        if not isinstance(named, str) or not named:
            yield Item(where, None, b"", fault=row.fault or f"{named!r} for a path")
            continue
        tries = [manifest.resolve().parent / folder / named for folder in CLIPS]
        path = next((place for place in tries if _is_file(place)), tries[0])
        speaker = next((row.columns[name] for name in SPEAKER_COLUMNS if row.columns.get(name)), None)
        if inside is None or inside in path.parents:
            yield Item(named, None if speaker is None else str(speaker), path)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


def path_in(row: Row, manifest: Path, column: str | None = None) -> Any:
    """What a row holds in its column of paths: the one asked for, else the first of `PATH_COLUMNS`."""
    if column is not None:
        return row.columns[known_column(column, row.columns, str(manifest))]
    found = next((name for name in PATH_COLUMNS if name in row.columns), None)
    if found is None:
        got = f"the columns {', '.join(row.columns)}"
        cure = "rename the column, or name it with --column"
        raise CorpusError(f"a column of paths ({', '.join(PATH_COLUMNS)}) in {manifest}", got, cure)
    return row.columns[found]
