"""Which modules are the blocks and stages of a model, stack by stack, in the order they run."""

import math
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from anisoscope.errors import ModelError, UsageError, near_matches

BLOCK_CLASSES: dict[str, tuple[str, ...]] = {
    "segformer": ("SegformerLayer",),
    "convnext": ("ConvNextLayer",),
    "resnet": ("ResNetBottleNeckLayer", "ResNetBasicLayer"),
    "efficientnet": ("EfficientNetBlock",),
    "cvt": ("CvtLayer",),
    "canine": ("CanineLayer",),
    "van": ("Block", "VanLayer"),
    "manta": ("T5Block",),
    "xlnet": ("XLNetLayer",),
    "fsmt": ("EncoderLayer", "DecoderLayer"),
}
"""Families whose own declaration names stages, other modules too, or nothing at all (class names by `model_type`)."""

STAGE_CLASSES = {
    "segformer": "SegformerStage",
    "convnext": "ConvNextStage",
    "resnet": "ResNetStage",
    "cvt": "CvtStage",
}
"""Families whose blocks are grouped into stages of one resolution each: the class of a stage."""

TORCH_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

STACKS = {
    "canine": {
        "initial_char_encoder": "characters",
        "encoder": "molecules",
        "final_char_encoder": "characters-out",
    }
}
"""Families whose stacks run at several resolutions: part of a module's path → stack."""


CAUSAL = {"bloom", "mpt"}
"""Decoders whose attention modules do not say so."""

TOKENS_FIRST = {"xlnet", "fsmt"}
"""Families whose blocks pass vectors on as [token, sequence, dim]."""

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules that hold others and are never called themselves."""

Named = list[tuple[str, nn.Module]]


def find_blocks(model: nn.Module, names: tuple[str, ...] = ()) -> dict[str, list[nn.Module]]:
    """The blocks of every stack: {"encoder": [...], "decoder": [...]}.

    Looked for in this order: `names` given by the caller, each a class (`BertLayer`) or a pattern of module names
    (`encoder.layers.*`, `*` for one part of a name); the table above; what the model declares as the source of its
    hidden states; layers that can be checkpointed; torch's own Transformer layers. UsageError where a name fits no
    module, ModelError if nothing is found; both name what the model has.
    """
    named = [(n, m) for n, m in model.named_modules() if not isinstance(m, CONTAINERS)]
    blocks = _asked_for(model, named, names) if names else _found(model, named)
    blocks = [(n, m) for n, m in blocks if n] or blocks  # the model itself only where it is all there is
    blocks = [(n, m) for n, m in blocks if not any(n.startswith(f"{outer}.") for outer, _ in blocks)]
    if not blocks:
        some = _candidates(model)
        raise ModelError(
            "a model whose blocks can be found",
            f"{type(model).__name__}, which declares none",
            "name the class of its blocks, or a pattern of their names: --blocks CLASS, or capture(model, …, "
            f"blocks=('CLASS',)){'; it repeats ' + ', '.join(some) if some else ''}",
        )
    stack, stacks = stacks_of(model), dict[str, list[nn.Module]]()
    for _, block in blocks:
        stacks.setdefault(stack[block], []).append(block)
    return stacks


def _asked_for(model: nn.Module, named: Named, names: tuple[str, ...]) -> Named:
    for name in names:
        if not any(_fits(name, n, m) for n, m in named):
            known = _candidates(model) or {type(m).__name__ for _, m in named}
            expected = f"blocks by a class or a pattern of module names of {type(model).__name__}"
            raise UsageError(expected, f"{name!r}, which fits none", near_matches(name, known))
    return [(n, m) for n, m in named if any(_fits(name, n, m) for name in names)]


def _fits(pattern: str, name: str, module: nn.Module) -> bool:
    parts, levels = pattern.split("."), name.split(".")
    if len(parts) == 1:
        return type(module).__name__ == pattern
    return len(parts) == len(levels) and all(fnmatchcase(part, glob) for part, glob in zip(levels, parts, strict=True))


def _candidates(model: nn.Module) -> list[str]:
    """Classes and name patterns of what the model repeats: modules of one class in a list."""
    found: dict[str, None] = {}
    for name, holder in model.named_modules():
        classes = {type(child).__name__ for child in holder.children()}
        if isinstance(holder, nn.ModuleList | nn.Sequential) and len(holder) > 1 and len(classes) == 1:
            found |= dict.fromkeys((*classes, f"{name}.*" if name else "*"))
    return list(found)


def _found(model: nn.Module, named: Named) -> Named:
    names = BLOCK_CLASSES.get(family_of(model), ())
    blocks = [(n, m) for n, m in named if type(m).__name__ in names]
    for classes in (tuple(_declared(model)), (GradientCheckpointingLayer,), TORCH_LAYERS):
        blocks = blocks or [(n, m) for n, m in named if isinstance(m, classes)]
    return blocks


def tokens_first(model: nn.Module, block: nn.Module) -> bool:
    """Whether a block passes vectors on as [token, sequence, dim], as torch's layers do unless `batch_first`.

    UsageError where that cannot be known: in a block of the user's own around such a layer.
    """
    if family_of(model) in TOKENS_FIRST:
        return True
    inside = [m for m in block.modules() if isinstance(m, nn.MultiheadAttention | nn.RNNBase) and not m.batch_first]
    if inside and not isinstance(block, (*TORCH_LAYERS, nn.MultiheadAttention, nn.RNNBase)):
        expected = "to know whether blocks pass on [sequence, token, dim] or [token, sequence, dim]"
        got = f"{type(block).__name__} around {type(inside[0]).__name__} with batch_first=False"
        raise UsageError(expected, got, "say capture(model, …, tokens_first=True) or tokens_first=False")
    return bool(inside)


def _declared(model: nn.Module) -> Iterator[type[nn.Module]]:
    """Classes that the model's own code declares as the source of `hidden_states`."""
    for module in model.modules():
        if not isinstance(module, PreTrainedModel):
            continue
        declared = (getattr(module, "_can_record_outputs", None) or {}).get("hidden_states", ())
        for item in declared if isinstance(declared, list | tuple) else (declared,):
            target = getattr(item, "target_class", item)
            if isinstance(target, type) and issubclass(target, nn.Module) and not issubclass(target, PreTrainedModel):
                yield target


def find_stages(model: nn.Module) -> list[nn.Module]:
    """The modules whose outputs are those of the stages, in order; empty for families without stages.

    Of EfficientNet the last block of each stage; of VAN the norm that ends each stage.
    """
    family = family_of(model)
    if family == "van":
        return [m for n, m in model.named_modules() if re.fullmatch(r"(.*\.)?norm\d+", n) and "block" not in n]
    if family == "efficientnet":
        config: Any = model.config
        blocks = find_blocks(model)["encoder"]
        repeats = [math.ceil(config.depth_coefficient * n) for n in config.num_block_repeats]
        return [blocks[end - 1] for end in accumulate(repeats)]
    return [m for m in model.modules() if type(m).__name__ == STAGE_CLASSES.get(family)]


def has_attention(model: nn.Module) -> bool:
    """Whether queries and keys can be expected: in models of transformers; the gates of VAN are attention by name
    only.
    """
    if family_of(model) == "van" or not _has(model, PreTrainedModel):
        return False
    return any("Attention" in type(module).__name__ for module in model.modules())


def _has(model: nn.Module, cls: type[nn.Module]) -> bool:
    return any(isinstance(module, cls) for module in model.modules())


def family_of(model: nn.Module) -> str:
    """`config.model_type`; empty where there is none."""
    return str(getattr(getattr(model, "config", None), "model_type", ""))


def stack_of(model: nn.Module, name: str) -> str:
    """`encoder` or `decoder`: by path where the model has both, else by whether its attention is causal; CANINE's
    three stacks by path.
    """
    return _by_path(model, name) or _only_stack(model)


def stacks_of(model: nn.Module) -> dict[nn.Module, str]:
    """The stack of every module."""
    only = _only_stack(model)
    return {module: _by_path(model, name) or only for name, module in model.named_modules()}


def _by_path(model: nn.Module, name: str) -> str:
    known = STACKS.get(family_of(model), {})
    for part in name.split("."):
        if part in known:
            return known[part]
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False) or _has(model, nn.Transformer):
        for part in name.split("."):
            if part in ("encoder", "decoder"):
                return part
    return ""


def _only_stack(model: nn.Module) -> str:
    return "decoder" if family_of(model) in CAUSAL or _causal(model) else "encoder"


def _causal(model: nn.Module) -> bool:
    return any(
        getattr(module, "is_causal", False) is True and "Attention" in type(module).__name__
        for module in model.modules()
    )
