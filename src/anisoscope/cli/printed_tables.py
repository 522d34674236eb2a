"""Build the tables of the command line: a run layer by layer, classes, a series, lists of names."""

import ast
from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.cli.view import Table
from anisoscope.registry import list_added, list_entries_of
from anisoscope.runs.findings import has_enough_pairs, select_text_vectors_if_any
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
    """Return the headings of the columns that name a layer, and their cells for each row.

    The columns are `layer`, after `stack` if there are several.

    index   of a table with a row for each layer, as `pivot_by_layer` returns it
    """
    several_stacks = index.get_level_values("stack").nunique() > 1
    rows = []
    # A series has step and seed before these.
    for *_, stack, layer, site in index:
        cells = [str(stack)] if several_stacks else []
        cells.append("final" if site == "final" else str(layer))
        rows.append(cells)
    return ("stack", "layer") if several_stacks else ("layer",), rows


def tabulate_layers(records: Any, *, wide: bool = False) -> Table:
    """Tabulate the hidden states of a run layer by layer: the anisotropy A, its verdict, and a few other metrics.

    Only the first token policy of the run (which tokens count) is shown.

    wide   every metric of `WIDE`, with its interval
    """
    values, behind = pivot_by_layer(records, WIDE if wide else SHORT)
    columns, rows = _label_rows(values.index)
    add_cells = _add_wide_cells if wide else _add_short_cells
    head = add_cells(rows, values)
    return Table((*columns, *head), rows, behind)


def _add_wide_cells(rows: list[list[str]], values: pd.DataFrame) -> list[str]:
    """Add to each row of a wide table the verdict and every measured metric of `WIDE`. Return their headings.

    values   what `pivot_by_layer` returns, a row for each of `rows`
    """
    metrics = []
    for metric in WIDE:
        measured = values.get((metric, "value"), pd.Series())
        if measured.notna().any():
            metrics.append(metric)
    for row, cells in zip(rows, values.to_dict("records"), strict=True):
        row.append(_get_verdict(cells))
        row += [_format_ends(cells, metric) for metric in metrics]
    return ["verdict", *(WIDE[metric] for metric in metrics)]


def _add_short_cells(rows: list[list[str]], values: pd.DataFrame) -> list[str]:
    """Add to each row of a short table A with its interval, the verdict, and a few others. Return their headings.

    values   what `pivot_by_layer` returns, a row for each of `rows`
    """
    others = {metric: label for metric, label in SHORT.items() if metric != A}
    for row, cells in zip(rows, values.to_dict("records"), strict=True):
        row.append(_format_ends(cells, A))
        row.append(_get_verdict(cells))
        # Two digits and no intervals, so that a terminal of 80 columns holds the table.
        row += [format_short(cells.get((metric, "value"), nan), 2) for metric in others]
    return ["A", "verdict", *others.values()]


def _get_verdict(cells: Any) -> str:
    """Return the verdict in a row of `pivot_by_layer`; empty if there is none."""
    return str(cells["verdict", ""] or "")


def _format_ends(cells: Any, metric: str) -> str:
    """Format the value of a metric with its interval, from a row of `pivot_by_layer`."""
    # A metric that was not measured has no column at all: NaN is shown as a dash.
    return format_interval(*(cells.get((metric, end), nan) for end in ENDS))


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
    """Tabulate attention by layer or head: its normalised entropy (1: uniform), where it goes, and the kinds of heads.

    None if attention was not measured.

    replicates   of each record its value without each group of units, from which intervals of means over heads follow
    heads        head by head; else means over the heads of a layer
    wide         every value with its interval; else the entropy alone
    """
    from anisoscope.runs.attention import (
        RULES,
        attention_heads,
        attention_layers,
        attention_table,
    )

    table = attention_table(records, heads=heads, replicates=replicates)
    if not len(table):
        return None
    # A key that is the same in every row would only take width.
    keys = [key for key in ("stack", "kind") if table[key].nunique() > 1]
    keys.append("layer")
    if heads:
        keys.append("head")
        behind = attention_heads(records)
    else:
        behind = attention_layers(records, replicates)
    names = _choose_attention_columns(set(behind["metric"]), heads=heads, wide=wide)
    by_place = _group_by_place(behind, keys)
    # Column names become attributes of a row.
    table = table.rename(columns=lambda name: name.replace(" ", "_").replace("-", "_"))
    rows = []
    for line in iter_rows(table):
        place = _read_place(line, keys)
        cells = [*place]
        for metric in names:
            # The terminal is narrow: by default only the entropy, which is compared most, has its interval.
            with_interval = wide or metric == "attention.entropy_normalised"
            cells.append(
                _format_measured_or_dash(by_place[place].get(metric), with_interval)
            )
        cells.append(line.kind_of_head if heads else _list_head_kinds(line, RULES))
        rows.append(cells)
    head = (*keys, *names.values(), "kind" if heads else "kinds")
    return Table(head, rows, behind)


def _read_place(row: Any, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the values of the key columns of a row (stack, layer, head …) as texts."""
    return tuple(str(getattr(row, key)) for key in keys)


def _group_by_place(
    records: Any, keys: Sequence[str]
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Group records by layer or head: {values of the columns `keys`: {metric: record}}."""
    # The table is put together from records, which have intervals; the rows of `table`
    # give order and kinds.
    by_place: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in iter_rows(records):
        by_place.setdefault(_read_place(row, keys), {})[row.metric] = row
    return by_place


def _choose_attention_columns(
    measured: set[str], *, heads: bool, wide: bool
) -> dict[str, str]:
    """Return {metric: heading} of the columns of the table of attention.

    measured   names of the metrics that were measured; others get no column
    heads      the table is by head, rather than by layer
    wide       with every column
    """
    names = {
        metric: label for metric, label in OF_ATTENTION.items() if metric in measured
    }
    # To save width: the narrow table of layers has the kinds of heads as well.
    if not (wide or heads):
        names.pop("attention.row_similarity", None)
    # Of one head the cosine is shown with its sign, of a layer the mean of absolute values.
    if heads:
        names = {metric: label.strip("|") for metric, label in names.items()}
    return names


def _format_measured_or_dash(row: Any, with_interval: bool) -> str:
    """Format a measured value, with its interval if asked for; a dash if it is missing."""
    if row is None:
        return "–"
    return format_measured(row) if with_interval else format_short(row.value)


def _list_head_kinds(line: Any, rules: Any) -> str:
    """List the kinds of heads of a layer, `3 sink, 1 one-hot`; empty if every head is ordinary."""
    parts = []
    for rule in rules:
        # Names with a dash (one-hot) have an underscore since columns became attributes.
        count = getattr(line, f"{rule.name}_heads".replace("-", "_"))
        if count:
            parts.append(f"{count} {rule.name}")
    return ", ".join(parts)


def tabulate_other_head_metrics(records: Any, replicates: Any = None) -> Table | None:
    """Tabulate metrics of heads that the table of attention does not show, as means over the heads of each layer.

    None if there are none.

    replicates   of each record its value without each group of units, from which intervals of means over heads follow
    """
    from anisoscope.runs.layers_of_heads import average_heads

    # Rows are numbered as in `replicates`, whatever index a selection left them.
    records = records.reset_index(drop=True)
    rows = records[
        records["head"].notna()
        & records["component"].isna()
        & ~records["metric"].isin([*OF_ATTENTION])
    ]
    # Sinks and logits have a table of their own.
    in_other_table = (
        rows["metric"].str.startswith(("sinks.", "logits.")).fillna(False).astype(bool)
    )
    rows = rows[~in_other_table]
    if not len(rows):
        return None
    of_rows = None if replicates is None else replicates[rows.index.to_numpy()]
    means, _ = average_heads(rows, of_rows)
    stages = means["site"].map(_name_stage).fillna("")
    # Queries are measured at several stages, which would overwrite each other under one
    # name.
    named = means.assign(metric=means["metric"] + stages)
    keys = ["stack", "layer"] if means["stack"].nunique() > 1 else ["layer"]
    return _pivot(
        named, keys, {name: name for name in named["metric"].unique()}, "stack"
    )


def _name_stage(site: Any) -> str:
    """Return how a metric's name is completed: ` (rotated)` for queries and keys after rotation; empty for raw ones.

    site   the place in the model, such as `query.rotated`
    """
    stage = str(site).partition(".")[2]
    return "" if stage in ("", "raw") else f" ({stage})"


OPT_IN_METRICS = ("floor", "neighbours", "modality_gap")
"""Metrics that are measured on request, and have a table of their own next to that of hidden states."""


def tabulate_opt_in_metrics(records: Any) -> list[Table]:
    """Build a table for each of the metrics `floor`, `neighbours` and `modality_gap` that was measured."""
    tables = []
    for name in OPT_IN_METRICS:
        rows = records[
            records["metric"].str.startswith(f"{name}.").fillna(False).astype(bool)
        ]
        # Of too few vectors the noise floor says nothing; a finding says that they are too few.
        if name == "floor":
            rows = select_text_vectors_if_any(rows)
            enough = map(
                has_enough_pairs,
                rows["n_vectors"].astype(float),
                rows["n_units"].astype(float),
            )
            rows = rows[list(enough)]
        if len(rows):
            tables += tabulate_named_metrics(rows)
    return tables


def tabulate_named_metrics(records: Any) -> list[Table]:
    """Tabulate metrics that the user named: their values layer by layer, with intervals.

    A metric with components (classes, dimensions) gets a table of its own, with a column for each.
    """
    behind = select_layers(records)
    layer = behind["layer"].astype("string").where(behind["site"].ne("final"), "final")
    rows = behind.assign(layer=layer)
    if rows["stack"].nunique() > 1:
        rows["layer"] = rows["stack"].str.cat(rows["layer"], " ")
    # Values with components (one for each class or dimension) cannot share rows with
    # plain ones.
    is_whole = rows["component"].isna()
    tables = []
    if is_whole.any():
        names = list(rows["metric"][is_whole].unique())
        pivoted = _pivot(rows[is_whole], ["layer"], {name: name for name in names})
        tables.append(
            Table(_shorten_head(pivoted.head, names), pivoted.rows, behind[is_whole])
        )
    for name, part in rows[~is_whole].groupby("metric", sort=False):
        components = {component: component for component in part["component"].unique()}
        # A column for each of hundreds of dimensions fits no terminal; the records have them.
        if len(components) > MOST_COLUMNS:
            continue
        pivoted = _pivot(part.assign(metric=part["component"]), ["layer"], components)
        tables.append(
            Table((str(name), *pivoted.head[1:]), pivoted.rows, behind.loc[part.index])
        )
    return tables


def _shorten_head(head: tuple[str, ...], names: list[str]) -> tuple[str, ...]:
    """Shorten the headings of a table whose columns are all of one metric: its name goes before the first heading.

    head    the headings, the first that of the layer; returned unchanged if there are several metrics
    names   of the values in the columns, such as `floor.q95`
    """
    metrics = {name.partition(".")[0] for name in names}
    are_parts = all("." in name for name in names)
    if len(metrics) > 1 or len(names) < 2 or not are_parts:
        return head
    metric = metrics.pop()
    labels = [label.removeprefix(f"{metric}.") for label in head[1:]]
    return (f"{metric.replace('_', ' ')}: {head[0]}", *labels)


def tabulate_classes(records: Any) -> list[Table]:
    """Build the tables that `anisoscope classes` prints from the records of a classifier.

    They show, layer by layer: how well directions separate the classes; what changes if attention weights are
    replaced; how well each attribution (a number for every word) explains the decisions. The last one has the accuracy.
    """
    rows = select(
        records,
        metric=tuple(OF_CLASSES),
        component=[None, "row"],
        head=None,
        token_policy=[None, "all"],
    )
    rows = rows[rows["layer"].notna() & rows["site"].ne("final").fillna(True)]
    tables = [_pivot(rows, ["layer"], OF_CLASSES)]
    for prefix, label in (
        ("ablation.", "attention replaced"),
        ("attribution.", "words explained by"),
    ):
        part = records[records["metric"].str.startswith(prefix).fillna(False)]
        if not len(part):
            continue
        names = {}
        for name in part["metric"]:
            names[name] = name.removeprefix(prefix)
        # Attributions explain the decision of the whole model, and belong to no layer.
        part = part.assign(layer=part["layer"].astype("string").fillna("all"))
        tables.append(_pivot(part, ["component", "layer"], names, label))
    whole = select(records, metric=("accuracy", "majority"), component=None)
    if len(whole):
        cells = []
        for row in iter_rows(whole):
            cells.append([str(row.metric), format_measured(row), f"{row.n_units:,}"])
        tables.append(Table(("of the classifier", "", "examples"), cells, whole))
    return tables


def _pivot(
    records: Any, index: list[str], names: dict[str, str], label: str = ""
) -> Table:
    """Turn records (a row for each value) into a table with a row for every layer and a column for every metric.

    index   columns of the records that name a row: the layer, and before it stack or component if there are several
    names   {metric: its heading}; metrics that were not measured get no column
    label   heading of the columns before the layer
    """
    by_place: dict[tuple[str, ...], dict[str, str]] = {}
    for record in iter_rows(records):
        place = tuple(str(getattr(record, name)) for name in index)
        # Of several records of a metric at one place the first is shown.
        by_place.setdefault(place, {}).setdefault(
            record.metric, format_measured(record)
        )
    measured = {metric for cells in by_place.values() for metric in cells}
    metrics = [metric for metric in names if metric in measured]
    rows = []
    for place, cells in by_place.items():
        rows.append([*place, *(cells.get(metric, "") for metric in metrics)])
    # `label` heads the column of the component or of the stack, which comes before that
    # of the layer.
    before_layer = [label] * (len(index) - 1)
    headings = [names[metric] for metric in metrics]
    return Table((*before_layer, "layer", *headings), rows, records)


def tabulate_series(records: Any, policy: str) -> Table:
    """Tabulate the anisotropy A of every checkpoint of a series: a row for each checkpoint, a column for each layer.

    If hidden states were not measured, the mean entropy of attention is shown instead.

    policy   the token policy (which tokens count) whose A is shown
    """
    rows = select(
        records,
        metric="mean_cosine",
        site="hidden",
        component=None,
        token_policy=policy,
    )
    name = "A"
    if not len(rows):
        rows = select(records, metric="attention.entropy", component=None, kind="self")
        name = "H (nats)"
    place = rows["layer"].astype("string")
    if rows["stack"].nunique() > 1:
        place = rows["stack"].str.cat(place, " ")
    rows = rows.assign(place=place)
    # Entropy is by head, so a layer shows its mean over heads; A has one value, which
    # the mean leaves as it is.
    table = rows.pivot_table(
        index=["seed", "step"],
        columns="place",
        values="value",
        aggfunc="mean",
        sort=False,
    )
    lines = []
    for (seed, step), values in zip(table.index, table.to_numpy(), strict=True):
        lines.append([str(seed), f"{step:,}", *map(format_short, values)])
    head = ("seed", "step", *(f"{name} {place}" for place in table.columns))
    return Table(head, lines, rows.drop(columns="place"))


def list_entries(what: str) -> Table:
    """Return (name, one line of description) of all metrics, models, corpora, or of what another package lists."""
    if what == "metrics":
        rows = _describe_metrics()
    elif what == "models":
        rows = _describe_models()
    elif what == "corpora":
        from anisoscope.data.corpora import list_corpora

        rows = []
        for name, corpus in list_corpora().items():
            rows.append((name, f"{corpus.modality}: {corpus.description}"))
    else:
        # What papers and other packages list is built only when it is asked for.
        rows = list_entries_of("listings")[what]()
    return Table((what, ""), rows, pd.DataFrame(rows, columns=["name", "description"]))


def _describe_metrics() -> list[tuple[str, str]]:
    """Return (name, first paragraph of its documentation) of each metric."""
    docs = {}
    # The files are parsed, not imported: their imports take seconds.
    for path in sorted(Path(__file__).parents[1].joinpath("metrics").glob("*.py")):
        if path.stem not in ("__init__", "base"):
            docs[path.stem] = ast.get_docstring(ast.parse(path.read_bytes())) or ""
    # Metrics of other packages are objects already.
    for name, metric in list_added("metrics").items():
        docs[name] = metric.documentation
    rows = []
    for name, doc in docs.items():
        first_paragraph = doc.split("\n\n")[0]
        rows.append((name, " ".join(first_paragraph.split())))
    return rows


def _describe_models() -> list[tuple[str, str]]:
    """Return (name, description) of each model that has a name of its own."""
    from anisoscope.models.named import converted_models, named_models, packaged_models

    rows = [
        (
            "builtin:minilm",
            "all-MiniLM-L6-v2, 6 layers, packaged; no download; the default",
        )
    ]
    # First what needs no download.
    for packaged in (packaged_models(), converted_models()):
        for name, model in packaged.items():
            rows.append((name, f"{model.description}, packaged ({model.install})"))
    for name, preset in named_models().items():
        about = "; ".join(filter(None, (preset.modality, preset.note)))
        rows.append((name, f"{preset.hub_id} ({about})"))
    return rows
