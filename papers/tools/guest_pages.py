"""The pages of papers that came later: five sentences, a table of claims from committed verdicts, what needs a hub."""

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
    """Return the page of a paper: what it says in five sentences, its claims and ours, what only a hub can decide."""
    told, studies = PAPERS[paper], [study for study in find_studies() if study.paper == paper]
    lines = [f"# {told['title']}", "", told["of"], ""]
    lines += [f"{i}. {findings.fill(sentence)}" for i, sentence in enumerate(told["five"], start=1)]
    for study in studies:
        lines += ["", f"## {study.title}", "", *_claims(study)]
    lines += ["", "## The weakest number", "", findings.fill(told["weakest"])]
    lines += ["", "## What only a hub can decide", "", findings.fill(told["hub"]), ""]
    lines += [f"    anisoscope reproduce {paper} --settings paper", ""]
    return "\n".join(lines)


def _claims(study: Study) -> list[str]:
    """Return the table of a study's claims: what was asked for, and what was found in all settings with records."""
    lines = ["| claim | asked for | published | we find |", "|---|---|---|---|"]
    for claim in study.claims:
        primary = " (the study is judged by it)" if claim.primary else ""
        cells = (f"{claim.statement}{primary}. {claim.source}.", _margin(claim), claim.published or "–")
        lines.append(table_row((*cells, _found(study, claim) or "not measured yet")))
    return lines


def _margin(claim: Claim) -> str:
    """Return in words what a claim asks of its number."""
    if claim.inside is not None:
        return f"{claim.statistic}: {claim.inside[0]:g} to {claim.inside[1]:g}".replace("-", "−")
    side = "above" if claim.below is None else "below"
    by = f" by {claim.floor:g}" if claim.floor else ""
    limit = claim.limit if isinstance(claim.limit, str) else f"{claim.limit:g}".replace("-", "−")
    return f"{claim.statistic or 'A'} {side} {limit}{by}"


def _found(study: Study, claim: Claim) -> str:
    """Return number, interval, n and verdict of a claim in every folder of committed records, with the settings."""
    parts = []
    for path in sorted(RESULTS.glob(f"{study.paper}/*/{study.name}/study.json")):
        for verdict in read_verdicts(path):
            if verdict["claim"] != claim.name:
                continue
            number = "" if verdict["value"] is None else f"{findings.short_number(verdict, 'number')}, "
            reason = f"; {verdict['reason']}" if verdict["reason"] else ""
            parts.append(f"`{path.parts[-3]}`: {number}*{word(verdict)}*{reason}")
    return "<br>".join(parts)


PAGES: Makers = {f"{paper}.md": partial(page, paper) for paper in PAPERS}
