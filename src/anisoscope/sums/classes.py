"""Sums of directions class by class: each labelled sequence is pooled to one vector, whose direction is summed into its
group and its class.

    class_n [class]          vectors counted
    class_unit [class, dim]  Σu
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anisoscope.axes import At
from anisoscope.sums.device import LARGEST
from anisoscope.sums.groups import Sums


def pool_sequences(
    x: Float[Tensor, "sequence token dim"], mask: Bool[Tensor, "sequence token"], at: At
) -> Float[Tensor, "sequence dim"]:
    """Reduce each sequence to one vector in float64: its first or last real token, or the mean or maximum over tokens.

    at   `first`, `last`, `mean` or `max`
    """
    if at == "max":
        return x.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1).double()
    if at == "mean":
        share = (mask / mask.sum(1, keepdim=True)).to(x)
    else:
        position = mask.int().cumsum(1)
        share = (mask & (position == (1 if at == "first" else position[:, -1:]))).to(x)
    x = torch.where(share.unsqueeze(-1) > 0, x, 0.0)  # what stands at padding may be anything
    return torch.einsum("st,std->sd", share, x).double()


def add_class_sums(
    sums: Sums,
    site: str,
    x: Float[Tensor, "sequence dim"],
    label: Int[Tensor, " sequence"],
    group: Int[Tensor, " sequence"],
    classes: int,
) -> None:
    """Add the unit vectors of labelled sequences to the sums of a site, by group of units and class.

    The sums are `class_n` [group, class] and `class_unit` [group, class, dim]. Labels below 0, and zero or non-finite
    vectors, are skipped.

    x         one float64 vector per sequence
    label     number of the class of each sequence
    group     number of the group of units that each sequence is in
    classes   number of classes
    """
    norm = torch.linalg.vector_norm(x, dim=-1)
    held = (label >= 0) & (norm > 1 / LARGEST) & (norm < LARGEST)  # NaN is neither
    unit, place = x[held] / norm[held, None], group[held] * classes + label[held]
    n = sums.buffer(site, "class_n", (sums.groups, classes), x.device)
    total = sums.buffer(site, "class_unit", (sums.groups, classes, x.shape[1]), x.device)
    n.view(-1).index_add_(0, place, torch.ones_like(norm[held]))
    total.view(-1, x.shape[1]).index_add_(0, place, unit)
