"""From sums to the long table: every metric at every site it applies to, each value with its jackknife interval."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.metrics.base import Array, Metric
from anisoscope.reads.base import Gathered, Reading
from anisoscope.store import as_records
from anisoscope.sums import jackknife

Columns = dict[str, list[Any]]


def tabulate(kept: Gathered, metrics: Iterable[Metric], policies: Sequence[str]) -> pd.DataFrame:
    """The long table of `metrics` of all that a pass has kept, without model and corpus."""
    columns: Columns = {}  # one table is made in the end: thousands of small ones take longer than the model
    for metric in metrics:
        for reading in metric.reads.readings(metric, kept):
            for part in columns_of(metric, reading, policies):
                for column, entries in part.items():
                    columns.setdefault(column, []).extend(entries)
    return as_records(pd.DataFrame(columns))


def columns_of(metric: Metric, reading: Reading, policies: Sequence[str]) -> Iterable[Columns]:
    """Columns of the long table for each value of a metric at one place."""
    for name, replicates in metric.compute(reading.data).items():
        counted = _along(reading.count, replicates[0]) if name in metric.counted else None
        bounds = metric.range_of(name, reading.data)
        estimate = jackknife.interval(replicates, bounds=bounds, counted=counted)
        columns = _columns(metric, name, estimate, reading, policies)
        rows = len(columns["value"])
        yield columns | {column: [entry] * rows for column, entry in reading.columns.items()}


def _along(count: Array, value: Array) -> Array:
    """`count` over the axes of `value`, of which it has the first."""
    return np.broadcast_to(count.reshape(count.shape + (1,) * (value.ndim - count.ndim)), value.shape)


def _columns(
    metric: Metric, name: str, estimate: jackknife.Estimate, reading: Reading, policies: Sequence[str]
) -> Columns:
    """A row per entry of a value of `metric.axes`, with a component axis where it has one more (without its NaN)."""
    value, axes = estimate.value, metric.axes
    index = dict(zip((*axes, "component"), np.indices(value.shape).reshape(value.ndim, value.size), strict=False))
    counts = _along(reading.count, value)
    rows = np.flatnonzero(~np.isnan(value.ravel())) if value.ndim > len(axes) else np.arange(value.size)
    labels = metric.labels_of(name, value.shape[-1] if value.ndim else 0, reading.names)
    policy = policies[0] if metric.first_policy else None
    return {
        "metric": [f"{metric.name}.{name}" if name else metric.name] * len(rows),
        "component": [labels[i] for i in index["component"][rows]] if value.ndim > len(axes) else [None] * len(rows),
        "token_policy": [policies[i] for i in index["policy"][rows]] if "policy" in axes else [policy] * len(rows),
        "head": index["head"][rows].tolist() if "head" in axes else [None] * len(rows),
        "value": value.ravel()[rows].tolist(),
        "low": estimate.low.ravel()[rows].tolist(),
        "high": estimate.high.ravel()[rows].tolist(),
        "n_vectors": np.round(counts.ravel()[rows]).astype(np.int64).tolist(),
    }
