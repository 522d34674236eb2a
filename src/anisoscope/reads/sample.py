"""Data of metrics that need single vectors, not sums: a uniform sample of the vectors of a layer."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.reads.base import (
    Array,
    Batching,
    Declared,
    FedMeasurement,
    Gathered,
    Keeper,
    Pass,
    Reading,
    Reads,
    Unit,
    make_batch,
    pad,
    split_batches,
)
from anisoscope.reads.vectors import VectorSums, is_whole_image
from anisoscope.sums.reservoir import Reservoir

T = TypeVar("T")
ROWS = 1024
"""Vectors that are compared with all others at once."""


@dataclass(frozen=True)
class KeptSample(Keeper):
    """Keep a uniform sample of the tokens of each stack (encoder, decoder), the same tokens at every site.

    Hidden states are sampled, and with `heads` also the queries and keys of self-attention.
    """

    heads: bool = False

    def join(self, other: "KeptSample") -> "KeptSample":
        """Return one keeper that samples what either of the two samples."""
        return KeptSample(self.heads or other.heads)

    def takes(self, site: Site) -> bool:
        """Return whether the site's vectors are sampled: hidden states, or with `heads` queries and keys of
        self-attention.
        """
        of_heads = site.quantity in ("query", "key") and site.kind == "self"
        return site.quantity in LAYER_QUANTITIES or (self.heads and of_heads)

    def add(self, site: Site, value: Any, running: Pass) -> None:
        """Offer the vectors of a site (place in the model) to the sample; vectors that are whole images are skipped."""
        if site.quantity not in LAYER_QUANTITIES:
            running.add_sample(site, value.transpose(1, 2))
        elif not is_whole_image(value, running):
            running.add_sample(site, value)


@dataclass(frozen=True)
class SampledVectors:
    """A uniform sample of the vectors of a layer that the first token policy counts.

    vectors  [vector, dim]: finite, not zero; ordered by hash, so that the first k are a uniform sample too
    group    [vector]: the group of units that each vector comes from, below `groups`
    mean     [dim]: the mean of all vectors of the layer, not of the sample only
    """

    vectors: Array
    group: NDArray[np.int64]
    groups: int
    mean: Array
    _cached: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        """Return the number of sampled vectors."""
        return len(self.vectors)

    @cached_property
    def present(self) -> NDArray[np.int64]:
        """Return the numbers of the groups of units that hold a sampled vector, in ascending order."""
        return np.unique(self.group)

    @property
    def n_groups(self) -> int:
        """Return how many groups of units (documents, clips) hold a sampled vector."""
        return len(self.present)

    @cached_property
    def member(self) -> Array:
        """Return [vector, group]: 1 if the vector is in the group, else 0; only groups that hold a vector."""
        return np.asarray(self.group[:, None] == self.present, dtype=np.float64)

    def without(self, index: int) -> "SampledVectors":
        """Return the sample without the vectors of one group; `index` counts groups that hold a vector."""
        return self.take(self.group != self.present[index])

    def take(self, chosen: Any) -> "SampledVectors":
        """Return the sample reduced to the `chosen` vectors (indices or a mask)."""
        return replace(
            self, vectors=self.vectors[chosen], group=self.group[chosen], _cached={}
        )

    def replicates(self, function: Callable[[Array], Any]) -> Array:
        """Return `function` of all vectors [vector, dim], then of the vectors without each group of units in turn.

        The result is [replicate, …]. A replicate is NaN if no vector is left.
        """
        of_all = np.asarray(function(self.vectors), dtype=np.float64)
        values = [of_all]
        for group in self.present:
            others = self.vectors[self.group != group]
            if len(others):
                values.append(np.asarray(function(others), dtype=np.float64))
            else:
                values.append(np.full_like(of_all, np.nan))
        return np.stack(values)

    def sum_pairs(self, function: Callable[[Array, Array], Array]) -> Array:
        """Return [replicate]: the sum of a symmetric function over ordered pairs of distinct vectors.

        The first entry is over all pairs; each further entry leaves out the pairs that involve one group.

        function  rows [row, dim], all vectors [vector, dim] → values of pairs [row, vector]
        """
        of_groups = np.zeros((self.n_groups, self.n_groups))
        for start in range(0, len(self), ROWS):
            rows = np.arange(start, min(start + ROWS, len(self)))
            of_pairs = function(self.vectors[rows], self.vectors)
            # A vector with itself is no pair.
            of_pairs[rows - start, rows] = 0.0
            of_groups += self.member[rows].T @ of_pairs @ self.member
        return leave_out_groups(of_groups)

    def count_pairs(self) -> Array:
        """Return [replicate]: the number of ordered pairs of distinct vectors, of all, then without the pairs of
        each group.
        """
        n = len(self) - np.concatenate([[0.0], self.member.sum(0)])
        return np.asarray(n * (n - 1))

    def get_cached(self, function: "Callable[[SampledVectors], T]") -> T:
        """Return `function` of this sample, computed only once, since a layer takes part in many pairs of layers."""
        if function not in self._cached:
            self._cached[function] = function(self)
        return self._cached[function]  # type: ignore[no-any-return]


def leave_out_groups(of_groups: Array) -> Array:
    """Return jackknife replicates of a sum over pairs, given the sums by pair of groups [group, group].

    The first entry is the sum over all pairs; each further entry leaves out the pairs that involve one group.
    """
    # Pairs that involve a group: its row and its column, less the diagonal that both
    # hold.
    every = of_groups.sum()
    return np.concatenate(
        [[every], every - of_groups.sum(0) - of_groups.sum(1) + np.diag(of_groups)]
    )


class OfSample(Reads):
    """Base of the kinds of data that are read from a sample of the tokens of each stack, in one layer or in several."""

    @property
    def captured(self) -> frozenset[str]:
        """Return the names of the quantities to capture: always those of hidden states."""
        return frozenset(LAYER_QUANTITIES)

    def is_of_first_policy(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Return True: only tokens that the first token policy counts are sampled."""
        return True

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield the accumulators of the sample, and of the sum of all vectors, which gives their mean."""
        yield KeptSample()
        yield VectorSums(dict.fromkeys(("hidden", "final"), frozenset({"vector"})))


class Sample(OfSample):
    """A uniform sample of the vectors of each layer of hidden states (`--sample` says how many are kept).

    `compute` is called with `SampledVectors`; a value has no axis but replicates, and a component axis if it needs one.
    The simplest: `lambda sample: {"": sample.replicates(function_of_vectors)}`.
    """

    word = "a sample of vectors"

    @property
    def arrays(self) -> int:
        """Return 1: `anisoscope.metric` takes one array of hidden vectors."""
        return 1

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:  # noqa: ARG002
        """Yield the sample of each layer that has at least two usable vectors."""
        for name, site in gathered.sites.items():
            reservoir = find_reservoir(name, site, gathered)
            if reservoir is None:
                continue
            sample = select_sample(name, reservoir, gathered)
            if sample is not None:
                yield Reading(
                    sample, gathered.make_columns(site), np.array(float(len(sample)))
                )

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as hidden states of a layer: each unit is a sequence of its own."""
        for first, part in split_batches(units, batching):
            x, real = pad([np.asarray(unit) for unit in part], batching)
            if real.shape[1]:
                measurement.begin(make_batch(first, real), torch.device("cpu"))
                measurement.receive(Site("encoder", 1, "hidden"), x)
                measurement.end()


def find_reservoir(name: str, site: Site, gathered: Gathered) -> Reservoir | None:
    """Return the sample of tokens that includes vectors of a layer: that of its stack, or its own; None if none does.

    name       name of the layer's site
    site       the site itself
    gathered   everything that the finished pass has accumulated
    """
    if site.quantity not in LAYER_QUANTITIES:
        return None
    # A layer has a sample of its own if its positions are not those of other layers.
    reservoir = gathered.reservoirs.get(site.stack) or gathered.reservoirs.get(name)
    if reservoir is None or name not in reservoir.vectors:
        return None
    return reservoir


def is_usable(vectors: Array) -> NDArray[np.bool_]:
    """Return which vectors [vector] are finite and not zero."""
    return np.asarray(np.isfinite(vectors).all(1) & (np.abs(vectors).sum(1) > 0))


def select_sample(
    name: str,
    reservoir: Reservoir,
    gathered: Gathered,
    most: int | None = None,
    usable: NDArray[np.bool_] | None = None,
) -> SampledVectors | None:
    """Return the sampled vectors of one layer that are usable; None if there are fewer than two.

    name        name of the layer's site
    reservoir   the sample of tokens that holds it
    most        read only the first `most` tokens; None: all
    usable      which tokens may be used [token]; None: those that are finite and not zero in this layer
    gathered    everything that the finished pass has accumulated
    """
    vectors = reservoir.vectors[name][:most].double().numpy()
    if usable is None:
        usable = is_usable(vectors)
    if usable.sum() < 2:
        return None
    # The same rule as for sums, so that a replicate leaves out the same units
    # everywhere.
    group = (reservoir.unit[:most].numpy() % gathered.sums.groups)[usable]
    totals = gathered.sums.at(name, ("vector", "n"))
    # Of the first token policy; layers have one head.
    mean = totals["vector"].sum(0)[0, 0] / totals["n"].sum(0)[0, 0]
    return SampledVectors(vectors[usable], group, gathered.sums.groups, mean)
