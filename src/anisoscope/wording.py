"""Format numbers, intervals, counts and lists for sentences, cells and pages, the same way everywhere."""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from anisoscope.axes import PAIRS, SENTENCES, pluralise

if TYPE_CHECKING:
    import pandas as pd

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


NAMES_OF_VECTORS = {PAIRS: "the joint vectors", SENTENCES: "the sentence vectors"}
"""Stacks of one vector for each input, and what these vectors are called in place of a layer."""


def format_short(value: float, places: int = 3) -> str:
    """Format a number in few characters: `.246`, `−.003`, `12.3`; no zero before the point, a dash if undefined."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    digits = places if size < 9.9995 else 1 if size < 999.95 else 0
    text = f"{size:,.{digits}f}"
    text = text[1:] if text.startswith("0.") else text
    return f"−{text}" if value < 0 and text.strip(".0") else text


def list_first(names: Sequence[str]) -> str:
    """List the first three of some names, and how many more there are."""
    return ", ".join([*names[:3], *([f"and {len(names) - 3} more"] if len(names) > 3 else [])])


def format_number(value: float) -> str:
    """Format as `format_short`, with very small and very large numbers as powers of ten (`3.1 · 10⁻⁶`)."""
    if not math.isfinite(value) or value == 0 or 5e-4 <= abs(value) < 1e6:
        return format_short(value)
    mantissa, exponent = f"{value:.1e}".replace("-", "−", int(value < 0)).split("e")
    return f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def format_interval(value: float, low: float, high: float, places: int | None = 3) -> str:
    """Format a value with its interval after it, if it has one of some width; `places`: None for `format_number`."""
    known = math.isfinite(low) and math.isfinite(high) and not math.isclose(low, high)
    text, *ends = (format_number(x) if places is None else format_short(x, places) for x in (value, low, high))
    return f"{text} [{', '.join(ends)}]" if known else text


def format_signed(value: float) -> str:
    """Format a difference with its sign: `+.034`, `−.012`, `+3.1 · 10⁻⁶`; `.000` for none."""
    text = format_number(value)
    return f"+{text}" if value > 0 else text


def format_signed_interval(value: float, low: float, high: float) -> str:
    """Format a difference with its sign and its interval: `+.034 [+.030, +.038]`."""
    if not (math.isfinite(low) and math.isfinite(high)) or low == high:
        return format_signed(value)
    return f"{format_signed(value)} [{format_signed(low)}, {format_signed(high)}]"


def format_measured(row: Any, places: int | None = 3) -> str:
    """Format the `value`, `low` and `high` of a row as a value with its interval."""
    return format_interval(row.value, row.low, row.high, places)


def format_ends(row: Any) -> str:
    """Format the ends of a row's interval, `[.401, .423]`; nothing if there is none."""
    return f"[{format_number(row.low)}, {format_number(row.high)}]" if has_interval(row) else ""


def has_interval(row: Any) -> bool:
    """Tell whether both ends of the interval of a row are known."""
    return math.isfinite(row.low) and math.isfinite(row.high)


def name_layer(row: Any) -> str:
    """Name the layer of a row: `layer 3`, `the final norm`, `the sentence vectors`."""
    stack = getattr(row, "stack", "")
    if stack in NAMES_OF_VECTORS:
        return NAMES_OF_VECTORS[stack]
    return "the final norm" if str(row.site) == "final" else f"layer {int(row.layer)}"


def at_layer(row: Any) -> str:
    """Say at which layer a row is: `at layer 3`, `in the sentence vectors`."""
    return _with_preposition(name_layer(row))


def _with_preposition(layer: str) -> str:
    """Put a preposition before the name of a layer."""
    return f"in {layer}" if layer in NAMES_OF_VECTORS.values() else f"at {layer}"


def describe_layers(chosen: Sequence[int], names: Sequence[str]) -> str:
    """Say in which layers: `in every layer`, `from layer 1 on`, `at layers 1–3, 5 and the final norm`."""
    if len(chosen) == len(names) > 1:
        return "in every layer"
    if len(chosen) > 1 and list(chosen) == list(range(chosen[0], len(names))):
        return f"from {names[chosen[0]]} on"
    return _with_preposition(list_layers(chosen, names))


def list_layers(chosen: Sequence[int], names: Sequence[str]) -> str:
    """List layers: `layers 1–3, 5 and the final norm`."""
    flat: list[str] = []
    for _, part in groupby(enumerate(chosen), lambda at: (at[1] - at[0], names[at[1]].startswith("layer"))):
        run = [names[i].removeprefix("layer ") for _, i in part]
        flat += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else run
    numbered = [part for part in flat if not part.startswith("the")]
    noun = "layers " if len(numbered) > 1 or any("–" in part for part in numbered) else "layer " if numbered else ""
    return f"{noun}{join_words(flat)}"


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence does: `1, 2 and 3`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def iter_rows(rows: "pd.DataFrame") -> list[Any]:
    """Iterate over rows, with their columns as attributes."""
    return list(rows.itertuples())


def format_percent(value: float) -> str:
    """Format a share: `44 %`, `3.1 %`."""
    return f"{value:.0%}".replace("-", "−").replace("%", " %") if abs(value) >= 0.1 else f"{100 * value:.1f} %"


def format_count(value: float) -> str:
    """Format a whole number with thousands separated."""
    return f"{value:,.0f}"


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun: `1 head`, `12 heads`."""
    return f"{format_count(number)} {noun}" if number == 1 else f"{format_count(number)} {pluralise(noun)}"


def use_words_of_corpus(text: str, words: Mapping[str, str]) -> str:
    """Replace "token" in a text by the word of a corpus for a position (`axes.WORDS`): frame, patch.

    Special and real tokens stay tokens.

    words   the corpus's words; its entry `position` is used
    """
    position = words["position"]
    text = re.sub(r"(?<!special )(?<!real )\btokens\b", pluralise(position), text)
    return re.sub(r"(?<!special )(?<!real )\btoken\b", position, text)


def format_duration(seconds: float) -> str:
    """Format a duration: `41 s`, `5 min 12 s`, `2 h 05 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
