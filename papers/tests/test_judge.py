"""The one judge: by p and by place, how tests are put together, identities, and what is said of it."""

import ast
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import anisoscope_papers
from anisoscope.sums.jackknife import estimate_over_seeds
from anisoscope_papers.judge import (
    LEVEL,
    Test,
    _correct_p,
    _decide,
    _find_decisive,
    average_over_seeds,
    compute_equivalence_p,
    compute_p_of_replicates,
    compute_p_of_units,
    compute_sided_p,
    judge_by_place,
    judge_tests,
    look_up_bounds,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.study import SHARE, SIGNED, Claim

CLAIM = Claim("claim", "Any claim", "")
SURE, CONTRARY, OPEN = (
    {"up": 1e-9, "down": 1.0},
    {"up": 1.0, "down": 1e-9},
    {"up": 0.5, "down": 0.5},
)


def outcome(*kinds, over):
    tests = [
        Test(CLAIM, "A", i, i - 1, i + 1, 9, **kind, over=over, where=f"{i}")
        for i, kind in enumerate(kinds)
    ]
    (verdict,) = judge_tests(tests)
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
        Test(
            CLAIM,
            "A",
            x,
            x - 0.01,
            x + 0.01,
            9,
            **(SURE if x < 0.2 else CONTRARY),
            over="most",
            margin=0.2 - x,
        )
        for x in values
    ]
    (verdict,) = judge_tests(tests)
    assert (
        verdict.outcome == "holds"
        and verdict.value == 0.15
        and verdict.statistic.startswith("middle")
    )


def test_the_last_alone_may_hold_where_none_fails():
    assert (
        outcome(OPEN, SURE, over="last") == "holds"
        and outcome(CONTRARY, SURE, over="last") == "fails"
    )


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (1, 2, "holds"),
        (0, 3, "holds"),
        (-1, 1, "undecided"),
        (4, 5, "fails"),
        (-2, -1, "fails"),
        (-1, 4, "undecided"),
    ],
)
def test_an_interval_lies_inside_outside_or_neither(low, high, expected):
    assert judge_by_place(low, high, (0, 3)) == expected
    assert judge_by_place(float("nan"), float("nan"), (0, 3)) == "undecided"


def test_what_is_decided_by_place_is_no_part_of_the_family():
    values = np.array([1.0, 1.2, 0.9])
    alone, *_ = judge_tests([make_test_of_seeds(CLAIM, values, "x")])
    placed = Test(CLAIM, "x", 1.0, 0.5, 1.5, 9, inside=(0, 2))
    beside, *others = judge_tests(
        [make_test_of_seeds(CLAIM, values, "x"), *[placed] * 9]
    )
    assert alone.p == beside.p and alone.outcome == "holds"
    assert {v.outcome for v in others} == {"holds"}


@pytest.mark.parametrize(
    ("shift", "alone", "among_nine"),
    [
        (0.0, "holds", "undecided"),
        (2.0, "fails", "undecided"),
        (0.9, *["undecided"] * 2),
    ],
)
def test_equivalences_are_corrected_for_each_other(shift, alone, among_nine):
    """One equivalence of nine was said to hold by an interval that nine chances had made."""
    values = shift + np.array([-0.5, 0.3, 0.6, -0.4])
    test = make_test_of_seeds(CLAIM, values, "x", inside=(-1.0, 1.0))
    assert [v.outcome for v in judge_tests([test])] == [alone]
    assert {v.outcome for v in judge_tests([test] * 9)} == {among_nine}
    clear = make_test_of_seeds(CLAIM, values, "x", inside=(-9.0, 9.0))
    assert {v.outcome for v in judge_tests([clear] * 9)} == {"holds"}


@pytest.mark.parametrize("inside", [(0.0, 2.0), (-1.0, 1.0), (1.4, 9.0), (-9.0, 0.7)])
def test_p_of_an_equivalence_says_what_its_interval_says(inside):
    generator = np.random.default_rng(0)
    for _ in range(200):
        values = generator.normal(1.0, 0.3, 5)
        test = make_test_of_seeds(CLAIM, values, "x", inside=inside)
        (verdict,) = judge_tests([test])
        assert verdict.outcome == judge_by_place(test.low, test.high, inside)


def test_an_end_that_a_number_cannot_pass_has_no_p():
    """Of several tests the larger p counts, so that a needless one would weaken what is found."""
    number = (0.97, 0.91, 0.9999, 3)
    above, below = (float(p) for p in compute_sided_p(*number, 0.9))
    assert compute_equivalence_p(*number, (0.9, 1.0), (0.0, 1.0)) == (above, below)
    other = (0.03, 0.0001, 0.09, 3)
    above, below = (float(p) for p in compute_sided_p(*other, 0.1))
    assert compute_equivalence_p(*other, (0.0, 0.1), (0.0, 1.0)) == (below, above)
    values = np.array([0.92, 0.999, 0.99, 0.97])
    test = make_test_of_seeds(
        replace(CLAIM, bounds=(0.0, 1.0)), values, "x", inside=(0.9, 1.0)
    )
    assert (test.value, test.low, test.high) == pytest.approx(
        estimate_over_seeds(values, bounds=(0.0, 1.0))
    )
    assert test.high < 1
    # Of the ends .5 and 1 the one that cannot be passed would have the larger p.
    test = make_test_of_seeds(
        replace(CLAIM, bounds=(0.0, 1.0)), values, "x", inside=(0.5, 1.0)
    )
    number = (test.value, test.low, test.high, 3)
    above, below = (float(p) for p in compute_sided_p(*number, 0.5))
    assert (test.up, test.down) == pytest.approx((above, below))
    assert above < compute_equivalence_p(*number, (0.5, 1.0))[0] / 2


def test_an_end_that_a_number_cannot_pass_is_no_test():
    share = replace(CLAIM, bounds=(0.0, 1.0))
    values = np.array([0.97, 0.99, 0.98, 0.99])
    (verdict,) = judge_tests(
        [make_test_of_seeds(share, values, "x", inside=(0.9, 1.0))]
    )
    assert verdict.outcome == "holds"


def test_an_identity_that_holds_is_no_evidence_and_one_that_fails_is_seen():
    known = Claim("known", "2 = 2", "", identity=True)
    assert (
        make_verdict_without_test(known, True, "x").outcome == "identity"
        and make_verdict_without_test(known, False, "x").outcome == "fails"
    )
    assert [
        v.outcome
        for v in judge_tests(
            [Test(known, "x", 1, 0, 2, 3, **kind) for kind in (SURE, CONTRARY, OPEN)]
        )
    ] == [
        "identity",
        "fails",
        "undecided",
    ]


def test_a_mean_over_seeds_is_decided_by_a_one_sided_t_test():
    from scipy import stats

    values = np.array([0.4, 0.5, 0.7, np.nan])
    (verdict,) = judge_tests([make_test_of_seeds(CLAIM, values, "x", 0.1)])
    expected = stats.ttest_1samp(values[:3], 0.1, alternative="greater")
    assert (
        verdict.p == pytest.approx(expected.pvalue)
        and verdict.n == 3
        and "1 of 4 seeds have no number" in verdict.reason
    )
    assert (verdict.low, verdict.high) == pytest.approx(
        tuple(stats.ttest_1samp(values[:3], 0).confidence_interval())
    )
    assert (verdict.outcome == "holds") == (expected.pvalue < LEVEL)


@pytest.mark.parametrize("bounds", [None, SIGNED, SHARE])
@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_p_and_the_interval_never_contradict_each_other(bounds, threshold):
    """A correlation of .87 [−.46, 1.00] came out above 0 with p = .007: p was of another scale than the interval."""
    drawn = np.random.default_rng(5).beta(4 * threshold, 4 * (1 - threshold), (300, 3))
    claim = replace(CLAIM, bounds=bounds)
    tests = [make_test_of_seeds(claim, values, "x", threshold) for values in drawn]
    assert (
        {t.up < LEVEL for t in tests}
        == {t.down < LEVEL for t in tests}
        == {True, False}
    )
    assert all(
        (t.up < LEVEL, t.down < LEVEL) == (t.low > threshold, t.high < threshold)
        for t in tests
    )


def test_the_primary_claim_is_corrected_for_no_other():
    main, values = replace(CLAIM, name="main", primary=True), np.array([1.0, 1.2, 0.9])
    alone, *_ = judge_tests([make_test_of_seeds(main, values, "x")])
    beside, *others = judge_tests(
        [
            make_test_of_seeds(main, values, "x"),
            *[make_test_of_seeds(CLAIM, values, "x")] * 9,
        ]
    )
    assert alone.p == beside.p and all(
        v.p == pytest.approx(9 * alone.p) for v in others
    )
    assert (
        others[0].outcome == "undecided"
        and "correction" in others[0].reason
        and not beside.reason
    )


def test_no_effect_is_at_the_threshold_that_is_given():
    """A number clearly below a given threshold is contrary, though it lies above the limit of the claim itself."""
    test = make_test_of_seeds(CLAIM, np.array([0.5, 0.51, 0.49]), threshold=1.0)
    _, below = compute_sided_p(test.value, test.low, test.high, 2, 1.0)
    assert (
        test.against == pytest.approx(float(below))
        and judge_tests([test])[0].word == "contrary"
    )
    named = make_test_of_seeds(
        replace(CLAIM, none=0.0), np.array([0.5, 0.51, 0.49]), threshold=1.0
    )
    assert judge_tests([named])[0].word == "too small", (
        "the claim says itself what no effect is"
    )


@pytest.mark.parametrize("kind", ["primary", "identity", "afterwards", "makes"])
def test_claims_of_each_kind_are_a_family_of_their_own(kind):
    """A p of .02 holds alone, and not among ten of its kind."""
    p = {"up": 0.02, "down": 0.98}
    apart = [
        Test(replace(CLAIM, name=f"{i}", **{kind: True}), "A", 1.0, 0.5, 1.5, 9, **p)
        for i in range(9)
    ]
    (one, *_) = judge_tests([Test(CLAIM, "A", 1.0, 0.5, 1.5, 9, **p), *apart])
    assert one.p == pytest.approx(0.02) and one.outcome == "holds"
    (among, *_) = judge_tests(
        [
            Test(CLAIM, "A", 1.0, 0.5, 1.5, 9, **p),
            *[replace(t, claim=CLAIM) for t in apart],
        ]
    )
    assert among.p == pytest.approx(0.2)


def test_n_counts_seeds_only_if_the_interval_is_over_units():
    """An interval over seeds has its own n, whatever other seeds are judged beside it."""
    for units, n in (("documents", 3), ("", 500)):
        tests = [
            Test(
                CLAIM, "A", 1.0, 0.5, 1.5, 500, **SURE, over="all", seed=s, units=units
            )
            for s in range(3)
        ]
        (verdict,) = judge_tests(tests)
        assert verdict.n == n
        assert (
            "n counts seeds, the interval is over 500 documents" in verdict.reason
        ) == bool(units)


def test_an_effect_below_the_floor_is_none_however_significant():
    """A growth of 5e-7 held."""
    tiny, clear = np.array([5.0e-7, 5.1e-7, 4.9e-7]), np.array([0.50, 0.51, 0.49])
    grows, falls = replace(CLAIM, floor=0.1), replace(CLAIM, below=0.0, floor=0.1)
    assert [
        judge_tests([make_test_of_seeds(c, x)])[0].outcome
        for c in (CLAIM, grows)
        for x in (tiny, clear)
    ] == [
        *("holds", "holds"),
        *("fails", "holds"),
    ]
    assert [
        judge_tests([make_test_of_seeds(falls, x)])[0].outcome
        for x in (-tiny, -clear, clear)
    ] == [
        "fails",
        "holds",
        "fails",
    ]
    assert (
        "> 0 by 0.1" in make_test_of_seeds(grows, clear).statistic
        and "< 0 by 0.1" in make_test_of_seeds(falls, clear).statistic
    )


@pytest.mark.parametrize("inside", [None, (0.0, 1.0)])
def test_what_does_not_vary_over_seeds_decides_nothing(inside):
    for value in (0.7, 0.1 + 0.2, 0.0):
        (verdict,) = judge_tests(
            [make_test_of_seeds(CLAIM, np.full(4, value), inside=inside)]
        )
        assert (
            verdict.outcome == "undecided"
            and verdict.low is None
            and "no variance" in verdict.reason
        )
        (known,) = judge_tests(
            [
                make_test_of_seeds(
                    replace(CLAIM, identity=True),
                    np.full(4, value),
                    threshold=-1,
                    inside=inside,
                )
            ]
        )
        assert known.outcome == "identity"  # it need not vary
    assert np.isnan(compute_sided_p(0.5, 0.5, 0.5, 3)).all()


def test_nothing_measured_decides_nothing():
    nothing = np.array([np.nan, np.nan])
    for test in (
        make_test_of_seeds(CLAIM, nothing, "x"),
        make_test_of_seeds(CLAIM, nothing, "x", inside=(0, 1)),
        Test(CLAIM, "x"),
    ):
        (verdict,) = judge_tests([test])
        assert (
            verdict.outcome == "undecided"
            and verdict.value is verdict.p is verdict.low is None
        )
    assert judge_tests([]) == []


def test_two_seeds_decide_nothing_however_near_they_are():
    for n, outcome in ((2, "undecided"), (3, "holds")):
        (verdict,) = judge_tests([make_test_of_seeds(CLAIM, 100 + np.arange(n) / 1e3)])
        assert verdict.outcome == outcome, n


def test_p_is_student_s_with_one_degree_less_than_there_are_groups():
    """Beyond the ends of an interval p depends on them; one more passed unseen."""
    frame = pd.DataFrame(
        {"value": 1.0, "low": 0.5, "high": 1.5, "n_units": [5, 12, 500]}
    )
    freedom = np.array([4, 11, 31])
    expected = stats.t.sf(2 * stats.t.ppf(0.975, freedom), freedom)
    up, down = compute_p_of_units(frame, 0.0)
    np.testing.assert_allclose(up, expected, rtol=1e-12)
    np.testing.assert_allclose(down, 1 - expected, rtol=1e-12)
    theta = np.array([1.0, 0.7, 0.9, 1.1, 1.3])
    value, low, high, up, down = compute_p_of_replicates(theta)
    t = value / ((value - low) / stats.t.ppf(0.975, 3))
    assert (
        high > value > low
        and up == pytest.approx(stats.t.sf(t, 3))
        and down == pytest.approx(1 - up)
    )


@pytest.mark.parametrize(("over", "shown"), [("any", 0.3), ("all", 0.1)])
def test_beside_any_stands_the_strongest_and_beside_all_the_weakest(over, shown):
    tests = [
        Test(CLAIM, "A", x, x - 0.01, x + 0.01, 9, **SURE, over=over, margin=x)
        for x in (0.2, 0.3, 0.1)
    ]
    (verdict,) = judge_tests(tests)
    assert verdict.value == shown


def test_an_identity_that_does_not_vary_is_decided_by_its_side():
    claim = replace(CLAIM, identity=True)
    for value, sides in ((1.0, (0, 1)), (0.0, (1, 1)), (-1.0, (1, 0))):
        test = make_test_of_seeds(claim, np.full(3, value))
        assert (test.up, test.down) == sides


def test_an_identity_below_a_number_is_decided_by_the_other_side():
    claim = replace(CLAIM, identity=True, below=0.0)
    for value, sides in ((-1.0, (0, 1)), (0.0, (1, 1)), (1.0, (1, 0))):
        test = make_test_of_seeds(claim, np.full(3, value))
        assert (test.up, test.down) == sides


def test_values_that_differ_by_rounding_alone_do_not_vary():
    """.1 + .2 is not .3 by one part in 10¹⁶: an interval of no width left everything out."""
    for values in (np.array([0.1 + 0.2, 0.3, 0.3]), 7 + 1e-13 * np.arange(3)):
        assert "no variance" in make_test_of_seeds(CLAIM, values).note
    assert "no variance" not in make_test_of_seeds(CLAIM, 7 + 1e-9 * np.arange(3)).note


def test_p_of_few_groups_has_their_freedom_however_many_units():
    frame = pd.DataFrame(
        {
            "value": 1.0,
            "low": 0.5,
            "high": 1.5,
            "n_units": [500, 5],
            "groups": [8.0, np.nan],
        }
    )
    freedom = np.array([7, 4])
    up, _ = compute_p_of_units(frame, 0.0)
    np.testing.assert_allclose(
        up, stats.t.sf(2 * stats.t.ppf(0.975, freedom), freedom), rtol=1e-12
    )


KINDS = (None, "any", "all", "most", "last")


def drawn_tests(seed):
    """Tests of several claims, subjects and seeds, primary, identities or neither; p of 0 and of 1 among them."""
    draw, tests = np.random.default_rng(seed), []
    for i in range(4):
        claim = replace(CLAIM, name=f"c{i}", primary=i == 0, identity=i == 1)
        over = KINDS[draw.integers(5)]
        for subject in ("a", "b")[: draw.integers(1, 3)]:
            for of_seed in range(draw.integers(1, 3)):
                for layer in range(draw.integers(1, 4)):
                    up = float(
                        draw.choice(
                            [0.0, 1e-6, 0.004, 0.009, 0.02, 0.5, 0.98, 0.996, 1.0]
                        )
                    )
                    numbers = {
                        "value": float(draw.normal()),
                        "margin": float(draw.normal()),
                        "up": up,
                        "down": 1 - up,
                    }
                    inside = (0.0, 1.0) if not draw.integers(8) else None
                    where = {
                        "subject": subject,
                        "seed": of_seed,
                        "where": f"layer {layer}",
                    }
                    low, high = numbers["value"] - 0.3, numbers["value"] + 0.3
                    tests.append(
                        Test(
                            claim,
                            "A",
                            low=low,
                            high=high,
                            n=9,
                            over=over,
                            inside=inside,
                            **numbers,
                            **where,
                        )
                    )
    return tests


def by_hand(tests, side):
    """Holm, one test after the other: the smallest times how many there are, the next times one less …"""
    p = [np.nan] * len(tests)
    for family in {(t.claim.primary, t.claim.identity) for t in tests}:
        units = {}
        for i, t in enumerate(tests):
            if (t.claim.primary, t.claim.identity) == family:
                one = side == "up" and t.over in ("all", "last")
                units.setdefault(
                    (t.claim.name, t.subject, t.seed) if one else i, []
                ).append(i)
        of_each = {}
        for key, members in units.items():
            values = [getattr(tests[i], side) for i in members]
            of_each[key] = (
                values[-1]
                if tests[members[0]].over == "last"
                else max(values, key=lambda x: (x != x, x))
            )
        known = sorted(
            (key for key in of_each if of_each[key] == of_each[key]), key=of_each.get
        )
        least = 0.0
        for rank, key in enumerate(known):
            least = max(least, min(1.0, of_each[key] * (len(known) - rank)))
            factor = least / of_each[key] if of_each[key] else len(units)
            for i in units[key]:
                p[i] = min(1.0, getattr(tests[i], side) * factor)
    return p


def whole_number(tests, i, side, expected, got):
    return f"{tests[i].claim.name} {tests[i].over} {side} of {tests[i].subject}: {got[i]}, by hand {expected[i]}"


@pytest.mark.parametrize("side", ["up", "down"])
def test_p_is_holm_s_over_primary_claims_identities_and_all_others(side):
    for seed in range(60):
        tests = drawn_tests(seed)
        got, expected = _correct_p(tests, side), by_hand(tests, side)
        for i in range(len(tests)):
            assert got[i] == pytest.approx(expected[i], rel=1e-9), whole_number(
                tests, i, side, expected, got
            )


def counted_by_hand(outcomes, over):
    """What becomes of one system with one seed, from what becomes of its tests."""
    holding, failing, n = (
        outcomes.count("holds"),
        outcomes.count("fails"),
        len(outcomes),
    )
    if over == "any":
        return "holds" if holding > 0 else "fails" if failing == n else "undecided"
    if over == "most":
        return (
            "holds" if holding > n / 2 else "fails" if failing > n / 2 else "undecided"
        )
    if failing:
        return "fails"
    return (
        "holds"
        if (outcomes[-1] == "holds" if over == "last" else holding == n)
        else "undecided"
    )


def test_verdicts_are_those_of_every_seed_and_their_number_is_the_one_they_hang_on():
    """Two halves are not most; one seed of two is none; of any the strongest is shown, of all the weakest."""
    seen = set()
    for seed in range(120):
        tests = drawn_tests(seed)
        up, down = _correct_p(tests, "up"), _correct_p(tests, "down")
        groups = {}
        for i, t in enumerate(tests):
            groups.setdefault(
                i if t.over is None else (t.claim.name, t.subject), []
            ).append(i)
        for verdict, members in zip(judge_tests(tests), groups.values(), strict=True):
            over, seeds = (
                tests[members[0]].over,
                sorted({tests[i].seed for i in members}),
            )
            outcome = {i: _decide(tests[i], up[i], down[i]) for i in members}
            each = {
                counted_by_hand(
                    [outcome[i] for i in members if tests[i].seed == s], over
                )
                if over
                else outcome[i]
                for s in seeds
                for i in members[:1]
            }
            expected = each.pop() if len(each) == 1 else "undecided"
            seen.add((over, expected))
            if tests[members[0]].claim.identity and expected == "holds":
                expected = "identity"
            assert verdict.outcome == expected, (seed, over, outcome)
            of_each = []
            for s in seeds:
                own = [i for i in members if tests[i].seed == s]
                ranked = sorted(own, key=lambda i: -tests[i].margin)
                shown = {
                    "any": ranked[0],
                    "all": ranked[-1],
                    "most": ranked[len(ranked) // 2],
                    "last": own[-1],
                }
                of_each.append(shown.get(over, own[0]))
            weakest = (
                min(of_each, key=lambda i: tests[i].margin) if over else members[0]
            )
            assert verdict.value == tests[weakest].value, (seed, over)
    assert seen >= {
        (over, o) for over in KINDS[1:] for o in ("holds", "fails", "undecided")
    }


def test_an_interval_that_ends_at_an_end_lies_inside_and_one_that_touches_from_outside_is_open():
    assert judge_by_place(0, 1, (0, 3)) == judge_by_place(2, 3, (0, 3)) == "holds"
    assert judge_by_place(3, 4, (0, 3)) == judge_by_place(-1, 0, (0, 3)) == "undecided"


@pytest.mark.parametrize("side", ["up", "down"])
def test_what_would_be_decided_alone_and_is_not_says_so(side):
    one = Test(CLAIM, "A", 1, 0, 2, 9, **{"up": 0.98, "down": 0.98} | {side: 0.02})
    (alone,), (beside, *_) = (
        judge_tests([one]),
        judge_tests([one, replace(one, subject="another")]),
    )
    assert alone.outcome == {"up": "holds", "down": "fails"}[side] and not alone.reason
    assert beside.outcome == "undecided" and "Holm's correction" in beside.reason


@pytest.mark.parametrize(
    ("over", "shown"), [("any", 1e-9), ("all", 0.9), ("most", 0.3)]
)
def test_without_margins_the_number_is_found_by_p(over, shown):
    tests = [
        Test(CLAIM, "A", p, p - 1, p + 1, 9, up=p, down=1 - p, over=over)
        for p in (0.3, 0.9, 1e-9)
    ]
    (verdict,) = judge_tests(tests)
    assert verdict.value == shown


@pytest.mark.parametrize("seeds", [(0, 0, 0), (0, 1, 2)])
def test_a_test_without_a_margin_is_shown_for_none_that_has_one(seeds):
    """Its p is of another scale than the margins of the others."""
    tests = []
    for x, margin, seed in zip((0.3, 0.1, 0.2), (0.3, np.nan, 0.2), seeds, strict=True):
        one = Test(CLAIM, "A", x, x - 0.01, x + 0.01, 9, **SURE, over="all")
        tests.append(replace(one, margin=margin, seed=seed))
    tests[1] = replace(tests[1], up=0.9)
    (verdict,) = judge_tests(tests)
    assert verdict.value == 0.2


@pytest.mark.parametrize(("over", "place"), [("any", 0), ("most", 2), ("all", 1)])
def test_a_test_without_p_supports_its_claim_least(over, place):
    tests = [Test(CLAIM, "A", over=over)] * 3
    assert _find_decisive(tests, np.array([0.3, np.nan, 0.5])) == place


def test_a_means_interval_stays_in_the_bounds_of_its_own_metric():
    """A table of several metrics: a norm is no share."""
    values = {"mean_cosine": (0.97, 0.99, 1.0), "norms.mean": (1.0, 5.0, 9.0)}
    rows = pd.DataFrame(
        [
            {"metric": m, "seed": s, "value": x}
            for m, of in values.items()
            for s, x in enumerate(of)
        ]
    )
    for ordered in (rows, rows[::-1]):
        found = average_over_seeds(ordered, "metric").set_index("metric")
        assert found.loc["mean_cosine", "high"] <= 1 < found.loc["norms.mean", "high"]
        assert (
            found.loc["norms.mean", "low"] >= 0
            and found.loc["norms.mean", "value"] == 5
        )


def test_rows_of_a_group_need_not_lie_together():
    """Records of several seeds come seed by seed, so that the groups of one seed lie among those of another."""
    rows = pd.DataFrame(
        {
            "metric": ["norms.mean"] * 6,
            "layer": [0, 1, 2] * 2,
            "value": [1.0, 2.0, 9.0, 3.0, 6.0, 11.0],
        }
    )
    found = average_over_seeds(rows, "metric", "layer").set_index("layer")["value"]
    assert found.to_dict() == {0: 2.0, 1: 4.0, 2: 10.0}


def test_rows_without_a_layer_are_a_group_of_each_metric():
    rows = pd.DataFrame(
        {
            "metric": ["norms.mean", "drift"] * 2,
            "layer": [np.nan] * 4,
            "value": [1.0, 5.0, 3.0, 9.0],
        }
    )
    found = average_over_seeds(rows, "metric", "layer").set_index("metric")["value"]
    assert found.to_dict() == {"norms.mean": 2.0, "drift": 7.0}


GROWS = replace(CLAIM, floor=0.1)
FALLS = replace(CLAIM, below=0.0, floor=0.1)
HALF = replace(CLAIM, above=0.5, none=0.0, bounds=(0.0, 1.0))
SPREAD = np.array([-0.011, 0.004, 0.007, 0.0])


@pytest.mark.parametrize(
    ("claim", "value", "word"),
    [
        (GROWS, 0.5, "holds"),
        (GROWS, 0.05, "too small"),
        (GROWS, 0.0, "too small"),
        (GROWS, -0.5, "contrary"),
        (GROWS, 0.1, "undecided"),
        (FALLS, -0.5, "holds"),
        (FALLS, -0.05, "too small"),
        (FALLS, 0.5, "contrary"),
        (HALF, 0.3, "too small"),
        (replace(HALF, none=None), 0.3, "contrary"),
        (replace(CLAIM, above=2.0, none=1.0), 1.07, "too small"),
        (replace(CLAIM, above=2.0, none=1.0), 0.6, "contrary"),
        (replace(CLAIM, inside=(-0.1, 0.1)), 0.5, "beyond"),
        (replace(CLAIM, inside=(-0.1, 0.1)), -0.5, "beyond"),
    ],
)
def test_a_claim_that_fails_says_how(claim, value, word):
    """*Fails* was said of the contrary, of an effect below the floor, and of one beyond a margin."""
    (verdict,) = judge_tests([make_test_of_seeds(claim, value + SPREAD)])
    assert verdict.word == word
    assert (verdict.failing == "") == (verdict.outcome != "fails")


def test_the_contrary_is_corrected_for_the_others_tests_as_all_is():
    below = Test(GROWS, "A", -0.1, -0.2, 0.0, 9, up=1.0, down=1e-6, against=0.02)
    assert judge_tests([below])[0].word == "contrary"
    assert {v.word for v in judge_tests([below] * 2)} == {"too small"}


@pytest.mark.parametrize(
    ("over", "word"), [("any", "too small"), ("all", "contrary"), ("most", "contrary")]
)
def test_of_several_tests_any_is_told_by_the_nearest_and_all_by_the_farthest(
    over, word
):
    small = Test(
        GROWS, "A", 0.01, 0.0, 0.02, 9, up=1.0, down=1e-9, against=0.9, over=over
    )
    other_way = replace(small, value=-1.0, against=1e-9)
    assert judge_tests([small, other_way])[0].word == word


def test_what_follows_without_a_test_is_contrary_or_beyond():
    assert (
        make_verdict_without_test(CLAIM, False, "x").word == "contrary"
        and make_verdict_without_test(CLAIM, True, "x").word == "holds"
    )
    assert (
        make_verdict_without_test(replace(CLAIM, inside=(0, 1)), False, "x").word
        == "beyond"
    )


def test_beside_several_trainings_stands_the_weakest_of_them():
    """The best layer of the best seed stood in the README, with the number of documents as n."""
    tests = [
        Test(
            CLAIM,
            "A",
            x,
            x - 0.01,
            x + 0.01,
            60,
            **SURE,
            over="any",
            seed=seed,
            margin=x,
            units="documents",
        )
        for seed, layers in enumerate([(0.1, 0.5), (0.2, 0.3), (0.05, 0.4)])
        for x in layers
    ]
    (verdict,) = judge_tests(tests)
    assert (
        verdict.value == 0.3
        and verdict.n == 3
        and verdict.statistic.startswith("largest A, of the weakest seed")
    )
    assert "n counts seeds, the interval is over 60 documents" in verdict.reason
    (alone,) = judge_tests(tests[:2])
    assert alone.value == 0.5 and alone.n == 60 and "n counts documents" in alone.reason


def test_what_was_asked_afterwards_changes_no_other_verdict():
    one = Test(CLAIM, "A", 1, 0, 2, 9, up=0.02, down=0.98)
    later = replace(one, claim=replace(CLAIM, name="later", afterwards=True))
    alone, *others = judge_tests([one, *[later] * 5])
    assert (
        alone.outcome == "holds"
        and alone.p == 0.02
        and {v.outcome for v in others} == {"undecided"}
    )


def test_a_metric_lies_between_the_bounds_of_its_longest_name():
    share, signed, positive, free = SHARE, SIGNED, (0, np.inf), (-np.inf, np.inf)
    expected = {
        "attention.entropy_normalised": share,
        "attention.row_max": share,
        "attention.entropy": positive,
        "centred_attention.query_rise": free,
        "centred_attention.key_rise": free,
        "centred_attention.query": positive,
        "ablation.agreement": share,
        "ablation.accuracy": signed,
        "attribution.auc": share,
        "attribution.comprehensiveness": signed,
        "cones.keys.share": share,
        "cones.queries.cosine": signed,
        "something": free,
    }
    assert {name: look_up_bounds(name) for name in expected} == expected


def test_what_is_given_to_a_test_of_seeds_goes_before_what_its_claim_says():
    values = np.array([0.1, 0.12, 0.11, 0.09])
    between = replace(CLAIM, inside=(5.0, 6.0))
    given = make_test_of_seeds(between, values, inside=(0.0, 0.2))
    assert given.inside == (0.0, 0.2) and given.up < LEVEL
    high = replace(CLAIM, above=5.0)
    assert make_test_of_seeds(high, values).up > 0.5
    assert make_test_of_seeds(high, values, threshold=0.0).up < LEVEL
    alone = make_test_of_seeds(between, values[:1])
    assert alone.statistic == "too few seeds have it" and np.isnan(alone.value)
    identity = replace(CLAIM, identity=True)
    assert np.isnan(make_test_of_seeds(CLAIM, values[:2]).up)
    assert make_test_of_seeds(identity, values[:2]).up < 0.5, "it needs no third seed"


def test_what_cannot_be_compared_is_judged_by_nobody_and_corrects_nothing():
    test = Test(CLAIM, "x", 1.0, 0.5, 1.5, 9, up=0.02, down=0.98)
    apart = [replace(test, subject=name, apart="another corpus") for name in "abc"]
    own, *others = judge_tests([test, *apart])
    assert (own.outcome, own.p) == ("holds", 0.02)
    assert {each.outcome for each in others} == {"not comparable"}
    assert {each.reason for each in others} == {"another corpus"}


def test_the_contrary_of_tests_that_must_all_hold_is_corrected_one_by_one():
    tests = [
        Test(CLAIM, "x", up=p, down=p, against=p, over="all", subject="m")
        for p in (0.01, 0.02)
    ]
    assert _correct_p(tests, "up").tolist() == [0.01, 0.02]
    for side in ("down", "against"):
        assert _correct_p(tests, side).tolist() == [0.02, 0.02], side


def test_several_tests_of_a_seed_are_told_with_place_and_course():
    def told(*kinds, over="last", seeds=None):
        tests = []
        for i, kind in enumerate(kinds):
            more = {"seed": seeds[i]} if seeds else {}
            one = Test(CLAIM, "A:", i, i - 1, i + 1, 9, over=over, where=f"layer {i}")
            tests.append(replace(one, **kind, **more))
        (verdict,) = judge_tests(tests)
        return verdict.statistic, verdict.reason

    statistic, reason = told(CONTRARY, OPEN, SURE, SURE)
    assert statistic == "A, at layer 3:"
    assert "2 of 4 tests hold, from layer 2 on; against the claim at layer 0" in reason
    assert reason.endswith("at layer 0")
    assert told(SURE, OPEN)[1] == "1 of 2 tests hold"
    one_each, _ = told(SURE, OPEN, over="all", seeds=(0, 1))
    assert one_each == "A, of the weakest seed, at layer 1:"
    several, _ = told(SURE, OPEN, over="all")
    assert several == "weakest A, at layer 1:"
    (nowhere,) = judge_tests([Test(CLAIM, "A", 1, 0, 2, 9, **SURE, over="all")])
    assert nowhere.statistic == "A:"


def test_words_of_a_claim_decide_nothing() -> None:
    """A claim that is worded otherwise is judged as before: no code looks for words in its text."""
    texts = {"statement", "statistic", "source", "published", "because"}
    asked = []
    for path in Path(anisoscope_papers.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                sides = [node.func.value]
            else:
                continue
            for side in sides:
                if not isinstance(side, ast.Attribute) or side.attr not in texts:
                    continue
                if getattr(side.value, "id", "") == "claim":
                    asked.append(f"{path.name}:{node.lineno}")
    assert not asked


# ---- intervals that end at their value, seeds below 0, several claims at once ----------------------------------------


def test_an_interval_that_ends_at_its_value_still_has_a_width():
    """A share of 1 lies at the end of all that it can be: only an interval without any width says nothing."""
    quantile = stats.t.ppf(0.975, 7)
    for value, low, high, threshold in ((1, 0.5, 1, 0.75), (-1, -1, -0.5, -0.75)):
        up, down = compute_sided_p(value, low, high, 7, threshold)
        width = value - low if value > threshold else high - value
        t = (value - threshold) * quantile / width
        assert float(up) == pytest.approx(stats.t.sf(t, 7))
        assert float(down) == pytest.approx(stats.t.cdf(t, 7))
    for nothing in compute_sided_p(1, 1, 1, 7, 0.5):
        assert np.isnan(nothing)


@pytest.mark.parametrize("value", [-0.25, 0.25, 0.0])
def test_seeds_of_one_value_decide_nothing_on_either_side_of_0(value):
    claim = Claim("a", "", "", statistic="A", above=-1.0)
    test = make_test_of_seeds(claim, np.full(3, value))
    assert np.isnan(test.up) and np.isnan(test.down) and np.isnan(test.low)
    assert test.note == "3 seeds, no variance: decides nothing"
    own = make_test_of_seeds(claim, np.array([value, value, value + 1e-3]))
    assert own.up < own.down and own.note == ""


def test_each_of_several_claims_fails_in_its_own_way():
    small = Claim("small", "", "", above=0.0, floor=0.5, primary=True)
    other = Claim("other", "", "", above=0.0)
    between = Claim("between", "", "", inside=(0.4, 0.6))
    values = np.array([0.1, 0.11, 0.12, 0.1, 0.11])
    tests = [
        make_test_of_seeds(small, values),
        make_test_of_seeds(between, values),
        make_test_of_seeds(other, -values),
        make_test_of_seeds(replace(small, name="again"), -values),
    ]
    found = {v.claim: (v.outcome, v.failing) for v in judge_tests(tests)}
    assert found == {
        "small": ("fails", "too small"),
        "between": ("fails", "beyond"),
        "other": ("fails", "contrary"),
        "again": ("fails", "contrary"),
    }


@pytest.mark.parametrize(
    ("metric", "bounds"),
    [
        ("attention.entropy_normalised", (0, 1)),
        ("attention.entropy", (0, np.inf)),
        ("attention.row_max", (0, 1)),
        ("attention.sequence_min", (0, 1)),
        ("attention.score", (-np.inf, np.inf)),
        ("attention.score_rms", (0, np.inf)),
        ("accuracy", (0, 1)),
        ("ablation.agreement", (0, 1)),
        ("ablation.accuracy", (-1, 1)),
        ("retrained.accuracy", (0, 1)),
        ("attribution.auprc", (0, 1)),
        ("attribution.sufficiency", (-1, 1)),
        ("cones.keys.plain", (0, 1)),
        ("cones.queries.plain", (-1, 1)),
        ("mean_cosine", (-1, 1)),
        ("intra_sequence", (-1, 1)),
        ("centred_attention.query", (0, np.inf)),
        ("centred_attention.query_rise", (-np.inf, np.inf)),
        ("centred_attention.key", (0, np.inf)),
        ("centred_attention.key_rise", (-np.inf, np.inf)),
        ("drift", (0, np.inf)),
        ("norms.mean", (0, np.inf)),
        ("cls_entropy", (0, np.inf)),
        ("training.loss", (-np.inf, np.inf)),
    ],
)
def test_an_interval_stays_inside_what_its_metric_can_be(metric, bounds):
    assert look_up_bounds(metric) == bounds
