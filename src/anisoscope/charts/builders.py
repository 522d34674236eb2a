"""Charts from records: one theme, six builders, and an export that gives the same bytes on every redraw.

A builder takes rows of the long table (`value`, and `low`/`high` where there is an interval) and returns an altair
chart that carries no style of its own; `to_svg` and `save` apply the theme. `panel` names a column to draw small
multiples of. Frames may hold undefined values: they leave gaps.
"""

import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import altair as alt
import pandas as pd
import vl_convert
from altair.typing import ChartType

from anisoscope.charts.stable_pdf import stable_pdf
from anisoscope.charts.style import (
    DIVERGING,
    INK,
    PALETTE,
    SEQUENTIAL,
    THEME,
    TOOLTIP,
    Scale,
    appearance,
    cell_labels,
    colour,
    facet,
    isotropic_marks,
    layered,
    levels,
    line_table,
    printable_in,
    shape,
    step_axis,
    tooltips,
)
from anisoscope.errors import UsageError

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
    """Lines of `value` against a numeric `x`, one per series, with a ribbon from `low` to `high`.

    `gradient` colours the series, then numbers, from light to dark. `isotropic` marks what isotropic vectors would
    reach: one height or one per series. `independent` gives each panel its own vertical axis, `coincide` keeps lines
    visible that lie on each other. Rows with a false `joined` stand alone as open diamonds.
    """
    data = line_table(frame, x, series, panel)
    place = alt.X(
        f"{x}:Q",
        title=titles[0],
        scale=alt.Scale(type=scale, zero=False, nice=False),
        axis=step_axis(data[x], scale),
    )
    height = alt.Y("value:Q", title=titles[1], scale=alt.Scale(zero=zero))
    low, high = alt.Y("low:Q", title=titles[1]), alt.Y2("high:Q")
    hue = colour(frame[series], series, size[0], gradient=gradient)
    base = alt.Chart().encode(x=place, color=hue, detail=f"{series}:N")
    line = base.transform_filter("datum.joined")
    layers: list[alt.Chart] = []
    if isotropic is not None:
        data["isotropic"] = data[series].map(isotropic) if isinstance(isotropic, Mapping) else isotropic
        layers += isotropic_marks(series if isinstance(isotropic, Mapping) else None, hue, titles[1])
    if band:
        layers.append(line.transform_filter("isValid(datum.low)").mark_area(opacity=0.2).encode(y=low, y2=high))
    dash, point = layered(frame[series].nunique()) if coincide else ({}, {})
    layers.append(line.mark_line().encode(y=height, **dash))
    if not gradient and len(data) <= MARKED * data.groupby([series, *([panel] if panel else [])]).ngroups:
        marks = line.mark_point().encode(y=height, shape=shape(frame[series], series, size[0]), **point)
        layers.append(marks.encode(description="tooltip:N"))
    if not data["joined"].all():
        alone = base.transform_filter("!datum.joined")
        layers.append(alone.transform_filter("isValid(datum.low)").mark_rule().encode(y=low, y2=high))
        layers.append(
            alone.mark_point(filled=False, shape="diamond", size=64).encode(y=height, description="tooltip:N")
        )
    return facet(layers, data, panel, size, columns, independent=independent)


def layer_curve(
    frame: pd.DataFrame,
    *,
    series: str = "model",
    panel: str | None = None,
    title: str = "anisotropy A",
    band: bool = True,
    isotropic: float | Mapping[str, float] | None = None,
    zero: bool = True,
    independent: bool = False,
    coincide: bool = False,
    size: Size = (640, 300),
    columns: int = 2,
) -> ChartType:
    """A quantity per layer, one line per series; the site `final` stands past the last layer as an open diamond."""
    final = (
        frame["site"].eq("final").fillna(False).astype(bool) if "site" in frame else pd.Series(False, index=frame.index)
    )
    return trajectory(
        frame.assign(layer=frame["layer"].astype(float) + 0.5 * final, joined=~final),
        x="layer",
        series=series,
        panel=panel,
        titles=("layer", title),
        band=band,
        isotropic=isotropic,
        zero=zero,
        independent=independent,
        coincide=coincide,
        size=size,
        columns=columns,
    )


def heatmap(
    frame: pd.DataFrame,
    *,
    x: str = "head",
    y: str = "layer",
    panel: str | None = None,
    title: str = "value",
    names: tuple[str, str] | None = None,
    diverging: bool = False,
    domain: tuple[float, float] | None = None,
    size: Size = (640, 26),
    columns: int = 1,
) -> ChartType:
    """Cells of `value` over two discrete axes, first row on top; `size` is the whole width and the height of one row.

    `diverging` centres the colours at 0 and puts a value whose interval holds 0 in brackets. Where numbers do not
    fit, such a cell bears a dot.
    """
    across, down = levels(frame[x]), levels(frame[y])
    largest = float(frame["value"].abs().max()) or 1.0
    smallest, highest = domain or (float(frame["value"].min()), float(frame["value"].max()))
    bounds = (-largest, largest) if diverging else (smallest, highest)
    share = size[0] / (len(across) * min(columns, frame[panel].nunique() if panel else 1))
    data = frame[[x, y, "value", *([panel] if panel else [])]].astype({x: str, y: str})
    data["tooltip"] = tooltips(frame, *([panel] if panel else []), y, x)
    data["label"] = cell_labels(frame, diverging, numbers=share >= 30 and size[1] >= 16)
    data["dark"] = data["value"].abs() > 0.55 * largest if diverging else data["value"] > sum(bounds) / 2
    colours = alt.Scale(
        domain=list(bounds),
        range=list(DIVERGING if diverging else SEQUENTIAL),
        interpolate="lab",
        zero=False,
        nice=False,
    )
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
    label: str | None = None,
    path: bool = False,
    titles: tuple[str, str] | None = None,
    scale: Scale = "linear",
    size: Size = (640, 320),
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
    points = base.mark_point(size=60)
    layers = [points.encode(shape=shape(frame[series], series, size[0]), description="tooltip:N")]
    if path:
        line = base.transform_filter("datum.joined").mark_line(strokeWidth=1, opacity=0.45)
        layers.insert(0, line.encode(order="row:Q"))
    if {"low", "high"} <= set(frame):
        rule = base.transform_filter("isValid(datum.low)").mark_rule(opacity=0.6)
        layers.insert(0, rule.encode(y=alt.Y("low:Q", title=up), y2="high:Q"))
    if label is not None:
        text = base.mark_text(align="left", dx=8, dy=-6, fontSize=11)
        layers.append(text.encode(text=f"{label}:N", color=alt.value(INK)))
    kept = [key for key in (x, y, series, label, "low", "high", "row", "joined", "tooltip") if key in data]
    return facet(layers, data[list(dict.fromkeys(kept))], None, size, 1)


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
    layers = [
        base.mark_area(opacity=0.15, interpolate="step-after"),
        base.mark_line(strokeWidth=1.5, interpolate="step-after"),
    ]
    return facet(layers, data, panel, size, columns)


def bars(
    frame: pd.DataFrame,
    *,
    category: str,
    titles: tuple[str, str] = ("value", ""),
    panel: str | None = None,
    size: Size = (640, 22),
) -> ChartType:
    """Horizontal bars in row order with the interval over each; `size` is the whole width and the height of one bar."""
    data = frame.astype({category: str})
    order = appearance(data[category])
    base = alt.Chart().encode(y=alt.Y(f"{category}:N", sort=order, title=titles[1], axis=alt.Axis(ticks=False)))
    data["tooltip"] = tooltips(data, *([panel] if panel else []), category)
    lengths = base.mark_bar(color=PALETTE[0], height={"band": 0.62})
    layers = [lengths.encode(x=alt.X("value:Q", title=titles[0]), description="tooltip:N")]
    if {"low", "high"} <= set(frame):
        rule = base.transform_filter("isValid(datum.low)").mark_rule(color=INK)
        layers.append(rule.encode(x=alt.X("low:Q", title=titles[0]), x2="high:Q"))
    kept = [key for key in (category, panel, "value", "low", "high", "tooltip") if key and key in data]
    return facet(layers, data[kept], panel, (size[0], size[1] * len(order)), 2)


def to_svg(chart: ChartType, name: str = "mark") -> str:
    """The chart as SVG; its ids count from 0 behind `name`, so redraws are identical and a page can hold many."""
    return to_svgs({name: chart})[name]


def to_svgs(charts: Mapping[str, ChartType]) -> dict[str, str]:
    """Charts by name as SVG, drawn side by side: the renderer works outside the interpreter's lock."""
    with alt.data_transformers.enable("default", max_rows=None):
        described = [printable_in(chart.to_dict(validate=False)) for chart in charts.values()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(charts, pool.map(_drawn, described, charts), strict=True))


def _drawn(described: dict[str, Any], name: str) -> str:
    drawn = _with_tooltips(vl_convert.vegalite_to_svg(described, config=THEME))
    found = dict.fromkeys(re.findall(r'\bid="([^"]+)"', drawn))
    ids = {old: f"{name}-{i}" for i, old in enumerate(found)}
    return re.sub(r'(\bid="|url\(#|href="#)([^")]+)', lambda match: match[1] + ids.get(match[2], match[2]), drawn)


def _with_tooltips(svg: str) -> str:
    """Descriptions that begin with `TOOLTIP` as native tooltips of their marks; all other words for screen readers go:
    a chart is one picture with one description, which the page gives.
    """
    mark = re.compile(rf'<path aria-label="{TOOLTIP}([^"]*)"([^>]*?)(?:/>|></path>)')
    svg = mark.sub(r"<path\2><title>\1</title></path>", svg)
    return re.sub(r' (?:role|aria-[a-z]+)="[^"]*"', "", svg)


def save(chart: ChartType, stem: Path, formats: Iterable[str] = ("svg", "pdf")) -> list[Path]:
    """Write the chart as `stem`.svg, .pdf, .png; the same chart always gives the same bytes."""
    return write(to_svg(chart, stem.name), stem, formats)


def write(svg: str, stem: Path, formats: Iterable[str]) -> list[Path]:
    """Write a drawing as `stem`.svg, .pdf, .png."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix in formats:
        if suffix == "svg":
            content = svg.encode()
        elif suffix == "pdf":
            content = stable_pdf(vl_convert.svg_to_pdf(svg))
        elif suffix == "png":
            on_white = svg.replace(">", '><rect width="100%" height="100%" fill="white"/>', 1)
            content = vl_convert.svg_to_png(on_white, scale=2)
        else:
            raise UsageError("a figure format among svg, pdf, png", repr(suffix))
        written.append(stem.with_name(f"{stem.name}.{suffix}"))
        written[-1].write_bytes(content)
    return written
