"""Single clips and images. Those of hub data sets are streamed in encoded form and cached."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.data import hub
from anisoscope.data.corpora import HubPart
from anisoscope.errors import CorpusError, suggest_names

SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
TRANSCRIPT_COLUMNS = (
    "transcript",
    "transcription",
    "sentence",
    "text",
    "normalized_text",
)
"""Columns that say what is spoken in a clip, as data sets of speech recognition name them."""


class Item(NamedTuple):
    """One clip or image: its name, its unit, and where its encoded bytes are.

    unit    name of its unit (a speaker); None: it is its own unit
    fault   why its bytes cannot be read; empty if they can
    text    what is spoken in a clip; empty if nothing says it
    """

    name: str
    unit: str | None
    place: Path | bytes
    offset: int = 0
    size: int = -1
    fault: str = ""
    text: str = ""

    def read(self) -> bytes:
        """Read the encoded bytes. CorpusError if that fails."""
        if self.fault:
            raise CorpusError(
                f"a readable {self.name}",
                self.fault,
                "restore the file, or take it out of the corpus",
            )
        if isinstance(self.place, bytes):
            return self.place
        try:
            with self.place.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        except (OSError, ValueError) as error:
            got = getattr(error, "strerror", None) or str(error)
            raise CorpusError(f"a readable file {self.name}", got) from None


Stream = Callable[[int], Iterator[Item]]
"""From the number of items that are here already to the next ones, which hold their encoded bytes."""


class FoundItems(NamedTuple):
    """The items of a source in order, and the manifest's entry on the source."""

    items: Iterable[Item]
    source: dict[str, object]


def find_speaker(row: dict[str, Any]) -> str | None:
    """Return the speaker of a row from one of `SPEAKER_COLUMNS`; None if it names none."""
    for name in SPEAKER_COLUMNS:
        # 0 is a speaker too
        if row.get(name) not in (None, ""):
            return str(row[name])
    return None


def find_transcript(row: dict[str, Any]) -> str:
    """Return what is spoken in the clip of a row, from one of `TRANSCRIPT_COLUMNS`; empty if the row has no text."""
    for name in TRANSCRIPT_COLUMNS:
        text = row.get(name)
        if isinstance(text, str) and text.strip():
            return text.strip()
    return ""


def find_hub_items(part: HubPart, column: str | None) -> FoundItems:
    """Return the items of a hub data set.

    Items streamed before come from the cache; the rest is streamed and cached.

    part     the data set's name, and which part of it is wanted
    column   the column of clips or images; None: the only one
    """
    found = hub.find_set(part)
    identity = {
        "id": found.id,
        "modality": part.modality,
        "config": part.config,
        "split": part.split,
        "column": column,
    }
    # what was cached before transcripts were kept has none
    if part.modality == "speech":
        identity["texts"] = "kept"
    folder = cache_folder(identity, found.commit)
    kept = None if folder is None else StreamCache(folder)
    # Opened at most once, and not at all if all items are cached.
    opened = cache(lambda: _open_encoded(found, part, column))
    about = kept.about() if kept else None
    if about is None:
        about = opened()[1]
        if kept:
            kept.begin(about)
    source = {
        "kind": "hub",
        "id": found.id,
        "revision": part.revision,
        **about,
        **found.notes,
    }

    def stream(after: int) -> Iterator[Item]:
        """Yield the items after the first `after`."""
        return _iter_encoded(
            hub.number_rows(opened()[0], found.id, after),
            str(about["column"]),
            found.id,
        )

    if kept is None:  # no commit is known: what the library has in its own cache
        return FoundItems(list(stream(0)), source)
    return FoundItems(kept.items(stream), source)


def cache_folder(identity: dict[str, Any], commit: str | None) -> Path | None:
    """Return the folder in which the items of a part of a hub data set are cached, at a commit.

    identity   what identifies the part: the data set's id, split, column …
    commit     None: unknown, since the hub did not answer; then the folder of the newest commit that was cached, or
               None if none was
    """
    from huggingface_hub import constants

    root = Path(constants.HF_HOME, "anisoscope", str(identity["id"]).replace("/", "--"))
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    if commit is not None:
        return root / f"{commit}-{key}"
    found = [path.parent for path in root.glob(f"*-{key}/about.json")]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)


def _open_encoded(
    found: hub.HubSet, part: HubPart, column: str | None
) -> tuple[Any, dict[str, Any]]:
    """Return (rows of a hub data set with clips or images left encoded, the manifest's entry on the source).

    Only the columns that are needed are kept. CorpusError if there is no column of this modality.

    found    the data set at its commit
    part     which part of it is wanted
    column   of clips or images; None: the only one
    """
    import datasets  # type: ignore[import-untyped]

    rows, about = hub.open_split(found, part)
    kind = {"speech": datasets.Audio, "image": datasets.Image}[part.modality]
    features = dict(rows.features or {})
    fitting = [key for key, feature in features.items() if isinstance(feature, kind)]
    chosen = _choose_encoded_column(column, fitting, features, part.modality, found.id)
    wanted = [*SPEAKER_COLUMNS]
    if part.modality == "speech":
        wanted += TRANSCRIPT_COLUMNS
    others = [key for key in wanted if key in features and key != chosen]
    # encoded, not decoded: a clip is hashed as it is stored, and decoded where its rate is known
    encoded = rows.select_columns([chosen, *others]).cast_column(
        chosen, kind(decode=False)
    )
    return encoded, {**about, "column": chosen}


def _choose_encoded_column(
    column: str | None,
    fitting: list[str],
    features: dict[str, Any],
    modality: str,
    name: str,
) -> str:
    """Return the column of clips or images: the one asked for, else the first. CorpusError if there is none.

    column     the one asked for, or None
    fitting    the columns of clips or images
    features   all columns with their types
    name       of the data set, for errors
    """
    expected = f"a column of {modality} in {name}"
    if column is not None and column not in fitting:
        raise CorpusError(
            expected, repr(column), suggest_names(column, fitting or features)
        )
    if not fitting:
        got = f"the columns {', '.join(features) or 'unknown'}"
        raise CorpusError(expected, got, f"name a data set of {modality}")
    return column or fitting[0]


def _iter_encoded(rows: Any, column: str, name: str) -> Iterator[Item]:
    """Yield the item of each row: its name, speaker, encoded bytes and transcript."""
    for place, row in rows:
        place = f"{name}, {place}"
        yield Item(
            place,
            find_speaker(row),
            read_encoded(row[column], place),
            text=find_transcript(row),
        )


def read_encoded(value: Any, name: str) -> bytes:
    """Return the encoded bytes of a clip or image as `datasets` gives it: in the row, or in a file that it names.

    Empty if there is neither. CorpusError if the file cannot be read.

    name   of the item, for errors
    """
    value = value or {}
    data = value.get("bytes")
    if data is None and value.get("path"):
        from datasets.download.streaming_download_manager import xopen  # type: ignore[import-untyped]

        # The path may be an address, or that of a file inside an archive:
        # `zip://a.jpg::https://…`.
        try:
            with xopen(value["path"], "rb") as file:
                data = file.read()
        except FileNotFoundError as error:
            raise CorpusError(
                f"a readable {name}", f"no file {value['path']}"
            ) from error
    return data or b""


class StreamCache:
    """Cache of the items of one data set (commit, split and column) in a folder next to the hub's own cache."""

    def __init__(self, folder: Path) -> None:
        """Use this folder as the cache; nothing is read or written yet."""
        self.folder, self.body = folder, folder / "items"

    def about(self) -> dict[str, Any] | None:
        """Return the cached manifest entry on the source; None if nothing was cached yet."""
        with suppress(OSError, ValueError):
            read = json.loads((self.folder / "about.json").read_text("utf-8"))
            return read if isinstance(read, dict) else None
        return None

    def begin(self, about: dict[str, Any]) -> None:
        """Create the cache folder and write the manifest entry on the source."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.body.touch()
        # under another name first: a process that is killed leaves no half of it
        unfinished = self.folder / "about.json.part"
        unfinished.write_text(json.dumps(about), "utf-8")
        unfinished.replace(self.folder / "about.json")

    def items(self, stream: Stream) -> Iterator[Item]:
        """Yield all items: first the cached ones, then the rest, streamed and cached.

        Only one process streams at a time.

        stream   function that yields the items after a number of them
        """
        from filelock import FileLock

        # First without the lock, so that many processes can read a complete cache.
        here, end, complete = self._read_cached(0)
        yield from here
        if complete:
            return
        with FileLock(self.folder / "lock"):
            more, end, complete = self._read_cached(end)  # another process was quicker
            yield from more
            if not complete:
                yield from self._stream_rest(stream, len(here) + len(more), end)

    def _read_cached(self, end: int) -> tuple[list[Item], int, bool]:
        """Read the complete items in the cache from byte `end` on.

        Returns (items, byte where they end, whether they are all of the data set). An item that a killed process left
        half written is not counted.
        """
        items: list[Item] = []
        with self.body.open("rb") as file:
            room = file.seek(0, os.SEEK_END)
            file.seek(end)
            for line in iter(file.readline, b""):
                # a line without its end was cut off; `null` marks the end of the data set
                entry = json.loads(line) if line.endswith(b"\n") else None
                begin = end + len(line)
                if entry is None or begin + entry[2] > room:
                    return items, end, line == b"null\n"
                # caches of before transcripts have three entries
                text = entry[3] if len(entry) > 3 else ""
                items.append(
                    Item(entry[0], entry[1], self.body, begin, entry[2], text=text)
                )
                end = file.seek(begin + entry[2])
        return items, end, False

    def _stream_rest(self, stream: Stream, after: int, end: int) -> Iterator[Item]:
        """Stream the items that are not cached yet, append them to the cache, and yield them.

        stream   function that yields the items after a number of them
        after    number of items in the cache
        end      byte at which they end
        """
        with self.body.open("r+b") as file:
            # what a killed process left half written is overwritten
            file.truncate(end)
            file.seek(end)
            for item in stream(after):
                data = item.read()
                entry = [item.name, item.unit, len(data)]
                if item.text:
                    entry.append(item.text)
                line = json.dumps(entry).encode() + b"\n"
                file.write(line + data)
                # At once, so that others find whole items, also if this process is
                # killed.
                file.flush()
                yield item._replace(
                    place=self.body, offset=end + len(line), size=len(data)
                )
                end += len(line) + len(data)
            # Marks the end of the data set, by which `_read_cached` knows that nothing
            # is missing.
            file.write(b"null\n")
