"""Write pages of the committed verdicts: the primary claims, an overview of all studies, and a searchable table."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from committed import (
    RESULTS,
    count_words,
    distinct_verdicts,
    primary_claims,
    published_table,
    read_study,
    study_files,
    verdict_table,
    word,
)
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pages import table_row

from anisoscope_papers.study import WORDS
from anisoscope_papers.study_names import PAPERS, number_of

LIMIT = re.compile(r"(?:\(claim: |against )([^):]+)")
"""In a statistic, what its number is held against."""
SEARCHABLE = "all-verdicts.html"
LISTED = 3
"""Entries of a cell that are shown without a click."""
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def primary_page() -> str:
    """Return the page of primary claims, by which figures and tables are judged: what was published, and what was
    found.
    """
    lines = [
        "# Our numbers and the papers'",
        "",
        "Each row is a figure or table of a paper, with its primary claim: the one claim by which it is judged.",
        "The papers are [godey2024](godey2024.md), [fosse2023](fosse2023.md), [gu2025](gu2025.md) and",
        "[machina2024](machina2024.md). *beyond* are [studies of our own](findings.md).",
        "",
        "- *claim* is the paper's statement, in our words, with the criterion by which we judge it.",
        "- *published* is the paper's number, if it has one. Godey et al. publish figures, so most rows have none.",
        "- *number* names what we measured. *Largest* and *middle* (the median) are over layers. The *weakest*",
        "  layer or seed is the one that supports the claim least.",
        "- *ours* has our verdicts and how many there are of each. Each entry gives the settings (models and data),",
        "  the model, our number and its 95 % interval. *Compared with* or *against* gives the limit for the number.",
        "  *> 0 by 0.1* means at least 0.1 above 0. Settings are *quick*, *long*, *packaged* (networks that others",
        "  trained), *finished* (our long trainings) and others.",
        "",
        f"[The full table]({SEARCHABLE}) has all other claims, with p, and every number of Fosse et al. with ours.",
        "[Reproduce a paper](tasks/reproduce.md#how-to-read-it) explains the verdicts, [every verdict](verdicts.md)",
        "the settings, and [the glossary](concepts.md) the words.",
        "",
        "## How many verdicts",
        "",
        "A verdict is *evidence* if it could have come out differently with other data. *Undecided*, *identity* and",
        "*not comparable* are no evidence.",
        "",
        count_evidence(),
    ]
    for paper in PAPERS:
        lines += [
            f"## {paper}",
            "",
            "| figure, table | claim | published | number | ours |",
            "|---|---|---|---|---|",
        ]
        for row in _primary_rows(paper):
            # The statistic is that of the claim, the same in all settings, up to its
            # place or limit.
            path, verdict = row["found"][0]
            number = (
                verdict["statistic"]
                .partition(", at ")[0]
                .partition(" (")[0]
                .rstrip(":")
            )
            outcomes = list_outcomes(row["found"])
            lines.append(
                table_row(
                    (
                        path.parent.name,
                        row["statement"],
                        row["published"],
                        number,
                        outcomes,
                    )
                )
            )
        lines.append("")
    return "\n".join(lines)


def _primary_rows(paper: str) -> list[dict[str, Any]]:
    """Return each primary claim of a paper with its verdicts in all settings, in the order of figures and tables."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for path in sorted(
        RESULTS.glob(f"{paper}/*/*/study.json"),
        key=lambda p: (number_of(p.parent.name), p),
    ):
        for claim in read_study(path)["claims"]:
            if claim["primary"]:
                # A claim is one row over all settings in which it was judged.
                row = rows.setdefault(
                    (path.parent.name, claim["statement"]), claim | {"found": []}
                )
                for verdict in distinct_verdicts(path):
                    if verdict["claim"] == claim["name"]:
                        row["found"].append((path, verdict))
    return list(rows.values())


def list_outcomes(found: list[tuple[Path, dict[str, Any]]]) -> str:
    """List outcomes and their subjects in words, with the threshold if it differs between them."""
    limits = []
    for _, verdict in found:
        named = LIMIT.findall(verdict["statistic"])
        limits.append(" ".join(filter(None, named)))
    # One threshold is named once, before the list.
    same = len(set(limits)) == 1
    parts = [f"Compared with {limits[0]}."] if same and limits[0] else []
    for outcome in WORDS:
        alike = []
        for (path, verdict), limit in zip(found, limits, strict=True):
            if word(verdict) != outcome:
                continue
            subject = " ".join((path.parent.parent.name, verdict["subject"])).strip()
            against = f" against {limit}" if limit and not same else ""
            alike.append(
                f"{subject}: {show_number(verdict, 3) or 'no number'}{against}"
            )
        if alike:
            parts.append(_fold(f"**{outcome}** {len(alike)}", alike))
    return "<br>".join(parts)


def _fold(title: str, entries: list[str]) -> str:
    """List entries after their title, or below it if they are many: then a click opens them."""
    if len(entries) <= LISTED:
        return f"{title}: {'; '.join(entries)}"
    return f"<details><summary>{title.replace('**', '')}</summary>{'<br>'.join(entries)}</details>"


def show_number(verdict: dict[str, Any], digits: int = 4) -> str:
    """Format number and interval: `0.0125 [0.0117, 0.0133]`, without an unbounded interval; "" if
    there is no number.
    """
    if verdict["value"] is None:
        return ""
    low, high = verdict["low"], verdict["high"]
    # NaN differs from itself.
    bounded = low is not None and high is not None and low == low and high == high
    interval = f" [{low:.{digits}g}, {high:.{digits}g}]" if bounded else ""
    return f"{verdict['value']:.{digits}g}{interval}"


def count_evidence() -> str:
    """Count the verdicts of every paper, of all claims and of primary ones, in words; repeated data count once."""
    lines = []
    for paper in PAPERS:
        every = []
        primary = []
        for path in sorted(RESULTS.glob(f"{paper}/*/*/study.json")):
            names = primary_claims(path)
            for verdict in distinct_verdicts(path):
                every.append(word(verdict))
                if verdict["claim"] in names:
                    primary.append(word(verdict))
        lines += [
            f"- **{paper}**, all claims: {count_words(every)}",
            f"- **{paper}**, primary claims: {count_words(primary)}",
        ]
    return "\n".join([*lines, ""])


SETTINGS = {
    "quick": "minutes, no download; small models that decide little",
    "paper": "the paper's own models, data and sizes",
    "small, bytes, causal": "small language models trained here: masked ones of tokens and of bytes, and causal ones",
    "vision, speech": "small models trained here on digits, and on spoken digits",
    "photographs, clips": "small models trained here on photographs, and on clips of speech",
    "long": "small models trained here until their loss no longer falls, and the same models untrained",
    "held-out": "small models of photographs and of speech, measured on data that they were not trained on",
    "packaged": "networks that others trained and that come in a package, and the same networks untrained",
    "architectures, depth, heads, scale, no-type": "the untrained block: other architectures, a stack of blocks, other "
    "numbers of heads, other scales of weights, no type vector",
    "finished": "the studies of Fosse et al. and our own, as far as their models are trained",
    "generated": "our own studies on generated sentences",
}
"""What the names of settings stand for."""


def overview() -> str:
    """Return the page of every study, with the command that made its records, its verdicts, and notes
    on the settings.
    """
    lines = [
        "# Every verdict",
        "",
        f"**[Search all verdicts]({SEARCHABLE})** by paper, figure, claim, model or outcome. Each has its number,",
        "95 % interval, n and p. The repository has the same as data, in `papers/results/`: `verdicts.csv` has one row",
        "for each verdict, `published.csv` has each number of the papers' tables and ours, and `changes.csv` lists",
        "verdicts that have changed on the same records: old, new and why.",
        "",
        "A claim *holds*, or it fails in one of three ways: *contrary* (the effect goes the other way), *too small*",
        "(less than claimed) or *beyond* (outside of the claimed range). *Undecided*: the records allow both answers.",
        "*Identity*: true by construction. *Not comparable*: our model or data differ too much from the paper's.",
        "",
        "*Undecided*, *identity* and *not comparable* are no evidence; the other verdicts are.",
        "A claim is *primary* if its figure or table is judged by it.",
        "",
        count_evidence(),
        "## The settings",
        "",
        "| settings | what they are |",
        "|---|---|",
        *(table_row((f"`{name}`", what)) for name, what in SETTINGS.items()),
        "",
        "Each section below has the command that made the records of its studies, and their verdicts.",
        "",
    ]
    sections: dict[tuple[str, str], list[Path]] = {}
    for path in study_files():
        paper, settings, _ = path.parent.relative_to(RESULTS).parts
        sections.setdefault((paper, settings), []).append(path)
    for (paper, settings), paths in sections.items():
        lines += [f"## {paper}, {settings} settings", ""]
        # Some settings need an explanation: it lies with their records.
        note = RESULTS / paper / settings / "README.md"
        if note.exists():
            lines += [note.read_text("utf-8").strip(), ""]
        lines += [
            f"    anisoscope reproduce {paper} --settings {settings} --only …",
            "",
        ]
        lines += ["| `--only` | what | verdicts |", "|---|---|---|"]
        for path in paths:
            study = read_study(path)
            counts = Counter(word(verdict) for verdict in distinct_verdicts(path))
            each = (
                ", ".join(f"{counts[kind]} {kind}" for kind in WORDS if counts[kind])
                or "judged elsewhere"
            )
            link = (
                f"[{study['study']}]({SEARCHABLE}#{paper}/{settings}/{study['study']})"
            )
            lines.append(table_row((link, study["title"], each)))
        lines.append("")
    return "\n".join(lines)


def searchable() -> str:
    """Return an HTML page that holds every verdict and filters them while typing; it loads nothing else."""
    # Through JSON, which turns pandas' missing values into null.
    verdicts = json.loads(verdict_table().to_json(orient="records"))
    published = json.loads(published_table().to_json(orient="records"))
    template = TEMPLATES.get_template("all_verdicts.html.j2")
    return template.render(
        verdicts=_pack(verdicts), published=_pack(published), words=WORDS, papers=PAPERS
    )


def _pack(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Pack rows as lists in the order of `columns`, with texts replaced by their place in `texts`, as most are
    repeated.
    """
    texts: dict[str, int] = {}
    columns = list(rows[0])
    packed = []
    for row in rows:
        cells: list[Any] = []
        for name in columns:
            cell = row[name]
            if isinstance(cell, str):
                # A place in `texts` is marked by #, so that it differs from a number.
                cells.append(f"#{texts.setdefault(cell, len(texts))}")
            elif isinstance(cell, float):
                cells.append(float(f"{cell:.4g}"))
            else:
                cells.append(cell)
        packed.append(cells)
    return {"columns": columns, "texts": list(texts), "rows": packed}
