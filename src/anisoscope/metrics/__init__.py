"""The metrics, one file each: a pure function of what it reads, with its paper's equation as reference.

`find_all` returns every metric: our own, those of installed packages, and registered ones. A file of this folder that
declares no metric is an error that names the file.

May import: `reads`, `sums`, `registry`, `axes`, `errors`; never a model, and no torch.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NoReturn

from anisoscope.errors import MeasureError, UsageError, suggest_names
from anisoscope.metrics.base import INVARIANCES as INVARIANCES, Metric as Metric
from anisoscope.reads import (
    CentredRows as CentredRows,
    Classes as Classes,
    Keys as Keys,
    LayerPair as LayerPair,
    Logits as Logits,
    QueryKey as QueryKey,
    Rows as Rows,
    RunPair as RunPair,
    Sample as Sample,
    Scores as Scores,
    Sequences as Sequences,
    Vectors as Vectors,
    Weights as Weights,
)
from anisoscope.registry import (
    import_thing,
    is_own as is_own,
    list_entries_of,
    register,
)

NO_METRICS = ("base",)
"""Modules of this folder that are not metrics."""


KNOWN_AS = {
    "anisotropy": "mean_cosine",
    "average_cosine": "mean_cosine",
    "average_cosine_similarity": "mean_cosine",
    "cosine_similarity": "mean_cosine",
    "intra_sentence_similarity": "intra_sequence",
    "isotropy": "partition",
    "partition_function": "partition",
    "attention_entropy": "attention",
    "entropy": "attention",
    "linear_cka": "cka",
    "intrinsic_dimension": "twonn",
    "erank": "spectrum.effective_rank",
    "effective_rank": "spectrum.effective_rank",
    "rankme": "spectrum.effective_rank_uncentred",
    "participation_ratio": "spectrum.participation_ratio",
    "isoscore": "spectrum.isoscore",
    "explained_variance": "spectrum.explained",
}
"""What the field calls our metrics and their values → the metric, or `metric.value`."""


def resolve_alias(name: str) -> tuple[str, str]:
    """Translate a name from the literature into (name of our metric, `METRIC.VALUE`).

    The second is the name of one of the metric's values as in the records (`spectrum.isoscore`), or "" if the name
    means the whole metric. A name that the literature does not use is returned unchanged, with "".
    """
    # A metric's own name comes first: a package may call its metric by a word of the
    # literature. With a colon it is module:NAME, never an alias.
    if name in find_all() or ":" in name:
        return name, ""
    plain = re.sub(r"[\s-]+", "_", name.strip().lower())
    target = KNOWN_AS.get(plain, plain)
    metric, _, value = target.partition(".")
    if metric not in find_all():
        return name, ""
    if not value:
        return metric, ""
    return metric, target


@cache
def scan() -> dict[str, Metric]:
    """Import every metric of this folder and return them by name; MeasureError if a file has no valid declaration."""
    metrics = {}
    for module in iter_modules(__path__):
        if module.name in NO_METRICS:
            continue
        metric = getattr(import_module(f"{__name__}.{module.name}"), "METRIC", None)
        # The name of the file is the name in commands and records: two names for one
        # metric would drift apart.
        if not isinstance(metric, Metric) or metric.name != module.name:
            expected = (
                f"METRIC = Metric(name={module.name!r}, …) in metrics/{module.name}.py"
            )
            raise MeasureError(expected, repr(metric), "declare it; see docs/adding.md")
        metrics[metric.name] = metric
    return metrics


def find_all() -> dict[str, Metric]:
    """Return every metric by name: our own, those of installed packages, and registered ones."""
    return list_entries_of("metrics")


def find_metric_by_name(name: str) -> Metric:
    """Return the metric with this name, or import the one that `module:NAME` names.

    UsageError, with similar names, if there is none.
    """
    known = find_all()
    if name in known:
        return known[name]
    if ":" not in name:
        _refuse_name(name, known)
    metric = import_thing(name, "a metric as module:NAME")
    if not isinstance(metric, Metric):
        raise UsageError(
            f"a Metric in {name}", type(metric).__name__, "declare it: NAME = Metric(…)"
        )
    # The module may have registered it when it was imported.
    if known.get(metric.name) is not metric:
        register(metric)
    return metric


def _refuse_name(name: str, known: Iterable[str]) -> NoReturn:
    """Raise UsageError for a name that no metric has; it says what we call it if the literature uses this name."""
    expected = "the name of a metric"
    meant, value = resolve_alias(name)
    if meant != name:
        relation = f"the value {value} of" if value else "called"
        raise UsageError(
            expected, f"{name!r}, which is {relation} {meant} here", f"name {meant}"
        )
    similar = suggest_names(name, [*known, *KNOWN_AS])
    raise UsageError(
        expected,
        repr(name),
        f"{similar}; one of your own: module:NAME, or anisoscope.register(metric)",
    )


def list_metric_names(given: Any) -> tuple[str, ...]:
    """Return the names of metrics that are given as names or as objects, alone or in a list; objects are registered."""
    # A text is iterable too, letter by letter.
    if isinstance(given, str | Metric):
        given = (given,)
    if not isinstance(given, Iterable):
        raise UsageError(
            "metrics, or their names", f"{given!r}", "as metrics=('drift', my_metric)"
        )
    names: list[Any] = []
    for each in given:
        if not isinstance(each, Metric):
            names.append(each)
            continue
        if find_all().get(each.name) is not each:
            register(each)
        names.append(each.name)
    return tuple(names)


def choose_metrics(names: Iterable[str], panels: Iterable[str]) -> list[Metric]:
    """Return the named metrics; without names, our own of the given panels.

    Metrics of other packages are measured only if they are named, so that installing a package changes no other run.
    """
    chosen: dict[str, Metric] = {}
    for name in names:
        metric = find_metric_by_name(name)
        chosen[metric.name] = metric
    if not chosen:
        every = find_all().items()
        return [
            metric
            for name, metric in every
            if is_own("metrics", name) and metric.panel in panels
        ]
    # In one order, whatever order they were named in.
    ours_first = sorted(chosen, key=lambda name: (not is_own("metrics", name), name))
    return [chosen[name] for name in ours_first]
