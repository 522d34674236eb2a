"""What a cosine means in dimension d: the laws of cosines when directions are isotropic.

Isotropic: vectors drawn independently, their directions uniform on the sphere of R^d; norms do not matter.

`cosine_*`, `q95`
    Law of the cosine t of **one pair**: (1 + t)/2 ~ Beta((d−1)/2, (d−1)/2). Exact for every d ≥ 2.
`mean_cosine_*`
    Law of A, the **mean** cosine over all distinct pairs of n vectors: d(1 + (n−1)A) ~ χ²_d, for large n.
    It is about n times narrower than the law of one pair (standard deviations √(2/d)/n and 1/√d).

Every function takes numbers or arrays and broadcasts them. A cosine that is NaN gives NaN; a d or n that is not a whole
number ≥ 2 (NaN included) is an error.

The pair law is computed through t² ~ Beta(1/2, (d−1)/2). For large d every t sits near 0, where (1 + t)/2 rounds
its digits away and t² does not.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from anisoscope.errors import UsageError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Values = Any
"""float64: a number if every argument is a number, else an array (numpy has no type for "as the arguments")."""


def _to_floats(values: ArrayLike) -> Floats:
    """Convert values to a float64 array."""
    return np.asarray(values, dtype=np.float64)


def _check(name: str, values: Floats, valid: Mask, expected: str, cure: str) -> Floats:
    """Return the values unchanged; UsageError if `valid` is false for any of them.

    name       the argument's name, for the error
    expected   what the values are to be, in words; `cure`: what to do
    """
    if not valid.all():
        first = values[~valid].flat[0]
        raise UsageError(f"{name} to be {expected}", f"{name} = {first:.12g}", cure)
    return values


def _check_whole(name: str, given: ArrayLike, cure: str) -> Floats:
    """Convert an argument to floats; UsageError if any is not a whole number ≥ 2.

    name    the argument's name, for the error
    given   its value
    cure    what to do, for the error
    """
    values = _to_floats(given)
    valid = np.isfinite(values) & (values == np.floor(values)) & (values >= 2)
    return _check(name, values, valid, "a whole number ≥ 2", cure)


def _check_dimension(d: ArrayLike) -> Floats:
    """Return a number of dimensions as floats; UsageError if it is not a whole number ≥ 2."""
    return _check_whole(
        "d", d, "on a line a cosine is only ±1: use vectors of two components or more"
    )


def _check_count(n: ArrayLike) -> Floats:
    """Return a number of vectors as floats; UsageError if it is not a whole number ≥ 2."""
    return _check_whole(
        "n", n, "a mean over distinct pairs takes two non-zero vectors or more"
    )


def _check_probability(name: str, p: ArrayLike) -> Floats:
    """Convert an argument to floats; UsageError, with its `name`, if any is not in [0, 1]."""
    values = _to_floats(p)
    valid = (values >= 0) & (values <= 1)
    return _check(
        name,
        values,
        valid,
        "between 0 and 1",
        "give a share such as 0.95, not a percentage",
    )


def cosine_density(t: ArrayLike, d: ArrayLike) -> Values:
    """Return the density of the cosine of two isotropic directions in R^d: Γ(d/2)/(√π Γ((d−1)/2)) · (1 − t²)^((d−3)/2).

    Range: ≥ 0, and 0 outside [−1, 1]; at t = ±1 infinite for d = 2, 1/2 for d = 3, 0 above. Unit: per unit of cosine.
    d = 2 is the arcsine law, d = 3 is uniform, large d approaches N(0, 1/d).
    Undefined (error) for d < 2. Source: Godey et al. 2024, appendix B and figure 17.
    """
    return np.exp(cosine_log_density(t, d))


def cosine_log_density(t: ArrayLike, d: ArrayLike) -> Values:
    """Return the natural logarithm of `cosine_density`, accurate even if the density itself underflows; −∞ if it is 0.

    Range: −∞ to +∞. Unit: nats. Undefined (error) for d < 2. Source: as `cosine_density`.
    """
    t = _to_floats(t)
    d = _check_dimension(d)
    power = (d - 3) / 2
    square = t * t
    # 1 − t², without its rounding near t = ±1.
    complement = (1 - np.abs(t)) * (1 + np.abs(t))
    # log(1 − t²) from whichever of t² and 1 − t² is small, and so carries all digits.
    log_shape = np.where(
        square < 0.5, special.xlog1py(power, -square), special.xlogy(power, complement)
    )
    # log Γ(d/2) − log Γ((d−1)/2) as a difference of two large logarithms would lose 1e-10 at d = 10⁶: poch does not.
    log_scale = np.log(special.poch((d - 1) / 2, 0.5)) - 0.5 * np.log(np.pi)
    log_density = np.where(np.abs(t) > 1, -np.inf, log_scale + log_shape)
    return log_density[()]


def cosine_cdf(t: ArrayLike, d: ArrayLike) -> Values:
    """Return P(T ≤ t) for the cosine T of two isotropic directions in R^d: I_{(1+t)/2}((d−1)/2, (d−1)/2).

    Range: 0 (t ≤ −1) to 1 (t ≥ 1), 1/2 at t = 0. Unit: probability. Undefined (error) for d < 2.
    The lower tail keeps its relative precision however small it is; for the upper one use `cosine_cdf(−t, d)`.
    Source: the integral of Godey et al. 2024, appendix B, by way of t² ~ Beta(1/2, (d−1)/2).
    """
    t = np.clip(_to_floats(t), -1, 1)
    b = (_check_dimension(d) - 1) / 2
    square = t * t
    # 1 − t², without its rounding near t = ±1.
    complement = (1 - np.abs(t)) * (1 + np.abs(t))
    # Either form of P(T² ≥ t²) is exact where its argument is not rounded: t² near 0, 1 − t² near 1.
    both_tails = np.where(
        square < 0.5,
        special.betaincc(0.5, b, square),
        special.betainc(b, 0.5, complement),
    )
    probability = np.where(t < 0, both_tails / 2, 1 - both_tails / 2)
    return probability[()]


def cosine_quantile(p: ArrayLike, d: ArrayLike) -> Values:
    """Return the cosine that isotropic pairs in R^d stay below with probability p: the inverse of `cosine_cdf`.

    Range: −1 (p = 0) to 1 (p = 1), 0 at p = 1/2. Unit: cosine. Undefined (error) for d < 2 or p outside [0, 1].
    Near p = 1 the float p itself has few digits: with the upper tail q = 1 − p known, use −cosine_quantile(q, d).
    Source: the inverse of Godey et al. 2024, appendix B.
    """
    p = _check_probability("p", p)
    b = (_check_dimension(d) - 1) / 2
    # The law is symmetric about 0: find |t| from both tails together, then give it the
    # sign.
    both_tails = 2 * np.minimum(p, 1 - p)
    square = special.betainccinv(0.5, b, both_tails)
    return (np.sign(p - 0.5) * np.sqrt(square))[()]


def q95(d: ArrayLike) -> Values:
    """Return the 95 % quantile of the cosine of one isotropic pair in R^d, ≈ 1.645/√d.

    Range: .988 at d = 2, .9 at d = 3, .0594 at d = 768, toward 0. Unit: cosine. Undefined (error) for d < 2.
    It is the threshold of the verdict *anisotropic* for A, though A is a **mean** over pairs: beyond a few vectors
    the A of isotropic data stays far below it (`mean_cosine_quantile`). Drawn in Godey et al. 2024, figure 18.
    """
    return cosine_quantile(0.95, d)


def mean_cosine_pvalue(a: ArrayLike, d: ArrayLike, n: ArrayLike) -> Values:
    """Return P(mean cosine ≥ a) for n isotropic vectors of R^d: the upper tail of χ²_d at d(1 + (n−1)a), the Rayleigh
    test.

    Since 1 + (n−1)A = n‖ū‖², this asks whether the mean unit vector ū is too long for chance. Range 0 to 1: uniform
    under isotropy, small when anisotropic, 1 at the smallest possible A = −1/(n−1) and below. Unit: probability.
    The law is exact only in the limit n → ∞. At finite n the statistic has exactly the mean d of χ²_d, but (n−1)/n of
    its variance, so the test is conservative: at level 5 % it rejects 4.1–4.7 % of isotropic samples for n = 10,
    4.7–5 % from n = 30 (simulated, d = 2 … 768). For n = 2, A is one cosine and `cosine_cdf` is exact.
    It supposes **independent** vectors. Tokens of one text are not; and with 10⁵ of them any model is "significant":
    read A and its interval first.
    Undefined (error) for d < 2 or n < 2. Source: Mardia & Jupp 2000, *Directional Statistics*, section 10.4 (Rayleigh).
    """
    d = _check_dimension(d)
    n = _check_count(n)
    statistic = d * (1 + (n - 1) * _to_floats(a))
    # A below −1/(n−1) cannot come from data; it gets the p-value of that end, 1.
    return special.gammaincc(d / 2, np.maximum(statistic, 0) / 2)


def mean_cosine_quantile(p: ArrayLike, d: ArrayLike, n: ArrayLike) -> Values:
    """Return the value that A of n isotropic vectors in R^d stays below with probability p: (χ²_d(p)/d − 1)/(n − 1).

    Range: from −1/(n−1) at p = 0, through about 0, to +∞ at p = 1 (the χ² law ignores A ≤ 1). Unit: cosine.
    Asymptotic in n like `mean_cosine_pvalue`, of which it is the inverse: mean_cosine_pvalue(value, d, n) = 1 − p.
    Undefined (error) for d < 2, n < 2 or p outside [0, 1]. Source: as `mean_cosine_pvalue`.
    """
    p = _check_probability("p", p)
    d = _check_dimension(d)
    n = _check_count(n)
    chi_square = 2 * special.gammaincinv(d / 2, p)
    return (chi_square / d - 1) / (n - 1)
