"""Correlation over a few layers: coefficient, exact permutation p, smallest p there can be, and what autocorrelation
does.

A permutation p is the share of all n! pairings whose |coefficient| is at least the observed one (two-sided). With few
layers even the strongest coefficient leaves it above .05: with n = 3 at 2/3! = .333, n = 4 at .083, n = 5 at .017.
"""

from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import factorial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from anisoscope.studies.judge import Array

Kind = Literal["spearman", "pearson"]
KINDS: tuple[Kind, ...] = ("spearman", "pearson")
EXACT_UP_TO = 9
DRAWS = 100_000
_SAME = 1e-12


@dataclass(frozen=True)
class Permuted:
    """`p` of the permutation test; `smallest` p that any pairing of these values could have; `exact`: all n! tried."""

    p: float
    smallest: float
    exact: bool
    n: int


def coefficient(kind: Kind, x: Array, y: Array) -> Array:
    """Correlation over the last axis [..., layer] → [...]; NaN where one side is constant."""
    a, b = _scores(kind, x), _scores(kind, y)
    with np.errstate(invalid="ignore"):
        return np.asarray((a * b).sum(-1), dtype=np.float64)


def _scores(kind: Kind, x: Array) -> Array:
    """Values (or ranks, ties shared) centred and divided by their length."""
    z = np.asarray(stats.rankdata(x, axis=-1) if kind == "spearman" else x, dtype=np.float64)
    z = z - z.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(z / np.sqrt((z * z).sum(-1, keepdims=True)), dtype=np.float64)


def permutation_test(kind: Kind, x: Array, y: Array, seed: int = 0) -> Permuted:
    """Two-sided p: exact up to 9 layers, else by 100,000 seeded draws, (hits + 1) / (draws + 1)."""
    n = len(x)
    a, b = _scores(kind, x), _scores(kind, y)
    if n < 2 or np.isnan(a).any() or np.isnan(b).any():
        return Permuted(np.nan, np.nan, n <= EXACT_UP_TO, n)
    seen = abs(float(a @ b))
    if n <= EXACT_UP_TO:
        sizes = np.abs(b[_all(n)] @ a)
        return Permuted(float((sizes >= seen - _SAME).mean()), float((sizes >= sizes.max() - _SAME).mean()), True, n)
    rng, rows = np.random.default_rng(seed), np.tile(b, (DRAWS // 10, 1))
    hits = sum(int((np.abs(rng.permuted(rows, axis=1) @ a) >= seen - _SAME).sum()) for _ in range(10))
    return Permuted((hits + 1) / (DRAWS + 1), max(2 / factorial(n), 1 / (DRAWS + 1)), False, n)


@cache
def _all(n: int) -> NDArray[np.int64]:
    """[n!, n] every order of n things."""
    return np.array(list(permutations(range(n))), dtype=np.int64)


def default_p(kind: Kind, x: Array, y: Array) -> float:
    """What scipy's `spearmanr` or `pearsonr` say, as in the paper: a t law, wrong for few or autocorrelated layers."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(stats.spearmanr(x, y).pvalue if kind == "spearman" else stats.pearsonr(x, y).pvalue)


def false_positive_rate(kind: Kind, layers: int = 13, walks: int = 4000, seed: int = 0) -> tuple[float, float, float]:
    """(share, low, high): how often two independent Gaussian random walks over `layers` steps come out with p < .05.

    Exact binomial interval. A layer adds to the one before it, so curves over layers are like walks, not like draws.
    """
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, walks, layers)).cumsum(-1)
    r = coefficient(kind, x, y)
    with np.errstate(divide="ignore"):
        t = np.abs(r) * np.sqrt((layers - 2) / (1 - r**2))
    hits = int((2 * stats.t.sf(t, layers - 2) < 0.05).sum())
    ends = stats.binomtest(hits, walks).proportion_ci(0.95, "exact")
    return hits / walks, float(ends.low), float(ends.high)
