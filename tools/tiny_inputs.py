"""What a tiny model of any type of transformers is called with: the first of some candidates that it runs on."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

LENGTHS: tuple[int, ...] = (9, 6, 9, 4)
"""Tokens of each sequence of a text."""
COUNT, POSITIONS = len(LENGTHS), max(LENGTHS)
SAMPLES, FRAMES = (1600, 1920, 3840), (32, 64)
IMAGE_SIZES = (32, 64, 128)
GRIDS = ("grid_thw", "target_sizes", "spatial_shapes", "pixel_position_ids")
"""Arguments that say how the patches of an image lie, where a model reads patches in place of images."""

Inputs = dict[str, Any]


@contextmanager
def one_sequence() -> Iterator[None]:
    """Inputs of one sequence a batch, inside a `with` block."""
    global LENGTHS, COUNT
    before = LENGTHS
    LENGTHS, COUNT = before[:1], 1
    try:
        yield
    finally:
        LENGTHS, COUNT = before, len(before)


def candidates(model: nn.Module) -> Iterator[Inputs]:
    """Inputs that a model may take, the likeliest first: what its `forward` names decides."""
    config: Any = model.config
    names = inspect.signature(model.forward).parameters
    if config.model_type in SPECIAL:
        yield SPECIAL[config.model_type](config)
    for inputs in _plain(model, config, names):
        if inputs.keys() <= names.keys():
            yield _completed(inputs, config, names)


def _plain(model: nn.Module, config: Any, names: Any) -> Iterator[Inputs]:
    """One modality after the other, the model's main one first; then text beside each of the others."""
    kinds = [
        "input_ids",
        "pixel_values",
        "input_features",
        "input_values",
        "pixel_values_videos",
        "past_values",
    ]
    kinds += ["states", "inputs", "hidden_states", "query_embeds"]
    main: Any = getattr(model, "main_input_name", "input_ids")
    first = main[0] if isinstance(main, list) else main
    known = [name for name in kinds if name in names]
    known.sort(key=lambda name: name != first)
    for name in known:
        yield from _of(name, config, names)
    for name in known[1:] if known[:1] == ["input_ids"] else known:
        if name != "input_ids" and "input_ids" in names:
            for text in _texts(config, names):
                yield from (text | other for other in _of(name, config, names))


def _of(name: str, config: Any, names: Any) -> Iterator[Inputs]:
    if name == "input_ids":
        yield from _texts(config, names)
    elif name in ("hidden_states", "pixel_values") and any(
        grid.endswith(GRIDS) for grid in names
    ):
        yield from _patches(name, config, names)
        yield from _images(name, config)
    elif name.startswith("pixel_values"):
        yield from _images(name, config)
    elif name == "input_features":
        yield from _spectra(config, names)
    elif name == "input_values":
        yield from _sounds(config, names)
    elif name == "past_values":
        yield from _series(config)
    elif name == "states":
        yield _trajectory(config)
    elif name == "inputs":
        yield {name: _draw(COUNT, POSITIONS, _first(config, "d_model") or 64)}
    elif name == "query_embeds":
        width = _first(config, "hidden_size") or 64
        yield {
            name: _draw(COUNT, 8, width),
            "encoder_hidden_states": _draw(COUNT, 17, width),
        }
    elif name == "hidden_states":
        for width in (
            _first(config, "hidden_size", "codebook_dim", "latent_dim") or 64,
            64,
        ):
            yield {name: _draw(COUNT, width, 16)}
            yield {name: _draw(COUNT, 16, width)}


# ---- modalities


def _texts(config: Any, names: Any) -> Iterator[Inputs]:
    mask = _mask(POSITIONS)
    known = min(100, _first(config, "vocab_size") or 100)
    ids = 5 + (_ids(POSITIONS) - 5) % (known - 5) if known < 100 else _ids(POSITIONS)
    inputs: Inputs = {"input_ids": ids * mask}
    with_mask = inputs | ({"attention_mask": mask} if "attention_mask" in names else {})
    yield with_mask | _decoder(names)
    yield inputs | _decoder(names)
    yield with_mask


def _decoder(names: Any) -> Inputs:
    if "decoder_input_ids" not in names:
        return {}
    mask = _mask(7)
    inputs = {"decoder_input_ids": _ids(7, seed=4) * mask}
    return inputs | (
        {"decoder_attention_mask": mask} if "decoder_attention_mask" in names else {}
    )


def _images(name: str, config: Any) -> Iterator[Inputs]:
    sizes, channels = image_size(config)
    frames = [n for n in (_first(config, "num_frames", "frames_per_clip"), 2) if n]
    for size in dict.fromkeys((*sizes, *((side, side) for side in IMAGE_SIZES))):
        yield {name: _draw(COUNT, channels, *size)}
        for count in frames:
            yield {name: _draw(COUNT, count, channels, *size)}
            yield {name: _draw(COUNT, channels, count, *size)}
    size = sizes[0] if sizes else (32, 32)
    yield {name: _draw(COUNT, 1, *size)}


def _patches(name: str, config: Any, names: Any) -> Iterator[Inputs]:
    """Images cut into patches [patch, channel · time · height · width], with the grid that each image has."""
    part = _part_with(config, "patch_size")
    side, channels = (
        int(part.patch_size),
        _first(part, "num_channels", "in_channels", "in_chans") or 3,
    )
    times = getattr(part, "temporal_patch_size", None) or 1
    grid = next((x for x in names if x.endswith("grid_thw")), None)
    rows = 4
    whole = torch.tensor([[1, rows, rows]] * COUNT)
    for duration in dict.fromkeys((int(times), 1, 2)):
        width = channels * duration * side * side
        if grid is not None:
            patches = _draw(COUNT * rows * rows, width)
            yield {name: patches, grid: whole}
            yield {name: patches.view(-1, channels, side, side * duration), grid: whole}
            continue
        yield {name: _draw(COUNT, rows * rows, width)}
    if grid is not None:
        yield {name: _draw(COUNT * rows * rows, channels, side, side), grid: whole}


def _spectra(config: Any, names: Any) -> Iterator[Inputs]:
    mels = [
        _first(
            config,
            "num_mel_bins",
            "feature_size",
            "input_feat_per_channel",
            "n_mels",
            "input_feat_size",
        )
    ]
    mels += [_first(config, "input_dim")]
    mels += [80, 128, 160, 320, 560]
    source = _first(config, "max_source_positions")
    for frames in dict.fromkeys((*((2 * source,) if source else ()), *FRAMES)):
        mask = _mask(frames)
        named = {
            x: mask
            for x in names
            if x in ("attention_mask", "input_features_mask", "feature_attention_mask")
        }
        for mel in dict.fromkeys(m for m in mels if m):
            for features in (_draw(COUNT, mel, frames), _draw(COUNT, frames, mel)):
                for more in (named, {x: m.bool() for x, m in named.items()}, {}):
                    yield {"input_features": features} | more | _decoder(names)


def _sounds(config: Any, names: Any) -> Iterator[Inputs]:
    channels = _first(config, "audio_channels", "channels") or 1
    mels = _first(config, "num_mel_bins") or 80
    for samples in SAMPLES:
        yield {"input_values": _draw(COUNT, samples)} | _decoder(names)
        yield {"input_values": _draw(COUNT, channels, samples)}
    yield {
        "input_values": _draw(COUNT, _first(config, "max_length") or FRAMES[0], mels)
    } | _decoder(names)


def _series(config: Any) -> Iterator[Inputs]:
    length = _first(config, "context_length") or 32
    channels = _first(config, "num_input_channels")
    if channels:
        yield {"past_values": _draw(COUNT, length, channels)}
    lags = max(getattr(config, "lags_sequence", None) or [0])
    past, ahead = length + lags, getattr(config, "prediction_length", None) or 4
    features = getattr(config, "num_time_features", 0) or 0
    observed = {
        "past_observed_mask": torch.ones(COUNT, past),
        "past_time_features": _draw(COUNT, past, features),
    }
    future = {
        "future_values": _draw(COUNT, ahead),
        "future_time_features": _draw(COUNT, ahead, features),
    }
    yield {"past_values": _draw(COUNT, past)} | observed | future
    padding = {
        "past_values": _draw(COUNT, length),
        "past_values_padding": torch.zeros(COUNT, length),
    }
    yield padding | {"freq": torch.zeros(COUNT, 1, dtype=torch.int64)}
    yield padding
    yield {"past_values": _draw(COUNT, length)}
    yield {"past_values": [*_draw(COUNT, length)]}


def _trajectory(config: Any) -> Inputs:
    """States, actions and rewards of a decision model."""
    steps = torch.arange(POSITIONS).repeat(COUNT, 1)
    ones = _draw(COUNT, POSITIONS, 1)
    inputs = {
        "states": _draw(COUNT, POSITIONS, config.state_dim),
        "actions": _draw(COUNT, POSITIONS, config.act_dim),
    }
    return inputs | {
        "rewards": ones,
        "returns_to_go": ones,
        "timesteps": steps,
        "attention_mask": torch.ones_like(steps),
    }


# ---- what else a call needs


def _completed(inputs: Inputs, config: Any, names: Any) -> Inputs:
    """With what the call needs beside its main inputs, as far as it is known by its name."""
    more: Inputs = {}
    width = _first(config, "hidden_size", "d_model") or 64
    box = torch.tensor([1, 2, 8, 9]).repeat(COUNT, POSITIONS, 1)
    known: dict[str, Any] = {
        "bbox": box,
        "visual_feats": _draw(COUNT, 5, _first(config, "visual_feat_dim") or width),
        "visual_pos": _draw(COUNT, 5, 4),
        "query_embeds": _draw(COUNT, 8, width),
        "qformer_input_ids": _ids(POSITIONS),
        "merge_sizes": torch.full((COUNT,), 1),
        "target_sizes": torch.full((COUNT, 2), 4),
        "spatial_shapes": torch.full((COUNT, 2), 4),
        "pixel_attention_mask": torch.ones(COUNT, 16, dtype=torch.int64),
        "pixel_position_ids": torch.cartesian_prod(
            torch.arange(4), torch.arange(4)
        ).repeat(COUNT, 1, 1),
        "padding_mask": torch.ones(COUNT, 1, SAMPLES[0], dtype=torch.bool),
    }
    for name, parameter in names.items():
        needed = parameter.default is inspect.Parameter.empty or name in (
            "bbox",
            "visual_feats",
            "visual_pos",
        )
        if name not in inputs and needed and name in known:
            more[name] = known[name]
    return inputs | more


# ---- what the names of the arguments do not tell


def _mark(config: Any) -> int:
    """The token that stands for a vector of a picture or a film."""
    return int(getattr(config, "video_token_id", None) or config.image_token_index)


def _picture_in_text(config: Any) -> Inputs:
    """A picture, and a text that begins with as many marks as the model makes vectors of a picture."""
    count = config.num_query_tokens
    marks = torch.full((COUNT, count), _mark(config))
    mask = torch.cat([torch.ones(COUNT, count, dtype=torch.int64), _mask(POSITIONS)], 1)
    inputs = {
        "input_ids": torch.cat([marks, _ids(POSITIONS)], 1) * mask,
        "attention_mask": mask,
    }
    return {"pixel_values": _draw(COUNT, 3, 32, 32), **inputs}


def _question_and_picture(config: Any) -> Inputs:
    question = {
        "qformer_input_ids": _ids(POSITIONS),
        "qformer_attention_mask": _mask(POSITIONS),
    }
    return _picture_in_text(config) | question


def _question_and_film(config: Any) -> Inputs:
    frames = 2
    marks = torch.full((COUNT, (frames - 1) * config.num_query_tokens), _mark(config))
    inputs = _question_and_picture(config)
    inputs["input_ids"] = torch.cat([marks, inputs["input_ids"]], 1)
    inputs["attention_mask"] = torch.cat(
        [torch.ones_like(marks), inputs["attention_mask"]], 1
    )
    return inputs | {"pixel_values": _draw(COUNT, frames, 3, 32, 32)}


def _text_beside_pictures(_config: Any) -> Inputs:
    """Texts of which every token sees the one picture beside them."""
    seen = torch.ones(COUNT, POSITIONS, 1, dtype=torch.int64)
    inputs = {
        "input_ids": _ids(POSITIONS) * _mask(POSITIONS),
        "attention_mask": _mask(POSITIONS),
    }
    return inputs | {
        "pixel_values": _draw(COUNT, 1, 3, 32, 32),
        "image_attention_mask": seen,
    }


def _picture_at_marked_places(config: Any) -> Inputs:
    count = config.latent_query_num
    places = (torch.arange(count + POSITIONS) < count).long().repeat(COUNT, 1)
    mask = torch.cat([torch.ones(COUNT, count, dtype=torch.int64), _mask(POSITIONS)], 1)
    inputs = {"input_ids": _ids(count + POSITIONS) * mask, "attention_mask": mask}
    return inputs | {
        "pixel_values": _draw(COUNT, 3, 32, 32),
        "image_embeds_position_mask": places,
    }


def _sound_beside_text(config: Any) -> Inputs:
    """A spectrum [sequence, 1, frame, mel] and a text."""
    mels = config.audio_config.num_mel_bins
    inputs = {
        "input_ids": _ids(POSITIONS) * _mask(POSITIONS),
        "attention_mask": _mask(POSITIONS),
    }
    return inputs | {
        "input_features": _draw(COUNT, 1, 16 * mels, mels),
        "is_longer": torch.zeros(COUNT, 1, dtype=torch.bool),
    }


def _codes_and_text(config: Any) -> Inputs:
    """Ids of a text and of the codebooks of a sound [sequence, step, codebook]."""
    return {
        "input_ids": 5
        + _ids(POSITIONS * (config.num_codebooks + 1)).view(COUNT, POSITIONS, -1) % 90
    }


def _mels_and_mask(config: Any) -> Inputs:
    return {
        "audio_mel": _draw(COUNT, FRAMES[0], config.input_feat_size),
        "audio_mel_mask": torch.zeros(COUNT, FRAMES[0], dtype=torch.bool),
    }


def _patches_side_by_side(config: Any) -> Inputs:
    """Patches of all pictures in one row [1, channel, side, patch · side]."""
    side, grid = config.patch_size, 4
    return {
        "pixel_values": _draw(1, 3, side, COUNT * grid * grid * side),
        "target_sizes": torch.full((COUNT, 2), grid, dtype=torch.int32),
    }


def _picture_and_task(_config: Any) -> Inputs:
    return {"pixel_values": _draw(COUNT, 3, 64, 64), "task_inputs": _ids(POSITIONS)}


def _whole_frames(config: Any) -> Inputs:
    """A spectrum of whole windows, without padding."""
    frames = 4 * config.n_window
    return {
        "input_features": _draw(COUNT, config.num_mel_bins, frames),
        "input_features_mask": torch.ones(COUNT, frames, dtype=torch.int64),
    }


def _uncached(_config: Any) -> Inputs:
    mask = _mask(POSITIONS)
    return {
        "input_ids": _ids(POSITIONS) * mask,
        "attention_mask": mask,
        "use_cache": False,
    }


def _patches_beside_text(config: Any) -> Inputs:
    """Patches [picture, patch, channel · side · side], the grid of each, and a text."""
    rows, width = 4, 3 * config.vision_config.patch_size**2
    return {
        "input_ids": _ids(POSITIONS) * _mask(POSITIONS),
        "attention_mask": _mask(POSITIONS),
        "pixel_values": _draw(COUNT, rows * rows, width),
        "pixel_attention_mask": torch.ones(COUNT, rows * rows, dtype=torch.int64),
        "spatial_shapes": torch.full((COUNT, 2), rows),
    }


def _vectors_for_both(config: Any) -> Inputs:
    """Vectors for an encoder and a decoder that have no embeddings of their own."""
    mask, later = _mask(12), _mask(7)
    inputs = {
        "input_values": _draw(COUNT, 12, config.hidden_size),
        "attention_mask": mask,
    }
    return inputs | {
        "decoder_input_values": _draw(COUNT, 7, config.hidden_size, seed=4),
        "decoder_attention_mask": later,
    }


def _frames_under_tokens(_config: Any) -> Inputs:
    """Eight frames of a spectrum for each token, whose vectors are added."""
    inputs = {"input_ids": _ids(POSITIONS), "attention_mask": _mask(POSITIONS)}
    return inputs | {"input_features": _draw(COUNT, 128, 8 * POSITIONS)}


def _prompted_picture(_config: Any) -> Inputs:
    picture = _draw(COUNT, 3, 32, 32)
    prompt = {
        "prompt_pixel_values": _draw(COUNT, 3, 32, 32, seed=4),
        "prompt_masks": _draw(COUNT, 3, 32, 32, seed=5),
    }
    return {"pixel_values": picture} | prompt


SPECIAL: dict[str, Callable[[Any], Inputs]] = {
    "blip-2": _picture_in_text,
    "instructblip": _question_and_picture,
    "instructblipvideo": _question_and_film,
    "idefics": _text_beside_pictures,
    "kosmos-2": _picture_at_marked_places,
    "clap": _sound_beside_text,
    "kyutai_speech_to_text": _codes_and_text,
    "gemma3n_audio": _mels_and_mask,
    "minicpm_ocr_vision": _patches_side_by_side,
    "minicpmv4_7_vision": _patches_side_by_side,
    "mimi_decoder": lambda config: {"latents": _draw(COUNT, config.hidden_size, 16)},
    "pocket_tts_audio_tokenizer_decoder": lambda config: {
        "latents": _draw(COUNT, config.hidden_size, 16)
    },
    "siglip2": _patches_beside_text,
    "speecht5": _vectors_for_both,
    "voxtral_realtime": _frames_under_tokens,
    "seggpt": _prompted_picture,
    "oneformer": _picture_and_task,
    "blt": _uncached,
    "qwen3_asr_encoder": _whole_frames,
}


def _draw(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def _ids(length: int, seed: int = 3) -> Tensor:
    return torch.randint(
        5, 100, (COUNT, length), generator=torch.Generator().manual_seed(seed)
    )


def _mask(length: int) -> Tensor:
    """Which positions are real, in the proportions of `LENGTHS`."""
    lengths = torch.tensor([max(1, math.ceil(n * length / POSITIONS)) for n in LENGTHS])
    return (torch.arange(length) < lengths[:, None]).long()


def _parts(config: Any) -> list[Any]:
    subs = [getattr(config, name, None) for name in getattr(config, "sub_configs", ())]
    return [config, *(part for part in subs if part is not None)]


def _part_with(config: Any, name: str) -> Any:
    return next(
        part for part in _parts(config) if isinstance(getattr(part, name, None), int)
    )


def _first(config: Any, *names: str) -> Any:
    """The first whole number that a configuration or one of its parts has by one of these names."""
    for part in _parts(config):
        for name in names:
            try:
                value = getattr(part, name, None)
            except ValueError:  # differs from layer to layer
                continue
            if isinstance(value, int):
                return value
    return None


def image_size(config: Any) -> tuple[list[tuple[int, int]], int]:
    """Sizes of images that a configuration speaks of, and channels."""
    sizes: list[tuple[int, int]] = []
    channels = 3
    for part in _parts(config):
        value = getattr(part, "image_size", None) or getattr(part, "img_size", None)
        if isinstance(value, int):
            sizes.append((value, value))
        elif isinstance(value, list | tuple) and len(value) == 2:
            sizes.append((value[0], value[1]))
        elif isinstance(value, dict):
            sizes.append((value["height"], value["width"]))
        found = [
            getattr(part, name, None)
            for name in ("num_channels", "in_channels", "in_chans")
        ]
        channels = next((x for x in found if isinstance(x, int)), channels)
    return sizes, channels
