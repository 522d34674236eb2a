"""Show an explained text on a terminal: words in colours, and tables of their numbers."""

import os
import shutil
import sys
from typing import TYPE_CHECKING

from anisoscope.cli.view import Table
from anisoscope.wording import format_short

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anisoscope.classes.sentence import Explanation

FOR, AGAINST = (214, 90, 40), (40, 100, 200)
"""Red, green and blue of words that speak for the class, and of those that speak against it."""
PAPER = 255


def describe_explained_text(explanation: "Explanation") -> str:
    """Return sentences on an explained text: the class, the words that decide, and which attributions find them."""
    words = explanation.words["word"]
    erasure = explanation.words["erasure"]
    strongest = erasure.sort_values(ascending=False, kind="stable").index[:3]
    named = ", ".join(f"{words[i]} ({format_short(erasure[i])})" for i in strongest)
    found_class = f"{explanation.found} ({format_short(explanation.probability)})"
    text = f"{found_class}. Its probability falls most without: {named}."
    # Of a single word there is no order that chance could have drawn.
    if len(words) > 1:
        erasures = explanation.erasures
        beyond = erasures.loc[erasures["beyond_chance"], "attribution"]
        text += f" First words decide beyond chance by: {'; '.join(beyond) or 'no attribution'}."
    return text


def colour_words(explanation: "Explanation") -> "Iterator[str]":
    """Return a line for each attribution, each word on a background of its strength; nothing if colours are off."""
    from anisoscope.classes.sentence import scale_for_colours

    # Not into a file or a pipe, and not against the user's wish (no-color.org).
    if (
        not sys.stdout.isatty()
        or os.environ.get("NO_COLOR")
        or os.environ.get("TERM") == "dumb"
    ):
        return
    # The first column holds the words themselves.
    names = list(explanation.words.columns[1:])
    indent = max(map(len, names)) + 2
    width = shutil.get_terminal_size().columns
    for name in names:
        strengths = scale_for_colours(explanation.words[name].to_numpy())
        line = name.ljust(indent)
        used = indent
        for word, strength in zip(explanation.words["word"], strengths, strict=True):
            # The codes of colours take no room on the terminal, hence the count of its own.
            if used + len(word) + 1 > width and used > indent:
                yield line
                line = " " * indent
                used = indent
            line += _colour_word(word, float(strength)) + " "
            used += len(word) + 1
        yield line


def _colour_word(word: str, strength: float) -> str:
    """Return a word on a background between white and the colour of its sign."""
    # From white at strength 0 to the full colour at ±1, with black letters, which are
    # readable on both.
    colour = FOR if strength >= 0 else AGAINST
    parts = []
    for part in colour:
        parts.append(str(round(PAPER + (part - PAPER) * abs(strength))))
    ground = ";".join(parts)
    return f"\x1b[48;2;{ground}m\x1b[38;2;0;0;0m{word}\x1b[0m"


def tabulate_explained_text(explanation: "Explanation") -> list[Table]:
    """Build the tables of an explained text.

    They are: the attributions of its words; comprehensiveness and sufficiency of each attribution, and of words in
    random order; how far the attributions agree.
    """
    names = list(explanation.words.columns[1:])
    of_words = []
    for word, *values in explanation.words.itertuples(index=False):
        of_words.append([str(word), *map(format_short, values)])
    of_erasures = []
    for row in explanation.erasures.to_dict("records"):
        cells = [str(row["attribution"])]
        for measure in ("comprehensiveness", "sufficiency"):
            low = format_short(float(row[f"{measure}_low"]))
            high = format_short(float(row[f"{measure}_high"]))
            cells += [format_short(float(row[measure])), f"{low} to {high}"]
        of_erasures.append(cells)
    agreement = explanation.agreement
    of_agreement = []
    for name, values in zip(names, agreement.to_numpy().tolist(), strict=True):
        of_agreement.append([name, *map(format_short, values)])
    head = (
        "attribution",
        "comprehensiveness",
        "of random words",
        "sufficiency",
        "of random words",
    )
    return [
        Table(("word", *names), of_words, explanation.words),
        Table(head, of_erasures, explanation.erasures),
        Table(
            ("rank correlation", *names),
            of_agreement,
            agreement.reset_index(names="attribution"),
        ),
    ]
