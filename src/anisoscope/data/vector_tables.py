"""Read tables of vectors as columns: CSV and TSV, numbers between spaces, and Arrow tables (parquet, feather)."""

import csv
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow  # type: ignore[import-untyped]
from numpy.typing import NDArray
from pyarrow import compute, csv as reader, feather, ipc, parquet, types

from anisoscope.data.files import find_fault, get_ending, iter_lines, open_unpacked
from anisoscope.data.vector_roles import Content
from anisoscope.errors import CorpusError

LOOKED = 100  # lines of a table that tell its separator and its header
SEPARATORS = (",", ";", "\t", "|")
MISSING = ["", "nan", "NaN", "NAN", "NA", "null", "None", "none", "n/a", "N/A", "#N/A"]
"""How a missing number is written."""
# bytes of a table of text that are parsed at once: a row must fit into them
BLOCK = 1 << 24
LARGE = 1 << 28
"""Bytes of a column of vectors, or of an array in an archive, from which on it is read in pieces, not as a whole."""
DECIMAL_COMMA = re.compile(r"\s*-?\d*,\d+(e-?\d+)?\s*", re.I)
WHOLE_NUMBER = re.compile(r"[+-]?\d+")
PIECE = 4096  # rows of such a column that are read at once
STREAM = 1 << 20  # bytes of a parquet file that are read at once


# ---- tables of arrow -------------------------------------------------------------------------------------------------


def read_arrow(path: Path) -> Content:
    """Read a parquet, feather or Arrow file. CorpusError if it is damaged."""
    try:
        if get_ending(path) == ".parquet":
            return _read_parquet(path)
        if get_ending(path) == ".feather":
            return read_arrow_table(feather.read_table(path))
        return read_arrow_table(_read_ipc(path))
    except pyarrow.ArrowException as error:
        raise ValueError(str(error)) from error


def _read_ipc(path: Path) -> Any:
    """Return the table of an Arrow file, or of a stream of records, which has the same ending."""
    with pyarrow.memory_map(str(path)) as source:
        try:
            return ipc.open_file(source).read_all()
        except pyarrow.ArrowInvalid:
            source.seek(0)
            return ipc.open_stream(source).read_all()


def _read_parquet(path: Path) -> Content:
    """Read the columns of a parquet file; large columns of vectors stay on the disk until rows are sliced."""
    file = parquet.ParquetFile(path)
    left: dict[str, StreamedVectors] = {}
    for name, (rows, dim, dtype) in _find_large_columns(file).items():
        left[name] = StreamedVectors(path, name, rows, dim, dtype)
    # without `partitioning=None` arrow makes columns of folders called name=value
    if not left:
        return read_arrow_table(parquet.read_table(path, partitioning=None))
    names = file.schema_arrow.names
    small = [name for name in names if name not in left]
    table = parquet.read_table(path, columns=small, partitioning=None)
    # empty columns hold the places of the large ones, since the order of columns decides
    for place, name in enumerate(names):
        if name in left:
            table = table.add_column(place, name, pyarrow.nulls(file.metadata.num_rows))
    return read_arrow_table(table, left)


def _find_large_columns(file: Any) -> dict[str, tuple[int, int, np.dtype[Any]]]:
    """Return {column of a parquet file: (rows, dim, numpy type)} for lists of decimals of more than `LARGE` bytes.

    A column is left out if the file's metadata show that lists are missing or differ in length.
    """
    rows = file.metadata.num_rows
    leaves = _list_leaves(file)
    found = {}
    for field in file.schema_arrow:
        if not _is_list_type(field.type):
            continue
        holds_decimals = types.is_floating(field.type.value_type)
        # a dot in its own name looks like one that leads into a record
        if not holds_decimals or "." in field.name or leaves.count(field.name) != 1:
            continue
        numbers = _count_numbers(file, leaves.index(field.name))
        dtype = np.dtype(field.type.value_type.to_pandas_dtype())
        # Only lists of one length have a whole number of numbers a row.
        if numbers * dtype.itemsize > LARGE and numbers % rows == 0:
            found[field.name] = (rows, numbers // rows, dtype)
    return found


def _count_numbers(file: Any, place: int) -> int:
    """Return how many numbers a column of a parquet file holds, by its metadata; 0 if some are known to be missing.

    place   position of the column among the leaves of the file's schema
    """
    count = 0
    for group in range(file.metadata.num_row_groups):
        piece = file.metadata.row_group(group).column(place)
        count += piece.num_values
        # statistics are optional: without them a missing list shows only when its row is read
        if piece.statistics is not None and piece.statistics.null_count:
            return 0
    return count


def _is_list_type(kind: Any) -> bool:
    """Return whether an Arrow type is one of its three kinds of lists."""
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def _list_leaves(file: Any) -> list[str]:
    """Return the column that each leaf of a parquet file's schema belongs to.

    The leaf `embedding.list.element` belongs to the column `embedding`.
    """
    return [file.schema.column(i).path.split(".")[0] for i in range(len(file.schema))]


class StreamedVectors:
    """A column of vectors [row, dim] in a parquet file, of which only the rows that are asked for are read.

    Rows are read in order, a piece at a time; rows before the last ones asked for mean that their row group is read
    again.
    """

    ndim = 2

    def __init__(
        self, path: Path, name: str, rows: int, dim: int, dtype: np.dtype[Any]
    ) -> None:
        """Open the file; nothing of the column is read yet."""
        self.path = path
        self.name = name
        self.shape = (rows, dim)
        self.dtype = dtype
        # without buffering ahead, or arrow would hold whole row groups
        self._file = parquet.ParquetFile(path, buffer_size=STREAM, pre_buffer=False)
        metadata = self._file.metadata
        counts = []
        for group in range(metadata.num_row_groups):
            counts.append(metadata.row_group(group).num_rows)
        self._begins = np.cumsum([0, *counts[:-1]])  # of the row groups
        self._pieces: Iterator[Any] = iter(())
        self._first = 0  # row number of the first row that is held
        self._held = np.empty((0, dim), dtype)

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the whole column in memory."""
        return np.asarray(self[:], dtype)

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        """Return consecutive rows [row, dim]. CorpusError for a row without a list of `dim` numbers."""
        start, stop, _ = rows.indices(len(self))
        self._go_to(start)
        parts = [self._held]
        end = self._first + len(self._held)
        while end < stop:
            parts.append(self._read_piece(end))
            end += len(parts[-1])
            # pieces before the first row asked for are let go at once: only what is asked for is held
            while len(parts) > 1 and self._first + len(parts[0]) <= start:
                self._first += len(parts.pop(0))
        held = np.concatenate(parts) if len(parts) > 1 else parts[0]
        # What lies behind the rows asked for is kept for the next call.
        self._held = held[start - self._first :]
        self._first = start
        return self._held[: stop - start]

    def _go_to(self, start: int) -> None:
        """Move back or ahead to the row group that holds row `start`, unless reading on in order reaches it soonest."""
        group = int(np.searchsorted(self._begins, start, "right")) - 1
        end = self._first + len(self._held)
        is_behind = start < self._first
        is_in_later_group = self._begins[group] > end
        has_read_nothing = not end
        if is_behind or is_in_later_group or has_read_nothing:
            groups = range(group, len(self._begins))
            # threads read columns side by side: of a single one they gain nothing
            self._pieces = self._file.iter_batches(
                PIECE, groups, [self.name], use_threads=False
            )
            self._first = int(self._begins[group])
            self._held = self._held[:0]

    def _read_piece(self, row: int) -> NDArray[Any]:
        """Read the next piece of rows [row, dim].

        row   number of its first row, for errors
        """
        expected = f"a list of {self.shape[1]} numbers in every row of the column {self.name!r} of {self.path}"
        try:
            column = next(self._pieces).column(0)
        except (pyarrow.ArrowException, OSError, StopIteration) as error:
            reason = str(error).splitlines()[0][:120] if str(error) else "none"
            got = f"damaged rows from {row + 1:,} on ({reason})"
            raise CorpusError(expected, got, "write the file again") from error
        values, _, reason = _convert_column(column)
        if not reason and values.shape[1] != self.shape[1]:
            reason = f"lists of {values.shape[1]} numbers"
        if reason:
            got = f"{reason} in rows {row + 1:,} to {row + len(column):,}"
            raise CorpusError(
                expected, got, "leave these rows out, or make all lists equally long"
            )
        return np.asarray(values)


def read_arrow_table(table: Any, left: Mapping[str, StreamedVectors] = {}) -> Content:
    """Read the columns of an Arrow table; those that pandas wrote as its index are marked.

    left   columns that are read from the file instead, when rows of them are asked for

    ValueError if pandas' own description of the columns is damaged.
    """
    columns: dict[str, Any] = {}
    masks: dict[str, NDArray[np.bool_]] = {}
    unusable: dict[str, str] = {}
    for name, column in _iter_flat_columns(table):
        if name in left:
            columns[name] = left[name]
            continue
        values, mask, reason = _convert_column(column)
        if reason:
            unusable[name] = reason
            continue
        columns[name] = values
        if mask is not None:
            masks[name] = mask
    return Content(columns, masks, unusable, index=_find_index(table, columns))


def _iter_flat_columns(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, column); the columns of nested records are named with dots: `metadata.label`."""
    # Records may hold records: each pass takes one level apart.
    while any(types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    for name, column in zip(table.column_names, table.columns, strict=True):
        yield str(name), column


def _find_index(table: Any, columns: dict[str, Any]) -> tuple[str, ...]:
    """Return the columns that pandas wrote as an index. ValueError if its description is damaged."""
    found = [name for name in columns if re.fullmatch(r"__index_level_\d+__", name)]
    written = (table.schema.metadata or {}).get(b"pandas")
    if written is not None:
        try:
            described = _parse_pandas_index(written, table.column_names)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError("what it says of its columns is damaged") from error
        found += [name for name in described if name in columns]
    return tuple(dict.fromkeys(found))


def _parse_pandas_index(written: bytes, names: list[str]) -> list[str]:
    """Return the columns that the metadata of pandas names as indices. LookupError for one that is missing.

    A range of row numbers is described by a dict, and has no column.
    """
    entries = json.loads(written)["index_columns"]
    described = [entry for entry in entries if isinstance(entry, str)]
    is_known = all(isinstance(entry, str | dict) for entry in entries)
    if not is_known or set(described) - set(names):
        raise LookupError
    return described


def _convert_column(column: Any) -> tuple[Any, NDArray[np.bool_] | None, str]:
    """Convert an Arrow column to an array: returns (array, mask, why it cannot be read).

    The mask [row, token] says which tokens are real; None if all sequences are equally long. If the column can be read,
    the last is empty; else the array is None.
    """
    array = _unwrap_column(column)
    if isinstance(array, pyarrow.FixedShapeTensorArray):
        return array.to_numpy_ndarray(), None, ""
    array = _simplify_type(array)
    kind = array.type
    if _is_list_type(kind):
        return _convert_lists(array)
    if _is_numeric_column(array):
        return array.to_numpy(zero_copy_only=False), None, ""
    if types.is_null(kind):
        return None, None, "empty"
    texts = np.array(array.to_pylist(), object)
    if types.is_string(kind) or types.is_large_string(kind):
        return _parse_printed_lists(texts)
    return texts, None, ""


def _simplify_type(array: Any) -> Any:
    """Return an Arrow array of a plain type: extensions by their storage, dictionaries decoded, decimals as floats."""
    if isinstance(array, pyarrow.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if types.is_decimal(array.type):
        array = array.cast(pyarrow.float64())
    return array


def _is_numeric_column(array: Any) -> bool:
    """Return whether an Arrow array holds numbers, or true and false."""
    if types.is_boolean(array.type):
        # numpy has no missing boolean: such a column is read as objects
        return not array.null_count
    return bool(types.is_integer(array.type) or types.is_floating(array.type))


def _unwrap_column(column: Any) -> Any:
    """Return the one array of a column that Arrow holds in chunks."""
    if not isinstance(column, pyarrow.ChunkedArray):
        return column
    array = column.combine_chunks()
    if not isinstance(array, pyarrow.ChunkedArray):
        return array
    # arrow answers in chunks again without rows, or if the column is too large for one piece
    if array.num_chunks:
        return pyarrow.concat_arrays(array.chunks)
    return pyarrow.array([], array.type)


def _convert_lists(array: Any) -> tuple[Any, NDArray[np.bool_] | None, str]:
    """Convert an Arrow column of lists of numbers to [row, dim], or of lists of such lists to [row, token, dim].

    Returns (array, mask, why it cannot be read), as `_convert_column` does.
    """
    if array.null_count:
        return None, None, f"{array.null_count} rows without a list"
    inner = array.flatten()
    lengths = np.asarray(compute.list_value_length(array))
    if _is_list_type(inner.type):
        return _convert_nested_lists(inner, lengths)
    if not (types.is_integer(inner.type) or types.is_floating(inner.type)):
        return None, None, f"lists of {inner.type}"
    if len(lengths) == 0:
        return None, None, "no lists"
    if lengths.min() != lengths.max():
        return None, None, f"lists of {lengths.min()} to {lengths.max()} numbers"
    if lengths[0] == 0:
        return None, None, "empty lists"
    numbers = inner.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(array), int(lengths[0])), None, ""


def _convert_nested_lists(
    inner: Any, lengths: NDArray[Any]
) -> tuple[Any, NDArray[np.bool_] | None, str]:
    """Convert the lists of numbers of all rows to [row, token, dim]; returns what `_convert_lists` does.

    inner     an Arrow array of all lists, row after row
    lengths   [row]: how many of them each row holds
    """
    vectors, _, reason = _convert_lists(inner)
    if reason:
        return None, None, reason
    if vectors.ndim != 2:
        return None, None, "lists in lists in lists"
    values, mask = _arrange_sequences(vectors, lengths)
    return values, mask, ""


def _arrange_sequences(
    vectors: NDArray[Any], lengths: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
    """Arrange the vectors of all sequences, one after the other, as [sequence, token, dim].

    Returns (the padded array, which tokens are real [sequence, token] or None if all are).

    vectors   [token, dim]
    lengths   number of tokens of each sequence
    """
    longest = int(lengths.max(initial=0))
    mask = np.arange(longest) < lengths[:, None]
    values = np.zeros((len(lengths), longest, vectors.shape[1]), vectors.dtype)
    # a boolean index runs row by row, in the order in which the vectors lie
    values[mask] = vectors
    if mask.all():
        return values, None
    return values, mask


def _parse_printed_lists(
    texts: NDArray[Any],
) -> tuple[Any, NDArray[np.bool_] | None, str]:
    """Turn a column of printed lists of numbers (`[0.1, 0.2]`, `[0.1 0.2]`) into an array [row, dim].

    A column of other texts is returned unchanged. Returns (array, mask, why it cannot be read), as `_convert_column`.
    """
    # the first row decides, so that a column of plain texts is not searched
    first = next((text for text in texts if text), "")
    if not re.match(r"\s*(array\(|tensor\()?\[", first):
        return texts, None, ""
    rows = []
    for number, text in enumerate(texts, 1):
        printed = text or ""
        if "..." in printed:
            reason = f"lists cut short when they were printed (row {number}: …)"
            return None, None, reason
        try:
            rows.append(_parse_printed_list(printed))
        except ValueError:
            return texts, None, ""
    widths = set(map(len, rows))
    if len(widths) != 1:
        return None, None, f"lists of {min(widths)} to {max(widths)} numbers"
    return np.array(rows), None, ""


def _parse_printed_list(printed: str) -> list[float]:
    """Return the numbers of one printed list. ValueError if it holds other words."""
    # numpy 2 prints its scalars as np.float64(.1), torch a dtype behind the numbers
    bare = re.sub(r"np\.\w+|[\[\](),]|array|tensor|dtype=\S+", " ", printed)
    return [float(part) for part in bare.split()]


# ---- tables of text --------------------------------------------------------------------------------------------------


def read_delimited(path: Path) -> Content:
    """Read the columns of a text table; separator, comment lines and header are recognised by its first lines."""
    # ten times as many lines as rows are looked at: many may be comments or empty
    head = list(islice(_iter_sound_lines(path), 10 * LOOKED))
    comments = _count_comments(head)
    body = [line for line in head[comments:] if line.strip()][:LOOKED]
    if not body:
        raise CorpusError(f"rows of numbers in {path}", "none", "name another file")
    separator = _choose_separator(body, path)
    rows = _split(body, separator)
    # R writes headers that are shorter than the rows below: the rows decide
    width = max(map(len, rows[1:] or rows))
    header, names, index = _read_header(rows, width, path)
    named_by_comment: list[str] = []
    if not header and comments:
        named_by_comment = _parse_comment(head[comments - 1], separator, width)
        names = named_by_comment or names
    columns, unusable = _read_columns(
        path, separator, comments + header, names, rows[header:]
    )
    return Content(
        columns,
        unusable=unusable,
        index=index,
        named=header or names != _number_columns(width),
        notes=_describe_head(header, comments, bool(named_by_comment)),
        first_line=comments + header + 1,
    )


def _describe_head(header: bool, comments: int, named_by_comment: bool) -> list[str]:
    """Say what was read as header and what was skipped.

    header             whether there is one, after the comments
    comments           number of comment lines at the begin of the file
    named_by_comment   whether the last of them names the columns
    """
    notes = ["no header"]
    if header:
        notes = [f"header in line {comments + 1}"]
    skipped = comments
    if named_by_comment:
        skipped -= 1
        notes.append(f"names in line {comments}, a comment")
    if skipped:
        plural = "s" if skipped > 1 else ""
        notes.append(f"{skipped} comment line{plural} skipped")
    return notes


def _count_comments(lines: list[str]) -> int:
    """Return how many lines are empty or comments before the first other one."""
    for count, line in enumerate(lines):
        if line.strip() and not line.startswith("#"):
            return count
    return len(lines)


def _iter_sound_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file. CorpusError for a line that is not UTF-8 text."""
    for number, line in enumerate(iter_lines(path), 1):
        fault = find_fault(line)
        if fault:
            raise CorpusError(
                f"UTF-8 text in {path}",
                f"{fault} in line {number}",
                "write the file again as UTF-8",
            )
        yield line


def _number_columns(width: int) -> list[str]:
    """Return the names of the columns of a table without a header: "0", "1", … up to `width`."""
    return [str(place) for place in range(width)]


def _choose_separator(body: list[str], path: Path) -> str:
    """Return the separator that makes most cells numbers in rows of equal length."""
    if get_ending(path) == ".tsv":
        return "\t"
    separators = list(SEPARATORS)
    # blanks separate the numbers inside printed lists too
    if not any(map(_is_list, body)):
        separators.append(" ")
    # a comma if none makes columns: of a single column of lists, or of nothing that is known
    best, chosen = (0.0, 0), ","
    for separator in separators:
        score = _rate_separator(body, separator)
        if score > best:
            best, chosen = score, separator
    return chosen


def _rate_separator(body: list[str], separator: str) -> tuple[float, int]:
    """Rate how well a separator splits lines: (share of cells that are numbers or lists, number of columns).

    The larger, the better; (0, 0) if it makes a single column, or rows of different lengths.

    body   the lines
    """
    rows = _split(body, separator)
    # the first may be a header, of text
    rows = rows[1:] or rows
    width = len(rows[0])
    alike = [row for row in rows if len(row) == width]
    if width < 2 or 2 * len(alike) < len(rows):
        return 0.0, 0
    n_cells = n_numbers = 0
    for row in rows:
        n_cells += len(row)
        n_numbers += sum(is_number(cell) or _is_list(cell) for cell in row)
    # rounded, so that a few cells do not decide: of equal shares the separator that makes more columns wins
    return round(n_numbers / n_cells, 2), width


def _split(body: list[str], separator: str) -> list[list[str]]:
    """Split lines into cells at the separator; several blanks count as one.

    body   the lines
    """
    if separator == " ":
        return [line.split() for line in body]
    rows = csv.reader(body, delimiter=separator, skipinitialspace=True)
    # of an empty line the reader makes a row without cells
    return [row for row in rows if row]


def is_number(text: str) -> bool:
    """Return whether a cell is a number (also with a decimal comma) or stands for a missing one."""
    written = text
    # two commas are thousands, or a list: no decimal comma
    if text.count(",") == 1:
        written = text.strip().replace(",", ".")
    try:
        float(written)
    except ValueError:
        return text.strip().lower() in ("", "na", "null", "none")
    return True


def _is_list(text: str) -> bool:
    """Return whether a cell begins like a printed list."""
    return text.lstrip().startswith("[")


def _read_header(
    rows: list[list[str]], width: int, path: Path
) -> tuple[bool, list[str], tuple[str, ...]]:
    """Return (whether the first row is a header, the names of the columns, which columns are row numbers).

    It is a header if it holds text where the rows below hold numbers, or counts the columns (0, 1, 2 …) above decimals.
    CorpusError if it may be either.

    rows    cells of the first lines
    width   number of columns
    """
    first = [cell.strip() for cell in rows[0]]
    below = rows[1:]
    if not below:
        _require_numbers_alone(first, path)
        return False, _number_columns(width), ()
    # R's write.table gives no name to the row names
    if len(first) == width - 1 and all(len(row) == width for row in below):
        return True, ["row names", *first], ("row names",)
    is_header = _has_names_over_numbers(first, below, width, path)
    if not is_header and not _has_names_over_lists(first, below, width):
        return False, _number_columns(width), ()
    names = _read_names(first, path)
    # pandas writes its index without a name, and reads it back as `Unnamed: 0`
    if not first[0] or re.fullmatch(r"Unnamed: \d+", first[0]):
        return True, names, (names[0],)
    return True, names, ()


def _require_numbers_alone(row: list[str], path: Path) -> None:
    """Raise CorpusError if the only row of a table is a header rather than a vector."""
    if not all(map(is_number, row)):
        raise CorpusError(
            f"rows of numbers in {path}", "only a header", "write the vectors below it"
        )


def _has_names_over_numbers(
    first: list[str], below: list[list[str]], width: int, path: Path
) -> bool:
    """Return whether the first row names columns of numbers. CorpusError if it may be a vector as well.

    first   its cells
    below   cells of the rows below it
    """
    filled = _find_filled_columns(first, below, width)
    written = [first[place] for place in filled]
    if not all(map(is_number, written)):
        return True
    # decimals are a vector; whole numbers may be names, as pandas writes them (0, 1, 2 …), or a vector
    are_whole = all(re.fullmatch(r"\d+", cell) for cell in written)
    if not filled or not are_whole:
        return False
    return _are_numbers_names(first, below, filled, path)


def _are_numbers_names(
    first: list[str], below: list[list[str]], filled: list[int], path: Path
) -> bool:
    """Return whether whole numbers in the first row name columns. CorpusError if they may be a vector as well.

    first    cells of the first row
    below    cells of the rows below it
    filled   the columns with numbers
    """
    numbers = [int(first[place]) for place in filled]
    with_decimals = [_has_decimals(below, place) for place in filled]
    if _counts_up(numbers):
        if any(with_decimals):
            return True
        # Whole numbers below too: the row may be one of them.
        _require_single_number(filled, first, path)
        return False
    are_different = len(set(numbers)) == len(numbers)
    if are_different and all(with_decimals):
        # Different whole numbers over decimals only: names such as years, or a vector that happens to have no decimals.
        _require_single_number(filled, first, path)
    return False


def _counts_up(numbers: list[int]) -> bool:
    """Return whether numbers count columns, from 0 or from 1."""
    first = numbers[0]
    return first in (0, 1) and numbers == list(range(first, first + len(numbers)))


def _require_single_number(filled: list[int], first: list[str], path: Path) -> None:
    """Raise CorpusError if several whole numbers of a first line may be names of columns or a vector.

    filled   the columns with such a number
    """
    if len(filled) == 1:
        return
    got = (
        f"a first line of whole numbers ({', '.join(first[:5])} …), which may be names "
        "or a vector"
    )
    cure = "write names such as dim_0 into the first line, or store .npy"
    raise CorpusError(f"one way to read the first line of {path}", got, cure)


def _find_filled_columns(
    first: list[str], below: list[list[str]], width: int
) -> list[int]:
    """Return the columns in which the first row says something and more than half of the rows below hold a number."""
    filled = []
    for place in range(min(width, len(first))):
        numbers = sum(place < len(row) and is_number(row[place]) for row in below)
        if first[place] and 2 * numbers > len(below):
            filled.append(place)
    return filled


def _has_decimals(rows: list[list[str]], place: int) -> bool:
    """Return whether a cell of the column at `place` has a decimal point."""
    return any("." in row[place] for row in rows if place < len(row))


def _has_names_over_lists(first: list[str], below: list[list[str]], width: int) -> bool:
    """Return whether the first row of a table is a header, because columns of lists begin with something else.

    first   cells of the first row
    below   cells of the rows below; a column of lists has a list, printed as text, in each of them
    width   number of columns

    False if there is no such column.
    """
    has_lists = False
    for place in range(min(width, len(first))):
        if not all(place < len(row) and _is_list(row[place]) for row in below):
            continue
        # a list in the first row too: that is a row like the others
        if _is_list(first[place]):
            return False
        has_lists = True
    return has_lists


def _read_names(first: list[str], path: Path) -> list[str]:
    """Return the names of columns in a header; empty cells are numbered. CorpusError for a name that occurs twice.

    first   cells of the header
    """
    names = [name or f"column {place}" for place, name in enumerate(first)]
    # `# id,x0,x1` of numpy.savetxt
    names[0] = (first[0] or "row numbers").removeprefix("#").strip()
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        got = f"several columns {', '.join(twice[:5])}"
        raise CorpusError(
            f"a header of different names in {path}",
            got,
            "name every column in the first line",
        )
    return names


def _parse_comment(line: str, separator: str, width: int) -> list[str]:
    """Return the names of columns in the last comment line above the rows (`# id x0 x1` of numpy.savetxt).

    Empty if it does not hold a different name for each column.

    width   number of columns
    """
    rows = _split([line.lstrip("# ")], separator)
    if not rows:
        return []
    names = [name.strip() for name in rows[0]]
    if len(names) != width or len(set(names)) != width or any(map(is_number, names)):
        return []
    return names


def _read_columns(
    path: Path, separator: str, skip: int, names: list[str], rows: list[list[str]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the columns of a text table after its first `skip` lines.

    names   of the columns
    rows    cells of the first lines, by which types are guessed

    Returns (arrays by column, why others are unusable, by column). CorpusError, with the line, for rows of another
    length.
    """
    # arrow's reader takes a single character, never a run of blanks
    if separator == " ":
        return _read_spaced(path, skip, names)
    cells = list(chain.from_iterable(rows))
    # A comma that separates cells cannot be a decimal comma as well.
    comma = separator != "," and any(map(DECIMAL_COMMA.fullmatch, cells))
    form = TextForm(path, separator, skip, names, comma, any(map(_is_list, cells)))
    whole, decimal = _guess_types(names, rows, comma)
    # whole numbers keep every digit if they can; a column of them may go on in decimals, or as text
    decimals = dict.fromkeys(decimal, pyarrow.float64())
    as_decimals = decimals | dict.fromkeys(whole, pyarrow.float64())
    as_texts = decimals | dict.fromkeys(whole, pyarrow.string())
    # Each attempt asks for less: types as guessed, then decimals for whole numbers,
    # then texts.
    for kinds in (decimals, as_decimals, as_texts):
        try:
            content = read_arrow_table(form.read(kinds))
            return content.columns, content.unusable
        except pyarrow.ArrowInvalid:
            continue
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise CorpusError(
                f"a table of numbers in {path}", str(error)[:160], "copy the file again"
            ) from None
    cure = "correct the line: every row has as many values as the first, and numbers in columns of numbers"
    raise CorpusError(f"a table of numbers in {path}", form.find_fault(as_texts), cure)


@dataclass(frozen=True)
class TextForm:
    """How the rows of a text table are written.

    skip         lines before the first row
    comma        whether decimals are written with a comma
    holds_lists  whether cells hold printed lists, which may go over several lines
    """

    path: Path
    separator: str
    skip: int
    names: list[str]
    comma: bool
    holds_lists: bool

    def read(self, kinds: dict[str, Any], *, threads: bool = True) -> Any:
        """Read the file as an Arrow table with these types by column. pyarrow.ArrowInvalid if they do not fit."""
        reading = reader.ReadOptions(
            use_threads=threads,
            skip_rows=self.skip,
            column_names=self.names,
            block_size=BLOCK,
        )
        parsing = reader.ParseOptions(
            delimiter=self.separator, newlines_in_values=self.holds_lists
        )
        converting = reader.ConvertOptions(
            null_values=MISSING,
            strings_can_be_null=True,
            decimal_point="," if self.comma else ".",
            column_types=kinds,
        )
        with open_unpacked(self.path) as file:
            return reader.read_csv(file, reading, parsing, converting)

    def find_fault(self, kinds: dict[str, Any]) -> str:
        """Say why the file cannot be read with these types, {column: Arrow type}, and name the line.

        The file is read again by a single thread, as only that one knows the line.
        """
        try:
            self.read(kinds, threads=False)
        except (pyarrow.ArrowException, OSError) as error:
            message = str(error).splitlines()[0]
            message = re.sub(
                r"CSV parse error: |CSV conversion error to double: |In CSV ",
                "",
                message,
            )
            return re.sub(r"Row #(\d+)", r"line \1", message)[:160]
        return "rows of another form"


def _guess_types(
    names: list[str], rows: list[list[str]], comma: bool
) -> tuple[list[str], list[str]]:
    """Return (names of the columns whose first rows are whole numbers, names of those with decimals).

    comma   whether decimals are written with a comma
    """
    whole: list[str] = []
    decimal: list[str] = []
    for place, name in enumerate(names):
        texts = _list_filled_cells(rows, place)
        if comma:
            texts = [text.replace(",", ".") for text in texts]
        if not texts or not all(map(is_number, texts)):
            continue
        if all(map(WHOLE_NUMBER.fullmatch, texts)):
            whole.append(name)
        else:
            decimal.append(name)
    return whole, decimal


def _list_filled_cells(rows: list[list[str]], place: int) -> list[str]:
    """Return the cells of the column at `place` that are not empty, without blanks around them."""
    texts = []
    for row in rows:
        if place < len(row) and row[place].strip():
            texts.append(row[place].strip())
    return texts


def _read_spaced(
    path: Path, skip: int, names: list[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the columns of a table with blanks between values: numbers, each row perhaps after a word.

    Returns (arrays by column, why others are unusable, by column).
    """
    rows: list[list[str]] = []
    for number, line in enumerate(_iter_sound_lines(path), 1):
        if number <= skip or not line.strip() or line.startswith("#"):
            continue
        cells = line.split()
        if len(cells) != len(names):
            got = f"{len(cells)} in line {number}"
            raise CorpusError(
                f"{len(names)} values in every line of {path}", got, "correct the line"
            )
        rows.append(cells)
    columns: dict[str, Any] = {}
    for name, cells_of in zip(names, zip(*rows, strict=True), strict=True):
        columns[name] = _parse_cells(cells_of)
    return columns, {}


def _parse_cells(cells: tuple[str, ...]) -> NDArray[Any]:
    """Return the cells of one column as whole numbers or decimals if all are, else as texts."""
    is_whole = all(map(WHOLE_NUMBER.fullmatch, cells))
    try:
        return np.array(cells, np.int64 if is_whole else np.float64)
    # the second: a whole number of more than eight bytes
    except (ValueError, OverflowError):
        return np.array(cells, object)
