"""How well the directions of classes tell utterances apart, layer by layer, and how well a classifier does: records of
one model on labelled utterances.
"""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.metrics.class_direction import GROUPS, separability
from anisoscope.store import as_records
from anisoscope.sums.jackknife import wilson

Labels = NDArray[np.int64]


def separability_records(
    states: NDArray[np.float64],
    labels: Labels,
    names: tuple[str, ...],
    *,
    stack: str = "encoder",
    units: Labels | None = None,
    groups: int = GROUPS,
) -> pd.DataFrame:
    """Records of `class_direction.auc` and `.nearest` of vectors [utterance, layer, dim], of a class or (null) of all,
    with 95 % delete-a-group intervals over `units` [utterance] (none: every utterance is its own).
    """
    rows: list[dict[str, Any]] = []
    for layer in range(states.shape[1]):
        for name, estimate in separability(states[:, layer], labels, len(names), groups, units).items():
            measure, _, number = name.partition(".")
            component = names[int(number)] if number else None
            row = _row(f"class_direction.{measure}", component, tuple(map(float, estimate)))
            rows.append(row | {"layer": layer})
    n_units = len(labels) if units is None else len(np.unique(units))
    return as_records(pd.DataFrame(rows), stack=stack, site="hidden", n_units=n_units, n_vectors=len(labels))


def accuracy_records(found: Labels, labels: Labels, names: tuple[str, ...]) -> pd.DataFrame:
    """`accuracy` of all and of each class, with 95 % Wilson intervals; `majority`, that of naming the commonest one."""
    right = found == labels
    rows = [_row("accuracy", None, _share(right))]
    rows += [_row("accuracy", name, _share(right[labels == i])) for i, name in enumerate(names) if (labels == i).any()]
    majority = np.bincount(labels).max() / len(labels)
    rows.append({"metric": "majority", "value": float(majority)})
    return as_records(pd.DataFrame(rows), n_units=len(labels))


def _share(right: NDArray[np.bool_]) -> tuple[float, float, float]:
    low, high = wilson(right.mean(), len(right))
    return float(right.mean()), float(low), float(high)


def _row(metric: str, component: str | None, estimate: tuple[float, ...]) -> dict[str, Any]:
    return {"metric": metric, "component": component, **dict(zip(("value", "low", "high"), estimate, strict=True))}
