"""The contract between a metric and the data that it reads.

A metric declares a `Reads`: the kind of data that its function takes. From this follow the places of a model where the
metric applies, the sums that a pass over the corpus must keep (`Keeper`), the argument that the metric's function is
called with (`Reading`), and the data that the metric is tested on. A new kind of data is one file in this package; no
other code asks which kind a metric has.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.sums.extremes import Extremes
from anisoscope.sums.groups import Sums, Totals
from anisoscope.sums.moments import Moments
from anisoscope.sums.reservoir import Reservoir

Array = NDArray[np.float64]
Unit = Array | tuple[Array, Array]
"""The data of one unit, in a test: vectors [token, dim]; for pairs and for queries and keys two of these."""
Data = TypeVar("Data", bound="LeavesOut")


# ---- what a pass keeps -----------------------------------------------------------------------------------------------


class Counted(Protocol):
    """Masks that say which token positions of a batch are counted.

    real      [sequence, token] bool: not padding
    policies  [sequence, policy, token] bool: real tokens that each token policy counts
    subsets   [sequence, subset, token] bool: real tokens of each subset (such as special tokens)
    special, punctuation, image  [sequence, token] bool
    places    [sequence, token, 4]: where each token is (see `sums.extremes.WHERE`), only for keepers that need it
    drawn     [sequence, token] bool: tokens whose second moments are summed; empty: all
    """

    real: Tensor
    policies: Tensor
    subsets: Tensor
    special: Tensor
    punctuation: Tensor
    image: Tensor
    places: Tensor
    drawn: Tensor


class Summing(Protocol):
    """The measurement settings that say how vectors are summed (part of `measure.settings.Settings`)."""

    @property
    def groups(self) -> int:
        """Return the number of groups that units (documents, clips) are put into for jackknife intervals."""
        ...

    @property
    def spectrum_groups(self) -> int | None:
        """Return the number of groups for second moments; None if the settings do not say."""
        ...

    @property
    def flatten(self) -> str:
        """Return how feature maps become vectors: one per position, or one per image."""
        ...

    @property
    def at(self) -> Any:
        """Return how a sequence becomes one vector: its `first` or `last` token, or their `mean` or `max`."""
        ...


class Pass(Protocol):
    """What a keeper sees of a running measurement: the current batch, and where its sums go.

    `measure.accumulator.Measurement` implements it.

    group, label   the group and the class of each sequence, on the CPU; label is None if no metric reads classes
    """

    sums: Sums
    moments: Moments
    extremes: Extremes
    classes: tuple[str, ...]
    group: Tensor
    label: Tensor | None

    @property
    def settings(self) -> Summing:
        """Return the settings that say how vectors are summed."""
        ...

    def find_masks(self, site: Site, x: Tensor) -> Counted:
        """Return masks that say which token positions of captured values `x` are counted.

        site   the place in the model where `x` was captured
        x      [sequence, token, dim] of layers, [sequence, head, token, dim] of attention heads
        """
        ...

    def copy_to(self, item: Any, device: torch.device) -> Any:
        """Return `item` (a tensor, or an object or collection that holds tensors) on `device`."""
        ...

    def add_sums(self, site: str, values: Mapping[str, Tensor]) -> None:
        """Add per-sequence values to the sums of a site (place in the model), each to its unit's group.

        values   tensors [sequence, …] of the current batch, by the names of the sums
        """
        ...

    def add_sample(self, site: Site, x: Tensor) -> None:
        """Offer captured vectors [sequence, token, …] to the uniform sample of tokens; `site` is their place in the
        model.
        """
        ...

    def find_real_queries(self, site: Site, keys: Tensor) -> Tensor:
        """Return which queries of an attention layer are real tokens [sequence, query] bool.

        keys   any statistic of the attention rows [sequence, head, query]; only its shape and device are used
        """
        ...

    def locate_queries(self, site: Site, keys: Tensor) -> Tensor:
        """Return for each query of an attention layer which token it is [sequence, query, 4].

        The last axis holds the number of its unit (document, clip), the token's number in this unit, its position in
        the sequence, and its token id (`sums.extremes.WHERE`).

        keys   any statistic of the attention rows [sequence, head, query]; only its shape and device are used
        """
        ...


class Keeper(ABC):
    """What a pass accumulates of the values at some sites (places in the model).

    Keepers of one class are joined into one, so that each tensor is read once.
    """

    needs_places = False
    """Whether this keeper needs to know where tokens are (`Counted.places`)."""

    @abstractmethod
    def join(self, other: Self) -> Self:
        """Return one keeper that accumulates everything that either of the two accumulates, so that tensors are read
        once.
        """

    @abstractmethod
    def takes(self, site: Site) -> bool:
        """Return whether this keeper accumulates values of the site (place in the model)."""

    @abstractmethod
    def add(self, site: Site, value: Any, running: Pass) -> None:
        """Add the value captured at a site (place in the model) to what is accumulated.

        value     a tensor, or tensors by name, for the current batch
        running   the running measurement, with the masks of the batch and the sums to add to
        """


# ---- what a metric is called with ------------------------------------------------------------------------------------


class LeavesOut(Protocol):
    """Data in groups of units, any of which can be left out: this is what jackknife intervals need."""

    @property
    def n_groups(self) -> int:
        """Return how many groups of units (documents, clips) hold any data."""
        ...

    def without(self, index: int) -> Self:
        """Return the data without one group of units, the `index`-th of those that hold any data (from 0)."""
        ...


@dataclass(frozen=True)
class Reading:
    """What a metric reads at one place of the model.

    data     the argument of the metric's `compute`
    columns  the place, as columns of the long table of results
    count    how many vectors (or rows, …) are behind a value: its axes are the leading axes of the value
    names    names of the value's components, if the place gives any (such as class names)
    """

    data: Any
    columns: Mapping[str, Any]
    count: Array
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gathered:
    """Everything that a finished pass has kept, as handed to `Reads.readings`."""

    sums: Sums
    sites: Mapping[str, Site]
    reservoirs: Mapping[str, Reservoir]
    weights: Mapping[str, Mapping[str, Tensor]]
    classes: Sequence[str] = ()
    extremes: Extremes = field(default_factory=Extremes)

    @cached_property
    def _depth(self) -> dict[str, int]:
        """Return {stack (encoder, decoder): number of its deepest layer}, over all sites that the pass has kept."""
        depth: dict[str, int] = {}
        for site in self.sites.values():
            depth[site.stack] = max(depth.get(site.stack, 0), site.layer or 0)
        return depth

    def make_columns(self, site: Site) -> dict[str, Any]:
        """Return the columns of the long table of results that say where a site is (stack, layer, quantity, …).

        The head is None for values of whole layers.
        """
        columns: dict[str, Any] = {
            "stack": site.stack,
            "kind": site.kind,
            # The output after the final norm gets the number of the last layer.
            "layer": self._depth[site.stack] if site.layer is None else site.layer,
            "site": site.label,
            "n_units": len(self.sums.units),
        }
        # Without this, the one head that layers have in the sums would be called head 0
        # in the table.
        if site.quantity in LAYER_QUANTITIES:
            columns["head"] = None
        return columns


class Declared(Protocol):
    """The part of a metric's declaration that a `Reads` uses (`metrics.base.Metric`)."""

    @property
    def name(self) -> str:
        """Return the metric's name."""
        ...

    @property
    def needs(self) -> frozenset[str]:
        """Return the names of the sums that the metric's function uses."""
        ...


# ---- what a metric is tested on --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batching:
    """How a test splits its data into batches.

    batch    sequences per batch (0: all in one)
    padding  padded positions after the longest sequence
    filler   value of padded positions
    dtype    type of the vectors
    """

    batch: int = 0
    padding: int = 0
    filler: float = 7.0
    dtype: torch.dtype = torch.float64


class FedMeasurement(Protocol):
    """A measurement that a test feeds with data itself, without a model (`measure.accumulator.Measurement`)."""

    weights: dict[str, dict[str, Tensor]]

    def begin(self, batch: Batch, device: torch.device) -> Any:
        """Start a batch: note its units and token masks."""
        ...

    def receive(self, site: Site, value: Any) -> None:
        """Take the value of a site for the current batch, as if captured from a model."""
        ...

    def end(self, index: int | None = None) -> None:
        """Finish the current batch."""
        ...


# ---- the types -------------------------------------------------------------------------------------------------------


class Reads(ABC):
    """A kind of data that a metric can be a function of (vectors, attention rows, pairs of layers, …)."""

    word: str
    """Its name in pages and errors."""
    terms: frozenset[str] | None = frozenset()
    """The sums that a metric may name in `needs`; empty: it is no function of sums; None: the metric makes its own."""
    layers: int = 1
    """How many layers it needs."""
    runs: int = 1
    """How many runs it needs; data of two runs are measured by comparing the runs."""
    labelled: bool = False
    """Whether sequences must have labels."""
    adds_up: bool = True
    """Whether test data can be fed in two halves; not if each half is centred on its own mean."""
    sides_turn_together: bool = True
    """Whether tests rotate both sides of a pair in the same way."""

    @property
    @abstractmethod
    def captured(self) -> frozenset[str]:
        """Return the quantities (such as `hidden`, `query`) that must be captured from the model."""

    @property
    def arrays(self) -> int:
        """Return how many arrays of hidden vectors `anisoscope.metric` takes for this kind of data; 0 if vectors do
        not suffice.
        """
        return 0

    @property
    def described(self) -> str:
        """Return how pages and errors call this kind of data: `word`, with its quantities if they can be chosen."""
        return self.word

    @property
    def of_layers(self) -> bool:
        """Return whether this kind of data is read from hidden states."""
        return bool(self.captured & {*LAYER_QUANTITIES})

    def list_axes(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the leading axes of the metric's values: none, or `policy` (token policy: which tokens count),
        `head`, or both.

        needs   names of the sums that the metric uses
        """
        return ()

    def is_of_first_policy(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Return whether the metric is computed for the first token policy only, not for each of them.

        A token policy says which tokens count, such as all of them, or all but special ones.

        needs   names of the sums that the metric uses
        """
        return False

    def has_roles(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Return whether the units of test data have different roles, so that a test may not change their order.

        For example, the first may be one class and the second another.

        needs   names of the sums that the metric uses
        """
        return False

    def is_of_sequences(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Return whether a metric requires whole sequences, not single vectors without neighbours or positions.

        needs   names of the sums that the metric uses
        """
        return False

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield the keepers (accumulators) that a pass over the corpus must run for a metric.

        needs   names of the sums that the metric uses
        """
        return ()

    def summary(self) -> Callable[[NDArray[Any]], Mapping[str, Array]] | None:
        """Return the function that reduces a weight matrix of the model to named arrays, from which the metric is
        computed.

        None if this kind of data is not weights.
        """
        return None

    @abstractmethod
    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield the input of the metric for each place where it applies: each layer, pair of layers, and so on.

        metric     the metric's declaration
        gathered   everything that the finished pass has accumulated
        """

    def draw(
        self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7
    ) -> list[Unit]:
        """Draw random test data, one entry per unit: each unit has a mean of its own, around a common non-zero mean.

        sizes   number of vectors of each unit
        d       number of dimensions
        """
        return list(draw_cloud(seed, sizes, d))

    @abstractmethod
    def feed(
        self,
        metric: Declared,
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement, as if they had been captured from a model.

        metric        the metric under test
        units         test data by unit, as `draw` returns them
        batching      how the units are split into batches and padded
        measurement   receives the data
        """


def draw_cloud(seed: int, sizes: Sequence[int], d: int) -> list[Array]:
    """Draw random vectors [token, dim] for each unit: each unit has a mean of its own, around a common non-zero mean.

    sizes   number of vectors of each unit
    d       number of dimensions
    """
    rng = np.random.default_rng(seed)
    # A common mean makes A positive, and means of units make it differ within and
    # between units: a wrong formula for either shows.
    common_mean = rng.standard_normal(d) * 0.5
    cloud = []
    for n in sizes:
        mean = common_mean + rng.standard_normal(d) * 0.7
        cloud.append(mean + rng.standard_normal((n, d)) * 0.6)
    return cloud


def draw_pairs(seed: int, sizes: Sequence[int], d: int) -> list[Unit]:
    """Draw for each unit two equally large sets of vectors [token, dim]; the second is partly a linear function of the
    first.

    sizes   number of vectors of each set, by unit
    d       number of dimensions
    """
    # Another stream than that of `draw_cloud`, so that the noise below is not the cloud
    # itself.
    rng = np.random.default_rng(seed + 1000)
    turn = rng.standard_normal((d, d)) / np.sqrt(d)
    shift = rng.standard_normal(d) * 0.5
    pairs: list[Unit] = []
    for x in draw_cloud(seed, sizes, d):
        pairs.append((x, x @ turn + shift + 0.5 * rng.standard_normal(x.shape)))
    return pairs


def split_batches(
    units: Sequence[Any], batching: Batching
) -> Iterator[tuple[int, Sequence[Any]]]:
    """Split the units of test data into batches: yields (number of the batch's first unit, its units).

    batching   how many units a batch has
    """
    size = batching.batch or max(1, len(units))
    for first in range(0, len(units), size):
        yield first, units[first : first + size]


def pad(arrays: Sequence[Array], batching: Batching) -> tuple[Tensor, Tensor]:
    """Pad the vectors of several sequences of test data to one tensor.

    Returns the vectors [sequence, token, dim] and which positions are real [sequence, token].

    arrays     vectors [token, dim] of each sequence
    batching   number of padded positions, and their value
    """
    width = max(map(len, arrays)) + batching.padding
    x = torch.full(
        (len(arrays), width, arrays[0].shape[1]), batching.filler, dtype=batching.dtype
    )
    real = torch.zeros(len(arrays), width, dtype=torch.bool)
    for row, array in enumerate(arrays):
        x[row, : len(array)] = torch.as_tensor(array)
        real[row, : len(array)] = True
    return x, real


def pad_pairs(
    units: Sequence[Any], batching: Batching
) -> tuple[Tensor, Tensor, Tensor]:
    """Pad units of test data that hold two equally large sets of vectors each (as `draw_pairs` makes them).

    Returns the first sets [sequence, token, dim], the second, and which positions are real [sequence, token].

    batching   number of padded positions, and their value
    """
    first, real = pad([unit[0] for unit in units], batching)
    second, _ = pad([unit[1] for unit in units], batching)
    return first, second, real


def make_batch(first: int, real: Tensor, **more: Any) -> Batch:
    """Return a batch without model inputs: each sequence is a unit of its own, numbered from `first`.

    real   which tokens are real [sequence, token]
    more   further fields of the batch
    """
    # Numbered from `first`: a unit keeps its group however the data are split into
    # batches.
    unit = torch.arange(first, first + len(real))
    stream = Stream(
        real, torch.zeros_like(real), torch.zeros(len(real), dtype=torch.int64)
    )
    return Batch({}, unit, {"encoder": stream}, **more)


def make_totals(terms: Mapping[str, Array]) -> Totals | None:
    """Wrap the sums of one site as `Totals`, the form that metrics read; None if no group holds any data.

    terms   sums [group of units, …] by name
    """
    if not terms:
        return None
    totals = Totals(terms)
    if not totals.present.any():
        return None
    return totals
