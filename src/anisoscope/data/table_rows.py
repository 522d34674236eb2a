"""Read rows of tables: CSV, TSV, JSON (an array, or one object per line) and parquet, plain or gzipped.

All tables of texts, labels and manifests are read here.
"""

import csv
import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from functools import cached_property
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.data.files import (
    find_fault,
    get_ending,
    iter_lines,
    read_bytes,
    read_text,
)
from anisoscope.errors import CorpusError, suggest_names

# before `.gz` if they are packed
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")

FORM = {
    ".csv": "rows of a CSV table",
    ".tsv": "rows of a TSV table",
    ".json": "an array of JSON objects, or one per line,",
    ".jsonl": "one JSON object per line",
    ".ndjson": "one JSON object per line",
    ".parquet": "a parquet file",
}
"""What is expected in a file, for errors."""

NAMED = 5  # how many faulty items an error names; the rest are counted
ROWS_AT_ONCE = 128  # rows of a parquet file decoded at a time: they may be whole books
STREAM = 1 << 20  # bytes of a column of parquet read at a time
SEPARATORS = ",;\t"  # what may stand between the columns of a .csv file: the one that its header has most of
LARGEST_FIELD = 2**31 - 1
# characters of a record over several lines: a quotation mark open for longer is a slip
LONGEST_RECORD = 1 << 24
LOOKED = 1000  # lines that tell which values a column has
MOSTLY = 0.9  # share of numbers from which a column is one of numbers
_QUOTED = re.compile(r'"(?:[^"]|"")*"')


class Row(NamedTuple):
    """One row: its place (`line 7`) and columns; a row that cannot be read has no columns, and `fault` says why."""

    place: str
    columns: dict[str, Any]
    fault: str = ""


def is_table(path: Path) -> bool:
    """Return whether a file is a table, by the ending of its name."""
    return get_ending(path) in TABLES


def read_table_rows(path: Path, *, column: str | None = None) -> Iterator[Row]:
    """Yield the rows of a table in order, reading only what is asked for.

    column   of parquet, read this column only, if there is one of that name

    A row that cannot be read is yielded with its fault; reading goes on after it. CorpusError for a file that is no
    table.
    """
    kind = get_ending(path)
    if kind == ".parquet":
        yield from _iter_parquet_rows(path, column)
    elif kind in (".csv", ".tsv"):
        yield from _iter_delimited_rows(path)
    elif kind in TABLES:
        yield from _iter_json_rows(path)
    else:
        cure = f"write it as one of {', '.join(TABLES)}, or one of these with .gz"
        raise CorpusError(f"a table ending in {', '.join(TABLES)}", str(path), cure)


def read_rows_strict(path: Path, cure: str) -> list[Row]:
    """Read all rows of a table. CorpusError, with their places, if some cannot be read.

    cure   what the error says to do
    """
    rows = list(read_table_rows(path))
    bad = [f"{row.place}: {row.fault}" for row in rows if row.fault]
    if bad:
        raise CorpusError(f"{describe_form(path)} in {path}", list_faulty(bad), cure)
    return [row for row in rows if row.columns]


def describe_form(path: Path | str) -> str:
    """Say in words what a table of this format must contain, for error messages."""
    return FORM.get(get_ending(Path(path)), "readable rows")


def list_faulty(bad: list[str]) -> str:
    """Count faulty entries and name the first ones: `3 faulty: a.wav (…), b.wav (…), …`."""
    listed = f"{len(bad)} faulty: {', '.join(bad[:NAMED])}"
    if len(bad) > NAMED:
        listed += f" and {len(bad) - NAMED} more"
    return listed


def require_column(
    column: str, present: Iterable[str], where: str, role: str = ""
) -> str:
    """Return a column's name unchanged. CorpusError, with similar names and all columns, if there is no such column.

    column    the name that the user gave
    present   the columns that there are
    where     the table or data set, for errors
    role      what the column is for, in words
    """
    present = list(map(str, present))
    if column in present:
        return column
    purpose = f" for {role}" if role else ""
    expected = f"a column {column!r}{purpose} in {where}"
    raise CorpusError(
        expected, f"the columns {', '.join(present)}", suggest_names(column, present)
    )


def _iter_json_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of JSON: one object per line, or the items of an array in a .json file."""
    may_be_array = get_ending(path) == ".json"
    for number, line in enumerate(iter_lines(path), 1):
        if may_be_array and line.lstrip().startswith("["):
            yield from _iter_array(path)
            return
        if not line.strip():
            continue
        may_be_array = False  # only the first line that is not blank can begin one
        place = f"line {number}"
        fault = find_fault(line)
        if fault:
            yield Row(place, {}, fault)
            continue
        found, fault = _parse_json(line)
        yield _make_row(place, found, fault or f"{line[:60]!r}", escaped="\\u" in line)


def _iter_array(path: Path) -> Iterator[Row]:
    """Read the rows of a JSON array."""
    text = read_text(path)
    found, fault = _parse_json(text)
    if not isinstance(found, list):
        cure = "repair it, or write it as JSON lines, of which --skip-bad can leave single ones out"
        raise CorpusError(f"{FORM['.json']} in {path}", fault or f"{text[:60]!r}", cure)
    for number, item in enumerate(found, 1):
        yield _make_row(
            f"row {number}", item, f"{str(item)[:60]!r}", escaped="\\u" in text
        )


def _parse_json(text: str) -> tuple[Any, str]:
    """Return (value of a JSON text, ""), or (None, why it cannot be read)."""
    try:
        return json.loads(text), ""
    except RecursionError:
        return None, "brackets nested too deep"
    except json.JSONDecodeError as error:
        if len(text) <= 60:  # the caller shows the whole of it
            return None, ""
        around = text[max(0, error.pos - 30) :][:60]
        return None, f"{around!r} at character {error.pos}"
    except ValueError:
        return None, "an integer of thousands of digits"


def _make_row(place: str, found: Any, otherwise: str, *, escaped: bool) -> Row:
    r"""Make a row of a parsed JSON value: an object, or a text alone. Any other value gives a row with a fault.

    place       where the row is: `line 7`
    found       the parsed value
    otherwise   the fault if it is neither object nor text
    escaped     whether the JSON holds `\u` escapes; half a character (a lone surrogate) among them is a fault too
    """
    if isinstance(found, str):
        found = {"text": found}
    if not isinstance(found, dict):
        return Row(place, {}, otherwise)
    try:
        # only an escape can make half a character: the file itself is UTF-8
        if escaped:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Row(place, {}, "half a character (a lone surrogate)")
    except (RecursionError, ValueError):
        return Row(place, {}, "brackets nested too deep")
    return Row(place, found)


def _iter_parquet_rows(path: Path, column: str | None) -> Iterator[Row]:
    """Yield the rows of a parquet file, of one column only if it has that. CorpusError if it is damaged."""
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    source: Any = path
    try:
        # parquet is read from its end, which gzip cannot: such a file is unpacked as a whole
        if path.name.lower().endswith(".gz"):
            source = BytesIO(read_bytes(path))
        # otherwise the texts of a row group, which may be the whole file, are in memory
        table = parquet.ParquetFile(source, buffer_size=STREAM, pre_buffer=False)
        wanted = [column] if column in table.schema_arrow.names else None
        batches = (
            b.to_pylist()
            for b in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted)
        )
        for number, row in enumerate(chain.from_iterable(batches), 1):
            yield Row(f"row {number}", row)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        cure = "write the file again: it is damaged or in another format"
        raise CorpusError(
            f"{FORM['.parquet']} in {path}", str(error).split("\n")[0][:120], cure
        ) from None


def _iter_delimited_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file by strict rules, reading only what is asked for.

    A faulty record gives a row with a fault, and reading goes on after its first line. Faulty are records that break
    the rules, that have another number of columns than the header, or whose open quotation mark swallows lines that
    look like rows.
    """
    # Python's own limit is 131,072 characters, which a book in a cell exceeds.
    csv.field_size_limit(LARGEST_FIELD)
    table = _Table(path)
    while (number := table.number_of_next()) is not None:
        values, lines, fault = table.record()
        if not fault and len(values) != len(table.header):
            fault = f"{len(values)} columns, where the header has {len(table.header)}"
        if len(lines) > 1 and table.look_like_rows(lines):
            fault = f"a quotation mark open until line {number + len(lines) - 1}, over lines that look like rows"
            table.put_back(lines[1:])
        columns = {} if fault else dict(zip(table.header, values, strict=True))
        yield Row(f"line {number}", columns, fault)


class _Record(NamedTuple):
    """A record of a CSV file: its values, the lines that it takes, and why it cannot be read (empty: it can)."""

    values: list[str]
    lines: list[str]
    fault: str = ""


class _Table:
    """The lines of a CSV or TSV file.

    Some following lines are read ahead, to know what values each column usually holds.
    """

    def __init__(self, path: Path) -> None:
        """Open the table, choose the separator, and read the header. CorpusError if the header is faulty."""
        self.ahead: deque[str] = deque()
        self.rest = iter_lines(path)
        self.number = 0
        self.tabs = get_ending(path) == ".tsv"
        self.separator = "\t" if self.tabs else ","
        self.header: list[str] = []
        if self.number_of_next() is None:
            return
        if not self.tabs:
            self.separator = max(SEPARATORS, key=self.ahead[0].count)
        names, _, fault = self.record()
        header = [name.strip() or f"column {i + 1}" for i, name in enumerate(names)]
        if not fault:
            fault = _describe_repeated(header)
        if fault:
            expected = f"a header of different names in {path}"
            raise CorpusError(expected, fault, "name every column in the first line")
        self.header = header

    def number_of_next(self) -> int | None:
        """Return the line number of the next line that is not blank; None at the end of the file."""
        while (line := self._peek(0)) is not None:
            if line.strip():
                return self.number + 1
            self._take()
        return None

    def put_back(self, taken: list[str]) -> None:
        """Put lines back in front of those that are still to be read.

        taken   the lines, in order
        """
        self.ahead.extendleft(reversed(taken))
        self.number -= len(taken)

    def record(self) -> _Record:
        """Read the record that begins in the next line.

        In a TSV file quotation marks are text, as in most such files, if the line has as many tabs as the header and
        no value continues in the next line; only quotes around a whole value are removed.
        """
        line = self._take()
        fault = find_fault(line)
        if fault:
            return _Record([], [line], fault)
        # most lines need no parser
        if '"' not in line or self._is_literal(line):
            values = line.split(self.separator)
            if self.tabs:
                values = list(map(_strip_quotes, values))
            return _Record(values, [line])
        taken = [line]
        try:
            lines = self._iter_open_lines(taken)
            values = next(csv.reader(lines, delimiter=self.separator, strict=True))
        except csv.Error:
            size = sum(map(len, taken))
            is_endless = self._peek(0) is None or size > LONGEST_RECORD // 2
            if is_endless and len(taken) > 1:
                # the lines that the open quotation mark swallowed are rows of their own
                self.put_back(taken[1:])
                return _Record([], [line], "a quotation mark that is never closed")
            return _Record([], taken, "a quotation mark inside a value")
        faults = filter(None, map(find_fault, taken))
        return _Record(values, taken, next(faults, ""))

    def _iter_open_lines(self, taken: list[str]) -> Iterator[str]:
        """Yield the lines of one record to the CSV parser, which asks for more while a quoted field is not closed.

        taken   holds the first line, and receives the following ones

        csv.Error for a record longer than `LONGEST_RECORD`.
        """
        line = taken[0]
        yield line + "\n"
        size = len(line)
        while (after := self._peek(0)) is not None:
            size += len(after)
            if size > LONGEST_RECORD:
                raise csv.Error("the record does not end")
            taken.append(self._take())
            yield after + "\n"

    def _is_literal(self, line: str) -> bool:
        """Return whether quotation marks are ordinary text in this line of a TSV file."""
        if not self.tabs:
            return False
        if not self.header:  # this line is the header
            return True
        tabs = len(self.header) - 1
        if line.count("\t") != tabs:
            return False
        # fewer tabs in the next line: it may be the rest of a value of this one
        after = self._peek(0)
        goes_on = after is not None and after.strip() and after.count("\t") < tabs
        return not goes_on

    def look_like_rows(self, taken: list[str]) -> bool:
        """Return whether the lines of one record look like rows of their own: then its quotation mark was left open.

        At least half of the lines that can show it must do so. A line between the first and the last shows it if it has
        as many columns as the header and, in one of them, a value known from other rows. The first line is judged only
        by its columns after the value that continues, the last one only by those before it.
        """
        count = len(self.header)
        first, *between, last = (line.split(self.separator) for line in taken)
        open_column = _find_open_column(first[:count])
        shown = []
        for row in between:
            shown.append(len(row) == count and self._any_familiar(enumerate(row)))
        behind = count - 1 - open_column
        if behind:
            values = zip(range(open_column + 1, count), first[-behind:], strict=False)
            shown.append(len(first) >= count and self._any_familiar(values))
        if open_column:
            shown.append(
                len(last) >= count and self._any_familiar(enumerate(last[:open_column]))
            )
        return any(shown) and 2 * sum(shown) >= len(shown)

    def _any_familiar(self, values: Iterable[tuple[int, str]]) -> bool:
        """Return whether a value is one that its column usually holds: it is repeated, or a number among numbers.

        values   (number of the column, value); one such value is enough
        """
        for column, value in values:
            counts, is_numeric = self._seen[column]
            text = value.strip()
            if text and (counts[text] > 1 or (is_numeric and is_number(text))):
                return True
        return False

    @cached_property
    def _seen(self) -> list[tuple[Counter[str], bool]]:
        """Return for each column (how often each value occurs in the next lines, whether they are mostly numbers).

        Lines with quotation marks are left out.
        """
        self._peek(LOOKED)
        counts = [Counter[str]() for _ in self.header]
        for line in islice(self.ahead, LOOKED):
            values = line.split(self.separator)
            # a quotation mark may hold a separator, or be the slip that is looked for
            if '"' in line or len(values) != len(self.header):
                continue
            for counter, value in zip(counts, values, strict=True):
                counter[value.strip()] += 1
        seen = []
        for counter in counts:
            numbers = sum(times for value, times in counter.items() if is_number(value))
            seen.append((counter, numbers >= MOSTLY * max(1, counter.total())))
        return seen

    def _peek(self, places: int) -> str | None:
        """Return a later line without taking it; None at the end of the file.

        places   how many lines after the next one it is
        """
        while len(self.ahead) <= places:
            line = next(self.rest, None)
            if line is None:
                return None
            self.ahead.append(line)
        return self.ahead[places]

    def _take(self) -> str:
        """Return the next line, and count it as read."""
        self._peek(0)
        self.number += 1
        return self.ahead.popleft()


def _describe_repeated(header: list[str]) -> str:
    """Say which columns of a header have the same name; empty if all names differ."""
    twice = [name for name, count in Counter(header).items() if count > 1]
    if not twice:
        return ""
    return f"several columns {', '.join(twice)}"


def _find_open_column(values: list[str]) -> int:
    """Return the position of the value whose quotation mark is not closed in its line.

    It is the last value that begins with a quotation mark; 0 if there is none.

    values   of the line, split at every separator
    """
    open_column = 0
    for column, value in enumerate(values):
        if value.lstrip().startswith('"'):
            open_column = column
    return open_column


def _strip_quotes(value: str) -> str:
    """Return a value of a TSV file without the quotation marks around the whole of it."""
    if not _QUOTED.fullmatch(value):
        return value
    return value[1:-1].replace('""', '"')


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
