"""Neighbourhoods by cosine: hubs close to everything, vectors that are nobody's neighbour, near-duplicates.

Formula    N of a vector: for how many other vectors it is among the k = 10 nearest by cosine.
           hubness: the skewness of N, E[(N − k)³]/Var(N)^1.5.
           largest: the largest N as a share of the other vectors.
           never: the share of vectors with N = 0 (antihubs).
           duplicates: the share of vectors that have another vector at a cosine of .99 or more; equal: of .999999 or
           more.
Range      hubness: near 0: no hubs; about 1 and more: some vectors appear in most searches. Shares [0, 1].
Unit       none.
Undefined  fewer than k + 2 vectors; hubness if all N are equal. Both duplicates and hubness grow with the number of
           vectors, so compare only samples (`--sample`) of the same size.
Source     Radovanović, Nanopoulos & Ivanović 2010 (k-occurrence, its skewness, antihubs), by cosine.
"""

import numpy as np
from numpy.typing import NDArray

from anisoscope.metrics.base import SHARE, Array, Metric, Values, normalise
from anisoscope.reads import Sample
from anisoscope.reads.sample import ROWS, SampledVectors

K = 10
REMEMBERED = 48
"""Neighbours of each vector that are remembered, so that K are left if a group is left out."""
NEAR, EQUAL = 0.99, 0.999999


def compute(sample: SampledVectors) -> Values:
    """Return how often sampled vectors are among the K nearest of others, and how many are near-duplicates
    [replicate].

    hubness            skewness of these counts
    largest            the largest count, as a share of the other vectors
    never              share of vectors with count 0 (antihubs)
    duplicates, equal  share of vectors whose nearest other one has a cosine of at least `NEAR`, `EQUAL`

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    direction = normalise(sample.vectors)
    order, cosine = _find_nearest(direction, REMEMBERED)
    names = ("hubness", "largest", "never", "duplicates", "equal")
    values = {name: np.full(1 + sample.n_groups, np.nan) for name in names}
    for replicate, left_out in enumerate((None, *sample.present)):
        kept = np.ones(len(sample), dtype=bool)
        if left_out is not None:
            kept = sample.group != left_out
        # With K + 1 vectors everybody is a neighbour of everybody.
        if kept.sum() < K + 2:
            continue
        near, nearest = _find_nearest_among_kept(direction, order, cosine, kept)
        counts = np.bincount(near.ravel(), minlength=len(sample))
        occurrences = counts[kept].astype(np.float64)
        values["hubness"][replicate] = _compute_skewness(occurrences)
        values["largest"][replicate] = occurrences.max() / (kept.sum() - 1)
        values["never"][replicate] = (occurrences == 0).mean()
        values["duplicates"][replicate] = (nearest >= NEAR).mean()
        values["equal"][replicate] = (nearest >= EQUAL).mean()
    return values


def _find_nearest(direction: Array, count: int) -> tuple[NDArray[np.int64], Array]:
    """Find the `count` nearest other vectors of each vector by cosine: (their indices, their cosines).

    Both are [vector, neighbour], nearest first.

    direction   unit vectors [vector, dim]
    """
    count = min(count, len(direction) - 1)
    order = np.zeros((len(direction), count), dtype=np.int64)
    cosine = np.zeros((len(direction), count))
    for start in range(0, len(direction), ROWS):
        rows = np.arange(start, min(start + ROWS, len(direction)))
        of_rows = direction[rows] @ direction.T
        of_rows[rows - start, rows] = -np.inf  # no vector is its own neighbour
        order[rows], cosine[rows] = _find_largest(of_rows, count)
    return order, cosine


def _find_largest(of_rows: Array, count: int) -> tuple[NDArray[np.int64], Array]:
    """Return (indices, values) of the `count` largest entries of each row, both [row, rank], largest first.

    Of equal entries, those with smaller indices come first.
    """
    near = np.argpartition(-of_rows, count - 1, axis=1)[:, :count]
    # Back to ascending indices, which the partition has mixed; the stable sort below
    # keeps them if values are equal.
    near.sort(axis=1)
    values = np.take_along_axis(of_rows, near, axis=1)
    by_value = np.argsort(-values, axis=1, kind="stable")
    indices = np.take_along_axis(near, by_value, axis=1)
    return indices, np.take_along_axis(values, by_value, axis=1)


def _find_nearest_among_kept(
    direction: Array, order: NDArray[np.int64], cosine: Array, kept: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], Array]:
    """Find the nearest neighbours of some vectors among themselves, for a sample without one group of units.

    direction   unit vectors of the whole sample [vector, dim]
    order       indices of each vector's nearest neighbours in the whole sample, nearest first [vector, neighbour]
    cosine      the cosines of these neighbours
    kept        which vectors belong to the smaller sample [vector]

    Returns (indices of the K nearest neighbours of each kept vector [kept, K], cosine of the nearest one [kept]).
    """
    # Which of a vector's remembered neighbours are kept too, and the rank of each among
    # those.
    still = kept[order[kept]]
    rank = np.cumsum(still, axis=1)
    rows = np.flatnonzero(kept)
    near = np.zeros((len(rows), K), dtype=np.int64)
    nearest = np.zeros(len(rows))
    # Most vectors have K left of the 48: no cosine is computed again.
    whole = rank[:, -1] >= K
    chosen = still & (rank <= K)
    near[whole] = order[kept][whole][chosen[whole]].reshape(-1, K)
    first = np.argmax(still, axis=1)
    nearest[whole] = np.take_along_axis(cosine[kept], first[:, None], axis=1)[whole, 0]
    # If the group left out is dense, too few of the remembered neighbours are left: compare with every vector again.
    alone = np.flatnonzero(~whole)
    if len(alone):
        of_rows = direction[rows[alone]] @ direction.T
        of_rows[:, ~kept] = -np.inf
        of_rows[np.arange(len(alone)), rows[alone]] = -np.inf
        near[alone], values = _find_largest(of_rows, K)
        nearest[alone] = values[:, 0]
    return near, nearest


def _compute_skewness(values: Array) -> float:
    """Return the skewness of numbers; NaN if they are all equal."""
    deviation = values - values.mean()
    variance = np.square(deviation).mean()
    if variance > 0:
        return float((deviation**3).mean() / variance**1.5)
    return np.nan


def reference(units: list[Array]) -> dict[str, float]:
    """Compute hubness and near-duplicates slowly, for tests: from the whole matrix of cosines, row by row.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x = np.concatenate(units)
    cosine = x @ x.T / np.sqrt(np.outer((x * x).sum(1), (x * x).sum(1)))
    np.fill_diagonal(cosine, -np.inf)
    occurrences = np.zeros(len(x))
    for row in cosine:
        for place in np.argsort(-row, kind="stable")[:K]:
            occurrences[place] += 1
    deviation = occurrences - occurrences.mean()
    variance = float((deviation**2).mean())
    third_moment = float((deviation**3).mean())
    return {
        "hubness": third_moment / variance**1.5,
        "largest": float(occurrences.max() / (len(x) - 1)),
        "never": float((occurrences == 0).mean()),
        "duplicates": float((cosine.max(1) >= NEAR).mean()),
        "equal": float((cosine.max(1) >= EQUAL).mean()),
    }


METRIC = Metric(
    name="neighbours",
    reads=Sample(),
    compute=compute,
    reference=reference,
    bounds={"largest": SHARE, "never": SHARE, "duplicates": SHARE, "equal": SHARE},
    counted=frozenset({"never", "duplicates", "equal"}),
    invariant=frozenset({"rotation", "scaling", "order"}),
)
