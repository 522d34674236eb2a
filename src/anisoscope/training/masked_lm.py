"""BERT whose vocabulary projection is computed at the masked positions only."""

from typing import Any

import torch
import transformers
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import MaskedLMOutput

UNMASKED = -100
"""Label of a position that the loss does not look at, as everywhere in transformers."""


class BertForMaskedLM(transformers.BertForMaskedLM):  # type: ignore[no-untyped-call]  # no types in its __init_subclass__
    """The model of transformers, and saved as such; with `labels`, only the loss is computed, from the few positions
    that have one. It is the same number: the others never enter it.
    """

    def forward(
        self,
        input_ids: Int[Tensor, "sequence token"] | None = None,
        labels: Int[Tensor, "sequence token"] | None = None,
        num_items_in_batch: Any = None,
        **inputs: Any,
    ) -> MaskedLMOutput:
        """`labels`: the token hidden at each masked position, −100 elsewhere. `num_items_in_batch`: masked positions of
        the whole step, where it is made of several batches (then their losses add up to its mean).
        """
        if labels is None:
            return super().forward(input_ids, **inputs)  # type: ignore[no-any-return]
        hidden = self.bert(input_ids, **inputs).last_hidden_state
        at = labels != UNMASKED
        total = functional.cross_entropy(self.cls(hidden[at]).float(), labels[at], reduction="sum")
        count = at.sum() if num_items_in_batch is None else num_items_in_batch
        return MaskedLMOutput(loss=total / torch.as_tensor(count, device=total.device).clamp(min=1))
