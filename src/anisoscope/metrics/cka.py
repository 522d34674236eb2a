"""Debiased centred kernel alignment (CKA): how similarly two layers represent the same tokens.

Formula    H(K, L)/√(H(K, K)·H(L, L)) with K = XXᵀ, L = YYᵀ of the n tokens in the two layers, with zeros on the
           diagonal. H(K, L) = [ΣKL + ΣK·ΣL/((n − 1)(n − 2)) − 2 Σ(K1)(L1)/(n − 2)]/(n(n − 3)) is the unbiased estimate
           of their common variance (HSIC).
Range      [−1, 1]. 1: the two clouds are equal up to a rotation, a shift and a scale; 0: nothing in common. (CKA
           without debiasing is near 1 if there are few tokens in many dimensions, whatever the layers are.)
Unit       none (a correlation).
Undefined  fewer than four tokens; a layer whose estimated variance is 0 or negative.
Source     Kornblith et al. 2019; the unbiased HSIC: Song et al. 2012, eq. 4; in CKA: Nguyen et al. 2021, eq. 3. Tokens
           of one unit are not independent, so the interval leaves out groups of whole units.
"""

from typing import NamedTuple

import numpy as np

from anisoscope.metrics.base import (
    COSINE,
    Array,
    Metric,
    Values,
    concatenate_pairs,
    ratio,
)
from anisoscope.reads import LayerPair
from anisoscope.reads.pairs import SampledPair
from anisoscope.reads.sample import SampledVectors, leave_out_groups

MOST = 1024
"""Tokens that are compared, of those in the sample: products of all pairs of them are held for every layer."""


class Gram(NamedTuple):
    """Scalar products of the tokens of one layer, zero on the diagonal.

    products  [token, token]
    by_group  [token, group]: Σ over the tokens of each group
    total     [replicate]: Σ over all pairs
    variance  [replicate]: H(K, K)
    """

    products: Array
    by_group: Array
    total: Array
    variance: Array


def compute(pair: SampledPair) -> Values:
    """Return the debiased CKA of two layers [replicate].

    Replicate 0 is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    x = pair.first.get_cached(make_gram)
    y = pair.second.get_cached(make_gram)
    shared = _compute_hsic(pair.first, x, y)
    # An unbiased estimate of a variance can be negative.
    both_vary = (x.variance > 0) & (y.variance > 0)
    size = np.where(both_vary, x.variance * y.variance, np.nan)
    return {"": shared / np.sqrt(size)}


def make_gram(sample: SampledVectors) -> Gram:
    """Return the scalar products of all pairs of sampled vectors of a layer, and the sums of them that CKA uses.

    Vectors are shifted and scaled first, which avoids loss of digits and does not change CKA.
    """
    centred = sample.vectors - sample.vectors.mean(0)
    scale = np.sqrt(np.square(centred).mean())
    if scale > 0:
        centred = centred / scale
    products = centred @ centred.T
    np.fill_diagonal(products, 0.0)
    # Kept with the products, as every pair of layers needs them.
    by_group = products @ sample.member
    total = leave_out_groups(sample.member.T @ by_group)
    without_variance = Gram(products, by_group, total, np.zeros(0))
    return without_variance._replace(
        variance=_compute_hsic(sample, without_variance, without_variance)
    )


def _compute_hsic(sample: SampledVectors, x: Gram, y: Gram) -> Array:
    """Return the unbiased HSIC (how far two layers' scalar products vary together) [replicate].

    sample   the sampled tokens, for their groups of units
    x, y     the scalar products of each layer's vectors
    """
    member = sample.member
    # Tokens that each replicate has: all, then those outside each group [replicate].
    n = len(sample) - np.concatenate([[0.0], member.sum(0)])
    products = leave_out_groups(member.T @ (x.products * y.products) @ member)
    # Σ(K1)(L1) without a group: rows K1 lose the columns of that group, and the group's
    # own rows go.
    x_rows = x.by_group.sum(1)
    y_rows = y.by_group.sum(1)
    # A row without a group, times the same of the other layer; the rows of the group itself are left out too.
    without = (x_rows[:, None] - x.by_group) * (y_rows[:, None] - y.by_group)
    rows = np.concatenate([[x_rows @ y_rows], (without * (1 - member)).sum(0)])
    # The estimate divides by n(n − 3).
    enough = np.where(n > 3, n, np.nan)
    whole = (
        products
        + x.total * y.total / ((enough - 1) * (enough - 2))
        - 2 * rows / (enough - 2)
    )
    return ratio(whole, enough * (enough - 3))


def reference(units: list[tuple[Array, Array]]) -> dict[str, float]:
    """Compute CKA in another way, for tests: as the cosine of U-centred products (Székely & Rizzo 2014).

    units   (vectors in one layer, the same tokens in another) of each unit, [token, dim] each

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    first, second = concatenate_pairs(units)
    x = _u_centre(first)
    y = _u_centre(second)
    return {"": float((x * y).sum() / np.sqrt((x * x).sum() * (y * y).sum()))}


def _u_centre(x: Array) -> Array:
    """Return the scalar products of all pairs of vectors [vector, vector], U-centred: each row sums to 0.

    The diagonal is left out of all sums and is 0 in the result.

    x   vectors [vector, dim]
    """
    n = len(x)
    k = x @ x.T
    np.fill_diagonal(k, 0.0)
    rows = k.sum(1)
    u = (
        k
        - rows[:, None] / (n - 2)
        - rows[None] / (n - 2)
        + k.sum() / ((n - 1) * (n - 2))
    )
    np.fill_diagonal(u, 0.0)
    return np.asarray(u)


METRIC = Metric(
    name="cka",
    reads=LayerPair(MOST),
    compute=compute,
    reference=reference,
    bounds={"": COSINE},
    invariant=frozenset({"rotation", "translation", "order"}),
)
