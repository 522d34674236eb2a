"""What a metric consists of: the sums it needs, a pure function of them, a slow reference, its invariances."""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.errors import UsageError, suggest_names
from anisoscope.reads import Reads
from anisoscope.sums.jackknife import UNBOUNDED, Bounds

Array = NDArray[np.float64]
Values = dict[str, Array]

COSINE: Bounds = (-1.0, 1.0)
SHARE: Bounds = (0.0, 1.0)
POSITIVE: Bounds = (0.0, np.inf)
INVARIANCES = ("rotation", "scaling", "translation", "order")
"""What a metric may be unchanged by: one rotation of all vectors, a scale for each vector, one shift, another order."""


@dataclass(frozen=True, eq=False)
class Metric:
    """Definition of one metric.

    name        as in the `metric` column; a value named `""` is the metric itself, other names are appended after a dot
    reads       the kind of data that it is a function of (`anisoscope.reads`): vectors, a sample, pairs of layers …
    compute     data that `reads` provides → {value name: [replicate, (policy, head,) *component]}: replicate 0 of all
                groups, the others without each group in turn; pure
    needs       names of the sums it is a function of, if it is a function of sums
    reference   units of test data → {name of a value or component: float}: the definition in float64, as slow as it
                likes; `anisoscope.testing` compares the two
    invariant   some of `INVARIANCES`: what does not change the value; tests check both ways
    bounds      range of each value: (low, high), or a function of the data of `compute`; a value that is not named is
                unbounded. Intervals stay inside
    counted     values that are shares of counted vectors (or utterances): if they do not vary from group to group,
                their interval is Wilson's
    extremes    values that are largest or smallest ones, or say where these are: `compute` gives one replicate of them,
                and they have no interval
    components  names of the component axis for each value that has one (by default 1, 2, 3 …), or a function that gives
                them from the names of the classes
    panel       the panel (set of metrics) it is measured with; empty: it is measured only if it is named

    `reads` determines `axes`, the leading axes of its values, and `first_policy`, whether they are computed for the
    first token policy only. UsageError for a declaration that contradicts itself.

        >>> from anisoscope.metrics import Metric, Vectors
        >>> length = Metric("length", Vectors(), lambda sums: {"": sums["norm"] / sums["n"]}, needs={"n", "norm"})
        >>> length.axes
        ('policy', 'head')
    """

    name: str
    reads: Reads
    compute: Callable[[Any], Values]
    needs: frozenset[str] = frozenset()
    reference: Callable[[list[Any]], dict[str, float]] | None = None
    invariant: frozenset[str] = frozenset()
    bounds: Mapping[str, Bounds | Callable[[Any], Bounds]] = field(default_factory=dict)
    counted: frozenset[str] = frozenset()
    extremes: frozenset[str] = frozenset()
    components: Mapping[
        str, tuple[str, ...] | Callable[[tuple[str, ...]], tuple[str, ...]]
    ] = field(default_factory=dict)
    panel: str = ""
    axes: tuple[str, ...] = field(init=False)
    first_policy: bool = field(init=False)

    def __post_init__(self) -> None:
        """Check the declaration and derive `axes` and `first_policy`; UsageError if it contradicts itself."""
        for name in ("needs", "invariant", "extremes"):
            # A frozen dataclass has no other way to change a field.
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        if not isinstance(self.name, str) or not re.fullmatch(
            r"[a-z][a-z0-9_]*", self.name
        ):
            cure = "use small letters, digits and _, as in mean_cosine"
            raise UsageError(
                "a name for the metric, which becomes its name in the records",
                repr(self.name),
                cure,
            )
        if not isinstance(self.reads, Reads):
            came = repr(self.reads)
            # The likeliest slip: `Vectors` for `Vectors()`.
            if isinstance(self.reads, type):
                came += ", a class: call it"
            raise UsageError(
                f"what {self.name} reads: Vectors(), Sample(), …",
                came,
                "see anisoscope.reads",
            )
        if not callable(self.compute):
            raise UsageError(
                f"a function as `compute` of {self.name}",
                repr(self.compute),
                "pass the function itself, without ()",
            )
        self._check_names("needs", self.needs, self.reads.terms)
        self._check_names("invariant", self.invariant, INVARIANCES)
        object.__setattr__(self, "axes", self.reads.list_axes(self.needs))
        object.__setattr__(
            self, "first_policy", self.reads.is_of_first_policy(self.needs)
        )

    def _check_names(self, what: str, names: frozenset[str], known: Any) -> None:
        """Raise UsageError if a field of the metric's declaration contains an unknown name.

        what    the field: `needs` or `invariant`
        names   what it contains
        known   the names that may be used; None: any
        """
        if known is None:
            return
        for name in sorted(names):
            if name in known:
                continue
            if known:
                listed = f"among {', '.join(sorted(known))}"
                cure = suggest_names(name, known)
            else:
                listed = "empty, since it reads no sums"
                cure = "leave it out"
            raise UsageError(f"`{what}` of {self.name} {listed}", repr(name), cure)

    @property
    def documentation(self) -> str:
        """Return the docstring of the metric's module; of its function, if the metric was defined in a notebook."""
        module = sys.modules.get(self.compute.__module__)
        # In a notebook the module is `__main__`, whose docstring is not the metric's.
        if module is None or module.__name__ == "__main__":
            return self.compute.__doc__ or ""
        return module.__doc__ or ""

    def range_of(self, value: str, data: Any) -> Bounds:
        """Return the bounds (low, high) within which the named value must lie for these data; infinite if not
        declared.

        value   name of one of the metric's values, as in the result of `compute`
        data    what `compute` was called with
        """
        bounds = self.bounds.get(value, UNBOUNDED)
        if callable(bounds):
            return bounds(data)
        return bounds

    def labels_of(
        self, value: str, count: int, names: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Return the names of the components of a value that has several, such as one per class or per dimension.

        value   name of one of the metric's values, as in the result of `compute`
        count   how many components it has; if the metric declares no names, they are called "0", "1", …
        names   class names of the data, if there are classes; a metric may name its components after them
        """
        labels = self.components.get(value)
        if labels is None:
            return tuple(str(number) for number in range(count))
        if callable(labels):
            return labels(names)
        return labels


def dot(a: Array, b: Array) -> Array:
    """Return the scalar products of vectors `a` and `b` over their last axis."""
    return np.asarray(np.einsum("...d,...d->...", a, b))


def find_exponent(x: Array) -> NDArray[np.int32]:
    """Return for each number the exponent e for which |x| / 2^e lies between .5 and 1; 0 for zero, NaN and infinity.

    Numbers divided by 2^e (`np.ldexp(x, -e)`) keep every digit, and their squares and fourth powers stay in the range
    of float64.
    """
    return np.frexp(np.where(np.isfinite(x), x, 0.0))[1]


def ratio(numerator: Array, denominator: Array) -> Array:
    """Divide; NaN without a warning if the denominator is 0, which makes the value undefined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(denominator == 0, np.nan, numerator / denominator)


def normalise(x: Array) -> Array:
    """Scale vectors to length 1 over the last axis; a zero vector stays zero."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    zeros = np.zeros_like(x, dtype=np.float64)
    return np.asarray(np.divide(x, length, out=zeros, where=length > 0))


def leave_diagonal_out(matrix: Array) -> Array:
    """Return the entries of a square matrix that are not on its diagonal, as one axis."""
    distinct = ~np.eye(len(matrix), dtype=bool)
    return matrix[distinct]


def concatenate_pairs(units: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    """Concatenate the pairs of arrays of all units, such as (queries, keys), to one pair of arrays [token, dim].

    units   two arrays [token, dim] of each unit
    """
    first = np.concatenate([unit[0] for unit in units])
    second = np.concatenate([unit[1] for unit in units])
    return first, second
