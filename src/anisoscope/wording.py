"""Numbers, intervals, counts and lists as the text of a sentence, a cell or a page: the same everywhere."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from anisoscope.axes import plural_of

if TYPE_CHECKING:
    import pandas as pd

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(value: float, places: int = 3) -> str:
    """`.246`, `−.003`, `12.3`: no zero before the point; fewer decimals for larger numbers; a dash where undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    digits = places if size < 9.9995 else 1 if size < 999.95 else 0
    text = f"{size:,.{digits}f}"
    text = text[1:] if text.startswith("0.") else text
    return f"−{text}" if value < 0 and text.strip(".0") else text


def first_of(names: Sequence[str]) -> str:
    """The first three of some names, and how many more there are."""
    return ", ".join([*names[:3], *([f"and {len(names) - 3} more"] if len(names) > 3 else [])])


def number(value: float) -> str:
    """The same, but very small and very large numbers as powers of ten (`3.1 · 10⁻⁶`)."""
    if not math.isfinite(value) or value == 0 or 5e-4 <= abs(value) < 1e6:
        return short(value)
    mantissa, exponent = f"{value:.1e}".replace("-", "−", int(value < 0)).split("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def ranged(value: float, low: float, high: float, places: int | None = 3) -> str:
    """A value with its interval after it, where there is one that has a width; `places`: None for `number`."""
    known = math.isfinite(low) and math.isfinite(high) and not math.isclose(low, high)
    text, *ends = (number(x) if places is None else short(x, places) for x in (value, low, high))
    return f"{text} [{', '.join(ends)}]" if known else text


def signed(value: float) -> str:
    """A difference with its sign: `+.034`, `−.012`, `+3.1 · 10⁻⁶`; of none `.000`."""
    text = number(value)
    return f"+{text}" if value > 0 else text


def signed_range(value: float, low: float, high: float) -> str:
    """A difference with its interval after it, if there is one: `+.034 [+.030, +.038]`."""
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return signed(value)
    return f"{signed(value)} [{signed(low)}, {signed(high)}]"


def measured(row: Any, places: int | None = 3) -> str:
    """The same of a row with `value`, `low` and `high`."""
    return ranged(row.value, row.low, row.high, places)


def interval(row: Any) -> str:
    """`[.401, .423]`, or nothing where no interval was made."""
    return f"[{number(row.low)}, {number(row.high)}]" if has_interval(row) else ""


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
    return f"at {places(chosen, names)}"


def places(chosen: Sequence[int], names: Sequence[str]) -> str:
    """`layers 1–3, 5 and the final norm`."""
    flat: list[str] = []
    for _, part in groupby(enumerate(chosen), lambda at: (at[1] - at[0], names[at[1]].startswith("layer"))):
        run = [names[i].removeprefix("layer ") for _, i in part]
        flat += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else run
    numbered = [part for part in flat if not part.startswith("the")]
    noun = "layers " if len(numbered) > 1 or any("–" in part for part in numbered) else "layer " if numbered else ""
    return f"{noun}{listing(flat)}"


def listing(words: Sequence[str]) -> str:
    """`1, 2 and 3`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def each(rows: "pd.DataFrame") -> list[Any]:
    """The rows, one by one, with their columns as attributes."""
    return list(rows.itertuples())


def percent(value: float) -> str:
    """`44 %`, `3.1 %`."""
    return f"{value:.0%}".replace("-", "−").replace("%", " %") if abs(value) >= 0.1 else f"{100 * value:.1f} %"


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
