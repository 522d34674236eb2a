"""Values of whole layers from those of their heads, with intervals.

The heads of a model are fixed and its units are drawn: the interval of a mean over heads is the jackknife of that mean,
with the same group of units left out of every head. Intervals of single heads cannot give it, since heads of one layer
read the same text and move together.
"""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from anisoscope.sums import jackknife
from anisoscope.sums.jackknife import UNBOUNDED, Bounds

# Not NDArray: since numpy 2.5 that is an alias, inside which jaxtyping sees no class.
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

PLACE = [
    "step",
    "seed",
    "stack",
    "kind",
    "layer",
    "site",
    "token_policy",
    "metric",
    "component",
]
"""What the heads of one layer have in common."""
OF_SIZES = frozenset({"query_key.cosine"})
"""Metrics whose mean over heads is of absolute values: aligned and opposite heads do not cancel."""
SHARE: Bounds = (0.0, 1.0)
RANGES = {
    "attention.entropy_normalised": SHARE,
    "attention.first_mass": SHARE,
    "attention.row_max": SHARE,
    "attention.row_min": SHARE,
    "attention.row_similarity": SHARE,
    "query_key.cosine": SHARE,
    "sinks.rate": SHARE,
    "sinks.first_rate": SHARE,
    "sinks.strongest": SHARE,
    "sinks.at": SHARE,
    "sinks.mass": SHARE,
}
"""Ends of what a mean over heads can be, by metric; others are unbounded. Of cosines: absolute values."""


def average_heads(
    rows: pd.DataFrame, left_out: Float[Array, "row group"] | None = None
) -> tuple[pd.DataFrame, Float[Array, "layer group"] | None]:
    """Average records of single heads over the heads of each layer. Return the new rows, and their replicates.

    rows      records of single heads; heads whose value is undefined are left out of the mean
    left_out  replicates: the value of each row with one group of units left out, NaN if the group holds none of its
              vectors; None: unknown, and then the means have no intervals (`low` and `high` are NaN)

    The result has one row per layer, metric and site; its `head` is null.
    """
    # So that the index of a row is its number in `left_out`.
    numbered = rows.reset_index(drop=True)
    found: list[dict[str, Any]] = []
    replicates: list[Array] = []
    for _, part in numbered.groupby(PLACE, sort=False, dropna=False):
        defined = part[part["value"].notna()]
        if not len(defined):
            continue
        metric = str(defined["metric"].iloc[0])
        # heads of opposite signs would cancel where only the size counts
        size = np.abs if metric in OF_SIZES else np.asarray
        value = float(size(defined["value"].to_numpy(dtype=np.float64)).mean())
        mean = None
        if left_out is not None:
            # The mean is made with the same group left out of every head; NaN of one
            # head makes that replicate NaN.
            mean = size(left_out[defined.index.to_numpy()]).mean(axis=0)
            replicates.append(mean)
        # What the heads have in common, from the first of them.
        row: dict[str, Any] = {}
        for name, entry in defined.iloc[0].items():
            row[str(name)] = entry
        row["head"] = pd.NA
        found.append(row | _estimate(value, mean, RANGES.get(metric, UNBOUNDED)))
    # Rows became dictionaries, which lose pandas' types for whole numbers and texts
    # with missing values.
    frame = pd.DataFrame(found, columns=rows.columns).astype(rows.dtypes.to_dict())
    if left_out is None:
        return frame, None
    if not replicates:
        return frame, np.zeros((0, left_out.shape[1]))
    return frame, np.stack(replicates)


def _estimate(value: float, left_out: Array | None, bounds: Bounds) -> dict[str, float]:
    """Return `value`, `low` and `high` of a row, the interval by the jackknife; NaN ends without replicates.

    left_out   the value with one group of units left out [group]; None: not kept
    bounds     (low, high) that the interval may not exceed
    """
    if left_out is None:
        return {"value": value, "low": np.nan, "high": np.nan}
    present = left_out[~np.isnan(left_out)]
    found = jackknife.jackknife_interval(
        np.concatenate([[value], present]), bounds=bounds
    )
    return {"value": value, "low": float(found.low), "high": float(found.high)}
