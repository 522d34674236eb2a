"""Sharpness without the drift: entropy of attention rows with the queries, or the keys, of a head centred.

Formula    rows p' of the softmax of (q − Q̄)·k (query) and of q·(k − K̄) (key), everything else as in the model: entropy
           H' in nats, H'/ln(visible keys), and rise = H' − H. Q̄ and K̄ are those of the whole corpus, from a pass of
           their own.
Range      as `attention.entropy`; rise (−∞, ∞): positive where the mean sharpens attention. Centring keys changes
           nothing, since q·K̄ is constant along a row: key_rise is 0 up to rounding.
Unit       nats; none. Queries and keys as they are scored: after rotation where the model rotates.
Undefined  as `attention.entropy`.
Source     ours: what Godey et al. 2024, section 5, assume of the drift.
"""

from anisoscope.metrics.base import POSITIVE, SHARE, Metric, Values, ratio
from anisoscope.sums.groups import Totals

SIDES = ("query", "key")
TERMS = ("rows", "entropy", "normalised_rows", "entropy_normalised")


def compute(totals: Totals) -> Values:
    plain = ratio(totals["plain.entropy"], totals["plain.rows"])
    values: Values = {}
    for side in SIDES:
        entropy = ratio(totals[f"{side}.entropy"], totals[f"{side}.rows"])
        normalised = ratio(totals[f"{side}.entropy_normalised"], totals[f"{side}.normalised_rows"])
        values |= {side: entropy, f"{side}_normalised": normalised, f"{side}_rise": entropy - plain}
    return values


METRIC = Metric(
    name="centred_attention",
    quantities=("centred",),
    needs=frozenset(f"{which}.{term}" for which in ("plain", *SIDES) for term in TERMS),
    compute=compute,
    bounds=dict.fromkeys(SIDES, POSITIVE) | {f"{side}_normalised": SHARE for side in SIDES},
    panel="alignment",
    axes=("head",),
)
