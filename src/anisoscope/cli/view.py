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

Quiet = Annotated[bool, option("show no progress", OUTPUT, "-q")]
Config = Annotated[
    FilePath | None,
    option(
        'TOML file of options (limit = 20, panel = "hidden"), or a run folder, to use the same options again',
        INPUT,
    ),
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

    wide: Annotated[
        bool, option("show every column that was measured, with intervals", OUTPUT)
    ] = False
    heads: Annotated[
        bool, option("show attention for each head, not for each layer", OUTPUT)
    ] = False


@dataclass(frozen=True)
class Table:
    """Rows of text under headings, and the records they were made from."""

    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    records: "pd.DataFrame"


def say(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Write a line to stdout without wrapping it.

    err   to stderr instead
    end   what is written after it
    """
    stream = sys.stderr if err else sys.stdout
    stream.write(text + end)
    # So that results and remarks come in order if both streams go to one terminal or
    # file.
    stream.flush()


SCHEMA = 1
"""Version of what `--format json` prints (docs/answers.schema.json): goes up if a field goes or means another thing."""


def say_json(answer: Mapping[str, Any]) -> None:
    """Write the answer of a command to stdout as JSON, with the version of its schema."""
    say(
        json.dumps(
            {"schema": SCHEMA, **answer}, indent=1, ensure_ascii=False, allow_nan=False
        )
    )


def show(
    tables: Sequence[Table],
    view: Format,
    findings: "Sequence[Finding]" = (),
    notes: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
) -> None:
    """Write tables, then findings (sentences on the results), to stdout.

    view          the format: table, JSON, CSV or Markdown
    notes, more   remarks and further fields, written in JSON only, since other formats have them on stderr
    """
    if view.format == "json":
        _show_json(tables, findings, notes, more or {})
    elif view.format == "csv":
        _show_csv(tables)
    elif view.format == "markdown":
        _show_markdown(tables, findings)
    else:
        _show_text(tables, findings)


def _show_csv(tables: Sequence[Table]) -> None:
    """Write the records of all tables to stdout as CSV."""
    import pandas as pd

    # One file, whatever the number of tables on the terminal.
    records = pd.concat([table.records for table in tables])
    # It ends with a line break of its own.
    say(records.to_csv(index=False), end="")


def _show_markdown(tables: Sequence[Table], findings: "Sequence[Finding]") -> None:
    """Write tables to stdout as Markdown, and the findings as a list."""
    written = [_to_markdown(table) for table in tables if table.rows]
    say("\n\n".join(written))
    for finding in findings:
        say(f"\n- {finding.text}", end="")
    # Ends the last item of the list.
    if findings:
        say("")


def _show_text(tables: Sequence[Table], findings: "Sequence[Finding]") -> None:
    """Write tables to stdout as columns of text, then the findings."""
    written = [_to_text(table) for table in tables if table.rows]
    say("\n\n".join(written))
    if findings:
        say("")
        echo_wrapped("\n".join(finding.text for finding in findings))


def _show_json(
    tables: Sequence[Table],
    findings: "Sequence[Finding]",
    notes: Sequence[str],
    more: Mapping[str, Any],
) -> None:
    """Write findings, notes and the records of all tables to stdout as JSON.

    more   further fields of the answer
    """
    records = []
    for table in tables:
        records += _to_json_records(table)
    answer = {
        "findings": [asdict(finding) for finding in findings],
        "notes": list(notes),
        "records": records,
    }
    say_json({**more, **answer})


def show_row(row: Mapping[str, Any], view: Format) -> None:
    """Show one row of named fields, for a command whose result is no table."""
    import pandas as pd

    cells = [str(value) for value in row.values()]
    show([Table(tuple(row), [cells], pd.DataFrame([dict(row)]))], view)


def _to_json_records(table: Table) -> list[dict[Any, Any]]:
    """Return the records behind a table as JSON objects, with every digit; null for missing or infinite numbers."""
    # JSON has no NaN and no infinity.
    known = table.records.replace([math.inf, -math.inf], math.nan)
    return known.astype(object).where(known.notna(), None).to_dict("records")


def _to_markdown(table: Table) -> str:
    """Return a table that has rows as Markdown."""
    rule = ["---"] * len(table.head)
    lines = []
    for row in (table.head, rule, *table.rows):
        # A bar would end the cell: `|cos q,k|` is a heading here.
        escaped = [cell.replace("|", "\\|") for cell in row]
        lines.append("| " + " | ".join(escaped) + " |")
    return "\n".join(lines)


def _to_text(table: Table) -> str:
    """Return the table as text columns that fit the terminal.

    If it is too narrow, intervals go below their values, and cells are folded between words; within words only if
    nothing else helps.
    """
    from rich.table import Table as RichTable

    drawn = RichTable(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), collapse_padding=True
    )
    # Into a file or a pipe nothing needs to be folded.
    width = count_columns(sys.stdout) or 10_000
    unfolded = _find_unfolded_columns(table, width)
    rows = table.rows
    # Intervals do not fit next to their values: below them they may, and no number is
    # broken.
    if not _find_interval_columns(table) <= unfolded:
        below = []
        for row in rows:
            below.append([_put_interval_below(cell) for cell in row])
        if _sum_widths(_find_least_widths(table.head, below)) <= width:
            rows = below
    widths = _choose_widths(table.head, rows, unfolded, width)
    # A table without a heading in some column is a list: its first line says what the row is.
    vertical: Any = "bottom" if all(table.head) else "top"
    for column, name in enumerate(table.head):
        chosen = widths[column] if widths else None
        drawn.add_column(
            name,
            overflow="fold",
            vertical=vertical,
            no_wrap=column in unfolded,
            width=chosen,
        )
    for row in rows:
        drawn.add_row(*row)
    return _render_table(drawn, width)


def _render_table(drawn: Any, width: int) -> str:
    """Return a table of the library rich as plain text, without blanks at the ends of lines."""
    from rich.console import Console

    out = StringIO()
    # Plain: colours and styles of rich would depend on the terminal, and brackets of
    # intervals look like its markup.
    Console(
        file=out, width=width, color_system=None, highlight=False, markup=False
    ).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _put_interval_below(cell: str) -> str:
    """Move the interval in a cell (`.1 [.0, .2]`) to a second line, which is empty if there is none."""
    return cell.replace(" [", "\n[") if " [" in cell else f"{cell}\n"


def _find_least_widths(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the least width of each column at which no word is folded, and no interval on a line of its own."""
    widths = []
    for column, name in enumerate(head):
        lines = "\n".join([name, *(row[column] for row in rows)]).split("\n")
        longest = 0
        for line in lines:
            # An interval is one word here, though it holds a blank.
            parts = [line] if line.startswith("[") else line.split()
            longest = max([longest, *map(len, parts)])
        widths.append(longest)
    return widths


def _choose_widths(
    head: Sequence[str], rows: Sequence[Sequence[str]], unfolded: set[int], width: int
) -> list[int] | None:
    """Choose widths of columns at which the table fits the terminal and no word is folded; None if there are none.

    unfolded   numbers of columns whose cells are not folded
    width      columns of the terminal
    """
    bodies = _find_body_widths(len(head), rows)
    widths = [max(len(name), body) for name, body in zip(head, bodies, strict=True)]
    least = _find_least_widths(head, rows)
    for column in unfolded:
        least[column] = widths[column]
    # One character at a time is taken from the widest column that can lose one.
    while _sum_widths(widths) > width:
        foldable = [column for column, end in enumerate(least) if widths[column] > end]
        if not foldable:
            return None
        # A heading is folded before any cell.
        of_headings = [column for column in foldable if widths[column] > bodies[column]]
        widest = max(of_headings or foldable, key=widths.__getitem__)
        widths[widest] -= 1
    return widths


def _find_body_widths(n_columns: int, rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column's longest cell, or line of a cell, without the heading."""
    widths = []
    for column in range(n_columns):
        lines = "\n".join(row[column] for row in rows).split("\n")
        widths.append(max(map(len, lines)))
    return widths


def _sum_widths(widths: Sequence[int]) -> int:
    """Return the width of a table from those of its columns."""
    return sum(widths) + 2 * (len(widths) - 1)


def _find_interval_columns(table: Table) -> set[int]:
    """Return the numbers of columns whose cells have intervals."""
    found: set[int] = set()
    for row in table.rows:
        found.update(column for column, cell in enumerate(row) if " [" in cell)
    return found


def _find_unfolded_columns(table: Table, width: int) -> set[int]:
    """Return the numbers of columns whose cells are not folded: verdicts and intervals.

    Intervals are folded if there would otherwise be no room for the longest words of the other columns.

    width   columns of the terminal
    """
    verdicts = {column for column, name in enumerate(table.head) if name == "verdict"}
    unfolded = verdicts | _find_interval_columns(table)
    needed = 0
    for column, name in enumerate(table.head):
        cells = [name, *(row[column] for row in table.rows)]
        parts = cells if column in unfolded else " ".join(cells).split()
        # Two blanks separate columns.
        needed += max(map(len, parts), default=0) + 2
    return unfolded if needed <= width else verdicts


def count_columns(stream: Any) -> int | None:
    """Return the width in characters of the terminal that a stream writes to, or None if it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


GLUE = "\x1f"
"""A space of a path, at which no line is wrapped."""


def echo_wrapped(text: str, *, err: bool = False, indent: str = "") -> None:
    """Print a text, wrapped between words if a line is wider than the terminal.

    err      to stderr instead of stdout
    indent   put before the continuation of a wrapped line
    """
    width = count_columns(sys.stderr if err else sys.stdout)
    # Paths and option names must stay in one piece, to be copied.
    how: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    for line in text.splitlines():
        wrapped = line
        if width is not None:
            wrapped = textwrap.fill(line, width, subsequent_indent=indent, **how)
        say(wrapped.replace(GLUE, " "), err=err)


def format_path(path: Path, *, typed: bool = False) -> str:
    """Format a path for `echo_wrapped`, which does not wrap at its spaces; relative to the working directory if below.

    typed   quote it for a shell
    """
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    name = shlex.quote(str(path)) if typed else str(path)
    # Wrapped at a blank, a path that is copied from the terminal would be two words.
    return name.replace(" ", GLUE)
