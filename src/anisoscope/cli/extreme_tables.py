"""Build the tables of extremes that the command line prints: massive activations, sinks and logits."""

from collections.abc import Mapping, Sequence
from typing import Any

from anisoscope.cli.view import Table
from anisoscope.wording import format_measured, format_short, iter_rows

OF_ACTIVATIONS = {
    "largest": "largest |x|",
    "dimension": "dim.",
    "position": "token (position)",
    "medians": "medians",
    "massive": "massive",
    "kurtosis": "kurtosis",
    "kurtosis dimension": "dim.",
    "matrix entropy": "matrix entropy",
}
"""Columns of the table of activations; of its token the position is always known, the text sometimes."""
OF_SINKS = {
    "sink rate": "sink rate",
    "at first": "rate at first",
    "strongest key": "strongest",
    "mass on first": "mass on first",
    "mass on last": "on last",
    "mass on special": "on special",
    "mass on punctuation": "on punct.",
    "value norm": "value norm",
    "longest query": "longest q",
    "longest key": "longest k",
}
"""Columns of the table of sinks, before the logits."""
ON_REQUEST = (
    "strongest key",
    "mass on last",
    "mass on special",
    "longest query",
    "longest key",
)
"""Those of them that are shown if every column is asked for."""


def tabulate_extremes(
    records: Any,
    replicates: Any,
    words: Mapping[str, str],
    *,
    heads: bool = False,
    wide: bool = False,
) -> list[Table]:
    """Build the tables of largest activations (by layer), and of attention sinks and logits (by layer or head).

    Empty if none of these were measured.

    replicates   of each record its value without each group of units, from which intervals of means over heads follow
    words        {token id: its text}
    heads        sinks and logits head by head; else means over the heads of a layer
    wide         with every column, and intervals
    """
    of_activations = _tabulate_activations(records, words)
    of_sinks = _tabulate_sinks(records, replicates, heads=heads, wide=wide)
    return [table for table in (of_activations, of_sinks) if table is not None]


def _tabulate_activations(records: Any, words: Mapping[str, str]) -> Table | None:
    """Tabulate for every layer its largest |x| with dimension and token, kurtosis and matrix entropy.

    None if these were not measured.

    words   {token id: its text}
    """
    from anisoscope.runs.extremes import activations_table, extreme_rows

    table = activations_table(records)
    if not len(table):
        return None
    several_stacks = table["stack"].nunique() > 1
    names = [name for name in OF_ACTIVATIONS if name in table]
    head = ["layer", *(OF_ACTIVATIONS[name] for name in names)]
    if several_stacks:
        head.insert(0, "stack")
    rows = []
    for line in table.to_dict("records"):
        cells = []
        if several_stacks:
            cells.append(str(line["stack"]))
        # The output after the final norm has the number of the last layer in the
        # records.
        cells.append("final" if line["site"] == "final" else str(line["layer"]))
        cells += [_format_activation(name, line, words) for name in names]
        rows.append(cells)
    # Rows of heads belong to the other table.
    behind = extreme_rows(records)
    return Table(tuple(head), rows, behind[behind["head"].isna()])


def _format_activation(
    name: str, line: Mapping[Any, Any], words: Mapping[str, str]
) -> str:
    """Format one cell of the table of activations: a dimension, a token with its position, or a value.

    name    what the cell holds, a key of `OF_ACTIVATIONS`
    line    the layer's values by name
    words   {token id: its text}
    """
    value = line[name]
    if name == "position":
        word = words.get(str(line.get("token", "")), "")
        return f"{word} ({value})".strip()
    if name in ("dimension", "kurtosis dimension"):
        return str(value)
    return format_short(value)


def _tabulate_sinks(
    records: Any, replicates: Any, *, heads: bool, wide: bool
) -> Table | None:
    """Tabulate attention sinks: how often heads have one, how much weight special positions get, and attention logits.

    None if these were not measured.

    replicates   of each record its value without each group of units, from which intervals of means over heads follow
    heads        head by head; else means over the heads of a layer
    wide         with every column, and intervals
    """
    from anisoscope.runs.extremes import sink_rows, sinks_table

    table = sinks_table(records, heads=heads, replicates=replicates)
    if not len(table):
        return None
    behind = sink_rows(records, heads=heads, replicates=replicates)
    keys = _choose_keys(table, heads)
    names = _choose_sink_columns(table, wide)
    labels = [OF_SINKS[name] for name in names]
    # Both ends of the logits share one column, to save width.
    has_logits = "largest logit" in table
    if has_logits:
        labels.append("logits")
    rows = []
    for place, values in _group_by_place(behind, keys).items():
        cells = [*place]
        for name in names:
            # The sink rate is what is compared: it always has its interval.
            with_interval = wide or name == "sink rate"
            cells.append(_format_sink_value(values.get(name), with_interval))
        if has_logits:
            cells.append(_format_logit_range(values))
        rows.append(cells)
    return Table((*keys, *labels), rows, behind.drop(columns="label"))


def _choose_keys(table: Any, heads: bool) -> list[str]:
    """Return the columns that name the place of a row: layer, head, and what else tells rows apart.

    heads   whether a row is one head, rather than the mean over the heads of a layer
    """
    # A key that is the same in every row would only take width.
    keys = [key for key in ("stack", "kind") if table[key].nunique() > 1]
    keys.append("layer")
    if heads:
        keys.append("head")
    return keys


def _choose_sink_columns(table: Any, wide: bool) -> list[str]:
    """Return the names of the measured columns of sinks that are shown; with `wide` all of them."""
    measured = [name for name in OF_SINKS if name in table]
    if wide:
        return measured
    return [name for name in measured if name not in ON_REQUEST]


def _group_by_place(
    records: Any, keys: Sequence[str]
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Group records by layer or head: {values of the columns `keys`: {label: record}}, in the order of the records."""
    by_place: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in iter_rows(records):
        place = tuple(str(getattr(row, key)) for key in keys)
        by_place.setdefault(place, {})[row.label] = row
    return by_place


def _format_sink_value(row: Any, with_interval: bool) -> str:
    """Format a measured value, with its interval if asked for; a dash if it is missing."""
    if row is None:
        return "–"
    return format_measured(row) if with_interval else format_short(row.value)


def _format_logit_range(values: Mapping[str, Any]) -> str:
    """Format the smallest and the largest attention logit, such as `−3.1…7.2`; a dash for a missing one."""
    ends = []
    for name in ("smallest logit", "largest logit"):
        row = values.get(name)
        ends.append("–" if row is None else format_short(row.value, 1))
    return "…".join(ends)
