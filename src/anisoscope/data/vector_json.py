"""Vectors in JSON: lists of numbers, records, and the answers of embedding services, wherever the numbers lie in them.

Every list of numbers has a path (`data[].embedding`). Those of one path are vectors, and what stands beside each
(numbers, texts, the entry of a list as long) are columns. Known to be read so: OpenAI, Azure, Mistral, Jina and Voyage
(`data[].embedding`, base64 too), Cohere (`embeddings[]`, `embeddings.float[]`), Google (`embedding.values`,
`embeddings[].values`, `predictions[].embeddings.values`), text-embeddings-inference (`[]`, `[][]`), Ollama, Pinecone,
Qdrant, Chroma, and all that pandas writes.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.data.files import iter_lines, memory_budget, read_text, refuse_large_file
from anisoscope.data.vector_roles import CALLED_VECTORS, NUMBERED, PRECISIONS, Content
from anisoscope.errors import CorpusError

IN_BASE64 = ("embedding", "base64", "vector")
"""Keys whose text may be a vector: float32 of little-endian byte order in base64."""
OF_TOKENS = re.compile(r".*(token|hidden|state|feature|frame)s?.*")
"""Names of lists of vectors that are one sequence, a vector a token."""
SEVERAL = re.compile(r".*(embeddings|vectors|vecs|embs|predictions|data|points|results)")
"""Names of lists of vectors that stand on their own."""
RECORDS = 'write one object a vector: {"id": …, "embedding": […]}, or with pandas orient=\'records\''


@dataclass
class FoundVectors:
    """A list of numbers found in JSON.

    path    its keys, with `[]` for lists: `data[].embedding`
    places  its index in each of the lists on the path
    beside  the single values found with it, by name
    """

    path: str
    places: tuple[int, ...]
    numbers: NDArray[Any]
    beside: dict[str, Any]


def read_json_vectors(path: Path) -> Content:
    """Read the columns of a JSON file or of JSON lines. CorpusError, with the line, if it cannot be read."""
    value, note = _load(path)
    content = content_of_json(value, path.name)
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
            raise _damaged(path, "brackets nested too deep") from None
        except ValueError as error:
            if "Extra data" not in str(error):
                raise _damaged(path, str(error)) from None
    values = []
    budget, size = memory_budget(), 0
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        size += len(line)
        if size > budget:
            raise refuse_large_file(path, size, budget, "store the vectors as .npy, which is read in blocks")
        try:
            values.append(json.loads(line))
        except RecursionError:
            raise _damaged(path, f"brackets nested too deep in line {number}") from None
        except ValueError:
            raise _damaged(path, f"{line[:40]!r} in line {number}") from None
    return values, "JSON lines"


def _damaged(path: Path, got: str) -> CorpusError:
    """Make the error for a JSON file that cannot be parsed; `got` says what was found (shortened). The caller raises
    it.
    """
    return CorpusError(f"JSON in {path}", got[:160], "correct the line, or write the file again")


def content_of_json(value: Any, file: str) -> Content:
    """Turn a parsed JSON value into columns. CorpusError if rows and columns cannot be told apart."""
    value = _as_records(value, file)
    found = list(_lists_of_numbers(value, "", (), {}))
    if not found:
        return _scalar_content(value)
    by_path: dict[str, list[FoundVectors]] = {}
    for each in found:
        by_path.setdefault(each.path, []).append(each)
    _check_dict_of_lists(by_path, file)
    columns: dict[str, Any] = {}
    masks: dict[str, NDArray[np.bool_]] = {}
    unusable: dict[str, str] = {}
    beside: dict[str, list[dict[str, Any]]] = {}
    for path, members in by_path.items():
        name = _name_of(path)
        values, mask, rows, reason = _stack_lists(path, members)
        if reason:
            unusable[name] = reason
            continue
        columns[name], beside[name] = values, rows
        if mask is not None:
            masks[name] = mask
    if not columns:
        return Content({}, unusable=unusable)
    main = max(columns, key=lambda name: columns[name].size)
    count = len(columns[main])
    for name in [name for name, values in columns.items() if len(values) != count]:
        unusable[name] = f"{len(columns.pop(name))} of them, beside {count} of {main}"
        masks.pop(name, None)
    for name, values in _columns_of(beside[main]).items():
        columns.setdefault(name, values)
    return Content(columns, masks, unusable)


# ---- where the numbers are -------------------------------------------------------------------------------------------


def _lists_of_numbers(value: Any, path: str, places: tuple[int, ...], beside: dict[str, Any]) -> Iterator[FoundVectors]:
    """Yield every list of numbers inside a JSON value, in order, with its path and the single values found with it.

    path     keys that lead to the value, with `[]` for lists
    places   its index in each of these lists
    beside   single values found on the way, by name
    """
    if isinstance(value, dict):
        beside = beside | _scalars(value)
        nested = {len(item) for item in value.values() if isinstance(item, list) and _is_nested(item)}
        parallel = {k: v for k, v in value.items() if isinstance(v, list) and len(v) in nested and not _is_nested(v)}
        for key, item in value.items():
            if key in parallel:
                continue
            inner = f"{path}.{key}" if path else str(key)
            if isinstance(item, list) and _is_nested(item):
                alike = {name: entries for name, entries in parallel.items() if len(entries) == len(item)}
                for place, each in enumerate(item):
                    own = {str(name): entries[place] for name, entries in alike.items()}
                    yield from _lists_of_numbers(each, f"{inner}[]", (*places, place), beside | own)
            else:
                yield from _lists_of_numbers(item, inner, places, beside)
    elif isinstance(value, list):
        if _is_nested(value):
            for place, each in enumerate(value):
                yield from _lists_of_numbers(each, f"{path}[]", (*places, place), beside)
        elif (numbers := _numbers(value)) is not None:
            yield FoundVectors(path, places, numbers, beside)
    elif isinstance(value, str) and _name_of(path).rpartition(".")[2] in IN_BASE64:
        numbers = _from_base64(value)
        if numbers is not None:
            yield FoundVectors(path, places, numbers, beside)


def _is_nested(value: list[Any]) -> bool:
    """Return whether a list holds lists, objects, or vectors in base64 (by its first entry), rather than numbers or
    words.
    """
    first = next((item for item in value if item is not None), None)
    if isinstance(first, str):
        return len(first) > 64 and _from_base64(first) is not None
    return isinstance(first, list | dict)


def _numbers(value: list[Any]) -> NDArray[Any] | None:
    """Convert a list of numbers to an array, null to NaN. None if it is another kind of list."""
    try:
        numbers = np.array(value)
    except (ValueError, OverflowError):  # lists of different lengths among others
        return None
    if numbers.dtype.kind == "O" and numbers.ndim == 1:  # numbers and null, or very large ones
        if all(item is None for item in value) or any(isinstance(item, bool | str | list | dict) for item in value):
            return None
        try:
            numbers = np.array([np.nan if item is None else item for item in value], np.float64)
        except (OverflowError, ValueError, TypeError):
            return None
    if numbers.ndim != 1 or not len(numbers) or numbers.dtype.kind not in "iuf" or isinstance(value[0], bool):
        return None
    return numbers


def _from_base64(text: str) -> NDArray[Any] | None:
    """Decode base64 text into float32 numbers. None if it does not hold any."""
    if len(text) < 8 or len(text) % 4:
        return None
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(raw) % 4:
        return None
    numbers = np.frombuffer(raw, "<f4")
    with np.errstate(invalid="ignore"):
        sound = bool(np.isfinite(numbers).all()) and bool((np.abs(numbers) < 1e6).all())
    return numbers if sound else None


def _scalars(value: dict[str, Any], ahead: str = "") -> dict[str, Any]:
    """Return the single values (numbers, texts, true/false) of an object, and of objects inside: `metadata.label`."""
    found: dict[str, Any] = {}
    for key, item in value.items():
        name = f"{ahead}{key}"
        if isinstance(item, dict):
            found |= _scalars(item, f"{name}.")
        elif not isinstance(item, list):
            found[name] = item
    return found


def _name_of(path: str) -> str:
    """Return the column name for a path in JSON, in which `[]` follows the key of a list.

    It is what follows the last list of objects: `items[].out.vec` gives `out.vec`. `vectors` if no key follows.
    """
    while path.endswith("[]"):
        path = path.removesuffix("[]")
    return path.rpartition("[].")[2] or "vectors"


# ---- what they make together -----------------------------------------------------------------------------------------


def _stack_lists(
    path: str, members: list[FoundVectors]
) -> tuple[Any, NDArray[np.bool_] | None, list[dict[str, Any]], str]:
    """Stack the lists of one path into an array [row, dim] or [row, token, dim].

    Returns (array, mask [row, token] if lengths differ else None, the values found with each row, ""). If they cannot
    be stacked: (None, None, [], the reason).
    """
    widths = {len(each.numbers) for each in members}
    if len(widths) > 1:
        return None, None, [], f"lists of {min(widths)} to {max(widths)} numbers"
    nested = len(path) - len(path.rstrip("[]"))
    levels = nested // 2
    above = len(members[0].places) - levels
    kept = [level for level in range(levels) if level == 0 or any(each.places[above + level] for each in members)]
    groups: dict[tuple[int, ...], list[FoundVectors]] = {}
    for each in members:
        place = tuple(each.places[above + level] for level in kept)
        groups.setdefault((*each.places[:above], *place[:-1]), []).append(each)
    alone = all(len(group) == 1 for group in groups.values())
    name = _name_of(path)
    if not kept or alone or (above == 0 and len(kept) == 1):
        return np.stack([each.numbers for each in members]), None, [each.beside for each in members], ""
    if len(kept) == 1:
        last = name.rpartition(".")[2].lower()
        if last in PRECISIONS or SEVERAL.fullmatch(last):
            return np.stack([each.numbers for each in members]), None, [each.beside for each in members], ""
        if not OF_TOKENS.fullmatch(last):
            return None, None, [], "several vectors in a record: call them embeddings, or token_embeddings"
    longest = max(map(len, groups.values()))
    first = members[0].numbers
    values = np.zeros((len(groups), longest, len(first)), first.dtype if first.dtype.kind != "f" else np.float64)
    mask = np.zeros((len(groups), longest), bool)
    for row, group in enumerate(groups.values()):
        values[row, : len(group)] = np.stack([each.numbers for each in group])
        mask[row, : len(group)] = True
    return values, None if mask.all() else mask, [group[0].beside for group in groups.values()], ""


def _check_dict_of_lists(by_path: dict[str, list[FoundVectors]], file: str) -> None:
    """Raise CorpusError for an object of equally long lists, whose keys may be rows or columns."""
    single = [members[0] for members in by_path.values() if len(members) == 1 and not members[0].places]
    widths = {len(each.numbers) for each in single}
    named = any(CALLED_VECTORS.fullmatch(_name_of(each.path).lower()) for each in single)
    if len(single) > 1 and len(single) == len(by_path) and len(widths) == 1 and not named:
        got = f"{len(single)} lists of {widths.pop()} numbers, which may be rows or columns"
        raise CorpusError(f"one way to read {file}", got, RECORDS)


def _as_records(value: Any, file: str) -> Any:
    """Turn a table that pandas wrote as JSON into a list of objects; return any other value unchanged."""
    if not isinstance(value, dict) or not value:
        return value
    rows, names = value.get("data"), value.get("columns")
    if isinstance(rows, list) and isinstance(names, list) and _are_rows_of(rows, names):
        return [dict(zip(map(str, names), row, strict=True)) for row in rows]
    inner = [item for item in value.values() if isinstance(item, dict)]
    if len(inner) < len(value) or not inner[0] or any(item.keys() != inner[0].keys() for item in inner):
        return value
    outer_keys, inner_keys = list(value), list(inner[0])
    rows_inside, rows_outside = _are_rows(inner_keys), _are_rows(outer_keys)
    holds_lists = any(isinstance(item, list) for item in inner[0].values())
    if rows_inside and not rows_outside:
        return [{key: value[key][row] for key in outer_keys} for row in inner_keys]
    if rows_outside and rows_inside:
        raise CorpusError(
            f"one way to read {file}", "objects inside an object, whose keys may be rows or columns", RECORDS
        )
    numbered = [NUMBERED.fullmatch(key) for key in inner_keys]
    if rows_outside or holds_lists or (len(inner_keys) > 1 and all(numbered)):
        return [{"key": key} | value[key] for key in outer_keys]
    if all(isinstance(item, int | float) for each in inner for item in each.values()):
        raise CorpusError(
            f"one way to read {file}", "objects inside an object, whose keys may be rows or columns", RECORDS
        )
    return value


def _are_rows_of(rows: list[Any], names: list[Any]) -> bool:
    """Return whether each row is a list with an entry for each name."""
    return all(isinstance(row, list) and len(row) == len(names) for row in rows)


def _are_rows(keys: list[str]) -> bool:
    """Return whether the keys count rows: 0, 1, 2 …"""
    return keys == [str(number) for number in range(len(keys))]


def _scalar_content(value: Any) -> Content:
    """Make columns of a list of objects of single values; empty if there is no such list, or several."""
    lists = list(_lists_of_records(value))
    if len(lists) != 1:
        return Content({})
    return Content(_columns_of(list(map(_scalars, lists[0]))))


def _lists_of_records(value: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the lists of objects that have at least one number."""
    if isinstance(value, dict):
        for item in value.values():
            yield from _lists_of_records(item)
    elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        holds_numbers = any(isinstance(item, int | float) for item in _scalars(value[0]).values())
        if holds_numbers:
            yield value


def _columns_of(records: Iterable[dict[str, Any]]) -> dict[str, NDArray[Any]]:
    """Make columns of objects without lists: numbers (NaN if missing), true/false, or texts."""
    rows = list(records)
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns: dict[str, NDArray[Any]] = {}
    for name in names:
        entries = [row.get(name) for row in rows]
        there = [entry for entry in entries if entry is not None]
        if there and all(isinstance(entry, bool) for entry in there):
            columns[name] = np.array([bool(entry) for entry in entries])
        elif there and all(isinstance(entry, int | float) and not isinstance(entry, bool) for entry in there):
            numbers = _numbers(entries)
            columns[name] = np.array(entries, object) if numbers is None else numbers
        else:
            columns[name] = np.array(entries, object)
    return columns
