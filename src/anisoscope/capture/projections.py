"""Read queries and keys before the attention interface (raw, after norms), with hooks on projections and norms."""

from collections.abc import Callable, Iterable
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
        """Keep the output of a projection or norm under `name`: a forward hook.

        An output that is not one tensor is skipped (Zaya's projection gives queries, keys and values as a tuple).
        """
        if not isinstance(output, Tensor):
            return
        if self.tokens_first:
            output = output.transpose(0, 1)
        self.seen[name] = output  # [sequence, token, …]

    def stages(self, call: Call) -> dict[tuple[Side, Stage], Tensor]:
        """Return {(`query` or `key`, stage): tensor [sequence, head, token, dim]} for every stage that is known.

        Stages are raw, normed and rotated. The kept outputs of projections are used up: call it once per attention
        call. If one projection gives query and gate (Qwen3-Next), the query is its first half.
        """
        stages: dict[tuple[Side, Stage], Tensor] = {
            ("query", self.stage): call.query,
            ("key", self.stage): call.key,
        }
        raw = self._compute_raw(call)
        if raw is not None:
            stages["query", "raw"], stages["key", "raw"] = raw
        if {"query norm", "key norm"} <= self.seen.keys():
            stages["query", "normed"] = _align_axes(self.seen["query norm"], call.query)
            stages["key", "normed"] = _align_axes(self.seen["key norm"], call.key)
        # A module that runs twice in a forward call must not find the outputs of its
        # first call.
        self.seen.clear()
        return stages

    def _compute_raw(self, call: Call) -> tuple[Tensor, Tensor] | None:
        """Return raw query and key [sequence, head, token, dim] from the kept outputs of projections.

        None if they were not kept, or their layout is not known.
        """
        _, heads, _, dim = call.query.shape
        if {"query", "key"} <= self.seen.keys():
            width = self.seen["query"].shape[-1]
            # Each head has its query first, then its gate.
            is_gated = width == 2 * heads * dim
            width_of_head = 2 * dim if is_gated else dim
            query = _split_heads(self.seen["query"], width_of_head)[..., :dim]
            key = _split_heads(self.seen["key"], dim)
            return query, key
        if {"query", *LATENT} <= self.seen.keys():
            return _split_heads(self.seen["query"], dim), self._expand_latent_key(call)
        if self.fused and "fused" in self.seen:
            return _split_fused(self.seen["fused"], FUSED[self.fused], call)
        return None

    def _expand_latent_key(self, call: Call) -> Tensor:
        """Compute the key [sequence, head, token, dim] of latent attention (DeepSeek-V2).

        The key of a head has two parts: its own, from the expanded latent vector, and one that all heads share.
        """
        latent = self.seen[LATENT[0]]
        expanded = self.seen[LATENT[1]]
        heads = call.key.shape[1]
        # [sequence, head, token, dim]
        expanded = expanded.reshape(*latent.shape[:2], heads, -1).transpose(1, 2)
        # The expanded vector ends with the value.
        width_of_own = expanded.shape[3] - call.value.shape[3]
        own = expanded[..., :width_of_own]
        # The latent vector ends with the shared part: as many dimensions as the query has beyond the head's own part.
        start_of_shared = width_of_own - call.query.shape[3]
        shared = latent[..., start_of_shared:].unsqueeze(1).expand(-1, heads, -1, -1)
        return torch.cat((own, shared), -1)


def _split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Reshape [sequence, token, head · dim] to [sequence, head, token, dim]."""
    return x.view(*x.shape[:2], -1, head_dim).transpose(1, 2)


def _split_fused(
    x: Float[Tensor, "sequence token all"], how: str, call: Call
) -> tuple[Tensor, Tensor] | None:
    """Split the output of a fused projection into query and key [sequence, head, token, dim].

    how   the layout of the output: "grouped" (all queries, all keys, all values), "by head" (query, key and value of
          each head together), or other

    None if the output does not have the width of queries, keys and values.
    """
    _, heads, _, dim = call.query.shape
    key_heads = call.key.shape[1]
    width = (heads + 2 * key_heads) * dim
    if x.shape[-1] != width:
        return None
    # One key head for all queries leaves only one layout: key and value come last.
    if how == "grouped" or key_heads == 1 < heads:
        query, key, _ = torch.split(
            x, [heads * dim, key_heads * dim, key_heads * dim], -1
        )
        return _split_heads(query, dim), _split_heads(key, dim)
    if how == "by head":
        query, key, _ = x.view(*x.shape[:2], heads, 3, dim).unbind(3)
    else:
        query, key, _ = x.view(*x.shape[:2], 3, heads, dim).unbind(2)
    return query.transpose(1, 2), key.transpose(1, 2)


def _align_axes(x: Tensor, like: Tensor) -> Tensor:
    """Return the output of a query or key norm with its axes in the order of `like`: [sequence, head, token, dim].

    If heads and tokens are equally many, both orders fit: the lengths of vectors decide, which rotation keeps.
    """
    sequences, heads, positions, dim = like.shape
    # All tokens in a row (Chameleon).
    if x.shape == (sequences * positions, heads, dim):
        return x.view(sequences, positions, heads, dim).transpose(1, 2)
    if x.dim() == 3:
        return _split_heads(x, dim)
    swapped = x.transpose(1, 2)
    if x.shape != like.shape:
        return swapped
    if swapped.shape != like.shape:
        return x
    norms = like.norm(dim=-1)  # [sequence, head, token]
    difference = (x.norm(dim=-1) - norms).abs().sum()
    difference_swapped = (swapped.norm(dim=-1) - norms).abs().sum()
    if difference <= difference_swapped:
        return x
    return swapped


def hook_projections(
    attention: nn.Module,
    rotary: bool,
    hook: Callable[[nn.Module, Callable[..., Any]], None],
    *,
    tokens_first: bool = False,
) -> Source:
    """Hook the projections and norms of an attention module whose outputs the attention interface does not show.

    Returns a `Source`, in which the hooks keep these outputs.

    rotary         whether queries and keys are rotated before the interface
    hook           registers a forward hook on a module
    tokens_first   projections give [token, sequence, …]
    """
    children = dict(attention.named_children())
    pair = _find_pair(children, SEPARATE)
    norms = _find_norms(children)
    stage = _decide_stage(rotary, norms)
    source = Source(stage, tokens_first=tokens_first)
    # The projections of an image and a text (SD3, Flux) are not of all positions.
    is_joint = "add_q_proj" in children
    # The interface itself shows raw queries, unless they were scaled after the projection.
    shows_all = stage == "raw" and not _scales_queries(attention, pair)
    if is_joint or shows_all:
        return source
    wanted = _choose_projections(children, pair)
    source.fused = wanted.get("fused")
    # Without rotation, the interface shows the output of the norms.
    if norms and stage == "rotated":
        wanted["query norm"], wanted["key norm"] = norms
    for name, child in wanted.items():
        hook(children[child], partial(source.keep, name))
    return source


def _find_norms(children: dict[str, nn.Module]) -> tuple[str, str] | None:
    """Return the names of an attention module's norms of queries and keys; None if it has none."""
    norms = _find_pair(children, NORMS)
    # timm has identities as norms if there are none.
    if norms and isinstance(children[norms[0]], nn.Identity):
        return None
    return norms


def _decide_stage(rotary: bool, norms: tuple[str, str] | None) -> Stage:
    """Return the stage that queries and keys have at the attention interface: rotation comes after norms.

    rotary   whether they are rotated before the interface
    norms    the names of their norms
    """
    if rotary:
        return "rotated"
    if norms:
        return "normed"
    return "raw"


def _find_pair(
    children: dict[str, nn.Module], known: Iterable[tuple[str, str]]
) -> tuple[str, str] | None:
    """Return the first of the known pairs of names for which a module has both children; None if there is none."""
    for pair in known:
        if children.keys() >= set(pair):
            return pair
    return None


def _scales_queries(attention: nn.Module, pair: tuple[str, str] | None) -> bool:
    """Return whether a module may scale its queries after the projection, before it passes them to the interface.

    pair   names of its projections of queries and keys
    """
    # BART and its kin have these names, and scale queries before the interface.
    if pair != ("q_proj", "k_proj"):
        return False
    # A number, or one for each dimension (TimesFM).
    scaling = getattr(attention, "scaling", None)
    return isinstance(scaling, Tensor) or scaling not in (None, 1.0)


def _choose_projections(
    children: dict[str, nn.Module], pair: tuple[str, str] | None
) -> dict[str, str]:
    """Return {what is kept: name of the child that gives it}, for the projections of an attention module.

    pair   names of its projections of queries and keys
    """
    if children.keys() >= set(LATENT):
        # AXK-2 names its queries in another way.
        for name in ("q_b_proj", "q_proj"):
            if name in children:
                return {"query": name} | {latent: latent for latent in LATENT}
    if pair is not None:
        return {"query": pair[0], "key": pair[1]}
    for name in FUSED:
        if name in children:
            return {"fused": name}
    return {}
