"""The noise floor of cosines: how large a cosine two unrelated units reach by chance.

Formula    quantiles at 90, 95, 99 and 99.9 % of the cosines u·v over all pairs of vectors from different groups of
           units in the sample. The quantile q of N pairs is the ⌈qN⌉-th smallest.
Range      [−1, 1]. Near q95(d) (`mean_cosine.isotropic_q95`): directions are spread evenly. Near 1: every cosine is
           high, and a useful threshold differs from 1 only in the last digits. Of unrelated
           documents, one pair in a hundred has a cosine above q99. So a search result below q99 may well be unrelated.
Unit       none (cosine).
Undefined  fewer than two groups that have vectors. With fewer than 1/(1 − q) pairs, the quantile is the largest cosine.
           In simulations the intervals contain the true value in 96 to 97 % of corpora. The interval of the
           99.9 % quantile does so in only 90 %, if there are 20 units of six vectors each.
Source     ours, from a uniform sample of vectors (`--sample`): the threshold that users of embeddings need.
           Measured by default for vectors made elsewhere, and for models that make one vector for each text.
"""

from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from anisoscope.metrics.base import COSINE, Array, Metric, Values, normalise
from anisoscope.reads import Sample
from anisoscope.reads.sample import ROWS, SampledVectors

LEVELS = {"q90": 0.9, "q95": 0.95, "q99": 0.99, "q999": 0.999}
FEW = 0.25
"""The share of largest cosines that is sorted: enough for the lowest level, whichever group is left out."""


def compute(sample: SampledVectors) -> Values:
    """Return quantiles of the cosines between sampled vectors of different groups of units, as a noise floor
    [replicate].

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    cosine, first, second = _compute_cosines_between_groups(sample)
    values = {name: np.full(1 + sample.n_groups, np.nan) for name in LEVELS}
    if not len(cosine):
        return values
    # Sorting all pairs of a sample takes longer than finding their cosines, and each
    # replicate would sort again.
    most = max(1, int(np.ceil(FEW * len(cosine))))
    top = np.argpartition(cosine, len(cosine) - most)[len(cosine) - most :]
    top = top[np.argsort(-cosine[top], kind="stable")]
    for replicate, group in enumerate((None, *range(sample.n_groups))):
        count = _count_pairs(sample, group)
        if not count:
            continue
        descending = _leave_group_out(cosine[top], first[top], second[top], group)
        for name, level in LEVELS.items():
            # Ranks are counted from the largest: the ⌈qN⌉-th smallest is the (N − ⌈qN⌉ + 1)-th largest.
            rank = count - max(1, int(np.ceil(level * count)))
            if rank >= len(descending):
                # The group that is left out holds most of the largest cosines: sort all of the others.
                remaining = _leave_group_out(cosine, first, second, group)
                descending = np.sort(remaining)[::-1]
            values[name][replicate] = descending[rank]
    return values


def _leave_group_out(
    cosine: Array,
    first: NDArray[np.int16],
    second: NDArray[np.int16],
    group: int | None,
) -> Array:
    """Return the cosines of pairs that have no vector of a group; all of them if `group` is None.

    first, second   the groups of the two vectors of each pair
    """
    if group is None:
        return cosine
    return np.asarray(cosine[(first != group) & (second != group)])


def _compute_cosines_between_groups(
    sample: SampledVectors,
) -> tuple[Array, NDArray[np.int16], NDArray[np.int16]]:
    """Return the cosines [pair] of all pairs of sampled vectors from different groups of units.

    With them, the groups of the first and of the second vector of each pair, numbered among those that hold a vector.
    """
    place = np.searchsorted(sample.present, sample.group).astype(np.int16)
    direction = normalise(sample.vectors)
    # An empty part each, so that a single group, which has no pairs, concatenates to nothing.
    cosines = [np.zeros(0)]
    firsts = [np.zeros(0, np.int16)]
    seconds = [np.zeros(0, np.int16)]
    for start in range(0, len(sample), ROWS):
        rows = np.arange(start, min(start + ROWS, len(sample)))
        of_rows = direction[rows] @ direction.T
        # Each pair once, and no vector with itself.
        later = np.arange(len(sample)) > rows[:, None]
        chosen = later & (place[rows][:, None] != place)
        row, column = np.nonzero(chosen)
        # Rounding puts cosines of equal vectors above 1.
        cosines.append(np.clip(of_rows[row, column], -1.0, 1.0))
        firsts.append(place[rows][row])
        seconds.append(place[column])
    return np.concatenate(cosines), np.concatenate(firsts), np.concatenate(seconds)


def _count_pairs(sample: SampledVectors, without: int | None) -> int:
    """Return the number of pairs of vectors from different groups, leaving out one group if `without` is given."""
    sizes = sample.member.sum(0)
    if without is not None:
        sizes = np.delete(sizes, without)
    # (Σn_g)² − Σn_g²: all ordered pairs less those inside a group.
    ordered_pairs = float(sizes.sum()) ** 2 - float((sizes**2).sum())
    return round(ordered_pairs / 2)


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the noise floor of cosines slowly, for tests: with a loop over all pairs of vectors from different units.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    cosines: list[float] = []
    for unit, other in combinations(units, 2):
        for x, y in product(unit, other):
            cosines.append(x @ y / np.sqrt((x @ x) * (y @ y)))
    return {
        name: float(np.quantile(cosines, level, method="inverted_cdf"))
        for name, level in LEVELS.items()
    }


METRIC = Metric(
    name="floor",
    reads=Sample(),
    panel="floor",
    compute=compute,
    reference=reference,
    bounds=dict.fromkeys(LEVELS, COSINE),
    invariant=frozenset({"rotation", "scaling", "order"}),
)
