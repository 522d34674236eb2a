"""Statistics of attention rows from queries, keys and mask, block by block: no map over all heads is ever kept.

The weights are those of the model's own softmax: its scale, its mask, its position bias, its soft cap, its sinks.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

HIDDEN = -1e30  # a score no softmax sees; finite, so that weight 0 times score is 0
BLOCK = 1 << 19  # scores per block: two such float32 buffers stay in a core's cache


@dataclass(frozen=True)
class Visible:
    """Who sees whom, and what is added to the scores.

    `keys` [sequence, 1 or head, query or 1, key] bool or None (all); `causal`: only keys up to the query; `bias` is additive.
    """

    keys: Bool[Tensor, "..."] | None
    causal: bool
    bias: Float[Tensor, "..."] | None

    @classmethod
    def read(cls, module: Any, query: Tensor, mask: Tensor | None, settings: dict[str, Any]) -> "Visible":
        """From what the attention interface was called with.

        Boolean masks say what is seen; additive ones may carry a bias too. Without a mask, the keyword and then the module's own
        `is_causal` decide, as in the backends.
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
    """Per row [sequence, head, query]: `entropy` (nats), `row_max`, `row_min` and `row_median` over visible keys, `first_mass`, `keys`
    (visible ones), `score` (sum of q·k·scale over them); per sequence [sequence, head]: `row_similarity`, the mean cosine between
    the rows of real queries; with bin edges in `histogram`, `score_histogram` [sequence, head, bin].
    """
    walk = _Walk(query, key, visible, scale, softcap, sinks, real, median, histogram)
    for block in walk.blocks():
        walk.block(*block)
    return walk.result()


class _Walk:
    """The walk over blocks [sequence, head, query, key]: several whole sequences, or some heads and queries of one."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        visible: Visible,
        scale: float,
        softcap: float | None,
        sinks: Tensor | None,
        real: Tensor | None,
        median: bool,
        edges: Tensor | None,
    ) -> None:
        if query.dtype.itemsize < 4:
            query, key = query.float(), key.float()
        self.q = query.contiguous()
        self.k = key.repeat_interleave(query.shape[1] // key.shape[1], 1).contiguous()
        self.visible, self.scale, self.softcap, self.edges = visible, scale, softcap, edges
        self.sinks = None if sinks is None else sinks.to(self.q).view(1, -1, 1)
        sequences, self.heads, self.queries, _ = self.q.shape
        self.keys = self.k.shape[2]
        self.seen = None if visible.keys is None else visible.keys[..., : self.keys]
        self.first = self._first_key()
        real = torch.ones(sequences, self.queries, device=query.device) if real is None else real
        self.real = real.to(self.q.dtype)
        shape = (sequences, self.heads, self.queries)
        names = ["entropy", "row_max", "row_min", "first_mass", "keys", "score", *(["row_median"] if median else [])]
        self.rows = {name: self.q.new_empty(shape) for name in names}
        self.unit_rows = self.q.new_zeros(*shape[:2], 1, self.keys)
        self.counts = None if edges is None else self.q.new_zeros(*shape[:2], len(edges) + 1)
        self.buffers = self.q.new_empty(2, 0)

    def blocks(self) -> Iterator[tuple[slice, slice, slice]]:
        """(sequences, heads, queries) of each block."""
        rows = min(self.queries, max(1, BLOCK // self.keys))
        heads = min(self.heads, max(1, BLOCK // (rows * self.keys)))
        sequences = max(1, BLOCK // (heads * rows * self.keys)) if heads == self.heads else 1
        for i in range(0, len(self.q), sequences):
            for j in range(0, self.heads, heads):
                for t in range(0, self.queries, rows):
                    yield slice(i, min(i + sequences, len(self.q))), slice(j, min(j + heads, self.heads)), slice(t, min(t + rows, self.queries))

    def _first_key(self) -> Tensor | None:
        """Index [sequence, 1, 1, 1] of the first key that any query sees, where it is not 0 (left padding)."""
        if self.seen is None:
            return None
        any_query = self.seen.flatten(1, 2).any(1)
        if bool(any_query[:, 0].all()):
            return None
        return any_query.to(torch.uint8).argmax(-1).view(-1, 1, 1, 1).expand(len(self.q), 1, 1, 1)

    def block(self, sequences: slice, heads: slice, queries: slice) -> None:
        q = self.q[sequences, heads, queries]
        k = self.k[sequences, heads, : queries.stop if self.visible.causal else self.keys]
        s, p = self._scratch((*q.shape[:3], k.shape[2]))
        flat = s.view(-1, *s.shape[2:])
        torch.baddbmm(flat, q.flatten(0, 1), k.flatten(0, 1).transpose(1, 2), beta=0, alpha=self.scale, out=flat)
        out = {name: value[sequences, heads, queries] for name, value in self.rows.items()}
        seen = self._seen(sequences, heads, queries, k.shape[2])
        real = self.real[sequences, None, queries]
        self._scores(s, seen, real, out, None if self.counts is None else self.counts[sequences, heads])
        if self.softcap is not None:
            s.div_(self.softcap).tanh_().mul_(self.softcap)
        if self.visible.bias is not None:
            s.add_(_part(self.visible.bias, sequences, heads, queries)[..., : k.shape[2]])
        if seen is not None:
            s.masked_fill_(~seen, HIDDEN)
        torch.softmax(s, -1, out=p)
        largest, peak = s.amax(-1), p.amax(-1)
        log_sum, expected = largest - peak.log(), _row_dot(p, s)
        if self.sinks is not None:
            with_sink = torch.logaddexp(log_sum, self.sinks[:, heads])
            share = (log_sum - with_sink).exp()
            p.mul_(share.unsqueeze(-1))
            expected = share * expected + (1 - share) * self.sinks[:, heads]
            log_sum, peak = with_sink, peak * share
        out["entropy"].copy_((log_sum - expected).clamp_(min=0))
        out["row_max"].copy_(peak)
        first = None if self.first is None else self.first[sequences].expand(*p.shape[:3], 1)
        out["first_mass"].copy_(p[..., 0] if first is None else p.gather(-1, first)[..., 0])
        weight = real * _row_dot(p, p).rsqrt()
        self.unit_rows[sequences, heads, :, : p.shape[-1]] += torch.matmul(weight.unsqueeze(-2), p)
        _order(p, s, seen, out)

    def _scratch(self, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        size = math.prod(shape)
        if self.buffers.shape[1] < size:
            self.buffers = self.q.new_empty(2, size)
        return self.buffers[0, :size].view(shape), self.buffers[1, :size].view(shape)

    def _seen(self, sequences: slice, heads: slice, queries: slice, keys: int) -> Tensor | None:
        """True where a pair is visible, broadcastable to the block; None where all are."""
        if self.visible.causal:
            i = torch.arange(queries.start, queries.stop, device=self.q.device)
            return torch.arange(keys, device=self.q.device) <= i[None, None, :, None]
        return None if self.seen is None else _part(self.seen, sequences, heads, queries)

    def _scores(self, s: Tensor, seen: Tensor | None, real: Tensor, out: dict[str, Tensor], counts: Tensor | None) -> None:
        """Sum of scores over visible pairs, their number, and the histogram of scores of real queries."""
        if seen is None:
            out["keys"].fill_(s.shape[-1])
            out["score"].copy_(s.sum(-1))
        else:
            out["keys"].copy_(seen.sum(-1))
            out["score"].copy_(_row_dot(seen.to(s.dtype).expand_as(s), s))
        if counts is not None and self.edges is not None:
            weight = real.unsqueeze(-1).expand_as(s) if seen is None else real.unsqueeze(-1) * seen.to(s.dtype)
            counts.scatter_add_(2, torch.bucketize(s, self.edges).flatten(2), weight.expand_as(s).flatten(2))

    def result(self) -> dict[str, Tensor]:
        n = self.real.sum(-1).double().unsqueeze(-1)
        inside = self.unit_rows.squeeze(2).double().square().sum(-1) - n
        similarity = torch.where(n > 1, inside / (n * (n - 1)).clamp(min=1), torch.nan)
        result = {**self.rows, "row_similarity": similarity}
        return result if self.counts is None else {**result, "score_histogram": self.counts}


def _part(x: Tensor, sequences: slice, heads: slice, queries: slice) -> Tensor:
    """The block's part of a tensor whose axes [sequence, head, query, key] may have length 1."""
    for axis, part in enumerate((sequences, heads, queries)):
        if x.shape[axis] > 1:
            x = x.narrow(axis, part.start, part.stop - part.start)
    return x


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b)


def _order(p: Tensor, spare: Tensor, seen: Tensor | None, out: dict[str, Tensor]) -> None:
    """Smallest (and median) weight among visible keys; `spare` is overwritten."""
    if seen is None:
        out["row_min"].copy_(p.amin(-1))
    else:
        out["row_min"].copy_(spare.copy_(p).masked_fill_(~seen, torch.inf).amin(-1))
    if "row_median" in out:
        out["row_median"].copy_(p.quantile(0.5, -1) if seen is None else p.masked_fill(~seen, torch.nan).nanquantile(0.5, -1))
