"""Sums of directions class by class: each labelled sequence is pooled to one vector, whose direction is summed into its
group and its class.

    class_n [class]          vectors counted
    class_unit [class, dim]  Σu
"""

import torch
from jaxtyping import Bool, Float, Int, Shaped
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
        at_padding = ~mask.unsqueeze(-1)
        return x.masked_fill(at_padding, -torch.inf).amax(1).double()
    weight = _weigh_tokens(mask, at).to(x)
    # Vectors at padding may be anything, NaN included, and NaN · 0 is NaN.
    x = torch.where(weight.unsqueeze(-1) > 0, x, 0.0)
    return torch.einsum("st,std->sd", weight, x).double()


def _weigh_tokens(
    mask: Bool[Tensor, "sequence token"], at: At
) -> Shaped[Tensor, "sequence token"]:
    """Return the weights of tokens in the vector of their sequence, for `first`, `last` or `mean`."""
    if at == "mean":
        return mask / mask.sum(1, keepdim=True)
    position = mask.int().cumsum(1)
    if at == "first":
        return mask & (position == 1)
    return mask & (position == position[:, -1:])


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
    dim = x.shape[1]
    norm = torch.linalg.vector_norm(x, dim=-1)
    # A norm that is NaN is neither above nor below a limit.
    counted = (label >= 0) & (norm > 1 / LARGEST) & (norm < LARGEST)
    unit = x[counted] / norm[counted, None]
    # Of the sums below, whose first two axes are flattened.
    row = group[counted] * classes + label[counted]
    n = sums.buffer(site, "class_n", (sums.groups, classes), x.device)
    total = sums.buffer(site, "class_unit", (sums.groups, classes, dim), x.device)
    n.view(-1).index_add_(0, row, torch.ones_like(norm[counted]))
    total.view(-1, dim).index_add_(0, row, unit)
