"""DistillMOS, a speech Transformer that tells how good a recording sounds (Stahl & Gamper 2025), distilled from XLS-R.

Six convolutions over a compressed spectrogram, 7 layers of `nn.TransformerEncoder`, pooling by attention. Weights and
parameter names: the packages distillmos and xls-r-sqa. It reads windows of 122,880 samples (7.68 s at 16 kHz); shorter
ones are padded with silence, which every frame sees, and whose frames are never counted.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput

from anisoscope.models.published import PublishedModel, Weights
from anisoscope_papers.networks.windows import Windows

RATE, SAMPLES, FRAMES = 16_000, 122_880, 384
HOP, WINDOW, BANDS = 160, 320, 161
CHANNELS = (64, 64, 128, 256, 256, 256)


class DistillMosConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Configuration of the published network; a frame is a convolution of stride 2 over hops of 160 samples."""

    model_type = "distillmos"

    hidden_size: int = 200
    num_hidden_layers: int = 7
    num_attention_heads: int = 8
    conv_kernel: tuple[int, ...] = (HOP, 2)
    conv_stride: tuple[int, ...] = (HOP, 2)
    feat_extract_norm: str = "layer"  # windows may be padded


class _Spectrogram(nn.Module):
    """Turn samples [window, sample] into features [window, channel · band, frame]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        bands = BANDS
        before = 2
        for i, after in enumerate(CHANNELS):
            stride = (2 if i else 1, 2 if i == len(CHANNELS) - 1 else 1)
            layers += [
                nn.Conv2d(before, after, (3, 3), stride, (0, 1)),
                nn.LeakyReLU(0.1),
            ]
            bands = (bands - 3) // stride[0] + 1
            before = after
        self.cnn = nn.Sequential(*layers)
        self.width = before * bands

    def forward(self, samples: Tensor) -> Tensor:
        """Compute the compressed spectrogram of samples [window, sample] and convolve it: [window, channel · band,
        frame].
        """
        edge = (WINDOW - HOP) // 2
        x = nn.functional.pad(samples, (edge, edge), mode="reflect")
        window = torch.hann_window(WINDOW, dtype=x.dtype, device=x.device)
        spectrum = torch.stft(
            x, WINDOW, HOP, WINDOW, window, center=False, return_complex=True
        )
        x = torch.view_as_real(spectrum)
        size = x.square().sum(-1, keepdim=True).sqrt().clamp(min=1e-12)
        # The magnitude is compressed to its .3th power, the phase stays: [window, 2,
        # frame, frequency].
        return self.cnn((size**0.3 * x / size).permute(0, 3, 1, 2)).flatten(1, 2)  # type: ignore[no-any-return]


class _Positions(nn.Module):
    """Add sinusoidal positions."""

    pe: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        angles = torch.arange(FRAMES).unsqueeze(1) * torch.exp(
            torch.arange(0, dim, 2) * (-math.log(2 * FRAMES) / dim)
        )
        self.register_buffer(
            "pe", torch.stack((angles.sin(), angles.cos()), -1).flatten(1).unsqueeze(0)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return x [window, frame, dim] plus the positions."""
        return x + self.pe


class _Transformer(nn.Module):
    """Norm, projection, positions and Transformer layers."""

    def __init__(self, width: int, config: DistillMosConfig) -> None:
        super().__init__()
        dim = config.hidden_size
        self.norm, self.position_encoding = nn.BatchNorm1d(width), _Positions(dim)
        self.linear_proj = nn.Linear(width, dim)
        layer = nn.TransformerEncoderLayer(
            dim, config.num_attention_heads, 2 * dim, dropout=0.0, batch_first=True
        )
        self.transformer_encoder = nn.TransformerEncoder(
            layer, config.num_hidden_layers
        )

    def forward(self, x: Tensor) -> Tensor:
        """Turn features [window, width, frame] into hidden states [window, frame, dim]."""
        placed = self.position_encoding(self.linear_proj(self.norm(x).mT))
        return self.transformer_encoder(placed)  # type: ignore[no-any-return]


class _Pooling(nn.Module):
    """Pooling of frames by attention, to one number."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.linear1, self.linear2, self.linear3 = (
            nn.Linear(dim, 2 * dim),
            nn.Linear(2 * dim, 1),
            nn.Linear(dim, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Pool frames [window, frame, dim] to one number per window, [window, 1]."""
        weights = self.linear2(self.linear1(x).relu()).softmax(1)
        return self.linear3((weights * x).sum(1))  # type: ignore[no-any-return]


class _Judge(nn.Module):
    """Estimates the quality of a recording's windows from their features, each from 0 to 1."""

    def __init__(self, width: int, config: DistillMosConfig) -> None:
        super().__init__()
        self.norm_input, self.norm_trans = (
            nn.BatchNorm1d(width),
            nn.BatchNorm1d(config.hidden_size),
        )
        self.transformer, self.pool = (
            _Transformer(width, config),
            _Pooling(config.hidden_size),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the quality of each window [window, 1], from features [window, width, frame]."""
        x = self.transformer(self.norm_input(features))
        return torch.sigmoid(self.pool(self.norm_trans(x.mT).mT))


class DistillMosModel(PublishedModel):
    """The network; its only output is the quality of each window, from 1 to 5."""

    config_class = DistillMosConfig
    base_model_prefix = ""
    main_input_name = "input_values"
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": nn.TransformerEncoderLayer
    }  # declared so by transformers  # noqa: RUF012, RUF100

    def __init__(self, config: DistillMosConfig) -> None:
        super().__init__(config)
        self.cnn = _Spectrogram()
        self.transformer_pool_attn = _Judge(self.cnn.width, config)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Leave the weights as torch initialises them."""

    def forward(self, input_values: Tensor, **_: Any) -> BaseModelOutput:
        """Return the quality of each window; input_values [window, sample] have at most 122,880 samples.

        Each window is divided by its largest absolute sample.
        """
        # The last window of a recording is shorter than the others.
        x = nn.functional.pad(input_values, (0, SAMPLES - input_values.shape[1]))
        x = x / (x.abs().amax(1, keepdim=True) + 1e-8)
        return BaseModelOutput(
            # From shares of 0 to 1 to opinion scores of 1 to 5.
            last_hidden_state=1 + 4 * self.transformer_pool_attn(self.cnn(x))
        )

    def _get_feat_extract_output_lengths(self, samples: Tensor) -> Tensor:
        """Return, for numbers of samples, the number of frames whose samples are all real."""
        return samples // (2 * HOP)


def config_of(weights: Weights) -> DistillMosConfig | None:
    """Return the configuration if the published weights {name: tensor} are of this network, else None."""
    if "transformer_pool_attn.pool.linear3.weight" in weights:
        return DistillMosConfig()
    return None


def processor() -> Windows:
    """Return a processor for windows of at most 7.7 seconds (122,880 samples)."""
    return Windows(122_880)
