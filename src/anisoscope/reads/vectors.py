"""Data of metrics that are functions of sums over all vectors of a site, however many there are."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.axes import LAYER_QUANTITIES, SUBSET_FAMILIES, Site
from anisoscope.errors import UsageError
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
    make_totals,
    pad,
    split_batches,
)
from anisoscope.sums.groups import COUNTED, sum_single_vectors, sum_vectors
from anisoscope.sums.moments import add_head_moments

OF_VECTORS = ("hidden", "final", "query", "key", "value")
"""Quantities whose vectors are summed."""
OF_HEADS = frozenset({"query", "key", "value"})
LINEAR = frozenset({"n", "vector", "unit", "unit_square", "norm", "norm_square"})
INSIDE = frozenset({"sequence_cosine", "sequences"})
SUBSETS = frozenset({"subset_n", "subset_unit"})
MOMENTS = frozenset({"moment", "moment_n", "moment_vector", "unit_moment"})
IMAGE_TERMS = frozenset(
    {"n", "zero", "nonfinite", "vector", "unit", "norm", "norm_square"}
)
"""What is summed of whole images as vectors, whose millions of dimensions have no spectrum and no shares."""
FEW_GROUPS = 8
"""Groups of whole images, and of the second moments of heads if the settings do not say."""
FEWEST_SINGLES = 4
"""Sequences of one vector for each group from which a batch is summed group by group, not sequence by sequence."""
KINDS = len(SUBSET_FAMILIES["kind"])
"""The first subsets: kinds of token, which make up the whole."""


@dataclass(frozen=True)
class VectorSums(Keeper):
    """Keep sums over vectors; `terms` names the sums by quantity (hidden states, keys, …).

    The number of vectors is counted for every quantity, even if `terms` asks for nothing.
    """

    terms: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def join(self, other: "VectorSums") -> "VectorSums":
        """Return one keeper that accumulates the sums of both, by quantity, so that tensors are read once."""
        quantities = dict.fromkeys((*self.terms, *other.terms))
        empty: frozenset[str] = frozenset()
        return VectorSums(
            {
                q: self.terms.get(q, empty) | other.terms.get(q, empty)
                for q in quantities
            }
        )

    def list_terms(self, quantity: str) -> frozenset[str]:
        """Return the names of the sums to accumulate for one quantity (such as `hidden` or `key`).

        Counts of vectors that are left out (zero, non-finite) are not among them: they are always kept.
        """
        # n is always there: it counts the vectors behind values, and decides when
        # moments are summed in float64.
        terms = self.terms.get(quantity, frozenset()) | {"n"}
        # Contributions of dimensions are reported for layers only; the squares of all
        # heads would need a product of their own.
        if quantity in OF_HEADS:
            terms -= {"unit_square"}
        return terms

    def takes(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds vectors: hidden states, queries, keys or values."""
        return site.measured_as in OF_VECTORS

    def add(self, site: Site, value: Tensor, running: Pass) -> None:
        """Add the vectors of a site: [sequence, token, dim] for layers, [sequence, head, token, dim] for heads."""
        terms = self.list_terms(site.measured_as) | COUNTED
        positions = running.copy_to(running.find_masks(site, value), value.device)
        if site.quantity in LAYER_QUANTITIES:
            _add_layer(site, value, positions, terms, running)
        else:
            _add_heads(site, value, positions, terms, running)


def _add_layer(
    site: Site, x: Tensor, positions: Any, terms: frozenset[str], running: Pass
) -> None:
    """Add the vectors of a layer [sequence, token, dim] to its sums, and to its second moments if asked for.

    Whole images as vectors, and batches of many single vectors on a CPU, are summed by cheaper ways.

    positions   token masks of the batch (`measure.masks.Masks`)
    terms       names of the sums to accumulate
    running     the running measurement
    """
    if is_whole_image(x, running):
        values, _ = sum_vectors(
            x.unsqueeze(1), positions.real.unsqueeze(1), None, terms & IMAGE_TERMS
        )
        # Not `add_sums`, which uses all groups: 32 sums of a million numbers take 256
        # MB a term.
        running.sums.add(
            site.name, values, running.copy_to(running.group, x.device) % FEW_GROUPS
        )
        return
    subsets = positions.subsets if "subset_unit" in terms else None
    # As embeddings made elsewhere are: with many of them, a sum for each "sequence"
    # would be the vectors again.
    are_single = x.shape[1] == 1 and len(x) >= FEWEST_SINGLES * running.settings.groups
    if are_single and x.device.type == "cpu":
        values, inverse, groups = sum_single_vectors(
            x, positions.policies, subsets, terms, running.group
        )
        running.sums.add(site.name, values, groups)
    else:
        values, inverse = sum_vectors(
            x.unsqueeze(1), positions.policies, subsets, terms
        )
        running.add_sums(site.name, values)
    if "moment" in terms:
        # Of the first token policy. Zero and non-finite vectors have the inverse norm 0.
        is_counted = positions.policies[:, 0] & (inverse[:, 0] > 0)
        # On the CPU in any case: places that a device would tell make the host wait.
        drawn = running.find_masks(site, x).drawn
        running.moments.add(
            site.name, x, is_counted, inverse[:, 0], drawn if drawn.numel() else None
        )


def _add_heads(
    site: Site, x: Tensor, positions: Any, terms: frozenset[str], running: Pass
) -> None:
    """Add the vectors of attention heads [sequence, head, token, dim] to their sums.

    Second moments are kept by head, if asked for.

    positions   token masks of the batch (`measure.masks.Masks`)
    terms       names of the sums to accumulate
    running     the running measurement
    """
    values, inverse = sum_vectors(x, positions.policies, None, terms)
    running.add_sums(site.name, values)
    if "head_moment" in terms:
        # dim² numbers for each head and group: few groups, as for the moments of
        # layers.
        groups = min(
            running.settings.spectrum_groups or FEW_GROUPS, running.settings.groups
        )
        weight = positions.policies[:, :1] * (inverse > 0)
        group = running.copy_to(running.group, x.device) % groups
        add_head_moments(running.sums, site.name, x, weight, group, groups)


def is_whole_image(x: Tensor, running: Pass) -> bool:
    """Return whether each vector is a whole flattened image, with millions of dimensions.

    x         the captured values
    running   the running measurement, whose settings say how maps become vectors
    """
    return running.settings.flatten == "image" and x.shape[1] == 1


@dataclass(frozen=True)
class Vectors(Reads):
    """All vectors of a site, as sums: hidden states (`hidden`, `final`), or queries, keys and values of heads.

    `compute` is called with `Totals`: `totals["unit"]` is the sum of unit vectors [replicate, policy, head, dim]
    (`sums/groups.py` defines each term). Terms of token subsets have a subset axis after the replicates and no policy
    axis. Terms of second moments have no policy axis and groups of their own, so they cannot be combined with other
    terms.
    """

    at: tuple[str, ...] = ("hidden", "final")

    word = "vectors"
    terms = LINEAR | INSIDE | SUBSETS | MOMENTS

    def __post_init__(self) -> None:
        """Raise UsageError if `at` is empty or names an unknown quantity."""
        if not self.at or not {*self.at} <= {*OF_VECTORS}:
            raise UsageError(
                f"vectors at some of {', '.join(OF_VECTORS)}",
                repr(self.at),
                "as Vectors(('hidden',))",
            )

    @property
    def arrays(self) -> int:
        """Return 1 if hidden states are read, else 0: `anisoscope.metric` takes arrays of hidden vectors only."""
        return int("hidden" in self.at)

    @property
    def described(self) -> str:
        """Return the name for pages and errors, with the quantities that are read: `vectors: hidden, final`."""
        return f"{self.word}: {', '.join(self.at)}"

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantities to capture: hidden states, or queries, keys and values."""
        captured = OF_HEADS & {*self.at}
        if {*self.at} - OF_HEADS:
            captured |= {*LAYER_QUANTITIES}
        return captured

    def list_axes(self, needs: frozenset[str]) -> tuple[str, ...]:
        """Return the leading axes of a metric's values: token policy and head, or only head for moments and subsets.

        UsageError if `needs` combines second moments with other sums, or asks for moments or subsets of heads.
        """
        if needs & MOMENTS and needs - MOMENTS:
            got = f"{', '.join(sorted(needs & MOMENTS))} with {', '.join(sorted(needs - MOMENTS))}"
            cure = "second moments have groups of their own: use moment_n and moment_vector with them"
            raise UsageError("second moments alone, or other sums", got, cure)
        if {*self.at} & OF_HEADS and needs & (MOMENTS | SUBSETS):
            got = f"{', '.join(sorted(needs & (MOMENTS | SUBSETS)))} at {', '.join(self.at)}"
            raise UsageError(
                "second moments and subsets of hidden states alone",
                got,
                "leave heads out of `at`",
            )
        if needs & (MOMENTS | SUBSETS):
            return ("head",)
        return ("policy", "head")

    def is_of_first_policy(self, needs: frozenset[str]) -> bool:
        """Return whether second moments are needed: they are kept for the first token policy only."""
        return bool(needs & MOMENTS)

    def has_roles(self, needs: frozenset[str]) -> bool:
        """Return whether token subsets are needed: in a test, each unit is then one subset."""
        return bool(needs & SUBSETS)

    def is_of_sequences(self, needs: frozenset[str]) -> bool:
        """Return whether the sums depend on which sequence a vector is in."""
        return bool(needs & (SUBSETS | INSIDE))

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:
        """Yield one keeper: the accumulator of these sums at the chosen quantities."""
        yield VectorSums(dict.fromkeys(self.at, needs))

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield the sums of each site where the metric applies, with the number of vectors."""
        for name, site in gathered.sites.items():
            if site.measured_as not in self.at:
                continue
            totals = make_totals(gathered.sums.at(name, metric.needs))
            if totals is not None:
                yield Reading(
                    totals,
                    gathered.make_columns(site),
                    self._count_vectors(metric.needs, gathered, name),
                )

    def _count_vectors(
        self, needs: frozenset[str], gathered: Gathered, site: str
    ) -> Array:
        """Return the number of vectors behind the values, by token policy and head.

        For similarity inside sequences, return the number of sequences.

        needs      names of the sums that the metric uses
        gathered   everything that the finished pass has accumulated
        site       name of the place in the model
        """
        # The kinds of token are disjoint and make up the whole; frequency bins and
        # positions count the same tokens again.
        if needs & SUBSETS:
            by_subset = gathered.sums.at(site, ("subset_n",))["subset_n"].sum(0)
            return np.asarray(by_subset[:KINDS].sum(0))
        term = "n"
        if needs & MOMENTS:
            term = "moment_n"
        elif needs & INSIDE and "n" not in needs:
            term = "sequences"
        return np.asarray(gathered.sums.at(site, (term,))[term].sum(0))

    def feed(
        self,
        metric: Declared,
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as vectors of a layer or head: each unit is a sequence of its own.

        For a metric of token subsets, there are two units: the tokens of two subsets.
        """
        if metric.needs & SUBSETS:
            _feed_subsets(units, batching, measurement)
            return
        quantity = next(q for q in OF_VECTORS if q in self.at)
        for first, part in split_batches(units, batching):
            x, real = pad([np.asarray(unit) for unit in part], batching)
            if not real.shape[1]:
                continue
            measurement.begin(make_batch(first, real), torch.device("cpu"))
            layer = None if quantity == "final" else 1
            site = Site("encoder", layer, quantity)  # type: ignore[arg-type]
            if quantity in OF_HEADS:
                x = x.unsqueeze(1)
            measurement.receive(site, x)
            measurement.end()


def _feed_subsets(
    units: Sequence[Unit], batching: Batching, measurement: FedMeasurement
) -> None:
    """Feed two units of test data to a measurement as two token subsets: special tokens, and first tokens of sequences.

    Each vector of the second unit begins a sequence. The vectors of the first unit are distributed over the sequences
    round-robin.
    """
    special = np.asarray(units[0])
    first = np.asarray(units[1])
    # Without a vector of the second unit there is one sequence, of special tokens alone.
    count = max(len(first), 1)
    begins_with_first = len(first) > 0
    sequences = []
    for i in range(count):
        sequences.append(np.concatenate([first[i : i + 1], special[i::count]]))
    for number, part in split_batches(sequences, batching):
        x, real = pad(part, batching)
        if not real.shape[1]:
            continue
        batch = make_batch(number, real)
        is_special = real.clone()
        if begins_with_first:
            is_special[:, 0] = False
        batch.streams["encoder"].special.copy_(is_special)
        measurement.begin(batch, torch.device("cpu"))
        measurement.receive(Site("encoder", 1, "hidden"), x)
        measurement.end()
