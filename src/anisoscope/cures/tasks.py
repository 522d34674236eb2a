"""Tasks that show what a transform does to the use of vectors: neighbours, retrieval, classes, a probe.

Every score is a mean over vectors. Scores are kept for each vector, so that those before and after a transform can be
paired and get an interval over groups of units.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

# Not NDArray: since numpy 2.5 that is an alias, inside which jaxtyping sees no class.
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]

NEIGHBOURS = 10
"""Nearest vectors that neighbourhoods are compared by."""
BLOCK = 1024
"""Vectors whose cosines to all others are held at once."""
RIDGE = 1e-3
"""Penalty of the probe, as a share of the mean variance of its inputs."""


def divide_by_norms(x: Float[Array, "vector dim"]) -> Float[Array, "vector dim"]:
    """Return the vectors divided by their norms; a zero vector stays zero."""
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(np.divide(x, norm, out=np.zeros_like(x, dtype=np.float64), where=norm > 0))


def _iter_cosines(x: Array, other: Array) -> Iterator[tuple[slice, Array]]:
    """Yield (rows of `x`, their cosines to all of `other`), block by block."""
    of_x = divide_by_norms(x)
    of_other = divide_by_norms(other)
    for start in range(0, len(x), BLOCK):
        rows = slice(start, min(start + BLOCK, len(x)))
        yield rows, of_x[rows] @ of_other.T


def find_neighbours(
    x: Float[Array, "vector dim"], units: Int[Numbers, " vector"], k: int = NEIGHBOURS
) -> Int[Numbers, "vector k"]:
    """Return the k vectors *of other units* with the highest cosine, nearest first; −1 if there are fewer.

    Vectors of one unit (a document, a speaker) are near each other for reasons that no task asks about.
    """
    count = min(k, max(len(x) - 1, 0))
    neighbours = np.full((len(x), k), -1, dtype=np.int64)
    if count == 0:
        return neighbours
    for rows, cosine in _iter_cosines(x, x):
        same_unit = units[rows, None] == units[None, :]
        cosine[same_unit] = -np.inf
        # A partition finds the k nearest in no order, and is faster than to sort all.
        nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(cosine, nearest, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        nearest = np.take_along_axis(nearest, order, axis=1)
        values = np.take_along_axis(values, order, axis=1)
        neighbours[rows, :count] = np.where(np.isneginf(values), -1, nearest)
    return neighbours


def compare_neighbours(before: Int[Numbers, "vector k"], after: Int[Numbers, "vector k"]) -> Float[Array, " vector"]:
    """Return for each vector the share of its nearest neighbours that are still among its nearest; NaN if it had none.

    before, after   nearest neighbours of each vector, before and after a cure; −1: none
    """
    exists = before >= 0
    is_kept = (before[:, :, None] == after[:, None, :]).any(axis=2) & exists
    return _share_of(is_kept, exists)


def _share_of(is_counted: NDArray[np.bool_], exists: NDArray[np.bool_]) -> Array:
    """Return for each vector the share of its neighbours that are counted, among those that exist; NaN for none."""
    number = exists.sum(axis=1)
    return np.where(number > 0, is_counted.sum(axis=1) / np.maximum(number, 1), np.nan)


def compute_precision(neighbours: Int[Numbers, "vector k"], labels: Int[Numbers, " vector"]) -> Float[Array, " vector"]:
    """Return for each vector the share of its nearest neighbours with its own label (precision at k); NaN if it has
    none.
    """
    exists = neighbours >= 0
    has_same_label = (labels[neighbours] == labels[:, None]) & exists
    return _share_of(has_same_label, exists)


def find_own_pairs(x: Float[Array, "vector dim"], partner: Float[Array, "vector dim"]) -> Float[Array, " vector"]:
    """Return 1 for each vector whose nearest partner is its own (row i of `partner`), else 0; ties count as misses."""
    is_nearest = np.zeros(len(x))
    for rows, cosine in _iter_cosines(x, partner):
        own = np.arange(len(cosine)), np.arange(rows.start, rows.stop)
        to_own = cosine[own].copy()
        cosine[own] = -np.inf
        is_nearest[rows] = to_own > cosine.max(axis=1, initial=-np.inf)
    return is_nearest


def run_probe(
    train: Float[Array, "vector dim"],
    train_labels: Int[Numbers, " vector"],
    test: Float[Array, "vector dim"],
    test_labels: Int[Numbers, " vector"],
    classes: int,
) -> Float[Array, " vector"]:
    """Return 1 for each test vector whose label a linear probe trained on `train` predicts, else 0.

    The probe is a ridge regression on the classes. Its inputs are directions, as in cosine retrieval, so that a
    transform can help or harm it.
    """
    inputs = divide_by_norms(train)
    held_out = divide_by_norms(test)
    mean = inputs.mean(axis=0)
    centred = inputs - mean
    targets = (train_labels[:, None] == np.arange(classes)).astype(np.float64)
    prior = targets.mean(axis=0)
    moment = centred.T @ centred
    # The smallest number is added for inputs that are all equal.
    penalty = RIDGE * np.trace(moment) / len(moment) + np.finfo(np.float64).tiny
    weights = np.linalg.solve(moment + penalty * np.eye(len(moment)), centred.T @ (targets - prior))
    predicted = ((held_out - mean) @ weights + prior).argmax(axis=1)
    return np.asarray(predicted == test_labels, dtype=np.float64)


def average_by_group(
    scores: Float[Array, " vector"], group: Int[Numbers, " vector"], groups: int
) -> Float[Array, " rep"]:
    """Return the mean score of all groups, then with each group left out, for the jackknife.

    Groups without a defined score are skipped.
    """
    defined: Bool[np.ndarray[tuple[int, ...], np.dtype[np.bool_]], " vector"] = ~np.isnan(scores)
    count = np.bincount(group[defined], minlength=groups).astype(np.float64)
    total = np.bincount(group[defined], weights=scores[defined], minlength=groups)
    is_present = count > 0
    count = count[is_present]
    total = total[is_present]
    if count.sum() == 0:
        return np.full(1, np.nan)
    rest = count.sum() - count
    without_group = np.divide(total.sum() - total, rest, out=np.full(len(rest), np.nan), where=rest > 0)
    return np.concatenate([[total.sum() / count.sum()], without_group])
