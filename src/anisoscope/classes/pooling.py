"""The vector that stands for an utterance, layer by layer: of its first token, [CLS], of its last, or their mean."""

from collections.abc import Iterable

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.axes import At, Site
from anisoscope.batch import Batch
from anisoscope.capture.tap import capture
from anisoscope.models.modes import evaluating


@torch.no_grad()
def utterance_states(model: nn.Module, batches: Iterable[Batch], at: At = "first") -> NDArray[np.float64]:
    """[unit, layer, dim] in the order of the units, one sequence each: layer 0 is the input of the first block, layer i
    the output of block i. In evaluation mode; every module is left in the mode it was in.
    """
    kept: list[Float[Tensor, "sequence layer dim"]] = []
    units: list[Tensor] = []
    states: dict[int, Tensor] = {}
    weight = torch.zeros(0, 0)

    def receive(site: Site, x: Tensor) -> None:
        if site.quantity == "hidden" and site.layer is not None:
            share = weight.to(x)
            x = torch.where(share.unsqueeze(-1) > 0, x, 0.0)  # what stands at padding may be anything
            states[site.layer] = torch.einsum("st,std->sd", share, x).double().cpu()

    with evaluating(model), capture(model, ("hidden",), receive=receive):
        for batch in batches:
            weight = _weights(next(iter(batch.streams.values())).mask, at)
            states.clear()
            model(**batch.inputs)
            kept.append(torch.stack([states[layer] for layer in sorted(states)], 1))
            units.append(batch.unit)
    return torch.cat(kept)[torch.cat(units).argsort()].numpy()


def _weights(mask: Bool[Tensor, "sequence token"], at: At) -> Float[Tensor, "sequence token"]:
    """Weight of each token in its utterance's vector."""
    if at == "mean":
        return mask / mask.sum(1, keepdim=True)
    position = mask.int().cumsum(1)
    wanted = torch.ones_like(position[:, -1:]) if at == "first" else position[:, -1:]
    return (mask & (position == wanted)).float()
