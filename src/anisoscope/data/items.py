"""Clips and images one by one: out of folders, manifests and hub data sets; which are readable, and from which unit."""

import csv
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from anisoscope.data.plans import Index, digest
from anisoscope.errors import CorpusError, near_matches

ENDINGS = {
    "speech": (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff", ".aif", ".au"),
    "image": (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"),
    "text": (".txt", ".md", ".rst", ".gz", ".parquet"),
}
"""How files of each modality end; a manifest (.csv, .tsv, .jsonl) has the modality of the files it names."""

MANIFESTS = (".csv", ".tsv", ".jsonl")
MANIFEST_NAMES = tuple(f"{stem}{ending}" for stem in ("manifest", "metadata") for ending in MANIFESTS)
PATH_COLUMNS = ("path", "file", "file_name", "filename", "audio", "image", "wav", "audio_filepath")
SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
CLIPS = ("", "clips")
"""Folders, from the manifest's own, in which the paths of a manifest are looked for (`clips`: Common Voice)."""

NAMED = 5
"""How many faulty items an error names; the rest are counted."""

Info = TypeVar("Info")


class Item(NamedTuple):
    """One clip or image: its name in messages, its unit's name (None: a unit of its own), and where its bytes are — a
    stretch of a file, or here.
    """

    name: str
    unit: str | None
    place: Path | bytes
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The encoded bytes. CorpusError where they cannot be had."""
        if isinstance(self.place, bytes):
            return self.place
        try:
            with self.place.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except OSError as error:
            raise CorpusError(f"a readable file {self.name}", error.strerror or str(error)) from None


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
    elif path.suffix.lower() in MANIFESTS:
        try:
            names = [str(row[_column(row, PATH_COLUMNS, path)]) for _, row in _rows(path)]
        except CorpusError:
            names = []
    counts = dict.fromkeys(ENDINGS, 0)
    for name in names:
        for modality, endings in ENDINGS.items():
            counts[modality] += Path(name).suffix.lower() in endings
    most = max(counts, key=lambda modality: counts[modality])
    return most if counts[most] else None


def local_items(path: Path, modality: str) -> Found:
    """Items of a file, of a manifest, or of a folder (by the manifest in it or above it, where there is one)."""
    if path.is_file() and path.suffix.lower() in MANIFESTS:
        return Found(_listed(path, None), {"kind": "manifest", "path": str(path.resolve())})
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


def _listed(manifest: Path, inside: Path | None) -> Iterator[Item]:
    """Items of a manifest, of those below the folder `inside` where one is given. A missing file is a faulty item."""
    for line, row in _rows(manifest):
        named = row[_column(row, PATH_COLUMNS, manifest)]
        if not isinstance(named, str) or not named:
            raise CorpusError(f"a path in every row of {manifest}", f"line {line}: {named!r}", "repair the line")
        tries = [manifest.resolve().parent / folder / named for folder in CLIPS]
        path = next((place for place in tries if place.is_file()), tries[0])
        speaker = next((row[column] for column in SPEAKER_COLUMNS if row.get(column)), None)
        if inside is None or inside in path.parents:
            yield Item(named, None if speaker is None else str(speaker), path)


def _rows(manifest: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line numbers and rows of a .csv, .tsv or .jsonl file."""
    try:
        with manifest.open(encoding="utf-8-sig", newline="") as file:
            if manifest.suffix.lower() == ".jsonl":
                yield from ((n, json.loads(line)) for n, line in enumerate(file, 1) if line.strip())
            else:
                delimiter = "\t" if manifest.suffix.lower() == ".tsv" else ","
                reader = csv.DictReader(file, delimiter=delimiter)
                yield from ((reader.line_num, row) for row in reader)
    except (OSError, UnicodeDecodeError, csv.Error, json.JSONDecodeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise CorpusError(f"a manifest in {manifest}", got, "write it as .csv, .tsv or .jsonl in UTF-8") from None


def _column(row: Any, known: tuple[str, ...], manifest: Path) -> str:
    columns = list(row) if isinstance(row, dict) else []
    column = next((name for name in known if name in columns), None)
    if column is None:
        got = f"the columns {', '.join(map(str, columns))}"
        raise CorpusError(f"a column of paths ({', '.join(known)}) in {manifest}", got, "rename the column")
    return column


def spooled(rows: Iterable[tuple[str, str | None, bytes]], file: Any) -> Iterator[Item]:
    """Items out of a stream of (name, unit, encoded bytes), kept in a temporary file instead of in memory."""
    offset, place = 0, Path(file.name)
    for name, unit, data in chain(rows):
        file.write(data)
        file.flush()
        yield Item(name, unit, place, offset, len(data))
        offset += len(data)
