"""RunPair: the same sampled tokens in two runs of the same inputs, layer by layer."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.axes import Site
from anisoscope.reads.base import Array, Reading
from anisoscope.reads.pairs import LayerPair, SampledPair
from anisoscope.reads.sample import SampledVectors, is_usable
from anisoscope.sums.reservoir import Reservoir


@dataclass(frozen=True)
class RunPair(LayerPair):
    """The same sampled tokens in each layer of one run and each layer of another run on the same inputs.

    most    number of sampled tokens that are read (None: all)
    groups  groups of units that are left out in turn; None: as many as the run has. Fewer are faster

    `compute` is called with `SampledPair`, as for `LayerPair`; metrics of layer pairs can be read across two runs too.
    Such a metric cannot be measured in one run: use `anisoscope compare A B --across NAME`, or
    `anisoscope.metric(NAME, (x, y))` for arrays.
    """

    groups: int | None = None

    word = "pairs of runs"
    runs = 2


@dataclass(frozen=True)
class SampledStack:
    """The sampled tokens of one stack (encoder or decoder) of a finished run.

    hash    [token]: identifies a token of the inputs; equal in two runs with the same seed
    unit    [token]: the unit (document, clip) that each token comes from
    layers  vectors [token, dim] of each layer, from input to output
    """

    hash: NDArray[np.int64]
    unit: NDArray[np.int64]
    layers: Mapping[Site, Array]

    @property
    def depth(self) -> int:
        """Return the number of the deepest layer; the output after the final norm gets this number too."""
        return max((site.layer or 0 for site in self.layers), default=0)

    def number_layer(self, site: Site) -> int:
        """Return the number of a site's layer; of the output after the final norm that of the deepest layer."""
        return self.depth if site.layer is None else site.layer


def read_sampled_stacks(
    tensors: Mapping[str, Tensor], *, alone: bool = False
) -> dict[str, SampledStack]:
    """Return the sampled tokens of a run by stack (encoder, decoder): hidden states, and outputs after the final norm.

    tensors   the sample as the run wrote it (`Reservoir.tensors`)
    alone     also layers that were sampled on their own because their lengths differ (maps of convolutional networks,
              vectors of whole sentences), each as a stack under its own name. Their positions are not those of other
              layers, so they cannot be paired with them
    """
    stacks: dict[str, SampledStack] = {}
    for tensor in tensors:
        stack, _, what = tensor.rpartition(" ")
        if what != "hash" or not stack:
            continue
        # Only read from here: neither size nor seed matters.
        reservoir = Reservoir(0, 0)
        reservoir.restore(dict(tensors), f"{stack} ")
        layers: dict[Site, Array] = {}
        for name, vectors in reservoir.vectors.items():
            site = _parse_site(name)
            # A layer sampled on its own is stored under its own name in place of that
            # of a stack.
            if site is not None and (alone or name != stack):
                layers[site] = vectors.double().numpy()
        if layers:
            from_input = sorted(
                layers, key=lambda site: (site.layer is None, site.layer or 0)
            )
            in_order = {site: layers[site] for site in from_input}
            stacks[stack] = SampledStack(
                reservoir.hash.numpy(), reservoir.unit.numpy(), in_order
            )
    return stacks


def _parse_site(name: str) -> Site | None:
    """Parse a site name of hidden states or of the output after the final norm; None for other names."""
    place, _, quantity = name.rpartition(".")
    if quantity == "final" and place:
        return Site(place, None, "final")
    stack, _, layer = place.rpartition(".")
    if quantity == "hidden" and layer.isdigit():
        return Site(stack, int(layer), "hidden")
    return None


def read_across(
    reads: LayerPair, first: SampledStack, second: SampledStack, groups: int
) -> Iterator[Reading]:
    """Yield the input of a metric of two layers for a stack that two runs sampled: all pairs of their layers.

    reads    what the metric reads; it may limit the number of tokens
    first    the sampled tokens of the first run, whose layers come first in each pair
    groups   number of groups that both runs put their units into

    Tokens are matched by their hashes; those that only one run sampled are not used.

    A token that is unusable (zero, not finite) in one layer is left out everywhere. A layer without any usable token is
    left out itself.
    """
    tokens, places, other_places = np.intersect1d(
        first.hash, second.hash, return_indices=True
    )
    places = places[: reads.most]
    other_places = other_places[: reads.most]
    of_first = _drop_unusable(first, places)
    of_second = _drop_unusable(second, other_places)
    if not len(tokens) or not of_first or not of_second:
        return
    # The same tokens for all pairs of layers: otherwise a cell of the table could
    # differ because of its tokens.
    is_used = np.logical_and.reduce(
        [is_usable(x) for x in (*of_first.values(), *of_second.values())]
    )
    if is_used.sum() < 2:
        return
    left_out = min(groups, getattr(reads, "groups", None) or groups)
    units = first.unit[places][is_used]
    # Groups as in the runs, then joined to fewer: a unit never falls into two.
    group = units % groups % left_out

    def sample(x: Array) -> SampledVectors:
        """Return the tokens that are usable in both runs as a sample, with their own mean.

        x   vectors of all matched tokens in one layer
        """
        return SampledVectors(x[is_used], group, left_out, x[is_used].mean(0))

    samples = {site: sample(x) for site, x in of_first.items()}
    others = {site: sample(x) for site, x in of_second.items()}
    for site, vectors in samples.items():
        for other, other_vectors in others.items():
            columns = {
                "stack": site.stack,
                "layer": first.number_layer(site),
                "site": site.label,
                "stack_other": other.stack,
                "layer_other": second.number_layer(other),
                "site_other": other.label,
                "n_units": len(np.unique(units)),
            }
            yield Reading(
                SampledPair(vectors, other_vectors),
                columns,
                np.array(float(is_used.sum())),
            )


def _drop_unusable(stack: SampledStack, places: NDArray[np.intp]) -> dict[Site, Array]:
    """Return {layer: vectors of some tokens}, without layers in which none of these is usable (finite, not zero).

    stack    the sampled tokens of one stack (encoder, decoder)
    places   indices of the tokens
    """
    chosen = {site: x[places] for site, x in stack.layers.items()}
    return {site: x for site, x in chosen.items() if is_usable(x).any()}
