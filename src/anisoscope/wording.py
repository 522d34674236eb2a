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
    """Format a number in few characters: `.246`, `−.003`, `12.3`; no zero before the point, a dash if undefined.

    places   decimals of a number below 10
    """
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    # Limits are where a number would round up to one more digit.
    digits = 0
    if size < 9.9995:
        digits = places
    elif size < 999.95:
        digits = 1
    text = f"{size:,.{digits}f}"
    if text.startswith("0."):
        text = text[1:]
    # A negative number that rounds to zero has no sign.
    is_zero = not text.strip(".0")
    if value < 0 and not is_zero:
        return f"−{text}"
    return text


def list_first(names: Sequence[str]) -> str:
    """List the first three of some names, and how many more there are."""
    listed = list(names[:3])
    if len(names) > 3:
        listed.append(f"and {len(names) - 3} more")
    return ", ".join(listed)


def format_number(value: float) -> str:
    """Format as `format_short`, with very small and very large numbers as powers of ten (`3.1 · 10⁻⁶`)."""
    # A smaller number would show as .000, a larger one as a long row of digits.
    if not math.isfinite(value) or value == 0 or 5e-4 <= abs(value) < 1e6:
        return format_short(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    mantissa = mantissa.replace("-", "−")
    return f"{mantissa} · 10{str(int(exponent)).translate(_SUPERSCRIPT)}"


def format_interval(
    value: float, low: float, high: float, places: int | None = 3
) -> str:
    """Format a value and its interval, `.246 [.239, .254]`; the value alone if the interval is unknown or a point.

    places   digits after the decimal point; None: as `format_number` does
    """

    def format_one(number: float) -> str:
        """Format the value or an end of its interval."""
        if places is None:
            return format_number(number)
        return format_short(number, places)

    text = format_one(value)
    # An interval without width says no more than the value.
    if not math.isfinite(low) or not math.isfinite(high) or math.isclose(low, high):
        return text
    return f"{text} [{format_one(low)}, {format_one(high)}]"


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
    """Format the fields `value`, `low` and `high` of a record as a value with its interval, `.246 [.239, .254]`.

    places   decimals, as for `format_interval`
    """
    return format_interval(row.value, row.low, row.high, places)


def format_ends(row: Any) -> str:
    """Format the ends of a row's interval, `[.401, .423]`; nothing if there is none."""
    if not has_interval(row):
        return ""
    return f"[{format_number(row.low)}, {format_number(row.high)}]"


def has_interval(row: Any) -> bool:
    """Return whether both ends of the interval of a row are known."""
    return math.isfinite(row.low) and math.isfinite(row.high)


def name_layer(row: Any) -> str:
    """Name the layer of a row: `layer 3`, `the final norm`, `the sentence vectors`."""
    stack = getattr(row, "stack", "")
    if stack in NAMES_OF_VECTORS:
        return NAMES_OF_VECTORS[stack]
    if str(row.site) == "final":
        return "the final norm"
    return f"layer {int(row.layer)}"


def at_layer(row: Any) -> str:
    """Return the layer of a row with its preposition: `at layer 3`, `in the sentence vectors`."""
    return _add_preposition(name_layer(row))


def _add_preposition(layer: str) -> str:
    """Return the name of a layer with a preposition before it: `at layer 3`, `in the sentence vectors`."""
    if layer in NAMES_OF_VECTORS.values():
        return f"in {layer}"
    return f"at {layer}"


def describe_layers(chosen: Sequence[int], names: Sequence[str]) -> str:
    """Return a phrase for some layers: `in every layer`, `from layer 1 on`, `at layers 1–3, 5 and the final norm`.

    chosen   their indices in `names`, ascending
    names    names of all layers, as `name_layer` gives them
    """
    if len(chosen) == len(names) > 1:
        return "in every layer"
    # Chosen from some layer to the last one, without a gap.
    if len(chosen) > 1 and list(chosen) == list(range(chosen[0], len(names))):
        return f"from {names[chosen[0]]} on"
    return _add_preposition(list_layers(chosen, names))


def list_layers(chosen: Sequence[int], names: Sequence[str]) -> str:
    """Write a list of layers, with ranges: `layers 1–3, 5 and the final norm`.

    chosen   their indices in `names`, ascending
    names    names of all layers, as `name_layer` gives them
    """

    def identify_range(item: tuple[int, int]) -> tuple[int, bool]:
        """Return a key that is equal for consecutive layers: (index − position in `chosen`, is it a numbered layer)."""
        place, layer = item
        return layer - place, names[layer].startswith("layer")

    parts: list[str] = []
    # Of consecutive layers, index minus place stays the same.
    for _, consecutive in groupby(enumerate(chosen), identify_range):
        labels = [names[layer].removeprefix("layer ") for _, layer in consecutive]
        # Two are listed, as `3, 4`; a range begins at three.
        if len(labels) > 2:
            labels = [f"{labels[0]}–{labels[-1]}"]
        parts += labels
    numbered = [part for part in parts if not part.startswith("the")]
    noun = ""
    if len(numbered) > 1 or any("–" in part for part in numbered):
        noun = "layers "
    elif numbered:
        noun = "layer "
    return noun + join_words(parts)


def join_words(words: Sequence[str]) -> str:
    """Join words as a sentence does: `1, 2 and 3`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def iter_rows(rows: "pd.DataFrame") -> list[Any]:
    """Return the rows of a table as a list of named tuples: `row.value`."""
    return list(rows.itertuples())


def format_percent(value: float) -> str:
    """Format a share: `44 %`, `3.1 %`."""
    places = 1 if abs(value) < 0.1 else 0
    return f"{100 * value:.{places}f} %".replace("-", "−")


def format_count(value: float) -> str:
    """Format a whole number with thousands separated."""
    return f"{value:,.0f}"


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun: `1 head`, `12 heads`."""
    if number != 1:
        noun = pluralise(noun)
    return f"{format_count(number)} {noun}"


def use_words_of_corpus(text: str, words: Mapping[str, str]) -> str:
    """Replace "token" in a text by the word of a corpus for a position (`axes.WORDS`): frame, patch.

    Special and real tokens stay tokens.

    words   the corpus's words; its entry `position` is used
    """
    position = words["position"]
    # "special tokens" and "real tokens" mean tokens in every corpus.
    text = re.sub(r"(?<!special )(?<!real )\btokens\b", pluralise(position), text)
    return re.sub(r"(?<!special )(?<!real )\btoken\b", position, text)


def format_duration(seconds: float) -> str:
    """Format a duration: `41 s`, `5 min 12 s`, `2 h 05 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
