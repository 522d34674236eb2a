"""Intrinsic dimension by two neighbours (TwoNN): the dimension of the surface that the vectors lie on.

Formula    μ = r₂/r₁ for each vector: the distance to its second nearest vector, divided by that to its nearest. Sort μ
           and let F(μᵢ) = i/N. The dimension is the slope of −log(1 − F) against log μ, fitted through the origin over
           the 90 % smallest μ. likelihood: the dimension by maximum likelihood, (N − 1)/Σ log μ.
           Equal vectors, such as those of one word in the embedding layer, count once. distinct: the share of vectors
           that are left.
Range      (0, ∞), usually far below the width: a curved surface has few dimensions but a high effective rank.
           distinct (0, 1].
Unit       dimensions.
Undefined  fewer than three distinct vectors, or r₂ = r₁ for all of them. The value depends on how dense the sample is:
           more vectors measure smaller scales. Noise has as many dimensions as the space.
Source     Facco et al. 2017; likelihood: Denti et al. 2022.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from anisoscope.metrics.base import POSITIVE, SHARE, Array, Metric, Values
from anisoscope.reads import Sample
from anisoscope.reads.sample import ROWS, SampledVectors

KEPT = 0.9
"""The paper's share of smallest ratios: the largest are those of vectors at the edge."""
NEAREST = 8
"""Neighbours that are remembered, so that two are left if a group is left out."""
SEVERAL = -1
"""In place of a group: equal vectors are of several groups."""


def compute(sample: SampledVectors) -> Values:
    """Return the intrinsic dimension of sampled vectors, estimated in two ways [replicate].

    ""           by the slope of a fitted line
    likelihood   by maximum likelihood
    distinct     share of distinct vectors in the sample

    Replicate 0 is over all data; each other replicate leaves out one group
    of units (documents, clips).
    """
    points, group = _find_distinct(sample)
    order, distance = _find_neighbours(points)
    values: dict[str, list[float]] = {"": [], "likelihood": [], "distinct": []}
    for left_out in (None, *sample.present):
        kept = np.ones(len(points), dtype=bool)
        count = len(sample)
        if left_out is not None:
            kept = group != left_out
            count = int((sample.group != left_out).sum())
        log_ratio = np.log(_compute_distance_ratios(points, order, distance, kept))
        values[""].append(_fit_slope(log_ratio))
        values["likelihood"].append(_estimate_by_likelihood(log_ratio))
        values["distinct"].append(kept.sum() / count if count else np.nan)
    return {name: np.array(of_groups) for name, of_groups in values.items()}


def _find_distinct(sample: SampledVectors) -> tuple[Array, NDArray[np.int64]]:
    """Return the distinct vectors of a sample [point, dim], and the group of units that each is in [point].

    If equal vectors are in several groups, their group is `SEVERAL`.
    """
    points, place = np.unique(sample.vectors, axis=0, return_inverse=True)
    place = place.ravel()
    # The smallest and the largest group among equal vectors: the same, or several.
    first = np.full(len(points), sample.groups)
    last = np.full(len(points), SEVERAL)
    np.minimum.at(first, place, sample.group)
    np.maximum.at(last, place, sample.group)
    return points, np.where(first == last, first, SEVERAL)


def _find_neighbours(points: Array) -> tuple[NDArray[np.int64], Array]:
    """Find the nearest other points of each point: (their indices, their distances), both [point, neighbour].

    The nearest comes first. Neighbours are found by scalar products, which is fast; their distances are computed from
    differences of vectors, which is exact even if they are small.

    points   [point, dim]
    """
    count = min(NEAREST, len(points) - 1)
    centred = points - points.mean(0)
    square = np.square(centred).sum(1)
    order = np.zeros((len(points), count), dtype=np.int64)
    distance = np.zeros((len(points), count))
    for start in range(0, len(points), ROWS):
        rows = np.arange(start, min(start + ROWS, len(points)))
        # ‖a − b‖² = ‖a‖² + ‖b‖² − 2a·b: quick, but of close points it is the difference
        # of large numbers.
        apart = square[rows, None] + square - 2 * centred[rows] @ centred.T
        apart[rows - start, rows] = np.inf
        near = order[rows]
        if count:
            near = np.argpartition(apart, count - 1, axis=1)[:, :count]
        exact = np.linalg.norm(centred[rows, None] - centred[near], axis=2)
        by_distance = np.argsort(exact, axis=1)
        order[rows] = np.take_along_axis(near, by_distance, axis=1)
        distance[rows] = np.take_along_axis(exact, by_distance, axis=1)
    return order, distance


def _compute_distance_ratios(
    points: Array, order: NDArray[np.int64], distance: Array, kept: NDArray[np.bool_]
) -> Array:
    """Return r₂/r₁ (next nearest over nearest distance) of the kept points among themselves; empty for fewer than
    three.

    points            [point, dim]
    order, distance   neighbours of each point, nearest first, and their distances
    kept              which points are kept
    """
    if kept.sum() < 3:
        return np.zeros(0)
    still = kept[order[kept]]
    rank = np.cumsum(still, axis=1)
    # Exactly one entry of a row has rank 1 and is kept: the sum picks it out.
    first = np.where(still & (rank == 1), distance[kept], 0.0).sum(1)
    second = np.where(still & (rank == 2), distance[kept], 0.0).sum(1)
    # If all but one of the remembered neighbours of a point are left out, it is compared with every point again.
    alone = np.flatnonzero(rank[:, -1] < 2)
    if len(alone):
        others = points[kept]
        apart = cdist(others[alone], others)
        apart[np.arange(len(alone)), alone] = np.inf
        nearest_two = np.partition(apart, 1, axis=1)
        first[alone] = nearest_two[:, 0]
        second[alone] = nearest_two[:, 1]
    return np.asarray(second / first)


def _fit_slope(log_ratio: Array) -> float:
    """Fit the intrinsic dimension: the slope of −log(1 − F) against log(r₂/r₁) through the origin."""
    x = np.sort(log_ratio)[: int(len(log_ratio) * KEPT)]
    # F is i/N with N of all ratios, those cut off included.
    y = -np.log1p(-np.arange(1, len(x) + 1) / len(log_ratio))
    if not x.any():
        return np.nan
    return float(x @ y / (x @ x))


def _estimate_by_likelihood(log_ratio: Array) -> float:
    """Return the maximum-likelihood estimate of the intrinsic dimension; NaN if all distances are equal."""
    total = log_ratio.sum()
    if total > 0:
        return float((len(log_ratio) - 1) / total)
    return np.nan


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the intrinsic dimension slowly, for tests: from all distances, sorted.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    every = np.concatenate(units)
    x = np.unique(every, axis=0)
    distances = np.sort(np.linalg.norm(x[:, None] - x[None], axis=2), axis=1)
    log_ratio = np.log(np.sort(distances[:, 2] / distances[:, 1]))
    n = len(x)
    first = log_ratio[: int(n * KEPT)]
    y = [-np.log(1 - i / n) for i in range(1, len(first) + 1)]
    slope = np.linalg.lstsq(first[:, None], np.array(y), rcond=None)[0][0]
    return {
        "": float(slope),
        "likelihood": float((n - 1) / log_ratio.sum()),
        "distinct": n / len(every),
    }


METRIC = Metric(
    name="twonn",
    reads=Sample(),
    compute=compute,
    reference=reference,
    bounds={"": POSITIVE, "likelihood": POSITIVE, "distinct": SHARE},
    counted=frozenset({"distinct"}),
    invariant=frozenset({"rotation", "translation", "order"}),
)
