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
from anisoscope.studies.godey2024.series_claims import Alignment, Array, heads_above, per_seed, table
from anisoscope.studies.judge import judged, of_seeds
from anisoscope.studies.study import SHARE, SIGNED, Claim, Context, Study, Verdict

COSINE, DOT = "Godey et al. 2024, section 5, figure 13", "Godey et al. 2024, section 5, figure 14"
SEEDS = "Godey et al. 2024, appendix D, figure 23"
ALMOST_ALL = 0.9
GROWS = Claim(
    "cosine-grows", "|cos(Q̄, K̄)| is larger at the end than at step 0, in the mean over heads", COSINE, bounds=SIGNED
)
ALMOST = Claim(
    "almost-all-heads", f"It is larger for almost all heads (more than {ALMOST_ALL:.0%} of them)", COSINE, bounds=SHARE
)
ALIGNED = Claim(
    "aligned-at-the-end", "At the end |cos(Q̄, K̄)| lies above q95(d_head), in the mean over heads", COSINE, bounds=SHARE
)
FIRST = Claim(
    "first-layer-positive", "In the first layer cos(Q̄, K̄) ends positive, in the mean over heads", COSINE, bounds=SIGNED
)
LAST = Claim(
    "last-layer-negative", "In the last layer cos(Q̄, K̄) ends negative, in the mean over heads", COSINE, bounds=SIGNED
)
DEPTH = Claim(
    "sign-falls-with-depth",
    "cos(Q̄, K̄) falls with depth (Spearman over layers, means over heads)",
    COSINE,
    bounds=SIGNED,
)
DOT_GROWS = Claim("dot-grows", "|Q̄·K̄| grows along training (log ratio of the end to step 0, mean over heads)", DOT)
SAME_TRENDS = Claim(
    "same-trends-over-seeds",
    "Mean |cos(Q̄, K̄)| by layer and step is alike over seeds (correlation of each with the mean of the others)",
    SEEDS,
)
SAME_SIGNS = Claim(
    "same-signs-over-seeds",
    "Mean cos(Q̄, K̄) by layer at the end is alike over seeds (correlation of each with the mean of the others)",
    SEEDS,
)


def measure(metrics: Sequence[str], series: checkpoints.CheckpointSettings, context: Context) -> pd.DataFrame:
    """The named metrics of every head at every checkpoint."""
    records = checkpoints.records_of(checkpoints.measure(series, context))
    return select(records, metric=metrics, site="query.raw").reset_index(drop=True)


def judge_cosine(records: pd.DataFrame) -> list[Verdict]:
    alignment = Alignment.of(records)
    size = np.abs(alignment.cosine)
    first, last = size[:, 0], size[:, -1]
    above = "; ".join(f"seed {s}: {k} of {n} heads above (over documents, Holm)" for s, k, n in heads_above(records))
    by_layer = alignment.cosine[:, -1].mean(-1)  # [seed, layer]
    tests = [
        of_seeds(GROWS, (last - first).mean((1, 2)), "change of |cos|", reason=f"at step 0 {first.mean():.3f}"),
        of_seeds(ALMOST, (last > first).mean((1, 2)), "share of heads", ALMOST_ALL),
        of_seeds(ALIGNED, last.mean((1, 2)), "|cos| at the end", alignment.bound, reason=above),
        of_seeds(FIRST, by_layer[:, 0], "cos in the first layer"),
        of_seeds(LAST, by_layer[:, -1], "cos in the last layer", below=True),
    ]
    if by_layer.shape[1] > 2:
        rho = np.array([stats.spearmanr(np.arange(len(x)), x).statistic for x in by_layer])
        reason = f"{by_layer.shape[1]} layers: " + ", ".join(f"{x:+.2f}" for x in by_layer.mean(0)).replace("-", "−")
        tests.append(of_seeds(DEPTH, rho, "Spearman's ρ", below=True, reason=reason))
    return judged(tests)


def judge_dot(records: pd.DataFrame) -> list[Verdict]:
    """Judge the growth of the scalar product: of heads that end similar, of those that end opposite, and of all."""
    dots, ending = np.abs(table(records, "query_key.dot", "query.raw").values), Alignment.of(records).ending()
    growth = np.log(dots[:, -1] / dots[:, 0])
    groups = {"similar": ending == 1, "opposite": ending == -1, "all heads": np.ones_like(ending, bool)}
    return judged(
        [
            of_seeds(
                DOT_GROWS,
                per_seed(growth, heads),
                "log ratio",
                reason=f"{int(heads.sum())} heads of {len(heads)} seeds",
                subject=name,
            )
            for name, heads in groups.items()
        ]
    )


def judge_seeds(records: pd.DataFrame) -> list[Verdict]:
    """Each seed against the mean of the others, by Fisher's z."""
    cosine = Alignment.of(records).cosine
    curves, profile = np.abs(cosine).mean(-1), cosine[:, -1].mean(-1)
    both = ((SAME_TRENDS, curves.reshape(len(curves), -1)), (SAME_SIGNS, profile))
    tests = []
    for claim, rows in both:
        r = _with_others(rows)
        reason = "r by seed: " + ", ".join(f"{x:.2f}" for x in r)
        tests.append(of_seeds(claim, np.arctanh(np.clip(r, -0.9999, 0.9999)), "Fisher's z", reason=reason))
    return judged(tests)


def _with_others(rows: Array) -> Array:
    """Correlation of each row [seed, place] with the mean of the others; NaN where there is no other."""
    if len(rows) < 2 or rows.shape[1] < 3:
        return np.full(len(rows), np.nan)
    return np.array([np.corrcoef(x, np.delete(rows, i, 0).mean(0))[0, 1] for i, x in enumerate(rows)])


def draw_cosine(records: pd.DataFrame) -> dict[str, ChartType]:
    return {"fig13": series_charts.heads(_first_seed(records), Alignment.of(records), "query_key.cosine")}


def draw_dot(records: pd.DataFrame) -> dict[str, ChartType]:
    return {"fig14": series_charts.products(_first_seed(records), Alignment.of(records))}


def draw_seeds(records: pd.DataFrame) -> dict[str, ChartType]:
    """All heads of all seeds in one panel per layer; and a panel per layer and seed."""
    alignment = Alignment.of(records)
    return {
        "fig23": series_charts.heads(records, alignment, "query_key.cosine"),
        "fig23_seeds": series_charts.heads(records, alignment, "query_key.cosine", apart=True),
    }


def _first_seed(records: pd.DataFrame) -> pd.DataFrame:
    first: pd.DataFrame = records[records["seed"] == records["seed"].min()]
    return first


COLOURS = "Lines: heads, coloured by how their means end (above q95(d_head), below −q95, or neither: dashed lines)."
KEPT = ("query_key.cosine", "mean_cosine.isotropic_q95")
STUDIES = (
    Study(
        name="fig13",
        paper="godey2024",
        title="Cosine of the mean query and the mean key of every head along training",
        claims=(GROWS, ALMOST, ALIGNED, FIRST, LAST, DEPTH),
        settings=checkpoints.SETTINGS,
        measure=partial(measure, KEPT),
        judge=judge_cosine,
        draw=draw_cosine,
        caption=f"First seed. {COLOURS} Verdicts are over seeds, Holm over the claims of the figure.",
        needs=checkpoints.NEEDS,
    ),
    Study(
        name="fig14",
        paper="godey2024",
        title="Scalar product of the mean query and the mean key along training",
        claims=(DOT_GROWS,),
        settings=checkpoints.SETTINGS,
        measure=partial(measure, (*KEPT, "query_key.dot")),
        judge=judge_dot,
        draw=draw_dot,
        caption="First seed; heads whose means end similar, and opposite, against q95(d_head). Before scaling.",
        needs=checkpoints.NEEDS,
    ),
    Study(
        name="fig23",
        paper="godey2024",
        title="Cosine of the mean query and the mean key along training, over seeds",
        claims=(SAME_TRENDS, SAME_SIGNS),
        settings=checkpoints.SETTINGS,
        measure=partial(measure, KEPT),
        judge=judge_seeds,
        draw=draw_seeds,
        caption=f"{COLOURS} First all heads of all seeds, then seed by seed.",
        needs=checkpoints.NEEDS,
    ),
)
