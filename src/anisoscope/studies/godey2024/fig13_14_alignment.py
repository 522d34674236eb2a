"""Figures 13, 14 and 23: cosine and scalar product of the mean query and the mean key of every head along training."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy import stats

from anisoscope.charts import series_charts
from anisoscope.store import select
from anisoscope.studies.godey2024 import checkpoints
from anisoscope.studies.godey2024.series_claims import Alignment, heads_above, per_seed, table
from anisoscope.studies.judge import Array, judged, of_seeds
from anisoscope.studies.study import Context, Verdict, claims, declare

COSINES = ("query_key.cosine", "mean_cosine.isotropic_q95")


def measure(metrics: Sequence[str], series: checkpoints.CheckpointSettings, context: Context) -> pd.DataFrame:
    """The named metrics of every head at every checkpoint."""
    records = checkpoints.records_of(checkpoints.measure(series, context))
    return select(records, metric=metrics, site="query.raw").reset_index(drop=True)


def judge_cosine(records: pd.DataFrame) -> list[Verdict]:
    claim, alignment = claims("godey2024", "fig13"), Alignment.of(records)
    first, last = np.abs(alignment.cosine[:, 0]), np.abs(alignment.cosine[:, -1])
    above = "; ".join(f"seed {s}: {k} of {n} heads above (over documents, Holm)" for s, k, n in heads_above(records))
    by_layer = alignment.cosine[:, -1].mean(-1)  # [seed, layer]
    start = f"at step 0 {first.mean():.3f}"
    tests = [
        of_seeds(claim["cosine-grows"], (last - first).mean((1, 2)), reason=start),
        of_seeds(claim["almost-all-heads"], (last > first).mean((1, 2))),
        of_seeds(claim["aligned-at-the-end"], last.mean((1, 2)), threshold=alignment.bound, reason=above),
        of_seeds(claim["first-layer-positive"], by_layer[:, 0]),
        of_seeds(claim["last-layer-negative"], by_layer[:, -1]),
    ]
    if by_layer.shape[1] > 2:
        rho = np.array([stats.spearmanr(np.arange(len(x)), x).statistic for x in by_layer])
        reason = f"{by_layer.shape[1]} layers: " + ", ".join(f"{x:+.2f}" for x in by_layer.mean(0)).replace("-", "−")
        tests.append(of_seeds(claim["sign-falls-with-depth"], rho, reason=reason))
    return judged(tests)


def judge_dot(records: pd.DataFrame) -> list[Verdict]:
    """Judge the growth of the scalar product: of heads that end similar, of those that end opposite, and of all."""
    (claim,) = claims("godey2024", "fig14").values()
    dots = np.abs(table(records, "query_key.dot").values)
    growth = np.log(dots[:, -1] / dots[:, 0])
    return judged(
        [
            of_seeds(claim, per_seed(growth, heads), reason=f"{heads.sum()} heads of {len(heads)} seeds", subject=name)
            for name, heads in Alignment.of(records).groups().items()
        ]
    )


def judge_seeds(records: pd.DataFrame) -> list[Verdict]:
    """Each seed against the mean of the others, by Fisher's z."""
    cosine = Alignment.of(records).cosine
    curves, profile = np.abs(cosine).mean(-1), cosine[:, -1].mean(-1)
    tests = []
    for claim, rows in zip(
        claims("godey2024", "fig23").values(), (curves.reshape(len(curves), -1), profile), strict=True
    ):
        r = _with_others(rows)
        reason = "r by seed: " + ", ".join(f"{x:.2f}" for x in r)
        tests.append(of_seeds(claim, np.arctanh(np.clip(r, -0.9999, 0.9999)), reason=reason))
    return judged(tests)


def _with_others(rows: Array) -> Array:
    """Correlation of each row [seed, place] with the mean of the others; NaN where there is no other."""
    if len(rows) < 2 or rows.shape[1] < 3:
        return np.full(len(rows), np.nan)
    return np.array([np.corrcoef(x, np.delete(rows, i, 0).mean(0))[0, 1] for i, x in enumerate(rows)])


def draw_cosine(records: pd.DataFrame) -> dict[str, ChartType]:
    alignment = Alignment.of(records)
    return {"fig13": series_charts.heads(_first_seed(records), alignment.endings(), alignment.bound)}


def draw_dot(records: pd.DataFrame) -> dict[str, ChartType]:
    return {"fig14": series_charts.products(_first_seed(records), Alignment.of(records).endings())}


def draw_seeds(records: pd.DataFrame) -> dict[str, ChartType]:
    """All heads of all seeds in one panel per layer; and a panel per layer and seed."""
    alignment = Alignment.of(records)
    draw = partial(series_charts.heads, records, alignment.endings(), alignment.bound)
    return {"fig23": draw(), "fig23_seeds": draw(apart=True)}


def _first_seed(records: pd.DataFrame) -> pd.DataFrame:
    return select(records, seed=records["seed"].min())


STUDIES = tuple(
    declare("godey2024", name, **checkpoints.SERIES, measure=partial(measure, metrics), judge=judge, draw=draw)
    for name, metrics, judge, draw in (
        ("fig13", COSINES, judge_cosine, draw_cosine),
        ("fig14", (*COSINES, "query_key.dot"), judge_dot, draw_dot),
        ("fig23", COSINES, judge_seeds, draw_seeds),
    )
)
