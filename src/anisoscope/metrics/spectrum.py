"""Spectrum of the covariance: how many directions a cloud uses, and how evenly.

Formula    λ: eigenvalues of the centred covariance; p = λ/Σλ; q = √λ/Σ√λ.
           participation_ratio = 1/Σp².
           effective_rank = exp(−Σ q ln q), from the singular values of the centred vectors.
           effective_rank_eigenvalues = exp(−Σ p ln p).
           effective_rank_uncentred: as effective_rank, from Σxxᵀ/n.
           explained k = share of the k largest λ.
           isoscore = ((d − δ²(d − √d))²/d − 1)/(d − 1) with δ = ‖√d·λ/‖λ‖ − 1‖ / √(2(d − √d)), clipped to [0, 1].
           cosine_square = d·E[cos²] over distinct pairs = d(‖Σuuᵀ‖²_F − n)/(n(n − 1)).
Range      ranks [1, d]; isoscore [0, 1]; explained [0, 1]; cosine_square [~0, d]: 1 for isotropic directions. It also
           detects elongated clouds whose A is 0.
Unit       dimensions (ranks); none otherwise. Precision: products are summed in float64. One exception: if a site has
           more than 128 dimensions and more than 4·d vectors, the products of float32 vectors are first summed in
           float32. Then the batch size changes ranks by up to 1e-5 (relative), and other values by 1e-7. The largest
           change was seen after a normalisation that removes one direction.
Undefined  fewer than two vectors; no variance; isoscore at d = 1. If n < d, all ranks are biased low.
Source     effective rank: Roy & Vetterli 2007 (RankMe: uncentred); participation ratio: Gao et al. 2017; IsoScore:
           Rudman et al. 2022.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from anisoscope.metrics.base import (
    SHARE,
    Array,
    Metric,
    Values,
    find_exponent,
    leave_diagonal_out,
    ratio,
)
from anisoscope.reads import Vectors
from anisoscope.sums.groups import Totals
from anisoscope.sums.jackknife import Bounds

EXPLAINED = (1, 2, 3, 5, 10, 20, 50)
RESOLUTION = 1e-6
"""Share of Σ‖x‖² below which a variance may be rounding of float32 products, and counts as none."""


def compute(totals: Totals) -> Values:
    """Return values of the covariance spectrum of vectors, from second moments [replicate, head, …].

    effective_rank              exp of the entropy of the normalised singular values; `…_eigenvalues`: of eigenvalues;
                                `…_uncentred`: without subtracting the mean
    participation_ratio         1 / Σ share², over shares of the eigenvalues
    isoscore                    0 if all variance is in one direction, 1 if it is equal in all
    explained                   [..., k]: share of the variance in the k leading axes, for each k in `EXPLAINED`
    cosine_square               dim · mean square cosine of pairs, if moments of unit vectors were summed

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    n = totals["moment_n"]
    mean = ratio(totals["moment_vector"], n[..., None])
    uncentred = ratio(totals["moment"], n[..., None, None])
    scale = np.trace(uncentred, axis1=-2, axis2=-1)
    # No value depends on the scale, but squares of very small or large eigenvalues
    # would leave the range of float64.
    half = find_exponent(scale) // 2
    scale = np.ldexp(scale, -2 * half)
    eigenvalues, of_uncentred = _compute_eigenvalues(uncentred, mean, scale, half)
    # Less variance than that may be rounding alone.
    vary = np.expand_dims(eigenvalues.sum(-1) > RESOLUTION * scale, -1)
    eigenvalues = np.where(vary, eigenvalues, np.nan)
    d = eigenvalues.shape[-1]
    share = ratio(eigenvalues, eigenvalues.sum(-1, keepdims=True))
    # Eigenvalues ascend: reversed, the first k are the largest. Rounding may carry the
    # sum past 1.
    largest = np.minimum(np.cumsum(share[..., ::-1], -1), 1)
    values = {
        "effective_rank": _compute_entropy_rank(np.sqrt(eigenvalues)),
        "effective_rank_eigenvalues": _compute_entropy_rank(eigenvalues),
        "effective_rank_uncentred": _compute_entropy_rank(np.sqrt(of_uncentred)),
        "participation_ratio": ratio(np.ones_like(n), (share**2).sum(-1)),
        "isoscore": isoscore(eigenvalues),
        "explained": np.stack([largest[..., min(k, d) - 1] for k in EXPLAINED], -1),
    }
    if "unit_moment" in totals:
        # ‖Σuuᵀ‖²_F = Σ over pairs of cos², the n pairs of a vector with itself
        # included.
        square = np.einsum(
            "...ij,...ij->...", totals["unit_moment"], totals["unit_moment"]
        )
        values["cosine_square"] = d * ratio(square - n, n * (n - 1))
    # One vector has second moments but no spread.
    for name, value in values.items():
        count = n.reshape(n.shape + (1,) * (value.ndim - n.ndim))
        values[name] = np.where(count > 1, value, np.nan)
    return values


def _compute_eigenvalues(
    uncentred: Array, mean: Array, scale: Array, exponent: NDArray[np.int32]
) -> tuple[Array, Array]:
    """Return the eigenvalues of covariances, and those of the same second moments without centring, in ascending order.

    uncentred   mean products of pairs of dimensions, E[x xᵀ] [..., dim, dim]
    mean        E[x] [..., dim]
    exponent    power of 2 [...] by which vectors are divided first: the eigenvalues are those of x / 2^exponent
    scale       trace of each matrix [...] after that; values that are rounding errors, compared with it, become 0

    NaN if a matrix is not finite.
    """
    d = mean.shape[-1]
    spectra = np.full((2, *mean.shape), np.nan)
    # One by one: LAPACK's routines below take a single matrix.
    for place in np.ndindex(mean.shape[:-1]):
        if np.isfinite(uncentred[place]).all() and np.isfinite(mean[place]).all():
            spectra[0][place], spectra[1][place] = _decompose_once(
                np.ldexp(uncentred[place], -2 * exponent[place]),
                np.ldexp(mean[place], -exponent[place]),
            )
    # The error of an eigenvalue is about this; square roots of such noise would add up
    # in the ranks.
    rounding = np.finfo(np.float64).eps * d * scale[..., None]
    # A comparison with NaN is false, and NaN stays.
    centred, whole = np.where(spectra <= rounding, 0.0, spectra)
    return centred, whole


def _decompose_once(matrix: Array, mean: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of M − m mᵀ and of M [dim], by one reduction of M to a tridiagonal matrix.

    The reduction takes nearly all of the time. M is first reflected, so that m lies along the first axis, which the
    reduction leaves as it is. So in the basis of the tridiagonal matrix m mᵀ is a single number, its first.
    """
    from scipy.linalg import lapack

    if len(mean) == 1:
        return matrix[0] - mean**2, matrix[0]
    length = np.linalg.norm(mean)
    if length > 0:
        mirror = mean.copy()
        # The sign that adds: with the other one digits would cancel.
        mirror[0] += np.copysign(length, mean[0])
        half = 1 / (mirror @ mirror)
        # H M H with H = I − 2vvᵀ/(vᵀv), as an update of rank two: d² operations, not
        # d³.
        product = 2 * half * (matrix @ mirror)
        product -= half * (mirror @ product) * mirror
        matrix = matrix - np.outer(mirror, product) - np.outer(product, mirror)
    work = int(lapack.dsytrd_lwork(len(mean), lower=1)[0])
    _, diagonal, beside, _, fault = lapack.dsytrd(
        np.asfortranarray(matrix), lower=1, lwork=work
    )
    whole, fault_of_whole = lapack.dsterf(diagonal, beside)
    # m mᵀ in this basis: ‖m‖² at the first place, zeros elsewhere.
    diagonal[0] -= length**2
    centred, fault_of_centred = lapack.dsterf(diagonal, beside)
    if fault or fault_of_whole or fault_of_centred:
        raise np.linalg.LinAlgError("Eigenvalues did not converge")
    return centred, whole


def _compute_entropy_rank(weights: Array) -> Array:
    """Return the effective rank: exp of the entropy of the normalised weights."""
    p = ratio(weights, weights.sum(-1, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(p == 0, 0.0, p * np.log(p))
        return np.asarray(np.exp(-terms.sum(-1)))


def isoscore(eigenvalues: Array) -> Array:
    """Return the IsoScore, given the variances along the principal axes [..., dim]; NaN for one dimension."""
    d = eigenvalues.shape[-1]
    if d == 1:
        return np.full(eigenvalues.shape[:-1], np.nan)
    # The defect δ is 0 if all variances are equal, and 1 if all variance is in one
    # axis.
    normal = np.sqrt(d) * ratio(
        eigenvalues, np.linalg.norm(eigenvalues, axis=-1, keepdims=True)
    )
    defect_square = ((normal - 1) ** 2).sum(-1) / (2 * (d - np.sqrt(d)))
    used = (d - defect_square * (d - np.sqrt(d))) ** 2 / d
    return np.asarray(np.clip((used - 1) / (d - 1), 0, 1))


def reference(units: list[Array]) -> dict[str, float]:
    """Compute ranks and mean square cosine slowly, for tests: from singular values of the vectors and from every pair
    of vectors.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x = np.concatenate(units)
    d = x.shape[1]
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    singular = np.linalg.svd(x - x.mean(0), compute_uv=False)
    raw = np.linalg.svd(x, compute_uv=False)
    p = singular**2 / (singular**2).sum()

    def rank(weights: Array) -> float:
        """Return exp of the entropy of weights that add up to 1."""
        positive = weights[weights > 0]
        return float(np.exp(-np.sum(positive * np.log(positive))))

    return {
        "effective_rank": rank(singular / singular.sum()),
        "effective_rank_eigenvalues": rank(p),
        "effective_rank_uncentred": rank(raw / raw.sum()),
        "participation_ratio": float(1 / np.sum(p**2)),
        "cosine_square": float(d * np.mean(leave_diagonal_out((u @ u.T) ** 2))),
    }


def _bound_by_dim(least: float) -> Callable[[Totals], Bounds]:
    """Return a function that gives the bounds (`least`, number of dimensions) of a value."""
    return lambda totals: (least, float(totals["moment"].shape[-1]))


RANKS = (
    "effective_rank",
    "effective_rank_eigenvalues",
    "effective_rank_uncentred",
    "participation_ratio",
)

METRIC = Metric(
    name="spectrum",
    reads=Vectors(),
    needs=frozenset({"moment", "moment_n", "moment_vector", "unit_moment"}),
    compute=compute,
    reference=reference,
    bounds=dict.fromkeys(RANKS, _bound_by_dim(1.0))
    | {"isoscore": SHARE, "explained": SHARE, "cosine_square": _bound_by_dim(0.0)},
    invariant=frozenset({"rotation", "order"}),
    components={"explained": tuple(map(str, EXPLAINED))},
    panel="spectrum",
)
