"""Show results as tables that fit the terminal, or as JSON, CSV and Markdown; wrap sentences at its width."""

import json
import math
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anisoscope.options import INPUT, OUTPUT, FilePath, declare_settings, option

if TYPE_CHECKING:
    import pandas as pd

    from anisoscope.runs.finding import Finding

Quiet = Annotated[bool, option("no progress", OUTPUT, "-q")]
Config = Annotated[
    FilePath | None,
    option('file of these options (limit = 20, panel = "hidden"), or a run folder: as that was measured', INPUT),
]
"""The option of a command that reads its settings from a file too; what is typed goes before what the file says."""


@declare_settings
class Format:
    """The format of stdout.

    JSON and CSV hold the records behind the table, in full precision, by the records' names.
    """

    format: Annotated[
        Literal["table", "json", "csv", "markdown"],
        option("format of stdout: table, json, csv, markdown", OUTPUT),
    ] = "table"


@declare_settings
class View(Format):
    """The options that say how a run is shown."""

    wide: Annotated[bool, option("every column that was measured, with intervals", OUTPUT)] = False
    heads: Annotated[bool, option("attention head by head, not layer by layer", OUTPUT)] = False


@dataclass(frozen=True)
class Table:
    """Rows of text under headings, and the records they were made from."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    records: "pd.DataFrame"


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Write a line to stdout, or to stderr, as it is, however long."""
    stream = sys.stderr if err else sys.stdout
    stream.write(text + end)
    stream.flush()


SCHEMA = 1
"""Version of what `--format json` prints (docs/answers.schema.json): goes up if a field goes or means another thing."""


def say_json(answer: Mapping[str, Any]) -> None:
    """Write an answer to stdout as JSON, with the version of its schema."""
    say(json.dumps({"schema": SCHEMA, **answer}, indent=1, ensure_ascii=False, allow_nan=False))


def show(
    tables: Sequence[Table],
    view: Format,
    found: "Sequence[Finding]" = (),
    notes: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write tables, then findings, to stdout.

    notes, more   what JSON has beside them, since who reads it may not read stderr: notes, and fields of the command
    """
    if view.format == "json":
        answer: dict[str, Any] = {**(more or {}), "findings": list(map(asdict, found)), "notes": list(notes)}
        answer["records"] = [row for table in tables for row in _to_json_records(table)]
        say_json(answer)
    elif view.format == "csv":
        import pandas as pd

        say(pd.concat([table.records for table in tables]).to_csv(index=False), end="")
    elif view.format == "markdown":
        say("\n\n".join(filter(None, map(_to_markdown, tables))))
        say("".join(f"\n- {finding.text}" for finding in found), end="\n" if found else "")
    else:
        say("\n\n".join(_to_text(table) for table in tables if table.rows))
        if found:
            say("")
            echo_wrapped("\n".join(finding.text for finding in found))


def show_row(row: Mapping[str, Any], view: Format) -> None:
    """Show one row of named fields, for a command that has no table."""
    import pandas as pd

    show([Table(tuple(row), [[str(value) for value in row.values()]], pd.DataFrame([dict(row)]))], view)


def _to_json_records(table: Table) -> list[dict[Any, Any]]:
    """Return the records as JSON has them: every digit of a number, null for missing or infinite ones."""
    known = table.records.replace([math.inf, -math.inf], math.nan)
    return known.astype(object).where(known.notna(), None).to_dict("records")


def _to_markdown(table: Table) -> str:
    """Return the table as Markdown."""
    if not table.rows:
        return ""
    rows = [table.head, tuple("---" for _ in table.head), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def _to_text(table: Table) -> str:
    """Return the table as text columns. If the terminal is too narrow, intervals stand below their values, and cells
    are folded between words; within words only if nothing else helps.
    """
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True)
    width = count_columns(sys.stdout) or 10_000
    rows, whole = table.rows, _find_unfolded_columns(table, width)
    least = _find_least_widths(table.head, rows)
    if not _find_interval_columns(table) <= whole:
        below = [[cell.replace(" [", "\n[") if " [" in cell else f"{cell}\n" for cell in row] for row in rows]
        least_below = _find_least_widths(table.head, below)
        if _sum_widths(least_below) <= width:
            rows, least = below, least_below
    vertical: Any = "bottom" if all(table.head) else "top"
    widths = _choose_widths(table.head, rows, least, whole, width)
    for place, name in enumerate(table.head):
        chosen = widths[place] if widths else None
        drawn.add_column(name, overflow="fold", vertical=vertical, no_wrap=place in whole, width=chosen)
    for row in rows:
        drawn.add_row(*row)
    out = StringIO()
    Console(file=out, width=width, color_system=None, highlight=False, markup=False).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _find_least_widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column is at least if no word is folded, and no interval that has a line of its own."""
    widths = []
    for place, name in enumerate(head):
        lines = "\n".join([name, *(row[place] for row in rows)]).split("\n")
        parts = [part for line in lines for part in ([line] if line.startswith("[") else line.split())]
        widths.append(max(map(len, parts), default=0))
    return widths


def _choose_widths(
    head: Sequence[str], rows: Sequence[Sequence[str]], least: Sequence[int], whole: set[int], width: int
) -> list[int] | None:
    """Return a width for each column, so that no word is folded and the table fits; None if that cannot be.

    least   widths that hold every word
    whole   numbers of columns whose cells are not folded
    width   columns of the terminal
    """
    bodies = [max((len(line) for row in rows for line in row[i].split("\n")), default=0) for i in range(len(head))]
    widths = [max(len(name), body) for name, body in zip(head, bodies, strict=True)]
    ends = [widths[place] if place in whole else end for place, end in enumerate(least)]
    while _sum_widths(widths) > width:
        foldable = [place for place, end in enumerate(ends) if widths[place] > end]
        if not foldable:
            return None
        of_headings = [place for place in foldable if widths[place] > bodies[place]]  # a heading before any cell
        widths[max(of_headings or foldable, key=widths.__getitem__)] -= 1
    return widths


def _sum_widths(widths: Sequence[int]) -> int:
    """Return the width of a table from those of its columns."""
    return sum(widths) + 2 * (len(widths) - 1)


def _find_interval_columns(table: Table) -> set[int]:
    """Return the numbers of columns whose cells have intervals."""
    return {place for place in range(len(table.head)) if any(" [" in row[place] for row in table.rows)}


def _find_unfolded_columns(table: Table, width: int) -> set[int]:
    """Return the numbers of columns whose cells are not folded: verdicts, and intervals if no word of others is
    then cut.
    """
    verdicts = {place for place, name in enumerate(table.head) if name == "verdict"}
    of_intervals = _find_interval_columns(table)
    needed = 0
    for place, name in enumerate(table.head):
        cells = [row[place] for row in table.rows]
        if place in verdicts | of_intervals:
            needed += max(map(len, [name, *cells])) + 2
        else:
            words = " ".join([name, *cells]).split()
            needed += max(map(len, words), default=0) + 2
    return verdicts | of_intervals if needed <= width else verdicts


def count_columns(stream: Any) -> int | None:
    """Return the width in characters of the terminal that a stream writes to, or None if it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


GLUE = "\x1f"
"""A space of a path, at which no line is wrapped."""


def echo_wrapped(text: str, *, err: bool = False, indent: str = "") -> None:
    """Print lines, wrapped between words if they are wider than the terminal; lines after the first are indented."""
    width = count_columns(sys.stderr if err else sys.stdout)
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    for line in text.splitlines():
        wrapped = line if width is None else textwrap.fill(line, width, subsequent_indent=indent, **how)
        say(wrapped.replace(GLUE, " "), err=err)


def format_path(path: Path, *, typed: bool = False) -> str:
    """Format a path for `echo_wrapped`, which never breaks it: relative to the working directory if it lies below;
    `typed` quotes it for a shell.
    """
    name = str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    return (shlex.quote(name) if typed else name).replace(" ", GLUE)
