"""Build the tables of extremes that the command line prints: massive activations, sinks and logits."""

from collections.abc import Mapping
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
    "at first": "first token",
    "strongest key": "strongest",
    "mass on first": "mass there",
    "mass on last": "last",
    "mass on special": "special",
    "mass on punctuation": "on marks",
    "value norm": "value norm",
    "longest query": "longest q",
    "longest key": "longest k",
}
"""Columns of the table of sinks, before the logits."""
ON_REQUEST = ("strongest key", "mass on last", "mass on special", "longest query", "longest key")
"""Those of them that are shown if every column is asked for."""


def tabulate_extremes(
    records: Any, replicates: Any, words: Mapping[str, str], *, heads: bool = False, wide: bool = False
) -> list[Table]:
    """Tabulate largest activations layer by layer, then sinks and logits by layer, or by head.

    Empty if none were measured.
    """
    found = [_tabulate_activations(records, words), _tabulate_sinks(records, replicates, heads=heads, wide=wide)]
    return [table for table in found if table is not None]


def _tabulate_activations(records: Any, words: Mapping[str, str]) -> Table | None:
    """Tabulate the largest |x| of every layer and where it is, kurtosis and matrix entropy."""
    from anisoscope.runs.extremes import activations_table, extreme_rows

    table = activations_table(records)
    if not len(table):
        return None
    stacked = table["stack"].nunique() > 1
    there = [name for name in OF_ACTIVATIONS if name in table]
    rows = []
    for line in table.to_dict("records"):
        place = "final" if line["site"] == "final" else str(line["layer"])
        cells = []
        for name in there:
            value = line[name]
            if name == "position":
                word = words.get(str(line.get("token", "")), "")
                cells.append(f"{word} ({value})".strip())
            elif name in ("dimension", "kurtosis dimension"):
                cells.append(str(value))
            else:
                cells.append(format_short(value))
        rows.append([*([str(line["stack"])] if stacked else []), place, *cells])
    behind = extreme_rows(records)
    labels = (OF_ACTIVATIONS[name] for name in there)
    return Table((*(("stack",) * stacked), "layer", *labels), rows, behind[behind["head"].isna()])


def _tabulate_sinks(records: Any, replicates: Any, *, heads: bool, wide: bool) -> Table | None:
    """Tabulate how often heads have sinks, what the first token and punctuation get, values of sinks, and logits."""
    from anisoscope.runs.extremes import sink_rows, sinks_table

    table = sinks_table(records, heads=heads, replicates=replicates)
    if not len(table):
        return None
    behind = sink_rows(records, heads=heads, replicates=replicates)
    keys = [key for key in ("stack", "kind") if table[key].nunique() > 1] + ["layer"] + ["head"] * heads
    names = [name for name in OF_SINKS if name in table and (wide or name not in ON_REQUEST)]
    has_logits = "largest logit" in table
    by_place: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in iter_rows(behind):
        by_place.setdefault(tuple(str(getattr(row, key)) for key in keys), {})[row.label] = row
    rows = []
    for place, found in by_place.items():
        cells = []
        for name in names:
            row = found.get(name)
            with_ends = wide or name == "sink rate"
            cells.append("–" if row is None else format_measured(row) if with_ends else format_short(row.value))
        if has_logits:
            ends = (found.get(name) for name in ("smallest logit", "largest logit"))
            cells.append("…".join("–" if row is None else format_short(row.value, 1) for row in ends))
        rows.append([*place, *cells])
    labels = [OF_SINKS[name] for name in names] + ["logits"] * has_logits
    return Table((*keys, *labels), rows, behind.drop(columns="label"))
