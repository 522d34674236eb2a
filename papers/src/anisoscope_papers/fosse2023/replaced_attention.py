"""Test directly (our own study) whether anything changes if the attention of a trained model is replaced."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.classes.ablation import measure_ablations
from anisoscope_papers.fosse2023.entry import (
    CELL,
    Evidence,
    Measure,
    average_seeds,
    compute_correlation,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import OTHER_START, OWN, STARTS, TITLES, TUNED
from anisoscope_papers.fosse2023.measurements import (
    VALUES,
    measure_geometry,
    measure_once,
)
from anisoscope_papers.fosse2023.trained_cells import Trained
from anisoscope_papers.judge import Test

AS_WELL = {
    "uniform": "uniform attention does as well",
    "another": "another's attention does as well",
}
SIMILAR: dict[str, Any] = {
    "metric": "intra_sequence",
    "site": VALUES,
    "token_policy": "all",
}
ALL_LAYERS: dict[str, Any] = {"metric": "ablation.accuracy", "layer": None}
# The paper's largest λ (table 4).
LARGEST = 0.1
CHANGE = "change of accuracy"
OUTCOMES = {
    "output": ("geometry replaces attention", "cosine of the layer's output of [CLS]"),
    "agreement": ("geometry keeps the decision", "share of decisions kept"),
}


def measure_replaced(trained: Trained) -> pd.DataFrame:
    """Replace the attention weights of each layer, and of all layers, of a trained classifier, and measure what
    changes.

    Encoders are measured on fewer utterances than the attention-only model.
    """
    limit = trained.plan.utterances if trained.cell.attention else trained.plan.erased
    return measure_once(
        trained,
        "replaced",
        lambda: measure_ablations(trained.classifier[0], trained.batches(limit)),
    )


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on classifiers whose attention weights are replaced after training: accuracy stays nearly the
    same.

    Also that sparse attention matters less than it looks, and that replacing it changes less if values are similar.
    `whole`: the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        # By kind of replacement and λ; all layers are replaced at once.
        change = here.table("component", "weight", family=OWN, layers=1, **ALL_LAYERS)
        tuned = here.table("component", family=TUNED, **ALL_LAYERS)
        for kind, claim in AS_WELL.items():
            yield here.test(claim, change[kind, 0.0])
            # Other word vectors: is the answer that of these vectors alone?
            starts = here.table(
                "start", family=OTHER_START, component=kind, **ALL_LAYERS
            )
            for start, found in starts.items():
                yield here.test(claim, found, STARTS[start])
            yield here.test(claim, tuned[kind], "fine-tuned encoder")
        yield here.test(
            "sparse attention matters less than it looks", change["uniform", LARGEST]
        )
        for metric, (claim, _) in OUTCOMES.items():
            for family, which in (
                (OWN, ""),
                (TUNED, "layers of the fine-tuned encoder"),
            ):
                # Over layers and models: if values are alike, any weights give nearly
                # the same mean of them.
                similar = here.table("model", "layer", family=family, **SIMILAR)
                kept_so = here.table(
                    "model",
                    "layer",
                    family=family,
                    metric=f"ablation.{metric}",
                    component="another",
                )
                yield here.test(
                    claim, compute_correlation(similar, kept_so), which, of_several=True
                )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the change of accuracy by kind of replacement, λ (weight of the penalty) and layer; and what is kept against
    the similarity of values.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    frame = average_seeds(
        whole.find(family=OWN, layers=1, **ALL_LAYERS), "corpus", "weight", "component"
    )
    names = (
        frame["corpus"].replace(TITLES)
        + ", "
        + frame["weight"].map("λ = {:g}".format)
        + ", "
        + frame["component"]
    )
    titles = (CHANGE, "")
    frame = frame.assign(what=names)
    found = whole.chart(
        charts.bars,
        frame,
        "replaced_accuracy",
        category="what",
        titles=titles,
        size=(560, 17),
    )
    cell = [*CELL, "layer"]
    similar = whole.find(family=OWN, **SIMILAR)[[*cell, "value"]].rename(
        columns={"value": "similar"}
    )
    for metric, (_, shown) in OUTCOMES.items():
        # A point for each layer of each classifier: replaced alone, against the values
        # of that layer.
        rows = whole.find(family=OWN, metric=f"ablation.{metric}", component="another")
        points = rows[rows["layer"].notna()].merge(similar, on=cell)
        titles = ("sim(V) of the layer", shown)
        found |= whole.chart(
            charts.scatter,
            points,
            f"replaced_{metric}",
            x="similar",
            series="corpus",
            titles=titles,
        )
    rows = whole.find(family=TUNED, metric="ablation.accuracy")
    by_layer = average_seeds(
        rows[rows["layer"].notna()], "corpus", "component", "layer"
    )
    by_layer = by_layer.rename(columns={"component": "attention"})
    settings = {"panel": "corpus", "title": CHANGE, "size": (680, 220), "columns": 3}
    return found | whole.chart(
        charts.layer_curve, by_layer, "replaced_encoder", series="attention", **settings
    )


STUDY = declare_entry(
    "replaced",
    measure=Measure(
        lambda plan: [*plan.to_replace(), *plan.fine_tuned()],
        (measure_geometry, measure_replaced),
    ),
    tests=make_tests,
    draw=draw,
)
