"""The one judge: by p and by place, how tests are put together, identities, and what is said of it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from anisoscope.studies.judge import (
    LEVEL,
    Test,
    by_place,
    judged,
    of_replicates,
    of_seeds,
    of_units,
    sided,
    stated,
)
from anisoscope.studies.study import SHARE, SIGNED, Claim

CLAIM = Claim("claim", "Any claim", "")
SURE, CONTRARY, OPEN = {"up": 1e-9, "down": 1.0}, {"up": 1.0, "down": 1e-9}, {"up": 0.5, "down": 0.5}


def outcome(*kinds, over):
    tests = [Test(CLAIM, "A", i, i - 1, i + 1, 9, **kind, over=over, where=f"{i}") for i, kind in enumerate(kinds)]
    (verdict,) = judged(tests)
    return verdict.outcome


@pytest.mark.parametrize(
    ("over", "expected"),
    [
        ("any", ["holds", "holds", "undecided", "fails"]),
        ("all", ["holds", "undecided", "fails", "fails"]),
        ("most", ["holds", "holds", "undecided", "fails"]),
        ("last", ["holds", "undecided", "fails", "fails"]),
    ],
)
def test_several_tests_make_one_verdict(over, expected):
    cases = ([SURE] * 3, [SURE, SURE, OPEN], [CONTRARY, OPEN, OPEN], [CONTRARY] * 3)
    assert [outcome(*kinds, over=over) for kinds in cases] == expected


def test_the_number_beside_most_is_the_one_it_hangs_on():
    """Four of six layers below .2 held, with the weakest beside it: .25."""
    values = (0.05, 0.25, 0.1, 0.12, 0.3, 0.15)
    tests = [
        Test(CLAIM, "A", x, x - 0.01, x + 0.01, 9, **(SURE if x < 0.2 else CONTRARY), over="most", margin=0.2 - x)
        for x in values
    ]
    (verdict,) = judged(tests)
    assert verdict.outcome == "holds" and verdict.value == 0.15 and verdict.statistic.startswith("middle")


def test_the_last_alone_may_hold_where_none_fails():
    assert outcome(OPEN, SURE, over="last") == "holds" and outcome(CONTRARY, SURE, over="last") == "fails"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(1, 2, "holds"), (0, 3, "holds"), (-1, 1, "undecided"), (4, 5, "fails"), (-2, -1, "fails"), (-1, 4, "undecided")],
)
def test_an_interval_lies_inside_outside_or_neither(low, high, expected):
    assert by_place(low, high, (0, 3)) == expected
    assert by_place(float("nan"), float("nan"), (0, 3)) == "undecided"


def test_what_is_decided_by_place_is_no_part_of_the_family():
    values = np.array([1.0, 1.2, 0.9])
    alone, *_ = judged([of_seeds(CLAIM, values, "x")])
    beside, *_ = judged([of_seeds(CLAIM, values, "x"), *[of_seeds(CLAIM, values, "x", inside=(0, 2))] * 9])
    assert alone.p == beside.p and alone.outcome == "holds"


def test_an_identity_that_holds_is_no_evidence_and_one_that_fails_is_seen():
    known = Claim("known", "2 = 2", "", identity=True)
    assert stated(known, True, "x").outcome == "identity" and stated(known, False, "x").outcome == "fails"
    assert [v.outcome for v in judged([Test(known, "x", 1, 0, 2, 3, **kind) for kind in (SURE, CONTRARY, OPEN)])] == [
        "identity",
        "fails",
        "undecided",
    ]


def test_a_mean_over_seeds_is_decided_by_a_one_sided_t_test():
    from scipy import stats

    values = np.array([0.4, 0.5, 0.7, np.nan])
    (verdict,) = judged([of_seeds(CLAIM, values, "x", 0.1)])
    expected = stats.ttest_1samp(values[:3], 0.1, alternative="greater")
    assert (
        verdict.p == pytest.approx(expected.pvalue) and verdict.n == 3 and "1 of 4 seeds say nothing" in verdict.reason
    )
    assert (verdict.low, verdict.high) == pytest.approx(tuple(stats.ttest_1samp(values[:3], 0).confidence_interval()))
    assert (verdict.outcome == "holds") == (expected.pvalue < LEVEL)


@pytest.mark.parametrize("bounds", [None, SIGNED, SHARE])
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_p_and_the_interval_never_contradict_each_other(bounds, threshold):
    """A correlation of .87 [−.46, 1.00] came out above 0 with p = .007: p was of another scale than the interval."""
    drawn = np.random.default_rng(5).beta(4 * threshold, 4 * (1 - threshold), (300, 3))
    claim = replace(CLAIM, bounds=bounds)
    tests = [of_seeds(claim, values, "x", threshold) for values in drawn]
    assert {t.up < LEVEL for t in tests} == {t.down < LEVEL for t in tests} == {True, False}
    assert all((t.up < LEVEL, t.down < LEVEL) == (t.low > threshold, t.high < threshold) for t in tests)


def test_the_primary_claim_is_corrected_for_no_other():
    main, values = replace(CLAIM, name="main", primary=True), np.array([1.0, 1.2, 0.9])
    alone, *_ = judged([of_seeds(main, values, "x")])
    beside, *others = judged([of_seeds(main, values, "x"), *[of_seeds(CLAIM, values, "x")] * 9])
    assert alone.p == beside.p and all(v.p == pytest.approx(9 * alone.p) for v in others)
    assert others[0].outcome == "undecided" and "corrected" in others[0].reason and not beside.reason


def test_an_effect_below_the_floor_is_none_however_significant():
    """A growth of 5e-7 held."""
    tiny, clear = np.array([5.0e-7, 5.1e-7, 4.9e-7]), np.array([0.50, 0.51, 0.49])
    grows, falls = replace(CLAIM, floor=0.1), replace(CLAIM, below=0.0, floor=0.1)
    assert [judged([of_seeds(c, x)])[0].outcome for c in (CLAIM, grows) for x in (tiny, clear)] == [
        *("holds", "holds"),
        *("fails", "holds"),
    ]
    assert [judged([of_seeds(falls, x)])[0].outcome for x in (-tiny, -clear, clear)] == ["fails", "holds", "fails"]
    assert "> 0 by 0.1" in of_seeds(grows, clear).statistic and "< 0 by 0.1" in of_seeds(falls, clear).statistic


@pytest.mark.parametrize("inside", [None, (0.0, 1.0)])
def test_what_does_not_vary_over_seeds_decides_nothing(inside):
    for value in (0.7, 0.1 + 0.2, 0.0):
        (verdict,) = judged([of_seeds(CLAIM, np.full(4, value), inside=inside)])
        assert verdict.outcome == "undecided" and verdict.low is None and "no variance" in verdict.reason
        (known,) = judged([of_seeds(replace(CLAIM, identity=True), np.full(4, value), threshold=-1, inside=inside)])
        assert known.outcome == "identity"  # it need not vary
    assert np.isnan(sided(0.5, 0.5, 0.5, 3)).all()


def test_nothing_measured_decides_nothing():
    nothing = np.array([np.nan, np.nan])
    for test in (of_seeds(CLAIM, nothing, "x"), of_seeds(CLAIM, nothing, "x", inside=(0, 1)), Test(CLAIM, "x")):
        (verdict,) = judged([test])
        assert verdict.outcome == "undecided" and verdict.value is verdict.p is verdict.low is None
    assert judged([]) == []


def test_two_seeds_decide_nothing_however_near_they_are():
    for n, outcome in ((2, "undecided"), (3, "holds")):
        (verdict,) = judged([of_seeds(CLAIM, 100 + np.arange(n) / 1e3)])
        assert verdict.outcome == outcome, n


def test_p_is_student_s_with_one_degree_less_than_there_are_groups():
    """Beyond the ends of an interval p depends on them; one more passed unseen."""
    frame = pd.DataFrame({"value": 1.0, "low": 0.5, "high": 1.5, "n_units": [5, 12, 500]})
    freedom = np.array([4, 11, 31])
    expected = stats.t.sf(2 * stats.t.ppf(0.975, freedom), freedom)
    up, down = of_units(frame, 0.0)
    np.testing.assert_allclose(up, expected, rtol=1e-12)
    np.testing.assert_allclose(down, 1 - expected, rtol=1e-12)
    theta = np.array([1.0, 0.7, 0.9, 1.1, 1.3])
    value, low, high, up, down = of_replicates(theta)
    t = value / ((value - low) / stats.t.ppf(0.975, 3))
    assert high > value > low and up == pytest.approx(stats.t.sf(t, 3)) and down == pytest.approx(1 - up)


@pytest.mark.parametrize(("over", "shown"), [("any", 0.3), ("all", 0.1)])
def test_beside_any_stands_the_strongest_and_beside_all_the_weakest(over, shown):
    tests = [Test(CLAIM, "A", x, x - 0.01, x + 0.01, 9, **SURE, over=over, margin=x) for x in (0.2, 0.3, 0.1)]
    (verdict,) = judged(tests)
    assert verdict.value == shown


def test_an_identity_that_does_not_vary_is_decided_by_its_side():
    claim = replace(CLAIM, identity=True)
    for value, sides in ((1.0, (0, 1)), (0.0, (1, 1)), (-1.0, (1, 0))):
        test = of_seeds(claim, np.full(3, value))
        assert (test.up, test.down) == sides
