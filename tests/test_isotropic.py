"""The laws of cosines under isotropy, against closed forms, expansions, quadrature and sampled vectors."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from scipy import integrate, stats

from anisoscope.errors import UsageError
from anisoscope.sums import isotropic

DIMENSIONS = (2, 3, 4, 5, 16, 768, 8192, 10**5, 10**6)
SAMPLED = (2, 3, 16, 768)
Z = np.linspace(-3.5, 3.5, 36)  # standard deviations
CHANCE = 0.001  # a true law fails a test of sampled vectors with this probability, once: seeds are fixed


def around_zero(d):
    """Cosines within 3.5 standard deviations, where the cdf has a slope that a float can follow back."""
    return np.clip(Z / np.sqrt(d), -0.9, 0.9)


def directions(rng, *shape):
    """Independent vectors (last axis), uniform on the sphere."""
    x = rng.standard_normal(shape, dtype=np.float32)
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float64)


@cache
def many_cosines(d):
    """All cosines between 32 and 32 vectors, 200 times over: pairs inside a block are independent two by two."""
    rng = np.random.default_rng(4)
    return np.ravel(
        [directions(rng, 32, d) @ directions(rng, 32, d).T for _ in range(200)]
    )


def mean_cosine(u):
    """A over all distinct pairs of the vectors in `u[..., n, d]`, by its definition."""
    n = u.shape[-2]
    return (np.square(u.sum(-2)).sum(-1) - n) / (n * (n - 1))


def distinct_pairs(u):
    return (u @ u.T)[np.triu_indices(len(u), 1)]


def moment(k, d):
    """E[Tᵏ] for even k, of t² ~ Beta(1/2, (d−1)/2): 1·3·…·(k−1) / (d(d+2)…(d+k−2))."""
    return np.prod([(i + 1) / (d + i) for i in range(0, k, 2)])


def calibrated_share(cosines, d):
    return np.mean(cosines > isotropic.q95(d))


def scaled_square(cosines, d):
    return d * np.mean(np.square(cosines))


# ---- the law of one pair ---------------------------------------------------------------------------------------------

T = np.linspace(-0.99, 0.99, 23)
CLOSED_FORMS = {
    2: (1 / (np.pi * np.sqrt(1 - T**2)), 1 - np.arccos(T) / np.pi),
    3: (np.full_like(T, 0.5), (1 + T) / 2),
    4: (
        2 / np.pi * np.sqrt(1 - T**2),
        0.5 + (T * np.sqrt(1 - T**2) + np.arcsin(T)) / np.pi,
    ),
    5: (0.75 * (1 - T**2), 0.5 + 0.75 * T - 0.25 * T**3),
}


@pytest.mark.parametrize("d", CLOSED_FORMS)
def test_low_dimensions_have_their_closed_forms(d):
    density, cdf = CLOSED_FORMS[d]
    np.testing.assert_allclose(isotropic.cosine_density(T, d), density, rtol=1e-13)
    np.testing.assert_allclose(
        isotropic.cosine_log_density(T, d), np.log(density), atol=1e-13
    )
    np.testing.assert_allclose(isotropic.cosine_cdf(T, d), cdf, atol=1e-15, rtol=1e-12)
    np.testing.assert_allclose(
        isotropic.cosine_quantile(cdf, d), T, rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("d", [768, 8192, 10**5, 10**6])
def test_high_dimensions_follow_the_normal_law_with_its_first_correction(d):
    """Edgeworth: variance 1/d, excess kurtosis −6/(d+2), no odd term; what is left out is of order d⁻²."""
    correction = (Z**3 - 3 * Z) * stats.norm.pdf(Z) * 6 / (d + 2) / 24
    expected = stats.norm.cdf(Z) + correction
    assert (
        np.abs(correction).max() > 50 / d**2
    )  # the correction is resolved, not just tolerated
    np.testing.assert_allclose(
        isotropic.cosine_cdf(Z / np.sqrt(d), d), expected, rtol=0, atol=2 / d**2 + 1e-15
    )


@pytest.mark.parametrize("d", [8192, 10**5, 10**6])
def test_log_density_keeps_its_digits_in_high_dimensions(d):
    """Stirling at t = 0, ½ ln(d/2π) − 3/(4d) + O(d⁻²); far out it follows (1 − t²)^((d−3)/2) where the density is 0."""
    at_zero = 0.5 * np.log(d / (2 * np.pi)) - 0.75 / d
    assert isotropic.cosine_log_density(0.0, d) == pytest.approx(
        at_zero, abs=1 / d**2 + 5e-12
    )
    t = 1e-4
    near = isotropic.cosine_log_density(t, d) - isotropic.cosine_log_density(0.0, d)
    np.testing.assert_allclose(
        near, -(d - 3) / 2 * (t**2 + t**4 / 2 + t**6 / 3), rtol=0, atol=5e-15
    )
    far = isotropic.cosine_log_density(0.8, d) - isotropic.cosine_log_density(0.0, d)
    assert far == pytest.approx((d - 3) / 2 * np.log(0.36), rel=1e-14)
    assert isotropic.cosine_density(0.8, d) == 0


@pytest.mark.parametrize("d", DIMENSIONS)
def test_density_integrates_to_one_to_the_tails_and_to_the_moments(d):
    """Integrated over the angle, which removes the singular ends of d = 2."""
    end = min(np.pi / 2, 40 / np.sqrt(d))

    def integral(power, low):
        def integrand(x):
            return (
                np.sin(x) ** power * isotropic.cosine_density(np.sin(x), d) * np.cos(x)
            )

        return integrate.quad(
            integrand,
            low,
            end,
            epsabs=0,
            epsrel=1e-11,
            limit=500,
            points=[(low + end) / 8],
        )[0]

    for k in (0, 2, 4, 6):
        np.testing.assert_allclose(2 * integral(k, 0), moment(k, d), rtol=5e-11)
    for t in (0.3 / np.sqrt(d), 1.2 / np.sqrt(d), min(0.9, 8 / np.sqrt(d))):
        np.testing.assert_allclose(
            integral(0, np.arcsin(t)), isotropic.cosine_cdf(-t, d), rtol=5e-11
        )


@pytest.mark.parametrize("d", DIMENSIONS)
def test_quantile_inverts_cdf(d):
    t = around_zero(d)
    scale = 1 / np.sqrt(d)
    np.testing.assert_allclose(
        isotropic.cosine_quantile(isotropic.cosine_cdf(t, d), d),
        t,
        rtol=0,
        atol=1e-10 * scale,
    )
    p = np.concatenate(
        [
            np.geomspace(1e-300 if d > 1000 else 0.02, 0.4, 30),
            np.linspace(0.4, 0.98, 30),
        ]
    )
    np.testing.assert_allclose(
        isotropic.cosine_cdf(isotropic.cosine_quantile(p, d), d), p, rtol=1e-10
    )


@pytest.mark.parametrize("d", DIMENSIONS)
def test_quantile_just_above_one_half_loses_no_digits(d):
    excess = 2.0**-30
    expected = excess / isotropic.cosine_density(0.0, d)
    np.testing.assert_allclose(
        isotropic.cosine_quantile(0.5 + excess, d), expected, rtol=1e-10
    )


def test_survival_near_a_cosine_of_one_loses_no_digits():
    """d = 5: P(T > t) = (1−t)²(2+t)/4, where 1 − t² and t² round very differently."""
    t = 1 - 2.0 ** -np.arange(2, 40)
    np.testing.assert_allclose(
        isotropic.cosine_cdf(-t, 5), (1 - t) ** 2 * (2 + t) / 4, rtol=1e-13
    )
    np.testing.assert_allclose(
        isotropic.cosine_density(t, 5), 0.75 * (1 - t) * (1 + t), rtol=1e-13
    )


@pytest.mark.parametrize("d", DIMENSIONS)
def test_law_is_symmetric(d):
    t = around_zero(d)
    np.testing.assert_array_equal(
        isotropic.cosine_density(t, d), isotropic.cosine_density(-t, d)
    )
    np.testing.assert_allclose(
        isotropic.cosine_cdf(t, d) + isotropic.cosine_cdf(-t, d), 1, rtol=1e-15
    )
    assert isotropic.cosine_quantile(0.25, d) == -isotropic.cosine_quantile(0.75, d)
    assert isotropic.cosine_quantile(0.5, d) == 0


def test_ends_of_the_range_and_beyond_are_decided():
    assert isotropic.cosine_density(1.0, 2) == np.inf
    assert isotropic.cosine_density(-1.0, 3) == pytest.approx(0.5, rel=1e-15)
    assert isotropic.cosine_density(1.0, 4) == 0
    beyond = np.array([-1.5, 1.5])
    for d in DIMENSIONS:
        np.testing.assert_array_equal(isotropic.cosine_density(beyond, d), [0, 0])
        np.testing.assert_array_equal(isotropic.cosine_cdf(beyond, d), [0, 1])
        np.testing.assert_array_equal(
            isotropic.cosine_cdf([-1.0, 0.0, 1.0], d), [0, 0.5, 1]
        )
        np.testing.assert_array_equal(isotropic.cosine_quantile([0.0, 1.0], d), [-1, 1])


def test_q95_is_exact_in_low_and_normal_in_high_dimensions():
    assert isotropic.q95(2) == pytest.approx(np.cos(0.05 * np.pi), rel=1e-14)
    assert isotropic.q95(3) == pytest.approx(0.9, rel=1e-14)
    d = 10.0 ** np.arange(1, 7)
    z = stats.norm.ppf(0.95)
    # Cornish–Fisher: q95·√d = z − (z³ − 3z)/(4(d + 2)) + O(d⁻²)
    expected = z - (z**3 - 3 * z) / (4 * (d + 2))
    assert np.all(np.abs(isotropic.q95(d) * np.sqrt(d) - expected) < 2 / d**2 + 1e-14)


@pytest.mark.parametrize("d", SAMPLED)
def test_two_hundred_thousand_sampled_pairs_follow_the_law(d):
    cosines = many_cosines(d)
    assert cosines.size > 200_000
    assert stats.kstest(cosines, lambda t: isotropic.cosine_cdf(t, d)).pvalue > CHANCE


def test_the_test_of_sampled_pairs_can_fail():
    """The pairs reject the neighbouring dimension: the test above is not satisfied by any bell curve."""
    assert (
        stats.kstest(many_cosines(16), lambda t: isotropic.cosine_cdf(t, 17)).pvalue
        < 1e-6
    )


# ---- the law of a mean over n vectors --------------------------------------------------------------------------------


@pytest.mark.parametrize("d", SAMPLED)
def test_pvalues_of_isotropic_data_are_uniform(d):
    rng = np.random.default_rng(18)
    a = np.array([mean_cosine(directions(rng, 100, d)) for _ in range(1000)])
    pvalues = isotropic.mean_cosine_pvalue(a, d, 100)
    assert stats.kstest(pvalues, "uniform").pvalue > CHANCE
    low, high = isotropic.mean_cosine_quantile([0.05, 0.95], d, 100)
    inside_band = np.mean((low < a) & (a < high))
    assert abs(inside_band - 0.9) < 3 * np.sqrt(0.9 * 0.1 / 1000)


@pytest.mark.parametrize("d", SAMPLED)
def test_pvalue_is_the_rayleigh_test_of_the_mean_direction(d):
    """n = 5, where mistaking n for n − 1 shows: d·n‖ū‖² against the χ² law of scipy.stats."""
    u = directions(np.random.default_rng(2), 200, 5, d)
    rayleigh = d * 5 * np.square(u.mean(-2)).sum(-1)
    np.testing.assert_allclose(
        isotropic.mean_cosine_pvalue(mean_cosine(u), d, 5),
        stats.chi2.sf(rayleigh, d),
        rtol=1e-8,
    )


def test_few_vectors_make_the_test_conservative_as_documented():
    """n = 10: the statistic has the mean d of χ²_d and (n−1)/n of its variance; 4.1–4.7 % are rejected, not 5 %."""
    d, n, draws = 16, 10, 50_000
    a = mean_cosine(directions(np.random.default_rng(6), draws, n, d))
    statistic = d * (1 + (n - 1) * a)
    assert statistic.mean() == pytest.approx(d, abs=4 * np.sqrt(2 * d / draws))
    assert statistic.var() / (2 * d) == pytest.approx((n - 1) / n, rel=0.03)
    rejected = np.mean(isotropic.mean_cosine_pvalue(a, d, n) < 0.05)
    assert 0.038 < rejected < 0.046


@pytest.mark.parametrize("d", DIMENSIONS)
def test_quantile_of_the_mean_inverts_its_pvalue(d):
    p = np.linspace(0.001, 0.999, 31)[:, None]
    n = np.array([2, 10, 1000, 10**6])
    a = isotropic.mean_cosine_quantile(p, d, n)
    assert a.shape == (31, 4)
    np.testing.assert_allclose(
        1 - isotropic.mean_cosine_pvalue(a, d, n),
        np.broadcast_to(p, a.shape),
        rtol=1e-9,
    )
    np.testing.assert_array_equal(
        isotropic.mean_cosine_quantile(0.0, d, n), -1 / (n - 1)
    )


def test_band_is_central_and_about_n_times_narrower_than_one_pair():
    low, high = isotropic.mean_cosine_quantile([0.025, 0.975], 768, 1000)
    assert isotropic.mean_cosine_pvalue(high, 768, 1000) == pytest.approx(
        0.025, rel=1e-10
    )
    assert isotropic.mean_cosine_pvalue(low, 768, 1000) == pytest.approx(
        0.975, rel=1e-10
    )
    assert (high - low) / 2 == pytest.approx(1.96 * np.sqrt(2 / 768) / 1000, rel=0.01)
    assert high < isotropic.q95(768) / 500


def test_pvalue_is_one_at_and_below_the_smallest_possible_mean():
    """Unbiased estimates of A (pairs of different groups only) may fall below −1/(n−1)."""
    np.testing.assert_array_equal(
        isotropic.mean_cosine_pvalue([-1 / 9, -0.2], 16, 10), [1, 1]
    )


# ---- calibrated anisotropy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", SAMPLED)
def test_calibrated_values_are_the_same_under_isotropy_in_every_dimension(d):
    """Tolerances: 4 standard deviations over n(n−1)/2 cosines that are independent two by two."""
    n = 2000
    cosines = distinct_pairs(directions(np.random.default_rng(12), n, d))
    share_sd = np.sqrt(0.05 * 0.95 / cosines.size)
    assert calibrated_share(cosines, d) == pytest.approx(0.05, abs=4 * share_sd)
    assert scaled_square(cosines, d) == pytest.approx(1, abs=4 * 2 / n)


def test_calibrated_values_are_invariant_to_rotation():
    rng = np.random.default_rng(5)
    u = directions(rng, 300, 16) * np.linspace(0.2, 3, 16)
    rotation = stats.ortho_group.rvs(16, random_state=rng)

    def calibrated(x):
        cosines = distinct_pairs(x / np.linalg.norm(x, axis=-1, keepdims=True))
        return [calibrated_share(cosines, 16), scaled_square(cosines, 16)]

    np.testing.assert_allclose(calibrated(u @ rotation), calibrated(u), rtol=1e-13)
    assert np.all(
        np.array(calibrated(u / np.linspace(0.2, 3, 16))) < np.array(calibrated(u))
    )  # a stretch is no rotation


def test_calibrated_values_see_an_elongated_cloud_that_the_mean_cosine_misses():
    x = np.random.default_rng(9).standard_normal((1000, 64)) * np.where(
        np.arange(64) < 1, 8, 1
    )
    cosines = distinct_pairs(x / np.linalg.norm(x, axis=-1, keepdims=True))
    assert abs(np.mean(cosines)) < 0.01
    assert scaled_square(cosines, 64) > 5
    assert calibrated_share(cosines, 64) > 0.2


def test_calibrated_values_reach_their_upper_ends():
    assert calibrated_share(np.ones(10), 768) == 1


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_numbers_give_numbers_and_arrays_broadcast():
    t, d = np.array([[-0.1], [0.0], [np.nan]]), np.array([2, 768])
    for law in (
        isotropic.cosine_density,
        isotropic.cosine_log_density,
        isotropic.cosine_cdf,
    ):
        together = law(t, d)
        assert together.shape == (3, 2)
        assert np.isnan(together[2]).all()
        assert isinstance(law(-0.1, 768), float)
        assert law(-0.1, 768) == together[0, 1]
    laws = (
        isotropic.mean_cosine_pvalue(0.1, 768, 5),
        isotropic.mean_cosine_quantile(0.1, 768, 5),
    )
    for value in (isotropic.q95(768), *laws):
        assert isinstance(value, float)
    assert np.isnan(isotropic.mean_cosine_pvalue(np.nan, 768, 5))


ERRORS = [
    (
        lambda: isotropic.q95(1),
        "expected d to be a whole number ≥ 2; got d = 1. Cure: on a line a cosine is only ±1",
    ),
    (lambda: isotropic.cosine_density(0.0, 1), "whole number ≥ 2; got d = 1"),
    (lambda: isotropic.cosine_cdf(0.0, [768, 2.5]), "got d = 2.5"),
    (
        lambda: isotropic.cosine_quantile(95, 3),
        "expected p to be between 0 and 1; got p = 95. Cure: give a share",
    ),
    (lambda: isotropic.cosine_quantile(np.nan, 3), "got p = nan"),
    (
        lambda: isotropic.mean_cosine_pvalue(0.1, 3, 1),
        "expected n to be a whole number ≥ 2; got n = 1. Cure: a mean",
    ),
    (lambda: isotropic.mean_cosine_pvalue(0.1, 1, 3), "got d = 1"),
    (lambda: isotropic.mean_cosine_quantile(0.5, 3, 2.5), "got n = 2.5"),
]


@pytest.mark.parametrize(("call", "text"), ERRORS)
def test_impossible_arguments_are_refused_with_the_cure(call, text):
    with pytest.raises(UsageError) as refusal:
        call()
    assert text in str(refusal.value)
    assert ". Cure: " in str(refusal.value)


def test_import_loads_neither_torch_nor_scipy_stats():
    heavy = "('torch', 'transformers', 'scipy.stats')"
    code = f"import sys, anisoscope.sums.isotropic; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
