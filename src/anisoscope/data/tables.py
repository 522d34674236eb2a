"""Rows of tables: CSV, TSV, JSON (an array, or one object per line) and parquet, plain or gzipped. Their one reader."""

import json
from collections.abc import Iterable, Iterator
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.data.delimited import delimited_rows
from anisoscope.data.files import ending, fault_of, lines, read_bytes, read_text
from anisoscope.errors import CorpusError, near_matches

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
"""How tables end, before `.gz` where they are packed."""

FORM = {
    ".csv": "rows of a CSV table",
    ".tsv": "rows of a TSV table",
    ".json": "an array of JSON objects, or one per line,",
    ".jsonl": "one JSON object per line",
    ".ndjson": "one JSON object per line",
    ".parquet": "a parquet file",
}
"""What is expected in a file, for errors."""

NAMED = 5
"""How many faulty items an error names; the rest are counted."""

ROWS_AT_ONCE = 1024
"""Rows of a parquet file decoded at a time."""


class Row(NamedTuple):
    """One row: where it stands (`line 7`), its columns, and, where it cannot be read, why not (no columns then)."""

    place: str
    columns: dict[str, Any]
    fault: str = ""


def is_table(path: Path) -> bool:
    """Whether a file is a table, by its name."""
    return ending(path) in TABLES


def read_table(path: Path, *, column: str | None = None) -> Iterator[Row]:
    """Rows in order, read as they are asked for. A row that cannot be read says why; the rows after it are still
    there. CorpusError for a file that is no table at all.

    column  of a parquet file, decode this one only (all, where it lacks it)
    """
    kind = ending(path)
    if kind == ".parquet":
        yield from _parquet_rows(path, column)
    elif kind in (".csv", ".tsv"):
        for place, values, fault in delimited_rows(path):
            yield Row(place, values, fault)
    elif kind in TABLES:
        yield from _json_rows(path)
    else:
        cure = f"write it as one of {', '.join(TABLES)}, or one of these with .gz"
        raise CorpusError(f"a table ending in {', '.join(TABLES)}", str(path), cure)


def sound_rows(path: Path, cure: str) -> list[Row]:
    """All rows with columns. CorpusError that names all that cannot be read."""
    rows = list(read_table(path))
    bad = [f"{row.place}: {row.fault}" for row in rows if row.fault]
    if bad:
        raise CorpusError(f"{form_of(path)} in {path}", named(bad), cure)
    return [row for row in rows if row.columns]


def form_of(path: Path | str) -> str:
    """What is expected in a table, for errors."""
    return FORM.get(ending(Path(path)), "readable rows")


def named(bad: list[str]) -> str:
    """`3 faulty: a.wav (…), b.wav (…), …`."""
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return f"{len(bad)} faulty: {', '.join(bad[:NAMED])}{more}"


def known_column(column: str, present: Iterable[str], where: str, role: str = "") -> str:
    """The column asked for. CorpusError with near names and all columns where there is none of this name."""
    present = list(map(str, present))
    if column in present:
        return column
    expected = f"a column {column!r}{f' for {role}' if role else ''} in {where}"
    raise CorpusError(expected, f"the columns {', '.join(present)}", near_matches(column, present))


def _json_rows(path: Path) -> Iterator[Row]:
    """Objects one a line; of a .json file that begins with a bracket, those of the array."""
    begun = ending(path) != ".json"
    for number, line in enumerate(lines(path), 1):
        if not begun and line.lstrip().startswith("["):
            yield from _array(path)
            return
        if line.strip():
            begun, fault = True, fault_of(line)
            found, fault = (None, fault) if fault else _parsed(line)
            yield _object(f"line {number}", found, fault or f"{line[:60]!r}", escaped="\\u" in line)


def _array(path: Path) -> Iterator[Row]:
    text = read_text(path)
    found, fault = _parsed(text)
    if not isinstance(found, list):
        cure = "repair it, or write it as JSON lines, of which --skip-bad can leave single ones out"
        raise CorpusError(f"{FORM['.json']} in {path}", fault or f"{text[:60]!r}", cure)
    for number, item in enumerate(found, 1):
        yield _object(f"row {number}", item, f"{str(item)[:60]!r}", escaped="\\u" in text)


def _parsed(text: str) -> tuple[Any, str]:
    """The value of a JSON text, or None and why it cannot be read."""
    try:
        return json.loads(text), ""
    except RecursionError:
        return None, "brackets nested too deep"
    except json.JSONDecodeError as error:
        return None, f"{text[max(0, error.pos - 30) :][:60]!r} at character {error.pos}" if len(text) > 60 else ""
    except ValueError:
        return None, "an integer of thousands of digits"


def _object(place: str, found: Any, otherwise: str, *, escaped: bool) -> Row:
    """A row of a JSON object, unless it is something else or holds half a character (a lone surrogate)."""
    if not isinstance(found, dict):
        return Row(place, {}, otherwise)
    try:
        if escaped:
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Row(place, {}, "half a character (a lone surrogate)")
    except (RecursionError, ValueError):
        return Row(place, {}, "brackets nested too deep")
    return Row(place, found)


def _parquet_rows(path: Path, column: str | None) -> Iterator[Row]:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    packed = path.name.lower().endswith(".gz")
    try:
        table = parquet.ParquetFile(BytesIO(read_bytes(path)) if packed else path)
        wanted = [column] if column in table.schema_arrow.names else None
        batches = (b.to_pylist() for b in table.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted))
        for number, row in enumerate(chain.from_iterable(batches), 1):
            yield Row(f"row {number}", row)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        cure = "write the file again: it is damaged or in another format"
        raise CorpusError(f"{FORM['.parquet']} in {path}", str(error).split("\n")[0][:120], cure) from None
