"""Numbers as text, the same everywhere on the page."""

import math
import re
from collections.abc import Mapping

import pandas as pd

from anisoscope.axes import plural_of
from anisoscope.runs.wording import short

MINUS = "−"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """As in the headline (`.246`), but very small and very large numbers as powers of ten (`3.1 · 10⁻⁶`)."""
    if not math.isfinite(value) or value == 0 or 5e-4 <= abs(value) < 1e6:
        return short(value)
    mantissa, exponent = f"{value:.1e}".replace("-", MINUS, int(value < 0)).split("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def interval(row: pd.Series) -> str:
    """`[.401, .423]`, or nothing where no interval was made."""
    low, high = float(row["low"]), float(row["high"])
    return "" if math.isnan(low) or math.isnan(high) else f"[{number(low)}, {number(high)}]"


def measured(row: pd.Series) -> str:
    """A value with its interval after it."""
    return f"{number(row['value'])} {interval(row)}".strip()


def percent(value: float) -> str:
    """`44 %`, `3.1 %`."""
    return f"{value:.0%}".replace("-", MINUS).replace("%", " %") if abs(value) >= 0.1 else f"{100 * value:.1f} %"


def count(value: float) -> str:
    """A whole number with its thousands set apart."""
    return f"{value:,.0f}"


def plural(number: int, noun: str) -> str:
    """`1 head`, `12 heads`."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {plural_of(noun)}"


def in_words(text: str, words: Mapping[str, str]) -> str:
    """A text on tokens in the words of a corpus (`axes.WORDS`): frames, patches. Special tokens stay tokens."""
    position = words["position"]
    text = re.sub(r"(?<!special )(?<!real )\btokens\b", plural_of(position), text)
    return re.sub(r"(?<!special )(?<!real )\btoken\b", position, text)


def duration(seconds: float) -> str:
    """`41 s`, `5 min 12 s`, `2 h 05 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
