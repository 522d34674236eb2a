"""Statistics of attention rows from queries, keys and mask, block by block: no map over all heads is ever kept.

The weights are those of the model's own softmax: its scale, its mask, its position bias, its soft cap, its sinks.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

HIDDEN = -1e30  # a score no softmax sees; finite, so that weight 0 times score is 0
BLOCK = 1 << 18  # scores per block: two such float32 buffers stay in a core's cache
SHIFT_ABOVE = 32.0  # largest |score| whose exponential is taken as it is: float32 overflows at 88


@dataclass(frozen=True)
class Visible:
    """Who sees whom, and what is added to the scores.

    `keys` [sequence, 1 or head, query or 1, key] bool or None (all); `causal`: only keys up to the query; `bias` is
    additive.
    """

    keys: Bool[Tensor, "..."] | None
    causal: bool
    bias: Float[Tensor, "..."] | None

    @classmethod
    def read(cls, module: Any, query: Tensor, mask: Tensor | None, settings: dict[str, Any]) -> "Visible":
        """From what the attention interface was called with.

        Boolean masks say what is seen; additive ones may carry a bias too. Without a mask, the keyword and then the
        module's own `is_causal` decide, as in the backends.
        """
        bias = settings.get("position_bias")
        causal = False
        if mask is None:
            flag = settings.get("is_causal")
            causal = bool(getattr(module, "is_causal", False) if flag is None else flag) and query.shape[2] > 1
            return cls(None, causal, bias)
        if mask.dtype == torch.bool:
            return cls(mask, False, bias)
        seen = mask > torch.finfo(mask.dtype).min / 2
        added = torch.where(seen, mask, 0.0)
        if not bool(added.any()):
            return cls(None if bool(seen.all()) else seen, False, bias)
        return cls(None if bool(seen.all()) else seen, False, added if bias is None else bias + added)


@torch.no_grad()
def attention_rows(
    query: Float[Tensor, "sequence head query dim"],
    key: Float[Tensor, "sequence key_head key dim"],
    visible: Visible,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    real: Bool[Tensor, "sequence query"] | None = None,
    median: bool = False,
    histogram: Tensor | None = None,
) -> dict[str, Tensor]:
    """Per row [sequence, head, query]: `entropy` (nats), `row_max`, `row_min` and `row_median` over visible keys,
    `first_mass`, `keys` (visible ones), `score` (sum of q·k·scale over them); per sequence [sequence, head]:
    `row_similarity`, the mean cosine between the rows of real queries; with bin edges in `histogram`,
    `score_histogram` [sequence, head, bin].
    """
    if query.dtype.itemsize < 4:
        query, key = query.float(), key.float()
    walk = _Walk(query.contiguous(), key, visible, scale, softcap, sinks, real)
    if median:
        walk.sums["median"] = torch.empty_like(walk.sums["total"])
    if histogram is not None:
        walk.counts = query.new_zeros(*query.shape[:2], len(histogram) + 1)
        walk.edges = histogram.to(query)
    for block in walk.blocks():
        walk.block(*block)
    return walk.result()


class _Walk:
    """The walk over blocks [sequence, head, query, key]: several whole sequences, or some heads and queries of one.

    In the loop only what needs the scores is summed, with e = exp(score − shift), shift 0 unless scores are large:
    Σe, Σe·(score − shift), ‖e‖, extremes. Everything else follows from these, once, in `result`.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        visible: Visible,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
        real: Tensor | None,
    ) -> None:
        self.q, self.k = query, key.repeat_interleave(query.shape[1] // key.shape[1], 1).contiguous()
        self.visible, self.scale, self.softcap, self.sinks = visible, scale, softcap, sinks
        self.spoiled = None if bool((self.q.sum() + self.k.sum()).isfinite()) else self._set_aside(visible)
        sequences, self.heads, self.queries, _ = self.q.shape
        self.keys = self.k.shape[2]
        self.hidden = None if visible.keys is None else ~visible.keys[..., : self.keys]
        self.first = self._first_key()
        self.real = self.q.new_ones(sequences, self.queries) if real is None else real.to(self.q.dtype)
        names = ("total", "weighted", "length", "shift", "largest", "smallest", "first", "score")
        self.sums = {name: self.q.new_zeros(sequences, self.heads, self.queries) for name in names}
        self.unit_rows = self.q.new_zeros(sequences, self.heads, 1, self.keys)
        self.counts = self.edges = torch.empty(0)
        self.buffers = self.q.new_empty(2, 0)

    def _set_aside(self, visible: Visible) -> Tensor:
        """Vectors with NaN or Inf made zero; True for the rows [sequence, head, query] that they leave undefined."""
        finite_q, finite_k = (x.isfinite().all(-1) for x in (self.q, self.k))
        self.q, self.k = (torch.where(f.unsqueeze(-1), x, 0.0) for f, x in ((finite_q, self.q), (finite_k, self.k)))
        sees = (
            ~finite_k.unsqueeze(2)
            if visible.keys is None
            else visible.keys[..., : self.k.shape[2]] & ~finite_k.unsqueeze(2)
        )
        sees = sees.expand(*self.q.shape[:3], -1)
        return ~finite_q | (sees.tril() if visible.causal else sees).any(-1)

    def _first_key(self) -> Tensor | None:
        """Index [sequence, 1, 1, 1] of the first key that any query sees, where it is not 0 (left padding)."""
        if self.hidden is None:
            return None
        any_query = ~self.hidden.flatten(1, 2).all(1)
        if bool(any_query[:, 0].all()):
            return None
        return any_query.to(torch.uint8).argmax(-1).view(-1, 1, 1, 1).expand(len(self.q), 1, 1, 1)

    def blocks(self) -> Iterator[tuple[slice, slice, slice]]:
        """(sequences, heads, queries) of each block."""
        rows = min(self.queries, max(1, BLOCK // self.keys))
        heads = min(self.heads, max(1, BLOCK // (rows * self.keys)))
        sequences = max(1, BLOCK // (heads * rows * self.keys)) if heads == self.heads else 1
        steps = ((len(self.q), sequences), (self.heads, heads), (self.queries, rows))
        ranges = [[slice(i, min(i + step, end)) for i in range(0, end, step)] for end, step in steps]
        yield from itertools.product(*ranges)

    def block(self, sequences: slice, heads: slice, queries: slice) -> None:
        q, k = (
            self.q[sequences, heads, queries],
            self.k[sequences, heads, : queries.stop if self.visible.causal else self.keys],
        )
        s, e = self._scratch((*q.shape[:3], k.shape[2]))
        flat = s.view(-1, *s.shape[2:])
        torch.baddbmm(flat, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0, alpha=self.scale, out=flat)
        out = {name: value[sequences, heads, queries] for name, value in self.sums.items()}
        real = self.real[sequences, None, queries]
        hidden = self._hidden_pairs(sequences, queries, heads, k.shape[2])
        self._scores(s, e, hidden, real, out["score"], (sequences, heads))
        if self.softcap is not None:
            s.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.visible.bias is not None:
            s.add_(_part(self.visible.bias, sequences, heads, queries)[..., : k.shape[2]])
        if hidden is None:
            torch.amin(s, -1, out=out["smallest"])
        else:
            torch.amin(e.copy_(s).masked_fill_(hidden, torch.inf), -1, out=out["smallest"])
            s.masked_fill_(hidden, HIDDEN)
        torch.amax(s, -1, out=out["largest"])
        if s.is_cuda or bool((out["largest"].abs() > SHIFT_ABOVE).any()):
            s.sub_(out["shift"].copy_(out["largest"]).unsqueeze(-1))
        torch.sum(torch.exp(s, out=e), -1, out=out["total"])
        torch.sum(s.mul_(e), -1, out=out["weighted"])
        torch.linalg.vector_norm(e, dim=-1, out=out["length"])
        out["first"].copy_(
            e[..., 0] if self.first is None else e.gather(-1, self.first[sequences].expand(*e.shape[:3], 1))[..., 0]
        )
        self.unit_rows[sequences, heads, :, : k.shape[2]] += torch.matmul((real / out["length"]).unsqueeze(-2), e)
        if "median" in out:
            out["median"].copy_(
                e.quantile(0.5, -1) if hidden is None else e.masked_fill(hidden, torch.nan).nanquantile(0.5, -1)
            )

    def _scratch(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        size = math.prod(shape)
        if self.buffers.shape[1] < size:
            self.buffers = self.q.new_empty(2, size)
        return self.buffers[0, :size].view(shape), self.buffers[1, :size].view(shape)

    def _hidden_pairs(self, sequences: slice, queries: slice, heads: slice, keys: int) -> Tensor | None:
        """True where a pair is not visible, broadcastable to the block; None where all are."""
        if self.visible.causal:
            i = torch.arange(queries.start, queries.stop, device=self.q.device)
            return torch.arange(keys, device=self.q.device) > i[None, None, :, None]
        return None if self.hidden is None else _part(self.hidden, sequences, heads, queries)

    def _scores(
        self, s: Tensor, spare: Tensor, hidden: Tensor | None, real: Tensor, score: Tensor, where: tuple[slice, slice]
    ) -> None:
        """Sum of scores over visible pairs where a mask makes it needed here, and the histogram of scores of real
        queries.
        """
        if self.hidden is not None and hidden is not None:
            torch.sum(torch.mul(s, ~hidden, out=spare), -1, out=score)
        if self.counts.numel():
            weight = real.unsqueeze(-1) * (torch.ones_like(s) if hidden is None else (~hidden).to(s.dtype).expand_as(s))
            self.counts[where].scatter_add_(2, torch.bucketize(s, self.edges).flatten(2), weight.flatten(2))

    def _score_sums(self) -> Tensor:
        """Σ q·k·scale over the visible keys of each row; without a mask from sums of keys."""
        if self.hidden is not None:
            return self.sums["score"]
        keys = self.k.cumsum(2)[:, :, : self.queries] if self.visible.causal else self.k.sum(2, keepdim=True)
        return (self.q * keys).sum(-1) * self.scale

    def _key_counts(self) -> Tensor:
        if self.hidden is not None:
            return (~self.hidden).sum(-1).to(self.q.dtype).expand(self.q.shape[:3])
        counts = (
            torch.arange(1, self.queries + 1, device=self.q.device)
            if self.visible.causal
            else self.q.new_tensor(self.keys)
        )
        return counts.to(self.q.dtype).expand(self.q.shape[:3])

    def result(self) -> dict[str, Tensor]:
        """The statistics of `attention_rows` from the sums of the walk."""
        sums = self.sums
        total, weighted, shift = sums["total"], sums["weighted"], sums["shift"]
        if self.sinks is not None:
            sink = self.sinks.to(self.q).view(1, -1, 1) - shift
            total, weighted = total + sink.exp(), weighted + sink * sink.exp()
        rows = {
            "entropy": (total.log() - weighted / total).clamp_(min=0),
            "row_max": (sums["largest"] - shift).exp() / total,
            "row_min": (sums["smallest"] - shift).exp() / total,
            "first_mass": sums["first"] / total,
            "score": self._score_sums(),
        }
        if "median" in sums:
            rows["row_median"] = sums["median"] / total
        n = self.real.sum(-1).double().unsqueeze(-1)
        inside = self.unit_rows.squeeze(2).double().square().sum(-1) - n
        similarity = torch.where(n > 1, inside / (n * (n - 1)).clamp(min=1), torch.nan)
        if self.spoiled is not None:
            similarity = similarity.masked_fill((self.spoiled & self.real.bool().unsqueeze(1)).any(-1), torch.nan)
            rows = {name: value.masked_fill(self.spoiled, torch.nan) for name, value in rows.items()}
        rows |= {"keys": self._key_counts(), "row_similarity": similarity}
        return rows | {"score_histogram": self.counts} if self.counts.numel() else rows


def _part(x: Tensor, sequences: slice, heads: slice, queries: slice) -> Tensor:
    """The block's part of a tensor whose axes [sequence, head, query, key] may have length 1."""
    for axis, part in enumerate((sequences, heads, queries)):
        if x.shape[axis] > 1:
            x = x.narrow(axis, part.start, part.stop - part.start)
    return x
