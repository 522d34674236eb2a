"""Charts of the biased block: a quantity against the norm N of the bias, from N = 0, over five decades."""

from typing import Literal

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.style import INK, MUTED, colour, facet, shape

BIAS = "norm N of the bias"
WIDTH, HEIGHT = 640, 200
PLAIN = "datum.value == 0 || abs(datum.value) >= 0.001 ? toString(datum.value) : format(datum.value, '.0e')"
_TICKS = [0, 0.1, 1, 10, 100]
_NEAR_ZERO = 0.1
"""The axis of N is linear below this, logarithmic above."""

ScaleName = Literal["linear", "log"]


def against_norm(
    frame: pd.DataFrame,
    *,
    series: str,
    title: str,
    panel: str | None = "reading",
    scale: ScaleName = "linear",
    zero: bool = False,
    line: tuple[float, str] | None = None,
    columns: int = 2,
    below: tuple[alt.Chart, ...] = (),
    above: tuple[alt.Chart, ...] = (),
) -> ChartType:
    """Lines of `value` against `N` with the interval over seeds (`low`, `high`); `reading` names the system.

    Where rows have `lowest` and `highest`, the range over heads and seeds, it is a paler band. `line` is a dashed
    height and its name; `below` and `above` are layers drawn under and over the lines.
    """
    data, order = frame, frame[series]
    numbers = [key for key in ("value", "low", "high", "lowest", "highest") if key in data]
    marks = [key for key in ("at", "at_value", "at_text") if key in data]
    data = data[list(dict.fromkeys([panel or series, series, "N", *numbers, *marks]))].sort_values("N", kind="stable")
    if scale == "log":
        data[numbers] = data[numbers].where(data[numbers] > 0)
    height = alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(type=scale, zero=zero, nice=scale == "linear"),
        axis=alt.Axis(values=_powers(data[numbers]), labelExpr=PLAIN) if scale == "log" else alt.Axis(tickCount=5),
    )
    base = alt.Chart().transform_filter("isValid(datum.N)").encode(x=norm_axis(), color=colour(order, series, WIDTH))
    layers = [_band(base, "lowest", "highest", title, 0.12)] if "lowest" in data else []
    layers += [_band(base, "low", "high", title, 0.25), *(_height(*line, title) if line else [])]
    layers += [base.mark_line().encode(y=height)]
    layers += [base.mark_point(size=30).encode(y=height, shape=shape(order, series, WIDTH))]
    return facet([*below, *layers, *above], data, panel, (WIDTH, HEIGHT), columns)


def norm_axis(field: str = "N:Q") -> alt.X:
    """The axis of N."""
    scale = alt.Scale(type="symlog", constant=_NEAR_ZERO, nice=False)
    return alt.X(field, title=BIAS, scale=scale, axis=alt.Axis(values=_TICKS, labelExpr=PLAIN))


def _powers(values: pd.DataFrame) -> list[float]:
    """Powers of ten inside the range of the values; fewer where there are many."""
    logs = np.log10(values.to_numpy(float))
    powers = range(int(np.ceil(np.nanmin(logs))), int(np.floor(np.nanmax(logs))) + 1)
    return [float(f"1e{k}") for k in powers[:: 1 + len(powers) // 7]]


def _band(base: alt.Chart, low: str, high: str, title: str, opacity: float) -> alt.Chart:
    area: alt.Chart = base.transform_filter(f"isValid(datum.{low})").mark_area(opacity=opacity)
    return area.encode(y=alt.Y(f"{low}:Q", title=title), y2=f"{high}:Q")


def _height(value: float, name: str, title: str) -> list[alt.Chart]:
    """A dashed line across, named at its right end."""
    at = alt.Chart().transform_aggregate(rows="count()").transform_calculate(at=str(value), name=f"'{name}'")
    rule = at.mark_rule(strokeDash=[4, 3], color=MUTED).encode(y=alt.Y("at:Q", title=title))
    text = at.mark_text(align="right", baseline="bottom", dx=-3, dy=-3, color=MUTED, fontSize=10)
    return [rule, text.encode(y=alt.Y("at:Q", title=title), x=alt.value("width"), text="name:N")]


def norms(
    frame: pd.DataFrame, found: pd.DataFrame, *, title: str, trained: tuple[float, float] | None = None
) -> ChartType:
    """Norms of input and output on a logarithmic axis, the range of trained norms as a grey band, and rings at the
    fixed points `found`: `reading`, `at` (N*), `at_value` (the norm there), `at_text`.
    """
    below: tuple[alt.Chart, ...] = ()
    if trained is not None:
        ends = {"low": str(trained[0]), "high": str(trained[1])}
        at = alt.Chart().transform_aggregate(rows="count()").transform_calculate(**ends)
        below = (at.mark_rect(color=MUTED, opacity=0.16).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),)
    rows = pd.concat([frame, found.assign(place=frame["place"].iloc[0])], ignore_index=True)
    return against_norm(rows, series="place", title=title, scale="log", below=below, above=_rings(title))


def _rings(title: str) -> tuple[alt.Chart, ...]:
    base = alt.Chart().transform_filter("isValid(datum.at)").encode(y=alt.Y("at_value:Q", title=title))
    ring = base.mark_point(filled=False, size=110, strokeWidth=2, color=INK, shape="circle").encode(x=norm_axis("at:Q"))
    text = base.mark_text(align="right", dx=-9, dy=-12, color=INK, fontSize=11)
    return ring, text.encode(x=norm_axis("at:Q"), text="at_text:N")
