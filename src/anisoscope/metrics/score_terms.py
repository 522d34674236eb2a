"""What the common direction does to attention logits: the four parts of q·k around the mean query and the mean key
of a head.

Formula    q·k = Q̄·K̄ + (q−Q̄)·K̄ + Q̄·(k−K̄) + (q−Q̄)·(k−K̄), all times the model's scale.
           mean_score: the first part.
           between_rows: the variance of the second part over rows (queries).
           The others are variances within rows, over the keys that a row sees, averaged over rows. within_rows: the
           variance of the whole logit. mean_query: that of the third part. centred: that of the fourth part.
           mean_query_share and centred_share: these two, divided by within_rows. The rest of within_rows is twice the
           covariance of the two parts.
Range      variances [0, ∞); shares [0, ∞): they add up to 1 if the two parts are uncorrelated. The first two parts are
           constant along a row, so a softmax ignores them. Only the last two can make attention sharp.
Unit       that of attention logits; variances: its square. Queries and keys are those of the logits, after rotation if
           the model rotates. Position biases and soft caps are left out.
Undefined  no row; shares if logits do not vary within rows.
Source     ours: Godey et al. 2024, section 5, infer sharp attention from the growth of Q̄·K̄ alone.
"""

import numpy as np

from anisoscope.metrics.base import (
    POSITIVE,
    Array,
    Metric,
    Values,
    concatenate_pairs,
    dot,
    ratio,
)
from anisoscope.reads import Scores
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    """Split the variance of the attention logits q·k of each head into parts [replicate, head].

    mean_score         scalar product of the mean query and the mean key
    between_rows       variance over queries of their logits with the mean key
    within_rows        variance of a query's logits over the keys that it sees, averaged over queries
    mean_query         the same variance for the logits of the mean query
    centred            the same variance for queries from which the mean query is subtracted
    mean_query_share   `mean_query` divided by `within_rows`; and so `centred_share`

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    rows = totals["rows"]
    query = ratio(totals["query"], rows[..., None])
    key = ratio(totals["key"], totals["keys"][..., None])
    mean_score = dot(query, key)
    # E[(q·K̄)²] = K̄ᵀ E[qqᵀ] K̄; less the square of the mean Q̄·K̄ it is the variance
    # over rows.
    on_key = _compute_quadratic_form(key, totals["query_moment"])
    square_on_key = ratio(on_key, rows)
    # Variance over the keys of a row: of whole scores, of the part of the mean query, and the covariance of both.
    whole = totals["row_variance"]
    # Q̄ᵀ S Q̄, S being the sum over rows of the covariance of the keys that a row sees.
    of_mean_query = _compute_quadratic_form(query, totals["row_spread"])
    covariance = dot(query, totals["row_lean"])
    within = ratio(whole, rows)
    mean_query = ratio(of_mean_query, rows)
    # Var(a − b) = Var a − 2 Cov(a, b) + Var b with a the whole score and b the part of
    # the mean query.
    centred = ratio(whole - 2 * covariance + of_mean_query, rows)
    return {
        "mean_score": mean_score,
        "between_rows": square_on_key - mean_score**2,
        "within_rows": within,
        "mean_query": mean_query,
        "centred": centred,
        "mean_query_share": ratio(mean_query, within),
        "centred_share": ratio(centred, within),
    }


def _compute_quadratic_form(x: Array, matrix: Array) -> Array:
    """Return the quadratic form xᵀMx over the last axes."""
    return dot(np.einsum("...de,...e->...d", matrix, x), x)


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the parts of attention scores slowly, for tests: from every score of one head, with all keys visible and
    scale 1.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    queries, keys = concatenate_pairs(units)
    query = queries.mean(axis=0)
    key = keys.mean(axis=0)
    # Variances inside each row: of the score, of its third and its fourth part.
    of_score: list[float] = []
    of_third: list[float] = []
    of_fourth: list[float] = []
    for q, k in units:
        third = np.broadcast_to((k - key) @ query, (len(q), len(k)))
        of_score.extend((q @ k.T).var(axis=1))
        of_third.extend(third.var(axis=1))
        of_fourth.extend(((q - query) @ (k - key).T).var(axis=1))
    within = float(np.mean(of_score))
    mean_query = float(np.mean(of_third))
    centred = float(np.mean(of_fourth))
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
    needs=frozenset(
        {
            "rows",
            "query",
            "query_moment",
            "keys",
            "key",
            "row_variance",
            "row_lean",
            "row_spread",
        }
    ),
    compute=compute,
    reference=reference,
    bounds=dict.fromkeys(
        (
            "between_rows",
            "within_rows",
            "mean_query",
            "centred",
            "mean_query_share",
            "centred_share",
        ),
        POSITIVE,
    ),
    invariant=frozenset({"rotation", "order"}),
    panel="alignment",
)
