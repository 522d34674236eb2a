"""The common direction of a head's queries and keys: the first right singular vector of all of them together.

Formula    v, v_Q and v_K are eigenvectors, each of the largest eigenvalue of one matrix: v of Σqqᵀ + Σkkᵀ, v_Q of Σqqᵀ,
           v_K of Σkkᵀ. So they are the first right singular vectors (not centred) of queries and keys together, of
           queries alone, and of keys alone. share = vᵀ(Σqqᵀ + Σkkᵀ)v over its
           trace; query_alone = |v·v_Q|, key_alone = |v·v_K|, alone = |v_Q·v_K|.
Range      share [1/d, 1], 1: one line; cosines [0, 1], 1: the same first direction.
Unit       none.
Undefined  no token, or zero vectors only; arbitrary if the two largest eigenvalues are equal.
Source     Godey et al. 2024, figures 11 and 19 to 22 (they sample a fifth of the vectors; ours uses all). Queries
           and keys are those before normalisation and rotation (`raw`).
"""

import numpy as np

from anisoscope.metrics.base import (
    SHARE,
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
    """Return how far queries and keys of each head share one direction [replicate, head].

    share                     part of their second moments along the first direction of queries and keys together
    query_alone, key_alone    |cosine| between this direction and the first one of queries, of keys
    alone                     |cosine| between the first direction of queries and that of keys

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    # [replicate head dim dim]
    query = totals["query.head_moment"]
    key = totals["key.head_moment"]
    # Query heads that share a key head.
    key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    largest, both = find_first_direction(query + key)
    _, of_query = find_first_direction(query)
    _, of_key = find_first_direction(key)
    return {
        "share": ratio(largest, np.trace(query + key, axis1=-2, axis2=-1)),
        # An eigenvector has no sign.
        "query_alone": np.abs(dot(both, of_query)),
        "key_alone": np.abs(dot(both, of_key)),
        "alone": np.abs(dot(of_query, of_key)),
    }


def find_first_direction(moment: Array) -> tuple[Array, Array]:
    """Return the largest eigenvalue and its eigenvector [..., dim] of second moments [..., dim, dim].

    NaN if the moments are 0.
    """
    # In ascending order: the last is the largest. Of a zero matrix the eigenvector
    # would be an arbitrary axis.
    values, vectors = np.linalg.eigh(moment)
    is_zero = np.trace(moment, axis1=-2, axis2=-1) == 0
    largest = np.where(is_zero, np.nan, values[..., -1])
    direction = np.where(is_zero[..., None], np.nan, vectors[..., -1])
    return largest, direction


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute the common direction of queries and keys slowly, for tests: by singular value decompositions of the
    queries and keys of one head.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    q, k = concatenate_pairs(units)
    _, singular, both = np.linalg.svd(np.concatenate([q, k]), full_matrices=False)
    of_query = np.linalg.svd(q, full_matrices=False)[2][0]
    of_key = np.linalg.svd(k, full_matrices=False)[2][0]
    return {
        "share": float(singular[0] ** 2 / (singular**2).sum()),
        "query_alone": float(abs(both[0] @ of_query)),
        "key_alone": float(abs(both[0] @ of_key)),
        "alone": float(abs(of_query @ of_key)),
    }


METRIC = Metric(
    name="common_direction",
    reads=QueryKey(),
    needs=frozenset({"head_moment", "head_moment_n"}),
    compute=compute,
    reference=reference,
    bounds=dict.fromkeys(("share", "query_alone", "key_alone", "alone"), SHARE),
    invariant=frozenset({"rotation", "order"}),
    panel="alignment",
)
