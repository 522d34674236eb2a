"""Read tables of vectors as columns: CSV and TSV, numbers between spaces, and Arrow tables (parquet, feather)."""

import csv
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import compute, csv as reader, feather, ipc, parquet, types

from anisoscope.data.files import find_fault, get_ending, iter_lines
from anisoscope.data.vector_roles import Content
from anisoscope.errors import CorpusError

LOOKED = 100  # lines of a table that tell its separator and its header
SEPARATORS = (",", ";", "\t", "|")
MISSING = ["", "nan", "NaN", "NAN", "NA", "null", "None", "none", "n/a", "N/A", "#N/A"]
"""How a missing number is written."""
BLOCK = 1 << 24  # bytes of a table of text that are parsed at once: a row must fit into them
LARGE = 1 << 28
"""Bytes of a column of vectors, or of an array in an archive, from which on it is read in pieces, not as a whole."""
PIECE = 4096  # rows of such a column that are read at once
STREAM = 1 << 20  # bytes of a parquet file that are read at once


# ---- tables of arrow -------------------------------------------------------------------------------------------------


def read_arrow(path: Path) -> Content:
    """Read a parquet, feather or Arrow file. CorpusError if it is damaged."""
    try:
        if get_ending(path) == ".parquet":
            return _read_parquet(path)
        if get_ending(path) == ".feather":
            table = feather.read_table(path)
        else:
            with pyarrow.memory_map(str(path)) as source:
                try:
                    table = ipc.open_file(source).read_all()
                except pyarrow.ArrowInvalid:
                    source.seek(0)
                    table = ipc.open_stream(source).read_all()
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error
    return content_of_arrow(table)


def _read_parquet(path: Path) -> Content:
    """Read a parquet file; large columns of vectors are left in it, and read when rows of them are asked for."""
    file = parquet.ParquetFile(path)
    left = {name: StreamedVectors(path, name, *shape) for name, shape in _find_large_columns(file).items()}
    if not left:
        return content_of_arrow(parquet.read_table(path, partitioning=None))
    names = file.schema_arrow.names
    table = parquet.read_table(path, columns=[name for name in names if name not in left], partitioning=None)
    for place, name in enumerate(names):  # each in its place, since the order of columns decides
        if name in left:
            table = table.add_column(place, name, pyarrow.nulls(file.metadata.num_rows))
    return content_of_arrow(table, left)


def _find_large_columns(file: Any) -> dict[str, tuple[int, int, np.dtype[Any]]]:
    """Return {column of a parquet file: (rows, dim, numpy type)} for lists of decimals of more than `LARGE` bytes.

    A column whose lists can be seen from outside to be missing or to differ in length is not among them.
    """
    parts = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
    rows, found = file.metadata.num_rows, {}
    for field in file.schema_arrow:
        kind = field.type
        listed = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not listed or not types.is_floating(kind.value_type) or "." in field.name:
            continue
        places = [i for i, path in enumerate(_paths_of(file)) if path.split(".")[0] == field.name]
        if len(places) != 1:
            continue
        columns = [part.column(places[0]) for part in parts]
        numbers = sum(column.num_values for column in columns)
        missing = any(column.statistics is not None and column.statistics.null_count for column in columns)
        dtype = np.dtype(kind.value_type.to_pandas_dtype())
        if numbers * dtype.itemsize > LARGE and numbers % rows == 0 and not missing:
            found[field.name] = (rows, numbers // rows, dtype)
    return found


def _paths_of(file: Any) -> list[str]:
    """Return the paths of a parquet file's leaves: `id`, `embedding.list.element` …"""
    return [file.schema.column(i).path for i in range(len(file.schema))]


class StreamedVectors:
    """A column of vectors [row, dim] in a parquet file, of which only the rows that are asked for are read.

    Rows are read in order, a piece at a time; rows before the last ones asked for mean that their row group is read
    again.
    """

    ndim = 2

    def __init__(self, path: Path, name: str, rows: int, dim: int, dtype: np.dtype[Any]) -> None:
        """Open the file; nothing of the column is read yet."""
        self.path, self.name, self.shape, self.dtype = path, name, (rows, dim), dtype
        self._file = parquet.ParquetFile(path, buffer_size=STREAM, pre_buffer=False)
        counts = [self._file.metadata.row_group(i).num_rows for i in range(self._file.metadata.num_row_groups)]
        self._begins = np.cumsum([0, *counts[:-1]])  # of the row groups
        self._pieces: Iterator[Any] = iter(())
        self._first, self._held = 0, np.empty((0, dim), dtype)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the whole column in memory."""
        return np.asarray(self[:], dtype)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return consecutive rows [row, dim]. CorpusError for a row without a list of `dim` numbers."""
        start, stop, _ = rows.indices(len(self))
        group = int(np.searchsorted(self._begins, start, "right")) - 1
        end = self._first + len(self._held)
        if start < self._first or self._begins[group] > end or not end:
            groups = range(group, len(self._begins))
            self._pieces = self._file.iter_batches(PIECE, groups, [self.name], use_threads=False)
            self._first, self._held = int(self._begins[group]), self._held[:0]
        parts = [self._held]
        end = self._first + len(self._held)
        while end < stop:
            parts.append(self._read_piece(end))
            end += len(parts[-1])
            while len(parts) > 1 and self._first + len(parts[0]) <= start:
                self._first += len(parts.pop(0))
        self._held = np.concatenate(parts) if len(parts) > 1 else parts[0]
        self._held, self._first = self._held[start - self._first :], start
        return self._held[: stop - start]

    def _read_piece(self, row: int) -> NDArray[Any]:
        """Read the next rows [row, dim], which begin with number `row`."""
        expected = f"a list of {self.shape[1]} numbers in every row of the column {self.name!r} of {self.path}"
        try:
            column = next(self._pieces).column(0)
        except (pyarrow.ArrowException, OSError, StopIteration) as error:
            got = f"damaged rows from {row + 1:,} on ({str(error).splitlines()[0][:120] if str(error) else 'none'})"
            raise CorpusError(expected, got, "write the file again") from error
        values, _, reason = _of_arrow_column(column)
        if not reason and values.shape[1] != self.shape[1]:
            reason = f"lists of {values.shape[1]} numbers"
        if reason:
            got = f"{reason} in rows {row + 1:,} to {row + len(column):,}"
            raise CorpusError(expected, got, "leave these rows out, or make all lists equally long")
        return np.asarray(values)


def content_of_arrow(table: Any, left: Mapping[str, StreamedVectors] = {}) -> Content:
    """Read the columns of an Arrow table; those that pandas wrote as its index are marked.

    left   columns that are read from the file instead, when rows of them are asked for

    ValueError if pandas' own description of the columns is damaged.
    """
    columns: dict[str, Any] = {}
    masks: dict[str, NDArray[np.bool_]] = {}
    unusable: dict[str, str] = {}
    for name, column in _flat_columns(table):
        if name in left:
            columns[name] = left[name]
            continue
        values, mask, reason = _of_arrow_column(column)
        if reason:
            unusable[name] = reason
            continue
        columns[name] = values
        if mask is not None:
            masks[name] = mask
    return Content(columns, masks, unusable, index=_index_of_pandas(table, columns))


def _flat_columns(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, column); the columns of nested records are named with dots: `metadata.label`."""
    while any(types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    for name, column in zip(table.column_names, table.columns, strict=True):
        yield str(name), column


def _index_of_pandas(table: Any, columns: dict[str, Any]) -> tuple[str, ...]:
    """Return the columns that pandas wrote as an index. ValueError if its description is damaged."""
    found = [name for name in columns if re.fullmatch(r"__index_level_\d+__", name)]
    written = (table.schema.metadata or {}).get(b"pandas")
    if written is not None:
        try:
            described = json.loads(written)
            listed = described["index_columns"]
            named = [entry for entry in listed if isinstance(entry, str)]
            if any(not isinstance(entry, str | dict) for entry in listed) or set(named) - set(table.column_names):
                raise LookupError
            found += [name for name in named if name in columns]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError("what it says of its columns is damaged") from error
    return tuple(dict.fromkeys(found))


def _of_arrow_column(column: Any) -> tuple[Any, NDArray[np.bool_] | None, str]:
    """Convert an Arrow column: (array, mask [row, token] if sequences differ in length else None, why it is no vector).

    The last is empty if the column can be read. The array is None if it cannot.
    """
    array = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
    if isinstance(array, pyarrow.ChunkedArray):  # of no rows, or too large for one piece
        array = pyarrow.concat_arrays(array.chunks) if array.num_chunks else pyarrow.array([], array.type)
    if isinstance(array, pyarrow.FixedShapeTensorArray):
        return array.to_numpy_ndarray(), None, ""
    if isinstance(array, pyarrow.ExtensionArray):
        array = array.storage
    kind = array.type
    if types.is_dictionary(kind):
        array, kind = array.dictionary_decode(), kind.value_type
    if types.is_decimal(kind):
        array, kind = array.cast(pyarrow.float64()), pyarrow.float64()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _of_arrow_lists(array)
    if types.is_boolean(kind) and not array.null_count:
        return array.to_numpy(zero_copy_only=False), None, ""
    if types.is_integer(kind) or types.is_floating(kind):
        return array.to_numpy(zero_copy_only=False), None, ""
    if types.is_null(kind):
        return None, None, "empty"
    if types.is_string(kind) or types.is_large_string(kind):
        texts = np.array(array.to_pylist(), object)
        return _of_texts(texts)
    return np.array(array.to_pylist(), object), None, ""


def _of_arrow_lists(array: Any) -> tuple[Any, NDArray[np.bool_] | None, str]:
    """Convert an Arrow column of lists of numbers to [row, dim], or of lists of such lists to [row, token, dim].

    Returns (array or None, mask [row, token] if lengths differ else None, why it cannot be read; empty if it can).
    """
    if array.null_count:
        return None, None, f"{array.null_count} rows without a list"
    inner = array.flatten()
    lengths = np.asarray(compute.list_value_length(array))
    kind = inner.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        vectors, _, reason = _of_arrow_lists(inner)
        if reason or vectors.ndim != 2:
            return None, None, reason or "lists in lists in lists"
        return *_in_sequences(vectors, lengths), ""
    if not (types.is_integer(kind) or types.is_floating(kind)):
        return None, None, f"lists of {kind}"
    if len(lengths) == 0:
        return None, None, "no lists"
    if lengths.min() != lengths.max():
        return None, None, f"lists of {lengths.min()} to {lengths.max()} numbers"
    if lengths[0] == 0:
        return None, None, "empty lists"
    numbers = inner.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(array), int(lengths[0])), None, ""


def _in_sequences(vectors: NDArray[Any], lengths: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Arrange the vectors [token, dim] of all sequences as [sequence, token, dim]; a mask if lengths differ, else
    None.
    """
    longest = int(lengths.max(initial=0))
    mask = np.arange(longest) < lengths[:, None]
    values = np.zeros((len(lengths), longest, vectors.shape[1]), vectors.dtype)
    values[mask] = vectors
    return values, None if mask.all() else mask


def _of_texts(texts: NDArray[Any]) -> tuple[Any, NDArray[np.bool_] | None, str]:
    """Turn printed lists of numbers (`[0.1, 0.2]`, `[0.1 0.2]`) into arrays; other texts are returned unchanged.

    Returns (array, mask [row, token] if lengths differ else None, why it cannot be read; empty if it can).
    """
    first = next((text for text in texts if text), "")
    if not re.match(r"\s*(array\(|tensor\()?\[", first):
        return texts, None, ""
    rows = []
    for number, text in enumerate(texts, 1):
        if "..." in (text or ""):
            return None, None, f"lists cut short when they were printed (row {number}: …)"
        inner = re.sub(r"np\.\w+|[\[\](),]|array|tensor|dtype=\S+", " ", text or "")
        try:
            rows.append([float(part) for part in inner.split()])
        except ValueError:
            return texts, None, ""
    widths = {len(row) for row in rows}
    if len(widths) != 1:
        return None, None, f"lists of {min(widths)} to {max(widths)} numbers"
    return np.array(rows), None, ""


# ---- tables of text --------------------------------------------------------------------------------------------------


def read_delimited(path: Path) -> Content:
    """Read the columns of a text table; separator, comment lines and header are recognised by its first lines."""
    head = list(islice(_sound_lines(path), 10 * LOOKED))
    comments = 0
    while comments < len(head) and (not head[comments].strip() or head[comments].startswith("#")):
        comments += 1
    body = [line for line in head[comments:] if line.strip()][:LOOKED]
    if not body:
        raise CorpusError(f"rows of numbers in {path}", "none", "name another file")
    separator = _separator(body, path)
    rows = _split(body, separator)
    width = max(len(row) for row in rows[1:] or rows)
    header, names, index = _header(rows, width, path)
    notes = []
    if not header and comments:
        named = _names_in_comment(head[comments - 1], separator, width)
        names = named or names
        notes.append(f"names in line {comments}, a comment" if named else "")
    skipped = comments - (1 if notes and notes[0] else 0)
    if skipped:
        notes.append(f"{skipped} comment line{'s' * (skipped > 1)} skipped")
    notes.insert(0, f"header in line {comments + 1}" if header else "no header")
    columns, unusable = _read_columns(path, separator, comments + header, names, rows[header:])
    content = Content(columns, {}, unusable, index, header or names != _places(width))
    content.notes = [note for note in notes if note]
    content.first_line = comments + header + 1
    return content


def _sound_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file. CorpusError for a line that is not UTF-8 text."""
    for number, line in enumerate(iter_lines(path), 1):
        if fault := find_fault(line):
            raise CorpusError(f"UTF-8 text in {path}", f"{fault} in line {number}", "write the file again as UTF-8")
        yield line


def _places(width: int) -> list[str]:
    """Return the names of the columns of a table without a header: "0", "1", … up to `width`."""
    return [str(place) for place in range(width)]


def _separator(body: list[str], path: Path) -> str:
    """Return the separator that makes most cells numbers in rows of equal length."""
    best, chosen = (0.0, 0), " "
    spaced = [] if any(map(_is_list, body)) else [" "]  # spaces stand inside printed lists too
    for separator in ("\t",) if get_ending(path) == ".tsv" else (*SEPARATORS, *spaced):
        rows = _split(body, separator)[1:] or _split(body, separator)
        width = len(rows[0])
        if width < 2 or sum(len(row) == width for row in rows) < len(rows) / 2:
            continue
        numbers = sum(is_number(cell) or _is_list(cell) for row in rows for cell in row)
        score = (round(numbers / sum(map(len, rows)), 2), width)
        if score > best:
            best, chosen = score, separator
    if best == (0.0, 0) and get_ending(path) == ".tsv":
        return "\t"
    if best == (0.0, 0):  # one column, of lists or of nothing that is known
        return ","
    return chosen


def _split(body: list[str], separator: str) -> list[list[str]]:
    """Split lines into cells at the separator; blanks separate as runs."""
    if separator == " ":
        return [line.split() for line in body]
    return [row for row in csv.reader(body, delimiter=separator, skipinitialspace=True) if row]


def is_number(text: str) -> bool:
    """Return whether a cell is a number (also with a decimal comma) or stands for a missing one."""
    try:
        float(text.strip().replace(",", ".") if text.count(",") == 1 else text)
    except ValueError:
        return text.strip().lower() in ("", "na", "null", "none")
    return True


def _is_list(text: str) -> bool:
    """Return whether a cell begins like a printed list."""
    return text.lstrip().startswith("[")


def _header(rows: list[list[str]], width: int, path: Path) -> tuple[bool, list[str], tuple[str, ...]]:
    """Return (whether the first row is a header, the names of the columns, which columns are row numbers).

    It is a header if it holds text where the rows below hold numbers, or counts the columns (0, 1, 2 …) above decimals.
    CorpusError if it may be either.

    rows    cells of the first lines
    width   number of columns
    """
    first, below = [cell.strip() for cell in rows[0]], rows[1:]
    if not below:
        if all(map(is_number, first)):
            return False, _places(width), ()
        raise CorpusError(f"rows of numbers in {path}", "a header alone", "write the vectors below it")
    if len(first) == width - 1 and all(len(row) == width for row in below):  # R's write.table
        return True, ["row names", *first], ("row names",)
    numeric = [
        place
        for place in range(min(width, len(first)))
        if 2 * sum(place < len(row) and is_number(row[place]) for row in below) > len(below)
    ]
    filled = [place for place in numeric if first[place]]
    is_header = any(not is_number(first[place]) for place in filled)
    if not is_header and filled and all(re.fullmatch(r"\d+", first[place]) for place in filled):
        counted = [int(first[place]) for place in filled]
        decimals = [place for place in filled if any("." in row[place] for row in below if place < len(row))]
        counts = counted in (list(range(len(counted))), list(range(1, len(counted) + 1)))
        if counts and decimals:
            is_header = True
        elif len(filled) > 1 and (counts or (len(set(counted)) == len(counted) and len(decimals) == len(filled))):
            got = f"a first line of whole numbers ({', '.join(first[:5])} …): names, or a vector"
            cure = "write names such as dim_0 into the first line, or store .npy"
            raise CorpusError(f"one way to read the first line of {path}", got, cure)

    def is_listed(place: int) -> bool:
        """Return whether every row below the first holds a printed list in this column."""
        return all(place < len(row) and _is_list(row[place]) for row in below)

    listed = [place for place in range(min(width, len(first))) if is_listed(place)]
    if not is_header and listed:
        is_header = not any(_is_list(first[place]) for place in listed)
    if not is_header:
        return False, _places(width), ()
    names = [name or ("row numbers" if place == 0 else f"column {place}") for place, name in enumerate(first)]
    names = [name.removeprefix("#").strip() if place == 0 else name for place, name in enumerate(names)]
    twice = sorted({name for name in names if names.count(name) > 1}) if len(names) < 20_000 else []
    if twice:
        got = f"several columns {', '.join(twice[:5])}"
        raise CorpusError(f"a header of different names in {path}", got, "name every column in the first line")
    index = (names[0],) if not first[0] or re.fullmatch(r"Unnamed: \d+", first[0]) else ()
    return True, names, index


def _names_in_comment(line: str, separator: str, width: int) -> list[str]:
    """Return the names in a comment line above rows without a header (`# id x0 x1` of numpy.savetxt); empty if none."""
    names = [name.strip() for name in (_split([line.lstrip("# ")], separator) or [[]])[0]]
    unlike = len(names) != width or len(set(names)) != width or any(map(is_number, names))
    return [] if unlike else names


def _read_columns(
    path: Path, separator: str, skip: int, names: list[str], rows: list[list[str]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the columns of a text table after its first `skip` lines.

    names   of the columns
    rows    cells of the first lines, by which types are guessed

    Returns (arrays by column, why others are unusable, by column). CorpusError, with the line, for rows of another
    length.
    """
    if separator == " ":
        return _read_spaced(path, skip, names)
    cells = [cell for row in rows for cell in row]
    comma = separator != "," and any(re.fullmatch(r"\s*-?\d*,\d+(e-?\d+)?\s*", cell, re.I) for cell in cells)
    whole, decimal = _columns_of_numbers(names, rows, comma)
    how = {"delimiter": separator, "newlines_in_values": any(map(_is_list, cells))}

    def read(kinds: dict[str, Any], *, threads: bool = True) -> Any:
        """Read the file as an Arrow table with these column types."""
        with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb") as file:
            return reader.read_csv(
                file,
                reader.ReadOptions(use_threads=threads, skip_rows=skip, column_names=names, block_size=BLOCK),
                reader.ParseOptions(**how),
                reader.ConvertOptions(
                    null_values=MISSING,
                    strings_can_be_null=True,
                    decimal_point="," if comma else ".",
                    column_types=kinds,
                ),
            )

    # whole numbers keep every digit if they can; a column of them may go on in decimals, or as text
    decimals = dict.fromkeys(decimal, pyarrow.float64())
    tries = [
        decimals,
        decimals | dict.fromkeys(whole, pyarrow.float64()),
        decimals | dict.fromkeys(whole, pyarrow.string()),
    ]
    for kinds in tries:
        try:
            content = content_of_arrow(read(kinds))
            return content.columns, content.unusable
        except pyarrow.ArrowInvalid:
            continue
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise CorpusError(f"a table of numbers in {path}", str(error)[:160], "copy the file again") from None
    try:
        read(tries[-1], threads=False)  # one thread knows the line
        got = "rows of another form"
    except (pyarrow.ArrowException, OSError) as error:
        got = re.sub(r"CSV parse error: |CSV conversion error to double: |In CSV ", "", str(error).splitlines()[0])
        got = re.sub(r"Row #(\d+)", r"line \1", got)[:160]
    cure = "correct the line: every row has as many values as the first, and numbers in columns of numbers"
    raise CorpusError(f"a table of numbers in {path}", got, cure)


def _columns_of_numbers(names: list[str], rows: list[list[str]], comma: bool) -> tuple[list[str], list[str]]:
    """Return (names of the columns whose first rows are whole numbers, names of those with decimals).

    comma   whether decimals are written with a comma
    """
    whole: list[str] = []
    decimal: list[str] = []
    for place, name in enumerate(names):
        texts = [row[place].strip() for row in rows if place < len(row) and row[place].strip()]
        texts = [text.replace(",", ".") for text in texts] if comma else texts
        if texts and all(map(is_number, texts)):
            (whole if all(re.fullmatch(r"[+-]?\d+", text) for text in texts) else decimal).append(name)
    return whole, decimal


def _read_spaced(path: Path, skip: int, names: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the columns of a table with blanks between values: numbers, each row perhaps after a word.

    Returns (arrays by column, why others are unusable, by column).
    """
    rows: list[list[str]] = []
    for number, line in enumerate(_sound_lines(path), 1):
        if number <= skip or not line.strip() or line.startswith("#"):
            continue
        cells = line.split()
        if len(cells) != len(names):
            got = f"{len(cells)} in line {number}"
            raise CorpusError(f"{len(names)} values in every line of {path}", got, "correct the line")
        rows.append(cells)
    columns: dict[str, Any] = {}
    for name, cells_of in zip(names, zip(*rows, strict=True), strict=True):
        try:
            whole = all(re.fullmatch(r"[+-]?\d+", cell) for cell in cells_of)
            columns[name] = np.array(cells_of, np.int64 if whole else np.float64)
        except (ValueError, OverflowError):
            columns[name] = np.array(cells_of, object)
    return columns, {}
