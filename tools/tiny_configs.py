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
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "embed_dim", "emb_dim", "dim"), HIDDEN
    ),
    **dict.fromkeys(
        ("num_attention_heads", "num_heads", "n_head", "n_heads", "attention_heads"),
        HEADS,
    ),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "kv_n_heads"), KEY_HEADS),
    **dict.fromkeys(
        ("head_dim", "d_kv", "kv_channels", "attention_head_dim", "d_head"), HEAD_DIM
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "ffn_dim",
            "d_ff",
            "d_inner",
            "mlp_dim",
            "ffn_hidden_size",
        ),
        INNER,
    ),
    **dict.fromkeys(
        ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"), 8
    ),
    "qk_head_dim": 16,
    "v_head_dim": 16,
    "rotary_dim": 8,
    "num_experts_per_tok": 2,
    "num_experts_per_token": 2,
    "moe_topk": 2,
    "n_group": 1,
    "topk_group": 1,
}
"""Values by the whole name of an entry."""

BY_NAME: tuple[tuple[str, int], ...] = (
    (
        r"vocab_size|vocab$|vocab_size_per_layer_input|num_embeddings$|codebook_size$",
        VOCABULARY,
    ),
    (r"num_(local_)?experts$|n_routed_experts$|moe_num_experts$", 4),
    (r"(key_value|kv|key)_(attention_)?heads$|num_key_value_heads$", KEY_HEADS),
    (r"(attention_heads|_heads|_attn_heads)$", HEADS),
    (r"(head_dim|dim_head|head_size)$", HEAD_DIM),
    (r"num_queries$|num_proposals$|num_denoising$", 6),
    (
        r"(ffn|feedforward|feed_forward|intermediate|mlp).*(dim|size)|dim_feedforward$",
        INNER,
    ),
    (r"(position_embeddings|_positions|context_length|context_size)$", POSITIONS),
    (
        r"(hidden|embed|embedding|proj|projection|projector|d_model|width|decoder|encoder).*(size|dim|dims|units)$",
        HIDDEN,
    ),
    (r"(channels|_dim|_units)$", HIDDEN),
)
"""Values by a part of the name, the first that fits: of numbers that are larger."""

DEPTH = re.compile(
    r"(^|_)(num_layers|hidden_layers|n_layers?|num_blocks|depth|layers)$"
)
WIDTHS = re.compile(
    r"(hidden_sizes|channels|dims|_dim|embed_dim|out_channels|planes|conv_dim|embed_dim_per_stage)$"
)
DEPTHS = re.compile(
    r"(depths?|num_layers|blocks_per_stage|numb_of_layers|num_blocks|block_repeats|layers)$"
)
KEPT = re.compile(
    r"kernel|stride|dilation|padding|ratio|groups|num_channels|in_chans|num_mel_bins|audio_channels|rate"
)
TOKEN = re.compile(
    r"(token|_start|_end|_bos|_eos)_?(id|index)$|^(image|video|audio)_token$"
)
PLAIN_MARKS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}
PLAIN_MARKS |= {"decoder_start_token_id": 1, "unk_token_id": 3, "mask_token_id": 4}

_SERIES = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2, 3]}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16}
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 16, 24, 32],
    "depths": [1, 1, 1, 1],
}
_RESNET |= {"layer_type": "basic", "out_features": ["stage4"]}
_DETR = {"backbone_config": _RESNET, "use_timm_backbone": False, "num_queries": 6}
_ROTARY = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
_BY_LAYER = {"full_attention": _ROTARY, "sliding_attention": _ROTARY}
_HGNET = dict.fromkeys(
    ("stem_channels", "stage_in_channels", "stage_mid_channels", "stage_out_channels"),
    ...,
)
_HGNET |= dict.fromkeys(
    ("hidden_sizes", "embedding_size", "depths", "stage_num_blocks"), ...
)
_SMALL_HGNET = {
    "stem_channels": (3, 8, 8),
    "stage_in_channels": (8, 16, 16, 16),
    "embedding_size": 8,
}
_SMALL_HGNET |= {
    "stage_mid_channels": (8,) * 4,
    "stage_out_channels": (16, 16, 16, 24),
    "hidden_sizes": [16, 16, 16, 24],
}
_SMALL_HGNET |= dict.fromkeys(
    ("depths", "stage_num_blocks", "stage_numb_of_layers"), (1,) * 4
)
_ON_HGNET = {f"backbone_config.{name}": value for name, value in _HGNET.items()}
_ALL_HEADS = {"num_key_value_heads": HEADS}
_HEAD_DIM = {"head_dim": HEAD_DIM}
_PLACES = {"coordinate_size": 12, "shape_size": 8}
_WINDOWS = {"image_size": 64, "window_size": 2}
_NARROW = {
    "width_coefficient": 0.25,
    "depth_coefficient": 0.25,
    "in_channels": ...,
    "out_channels": ...,
    "hidden_dim": ...,
}
_EXPERTS = {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32}
_PICTURE = {"num_query_tokens": 3, "image_token_index": FIRST_MARK}
_MARKED = {"image_token_id": FIRST_MARK}

_INDEXER = {
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
}
_INDEXER |= {"indexer_head_dim": HEAD_DIM}
_HIERA = {
    "hidden_size": 16,
    "embed_dim_per_stage": [16, 32, 64, 128],
    "num_attention_heads_per_stage": [1, 2, 4, 8],
}
_HIERA |= {
    "blocks_per_stage": [1, 1, 2, 1],
    "global_attention_blocks": [3],
    "image_size": [64, 64],
}
_ON_HIERA = {f"backbone_config.{name}": value for name, value in _HIERA.items()}
_ON_HIERA |= {
    "backbone_channel_list": [128, 64, 32, 16],
    "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "falcon_h1": _MAMBA | {"mamba_d_ssm": 128},
    "mamba2": {"num_heads": 8},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 16},
    **dict.fromkeys(("esmc", "glm5_next_text", "dots3_note_text"), _ALL_HEADS),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "axk2"), _ALL_HEADS),
    "mistral_large4_text": _ALL_HEADS,
    "deepseek_v2": _ALL_HEADS | {"num_experts_per_tok": 2},
    "moonshine_streaming": _ALL_HEADS,
    "cohere_compass_text": {"rope_parameters": _BY_LAYER},
    "cohere_compass": {"text_config.rope_parameters": _BY_LAYER},
    **{
        name: {f"text_config.{key}": x for key, x in _ALL_HEADS.items()}
        for name in ("mistral_large4", "glm5_next")
    },
    "dots3_note": {"text_config.num_key_value_heads": HEADS},
    "moonshine": {
        "encoder_num_key_value_heads": HEADS,
        "decoder_num_key_value_heads": HEADS,
    },
    **dict.fromkeys(("time_series_transformer", "informer", "autoformer"), _SERIES),
    **dict.fromkeys(
        (
            "detr",
            "conditional_detr",
            "deformable_detr",
            "dab-detr",
            "table-transformer",
        ),
        _DETR,
    ),
    **dict.fromkeys(("layoutlmv3", "udop"), _PLACES),
    "esm": {
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "mask_token_id": 4,
        "position_embedding_type": "rotary",
    },
    **dict.fromkeys(
        ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral", "hunyuan_vl_text"),
        _HEAD_DIM,
    ),
    "nemotron": {"head_dim": HEAD_DIM, "num_key_value_heads": KEY_HEADS},
    "hunyuan_vl": {"text_config.head_dim": HEAD_DIM},
    "dots1": {
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
    },
    "gpt_neo": {
        "attention_types": [[["global", "local"], 1]],
        "num_layers": 2,
        "attention_layers": ...,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2},
    "bit": {"num_groups": 4},
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "swin2sr": {"image_size": 16},
    **{
        name: {"upsample_groups": HIDDEN}
        for name in (
            "mimi",
            "mimi_decoder",
            "mimi_encoder",
            "pocket_tts_audio_tokenizer",
        )
    },
    "pocket_tts_audio_tokenizer_decoder": {"upsample_groups": HIDDEN},
    "csm": {"codec_config.upsample_groups": HIDDEN},
    "lw_detr": {
        "backbone_config.num_windows": 4,
        "backbone_config.num_windows_side": 2,
    },
    "muse_spark": {
        "audio_config.num_hidden_layers": 4,
        "audio_config.patch_sizes": ...,
    },
    "muse_spark_audio": {"num_hidden_layers": 4, "patch_sizes": ...},
    "hgnet_v2": _SMALL_HGNET,
    **dict.fromkeys(
        (
            "d_fine",
            "deimv2",
            "pp_doclayout_v3",
            "pp_doclayout_v4",
            "rt_detr",
            "rt_detr_v2",
        ),
        _ON_HGNET,
    ),
    **dict.fromkeys(("swin", "swinv2", "donut-swin", "maskformer-swin"), _WINDOWS),
    "perceiver": {
        "num_self_attends_per_block": 2,
        "num_latents": 6,
        "d_latents": HIDDEN,
    },
    "efficientnet": _NARROW | {"hidden_dim": 320},
    "align": {f"vision_config.{name}": value for name, value in _NARROW.items()}
    | {"vision_config.hidden_dim": 80, "projection_dim": 80},
    "granite_speech5_encoder": _ALL_HEADS,
    "granite_speech5_ctc": {
        f"encoder_config.{name}": value for name, value in _ALL_HEADS.items()
    },
    "depth_pro": {"patch_size": IMAGE, "intermediate_hook_ids": [1, 0]},
    "longcat_flash": _ALL_HEADS | {"head_dim": 8},
    "paddleocr_vl": {"text_config.rope_parameters": _ROTARY},
    "clap": {
        "audio_config.num_attention_heads": ...,
        "audio_config.num_hidden_layers": ...,
    }
    | {"audio_config.hidden_size": 8 * HIDDEN},
    "diffusion_gemma": {
        f"text_config.{name}": value for name, value in _EXPERTS.items()
    },
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
    "bamba": _MAMBA | {"attn_layer_indices": [1]},
    "granitemoehybrid": _MAMBA
    | {"layer_types": ["mamba", "attention"], "num_hidden_layers": 2},
    "led": {"attention_window": 16},
    "longformer": {"attention_window": 16},
    "pegasus_x": {"block_size": 16},
    "seggpt": {
        "merge_index": 0,
        "intermediate_hidden_state_indices": [0, 1],
        "num_hidden_layers": 2,
    },
    "chameleon": {"vocabulary_map": {"<image>": FIRST_MARK, "IMGIMGA": 111}},
    "cvt": {"embed_dim": [16, 32, 64], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
        "attention_hidden_size": 2 * HIDDEN,
        "attention_head_dim": 2 * HEAD_DIM,
    },
    "zamba2": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "num_hidden_layers": 4,
    },
    "fun_asr_nano": {"adaptor_config.intermediate_size": 16},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8},
    "deepseek_ocr2": {
        "text_config.mlp_layer_types": ["dense", "sparse"],
        **{
            f"text_config.{name}": n
            for name, n in {
                "num_experts_per_tok": 2,
                "n_group": 1,
                "topk_group": 1,
            }.items()
        },
    },
    "ernie4_5_vl_moe": {
        "text_config.rope_parameters": _ROTARY | {"mrope_section": [3, 3, 2]},
        "text_config.moe_k": 2,
    },
    "granite4_vision": {
        "deepstack_layer_map": [],
        "downsample_rate": "1/2",
        "spatial_target_layers": [],
    },
    "emu3": {"vocabulary_map": {"<image>": FIRST_MARK, "<|extra_200|>": 111}},
    "qwen3_asr_encoder": {"n_window": 16, "n_window_infer": 32},
    "qwen4_exp_text": _INDEXER,
    "qwen4_exp": {f"text_config.{name}": value for name, value in _INDEXER.items()},
    **{
        name: {"vision_config.num_pos_feats": HIDDEN // 2} for name in ("sam", "sam_hq")
    },
    "sam2_hiera_det_model": _HIERA,
    "sam2_vision_model": _ON_HIERA,
    "sam2": {f"vision_config.{name}": value for name, value in _ON_HIERA.items()}
    | {"prompt_encoder_config.image_size": 64, "prompt_encoder_config.patch_size": 16},
    "xmod": {"default_language": "en_XX"},
    "step3p7": {"text_config.sliding_window": 4},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    **dict.fromkeys(("blip-2", "instructblip"), _PICTURE),
    "instructblipvideo": {
        "num_query_tokens": 3,
        "video_token_id": FIRST_MARK,
        "video_token_index": FIRST_MARK,
    },
    "kosmos-2": {"latent_query_num": 3},
    "clvp": {
        f"{part}.projection_dim": 2 * HIDDEN
        for part in ("text_config", "speech_config")
    },
    "gemma3n_text": {
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0, 0.0],
        "altup_num_inputs": 2,
    },
}
"""Entries of a model type that its names do not tell; `a.b`: of the sub-configuration a; `...`: left to its default."""


LEVELS = ((True, True), (False, True), (False, False))
"""What is shrunk, widths and depths: convolutions and windows often fit each other in their default widths only."""


def tiny_config(model_type: str, level: int = 0) -> PreTrainedConfig:
    """A small configuration of a model type; with `level` 1 of few layers alone, with 2 the default one."""
    widths, depths = LEVELS[level]
    return _shrunk(
        CONFIG_MAPPING[model_type](),
        EXCEPTIONS.get(model_type, {}),
        widths=widths,
        depths=depths,
    )


def _shrunk(
    default: PreTrainedConfig, exceptions: dict[str, Any], *, widths: bool, depths: bool
) -> PreTrainedConfig:
    """A configuration of the same class, with small entries."""
    if not depths:
        return default
    kind = type(default)
    parts = {
        name: x
        for name in kind.sub_configs
        if isinstance(x := getattr(default, name, None), PreTrainedConfig)
    }
    raw = {
        field.name: _default_of(field)
        for field in dataclasses.fields(kind)
        if field.init
    }
    raw = {
        name: value
        for name, value in raw.items()
        if name not in ("id2label", "label2id")
    }
    settings: dict[str, Any] = {}
    kinds = getattr(default, "layer_types", None) or getattr(
        default, "layers_block_type", None
    )
    depth = LAYERS
    if isinstance(kinds, list) and kinds:
        unique = list(dict.fromkeys(kinds))
        # kinds that can be given come one after the other; of those that a rule deals out, as many as show each
        needed = (
            len(unique)
            if "layer_types" in raw
            else max(kinds.index(kind) for kind in unique) + 1
        )
        depth = min(8, max(LAYERS, needed))
    whole = len(kinds) if isinstance(kinds, list) else _depth_of(default, raw)
    marks = iter(range(FIRST_MARK, VOCABULARY))
    for name, value in raw.items():
        given = default.__dict__.get(name, value)
        if name in parts or name.startswith("_") or given is None:
            continue
        if name == "rope_parameters" and isinstance(given, dict) and given:
            sections = "mrope_section" in (
                getattr(kind, "ignore_keys_at_rope_validation", None) or ()
            )
            if sections or "mrope_section" in str(given):
                settings[name] = _rotary(given, sections=sections)
            continue
        if value is None and not isinstance(given, str | int | float):
            continue  # derived from the others
        if TOKEN.search(name) and isinstance(given, int) and given > 0:
            settings[name] = (
                PLAIN_MARKS.get(name) if name in PLAIN_MARKS else next(marks)
            )
            continue
        small = (
            _small(name, given, depth, whole)
            if widths or _is_depth(name, given)
            else given
        )
        if small != given or value is not None:
            settings[name] = small
    if (
        widths
        and isinstance(
            raw.get("num_heads", getattr(default, "num_heads", 0)), list | tuple
        )
        and isinstance(settings.get("embed_dim"), int)
    ):
        settings["embed_dim"] = 8 * default.num_heads[0]
    if isinstance(kinds, list) and "layer_types" in raw:
        unique = list(dict.fromkeys(kinds))
        settings["layer_types"] = (unique * depth)[:depth]
    for name, part in parts.items():
        inner = {
            key.partition(".")[2]: value
            for key, value in exceptions.items()
            if key.startswith(f"{name}.")
        }
        settings[name] = _shrunk(part, inner, widths=widths, depths=depths)
    if not widths:
        return kind(**settings)
    if "kv_lora_rank" in settings:  # latent attention has as many keys as queries
        settings["num_key_value_heads"] = settings.get("num_attention_heads", HEADS)
    settings |= {key: value for key, value in exceptions.items() if "." not in key}
    settings = {name: value for name, value in settings.items() if value is not ...}
    return kind(**settings)


def _default_of(field: Any) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return (
        field.default_factory()
        if field.default_factory is not dataclasses.MISSING
        else None
    )


def _depth_of(default: PreTrainedConfig, raw: dict[str, Any]) -> int:
    """How many layers the default has, by which lists of one entry a layer are known."""
    known = (
        default.__dict__.get(name)
        for name in ("num_hidden_layers", "num_layers", "n_layer")
        if name in raw
    )
    return next((n for n in known if isinstance(n, int)), 0)


def _is_depth(name: str, value: Any) -> bool:
    """Whether an entry says how many layers there are."""
    several = (
        isinstance(value, list | tuple)
        and bool(DEPTHS.search(name))
        and all(isinstance(x, int) for x in value)
    )
    return several or (isinstance(value, int) and bool(DEPTH.search(name)))


def _small(name: str, value: Any, depth: int, whole: int) -> Any:
    if isinstance(value, bool | str | dict | float):
        return value
    if isinstance(value, list | tuple) and name.endswith("image_size"):
        return type(value)(IMAGE for _ in value)
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
    if (
        plain
        and value
        and WIDTHS.search(name)
        and not KEPT.search(name.replace("channels", ""))
    ):
        factor = 1
        while max(value) // factor > HIDDEN and all(
            x < 8 or x // factor > 4 for x in value
        ):
            factor *= 2
        return type(value)(max(1, x // factor) if x >= 8 else x for x in value)
    if whole > depth and len(value) == whole:
        return value[:depth]
    if plain and value and re.search(r"(index(es)?|indices|layers|idxs|ids)$", name):
        return type(value)([depth - 1])
    return value


def _rotary(given: dict[str, Any], *, sections: bool) -> dict[str, Any]:
    """Parameters of rotary positions; those of time, height and width add up to half of a head's rotated part."""
    if given and all(
        isinstance(value, dict) for value in given.values()
    ):  # by type of layer
        return {
            name: _rotary(value, sections=sections) for name, value in given.items()
        }
    if not sections and "mrope_section" not in given:
        return dict(given)
    half = int(HEAD_DIM * given.get("partial_rotary_factor", 1.0)) // 2
    return given | {"mrope_section": [half - 2 * (half // 3), half // 3, half // 3]}
