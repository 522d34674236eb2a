"""Where a block's output is as long as its input: whether such an N exists, how many there are, and where they lie.

Two norms are meant by "the norm of the hidden states". The equation of section 4 is about the mean norm of the tokens,
E‖x + b‖ = E‖T(x + b)‖: LayerNorm at the end of a post-norm block pins the right side at √d, so the root is √(d − E‖x‖²)
whatever the weights are. Where the input already has norm √d, chance decides: E‖x + b‖ ≈ √d + (N·x̄·b̂ + N²/2)/√d, so
that there is a root near −2 x̄·b̂ if the mean input points away from the bias, and none otherwise. Figure 6b shows the
norm of the mean, ‖E(x + b)‖ = ‖E T(x + b)‖.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import brentq

from anisoscope.studies.judge import Array

Norms = tuple[Array, Array]
"""(mean token norm, norm of the mean), each [norm, 2]: input and output."""

KINDS = ("token_norm", "mean_norm")
TOLERANCE = 1e-6
"""Norms that differ by less than this share are equal: at N = 0 a normalised input already has the output's norm."""
PRECISION = 1e-4
"""Relative precision of N*, far below its spread over seeds."""


def brackets(norms: Sequence[float], gap: Array, scale: Array) -> list[tuple[float, float]]:
    """Neighbouring N between which `gap` = output − input changes sign; gaps below TOLERANCE · `scale` have no sign."""
    signs = np.where(np.abs(gap) > TOLERANCE * scale, np.sign(gap), 0)
    known = np.flatnonzero(signs)
    return [(norms[i], norms[j]) for i, j in pairwise(known.tolist()) if signs[i] != signs[j]]


def fixed_points(norms: Sequence[float], at_grid: Norms, at: Callable[[float], Norms]) -> list[dict[str, Any]]:
    """Rows of the long table: how many crossings, and of each N* (Brent's method on the block itself) and the norm
    there (component: which one, from 1).
    """
    known = {n: (at_grid[0][i], at_grid[1][i]) for i, n in enumerate(norms)}

    def measured(norm: float, kind: int) -> list[float]:
        if norm not in known:
            token, mean = at(norm)
            known[norm] = token[0], mean[0]
        return list(map(float, known[norm][kind]))

    def gap(norm: float, kind: int) -> float:
        before, after = measured(norm, kind)
        return after - before

    rows: list[dict[str, Any]] = []
    for kind, name in enumerate(KINDS):
        pairs = at_grid[kind]
        between = brackets(norms, pairs[:, 1] - pairs[:, 0], pairs.max(axis=1))
        solved = [float(brentq(gap, a, b, (kind,), xtol=PRECISION * b, rtol=PRECISION)) for a, b in between]
        rows.append({"metric": f"fixed_point.{name}.crossings", "value": len(solved)})
        for which, norm in enumerate(solved, start=1):
            for metric, value in {"": norm, ".norm": measured(norm, kind)[1]}.items():
                rows.append({"metric": f"fixed_point.{name}{metric}", "component": str(which), "value": value})
    return [{"site": "hidden", **row} for row in rows]
