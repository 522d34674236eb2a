"""The pages of papers that came later: five paragraphs, tables of claims from committed verdicts, limits, what needs
a hub.
"""

import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import findings
from committed import RESULTS, read_verdicts, word
from pages import Makers, table_row

from anisoscope_papers.runner import find_studies
from anisoscope_papers.study import Claim, Study

TEXT = Path(__file__).with_name("guests.toml")
PAPERS: dict[str, Any] = tomllib.loads(TEXT.read_text("utf-8"))


def page(paper: str) -> str:
    """Return the page of a paper: five paragraphs, claims with our numbers, limits, and what needs a hub."""
    text = PAPERS[paper]
    studies = [study for study in find_studies() if study.paper == paper]
    lines = [f"# {text['title']}", "", text["of"], ""]
    lines += [
        f"{i}. {findings.fill(paragraph)}"
        for i, paragraph in enumerate(text["five"], start=1)
    ]
    lines += ["", "## Claims", "", findings.fill(text["table"])]
    # One table for each study; its claims in the order of the file.
    for study in studies:
        lines += ["", f"### {study.title}", "", *_claims(study)]
    lines += ["", "## Limits", "", findings.fill(text["limits"])]
    lines += ["", "## What only a hub can decide", "", findings.fill(text["hub"]), ""]
    lines += [f"    anisoscope reproduce {paper} --settings paper", ""]
    return "\n".join(lines)


def _claims(study: Study) -> list[str]:
    """Return the table of a study's claims: what was asked for, and what was found in all settings with records."""
    lines = [
        "| claim | source | published | we require | we find |",
        "|---|---|---|---|---|",
    ]
    for claim in study.claims:
        primary = " (This claim is the primary one.)" if claim.primary else ""
        cells = (
            f"{claim.statement}.{primary}",
            claim.source,
            claim.published or "–",
            _margin(claim),
        )
        lines.append(table_row((*cells, _found(study, claim) or "not measured yet")))
    return lines


def _margin(claim: Claim) -> str:
    """Return in words what a claim asks of its number."""
    if claim.inside is not None:
        return f"{claim.statistic}: {claim.inside[0]:g} to {claim.inside[1]:g}".replace(
            "-", "−"
        )
    side = "above" if claim.below is None else "below"
    by = f" by {claim.floor:g} or more" if claim.floor else ""
    limit = (
        claim.limit
        if isinstance(claim.limit, str)
        else f"{claim.limit:g}".replace("-", "−")
    )
    return f"{claim.statistic or 'A'}: {side} {limit}{by}"


def _found(study: Study, claim: Claim) -> str:
    """Return number, interval, n and verdict of a claim in every folder of committed records.

    If there are several folders, each is named by its settings. Those of the settings `quick` are left out: so short a
    training cannot decide.
    """
    folders = []
    for path in sorted(RESULTS.glob(f"{study.paper}/*/{study.name}")):
        if path.parent.name != "quick":
            folders.append(path)
    parts = []
    for folder in folders:
        settings = f"`{folder.parent.name}`: " if len(folders) > 1 else ""
        for verdict in read_verdicts(folder / "study.json"):
            if verdict["claim"] == claim.name:
                parts.append(settings + _describe(verdict))
    return "<br>".join(parts)


def _describe(verdict: dict[str, Any]) -> str:
    """Return a verdict with its number, and with its reason if it is undecided."""
    if verdict["value"] is None:
        # The judges' reasons for what a setting lacks begin with "no".
        missing = "not measured" if verdict["reason"].startswith("no ") else "no number"
        return f"{missing}, *{word(verdict)}*"
    reason = ""
    if word(verdict) == "undecided" and verdict["reason"]:
        reason = f"; {verdict['reason']}"
    return f"{findings.short_number(verdict, 'number')}, *{word(verdict)}*{reason}"


PAGES: Makers = {f"{paper}.md": partial(page, paper) for paper in PAPERS}
