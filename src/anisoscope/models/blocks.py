"""Which modules are the blocks and stages of a model, stack by stack, in the order they run."""

import math
import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from anisoscope.errors import ModelError

BLOCK_CLASSES: dict[str, tuple[str, ...]] = {
    "segformer": ("SegformerLayer",),
    "convnext": ("ConvNextLayer",),
    "resnet": ("ResNetBottleNeckLayer", "ResNetBasicLayer"),
    "efficientnet": ("EfficientNetBlock",),
    "cvt": ("CvtLayer",),
    "canine": ("CanineLayer",),
    "van": ("Block", "VanLayer"),
    "manta": ("T5Block",),
}
"""Families whose own declaration names stages, other modules too, or nothing at all (class names by `model_type`)."""

STAGE_CLASSES = {
    "segformer": "SegformerStage",
    "convnext": "ConvNextStage",
    "resnet": "ResNetStage",
    "cvt": "CvtStage",
}
"""Families whose blocks are grouped into stages of one resolution each: the class of a stage."""

STACKS = {
    "canine": {
        "initial_char_encoder": "characters",
        "encoder": "molecules",
        "final_char_encoder": "characters-out",
    }
}
"""Families whose stacks run at several resolutions: part of a module's path → stack."""


def find_blocks(model: nn.Module, class_names: tuple[str, ...] = ()) -> dict[str, list[nn.Module]]:
    """The blocks of every stack: {"encoder": [...], "decoder": [...]}.

    Looked for in this order: `class_names` given by the caller; the table above; what the model declares as the
    source of its hidden states; layers that can be checkpointed. ModelError, naming the cure, if nothing is found.
    """
    names = class_names or BLOCK_CLASSES.get(family_of(model), ())
    classes = tuple(_declared(model))
    named = list(model.named_modules())
    blocks = [(n, m) for n, m in named if type(m).__name__ in names] if names else []
    if not blocks and classes:
        blocks = [(n, m) for n, m in named if isinstance(m, classes)]
    if not blocks:
        blocks = [(n, m) for n, m in named if isinstance(m, GradientCheckpointingLayer)]
    blocks = [(n, m) for n, m in blocks if not any(n.startswith(f"{outer}.") for outer, _ in blocks)]
    if not blocks:
        raise ModelError(
            "a model whose blocks can be found",
            f"{type(model).__name__}, which declares none",
            "name the class of its blocks: --blocks CLASS, or capture(model, …, blocks=('CLASS',))",
        )
    stack, stacks = stacks_of(model), dict[str, list[nn.Module]]()
    for _, block in blocks:
        stacks.setdefault(stack[block], []).append(block)
    return stacks


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
    """Whether queries and keys can be expected; the gates of VAN are attention by name only."""
    return family_of(model) != "van" and any("Attention" in type(module).__name__ for module in model.modules())


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
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        for part in name.split("."):
            if part in ("encoder", "decoder"):
                return part
    return ""


def _only_stack(model: nn.Module) -> str:
    return "decoder" if _causal(model) else "encoder"


def _causal(model: nn.Module) -> bool:
    return any(
        getattr(module, "is_causal", False) is True and "Attention" in type(module).__name__
        for module in model.modules()
    )
