"""Clips and images of any data set of the Hugging Face hub, streamed in their encoded form."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from anisoscope.data.hub import HubSet, choose_split, find_set, load_splits, numbered
from anisoscope.data.hub_kept import Kept, kept_folder
from anisoscope.data.items import SPEAKER_COLUMNS, Found, Item
from anisoscope.errors import CorpusError, UsageError, near_matches

HUB_ID = re.compile(r"(?P<id>[\w.-]+/[\w.-]+)(:(?P<config>[\w.-]+))?(@(?P<revision>[\w./-]+))?")


class HubPreset(NamedTuple):
    """A data set of the hub: id, configuration, split, and the cure where it cannot be had."""

    hub_id: str
    config: str | None
    split: str
    cure: str = ""


class Part(NamedTuple):
    """Which part of a data set the user asks for; None: the preset's, or the data set's own."""

    config: str | None = None
    split: str | None = None
    revision: str | None = None
    column: str | None = None

    def refuse(self, name: str) -> None:
        """An error where the corpus has no parts."""
        given = [f"--{option}" for option, value in self._asdict().items() if value is not None]
        if given:
            got = f"{', '.join(given)} with {name}"
            raise UsageError("a hub data set where a part of one is chosen", got, "leave it out")


def hub_items(name: str, part: Part, presets: dict[str, HubPreset], modality: str) -> Found | None:
    """Items of a hub data set, a preset or `id[:config][@revision]`; None where `name` cannot be an id. What was
    streamed before is read from the cache, without a question to the hub but for the newest commit.
    """
    marked = HUB_ID.fullmatch(presets[name].hub_id if name in presets else name)
    if marked is None:
        return None
    preset = presets.get(name, HubPreset(marked["id"], marked["config"], ""))
    near = preset.cure or near_matches(name, presets)
    revision = part.revision or marked["revision"]
    found = find_set(preset.hub_id, revision, near)
    wanted = Part(part.config or preset.config, part.split or preset.split or None, revision, part.column)
    asked = {"id": found.id, "commit": found.commit, "modality": modality, **wanted._asdict()}
    asked.pop("revision")
    folder = kept_folder(asked)
    kept = None if folder is None else Kept(folder)
    about = None if kept is None else kept.about

    def opened() -> tuple[Any, dict[str, Any]]:
        splits = _splits(found, wanted.config, near, preset.cure)
        split = choose_split(list(splits), wanted.split, found.id)
        rows, column = _encoded(splits[split], modality, wanted.column, found.id)
        return rows, {"config": wanted.config, "split": split, "commit": found.commit, "column": column}

    rows = None
    if about is None:
        rows, about = opened()
        if kept is not None:
            kept.begin(about)
    source = {"kind": "hub", "id": found.id, "revision": revision, **about, **found.notes}

    def stream(after: int) -> Iterator[tuple[str, str | None, bytes]]:
        left = rows if rows is not None else opened()[0]
        return _bytes(numbered(left, found.id, after), str(about["column"]), found.id)

    if kept is None:  # no commit is known: what the library has in its own cache
        return Found([Item(name, unit, data) for name, unit, data in stream(0)], source)
    return Found(kept.items(stream), source)


def _splits(found: HubSet, config: str | None, near: str, cure: str) -> Any:
    """The splits; where the data set is gated, with the preset's cure."""
    try:
        return load_splits(found, config, near)
    except CorpusError as error:
        if "gated" not in error.got or not cure:
            raise
        raise CorpusError(f"access to {found.id}", "a gated data set", cure) from None


def _encoded(rows: Any, modality: str, column: str | None, name: str) -> tuple[Any, str]:
    """The rows with their clips or images left encoded, only the columns that are used, and the column of the clips."""
    import datasets  # type: ignore[import-untyped]

    kind = {"speech": datasets.Audio, "image": datasets.Image}[modality]
    features = dict(rows.features or {})
    fitting = [key for key, feature in features.items() if isinstance(feature, kind)]
    if column is not None and column not in fitting:
        raise CorpusError(f"a column of {modality} in {name}", repr(column), near_matches(column, fitting or features))
    if not fitting:
        got = f"the columns {', '.join(features) or 'unknown'}"
        raise CorpusError(f"a column of {modality} in {name}", got, f"name a data set of {modality}")
    chosen = column or fitting[0]
    kept = [chosen, *(key for key in SPEAKER_COLUMNS if key in features)]
    return rows.select_columns(kept).cast_column(chosen, kind(decode=False)), chosen


def _bytes(rows: Any, column: str, name: str) -> Iterator[tuple[str, str | None, bytes]]:
    for place, row in rows:
        value = row[column] or {}
        unit = next((row[key] for key in SPEAKER_COLUMNS if row.get(key) is not None), None)
        data = value.get("bytes")
        if data is None and value.get("path"):
            from datasets.download.streaming_download_manager import xopen  # type: ignore[import-untyped]

            with xopen(value["path"], "rb") as file:
                data = file.read()
        yield f"{name}, {place}", None if unit is None else str(unit), data or b""
