"""Measure arrays of vectors instead of a model; the result is an ordinary run folder."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anisoscope import metrics
from anisoscope.axes import TokenPolicy
from anisoscope.classes.pooling import make_separability_records
from anisoscope.data.arrays import STACK, VectorArrays, VectorPlan
from anisoscope.errors import UsageError
from anisoscope.measure.loop import Arrays
from anisoscope.measure.settings import Settings
from anisoscope.models.load import Subject
from anisoscope.progress import Progress, remark
from anisoscope.runs.job import Job
from anisoscope.runs.run import OpenedCorpus, run
from anisoscope.store import RunFolder, as_records

UNASKED = ("floor",)
"""Metrics that vectors get with the panel of hidden states: a search needs to know which cosine is noise."""
LABELLED_BYTES = 1 << 31
"""Most of one layer's labelled vectors, which are held at once."""


def run_vectors(
    vectors: VectorArrays, job: Job, output: Path | None = None, **how: Any
) -> RunFolder:
    """Measure vectors by all metrics that need no model; with labels also the directions of their classes.

    Layer i is the i-th array. `job` says what to compute and the number of groups; its model and corpus are ignored.
    `how` are keyword arguments of `run`. UsageError for metrics and token policies (which tokens count) that vectors
    do not have.
    """
    settings = limit_settings(vectors, job.settings)
    plan = VectorPlan(vectors)
    described = {
        "name": STACK,
        "layers": list(vectors.layers),
        "warnings": plan.warnings,
        "words": plan.words,
    }
    # The file or call that the vectors came from.
    described |= vectors.source
    first_layer = next(iter(vectors.layers.values()))
    dtype = str(getattr(first_layer, "dtype", "")).removeprefix("torch.")
    # Other types, such as integers, are computed in float32.
    if dtype not in ("float64", "float16", "bfloat16"):
        dtype = "float32"
    given: dict[str, Any] = {
        "model": vectors.name,
        "corpus": STACK,
        "dtype": dtype,
        "device": "cpu",
    }
    job = replace(job, settings=settings, **given)
    more = None
    if vectors.labels is not None:
        more = partial(_measure_separability, vectors, job)
    reading = OpenedCorpus(plan, described, more=more)
    # Which columns were read as the vector: a wrong guess should be seen at once.
    remark(how.get("progress"), str(vectors.source.get("reading", "")))
    return run(
        job,
        output,
        subject=Subject(Arrays(), None, vectors.name),
        reading=reading,
        **how,
    )


def limit_settings(vectors: VectorArrays, settings: Settings) -> Settings:
    """Return the settings limited to metrics and token policies (which tokens count) that vectors have.

    UsageError if another was named.
    """
    return replace(
        settings,
        metrics=_choose_metrics(vectors, settings),
        tokens=_choose_policies(vectors, settings.tokens),
    )


def _choose_metrics(vectors: VectorArrays, settings: Settings) -> tuple[str, ...]:
    """Return the names of the chosen metrics that can be measured on these vectors. UsageError if none can."""
    known = metrics.find_all()
    measurable = []
    for name, metric in known.items():
        if not _explain_missing(metric, vectors):
            measurable.append(name)
    for name in settings.metrics:
        why = _explain_missing(metrics.find_metric_by_name(name), vectors)
        if why:
            raise UsageError(
                f"metrics of vectors ({', '.join(measurable)})", repr(name), why
            )
    chosen = list(settings.metrics) or _list_default_metrics(settings, measurable)
    # Whoever gives labels wants to know of the classes, whichever metrics were named.
    for name in measurable:
        if known[name].reads.labelled and name not in chosen:
            chosen.append(name)
    # The panels that were named hold only metrics of a model.
    if not chosen:
        raise UsageError(
            "only the panels hidden and spectrum for vectors",
            ", ".join(settings.panel),
            "leave the other panels out",
        )
    return tuple(chosen)


def _list_default_metrics(settings: Settings, measurable: list[str]) -> list[str]:
    """Return the metrics of the panels that can be measured, for settings that name none."""
    names = [metric.name for metric in metrics.choose_metrics((), settings.panel)]
    if "hidden" in settings.panel:
        names += [name for name in UNASKED if name not in names]
    return [name for name in names if name in measurable]


def _explain_missing(metric: metrics.Metric, vectors: VectorArrays) -> str:
    """Say what to do so that a metric can be measured on these vectors; empty if it can already."""
    if not metric.reads.of_layers:
        return "measure the model for the others"
    if metric.reads.labelled and len(vectors.classes) < 2:
        return "give labels of two classes"
    if len(vectors.layers) < metric.reads.layers:
        return "give the vectors of several layers, as a list of arrays"
    if metric.reads.is_of_sequences(metric.needs) and not vectors.are_sequences:
        # Single vectors have no positions, and no neighbours in a text.
        return "measure the model for the others"
    return ""


def _choose_policies(
    vectors: VectorArrays, asked: Sequence[TokenPolicy]
) -> tuple[TokenPolicy, ...]:
    """Return the chosen token policies (which tokens count) that vectors have: `all`, and `no-first` if they are
    sequences.

    asked   the token policies of the settings
    """
    known = ("all", "no-first") if vectors.are_sequences else ("all",)
    chosen = tuple(policy for policy in asked if policy in known)
    if not chosen:
        raise UsageError(
            f"token policies that vectors have ({', '.join(known)})",
            ", ".join(asked),
            "leave the others out",
        )
    return chosen


def _measure_separability(
    vectors: VectorArrays, job: Job, _progress: Progress | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Return (records of how well classes are separated in each layer, warnings for layers that were left out).

    It is called after the pass, with a progress that it does not need.
    """
    assert vectors.labels is not None
    empty = as_records(pd.DataFrame())
    if len(vectors.classes) < 2:
        return empty, ["one class only: nothing to tell apart"]
    if job.shard[1] > 1:
        reason = "AUC and nearest directions of classes left out of a shard: they are no sums and need all vectors"
        return empty, [reason]
    parts = []
    warnings = []
    count = vectors.shape[0]
    for number, (layer, values) in enumerate(vectors.layers.items()):
        # Eight bytes a number in float64.
        if 8 * count * values.shape[-1] > LABELLED_BYTES:
            warnings.append(
                f"no AUC of classes in layer {number}: {count:,} vectors are too many to hold at once"
            )
            continue
        x = vectors.block(layer, np.arange(count))[:, 0].double().numpy()
        # As in the pass, which leaves such vectors out.
        is_finite = np.isfinite(x).all(1)
        found = make_separability_records(
            x[is_finite, None],
            vectors.labels[is_finite],
            vectors.classes,
            stack=STACK,
            units=vectors.units[is_finite],
            groups=job.settings.groups,
        )
        # Each call sees a single layer, and numbers it 0.
        parts.append(found.assign(layer=number).astype({"layer": "Int64"}))
    return pd.concat(parts, ignore_index=True) if parts else empty, warnings
