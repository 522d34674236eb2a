"""Prepare photographs and speech for training small models, with what is hidden of them (`kinds.make_examples`).

Photographs  the training split; the last 1,000 decide when to stop
Clips        speakers in the order of their names: the first ones are measured, the last decides when to stop, the
others
             are trained on; clips in pieces of two seconds, so that nothing is padded

What is hidden of the validation examples is drawn only once, so that their loss changes by learning alone.
"""

import io
import os
from collections.abc import Container, Iterator
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

Examples = list[dict[str, Any]]
VALIDATION, HIDDEN = 1000, 0.6
"""Photographs that tell when to stop; share of their patches that is hidden (Xie et al. 2022)."""
RATE, SECONDS = 16_000, 2
SPAN, BEGUN = 10, 0.65
"""Frames of a hidden span, and the share of frames that spans hide at most (Baevski et al. 2020)."""


def list_files(name: str) -> list[Path]:
    """List the files of the corpus `name` below ANISOSCOPE_DATA with training data: all clips of the folder, or the
    photographs' train.parquet.
    """
    place = Path(os.environ.get("ANISOSCOPE_DATA", ""), name)
    if place.is_dir():
        return sorted(place.glob("*.flac"))
    # The corpus that is measured is the test split; training reads the other file of
    # the same folder.
    return [place.with_name("train.parquet")]


@cache
def _read_pixels(path: Path) -> tuple[torch.Tensor, list[int]]:
    """Read photographs from a table: (pixels [image, channel, height, width] from 0 to 255, class indices)."""
    import pandas as pd
    from PIL import Image

    table = pd.read_parquet(path)
    pixels = []
    for image in table["image"]:
        opened = Image.open(io.BytesIO(image["bytes"])).convert("RGB")
        pixels.append(np.asarray(opened))
    # Pillow gives [height, width, channel]. Bytes are kept, which take a quarter of the
    # memory of floats.
    stacked = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    return stacked, table["label"].tolist()


def make_photographs(
    name: str, _measured: int, sizes: dict[str, Any], masked: bool
) -> tuple[Any, Examples, Examples, Any]:
    """Return (processor, training examples, validation examples, collate function) of the photographs `name`.

    They have classes, or with `masked` hidden patches to fill in. `sizes`: the model's configuration (image and patch
    size).
    """
    from transformers import ViTImageProcessorPil

    side = sizes["image_size"]
    patches = (sizes["image_size"] // sizes["patch_size"]) ** 2
    processor = ViTImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    pixels, labels = _read_pixels(list_files(name)[0])
    examples: Examples = [
        {"pixels": x, "labels": y} for x, y in zip(pixels, labels, strict=True)
    ]
    if masked:
        # One mask for each validation photograph, for all of training.
        drawn = (
            torch.rand(VALIDATION, patches, generator=torch.Generator().manual_seed(0))
            < HIDDEN
        )
        for example, hidden in zip(examples[-VALIDATION:], drawn, strict=True):
            example["hidden"] = hidden

    def collate(chosen: Examples) -> dict[str, Any]:
        """Make a batch: pixel_values [image, channel, height, width], with labels [image] or bool_masked_pos [image,
        patch].

        Hidden patches that were not drawn before are drawn now.
        """
        # From −1 to 1, as the processor does.
        pixels = torch.stack([example["pixels"] for example in chosen]) / 127.5 - 1
        given = {"pixel_values": pixels}
        if not masked:
            return given | {"labels": torch.tensor([e["labels"] for e in chosen])}
        hidden = []
        for example in chosen:
            if "hidden" in example:
                hidden.append(example["hidden"])
            else:
                hidden.append(torch.rand(patches) < HIDDEN)
        return given | {"bool_masked_pos": torch.stack(hidden)}

    return processor, examples[:-VALIDATION], examples[-VALIDATION:], collate


def read_speaker(path: Path) -> str:
    """Return the speaker of a LibriSpeech clip, the first part of `SPEAKER-CHAPTER-NUMBER.flac`."""
    return path.stem.partition("-")[0]


def make_clips(
    name: str, measured: int, sizes: dict[str, Any], masked: bool
) -> tuple[Any, Examples, Examples, Any]:
    """Return (processor, training examples, validation examples, collate function) of two-second pieces of the clips
    `name`.

    The first `measured` speakers are left out, since models are measured on them. With `masked`, batches hold the
    hidden spans. `sizes`: the model's configuration.
    """
    from transformers import Wav2Vec2FeatureExtractor

    made_by: Any = Wav2Vec2FeatureExtractor
    # Every clip gets mean 0 and variance 1, as wav2vec 2.0 expects.
    extractor = made_by(
        sampling_rate=RATE, do_normalize=True, return_attention_mask=True
    )
    # Parts are divided by speaker, so that no voice is in two of them; the last speaker's clips validate.
    speakers = sorted({read_speaker(path) for path in list_files(name)})
    *seen, last = speakers[measured:]
    frames = _count_frames(sizes)
    spans = partial(_draw_spans, frames, sizes["num_negatives"])
    train = [{"samples": piece} for piece in _iter_pieces_of(name, seen)]
    # Hidden spans of validation are drawn once: its losses at different steps can be compared.
    once = np.random.default_rng(0)
    held = []
    for piece in _iter_pieces_of(name, [last]):
        hidden, others = spans(once)
        held.append({"samples": piece, "hidden": hidden, "others": others})

    def collate(chosen: Examples) -> dict[str, Any]:
        """Make a batch: input_values [piece, sample], and with `masked` the hidden frames and, for each, others to tell
        it from.

        Hidden spans that were not drawn before are drawn now.
        """
        made = extractor(
            [e["samples"] for e in chosen], sampling_rate=RATE, return_tensors="pt"
        )
        # Seeded by torch's generator, whose state is saved with a training: an interrupted one goes on alike.
        free = np.random.default_rng(int(torch.randint(1 << 31, ())))
        drawn = []
        for example in chosen:
            if "hidden" in example:
                drawn.append((example["hidden"], example["others"]))
            else:
                drawn.append(spans(free))
        if not masked:
            return dict(made)
        hidden, others = (
            torch.from_numpy(np.stack(x)) for x in zip(*drawn, strict=True)
        )
        # The model counts frames over the whole batch.
        first = frames * torch.arange(len(chosen)).view(-1, 1, 1)
        given = {
            "mask_time_indices": hidden,
            "sampled_negative_indices": others + first,
        }
        return {"input_values": made["input_values"], **given}

    return extractor, train, held, collate


def _count_frames(sizes: dict[str, Any]) -> int:
    """Return the number of frames that a piece has after the convolutions; `sizes`: the model's configuration."""
    frames = RATE * SECONDS
    for kernel, stride in zip(sizes["conv_kernel"], sizes["conv_stride"], strict=True):
        # A convolution without padding.
        frames = (frames - kernel) // stride + 1
    return int(frames)


def _iter_pieces_of(name: str, speakers: Container[str]) -> Iterator[Any]:
    """Yield the pieces [sample] of all clips of some speakers of the corpus `name`."""
    for path in list_files(name):
        if read_speaker(path) in speakers:
            yield from _iter_pieces(path)


def _iter_pieces(path: Path) -> Iterator[Any]:
    """Yield the pieces [sample] of a clip, two seconds each; the rest is dropped."""
    import soundfile  # type: ignore[import-untyped]

    samples, _rate = soundfile.read(path, dtype="float32")
    # The + 1 keeps a last piece that ends exactly with the clip.
    for start, end in pairwise(range(0, len(samples) + 1, RATE * SECONDS)):
        yield samples[start:end]


def _draw_spans(
    frames: int, negatives: int, rng: np.random.Generator
) -> tuple[Any, Any]:
    """Draw hidden spans of frames; return (hidden [frame], indices of other hidden frames [frame, negative]).

    `negatives`: how many others each hidden frame gets.
    """
    # Spans may overlap, so that they hide less than the share `BEGUN`.
    starts = rng.choice(frames - SPAN, round(BEGUN * frames / SPAN), replace=False)
    hidden = np.zeros(frames, bool)
    hidden[(starts[:, None] + np.arange(SPAN)).ravel()] = True
    places = np.flatnonzero(hidden)
    # Each hidden frame draws among the others: numbers from its own place on move up by
    # one.
    drawn = rng.integers(len(places) - 1, size=(len(places), negatives))
    others = np.zeros((frames, negatives), np.int64)
    others[places] = places[drawn + (drawn >= np.arange(len(places))[:, None])]
    return hidden, others
