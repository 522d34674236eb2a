"""The residual networks of He et al. (2016) for CIFAR: three stages of 16, 32 and 64 channels, 6n + 2 layers.

Weights and parameter names: github.com/akamaster/pytorch_resnet_cifar10 (`resnet20-12fca82f.th` …), shortcuts of option
A: without parameters. A block ends with its last ReLU.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput

from anisoscope.data.images import DEVIATION, MEAN
from anisoscope.models.published import PublishedModel, Weights

CHANNELS = (16, 32, 64)


class CifarResNetConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Configuration; `depth` counts convolutions and the last linear map: 20, 32, 44, 56, 110, 1202."""

    model_type = "cifar_resnet"

    depth: int = 20
    image_size: int = 32
    num_channels: int = 3


class CifarResNetBlock(nn.Module):
    """Two convolutions with a shortcut; maps [image, channel, height, width]."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        """Build a block from `before` to `after` channels."""
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.stride, self.more = stride, (after - before) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to maps x [image, channel, height, width]."""
        # Option A of the paper: every second pixel, and new channels of zeros on both
        # sides. It has no weights.
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.more:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, self.more, self.more))
        y = self.relu1(self.bn1(self.conv1(x)))
        return self.relu2(self.bn2(self.conv2(y)) + shortcut)  # type: ignore[no-any-return]


class CifarResNetModel(PublishedModel):
    """The network: stem, three stages, mean over positions, classes."""

    config_class = CifarResNetConfig
    base_model_prefix = ""
    main_input_name = "pixel_values"
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": CifarResNetBlock
    }  # declared so by transformers  # noqa: RUF012, RUF100

    def __init__(self, config: CifarResNetConfig) -> None:
        super().__init__(config)
        self.conv1 = nn.Conv2d(config.num_channels, CHANNELS[0], 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(CHANNELS[0])
        # Three stages of n blocks with two convolutions each, the stem and the linear
        # layer: 6n + 2.
        blocks = (config.depth - 2) // 6
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                *(
                    CifarResNetBlock(after if i else before, after, 1 if i else stride)
                    for i in range(blocks)
                )
            )
            for before, after, stride in zip(
                (CHANNELS[0], *CHANNELS), CHANNELS, (1, 2, 2), strict=False
            )
        )
        self.linear = nn.Linear(CHANNELS[-1], int(config.num_labels or 10))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Draw the weights of convolutions and linear maps from He's normal distribution (He et al. 2015), as the
        authors do.
        """
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)

    def forward(self, pixel_values: Tensor, **_: Any) -> ImageClassifierOutput:
        """Return class scores; pixel_values [image, channel, height, width] are scaled by ImageNet's mean and
        deviation.
        """
        x = torch.relu(self.bn1(self.conv1(pixel_values)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return ImageClassifierOutput(logits=self.linear(x.mean((2, 3))))


def config_of(weights: Weights) -> CifarResNetConfig | None:
    """Infer the configuration from published weights {name: tensor}; None if they are not of such a network."""
    blocks = []
    for name in weights:
        match = re.fullmatch(r"(?:module\.)?layer([123])\.(\d+)\.conv1\.weight", name)
        if match:
            blocks.append((int(match[1]), int(match[2])))
    of_each_stage = len(blocks) // 3
    expected = [(stage, i) for stage in (1, 2, 3) for i in range(of_each_stage)]
    last = _find_last_layer(weights)
    if not blocks or sorted(blocks) != expected or last is None:
        return None
    classes: dict[str, Any] = {"num_labels": len(last)}
    # The depth counts layers with weights: two in a block, the first convolution and the last linear layer.
    return CifarResNetConfig(depth=6 * of_each_stage + 2, **classes)


def _find_last_layer(weights: Weights) -> Tensor | None:
    """Return the weights [class, dim] of the last linear layer; None if there is none."""
    for name, weight in weights.items():
        if name.endswith("linear.weight"):
            return weight
    return None


def published(weights: Weights) -> Weights:
    """Return published weights with the batch counters of batch norms, which files of 2018 lack and only training
    reads.
    """
    counters = [name for name in weights if name.endswith("running_mean")]
    zeros = {
        name.replace("running_mean", "num_batches_tracked"): torch.tensor(0)
        for name in counters
    }
    return {**zeros, **weights}


def processor() -> Any:
    """Return the image processor: shorter side 32, then the middle 32 × 32 pixels; CIFAR's own photographs do not
    change.
    """
    from transformers import CLIPImageProcessorPil

    sizes: dict[str, Any] = {
        "size": {"shortest_edge": 32},
        "crop_size": {"height": 32, "width": 32},
    }
    return CLIPImageProcessorPil(
        **sizes, image_mean=list(MEAN), image_std=list(DEVIATION)
    )
