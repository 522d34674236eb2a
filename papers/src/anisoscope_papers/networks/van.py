"""VAN, the Visual Attention Network: a convolutional network whose "attention" is a gate of large depthwise kernels.

Paper: Guo et al., "Visual Attention Network" (Computational Visual Media 2023). Weights and parameter names:
github.com/Visual-Attention-Network/VAN-Classification (`van_tiny_754.pth.tar` …: `load_published`); the names of
huggingface.co/Visual-Attention-Network/van-{tiny,small,base,large} load too. There are no queries, keys or values.

Every module below takes and returns maps (B, C, H, W).
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndNoAttention

from anisoscope.models.published import PublishedModel


class VanConfig(PretrainedConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ has no types
    """Configuration of a VAN (defaults: base), with the field names of the hub's `config.json`; one entry per stage."""

    model_type = "van"

    num_channels: int = 3
    patch_sizes: Sequence[int] = (7, 3, 3, 3)
    strides: Sequence[int] = (4, 2, 2, 2)
    hidden_sizes: Sequence[int] = (64, 128, 320, 512)
    depths: Sequence[int] = (3, 3, 12, 3)
    mlp_ratios: Sequence[int] = (8, 8, 4, 4)
    hidden_act: str = "gelu"
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-6
    layer_scale_init_value: float = 1e-2
    drop_path_rate: float = 0.0
    dropout_rate: float = 0.0


class InOrder(nn.Sequential):
    """Modules applied in sequence, under the published names."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__(OrderedDict(modules))


class Gated(InOrder):
    """Multiply the input by the output of the modules."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the input times the modules' output, both (B, C, H, W)."""
        return features * super().forward(features)  # type: ignore[no-any-return, no-untyped-call]


class Residual(InOrder):
    """Add the output of the modules to the input."""

    def forward(self, features: Tensor) -> Tensor:
        """Return the input plus the modules' output, both (B, C, H, W)."""
        return features + super().forward(features)  # type: ignore[no-any-return, no-untyped-call]


class VanStageNorm(nn.LayerNorm):
    """The norm over channels at the end of a stage. Its output, (B, H W, C), is the output of the stage."""


def patch_embedding(
    channels_in: int, channels: int, kernel: int, stride: int
) -> nn.Module:
    """Build overlapping patches: a convolution with this kernel and stride, and a batch norm."""
    proj = nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2)
    return InOrder(proj=proj, norm=nn.BatchNorm2d(channels))


def build_spatial_attention(channels: int, activation: str) -> nn.Module:
    """Build large kernel attention: the input, gated by 5 × 5, dilated 7 × 7 and 1 × 1 convolutions of itself."""
    return Residual(
        proj_1=nn.Conv2d(channels, channels, 1),
        activation=ACT2FN[activation],
        spatial_gating_unit=Gated(
            conv0=nn.Conv2d(channels, channels, 5, padding=2, groups=channels),
            conv_spatial=nn.Conv2d(
                channels, channels, 7, padding=9, dilation=3, groups=channels
            ),
            conv1=nn.Conv2d(channels, channels, 1),
        ),
        proj_2=nn.Conv2d(channels, channels, 1),
    )


def build_perceptron(
    channels: int, ratio: int, activation: str, dropout: float
) -> nn.Module:
    """Build a perceptron of convolutions: 1 × 1 that widens `ratio` times, depthwise 3 × 3, activation, narrowing 1
    × 1.
    """
    wide = channels * ratio
    return InOrder(
        fc1=nn.Conv2d(channels, wide, 1),
        dwconv=InOrder(dwconv=nn.Conv2d(wide, wide, 3, padding=1, groups=wide)),
        activation=ACT2FN[activation],
        dropout=nn.Dropout(dropout),
        fc2=nn.Conv2d(wide, channels, 1),
        last_dropout=nn.Dropout(dropout),
    )


class VanLayer(nn.Module):
    """One block: attention and perceptron, each after a batch norm, scaled per channel and added."""

    def __init__(self, config: VanConfig, stage: int, drop_path: float) -> None:
        """Build a block of a stage; `drop_path`: the probability with which its branches are dropped in training."""
        super().__init__()
        channels = config.hidden_sizes[stage]
        self.norm1 = nn.BatchNorm2d(channels)
        self.attn = build_spatial_attention(channels, config.hidden_act)
        self.norm2 = nn.BatchNorm2d(channels)
        self.mlp = build_perceptron(
            channels, config.mlp_ratios[stage], config.hidden_act, config.dropout_rate
        )
        self.layer_scale_1 = nn.Parameter(
            torch.full((channels,), config.layer_scale_init_value)
        )
        self.layer_scale_2 = nn.Parameter(
            torch.full((channels,), config.layer_scale_init_value)
        )
        self.drop_path = drop_path

    def forward(self, features: Tensor) -> Tensor:
        """Apply the block to maps (B, C, H, W)."""
        features = features + self._branch(
            self.layer_scale_1, self.attn(self.norm1(features))
        )
        return features + self._branch(
            self.layer_scale_2, self.mlp(self.norm2(features))
        )

    def _branch(self, scale: Tensor, branch: Tensor) -> Tensor:
        """Return a branch (B, C, H, W) with each channel scaled; in training, an image's branch is dropped with the
        block's probability.
        """
        branch = scale[:, None, None] * branch
        if not self.training or self.drop_path == 0:
            return branch
        # Stochastic depth: what is kept is scaled up, so that the expected value stays.
        keep = torch.full(
            (len(branch), 1, 1, 1),
            1 - self.drop_path,
            device=branch.device,
            dtype=branch.dtype,
        )
        return branch * torch.bernoulli(keep) / keep


@dataclass
class VanOutput(BaseModelOutputWithPoolingAndNoAttention):
    """The output of `VanModel`.

    `pooler_output` (B, C) is the mean over positions. `hidden_states`, on request, are (B, C, H, W) after each stage's
    norm, as in transformers 4. `logits` are (B, labels), or the pooled features if the model has no labels.
    """

    logits: Tensor | None = None


_STAGE = {
    r"embeddings\.convolution": "patch_embed{}.proj",
    r"embeddings\.normalization": "patch_embed{}.norm",
    "normalization": "norm{}",
    "layers": "block{}",
}
_BLOCK = {
    "pre_normomalization": "norm1",
    "post_normalization": "norm2",
    r"attention_scaling\.weight": "layer_scale_1",
    r"mlp_scaling\.weight": "layer_scale_2",
    r"attention\.pre_projection\.conv": "attn.proj_1",
    r"attention\.post_projection": "attn.proj_2",
    r"attention\.attention_layer\.attention\.depth_wise": "attn.spatial_gating_unit.conv0",
    r"attention\.attention_layer\.attention\.depth_wise_dilated": "attn.spatial_gating_unit.conv_spatial",
    r"attention\.attention_layer\.attention\.point_wise": "attn.spatial_gating_unit.conv1",
    r"mlp\.in_dense": "mlp.fc1",
    r"mlp\.depth_wise": "mlp.dwconv.dwconv",
    r"mlp\.out_dense": "mlp.fc2",
}
"""The hub's spelling (of one norm a wrong one) → the original: in a stage, counted from 0 by the hub; in a block."""


class VanModel(PublishedModel):  # type: ignore[no-untyped-call]  # as above
    """The whole network with its linear head. Hook `VanLayer` for the raw block outputs, (B, C, H, W)."""

    config_class = VanConfig
    config: VanConfig
    base_model_prefix = "van"
    main_input_name = "pixel_values"
    published_names = (
        {r"^classifier\.": "head."}
        | {
            rf"^encoder\.stages\.{i}\.{hub}\.": f"{own.format(i + 1)}."
            for i in range(4)
            for hub, own in _STAGE.items()
        }
        | {rf"^(block\d\.\d+\.){hub}(?!\w)": rf"\1{own}" for hub, own in _BLOCK.items()}
    )
    # The hub's files carry a final LayerNorm that no forward pass of theirs ever used.
    _keys_to_ignore_on_load_unexpected = [  # noqa: RUF012
        r"^layernorm\."
    ]  # transformers types it as an instance's  # noqa: RUF012, RUF100

    def __init__(self, config: VanConfig) -> None:
        super().__init__(config)
        channels_in = config.num_channels
        block_index = 0
        last = max(sum(config.depths) - 1, 1)
        for stage, (channels, depth) in enumerate(
            zip(config.hidden_sizes, config.depths, strict=True)
        ):
            # The rate rises linearly from 0 in the first block to `drop_path_rate` in
            # the last.
            rates = [
                config.drop_path_rate * (block_index + i) / last for i in range(depth)
            ]
            embedding = patch_embedding(
                channels_in, channels, config.patch_sizes[stage], config.strides[stage]
            )
            setattr(self, f"patch_embed{stage + 1}", embedding)
            setattr(
                self,
                f"block{stage + 1}",
                nn.ModuleList(VanLayer(config, stage, rate) for rate in rates),
            )
            setattr(
                self,
                f"norm{stage + 1}",
                VanStageNorm(channels, eps=config.layer_norm_eps),
            )
            channels_in = channels
            block_index = block_index + depth
        self.head = (
            nn.Linear(channels_in, config.num_labels)
            if config.num_labels
            else nn.Identity()
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, pixel_values: Tensor, output_hidden_states: bool = False
    ) -> VanOutput:
        """Return the class scores of images (B, 3, H, W), H and W multiples of 32.

        `output_hidden_states`: also return the output of each stage.
        """
        features = pixel_values
        stages = []
        for stage in range(1, len(self.config.depths) + 1):
            features = self.get_submodule(f"patch_embed{stage}")(features)
            for block in self.get_submodule(f"block{stage}").children():
                features = block(features)
            # The norm is over channels, and the next stage reads its output: so it is a
            # stage's output, and no block's.
            tokens = self.get_submodule(f"norm{stage}")(
                features.flatten(2).transpose(1, 2)
            )  # (B, H W, C)
            features = tokens.transpose(1, 2).contiguous().view(features.shape)
            stages.append(features)
        pooled = features.mean((2, 3))
        return VanOutput(
            features,
            pooled,
            tuple(stages) if output_hidden_states else None,
            self.head(pooled),
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise convolutions by fan-out, layer scales at their initial value, the rest as transformers does."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, nn.Conv2d):
            fan_out = (
                module.kernel_size[0]
                * module.kernel_size[1]
                * module.out_channels
                // module.groups
            )
            init.normal_(module.weight, mean=0.0, std=(2 / fan_out) ** 0.5)
        elif isinstance(module, VanLayer):
            init.constant_(module.layer_scale_1, self.config.layer_scale_init_value)
            init.constant_(module.layer_scale_2, self.config.layer_scale_init_value)
