"""Partition-function isotropy I(W) of an embedding matrix.

Formula    I(W) = min Z(c) / max Z(c), Z(c) = Σ_w exp(c·w), c over the eigenvectors of WᵀW at both signs.
Range      [0, 1]. 1: the partition function is the same in every direction (isotropic); near 0: one direction
           dominates.
Unit       none; depends on the scale of W (not on its rotation), and is given for W as it is.
Undefined  an empty matrix. If rows times dim² is above 3·10¹¹, it takes minutes, so it is measured only if it is
           named: `--metric partition`.
Source     Mu & Viswanath 2018, eq. 7 (one sign of each eigenvector there; an eigenvector has no sign, so we take
           both).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anisoscope.metrics.base import SHARE, Array, Metric, Values
from anisoscope.reads import Weights
from anisoscope.sums.groups import Totals

ROWS = 1024
"""Rows that are converted to float64 at once; the whole matrix may not fit in memory as float64."""


def sum_partition(matrix: NDArray[Any]) -> dict[str, Array]:
    """Reduce an embedding matrix [token, dim] to `rows` [1] and `log_z` [1, 2 · dim].

    `log_z` is the logarithm of the partition function Z along and against each eigenvector of WᵀW.
    """
    dim = matrix.shape[1]
    moment = np.zeros((dim, dim))
    for rows in _iter_blocks(matrix):
        moment = moment + rows.T @ rows
    # Z(c) is tried along these only, as in the paper: they stand in for every direction
    # of the sphere.
    eigenvectors = np.linalg.eigh(moment)[1]  # in columns
    log_z = np.full((2, dim), -np.inf if len(matrix) else 0.0)
    for rows in _iter_blocks(matrix):
        projected = rows @ eigenvectors
        # An eigenvector has no sign: both directions count.
        log_z[0] = np.logaddexp(log_z[0], _log_sum(projected.copy()))
        # The last use of the block, so it may be overwritten.
        log_z[1] = np.logaddexp(
            log_z[1], _log_sum(np.negative(projected, out=projected))
        )
    return {"rows": np.array([float(len(matrix))]), "log_z": log_z.reshape(1, -1)}


def compute(totals: Totals) -> Values:
    """Return the isotropy I(W) of an embedding matrix [1], from the partition function in each direction."""
    # One group holds the whole matrix: it has no units, and the value no interval.
    log_z = totals.groups("log_z")[0]
    return {"": np.exp(log_z.min() - log_z.max())[None]}


def _iter_blocks(matrix: NDArray[Any]) -> Iterator[Array]:
    """Yield the rows of a matrix in float64, `ROWS` at a time."""
    for start in range(0, len(matrix), ROWS):
        yield matrix[start : start + ROWS].astype(np.float64)


def _log_sum(x: Array) -> Array:
    """Return log Σexp over the rows of `x`; `x` is overwritten."""
    # log Σexp x = m + log Σexp(x − m), which cannot overflow.
    largest = x.max(0)
    np.exp(np.subtract(x, largest, out=x), out=x)
    return np.asarray(largest + np.log(x.sum(0)))


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the isotropy of an embedding matrix slowly, for tests: direction by direction, exponentials summed as
    written (moderate norms only).

    units   rows [token, dim] of the matrix, in parts

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    w = np.concatenate(units)
    z: list[float] = []
    for eigenvector in np.linalg.eigh(w.T @ w)[1].T:
        for direction in (eigenvector, -eigenvector):
            z.append(sum(np.exp(direction @ row) for row in w))
    return {"": float(min(z) / max(z))}


METRIC = Metric(
    name="partition",
    reads=Weights(sum_partition),
    needs=frozenset({"rows", "log_z"}),
    compute=compute,
    reference=reference,
    bounds={"": SHARE},
    invariant=frozenset({"rotation", "order"}),
    panel="hidden",
)
