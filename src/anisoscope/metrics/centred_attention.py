"""Concentration of attention without the common direction: entropy of attention rows with queries or keys centred.

Formula    query: rows p' of the softmax of (q − Q̄)·k. key: rows p' of the softmax of q·(k − K̄). Everything else is as
           in the model. Entropy H' in nats, H'/ln(number of keys that the row sees), and rise = H' − H. Q̄ and K̄ are
           means over the whole corpus, from an extra pass over it.
Range      as `attention.entropy`; rise (−∞, ∞): positive if the mean sharpens attention. Centring keys changes nothing,
           because q·K̄ is constant along a row: key_rise is 0 up to rounding.
Unit       nats; none. Queries and keys are those of the attention logits, after rotation if the model rotates.
Undefined  as `attention.entropy`.
Source     ours: it tests what Godey et al. 2024, section 5, assume about the drift.
"""

import numpy as np

from anisoscope.metrics.attention import compute_entropy, softmax_rows
from anisoscope.metrics.base import (
    POSITIVE,
    SHARE,
    Array,
    Metric,
    Values,
    concatenate_pairs,
    ratio,
)
from anisoscope.reads import CentredRows
from anisoscope.sums.groups import Totals

SIDES = ("query", "key")
TERMS = ("rows", "entropy", "normalised_rows", "entropy_normalised")


def compute(totals: Totals) -> Values:
    """Return the entropy of attention with queries or keys centred, and its rise over the plain entropy [replicate,
    head].

    The values are `query`, `query_normalised` (over its largest possible value) and `query_rise`, and the same for
    `key`. Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    # From the same second pass: the rise compares entropies of the same rows.
    plain = ratio(totals["plain.entropy"], totals["plain.rows"])
    values: Values = {}
    for side in SIDES:
        entropy = ratio(totals[f"{side}.entropy"], totals[f"{side}.rows"])
        normalised = ratio(
            totals[f"{side}.entropy_normalised"], totals[f"{side}.normalised_rows"]
        )
        values[side] = entropy
        values[f"{side}_normalised"] = normalised
        values[f"{side}_rise"] = entropy - plain
    return values


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the entropy of centred attention slowly, for tests: three softmaxes per sequence of one head, all keys
    visible, scale 1.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    queries, keys = concatenate_pairs(units)
    query_mean = queries.mean(axis=0)
    key_mean = keys.mean(axis=0)
    entropy: dict[str, list[float]] = {"plain": [], "query": [], "key": []}
    normalised: dict[str, list[float]] = {"plain": [], "query": [], "key": []}
    for q, k in units:
        scores = {
            "plain": q @ k.T,
            "query": (q - query_mean) @ k.T,
            "key": q @ (k - key_mean).T,
        }
        for side, score in scores.items():
            entropies = [compute_entropy(row) for row in softmax_rows(score)]
            entropy[side] += entropies
            if len(k) > 1:
                normalised[side] += [h / np.log(len(k)) for h in entropies]
    values: dict[str, float] = {}
    for side in SIDES:
        values[side] = float(np.mean(entropy[side]))
        values[f"{side}_normalised"] = float(np.mean(normalised[side]))
        values[f"{side}_rise"] = values[side] - float(np.mean(entropy["plain"]))
    return values


METRIC = Metric(
    name="centred_attention",
    reads=CentredRows(),
    needs=frozenset(f"{which}.{term}" for which in ("plain", *SIDES) for term in TERMS),
    compute=compute,
    reference=reference,
    invariant=frozenset({"rotation", "order"}),
    bounds=dict.fromkeys(SIDES, POSITIVE)
    | {f"{side}_normalised": SHARE for side in SIDES},
    panel="alignment",
)
