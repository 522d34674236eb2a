"""Penalise the entropy of attention, in both published forms, for any model on transformers' attention interface.

`entropy`          H of the softmax row of the first token ([CLS]), over all its keys, divided by ln n
`entropy-columns`  the rows of real tokens are added up (over layers too), a second softmax over these sums without
                   [CLS] and padding, its H divided by ln(n − 1)

n is the number of real tokens with [CLS]. If heads have learnt sinks, the sink is one more outcome of the row, and
counts in n. H is in [0, 1]: 1 uniform, 0 one token. It is averaged over heads, and in the first form over layers.

Fosse et al. 2023 train with the first form on the first layer, and report others (`entropy_forms`). An utterance too
short for its form counts as 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import Shaped
from torch import Tensor, nn

from anisoscope.capture.backends import intercept_attention
from anisoscope.classes.cls_entropy import Layers, Watch
from anisoscope_papers.training.recipe import check_penalty


class EntropyPenalty:
    """The penalty λ · H, averaged over utterances. `layers` counts from 1; empty: all of them."""

    def __init__(
        self, weight: float, *, variant: str = "entropy", layers: Layers = (1,)
    ) -> None:
        """Penalise with this weight (λ) and form (`variant`) of H, in these layers."""
        check_penalty(variant, weight, layers)
        self.weight, self.variant, self.layers = weight, variant, layers

    @contextmanager
    def watching(
        self, model: nn.Module, mask: Shaped[Tensor, "sequence token"]
    ) -> Iterator[Watch]:
        """Record the attention of one forward call of `model` inside the `with` block. `mask`: nonzero for real
        tokens.
        """
        watch = Watch(mask, self.layers, columns=self.variant == "entropy-columns")
        with intercept_attention(model, watch.look):
            yield watch

    def value(self, watch: Watch) -> Tensor:
        """Return the penalty λ · H for the batch that `watch` has recorded, a scalar with a gradient."""
        entropy = (
            watch.column_entropy()
            if self.variant == "entropy-columns"
            else watch.row_entropy()
        )
        # The mean over utterances, as the loss is one: λ means the same in every batch
        # size.
        return self.weight * entropy.mean()
