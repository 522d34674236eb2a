"""Query–key alignment: the mean query and the mean key of each head, and the cosine between them.

Formula    Q̄ = Σq/n, K̄ = Σk/n over all real tokens; norms, Q̄·K̄, and cos(Q̄, K̄). Grouped keys are shared by their
           query heads.
Range      cosine [−1, 1], ±1: the means point in the same / opposite direction; scalar product and norms in units of
           the projections.
Unit       cosine none. The scalar product is that of unscaled projections: multiply by the model's scale to compare
           with scores.
Undefined  no token; cosine if a mean is 0. cos(Q̄, K̄) depends on the basis (Q → QM, K → KM⁻ᵀ keeps all scores),
           Q̄·K̄ does not.
Source     Godey et al. 2024, section 5, figures 13 and 14; read at the stage `raw`.
"""

import numpy as np

from anisoscope.metrics.base import (
    COSINE,
    POSITIVE,
    Array,
    Metric,
    Values,
    concatenate_pairs,
    dot,
    ratio,
)
from anisoscope.reads import QueryKey
from anisoscope.sums.groups import Totals


def compute(totals: Totals) -> Values:
    """Return how the mean query and the mean key of each head relate [replicate, policy, head].

    The values are their norms (`query_norm`, `key_norm`), scalar product (`dot`) and `cosine`. Replicate 0 is over all
    data; each other replicate leaves out one group of units (documents, clips).
    """
    # [replicate policy head head_dim]
    query = ratio(totals["query.vector"], totals["query.n"][..., None])
    key = ratio(totals["key.vector"], totals["key.n"][..., None])
    # Query heads that share a key head.
    key = np.repeat(key, query.shape[-2] // key.shape[-2], axis=-2)
    query_norm = np.linalg.norm(query, axis=-1)
    key_norm = np.linalg.norm(key, axis=-1)
    product = dot(query, key)
    cosine = ratio(product, query_norm * key_norm)
    return {
        "query_norm": query_norm,
        "key_norm": key_norm,
        "dot": product,
        "cosine": cosine,
    }


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the query–key alignment directly, for tests: from the queries and keys of one head.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    queries, keys = concatenate_pairs(units)
    q = queries.mean(axis=0)
    k = keys.mean(axis=0)
    return {"dot": float(q @ k), "cosine": float(q @ k / np.sqrt((q @ q) * (k @ k)))}


METRIC = Metric(
    name="query_key",
    reads=QueryKey(),
    needs=frozenset({"n", "vector"}),
    compute=compute,
    reference=reference,
    bounds={"query_norm": POSITIVE, "key_norm": POSITIVE, "cosine": COSINE},
    invariant=frozenset({"rotation", "order"}),
    panel="attention",
)
