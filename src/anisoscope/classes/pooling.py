"""The vector that stands for an utterance, layer by layer, of every utterance at once."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.axes import At, Site
from anisoscope.batch import Batch
from anisoscope.capture.tap import capture
from anisoscope.models.modes import evaluating
from anisoscope.sums.classes import pooled


@torch.no_grad()
def pooled_vectors(model: nn.Module, batches: Iterable[Batch], at: At = "first") -> NDArray[np.float64]:
    """[unit, layer, dim] in the order of the units, one sequence each: layer 0 is the input of the first block, layer i
    the output of block i. In evaluation mode; every module is left in the mode it was in.
    """
    kept: list[Float[Tensor, "sequence layer dim"]] = []
    units: list[Tensor] = []
    states: dict[int, Tensor] = {}
    mask = torch.zeros(0, 0, dtype=torch.bool)

    def receive(site: Site, x: Tensor) -> None:
        if site.quantity == "hidden" and site.layer is not None:
            states[site.layer] = pooled(x, mask.to(x.device), at).cpu()

    with evaluating(model), capture(model, ("hidden",), receive=receive):
        for batch in batches:
            mask = next(iter(batch.streams.values())).mask
            states.clear()
            model(**batch.inputs)
            kept.append(torch.stack([states[layer] for layer in sorted(states)], 1))
            units.append(batch.unit)
    return torch.cat(kept)[torch.cat(units).argsort()].numpy()
