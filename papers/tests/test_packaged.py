"""Trained networks that need no hub: ports compute what the packages compute; files of weights tell their network."""

import hashlib
import io
import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest
import torch
from PIL import Image

import anisoscope
from anisoscope.capture import capture
from anisoscope.data.opening import open_plan
from anisoscope.errors import ModelError
from anisoscope.models import packaged
from anisoscope.models.blocks import TokenPositions
from anisoscope.models.load import load
from anisoscope_papers.networks import cifar_resnet, distillmos
from anisoscope_papers.networks.cifar_resnet import (
    CifarResNetBlock,
    CifarResNetConfig,
    CifarResNetModel,
)
from anisoscope_papers.networks.crepe import CrepeConfig, CrepeModel, config_of
from anisoscope_papers.networks.distillmos import DistillMosConfig, DistillMosModel

DATA = Path(os.environ.get("ANISOSCOPE_DATA", "/nonexistent"))


@pytest.fixture
def package(monkeypatch):
    """Import a package that comes with weights; what it imports for its command line only may be missing."""

    def imported(name):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
        for other in ("torchaudio", "resampy", "librosa"):
            if other not in sys.modules and find_spec(other) is None:
                monkeypatch.setitem(sys.modules, other, ModuleType(other))
        return import_module(name)

    return imported


def data(name):
    if not (DATA / name).exists():
        pytest.skip(f"no {name} under $ANISOSCOPE_DATA")
    return str(DATA / name)


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_distillmos_is_the_package_s(package):
    theirs = package("distillmos").ConvTransformerSQAModel().eval()
    ours, x = load("builtin:distillmos").model, noise(2, 60_000)
    with torch.no_grad():
        torch.testing.assert_close(
            ours(x).last_hidden_state.flatten(), theirs(x).flatten(), atol=1e-5, rtol=0
        )


@pytest.mark.parametrize("size", ["tiny", "full"])
def test_crepe_is_the_package_s(size, package):
    crepe = package("torchcrepe")
    crepe.load.model("cpu", size)
    x = noise(2, 2100)
    frames = x.unfold(1, 1024, 1024)
    frames = frames - frames.mean(-1, keepdim=True)
    frames = frames / frames.std(-1, keepdim=True)
    with torch.no_grad():
        theirs = crepe.infer.model(frames.reshape(-1, 1024)).view(2, 2, 360)
        ours = (
            load("builtin:crepe" if size == "full" else "builtin:crepe-tiny")
            .model(x)
            .last_hidden_state
        )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("file", "depth", "least"),
    [("resnet20-12fca82f", 20, 0.75), ("resnet56-4bfd9763", 56, 0.77)],
)
def test_residual_networks_classify_photographs(file, depth, least):
    """91.7 % and 93.4 % on the originals, some 9 points less on a JPEG copy."""
    subject = load(data(f"weights/{file}.th"))
    photographs = data("cifar10/test.parquet")
    assert subject.config.depth == depth and subject.modality == "image"
    plan, _ = open_plan(
        photographs, subject.model, subject.processor, modality="image", limit=200
    )
    with torch.no_grad():
        guess = torch.cat(
            [subject.model(**plan[i].inputs).logits.argmax(1) for i in range(len(plan))]
        )
    label = torch.tensor(
        pd.read_parquet(photographs, columns=["label"])["label"].to_numpy()[:200]
    )
    assert (guess == label).float().mean() > least


@pytest.mark.parametrize(
    "model",
    [CifarResNetModel(CifarResNetConfig(depth=8)), CrepeModel(CrepeConfig(shrink=32))],
)
def test_every_block_ends_with_its_last_relu(model):
    model.eval()
    x = noise(2, 3, 32, 32) if isinstance(model, CifarResNetModel) else noise(2, 2048)
    with torch.no_grad(), capture(model, ("hidden", "pre_relu")) as tap:
        model(x)
    layers = [
        int(site.split(".")[1]) for site in tap.sites if site.endswith("pre_relu")
    ]
    assert layers == list(
        range(1, {True: 3, False: 6}[isinstance(model, CifarResNetModel)] + 1)
    )
    for layer in layers:
        before = tap[f"encoder.{layer}.pre_relu"]
        assert (before < 0).any() and torch.equal(
            before.relu(), tap[f"encoder.{layer}.hidden"]
        )


def test_a_file_of_weights_tells_its_network(tmp_path):
    torch.manual_seed(9)
    model = CifarResNetModel(CifarResNetConfig(depth=14, num_labels=7)).eval()
    path = tmp_path / "mine.th"
    named = {
        f"module.{name}": x
        for name, x in model.state_dict().items()
        if not name.endswith("tracked")
    }
    torch.save({"state_dict": named, "best_prec1": 1.0}, path)
    subject, x = load(str(path)), noise(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(subject.model(x).logits, model(x).logits)
    drawn = [
        load(str(path), untrained=True, seed=seed).weights_sha256 for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2] and subject.weights_sha256 not in drawn
    run = anisoscope.measure(str(path), corpus="builtin:digits", limit=40)
    assert {"hidden", "pre_relu"} <= set(run.records["site"])


@pytest.mark.parametrize("kind", ["damaged", "another", "short"])
def test_other_files_are_refused_with_a_cure(kind, tmp_path):
    path = tmp_path / "mine.pt"
    weights = {"weight": torch.ones(2)}
    if kind == "short":
        weights = CifarResNetModel(CifarResNetConfig(depth=8)).state_dict()
        weights.pop("layer2.0.conv2.weight")
    torch.save(weights, path)
    if kind == "damaged":
        path.write_bytes(b"no weights")
    with pytest.raises(ModelError) as caught:
        load(str(path))
    assert {
        "damaged": "module:function",
        "another": "module:function",
        "short": "layer2.0.conv2",
    }[kind] in str(caught.value)
    if kind == "another":
        known = "cifar_resnet, crepe, distillmos, efficientnet_lite"
        assert f"weights of a known network ({known}) in" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(tmp_path, value):
    """Their end that is finite told nothing of the other."""
    weights = CifarResNetModel(CifarResNetConfig(depth=8)).state_dict()
    weights["layer2.0.conv2.weight"][1, 2, 0, 1] = value
    torch.save(weights, tmp_path / "mine.pt")
    with pytest.raises(
        ModelError, match=r"finite weights .*NaN or Inf in .*conv2\.weight"
    ):
        load(str(tmp_path / "mine.pt"))


def test_the_packaged_encoder_is_what_was_published(tmp_path, monkeypatch):
    """Other bytes are refused, also where they came once the file had been looked at."""
    file = tmp_path / "model" / "model.safetensors"
    file.parent.mkdir()
    file.write_bytes(b"published")
    monkeypatch.setattr(
        packaged,
        "find_spec",
        lambda _: SimpleNamespace(origin=str(tmp_path / "__init__.py")),
    )
    monkeypatch.setattr(
        packaged, "BUILTIN_SHA256", hashlib.sha256(b"published").hexdigest()
    )
    assert packaged.builtin_folder("builtin:minilm") == str(file.parent)
    file.write_bytes(b"something")
    os.utime(file, (1, 1))
    with pytest.raises(ModelError, match=r"weights with SHA-256 .*reinstall"):
        packaged.builtin_folder("builtin:minilm")


def test_a_package_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda _name: None)
    with pytest.raises(ModelError, match="pip install --no-deps distillmos"):
        load("builtin:distillmos")


def test_windows_of_speech_are_padded_and_padding_never_counts(package):
    package("distillmos")
    subject = load("builtin:distillmos")
    plan, _ = open_plan(
        data("speech/fsdd_test"),
        subject.model,
        subject.processor,
        modality="speech",
        limit=1,
    )
    batch = plan[0]
    real = TokenPositions(subject.model).streams(batch)["encoder"].mask
    samples = batch.inputs["attention_mask"].sum(1)
    assert (
        real.shape[1] == 384
        and torch.equal(real.sum(1), samples // 320)
        and int(samples.max()) < 122_880
    )


def test_parquet_that_holds_photographs_is_a_corpus(tmp_path):
    """As hub data sets have them; it was taken for text."""
    kept = []
    for level in range(4):
        file = io.BytesIO()
        Image.new("RGB", (32, 32), (level * 60, 0, 0)).save(file, "PNG")
        kept.append({"bytes": file.getvalue(), "path": f"{level}.png"})
    path = tmp_path / "photographs.parquet"
    pd.DataFrame({"image": kept, "label": range(4)}).to_parquet(path)
    model = CifarResNetModel(CifarResNetConfig(depth=8))
    plan, described = open_plan(
        str(path), model, cifar_resnet.processor(), modality="image"
    )
    red = plan[0].inputs["pixel_values"][:, 0].mean((1, 2))
    torch.testing.assert_close(
        red.diff(), torch.full((3,), 60 / 255 / 0.229), atol=1e-5, rtol=0
    )
    assert described["items"] == 4 and described["kind"] == "manifest"


def test_a_block_that_goes_on_after_its_last_relu_has_no_state_before_it(monkeypatch):
    model = CifarResNetModel(CifarResNetConfig(depth=8)).eval()
    second = [
        module for module in model.modules() if isinstance(module, CifarResNetBlock)
    ][1]
    forward = second.forward
    monkeypatch.setattr(second, "forward", lambda x: forward(x) * 2)
    with torch.no_grad(), capture(model, ("hidden", "pre_relu")) as tap:
        model(noise(2, 3, 32, 32))
    assert [site for site in tap.sites if site.endswith("pre_relu")] == [
        f"encoder.{i}.pre_relu" for i in (1, 3)
    ]


def test_distillmos_tells_places_and_gives_a_quality_from_1_to_5(monkeypatch):
    """Its definition, where the package of its weights is not installed."""
    model = DistillMosModel(
        DistillMosConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    ).eval()
    place, k = torch.arange(distillmos.FRAMES).double()[:, None], torch.arange(8)
    angle = place * (2.0 * distillmos.FRAMES) ** (-2 * k / 16)
    encoding = model.transformer_pool_attn.transformer.position_encoding.pe[0].double()
    torch.testing.assert_close(encoding[:, ::2], angle.sin(), atol=1e-5, rtol=0)
    torch.testing.assert_close(encoding[:, 1::2], angle.cos(), atol=1e-5, rtol=0)
    given = torch.tensor([[0.0], [1.0]])
    monkeypatch.setattr(model.transformer_pool_attn, "forward", lambda _: given)
    assert model(noise(2, 4000)).last_hidden_state.flatten().tolist() == [1, 5]


@pytest.mark.parametrize(("filters", "shrink"), [(1024, 1), (128, 8)])
def test_the_size_of_a_crepe_is_read_from_its_first_layer(filters, shrink):
    weights = {
        "conv1.weight": torch.zeros(filters, 1, 512, 1),
        "conv6_BN.weight": torch.zeros(1),
    }
    assert config_of(weights).shrink == shrink
    assert config_of({"conv1.weight": weights["conv1.weight"]}) is None is config_of({})
