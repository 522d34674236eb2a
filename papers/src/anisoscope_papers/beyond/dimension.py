"""Ask how many dimensions a number of classes needs.

One layer of attention is trained at every width, on sentences of two to twenty classes, and on tags of words.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope_papers.beyond.small_cells import small_study
from anisoscope_papers.beyond.small_models import EACH, FIRST, TREEBANK, SmallGrid
from anisoscope_papers.fosse2023.entry import Evidence, Seeds, average_seeds
from anisoscope_papers.judge import Array, Test

CLASSES = (2, 3, 5, 10, 20)
WIDTHS = (2, 4, 8, 16, 32, 64, 128)
# Parts of speech of Universal Dependencies.
TAGS = 17
# Two points, as elsewhere: what a seed changes.
NEAR = 0.02
"""Accuracy that is as good as that of the widest."""


def count_classes(corpus: str) -> int:
    """Return the number of classes of a corpus."""
    if corpus == TREEBANK:
        return TAGS
    return int(corpus.partition(":")[2])


def group_by_width(here: Evidence, metric: str, **where: Any) -> Seeds:
    """Return the values of a metric [seed] by the width of the model, including models that learnt nothing.

    `here`: the evidence on one corpus; `where`: further conditions on the records.
    """
    return here.by(select(here.records, untrained=False, metric=metric, **where), "dim")


def find_saturation(accuracy: Seeds) -> Array:
    """Return the smallest width from which on accuracy stays within `NEAR` of the widest model's, [seed].

    `accuracy`: its values [seed] by width.
    """
    widths = sorted(accuracy)
    if not widths:
        return accuracy.nothing
    table = np.stack([accuracy[width] for width in widths])  # [width, seed]
    # Compared with the widest model of the same seed, in the last row.
    near = table >= table[-1] - NEAR
    # A width is enough if it and all wider ones are near: the minimum is taken from the widest down.
    enough = np.flip(np.minimum.accumulate(np.flip(near, 0), 0), 0)
    found = np.array(widths)[enough.argmax(0)]
    # A width that is not trained yet may be the one that is enough.
    return np.where(np.isnan(table).any(0), np.nan, found)


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on how many dimensions a number of classes needs.

    In wide models class directions form a simplex and take every dimension they can; fewer dimensions than classes cost
    no accuracy; more classes need more width. `whole`: the records of all corpora; a test has one number per seed.
    """
    needed: dict[int, pd.Series] = {}
    for here in whole.corpora:
        count = count_classes(here.corpus)
        accuracy = group_by_width(here, "accuracy", component="test")
        if here.corpus != TREEBANK:
            needed[count] = pd.Series(find_saturation(accuracy), here.seeds)
            # In a simplex of k corners, any two directions have the cosine −1 / (k − 1).
            most = group_by_width(here, "class_cosine.most")[max(WIDTHS)]
            yield here.test("a simplex where there is room", most + 1 / (count - 1))
        # Widths that are too small for a simplex of so many classes.
        narrow = [width for width in accuracy if width < count]
        if narrow:
            yield here.test(
                "fewer dimensions than classes",
                accuracy[max(narrow)] - accuracy[max(accuracy)],
            )
        # Two class means differ along one line, whatever the training does.
        if count > 2:
            taken = group_by_width(here, "class_direction.dimensions")[max(WIDTHS)] / (
                count - 1
            )
            yield here.test("classes take every dimension they can", taken)
    yield whole.test("more classes need more dimensions", fit_growth(needed))


def fit_growth(needed: dict[int, pd.Series]) -> Array:
    """Return how many doublings of the needed width go with one doubling of the number of classes, [seed].

    `needed`: {number of classes: needed width by seed}. A least-squares slope over at least three numbers of classes;
    NaN if a seed has fewer.
    """
    # Logarithms of base 2: the slope is in doublings, the exponent of a power law.
    table = pd.DataFrame(needed).T  # [classes, seed]
    slopes = []
    for seed in table:
        known = table[seed].dropna()
        # A line through two points would fit anything.
        if len(known) > 2:
            slopes.append(np.polyfit(np.log2(known.index), np.log2(known), 1)[0])
        else:
            slopes.append(np.nan)
    return np.array(slopes or [np.nan], dtype=float)


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw accuracy, and the number of dimensions that classes occupy, against the width.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    drawn: dict[str, ChartType] = {}
    rows = select(whole.records, untrained=False)
    titles = {
        "accuracy": "accuracy",
        "class_direction.dimensions": "dimensions that classes take",
    }
    for metric, title in titles.items():
        frame: pd.DataFrame = average_seeds(
            select(rows, metric=metric), "corpus", "dim"
        )
        names = {}
        for corpus in frame["corpus"].unique():
            names[corpus] = str(count_classes(corpus))
        if TREEBANK in names:
            names[TREEBANK] += " tags"
        frame = frame.assign(corpus=frame["corpus"].map(names))
        name = f"dimension_{metric.rpartition('.')[2]}"
        settings: dict[str, Any] = {
            "x": "dim",
            "series": "corpus",
            "scale": "log",
            "size": (640, 260),
        }
        drawn |= whole.chart(
            charts.trajectory, frame, name, titles=("width", title), **settings
        )
    return drawn


def _make_grid(**changes: Any) -> SmallGrid:
    """Return the grid of small models that this study trains, with some of its settings changed."""
    tasks = tuple((f"synthetic:{count}", FIRST) for count in CLASSES)
    return SmallGrid(
        ((TREEBANK, EACH), *tasks),
        **{"dims": WIDTHS, "seeds": 3, "steps": 800, "rate": 5e-3, **changes},
    )


SETTINGS = {
    "quick": _make_grid(dims=(4, 16, 128), seeds=3, steps=150, limit=900, held=300),
    "paper": _make_grid(),
    "finished": _make_grid(train=False),
}
STUDY = small_study("dimension", settings=SETTINGS, tests=make_tests, draw=draw)
