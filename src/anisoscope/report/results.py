"""The results of a run in the form that reports need: rows of its long table by metric."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from anisoscope.axes import POLICIES, WORDS, pluralise
from anisoscope.runs.attention import attention_layers, attention_table
from anisoscope.wording import (
    NAMES_OF_VECTORS,
    format_count,
    join_words,
    use_words_of_corpus,
)

LAYER_SITES = ("hidden", "final")
PANEL = "panel"
"""Column that names the small multiple a row belongs to: its stack, and cross-attention apart."""
CROSSED = ", cross-attention"
"""What the name of a panel of cross-attention ends with."""
SHARED_SITES = ("key", "value")
"""Quantities of which several heads may share one vector."""


@dataclass(frozen=True)
class Results:
    """Records and manifest of one run, in the forms that figures need.

    replicates   for each record its value without each group of units [record, group]; None: means over heads have no
                 intervals
    """

    records: pd.DataFrame
    manifest: Mapping[str, Any]
    replicates: Any = None

    @cached_property
    def table(self) -> pd.DataFrame:
        """Return the records with a defined value, as text and floats, with a column for the panel of a chart."""
        frame = self.records[self.records["value"].notna()].copy()
        for name in ("stack", "kind", "site", "token_policy", "metric", "component"):
            # None for what is missing, in plain columns: pandas' own missing value is
            # neither true nor false, and breaks comparisons.
            frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
        for name in ("value", "low", "high", "layer", "head", "n_vectors", "n_units"):
            # Floats throughout, with NaN for missing layers and heads.
            frame[name] = pd.to_numeric(frame[name]).astype(float)
        frame[PANEL] = name_panels(frame)
        return frame.reset_index(drop=True)

    @cached_property
    def head_places(self) -> pd.DataFrame:
        """Return the panel, layer and number of every head, also of those whose values are all undefined.

        Heads are those of queries: keys and values may be shared, so that there are fewer of them.
        """
        rows = self.records[
            self.records["head"].notna() & self.records["layer"].notna()
        ]
        rows = rows[~rows["site"].str.split(".").str[0].isin(SHARED_SITES)]
        places = rows[["stack", "kind", "layer", "head"]].drop_duplicates()
        places = places.assign(**{PANEL: name_panels(places)})
        return places[[PANEL, "layer", "head"]].astype({"layer": int, "head": int})

    @property
    def last(self) -> "Results":
        """Return the results of the last checkpoint of a series; those of a single run unchanged.

        If several seeds have this step, the first one is used.
        """
        if "checkpoints" not in self.manifest:
            return self
        # Headline numbers of a series are those of the trained model.
        ends = self.records[self.records["step"].eq(self.records["step"].max())]
        return Results(ends[ends["seed"].eq(ends["seed"].iloc[0])], self.manifest)

    @cached_property
    def attention(self) -> pd.DataFrame:
        """Return a table of means over the heads of each layer, with the numbers of heads of each kind; empty
        without attention.
        """
        return attention_table(self.records, replicates=self.replicates)

    @cached_property
    def attention_layers(self) -> pd.DataFrame:
        """Return means over the heads of each layer as records with intervals."""
        return attention_layers(self.records, self.replicates)

    @cached_property
    def _ranks(self) -> dict[str, int]:
        """Return the position of each panel (stack) in the order of the records, for sorting."""
        return {name: i for i, name in enumerate(self.table[PANEL].unique())}

    @cached_property
    def _by_metric(self) -> dict[str, pd.DataFrame]:
        """Return the rows of each metric, by its name."""
        return {
            str(name): rows for name, rows in self.table.groupby("metric", sort=False)
        }

    def select_metric(self, metric: str) -> pd.DataFrame:
        """Return all rows of one metric."""
        return self._by_metric.get(metric, self.table[:0])

    @cached_property
    def policies(self) -> list[str]:
        """Return the token policies of the run, in the order of the glossary."""
        measured = set(self.table["token_policy"].dropna())
        known = [name for name in POLICIES if name in measured]
        # Policies that this version does not know, from a run of another one, follow by
        # name.
        return known + sorted(measured - set(POLICIES))

    @cached_property
    def corpus(self) -> Mapping[str, Any]:
        """Return the manifest's entry of the corpus; if that is only a name, a mapping with the name."""
        corpus = self.manifest.get("corpus")
        return corpus if isinstance(corpus, Mapping) else {"name": corpus}

    @cached_property
    def words(self) -> dict[str, str]:
        """Return what the corpus calls its positions, sequences and units (such as token, sentence, document)."""
        # Old manifests hold no words.
        return WORDS | dict(self.corpus.get("words") or {})

    @property
    def lead(self) -> str:
        """Return the first token policy of the run, which figures show if they show only one."""
        return self.policies[0] if self.policies else ""

    def select_rows(
        self, metric: str, *, every_policy: bool = False, component: str | None = None
    ) -> pd.DataFrame:
        """Return the rows of a metric, under the first token policy or, with `every_policy`, under all.

        component   rows of this component (a class, a dimension); None: those of the metric as a whole
        """
        frame = self.select_metric(metric)
        if not every_policy:
            policy = frame["token_policy"]
            is_lead = policy.eq(self.lead)
            # A metric that was measured for other policies only keeps all of them.
            if is_lead.any():
                frame = frame[is_lead | policy.isna()]
        if component is None:
            return frame[frame["component"].isna()]
        return frame[frame["component"].eq(component)]

    def select_components(self, metric: str) -> pd.DataFrame:
        """Return the rows of every component of a metric, for the first token policy."""
        frame = self.select_metric(metric)
        frame = frame[frame["component"].notna()]
        policy = frame["token_policy"]
        return frame[policy.eq(self.lead) | policy.isna()]

    def select_layers(self, metric: str, **choice: Any) -> pd.DataFrame:
        """Return the rows of hidden states and of the output after the final norm, in order of depth."""
        frame = self.select_rows(metric, **choice)
        frame = frame[frame["site"].isin(LAYER_SITES) & frame["layer"].notna()]
        return self.sort_by_depth(frame)

    def stack_metrics(self, labels: Mapping[str, str]) -> pd.DataFrame:
        """Return the rows of several metrics per layer in one table, with their labels in the column `series`.

        labels   {metric: its label}
        """
        parts = []
        for metric, label in labels.items():
            parts.append(self.select_layers(metric).assign(series=label))
        return pd.concat(parts)

    def select_heads(
        self, metric: str, site: str = "", component: str | None = None
    ) -> pd.DataFrame:
        """Return the rows of single heads for a metric, sorted by depth.

        site        first word of the site (`query`); empty: any. If it was measured at several stages, `raw` is chosen
        component   rows of this component; None: those of the metric as a whole
        """
        frame = self.select_rows(metric, component=component)
        frame = frame[frame["head"].notna() & frame["layer"].notna()]
        if site:
            frame = frame[frame["site"].str.split(".").str[0].eq(site)]
        # Queries and keys may be measured raw, normalised and rotated: a figure shows
        # one stage.
        raw = frame["site"].str.endswith(".raw").fillna(False).astype(bool)
        if raw.any():
            frame = frame[raw]
        return self.sort_by_depth(frame.astype({"layer": int, "head": int}))

    def sort_by_depth(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Sort rows by panel (stack), then layer (the output after the final norm last), then head."""
        # False sorts before True: the final norm has the number of the last layer, and
        # follows it.
        return sort_by_keys(
            rows,
            rows[PANEL].map(self._ranks),
            rows["layer"],
            rows["site"].eq("final"),
            rows["head"],
        )

    @cached_property
    def peak(self) -> pd.Series | None:
        """Return the row of anisotropy A at the most anisotropic layer, for the first token policy; None without A."""
        frame = self.select_layers("mean_cosine")
        if frame.empty:
            return None
        return frame.iloc[int(frame["value"].argmax())]

    def find_row(
        self, place: pd.Series, metric: str, component: str | None = None
    ) -> pd.Series | None:
        """Return the row of a metric at the same stack, layer and site as the row `place`; None if there is none."""
        frame = self.select_place(self.select_rows(metric, component=component), place)
        if frame.empty:
            return None
        return frame.iloc[0]

    def select_place(self, frame: pd.DataFrame, place: pd.Series) -> pd.DataFrame:
        """Return the rows of `frame` at the same stack, layer and site as the row `place`."""
        keys = ["stack", "layer", "site"]
        return frame[frame[keys].eq(place[keys]).all(axis=1)]

    @cached_property
    def width(self) -> int | None:
        """Return the number of dimensions of the hidden states, if their contributions were recorded; else None."""
        frame = self.select_components("mean_cosine.contribution")
        # Other sites, such as queries, may be of another width.
        frame = frame[frame["site"].isin(LAYER_SITES)]
        if frame.empty:
            return None
        return int(frame.groupby(["stack", "layer", "site"]).size().max())

    def name_place(self, row: pd.Series) -> str:
        """Return the name of a row's layer: `layer 3`, `the final norm`; with its stack first, if there are several."""
        if row["stack"] in NAMES_OF_VECTORS:
            return NAMES_OF_VECTORS[row["stack"]]
        name = "the final norm"
        if row["site"] != "final":
            name = f"layer {int(row['layer'])}"
        stacks = self.table.loc[self.table["site"].isin(LAYER_SITES), "stack"].nunique()
        if stacks > 1:
            # `decoder final norm`, without the article.
            return f"{row['stack']} {name.removeprefix('the ')}"
        return name

    def put_in_words(self, text: str) -> str:
        """Replace "token" in a text by the corpus's word (frame, patch), and keep numbers and % signs on one line."""
        words = use_words_of_corpus(text, self.words)
        return re.sub(r"(\d) %", "\\1\N{NO-BREAK SPACE}%", words)

    def describe_basis(self, frame: pd.DataFrame, what: str = "vectors") -> str:
        """Say what the numbers of a figure are computed from: how many vectors, units, and which token policy.

        frame   the rows that the figure shows
        what    what is counted, if not vectors
        """
        counts_vectors = what in ("vectors", "rows")
        parts: list[str] = []
        vectors = describe_extent(frame["n_vectors"])
        if vectors:
            parts.append(f"n = {vectors} {what}")
        units = describe_extent(frame["n_units"])
        # Units that are what is counted were named already.
        is_same = frame["n_units"].equals(frame["n_vectors"])
        if units and (counts_vectors or not is_same):
            unit = self.words["unit"]
            if units != "1":
                unit = pluralise(unit)
            parts.append(f"in {units} {unit}")
        sentences = [" ".join(parts)]
        if counts_vectors:
            policies = join_words(list(dict.fromkeys(frame["token_policy"].dropna())))
            if policies:
                sentences.append(f"tokens: {policies}")
        return "; ".join(filter(None, sentences))


def name_panels(rows: pd.DataFrame) -> pd.Series:
    """Return the name of each row's panel, from its `stack` and its `kind` of attention (self or cross)."""
    is_cross = rows["kind"].eq("cross").fillna(False).astype(bool)
    ending = is_cross.map({True: CROSSED, False: ""})
    # Values without a stack (an accuracy) share a panel without a name.
    return rows["stack"].astype(object).fillna("").astype(str) + ending


def sort_by_keys(frame: pd.DataFrame, *keys: pd.Series) -> pd.DataFrame:
    """Sort rows by the first key, then by the next; rows with equal keys keep their order."""
    names = [str(i) for i in range(len(keys))]
    order = pd.concat(keys, axis=1, keys=names)
    return frame.loc[order.sort_values(names, kind="stable").index]


def describe_extent(numbers: pd.Series) -> str:
    """Return the range of counts as text: one number, `8 to 12` if they differ, empty if none is known."""
    # Also if there are no numbers at all.
    if numbers.isna().all():
        return ""
    low, high = format_count(numbers.min()), format_count(numbers.max())
    return low if low == high else f"{low} to {high}"
