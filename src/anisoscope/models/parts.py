"""Find the blocks of models whose blocks are no modules: which modules make up each, from its input to its output.

XLM has a list for each kind of part (attention, norm, feed-forward) with one module a block; x-transformers has one
list of layers, of which several (attention, feed-forward) make a block.
"""

from typing import Any

from torch import nn

from anisoscope.errors import ModelError
from anisoscope.models.families import class_of, family_of

OWN_STATES = "or measure the hidden states that it returns itself, as vectors: anisoscope.measure(array)"


def find_parts(model: nn.Module) -> list[list[nn.Module]]:
    """Return the modules that make up each block, for models in which a block is not a module of its own (XLM).

    Each block is a list of modules in running order: the block's input is that of the first, its output that of the
    last. Empty for other models. ModelError if no module has the input or the output of a block.
    """
    lists = family_of(model).parts
    found: list[list[nn.Module]] = []
    for module in model.modules():
        own = [getattr(module, name, None) for name in lists]
        if lists and all(isinstance(modules, nn.ModuleList) for modules in own):
            _check_post_norm(module)
            # Entry i of each list is a part of block i.
            found += map(list, zip(*own, strict=True))
        elif class_of(module).__module__.startswith("x_transformers.") and hasattr(
            module, "len_default_block"
        ):
            found += _split_layers(module)
    return found


def _check_post_norm(module: Any) -> None:
    """Raise ModelError if a model like XLM has norms before its parts: no module has the output of its blocks then."""
    if getattr(module, "pre_norm", False):
        got = f"{type(module).__name__} with pre_norm, which adds them up outside of modules"
        raise ModelError(
            "blocks that end with a module",
            got,
            f"take a model without pre_norm, {OWN_STATES}",
        )


def _split_layers(stack: Any) -> list[list[nn.Module]]:
    """Return the modules of each block of x-transformers' `AttentionLayers`.

    Each of its layers is a list: norms (before, of the branch, behind), the layer itself, and the residual addition.
    ModelError if a layer has other norms than one before it.
    """
    parts: list[list[nn.Module]] = []
    for number, (norms, layer, residual) in enumerate(stack.layers):
        first, _, behind = norms
        if (
            first is None
            or behind is not None
            or class_of(residual).__name__ != "Residual"
        ):
            got = f"{type(stack).__name__} of x-transformers with other norms or sums than its default"
            raise ModelError(
                "blocks that begin with a norm and end with a sum",
                got,
                f"take the default, {OWN_STATES}",
            )
        if number % stack.len_default_block == 0:
            parts.append([])
        parts[-1] += [first, layer, residual]
    return parts


def is_causal(model: nn.Module) -> bool:
    """Return whether a model in which blocks are not modules of their own (`find_parts`) has causal attention.

    Its attention modules do not say so; its configuration (XLM) or its layers (x-transformers) do. False for all other
    models.
    """
    layers = [m for m in model.modules() if hasattr(m, "len_default_block")]
    by_config = (
        bool(family_of(model).parts)
        and getattr(getattr(model, "config", None), "causal", False) is True
    )
    return by_config or any(getattr(m, "causal", False) is True for m in layers)
