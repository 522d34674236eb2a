"""Anisoscope: the geometry of representations and of self-attention, measured exactly, in any model.

    >>> import anisoscope
    >>> records = anisoscope.measure(model, batches)          # every metric, at every site, with intervals
    >>> with anisoscope.capture(model, ("hidden",)) as tap:   # or the tensors themselves
    ...     model(**inputs)

Importing this loads neither torch nor transformers: names are resolved when they are first used.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Job": "anisoscope.runs.job",
    "Monitor": "anisoscope.training.monitor",
    "Reservoir": "anisoscope.sums.reservoir",
    "Settings": "anisoscope.measure.settings",
    "Site": "anisoscope.axes",
    "Sums": "anisoscope.sums.groups",
    "capture": "anisoscope.capture",
    "load": "anisoscope.models.load",
    "measure": "anisoscope.measure.loop",
    "metric": "anisoscope.measure.functional",
    "run": "anisoscope.runs.run",
}
__all__ = sorted([*_PUBLIC, "__version__"])


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
