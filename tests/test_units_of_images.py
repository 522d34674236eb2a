"""Images: which pixels are decoded or refused, the usual preprocessing, and how many images share a batch."""

import warnings
from collections import Counter
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from anisoscope.data import images
from anisoscope.data.images import ImagePlan, check_image, decode_picture, digits
from anisoscope.data.items import Item
from anisoscope.errors import CorpusError, UsageError


def encode(image, form="PNG", **how):
    file = BytesIO()
    image.save(file, form, **how)
    return file.getvalue()


def decode(image, form="PNG", mode="RGB", **how):
    return np.asarray(decode_picture("n", encode(image, form, **how), mode))


# ---- decoding --------------------------------------------------------------------------------------------------------


def test_transparency_is_white_in_every_mode_that_has_it():
    """A fifth of black on white is 204; what is transparent by a note alone is white too."""
    for image in (
        Image.new("RGBA", (2, 2), (0, 0, 0, 51)),
        Image.new("LA", (2, 2), (0, 51)),
    ):
        assert decode(image)[1, 1].tolist() == [204] * 3
        assert decode(image, mode="L")[1, 1] == 204
    grey = Image.new("L", (2, 1), 7)
    grey.putpixel((1, 0), 9)
    assert decode(grey, transparency=7)[0].tolist() == [[255] * 3, [9] * 3]
    palette = Image.new("P", (2, 1), 1)
    palette.putpalette([10, 20, 30, 40, 50, 60])
    palette.putpixel((1, 0), 0)
    assert decode(palette, "GIF", transparency=1)[0].tolist() == [[255] * 3, [10, 20, 30]]  # fmt: skip
    assert decode(palette)[0].tolist() == [[40, 50, 60], [10, 20, 30]]


def test_a_note_how_to_turn_an_image_is_followed():
    image = Image.new("RGB", (2, 1), "black")
    image.putpixel((1, 0), (255, 0, 0))
    for note, red in ((1, (0, 1)), (3, (0, 0)), (6, (1, 0)), (8, (0, 0))):
        exif = Image.Exif()
        exif[0x0112] = note
        pixels = decode(image, exif=exif)
        assert pixels.shape == ((1, 2, 3) if note in (1, 3) else (2, 1, 3))
        assert pixels[red].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("mode", "form", "got"),
    [
        ("CMYK", "TIFF", "CMYK colours"),
        ("LAB", "TIFF", "LAB colours"),
        ("I", "TIFF", "32-bit pixels"),
        ("F", "TIFF", "32-bit pixels"),
        ("I;16", "PNG", "16-bit pixels"),
        ("I;16", "TIFF", "16-bit pixels"),
    ],
)
def test_colours_and_depths_that_are_refused_have_a_cure(mode, form, got):
    data = encode(Image.new(mode, (2, 2)), form)
    for call in (decode_picture, lambda n, d: check_image(n, d, False)):
        with pytest.raises(CorpusError) as error:
            call("a.x", data)
        assert str(error.value) == (
            f"expected an image in a.x; got {got}. Cure: convert it to RGB of 8 bits, or pass --skip-bad"
        )


def test_what_is_no_image_or_is_damaged():
    """Damage behind the header is seen only if all of it is decoded."""
    data = encode(Image.effect_noise((64, 64), 50))
    cure = "Cure: repair or remove it, or pass --skip-bad"
    for bad, got in (
        (b"", "an empty file"),
        (b"hello" * 9, "it is no image"),
    ):
        with pytest.raises(CorpusError) as error:
            check_image("a.x", bad, False)
        assert str(error.value) == f"expected an image in a.x; got {got}. {cure}"
    broken = data[: len(data) // 2]
    assert check_image("a.x", broken, False) == "PNG L"
    with pytest.raises(CorpusError, match=r"an image in a\.x; got damaged after its h"):
        check_image("a.x", broken, True)
    assert check_image("a.x", data, True) == "PNG L"
    assert check_image("a.x", encode(Image.new("RGB", (2, 2)), "BMP"), True) == "BMP RGB"  # fmt: skip


def test_digits_are_black_and_white_at_their_ends(monkeypatch):
    """Levels 0, 8 and 16 of scikit-learn are 0, 128 and 255."""
    import sklearn.datasets

    level = np.zeros((2, 8, 8))
    level[1, 3, 2], level[1, 7, 7] = 8, 16
    monkeypatch.setattr(sklearn.datasets, "load_digits", lambda: SimpleNamespace(images=level))  # fmt: skip
    found = digits()
    assert found.source == {"kind": "builtin"}
    assert [item.name for item in found.items] == ["digit 0", "digit 1"]
    first, second = (
        np.asarray(decode_picture(i.name, i.read(), "L")) for i in found.items
    )
    assert first.shape == (8, 8) and not first.any()
    assert (second[3, 2], second[7, 7], second.sum()) == (128, 255, 383)


def test_formats_of_a_corpus_are_counted(tmp_path):
    for k in range(3):
        (tmp_path / f"{k}.png").write_bytes(encode(Image.new("RGB", (2, 2), k)))
    (tmp_path / "x.bmp").write_bytes(encode(Image.new("L", (2, 2)), "BMP"))
    corpus = images.open_images(str(tmp_path))
    assert corpus.source["formats"] == {"PNG RGB": 3, "BMP L": 1}
    assert corpus.infos == ["PNG RGB"] * 3 + ["BMP L"]


# ---- preprocessing ---------------------------------------------------------------------------------------------------


def test_the_usual_preprocessing_has_the_sides_of_the_model():
    """The longer side times 256/224; grey images have a mean and deviation of their own."""
    found = images._default_processor(SimpleNamespace(image_size=(112, 224))).to_dict()
    assert found["size"] == {"shortest_edge": 256}
    assert found["crop_size"] == {"height": 112, "width": 224}
    assert tuple(found["image_mean"]) == (0.485, 0.456, 0.406)
    assert tuple(found["image_std"]) == (0.229, 0.224, 0.225)
    assert found["resample"] == 3 and found["do_convert_rgb"] is False
    for config in (SimpleNamespace(), SimpleNamespace(image_size=None)):
        found = images._default_processor(config).to_dict()
        assert found["crop_size"] == {"height": 224, "width": 224}
    grey = SimpleNamespace(image_size=28.0, num_channels=1)
    found = images._default_processor(grey).to_dict()
    assert found["crop_size"] == {"height": 28, "width": 28}
    assert found["size"] == {"shortest_edge": 32}
    assert [*found["image_mean"], *found["image_std"]] == [0.5, 0.5]


def test_a_model_of_one_size_reads_no_other():
    for family in ("vit", "deit", "beit", "data2vec-vision", "vit_mae"):
        config = SimpleNamespace(image_size=(16, 32), model_type=family)
        images._require_size(config, 16, 32)
        with pytest.raises(UsageError) as error:
            images._require_size(config, 32, 16)
        assert str(error.value) == (
            "expected images of 16 × 32 pixels, which the model reads; got 32 × 16. "
            "Cure: use the image processor published with the model"
        )
    square = SimpleNamespace(image_size=16, model_type="vit")
    images._require_size(square, 16, 16)
    for sides in ((16, 17), (17, 16)):
        with pytest.raises(UsageError, match=r"images of 16 × 16 pixels.*got {} × {}".format(*sides)):  # fmt: skip
            images._require_size(square, *sides)
    for config in (
        SimpleNamespace(image_size=16, model_type="swin"),
        SimpleNamespace(model_type="vit"),
        None,
    ):
        images._require_size(config, 1, 2)


# ---- batches ---------------------------------------------------------------------------------------------------------


class Processor:
    """Leaves the pixels as they are; `asked` has the mode of each image."""

    image_mean = 0

    def __init__(self, **settings):
        self.settings, self.asked = settings, []

    def to_dict(self):
        return {"size": 1, "_private": id(self)} | self.settings

    def __call__(self, images, **_how):
        (image,) = images
        self.asked.append(image.mode)
        pixels = torch.from_numpy(np.array(image))
        if pixels.dim() == 2:
            pixels = pixels[..., None]
        return {"pixel_values": pixels.movedim(-1, 0)[None].float()}


def corpus_of(*sizes, unit=None, word="image"):
    """Images of these widths and heights, each of one shade."""
    found = [
        Item(f"i{k}", None, encode(Image.new("RGB", size, (k + 1, 0, 0))))
        for k, size in enumerate(sizes)
    ]
    unit = np.arange(len(found)) if unit is None else np.array(unit)
    return SimpleNamespace(
        items=found, unit=unit, fingerprint="print", unit_word=lambda _: word
    )


def plan_of(corpus, processor=None, budget=4096, **config):
    model = SimpleNamespace(config=SimpleNamespace(**config))
    return ImagePlan(corpus, model, processor or Processor(), batch_tokens=budget)


def test_batches_have_so_many_patches():
    """Images of 8 × 24 pixels have 2 × 6 patches of 4; without a patch size squares of 16 count, at least one."""
    corpus = corpus_of(*[(24, 8)] * 5)
    for budget, config, sizes in (
        (36, {"patch_size": 4}, [3, 2]),
        (35, {"patch_size": 4}, [2, 2, 1]),
        (1, {"patch_size": 4}, [1] * 5),
        (6, {"patch_size": 8}, [2, 2, 1]),
        (2, {"patch_size": (4, 4)}, [2, 2, 1]),
        (2, {}, [2, 2, 1]),
        (4096, {}, [5]),
    ):
        plan = plan_of(corpus, budget=budget, **config)
        assert [len(rows) for rows in plan.batches] == sizes
        assert plan.settings["batch_tokens"] == budget and plan.tokens == sizes


def test_a_batch_has_the_pixels_and_units_of_its_images():
    corpus = corpus_of((3, 2), (3, 2), (3, 2), unit=[4, 7, 4])
    plan = plan_of(corpus)
    batch = plan.build(np.array([2, 1]))
    pixels = batch.inputs["pixel_values"]
    assert pixels.shape == (2, 3, 2, 3) and pixels[:, 0, 0, 0].tolist() == [3, 2]
    assert batch.unit.tolist() == [4, 7] and plan.n_units == 2
    grey = Processor()
    batch = plan_of(corpus, grey, num_channels=1)[0]
    assert batch.inputs["pixel_values"].shape == (3, 1, 2, 3)
    assert Counter(grey.asked) == {"L": 4}, "the first is decoded once more"


def test_images_of_several_sizes_are_refused_by_name():
    plan = plan_of(corpus_of((3, 2), (4, 2)))
    with pytest.raises(UsageError) as error:
        list(plan)
    assert str(error.value) == (
        "expected an image processor that makes all images one size; got images of (3, 2, 3) and (3, 2, 4). "
        "Cure: let it resize or crop all images to one size"
    )


def test_words_and_settings_of_a_plan():
    corpus = corpus_of((3, 2), word="speaker")
    plan = plan_of(corpus, patch_size=1, num_attention_heads=2)
    names = ("position", "sequence", "counted", "unit")
    assert [plan.words[name] for name in names] == ["patch", "image", "image", "speaker"]  # fmt: skip
    for config in ({"patch_size": 1}, {"num_attention_heads": 2}, {}):
        assert plan_of(corpus, **config).words["position"] == "position"
    assert plan.settings == {"processor": "checkpoint", "values": {"size": 1}, "batch_tokens": 4096}  # fmt: skip
    inside = SimpleNamespace(image_processor=Processor(size=5))
    assert plan_of(corpus, inside).settings["values"] == {"size": 5}
    default = plan_of(corpus, SimpleNamespace(vocab="x"), image_size=8)
    assert default.settings["processor"] == "default"
    assert default.settings["values"]["crop_size"] == {"height": 8, "width": 8}


def test_what_changes_pixels_or_batches_changes_the_hash_of_a_plan():
    corpus, other = corpus_of((3, 2)), corpus_of((3, 2))
    other.fingerprint = "another"
    plans = (
        plan_of(corpus),
        plan_of(corpus, Processor(size=2)),
        plan_of(corpus, budget=100),
        plan_of(other),
        plan_of(corpus, SimpleNamespace(), image_size=2),
    )
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert plan_of(corpus).fingerprint == plans[0].fingerprint, "private fields differ"


def test_pictures_of_very_many_pixels(monkeypatch):
    """Up to twice the library's limit they are read without a word; above it they are refused."""
    data = encode(Image.new("RGB", (4, 4), "red"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_picture("n", data).size == (4, 4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 7)
    with pytest.raises(CorpusError) as error:
        check_image("a.x", data, False)
    assert str(error.value) == (
        "expected an image in a.x; got more pixels than any photograph has. "
        "Cure: repair or remove it, or pass --skip-bad"
    )
