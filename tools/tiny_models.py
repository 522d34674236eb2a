"""A tiny random model of every architecture, and inputs for it: what tests run and the documentation's table shows."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Inputs = dict[str, Tensor]

_WIDTH = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
TEXT = _WIDTH | {"vocab_size": 100, "max_position_embeddings": 64}
_MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_GROUPED = TEXT | _MARKS | {"num_key_value_heads": 2, "head_dim": 8}
_T5 = {
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
}
_BYT5 = _T5 | {
    "vocab_size": 384,
    "num_layers": 3,
    "num_decoder_layers": 1,
    "feed_forward_proj": "gated-gelu",
}
_GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": 100}
_CANINE = (
    _WIDTH
    | _MARKS
    | {"max_position_embeddings": 64, "num_hash_buckets": 64, "num_hash_functions": 2}
)
_CANINE |= {"local_transformer_stride": 16}
_FRAMES = {
    "conv_dim": (16, 16),
    "conv_stride": (5, 4),
    "conv_kernel": (10, 8),
    "num_feat_extract_layers": 2,
}
_SPEECH = (
    _WIDTH
    | _FRAMES
    | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
)
_STABLE = {
    "feat_extract_norm": "layer",
    "do_stable_layer_norm": True,
    "conv_bias": True,
}
_WHISPER = {
    "vocab_size": 100,
    "num_mel_bins": 8,
    "d_model": 32,
    "max_source_positions": 24,
} | _MARKS
_WHISPER |= {
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
_WHISPER |= {
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "decoder_start_token_id": 1,
    "max_target_positions": 16,
}
_IMAGE = _WIDTH | {"image_size": 32, "patch_size": 8}
_SEGFORMER = {
    "num_encoder_blocks": 3,
    "depths": [1, 2, 1],
    "hidden_sizes": [8, 16, 32],
    "mlp_ratios": [2, 2, 2],
}
_SEGFORMER |= {
    "num_attention_heads": [1, 2, 4],
    "sr_ratios": [4, 2, 1],
    "patch_sizes": [7, 3, 3],
    "strides": [4, 2, 2],
}
_CVT = {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]}
_RESNET = {"embedding_size": 8, "hidden_sizes": [16, 24, 32], "depths": [2, 1, 2]}
_EFFICIENTNET = {
    "image_size": 32,
    "width_coefficient": 0.25,
    "depth_coefficient": 0.5,
    "hidden_dim": 320,
}
_CONVNEXT = {"hidden_sizes": [8, 16, 24], "depths": [1, 2, 1], "num_stages": 3}


class Tiny(NamedTuple):
    """One architecture: sizes of its configuration, what it reads, the paper's name for it, and its family
    (`models/families.py`), where that is not the architecture's own name.
    """

    settings: Mapping[str, Any]
    reads: str
    system: str = ""
    family: str = ""


ARCHITECTURES: dict[str, Tiny] = {
    "bert": Tiny(TEXT, "tokens", "BERT"),
    "roberta": Tiny(TEXT | {"pad_token_id": 0}, "tokens", "RoBERTa"),
    "gpt2": Tiny(_GPT2 | _MARKS, "tokens", "GPT-2"),
    "t5": Tiny(_T5 | {"vocab_size": 100}, "two", "T5"),
    "canine": Tiny(_CANINE, "tokens", "CANINE-s, CANINE-c"),
    "byt5": Tiny(_BYT5, "two", "ByT5", "t5"),
    "wav2vec2": Tiny(_SPEECH, "samples", "wav2vec 2.0 (base)"),
    "wav2vec2-stable": Tiny(
        _SPEECH | _STABLE, "samples", "wav2vec 2.0 (large)", "wav2vec2"
    ),
    "hubert": Tiny(_SPEECH, "samples", "HuBERT"),
    "whisper": Tiny(_WHISPER, "mel", "Whisper"),
    "vit": Tiny(_IMAGE, "pixels", "ViT"),
    "beit": Tiny(_IMAGE | {"use_relative_position_bias": True}, "pixels", "BEiT"),
    "deit": Tiny(_IMAGE, "pixels", "DeiT"),
    "segformer": Tiny(_SEGFORMER, "pixels", "MiT (SegFormer encoder)"),
    "resnet": Tiny(_RESNET, "pixels", "ResNet"),
    "efficientnet": Tiny(_EFFICIENTNET, "pixels", "EfficientNet"),
    "cvt": Tiny(_CVT, "pixels", "CvT"),
    "convnext": Tiny(_CONVNEXT, "pixels", "ConvNeXt"),
    "gpt_neox": Tiny(TEXT | _MARKS | {"rotary_pct": 0.5}, "tokens", "Pythia"),
    "llama": Tiny(_GROUPED, "tokens"),
    "qwen3": Tiny(_GROUPED, "tokens"),
    "gemma3": Tiny(_GROUPED | {"sliding_window": 4}, "tokens", family="gemma3_text"),
}
"""Architectures of transformers that paper G measures, and some of the newer decoders. Sizes differ so that axes cannot
be mistaken.
"""
OTHERS: dict[str, Tiny] = {}
"""Architectures of other packages, which their own tests add."""


def row(name: str) -> Tiny:
    """The row of an architecture."""
    return ARCHITECTURES[name] if name in ARCHITECTURES else OTHERS[name]


def build(name: str, dtype: torch.dtype = torch.float64, seed: int = 7) -> nn.Module:
    """A new random model in evaluation mode; no parameter is constant, so that a bias or norm left out shows."""
    import transformers

    from anisoscope.models import ports

    ports.register()
    tiny = row(name)
    config = transformers.AutoConfig.for_model(tiny.family or name, **tiny.settings)
    torch.manual_seed(seed)
    auto: Any = transformers.AutoModel
    model: nn.Module = auto.from_config(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(0.25 * torch.randn_like(parameter))
    return model.to(dtype)


def inputs(
    name: str,
    lengths: tuple[int, ...] = (12,),
    dtype: torch.dtype = torch.float64,
    seed: int = 3,
) -> Inputs:
    """Random inputs of so many positions each (clips: 20 samples each; images: 32 × 32), padded and masked."""
    return _READ[row(name).reads](lengths, torch.Generator().manual_seed(seed), dtype)


def mask_of(lengths: tuple[int, ...]) -> Tensor:
    """[sequence, position] bool: true up to each length."""
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def _tokens(
    lengths: tuple[int, ...], g: torch.Generator, _dtype: torch.dtype
) -> Inputs:
    mask = mask_of(lengths)
    ids = torch.stack(
        [torch.randint(3, 60, (mask.shape[1],), generator=g) for _ in lengths]
    )
    return {"input_ids": torch.where(mask, ids, 0), "attention_mask": mask.long()}


def _two(lengths: tuple[int, ...], g: torch.Generator, dtype: torch.dtype) -> Inputs:
    encoder = _tokens(lengths, g, dtype)
    decoder = _tokens(tuple(max(1, n - 4) for n in lengths), g, dtype)
    return encoder | {f"decoder_{name}": value for name, value in decoder.items()}


def _words(lengths: tuple[int, ...], g: torch.Generator, _dtype: torch.dtype) -> Inputs:
    mask = mask_of(lengths)
    ids = torch.randint(1, 256, (*mask.shape, 50), generator=g)
    return {
        "input_ids": torch.where(mask.unsqueeze(2), ids, 0),
        "attention_mask": mask.long(),
    }


def _samples(
    lengths: tuple[int, ...], g: torch.Generator, dtype: torch.dtype
) -> Inputs:
    mask = mask_of(tuple(20 * n for n in lengths))
    values = torch.stack(
        [torch.randn(mask.shape[1], generator=g, dtype=dtype) for _ in lengths]
    )
    masks = {"attention_mask": mask.long()} if len(set(lengths)) > 1 else {}
    return {"input_values": torch.where(mask, values, 0.0), **masks}


def _mel(lengths: tuple[int, ...], g: torch.Generator, dtype: torch.dtype) -> Inputs:
    features = torch.stack(
        [torch.randn(8, 48, generator=g, dtype=dtype) for _ in lengths]
    )
    decoder = torch.stack([torch.randint(3, 100, (6,), generator=g) for _ in lengths])
    return {"input_features": features, "decoder_input_ids": decoder}


def _pixels(lengths: tuple[int, ...], g: torch.Generator, dtype: torch.dtype) -> Inputs:
    return {
        "pixel_values": torch.stack(
            [torch.randn(3, 32, 32, generator=g, dtype=dtype) for _ in lengths]
        )
    }


_READ: dict[str, Callable[[tuple[int, ...], torch.Generator, torch.dtype], Inputs]] = {
    "tokens": _tokens,
    "two": _two,
    "words": _words,
    "samples": _samples,
    "mel": _mel,
    "pixels": _pixels,
}
