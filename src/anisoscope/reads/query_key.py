"""Data of metrics that relate queries to keys: sums over the queries and over the keys of every head."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch

from anisoscope.axes import Site
from anisoscope.reads.base import (
    Array,
    Batching,
    Declared,
    FedMeasurement,
    Gathered,
    Keeper,
    Reading,
    Reads,
    Unit,
    draw_pairs,
    make_batch,
    make_totals,
    pad_pairs,
    split_batches,
)
from anisoscope.reads.vectors import LINEAR, VectorSums

HEAD_MOMENTS = frozenset({"head_moment", "head_moment_n"})


class QueryKey(Reads):
    """The queries and the keys of each head at one stage (raw, normed or rotated), as sums.

    `compute` is called with `Totals` whose terms have the side before their name: `totals["query.vector"]` is the sum
    of queries [replicate, policy, head, head_dim]. A model with grouped keys has fewer key heads than query heads.
    Second moments (`head_moment`) have no policy axis.
    """

    word = "queries and keys"
    terms = (LINEAR - {"unit_square"}) | HEAD_MOMENTS

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantities to capture from the model: `query` and `key`."""
        return frozenset({"query", "key"})

    def list_axes(self, needs: frozenset[str]) -> tuple[str, ...]:
        """Return the leading axes: `head` for second moments, else `policy` and `head`."""
        return ("head",) if needs & HEAD_MOMENTS else ("policy", "head")

    def is_of_first_policy(self, needs: frozenset[str]) -> bool:
        """Return whether second moments are needed: they are kept for the first token policy only."""
        return bool(needs & HEAD_MOMENTS)

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:
        """Yield one keeper: the accumulator of the sums (named in `needs`) over queries and keys."""
        yield VectorSums({"query": needs, "key": needs})

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield the sums over queries and keys of each layer and stage."""
        count = "head_moment_n" if metric.needs & HEAD_MOMENTS else "n"
        for name, site in gathered.sites.items():
            if site.quantity != "query":
                continue
            # The key of the same layer, stage and kind of attention: rows of the table
            # belong to the query's site.
            key = Site(site.stack, site.layer, "key", site.stage, site.kind)
            terms: dict[str, Array] = {}
            for term, x in gathered.sums.at(name, metric.needs).items():
                terms[f"query.{term}"] = x
            for term, x in gathered.sums.at(key.name, metric.needs).items():
                terms[f"key.{term}"] = x
            totals = make_totals(terms)
            if totals is not None:
                rows = np.asarray(gathered.sums.at(name, (count,))[count].sum(0))
                yield Reading(totals, gathered.make_columns(site), rows)

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
        """Feed test data to a measurement as queries and keys of one head: each unit is a sequence of its own."""
        for first, part in split_batches(units, batching):
            query, key, real = pad_pairs(part, batching)
            if not real.shape[1]:
                continue
            measurement.begin(make_batch(first, real), torch.device("cpu"))
            measurement.receive(Site("encoder", 1, "query"), query.unsqueeze(1))
            measurement.receive(Site("encoder", 1, "key"), key.unsqueeze(1))
            measurement.end()
