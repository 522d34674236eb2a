"""Names of papers, studies and settings that cannot be right, refused before the studies are imported (seconds)."""

import re
import tomllib
from functools import cache
from pathlib import Path

from anisoscope.errors import UsageError, near_matches

PAPERS = ("godey2024", "fosse2023", "beyond")
"""The papers, and what we ask beyond them."""
_STUDY = re.compile(r"(?:fig|table|sec)\d+[a-z]?|explained|replaced|drift|origins|heads|sinks|useful|forms|needed")


@cache
def _written(paper: str) -> set[str]:
    """Words between quotation marks in a paper's sources, and tables of its TOML: names of studies are among them."""
    found = {".py": r'"([\w-]+)"', ".toml": r"(?m)^\[([\w-]+)\]"}
    files = [path for path in (Path(__file__).parent / paper).iterdir() if path.suffix in found]
    return {word for path in files for word in re.findall(found[path.suffix], path.read_text("utf-8"))}


def check(paper: str, only: str, settings: str) -> None:
    """UsageError for a study or settings that stand nowhere in the paper's sources; ranges are looked at later."""
    words = _written(paper)
    for part in filter(None, (part.strip() for part in only.split(","))):
        if "-" not in part and not any(f"{part}{letter}" in words for letter in ("", "a", "b")):
            studies = [word for word in words if _STUDY.fullmatch(word)]
            raise UsageError(f"figures or tables of {paper}", repr(part), near_matches(part, studies))
    if only and not only.strip(" ,"):
        raise UsageError(f"figures or tables of {paper} for --only", repr(only), "leave it out for all")
    if settings not in words:
        cure = f"{near_matches(settings, ('quick', 'paper'))} (anisoscope list studies names those of each)"
        raise UsageError(f"settings of {paper}", repr(settings), cure)


def listed() -> list[tuple[str, str, str, list[str]]]:
    """Paper, name, title and settings of every study, as its published.toml says; in the order of the papers."""
    found = []
    for paper in PAPERS:
        entries = tomllib.loads((Path(__file__).parent / paper / "published.toml").read_text("utf-8"))
        usual = entries.get("settings", ["quick", "paper"])
        studies = [(name, entry) for name, entry in entries.items() if isinstance(entry, dict) and "title" in entry]
        for name, entry in sorted(studies, key=lambda study: number_of(study[0])):
            found.append((paper, name, entry["title"], entry.get("settings", usual)))
    return found


def number_of(name: str) -> tuple[str, int, str]:
    """What studies are sorted by: fig2 stands before fig10."""
    match = re.fullmatch(r"([a-z]+)(\d*)(.*)", name)
    return (match[1], int(match[2] or 0), match[3]) if match else (name, 0, "")
