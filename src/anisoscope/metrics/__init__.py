"""One file per measure: a pure function of sums, with its paper's equation as reference. `found()` gives every metric
on disk; a file without its declaration fails here, by name.

May import: `sums`, `axes`, `errors`; never a model, and no torch.
"""

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from anisoscope.errors import MeasureError
from anisoscope.metrics.base import Metric


@cache
def found() -> dict[str, Metric]:
    """Every metric of this folder, by name."""
    metrics = {}
    for module in iter_modules(__path__):
        if module.name == "base":
            continue
        metric = getattr(import_module(f"{__name__}.{module.name}"), "METRIC", None)
        if not isinstance(metric, Metric) or metric.name != module.name:
            expected = f"METRIC = Metric(name={module.name!r}, …) in metrics/{module.name}.py"
            raise MeasureError(expected, repr(metric), "declare it; see docs/adding.md")
        metrics[metric.name] = metric
    return metrics
