"""Attention that does not go through the attention interface: its calls put together from hooks on its projections.

CANINE, whose local attention calls the same projections once for every chunk, and CvT. The calls are handed on as the
interface would hand them on, so that everything behind is one code path.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

PROJECTIONS = {
    "CanineSelfAttention": ("query", "key", "value"),
    "CvtSelfAttention": ("projection_query", "projection_key", "projection_value"),
}
"""Attention classes off the interface, and the names of their projections."""
AROUND = {"CanineAttention": "self", "CvtAttention": "attention"}
"""The modules that call them, once per layer, and under which name."""

Look = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]], None]


def prepare(model: nn.Module, look: Look) -> list[Any]:
    """Hook every attention module off the interface; `look` is called once per layer. Returns the hooks' handles."""
    handles: list[Any] = []
    for around in model.modules():
        inner = getattr(around, AROUND.get(type(around).__name__, ""), None)
        if isinstance(inner, nn.Module) and type(inner).__name__ in PROJECTIONS:
            handles += _Calls(inner, look).hook(around)
    return handles


class _Calls:
    """The calls of one attention module while one layer runs: projected queries, keys and values, and masks."""

    def __init__(self, attention: nn.Module, look: Look) -> None:
        self.attention, self.look = attention, look
        self.projected: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        self.masks: list[Tensor | None] = []

    def hook(self, around: nn.Module) -> list[Any]:
        names = PROJECTIONS[type(self.attention).__name__]
        handles = [around.register_forward_pre_hook(self._begin), around.register_forward_hook(self._end)]
        handles.append(self.attention.register_forward_pre_hook(self._mask, with_kwargs=True))
        for name, kept in zip(names, self.projected, strict=True):
            handles.append(self.attention.get_submodule(name).register_forward_hook(self._keep(kept)))
        return handles

    def _begin(self, _module: nn.Module, _args: Any) -> None:
        for kept in (*self.projected, self.masks):
            kept.clear()

    def _mask(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        mask = kwargs.get("attention_mask", args[2] if len(args) > 2 else None)
        self.masks.append(mask if isinstance(mask, Tensor) else None)

    def _keep(self, kept: list[Tensor]) -> Callable[..., None]:
        def keep(_module: nn.Module, _args: Any, output: Tensor) -> None:
            kept.append(self._heads(output))

        return keep

    def _heads(self, x: Tensor) -> Tensor:
        """[sequence, token, head · dim] → [sequence, head, token, dim]."""
        heads = int(getattr(self.attention, "num_attention_heads", 0) or getattr(self.attention, "num_heads", 1))
        return x.view(*x.shape[:2], heads, -1).transpose(1, 2)

    def _end(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        query, key, value = (torch.cat(kept, 2) for kept in self.projected)
        scale = getattr(self.attention, "scale", query.shape[-1] ** -0.5)
        settings = {"scaling": float(scale), "is_causal": False}
        self.look(self.attention, query, key, value, self._mask_given(), settings)
        self._begin(_module, _args)

    def _mask_given(self) -> Tensor | None:
        """The mask of the whole layer [sequence, 1, query, key]: of several chunks, each sees itself only."""
        masks = [_seen(mask) for mask in self.masks]
        if len(masks) == 1:
            return masks[0]
        queries = [q.shape[2] for q in self.projected[0]]
        whole = torch.zeros(len(self.projected[0][0]), 1, sum(queries), sum(queries), dtype=torch.bool)
        whole = whole.to(self.projected[0][0].device)
        start = 0
        for length, mask in zip(queries, masks, strict=True):
            whole[:, :, start : start + length, start : start + length] = True if mask is None else mask
            start += length
        return whole


def _seen(mask: Tensor | None) -> Tensor | None:
    """CANINE's local masks [sequence, query, key] say 1 for what is seen; others are as at the interface."""
    return mask.unsqueeze(1) > 0 if mask is not None and mask.dim() == 3 else mask
