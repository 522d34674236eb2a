"""Define the grid of classifiers that the studies measure, and how each is trained.

A cell is one classifier: corpus × depth × λ (weight of the entropy penalty) × size × seed. The column `model` of the
records names it, as in `attention L=2 λ=0.01 d=384 h=1` or `builtin:minilm`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.data.local import find_copy
from anisoscope_papers.needs import Need
from anisoscope_papers.training.recipe import (
    ARMS,
    ATTENTION,
    POSITIONS,
    ClassifierRecipe,
)

# The three corpora of the paper, and for each a generated one of its kind.
REAL = ("yelphat", "hatexplain", "esnli")
SYNTHETIC = ("synthetic", "synthetic:3", "synthetic-pairs")
PUBLISHED = dict(zip(SYNTHETIC, REAL, strict=True)) | {name: name for name in REAL}
"""Which of the paper's corpora stands or is stood in for: two classes, three classes, pairs."""
TITLES = {"yelphat": "YelpHat", "hatexplain": "HateXplain", "esnli": "e-SNLI"}
WIDTH = 384
"""Dimensions of the built-in model's word vectors."""
SCALED, RAW, DRAWN, COMMON = "scaled", "raw", "random", "common"
"""Word vectors a model starts from: those of the encoder brought to `vector_norm`, as they are, N(0, 1), or brought to
`vector_norm` and given a common direction (`vector_cosine`).
"""
LEARNED = ARMS[0]
STARTS = {RAW: "word vectors as the encoder has them", DRAWN: "random word vectors"}
# Values of the column `family`: in what a model differs from the paper's own.
OWN, OTHER_START, OTHER_SIZE, OTHER_ARM, FEWER = (
    "own",
    "other start",
    "other size",
    "other attention",
    "fewer examples",
)
OTHER_POSITIONS, OTHER_SPLIT, FIXED_LENGTH = (
    "other positions",
    "other split",
    "fixed length",
)
SINUSOIDS = POSITIONS[0]
RECIPES = {
    "no positions": ("none", 1.0),
    "¼ sinusoids": (SINUSOIDS, 0.25),
    "sinusoids": (SINUSOIDS, 1.0),
    "learned positions": ("learned", 1.0),
}
"""Positions, and the factor of the sinusoids: that of the paper's text, of its code, and two others."""
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
    """One classifier of the grid: what it is, and how it is trained. `model` is `attention` or the name of an encoder.

    start         its word vectors; random if `dim` is not `WIDTH`
    arm           how its attention is trained (`recipe.ARMS`)
    examples      number of training examples in each split, over all classes; None: as the grid says
    positions     what is added to word vectors (`recipe.POSITIONS`); sinusoids are multiplied by `scale`
    freeze_after  steps after which frozen attention no longer changes; None: those of an epoch
    steps         number of training steps, with the last weights kept; None: as long as the validation loss falls
    split         seed of the random split, on corpora that have none of their own
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
    positions: str = SINUSOIDS
    scale: float = 1.0
    freeze_after: int | None = None
    steps: int | None = None
    split: int = 0

    @property
    def attention(self) -> bool:
        """Whether the classifier is the attention-only model, not an encoder."""
        return self.model == ATTENTION

    @property
    def label(self) -> str:
        """The classifier's name in the column `model` of records."""
        if not self.attention:
            return self.model
        # What is as usual is not named: records of earlier studies, which had fewer
        # options, keep their names. `_LABEL` reads the options back from the name.
        start = "" if self.start == SCALED else f" vectors={self.start}"
        positions = (
            "" if self.positions == SINUSOIDS else f" positions={self.positions}"
        )
        if self.scale != 1:
            positions = f" positions={self.positions}×{self.scale:g}"
        arm = "" if self.arm == LEARNED else f" attention={self.arm}"
        if self.freeze_after is not None:
            arm += f"@{self.freeze_after}"
        steps = "" if self.steps is None else f" steps={self.steps}"
        split = "" if self.split == 0 else f" split={self.split}"
        few = "" if self.examples is None else f" n={self.examples}"
        size = f"L={self.layers} λ={self.weight:g} d={self.dim} h={self.heads}"
        return f"{ATTENTION} {size}{start}{positions}{arm}{steps}{split}{few}"


@dataclass(frozen=True)
class Grid:
    """The settings of all studies of the paper, which share their classifiers.

    corpora     names; empty: the paper's corpora if ANISOSCOPE_DATA holds them, else the synthetic ones
    seeds       number of seeds of the attention-only model; fine_seeds: of the encoder
    depths      largest number of layers by corpus at λ = 0 (table 3); weights: λ of one layer (table 4); large: λ
                beyond the paper's
    sizes       (dim, heads, layers) of models with random vectors, for the λ of `contrast`, with `size_seeds` seeds
    starts      other word vectors for one layer at λ = 0, with `start_seeds` seeds
    examples    smaller numbers of examples, for the curve of accuracy on pairs, with `size_seeds` seeds
    arm_seeds   seeds of models of one layer, two, … whose attention is learned, or not (`recipe.ARMS`); `even_seeds`:
                of learned and of uniform attention at each of these depths, which the first claim on them compares
    position_seeds  seeds of models of one layer, two, … under each of `RECIPES`
    direction_seeds  seeds of models of one layer whose word vectors have a common direction, or not
    length      steps of trainings of fixed length, frozen after each of `freezing` or not at all, with `length_seeds`
                seeds
    splits      number of splits of a corpus that has none of its own, with as many seeds as one layer has under
                `RECIPES`
    encoder     what is fine-tuned: on at most `fine_limit` examples of each split, cut at `fine_length` tokens, for
                `fine_epochs` epochs; rate and batch suit so few steps; tested on the same texts as the attention-only
                model
    warmup      steps, and `clip`, largest gradient norm, for models of two layers and more: without them, as published,
                4 of 11 models of four and five layers collapse
    vector_norm mean norm of the word vectors; 5 is about that of GloVe, which the paper starts from. GloVe's common
                direction (mean cosine .31 to .38 in an utterance, these .09 to .15) is matched by `by_direction` alone
    vector_cosine  there, the mean cosine of two words of the vocabulary: in an utterance .27 (HateXplain) to .35
    utterances  number of test utterances that are measured, equally many of each class (the paper's 999); `erased`:
                number for what needs many passes, or an encoder's
    train       False: only finished classifiers are read
    """

    corpora: tuple[str, ...] = ()
    seeds: int = 8
    depths: dict[str, int] = field(
        default_factory=lambda: {"yelphat": 5, "hatexplain": 5, "esnli": 2}
    )
    # λ of table 4, and of the sweep that its authors did not publish.
    weights: tuple[float, ...] = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
    large: tuple[float, ...] = (1.0, 6.0)
    # Width alone, then heads, then layers are varied.
    sizes: tuple[tuple[int, int, int], ...] = (
        (48, 1, 1),
        (96, 1, 1),
        (288, 1, 1),
        (288, 6, 1),
        (288, 1, 2),
    )
    contrast: tuple[float, float] = (0.0, 1e-1)
    size_seeds: int = 3
    starts: tuple[str, ...] = (RAW, DRAWN)
    start_seeds: int = 5
    examples: tuple[int, ...] = (2000, 6000)
    arm_seeds: tuple[int, ...] = (8, 4, 4)
    even_seeds: int = 8
    position_seeds: tuple[int, ...] = (8, 4, 4)
    length: int = 480
    # 38 steps are an epoch of YelpHat, 240 one of HateXplain.
    freezing: tuple[int, ...] = (0, 10, 38, 100, 240)
    length_seeds: int = 8
    splits: int = 4
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
    vector_cosine: float = 0.25
    direction_seeds: int = 8
    utterances: int = 999
    erased: int = 120
    train: bool = True

    def names(self) -> tuple[str, ...]:
        """Return the names of the corpora: the given ones, the paper's if ANISOSCOPE_DATA holds all, else generated
        ones.
        """
        if self.corpora:
            return self.corpora
        # All or none: claims over all corpora must not mix real and generated ones.
        if all(find_copy(name) for name in REAL):
            return REAL
        return SYNTHETIC

    def recipe(self, cell: Cell) -> ClassifierRecipe:
        """Return the recipe by which a cell (classifier) is trained."""
        # A cell of the curve over examples has its own number.
        limit = cell.examples or self.limit
        same = ClassifierRecipe(
            cell.model,
            corpus=cell.corpus,
            limit=limit,
            seed=cell.seed,
            split_seed=cell.split,
        )
        # The other options of a cell are those of the attention-only model.
        if not cell.attention:
            same = replace(
                same,
                limit=self.fine_limit,
                max_length=self.fine_length,
                epochs=self.fine_epochs,
            )
            return replace(
                same,
                # As many as epochs: it never stops early, and the best epoch is kept.
                patience=self.fine_epochs,
                rate=self.fine_rate,
                batch=self.fine_batch,
            )
        chosen: dict[str, Any] = {"positions": cell.positions, "attention": cell.arm}
        same = replace(
            same, layers=cell.layers, heads=cell.heads, position_scale=cell.scale
        )
        same = replace(same, freeze_after=cell.freeze_after, **chosen)
        # Either until the validation loss no longer falls, or a fixed number of steps.
        if cell.steps is None:
            same = replace(same, epochs=self.epochs, patience=self.patience)
        else:
            same = replace(same, steps=cell.steps)
        # See `warmup`: published as it is, deep models often collapse.
        if cell.layers > 1:
            same = replace(same, warmup=self.warmup, clip=self.clip)
        if cell.weight:
            same = replace(same, penalty="entropy", weight=cell.weight)
        # Trained word vectors have one width; at any other one they are drawn.
        if cell.dim != WIDTH or cell.start == DRAWN:
            return replace(same, vectors="random", dim=cell.dim)
        if cell.start == COMMON:
            same = replace(same, vector_cosine=self.vector_cosine)
        return replace(
            same,
            vectors=self.encoder,
            vector_norm=None if cell.start == RAW else self.vector_norm,
        )

    def fine_tuned(self) -> list[Cell]:
        """List the cells (classifiers) of the fine-tuned encoder."""
        # Seeds change slowest, here and below: a grid that is half trained has all
        # corpora and conditions with some seeds, which can be judged.
        grid = product(range(self.fine_seeds), self.names())
        return [Cell(corpus, self.encoder, seed=seed) for seed, corpus in grid]

    def by_depth(self) -> list[Cell]:
        """List the cells (classifiers) of table 3: every depth at λ = 0 (no penalty), ordered by seed."""
        cells = []
        for corpus in self.names():
            depths = range(1, self.depths[PUBLISHED[corpus]] + 1)
            for layers, seed in product(depths, range(self.seeds)):
                cells.append(Cell(corpus, layers=layers, seed=seed))
        return _sort_by_seed(cells)

    def by_weight(self, *, large: bool = True) -> list[Cell]:
        """List the cells (classifiers) of table 4: one layer with every λ (weight of the entropy penalty). `large`:
        also λ beyond the paper's.
        """
        weights = self.weights
        if large:
            weights += self.large
        grid = product(self.names(), weights, range(self.seeds))
        return _sort_by_seed(
            Cell(corpus, weight=weight, seed=seed) for corpus, weight, seed in grid
        )

    def by_start(self) -> list[Cell]:
        """List the cells (classifiers) of one layer without a penalty (λ = 0) that start from other word vectors."""
        grid = product(self.names(), self.starts, range(self.start_seeds))
        return _sort_by_seed(
            Cell(corpus, seed=seed, start=start) for corpus, start, seed in grid
        )

    def to_replace(self) -> list[Cell]:
        """List the cells (classifiers) whose attention is replaced: every depth, one layer at the paper's largest λ
        (weight of the penalty), and other word vectors.
        """
        # The two largest λ, at which attention is sharp.
        one_layer = self.by_weight(large=False)
        large = [cell for cell in one_layer if cell.weight in self.weights[-2:]]
        # λ = 0 of one layer is in several of these lists: each cell once.
        return list(dict.fromkeys([*self.by_depth(), *large, *self.by_start()]))

    def by_arm(self) -> list[Cell]:
        """List the cells (classifiers) whose attention is trained, or not trained (arms); one layer comes first."""
        asked = []
        for layers, seeds in enumerate(self.arm_seeds, 1):
            for seed, corpus, arm in product(range(seeds), self.names(), ARMS):
                asked.append(Cell(corpus, layers=layers, seed=seed, arm=arm))
        # More seeds for the two arms that the most claims compare, once all arms are there.
        for layers in range(1, len(self.arm_seeds) + 1):
            for seed, corpus, arm in product(
                range(self.even_seeds), self.names(), (LEARNED, "uniform")
            ):
                asked.append(Cell(corpus, layers=layers, seed=seed, arm=arm))
        return list(dict.fromkeys(asked))

    def by_positions(self) -> list[Cell]:
        """List the cells (classifiers) of each recipe of positions × how attention is trained, the most decisive first.

        Learned and uniform attention come before frozen attention, one layer before deeper models, and four seeds
        before the others.
        """
        none, quarter, sinusoids, own_vectors = RECIPES.values()
        cells = []
        for arms in ((LEARNED, "uniform"), ("frozen",)):
            for layers, seeds in enumerate(self.position_seeds, 1):
                for some in (range(min(4, seeds)), range(4, seeds)):
                    # First the recipes of the paper's text and of its code.
                    for recipes in ((none, sinusoids), (quarter, own_vectors)):
                        asked = product(some, recipes, self.names(), arms)
                        for seed, recipe, c, arm in asked:
                            cells.append(
                                self._recipe_cell(c, layers, recipe, arm, seed)
                            )
        return cells

    def _recipe_cell(
        self, corpus: str, layers: int, recipe: tuple[str, float], arm: str, seed: int
    ) -> Cell:
        """Return the cell (classifier) with these positions and scale (`recipe`), and with attention trained as `arm`
        says.

        Frozen attention is frozen from the start.
        """
        positions, scale = recipe
        # As drawn. Without a number `frozen` means after an epoch.
        freeze_after = 0 if arm == "frozen" else None
        cell = Cell(corpus, layers=layers, seed=seed, arm=arm)
        return replace(
            cell, positions=positions, scale=scale, freeze_after=freeze_after
        )

    def by_length(self) -> list[Cell]:
        """List the cells (classifiers) of one layer trained for a fixed number of steps, whose attention is frozen
        after some of them, the most decisive first.

        With the sinusoids and without positions. Whole curves of two seeds come before those of the others, and those
        with the sinusoids before those without positions.
        """
        arms: list[tuple[str, int | None]] = [
            ("frozen", step) for step in self.freezing
        ]
        arms += [(LEARNED, None), ("uniform", None)]
        cells = []
        # Two seeds at a time: whole curves of some seeds before the rest.
        for first, name in product(
            range(0, self.length_seeds, 2), ("sinusoids", "no positions")
        ):
            positions, scale = RECIPES[name]
            seeds = range(first, min(first + 2, self.length_seeds))
            for seed, corpus, (arm, step) in product(seeds, self.names(), arms):
                cell = Cell(
                    corpus, seed=seed, arm=arm, freeze_after=step, steps=self.length
                )
                cells.append(replace(cell, positions=positions, scale=scale))
        return cells

    def by_split(self) -> list[Cell]:
        """List the cells (classifiers) of one layer on several random splits of the first corpus, and on the split of
        each other corpus.

        With the sinusoids and without positions, attention learned and uniform.
        """
        cells = []
        for seed, name in product(
            range(self.position_seeds[0]), ("sinusoids", "no positions")
        ):
            for corpus, arm in product(self.names(), (LEARNED, "uniform")):
                # Only YelpHat, the first, has no validation split of its own.
                splits = self.splits if corpus == self.names()[0] else 1
                cell = self._recipe_cell(corpus, 1, RECIPES[name], arm, seed)
                for split in range(splits):
                    cells.append(replace(cell, split=split))
        return cells

    def by_direction(self) -> list[Cell]:
        """List the cells (classifiers) of one layer whose word vectors have a common direction, as GloVe's have, and
        the same without it.

        With the sinusoids and without positions; attention is learned.
        """
        cells = []
        recipes = (RECIPES["sinusoids"], RECIPES["no positions"])
        for seed, recipe, corpus in product(
            range(self.direction_seeds), recipes, self.names()
        ):
            cell = self._recipe_cell(corpus, 1, recipe, LEARNED, seed)
            # Without and with, next to each other: pairs are complete early.
            cells += [cell, replace(cell, start=COMMON)]
        return cells

    def by_examples(self) -> list[Cell]:
        """List the cells (classifiers) of one layer trained on fewer pairs."""
        # The third corpus holds pairs; the first two hold single texts.
        grid = product(self.names()[2:], self.examples, range(self.size_seeds))
        return [Cell(corpus, seed=seed, examples=count) for corpus, count, seed in grid]

    def by_size(self) -> list[Cell]:
        """List the cells (classifiers) of several model sizes (width, heads, layers) on the first corpus, with random
        word vectors.
        """
        grid = product(self.sizes, self.contrast, range(self.size_seeds))
        cells = []
        for (dim, heads, layers), weight, seed in grid:
            cell = Cell(self.names()[0], layers=layers, weight=weight, seed=seed)
            cells.append(replace(cell, dim=dim, heads=heads))
        return _sort_by_seed(cells)

    def everything(self) -> list[Cell]:
        """List all cells (classifiers) once, in the order in which they are trained: first those that the most claims
        rest on.
        """
        one = self.by_weight()
        rest = [*self.by_depth(), *self.by_start(), *self.by_size()]
        rest += [*self.by_arm(), *self.by_examples()]
        # Three seeds are the fewest that decide anything (`study.FEWEST`).
        few = [cell for cell in one if cell.seed < 3]
        published = [cell for cell in few if cell.weight in self.weights]
        return list(dict.fromkeys([*published, *self.fine_tuned(), *few, *rest, *one]))


def _sort_by_seed(cells: Iterable[Cell]) -> list[Cell]:
    """Sort cells (classifiers) by seed."""
    return sorted(cells, key=lambda cell: cell.seed)


_LABEL = re.compile(
    rf"{ATTENTION} L=(?P<layers>\d+) λ=(?P<weight>\S+) d=(?P<dim>\d+) h=(?P<heads>\d+)(?: vectors=(?P<start>\w+))?"
    r"(?: positions=(?P<positions>[a-z]+)(?:×(?P<scale>\S+))?)?(?: attention=(?P<arm>\w+)(?:@(?P<freeze_after>\d+))?)?"
    r"(?: steps=(?P<steps>\d+))?(?: split=(?P<split>\d+))?(?: n=(?P<examples>\d+))?"
)
_USUAL = {
    "start": SCALED,
    "arm": LEARNED,
    "positions": SINUSOIDS,
    "scale": "1",
    "split": "0",
}
_NUMBERS = (
    "layers",
    "weight",
    "dim",
    "heads",
    "scale",
    "freeze_after",
    "steps",
    "split",
    "examples",
)


def add_options(records: pd.DataFrame) -> pd.DataFrame:
    """Add columns to the records: the `family` of each model, and the options of attention-only ones, read from its
    name.

    Encoders have NaN in the columns of options.
    """
    names = records["model"].astype(str)
    # Missing parts of a name are as usual; an encoder's name fits nowhere, and has NaN.
    found = (
        names.str.extract(_LABEL).fillna(_USUAL).astype(dict.fromkeys(_NUMBERS, float))
    )
    encoder = found["layers"].isna()
    size = (found["dim"] != WIDTH) | (found["heads"] != 1)
    other_positions = (found["positions"] != SINUSOIDS) | (found["scale"] != 1)
    # Of several that are true the first one gives the family.
    families = {
        CONTROL: names.str.endswith(UNTRAINED),
        BEFORE: encoder & names.str.endswith(PRETRAINED),
        TUNED: encoder,
        OTHER_SIZE: size,
        OTHER_START: found["start"] != SCALED,
        FIXED_LENGTH: found["steps"].notna(),
        OTHER_SPLIT: found["split"] != 0,
        OTHER_POSITIONS: other_positions,
        OTHER_ARM: found["arm"] != LEARNED,
        FEWER: found["examples"].notna(),
    }
    family = np.select(list(families.values()), list(families), OWN)
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
    position_seeds=(2,),
    direction_seeds=2,
    length=60,
    freezing=(0, 10),
    length_seeds=2,
    splits=2,
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
