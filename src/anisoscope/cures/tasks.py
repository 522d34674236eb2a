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
    return np.asarray(
        np.divide(x, norm, out=np.zeros_like(x, dtype=np.float64), where=norm > 0)
    )


def _iter_cosines(x: Array, other: Array) -> Iterator[tuple[slice, Array]]:
    """Yield the cosines of vectors to others, block by block: (rows of `x`, cosines [row, vector of `other`]).

    x, other   vectors [vector, dim]
    """
    of_x = divide_by_norms(x)
    of_other = divide_by_norms(other)
    for start in range(0, len(x), BLOCK):
        rows = slice(start, min(start + BLOCK, len(x)))
        yield rows, of_x[rows] @ of_other.T


def find_neighbours(
    x: Float[Array, "vector dim"], units: Int[Numbers, " vector"], k: int = NEIGHBOURS
) -> Int[Numbers, "vector k"]:
    """Return for each vector the numbers of the k vectors *of other units* with the highest cosine, nearest first.

    Vectors of one unit (a document, a speaker) are near each other for reasons that no task asks about. If there are
    fewer than k others, −1 fills the row.

    x       vectors
    units   number of the unit that each vector comes from
    """
    # A vector is no neighbour of itself, so at most n − 1 are left to rank.
    count = min(k, max(len(x) - 1, 0))
    neighbours = np.full((len(x), k), -1, dtype=np.int64)
    if count == 0:
        return neighbours
    for rows, cosine in _iter_cosines(x, x):
        same_unit = units[rows, None] == units[None, :]
        # This also leaves out the vector itself.
        cosine[same_unit] = -np.inf
        # A partition finds the k nearest in no order, and is faster than to sort all.
        nearest = np.argpartition(-cosine, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(cosine, nearest, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        nearest = np.take_along_axis(nearest, order, axis=1)
        values = np.take_along_axis(values, order, axis=1)
        # If fewer than k vectors belong to other units, the partition also returned
        # some of the same unit: their cosine marks them.
        neighbours[rows, :count] = np.where(np.isneginf(values), -1, nearest)
    return neighbours


def compare_neighbours(
    before: Int[Numbers, "vector k"], after: Int[Numbers, "vector k"]
) -> Float[Array, " vector"]:
    """Return for each vector the share of its nearest neighbours that are still among its nearest; NaN if it had none.

    before, after   nearest neighbours of each vector, before and after a cure; −1: none
    """
    exists = before >= 0
    # All pairs [vector, k before, k after]. Two missing neighbours are both −1, which
    # would count as kept.
    is_kept = (before[:, :, None] == after[:, None, :]).any(axis=2) & exists
    return _compute_share(is_kept, exists)


def _compute_share(is_counted: NDArray[np.bool_], exists: NDArray[np.bool_]) -> Array:
    """Return for each vector which share of its existing neighbours is counted; NaN if it has no neighbours.

    is_counted, exists   whether each neighbour is counted, and whether there is one [vector, k]
    """
    number = exists.sum(axis=1)
    # Both branches of `where` are computed: the 1 keeps a vector without neighbours
    # from dividing by 0.
    return np.where(number > 0, is_counted.sum(axis=1) / np.maximum(number, 1), np.nan)


def compute_precision(
    neighbours: Int[Numbers, "vector k"], labels: Int[Numbers, " vector"]
) -> Float[Array, " vector"]:
    """Return for each vector the share of its nearest neighbours with its own label (precision at k).

    It is NaN for a vector without neighbours.

    neighbours   numbers of the nearest vectors, as `find_neighbours` returns them; −1: none
    labels       class of each vector
    """
    exists = neighbours >= 0
    # A missing neighbour, −1, reads the label of the last vector: `exists` removes it.
    has_same_label = (labels[neighbours] == labels[:, None]) & exists
    return _compute_share(has_same_label, exists)


def find_own_pairs(
    x: Float[Array, "vector dim"], partner: Float[Array, "vector dim"]
) -> Float[Array, " vector"]:
    """Return for each vector 1 if the partner with the highest cosine is its own, else 0; ties count as misses.

    partner   row i is the own partner of row i of `x`, such as the answer to a question
    """
    is_nearest = np.zeros(len(x))
    for rows, cosine in _iter_cosines(x, partner):
        # Rows of the block, and the column of the partner with the same number.
        own = np.arange(len(cosine)), np.arange(rows.start, rows.stop)
        to_own = cosine[own].copy()
        cosine[own] = -np.inf
        # Only other partners are left in the maximum. With a single pair there are
        # none, and its partner is the nearest.
        is_nearest[rows] = to_own > cosine.max(axis=1, initial=-np.inf)
    return is_nearest


def run_probe(
    train: Float[Array, "vector dim"],
    train_labels: Int[Numbers, " vector"],
    test: Float[Array, "test_vector dim"],
    test_labels: Int[Numbers, " test_vector"],
    classes: int,
) -> Float[Array, " test_vector"]:
    """Train a linear probe of the labels, and return for each test vector 1 if it predicts the label, else 0.

    The probe is a ridge regression on the classes. Its inputs are directions, as in cosine retrieval, so that a
    transform can help or harm it.

    train, test   vectors that the probe is trained and tested on
    classes       number of classes
    """
    inputs = divide_by_norms(train)
    held_out = divide_by_norms(test)
    mean = inputs.mean(axis=0)
    centred = inputs - mean
    # Targets [vector, class], 1 for the class of the vector. With centred inputs the
    # intercept is the frequency of each class, and is not penalised.
    targets = (train_labels[:, None] == np.arange(classes)).astype(np.float64)
    prior = targets.mean(axis=0)
    moment = centred.T @ centred
    # `moment` is a sum over vectors, so that the penalty grows with their number. The
    # smallest number is added for inputs that are all equal.
    penalty = RIDGE * np.trace(moment) / len(moment) + np.finfo(np.float64).tiny
    weights = np.linalg.solve(
        moment + penalty * np.eye(len(moment)), centred.T @ (targets - prior)
    )
    predicted = ((held_out - mean) @ weights + prior).argmax(axis=1)
    return np.asarray(predicted == test_labels, dtype=np.float64)


def average_by_group(
    scores: Float[Array, " vector"], group: Int[Numbers, " vector"], groups: int
) -> Float[Array, " rep"]:
    """Return the mean score of all vectors, then the mean with each group left out, for the jackknife [1 + group].

    Groups without a defined score are skipped.

    scores   score of each vector; NaN: undefined, not counted
    group    the group of units of each vector, a number below `groups`
    """
    defined: Bool[
        np.ndarray[tuple[int, ...], np.dtype[np.bool_]], " vector"
    ] = ~np.isnan(scores)
    count = np.bincount(group[defined], minlength=groups).astype(np.float64)
    total = np.bincount(group[defined], weights=scores[defined], minlength=groups)
    is_present = count > 0
    count = count[is_present]
    total = total[is_present]
    if count.sum() == 0:
        return np.full(1, np.nan)
    # Sums without one group come from the total, so that no score is added up twice.
    rest = count.sum() - count
    without_group = np.divide(
        total.sum() - total, rest, out=np.full(len(rest), np.nan), where=rest > 0
    )
    return np.concatenate([[total.sum() / count.sum()], without_group])
