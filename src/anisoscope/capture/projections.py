"""Read queries and keys before the attention interface (raw, after norms), with hooks on projections and norms."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from anisoscope.axes import Stage
from anisoscope.capture.masking import Call
from anisoscope.models.families import FUSED, LATENT, NORMS, SEPARATE

Side = Literal["query", "key"]


@dataclass
class Source:
    """What is known of an attention module's queries and keys.

    stage         the stage (raw, normed or rotated) that they have at the interface
    fused         name of the projection that gives queries, keys and values at once, if there is one
    tokens_first  its projections give [token, sequence, …]
    seen          outputs of hooked modules in the running call
    """

    stage: Stage
    fused: str | None = None
    tokens_first: bool = False
    seen: dict[str, Tensor] = field(default_factory=dict)

    def keep(self, name: str, _module: nn.Module, _args: Any, output: Any) -> None:
        """Keep the output of a projection or norm under `name`; skipped if it is not one tensor.

        (Zaya's projection gives queries, keys and values at once.) This is a forward hook.
        """
        if isinstance(output, Tensor):
            self.seen[name] = output.transpose(0, 1) if self.tokens_first else output

    def stages(self, call: Call) -> dict[tuple[Side, Stage], Tensor]:
        """Return {(`query` or `key`, stage): tensor [sequence, head, token, dim]} for every stage that is known.

        Stages are raw, normed and rotated. What was kept of the call is forgotten. If one projection gives query and
        gate (Qwen3-Next), the query is its first half.
        """
        found: dict[tuple[Side, Stage], Tensor] = {("query", self.stage): call.query, ("key", self.stage): call.key}
        heads, dim = call.query.shape[1], call.query.shape[3]
        if {"query", "key"} <= self.seen.keys():
            gated = self.seen["query"].shape[-1] == 2 * heads * dim
            found["query", "raw"] = _rows(self.seen["query"], 2 * dim if gated else dim)[..., :dim]
            found["key", "raw"] = _rows(self.seen["key"], dim)
        elif {"query", *LATENT} <= self.seen.keys():
            latent, expanded = (self.seen[name] for name in LATENT)
            expanded = expanded.reshape(*latent.shape[:2], call.key.shape[1], -1).transpose(1, 2)
            own = expanded[..., : expanded.shape[3] - call.value.shape[3]]
            shared = latent[..., own.shape[3] - dim :].unsqueeze(1).expand(-1, own.shape[1], -1, -1)
            found["query", "raw"] = _rows(self.seen["query"], dim)
            found["key", "raw"] = torch.cat((own, shared), -1)
        elif (
            self.fused and "fused" in self.seen and (both := _split_fused(self.seen["fused"], FUSED[self.fused], call))
        ):
            found["query", "raw"], found["key", "raw"] = both
        if {"query norm", "key norm"} <= self.seen.keys():
            found["query", "normed"] = _align_axes(self.seen["query norm"], call.query)
            found["key", "normed"] = _align_axes(self.seen["key norm"], call.key)
        self.seen.clear()
        return found


def _rows(x: Tensor, head_dim: int) -> Tensor:
    """Reshape [sequence, token, head · dim] to [sequence, head, token, dim]."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def _split_fused(x: Float[Tensor, "sequence token all"], how: str, call: Call) -> tuple[Tensor, Tensor] | None:
    """Return query and key [sequence, head, token, dim] out of the output of a fused projection.

    how   the layout of the projection's output; None is returned if it is not known
    """
    heads, key_heads, dim = call.query.shape[1], call.key.shape[1], call.query.shape[3]
    if x.shape[-1] != (3 * heads if key_heads == heads else heads + 2 * key_heads) * dim:
        return None
    if how == "grouped" or key_heads == 1 < heads:
        query, key, _ = torch.split(x, [heads * dim, key_heads * dim, key_heads * dim], -1)
        return _rows(query, dim), _rows(key, dim)
    parts = x.view(*x.shape[:2], *((heads, 3) if how == "by head" else (3, heads)), dim)
    query, key, _ = parts.unbind(3 if how == "by head" else 2)
    return query.transpose(1, 2), key.transpose(1, 2)


def _align_axes(x: Tensor, like: Tensor) -> Tensor:
    """Return a norm's output with its head and token axes in the order of `like`.

    If both orders fit, the norms of vectors decide, since rotation keeps them.
    """
    sequences, heads, positions, dim = like.shape
    if x.shape == (sequences * positions, heads, dim):  # all tokens in a row (Chameleon)
        return x.view(sequences, positions, heads, dim).transpose(1, 2)
    if x.dim() == 3:
        return _rows(x, dim)
    swapped = x.transpose(1, 2)
    if x.shape != like.shape or swapped.shape != like.shape:
        return x if x.shape == like.shape else swapped
    straight, turned = ((y.norm(dim=-1) - like.norm(dim=-1)).abs().sum() for y in (x, swapped))
    return x if straight <= turned else swapped


def hook_projections(
    attention: nn.Module,
    rotary: bool,
    hook: Callable[[nn.Module, Callable[..., Any]], None],
    *,
    tokens_first: bool = False,
) -> Source:
    """Hook the projections and norms of an attention module whose outputs the attention interface does not show.

    rotary         whether queries and keys are rotated before the interface
    hook           registers a forward hook on a module
    tokens_first   projections give [token, sequence, …]
    """
    children = dict(attention.named_children())
    pair, norms = (next((p for p in known if children.keys() >= {*p}), None) for known in (SEPARATE, NORMS))
    norms = norms if norms and not isinstance(children[norms[0]], nn.Identity) else None  # timm's, where it has none
    source = Source("rotated" if rotary else "normed" if norms else "raw", tokens_first=tokens_first)
    scaling = getattr(attention, "scaling", None)  # a number, or one for each dimension (TimesFM)
    prescaled = (isinstance(scaling, Tensor) or scaling not in (None, 1.0)) and pair == ("q_proj", "k_proj")
    joint = "add_q_proj" in children  # of an image and a text (SD3, Flux), whose projections are not of all positions
    if joint or (source.stage == "raw" and not prescaled):
        return source
    wanted = dict(zip(("query", "key"), pair or (), strict=False))
    of_latent = next((name for name in ("q_b_proj", "q_proj") if name in children), None)
    if children.keys() >= {*LATENT} and of_latent is not None:  # AXK-2 names its queries otherwise
        wanted = {"query": of_latent} | {name: name for name in LATENT}
    if not wanted and (fused := next((name for name in FUSED if name in children), None)):
        source.fused = wanted["fused"] = fused
    if norms and source.stage == "rotated":
        wanted |= zip(("query norm", "key norm"), norms, strict=True)
    for name, child in wanted.items():
        hook(children[child], partial(source.keep, name))
    return source
