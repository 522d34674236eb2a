"""Image corpora: read a folder, a manifest, a hub data set or the built-in digits, and batch the images for a model."""

import warnings
from collections import Counter
from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from anisoscope.batch import Batch
from anisoscope.data.corpora import CorpusOptions
from anisoscope.data.items import FoundItems, Item
from anisoscope.data.media import MediaCorpus, open_media
from anisoscope.data.plans import Index, Plan, batch_in_order
from anisoscope.errors import CorpusError, UsageError
from anisoscope.extras import require_extra
from anisoscope.provenance import json_roundtrip

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Means and deviations of ImageNet's red, green and blue in 0 … 1; what models trained on it expect."""

# side of a model's square; the shorter side is resized to 256/224 of it first
SIZE, RESIZED = 224, 256
PATCH = 16  # pixels a position's side, to count positions for the budget of a batch
# families whose position table takes one size only
FIXED_SIZE = ("vit", "deit", "beit", "data2vec-vision", "vit_mae")
_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")


def open_images(name: str, **options: Any) -> MediaCorpus:
    """Open an image corpus: a file, folder, manifest, hub data set, or the digits. Each image is a unit.

    options   fields of `CorpusOptions`
    """
    corpus = open_media(name, "image", CorpusOptions(**options), check_image)
    return replace(
        corpus,
        source={
            **corpus.source,
            "formats": dict(Counter(corpus.infos).most_common(20)),
        },
    )


def digits() -> FoundItems:
    """Return the 1,797 handwritten digits of scikit-learn as 8 × 8 greyscale images with 8 bits a pixel."""
    require_extra("data", "to read builtin:digits")
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    # scikit-learn has them in 0 … 16
    pixels = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    # PGM, the plainest format of grey images: a header, then the pixels
    items = [
        Item(f"digit {k}", None, b"P5 8 8 255\n" + image.tobytes())
        for k, image in enumerate(pixels)
    ]
    return FoundItems(items, {"kind": "builtin"})


def decode_picture(name: str, data: bytes, mode: str = "RGB") -> Image.Image:
    """Decode the first image in `data`: 8 bits per channel, `RGB` or grey (`L`), upright, transparency on white.

    CorpusError if it cannot be decoded to its end, has more than 8 bits a channel, or has colours that depend on a
    profile (CMYK, L*a*b*).

    name   of the image, for errors
    data   the encoded bytes
    """
    image = _open_image(name, data)
    try:
        # Pillow warns of large pictures; those above its limit were refused when they
        # were opened.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image.load()
        # cameras store a turned image as it fell on the sensor, with a note how to turn it
        image = ImageOps.exif_transpose(image)
        if "transparency" in image.info or image.mode in _ALPHA:
            # dropping the alpha channel would show whatever colour lies under what is transparent
            layer = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
        return image.convert(mode)
    except (OSError, ValueError, SyntaxError) as error:
        raise _refuse_image(name, f"damaged after its header: {error}") from None


def check_image(name: str, data: bytes, decode: bool) -> str:
    """Return the format and mode of an image (`JPEG RGB`) from its header; with `decode`, decode all of it too.

    name   of the image, for errors
    data   the encoded bytes
    """
    image = _open_image(name, data)
    if decode:
        decode_picture(name, data)
    return f"{image.format} {image.mode}"


def _open_image(name: str, data: bytes) -> Image.Image:
    """Open an image and read its header. CorpusError unless it has 8-bit channels of red, green and blue, or grey.

    name   of the image, for errors
    data   the encoded bytes
    """
    if not data:
        raise _refuse_image(name, "an empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(BytesIO(data))
    except Image.DecompressionBombError:
        raise _refuse_image(name, "more pixels than any photograph has") from None
    except (OSError, ValueError, SyntaxError):
        raise _refuse_image(name, "it is no image") from None
    cure = "convert it to RGB of 8 bits, or pass --skip-bad"
    if image.mode in ("CMYK", "LAB"):
        raise _refuse_image(name, f"{image.mode} colours", cure)
    if image.mode in ("I", "F"):
        raise _refuse_image(name, "32-bit pixels", cure)
    # of 16 bits a channel the library keeps the upper 8 and says so only in how it would read them
    if image.mode.startswith("I;16") or any(
        ";16" in str(tile) for tile in getattr(image, "tile", ())
    ):
        raise _refuse_image(name, "16-bit pixels", cure)
    return image


def _refuse_image(
    name: str, got: str, cure: str = "repair or remove it, or pass --skip-bad"
) -> CorpusError:
    """Make the error for an unusable image. The caller raises it.

    name   of the image
    got    what was found in it
    cure   what to do
    """
    return CorpusError(f"an image in {name}", got, cure)


def _default_processor(config: Any) -> Any:
    """Return an image processor with the usual preprocessing, for a checkpoint that has none.

    config   the model's configuration
    """
    from transformers import CLIPImageProcessorPil

    height, width = _get_sides(getattr(config, "image_size", None) or SIZE)
    mean, deviation = list(MEAN), list(DEVIATION)
    # ImageNet says nothing of grey images
    if getattr(config, "num_channels", 3) == 1:
        mean, deviation = [0.5], [0.5]
    return CLIPImageProcessorPil(
        size={"shortest_edge": round(max(height, width) * RESIZED / SIZE)},
        crop_size={"height": height, "width": width},
        image_mean=mean,
        image_std=deviation,
        resample=Image.Resampling.BICUBIC,
        do_convert_rgb=False,
    )


def _get_sides(size: Any) -> tuple[int, int]:
    """Return (height, width) of a size in a configuration: two numbers, or one for a square."""
    if isinstance(size, int | float):
        return int(size), int(size)
    return int(size[0]), int(size[1])


def _require_size(config: Any, height: int, width: int) -> None:
    """Raise UsageError if the model reads images of one size only, and these have another."""
    size = getattr(config, "image_size", None)
    if not size or getattr(config, "model_type", "") not in FIXED_SIZE:
        return
    if (height, width) != _get_sides(size):
        expected = "images of {} × {} pixels, which the model reads".format(
            *_get_sides(size)
        )
        raise UsageError(
            expected,
            f"{height} × {width}",
            "use the image processor published with the model",
        )


class ImagePlan(Plan):
    """The batches of an image corpus for one model, decoded on demand.

    A batch has at most `batch_tokens` positions (patches, or squares of 16 pixels). `tokens` counts images.

    processor  the checkpoint's image processor, alone or inside a processor. Without one: resize the shorter side to
               256/224 of the model's size, crop the square in the middle, use ImageNet's mean and deviation
    """

    def __init__(
        self,
        corpus: MediaCorpus,
        model: Any,
        processor: Any = None,
        *,
        batch_tokens: int = 4096,
    ) -> None:
        """Prepare batches of a corpus for a model; the first image is decoded to learn the size. UsageError if it does
        not fit.
        """
        config = getattr(model, "config", None)
        self.corpus = corpus
        self.processor = getattr(processor, "image_processor", processor)
        # a text model's tokenizer, or nothing, may come in place of an image processor
        is_given = any(
            hasattr(self.processor, name)
            for name in ("image_mean", "do_resize", "data_config")
        )
        if not is_given:
            self.processor = _default_processor(config)
        # private fields change no pixel, and differ between versions of transformers
        described = {
            key: value
            for key, value in self.processor.to_dict().items()
            if not key.startswith("_")
        }
        self.settings = {
            "processor": "checkpoint" if is_given else "default",
            "values": json_roundtrip(described),
            "batch_tokens": batch_tokens,
        }
        self.mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        height, width = self._pixels([0]).shape[-2:]
        _require_size(config, height, width)
        side = getattr(config, "patch_size", None)
        if not isinstance(side, int):
            side = PATCH
        positions = (height // side) * (width // side)
        rows = max(1, batch_tokens // max(1, positions))
        # a convolutional network may have a patch size too, and no positions that attend to each other
        has_patches = hasattr(config, "patch_size") and hasattr(
            config, "num_attention_heads"
        )
        words = {
            "position": "patch" if has_patches else "position",
            "sequence": "image",
            "counted": "image",
            "unit": corpus.unit_word("image"),
        }
        count = len(corpus.items)
        identity = [corpus.fingerprint, self.settings]
        super().__init__(
            batch_in_order(count, rows),
            np.ones(count, np.int64),
            corpus.unit,
            identity,
            words,
        )

    def build(self, rows: Index) -> Batch:
        """Build the batch of these images, decoded and preprocessed."""
        return Batch(
            {"pixel_values": self._pixels(rows.tolist())},
            torch.from_numpy(self.unit[rows]),
        )

    def _pixels(self, rows: list[int]) -> torch.Tensor:
        """Return the preprocessed pixels [image, channel, height, width]. UsageError if the images differ in size."""
        pixels = []
        for row in rows:
            item = self.corpus.items[row]
            image = decode_picture(item.name, item.read(), self.mode)
            # one by one: a processor given images of several sizes fails in words of its own
            pixels.append(
                self.processor(images=[image], return_tensors="pt")["pixel_values"][0]
            )
        shapes = sorted({tuple(x.shape) for x in pixels})
        if len(shapes) > 1:
            got = f"images of {' and '.join(map(str, shapes[:3]))}"
            raise UsageError(
                "an image processor that makes all images one size",
                got,
                "let it resize or crop all images to one size",
            )
        return torch.stack(pixels)
