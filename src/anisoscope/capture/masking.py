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
    known: dict[tuple[int, int, int], Span | None] = field(
        default_factory=dict, compare=False, repr=False
    )

    @classmethod
    def read(
        cls,
        module: Any,
        query: Tensor,
        mask: Any,
        settings: dict[str, Any],
        *,
        keys: int = 0,
        backend: str = "",
    ) -> "Masking":
        """Read which query sees which key from the arguments of an attention call, as its backend understands them.

        A boolean mask is True for visible pairs, a mask of integers not 0. A float mask is added to the scores: it
        hides the keys that lie `FAR_BELOW` the others of their row, and is a bias for the rest. Without a mask, the
        keyword `is_causal` decides, or else the module's attribute. FlashAttention has its padding in a mask
        [sequence, key], and its window in a keyword.

        settings   keyword arguments of the call
        keys       the number of keys, if it is not that of queries
        backend    name of the attention function in transformers (`sdpa`, `eager` …)
        """
        bias = settings.get("position_bias")
        # Flex attention gives a function of two positions, not numbers.
        if is_block_mask(mask):
            return cls(_expand_block_mask(mask, query.device), False, bias)
        is_padding = isinstance(mask, Tensor) and mask.dim() == 2
        if "flash" in backend or is_padding:
            return cls._read_flash(
                module, query, mask, settings, keys or query.shape[2]
            )
        if mask is None:
            causal = _is_causal(module, query, settings, otherwise=backend == "sdpa")
            return cls(None, causal and backend not in BY_MASK_ALONE, bias)
        # Without `causal`: a mask that is not of FlashAttention hides later keys itself.
        if not mask.is_floating_point():
            return cls(mask if mask.dtype == torch.bool else mask != 0, False, bias)
        return cls._read_added(mask, bias)

    @classmethod
    def _read_added(cls, mask: Tensor, bias: Tensor | None) -> "Masking":
        """Read a float mask, which is added to the scores; `bias` is added too."""
        lowest = mask.amax(-1, keepdim=True) - FAR_BELOW
        # The second condition is for rows that see nothing, whose numbers are all as low.
        seen = (mask >= lowest) & (mask > torch.finfo(mask.dtype).min / 2)
        added = torch.where(seen, mask, 0.0)
        if bool(added.any()):
            bias = added if bias is None else bias + added
        # Without a mask and a bias, attention is computed faster.
        if bool(seen.all()):
            return cls(None, False, bias)
        return cls(seen, False, bias)

    @classmethod
    def _read_flash(
        cls,
        module: Any,
        query: Tensor,
        mask: Tensor | None,
        settings: dict[str, Any],
        keys: int,
    ) -> "Masking":
        """Read a FlashAttention call, where padding, packed sequences, window and causality are given separately.

        keys       the number of keys
        settings   keyword arguments of the call
        """
        bias = settings.get("position_bias")
        window = settings.get("sliding_window")
        queries = query.shape[2]
        causal = _is_causal(module, query, settings)
        real = None
        packed = None
        if mask is None:
            packed = _find_packed(query, settings, keys)
        else:
            # Keys behind the mask are of a cache that is not full yet.
            behind = max(0, keys - mask.shape[1])
            # [sequence, key]
            real = nn.functional.pad(mask[:, -keys:] != 0, (0, behind))
        # Without a window, distances between tokens do not matter, unless a cache shifts queries against keys.
        if window is None and packed is None and (queries == keys or not causal):
            return cls._from_padding(real, causal, keys, bias)
        # A window counts real tokens, so padding in between must not widen it.
        distance = _compute_distances(query, real, keys)
        seen = torch.ones_like(distance, dtype=torch.bool)
        # With causality, only the earlier half of a window is left, which reaches to
        # both sides.
        if causal:
            seen = distance >= 0
        if window is not None:
            seen = seen & (distance.abs() < window)
        if packed is not None:
            seen = seen & packed
        if real is not None:
            seen = seen & real[:, None, :]
        return cls(seen.unsqueeze(1), False, bias)

    @classmethod
    def _from_padding(
        cls, real: Tensor | None, causal: bool, keys: int, bias: Any
    ) -> "Masking":
        """Return a masking by padding, and by causality if `causal`.

        real   which keys are not padding [sequence, key]; None: all
        """
        if real is None:
            return cls(None, causal, bias)
        seen = real[:, None, None, :]
        if causal:
            seen = (
                seen
                & torch.ones(keys, keys, dtype=torch.bool, device=real.device).tril()
            )
        return cls(seen, False, bias)

    def without_flag(self, queries: int, keys: int) -> "Masking":
        """Return an equal masking without the flag `causal`, if this one has both the flag and a mask.

        The mask then also hides later keys. A masking that has only one of the two is returned as it is.

        queries, keys   their numbers in the call
        """
        if self.keys is None or not self.causal:
            return self
        earlier = torch.ones(
            queries, keys, dtype=torch.bool, device=self.keys.device
        ).tril()
        return Masking(self.keys[..., :keys] & earlier, False, self.bias)

    @cached_property
    def spread(self) -> float:
        """Return the largest difference between the biases (added to scores) of two visible keys of one query."""
        if self.bias is None or not self.bias.numel():
            return 0.0
        low = self.bias
        high = self.bias
        # Hidden keys must be neither the smallest nor the largest.
        if self.keys is not None:
            keys = self.keys[..., : self.bias.shape[-1]]
            low = torch.where(keys, self.bias, torch.inf)
            high = torch.where(keys, self.bias, -torch.inf)
        return float((high.amax(-1) - low.amin(-1)).amax())

    def span(self, sequences: int, queries: int, keys: int) -> Span | None:
        """Return the range of visible keys of each sequence, which can replace the mask; None if they are no range.

        The result is kept for all layers that share the mask.
        """
        sizes = sequences, queries, keys
        if sizes not in self.known:
            self.known[sizes] = self._compute_span(*sizes)
        return self.known[sizes]

    def _compute_span(self, sequences: int, queries: int, keys: int) -> Span | None:
        """Compute the range of visible keys per sequence; None if the visible keys are not one range."""
        if self.keys is None:
            return Span((0,) * sequences, (keys,) * sequences, self.causal)
        # A flag and a mask together, or masks that differ by head, are no single range.
        if self.causal or self.keys.shape[1] > 1:
            return None
        seen = self.keys[:, 0, :, :keys]  # [sequence or 1, query or 1, key]
        seen_by_any = seen.any(1)  # [sequence or 1, key]
        # `argmax` knows no booleans; of equal numbers it gives the first.
        start = seen_by_any.to(torch.uint8).argmax(1)
        # Right only if there are no gaps, which the comparison below shows.
        stop = start + seen_by_any.sum(1)
        position = torch.arange(keys, device=seen.device)
        in_range = (position >= start[:, None]) & (position < stop[:, None])
        in_range = in_range.unsqueeze(1)  # [sequence or 1, 1, key]
        causal = bool((seen != in_range).any())
        if causal:
            # Not the whole range for every query: up to its own position, or it is no range.
            not_later = (
                position <= torch.arange(seen.shape[1], device=seen.device)[:, None]
            )
            if seen.shape[1] != queries or bool((seen != (in_range & not_later)).any()):
                return None
        # A mask may be shared by all sequences.
        repeats = sequences // len(seen)
        starts = tuple(start.cpu().tolist() * repeats)
        stops = tuple(stop.cpu().tolist() * repeats)
        return Span(starts, stops, causal)


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
    finish: Callable[[Tensor], Tensor] | None = field(
        default=None, compare=False, repr=False
    )

    @cached_property
    def masking(self) -> Masking:
        """Return which query sees which key: what the mask shows, less pairs whose weight the model rounds to 0."""
        masking = self.known or self.read_masking()
        if self._may_vanish(masking):
            return self._hide_zeros(masking)
        return masking

    def read_masking(self) -> Masking:
        """Read which query sees which key from the mask alone; pairs whose weight is rounded to 0 count as visible."""
        keys = self.key.shape[2]
        return Masking.read(
            self.module,
            self.query,
            self.mask,
            self.settings,
            keys=keys,
            backend=self.backend,
        )

    def _may_vanish(self, masking: Masking) -> bool:
        """Return whether the bias may be so low that some weights become exactly 0 in the model's own arithmetic."""
        if masking.bias is None:
            return False
        lowest = LOWEST.get(self.query.dtype, LOWEST_OF_FLOAT32)
        reach = masking.spread + 2 * self.largest_score()
        # Not `>=`: a reach that is NaN may hide anything.
        return not reach < -lowest

    def largest_score(self) -> float:
        """Return an upper bound of |score| before a bias is added: longest query times longest key, or the soft cap."""
        if self.settings.get("softcap") is not None:
            return float(self.settings["softcap"])
        if not self.query.numel() or not self.key.numel():
            return 0.0
        longest_query = torch.linalg.vector_norm(self.query.float(), dim=-1).max()
        longest_key = torch.linalg.vector_norm(self.key.float(), dim=-1).max()
        return float(longest_query * longest_key) * abs(self.scale)

    def _hide_zeros(self, masking: Masking) -> Masking:
        """Return a masking that also hides the pairs whose attention weight is rounded to 0."""
        sequences, heads, queries = self.query.shape[:3]
        keys = self.key.shape[2]
        # A part of the queries at a time, since only which weights are 0 is kept.
        rows = max(1, MOST_SCORES // max(1, sequences * heads * keys))
        plain = replace(self, known=masking)
        exact = torch.float64 if self.query.dtype == torch.float64 else torch.float32
        parts = []
        for start in range(0, queries, rows):
            scores = plain.scores(slice(start, start + rows), masking).to(exact)
            parts.append(scores.softmax(-1)[..., :keys] > 0)
        seen = torch.cat(parts, 2)
        # A row that sees nothing has equal weights, and goes on to see nothing.
        if masking.keys is not None:
            seen &= masking.keys[..., :keys]
        if masking.causal:
            seen &= torch.ones(
                seen.shape[2:], dtype=torch.bool, device=seen.device
            ).tril()
        hides_more = not bool((seen | ~_expand_pairs(masking, seen)).all())
        if hides_more:
            return Masking(seen, False, masking.bias)
        return masking

    @property
    def scale(self) -> float:
        """Return the scale of the scores (scale · q·k): the one that the call names, or else 1/√(width of a head)."""
        scale = self.settings.get("scaling")
        return float(self.query.shape[-1] ** -0.5 if scale is None else scale)

    def weights(
        self, rows: int | None = None
    ) -> Float[Tensor, "sequence head row key"]:
        """Return the attention weights of the first `rows` queries (None: all) over the keys.

        If the head has a sink, they add up to less than 1.
        """
        return self.scores(slice(rows)).softmax(-1)[..., : self.key.shape[2]]

    def scores(
        self, rows: slice | int | None = None, masking: Masking | None = None
    ) -> Float[Tensor, "sequence head row outcome"]:
        """Compute the attention logits of some queries, as they enter the softmax.

        The logits of hidden keys are `HIDDEN`; if heads have learned sinks, these are one more column, the last.

        rows      a slice of queries, or a number: so many, from the first; None: all
        masking   which pairs are visible; None: that of the call
        """
        if not isinstance(rows, slice):
            rows = slice(rows)
        masking = masking or self.masking
        query = self.query[:, :, rows]
        key = self.key.repeat_interleave(query.shape[1] // self.key.shape[1], 1)
        scores: Tensor = torch.matmul(query, key.transpose(2, 3)) * self.scale
        # In the order of Gemma 2: cap, then bias and mask. A cap after the mask would
        # make hidden keys visible.
        softcap = self.settings.get("softcap")
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if masking.bias is not None:
            scores = scores + _select_queries(masking.bias, rows)
        if masking.keys is not None:
            hidden = ~_select_queries(masking.keys, rows)[..., : key.shape[2]]
            scores = scores.masked_fill(hidden, HIDDEN)
        if masking.causal:
            later = torch.ones(
                self.query.shape[2], key.shape[2], dtype=torch.bool, device=key.device
            ).triu(1)
            scores = scores.masked_fill(later[rows], HIDDEN)
        sinks = self.settings.get("s_aux")
        if sinks is not None:
            column = sinks.to(scores).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, column), -1)
        return scores


def is_block_mask(mask: Any) -> bool:
    """Return whether a mask is a block mask of flex attention, which is given by a function of query and key."""
    return (
        mask is not None and not isinstance(mask, Tensor) and hasattr(mask, "mask_mod")
    )


def _expand_block_mask(
    mask: Any, device: torch.device
) -> Bool[Tensor, "sequence head query key"]:
    """Turn a block mask of flex attention into a boolean mask: True if the query sees the key."""
    from torch.nn.attention.flex_attention import create_mask

    sequences, heads, queries, keys = mask.shape
    return create_mask(mask.mask_mod, sequences, heads, queries, keys, device=device)


def _is_causal(
    module: Any, query: Tensor, settings: dict[str, Any], *, otherwise: bool = False
) -> bool:
    """Return whether a call without a mask is causal: by its keyword `is_causal`, else by its module, else `otherwise`.

    A single query sees every key, so it is never causal.
    """
    if query.shape[2] <= 1:
        return False
    flag = settings.get("is_causal")
    if flag is None:
        flag = getattr(module, "is_causal", otherwise)
    return bool(flag)


def _find_packed(query: Tensor, settings: dict[str, Any], keys: int) -> Tensor | None:
    """Return which pairs [batch, query, key] are of the same sequence, if several sequences were packed into one row.

    The sequences are known by their cumulative lengths (`cu_seq_lens_k` in `settings`), or by position ids that start
    again. None if nothing was packed.

    settings   keyword arguments of the attention call
    keys       the number of keys in a row of the batch
    """
    ends = settings.get("cu_seq_lens_k")
    position = settings.get("position_ids")
    if isinstance(ends, Tensor):
        index = torch.arange(len(query) * keys, device=query.device)
        sequence = torch.bucketize(index, ends[1:].to(index), right=True).view(-1, keys)
    elif (
        isinstance(position, Tensor) and len(query) == 1 and position.shape == (1, keys)
    ):
        first = position.min()
        one_after_another = torch.arange(keys, device=position.device)
        if not bool((position - first != one_after_another).any()):
            return None
        # Each time the position ids begin again, a new sequence starts.
        sequence = (position == first).cumsum(-1)
    else:
        return None
    of_queries = sequence[:, keys - query.shape[2] :, None]
    return of_queries == sequence[:, None, :]


def _compute_distances(query: Tensor, real: Tensor | None, keys: int) -> Tensor:
    """Return by how many real tokens each key comes before each query [sequence or 1, query, key].

    real   which keys are not padding [sequence, key]; None: all
    keys   the number of keys; the last query is at the position of the last key
    """
    position = torch.arange(keys, device=query.device)[None]
    # Padding is taken out before, so that distances are those between real tokens.
    if real is not None:
        position = real.cumsum(-1) - 1
    of_queries = position[:, keys - query.shape[2] :]
    return of_queries[:, :, None] - position[:, None, :]


def _select_queries(x: Tensor, rows: slice) -> Tensor:
    """Return the chosen queries of a tensor [sequence, head, query, key] whose query axis may have length 1.

    rows   the chosen queries
    """
    if x.shape[2] == 1:
        return x
    return x[:, :, rows]


def _expand_pairs(masking: Masking, like: Tensor) -> Tensor:
    """Return which query sees which key, in the shape of `like` [sequence, head, query, key]."""
    seen = torch.ones_like(like)
    if masking.keys is not None:
        seen = masking.keys[..., : like.shape[3]].expand(like.shape)
    if masking.causal:
        seen = (
            seen
            & torch.ones(like.shape[2:], dtype=torch.bool, device=like.device).tril()
        )
    return seen
