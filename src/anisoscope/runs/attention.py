"""What a run says of attention: a table of layers or heads, and findings by stated rules.

A head is named only if the whole 95 % interval of its value lies beyond the line of the rule. Heads that no rule names
are ordinary: attention that is neither sharp nor flat, and goes where the input says.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anisoscope.runs.finding import Finding, entry
from anisoscope.store import select
from anisoscope.wording import each, listing, plural, short

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
INDEX = ["stack", "kind", "layer"]


@dataclass(frozen=True)
class Rule:
    """A kind of head: the value it is read off, the line, and on which side of it the whole interval must lie.

    several  words for heads of this kind, after their number: `12 of 72 heads …`
    """

    name: str
    metric: str
    line: float
    above: bool
    several: str


RULES = (
    Rule("sink", "attention.first_mass", 0.5, True, "give more than half of their weight to the first token (sinks)"),
    Rule("uniform", "attention.entropy_normalised", 0.95, True, "attend nearly uniformly (entropy .95 of its largest)"),
    Rule("one-hot", "attention.row_max", 0.9, True, "attend to a single token (largest weight above .9)"),
    Rule("aligned", "query_key.cosine", 0.8, True, "have aligned mean queries and keys (cosine above .8)"),
    Rule("opposite", "query_key.cosine", -0.8, False, "have opposite mean queries and keys (cosine below −.8)"),
)
CHANGED = 0.1
"""Nats of entropy that centring the queries must add to count as a change."""


def attention_table(records: pd.DataFrame, *, heads: bool = False) -> pd.DataFrame:
    """A row per layer (mean over its heads), or per head, of the attention that was measured.

    Columns: stack, kind, layer (and head), then the values of `VALUES` that the run has, and `sinks`, `uniform`,
    `one_hot`: how many heads of the layer those rules name. Of one head, `low` and `high` of its entropy follow. Empty
    if attention was not measured.
    """
    rows = _head_rows(records)
    if not len(rows):
        return pd.DataFrame(columns=INDEX)
    wide = rows.pivot_table(index=[*INDEX, "head"], columns="metric", values="value", aggfunc="first", sort=True)
    wide = wide[[metric for metric in VALUES if metric in wide]]
    if heads:
        table = wide.rename(columns=VALUES)
        entropy = rows[rows["metric"].eq("attention.entropy_normalised")].set_index([*INDEX, "head"])
        if "entropy" in table:
            table.insert(1, "low", entropy["low"].reindex(table.index))
            table.insert(2, "high", entropy["high"].reindex(table.index))
        kinds: dict[Any, list[str]] = {}
        for rule, row in _named_heads(records):
            kinds.setdefault((*_place(row), row.head), []).append(rule.name)
        table["kind of head"] = [", ".join(kinds.get(place, [])) for place in table.index]
        return table.reset_index()
    for metric in OF_LAYERS:
        if metric in wide:
            wide[metric] = wide[metric].abs()
    table = wide.groupby(level=INDEX, sort=True).mean().rename(columns=VALUES | OF_LAYERS)
    table.insert(0, "heads", wide.groupby(level=INDEX, sort=True).size())
    for rule in RULES[:3]:
        named = [_place(row) for found, row in _named_heads(records) if found is rule]
        table[f"{rule.name} heads"] = [named.count(place) for place in table.index]
    return table.reset_index()


def attention_findings(records: pd.DataFrame) -> Iterator[Finding]:
    """Which heads are sinks, uniform, one-hot, aligned or opposite, and what centring the queries would change."""
    rows = _head_rows(records)
    if not len(rows):
        return
    by_rule: dict[str, list[Any]] = {}
    for rule, row in _named_heads(records):
        by_rule.setdefault(rule.name, []).append(row)
    several = rows["kind"].nunique() > 1 or rows["stack"].nunique() > 1
    for (stack, kind), part in rows.groupby(["stack", "kind"], sort=False):
        before = f"{str(stack).capitalize()}, {kind}-attention: " if several else ""
        yield from _findings_of(part, stack, kind, by_rule, before)


def _findings_of(part: pd.DataFrame, stack: Any, kind: Any, by_rule: Any, before: str) -> Iterator[Finding]:
    count = len(part[["layer", "head"]].drop_duplicates())
    ordinary = True
    for rule in RULES:
        found = [row for row in by_rule.get(rule.name, []) if (row.stack, row.kind) == (stack, kind)]
        if not found:
            continue
        ordinary = False
        where = _list_layers([int(row.layer) for row in found])
        numbers = tuple(entry(row) for row in found[:10])
        text = f"{before}{len(found)} of {plural(count, 'head')} {rule.several}, {where}."
        yield Finding(f"attention_{rule.name.replace('-', '_')}", text, numbers)
    if ordinary:
        entropy = part[part["metric"].eq("attention.entropy_normalised")]["value"]
        mean = f" (mean entropy {short(float(entropy.mean()))} of the most possible)" if len(entropy) else ""
        text = f"{before}No head is a sink, uniform, one-hot, aligned or opposite by these rules{mean}."
        yield Finding("attention_ordinary", text)
    yield from _centring(part, before)


def _centring(part: pd.DataFrame, before: str) -> Iterator[Finding]:
    """Whether attention would change if the mean query were taken away."""
    rises = part[part["metric"].eq("centred_attention.query_rise") & part["low"].notna()]
    if not len(rises):
        return
    changed = [row for row in each(rises) if row.low > CHANGED or row.high < -CHANGED]
    if changed:
        top = max(changed, key=lambda row: abs(row.value))
        text = f"{before}Centring the queries would change attention in {plural(len(changed), 'head')}"
        text += (
            f" (entropy by more than {short(CHANGED, 1)} nats), {_list_layers([int(row.layer) for row in changed])};"
        )
        text += f" most in head {int(top.head)} of layer {int(top.layer)}: {short(top.value, 2)} nats."
        yield Finding("attention_centring", text, (entry(top),))
    elif (rises["high"] < CHANGED).all() and (rises["low"] > -CHANGED).all():
        text = f"{before}Centring the queries would change the entropy of no head by {short(CHANGED, 1)} nats or more."
        yield Finding("attention_centring", text)


def _head_rows(records: pd.DataFrame) -> pd.DataFrame:
    """Rows of single heads, of raw queries and keys under the first token policy, of the last step of a series."""
    rows = select(records, metric=tuple(VALUES), component=None)
    rows = rows[rows["head"].notna() & rows["value"].notna()]
    if rows["step"].nunique() > 1:
        rows = rows[rows["step"].eq(rows["step"].max()).fillna(False)]
    of_pairs = rows["metric"].eq("query_key.cosine")
    if of_pairs.any():
        first = rows.loc[of_pairs, "token_policy"].iloc[0]
        raw = rows["site"].eq("query.raw") & rows["token_policy"].eq(first)
        rows = rows[~of_pairs | raw.fillna(False)]
    return rows.sort_values([*INDEX, "head"], kind="stable")


def _named_heads(records: pd.DataFrame) -> list[tuple[Rule, Any]]:
    """(rule, row) of every head that a rule names."""
    found = []
    rows = _head_rows(records)
    for rule in RULES:
        for row in each(rows[rows["metric"].eq(rule.metric)]):
            beyond = row.low > rule.line if rule.above else row.high < rule.line
            if pd.notna(row.low) and pd.notna(row.high) and beyond:
                found.append((rule, row))
    return found


def _place(row: Any) -> tuple[Any, ...]:
    return row.stack, row.kind, row.layer


def _list_layers(layers: list[int]) -> str:
    """`in layer 3`, `in layers 1–4 and 6`."""
    unique = sorted(set(layers))
    runs: list[list[int]] = []
    for layer in unique:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    parts = []
    for run in runs:
        if len(run) > 2:
            parts.append(f"{run[0]}–{run[-1]}")
        else:
            parts.extend(str(layer) for layer in run)
    return f"in layer{'s' * (len(unique) > 1)} {listing(parts)}"
