"""Charts of classes: ranges of a quantity over many representatives, and a table of texts."""

import altair as alt
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts.style import INK, MUTED, appearance, colour


def ranges(
    frame: pd.DataFrame, *, category: str, series: str, panel: str, title: str, domain: tuple[float, float], width: int
) -> ChartType:
    """Five quantiles a row (`least`, `lower`, `middle`, `upper`, `most`) as a dot on a bar on a line."""
    order, panels = appearance(frame[category]), appearance(frame[panel])
    base = alt.Chart().encode(
        y=alt.Y(f"{category}:N", sort=order, title=None, axis=alt.Axis(ticks=False)),
        yOffset=alt.YOffset(f"{series}:N", sort=appearance(frame[series])),
        color=colour(frame[series], series, width + 80),
    )
    across = alt.X("least:Q", title=title, scale=alt.Scale(domain=list(domain), nice=False))
    layers = [
        alt.Chart().mark_rule(strokeDash=[3, 3], color=MUTED).encode(x=alt.datum(0)),
        base.mark_rule().encode(x=across, x2="most:Q"),
        base.mark_rule(strokeWidth=6, opacity=0.5).encode(x="lower:Q", x2="upper:Q"),
        base.mark_point(filled=True, size=50).encode(x="middle:Q"),
    ]
    inner = alt.layer(*layers).properties(width=width, height=30 * len(order))
    facet = alt.Facet(f"{panel}:N", sort=panels, title=None, header=alt.Header(labelColor=INK))
    kept = frame[[category, series, panel, "least", "lower", "middle", "upper", "most"]]
    return inner.facet(facet, data=kept, columns=1).properties(spacing=14)


def texts(frame: pd.DataFrame, *, category: str, columns: dict[str, int], muted: str, width: int) -> ChartType:
    """A table: a row per `category`, and at so many pixels from the left the text of each of `columns`."""
    order = appearance(frame[category])
    axis = alt.Axis(ticks=False, labelLimit=220)
    base = alt.Chart(frame).encode(y=alt.Y(f"{category}:N", sort=order, title=None, axis=axis))
    marks = [
        base.mark_text(align="left", fontSize=11, color=MUTED if name == muted else INK).encode(
            text=f"{name}:N", x=alt.value(x)
        )
        for name, x in columns.items()
    ]
    return alt.layer(*marks).properties(width=width, height=26 * len(order))
