"""Intervals: the delete-a-group jackknife for any function of group sums, Student t over seeds, Holm's correction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]


class Estimate(NamedTuple):
    """A value and the ends of its interval (NaN where there is none)."""

    value: Array
    low: Array
    high: Array


def interval(replicates: ArrayLike, level: float = 0.95) -> Estimate:
    """Value and interval from replicates [1 + group, ...]: all groups first, then each one left out.

    Variance (G − 1)/G · Σ(θ₍g₎ − mean θ₍g₎)², Student t with G − 1 degrees of freedom (Tukey 1958; Shao & Tu 1995,
    eq. 2.9). Fewer than two groups, or a replicate that is not defined: no interval (NaN).
    """
    theta = np.asarray(replicates, dtype=np.float64)
    value, left_out = theta[0], theta[1:]
    groups = len(left_out)
    if groups < 2:
        return Estimate(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    with np.errstate(invalid="ignore"):
        error = np.sqrt((groups - 1) / groups * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    half = stats.t.ppf((1 + level) / 2, groups - 1) * error
    return Estimate(value, value - half, value + half)


def over_seeds(values: ArrayLike, level: float = 0.95) -> Estimate:
    """Mean over seeds [seed, ...] with a Student t interval, seeds − 1 degrees of freedom. One seed has no interval."""
    x = np.asarray(values, dtype=np.float64)
    mean = x.mean(axis=0)
    if len(x) < 2:
        return Estimate(mean, np.full_like(mean, np.nan), np.full_like(mean, np.nan))
    half = stats.t.ppf((1 + level) / 2, len(x) - 1) * x.std(axis=0, ddof=1) / np.sqrt(len(x))
    return Estimate(mean, mean - half, mean + half)


def holm(p_values: Sequence[float] | Array) -> Array:
    """Holm's step-down adjusted p-values, in the order given (Holm 1979). NaN stays NaN and is no test."""
    p = np.asarray(p_values, dtype=np.float64)
    adjusted = np.full_like(p, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * factors))
    return adjusted
