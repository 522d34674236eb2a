"""MANTa, VAN and the convolutional network for speech, part by part by slow formulas, and what they refuse."""

import re
from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.functional import gelu

from anisoscope.errors import UsageError
from anisoscope_papers.networks import character_bert, manta, speech_cnn, van

# ---- MANTa -----------------------------------------------------------------------------------------------------------


def make_config(**changes):
    given = {
        "vocab_size": 30,
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 16,
        "num_heads": 2,
        "num_layers": 1,
        "byte_embedding_dim": 8,
        "frontier_predictor_num_attention_heads": 2,
        "frontier_predictor_attention_window": 4,
        "max_length_inputs": 12,
        "max_length_encoder_decoder": 6,
    }
    return manta.MantaConfig(**given | changes)


def test_what_this_network_does_not_have_is_refused_by_name():
    with pytest.raises(UsageError) as error:
        make_config(tie_word_embeddings=True)
    assert str(error.value) == (
        "expected a MANTa with its own output layer; got tie_word_embeddings = True. "
        "Cure: set it to False"
    )
    given = {"pooling_highway_activation": "gelu"}
    with pytest.raises(UsageError) as error:
        make_config(pooling_n_highway_layers=1, **given)
    assert str(error.value) == (
        "expected a MANTa with highway layers of relu; got 'gelu'. "
        "Cure: name another checkpoint"
    )
    # Without such layers it is not used.
    assert make_config(**given).pooling_n_highway_layers == 0
    assert not make_config().tie_word_embeddings
    assert make_config(max_length_inputs=0).max_length_inputs == 6
    assert make_config().max_length_inputs == 12


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (
            manta.MantaConfig(),
            {
                "vocab_size": 384,
                "byte_embedding_dim": 64,
                "frontier_predictor_num_layers": 1,
                "frontier_predictor_num_attention_heads": 8,
                "frontier_predictor_attention_window": 16,
                "pooling_variance_regularization": 1e-6,
                "pooling_kernel_size": 3,
                "pooling_depthwise_convolution": True,
                "pooling_mean_pool": False,
                "pooling_n_highway_layers": 0,
                "max_length_inputs": 256,
                "max_length_encoder_decoder": 256,
            },
        ),
        (
            character_bert.CharacterBertConfig(),
            {
                "character_embedding_dim": 16,
                "num_characters": 262,
                "num_highway_layers": 2,
            },
        ),
        (
            van.VanConfig(),
            {
                "num_channels": 3,
                "patch_sizes": (7, 3, 3, 3),
                "strides": (4, 2, 2, 2),
                "hidden_sizes": (64, 128, 320, 512),
                "depths": (3, 3, 12, 3),
                "mlp_ratios": (8, 8, 4, 4),
                "hidden_act": "gelu",
                "initializer_range": 0.02,
                "layer_norm_eps": 1e-6,
                "layer_scale_init_value": 0.01,
                "drop_path_rate": 0.0,
                "dropout_rate": 0.0,
            },
        ),
        (speech_cnn.SpeechCnnConfig(), {"kernel_size": 7}),
    ],
    ids=lambda given: type(given).__name__,
)
def test_a_configuration_that_says_nothing_is_that_of_the_published_network(
    config, published
):
    assert {name: getattr(config, name) for name in published} == published


def compute_shares(frontiers, floor):
    """[block, byte] of one row: the density of each block at each byte, divided by the sum over blocks."""
    frontiers = np.append(0.0, frontiers[1:])
    mean = np.cumsum(frontiers)
    deviation = np.sqrt(np.cumsum(frontiers * (1 - frontiers)) + floor)
    count = min(int((mean + 3 * deviation).max()) + 1, len(frontiers))
    blocks = np.arange(count)[:, None]
    density = np.exp(-((mean - blocks) ** 2) / (2 * deviation))
    return density / density.sum(0)


def test_bytes_lie_in_blocks_by_the_sum_of_frontiers_before_them():
    rows = np.array([[0.9, 0.1, 0.2, 0.1, 0.0, 0.3], [0.0, 0.8, 0.7, 0.9, 1.0, 0.6]])
    assign = manta.MantaBlockAssignment(1e-6)
    for row in rows:
        found = assign(torch.from_numpy(row)[None], False)[0].numpy()
        np.testing.assert_allclose(found, compute_shares(row, 1e-6), atol=1e-12)
    wide = manta.MantaBlockAssignment(0.25)
    found = wide(torch.from_numpy(rows[:1]), False)[0].numpy()
    np.testing.assert_allclose(found, compute_shares(rows[0], 0.25), atol=1e-12)
    counts = [len(compute_shares(row, 1e-6)) for row in rows]
    assert counts == [3, 6]
    with pytest.raises(UsageError) as error:
        assign(torch.from_numpy(rows), False)
    assert str(error.value) == (
        "expected one sequence at a time; got rows of [3, 6] blocks. Cure: pass each sequence alone: the published "
        "pooling counts blocks over the batch and does not mask padding"
    )
    assert assign(torch.from_numpy(rows), True).shape == (2, 6, 6)
    assert assign(torch.from_numpy(rows[[0, 0]]), False).shape == (2, 3, 6)


@pytest.mark.parametrize("depthwise", [True, False])
def test_a_kernel_is_laid_over_the_bytes_around_each(depthwise):
    outputs = 2 if depthwise else 3
    made = manta.MantaConvolution(3, 2, outputs, depthwise)
    torch.nn.init.normal_(made.weight)
    weight = made.weight.detach().numpy()
    assert weight.shape == ((1, 1, 3, 2) if depthwise else (2, 3, 3))
    signal = np.random.default_rng(0).normal(size=(2, 2, 4)).astype(np.float32)
    expected = np.zeros((2, outputs, 4))
    for row, out, at, k in product(range(2), range(outputs), range(4), range(3)):
        place = at + k - 1
        if not 0 <= place < 4:
            continue
        if depthwise:
            expected[row, out, at] += weight[0, 0, k, out] * signal[row, out, place]
        else:
            expected[row, out, at] += weight[:, out, k] @ signal[row, :, place]
    found = made(torch.from_numpy(signal)).detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_kernels_are_odd_and_depthwise_ones_keep_their_channels():
    for depthwise in (True, False):
        with pytest.raises(UsageError) as error:
            manta.MantaConvolution(4, 2, 2, depthwise)
        assert error.value.expected == "MANTa kernels of odd width"
        assert error.value.got == "width 4"
    with pytest.raises(UsageError) as error:
        manta.MantaConvolution(3, 2, 5, True)
    assert error.value.expected == (
        "depthwise kernels of byte_embedding_dim = 2 channels"
    )
    assert (
        error.value.got == "5" and "pooling_depthwise_convolution" in error.value.cure
    )


@pytest.mark.parametrize("mean", [False, True])
@torch.no_grad()
def test_a_block_keeps_the_largest_or_the_mean_of_its_bytes(mean):
    config = make_config(
        pooling_mean_pool=mean,
        pooling_kernel_size=[[1, 8], [3, 8]],
        max_length_encoder_decoder=4,
    )
    pooler = manta.MantaPooler(config)
    for weight in pooler.parameters():
        torch.nn.init.normal_(weight)
    draw = np.random.default_rng(1)
    frontiers = np.array([0.0, 0.9, 0.1, 0.8, 0.7])
    embeddings = draw.normal(size=(5, 8))
    shares = compute_shares(frontiers, max(5e-6, 1e-6))
    # The first blocks hold more than one byte, the fourth one less.
    assert shares.sum(1).round(1).tolist() == [1.4, 1.7, 1.2, 0.6, 0.1]
    shares = shares[:4]
    if mean:
        shares = shares / np.maximum(shares.sum(1, keepdims=True), 1)
    parts = []
    for share in shares:
        weighted = torch.from_numpy((share[:, None] * embeddings).T).float()[None]
        convolved = torch.cat([conv(weighted)[0] for conv in pooler.conv_layers])
        parts.append(convolved.sum(-1) if mean else convolved.max(-1).values)
    expected = pooler.out_projection(torch.stack(parts))
    given = (torch.from_numpy(x).float()[None] for x in (frontiers, embeddings))
    found = pooler(*given, False)
    assert found.shape == (1, 4, 8)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return manta.MantaModel(make_config(num_layers=1, num_decoder_layers=2)).eval()


@torch.no_grad()
def test_a_manta_reads_as_many_bytes_as_it_may_and_no_padding(model):
    ids = torch.arange(3, 15)[None]
    first = torch.zeros(1, 1, dtype=torch.long)
    assert model(ids, decoder_input_ids=first).logits.shape == (1, 1, 30)
    with pytest.raises(UsageError, match="at most 12 bytes; got 13"):
        model(torch.ones(1, 13, dtype=torch.long), decoder_input_ids=first)
    mask = torch.ones(1, 12, dtype=torch.long)
    model(ids, mask, decoder_input_ids=first)
    mask[0, -1] = 0
    with pytest.raises(UsageError, match="without padding; got padded rows"):
        model(ids, mask, decoder_input_ids=first)
    model(ids, mask, decoder_input_ids=first, joint_blocks=True)
    with pytest.raises(UsageError) as error:
        model(ids)
    assert str(error.value) == (
        "expected decoder_input_ids; got none. "
        "Cure: pass the decoder's bytes: the padding id, then the text"
    )


@torch.no_grad()
def test_each_state_of_a_manta_has_its_own_name(model):
    assert len(model.encoder.t5_encoder.block) == 1 and len(model.decoder.block) == 2
    assert not model.encoder.t5_encoder.config.is_decoder
    assert model.decoder.config.is_decoder and not model.decoder.config.use_cache
    assert (model.config.num_layers, model.config.num_decoder_layers) == (1, 2)
    model.set_attn_implementation("eager")
    for stack in (model.encoder.t5_encoder, model.decoder):
        assert stack.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "eager"
    ids = torch.arange(3, 12)[None]
    decoded = torch.tensor([[0, 5, 6]])
    more = {"output_hidden_states": True, "output_attentions": True}
    found = model(ids, decoder_input_ids=decoded, **more)
    blocks = found.encoder_last_hidden_state.shape[1]
    assert found.frontier_predictions.shape == (1, 9) and 0 < blocks <= 6
    assert len(found.encoder_hidden_states) == 2
    assert len(found.decoder_hidden_states) == 3
    assert [a.shape for a in found.encoder_attentions] == [(1, 2, blocks, blocks)]
    assert [a.shape for a in found.decoder_attentions] == [(1, 2, 3, 3)] * 2
    assert [a.shape for a in found.cross_attentions] == [(1, 2, 3, blocks)] * 2
    torch.testing.assert_close(found.logits, model.lm_head(found.last_hidden_state))
    embeddings = model.encoder.byte_embeddings(ids)
    frontiers = model.encoder.frontier_predictor(embeddings, None)
    torch.testing.assert_close(found.frontier_predictions, frontiers)
    shared = {"decoder.embed_tokens.weight": "decoder_embeddings.weight"}
    assert model.get_expanded_tied_weights_keys() == shared
    assert model.decoder.embed_tokens.weight is model.decoder_embeddings.weight


def test_kernels_and_maps_of_manta_are_drawn_by_their_inputs(model):
    kernel = model.encoder.pooler.conv_layers[0].weight
    layers = {kernel: 3, model.encoder.pooler.out_projection.weight: 8}
    for weight, inputs in layers.items():
        largest = weight.abs().max().item()
        assert 0.5 * inputs**-0.5 < largest <= inputs**-0.5


def test_dropout_of_a_manta_is_also_that_of_its_frontier_predictor():
    made = manta.MantaFrontierPredictor(make_config(dropout_rate=0.3))
    config = made.local_transformer.config
    assert config.hidden_dropout_prob == config.attention_probs_dropout_prob == 0.3


# ---- VAN -------------------------------------------------------------------------------------------------------------


def make_van(**changes):
    given = {
        "hidden_sizes": (4, 6),
        "depths": (2, 3),
        "patch_sizes": (7, 3),
        "strides": (4, 2),
        "mlp_ratios": (3, 2),
        "num_labels": 5,
        "drop_path_rate": 0.4,
    }
    torch.manual_seed(0)
    model = van.VanModel(van.VanConfig(**given | changes)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


@torch.no_grad()
def test_a_visual_network_is_the_sum_of_its_branches_and_a_norm_ends_each_stage():
    model = make_van()
    images = torch.randn(2, 3, 16, 16)
    x = images
    stages = []
    for stage in ("1", "2"):
        patches = getattr(model, f"patch_embed{stage}")
        x = patches.norm(patches.proj(x))
        for block in getattr(model, f"block{stage}"):
            y = block.norm1(x)
            inner = gelu(block.attn.proj_1(y))
            gate = block.attn.spatial_gating_unit
            gated = inner * gate.conv1(gate.conv_spatial(gate.conv0(inner)))
            attended = y + block.attn.proj_2(gated)
            x = x + block.layer_scale_1.view(-1, 1, 1) * attended
            mlp = block.mlp
            y = gelu(mlp.dwconv.dwconv(mlp.fc1(block.norm2(x))))
            x = x + block.layer_scale_2.view(-1, 1, 1) * mlp.fc2(y)
        norm = getattr(model, f"norm{stage}")
        x = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        stages.append(x)
    found = model(images, output_hidden_states=True)
    # A quarter of the sides, then half of that.
    assert [s.shape for s in found.hidden_states] == [(2, 4, 4, 4), (2, 6, 2, 2)]
    for shown, expected in zip(found.hidden_states, stages, strict=True):
        torch.testing.assert_close(shown, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.last_hidden_state, found.hidden_states[-1])
    pooled = found.last_hidden_state.mean((2, 3))
    torch.testing.assert_close(found.pooler_output, pooled)
    torch.testing.assert_close(found.logits, model.head(pooled))
    assert model(images).hidden_states is None
    for labels in (1, 2):
        assert make_van(num_labels=labels)(images).logits.shape == (2, labels)
    without = make_van(num_labels=0)
    found = without(images)
    torch.testing.assert_close(found.logits, found.pooler_output)


def test_parts_of_a_block_have_the_published_kernels():
    block = make_van().block2[0]
    gate = block.attn.spatial_gating_unit
    kernels = {
        gate.conv0: ((5, 5), (2, 2), (1, 1), 6),
        gate.conv_spatial: ((7, 7), (9, 9), (3, 3), 6),
        gate.conv1: ((1, 1), (0, 0), (1, 1), 1),
        block.mlp.fc1: ((1, 1), (0, 0), (1, 1), 1),
        block.mlp.dwconv.dwconv: ((3, 3), (1, 1), (1, 1), 12),
    }
    for conv, expected in kernels.items():
        found = (conv.kernel_size, conv.padding, conv.dilation, conv.groups)
        assert found == expected
    assert block.mlp.fc1.out_channels == block.mlp.fc2.in_channels == 12
    patches = make_van()
    sizes = [patches.patch_embed1.proj, patches.patch_embed2.proj]
    shown = [(c.kernel_size[0], c.stride[0], c.padding[0]) for c in sizes]
    assert shown == [(7, 4, 3), (3, 2, 1)]


def test_branches_are_dropped_the_more_the_deeper_and_only_in_training(monkeypatch):
    model = make_van()
    blocks = [*model.block1, *model.block2]
    assert [block.drop_path for block in blocks] == pytest.approx(
        [0, 0.1, 0.2, 0.3, 0.4]
    )
    asked = []

    def draw(keep):
        asked.append(keep)
        return torch.tensor([1.0, 0.0]).view(2, 1, 1, 1)

    monkeypatch.setattr(van.torch, "bernoulli", draw)
    branch = torch.ones(2, 6, 1, 1)
    scale = torch.arange(1.0, 7.0)
    whole = model.block2[2]._branch(scale, branch)[..., 0, 0]
    torch.testing.assert_close(whole, torch.stack([scale, scale]))
    assert asked == []
    model.train()
    kept = model.block2[2]._branch(scale, branch)[..., 0, 0]
    torch.testing.assert_close(kept, torch.stack([scale / 0.6, 0 * scale]))
    ((keep),) = asked
    assert keep.shape == (2, 1, 1, 1) and keep.flatten().tolist() == pytest.approx(
        [0.6, 0.6]
    )
    model.block1[0]._branch(torch.ones(4), torch.ones(2, 4, 1, 1))
    assert len(asked) == 1


def test_dropout_is_in_the_perceptrons_and_the_epsilon_in_the_norms_of_stages():
    model = make_van(dropout_rate=0.2, layer_norm_eps=0.5)
    kinds = [m for m in model.modules() if isinstance(m, torch.nn.Dropout)]
    assert [m.p for m in kinds] == [0.2] * 10
    assert (model.norm1.eps, model.norm2.eps) == (0.5, 0.5)
    assert make_van().norm2.eps == 1e-6


def test_convolutions_are_drawn_by_what_they_feed_and_scales_are_small():
    config = van.VanConfig(hidden_sizes=(64,), depths=(1,), patch_sizes=(7,))
    config.strides, config.mlp_ratios = (4,), (2,)
    torch.manual_seed(0)
    model = van.VanModel(config)
    block = model.block1[0]
    deviations = {
        model.patch_embed1.proj: (2 / (49 * 64)) ** 0.5,
        # A kernel of its own for each channel.
        block.attn.spatial_gating_unit.conv_spatial: (2 / 49) ** 0.5,
        block.mlp.fc1: (2 / 128) ** 0.5,
    }
    for layer, expected in deviations.items():
        assert layer.weight.std().item() == pytest.approx(expected, rel=0.05)
    for scale in (block.layer_scale_1, block.layer_scale_2):
        np.testing.assert_allclose(scale.detach().numpy(), 0.01)


def test_names_of_the_hub_are_the_original_ones():
    def rename(name):
        for pattern, own in van.VanModel.published_names.items():
            name = re.sub(pattern, own, name)
        return name

    stage = "encoder.stages.1"
    attention = "attention.attention_layer.attention"
    for hub, own in {
        f"{stage}.embeddings.convolution.weight": "patch_embed2.proj.weight",
        f"{stage}.embeddings.normalization.bias": "patch_embed2.norm.bias",
        f"{stage}.normalization.weight": "norm2.weight",
        f"{stage}.layers.2.pre_normomalization.bias": "block2.2.norm1.bias",
        f"{stage}.layers.2.post_normalization.bias": "block2.2.norm2.bias",
        f"{stage}.layers.0.attention_scaling.weight": "block2.0.layer_scale_1",
        f"{stage}.layers.0.mlp_scaling.weight": "block2.0.layer_scale_2",
        f"{stage}.layers.0.{attention}.depth_wise.weight": (
            "block2.0.attn.spatial_gating_unit.conv0.weight"
        ),
        f"{stage}.layers.0.{attention}.depth_wise_dilated.weight": (
            "block2.0.attn.spatial_gating_unit.conv_spatial.weight"
        ),
        f"{stage}.layers.0.{attention}.point_wise.weight": (
            "block2.0.attn.spatial_gating_unit.conv1.weight"
        ),
        f"{stage}.layers.0.mlp.in_dense.bias": "block2.0.mlp.fc1.bias",
        f"{stage}.layers.0.mlp.out_dense.bias": "block2.0.mlp.fc2.bias",
        "classifier.weight": "head.weight",
    }.items():
        assert rename(hub) == own


# ---- speech ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_block_for_speech_adds_to_what_it_was_given():
    config = speech_cnn.SpeechCnnConfig(hidden_size=4, intermediate_size=6)
    block = speech_cnn.SpeechCnnBlock(config)
    torch.nn.init.zeros_(block.down.weight)
    torch.nn.init.constant_(block.down.bias, 3.0)
    states = torch.randn(2, 5, 4)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    torch.testing.assert_close(block(states, mask), states + 3)


@torch.no_grad()
def test_a_block_for_speech_convolves_each_channel_then_norms_then_widens():
    config = speech_cnn.SpeechCnnConfig(
        hidden_size=4, intermediate_size=6, kernel_size=3
    )
    block = speech_cnn.SpeechCnnBlock(config)
    for weight in block.parameters():
        torch.nn.init.normal_(weight)
    states = torch.randn(2, 5, 4)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    found = block(states, mask)
    # Two frames of zeros around each clip, and in place of its padding.
    real = torch.nn.functional.pad(states * mask[..., None], (0, 0, 1, 1))
    kernel, shift = block.convolution.weight[:, 0], block.convolution.bias
    for row, at in product(range(2), range(5)):
        y = shift + sum(kernel[:, k] * real[row, at + k] for k in range(3))
        y = (y - y.mean()) / (y.var(correction=0) + 1e-5).sqrt()
        y = y * block.norm.weight + block.norm.bias
        expected = states[row, at] + block.down(gelu(block.up(y)))
        torch.testing.assert_close(found[row, at], expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_padding_changes_no_score_of_a_clip():
    config = speech_cnn.SpeechCnnConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        conv_dim=(8, 8),
        conv_kernel=(4, 3),
        conv_stride=(4, 2),
        kernel_size=3,
        feat_extract_norm="layer",
        num_feat_extract_layers=2,
        num_labels=3,
    )
    torch.manual_seed(0)
    model = speech_cnn.SpeechCnnForSequenceClassification(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.4)
    clips = [torch.randn(count) for count in (60, 100, 84)]
    padded = torch.full((3, 100), 9.0)
    mask = torch.zeros(3, 100, dtype=torch.long)
    for row, clip in enumerate(clips):
        padded[row, : len(clip)] = clip
        mask[row, : len(clip)] = 1
    labels = torch.tensor([2, 0, 1])
    found = model(padded, mask, labels=labels)
    alone = torch.cat([model(clip[None]).logits for clip in clips])
    torch.testing.assert_close(found.logits, alone, rtol=1e-4, atol=1e-4)
    chosen = alone.log_softmax(-1)[range(3), labels]
    torch.testing.assert_close(found.loss, -chosen.mean(), rtol=1e-4, atol=1e-4)
    assert model(padded, mask).loss is None
    # 60 samples are 15 steps of the first layer, and 7 frames of the second one.
    frames = model.speech_cnn.frame_mask(12, mask).sum(1).tolist()
    assert frames == [7, 12, 10]
    states = model.speech_cnn(padded, mask).last_hidden_state
    assert states.shape == (3, 12, 8)
    hidden = (states * model.speech_cnn.frame_mask(12, mask)[..., None]).sum(1)
    means = hidden / torch.tensor(frames)[:, None]
    torch.testing.assert_close(found.logits, model.classifier(means))
