"""What the common direction does to attention logits: the four parts of q·k around the mean query and the mean key
of a head.

Formula    q·k = Q̄·K̄ + (q−Q̄)·K̄ + Q̄·(k−K̄) + (q−Q̄)·(k−K̄), all times the model's scale. mean_score: the first part.
           between_rows: the variance of the second over rows. Variances inside rows (over the keys that a row sees,
           averaged over rows): mean_query of the third, centred of the fourth, within_rows of the whole score;
           mean_query_share and centred_share are the two over within_rows, the rest is twice their covariance.
Range      variances [0, ∞); shares [0, ∞): they add to 1 where the two parts are uncorrelated. The first two parts are
           constant along a row, and a softmax does not see them: only the last two can make attention sharp.
Unit       scores as the softmax sees them; variances: their squares. Queries and keys as they are scored: after
           rotation where the model rotates. Position biases and soft caps are left out.
Undefined  no row; shares where scores do not vary inside rows.
Source     ours: Godey et al. 2024, section 5, infer sharp attention from the growth of Q̄·K̄ alone.
"""

import numpy as np

from anisoscope.metrics.base import POSITIVE, Array, Metric, Values, dot, ratio
from anisoscope.reads import Scores
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    """Return into what parts the variance of attention logits q·k falls [replicate, head].

    mean_score                         scalar product of the mean query and the mean key
    between_rows                       variance over queries of the logit of the mean key
    within_rows                        mean variance of the logits of one query over the keys that it sees
    mean_query, mean_query_share       the part of `within_rows` that the mean query makes, and its share
    centred, centred_share             `within_rows` if the mean query is subtracted, and its share

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    rows = totals["rows"]
    query, key = ratio(totals["query"], rows[..., None]), ratio(totals["key"], totals["keys"][..., None])
    on_key = _quadratic(key, totals["query_moment"]) / np.where(rows == 0, np.nan, rows) - dot(query, key) ** 2
    whole, lean = totals["row_variance"], dot(query, totals["row_lean"])
    spread = _quadratic(query, totals["row_spread"])
    within, mean_query = ratio(whole, rows), ratio(spread, rows)
    centred = ratio(whole - 2 * lean + spread, rows)
    return {
        "mean_score": dot(query, key),
        "between_rows": on_key,
        "within_rows": within,
        "mean_query": mean_query,
        "centred": centred,
        "mean_query_share": ratio(mean_query, within),
        "centred_share": ratio(centred, within),
    }


def _quadratic(x: Array, matrix: Array) -> Array:
    """Return the quadratic form xᵀMx over the last axes."""
    return dot(np.einsum("...de,...e->...d", matrix, x), x)


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the parts of attention scores slowly, for tests: from every score of one head, with all keys visible and
    scale 1.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    queries, keys = (np.concatenate(side) for side in zip(*units, strict=True))
    query, key = queries.mean(axis=0), keys.mean(axis=0)
    variances: list[list[float]] = [[], [], []]  # inside each row: of the score, of its third and its fourth part
    for q, k in units:
        by_key = np.broadcast_to((k - key) @ query, (len(q), len(k)))
        for found, part in zip(variances, (q @ k.T, by_key, (q - query) @ (k - key).T), strict=True):
            found.extend(part.var(axis=1))
    within, mean_query, centred = (float(np.mean(found)) for found in variances)
    return {
        "mean_score": float(query @ key),
        "between_rows": float(((queries - query) @ key).var()),
        "within_rows": within,
        "mean_query": mean_query,
        "centred": centred,
        "mean_query_share": mean_query / within,
        "centred_share": centred / within,
    }


METRIC = Metric(
    name="score_terms",
    reads=Scores(),
    needs=frozenset({"rows", "query", "query_moment", "keys", "key", "row_variance", "row_lean", "row_spread"}),
    compute=compute,
    reference=reference,
    bounds=dict.fromkeys(
        ("between_rows", "within_rows", "mean_query", "centred", "mean_query_share", "centred_share"), POSITIVE
    ),
    invariant=frozenset({"rotation", "order"}),
    panel="alignment",
)
