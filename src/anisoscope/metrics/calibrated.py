"""What A leaves open, from a uniform sample: anisotropy after centring, and the share of close pairs
(.05 in an isotropic cloud).

Formula    centred: A of x − x̄ (x̄ is the mean of all vectors, A is over the sample).
           pairs_above_q95: the share of pairs with cosine > q95(d).
Range      centred [−1/(n − 1), 1]; share [0, 1]: .05 for isotropic directions.
Unit       none. There is a p-value of A, too: `isotropic.mean_cosine_pvalue`. It assumes that vectors are independent.
           Tokens are not, and with 10⁵ tokens nearly every A is significant.
Undefined  fewer than two vectors in the sample; d = 1.
Source     after centring: Cai et al. 2021; quantile of one pair: Godey et al. 2024, appendix B.
"""

import numpy as np
from numpy.typing import NDArray

from anisoscope.metrics import mean_cosine
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
from anisoscope.reads import Sample
from anisoscope.reads.sample import SampledVectors, leave_out_groups
from anisoscope.sums.groups import Totals
from anisoscope.sums.isotropic import q95


def sum_sample(
    vectors: Array, mean: Array, group: NDArray[np.int64], groups: int
) -> dict[str, Array]:
    """Return sums over sampled vectors [token, dim], by group of units.

    mean     the mean of all vectors, sampled or not
    group    number of each vector's group
    groups   number of groups

    n       [group]: number of vectors that differ from the mean
    unit    [group, dim]: sum of the vectors that are first centred, then scaled to length 1
    pairs   [group, group]: number of pairs of distinct vectors
    above   [group, group]: number of these pairs with a cosine above q95(d), the 95 % quantile of isotropic vectors
    """
    units = normalise(vectors)
    # By the mean of all vectors: around the sample's own mean, A would be biased low.
    centred = normalise(vectors - mean)
    member = (group[:, None] == np.arange(groups)).astype(np.float64)  # [token group]
    limit = q95(vectors.shape[1])
    above = (units @ units.T > limit).astype(np.float64)
    # A vector has a cosine of 1 to itself, and is no pair.
    np.fill_diagonal(above, 0.0)
    n = member.sum(0)
    # A vector that equals the mean has no direction from it.
    has_direction = centred.any(1)
    return {
        "n": has_direction @ member,
        "unit": member.T @ centred,
        "pairs": np.outer(n, n) - np.diag(n),
        "above": member.T @ above @ member,
    }


def compute(sample: SampledVectors) -> Values:
    """Return anisotropy after centring (`centred`) and the share of close pairs (`pairs_above_q95`) [replicate].

    A pair is close if its cosine is above the 95 % quantile of isotropic vectors. Empty if vectors have one
    dimension. Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    # Directions on a line have no quantile.
    if sample.vectors.shape[1] < 2:
        return {}
    sums = sum_sample(sample.vectors, sample.mean, sample.group, sample.groups)
    # `leave_out_groups` makes a replicate of every group, and one that holds nothing
    # must not be one.
    present = np.ix_(sample.present, sample.present)
    above = sums["above"][present]
    pairs = sums["pairs"][present]
    return {
        "centred": mean_cosine.compute(Totals(sums))[""],
        "pairs_above_q95": ratio(leave_out_groups(above), leave_out_groups(pairs)),
    }


def reference(units: list[Array]) -> dict[str, float]:
    """Compute anisotropy after centring and the share of close pairs slowly, for tests: from all pairs of vectors.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x = np.concatenate(units)
    cosines = leave_diagonal_out(normalise(x) @ normalise(x).T)
    pairs_above = float((cosines > q95(x.shape[1])).mean())
    centred = mean_cosine.reference([x - x.mean(0)])[""]
    return {"centred": centred, "pairs_above_q95": pairs_above}


METRIC = Metric(
    name="calibrated",
    reads=Sample(),
    compute=compute,
    reference=reference,
    bounds={"centred": COSINE, "pairs_above_q95": SHARE},
    counted=frozenset({"pairs_above_q95"}),
    invariant=frozenset({"rotation", "order"}),
    panel="hidden",
)
