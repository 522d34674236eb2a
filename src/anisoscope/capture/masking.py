"""Who sees whom in an attention call, read from what the attention interface was called with, and the scores."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

HIDDEN = -1e30
"""The score of a key that is not seen: finite, so that gradients are."""


@dataclass(frozen=True)
class Span:
    """Keys `start[i]` to `stop[i]` of sequence i are seen: by every query, or by those not before them (`causal`)."""

    start: tuple[int, ...]
    stop: tuple[int, ...]
    causal: bool


@dataclass(frozen=True)
class Masking:
    """Who sees whom, and what is added to the scores (`bias`). `causal`: only keys up to the query.

    `keys` [sequence, 1 or head, query or 1, key] bool or None (all).
    """

    keys: Bool[Tensor, "..."] | None
    causal: bool
    bias: Float[Tensor, "..."] | None
    known: dict[tuple[int, int, int], Span | None] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def read(cls, module: Any, query: Tensor, mask: Tensor | None, settings: dict[str, Any]) -> "Masking":
        """Read the mask from an attention call: boolean masks say what is seen, additive ones may carry a bias too.

        Without a mask, the keyword and then the module's own `is_causal` decide, as in the backends.
        """
        bias = settings.get("position_bias")
        if mask is None:
            flag = settings.get("is_causal")
            causal = bool(getattr(module, "is_causal", False) if flag is None else flag) and query.shape[2] > 1
            return cls(None, causal, bias)
        if mask.dtype == torch.bool:
            return cls(mask, False, bias)
        seen = mask > torch.finfo(mask.dtype).min / 2
        added = torch.where(seen, mask, 0.0)
        if bool(added.any()):
            bias = added if bias is None else bias + added
        return cls(None if bool(seen.all()) else seen, False, bias)

    def span(self, sequences: int, queries: int, keys: int) -> Span | None:
        """The same as one stretch of keys per sequence, which needs no mask; None where it is not that simple. Found
        once for all layers that share the mask.
        """
        sizes = sequences, queries, keys
        if sizes not in self.known:
            self.known[sizes] = self._span(*sizes)
        return self.known[sizes]

    def _span(self, sequences: int, queries: int, keys: int) -> Span | None:
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
    """One attention call: query [sequence, head, query, dim]; key and value [sequence, key_head, key, dim]; seen `by`
    which mechanism, which would hand it to `backend`.

    `result` gives what the model itself makes of the call, computed at most once: the output of attention [sequence,
    query, head, dim], alone or first in a tuple, or what `finish` makes of that output.
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
        """Who sees whom: `known` where the mask was read already."""
        return self.known or Masking.read(self.module, self.query, self.mask, self.settings)

    @property
    def scale(self) -> float:
        """The model's own; 1/√d where it names none."""
        scale = self.settings.get("scaling")
        return float(self.query.shape[-1] ** -0.5 if scale is None else scale)

    def weights(self, rows: int | None = None) -> Float[Tensor, "sequence head row key"]:
        """Weights of the first `rows` queries (None: all) over the keys; with a sink they add up to less than 1."""
        return self.scores(rows).softmax(-1)[..., : self.key.shape[2]]

    def scores(self, rows: int | None = None) -> Float[Tensor, "sequence head row outcome"]:
        """Scores of the first `rows` queries as the softmax sees them: unseen keys `HIDDEN`, sinks in a last column."""
        masking, query = self.masking, self.query[:, :, :rows]
        key = self.key.repeat_interleave(query.shape[1] // self.key.shape[1], 1)
        scores: Tensor = torch.matmul(query, key.transpose(2, 3)) * self.scale
        if self.settings.get("softcap") is not None:
            scores = torch.tanh(scores / self.settings["softcap"]) * self.settings["softcap"]
        if masking.bias is not None:
            scores = scores + masking.bias[:, :, :rows]
        if masking.keys is not None:
            scores = scores.masked_fill(~masking.keys[:, :, :rows, : key.shape[2]], HIDDEN)
        if masking.causal:
            above = torch.ones(scores.shape[2:], dtype=torch.bool, device=key.device).triu(1)
            scores = scores.masked_fill(above, HIDDEN)
        if self.settings.get("s_aux") is not None:
            sink = self.settings["s_aux"].to(scores).view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
            scores = torch.cat((scores, sink), -1)
        return scores
