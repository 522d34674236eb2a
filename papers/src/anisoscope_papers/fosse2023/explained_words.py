"""Ask whether attention or geometry explains the decision: maps over words against rationales and
erasure (our study).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.classes.faithfulness import measure_explanations
from anisoscope.store import select
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    Seeds,
    average_panels,
    average_seeds,
    compute_growth,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import OWN, TUNED
from anisoscope_papers.fosse2023.measurements import measure_once
from anisoscope_papers.fosse2023.trained_cells import Trained
from anisoscope_papers.judge import Test

MEASURES = {
    "auprc": "plausibility (AUPRC)",
    "auroc": "plausibility (AUROC)",
    "comprehensiveness": "comprehensiveness",
    "sufficiency": "sufficiency (lower: more faithful)",
}
VALUES = "value, contrast"
SHOWN = ["attention", "rollout", "value norm", VALUES, "hidden, contrast"]
"""Maps that are drawn by layer."""
ONE_LAYER: dict[str, Any] = {"family": OWN, "layers": 1, "weight": 0.0}


def explain_words(trained: Trained) -> pd.DataFrame:
    """Measure how well maps (a score for each word) explain a classifier's decisions on test texts, if the corpus
    has rationales (words marked by annotators).
    """
    # Erasing takes many passes for each text: few texts are taken.
    how: dict[str, Any] = {
        "limit": trained.plan.erased,
        "max_length": trained.found.max_length,
    }
    return measure_once(
        trained,
        "explained",
        lambda: measure_explanations(*trained.classifier, trained.corpus, **how),
    )


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on maps (a score for each word) from attention and from the direction of values.

    A map is plausible if it ranks words as the annotators' marks do, and faithful if erasing its words changes the
    output. Attention is compared with random scores and with the rarity of words, then directions with attention; in
    deep models, the first layer with the last. `whole`: the records of all corpora; a test has one number per seed of
    one corpus.
    """
    for here in whole.corpora:
        # One layer is the paper's model; of the encoder the last layer is taken.
        for which, where in (
            ("", ONE_LAYER),
            ("last layer of the fine-tuned encoder", {"family": TUNED}),
        ):
            precise, erased = (
                _select_last_layer(here, name, where)
                for name in ("auprc", "comprehensiveness")
            )
            attention = precise["attention"]
            yield here.test(
                "attention is plausible beyond chance",
                attention - precise["random"],
                which,
            )
            yield here.test(
                "attention is plausible beyond rarity",
                attention - precise["rare"],
                which,
            )
            better = precise[VALUES] - attention
            yield here.test(
                "directions are more plausible than attention", better, which
            )
            # From plausibility (annotators' marks) to faithfulness (erasing words
            # changes the output).
            attention = erased["attention"]
            yield here.test(
                "attention is faithful", attention - erased["random"], which
            )
            better = erased[VALUES] - attention
            yield here.test(
                "directions are more faithful than attention", better, which
            )
        deep = here.table(
            "layers",
            "layer",
            family=OWN,
            weight=0.0,
            metric="attribution.auprc",
            component="attention",
        )
        # The claim is on the fall from the first layer to the last: the growth, negated.
        fall = -compute_growth(deep)
        yield here.test("the first layer, if any", fall, of_several=True)


def _select_last_layer(here: Evidence, measure: str, where: dict[str, Any]) -> Seeds:
    """Return a measure of each map (a score for each word) in the last layer, [seed], by map; maps without a layer are
    included.

    `here`: the evidence on one corpus; `measure`: `auprc` or `comprehensiveness`; `where`: which classifiers.
    """
    rows = here.find(metric=f"attribution.{measure}", **where)
    # Baselines (random, rare) have no layer.
    is_last = rows["layer"].isna() | (rows["layer"] == rows["layer"].max())
    return here.by(rows[is_last], "component")


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the quality of every map (a score for each word) of one-layer models by corpus.

    Further charts show it by layer, for the deepest models and for fine-tuned encoders. `whole`: the records of all
    corpora. Returns {chart name: chart}.
    """
    found: dict[str, ChartType] = {}
    for here in whole.corpora:
        every = {
            shown: here.find(metric=f"attribution.{name}", **ONE_LAYER)
            for name, shown in MEASURES.items()
        }
        bars = partial(
            charts.bars, category="component", panel="quantity", size=(660, 20)
        )
        found |= here.chart(bars, average_panels(every, "component"))
    rows = whole.find(family=OWN, weight=0.0, metric="attribution.auprc")
    # Depths differ by corpus: five layers, or two for pairs.
    deepest = rows[rows["layers"] == rows.groupby("corpus")["layers"].transform("max")]
    tuned = {
        name: whole.find(family=TUNED, metric=f"attribution.{name}")
        for name in ("auprc", "comprehensiveness")
    }
    for name, rows, measure in (
        ("explained_layers", deepest, "auprc"),
        ("explained_encoder", tuned["auprc"], "auprc"),
        ("erased_encoder", tuned["comprehensiveness"], "comprehensiveness"),
    ):
        frame = average_seeds(
            select(rows[rows["layer"].notna()], component=SHOWN),
            "corpus",
            "component",
            "layer",
        )
        frame = frame.rename(columns={"component": "map"})
        curves = partial(
            charts.layer_curve, series="map", panel="corpus", size=(680, 220), columns=3
        )
        found |= whole.chart(curves, frame, name, title=MEASURES[measure])
    return found


STUDY = declare_entry(
    "explained",
    measure=Measure(
        lambda plan: [*plan.by_depth(), *plan.fine_tuned()], (explain_words,)
    ),
    tests=make_tests,
    draw=draw,
)
