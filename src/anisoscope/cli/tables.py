"""Tables of the command line: a run layer by layer, classes, a series, runs side by side, names of everything."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.cli.view import Table
from anisoscope.errors import UsageError, near_matches

WIDE = {
    "mean_cosine": "A",
    "mean_cosine.between": "A between",
    "mean_cosine.isotropic_q95": "q95",
    "spectrum.cosine_square": "d·E[cos²]",
    "calibrated.pairs_above_q95": "pairs > q95",
    "calibrated.centred": "A centred",
    "drift.share": "drift share",
    "intra_sequence": "within seq.",
    "mean_cosine.top_share": "top 3 share",
    "spectrum.effective_rank": "eff. rank",
}
"""Columns of the wide table of a run."""
NARROW = ("mean_cosine", "mean_cosine.isotropic_q95", "drift.share", "mean_cosine.top_share", "spectrum.effective_rank")
"""Metrics behind the narrow one."""
TOP = "3"
"""Dimensions whose share of A is shown."""

OF_CLASSES = {
    "class_direction.auc": "AUC",
    "class_direction.nearest": "nearest is own",
    "mean_cosine": "A",
    "intra_sequence": "within utterance",
    "cls_entropy": "H of [CLS]",
}
"""Columns of the table of classes: is the direction the class?"""

LISTS = ("metrics", "models", "corpora", "studies")


def layer_by_layer(records: Any, *, wide: bool = False) -> Table:
    """The hidden states of a run under its first token policy: A with its verdict; `wide`: every column."""
    from anisoscope.runs.findings import depths, each, measured, short

    found = depths(records)
    rows = []
    stacked = len(found) > 1
    for depth in found:
        for row, verdict in zip(each(depth.rows), depth.verdicts, strict=True):
            cells = {name: depth.at(row, name, TOP if name == "mean_cosine.top_share" else None) for name in WIDE}
            place = [str(row.stack)] * stacked + ["final" if row.site == "final" else str(int(row.layer))]
            if wide:
                rows.append([*place, verdict, *(measured(cell) if cell else "" for cell in cells.values())])
            else:
                last = [short(cell.value, 2) if (cell := cells[name]) else "" for name in NARROW[2:]]
                rows.append([*place, measured(row), verdict, *last])
    head = ("verdict", *WIDE.values()) if wide else ("A", "verdict", "drift share", "top 3 share", "eff. rank")
    place_head = ("stack", "layer") if stacked else ("layer",)
    return Table((*place_head, *head), rows, _behind(found, tuple(WIDE) if wide else NARROW))


def _behind(found: Sequence[Any], metrics: tuple[str, ...]) -> Any:
    """The records of the metrics that a table shows."""
    import pandas as pd

    from anisoscope.store import COLUMNS, select

    if not found:
        return pd.DataFrame(columns=list(COLUMNS))
    rows = pd.concat([select(depth.records, metric=metrics, component=[None, TOP]) for depth in found])
    return rows[(rows["component"] == TOP).fillna(False) == rows["metric"].eq("mean_cosine.top_share")]


def of_classes(records: Any) -> list[Table]:
    """What `anisoscope classes` found: layer by layer, what replaced attention and maps over words give, accuracy."""
    from anisoscope.runs.findings import each, measured
    from anisoscope.store import select

    rows = select(records, metric=tuple(OF_CLASSES), component=[None, "row"], head=None, token_policy=[None, "all"])
    rows = rows[rows["layer"].notna() & rows["site"].ne("final").fillna(True)]
    tables = [_pivoted(rows, ["layer"], OF_CLASSES)]
    for prefix, label in (("replaced.", "attention replaced"), ("explains.", "words explained by")):
        part = records[records["metric"].str.startswith(prefix).fillna(False)]
        if len(part):
            names = {name: name.removeprefix(prefix) for name in dict.fromkeys(part["metric"])}
            part = part.assign(layer=part["layer"].astype("string").fillna("all"))
            tables.append(_pivoted(part, ["component", "layer"], names, label))
    whole = select(records, metric=("accuracy", "majority"), component=None)
    if len(whole):
        cells = [[str(row.metric), measured(row), f"{row.n_units:,}"] for row in each(whole)]
        tables.append(Table(("of the classifier", "", "examples"), cells, whole))
    return tables


def _pivoted(rows: Any, index: list[str], names: dict[str, str], label: str = "") -> Table:
    """A row for every place, a column for every metric there is."""
    from anisoscope.runs.findings import each, measured

    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in each(rows):
        cells.setdefault(tuple(str(getattr(row, name)) for name in index), {}).setdefault(row.metric, measured(row))
    there = [name for name in names if any(name in found for found in cells.values())]
    head = (*([label] * (len(index) - 1)), "layer", *(names[name] for name in there))
    return Table(head, [[*place, *(found.get(name, "") for name in there)] for place, found in cells.items()], rows)


def of_series(records: Any, policy: str) -> Table:
    """A of every checkpoint's hidden states, layer by layer (without hidden states: the mean entropy of attention)."""
    from anisoscope.runs.findings import short
    from anisoscope.store import select

    rows = select(records, metric="mean_cosine", site="hidden", component=None, token_policy=policy)
    name = "A"
    if not len(rows):
        rows, name = select(records, metric="attention.entropy", component=None, kind="self"), "H (nats)"
    stacked = rows["stack"].nunique() > 1
    layer = rows["layer"].astype("string")
    rows = rows.assign(place=rows["stack"].str.cat(layer, " ") if stacked else layer)
    table = rows.pivot_table(index=["seed", "step"], columns="place", values="value", aggfunc="mean", sort=False)
    cells = [
        [str(seed), f"{step:,}", *(short(x) for x in row)]
        for (seed, step), row in zip(table.index, table.to_numpy(), strict=True)
    ]
    return Table(("seed", "step", *(f"{name} {place}" for place in table.columns)), cells, rows.drop(columns="place"))


def side_by_side(folders: Sequence[Path], metric: str, tokens: str) -> Table:
    """One metric of several runs, a row per layer. UsageError where a run does not have it for whole layers."""
    import pandas as pd

    from anisoscope.runs.findings import each, measured
    from anisoscope.store import RunFolder, select

    cells: dict[tuple[str, str, str], dict[int, str]] = {}
    behind = []
    for i, folder in enumerate(folders):
        records = RunFolder(folder).records
        rows = select(records, metric=metric, token_policy=[tokens, None], head=None, component=None)
        rows = rows[rows["site"].isin(("hidden", "final")).fillna(False)]
        if not len(rows):
            raise _no_such_metric(records, metric, tokens, folder)
        behind.append(rows)
        for row in each(rows):
            place = (str(row.stack), "final" if row.site == "final" else str(row.layer), str(row.site))
            cells.setdefault(place, {})[i] = measured(row)
    stacked = len({stack for stack, _, _ in cells}) > 1
    names = [folder.name or str(folder) for folder in folders]
    rows_ = [
        [*[stack] * stacked, layer, *(found.get(i, "") for i in range(len(names)))]
        for (stack, layer, _), found in cells.items()
    ]
    return Table((*["stack"] * stacked, "layer", *names), rows_, pd.concat(behind))


def _no_such_metric(records: Any, metric: str, tokens: str, folder: Path) -> UsageError:
    """What a run has instead of a metric that it does not have for whole layers."""
    from anisoscope.store import select

    whole = records[records["head"].isna() & records["component"].isna() & records["site"].isin(("hidden", "final"))]
    known = sorted(whole["metric"].unique())
    if metric in known:
        policies = sorted(select(whole, metric=metric)["token_policy"].dropna().unique())
        return UsageError(
            f"a token policy of {metric} in {folder}", repr(tokens), f"use --tokens {' or '.join(policies)}"
        )
    values = [name for name in known if name.startswith(f"{metric}.")]
    if values:
        return UsageError(f"one value of {metric}", repr(metric), f"name {' or '.join(values)}")
    if metric in set(records["metric"]):
        got = f"{metric}, which is of single heads, dimensions or subsets"
        return UsageError("a metric of whole layers", got, f"read it in {folder / 'records.parquet'}")
    return UsageError(f"a metric of {folder}", repr(metric), near_matches(metric, known))


def listed(what: str) -> Table:
    """(name, one line) of all metrics, models, corpora or studies."""
    import pandas as pd

    lists = {"metrics": _metrics, "models": _models, "corpora": _corpora, "studies": _studies}
    rows = lists[what]()
    return Table((what, ""), rows, pd.DataFrame(rows, columns=["name", "description"]))


def _metrics() -> list[tuple[str, str]]:
    from anisoscope import metrics

    modules = {name: sys.modules[f"anisoscope.metrics.{name}"] for name in metrics.found()}
    return [(name, (module.__doc__ or "").splitlines()[0]) for name, module in modules.items()]


def _models() -> list[tuple[str, str]]:
    from anisoscope.models.families import PRESETS

    listed = [("builtin:minilm", "all-MiniLM-L6-v2, 6 layers, packaged; no download; the default")]
    return listed + [
        (name, f"{p.hub_id} ({p.modality}; figure {p.figure} of godey2024)") for name, p in PRESETS.items()
    ]


def _corpora() -> list[tuple[str, str]]:
    from anisoscope.data.corpora import list_corpora

    return [(name, f"{corpus.modality}: {corpus.description}") for name, corpus in list_corpora().items()]


def _studies() -> list[tuple[str, str]]:
    from anisoscope.studies import runner

    return [(f"{s.paper} {s.name}", f"{s.title} (settings: {', '.join(s.settings)})") for s in runner.found()]
