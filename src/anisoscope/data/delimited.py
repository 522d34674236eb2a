"""Rows of CSV and TSV files, where a quotation mark left open must not swallow the rows behind it.

A record is read by the rules of CSV, strictly. One that cannot be, that has another number of columns than the header,
or whose quotation mark stays open over lines that look like rows is a fault of its first line; reading goes on behind.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from anisoscope.data.files import ending, fault_of, lines
from anisoscope.errors import CorpusError

SEPARATORS = ",;\t"
"""What may stand between the columns of a .csv file: the one that its header has most of."""

LARGEST_FIELD = 2**31 - 1
MOSTLY = 0.9
"""Share of numbers from which a column is one of numbers."""

_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def delimited_rows(path: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Where each row stands, its columns as text, and why it cannot be read (empty: it can)."""
    csv.field_size_limit(LARGEST_FIELD)
    table = _Table(path)
    at = table.first + 1
    while at < len(table.lines):
        if not table.lines[at].strip():
            at += 1
            continue
        values, end, fault = table.record(at)
        if not fault and len(values) != len(table.header):
            fault = f"{len(values)} columns, where the header has {len(table.header)}"
        swallowed = end - at > 1 and table.look_like_rows(at, end)
        if swallowed:
            fault = f"a quotation mark open until line {end}, over lines that look like rows"
        yield f"line {at + 1}", {} if fault else dict(zip(table.header, values, strict=True)), fault
        at = at + 1 if swallowed else end


class _Table:
    """The lines of a file, and its header."""

    def __init__(self, path: Path) -> None:
        self.lines = list(lines(path))
        self.first = next((i for i, line in enumerate(self.lines) if line.strip()), len(self.lines))
        head = self.lines[self.first] if self.first < len(self.lines) else ""
        tabs = ending(path) == ".tsv"
        self.separator = "\t" if tabs else max(SEPARATORS, key=head.count)
        self.literal = tabs and len({line.count("\t") for line in self.lines if line.strip()}) <= 1
        names, _, fault = self.record(self.first) if head else ([], 0, "")
        self.header = [name.strip() or f"column {i + 1}" for i, name in enumerate(names)]
        twice = [name for name, count in Counter(self.header).items() if count > 1]
        if fault or twice:
            got = fault or f"several columns {', '.join(twice)}"
            raise CorpusError(f"a header of different names in {path}", got, "name every column in the first line")

    def record(self, at: int) -> tuple[list[str], int, str]:
        """Values of the record that begins in line `at`, the line behind it, and why it cannot be read.

        Where all lines of a TSV file have as many tabs as its header, quotation marks are text, as in most such files;
        only a value wholly inside them is taken out.
        """
        line = self.lines[at]
        fault = fault_of(line)
        if fault or self.literal or '"' not in line:
            values = line.split(self.separator)
            return [_unquoted(value) for value in values] if self.literal else values, at + 1, fault
        rest = (self.lines[i] + "\n" for i in range(at, len(self.lines)))
        reader = csv.reader(rest, delimiter=self.separator, strict=True)
        try:
            values = next(reader)
        except csv.Error:
            end = at + reader.line_num
            if end == len(self.lines) and end > at + 1:
                return [], at + 1, "a quotation mark that is never closed"
            return [], end, "a quotation mark inside a value"
        end = at + reader.line_num
        return values, end, next(filter(None, map(fault_of, self.lines[at:end])), "")

    def look_like_rows(self, at: int, end: int) -> bool:
        """Whether the lines of one record look like rows of their own: half of those that can show it, show it.

        A line between the first and the last shows it by as many columns as the header has and, in one of them, a value
        known from other rows; the first one only by its columns behind the value that runs on, the last one by those
        before it.
        """
        count = len(self.header)
        parts = [self.lines[line].split(self.separator) for line in range(at, end)]
        runs_on = max((i for i, part in enumerate(parts[0][:count]) if part.lstrip().startswith('"')), default=0)
        shown = [len(inner) == count and self._any_familiar(enumerate(inner)) for inner in parts[1:-1]]
        if behind := count - 1 - runs_on:
            last = zip(range(runs_on + 1, count), parts[0][-behind:], strict=False)
            shown.append(len(parts[0]) >= count and self._any_familiar(last))
        if runs_on:
            shown.append(len(parts[-1]) >= count and self._any_familiar(enumerate(parts[-1][:runs_on])))
        return any(shown) and 2 * sum(shown) >= len(shown)

    def _any_familiar(self, values: Iterable[tuple[int, str]]) -> bool:
        """Whether one of the values stands in its column in other rows too, or is a number in a column of numbers."""
        stripped = ((self._seen[column], value.strip()) for column, value in values)
        return any(
            text and (counts[text] > 1 or (numbers and _is_number(text))) for (counts, numbers), text in stripped
        )

    @cached_property
    def _seen(self) -> list[tuple[Counter[str], bool]]:
        """For each column its values in lines without quotation marks, and whether they are mostly numbers."""
        parts = (line.split(self.separator) for line in self.lines[self.first + 1 :] if '"' not in line)
        rows = [[part.strip() for part in row] for row in parts if len(row) == len(self.header)]
        counts = [Counter(column) for column in zip(*rows, strict=True)] or [Counter[str]() for _ in self.header]
        return [(c, sum(n for x, n in c.items() if _is_number(x)) >= MOSTLY * max(1, c.total())) for c in counts]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _unquoted(value: str) -> str:
    return value[1:-1].replace('""', '"') if _QUOTED.fullmatch(value) else value
