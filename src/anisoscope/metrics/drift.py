"""Common direction (drift): the norm of the mean vector, and its share of the mean norm.

Formula    ‖x̄‖₂ with x̄ = Σx / n; share: ‖x̄‖ / (Σ‖x‖ / n).
Range      drift [0, ∞), in units of the activations; share [0, 1]: 0 a centred cloud, 1 one constant direction.
Unit       that of the activations (compare layers by the share).
Undefined  no vector; share if all norms are 0.
Source     Godey et al. 2024, section 3. (For unit vectors the square of the drift is nearly A:
           ‖ū‖² = A(n − 1)/n + 1/n.)
"""

import numpy as np

from anisoscope.metrics.base import POSITIVE, SHARE, Array, Metric, Values, ratio
from anisoscope.reads import Vectors
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    """Return the length of the mean vector, and its ratio to the mean length of vectors [replicate, policy, head].

    The key of the first is "", the main value of the metric, and that of the second is `share`. Replicate 0 is
    over all data; each other replicate leaves out one group of units (documents, clips).
    """
    # ‖Σx‖: divided by n it is ‖x̄‖, by Σ‖x‖ the share, in which n cancels.
    length = np.linalg.norm(totals["vector"], axis=-1)
    return {"": ratio(length, totals["n"]), "share": ratio(length, totals["norm"])}


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the drift and its share directly from the vectors, for tests.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x = np.concatenate(units)
    drift = np.linalg.norm(x.mean(axis=0))
    return {"": float(drift), "share": float(drift / np.linalg.norm(x, axis=1).mean())}


METRIC = Metric(
    name="drift",
    reads=Vectors(("hidden", "final", "query", "key", "value")),
    needs=frozenset({"n", "vector", "norm"}),
    compute=compute,
    reference=reference,
    bounds={"": POSITIVE, "share": SHARE},
    invariant=frozenset({"rotation", "order"}),
    panel="hidden",
)
