"""A penalty on the entropy of attention, in both published forms, for any model on transformers' attention interface.

`entropy`          H of the softmax row of the first token ([CLS]), over all its keys, divided by ln n
`entropy-columns`  the rows of real tokens are added up (over layers too), a second softmax over these sums without
                   [CLS] and padding, its H divided by ln(n − 1)

n counts the real tokens with [CLS]; where heads have learnt sinks, H of the row counts the sink as one outcome more,
and so does n. H is in [0, 1]: 1 uniform, 0 one token. Heads are averaged, and in the first form layers.
Fosse et al. 2023 train with the first form on the first layer, and report others (`entropy_forms`). An utterance whose
normaliser is 0 (too short) counts as 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from jaxtyping import Shaped
from torch import Tensor, nn

from anisoscope.capture.backends import intercept_attention
from anisoscope.classes.cls_entropy import Layers, Watch
from anisoscope_papers.training.recipe import check_penalty


class EntropyPenalty:
    """λ · mean over utterances of H. `layers` counts from 1; empty: all of them."""

    def __init__(self, weight: float, *, variant: str = "entropy", layers: Layers = (1,)) -> None:
        check_penalty(variant, weight, layers)
        self.weight, self.variant, self.layers = weight, variant, layers

    @contextmanager
    def watching(self, model: nn.Module, mask: Shaped[Tensor, "sequence token"]) -> Iterator[Watch]:
        """While inside, one forward call of `model` on a batch with these real tokens is looked at."""
        watch = Watch(mask, self.layers, columns=self.variant == "entropy-columns")
        with intercept_attention(model, watch.look):
            yield watch

    def value(self, watch: Watch) -> Tensor:
        """The penalty of the batch that was watched, a scalar with a gradient."""
        entropy = watch.column_entropy() if self.variant == "entropy-columns" else watch.row_entropy()
        return self.weight * entropy.mean()
