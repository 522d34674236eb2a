"""A one-dimensional convolutional network for speech: the counterpart of a small wav2vec 2.0 without attention.

Waveform → the feature extractor of wav2vec 2.0 (Baevski et al. 2020) → residual blocks of ConvNeXt's design (Liu et al.
2022), convolving over time → mean over frames → classes. Blocks see and return [sequence, frame, dim], so their outputs
are measured frame by frame like those of a Transformer. Padded frames are zeroed before each convolution.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import Wav2Vec2Config
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.models.wav2vec2.modeling_wav2vec2 import (
    Wav2Vec2FeatureEncoder,
    Wav2Vec2FeatureProjection,
    Wav2Vec2PreTrainedModel,
)


class SpeechCnnConfig(Wav2Vec2Config):  # type: ignore[no-untyped-call]  # transformers has no types there
    """Configuration: sizes as in `Wav2Vec2Config` (`conv_*`, `hidden_size`, …), and the `kernel_size` of a block."""

    model_type = "speech_cnn"
    kernel_size: int = 7


class SpeechCnnBlock(nn.Module):
    """A residual block: depthwise convolution over time, norm, two-layer perceptron."""

    def __init__(self, config: SpeechCnnConfig) -> None:
        super().__init__()
        dim = config.hidden_size
        kernel = config.kernel_size
        self.convolution = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = (
            nn.Linear(dim, config.intermediate_size),
            nn.Linear(config.intermediate_size, dim),
        )

    def forward(self, hidden_states: Tensor, mask: Tensor | None = None) -> Tensor:
        """Apply the block to hidden_states [sequence, frame, dim]; mask [sequence, frame] marks real frames."""
        # A convolution would carry padding into the last real frames.
        x = hidden_states if mask is None else hidden_states * mask.unsqueeze(-1)
        x = self.norm(self.convolution(x.transpose(1, 2)).transpose(1, 2))
        return hidden_states + self.down(nn.functional.gelu(self.up(x)))  # type: ignore[no-any-return]


class SpeechCnnModel(Wav2Vec2PreTrainedModel):  # type: ignore[no-untyped-call]
    """The network without its head: feature extractor and blocks."""

    config_class = SpeechCnnConfig
    base_model_prefix = "speech_cnn"
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": SpeechCnnBlock
    }  # declared so by transformers  # noqa: RUF012, RUF100

    def __init__(self, config: SpeechCnnConfig) -> None:
        super().__init__(config)
        self.feature_extractor = Wav2Vec2FeatureEncoder(config)  # type: ignore[no-untyped-call]
        self.feature_projection = Wav2Vec2FeatureProjection(config)  # type: ignore[no-untyped-call]
        self.blocks = nn.ModuleList(
            SpeechCnnBlock(config) for _ in range(config.num_hidden_layers)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self, input_values: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> BaseModelOutput:
        """Return the hidden states of the last block, [sequence, frame, dim], for input_values and attention_mask
        [sequence, sample].
        """
        features = self.feature_extractor(input_values).transpose(1, 2)
        mask = (
            None
            if attention_mask is None
            else self.frame_mask(features.shape[1], attention_mask)
        )
        hidden, _features = self.feature_projection(features)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return BaseModelOutput(last_hidden_state=hidden)

    def frame_mask(self, frames: int, attention_mask: Tensor) -> Tensor:
        """Return the mask [sequence, frame] of the first `frames` frames, which marks those that hold real samples."""
        mask: Tensor = self._get_feature_vector_attention_mask(
            frames,
            attention_mask.long(),  # type: ignore[arg-type]
        )
        return mask


class SpeechCnnForSequenceClassification(Wav2Vec2PreTrainedModel):  # type: ignore[no-untyped-call]
    """The classifier: the mean over real frames, then class scores."""

    config_class = SpeechCnnConfig
    base_model_prefix = "speech_cnn"

    def __init__(self, config: SpeechCnnConfig) -> None:
        super().__init__(config)
        self.speech_cnn = SpeechCnnModel(config)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 2))
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_values: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **_: Any,
    ) -> SequenceClassifierOutput:
        """Return the logits [sequence, class] for input_values [sequence, sample], and the cross-entropy if there
        are labels.
        """
        hidden = self.speech_cnn(input_values, attention_mask).last_hidden_state
        # The mean over frames is over real ones alone.
        weight = torch.ones_like(hidden[..., :1])
        if attention_mask is not None:
            weight = (
                self.speech_cnn.frame_mask(hidden.shape[1], attention_mask)
                .unsqueeze(-1)
                .to(hidden.dtype)
            )
        logits = self.classifier((hidden * weight).sum(1) / weight.sum(1).clamp(min=1))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
