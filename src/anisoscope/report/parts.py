"""What a page is made of: sections of figures and tables. A figure is drawn twice, for wide screens and for phones."""

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd
from altair.typing import ChartType

from anisoscope.report.words import number

WIDE, NARROW = 640, 272
"""Widths of the plotting area in pixels: desktop and print; phone."""
DEPTH = "Layer 0 is the input of the first block, layer i the output of block i"
RIBBON = "Ribbons are 95 % intervals."


@dataclass(frozen=True)
class Figure:
    """A chart with its words. `draw` takes the width, `name` is its file name, `basis` what its numbers rest on.

    `choices` are drawings of the same thing under other names, shown one at a time: the first is shown at once and is
    what `draw` draws.
    """

    name: str
    title: str
    caption: str
    basis: str
    alt: str
    draw: Callable[[int], ChartType]
    choices: tuple[tuple[str, Callable[[int], ChartType]], ...] = ()

    @property
    def drawings(self) -> dict[str, tuple[str, Callable[[int], ChartType]]]:
        """Label and drawing by file name."""
        named = enumerate(self.choices or (("", self.draw),))
        return {self.name if i == 0 else f"{self.name}-{label}": (label, draw) for i, (label, draw) in named}


@dataclass(frozen=True)
class PageTable:
    """Rows of cells, each a text with an interval under it (or nothing); the first cell of a row is its header."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True)
class Section:
    """A question about the model, in a sentence or two, and the figures that answer it."""

    slug: str
    title: str
    lead: str
    figures: tuple[Figure, ...] = ()
    table: PageTable | None = None


def height(width: int, wide: int = 290, narrow: int = 210) -> int:
    """Height of a plot for the width it is drawn at."""
    return wide if width >= WIDE else narrow


def columns(width: int, most: int = 2) -> int:
    """Small multiples side by side: one on a phone."""
    return most if width >= WIDE else 1


def extremes(frame: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """The rows of the lowest and of the highest value."""
    return frame.iloc[int(frame["value"].argmin())], frame.iloc[int(frame["value"].argmax())]


def span_of(frame: pd.DataFrame, name: Callable[[pd.Series], str]) -> str:
    """Lowest and highest value of a figure in words, for those who cannot see it."""
    low, high = extremes(frame)
    return f"lowest {number(low['value'])} at {name(low)}, highest {number(high['value'])} at {name(high)}"
