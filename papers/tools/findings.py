"""What is now known: the page, prose of findings/*.md part by part, and the findings of the README, found.md,
with the numbers of committed verdicts.

{{place | claim}} or {{place | claim | subject}} becomes number, interval, n and outcome: `place` is a folder of
results/. What is not there stops the page, and so does prose that says of a verdict what it is not: {{place | claim |
subject | holds}} must hold (or `undecided`; `fails`, or how: `contrary`, `too small`, `beyond`). {{… | reason}}: how
its reason begins. {{… | holds | number}} is short and leaves the verdict to the sentence, which says it last (see
`short_number` for its forms).
"""

import json
import re
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

from committed import RESULTS, word

PARTS, TABLE = Path(__file__).parent / "findings", Path(__file__).parent / "found.md"
FIELD = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)
WITH_UNIT = re.compile(r"\{\{(.+?)\}\}(\s+nats)?", re.DOTALL)
"""A field in prose: the unit after it goes before the brackets with n and verdict."""
LEAD = re.compile(r"^\*\*(.+?)\.\*\* ", re.MULTILINE)
"""The first sentence of a finding, in bold: its heading on the page."""


def page() -> str:
    """Return the page of findings: all parts, sorted by file name, with numbers filled in."""
    parts = [
        WITH_UNIT.sub(_told, path.read_text("utf-8")).strip()
        for path in sorted(PARTS.glob("*.md"))
    ]
    # Headings are made first, so that the contents can list them.
    text = LEAD.sub(r"### \1\n\n", "\n\n".join(parts))
    return text.replace("CONTENTS", contents(text))


def contents(page: str) -> str:
    """Return a list of links to the headings of a page."""
    lines = []
    for marks, title in re.findall(r"^(##+) (.+)$", page, re.MULTILINE):
        lines.append(f"{'    ' * (len(marks) - 2)}- [{title}](#{_anchor(title)})")
    return "\n".join(lines)


def _anchor(title: str) -> str:
    """Return the anchor that Markdown gives a heading."""
    # As Python-Markdown's table of contents does: accents fall away, other signs too.
    plain = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def table() -> str:
    """Return the findings of the README, a list in words."""
    return FIELD.sub(_filled, TABLE.read_text("utf-8"))


def fill(text: str) -> str:
    """Fill the fields of a text with numbers of committed verdicts."""
    return FIELD.sub(_filled, text)


@cache
def _verdicts(place: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Read the verdicts of a folder of results, by (claim, subject)."""
    found = json.loads((RESULTS / place / "verdicts.json").read_text("utf-8"))
    return {(verdict["claim"], verdict["subject"]): verdict for verdict in found}


def _told(field: re.Match[str]) -> str:
    """Fill a field in prose: number and interval first, then n and verdict in brackets, so that the
    sentence reads on.
    """
    # `_filled` writes `NUMBER [INTERVAL], n = N, *verdict*`.
    number, comma, rest = _filled(field).partition(", n = ")
    unit = " nats" if field[2] else ""
    return f"{number}{unit} (n = {rest})" if comma else f"{number}{unit}"


def _filled(field: re.Match[str]) -> str:
    """Fill a field with number, interval, n and outcome. ValueError if the text says another outcome
    than the verdict.
    """
    parts = [part.strip() for part in " ".join(field[1].split()).split("|")]
    # A field has two to five parts; the others are empty.
    place, claim, subject, said, form = [*parts, "", "", ""][:5]
    verdict = _verdicts(place)[claim, subject]
    if said == "reason":
        return str(verdict["reason"].partition(";")[0])
    # The page is built from committed verdicts: if one changes, its sentence must be
    # read again.
    if said and said not in (verdict["outcome"], word(verdict)):
        raise ValueError(
            f"{place}, {claim}, {subject}: {word(verdict)}, and the page says {said}"
        )
    if form:
        return short_number(verdict, form)
    value, low, high, n = (verdict[name] for name in ("value", "low", "high", "n"))
    text = "no number" if value is None else f"{value:.3g}"
    if low is not None:
        text += f" [{low:.3g}, {high:.3g}]"
    if n is not None:
        text += f", n = {n}"
    return f"{text}, *{word(verdict)}*".replace("-", "−")


def short_number(verdict: dict[str, Any], form: str = "number") -> str:
    """Format a number briefly: `0.25 [0.24, 0.25; n = 60]`, with the digits needed to tell the interval's ends apart.

    form   `percent`: of a share; `size`: without its sign, if the sentence says *falls*; `points`: of a change of
           accuracy, without its sign if the interval leaves out 0; `count`: n alone
    """
    value, low, high, n = (verdict[name] for name in ("value", "low", "high", "n"))
    count = "" if n is None else f"{n:,}"
    if form == "count":
        return count
    # "falls by 2 points" needs no sign, if the whole interval lies on one side.
    one_sided = low is None or low * high > 0
    if form == "size" or (form == "points" and one_sided):
        value, low, high = map(_drop_sign, (value, low, high))
        # Without signs the ends may have changed places.
        if low is not None:
            low, high = sorted((low, high))
    factor, unit = {"percent": (100, " %"), "points": (100, " points")}.get(
        form, (1, "")
    )
    # As many digits as tell the ends of the interval apart, but five at most.
    digits = 2
    while digits < 5 and low is not None and low != high:
        if _round(factor * low, digits) != _round(factor * high, digits):
            break
        digits += 1
    brackets = []
    if low is not None:
        ends = (_round(factor * low, digits), _round(factor * high, digits))
        brackets.append(", ".join(ends))
    if count:
        brackets.append(f"n = {count}")
    text = f"{_round(factor * value, digits)}{unit}"
    if brackets:
        text += f" [{'; '.join(brackets)}]"
    return text.replace("-", "−")


def _drop_sign(number: Any) -> Any:
    """Return the absolute value of a number; None stays None."""
    return None if number is None else abs(number)


def _round(number: float, digits: int) -> str:
    """Format a number with so many significant digits, never in powers of ten: `0.0013`, `28`."""
    # The format `#.2g` would write 1.2e+03.
    if abs(number) >= 10**digits:
        return f"{number:,.0f}"
    return f"{number:#.{digits}g}".removesuffix(".")
