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


def describe_explained_text(found: "Explanation") -> str:
    """Return sentences on an explained text: the class, the words that decide, and which attributions find them."""
    words, erasure = found.words["word"], found.words["erasure"]
    strongest = erasure.sort_values(ascending=False, kind="stable").index[:3]
    named = ", ".join(f"{words[i]} ({format_short(erasure[i])})" for i in strongest)
    text = f"{found.found} ({format_short(found.probability)}). Its probability falls most without: {named}."
    if len(words) > 1:
        beyond = found.erasures.loc[found.erasures["beyond_chance"], "attribution"]
        text += f" First words decide beyond chance by: {'; '.join(beyond) or 'no attribution'}."
    return text


def colour_words(found: "Explanation") -> "Iterator[str]":
    """Return a line for each attribution, each word on a background of its strength; nothing if colours are off."""
    from anisoscope.classes.sentence import scale_for_colours

    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return
    names = list(found.words.columns[1:])
    indent = max(map(len, names)) + 2
    width = shutil.get_terminal_size().columns
    for name in names:
        line, used = name.ljust(indent), indent
        for word, strength in zip(found.words["word"], scale_for_colours(found.words[name].to_numpy()), strict=True):
            if used + len(word) + 1 > width and used > indent:
                yield line
                line, used = " " * indent, indent
            line += _colour_word(word, float(strength)) + " "
            used += len(word) + 1
        yield line


def _colour_word(word: str, strength: float) -> str:
    """Return a word on a background between white and the colour of its sign."""
    colour = FOR if strength >= 0 else AGAINST
    ground = ";".join(str(round(PAPER + (part - PAPER) * abs(strength))) for part in colour)
    return f"\x1b[48;2;{ground}m\x1b[38;2;0;0;0m{word}\x1b[0m"


def tabulate_explained_text(found: "Explanation") -> list[Table]:
    """Build tables of an explained text: attributions of words; comprehensiveness and sufficiency beside random
    orders; agreement.
    """
    names = list(found.words.columns[1:])
    rows = [[str(row[0]), *(format_short(x) for x in row[1:])] for row in found.words.itertuples(index=False)]
    tables = [Table(("word", *names), rows, found.words)]
    cells = []
    for row in found.erasures.to_dict("records"):
        line = [str(row["attribution"])]
        for measure in ("comprehensiveness", "sufficiency"):
            value, low, high = (
                format_short(float(row[name])) for name in (measure, f"{measure}_low", f"{measure}_high")
            )
            line += [value, f"{low} to {high}"]
        cells.append(line)
    head = ("attribution", "comprehensiveness", "of random words", "sufficiency", "of random words")
    tables.append(Table(head, cells, found.erasures))
    both = []
    for name, line_of_numbers in zip(names, found.agreement.to_numpy().tolist(), strict=True):
        both.append([name, *map(format_short, line_of_numbers)])
    behind = found.agreement.reset_index(names="attribution")
    tables.append(Table(("rank correlation", *names), both, behind))
    return tables
