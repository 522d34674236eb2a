"""Pages of the documentation that are made from the code: what makes them is a function that gives Markdown."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

GENERATED = "<!-- Made by `make docs`; do not edit. -->\n\n"
DOCS = Path(__file__).resolve().parents[1] / "docs"

Makers = Mapping[str, Callable[[], str]]
"""Names of files in docs/, and what makes them."""


def text_of(make: Callable[[], str]) -> str:
    """The text of a generated page."""
    return (
        "\n".join(line.rstrip() for line in (GENERATED + make()).splitlines()).rstrip()
        + "\n"
    )


def write(makers: Makers, folder: Path = DOCS) -> list[Path]:
    """Write every page into `folder`; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in makers.items():
        (folder / name).write_text(text_of(make), encoding="utf-8")
    return [folder / name for name in makers]


def write_between(page: Path, mark: str, text: str) -> Path:
    """Put a text between the two marks of a page; its path."""
    before, _, after = page.read_text("utf-8").split(mark)
    page.write_text(f"{before}{mark}{text}{mark}{after}", encoding="utf-8")
    return page


def table_row(cells: Sequence[Any]) -> str:
    """A row of a table in Markdown."""
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
