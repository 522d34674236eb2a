"""Image corpora: a folder, a manifest, a hub data set or the built-in digits in; images, and batches of them, out."""

import json
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps

from anisoscope.batch import Batch
from anisoscope.data.hub_media import HubPreset, Part, hub_items
from anisoscope.data.items import Found, Gathered, Item, find_path, gather, local_items, unknown
from anisoscope.data.plans import Index, digest
from anisoscope.errors import CorpusError, UsageError

__all__ = ["HUB_PRESETS", "ImageCorpus", "ImagePlan", "open_images", "picture", "plan_images"]

HUB_PRESETS = {
    "imagenet-1k": HubPreset(
        "ILSVRC/imagenet-1k",
        None,
        "validation",
        "ImageNet is gated: accept its terms on huggingface.co/datasets/ILSVRC/imagenet-1k and `hf auth login`",
    ),
}
DIGITS = "builtin:digits"

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Means and deviations of ImageNet's red, green and blue in 0 … 1; what models trained on it expect."""

SIZE, RESIZED = 224, 256
"""Side of the square a model reads where it does not say; the shorter side is resized to 256/224 of it first."""

PATCH = 16
"""Pixels a position's side, to count positions for the budget of a batch."""

FIXED_SIZE = ("vit", "deit", "beit", "data2vec-vision", "vit_mae")
"""Families whose position table takes one size only."""

_ALPHA = ("RGBA", "LA", "PA", "RGBa", "La")


@dataclass(frozen=True)
class ImageCorpus:
    """Images in order, decoded on demand. `unit` [image]: the image, or the unit that a manifest names."""

    name: str
    images: list[Item] = field(repr=False)
    unit: Index = field(repr=False)
    fingerprint: str
    source: dict[str, object]
    keep: Any = field(default=None, repr=False)


def open_images(
    name: str,
    *,
    split: str | None = None,
    column: str | None = None,
    config: str | None = None,
    revision: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
) -> ImageCorpus:
    """The images that `name` stands for, tried in this order: built in, preset, path here, path under
    $ANISOSCOPE_DATA, data set of the hub (`id[:config][@revision]`). A path is an image, a folder of them or a
    manifest with a column of paths.

    limit     the first images only
    skip_bad  decode every image now, leave out those that cannot be, and count them; else headers are checked now,
              and the first image that cannot be decoded ends the run
    """
    if limit is not None and limit < 1:
        raise UsageError("a limit of at least 1 unit", str(limit), "raise --limit, or leave it out")
    part = Part(config, split, revision, column)
    path = None if name == DIGITS or name in HUB_PRESETS else find_path(name)
    if path is not None or name == DIGITS:
        (part if path is None else part._replace(column=None)).refuse(name)
    found = _digits() if name == DIGITS else local_items(path, "image", column) if path else None
    found = found or hub_items(name, part, HUB_PRESETS, "image")
    if found is None:
        raise unknown(name, [DIGITS, *HUB_PRESETS], "image")
    images: Gathered[str] = gather(
        name, found, lambda item, data: _check(item.name, data, skip_bad), limit=limit, skip_bad=skip_bad
    )
    source = {**images.source, "formats": dict(Counter(images.infos).most_common(20))}
    return ImageCorpus(name, images.items, images.unit, images.fingerprint, source, images.keep)


def _digits() -> Found:
    """The 1,797 handwritten digits of scikit-learn, 8 × 8 pixels of 17 levels, as grey images of 256."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    pixels = np.rint(load_digits().images * (255 / 16)).astype(np.uint8)
    items = [Item(f"digit {k}", None, b"P5 8 8 255\n" + image.tobytes()) for k, image in enumerate(pixels)]
    return Found(items, {"kind": "builtin"})


def picture(name: str, data: bytes, mode: str = "RGB") -> Image.Image:
    """The first image in the encoded `data` as 8 bits per channel, `RGB` or grey (`L`), upright. CorpusError where it
    cannot be decoded to its end, or where its range is not known.

    Palettes are looked up; transparent pixels are laid on white. CMYK and L*a*b*, whose red, green and blue depend on a
    colour profile, and pixels of more than 8 bits a channel are refused.
    """
    image = _opened(name, data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image.load()
        image = ImageOps.exif_transpose(image)
        return _on_white(image).convert(mode)
    except (OSError, ValueError, SyntaxError) as error:
        raise _bad(name, f"damaged after its header: {error}") from None


def _on_white(image: Image.Image) -> Image.Image:
    if "transparency" not in image.info and image.mode not in _ALPHA:
        return image
    layer = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)


def _check(name: str, data: bytes, decode: bool) -> str:
    """The format and mode of an image, from its header; decoded too where asked."""
    image = _opened(name, data)
    if decode:
        picture(name, data)
    return f"{image.format} {image.mode}"


def _opened(name: str, data: bytes) -> Image.Image:
    if not data:
        raise _bad(name, "an empty file")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image = Image.open(BytesIO(data))
    except Image.DecompressionBombError:
        raise _bad(name, "more pixels than any photograph has") from None
    except (OSError, ValueError, SyntaxError):
        raise _bad(name, "it is no image") from None
    refused = _refused(image)
    if refused:
        raise _bad(name, refused)
    return image


def _refused(image: Image.Image) -> str:
    """Why an image has no red, green and blue of 8 bits; empty where it has. Of 16 bits a channel the library keeps the
    upper 8 and says so only in how it would read them.
    """
    if image.mode in ("CMYK", "LAB"):
        return f"{image.mode} colours"
    if image.mode in ("I", "F"):
        return "32-bit pixels"
    deep = image.mode.startswith("I;16") or any(";16" in str(tile) for tile in getattr(image, "tile", ()))
    return "16-bit pixels" if deep else ""


def _bad(name: str, got: str) -> CorpusError:
    cure = "convert it to RGB of 8 bits, or pass --skip-bad" if "-bit pixels" in got or "colours" in got else ""
    return CorpusError(f"an image in {name}", got, cure or "repair or remove it, or pass --skip-bad")


def plan_images(corpus: ImageCorpus, model: Any, processor: Any = None, *, batch_tokens: int = 4096) -> "ImagePlan":
    """Images in batches of at most `batch_tokens` positions (patches of the model, or squares of 16 pixels).

    processor  the checkpoint's image processor, alone or inside a processor; else the shorter side to 256/224 of the
               model's size, the square in the middle, ImageNet's mean and deviation
    """
    config = model.config
    processor = getattr(processor, "image_processor", processor)
    given = hasattr(processor, "image_mean") or hasattr(processor, "do_resize")
    if not given:
        processor = _default_processor(config)
    described = {key: value for key, value in processor.to_dict().items() if not key.startswith("_")}
    described = json.loads(json.dumps(described, default=str))
    settings = {"processor": "checkpoint" if given else "default", "values": described, "batch_tokens": batch_tokens}
    return ImagePlan(corpus, config, processor, settings)


def _default_processor(config: Any) -> Any:
    from transformers import CLIPImageProcessorPil

    size = getattr(config, "image_size", None) or SIZE
    height, width = (int(size), int(size)) if isinstance(size, int | float) else (int(size[0]), int(size[1]))
    grey = getattr(config, "num_channels", 3) == 1
    return CLIPImageProcessorPil(
        size={"shortest_edge": round(max(height, width) * RESIZED / SIZE)},
        crop_size={"height": height, "width": width},
        image_mean=[0.5] if grey else list(MEAN),
        image_std=[0.5] if grey else list(DEVIATION),
        resample=Image.Resampling.BICUBIC,
        do_convert_rgb=False,
    )


class ImagePlan:
    """The batches of one image corpus for one model: `plan[i]` decodes and builds batch i, the same for every process.

    `tokens` counts images; which positions of a model are patches, and which its own class token, the model says.
    """

    def __init__(self, corpus: ImageCorpus, config: Any, processor: Any, settings: dict[str, Any]) -> None:
        self.corpus, self.processor, self.settings = corpus, processor, settings
        self.mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        self.warnings: list[str] = []
        patches = hasattr(config, "patch_size") and hasattr(config, "num_attention_heads")
        unit = "image" if corpus.source.get("unit") == "file" else str(corpus.source.get("unit"))
        position = "patch" if patches else "position"
        self.words = {"position": position, "sequence": "image", "unit": unit, "counted": "image"}
        self.frequency_bins: list[str] = []
        self.fingerprint = digest([corpus.fingerprint, settings])
        self.n_units = len(np.unique(corpus.unit))
        height, width = self._pixels([0]).shape[-2:]
        _check_size(config, height, width)
        patch = getattr(config, "patch_size", None)
        side = patch if isinstance(patch, int) else PATCH
        rows = max(1, settings["batch_tokens"] // max(1, (height // side) * (width // side)))
        order = np.arange(len(corpus.images))
        self._batches = [order[first : first + rows] for first in range(0, len(order), rows)]
        self.tokens = [len(rows) for rows in self._batches]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: int) -> Batch:
        rows = self._batches[index]
        return Batch({"pixel_values": self._pixels(rows.tolist())}, torch.from_numpy(self.corpus.unit[rows]))

    def _pixels(self, rows: list[int]) -> torch.Tensor:
        """[image, channel, height, width] as the processor makes them."""
        items = [self.corpus.images[row] for row in rows]
        pictures = [picture(item.name, item.read(), self.mode) for item in items]
        made = [self.processor(images=[image], return_tensors="pt")["pixel_values"][0] for image in pictures]
        shapes = sorted({tuple(x.shape) for x in made})
        if len(shapes) > 1:
            got = f"images of {' and '.join(map(str, shapes[:3]))}"
            raise UsageError("an image processor that makes all images one size", got, "let it crop or resize to one")
        return torch.stack(made)


def _check_size(config: Any, height: int, width: int) -> None:
    size = getattr(config, "image_size", None)
    if getattr(config, "model_type", "") not in FIXED_SIZE or not size:
        return
    wanted = (size, size) if isinstance(size, int) else tuple(size)
    if (height, width) != wanted:
        expected = f"images of {wanted[0]} × {wanted[1]} pixels, which the model reads"
        raise UsageError(expected, f"{height} × {width}", "use the image processor published with the model")
