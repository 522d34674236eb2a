"""Charts of the biased block: a quantity against the norm N of the bias, from N = 0, over five decades."""

from typing import Literal

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.style import INK, between, colour, facet, level, ribbon, shape

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
    below: tuple[alt.Chart, ...] = (),
    above: tuple[alt.Chart, ...] = (),
) -> ChartType:
    """Lines of `value` against `N` with the interval over seeds (`low`, `high`); `reading` names the system.

    Where rows have `lowest` and `highest`, the range over heads and seeds, it is a paler band. `line` is a dashed
    height and its name; `below` and `above` are layers drawn under and over the lines.
    """
    order, numbers = frame[series], [k for k in ("value", "low", "high", "lowest", "highest") if k in frame]
    kept = [panel or series, series, "N", *numbers, *(k for k in ("at", "at_value", "at_text") if k in frame)]
    data = frame[list(dict.fromkeys(kept))].sort_values("N", kind="stable")
    ticks = alt.Axis(tickCount=5)
    if scale == "log":
        data[numbers] = data[numbers].where(data[numbers] > 0)
        ticks = alt.Axis(values=_powers(data[numbers]), labelExpr=PLAIN)
    height = alt.Y("value:Q", title=title, scale=alt.Scale(type=scale, zero=zero, nice=scale == "linear"), axis=ticks)
    base = alt.Chart().transform_filter("isValid(datum.N)").encode(x=norm_axis(), color=colour(order, series, WIDTH))
    layers = [
        *below,
        *([ribbon(base, title, "lowest", "highest", opacity=0.12)] if "lowest" in data else []),
        ribbon(base, title, opacity=0.25),
        *(level(line[0], title, line[1]) if line else []),
        base.mark_line().encode(y=height),
        base.mark_point(size=30).encode(y=height, shape=shape(order, series, WIDTH)),
        *above,
    ]
    return facet(layers, data, panel, (WIDTH, HEIGHT), 2)


def norm_axis(field: str = "N:Q") -> alt.X:
    """The axis of N."""
    scale = alt.Scale(type="symlog", constant=_NEAR_ZERO, nice=False)
    return alt.X(field, title=BIAS, scale=scale, axis=alt.Axis(values=_TICKS, labelExpr=PLAIN))


def _powers(values: pd.DataFrame) -> list[float]:
    """Powers of ten inside the range of the values; fewer where there are many."""
    logs = np.log10(values.to_numpy(float))
    powers = range(int(np.ceil(np.nanmin(logs))), int(np.floor(np.nanmax(logs))) + 1)
    return [float(f"1e{k}") for k in powers[:: 1 + len(powers) // 7]]


def norms(
    frame: pd.DataFrame, found: pd.DataFrame, *, title: str, trained: tuple[float, float] | None = None
) -> ChartType:
    """Norms of input and output on a logarithmic axis, the range of trained norms as a grey band, and rings at the
    fixed points `found`: `reading`, `at` (N*), `at_value` (the norm there), `at_text`.
    """
    below = (between(*trained, title, opacity=0.16),) if trained else ()
    rows = pd.concat([frame, found.assign(place=frame["place"].iloc[0])], ignore_index=True)
    base = alt.Chart().transform_filter("isValid(datum.at)")
    base = base.encode(x=norm_axis("at:Q"), y=alt.Y("at_value:Q", title=title))
    ring = base.mark_point(filled=False, size=110, strokeWidth=2, color=INK, shape="circle")
    text = base.mark_text(align="right", dx=-9, dy=-12, color=INK, fontSize=11).encode(text="at_text:N")
    return against_norm(rows, series="place", title=title, scale="log", below=below, above=(ring, text))
