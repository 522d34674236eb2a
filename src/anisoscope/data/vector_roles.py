"""Decide which columns of a file are the vectors: fixed rules, one line that says the decision, and a refusal if
two readings are possible.

1. `--columns`, `--unit-column` and `--label-column` come first. A column called unit, label or mask is used as such.
2. A column of lists holds vectors. If there is none, all columns of numbers together are one vector.
3. These columns are left out of a vector: text; row numbers (a column that the format marks as such, or a column
   without a name that comes first or counts the rows); and columns whose name says that they are something else (id,
   year, score …).
4. Numbered columns of one name (dim_0, dim_1 …) are the vector if they are at least three quarters of the columns of
   numbers.
5. A file that can be read in two ways is refused. Examples: whole numbers (an id, a class) among decimals, numbered
   columns among many others, columns of lists of different widths.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import CorpusError, UsageError, suggest_names

UNITS, LABELS, MASK = ("units", "unit"), ("labels", "label"), ("mask", "attention_mask")
"""Names by which units, labels and a mask are found beside vectors."""
INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "special_tokens_mask", "offset_mapping")
"""What a tokenizer gives: lists of numbers that are no vectors."""
PACKED = ("binary", "ubinary")
PRECISIONS = ("float", "float32", "float16", "int8", "uint8", *PACKED)
"""Names of the same embeddings at different precisions, the one to measure first; the packed ones are bits."""
IS_ID = re.compile(
    r"(id|ids|idx|index|uuid|guid|key|row|rows|row_?num(ber)?|no|nr|number|unnamed: \d+|level_\d+)"
    r"|.*[_ .-](id|idx|index|key|uuid)|(id|index)[_ .-].*"
)
OTHERS = {
    *("label", "labels", "class", "classes", "target", "unit", "units", "split", "fold", "group", "cluster"),
    *("weight", "score", "similarity", "distance", "probability", "prob", "rank", "rating", "stars"),
    *("length", "len", "size", "count", "counts", "n_tokens", "tokens", "token_count", "page", "position", "offset"),
    *("year", "month", "day", "date", "time", "timestamp", "start", "end", "layer", "step", "seed", "line"),
}
"""Names of numbers that say something about a vector and are no part of it."""
CALLED_VECTORS = re.compile(r"(^|.*[_ .\[\]-])(emb|embs|embedding|embeddings|vector|vectors|vec|vecs)(\[\])?$")
NUMBERED = re.compile(r"(.*?)(\d+)[\])]?")
MOST = 0.75  # share of the columns of numbers from which numbered ones are the vector
LOOKED = 1000  # rows of an array that are looked at for columns that are no dimensions
SHOWN = 6  # names that a line shows
NO_NAME = "(no name)"


@dataclass
class Content:
    """What a file holds, before it is decided which columns are vectors.

    columns   name → [row] numbers or text, or numbers [row, dim] or [row, token, dim]
    masks     name → [row, token]: which tokens are real, for a column of sequences of different lengths
    unusable  name → why a column cannot be vectors
    index     columns that the format itself marks as row numbers
    named     whether the names are the file's own; else columns are named by their position, from 0
    is_table  whether rows are records with columns; else the file holds several arrays
    notes     what was read and what was skipped, in words: `header in line 1`
    first_line   line number of the first row, if rows are lines; else 0
    """

    columns: dict[str, Any]
    masks: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    index: tuple[str, ...] = ()
    named: bool = True
    is_table: bool = True
    notes: list[str] = field(default_factory=list)
    first_line: int = 0


@dataclass(frozen=True)
class Roles:
    """The decision which columns of a file are vectors, units (documents, clips, images) and labels.

    layers            name of each layer → the columns of its vectors: one of lists or arrays, or several of numbers
    places            columns of the one array that are dimensions; None: all
    units, labels, mask   names of columns, or None
    left_out          name → what it was taken for
    """

    layers: Mapping[str, tuple[str, ...]]
    places: tuple[int, ...] | None = None
    units: str | None = None
    labels: str | None = None
    mask: str | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


def decide_roles(
    content: Content,
    file: str,
    *,
    columns: str | None = None,
    unit_column: str | None = None,
    label_column: str | None = None,
) -> Roles:
    """Decide which columns are vectors. CorpusError if there are none, or if two readings are possible.

    file   its name in errors; without its ending, the name of the layer that columns of numbers make
    """
    units = _find_beside(content, unit_column, UNITS)
    labels = _find_beside(content, label_column, LABELS)
    mask = _find_beside(content, None, MASK) if not content.is_table else None
    taken = {name for name in (units, labels, mask) if name is not None}
    if columns is not None:
        layers, places = _choose(content, columns, file, taken)
        left_out = {name: "not in --columns" for name in content.columns if name not in taken}
    else:
        left_out = _name_others(content, taken, file)
        open_ones = [name for name in content.columns if name not in left_out and name not in taken]
        wide = [name for name in open_ones if _is_wide(content.columns[name])]
        if wide:
            layers = _decide_lists(content, wide, left_out, file)
        else:
            layers = _decide_numbers(content, open_ones, left_out, file)
        places = None
    used = {name for names in layers.values() for name in names}
    for name, reason in content.unusable.items():
        left_out.setdefault(name, reason)
    for name in content.columns:
        if name not in used and name not in taken:
            left_out.setdefault(name, "one number a row")
    left_out = {name: why for name, why in left_out.items() if name not in used}
    return Roles(layers, places, units, labels, mask, left_out)


def describe_roles(content: Content, roles: Roles, file: str, shape: Sequence[int]) -> str:
    """Say in one line what a file was read as: vectors, units, labels, what was left out, and the header."""
    count, dim = shape[0], shape[-1]
    things = f"{count:,} vectors" if len(shape) == 2 else f"{count:,} sequences of up to {shape[1]:,} vectors"
    if roles.places is not None:
        what = f"columns {compress_names(list(map(str, roles.places)))}"
    elif len(roles.layers) > 1:
        what = f"{len(roles.layers)} layers {list_names(list(roles.layers))}"
    else:
        names = next(iter(roles.layers.values()))
        what = f"column{'s' * (len(names) > 1)} {compress_names(list(names))}"
        what = what if content.is_table else what.replace("column", "array", 1)
    parts = [f"{file}: {things} of {dim:,} numbers, {what}"]
    for role, name in (("units", roles.units), ("labels", roles.labels), ("mask", roles.mask)):
        if name is not None:
            parts.append(f"{role}: {name}")
    if roles.left_out:
        by_reason: dict[str, list[str]] = {}
        for name, reason in roles.left_out.items():
            by_reason.setdefault(reason, []).append(name)
        groups = []
        for reason, alike in by_reason.items():
            groups.append(reason if alike == [reason] else f"{compress_names(alike)} ({reason})")
        parts.append(f"left out: {', '.join(groups)}")
    return "; ".join([*parts, *content.notes])


# ---- what is asked for -----------------------------------------------------------------------------------------------


def _find_beside(content: Content, asked: str | None, known: Sequence[str]) -> str | None:
    """Return the column of units or labels: the one asked for, else the first with a known name; None if there is none.

    asked   the name given by the user
    known   names that such columns usually have

    CorpusError if the one asked for is missing.
    """
    names = [*content.columns, *content.unusable]
    if asked is None:
        return next((name for name in content.columns if _own_name(name) in known), None)
    if asked not in content.columns:
        raise CorpusError("a column or an array of the file", repr(asked), suggest_names(asked, names))
    return asked


def _choose(
    content: Content, columns: str, file: str, taken: Iterable[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[int, ...] | None]:
    """Return the layers that `--columns` names: ({layer: its columns}, dimensions if it names those of the only array).

    taken   columns of units and labels, which cannot be vectors

    CorpusError for a column of text or one that is unusable.
    """
    arrays = [name for name, values in content.columns.items() if _is_wide(values) and name not in taken]
    if len(arrays) == 1 and not content.is_table and np.ndim(content.columns[arrays[0]]) == 2:
        try:
            chosen = select_names(columns, list(content.columns), file, by_place=False)
        except CorpusError:
            width = content.columns[arrays[0]].shape[1]
            places = select_names(columns, list(map(str, range(width))), file)
            return {arrays[0]: (arrays[0],)}, tuple(map(int, places))
    else:
        chosen = select_names(columns, [*content.columns, *content.unusable], file)
    for name in chosen:
        reason = content.unusable.get(name) or ("" if _is_numeric(content.columns[name]) else "text")
        if reason:
            raise CorpusError(f"numbers in the column {name!r} of {file}", reason, "leave it out of --columns")
    wide = [name for name in chosen if _is_wide(content.columns[name])]
    if wide and len(wide) < len(chosen):
        narrow = next(name for name in chosen if name not in wide)
        got = f"{wide[0]!r} (lists) and {narrow!r} (one number a row)"
        raise CorpusError("columns of lists or columns of numbers in --columns", got, "name columns of one kind")
    if wide:
        return {name: (name,) for name in wide}, None
    return {Path(file).stem: tuple(chosen)}, None


def select_names(spec: str, names: Sequence[str], file: str = "the file", *, by_place: bool = True) -> list[str]:
    """Return the names that a specification as `0-7`, `dim_*`, `dim_0-dim_7` or `embedding,mean` means, in
    file order.

    Each part is tried as an exact name, then a pattern with * or ?, then a range of names or of the numbers they end
    with, then positions counted from 0. CorpusError for a part that matches nothing.
    """
    parts = [part.strip() for part in spec.split(",") if part.strip()]
    if not parts:
        raise UsageError("names, patterns or places for --columns", repr(spec), "--columns 0-7, or --columns 'dim_*'")
    chosen: set[str] = set()
    for part in parts:
        found = _names_of_part(part, names, by_place)
        if not found:
            expected = f"a column of {file} for --columns {part}"
            known = f"columns {compress_names(list(names))}"
            if re.fullmatch(r"\d+(-\d+)?", part):
                raise CorpusError(expected, known, f"places go from 0 to {len(names) - 1}")
            raise CorpusError(expected, known, suggest_names(part, names) if len(names) < 50 else "check the names")
        chosen.update(found)
    return [name for name in names if name in chosen]


def _names_of_part(part: str, names: Sequence[str], by_place: bool) -> list[str]:
    """Return the names that one part of a specification means; empty if none."""
    if part in names:
        return [part]
    if set(part) & set("*?"):
        return [name for name in names if fnmatchcase(name, part)]
    for dash in (match.start() for match in re.finditer("-", part)):
        first, last = part[:dash], part[dash + 1 :]
        if first in names and last in names:
            begin, end = names.index(first), names.index(last)
            return list(names[begin : end + 1])
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
    if match is None or not by_place:
        return []
    first_place, last_place = int(match[1]), int(match[2] or match[1])
    if last_place >= len(names):
        return []
    return list(names[first_place : last_place + 1])


# ---- what is decided by rules ----------------------------------------------------------------------------------------


def _name_others(content: Content, taken: Iterable[str], file: str) -> dict[str, str]:
    """Return {column that cannot be part of a vector: what it was taken for (id, text, row numbers …)}.

    taken   columns of units and labels

    CorpusError for a text among the numbers of a column.
    """
    left_out: dict[str, str] = {}
    for name, values in content.columns.items():
        if name in taken:
            continue
        if name in content.index:
            left_out[name] = "row numbers"
        elif not _is_numeric(values):
            if not _says_other(name) and (bad := _bad_cell(values, content.first_line)):
                raise CorpusError(f"a number in every row of the column {name!r} of {file}", bad, "correct the cell")
            left_out[name] = "yes or no" if _kind(values) == "b" else "text"
        elif _own_name(name) in INPUTS:
            left_out[name] = "a tokenizer's output"
        elif not _is_wide(values) and content.named and (reason := _says_other(name)):
            left_out[name] = reason
    return left_out


def _says_other(name: str) -> str:
    """Say what a column is, if its name shows that it is no dimension; empty otherwise."""
    own = _own_name(name)
    if IS_ID.fullmatch(own):
        return "an id, by its name"
    return "by its name" if own in OTHERS else ""


def _decide_lists(content: Content, wide: list[str], left_out: dict[str, str], file: str) -> dict[str, tuple[str, ...]]:
    """Return {layer: its columns} among columns of lists or arrays; the others are added to `left_out` with a reason.

    wide   names of the columns with more than one axis
    """
    for name in _other_precisions(wide):
        left_out[name] = "packed bits" if name.split(".")[-1].strip("[]") in PACKED else "the same at less precision"
    wide = [name for name in wide if name not in left_out]
    if content.is_table and len(wide) > 1:
        named = [name for name in wide if CALLED_VECTORS.fullmatch(name.lower())]
        for name in wide if named else []:
            if name not in named:
                left_out[name] = "lists as well as a column named vector"
        wide = named or wide
    if not wide:
        cure = "ask the service for embeddings of float, or unpack them: numpy.unpackbits"
        raise CorpusError(f"vectors of numbers in {file}", "packed bits only", cure)
    if not content.is_table:
        _check_arrays(content, wide, left_out, file)
        wide = [name for name in wide if name not in left_out]
    shapes = {content.columns[name].shape[-1] for name in wide}
    whole = [name for name in wide if _kind(content.columns[name]) != "f"]
    if content.is_table and (len(shapes) > 1 or 0 < len(whole) < len(wide)):
        kinds = [f"{name} ({content.columns[name].shape[-1]} {_kind_of(content.columns[name])})" for name in wide]
        raise _refuse_two_readings(file, f"{' and '.join(kinds)} may be layers or different things", wide[:1])
    for name in wide:
        values = content.columns[name]
        if values.ndim == 2 and (suspect := _suspects(list(_first_rows(values).T))):
            column, why = suspect
            others = [str(place) for place in range(values.shape[1]) if place != column]
            got = f"column {column} of {name!r} {why}: a dimension, or an id or a class"
            raise _refuse_two_readings(file, got, [name] if content.is_table else others, array=not content.is_table)
    return {name: (name,) for name in wide}


def _check_arrays(content: Content, wide: list[str], left_out: dict[str, str], file: str) -> None:
    """Raise CorpusError for arrays that are weights of a model, or not layers of the same vectors.

    wide       names of the arrays with more than one axis
    left_out   receives the arrays that are left out, with a reason
    """
    weights = [name for name in wide if name.endswith((".weight", ".bias")) or ".weight_" in name]
    if weights:
        cure = "name the folder of the checkpoint with its config.json; or one array of it, as --columns " + weights[0]
        raise CorpusError(f"vectors in {file}", f"weights of a model, such as {weights[0]}", cure)
    ahead = {name: tuple(content.columns[name].shape[:-1]) for name in wide}
    if len(set(ahead.values())) > 1:
        got = ", ".join(f"{name} {list(content.columns[name].shape)}" for name in wide[:SHOWN])
        got += " …" * (len(wide) > SHOWN)
        raise CorpusError(f"arrays of the same vectors in {file}", got, f"name those to measure: --columns {wide[0]}")
    narrow = [name for name in wide if content.columns[name].shape[-1] == 1]
    if narrow and len(narrow) < len(wide):
        left_out.update(dict.fromkeys(narrow, "one number a row"))


def _other_precisions(names: list[str]) -> list[str]:
    """Return the columns that repeat another at lower precision, as names differing only in that show."""
    ranked: dict[str, list[tuple[int, str]]] = {}
    others = []
    for name in names:
        head, _, last = name.removesuffix("[]").rpartition(".")
        if last in PRECISIONS:
            ranked.setdefault(head, []).append((PRECISIONS.index(last), name))
    for found in ranked.values():
        others += [name for _, name in sorted(found)[1:]]
        first = min(found)[1]
        if first.removesuffix("[]").rpartition(".")[2] in PACKED:
            others.append(first)
    return others


def _decide_numbers(
    content: Content, names: list[str], left_out: dict[str, str], file: str
) -> dict[str, tuple[str, ...]]:
    """Return {the one layer: the columns of numbers that are its dimensions}; others are added to `left_out` with a
    reason.

    names   the columns of numbers

    CorpusError if it is unclear which columns belong to the vector.
    """
    numbers = [name for name in names if content.columns[name].ndim == 1]
    if not content.is_table:
        raise _refuse_no_vectors(content, file)
    if not content.named and len(numbers) > 2 and _counts_rows(content.columns[numbers[0]]):
        rest = [content.columns[name] for name in numbers[1:]]
        if not all(map(_is_whole, rest)):
            left_out[numbers[0]] = "it counts the rows"
            numbers = numbers[1:]
    series = _numbered_series(numbers) if content.named else []
    others = [name for name in numbers if name not in series]
    if series and others:
        if len(series) < MOST * len(numbers):
            got = f"{compress_names(series)} may be the vector, or {compress_names(numbers)}"
            raise _refuse_two_readings(file, got, series)
        left_out.update(dict.fromkeys(others, "as well as the numbered columns"))
        numbers = series
    if not numbers or (len(numbers) == 1 and left_out):  # a single number beside others is hardly a vector
        raise _refuse_no_vectors(content, file)
    suspect = _suspects([content.columns[name] for name in numbers])
    if suspect:
        place, why = suspect
        got = f"the column {numbers[place]!r} {why}: a dimension, or an id or a class"
        raise _refuse_two_readings(file, got, [name for name in numbers if name != numbers[place]])
    return {Path(file).stem: tuple(numbers)}


def _numbered_series(names: list[str]) -> list[str]:
    """Return the columns with the most common name followed by a number (`dim_0`, `dim_1` …).

    Empty if there is only one.
    """
    series: dict[str, list[str]] = {}
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match is not None:
            series.setdefault(match[1], []).append(name)
    longest = max(series.values(), key=len, default=[])
    return longest if len(longest) > 1 else []


def _suspects(columns: Sequence[NDArray[Any]]) -> tuple[int, str] | None:
    """Return (position, reason) of the first column that may be an id, an index or a class among dimensions; or None.

    Suspicious are whole numbers, not all equal, among columns of decimals, and a count of the rows.
    """
    whole = [_is_whole(values) for values in columns]
    if not all(whole):
        for place, values in enumerate(columns):
            if whole[place] and len(np.unique(values)) > 1:
                why = "counts the rows" if _counts_rows(values) else "holds whole numbers among decimals"
                return place, why
        return None
    for place, values in enumerate(columns):
        if len(columns) > 1 and _counts_rows(values):
            return place, "counts the rows"
    return None


def _is_whole(values: NDArray[Any]) -> bool:
    """Return whether all finite numbers of a column are whole."""
    if values.dtype.kind in "iu":
        return True
    finite = values[np.isfinite(values)].astype(np.float64)
    return bool(len(finite)) and bool((finite == np.rint(finite)).all())


def _counts_rows(values: NDArray[Any]) -> bool:
    """Return whether a column of at least three rows counts 0, 1, 2 … or 1, 2, 3 …"""
    if len(values) < 3 or values[0] not in (0, 1):
        return False
    return bool(np.array_equal(values, np.arange(len(values)) + values[0]))


def _own_name(name: str) -> str:
    """Return the last part of a dotted name in lower case: `label` of `metadata.Label`."""
    return name.rpartition(".")[2].strip().lower()


def _kind(values: Any) -> str:
    """Return the kind of an array's or tensor's numbers by numpy's letter (f, i, u, b, c, O …)."""
    if isinstance(values.dtype, np.dtype):
        return str(values.dtype.kind)
    if values.dtype.is_floating_point:
        return "f"
    if values.dtype.is_complex:
        return "c"
    return "b" if str(values.dtype) == "torch.bool" else "i"


def _first_rows(values: Any) -> NDArray[Any]:
    """Return the first rows of an array or a tensor as a numpy array."""
    rows = values[:LOOKED]
    if isinstance(rows, np.ndarray):
        return np.asarray(rows)
    return np.asarray(rows.float() if _kind(rows) == "f" else rows)


def _is_numeric(values: Any) -> bool:
    """Return whether an array or tensor holds real numbers."""
    return _kind(values) in "fiu"


def _is_wide(values: Any) -> bool:
    """Return whether an array holds numbers with more than one axis."""
    return values.ndim > 1 and _is_numeric(values)


def _kind_of(values: Any) -> str:
    """Name the kind of numbers: `decimals` or `whole numbers`."""
    return "decimals" if _kind(values) == "f" else "whole numbers"


# ---- what is said ----------------------------------------------------------------------------------------------------


def _refuse_two_readings(file: str, got: str, likely: Sequence[str], *, array: bool = False) -> CorpusError:
    """Make the error for a file whose columns can be read in two ways. The caller raises it.

    got      what was found, in words
    likely   columns to suggest
    array    whether it is an array that can be read in two ways, rather than columns
    """
    what = "array" if array else "columns"
    cure = f"say which columns are the vector, for instance --columns {quote_for_shell(to_spec(likely))}"
    return CorpusError(f"one way to read the {what} of {file}", f"two: {got}", cure)


def _refuse_no_vectors(content: Content, file: str) -> CorpusError:
    """Make the error for a file without vectors, listing what it holds. The caller raises it."""
    seen = [f"{name} ({_what_is(values)})" for name, values in list(content.columns.items())[:SHOWN]]
    seen += [f"{name} ({reason})" for name, reason in list(content.unusable.items())[:SHOWN]]
    more = len(content.columns) + len(content.unusable) - len(seen)
    got = (", ".join(seen) or "nothing") + (f" and {more} more" if more > 0 else "")
    kind = "columns of numbers, or a column of lists," if content.is_table else "arrays [vector, dim]"
    cure = "name the columns with --columns; a file of texts is measured with a model: MODEL --corpus FILE"
    return CorpusError(f"{kind} in {file}", got, cure)


def _bad_cell(values: Any, first_line: int) -> str:
    """Return the first text in a column that mostly holds numbers, and its row or line, in words; empty if there is
    none.

    first_line   line number of the first row; 0 if rows are not lines
    """
    if _kind(values) not in "OUST" or values.ndim != 1:
        return ""
    bad, numbers = "", 0
    for row, value in enumerate(values[:LOOKED]):
        try:
            float(value)
            numbers += 1
        except (TypeError, ValueError):
            place = f"line {first_line + row}" if first_line else f"row {row + 1}"
            bad = bad or f"{str(value)[:40]!r} in {place}"
    return bad if 2 * numbers > min(LOOKED, len(values)) else ""


def _what_is(values: Any) -> str:
    """Describe a column in words: its kind of numbers and shape, or `text`."""
    if values.ndim > 1:
        return f"{_kind_of(values)} {list(values.shape)}"
    return _kind_of(values) if _is_numeric(values) else "text"


def compress_names(names: Sequence[str]) -> str:
    """Write names in few words: consecutive numbers as `dim_0–dim_7`, many others as the first few and a count."""
    runs: list[list[str]] = []
    for name in names:
        before = NUMBERED.fullmatch(runs[-1][-1]) if runs else None
        match = NUMBERED.fullmatch(name)
        if before and match and (before[1], int(before[2]) + 1) == (match[1], int(match[2])):
            runs[-1].append(name)
        else:
            runs.append([name])
    return list_names([run[0] if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs])


def list_names(names: Sequence[str]) -> str:
    """Join names with commas; of many only the first ones and how many more there are."""
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])} and {len(names) - SHOWN + 1} more"


def to_spec(names: Sequence[str]) -> str:
    """Return a value of `--columns` that stands for these names: `0-7`, `dim_*`, or the names with commas."""
    match = NUMBERED.fullmatch(names[0]) if names else None
    parts = [NUMBERED.fullmatch(name) for name in names]
    if match and len(names) > 1 and all(part and part[1] == match[1] for part in parts):
        places = [int(part[2]) for part in parts if part]
        if places == list(range(places[0], places[0] + len(places))):
            return f"{names[0]}-{names[-1]}"
        return f"{match[1]}*" if match[1] else ",".join(names)
    return ",".join(names[:SHOWN]) + (",…" if len(names) > SHOWN else "")


def quote_for_shell(text: str) -> str:
    """Quote a value for a shell if it holds special characters."""
    return f"'{text}'" if set(text) & set(" *?()[]") else text
