"""Figure 2: does the direction of the final [CLS] vector tell the class? Measured for every choice of
representative.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.metrics.class_direction import auc, separability
from anisoscope.models.load import load
from anisoscope.store import as_records, select
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Measure,
    average_seeds,
    compute_correlation,
    declare_entry,
)
from anisoscope_papers.fosse2023.grid import PUBLISHED, Grid
from anisoscope_papers.fosse2023.measurements import measure_once
from anisoscope_papers.fosse2023.trained_cells import Labels, Trained
from anisoscope_papers.judge import Array, Test
from anisoscope_papers.study import SIGNED, Compared
from anisoscope_papers.study_charts import draw_ranges

STAGES = {"tuned": "fine-tuned", "pretrained": "pre-trained"}
QUANTILES = (0.0, 0.025, 0.25, 0.5, 0.75, 0.975, 1.0)
DRAWN = {"least": 0.025, "lower": 0.25, "middle": 0.5, "upper": 0.75, "most": 0.975}


def measure_directions(trained: Trained) -> pd.DataFrame:
    """Measure how well the direction of the final [CLS] vector tells the class, from any representative utterance.

    In the records, `site` is the stage (`tuned`, `pretrained`), `component` the classes by name.

    first             the first correct utterance of each class is the representative, as in the paper: quantiles of the
                      cosines of each class to it
    representative    every correct utterance is one in turn: quantiles of its median cosine to each class
    auc               quantiles of the AUC of each representative: is its own class nearer to it than the others?
    others            quantiles of the AUC that separates the two other classes by it (three classes only)
    separability      AUC and nearest-direction accuracy against left-one-out class means
    """

    def make() -> pd.DataFrame:
        """Compute the records, for the encoder before and after fine-tuning."""
        # Each stage has representatives of its own. The authors compared pre-trained
        # vectors with fine-tuned representatives, which lie in another space.
        before = load(trained.cell.model).model
        stages = {
            "tuned": trained.directions(),
            "pretrained": trained.directions(before),
        }
        labels, found = trained.classes
        names = trained.corpus.labels
        parts = []
        for stage, unit in stages.items():
            rows = compare_directions(unit, labels, labels == found, names)
            for name, (value, low, high) in separability(
                unit, labels, len(names)
            ).items():
                # Names end with the number of a class, unless they are of all classes.
                quantity, _, index = name.partition(".")
                ends = {"value": float(value), "low": float(low), "high": float(high)}
                component = names[int(index)] if index else None
                rows.append(
                    {
                        "metric": f"separability.{quantity}",
                        "component": component,
                        **ends,
                    }
                )
            parts.append(
                as_records(pd.DataFrame(rows), site=stage, n_units=len(labels))
            )
        return pd.concat(parts, ignore_index=True)

    return measure_once(trained, "directions", make)


def compare_directions(
    unit: Array, labels: Labels, right: np.ndarray, names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return rows on cosines to representatives: the first correct utterance of each class, and all correct ones.

    The first is compared with itself too, as in the authors' notebook. Rows have the keys `metric` (first,
    representative, auc or others, then the quantile or mean), `component` (class, or `class → other`) and `value`.

    unit     unit vectors [utterance, dim]
    labels   class index of each [utterance]
    right    whether the classifier is right [utterance]
    names    names of the classes
    """
    rows: list[dict[str, Any]] = []
    for label, name in enumerate(names):
        # As in section 4, only a correctly classified utterance represents its class.
        able = np.flatnonzero((labels == label) & right)
        # A class that is never predicted has no representative.
        if not len(able):
            continue
        cosine = unit[able] @ unit.T  # [representative, utterance]
        for other, other_name in enumerate(names):
            first = cosine[0, labels == other]
            rows += _summarise_values(
                "first", f"{name} → {other_name}", first, mean=False
            )
        # From here on no representative is compared with itself.
        cosine[np.arange(len(able)), able] = np.nan
        for other, other_name in enumerate(names):
            # [representative]: its median cosine to the utterances of a class.
            medians = np.nanmedian(cosine[:, labels == other], axis=1)
            rows += _summarise_values(
                "representative", f"{name} → {other_name}", medians
            )
        rows += _measure_separations(cosine, labels, label, names)
    return rows


def _measure_separations(
    cosine: Array, labels: Labels, label: int, names: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Return records on how well representatives of a class separate it from others, and two others from each other.

    `cosine` [representative, utterance]: NaN for the representative itself; `labels`: class index of each [utterance];
    `names`: of all classes.
    """
    own = labels == label
    separation = []
    for row in cosine:
        known = ~np.isnan(row)
        separation.append(auc(row[known], own[known]))
    rows = _summarise_values("auc", names[label], np.array(separation))
    others = [other for other in range(len(names)) if other != label]
    # The paper says of contradiction that it hardly separates the two other classes.
    if len(others) == 2:
        pair = np.array(
            [auc(row, labels[~own] == others[0]) for row in cosine[:, ~own]]
        )
        # Which of the two others is nearer is not asked: only whether they differ.
        rows += _summarise_values("others", names[label], np.maximum(pair, 1 - pair))
    return rows


def _summarise_values(
    metric: str, component: str, values: Array, *, mean: bool = True
) -> list[dict[str, Any]]:
    """Return records of the quantiles (`QUANTILES`) of some values, and of their mean.

    metric      beginning of the records' names, to which the quantile (`auc.0.5`) or `mean` is added
    component   the class, or classes, that the values are about
    values      one for each representative utterance
    mean        add the mean
    """
    summary = {}
    for share, quantile in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True):
        summary[f"{share:g}"] = float(quantile)
    if mean:
        summary["mean"] = float(np.mean(values))
    return [
        {"metric": f"{metric}.{name}", "component": component, "value": x}
        for name, x in summary.items()
    ]


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of figure 2: the direction of the final [CLS] vector separates the classes after fine-tuning, and
    not before.

    Also that it does so from any representative utterance; that contradiction hardly separates the two other classes of
    e-SNLI; and, over all corpora, that closer classes are better classified. `whole`: the records of all
    corpora; a test has one number per seed.
    """
    for here in whole.corpora:
        # Mean over representatives, then over classes: each class counts once.
        tuned, before = (
            _average_over_classes(here, "auc.mean", stage) for stage in STAGES
        )
        yield here.test("the direction separates", tuned - before)
        yield _make_test_before(here)
        yield here.test(
            "not by chance of one draw", _average_over_classes(here, "auc.0.025")
        )
        if PUBLISHED[here.corpus] == "esnli":
            alike = _average_over_classes(
                here, "others.mean", component="contradiction"
            )
            yield here.test("contradiction sees two classes alike", alike)
    own = whole.find(metric="representative.mean", site="tuned")
    # `a → a`: a class and its own representatives.
    both = (
        own["component"]
        .astype(str)
        .str.split(" → ", expand=True)
        .reindex(columns=[0, 1])
    )
    own = own.assign(component=both[0])[both[0] == both[1]]
    right = whole.table("corpus", "component", metric="class_accuracy")
    yield whole.test(
        "closer classes are better classified",
        compute_correlation(whole.by(own, "corpus", "component"), right),
    )


def _average_over_classes(
    here: Evidence, metric: str, stage: str = "tuned", **where: Any
) -> Array:
    """Return a metric averaged over classes, [seed]. `here`: the evidence on one corpus; `stage`: `tuned` or
    `pretrained`.
    """
    table = here.table("component", site=stage, metric=metric, **where)
    return np.asarray(np.mean(list(table.values()) or [table.nothing], axis=0))


def _make_test_before(here: Evidence) -> Test:
    """Make the test that the encoder does not separate the classes before fine-tuning, on one corpus (`here`).

    The encoder is the same for all seeds, so the interval is over utterances.
    """
    claim = here.claims["not before fine-tuning"]
    # One row per seed, all of the same encoder: the first is as good as any.
    found = select(here.records, site="pretrained", metric="separability.nearest")
    classes = here.records.loc[
        here.records["metric"] == "separability.auc", "component"
    ].nunique()
    near = claim.within or 0.0
    test = Test(
        claim,
        "not measured",
        n=0,
        inside=(-near, near),
        note=here.note,
        subject=here.title,
    )
    if not len(found):
        return test
    # There are as many utterances of each class.
    chance = 1 / classes
    value, low, high = (
        float(found.iloc[0][name]) - chance for name in ("value", "low", "high")
    )
    words = (
        f"share nearest to their own less chance, 1/{classes} (claim: within {near}):"
    )
    note = "n counts utterances, as many of each class"
    n = int(found.iloc[0]["n_units"])
    note = "; ".join(filter(None, (note, here.note)))
    return replace(
        test, statistic=words, value=value, low=low, high=high, n=n, note=note
    )


def compare(here: Evidence) -> Iterator[Compared]:
    """Compare with the paper's figure, on one corpus (`here`): median cosines to the first correct utterance of each
    class.
    """
    for ours, medians in here.numbers.items():
        for theirs, published in medians.items():
            rows = here.find(
                metric="first.0.5", site="tuned", component=f"{ours} → {theirs}"
            )
            yield here.compared(
                f"median of {theirs} to a representative of {ours}", published, rows
            )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the cosine of each class to representatives (utterances that stand for a class) of each class.

    Median, quartiles and 95 % range, averaged over seeds. `whole`: the records of all corpora. Returns {chart name:
    chart}.
    """
    drawn: dict[str, ChartType] = {}
    for here in whole.corpora:
        metrics = {f"representative.{q:g}": name for name, q in DRAWN.items()}
        frame = average_seeds(
            here.find(metric=list(metrics), site=list(STAGES)),
            "site",
            "component",
            "metric",
        )
        frame = frame.assign(metric=frame["metric"].map(metrics))
        wide = frame.pivot_table(
            "value", ["site", "component"], "metric", sort=False
        ).reset_index()
        # `class of the representative → class`
        both = wide["component"].str.split(" → ", expand=True).reindex(columns=[0, 1])
        wide = wide.assign(
            to=both[0].map("to a representative of {}".format), of=both[1]
        )
        wide["stage"] = wide["site"].map(STAGES)
        settings = {
            "category": "of",
            "series": "stage",
            "panel": "to",
            "title": "median cosine of the class",
        }
        drawn |= here.chart(draw_ranges, wide, **settings, domain=SIGNED, width=560)
    return drawn


STUDY = declare_entry(
    "fig2",
    measure=Measure(Grid.fine_tuned, (measure_directions,)),
    tests=make_tests,
    draw=draw,
    compare=compare,
)
