"""Build the tables of the command line: a run layer by layer, classes, a series, lists of names."""

import ast
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.cli.view import Table
from anisoscope.registry import list_added, list_entries_of
from anisoscope.runs.findings import has_enough_pairs, of_sentences_if_any
from anisoscope.runs.short_tables import ENDS, SHORT, A, pivot_by_layer, select_layers
from anisoscope.store import select
from anisoscope.wording import format_interval, format_measured, format_short, iter_rows

WIDE = {
    "mean_cosine": "A",
    "mean_cosine.between": "A between",
    "mean_cosine.isotropic_q95": "q95",
    "spectrum.cosine_square": "d·E[cos²]",
    "calibrated.pairs_above_q95": "pairs > q95",
    "calibrated.centred": "A centred",
    "drift.share": "drift share",
    "intra_sequence": "within seq.",
    "mean_cosine.top_share": "top-3 share",
    "spectrum.effective_rank": "effective rank",
}
"""Columns of the wide table of a run, of which those are shown that were measured."""
MOST_COLUMNS = 24
"""Components that are shown side by side."""
OF_CLASSES = {
    "class_direction.auc": "AUC",
    "class_direction.nearest": "nearest is own",
    "class_direction.dimensions": "dimensions",
    "mean_cosine": "A",
    "intra_sequence": "within utterance",
    "cls_entropy": "H of [CLS]",
}
"""Columns of the table of classes: is the direction the class?"""


def _label_rows(index: Any) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the columns that name a layer (with its stack, if there are several), and the first cells of each row."""
    stacked = index.get_level_values("stack").nunique() > 1
    rows = [[str(stack)] * stacked + ["final" if site == "final" else str(layer)] for *_, stack, layer, site in index]
    return (*(("stack",) * stacked), "layer"), rows


def tabulate_layers(records: Any, *, wide: bool = False) -> Table:
    """Tabulate the hidden states of a run under its first token policy: A with its verdict; `wide` adds every other
    column.
    """
    found, behind = pivot_by_layer(records, WIDE if wide else SHORT)
    metrics = [m for m in (WIDE if wide else SHORT) if not wide or found.get((m, "value"), pd.Series()).notna().any()]
    places, rows = _label_rows(found.index)
    for row, cells in zip(rows, found.to_dict("records"), strict=True):
        ranges = {m: format_interval(*(cells.get((m, end), nan) for end in ENDS)) for m in metrics}
        verdict = str(cells["verdict", ""] or "")
        values = [format_short(cells.get((m, "value"), nan), 2) for m in metrics if m != A]
        row += [verdict, *ranges.values()] if wide else [ranges[A], verdict, *values]
    head = ["verdict", *(WIDE[m] for m in metrics)] if wide else ["A", "verdict", *list(SHORT.values())[1:]]
    return Table((*places, *head), rows, behind)


OF_ATTENTION = {
    "attention.entropy_normalised": "entropy",
    "attention.first_mass": "first token",
    "attention.row_max": "largest weight",
    "attention.row_similarity": "rows alike",
    "query_key.cosine": "|cos q,k|",
    "centred_attention.query_rise": "centred rise",
    "score_terms.mean_query_share": "drift share",
}
"""Columns of the table of attention, of which those are shown that were measured."""


def tabulate_attention(
    records: Any, replicates: Any = None, *, heads: bool = False, wide: bool = False
) -> Table | None:
    """Tabulate attention layer by layer (means over heads) or head by head: the entropy (1: uniform) with its
    interval, then where attention goes, what queries and keys have in common, and the kinds of heads. None if
    attention was not measured.

    replicates   of each record its value without each group of units: what intervals of means over heads are made of
    wide         every value with its interval
    """
    from anisoscope.runs.attention import RULES, attention_heads, attention_layers, attention_table

    behind = attention_heads(records) if heads else attention_layers(records, replicates)
    table = attention_table(records, heads=heads, replicates=replicates)
    if not len(table):
        return None
    keys = [key for key in ("stack", "kind") if table[key].nunique() > 1] + ["layer"] + ["head"] * heads
    left_out = () if wide or heads else ("attention.row_similarity",)
    names = {}
    for metric, label in OF_ATTENTION.items():
        if metric in set(behind["metric"]) and metric not in left_out:
            names[metric] = label
    if heads:
        names = {metric: label.strip("|") for metric, label in names.items()}
    by_place: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in iter_rows(behind):
        by_place.setdefault(tuple(str(getattr(row, key)) for key in keys), {})[row.metric] = row
    rows = []
    for line in iter_rows(table.rename(columns=lambda name: name.replace(" ", "_").replace("-", "_"))):
        place = [str(getattr(line, key)) for key in keys]
        found = by_place[tuple(place)]
        cells = []
        for metric in names:
            with_ends = wide or metric == "attention.entropy_normalised"
            row = found.get(metric)
            cells.append("–" if row is None else format_measured(row) if with_ends else format_short(row.value))
        kinds = line.kind_of_head if heads else _list_head_kinds(line, RULES)
        rows.append([*place, *cells, kinds])
    return Table((*keys, *names.values(), "kind" if heads else "kinds"), rows, behind)


def _list_head_kinds(line: Any, rules: Any) -> str:
    """List the kinds of heads of a layer, `3 sink, 1 one-hot`; empty if every head is ordinary."""
    parts = []
    for rule in rules:
        count = getattr(line, f"{rule.name}_heads".replace("-", "_"))
        if count:
            parts.append(f"{count} {rule.name}")
    return ", ".join(parts)


def tabulate_other_head_metrics(records: Any, replicates: Any = None) -> Table | None:
    """Tabulate metrics of heads that the table of attention does not show, as means over heads, layer by layer.

    None if there are none.
    """
    from anisoscope.runs.layers_of_heads import average_heads

    records = records.reset_index(drop=True)
    rows = records[records["head"].notna() & records["component"].isna() & ~records["metric"].isin([*OF_ATTENTION])]
    rows = rows[~rows["metric"].str.startswith(("sinks.", "logits.")).fillna(False).astype(bool)]
    if not len(rows):
        return None
    means, _ = average_heads(rows, None if replicates is None else replicates[rows.index.to_numpy()])
    named = means.assign(metric=means["metric"] + means["site"].map(_name_stage).fillna(""))
    stacked = ["stack"] if means["stack"].nunique() > 1 else []
    return _pivot(named, [*stacked, "layer"], {name: name for name in named["metric"].unique()}, "stack")


def _name_stage(site: Any) -> str:
    """Return ` (rotated)` for a stage of queries and keys that is not their first; else nothing."""
    stage = str(site).partition(".")[2]
    return f" ({stage})" if stage and stage != "raw" else ""


BESIDE_HIDDEN = ("floor", "neighbours", "modality_gap")
"""Metrics that are measured on request, and have a table of their own beside that of hidden states."""


def tabulate_beside_hidden(records: Any) -> list[Table]:
    """Build a table for each of `BESIDE_HIDDEN` that was measured, its columns without the metric's name."""
    found = []
    for name in BESIDE_HIDDEN:
        rows = records[records["metric"].str.startswith(f"{name}.").fillna(False).astype(bool)]
        if name == "floor":  # of few vectors the finding says that they are too few
            rows = of_sentences_if_any(rows)
            enough = map(has_enough_pairs, rows["n_vectors"].astype(float), rows["n_units"].astype(float))
            rows = rows[list(enough)]
        found += tabulate_named_metrics(rows) if len(rows) else []
    return found


def tabulate_named_metrics(records: Any) -> list[Table]:
    """Tabulate metrics that were named: their values layer by layer, with intervals; metrics with components get a
    table each.
    """
    behind = select_layers(records)
    rows = behind.assign(layer=behind["layer"].astype("string").where(behind["site"].ne("final"), "final"))
    if rows["stack"].nunique() > 1:
        rows["layer"] = rows["stack"].str.cat(rows["layer"], " ")
    whole = rows["component"].isna()
    tables = []
    if whole.any():
        names = list(rows["metric"][whole].unique())
        shown = _pivot(rows[whole], ["layer"], {name: name for name in names})
        tables.append(Table(_shorten(shown.head, names), shown.rows, behind[whole]))
    for name, part in rows[~whole].groupby("metric", sort=False):
        components = {component: component for component in part["component"].unique()}
        if len(components) <= MOST_COLUMNS:  # more, as one for every dimension, are in the records alone
            shown = _pivot(part.assign(metric=part["component"]), ["layer"], components)
            tables.append(Table((str(name), *shown.head[1:]), shown.rows, behind.loc[part.index]))
    return tables


def _shorten(head: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Return a head of a table without the name of the metric, if all columns are of one; it stands before the first.

    names   of the values in the columns
    """
    (first, *more) = {name.partition(".")[0] for name in names}
    if more or len(names) < 2 or any("." not in name for name in names):
        return head
    return (f"{first.replace('_', ' ')}: {head[0]}", *(label.removeprefix(f"{first}.") for label in head[1:]))


def tabulate_classes(records: Any) -> list[Table]:
    """Tabulate the results of `anisoscope classes` layer by layer: what ablated attention and attributions give,
    and accuracy.
    """
    rows = select(records, metric=tuple(OF_CLASSES), component=[None, "row"], head=None, token_policy=[None, "all"])
    rows = rows[rows["layer"].notna() & rows["site"].ne("final").fillna(True)]
    tables = [_pivot(rows, ["layer"], OF_CLASSES)]
    for prefix, label in (("replaced.", "attention replaced"), ("explains.", "words explained by")):
        part = records[records["metric"].str.startswith(prefix).fillna(False)]
        if len(part):
            names = {name: name.removeprefix(prefix) for name in dict.fromkeys(part["metric"])}
            part = part.assign(layer=part["layer"].astype("string").fillna("all"))
            tables.append(_pivot(part, ["component", "layer"], names, label))
    whole = select(records, metric=("accuracy", "majority"), component=None)
    if len(whole):
        cells = [[str(row.metric), format_measured(row), f"{row.n_units:,}"] for row in iter_rows(whole)]
        tables.append(Table(("of the classifier", "", "examples"), cells, whole))
    return tables


def _pivot(rows: Any, index: list[str], names: dict[str, str], label: str = "") -> Table:
    """Return a table with a row for every place and a column for every metric."""
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in iter_rows(rows):
        cells.setdefault(tuple(str(getattr(row, name)) for name in index), {}).setdefault(
            row.metric, format_measured(row)
        )
    there = [name for name in names if any(name in found for found in cells.values())]
    head = (*([label] * (len(index) - 1)), "layer", *(names[name] for name in there))
    return Table(head, [[*place, *(found.get(name, "") for name in there)] for place, found in cells.items()], rows)


def tabulate_series(records: Any, policy: str) -> Table:
    """Tabulate A of every checkpoint layer by layer (without hidden states: the mean entropy of attention)."""
    rows = select(records, metric="mean_cosine", site="hidden", component=None, token_policy=policy)
    name = "A"
    if not len(rows):
        rows, name = select(records, metric="attention.entropy", component=None, kind="self"), "H (nats)"
    stacked = rows["stack"].nunique() > 1
    layer = rows["layer"].astype("string")
    rows = rows.assign(place=rows["stack"].str.cat(layer, " ") if stacked else layer)
    table = rows.pivot_table(index=["seed", "step"], columns="place", values="value", aggfunc="mean", sort=False)
    cells = [
        [str(seed), f"{step:,}", *(format_short(x) for x in row)]
        for (seed, step), row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return Table(("seed", "step", *(f"{name} {place}" for place in table.columns)), cells, rows.drop(columns="place"))


def list_entries(what: str) -> Table:
    """Return (name, one line of description) of all metrics, models, corpora, or of what another package lists."""
    if what == "metrics":
        sources = sorted(Path(__file__).parents[1].joinpath("metrics").glob("*.py"))  # to import them takes seconds
        docs = {path.stem: ast.get_docstring(ast.parse(path.read_bytes())) or "" for path in sources}
        docs = {name: doc for name, doc in docs.items() if name not in ("__init__", "base")}
        docs |= {name: metric.documentation for name, metric in list_added("metrics").items()}
        rows = [(name, " ".join(doc.split("\n\n")[0].split())) for name, doc in docs.items()]
    elif what == "models":
        from anisoscope.models.named import converted_models, named_models, packaged_models

        rows = [("builtin:minilm", "all-MiniLM-L6-v2, 6 layers, packaged; no download; the default")]
        rows += [(name, f"{p.description}, packaged ({p.install})") for name, p in packaged_models().items()]
        rows += [(name, f"{p.description}, packaged ({p.install})") for name, p in converted_models().items()]
        for name, preset in named_models().items():
            rows.append((name, f"{preset.hub_id} ({'; '.join(filter(None, (preset.modality, preset.note)))})"))
    elif what == "corpora":
        from anisoscope.data.corpora import list_corpora

        rows = [(name, f"{corpus.modality}: {corpus.description}") for name, corpus in list_corpora().items()]
    else:
        rows = list_entries_of("listings")[what]()
    return Table((what, ""), rows, pd.DataFrame(rows, columns=["name", "description"]))
