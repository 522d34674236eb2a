"""A tiny configuration of any model type of transformers, made from its default one: widths, depths and vocabularies
are shrunk by what the entries are called, sub-configurations too. What names do not tell stands in `EXCEPTIONS`.
"""

import dataclasses
import re
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

HIDDEN, HEADS, KEY_HEADS, HEAD_DIM, INNER = 64, 4, 2, 16, 72
VOCABULARY, POSITIONS, IMAGE, PATCH = 128, 128, 32, 8
LAYERS = 2
FIRST_MARK = 110
"""Token ids from here on stand for images, sounds and the like; the texts of the sweep have none of them."""

EXACT: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "emb_dim", "dim"), HIDDEN),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads", "attention_heads"), HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "kv_n_heads"), KEY_HEADS),
    **dict.fromkeys(("head_dim", "d_kv", "kv_channels", "attention_head_dim", "d_head"), HEAD_DIM),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "d_inner", "mlp_dim", "ffn_hidden_size"), INNER),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"), 8),
    **{"qk_head_dim": 16, "v_head_dim": 16, "rotary_dim": 8},
    **{"num_experts_per_tok": 2, "num_experts_per_token": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1},
}
"""Values by the whole name of an entry."""

BY_NAME: tuple[tuple[str, int], ...] = (
    (r"vocab_size|vocab$|vocab_size_per_layer_input|num_embeddings$|codebook_size$", VOCABULARY),
    (r"num_(local_)?experts$|n_routed_experts$|moe_num_experts$", 4),
    (r"(key_value|kv|key)_(attention_)?heads$|num_key_value_heads$", KEY_HEADS),
    (r"(attention_heads|_heads|_attn_heads)$", HEADS),
    (r"(head_dim|dim_head|head_size)$", HEAD_DIM),
    (r"(ffn|feedforward|feed_forward|intermediate|mlp).*(dim|size)|dim_feedforward$", INNER),
    (r"(position_embeddings|_positions|context_length|context_size)$", POSITIONS),
    (r"(hidden|embed|embedding|proj|projection|projector|d_model|width|decoder|encoder).*(size|dim|dims|units)$", HIDDEN),
    (r"(channels|_dim|_units)$", HIDDEN),
)
"""Values by a part of the name, the first that fits: of numbers that are larger."""

DEPTH = re.compile(r"(^|_)(num_layers|hidden_layers|n_layers?|num_blocks|depth|layers)$")
WIDTHS = re.compile(r"(hidden_sizes|channels|dims|_dim|embed_dim|out_channels|planes|conv_dim|embed_dim_per_stage)$")
DEPTHS = re.compile(r"(depths?|num_layers|blocks_per_stage|numb_of_layers|num_blocks|block_repeats|layers)$")
KEPT = re.compile(r"kernel|stride|dilation|padding|ratio|groups|num_channels|in_chans|num_mel_bins|audio_channels|rate")
TOKEN = re.compile(r"(token|_start|_end|_bos|_eos)_?(id|index)$|^(image|video|audio)_token$")
PLAIN_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
PLAIN_MARKS |= {"decoder_start_token_id": 1, "unk_token_id": 3, "mask_token_id": 4}

EXCEPTIONS: dict[str, dict[str, Any]] = {}
"""Entries of a model type that its names do not tell; `a.b`: of the sub-configuration a."""


def tiny_config(model_type: str) -> PreTrainedConfig:
    """The tiny configuration of a model type."""
    config = _shrunk(CONFIG_MAPPING[model_type](), EXCEPTIONS.get(model_type, {}))
    _fit_sections(config)
    return config


def _shrunk(default: PreTrainedConfig, exceptions: dict[str, Any]) -> PreTrainedConfig:
    """A configuration of the same class, with small entries."""
    kind = type(default)
    parts = {name: x for name in kind.sub_configs if isinstance(x := getattr(default, name, None), PreTrainedConfig)}
    raw = {field.name: _default_of(field) for field in dataclasses.fields(kind) if field.init}
    raw = {name: value for name, value in raw.items() if name not in ("id2label", "label2id")}
    settings: dict[str, Any] = {}
    kinds = getattr(default, "layer_types", None) or getattr(default, "layers_block_type", None)
    depth = max(LAYERS, len(dict.fromkeys(kinds))) if isinstance(kinds, list) else LAYERS
    whole = len(kinds) if isinstance(kinds, list) else _depth_of(default, raw)
    marks = iter(range(FIRST_MARK, VOCABULARY))
    for name, value in raw.items():
        given = default.__dict__.get(name, value)
        if name in parts or name.startswith("_") or given is None:
            continue
        if value is None and not isinstance(given, str | int | float):
            continue  # derived from the others
        if TOKEN.search(name) and isinstance(given, int) and given > 0:
            settings[name] = PLAIN_MARKS.get(name) if name in PLAIN_MARKS else next(marks)
            continue
        small = _small(name, given, depth, whole)
        if small != given or value is not None:
            settings[name] = small
    if isinstance(raw.get("num_heads", getattr(default, "num_heads", 0)), list | tuple) and "embed_dim" in settings:
        settings["embed_dim"] = 8 * default.num_heads[0]
    if isinstance(kinds, list) and "layer_types" in raw:
        unique = list(dict.fromkeys(kinds))
        settings["layer_types"] = (unique * depth)[:depth]
    for name, part in parts.items():
        inner = {key.partition(".")[2]: value for key, value in exceptions.items() if key.startswith(f"{name}.")}
        settings[name] = _shrunk(part, inner)
    settings |= {key: value for key, value in exceptions.items() if "." not in key}
    settings = {name: value for name, value in settings.items() if value is not ...}
    return kind(**settings)


def _default_of(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _depth_of(default: PreTrainedConfig, raw: dict[str, Any]) -> int:
    """How many layers the default has, by which lists of one entry a layer are known."""
    known = (default.__dict__.get(name) for name in ("num_hidden_layers", "num_layers", "n_layer") if name in raw)
    return next((n for n in known if isinstance(n, int)), 0)


def _small(name: str, value: Any, depth: int, whole: int) -> Any:
    if isinstance(value, bool | str | dict | float):
        return value
    if isinstance(value, list | tuple):
        return _small_list(name, value, depth, whole)
    if not isinstance(value, int):
        return value
    if name in EXACT:
        return min(value, EXACT[name]) if value > 0 else value
    if name.endswith("image_size") or name == "img_size":
        return IMAGE
    if name == "patch_size":
        return min(value, PATCH)
    if DEPTH.search(name) and value > 1:
        return depth
    if KEPT.search(name):
        return value
    for pattern, small in BY_NAME:
        if re.search(pattern, name):
            return min(value, small)
    return value


def _small_list(name: str, value: Any, depth: int, whole: int) -> Any:
    plain = all(isinstance(x, int) and not isinstance(x, bool) for x in value)
    if plain and value and DEPTHS.search(name):
        return type(value)(min(x, 2) for x in value)
    if plain and value and WIDTHS.search(name) and not KEPT.search(name.replace("channels", "")):
        factor = 1
        while max(value) // factor > HIDDEN and all(x < 8 or x // factor > 4 for x in value):
            factor *= 2
        return type(value)(max(1, x // factor) if x >= 8 else x for x in value)
    if whole > depth and len(value) == whole:
        return value[:depth]
    if plain and value and re.search(r"(index(es)?|indices|layers|idxs|ids)$", name):
        return type(value)([depth - 1])
    return value


def _fit_sections(config: PreTrainedConfig) -> None:
    """Sections of rotary positions (time, height, width) add up to half of a head."""
    for part in [config, *(getattr(config, name, None) for name in config.sub_configs)]:
        rope = getattr(part, "rope_parameters", None)
        if isinstance(rope, dict) and "mrope_section" in rope:
            half = int((getattr(part, "head_dim", None) or HEAD_DIM) * rope.get("partial_rotary_factor", 1.0)) // 2
            count = len(rope["mrope_section"])
            rope["mrope_section"] = [half - (count - 1) * (half // count), *[half // count] * (count - 1)]
