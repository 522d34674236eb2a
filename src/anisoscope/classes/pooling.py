"""Utterances as a model gives them: the vector that stands for each, layer by layer, and what its head says of it; in
records, how well directions of classes tell the vectors apart, and how well the head does.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.axes import At, Site
from anisoscope.batch import Batch
from anisoscope.capture.tap import capture
from anisoscope.data.encoding import Encoded, collated
from anisoscope.metrics.class_direction import GROUPS, separability
from anisoscope.models.modes import evaluating
from anisoscope.store import as_records
from anisoscope.sums.classes import pooled
from anisoscope.sums.jackknife import wilson

Labels = NDArray[np.int64]
ESTIMATE = ("value", "low", "high")


@torch.no_grad()
def pooled_vectors(model: nn.Module, batches: Iterable[Batch], at: At = "first") -> NDArray[np.float64]:
    """Vectors [unit, layer, dim], layer 0 the input of the first block, i the output of block i; in evaluation mode."""
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


@torch.no_grad()
def class_logits(model: Any, rows: list[dict[str, Any]], pad_id: int, batch: int = 256) -> Float[Tensor, "unit class"]:
    """What the head of `model` says of every utterance, in order."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["input_ids"]))
    device = next(model.parameters()).device
    found: list[Tensor] = []
    with evaluating(model):
        for first in range(0, len(order), batch):
            inputs = collated([rows[i] for i in order[first : first + batch]], pad_id)
            del inputs["labels"]
            found.append(model(**{name: value.to(device) for name, value in inputs.items()}).logits.cpu())
    return torch.cat(found)[torch.tensor(order).argsort()]


def predicted(model: Any, encoded: Encoded, pad_id: int) -> list[int]:
    """The class of every example, in order."""
    return class_logits(model, encoded.rows, pad_id).argmax(-1).tolist()


def separability_records(
    states: NDArray[np.float64],
    labels: Labels,
    names: tuple[str, ...],
    *,
    stack: str = "encoder",
    units: Labels | None = None,
    groups: int = GROUPS,
) -> pd.DataFrame:
    """Records of `class_direction.auc` (of each class, or null: of all), `.nearest` and `.dimensions` of vectors
    [utterance, layer, dim], with 95 % delete-a-group intervals over `units` [utterance] (none: each is its own).
    """
    rows = []
    for layer in range(states.shape[1]):
        for name, estimate in separability(states[:, layer], labels, len(names), groups, units).items():
            measure, _, number = name.partition(".")
            component = names[int(number)] if number else None
            row = {"metric": f"class_direction.{measure}", "component": component, "layer": layer}
            rows.append(row | dict(zip(ESTIMATE, map(float, estimate), strict=True)))
    n_units = len(labels) if units is None else len(np.unique(units))
    return as_records(pd.DataFrame(rows), stack=stack, site="hidden", n_units=n_units, n_vectors=len(labels))


def accuracy_records(found: Labels, labels: Labels, names: tuple[str, ...]) -> pd.DataFrame:
    """`accuracy` of all and of each class, with 95 % Wilson intervals; `majority`, that of naming the commonest one."""
    rows = []
    for component, chosen in ((None, labels >= 0), *((name, labels == i) for i, name in enumerate(names))):
        if chosen.any():
            right = (found == labels)[chosen]
            share = float(right.mean())
            estimate = zip(ESTIMATE, (share, *map(float, wilson(share, len(right)))), strict=True)
            rows.append({"metric": "accuracy", "component": component, **dict(estimate)})
    rows.append({"metric": "majority", "value": np.bincount(labels).max() / len(labels)})
    return as_records(pd.DataFrame(rows), n_units=len(labels))
