"""From sums to the long table: every metric at every site it applies to, each value with its jackknife interval."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from torch import Tensor

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.metrics import calibrated, class_direction
from anisoscope.metrics.base import Array, Metric
from anisoscope.store import as_records
from anisoscope.sums import jackknife
from anisoscope.sums.groups import Sums, Totals
from anisoscope.sums.reservoir import Reservoir

Columns = dict[str, list[Any]]


def tabulate(
    sums: Sums,
    sites: Mapping[str, Site],
    reservoirs: Mapping[str, Reservoir],
    metrics: Iterable[Metric],
    policies: Sequence[str],
    weights: Mapping[str, Mapping[str, Tensor]],
    classes: Sequence[str] = (),
) -> pd.DataFrame:
    """The long table of `metrics` at `sites` and of `weights`, without model and corpus; `classes`: their names."""
    depth: dict[str, int] = {}
    for site in sites.values():
        depth[site.stack] = max(depth.get(site.stack, 0), site.layer or 0)

    def place(site: Site) -> dict[str, Any]:
        layer = depth[site.stack] if site.layer is None else site.layer
        return {"stack": site.stack, "kind": site.kind, "layer": layer, "site": site.label, "n_units": len(sums.units)}

    nowhere = dict.fromkeys(("stack", "kind", "layer", "n_units"))
    matrices = {name: {term: x.numpy() for term, x in terms.items()} for name, terms in weights.items()}
    columns: Columns = {}  # one table is made in the end: thousands of small ones take longer than the model
    for metric in metrics:
        if "class" in metric.quantities:
            metric = replace(metric, components={"": class_direction.pairs(classes)})
        of_weights = ((nowhere | {"site": name}, terms) for name, terms in matrices.items())
        of_sites = ((place(site), terms) for site, terms in _places(metric, sums, sites, reservoirs))
        for constant, terms in chain(of_weights if "embedding" in metric.quantities else (), of_sites):
            for part in _table(metric, terms, policies, constant):
                for column, entries in part.items():
                    columns.setdefault(column, []).extend(entries)
    return as_records(pd.DataFrame(columns))


def _places(
    metric: Metric, sums: Sums, sites: Mapping[str, Site], reservoirs: Mapping[str, Reservoir]
) -> Iterable[tuple[Site, dict[str, Array]]]:
    """(site, label, terms) wherever a metric applies."""
    for name, site in sites.items():
        of_classes = "class" in metric.quantities and site.quantity == "hidden"
        if site.measured_as in metric.quantities or of_classes:
            terms = sums.at(name, metric.needs)
            if terms and any(value.any() for value in terms.values()):
                yield site, terms
        if "query_key" in metric.quantities and site.quantity == "query":
            key = Site(site.stack, site.layer, "key", site.stage, site.kind)
            both = (("query", sums.at(name, metric.needs)), ("key", sums.at(key.name, metric.needs)))
            named = {f"{side}.{term}": value for side, terms in both for term, value in terms.items()}
            yield site, named
        reservoir = reservoirs.get(site.stack) or reservoirs.get(name)
        sampled_here = "sample" in metric.quantities and site.quantity in LAYER_QUANTITIES
        if sampled_here and reservoir is not None and name in reservoir.vectors:
            sampled = _sample_terms(name, sums, reservoir)
            if sampled is not None:
                yield site, sampled


def _sample_terms(name: str, sums: Sums, reservoir: Reservoir) -> dict[str, Array] | None:
    vectors = reservoir.vectors[name].double().numpy()
    usable = np.isfinite(vectors).all(1) & (np.abs(vectors).sum(1) > 0)
    if usable.sum() < 2 or vectors.shape[1] < 2:
        return None
    total = sums.at(name, ("vector", "n"))
    mean = total["vector"].sum(0)[0, 0] / total["n"].sum(0)[0, 0]
    group = (reservoir.unit.numpy() % sums.groups)[usable]
    return calibrated.sample_sums(vectors[usable], mean, group, sums.groups)


def _table(
    metric: Metric, terms: dict[str, Array], policies: Sequence[str], constant: dict[str, Any]
) -> Iterable[Columns]:
    totals = Totals(terms)
    if not totals.present.any():
        return
    count = _count(totals)
    for name, replicates in metric.compute(totals).items():
        counted = _along(count, replicates[0]) if name in metric.counted else None
        estimate = jackknife.interval(replicates, bounds=metric.range_of(name, totals), counted=counted)
        columns = _columns(metric, name, estimate, count, policies)
        rows = len(columns["value"])
        if constant["site"] in LAYER_QUANTITIES:
            columns["head"] = [None] * rows
        yield columns | {column: [entry] * rows for column, entry in constant.items()}


COUNTS = ("n", "query.n", "rows", "plain.rows", "moment_n", "query.head_moment_n", "sequences")
"""Terms that say of how many vectors (or rows) a site's sums are: the first that is there."""


def _count(totals: Totals) -> Array:
    """Vectors (or rows, or matrix rows) behind the values: a leading part of their axes."""
    for term in COUNTS:
        if term in totals:
            return np.asarray(totals[term][0])
    if "class_n" in totals:
        return np.array(totals["class_n"][0].sum())
    return np.asarray(totals["subset_n"][0][:3].sum(0))  # the kinds of token make up the whole


def _along(count: Array, value: Array) -> Array:
    """`count` over the axes of `value`, of which it has the first."""
    return np.broadcast_to(count.reshape(count.shape + (1,) * (value.ndim - count.ndim)), value.shape)


def _columns(metric: Metric, name: str, estimate: jackknife.Estimate, count: Array, policies: Sequence[str]) -> Columns:
    """A row per entry of a value of `metric.axes`, with a component axis where it has one more (without its NaN)."""
    value, axes = estimate.value, metric.axes
    index = dict(zip((*axes, "component"), np.indices(value.shape).reshape(value.ndim, value.size), strict=False))
    counts = _along(count, value)
    rows = np.flatnonzero(~np.isnan(value.ravel())) if value.ndim > len(axes) else np.arange(value.size)
    labels = metric.components.get(name) or tuple(map(str, range(value.shape[-1] if value.ndim else 0)))
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
