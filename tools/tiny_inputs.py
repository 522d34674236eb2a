"""What a tiny model of any type of transformers is called with: the first of some candidates that it runs on."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

LENGTHS = (9, 6, 9, 4)
SAMPLES, FRAMES = 1600, 32

Inputs = dict[str, Any]


def candidates(_model_type: str, model: nn.Module) -> Iterator[Inputs]:
    """Inputs that a model of this type may take, the likeliest first."""
    config: Any = model.config
    names = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    every = [*_of(main, config, names)]
    for name in ("input_ids", "pixel_values", "input_features", "input_values", "pixel_values_videos"):
        if name != main and name in names:
            every += _of(name, config, names)
    if {"input_ids", "pixel_values"} <= names.keys():
        every += [
            text | image for text in _of("input_ids", config, names) for image in _of("pixel_values", config, names)
        ]
    yield from every


def _draw(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _of(name: str, config: Any, names: Any) -> Iterator[Inputs]:
    count = len(LENGTHS)
    if name == "input_ids":
        yield from _texts(names)
    elif name.startswith("pixel_values"):
        size, channels = image_size(config)
        for side in dict.fromkeys((*size, 32, 64, 128)):
            side_by = (side, side) if isinstance(side, int) else side
            yield {name: _draw(count, channels, *side_by)}
            frames = getattr(config, "num_frames", None) or 2
            yield {name: _draw(count, frames, channels, *side_by)}
    elif name == "input_features":
        mels = _first(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels") or 80
        for frames in (FRAMES, 64, 3000):
            mask = _mask(frames)
            for features in (_draw(count, mels, frames), _draw(count, frames, mels)):
                with_mask = {"attention_mask": mask} if "attention_mask" in names else {}
                for inputs in ({name: features} | with_mask, {name: features}):
                    yield inputs | _decoder(names)
    elif name == "input_values":
        channels = _first(config, "audio_channels", "channels") or 1
        mels = _first(config, "num_mel_bins") or 80
        yield {name: _draw(count, SAMPLES)} | _decoder(names)
        yield {name: _draw(count, channels, SAMPLES)}
        yield {name: _draw(count, _first(config, "max_length") or FRAMES, mels)} | _decoder(names)


def _mask(length: int) -> Tensor:
    lengths = torch.tensor([max(1, n * length // max(LENGTHS)) for n in LENGTHS])
    return (torch.arange(length) < lengths[:, None]).long()


def _texts(names: Any) -> Iterator[Inputs]:
    length = max(LENGTHS)
    mask = _mask(length)
    ids = torch.randint(5, 100, mask.shape, generator=torch.Generator().manual_seed(3)) * mask
    inputs: Inputs = {"input_ids": ids} | ({"attention_mask": mask} if "attention_mask" in names else {})
    yield inputs | _decoder(names)
    yield {"input_ids": ids} | _decoder(names)
    yield inputs


def _decoder(names: Any) -> Inputs:
    if "decoder_input_ids" not in names:
        return {}
    mask = _mask(7)
    ids = torch.randint(5, 100, mask.shape, generator=torch.Generator().manual_seed(4)) * mask
    return {"decoder_input_ids": ids} | ({"decoder_attention_mask": mask} if "decoder_attention_mask" in names else {})


def _first(config: Any, *names: str) -> Any:
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, int):
                return value
    return None


def image_size(config: Any) -> tuple[list[Any], int]:
    parts = [config, *(getattr(config, name, None) for name in config.sub_configs)]
    sizes: list[Any] = []
    channels = 3
    for part in parts:
        value = getattr(part, "image_size", None) or getattr(part, "img_size", None)
        if isinstance(value, int):
            sizes.append(value)
        elif isinstance(value, list | tuple) and len(value) == 2:
            sizes.append(tuple(value))
        elif isinstance(value, dict):
            sizes.append((value["height"], value["width"]))
        found = (
            getattr(part, "num_channels", None) or getattr(part, "in_channels", None) or getattr(part, "in_chans", None)
        )
        channels = found if isinstance(found, int) else channels
    return sizes, channels
