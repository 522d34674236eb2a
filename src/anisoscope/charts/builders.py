"""Charts from records: a builder for lines, cells, points, bars and counts.

A builder takes rows of the long table (`value`, and `low`/`high` where there is an interval) and returns an altair
chart that carries no style of its own; `export` applies the theme. `panel` names a column to draw small multiples of,
`columns` side by side, and `size` the whole width with the height of one panel. Undefined values leave gaps.
"""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.style import (
    DARK_FROM,
    DASHED,
    DIVERGING,
    INK,
    PALETTE,
    SEQUENTIAL,
    Scale,
    appearance,
    between,
    cell_labels,
    colour,
    facet,
    layered,
    level,
    levels,
    line_table,
    number_axis,
    ribbon,
    shape,
    tooltips,
    whisker,
)

Size = tuple[int, int]
MARKED = 40
"""Lines of at most this many points show each of them."""


def trajectory(
    frame: pd.DataFrame,
    *,
    x: str = "step",
    series: str = "model",
    panel: str | None = None,
    titles: tuple[str, str] = ("step", "value"),
    scale: Scale = "linear",
    band: bool = True,
    gradient: bool = False,
    isotropic: float | Mapping[str, float] | None = None,
    zero: bool = False,
    independent: bool = False,
    coincide: bool = False,
    size: Size = (640, 300),
    columns: int = 2,
) -> ChartType:
    """Lines of `value` against a numeric `x`, one per series, with a ribbon from `low` to `high` (`band`).

    `gradient` colours the series, then numbers, from orange to violet. `isotropic` marks what 95 % of isotropic pairs
    stay below: one height or one per series. `independent` gives each panel its own vertical axis, `coincide` keeps
    lines visible that lie on each other. Rows with a false `joined` stand alone as open diamonds.
    """
    data = line_table(frame, x, series, panel)
    height = alt.Y("value:Q", title=titles[1], scale=alt.Scale(zero=zero))
    hue = colour(frame[series], series, size[0], gradient=gradient)
    place = number_axis(x, titles[0], data[x], scale)
    base = alt.Chart().encode(x=place, color=hue, detail=f"{series}:N")
    line = base.transform_filter("datum.joined")
    layers: list[alt.Chart] = []
    if isinstance(isotropic, Mapping):
        data["isotropic"] = data[series].map(isotropic)
        bound = alt.Chart().transform_aggregate(isotropic="max(isotropic)", groupby=[series])
        bound = bound.mark_rule(strokeDash=DASHED).encode(y=alt.Y("isotropic:Q", title=titles[1]), color=hue)
        layers.append(bound)
    elif isotropic is not None:
        layers += [between(0, isotropic, titles[1], opacity=0.1), *level(isotropic, titles[1])]
    if band:
        layers.append(ribbon(line, titles[1]))
    dash, point = layered(frame[series].nunique()) if coincide else ({}, {})
    layers.append(line.mark_line().encode(y=height, **dash))
    if not gradient and len(data) <= MARKED * data.groupby([series, *([panel] if panel else [])]).ngroups:
        marks = line.mark_point().encode(y=height, shape=shape(frame[series], series, size[0]), **point)
        layers.append(marks.encode(description="tooltip:N"))
    if not data["joined"].all():
        alone = base.transform_filter("!datum.joined")
        diamond = alone.mark_point(filled=False, shape="diamond", size=64)
        layers += [whisker(alone, titles[1]), diamond.encode(y=height, description="tooltip:N")]
    return facet(layers, data, panel, size, columns, independent=independent)


def layer_curve(frame: pd.DataFrame, *, title: str = "anisotropy A", zero: bool = True, **options: Any) -> ChartType:
    """A quantity per layer, one line per series; the site `final` stands past the last layer as an open diamond.

    `options` are those of `trajectory`.
    """
    final = frame["site"].eq("final").fillna(False).astype(bool) if "site" in frame else False
    data = frame.assign(layer=frame["layer"].astype(float) + 0.5 * final, joined=~pd.Series(final, index=frame.index))
    return trajectory(data, x="layer", titles=("layer", title), zero=zero, **options)


def heatmap(
    frame: pd.DataFrame,
    *,
    x: str = "head",
    y: str = "layer",
    panel: str | None = None,
    title: str = "value",
    names: tuple[str, str] | None = None,
    diverging: bool = False,
    size: Size = (640, 26),
    columns: int = 1,
) -> ChartType:
    """Cells of `value` over two discrete axes, first row on top; `size` is the whole width and the height of one row.

    `diverging` centres the colours at 0 and puts a value whose interval holds 0 in brackets. Where numbers do not
    fit, such a cell bears a dot.
    """
    across, down = levels(frame[x]), levels(frame[y])
    largest = float(frame["value"].abs().max()) or 1.0
    bounds = (-largest, largest) if diverging else (float(frame["value"].min()), float(frame["value"].max()))
    share = size[0] / (len(across) * min(columns, frame[panel].nunique() if panel else 1))
    data = frame[[x, y, "value", *([panel] if panel else [])]].astype({x: str, y: str})
    data["tooltip"] = tooltips(frame, *([panel] if panel else []), y, x)
    data["label"] = cell_labels(frame, diverging, numbers=share >= 30 and size[1] >= 16)
    depth = data["value"].abs() / largest if diverging else (data["value"] - bounds[0]) / (bounds[1] - bounds[0] or 1)
    data["dark"] = depth > DARK_FROM
    shades = list(DIVERGING if diverging else SEQUENTIAL)
    colours = alt.Scale(domain=list(bounds), range=shades, interpolate="lab", zero=False, nice=False)
    digits = ".2~f" if largest < 100 else ".3~s"
    ticks = [bounds[0], sum(bounds) / 2, bounds[1]]
    legend = alt.Legend(title=title, gradientLength=200, gradientThickness=9, values=ticks, format=digits)
    axis = alt.Axis(domain=False, ticks=False, labelOverlap=True, labelAngle=0)
    across_title, down_title = names or (x, y)
    base = alt.Chart().encode(
        x=alt.X(f"{x}:O", sort=across, title=across_title, axis=axis),
        y=alt.Y(f"{y}:O", sort=down, title=down_title, axis=axis),
    )
    tiles = base.mark_rect(stroke="#ffffff", strokeWidth=0.6)
    ink = alt.when("datum.dark").then(alt.value("#ffffff")).otherwise(alt.value("#16202b"))
    layers = [
        tiles.encode(color=alt.Color("value:Q", scale=colours, legend=legend), description="tooltip:N"),
        base.mark_text(fontSize=10).encode(text="label:N", color=ink),
    ]
    return facet(layers, data, panel, (size[0], size[1] * len(down)), columns)


def scatter(
    frame: pd.DataFrame,
    *,
    x: str,
    y: str = "value",
    series: str = "model",
    panel: str | None = None,
    label: str | None = None,
    path: bool = False,
    titles: tuple[str, str] | None = None,
    scale: Scale = "linear",
    size: Size = (640, 320),
    columns: int = 2,
) -> ChartType:
    """Points with their intervals (`low` to `high` of `y`) and labels; `path` joins those of a series in row order.

    Rows with a false `joined` stay off the path.
    """
    names = [key for key in (series, label) if key]
    data = frame.assign(
        row=range(len(frame)), joined=frame.get("joined", True), tooltip=tooltips(frame, *names, value=y)
    )
    across, up = titles or (x, y)
    place = alt.X(
        f"{x}:Q", title=across, scale=alt.Scale(type=scale, zero=False, nice=True), axis=alt.Axis(tickCount=6)
    )
    height = alt.Y(f"{y}:Q", title=up, scale=alt.Scale(zero=False, nice=True))
    base = alt.Chart().encode(x=place, y=height, color=colour(frame[series], series, size[0]))
    points = base.mark_point(size=60).encode(shape=shape(frame[series], series, size[0]), description="tooltip:N")
    layers = [whisker(base, up, opacity=0.6)] if {"low", "high"} <= set(frame) else []
    if path:
        line = base.transform_filter("datum.joined").mark_line(strokeWidth=1, opacity=0.45)
        layers.append(line.encode(order="row:Q"))
    layers.append(points)
    if label is not None:
        text = base.mark_text(align="left", dx=8, dy=-6, fontSize=11)
        layers.append(text.encode(text=f"{label}:N", color=alt.value(INK)))
    kept = [key for key in (x, y, series, panel, label, "low", "high", "row", "joined", "tooltip") if key in data]
    return facet(layers, data[list(dict.fromkeys(kept))], panel, size, columns)


def histogram(
    frame: pd.DataFrame,
    *,
    series: str = "model",
    panel: str | None = None,
    titles: tuple[str, str] = ("value", "density"),
    density: bool = True,
    size: Size = (640, 260),
    columns: int = 2,
) -> ChartType:
    """Outlines of counts in shared bins: rows of `left`, `right`, `count`; `density` divides by total and bin width."""
    keys = [key for key in (panel, series) if key]
    data = frame[["left", "right", "count", *keys]].sort_values("left", kind="stable")
    total = data.groupby(keys)["count"].transform("sum") * (data["right"] - data["left"])
    data = data.assign(value=data["count"] / total if density else data["count"])
    ends = data.groupby(keys, sort=False).tail(1)
    data = pd.concat([data, ends.assign(left=ends["right"])], ignore_index=True)
    base = alt.Chart().encode(
        x=alt.X("left:Q", title=titles[0], scale=alt.Scale(zero=False, nice=False)),
        y=alt.Y("value:Q", title=titles[1], stack=None),
        color=colour(frame[series], series, size[0]),
    )
    area = base.mark_area(opacity=0.15, interpolate="step-after")
    return facet([area, base.mark_line(strokeWidth=1.5, interpolate="step-after")], data, panel, size, columns)


def bars(
    frame: pd.DataFrame,
    *,
    category: str,
    titles: tuple[str, str] = ("value", ""),
    panel: str | None = None,
    size: Size = (640, 22),
    columns: int = 2,
) -> ChartType:
    """Horizontal bars in row order with the interval over each; `size` is the whole width and the height of one bar."""
    data = frame.astype({category: str})
    order = appearance(data[category])
    base = alt.Chart().encode(y=alt.Y(f"{category}:N", sort=order, title=titles[1], axis=alt.Axis(ticks=False)))
    data["tooltip"] = tooltips(data, *([panel] if panel else []), category)
    lengths = base.mark_bar(color=PALETTE[0], opacity=0.6, height={"band": 0.62})
    layers = [lengths.encode(x=alt.X("value:Q", title=titles[0]), description="tooltip:N")]
    if {"low", "high"} <= set(frame):
        layers.append(whisker(base, titles[0], flat=True, color=INK))
    kept = [key for key in (category, panel, "value", "low", "high", "tooltip") if key and key in data]
    return facet(layers, data[kept], panel, (size[0], size[1] * len(order)), columns)
