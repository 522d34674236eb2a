"""Write the draft for JOSS to paper/paper.md: `joss.md`, with the numbers of committed verdicts and benchmarks."""

import json
import re
from pathlib import Path

import findings

ROOT = Path(__file__).resolve().parents[2]
DRAFT, PAPER = Path(__file__).with_suffix(".md"), ROOT / "paper" / "paper.md"
OVERHEAD = re.compile(r"\{\{overhead \| ([^}]+)\}\}")


def paper() -> str:
    """Return the text of the paper. KeyError or ValueError if a verdict or measurement that it names is missing."""
    text = OVERHEAD.sub(_overhead, DRAFT.read_text("utf-8"))
    return findings.fill(text)


def _overhead(field: re.Match[str]) -> str:
    """Return the median processor time of measuring some panels, relative to the bare forward pass, with quartiles."""
    rows = json.loads((ROOT / "benchmarks" / "results.json").read_text("utf-8"))[
        "overhead"
    ]
    # One thread and windows of 256 tokens; exactly one row, or an error.
    (row,) = (
        r
        for r in rows
        if (r["threads"], r["windows"], r["panels"]) == (1, "256", field[1])
    )
    median, low, high = row["processor"]
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def words(text: str) -> int:
    """Count the words of a draft, without metadata and references."""
    # The front matter lies between two lines of dashes.
    body = text.split("---\n", 2)[2].partition("# References")[0]
    return len(body.split())


def write() -> Path:
    """Write the paper, and return its path."""
    PAPER.write_text(paper(), encoding="utf-8")
    return PAPER
