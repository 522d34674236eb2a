"""Corpora of clips and images: which items are readable, and from which unit."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anisoscope.data.corpora import Asked, HubPart, located
from anisoscope.data.hub_media import hub_items
from anisoscope.data.items import Item, local_items, named
from anisoscope.data.plans import Index, digest
from anisoscope.errors import CorpusError


@dataclass(frozen=True)
class MediaCorpus:
    """Clips or images in order, decoded on demand. `unit` [item]: the speaker where known, else the item itself;
    `infos`: what the check of each item said.
    """

    name: str
    items: list[Item] = field(repr=False)
    infos: list[Any] = field(repr=False)
    unit: Index = field(repr=False)
    fingerprint: str
    source: dict[str, object]
    skip_bad: bool = False

    def unit_word(self, item: str) -> str:
        """What a unit is called where one of the items is called `item`."""
        return item if self.source["unit"] == "file" else str(self.source["unit"])


def open_media(name: str, modality: str, asked: Asked, check: Callable[[str, bytes, bool], Any]) -> MediaCorpus:
    """The clips or images that `name` stands for: a preset, a file, a folder of them, a manifest with a column of
    paths, or a data set of the hub. Every item is read and checked, up to the one that begins unit `limit` + 1.

    `check` (name, encoded bytes, whether to decode them) raises a CorpusError for an item that cannot be read. All such
    items are named and counted in one error, or left out and counted in the source with `skip_bad`.
    """
    place = located(name, modality, asked)
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
        raise CorpusError(f"readable files in {name}", named(bad), "repair or remove them, or pass --skip-bad")
    if not items:
        raise CorpusError(f"at least one readable file in {name}", f"{len(bad)} that are not", "name another corpus")
    known = "speaker" if any(item.unit is not None for item in items) else "file"
    counts = {"unit": known, "items": len(items), "limit": asked.limit, "skipped": len(bad)}
    source = {**found.source, **counts, **({"skipped_items": bad[:20]} if bad else {})}
    numbers = np.array(unit, dtype=np.int64)
    return MediaCorpus(name, items, infos, numbers, digest([hashes, unit]), source, asked.skip_bad)
