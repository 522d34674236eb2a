"""Two papers on anisotropy and attention, and what they leave open, reproduced claim by claim with Anisoscope.

    >>> import anisoscope_papers
    >>> anisoscope_papers.reproduce("godey2024", "fig17")     # a row for every verdict
    >>> anisoscope_papers.train("masked-lm", steps=200)       # a series of checkpoints to be measured

One folder per paper, one file per figure or table (what is claimed, measured, judged and drawn); the judge and the
runner that they share; the training of small models; networks that transformers lacks. A guest of the tool: it comes in
by entry points and uses public names of `anisoscope` only.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# `as` under the same name makes both public for type checkers.
if TYPE_CHECKING:
    from anisoscope_papers.api import reproduce as reproduce, train as train

__version__ = "0.1.0"
__all__ = ["__version__", "reproduce", "train"]


# The two functions import pandas and others: only when they are asked for (PEP 562).
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(
            f"module 'anisoscope_papers' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(import_module("anisoscope_papers.api"), name)


def __dir__() -> list[str]:
    return __all__
