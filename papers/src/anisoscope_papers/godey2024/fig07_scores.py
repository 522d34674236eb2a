"""Figure 7: scores move away from zero as the bias grows; pooled, and inside rows, which is all that softmax sees."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy.interpolate import PchipInterpolator

from anisoscope.charts import builders as charts
from anisoscope.store import as_records, select
from anisoscope_papers import study_charts
from anisoscope_papers.godey2024 import biased_block, norm_claims
from anisoscope_papers.godey2024.row_scores import EDGES, HISTOGRAMS
from anisoscope_papers.godey2024.untrained_models import label
from anisoscope_papers.judge import Array
from anisoscope_papers.study import Claim, Context, Verdict, declare

RMS = "attention.score_rms"
QUANTITIES = {
    RMS: "root mean square",
    "attention.score_spread": "spread, pooled",
    "attention.score_spread_within": "spread within rows",
}
MIDDLES = (EDGES[1:] + EDGES[:-1]) / 2
POINTS, FINEST, WIDE = 81, 12, 0.2
"""Curves: points, the smallest bin as a part of their reach, and the width of bins in asinh(score / unit)."""


def measure(settings: biased_block.BlockSettings, context: Context) -> pd.DataFrame:
    """Return records of attention scores (mean over heads) and their histograms.

    A histogram row counts scores in a shared bin, summed over seeds (component: `{N:g} {bin}`, where N is the norm of
    the bias).
    """
    records = biased_block.keep_last_block(
        biased_block.run_experiment(settings, context)
    )
    counted = records["metric"].isin(list(HISTOGRAMS))
    keys = [
        "model",
        "corpus",
        "stack",
        "kind",
        "layer",
        "site",
        "token_policy",
        "metric",
        "component",
    ]
    # All seeds share the edges of the bins, so that their counts add up.
    summed = records[counted].groupby(keys, sort=False)[["value"]].sum().reset_index()
    scores = select(
        records[~counted], metric=("attention.score", *QUANTITIES), head=None
    )
    return as_records(pd.concat([scores, as_records(summed)], ignore_index=True))


def judge_direction(claim: Claim, records: pd.DataFrame) -> Iterator[Verdict]:
    """Judge in which direction the mean attention score moves as the norm of the bias grows, seed by seed."""
    for curve in norm_claims.iter_curves(records, claim.metric, claim.site):
        yield norm_claims.judge_share(claim, curve)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw the distribution of scores at a few N (norm of the bias), pooled and inside rows, and their spread against N
    (last block).

    Returns {chart name: chart}.
    """
    rows = norm_claims.summarise(select(records, metric=tuple(QUANTITIES), head=None))
    rows["quantity"] = rows["metric"].map(QUANTITIES)
    # Scores of one reading of "initialised as BERT" can be a thousand times those of
    # another: each is drawn in units of its own size at N = 0.
    unit = select(rows, N=0.0, metric=RMS).set_index("model")["value"]
    pooled = []
    within = []
    all_pairs, in_rows = (_counts(records, metric) for metric in HISTOGRAMS)
    for system, by_norm in all_pairs.items():
        reading = f"{label(system)} · unit {unit[system]:.2g}"
        for n, binned in by_norm.items():
            pooled.append(
                compute_shares(binned, unit[system]).assign(N=n, reading=reading)
            )
    for system, by_norm in in_rows.items():
        # All curves of a system share the axis of the largest N, which reaches furthest.
        widest = find_reach(list(by_norm.values())[-1])
        for n, binned in by_norm.items():
            within.append(
                estimate_density(binned, widest).assign(N=n, reading=label(system))
            )
    lines = partial(
        charts.trajectory,
        x="score",
        series="N",
        panel="reading",
        size=(study_charts.WIDTH, 200),
    )
    within_titles = ("score less the mean of its row", "density / its peak")
    # Each panel has its own axis, as scores less their row's mean have no common unit.
    inside: ChartType = lines(pd.concat(within), titles=within_titles).resolve_scale(
        x="independent"
    )
    return {
        "fig7": lines(
            pd.concat(pooled), titles=("score / unit", "share per bin"), scale="symlog"
        ),
        "fig7_within": inside,
        "fig7_spread": study_charts.draw_against_norm(
            rows, series="quantity", title="scores (q·k × scale)", scale="log"
        ),
    }


def _counts(records: pd.DataFrame, metric: str) -> dict[str, dict[str, Array]]:
    """Return the histograms of a metric as {system: {"N = …": counts [bin]}}, N (norm of the bias) ascending."""
    rows = select(records, metric=metric)
    parts = (
        rows["component"].str.split(" ", expand=True).rename(columns={0: "N", 1: "bin"})
    )
    rows = rows.assign(
        N=parts["N"], at=parts["N"].astype(float), bin=parts["bin"].astype(int)
    )
    found: dict[str, dict[str, Array]] = {}
    # Sorted by number: as text, 10 would come before 3.162.
    for (system, n), group in rows.sort_values("at", kind="stable").groupby(
        ["model", "N"], sort=False
    ):
        counts = np.bincount(
            group["bin"], weights=group["value"].to_numpy(float), minlength=len(MIDDLES)
        )
        found.setdefault(str(system), {})[f"N = {n}"] = counts.astype(np.float64)
    return found


def compute_shares(counts: Array, unit: float) -> pd.DataFrame:
    """Convert a histogram of scores to bins that are equally wide on the drawn axis, asinh(score / unit).

    `counts` [bin]: how many scores lie between neighbouring `EDGES`; `unit`: the root mean square of the scores of the
    block whose input has no added bias. Returns the columns `score` (middle of a new bin) and `value` (its share).
    """
    # The share of scores below each edge; between edges it is taken to rise evenly.
    below = np.concatenate([[0.0], counts.cumsum()]) / counts.sum()
    ends = np.arcsinh(EDGES / unit)
    filled = np.flatnonzero(counts)
    # Two empty bins at either end, so that the curve comes down to 0.
    bins = np.arange(ends[filled[0]] - 2 * WIDE, ends[filled[-1] + 1] + 2 * WIDE, WIDE)
    height = np.diff(np.interp(bins, ends, below))
    return pd.DataFrame({"score": np.sinh((bins[1:] + bins[:-1]) / 2), "value": height})


def estimate_density(counts: Array, widest: float) -> pd.DataFrame:
    """Return a smooth density from −widest to widest, for counts [bin]: the slope of a monotone curve through their
    sums.

    Returns the columns `score` and `value` (1 at the peak).
    """
    below = np.concatenate([[0.0], counts.cumsum()])
    own = find_reach(counts)
    # Bins near 0 are so narrow that their few counts would make a rough slope: they are joined.
    kept = (np.abs(EDGES) > own / FINEST) | (EDGES == 0)
    near = np.linspace(-1, 1, POINTS) * min(own, widest)
    # A narrow distribution would fall between points that are spread over the whole
    # axis: half of the points lie within its own reach.
    at = np.union1d(np.linspace(-widest, widest, POINTS), near)
    # The cumulative counts rise, and so does a monotone curve through them: its slope
    # is a density that is nowhere negative.
    height = PchipInterpolator(EDGES[kept], below[kept]).derivative()(at)
    return pd.DataFrame({"score": at, "value": height / height.max()})


def find_reach(counts: Array) -> float:
    """Return the score that 99.5 % of the counts [bin] stay below in absolute value."""
    order = np.argsort(np.abs(MIDDLES), kind="stable")
    share = counts[order].cumsum() / counts.sum()
    return float(np.abs(MIDDLES)[order][np.searchsorted(share, 0.995)])


JUDGE = partial(
    norm_claims.judge, "fig7", {"seeds-differ-in-direction": judge_direction}
)
STUDY = declare(
    "godey2024",
    "fig7",
    **biased_block.OF_BLOCK,
    measure=measure,
    judge=JUDGE,
    draw=draw,
)
