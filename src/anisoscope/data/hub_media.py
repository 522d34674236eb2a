"""Clips and images of any data set of the Hugging Face hub, streamed in their encoded form."""

import re
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from anisoscope.data.hub import _choose_split, _load, _rows, hub_commit
from anisoscope.data.items import SPEAKER_COLUMNS, Found, spooled
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
    """Items of a hub data set, a preset or `id[:config][@revision]`; None where `name` cannot be an id."""
    marked = HUB_ID.fullmatch(presets[name].hub_id if name in presets else name)
    if marked is None:
        return None
    preset = presets.get(name, HubPreset(marked["id"], marked["config"], ""))
    near = preset.cure or near_matches(name, presets)
    revision = part.revision or marked["revision"]
    commit = hub_commit(preset.hub_id, revision, near)
    config = part.config or preset.config
    try:
        splits = _load(preset.hub_id, config, commit, near)
    except CorpusError as error:
        if "gated" not in error.got:
            raise
        cure = preset.cure or "accept its terms on the hub, then `hf auth login`"
        raise CorpusError(f"access to {preset.hub_id}", "a gated data set", cure) from None
    split = _choose_split(list(splits), part.split or preset.split or None, preset.hub_id)
    rows, column = _encoded(splits[split], modality, part.column, preset.hub_id)
    parts = {"config": config, "split": split, "revision": revision, "commit": commit, "column": column}
    file = tempfile.NamedTemporaryFile(prefix="anisoscope-")  # noqa: SIM115  # lives as long as the corpus
    items = spooled(_bytes(_rows(rows, preset.hub_id), column, preset.hub_id), file)
    return Found(items, {"kind": "hub", "id": preset.hub_id, **parts}, keep=file)


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
