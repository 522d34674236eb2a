"""Attention rows of each head: sharpness, extremes, sinks, and how alike the rows of one sequence are.

Formula    over the rows p of real queries: entropy H = −Σ p ln p; H / ln(outcomes); largest and smallest weight
           among visible keys; mass on the first real key; score = mean of q·k·scale over visible pairs (no bias,
           before softmax); row_similarity = mean cosine between two rows of one sequence, averaged over sequences.
           A row's outcomes are its visible keys; where the head has a learnt sink (GPT-OSS), whose logit stands in the
           same softmax, the sink is one outcome more: in Σ p ln p as in ln(keys + 1), so that weights over keys add up
           to less than 1.
Range      H [0, ln outcomes] nats; normalised [0, 1]: 0 one key, 1 uniform; weights [0, 1]; similarity [0, 1], 1: the
           query does not matter.
Unit       nats; none; scores as the softmax sees them.
Undefined  normalised entropy of a row that sees one key and has no sink: left out and counted.
           Padded queries and keys never count.
Source     Godey et al. 2024, figures 7, 9, 10, 15; Fosse et al. 2023, section 2.1.
"""

from anisoscope.metrics.base import POSITIVE, SHARE, Metric, Values, ratio
from anisoscope.sums.groups import Totals

OVER_ROWS = ("entropy", "row_max", "row_min", "first_mass", "row_median")


def compute(totals: Totals) -> Values:
    values = {name: ratio(totals[name], totals["rows"]) for name in OVER_ROWS if name in totals}
    values["entropy_normalised"] = ratio(totals["entropy_normalised"], totals["normalised_rows"])
    values["score"] = ratio(totals["score"], totals["pairs"])
    values["row_similarity"] = ratio(totals["row_similarity"], totals["row_sequences"])
    values["rows_seeing_one_key"] = totals["rows"] - totals["normalised_rows"]
    if "score_histogram" in totals:
        values["score_histogram"] = totals["score_histogram"]
    return values


METRIC = Metric(
    name="attention",
    quantities=("attention",),
    needs=frozenset({*OVER_ROWS, "rows", "normalised_rows", "entropy_normalised", "score", "score_histogram", "pairs"})
    | {"row_similarity", "row_sequences"},
    compute=compute,
    bounds=dict.fromkeys((*OVER_ROWS, "entropy_normalised", "row_similarity"), SHARE)
    | dict.fromkeys(("entropy", "rows_seeing_one_key", "score_histogram"), POSITIVE),
    panel="attention",
    axes=("head",),
)
