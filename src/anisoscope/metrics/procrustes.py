"""Procrustes distance of two runs: what is left between two clouds of the same tokens after the best rotation.

Formula    2 − 2‖XᵀY‖₊/(‖X‖·‖Y‖): X and Y are the n tokens in the two layers, centred; ‖·‖₊ is the sum of the singular
           values, ‖·‖ the Frobenius norm. This is the minimum over rotations Q of ‖X/‖X‖ − (Y/‖Y‖)Q‖².
Range      [0, 2]. 0: the two clouds are equal up to a rotation, a shift and a scale; 2: nothing in common. With fewer
           tokens than dimensions the distance is too low, because any two clouds can then be partly matched. It depends
           on all directions; CKA depends mostly on those with the largest variance.
Unit       none.
Undefined  fewer than two tokens; a layer without variance.
Source     Schönemann 1966; as a distance of representations: Ding et al. 2021, section 3. The interval
           leaves out eight groups of units in turn, not 32 as elsewhere: each needs a new, slow decomposition.
"""

import numpy as np

from anisoscope.metrics.base import Array, Metric, Values, concatenate_pairs
from anisoscope.reads import RunPair
from anisoscope.reads.pairs import SampledPair

MOST = 2048
"""Tokens that are compared."""
GROUPS = 8
FARTHEST = 2.0


def compute(pair: SampledPair) -> Values:
    """Return the Procrustes distance between the vectors of the same tokens in two layers [replicate].

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    return {"": pair.replicates(_compute_distance)}


def _compute_distance(x: Array, y: Array) -> float:
    """Return the Procrustes distance of two clouds [token, dim], [token, other dim]; NaN if one does not vary."""
    if len(x) < 2:
        return float("nan")
    x = x - x.mean(0)
    y = y - y.mean(0)
    size = np.linalg.norm(x) * np.linalg.norm(y)
    if size == 0:
        return float("nan")
    # ‖XᵀY‖₊ is tr(XᵀYQ) for the best rotation Q, which is not needed itself.
    shared = np.linalg.svd(x.T @ y, compute_uv=False).sum()
    distance = FARTHEST - FARTHEST * shared / size
    # Equal clouds may come out at −1e-16.
    return float(min(max(distance, 0.0), FARTHEST))


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the distance slowly, for tests: apply the best rotation and sum what is left.

    units   (vectors in one layer, the same tokens in another) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x, y = concatenate_pairs(units)
    x = (x - x.mean(0)) / np.linalg.norm(x - x.mean(0))
    y = (y - y.mean(0)) / np.linalg.norm(y - y.mean(0))
    # The narrower cloud is turned: in the space of the wider one nothing of it is lost.
    if y.shape[1] > x.shape[1]:
        x, y = y, x
    left, _, right = np.linalg.svd(y.T @ x)
    # Only as many axes as both have.
    turned = y @ left[:, : len(right)] @ right[: left.shape[1]]
    return {"": float(((x - turned) ** 2).sum())}


METRIC = Metric(
    name="procrustes",
    reads=RunPair(MOST, GROUPS),
    compute=compute,
    reference=reference,
    bounds={"": (0.0, FARTHEST)},
    invariant=frozenset({"rotation", "translation", "order"}),
)
