"""`docs/llms.txt`: what the documentation holds, page by page, for programs that read it; made from the site's list."""

import re
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "llms.txt"
HEAD = """# Anisoscope

> A Python library and program that measure the geometry of representations and of self-attention (anisotropy, drift,
> spectrum, queries and keys, attention entropy, class directions) exactly and with intervals, in any model or set of
> vectors; a second package reproduces two papers claim by claim.

Commands print JSON with `--format json`, by answers.schema.json, and end with documented exit codes (cli.md). A
program that must judge embeddings starts with skill.md.
"""


def text() -> str:
    """Every page of the site with its first sentence, under the site's headings."""
    # Tags of mkdocs' own (!!python/name) are none of ours; the list of pages has none.
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    lines = [HEAD.rstrip()]
    for entry in site["nav"]:
        ((title, pages),) = entry.items()
        if isinstance(pages, str):
            lines += ["", f"- {_line(title, pages)}"]
            continue
        lines += ["", f"## {title}", ""]
        for page in pages:
            ((name, path),) = page.items()
            lines.append(f"- {_line(name, path)}")
    return "\n".join(lines) + "\n"


BLURBS = {
    "install.md": "Extras, builds of torch, package managers, what anisoscope-papers adds.",
    "concepts.md": "Glossary of every word, the rules of the findings, how to compare anisotropy across widths.",
    "inputs.md": "Every kind of model, input and file of vectors that is taken or refused, as code.",
    "exactness.md": "How exact the numbers are, and what measuring costs compared with a typical script.",
    "limit.md": "What measuring costs as a multiple of the forward pass, and what slows it down.",
    "metrics.md": "Every metric: formula, range, unit, when it is undefined, source, and how to measure it.",
    "intervals.md": "How often the 95 % intervals contain the true value, value by value, in simulations.",
    "fosse2023.md": "Fosse et al. 2023 and our records: attention is used; the task decides if it is needed.",
    "results.md": "The primary claim of each figure and table of both papers: their number, ours, the verdict.",
    "published-entropy.md": "Which formula gave the attention entropy of table 4 of Fosse et al. 2023.",
    "decisions/fosse2023.md": "Sixteen places where the code and the text of Fosse et al. 2023 differ, and what we do.",
    "adding.md": "How to add a metric (a whole one is shown), a study, an architecture, a corpus.",
    "decisions/jackknife.md": "Why intervals come from a delete-a-group jackknife and not from the bootstrap.",
    "decisions/one-accumulator.md": "Why all metrics share one set of sums.",
    "decisions/identity.md": "When two runs count as the same, and which changes of code do not matter.",
    "decisions/scanning.md": "Why metrics and studies are found by scanning folders.",
    "decisions/two-distributions.md": "Why the tool and the papers are two packages.",
    "decisions/settings.md": "How options of the command line and keywords of Python come from one place.",
    "promises.md": "Which names, files and numbers stay the same between versions.",
    "licences.md": "Licences of the networks and data that the papers' studies use.",
    "releasing.md": "How a release is made.",
}
"""What is said of pages whose first sentence alone says little."""


def _line(name: str, path: str) -> str:
    """A link to a page, and what it says: in our words, the question that it answers, or its first sentence."""
    if path in BLURBS:
        return f"[{name}]({path}): {BLURBS[path]}"
    page = (ROOT / "docs" / path).read_text("utf-8")
    asked = re.search(r"^# (.+\?)$", page, re.MULTILINE)
    said = asked[1] if asked else first_sentence(page)
    return f"[{name}]({path})" + (f": {said}" if said else "")


def first_sentence(page: str) -> str:
    """The first sentence of a page in Markdown, without links and metadata; empty if it begins with no prose."""
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    for part in re.split(r"\n\s*\n", page):
        part = " ".join(part.split())
        if not part or part.startswith(
            ("#", "<!--", "```", "|", "    ", ":::", "!", "-")
        ):
            continue
        part = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", part)
        return re.split(r"(?<=[.?])\s", part.replace("**", ""), maxsplit=1)[0]
    return ""


def write() -> Path:
    """Write the file; its path."""
    FILE.write_text(text(), encoding="utf-8")
    return FILE


def pages_of(site: Any) -> list[str]:
    """Paths of all pages of a site's list."""
    if isinstance(site, str):
        return [site]
    entries = site.values() if isinstance(site, dict) else site
    return [path for entry in entries for path in pages_of(entry)]
