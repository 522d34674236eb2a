"""Vectors in JSON: lists of numbers, records, and the answers of embedding services, wherever the numbers lie in them.

Every list of numbers has a path (`data[].embedding`). Those of one path are vectors, and what is next to each
(numbers, texts, the entry of a list as long) are columns. Known to be read so: OpenAI, Azure, Mistral, Jina and Voyage
(`data[].embedding`, base64 too), Cohere (`embeddings[]`, `embeddings.float[]`), Google (`embedding.values`,
`embeddings[].values`, `predictions[].embeddings.values`), text-embeddings-inference (`[]`, `[][]`), Ollama, Pinecone,
Qdrant, Chroma, and all that pandas writes.
"""

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.data.files import (
    get_memory_budget,
    iter_lines,
    read_text,
    refuse_large_file,
)
from anisoscope.data.vector_roles import CALLED_VECTORS, NUMBERED, PRECISIONS, Content
from anisoscope.errors import CorpusError

IN_BASE64 = ("embedding", "base64", "vector")
"""Keys whose text may be a vector: float32 of little-endian byte order in base64."""
OF_TOKENS = re.compile(r".*(token|hidden|state|feature|frame)s?.*")
"""Names of lists of vectors that are one sequence, a vector a token."""
SEVERAL = re.compile(
    r".*(embeddings|vectors|vecs|embs|predictions|data|points|results)"
)
"""Names of lists of vectors that stand on their own."""
RECORDS = 'write one object per vector: {"id": …, "embedding": […]}, or with pandas orient=\'records\''


@dataclass
class FoundVectors:
    """A list of numbers found in JSON.

    path      its keys, with `[]` for lists: `data[].embedding`
    places    its index in each of the lists on the path
    scalars   the single values found with it, by name
    """

    path: str
    places: tuple[int, ...]
    numbers: NDArray[Any]
    scalars: dict[str, Any]


def read_json_vectors(path: Path) -> Content:
    """Read the columns of a JSON file or of JSON lines. CorpusError, with the line, if it cannot be read."""
    value, note = _load(path)
    content = read_json_value(value, path.name)
    content.notes.insert(0, note)
    return content


def _load(path: Path) -> tuple[Any, str]:
    """Parse JSON, or JSON lines into a list. Returns (value, `JSON` or `JSON lines`).

    CorpusError, with the line, if it cannot be parsed or is too large.
    """
    of_lines = re.search(r"\.(jsonl|ndjson)(\.gz)?$", path.name.lower()) is not None
    if not of_lines:
        text = read_text(path)
        try:
            return json.loads(text), "JSON"
        except RecursionError:
            raise _refuse_damaged(path, "brackets nested too deep") from None
        except ValueError as error:
            # a second value after the first: JSON lines in a file called .json
            if "Extra data" not in str(error):
                raise _refuse_damaged(path, str(error)) from None
    return _load_lines(path), "JSON lines"


def _load_lines(path: Path) -> list[Any]:
    """Parse a file of one JSON value a line. CorpusError, with the line, if it cannot be parsed or is too large."""
    values = []
    budget, size = get_memory_budget(), 0
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        size += len(line)
        if size > budget:
            raise refuse_large_file(
                path, size, budget, "store the vectors as .npy, which is read in blocks"
            )
        try:
            values.append(json.loads(line))
        except RecursionError:
            raise _refuse_damaged(
                path, f"brackets nested too deep in line {number}"
            ) from None
        except ValueError:
            raise _refuse_damaged(path, f"{line[:40]!r} in line {number}") from None
    return values


def _refuse_damaged(path: Path, got: str) -> CorpusError:
    """Make the error for a JSON file that cannot be parsed; `got` says what was found (shortened). The caller raises
    it.
    """
    return CorpusError(
        f"JSON in {path}", got[:160], "correct the line, or write the file again"
    )


def read_json_value(value: Any, file: str) -> Content:
    """Turn a parsed JSON value into columns. CorpusError if rows and columns cannot be told apart."""
    value = _as_records(value, file)
    by_path: dict[str, list[FoundVectors]] = {}
    for found in _iter_lists_of_numbers(value, "", (), {}):
        by_path.setdefault(found.path, []).append(found)
    if not by_path:
        return _read_scalars(value)
    _check_dict_of_lists(by_path, file)
    stacked: dict[str, StackedLists] = {}
    unusable: dict[str, str] = {}
    for path, name in _name_paths(list(by_path)).items():
        lists = _stack_lists(path, by_path[path])
        if isinstance(lists, str):
            unusable[name] = lists
        else:
            stacked[name] = lists
    if not stacked:
        return Content({}, unusable=unusable)
    return _join_stacks(stacked, unusable)


# ---- where the numbers are -------------------------------------------------------------------------------------------


def _iter_lists_of_numbers(
    value: Any, path: str, places: tuple[int, ...], scalars: dict[str, Any]
) -> Iterator[FoundVectors]:
    """Yield every list of numbers inside a JSON value, in order, with its path and the single values found with it.

    path      keys that lead to the value, with `[]` for lists
    places    its index in each of these lists
    scalars   single values found on the way, by name
    """
    if isinstance(value, dict):
        yield from _iter_lists_of_object(
            value, path, places, scalars | _collect_scalars(value)
        )
        return
    if isinstance(value, list) and _is_nested(value):
        for place, each in enumerate(value):
            yield from _iter_lists_of_numbers(
                each, f"{path}[]", (*places, place), scalars
            )
        return
    numbers = None
    if isinstance(value, list):
        numbers = _to_numbers(value)
    # any text may happen to be valid base64: the key must say that it is a vector
    elif isinstance(value, str) and _name_path(path).rpartition(".")[2] in IN_BASE64:
        numbers = _decode_base64(value)
    if numbers is not None:
        yield FoundVectors(path, places, numbers, scalars)


def _iter_lists_of_object(
    value: dict[str, Any], path: str, places: tuple[int, ...], scalars: dict[str, Any]
) -> Iterator[FoundVectors]:
    """Yield every list of numbers inside a JSON object, with its path and the single values found with it.

    A plain list as long as a list of lists runs parallel to it (Chroma: `ids` and `embeddings`): its entries are values
    of the vectors, not a vector.

    path      keys that lead to the object, with `[]` for lists
    places    its index in each of these lists
    scalars   single values found on the way, by name
    """
    nested, parallel = _separate_parallel_lists(value)
    for key, item in value.items():
        if key in parallel:
            continue
        inner = f"{path}.{key}" if path else str(key)
        if key not in nested:
            yield from _iter_lists_of_numbers(item, inner, places, scalars)
            continue
        for place, each in enumerate(item):
            own = _collect_entries(parallel, len(item), place)
            yield from _iter_lists_of_numbers(
                each, f"{inner}[]", (*places, place), scalars | own
            )


def _separate_parallel_lists(
    value: dict[str, Any],
) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """Return ({key: list of lists or objects}, {key: plain list as long as one of them}) of a JSON object."""
    nested: dict[str, list[Any]] = {}
    plain: dict[str, list[Any]] = {}
    for key, item in value.items():
        if not isinstance(item, list):
            continue
        if _is_nested(item):
            nested[key] = item
        else:
            plain[key] = item
    lengths = set(map(len, nested.values()))
    parallel: dict[str, list[Any]] = {}
    for key, item in plain.items():
        if len(item) in lengths:
            parallel[key] = item
    return nested, parallel


def _collect_entries(
    parallel: dict[str, list[Any]], length: int, place: int
) -> dict[str, Any]:
    """Return {key: entry number `place`} of the lists that have this length.

    parallel   {key: plain list}
    """
    own = {}
    for name, entries in parallel.items():
        if len(entries) == length:
            own[name] = entries[place]
    return own


def _is_nested(value: list[Any]) -> bool:
    """Return whether a list holds lists, objects, or vectors in base64 (by its first entry), rather than numbers or
    words.
    """
    first = next((item for item in value if item is not None), None)
    if isinstance(first, str):
        # 64 characters of base64 are twelve float32: shorter ones may be words of a list of texts
        return len(first) > 64 and _decode_base64(first) is not None
    return isinstance(first, list | dict)


def _to_numbers(value: list[Any]) -> NDArray[Any] | None:
    """Convert a list of numbers to an array, null to NaN. None if it is another kind of list."""
    try:
        numbers = np.array(value)
    except (ValueError, OverflowError):  # lists of different lengths among others
        return None
    # numbers and null, or very large ones
    if numbers.dtype.kind == "O" and numbers.ndim == 1:
        converted = _to_floats(value)
        if converted is None:
            return None
        numbers = converted
    if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "iuf":
        return None
    # numpy counts true as 1
    if isinstance(value[0], bool):
        return None
    return numbers


def _to_floats(value: list[Any]) -> NDArray[Any] | None:
    """Convert numbers and null to floats, null to NaN. None if all are null, or one is something else."""
    numbers: list[Any] = []
    n_missing = 0
    for item in value:
        # numpy would read "1.5" and true as numbers too
        if isinstance(item, bool | str | list | dict):
            return None
        if item is None:
            n_missing += 1
            numbers.append(np.nan)
        else:
            numbers.append(item)
    if n_missing == len(value):
        return None
    try:
        return np.array(numbers, np.float64)
    except (OverflowError, ValueError, TypeError):
        return None


def _decode_base64(text: str) -> NDArray[Any] | None:
    """Decode base64 text into float32 numbers. None if it does not hold any."""
    # base64 comes in groups of four characters; eight are the fewest that hold a number
    if len(text) < 8 or len(text) % 4:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) % 4:
        return None
    numbers = np.frombuffer(raw, "<f4")
    # many a word is valid base64: its bytes, read as floats, are huge, infinite or no numbers
    with np.errstate(invalid="ignore"):
        is_sound = np.isfinite(numbers).all() and (np.abs(numbers) < 1e6).all()
    if not is_sound:
        return None
    return numbers


def _collect_scalars(value: dict[str, Any], ahead: str = "") -> dict[str, Any]:
    """Return the single values (numbers, texts, true/false) of an object, and of objects inside: `metadata.label`."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{ahead}{key}"
        if isinstance(item, dict):
            found |= _collect_scalars(item, f"{name}.")
        elif not isinstance(item, list):
            found[name] = item
    return found


def _name_path(path: str) -> str:
    """Return the name that a list of numbers gets as a column: the keys after the last list on its path.

    `items[].out.vec` gives `out.vec`; a path that ends with a list gives `vectors`.
    """
    while path.endswith("[]"):
        path = path.removesuffix("[]")
    return path.rpartition("[].")[2] or "vectors"


def _name_paths(paths: list[str]) -> dict[str, str]:
    """Return {path: name of its column}; paths that end alike (`queries[].vec`, `texts[].vec`) are not shortened."""
    counts = Counter(map(_name_path, paths))
    names = {}
    for path in paths:
        name = _name_path(path)
        if counts[name] > 1:
            name = path
        names[path] = name
    return names


# ---- what they make together -----------------------------------------------------------------------------------------


@dataclass
class StackedLists:
    """The lists of one path as one array.

    values    [row, dim] or [row, token, dim]
    mask      [row, token]: which tokens are real; None if all are
    scalars   the values found with each row
    """

    values: NDArray[Any]
    mask: NDArray[np.bool_] | None
    scalars: list[dict[str, Any]]


def _join_stacks(stacked: dict[str, StackedLists], unusable: dict[str, str]) -> Content:
    """Return the columns of a file: arrays with as many rows as the largest one, and the values found with its rows.

    stacked    {name: the lists of one path, as an array}
    unusable   {name: why its lists cannot be a column}; arrays with another number of rows are added to it
    """
    # the largest array decides what a row is; arrays of another number of rows belong to something else
    main = max(stacked, key=lambda name: stacked[name].values.size)
    count = len(stacked[main].values)
    columns: dict[str, Any] = {}
    masks: dict[str, NDArray[np.bool_]] = {}
    for name, lists in stacked.items():
        if len(lists.values) != count:
            unusable[name] = f"{len(lists.values)} of them, but {count} of {main}"
            continue
        columns[name] = lists.values
        if lists.mask is not None:
            masks[name] = lists.mask
    # a vector goes before a value of the same name
    for name, values in _make_columns(stacked[main].scalars).items():
        columns.setdefault(name, values)
    return Content(columns, masks, unusable)


def _stack_lists(path: str, members: list[FoundVectors]) -> StackedLists | str:
    """Stack the lists of one path into an array [row, dim] or [row, token, dim]; or say why they cannot be stacked.

    path      with `[]` for lists
    members   the lists
    """
    widths = {len(each.numbers) for each in members}
    if len(widths) > 1:
        return f"lists of {min(widths)} to {max(widths)} numbers"
    # a path ends with one `[]` for each level of lists around the numbers, below the objects that hold them
    brackets = path[len(path.rstrip("[]")) :]
    levels = brackets.count("[]")
    above = len(members[0].places) - levels
    kept = _find_levels(members, above, levels)
    groups = _group_members(members, above, kept)
    each_is_alone = len(groups) == len(members)
    is_one_list = above == 0 and len(kept) == 1
    if not kept or each_is_alone or is_one_list:
        return _stack_rows(members)
    if len(kept) > 1:
        return _stack_sequences(groups)
    # An object with several vectors: the tokens of one sequence, or rows of their own, as their name says.
    name = _name_path(path).rpartition(".")[2].lower()
    if name in PRECISIONS or SEVERAL.fullmatch(name):
        return _stack_rows(members)
    if OF_TOKENS.fullmatch(name):
        return _stack_sequences(groups)
    return "several vectors in a record: call them embeddings, or token_embeddings"


def _group_members(
    members: list[FoundVectors], above: int, kept: list[int]
) -> list[list[FoundVectors]]:
    """Group lists of numbers into sequences: those that differ only in their place in the innermost level that counts.

    above   how many levels of lists have objects between them and the numbers
    kept    the levels of lists that count, outermost first
    """
    groups: dict[tuple[int, ...], list[FoundVectors]] = {}
    for each in members:
        places = [each.places[level] for level in kept]
        groups.setdefault((*each.places[:above], *places[:-1]), []).append(each)
    return list(groups.values())


def _find_levels(members: list[FoundVectors], above: int, levels: int) -> list[int]:
    """Return which levels of lists around the numbers count, outermost first.

    Levels that always hold a single entry do not count, except the first.

    above    how many levels of lists have objects between them and the numbers
    levels   how many levels of lists are directly around the numbers
    """
    kept = []
    for level in range(above, above + levels):
        # A place above 0 shows that a list of this level has several entries.
        if level == above or any(each.places[level] for each in members):
            kept.append(level)
    return kept


def _stack_rows(members: list[FoundVectors]) -> StackedLists:
    """Stack lists as rows [row, dim]."""
    numbers = []
    scalars = []
    for each in members:
        numbers.append(each.numbers)
        scalars.append(each.scalars)
    return StackedLists(np.stack(numbers), None, scalars)


def _stack_sequences(groups: list[list[FoundVectors]]) -> StackedLists:
    """Stack groups of lists as sequences [row, token, dim], padded with zeros to the longest."""
    first = groups[0][0].numbers
    longest = max(map(len, groups))
    # vectors of base64 are float32 and others float64: an array that holds both without loss
    dtype = np.float64 if first.dtype.kind == "f" else first.dtype
    values = np.zeros((len(groups), longest, len(first)), dtype)
    mask = np.zeros((len(groups), longest), bool)
    for row, group in enumerate(groups):
        values[row, : len(group)] = np.stack([each.numbers for each in group])
        mask[row, : len(group)] = True
    scalars = [group[0].scalars for group in groups]
    if mask.all():
        return StackedLists(values, None, scalars)
    return StackedLists(values, mask, scalars)


def _check_dict_of_lists(by_path: dict[str, list[FoundVectors]], file: str) -> None:
    """Raise CorpusError for an object of equally long lists, whose keys may be rows or columns.

    by_path   {path: the lists of numbers found there}
    file      its name, for errors
    """
    if len(by_path) < 2:
        return
    widths = set()
    for path, members in by_path.items():
        # a list inside another is a row: no doubt
        is_single = len(members) == 1 and not members[0].places
        if not is_single or CALLED_VECTORS.fullmatch(_name_path(path).lower()):
            return
        widths.add(len(members[0].numbers))
    if len(widths) > 1:
        return
    got = (
        f"{len(by_path)} lists of {widths.pop()} numbers, which may be rows or columns"
    )
    raise CorpusError(f"one way to read {file}", got, RECORDS)


def _as_records(value: Any, file: str) -> Any:
    """Turn a table that pandas wrote as JSON into a list of objects; return any other value unchanged.

    CorpusError for objects inside an object whose keys may be rows or columns.
    """
    if not isinstance(value, dict) or not value:
        return value
    rows, names = value.get("data"), value.get("columns")
    # {"columns": […], "data": [[…], …]}: orient="split"
    if isinstance(rows, list) and isinstance(names, list) and _are_rows_of(rows, names):
        return [dict(zip(map(str, names), row, strict=True)) for row in rows]
    if not _are_objects_alike(list(value.values())):
        return value
    return _turn_objects_to_records(value, file)


def _turn_objects_to_records(value: dict[str, dict[str, Any]], file: str) -> Any:
    """Turn an object of objects with the same keys into a list of objects; return it unchanged if it is no table.

    CorpusError if it may be a table by rows as well as by columns.
    """
    outer_keys = list(value)
    first = value[outer_keys[0]]
    inner_keys = list(first)
    rows_inside = _are_rows(inner_keys)
    rows_outside = _are_rows(outer_keys)
    if rows_inside and rows_outside:
        raise _refuse_nested_objects(file)
    if rows_inside:
        # {column: {row: value}}: orient="columns", which to_json of pandas writes by default
        records = []
        for row in inner_keys:
            records.append({key: value[key][row] for key in outer_keys})
        return records
    if rows_outside or _looks_like_record(first):
        # {row: {column: value}}: orient="index"
        return [{"key": key} | value[key] for key in outer_keys]
    if _hold_numbers_only(value.values()):
        raise _refuse_nested_objects(file)
    return value


def _looks_like_record(item: dict[str, Any]) -> bool:
    """Return whether an object is a row of a table: it has a vector, as a list or in numbered columns."""
    if any(isinstance(entry, list) for entry in item.values()):
        return True
    return len(item) > 1 and all(map(NUMBERED.fullmatch, item))


def _hold_numbers_only(items: Iterable[dict[str, Any]]) -> bool:
    """Return whether every entry of the objects is a number."""
    return all(all(map(_is_number, each.values())) for each in items)


def _is_number(entry: Any) -> bool:
    """Return whether a value of JSON is a number, or true or false."""
    return isinstance(entry, int | float)


def _refuse_nested_objects(file: str) -> CorpusError:
    """Make the error for objects inside an object that can be read in two ways. The caller raises it."""
    got = "objects inside an object, whose keys may be rows or columns"
    return CorpusError(f"one way to read {file}", got, RECORDS)


def _are_objects_alike(items: list[Any]) -> bool:
    """Return whether all items are objects that have the same keys, at least one key."""
    first = items[0]
    if not isinstance(first, dict) or not first:
        return False
    return all(isinstance(item, dict) and item.keys() == first.keys() for item in items)


def _are_rows_of(rows: list[Any], names: list[Any]) -> bool:
    """Return whether each of the rows is a list with as many entries as there are names of columns."""
    return all(isinstance(row, list) and len(row) == len(names) for row in rows)


def _are_rows(keys: list[str]) -> bool:
    """Return whether the keys count rows: 0, 1, 2 …"""
    return keys == [str(number) for number in range(len(keys))]


def _read_scalars(value: Any) -> Content:
    """Make columns of a list of objects of single values; empty if there is no such list, or several."""
    lists = list(_iter_lists_of_records(value))
    if len(lists) != 1:
        return Content({})
    return Content(_make_columns(list(map(_collect_scalars, lists[0]))))


def _iter_lists_of_records(value: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the lists of objects that have at least one number."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _iter_lists_of_records(item)
    elif (
        isinstance(value, list)
        and value
        and all(isinstance(item, dict) for item in value)
    ):
        # the first object stands for all, as in the header of a table
        scalars = _collect_scalars(value[0])
        if any(map(_is_number, scalars.values())):
            yield value


def _make_columns(records: Iterable[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Make columns of objects without lists: numbers (NaN if missing), true/false, or texts."""
    rows = list(records)
    # a dict, not a set: columns stay in the order in which they appear
    names = dict.fromkeys(chain.from_iterable(rows))
    columns = {}
    for name in names:
        columns[name] = _make_column([row.get(name) for row in rows])
    return columns


def _make_column(entries: list[Any]) -> NDArray[Any]:
    """Return an array of the entries of one column: numbers, true/false or texts. None counts as missing."""
    present = [entry for entry in entries if entry is not None]
    if not present:
        return np.array(entries, object)
    # Python counts a boolean as a whole number, so that a mixed column would become one of numbers.
    are_booleans = [isinstance(entry, bool) for entry in present]
    if all(are_booleans):
        # what is missing counts as false
        return np.array(list(map(bool, entries)))
    are_numbers = all(map(_is_number, present))
    if are_numbers and not any(are_booleans):
        numbers = _to_numbers(entries)
        if numbers is not None:
            return numbers
    return np.array(entries, object)
