"""Text corpora: read a name, a file, a folder or a hub data set into documents, and batch windows of them for
a model.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.data import hub
from anisoscope.data.corpora import (
    CorpusOptions,
    HubPart,
    NamedCorpus,
    named_corpora,
    resolve_corpus,
)
from anisoscope.data.documents import (
    choose_column,
    list_separate_files,
    list_texts_or_tables,
    read_path,
    read_rows,
    read_separate_file,
)
from anisoscope.data.local import find_path
from anisoscope.data.on_disk import Ids, keep_ids
from anisoscope.data.plans import Index, Int64, hash_parts
from anisoscope.data.splitting import SplitText
from anisoscope.data.table_rows import Row
from anisoscope.data.windows import (
    Affixes,
    TextPlan,
    TextWindows,
    check_room,
    check_vocabulary,
    cut_blocks,
    cut_windows,
    find_affixes,
    find_punctuation,
    iter_tokens,
    take_tokens,
)
from anisoscope.errors import CorpusError, UsageError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TextCorpus:
    """A corpus of documents in order, one per unit, with a hash of their texts and their provenance.

    documents   texts; they are on the disk if they are large
    source      the manifest's entry on where they are from
    block       tokens of a unit of running text: the documents are pieces, whose tokens a plan joins and cuts; `limit`
                is then the number of units to keep, which only the plan can count. None: each document is a unit
    unit        what a unit is called
    notes       remarks for the run's warnings
    numbers     number of each document's unit; None: that of the document
    is_part     whether it is one file of a corpus
    files       of a folder whose documents end with their files: {path of each file inside it: hash of its documents}
    """

    name: str
    documents: Sequence[str] = field(repr=False)
    fingerprint: str
    source: dict[str, object]
    block: int | None = None
    limit: int | None = None
    unit: str = "document"
    notes: tuple[str, ...] = ()
    numbers: Index | None = field(default=None, repr=False, compare=False)
    is_part: bool = False
    files: dict[str, str] = field(default_factory=dict, repr=False)


def open_text(name: str, **options: Any) -> TextCorpus:
    """Open the text corpus that `name` stands for (`data.corpora.resolve_corpus`). CorpusError if it holds no text.

    options   fields of `CorpusOptions`
    """
    corpus_options = CorpusOptions(**options)
    place = resolve_corpus(name, "text", corpus_options)
    read, source = _read_text(name, place, corpus_options)
    if not read.documents:
        raise refuse_empty(name, read.empty, read.skipped)
    source |= {
        "documents": read.how,
        "column": read.column,
        "limit": corpus_options.limit,
        "empty": read.empty,
        "skipped": read.skipped,
    }
    # The rule belongs to the hash: the same text in blocks is another corpus. True
    # means documents.
    fingerprint = hash_parts(
        chain([True if read.block is None else read.block], read.documents)
    )
    numbers = None
    hashes_by_file: dict[str, str] = {}
    if isinstance(place, Path) and read.owner is not None:
        # numbers and fingerprint of single files, so that shards of files agree on them without seeing each other's
        files = [str(file.relative_to(place)) for file in list_texts_or_tables(place)]
        numbers = _number_by_file(read.owner, len(files))
        hashes = _hash_files(read.documents, read.owner, range(len(files)))
        fingerprint = hash_parts(hashes.values())
        hashes_by_file = dict(zip(files, hashes.values(), strict=True))
    notes: tuple[str, ...] = ()
    if read.guessed:
        choice = "choose otherwise with --documents"
        rule = f"it is split into units by {read.how}; {choice}"
        notes = (f"the text marks no documents: {rule}",)
    return TextCorpus(
        name,
        read.documents,
        fingerprint,
        source,
        block=read.block,
        limit=None if read.block is None else corpus_options.limit,
        unit=read.unit,
        notes=notes,
        numbers=numbers,
        files=hashes_by_file,
    )


def _read_text(
    name: str, place: Path | HubPart | NamedCorpus, options: CorpusOptions
) -> tuple[SplitText, dict[str, object]]:
    """Read the documents of a hub data set, a path or a corpus that a function makes. Returns (documents, the
    manifest's entry on the source).

    name      of the corpus, for errors
    place     what the name stands for
    options   how the corpus is to be read
    """
    if isinstance(place, HubPart):
        return _read_hub_text(place, options)
    if isinstance(place, Path):
        source: dict[str, object] = {
            "kind": "folder" if place.is_dir() else "file",
            "path": str(place.resolve()),
        }
        return read_path(place, options), source
    # such a corpus comes as documents: nothing is left to split
    if options.documents != "auto":
        raise UsageError(
            "--documents only with text of your own",
            f"it with {name}",
            "leave --documents out",
        )
    read, source = place.make(options.limit)
    return read, source


def refuse_empty(where: str, empty: int, skipped: int) -> CorpusError:
    """Make the error for a corpus without text. The caller raises it.

    where            the corpus, or the part of it that was read
    empty, skipped   documents that are empty, and that could not be read
    """
    counts = {"empty": empty, "unreadable": skipped}
    found = " and ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    got = f"no text ({found} documents)" if found else "no text"
    return CorpusError(
        f"text in {where}", got, "name a corpus with text, or another column"
    )


def open_separate_file(
    folder: Path, number: int, files: Sequence[Path], options: CorpusOptions, name: str
) -> TextCorpus:
    """Open one file of a folder of texts; its documents have the numbers that they have in the whole folder.

    number    of the file among `files`, which are all texts or tables of the folder
    options   how the corpus is to be read, with the column of tables (`documents.fix_column`)
    name      of the corpus

    The hash is that of the file; `source` says how many documents were empty, or could not be read.
    """
    read = read_separate_file(folder, number, files[number], options)
    source: dict[str, object] = {
        "kind": "folder",
        "path": str(folder.resolve()),
        "documents": read.how,
        "column": read.column,
        "limit": None,
        "empty": read.empty,
        "skipped": read.skipped,
    }
    numbers = _number_by_file([number] * len(read.documents), len(files))
    fingerprint = hash_parts(chain([True], read.documents))
    return TextCorpus(
        name,
        read.documents,
        fingerprint,
        source,
        unit=read.unit,
        numbers=numbers,
        is_part=True,
    )


def _number_by_file(owner: Sequence[int], files: int) -> Index:
    """Number documents so that the number depends on the file and the place in it, not on what other files hold.

    owner   number of the file of each document
    files   how many files the corpus has
    """
    place = Counter[int]()
    numbers = np.empty(len(owner), np.int64)
    for document, file in enumerate(owner):
        # Modulo the number of files this is the file again, as `number_by_content`
        # reads it.
        numbers[document] = file + files * place[file]
        place[file] += 1
    return numbers


def _hash_files(
    documents: Iterable[str], owner: Iterable[int], files: Iterable[int]
) -> dict[int, str]:
    """Return a hash of the documents of each file, by the number of the file. Those of a file follow each other."""
    # A file without documents has a hash too.
    hashes = {file: hash_parts([True]) for file in files}
    for file, group in groupby(zip(owner, documents, strict=True), key=itemgetter(0)):
        hashes[file] = hash_parts(chain([True], (text for _, text in group)))
    return hashes


def read_by_files(name: str, shard: tuple[int, int], **options: Any) -> bool:
    """Return whether a shard of a text corpus can read whole files of its own, and need not see the rest.

    options   fields of `CorpusOptions`
    """
    corpus_options = CorpusOptions(**options)
    if name in named_corpora():
        return False
    path = find_path(name)
    if path is None:
        return False
    # with fewer files than shards some shard would have nothing to read
    return len(list_separate_files(path, corpus_options)) >= shard[1]


def _read_hub_text(
    part: HubPart, options: CorpusOptions
) -> tuple[SplitText, dict[str, object]]:
    """Read the text column of a hub data set's split. Returns (documents, the manifest's entry on the source).

    part      the data set's name, and which part of it is wanted
    options   how the corpus is to be read
    """
    found = hub.find_set(part)
    rows, about = hub.open_split(found, part)
    # the other columns are not downloaded
    # One row is asked for, to see which columns there are.
    for _, first in islice(hub.number_rows(rows, found.id), 1):
        column = choose_column(
            first, options.column, f"{found.id}, split {about['split']}"
        )
        rows = rows.select_columns([column])
        options = replace(options, column=column)
    texts = (Row(place, row) for place, row in hub.number_rows(rows, found.id))
    source = {
        "kind": "hub",
        "id": found.id,
        "revision": part.revision,
        **about,
        **found.notes,
    }
    return read_rows(texts, options, part.id), source


def plan_text(
    corpus: TextCorpus,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    max_length: int,
    batch_tokens: int,
    stack: str = "encoder",
    padding_side: str = "right",
    decoder_start_id: int | None = None,
    vocab_size: int | None = None,
) -> TextPlan:
    """Cut a text corpus into windows of at most `max_length` tokens, and batch them for a model.

    Special tokens are added to every window and counted. A batch has at most `batch_tokens` positions with padding; a
    longer single window is a batch of its own.

    stack             name of the only stack's stream, `encoder` or `decoder`
    padding_side      `right` or `left`; with `left`, models with absolute positions need their own `position_ids`
    decoder_start_id  for an encoder–decoder: adds `decoder_input_ids`, the window shifted right behind this (special)
                      token, with a second stream `decoder`
    vocab_size        of the model; a tokenizer that does not fit it raises an error
    """
    if padding_side not in ("right", "left"):
        raise UsageError("padding_side 'right' or 'left'", repr(padding_side))
    affixes = _find_affixes_by_stack(tokenizer, stack, decoder_start_id)
    # Room for the stack that has the most of them.
    n_special = max(map(len, affixes.values()))
    check_room(max_length, n_special)
    windows = _cut_into_windows(corpus, tokenizer, max_length, n_special)
    notes = list(corpus.notes)
    # one file may be too short to tell: of several, all together are checked
    if not corpus.is_part:
        notes += check_vocabulary(
            tokenizer, windows.ids, list(affixes.values()), vocab_size
        )
    settings: dict[str, object] = {
        "max_length": max_length,
        "batch_tokens": batch_tokens,
        "padding_side": padding_side,
        "pad_id": _choose_pad_id(tokenizer, vocab_size),
        "special_tokens": {
            name: [around.prefix, around.suffix] for name, around in affixes.items()
        },
    }
    if corpus.is_part:
        settings["is_part"] = True
        notes.append(
            "bins of token frequency left out: a shard of files does not know the counts of the others"
        )
    identity = [
        corpus.fingerprint,
        settings,
        windows.ids,
        Int64(windows.unit),
        Int64(windows.length),
    ]
    words = {"sequence": "window", "unit": corpus.unit}
    punctuation = find_punctuation(tokenizer, windows.ids)
    return TextPlan(
        windows, affixes, settings, identity, words, notes, punctuation=punctuation
    )


def _find_affixes_by_stack(
    tokenizer: "PreTrainedTokenizerBase", stack: str, decoder_start_id: int | None
) -> dict[str, Affixes]:
    """Return {stack: the special tokens before and behind each window}; of an encoder–decoder for both stacks.

    decoder_start_id   the token that the input of a decoder begins with; None: the model has one stack
    """
    own = find_affixes(tokenizer)
    if decoder_start_id is None:
        return {stack: own}
    # what the decoder reads is shifted by one: the start token first, and the last token gone if it is special
    shifted = Affixes((decoder_start_id, *own.prefix), own.suffix[:-1])
    return {"encoder": own, "decoder": shifted}


def _cut_into_windows(
    corpus: TextCorpus,
    tokenizer: "PreTrainedTokenizerBase",
    max_length: int,
    n_special: int,
) -> TextWindows:
    """Tokenise the units of a corpus and cut them into windows with room for `n_special` special tokens."""
    ids, lengths = _tokenise_units(corpus, tokenizer)
    filled = lengths > 0
    lengths = lengths[filled]
    windows = cut_windows(ids, lengths, max_length, n_special)
    if corpus.numbers is None:
        return windows
    # units without tokens have no window: the numbers of the others stay what they are
    return windows._replace(unit=corpus.numbers[filled][windows.unit])


def _tokenise_units(
    corpus: TextCorpus, tokenizer: "PreTrainedTokenizerBase"
) -> tuple[Ids, NDArray[np.int32]]:
    """Return the token ids of all units, without special tokens, and the length of each unit [unit]: a document, or a
    block of running text.
    """
    tokens = iter_tokens(corpus.documents, tokenizer)
    if corpus.block is not None:
        # no more is tokenised than the units take
        needed = None if corpus.limit is None else corpus.limit * corpus.block
        ids = keep_ids(take_tokens(tokens, needed))
        return ids, cut_blocks(len(ids), corpus.block)
    lengths = array("i")

    def note_lengths() -> Iterator[NDArray[np.int32]]:
        """Yield the ids of each document, and note how many there are."""
        for document in tokens:
            lengths.append(len(document))
            yield document

    ids = keep_ids(note_lengths())
    return ids, np.array(lengths, np.int32)


def _choose_pad_id(tokenizer: "PreTrainedTokenizerBase", vocab_size: int | None) -> int:
    """Return the id to pad with: 0 if the tokenizer has none, or one that the model cannot embed; it is masked."""
    pad_id = tokenizer.pad_token_id
    if isinstance(pad_id, int) and (vocab_size is None or pad_id < vocab_size):
        return pad_id
    return 0


class _Words:
    """A tokenizer of whole words, numbered in order of appearance, with the interface that `plan_text` needs."""

    pad_token_id, unk_token_id = 0, None

    def __init__(self, split: Any) -> None:
        """Start with an empty vocabulary. `split` has a method `tokenize`, which splits a text into words."""
        self._split = split
        # Number 0 is for padding.
        self.ids: dict[str, int] = {"": 0}

    def __call__(
        self, texts: Sequence[str], *, add_special_tokens: bool, **_: Any
    ) -> dict[str, list[list[int]]]:
        """Return the word numbers of each text as `input_ids`, with [CLS] and [SEP] around it if special tokens are
        wanted.
        """
        rows = []
        for text in texts:
            words = self._split.tokenize(text)
            if add_special_tokens:
                words = ["[CLS]", *words, "[SEP]"]
            # a new word gets the next number
            rows.append([self.ids.setdefault(word, len(self.ids)) for word in words])
        return {"input_ids": rows}


def plan_characters(
    corpus: TextCorpus, tokenizer: Any, *, max_length: int, batch_tokens: int
) -> TextPlan:
    """Cut a text corpus into windows of words and batch them, for a model that reads each word as a row of characters.

    Everything else is as in `plan_text`.

    tokenizer   has `tokenize` (text → words) and `encode` (lists of words → `input_ids` [sequence, word, character],
                with its own markers around each)
    """
    numbers = _Words(tokenizer)
    # No `vocab_size`: the model has no embedding for a word, and its numbers grow with
    # the corpus.
    plan = plan_text(corpus, numbers, max_length=max_length, batch_tokens=batch_tokens)  # type: ignore[arg-type]
    # row 0 is the marker before the word
    rows = [tokenizer.encode([[word]])["input_ids"][0, 1] for word in numbers.ids]
    characters = torch.stack(rows)
    # Padding is a row of zeros, not the characters of an empty word.
    characters[numbers.pad_token_id] = 0
    words = plan.words | {"position": "word", "counted": "word"}
    identity = ["characters", plan.fingerprint]
    return TextPlan(
        plan.windows,
        plan.affixes,
        plan.settings,
        identity,
        words,
        plan.warnings,
        characters,
    )
