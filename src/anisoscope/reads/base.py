"""The contract of what a metric reads.

A metric declares a `Reads`. From it follows where the metric applies, which `Keeper`s a pass needs for it, what its
function is called with (`Reading`), and on which data it is tested. A new kind of reading is one file here; nothing
else asks of which kind a metric is.
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
    """Which positions of a batch count.

    real      [sequence, token] bool
    policies  [sequence, policy, token] bool; subsets [sequence, subset, token] bool
    special, punctuation  [sequence, token] bool
    places    [sequence, token, 4]: where each token is, as `sums.extremes.WHERE` says, for keepers that need it
    """

    real: Tensor
    policies: Tensor
    subsets: Tensor
    special: Tensor
    punctuation: Tensor
    places: Tensor


class Summing(Protocol):
    """The settings that say how vectors are summed (`measure.settings.Settings`)."""

    @property
    def groups(self) -> int: ...
    @property
    def spectrum_groups(self) -> int | None: ...
    @property
    def flatten(self) -> str: ...
    @property
    def at(self) -> Any: ...


class Pass(Protocol):
    """What a keeper sees of a pass: the batch at hand, and where its sums go (`measure.accumulator.Measurement`).

    group, label   the group and the class of each sequence, on the CPU; label is None if no metric reads classes
    """

    sums: Sums
    moments: Moments
    extremes: Extremes
    classes: tuple[str, ...]
    group: Tensor
    label: Tensor | None

    @property
    def settings(self) -> Summing: ...
    def positions_of(self, site: Site, x: Tensor) -> Counted: ...
    def near(self, item: Any, device: torch.device) -> Any: ...
    def add_sums(self, site: str, values: Mapping[str, Tensor]) -> None: ...
    def add_sample(self, site: Site, x: Tensor) -> None: ...
    def real_queries(self, site: Site, keys: Tensor) -> Tensor: ...
    def places_of_queries(self, site: Site, keys: Tensor) -> Tensor: ...


class Keeper(ABC):
    """What a pass keeps of the values at some sites. Keepers of one class are joined, so that a tensor is read once."""

    needs_places = False
    """Whether it asks where tokens are (`Counted.places`)."""

    @abstractmethod
    def join(self, other: Self) -> Self:
        """Keep what either keeps."""

    @abstractmethod
    def takes(self, site: Site) -> bool:
        """Whether values of this site are for this keeper."""

    @abstractmethod
    def add(self, site: Site, value: Any, done: Pass) -> None:
        """Add what the tap hands on at a site, for the batch at hand."""


# ---- what a metric is called with ------------------------------------------------------------------------------------


class LeavesOut(Protocol):
    """Data of groups, any of which can be left out: what an interval is made of."""

    @property
    def n_groups(self) -> int:
        """How many groups hold anything."""
        ...

    def without(self, index: int) -> Self:
        """The same without one group, by its place among those that hold anything."""
        ...


@dataclass(frozen=True)
class Reading:
    """What a metric reads at one place.

    data     what its `compute` is called with
    columns  where it is: columns of the long table
    count    how many vectors (rows, …) are behind a value: a leading part of its axes
    names    what its components are called, if the place says so
    """

    data: Any
    columns: Mapping[str, Any]
    count: Array
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Gathered:
    """What a pass has kept, as types of reading see it."""

    sums: Sums
    sites: Mapping[str, Site]
    reservoirs: Mapping[str, Reservoir]
    weights: Mapping[str, Mapping[str, Tensor]]
    classes: Sequence[str] = ()
    extremes: Extremes = field(default_factory=Extremes)

    @cached_property
    def _depth(self) -> dict[str, int]:
        depth: dict[str, int] = {}
        for site in self.sites.values():
            depth[site.stack] = max(depth.get(site.stack, 0), site.layer or 0)
        return depth

    def columns_of(self, site: Site) -> dict[str, Any]:
        """Where a site is, in columns of the long table; values of whole layers have no head."""
        layer = self._depth[site.stack] if site.layer is None else site.layer
        columns = {"stack": site.stack, "kind": site.kind, "layer": layer, "site": site.label}
        columns["n_units"] = len(self.sums.units)
        return columns | ({"head": None} if site.quantity in LAYER_QUANTITIES else {})


class Declared(Protocol):
    """What a type of reading asks of a metric (`metrics.base.Metric`)."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> frozenset[str]: ...


# ---- what a metric is tested on --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrialLayout:
    """How test data are passed on: sequences a batch (0: all), positions of `filler` after the longest, and the type of
    its numbers.
    """

    batch: int = 0
    padding: int = 0
    filler: float = 7.0
    dtype: torch.dtype = torch.float64


class TrialPass(Protocol):
    """A pass without a model, fed by a test (`measure.accumulator.Measurement`)."""

    weights: dict[str, dict[str, Tensor]]

    def begin(self, batch: Batch, device: torch.device) -> Any: ...
    def receive(self, site: Site, value: Any) -> None: ...
    def end(self, index: int | None = None) -> None: ...


# ---- the types -------------------------------------------------------------------------------------------------------


class Reads(ABC):
    """A kind of thing that a metric is a function of."""

    word: str
    """What it is called in pages and errors."""
    terms: frozenset[str] | None = frozenset()
    """The sums that a metric may name in `needs`; none: it is no function of sums; None: the metric makes its own."""
    layers: int = 1
    """How many layers it needs."""
    runs: int = 1
    """How many runs it needs: what is read of two is measured by comparing them."""
    labelled: bool = False
    """Whether sequences must have labels."""
    adds_up: bool = True
    """Whether test data can be fed in two halves: not if each is read beside a mean of its own."""
    sides_turn_together: bool = True
    """Whether, of pairs, a rotation is the same on both sides, in a test."""

    @property
    @abstractmethod
    def captured(self) -> frozenset[str]:
        """Quantities that the tap is asked for."""

    @property
    def arrays(self) -> int:
        """How many arrays of hidden vectors `anisoscope.metric` takes for it; 0: it needs more than vectors."""
        return 0

    @property
    def described(self) -> str:
        """What it is called, and where it is read if that is a choice."""
        return self.word

    @property
    def of_layers(self) -> bool:
        """Whether it is read of hidden states."""
        return bool(self.captured & {*LAYER_QUANTITIES})

    def axes_of(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Leading axes of the values, of `policy` and `head`."""
        return ()

    def is_of_first_policy(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Whether values are of the first token policy alone."""
        return False

    def has_roles(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Tell whether the units of test data play different parts (the first is one class, the second another)."""
        return False

    def is_of_sequences(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Whether it needs sequences: single vectors have no neighbours and no positions."""
        return False

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """What a pass must keep for a metric of these `needs`."""
        return ()

    def summary(self) -> Callable[[NDArray[Any]], Mapping[str, Array]] | None:
        """What is kept of a matrix of the model's weights; None: nothing."""
        return None

    @abstractmethod
    def readings(self, metric: Declared, kept: Gathered) -> Iterator[Reading]:
        """What the metric reads, wherever it applies."""

    def draw(self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7) -> list[Unit]:
        """Random data to test a metric on: units with means of their own, around a common drift."""
        return list(draw_cloud(seed, sizes, d))

    @abstractmethod
    def feed(self, metric: Declared, units: Sequence[Unit], layout: TrialLayout, trial: TrialPass) -> None:
        """Pass test data on, as a model would."""


def draw_cloud(seed: int, sizes: Sequence[int], d: int) -> list[Array]:
    """Units of vectors [token, dim] with means of their own, around a common drift."""
    rng = np.random.default_rng(seed)
    drift = rng.standard_normal(d) * 0.5
    return [drift + rng.standard_normal(d) * 0.7 + rng.standard_normal((n, d)) * 0.6 for n in sizes]


def draw_pairs(seed: int, sizes: Sequence[int], d: int) -> list[Unit]:
    """Two sets of vectors for each unit, as many of each: the second in part a function of the first."""
    rng = np.random.default_rng(seed + 1000)
    turn = rng.standard_normal((d, d)) / np.sqrt(d)
    shift = rng.standard_normal(d) * 0.5
    pairs: list[Unit] = []
    for x in draw_cloud(seed, sizes, d):
        pairs.append((x, x @ turn + shift + 0.5 * rng.standard_normal(x.shape)))
    return pairs


def in_batches(units: Sequence[Any], layout: TrialLayout) -> Iterator[tuple[int, Sequence[Any]]]:
    """(number of the first unit, units) of each batch."""
    size = layout.batch or max(1, len(units))
    for first in range(0, len(units), size):
        yield first, units[first : first + size]


def pad(arrays: Sequence[Array], layout: TrialLayout) -> tuple[Tensor, Tensor]:
    """Vectors of several sequences [sequence, token, dim], and which of them are real [sequence, token]."""
    width = max(map(len, arrays)) + layout.padding
    x = torch.full((len(arrays), width, arrays[0].shape[1]), layout.filler, dtype=layout.dtype)
    real = torch.zeros(len(arrays), width, dtype=torch.bool)
    for row, array in enumerate(arrays):
        x[row, : len(array)] = torch.as_tensor(array)
        real[row, : len(array)] = True
    return x, real


def batch_of(first: int, real: Tensor, **more: Any) -> Batch:
    """A batch without inputs, of sequences that are units of their own, numbered from `first`."""
    unit = torch.arange(first, first + len(real))
    stream = Stream(real, torch.zeros_like(real), torch.zeros(len(real), dtype=torch.int64))
    return Batch({}, unit, {"encoder": stream}, **more)


def totals_of(terms: Mapping[str, Array]) -> Totals | None:
    """Sums as a metric sees them; None if no group holds anything."""
    if not terms:
        return None
    totals = Totals(terms)
    return totals if totals.present.any() else None
