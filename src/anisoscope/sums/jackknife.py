"""Intervals: the delete-a-group jackknife for any function of group sums, Student t over seeds, Holm's correction.

A value that has bounds gets an interval inside them. Between two bounds it is taken on the logit scale (of a cosine or
a correlation: Fisher's z), where half its width is t·error·(dz/dvalue); at a single bound it is cut. Far inside the
bounds this is Student's interval to the second order. Chosen by simulation: benchmarks/coverage.py.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
Bounds = tuple[Array | float, Array | float]
"""The smallest and the largest that a value can be; infinite if there is no such end."""
UNBOUNDED: Bounds = (-np.inf, np.inf)
FEWEST = 3
"""Groups that an interval needs: Student's t of two has a tail so long that it says nothing."""


class Estimate(NamedTuple):
    """A value and the ends of its interval (NaN if it has none)."""

    value: Array
    low: Array
    high: Array


def explain_no_interval(groups: int) -> str | None:
    """Return why values from this number of groups of units have no interval; None if they have one."""
    if groups >= FEWEST:
        return None
    noun = "group" if groups == 1 else "groups"
    return f"no intervals: {groups} {noun} of units, {FEWEST} needed"


def jackknife_interval(
    replicates: ArrayLike,
    level: float = 0.95,
    *,
    bounds: Bounds = UNBOUNDED,
    counted: Array | int | None = None,
) -> Estimate:
    """Return a value and its interval from replicates [1 + group, ...]: of all groups first, then with each one left
    out.

    Variance (G − 1)/G · Σ(θ₍g₎ − mean θ₍g₎)², Student t with G − 1 degrees of freedom (Tukey 1958; Shao & Tu 1995,
    eq. 2.9), inside `bounds`. Fewer than three groups, or an undefined replicate: no interval (NaN). If all replicates
    agree, the interval has no width; if the value is a share of `counted` things, it is Wilson's interval instead.
    """
    theta = np.asarray(replicates, dtype=np.float64)
    value, left_out = theta[0], theta[1:]
    groups = len(left_out)
    if groups < FEWEST:
        return _leave_undefined(value)
    # ∞ − ∞ of undefined replicates is NaN, which is what is wanted: no interval.
    with np.errstate(invalid="ignore"):
        deviation = left_out - left_out.mean(axis=0)
        error = np.sqrt((groups - 1) / groups * (deviation**2).sum(axis=0))
    factor = _compute_student_quantile(groups - 1, (1 + level) / 2)
    estimate = _put_ends_inside_bounds(value, error, factor, bounds)
    if counted is None:
        return estimate
    # A share of 0 in every replicate has no width here, though the next thing counted may differ.
    agree = (left_out == value).all(axis=0)
    low, high = wilson_interval(value, counted, level)
    low = np.where(agree, low, estimate.low)
    high = np.where(agree, high, estimate.high)
    return Estimate(value, low, high)


def estimate_mean(
    values: ArrayLike, *, bounds: Bounds = UNBOUNDED, groups: int = 32
) -> Estimate:
    """Return the mean of values [unit] with its 95 % jackknife interval; unit i is in group i mod `groups`.

    Values that are all −1, all 0 or all 1 (a decision that was always right, or never changed) do not vary, but the
    mean is still uncertain. Their interval reaches as far on each side as Wilson's interval for 0 of n units.
    """
    x = np.asarray(values, dtype=np.float64)
    replicates = [x.mean()]
    if len(x) > 1:
        group = np.arange(len(x)) % groups
        replicates += [x[group != g].mean() for g in range(min(groups, len(x)))]
    estimate = jackknife_interval(replicates, bounds=bounds)
    if len(x) < FEWEST:
        return estimate
    all_equal = np.ptp(x) == 0
    if not all_equal or not np.isin(x, (-1.0, 0.0, 1.0)).all():
        return estimate
    reach = float(wilson_interval(0.0, len(x))[1])
    least, most = bounds
    low = np.maximum(estimate.value - reach, least)
    high = np.minimum(estimate.value + reach, most)
    return Estimate(estimate.value, low, high)


def estimate_over_seeds(
    values: ArrayLike, level: float = 0.95, *, bounds: Bounds = UNBOUNDED
) -> Estimate:
    """Return the mean over seeds of values [seed, ...], with a Student t interval (seeds − 1) inside `bounds`.

    A single seed gives no interval.
    """
    x = np.asarray(values, dtype=np.float64)
    mean = x.mean(axis=0)
    if len(x) < 2:
        return _leave_undefined(mean)
    error = x.std(axis=0, ddof=1) / np.sqrt(len(x))
    factor = _compute_student_quantile(len(x) - 1, (1 + level) / 2)
    return _put_ends_inside_bounds(mean, error, factor, bounds)


def wilson_interval(
    share: ArrayLike, n: ArrayLike, level: float = 0.95
) -> tuple[Array, Array]:
    """Return both ends of the score interval of a share of n independent things (Wilson 1927)."""
    p = np.asarray(share, dtype=np.float64)
    n = np.asarray(n, dtype=np.float64)
    z = _compute_normal_quantile((1 + level) / 2)
    middle = p + z**2 / (2 * n)
    half = z * np.sqrt(p * (1 - p) / n + (z / (2 * n)) ** 2)
    scale = 1 + z**2 / n
    # Rounding may put an end on the other side of the share.
    low = np.clip((middle - half) / scale, 0, p)
    high = np.clip((middle + half) / scale, p, 1)
    return low, high


def _compute_student_quantile(freedom: int, level: float) -> float:
    """Return the value below which Student's t lies with probability `level` (.975 for a two-sided 95 % interval).

    scipy is imported here so that lists and help need not load it.
    """
    from scipy import special

    return float(special.stdtrit(freedom, level))


def _compute_normal_quantile(level: float) -> float:
    """Return the value below which a standard normal variable lies with probability `level`."""
    from scipy import special

    return float(special.ndtri(level))


def _leave_undefined(value: Array) -> Estimate:
    """Return an `Estimate` whose interval ends are NaN, for a value without an interval."""
    return Estimate(value, np.full_like(value, np.nan), np.full_like(value, np.nan))


def _put_ends_inside_bounds(
    value: Array, error: Array, factor: float, bounds: Bounds
) -> Estimate:
    """Return a value with the interval value ± factor · error, whose ends stay inside the bounds.

    If both bounds are finite, they are mapped to 0 and 1 and the interval is computed for the logit; otherwise it is
    cut at the bound.
    """
    least = np.broadcast_to(np.asarray(bounds[0], dtype=np.float64), value.shape)
    most = np.broadcast_to(np.asarray(bounds[1], dtype=np.float64), value.shape)
    low = np.maximum(value - factor * error, least)
    high = np.minimum(value + factor * error, most)
    width = most - least
    on_logit_scale = np.isfinite(width) & (width > 0) & (error > 0)
    if on_logit_scale.any():
        # Values that are not on that scale get harmless numbers, and keep their ends.
        error = np.where(on_logit_scale, error, 1.0)
        width = np.where(on_logit_scale, width, 2.0)
        # A value nearer to a bound than half its error would have a slope without end there.
        edge = np.minimum(error, width) / 2
        below = np.clip(
            np.where(on_logit_scale, value - least, 1.0), edge, width - edge
        )
        above = np.clip(np.where(on_logit_scale, most - value, 1.0), edge, width - edge)
        # Half the width on the scale z = log(below / above), whose slope is
        # 1/below + 1/above; exp(500) is still finite.
        step = np.minimum(factor * (error / below + error / above), 500)
        # Back from z ∓ step to the value:
        # least + width / (1 + (above / below) · exp(step)).
        inner_low = least + width * below / (below + above * np.exp(step))
        inner_high = most - width * above / (above + below * np.exp(step))
        low = np.where(on_logit_scale, inner_low, low)
        high = np.where(on_logit_scale, inner_high, high)
    # Rounding, and values at their bound, must not put an end on the wrong side of the
    # value.
    return Estimate(value, np.minimum(low, value), np.maximum(high, value))


def holm(p_values: Sequence[float] | Array) -> Array:
    """Return Holm's step-down adjusted p-values, in the order given (Holm 1979). NaN stays NaN and does not count as
    a test.
    """
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full_like(p, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    # The smallest p-value is multiplied by the number of tests, the next by one less;
    # none may fall below the one before it.
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors))
    return adjusted
