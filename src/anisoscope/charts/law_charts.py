"""Charts of laws and tests: p of several systems, and layers of models against the cosine of isotropic vectors."""

import altair as alt
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.norm_charts import PLAIN
from anisoscope.charts.style import INK, MUTED, appearance

SMALLEST_DRAWN = 1e-7
"""Smaller p (0 where ranks agree entirely) are drawn here."""


def p_values(data: pd.DataFrame, level: float) -> ChartType:
    """One row per `system`: `p` as a point, `p_scipy` as a cross, `p_smallest` as a bar, and a line at the level."""
    data = data.assign(p_scipy=data["p_scipy"].clip(lower=SMALLEST_DRAWN))
    order = list(data["system"])
    across = alt.Scale(type="log", nice=False, domain=[SMALLEST_DRAWN / 2, 1.2])
    names = alt.Y("system:N", sort=order, title=None, axis=alt.Axis(labelLimit=260, ticks=False))
    base = alt.Chart(data).encode(y=names)

    def at(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title="p (log scale)", scale=across, axis=alt.Axis(format=".1g", tickCount=6))

    return alt.layer(
        alt.Chart(pd.DataFrame({"p": [level]})).mark_rule(strokeDash=[4, 3], color=MUTED).encode(x=at("p")),
        base.mark_tick(color=MUTED, thickness=2).encode(x=at("p_smallest")),
        base.mark_point(shape="cross", filled=False, color=INK, size=50).encode(x=at("p_scipy")),
        base.mark_point(size=60).encode(x=at("p")),
    ).properties(width=420, height=22 * len(order))


def over_dimensions(rows: pd.DataFrame, laws: pd.DataFrame) -> ChartType:
    """A of layers (`d`, `value`, `low`, `high`, `model`), each model named at its highest, and lines of `laws` (`d`,
    `value`, `law`), both axes logarithmic.
    """
    ticks = alt.Axis(values=[4**k for k in range(1, 8)], labelExpr="toString(datum.value)")
    x = alt.X("d:Q", title="dimension d", scale=alt.Scale(type="log", domain=[4, 16384], nice=False), axis=ticks)
    scale = alt.Scale(type="log", domain=[1e-5, 1], nice=False, clamp=True)
    axis = alt.Axis(values=[10.0**k for k in range(-5, 1)], labelExpr=PLAIN)
    y = alt.Y("value:Q", title="cosine; A of layers", scale=scale, axis=axis)
    names = alt.Scale(domain=appearance(laws["law"]), range=[[1, 0], [4, 3]])
    dash = alt.StrokeDash("law:N", scale=names, legend=alt.Legend(title=None))
    line = alt.Chart(laws).mark_line(color=MUTED, strokeWidth=1.6).encode(x=x, y=y, strokeDash=dash)
    data = rows[["d", "value", "low", "high", "model", "layer"]].astype({"model": str})
    highest = data.groupby("model")["value"].transform("max")
    data["name"] = data["model"].where(data["value"] == highest, "")
    hue = alt.Color("model:N", scale=alt.Scale(domain=appearance(data["model"])), legend=None)
    known = alt.Chart(data).encode(x=x, color=hue)
    rule = known.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5).encode(y=alt.Y("low:Q"), y2="high:Q")
    text = known.mark_text(align="left", dx=8, fontSize=11).encode(y=y, text="name:N")
    return alt.layer(line, rule, known.mark_point(size=46).encode(y=y), text).properties(width=640, height=320)
