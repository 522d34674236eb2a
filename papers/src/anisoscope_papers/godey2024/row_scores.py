"""Sum attention scores before the softmax: their mean, their spread, and their spread inside rows (all a softmax sees).

Sums are over visible pairs, per sequence and head; bias and mask are not part of a score. Keys are centred before the
product, so that the spread inside a row keeps its precision even with a common part of 10⁴. The common part of each row
is added in float64.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anisoscope_papers.judge import Array

EVERY = 16
"""Histograms, medians and entropies are of every 16th query row: each token is a fresh draw, so any rows do. The
softmax of those is in float64, since weights that are all but uniform have an entropy 10⁻⁸ below the largest one.
"""
SMALLEST, BINS = 1e-5, 300
EDGES = SMALLEST * np.sinh(np.linspace(-24, 24, BINS + 1))
"""Edges shared by all N, seeds and systems: linear below 10⁻⁵, then geometric (14 bins a decade), to ±10⁵."""
HISTOGRAMS = {
    "attention.score_histogram": "pooled",
    "attention.score_histogram_within": "centred",
}
"""Metric → name of its counts among the sums."""


def sum_scores(
    query: Float[Tensor, "sequence head query dim"],
    key: Float[Tensor, "sequence head key dim"],
    scale: float,
    causal: bool,
    counted: Bool[Tensor, " sequence"],
) -> dict[str, Tensor]:
    """Return sums over the scores scale · q·k of visible pairs, {term: [sequence, head]}.

    Terms are `pairs` (their number), `score`, `score_square`, `within` (variance inside rows, by pairs). Over every
    16th row: `some_rows`, `row_median`, `entropy`, `entropy_normalised`. Also histograms [sequence, bin] of every 16th
    row: `pooled` of scores, `centred` of scores less their row's mean; only for the `counted` sequences, as they are
    slow.
    """
    # What all keys have in common is added to each row in float64, apart: in float32 it would swallow the spread.
    middle = key.mean(2, keepdim=True)
    # [sequence head query]
    common = (query @ middle.transpose(2, 3)).squeeze(-1).double() * scale
    key = key - middle
    length = key.shape[2]
    # n: how many keys a query sees. It grows along a causal sequence.
    if causal:
        n = torch.arange(1, length + 1, device=key.device).double()
        mean, within = _rows_of_causal(query, key, scale, n)
    else:
        n = common.new_full((length,), length)
        mean, within = _rows(query, key, scale, n)
    # [sequence, head, query]: the mean score of each row.
    row = common + mean
    sums = {
        "pairs": n.sum().expand(row.shape[:2]),
        "score": (n * row).sum(-1),
        # Σ s² of a row is n · (variance + mean²).
        "score_square": (n * (within + row.square())).sum(-1),
        # Rounding can make a variance of almost nothing negative.
        "within": (n * within.clamp(min=0)).sum(-1),
    }
    # Not from the first row on: in a causal sequence the earliest rows see few keys.
    some = slice(EVERY - 1, None, EVERY)
    s = (query[:, :, some] @ key.transpose(2, 3)).mul_(scale)
    common = common[:, :, some]
    mean = mean[:, :, some]
    n = n[some].long()
    masking = torch.arange(length, device=s.device) < n[:, None]
    sums |= _sum_softmax(s.double(), masking, n)
    return sums | {
        # Keys are centred here: with the common part scores are whole, and less the
        # row's mean they are deviations.
        "pooled": _counts(s, common, masking, counted),
        "centred": _counts(s, -mean, masking, counted),
    }


def _rows(query: Tensor, key: Tensor, scale: float, n: Tensor) -> tuple[Tensor, Tensor]:
    """Return (mean, variance) of the scores scale · q·k of each row, [sequence, head, query], from the moments of the
    keys.

    No score is computed. query and key are [sequence, head, token, dim]; n [row]: how many keys each row sees.
    """
    q = query.double()
    k = key.double()
    # With K the keys of a sequence: E s = scale · q·k̄, E s² = scale² · qᵀ(KᵀK)q / n.
    # KᵀK is [dim, dim], whatever the number of keys.
    mean = (q @ k.mean(2, keepdim=True).transpose(2, 3)).squeeze(-1) * scale
    square = torch.linalg.vecdot(q @ (k.transpose(2, 3) @ k), q) * scale**2 / n
    return mean, square - mean.square()


def _rows_of_causal(
    query: Tensor, key: Tensor, scale: float, n: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (mean, variance) of the scores scale · q·k of each row, [sequence, head, query], if row i sees only the
    first n[i] keys.

    query and key are [sequence, head, token, dim]; n is [row].
    """
    # `tril_` sets the scores of later keys to 0, so that they add nothing to either
    # sum.
    s = (query @ key.transpose(2, 3)).mul_(scale).tril_()
    mean = s.sum(-1).double() / n
    return mean, torch.linalg.vecdot(s, s).double() / n - mean.square()


def _sum_softmax(s: Tensor, masking: Tensor, n: Tensor) -> dict[str, Tensor]:
    """Sum over rows the median weight and the entropy of the softmax over the first n [row] keys; also the number of
    rows.

    s: scores [sequence, head, row, key]; masking: visible pairs [row, key]. Returns {term: [sequence, head]}. Entropy
    is log-sum-exp − E[score]. The median weight is that of the median score.
    """
    log_sum = s.masked_fill(~masking, -torch.inf).logsumexp(-1)
    weight = (s - log_sum.unsqueeze(-1)).exp_().masked_fill_(~masking, 0.0)
    # −Σ w ln w with ln w = s − log-sum-exp. Hidden keys have weight 0, and their scores
    # are finite.
    entropy = log_sum - torch.linalg.vecdot(weight, s)
    # Hidden keys go to the end: the n visible ones come first.
    ordered = np.sort(s.masked_fill(~masking, torch.inf).cpu().numpy(), axis=-1)
    row = np.arange(len(n))
    middle = n.cpu().numpy() / 2
    # The two middle ranks of n numbers, which are one and the same if n is odd.
    median = (
        ordered[..., row, np.ceil(middle).astype(int) - 1]
        + ordered[..., row, middle.astype(int)]
    ) / 2
    rows = {
        "row_median": (torch.from_numpy(median).to(s) - log_sum).exp(),
        "entropy": entropy,
        "entropy_normalised": entropy / n.log(),
        "some_rows": torch.ones_like(entropy),
    }
    return {name: value.sum(-1) for name, value in rows.items()}


def _counts(s: Tensor, shift: Tensor, masking: Tensor, counted: Tensor) -> Tensor:
    """Count s + shift in bins over heads, rows and visible keys, [sequence, bin]; 0 for sequences that are not counted.

    s: scores [sequence, head, row, key]; shift [sequence, head, row]; masking: visible pairs [row, key]; counted
    [sequence].
    """
    s = s[counted] + shift[counted].to(s).unsqueeze(-1)
    edges = torch.from_numpy(EDGES).to(s)
    # Scores beyond the outermost edges count in the outermost bins.
    bins = torch.bucketize(s, edges).clamp_(1, BINS) - 1
    # One count of all sequences: each has a range of bins of its own.
    bins += BINS * torch.arange(len(s), device=s.device).view(-1, 1, 1, 1)
    counts = torch.zeros(len(counted), BINS, dtype=torch.float64, device=s.device)
    counts[counted] = (
        torch.bincount(bins.masked_select(masking), minlength=BINS * len(s))
        .view(len(s), BINS)
        .double()
    )
    return counts


def compute_metrics(terms: dict[str, Array], position_bias: bool) -> dict[str, Array]:
    """Compute metrics from the sums: {metric: [norm, head]}, mean, RMS and spreads of scores, median weight and
    entropy.

    `terms`: sums of `sum_scores`, [norm, head]. With a position bias, median weight and entropy are left out: the bias
    enters the softmax, but is not in the scores.
    """
    mean = terms["score"] / terms["pairs"]
    square = terms["score_square"] / terms["pairs"]
    within = terms["within"] / terms["pairs"]
    found = {
        "attention.score": mean,
        "attention.score_rms": np.sqrt(square),
        "attention.score_spread": np.sqrt(np.maximum(square - mean**2, 0)),
        "attention.score_spread_within": np.sqrt(within),
    }
    names = () if position_bias else ("row_median", "entropy", "entropy_normalised")
    return found | {
        f"attention.{name}": terms[name] / terms["some_rows"] for name in names
    }
