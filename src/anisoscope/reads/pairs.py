"""Data of metrics that compare two layers of a stack on the same sampled tokens."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch

from anisoscope.axes import Site
from anisoscope.reads.base import (
    Array,
    Batching,
    Declared,
    FedMeasurement,
    Gathered,
    Reading,
    Unit,
    draw_pairs,
    make_batch,
    pad_pairs,
    split_batches,
)
from anisoscope.reads.sample import (
    OfSample,
    SampledVectors,
    find_reservoir,
    is_usable,
    select_sample,
)
from anisoscope.sums.reservoir import Reservoir


@dataclass(frozen=True)
class SampledPair:
    """The same tokens in two layers: `first` and `second` hold their vectors in the same order, with the same
    groups.
    """

    first: SampledVectors
    second: SampledVectors

    def __len__(self) -> int:
        """Return the number of sampled tokens."""
        return len(self.first)

    @property
    def n_groups(self) -> int:
        """Return how many groups of units (documents, clips) hold a sampled vector."""
        return self.first.n_groups

    def without(self, index: int) -> "SampledPair":
        """Return the pair without the tokens of one group of units."""
        return SampledPair(self.first.without(index), self.second.without(index))

    def replicates(self, function: Callable[[Array, Array], Any]) -> Array:
        """Return `function` of both layers' vectors [vector, dim], then of both without each group of units in turn.

        The result is [replicate, …].
        """
        x, y = self.first.vectors, self.second.vectors
        values = [function(x, y)]
        for group in self.first.present:
            others = self.first.group != group
            values.append(function(x[others], y[others]))
        return np.stack([np.asarray(value, dtype=np.float64) for value in values])


@dataclass(frozen=True)
class LayerPair(OfSample):
    """The same sampled tokens in each pair of layers of a stack: hidden states, and the output after the final norm.

    most  number of sampled tokens that are read (None: all); functions of pairs of tokens cost its square

    `compute` is called with `SampledPair`; a value has no axis but replicates. A row of the long table belongs to the
    first layer; its component names the second: `hidden 5`, `final`. To compare two runs: `anisoscope compare A B
    --across NAME` (`reads.run_pairs`).
    """

    most: int | None = None

    word = "pairs of layers"
    layers = 2
    sides_turn_together = False

    @property
    def arrays(self) -> int:
        """Return 2: `anisoscope.metric` takes two arrays of hidden vectors."""
        return 2

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:  # noqa: ARG002
        """Yield each pair of layers of a sample, on the tokens that are usable in all layers."""
        for reservoir, layers in _iter_samples(gathered):
            in_each = [
                is_usable(reservoir.vectors[name][: self.most].double().numpy())
                for name in layers
            ]
            # One set of tokens for all layers: pairs of layers are then comparable, and
            # each layer's products are made once.
            in_all = np.logical_and.reduce(in_each)
            samples = {
                name: select_sample(name, reservoir, gathered, self.most, in_all)
                for name in layers
            }
            # Each pair once; a layer compared with itself says nothing.
            for name, other_name in combinations(layers, 2):
                first = samples[name]
                second = samples[other_name]
                if first is None or second is None:
                    continue
                other = layers[other_name]
                component = other.label
                if other.layer is not None:
                    component = f"{other.label} {other.layer}"
                pair = SampledPair(first, second)
                columns = gathered.make_columns(layers[name]) | {"component": component}
                yield Reading(pair, columns, np.array(float(len(pair))))

    def draw(
        self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7
    ) -> list[Unit]:
        """Draw two sets of vectors for each unit, one for each layer."""
        return draw_pairs(seed, sizes, d)

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as the hidden states of two layers: each unit is a sequence of its own."""
        for start, part in split_batches(units, batching):
            x, y, real = pad_pairs(part, batching)
            if real.shape[1]:
                measurement.begin(make_batch(start, real), torch.device("cpu"))
                measurement.receive(Site("encoder", 1, "hidden"), x)
                measurement.receive(Site("encoder", 2, "hidden"), y)
                measurement.end()


def _iter_samples(gathered: Gathered) -> Iterator[tuple[Reservoir, dict[str, Site]]]:
    """Yield each sample of tokens with the layers it was taken at, without layers that have no usable vector.

    gathered   everything that the finished pass has accumulated
    """
    samples: dict[int, tuple[Reservoir, dict[str, Site]]] = {}
    for name, site in gathered.sites.items():
        if site.quantity not in ("hidden", "final"):
            continue
        reservoir = find_reservoir(name, site, gathered)
        if (
            reservoir is None
            or not is_usable(reservoir.vectors[name].double().numpy()).any()
        ):
            continue
        # By the sample itself: layers of other lengths (maps of a convolutional
        # network) have one each, and make no pairs.
        _, layers = samples.setdefault(id(reservoir), (reservoir, {}))
        layers[name] = site
    yield from samples.values()
