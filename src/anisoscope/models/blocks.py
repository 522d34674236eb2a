"""Find the layout of a model: its blocks and stages by stack (encoder, decoder), and which positions are real or
special.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import PAIRS, Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import ModelError, UsageError, suggest_names
from anisoscope.models.families import Streams, class_of, class_of_transformers, family_of
from anisoscope.models.parts import find_parts, is_causal

TORCH_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)

CONTAINERS = (nn.ModuleList, nn.ModuleDict)
"""Modules that hold others and are never called themselves."""
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
"""Blocks of timm (CaiT, XCiT, VOLO) behind the others, where the class token comes in."""


def find_blocks(model: nn.Module, names: tuple[str, ...] = ()) -> dict[str, list[nn.Module]]:
    """Find the blocks (layers) of every stack in running order: {"encoder": [...], "decoder": [...]}.

    Looked for in this order: `names` given by the caller, each a class (`BertLayer`) or a pattern of module names
    (`encoder.layers.*`, `*` for one part of a name); the row of the model's family; what the model declares as the
    source of its hidden states; layers that can be checkpointed; torch's own Transformer layers. UsageError if a name
    fits no module, ModelError if nothing is found; both name what the model has.
    """
    named = [(n, m) for n, m in model.named_modules() if not isinstance(m, CONTAINERS)]
    for name in names:
        if not any(_fits(name, n, m) for n, m in named):
            known = _candidates(model) or {type(m).__name__ for _, m in named}
            expected = f"blocks by a class or a pattern of module names of {type(model).__name__}"
            raise UsageError(expected, f"{name!r}, which fits none", suggest_names(name, known))
    if names:
        blocks = [(n, m) for n, m in named if any(_fits(name, n, m) for name in names)]
    else:
        # each tower by its own family: an image encoder may have a row, and the language model behind it none
        towers = _towers(model)
        blocks = _blocks_of(model, [(n, m) for n, m in named if _find_tower(n, towers) is None])
        for path in towers:
            part = model.get_submodule(path)
            blocks += _blocks_of(part, [(n, m) for n, m in named if _find_tower(n, towers) == path])
        order = {module: i for i, (_, module) in enumerate(named)}
        blocks.sort(key=lambda pair: order[pair[1]])
    blocks = [(n, m) for n, m in blocks if n] or blocks  # the model itself only where it is all there is
    blocks = [(n, m) for n, m in blocks if not any(n.startswith(f"{outer}.") for outer, _ in blocks)]
    if not blocks:
        repeated = _candidates(model)
        likely = repeated[0] if repeated else "CLASS"
        cure = (
            f"name the class of its blocks, or a pattern of their names: --blocks {likely}, in Python blocks='{likely}'"
        )
        cure += f"; it repeats {', '.join(repeated)}" if repeated else ""
        raise ModelError("a model whose blocks can be found", f"{type(model).__name__}, which declares none", cure)
    stack, stacks = find_stacks(model), dict[str, list[nn.Module]]()
    for _, block in blocks:
        stacks.setdefault(stack[block], []).append(block)
    return stacks


def _blocks_of(model: nn.Module, named: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of the blocks of a model or of one of its towers, by the first method that finds some."""
    blocks = [(n, m) for n, m in named if any(_fits(name, n, m) for name in family_of(model).blocks)]
    if not blocks:
        ends = {parts[-1] for parts in find_parts(model)}
        blocks = [(n, m) for n, m in named if m in ends]
    of_timm = set(_blocks_of_timm(model))
    blocks = blocks or [(n, m) for n, m in named if m in of_timm]
    layer = class_of_transformers("modeling_layers", "GradientCheckpointingLayer")
    for classes in (tuple(_declared(model)), (layer,) if layer else (), TORCH_LAYERS):
        blocks = blocks or [(n, m) for n, m in named if isinstance(m, classes)]
    return blocks


def _fits(pattern: str, name: str, module: nn.Module) -> bool:
    """Return whether a module is of this class or its name fits the pattern, in which `*` is one part of a name."""
    parts, levels = pattern.split("."), name.split(".")
    if len(parts) == 1:
        return class_of(module).__name__ == pattern
    return len(parts) == len(levels) and all(fnmatchcase(part, glob) for part, glob in zip(levels, parts, strict=True))


def _candidates(model: nn.Module) -> list[str]:
    """Suggest classes and name patterns for blocks: lists of modules that are all of one class."""
    found: dict[str, None] = {}
    for name, holder in model.named_modules():
        classes = {type(child).__name__ for child in holder.children()}
        if isinstance(holder, nn.ModuleList | nn.Sequential) and len(holder) > 1 and len(classes) == 1:
            found |= dict.fromkeys((*classes, f"{name}.*" if name else "*"))
    return list(found)


def _declared(model: nn.Module) -> Iterator[type[nn.Module]]:
    """Yield the classes that the model's own code declares as the source of `hidden_states`."""
    pretrained = class_of_transformers("modeling_utils", "PreTrainedModel")
    for module in model.modules():
        if pretrained is None or not isinstance(module, pretrained):
            continue
        declared = (getattr(module, "_can_record_outputs", None) or {}).get("hidden_states", ())
        for item in declared if isinstance(declared, list | tuple) else (declared,):
            target = getattr(item, "target_class", item)
            if isinstance(target, type) and issubclass(target, nn.Module) and not issubclass(target, pretrained):
                yield target


def _blocks_of_timm(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a timm model, alone or inside transformers' wrapper.

    timm lists the modules whose outputs are its features. These are blocks, or stages of blocks, or some of the
    modules in a list of blocks.
    """
    model = getattr(model, "timm_model", model)
    features = getattr(model, "feature_info", None) or () if type(model).__module__.startswith("timm.") else ()
    modules, lists = dict(model.named_modules()), (nn.Sequential, nn.ModuleList)
    for name in dict.fromkeys(feature["module"].rpartition(".")[0] or feature["module"] for feature in features):
        units = [modules[name]] if name in modules and isinstance(modules[name], lists) else []
        units = [*units[0].children()] if units and any(f["module"].startswith(f"{name}.") for f in features) else units
        for unit in units:
            inner = getattr(unit, "blocks", unit)
            yield from (m for m in (inner.children() if isinstance(inner, lists) else [unit]) if [*m.children()])


def has_tokens_first(model: nn.Module, block: nn.Module) -> bool:
    """Return whether a block passes vectors on as [token, sequence, dim], as torch's layers do unless `batch_first`.

    UsageError if that cannot be known: in a block of the user's own around such a layer.
    """
    if family_of(model).tokens_first:
        return True
    inside = [m for m in block.modules() if isinstance(m, nn.MultiheadAttention | nn.RNNBase) and not m.batch_first]
    if inside and not isinstance(block, (*TORCH_LAYERS, nn.MultiheadAttention, nn.RNNBase)):
        expected = "to know whether blocks pass on [sequence, token, dim] or [token, sequence, dim]"
        got = f"{type(block).__name__} around {type(inside[0]).__name__} with batch_first=False"
        raise UsageError(expected, got, "say capture(model, …, tokens_first=True) or tokens_first=False")
    return bool(inside)


def find_stages(model: nn.Module) -> list[nn.Module]:
    """Return the modules whose outputs end each stage (resolution) of a convolutional network, in order.

    For EfficientNet that is the last block of each stage. Empty if the model has no stages.
    """
    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", "") == "efficientnet":
        blocks = find_blocks(model)["encoder"]
        repeats = [math.ceil(config.depth_coefficient * n) for n in config.num_block_repeats]
        return [blocks[end - 1] for end in accumulate(repeats)]
    pattern = family_of(model).stages
    levels = len(pattern.split("."))
    return [m for n, m in model.named_modules() if pattern and _fits(pattern, ".".join(n.split(".")[-levels:]), m)]


def has_attention(model: nn.Module) -> bool:
    """Return whether the model has attention with queries and keys: its family must have it, and a module be an
    attention module.
    """
    return family_of(model).attention and any("Attention" in type(module).__name__ for module in model.modules())


def _modalities(module: Any) -> frozenset[str]:
    """Return what a transformers model reads (text, image, audio …); video counts as image."""
    declared = getattr(module, "input_modalities", None) or ()
    names = (declared,) if isinstance(declared, str) else declared
    return frozenset("image" if name == "video" else name for name in names)


def _towers(model: nn.Module) -> dict[str, str]:
    """Return the parts of a multimodal model that read images or sounds, by their path, with the stack (encoder or
    decoder) of each.

    What is in none of these parts reads text.
    """
    pretrained = class_of_transformers("modeling_utils", "PreTrainedModel")
    if pretrained is None or not isinstance(model, pretrained):
        return {}
    reads_text = any(name.rpartition(".")[2] in READING_TEXT for name, _ in model.named_modules())
    if len(_modalities(model)) < 2 and not reads_text:
        return {}
    two_stacks = getattr(model.config, "is_encoder_decoder", False) or not reads_text
    towers: dict[str, str] = {}
    for path, module in model.named_modules():
        own = path.rpartition(".")[2]
        if not path or own in READING_TEXT or _find_tower(path, towers) is not None:
            continue
        stack = READING_IMAGES_OR_SOUNDS.get(own, own if own in QUERYING else "")
        if not stack and isinstance(module, pretrained):
            stack = STACK_OF_MODALITY.get(_modalities(module), "")
        if stack and not (own in ("encoder", "decoder") and two_stacks):
            towers[path] = own if stack in towers.values() else stack
    return towers


def has_two_towers(model: nn.Module) -> bool:
    """Return whether a model reads images in one tower and texts in another, side by side (CLIP, SigLIP)."""
    return all(isinstance(getattr(model, f"{side}_model", None), nn.Module) for side in ("vision", "text"))


def _find_tower(path: str, towers: Mapping[str, str]) -> str | None:
    """Return the path of the tower (part for one modality) that contains the module of this path.

    None if there is none.

    towers   the stack of each tower, by its path
    """
    return next((tower for tower in towers if path == tower or path.startswith(f"{tower}.")), None)


def find_stack(model: nn.Module) -> str:
    """Return the stack of a model that has only one, or of its part that reads text.

    It is `decoder` if its attention is causal, else `encoder`.
    """
    towers = _towers(model)
    causal = (
        family_of(model).causal
        or is_causal(model)
        or any(
            getattr(module, "is_causal", False) is True and "Attention" in type(module).__name__
            for name, module in model.named_modules()
            if _find_tower(name, towers) is None
        )
    )
    return "decoder" if causal else "encoder"


def find_stacks(model: nn.Module) -> dict[nn.Module, str]:
    """Return the stack (encoder or decoder) of every module: by its tower, its path, or its family; otherwise that of
    `find_stack`.
    """
    config, known = getattr(model, "config", None), dict(family_of(model).stacks)
    if getattr(config, "is_encoder_decoder", False) or any(isinstance(m, nn.Transformer) for m in model.modules()):
        known |= {name: known.get(name, name) for name in ("encoder", "decoder")}
    only, towers, stacks = find_stack(model), _towers(model), dict[nn.Module, str]()
    for name, module in model.named_modules():
        tower = _find_tower(name, towers)
        by_path = next((known[part] for part in name.split(".") if part in known), only)
        stacks[module] = by_path if tower is None else towers[tower]
    return stacks


class Layout:
    """How the positions of one model's stacks (encoder, decoder) relate to its inputs.

    streams   which positions of each stack are real, from those of the inputs: wav2vec 2.0 and the like turn `samples`
              into frames, Whisper mel `frames`, CANINE characters into molecules; blocks of MANTa-LM and the patches of
              an image are all real
    specials  how many positions at the beginning of a site are tokens that the model adds itself
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
            self._specials[find_stack(model)] = _special_tokens(model)
        for path, stack in _towers(model).items():
            self._specials[stack] = _special_tokens(model.get_submodule(path)) if stack != "audio" else 0

    def streams(self, batch: Batch) -> Streams:
        """Return {stack: stream (which positions are real)} for a batch.

        In a stack (encoder or decoder) that is not in it, every position is real.
        """
        given = dict(batch.streams)
        if "samples" in given:
            given["encoder"] = _frames_of_samples(self.model, given.pop("samples"))
        if "frames" in given:
            given["encoder"] = _frames_of_frames(self.model, given.pop("frames"))
        if has_two_towers(self.model) and {"pixel_values", "input_ids"} <= batch.inputs.keys():
            given = given | {PAIRS: _stream_of_pairs(batch)}
        return _mark_images(self.model, batch, self._streams_of_family(self.model, given))

    def specials(self, site: Site) -> int:
        """Return how many leading positions of a site are special tokens (class, distillation, registers).

        Only for sites without a stream (which positions are real) of their own; 0 for others.
        """
        if site.stack not in self._specials or site.quantity in ("stage", "unrectified"):
            return 0
        config: Any = self.model.config
        if isinstance(getattr(config, "cls_token", None), list | tuple):  # CvT: of each stage, whether it has one
            ends = list(accumulate(config.depth))
            stage = next(i for i, end in enumerate(ends) if max(site.layer or 0, 1) <= end)
            return int(config.cls_token[stage])
        return self._specials[site.stack]


def _stream_of_pairs(batch: Batch) -> Stream:
    """Return the stream of the vectors that two towers make of each image and its text: two positions, image first."""
    real = torch.ones(len(batch.unit), 2, dtype=torch.bool)
    first = next(iter(batch.streams.values()), None)
    start = torch.arange(len(batch.unit)) * 2 if first is None else first.start.cpu()
    return Stream(real, ~real, start, image=torch.tensor([True, False]).expand_as(real).clone())


def _mark_images(model: nn.Module, batch: Batch, streams: Streams) -> Streams:
    """Return the streams (which positions are real) with the tokens marked that stand for parts of an image."""
    config, ids = getattr(model, "config", None), batch.inputs.get("input_ids")
    mark = getattr(config, "image_token_id", None)
    mark = getattr(config, "image_token_index", None) if mark is None else mark
    if not isinstance(mark, int) or not isinstance(ids, Tensor):
        return streams
    found = dict(streams)
    for stack, stream in streams.items():
        if stream.mask.shape == ids.shape:
            found[stack] = replace(stream, image=(ids == mark).to(stream.mask.device) & stream.mask)
    return found


def _special_tokens(model: nn.Module) -> int:
    """Return how many tokens a model puts before the patches of an image: class and distillation token, registers."""
    if any(name.rpartition(".")[2] in LATE for name, _ in model.named_modules()):
        return 0
    found = (p for name, p in model.named_parameters() if name.rpartition(".")[2] in SPECIAL_PARAMETERS)
    return sum(1 if parameter.dim() == 1 else parameter.shape[-2] for parameter in found)


def _frames_of_samples(model: Any, samples: Stream) -> Stream:
    """Return the stream of the frames that convolutions make of sound samples.

    A frame is real if all its samples are. A model that makes no frames reads the samples themselves.
    """
    count = getattr(model, "_get_feat_extract_output_lengths", None)
    if count is None:
        return samples
    width, lengths = samples.mask.shape[1], samples.mask.sum(1)
    frames = int(count(torch.tensor(width)))
    mask = torch.arange(frames, device=lengths.device) < count(lengths)[:, None]
    return Stream(mask, torch.zeros_like(mask), samples.start // math.prod(getattr(model.config, "conv_stride", ())))


def _frames_of_frames(model: nn.Module, frames: Stream) -> Stream:
    """Return the stream (which positions are real) that an encoder makes of the frames of a spectrogram.

    The model's own count is used; a model without one makes one of two, as Whisper's first convolutions do.
    """
    # the innermost model knows its own convolutions; those around it may have inherited another's method
    parts = [part for part in model.modules() if getattr(part, "main_input_name", "") == "input_features"]
    methods = (getattr(part, name, None) for part in reversed(parts) for name in COUNTING)
    count = next((method for method in methods if method is not None), None)
    if count is None:
        return _every(2, frames)

    def lengths_of(lengths: Tensor) -> Tensor:
        """Return how many positions the model makes of so many frames."""
        made = count(lengths)
        return torch.as_tensor(made[0] if isinstance(made, tuple) else made).long()

    width = frames.mask.shape[1]
    made = int(lengths_of(torch.tensor([width])))
    mask = torch.arange(made, device=frames.mask.device) < lengths_of(frames.mask.sum(1))[:, None]
    return Stream(mask, torch.zeros_like(mask), frames.start // max(1, round(width / max(1, made))))


def _every(step: int, stream: Stream) -> Stream:
    """Return the stream of every `step`-th position (⌈n / step⌉ of n), for a model that merges `step` inputs into one.

    A position is real if the first of its inputs is.
    """
    mask, special = stream.mask[:, ::step], stream.special[:, ::step]
    start = stream.start // step
    return replace(stream, mask=mask, special=special, start=start, frequency=None, punctuation=None, image=None)
