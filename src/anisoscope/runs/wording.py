"""Numbers, intervals and lists of layers as the text of a sentence or a cell."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import pandas as pd


def short(value: float, places: int = 3) -> str:
    """`.246`, `−.003`, `12.3`: no zero before the point; fewer decimals for larger numbers; a dash where undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    digits = places if size < 9.9995 else 1 if size < 999.95 else 0
    text = f"{size:,.{digits}f}"
    text = text[1:] if text.startswith("0.") else text
    return f"−{text}" if value < 0 and text.strip(".0") else text


def ranged(value: float, low: float, high: float, places: int = 3) -> str:
    """A value with its interval after it, where there is one."""
    text = short(value, places)
    known = math.isfinite(low) and math.isfinite(high)
    return f"{text} [{short(low, places)}, {short(high, places)}]" if known else text


def measured(row: Any, places: int = 3) -> str:
    """The same of a row with `value`, `low` and `high`."""
    return ranged(row.value, row.low, row.high, places)


def has_interval(row: Any) -> bool:
    """Whether both ends of the interval of a row are known."""
    return math.isfinite(row.low) and math.isfinite(row.high)


def name_of(row: Any) -> str:
    """`layer 3`, `the final norm`."""
    return "the final norm" if str(row.site) == "final" else f"layer {int(row.layer)}"


def span(chosen: Sequence[int], names: Sequence[str]) -> str:
    """`in every layer`, `from layer 1 on`, `at layers 1–3, 5 and the final norm`."""
    if len(chosen) == len(names) > 1:
        return "in every layer"
    if len(chosen) > 1 and list(chosen) == list(range(chosen[0], len(names))):
        return f"from {names[chosen[0]]} on"
    flat: list[str] = []
    for _, part in groupby(enumerate(chosen), lambda at: (at[1] - at[0], names[at[1]].startswith("layer"))):
        run = [names[i].removeprefix("layer ") for _, i in part]
        flat += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else run
    numbered = [part for part in flat if not part.startswith("the")]
    noun = "layers " if len(numbered) > 1 or any("–" in part for part in numbered) else "layer " if numbered else ""
    return f"at {noun}{listing(flat)}"


def listing(words: Sequence[str]) -> str:
    """`1, 2 and 3`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def each(rows: pd.DataFrame) -> list[Any]:
    """The rows, one by one, with their columns as attributes."""
    return list(rows.itertuples())
