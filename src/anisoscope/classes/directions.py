"""How well the directions of classes tell utterances apart, layer by layer, and how well a classifier does: records of
one model on labelled utterances.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.metrics.class_direction import GROUPS, separability
from anisoscope.store import as_records
from anisoscope.sums.jackknife import wilson

Labels = NDArray[np.int64]
ESTIMATE = ("value", "low", "high")


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
