"""Texts with images: read captions of images and chats with images, and batch them for a vision-language model."""

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.batch import Batch, Stream
from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.files import get_ending, list_files_below
from anisoscope.data.image_text_sets import (
    CAPTION_COLUMNS,
    CHAT_COLUMNS,
    SavedImage,
    SetOfRows,
    SetRow,
    is_saved_set,
    open_set,
)
from anisoscope.data.images import check_image, decode_picture
from anisoscope.data.items import Item
from anisoscope.data.local import (
    ENDINGS,
    MANIFESTS,
    detect_modality,
    find_encoded_column,
    find_manifest,
    find_path,
)
from anisoscope.data.media import list_items
from anisoscope.data.plans import Index, Plan, batch_in_order, hash_parts
from anisoscope.data.table_rows import Row, list_faulty, read_table_rows, require_column
from anisoscope.errors import CorpusError, UsageError
from anisoscope.provenance import json_roundtrip

MARK = "<image>"
"""What stands for an image in a message that is one text."""
ROLES = {"human": "user", "gpt": "assistant"}
WITH_ENDING = (".jsonl", ".ndjson", ".json", ".parquet")
LOOKED = 20  # rows that tell whether a table holds chats with images

Message = dict[str, Any]


class Entry(NamedTuple):
    """One sequence: messages in transformers' form (`{"role", "content": [{"type": "image"}, …]}`), and their images
    in the order of the marks.
    """

    messages: list[Message]
    images: list[Item | SavedImage]
    unit: str


@dataclass(frozen=True)
class ImageTexts:
    """A corpus of texts with images, in order; `source` is the manifest's entry on it."""

    entries: list[Entry]
    fingerprint: str
    source: dict[str, object]
    unit_word: str


# ---- what a name stands for ------------------------------------------------------------------------------------------


def holds_image_texts(name: str) -> bool:
    """Return whether a name stands for images with captions (a folder, a table of paths), or for chats with images."""
    path = find_path(name)
    # What `datasets` saved has columns of images, which are read elsewhere.
    if path is None or is_saved_set(path):
        return False
    if path.is_dir():
        return _is_mostly_images(path)
    # Before the tables of paths: a table of chats may have a column of paths too.
    if get_ending(path) in WITH_ENDING and _holds_chats(path):
        return True
    is_table = get_ending(path) in MANIFESTS or find_encoded_column(path) is not None
    return is_table and detect_modality(path) == "image"


def _is_mostly_images(folder: Path) -> bool:
    """Return whether a folder holds more images than texts; a text named like an image, its caption, is not counted."""
    images: set[Path] = set()
    texts: list[Path] = []
    for path in folder.rglob("*"):
        if path.name.startswith("."):
            continue
        ending = path.suffix.lower()
        if ending in ENDINGS["image"]:
            images.add(path.with_suffix(""))
        elif ending in ENDINGS["text"]:
            texts.append(path.with_suffix(""))
    # a text named like an image is its caption
    n_texts = sum(path not in images for path in texts)
    return len(images) > n_texts


def _holds_chats(path: Path) -> bool:
    """Return whether the first rows of a table are chats, at least one of them with an image."""
    # One row that is no chat shows another kind of table, and images may come only
    # after some rows.
    for number, row in enumerate(read_table_rows(path)):
        if number == LOOKED:
            return False
        if not row.fault and _find_turns(row) is None:
            return False
        # a mark, a part of this type or a column: all of them are called so
        if "image" in str(row.columns):
            return True
    return False


# ---- reading ---------------------------------------------------------------------------------------------------------


def open_image_texts(name: str, **options: Any) -> ImageTexts:
    """Open a corpus of texts with images; each image with its captions, or each chat, is a unit.

    A folder of images has its captions in a table in it (`metadata.csv` or `.jsonl`), or in a text file for each image
    (`a.txt` for `a.jpg`). A table of chats has a column `messages` or `conversations`; paths of images are relative to
    the table.

    options   fields of `data.corpora.CorpusOptions`; `column` names the captions

    CorpusError lists what has no caption, and images that are missing or cannot be read.
    """
    corpus_options = CorpusOptions(**options)
    corpus_options.refuse(name, "split", "config", "revision")
    # A corpus of the hub is found by `find_image_text_set`.
    path = find_path(name)
    if path is None:
        raise CorpusError(
            "a folder of images with captions, or a table of chats",
            f"{name!r}, which does not exist",
        )
    about: dict[str, object] = {"path": str(path.resolve())}
    if not path.is_dir() and get_ending(path) in WITH_ENDING and _holds_chats(path):
        return _gather(name, _iter_chats(path), corpus_options, about, is_chat=True)
    return _gather(
        name,
        _iter_captions(path, corpus_options.column),
        corpus_options,
        about,
        is_chat=False,
    )


def find_image_text_set(name: str, **options: Any) -> Callable[[], ImageTexts] | None:
    """Find a data set of texts with images, and return a function without arguments that reads it.

    It is one of the hub, or one that `datasets` saved to a folder. None if the name is no such data set, or it has no
    column of images, or none of captions or chats.

    options   fields of `CorpusOptions`
    """
    corpus_options = CorpusOptions(**options)
    path = find_path(name)
    if path is not None and not is_saved_set(path):
        return None
    rows = open_set(name, path, corpus_options)
    if rows is None:
        return None
    return partial(
        _gather,
        name,
        _iter_set(rows),
        corpus_options,
        rows.source,
        is_chat=rows.is_chat,
    )


def _iter_set(found: SetOfRows) -> Iterator[tuple[Entry, str]]:
    """Yield (image with its caption, or chat; why it cannot be read) for each row of a data set."""
    # Both return the entry with a fault, which is empty if it can be read.
    read = _read_chat_of_set if found.is_chat else _read_caption_of_set
    for row in found.rows:
        try:
            entry, fault = read(row)
        except CorpusError as error:
            entry, fault = Entry([], [], row.place), error.got
        yield entry, fault


def _read_chat_of_set(row: SetRow) -> tuple[Entry, str]:
    """Return (chat of a row of a data set, why its images cannot be read; empty if they can)."""
    # Without its images its marks would be blamed.
    if row.fault:
        return Entry([], [], row.place), row.fault
    messages, places = _read_messages(Row(row.place, row.columns), list(row.images))
    images: list[Item | SavedImage] = []
    for place in places:
        # images of the row's own column are at hand; those that a message names have still to be found
        if isinstance(place, str | dict):
            images.append(_find_image(place, Path()))
        else:
            images.append(place)
    return Entry(messages, images, row.place), ""


def _read_caption_of_set(row: SetRow) -> tuple[Entry, str]:
    """Return (image of a row of a data set with its caption, why it cannot be read; empty if it can).

    If there are several captions, the first is taken.
    """
    # Of the set only the column of captions was read.
    (text,) = row.columns.values()
    if isinstance(text, list):
        text = text[0] if text else ""
    caption = ""
    if isinstance(text, str):
        caption = text.strip()
    fault = row.fault
    if not fault and not row.images:
        fault = "no image"
    elif not fault and not caption:
        fault = "no caption"
    return _build_entry(row.images, caption, row.place), fault


def _gather(
    name: str,
    found: Iterator[tuple[Entry, str]],
    options: CorpusOptions,
    about: dict[str, object],
    *,
    is_chat: bool,
) -> ImageTexts:
    """Check texts with images and return them as a corpus, of `limit` units at most.

    name      of the corpus
    found     each text with its images, and why it cannot be read (empty if it can)
    options   how the corpus is to be read
    about     the manifest's entry on the source
    is_chat   whether texts are chats rather than captions

    CorpusError if one cannot be read, unless `skip_bad` is set, or if there are none.
    """
    checked = _check_entries(found, options)
    entries, bad = checked.entries, checked.bad
    if bad and not options.skip_bad:
        raise _refuse_faulty(name, bad)
    if not entries:
        raise CorpusError(
            f"at least one text with an image in {name}", "none", "name another corpus"
        )
    source: dict[str, object] = {
        "kind": "chats" if is_chat else "captions",
        **about,
        "items": len(entries),
        "images": sum(len(entry.images) for entry in entries),
        "limit": options.limit,
        "skipped": len(bad),
    }
    if bad:
        # A few are enough to see what is wrong; their number is in `skipped`.
        source["skipped_items"] = bad[:20]
    # hashes of the images' bytes, not their paths: a corpus that was moved is the same
    written = [[entry.messages, entry.unit] for entry in entries]
    fingerprint = hash_parts([checked.hashes, written])
    return ImageTexts(entries, fingerprint, source, "chat" if is_chat else "image")


class CheckedEntries(NamedTuple):
    """Texts whose images can be read, the hashes of these images, and which others cannot be read and why."""

    entries: list[Entry]
    hashes: list[str]
    bad: list[str]


def _check_entries(
    found: Iterator[tuple[Entry, str]], options: CorpusOptions
) -> CheckedEntries:
    """Read the images of each text, of `limit` units at most, and set aside what cannot be read.

    found     each text with its images, and why it cannot be read (empty if it can)
    options   how the corpus is to be read
    """
    checked = CheckedEntries([], [], [])
    units: set[str] = set()
    for entry, fault in found:
        # an image may have several captions, in rows of their own: the last unit is read to its end
        if (
            options.limit is not None
            and len(units) == options.limit
            and entry.unit not in units
        ):
            break
        try:
            if fault:
                raise CorpusError("a text with its images", fault)
            # All images of a text before it counts: one that cannot be read makes the
            # text useless.
            hashes = [
                _hash_image(item, decode=options.skip_bad) for item in entry.images
            ]
        except CorpusError as error:
            checked.bad.append(f"{entry.unit} ({error.got})")
            continue
        units.add(entry.unit)
        checked.entries.append(entry)
        checked.hashes.extend(hashes)
    return checked


def _refuse_faulty(name: str, bad: list[str]) -> CorpusError:
    """Make the error for texts or images that cannot be read. The caller raises it."""
    cure = "repair or remove them, or pass --skip-bad"
    if any("no caption" in fault for fault in bad):
        cure = "write metadata.csv with the columns file_name and text, or a .txt file next to each image"
    return CorpusError(f"texts with their images in {name}", list_faulty(bad), cure)


def _hash_image(item: Item | SavedImage, *, decode: bool) -> str:
    """Return the hash of an image's bytes. CorpusError if it is missing or no image.

    decode   decode all of it to find out; else only its header is read
    """
    data = item.read()
    check_image(item.name, data, decode)
    return hashlib.sha256(data).hexdigest()


def _iter_captions(path: Path, column: str | None) -> Iterator[tuple[Entry, str]]:
    """Yield (image with its caption, why it cannot be read; empty if it can) for a folder or a table of images.

    column   of captions in the table; None: found by its name
    """
    manifest = find_manifest(path) if path.is_dir() else path
    if manifest is None:
        yield from _iter_captions_in_files(path)
        return
    for item, row in list_items(manifest, find_encoded_column(manifest)):
        fault = row.fault or item.fault
        caption = ""
        if not fault:
            caption = _find_caption(row, manifest, column)
        if not fault and not caption:
            fault = "no caption"
        yield _build_entry([item], caption, item.name), fault


def _iter_captions_in_files(folder: Path) -> Iterator[tuple[Entry, str]]:
    """Yield (image with its caption, fault) for each image of a folder; `a.txt` holds the caption of `a.jpg`.

    The fault says that there is no such text file; empty if there is one.
    """
    for file in list_files_below(folder):
        if file.suffix.lower() not in ENDINGS["image"]:
            continue
        item = Item(file.relative_to(folder).as_posix(), None, file)
        beside = file.with_suffix(".txt")
        caption = ""
        if beside.is_file():
            # A damaged letter in a caption is no reason to lose the image.
            caption = beside.read_text("utf-8", errors="replace").strip()
        fault = "" if caption else "no caption"
        yield _build_entry([item], caption, item.name), fault


def _find_caption(row: Row, manifest: Path, column: str | None) -> str:
    """Return the caption in a row of a table: from the column named by the user, else the first of `CAPTION_COLUMNS`.

    manifest   the table, for errors
    """
    if column is not None:
        require_column(column, row.columns, str(manifest), "captions")
        value = row.columns[column]
    else:
        value = _find_first(row.columns, CAPTION_COLUMNS)
    # a column of captions may be a list of several, or a number
    if not isinstance(value, str):
        return ""
    return value.strip()


def _find_first(entries: dict[str, Any], names: tuple[str, ...]) -> Any:
    """Return the first entry with one of these names that is not empty; None if there is none."""
    for name in names:
        if entries.get(name):
            return entries[name]
    return None


def _build_entry(images: list[Any], caption: str, unit: str) -> Entry:
    """Return an image (or several) followed by its caption, as one message of a user.

    unit   name of the unit that the sequence belongs to
    """
    # images go before the text, so that its tokens attend to them in a causal model too
    content: list[Message] = [{"type": "image"} for _ in images]
    content.append({"type": "text", "text": caption})
    return Entry([{"role": "user", "content": content}], images, unit)


def _iter_chats(path: Path) -> Iterator[tuple[Entry, str]]:
    """Yield (chat, why it cannot be read; empty if it can) for each row of a table."""
    folder = path.resolve().parent
    for row in read_table_rows(path):
        name = str(row.columns.get("id") or row.place)
        if row.fault:
            yield Entry([], [], row.place), row.fault
            continue
        # Some tables have one image in a row, some a list of them.
        given = row.columns.get("images") or row.columns.get("image") or []
        unplaced = [given]
        if isinstance(given, list | tuple):
            unplaced = list(given)
        try:
            messages, places = _read_messages(row, unplaced)
            images: list[Item | SavedImage] = [
                _find_image(place, folder) for place in places
            ]
        except CorpusError as error:
            yield Entry([], [], name), error.got
            continue
        yield Entry(messages, images, row.place), ""


def _find_turns(row: Row) -> list[Any] | None:
    """Return the messages of a row, from the first column of `CHAT_COLUMNS` that holds a list; None if none does."""
    for name in CHAT_COLUMNS:
        turns = row.columns.get(name)
        if isinstance(turns, list):
            return turns
    return None


def _read_messages(row: Row, unplaced: list[Any]) -> tuple[list[Message], list[Any]]:
    """Return (messages of a chat in transformers' form, where their images are: paths, bytes or URLs, in order).

    unplaced   images that the row names outside of the messages, in the order of the marks that stand for them

    CorpusError if there are more or fewer marks than images.
    """
    turns = _find_turns(row)
    if not turns:
        raise CorpusError("a list of messages", "no messages")
    # Each mark takes the first image that is left.
    unplaced = list(unplaced)
    places: list[Any] = []
    messages = [_read_message(turn, unplaced, places) for turn in turns]
    if unplaced and places:
        raise CorpusError(
            f"one mark {MARK} in the text for each image",
            f"{len(unplaced)} images without a mark",
        )
    # LLaVA's own sets have chats whose image is named outside of the messages, without a mark: it comes first.
    messages[0]["content"][:0] = [{"type": "image"}] * len(unplaced)
    return messages, [*unplaced, *places]


def _read_message(turn: Any, unplaced: list[Any], places: list[Any]) -> Message:
    """Return a message of a chat in transformers' form: its role and its parts.

    turn       the message as the row has it
    unplaced   images named outside of the messages that no mark stands for yet; each mark takes the first
    places     receives where the images are: paths, bytes or URLs
    """
    if not isinstance(turn, dict):
        raise CorpusError(
            "messages that are objects", f"{str(turn)[:40]!r} for a message"
        )
    # transformers and OpenAI write role and content, LLaVA from and value
    role = str(turn.get("role") or turn.get("from"))
    parts = turn.get("content", turn.get("value")) or []
    if isinstance(parts, str):
        parts = _split_marks(parts)
    content = [_read_part(part, unplaced, places) for part in parts]
    return {"role": ROLES.get(role, role), "content": content}


def _read_part(part: Any, unplaced: list[Any], places: list[Any]) -> Message:
    """Return a part of a message in transformers' form: a text, or the mark of an image.

    part       the part as the row has it
    unplaced   images named outside of the messages that no mark stands for yet; a mark takes the first
    places     receives where the image is: a path, bytes or a URL
    """
    kind = str(part.get("type")) if isinstance(part, dict) else ""
    if kind == "text":
        return {"type": "text", "text": str(part.get("text") or "")}
    if kind not in ("image", "image_url"):
        raise CorpusError(
            "parts of type text or image", f"a part of type {kind or '?'} in a message"
        )
    # transformers writes the image under its own key, OpenAI under image_url
    place = _find_first(part, ("image", "path", "url", "image_url"))
    if place is None:
        if not unplaced:
            raise CorpusError(
                "an image for each mark", f"more marks {MARK} than images"
            )
        place = unplaced.pop(0)
    places.append(place)
    return {"type": "image"}


def _split_marks(text: str) -> Iterator[Message]:
    """Split a text at its marks of images (`<image>`), and yield texts and marks in order."""
    for number, piece in enumerate(text.split(MARK)):
        if number:
            yield {"type": "image"}
        if piece.strip():
            # LLaVA writes the mark on a line of its own: that line break is no part of
            # the text.
            yield {"type": "text", "text": piece.strip("\n")}


def _find_image(place: Any, folder: Path) -> Item:
    """Return the image that a chat names. CorpusError for an address of the network.

    place    a path, encoded bytes, or a data URL
    folder   that paths are relative to
    """
    if isinstance(place, dict):  # as `datasets` and OpenAI write it
        if isinstance(place.get("bytes"), bytes):
            return Item(str(place.get("path") or "image"), None, place["bytes"])
        place = place.get("url") or place.get("path")
    if not isinstance(place, str) or not place:
        raise CorpusError("a path of an image", f"{str(place)[:40]!r} for an image")
    if place.startswith("data:"):
        return _decode_data_url(place)
    return _find_image_file(place, folder)


def _find_image_file(place: str, folder: Path) -> Item:
    """Return the image at a path. CorpusError for an address of the network.

    place    the path, relative to `folder` or absolute; it may begin with file://
    """
    # a corpus must be the same tomorrow: what an address holds may change
    if "://" in place and not place.startswith("file://"):
        raise CorpusError(
            "images on this machine",
            f"the address {place[:60]}, which is not downloaded",
        )
    file = folder / place.removeprefix("file://")
    # unlike Path.is_file, isfile is False for a name too long
    fault = "" if os.path.isfile(file) else f"no file {place}"  # noqa: PTH113
    return Item(place, None, file, fault=fault)


def _decode_data_url(url: str) -> Item:
    """Return the image in a data URL. CorpusError if it is no base64."""
    try:
        encoded = base64.b64decode(url.partition(",")[2], validate=True)
    except (binascii.Error, ValueError):
        raise CorpusError(
            "an image in base64", "a data URL that is not in base64"
        ) from None
    return Item("image in a data URL", None, encoded)


# ---- batches ---------------------------------------------------------------------------------------------------------


class ImageTextPlan(Plan):
    """The batches of a corpus of texts with images for one vision-language model.

    Each sequence is a chat, or an image followed by its caption, as the model's processor writes it: by its chat
    template if it has one. If the processor makes patches or several tiles of an image, or a chat has several images,
    a batch holds one sequence, since such a model passes on the parts of all images in one row.
    """

    def __init__(
        self,
        corpus: ImageTexts,
        processor: Any,
        *,
        stack: str,
        batch_tokens: int = 4096,
        are_pairs: bool = False,
    ) -> None:
        """Prepare the batches; the first text is encoded to learn its length.

        processor   the model's own, of images and texts together
        stack       the stack (encoder or decoder) that reads the text
        are_pairs   images and texts go to two towers (CLIP), and texts have no marks of images

        UsageError if the processor cannot encode an image with a text.
        """
        self.corpus = corpus
        self.processor = processor
        self._stack = stack
        self.are_pairs = are_pairs
        self.special = _find_special_tokens(processor)
        # The text with the most images is the longest, by which a batch is sized.
        counts = np.array([len(entry.images) for entry in corpus.entries], np.int64)
        if are_pairs:
            _require_one_image(counts)
        rows = self._count_rows(int(counts.argmax()), batch_tokens)
        described = json_roundtrip(
            getattr(processor.image_processor, "to_dict", dict)()
        )
        template = str(getattr(processor, "chat_template", None) or "")
        self.settings = {
            "processor": type(processor).__name__,
            "template": bool(template),
            "sequences": rows,
        }
        # resizing and template change the numbers as the texts do
        identity = [corpus.fingerprint, self.settings, described, template]
        units = _number_units(corpus.entries)
        batches = _batch_by_images(counts, rows)
        super().__init__(
            batches, np.ones(len(units), np.int64), units, identity, self._name_things()
        )

    def _name_things(self) -> dict[str, str]:
        """Return what tables and the page call a sequence, a unit and what is counted, as {role: word}."""
        if self.corpus.unit_word == "chat":
            return {"sequence": "chat", "unit": "chat", "counted": "chat"}
        return {
            "sequence": "image with its caption",
            "unit": self.corpus.unit_word,
            "counted": "image",
        }

    def _count_rows(self, row: int, batch_tokens: int) -> int:
        """Return how many sequences a batch holds, by the length of the one with the most images.

        row            number of the sequence whose length is taken
        batch_tokens   positions of a batch at most
        """
        # Before the run begins, so that a processor which does not fit is found early.
        encoded = self._encode([row])
        pixels = encoded.get("pixel_values")
        has_grid = any(name.endswith("grid_thw") for name in encoded)
        # four axes: [image, colour, height, width]; patches have fewer, tiles one more or several images
        is_one_plain_image = (
            pixels is not None
            and pixels.dim() == 4
            and len(pixels) == 1
            and not has_grid
        )
        if not is_one_plain_image:
            return 1
        length = max(1, encoded["input_ids"].shape[1])
        return max(1, batch_tokens // length)

    def build(self, rows: Index) -> Batch:
        """Build the batch of these texts with their images."""
        inputs = self._encode(rows.tolist())
        ids = inputs["input_ids"]
        real = inputs.get("attention_mask", torch.ones_like(ids)).bool()
        special = (
            torch.isin(ids, torch.tensor(sorted(self.special), dtype=ids.dtype)) & real
        )
        # The number of column 0, so that the first real token has number 0 whatever the
        # side of padding.
        stream = Stream(real, special, -real.int().argmax(1))
        return Batch(inputs, torch.from_numpy(self.unit[rows]), {self._stack: stream})

    def _encode(self, rows: list[int]) -> dict[str, torch.Tensor]:
        """Return the keyword arguments of the model for these texts and images, as the processor makes them.

        rows   numbers of the sequences
        """
        entries = [self.corpus.entries[row] for row in rows]
        pictures = [_decode_pictures(entry) for entry in entries]
        try:
            texts = [self._write(entry.messages) for entry in entries]
            # SigLIP was trained on texts padded to its longest, and reads the vector of a text at the end of them
            padding: bool | str = True
            if type(self.processor).__name__.startswith("Siglip"):
                padding = "max_length"
            options = self._choose_options(texts, pictures)
            encoded = self.processor(
                text=texts, padding=padding, return_tensors="pt", **options
            )
        except Exception as error:  # whatever a processor of any family raises
            got = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            cure = "save the processor that was published with the model in its folder"
            raise UsageError(
                "a processor that encodes an image with its text", got, cure
            ) from error
        inputs = {}
        for name, x in encoded.items():
            # labels would make the model compute a loss
            if isinstance(x, torch.Tensor) and name != "labels":
                inputs[name] = x
        return inputs

    def _choose_options(
        self, texts: list[str], pictures: list[list[Any]]
    ) -> dict[str, Any]:
        """Return the keyword arguments of the processor that depend on the texts and images.

        texts      as the processor reads them
        pictures   the images of each text
        """
        # a model of two towers has a fixed number of positions for a text
        if self.are_pairs:
            return {"images": list(chain.from_iterable(pictures)), "truncation": True}
        options: dict[str, Any] = {}
        if any(pictures):
            options["images"] = pictures
        # a template writes the first token of a text itself, which the tokenizer would write once more
        first = self.processor.tokenizer.bos_token
        if first and all(text.startswith(first) for text in texts):
            options["add_special_tokens"] = False
        return options

    def _write(self, messages: list[Message]) -> str:
        """Write the messages of a chat as the text that the processor reads, with a mark for each image.

        Without a chat template, the parts of a message follow each other, and each message begins a line.
        """
        if getattr(self.processor, "chat_template", None):
            return str(self.processor.apply_chat_template(messages, tokenize=False))
        mark = ""
        if not self.are_pairs:
            mark = str(getattr(self.processor, "image_token", MARK))
        lines = []
        for message in messages:
            parts = [part.get("text", mark) for part in message["content"]]
            lines.append("".join(parts))
        return "\n".join(lines)


def _require_one_image(counts: NDArray[np.int64]) -> None:
    """Raise UsageError if a text does not have exactly one image.

    counts   number of images of each text
    """
    others = int((counts != 1).sum())
    if others:
        got = f"{others} texts with none or several"
        raise UsageError(
            "one image for each text, for a model of two towers",
            got,
            "give a folder of images with one caption each",
        )


def _number_units(entries: list[Entry]) -> NDArray[np.int64]:
    """Return the number of each entry's unit, in order of appearance."""
    numbers: dict[str, int] = {}
    # A number for each new name: captions of one image share its unit.
    units = [numbers.setdefault(entry.unit, len(numbers)) for entry in entries]
    return np.array(units, np.int64)


def _batch_by_images(counts: NDArray[np.int64], rows: int) -> list[Index]:
    """Group texts into batches of `rows`, those without an image apart: a processor wants images for all or for none.

    counts   number of images of each text
    """
    batches: list[Index] = []
    for alike in (np.flatnonzero(counts), np.flatnonzero(counts == 0)):
        for part in batch_in_order(len(alike), rows):
            if len(part):
                batches.append(alike[part])
    return batches


def _decode_pictures(entry: Entry) -> list[Any]:
    """Return the images of a text, decoded."""
    return [decode_picture(item.name, item.read()) for item in entry.images]


def _find_special_tokens(processor: Any) -> set[int]:
    """Return the ids of the tokenizer's special tokens, without the one that stands for an image's parts."""
    tokenizer = processor.tokenizer
    # Gemma 3's processor names the token that begins an image so; its tokenizer names that of its parts
    mark = getattr(tokenizer, "image_token_id", None)
    if mark is None:
        mark = getattr(processor, "image_token_id", None)
    return {*tokenizer.all_special_ids} - {mark}
