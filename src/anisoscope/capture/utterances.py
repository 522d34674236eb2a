"""The vector that stands for an utterance, layer by layer: the state of its first token, [CLS]."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.axes import Site
from anisoscope.capture.tap import capture
from anisoscope.data._batch import Batch


@torch.no_grad()
def first_token_states(model: nn.Module, batches: Iterable[Batch]) -> NDArray[np.float64]:
    """[unit, layer, dim] in the order of the units, one sequence each: layer 0 is the input of the first block, layer i
    the output of block i. Evaluation mode; the model is left in the mode it was in.
    """
    kept: list[Float[Tensor, "sequence layer dim"]] = []
    units: list[Tensor] = []
    states: dict[int, Tensor] = {}
    first = torch.zeros(0, dtype=torch.int64)

    def receive(site: Site, x: Tensor) -> None:
        if site.quantity == "hidden" and site.layer is not None:
            states[site.layer] = x[torch.arange(len(x)), first.to(x.device)].double().cpu()

    training = model.training
    model.eval()
    with capture(model, ("hidden",), receive=receive):
        for batch in batches:
            first = next(iter(batch.streams.values())).mask.int().argmax(1)
            states.clear()
            model(**batch.inputs)
            kept.append(torch.stack([states[layer] for layer in sorted(states)], 1))
            units.append(batch.unit)
    model.train(training)
    return torch.cat(kept)[torch.cat(units).argsort()].numpy()
