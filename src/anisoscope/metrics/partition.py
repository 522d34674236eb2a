"""Partition-function isotropy I(W) of an embedding matrix.

Formula    I(W) = min Z(c) / max Z(c), Z(c) = Σ_w exp(c·w), c over the eigenvectors of WᵀW at both signs.
Range      [0, 1]. 1: the partition function is the same in every direction (isotropic); near 0: one direction
           dominates.
Unit       none; depends on the scale of W (not on its rotation), and is given for W as it is.
Undefined  an empty matrix.
Source     Mu & Viswanath 2018, eq. 7 (one sign of each eigenvector there; an eigenvector has no sign, so we take
           both).
"""

import numpy as np
from scipy.special import logsumexp

from anisoscope.metrics.base import SHARE, Array, Metric, Values
from anisoscope.sums.groups import Totals


def terms(matrix: Array) -> dict[str, Array]:
    """`rows` [1] and `log_z` [1, 2 · dim], log Z along each eigenvector and against it, of a matrix [token, dim]: one
    group.
    """
    eigenvectors = np.linalg.eigh(matrix.T @ matrix)[1]  # in columns
    projected = matrix @ eigenvectors
    log_z = np.concatenate([logsumexp(projected, axis=0), logsumexp(-projected, axis=0)])
    log_z = log_z if len(matrix) else np.zeros_like(log_z)
    return {"rows": np.array([float(len(matrix))]), "log_z": log_z[None]}


def compute(totals: Totals) -> Values:
    log_z = totals.groups("log_z")[0]
    return {"": np.exp(log_z.min() - log_z.max())[None]}


def reference(units: list[Array]) -> dict[str, float]:
    """Direction by direction, exponentials summed as written (moderate norms only)."""
    w = np.concatenate(units)
    directions = [sign * c for c in np.linalg.eigh(w.T @ w)[1].T for sign in (1, -1)]
    z = [sum(np.exp(c @ row) for row in w) for c in directions]
    return {"": float(min(z) / max(z))}


METRIC = Metric(
    name="partition",
    quantities=("embedding",),
    needs=frozenset({"rows", "log_z"}),
    compute=compute,
    reference=reference,
    bounds={"": SHARE},
    invariant=frozenset({"rotation", "order"}),
    axes=(),
)
