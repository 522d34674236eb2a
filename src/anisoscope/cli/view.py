"""How results are shown: tables that fit the terminal, or JSON, CSV and Markdown; sentences wrapped where it ends."""

import json
import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anisoscope.options import OUTPUT, Option
from anisoscope.progress import keeping, waiting

if TYPE_CHECKING:
    import pandas as pd

    from anisoscope.runs.findings import Finding

FORMATS = ("table", "json", "csv", "markdown")


@dataclass(frozen=True)
class Quiet:
    """Whether progress is shown."""

    quiet: Annotated[bool, Option("no progress", OUTPUT, ("--quiet", "-q"))] = False


@dataclass(frozen=True)
class View:
    """What stdout gets. JSON and CSV hold the records behind the table, in full precision, by the records' names."""

    format: Annotated[str, Option("of what goes to stdout: table, json, csv, markdown", OUTPUT, known=FORMATS)] = (
        "table"
    )
    wide: Annotated[bool, Option("every column of the table, with intervals", OUTPUT)] = False


@dataclass(frozen=True)
class Table:
    """Rows of text under a head, and the records they were made of."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    records: "pd.DataFrame"


def show(tables: Sequence[Table], view: View, found: "Sequence[Finding]" = ()) -> None:
    """Tables, then the findings, on stdout."""
    if view.format == "json":
        findings = [asdict(finding) for finding in found]
        typer.echo(json.dumps({"findings": findings, "records": _plain_rows(tables)}, indent=1, ensure_ascii=False))
    elif view.format == "csv":
        import pandas as pd

        typer.echo(pd.concat([table.records for table in tables]).to_csv(index=False), nl=False)
    elif view.format == "markdown":
        typer.echo("\n\n".join(filter(None, map(_markdown, tables))))
        typer.echo("".join(f"\n- {finding.text}" for finding in found), nl=bool(found))
    else:
        typer.echo("\n\n".join(_text(table) for table in tables if table.rows))
        if found:
            typer.echo()
            tell("\n".join(finding.text for finding in found))


def _plain_rows(tables: Sequence[Table]) -> list[dict[str, Any]]:
    """The records behind the tables, null where there is nothing (JSON knows no NaN)."""
    rows = []
    for table in tables:
        rows += json.loads(table.records.to_json(orient="records", double_precision=15))
    return rows


def _markdown(table: Table) -> str:
    if not table.rows:
        return ""
    rows = [table.head, tuple("---" for _ in table.head), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _text(table: Table) -> str:
    """Columns side by side; cells are folded where the terminal is too narrow."""
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
    for name in table.head:
        drawn.add_column(name, overflow="fold", vertical="bottom" if name else "top")
    for row in table.rows:
        drawn.add_row(*row)
    width = columns(sys.stdout)
    console = Console(file=StringIO(), width=width or 10_000, color_system=None, highlight=False, markup=False)
    console.print(drawn)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())


def columns(stream: Any) -> int | None:
    """Columns of the terminal that a stream writes to; None where it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


GLUE = "\x1f"
"""A space of a path, at which no line is wrapped."""


def tell(text: str, *, err: bool = False, indent: str = "") -> None:
    """Print lines, wrapped between words where they are wider than the terminal (lines after the first: indented)."""
    width = columns(sys.stderr if err else sys.stdout)
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False, "replace_whitespace": False}
    for line in text.splitlines():
        wrapped = line if width is None else textwrap.fill(line, width, subsequent_indent=indent, **how)
        typer.echo(wrapped.replace(GLUE, " "), err=err)


def here(path: Path, *, typed: bool = False) -> str:
    """A path, from the working directory where it lies below, that `tell` never breaks; `typed`: quoted for a shell."""
    name = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return (shlex.quote(name) if typed else name).replace(" ", GLUE)


def close(folder: Path, warnings: Sequence[str], *, quiet: bool) -> None:
    """Draw the report of a run; then notes, where it is, and what to do next, on stderr."""
    drawn_later = f"anisoscope report {shlex.quote(str(folder))}"
    with (
        keeping(lambda: "the run is finished, but for its page", drawn_later),
        waiting("drawing the report", quiet=quiet),
    ):
        from anisoscope.report import build

        page = build(folder)
    for warning in warnings:
        tell(f"note: {warning}", err=True, indent="  ")
    tell(f"report: {here(page)} (open it in a browser)", err=True, indent="  ")
    tell(f"next: anisoscope compare {here(folder, typed=True)} ANOTHER-RUN", err=True, indent="  ")
