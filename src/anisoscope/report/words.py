"""Numbers as text, the same everywhere on the page."""

import math
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from anisoscope.axes import plural_of

MINUS = "−"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """Three decimals, fewer for large numbers, powers of ten for very small or large ones; a dash where undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size != 0 and (size < 5e-4 or size >= 1e6):
        mantissa, exponent = f"{size:.1e}".split("e")
        text = f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPT)}"
    else:
        text = f"{size:,.{3 if size < 10 else 2 if size < 100 else 1}f}"
    return (MINUS if value < 0 else "") + text


def interval(row: pd.Series) -> str:
    """`[0.401, 0.423]`, or nothing where no interval was made."""
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


def listing(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def plural(number: int, noun: str) -> str:
    """`1 head`, `12 heads`."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {plural_of(noun)}"


def in_words(text: str, words: Mapping[str, str]) -> str:
    """A text that speaks of tokens in the words of a corpus (`axes.WORDS`): of its frames, or patches. Special tokens
    stay tokens.
    """
    position = words["position"]
    text = re.sub(r"(?<!special )(?<!real )\btokens\b", plural_of(position), text)
    return re.sub(r"(?<!special )(?<!real )\btoken\b", position, text)


def duration(seconds: float) -> str:
    """`41 s`, `5 min 12 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )
