"""Figure 7: scores move away from zero as the bias grows; pooled, and inside rows, which is all that softmax sees."""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy.interpolate import PchipInterpolator

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
MIDDLES = (EDGES[1:] + EDGES[:-1]) / 2
POINTS = 201
"""Points of a curve drawn, beside the bins themselves."""


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
    """Densities of scores at a few N, and their spread against N; of a stack, the last block."""
    last = records[records["layer"] == records["layer"].max()]
    rows = _over_seeds.summary(select(last, metric=tuple(TRENDS.values()), head=None))
    rows["quantity"] = rows["metric"].map({TRENDS[claim]: name for claim, name in QUANTITIES.items()})
    titles = ("score (q·k × scale)", "score less the mean of its row")
    drawn = zip(("fig7", "fig7_within"), HISTOGRAMS, titles, strict=True)
    return {name: _densities(select(last, metric=metric), title) for name, metric, title in drawn} | {
        "fig7_spread": _charts.against_norm(rows, series="quantity", title="scores (q·k × scale)", scale="log")
    }


def _densities(records: pd.DataFrame, title: str) -> ChartType:
    """The density at each N relative to its peak, on an axis of its own per system."""
    parts = records["component"].str.split(" ", expand=True)
    rows = records.assign(N=parts[0].astype(float), bin=parts[1].astype(int))
    outlines = []
    for system, of_system in rows.groupby("model", sort=False):
        reach = _reach(of_system[of_system["N"] == of_system["N"].max()])
        for norm, of in of_system.groupby("N"):
            outlines.append(_density(of, reach).assign(N=f"{norm:g}", reading=_charts.label(str(system))))
    data = pd.concat(outlines, ignore_index=True)
    names = sorted(data["N"].unique(), key=float)
    shades = ["#d55e00", "#9ecae1", "#5aa2cf", "#2171b5", "#08306b"]
    base = alt.Chart().encode(
        x=alt.X("score:Q", title=title, scale=alt.Scale(nice=False, zero=False), axis=alt.Axis(tickCount=5)),
        y=alt.Y("height:Q", title="density / its peak", axis=alt.Axis(tickCount=3)),
        color=alt.Color("N:N", scale=alt.Scale(domain=names, range=shades), legend=alt.Legend(title="N")),
        order="score:Q",
    )
    panels = facet([base.mark_line(strokeWidth=1.6)], data, "reading", (_charts.WIDTH, _charts.HEIGHT), 2)
    chart: ChartType = panels.resolve_scale(x="independent")
    return chart


def _reach(rows: pd.DataFrame) -> float:
    """The score that 99.5 % of all scores stay below in size."""
    size = np.abs(MIDDLES[rows["bin"]])
    order = np.argsort(size)
    share = rows["value"].to_numpy()[order].cumsum() / rows["value"].sum()
    return float(size[order][np.searchsorted(share, 0.995)])


def _density(rows: pd.DataFrame, reach: float) -> pd.DataFrame:
    """Slope of a monotone curve through the distribution at the edges of bins, from −reach to reach."""
    counts = np.bincount(rows["bin"], weights=rows["value"], minlength=len(MIDDLES))
    below = np.concatenate([[0.0], counts.cumsum()]) / counts.sum()
    at = np.union1d(np.linspace(-reach, reach, POINTS), MIDDLES[(counts > 0) & (np.abs(MIDDLES) < reach)])
    height = PchipInterpolator(EDGES, below).derivative()(at)
    return pd.DataFrame({"score": at, "height": height / height.max()})


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
        "Scores of the untrained block of figure 6, all heads and seeds together; every density is drawn relative to "
        "its peak. Softmax ignores what is constant in a row: the second chart shows scores less the mean of their row."
    ),
)
