"""Texts with images in data sets: of the Hugging Face hub, streamed and cached, or saved to a folder by `datasets`.

Each row is an image with its caption, or a chat with its images; what its columns are called is as in tables
(`data.image_texts`).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.data import hub
from anisoscope.data.corpora import CorpusOptions, HubPart, resolve_corpus
from anisoscope.data.items import Item, StreamCache, cache_folder, read_encoded
from anisoscope.data.table_rows import require_column
from anisoscope.errors import CorpusError, suggest_names

CAPTION_COLUMNS = (
    "text",
    "caption",
    "sentence",
    "description",
    "captions",
    "sentences",
)
"""Columns of captions in a table of images, the likeliest first."""
CHAT_COLUMNS = ("messages", "conversations")
"""Columns of chats: as `transformers` and OpenAI write them, and as LLaVA does."""
SAVED = ("state.json", "dataset_dict.json")
"""Files in a folder to which `datasets` saved a data set."""


class SetRow(NamedTuple):
    """One row of a data set of texts with images.

    place     where it is: `row 7`
    columns   {column: value} without the images: a caption, or a chat
    images    its images, encoded
    fault     why an image cannot be read; empty if all can
    """

    place: str
    columns: dict[str, Any]
    images: list[Any]
    fault: str = ""


class SetOfRows(NamedTuple):
    """The rows of a data set in order, whether they are chats, and the manifest's entry on the source."""

    rows: Iterator[SetRow]
    is_chat: bool
    source: dict[str, object]


class SavedImage(NamedTuple):
    """An image in a saved data set, which is read from the folder's files when it is needed."""

    name: str
    saved: Any
    row: int
    column: str
    number: int

    def read(self) -> bytes:
        """Read the encoded bytes. CorpusError if that fails."""
        value = self.saved[self.row][self.column]
        if isinstance(value, list):
            value = value[self.number]
        return read_encoded(value, self.name)


class _Columns(NamedTuple):
    """What the columns of a data set are called."""

    images: str
    text: str
    is_chat: bool


def is_saved_set(path: Path) -> bool:
    """Return whether a folder is one to which `datasets` saved a data set."""
    return path.is_dir() and any((path / name).is_file() for name in SAVED)


def open_set(name: str, path: Path | None, options: CorpusOptions) -> SetOfRows | None:
    """Open a data set of texts with images, from the hub or from a folder.

    name      of the data set
    path      folder to which `datasets` saved it; None: it is on the hub
    options   how the corpus is to be read

    None if it has no column of images, or none of captions or chats, or if the hub has no such data set (the reader of
    texts then says so). CorpusError for an unknown column or split.
    """
    if path is not None:
        return _open_saved(name, path, options)
    part = resolve_corpus(name, "image", options)
    if not isinstance(part, HubPart):
        return None
    return _open_hub(part, options)


def _open_saved(name: str, path: Path, options: CorpusOptions) -> SetOfRows | None:
    """Open a data set that `datasets` saved to a folder; None if it holds no texts with images.

    name      of the data set, for errors
    path      the folder
    options   how the corpus is to be read
    """
    import datasets  # type: ignore[import-untyped]

    # Saved to a folder, a data set is of one configuration and one revision.
    options.refuse(name, "config", "revision")
    loaded: Any = datasets.load_from_disk(str(path))
    source: dict[str, object] = {"path": str(path.resolve())}
    # A dict of data sets: `datasets` saved several splits.
    if isinstance(loaded, dict):
        source["split"] = hub.choose_split(list(loaded), options.split, name)
        loaded = loaded[source["split"]]
    else:
        options.refuse(name, "split")
    columns = _find_columns(loaded.features, options.column, name)
    if columns is None:
        return None
    return SetOfRows(_iter_saved_rows(loaded, columns), columns.is_chat, source)


def _iter_saved_rows(loaded: Any, columns: _Columns) -> Iterator[SetRow]:
    """Yield the rows of a saved data set, with images that are read later."""
    encoded = _leave_encoded(loaded, columns)
    # A view without the images, which `datasets` would decode along with each row.
    texts = loaded.select_columns([columns.text])
    for number in range(len(loaded)):
        value = encoded[number][columns.images]
        count = len(value) if isinstance(value, list) else int(value is not None)
        place = f"row {number + 1}"
        images = []
        for k, name in enumerate(_name_images(place, count)):
            images.append(SavedImage(name, encoded, number, columns.images, k))
        yield SetRow(place, dict(texts[number]), images)


def _name_images(place: str, count: int) -> list[str]:
    """Return the names of the images of a row: `row 7, image 1`, `row 7, image 2` …; `row 7` if there is only one.

    place   where the row is: `row 7`
    count   number of its images
    """
    if count == 1:
        return [place]
    return [f"{place}, image {number}" for number in range(1, count + 1)]


def _open_hub(part: HubPart, options: CorpusOptions) -> SetOfRows | None:
    """Open a data set of the hub; None if there is no such data set, or it holds no texts with images.

    Rows that were streamed before come from the cache, the rest is streamed and cached. A row is one item of the cache:
    its images one after the other, and everything else as its name.

    part      the data set's name, and which part of it is wanted
    options   how the corpus is to be read
    """
    try:
        found = hub.find_set(part)
    except CorpusError:
        # The reader of texts, which is asked next, says what is wrong with the name.
        return None
    key = {
        "id": found.id,
        # Keeps this cache apart from that of the same images without texts.
        "holds": "texts with images",
        "config": part.config,
        "split": part.split,
    }
    folder = cache_folder(key | {"column": options.column}, found.commit)
    kept = None if folder is None else StreamCache(folder)
    # opened at most once, and not at all if the cache holds every row
    opened = cache(lambda: _open_encoded_set(found, part, options.column))
    about = kept.about() if kept else None
    if about is None:
        _, columns, about = opened()
        if columns is None:
            return None
        about = {
            **about,
            "columns": [columns.images, columns.text],
            "chats": columns.is_chat,
        }
        if kept:
            kept.begin(about)

    def stream(after: int) -> Iterator[Item]:
        """Yield the rows after the first `after`, as items of the cache."""
        rows, columns, _ = opened()
        if columns is not None:
            for place, row in hub.number_rows(rows, found.id, after):
                yield _pack(place, row, columns)

    items = kept.items(stream) if kept else stream(0)
    source = _describe_source(found, part, about)
    return SetOfRows(map(_unpack, items), bool(about["chats"]), source)


def _describe_source(
    found: hub.HubSet, part: HubPart, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest's entry on a data set of the hub.

    about   what the cache keeps about its rows
    """
    source = {"id": found.id, "revision": part.revision, **found.notes}
    for name, value in about.items():
        # the manifest says it in its own words
        if name != "chats":
            source[name] = value
    return source


def _open_encoded_set(
    found: hub.HubSet, part: HubPart, column: str | None
) -> tuple[Any, _Columns | None, dict[str, Any]]:
    """Return (rows of a hub data set with images left encoded, its columns, the manifest's entry on the source).

    found    the data set at its commit
    part     which part of it is wanted
    column   the column of captions that was asked for

    The columns are None if it has no images, or no texts.
    """
    rows, about = hub.open_split(found, part)
    # a data set without a description has no types of columns until its first row is read
    if not rows.features:
        rows = rows._resolve_features()
    columns = _find_columns(rows.features, column, found.id)
    if columns is not None:
        rows = _leave_encoded(rows, columns)
    return rows, columns, about


def _find_columns(features: Any, column: str | None, name: str) -> _Columns | None:
    """Return the names of the columns of images and texts; None if there are no images, or no texts.

    features   {column: its type in `datasets`}
    column     of captions, as the user named it; None: found by its name
    name       of the data set, for errors
    """
    images = [key for key, feature in dict(features).items() if _holds_images(feature)]
    if not images:
        return None
    chat = _find_first(CHAT_COLUMNS, features)
    if column is not None:
        _require_captions(column, images, features, name)
        # Chats stay chats if the user names their column: they have another form than
        # captions.
        return _Columns(images[0], column, is_chat=column == chat)
    if chat is not None:
        return _Columns(images[0], chat, is_chat=True)
    caption = _find_first(CAPTION_COLUMNS, features)
    if caption is None:
        return None
    return _Columns(images[0], caption, is_chat=False)


def _holds_images(feature: Any) -> bool:
    """Return whether a column, by its type in `datasets`, holds an image or a list of them."""
    import datasets

    # a list of images is written in one of two ways, as in `_leave_encoded`
    inner = getattr(feature, "feature", feature)
    if isinstance(feature, list):
        inner = feature[0]
    return isinstance(inner, datasets.Image)


def _require_captions(column: str, images: list[str], features: Any, name: str) -> None:
    """Raise CorpusError if there is no column of this name, or it holds images."""
    require_column(column, features, name, "captions")
    if column not in images:
        return
    cure = "name a data set with captions"
    others = [key for key in features if key not in images]
    if others:
        cure = suggest_names(column, others)
    raise CorpusError(
        f"a column of captions in {name}", f"{column}, which holds images", cure
    )


def _find_first(names: Iterable[str], features: Any) -> str | None:
    """Return the first of `names` that is a column of a data set; None if none is.

    features   {column: its type in `datasets`}
    """
    for name in names:
        if name in features:
            return name
    return None


def _leave_encoded(rows: Any, columns: _Columns) -> Any:
    """Return the rows of a data set with only the columns that are needed, and images as encoded bytes."""
    import datasets

    feature = rows.features[columns.images]
    encoded: Any = datasets.Image(decode=False)
    # a list of images is written as a list, or as a type with the type of its entries
    if isinstance(feature, list) or hasattr(feature, "feature"):
        encoded = datasets.Sequence(encoded)
    return rows.select_columns([columns.images, columns.text]).cast_column(
        columns.images, encoded
    )


def _pack(place: str, row: dict[str, Any], columns: _Columns) -> Item:
    """Turn a row into an item of the cache: its name is everything but the images in JSON, its bytes are the images.

    place   where the row is: `row 7`
    row     its values by column
    """
    images = row[columns.images]
    if images is None:
        images = []
    if not isinstance(images, list):
        images = [images]
    fault = ""
    bodies: list[bytes] = []
    try:
        bodies = [read_encoded(image, place) for image in images]
    except CorpusError as error:
        # The row is cached with its fault, and is not asked for again.
        fault = error.got
    says = {
        "place": place,
        "columns": {columns.text: row[columns.text]},
        "sizes": list(map(len, bodies)),
        "fault": fault,
    }
    return Item(json.dumps(says), None, b"".join(bodies))


def _unpack(item: Item) -> SetRow:
    """Return the row that an item of the cache holds."""
    says = json.loads(item.name)
    place, sizes = says["place"], says["sizes"]
    images = []
    for name, size, end in zip(
        _name_images(place, len(sizes)), sizes, accumulate(sizes), strict=True
    ):
        # A row that was streamed without a cache holds its images; one of the cache
        # says where they begin in its file.
        if isinstance(item.place, bytes):
            images.append(Item(name, None, item.place[end - size : end]))
        else:
            images.append(Item(name, None, item.place, item.offset + end - size, size))
    return SetRow(place, says["columns"], images, says["fault"])
