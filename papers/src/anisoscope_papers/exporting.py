"""Export reproductions for other tools: a table of all claims (CSV), or a page for each claim (HTML).

Outcomes are renamed to the words that repositories of claims use: *verified*, *falsified*, *inconclusive*, or *not
evidence*.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, StrictUndefined

from anisoscope.store import write_atomic
from anisoscope_papers.runner import open_finished
from anisoscope_papers.study import Study, Verdict, read_published

STATUS: dict[str, str] = {
    "holds": "verified",
    "fails": "falsified",
    "undecided": "inconclusive",
    "identity": "not evidence",
    "not comparable": "not evidence",
}
"""What another tool calls an outcome. How a claim fails (contrary, too small, beyond) stands beside it."""
TEMPLATE = files("anisoscope_papers").joinpath("claim.html.j2")


def build_verdict_table(studies: Sequence[Study], folder: Path) -> pd.DataFrame:
    """Build a table with a row per verdict of the finished studies below `folder`: the study, then the fields of
    `Verdict`.
    """
    rows = []
    for study in studies:
        if (folder / study.name / "study.json").exists():
            for verdict in open_finished(folder / study.name).verdicts:
                rows.append({"study": study.name} | asdict(verdict))
    # Named, so that a table of no finished study has its columns, too.
    names = ["study", *(field.name for field in fields(Verdict))]
    # With a missing n, integers would become floats: 12.0.
    return pd.DataFrame(rows, columns=names).astype({"n": "Int64"})


def build_claim_table(studies: Sequence[Study], folder: Path) -> pd.DataFrame:
    """Build the table of verdicts of the finished studies below `folder`, with paper, statement, source and status
    (`STATUS`).
    """
    table = build_verdict_table(studies, folder)
    # A claim's name is unique within its study only.
    claims = {}
    for study in studies:
        for claim in study.claims:
            claims[study.name, claim.name] = claim
    papers = {study.name: study.paper for study in studies}
    of_papers = []
    status = []
    statements = []
    sources = []
    numbers = []
    for row in table.itertuples():
        claim = claims[str(row.study), str(row.claim)]
        of_papers.append(papers[str(row.study)])
        status.append(STATUS[str(row.outcome)])
        statements.append(claim.statement)
        sources.append(claim.source)
        numbers.append(claim.published)
    table.insert(0, "paper", of_papers)
    table.insert(3, "status", status)
    table.insert(4, "statement", statements)
    return table.assign(source=sources, published=numbers)


def export_claims(studies: Sequence[Study], folder: Path, form: str) -> Path:
    """Write all verdicts of the finished studies below `folder` for other tools; return the file to open.

    `form`: `csv` writes the table `claims.csv`, `html` a page for each claim into `claims/`.
    """
    table = build_claim_table(studies, folder)
    if form == "csv":
        text = table.to_csv(index=False)
        write_atomic(
            folder / "claims.csv",
            lambda temporary: temporary.write_text(text, encoding="utf-8"),
        )
        return folder / "claims.csv"
    return _write_pages(table, folder)


def _write_pages(table: pd.DataFrame, folder: Path) -> Path:
    """Write an HTML page for each claim of a `build_claim_table`, with its verdict for every subject, and a list of all
    pages.

    Returns the path of the list.
    """
    # Statements hold <, > and &, which must be escaped; a name that is missing from the
    # page must fail, not leave a gap.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(TEMPLATE.read_text("utf-8"))
    place = folder / "claims"
    listed = []
    for (study, claim), verdicts in table.groupby(["study", "claim"], sort=False):
        # Names of claims hold spaces, commas and λ: what every file system takes is left.
        name = (
            re.sub(r"[^a-z0-9]+", "-", f"{study}-{claim}".lower()).strip("-") + ".html"
        )
        first = verdicts.iloc[0]
        rows = [_replace_missing(row) for row in verdicts.to_dict("records")]
        found = verdicts["status"].value_counts().to_dict()
        # In the order of `STATUS`, where two outcomes share a status.
        counts = []
        for status in dict.fromkeys(STATUS.values()):
            if status in found:
                counts.append((status, found[status]))
        about = {"study": study, "statement": first["statement"], "counts": counts}
        page = {
            "paper": read_published(first["paper"])["paper"],
            "source": first["source"],
            "published": first["published"],
        }
        _write(
            place / name, template.render(**about, **page, verdicts=rows, listed=None)
        )
        listed.append(about | {"link": name})
    # Of no finished study there is an empty list, without a paper.
    paper = read_published(table["paper"].iloc[0])["paper"] if len(table) else ""
    _write(
        place / "index.html",
        template.render(statement=paper, paper=paper, verdicts=None, listed=listed),
    )
    return place / "index.html"


def _replace_missing(row: dict[Any, Any]) -> dict[str, Any]:
    """Return a row (column: value) with None for missing values."""
    # The template asks for `none`: a NaN would be printed as nan.
    replaced: dict[str, Any] = {}
    for name, value in row.items():
        replaced[str(name)] = None if pd.isna(value) else value
    return replaced


def _write(path: Path, text: str) -> None:
    """Write text to a file, atomically."""
    write_atomic(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
