"""Figure 7: scores move away from zero as the bias grows; pooled, and inside rows, which is all that softmax sees."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.chart_style import facet
from anisoscope.records import as_records, select
from anisoscope.studies._study import Claim, Context, Study, Verdict
from anisoscope.studies.godey2024 import _biased_block, _charts, _over_seeds
from anisoscope.studies.godey2024._scores import EDGES

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
    AWAY.name: "attention.score_rms",
    SPREAD.name: "attention.score_spread",
    WITHIN.name: "attention.score_spread_within",
}
QUANTITIES = {AWAY.name: "root mean square", SPREAD.name: "spread, pooled", WITHIN.name: "spread within rows"}
HISTOGRAMS = ("attention.score_histogram", "attention.score_histogram_within")
BIN = 0.2
"""Width of the bins drawn, in asinh(score / unit)."""


def measure(settings: _biased_block.Settings, context: Context) -> pd.DataFrame:
    """Records of scores; histograms are counts in shared bins, added over seeds (component: `{N:g} {bin}`)."""
    records = _biased_block.experiment(settings, context)
    counted = records["metric"].isin(HISTOGRAMS)
    keys = ["model", "corpus", "stack", "kind", "layer", "site", "token_policy", "metric", "component"]
    summed = records[counted].groupby(keys, sort=False)[["value"]].sum().reset_index()
    scores = select(records[~counted], metric=("attention.score", *TRENDS.values()))
    return as_records(pd.concat([scores, as_records(summed)], ignore_index=True))


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    verdicts = []
    for claim, metric in TRENDS.items():
        verdicts += [_over_seeds.judge_trend(claim, of, 1) for of in _over_seeds.curves(records, metric, "attention")]
    mean = _over_seeds.curves(records, "attention.score", "attention")
    return verdicts + [_over_seeds.judge_share(UPWARD.name, of) for of in mean]


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Histograms of scores at a few N, and their spread against N; of a stack, the last block."""
    last = records[records["layer"] == records["layer"].max()]
    rows = _over_seeds.summary(select(last, metric=tuple(TRENDS.values()), head=None))
    rows["quantity"] = rows["metric"].map({TRENDS[claim]: name for claim, name in QUANTITIES.items()})
    unit = rows[(rows["N"] == 0) & (rows["metric"] == TRENDS[AWAY.name])].set_index("model")["value"]
    return {
        "fig7": _histograms(select(last, metric="attention.score_histogram"), unit),
        "fig7_within": _histograms(select(last, metric="attention.score_histogram_within"), unit),
        "fig7_spread": _charts.against_norm(rows, series="quantity", title="scores (q·k × scale)", scale="log"),
    }


def _histograms(records: pd.DataFrame, unit: pd.Series) -> ChartType:
    """Share of scores per bin at each N, in units of the root mean square at N = 0, so that one axis fits all."""
    parts = records["component"].str.split(" ", expand=True)
    rows = records.assign(N=parts[0].astype(float), bin=parts[1].astype(int))
    outlines = []
    for _, of in rows.groupby(["model", "N"], sort=False):
        one, name = of.iloc[0], str(of["model"].iloc[0])
        reading = f"{_charts.label(name)} · unit {unit[name]:.2g}"
        outlines.append(_outline(of, float(unit[name])).assign(N=f"{one['N']:g}", reading=reading))
    data = pd.concat(outlines, ignore_index=True)
    names = sorted(data["N"].unique(), key=float)
    shades = ["#d55e00", "#9ecae1", "#5aa2cf", "#2171b5", "#08306b"]
    hue = alt.Color("N:N", scale=alt.Scale(domain=names, range=shades), legend=alt.Legend(title="N"))
    axis = alt.Axis(values=[-1000, -10, 0, 10, 1000], labelExpr=_charts.PLAIN)
    base = alt.Chart().encode(
        x=alt.X("score:Q", title="score / unit", scale=alt.Scale(type="symlog", constant=1, nice=False), axis=axis),
        y=alt.Y("share:Q", title="share per bin", stack=None),
        color=hue,
        order="score:Q",
    )
    layers = [base.mark_area(opacity=0.15, line=False), base.mark_line(strokeWidth=1.6)]
    return facet(layers, data, "reading", (_charts.WIDTH, _charts.HEIGHT), 2)


def _outline(rows: pd.DataFrame, unit: float) -> pd.DataFrame:
    """Shares in bins equally wide on the axis drawn, asinh(score / unit), by interpolating the distribution."""
    counts = np.bincount(rows["bin"], weights=rows["value"], minlength=len(EDGES) - 1)
    below = np.concatenate([[0.0], counts.cumsum()]) / counts.sum()
    ends = np.arcsinh(EDGES / unit)
    filled = ends[[np.flatnonzero(counts)[0], np.flatnonzero(counts)[-1] + 1]]
    bins = np.arange(filled[0] - 2 * BIN, filled[1] + 2 * BIN, BIN)
    share = np.diff(np.interp(bins, ends, below))
    return pd.DataFrame({"score": np.sinh((bins[1:] + bins[:-1]) / 2), "share": share})


STUDY = Study(
    name="fig7",
    paper="godey2024",
    title="Scores before the softmax as the norm of the bias grows",
    claims=(AWAY, SPREAD, WITHIN, UPWARD),
    settings=_biased_block.SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "Scores of the untrained block of figure 6, all heads and seeds together, in units of their root mean square "
        "at N = 0; the axis is linear near 0, then logarithmic. Softmax ignores what is constant in a row: the second "
        "chart shows scores less the mean of their row."
    ),
)
