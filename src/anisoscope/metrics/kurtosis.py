"""Kurtosis of each dimension: how heavy its tails are, which dimension has the heaviest.

Formula    m₄/m₂² − 3 for each dimension of the sampled vectors, with central moments m. The metric itself is the mean
           over dimensions; largest: the largest of all dimensions; dimension: the number of that dimension.
Range      [−2, ∞). 0: a normal distribution; hundreds: a few tokens have nearly all of the dimension's variance.
Unit       none.
Undefined  fewer than two vectors; a dimension that does not vary is left out. With n vectors it is at most n − 2 + 1/(n
           − 1), so few vectors cannot show heavy tails.
Source     Elhage et al. 2023 (Privileged Bases in the Transformer Residual Stream); here from a uniform sample of
           vectors (`--sample`).
"""

import numpy as np

from anisoscope.metrics.base import Array, Metric, Values, find_exponent, ratio
from anisoscope.reads import Sample
from anisoscope.reads.sample import SampledVectors

NORMAL = 3.0
"""m₄/m₂² of a normal law."""
FLAT = 1e-20
"""A variance below this share of the mean square is rounding: the dimension does not vary."""


def compute(sample: SampledVectors) -> Values:
    """Return the kurtosis of the entries of each dimension over all sampled vectors, summarised [replicate].

    ""          the mean over dimensions
    largest     the largest kurtosis of any dimension
    dimension   the number of that dimension, over all data [1]

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    kurtosis = _compute_by_dimension(sample)
    defined = ~np.isnan(kurtosis)
    count = defined.sum(axis=1)
    mean = ratio(np.where(defined, kurtosis, 0.0).sum(axis=1), count.astype(np.float64))
    highest = np.where(defined, kurtosis, -np.inf)
    largest = np.where(count > 0, highest.max(axis=1), np.nan)
    # Of all data only: without a group another dimension may be the largest, and a
    # number has no interval.
    dimension = np.where(count[:1] > 0, highest[:1].argmax(axis=1), np.nan)
    return {"": mean, "largest": largest, "dimension": dimension.astype(np.float64)}


def _compute_by_dimension(sample: SampledVectors) -> Array:
    """Return the kurtosis of each dimension of sampled vectors [replicate, dim], from sums of powers.

    Replicate 0 is of all vectors; the others leave out one group of units each.
    """
    # Fourth powers of very small or large numbers would leave the range of float64.
    exponent = find_exponent(np.abs(sample.vectors).max(axis=0, initial=0.0))
    vectors = np.ldexp(sample.vectors, -exponent)
    centre = vectors.mean(axis=0)
    # Moments of nearly centred numbers keep their digits.
    x = vectors - centre
    # x**3 and x**4 take 100 times as long as products do.
    square = x * x
    sums = []
    for power in (np.ones_like(x), x, square, square * x, square * square):
        of_groups = sample.member.T @ power
        # [replicate dim]: sums add over groups, so no replicate needs the vectors
        # again.
        total = of_groups.sum(axis=0, keepdims=True)
        sums.append(np.concatenate([total, total - of_groups]))
    count = sums[0]
    first, second, third, fourth = [ratio(total, count) for total in sums[1:]]
    variance = second - first**2
    # E[(x − m)⁴] from raw moments, since each replicate has its own mean m.
    central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
    # Compared with the square of the values as they were: the rounding of the input is
    # in proportion to those.
    varies = variance > FLAT * (second + centre**2)
    safe_variance = np.where(varies, variance, 1.0)
    return np.where(varies, ratio(central, safe_variance**2) - NORMAL, np.nan)


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the kurtosis of dimensions directly, for tests: from the central moments of each dimension.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x = np.concatenate(units)
    x = x - x.mean(axis=0)
    kurtosis = (x**4).mean(axis=0) / (x**2).mean(axis=0) ** 2 - NORMAL
    return {
        "": float(kurtosis.mean()),
        "largest": float(kurtosis.max()),
        "dimension": float(kurtosis.argmax()),
    }


METRIC = Metric(
    name="kurtosis",
    reads=Sample(),
    compute=compute,
    reference=reference,
    bounds=dict.fromkeys(("", "largest"), (-2.0, np.inf)),
    extremes=frozenset({"dimension"}),
    invariant=frozenset({"translation", "order"}),
    panel="extremes",
)
