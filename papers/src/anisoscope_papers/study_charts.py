"""Draw charts that only one study needs: the biased block by N, distributions and tests, ranges over classes, texts."""

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.style import (
    INK,
    MUTED,
    Scale,
    between,
    colour,
    facet,
    level,
    list_distinct,
    ribbon,
    shape,
    whisker,
)

WIDTH, HEIGHT = 640, 200
# Numbers as they are written, but 1e-4 for small ones: rows of zeros cannot be read.
PLAIN = "datum.value == 0 || abs(datum.value) >= 0.001 ? toString(datum.value) : format(datum.value, '.0e')"
SMALLEST_DRAWN = 1e-7
"""Smaller p (0 if ranks agree entirely) are drawn here."""


def draw_against_norm(
    frame: pd.DataFrame,
    *,
    series: str,
    title: str,
    scale: Scale = "linear",
    zero: bool = False,
    line: tuple[float, str] | None = None,
    below: tuple[alt.Chart, ...] = (),
    above: tuple[alt.Chart, ...] = (),
) -> ChartType:
    """Draw lines of `value` against `N` (norm of the bias) with intervals over seeds, a panel per system (`reading`).

    `frame` has columns `low` and `high`, the interval. If there are columns `lowest` and `highest`, the range over
    heads and seeds, they are drawn as a paler band.

    series        the column that tells the lines of a panel apart
    title, zero   of the vertical axis, and whether it includes 0
    line          a dashed height and its name
    below, above  layers drawn under and over the lines
    """
    order = frame[series]
    numbers = [k for k in ("value", "low", "high", "lowest", "highest") if k in frame]
    # Records hold many more columns: every row that is drawn is written into the page.
    # The last three are of fixed points (`draw_norms`).
    columns = ("reading", series, "N", *numbers, "at", "at_value", "at_text")
    # Each once: a chart without panels has its readings as series.
    kept = [name for name in dict.fromkeys(columns) if name in frame]
    data = frame[kept].sort_values("N", kind="stable")
    ticks = alt.Axis(tickCount=5)
    if scale == "log":
        # A logarithmic axis has no place for 0: such points are left out.
        data[numbers] = data[numbers].where(data[numbers] > 0)
        ticks = alt.Axis(values=_list_powers(data[numbers]), labelExpr=PLAIN)
    height = alt.Y(
        "value:Q",
        title=title,
        scale=alt.Scale(type=scale, zero=zero, nice=scale == "linear"),
        axis=ticks,
    )
    base = (
        alt.Chart()
        # Rows of fixed points have no N.
        .transform_filter("isValid(datum.N)")
        .encode(x=_make_norm_axis(), color=colour(order, series, WIDTH))
    )
    ranges = []
    if "lowest" in data:
        ranges.append(ribbon(base, title, "lowest", "highest", opacity=0.12))
    lines = []
    if line:
        height_of_line, name = line
        lines += level(height_of_line, title, name)
    # From the lowest layer to the topmost: bands must not cover lines and points.
    layers = [
        *below,
        *ranges,
        ribbon(base, title, opacity=0.25),
        *lines,
        base.mark_line().encode(y=height),
        base.mark_point(size=30).encode(y=height, shape=shape(order, series, WIDTH)),
        *above,
    ]
    return facet(
        layers, data, None if series == "reading" else "reading", (WIDTH, HEIGHT), 2
    )


def _make_norm_axis(field: str = "N:Q") -> alt.X:
    """Return the horizontal axis of N (norm of the bias), linear below 0.1, logarithmic above, for a field of the
    chart's data.
    """
    # N = 0 is the block as it is initialised: the axis must reach it.
    scale = alt.Scale(type="symlog", constant=0.1, nice=False)
    axis = alt.Axis(values=[0, 0.1, 1, 10, 100], labelExpr=PLAIN)
    return alt.X(field, title="norm N of the bias", scale=scale, axis=axis)


def _list_powers(values: pd.DataFrame) -> list[float]:
    """Return the powers of ten inside the range of the values; fewer of them if there are many."""
    logs = np.log10(values.to_numpy(float))
    powers = range(int(np.ceil(np.nanmin(logs))), int(np.floor(np.nanmax(logs))) + 1)
    # At most about seven labels on an axis of this height.
    return [float(f"1e{k}") for k in powers[:: 1 + len(powers) // 7]]


def draw_norms(
    frame: pd.DataFrame,
    found: pd.DataFrame,
    *,
    title: str,
    trained: tuple[float, float] | None = None,
) -> ChartType:
    """Draw norms of input and output against N (norm of the bias) on a logarithmic axis, with rings at the fixed
    points.

    `trained`: the range of trained norms, drawn as a grey band. `found`: a row per fixed point, with `reading`, `at`
    (N*), `at_value` (the norm there), `at_text`.
    """
    below = (between(*trained, title, opacity=0.16),) if trained else ()
    # One table for curves and fixed points, as a chart with panels can have only one.
    rows = pd.concat(
        [frame, found.assign(place=frame["place"].iloc[0])], ignore_index=True
    )
    base = alt.Chart().transform_filter("isValid(datum.at)")
    base = base.encode(x=_make_norm_axis("at:Q"), y=alt.Y("at_value:Q", title=title))
    ring = base.mark_point(
        filled=False, size=110, strokeWidth=2, color=INK, shape="circle"
    )
    text = base.mark_text(align="right", dx=-9, dy=-12, color=INK, fontSize=11).encode(
        text="at_text:N"
    )
    return draw_against_norm(
        rows, series="place", title=title, scale="log", below=below, above=(ring, text)
    )


def draw_p_values(data: pd.DataFrame, level: float) -> ChartType:
    """Draw a row per `system`: `p` as a point, `p_scipy` as a cross, `p_smallest` as a bar, and a line at the p
    `level`.
    """
    # A p of 0 has no place on a logarithmic axis.
    data = data.assign(p_scipy=data["p_scipy"].clip(lower=SMALLEST_DRAWN))
    order = list(data["system"])
    across = alt.Scale(type="log", nice=False, domain=[SMALLEST_DRAWN / 2, 1.2])
    names = alt.Y(
        "system:N", sort=order, title=None, axis=alt.Axis(labelLimit=260, ticks=False)
    )
    base = alt.Chart(data).encode(y=names)

    def at(field: str) -> alt.X:
        """Return the horizontal axis for a column of p (`field`)."""
        return alt.X(
            f"{field}:Q",
            title="p (log scale)",
            scale=across,
            axis=alt.Axis(format=".1g", tickCount=6),
        )

    return alt.layer(
        # A table of one row: over `data` the line would be drawn for each system.
        alt.Chart(pd.DataFrame({"p": [level]}))
        .mark_rule(strokeDash=[4, 3], color=MUTED)
        .encode(x=at("p")),
        base.mark_tick(color=MUTED, thickness=2).encode(x=at("p_smallest")),
        base.mark_point(shape="cross", filled=False, color=INK, size=50).encode(
            x=at("p_scipy")
        ),
        base.mark_point(size=60).encode(x=at("p")),
    ).properties(width=420, height=22 * len(order))


def draw_over_dimensions(rows: pd.DataFrame, laws: pd.DataFrame) -> ChartType:
    """Draw A (mean cosine) of layers against the dimension, both axes logarithmic, with lines of `laws`.

    `rows`: `d`, `value`, `low`, `high`, `model`; each model is named at its highest layer. `laws`: `d`, `value`, `law`.
    """
    ticks = alt.Axis(
        values=[4**k for k in range(1, 8)], labelExpr="toString(datum.value)"
    )
    x = alt.X(
        "d:Q",
        title="dimension d",
        scale=alt.Scale(type="log", domain=[4, 16384], nice=False),
        axis=ticks,
    )
    scale = alt.Scale(type="log", domain=[1e-5, 1], nice=False, clamp=True)
    title = "cosine; A of layers"
    axis = alt.Axis(values=[10.0**k for k in range(-5, 1)], labelExpr=PLAIN)
    y = alt.Y("value:Q", title=title, scale=scale, axis=axis)
    # The first law is a solid line, the second one dashed.
    names = alt.Scale(domain=list_distinct(laws["law"]), range=[[1, 0], [4, 3]])
    dash = alt.StrokeDash("law:N", scale=names, legend=alt.Legend(title=None))
    line = (
        alt.Chart(laws)
        .mark_line(color=MUTED, strokeWidth=1.6)
        .encode(x=x, y=y, strokeDash=dash)
    )
    data = rows[["d", "value", "low", "high", "model", "layer"]].astype({"model": str})
    # A name at each of its layers would make the chart unreadable.
    highest = data.groupby("model")["value"].transform("max")
    data["name"] = data["model"].where(data["value"] == highest, "")
    hue = alt.Color(
        "model:N", scale=alt.Scale(domain=list_distinct(data["model"])), legend=None
    )
    known = alt.Chart(data).encode(x=x, color=hue)
    rule = whisker(known, title, opacity=0.5)
    point = known.mark_point(size=46).encode(y=y)
    text = known.mark_text(align="left", dx=8, fontSize=11).encode(y=y, text="name:N")
    return alt.layer(line, rule, point, text).properties(width=640, height=320)


def draw_ranges(
    frame: pd.DataFrame,
    *,
    category: str,
    series: str,
    panel: str,
    title: str,
    domain: tuple[float, float],
    width: int,
) -> ChartType:
    """Draw five quantiles per row (`least`, `lower`, `middle`, `upper`, `most`), as a dot on a bar on a line.

    category, series, panel   columns: the rows, the colours in a row, the panels
    title, domain             of the horizontal axis, and its two ends
    width                     of a panel, in pixels
    """
    order = list_distinct(frame[category])
    panels = list_distinct(frame[panel])
    base = alt.Chart().encode(
        y=alt.Y(f"{category}:N", sort=order, title=None, axis=alt.Axis(ticks=False)),
        yOffset=alt.YOffset(f"{series}:N", sort=list_distinct(frame[series])),
        color=colour(frame[series], series, width + 80),
    )
    across = alt.X(
        "least:Q", title=title, scale=alt.Scale(domain=list(domain), nice=False)
    )
    # From below: the line of 0, 95 % of the values, the middle half, the median.
    layers = [
        alt.Chart().mark_rule(strokeDash=[3, 3], color=MUTED).encode(x=alt.datum(0)),
        base.mark_rule().encode(x=across, x2="most:Q"),
        base.mark_rule(strokeWidth=6, opacity=0.5).encode(x="lower:Q", x2="upper:Q"),
        base.mark_point(filled=True, size=50).encode(x="middle:Q"),
    ]
    # The height follows from the rows: bars stay as thick in every chart.
    inner = alt.layer(*layers).properties(width=width, height=30 * len(order))
    facet = alt.Facet(
        f"{panel}:N", sort=panels, title=None, header=alt.Header(labelColor=INK)
    )
    kept = frame[[category, series, panel, "least", "lower", "middle", "upper", "most"]]
    return inner.facet(facet, data=kept, columns=1).properties(spacing=14)


def draw_texts(
    frame: pd.DataFrame,
    *,
    category: str,
    columns: dict[str, int],
    muted: str,
    width: int,
) -> ChartType:
    """Draw a table: a row per `category`, with the text of each of `columns` at its distance from the left in pixels.

    `muted`: the column in pale ink; `width`: in pixels.
    """
    order = list_distinct(frame[category])
    axis = alt.Axis(ticks=False, labelLimit=220)
    base = alt.Chart(frame).encode(
        y=alt.Y(f"{category}:N", sort=order, title=None, axis=axis)
    )
    marks = []
    for name, x in columns.items():
        ink = MUTED if name == muted else INK
        text = base.mark_text(align="left", fontSize=11, color=ink)
        marks.append(text.encode(text=f"{name}:N", x=alt.value(x)))
    return alt.layer(*marks).properties(width=width, height=26 * len(order))
