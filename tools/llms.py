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


def _line(name: str, path: str) -> str:
    """A link to a page, and the question that it answers or its first sentence."""
    page = (ROOT / "docs" / path).read_text("utf-8")
    asked = re.search(r"^# (.+\?)$", page, re.MULTILINE)
    said = asked[1] if asked else first_sentence(page)
    return f"[{name}]({path})" + (f": {said}" if said else "")


def first_sentence(page: str) -> str:
    """The first sentence of a page in Markdown, without links and metadata; empty if it begins with no prose."""
    page = re.sub(r"\A---\n.*?\n---\n", "", page, flags=re.DOTALL)
    for part in re.split(r"\n\s*\n", page):
        part = " ".join(part.split())
        if not part or part.startswith(("#", "<!--", "```", "|", "    ", ":::", "!", "-")):
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
