"""Corpora of clips and images: find the items of a folder or manifest, check them, and tell which unit each is from."""

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.data.corpora import CorpusOptions, HubPart, resolve_corpus
from anisoscope.data.files import get_ending, list_files_below
from anisoscope.data.items import FoundItems, Item, find_speaker, hub_items
from anisoscope.data.local import ENDINGS, MANIFESTS, find_encoded_column, find_manifest, modality_of, path_in
from anisoscope.data.plans import Index, hash_parts
from anisoscope.data.table_rows import Row, list_faulty, read_table_rows
from anisoscope.errors import CorpusError, UsageError

CLIPS = ("", "clips")  # folders beside a manifest in which its paths are looked for (`clips`: Common Voice)


@dataclass(frozen=True)
class MediaCorpus:
    """A corpus of clips or images, in order.

    unit    [item]: number of its unit: the speaker, or the item itself
    infos   what the check of each item returned
    """

    name: str
    items: list[Item] = field(repr=False)
    infos: list[Any] = field(repr=False)
    unit: Index = field(repr=False)
    fingerprint: str
    source: dict[str, object]
    skip_bad: bool = False

    def unit_word(self, item: str) -> str:
        """Return the word for a unit (`speaker`); if each file is a unit, the word `item`."""
        return item if self.source["unit"] == "file" else str(self.source["unit"])


def open_media(name: str, modality: str, asked: CorpusOptions, check: Callable[[str, bytes, bool], Any]) -> MediaCorpus:
    """Open a corpus of clips or images: find its items, read and check each, and stop after `limit` units.

    check   called with name, encoded bytes, and whether to decode them; raises CorpusError for a bad item

    All bad items are reported in one CorpusError; with `skip_bad` they are left out and counted.

    name    the corpus, as the user wrote it
    asked   how it is to be read
    """
    place = resolve_corpus(name, modality, asked)
    if isinstance(place, HubPart):
        found = hub_items(place, asked.column)
    else:
        found = local_items(place, modality, asked.column) if isinstance(place, Path) else place.made()
    items: list[Item] = []
    infos, hashes, bad = [], [], []
    units: dict[str, int] = {}
    unit: list[int] = []
    for item in found.items:
        try:
            data = item.read()
            info = check(item.name, data, asked.skip_bad)
        except CorpusError as error:
            bad.append(f"{item.name} ({error.got})")
            continue
        key = f"item {len(items)}" if item.unit is None else f"unit {item.unit}"
        if key not in units and len(units) == asked.limit:
            break
        unit.append(units.setdefault(key, len(units)))
        items.append(item)
        infos.append(info)
        hashes.append(hashlib.sha256(data).hexdigest())
    if bad and not asked.skip_bad:
        raise CorpusError(f"readable files in {name}", list_faulty(bad), "repair or remove them, or pass --skip-bad")
    if not items:
        raise CorpusError(f"at least one readable file in {name}", f"{len(bad)} that are not", "name another corpus")
    known = "speaker" if any(item.unit is not None for item in items) else "file"
    counts = {"unit": known, "items": len(items), "limit": asked.limit, "skipped": len(bad)}
    source = {**found.source, **counts, **({"skipped_items": bad[:20]} if bad else {})}
    fingerprint = hash_parts([hashes, unit])
    return MediaCorpus(name, items, infos, np.array(unit, np.int64), fingerprint, source, asked.skip_bad)


def local_items(path: Path, modality: str, column: str | None = None) -> FoundItems:
    """Return the items of a file, of a manifest (by its `column`), or of a folder (by a manifest in it or above it)."""
    encoded = None if path.is_dir() else find_encoded_column(path)
    listed_in = encoded or get_ending(path) in MANIFESTS
    kind = "folder" if path.is_dir() else "manifest" if listed_in else "file"
    source: dict[str, object] = {"kind": kind, "path": str(path.resolve())}
    if kind == "manifest":
        return FoundItems(_listed(path, None, column or encoded), source)
    if column is not None:
        raise UsageError("a manifest, or a hub data set, where a column is named", str(path), "leave --column out")
    if kind == "file":
        return FoundItems([Item(path.name, None, path)], source)
    for manifest in filter(None, map(find_manifest, (path, path.resolve().parent))):
        listed = [] if modality_of(manifest) != modality else list(_listed(manifest, path.resolve()))
        if listed:
            return FoundItems(listed, {**source, "manifest": str(manifest.resolve())})
    fitting = (file for file in list_files_below(path) if file.suffix.lower() in ENDINGS[modality])
    items = [Item(file.relative_to(path).as_posix(), None, file) for file in fitting]
    if not items:
        expected = f"files ending in {', '.join(ENDINGS[modality][:4])} … in {path}"
        raise CorpusError(expected, f"none (it holds {modality_of(path) or 'other'} files)", "name another folder")
    return FoundItems(items, source)


def _listed(manifest: Path, inside: Path | None, column: str | None = None) -> Iterator[Item]:
    """Yield the items that a manifest lists, only those below the folder `inside` if given.

    A missing file or an unreadable row gives an item with a fault.
    """
    for item, _ in list_items(manifest, column):
        is_below = inside is None or not isinstance(item.place, Path) or inside in item.place.parents
        if is_below:
            yield item


def list_items(manifest: Path, column: str | None = None) -> Iterator[tuple[Item, Row]]:
    """Yield each row of a manifest with its clip or image; an unreadable row or path gives an item with a fault.

    column   of paths or encoded bytes; None: found by its name
    """
    for row in read_table_rows(manifest):
        name = None if row.fault else path_in(row, manifest, column)
        if isinstance(name, dict) and isinstance(name.get("bytes"), bytes):
            yield Item(f"{name.get('path') or row.place}", find_speaker(row.columns), name["bytes"]), row
            continue
        if not isinstance(name, str) or not name:
            fault = row.fault or f"{name!r} for a path"
            yield Item(f"row of {manifest.name} ({row.place})", None, b"", fault=fault), row
            continue
        tries = [manifest.resolve().parent / folder / name for folder in CLIPS]
        path = next(filter(os.path.isfile, tries), tries[0])  # unlike Path.is_file, False for a name too long
        yield Item(name, find_speaker(row.columns), path), row
