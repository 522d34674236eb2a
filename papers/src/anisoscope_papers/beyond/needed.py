"""Ask whether attention is needed in training, as the title of Fosse et al. 2023 suggests.

Models have attention that is learnt, equal for all tokens, random by position, or learnt for one epoch only. They are
trained so from the start, and paired by seed. Replacing the attention of a model that was trained with it (`fosse2023
replaced`) shows only whether it is used.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    Seeds,
    average_seeds,
    compute_correlation,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import LEARNED, OTHER_ARM, OWN, TITLES, Grid
from anisoscope_papers.fosse2023.measurements import (
    VALUES,
    measure_geometry,
    measure_separation,
)
from anisoscope_papers.judge import Test

ENOUGH = {
    "uniform": "uniform attention is enough",
    "random": "random attention is enough",
    "frozen": "one epoch of attention is enough",
}
ACCURACY: dict[str, Any] = {"metric": "accuracy", "component": "test"}
OUTCOMES: dict[str, dict[str, Any]] = {
    "accuracy": ACCURACY,
    "sim(V) of the last layer": {
        "metric": "intra_sequence",
        "site": VALUES,
        "token_policy": "all",
    },
    "AUC of directions of classes": {
        "metric": "class_direction.auc",
        "component": None,
    },
}


def _select_outcome(here: Evidence, name: str) -> pd.DataFrame:
    """Return the records of an outcome (a key of `OUTCOMES`), in the last layer if it is measured by layer.

    `here`: the evidence.
    """
    # Models that learnt nothing count as well: that is what their kind of attention led to.
    # λ = 0: the penalty is on attention, which some of these models do not learn.
    rows = select(here.records, family=[OWN, OTHER_ARM], weight=0.0, **OUTCOMES[name])
    return rows[rows["layer"].isna() | (rows["layer"] == rows["layers"])]


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on what is lost by training a model with uniform, random or frozen attention, for each depth.

    Tested are differences from models with learnt attention: in accuracy, in how well directions separate the classes,
    and in the similarity of values. A last test: if values are similar, little accuracy is lost. `whole`: the
    records of all corpora; a test has one number per seed.
    """
    for here in whole.corpora:
        accuracy, values, auc = (
            here.by(_select_outcome(here, name), "layers", "arm") for name in OUTCOMES
        )
        # Without any model the claims are listed once, as undecided.
        for layers in sorted({layers for layers, _ in accuracy}) or [1.0]:
            which = f"L = {layers:g}"
            # The model of the same seed with learnt attention.
            own = (layers, LEARNED)
            for arm, claim in ENOUGH.items():
                yield here.test(claim, accuracy[layers, arm] - accuracy[own], which)
            yield here.test(
                "directions without attention", auc[layers, "uniform"] - auc[own], which
            )
            yield here.test(
                "values make up for it", values[layers, "uniform"] - values[own], which
            )
    yield whole.test(
        "alike values, dispensable attention",
        correlate_values_with_loss(whole),
        with_collapsed=True,
    )


def correlate_values_with_loss(whole: Evidence) -> np.ndarray:
    """Correlate the similarity of values with the accuracy that uniform attention loses; return a number per seed.

    It is a rank correlation over all pairs of corpus and depth. The similarity is that of models with learnt attention.
    `whole`: the records of all corpora. Returns [seed]; NaN for fewer than `FEWEST` pairs.
    """
    first, second, _ = OUTCOMES
    accuracy = whole.by(_select_outcome(whole, first), "corpus", "layers", "arm")
    values = whole.by(_select_outcome(whole, second), "corpus", "layers", "arm")
    cells = sorted({(corpus, layers) for corpus, layers, _ in accuracy})
    # Differences are paired by seed, and so is the correlation over cells.
    lost = {}
    alike = {}
    for cell in cells:
        lost[cell] = accuracy[*cell, LEARNED] - accuracy[*cell, "uniform"]
        alike[cell] = values[*cell, LEARNED]
    return compute_correlation(
        Seeds(alike, accuracy.nothing), Seeds(lost, accuracy.nothing), FEWEST
    )


FEWEST = 6
"""Cells (corpus, depth) that this correlation needs."""


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw accuracy, similarity of values and separation of classes by corpus, depth and how attention was trained.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    drawn: dict[str, ChartType] = {}
    for number, name in enumerate(OUTCOMES):
        frame = average_seeds(_select_outcome(whole, name), "corpus", "layers", "arm")
        frame["what"] = (
            frame["corpus"].replace(TITLES)
            + ", L = "
            + frame["layers"].map("{:g}".format)
        )
        frame["what"] += ", " + frame["arm"]
        settings: dict[str, Any] = {
            "category": "what",
            "titles": (name, ""),
            "size": (560, 17),
        }
        drawn |= whole.chart(charts.bars, frame, f"needed_{number + 1}", **settings)
    return drawn


STUDY = declare_entry(
    "needed",
    measure=Measure(Grid.by_arm, (measure_geometry, measure_separation)),
    tests=make_tests,
    draw=draw,
    paper="beyond",
)
