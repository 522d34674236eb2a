"""Corpora of clips and images: find the items of a folder or manifest, check them, and tell which unit each is from."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from anisoscope.data.corpora import CorpusOptions, HubPart, resolve_corpus
from anisoscope.data.files import get_ending, list_files_below
from anisoscope.data.items import (
    FoundItems,
    Item,
    find_hub_items,
    find_speaker,
    find_transcript,
)
from anisoscope.data.local import (
    ENDINGS,
    MANIFESTS,
    detect_modality,
    find_encoded_column,
    find_manifest,
    find_row_path,
)
from anisoscope.data.plans import Index, hash_parts
from anisoscope.data.table_rows import Row, list_faulty, read_table_rows
from anisoscope.errors import CorpusError, UsageError

# folders next to a manifest in which its paths are looked for (`clips`: Common Voice)
CLIPS = ("", "clips")


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
        """Return what a unit is called: `speaker`, or `item` if each file is a unit.

        item   what a file is called, such as `clip`
        """
        return item if self.source["unit"] == "file" else str(self.source["unit"])


def open_media(
    name: str,
    modality: str,
    options: CorpusOptions,
    check: Callable[[str, bytes, bool], Any],
) -> MediaCorpus:
    """Open a corpus of clips or images: find its items, read and check each, and stop after `limit` units.

    All bad items are reported in one CorpusError; with `skip_bad` they are left out and counted.

    name      the corpus, as the user wrote it
    check     called with name, encoded bytes, and whether to decode them; raises CorpusError for a bad item
    options   how it is to be read
    """
    found = _find_items(name, modality, options)
    checked = _check_items(found.items, options, check)
    items, bad = checked.items, checked.bad
    if bad and not options.skip_bad:
        raise CorpusError(
            f"readable files in {name}",
            list_faulty(bad),
            "repair or remove them, or pass --skip-bad",
        )
    if not items:
        raise CorpusError(
            f"at least one readable file in {name}",
            f"{len(bad)} that cannot be read",
            "name another corpus",
        )
    have_speakers = any(item.unit is not None for item in items)
    source = {
        **found.source,
        "unit": "speaker" if have_speakers else "file",
        "items": len(items),
        "limit": options.limit,
        "skipped": len(bad),
    }
    if bad:
        # The manifest names some of them and counts all.
        source["skipped_items"] = bad[:20]
    # hashes of the bytes, not names: files that were renamed or moved are the same corpus
    fingerprint = hash_parts([checked.hashes, checked.unit])
    unit = np.array(checked.unit, np.int64)
    return MediaCorpus(
        name, items, checked.infos, unit, fingerprint, source, options.skip_bad
    )


class CheckedItems(NamedTuple):
    """Items that can be read, with what the check returned, their hashes and units, and what cannot be read and why."""

    items: list[Item]
    infos: list[Any]
    hashes: list[str]
    unit: list[int]
    bad: list[str]


def _check_items(
    found: Iterable[Item],
    options: CorpusOptions,
    check: Callable[[str, bytes, bool], Any],
) -> CheckedItems:
    """Read and check each item, of `limit` units at most; units are numbered in order of appearance.

    found     the items in order
    options   how the corpus is to be read
    check     as for `open_media`
    """
    checked = CheckedItems([], [], [], [], [])
    numbers: dict[str, int] = {}
    for item in found:
        try:
            data = item.read()
            # With --skip-bad all of it is decoded now: a clip that breaks off could not
            # be left out later.
            info = check(item.name, data, options.skip_bad)
        except CorpusError as error:
            checked.bad.append(f"{item.name} ({error.got})")
            continue
        # without a speaker every item is a unit of its own
        key = f"item {len(checked.items)}" if item.unit is None else f"unit {item.unit}"
        # The first item of one unit too many ends the reading, so that the rest of a
        # hub data set is not streamed.
        if key not in numbers and len(numbers) == options.limit:
            break
        checked.unit.append(numbers.setdefault(key, len(numbers)))
        checked.items.append(item)
        checked.infos.append(info)
        checked.hashes.append(hashlib.sha256(data).hexdigest())
    return checked


def _find_items(name: str, modality: str, options: CorpusOptions) -> FoundItems:
    """Find the items (clips or images) of a corpus: on the hub, on this machine, or made by a function.

    options   how the corpus is to be read
    """
    place = resolve_corpus(name, modality, options)
    if isinstance(place, HubPart):
        return find_hub_items(place, options.column)
    if isinstance(place, Path):
        return find_local_items(place, modality, options.column)
    found: FoundItems = place.make()
    return found


def find_local_items(
    path: Path, modality: str, column: str | None = None
) -> FoundItems:
    """Return the items of a file, of a manifest (by its `column`), or of a folder (by a manifest in it or above it)."""
    source: dict[str, object] = {"kind": "folder", "path": str(path.resolve())}
    if path.is_dir():
        # only tables have columns
        if column is not None:
            raise _refuse_column(path)
        return _find_items_of_folder(path, modality, source)
    encoded = find_encoded_column(path)
    if encoded or get_ending(path) in MANIFESTS:
        return FoundItems(
            _iter_listed(path, None, column or encoded), {**source, "kind": "manifest"}
        )
    if column is not None:
        raise _refuse_column(path)
    return FoundItems([Item(path.name, None, path)], {**source, "kind": "file"})


def _refuse_column(path: Path) -> UsageError:
    """Make the error for a column that was named, and a file or folder that has none. The caller raises it."""
    return UsageError(
        "a manifest or a hub data set, because --column names a column",
        str(path),
        "leave --column out",
    )


def _find_items_of_folder(
    path: Path, modality: str, source: dict[str, object]
) -> FoundItems:
    """Return the items of a folder: those that a manifest in it or above it lists, else all files of the modality.

    source   the manifest's entry on the folder
    """
    # The manifest may be next to the folder of clips, as in Common Voice.
    for folder in (path, path.resolve().parent):
        manifest = find_manifest(folder)
        if manifest is None or detect_modality(manifest) != modality:
            continue
        listed = list(_iter_listed(manifest, path.resolve()))
        # A manifest that lists nothing of this folder belongs to others.
        if listed:
            return FoundItems(listed, {**source, "manifest": str(manifest.resolve())})
    items = []
    for file in list_files_below(path):
        if file.suffix.lower() in ENDINGS[modality]:
            items.append(Item(file.relative_to(path).as_posix(), None, file))
    if not items:
        expected = f"files ending in {', '.join(ENDINGS[modality][:4])} … in {path}"
        raise CorpusError(
            expected,
            f"none (it holds {detect_modality(path) or 'other'} files)",
            "name another folder",
        )
    return FoundItems(items, source)


def _iter_listed(
    manifest: Path, inside: Path | None, column: str | None = None
) -> Iterator[Item]:
    """Yield the items that a manifest lists, only those below the folder `inside` if given.

    A missing file or an unreadable row gives an item with a fault.
    """
    for item, _ in list_items(manifest, column):
        # Items whose bytes lie in the manifest itself are in no folder: they are always
        # taken.
        is_below = (
            inside is None
            or not isinstance(item.place, Path)
            or inside in item.place.parents
        )
        if is_below:
            yield item


def list_items(manifest: Path, column: str | None = None) -> Iterator[tuple[Item, Row]]:
    """Yield each row of a manifest with its clip or image; an unreadable row or path gives an item with a fault.

    column   of paths or encoded bytes; None: found by its name
    """
    for row in read_table_rows(manifest):
        place = None
        if not row.fault:
            place = find_row_path(row, manifest, column)
        yield _make_item(place, row, manifest), row


def _make_item(place: Any, row: Row, manifest: Path) -> Item:
    """Return the clip or image of a manifest's row.

    place   its path, or encoded bytes; anything else gives an item with a fault
    """
    text = find_transcript(row.columns)
    # Encoded bytes with their path, as `datasets` writes them to parquet.
    if isinstance(place, dict) and isinstance(place.get("bytes"), bytes):
        return Item(
            f"{place.get('path') or row.place}",
            find_speaker(row.columns),
            place["bytes"],
            text=text,
        )
    if not isinstance(place, str) or not place:
        fault = row.fault or f"{place!r} for a path"
        return Item(f"row of {manifest.name} ({row.place})", None, b"", fault=fault)
    tries = [manifest.resolve().parent / folder / place for folder in CLIPS]
    # unlike Path.is_file, isfile is False for a name too long
    path = next(filter(os.path.isfile, tries), tries[0])
    return Item(place, find_speaker(row.columns), path, text=text)
