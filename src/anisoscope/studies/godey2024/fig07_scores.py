"""Figure 7: scores move away from zero as the bias grows; pooled, and inside rows, which is all that softmax sees."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy.interpolate import PchipInterpolator

from anisoscope.charts import norm_charts
from anisoscope.charts.style import facet
from anisoscope.store import as_records, select
from anisoscope.studies.godey2024 import biased_block, norm_claims
from anisoscope.studies.godey2024.row_scores import EDGES, Array
from anisoscope.studies.godey2024.untrained_models import label
from anisoscope.studies.study import Claim, Context, Study, Verdict

SOURCE = "Godey et al. 2024, section 4.2, figure 7"
AWAY = Claim("scores-away-from-zero", "Scores move away from 0 as N grows (root mean square over all pairs)", SOURCE)
SPREAD = Claim("pooled-spread-grows", "The spread of all scores of a head grows with N", SOURCE)
WITHIN = Claim(
    "spread-within-rows-grows", "The spread of scores inside a row, which softmax sees, grows with N", SOURCE
)
UPWARD = Claim(
    "seeds-differ-in-direction",
    "Which way the scores move depends on the initialisation: some seeds upward, some downward",
    SOURCE,
)
TRENDS = {
    AWAY: "attention.score_rms",
    SPREAD: "attention.score_spread",
    WITHIN: "attention.score_spread_within",
}
QUANTITIES = {AWAY: "root mean square", SPREAD: "spread, pooled", WITHIN: "spread within rows"}
HISTOGRAMS = ("attention.score_histogram", "attention.score_histogram_within")
MIDDLES = (EDGES[1:] + EDGES[:-1]) / 2
POINTS, FINEST, WIDE = 81, 12, 0.2
"""Curves: points, the smallest bin as a part of their reach, and the width of bins in asinh(score / unit)."""
SHADES = ("#d55e00", "#9ecae1", "#5aa2cf", "#2171b5", "#08306b")


def measure(settings: biased_block.BlockSettings, context: Context) -> pd.DataFrame:
    """Records of scores; histograms are counts in shared bins, added over seeds (component: `{N:g} {bin}`)."""
    records = biased_block.experiment(settings, context)
    counted = records["metric"].isin(HISTOGRAMS)
    keys = ["model", "corpus", "stack", "kind", "layer", "site", "token_policy", "metric", "component"]
    summed = records[counted].groupby(keys, sort=False)[["value"]].sum().reset_index()
    scores = select(records[~counted], metric=("attention.score", *TRENDS.values()))
    scores = scores[scores["head"].isna() | (scores["metric"] != TRENDS[AWAY])]  # of a head: mean² + spread²
    return as_records(pd.concat([scores, as_records(summed)], ignore_index=True))


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    verdicts = []
    for claim, metric in TRENDS.items():
        verdicts += [
            norm_claims.judge_trend(claim, curve, 1) for curve in norm_claims.curves(records, metric, "attention")
        ]
    mean = norm_claims.curves(records, "attention.score", "attention")
    return verdicts + [norm_claims.judge_share(UPWARD, curve) for curve in mean]


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Where scores lie at a few N, pooled and inside rows, and their spread against N; of a stack, the last block."""
    last = records[records["layer"] == records["layer"].max()]
    rows = norm_claims.summary(select(last, metric=tuple(TRENDS.values()), head=None))
    rows["quantity"] = rows["metric"].map({TRENDS[claim]: name for claim, name in QUANTITIES.items()})
    start = rows[(rows["N"] == 0) & (rows["metric"] == TRENDS[AWAY])]
    unit = {str(model): float(value) for model, value in zip(start["model"], start["value"], strict=True)}
    return {
        "fig7": _draw_pooled(_counts(select(last, metric=HISTOGRAMS[0])), unit),
        "fig7_within": _draw_within(_counts(select(last, metric=HISTOGRAMS[1]))),
        "fig7_spread": norm_charts.against_norm(rows, series="quantity", title="scores (q·k × scale)", scale="log"),
    }


Counts = dict[str, dict[float, Array]]
"""{system: {N: counts [bin]}}"""


def _counts(records: pd.DataFrame) -> Counts:
    parts = records["component"].str.split(" ", expand=True)
    rows = records.assign(N=parts[0].astype(float), bin=parts[1].astype(int))
    found: Counts = {}
    for _, group in rows.groupby(["model", "N"], sort=False):
        counts: Array = np.bincount(
            group["bin"], weights=group["value"].to_numpy(float), minlength=len(MIDDLES)
        ).astype(np.float64)
        found.setdefault(str(group["model"].iloc[0]), {})[float(group["N"].iloc[0])] = counts
    return found


def _draw_pooled(counts: Counts, unit: dict[str, float]) -> ChartType:
    """Share of all scores per bin, in units of the root mean square at N = 0: away from 0 is sideways."""
    parts = []
    for system, by_norm in counts.items():
        reading = f"{label(system)} · unit {unit[system]:.2g}"
        parts += [
            shares(binned, unit[system]).assign(N=f"{norm:g}", reading=reading) for norm, binned in by_norm.items()
        ]
    axis = alt.Axis(values=[-1000, -10, 0, 10, 1000], labelExpr=norm_charts.PLAIN)
    x = alt.X("score:Q", title="score / unit", scale=alt.Scale(type="symlog", constant=1, nice=False), axis=axis)
    return _lines(pd.concat(parts, ignore_index=True), x, "share per bin")


def _draw_within(counts: Counts) -> ChartType:
    """Density of scores less the mean of their row, relative to its peak, on an axis of its own per system."""
    parts = []
    for system, by_norm in counts.items():
        widest = reach(by_norm[max(by_norm)])
        reading = label(system)
        parts += [density(binned, widest).assign(N=f"{norm:g}", reading=reading) for norm, binned in by_norm.items()]
    scale = alt.Scale(nice=False, zero=False)
    x = alt.X("score:Q", title="score less the mean of its row", scale=scale, axis=alt.Axis(tickCount=5))
    chart: ChartType = _lines(pd.concat(parts, ignore_index=True), x, "density / its peak").resolve_scale(
        x="independent"
    )
    return chart


def _lines(data: pd.DataFrame, x: alt.X, title: str) -> ChartType:
    names = sorted(data["N"].unique(), key=float)
    base = alt.Chart().encode(
        x=x,
        y=alt.Y("height:Q", title=title, axis=alt.Axis(tickCount=3)),
        color=alt.Color("N:N", scale=alt.Scale(domain=names, range=SHADES), legend=alt.Legend(title="N")),
        order="score:Q",
    )
    return facet([base.mark_line(strokeWidth=1.6)], data, "reading", (norm_charts.WIDTH, norm_charts.HEIGHT), 2)


def shares(counts: Array, unit: float) -> pd.DataFrame:
    """Share of counts [bin] in bins that are equally wide in asinh(score / unit), the axis drawn."""
    below = np.concatenate([[0.0], counts.cumsum()]) / counts.sum()
    ends = np.arcsinh(EDGES / unit)
    filled = np.flatnonzero(counts)
    bins = np.arange(ends[filled[0]] - 2 * WIDE, ends[filled[-1] + 1] + 2 * WIDE, WIDE)
    height = np.diff(np.interp(bins, ends, below))
    return pd.DataFrame({"score": np.sinh((bins[1:] + bins[:-1]) / 2), "height": height})


def density(counts: Array, widest: float) -> pd.DataFrame:
    """Slope of a monotone curve through the distribution of counts [bin], from −widest to widest."""
    below = np.concatenate([[0.0], counts.cumsum()]) / counts.sum()
    own = reach(counts)
    kept = (np.abs(EDGES) > own / FINEST) | (EDGES == 0)
    near = np.linspace(-1, 1, POINTS) * min(own, widest)
    at = np.union1d(np.linspace(-widest, widest, POINTS), near)
    height = PchipInterpolator(EDGES[kept], below[kept]).derivative()(at)
    return pd.DataFrame({"score": at, "height": height / height.max()})


def reach(counts: Array) -> float:
    """The score that 99.5 % of counts [bin] stay below in size."""
    order = np.argsort(np.abs(MIDDLES), kind="stable")
    share = counts[order].cumsum() / counts.sum()
    return float(np.abs(MIDDLES)[order][np.searchsorted(share, 0.995)])


STUDY = Study(
    name="fig7",
    paper="godey2024",
    title="Scores before the softmax as the norm of the bias grows",
    claims=(AWAY, SPREAD, WITHIN, UPWARD),
    settings=biased_block.SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "Scores of the untrained block of figure 6, all heads and seeds together, in units of their root mean square "
        "at N = 0 (axis linear near 0, then logarithmic). Softmax ignores what is constant in a row: the second chart "
        "shows scores less the mean of their row, each density relative to its peak."
    ),
)
