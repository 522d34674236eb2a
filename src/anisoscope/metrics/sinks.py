"""Attention sinks at any key: how often a head has one, at which key, and how much attention goes to which keys.

Formula    For each sequence and head, αₖ is the mean weight that key k gets from the real queries that can see it.
           first_rate: the share of sequences with α > ε at the first real key.
           rate: the share of sequences with α > ε at the first key, or at any key that at least 8 queries see.
           strongest: the largest α of the keys that `rate` looks at, averaged over sequences.
           at: the share of sequences whose strongest key is the first, the last, another special token, punctuation or
           line break, or any other key.
           mass: the share of all weight on keys of each of these kinds.
           value_norm: ‖v‖ of the strongest key, divided by the mean ‖v‖ of its sequence.
           query_norm, key_norm: the largest ‖q‖ and ‖k‖, as they enter the attention logits.
Range      [0, 1]; norms [0, ∞). The shares of `mass` add up to 1, and so do those of `at`. If value_norm is far below
           1, the sink takes attention but adds almost nothing to the output.
Unit       none; query_norm and key_norm: that of queries and keys.
Undefined  no row. Few queries see the last keys of a causal head. The limit of 8 queries keeps such keys from counting
           as sinks. query_norm and key_norm have no interval, because they are maxima.
Source     Gu et al. 2025 (When Attention Sink Emerges), equation 3 and section 3 (ε = .3, first key). Their share of
           sinks over heads is the mean of `first_rate` over heads.
"""

from typing import Any

import numpy as np

from anisoscope.metrics.attention import softmax_rows
from anisoscope.metrics.base import POSITIVE, SHARE, Array, Metric, Values, ratio
from anisoscope.reads import Keys
from anisoscope.reads.extremes import EPSILONS, FEWEST_QUERIES, PARTS, SumsAndExtremes

NAMED = frozenset({"query_norm", "key_norm"})
# The thresholds as their components are called, such as ".3".
LINES = tuple(f"{epsilon:g}".removeprefix("0") for epsilon in EPSILONS)


def compute(data: SumsAndExtremes) -> Values:
    """Return how often a head has an attention sink (a key that draws much attention), and where [replicate, head, …].

    rate, first_rate   share of sequences with a sink at any key; with one at the first key; for each threshold
    strongest          attention that the key with the most of it gets, averaged over sequences
    at                 share of sequences in which that key is of each kind of token
    mass               share of the attention that each kind of token gets
    value_norm         norm of that key's value vector, divided by the mean norm of value vectors

    The largest norms (`query_norm`, `key_norm`) have a single replicate [1, head]. Replicate 0 is over all data; each
    other replicate leaves out one group of units (documents, clips).
    """
    totals = data.totals
    with_keys = totals["key_sequences"]
    with_sinks = totals["sink_sequences"]
    values = {
        "rate": ratio(totals["above"], with_sinks[..., None]),
        "first_rate": ratio(totals["first_above"], with_keys[..., None]),
        "strongest": ratio(totals["strongest"], with_sinks),
        "at": ratio(totals["strongest_part"], with_sinks[..., None]),
        "mass": ratio(totals["part_mass"], with_keys[..., None]),
        "value_norm": ratio(totals["value_ratio"], totals["value_sequences"]),
    }
    for name in sorted(NAMED & data.extremes.keys()):
        largest = data.extremes[name][0]
        # −∞ if no query or key of a head was finite.
        values[name] = np.where(np.isfinite(largest), largest, np.nan)[None]
    return values


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute attention sinks slowly, for tests: from one head with all keys visible, scale 1 and values equal to keys.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    values: dict[str, list[Any]] = {
        name: []
        for name in ("rate", "first_rate", "strongest", "mass", "at", "value_norm")
    }
    largest = {"query_norm": 0.0, "key_norm": 0.0}
    for query, key in units:
        for name, value in _compute_reference_of_sequence(query, key).items():
            values[name].append(value)
        for name, vectors in (("query_norm", query), ("key_norm", key)):
            largest[name] = max(
                largest[name], float(np.linalg.norm(vectors, axis=1).max())
            )
    expected = dict(largest)
    for name, of_sequences in values.items():
        mean = np.mean(of_sequences, axis=0)
        components = METRIC.components.get(name)
        if isinstance(components, tuple):
            for component, part in zip(components, mean, strict=True):
                expected[f"{name} {component}"] = float(part)
        else:
            expected[name] = float(mean)
    return expected


def _compute_reference_of_sequence(query: Array, key: Array) -> dict[str, Any]:
    """Return the values of one sequence of one head by name, for `reference`: numbers, or one number per component."""
    weights = softmax_rows(query @ key.T)
    alpha = weights.mean(axis=0)
    last = len(key) - 1
    # Every query sees every key: either all keys have enough queries, or none but the first counts.
    strongest = 0
    if len(query) >= FEWEST_QUERIES:
        strongest = int(alpha.argmax())
    on_last = alpha[last] if last > 0 else 0.0
    length = np.linalg.norm(key, axis=1)
    return {
        "rate": [alpha[strongest] > epsilon for epsilon in EPSILONS],
        "first_rate": [alpha[0] > epsilon for epsilon in EPSILONS],
        "strongest": alpha[strongest],
        "mass": [alpha[0], on_last, 0.0, 0.0, alpha.sum() - alpha[0] - on_last],
        "at": [
            strongest == 0,
            0 < strongest == last,
            False,
            False,
            0 < strongest < last,
        ],
        "value_norm": length[strongest] / length.mean(),
    }


METRIC = Metric(
    name="sinks",
    reads=Keys(),
    needs=Keys.terms,
    compute=compute,
    reference=reference,
    bounds={
        **dict.fromkeys(("rate", "first_rate", "strongest", "at", "mass"), SHARE),
        **dict.fromkeys(("value_norm", *sorted(NAMED)), POSITIVE),
    },
    counted=frozenset({"rate", "first_rate", "at"}),
    extremes=NAMED,
    components={"rate": LINES, "first_rate": LINES, "at": PARTS, "mass": PARTS},
    invariant=frozenset({"rotation"}),
    panel="extremes",
)
