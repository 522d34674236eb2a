"""Which classifiers the studies look at: cells of corpus × depth × λ × size × seed, and how each is trained.

A cell is named in the column `model` of the records, as in `attention L=2 λ=0.01 d=384 h=1` or `builtin:minilm`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from anisoscope.data.local import copy_of
from anisoscope_papers.needs import Need
from anisoscope_papers.training.recipe import ARMS, ATTENTION, ClassifierRecipe

REAL = ("yelphat", "hatexplain", "esnli")
PLANTED = ("planted", "planted:3", "planted-pairs")
PUBLISHED = dict(zip(PLANTED, REAL, strict=True)) | {name: name for name in REAL}
"""Which of the paper's corpora stands or is stood in for: two classes, three classes, pairs."""
TITLES = {"yelphat": "YelpHat", "hatexplain": "HateXplain", "esnli": "e-SNLI"}
WIDTH = 384
"""Dimensions of the built-in model's word vectors."""
SCALED, RAW, DRAWN = "scaled", "raw", "random"
"""Word vectors a model starts from: those of the encoder brought to `vector_norm`, as they are, or N(0, 1)."""
LEARNED = ARMS[0]
STARTS = {RAW: "word vectors as the encoder has them", DRAWN: "random word vectors"}
OWN, OTHER_START, OTHER_SIZE, OTHER_ARM, FEWER = "own", "other start", "other size", "other attention", "fewer examples"
TUNED, BEFORE = "fine-tuned", "pre-trained"
"""Families of models: the paper's own attention-only ones (one head, real vectors of the size of its own), those that
differ from them in one thing, encoders that are fine-tuned, and as they were before.
"""
PRETRAINED, UNTRAINED = f" {BEFORE}", " untrained"
"""Behind a name: the encoder as it was before it was fine-tuned; a model at step 0, as it was drawn."""
CONTROL = "untrained"
SHORT = "test_yelp50"
"""Reviews of 50 words: the population of table 4 on YelpHat and, for one layer, of table 1."""


@dataclass(frozen=True)
class Cell:
    """One classifier: `attention` or an encoder.

    start     its word vectors, random wherever `dim` is not `WIDTH`;   arm   of its attention (`recipe.ARMS`)
    examples  so many of each split to train on, spread over the classes; none: as the grid says
    """

    corpus: str
    model: str = ATTENTION
    layers: int = 1
    weight: float = 0.0
    dim: int = WIDTH
    heads: int = 1
    seed: int = 0
    start: str = SCALED
    arm: str = LEARNED
    examples: int | None = None

    @property
    def attention(self) -> bool:
        return self.model == ATTENTION

    @property
    def label(self) -> str:
        """What the column `model` says."""
        if not self.attention:
            return self.model
        start = "" if self.start == SCALED else f" vectors={self.start}"
        arm = "" if self.arm == LEARNED else f" attention={self.arm}"
        few = "" if self.examples is None else f" n={self.examples}"
        return f"{ATTENTION} L={self.layers} λ={self.weight:g} d={self.dim} h={self.heads}{start}{arm}{few}"


@dataclass(frozen=True)
class Grid:
    """The settings of all studies of the paper, which share their classifiers.

    corpora     of the paper, or empty: these where ANISOSCOPE_DATA holds them, else the planted ones, said so
    seeds       of the attention-only model, 0 to n − 1; fine_seeds of the encoder
    depths      layers by corpus at λ = 0 (table 3); weights: λ of one layer (table 4); large: λ beyond the paper
    sizes       (dim, heads, layers) of random vectors, for the λ of `contrast`, with `size_seeds` seeds
    starts      other word vectors for one layer at λ = 0, with `start_seeds` seeds
    examples    fewer examples, for the curve of accuracy on pairs, with `size_seeds` seeds
    arm_seeds   of the models of one layer, two, … whose attention is learned, or not (`recipe.ARMS`); `even_seeds` of
    learned and of uniform attention at each of these depths, the two that the first claim on them compares
    encoder     what is fine-tuned: on at most `fine_limit` examples of each split, cut at `fine_length` tokens, for
    `fine_epochs` epochs; rate and batch as suit so few steps; tested on what the attention-only model is tested on
    warmup      steps, and `clip`, largest gradient norm, of models of two layers and more: without them, as published,
    4 of 11 of four and five layers collapse
    vector_norm mean norm of the word vectors; 5 is about GloVe's, which the paper starts from
    utterances  of the test split that are measured, as many of each class (the paper's 999); `erased` of them in what
    needs many passes, or an encoder's
    train       False: only what is finished is looked at
    """

    corpora: tuple[str, ...] = ()
    seeds: int = 5
    depths: dict[str, int] = field(default_factory=lambda: {"yelphat": 5, "hatexplain": 5, "esnli": 2})
    weights: tuple[float, ...] = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
    large: tuple[float, ...] = (1.0, 6.0)
    sizes: tuple[tuple[int, int, int], ...] = ((48, 1, 1), (96, 1, 1), (288, 1, 1), (288, 6, 1), (288, 1, 2))
    contrast: tuple[float, float] = (0.0, 1e-1)
    size_seeds: int = 3
    starts: tuple[str, ...] = (RAW, DRAWN)
    start_seeds: int = 5
    examples: tuple[int, ...] = (2000, 6000)
    arm_seeds: tuple[int, ...] = (8, 4, 4)
    even_seeds: int = 8
    encoder: str = "builtin:minilm"
    fine_seeds: int = 5
    fine_epochs: int = 2
    fine_limit: int | None = 3000
    fine_length: int | None = 128
    fine_rate: float = 1e-4
    fine_batch: int = 32
    limit: int | None = None
    epochs: int = 50
    patience: int = 3
    warmup: int = 100
    clip: float = 1.0
    vector_norm: float = 5.0
    utterances: int = 999
    erased: int = 120
    train: bool = True

    def names(self) -> tuple[str, ...]:
        """The corpora; the paper's come from ANISOSCOPE_DATA or their public homes."""
        if self.corpora:
            return self.corpora
        return REAL if all(copy_of(name) for name in REAL) else PLANTED

    def recipe(self, cell: Cell) -> ClassifierRecipe:
        """How a cell is trained."""
        same = ClassifierRecipe(cell.model, cell.corpus, limit=cell.examples or self.limit, seed=cell.seed)
        if not cell.attention:
            same = replace(same, limit=self.fine_limit, max_length=self.fine_length, epochs=self.fine_epochs)
            return replace(same, patience=self.fine_epochs, rate=self.fine_rate, batch=self.fine_batch)
        same = replace(same, layers=cell.layers, heads=cell.heads, attention=cell.arm)
        same = replace(same, epochs=self.epochs, patience=self.patience)
        if cell.layers > 1:
            same = replace(same, warmup=self.warmup, clip=self.clip)
        if cell.weight:
            same = replace(same, penalty="entropy", weight=cell.weight)
        if cell.dim != WIDTH or cell.start == DRAWN:
            return replace(same, vectors="random", dim=cell.dim)
        return replace(same, vectors=self.encoder, vector_norm=None if cell.start == RAW else self.vector_norm)

    def fine_tuned(self) -> list[Cell]:
        return [Cell(c, self.encoder, seed=s) for s in range(self.fine_seeds) for c in self.names()]

    def by_depth(self) -> list[Cell]:
        """Table 3: every depth at λ = 0, the first seed of all of them first."""
        depths = [(c, n + 1) for c in self.names() for n in range(self.depths[PUBLISHED[c]])]
        return _by_seed(Cell(c, layers=n, seed=s) for c, n in depths for s in range(self.seeds))

    def by_weight(self, *, large: bool = True) -> list[Cell]:
        """Table 4: every λ of one layer."""
        weights = self.weights + (self.large if large else ())
        return _by_seed(Cell(c, weight=w, seed=s) for c in self.names() for w in weights for s in range(self.seeds))

    def by_start(self) -> list[Cell]:
        """One layer at λ = 0 from other word vectors."""
        seeds = range(self.start_seeds)
        return _by_seed(Cell(c, seed=s, start=start) for c in self.names() for start in self.starts for s in seeds)

    def to_replace(self) -> list[Cell]:
        """Whose attention is replaced: every depth, one layer at the largest λ of the paper and from other vectors."""
        large = [cell for cell in self.by_weight(large=False) if cell.weight in self.weights[-2:]]
        return list(dict.fromkeys([*self.by_depth(), *large, *self.by_start()]))

    def by_arm(self) -> list[Cell]:
        """Attention trained, or not trained: one layer of all corpora, arms and seeds first."""
        every = [(n, seed) for n, seeds in enumerate(self.arm_seeds, 1) for seed in range(seeds)]
        even = [(n, seed) for n in range(1, len(self.arm_seeds) + 1) for seed in range(self.even_seeds)]
        asked = [(n, seed, c, arm) for n, seed in every for c in self.names() for arm in ARMS]
        asked += [(n, seed, c, arm) for n, seed in even for c in self.names() for arm in (LEARNED, "uniform")]
        return [Cell(c, layers=n, seed=seed, arm=arm) for n, seed, c, arm in dict.fromkeys(asked)]

    def by_examples(self) -> list[Cell]:
        """One layer on fewer pairs."""
        seeds = range(self.size_seeds)
        return [Cell(c, seed=s, examples=n) for c in self.names()[2:] for n in self.examples for s in seeds]

    def by_size(self) -> list[Cell]:
        """Sizes of the first corpus, with random vectors."""
        corpus, seeds = self.names()[0], range(self.size_seeds)
        return _by_seed(
            Cell(corpus, layers=layers, weight=w, dim=dim, heads=heads, seed=s)
            for dim, heads, layers in self.sizes
            for w in self.contrast
            for s in seeds
        )

    def everything(self) -> list[Cell]:
        """All cells, those that the most claims rest on first: the first three seeds of one layer, encoders, depths."""
        one, rest = self.by_weight(), [*self.by_depth(), *self.by_start(), *self.by_size()]
        rest += [*self.by_arm(), *self.by_examples()]
        few = [cell for cell in one if cell.seed < 3]
        published = [cell for cell in few if cell.weight in self.weights]
        return list(dict.fromkeys([*published, *self.fine_tuned(), *few, *rest, *one]))


def _by_seed(cells: Iterator[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: cell.seed)


_LABEL = re.compile(
    rf"{ATTENTION} L=(?P<layers>\d+) λ=(?P<weight>\S+) d=(?P<dim>\d+) h=(?P<heads>\d+)(?: vectors=(?P<start>\w+))?"
    r"(?: attention=(?P<arm>\w+))?(?: n=(?P<examples>\d+))?"
)


def with_options(records: pd.DataFrame) -> pd.DataFrame:
    """Every row with the `family` of its model and, of attention-only ones, its numbers (NaN of encoders)."""
    names = records["model"].astype(str)
    found = names.str.extract(_LABEL).fillna({"start": SCALED, "arm": LEARNED})
    found = found.astype(dict.fromkeys(("layers", "weight", "dim", "heads", "examples"), float))
    encoder, size = found["layers"].isna(), (found["dim"] != WIDTH) | (found["heads"] != 1)
    differing = [encoder & names.str.endswith(PRETRAINED), encoder, size, found["start"] != SCALED]
    differing = [names.str.endswith(UNTRAINED), *differing, found["arm"] != LEARNED, found["examples"].notna()]
    family = np.select(differing, [CONTROL, BEFORE, TUNED, OTHER_SIZE, OTHER_START, OTHER_ARM, FEWER], OWN)
    return records.join(found).assign(family=family)


QUICK = Grid(
    seeds=2,
    depths={"yelphat": 3, "hatexplain": 2, "esnli": 2},
    weights=(0.0, 1e-1),
    large=(6.0,),
    sizes=((48, 1, 1), (96, 1, 1), (96, 4, 1)),
    size_seeds=2,
    starts=(RAW,),
    start_seeds=2,
    examples=(150,),
    arm_seeds=(2,),
    even_seeds=2,
    fine_seeds=2,
    fine_limit=240,
    fine_length=48,
    fine_rate=2e-4,
    fine_batch=16,
    limit=600,
    epochs=12,
    patience=2,
    utterances=150,
    erased=12,
)
PAPER = Grid(corpora=REAL)
SETTINGS = {"quick": QUICK, "paper": PAPER, "finished": replace(PAPER, train=False)}
"""`finished`: as `paper`, as far as its classifiers are trained; nothing is trained."""
_HOME = "from GitHub; or a local copy under ANISOSCOPE_DATA"
NEEDS = (
    Need("YelpHat: cansusen/Human-Attention-for-Text-Classification", 0.02, _HOME),
    Need("HateXplain: hate-alert/HateXplain", 0.02, _HOME),
    Need("e-SNLI: OanaMariaCamburu/e-SNLI", 0.2, _HOME),
)
