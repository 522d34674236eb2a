"""Data of metrics of attention: sums over the rows of each head, over rows with queries or keys centred, and of
logits.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from anisoscope.axes import Quantity, Site
from anisoscope.reads.base import (
    Batching,
    Declared,
    FedMeasurement,
    Gathered,
    Keeper,
    Pass,
    Reading,
    Reads,
    Unit,
    draw_pairs,
    make_batch,
    make_totals,
    pad_pairs,
    split_batches,
)
from anisoscope.sums.groups import sum_rows

SIDES = ("plain", "query", "key")
"""Rows as they are; with queries centred; with keys centred."""
COUNTS_OF_ROWS = frozenset({"rows", "normalised_rows", "pairs", "row_sequences"})
WEIGHTS_OF_ROWS = frozenset(
    {"row_max", "row_min", "row_median", "first_mass", "row_similarity"}
)
OF_ROWS = (
    COUNTS_OF_ROWS
    | WEIGHTS_OF_ROWS
    | {"entropy", "entropy_normalised", "score", "score_histogram"}
)
OF_SCORES = frozenset(
    {
        "rows",
        "query",
        "query_moment",
        "keys",
        "key",
        "row_variance",
        "row_lean",
        "row_spread",
    }
)


class OfQuantity(Keeper):
    """Base of keepers that take every value of one quantity and do not depend on the metric."""

    quantity: Quantity

    def join(self, other: Self) -> Self:  # noqa: ARG002
        """Return this keeper unchanged: two of this class accumulate the same values."""
        return self

    def takes(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds this keeper's quantity."""
        return site.quantity == self.quantity


class RowSums(OfQuantity):
    """Keep sums over attention rows."""

    quantity = "attention"

    def add(self, site: Site, value: Mapping[str, Tensor], running: Pass) -> None:
        """Sum the statistics of attention rows [sequence, head, query] over the real queries of a batch."""
        add_rows(site, value, running)


class CentredRowSums(OfQuantity):
    """Keep sums over attention rows as they are, with queries centred, and with keys centred.

    The terms are named `plain.…`, `query.…`, `key.…`.
    """

    quantity = "centred"

    def add(
        self, site: Site, value: Mapping[str, Mapping[str, Tensor]], running: Pass
    ) -> None:
        """Add the attention-row statistics of plain, query-centred and key-centred attention, each under its prefix."""
        for side, rows in value.items():
            add_rows(site, rows, running, f"{side}.")


class ScoreSums(OfQuantity):
    """Keep sums of attention scores (logits), which the capture computes."""

    quantity = "scores"

    def add(self, site: Site, value: Mapping[str, Tensor], running: Pass) -> None:
        """Add the sums over attention logits of a batch to those of their site (place in the model).

        value   {name of a sum: [sequence, head, …]}, as `capture.scores.sum_scores` makes them
        """
        running.add_sums(site.name, value)


def add_rows(
    site: Site, rows: Mapping[str, Tensor], running: Pass, prefix: str = ""
) -> None:
    """Sum the statistics of attention rows (one row per query) over real queries that see a key, and add them to a
    site.

    rows     statistics [sequence, head, query] by name, as `capture.rows.attention_rows` returns them
    prefix   is put before the names of the sums
    running  the running measurement
    """
    keys = rows["keys"]
    real = running.find_real_queries(site, keys)
    # A row that sees no key has no weights: whatever is in its place must not enter a
    # mean.
    terms = sum_rows(rows, real.unsqueeze(1) & (keys > 0))
    running.add_sums(site.name, {prefix + name: value for name, value in terms.items()})


class _OfAttention(Reads):
    """Base of the kinds of data that are sums of attention by head, without an axis of token policies."""

    quantity: str
    counted: str

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantity to capture from the model."""
        return frozenset({self.quantity})

    def list_axes(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return `head`: values have one entry per head."""
        return ("head",)

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield the sums over attention of each layer, with the number of rows behind them."""
        for name, site in gathered.sites.items():
            if site.quantity != self.quantity:
                continue
            totals = make_totals(gathered.sums.at(name, metric.needs))
            if totals is not None:
                count = np.asarray(
                    gathered.sums.at(name, (self.counted,))[self.counted].sum(0)
                )
                yield Reading(totals, gathered.make_columns(site), count)

    def draw(
        self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7
    ) -> list[Unit]:
        """Draw random queries and keys for each unit."""
        return draw_pairs(seed, sizes, d)

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as queries and keys of one head: each unit is a sequence of its own.

        Every query sees all keys of its sequence, and logits are scaled by 1.
        """
        # Of all data, not of a batch: a capture knows the means from a pass of its own.
        means = []
        for side in (0, 1):
            vectors = np.concatenate([unit[side] for unit in units])
            # The mean of no vector would be NaN.
            mean = vectors.sum(0) / max(1, len(vectors))
            means.append(torch.as_tensor(mean).to(batching.dtype))
        for first, part in split_batches(units, batching):
            query, key, real = pad_pairs(part, batching)
            if not real.shape[1]:
                continue
            measurement.begin(make_batch(first, real), torch.device("cpu"))
            value = self.simulate_capture(
                query.unsqueeze(1), key.unsqueeze(1), real, means
            )
            measurement.receive(Site("encoder", 1, self.quantity), value)  # type: ignore[arg-type]
            measurement.end()

    @abstractmethod
    def simulate_capture(
        self, query: Tensor, key: Tensor, real: Tensor, means: Sequence[Tensor]
    ) -> Any:
        """Return the attention that a model with these queries and keys [sequence, head, token, dim] would give.

        real    which tokens are real [sequence, token]
        means   the mean query and the mean key of all test data
        """


def compute_rows(query: Tensor, key: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return statistics of attention rows with scale 1, by name, as a capture would hand them on.

    query, key   [sequence, head, token, dim]
    real         which tokens are real [sequence, token]
    """
    from anisoscope.capture.masking import Masking
    from anisoscope.capture.rows import attention_rows

    return attention_rows(
        query,
        key,
        Masking(real[:, None, None, :], causal=False, bias=None),
        scale=1.0,
        real=real,
    )


class Rows(_OfAttention):
    """The attention rows of each head, as sums over real queries: entropy, largest weight, mass on the first key, …

    `compute` is called with `Totals`: `totals["entropy"]` is the sum of entropies [replicate, head].
    """

    word = "attention rows"
    terms = OF_ROWS
    quantity = "attention"
    counted = "rows"

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield one keeper: the accumulator of sums over attention rows."""
        yield RowSums()

    def simulate_capture(
        self,
        query: Tensor,
        key: Tensor,
        real: Tensor,
        means: Sequence[Tensor],  # noqa: ARG002
    ) -> Any:
        """Return the statistics of attention rows of these queries and keys [sequence, head, token, dim], as a capture
        would.

        real   which tokens are real [sequence, token]
        """
        return compute_rows(query, key, real)


class CentredRows(_OfAttention):
    """Attention rows as they are, with the mean query subtracted from queries, and with the mean key subtracted from
    keys.

    The terms are those of `Rows` with the variant before their name (`plain.entropy`, `query.entropy`, `key.entropy`).
    """

    word = "attention rows with and without the mean query and key"
    terms = frozenset(f"{side}.{term}" for side in SIDES for term in OF_ROWS)
    quantity = "centred"
    counted = "plain.rows"
    adds_up = False

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield one keeper: the accumulator of the three variants of attention rows."""
        yield CentredRowSums()

    def simulate_capture(
        self, query: Tensor, key: Tensor, real: Tensor, means: Sequence[Tensor]
    ) -> Any:
        """Return statistics of attention rows in three variants, as a capture would.

        Keys: `plain` (as is), `query` (mean query subtracted from queries), `key` (mean key subtracted from keys).

        real    which tokens are real [sequence, token]
        means   the mean query and the mean key
        """
        mean_query, mean_key = means
        return {
            "plain": compute_rows(query, key, real),
            "query": compute_rows(query - mean_query, key, real),
            "key": compute_rows(query, key - mean_key, real),
        }


class Scores(_OfAttention):
    """Sums of attention scores q·k·scale inside and between rows (`capture/scores.py` defines each term)."""

    word = "attention scores"
    terms = OF_SCORES
    quantity = "scores"
    counted = "rows"

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield one keeper: the accumulator of score sums."""
        yield ScoreSums()

    def simulate_capture(
        self,
        query: Tensor,
        key: Tensor,
        real: Tensor,
        means: Sequence[Tensor],  # noqa: ARG002
    ) -> Any:
        """Return the sums of attention logits of these queries and keys [sequence, head, token, dim], as a capture
        would.

        The scale is 1.

        real   which tokens are real [sequence, token]
        """
        from anisoscope.capture.masking import Masking
        from anisoscope.capture.scores import sum_scores

        masking = Masking(real[:, None, None, :], causal=False, bias=None)
        return sum_scores(query, key, masking, scale=1.0, real=real)
