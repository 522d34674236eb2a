"""Choose kernels of Triton if they run and have proved themselves; else plain operations of torch.

The first call of each form (type of number, width, mask, soft cap …) is computed both ways. If the kernels fail or
differ by more than rounding, calls of that form go on without them, and one warning says so.
"""

import importlib
import math
import os
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

APART = 1e-4
"""Largest difference between kernels and plain operations, relative to the largest number of a quantity. Sums of some
thousand float32 numbers in another order differ by 1e-6; a key that is left out, by more than this."""
INTERPRETED = "TRITON_INTERPRET"
"""Environment variable of Triton: kernels run on a CPU, slowly, for tests."""
TYPES = (torch.float32, torch.float16, torch.bfloat16)
CHECKED: dict[tuple[object, ...], bool] = {}
"""Whether the kernels may be used for calls of a form, by form."""


@cache
def load_kernels(module: str) -> ModuleType | None:
    """Import a module of kernels; None if Triton is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def has_kernels(x: Tensor, module: str) -> bool:
    """Return whether the kernels of a module run for numbers of this type on this device."""
    interpreted = os.environ.get(INTERPRETED) == "1"
    if x.dtype not in TYPES or x.device.type != ("cpu" if interpreted else "cuda"):
        return False
    return load_kernels(module) is not None


def compute_checked(
    form: tuple[object, ...],
    by_kernel: Callable[[], dict[str, Tensor]],
    by_torch: Callable[[], dict[str, Tensor]],
    *,
    what: str,
    counts: str | None = None,
) -> dict[str, Tensor]:
    """Compute quantities by Triton's kernels, or by plain operations of torch if the kernels give other numbers.

    form       everything that the kernels are compiled for (device, dtype, shape …); the first call with each form
               computes both ways and compares them
    by_kernel  computes the quantities by the kernels: {name: tensor}
    by_torch   computes them by plain operations
    what       what the quantities are called in the warning
    counts     name of a quantity that counts. Where it is 0, others of the same shape are undefined and not compared
    """
    key = (what, *form)
    if key not in CHECKED:
        # The plain result is given back, as it is at hand and is right in either case.
        expected = by_torch()
        CHECKED[key] = _is_right(by_kernel, expected, what, counts)
        return expected
    return by_kernel() if CHECKED[key] else by_torch()


def _is_right(
    by_kernel: Callable[[], dict[str, Tensor]],
    expected: Mapping[str, Tensor],
    what: str,
    counts: str | None,
) -> bool:
    """Return whether the kernels run and give the expected quantities; warn if not.

    by_kernel   computes the quantities with the kernels
    expected    {name: quantity}, as plain operations give them
    what        name of the quantities, for the warning
    counts      name of the quantity that is 0 at entries without a value; None: there are none
    """
    counted = None if counts is None else expected[counts]
    try:
        found = by_kernel()
        apart = {
            name: compute_difference(found[name], expected[name], counted)
            for name in expected
        }
    except Exception as error:  # of a compiler or driver: plain operations need neither
        _warn(what, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        return False
    wrong = [
        f"{name} by {value:.1e}" for name, value in apart.items() if not value <= APART
    ]
    if wrong:
        _warn(
            what,
            f"they differ from plain operations in {', '.join(wrong)} of the largest value",
        )
    return not wrong


def _warn(what: str, why: str) -> None:
    """Warn that the kernels are not used for `what`; `why` is the reason."""
    text = f"{what} are computed by plain operations, not by kernels of Triton, which is slower: {why}"
    warnings.warn(text, RuntimeWarning, stacklevel=5)


def compute_difference(
    found: Tensor, expected: Tensor, counts: Tensor | None = None
) -> float:
    """Return the largest difference between a computed tensor and the expected one, divided by the largest |expected|.

    It is ∞ if finite numbers are not at the same places in both.

    found    the computed tensor
    counts   a tensor of the same shape; entries at which it is 0 are undefined (such as rows of attention that see no
             key) and not compared. None: all are compared
    """
    found, expected = found.double(), expected.double()
    if counts is not None and expected.shape == counts.shape:
        found, expected = found[counts > 0], expected[counts > 0]
    defined = expected.isfinite()
    # NaN and ∞ at other places are a wrong answer, though no difference of numbers
    # would show it.
    if not torch.equal(defined, found.isfinite()):
        return math.inf
    found, expected = found[defined], expected[defined]
    if not len(expected):
        return 0.0
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
