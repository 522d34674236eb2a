"""Section 5: do more parameters make it easier to compensate sparse attention? Width, heads and depth
vary (our study).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    Seeds,
    average_seeds,
    compute_correlation,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import OTHER_SIZE, Grid
from anisoscope_papers.fosse2023.measurements import VALUES, measure_geometry
from anisoscope_papers.judge import Test
from anisoscope_papers.study import SIGNED

MEASURES: dict[str, tuple[str, dict[str, Any], tuple[float, float]]] = {
    "sim(V) of layer 1": (
        "values converge more in larger models",
        {"metric": "intra_sequence", "site": VALUES, "token_policy": "all", "layer": 1},
        (-2.0, 2.0),
    ),
    "accuracy": (
        "larger models lose less",
        {"metric": "accuracy", "component": "test"},
        SIGNED,
    ),
}
"""Quantity → the claim on its change, its rows, and what the change lies between."""


def count_inner_parameters(size: tuple[float, float, float]) -> float:
    """Return the number of parameters of the layers of a model (queries, keys, values, output, with biases).

    `size`: (dim, heads, layers); the number of heads does not change it.
    """
    dim, _heads, layers = size
    # Four matrices of dim × dim and their biases, without word vectors and head.
    return layers * (4 * dim * dim + 4 * dim)


def compute_changes(here: Evidence, where: dict[str, Any]) -> Seeds:
    """Return how much a quantity changes from no penalty (weight λ = 0) to the largest λ, [seed], by (dim, heads,
    layers).

    Smaller models come first. `here`: the evidence on one corpus; `where`: which records hold the quantity.
    """
    table = here.table("dim", "heads", "layers", "weight", family=OTHER_SIZE, **where)
    weights = sorted({weight for *_, weight in table})
    sizes = sorted(dict.fromkeys(key[:-1] for key in table), key=count_inner_parameters)
    changes = {}
    for size in sizes:
        changes[size] = table[*size, weights[-1]] - table[*size, weights[0]]
    return Seeds(changes, table.nothing)


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of section 5: larger models make up for sparse attention better.

    Tested is the rank correlation of the number of parameters with what the largest penalty changes: the similarity of
    values, and the accuracy. `whole`: the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        for claim, where, _ in MEASURES.values():
            change = compute_changes(here, where)
            # The same for every seed, so that the correlation is one per seed.
            counts = {}
            for size in change:
                counts[size] = np.full_like(
                    change.nothing, count_inner_parameters(size)
                )
            sizes = Seeds(counts, change.nothing)
            yield here.test(claim, compute_correlation(sizes, change), of_several=True)


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw how the largest penalty changes sim(V), the similarity of values, and accuracy, by size of the model.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    parts = []
    for name, (_, where, bounds) in MEASURES.items():
        rows = []
        for (dim, heads, layers), values in compute_changes(whole, where).items():
            for value in values:
                size = f"d = {dim:g}, {heads:g} head{'s' * (heads > 1)}, L = {layers:g}"
                rows.append((size, value))
        found = average_seeds(
            pd.DataFrame(rows, columns=["size", "value"]), "size", bounds=bounds
        )
        parts.append(found.assign(quantity=f"change of {name}"))
    titles = ("largest λ less λ = 0", "")
    frame = pd.concat(parts, ignore_index=True)
    return whole.chart(
        charts.bars,
        frame,
        category="size",
        panel="quantity",
        titles=titles,
        size=(560, 24),
    )


STUDY = declare_entry(
    "sec5",
    measure=Measure(Grid.by_size, (measure_geometry,)),
    tests=make_tests,
    draw=draw,
)
