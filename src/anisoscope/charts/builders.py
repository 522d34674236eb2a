"""Charts from records: a builder for lines, cells, points and bars.

A builder takes rows of the long table (`value`, and `low`/`high` where there is an interval) and returns an altair
chart that carries no style of its own; `export` applies the theme. `panel` names a column to draw small multiples of,
`columns` side by side, and `size` the whole width with the height of one panel. Undefined values leave gaps.
"""

from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import style

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
    scale: style.Scale = "linear",
    band: bool = True,
    gradient: bool = False,
    isotropic: float | Mapping[str, float] | None = None,
    zero: bool = False,
    independent: bool = False,
    coincide: bool = False,
    pale: Mapping[str, str] | None = None,
    size: Size = (640, 300),
    columns: int = 2,
) -> ChartType:
    """Draw lines of `value` against a numeric `x`, one per series, with a ribbon from `low` to `high` (`band`).

    `gradient` colours the series, which are numbers then, from orange to violet. `isotropic` marks the cosine that 95 %
    of isotropic pairs stay below: one height, or one per series. `independent` gives each panel its own vertical axis;
    `coincide` keeps overlapping lines visible. Rows with a false `joined` are drawn as single open
    diamonds. `pale`: {series: another, of whose colour it gets a pale shade}.
    """
    data = _prepare_lines(frame, x, series, panel)
    height = alt.Y("value:Q", title=titles[1], scale=alt.Scale(zero=zero))
    hue = style.colour(frame[series], series, size[0], gradient=gradient, pale=pale)
    place = style.number_axis(x, titles[0], data[x], scale)
    base = alt.Chart().encode(x=place, color=hue, detail=alt.Detail(f"{series}:N"))
    line = base.transform_filter("datum.joined")
    layers: list[alt.Chart] = []
    if isinstance(isotropic, Mapping):
        data["isotropic"] = data[series].map(isotropic)
        bound = alt.Chart().transform_aggregate(isotropic="max(isotropic)", groupby=[series])
        bound = bound.mark_rule(strokeDash=style.DASHED).encode(y=alt.Y("isotropic:Q", title=titles[1]), color=hue)
        layers.append(bound)
    elif isotropic is not None:
        layers += [style.between(0, isotropic, titles[1], opacity=0.1), *style.level(isotropic, titles[1])]
    if band:
        layers.append(style.ribbon(line, titles[1]))
    dash, point = _dash_overlaps(frame[series].nunique()) if coincide else ({}, {})
    layers.append(line.mark_line().encode(y=height, **dash))
    if len(data) <= MARKED * data.groupby(list(filter(None, (series, panel)))).ngroups:
        shape = {} if gradient else {"shape": style.shape(frame[series], series, size[0])}
        marks = line.mark_point().encode(y=height, **shape, **point)
        layers.append(marks.encode(description=alt.Description("tooltip:N")))
    if not data["joined"].all():
        alone = base.transform_filter("!datum.joined")
        diamond = alone.mark_point(filled=False, shape="diamond", size=64)
        layers += [style.whisker(alone, titles[1]), diamond.encode(y=height, description=alt.Description("tooltip:N"))]
    return style.facet(layers, data, panel, size, columns, independent=independent)


def layer_curve(frame: pd.DataFrame, *, title: str = "anisotropy A", zero: bool = True, **options: Any) -> ChartType:
    """Draw a quantity per layer, one line per series, with `final` as a diamond after the last layer.

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
    """Draw a heat map of the column `value` over two discrete axes, first row on top.

    x, y, panel   columns of the axes, and of small multiples
    names         titles of the axes, if not the columns'
    diverging     centre the colours at 0, and put a value whose interval holds 0 in brackets; if numbers do not fit,
                  such a cell gets a dot
    size          the whole width, and the height of one row
    """
    across, down = _sort_levels(frame[x]), _sort_levels(frame[y])
    bounds = style.find_bounds(frame["value"], diverging)
    largest = max(abs(bounds[0]), abs(bounds[1]))
    share = size[0] / (len(across) * min(columns, frame[panel].nunique() if panel else 1))
    data = _keep_columns(frame, x, y, "value", panel).astype({x: str, y: str})
    data["tooltip"] = style.make_tooltips(frame, panel, y, x)
    data["label"] = _label_cells(frame, diverging, numbers=share >= 30 and size[1] >= 16)
    shades = list(style.DIVERGING if diverging else style.SEQUENTIAL)
    data["dark"] = style.needs_white_ink((data["value"] - bounds[0]) / (bounds[1] - bounds[0] or 1), shades)
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
    ink = alt.ColorValue("#000000", condition={"test": "datum.dark", "value": "#ffffff"})
    layers = [
        tiles.encode(
            color=alt.Color("value:Q", scale=colours, legend=legend), description=alt.Description("tooltip:N")
        ),
        base.mark_text(fontSize=10).encode(text=alt.Text("label:N"), color=ink),
    ]
    return style.facet(layers, data, panel, (size[0], size[1] * len(down)), columns)


def scatter(
    frame: pd.DataFrame,
    *,
    x: str,
    titles: tuple[str, str],
    series: str = "model",
    panel: str | None = None,
    label: str | None = None,
    size: Size = (640, 320),
    columns: int = 2,
) -> ChartType:
    """Draw points of `value` against `x` with intervals.

    With `label`, points are named and joined in order, except those whose `joined` is false.
    """
    tips = style.make_tooltips(frame, series, label)
    data = frame.assign(row=range(len(frame)), joined=frame.get("joined", True), tooltip=tips)
    place = alt.X(f"{x}:Q", title=titles[0], scale=alt.Scale(zero=False, nice=True), axis=alt.Axis(tickCount=6))
    height = alt.Y("value:Q", title=titles[1], scale=alt.Scale(zero=False, nice=True))
    base = alt.Chart().encode(x=place, y=height, color=style.colour(frame[series], series, size[0]))
    shape = style.shape(frame[series], series, size[0])
    layers = [base.mark_point(size=60).encode(shape=shape, description=alt.Description("tooltip:N"))]
    if label is not None:
        path = base.transform_filter("datum.joined").mark_line(strokeWidth=1, opacity=0.45)
        # To the upper left: of a rising curve the next point lies to the upper right.
        named = base.encode(text=alt.Text(f"{label}:N"), color=alt.ColorValue(style.INK))
        text = named.transform_filter("datum.joined").mark_text(align="right", dx=-5, dy=-8, fontSize=11)
        apart = named.transform_filter("!datum.joined").mark_text(align="left", dx=6, dy=10, fontSize=11)
        layers = [
            path.encode(order=alt.Order("row:Q")),
            *layers,
            text,
            apart,
        ]
    if {"low", "high"} <= set(frame):
        layers.insert(0, style.whisker(base, titles[1], opacity=0.6))
    data = _keep_columns(data, x, "value", series, panel, label, "low", "high", "row", "joined", "tooltip")
    return style.facet(layers, data, panel, size, columns)


def bars(
    frame: pd.DataFrame,
    *,
    category: str,
    titles: tuple[str, str] = ("value", ""),
    panel: str | None = None,
    size: Size = (640, 22),
    columns: int = 2,
) -> ChartType:
    """Draw horizontal bars of the column `value` in row order, with their intervals.

    category   the column that names the bars
    size       the whole width, and the height of one bar
    """
    data = frame.astype({category: str})
    order = style.appearance(data[category])
    base = alt.Chart().encode(y=alt.Y(f"{category}:N", sort=order, title=titles[1], axis=alt.Axis(ticks=False)))
    data["tooltip"] = style.make_tooltips(data, panel, category)
    lengths = base.mark_bar(color=style.PALETTE[0], opacity=0.6, height={"band": 0.62})
    layers = [lengths.encode(x=alt.X("value:Q", title=titles[0]), description=alt.Description("tooltip:N"))]
    if {"low", "high"} <= set(frame):
        layers.append(style.whisker(base, titles[0], flat=True, color=style.INK))
    data = _keep_columns(data, category, panel, "value", "low", "high", "tooltip")
    return style.facet(layers, data, panel, (size[0], size[1] * len(order)), columns)


def _keep_columns(frame: pd.DataFrame, *names: str | None) -> pd.DataFrame:
    """Return the named columns, as far as they exist."""
    return frame[[name for name in dict.fromkeys(names) if name in frame]]


def _prepare_lines(frame: pd.DataFrame, x: str, series: str, panel: str | None) -> pd.DataFrame:
    """Return the columns of a line chart, sorted along `x`, with missing intervals and `joined` filled in."""
    data = _keep_columns(frame, x, series, panel, "value").assign(
        **{end: frame[end].astype(float) if end in frame else float("nan") for end in ("low", "high")},
        rank=pd.factorize(frame[series])[0],
        tooltip=style.make_tooltips(frame, panel, series, x),
        joined=frame.get("joined", True),
        place=pd.factorize(frame[panel])[0] if panel else 0,
    )
    return data.sort_values(["place", x], ignore_index=True).drop(columns="place")


def _dash_overlaps(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the encodings of `count` series that may overlap: (dash patterns of lines, sizes of points).

    Both depend on the column `rank`; points drawn on top are smaller, so that those below stay visible.
    """
    dashes = [[1, 0], [6, 5], [1, 5], [10, 5]]
    ranks = list(range(count))
    dash = alt.Scale(domain=ranks, range=[dashes[i % len(dashes)] for i in ranks])
    area = alt.Scale(domain=ranks, range=[max(110 - 42 * i, 16) for i in ranks])
    return (
        {"strokeDash": alt.StrokeDash("rank:O", scale=dash, legend=None)},
        {"size": alt.Size("rank:O", scale=area, legend=None)},
    )


def _sort_levels(values: pd.Series) -> list[str]:
    """Return the labels of a discrete axis: numbers ascending, names in order of appearance."""
    found = style.appearance(values)
    return [str(level) for level in (sorted(found) if pd.api.types.is_numeric_dtype(values) else found)]


def _label_cells(frame: pd.DataFrame, diverging: bool, *, numbers: bool) -> list[str]:
    """Return the text of each cell of a heat map: its number if `numbers` is set.

    diverging   mark a value whose interval holds 0: its number in brackets, or a dot
    """
    unsure = [False] * len(frame)
    if diverging and {"low", "high"} <= set(frame):
        unsure = list((frame["low"] < 0) & (frame["high"] > 0))
    texts = [(style.format_compact(float(value)), doubt) for value, doubt in zip(frame["value"], unsure, strict=True)]
    if numbers:
        return [f"({text})" if doubt and text else text for text, doubt in texts]
    return ["·" if doubt and text else "" for text, doubt in texts]
