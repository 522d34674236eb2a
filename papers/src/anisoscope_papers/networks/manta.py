"""MANTa-LM: bytes, a learned soft segmentation into blocks, a T5 encoder over blocks and a T5 decoder over bytes.

Paper: Godey et al., "MANTa: Efficient Gradient-Based Tokenization for Robust End-to-End Language Modeling" (Findings of
EMNLP 2022). Weights and parameter names: github.com/NathanGodey/transformers, `models/manta`. The number of blocks and
the pooling depend on the whole batch in the published network, so sequences pass one at a time (see `MantaModel`).

The two T5 stacks use transformers' attention interface. The frontier predictor is a Longformer, which does not: it is
part of the tokenization. Input ids are those of `ByT5Tokenizer`.

Checkpoints of an earlier version of that code (names beginning with `encoder_decoder.`, no `max_length_inputs`) are the
same network with highway layers behind the pooling; its frontier predictor is as long as the encoder.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d
from transformers import (
    LongformerConfig,
    LongformerModel,
    T5Config,
    initialization as init,
)
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.models.t5.modeling_t5 import T5Stack

from anisoscope.errors import UsageError
from anisoscope.models.published import PublishedModel
from anisoscope_papers.networks.character_bert import Highway

EARLIER_NAMES = {
    r"^(byte_embeddings|frontier_predictor|pooler)\.": r"encoder.\1.",
    r"^encoder_decoder\.encoder\.(?!embed_tokens)": "encoder.t5_encoder.",
    r"^encoder_decoder\.(?:shared|decoder\.embed_tokens)\.": "decoder_embeddings.",
    r"^encoder_decoder\.decoder\.(?!embed_tokens)": "decoder.",
}
"""Names of weights in checkpoints of the earlier version → ours."""
ONE_AT_A_TIME = "pass each sequence alone: the published pooling counts blocks over the batch and does not mask padding"


class MantaConfig(T5Config):  # type: ignore[no-untyped-call]  # untyped __init_subclass__
    """Configuration of a MANTa-LM under its published names: fields of T5, and those of its
    segmentation into blocks.
    """

    model_type = "manta"

    vocab_size: int = 384
    byte_embedding_dim: int = 64
    frontier_predictor_num_layers: int = 1
    frontier_predictor_num_attention_heads: int = 8
    frontier_predictor_attention_window: int = 16
    pooling_variance_regularization: float = 1e-6
    pooling_kernel_size: int | Sequence[Sequence[int]] = (
        3  # one width, or pairs of width and channels
    )
    pooling_depthwise_convolution: bool = True
    pooling_mean_pool: bool = False
    pooling_n_highway_layers: int = 0
    max_length_inputs: int = 0  # 0: as the encoder's
    max_length_encoder_decoder: int = 256
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        """Fill in defaults of checkpoints of an earlier version. UsageError for a choice that this network does not
        have.
        """
        if self.tie_word_embeddings:
            raise UsageError(
                "a MANTa with its own output layer",
                "tie_word_embeddings = True",
                "set it to False",
            )
        activation = kwargs.pop("pooling_highway_activation", "relu")
        if self.pooling_n_highway_layers and activation != "relu":
            raise UsageError(
                "a MANTa with highway layers of relu",
                repr(activation),
                "name another checkpoint",
            )
        if not self.max_length_inputs:
            self.max_length_inputs = self.max_length_encoder_decoder
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        self.tie_word_embeddings = False  # T5 says True, whatever it was given


class MantaFrontierPredictor(nn.Module):
    """Predict the probability of each byte to start a block: a local Longformer, a linear layer, a sigmoid."""

    def __init__(self, config: MantaConfig) -> None:
        super().__init__()
        size = config.byte_embedding_dim
        window = config.frontier_predictor_attention_window
        local = LongformerConfig(
            attention_window=window,
            attention_probs_dropout_prob=config.dropout_rate,
            hidden_dropout_prob=config.dropout_rate,
            hidden_size=size,
            intermediate_size=4 * size,
            # Longformer pads to whole windows and numbers positions from 1.
            max_position_embeddings=(config.max_length_inputs // window + 1) * window
            + 1,
            num_attention_heads=config.frontier_predictor_num_attention_heads,
            num_hidden_layers=config.frontier_predictor_num_layers,
            vocab_size=1,
            pad_token_id=0,
            eos_token_id=None,
            sep_token_id=None,
        )
        self.local_transformer = LongformerModel(local)
        self.output_projection = nn.Linear(size, 1)

    def forward(self, embeddings: Tensor, attention_mask: Tensor | None) -> Tensor:
        """Return the probability of each byte to start a block (B, T), from byte embeddings (B, T, C) and a mask (B,
        T).
        """
        states = self.local_transformer(
            inputs_embeds=embeddings, attention_mask=attention_mask
        ).last_hidden_state
        return self.output_projection(states).squeeze(-1).sigmoid()  # type: ignore[no-any-return]


class MantaBlockAssignment(nn.Module):
    """Turn frontier probabilities into the share of each byte in each block.

    The block index of byte t is a sum of independent frontiers: mean μ = Σp, standard deviation σ = √(Σp(1 − p) + ε).
    Its density at block l is exp(−(μ − l)² / 2σ), normalised over blocks; the published code divides by σ, not σ².
    """

    def __init__(self, variance_floor: float) -> None:
        super().__init__()
        self.variance_floor = variance_floor

    def forward(self, frontiers: Tensor, joint_blocks: bool) -> Tensor:
        """Turn frontier probabilities (B, T) into shares of bytes in blocks (B, L, T), which sum to one over the L
        blocks.

        B rows, T bytes, L blocks. `joint_blocks`: all rows get the largest number of blocks that a row of the batch
        needs. UsageError if it is false and rows need different numbers.
        """
        # The first byte is in block 0 whatever is predicted for it.
        frontiers = torch.cat(
            [torch.zeros_like(frontiers[:, :1]), frontiers[:, 1:]], dim=1
        )
        # A small variance keeps the density of certain frontiers finite.
        floor = max(5 * torch.finfo(frontiers.dtype).resolution, self.variance_floor)
        mean = frontiers.cumsum(-1)  # (B, T)
        deviation = ((frontiers * (1 - frontiers)).cumsum(-1) + floor).sqrt()  # (B, T)
        # Blocks that a byte may reach with three standard deviations; never more than
        # bytes.
        counts = ((mean + 3 * deviation).amax(-1).int() + 1).clamp(
            max=frontiers.shape[1]
        )  # (B,)
        if not joint_blocks and counts.min() < counts.max():
            raise UsageError(
                "one sequence at a time",
                f"rows of {counts.tolist()} blocks",
                ONE_AT_A_TIME,
            )
        blocks = torch.arange(int(counts.max()), device=frontiers.device)[
            None, :, None
        ]  # (1, L, 1)
        return (-((mean[:, None] - blocks) ** 2) / (2 * deviation[:, None])).softmax(1)


class MantaConvolution(nn.Module):
    """A zero-padded convolution along bytes with the published layout of weights: (1, 1, k, C) or (C, C_out, k)."""

    def __init__(
        self, kernel: int, channels_in: int, channels: int, depthwise: bool
    ) -> None:
        super().__init__()
        if kernel % 2 == 0:
            cure = "choose an odd pooling_kernel_size; the published code wraps even windows around the end of the text"
            raise UsageError("MANTa kernels of odd width", f"width {kernel}", cure)
        if depthwise and channels != channels_in:
            cure = "change pooling_kernel_size or set pooling_depthwise_convolution to False"
            raise UsageError(
                f"depthwise kernels of byte_embedding_dim = {channels_in} channels",
                f"{channels}",
                cure,
            )
        self.depthwise, self.channels = depthwise, channels
        shape = (
            (1, 1, kernel, channels) if depthwise else (channels_in, channels, kernel)
        )
        self.weight = nn.Parameter(torch.empty(shape))

    def forward(self, signal: Tensor) -> Tensor:
        """Convolve a signal (N, C, T) along its last axis: (N, C_out, T)."""
        # torch wants (C_out, C_in / groups, k).
        weight = (
            self.weight[0].permute(2, 0, 1)
            if self.depthwise
            else self.weight.transpose(0, 1)
        )
        return conv1d(
            signal,
            weight,
            padding="same",
            groups=signal.shape[1] if self.depthwise else 1,
        )


class MantaPooler(nn.Module):
    """Pool bytes into blocks: each block convolves the bytes, weighted by their share in it, and keeps the maximum or
    sum.
    """

    def __init__(self, config: MantaConfig) -> None:
        super().__init__()
        channels = config.byte_embedding_dim
        sizes = config.pooling_kernel_size
        kernels = (
            [(sizes, channels)]
            if isinstance(sizes, int)
            else [(width, size) for width, size in sizes]
        )
        self.block_assignment = MantaBlockAssignment(
            config.pooling_variance_regularization
        )
        depthwise = config.pooling_depthwise_convolution
        self.conv_layers = nn.ModuleList(
            MantaConvolution(width, channels, size, depthwise)
            for width, size in kernels
        )
        width = sum(size for _, size in kernels)
        if config.pooling_n_highway_layers:
            self.highway = Highway(width, config.pooling_n_highway_layers)
        self.out_projection = nn.Linear(width, config.d_model)
        self.mean_pool, self.max_blocks = (
            config.pooling_mean_pool,
            config.max_length_encoder_decoder,
        )

    def forward(
        self, frontiers: Tensor, embeddings: Tensor, joint_blocks: bool
    ) -> Tensor:
        """Pool byte embeddings (B, T, C) into block embeddings (B, L, d_model), by frontier probabilities (B, T).

        `joint_blocks`: as in `MantaModel`.
        """
        shares = self.block_assignment(frontiers, joint_blocks)[
            :, : self.max_blocks
        ]  # (B, L, T)
        if self.mean_pool:
            shares = shares / shares.sum(-1, keepdim=True).clamp(min=1)
        weighted = (
            shares[:, :, None] * embeddings.transpose(1, 2)[:, None]
        )  # (B, L, C, T)
        features = torch.cat(
            [conv(weighted.flatten(0, 1)) for conv in self.conv_layers], dim=1
        )  # (B L, C_out, T)
        # Shares were divided by their sum, so that the sum over bytes is a mean.
        pooled = features.sum(-1) if self.mean_pool else features.amax(-1)
        if hasattr(self, "highway"):
            pooled = self.highway(pooled)
        return self.out_projection(pooled.view(*shares.shape[:2], -1))  # type: ignore[no-any-return]


class MantaEncoder(nn.Module):
    """Encode bytes as T5 states of blocks. Inside the T5 stack there is no mask: every block is real."""

    def __init__(self, config: MantaConfig) -> None:
        super().__init__()
        self.max_length = config.max_length_inputs
        self.byte_embeddings = nn.Embedding(
            config.vocab_size, config.byte_embedding_dim
        )
        self.frontier_predictor = MantaFrontierPredictor(config)
        self.pooler = MantaPooler(config)
        self.t5_encoder = _build_t5_stack(config, config.num_layers, is_decoder=False)
        self.t5_encoder.embed_tokens = None  # type: ignore[assignment]  # it only ever sees block embeddings

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        joint_blocks: bool = False,
        **kwargs: Any,
    ) -> tuple[BaseModelOutput, Tensor]:
        """Return the output of the T5 stack over (B, L, d_model) blocks, and the frontiers (B, T), for byte ids and
        mask (B, T).

        `kwargs` go to the T5 stack. UsageError for more bytes than `max_length`, or for padded rows without
        `joint_blocks`.
        """
        if input_ids.shape[1] > self.max_length:
            raise UsageError(
                f"at most {self.max_length} bytes",
                f"{input_ids.shape[1]}",
                "cut the text into windows",
            )
        if not joint_blocks and attention_mask is not None and not attention_mask.all():
            raise UsageError(
                "one sequence at a time, without padding", "padded rows", ONE_AT_A_TIME
            )
        embeddings = self.byte_embeddings(input_ids)  # (B, T, C)
        frontiers = self.frontier_predictor(embeddings, attention_mask)  # (B, T)
        blocks = self.pooler(frontiers, embeddings, joint_blocks)  # (B, L, d_model)
        return self.t5_encoder(inputs_embeds=blocks, **kwargs), frontiers


@dataclass
class MantaOutput(Seq2SeqLMOutput):
    """Output with a T5's fields, the last decoder states (B, T', d_model), and each byte's probability (B, T) to start
    a block.
    """

    last_hidden_state: Tensor | None = None
    frontier_predictions: Tensor | None = None


class MantaModel(PublishedModel):  # type: ignore[no-untyped-call]  # untyped __init_subclass__
    """MANTa-LM with its language modelling head. Hook `T5Block` for the raw block outputs of both stacks.

    Rows of a batch must be unpadded and have equally many blocks, else a `UsageError` is raised: in practice, pass one
    sequence at a time. `joint_blocks=True` uses the largest number of blocks for all rows and pools padding, as the
    published code does; a sequence's states then depend on its neighbours in the batch.
    """

    config_class = MantaConfig
    config: MantaConfig
    base_model_prefix = "manta"
    published_names: ClassVar[dict[str, str]] = EARLIER_NAMES
    # What the T5 of the earlier version saved beside its weights: embeddings that never see a byte, an unused bias.
    _keys_to_ignore_on_load_unexpected = [  # as typed there  # noqa: RUF012
        r"^encoder_decoder\.encoder\.embed_tokens\.",
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight$",
    ]
    _supports_sdpa = True
    _tied_weights_keys = {  # noqa: RUF012
        "decoder.embed_tokens.weight": "decoder_embeddings.weight"
    }  # as typed there  # noqa: RUF012, RUF100

    def __init__(self, config: MantaConfig) -> None:
        super().__init__(config)
        self.encoder = MantaEncoder(config)
        self.decoder_embeddings = nn.Embedding(config.vocab_size, config.d_model)
        self.decoder = _build_t5_stack(
            config, config.num_decoder_layers or config.num_layers, is_decoder=True
        )
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        joint_blocks: bool = False,
        **kwargs: Any,
    ) -> MantaOutput:
        """Return the logits of the decoder's next bytes, (B, T', vocabulary), and the states of both stacks.

        `input_ids` and `attention_mask` are (B, T) with T ≤ `max_length_inputs`, those of the decoder (B, T'). `kwargs`
        (`output_hidden_states`, `output_attentions`) go to both T5 stacks; `joint_blocks`: see the class.
        """
        if decoder_input_ids is None:
            raise UsageError(
                "decoder_input_ids",
                "none",
                "pass the decoder's bytes: the padding id, then the text",
            )
        encoded, frontiers = self.encoder(
            input_ids, attention_mask, joint_blocks, **kwargs
        )
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            **kwargs,
        )
        return MantaOutput(
            logits=self.lm_head(decoded.last_hidden_state),
            last_hidden_state=decoded.last_hidden_state,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            frontier_predictions=frontiers,
        )

    def get_expanded_tied_weights_keys(
        self,
        all_submodels: bool = False,  # noqa: ARG002
    ) -> dict[str, str]:
        """Return {tied weight: the weight it shares}: the decoder always shares its embeddings, whatever the output
        layer does.
        """
        # transformers would leave them untied if `tie_word_embeddings` is False, which
        # here is about the output layer.
        return dict(self._tied_weights_keys)

    def set_attn_implementation(
        self, attn_implementation: Any, allow_all_kernels: bool = False
    ) -> None:
        """Set the attention implementation of both T5 stacks; the frontier predictor's local attention has only its
        own.
        """
        for stack in (self.encoder.t5_encoder, self.decoder):
            stack.set_attn_implementation(attn_implementation, allow_all_kernels)
        self.config._attn_implementation = self.decoder.config._attn_implementation

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise kernels and linear maps uniformly by fan-in, as torch and the published code do."""
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        if isinstance(module, nn.Linear | MantaConvolution):
            outputs = (
                module.out_features
                if isinstance(module, nn.Linear)
                else module.channels
            )
            bound = (outputs / module.weight.numel()) ** 0.5
            init.uniform_(module.weight, -bound, bound)


def _build_t5_stack(config: MantaConfig, num_layers: int, is_decoder: bool) -> T5Stack:
    """Build a T5 encoder, or decoder if `is_decoder`, with MANTa's sizes and attention implementation."""
    # Each stack changes fields of its configuration.
    own = deepcopy(config)
    own.num_layers, own.is_decoder, own.is_encoder_decoder, own.use_cache = (
        num_layers,
        is_decoder,
        False,
        False,
    )
    return T5Stack(own)
