"""Sums that split attention logits q·k·scale into the parts of means and deviations, whatever the mask.

Inside a row (one query), the logit varies by the covariance C of the keys that are visible, so these sums give the
variance of any part that is linear in the query (`metrics/score_terms.py`).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anisoscope.capture.masking import Masking
from anisoscope.sums.device import choose_sum_device


@torch.no_grad()
def sum_scores(
    query: Float[Tensor, "sequence head query dim"],
    key: Float[Tensor, "sequence key_head key dim"],
    masking: Masking,
    *,
    scale: float,
    real: Bool[Tensor, "sequence query"] | None = None,
) -> dict[str, Tensor]:
    """Return the sums from which the variance of attention scores is computed, for each sequence and head, in float64.

    All are [sequence, head, …]. They are sums over the rows of real queries q (multiplied by the scale); C is the
    covariance of the keys that a row sees:

    rows, query, query_moment [dim, dim]     number of rows, Σq, Σqqᵀ
    keys, key                                number of keys that any row sees, and their Σk
    row_variance                             Σ qᵀCq: the variance of scores inside rows
    row_lean [dim], row_spread [dim, dim]    ΣCq, ΣC

    Position biases, soft caps and sinks are not included: they apply after the score.
    """
    exact = choose_sum_device(query.device)
    q = query.to(exact).double() * scale
    k = key.to(exact).double().repeat_interleave(query.shape[1] // key.shape[1], 1)
    seen = _expand_seen(q, k, masking)
    # Read once for all layers of a mask.
    span = masking.span(len(q), q.shape[2], k.shape[2])
    if span is not None and not span.causal:
        seen = seen[:, :, :1]
    # Rows and keys with NaN or Inf are left out of all sums, since one would spoil
    # those of its sequence.
    rows = seen.any(-1) & q.isfinite().all(-1)
    if real is not None:
        rows = rows & real.to(exact).unsqueeze(1)
    q = torch.where(rows.unsqueeze(-1), q, 0.0)
    used = (seen & rows.unsqueeze(-1)).any(2) & k.isfinite().all(-1)
    k = torch.where(used.unsqueeze(-1), k, 0.0)
    moment = q.transpose(2, 3) @ q
    sums = {
        "rows": rows.sum(-1).double(),
        "query": q.sum(2),
        "query_moment": moment,
        "keys": used.sum(-1).double(),
        "key": k.sum(2),
    }
    # A shift common to all keys of a sequence changes no covariance, and keeps digits.
    centre = sums["key"] / sums["keys"].clamp(min=1).unsqueeze(-1)
    k = torch.where(used.unsqueeze(-1), k - centre.unsqueeze(2), 0.0)
    if seen.shape[2] == 1:
        return sums | _sum_equal_rows(sums, moment, k)
    return sums | _sum_separate_rows(q, k, seen & used.unsqueeze(2), rows)


def _expand_seen(q: Tensor, k: Tensor, masking: Masking) -> Tensor:
    """Return which key each query sees [sequence, 1 or head, query or 1, key] bool, from the mask and causality of
    `masking`.

    The query axis has length 1 if all queries of a sequence see the same keys.
    """
    sequences, queries, keys = len(q), q.shape[2], k.shape[2]
    if masking.keys is None:
        seen = torch.ones((sequences, 1, 1, keys), dtype=torch.bool, device=q.device)
    else:
        seen = masking.keys[..., :keys].to(q.device).expand(sequences, -1, -1, -1)
    if masking.causal:
        seen = (
            seen & torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril()
        )
    return seen


def _sum_equal_rows(
    sums: dict[str, Tensor], moment: Tensor, k: Tensor
) -> dict[str, Tensor]:
    """Return sums over queries that need the covariance C of the keys, if all queries of a sequence see the same keys.

    C is then one matrix for each sequence and head. For the queries q (scaled) of a sequence:

    row_variance   Σ qᵀCq, the variance of the scores inside a row, summed over rows [sequence, head]
    row_lean       ΣCq [sequence, head, dim]
    row_spread     ΣC [sequence, head, dim, dim]

    sums     `rows` (number of queries), `query` (Σq) and `keys` (number of keys), each by sequence and head
    moment   Σqqᵀ of the scaled queries [sequence, head, dim, dim]
    k        centred keys [sequence, head, key, dim]; 0 for keys that no query sees
    """
    covariance = k.transpose(2, 3) @ k / sums["keys"].clamp(min=1)[..., None, None]
    return {
        "row_variance": (covariance * moment).sum((2, 3)),
        "row_lean": (covariance @ sums["query"].unsqueeze(-1)).squeeze(-1),
        "row_spread": covariance * sums["rows"][..., None, None],
    }


def _sum_separate_rows(
    q: Tensor, k: Tensor, seen: Tensor, rows: Tensor
) -> dict[str, Tensor]:
    """Return `row_variance`, `row_lean` and `row_spread` (see `sum_scores`) if each query sees other keys (causal,
    windowed).

    The covariance of the visible keys is then another one for each query. All sums are by sequence and head.

    q, k   scaled queries and centred keys [sequence, head, token, dim]
    seen   which keys each query sees [sequence, 1 or head, query, key] bool
    rows   which queries are counted [sequence, head, query] bool
    """
    variances: list[Tensor] = []
    leans: list[Tensor] = []
    spreads: list[Tensor] = []
    # One sequence at a time: [head, query, key] in float64 for a whole batch would take
    # too much memory.
    for query, keys, seen_keys, counted in zip(q, k, seen, rows, strict=True):
        # [1 or head, query, key]
        share = seen_keys.to(query) / seen_keys.sum(-1, keepdim=True).clamp(min=1)
        share = share * counted.unsqueeze(-1)
        scores = query @ keys.transpose(1, 2)
        mean_key = share @ keys  # [head, query, dim]
        mean_score = (query * mean_key).sum(-1, keepdim=True)
        weighted = share * scores
        # A covariance is the mean of products less the product of means.
        mean_square = (weighted * scores).sum((1, 2))
        variances.append(mean_square - mean_score.square().sum((1, 2)))
        lean = (weighted.sum(1).unsqueeze(1) @ keys).squeeze(1)
        leans.append(lean - (mean_score * mean_key).sum(1))
        spread = (keys * share.sum(1).unsqueeze(-1)).transpose(1, 2) @ keys
        spreads.append(spread - mean_key.transpose(1, 2) @ mean_key)
    return {
        "row_variance": torch.stack(variances),
        "row_lean": torch.stack(leans),
        "row_spread": torch.stack(spreads),
    }
