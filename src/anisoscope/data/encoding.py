"""Labelled examples as a model reads them: the paper's own vocabulary or a checkpoint's tokenizer, ids, batches.

The paper's vocabulary is every token type of the training split, by falling frequency: `<pad>` 0, `<unk>` 1, words,
`<cls>` last; `<cls>` stands before every utterance, and no mark between the texts of a pair (an option). Its authors
lemmatise with spaCy; here tokens are lower-cased words and punctuation marks, so that nothing has to be downloaded.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Examples as ids.

    rows       what a model reads of each: `input_ids` (and `token_type_ids`), and its `labels`
    words      of each token, the index of its word in `Example.all_words`; −1: a special token
    truncated  examples longer than the model, cut at its length
    """

    rows: list[dict[str, Any]]
    words: list[list[int]] = field(repr=False)
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> list[int]:
        return [len(row["input_ids"]) for row in self.rows]

    @property
    def labels(self) -> list[int]:
        return [row["labels"] for row in self.rows]


def vocabulary_tokenizer(corpus: LabelledCorpus, *, max_length: int, separator: bool = False) -> Any:
    """A word-level tokenizer with the token types of the training split; `separator` puts `<sep>` between the texts of
    a pair. Words that are tokens already (`corpus.tokenised`) are not split.
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
    """Ids and word indices of every example, cut at `max_length` tokens (of a pair the longer text first)."""
    if max_length < 3:
        raise UsageError("--max-length of at least 3 tokens", str(max_length), "raise it")
    if not examples:
        return Encoded([], [])
    pairs = examples[0].second is not None
    given: dict[str, Any] = {"is_split_into_words": True, "verbose": False}
    texts = [list(e.words) for e in examples]
    seconds = [list(e.second or ()) for e in examples] if pairs else None
    whole = tokenizer(texts, seconds, add_special_tokens=True, **given)
    long = sum(len(ids) > max_length for ids in whole["input_ids"])
    if long:
        whole = tokenizer(texts, seconds, truncation="longest_first", max_length=max_length, **given)
    kept = [name for name in ("input_ids", "token_type_ids") if name in whole]
    rows = [{**{name: whole[name][i] for name in kept}, "labels": example.label} for i, example in enumerate(examples)]
    if min(map(len, whole["input_ids"])) == 0:
        raise CorpusError("tokens in every example", "an example without any", "leave it out")
    return Encoded(rows, [_word_index(whole, i, len(e.words)) for i, e in enumerate(examples)], long)


def _word_index(encoding: Any, row: int, first: int) -> list[int]:
    """Index of each token's word, the second text's counted on after the first's; −1 of special tokens."""
    words, texts = encoding.word_ids(row), encoding.sequence_ids(row)
    return [-1 if w is None else w + (first if s == 1 else 0) for w, s in zip(words, texts, strict=True)]


def collated(rows: Sequence[dict[str, Any]], pad_id: int) -> dict[str, Tensor]:
    """A padded batch: every column of the rows, `attention_mask`, and `labels` [sequence]."""
    width = max(len(row["input_ids"]) for row in rows)
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    batch = {"attention_mask": (torch.arange(width) < lengths[:, None]).long()}
    for name in rows[0]:
        if name == "labels":
            batch[name] = torch.tensor([row[name] for row in rows])
        else:
            fill = pad_id if name == "input_ids" else 0
            batch[name] = torch.tensor([row[name] + [fill] * (width - len(row[name])) for row in rows])
    return batch


class LabelledPlan(Plan):
    """Labelled examples on `device`, in batches of similar length, each a unit. `classes`: names of their labels, which
    are part of what a plan is; none: the numbers themselves.
    """

    def __init__(
        self,
        encoded: Encoded,
        pad_id: int,
        *,
        batch_tokens: int = BATCH,
        stack: str = "encoder",
        device: torch.device | str = "cpu",
        classes: Sequence[str] = (),
    ) -> None:
        self.encoded, self.pad_id, self.stack, self.device = encoded, pad_id, stack, device
        self.classes = tuple(classes) or tuple(map(str, range(max(encoded.labels, default=-1) + 1)))
        lengths = np.array(encoded.lengths, dtype=np.int64)
        identity = [[row["input_ids"] for row in encoded.rows], encoded.labels, batch_tokens, self.classes]
        super().__init__(pack(lengths, batch_tokens), lengths, np.arange(len(encoded)), identity, EXAMPLES)

    def build(self, rows: Index) -> Batch:
        chosen = rows.tolist()
        inputs = collated([self.encoded.rows[i] for i in chosen], self.pad_id)
        label = inputs.pop("labels")
        inputs = {name: value.to(self.device) for name, value in inputs.items()}
        mask = inputs["attention_mask"].bool()
        words = pad_sequence([torch.tensor(self.encoded.words[i]) for i in chosen], batch_first=True)
        stream = Stream(mask, (words < 0).to(self.device), torch.zeros(len(rows), dtype=torch.int64))
        return Batch(inputs, torch.from_numpy(rows), {self.stack: stream}, label=label)
