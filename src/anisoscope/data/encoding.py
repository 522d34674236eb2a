"""Labelled examples as a model reads them: vocabulary or tokenizer, ids, batches.

The paper's vocabulary is every token type of the training split, by falling frequency: `<pad>` 0, `<unk>` 1, words,
`<cls>` last; `<cls>` stands before every utterance, and no mark between the texts of a pair (an option). Its authors
lemmatise with spaCy; here tokens are lower-cased words and punctuation marks, so that nothing has to be downloaded.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from anisoscope.batch import Batch, Stream
from anisoscope.data.labelled import EXAMPLES, Example, LabelledCorpus
from anisoscope.data.plans import Index, Plan, pack
from anisoscope.errors import CorpusError, UsageError

PAD, UNK, CLS, SEP = "<pad>", "<unk>", "<cls>", "<sep>"
BATCH = 4096


@dataclass(frozen=True)
class Encoded:
    """Examples (labelled texts) as token ids.

    rows       for each example what a model reads: `input_ids` (and `token_type_ids`), and its `labels`
    words      for each token, the index of its word in `Example.all_words`; −1: a special token
    truncated  how many examples were longer than the model allows, and were cut
    """

    rows: list[dict[str, Any]]
    words: list[list[int]] = field(repr=False)
    truncated: int = 0

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.rows)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each example."""
        return [len(row["input_ids"]) for row in self.rows]

    @property
    def labels(self) -> list[int]:
        """Class index of each example."""
        return [row["labels"] for row in self.rows]


def build_tokenizer(
    corpus: LabelledCorpus, *, max_length: int, separator: bool = False
) -> Any:
    """Build a tokenizer of whole words from the words of the training split.

    max_length   tokens of a text at most
    separator    put `<sep>` between the texts of a pair

    Words that are tokens already (`corpus.tokenised`) are not split.
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    # `Whitespace` also separates punctuation marks, which would cut tokens such as <user>
    before: Any = pre_tokenizers.Whitespace()
    if corpus.tokenised:
        before = pre_tokenizers.WhitespaceSplit()
    marks = [CLS]
    named = {"pad_token": PAD, "unk_token": UNK, "cls_token": CLS}
    pair = f"{CLS} $A $B"
    # Not in the paper's vocabulary: an option.
    if separator:
        marks.append(SEP)
        named["sep_token"] = SEP
        pair = f"{CLS} $A {SEP} $B"
    # In the order that the paper gives: padding, unknown, words, marks.
    vocabulary = (PAD, UNK, *_rank_words(corpus, before), *marks)
    ids = {token: number for number, token in enumerate(vocabulary)}
    inner = Tokenizer(WordLevel(ids, unk_token=UNK))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = before
    special = [(name, ids[name]) for name in marks]
    inner.post_processor = TemplateProcessing(
        single=f"{CLS} $A", pair=pair, special_tokens=special
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner,
        model_max_length=max_length,
        # Without `token_type_ids`, which transformers would add otherwise.
        model_input_names=["input_ids", "attention_mask"],
        **named,
    )


def _rank_words(corpus: LabelledCorpus, before: Any) -> list[str]:
    """Return the distinct words of the training split, the most frequent first, equally frequent ones by the alphabet.

    before   the pre-tokenizer of `tokenizers`, which splits texts into words
    """
    count: Counter[str] = Counter()
    for example in corpus.splits["train"]:
        text = " ".join(example.all_words).lower()
        for token, _ in before.pre_tokenize_str(text):
            count[token] += 1
    # Marks that a text holds as words must not get a second id.
    types = set(count) - {PAD, UNK, CLS, SEP}
    # Equally frequent words by the alphabet, so that ids are the same everywhere.
    return sorted(types, key=lambda token: (-count[token], token))


def encode(examples: Sequence[Example], tokenizer: Any, max_length: int) -> Encoded:
    """Tokenise every example. Texts longer than `max_length` tokens are cut, in a pair the longer text first.

    The tokenizer is given the text, not its words one by one: to many a tokenizer (GPT-2's, Llama's, Qwen's) the blank
    before a word is part of it. UsageError for a `max_length` below 3.
    """
    if max_length < 3:
        raise UsageError(
            "--max-length of at least 3 tokens", str(max_length), "raise --max-length"
        )
    if not examples:
        return Encoded([], [])
    whole, n_cut = _tokenise(examples, tokenizer, max_length)
    if min(map(len, whole["input_ids"])) == 0:
        raise CorpusError(
            "tokens in every example",
            "an example without any",
            "leave that example out",
        )
    rows = []
    words = []
    for number, example in enumerate(examples):
        row: dict[str, Any] = {}
        # Masks are made when batches are padded.
        for name in ("input_ids", "token_type_ids"):
            if name in whole:
                row[name] = whole[name][number]
        row["labels"] = example.label
        rows.append(row)
        words.append(_index_words(whole, number, example))
    return Encoded(rows, words, n_cut)


def _tokenise(
    examples: Sequence[Example], tokenizer: Any, max_length: int
) -> tuple[Any, int]:
    """Return (the tokenizer's result for all examples, with the place of each token; how many examples were cut)."""
    texts = [" ".join(example.words) for example in examples]
    seconds = None
    # A corpus has pairs in all of its examples, or in none.
    if examples[0].second is not None:
        seconds = [" ".join(example.second or ()) for example in examples]
    options: dict[str, Any] = {"return_offsets_mapping": True, "verbose": False}
    # first without a limit: once they are cut, nobody knows how many were too long
    whole = tokenizer(texts, seconds, add_special_tokens=True, **options)
    n_cut = sum(len(ids) > max_length for ids in whole["input_ids"])
    if n_cut:
        whole = tokenizer(
            texts, seconds, truncation="longest_first", max_length=max_length, **options
        )
    return whole, n_cut


def _index_words(encoding: Any, row: int, example: Example) -> list[int]:
    """Return for each token of one example the index of its word; −1 for special tokens.

    The second text's words are numbered after the first's.

    encoding   the tokenizer's result for all examples
    row        number of the example in it
    """
    texts = example.words, example.second or ()
    # Where each word begins in the joined text: the tokenizer names places of
    # characters, not words.
    starts = [_find_starts(words) for words in texts]
    found = []
    for span, text in zip(
        encoding["offset_mapping"][row], encoding.sequence_ids(row), strict=True
    ):
        if text is None:
            found.append(-1)
            continue
        # a token may begin with the blank before its word, so that its last character tells which word it is of
        last = max(span[0], span[1] - 1)
        number = bisect_right(starts[text], last) - 1
        is_blank = last >= starts[text][number] + len(texts[text][number])
        if is_blank and number + 1 < len(starts[text]):
            number += 1  # the blank before a word is part of it
        if text == 1:
            number += len(example.words)
        found.append(number)
    return found


def _find_starts(words: Sequence[str]) -> list[int]:
    """Return the position of each word's first character in the text that joins the words with single blanks."""
    starts = []
    place = 0
    for word in words:
        starts.append(place)
        # the word, and the blank behind it
        place += len(word) + 1
    return starts


@dataclass(frozen=True)
class Padding:
    """How the sequences of a batch are made equally long.

    id    the padding token
    side  right or left of the real tokens; none: a batch only holds sequences of one length
    """

    id: int
    side: Literal["right", "left", "none"] = "right"


def to_padding(pad: "int | Padding") -> Padding:
    """Return a `Padding` unchanged, and for a token id the padding with that token on the right."""
    if isinstance(pad, Padding):
        return pad
    return Padding(int(pad))


def pad_batch(rows: Sequence[dict[str, Any]], pad: int | Padding) -> dict[str, Tensor]:
    """Build a padded batch: {column: [sequence, token]} with `attention_mask` added, and `labels` [sequence].

    rows   what the model reads of each example (`input_ids`, …)
    pad    the padding token, on the right; or a `Padding`
    """
    padding = to_padding(pad)
    masks = [[1] * len(row["input_ids"]) for row in rows]
    batch = {"attention_mask": _pad_lines(masks, 0, padding.side)}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name == "labels":
            batch[name] = torch.tensor(values)
        elif name != "attention_mask":
            # ids have a padding token; in other columns the mask hides what stands there
            fill = padding.id if name == "input_ids" else 0
            batch[name] = _pad_lines(values, fill, padding.side)
    return batch


def _pad_lines(lines: Sequence[list[int]], fill: int, side: str) -> Tensor:
    """Return lists of numbers as a tensor [sequence, token], padded to the longest.

    fill   number to pad with
    side   `right` or `left`
    """
    width = max(map(len, lines))
    padded = []
    for line in lines:
        space = [fill] * (width - len(line))
        padded.append(space + line if side == "left" else line + space)
    return torch.tensor(padded)


def pack_padded(lengths: Sequence[int], budget: int, padding: Padding) -> list[Index]:
    """Group rows into batches whose padded size is at most `budget`; without padding, only rows of the same length.

    lengths   tokens of each row
    budget    tokens of a batch at most
    padding   how rows are padded; its side `none` means not at all

    Returns the row numbers of each batch.
    """
    every = np.array(lengths, dtype=np.int64)
    if padding.side != "none":
        return pack(every, budget)
    # `pack` puts different lengths together; here each length is packed apart.
    batches: list[Index] = []
    # the longest first, as `pack` orders them
    for length in sorted({*lengths}, reverse=True):
        rows = np.flatnonzero(every == length)
        for part in pack(every[rows], budget):
            batches.append(rows[part])
    return batches


class LabelledPlan(Plan):
    """Batches of labelled examples on `device`, grouped by length; each example is a unit.

    pad      the padding token (on the right), or a `Padding`
    stack    the stack that reads them; an encoder–decoder has both, and its decoder reads the same, shifted by one
    classes  names of the classes, part of the plan's identity; empty: their numbers
    """

    def __init__(
        self,
        encoded: Encoded,
        pad: int | Padding,
        *,
        batch_tokens: int = BATCH,
        stack: str | tuple[str, ...] = "encoder",
        device: torch.device | str = "cpu",
        classes: Sequence[str] = (),
    ) -> None:
        """Group the encoded examples into batches of at most `batch_tokens` positions, padding counted."""
        self.encoded = encoded
        self.padding = to_padding(pad)
        self.device = device
        self.stacks = (stack,) if isinstance(stack, str) else stack
        self.classes = tuple(classes)
        if not classes:
            highest = max(encoded.labels, default=-1)
            self.classes = tuple(map(str, range(highest + 1)))
        lengths = np.array(encoded.lengths, dtype=np.int64)
        ids = [row["input_ids"] for row in encoded.rows]
        identity = [ids, encoded.labels, batch_tokens, self.classes]
        # only if it is not the usual one, so that hashes of earlier runs stay the same
        if self.padding.side != "right":
            identity.append(self.padding.side)
        batches = pack_padded(encoded.lengths, batch_tokens, self.padding)
        super().__init__(batches, lengths, np.arange(len(encoded)), identity, EXAMPLES)

    @property
    def pad_id(self) -> int:
        """The padding token."""
        return self.padding.id

    @property
    def stack(self) -> str:
        """The stack that reads the examples; for an encoder–decoder, the decoder."""
        return self.stacks[-1]

    def build(self, rows: Index) -> Batch:
        """Build the padded batch of these examples on the device.

        It holds the model's inputs, the unit and label of each example, and for each stack (encoder, decoder) which
        positions are real.

        rows   numbers of the examples
        """
        # Unit and row are the same: each example is a unit.
        chosen = rows.tolist()
        examples = []
        words = []
        for number in chosen:
            examples.append(self.encoded.rows[number])
            words.append(torch.tensor(self.encoded.words[number]))
        inputs = pad_batch(examples, self.padding)
        label = inputs.pop("labels")
        inputs = {name: value.to(self.device) for name, value in inputs.items()}
        mask = inputs["attention_mask"].bool()
        # Without padding both sides are the same.
        side = "left" if self.padding.side == "left" else "right"
        # padding counts as word 0 here: the mask says that it is not real
        special = (pad_sequence(words, batch_first=True, padding_side=side) < 0).to(
            self.device
        )
        start = torch.zeros(len(rows), dtype=torch.int64)
        streams = {self.stacks[0]: Stream(mask, special, start)}
        # behind a token that begins it, the decoder reads what the encoder reads
        if len(self.stacks) > 1:
            shifted = torch.cat((torch.ones_like(special[:, :1]), special[:, :-1]), 1)
            streams[self.stacks[1]] = Stream(mask, shifted, start)
        return Batch(inputs, torch.from_numpy(rows), streams, label=label)
