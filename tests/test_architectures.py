"""What is captured of every architecture of the papers is what the model itself returns, at every layer, in order; and
padding, special tokens and flattened maps count as they should.
"""

from functools import cache
from types import SimpleNamespace

import pytest
import tiny_models as tiny
import torch
from torch import nn
from transformers import EfficientNetConfig, EfficientNetModel, PreTrainedModel

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture import capture
from anisoscope.capture.tap import Tap
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.models.blocks import (
    TokenPositions,
    _convert_samples,
    _take_every,
    find_blocks,
    find_stages,
    has_attention,
)
from anisoscope.models.families import FAMILIES, Family, families

CLOSE = {"rtol": 1e-10, "atol": 1e-10}
HEADS = ("query", "key", "value", "attention")
STAGED = {
    name for name in tiny.ARCHITECTURES if FAMILIES.get(name, Family()).stages
} | {"efficientnet"}
CONVOLUTIONAL = {
    name for name in STAGED if not has_attention(tiny.build(name, torch.float32))
}
FINAL = {"gpt2", "t5", "byt5", "wav2vec2-stable", "whisper", "vit", "deit", "segformer"}
FINAL |= {"gpt_neox", "llama", "qwen3", "gemma3"}

LAYERS = {
    "bert": {"encoder": [(12, 32)] * 4},
    "roberta": {"encoder": [(12, 32)] * 4},
    "gpt2": {"decoder": [(12, 32)] * 4},
    "t5": {"encoder": [(12, 32)] * 3, "decoder": [(8, 32)] * 3},
    "canine": {
        "characters": [(12, 32)] * 2,
        "molecules": [(3, 32)] * 4,
        "characters-out": [(12, 32)] * 2,
    },
    "byt5": {"encoder": [(12, 32)] * 4, "decoder": [(8, 32)] * 2},
    "wav2vec2": {"encoder": [(10, 32)] * 4},
    "wav2vec2-stable": {"encoder": [(10, 32)] * 4},
    "hubert": {"encoder": [(10, 32)] * 4},
    "whisper": {"encoder": [(24, 32)] * 3, "decoder": [(6, 32)] * 3},
    "vit": {"encoder": [(17, 32)] * 4},
    "beit": {"encoder": [(17, 32)] * 4},
    "deit": {"encoder": [(18, 32)] * 4},
    "segformer": {"encoder": [(64, 8), (64, 8), (16, 16), (16, 16), (4, 32)]},
    "resnet": {"encoder": [(64, 8), (64, 16), (64, 16), (16, 24), (4, 32), (4, 32)]},
    "efficientnet": {
        "encoder": [
            (256, 8),
            (256, 8),
            (64, 8),
            (16, 16),
            (4, 24),
            (4, 24),
            (4, 32),
            (4, 32),
            (1, 48),
            (1, 48),
            (1, 80),
        ]
    },
    "cvt": {
        "encoder": [(64, 8), (64, 8), (16, 16), (16, 16), (5, 32), (5, 32), (5, 32)]
    },
    "convnext": {"encoder": [(64, 8), (64, 8), (16, 16), (16, 16), (4, 24)]},
    "gpt_neox": {"decoder": [(12, 32)] * 4},
    "llama": {"decoder": [(12, 32)] * 4},
    "qwen3": {"decoder": [(12, 32)] * 4},
    "gemma3": {"decoder": [(12, 32)] * 4},
}
"""Architecture → stack → (positions, dimensions) of layers 0, 1, 2 … of an input of 12 positions or 32 × 32 pixels."""


@cache
def model(name):
    """In float64; not CANINE, whose own masks are NaN there (0 times the least float64, which float32 cannot hold)."""
    return tiny.build(name, torch.float32 if name == "canine" else torch.float64)


def close(got, expected):
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if got.dtype == torch.float32 else CLOSE
    torch.testing.assert_close(got, expected, **tolerance)


@cache
def seen(name, flatten="position"):
    """One captured call on one input, and what the model itself returns for it, last layers raw."""
    net, inputs = model(name), tiny.inputs(name)
    what = LAYER_QUANTITIES + (HEADS if has_attention(net) else ())
    with torch.no_grad(), capture(net, what, flatten=flatten) as tap:
        captured = net(**inputs)
    kept = {}
    for part in net.modules():
        if isinstance(part, PreTrainedModel):
            kept[part] = getattr(part.config, "tie_last_hidden_states", None)
            part.config.tie_last_hidden_states = False
    with torch.no_grad():
        expected = net(**inputs, output_hidden_states=True)
    for part in kept:
        part.config.tie_last_hidden_states = True
    return SimpleNamespace(tap=dict(tap.kept), output=captured, expected=expected)


def own_states(name, expected):
    """{stack: the model's own hidden states}; None where only stages are returned."""
    if name == "canine":
        states = expected.hidden_states
        return {
            "characters": states[:2],
            "molecules": states[2:-2],
            "characters-out": states[-2:],
        }
    if tiny.row(name).reads in ("two", "mel"):
        return {
            "encoder": expected.encoder_hidden_states,
            "decoder": expected.decoder_hidden_states,
        }
    return {next(iter(seen(name).tap)).split(".")[0]: expected.hidden_states}


def row(x):
    """A map as its positions in a row."""
    return x.flatten(2).transpose(1, 2) if x.dim() == 4 else x


def test_every_architecture_has_its_line():
    assert LAYERS.keys() == tiny.ARCHITECTURES.keys()


def check_layers(name, layers, *, final):
    """Layers are as many, in the order and of the shapes that are expected; whether there is a final norm."""
    tap = seen(name).tap
    hidden = [
        (site.rsplit(".", 2)[0], tuple(x.shape[1:]))
        for site, x in tap.items()
        if site.endswith(".hidden")
    ]
    assert hidden == [
        (stack, shape) for stack, shapes in layers.items() for shape in shapes
    ]
    numbers = [site for site in tap if site.endswith(".hidden")]
    assert numbers == [
        f"{stack}.{i}.hidden"
        for stack, shapes in layers.items()
        for i in range(len(shapes))
    ]
    assert any(site.endswith(".final") for site in tap) == final


@pytest.mark.parametrize("name", LAYERS)
def test_count_order_and_shape(name):
    check_layers(name, LAYERS[name], final=name in FINAL)


@pytest.mark.parametrize(
    "name", [n for n in LAYERS if n not in STAGED - {"efficientnet"}]
)
def test_layers_are_the_model_s_own(name):
    case = seen(name)
    for stack, states in own_states(name, case.expected).items():
        assert len(states) == sum(
            site.startswith(f"{stack}.") and site.endswith(".hidden")
            for site in case.tap
        )
        for i, state in enumerate(states):
            close(case.tap[f"{stack}.{i}.hidden"], row(state))


@pytest.mark.parametrize("name", sorted(STAGED - {"efficientnet"}))
def test_stages_are_the_model_s_own(name):
    case = seen(name)
    states = list(case.expected.hidden_states)
    stages = [x for site, x in case.tap.items() if site.endswith(".stage")]
    if len(states) == len(stages) + 1:  # the stem comes first
        close(case.tap["encoder.0.hidden"], row(states.pop(0)))
    assert len(states) == len(stages) == len(find_stages(model(name)))
    for got, state in zip(stages, states, strict=True):
        close(got, row(state))


@pytest.mark.parametrize("name", sorted(STAGED))
def test_blocks_are_what_each_block_returns(name):
    net, outputs, handles = model(name), [], []
    for module in net.modules():
        if type(module).__name__ in families()[name].blocks:
            handles.append(
                module.register_forward_hook(
                    lambda _m, _i, out: outputs.append(out) or None
                )
            )
    with torch.no_grad():
        net(**tiny.inputs(name))
    for handle in handles:
        handle.remove()
    assert outputs
    for i, output in enumerate(outputs, start=1):
        assert torch.equal(seen(name).tap[f"encoder.{i}.hidden"], row(output))


def test_stages_of_efficientnet_end_where_the_width_may_change():
    tap = seen("efficientnet").tap
    stages = [x for site, x in tap.items() if site.endswith(".stage")]
    assert len(stages) == len(model("efficientnet").config.num_block_repeats)
    assert torch.equal(stages[-1], tap["encoder.10.hidden"])


def test_resnet_before_and_after_its_last_relu():
    tap = seen("resnet").tap
    for i in range(1, 6):
        before, after = tap[f"encoder.{i}.pre_relu"], tap[f"encoder.{i}.hidden"]
        assert (before < 0).any() and torch.equal(before.relu(), after)
    assert not any(
        "pre_relu" in site
        for name in LAYERS
        if name != "resnet"
        for site in seen(name).tap
    )


@pytest.mark.parametrize("name", sorted(CONVOLUTIONAL))
def test_one_vector_per_image(name):
    """The same numbers, in one vector."""
    places, whole = seen(name).tap, seen(name, "image").tap
    assert places.keys() == whole.keys()
    for site, x in places.items():
        assert whole[site].shape == (1, 1, x[0].numel())
        close(whole[site].norm(), x.norm())


# ---- queries, keys, values and attention off the interface -----------------------------------------------------------


def check_fallback(name, inputs):
    """q, k and v from the projections; weights of the model's own softmax, the input of its dropout."""
    net, maps, handles = model(name), [], []
    for module in net.modules():
        if type(module).__name__ in ("CanineSelfAttention", "CvtSelfAttention"):
            handles.append(
                module.dropout.register_forward_pre_hook(
                    lambda _m, args: maps.append(args[0]) or None
                )
            )
    with torch.no_grad(), capture(net, HEADS) as tap:
        net(**inputs)
    for handle in handles:
        handle.remove()
    sites = [
        site.removesuffix(".attention")
        for site in tap.sites
        if site.endswith(".attention")
    ]
    for site in sites:
        q, k, v = (
            tap[f"{site}.head.{part}"] for part in ("query.raw", "key.raw", "value")
        )
        assert k.shape == v.shape
        done = 0
        while done < q.shape[2]:  # one map per chunk
            p = maps.pop(0)
            rows = {
                n: x[:, :, done : done + p.shape[2]]
                for n, x in tap[f"{site}.attention"].items()
                if x.dim() == 3
            }
            close(rows["entropy"], -torch.xlogy(p, p).sum(-1))
            close(rows["row_max"], p.amax(-1))
            done += p.shape[2]
    assert not maps and sites
    return tap, sites


def test_canine_in_chunks():
    """Forty characters in local chunks of 16: the first encoder sees its own chunk only, and no padding."""
    inputs = tiny.inputs("canine", (40, 36))
    tap, sites = check_fallback("canine", inputs)
    assert sites == [
        "characters.1",
        "molecules.1",
        "molecules.2",
        "molecules.3",
        "characters-out.1",
    ]
    keys = tap["characters.1.attention"]["keys"]
    assert keys[0, 0].tolist() == [16] * 32 + [8] * 8
    assert keys[1, 0].tolist() == [16] * 32 + [4] * 8
    net = model("canine")
    x = net.char_embeddings(inputs["input_ids"])
    expected = (
        net.initial_char_encoder.layer[0]
        .attention.self.query(x)
        .view(2, 40, 4, 8)
        .transpose(1, 2)
    )
    close(tap["characters.1.head.query.raw"], expected)


def test_cvt():
    _, sites = check_fallback("cvt", tiny.inputs("cvt", (1, 1)))
    assert sites == [f"encoder.{i}" for i in range(1, 7)]


@pytest.mark.parametrize("name", [n for n in LAYERS if n not in CONVOLUTIONAL])
def test_attention_is_seen_at_every_layer(name):
    tap = seen(name).tap
    layers = [site.removesuffix(".hidden") for site in tap if site.endswith(".hidden")]
    for layer in layers:
        if not layer.endswith(".0"):
            assert {f"{layer}.attention", f"{layer}.head.value"} <= tap.keys()


# ---- streams ---------------------------------------------------------------------------------------------------------


def stream(lengths, special=False):
    mask = tiny.mask_of(lengths)
    marks = torch.zeros_like(mask)
    marks[:, 0] = special
    return Stream(mask, marks, torch.zeros(len(lengths)).long())


def measured(name, batches, **settings):
    """Sums of hidden states over batches of (lengths, units); `samples` and `frames` for speech."""
    net = model(name)
    positions, measurement = (
        TokenPositions(net),
        Measurement(Settings(panel=("hidden",), sample=64, **settings)),
    )
    with (
        torch.no_grad(),
        capture(net, LAYER_QUANTITIES, receive=measurement.receive) as tap,
    ):
        for inputs, units, streams in batches:
            tap.real = measurement.begin(
                Batch(inputs, torch.tensor(units), streams),
                torch.device("cpu"),
                positions,
            )
            net(**inputs)
            measurement.end()
    return measurement


def part(inputs, i, lengths, scale=1):
    """Row i alone, without its padding."""
    width = lengths[i] * scale
    return {
        key: value[i : i + 1, :width]
        for key, value in inputs.items()
        if not key.startswith("decoder_")
    }


PADDED = [
    "bert",
    "roberta",
    "gpt2",
    "gpt_neox",
    "llama",
    "qwen3",
    "gemma3",
    "wav2vec2-stable",
]


@pytest.mark.parametrize("name", PADDED)
def test_alone_and_padded_give_the_same_sums(name):
    speech = tiny.row(name).reads == "samples"
    lengths, scale = (12, 7, 4), 20 if speech else 1
    inputs = tiny.inputs(name, lengths)
    stack = "samples" if speech else next(iter(seen(name).tap)).split(".")[0]
    sized = tuple(scale * n for n in lengths)
    together = measured(name, [(inputs, [0, 1, 2], {stack: stream(sized)})])
    alone = measured(
        name,
        [
            (part(inputs, i, lengths, scale), [i], {stack: stream((n,))})
            for i, n in enumerate(sized)
        ],
    )
    for site, term in together.sums.terms:
        close(together.sums.terms[site, term], alone.sums.terms[site, term])


@pytest.mark.parametrize("name", ["t5", "byt5"])
def test_alone_and_padded_in_two_stacks(name):
    inputs, lengths = (
        tiny.inputs(name, (12, 7)),
        {"encoder": (12, 7), "decoder": (8, 3)},
    )
    together = measured(
        name, [(inputs, [0, 1], {stack: stream(n) for stack, n in lengths.items()})]
    )
    single = []
    for i in (0, 1):
        ends = {
            k: lengths["decoder" if k.startswith("decoder_") else "encoder"][i]
            for k in inputs
        }
        cut = {k: v[i : i + 1, : ends[k]] for k, v in inputs.items()}
        single.append(
            (cut, [i], {stack: stream((n[i],)) for stack, n in lengths.items()})
        )
    alone = measured(name, single)
    for key, value in together.sums.terms.items():
        close(value, alone.sums.terms[key])


def test_frames_of_speech():
    """The model's own frame mask, and half of Whisper's mel frames, rounded up."""
    net = model("wav2vec2-stable")
    samples = stream((240, 140, 60))
    frames = (
        TokenPositions(net)
        .streams(Batch({}, torch.arange(3), {"samples": samples}))["encoder"]
        .mask
    )
    own = net._get_feature_vector_attention_mask(frames.shape[1], samples.mask.long())
    assert torch.equal(frames, own.bool()) and frames.sum(1).tolist() == [10, 5, 1]
    halves = (
        TokenPositions(model("whisper"))
        .streams(Batch({}, torch.arange(2), {"frames": stream((48, 7))}))["encoder"]
        .mask
    )
    assert halves.shape == (2, 24) and halves.sum(1).tolist() == [24, 4]


def test_padded_frames_of_whisper_do_not_count():
    inputs = tiny.inputs("whisper", (1, 1))
    sums = measured("whisper", [(inputs, [0, 1], {"frames": stream((48, 7))})]).sums
    assert sums.terms["encoder.2.hidden", "n"].sum(0)[0].tolist() == [28.0]
    assert sums.terms["decoder.2.hidden", "n"].sum(0)[0].tolist() == [12.0]


def test_molecules_are_real_where_their_characters_are():
    streams = TokenPositions(model("canine")).streams(
        Batch({}, torch.arange(2), {"encoder": stream((40, 21), special=True)})
    )
    assert list(streams) == ["characters", "molecules", "characters-out"]
    assert streams["molecules"].mask.sum(1).tolist() == [10, 6]
    assert streams["molecules"].special.sum(1).tolist() == [1, 1]
    assert streams["characters"].mask.sum(1).tolist() == [40, 21]


@pytest.mark.parametrize(
    "name, specials",
    [("vit", 1), ("deit", 2), ("beit", 1), ("segformer", 0), ("resnet", 0)],
)
def test_special_tokens_of_images(name, specials):
    """`content` leaves out class and distillation tokens, `no-first` the first token only."""
    sums = measured(name, [(tiny.inputs(name, (1, 1)), [0, 1], {})]).sums
    positions = LAYERS[name]["encoder"][1][0]
    n = sums.terms["encoder.1.hidden", "n"].sum(0)[:, 0].tolist()
    assert n == [2.0 * positions, 2.0 * (positions - specials), 2.0 * (positions - 1)]


def test_the_class_token_of_cvt_is_in_its_last_stage_only():
    positions = TokenPositions(model("cvt"))
    assert [positions.specials(Site("encoder", i, "hidden")) for i in range(7)] == [
        0,
        0,
        0,
        0,
        1,
        1,
        1,
    ]
    assert positions.specials(Site("encoder", 3, "stage")) == 0


def test_whole_images_have_no_policies_and_no_spectrum():
    """One vector per image: A over images, and drift; the exact A of the vectors themselves."""
    net, inputs = model("resnet"), tiny.inputs("resnet", (1,) * 30)
    measurement = Measurement(Settings(panel=("hidden", "spectrum"), flatten="image"))
    with (
        torch.no_grad(),
        capture(
            net, LAYER_QUANTITIES, receive=measurement.receive, flatten="image"
        ) as tap,
    ):
        measurement.begin(
            Batch(inputs, torch.arange(30)), torch.device("cpu"), TokenPositions(net)
        )
        net(**inputs)
        measurement.end()
        records = measurement.records()
    with torch.no_grad(), capture(net, LAYER_QUANTITIES, flatten="image") as tap:
        net(**inputs)
    assert set(records["metric"]) >= {
        "mean_cosine",
        "mean_cosine.isotropic_q95",
        "drift",
    }
    assert not records["metric"].str.startswith(("spectrum", "intra", "group")).any()
    for site in ("pre_relu", "hidden", "stage"):
        x = nn.functional.normalize(tap[f"encoder.2.{site}"][:, 0], dim=1)
        expected = float(((x.sum(0) ** 2).sum() - 30) / (30 * 29))
        rows = records[
            (records["site"] == site)
            & (records["layer"] == 2)
            & (records["metric"] == "mean_cosine")
        ]
        assert rows["value"].tolist() == pytest.approx([expected])


def test_frames_begin_where_their_samples_do():
    """Positions inside a unit, by which tokens are drawn: of a window from sample 640 on, from 128 on."""
    made = SimpleNamespace(
        config=SimpleNamespace(conv_stride=(5, 1)),
        _get_feat_extract_output_lengths=lambda n: n // 5,
    )
    samples = Stream(
        torch.arange(20) < torch.tensor([[20], [11]]),
        torch.zeros(2, 20).bool(),
        torch.tensor([0, 640]),
    )
    frames = _convert_samples(made, samples)
    assert frames.start.tolist() == [0, 128] and not frames.special.any()
    assert frames.mask.tolist() == [[True] * 4, [True, True, False, False]]
    every = _take_every(4, samples)
    assert (
        every.start.tolist() == [0, 160]
        and every.mask.sum(1).tolist() == [5, 3]
        and every.mask.shape == (2, 5)
    )


def test_stages_that_end_with_positions_in_a_row_are_maps_too():
    """[sequence, position, channel] of a stage is what [sequence, channel, height, width] is."""
    tap = SimpleNamespace(
        stacks={"stage": "encoder"},
        emit_vectors=lambda site, x: taken.append((site, x)),
    )
    taken, x = [], torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(0))
    for output in (x, (x, None), x.transpose(1, 2).view(2, 3, 2, 3)):
        Tap._emit_stage(tap, 4, "stage", (), output)
    for site, found in taken:
        assert site == Site("encoder", 4, "stage")
        torch.testing.assert_close(found.flatten(2).transpose(1, 2), x)
    assert taken[0][1].shape == (2, 3, 6, 1)


class Block(nn.Linear):
    """A block that holds nothing else."""


def test_blocks_whose_names_begin_alike_are_each_found():
    """`layers.1` and `layers.11` are two; only what lies inside a block that was found is no block of its own."""
    model = nn.Module()
    model.layers = nn.ModuleList(Block(2, 2) for _ in range(12))
    assert find_blocks(model, ("Block",)) == {"encoder": list(model.layers)}
    model.layers[3].inside = Block(2, 2)
    assert find_blocks(model, ("Block",)) == {"encoder": list(model.layers)}
    assert find_blocks(model, ("layers.*",)) == {"encoder": list(model.layers)}


@pytest.mark.parametrize("depth", [0.5, 1.0, 1.2])
def test_a_stage_of_efficientnet_ends_before_its_width_changes(depth):
    config = EfficientNetConfig(
        depth_coefficient=depth, width_coefficient=1.0, image_size=32
    )
    with torch.device("meta"):
        net = EfficientNetModel(config)
    blocks = list(net.encoder.blocks)
    widths = [block.projection.project_conv.out_channels for block in blocks]
    ends = [
        i
        for i in range(len(blocks))
        if i + 1 == len(blocks) or widths[i + 1] != widths[i]
    ]
    assert len(ends) == len(config.num_block_repeats)
    assert find_stages(net) == [blocks[end] for end in ends]


class TwoHeads(nn.Module):
    """Two heads that read the same last states, each through a norm of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block(4, 4) for _ in range(2))
        self.norm, self.other_norm = (
            nn.LayerNorm(4),
            nn.LayerNorm(4, elementwise_affine=False),
        )
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x), self.other_norm(x)


def test_of_the_norms_of_several_heads_the_first_is_the_final_one():
    torch.manual_seed(0)
    net, x = TwoHeads().eval(), torch.randn(2, 5, 4)
    with torch.no_grad(), capture(net, ("hidden", "final"), blocks=("Block",)) as tap:
        first, _ = net(x)
    assert torch.equal(tap["encoder.final"], first)
