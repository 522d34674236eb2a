"""Norms of the vectors: mean, standard deviation, and coefficient of variation.

Formula    mean = Σ‖x‖/n; std = √((Σ‖x‖² − n·mean²)/(n − 1)) (unbiased variance); variation = std/mean.
Range      [0, ∞). Variation 0: all on one sphere, so a norm cannot single out a token.
Unit       that of the activations; variation none.
Undefined  no vector; std and variation: fewer than two vectors.
Source     Godey et al. 2024, section 4 (norm fixed point); Fosse et al. 2023, section 5 (key norms).
"""

import numpy as np

from anisoscope.metrics.base import POSITIVE, Array, Metric, Values, ratio
from anisoscope.reads import Vectors
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    """Return `mean`, `std` and `variation` (std / mean) of the norms of vectors [replicate, policy, head].

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    n = totals["n"]
    mean = ratio(totals["norm"], n)
    # Rounding may make the difference negative.
    # From float64 sums of float64 norms: norms around a large mean would lose their
    # variance otherwise.
    variance = ratio(totals["norm_square"] - n * mean**2, n - 1)
    std = np.where(n > 1, np.sqrt(np.maximum(variance, 0)), np.nan)
    return {"mean": mean, "std": std, "variation": ratio(std, mean)}


def reference(units: list[Array]) -> dict[str, float]:
    """Compute mean, deviation and variation of norms directly from the vectors, for tests.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    norm = np.linalg.norm(np.concatenate(units), axis=1)
    std = norm.std(ddof=1) if len(norm) > 1 else np.nan
    return {
        "mean": float(norm.mean()),
        "std": float(std),
        "variation": float(std / norm.mean()),
    }


METRIC = Metric(
    name="norms",
    reads=Vectors(("hidden", "final", "query", "key", "value")),
    needs=frozenset({"n", "norm", "norm_square"}),
    compute=compute,
    reference=reference,
    bounds=dict.fromkeys(("mean", "std", "variation"), POSITIVE),
    invariant=frozenset({"rotation", "order"}),
    panel="hidden",
)
