"""Anisoscope: the geometry of representations and of self-attention, measured exactly, in any model.

    >>> import anisoscope
    >>> run = anisoscope.measure(model, inputs)               # every metric, at every site, with intervals
    >>> run.table(), run.findings, run.plot("anisotropy"), run.records
    >>> with anisoscope.capture(model, ("hidden",)) as tap:   # or the tensors themselves
    ...     model(**inputs)

Importing this loads neither torch nor transformers: names are resolved when they are first used.
"""

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anisoscope.api.classifiers import classes as classes, explain as explain
    from anisoscope.api.comparison import Comparison as Comparison
    from anisoscope.api.curing import Cures as Cures, cure as cure
    from anisoscope.api.functions import measure as measure, series as series
    from anisoscope.api.run import Run as Run
    from anisoscope.api.state import State as State
    from anisoscope.api.working import compare as compare, report as report
    from anisoscope.axes import Site as Site
    from anisoscope.capture import capture as capture
    from anisoscope.measure.functional import metric as metric
    from anisoscope.measure.settings import Settings as Settings
    from anisoscope.metrics.base import Metric as Metric
    from anisoscope.models.load import Subject as Subject, load as load
    from anisoscope.monitor.monitor import Monitor as Monitor
    from anisoscope.registry import register as register
    from anisoscope.sums.groups import Sums as Sums

__version__ = "0.1.0"

warnings.filterwarnings(
    "ignore", "IProgress not found"
)  # of a notebook without widgets; no bar of ours needs any

_MODULES = {
    "api.classifiers": ("classes", "explain"),
    "api.comparison": ("Comparison",),
    "api.curing": ("Cures", "cure"),
    "api.functions": ("measure", "series"),
    "api.run": ("Run",),
    "api.state": ("State",),
    "api.working": ("compare", "report"),
    "axes": ("Site",),
    "capture": ("capture",),
    "measure.functional": ("metric",),
    "measure.settings": ("Settings",),
    "metrics.base": ("Metric",),
    "models.load": ("Subject", "load"),
    "monitor.monitor": ("Monitor",),
    "registry": ("register",),
    "sums.groups": ("Sums",),
}
# Turned round, so that `__getattr__` finds the module of a name at once.
_PUBLIC = {
    name: f"anisoscope.{module}" for module, names in _MODULES.items() for name in names
}
"""Every public name, and the module it is in."""
_PAPERS = ("train", "reproduce")
"""Names of anisoscope_papers that once were here."""
__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    # Asked for before the other names, since the answer says where they are now.
    if name in _PAPERS:
        raise AttributeError(
            f"{name!r} is in another package: pip install anisoscope-papers, anisoscope_papers.{name}"
        )
    if name not in _PUBLIC:
        raise AttributeError(
            f"module 'anisoscope' has no attribute {name!r}; it has {', '.join(_PUBLIC)}"
        )
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """This package, whose public names stay what they are: importing a sub-package of the same name (`capture`) binds
    that sub-package here, as Python does with every sub-package, unless this refuses it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        # A sub-package would replace the function of its name: `anisoscope.capture(…)`.
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> Any:
        """Pickle the package by its name, as cloudpickle does with modules proper: Ray and Dask send functions so."""
        return import_module, (self.__name__,)


# Special methods are looked up in the class, so the module gets a class of its own.
sys.modules[__name__].__class__ = _Package
