"""The contract of a metric: the sums it needs, a pure function of them, the same done slowly, its invariances."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from anisoscope.sums.groups import Totals
from anisoscope.sums.jackknife import UNBOUNDED, Bounds

Array = NDArray[np.float64]
Values = dict[str, Array]

COSINE: Bounds = (-1.0, 1.0)
SHARE: Bounds = (0.0, 1.0)
POSITIVE: Bounds = (0.0, np.inf)


@dataclass(frozen=True)
class Metric:
    """One measure.

    name        as in the `metric` column; values named `""` are the metric itself, others are appended after a dot
    quantities  where it applies: `hidden`, `query`, `key`, `value`, `attention`; `query_key` (both sites of one
    layer and stage)
    needs       terms of `sums/groups.py` it is a function of
    compute     Totals → {value name: [replicate, (policy, head,) *component]}; pure, vectorised over the leading axes
    reference   (vectors [unit][token, dim] as a list of arrays) → {name of a value or component: float}: the
    definition in float64, as slow as it
                likes; None where the metric is not a function of vectors
    invariant   declared invariances, tested both ways: rotation, scaling, translation, order
    bounds      what each value can be at all: (low, high), or a function of the totals that gives them; a value that is
                not named is unbounded. Its interval stays inside
    counted     values that are shares of the vectors (or utterances) counted: where they do not vary from group to
                group their interval is Wilson's
    components  names of the component axis for each value that has one; by default 1, 2, 3 …
    axes        leading axes of its values; one axis more is the component axis
    first_policy  True where the value is of the first token policy alone
    """

    name: str
    quantities: tuple[str, ...]
    needs: frozenset[str]
    compute: Callable[[Totals], Values]
    reference: Callable[[list[Array]], dict[str, float]] | None = None
    invariant: frozenset[str] = frozenset()
    bounds: Mapping[str, Bounds | Callable[[Totals], Bounds]] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    components: dict[str, tuple[str, ...]] = field(default_factory=dict)
    panel: str = "hidden"
    axes: tuple[str, ...] = ("policy", "head")
    first_policy: bool = False

    def range_of(self, value: str, totals: Totals) -> Bounds:
        """The smallest and the largest that `value` can be, of these totals."""
        found = self.bounds.get(value, UNBOUNDED)
        return found(totals) if callable(found) else found


def dot(a: Array, b: Array) -> Array:
    """Scalar product over the last axis, in one fused pass."""
    return np.asarray(np.einsum("...d,...d->...", a, b))


def ratio(numerator: Array, denominator: Array) -> Array:
    """Division that is NaN, silently, where the denominator is 0: the value is undefined there."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator == 0, np.nan, numerator / denominator)


def units_of(x: Array) -> Array:
    """Unit vectors over the last axis; a zero vector stays zero."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.asarray(np.divide(x, length, out=np.zeros_like(x, dtype=np.float64), where=length > 0))
