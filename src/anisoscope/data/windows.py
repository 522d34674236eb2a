"""Cut the tokens of a corpus into windows, and build batches of them on demand."""

import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.axes import FREQUENCY_BINS
from anisoscope.batch import Batch, Stream
from anisoscope.data.on_disk import Ids, iter_blocks
from anisoscope.data.plans import Column, Index, Int64, Plan, hash_parts, pack
from anisoscope.errors import CorpusError, ModelError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CHUNK = 1_000_000  # characters tokenised in one call: the tokenizer's own records take 30 times as many bytes
_UNITS = 1 << 14  # units cut into windows at a time


@dataclass(frozen=True)
class Affixes:
    """The ids of the special tokens that a tokenizer puts before and after every window."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def __len__(self) -> int:
        """Return how many special tokens a window has."""
        return len(self.prefix) + len(self.suffix)


class TextWindows(NamedTuple):
    """The content tokens of all units (documents) in one row, and the windows cut from it, without special tokens.

    ids      [position] int32: content tokens, unit after unit; on the disk if there are many
    unit     [window]: index of the unit
    offset   [window]: position of its first content token
    length   [window]: number of its content tokens
    start    [window]: running index of its first column inside the unit, special tokens counted

    All but `offset` are int32 if their numbers fit (`choose_type`).
    """

    ids: Ids
    unit: Column
    offset: Column
    length: Column
    start: Column


def find_affixes(tokenizer: "PreTrainedTokenizerBase") -> Affixes:
    """Find the special tokens that a tokenizer adds around one sequence, by encoding a text with and without them.

    In version 5 of transformers Rust tokenizers have no `build_inputs_with_special_tokens`, and the template of a
    `tokenizer.json` may differ from its class. ModelError if they are not simply before and after the text.
    """
    # several texts: one that gives no token of its own fits everywhere, and tells nothing
    for probe in ("a", "the", "hello world", "1", "."):
        bare = _encode(tokenizer, [probe], special=False)[0]
        full = _encode(tokenizer, [probe], special=True)[0]
        # Where the bare ids occur exactly once, what is around them is what the
        # tokenizer adds.
        places = _find_all(bare, full)
        if len(places) == 1:
            return Affixes(
                tuple(full[: places[0]]), tuple(full[places[0] + len(bare) :])
            )
    expected = "a tokenizer that adds special tokens before and after a text"
    cure = "use the tokenizer published with the model, with all its files"
    raise ModelError(
        expected, f"{full} for {probe!r}, without special tokens {bare}", cure
    )


def _find_all(part: list[int], whole: list[int]) -> list[int]:
    """Return every index at which the ids `part` begin in the ids `whole`."""
    places = []
    for place in range(len(whole) - len(part) + 1):
        if whole[place : place + len(part)] == part:
            places.append(place)
    return places


def tokenise(
    documents: Iterable[str], tokenizer: "PreTrainedTokenizerBase"
) -> list[NDArray[np.int32]]:
    """Return the token ids of each document without special tokens."""
    return list(iter_tokens(documents, tokenizer))


def iter_tokens(
    documents: Iterable[str], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[NDArray[np.int32]]:
    """Yield the token ids of each document without special tokens; some documents are tokenised at a time."""
    for chunk in _iter_chunks(documents):
        for ids in _encode(tokenizer, chunk, special=False):
            # four bytes a token, where a list of Python's takes eight or more
            yield np.asarray(ids, dtype=np.int32)


def _encode(
    tokenizer: "PreTrainedTokenizerBase", texts: list[str], *, special: bool
) -> list[list[int]]:
    """Return the token ids of each text, with special tokens or without."""
    # verbose=False silences the warning that a text exceeds the model's length
    options = {
        "padding": False,
        "truncation": False,
        "return_attention_mask": False,
        "return_token_type_ids": False,
    }
    ids: list[list[int]] = tokenizer(
        texts, add_special_tokens=special, verbose=False, **options
    )["input_ids"]
    return ids


def _iter_chunks(documents: Iterable[str]) -> Iterator[list[str]]:
    """Yield documents in lists of about `_CHUNK` characters."""
    chunk: list[str] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += len(document)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def take_tokens(
    pieces: Iterable[NDArray[np.int32]], count: int | None
) -> Iterator[NDArray[np.int32]]:
    """Yield pieces of running text (token ids) up to `count` tokens (None: all); later pieces are not tokenised."""
    if count is None:
        yield from pieces
        return
    for piece in pieces:
        yield piece[:count]
        count -= len(piece)
        if count <= 0:
            return


def cut_blocks(tokens: int, size: int) -> NDArray[np.int32]:
    """Return the lengths [unit] of the units of `size` tokens that running text is cut into; the last may be shorter.

    tokens   number of tokens of the text
    """
    firsts = np.arange(0, tokens, size)
    return np.minimum(tokens - firsts, size).astype(np.int32)


def cut_windows(
    ids: Ids, lengths: NDArray[np.int32], max_length: int, n_special: int
) -> TextWindows:
    """Cut units into consecutive windows of `max_length − n_special` content tokens; a unit's last one may be
    shorter.

    ids         content tokens of all units, one unit after another
    lengths     how many of them each unit has [unit]
    n_special   number of special tokens of a window
    """
    room = max_length - n_special
    # Rounded up: ⌈tokens / room⌉ windows of each unit.
    count = -(-lengths // room)
    total = int(count.sum())
    windows = TextWindows(
        ids,
        unit=np.empty(total, choose_type(len(lengths))),
        offset=np.empty(total, np.int64),
        length=np.empty(total, choose_type(max_length)),
        start=np.empty(total, choose_type(max_length * int(count.max(initial=0)))),
    )
    first_row = first_token = 0
    # some units at a time: the arrays made on the way take more memory than the windows
    for first in range(0, len(lengths), _UNITS):
        tokens = lengths[first : first + _UNITS].astype(np.int64)
        parts = count[first : first + _UNITS]
        unit = np.repeat(np.arange(len(tokens)), parts)
        # Number of a window in its unit: its row, less the row at which the unit
        # begins.
        rank = np.arange(len(unit)) - np.repeat(np.cumsum(parts) - parts, parts)
        rows = slice(first_row, first_row + len(unit))
        windows.unit[rows] = first + unit
        # Tokens of the units before, then those of the windows before in the same unit.
        windows.offset[rows] = (
            first_token + (np.cumsum(tokens) - tokens)[unit] + rank * room
        )
        windows.length[rows] = np.minimum(tokens[unit] - rank * room, room)
        # Special tokens have numbers too, so that windows are `max_length` numbers
        # apart.
        windows.start[rows] = rank * max_length
        first_row += len(unit)
        first_token += int(tokens.sum())
    return windows


def choose_type(largest: int) -> type[np.int32] | type[np.int64]:
    """Return int32 if it holds numbers up to `largest`, else int64."""
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64


def count_types(ids: Ids) -> Index:
    """Return how often each token id occurs [id], up to the largest that does."""
    counts = np.zeros(0, np.int64)
    for block in iter_blocks(ids):
        found = np.bincount(block, minlength=len(counts))
        found[: len(counts)] += counts
        counts = found
    return counts


def bin_by_frequency(ids: Ids) -> tuple[Index, list[str]]:
    """Group token types into bins of equal total count.

    Return each id's bin (0 = rarest) and the labels of the bins. Types of the same count share a bin.
    """
    counts = count_types(ids)
    # Types of one count share a bin, so that counts are binned and not types.
    values, types = np.unique(counts, return_counts=True)
    mass = values * types
    # the bin of a count is that of the middle of its mass: one that spans a border goes where most of it is
    middle = (np.cumsum(mass) - mass / 2) / max(1, mass.sum())
    bin_of_value = np.minimum(
        (middle * FREQUENCY_BINS).astype(np.int64), FREQUENCY_BINS - 1
    )
    labels = []
    for k in range(FREQUENCY_BINS):
        inside = values[(bin_of_value == k) & (values > 0)]
        if len(inside):
            labels.append(f"q{k + 1} (count {inside.min()}–{inside.max()})")
        else:
            labels.append(f"q{k + 1} (empty)")
    return bin_of_value[np.searchsorted(values, counts)], labels


def find_punctuation(
    tokenizer: "PreTrainedTokenizerBase", ids: Ids
) -> NDArray[np.bool_] | None:
    """Return for each id whether its token is only punctuation or line breaks [id].

    ids   all token ids of the corpus

    None if the tokenizer cannot turn ids into tokens.
    """
    if not hasattr(tokenizer, "convert_ids_to_tokens") or not len(ids):
        return None
    types = np.flatnonzero(count_types(ids))
    found = np.zeros(int(types.max()) + 1, dtype=bool)
    names = tokenizer.convert_ids_to_tokens(types.tolist())
    for number, name in zip(types.tolist(), names, strict=True):
        # what has a letter or digit of ASCII is none; the rest is decoded, since byte-level tokens hide their text
        if isinstance(name, str) and not any(c.isascii() and c.isalnum() for c in name):
            # `##` is WordPiece's mark of a token that continues a word.
            found[number] = is_punctuation(
                str(tokenizer.decode([number])).removeprefix("##")
            )
    return found


def is_punctuation(text: str) -> bool:
    """Return whether a text is only punctuation and white space, and not only blanks: `.`, ` ,`, a line break."""
    marks = [c for c in text if not c.isspace()]
    if not marks:
        return "\n" in text
    return all(unicodedata.category(c).startswith("P") for c in marks)


class TextPlan(Plan):
    """The batches of a text corpus for one tokenizer, in windows.

    A unit is the document's index in the corpus; documents without a token are not units. `special` marks the tokens
    that the tokenizer added, by position: the text of a special token inside a document (`<unk>`, `</s>`) is content.
    A token keeps its (unit, start + column) whatever the batch or the padding side.
    """

    def __init__(
        self,
        windows: TextWindows,
        affixes: dict[str, Affixes],
        settings: dict[str, Any],
        identity: Iterable[object],
        words: Mapping[str, str],
        warnings: Iterable[str] = (),
        characters: torch.Tensor | None = None,
        punctuation: NDArray[np.bool_] | None = None,
    ) -> None:
        """Batch the windows.

        affixes       special tokens around a window, by stack
        settings      length of windows, padding and so on, for the manifest and the hash
        identity      everything the batches depend on, for the hash
        words         what the corpus calls positions, units and so on
        characters    [id, character]: what the model reads instead of the id of a word; None: it reads ids
        punctuation   [id]: whether a token is only punctuation or line breaks; None: not known
        """
        self.windows = windows
        self.affixes = affixes
        self.settings = settings
        self.characters = characters
        self.punctuation = punctuation
        lengths = self.lengths
        batches = pack(lengths, settings["batch_tokens"])
        super().__init__(batches, lengths, windows.unit, identity, words, warnings)
        self._bin_of_id, self.frequency_bins = bin_by_frequency(windows.ids)

    @property
    def lengths(self) -> Column:
        """Return how many tokens each window has [window] for the first stack, special ones counted."""
        return self.windows.length + len(next(iter(self.affixes.values())))

    @property
    def tokens_hash(self) -> str | None:
        """Return the hash of all windows with their special tokens, whatever model reads them and however it pads.

        None if the stacks of a model read different tokens.
        """
        if len(self.affixes) > 1:
            return None
        (around,) = self.affixes.values()
        ids, *columns = self.windows
        return hash_parts([around.prefix, around.suffix, ids, *map(Int64, columns)])

    def spread(self, sequences: int) -> "TextPlan":
        """Return a plan with only `sequences` windows, evenly spread over the corpus (all, if there are fewer)."""
        count = len(self.lengths)
        kept = min(sequences, count)
        # Row i of those kept is row i · count / kept of all.
        rows = np.unique(np.arange(kept) * count // max(1, kept))
        notes = []
        if count < sequences:
            notes.append(f"{count} windows only, {sequences} asked for")
        return self._only(rows, {"sequences": sequences}, notes)

    def at_least(self, shortest: int) -> "TextPlan":
        """Return a plan without windows of fewer than `shortest` tokens (special ones counted).

        CorpusError if none remain.
        """
        rows = np.flatnonzero(self.lengths >= shortest)
        is_part = self.settings.get("is_part", False)
        if not len(rows) and not is_part:
            expected = f"texts of at least {shortest} tokens, special ones counted"
            raise CorpusError(expected, "none", "name a longer text")
        n_short = len(self.lengths) - len(rows)
        if not n_short:
            return self
        # for one file among many without the count, which would make a different note of each
        left_out = "windows" if is_part else f"{n_short} windows"
        note = f"{left_out} of fewer than {shortest} tokens left out: the model cannot read them"
        return self._only(rows, {"shortest": shortest}, [note])

    def _only(
        self, rows: Index, settings: dict[str, Any], notes: list[str]
    ) -> "TextPlan":
        """Return the plan with only these windows.

        rows       numbers of the windows
        settings   added to the plan's settings
        notes      added to its warnings
        """
        # the tokens stay whole, so that offsets and bins of frequency hold
        columns = [column[rows] for column in self.windows[1:]]
        windows = TextWindows(self.windows.ids, *columns)
        return TextPlan(
            windows,
            self.affixes,
            self.settings | settings,
            [self.fingerprint, *settings, rows],
            self.words,
            [*self.warnings, *notes],
            self.characters,
            self.punctuation,
        )

    def build(self, rows: Index) -> Batch:
        """Build the batch of these windows, with ids, masks and streams (which positions are real) for every stack
        (encoder or decoder).
        """
        inputs: dict[str, Any] = {}
        streams = {}
        for stack, around in self.affixes.items():
            # a decoder without an encoder is called with the plain names
            prefix = "decoder_" if stack == "decoder" and len(self.affixes) > 1 else ""
            ids, streams[stack] = self._pad(rows, around)
            if self.characters is not None:
                ids = self.characters[ids]
            inputs[prefix + "input_ids"] = ids
            inputs[prefix + "attention_mask"] = streams[stack].mask.long()
        return Batch(
            inputs, torch.from_numpy(self.unit[rows].astype(np.int64)), streams
        )

    def _pad(self, rows: Index, affixes: Affixes) -> tuple[torch.Tensor, Stream]:
        """Return the padded ids [sequence, token] of windows, and their stream (which positions are real).

        rows      numbers of the windows
        affixes   special tokens around each
        """
        windows = self.windows
        head = len(affixes.prefix)
        n_content = windows.length[rows, None].astype(np.int64)
        n_real = n_content + len(affixes)
        width = int(n_real.max())
        is_left = self.settings["padding_side"] == "left"
        shift = width - n_real if is_left else np.zeros_like(n_real)
        # column 0 is the first real token, whatever the padding side
        column = np.arange(width) - shift
        content = (column >= head) & (column < head + n_content)
        if isinstance(windows.ids, np.ndarray):
            # Columns without content read the first token, which is replaced below.
            places = np.where(content, windows.offset[rows, None] + column - head, 0)
            found = windows.ids[places].astype(np.int64)
        else:
            found = np.zeros(content.shape, np.int64)
            found[content] = windows.ids.read_ranges(
                windows.offset[rows], windows.length[rows]
            )
        ids = np.where(content, found, self.settings["pad_id"])
        for place, token in enumerate(affixes.prefix):
            ids[column == place] = token
        for place, token in enumerate(affixes.suffix):
            ids[column == head + n_content + place] = token
        mask = (column >= 0) & (column < n_real)
        # Column 0 may be padding: then its number comes before that of the first real
        # token.
        start = windows.start[rows] - shift[:, 0]
        stream = Stream(*map(torch.from_numpy, (mask, mask & ~content, start)))
        # Bins depend on all files, of which such a plan knows one.
        if not (self.settings.get("is_part") or self.settings.get("to_merge")):
            frequency = np.where(content, self._bin_of_id[found], -1)
            stream = replace(stream, frequency=torch.from_numpy(frequency))
        if self.punctuation is not None:
            stream = replace(
                stream, punctuation=torch.from_numpy(content & self.punctuation[found])
            )
        return torch.from_numpy(ids), stream


def check_vocabulary(
    tokenizer: "PreTrainedTokenizerBase",
    ids: Ids,
    affixes: list[Affixes],
    vocab_size: int | None,
) -> list[str]:
    """Raise ModelError for a tokenizer that does not know the text or does not fit the model; return warnings.

    ids          token ids of the text
    affixes      special tokens around windows, for each stack of the model
    vocab_size   number of the model's embeddings; None: unknown

    Ids beyond the model's embeddings cannot be embedded. A vocabulary of fewer than half
    the embeddings is not the model's (an empty one is what a tokenizer without its files has); fewer than nine tenths
    are suspicious. Tokens added later may exceed the embeddings as long as the text does not use them.
    """
    return check_counts(tokenizer, count_ids(tokenizer, ids), affixes, vocab_size)


class IdCounts(NamedTuple):
    """How many token ids there are, how many of them are of unknown tokens, and the largest."""

    total: int = 0
    unknown: int = 0
    largest: int = -1

    def add(self, other: "IdCounts") -> "IdCounts":
        """Return the counts of both together."""
        return IdCounts(
            self.total + other.total,
            self.unknown + other.unknown,
            max(self.largest, other.largest),
        )


def count_ids(tokenizer: "PreTrainedTokenizerBase", ids: Ids) -> IdCounts:
    """Count the token ids of a text."""
    counts = count_types(ids)
    unknown = 0
    # what splits into words has no unknown token
    of_unknown = getattr(tokenizer, "unk_token_id", None)
    if of_unknown is not None and 0 <= of_unknown < len(counts):
        unknown = int(counts[of_unknown])
    return IdCounts(len(ids), unknown, len(counts) - 1)


def check_counts(
    tokenizer: "PreTrainedTokenizerBase",
    counts: IdCounts,
    affixes: Iterable[Affixes],
    vocab_size: int | None,
) -> list[str]:
    """Check a tokenizer as `check_vocabulary` does, from the counts of the ids alone."""
    cure = "use the tokenizer published with the model, with all its files"
    if not counts.total:
        raise ModelError("a tokenizer that knows the text", "no token at all", cure)
    unknown = counts.unknown / counts.total
    if unknown > 0.5:
        got = f"{unknown:.0%} unknown tokens from a vocabulary of {len(tokenizer)}"
        raise ModelError(
            "a tokenizer that knows the text", got, f"{cure}, or a text in its language"
        )
    if vocab_size is None:
        return []
    size = len(tokenizer)
    # special tokens may be added behind the vocabulary; others added there need no embedding unless the text has them
    largest = max(counts.largest, tokenizer.vocab_size - 1)
    for around in affixes:
        largest = max((largest, *around.prefix, *around.suffix))
    if largest >= vocab_size or 2 * size < vocab_size:
        expected = f"a tokenizer that matches the model's vocabulary of {vocab_size}"
        raise ModelError(expected, f"a vocabulary of {max(largest + 1, size)}", cure)
    if 10 * size < 9 * vocab_size:
        return [
            f"the tokenizer has {size} tokens for a vocabulary of {vocab_size}: is it the model's own?"
        ]
    return []


def check_room(max_length: int, n_special: int) -> None:
    """Raise UsageError if a window has no room for a token of the text next to the special ones."""
    if max_length <= n_special:
        expected = f"windows of at least {n_special + 1} tokens (special tokens take {n_special})"
        raise UsageError(expected, str(max_length), "raise --max-length")
