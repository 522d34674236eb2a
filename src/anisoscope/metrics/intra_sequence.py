"""Intra-sequence similarity sim(M): A inside one sequence, averaged over sequences, each counting once (macro average).

Formula    mean over sequences of (‖Σu‖² − n) / (n(n − 1)).
Range      [−1/(n − 1), 1]. 1: all tokens of a sequence point one way. If keys do so and have one length, attention is
           uniform.
Unit       none (a cosine).
Undefined  a sequence of one vector (left out of the average); no sequence of two vectors or more.
Source     Fosse et al. 2023, eq. 3. For hidden states, keys and values (per head).
"""

import numpy as np

from anisoscope.metrics.base import COSINE, Array, Metric, Values, ratio
from anisoscope.metrics.mean_cosine import reference as all_pairs
from anisoscope.reads import Vectors
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    """Return the mean over sequences of the mean cosine inside a sequence [replicate, policy, head].

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    # Both sums are made while the model runs: a sum over all tokens no longer knows the
    # sequences.
    return {"": ratio(totals["sequence_cosine"], totals["sequences"])}


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the similarity inside sequences slowly, for tests: over all pairs inside each unit, taken as a sequence.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    inside = [all_pairs([x])[""] for x in units if len(x) > 1]
    return {"": float(np.mean(inside)) if inside else np.nan}


METRIC = Metric(
    name="intra_sequence",
    reads=Vectors(("hidden", "final", "query", "key", "value")),
    needs=frozenset({"sequence_cosine", "sequences"}),
    compute=compute,
    reference=reference,
    bounds={"": COSINE},
    invariant=frozenset({"rotation", "scaling", "order"}),
    panel="hidden",
)
