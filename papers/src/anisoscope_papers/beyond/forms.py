"""Register other forms of attention (what turns scores into weights) in transformers' attention interface."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

Scores = Float[Tensor, "sequence head query key"]


def compute_softmax1(scores: Scores) -> Scores:
    """Turn scores into weights by a softmax with 1 added to the denominator, so that a row may give its keys almost
    nothing (Miller 2023).
    """
    # exp(0) = 1: a softmax with one more score of 0, whose weight is then dropped, is
    # exp(s) / (1 + Σ exp(s)), and stays finite for large scores.
    nothing = scores.new_zeros(*scores.shape[:-1], 1)
    return torch.cat((scores, nothing), -1).softmax(-1)[..., :-1]


def compute_sigmoid(scores: Scores) -> Scores:
    """Turn scores into weights, every key on its own: sigmoid(score − ln keys) (Ramapuram et al. 2024)."""
    # Less ln(keys), weights of equal scores add up to about 1, as a softmax's do.
    return (scores - math.log(scores.shape[-1])).sigmoid()


FORMS: dict[str, Callable[[Scores], Scores]] = {
    "softmax1": compute_softmax1,
    "sigmoid": compute_sigmoid,
}


def compute_weights(form: str, scores: Scores) -> Scores:
    """Turn scores into weights by a form of attention (a key of `FORMS`; empty: softmax)."""
    if form:
        return FORMS[form](scores)
    return scores.softmax(-1)


def _attend(
    form: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Compute attention in one of the forms (a key of `FORMS`), with the signature of transformers' attention
    functions.

    query, key, value are [sequence, head, token, dim]; attention_mask is added to the scores. Returns (output
    [sequence, query, head, dim], weights [sequence, head, query, key]).
    """
    # Masked pairs have a penalty of about −10³⁸: each form gives them a weight of 0.
    scores = query @ key.transpose(2, 3) * scaling
    given = compute_weights(
        form, scores if attention_mask is None else scores + attention_mask
    )
    given = functional.dropout(given, dropout, module.training)
    return (given @ value).transpose(1, 2).contiguous(), given


# Models choose a form by its name, like `eager`; their mask is one to be added.
for _form in FORMS:
    AttentionInterface.register(_form, partial(_attend, _form))
    AttentionMaskInterface.register(_form, eager_mask)
