"""Attention rows of each head: concentration (entropy), largest weights, sinks, and how similar the rows of a
sequence are.

Formula    over the rows p of real queries. entropy: H = −Σ p ln p. entropy_normalised: H / ln(outcomes).
           row_max, row_min: the largest and smallest weight among the keys that the query sees. first_mass: the weight
           of the first real key. score: the mean of q·k·scale over queries and the keys that they see (no bias, before
           softmax).
           row_similarity: the mean cosine of two rows of one sequence, averaged over sequences.
           The outcomes of a row are the keys that it sees. A learnt sink (GPT-OSS) is one more outcome, both in the
           entropy and in its maximum ln(keys + 1). The weights of the keys then add up to less than 1.
Range      H [0, ln outcomes] nats; normalised [0, 1]: 0 one key, 1 uniform; weights [0, 1]; similarity [0, 1]: at 1
           attention does not depend on the query.
Unit       entropy nats; scores as they enter the softmax; otherwise none.
Undefined  normalised entropy of a row that sees one key and has no sink: left out and counted.
           Padded queries and keys never count.
Source     Godey et al. 2024, figures 7, 9, 10, 15; Fosse et al. 2023, section 2.1.
"""

import numpy as np

from anisoscope.metrics.base import (
    POSITIVE,
    SHARE,
    Array,
    Metric,
    Values,
    leave_diagonal_out,
    ratio,
)
from anisoscope.reads import Rows
from anisoscope.sums.groups import Totals

OVER_ROWS = ("entropy", "row_max", "row_min", "first_mass", "row_median")


def compute(totals: Totals) -> Values:
    """Return means over the attention rows (one per query) of each head [replicate, head].

    Values are those of `OVER_ROWS` that were summed (entropy, largest weight, …), and `entropy_normalised`, `score`
    (mean logit), `row_similarity`, `rows_seeing_one_key`; with a histogram also `score_histogram` [replicate, head,
    bin]. Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    values: Values = {}
    for name in OVER_ROWS:
        if name in totals:
            values[name] = ratio(totals[name], totals["rows"])
    values["entropy_normalised"] = ratio(
        totals["entropy_normalised"], totals["normalised_rows"]
    )
    values["score"] = ratio(totals["score"], totals["pairs"])
    values["row_similarity"] = ratio(totals["row_similarity"], totals["row_sequences"])
    # A count, not a mean: it says how many rows `entropy_normalised` leaves out.
    values["rows_seeing_one_key"] = totals["rows"] - totals["normalised_rows"]
    if "score_histogram" in totals:
        values["score_histogram"] = totals["score_histogram"]
    return values


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute statistics of attention rows slowly, for tests: from the whole matrix of attention weights of each unit.

    There is one head, every query sees all keys, and the scale is 1.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    rows: list[Array] = []
    scores: list[Array] = []
    alike: list[float] = []
    for query, key in units:
        score = query @ key.T
        p = softmax_rows(score)
        rows += list(p)
        scores.append(score.ravel())
        if len(p) > 1:
            u = p / np.linalg.norm(p, axis=1, keepdims=True)
            alike.append(float(leave_diagonal_out(u @ u.T).mean()))
    entropy = [compute_entropy(row) for row in rows]
    normalised: list[float] = []
    for h, row in zip(entropy, rows, strict=True):
        if len(row) > 1:
            normalised.append(h / np.log(len(row)))
    return {
        "entropy": float(np.mean(entropy)),
        "row_max": float(np.mean([row.max() for row in rows])),
        "row_min": float(np.mean([row.min() for row in rows])),
        "first_mass": float(np.mean([row[0] for row in rows])),
        "entropy_normalised": float(np.mean(normalised)),
        "score": float(np.concatenate(scores).mean()),
        "row_similarity": float(np.mean(alike)),
        "rows_seeing_one_key": float(sum(len(row) == 1 for row in rows)),
    }


def softmax_rows(score: Array) -> Array:
    """Return the softmax over keys of scores [query, key]."""
    # Less the largest score, which cancels in the ratio: exp does not overflow.
    e = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def compute_entropy(row: Array) -> float:
    """Return the entropy of a row of weights, in nats."""
    # 0 · ln 0 counts as 0, its limit.
    seen = row[row > 0]
    return float(-(seen * np.log(seen)).sum())


METRIC = Metric(
    name="attention",
    reads=Rows(),
    needs=frozenset(
        {
            *OVER_ROWS,
            "rows",
            "normalised_rows",
            "entropy_normalised",
            "score",
            "score_histogram",
            "pairs",
            "row_similarity",
            "row_sequences",
        }
    ),
    compute=compute,
    reference=reference,
    invariant=frozenset({"rotation"}),
    bounds={
        **dict.fromkeys((*OVER_ROWS, "entropy_normalised", "row_similarity"), SHARE),
        **dict.fromkeys(
            ("entropy", "rows_seeing_one_key", "score_histogram"), POSITIVE
        ),
    },
    panel="attention",
)
