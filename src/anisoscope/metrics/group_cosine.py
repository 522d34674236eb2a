"""Mean cosine within and between token subsets: kinds of token, token-frequency bins, position bins.

Formula    within a: (‖U_a‖² − n_a) / (n_a(n_a − 1)); between a and b (disjoint): U_a·U_b / (n_a n_b).
Range      [−1, 1]. If within is above between, the subset has a direction of its own.
Unit       none (a cosine).
Undefined  within a subset of fewer than two vectors; between if one is empty.
Source     Cai et al. 2021 (types and clusters); frequency: Gao et al. 2019. Subsets and bins: `axes.SUBSET_FAMILIES`.
"""

from itertools import pairwise

import numpy as np

from anisoscope.axes import SUBSET_FAMILIES
from anisoscope.metrics.base import COSINE, Array, Metric, Values, dot, ratio
from anisoscope.metrics.class_direction import reference as of_pairs
from anisoscope.reads import Vectors
from anisoscope.sums.groups import Totals

# All subsets in a row, as the sums hold them; a family is a range of numbers among
# them.
_NAMES = [name for family in SUBSET_FAMILIES.values() for name in family]
_OFFSETS = np.cumsum([0, *(len(family) for family in SUBSET_FAMILIES.values())])
PAIRS = [
    (first, second)
    for start, end in pairwise(_OFFSETS)
    for first in range(start, end)
    for second in range(first, end)
]
"""Pairs of subsets of one family, by their numbers among all subsets."""


def compute(totals: Totals) -> Values:
    """Return the mean cosine within and between token subsets [replicate, head, pair of subsets].

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    # [replicate subset head], [replicate subset head dim]
    n = totals["subset_n"]
    unit = totals["subset_unit"]
    first = [pair[0] for pair in PAIRS]
    second = [pair[1] for pair in PAIRS]
    same = np.equal(first, second)[:, None]
    product = dot(unit[:, first], unit[:, second])
    # Inside a subset the cosine of a vector to itself, which is 1, does not count.
    pairs = n[:, first] * (n[:, second] - same)
    both_have_vectors = n[:, first] * n[:, second] > 0
    cosine = np.where(
        both_have_vectors, ratio(product - same * n[:, first], pairs), np.nan
    )
    return {"": np.moveaxis(cosine, 1, 2)}  # [replicate head pair]


def reference(units: list[Array]) -> dict[str, float]:
    """Compute mean cosines of token subsets slowly, for tests: two units are taken as the first two subsets, over all
    distinct pairs of vectors.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    cosines = of_pairs(units[:2])
    expected: dict[str, float] = {}
    for a, b in ((0, 0), (0, 1), (1, 1)):
        expected[f"{_NAMES[a]} × {_NAMES[b]}"] = cosines.get(f"{a} × {b}", np.nan)
    return expected


METRIC = Metric(
    name="group_cosine",
    reads=Vectors(),
    needs=frozenset({"subset_n", "subset_unit"}),
    compute=compute,
    reference=reference,
    bounds={"": COSINE},
    invariant=frozenset({"rotation", "scaling", "order"}),
    components={"": tuple(f"{_NAMES[i]} × {_NAMES[j]}" for i, j in PAIRS)},
    panel="hidden",
)
