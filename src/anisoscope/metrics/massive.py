"""Massive activations: the largest coordinates of hidden vectors, compared with the median, and where they are.

Formula    `top` 1 to 3: the three largest |x| of a sequence, over its tokens and dimensions. `median`: the median of
           all |x| of a sequence (of an even number, the lower middle one). Each is a mean over sequences.
           over_median: the mean over sequences of the largest |x| divided by the median.
           rate: the share of sequences with a massive activation: |x| above 100 and at least 1,000 times the median.
           Over all tokens: take the largest |x| of each dimension. `largest` 1 to 5 are the five highest of these;
           `largest_dimension`, `largest_position` (in the sequence, from 0), `largest_token` (its id) and
           `largest_unit` say where these are.
Range      [0, ∞); rate [0, 1]. The largest of a million Gaussian numbers is about 7 times the median.
Unit       that of the activations; over_median and rate none.
Undefined  no vector; over_median: a median of 0. If there are fewer than three numbers, a missing `top` counts as 0.
           `largest` has no interval, because a maximum has none; `top` has one.
Source     Sun et al. 2024 (Massive Activations in LLMs), section 2 and figure 4.
"""

import numpy as np

from anisoscope.metrics.base import POSITIVE, SHARE, Array, Metric, Values, ratio
from anisoscope.reads import Sequences
from anisoscope.reads.extremes import MASSIVE, OVER_MEDIAN, TOP, SumsAndExtremes
from anisoscope.sums.extremes import WHERE

DIMENSIONS = 5
"""How many dimensions are named."""
PLACES = {
    "largest_unit": "unit",
    "largest_position": "position",
    "largest_token": "token",
}
NAMED = frozenset({"largest", "largest_dimension", *PLACES})


def compute(data: SumsAndExtremes) -> Values:
    """Return how large the largest activations (absolute entries of vectors) of a sequence are, averaged over
    sequences [replicate, …].

    top           [replicate, rank]: the largest activations, in descending order
    median        the median of all activations
    over_median   ratio of the largest activation to the median
    rate          share of sequences whose largest activation is massive

    The values of `_name_largest` are added. Replicate 0 is over all data; the others leave out one group of units each.
    """
    totals = data.totals
    sequences = totals["activation_sequences"]
    values = {
        "top": ratio(totals["top"], sequences[:, None]),
        "median": ratio(totals["median"], sequences),
        "over_median": ratio(totals["over_median"], totals["over_sequences"]),
        "rate": ratio(totals["massive"], sequences),
    }
    return values | _name_largest(data)


def _name_largest(data: SumsAndExtremes) -> Values:
    """Return which dimensions have the largest activations over all data [1, dimension], in descending order.

    `largest` holds the activations, `largest_dimension` the numbers of the dimensions, and the names in `PLACES` say at
    which token each was. Empty if largest activations were not recorded.
    """
    if "activation" not in data.extremes:
        return {}
    largest, where = data.extremes["activation"]
    # A dimension that was never finite still has its −∞.
    recorded = np.flatnonzero(np.isfinite(largest))
    descending = np.argsort(-largest[recorded], kind="stable")
    # Stable: of equal values the dimension with the smaller number comes first, on
    # every machine.
    order = recorded[descending][:DIMENSIONS]
    values = {
        "largest": largest[order][None],
        "largest_dimension": order[None].astype(np.float64),
    }
    for name, column in PLACES.items():
        values[name] = where[order, WHERE.index(column)][None].astype(np.float64)
    return values


def reference(units: list[Array]) -> dict[str, float]:
    """Compute massive activations slowly, for tests: by sorting the activations of each unit, taken as a sequence.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    tops = []
    medians = []
    massive = []
    for unit in units:
        ordered = np.sort(np.abs(unit).ravel())
        median = ordered[(len(ordered) - 1) // 2]
        tops.append(ordered[::-1][:TOP])
        medians.append(median)
        massive.append(ordered[-1] > MASSIVE and ordered[-1] >= OVER_MEDIAN * median)
    of_dimensions = np.abs(np.concatenate(units)).max(axis=0)
    order = np.argsort(-of_dimensions, kind="stable")[:DIMENSIONS]
    ratios = [top[0] / median for top, median in zip(tops, medians, strict=True)]
    expected = {
        "median": float(np.mean(medians)),
        "rate": float(np.mean(massive)),
        "over_median": float(np.mean(ratios)),
    }
    for k in range(TOP):
        expected[f"top {k + 1}"] = float(np.mean([top[k] for top in tops]))
    for rank, dimension in enumerate(order, start=1):
        expected[f"largest {rank}"] = float(of_dimensions[dimension])
        expected[f"largest_dimension {rank}"] = float(dimension)
    return expected


def _name_ranks(count: int) -> tuple[str, ...]:
    """Return the names of the largest activations by rank: "1", "2", … up to `count`."""
    return tuple(str(rank + 1) for rank in range(count))


METRIC = Metric(
    name="massive",
    reads=Sequences(),
    needs=frozenset(
        {
            "activation_sequences",
            "top",
            "median",
            "over_median",
            "over_sequences",
            "massive",
        }
    ),
    compute=compute,
    reference=reference,
    bounds={
        **dict.fromkeys(("top", "median", "over_median", "largest"), POSITIVE),
        "rate": SHARE,
    },
    counted=frozenset({"rate"}),
    extremes=NAMED,
    components={
        "top": _name_ranks(TOP),
        **dict.fromkeys(NAMED, _name_ranks(DIMENSIONS)),
    },
    invariant=frozenset({"order"}),
    panel="extremes",
)
