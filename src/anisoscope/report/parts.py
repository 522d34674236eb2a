"""The parts of a section of a report page: figures and tables. A figure can be drawn at any width."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.report.results import PANEL, Results
from anisoscope.wording import format_number

WIDE, NARROW = 640, 272
"""Widths of the plotting area in pixels: desktop and print; phone."""

Draw = Callable[[int], ChartType]
Entry = Mapping[str, Any]
"""One figure or table as page.toml describes it."""


@dataclass(frozen=True)
class Figure:
    """A chart with its text.

    name      name of its files
    basis     what its numbers are computed from
    drawings  drawing functions by label; one is shown at a time
    """

    name: str
    title: str
    caption: str
    basis: str
    alt: str
    drawings: Mapping[str, Draw]

    @property
    def draw(self) -> Draw:
        """Return the first drawing, a function of the width in pixels."""
        return next(iter(self.drawings.values()))

    @property
    def files(self) -> dict[str, tuple[str, Draw]]:
        """Return {name of a drawing's file: (its label, the drawing)}."""
        named: dict[str, tuple[str, Draw]] = {}
        for label, draw in self.drawings.items():
            # The first drawing has the plain name.
            file = f"{self.name}-{label}" if named else self.name
            named[file] = (label, draw)
        return named


@dataclass(frozen=True)
class PageTable:
    """A table of the page: each cell is a text with an interval below it (or nothing); the first cell of a row is
    its header.
    """

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]


def make_figure(
    results: Results,
    entry: Entry,
    frame: pd.DataFrame,
    drawn: Draw | Mapping[str, Draw],
    *,
    basis: str = "",
    **facts: Any,
) -> Figure:
    """Make a figure with the texts of its entry in page.toml, in the corpus's words.

    frame   the rows that the figure shows
    drawn   its drawing (a function of the width), or several by label
    basis   what its numbers are computed from; empty: what the entry and the rows say
    facts   values for the placeholders in the texts
    """
    # Only if the text asks for it: finding the extremes needs rows with values.
    if "{span}" in entry["alt"] and "span" not in facts:
        facts["span"] = describe_span(frame, results.name_place)
    texts = {}
    for key in ("name", "title", "caption", "alt"):
        texts[key] = entry[key].format(**facts).strip()
    # A single drawing has no label.
    if not isinstance(drawn, Mapping):
        drawn = {"": drawn}
    return Figure(
        name=texts["name"],
        title=results.put_in_words(texts["title"]),
        caption=results.put_in_words(texts["caption"]),
        basis=results.put_in_words(basis or _describe_basis(results, entry, frame)),
        alt=results.put_in_words(texts["alt"]),
        drawings=drawn,
    )


def _describe_basis(results: Results, entry: Entry, frame: pd.DataFrame) -> str:
    """Say what the numbers of a figure are computed from: of each metric that its entry names, or of all together."""
    parts = []
    # Metrics of one figure may rest on different numbers, such as all vectors and a
    # sample of them.
    for metric, noun in entry.get("basis", {}).items():
        basis = results.describe_basis(frame[frame["metric"].eq(metric)], noun)
        if basis:
            parts.append(basis)
    if parts:
        return "; ".join(parts)
    return results.describe_basis(frame, entry.get("counts", "vectors"))


def make_drawing(
    builder: Callable[..., ChartType], frame: pd.DataFrame, entry: Entry, **options: Any
) -> Draw:
    """Return a drawing of the rows of `frame` at any width, as a function of the width in pixels.

    builder   function of `charts` that draws them
    options   of the builder; they override those of the figure's entry in page.toml
    """
    # Small multiples only if there is more than one stack.
    panel = PANEL if frame[PANEL].nunique() > 1 else None
    options = {"panel": panel} | entry.get("draw", {}) | options
    height_wide, height_narrow = options.pop("height", entry.get("height", (290, 210)))
    columns = entry.get("columns", 2)

    def draw(width: int) -> ChartType:
        """Draw the chart at this width in pixels."""
        if width < WIDE:
            return builder(frame, size=(width, height_narrow), columns=1, **options)
        return builder(frame, size=(width, height_wide), columns=columns, **options)

    return draw


def find_extremes(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Return (row with the lowest value, row with the highest)."""
    lowest = frame.iloc[int(frame["value"].argmin())]
    highest = frame.iloc[int(frame["value"].argmax())]
    return lowest, highest


def describe_span(
    frame: pd.DataFrame,
    name: Callable[[pd.Series], str] = lambda row: str(row["component"]),
) -> str:
    """Describe in words where the lowest and the highest value of a figure are, for readers who cannot see it.

    frame   the rows that the figure shows
    name    returns what a row is called
    """
    low, high = find_extremes(frame)
    lowest = f"lowest {format_number(low['value'])} at {name(low)}"
    return f"{lowest}, highest {format_number(high['value'])} at {name(high)}"
