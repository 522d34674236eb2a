"""Draw charts of a series of checkpoints: quantities against the training step, and point clouds and paths of one head.

The axis of steps is linear up to the first checkpoint after step 0 and logarithmic from there, so that step 0 is shown.
"""

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.style import (
    GRID,
    INK,
    OTHER,
    PALETTE,
    between,
    colour,
    facet,
    level,
    number_axis,
    ribbon,
)
from anisoscope.store import select

WIDTH = 640
ENDINGS = {1: "ends similar", -1: "ends opposite", 0: "neither"}
SIDES = {"query": "queries", "key": "keys"}
MOST_LAYERS = 6
"""Layers drawn in panels of their own; of deeper models as many, evenly spread from the first to the last."""


def draw_heads(
    records: pd.DataFrame, endings: pd.Series, bound: float, *, apart: bool = False
) -> ChartType:
    """Draw cos(Q̄, K̄), the cosine of mean query and mean key, against the step: a line per head, a panel per layer.

    endings   1, −1 or 0 (keys of `ENDINGS`: how the head's means end) by seed, layer and head
    bound     a band marks ±`bound`, inside which 95 % of isotropic pairs stay
    apart     a panel per layer and seed
    """
    data = _select_with_endings(records, "query_key.cosine", endings)
    shown = _choose_layers(sorted(data["layer"].unique()))
    columns = 2
    if apart:
        # Panels of all seeds need room: only the first and the last layer are drawn.
        shown = shown[:: max(1, len(shown) - 1)]
        # A row of panels for each layer, at most five in a row.
        columns = min(data["seed"].nunique(), 5)
    data = data[data["layer"].isin(shown)]
    data["panel"] = "layer " + data["layer"].astype(str)
    if apart:
        data = data.sort_values(["layer", "seed"], kind="stable")
        data["panel"] += ", seed " + data["seed"].astype(str)
    title = "cosine of the means"
    height = alt.Y(
        "value:Q",
        title=title,
        # All a cosine can be, so that panels and charts compare.
        scale=alt.Scale(domain=[-1, 1]),
        axis=alt.Axis(values=[-1, -0.5, 0, 0.5, 1]),
    )
    colours = _make_colours(
        "ending",
        dict(zip(ENDINGS.values(), (PALETTE[0], PALETTE[1], OTHER), strict=True)),
    )
    line = alt.Chart().mark_line(strokeWidth=1.4, opacity=0.8)
    line = line.encode(
        x=_make_step_axis(data), y=height, detail=["head:N", "seed:N"], color=colours
    )
    # Inside the band a head's cosine may be chance (App. B of Godey et al. 2024).
    layers = [
        between(-bound, bound, title, opacity=0.09),
        *level(-bound, title),
        *level(bound, title),
        line,
    ]
    return facet(layers, data, "panel", (WIDTH, 150), columns)


def draw_products(records: pd.DataFrame, endings: pd.Series) -> ChartType:
    """Draw Q̄·K̄, the scalar product of mean query and mean key of each head, against the step.

    One panel for heads whose means end similar, one for opposite (`endings`: 1 or −1, by seed, layer and head). Line
    colours run from orange (first layer) to violet (last).
    """
    data = _select_with_endings(records, "query_key.dot", endings)
    # Figure 14 shows heads that end similar or opposite, and leaves out the others.
    data = data[data["ending"] != ENDINGS[0]].sort_values(
        "ending", ascending=False, kind="stable"
    )
    data["panel"] = data["ending"].str.replace("ends", "heads that end")
    hue = colour(data["layer"], "layer", WIDTH, gradient=True)
    height = alt.Y("value:Q", title="product of the means")
    line = alt.Chart().mark_line(strokeWidth=1.6)
    line = line.encode(
        x=_make_step_axis(data), y=height, detail=["head:N", "layer:N"], color=hue
    )
    # Products have no common scale: each panel gets its own axis.
    return facet(
        [_draw_origin("y"), line], data, "panel", (WIDTH, 240), 2, independent=True
    )


def draw_layers(data: pd.DataFrame, title: str) -> ChartType:
    """Draw a line per layer against the training step; the first and the last layer are coloured, the others grey.

    `data`: columns step, layer, value, low, high; `title`: of the vertical axis.
    """
    first = data["layer"].min()
    last = data["layer"].max()
    # Figure 15 compares the first layers with the last ones.
    names = {first: f"layer {first}", last: f"layer {last}"}
    data["place"] = [names.get(layer, "layers between") for layer in data["layer"]]
    colours = {
        names[first]: PALETTE[0],
        "layers between": OTHER,
        names[last]: PALETTE[1],
    }
    # In models of two layers none lies between, and the legend must not name such layers.
    places = set(data["place"])
    hue = _make_colours(
        "place", {name: colours[name] for name in colours if name in places}
    )
    base = alt.Chart().encode(x=_make_step_axis(data), color=hue, detail="layer:N")
    # Bands of all layers would cover each other.
    ends = base.transform_filter("datum.place != 'layers between'")
    band = ribbon(ends, title, opacity=0.15)
    line = base.mark_line().encode(
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
    )
    return facet([band, line], data, None, (WIDTH, 280))


def draw_parts(
    of_parts: Mapping[str, pd.DataFrame], title: str, *, zero: bool = False
) -> ChartType:
    """Draw one line per named part (a key of `of_parts`) against the training step, a panel per layer.

    The third line, which may coincide with the first, is dashed. `title`: of the vertical axis; `zero`: whether it
    includes 0.
    """
    named = [part.assign(part=name) for name, part in of_parts.items()]
    data = pd.concat(named, ignore_index=True)
    shown = _choose_layers(sorted(data["layer"].unique()))
    data = data[data["layer"].isin(shown)].sort_values("layer", kind="stable")
    data["panel"] = "layer " + data["layer"].astype(str)
    hue = _make_colours("part", dict(zip(of_parts, (*PALETTE[:2], INK), strict=False)))
    # A line that coincides with another stays visible if it is dashed.
    dash = alt.Scale(
        domain=list(of_parts), range=[[1, 0], [1, 0], [5, 5]][: len(of_parts)]
    )
    base = alt.Chart().encode(x=_make_step_axis(data), color=hue)
    line = base.mark_line().encode(
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=zero)),
        strokeDash=alt.StrokeDash(
            "part:N",
            scale=dash,
            legend=alt.Legend(title=None, columns=0, symbolType="stroke"),
        ),
    )
    return facet(
        [ribbon(base, title, opacity=0.15), line], data, "panel", (WIDTH, 150), 2
    )


def draw_clouds(records: pd.DataFrame, basis: str, title: str) -> ChartType:
    """Draw sampled queries and keys of one head in their common plane, a panel per step, with their means as rings.

    basis   whose SVD spans the plane: `query`, `key`, `union` (both)
    title   of the legend
    """
    parts = []
    for side, word in SIDES.items():
        # A row for each coordinate; its component is `point direction`, as in `17 2`.
        points = select(records, metric=f"svd.{basis}.cloud.{side}")
        place = points["component"].str.split(" ", expand=True)
        points = points.assign(point=place[0], direction="d" + place[1])
        wide = points.pivot_table(
            index=["step", "point"], columns="direction", values="value"
        ).reset_index()
        # Points are kept of a few steps (figure 11), means of all: the same are taken.
        means = select(
            _select_path(records, basis, side), step=wide["step"].unique().tolist()
        )
        parts += [
            wide.assign(side=word, mean=False),
            means.assign(side=word, mean=True),
        ]
    data = pd.concat(parts, ignore_index=True)[
        ["step", "d1", "d2", "side", "mean"]
    ].sort_values("step", kind="stable")
    data["panel"] = [f"step {step:,}" for step in data["step"]]
    base = alt.Chart().encode(
        x=alt.X(
            "d1:Q",
            title="first direction",
            scale=alt.Scale(zero=True),
            axis=alt.Axis(tickCount=6),
        ),
        y=alt.Y(
            "d2:Q",
            title="second direction",
            scale=alt.Scale(zero=True),
            axis=alt.Axis(tickCount=5),
        ),
        color=_make_side_colours(title),
    )
    cloud = base.transform_filter("!datum.mean").mark_point(size=9, opacity=0.4)
    centres = base.transform_filter("datum.mean")
    # A white rim sets the ring off from points of its own colour.
    rim = centres.mark_point(filled=False, size=130, strokeWidth=4.5).encode(
        color=alt.value("#ffffff")
    )
    ring = centres.mark_point(filled=False, size=130, strokeWidth=2.2)
    return facet(
        [_draw_origin("x"), _draw_origin("y"), cloud, rim, ring],
        data,
        "panel",
        (WIDTH, 210),
        2,
    )


def draw_paths(panels: Sequence[tuple[str, pd.DataFrame]], basis: str) -> ChartType:
    """Draw how mean query and mean key of a head move in a plane from checkpoint to checkpoint, as arrows.

    panels   (name, records) of each panel: a head
    basis    whose SVD spans the plane: `query`, `key`, `union` (both)
    """
    size = ((WIDTH - 70) // len(panels), 260)
    drawn: ChartType = alt.hconcat(
        *(_draw_path(name, records, basis, size) for name, records in panels),
        spacing=34,
    )
    return drawn


def _draw_path(
    name: str, records: pd.DataFrame, basis: str, size: tuple[int, int]
) -> ChartType:
    """Draw how mean query and mean key of one head move in a plane from checkpoint to checkpoint, as arrows.

    Arrows are turned by their angle on the page, so the ranges of the axes are fixed here.

    name    title of the panel
    basis   whose SVD spans the plane: `query`, `key`, `union` (both)
    size    (width, height) in pixels
    """
    paths = []
    for side, word in SIDES.items():
        paths.append(_select_path(records, basis, side).assign(side=word))
    data = pd.concat(paths)
    ranges = [_pad_range(data[column]) for column in ("d1", "d2")]
    # Where the next checkpoint is; the last one has none, and no arrow.
    data[["next1", "next2"]] = data.groupby("side", sort=False)[["d1", "d2"]].shift(-1)
    # In pixels: the axes have different scales, and a head must lie along its line.
    moved = []
    for k, (low, high), length in zip((1, 2), ranges, size, strict=True):
        moved.append((data[f"next{k}"] - data[f"d{k}"]) / (high - low) * length)
    across, up = moved
    # Vega turns marks clockwise from the upright, hence arctan2(across, up).
    data["angle"] = np.degrees(np.arctan2(across, up))
    # Only the ends have numbers: those of all checkpoints would overlap.
    ends = (data["step"].min(), data["step"].max())
    data["label"] = [f"{step:,}" if step in ends else "" for step in data["step"]]
    x = alt.X(
        "d1:Q", title="first direction", scale=alt.Scale(domain=ranges[0], nice=False)
    )
    y = alt.Y(
        "d2:Q", title="second direction", scale=alt.Scale(domain=ranges[1], nice=False)
    )
    base = alt.Chart().encode(x=x.axis(tickCount=5), y=y, color=_make_side_colours())
    # Every checkpoint but the last begins an arrow, with its head at the next one.
    moving = base.transform_filter("isValid(datum.next1)")
    # Vega would otherwise stretch the angles found to a whole turn.
    turned = alt.Angle("angle:Q", scale=alt.Scale(domain=[0, 360], range=[0, 360]))
    ahead = {
        "x": alt.X("next1:Q", title="first direction"),
        "y": alt.Y("next2:Q", title="second direction"),
    }
    layers = [
        _draw_origin("x"),
        _draw_origin("y"),
        moving.mark_rule(strokeWidth=1.3, opacity=0.75).encode(
            x2="next1:Q", y2="next2:Q"
        ),
        moving.mark_point(shape="triangle", size=46).encode(**ahead, angle=turned),
        base.transform_filter("datum.step == 0").mark_point(size=40),
        base.transform_filter("datum.label != ''")
        .mark_text(dy=-11, fontSize=10)
        .encode(text="label:N"),
    ]
    title = alt.Title(name, anchor="start", fontSize=13, fontWeight="normal", color=INK)
    return facet(layers, data, None, size).properties(title=title)


def _select_with_endings(
    records: pd.DataFrame, metric: str, endings: pd.Series
) -> pd.DataFrame:
    """Return the rows of a metric with integer keys, and how each head's means end, in words (column `ending`).

    `endings`: 1, −1 or 0 by seed, layer and head.
    """
    rows = select(records, metric=metric)
    places = ["seed", "layer", "head"]
    data = (
        rows[["seed", "step", "layer", "head"]]
        .astype(int)
        .assign(value=rows["value"].astype(float))
    )
    ending = endings.map(ENDINGS).rename("ending")
    # Panels come in the order of their first rows: by layer.
    return data.sort_values([*places, "step"]).join(ending, on=places)


def _select_path(records: pd.DataFrame, basis: str, side: str) -> pd.DataFrame:
    """Return a table with the coordinates of a mean query or mean key in a plane: `step`, `d1`, `d2`.

    records   of one head; the first seed is taken
    basis     whose SVD spans the plane: `query`, `key`, `union` (both)
    side      `query` or `key`
    """
    rows = select(records, metric=f"svd.{basis}.{side}")
    # Each seed has an SVD of its own, so that its plane has no meaning for others.
    rows = rows[rows["seed"] == rows["seed"].min()].astype({"step": int})
    directions = {}
    for k in (1, 2):
        of_direction = rows[rows["component"] == str(k)].set_index("step")
        directions[f"d{k}"] = of_direction["value"].astype(float)
    return pd.DataFrame(directions).sort_index().reset_index()


def _make_step_axis(data: pd.DataFrame) -> alt.X:
    """Return the horizontal axis of training steps."""
    return number_axis("step", "training step", data["step"], "symlog")


def _choose_layers(layers: Sequence[int]) -> list[int]:
    """Return all layers of a shallow model; for a deep one, `MOST_LAYERS` of them, evenly spread."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    # From the first to the last, both included.
    return [
        layers[round(i * (len(layers) - 1) / (MOST_LAYERS - 1))]
        for i in range(MOST_LAYERS)
    ]


def _make_colours(
    column: str,
    colours: Mapping[str, str],
    symbol: str = "stroke",
    title: str | None = None,
) -> alt.Color:
    """Return the colours of marks by the names in `column`, with a legend; `symbol`: the shape in the legend."""
    scale = alt.Scale(domain=list(colours), range=list(colours.values()))
    legend = alt.Legend(title=title, columns=0, symbolType=symbol)
    return alt.Color(f"{column}:N", scale=scale, legend=legend)


def _make_side_colours(title: str | None = None) -> alt.Color:
    """Return the colours of marks by side (queries and keys), with a legend."""
    return _make_colours(
        "side", dict(zip(SIDES.values(), PALETTE, strict=False)), "circle", title
    )


def _draw_origin(axis: str) -> alt.Chart:
    """Draw a pale line at 0 of one axis ("x" or "y")."""
    zero: alt.Chart = alt.Chart().mark_rule(color=GRID).encode(**{axis: alt.datum(0)})
    return zero


def _pad_range(values: pd.Series) -> list[float]:
    """Return a range that holds the values and 0, with 10 % of room at both ends."""
    low = min(0.0, float(values.min()))
    high = max(0.0, float(values.max()))
    # A range of one point, 0, would have no width.
    room = 0.1 * ((high - low) or 1.0)
    return [low - room, high + room]
