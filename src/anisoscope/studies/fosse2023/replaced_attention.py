"""The direct test (ours): does anything change when the attention of a trained model is replaced?"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.classes.ablation import KINDS
from anisoscope.store import select
from anisoscope.studies.fosse2023.grid import NEEDS, SETTINGS, Plan, other_starts, standard, words
from anisoscope.studies.fosse2023.measurements import VALUES, accuracies, gather, geometry, replaced
from anisoscope.studies.fosse2023.over_cells import Seeds, corpora, encoders, note, over, sound, spearman, title
from anisoscope.studies.judge import Array, Test, judged, of_seeds, within
from anisoscope.studies.study import SIGNED, Claim, Context, Study, Verdict

SOURCE = "the title of Fosse et al. 2023, tested beyond the paper"
HARDLY = 0.02
UNIFORM, ANOTHER = (
    Claim(
        f"{kind} attention does as well",
        f"One layer without a penalty classifies as well, within {HARDLY:.0%}, when its attention is {whose}",
        SOURCE,
        bounds=SIGNED,
    )
    for kind, whose in (("uniform", "uniform over the sentence"), ("another's", "that of another sentence"))
)
SPARSE_MATTERS = Claim(
    "sparse attention matters less than it looks",
    f"At the largest λ of the paper, too, uniform attention changes accuracy by less than {HARDLY:.0%}",
    SOURCE,
    bounds=SIGNED,
)
GEOMETRY = Claim(
    "geometry replaces attention",
    "The more alike the values of a layer, the less its output turns when its attention is replaced by another "
    "sentence's (rank correlation over layers, depths and λ of sim(V) with the cosine of the output of [CLS])",
    SOURCE,
    bounds=SIGNED,
)
DECISION = Claim(
    "geometry keeps the decision",
    "The more alike the values of a layer, the fewer decisions change when its attention is replaced by another "
    "sentence's (rank correlation of sim(V) with agreement)",
    SOURCE,
    bounds=SIGNED,
)
LARGEST = 0.1
CHANGE = "change of accuracy"
TUNED = "fine-tuned encoder"


def measure(plan: Plan, context: Context) -> pd.DataFrame:
    """Depths at λ = 0, λ and starts of one layer, and fine-tuned encoders, with their attention replaced."""
    return pd.concat(
        [
            gather(plan.to_replace(), plan, context, accuracies, geometry, replaced),
            gather(plan.fine_tuned(), plan, context, accuracies, geometry, replaced),
        ],
        ignore_index=True,
    )


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    tests, near = [], []
    for corpus in corpora(records):
        here, remark, named = select(records, corpus=corpus), note(records, corpus), title(corpus)
        inside = partial(within, inside=(-HARDLY, HARDLY), reason=remark, subject=named)
        change = _changes(here)
        near += [
            inside(UNIFORM, change["uniform", 0.0], statistic=CHANGE),
            inside(ANOTHER, change["another", 0.0], statistic=CHANGE),
            inside(SPARSE_MATTERS, change["uniform", LARGEST], statistic=CHANGE),
            *_from_other_vectors(here, named, remark),
            *_of_encoders(here, named, remark),
        ]
        test = partial(of_seeds, reason=remark, subject=named)
        for claim, metric in ((GEOMETRY, "output"), (DECISION, "agreement")):
            statistic = f"rank correlation of sim(V) and {metric}"
            tests.append(test(claim, _correlation(standard(here), here, metric), statistic))
            tuned = _correlation(encoders(here), here, metric)
            of_layers = f"{named}, layers of the {TUNED}"
            tests.append(of_seeds(claim, tuned, statistic, reason=remark, subject=of_layers))
    return judged([*tests, *near])


def _from_other_vectors(here: pd.DataFrame, named: str, remark: str) -> list[Test]:
    """The same of models that began with other word vectors."""
    rows = other_starts(select(sound(here), metric="replaced.accuracy", layer=None))
    change = Seeds(here, rows, "component", "start")
    return [
        within(claim, change[key], (-HARDLY, HARDLY), CHANGE, remark, f"{named}, {words(key[1])}")
        for claim, kind in ((UNIFORM, "uniform"), (ANOTHER, "another"))
        for key in change
        if key[0] == kind
    ]


def _of_encoders(here: pd.DataFrame, named: str, remark: str) -> list[Test]:
    """The same of fine-tuned encoders, the attention of all layers replaced."""
    rows = encoders(select(sound(here), metric="replaced.accuracy", layer=None))
    change = Seeds(here, rows, "component")
    inside, subject = (-HARDLY, HARDLY), f"{named}, {TUNED}"
    judged_as = partial(within, inside=inside, statistic=CHANGE, reason=remark, subject=subject)
    return [judged_as(c, change[kind]) for c, kind in ((UNIFORM, "uniform"), (ANOTHER, "another"))]


def _changes(here: pd.DataFrame) -> Seeds:
    """Change of accuracy [seed] of one layer by (kind, λ), sound models only."""
    rows = standard(select(sound(here), metric="replaced.accuracy", layer=None))
    return Seeds(here, rows[rows["layers"] == 1], "component", "weight")


def _points(rows: pd.DataFrame, metric: str, kind: str) -> pd.DataFrame:
    """One row per model and layer: `similar`, sim(V), and `value`, what the replacement did."""
    rows = sound(rows)
    keys = ["model", "corpus", "seed", "layer"]
    similar = select(rows, metric="intra_sequence", site=VALUES, token_policy="all")[[*keys, "value"]]
    done = select(rows, metric=f"replaced.{metric}", component=kind)
    return done[done["layer"].notna()].merge(similar.rename(columns={"value": "similar"}), on=keys)


def _correlation(rows: pd.DataFrame, here: pd.DataFrame, metric: str) -> Array:
    """Correlation over `rows`, by seed of `here`."""
    points = _points(rows, metric, "another")
    of_seed = [points[points["seed"] == seed] for seed in sorted(here["seed"].dropna().unique())]
    return np.array([spearman(p["similar"].to_numpy(float), p["value"].to_numpy(float)) for p in of_seed] or [np.nan])


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Change of accuracy by kind and λ; output's cosine and agreement against sim(V), a point per layer."""
    drawn: dict[str, ChartType] = {}
    rows = standard(select(sound(records), metric="replaced.accuracy", layer=None))
    rows = rows[rows["layers"] == 1].sort_values("weight", kind="stable")
    order = {corpus: place for place, corpus in enumerate(corpora(records))}
    rows = rows.sort_values("corpus", kind="stable", key=lambda names: names.map(order))
    frame = over(rows, ["corpus", "weight", "component"])
    if len(frame):
        names = frame["corpus"].map(title) + ", " + frame["weight"].map("λ = {:g}".format) + ", " + frame["component"]
        titles = (CHANGE, "")
        drawn["replaced_accuracy"] = charts.bars(
            frame.assign(what=names), category="what", titles=titles, size=(560, 17)
        )
    for metric, shown in (
        ("output", "cosine of the layer's output of [CLS]"),
        ("agreement", "share of decisions kept"),
    ):
        points = _points(standard(records), metric, "another")
        if len(points):
            points = points.assign(corpus=points["corpus"].map(title))
            titles = ("sim(V) of the layer", shown)
            drawn[f"replaced_{metric}"] = charts.scatter(points, x="similar", series="corpus", titles=titles)
    return drawn | _draw_encoders(records)


def _draw_encoders(records: pd.DataFrame) -> dict[str, ChartType]:
    """Change of accuracy by the layer of the fine-tuned encoder whose attention is replaced."""
    rows = encoders(select(sound(records), metric="replaced.accuracy"))
    rows = rows[rows["layer"].notna()].sort_values("layer", kind="stable")
    frame = over(rows, ["corpus", "component", "layer"])
    if not len(frame):
        return {}
    frame = frame.assign(corpus=frame["corpus"].map(title), attention=frame["component"])
    chart = charts.layer_curve(frame, series="attention", panel="corpus", title=CHANGE, size=(680, 220), columns=3)
    return {"replaced_encoder": chart}


STUDY = Study(
    name="replaced",
    paper="fosse2023",
    title="Trained models whose attention is replaced: accuracy, direction of the output, [CLS]",
    claims=(UNIFORM, ANOTHER, SPARSE_MATTERS, GEOMETRY, DECISION),
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        f"Attention weights of trained models replaced by {', '.join(KINDS[:2])} ones or those of another sentence, "
        "the values left as they are. A point is one layer of one model (depths at λ = 0, one layer at larger λ); "
        "bars: 95 % intervals over seeds. Last: a fine-tuned encoder, one layer replaced at a time. Records also "
        "hold the cosine of the final [CLS] to its own before."
    ),
    needs=NEEDS,
)
