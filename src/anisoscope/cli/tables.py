"""What the command line prints: a run layer by layer, runs side by side, and the names of everything."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import UsageError, near_matches

COLUMNS = {
    "mean_cosine": "A",
    "mean_cosine.between": "A between",
    "mean_cosine.isotropic_q95": "q95",
    "spectrum.cosine_square": "d·E[cos²]",
    "calibrated.pairs_above_q95": "pairs > q95",
    "calibrated.centred": "A centred",
    "drift.share": "drift share",
    "intra_sequence": "within seq.",
    "spectrum.effective_rank": "eff. rank",
}
"""Columns of the table of a run."""


OF_CLASSES = {
    "class_direction.auc": "AUC",
    "class_direction.nearest": "nearest is own",
    "mean_cosine": "A",
    "intra_sequence": "within utterance",
    "cls_entropy": "H of [CLS]",
}
"""Columns of the table of classes: is the direction the class?"""


def layer_by_layer(records: Any) -> str:
    """The hidden states of a run's records, with intervals; policy: the first."""
    import pandas as pd

    from anisoscope.store import select

    rows = select(records, site=("hidden", "final"), component=None, metric=tuple(COLUMNS))
    policy = rows["token_policy"].dropna().iloc[0] if len(rows) else None
    rows = rows[rows["token_policy"] == policy]
    cells = pd.Series([_cell(r) for r in rows.itertuples()], index=rows.index)
    table = rows.assign(cell=cells).pivot_table(
        index=["stack", "layer", "site"], columns="metric", values="cell", aggfunc="first", sort=False
    )
    table = table[[name for name in COLUMNS if name in table]].rename(columns=COLUMNS).sort_index()
    return str(table.rename_axis(columns=f"tokens: {policy}").to_string())


def classes(records: Any) -> str:
    """What `anisoscope classes` found: layer by layer, what replaced attention and maps over words give, accuracy."""
    from anisoscope.store import select

    rows = select(records, metric=tuple(OF_CLASSES), component=[None, "row"], head=None, token_policy=[None, "all"])
    rows = rows[rows["layer"].notna() & rows["site"].ne("final").fillna(True)]
    tables = [_pivoted(rows, ["layer"], OF_CLASSES)]
    for prefix, label in (("replaced.", "attention replaced"), ("explains.", "words explained by")):
        part = records[records["metric"].str.startswith(prefix).fillna(False)]
        if len(part):
            part = part.assign(layer=part["layer"].astype("string").fillna("all"))
            names = {name: name.removeprefix(prefix) for name in dict.fromkeys(part["metric"])}
            tables.append(_pivoted(part.rename(columns={"component": label}), [label, "layer"], names))
    whole = select(records, metric=("accuracy", "majority"), component=None)
    return "\n\n".join([*tables, *(f"{row.metric} {_cell(row)} of {row.n_units:,}" for row in whole.itertuples())])


def _pivoted(rows: Any, index: list[str], names: dict[str, str]) -> str:
    """A row for every place, a column for every metric there is."""
    import pandas as pd

    rows = rows.assign(cell=pd.Series([_cell(r) for r in rows.itertuples()], index=rows.index))
    table = rows.pivot_table(index=index, columns="metric", values="cell", aggfunc="first", sort=False)
    table = table[[name for name in names if name in table]].rename(columns=names)
    return str(table.rename_axis(columns=None).fillna("").to_string())


def side_by_side(folders: Sequence[Path], metric: str, tokens: str) -> str:
    """One metric of several runs, a row per layer."""
    import pandas as pd

    from anisoscope.store import RunFolder, select

    columns = {}
    for folder in folders:
        records = RunFolder(folder).records
        known = sorted(records["metric"].unique())
        if metric not in known:
            raise UsageError(f"a metric of {folder}", repr(metric), near_matches(metric, known))
        rows = select(
            records, metric=metric, token_policy=[tokens, None], head=None, component=None, site=("hidden", "final")
        )
        index = pd.MultiIndex.from_frame(rows[["stack", "layer", "site"]])
        columns[folder.name] = pd.Series([_cell(r) for r in rows.itertuples()], index=index)
    return str(pd.DataFrame(columns).fillna("").to_string())


def _cell(row: Any) -> str:
    return f"{row.value:.4f} [{row.low:.4f}, {row.high:.4f}]" if row.low == row.low else f"{row.value:.4f}"


def listed(what: str) -> list[tuple[str, str]]:
    """(name, one line) of all metrics, models, corpora or studies."""
    lists = {"metrics": _metrics, "models": _models, "corpora": _corpora, "studies": _studies}
    if what not in lists:
        raise UsageError(f"one of {', '.join(lists)}", repr(what), near_matches(what, lists))
    return lists[what]()


def _metrics() -> list[tuple[str, str]]:
    from anisoscope import metrics

    modules = {name: sys.modules[f"anisoscope.metrics.{name}"] for name in metrics.found()}
    return [(name, (module.__doc__ or "").splitlines()[0]) for name, module in modules.items()]


def _models() -> list[tuple[str, str]]:
    from anisoscope.models.presets import PRESETS

    listed = [("builtin:minilm", "all-MiniLM-L6-v2, 6 layers, packaged; no download; the default")]
    return listed + [
        (name, f"{p.hub_id} ({p.modality}; figure {p.figure} of godey2024)") for name, p in PRESETS.items()
    ]


def _corpora() -> list[tuple[str, str]]:
    from anisoscope.data import list_corpora
    from anisoscope.data.labelled import LABELLED

    listed = [(name, f"{preset.modality}: {preset.description}") for name, preset in list_corpora().items()]
    return listed + [(name, f"labelled: {known.description}") for name, known in LABELLED.items()]


def _studies() -> list[tuple[str, str]]:
    from anisoscope.studies import runner

    return [(f"{s.paper} {s.name}", f"{s.title} (settings: {', '.join(s.settings)})") for s in runner.found()]
