"""Words for models that read characters: every word of a window as a row of character ids."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from anisoscope.batch import Batch
from anisoscope.data.text import TextCorpus, plan_text
from anisoscope.data.windows import TextPlan

MARKERS = ("[CLS]", "[SEP]")
PADDING = 0


class _Words:
    """A tokenizer of whole words, numbered as they first appear, with what `plan_text` asks of a tokenizer."""

    pad_token_id, unk_token_id = PADDING, None

    def __init__(self, split: Any) -> None:
        self._split = split
        self.ids: dict[str, int] = {"": PADDING}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def vocab_size(self) -> int:
        return len(self.ids)

    def __call__(self, texts: Sequence[str], *, add_special_tokens: bool, **_: Any) -> dict[str, list[list[int]]]:
        before, after = ((MARKERS[0],), (MARKERS[1],)) if add_special_tokens else ((), ())
        rows = [(*before, *self._split.tokenize(text), *after) for text in texts]
        return {"input_ids": [[self.ids.setdefault(word, len(self.ids)) for word in row] for row in rows]}


def plan_characters(corpus: TextCorpus, tokenizer: Any, *, max_length: int, batch_tokens: int) -> "CharacterPlan":
    """Plan of batches as `data.text.plan_text` makes it, in words: `tokenizer` has `tokenize` (text → words) and
    `encode` (lists of words → `input_ids` [sequence, word, character], its own markers around each).
    """
    words = _Words(tokenizer)
    plan = plan_text(corpus, words, max_length=max_length, batch_tokens=batch_tokens)  # type: ignore[arg-type]
    return CharacterPlan(plan, words, tokenizer)


class CharacterPlan:
    """The batches of a `TextPlan` of words with their characters in place of their numbers."""

    def __init__(self, plan: TextPlan, words: _Words, tokenizer: Any) -> None:
        self._plan = plan
        self.tokens, self.n_units, self.frequency_bins = plan.tokens, plan.n_units, plan.frequency_bins
        self.fingerprint, self.warnings = f"characters {plan.fingerprint}", plan.warnings
        self.words = plan.words | {"position": "word", "counted": "word"}
        listed = list(words.ids)
        self._characters = torch.stack([tokenizer.encode([[word]])["input_ids"][0, 1] for word in listed])
        self._characters[PADDING] = 0

    def __len__(self) -> int:
        return len(self._plan)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Batch:
        batch = self._plan[index]
        ids = self._characters[batch.inputs["input_ids"]]
        return Batch({**batch.inputs, "input_ids": ids}, batch.unit, batch.streams)
