"""Read from the arguments of an attention call which query sees which key, and compute its logits."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

HIDDEN = -1e30
"""The score of a key that is not seen: finite, so that gradients are."""
FAR_BELOW = 5e3
"""A number added to a score that lies this far below the largest of its row hides the key: its weight is 0 in float32
whatever the scores. So −10,000 (older BERT), −65,504, −1e9, −1e30, the smallest number of a type and −∞ are alike.
"""
LOWEST = {torch.float64: -744.4}
"""Natural logarithm of the smallest weight that is not 0, by the type in which a softmax computes."""
LOWEST_OF_FLOAT32 = -103.2
"""The same of float32, in which a softmax of numbers of 16 bits is computed too."""
BY_MASK_ALONE = ("eager", "flex_attention")
"""Backends for which a missing mask means that every key is seen: no flag makes them causal."""
MOST_SCORES = 1 << 24
"""Scores that are held at once to find out which weights are 0."""


@dataclass(frozen=True)
class Span:
    """A range of keys: those from `start[i]` to `stop[i]` are visible in sequence i.

    They are visible to every query or, if `causal`, to the queries that do not come before them.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]
    causal: bool


@dataclass(frozen=True)
class Masking:
    """Which query sees which key, and what is added to the logits (`bias`).

    `keys` is a bool tensor [sequence, 1 or head, query or 1, key], or None (all). `causal`: only keys up to the query.
    """

    keys: Bool[Tensor, "..."] | None
    causal: bool
    bias: Float[Tensor, "..."] | None
    known: dict[tuple[int, int, int], Span | None] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(
        cls, module: Any, query: Tensor, mask: Any, settings: dict[str, Any], *, keys: int = 0, backend: str = ""
    ) -> "Masking":
        """Read which query sees which key from the arguments of an attention call, as its backend understands them.

        A boolean mask says what is visible, and so does a mask of other integers (not 0). A float mask is added to the
        scores: it hides the keys that lie `FAR_BELOW` the others of their row, and is a bias for the rest. Without a
        mask, the keyword `is_causal` decides, then the module's own. FlashAttention has its padding in a mask
        [sequence, key], and its window in a keyword. `keys` is the number of keys, if it is not that of queries.
        """
        bias, keys = settings.get("position_bias"), keys or query.shape[2]
        if is_block_mask(mask):
            return cls(_expand_block_mask(mask, query.device), False, bias)
        if "flash" in backend or (isinstance(mask, Tensor) and mask.dim() == 2):
            return cls._read_flash(module, query, mask, settings, keys)
        if mask is None:
            causal = _is_causal(module, query, settings, otherwise=backend == "sdpa")
            return cls(None, causal and backend not in BY_MASK_ALONE, bias)
        if not mask.is_floating_point():
            return cls(mask if mask.dtype == torch.bool else mask != 0, False, bias)
        lowest = mask.amax(-1, keepdim=True) - FAR_BELOW
        seen = (mask >= lowest) & (mask > torch.finfo(mask.dtype).min / 2)  # the latter of rows that see nothing
        added = torch.where(seen, mask, 0.0)
        if bool(added.any()):
            bias = added if bias is None else bias + added
        return cls(None if bool(seen.all()) else seen, False, bias)

    @classmethod
    def _read_flash(
        cls, module: Any, query: Tensor, mask: Tensor | None, settings: dict[str, Any], keys: int
    ) -> "Masking":
        """Read a FlashAttention call, where padding, packed sequences, window and causality are given separately.

        keys   the number of keys
        settings   keyword arguments of the call
        """
        bias, window, queries = settings.get("position_bias"), settings.get("sliding_window"), query.shape[2]
        causal = _is_causal(module, query, settings)
        real = None
        if mask is not None:  # keys behind the mask are of a cache that is not full yet
            real = nn.functional.pad(mask[:, -keys:] != 0, (0, max(0, keys - mask.shape[1])))
        packed = _packed_sequences(query, settings, keys) if mask is None else None
        if window is None and packed is None and (queries == keys or not causal):
            return cls._from_padding(real, causal, keys, bias)
        # padding is taken out before, so that distances are those between real tokens; the last query stands beside
        # the last key
        position = torch.arange(keys, device=query.device)[None] if real is None else real.cumsum(-1) - 1
        distance = position[:, keys - queries :, None] - position[:, None, :]
        seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            seen = seen & (distance.abs() < window)
        if packed is not None:
            seen = seen & packed
        if real is not None:
            seen = seen & real[:, None, :]
        return cls(seen.unsqueeze(1), False, bias)

    @classmethod
    def _from_padding(cls, real: Tensor | None, causal: bool, keys: int, bias: Any) -> "Masking":
        """Return a masking by padding, and by causality if `causal`.

        real   which keys are not padding [sequence, key]; None: all
        """
        if real is None or not causal:
            return cls(None if real is None else real[:, None, None, :], causal, bias)
        earlier = torch.ones(keys, keys, dtype=torch.bool, device=real.device).tril()
        return cls(real[:, None, None, :] & earlier, False, bias)

    def without_flag(self, queries: int, keys: int) -> "Masking":
        """Return an equal masking that has a mask of pairs instead of both a mask and the flag `causal`.

        Returns itself if it does not have both.

        queries, keys   their numbers in the call
        """
        if self.keys is None or not self.causal:
            return self
        earlier = torch.ones(queries, keys, dtype=torch.bool, device=self.keys.device).tril()
        return Masking(self.keys[..., :keys] & earlier, False, self.bias)

    @cached_property
    def spread(self) -> float:
        """Return the largest difference between what is added to the scores (bias) of two visible keys of one query."""
        if self.bias is None or not self.bias.numel():
            return 0.0
        bias, keys = self.bias, self.keys
        if keys is None:
            low, high = bias.amin(-1), bias.amax(-1)
        else:
            keys = keys[..., : bias.shape[-1]]
            low = torch.where(keys, bias, torch.inf).amin(-1)
            high = torch.where(keys, bias, -torch.inf).amax(-1)
        return float((high - low).amax())

    def span(self, sequences: int, queries: int, keys: int) -> Span | None:
        """Return the masking as one range of keys per sequence, which needs no mask; None if it is not that simple.

        The result is kept for all layers that share the mask.
        """
        sizes = sequences, queries, keys
        if sizes not in self.known:
            self.known[sizes] = self._span(*sizes)
        return self.known[sizes]

    def _span(self, sequences: int, queries: int, keys: int) -> Span | None:
        """Compute the range of visible keys per sequence; None if the visible keys are not one range."""
        if self.keys is None:
            return Span((0,) * sequences, (keys,) * sequences, self.causal)
        if self.causal or self.keys.shape[1] > 1:
            return None
        seen = self.keys[:, 0, :, :keys]  # [sequence or 1, query or 1, key]
        by_any = seen.any(1)
        start = by_any.to(torch.uint8).argmax(1)
        stop = start + by_any.sum(1)
        position = torch.arange(keys, device=seen.device)
        stretch = (position >= start[:, None]) & (position < stop[:, None])
        every = stretch.unsqueeze(1)
        causal = bool((seen != every).any())
        if causal:
            upward = position <= torch.arange(seen.shape[1], device=seen.device)[:, None]
            if seen.shape[1] != queries or bool((seen != (every & upward)).any()):
                return None
        each = sequences // len(seen)
        return Span(tuple(start.cpu().tolist() * each), tuple(stop.cpu().tolist() * each), causal)


@dataclass(frozen=True)
class Call:
    """The arguments of one attention call.

    `result` computes, at most once, what the model itself makes of the call: the output of attention [sequence, query,
    head, dim], alone or first in a tuple, or what `finish` makes of that output.
    """

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    settings: dict[str, Any]
    known: Masking | None = None
    by: str = "interface"
    backend: str = ""
    result: Callable[[], Any] | None = field(default=None, compare=False, repr=False)
    finish: Callable[[Tensor], Tensor] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def masking(self) -> Masking:
        """Return which query sees which key: by the mask, and without pairs whose weight is 0 in the model's own
        arithmetic.
        """
        masking = self.known or self.read_masking()
        return self._without_zeros(masking) if self._may_vanish(masking) else masking

    def read_masking(self) -> Masking:
        """Read which query sees which key by the mask only, whatever the queries and keys are."""
        keys = self.key.shape[2]
        return Masking.read(self.module, self.query, self.mask, self.settings, keys=keys, backend=self.backend)

    def _may_vanish(self, masking: Masking) -> bool:
        """Return whether the bias may be so low that some weights become exactly 0 in the model's own arithmetic."""
        if masking.bias is None:
            return False
        lowest = LOWEST.get(self.query.dtype, LOWEST_OF_FLOAT32)
        reach = masking.spread + 2 * self.largest_score()
        return not reach < -lowest  # of NaN too

    def largest_score(self) -> float:
        """Return an upper bound of |score| before a bias is added: longest query times longest key, or the soft cap."""
        if self.settings.get("softcap") is not None:
            return float(self.settings["softcap"])
        if not self.query.numel() or not self.key.numel():
            return 0.0
        longest = [torch.linalg.vector_norm(x.float(), dim=-1).max() for x in (self.query, self.key)]
        return float(longest[0] * longest[1]) * abs(self.scale)

    def _without_zeros(self, masking: Masking) -> Masking:
        """Return a masking that also hides the pairs whose computed weight is 0."""
        heads, queries = self.query.shape[1:3]
        rows = max(1, MOST_SCORES // max(1, len(self.query) * heads * self.key.shape[2]))
        plain = replace(self, known=masking)
        exact = torch.float64 if self.query.dtype == torch.float64 else torch.float32
        parts = []
        for start in range(0, queries, rows):
            scores = plain.scores(slice(start, start + rows), masking).to(exact)
            parts.append(scores.softmax(-1)[..., : self.key.shape[2]] > 0)
        seen = torch.cat(parts, 2)
        if masking.keys is not None:  # a row that sees nothing goes on to see nothing
            seen &= masking.keys[..., : self.key.shape[2]]
        if masking.causal:
            seen &= torch.ones(seen.shape[2:], dtype=torch.bool, device=seen.device).tril()
        return masking if bool((seen | ~_expand_pairs(masking, seen)).all()) else Masking(seen, False, masking.bias)

    @property
    def scale(self) -> float:
        """Return the factor of q·k in the scores: the model's own, or 1/√d if the call names none."""
        scale = self.settings.get("scaling")
        return float(self.query.shape[-1] ** -0.5 if scale is None else scale)

    def weights(self, rows: int | None = None) -> Float[Tensor, "sequence head row key"]:
        """Return the attention weights of the first `rows` queries (None: all) over the keys.

        If the head has a sink, they add up to less than 1.
        """
        return self.scores(slice(rows)).softmax(-1)[..., : self.key.shape[2]]

    def scores(
        self, rows: slice | int | None = None, masking: Masking | None = None
    ) -> Float[Tensor, "sequence head row outcome"]:
        """Return the logits of some queries as the softmax takes them: hidden keys are `HIDDEN`, sinks are a last
        column.

        `rows` says which queries, or the first how many; None: all.
        """
        rows = rows if isinstance(rows, slice) else slice(rows)
        masking, query = masking or self.masking, self.query[:, :, rows]
        key = self.key.repeat_interleave(query.shape[1] // self.key.shape[1], 1)
        scores: Tensor = torch.matmul(query, key.transpose(2, 3)) * self.scale
        if self.settings.get("softcap") is not None:
            scores = torch.tanh(scores / self.settings["softcap"]) * self.settings["softcap"]
        if masking.bias is not None:
            scores = scores + _rows_of(masking.bias, rows)
        if masking.keys is not None:
            scores = scores.masked_fill(~_rows_of(masking.keys, rows)[..., : key.shape[2]], HIDDEN)
        if masking.causal:
            above = torch.ones(self.query.shape[2], key.shape[2], dtype=torch.bool, device=key.device).triu(1)
            scores = scores.masked_fill(above[rows], HIDDEN)
        if self.settings.get("s_aux") is not None:
            sink = self.settings["s_aux"].to(scores).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, sink), -1)
        return scores


def is_block_mask(mask: Any) -> bool:
    """Return whether a mask is a block mask of flex attention (a function of pairs)."""
    return mask is not None and not isinstance(mask, Tensor) and hasattr(mask, "mask_mod")


def _expand_block_mask(mask: Any, device: torch.device) -> Bool[Tensor, "sequence head query key"]:
    """Return which query sees which key by a block mask of flex attention."""
    from torch.nn.attention.flex_attention import create_mask

    sequences, heads, queries, keys = mask.shape
    return create_mask(mask.mask_mod, sequences, heads, queries, keys, device=device)


def _is_causal(module: Any, query: Tensor, settings: dict[str, Any], *, otherwise: bool = False) -> bool:
    """Return whether a call without a mask is causal: by its keyword `is_causal`, else by its module, else `otherwise`.

    A single query sees every key, so it is never causal.
    """
    flag = settings.get("is_causal")
    return bool(getattr(module, "is_causal", otherwise) if flag is None else flag) and query.shape[2] > 1


def _packed_sequences(query: Tensor, settings: dict[str, Any], keys: int) -> Tensor | None:
    """Return which pairs [batch, query, key] are of the same sequence, if several sequences were packed into one row.

    The sequences are told from each other by their cumulative lengths (`cu_seq_lens_k` in `settings`), or by position
    ids that start again. None if nothing was packed.

    settings   keyword arguments of the attention call
    keys       the number of keys in a row of the batch
    """
    ends, position = settings.get("cu_seq_lens_k"), settings.get("position_ids")
    if isinstance(ends, Tensor):
        index = torch.arange(len(query) * keys, device=query.device)
        number = torch.bucketize(index, ends[1:].to(index), right=True).view(-1, keys)
    elif isinstance(position, Tensor) and len(query) == 1 and position.shape == (1, keys):
        first = position.min()
        if not bool((position - first != torch.arange(keys, device=position.device)).any()):
            return None
        number = (position == first).cumsum(-1)
    else:
        return None
    return number[:, keys - query.shape[2] :, None] == number[:, None, :]


def _rows_of(x: Tensor, rows: slice) -> Tensor:
    """Return the chosen queries of a tensor [sequence, head, query, key] whose query axis may have length 1.

    rows   the chosen queries
    """
    return x if x.shape[2] == 1 else x[:, :, rows]


def _expand_pairs(masking: Masking, like: Tensor) -> Tensor:
    """Return which query sees which key, in the shape of `like` [sequence, head, query, key]."""
    seen = torch.ones_like(like) if masking.keys is None else masking.keys[..., : like.shape[3]].expand(like.shape)
    if masking.causal:
        seen = seen & torch.ones(like.shape[2:], dtype=torch.bool, device=like.device).tril()
    return seen
