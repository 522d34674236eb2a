"""Synthetic labelled corpora: words of a made-up language in which keywords tell the class.

`synthetic` (2 classes), `synthetic:N` (N classes): every utterance holds one to three keywords of its class among
fillers drawn by Zipf's law, and sometimes one keyword of another class, fewer than its own; the rationale marks its
own.
`synthetic-pairs`: the second text names the same thing as the first (entailment), its opposite (contradiction), or
something else (neutral), as in natural-language inference.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from anisoscope.data.labelled import SPLITS, Example, Examples, LabelledCorpus
from anisoscope.errors import UsageError

SIZES = dict(zip(SPLITS, (900, 300, 300), strict=True))
FILLERS, KEYWORDS, THINGS = 400, 6, 12
LENGTHS = (8, 25)
PAIR_LENGTHS = (4, 9)
_SYLLABLES = tuple(f"{c}{v}" for c in "bdfgklmnprstvz" for v in "aeiou")


@cache
def open_synthetic(name: str, seed: int) -> LabelledCorpus:
    """Make the corpus `synthetic` or `synthetic:N`, whose N classes (2) are marked by keywords.

    seed   decides every word: the same seed gives the same corpus

    UsageError unless N is 2 to 50.
    """
    classes = _read_number_of_classes(name)
    # Part of the seed: each number of classes gets words and texts of its own.
    draw = np.random.default_rng([seed, classes])
    words = _draw_words(FILLERS + classes * KEYWORDS, draw)
    fillers = words[:FILLERS]
    keywords = [words[FILLERS + i :: classes][:KEYWORDS] for i in range(classes)]
    splits: dict[str, Examples] = {}
    # one generator for all: the order of the splits fixes their words
    for split, size in SIZES.items():
        splits[split] = _make_utterances(size, fillers, keywords, draw)
    labels = tuple(f"class {i + 1}" for i in range(classes))
    return LabelledCorpus(
        name, labels, splits, tokenised=True, source={"kind": "generated", "seed": seed}
    )


def _read_number_of_classes(name: str) -> int:
    """Return N of `synthetic:N`; 2 of `synthetic`. UsageError unless it is 2 to 50."""
    _, _, text = name.partition(":")
    if not text:
        return 2
    classes = int(text) if text.isdigit() else 0
    if not 2 <= classes <= 50:
        raise UsageError(
            "synthetic:N with 2 to 50 classes",
            repr(name),
            "three classes are synthetic:3",
        )
    return classes


@cache
def open_pairs(name: str, seed: int) -> LabelledCorpus:
    """Make the corpus `synthetic-pairs`: pairs of texts with the classes entailment, neutral, contradiction.

    name   of the corpus
    seed   decides every word: the same seed gives the same corpus
    """
    draw = np.random.default_rng([seed, 3])
    words = _draw_words(FILLERS + 2 * THINGS, draw)
    fillers = words[:FILLERS]
    things = list(zip(words[FILLERS:-THINGS], words[-THINGS:], strict=True))
    splits: dict[str, Examples] = {}
    for split, size in SIZES.items():
        splits[split] = _make_pairs(size, fillers, things, draw)
    labels = ("entailment", "neutral", "contradiction")
    return LabelledCorpus(
        name, labels, splits, tokenised=True, source={"kind": "generated", "seed": seed}
    )


def _draw_words(count: int, draw: np.random.Generator) -> list[str]:
    """Draw `count` different words of two or three syllables."""
    # a dict, not a set: words stay in the order in which they were drawn
    made: dict[str, None] = {}
    while len(made) < count:
        made["".join(draw.choice(_SYLLABLES, draw.integers(2, 4)))] = None
    return list(made)


def _draw_filler(
    count: int, fillers: list[str], draw: np.random.Generator
) -> list[str]:
    """Draw `count` words among the `fillers`, with frequencies by Zipf's law."""
    places = draw.choice(len(fillers), count, p=_compute_zipf(len(fillers)))
    return [fillers[place] for place in places]


@cache
def _compute_zipf(count: int) -> NDArray[np.float64]:
    """Return the probabilities of `count` words by Zipf's law."""
    weight = 1 / np.arange(1, count + 1)
    shares: NDArray[np.float64] = weight / weight.sum()
    return shares


def _make_utterances(
    size: int, fillers: list[str], keywords: list[list[str]], draw: np.random.Generator
) -> Examples:
    """Make `size` texts, of each class in turn: filler words, one to three keywords of the class, sometimes another's.

    fillers    words that say nothing of the class
    keywords   words of each class
    draw       random generator

    The rationale marks the keywords of the text's own class.
    """
    made = []
    for number in range(size):
        # In turn, so that classes are equally frequent; their order is drawn at the
        # end.
        label = number % len(keywords)
        # records hold what this generator gave: no draw may be added, left out or moved
        own = int(draw.integers(1, 4))
        other = [i for i in range(len(keywords)) if i != label]
        # Fewer keywords of another class than of its own, so none next to a single one.
        stray = draw.choice(other, int(own > 1 and draw.random() < 0.3))
        items: list[tuple[str, float]] = []
        for word in _draw_filler(int(draw.integers(*LENGTHS)), fillers, draw):
            items.append((word, 0.0))
        for place in draw.integers(KEYWORDS, size=own):
            items.append((keywords[label][place], 1.0))
        for another in stray:
            items.append((str(draw.choice(keywords[another])), 0.0))
        # the class must not be known by where its words lie
        shuffled = [items[place] for place in draw.permutation(len(items))]
        words, marks = zip(*shuffled, strict=True)
        made.append(Example(words, label, rationale=marks))
    # Above, the classes come in turn.
    return tuple(made[i] for i in draw.permutation(size))


def _make_pairs(
    size: int,
    fillers: list[str],
    things: list[tuple[str, str]],
    draw: np.random.Generator,
) -> Examples:
    """Make `size` pairs of texts that each name a thing: the same one, another one, or its opposite.

    fillers   words that say nothing of the class
    things    (name, name of the opposite) of each thing
    draw      random generator
    """
    made = []
    for number in range(size):
        label = number % 3
        thing, another = draw.choice(len(things), 2, replace=False)
        # In the order of the labels: the same thing, another one, its opposite.
        named = (things[thing][0], things[another][0], things[thing][1])[label]
        first, marks = _insert_word(things[thing][0], fillers, draw)
        second, more = _insert_word(named, fillers, draw)
        made.append(Example(first, label, second, marks + more))
    return tuple(made[i] for i in draw.permutation(size))


def _insert_word(
    word: str, fillers: list[str], draw: np.random.Generator
) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """Make a text of fillers with `word` somewhere in it. Return it, and a rationale that marks the word."""
    text = _draw_filler(int(draw.integers(*PAIR_LENGTHS)), fillers, draw)
    marks = [0.0] * len(text)
    place = int(draw.integers(len(text) + 1))
    text.insert(place, word)
    marks.insert(place, 1.0)
    return tuple(text), tuple(marks)
