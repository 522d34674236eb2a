"""Image corpora: every kind of file made 8-bit RGB or refused by name; preprocessing recorded; batches."""

import struct
import zlib
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from tiny_models import build
from transformers import ConvNextImageProcessorPil, ViTImageProcessorPil

from anisoscope.data import hub
from anisoscope.data.corpora import list_corpora
from anisoscope.data.hub import HubSet
from anisoscope.data.images import MEAN, ImagePlan, decode_picture, open_images
from anisoscope.data.media import _iter_listed
from anisoscope.data.opening import default_corpus, open_plan
from anisoscope.errors import CorpusError, UsageError

RED = (250, 10, 30)


def saved(path, image, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def photograph(width=50, height=40, seed=0):
    pixels = np.random.default_rng(seed).integers(
        0, 256, (height, width, 3), dtype=np.uint8
    )
    return Image.fromarray(pixels)


def read(path, mode="RGB"):
    return np.asarray(decode_picture(path.name, path.read_bytes(), mode))


@pytest.fixture
def folder(tmp_path):
    for k, name in enumerate(("a.png", "b/b.PNG", "c.bmp")):
        saved(tmp_path / name, photograph(40 + 10 * k, seed=k))
    (tmp_path / "list.csv").write_text("label\n1\n")
    return tmp_path


@pytest.fixture(scope="module")
def vit():
    """A ViT of 32 × 32 pixels in patches of 8."""
    return build("vit", torch.float32)


def test_a_folder_is_read_in_the_order_of_its_paths_each_image_a_unit(folder):
    corpus = open_images(str(folder))
    assert [item.name for item in corpus.items] == ["a.png", "b/b.PNG", "c.bmp"]
    assert corpus.unit.tolist() == [0, 1, 2] and corpus.source["formats"] == {
        "PNG RGB": 2,
        "BMP RGB": 1,
    }
    assert len(open_images(str(folder), limit=2).items) == 2
    before = corpus.fingerprint
    saved(folder / "c.bmp", photograph(60, seed=9))
    assert open_images(str(folder)).fingerprint != before


@pytest.mark.usefixtures("data_folder")
def test_real_photographs(vit):
    assert "vision/imagenet_sample" in list_corpora()
    corpus = open_images("vision/imagenet_sample")
    assert len(corpus.items) == 250 and corpus.source["formats"] == {"JPEG RGB": 250}
    plan = ImagePlan(open_images("vision/imagenet_sample", limit=40), vit)
    pixels = torch.cat([batch.inputs["pixel_values"] for batch in plan])
    assert (
        pixels.shape == (40, 3, 32, 32)
        and abs(float(pixels.mean())) < 0.4
        and 0.6 < float(pixels.std()) < 1.4
    )


def test_the_digits_are_built_in(vit):
    corpus = open_images(default_corpus("image"))
    assert len(corpus.items) == 1797 and corpus.source["kind"] == "builtin"
    first = read_item(corpus.items[0])
    assert (
        first.shape == (8, 8, 3)
        and first[0, 2].tolist() == [80] * 3
        and first.max() == 239
    )  # levels 5 and 15 of 16
    batch = ImagePlan(open_images("builtin:digits", limit=5), vit)[0]
    assert batch.inputs["pixel_values"].shape == (
        5,
        3,
        32,
        32,
    ) and batch.unit.tolist() == [0, 1, 2, 3, 4]


def read_item(item):
    return np.asarray(decode_picture(item.name, item.read()))


def test_grey_palette_and_transparent_images(tmp_path):
    grey = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    assert np.array_equal(
        read(saved(tmp_path / "l.png", grey)),
        np.repeat(np.asarray(grey)[..., None], 3, 2),
    )
    assert (
        read(
            saved(tmp_path / "1.png", grey.point(lambda x: 255 * (x > 31)).convert("1"))
        ).max()
        == 255
    )
    palette = Image.new("RGB", (8, 8), RED).quantize(4)
    assert read(saved(tmp_path / "p.png", palette))[0, 0].tolist() == list(RED)
    layer = Image.new("RGBA", (8, 8), (*RED, 255))
    layer.putpixel((0, 0), (*RED, 0))
    pixels = read(saved(tmp_path / "rgba.png", layer))
    assert pixels[0, 0].tolist() == [255] * 3 and pixels[1, 1].tolist() == list(RED)
    faint = Image.new("LA", (8, 8), (100, 51))
    assert (
        abs(int(read(saved(tmp_path / "la.png", faint))[0, 0, 0]) - (255 - 0.2 * 155))
        <= 1
    )
    clear = saved(
        tmp_path / "clear.png", palette, transparency=palette.getpixel((0, 0))
    )
    assert read(clear)[0, 0].tolist() == [255] * 3


def test_a_model_of_one_channel_gets_grey_images(folder):
    config = SimpleNamespace(num_channels=1, image_size=32, patch_size=8)
    processor = ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=[0.0], image_std=[1.0]
    )
    plan = ImagePlan(
        open_images(str(folder)), SimpleNamespace(config=config), processor
    )
    assert plan[0].inputs["pixel_values"].shape == (3, 1, 32, 32)


def test_rotated_photographs_stand_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    assert read(
        saved(tmp_path / "turned.png", photograph(20, 10), exif=exif)
    ).shape == (20, 10, 3)


def test_inks_and_deep_pixels_are_named_and_counted_or_skipped(tmp_path):
    inks = Image.new("RGB", (16, 16), RED).convert("CMYK")
    ramp = np.linspace(0, 65_535, 256).round().astype(np.uint16).reshape(16, 16)
    for name, image in (
        ("a.tif", inks),
        ("b.jpg", inks),
        ("c.png", Image.fromarray(ramp)),
    ):
        saved(tmp_path / name, image)
    saved(tmp_path / "d.tif", Image.fromarray(np.full((8, 8), 70_000, np.int32)))
    saved(tmp_path / "e.tif", Image.fromarray(np.full((8, 8), 0.5, np.float32)))
    (tmp_path / "f.png").write_bytes(deep_png(ramp))
    saved(tmp_path / "good.png", photograph(20))
    with pytest.raises(
        CorpusError,
        match=r"6 faulty: a.tif \(CMYK colours\), b.jpg \(CMYK colours\), c.png \(16-bit",
    ):
        open_images(str(tmp_path))
    corpus = open_images(str(tmp_path), skip_bad=True)
    assert [image.name for image in corpus.items] == ["good.png"] and corpus.source[
        "skipped"
    ] == 6
    for name, got in (
        ("b.jpg", "CMYK colours"),
        ("e.tif", "32-bit pixels"),
        ("f.png", "16-bit pixels"),
    ):
        with pytest.raises(
            CorpusError, match=f"{name}; got {got}.*convert it to RGB of 8 bits"
        ):
            read(tmp_path / name)


def deep_png(grey):
    """A PNG of three channels of 16 bits, which the library opens as if it had 8."""
    rows = b"".join(b"\0" + np.repeat(row, 3).astype(">u2").tobytes() for row in grey)
    header = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 16, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    body = (
        struct.pack(">I", len(x)) + kind + x + struct.pack(">I", zlib.crc32(kind + x))
        for kind, x in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


@pytest.fixture
def broken(folder):
    """The images of `folder` beside three that cannot be read; `late.jpg` only fails when it is decoded."""
    (folder / "junk.jpg").write_bytes(b"hello" * 100)
    (folder / "nothing.png").write_bytes(b"")
    whole = saved(folder / "late.jpg", photograph(200, 200)).read_bytes()
    (folder / "late.jpg").write_bytes(whole[: len(whole) // 2])
    return folder


def test_files_that_are_no_images_are_named_and_counted_or_skipped(broken, vit):
    with pytest.raises(
        CorpusError,
        match=r"2 faulty: junk.jpg \(it is no image\), nothing.png .*--skip-bad",
    ):
        open_images(str(broken))
    corpus = open_images(str(broken), skip_bad=True)
    assert len(corpus.items) == 3 and corpus.source["skipped"] == 3
    _, described = open_plan(str(broken), vit, None, modality="image", skip_bad=True)
    assert described["warnings"] == ["3 unreadable items of the corpus left out"]
    for name in ("junk.jpg", "nothing.png"):
        (broken / name).unlink()
    with pytest.raises(
        CorpusError,
        match=r"an image in late.jpg; got damaged after its header.*--skip-bad",
    ):
        list(ImagePlan(open_images(str(broken)), vit))


def test_the_default_preprocessing_is_explicit_and_recorded(tmp_path, vit):
    saved(tmp_path / "flat.png", Image.new("RGB", (300, 200), (0, 255, 0)))
    plan = ImagePlan(open_images(str(tmp_path)), vit)
    values = plan.settings["values"]
    assert plan.settings["processor"] == "default" and values["size"] == {
        "shortest_edge": 37
    }
    assert (
        values["crop_size"] == {"height": 32, "width": 32}
        and tuple(values["image_mean"]) == MEAN
    )
    wanted = [(0 - 0.485) / 0.229, (1 - 0.456) / 0.224, (0 - 0.406) / 0.225]
    assert plan[0].inputs["pixel_values"][0, :, 5, 9].tolist() == pytest.approx(
        wanted, abs=1e-5
    )


def test_the_checkpoints_own_preprocessing_is_used(folder, vit):
    own = ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    plan = ImagePlan(open_images(str(folder)), vit, own, batch_tokens=2 * 16)
    assert (
        plan.settings["processor"] == "checkpoint"
        and plan.settings["values"]["image_std"] == [0.25] * 3
    )
    assert (
        [batch.unit.tolist() for batch in plan] == [[0, 1], [2]]
        and plan.tokens == [2, 1]
        and plan.n_units == 3
    )
    small = photograph(40).resize((32, 32), Image.Resampling.BILINEAR)
    assert plan[0].inputs["pixel_values"][0].mean() == pytest.approx(
        (np.asarray(small).mean() / 255 - 0.5) / 0.25, abs=0.05
    )
    assert plan.fingerprint != ImagePlan(open_images(str(folder)), vit).fingerprint
    with pytest.raises(
        UsageError,
        match=r"images of 32 × 32 pixels, which the model reads; got 48 × 48",
    ):
        ImagePlan(
            open_images(str(folder)),
            vit,
            ViTImageProcessorPil(size={"height": 48, "width": 48}),
        )
    ragged = ConvNextImageProcessorPil(size={"shortest_edge": 40}, do_resize=False)
    with pytest.raises(UsageError, match=r"makes all images one size"):
        list(
            ImagePlan(open_images(str(folder)), build("resnet", torch.float32), ragged)
        )


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """What is streamed is kept in a folder of the test's own."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", str(tmp_path / "home"))


def test_images_of_a_hub_data_set_stay_encoded(folder, vit, monkeypatch):
    names = [str(folder / name) for name in ("a.png", "b/b.PNG", "c.bmp")]
    rows = datasets.Dataset.from_dict({"image": names, "label": [0, 1, 2]}).cast_column(
        "image", datasets.Image()
    )
    monkeypatch.setattr(hub, "find_set", lambda part: HubSet(part.id, "c0ffee"))
    monkeypatch.setattr(
        hub, "load_splits", lambda *_: {"validation": rows.to_iterable_dataset()}
    )
    corpus = open_images("imagenet-1k")
    assert (
        corpus.source["id"] == "ILSVRC/imagenet-1k"
        and corpus.fingerprint == open_images(str(folder)).fingerprint
    )
    both = (ImagePlan(corpus, vit)[0], ImagePlan(open_images(str(folder)), vit)[0])
    assert torch.equal(both[0].inputs["pixel_values"], both[1].inputs["pixel_values"])


def test_a_gated_data_set_says_how_to_be_let_in(monkeypatch):
    def refuse(*_, **__):
        raise datasets.exceptions.DatasetNotFoundError(
            "'x' is a gated dataset on the Hub"
        )

    monkeypatch.setattr(hub, "find_set", lambda part: HubSet(part.id, "c0ffee"))
    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(
        CorpusError,
        match=r"access to ILSVRC/imagenet-1k; got a gated .*accept its terms .*hf auth login",
    ):
        open_images("imagenet-1k")


def test_names_and_models_that_fit_nothing(folder, vit):
    with pytest.raises(
        CorpusError,
        match=r"an image corpus: a folder.*got 'builtin:digit'.*did you mean builtin:digits",
    ):
        open_images("builtin:digit")
    with pytest.raises(UsageError, match=r"got --column with builtin:digits"):
        open_images("builtin:digits", column="image")
    with pytest.raises(
        UsageError,
        match=r"a corpus that the model reads \(image\); got builtin:python-docs, which holds text.*builtin:digits",
    ):
        open_plan("builtin:python-docs", vit, None, modality="image")
    with pytest.raises(UsageError, match=r"which holds image. .*measure vit-base"):
        open_plan(str(folder), vit, None, modality="text")
    with pytest.raises(UsageError, match=r"no --max-length for an image model"):
        open_plan("builtin:digits", vit, None, modality="image", max_length=5)


def test_every_row_of_a_table_is_an_item_whatever_the_one_before_was(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    rows = [
        {"bytes": b"1", "path": "in.png"},
        {"bytes": b"2", "path": None},
        {"bytes": None, "path": None},
    ]
    pd.DataFrame({"image": rows, "speaker_id": ["p", "q", "r"]}).to_parquet(
        tmp_path / "t.parquet"
    )
    found = list(_iter_listed(tmp_path / "t.parquet", None, "image"))
    assert [item.place for item in found[:2]] == [b"1", b"2"] and found[
        0
    ].name == "in.png"
    assert [bool(item.fault) for item in found] == [False, False, True]
    (tmp_path / "t.csv").write_text('path\na.png\n""\nb.png\n')
    found = list(_iter_listed(tmp_path / "t.csv", None))
    assert [(item.name, bool(item.fault)) for item in found][::2] == [
        ("a.png", False),
        ("b.png", False),
    ]
    assert found[1].fault == "'' for a path" and found[2].place == tmp_path / "b.png"
    (tmp_path / "two.csv").write_text("path,thumbnail\na.png,b.png\n")
    for column, name in ((None, "a.png"), ("path", "a.png"), ("thumbnail", "b.png")):
        assert [
            item.name for item in _iter_listed(tmp_path / "two.csv", None, column)
        ] == [name]
