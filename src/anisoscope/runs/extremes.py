"""What a run says of extreme values: massive activations, sinks and logits, and findings by fixed rules.

A head has a sink if the whole 95 % interval of its `sinks.rate` at ε = .3 lies above one half: in most sequences
some key gets more than .3 of the attention of those that see it. The sink is of a kind (first token, punctuation …)
if the whole interval of `sinks.at` for that kind does too. Maxima are of what was measured: they have no interval.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.runs.attention import describe_layer_numbers
from anisoscope.runs.finding import Finding, entry
from anisoscope.runs.layers_of_heads import average_heads
from anisoscope.store import select
from anisoscope.wording import (
    at_layer,
    count_noun,
    format_measured,
    format_number,
    format_percent,
    format_short,
    iter_rows,
    join_words,
)

Array = NDArray[np.float64]

PREFIXES = ("massive.", "kurtosis", "matrix_entropy", "sinks.", "logits.")
"""What the metrics of extremes begin with."""
LINE = ".3"
"""The component of `sinks.rate` that the findings rest on: Gu et al. (2025)."""
MOST = 0.5
"""In most sequences: the share that the whole interval must lie above."""
LIMITS = "a coordinate above 100 and above 1,000 times the median size"
"""What makes an activation massive, in words: Sun et al. (2024)."""
HEAVY = 10.0
"""From this kurtosis on a dimension has heavy tails."""
KINDS = {
    "first": "the first token",
    "last": "the last token",
    "special": "other special tokens",
    "punctuation": "punctuation or line breaks",
    "other": "other tokens",
}
PLACE = ["stack", "kind", "layer"]


def extreme_rows(records: pd.DataFrame) -> pd.DataFrame:
    """Select the records of the metrics of extremes (`PREFIXES`); a series gives those of its last step."""
    # By the beginning of their names: `massive.largest`, `massive.rate` and so on are
    # one metric.
    named = np.zeros(len(records), dtype=bool)
    for prefix in PREFIXES:
        named |= (
            records["metric"].str.startswith(prefix).fillna(False).to_numpy(dtype=bool)
        )
    rows = records[named]
    if rows["step"].nunique() > 1:
        rows = rows[rows["step"].eq(rows["step"].max()).fillna(False)]
    return rows


ACTIVATION_LABELS: dict[tuple[str, str | None], str] = {
    ("massive.largest", "1"): "largest",
    ("massive.largest_dimension", "1"): "dimension",
    ("massive.largest_position", "1"): "position",
    ("massive.largest_token", "1"): "token",
    ("massive.over_median", None): "medians",
    ("massive.rate", None): "massive",
    ("kurtosis.largest", None): "kurtosis",
    ("kurtosis.dimension", None): "kurtosis dimension",
    ("matrix_entropy", None): "matrix entropy",
}
"""Columns of the table of activations, by metric and component."""


def activations_table(records: pd.DataFrame) -> pd.DataFrame:
    """Return a table of extreme activations, one row per layer.

    Columns: the largest |x| with its dimension, position and token, and its ratio to the median; the share of
    sequences with a massive activation; the highest kurtosis with its dimension; the matrix entropy.
    """
    rows = extreme_rows(records)
    # Records of heads are of attention, and have a table of their own.
    rows = rows[rows["head"].isna()]
    if not len(rows):
        return pd.DataFrame(columns=["stack", "layer", "site"])
    by_place: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in iter_rows(rows):
        component = None if pd.isna(row.component) else row.component
        label = ACTIVATION_LABELS.get((row.metric, component))
        if label is not None:
            by_place.setdefault((row.stack, row.layer, row.site), {})[label] = row.value
    table = pd.DataFrame(by_place.values(), columns=list(ACTIVATION_LABELS.values()))
    # A column that was not measured would be all empty.
    table = table.dropna(axis=1, how="all")
    # Records hold every value as a float.
    for name in ("dimension", "position", "token", "kurtosis dimension"):
        if name in table:
            table[name] = table[name].astype("Int64")
    places = pd.DataFrame(list(by_place), columns=["stack", "layer", "site"])
    table = pd.concat([places, table], axis=1)
    # The final norm comes after the last layer.
    keys = table.assign(last=table["site"].eq("final"))
    order = keys.sort_values(["stack", "layer", "last"], kind="stable")
    return table.loc[order.index].reset_index(drop=True)


def sinks_table(
    records: pd.DataFrame, *, heads: bool = False, replicates: Array | None = None
) -> pd.DataFrame:
    """Return a table of attention sinks, a row per layer (means over heads) or, with `heads`, per head.

    Columns: how often there is a sink (ε = .3) at any key, and at the first; mean attention of the strongest key;
    share of the weights on the first token, the last, other special ones, punctuation; value norm of the strongest
    key; logits. Logits and norms of a layer are the smallest or largest of any head.
    """
    behind = sink_rows(records, heads=heads, replicates=replicates)
    index = [*PLACE, "head"] if heads else PLACE
    if not len(behind):
        return pd.DataFrame(columns=index)
    wide = behind.pivot_table(
        index=index, columns="label", values="value", aggfunc="first", sort=True
    )
    measured = [label for label in SINK_LABELS.values() if label in wide]
    # The pivot leaves the name `label` over the columns, which would be printed.
    table = wide[measured].rename_axis(columns=None)
    if "sink rate" in table:
        rates = behind[behind["label"].eq("sink rate")].set_index(index)
        # Behind the sink rate, which is the first column if it was measured.
        table.insert(1, "low", rates["low"].reindex(table.index))
        table.insert(2, "high", rates["high"].reindex(table.index))
    return table.reset_index()


SINK_LABELS = {
    ("sinks.rate", LINE): "sink rate",
    ("sinks.first_rate", LINE): "at first",
    ("sinks.strongest", None): "strongest key",
    ("sinks.mass", "first"): "mass on first",
    ("sinks.mass", "last"): "mass on last",
    ("sinks.mass", "special"): "mass on special",
    ("sinks.mass", "punctuation"): "mass on punctuation",
    ("sinks.value_norm", None): "value norm",
    ("logits.smallest", None): "smallest logit",
    ("logits.largest", None): "largest logit",
    ("sinks.query_norm", None): "longest query",
    ("sinks.key_norm", None): "longest key",
}
"""Columns of the table of sinks, by metric and component."""
OF_ENDS = {
    "smallest logit": "min",
    "largest logit": "max",
    "longest query": "max",
    "longest key": "max",
}
"""Columns whose value of a layer is the smallest or the largest of its heads."""


def sink_rows(
    records: pd.DataFrame, *, heads: bool = False, replicates: Array | None = None
) -> pd.DataFrame:
    """Select the records that `sinks_table` shows, by layer or, with `heads`, by head.

    The column `label` names the table's column. replicates: each record's value with one group of units left out
    [record, group]; without them means over heads have no interval.
    """
    # The row number is where the replicates of a record are.
    records = records.reset_index(drop=True)
    rows = extreme_rows(records)
    rows = rows[rows["head"].notna() & rows["value"].notna()]
    # Missing components as None, as in the keys of the labels: pandas has a value of its
    # own for what is missing.
    components = rows["component"].astype(object).where(rows["component"].notna(), None)
    keys = zip(rows["metric"], components, strict=True)
    rows = rows.assign(label=[SINK_LABELS.get(key, "") for key in keys])
    rows = rows[rows["label"].ne("")]
    if heads or not len(rows):
        return rows.sort_values([*PLACE, "head"], kind="stable")
    parts = []
    is_end = rows["label"].isin(OF_ENDS)
    averaged = rows[~is_end]
    if len(averaged):
        left_out = None
        # Replicates of other records (some were filtered, or merged) do not belong to these rows.
        if replicates is not None and len(replicates) == len(records):
            left_out = replicates[averaged.index.to_numpy()]
        means, _ = average_heads(averaged, left_out)
        parts.append(means)
    # Of logits and norms the extreme head counts, which a mean over heads would hide.
    for label, part in rows[is_end].groupby("label", sort=False):
        order = part.sort_values(
            "value", ascending=OF_ENDS[str(label)] == "min", kind="stable"
        )
        # Sorted, so that the first row of a layer is that of its extreme head.
        of_layer = order.drop_duplicates(PLACE).copy()
        # The row is the layer's from here on, not that head's.
        of_layer["head"] = pd.NA
        parts.append(of_layer)
    return pd.concat(parts, ignore_index=True).sort_values(PLACE, kind="stable")


# ---- findings --------------------------------------------------------------------------------------------------------


def extreme_findings(
    records: pd.DataFrame, words: Mapping[str, str] | None = None
) -> Iterator[Finding]:
    """Say which layers have massive activations, which heads have sinks and where, and how large logits are.

    words  texts of tokens by id, as in the manifest
    """
    rows = extreme_rows(records)
    if not len(rows):
        return
    several = rows["stack"].nunique() > 1
    for stack, part in rows.groupby("stack", sort=False):
        before = f"{str(stack).capitalize()}: " if several else ""
        yield from _describe_massive(part, before, words or {})
        yield from _describe_heavy_tails(part, before)
    # Activations belong to a stack; sinks and logits to a kind of its attention as
    # well.
    kinds = rows[rows["head"].notna()]
    several = kinds["kind"].nunique() > 1 or kinds["stack"].nunique() > 1
    for place, part in kinds.groupby(["stack", "kind"], sort=False):
        stack_name, kind = map(str, place)
        before = f"{stack_name.capitalize()}, {kind}-attention: " if several else ""
        yield from _describe_sinks(part, before)
        yield from _describe_logits(part, before)


def _describe_massive(
    rows: pd.DataFrame, before: str, words: Mapping[str, str]
) -> Iterator[Finding]:
    """Say in which layers some sequence has a massive activation, and where the largest one is.

    rows     records of one stack
    before   the words that begin the sentence
    words    texts of tokens by id
    """
    rates = rows[rows["metric"].eq("massive.rate") & rows["value"].notna()]
    largest = select(rows, metric="massive.largest", component="1")
    if not len(rates) or not len(largest):
        return
    # A rate above 0: at least one sequence has one.
    found = iter_rows(rates[rates["value"].gt(0)])
    top = iter_rows(largest.loc[[largest["value"].idxmax()]])[0]
    here = select(rows, layer=top.layer, site=top.site)
    where = f"The largest coordinate is {format_number(top.value)} {at_layer(top)}, {_place_of(here, words)}."
    # The ratio at the layer of the largest coordinate, so that the two sentences are of
    # one place.
    ratios = iter_rows(select(here, metric="massive.over_median"))[:1]
    # A median of zero gives no finite ratio.
    if ratios and math.isfinite(ratios[0].value):
        times = format_number(ratios[0].value)
        where += f" On average, the largest coordinate of a sequence there is {times} times the median size."
    numbers = tuple(entry(row) for row in (top, *ratios, *found[:10]))
    if not found:
        text = f"{before}No massive activation ({LIMITS}). {where}"
        yield Finding("massive_none", text, numbers)
        return
    layers = describe_layer_numbers([int(row.layer) for row in found])
    often = max(row.value for row in found)
    text = f"{before}Massive activations ({LIMITS}) {layers}, in up to {format_percent(often)} of sequences."
    text += f" {where}"
    yield Finding("massive", text, numbers)


def _place_of(here: pd.DataFrame, words: Mapping[str, str]) -> str:
    """Write where a layer's largest activation is: `dimension 138, position 0 (‘[CLS]’)`.

    here    records of that layer
    words   texts of tokens by id
    """
    found: dict[str, int] = {}
    for name in ("dimension", "position", "token"):
        rows = iter_rows(select(here, metric=f"massive.largest_{name}", component="1"))
        # A negative number means that it is not known.
        if rows and rows[0].value >= 0:
            found[name] = int(rows[0].value)
    parts = []
    if "dimension" in found:
        parts.append(f"dimension {found['dimension']}")
    if "position" in found:
        position = f"position {found['position']}"
        word = words.get(str(found.get("token", -1)))
        if word:
            position += f" (‘{word}’)"
        parts.append(position)
    return ", ".join(parts)


def _describe_heavy_tails(rows: pd.DataFrame, before: str) -> Iterator[Finding]:
    """Say which dimension has the heaviest tails, if the interval of its kurtosis lies above `HEAVY`.

    rows     records of one stack
    before   the words that begin the sentence
    """
    heavy = rows[rows["metric"].eq("kurtosis.largest") & rows["low"].gt(HEAVY)]
    if not len(heavy):
        return
    top = iter_rows(heavy.loc[[heavy["value"].idxmax()]])[0]
    dimension = iter_rows(
        select(rows, metric="kurtosis.dimension", layer=top.layer, site=top.site)
    )
    name = f"dimension {int(dimension[0].value)}" if dimension else "one dimension"
    layers = describe_layer_numbers([int(row.layer) for row in iter_rows(heavy)])
    text = f"{before}Heavy tails {layers}: kurtosis {format_measured(top)} of {name} {at_layer(top)}"
    yield Finding(
        "heavy_tails", f"{text} (0 for a normal distribution).", (entry(top),)
    )


def _describe_sinks(rows: pd.DataFrame, before: str) -> Iterator[Finding]:
    """Say how many heads have a sink, in which layers, and at which kinds of tokens.

    rows     records of one stack
    before   the words that begin the sentence
    """
    rates = select(rows, metric="sinks.rate", component=LINE)
    rates = rates[rates["low"].notna()]
    if not len(rates):
        return
    # Averaged over all heads, as Gu et al. (2025) report it.
    first = select(rows, metric="sinks.first_rate", component=LINE)["value"].mean()
    first_rate = ""
    if np.isfinite(first):
        first_rate = f" Over all heads, the sink rate of the first token is {format_short(float(first))}."
    found = iter_rows(rates[rates["low"].gt(MOST)])
    if not found:
        text = f"{before}No head has a sink: no key gets more than {LINE} of attention in most sequences.{first_rate}"
        yield Finding("sinks_none", text)
        return
    where = _describe_kinds_of_keys(rows, found)
    layers = describe_layer_numbers([int(row.layer) for row in found])
    heads = count_noun(len(rates), "head")
    text = f"{before}{len(found)} of {heads} have a sink (a key with more than {LINE} of attention"
    text += f" in most sequences), {layers}: {where}.{first_rate}"
    yield Finding("sinks", text, tuple(map(entry, found[:10])))
    yield from _describe_values_of_sinks(rows, found, before)


def _describe_kinds_of_keys(rows: pd.DataFrame, found: list[Any]) -> str:
    """Say at which kinds of tokens sinks are, the most frequent kind first: `40 at the first token and 2 at …`,
    or `all at the first token`.

    rows    records of one stack
    found   rows of the heads that have a sink
    """
    # A head whose sink is at one kind of token in most sequences; of other heads no kind can be named.
    at = rows[rows["metric"].eq("sinks.at") & rows["low"].gt(MOST)]
    kind_of = {(row.layer, row.head): row.component for row in iter_rows(at)}
    counts: dict[str, int] = {}
    for row in found:
        kind = kind_of.get((row.layer, row.head), "")
        name = KINDS.get(kind, "keys of no one kind")
        counts[name] = counts.get(name, 0) + 1
    if len(counts) == 1 and len(found) > 1:
        return f"all at {next(iter(counts))}"
    by_count = sorted(counts.items(), key=lambda item: -item[1])
    return join_words([f"{number} at {name}" for name, number in by_count])


def _describe_values_of_sinks(
    rows: pd.DataFrame, found: list[Any], before: str
) -> Iterator[Finding]:
    """Say in how many heads the sink's value vector is shorter than half of the mean.

    found    rows of the heads that have a sink
    before   the words that begin the sentence
    """
    norms = rows[rows["metric"].eq("sinks.value_norm") & rows["high"].lt(MOST)]
    heads = {(row.layer, row.head) for row in found}
    brief = []
    for row in iter_rows(norms):
        if (row.layer, row.head) in heads:
            brief.append(row)
    if brief:
        mean = float(np.mean([row.value for row in brief]))
        share = "all" if len(brief) == len(found) > 1 else f"{len(brief)}"
        text = f"{before}In {share} of these heads the sink adds next to nothing to the output:"
        text += f" its value vector is {format_short(mean)} times as long as the mean."
        yield Finding("sinks_without_value", text, tuple(map(entry, brief[:10])))


def _describe_logits(rows: pd.DataFrame, before: str) -> Iterator[Finding]:
    """Say what the smallest and largest attention logits are, and in which heads.

    rows     records of one stack
    before   the words that begin the sentence
    """
    known = rows[rows["value"].notna()]
    largest = known[known["metric"].eq("logits.largest")]
    smallest = known[known["metric"].eq("logits.smallest")]
    if not len(largest) or not len(smallest):
        return
    top = iter_rows(largest.loc[[largest["value"].idxmax()]])[0]
    low = iter_rows(smallest.loc[[smallest["value"].idxmin()]])[0]
    text = f"{before}Logits reach from {format_short(low.value, 1)} (layer {low.layer}, head {low.head}) to"
    text += f" {format_short(top.value, 1)} (layer {top.layer}, head {top.head})."
    yield Finding("logits", text, (entry(top), entry(low)))


def has_extremes(records: pd.DataFrame) -> bool:
    """Return whether any metric of extremes was measured."""
    return bool(len(extreme_rows(records)))
