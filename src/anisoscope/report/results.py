"""A run as the report reads it: rows of its long table by metric, one token policy first."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from anisoscope.axes import POLICIES, WORDS, pluralise
from anisoscope.runs.attention import attention_layers, attention_table
from anisoscope.wording import format_count, join_words, use_words_of_corpus

LAYER_SITES = ("hidden", "final")
PANEL = "panel"
"""Column that names the small multiple a row belongs to: its stack, and cross-attention apart."""


@dataclass(frozen=True)
class Results:
    """Records and manifest of one run, in the forms that figures need. `lead` is the token policy that figures
    without a choice of policy show.

    replicates   of each record its value without each group of units [record, group]; None: means over heads have no
                 intervals
    """

    records: pd.DataFrame
    manifest: Mapping[str, Any]
    replicates: Any = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """The records with plain types, their panel named, and undefined values left out."""
        frame = self.records[self.records["value"].notna()]
        text = ("stack", "kind", "site", "token_policy", "metric", "component")
        numbers = ("value", "low", "high", "layer", "head", "n_vectors", "n_units")
        frame = frame.assign(**{name: frame[name].astype(object).where(frame[name].notna(), None) for name in text})
        frame = frame.assign(**{name: pd.to_numeric(frame[name]).astype(float) for name in numbers})
        crossed = frame["kind"].eq("cross").map({True: ", cross-attention", False: ""})
        return frame.assign(**{PANEL: frame["stack"].fillna("").astype(str) + crossed}).reset_index(drop=True)

    @property
    def last(self) -> "Results":
        """The last step of a series, of the first seed that reaches it; of a run all."""
        if "checkpoints" not in self.manifest:
            return self
        ends = self.records[self.records["step"].eq(self.records["step"].max())]
        return Results(ends[ends["seed"].eq(ends["seed"].iloc[0])], self.manifest)

    @cached_property
    def attention(self) -> pd.DataFrame:
        """Means over the heads of each layer, and how many heads are of which kind; empty without attention."""
        return attention_table(self.records, replicates=self.replicates)

    @cached_property
    def attention_layers(self) -> pd.DataFrame:
        """The same means as records, each with its interval."""
        return attention_layers(self.records, self.replicates)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        """Panels in the order of the records."""
        return {name: i for i, name in enumerate(self.table[PANEL].unique())}

    @cached_property
    def _by_metric(self) -> dict[str, pd.DataFrame]:
        """The rows of each metric."""
        return {str(name): rows for name, rows in self.table.groupby("metric", sort=False)}

    def of(self, metric: str) -> pd.DataFrame:
        """Return all rows of one metric."""
        return self._by_metric.get(metric, self.table[:0])

    @cached_property
    def policies(self) -> list[str]:
        """Token policies of the run, in the order of the glossary."""
        found = set(self.table["token_policy"].dropna())
        return [name for name in POLICIES if name in found] + sorted(found - set(POLICIES))

    @cached_property
    def corpus(self) -> Mapping[str, Any]:
        """What the manifest says of the corpus: where it only names it, the name."""
        corpus = self.manifest.get("corpus")
        return corpus if isinstance(corpus, Mapping) else {"name": corpus}

    @cached_property
    def words(self) -> dict[str, str]:
        """The corpus's names for its positions, sequences and units."""
        return WORDS | dict(self.corpus.get("words") or {})

    @property
    def lead(self) -> str:
        """The token policy of figures that show one only."""
        return self.policies[0] if self.policies else ""

    def rows(self, metric: str, *, every_policy: bool = False, component: str | None = None) -> pd.DataFrame:
        """Return rows of one metric (under the lead policy, if it knows policies): aggregates, or one component."""
        frame = self.of(metric)
        if not every_policy:
            policy = frame["token_policy"]
            frame = frame[policy.eq(self.lead) | policy.isna() | (not policy.eq(self.lead).any())]
        parts = frame["component"]
        return frame[parts.isna() if component is None else parts.eq(component)]

    def components(self, metric: str) -> pd.DataFrame:
        """Return rows of every component of a metric, under the lead policy."""
        frame = self.of(metric)
        frame = frame[frame["component"].notna()]
        policy = frame["token_policy"]
        return frame[policy.eq(self.lead) | policy.isna()]

    def layers(self, metric: str, **choice: Any) -> pd.DataFrame:
        """Return rows of hidden states and of the output after the final norm, in order of depth."""
        frame = self.rows(metric, **choice)
        frame = frame[frame["site"].isin(LAYER_SITES) & frame["layer"].notna()]
        return self.by_depth(frame)

    def stacked(self, labels: Mapping[str, str]) -> pd.DataFrame:
        """Return layer rows of several metrics in one frame; `series` names each."""
        return pd.concat([self.layers(metric).assign(series=label) for metric, label in labels.items()])

    def heads(self, metric: str, site: str = "", component: str | None = None) -> pd.DataFrame:
        """Rows of single heads at one site (by its first word; the stage `raw` where there are several), of the metric
        itself or of one component.
        """
        frame = self.rows(metric, component=component)
        frame = frame[frame["head"].notna() & frame["layer"].notna()]
        if site:
            frame = frame[frame["site"].str.split(".").str[0].eq(site)]
        raw = frame["site"].str.endswith(".raw").fillna(False).astype(bool)
        frame = (frame[raw] if raw.any() else frame).astype({"layer": int, "head": int})
        return self.by_depth(frame)

    def by_depth(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Sort rows panel by panel, layer by layer (the output after the final norm last), and by head."""
        return sort_by_keys(rows, rows[PANEL].map(self._ranks), rows["layer"], rows["site"].eq("final"), rows["head"])

    @cached_property
    def peak(self) -> pd.Series | None:
        """The row of A at its most anisotropic place, under the lead policy."""
        frame = self.layers("mean_cosine")
        return None if frame.empty else frame.iloc[int(frame["value"].argmax())]

    def at(self, place: pd.Series, metric: str, component: str | None = None) -> pd.Series | None:
        """Return the row of a metric at the place of another row."""
        frame = self.beside(self.rows(metric, component=component), place)
        return None if frame.empty else frame.iloc[0]

    def beside(self, frame: pd.DataFrame, place: pd.Series) -> pd.DataFrame:
        """Return the rows of a frame at the place of another row."""
        keys = ["stack", "layer", "site"]
        return frame[frame[keys].eq(place[keys]).all(axis=1)]

    @cached_property
    def width(self) -> int | None:
        """Dimensions of the hidden states, where their contributions were recorded."""
        frame = self.components("mean_cosine.contribution")
        frame = frame[frame["site"].isin(LAYER_SITES)]
        return None if frame.empty else int(frame.groupby(["stack", "layer", "site"]).size().max())

    def place_name(self, row: pd.Series) -> str:
        """Name a row's place: `layer 3`, `the final norm`; with its stack first, if there are several."""
        name = "the final norm" if row["site"] == "final" else f"layer {int(row['layer'])}"
        stacks = self.table.loc[self.table["site"].isin(LAYER_SITES), "stack"].nunique()
        return f"{row['stack']} {name.removeprefix('the ')}" if stacks > 1 else name

    def worded(self, text: str) -> str:
        """Return a text of the page in the words of the corpus; a per cent sign stays with its number."""
        return re.sub(r"(\d) %", "\\1\N{NO-BREAK SPACE}%", use_words_of_corpus(text, self.words))

    def basis(self, frame: pd.DataFrame, what: str = "vectors") -> str:
        """Say what the numbers of a figure are computed from: how many of what, units, and vectors of the token
        policy.
        """
        vectors, alone = what in ("vectors", "rows"), frame["n_units"].equals(frame["n_vectors"])
        parts = [f"n = {describe_extent(frame['n_vectors'])} {what}"] if frame["n_vectors"].notna().any() else []
        if (units := describe_extent(frame["n_units"])) and (vectors or not alone):
            parts.append(f"in {units} {self.words['unit'] if units == '1' else pluralise(self.words['unit'])}")
        policies = join_words(list(dict.fromkeys(frame["token_policy"].dropna()))) if vectors else ""
        return "; ".join(filter(None, (" ".join(parts), f"tokens: {policies}" if policies else "")))


def sort_by_keys(frame: pd.DataFrame, *keys: pd.Series) -> pd.DataFrame:
    """Sort rows by the first key, then the next; equal rows stay in order."""
    names = [str(i) for i in range(len(keys))]
    order = pd.concat(keys, axis=1, keys=names)
    return frame.loc[order.sort_values(names, kind="stable").index]


def describe_extent(numbers: pd.Series) -> str:
    """Describe a count of rows: one number, or a range if they differ; nothing if none is known."""
    if numbers.isna().all():
        return ""
    low, high = format_count(numbers.min()), format_count(numbers.max())
    return low if low == high else f"{low} to {high}"
