"""Attention sinks at any key: how often a head has one, which keys it is, how much attention goes to which keys.

Formula    of each sequence and head αₖ = the mean weight that the real queries which see key k give it. `first_rate`:
           share of sequences with α > ε at the first real key; `rate`: the same with α > ε at the first key, or at any
           key that at least 8 queries see. `strongest`: mean over sequences of the largest such α; `at`: share of
           sequences whose strongest key is the first, the last, another special token, punctuation or line break, or
           another one; `mass`: share of all weights on keys of each of these kinds; `value_norm`: ‖v‖ of the strongest
           key over the mean ‖v‖ of its sequence. `query_norm` and `key_norm`: the largest ‖q‖ and ‖k‖, as they are
           scored.
Range      [0, 1]; norms [0, ∞). Shares of `mass` add up to 1, and so do those of `at`. A value_norm far below 1: the
           sink takes attention and gives nothing.
Unit       none; query_norm and key_norm that of queries and keys.
Undefined  no row. The limit of 8 queries keeps the last keys of a causal head, which few queries see, from counting as
           sinks. Largest norms have no interval.
Source     Gu et al. 2025 (When Attention Sink Emerges), equation 3 and section 3 (ε = .3, first key); their share over
           heads is the mean of `first_rate` over heads.
"""

import numpy as np

from anisoscope.metrics.attention import softmax_rows
from anisoscope.metrics.base import POSITIVE, SHARE, Array, Metric, Values, ratio
from anisoscope.reads import Keys
from anisoscope.reads.extremes import EPSILONS, FEWEST_QUERIES, PARTS, SumsAndExtremes

NAMED = frozenset({"query_norm", "key_norm"})
LINES = tuple(f"{epsilon:g}".removeprefix("0") for epsilon in EPSILONS)


def compute(data: SumsAndExtremes) -> Values:
    """Return how often a head has an attention sink (a key that draws much attention), and where [replicate, head, …].

    rate, first_rate   share of sequences with a sink at any key, at the first key, for each threshold
    strongest, at      mean attention of the strongest key; share of sequences in which it is of each kind of token
    mass               share of the attention that each kind of token gets
    value_norm         norm of the strongest key's value vector over the mean norm

    The largest norms (`query_norm`, `key_norm`) have a single replicate [1, head]. Replicate 0 is over all data; each
    other replicate leaves out one group of units (documents, clips).
    """
    totals = data.totals
    every, found = totals["key_sequences"], totals["sink_sequences"]
    values = {
        "rate": ratio(totals["above"], found[..., None]),
        "first_rate": ratio(totals["first_above"], every[..., None]),
        "strongest": ratio(totals["strongest"], found),
        "at": ratio(totals["strongest_part"], found[..., None]),
        "mass": ratio(totals["part_mass"], every[..., None]),
        "value_norm": ratio(totals["value_ratio"], totals["value_sequences"]),
    }
    for name in sorted(NAMED & data.extremes.keys()):
        largest = data.extremes[name][0]
        values[name] = np.where(np.isfinite(largest), largest, np.nan)[None]
    return values


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute attention sinks slowly, for tests: from one head with all keys visible, scale 1 and values equal to keys.

    units   (queries, keys) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    first_rate, rate, strongest, masses, norms, places = [], [], [], [], [], []
    for query, key in units:
        p = softmax_rows(query @ key.T)
        alpha = p.mean(axis=0)
        first_rate.append([alpha[0] > epsilon for epsilon in EPSILONS])
        last = alpha[-1] if len(key) > 1 else 0.0
        masses.append([alpha[0], last, 0.0, 0.0, alpha.sum() - alpha[0] - last])
        top = int(alpha.argmax()) if len(query) >= FEWEST_QUERIES else 0
        rate.append([alpha[top] > epsilon for epsilon in EPSILONS])
        strongest.append(alpha[top])
        places.append([top == 0, 0 < top == len(key) - 1, False, False, 0 < top < len(key) - 1])
        length = np.linalg.norm(key, axis=1)
        norms.append(length[top] / length.mean())
    found = {"strongest": float(np.mean(strongest)), "value_norm": float(np.mean(norms))}
    for name, shares in (("rate", rate), ("first_rate", first_rate)):
        found |= {f"{name} {line}": float(share) for line, share in zip(LINES, np.mean(shares, axis=0), strict=True)}
    for name, shares in (("mass", masses), ("at", places)):
        found |= {f"{name} {part}": float(share) for part, share in zip(PARTS, np.mean(shares, axis=0), strict=True)}
    found["query_norm"] = float(max(np.linalg.norm(query, axis=1).max() for query, _ in units))
    found["key_norm"] = float(max(np.linalg.norm(key, axis=1).max() for _, key in units))
    return found


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
