"""Charts of a series of checkpoints: quantities against the step, clouds and paths in the plane of a head.

The axis of steps is linear up to the first checkpoint after step 0 and logarithmic from there, so that step 0 is shown.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType
from numpy.typing import NDArray

from anisoscope.charts.style import GRID, INK, MUTED, PALETTE, facet
from anisoscope.store import select
from anisoscope.sums.jackknife import over_seeds

WIDTH = 640


class HeadAlignments(Protocol):
    """How the mean query and key of every head end: see `studies.godey2024.series_claims`."""

    @property
    def bound(self) -> float: ...

    @property
    def table(self) -> Any: ...

    def ending(self) -> NDArray[Any]: ...


ENDINGS = {1: "ends similar", -1: "ends opposite", 0: "neither"}
ENDING_COLOURS = (PALETTE[0], PALETTE[1], "#9aa5b1")
SIDES = {"query": "queries", "key": "keys"}
SIDE_SCALE = alt.Scale(domain=list(SIDES.values()), range=[PALETTE[0], PALETTE[1]])
MOST_LAYERS = 6
"""Layers drawn in panels of their own; of deeper models as many, evenly spread from the first to the last."""


def step_axis(steps: Sequence[float]) -> alt.X:
    """Steps from 0 on, each decade as wide as the other."""
    first, last = min(s for s in steps if s > 0), max(steps)
    ticks = [0.0] * (min(steps) == 0) + [first * 10.0**k for k in range(20) if first * 10.0**k <= last]
    scale = alt.Scale(type="symlog", constant=first, nice=False, domain=[min(steps), last])
    axis = alt.Axis(values=ticks, labelExpr="format(datum.value, '~s')", labelOverlap=True)
    return alt.X("step:Q", title="training step", scale=scale, axis=axis)


def shown_layers(layers: Sequence[int]) -> list[int]:
    """All layers of a shallow model; of a deep one `MOST_LAYERS`."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    return [layers[round(i * (len(layers) - 1) / (MOST_LAYERS - 1))] for i in range(MOST_LAYERS)]


def _values(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Numbers of a metric with their keys as plain columns."""
    rows = select(records, metric=metric)
    keys = {name: rows[name].astype(int) for name in ("seed", "step", "layer", "head")}
    return pd.DataFrame({**keys, "value": rows["value"].astype(float)}).sort_values(["seed", "layer", "head", "step"])


def heads(records: pd.DataFrame, alignment: HeadAlignments, metric: str, *, apart: bool = False) -> ChartType:
    """A line per head against the step, a panel per layer (`apart`: and seed), with the band that 95 % of isotropic
    pairs stay inside.
    """
    data = _with_endings(_values(records, metric), alignment)
    shown = shown_layers(alignment.table.layers)
    data = data[data["layer"].isin(shown if not apart else shown[:: max(1, len(shown) - 1)])]
    data["panel"] = [f"layer {layer}" for layer in data["layer"]]
    if apart:
        data = data.sort_values(["layer", "seed"], kind="stable")
        data["panel"] = [f"{p}, seed {seed}" for p, seed in zip(data["panel"], data["seed"], strict=True)]
    data = data.assign(bound=alignment.bound, floor=-alignment.bound)
    lines = alt.Chart().encode(
        x=step_axis(alignment.table.steps),
        y=alt.Y(
            "value:Q",
            title="cosine of the means",
            scale=alt.Scale(domain=[-1, 1]),
            axis=alt.Axis(values=[-1, -0.5, 0, 0.5, 1]),
        ),
        detail=["head:N", "seed:N"],
        color=_ending_colour(),
    )
    line = lines.mark_line(strokeWidth=1.4, opacity=0.8)
    columns = data["seed"].nunique() if apart else 2
    return facet([*_bounds(), line], data, "panel", (WIDTH, 150), min(columns, 5))


def _bounds() -> list[alt.Chart]:
    """Dashed lines at ± the bound, and a pale band between them."""
    base = alt.Chart().transform_aggregate(bound="max(bound)", floor="min(floor)")
    band = base.mark_rect(color=MUTED, opacity=0.09).encode(y=alt.Y("floor:Q"), y2="bound:Q")
    ends = [base.mark_rule(color=MUTED, strokeDash=[4, 3]).encode(y=alt.Y(f"{end}:Q")) for end in ("floor", "bound")]
    return [band, *ends]


def _ending_colour() -> alt.Color:
    scale = alt.Scale(domain=list(ENDINGS.values()), range=list(ENDING_COLOURS))
    return alt.Color("ending:N", scale=scale, legend=alt.Legend(title=None, columns=0))


def _with_endings(data: pd.DataFrame, alignment: HeadAlignments) -> pd.DataFrame:
    """A column `ending`: how the head's means end."""
    ending, table = alignment.ending(), alignment.table
    places = zip(data["seed"], data["layer"], data["head"], strict=True)
    names = [ENDINGS[int(ending[table.seeds.index(s), table.layers.index(layer), h])] for s, layer, h in places]
    return data.assign(ending=names)


def products(records: pd.DataFrame, alignment: HeadAlignments) -> ChartType:
    """Q̄·K̄ of heads that end similar, and opposite: a panel each, lines from light (first layer) to dark."""
    data = _with_endings(_values(records, "query_key.dot"), alignment)
    data = data[data["ending"] != ENDINGS[0]].sort_values("ending", ascending=False, kind="stable")
    data["panel"] = data["ending"].str.replace("ends", "heads that end")
    legend = alt.Legend(title="layer", gradientLength=160, gradientThickness=9, tickMinStep=1)
    scale = alt.Scale(range=["#bcd5e8", "#2473a8", "#0b3c66"], interpolate="lab")
    base = alt.Chart().encode(
        x=step_axis(alignment.table.steps),
        y=alt.Y("value:Q", title="product of the means"),
        detail=["head:N", "layer:N"],
        color=alt.Color("layer:Q", scale=scale, legend=legend),
    )
    zero = alt.Chart().mark_rule(color=GRID).encode(y=alt.datum(0))
    return facet([zero, base.mark_line(strokeWidth=1.6)], data, "panel", (WIDTH, 240), 2, independent=True)


def _over_seeds(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Mean over heads of each layer at each step, over seeds, with its interval: layer, step, value, low, high."""
    data = _values(records, metric).groupby(["layer", "step", "seed"], as_index=False)["value"].mean()
    rows = []
    for (layer, step), group in data.groupby(["layer", "step"]):
        estimate = over_seeds(group["value"].to_numpy(float))._asdict()
        rows.append({"layer": layer, "step": step, **{name: float(x) for name, x in estimate.items()}})
    return pd.DataFrame(rows)


def layers(records: pd.DataFrame, metric: str, title: str) -> ChartType:
    """A line per layer, the first and the last marked, those between grey."""
    data = _over_seeds(records, metric)
    first, last = data["layer"].min(), data["layer"].max()
    names = {first: f"layer {first}", last: f"layer {last}"}
    data["place"] = [names.get(layer, "layers between") for layer in data["layer"]]
    order = [name for name in (names[first], "layers between", names[last]) if name in set(data["place"])]
    colours = {names[last]: PALETTE[1], "layers between": "#9aa5b1", names[first]: PALETTE[0]}
    scale = alt.Scale(domain=order, range=[colours[name] for name in order])
    height = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False))
    base = alt.Chart().encode(
        x=step_axis(data["step"].unique().tolist()),
        color=alt.Color("place:N", scale=scale, legend=alt.Legend(title=None, columns=0, symbolType="stroke")),
        detail="layer:N",
    )
    band = base.transform_filter("isValid(datum.low) && datum.place != 'layers between'").mark_area(opacity=0.15)
    line = base.mark_line().encode(y=height)
    return facet([band.encode(y=alt.Y("low:Q", title=title), y2="high:Q"), line], data, None, (WIDTH, 280), 1)


CENTRED = {
    "as it is": "attention.entropy",
    "queries centred": "centred_attention.query",
    "keys centred": "centred_attention.key",
}


def centred(records: pd.DataFrame) -> ChartType:
    """Entropy as it is, with queries centred, and with keys centred: a panel per layer."""
    return _panels(records, CENTRED, "entropy (nats)", dashes=[[1, 0], [1, 0], [5, 5]], zero=False)


def terms(records: pd.DataFrame) -> ChartType:
    """Shares of the variance of scores inside rows: a panel per layer."""
    names = {"by the mean query": "score_terms.mean_query_share", "by deviations": "score_terms.centred_share"}
    return _panels(records, names, "share of the variance in rows", dashes=[[1, 0], [1, 0]], zero=True)


def _panels(
    records: pd.DataFrame, names: dict[str, str], title: str, *, dashes: list[list[int]], zero: bool
) -> ChartType:
    """Metrics side by side, a panel per layer, with intervals over seeds."""
    parts = [_over_seeds(records, metric).assign(part=name) for name, metric in names.items()]
    data = pd.concat(parts, ignore_index=True)
    data = data[data["layer"].isin(shown_layers(sorted(data["layer"].unique())))].sort_values("layer", kind="stable")
    data["panel"] = [f"layer {layer}" for layer in data["layer"]]
    order = list(names)
    colours = [PALETTE[0], PALETTE[1], INK][: len(order)]
    legend = alt.Legend(title=None, columns=0, symbolType="stroke")
    dash = alt.StrokeDash("part:N", scale=alt.Scale(domain=order, range=dashes), legend=legend)
    base = alt.Chart().encode(
        x=step_axis(data["step"].unique().tolist()),
        color=alt.Color("part:N", scale=alt.Scale(domain=order, range=colours), legend=legend),
    )
    band = base.transform_filter("isValid(datum.low)").mark_area(opacity=0.15)
    line = base.mark_line().encode(y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=zero)), strokeDash=dash)
    layers = [band.encode(y=alt.Y("low:Q", title=title), y2="high:Q"), line]
    return facet(layers, data, "panel", (WIDTH, 150), 2)


def clouds(records: pd.DataFrame, over: str, title: str) -> ChartType:
    """Sampled queries and keys of one head in the common plane, a panel per step, with their means."""
    parts = []
    for side, word in SIDES.items():
        points = select(records, metric=f"svd.{over}.cloud.{side}")
        place = points["component"].str.split(" ", expand=True)
        wide = points.assign(point=place[0], direction="d" + place[1]).pivot_table(
            index=["step", "point"], columns="direction", values="value"
        )
        parts.append(wide.reset_index().assign(side=word, mean=False))
        shown = select(path_of(records, over, side), step=parts[0]["step"].unique().tolist())
        parts.append(shown.assign(side=word, mean=True))
    data = pd.concat(parts, ignore_index=True)[["step", "d1", "d2", "side", "mean"]].sort_values("step", kind="stable")
    data["panel"] = [f"step {step:,}" for step in data["step"]]
    base = alt.Chart().encode(
        x=alt.X("d1:Q", title="first direction", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=6)),
        y=alt.Y("d2:Q", title="second direction", scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=5)),
        color=alt.Color("side:N", scale=SIDE_SCALE, legend=alt.Legend(title=title, columns=0, symbolType="circle")),
    )
    points = base.transform_filter("!datum.mean").mark_point(size=9, opacity=0.4)
    means = base.transform_filter("datum.mean")
    rim = means.mark_point(filled=False, size=130, strokeWidth=4.5, color="#ffffff").encode(color=alt.value("#ffffff"))
    ring = means.mark_point(filled=False, size=130, strokeWidth=2.2)
    return facet([*_origin(), points, rim, ring], data, "panel", (WIDTH, 210), 2)


def _origin() -> list[alt.Chart]:
    zero = alt.Chart()
    return [
        zero.mark_rule(color=GRID).encode(x=alt.datum(0)),
        zero.mark_rule(color=GRID).encode(y=alt.datum(0)),
    ]


def path_of(records: pd.DataFrame, over: str, side: str) -> pd.DataFrame:
    """Coordinates d1, d2 of the mean of one side by step, of the first seed in `records`."""
    rows = select(records, metric=f"svd.{over}.{side}")
    rows = rows[rows["seed"] == rows["seed"].min()].astype({"step": int})
    directions = [rows[rows["component"] == str(k)].set_index("step")["value"].astype(float) for k in (1, 2)]
    return pd.DataFrame({"d1": directions[0], "d2": directions[1]}).sort_index().reset_index()


def paths(panels: Sequence[tuple[str, pd.DataFrame]], over: str) -> ChartType:
    """Q̄ and K̄ of each head from checkpoint to checkpoint, an arrow each."""
    size = ((WIDTH - 70) // len(panels), 260)
    drawn: ChartType = alt.hconcat(*(_path(name, records, over, size) for name, records in panels), spacing=34)
    return drawn


def _path(name: str, records: pd.DataFrame, over: str, size: tuple[int, int]) -> ChartType:
    """One panel; arrows are turned as the segments lie on the page, so the axes' ranges are fixed here."""
    whole = pd.concat([path_of(records, over, side).assign(side=word) for side, word in SIDES.items()])
    ranges = [_padded(whole[column]) for column in ("d1", "d2")]
    parts = []
    for _side, curve in whole.groupby("side", sort=False):
        ahead = curve[["d1", "d2"]].shift(-1)
        right, up = (
            (ahead[c] - curve[c]) / (high - low) * length
            for c, (low, high), length in zip(("d1", "d2"), ranges, size, strict=True)
        )
        parts.append(curve.assign(next1=ahead["d1"], next2=ahead["d2"], angle=np.degrees(np.arctan2(right, up))))
    data = pd.concat(parts, ignore_index=True)
    data["label"] = [f"{step:,}" if step in (data["step"].min(), data["step"].max()) else "" for step in data["step"]]
    x, y = (
        alt.X(
            "d1:Q", title="first direction", scale=alt.Scale(domain=ranges[0], nice=False), axis=alt.Axis(tickCount=5)
        ),
        alt.Y("d2:Q", title="second direction", scale=alt.Scale(domain=ranges[1], nice=False)),
    )
    base = alt.Chart().encode(x=x, y=y, color=alt.Color("side:N", scale=SIDE_SCALE, legend=alt.Legend(title=None)))
    moving = base.transform_filter("isValid(datum.next1)")
    layers = [
        *_origin(),
        moving.mark_rule(strokeWidth=1.3, opacity=0.75).encode(x2="next1:Q", y2="next2:Q"),
        moving.mark_point(shape="triangle", size=46).encode(
            x=alt.X("next1:Q", title="first direction"),
            y=alt.Y("next2:Q", title="second direction"),
            angle=alt.Angle("angle:Q", scale=alt.Scale(domain=[0, 360], range=[0, 360])),
        ),
        base.transform_filter("datum.step == 0").mark_point(size=40),
        base.transform_filter("datum.label != ''").mark_text(dy=-11, fontSize=10).encode(text="label:N"),
    ]
    title = alt.Title(name, anchor="start", fontSize=13, fontWeight="normal", color=INK)
    return facet(layers, data, None, size, 1).properties(title=title)


def _padded(values: pd.Series) -> list[float]:
    """The range of the values and 0, with room at both ends."""
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = 0.1 * ((high - low) or 1.0)
    return [low - room, high + room]
