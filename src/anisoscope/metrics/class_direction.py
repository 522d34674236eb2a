"""Class directions: does the direction of a text's final vector tell its class?

Formula    u is the unit vector of an utterance (text), U_c = Σu over class c. The metric itself is the matrix of mean
           cosines of classes: (‖U_c‖² − n_c) / (n_c(n_c − 1)) on the diagonal, U_a·U_b / (n_a n_b) off the diagonal.
           Separability uses the cosine of each utterance with the mean direction of every class. For its own class, the
           mean direction is computed without the utterance.
           auc: draw one utterance of a class and one of another class. auc is the probability that the first is the
           nearer one to the direction of the first class (mean over classes).
           nearest: the share of utterances that are nearest to the direction of their own class.
           dimensions: how many dimensions the classes use, (tr G)² / tr G², where G is the matrix of mean cosines after
           its row means and column means are subtracted.
           The matrix comes from sums, so it can be merged and resumed. Separability (auc, nearest) needs all utterances
           at once, so it cannot be merged or resumed.
Range      [−1, 1]; auc [0, 1]: .5 is chance; nearest [0, 1]: 1/classes is chance; 1 is separated. dimensions [1,
           classes − 1]: 1 if the mean directions lie on a line, classes − 1 if they form a simplex.
Unit       none (a cosine; a probability; a number of dimensions).
Undefined  diagonal and auc of a class with fewer than two utterances. The class is then left out of mean auc, nearest
           and dimensions.
           Separability, if all utterances are in one class, or if all vectors are equal up to rounding, as those of
           [CLS] below the first layer.
           Dimensions, if the mean directions do not differ (tr G ≤ 0). The diagonal has only pairs of two different
           utterances. So if classes differ only by chance, tr G is 0 on average, and can be negative.
Source     Fosse et al. 2023, section 4 and figure 2. They use the cosine with one utterance, the first that is
           classified correctly. Leaving the utterance out, and separability, are ours.
"""

from collections.abc import Sequence
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray

from anisoscope.metrics.base import (
    COSINE,
    SHARE,
    Array,
    Metric,
    Values,
    leave_diagonal_out,
    normalise,
    ratio,
)
from anisoscope.reads import Classes
from anisoscope.sums.groups import Totals
from anisoscope.sums.jackknife import Estimate, jackknife_interval

Labels = NDArray[np.int64]
GROUPS = 32
ROUNDING = 1e-6
"""Unit vectors that lie no further than this from their mean are equal: eight times the rounding of float32."""


def compute(totals: Totals) -> Values:
    """Return the mean cosine of each pair of classes [replicate, pair], from `class_n` and `class_unit`.

    Pairs are in the order (0, 0), (0, 1) … (1, 1) ….
    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    n = totals["class_n"]
    unit = totals["class_unit"]
    first, second = np.triu_indices(n.shape[-1])
    # Inside a class the cosine of a vector to itself, which is 1, does not count.
    same = np.equal(first, second)
    products = (unit @ unit.swapaxes(1, 2))[:, first, second]
    pairs = n[:, first] * (n[:, second] - same)
    return {"": ratio(products - same * n[:, first], pairs)}


def name_pairs(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the pairs of classes, in the order of `compute`."""
    return tuple(
        f"{first} × {second}"
        for first, second in combinations_with_replacement(names, 2)
    )


def reference(units: list[Array]) -> dict[str, float]:
    """Compute mean cosines of classes slowly, for tests: over all pairs of utterances; every unit is a class named `0`,
    `1`, …

    A pair of classes without a pair of utterances is left out.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    directions = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in units]
    expected: dict[str, float] = {}
    for a, b in combinations_with_replacement(range(len(units)), 2):
        cosines = directions[a] @ directions[b].T
        if a == b:
            cosines = leave_diagonal_out(cosines)
        if cosines.size:
            expected[f"{a} × {b}"] = float(cosines.mean())
    return expected


def cosine_to_one(x: Array, representative: int) -> Array:
    """Return the cosine of every text vector [text, dim] to the one with index `representative` (1 for itself)."""
    unit = normalise(x)
    return np.asarray(unit @ unit[representative])


def cosine_to_classes(x: Array, labels: Labels, classes: int) -> Array:
    """Return the cosine [text, class] of each vector to the mean direction of each class.

    For its own class, the vector itself is left out of the mean. NaN if no other vector is in the class.
    """
    unit = normalise(x)
    member = labels[:, None] == np.arange(classes)
    total = member.T.astype(np.float64) @ unit  # [class dim]
    # A vector u of a class with the sum T: its cosine is to T − u, with ‖T − u‖² = ‖T‖² − 2T·u + ‖u‖².
    # A zero vector was never part of its class's sum, and leaves nothing out of it.
    own = unit * (np.linalg.norm(unit, axis=1) > 0)[:, None]
    along = unit @ total.T - member * (own * unit).sum(1)[:, None]
    square = (
        (total * total).sum(1)
        - 2 * member * (unit @ total.T)
        + member * (own * own).sum(1)[:, None]
    )
    alone = member & (member.sum(0) < 2)
    # Rounding may make a square slightly negative, if what is left of a class cancels
    # out.
    return np.where(alone, np.nan, ratio(along, np.sqrt(np.maximum(square, 0))))


def are_equal(x: Array) -> bool:
    """Return whether all vectors [utterance, dim] have the same direction up to rounding, or are zero."""
    unit = normalise(x)
    distance = np.linalg.norm(unit - unit.mean(0), axis=1)
    return bool((distance <= ROUNDING).all())


def auc(values: Array, positive: NDArray[np.bool_]) -> float:
    """Return the chance that a positive value exceeds a negative one (area under the ROC curve); ties count half.

    NaN if there is no positive or no negative value.
    """
    # By ranks, n log n: all pairs of two large classes would not fit in memory.
    ours = values[positive]
    others = np.sort(values[~positive])
    if not len(ours) or not len(others):
        return float("nan")
    # Twice the number of others below each value: once those below, once those below or equal.
    below = np.searchsorted(others, ours, "left")
    below_or_equal = np.searchsorted(others, ours, "right")
    return float((below + below_or_equal).mean() / (2 * len(others)))


def dimensions(x: Array, labels: Labels, classes: int) -> float:
    """Return how many dimensions the class mean directions span: the participation ratio of their differences.

    NaN for fewer than two classes with two vectors, or if the directions do not differ.
    """
    unit = normalise(x)
    member = (labels[:, None] == np.arange(classes)).astype(np.float64)
    # A class of one has no pair, so no entry on the diagonal.
    member = member[:, member.sum(0) > 1]
    n = member.sum(0)
    total = member.T @ unit
    if len(n) < 2:
        return float("nan")
    matrix = total @ total.T / np.outer(n, n)
    # Pairs of distinct vectors alone, so that chance differences make no dimensions.
    np.fill_diagonal(matrix, (np.square(total).sum(1) - n) / (n * (n - 1)))
    # Double centring takes the direction that all classes share out of the matrix.
    centred = matrix - matrix.mean(0) - matrix.mean(1)[:, None] + matrix.mean()
    spread = float(np.trace(centred))
    if spread <= 0:
        return float("nan")
    participation = spread**2 / np.square(centred).sum()
    # By chance G may have negative eigenvalues, and then the ratio may be below 1.
    return float(np.clip(participation, 1, len(n) - 1))


def _compute_separability(x: Array, labels: Labels, classes: int) -> Array:
    """Return (AUC, nearest, dimensions, AUC of each class …) of vectors x [utterance, dim], as one array.

    `nearest` is the share of vectors nearest to the mean direction of their own class.
    """
    cosine = cosine_to_classes(x, labels, classes)
    members = np.bincount(labels, minlength=classes)
    by_class = np.full(classes, np.nan)
    # A vector that is alone in its class has no direction to be near to.
    for c in np.flatnonzero(members > 1):
        by_class[c] = auc(cosine[:, c], labels == c)
    has_others = members[labels] > 1
    # −2 is below every cosine: a class without others is never the nearest, and a row
    # of NaN is no error.
    nearest = np.nanargmax(np.where(np.isnan(cosine), -2.0, cosine), axis=1) == labels
    mean_auc = _average_defined(by_class)
    mean_nearest = _average_defined(nearest[has_others])
    return np.array([mean_auc, mean_nearest, dimensions(x, labels, classes), *by_class])


def _average_defined(values: Array | NDArray[np.bool_]) -> float:
    """Return the mean of the defined values; NaN if there are none."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan")
    return float(defined.mean())


def separability_replicates(
    x: Array,
    labels: Labels,
    classes: int,
    groups: int = GROUPS,
    units: Labels | None = None,
) -> Array:
    """Return how well classes separate in vectors x [utterance, dim], as jackknife replicates.

    The shape is [replicate, (AUC, nearest, dimensions, AUC by class …)]. Replicate 0 is of all utterances; the others
    leave out one group each. Unit i is in group i mod `groups`. All values are NaN if the vectors are equal.
    """
    if units is None:
        units = np.arange(len(x))
    group = units % groups
    present = np.unique(group)
    if are_equal(x):
        return np.full((1 + len(present), 3 + classes), np.nan)
    replicates = [_compute_separability(x, labels, classes)]
    for g in present:
        # The directions are computed again: an utterance that is left out must not help
        # to define its class.
        kept = group != g
        replicates.append(_compute_separability(x[kept], labels[kept], classes))
    return np.stack(replicates)


def separability(
    x: Array,
    labels: Labels,
    classes: int,
    groups: int = GROUPS,
    units: Labels | None = None,
) -> dict[str, Estimate]:
    """Return how well vectors x [utterance, dim] separate into classes: `auc`, `nearest`, `dimensions`, `auc.c` of
    class c.

    Each has a 95 % jackknife interval; class directions are computed again without each group of units.
    """
    # Units, not vectors, are independent: Wilson's interval counts those.
    counted = len(x) if units is None else len(np.unique(units))
    replicates = separability_replicates(x, labels, classes, groups, units)
    # Column 2 holds dimensions, which are no share and have bounds of their own.
    shares = jackknife_interval(
        np.delete(replicates, 2, axis=1), bounds=SHARE, counted=counted
    )
    estimates: dict[str, Estimate] = {}
    for i, name in enumerate(["auc", "nearest", *(f"auc.{c}" for c in range(classes))]):
        estimates[name] = Estimate(shares.value[i], shares.low[i], shares.high[i])
    most = max(classes - 1.0, 1.0)
    estimates["dimensions"] = jackknife_interval(replicates[:, 2], bounds=(1.0, most))
    return estimates


METRIC = Metric(
    name="class_direction",
    reads=Classes(),
    needs=frozenset({"class_n", "class_unit"}),
    compute=compute,
    reference=reference,
    bounds={"": COSINE},
    components={"": name_pairs},
    invariant=frozenset({"rotation", "scaling", "order"}),
    panel="class",
)
