"""Turn sums into the long table of results: every metric at every site, each value with its jackknife interval."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.metrics.base import Array, Metric
from anisoscope.reads.base import Gathered, Reading
from anisoscope.store import as_records
from anisoscope.sums import jackknife

Columns = dict[str, list[Any]]


MOST_COMPONENTS = 64
"""Values with more components (one per dimension) keep no replicates: they would be most of the file."""


class Replicates:
    """Collects the values with one group of units left out, for rows of a long table; paired differences need them."""

    def __init__(self, groups: int) -> None:
        """Start empty, for values that leave out each of `groups` groups of units."""
        self.groups = groups
        self._rows: list[NDArray[np.int64]] = []
        self._values: list[Array] = []

    def add(self, first: int, left_out: Array, present: NDArray[np.int64]) -> None:
        """Keep the values without each group of units, for consecutive table rows; `first` is the number of the first
        row.

        left_out  [row, group]: values without each group, for groups that hold data at this place
        present   the numbers of these groups
        """
        # NaN for a group without data here: two runs are compared group by group, so
        # places must agree.
        values = np.full((len(left_out), self.groups), np.nan)
        values[:, present] = left_out
        self._rows.append(np.arange(first, first + len(left_out), dtype=np.int64))
        self._values.append(values)

    def arrays(self) -> tuple[NDArray[np.int64], Array]:
        """Return (numbers of the table's rows, their values [row, group]); NaN if a group holds no data for the row."""
        if not self._rows:
            return np.zeros(0, np.int64), np.zeros((0, self.groups))
        return np.concatenate(self._rows), np.concatenate(self._values)


def build_long_table(
    kept: Gathered,
    metrics: Iterable[Metric],
    policies: Sequence[str],
    replicates: Replicates | None = None,
) -> pd.DataFrame:
    """Compute `metrics` from all that a pass has kept, and return the long table; needs neither model nor corpus.

    replicates   collects the values with one group left out; None: they are not kept
    """
    # One table is made in the end: thousands of small ones take longer than the model.
    columns: Columns = {}
    for metric in metrics:
        for reading in metric.reads.readings(metric, kept):
            present = _list_present_groups(reading.data)
            for part, left_out in build_columns(metric, reading, policies):
                if (
                    replicates is not None
                    and len(part["value"])
                    and left_out is not None
                ):
                    replicates.add(len(columns.get("value", ())), left_out, present)
                for column, entries in part.items():
                    columns.setdefault(column, []).extend(entries)
    return as_records(pd.DataFrame(columns))


def build_columns(
    metric: Metric, reading: Reading, policies: Sequence[str]
) -> Iterable[tuple[Columns, Array | None]]:
    """Compute a metric at one place of the model, and yield (columns of the long table, rows without each group) per
    value.

    policies   names of the token policies (which tokens count), in the order of the sums

    The second item has shape [row, group]: the value with each group of units left out. It is None if the value has too
    many components, or there is only one group.

    reading   what the metric reads at the place
    """
    for name, replicates in metric.compute(reading.data).items():
        counted = None
        if name in metric.counted:
            counted = _broadcast_count(reading.count, replicates[0])
        bounds = metric.range_of(name, reading.data)
        estimate = jackknife.jackknife_interval(
            replicates, bounds=bounds, counted=counted
        )
        rows = _select_rows(metric, estimate.value)
        columns = _build_columns_of_value(
            metric, name, estimate, reading, policies, rows
        )
        columns |= {
            column: [entry] * len(rows) for column, entry in reading.columns.items()
        }
        has_components = estimate.value.ndim > len(metric.axes)
        is_small = not has_components or estimate.value.shape[-1] <= MOST_COMPONENTS
        left_out = None
        if is_small and len(replicates) > 1:
            left_out = replicates[1:].reshape(len(replicates) - 1, -1)[:, rows].T
        yield columns, left_out


def _list_present_groups(data: Any) -> NDArray[np.int64]:
    """List the numbers of the groups of units that hold data, in the order in which they are left out."""
    # Both places of a pair have the same groups.
    data = getattr(data, "first", data)
    present = np.asarray(getattr(data, "present", ()))
    if present.dtype == bool:
        present = np.flatnonzero(present)
    return present.astype(np.int64)


def _select_rows(metric: Metric, value: Array) -> NDArray[np.int64]:
    """Return which entries of a value become rows: all, but only defined ones if it has components."""
    has_components = value.ndim > len(metric.axes)
    # A component that is undefined (a bin without tokens) gets no row; a whole value
    # gets one, to show that it was tried.
    if has_components:
        return np.flatnonzero(~np.isnan(value.ravel()))
    return np.arange(value.size)


def _broadcast_count(count: Array, value: Array) -> Array:
    """Broadcast `count` to the shape of `value`; the axes of `count` are the first ones of `value`."""
    further_axes = (1,) * (value.ndim - count.ndim)
    return np.broadcast_to(count.reshape(count.shape + further_axes), value.shape)


def _build_columns_of_value(
    metric: Metric,
    name: str,
    estimate: jackknife.Estimate,
    reading: Reading,
    policies: Sequence[str],
    rows: NDArray[np.int64],
) -> Columns:
    """Build the table columns of one value of a metric: a row for each chosen entry of its array.

    name       the value's name in what the metric computes
    estimate   the value and its interval, with the axes `metric.axes` and perhaps one of components
    policies   names of the token policies (which tokens count)
    rows       indices of the chosen entries in the flattened array

    reading    what the metric read at one place of the model
    """
    value = estimate.value
    # Of every entry of the flattened array its number along each axis.
    numbers = np.indices(value.shape).reshape(value.ndim, value.size)[:, rows]
    index = dict(zip((*metric.axes, "component"), numbers.tolist(), strict=False))
    counts = _broadcast_count(reading.count, value)
    components: list[str | None] = [None] * len(rows)
    if "component" in index:
        labels = metric.labels_of(name, value.shape[-1], reading.names)
        components = [labels[number] for number in index["component"]]
    token_policies: list[str | None] = [None] * len(rows)
    if "policy" in index:
        token_policies = [policies[number] for number in index["policy"]]
    # No axis of policies, but computed for the first: the table says which.
    elif metric.first_policy:
        token_policies = [policies[0]] * len(rows)
    return {
        "metric": [f"{metric.name}.{name}" if name else metric.name] * len(rows),
        "component": components,
        "token_policy": token_policies,
        "head": index.get("head", [None] * len(rows)),
        "value": value.ravel()[rows].tolist(),
        "low": estimate.low.ravel()[rows].tolist(),
        "high": estimate.high.ravel()[rows].tolist(),
        "n_vectors": np.round(counts.ravel()[rows]).astype(np.int64).tolist(),
    }
