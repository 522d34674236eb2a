"""Intervals: closed forms, corrections, and whether they cover what they should on strongly clustered data."""

import numpy as np
import pytest
import torch
from scipy import stats

from anisoscope.metrics import drift, mean_cosine, query_key
from anisoscope.sums import jackknife
from anisoscope.sums.groups import Sums, Totals, sum_vectors

# ---- closed forms ----------------------------------------------------------------------------------------------------


def check_mean_of_groups():
    """The jackknife interval of the mean of equally large groups is Student's t interval of the group means."""
    rng = np.random.default_rng(0)
    for groups in (3, 5, 32):
        x = rng.standard_normal((groups, 6)) + 1
        totals = Totals({"x": x, "n": np.full((groups, 1), 3.0)})
        got = jackknife.jackknife_interval(totals["x"] / totals["n"])
        expected = stats.ttest_1samp(x / 3, 0).confidence_interval(0.95)
        np.testing.assert_allclose(got.value, x.mean(0) / 3, rtol=1e-12)
        np.testing.assert_allclose(got.low, expected.low, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(got.high, expected.high, rtol=1e-9, atol=1e-12)


def test_interval_of_a_mean_is_student_s():
    check_mean_of_groups()


def test_interval_of_a_ratio_is_its_definition():
    rng = np.random.default_rng(1)
    x, n = rng.random(7), rng.integers(1, 9, 7).astype(float)
    totals = Totals({"x": x, "n": n})
    got = jackknife.jackknife_interval(totals["x"] / totals["n"], level=0.9)
    left_out = np.array(
        [np.delete(x, g).sum() / np.delete(n, g).sum() for g in range(7)]
    )
    error = np.sqrt(6 / 7 * ((left_out - left_out.mean()) ** 2).sum())
    assert got.value == pytest.approx(x.sum() / n.sum())
    assert (got.low, got.high) == pytest.approx(
        (
            got.value - stats.t.ppf(0.95, 6) * error,
            got.value + stats.t.ppf(0.95, 6) * error,
        )
    )


@pytest.mark.parametrize("replicates", [[1.0], [1.0, 2.0], [1.0, 2.0, 3.0]])
def test_fewer_than_three_groups_have_no_interval_and_a_reason(replicates):
    """Student's t of two groups (12.7) gave intervals as wide as all that is possible."""
    got = jackknife.jackknife_interval(replicates)
    assert got.value == 1 and np.isnan(got.low) and np.isnan(got.high)
    groups = len(replicates) - 1
    plural = "s" * (groups != 1)
    assert (
        jackknife.explain_no_interval(groups)
        == f"no intervals: {groups} group{plural} of units, 3 needed"
    )
    assert (
        jackknife.explain_no_interval(3) is None
        and jackknife.explain_no_interval(32) is None
    )


def test_an_undefined_replicate_undoes_the_interval_and_no_other():
    got = jackknife.jackknife_interval([[1.0, 1], [2, 2], [np.nan, 3], [3, 2]])
    assert np.isnan(got.low).tolist() == [True, False] and got.value.tolist() == [1, 1]


def test_groups_that_agree_have_an_interval_of_no_width():
    assert jackknife.jackknife_interval(np.ones((6, 2))).low.tolist() == [1, 1]


def test_over_seeds_is_student_s_and_one_seed_has_no_interval():
    x = np.random.default_rng(2).standard_normal((4, 3))
    got, expected = (
        jackknife.estimate_over_seeds(x),
        stats.ttest_1samp(x, 0).confidence_interval(0.95),
    )
    np.testing.assert_allclose(
        [got.value, got.low, got.high], [x.mean(0), expected.low, expected.high]
    )
    assert np.isnan(jackknife.estimate_over_seeds(x[:1]).low).all()


# ---- bounded values --------------------------------------------------------------------------------------------------

BOUNDED = {
    "cosine": (-1.0, 1.0),
    "share": (0.0, 1.0),
    "rank": (1.0, 384.0),
    "norm": (0.0, np.inf),
}


def replicates_of(value, spread, bounds, groups=8, seed=0):
    """Replicates around a value, cut at its bounds as a real value would be."""
    noise = np.random.default_rng(seed).standard_normal(groups) * spread
    return np.clip(np.r_[value, value + noise - noise.mean()], *bounds)


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("place", [0, 1e-9, 1e-3, 0.02, 0.3, 0.5, 0.9, 0.999, 1])
@pytest.mark.parametrize("spread", [1e-12, 1e-3, 0.05, 0.3])
def test_an_interval_stays_where_its_value_can_be(name, place, spread):
    """Student's intervals left it: AUC [−.85, 1.85], cosine [−1.90, 1.02]. On a bound the interval has a width as soon
    as groups differ.
    """
    least, most = BOUNDED[name]
    width = most - least if np.isfinite(most) else 1.0
    theta = replicates_of(least + place * width, spread * width, (least, most))
    got = jackknife.jackknife_interval(theta, bounds=(least, most))
    assert least <= got.low <= got.value <= got.high <= most
    assert got.high - got.low > 0.1 * spread * width / 8


def test_between_two_bounds_the_interval_is_fisher_s():
    """tanh(artanh r ± t·error/(1 − r²)) for a correlation, the same on the logit of a share."""
    theta = replicates_of(0.7, 0.02, (-1, 1), groups=6)
    plain, got = (
        jackknife.jackknife_interval(theta),
        jackknife.jackknife_interval(theta, bounds=(-1, 1)),
    )
    half = np.arctanh(0.7) + np.array([-1, 1]) * (plain.high - 0.7) / (1 - 0.7**2)
    assert (got.low, got.high) == pytest.approx(np.tanh(half), rel=1e-12)
    share = jackknife.jackknife_interval((theta + 1) / 2, bounds=(0, 1))
    assert (2 * share.low - 1, 2 * share.high - 1) == pytest.approx(
        (got.low, got.high), rel=1e-12
    )


def test_far_from_its_bounds_an_interval_is_student_s():
    """An error of a hundredth of the way to the bound moves the ends by less than 3 % of the half width."""
    for value, bounds in ((0.5, (0, 1)), (0.3, (-1, 1)), (120.0, (1, 384))):
        room = min(value - bounds[0], bounds[1] - value)
        theta = replicates_of(value, room / 100, bounds, groups=32)
        plain, got = (
            jackknife.jackknife_interval(theta),
            jackknife.jackknife_interval(theta, bounds=bounds),
        )
        half = plain.high - value
        assert (
            0.97 < (got.high - value) / half < 1.03
            and 0.97 < (value - got.low) / half < 1.03
        )


def test_bounds_differ_from_value_to_value():
    """One array of values may have bounds of its own for each, and some of them none."""
    theta = np.stack([replicates_of(v, 0.2, (-9, 9)) for v in (0.9, 0.9, 0.9)], 1)
    least, most = np.array([0.0, -np.inf, -1.0]), np.array([1.0, np.inf, np.inf])
    got = jackknife.jackknife_interval(theta, bounds=(least, most))
    plain = jackknife.jackknife_interval(theta)
    assert got.high[0] < 1 and got.low[0] > 0
    assert (got.low[1:], got.high[1:]) == (
        pytest.approx(plain.low[1:]),
        pytest.approx(plain.high[1:]),
    )


def test_groups_that_agree_about_a_share_of_things_have_wilson_s_interval():
    """Twelve of twelve nearest: [1, 1] would say that a thirteenth is certain."""
    agreeing = jackknife.jackknife_interval(np.ones(13), bounds=(0, 1), counted=12)
    assert (agreeing.low, agreeing.high) == (pytest.approx(12 / (12 + 1.959964**2)), 1)
    assert jackknife.jackknife_interval(np.ones(13), bounds=(0, 1)).low == 1
    theta = replicates_of(0.8, 0.05, (0, 1))
    assert jackknife.jackknife_interval(
        theta, bounds=(0, 1), counted=12
    ) == jackknife.jackknife_interval(theta, bounds=(0, 1))


@pytest.mark.parametrize("right, n", [(0, 7), (1, 7), (5, 9), (40, 40), (611, 1000)])
def test_wilson_is_scipy_s(right, n):
    expected = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert jackknife.wilson_interval(right / n, n) == (
        pytest.approx(expected.low),
        pytest.approx(expected.high),
    )


def test_over_seeds_of_correlations_stays_in_their_range():
    """Spearman's 1 over seeds had [.73, 1.27]."""
    got = jackknife.estimate_over_seeds([1.0, 1.0, 0.8], bounds=(-1, 1))
    assert -1 < got.low < got.value < got.high <= 1
    assert jackknife.estimate_over_seeds([1.0, 1.0, 0.8]).high > 1
    assert jackknife.estimate_over_seeds([1.0, 1.0], bounds=(-1, 1)) == (1, 1, 1)


def test_holm_is_the_step_down_procedure():
    """A hypothesis is rejected at level a by the adjusted p-value exactly where Holm's steps reject it."""
    assert jackknife.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    rng = np.random.default_rng(3)
    for _ in range(20):
        p = rng.random(6) ** 3
        adjusted = jackknife.holm(p)
        for level in (0.01, 0.05, 0.2):
            rejected, order = set(), np.argsort(p)
            for step, i in enumerate(order):
                if p[i] > level / (6 - step):
                    break
                rejected.add(int(i))
            assert set(np.flatnonzero(adjusted <= level)) == rejected


def test_holm_leaves_out_what_is_not_a_test():
    assert jackknife.holm([0.02, np.nan, 0.03]) == pytest.approx(
        [0.04, np.nan, 0.04], nan_ok=True
    )
    assert jackknife.holm([]).shape == (0,)


# ---- coverage --------------------------------------------------------------------------------------------------------
#
# A corpus is 60 units of 4 to 40 vectors, in 32 groups; a vector is the common drift + its unit's own mean + noise. All
# replications run at once: each is a head. What each value estimates:
#   drift, cos(Q̄, K̄)  functions of E[x], known exactly
#   A_between          ‖E[u]‖², the mean cosine of vectors from different units of the population
#   A                  over the pairs of a corpus of this size, a share w of which lies inside a unit:
#                      (1 − w)·‖E[u]‖² + w·E[cosine inside a unit]. As the corpus grows w → 0 and A → A_between.

UNITS, REPLICATIONS, D, GROUPS = 60, 1500, 12, 32
BETWEEN, NOISE = (
    0.5,
    0.9,
)  # standard deviations of unit means and of vectors, per dimension
DRIFTS = {"strong": np.linspace(0.2, 0.6, D), "weak": np.linspace(-0.1, 0.25, D)}
SIZES = np.random.default_rng(0).integers(4, 41, UNITS)


def corpora(seed, centre, sizes=SIZES, replications=REPLICATIONS):
    """Vectors [unit, replication, token, dim] and which of them are real [unit, token]."""
    g = torch.Generator().manual_seed(seed)
    shape = (len(sizes), replications, int(max(sizes)), len(centre))
    own = BETWEEN * torch.randn((shape[0], shape[1], 1, shape[3]), generator=g)
    x = (
        torch.randn(shape, generator=g)
        .mul_(NOISE)
        .add_(own)
        .add_(torch.tensor(centre, dtype=torch.float32))
    )
    return x, torch.arange(shape[2]) < torch.tensor(sizes)[:, None]


def group_sums(x, real, owner, terms=frozenset({"n", "unit", "vector", "norm"})):
    sums = Sums(max(GROUPS, int(owner.max()) + 1))
    for i in range(len(x)):  # one unit at a time keeps memory small
        sums.add(
            "s",
            sum_vectors(x[i : i + 1], real[i : i + 1, None], None, terms)[0],
            owner[i : i + 1],
        )
    return sums.at("s")


def truth(centre, seed=99, n=60_000):
    """(‖E[u]‖², E[cosine inside a unit]) of the population, from 60,000 units of two vectors."""
    x, _ = corpora(seed, centre, sizes=[2], replications=n)
    u = torch.nn.functional.normalize(x[0].double(), dim=-1)
    mean, inside = u.mean((0, 1)), (u[:, 0] * u[:, 1]).sum(-1).mean()
    single = u.flatten(
        0, 1
    )  # 2n vectors of n units: take the pairs of one vector with itself and its twin out of ‖mean‖²
    return float(((mean @ mean) * len(single) - 1 - inside) / (len(single) - 2)), float(
        inside
    )


def coverage(estimate, true):
    return float(np.mean((estimate.low <= true) & (true <= estimate.high)))


def check_coverage(drift_name="strong", replications=REPLICATIONS):
    """Share of corpora whose interval holds the true value, for A, A_between, drift and cos(Q̄, K̄)."""
    centre = DRIFTS[drift_name]
    x, real = corpora(1, centre, replications=replications)
    owner = torch.arange(UNITS) % GROUPS
    terms = group_sums(x, real, owner)
    totals = Totals(terms)
    a = {
        name: jackknife.jackknife_interval(v)
        for name, v in mean_cosine.compute(totals).items()
        if name in ("", "between")
    }
    length = jackknife.jackknife_interval(drift.compute(totals)[""])
    del x
    other = np.roll(centre, 3)
    y, _ = corpora(2, other, replications=replications)
    keys = group_sums(y, real, owner, frozenset({"n", "vector"}))
    pair = Totals(
        {f"query.{t}": terms[t] for t in ("n", "vector")}
        | {f"key.{t}": v for t, v in keys.items()}
    )
    cosine = jackknife.jackknife_interval(query_key.compute(pair)["cosine"])
    between, inside = truth(centre)
    n = SIZES.sum()
    w = (SIZES * (SIZES - 1)).sum() / (n * (n - 1))
    return {
        "A": coverage(a[""], (1 - w) * between + w * inside),
        "A_between": coverage(a["between"], between),
        "drift": coverage(length, np.linalg.norm(centre)),
        "cosine": coverage(cosine, centre @ other / (centre @ centre)),
    }


def test_intervals_cover_the_population_on_clustered_data():
    found = check_coverage()
    assert all(0.92 <= share <= 0.99 for share in found.values()), found


def test_intervals_of_the_mean_cosine_cover_with_a_weak_drift():
    """Where the drift is a fraction of what separates the units, A and A_between still cover; the drift itself, a
    norm, is biased up.
    """
    found = check_coverage("weak", 400)
    assert all(0.92 <= found[name] <= 0.99 for name in ("A", "A_between")), found


def test_tokens_as_groups_would_not_cover():
    """Why whole units are left out: with vectors dealt into groups as they come, intervals are several times too
    narrow.
    """
    centre = DRIFTS["strong"]
    x, real = corpora(1, centre, replications=100)
    sums = Sums(GROUPS)
    terms = frozenset({"n", "unit", "unit_square"})
    for g in range(GROUPS):
        dealt = real & (
            (torch.arange(UNITS)[:, None] + torch.arange(real.shape[1])) % GROUPS == g
        )
        values, _ = sum_vectors(x, dealt[:, None], None, terms)
        sums.add("s", values, torch.full((UNITS,), g))
    naive = jackknife.jackknife_interval(
        mean_cosine.compute(Totals(sums.at("s")))["between"]
    )
    assert coverage(naive, truth(centre)[0]) < 0.6


def test_the_between_form_is_unbiased_and_the_other_tends_to_it():
    """Twelve units only: A is pulled up by the pairs inside units, A_between is not."""
    centre = DRIFTS["weak"]
    sizes = np.full(12, 20)
    x, real = corpora(5, centre, sizes=sizes, replications=600)
    values = mean_cosine.compute(Totals(group_sums(x, real, torch.arange(12))))
    between, inside = truth(centre)
    error = values["between"][0].std() / np.sqrt(600)
    w = 19 / (240 - 1)
    assert abs(values["between"][0].mean() - between) < 4 * error
    assert abs(values[""][0].mean() - (1 - w) * between - w * inside) < 4 * error
    assert values[""][0].mean() - between > 4 * error


def test_the_ends_of_a_share_hold_it_to_the_last_bit():
    """Of 0 and of 1 the formula gives the share itself, but for rounding."""
    n = np.arange(1, 3000)
    for share in (0.0, 1.0):
        low, high = jackknife.wilson_interval(np.full(len(n), share), n)
        assert (low <= share).all() and (share <= high).all()
    assert (jackknife.wilson_interval(np.ones(len(n)), n)[1] == 1).all()
    assert (jackknife.wilson_interval(np.zeros(len(n)), n)[0] == 0).all()
