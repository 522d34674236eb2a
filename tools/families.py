"""Families and libraries beside those of the papers: a tiny random model of each, and what it reads."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

SINGLE = {"xglm"}  # its own masks overflow in float64
LENGTHS = (9, 6)

_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}
_TEXT = _SIZES | {
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "use_cache": False,
}
_MARKS = {"bos_token_id": 1, "eos_token_id": 2}
_DECODER = _TEXT | _MARKS | {"num_key_value_heads": 2, "head_dim": 8}
_EXPERTS = _DECODER | {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
_TWO = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "vocab_size": 100,
}
_TWO |= {
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 64,
}
_TWO |= _MARKS | {"pad_token_id": 0, "decoder_start_token_id": 0}
_T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 100,
} | _MARKS
_T5 |= {"decoder_start_token_id": 0, "pad_token_id": 0}
_GPT = {
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "vocab_size": 100,
} | _MARKS
_IMAGE = _SIZES | {"image_size": 32, "patch_size": 8}
_SPEECH = _SIZES | {
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2,
}
_SPEECH |= {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
_SWIN = {
    "image_size": 32,
    "patch_size": 2,
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
}
_LATENT = _EXPERTS | {
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
}
_LATENT |= {
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
_LATENT |= {"first_k_dense_replace": 1, "head_dim": 4, "n_shared_experts": 1}
_LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_GEMMA3N = _DECODER | {
    "layer_types": ["sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0,
}
_GEMMA3N |= {
    "vocab_size_per_layer_input": 100,
    "hidden_size_per_layer_input": 8,
    "laurel_rank": 4,
}
_GEMMA3N |= {"activation_sparsity_pattern": [0.0, 0.0], "altup_num_inputs": 2}


class Entry(NamedTuple):
    """A configuration of transformers (`settings` by `model_type`) or a `make` of a library; what it reads."""

    reads: str
    settings: Mapping[str, Any] = {}
    make: Callable[[], nn.Module] | None = None
    library: str = "transformers"
    family: str = ""


def _texts(
    names: str, settings: dict[str, Any], reads: str = "tokens"
) -> dict[str, Entry]:
    return {name: Entry(reads, settings) for name in names.split()}


FAMILIES: dict[str, Entry] = {
    **_texts(
        "albert bert distilbert electra mpnet roberta xlm-roberta camembert ernie megatron-bert rembert esm",
        _TEXT,
    ),
    **_texts(
        "modernbert nomic_bert eurobert roformer data2vec-text bert-generation deberta deberta-v2 layoutlm",
        _TEXT,
    ),
    **_texts(
        "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 olmo olmo2 starcoder2 stablelm",
        _DECODER,
    ),
    **_texts(
        "cohere cohere2 granite glm glm4 helium smollm3 nemotron persimmon gpt_neox ministral",
        _DECODER,
    ),
    **_texts("arcee exaone4 seed_oss apertus hunyuan_v1_dense diffllama", _DECODER),
    "falcon": Entry(
        "tokens",
        {
            k: v
            for k, v in _DECODER.items()
            if k not in ("head_dim", "num_key_value_heads")
        },
    ),
    **_texts("mixtral qwen2_moe qwen3_moe olmoe phimoe gpt_oss granitemoe", _EXPERTS),
    **_texts("gpt2 gptj codegen gpt_bigcode openai-gpt", _GPT | {"rotary_dim": 4}),
    **_texts("deepseek_v2 deepseek_v3 minicpm3", _LATENT),
    "qwen3_next": Entry(
        "tokens",
        _EXPERTS | _LINEAR | {"layer_types": ["linear_attention", "full_attention"]},
    ),
    "gemma3n_text": Entry("tokens", _GEMMA3N),
    "deepseek_v4": Entry("tokens", _LATENT),
    "bloom": Entry(
        "tokens", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    ),
    "mpt": Entry(
        "tokens", {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 100}
    ),
    "gpt_neo": Entry(
        "tokens",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global"], 2]],
            "vocab_size": 100,
        },
    ),
    "opt": Entry("tokens", _TEXT | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "xglm": Entry(
        "tokens",
        {
            "d_model": 32,
            "num_layers": 2,
            "attention_heads": 4,
            "ffn_dim": 40,
            "vocab_size": 100,
        },
    ),
    "xlnet": Entry(
        "tokens",
        {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 40, "vocab_size": 100},
    ),
    "mamba": Entry("tokens", _TEXT | {"state_size": 4}),
    **_texts("bart mbart pegasus marian blenderbot m2m_100 plbart", _TWO, "two"),
    **_texts("t5 mt5 umt5 longt5", _T5, "two"),
    **_texts("vit deit beit dinov2 vit_msn ijepa data2vec-vision", _IMAGE, "pixels"),
    **_texts("clip_vision_model siglip_vision_model dinov3_vit", _IMAGE, "pixels"),
    **_texts("swin swinv2", _SWIN, "pixels"),
    **_texts("clip_text_model", _TEXT | _MARKS, "tokens"),
    **_texts("wav2vec2 hubert wavlm unispeech data2vec-audio", _SPEECH, "samples"),
}


def _made(path: str, *given: Any, **settings: Any) -> Callable[[], nn.Module]:
    """`library.module:Class` called with these."""

    def make() -> nn.Module:
        module, _, name = path.partition(":")
        model: nn.Module = getattr(importlib.import_module(module), name)(
            *given, **settings
        )
        return model

    return make


_VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 3}
_CLIP: dict[str, Any] = {
    "vision_cfg": {
        "layers": 2,
        "width": 32,
        "head_width": 8,
        "patch_size": 8,
        "image_size": 32,
    }
}
_CLIP |= {
    "text_cfg": {
        "context_length": 9,
        "vocab_size": 100,
        "width": 32,
        "heads": 4,
        "layers": 2,
    },
    "embed_dim": 16,
}
_DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "in_channels": 4,
    "num_layers": 2,
    "sample_size": 8,
}
_DIT |= {"patch_size": 2, "num_embeds_ada_norm": 10, "norm_num_groups": 1}
_UNET = {
    "sample_size": 8,
    "in_channels": 4,
    "out_channels": 4,
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
}
_UNET |= {"norm_num_groups": 4, "cross_attention_dim": 12, "attention_head_dim": 4}
_UNET |= {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D")}
_UNET |= {"up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
_SD3 = {
    "sample_size": 8,
    "patch_size": 2,
    "in_channels": 4,
    "out_channels": 4,
    "num_layers": 2,
}
_SD3 |= {
    "attention_head_dim": 8,
    "num_attention_heads": 4,
    "caption_projection_dim": 32,
}
_SD3 |= {"joint_attention_dim": 12, "pooled_projection_dim": 12}
_FLUX: dict[str, Any] = {
    "patch_size": 1,
    "in_channels": 4,
    "num_layers": 1,
    "num_single_layers": 1,
}
_FLUX |= {
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 12,
    "pooled_projection_dim": 12,
}
_FLUX |= {"axes_dims_rope": (4, 4, 8)}
_TORCH = {"dim_feedforward": 40, "batch_first": True, "dropout": 0.0}

FAMILIES |= {
    "nn.TransformerEncoder": Entry(
        "vectors",
        make=lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, **_TORCH),  # type: ignore[arg-type]
            2,
        ),
        library="torch",
    ),
    "nn.Transformer": Entry(
        "both",
        make=_made("torch.nn:Transformer", 32, 4, 2, 2, **_TORCH),
        library="torch",
    ),
    "timm vit": Entry(
        "image",
        make=_made("timm:create_model", "vit_tiny_patch16_224", **_VIT),
        library="timm",
    ),
    "timm swin": Entry(
        "image",
        make=_made(
            "timm:create_model",
            "swin_tiny_patch4_window7_224",
            img_size=32,
            window_size=4,
            depths=(2, 2),
            embed_dim=16,
            num_heads=(2, 4),
            patch_size=2,
        ),
        library="timm",
    ),
    "timm resnet": Entry(
        "image", make=_made("timm:create_model", "resnet18"), library="timm"
    ),
    "timm convnext": Entry(
        "image",
        make=_made(
            "timm:create_model",
            "convnext_atto",
            depths=(1, 1, 2, 1),
            dims=(8, 16, 24, 32),
        ),
        library="timm",
    ),
    "torchvision vit": Entry(
        "image",
        make=_made(
            "torchvision.models:VisionTransformer",
            image_size=32,
            patch_size=8,
            num_layers=2,
            num_heads=2,
            hidden_dim=16,
            mlp_dim=32,
        ),
        library="torchvision",
    ),
    "torchvision swin": Entry(
        "image",
        make=_made(
            "torchvision.models:SwinTransformer",
            patch_size=[2, 2],
            embed_dim=16,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=[4, 4],
        ),
        library="torchvision",
    ),
    "torchvision resnet": Entry(
        "image", make=_made("torchvision.models:resnet18"), library="torchvision"
    ),
    "open_clip": Entry(
        "image and text",
        make=_made("open_clip.model:CLIP", **_CLIP),
        library="open_clip",
    ),
    "diffusers DiT": Entry(
        "latents",
        make=_made("diffusers:DiTTransformer2DModel", **_DIT),
        library="diffusers",
    ),
    "diffusers UNet": Entry(
        "noise",
        make=_made("diffusers:UNet2DConditionModel", **_UNET),
        library="diffusers",
    ),
    "diffusers SD3": Entry(
        "prompt",
        make=_made("diffusers:SD3Transformer2DModel", **_SD3),
        library="diffusers",
    ),
    "diffusers Flux": Entry(
        "places",
        make=_made("diffusers:FluxTransformer2DModel", **_FLUX),
        library="diffusers",
    ),
}
"""Names → what makes a tiny model of each."""


def importable(library: str) -> bool:
    """Whether a library is there, and what it imports."""
    try:
        importlib.import_module(library)
    except (ImportError, RuntimeError):
        return False
    return True


def build(name: str, attention: str | None = None) -> nn.Module:
    """A new random model in evaluation mode; no parameter is constant, so that a bias or norm left out shows."""
    import transformers

    entry = FAMILIES[name]
    torch.manual_seed(7)
    if entry.make is not None:
        model = entry.make()
    else:
        auto: Any = transformers.AutoModel
        config: Any = transformers.AutoConfig.for_model(name, **entry.settings)
        model = auto.from_config(
            config, attn_implementation=attention, experts_implementation="eager"
        )
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.eval().to(torch.float32 if name in SINGLE else torch.float64)


def inputs(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What one call takes."""
    g = torch.Generator().manual_seed(3)
    mask = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    ids = torch.where(mask, torch.randint(3, 90, mask.shape, generator=g), 0)
    tokens = {"input_ids": ids, "attention_mask": mask.long()}
    images, reads = torch.randn(2, 3, 32, 32, generator=g), FAMILIES[name].reads
    vectors, latents = (
        torch.randn(2, 9, 32, generator=g),
        torch.randn(2, 4, 8, 8, generator=g),
    )
    steps, several = torch.tensor([1, 2]), torch.randn(2, 5, 12, generator=g)
    prompt = {
        "encoder_hidden_states": several,
        "pooled_projections": several[:, 0],
        "timestep": steps,
    }
    places = torch.cartesian_prod(
        torch.arange(1.0), torch.arange(8.0), torch.arange(8.0)
    )
    rows = {
        "hidden_states": latents.flatten(2).transpose(1, 2),
        "img_ids": places,
        "txt_ids": torch.zeros(5, 3),
    }
    known: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        "tokens": ((), tokens),
        "two": (
            (),
            tokens | {f"decoder_{key}": value for key, value in tokens.items()},
        ),
        "pixels": ((), {"pixel_values": images}),
        "samples": ((), {"input_values": torch.randn(2, 240, generator=g)}),
        "vectors": ((vectors,), {"src_key_padding_mask": ~mask}),
        "both": ((vectors, vectors), {}),
        "image": ((images,), {}),
        "image and text": ((images, ids), {}),
        "latents": ((latents,), {"timestep": steps, "class_labels": steps}),
        "noise": ((latents, steps, several), {}),
        "prompt": ((latents,), prompt),
        "places": ((), prompt | rows),
    }
    args, named = known[reads]
    doubled = {
        key: x.double() if x.is_floating_point() else x for key, x in named.items()
    }
    return tuple(x.double() if x.is_floating_point() else x for x in args), doubled
