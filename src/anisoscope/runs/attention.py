"""What a run says of attention: a table of layers or heads, and findings (sentences) by fixed rules.

A head is named (sink, uniform …) only if the whole 95 % interval of its value lies beyond the threshold of the
rule. Heads that no rule names are ordinary: their attention is neither sharp nor flat, and depends on the input.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anisoscope.runs.finding import Finding, entry
from anisoscope.runs.layers_of_heads import Array, average_heads
from anisoscope.store import select
from anisoscope.wording import count_noun, format_short, iter_rows, join_words

VALUES = {
    "attention.entropy_normalised": "entropy",
    "attention.first_mass": "first-token mass",
    "attention.row_max": "largest weight",
    "attention.row_similarity": "rows alike",
    "query_key.cosine": "query–key cosine",
    "centred_attention.query_rise": "entropy rise, centred queries",
    "score_terms.mean_query_share": "drift share of logits",
}
"""Columns of the table, by metric: of those that were measured."""
OF_LAYERS = {"query_key.cosine": "|query–key cosine|"}
"""Columns whose mean over heads is of absolute values: aligned and opposite heads do not cancel."""
UNIFORM = "uniform"
INDEX = ["stack", "kind", "layer"]


@dataclass(frozen=True)
class Rule:
    """A kind of head: the metric that decides it, the threshold, and whether the interval must lie above or below.

    one, several  words for heads of this kind, after their number: `1 of 72 heads …`, `12 of 72 heads …`
    """

    name: str
    metric: str
    line: float
    above: bool
    one: str
    several: str

    def describe(self, count: int) -> str:
        """Return the words that follow the number of heads of this kind (`count`)."""
        return self.one if count == 1 else self.several


RULES = (
    Rule(
        "sink",
        "attention.first_mass",
        0.5,
        True,
        one="gives more than half of its weight to the first token (sinks)",
        several="give more than half of their weight to the first token (sinks)",
    ),
    Rule(
        UNIFORM,
        "attention.entropy_normalised",
        0.95,
        True,
        one="attends nearly uniformly (normalised entropy above .95)",
        several="attend nearly uniformly (normalised entropy above .95)",
    ),
    Rule(
        "one-hot",
        "attention.row_max",
        0.9,
        True,
        one="attends to a single token (largest weight above .9)",
        several="attend to a single token (largest weight above .9)",
    ),
    Rule(
        "aligned",
        "query_key.cosine",
        0.8,
        True,
        one="has aligned mean queries and keys (cosine above .8)",
        several="have aligned mean queries and keys (cosine above .8)",
    ),
    Rule(
        "opposite",
        "query_key.cosine",
        -0.8,
        False,
        one="has opposite mean queries and keys (cosine below −.8)",
        several="have opposite mean queries and keys (cosine below −.8)",
    ),
)


def uniform_line() -> float:
    """Return the threshold of normalised entropy from which on a head counts as uniform."""
    return next(rule.line for rule in RULES if rule.name == UNIFORM)


CHANGED = 0.1
"""Nats of entropy that centring the queries must add to count as a change."""


def attention_table(
    records: pd.DataFrame, *, heads: bool = False, replicates: Array | None = None
) -> pd.DataFrame:
    """Return a table of the measured attention, a row per layer (means over its heads) or, with `heads`, per head.

    replicates   each record's value with one group of units left out [record, group]; None: means have no intervals

    Columns: stack, kind, layer, then those of `VALUES` that the run has, and `low` and `high` after the entropy.
    Layers also have the number of `heads`, and of heads of each kind (`sink heads`, …); heads have `head` and `kind of
    head`. Empty if attention was not measured.
    """
    if heads:
        rows = attention_heads(records)
        index = [*INDEX, "head"]
        names = VALUES
    else:
        rows = attention_layers(records, replicates)
        index = INDEX
        names = VALUES | OF_LAYERS
    if not len(rows):
        return pd.DataFrame(columns=INDEX)
    wide = rows.pivot_table(
        index=index, columns="metric", values="value", aggfunc="first", sort=True
    )
    measured = [metric for metric in VALUES if metric in wide]
    # The pivot leaves the name `metric` over the columns, which would be printed.
    table = wide[measured].rename(columns=names).rename_axis(columns=None)
    if "entropy" in table:
        entropy = rows[rows["metric"].eq("attention.entropy_normalised")].set_index(
            index
        )
        # Behind the entropy, which is the first column whenever it was measured:
        # `VALUES` begins with it.
        table.insert(1, "low", entropy["low"].reindex(table.index))
        table.insert(2, "high", entropy["high"].reindex(table.index))
    if heads:
        _add_kinds(table, records)
    else:
        _add_counts(table, records)
    return table.reset_index()


def _add_kinds(table: pd.DataFrame, records: pd.DataFrame) -> None:
    """Add to a table of heads a column with the kinds of each head by the rules of this module: `sink, one-hot`."""
    kinds: dict[Any, list[str]] = {}
    for rule, row in _select_named_heads(records):
        kinds.setdefault((*_place(row), row.head), []).append(rule.name)
    table["kind of head"] = [", ".join(kinds.get(place, [])) for place in table.index]


def _add_counts(table: pd.DataFrame, records: pd.DataFrame) -> None:
    """Add to a table of layers the number of heads, and how many of them are of each kind (`sink heads`, …)."""
    by_layer = count_heads(records)
    counts = [by_layer[place] for place in table.index]
    table.insert(0, "heads", [count["heads"] for count in counts])
    for rule in RULES:
        table[f"{rule.name} heads"] = [count[rule.name] for count in counts]


def count_heads(records: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, int]]:
    """Count the heads of each (stack, kind, layer): `heads` in all, and how many each rule names, by the rule's
    name.
    """
    names = ["heads", *(rule.name for rule in RULES)]
    # A head has a record for each metric, and is counted once.
    heads = attention_heads(records).drop_duplicates([*INDEX, "head"])
    counts: dict[tuple[Any, ...], dict[str, int]] = {}
    for row in iter_rows(heads):
        of_layer = counts.setdefault(_place(row), dict.fromkeys(names, 0))
        of_layer["heads"] += 1
    for rule, row in _select_named_heads(records):
        counts[_place(row)][rule.name] += 1
    return counts


def attention_layers(
    records: pd.DataFrame, replicates: Array | None = None
) -> pd.DataFrame:
    """Return attention records of whole layers: each value averaged over the heads, with its interval.

    replicates   each record's value with one group of units left out [record, group]; None: there are no intervals
    """
    rows = attention_heads(records)
    left_out = None
    # Replicates of other records (some were filtered, or merged) do not belong to these rows.
    if replicates is not None and len(replicates) == len(records):
        left_out = replicates[rows.index.to_numpy()]
    means, _ = average_heads(rows, left_out)
    return means


def attention_findings(records: pd.DataFrame) -> Iterator[Finding]:
    """Say which heads are sinks, uniform, one-hot, aligned or opposite, and what centring the queries would change."""
    rows = attention_heads(records)
    if not len(rows):
        return
    by_rule: dict[str, list[Any]] = {}
    for rule, row in _select_named_heads(records):
        by_rule.setdefault(rule.name, []).append(row)
    # An encoder–decoder has three kinds of attention: of the encoder, of the decoder,
    # and between them.
    several = rows["kind"].nunique() > 1 or rows["stack"].nunique() > 1
    for (stack, kind), part in rows.groupby(["stack", "kind"], sort=False):
        # Stack and kind are named only if there are several.
        before = ""
        if several:
            before = f"{str(stack).capitalize()}, {kind}-attention: "
        yield from _iter_findings(part, stack, kind, by_rule, before)


def _iter_findings(
    part: pd.DataFrame, stack: Any, kind: Any, by_rule: Any, before: str
) -> Iterator[Finding]:
    """Yield the findings on the heads of one stack (encoder or decoder) and kind of attention (self, cross).

    part      attention records of single heads
    by_rule   rows of the heads that each rule names
    before    the words that begin each sentence
    """
    # A head has a record for each metric, and is counted once.
    count = len(part[["layer", "head"]].drop_duplicates())
    are_ordinary = True
    for rule in RULES:
        found = []
        for row in by_rule.get(rule.name, []):
            if (row.stack, row.kind) == (stack, kind):
                found.append(row)
        if not found:
            continue
        are_ordinary = False
        where = describe_layer_numbers([int(row.layer) for row in found])
        text = f"{before}{len(found)} of {count_noun(count, 'head')} {rule.describe(len(found))}, {where}."
        # A large model has hundreds of such heads; the finding keeps the records of the first ones.
        numbers = tuple(entry(row) for row in found[:10])
        yield Finding(f"attention_{rule.name.replace('-', '_')}", text, numbers)
    if are_ordinary:
        entropy = part[part["metric"].eq("attention.entropy_normalised")]["value"]
        mean = ""
        if len(entropy):
            mean = f" (mean normalised entropy {format_short(float(entropy.mean()))})"
        text = (
            f"{before}No head is a sink, uniform, one-hot, aligned or opposite{mean}."
        )
        yield Finding("attention_ordinary", text)
    yield from _describe_centring(part, before)


def _describe_centring(part: pd.DataFrame, before: str) -> Iterator[Finding]:
    """Say in how many heads attention would change if the mean query were subtracted.

    part     attention records of single heads
    before   the words that begin the sentence
    """
    rises = part[
        part["metric"].eq("centred_attention.query_rise") & part["low"].notna()
    ]
    if not len(rises):
        return
    line = f"{format_short(CHANGED, 1)} nats"
    changed = []
    for row in iter_rows(rises):
        # The whole interval must lie beyond the line, on either side.
        if row.low > CHANGED or row.high < -CHANGED:
            changed.append(row)
    if changed:
        # Centring may sharpen or flatten attention: the largest change of either sign.
        top = max(changed, key=lambda row: abs(row.value))
        heads = count_noun(len(changed), "head")
        layers = describe_layer_numbers([int(row.layer) for row in changed])
        text = f"{before}Centring the queries would change attention in {heads}"
        text += f" (entropy by more than {line}), {layers};"
        text += f" most in head {int(top.head)} of layer {int(top.layer)}: {format_short(top.value, 2)} nats."
        yield Finding("attention_centring", text, (entry(top),))
    elif (rises["high"] < CHANGED).all() and (rises["low"] > -CHANGED).all():
        # That nothing changes is a finding only if every interval lies within both lines.
        text = f"{before}Centring the queries would change the entropy of no head by {line} or more."
        yield Finding("attention_centring", text)


def attention_heads(records: pd.DataFrame) -> pd.DataFrame:
    """Select the attention records of single heads; a series of checkpoints gives those of its last step.

    Query-key cosines are those of raw queries and keys under the first token policy (which tokens count). The index of
    the result is each record's row number.
    """
    # The row number is where the replicates of a record are.
    records = records.reset_index(drop=True)
    rows = select(records, metric=tuple(VALUES), component=None)
    rows = rows[rows["head"].notna() & rows["value"].notna()]
    # Means over steps of a training would describe no model that ever was.
    if rows["step"].nunique() > 1:
        rows = rows[rows["step"].eq(rows["step"].max()).fillna(False)]
    # Unlike attention, these cosines are measured at several sites and under every policy: one of each is taken.
    of_pairs = rows["metric"].eq("query_key.cosine")
    if of_pairs.any():
        policy = rows.loc[of_pairs, "token_policy"].iloc[0]
        is_raw = rows["site"].eq("query.raw") & rows["token_policy"].eq(policy)
        rows = rows[~of_pairs | is_raw.fillna(False)]
    return rows.sort_values([*INDEX, "head"], kind="stable")


def _select_named_heads(records: pd.DataFrame) -> list[tuple[Rule, Any]]:
    """Return (rule, record) for each head and each rule (`sink`, `uniform` …) that the head's record fulfils.

    The whole interval of the record must lie beyond the threshold of the rule.
    """
    named = []
    rows = attention_heads(records)
    for rule in RULES:
        of_rule = rows[rows["metric"].eq(rule.metric)]
        for row in iter_rows(of_rule):
            # Without an interval nothing is judged.
            if pd.isna(row.low) or pd.isna(row.high):
                continue
            is_beyond = row.low > rule.line if rule.above else row.high < rule.line
            if is_beyond:
                named.append((rule, row))
    return named


def _place(row: Any) -> tuple[Any, ...]:
    """Return (stack, kind of attention, layer) of a record."""
    return row.stack, row.kind, row.layer


def describe_layer_numbers(layers: list[int]) -> str:
    """Write layer numbers in words, with ranges: `in layer 3`, `in layers 1–4 and 6`."""
    unique = sorted(set(layers))
    runs: list[list[int]] = []
    for layer in unique:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = []
    for run in runs:
        # Two neighbours are named one by one: `3 and 4`, not `3–4`.
        if len(run) > 2:
            parts.append(f"{run[0]}–{run[-1]}")
        else:
            parts.extend(str(layer) for layer in run)
    return f"in layer{'s' * (len(unique) > 1)} {join_words(parts)}"
