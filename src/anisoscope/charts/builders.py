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
    """Draw a line chart of the column `value` against the column of numbers `x`, with a line for each series.

    frame              a row for each point; rows whose `joined` is false are drawn as single open diamonds
    x, series, panel   columns: of the horizontal axis, of the lines, of small multiples (None: a single chart)
    titles             of the horizontal and the vertical axis
    scale              of the horizontal axis
    band               shade the interval from the column `low` to `high` around each line
    gradient           colour the lines from orange to violet, by their series, which must be numbers
    isotropic          the cosine that 95 % of isotropic pairs stay below, marked at this height; or one per series
    zero               begin the vertical axis at 0
    independent        give each panel its own vertical axis
    coincide           dash the lines, so that those of equal values stay visible
    pale               {series: another series, of whose colour it gets a pale shade}
    size               width of the whole chart, height of one panel, in pixels
    columns            number of panels in a row
    """
    data = _prepare_lines(frame, x, series, panel)
    across_title, up_title = titles
    height = alt.Y("value:Q", title=up_title, scale=alt.Scale(zero=zero))
    hue = style.colour(frame[series], series, size[0], gradient=gradient, pale=pale)
    place = style.number_axis(x, across_title, data[x], scale)
    # `detail` keeps lines apart where the colour does not: a gradient is a number, by
    # which Vega-Lite groups nothing.
    base = alt.Chart().encode(x=place, color=hue, detail=alt.Detail(f"{series}:N"))
    # The output after the final norm comes after the last block but is no further
    # block: no line leads to it.
    line = base.transform_filter("datum.joined")
    tooltip = alt.Description("tooltip:N")
    layers = _mark_isotropic(isotropic, data, series, up_title, hue)
    if band:
        layers.append(style.ribbon(line, up_title))
    dash: dict[str, Any] = {}
    looks: dict[str, Any] = {}
    if coincide:
        dash, looks = _dash_overlaps(frame[series].nunique())
    layers.append(line.mark_line().encode(y=height, **dash))
    # A gradient has too many series for shapes.
    if not gradient:
        looks = {"shape": style.shape(frame[series], series, size[0])} | looks
    of_a_line = [series]
    if panel:
        of_a_line.append(panel)
    # Marks on every point of a long line would hide it.
    lines = data.groupby(of_a_line).ngroups
    if len(data) <= MARKED * lines:
        marks = line.mark_point().encode(y=height, **looks)
        layers.append(marks.encode(description=tooltip))
    if not data["joined"].all():
        layers += _draw_single_points(base, height, up_title)
    return style.facet(layers, data, panel, size, columns, independent=independent)


def _mark_isotropic(
    isotropic: float | Mapping[str, float] | None,
    data: pd.DataFrame,
    series: str,
    title: str,
    hue: alt.Color,
) -> list[alt.Chart]:
    """Return layers that mark the cosine below which 95 % of isotropic pairs stay; none if it is None.

    isotropic   a height, shaded from 0; or {series: height}, a dashed horizontal line for each, for which `data`
                gets the column `isotropic`
    series      column of `data` that names the series
    title       of the vertical axis
    hue         colours of the series
    """
    if isotropic is None:
        return []
    if not isinstance(isotropic, Mapping):
        return [
            style.between(0, isotropic, title, opacity=0.1),
            *style.level(isotropic, title),
        ]
    data["isotropic"] = data[series].map(isotropic)
    # One row for each series: otherwise every point would draw the same rule again.
    bound = alt.Chart().transform_aggregate(
        isotropic="max(isotropic)", groupby=[series]
    )
    rule = bound.mark_rule(strokeDash=style.DASHED)
    return [rule.encode(y=alt.Y("isotropic:Q", title=title), color=hue)]


def _draw_single_points(base: alt.Chart, height: alt.Y, title: str) -> list[alt.Chart]:
    """Return layers that draw the points outside every line: open diamonds, with their intervals.

    base     chart of all points, whose column `joined` is false for these
    height   the vertical position of a point
    title    of the vertical axis
    """
    alone = base.transform_filter("!datum.joined")
    diamond = alone.mark_point(filled=False, shape="diamond", size=64)
    return [
        style.whisker(alone, title),
        diamond.encode(y=height, description=alt.Description("tooltip:N")),
    ]


def layer_curve(
    frame: pd.DataFrame,
    *,
    title: str = "anisotropy A",
    zero: bool = True,
    **options: Any,
) -> ChartType:
    """Draw the column `value` against the layer, with a line for each series.

    The output after the final norm (`site` is `final`) is a diamond after the last layer.

    title     of the vertical axis
    options   further arguments of `trajectory`
    """
    is_final = pd.Series(False, index=frame.index)
    if "site" in frame:
        is_final = frame["site"].eq("final").fillna(False).astype(bool)
    # Half a layer to the right: the records give the final norm the number of the last
    # layer.
    data = frame.assign(
        layer=frame["layer"].astype(float) + 0.5 * is_final, joined=~is_final
    )
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
    title         of the scale of colours
    names         titles of the axes, if not the columns'
    diverging     centre the colours at 0, and put a value whose interval holds 0 in brackets; if numbers do not fit,
                  such a cell gets a dot
    size          the whole width, and the height of one row, in pixels
    columns       number of panels in a row
    """
    width, row_height = size
    across = _sort_levels(frame[x])
    down = _sort_levels(frame[y])
    panels = frame[panel].nunique() if panel else 1
    # Whether a number fits is decided by the estimated width of a cell, before anything
    # is laid out.
    cell_width = width / (len(across) * min(columns, panels))
    low, high = style.find_bounds(frame["value"], diverging)
    shades = list(style.DIVERGING if diverging else style.SEQUENTIAL)
    data = _keep_columns(frame, x, y, "value", panel).astype({x: str, y: str})
    data["tooltip"] = style.make_tooltips(frame, panel, y, x)
    # A smaller cell has no room for a number in 10-point type.
    data["label"] = _label_cells(
        frame, diverging, numbers=cell_width >= 30 and row_height >= 16
    )
    # All values may be equal.
    data["dark"] = style.needs_white_ink(
        (data["value"] - low) / (high - low or 1), shades
    )
    axis = alt.Axis(domain=False, ticks=False, labelOverlap=True, labelAngle=0)
    across_title, down_title = names or (x, y)
    base = alt.Chart().encode(
        x=alt.X(f"{x}:O", sort=across, title=across_title, axis=axis),
        y=alt.Y(f"{y}:O", sort=down, title=down_title, axis=axis),
    )
    tiles = base.mark_rect(stroke="#ffffff", strokeWidth=0.6)
    colour = _make_cell_colour(title, (low, high), shades)
    tiles = tiles.encode(color=colour, description=alt.Description("tooltip:N"))
    ink = alt.ColorValue(
        "#000000", condition={"test": "datum.dark", "value": "#ffffff"}
    )
    text = base.mark_text(fontSize=10).encode(text=alt.Text("label:N"), color=ink)
    return style.facet(
        [tiles, text], data, panel, (width, row_height * len(down)), columns
    )


def _make_cell_colour(
    title: str, bounds: tuple[float, float], shades: list[str]
) -> alt.Color:
    """Return the colour encoding of the cells of a heat map, with a legend from the lowest to the highest value."""
    low, high = bounds
    largest = max(abs(low), abs(high))
    digits = ".2~f" if largest < 100 else ".3~s"
    ticks = [low, (low + high) / 2, high]
    legend = alt.Legend(
        title=title,
        gradientLength=200,
        gradientThickness=9,
        values=ticks,
        format=digits,
    )
    scale = alt.Scale(
        domain=[low, high], range=shades, interpolate="lab", zero=False, nice=False
    )
    return alt.Color("value:Q", scale=scale, legend=legend)


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
    """Draw points of the column `value` against the column of numbers `x`, with their intervals.

    titles    of the horizontal and the vertical axis
    series    column that gives points their colour and shape
    panel     column of small multiples; None: a single chart
    label     column with names of points, which are then joined by a line in row order, except those whose `joined` is
              false; None: no names and no line
    size      the whole width, and the height of one panel, in pixels
    columns   number of panels in a row
    """
    tips = style.make_tooltips(frame, series, label)
    data = frame.assign(
        row=range(len(frame)), joined=frame.get("joined", True), tooltip=tips
    )
    place = alt.X(
        f"{x}:Q",
        title=titles[0],
        scale=alt.Scale(zero=False, nice=True),
        axis=alt.Axis(tickCount=6),
    )
    height = alt.Y("value:Q", title=titles[1], scale=alt.Scale(zero=False, nice=True))
    base = alt.Chart().encode(
        x=place, y=height, color=style.colour(frame[series], series, size[0])
    )
    # Only the points have a shape: the line and the intervals are encoded from `base`,
    # which has none.
    shape = style.shape(frame[series], series, size[0])
    points = base.mark_point(size=60).encode(
        shape=shape, description=alt.Description("tooltip:N")
    )
    layers: list[alt.Chart] = []
    # Layers are drawn in this order: intervals lie below the points.
    if {"low", "high"} <= set(frame):
        layers.append(style.whisker(base, titles[1], opacity=0.6))
    if label is None:
        layers.append(points)
    else:
        path = base.transform_filter("datum.joined").mark_line(
            strokeWidth=1, opacity=0.45
        )
        # To the upper left: of a rising curve the next point lies to the upper right.
        named = base.encode(
            text=alt.Text(f"{label}:N"), color=alt.ColorValue(style.INK)
        )
        text = named.transform_filter("datum.joined").mark_text(
            align="right", dx=-5, dy=-8, fontSize=11
        )
        apart = named.transform_filter("!datum.joined").mark_text(
            align="left", dx=6, dy=10, fontSize=11
        )
        layers += [path.encode(order=alt.Order("row:Q")), points, text, apart]
    data = _keep_columns(
        data,
        x,
        "value",
        series,
        panel,
        label,
        "low",
        "high",
        "row",
        "joined",
        "tooltip",
    )
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
    titles     of the axis of values, and of the axis of bars
    panel      column of small multiples; None: a single chart
    size       the whole width, and the height of one bar, in pixels
    columns    number of panels in a row
    """
    data = frame.astype({category: str})
    order = style.list_distinct(data[category])
    base = alt.Chart().encode(
        y=alt.Y(
            f"{category}:N", sort=order, title=titles[1], axis=alt.Axis(ticks=False)
        )
    )
    data["tooltip"] = style.make_tooltips(data, panel, category)
    # Pale, so that the interval is seen on top of the bar.
    lengths = base.mark_bar(color=style.PALETTE[0], opacity=0.6, height={"band": 0.62})
    layers = [
        lengths.encode(
            x=alt.X("value:Q", title=titles[0]),
            description=alt.Description("tooltip:N"),
        )
    ]
    if {"low", "high"} <= set(frame):
        layers.append(style.whisker(base, titles[0], flat=True, color=style.INK))
    data = _keep_columns(data, category, panel, "value", "low", "high", "tooltip")
    return style.facet(layers, data, panel, (size[0], size[1] * len(order)), columns)


def _keep_columns(frame: pd.DataFrame, *names: str | None) -> pd.DataFrame:
    """Return a table with only these columns of `frame`; names that it lacks, and None, are ignored."""
    # The renderer gets the table as JSON: columns that no mark reads would only
    # lengthen it.
    return frame[[name for name in dict.fromkeys(names) if name in frame]]


def _prepare_lines(
    frame: pd.DataFrame, x: str, series: str, panel: str | None
) -> pd.DataFrame:
    """Return the table that a line chart is drawn from, sorted along `x`.

    `low` and `high` become NaN, and `joined` true, if the table has no such column; ranks and tooltips are added.

    x, series, panel   columns: of the horizontal axis, of the lines, of small multiples
    """
    data = _keep_columns(frame, x, series, panel, "value").copy()
    for end in ("low", "high"):
        data[end] = frame[end].astype(float) if end in frame else float("nan")
    # Series that overlap are dashed by rank, in the order in which the legend names
    # them.
    data["rank"], _ = pd.factorize(frame[series])
    data["tooltip"] = style.make_tooltips(frame, panel, series, x)
    data["joined"] = frame.get("joined", True)
    data["place"] = 0
    # Panels keep their order of appearance.
    if panel:
        data["place"], _ = pd.factorize(frame[panel])
    return data.sort_values(["place", x], ignore_index=True).drop(columns="place")


def _dash_overlaps(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the encodings of `count` series that may overlap: (dash patterns of lines, sizes of points).

    Both depend on the column `rank`; points drawn on top are smaller, so that those below stay visible.
    """
    # Lengths of dash and gap in pixels; the first line, drawn below all, is solid.
    patterns = [[1, 0], [6, 5], [1, 5], [10, 5]]
    ranks = list(range(count))
    dashes = []
    # Square pixels of a point.
    areas = []
    for rank in ranks:
        dashes.append(patterns[rank % len(patterns)])
        areas.append(max(110 - 42 * rank, 16))
    dash = alt.Scale(domain=ranks, range=dashes)
    area = alt.Scale(domain=ranks, range=areas)
    return (
        {"strokeDash": alt.StrokeDash("rank:O", scale=dash, legend=None)},
        {"size": alt.Size("rank:O", scale=area, legend=None)},
    )


def _sort_levels(values: pd.Series) -> list[str]:
    """Return distinct values as labels of an axis: numbers ascending, names in order of appearance."""
    levels = style.list_distinct(values)
    if pd.api.types.is_numeric_dtype(values):
        levels = sorted(levels)
    # The columns of the axes are drawn as text: as text, layer 10 would sort before 2.
    return [str(level) for level in levels]


def _label_cells(frame: pd.DataFrame, diverging: bool, *, numbers: bool) -> list[str]:
    """Return the text of each cell of a heat map: its number if `numbers` is set.

    diverging   mark a value whose interval holds 0: its number in brackets, or a dot
    """
    holds_zero = [False] * len(frame)
    if diverging and {"low", "high"} <= set(frame):
        holds_zero = list((frame["low"] < 0) & (frame["high"] > 0))
    labels = []
    for value, is_unsure in zip(frame["value"], holds_zero, strict=True):
        text = style.format_compact(float(value))
        # Undefined values have no text, and get no mark.
        is_marked = is_unsure and text
        if numbers:
            labels.append(f"({text})" if is_marked else text)
        else:
            labels.append("·" if is_marked else "")
    return labels
