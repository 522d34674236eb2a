"""What is captured of networks that transformers lacks is what they themselves return, as of those that it has."""

import paper_models
import pytest
import test_architectures as checks
import test_fused
import torch
from tiny_models import build

from anisoscope.axes import LAYER_QUANTITIES
from anisoscope.measure.settings import Settings
from anisoscope_papers.families import FAMILIES
from anisoscope_papers.networks.efficientnet_lite import (
    EfficientNetLiteConfig,
    EfficientNetLiteModel,
)
from anisoscope_papers.networks.van import VanConfig, VanModel

LAYERS = {
    "character_bert": {"encoder": [(12, 32)] * 4},
    "manta": {"encoder": [(10, 32)] * 3, "decoder": [(8, 32)] * 3},
    "van": {"encoder": [(64, 8), (64, 8), (16, 16), (16, 16), (4, 24), (1, 32)]},
}
"""Architecture → stack → (positions, dimensions) of layers 0, 1, 2 … of an input of 12 positions or 32 × 32 pixels."""
ELSEWHERE = (
    "attention_classifier",
    "speech_cnn",
    "cifar_resnet",
    "crepe",
    "distillmos",
    "efficientnet_lite",
)
"""Networks with tests of their own: test_attention_classifier.py, test_small_models.py, test_packaged.py,
test_checkpoints.py.
"""


def test_every_network_has_its_line():
    assert LAYERS.keys() == paper_models.ARCHITECTURES.keys()
    assert FAMILIES.keys() - LAYERS.keys() == set(ELSEWHERE)


@pytest.mark.parametrize("name", LAYERS)
def test_count_order_and_shape(name):
    checks.check_layers(name, LAYERS[name], final=name == "manta")


@pytest.mark.parametrize("name", ["character_bert", "manta"])
def test_layers_are_the_model_s_own_and_attention_is_seen_at_each(name):
    checks.test_layers_are_the_model_s_own(name)
    checks.test_attention_is_seen_at_every_layer(name)


def test_van():
    checks.test_stages_are_the_model_s_own("van")
    checks.test_blocks_are_what_each_block_returns("van")
    checks.test_one_vector_per_image("van")
    assert not any("pre_relu" in site for site in checks.seen("van").tap)


def test_characters_alone_and_padded_give_the_same_sums():
    checks.test_alone_and_padded_give_the_same_sums("character_bert")


@pytest.mark.parametrize("name", LAYERS)
def test_outputs_move_by_rounding(name):
    test_fused.test_outputs_move_by_rounding(name)


def test_a_network_without_attention_is_measured_in_its_hidden_states():
    sizes = {
        "hidden_sizes": [4, 4],
        "depths": [1, 1],
        "mlp_ratios": [1, 1],
        "patch_sizes": [3, 3],
        "strides": [2, 2],
    }
    settings = Settings()
    for network in (
        VanModel(VanConfig(**sizes)),
        EfficientNetLiteModel(EfficientNetLiteConfig()),
    ):
        assert settings.what_of(network) == ({*LAYER_QUANTITIES} & settings.what, set())
    assert settings.what_of(build("bert", torch.float32))[0] == settings.what
