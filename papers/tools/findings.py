"""What is now known: the page, prose of findings/*.md part by part, and the table of the README, found.md,
with the numbers of committed verdicts.

{{place | claim}} or {{place | claim | subject}} becomes number, interval, n and outcome: `place` is a folder of
results/. What is not there stops the page, and so does prose that says of a verdict what it is not: {{place | claim |
subject | holds}} must hold (or `undecided`; `fails`, or how: `contrary`, `too small`, `beyond`). {{… | reason}}: how
its reason begins.
"""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from committed import RESULTS, word

PARTS, TABLE = Path(__file__).parent / "findings", Path(__file__).parent / "found.md"
FIELD = re.compile(r"\{\{(.+?)\}\}", re.DOTALL)


def page() -> str:
    """All parts, in the order of their names."""
    return "\n\n".join(FIELD.sub(_filled, path.read_text("utf-8")).strip() for path in sorted(PARTS.glob("*.md")))


def table() -> str:
    """What was found, in short: the table of the README."""
    return FIELD.sub(_filled, TABLE.read_text("utf-8"))


def fill(text: str) -> str:
    """A text with the numbers that its fields name."""
    return FIELD.sub(_filled, text)


@cache
def _verdicts(place: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads((RESULTS / place / "verdicts.json").read_text("utf-8"))
    return {(verdict["claim"], verdict["subject"]): verdict for verdict in found}


def _filled(field: re.Match[str]) -> str:
    place, claim, subject, said = [*(part.strip() for part in " ".join(field[1].split()).split("|")), "", ""][:4]
    verdict = _verdicts(place)[claim, subject]
    if said == "reason":
        return str(verdict["reason"].partition(";")[0])
    if said and said not in (verdict["outcome"], word(verdict)):
        raise ValueError(f"{place}, {claim}, {subject}: {word(verdict)}, and the page says {said}")
    value, low, high, n = (verdict[name] for name in ("value", "low", "high", "n"))
    told = "no number" if value is None else f"{value:.3g}"
    told += "" if low is None else f" [{low:.3g}, {high:.3g}]"
    return (told + ("" if n is None else f", n = {n}") + f", *{word(verdict)}*").replace("-", "−")
