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
INPUTS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "special_tokens_mask",
    "offset_mapping",
)
"""What a tokenizer gives: lists of numbers that are no vectors."""
PACKED = ("binary", "ubinary")
PRECISIONS = ("float", "float32", "float16", "int8", "uint8", *PACKED)
"""Names of the same embeddings at different precisions, the one to measure first; the packed ones are bits."""
# Also "unnamed: 0" and "level_0", as pandas calls an index that has no name.
IS_ID = re.compile(
    r"(id|ids|idx|index|uuid|guid|key|row|rows|row_?num(ber)?|no|nr|number|unnamed: \d+|level_\d+)"
    r"|.*[_ .-](id|idx|index|key|uuid)|(id|index)[_ .-].*"
)
OTHERS = {
    *(
        "label",
        "labels",
        "class",
        "classes",
        "target",
        "unit",
        "units",
        "split",
        "fold",
        "group",
        "cluster",
    ),
    *(
        "weight",
        "score",
        "similarity",
        "distance",
        "probability",
        "prob",
        "rank",
        "rating",
        "stars",
    ),
    *(
        "length",
        "len",
        "size",
        "count",
        "counts",
        "n_tokens",
        "tokens",
        "token_count",
        "page",
        "position",
        "offset",
    ),
    *(
        "year",
        "month",
        "day",
        "date",
        "time",
        "timestamp",
        "start",
        "end",
        "layer",
        "step",
        "seed",
        "line",
    ),
}
"""Names of numbers that say something about a vector and are no part of it."""
CALLED_VECTORS = re.compile(
    r"(^|.*[_ .\[\]-])(emb|embs|embedding|embeddings|vector|vectors|vec|vecs)(\[\])?$"
)
# What is before a number, and the number: dim_3, x[3].
NUMBERED = re.compile(r"(.*?)(\d+)[\])]?")
MOST = 0.75  # share of the columns of numbers from which numbered ones are the vector
LOOKED = 1000  # rows of an array that are looked at for columns that are no dimensions
SHOWN = 6  # names that a line shows
KINDS = {
    "f": "decimals",
    "i": "whole numbers",
    "u": "whole numbers",
    "b": "yes or no",
    "c": "complex numbers",
}
"""What the kinds of an array that numpy gives letters are called; all others are text."""


@dataclass
class Content:
    """What a file holds, before it is decided which columns are vectors.

    columns      name → [row] numbers or text, or numbers [row, dim] or [row, token, dim]
    masks        name → [row, token]: which tokens are real, for a column of sequences of different lengths
    unusable     name → why a column cannot be vectors
    index        columns that the format itself marks as row numbers
    named        whether the names are the file's own; else columns are named by their position, from 0
    is_table     whether rows are records with columns; else the file holds several arrays
    notes        what was read and what was skipped, in words: `header in line 1`
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
    places            which dimensions of a single array [row, dim] are the vector; None: all
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
    # Before anything else: what is used as units, labels or mask is no vector, whatever
    # it holds.
    units = _find_side_column(content, unit_column, UNITS)
    labels = _find_side_column(content, label_column, LABELS)
    mask = None
    # a table has a row for each vector: a column called mask is one of its numbers
    if not content.is_table:
        mask = _find_side_column(content, None, MASK)
    # What has a role already is no part of a vector.
    taken = {name for name in (units, labels, mask) if name is not None}
    places = None
    left_out: dict[str, str] = {}
    # What the user names is not judged by the rules.
    if columns is not None:
        layers, places = _choose(content, columns, file, taken)
        for name in content.columns:
            if name not in taken:
                left_out[name] = "not in --columns"
    else:
        left_out = _identify_others(content, taken, file)
        layers = _decide_layers(content, taken, left_out, file)
    left_out = _complete_left_out(content, left_out, layers, taken)
    return Roles(layers, places, units, labels, mask, left_out)


def _complete_left_out(
    content: Content,
    left_out: Mapping[str, str],
    layers: Mapping[str, tuple[str, ...]],
    taken: Iterable[str],
) -> dict[str, str]:
    """Return {column: what it was taken for} for every column that is not used.

    left_out   what is known already; it may name columns of layers, which are not returned
    layers     {layer: the columns of its vectors}
    taken      columns of units, labels and mask
    """
    reasons = dict(left_out)
    for name, reason in content.unusable.items():
        reasons.setdefault(name, reason)
    for name in content.columns:
        if name not in taken:
            reasons.setdefault(name, "one number a row")
    # A dimension is one number a row too, but it is used.
    for names in layers.values():
        for name in names:
            reasons.pop(name, None)
    return reasons


def _decide_layers(
    content: Content, taken: Iterable[str], left_out: dict[str, str], file: str
) -> dict[str, tuple[str, ...]]:
    """Decide by the rules of this module which columns are vectors, and return {layer: its columns}.

    taken      columns of units, labels and mask
    left_out   receives {column that the rules leave out: what it was taken for}
    file       its name, for errors
    """
    candidates = [
        name for name in content.columns if name not in left_out and name not in taken
    ]
    wide = [name for name in candidates if _is_wide(content.columns[name])]
    # Numbers next to a column of lists describe its vectors: an id, a score.
    if wide:
        return _decide_lists(content, wide, left_out, file)
    return _decide_numbers(content, candidates, left_out, file)


def describe_roles(
    content: Content, roles: Roles, file: str, shape: Sequence[int]
) -> str:
    """Say in one line what a file was read as: vectors, units, labels, what was left out, and the header."""
    count, dim = shape[0], shape[-1]
    things = f"{count:,} vectors"
    if len(shape) == 3:
        things = f"{count:,} sequences of up to {shape[1]:,} vectors"
    parts = [
        f"{file}: {things} of {dim:,} numbers, {_describe_columns(content, roles)}"
    ]
    for role, name in (
        ("units", roles.units),
        ("labels", roles.labels),
        ("mask", roles.mask),
    ):
        if name is not None:
            parts.append(f"{role}: {name}")
    if roles.left_out:
        parts.append(f"left out: {', '.join(_describe_left_out(roles.left_out))}")
    return "; ".join([*parts, *content.notes])


def _describe_columns(content: Content, roles: Roles) -> str:
    """Say which columns, arrays or layers the vectors are: `columns dim_0–dim_7`."""
    if roles.places is not None:
        return f"columns {compress_names(list(map(str, roles.places)))}"
    if len(roles.layers) > 1:
        return f"{len(roles.layers)} layers {list_names(list(roles.layers))}"
    names = next(iter(roles.layers.values()))
    noun = "column" if content.is_table else "array"
    plural = "s" if len(names) > 1 else ""
    return f"{noun}{plural} {compress_names(list(names))}"


def _describe_left_out(left_out: Mapping[str, str]) -> list[str]:
    """Say what was left out, a phrase for each reason: `id, year (by its name)`."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    phrases = []
    for reason, names in by_reason.items():
        if names == [reason]:
            # "row numbers (row numbers)" would say it twice
            phrases.append(reason)
        else:
            phrases.append(f"{compress_names(names)} ({reason})")
    return phrases


# ---- what is asked for -----------------------------------------------------------------------------------------------


def _find_side_column(
    content: Content, named: str | None, known: Sequence[str]
) -> str | None:
    """Return the column of units or labels: the one that the user named, else the first with a usual name.

    None if there is none. CorpusError if the one that the user named is missing.

    named   by the user; None: not named
    known   names that such columns usually have
    """
    if named is None:
        for name in content.columns:
            # `metadata.label` counts as well.
            if _strip_prefixes(name) in known:
                return name
        return None
    if named not in content.columns:
        names = [*content.columns, *content.unusable]
        raise CorpusError(
            "a column or an array of the file", repr(named), suggest_names(named, names)
        )
    return named


def _choose(
    content: Content, columns: str, file: str, taken: Iterable[str]
) -> tuple[dict[str, tuple[str, ...]], tuple[int, ...] | None]:
    """Return the vectors that the user named with `--columns`: ({layer: its columns}, dimensions or None).

    If the file holds a single array [row, dim], the names may be dimensions of it; they are returned then.

    columns   as the user wrote it
    taken     columns of units and labels, which cannot be vectors

    CorpusError for a column of text or one that is unusable.
    """
    matrix = _find_only_matrix(content, taken)
    if matrix is None:
        # Unusable columns can be named, so that the error says what is wrong with them.
        chosen = select_names(columns, [*content.columns, *content.unusable], file)
    else:
        try:
            # Numbers mean dimensions here, not places in the list of arrays.
            chosen = select_names(columns, list(content.columns), file, by_place=False)
        except CorpusError:
            # no array has this name: the numbers may be dimensions of the only one
            width = content.columns[matrix].shape[1]
            places = select_names(columns, list(map(str, range(width))), file)
            return {matrix: (matrix,)}, tuple(map(int, places))
    _require_numbers(content, chosen, file)
    wide, narrow = [], []
    for name in chosen:
        if _is_wide(content.columns[name]):
            wide.append(name)
        else:
            narrow.append(name)
    if wide and narrow:
        got = f"{wide[0]!r} (lists) and {narrow[0]!r} (one number a row)"
        raise CorpusError(
            "columns of lists or columns of numbers in --columns",
            got,
            "name columns of one kind",
        )
    if wide:
        return {name: (name,) for name in wide}, None
    return {Path(file).stem: tuple(chosen)}, None


def _find_only_matrix(content: Content, taken: Iterable[str]) -> str | None:
    """Return the name of a file's array [row, dim], if it holds no other array with several axes; else None.

    taken   columns of units and labels, which do not count
    """
    if content.is_table:
        return None
    arrays = []
    for name, values in content.columns.items():
        if _is_wide(values) and name not in taken:
            arrays.append(name)
    if len(arrays) != 1 or np.ndim(content.columns[arrays[0]]) != 2:
        return None
    return arrays[0]


def _require_numbers(content: Content, names: Sequence[str], file: str) -> None:
    """Raise CorpusError for a column that holds text or that is unusable."""
    for name in names:
        reason = content.unusable.get(name)
        if not reason and not _is_numeric(content.columns[name]):
            reason = "text"
        if reason:
            raise CorpusError(
                f"numbers in the column {name!r} of {file}",
                reason,
                "leave it out of --columns",
            )


def select_names(
    spec: str, names: Sequence[str], file: str = "the file", *, by_place: bool = True
) -> list[str]:
    """Return the names of columns that a user's specification means, in the order of the file.

    It has parts with commas between them (`0-7`, `dim_*`, `dim_0-dim_7`, `embedding,mean`). Each part is tried as an
    exact name, then a pattern with * or ?, then a range of names or of the numbers they end with, then positions
    counted from 0. CorpusError for a part that matches nothing.

    spec       the specification
    names      all names to choose from, in the order of the file
    by_place   positions are allowed
    """
    parts = [part.strip() for part in spec.split(",") if part.strip()]
    if not parts:
        raise UsageError(
            "names, patterns or numbers of columns for --columns",
            repr(spec),
            "for example --columns 0-7, or --columns 'dim_*'",
        )
    chosen: set[str] = set()
    for part in parts:
        found = _match_names(part, names, by_place)
        if not found:
            raise _refuse_unknown_part(part, names, file)
        chosen.update(found)
    return [name for name in names if name in chosen]


def _refuse_unknown_part(part: str, names: Sequence[str], file: str) -> CorpusError:
    """Make the error for a part of `--columns` that matches no name. The caller raises it."""
    if re.fullmatch(r"\d+(-\d+)?", part):
        cure = f"columns are numbered from 0 to {len(names) - 1}"
    elif len(names) < 50:
        cure = suggest_names(part, names)
    else:  # among hundreds of dimensions nearly every one is similar
        cure = "check the names"
    return CorpusError(
        f"a column of {file} for --columns {part}",
        f"columns {compress_names(list(names))}",
        cure,
    )


def _match_names(part: str, names: Sequence[str], by_place: bool) -> list[str]:
    """Return the names of columns that one part of a specification (`dim_*`, `0-7`) means; empty if none.

    by_place   positions are allowed
    """
    # Tried first: names may hold stars and dashes themselves.
    if part in names:
        return [part]
    if set(part) & set("*?"):
        return [name for name in names if fnmatchcase(name, part)]
    by_name = _match_range_of_names(part, names)
    if by_name is not None:
        return by_name
    if by_place:
        return _match_places(part, names)
    return []


def _match_range_of_names(part: str, names: Sequence[str]) -> list[str] | None:
    """Return the names from one to another that `part` joins with a dash: `dim_0-dim_7`; None if it joins no names."""
    # names may hold dashes themselves: every one is tried as the dash of a range
    for match in re.finditer("-", part):
        first, last = part[: match.start()], part[match.end() :]
        if first in names and last in names:
            begin, end = names.index(first), names.index(last)
            return list(names[begin : end + 1])
    return None


def _match_places(part: str, names: Sequence[str]) -> list[str]:
    """Return the names at a position, or from one position to another (`3`, `0-7`); empty if some are not there."""
    range_of_places = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
    if range_of_places is None:
        return []
    first = int(range_of_places[1])
    last = int(range_of_places[2] or first)
    # Not the ones that are there: a place too far is a slip.
    if last >= len(names):
        return []
    return list(names[first : last + 1])


# ---- what is decided by rules ----------------------------------------------------------------------------------------


def _identify_others(
    content: Content, taken: Iterable[str], file: str
) -> dict[str, str]:
    """Return {column that cannot be part of a vector: what it was taken for (id, text, row numbers …)}.

    taken   columns of units and labels

    CorpusError for a text among the numbers of a column.
    """
    left_out: dict[str, str] = {}
    for name in content.columns:
        if name in taken:
            continue
        reason = _identify_other(content, name, file)
        if reason:
            left_out[name] = reason
    return left_out


def _identify_other(content: Content, name: str, file: str) -> str:
    """Return what a column is if it cannot be part of a vector; empty if it can."""
    values = content.columns[name]
    # The format's own word goes before any guess.
    if name in content.index:
        return "row numbers"
    if not _is_numeric(values):
        # a column called id may hold `1, 2, 3a`: a text is an error only where numbers are expected
        if not _identify_by_name(name):
            _require_no_bad_cell(content, name, file)
        return _describe_kind(values)
    if _strip_prefixes(name) in INPUTS:
        return "a tokenizer's output"
    # without a header names are places, and say nothing
    if content.named and not _is_wide(values):
        return _identify_by_name(name)
    return ""


def _require_no_bad_cell(content: Content, name: str, file: str) -> None:
    """Raise CorpusError, with the row or line, for a text in a column that mostly holds numbers."""
    bad = _find_bad_cell(content.columns[name], content.first_line)
    if bad:
        raise CorpusError(
            f"a number in every row of the column {name!r} of {file}",
            bad,
            "correct the cell",
        )


def _find_bad_cell(values: Any, first_line: int) -> str:
    """Find the first text in a column that mostly holds numbers, and say what it is and in which row or line.

    Empty if there is no such text.

    first_line   line number of the first row; 0 if rows are not lines
    """
    # Numpy's letters for objects and texts.
    if _get_kind(values) not in "OUST" or values.ndim != 1:
        return ""
    first_bad = None
    n_numbers = 0
    for row, value in enumerate(values[:LOOKED]):
        try:
            float(value)
            n_numbers += 1
        except (TypeError, ValueError):
            if first_bad is None:
                first_bad = row
    # a column of texts may hold a few numbers: it is meant as text
    if first_bad is None or 2 * n_numbers <= min(LOOKED, len(values)):
        return ""
    place = f"row {first_bad + 1}"
    if first_line:
        place = f"line {first_line + first_bad}"
    return f"{str(values[first_bad])[:40]!r} in {place}"


def _identify_by_name(name: str) -> str:
    """Say what a column is, if its name shows that it is no dimension; empty otherwise."""
    own = _strip_prefixes(name)
    if IS_ID.fullmatch(own):
        return "an id, by its name"
    if own in OTHERS:
        return "by its name"
    return ""


def _decide_lists(
    content: Content, wide: list[str], left_out: dict[str, str], file: str
) -> dict[str, tuple[str, ...]]:
    """Decide which columns of lists or arrays are vectors, and return {layer: its columns}.

    wide       names of the columns with more than one axis
    left_out   receives {column that is left out: the reason}
    """
    wide = _leave_out_precisions(wide, left_out)
    if not wide:
        cure = (
            "ask the service for embeddings of float, or unpack them: numpy.unpackbits"
        )
        raise CorpusError(f"vectors of numbers in {file}", "packed bits only", cure)
    # A row of a table has one vector as a rule. Several columns of lists are layers
    # only if they are alike.
    if content.is_table:
        wide = _prefer_named_vectors(wide, left_out)
        _require_alike(content, wide, file)
    else:
        _check_arrays(content, wide, file)
        wide = _leave_out_narrow(content, wide, left_out)
    for name in wide:
        _require_dimensions_only(content, name, file)
    return {name: (name,) for name in wide}


def _leave_out_precisions(wide: list[str], left_out: dict[str, str]) -> list[str]:
    """Drop columns that repeat another at lower precision (`int8`, `binary`), and return the others.

    wide       names of columns of lists or arrays
    left_out   receives {column that is dropped: the reason}
    """
    repeated = _find_lower_precisions(wide)
    for name in repeated:
        if _split_precision(name)[1] in PACKED:
            left_out[name] = "packed bits"
        else:
            left_out[name] = "the same at less precision"
    return [name for name in wide if name not in repeated]


def _prefer_named_vectors(wide: list[str], left_out: dict[str, str]) -> list[str]:
    """Return the columns called vector or embedding, or all if none is called so.

    wide       names of columns of lists or arrays
    left_out   receives {column that is dropped: the reason}
    """
    named = [name for name in wide if CALLED_VECTORS.fullmatch(name.lower())]
    if not named:
        return wide
    for name in wide:
        if name not in named:
            left_out[name] = "lists as well as a column named vector"
    return named


def _require_alike(content: Content, wide: list[str], file: str) -> None:
    """Raise CorpusError if columns of lists differ in width or kind: then they are hardly layers."""
    widths, kinds, described = set(), set(), []
    for name in wide:
        values = content.columns[name]
        width, kind = values.shape[-1], _describe_kind(values)
        widths.add(width)
        kinds.add(kind)
        described.append(f"{name} ({width} {kind})")
    if len(widths) > 1 or len(kinds) > 1:
        got = f"{' and '.join(described)} may be layers or different things"
        raise _refuse_two_readings(file, got, wide[:1])


def _require_dimensions_only(content: Content, name: str, file: str) -> None:
    """Raise CorpusError if one column of an array [row, dim] may be an id or a class among the dimensions."""
    values = content.columns[name]
    if values.ndim != 2:
        return
    suspect = _find_suspect(list(_get_first_rows(values).T))
    if suspect is None:
        return
    column, why = suspect
    got = f"column {column} of {name!r} {why}: a dimension, or an id or a class"
    if content.is_table:
        raise _refuse_two_readings(file, got, [name])
    others = [str(place) for place in range(values.shape[1]) if place != column]
    raise _refuse_two_readings(file, got, others, array=True)


def _check_arrays(content: Content, wide: list[str], file: str) -> None:
    """Raise CorpusError for arrays that are weights of a model, or not layers of the same vectors.

    wide   names of the arrays with more than one axis
    """
    for name in wide:
        # A number or a letter follows in recurrent layers and in normalised weights.
        if name.endswith((".weight", ".bias")) or ".weight_" in name:
            cure = f"name the folder of the checkpoint with its config.json; or one array of it, as --columns {name}"
            raise CorpusError(
                f"vectors in {file}", f"weights of a model, such as {name}", cure
            )
    shapes = {name: tuple(content.columns[name].shape) for name in wide}
    # layers of the same vectors may differ in their last axis, never in the others
    shapes_of_vectors = {shape[:-1] for shape in shapes.values()}
    if len(shapes_of_vectors) > 1:
        named = [f"{name} {list(shapes[name])}" for name in wide[:SHOWN]]
        got = ", ".join(named)
        if len(wide) > SHOWN:
            got += " …"
        raise CorpusError(
            f"arrays of the same vectors in {file}",
            got,
            f"name those to measure: --columns {wide[0]}",
        )


def _leave_out_narrow(
    content: Content, wide: list[str], left_out: dict[str, str]
) -> list[str]:
    """Drop arrays whose vectors have a single dimension, and return the others; all if every array is so.

    wide       names of arrays with more than one axis
    left_out   receives {array that is dropped: the reason}
    """
    narrow = [name for name in wide if content.columns[name].shape[-1] == 1]
    if len(narrow) == len(wide):
        return wide
    left_out.update(dict.fromkeys(narrow, "one number a row"))
    return [name for name in wide if name not in narrow]


def _find_lower_precisions(names: list[str]) -> list[str]:
    """Return the columns whose names say that they repeat another at lower precision (`a.int8` next to `a.float`)."""
    ranked: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        head, precision = _split_precision(name)
        if precision in PRECISIONS:
            ranked.setdefault(head, []).append((PRECISIONS.index(precision), name))
    others = []
    for found in ranked.values():
        # The most precise is kept.
        first, *rest = [name for _, name in sorted(found)]
        others += rest
        # bits are no vector even if nothing else is there
        if _split_precision(first)[1] in PACKED:
            others.append(first)
    return others


def _split_precision(name: str) -> tuple[str, str]:
    """Split off the last part of a dotted name, which may be a precision: `embeddings.int8[]` → embeddings, int8."""
    head, _, last = name.removesuffix("[]").rpartition(".")
    return head, last


def _decide_numbers(
    content: Content, names: list[str], left_out: dict[str, str], file: str
) -> dict[str, tuple[str, ...]]:
    """Decide which columns of single numbers are the dimensions of the vector, and return {layer: these columns}.

    names      the columns of numbers
    left_out   receives {column that is left out: the reason}
    file       its name, without the ending that of the layer

    CorpusError if it is unclear which columns belong to the vector.
    """
    if not content.is_table:
        raise _refuse_no_vectors(content, file)
    numbers = [name for name in names if content.columns[name].ndim == 1]
    if content.named:
        numbers = _prefer_numbered(numbers, left_out, file)
    # Without names, only that it counts rows shows that a column is no dimension.
    elif _begins_with_row_numbers(content, numbers):
        left_out[numbers[0]] = "it counts the rows"
        numbers = numbers[1:]
    # a single number beside others is hardly a vector
    is_only_a_number = len(numbers) == 1 and bool(left_out)
    if not numbers or is_only_a_number:
        raise _refuse_no_vectors(content, file)
    _require_no_suspect(content, numbers, file)
    return {Path(file).stem: tuple(numbers)}


def _require_no_suspect(content: Content, numbers: list[str], file: str) -> None:
    """Raise CorpusError if one of the columns of numbers may be an id or a class among the dimensions."""
    suspect = _find_suspect([content.columns[name] for name in numbers])
    if suspect is None:
        return
    place, why = suspect
    got = f"the column {numbers[place]!r} {why}: a dimension, or an id or a class"
    # suggest the vector without it: of the two readings that is the likely one
    likely = [*numbers[:place], *numbers[place + 1 :]]
    raise _refuse_two_readings(file, got, likely)


def _begins_with_row_numbers(content: Content, numbers: list[str]) -> bool:
    """Return whether the first of several columns counts the rows and others hold decimals."""
    # without the first, at least two columns must be left to be a vector
    if len(numbers) < 3 or not _counts_rows(content.columns[numbers[0]]):
        return False
    return not all(_is_whole(content.columns[name]) for name in numbers[1:])


def _prefer_numbered(
    numbers: list[str], left_out: dict[str, str], file: str
) -> list[str]:
    """Return the numbered columns of one name (dim_0, dim_1 …), or all columns of numbers if there are none.

    numbers    the columns of numbers
    left_out   receives {column that is dropped: the reason}

    CorpusError if the numbered ones are fewer than three quarters of the columns.
    """
    series = _find_numbered(numbers)
    others = [name for name in numbers if name not in series]
    if not series or not others:
        return numbers
    if len(series) < MOST * len(numbers):
        got = (
            f"{compress_names(series)} may be the vector, or {compress_names(numbers)}"
        )
        raise _refuse_two_readings(file, got, series)
    left_out.update(dict.fromkeys(others, "as well as the numbered columns"))
    return series


def _find_numbered(names: list[str]) -> list[str]:
    """Return the columns with the most common name followed by a number (`dim_0`, `dim_1` …).

    Empty if there is only one.
    """
    series: dict[str, list[str]] = {}
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match is not None:
            series.setdefault(match[1], []).append(name)
    longest = max(series.values(), key=len, default=[])
    if len(longest) < 2:
        return []
    return longest


def _find_suspect(columns: Sequence[NDArray[Any]]) -> tuple[int, str] | None:
    """Return (position, reason) of the first column that may be an id, an index or a class among dimensions; or None.

    Suspicious are whole numbers, not all equal, among columns of decimals, and a count of the rows.
    """
    are_whole = [_is_whole(values) for values in columns]
    all_whole = all(are_whole)
    for place, values in enumerate(columns):
        if not are_whole[place] or len(columns) == 1:
            continue
        if _counts_rows(values):
            return place, "counts the rows"
        # a dimension that is constant, as of a dead unit, is whole by chance
        if not all_whole and len(np.unique(values)) > 1:
            return place, "holds whole numbers among decimals"
    return None


def _is_whole(values: NDArray[Any]) -> bool:
    """Return whether all finite numbers of a column are whole."""
    if values.dtype.kind in "iu":
        return True
    # Missing numbers say nothing.
    finite = values[np.isfinite(values)].astype(np.float64)
    return bool(len(finite)) and bool((finite == np.rint(finite)).all())


def _counts_rows(values: NDArray[Any]) -> bool:
    """Return whether a column of at least three rows counts 0, 1, 2 … or 1, 2, 3 …"""
    if len(values) < 3 or values[0] not in (0, 1):
        return False
    return bool(np.array_equal(values, np.arange(len(values)) + values[0]))


def _strip_prefixes(name: str) -> str:
    """Return the last part of a dotted name in lower case: `label` of `metadata.Label`."""
    return name.rpartition(".")[2].strip().lower()


def _get_kind(values: Any) -> str:
    """Return the kind of an array's or tensor's numbers by numpy's letter (f, i, u, b, c, O …)."""
    if isinstance(values.dtype, np.dtype):
        return str(values.dtype.kind)
    # A dtype of PyTorch has no letter.
    if values.dtype.is_floating_point:
        return "f"
    if values.dtype.is_complex:
        return "c"
    if str(values.dtype) == "torch.bool":
        return "b"
    return "i"


def _get_first_rows(values: Any) -> NDArray[Any]:
    """Return the first rows of an array or a tensor as a numpy array, enough to judge it by."""
    rows = values[:LOOKED]
    if not isinstance(rows, np.ndarray) and _get_kind(rows) == "f":
        # numpy has no bfloat16
        rows = rows.float()
    return np.asarray(rows)


def _is_numeric(values: Any) -> bool:
    """Return whether an array or tensor holds real numbers."""
    return _get_kind(values) in "fiu"


def _is_wide(values: Any) -> bool:
    """Return whether an array holds numbers with more than one axis."""
    return values.ndim > 1 and _is_numeric(values)


def _describe_kind(values: Any) -> str:
    """Name what an array or tensor holds: `decimals`, `whole numbers`, `yes or no`, `complex numbers` or `text`."""
    return KINDS.get(_get_kind(values), "text")


# ---- what is said ----------------------------------------------------------------------------------------------------


def _refuse_two_readings(
    file: str, got: str, likely: Sequence[str], *, array: bool = False
) -> CorpusError:
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
    seen = []
    for name, values in list(content.columns.items())[:SHOWN]:
        seen.append(f"{name} ({_describe_column(values)})")
    for name, reason in list(content.unusable.items())[:SHOWN]:
        seen.append(f"{name} ({reason})")
    got = ", ".join(seen) or "nothing"
    more = len(content.columns) + len(content.unusable) - len(seen)
    if more > 0:
        got += f" and {more} more"
    kind = "arrays [vector, dim]"
    if content.is_table:
        kind = "columns of numbers, or a column of lists,"
    cure = "name the columns with --columns; a file of texts is measured with a model: MODEL --corpus FILE"
    return CorpusError(f"{kind} in {file}", got, cure)


def _describe_column(values: Any) -> str:
    """Describe a column in words: what it holds, and its shape if it has several axes."""
    if values.ndim > 1:
        return f"{_describe_kind(values)} {list(values.shape)}"
    return _describe_kind(values)


def compress_names(names: Sequence[str]) -> str:
    """Write many names in short: consecutive numbers as `dim_0–dim_7`, many others as the first few and a count."""
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(name, runs[-1][-1]):
            runs[-1].append(name)
        else:
            runs.append([name])
    phrases = []
    for run in runs:
        if len(run) == 1:
            phrases.append(run[0])
        else:
            phrases.append(f"{run[0]}–{run[-1]}")
    return list_names(phrases)


def _follows(name: str, before: str) -> bool:
    """Return whether a name is another one (`before`) with its last number raised by one: dim_4 after dim_3."""
    match, match_before = NUMBERED.fullmatch(name), NUMBERED.fullmatch(before)
    if match is None or match_before is None:
        return False
    return match[1] == match_before[1] and int(match[2]) == int(match_before[2]) + 1


def list_names(names: Sequence[str]) -> str:
    """Join names with commas; of many only the first ones and how many more there are."""
    if len(names) <= SHOWN:
        return ", ".join(names)
    return f"{', '.join(names[: SHOWN - 1])} and {len(names) - SHOWN + 1} more"


def to_spec(names: Sequence[str]) -> str:
    """Return a value of `--columns` that stands for these names: `0-7`, `dim_*`, or the names with commas."""
    numbered = _split_numbered(names)
    if numbered is None or len(names) < 2:
        more = ",…" if len(names) > SHOWN else ""
        return ",".join(names[:SHOWN]) + more
    head, places = numbered
    if places == list(range(places[0], places[0] + len(places))):
        return f"{names[0]}-{names[-1]}"
    # of bare numbers the pattern would be `*`, which means every column
    if not head:
        return ",".join(names)
    return f"{head}*"


def _split_numbered(names: Sequence[str]) -> tuple[str, list[int]] | None:
    """Return (what all names begin with, the number that each ends with); None if they are not numbered alike."""
    heads: set[str] = set()
    places = []
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match is None:
            return None
        heads.add(match[1])
        places.append(int(match[2]))
    if len(heads) != 1:
        return None
    return heads.pop(), places


def quote_for_shell(text: str) -> str:
    """Quote a value for a shell if it holds special characters."""
    if set(text) & set(" *?()[]"):
        return f"'{text}'"
    return text
