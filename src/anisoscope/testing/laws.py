"""Laws (checks) that every metric must obey; each says how it is broken and what to do about it.

    from anisoscope.testing import check_metric
    from my_package.my_metric import METRIC

    def test_my_metric():
        check_metric(METRIC)

Test data pass through batches, masks, sums and samples as in a run, but without a model.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.functional import metric as measure_alone
from anisoscope.measure.settings import Settings
from anisoscope.measure.tabulate import build_columns
from anisoscope.metrics import INVARIANCES, Metric, find_all, is_own
from anisoscope.metrics.mean_cosine import reference as mean_cosine_of
from anisoscope.reads.base import Array, Batching, Reading, Unit
from anisoscope.reads.vectors import MOMENTS
from anisoscope.registry import registered

EXACT = 1e-9
"""Relative difference between two ways to one number in float64, over some hundred vectors."""
CHANGED = 1e-3
"""A relative change that no rounding makes."""
GROUPS = 32
MOST = 1 << 20
"""A sample that holds everything."""
POINTS = ("Formula", "Range", "Unit", "Undefined", "Source")
ON_REQUEST = {"row_median", "score_histogram"}
"""Values of attention rows that are measured on request only."""
SMALLEST = {
    "nothing": (0, 0),
    "one vector": (1, 0),
    "one vector in each of two units": (1, 1),
    "one unit": (6, 0),
    "zero vectors": (-3, -2),
}
"""Vectors in each unit; below 0: so many zero vectors."""


class LawBroken(AssertionError):
    """Raised if a metric breaks a law: which one, how it shows, and what to do."""


class _Broken(Exception):
    """Raised inside a check if its law does not hold; the message says how it shows."""


class Law(NamedTuple):
    """One law that metrics must obey.

    name     what holds
    cure     what to look at if it does not hold
    check    raises if it does not hold
    applies  whether the law applies to a metric
    """

    name: str
    cure: str
    check: Callable[[Metric], None]
    applies: Callable[[Metric], bool] = lambda _metric: True

    def hold(self, metric: Metric) -> None:
        """Check the law for a metric; LawBroken if it does not hold or the metric raises an error."""
        # A measurement finds metrics by name; one under test may not be registered, or
        # not under this name.
        with temporarily_register(metric):
            try:
                self.check(metric)
            except _Broken as broken:
                raise LawBroken(
                    f"{metric.name} breaks the law “{self.name}”: {broken}. Cure: {self.cure}"
                ) from None
            except Exception as error:
                what = f"it raises {type(error).__name__}: {error}"
                raise LawBroken(
                    f"{metric.name} breaks the law “{self.name}”: {what}. Cure: {self.cure}"
                ) from error


def check_metric(metric: Metric) -> None:
    """Check every law that applies to a metric; LawBroken lists those that do not hold, with advice.

    >>> from anisoscope.metrics import drift
    >>> check_metric(drift.METRIC)
    """
    # All laws are tried: one report lists everything that is to be corrected.
    broken: list[LawBroken] = []
    for law in laws_of(metric):
        try:
            law.hold(metric)
        except LawBroken as error:
            broken.append(error)
    if broken:
        raise LawBroken("\n".join(map(str, broken))) from broken[0].__cause__


def laws_of(metric: Metric) -> list[Law]:
    """Return the laws that apply to a metric, as for `pytest.mark.parametrize("law", laws_of(METRIC), ids=lambda x:
    x.name)`.
    """
    return [law for law in LAWS if law.applies(metric)]


# ---- from test data to values ----------------------------------------------------------------------------------------


@contextmanager
def temporarily_register(metric: Metric) -> Iterator[None]:
    """Register a metric under its name inside a `with` block."""
    # Our own are registered already, and a second time would be an error.
    is_registered = find_all().get(metric.name) is metric
    with nullcontext() if is_registered else registered(metric):
        yield


def run_test_pass(
    metric: Metric, units: Sequence[Unit], **batching: Any
) -> Measurement:
    """Measure a metric on test data, without a model; every unit is a group of its own.

    units      vectors [vector, dim] of each unit
    batching   fields of `reads.base.Batching`: how units are split into batches and padded
    """
    # With a group for each unit, leaving a group out is leaving a unit out, as the
    # checks below say it.
    groups = max(GROUPS, len(units))
    # Second moments get all groups too, and the sample keeps every vector: values can
    # then be compared exactly.
    settings = Settings(
        metrics=(metric.name,),
        tokens=("all",),
        groups=groups,
        spectrum_groups=groups,
        sample=MOST,
    )
    classes: tuple[str, ...] = ()
    if metric.reads.labelled:
        # Each unit of test data is a class.
        classes = tuple(map(str, range(len(units))))
    done = Measurement(settings, classes=classes)
    metric.reads.feed(metric, units, Batching(**batching), done)
    return done


def read_test_data(
    metric: Metric, units: Sequence[Unit], **batching: Any
) -> Reading | None:
    """Measure test data without a model, and return the metric's input; None if there is no place that it reads.

    units      vectors [vector, dim] of each unit
    batching   fields of `reads.base.Batching`: how units are split into batches and padded
    """
    return read_pass(metric, run_test_pass(metric, units, **batching))


def read_pass(metric: Metric, done: Measurement) -> Reading | None:
    """Return the metric's input from a finished test measurement; None if there is no place that it reads."""
    return next(metric.reads.readings(metric, done.gather()), None)


def compute_replicates(
    metric: Metric, units: Sequence[Unit], **batching: Any
) -> dict[str, Array]:
    """Compute the metric's values on test data: of all groups, then with each group left out.

    Returns {name of a value: [1 + group, …]}; empty if there is no place that the metric reads.

    units      vectors [vector, dim] of each unit
    batching   fields of `reads.base.Batching`: how units are split into batches and padded
    """
    reading = read_test_data(metric, units, **batching)
    if reading is None:
        return {}
    return metric.compute(reading.data)


def compute_values(
    metric: Metric, units: Sequence[Unit], **batching: Any
) -> dict[str, float]:
    """Compute the metric's values on test data: {name of a value or component: its number}.

    The numbers are of the first token policy and head, named as the metric's reference names them.

    units      vectors [vector, dim] of each unit
    batching   fields of `reads.base.Batching`: how units are split into batches and padded
    """
    reading = read_test_data(metric, units, **batching)
    if reading is None:
        return {}
    return name_values(metric, reading, metric.compute(reading.data))


def name_values(
    metric: Metric, reading: Reading, computed: Mapping[str, Array]
) -> dict[str, float]:
    """Return {name of a value or component: its number}, over all groups, for the first token policy and head.

    reading    what the metric read
    computed   what it computed: {name: [replicate, …]}
    """
    named: dict[str, float] = {}
    for name, replicates in computed.items():
        # The reference knows neither groups nor policies: it is compared with the value
        # over everything.
        of_all = replicates[0]
        component_axes = of_all.shape[len(metric.axes) :]
        # The first entry of policies and heads together is that of the first of either.
        value = of_all.reshape(-1, *component_axes)[0]
        if value.ndim == 0:
            named[name] = float(value)
            continue
        labels = metric.labels_of(name, len(value), reading.names)
        for label, entry in zip(labels, value, strict=True):
            named[f"{name} {label}" if name else label] = float(entry)
    return named


def change_units(units: Sequence[Unit], by: Callable[[Array], Array]) -> list[Unit]:
    """Apply a function to the vectors of all test units, and to both sides if a unit is a pair."""
    return change_sides(units, (by, by))


def change_sides(
    units: Sequence[Unit], by: Sequence[Callable[[Array], Array]]
) -> list[Unit]:
    """Apply functions to the vectors of all units, one to each side of a pair.

    by   a function for each side
    """
    changed: list[Unit] = []
    for unit in units:
        if isinstance(unit, tuple):
            changed.append((by[0](unit[0]), by[1](unit[1])))
        else:
            changed.append(by[0](unit))
    return changed


def list_sides(unit: Unit) -> tuple[Array, ...]:
    """Return the arrays of a unit of test data: two of a pair, else one."""
    return unit if isinstance(unit, tuple) else (unit,)


def count_vectors(unit: Unit) -> int:
    """Return the number of vectors in a unit of test data."""
    return len(list_sides(unit)[0])


def _label(name: str) -> str:
    """Return how a message names a value: `its value 'share'`."""
    if not name:
        return "its value"
    return f"its value {name!r}"


def _require_equal(
    got: Mapping[str, Any],
    expected: Mapping[str, Any],
    how: tuple[str, str],
    tolerance: float,
) -> None:
    """Raise _Broken unless two ways of computing give the same values up to `tolerance`.

    got, expected   values by name
    how             names of the two ways
    """
    one_way, other_way = how
    if got.keys() != expected.keys():
        raise _Broken(
            f"it gives {sorted(got)} {one_way} and {sorted(expected)} {other_way}"
        )
    for name in expected:
        x = np.asarray(got[name])
        y = np.asarray(expected[name])
        if x.shape != y.shape:
            raise _Broken(
                f"{_label(name)} has shape {x.shape} {one_way} and {y.shape} {other_way}"
            )
        # An absolute tolerance as well, since many values (A of isotropic data) are
        # near 0.
        is_same = np.isclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not is_same.all():
            place = tuple(np.argwhere(~is_same)[0])
            raise _Broken(
                f"{_label(name)} is {x[place]:.9g} {one_way} and {y[place]:.9g} {other_way}"
            )


# ---- the laws --------------------------------------------------------------------------------------------------------


def _check_words(metric: Metric) -> None:
    """Raise _Broken unless the metric's docstring begins with a sentence, then has the five points that `POINTS`
    names.

    These are Formula, Range, Unit, Undefined and Source, in this order, each at the beginning of a line.
    """
    text = metric.documentation
    heads = re.findall(rf"^\s*({'|'.join(POINTS)})\s+\S", text, re.MULTILINE)
    module = metric.compute.__module__
    where = f"the docstring of {'its function' if module == '__main__' else module}"
    if tuple(heads) != POINTS:
        raise _Broken(
            f"{where} has {', '.join(heads) or 'none'} of its points; expected {', '.join(POINTS)}, in order"
        )
    if len(text.strip().split("\n\n")[0]) < 20:
        raise _Broken(
            f"{where} does not begin with a sentence that says what is measured"
        )


def _check_declaration(metric: Metric) -> None:
    """Raise _Broken if the declaration names values that the metric does not give, or lacks a reference."""
    # A panel is measured without being named. Were packages to add to it, installing
    # one would change other runs.
    if metric.panel and not is_own("metrics", metric.name):
        raise _Broken(
            f"it declares the panel {metric.panel!r}; what another package adds is measured if it is named"
        )
    if metric.reference is None:
        raise _Broken(
            "it has no reference, so that nothing says what its values should be"
        )
    given = set(compute_replicates(metric, metric.reads.draw()))
    declared = {
        "bounds": {*metric.bounds},
        "counted": {*metric.counted},
        "extremes": {*metric.extremes},
    }
    for what, names in declared.items():
        unknown = sorted(names - given - ON_REQUEST)
        if unknown:
            raise _Broken(
                f"`{what}` names {', '.join(map(repr, unknown))}, which it does not give ({sorted(given)})"
            )


def _check_shapes(metric: Metric) -> None:
    """Raise _Broken unless the metric's values are float64 arrays with the right axes, replicates and component
    names.
    """
    reading = read_test_data(metric, metric.reads.draw())
    assert reading is not None
    axes = ("replicate", *metric.axes)
    for name, value in metric.compute(reading.data).items():
        if not isinstance(value, np.ndarray) or value.dtype != np.float64:
            raise _Broken(
                f"{_label(name)} is {getattr(value, 'dtype', type(value).__name__)}, no array of float64"
            )
        has_components = value.ndim == len(axes) + 1
        if value.ndim != len(axes) and not has_components:
            described = ", ".join(axes)
            raise _Broken(
                f"{_label(name)} has shape {value.shape}; expected [{described}] or one component axis more"
            )
        _require_replicates(metric, name, len(value), 1 + reading.data.n_groups)
        if has_components:
            count = value.shape[-1]
            labels = metric.labels_of(name, count, reading.names)
            if len(labels) != count or len(set(labels)) < len(labels):
                raise _Broken(
                    f"{_label(name)} has {count} components, named {', '.join(labels)}"
                )


def _require_replicates(metric: Metric, name: str, count: int, expected: int) -> None:
    """Raise _Broken unless a value has the right number of replicates.

    name       of the value
    count      its number of replicates
    expected   1 and the number of groups
    """
    if name in metric.extremes:
        if count != 1:
            raise _Broken(
                f"{_label(name)} is declared an extreme and has {count} replicates; expected 1"
            )
        return
    # What is computed of a matrix has no groups.
    is_of_weights = metric.reads.summary() is not None
    if count == expected or (is_of_weights and count == 1):
        return
    what = "all groups, then each left out"
    raise _Broken(f"{_label(name)} has {count} replicates; expected {expected}: {what}")


def _check_reference(metric: Metric) -> None:
    """Raise _Broken unless the values equal those of the slow reference, on three sets of test data."""
    # A wrong formula may agree by chance on one draw.
    for seed in range(3):
        require_reference(metric, metric.reads.draw(seed))


def require_reference(
    metric: Metric, units: list[Unit], tolerance: float = EXACT, **batching: Any
) -> None:
    """Raise _Broken unless the values on test data equal those of the metric's slow reference, up to `tolerance`.

    units      test data by unit
    batching   fields of `reads.base.Batching`: how the data are split into batches and padded
    """
    assert metric.reference is not None
    expected = metric.reference(units)
    got = compute_values(metric, units, **batching)
    if not expected:
        raise _Broken("its reference names no value")
    missing = sorted(expected.keys() - got.keys())
    if missing:
        raise _Broken(
            f"its reference names {', '.join(map(repr, missing))}, which it does not give ({sorted(got)})"
        )
    # Only values that the reference names: some (counts of rows, quantiles of laws)
    # have no slow form.
    how = "as computed", "by its definition"
    _require_equal({name: got[name] for name in expected}, expected, how, tolerance)


def _check_float32(metric: Metric) -> None:
    """Raise _Broken unless float32 vectors give the reference's values up to rounding, with and without a drift.

    The tolerance is √n·ε, the relative rounding error of a sum of n products in float32. A covariance is a difference
    of two such sums, which are 1/(1 − A) times as large as it, so its tolerance is larger by this factor. Norms are
    summed in float64.
    """
    # A drift of 20 is some thirty times the spread of the test data: digits are lost
    # there, if anywhere.
    for drift in (0, 20):
        drawn = change_units(
            metric.reads.draw(1, (300, 200, 500), 48), partial(np.add, drift)
        )
        # Rounded to float32 first, so that the reference sees the very numbers that are
        # measured.
        units = change_units(drawn, lambda x: x.astype(np.float32).astype(np.float64))
        tolerance = np.sqrt(1000) * np.finfo(np.float32).eps
        if metric.needs & MOMENTS:
            tolerance /= 1 - mean_cosine_of(units)[""]  # type: ignore[arg-type]
        require_reference(metric, units, tolerance, dtype=torch.float32)


def _make_invariance_check(invariance: str) -> Callable[[Metric], None]:
    """Return a function that checks whether a metric tells the truth about one invariance (rotation, scaling, …).

    Its values must stay the same under this change of the data if it declares the invariance, and change if not.
    """

    def check(metric: Metric) -> None:
        """Raise _Broken if the values change although the metric declares invariance, or stay although it does not."""
        units = metric.reads.draw(2)
        before = compute_values(metric, units)
        after = compute_values(metric, _transform_units(metric, units, invariance))
        assert metric.reference is not None
        names = metric.reference(units).keys()
        # Relative for large values, absolute for those below 1.
        change = max(
            abs(after[name] - before[name]) / max(1, abs(before[name]))
            for name in names
        )
        is_declared = invariance in metric.invariant
        if is_declared and change > EXACT:
            raise _Broken(
                f"it is declared invariant to {invariance}, which changes it by {change:.2g}"
            )
        if not is_declared and change < CHANGED:
            raise _Broken(
                f"{invariance} changes it by {change:.2g} only, and it is not declared invariant to it"
            )

    return check


def _transform_units(metric: Metric, units: list[Unit], invariance: str) -> list[Unit]:
    """Return test data that are rotated, scaled, shifted or reordered, as `invariance` names it."""
    rng = np.random.default_rng(5)
    d = list_sides(units[0])[0].shape[1]
    if invariance == "rotation":
        rotation = _draw_rotation(rng, d)
        # The two layers of a pair may turn independently; queries and keys must turn
        # together to keep q·k.
        other_rotation = _draw_rotation(rng, d)
        if metric.reads.sides_turn_together:
            other_rotation = rotation
        return change_sides(
            units, (lambda x: x @ rotation, lambda x: x @ other_rotation)
        )
    if invariance == "scaling":
        return change_units(
            units, lambda x: x * np.exp(rng.standard_normal((len(x), 1)))
        )
    if invariance == "translation":
        return change_units(units, lambda x: x + np.linspace(1, 2, d))
    shuffled: list[Unit] = []
    for unit in units:
        # One order for both sides of a pair: they are the same tokens.
        order = rng.permutation(count_vectors(unit))
        shuffled += change_units([unit], partial(np.take, indices=order, axis=0))
    # Units that play different parts stay in their places.
    if metric.reads.has_roles(metric.needs):
        return shuffled
    return shuffled[::-1]


def _draw_rotation(rng: np.random.Generator, d: int) -> Array:
    """Draw a random rotation [dim, dim], which may also reflect."""
    rotation, _ = np.linalg.qr(rng.standard_normal((d, d)))
    return rotation


def _check_batches(metric: Metric) -> None:
    """Raise _Broken if the values depend on how the data are split into batches."""
    units = metric.reads.draw()
    whole = compute_replicates(metric, units)
    for batch in (1, 2):
        how = f"in batches of {batch}", "in one batch"
        _require_equal(
            compute_replicates(metric, units, batch=batch), whole, how, EXACT
        )


def _check_halves(metric: Metric) -> None:
    """Raise _Broken unless two halves measured separately and merged give the values of the whole."""
    units = metric.reads.draw()
    halves = []
    for half in (0, 1):
        # Every other unit is emptied, not dropped: those that stay keep their number,
        # and so their group.
        kept = change_units(units, lambda x: x[:0])
        kept[half::2] = units[half::2]
        halves.append(run_test_pass(metric, kept))
    reading = read_pass(metric, halves[0].merge(halves[1]))
    assert reading is not None
    merged = metric.compute(reading.data)
    _require_equal(
        merged,
        compute_replicates(metric, units),
        ("of two halves", "of the whole"),
        EXACT,
    )


def _check_padding(metric: Metric) -> None:
    """Raise _Broken if padding changes the values, whatever number it holds."""
    # A large number shows padding that is counted; NaN and Inf show padding that is
    # weighted with 0.
    for filler in (1e3, np.nan, np.inf):
        require_padding_ignored(metric, filler)


def require_padding_ignored(metric: Metric, filler: float) -> None:
    """Raise _Broken if padding that holds `filler` changes the values."""
    units = metric.reads.draw()
    padded = compute_replicates(metric, units, padding=3, filler=filler, batch=2)
    how = f"with three positions of {filler} behind each sequence", "without padding"
    _require_equal(padded, compute_replicates(metric, units), how, EXACT)


def _check_unusable(metric: Metric) -> None:
    """Raise _Broken if zero vectors or NaN among the data change the values."""
    units = metric.reads.draw()

    def spoil(x: Array) -> Array:
        """Insert a zero vector and one of NaN after the first two vectors."""
        bad = np.array([np.zeros(x.shape[1]), np.full(x.shape[1], np.nan)])
        return np.concatenate([x[:2], bad, x[2:]])

    got = compute_replicates(metric, change_units(units, spoil))
    expected = compute_replicates(metric, units)
    for name in metric.extremes:
        # With more tokens before it, a token has another position.
        if name.endswith("position"):
            del got[name], expected[name]
    how = "with zero vectors and NaN among others", "without them"
    _require_equal(got, expected, how, EXACT)


def _check_smallest(metric: Metric) -> None:
    """Raise _Broken unless the smallest inputs give a value or NaN."""
    for case, sizes in SMALLEST.items():
        require_decided(metric, case, sizes)


def require_decided(metric: Metric, case: str, sizes: Sequence[int]) -> None:
    """Raise _Broken unless a small input gives a number, NaN or no row: never a warning or an infinity.

    case    what the input is, in words
    sizes   number of vectors of each unit; negative numbers: all vectors are zero
    """
    units = metric.reads.draw(sum(map(abs, sizes)), [abs(n) for n in sizes], 5)
    if min(sizes) < 0:
        units = change_units(units, np.zeros_like)
    rows: list[Any] = []
    with warnings.catch_warnings():
        # NumPy only warns of 0 / 0: as an error it names the input that led to it.
        warnings.simplefilter("error")
        try:
            reading = read_test_data(metric, units)
            if reading is not None:
                rows = list(build_columns(metric, reading, ("all",)))
        except Warning as warning:
            raise _Broken(f"{case}: it warns ({warning})") from None
    for columns, _ in rows:
        numbers = np.array(
            [columns["value"], columns["low"], columns["high"]], dtype=np.float64
        )
        if np.isinf(numbers).any():
            raise _Broken(f"{case}: {columns['metric'][0]} is infinite")
        assert reading is not None
        # Student's t of two groups says nothing (`jackknife.FEWEST`).
        if reading.data.n_groups < 3 and not np.isnan(numbers[1:]).all():
            raise _Broken(
                f"{case}: {columns['metric'][0]} has an interval of {reading.data.n_groups} groups"
            )
    if case == "nothing" and rows:
        raise _Broken("nothing: it gives a value all the same")


def _check_replicates(metric: Metric) -> None:
    """Raise _Broken unless each replicate equals the value without its group."""
    reading = read_test_data(metric, metric.reads.draw(3))
    assert reading is not None
    # Extremes have a single replicate.
    whole = {
        name: value
        for name, value in metric.compute(reading.data).items()
        if name not in metric.extremes
    }
    for index in range(reading.data.n_groups):
        computed = metric.compute(reading.data.without(index))
        of_others = {name: computed[name][0] for name in whole}
        replicate = {name: value[index + 1] for name, value in whole.items()}
        how = (
            f"without group {index}, as replicate {index + 1}",
            "of the other groups alone",
        )
        _require_equal(replicate, of_others, how, EXACT)


def _check_bounds(metric: Metric) -> None:
    """Raise _Broken if a value lies outside of its declared bounds."""
    # Few vectors in few groups, and nearly equal directions: where rounding and small n
    # push values over their bounds.
    for seed, drift in ((0, 0.0), (1, 30.0)):
        for count in (3, 4, 9):
            drawn = metric.reads.draw(seed, (4,) * count, 5)
            reading = read_test_data(
                metric, change_units(drawn, partial(np.add, drift))
            )
            if reading is not None:
                _require_bounds(metric, reading)


def _require_bounds(metric: Metric, reading: Reading) -> None:
    """Raise _Broken if a value of a reading lies outside of its declared bounds."""
    for name, computed in metric.compute(reading.data).items():
        low, high = metric.range_of(name, reading.data)
        value = computed[0]
        slack = EXACT * (1 + np.abs(value))
        is_outside = (value < np.asarray(low) - slack) | (
            value > np.asarray(high) + slack
        )
        if np.any(is_outside):
            raise _Broken(
                f"{_label(name)} is {value[is_outside].ravel()[0]:.6g}, outside its bounds"
            )


def _check_purity(metric: Metric) -> None:
    """Raise _Broken if `compute` changes its input, so that a second call gives other values."""
    reading = read_test_data(metric, metric.reads.draw(4))
    assert reading is not None
    # Copied: if `compute` writes into what it is given, its first result may be a view
    # of that.
    first = {
        name: np.array(value) for name, value in metric.compute(reading.data).items()
    }
    again = metric.compute(reading.data)
    _require_equal(again, first, ("the second time", "the first time"), 0)


def _check_alone(metric: Metric) -> None:
    """Raise _Broken unless `anisoscope.metric` on a tensor gives the values of the slow reference."""
    units = metric.reads.draw(3)
    longest = max(map(count_vectors, units))
    mask = torch.zeros(len(units), longest, dtype=torch.bool)
    arrays: list[torch.Tensor] = []
    for side in list_sides(units[0]):
        # Padded with NaN, so that a token outside of the mask shows in every value.
        arrays.append(
            torch.full(
                (len(units), longest, side.shape[1]), torch.nan, dtype=torch.float64
            )
        )
    for row, unit in enumerate(units):
        mask[row, : count_vectors(unit)] = True
        for array, x in zip(arrays, list_sides(unit), strict=True):
            array[row, : len(x)] = torch.as_tensor(x)
    given = arrays[0] if len(arrays) == 1 else (arrays[0], arrays[1])
    measured = measure_alone(metric, given, mask=mask)
    assert metric.reference is not None
    expected = metric.reference(units)
    estimates = {
        key: measured[f"{metric.name}.{key}" if key else metric.name]
        for key in expected
    }
    got = {key: estimate.value for key, estimate in estimates.items()}
    _require_equal(got, expected, ("by anisoscope.metric", "by its definition"), EXACT)
    # Keys with a space name a component; the declaration names values.
    for key, estimate in estimates.items():
        # Extremes have no interval.
        if key.split(" ")[0] in metric.extremes:
            continue
        if not estimate.low <= estimate.value <= estimate.high:
            raise _Broken(
                f"{_label(key)} is {estimate.value:.6g} with the interval [{estimate.low}, {estimate.high}]"
            )


def _has_reference(metric: Metric) -> bool:
    """Return whether the metric has a slow reference to compare with."""
    return metric.reference is not None


def _takes_arrays(metric: Metric) -> bool:
    """Return whether the metric reads arrays of hidden vectors, has a reference, and its test units all play the same
    part.
    """
    return (
        metric.reads.arrays > 0
        and _has_reference(metric)
        and not metric.reads.has_roles(metric.needs)
    )


LAWS = (
    Law(
        "it says what it is",
        "write the five points; docs/adding.md has an example",
        _check_words,
    ),
    Law("it declares what it has", "correct the declaration", _check_declaration),
    Law(
        "its values have the axes of what it reads",
        "give [replicate, …] as in the docstring of `Metric`, in float64",
        _check_shapes,
    ),
    Law(
        "it equals its definition",
        "compare `compute` with `reference`, term by term, on the units that `METRIC.reads.draw()` gives",
        _check_reference,
        _has_reference,
    ),
    Law(
        "float32 activations keep six digits",
        "sum first and subtract last, in float64",
        _check_float32,
        _takes_arrays,
    ),
    *(
        Law(
            f"it is invariant to {invariance}, or it is not, as it declares",
            "correct `invariant` or the formula",
            _make_invariance_check(invariance),
            _has_reference,
        )
        for invariance in INVARIANCES
    ),
    Law("batches do not matter", "use sums over all sequences alone", _check_batches),
    Law(
        "two halves add up to the whole",
        "use what adds up: sums, or a sample by hash",
        _check_halves,
        lambda metric: (
            metric.reads.adds_up and not metric.reads.has_roles(metric.needs)
        ),
    ),
    Law(
        "padding never counts",
        "use sums and samples, which leave padding out; no length of an array",
        _check_padding,
    ),
    Law(
        "zero vectors and NaN never count",
        "count by `n`, not by tokens",
        _check_unusable,
        _takes_arrays,
    ),
    Law(
        "the smallest inputs are decided",
        "give NaN where nothing is defined: `metrics.base.ratio` divides so",
        _check_smallest,
    ),
    Law(
        "each replicate leaves one group out",
        "write the formula over the leading axis: no sum over replicates, no number of the first one alone",
        _check_replicates,
        lambda metric: metric.reads.summary() is None,  # a matrix is one group
    ),
    Law(
        "values stay inside their bounds",
        "correct `bounds` or the formula",
        _check_bounds,
    ),
    Law(
        "it changes nothing that it is given",
        "copy before you write into an array",
        _check_purity,
    ),
    Law(
        "alone on a tensor it is the same",
        "see the law “it equals its definition”",
        _check_alone,
        _takes_arrays,
    ),
)
"""Every law, in the order in which they are checked."""
