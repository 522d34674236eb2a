"""The short table of a run, and one metric of several runs next to each other, as command line and Python show
them.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import nan
from typing import Any

import pandas as pd

from anisoscope.errors import UsageError, suggest_names
from anisoscope.runs.finding import ENTRIES, Finding, entry
from anisoscope.runs.findings import (
    Q95,
    SITES,
    judge_isotropy,
    select_lead_policy,
    sort_by_depth,
)
from anisoscope.store import select
from anisoscope.wording import (
    describe_layers,
    format_measured,
    format_short,
    name_layer,
)

A = "mean_cosine"
SHORT = {
    A: "A",
    "drift.share": "drift share",
    "mean_cosine.top_share": "top-3 share",
    "spectrum.effective_rank": "effective rank",
}
"""Columns of the short table, by metric; `low`, `high` and `verdict` follow A."""
ENDS = ["value", "low", "high"]
PLACE = ["stack", "layer", "site"]


def pivot_by_layer(
    records: pd.DataFrame, metrics: Iterable[str], tokens: str | None = None
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a wide table of hidden states, and the records that it was made from.

    The table has a row for each checkpoint, stack, layer and site whose A (anisotropy: mean cosine of all pairs) is
    known, with columns `(metric, value | low | high)` and `verdict`. `tokens` is the token policy (which tokens
    count); None means the run's first. UsageError for a policy that the run lacks.
    """
    metrics = list(metrics)
    rows = _select_whole_values(
        select(records, site=SITES, metric=(*metrics, Q95), head=None), tokens
    )
    # Step and seed are keys only if they differ: a single run has the same in all rows.
    is_series = rows["step"].nunique() > 1 or rows["seed"].nunique() > 1
    index = ["step", "seed"] if is_series else []
    keys = [*index, *PLACE]
    columns = _collect_columns(rows, metrics, keys)
    places = _sort_places(rows, [*index, "stack"])
    table = pd.DataFrame(columns, index=places.set_index(keys).index, dtype="float64")
    ends = zip(table[A, "low"], table[A, "high"], table[Q95, "value"], strict=True)
    # Empty text is no verdict, and missing in the table.
    verdicts = [judge_isotropy(*row) or None for row in ends]
    table["verdict"] = pd.Series(verdicts, table.index, dtype="string")
    return table, rows


def _collect_columns(
    rows: pd.DataFrame, metrics: Iterable[str], keys: list[str]
) -> dict[tuple[str, str], Any]:
    """Return {(metric, value | low | high): column}, each with the place of its layer as index.

    keys   columns of `rows` that name a place
    """
    parts: dict[Any, pd.DataFrame] = {}
    for metric, part in rows.groupby("metric", sort=False):
        # The index must be unique, even if records hold a place twice.
        parts[metric] = part.drop_duplicates(keys).set_index(keys)
    columns: dict[tuple[str, str], Any] = {}
    # A and q95 are columns even if they were not measured: the verdict reads them.
    for metric in dict.fromkeys((*metrics, A, Q95)):
        is_needed = metric in (A, Q95)
        if metric not in parts and not is_needed:
            continue
        for end in ENDS:
            columns[metric, end] = parts[metric][end] if metric in parts else nan
    return columns


def _select_whole_values(rows: pd.DataFrame, tokens: str | None) -> pd.DataFrame:
    """Select what the table shows under one token policy: values without components, and the top-3 share.

    tokens  the token policy (which tokens count); None: the run's first. UsageError for one that the run lacks
    """
    _require_policy(rows, tokens)
    rows = select(rows, token_policy=[tokens or select_lead_policy(rows), None])
    # The share of the largest dimensions is recorded for 1, 3 and 10 of them.
    is_top_share = rows["metric"].eq("mean_cosine.top_share")
    is_of_three = rows["component"].eq("3").fillna(False)
    return rows[is_top_share & is_of_three | ~is_top_share & rows["component"].isna()]


def _sort_places(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the rows of A that have a value, each group of the `keys` from its input to its output."""
    known = rows[rows["metric"].eq(A) & rows["value"].notna()]
    ordered = []
    for _, part in known.groupby(keys, sort=False, dropna=False):
        ordered.append(sort_by_depth(part))
    return pd.concat(ordered) if ordered else known


def _require_policy(rows: pd.DataFrame, tokens: str | None) -> list[str]:
    """Return the token policies (which tokens count) of the rows. UsageError if the one asked for is not among them."""
    known = list(dict.fromkeys(rows["token_policy"].dropna()))
    if tokens is not None and tokens not in known:
        raise UsageError(
            "a token policy of this run", repr(tokens), suggest_names(tokens, known)
        )
    return known


def short_table(records: pd.DataFrame, tokens: str | None = None) -> pd.DataFrame:
    """Return the short table of a run, layer by layer: A with interval and verdict, drift share, top-3 share, rank.

    A is the anisotropy (mean cosine of all pairs). The top-3 share is left empty if the interval of A includes 0.
    """
    table, _ = pivot_by_layer(records, SHORT, tokens)
    share = ("mean_cosine.top_share", "value")
    if share in table:
        # A share of what may be nothing says nothing.
        includes_zero = table[A, "low"].le(0) & table[A, "high"].ge(0)
        table[share] = table[share].mask(includes_zero)
    columns = {
        "A": (A, "value"),
        "low": (A, "low"),
        "high": (A, "high"),
        "verdict": ("verdict", ""),
    }
    for metric, name in SHORT.items():
        if metric != A:
            columns[name] = (metric, "value")
    measured = {name: table[key] for name, key in columns.items() if key in table}
    return pd.DataFrame(measured).reset_index()


def select_layers(records: pd.DataFrame, tokens: str | None = None) -> pd.DataFrame:
    """Select the records of whole layers under one token policy.

    tokens  the token policy (which tokens count); None: the run's first. UsageError for one that the run lacks
    """
    rows = select(records, head=None)
    known = _require_policy(rows, tokens)
    if known:
        rows = select(rows, token_policy=[tokens or known[0], None])
    return rows


def value_table(records: pd.DataFrame, tokens: str | None = None) -> pd.DataFrame:
    """Return every value of whole layers (not of single heads), one per row.

    It is for metrics that `short_table` does not show.

    tokens  the token policy (which tokens count); None: the run's first
    """
    rows = select_layers(records, tokens)
    return rows[[*PLACE, "metric", "component", *ENDS]].reset_index(drop=True)


def number_names(runs: Iterable[tuple[str, pd.DataFrame]]) -> dict[str, pd.DataFrame]:
    """Return the records by the name of their run. A repeated name gets its number appended, as `run (2)`."""
    found: dict[str, pd.DataFrame] = {}
    for i, (name, records) in enumerate(runs, start=1):
        found[f"{name} ({i})" if name in found else name] = records
    return found


def side_by_side(
    runs: Mapping[str, pd.DataFrame], metric: str = A, tokens: str = "all"
) -> tuple[pd.DataFrame, pd.DataFrame, list[Finding]]:
    """Compare one metric of several runs in a table. Return the table, the records behind it, and findings.

    The table has a row per stack, layer and site, with columns `(run, value | low | high)`. Findings say where a
    run differs from the first by intervals that do not overlap. UsageError if a run lacks the metric for whole
    layers.
    """
    parts = {}
    columns = {}
    for name, records in runs.items():
        rows = _rows_of(records, name, metric, tokens)
        parts[name] = rows
        by_place = rows.set_index(PLACE)
        for end in ENDS:
            columns[name, end] = by_place[end]
    behind = pd.concat(parts.values())
    # A layer that a run lacks is a row all the same, with nothing in its columns.
    index = pd.MultiIndex.from_frame(behind[PLACE].drop_duplicates())
    table = pd.DataFrame(columns, index=index)
    first, *others = parts.items()
    findings: list[Finding] = []
    for other in others:
        findings += intervals_apart(first, other, metric)
    return table, behind, findings


def _rows_of(
    records: pd.DataFrame, name: str, metric: str, tokens: str
) -> pd.DataFrame:
    """Return one run's rows of a metric of whole layers. UsageError says why there are none.

    name   of the run, for errors
    """
    whole = select(records, head=None, component=None, site=SITES)
    rows = select(whole, metric=metric, token_policy=[tokens, None])
    if rows.duplicated(PLACE).any():
        raise UsageError(
            "runs of one model each",
            f"the series {name}",
            "name the folders of its checkpoints",
        )
    if len(rows):
        return rows
    # Why there are none, the nearest reason first: another policy, one of several values, no value of whole layers.
    known = sorted(whole["metric"].unique())
    if metric in known:
        policies = " or ".join(
            sorted(select(whole, metric=metric)["token_policy"].dropna().unique())
        )
        raise UsageError(
            f"a token policy of {metric} in {name}", repr(tokens), f"use {policies}"
        )
    values = [found for found in known if found.startswith(f"{metric}.")]
    if values:
        raise UsageError(
            f"one value of {metric}", repr(metric), f"name {' or '.join(values)}"
        )
    if metric in set(records["metric"]):
        got = f"{metric}, which is of single heads, dimensions or subsets"
        raise UsageError(
            "a metric with one value for each layer",
            got,
            f"read its values in the records of {name}",
        )
    raise UsageError(f"a metric of {name}", repr(metric), suggest_names(metric, known))


def intervals_apart(
    one: tuple[str, pd.DataFrame], other: tuple[str, pd.DataFrame], metric: str
) -> Iterator[Finding]:
    """Yield findings: in which layers a second run differs from the first, that is, where intervals do not overlap.

    one, other   (name, records) of each run

    The difference is at least the gap between the intervals. There is one finding for each stack.
    """
    (name, a), (name_2, b) = one, other
    pairs = sort_by_depth(a).merge(b, on=PLACE, suffixes=("", "_2"))
    # Layers in which either run has no interval cannot be judged.
    judged = pairs[pairs[["low", "high", "low_2", "high_2"]].notna().all(axis=1)]
    beginning = f"{name_2} against {name}" + ("" if metric == A else f" in {metric}")
    if not len(judged):
        why = "no interval" if len(pairs) else "no layer in common"
        yield Finding("intervals_apart", f"{beginning}: no verdict, as there is {why}.")
    several = judged["stack"].nunique() > 1
    for stack, rows in judged.groupby("stack", sort=False):
        before = f"{str(stack).capitalize()}: " if several else ""
        yield _describe_gaps(
            f"{before}{beginning}", rows.reset_index(drop=True), metric
        )


def _describe_gaps(beginning: str, rows: pd.DataFrame, metric: str) -> Finding:
    """Return the finding on one stack: in which layers the intervals of two runs do not overlap, and where most.

    beginning   the words that begin the sentence
    rows        layers with the values and intervals of both runs
    """
    names = [name_layer(row) for row in rows.itertuples()]
    words = ("higher", "lower")
    if metric == A:
        words = ("more anisotropic", "less anisotropic")
    # The gap between the intervals, negative if they overlap.
    gap_above = rows["low_2"] - rows["high"]
    gap_below = rows["low"] - rows["high_2"]
    # A gap above 0 on one side: that side's whole interval lies beyond the other's.
    parts: list[str] = []
    numbers: list[Any] = []
    for word, gap in zip(words, (gap_above, gap_below), strict=True):
        if (gap > 0).any():
            text, entries = _describe_side(gap, rows, names)
            parts.append(f"{word} {text}")
            numbers += entries
    same = []
    for place in range(len(rows)):
        if gap_above[place] <= 0 and gap_below[place] <= 0:
            same.append(place)
    if same:
        overlap = describe_layers(same, names) if parts else "in every layer"
        parts.append(f"intervals overlap {overlap}")
    return Finding(
        "intervals_apart", f"{beginning}: {'; '.join(parts)}.", tuple(numbers)
    )


def _describe_side(
    gap: pd.Series, rows: pd.DataFrame, names: list[str]
) -> tuple[str, list[Any]]:
    """Return a phrase: in which layers one run's interval lies beyond the other's, and the values where it is farthest.

    gap     distance between the two intervals in each layer, negative if they overlap
    rows    layers with the values and intervals of both runs
    names   names of the layers

    Returns (the phrase, the two records of the layer with the widest gap).
    """
    apart = [place for place, width in enumerate(gap) if width > 0]
    widest = int(gap.argmax())
    # A row holds both runs: the columns with `_2` become a record of the second one.
    first = rows.loc[widest]
    of_second = [f"{name}_2" for name in ENTRIES if name not in PLACE]
    second = first[[*PLACE, *of_second]]
    second.index = second.index.str.removesuffix("_2")
    where = describe_layers(apart, names)
    if len(apart) > 1:
        where += f", most at {names[widest]}"
    values = f"{format_measured(second)} against {format_measured(first)}"
    distance = format_short(abs(second["value"] - first["value"]))
    phrase = f"{where} ({values}: {distance} apart, at least {format_short(gap.max())})"
    return phrase, [entry(first), entry(second)]
