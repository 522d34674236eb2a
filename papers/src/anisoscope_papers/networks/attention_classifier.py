"""The attention-only classifier of Fosse et al. 2023: blocks of self-attention, residual and norm, and nothing else.

    x₀ = word vector + position        x ← norm(x + W_O · attention(x))        class scores = linear(x at `<cls>`)

The defaults are those of the authors' code: one head, biases, W_O, sinusoidal positions, and a norm without gain, bias
or epsilon that divides by the unbiased standard deviation. `PAPER_TEXT` are the changes that give the equations of
their text. The first token is `<cls>`; padding is on the right.

In training only the row of `<cls>` is computed in the last block, and no key and no value is built in it, nor in any
block of one head: q·(W_K x + b_K) = (W_Kᵀ q)·x + a constant that softmax does not see, and Σ a (W_V x + b_V) =
W_V Σ a x + b_V. This is exact. In evaluation, or with `row_only = "never"`, everything is computed; capture then.
"""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.bert.modeling_bert import eager_attention_forward
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from anisoscope.errors import UsageError, suggest_names

PAPER_TEXT = {
    "attention_bias": False,
    "output_projection": False,
    "positions": "none",
    "norm": "layer_norm",
}
"""Changes of the configuration that give equation 2 and section 2.2 of the paper instead of its code."""
POSITIONS = ("sinusoidal", "none", "learned")
LEARNED_POSITION_STD = 0.02
"""Standard deviation of learned position vectors at step 0, as BERT draws them: next to nothing beside the words."""
ATTENTIONS = ("learned", "uniform", "random")


class PlainNorm(nn.Module):
    """Layer normalisation without parameters: (x − mean) / unbiased standard deviation; no gain, bias or epsilon."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.factor = dim, math.sqrt((dim - 1) / dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return x [..., dim] with mean 0 and unbiased standard deviation 1 along its last axis."""
        return nn.functional.layer_norm(x, (self.dim,), eps=0.0) * self.factor


NORMS: dict[str, type[nn.Module]] = {
    "plain": PlainNorm,
    "layer_norm": nn.LayerNorm,
    "none": nn.Identity,
}


class AttentionClassifierConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]  # its __init_subclass__ is untyped
    """Sizes and choices of the attention-only classifier.

    positions  `sinusoidal` (Vaswani et al. 2017, multiplied by `position_scale` and added; the authors' code uses 1),
               `learned` (a vector for each position, trained with the model), or `none`
    norm       `plain` (no gain, bias or epsilon; unbiased standard deviation), `layer_norm`, or `none`
    attention  `learned`; `uniform` (all tokens have equal weight); `random`: by position, whatever the words, the
               softmax of scores drawn from N(0, 1), once per layer (Tay et al. 2021: fixed random)
    """

    model_type = "attention_classifier"

    vocab_size: int = 30_000
    hidden_size: int = 300
    num_hidden_layers: int = 1
    num_attention_heads: int = 1
    max_position_embeddings: int = 1024
    attention_bias: bool = True
    output_projection: bool = True
    residual: bool = True
    positions: str = "sinusoidal"
    position_scale: float = 1.0
    norm: str = "plain"
    attention: str = "learned"
    attention_seed: int = 0
    embedding_std: float = 1.0
    pad_token_id: int | None = 0

    def checked(self) -> "AttentionClassifierConfig":
        """Return the configuration itself. UsageError if a choice is unknown or sizes do not fit together."""
        for name, known in (
            ("positions", POSITIONS),
            ("norm", NORMS),
            ("attention", ATTENTIONS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise UsageError(
                    f"{name} among {', '.join(known)}",
                    repr(value),
                    suggest_names(value, known),
                )
        if self.hidden_size % self.num_attention_heads or self.hidden_size % 2:
            got = f"{self.hidden_size} and {self.num_attention_heads}"
            raise UsageError(
                "an even width that the number of heads divides",
                got,
                "change --dim or --heads",
            )
        return self


class InProjection(nn.Linear):
    """A linear map from x to queries, keys and values, stacked; Xavier over the whole matrix, biases 0."""


class OutProjection(nn.Linear):
    """The output projection W_O; its biases start at 0."""


class ClassifierAttention(nn.Module):
    """Self-attention with one matrix for queries, keys and values, as in torch's `MultiheadAttention`.

    `layer` counts from 0. If `detach` is set, no gradient passes through attention weights.
    """

    is_causal = False

    def __init__(self, config: AttentionClassifierConfig, layer: int = 0) -> None:
        """Build the projections of a layer, which counts from 0."""
        super().__init__()
        self.config, self.layer, self.detach = config, layer, False
        self._drawn: Tensor | None = None
        dim = config.hidden_size
        self.heads, self.head_dim = (
            config.num_attention_heads,
            dim // config.num_attention_heads,
        )
        # With a factor of 0 all scores are equal: uniform attention, and random
        # attention once fixed scores are added.
        self.scaling = self.head_dim**-0.5 if config.attention == "learned" else 0.0
        self.in_proj = InProjection(dim, 3 * dim, bias=config.attention_bias)
        out = (
            OutProjection(dim, dim, bias=config.attention_bias)
            if config.output_projection
            else nn.Identity()
        )
        self.out_proj: OutProjection | nn.Identity = out

    def forward(
        self,
        x: Float[Tensor, "sequence token dim"],
        mask: Tensor | None,
        row_only: bool = False,
        folded: bool = False,
        **kwargs: Any,
    ) -> Float[Tensor, "sequence query dim"]:
        """Return the attention output of every token of x, or with `row_only` of the first token alone.

        `folded`: the matrices of keys and values are applied to the query and to the output instead (same result).
        """
        if row_only:
            return self._first_row(x, mask, **kwargs)
        if folded and self.heads == 1:
            return self._folded(x, mask, **kwargs)
        query, key, value = (
            self.in_proj(x)
            .view((*x.shape[:2], 3, self.heads, self.head_dim))
            .permute(2, 0, 3, 1, 4)
        )
        attended = self._attend(query, key, value, mask, **kwargs).reshape(x.shape)
        return self.out_proj(attended)  # type: ignore[no-any-return]

    def _first_row(self, x: Tensor, mask: Tensor | None, **kwargs: Any) -> Tensor:
        """Compute the attention output of the first token only, [sequence, 1, dim], without building keys and values.

        The result is the same: q·(W_K x) = (W_Kᵀ q)·x, and a weighted mean of W_V x is W_V times that of x.
        x: [sequence, token, dim].
        """
        # [head, head_dim, dim] each.
        to_query, to_key, to_value = (
            w.view(self.heads, self.head_dim, -1) for w in self.in_proj.weight.chunk(3)
        )
        # The bias of keys adds the same number to all scores of a row, which softmax
        # does not see.
        of_query, _, of_value = self._biases()
        query = nn.functional.linear(x[:, 0], to_query.flatten(0, 1), of_query).view(
            -1, *to_query.shape[:2]
        )
        query = torch.einsum("shd,hde->she", query, to_key).unsqueeze(
            2
        )  # [sequence head 1 dim]
        tokens = x.unsqueeze(1).expand(-1, self.heads, -1, -1)
        mask = None if mask is None else mask[:, :, :1]
        mixed = self._attend(query, tokens, tokens, mask, **kwargs)[
            :, 0
        ]  # [sequence head dim]
        values = torch.einsum("she,hde->shd", mixed, to_value).flatten(1)
        # Weights of a row add up to 1: a bias of values is added to the mean as it is.
        values = values if of_value is None else values + of_value
        return self.out_proj(values).unsqueeze(1)  # type: ignore[no-any-return]

    def _folded(self, x: Tensor, mask: Tensor | None, **kwargs: Any) -> Tensor:
        """Compute all rows of a single head, [sequence, token, dim], by the products W_Kᵀ W_Q and W_O W_V.

        That takes half the multiplications. x: [sequence, token, dim].
        """
        to_query, to_key, to_value = self.in_proj.weight.chunk(3)
        of_query, _, of_value = self._biases()
        # W_Kᵀ (W_Q x + b_Q).
        shift = None if of_query is None else of_query @ to_key
        query = nn.functional.linear(x, to_key.T @ to_query, shift)
        tokens = x.unsqueeze(1)
        mixed = self._attend(query.unsqueeze(1), tokens, tokens, mask, **kwargs)[
            :, :, 0
        ]
        if isinstance(self.out_proj, nn.Identity):
            return nn.functional.linear(mixed, to_value, of_value)
        constant = None if of_value is None else self.out_proj(of_value)
        return nn.functional.linear(mixed, self.out_proj.weight @ to_value, constant)

    def _biases(self) -> tuple[Tensor | None, ...]:
        """Return (bias of queries, of keys, of values), [dim] each; None each if there are none."""
        if self.in_proj.bias is None:
            return (None, None, None)
        return self.in_proj.bias.chunk(3)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the output [sequence, query, head, dim] of transformers' attention interface (eager, sdpa …).

        query, key and value are [sequence, head, token, dim].
        """
        # Scores keep their values; gradients reach the layers below through values
        # alone (frozen attention).
        if self.detach:
            query = query.detach()
            key = key.detach()
        if self.config.attention == "random":
            mask = self._with_random_scores(mask, query.shape[2], key)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        mixed, _weights = attend(
            self, query, key, value, mask, scaling=self.scaling, dropout=0.0, **kwargs
        )
        return mixed  # type: ignore[no-any-return]

    def _with_random_scores(
        self, mask: Tensor | None, queries: int, key: Tensor
    ) -> Tensor:
        """Return the mask plus the layer's fixed random scores, [..., query, key]."""
        # By layer and pair of positions, the same for all utterances and heads.
        if self._drawn is None:
            longest = self.config.max_position_embeddings
            generator = torch.Generator().manual_seed(
                1_000 * self.config.attention_seed + self.layer
            )
            self._drawn = torch.randn(longest, longest, generator=generator)
        scores = self._drawn[:queries, : key.shape[2]].to(key)
        if mask is None:
            return scores.expand(1, 1, -1, -1)
        # sdpa's masks are boolean, eager's are added.
        if mask.dtype == torch.bool:
            return scores.masked_fill(~mask, torch.finfo(key.dtype).min)
        return mask + scores


class PositionTable(nn.Embedding):
    """An embedding of learned position vectors; they start near zero."""


class AttentionClassifierBlock(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]  # as above
    """A block: norm(x + attention(x)).

    With `row_only` only the first row is computed; with `folded`, keys and values are not built.
    """

    def __init__(self, config: AttentionClassifierConfig, layer: int = 0) -> None:
        super().__init__()
        self.attention = ClassifierAttention(config, layer)
        self.residual = config.residual
        self.norm = NORMS[config.norm](config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        row_only: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """Return norm(x + attention(x)) for hidden states x [sequence, token, dim]; with `row_only`, for the first
        token only.
        """
        mixed = self.attention(
            hidden_states, attention_mask, row_only=row_only, **kwargs
        )
        if self.residual:
            mixed = mixed + (hidden_states[:, :1] if row_only else hidden_states)
        return self.norm(mixed)  # type: ignore[no-any-return]


class AttentionClassifierPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]  # as above
    """Base class with the authors' initialisation, which is torch's own of `MultiheadAttention` and `Linear`."""

    config_class = AttentionClassifierConfig
    base_model_prefix = "attention_classifier"
    _input_embed_layer = "embeddings"
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": AttentionClassifierBlock
    }  # declared so by transformers  # noqa: RUF012, RUF100

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialise one module as the authors do."""
        if isinstance(module, nn.Linear):
            # torch's own initialisation of a linear layer.
            bound = 1 / math.sqrt(module.in_features)
            if isinstance(module, InProjection):
                init.xavier_uniform_(module.weight)
            else:
                init.uniform_(module.weight, -bound, bound)
            if module.bias is not None:
                inner = isinstance(module, InProjection | OutProjection)
                init.uniform_(module.bias, *((0.0, 0.0) if inner else (-bound, bound)))
        elif isinstance(module, PositionTable):
            init.normal_(module.weight, std=LEARNED_POSITION_STD)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.embedding_std)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        else:
            super()._init_weights(module)  # type: ignore[no-untyped-call]


class AttentionClassifierModel(AttentionClassifierPreTrainedModel):  # type: ignore[no-untyped-call]  # as above
    """The attention-only model without its head: word vectors, positions and blocks.

    row_only  when only the `<cls>` row is computed in the last block, and keys and values are not built: in `training`
              (default), `always`, `never`
    """

    def __init__(self, config: AttentionClassifierConfig) -> None:
        """Build word vectors, positions and blocks for a configuration."""
        super().__init__(config.checked())
        self.embeddings = nn.Embedding(
            config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id
        )
        self.blocks = nn.ModuleList(
            AttentionClassifierBlock(config, i) for i in range(config.num_hidden_layers)
        )
        if config.positions == "learned":
            self.positions = PositionTable(
                config.max_position_embeddings, config.hidden_size
            )
        self.row_only = "training"
        self._table: Tensor | None = None
        self.post_init()  # type: ignore[no-untyped-call]

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Int[Tensor, "sequence token"] | None = None,
        attention_mask: Int[Tensor, "sequence token"] | None = None,
        inputs_embeds: Float[Tensor, "sequence token dim"] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return the hidden states of the last block [sequence, token, dim]; [sequence, 1, dim] if only `<cls>` is
        computed.

        inputs_embeds   word vectors, in place of input_ids
        """
        x = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        longest = self.config.max_position_embeddings
        if x.shape[1] > longest:
            raise UsageError(
                f"at most {longest} tokens",
                str(x.shape[1]),
                "cut the utterances, or raise --max-length",
            )
        if self.config.positions == "sinusoidal":
            x = x + self._positions(x)
        elif self.config.positions == "learned":
            x = x + self.positions.weight[: x.shape[1]]
        mask = create_bidirectional_mask(
            config=self.config, inputs_embeds=x, attention_mask=attention_mask
        )
        # In evaluation everything is computed, since capture looks for queries, keys
        # and values.
        short = self.row_only == "always" or (
            self.training and self.row_only == "training"
        )
        for i, block in enumerate(self.blocks, 1):
            x = block(
                x,
                attention_mask=mask,
                row_only=short and i == len(self.blocks),
                folded=short,
                **kwargs,
            )
        return BaseModelOutput(last_hidden_state=x)

    def _positions(self, x: Tensor) -> Tensor:
        """Return the scaled sinusoids for x [sequence, token, dim]; the table is computed once."""
        table = self._table
        # The model may have been moved to another device or type since.
        if table is None or table.device != x.device or table.dtype != x.dtype:
            table = make_sinusoids(self.config.max_position_embeddings, x.shape[2]).to(
                x
            )
            table = self._table = table * self.config.position_scale
        return table[: x.shape[1]]


def make_sinusoids(length: int, dim: int) -> Float[Tensor, "position dim"]:
    """Return position vectors [position, dim]: sine on even, cosine on odd dimensions, wavelengths from 2π to
    2π·10,000.
    """
    angle = torch.arange(length)[:, None] * torch.exp(
        torch.arange(0, dim, 2) * (-math.log(10_000.0) / dim)
    )
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


class AttentionClassifier(AttentionClassifierPreTrainedModel):  # type: ignore[no-untyped-call]  # as above
    """The attention-only classifier: class scores from the last state of the first token, `<cls>`."""

    def __init__(self, config: AttentionClassifierConfig) -> None:
        """Build the model and a linear head with as many outputs as the configuration has labels."""
        super().__init__(config)
        self.attention_classifier = AttentionClassifierModel(config)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 2))
        self.post_init()  # type: ignore[no-untyped-call]

    def forward(
        self,
        input_ids: Int[Tensor, "sequence token"] | None = None,
        attention_mask: Int[Tensor, "sequence token"] | None = None,
        labels: Int[Tensor, " sequence"] | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return the logits [sequence, class], and the mean cross-entropy if there are labels."""
        states = self.attention_classifier(input_ids, attention_mask, **kwargs)
        logits = self.classifier(states.last_hidden_state[:, 0])
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=states.hidden_states
        )
