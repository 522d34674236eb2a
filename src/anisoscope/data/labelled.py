"""Labelled corpora: utterances or pairs with classes and, where there are any, human rationales; in official splits.

Names: those of the table of corpora (benchmarks lie under $ANISOSCOPE_DATA, or come from their public homes), a table,
a folder of them (one per split), or any data set of the hub.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from anisoscope.data.plans import hash_parts
from anisoscope.errors import CorpusError

TRAIN, VALIDATION, TEST = SPLITS = ("train", "validation", "test")
ALL, HELD_OUT = "all", "held-out"
"""Every example of the three splits; of a table without splits what a model was not trained on."""
FEWEST = {TRAIN: 2, VALIDATION: 1, TEST: 1}  # fewest examples of every class in a split
EXAMPLES = {"position": "token", "sequence": "example", "unit": "example", "counted": "token"}
"""What labelled corpora call things."""


@dataclass(frozen=True)
class Example:
    """One utterance, or a pair of them.

    words      of the first text, as the corpus gives them (between blanks)
    label      index into the corpus' `labels`
    second     words of the second text of a pair, else None
    rationale  for every word of `words`, then of `second`: share of annotators who marked it, in [0, 1]; None: unknown
    """

    words: tuple[str, ...]
    label: int
    second: tuple[str, ...] | None = None
    rationale: tuple[float, ...] | None = None

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def all_words(self) -> tuple[str, ...]:
        """Words of both texts, as `rationale` counts them."""
        return self.words + (self.second or ())


Examples = tuple[Example, ...]


@dataclass(frozen=True)
class LabelledCorpus:
    """Examples by split (`train`, `validation`, `test`, and what else a corpus has) and the names of the classes.

    `tokenised`: words are tokens already (HateXplain's `<user>`), not to be split; `source`: for manifests.
    """

    name: str
    labels: tuple[str, ...]
    splits: Mapping[str, Examples] = field(repr=False)
    tokenised: bool = False
    source: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def pairs(self) -> bool:
        """Whether examples are pairs of texts."""
        return any(example.second is not None for example in self.splits[TRAIN])

    @property
    def drawn(self) -> tuple[str, ...]:
        """Splits that the corpus does not have and that were drawn at random."""
        return tuple(self.source.get("drawn", ()))

    @property
    def has_no_splits(self) -> bool:
        """Whether all three splits were drawn at random, from one table."""
        return set(SPLITS) <= set(self.drawn)

    @property
    def all_examples(self) -> Examples:
        """The examples of the three splits."""
        return tuple(example for split in SPLITS for example in self.splits.get(split, ()))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over all texts, labels and rationales."""
        parts: list[object] = [self.labels, self.tokenised]
        for name, examples in self.splits.items():
            parts += [name, [[e.words, e.second, e.label, e.rationale] for e in examples]]
        return hash_parts(parts)

    def counts(self) -> dict[str, dict[str, int]]:
        """{split: {class: examples}}."""
        counted = {name: Counter(e.label for e in examples) for name, examples in self.splits.items()}
        return {name: {label: count[i] for i, label in enumerate(self.labels)} for name, count in counted.items()}

    def majority(self, split: str = TEST) -> float:
        """Accuracy of always naming the commonest class of a split."""
        counts = self.counts()[split].values()
        return max(counts) / sum(counts)

    def described(self) -> dict[str, Any]:
        """Return what a manifest says of the corpus."""
        rationales = {name: sum(e.rationale is not None for e in split) for name, split in self.splits.items()}
        known = {"name": self.name, "fingerprint": self.fingerprint, "labels": list(self.labels), "pairs": self.pairs}
        return {**known, "words": EXAMPLES, "counts": self.counts(), "rationales": rationales, **self.source}

    def limited(self, limit: int | None) -> "LabelledCorpus":
        """The first `limit` examples of every split, spread evenly over the classes; the same corpus for None."""
        if limit is None:
            return self
        splits = {name: take_balanced(examples, limit, len(self.labels)) for name, examples in self.splits.items()}
        return replace(self, splits=splits, source={**self.source, "limit": limit})


def choose_split(
    corpus: LabelledCorpus, split: str, *, trained_on: bool, limit: int | None = None
) -> tuple[LabelledCorpus, str, str]:
    """The split to look at, named or not: the corpus with it, its name, and what a user has to know of it.

    Without a name it is the test split; of a table without splits all rows, or, if the model was `trained_on` it, those
    that it was not trained on. Splits that were drawn at random are said to be, and a `limit` that leaves rows out.
    """
    splits = {**corpus.splits, ALL: corpus.all_examples}
    why = ""
    if not split and corpus.has_no_splits:
        split = HELD_OUT if trained_on else ALL
        splits[HELD_OUT] = corpus.splits[VALIDATION] + corpus.splits[TEST]
        why = "that the model was not trained on" if trained_on else ""
        lacks = "splits"
    else:
        split = split or TEST
        lacks = f"{split} split" if split in corpus.drawn else ""
        why = "drawn at random"
    corpus = replace(corpus, splits=splits)
    if not lacks:
        return corpus, split, ""
    total, room = len(splits[ALL]), len(splits[split])
    count = room if limit is None else len(take_balanced(splits[split], limit, len(corpus.labels)))
    rows = f"all {total:,} rows" if count == total else " ".join(filter(None, [f"{count:,} of {total:,} rows", why]))
    cut = f" (--limit: there are {room:,})" if count < room else ""
    return corpus, split, f"{corpus.name} has no {lacks}: looked at {rows}{cut}"


def require_usable(corpus: LabelledCorpus, fewest_of: Mapping[str, int] = FEWEST) -> LabelledCorpus:
    """Return the corpus if it has enough examples of every class in each split (`fewest_of`);"""
    name = corpus.name
    if len(corpus.labels) < 2:
        got = f"{len(corpus.labels)} ({', '.join(corpus.labels)})"
        raise CorpusError(f"at least 2 classes in {name}", got, "name another --label-column, or another corpus")
    for split, fewest in fewest_of.items():
        if not corpus.splits.get(split) and split not in corpus.drawn:
            raise CorpusError(f"a {split} split in {name}", "none", "give the corpus one")
        short = [f"{label} ({n})" for label, n in corpus.counts()[split].items() if n < fewest]
        if short:
            expected = f"at least {fewest} example{'s' * (fewest > 1)} of every class in the {split} split of {name}"
            raise CorpusError(expected, ", ".join(short), "add examples, raise --limit, or merge rare classes")
    pairs = corpus.pairs
    for split, examples in corpus.splits.items():
        for number, example in enumerate(examples, 1):
            check_example(example, f"example {number} of {name}, {split}", pairs=pairs)
    return corpus


def check_example(example: Example, where: str, *, pairs: bool) -> None:
    """A CorpusError that names `where` the example stands, unless it has text, a pair's or not, and fitting marks."""
    if pairs != (example.second is not None):
        expected, got = ("two texts", "one") if pairs else ("one text", "two")
        raise CorpusError(f"{expected} in every row ({where})", got, "give every row the same columns")
    if not example.words or example.second == ():
        raise CorpusError(f"text ({where})", "none", "leave empty rows out")
    if example.rationale is not None and len(example.rationale) != len(example.all_words):
        words = len(example.all_words)
        got = f"{len(example.rationale)} marks"
        raise CorpusError(f"a rationale of {words} marks, one per word ({where})", got, "correct it, or leave it out")


def take_balanced(examples: Iterable[Example], limit: int, classes: int) -> Examples:
    """Take the first ⌈limit / classes⌉ of every class in their order, `limit` at most."""
    room = -(-limit // classes)
    taken: Counter[int] = Counter()
    kept = []
    for example in examples:
        if taken[example.label] < room:
            taken[example.label] += 1
            kept.append(example)
    return tuple(kept[:limit])


def split_at_random(examples: list[Example], shares: Mapping[str, float], seed: int) -> dict[str, Examples]:
    """Split examples at random within each class by `shares` (which add up to 1), in the order given inside a
    split.
    """
    draw = np.random.default_rng(seed)
    owner: dict[int, str] = {}
    for label in sorted({e.label for e in examples}):
        rows = draw.permutation([i for i, e in enumerate(examples) if e.label == label])
        edges = [round(done * len(rows)) for done in accumulate(shares.values())]
        for name, part in zip(shares, np.split(rows, edges[:-1]), strict=True):
            owner |= dict.fromkeys(part.tolist(), name)
    return {name: tuple(e for i, e in enumerate(examples) if owner[i] == name) for name in shares}
