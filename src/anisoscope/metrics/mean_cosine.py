"""Anisotropy A: the mean cosine over all distinct pairs.

Formula    A = (‖Σu‖² − n) / (n(n − 1)),  u = x/‖x‖; over pairs of different groups: (‖Σ_g U_g‖² − Σ_g‖U_g‖²) /
           ((Σn_g)² − Σn_g²). Dimension j contributes ((Σu_j)² − Σu_j²) / (n(n − 1)); the contributions add up to A.
Range      [−1/(n − 1), 1]. 0: directions cancel out; 1: one direction. An elongated cloud with zero mean also has A =
           0: read `spectrum.cosine_square` too. Of isotropic directions 19 pairs in 20 lie below
           `isotropic_q95`.
Unit       none (a cosine); shares are shares of A.
Undefined  fewer than two vectors; between: fewer than two groups; shares if A = 0.
Source     Godey et al. 2024, section 2 (they sample pairs; ours is exact); contributions: Timkey & van Schijndel
           2021.
"""

import numpy as np

from anisoscope.metrics.base import (
    COSINE,
    Array,
    Metric,
    Values,
    dot,
    leave_diagonal_out,
    ratio,
)
from anisoscope.reads import Vectors
from anisoscope.sums.groups import Totals
from anisoscope.sums.isotropic import q95
from anisoscope.sums.jackknife import Bounds

TOP = (1, 3, 10)


def compute(totals: Totals) -> Values:
    """Return anisotropy A and what carries it, from sums over vectors, by replicate, token policy and head.

    ""              A, the mean cosine of all pairs of vectors
    between         A over pairs from different groups of units only
    contribution    what each dimension adds to A, if squares were summed
    top_share       share of A that the largest contributions make, for each number in `TOP`
    isotropic_q95   the 95 % quantile of the cosine of isotropic directions

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    n = totals["n"]
    unit = totals["unit"]
    pairs = n * (n - 1)
    # ‖Σu‖² is the sum over all pairs, those of a vector with itself included: n of them, each 1.
    anisotropy = ratio(dot(unit, unit) - n, pairs)
    values = {"": anisotropy, "between": _compute_between(totals, n, unit)}
    if "unit_square" in totals:
        # Σ over pairs of u_j·v_j = (Σu_j)² − Σu_j²: dimension by dimension the same
        # formula as above.
        contribution = ratio(unit**2 - totals["unit_square"], pairs[..., None])
        largest = np.sort(contribution, axis=-1)[..., ::-1]
        top = np.stack([largest[..., :k].sum(-1) for k in TOP], -1)
        values["contribution"] = contribution
        values["top_share"] = ratio(top, anisotropy[..., None])
    # On a line every cosine is ±1, and has no such quantile.
    dim = unit.shape[-1]
    quantile = np.nan
    if dim > 1:
        quantile = q95(dim)
    values["isotropic_q95"] = np.full_like(n, quantile)
    return values


def _compute_between(totals: Totals, n: Array, unit: Array) -> Array:
    """Return the mean cosine over pairs of vectors from different groups of units [replicate, policy, head].

    n      number of vectors [replicate, policy, head]
    unit   sum of the unit vectors [replicate, policy, head, dim]
    """
    n_g = totals.groups("n")
    unit_g = totals.groups("unit")
    # ‖ΣU_g‖² has all pairs; Σ‖U_g‖² those inside a group, vectors with themselves
    # included.
    cosines = dot(unit, unit) - totals.over(dot(unit_g, unit_g))
    pairs = n**2 - totals.over(n_g**2)
    return ratio(cosines, pairs)


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the anisotropy A slowly, for tests: over all pairs of vectors; for `between`, every unit is a group of
    its own.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x = np.concatenate(units)
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    cosine = u @ u.T
    distinct = leave_diagonal_out(cosine)
    # The unit that each vector is of.
    owner = np.repeat(np.arange(len(units)), [len(x) for x in units])
    between = cosine[owner[:, None] != owner[None, :]]
    return {
        "": float(distinct.mean()) if distinct.size else np.nan,
        "between": float(between.mean()) if between.size else np.nan,
    }


def _bound_anisotropy(totals: Totals) -> Bounds:
    """Return the bounds (low, high) of anisotropy A: the mean cosine of n unit vectors is at least −1/(n − 1)."""
    n = totals["n"][0]
    return -1 / np.maximum(n - 1, 1), 1.0


def _bound_shares(totals: Totals) -> Bounds:
    """Return the bounds of shares of anisotropy A; unbounded if A ≤ 0.

    All negative contributions together are at least −1/(n − 1), so a share is at most 1 + 1/((n − 1)A).
    """
    n = totals["n"][0]
    unit = totals["unit"][0]
    square = np.maximum(dot(unit, unit) - n, 0)  # n(n − 1)A
    is_positive = (square > 0)[..., None]
    low = np.where(is_positive, 0.0, -np.inf)
    high = np.where(is_positive, 1 + ratio(n, square)[..., None], np.inf)
    return low, high


METRIC = Metric(
    name="mean_cosine",
    reads=Vectors(("hidden", "final", "query", "key", "value")),
    needs=frozenset({"n", "unit", "unit_square"}),
    compute=compute,
    reference=reference,
    bounds={
        "": _bound_anisotropy,
        "between": COSINE,
        "contribution": COSINE,
        "top_share": _bound_shares,
    },
    invariant=frozenset({"rotation", "scaling", "order"}),
    components={"top_share": tuple(map(str, TOP))},
    panel="hidden",
)
