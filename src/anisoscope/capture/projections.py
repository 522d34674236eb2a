"""Where the queries and keys of an attention module come from: the stages before the attention interface.

At the interface queries and keys are `raw` (projection output), `normed` (after query/key normalisation) or `rotated`
(after rotary position embedding), by family. The earlier stages are read by hooks on the projections and norms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import Stage

SEPARATE = (("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"), ("query_proj", "key_proj"))
"""Names of the query and key projections of an attention module."""
NORMS = (("q_norm", "k_norm"), ("query_norm", "key_norm"), ("q_layernorm", "k_layernorm"), ("q_ln", "k_ln"))


def _rows(x: Tensor, head_dim: int) -> Tensor:
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def _three_first(x: Tensor, heads: int, key_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """[token, 3·head·dim] with q, k, v one after the other (ModernBERT, GPT-2)."""
    parts = x.view(*x.shape[:2], 3, heads, head_dim)
    return parts[:, :, 0].transpose(1, 2), parts[:, :, 1].transpose(1, 2)


def _interleaved(x: Tensor, heads: int, key_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """[token, head·3·dim] with q, k, v inside each head (GPT-NeoX)."""
    parts = x.view(*x.shape[:2], heads, 3, head_dim)
    return parts[:, :, :, 0].transpose(1, 2), parts[:, :, :, 1].transpose(1, 2)


def _grouped(x: Tensor, heads: int, key_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """[token, (head + 2·key_head)·dim], grouped keys and values last (Phi-3)."""
    q, k, _ = torch.split(x, [heads * head_dim, key_heads * head_dim, key_heads * head_dim], -1)
    return _rows(q, head_dim), _rows(k, head_dim)


FUSED: dict[str, Callable[[Tensor, int, int, int], tuple[Tensor, Tensor]]] = {
    "Wqkv": _three_first,
    "c_attn": _three_first,
    "query_key_value": _interleaved,
    "qkv_proj": _grouped,
}
"""Names of fused projections, and how each is taken apart."""


@dataclass
class Source:
    """One attention module: its stage at the interface, and the hooked outputs of the call in
    progress.
    """

    stage: Stage
    fused: str | None
    separate: bool
    normed: bool
    seen: dict[str, Tensor]

    def earlier(self, query: Tensor, key: Tensor) -> dict[tuple[str, Stage], Tensor]:
        """{(query|key, stage): [sequence, head, token, dim]} of the stages before the interface, shaped like `query`
        and `key`. Where one projection puts out query and gate of each head side by side (Qwen3-Next, Qwen3.5), the
        query is the first half.
        """
        found: dict[tuple[str, Stage], Tensor] = {}
        heads, key_heads, dim = query.shape[1], key.shape[1], query.shape[3]
        if self.separate and {"query", "key"} <= self.seen.keys():
            gated = self.seen["query"].shape[-1] == 2 * heads * dim
            found["query", "raw"] = _rows(self.seen["query"], 2 * dim if gated else dim)[..., :dim]
            found["key", "raw"] = _rows(self.seen["key"], dim)
        elif self.fused and "fused" in self.seen:
            found["query", "raw"], found["key", "raw"] = FUSED[self.fused](self.seen["fused"], heads, key_heads, dim)
        if self.normed and self.stage == "rotated":
            for name, like in (("query", query), ("key", key)):
                if f"{name} norm" in self.seen:
                    found[name, "normed"] = _like(self.seen[f"{name} norm"], like)
        self.seen.clear()
        return found


def _like(x: Tensor, like: Tensor) -> Tensor:
    """A norm's output, whichever way its head and token axes lie: rotation keeps norms, so the fitting way is told by
    them.
    """
    if x.dim() == 3:
        return _rows(x, like.shape[3])
    swapped = x.transpose(1, 2)
    if x.shape != like.shape:
        return swapped
    if swapped.shape != like.shape:
        return x
    straight, turned = ((y.norm(dim=-1) - like.norm(dim=-1)).abs().sum() for y in (x, swapped))
    return x if straight <= turned else swapped


def prepare(attention: nn.Module, rotary: bool, hook: Callable[[nn.Module, Callable[..., Any]], None]) -> Source:
    """Look at the children of an attention module and hook those whose outputs are wanted before the interface is
    reached.
    """
    children = dict(attention.named_children())
    norms = next((pair for pair in NORMS if pair[0] in children and pair[1] in children), None)
    stage: Stage = "rotated" if rotary else "normed" if norms else "raw"
    source = Source(stage, None, False, norms is not None, {})

    def keep(name: str) -> Callable[..., None]:
        def note(_module: nn.Module, _args: Any, output: Tensor) -> None:
            source.seen[name] = output

        return note

    pair = next((pair for pair in SEPARATE if pair[0] in children and pair[1] in children), None)
    prescaled = getattr(attention, "scaling", None) not in (None, 1.0) and pair == ("q_proj", "k_proj")
    if stage == "raw" and not prescaled:
        return source
    if pair:
        source.separate = True
        hook(children[pair[0]], keep("query"))
        hook(children[pair[1]], keep("key"))
    else:
        source.fused = next((name for name in FUSED if name in children), None)
        if source.fused:
            hook(children[source.fused], keep("fused"))
    if norms:
        hook(children[norms[0]], keep("query norm"))
        hook(children[norms[1]], keep("key norm"))
    return source
