"""Define the arms of an experiment on causes of anisotropy: a BERT (or another encoder) with one or several changes.

An arm is named by its changes: `queries-centred`, or `untied+decay` for two at once; `base` has none. Every change is a
row of `CHANGES`: what it does to the model before training, and to the training. Changes draw no random numbers: models
of one seed begin with the same weights in every arm.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import MaskedLMOutput

from anisoscope.errors import UsageError, suggest_names
from anisoscope_papers.training.language_model import BertForMaskedLM
from anisoscope_papers.training.recipe import ModelSize
from anisoscope_papers.training.text import UNMASKED

BASE = "base"
MOMENTUM = 0.1
"""Share of a batch in the running mean of queries or keys that evaluation subtracts, as in batch normalisation."""


class Centred(nn.Linear):
    """A linear projection minus its mean over all tokens: of the batch in training, the running mean in evaluation."""

    mean: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        """Take over weight and bias of `linear`."""
        # On the meta device `nn.Linear` draws no weights: random numbers drawn here
        # would give every later model of the seed another start than in `base`.
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        self.register_buffer("mean", torch.zeros_like(linear.bias))

    def forward(
        self, input: Float[Tensor, "sequence token dim"]
    ) -> Float[Tensor, "sequence token out"]:
        """Project input [sequence, token, dim] and subtract the mean over all tokens.

        The windows of these models have no padding, so every token counts.
        """
        projected = super().forward(input)
        # In evaluation a sequence's numbers must not depend on the rest of its batch.
        if not self.training:
            return projected - self.mean
        mean = projected.flatten(0, 1).mean(0)
        # mean ← (1 − .1) · mean + .1 · mean of the batch, without a gradient.
        self.mean.lerp_(mean.detach(), MOMENTUM)
        return projected - mean


class Normed(nn.Linear):
    """A linear projection in which every head has root mean square 1, times a learnt gain per
    dimension (initially 1).
    """

    def __init__(self, linear: nn.Linear, heads: int) -> None:
        """Take over weight and bias of `linear`, whose outputs are divided among this number of heads."""
        # As in `Centred`: no random numbers are drawn.
        super().__init__(linear.in_features, linear.out_features, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        # Over the dimensions of one head; all heads share the gain.
        self.norm = nn.RMSNorm(linear.out_features // heads, eps=1e-6)

    def forward(
        self, input: Float[Tensor, "sequence token dim"]
    ) -> Float[Tensor, "sequence token out"]:
        """Project input [sequence, token, dim], then normalise each head."""
        projected = super().forward(input)
        # [sequence, token, head, dim of a head]
        by_head = projected.view(*projected.shape[:-1], -1, *self.norm.normalized_shape)
        return self.norm(by_head).flatten(-2)  # type: ignore[no-any-return]


# BERT and ViT have query and key, wav2vec 2.0 q_proj and k_proj.
PROJECTIONS = {"query": ("query", "q_proj"), "key": ("key", "k_proj")}
"""What encoders call the projections of their attention."""


def _replace(
    model: Any, sides: Iterable[str], make: Callable[[nn.Linear], nn.Module]
) -> None:
    """Replace the query or key projections (`sides`: query, key) of every layer by what `make` returns for them."""
    names: list[str] = []
    for side in sides:
        names += PROJECTIONS[side]
    # A list, since replacing a module changes what is walked through.
    for module in list(model.modules()):
        for name in names:
            if isinstance(linear := getattr(module, name, None), nn.Linear):
                setattr(module, name, make(linear))


def _make_centring(side: str) -> Callable[[Any], None]:
    """Return a function that makes a model subtract the mean of its queries or keys (`side`: query or key)."""
    return lambda model: _replace(model, (side,), Centred)


def _normalise_heads(model: Any) -> None:
    """Replace the query and key projections of a model by ones that normalise each head."""
    heads = model.config.num_attention_heads
    _replace(model, ("query", "key"), lambda linear: Normed(linear, heads))


def _remove_bias(linear: nn.Linear) -> nn.Module:
    """Remove the bias of a projection, in place, and return it."""
    linear.bias = None  # type: ignore[assignment]
    return linear


def _untie(model: Any) -> None:
    """Give the output embeddings weights of their own; they begin as a copy of the input embeddings."""
    # A copy: this arm and `base` start alike.
    words = model.bert.embeddings.word_embeddings.weight
    model.cls.predictions.decoder.weight = nn.Parameter(words.detach().clone())


def _remove_type(model: Any) -> None:
    """Set the type vectors to 0 and do not train them.

    All tokens share a type vector; with it, A (mean cosine) is 1/3 in all layers of an untrained model.
    """
    vectors = model.bert.embeddings.token_type_embeddings.weight
    # Without a gradient the optimiser leaves it at 0, weight decay included.
    vectors.requires_grad_(False)
    vectors.detach().zero_()


@dataclass(frozen=True)
class Change:
    """One change of an arm: to the untrained `model`, the `form` of attention (`forms`), the weight `decay`, or the
    loss.

    `balanced`: errors are weighted by frequency. `held`: a penalty holds A (mean cosine) at this value.
    """

    words: str
    model: Callable[[Any], None] = lambda _model: None
    decay: float = 0.0
    balanced: bool = False
    held: float | None = None
    form: str = ""


CHANGES = {
    "queries-centred": Change(
        "queries less their mean, in training and after", _make_centring("query")
    ),
    "keys-centred": Change(
        "keys less their mean: a placebo, no softmax can see it", _make_centring("key")
    ),
    "qk-norm": Change(
        "queries and keys of unit root mean square, with a learnt gain",
        _normalise_heads,
    ),
    "no-qk-bias": Change(
        "no bias in queries and keys",
        lambda model: _replace(model, ("query", "key"), _remove_bias),
    ),
    "untied": Change("output embeddings of their own", _untie),
    "decay": Change("weight decay .1 (else 0)", decay=0.1),
    # Nothing to do: every other arm has its type vectors removed (`ArmedBert`).
    "type": Change("a type vector that all tokens share, as BERT has"),
    "balanced": Change(
        "errors weighted by frequency^−½ of the token that is to be found",
        balanced=True,
    ),
    "held-0": Change("a penalty that holds A of every layer at 0", held=0.0),
    "held-.2": Change("a penalty that holds A of every layer at .2", held=0.2),
    "held-.5": Change("a penalty that holds A of every layer at .5", held=0.5),
    "softmax1": Change(
        "a softmax with 1 more below its line: a row may give its keys nothing",
        form="softmax1",
    ),
    "sigmoid": Change("attention that weighs every key for itself", form="sigmoid"),
}
"""What an arm is made of."""
HOLDING = 1.0
"""Weight of the penalty, in nats of loss for A a whole unit off: the error of the mean square over layers."""


def list_changes(arm: str) -> list[Change]:
    """Return the changes that an arm's (changed model's) name lists. UsageError for an unknown one,
    with similar names.
    """
    names = [] if arm == BASE else arm.split("+")
    for name in names:
        if name not in CHANGES:
            expected = "known changes, joined by + if there are several"
            raise UsageError(expected, repr(arm), suggest_names(name, CHANGES))
    return [CHANGES[name] for name in names]


def find_form(arm: str) -> str:
    """Return the form of attention (a key of `forms.FORMS`) of an arm (changed model); empty for softmax."""
    return next((change.form for change in list_changes(arm) if change.form), "")


class ArmedBert(BertForMaskedLM):  # type: ignore[no-untyped-call]  # no types in its __init_subclass__
    """A BERT with the changes that the name `config.arm` lists, saved and loaded as such.

    In training its loss is the one that the changes ask for; in evaluation it is the plain one.
    """

    token_weights: Tensor

    def __init__(self, config: Any) -> None:
        """Build the model, then apply the changes of `config.arm` to it."""
        # Names are checked first: a wrong one must not cost the building of a model.
        changes = list_changes(config.arm)
        # A checkpoint keeps the name of an arm, but not the form of attention, which is
        # chosen through transformers' attention interface.
        if form := find_form(config.arm):
            config._attn_implementation = form
        super().__init__(config)
        if "type" not in config.arm.split("+"):
            _remove_type(self)
        for change in changes:
            change.model(self)
        self.held = next(
            (change.held for change in changes if change.held is not None), None
        )
        self.register_buffer("token_weights", torch.ones(config.vocab_size))

    def forward(
        self,
        input_ids: Int[Tensor, "sequence token"] | None = None,
        labels: Int[Tensor, "sequence token"] | None = None,
        num_items_in_batch: Any = None,  # noqa: ARG002
        **inputs: Any,
    ) -> MaskedLMOutput:
        """Return the loss if `labels` are given, else the output of `BertForMaskedLM`.

        With `config.is_decoder` each token is predicted from those before it. Weights of tokens and the penalty count
        only in training. `num_items_in_batch` is not used.
        """
        if labels is None:
            return super().forward(input_ids, **inputs)
        # The penalty needs the hidden states of all layers, which are kept only then.
        held = self.held if self.training else None
        out = self.bert(input_ids, output_hidden_states=held is not None, **inputs)
        hidden = out.last_hidden_state
        if self.config.is_decoder:
            # Position i predicts token i + 1, as in a GPT.
            hidden = hidden[:, :-1]
            labels = labels[:, 1:]
        # Logits of the vocabulary are computed only where a token is to be found.
        at = labels != UNMASKED
        each = functional.cross_entropy(
            self.cls(hidden[at]).float(), labels[at], reduction="none"
        )
        # The plain loss in evaluation, so that arms can be compared.
        if self.training:
            each = each * self.token_weights[labels[at]]
        loss = each.mean()
        if held is not None:
            # Layer 0 is the input of the blocks, which attention has not changed.
            off = []
            for of_layer in out.hidden_states[1:]:
                off.append((compute_mean_cosine(of_layer) - held) ** 2)
            loss = loss + HOLDING * torch.stack(off).mean()
        return MaskedLMOutput(loss=loss)


def compute_mean_cosine(
    hidden: Float[Tensor, "sequence token dim"],
) -> Float[Tensor, ""]:
    """Return A, the mean cosine over all distinct pairs of vectors of a batch, hidden [sequence, token, dim]; it has
    a gradient.
    """
    # A = (‖Σu‖² − n) / (n (n − 1)) of unit vectors u, without n² pairs.
    directions = functional.normalize(hidden.flatten(0, 1), dim=-1)
    n = len(directions)
    return (directions.sum(0).square().sum() - n) / (n * (n - 1))


def build_untrained(arm: str, size: ModelSize, tokenizer: Any, seed: int) -> ArmedBert:
    """Build an untrained BERT of this size with the changes of one arm of the experiment, in training mode.

    arm    name of the arm: `base`, which changes nothing, or one of `CHANGES`
    seed   that its weights are drawn from

    If the tokenizer has no mask token, attention is causal: each token sees only itself and those before it.
    """
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=4 * size.width,
        max_position_embeddings=size.window,
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=size.dropout,
        pad_token_id=tokenizer.pad_token_id,
        is_decoder=tokenizer.mask_token_id is None,
        use_cache=False,
        tie_word_embeddings="untied" not in arm.split("+"),
    )
    # The name goes with the checkpoint, so that loading it makes the same changes.
    config.arm = arm
    model: ArmedBert = ArmedBert(config).train()
    return model
