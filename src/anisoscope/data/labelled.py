"""Labelled corpora: texts or pairs of texts with classes, in splits, some with human rationales.

A name is one of the table of corpora (benchmarks are under $ANISOSCOPE_DATA, or downloaded from their homes), a table,
a folder of tables (one per split), or any data set of the hub.
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
EXAMPLES = {
    "position": "token",
    "sequence": "example",
    "unit": "example",
    "counted": "token",
}
"""What labelled corpora call things."""


@dataclass(frozen=True)
class Example:
    """One labelled text, or a pair of texts.

    words      words of the first text, as the corpus gives them (between blanks)
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
        """The first text: its words joined by blanks."""
        return " ".join(self.words)

    @property
    def all_words(self) -> tuple[str, ...]:
        """The words of both texts, in the order in which `rationale` counts them."""
        return self.words + (self.second or ())


Examples = tuple[Example, ...]


@dataclass(frozen=True)
class LabelledCorpus:
    """Labelled examples by split (`train`, `validation`, `test`, and others), and the names of the classes.

    tokenised   words are tokens already (HateXplain's `<user>`), not to be split
    source      provenance, for manifests
    """

    name: str
    labels: tuple[str, ...]
    splits: Mapping[str, Examples] = field(repr=False)
    tokenised: bool = False
    source: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def pairs(self) -> bool:
        """Return whether examples are pairs of texts."""
        # The training split stands for all: `check_example` refuses rows of the other
        # kind.
        return any(example.second is not None for example in self.splits[TRAIN])

    @property
    def drawn(self) -> tuple[str, ...]:
        """The splits that the corpus lacks and that were therefore drawn at random."""
        return tuple(self.source.get("drawn", ()))

    @property
    def has_no_splits(self) -> bool:
        """Return whether all three splits were drawn at random, from one table."""
        return set(SPLITS) <= set(self.drawn)

    @property
    def all_examples(self) -> Examples:
        """All examples of the splits train, validation and test."""
        examples: list[Example] = []
        for split in SPLITS:
            examples.extend(self.splits.get(split, ()))
        return tuple(examples)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all texts, labels and rationales, as the corpus' identity."""
        parts: list[object] = [self.labels, self.tokenised]
        for name, examples in self.splits.items():
            # the order of these fields is part of the hash, which stands in records of old runs
            fields = []
            for e in examples:
                fields.append([e.words, e.second, e.label, e.rationale])
            parts += [name, fields]
        return hash_parts(parts)

    def counts(self) -> dict[str, dict[str, int]]:
        """Count the examples of each split and class: {split: {class: number}}."""
        counted: dict[str, dict[str, int]] = {}
        for name, examples in self.splits.items():
            count = Counter(example.label for example in examples)
            # classes without examples are counted too, as 0
            counted[name] = {label: count[i] for i, label in enumerate(self.labels)}
        return counted

    def majority(self, split: str = TEST) -> float:
        """Return the accuracy of always naming the most frequent class of a split."""
        counts = self.counts()[split].values()
        return max(counts) / sum(counts)

    def described(self) -> dict[str, Any]:
        """Return the manifest's entry on the corpus."""
        rationales: dict[str, int] = {}
        for name, examples in self.splits.items():
            rationales[name] = sum(
                example.rationale is not None for example in examples
            )
        return {
            "name": self.name,
            "fingerprint": self.fingerprint,
            "labels": list(self.labels),
            "pairs": self.pairs,
            "words": EXAMPLES,
            "counts": self.counts(),
            "rationales": rationales,
            **self.source,
        }

    def limited(self, limit: int | None) -> "LabelledCorpus":
        """Return the corpus with the first `limit` examples of every split, balanced over classes.

        Unchanged for None.
        """
        if limit is None:
            return self
        splits = {}
        for name, examples in self.splits.items():
            splits[name] = take_balanced(examples, limit, len(self.labels))
        return replace(self, splits=splits, source={**self.source, "limit": limit})


def choose_split(
    corpus: LabelledCorpus, split: str, *, trained_on: bool, limit: int | None = None
) -> tuple[LabelledCorpus, str, str]:
    """Choose the split to measure. Return (the corpus with that split, the split's name, a note for the user).

    split        as the user named it; empty: the test split; for a table without splits all rows or, if the model was
                 trained on the corpus, the rows that it was not trained on
    trained_on   whether the model was trained on this corpus
    limit        number of examples at most; None: all

    The note says if the split was drawn at random, or if `limit` omits rows; else it is empty.
    """
    splits = {**corpus.splits, ALL: corpus.all_examples}
    lacks = why = ""
    if not split and corpus.has_no_splits:
        lacks = "splits"
        split = ALL
        if trained_on:
            split = HELD_OUT
            # Both were drawn from the same table, and the model was trained on neither.
            splits[HELD_OUT] = corpus.splits[VALIDATION] + corpus.splits[TEST]
            why = "that the model was not trained on"
    else:
        split = split or TEST
        if split in corpus.drawn:
            lacks = f"{split} split"
            why = "drawn at random"
    corpus = replace(corpus, splits=splits)
    if not lacks:
        return corpus, split, ""
    total, available = len(splits[ALL]), len(splits[split])
    count = available
    if limit is not None:
        count = len(take_balanced(splits[split], limit, len(corpus.labels)))
    rows = f"{count:,} of {total:,} rows {why}".rstrip()
    if count == total:
        rows = f"all {total:,} rows"
    cut = ""
    if count < available:
        cut = f" (--limit: there are {available:,})"
    return corpus, split, f"{corpus.name} has no {lacks}: looked at {rows}{cut}"


def require_usable(
    corpus: LabelledCorpus, fewest_of: Mapping[str, int] = FEWEST
) -> LabelledCorpus:
    """Return a corpus unchanged. CorpusError if a split has too few examples of a class.

    fewest_of   {split: fewest examples of each class}
    """
    name = corpus.name
    if len(corpus.labels) < 2:
        got = f"{len(corpus.labels)} ({', '.join(corpus.labels)})"
        raise CorpusError(
            f"at least 2 classes in {name}",
            got,
            "name another --label-column, or another corpus",
        )
    for split, fewest in fewest_of.items():
        _require_enough(corpus, split, fewest)
    for split, examples in corpus.splits.items():
        for number, example in enumerate(examples, 1):
            check_example(
                example, f"example {number} of {name}, {split}", pairs=corpus.pairs
            )
    return corpus


def _require_enough(corpus: LabelledCorpus, split: str, fewest: int) -> None:
    """Raise CorpusError if a split is missing, or has fewer than `fewest` examples of a class."""
    # A drawn split without examples comes from a small table: the counts of its classes
    # say that better.
    if not corpus.splits.get(split) and split not in corpus.drawn:
        raise CorpusError(
            f"a {split} split in {corpus.name}",
            "none",
            "add such a split to the corpus",
        )
    short = []
    for label, n in corpus.counts()[split].items():
        if n < fewest:
            short.append(f"{label} ({n})")
    if short:
        plural = "s" if fewest > 1 else ""
        expected = f"at least {fewest} example{plural} of every class in the {split} split of {corpus.name}"
        raise CorpusError(
            expected,
            ", ".join(short),
            "add examples, raise --limit, or merge rare classes",
        )


def check_example(example: Example, where: str, *, pairs: bool) -> None:
    """Raise CorpusError for an example without text, with a rationale of the wrong length, or of the wrong kind.

    where   where the example is, for the error
    pairs   whether it must be a pair of texts, rather than a single one
    """
    if pairs != (example.second is not None):
        expected, got = ("two texts", "one") if pairs else ("one text", "two")
        raise CorpusError(
            f"{expected} in every row ({where})", got, "give every row the same columns"
        )
    if not example.words or example.second == ():
        raise CorpusError(
            f"text in every row ({where})", "none", "leave empty rows out"
        )
    if example.rationale is not None and len(example.rationale) != len(
        example.all_words
    ):
        words = len(example.all_words)
        got = f"{len(example.rationale)} marks"
        raise CorpusError(
            f"a rationale of {words} marks, one per word ({where})",
            got,
            "correct the rationale, or leave it out",
        )


def take_balanced(examples: Iterable[Example], limit: int, classes: int) -> Examples:
    """Take the first ⌈limit / classes⌉ examples of every class, in their order, and at most `limit` in all.

    classes   number of classes
    """
    # rounded up without decimals, which are inexact for large numbers
    room = -(-limit // classes)
    taken: Counter[int] = Counter()
    kept = []
    for example in examples:
        if taken[example.label] < room:
            taken[example.label] += 1
            kept.append(example)
    # Rounded up, the shares of all classes may be a few examples too many.
    return tuple(kept[:limit])


def split_at_random(
    examples: list[Example], shares: Mapping[str, float], seed: int
) -> dict[str, Examples]:
    """Divide examples at random, class by class, into splits: {split: its examples}.

    shares   {split: its share of the examples}; they add up to 1
    seed     of the random numbers

    Within a split the examples keep their order.
    """
    draw = np.random.default_rng(seed)
    by_label: dict[int, list[int]] = {}
    for row, example in enumerate(examples):
        by_label.setdefault(example.label, []).append(row)
    owner: dict[int, str] = {}
    # sorted, since the generator is drawn from once a class: the order decides who gets what
    for label in sorted(by_label):
        rows = draw.permutation(by_label[label])
        edges = [round(done * len(rows)) for done in accumulate(shares.values())]
        # the last edge is the end: rounding never loses a row
        for name, part in zip(shares, np.split(rows, edges[:-1]), strict=True):
            owner |= dict.fromkeys(part.tolist(), name)
    drawn: dict[str, list[Example]] = {name: [] for name in shares}
    for row, example in enumerate(examples):
        drawn[owner[row]].append(example)
    return {name: tuple(chosen) for name, chosen in drawn.items()}
