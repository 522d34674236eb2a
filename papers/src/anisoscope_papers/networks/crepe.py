"""CREPE, a convolutional network on sound that tells its pitch (Kim et al. 2018), as the package torchcrepe has it.

It reads frames of 1,024 samples at 16 kHz, each on its own; here they follow one another without overlap, so that no
sample counts twice. A block ends with its ReLU: the norm and the pooling behind it are the beginning of the next one.
Maps are [clip, channel, frame, width].
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from anisoscope.models.published import PublishedModel, Weights
from anisoscope_papers.networks.windows import Windows

FRAME = 1024
CHANNELS = (1024, 128, 128, 128, 256, 512)
"""Output channels of `full`; `tiny` has an eighth of them."""
LAST_WIDTH = 4  # positions of a frame behind the last pooling
PITCHES = 360


class CrepeConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Configuration; `shrink` divides the channels: 1 for `full`, 8 for `tiny`."""

    model_type = "crepe"

    shrink: int = 1
    conv_kernel: tuple[int, ...] = (FRAME,)
    conv_stride: tuple[int, ...] = (FRAME,)


class CrepeBlock(nn.Module):
    """Norm and pooling of the input (not in the first block), convolution over each frame, ReLU."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        first = before == 1
        self.norm = None if first else _make_norm(before)
        # An even kernel of 64 keeps the width only with unequal padding; the first one,
        # of 512 with stride 4, makes 256 of 1,024.
        self.padding = (254, 254) if first else (31, 32)
        self.conv = nn.Conv2d(
            before, after, (1, 512 if first else 64), (1, 4 if first else 1)
        )
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to maps x [clip, channel, frame, width]."""
        x = x if self.norm is None else _pool(self.norm(x))
        return self.relu(self.conv(nn.functional.pad(x, self.padding)))  # type: ignore[no-any-return]


class CrepeModel(PublishedModel):
    """The network: frames, six blocks, a sigmoid for each of 360 pitches."""

    config_class = CrepeConfig
    base_model_prefix = ""
    main_input_name = "input_values"
    _can_record_outputs = {"hidden_states": CrepeBlock}  # declared so by transformers  # noqa: RUF012
    published_names: ClassVar[Mapping[str, str]] = {
        r"^conv(\d)\.": r"blocks.\1.conv.",
        **{rf"^conv{i}_BN\.": f"blocks.{i + 1}.norm." for i in range(1, 6)},
        # The published norm i follows convolution i: here it begins block i + 1, and
        # the last one is on its own.
        r"^conv6_BN\.": "norm.",
    }

    def __init__(self, config: CrepeConfig) -> None:
        super().__init__(config)
        sizes = [1, *(channels // config.shrink for channels in CHANNELS)]
        self.blocks = nn.ModuleDict(
            {str(i): CrepeBlock(*sizes[i - 1 : i + 1]) for i in range(1, len(sizes))}
        )
        self.norm = _make_norm(sizes[-1])
        self.classifier = nn.Linear(sizes[-1] * LAST_WIDTH, PITCHES)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the weights as torch initialises them."""

    def forward(self, input_values: Tensor, **_: Any) -> BaseModelOutput:
        """Return pitches [clip, frame, pitch] for input_values [clip, sample]; each frame is centred and scaled on its
        own.
        """
        # [clip, 1, frame, 1024].
        x = input_values.unfold(1, FRAME, FRAME).unsqueeze(1)
        x = x - x.mean(-1, keepdim=True)
        x = x / x.std(-1, keepdim=True).clamp(min=1e-10)
        for block in self.blocks.values():
            x = block(x)
        x = _pool(self.norm(x))
        pitches: Tensor = torch.sigmoid(
            self.classifier(x.permute(0, 2, 3, 1).flatten(2))
        )
        return BaseModelOutput(last_hidden_state=pitches)

    def _get_feat_extract_output_lengths(self, samples: Tensor) -> Tensor:
        """Return the number of frames [clip] for numbers of samples [clip]."""
        return samples // FRAME


def _make_norm(channels: int) -> nn.BatchNorm2d:
    """Build a batch norm over this number of channels, with the published constants."""
    return nn.BatchNorm2d(channels, eps=0.0010000000474974513, momentum=0.0)


def _pool(x: Tensor) -> Tensor:
    """Halve the width of maps x [clip, channel, frame, width] by maximum pooling."""
    return nn.functional.max_pool2d(x, (1, 2), (1, 2))


def config_of(weights: Weights) -> CrepeConfig | None:
    """Infer the configuration from published weights {name: tensor}; None if they are not of such a network."""
    first = weights.get("conv1.weight")
    if first is None or "conv6_BN.weight" not in weights:
        return None
    # `full` has 1,024 channels in its first convolution, `tiny` 128.
    return CrepeConfig(shrink=CHANNELS[0] // max(1, len(first)))


def published(weights: Weights) -> Weights:
    """Convert weights of this network to the published layout, or back, by transposing the convolution kernels.

    Here they lie along the width of a map, in the published weights along its height.
    """
    return {
        name: x.transpose(2, 3) if x.dim() == 4 else x for name, x in weights.items()
    }


def processor() -> Windows:
    """Return a processor that passes clips on unchanged."""
    return Windows()
