"""Anisoscope: the geometry of representations and of self-attention, measured exactly, in any model.

    >>> import anisoscope
    >>> run = anisoscope.measure(model, inputs)               # every metric, at every site, with intervals
    >>> run.table(), run.findings, run.plot("anisotropy"), run.records
    >>> with anisoscope.capture(model, ("hidden",)) as tap:   # or the tensors themselves
    ...     model(**inputs)

Importing this loads neither torch nor transformers: names are resolved when they are first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.api.measuring import classes, measure, series
    from anisoscope.api.run import Run
    from anisoscope.api.working import compare, report, reproduce, train
    from anisoscope.axes import Site
    from anisoscope.capture import capture
    from anisoscope.measure.functional import metric
    from anisoscope.measure.settings import Settings
    from anisoscope.models.load import Subject, load
    from anisoscope.sums.groups import Sums
    from anisoscope.training.monitor import Monitor

__version__ = "0.1.0"

_PUBLIC = {
    "Monitor": "anisoscope.training.monitor",
    "Run": "anisoscope.api.run",
    "Settings": "anisoscope.measure.settings",
    "Site": "anisoscope.axes",
    "Subject": "anisoscope.models.load",
    "Sums": "anisoscope.sums.groups",
    "capture": "anisoscope.capture",
    "classes": "anisoscope.api.measuring",
    "compare": "anisoscope.api.working",
    "load": "anisoscope.models.load",
    "measure": "anisoscope.api.measuring",
    "metric": "anisoscope.measure.functional",
    "report": "anisoscope.api.working",
    "reproduce": "anisoscope.api.working",
    "series": "anisoscope.api.measuring",
    "train": "anisoscope.api.working",
}
"""Every public name, and the module it is in."""
__all__ = [
    "Monitor",
    "Run",
    "Settings",
    "Site",
    "Subject",
    "Sums",
    "__version__",
    "capture",
    "classes",
    "compare",
    "load",
    "measure",
    "metric",
    "report",
    "reproduce",
    "series",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'anisoscope' has no attribute {name!r}; it has {', '.join(_PUBLIC)}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """This package, whose public names stay what they are: importing a sub-package of the same name (`capture`) binds
    that sub-package here, as Python does with every sub-package, unless this refuses it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
