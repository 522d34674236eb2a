"""Table 3: how similar keys and values of a sentence are, layer by layer, in models of one to five layers."""

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
    compute_growth,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import CONTROL, OWN, Grid
from anisoscope_papers.fosse2023.measurements import KEYS, VALUES, measure_geometry
from anisoscope_papers.judge import Array, Test
from anisoscope_papers.study import Compared

SITES = {"keys": KEYS, "values": VALUES}
SIMILAR: dict[str, Any] = {
    "family": OWN,
    "metric": "intra_sequence",
    "token_policy": "all",
}
AT_FIRST = SIMILAR | {"family": CONTROL}
FEWEST = 4
"""Cells (depth, layer) that a rank correlation needs: of three, three seeds may well give the same by chance."""


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of table 3: keys and values of a sentence become similar (mean cosine) from layer to layer.

    Also tested: that training makes them similar; that in one-layer models they stay as they were at step 0, near the
    published number; that the last layer of deeper models is more similar; and that similarities of keys and of values
    correlate. `whole`: the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        tables: dict[str, Seeds] = {}
        drawn: dict[str, Seeds] = {}
        for name, site in SITES.items():
            tables[name] = here.table("layers", "layer", site=site, **SIMILAR)
            drawn[name] = here.table("layers", "layer", site=site, **AT_FIRST)
        for name, table in tables.items():
            # The paper's claim, from first to last layer; then ours, against the same
            # model at step 0: positions and lengths alone make the keys of one layer as
            # alike as the published ones.
            yield here.test(f"{name} converge", compute_growth(table), of_several=True)
            yield here.test(
                f"{name} converge by training",
                compute_growth(table, drawn[name]),
                of_several=True,
            )
            yield here.test(
                f"one layer leaves {name} as drawn", table[1, 1] - drawn[name][1, 1]
            )
            if here.numbers:
                # Of the model of one layer, in its only layer.
                published = here.numbers[name][0][0]
                yield here.test(
                    f"{name} of one layer as published", table[1, 1], around=published
                )
        keys, values = tables.values()
        yield here.test(
            "deeper models converge more", fit_depth_slope(values), of_several=True
        )
        yield here.test(
            "keys and values together",
            compute_correlation(keys, values, FEWEST),
            of_several=True,
        )


def fit_depth_slope(table: Seeds) -> Array:
    """Return how much one more layer adds to the similarity in a model's last layer, [seed]: the slope of a
    least-squares line.

    `table`: the similarity [seed], by (layers of the model, layer).
    """
    depths = np.array(sorted({layers for layers, _ in table}))
    # [depth, seed], also without any depth.
    last = np.array([table[n, n] for n in depths]).reshape(
        len(depths), len(table.nothing)
    )
    known = ~np.isnan(last)
    slopes = []
    for of_seed, is_known in zip(last.T, known.T, strict=True):
        slope = np.nan
        # A single depth has no slope.
        if is_known.sum() > 1:
            slope = np.polyfit(depths[is_known], of_seed[is_known], 1)[0]
        slopes.append(slope)
    return np.array(slopes)


def compare(here: Evidence) -> Iterator[Compared]:
    """Compare every similarity of table 3 with ours on one corpus (`here`); the note holds the accuracy of our
    models.
    """
    for depth in range(1, len(here.numbers["keys"]) + 1):
        classifiers = here.describe_classifiers(family=OWN, layers=depth)
        for name, site in SITES.items():
            for layer, published in enumerate(here.numbers[name][depth - 1], 1):
                rows = here.find(site=site, layers=depth, layer=layer, **SIMILAR)
                yield here.compared(
                    f"L = {depth}, layer {layer}, {name}", published, rows, classifiers
                )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the similarity of keys and values against the layer, a line per depth of the model; a chart per corpus.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    drawn: dict[str, ChartType] = {}
    settings: dict[str, Any] = {
        "series": "model",
        "panel": "site",
        "title": "intra-sentence similarity",
        "zero": True,
    }
    names = {site: name for name, site in SITES.items()}
    for here in whole.corpora:
        frames = []
        for what, where in (("", SIMILAR), (", untrained", AT_FIRST)):
            found = average_seeds(
                here.find(site=list(names), **where), "site", "layers", "layer"
            )
            # Of untrained models the deepest alone: its first layers are those of all.
            if what:
                found = found[found["layers"] == found["layers"].max()]
            model = found["layers"].map("L = {:g}".format) + what
            frames.append(found.assign(site=found["site"].map(names), model=model))
        frame = pd.concat(frames, ignore_index=True)
        drawn |= here.chart(charts.layer_curve, frame, size=(640, 240), **settings)
    return drawn


STUDY = declare_entry(
    "table3",
    measure=Measure(Grid.by_depth, (measure_geometry,), measure_geometry),
    tests=make_tests,
    draw=draw,
    compare=compare,
)
