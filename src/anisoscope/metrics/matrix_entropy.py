"""Matrix entropy within sequences: over how many directions the tokens of one sequence are spread.

Formula    For each sequence X [token, dim]: λ are the eigenvalues of XXᵀ, p = λ/Σλ, and H = −Σ p ln p. The metric
           itself is the mean over sequences of H / ln min(tokens, dimensions); nats: the mean of H.
Range      [0, 1]; nats [0, ln min(tokens, dimensions)]. 0: all tokens of a sequence lie on one line, for example
           because one massive activation outweighs the rest. 1: they are spread evenly.
Unit       none; nats.
Undefined  no sequence of two vectors, or one dimension.
Source     Skean et al. 2025 (Layer by Layer), section 3 (prompt entropy, α = 1, not centred). Their code first sets
           negative entries of XXᵀ to 0. Ours does not, because their definition does not.
"""

import numpy as np

from anisoscope.metrics.base import POSITIVE, SHARE, Array, Metric, Values, ratio
from anisoscope.reads import Sequences
from anisoscope.reads.extremes import SumsAndExtremes


def compute(data: SumsAndExtremes) -> Values:
    """Return the mean matrix entropy of sequences [replicate].

    It is the entropy of the eigenvalues of a sequence's Gram matrix, which are divided by their sum. The key "" holds
    it divided by its largest possible value, `nats` as it is. Replicate 0 is
    over all data; each other replicate leaves out one group of units (documents, clips).
    """
    totals = data.totals
    sequences = totals["matrix_sequences"]
    return {
        "": ratio(totals["matrix_entropy_normalised"], sequences),
        "nats": ratio(totals["matrix_entropy"], sequences),
    }


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the matrix entropy of sequences slowly, for tests: from the singular values of each unit, taken as a
    sequence.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    entropies: list[float] = []
    normalised: list[float] = []
    for unit in units:
        if min(unit.shape) < 2:
            continue
        p = np.linalg.svd(unit, compute_uv=False) ** 2
        p = p / p.sum()
        p = p[p > 0]
        entropy = float(-(p * np.log(p)).sum())
        entropies.append(entropy)
        normalised.append(entropy / np.log(min(unit.shape)))
    return {"": float(np.mean(normalised)), "nats": float(np.mean(entropies))}


METRIC = Metric(
    name="matrix_entropy",
    reads=Sequences(),
    needs=frozenset(
        {"matrix_entropy", "matrix_entropy_normalised", "matrix_sequences"}
    ),
    compute=compute,
    reference=reference,
    bounds={"": SHARE, "nats": POSITIVE},
    invariant=frozenset({"rotation", "order"}),
    panel="extremes",
)
