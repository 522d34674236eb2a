"""From records to verdicts: one-sided tests of values against thresholds, Holm-corrected, with the words of the
papers fixed once.

isotropic: upper end of A ≤ q95(d); anisotropic: lower end > q95(d); low < LOW; extreme ≥ EXTREME. Anything between is
undecided.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.jackknife import holm
from anisoscope.studies._study import Outcome

LOW = 0.2
EXTREME = 0.8
LEVEL = 0.025  # one-sided, as an end of a 95 % interval
GROUPS = 32


def p_above(frame: pd.DataFrame, threshold: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """One-sided p that `value` is not above the threshold, from its 95 % jackknife interval (t with groups − 1
    degrees of freedom).
    """
    freedom = np.maximum(np.minimum(frame["n_units"].to_numpy(float), GROUPS) - 1, 1)
    error = (frame["high"] - frame["low"]).to_numpy(float) / 2 / stats.t.ppf(0.975, freedom)
    return np.asarray(stats.t.sf((frame["value"].to_numpy(float) - threshold) / error, freedom), dtype=np.float64)


def outcome_above(p_up: NDArray[np.float64], p_down: NDArray[np.float64], level: float = LEVEL) -> list[Outcome]:
    """`holds` where the value is above, `fails` where it is below, else `undecided`; the p-values already corrected."""
    return [
        "holds" if up < level else "fails" if down < level else "undecided"
        for up, down in zip(p_up, p_down, strict=True)
    ]


def corrected(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's correction over all tests of a figure."""
    return holm(p)


def both_ways(
    frame: pd.DataFrame, threshold: NDArray[np.float64] | float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Corrected one-sided p of above and of below the threshold, over all rows of `frame` as one family."""
    up = p_above(frame, threshold)
    return corrected(up), corrected(1 - up)
