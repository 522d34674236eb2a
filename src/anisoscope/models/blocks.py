"""Find the parts of a model: its blocks and stages by stack (encoder, decoder), and which positions are real or
special.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import PAIRS, Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import ModelError, UsageError, suggest_names
from anisoscope.models.families import (
    Streams,
    class_of,
    class_of_transformers,
    family_of,
)
from anisoscope.models.parts import find_parts, is_causal

NamedPart = tuple[str, nn.Module]
"""The path of a module in its model, and the module."""
TORCH_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules that hold others and are never called themselves."""
LISTS = (nn.Sequential, nn.ModuleList)
"""Modules in which timm keeps blocks one after the other."""
SPECIAL_PARAMETERS = (
    *("cls_token", "distillation_token", "register_tokens", "class_embedding"),
    *("dist_token", "reg_token"),  # of timm
)
"""Parameters that vision models put before the patches: one token per row."""
STACK_OF_MODALITY = {frozenset({"image"}): "vision", frozenset({"audio"}): "audio"}
"""How the stack of a tower is called, by what it reads alone."""
COUNTING = ("_get_feat_extract_output_lengths", "_get_subsampling_output_length")
"""Methods of speech models that say how many frames an encoder makes of so many inputs."""
READING_TEXT = ("text_model", "language_model", "text_encoder", "text_decoder")
READING_IMAGES_OR_SOUNDS = {
    **dict.fromkeys(("vision_model", "vision_tower", "visual", "vqmodel"), "vision"),
    "audio_tower": "audio",
}
"""Parts by name: classes of several families declare for each part what the whole reads."""
QUERYING = ("qformer", "perceiver_resampler", "perceiver", "resampler")
"""Parts between a tower and a language model, with blocks of their own that read learnt queries."""
LATE = ("blocks_token_only", "cls_attn_blocks", "post_network")
"""Lists of blocks in timm (CaiT, XCiT, VOLO) that come after the others, and read the class token too."""


def find_blocks(
    model: nn.Module, names: tuple[str, ...] = ()
) -> dict[str, list[nn.Module]]:
    """Find the blocks (layers) of every stack in running order: {"encoder": [...], "decoder": [...]}.

    names   classes of blocks (`BertLayer`) or patterns of module names (`encoder.layers.*`, where `*` is one part of a
            name); empty: blocks are found automatically

    Without `names`, the first of these that exists counts: what `models/families.py` says of the model's family; what
    the model declares as the source of its hidden states; layers with gradient checkpointing; torch's own Transformer
    layers. UsageError if a name fits no module, ModelError if no blocks are found; both list what the model has.
    """
    named = [(n, m) for n, m in model.named_modules() if not isinstance(m, CONTAINERS)]
    if names:
        _check_names(model, names, named)
        blocks = [(n, m) for n, m in named if _is_any_match(names, (n, m))]
    else:
        blocks = _select_blocks_by_tower(model, named)
    # A block inside another is a part of that one's computation, not a layer of its
    # own.
    blocks = _keep_outermost(blocks)
    if not blocks:
        raise _make_no_blocks_error(model)

    # Layers are numbered within a stack, so blocks are grouped before anyone counts
    # them.
    stack_of = find_stacks(model)
    stacks: dict[str, list[nn.Module]] = {}
    for _, block in blocks:
        stacks.setdefault(stack_of[block], []).append(block)
    return stacks


def _check_names(
    model: nn.Module, names: tuple[str, ...], named: list[NamedPart]
) -> None:
    """Raise UsageError, with similar names, if one of the user's names of blocks fits no module of the model.

    names   classes of blocks, or patterns of module names
    named   (name, module) of all modules
    """
    for name in names:
        if _is_any_match((name,), *named):
            continue
        # Modules that the model repeats are the likeliest blocks, so they are suggested
        # first.
        known = _suggest_blocks(model) or {type(m).__name__ for _, m in named}
        expected = (
            f"blocks by a class or a pattern of module names of {type(model).__name__}"
        )
        raise UsageError(
            expected, f"{name!r}, which matches no module", suggest_names(name, known)
        )


def _select_blocks_by_tower(
    model: nn.Module, named: list[NamedPart]
) -> list[NamedPart]:
    """Return (name, module) of all blocks of a model in running order.

    The parts of a multimodal model that read images or sounds (towers) may be of another family than the rest, so each
    is searched by the rules of its own.

    named   (name, module) of all modules
    """
    # An image encoder may have a row in the families, and the language model behind it none.
    towers = _find_towers(model)
    outside: list[NamedPart] = []
    inside: dict[str, list[NamedPart]] = {path: [] for path in towers}
    for part in named:
        tower = _find_tower(part[0], towers)
        if tower is None:
            outside.append(part)
        else:
            inside[tower].append(part)
    blocks = _select_blocks(model, outside)
    for path, parts in inside.items():
        blocks += _select_blocks(model.get_submodule(path), parts)
    # Stacks are put together from blocks in the order of the model.
    order = {module: i for i, (_, module) in enumerate(named)}
    return sorted(blocks, key=lambda block: order[block[1]])


def _keep_outermost(blocks: list[NamedPart]) -> list[NamedPart]:
    """Drop blocks that lie inside other blocks, and the model itself if there are others."""
    # The whole model has the empty name; it counts as a block only if it is all there is.
    blocks = [(n, m) for n, m in blocks if n] or blocks
    outermost = []
    for name, module in blocks:
        if not any(name.startswith(f"{outer}.") for outer, _ in blocks):
            outermost.append((name, module))
    return outermost


def _make_no_blocks_error(model: nn.Module) -> ModelError:
    """Make the error for a model whose blocks are unknown; it suggests modules that the model repeats.

    The caller raises it.
    """
    repeated = _suggest_blocks(model)
    likely = repeated[0] if repeated else "CLASS"
    cure = f"name the class of its blocks, or a pattern of their names: --blocks {likely}, in Python blocks='{likely}'"
    if repeated:
        cure += f"; it repeats {', '.join(repeated)}"
    return ModelError(
        "a model whose blocks can be found",
        f"{type(model).__name__}, which declares none",
        cure,
    )


def _select_blocks(model: nn.Module, named: list[NamedPart]) -> list[NamedPart]:
    """Return (name, module) of the blocks of a model or of one of its towers, by the first method that finds some.

    named   (name, module) of the modules to choose from
    """
    # The order matters: what is written down about a family is surer than what its code happens to declare.
    for select in (_select_by_family, _select_by_list, _select_by_class):
        blocks = select(model, named)
        if blocks:
            return blocks
    return []


def _select_by_family(model: nn.Module, named: list[NamedPart]) -> list[NamedPart]:
    """Return the modules among `named` that fit the patterns which `models/families.py` has for the model's family."""
    patterns = family_of(model).blocks
    return [part for part in named if _is_any_match(patterns, part)]


def _select_by_list(model: nn.Module, named: list[NamedPart]) -> list[NamedPart]:
    """Return the modules among `named` that the model lists as its parts, or timm as the source of its features."""
    # A block made of several parts ends with the last of them, whose output is the
    # block's.
    last_of_parts = {parts[-1] for parts in find_parts(model)}
    for listed in (last_of_parts, set(_iter_blocks_of_timm(model))):
        blocks = [(name, module) for name, module in named if module in listed]
        if blocks:
            return blocks
    return []


def _select_by_class(model: nn.Module, named: list[NamedPart]) -> list[NamedPart]:
    """Return the modules among `named` whose class is one of blocks.

    The class is declared by the model's code as the source of hidden states, or is a layer with gradient
    checkpointing, or torch's own Transformer layer: the first of these that is there.
    """
    declared = tuple(_iter_declared_classes(model))
    checkpointed = class_of_transformers(
        "modeling_layers", "GradientCheckpointingLayer"
    )
    # Older transformers have no such class.
    checkpointed_layers = (checkpointed,) if checkpointed else ()
    for classes in (declared, checkpointed_layers, TORCH_LAYERS):
        blocks = [
            (name, module) for name, module in named if isinstance(module, classes)
        ]
        if blocks:
            return blocks
    return []


def _is_any_match(patterns: Iterable[str], *named: NamedPart) -> bool:
    """Return whether any of these modules, given as (name, module), fits any of the patterns."""
    pairs = product(patterns, named)
    return any(_is_match(pattern, *part) for pattern, part in pairs)


def _is_match(pattern: str, name: str, module: nn.Module) -> bool:
    """Return whether a module fits a pattern: a class name (`BertLayer`), or a module name with `*` for any part."""
    globs = pattern.split(".")
    if len(globs) == 1:
        return class_of(module).__name__ == pattern
    parts = name.split(".")
    # Part by part: `*` must not stand for several.
    if len(parts) != len(globs):
        return False
    return all(fnmatchcase(part, glob) for part, glob in zip(parts, globs, strict=True))


def _suggest_blocks(model: nn.Module) -> list[str]:
    """Suggest classes and name patterns for blocks: lists of modules that are all of one class."""
    # A dict, not a set: suggestions keep the order of the model.
    found: dict[str, None] = {}
    for name, holder in model.named_modules():
        if not isinstance(holder, nn.ModuleList | nn.Sequential) or len(holder) < 2:
            continue
        classes = {type(child).__name__ for child in holder.children()}
        if len(classes) == 1:
            pattern = f"{name}.*" if name else "*"
            found |= dict.fromkeys((*classes, pattern))
    return list(found)


def _iter_declared_classes(model: nn.Module) -> Iterator[type[nn.Module]]:
    """Yield the classes that the model's own code declares as the source of `hidden_states`."""
    pretrained = class_of_transformers("modeling_utils", "PreTrainedModel")
    if pretrained is None:
        return
    for module in model.modules():
        if not isinstance(module, pretrained):
            continue
        # A class, a list of classes, or recorders of transformers around a class.
        recorded = getattr(module, "_can_record_outputs", None) or {}
        declared = recorded.get("hidden_states", ())
        items = declared if isinstance(declared, list | tuple) else (declared,)
        for item in items:
            target = getattr(item, "target_class", item)
            # A model inside a model is no block; it declares its own.
            if (
                isinstance(target, type)
                and issubclass(target, nn.Module)
                and not issubclass(target, pretrained)
            ):
                yield target


def _iter_blocks_of_timm(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a timm model, alone or inside transformers' wrapper.

    timm lists the modules whose outputs are its features. These are blocks, or stages of blocks, or some of the
    modules in a list of blocks.
    """
    model = getattr(model, "timm_model", model)
    if not type(model).__module__.startswith("timm."):
        return
    features = [
        feature["module"] for feature in getattr(model, "feature_info", None) or ()
    ]
    modules = dict(model.named_modules())
    for name in _list_holders(features):
        holder = modules.get(name)
        if not isinstance(holder, LISTS):
            continue
        stages: list[nn.Module] = [holder]
        # timm names only some members of the list, such as every third block; all of them are blocks.
        if any(feature.startswith(f"{name}.") for feature in features):
            stages = list(holder.children())
        for stage in stages:
            yield from _iter_blocks_of_stage(stage)


def _list_holders(features: list[str]) -> list[str]:
    """Return the paths of the parents of the modules at `features`, each once; a module without a parent itself.

    They keep the order of the features.
    """
    holders: dict[str, None] = {}
    for feature in features:
        above = feature.rpartition(".")[0]
        holders[above or feature] = None
    return list(holders)


def _iter_blocks_of_stage(stage: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks in a stage of a timm model; a module without a list of blocks is a block itself.

    stage   a module whose output timm counts as a feature
    """
    inner = getattr(stage, "blocks", stage)
    blocks = inner.children() if isinstance(inner, LISTS) else [stage]
    for block in blocks:
        # Lists of timm also hold placeholders and single layers; blocks have modules inside.
        if [*block.children()]:
            yield block


def has_tokens_first(model: nn.Module, block: nn.Module) -> bool:
    """Return whether a block passes vectors on as [token, sequence, dim], as torch's layers do unless `batch_first`.

    UsageError if that cannot be known: in a block of the user's own around such a layer.
    """
    if family_of(model).tokens_first:
        return True
    inside = [
        m
        for m in block.modules()
        if isinstance(m, nn.MultiheadAttention | nn.RNNBase) and not m.batch_first
    ]
    # Torch's own layers do as their flag says. A block around one may transpose before
    # and after it, which nobody can see from outside.
    if inside and not isinstance(
        block, (*TORCH_LAYERS, nn.MultiheadAttention, nn.RNNBase)
    ):
        expected = "to know whether blocks pass on [sequence, token, dim] or [token, sequence, dim]"
        got = f"{type(block).__name__} around {type(inside[0]).__name__} with batch_first=False"
        raise UsageError(
            expected,
            got,
            "use --tokens-first or --sequences-first, in Python tokens_first=True or "
            "False",
        )
    return bool(inside)


def find_stages(model: nn.Module) -> list[nn.Module]:
    """Return the modules whose outputs end each stage (resolution) of a convolutional network, in order.

    For EfficientNet that is the last block of each stage. Empty if the model has no stages.
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", "") == "efficientnet":
        # Its blocks stand in one flat list, so the ends of stages follow from the configuration alone.
        blocks = find_blocks(model)["encoder"]
        # EfficientNet scales the number of blocks of a stage by the depth, rounded up.
        repeats = [
            math.ceil(config.depth_coefficient * n) for n in config.num_block_repeats
        ]
        return [blocks[end - 1] for end in accumulate(repeats)]
    pattern = family_of(model).stages
    if not pattern:
        return []
    levels = len(pattern.split("."))
    stages = []
    for name, module in model.named_modules():
        # Under a head the same modules have longer names: only the last parts are compared.
        last_parts = ".".join(name.split(".")[-levels:])
        if _is_match(pattern, last_parts, module):
            stages.append(module)
    return stages


def has_attention(model: nn.Module) -> bool:
    """Return whether the model has attention with queries and keys: its family must have it, and a module be an
    attention module.
    """
    # Attention modules of all libraries share no base class, but they have this word in
    # their names.
    return family_of(model).attention and any(
        "Attention" in type(module).__name__ for module in model.modules()
    )


def _read_modalities(module: Any) -> frozenset[str]:
    """Return what kinds of input a transformers model reads (text, image, audio …); video counts as image."""
    declared = getattr(module, "input_modalities", None) or ()
    names = (declared,) if isinstance(declared, str) else declared
    return frozenset("image" if name == "video" else name for name in names)


def _find_towers(model: nn.Module) -> dict[str, str]:
    """Find the towers of a multimodal model, the parts that read images or sounds: {path of the part: stack name}.

    The stack name, such as `vision` or `audio`, is how sites of the tower are named. Everything outside of towers reads
    text. Empty for a model that reads text alone.
    """
    pretrained = class_of_transformers("modeling_utils", "PreTrainedModel")
    if pretrained is None or not isinstance(model, pretrained):
        return {}
    reads_text = _has_part_for_texts(model)
    # A model that reads one kind of input is a single whole: nothing in it is a tower.
    if len(_read_modalities(model)) < 2 and not reads_text:
        return {}
    # The model itself, whose path is empty, reads everything.
    outside = {"", *READING_TEXT}
    # In a model that writes a text about an image (TrOCR), the encoder is one of two stacks, not a tower.
    if getattr(model.config, "is_encoder_decoder", False) or not reads_text:
        outside |= {"encoder", "decoder"}
    towers: dict[str, str] = {}
    for path, module in model.named_modules():
        own = _get_own_name(path)
        # A part inside a tower belongs to that tower.
        if own in outside or _find_tower(path, towers) is not None:
            continue
        stack = _name_stack(own, module, pretrained)
        if stack:
            # A second tower for the same modality is called by its own name.
            towers[path] = own if stack in towers.values() else stack
    return towers


def _has_part_for_texts(model: nn.Module) -> bool:
    """Return whether a part of a model is called as those that read texts."""
    return any(_get_own_name(path) in READING_TEXT for path, _ in model.named_modules())


def _get_own_name(path: str) -> str:
    """Return the last part of the path of a module."""
    return path.rpartition(".")[2]


def _name_stack(own: str, module: nn.Module, pretrained: type) -> str:
    """Return the stack name of a part of a multimodal model, from its own name or what it reads; "" if it is no tower.

    own          last part of its path
    module       the part
    pretrained   transformers' base class of models; only its subclasses say what they read
    """
    if own in READING_IMAGES_OR_SOUNDS:
        return READING_IMAGES_OR_SOUNDS[own]
    if own in QUERYING:
        return own
    if isinstance(module, pretrained):
        return STACK_OF_MODALITY.get(_read_modalities(module), "")
    return ""


def has_two_towers(model: nn.Module) -> bool:
    """Return whether a model reads images in one tower and texts in another, side by side (CLIP, SigLIP)."""
    return all(
        isinstance(getattr(model, f"{side}_model", None), nn.Module)
        for side in ("vision", "text")
    )


def _find_tower(path: str, towers: Mapping[str, str]) -> str | None:
    """Return the path of the tower (part for one modality) that contains the module at `path`; None if none does.

    towers   {path of a tower: its stack name}
    """
    for tower in towers:
        if path == tower or path.startswith(f"{tower}."):
            return tower
    return None


def find_stack(model: nn.Module) -> str:
    """Return the stack of a model that has only one, or of its part that reads text.

    It is `decoder` if its attention is causal, else `encoder`.
    """
    # No single source knows all decoders: the row of the family, the parts of XLM and
    # x-transformers, and the flag of an attention module are asked in turn.
    if family_of(model).causal or is_causal(model) or _has_causal_attention(model):
        return "decoder"
    return "encoder"


def _has_causal_attention(model: nn.Module) -> bool:
    """Return whether an attention module outside the towers for images and sounds says that it is causal."""
    # How a tower for images attends says nothing of how texts are read.
    towers = _find_towers(model)
    for name, module in model.named_modules():
        says_causal = getattr(module, "is_causal", False) is True
        if (
            says_causal
            and "Attention" in type(module).__name__
            and _find_tower(name, towers) is None
        ):
            return True
    return False


def find_stacks(model: nn.Module) -> dict[nn.Module, str]:
    """Return the stack (encoder or decoder) of every module: by its tower, its path, or its family; otherwise that of
    `find_stack`.
    """
    # A copy, since all models of the family share the row.
    by_part = dict(family_of(model).stacks)
    config = getattr(model, "config", None)
    # `nn.Transformer` has no configuration, but gives its halves these names too.
    if getattr(config, "is_encoder_decoder", False) or any(
        isinstance(m, nn.Transformer) for m in model.modules()
    ):
        # Where the family's own row has these names, the row wins.
        by_part.setdefault("encoder", "encoder")
        by_part.setdefault("decoder", "decoder")
    otherwise = find_stack(model)
    towers = _find_towers(model)
    stacks: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        tower = _find_tower(name, towers)
        if tower is not None:
            stacks[module] = towers[tower]
        else:
            stacks[module] = _find_stack_in_path(name, by_part) or otherwise
    return stacks


def _find_stack_in_path(path: str, by_part: Mapping[str, str]) -> str:
    """Return the stack (encoder, decoder) that the first known part of a module's path stands for; empty if none is.

    by_part   {part of a path: its stack}
    """
    # From the outside in: the `speech_encoder` of SeamlessM4T holds an `encoder` again.
    for part in path.split("."):
        if part in by_part:
            return by_part[part]
    return ""


class TokenPositions:
    """Finds which positions of each stack (encoder, decoder) of one model are real tokens, and which are special.

    The positions of a stack may be others than those of the inputs: wav2vec 2.0 turns sound samples into frames,
    Whisper merges mel frames, CANINE merges characters into molecules.

    parts   {stack: number of parts (images, crops, frames) that a sequence consists of}, as the capture counts them
    """

    def __init__(self, model: nn.Module) -> None:
        """Look up the model's family, and count the special tokens of each stack (encoder or decoder) that reads
        images.
        """
        self.model = model
        self.parts: dict[str, int] = {}
        self._streams_of_family = family_of(model).streams
        self._specials: dict[str, int] = {}
        if getattr(model, "main_input_name", "") == "pixel_values":
            self._specials[find_stack(model)] = _count_special_tokens(model)
        for path, stack in _find_towers(model).items():
            if stack == "audio":
                self._specials[stack] = 0
            else:
                self._specials[stack] = _count_special_tokens(model.get_submodule(path))

    def streams(self, batch: Batch) -> Streams:
        """Return {stack: stream}: for each stack of the model, which positions of a batch are real tokens.

        Every position is real in a stack that is not in the result, such as the patches of an image.
        """
        # A corpus of speech counts samples or frames; how many positions they become,
        # only the model knows.
        given = dict(batch.streams)
        if "samples" in given:
            given["encoder"] = _convert_samples(self.model, given.pop("samples"))
        if "frames" in given:
            given["encoder"] = _convert_frames(self.model, given.pop("frames"))
        # Models such as CLIP also give one vector for each image and text: a stack of
        # its own.
        if (
            has_two_towers(self.model)
            and {"pixel_values", "input_ids"} <= batch.inputs.keys()
        ):
            given = given | {PAIRS: _make_stream_of_pairs(batch)}
        # Images are marked last, since families that lengthen or merge streams drop
        # such marks.
        return _mark_images(
            self.model, batch, self._streams_of_family(self.model, given)
        )

    def specials(self, site: Site) -> int:
        """Return how many positions at the beginning of a site are special tokens (class, distillation, registers).

        It is used for stacks that `streams` does not list, such as image encoders; it is 0 for others.
        """
        # Vectors at these sites are pixels of a map, without tokens.
        if site.stack not in self._specials or site.quantity in ("stage", "pre_relu"):
            return 0
        config: Any = self.model.config
        if not isinstance(getattr(config, "cls_token", None), list | tuple):
            return self._specials[site.stack]
        # CvT says of each stage whether it has a class token.
        # Layer 0 is the input of the first block, which lies in the first stage.
        layer = max(site.layer or 0, 1)
        for stage, last_layer in enumerate(accumulate(config.depth)):
            if layer <= last_layer:
                return int(config.cls_token[stage])
        raise IndexError(f"layer {layer} of a model with {sum(config.depth)} layers")


def _make_stream_of_pairs(batch: Batch) -> Stream:
    """Return which positions are real in the pairs of vectors that two towers make of each image and its text.

    Each pair counts as a sequence of two real positions, the image first.
    """
    real = torch.ones(len(batch.unit), 2, dtype=torch.bool)
    first = next(iter(batch.streams.values()), None)
    # Several texts of a unit begin at different numbers, which keeps their pairs apart;
    # without texts, each pair gets two numbers of its own.
    start = torch.arange(len(batch.unit)) * 2 if first is None else first.start.cpu()
    return Stream(
        real, ~real, start, image=torch.tensor([True, False]).expand_as(real).clone()
    )


def _mark_images(model: nn.Module, batch: Batch, streams: Streams) -> Streams:
    """Add to each stream (which positions are real) a mask of the tokens that are placeholders for parts of an image.

    streams   {stack: its stream}
    """
    config = getattr(model, "config", None)
    ids = batch.inputs.get("input_ids")
    # Configurations of transformers use both names for the same number.
    mark = getattr(config, "image_token_id", None)
    if mark is None:
        mark = getattr(config, "image_token_index", None)
    if not isinstance(mark, int) or not isinstance(ids, Tensor):
        return streams
    marked = dict(streams)
    for stack, stream in streams.items():
        if stream.mask.shape == ids.shape:
            is_image = (ids == mark).to(stream.mask.device)
            marked[stack] = replace(stream, image=is_image & stream.mask)
    return marked


def _count_special_tokens(model: nn.Module) -> int:
    """Return how many tokens a model puts before the patches of an image: class and distillation token, registers."""
    if any(name.rpartition(".")[2] in LATE for name, _ in model.named_modules()):
        # The class token comes in behind most blocks, whose vectors are patches alone.
        return 0
    count = 0
    for name, parameter in model.named_parameters():
        if name.rpartition(".")[2] in SPECIAL_PARAMETERS:
            # A parameter [dim] is one token, [1, token, dim] several.
            count += 1 if parameter.dim() == 1 else parameter.shape[-2]
    return count


def _convert_samples(model: Any, samples: Stream) -> Stream:
    """Return which positions of a speech model's encoder are real, given which sound samples are.

    Convolutions merge samples into frames; a frame is real if all its samples are. For a model without such
    convolutions the stream is returned unchanged.
    """
    count_frames = getattr(model, "_get_feat_extract_output_lengths", None)
    if count_frames is None:
        return samples
    width = samples.mask.shape[1]
    lengths = samples.mask.sum(1)
    frames = int(count_frames(torch.tensor(width)))
    # [1, frame] < [sequence, 1]: a frame is real if it lies within its sequence's
    # length.
    mask = torch.arange(frames, device=lengths.device) < count_frames(lengths)[:, None]
    # One frame advances by the product of the strides; without strides in the
    # configuration that is 1.
    samples_of_frame = math.prod(getattr(model.config, "conv_stride", ()))
    return Stream(mask, torch.zeros_like(mask), samples.start // samples_of_frame)


def _convert_frames(model: nn.Module, frames: Stream) -> Stream:
    """Return which positions of a speech model's encoder are real, given which frames of the spectrogram are.

    The model's own method says how many positions the frames become. A model without such a method is taken to merge
    two frames into one position, as Whisper's first convolutions do.
    """
    count = _find_count_of_frames(model)
    if count is None:
        return _take_every(2, frames)

    def count_positions(lengths: Tensor) -> Tensor:
        """Return the number of positions that the model makes of each number of frames [sequence]."""
        made = count(lengths)
        # Some methods return the lengths before and after pooling; the encoder's own are the first.
        if isinstance(made, tuple):
            made = made[0]
        return torch.as_tensor(made).long()

    width = frames.mask.shape[1]
    positions = int(count_positions(torch.tensor([width])))
    lengths = count_positions(frames.mask.sum(1))
    mask = torch.arange(positions, device=frames.mask.device) < lengths[:, None]
    # No method says how many frames one position covers, so it follows from the two
    # widths.
    frames_of_position = max(1, round(width / max(1, positions)))
    return Stream(mask, torch.zeros_like(mask), frames.start // frames_of_position)


def _find_count_of_frames(model: nn.Module) -> Callable[[Tensor], Any] | None:
    """Return the method with which a speech model computes its number of positions from the number of frames.

    None if the model has no such method.
    """
    # The innermost model knows its own convolutions; those around it may have inherited another's method.
    parts = []
    for part in model.modules():
        if getattr(part, "main_input_name", "") == "input_features":
            parts.append(part)
    for part in reversed(parts):
        for name in COUNTING:
            method: Callable[[Tensor], Any] | None = getattr(part, name, None)
            if method is not None:
                return method
    return None


def _take_every(step: int, stream: Stream) -> Stream:
    """Return which positions are real after a model has merged each `step` neighbours into one: ⌈n / step⌉ of n.

    A merged position is real if the first of its inputs is.
    """
    mask, special = stream.mask[:, ::step], stream.special[:, ::step]
    start = stream.start // step
    return replace(
        stream,
        mask=mask,
        special=special,
        start=start,
        frequency=None,
        punctuation=None,
        image=None,
    )
