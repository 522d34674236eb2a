"""The look of every chart: theme, palettes that colour-blind readers can distinguish, and parts that builders
share.
"""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import cycle, islice
from math import ceil, floor, isnan
from typing import Any, Literal

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

Scale = Literal["linear", "log", "symlog"]

INK, MUTED, GRID = "#1f2933", "#52606d", "#e4e7eb"
PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7a5195",
    "#4d5358",
)
"""Okabe and Ito's colours (distinct in every common form of colour blindness), then a violet and a grey."""
SEQUENTIAL = ("#f4f7fa", "#bcd5e8", "#6ba6cf", "#2473a8", "#0b3c66")
DIVERGING = ("#8f3a00", "#d98a4b", "#f6f4f1", "#5a9fca", "#0b4a7d")
GRADIENT = ("#d98200", "#c9427a", "#6f5bd0")
"""Orange to violet: lines from first to last that are seen on white and on dark pages alike."""
WHITE_BELOW = 0.179
"""Luminance of a cell below which white text has more contrast with it than black text; both have 4.5 or more there."""
OTHER = "#9aa5b1"
"""Colour of series that only give context."""
DASHED = [4, 3]
WHOLE_STEPS = 12
"""Every whole step has its number on the axis up to this many."""
ROOM = 8
"""Pixels between the vertical axis and the first mark."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
FONT = "Helvetica Neue, Helvetica, Arial, Liberation Sans, sans-serif"
"""Widths are the same in all of them, so labels laid out here fit wherever the page is opened."""
TOOLTIP = "\N{INVISIBLE SEPARATOR}"
"""Begins the descriptions of marks that become native tooltips; those that the chart library makes up are dropped."""

THEME: dict[str, Any] = {
    **json.loads(files("anisoscope.charts").joinpath("theme.json").read_text("utf-8")),
    "font": FONT,
    "range": {
        "category": list(PALETTE),
        "heatmap": list(SEQUENTIAL),
        "diverging": list(DIVERGING),
    },
}
"""What Vega calls a config: theme.json, in the ink and the colours of this module."""


def _map_control_characters() -> dict[int, int]:
    """Return {code of a character that XML forbids: code of a visible sign for it}."""
    signs: dict[int, int] = {}
    for code in range(32):
        # XML allows these three.
        if chr(code) not in "\t\n\r":
            # Unicode keeps its pictures of the control characters in the same order.
            signs[code] = 0x2400 + code
    # The picture of "delete" does not follow that order.
    signs[0x7F] = 0x2421
    # Halves of surrogate pairs, and two codes that are no characters.
    signs |= dict.fromkeys((*range(0xD800, 0xE000), 0xFFFE, 0xFFFF), 0xFFFD)
    return signs


_SIGNS = _map_control_characters()
"""Characters that no drawing and no page may hold, as the chart library ends the process at them, and Unicode's picture
of each, so that names that differ in them still differ; one sign for all halves of characters.
"""


def escape_control(text: str) -> str:
    """Replace control characters and lone surrogates by visible signs."""
    return text.translate(_SIGNS)


def escape_control_in(value: Any) -> Any:
    """Replace control characters in every text inside dictionaries and lists."""
    if isinstance(value, str):
        return escape_control(value)
    if isinstance(value, dict):
        return {
            escape_control_in(key): escape_control_in(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [escape_control_in(inner) for inner in value]
    return value


def list_distinct(values: pd.Series) -> list[Any]:
    """Return the distinct values of a column, in order of appearance."""
    return list(dict.fromkeys(values))


def colour(
    values: pd.Series,
    name: str,
    width: int,
    *,
    gradient: bool = False,
    pale: Mapping[str, str] | None = None,
) -> alt.Color:
    """Return the colour encoding of series: palette colours in order of appearance, or with `gradient` orange to
    violet.

    values   the column that names the series; numbers, with `gradient`
    name     its name
    width    of the chart, for the legend. A single series gets none
    pale     {series: another series, of whose colour it gets a pale shade}
    """
    if gradient:
        legend = alt.Legend(
            title=name,
            type="gradient",
            gradientLength=160,
            gradientThickness=9,
            tickMinStep=1,
        )
        return alt.Color(
            f"{name}:Q",
            scale=alt.Scale(range=list(GRADIENT), interpolate="lab"),
            legend=legend,
        )
    # A domain that is given keeps the order of appearance; Vega would sort names.
    order = list_distinct(values)
    scale = alt.Scale(domain=order)
    if pale:
        scale = alt.Scale(domain=order, range=_choose_colours(order, pale))
    return alt.Color(f"{name}:N", scale=scale, legend=_make_legend(order, width))


def _choose_colours(order: list[Any], pale: Mapping[str, str]) -> list[str]:
    """Return a colour for each series in `order`: one of the palette, or the pale shade that `pale` gives it."""
    # Pale series take no colour of the palette, so that the others keep the colours
    # that they have in a chart without these.
    strong = [name for name in order if name not in pale]
    colours = dict(zip(strong, cycle(PALETTE), strict=False))
    for name, model in pale.items():
        if name in order:
            colours[name] = _lighten(colours[model])
    return [colours[name] for name in order]


def _lighten(colour: str) -> str:
    """Mix a colour (`#0072b2`) with white, so that a third of it is left."""
    lighter = [255 - (255 - channel) // 3 for channel in bytes.fromhex(colour[1:])]
    return f"#{bytes(lighter).hex()}"


def shape(values: pd.Series, name: str, width: int) -> alt.Shape:
    """Return the encoding that gives each series a point shape of its own, so that colour is never the only cue.

    values   the column that names the series
    name     its name
    width    of the chart in pixels, for the legend
    """
    order = list_distinct(values)
    shapes = list(islice(cycle(SHAPES), len(order)))
    scale = alt.Scale(domain=order, range=shapes)
    return alt.Shape(f"{name}:N", scale=scale, legend=_make_legend(order, width))


def _make_legend(order: list[Any], width: int) -> alt.Legend | None:
    """Return the legend of a chart: in one row if the names fit its width, else in columns; None for a single series.

    order   names of the series
    width   of the chart in pixels
    """
    if len(order) < 2:
        return None
    # Estimates in pixels, with the symbol and the space around the name.
    lengths = [7 * len(str(name)) + 26 for name in order]
    # 0 puts all names in one row.
    columns = 0
    if sum(lengths) > width:
        columns = max(1, width // max(lengths))
    return alt.Legend(title=None, columns=columns)


def facet(
    layers: Sequence[alt.Chart],
    data: pd.DataFrame,
    panel: str | None,
    size: tuple[int, int],
    columns: int = 1,
    *,
    independent: bool = False,
) -> ChartType:
    """Combine chart layers over one table into a chart; with `panel`, into small multiples that share the width.

    data          the table
    panel         column that divides it into small multiples; None: a single chart
    size          whole width, and height of a panel
    independent   give each panel its own vertical axis
    """
    width, height = size
    if panel is None:
        # Only the outermost chart holds the table: parts inherit it.
        return _stack_layers(layers, width, height, data)
    order = list_distinct(data[panel])
    columns = max(1, min(columns, len(order)))
    # An axis of its own takes room between panels.
    gap = 64 if independent else 24
    # Small multiples take their table from the facet.
    inner = _stack_layers(layers, (width - (columns - 1) * gap) // columns, height)
    chart: alt.FacetChart = inner.facet(
        alt.Facet(f"{panel}:N", sort=order, title=None), data=data, columns=columns
    )
    chart = chart.properties(spacing=28)
    if independent:
        chart = chart.resolve_scale(y="independent")
    return chart


def _stack_layers(
    layers: Sequence[alt.Chart], width: int, height: int, data: Any = alt.Undefined
) -> alt.LayerChart:
    """Return a layered chart like `alt.layer`, without its slow copies; the layers must have no data of their own."""
    chart = alt.LayerChart(data=data, width=width, height=height)
    chart.layer = list(layers)
    return chart


def make_tooltips(frame: pd.DataFrame, *names: str | None) -> list[str]:
    """Return the tooltip of each row's mark: entries of some columns, the value, and its interval if there is one.

    names   columns that say what the mark is; None is skipped
    """
    columns = []
    # One column may serve twice, as axis and as series: it is named once.
    for name in dict.fromkeys(names):
        if name:
            columns.append(_word_entries(frame[name], name))
    intervals = [""] * len(frame)
    if {"low", "high"} <= set(frame):
        ends = zip(frame["low"].astype(float), frame["high"].astype(float), strict=True)
        intervals = [_format_interval(low, high) for low, high in ends]
    tooltips = []
    values = frame["value"].astype(float)
    for *entries, value, interval in zip(*columns, values, intervals, strict=True):
        label = " · ".join(entries)
        tooltips.append(f"{TOOLTIP}{label}: {value:.4g}{interval}")
    return tooltips


def _word_entries(values: pd.Series, name: str) -> list[str]:
    """Return the entries of a column as words: texts unchanged, numbers after the column's `name`, as in `layer 3`."""
    words = []
    for value in values:
        words.append(value if isinstance(value, str) else f"{name} {value:g}")
    return words


def _format_interval(low: float, high: float) -> str:
    """Format the ends of an interval as ` [0.1, 0.3]`, to follow a value; empty if an end is undefined."""
    if isnan(low) or isnan(high):
        return ""
    return f" [{low:.3g}, {high:.3g}]"


def format_compact(value: float) -> str:
    """Format a number in the few characters of a cell: `.42`, `−.07`, `3.1`, `128`, `2e5`; nothing if undefined."""
    if isnan(value):
        return ""
    size = abs(value)
    # Limits are where a number would round up to one more digit.
    if size < 0.995:
        text = f"{size:.2f}".removeprefix("0")
    elif size < 99.5:
        text = f"{size:.1f}"
    elif size < 99_999.5:
        text = f"{size:.0f}"
    else:
        text = f"{size:.0e}".replace("e+0", "e").replace("e+", "e")
    # −0.001 is written as 0, which has no sign.
    is_zero = not text.strip(".0")
    if value < 0 and not is_zero:
        return f"−{text}"
    return text


def ribbon(
    base: alt.Chart,
    title: str,
    low: str = "low",
    high: str = "high",
    *,
    opacity: float = 0.2,
) -> alt.Chart:
    """Return a band between the columns `low` and `high` under a line, for rows that have an interval.

    base    the chart with the horizontal axis
    title   of the vertical axis
    """
    area: alt.Chart = base.transform_filter(f"isValid(datum.{low})").mark_area(
        opacity=opacity
    )
    return area.encode(y=alt.Y(f"{low}:Q", title=title), y2=alt.Y2(f"{high}:Q"))


def whisker(
    base: alt.Chart, title: str, *, flat: bool = False, **look: Any
) -> alt.Chart:
    """Return a line between the columns `low` and `high` through a point, for rows that have an interval.

    base    the chart with one axis and the colours
    title   of the axis of values
    flat    a horizontal line, over a bar
    """
    rule: alt.Chart = base.transform_filter("isValid(datum.low)").mark_rule(**look)
    if flat:
        return rule.encode(x=alt.X("low:Q", title=title), x2=alt.X2("high:Q"))
    return rule.encode(y=alt.Y("low:Q", title=title), y2=alt.Y2("high:Q"))


def level(value: float, title: str, name: str = "") -> list[alt.Chart]:
    """Return chart layers with a dashed horizontal line at `value`.

    title   of the vertical axis
    name    text at the right end of the line; empty: none
    """
    # All rows become one, so that the line is drawn once, whatever table the chart
    # holds.
    at = (
        alt.Chart()
        .transform_aggregate(rows="count()")
        .transform_calculate(at=str(value), name=f"'{name}'")
    )
    at = at.encode(y=alt.Y("at:Q", title=title))
    line = at.mark_rule(strokeDash=DASHED, color=MUTED)
    if not name:
        return [line]
    text = at.mark_text(
        align="right", baseline="bottom", dx=-3, dy=-3, color=MUTED, fontSize=10
    )
    return [line, text.encode(x=alt.value("width"), text=alt.Text("name:N"))]


def between(low: float, high: float, title: str, *, opacity: float) -> alt.Chart:
    """Return a grey horizontal band between two numbers; `title` is that of the vertical axis."""
    ends = {"floor": str(low), "ceiling": str(high)}
    # One row, as in `level`: pale bands of many rows would add up to a dark one.
    across = alt.Chart().transform_aggregate(rows="count()").transform_calculate(**ends)
    band: alt.Chart = across.mark_rect(color=MUTED, opacity=opacity)
    return band.encode(y=alt.Y("floor:Q", title=title), y2=alt.Y2("ceiling:Q"))


def number_axis(field: str, title: str, values: pd.Series, scale: Scale) -> alt.X:
    """Return a horizontal axis for the numbers in the column `field`, with ticks that fit the scale.

    values   the numbers

    On a linear axis of layers or steps, ticks are whole numbers. On a log or symlog axis they are the least value above
    0 and its tenfolds, with 0 on a symlog axis if it is reached; if values have both signs, the tenfolds of 1.
    """
    # A log axis without a number above 0 has nothing to show.
    if scale == "linear" or not (values > 0).any():
        return _make_linear_axis(field, title, values)
    least = float(values.min())
    # With both signs the smallest number above 0 says nothing about those below it.
    first = 1.0
    if least >= 0:
        first = float(values[values > 0].min())
    # A symlog axis is linear up to this number.
    constant = first if scale == "symlog" else alt.Undefined
    return alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type=scale, nice=False, zero=False, constant=constant),
        axis=alt.Axis(
            values=_choose_ticks(values, first, scale),
            labelExpr="format(datum.value, '~s')",
            labelOverlap=True,
        ),
    )


def _choose_ticks(values: pd.Series, first: float, scale: Scale) -> list[float]:
    """Return the ticks of a log or symlog axis: tenfolds, with 0 and below 0 as far as there are such values.

    first   the smallest tick above 0
    """
    least = float(values.min())
    last = float(values.abs().max())
    tenfolds = []
    # At most twenty of them, however small the first one is.
    for k in range(20):
        tick = first * 10.0**k
        if tick <= last:
            tenfolds.append(tick)
    ticks = list(tenfolds)
    if scale == "symlog" and least <= 0:
        ticks.insert(0, 0.0)
    if least < 0:
        ticks += [-tick for tick in tenfolds]
    return ticks


def _make_linear_axis(field: str, title: str, values: pd.Series) -> alt.X:
    """Return a linear horizontal axis for the numbers in the column `field`; ticks of layers or steps are whole."""
    least, largest = float(values.min()), float(values.max())
    # The output after the final norm is half a layer after the last.
    is_whole = bool((values % 0.5 == 0).all())
    if is_whole and largest - least <= WHOLE_STEPS:
        steps = range(ceil(least), floor(largest) + 1)
        axis = alt.Axis(values=list(steps), format="d")
    elif is_whole:
        axis = alt.Axis(tickMinStep=1)
    else:
        axis = alt.Axis()
    # Lines over whole numbers (layers, steps) have a mark at the first: without room
    # the vertical axis would cut through it.
    scale = alt.Scale(zero=False, nice=False, padding=ROOM if is_whole else 0)
    return alt.X(f"{field}:Q", title=title, scale=scale, axis=axis)


def compute_luminance(colour: str) -> float:
    """Return the relative luminance [0, 1] of a colour written as #rrggbb (WCAG 2.2)."""
    total = 0.0
    for byte, weight in zip(
        bytes.fromhex(colour[1:]), (0.2126, 0.7152, 0.0722), strict=True
    ):
        channel = byte / 255
        total += weight * _to_linear(channel)
    return total


def _to_linear(channel: float) -> float:
    """Return the intensity [0, 1] of one channel of a colour, from its value in sRGB [0, 1]."""
    # The transfer function of sRGB: linear near black, a power above.
    if channel <= 0.04045:
        return channel / 12.92
    return float(((channel + 0.055) / 1.055) ** 2.4)


def find_bounds(values: pd.Series, diverging: bool) -> tuple[float, float]:
    """Return the lowest and the highest value on the scale of colours of a heat map.

    diverging   put 0 in the middle of the scale
    """
    if not diverging:
        return float(values.min()), float(values.max())
    # If all are 0, a scale from 0 to 0 would have no colours.
    largest = float(values.abs().max()) or 1.0
    return -largest, largest


def mix_evenly(colours: Sequence[str], count: int) -> list[str]:
    """Return `count` colours between the given ones (`#0072b2`), evenly spaced, as a gradient of CSS mixes them."""
    given = np.array(
        [list(bytes.fromhex(colour[1:])) for colour in colours]
    )  # [colour, channel]
    places = np.linspace(0, len(colours) - 1, count)
    mixed = np.empty((count, 3), np.uint8)
    for channel in range(3):
        mixed[:, channel] = np.rint(
            np.interp(places, range(len(colours)), given[:, channel])
        )
    return [f"#{bytes(row.tolist()).hex()}" for row in mixed]


def needs_white_ink(share: pd.Series, shades: Sequence[str]) -> pd.Series:
    """Return for each cell of a heat map whether white text on it is easier to read than black text.

    share    where the cell's value is on the scale of colours, from 0 to 1
    shades   the colours of the scale, evenly spaced, interpolated in CIE Lab
    """
    # Lab's lightness is linear in the cube root of the luminance.
    roots = np.cbrt([compute_luminance(shade) for shade in shades])
    # Back to luminance: the colour of a cell between two shades is mixed in Lab.
    found = (
        np.interp(share.astype("float64"), np.linspace(0, 1, len(shades)), roots) ** 3
    )
    return pd.Series(found < WHITE_BELOW, index=share.index)
