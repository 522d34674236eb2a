"""Labelled examples as a model reads them: vocabulary or tokenizer, ids, batches.

The paper's vocabulary is every token type of the training split, by falling frequency: `<pad>` 0, `<unk>` 1, words,
`<cls>` last; `<cls>` stands before every utterance, and no mark between the texts of a pair (an option). Its authors
lemmatise with spaCy; here tokens are lower-cased words and punctuation marks, so that nothing has to be downloaded.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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


def build_tokenizer(corpus: LabelledCorpus, *, max_length: int, separator: bool = False) -> Any:
    """Build a word-level tokenizer from the words of the training split.

    separator   put `<sep>` between the texts of a pair

    Words that are tokens already (`corpus.tokenised`) are not split.
    """
    from tokenizers import Tokenizer, normalizers, pre_tokenizers
    from tokenizers.models import WordLevel
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    before = pre_tokenizers.WhitespaceSplit() if corpus.tokenised else pre_tokenizers.Whitespace()
    count: Counter[str] = Counter()
    for example in corpus.splits["train"]:
        count.update(token for token, _ in before.pre_tokenize_str(" ".join(example.all_words).lower()))
    types = sorted(set(count) - {PAD, UNK, CLS, SEP}, key=lambda token: (-count[token], token))
    ids = {token: i for i, token in enumerate((PAD, UNK, *types, CLS, *([SEP] if separator else [])))}
    inner = Tokenizer(WordLevel(ids, unk_token=UNK))
    inner.normalizer = normalizers.Lowercase()
    inner.pre_tokenizer = before
    middle = f"{SEP} " if separator else ""
    marks = [(name, ids[name]) for name in (CLS, SEP) if name in ids]
    inner.post_processor = TemplateProcessing(single=f"{CLS} $A", pair=f"{CLS} $A {middle}$B", special_tokens=marks)
    named = {"pad_token": PAD, "unk_token": UNK, "cls_token": CLS} | ({"sep_token": SEP} if separator else {})
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner, model_max_length=max_length, model_input_names=["input_ids", "attention_mask"], **named
    )


def encode(examples: Sequence[Example], tokenizer: Any, max_length: int) -> Encoded:
    """Tokenise every example. Texts longer than `max_length` tokens are cut, in a pair the longer text first.

    The tokenizer is given the text, not its words one by one: to many a tokenizer (GPT-2's, Llama's, Qwen's) the blank
    before a word is part of it. UsageError for a `max_length` below 3.
    """
    if max_length < 3:
        raise UsageError("--max-length of at least 3 tokens", str(max_length), "raise it")
    if not examples:
        return Encoded([], [])
    are_pairs = examples[0].second is not None
    texts = [" ".join(example.words) for example in examples]
    seconds = [" ".join(example.second or ()) for example in examples] if are_pairs else None
    options: dict[str, Any] = {"return_offsets_mapping": True, "verbose": False}
    whole = tokenizer(texts, seconds, add_special_tokens=True, **options)
    n_cut = sum(len(ids) > max_length for ids in whole["input_ids"])
    if n_cut:
        whole = tokenizer(texts, seconds, truncation="longest_first", max_length=max_length, **options)
    if min(map(len, whole["input_ids"])) == 0:
        raise CorpusError("tokens in every example", "an example without any", "leave it out")
    names = [name for name in ("input_ids", "token_type_ids") if name in whole]
    rows = []
    words = []
    for number, example in enumerate(examples):
        row = {name: whole[name][number] for name in names}
        rows.append({**row, "labels": example.label})
        words.append(_index_words(whole, number, example))
    return Encoded(rows, words, n_cut)


def _index_words(encoding: Any, row: int, example: Example) -> list[int]:
    """Return for each token of one example the index of its word; −1 for special tokens.

    The second text's words are numbered after the first's.

    encoding   the tokenizer's result for all examples
    row        number of the example in it
    """
    texts = example.words, example.second or ()
    starts = [_find_starts(words) for words in texts]
    found = []
    for span, text in zip(encoding["offset_mapping"][row], encoding.sequence_ids(row), strict=True):
        if text is None:
            found.append(-1)
            continue
        # a token may begin with the blank before its word, so that its last character tells which word it is of
        last = max(span[0], span[1] - 1)
        number = bisect_right(starts[text], last) - 1
        is_blank = last >= starts[text][number] + len(texts[text][number])
        if is_blank and number + 1 < len(starts[text]):
            number += 1  # the blank before a word is part of it
        found.append(number + (len(example.words) if text == 1 else 0))
    return found


def _find_starts(words: Sequence[str]) -> list[int]:
    """Return where each word begins in the text that joins the words with single blanks."""
    return [0, *accumulate(len(word) + 1 for word in words)][: len(words)]


@dataclass(frozen=True)
class Padding:
    """How the sequences of a batch are made equally long.

    id    the padding token
    side  right or left of the real tokens; none: a batch only holds sequences of one length
    """

    id: int
    side: Literal["right", "left", "none"] = "right"


def to_padding(pad: "int | Padding") -> Padding:
    """Return a `Padding`; a bare token id is put on the right."""
    return pad if isinstance(pad, Padding) else Padding(int(pad))


def pad_batch(rows: Sequence[dict[str, Any]], pad: int | Padding) -> dict[str, Tensor]:
    """Build a padded batch: {column: [sequence, token]} with `attention_mask` added, and `labels` [sequence].

    rows   what the model reads of each example (`input_ids`, …)
    pad    the padding token, on the right; or a `Padding`
    """
    padding = to_padding(pad)
    width = max(len(row["input_ids"]) for row in rows)
    batch: dict[str, Tensor] = {}
    for name in ("attention_mask", *rows[0]):
        if name == "labels":
            batch[name] = torch.tensor([row[name] for row in rows])
            continue
        fill = padding.id if name == "input_ids" else 0
        lines = []
        for row in rows:
            line = [1] * len(row["input_ids"]) if name == "attention_mask" else row[name]
            space = [fill] * (width - len(line))
            lines.append(space + line if padding.side == "left" else line + space)
        batch[name] = torch.tensor(lines)
    return batch


def pack_padded(lengths: Sequence[int], budget: int, padding: Padding) -> list[Index]:
    """Group rows into batches as `pack` does; without padding only rows of the same length share a batch."""
    every = np.array(lengths, dtype=np.int64)
    if padding.side != "none":
        return pack(every, budget)
    batches: list[Index] = []
    for length in sorted({*lengths}, reverse=True):
        rows = np.flatnonzero(every == length)
        batches += [rows[part] for part in pack(every[rows], budget)]
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
        self.encoded, self.padding, self.device = encoded, to_padding(pad), device
        self.stacks = (stack,) if isinstance(stack, str) else stack
        self.classes = tuple(classes) or tuple(map(str, range(max(encoded.labels, default=-1) + 1)))
        lengths = np.array(encoded.lengths, dtype=np.int64)
        identity = [[row["input_ids"] for row in encoded.rows], encoded.labels, batch_tokens, self.classes]
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
        """Build the padded batch of these rows on the device, with units, labels, and a stream (which positions are
        real) of tokens per stack (encoder or decoder).
        """
        chosen = rows.tolist()
        inputs = pad_batch([self.encoded.rows[i] for i in chosen], self.padding)
        label = inputs.pop("labels")
        inputs = {name: value.to(self.device) for name, value in inputs.items()}
        mask = inputs["attention_mask"].bool()
        side = "left" if self.padding.side == "left" else "right"
        words = [torch.tensor(self.encoded.words[i]) for i in chosen]
        special = (pad_sequence(words, batch_first=True, padding_side=side) < 0).to(self.device)
        start = torch.zeros(len(rows), dtype=torch.int64)
        streams = {self.stacks[0]: Stream(mask, special, start)}
        if len(self.stacks) > 1:  # behind a token that begins it, the decoder reads what the encoder reads
            shifted = torch.cat((torch.ones_like(special[:, :1]), special[:, :-1]), 1)
            streams[self.stacks[1]] = Stream(mask, shifted, start)
        return Batch(inputs, torch.from_numpy(rows), streams, label=label)
