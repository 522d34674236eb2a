"""Read the committed verdicts, judged from the records under papers/results/, as rows and as tables."""

import json
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope_papers.runner import COMPARED
from anisoscope_papers.study import FAILING, WORDS
from anisoscope_papers.study_names import PAPERS, number_of

RESULTS = Path(__file__).resolve().parents[1] / "results"
REPEATED = RESULTS / "repeated.json"
"""Verdicts on data that another folder of records holds, too, as `verdicts.find_repeated` finds them."""
VERDICTS = RESULTS / "verdicts.csv"
"""Every verdict, a row each, as `verdict_table` makes it."""
PUBLISHED = RESULTS / "published.csv"
"""Every number of the papers' tables beside ours, as `published_table` makes it."""
CHANGES = RESULTS / "changes.csv"
"""Verdicts on the same records that were others once: what they were, what they are, and why."""
ORDER = ("paper", "small", "long", "quick")
"""Settings of records in the order in which they are shown; others come after, by name."""

Row = dict[str, Any]


def study_files() -> list[Path]:
    """List the `study.json` of every folder of records, sorted by paper, settings, and number of the
    figure or table.
    """

    def place_of(path: Path) -> tuple[Any, ...]:
        """Return the sort key of a folder of records."""
        # results/PAPER/SETTINGS/STUDY/study.json
        paper, settings, study = path.parent.relative_to(RESULTS).parts
        # Settings that are not listed come last, by name.
        rank = ORDER.index(settings) if settings in ORDER else len(ORDER)
        return PAPERS.index(paper), rank, settings, number_of(study), study

    return sorted(RESULTS.glob("*/*/*/study.json"), key=place_of)


def read_study(path: Path) -> Row:
    """Read a `study.json`: title, command, claims, settings."""
    study: Row = json.loads(path.read_text("utf-8"))
    return study


def read_verdicts(path: Path) -> list[Row]:
    """Read the verdicts in the folder of a `study.json`."""
    found: list[Row] = json.loads((path.parent / "verdicts.json").read_text("utf-8"))
    return found


def word(verdict: Row) -> str:
    """Return the outcome of a verdict in one word; for a failed claim, how it failed."""
    return str(verdict.get("failing") or verdict["outcome"])


@cache
def read_repeated() -> dict[str, list[list[str]]]:
    """Read which verdicts rest on repeated data: {records: [claim, subject, the records that are judged instead]}."""
    found: dict[str, list[list[str]]] = json.loads(REPEATED.read_text("utf-8"))
    return found


def judged_in(path: Path, verdict: Row) -> str:
    """Return the other records of the same data that are judged in place of these; "" if these are the first."""
    # Folders of tests lie elsewhere, and repeat nothing.
    if not path.is_relative_to(RESULTS):
        return ""
    place = path.parent.relative_to(RESULTS).as_posix()
    for claim, subject, first in read_repeated().get(place, []):
        if (claim, subject) == (verdict["claim"], verdict["subject"]):
            return first
    return ""


def distinct_verdicts(path: Path) -> list[Row]:
    """Return the verdicts of a folder, without those whose data were judged in another folder."""
    return [verdict for verdict in read_verdicts(path) if not judged_in(path, verdict)]


def primary_claims(path: Path) -> set[str]:
    """Return the names of the claims by which a figure or table is judged."""
    return {claim["name"] for claim in read_study(path)["claims"] if claim["primary"]}


def count_words(words: Iterable[str]) -> str:
    """Count verdicts by kind, in words, and how many are evidence: decided, and not true by construction."""
    counts = Counter(words)
    each = ", ".join(f"{counts[kind]} {kind}" for kind in WORDS)
    # Only what is decided counts as evidence, and not what is true by construction.
    decided = counts["holds"] + sum(counts[way] for way in FAILING)
    return f"{sum(counts.values())} verdicts: {each}; {decided} are evidence."


def verdict_table() -> pd.DataFrame:
    """Build a table with a row per verdict, with its claim, and where its data are judged if not here."""
    rows = []
    for path in study_files():
        paper, settings, _ = path.parent.relative_to(RESULTS).parts
        study = read_study(path)
        claims = {claim["name"]: claim for claim in study["claims"]}
        for verdict in read_verdicts(path):
            claim = claims[verdict["claim"]]
            rows.append(
                {
                    "paper": paper,
                    "settings": settings,
                    "study": study["study"],
                    "claim": claim["name"],
                    "statement": claim["statement"],
                    "primary": claim["primary"] is True,
                    "subject": verdict["subject"],
                    "published": claim.get("published", ""),
                    # On pages the number follows a colon; a column of a table needs
                    # none.
                    "statistic": verdict["statistic"].rstrip(":"),
                    "value": verdict["value"],
                    "low": verdict["low"],
                    "high": verdict["high"],
                    "n": verdict["n"],
                    "p": verdict["p"],
                    "verdict": word(verdict),
                    "reason": verdict["reason"],
                    "judged_in": judged_in(path, verdict),
                }
            )
    # A count with gaps: pandas' own integers know a missing value, numpy's would become
    # floats.
    return pd.DataFrame(rows).astype({"n": "Int64"})


def published_table() -> pd.DataFrame:
    """Build a table of every number in the papers' tables with ours: mean over seeds, interval, range
    of one more run.
    """
    rows = []
    for path in study_files():
        compared = path.parent / COMPARED
        # Godey et al. publish figures alone: most studies have no numbers to compare.
        if not compared.exists():
            continue
        paper, settings, study = path.parent.relative_to(RESULTS).parts
        for number in json.loads(compared.read_text("utf-8")):
            rows.append({"paper": paper, "settings": settings, "study": study} | number)
    return pd.DataFrame(rows).astype({"n": "Int64"})


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Write a table as CSV with six significant digits; no computation reads it."""
    path.write_text(
        table.to_csv(index=False, float_format="%.6g", lineterminator="\n"),
        encoding="utf-8",
    )
