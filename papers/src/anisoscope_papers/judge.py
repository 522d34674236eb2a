"""Judge claims: turn statistical tests into verdicts. A test is a number with its interval and the claim about it.

With p: the claim holds if its one-sided p is below LEVEL. It fails if the p of the opposite claim is below LEVEL.
Otherwise it is undecided. p is corrected by Holm over the tests judged together; the primary claims are one family, all
others another (identities, and claims added afterwards, are separate families). p is derived from the interval, so that
the two never contradict each other. It refers to the claim's threshold plus its effect floor: a significant effect that
is too small fails.

A failed claim says how it failed: `contrary` if the number lies on the opposite side of "no effect" (one-sided p, Holm,
again below LEVEL); `too small` if not; `beyond` if it lies outside of the two ends of an `inside` claim. A claim that a
number lies between two ends (`inside`) is an equivalence test: two one-sided tests, of which the larger p counts
(Schuirmann 1987), corrected with the others.

Without p, the interval decides: the claim holds if the whole interval lies between the ends, and fails if none of it
does. Values without variance decide nothing, nor do two seeds. What holds by construction is an identity: it is shown,
but is no evidence.

Words of claims: isotropic: A (mean cosine of all pairs) below q95(d); anisotropic: A above q95(d); low: A < 0.2;
extreme: A ≥ 0.8. q95(d) is the 95 % quantile of the cosine of two isotropic vectors in d dimensions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.sums.jackknife import (
    UNBOUNDED,
    Bounds,
    estimate_over_seeds,
    holm,
    jackknife_interval,
)
from anisoscope_papers.study import (
    FEWEST,
    SHARE,
    SIGNED,
    Claim,
    Failing,
    Outcome,
    Over,
    Verdict,
)

Array = NDArray[np.float64]

LEVEL = 0.025  # one-sided, as an end of a 95 % interval
# As many groups as `anisoscope measure` leaves out one by one (`Settings.groups`).
GROUPS = 32
SAME = 1e-12
"""Relative spread below which values over seeds are one value."""
POSITIVE = (0.0, np.inf)
# A beginning must come before a shorter one that it fits: attention.entropy_normalised
# is a share, attention.entropy is in nats.
BOUNDS: dict[str, Bounds] = {
    "attention.entropy_normalised": SHARE,
    "attention.row_": SHARE,
    "attention.sequence": SHARE,
    "accuracy": SHARE,
    "ablation.agreement": SHARE,
    "retrained.": SHARE,
    "attribution.au": SHARE,
    "cones.keys.": SHARE,
    "mean_cosine": SIGNED,
    "intra_sequence": SIGNED,
    "first.": SIGNED,
    "representative.": SIGNED,
    # Changes of shares, and cosines.
    "ablation.": SIGNED,
    "attribution.": SIGNED,
    "cones.queries.": SIGNED,
    # A rise of entropy may be negative.
    "centred_attention.query_rise": UNBOUNDED,
    "centred_attention.key_rise": UNBOUNDED,
    "drift": POSITIVE,
    "norms.": POSITIVE,
    "attention.entropy": POSITIVE,
    "attention.score_": POSITIVE,
    "centred_attention.": POSITIVE,
    "score_terms.": POSITIVE,
    # As the paper divides it, by ln(n − 1), this entropy can exceed 1.
    "cls_entropy": POSITIVE,
}
"""What values of a metric lie between, by how its name begins (the first that fits); others have no bounds."""


@dataclass(frozen=True)
class Test:
    """One number with its interval, and the claim that it is tested against.

    statistic  what the number is; n: units (documents, images) or seeds that the interval is over
    up, down   one-sided p of the claim and of its contrary, not yet corrected; NaN: nothing can be decided
    against    one-sided p that the number lies on the other side of no effect (`Claim.none`), not yet corrected
    inside     the two ends between which the number should lie; without p the interval decides
    subject    the model (system) or corpus that the number is about; a claim has a verdict for each
    over       how it is combined with other tests of the same claim and subject; None: it is a verdict of its own
    margin     how far the number lies on the claim's side; it decides which test is shown (NaN: p does)
    where      which number it is (`encoder layer 3`)
    words      what is counted (`layers isotropic`)
    units      what n and the interval are over, if not seeds (`units`)
    note       what else must be known
    apart      why the number cannot be compared with the claim; then nothing is judged
    """

    __test__ = False  # pytest: a test of a claim is none of the code
    claim: Claim
    statistic: str
    value: float = np.nan
    low: float = np.nan
    high: float = np.nan
    n: int | None = None
    up: float = np.nan
    down: float = np.nan
    against: float = np.nan
    inside: tuple[float, float] | None = None
    subject: str = ""
    over: Over | None = None
    seed: int = 0
    margin: float = np.nan
    where: str = ""
    words: str = "tests hold"
    units: str = ""
    note: str = ""
    apart: str = ""


def compute_sided_p(
    value: Array | float,
    low: Array | float,
    high: Array | float,
    freedom: Array | float,
    threshold: Array | float = 0.0,
) -> tuple[Array, Array]:
    """Return two one-sided p of a number, derived from its 95 % interval (`low`, `high`).

    The first is small if the number lies above `threshold`, the second if it lies below. Student's t with `freedom`
    degrees of freedom. NaN if the interval has no width: then nothing is known of how much the number varies. Arrays
    are treated entry by entry.
    """
    apart = np.asarray(value, dtype=np.float64) - threshold
    with np.errstate(divide="ignore", invalid="ignore"):
        # Half of the interval over Student's quantile is the standard error. The half
        # that faces the threshold is taken, as intervals near a bound are lopsided: p
        # is below .025 exactly if the interval leaves the threshold out. A value on the
        # threshold may give 0 / 0.
        t = apart / (
            np.where(apart > 0, value - low, high - value) / stats.t.ppf(0.975, freedom)
        )
    # An interval without width would make every p 0 or 1.
    t = np.where(np.equal(low, high), np.nan, t)
    return np.asarray(stats.t.sf(t, freedom)), np.asarray(stats.t.cdf(t, freedom))


def _compute_two_p(
    value: float, low: float, high: float, freedom: float, threshold: float
) -> tuple[float, float]:
    """Return the two one-sided p of a single number, as floats (`compute_sided_p`)."""
    above, below = compute_sided_p(value, low, high, freedom, threshold)
    return float(above), float(below)


def compute_equivalence_p(
    value: float,
    low: float,
    high: float,
    freedom: float,
    inside: tuple[float, float],
    bounds: Bounds = UNBOUNDED,
) -> tuple[float, float]:
    """Test whether a number lies between two ends (`inside`), by two one-sided tests on its 95 % interval (`low`,
    `high`).

    Returns (p, p of the contrary): the first is small if the number lies inside, the second if it lies outside. An end
    that the number cannot pass (`bounds`) is not tested. NaN if the interval has no width. `freedom`: degrees of
    freedom of Student's t.
    """
    least, most = inside
    above_least, below_least = _compute_two_p(value, low, high, freedom, least)
    above_most, below_most = _compute_two_p(value, low, high, freedom, most)
    # The number must pass both ends: of two tests that must both succeed the larger p
    # counts (Schuirmann 1987). To lie outside, one is enough.
    ends: list[float] = []
    beyond: list[float] = []
    if least > bounds[0]:
        ends.append(above_least)
        beyond.append(below_least)
    if most < bounds[1]:
        ends.append(below_most)
        beyond.append(above_most)
    return max(ends, default=np.nan), min(beyond, default=np.nan)


def compute_p_of_units(
    frame: pd.DataFrame, threshold: Array | float
) -> tuple[Array, Array]:
    """Test each row of records against a threshold, by its jackknife interval.

    Student's t with groups − 1 degrees of freedom. Without a column `groups`, that is 32 groups, or all units
    (independent pieces of data) if there are fewer. Returns the one-sided p (above, below), [row] each.
    """
    # A group holds at least one unit: fewer units than groups are fewer groups.
    groups = np.fmin(
        frame["n_units"].to_numpy(float),
        frame["groups"].to_numpy(float) if "groups" in frame else GROUPS,
    )
    value, low, high = (frame[end].to_numpy(float) for end in ("value", "low", "high"))
    return compute_sided_p(value, low, high, np.maximum(groups - 1, 1), threshold)


def compute_p_of_replicates(
    theta: Array, threshold: float = 0.0
) -> tuple[float, float, float, float, float]:
    """Test one number from its jackknife replicates `theta` [1 + group]; the first is the full estimate.

    Returns (value, low, high, p of > threshold, p of < threshold), with a 95 % interval.
    """
    # Groups − 1, and the first of the replicates is the full estimate.
    value, low, high = (float(x) for x in jackknife_interval(theta))
    up, down = compute_sided_p(value, low, high, max(len(theta) - 2, 1), threshold)
    return value, low, high, float(up), float(down)


def make_test_of_seeds(
    claim: Claim,
    values: Array,
    statistic: str = "",
    threshold: float | None = None,
    reason: str = "",
    subject: str = "",
    inside: tuple[float, float] | None = None,
) -> Test:
    """Make the test of a claim on one number per seed: that it lies above a threshold, below it, or between two ends
    (`inside`).

    `values` [seed]: NaN if a seed gives no answer. What is not given (`threshold`, `inside`, `statistic`) is taken from
    the claim. `subject`: the model or corpus that the number is about; `reason`: what else must be known.
    """
    known = values[~np.isnan(values)]
    inside = inside or claim.inside
    n = len(known)
    # One seed has no interval: it can still be shown beside a threshold, but not between two ends.
    if inside is None:
        test = Test(
            claim,
            "no seed has it",
            n=n,
            subject=subject,
            note=_describe_seeds(values, reason),
        )
        fewest = 1
    else:
        test = Test(claim, "too few seeds have it", n=n, subject=subject, note=reason)
        fewest = 2
    if n < fewest:
        return test
    value, low, high = (
        float(x) for x in estimate_over_seeds(known, bounds=claim.bounds or UNBOUNDED)
    )
    # A claim between two ends has no limit. A limit of q95 depends on the dimension:
    # `threshold` gives it as a number.
    limit = np.nan
    if inside is None:
        limit = float(claim.limit if threshold is None else threshold)
    words = f"{statistic or claim.statistic} (claim: {_describe_side(claim, limit, inside)}):"
    test = replace(test, statistic=words, value=value)
    # Seeds that all give one value say nothing about how much it varies, and two seeds say too little. What holds by
    # construction needs no spread.
    if n > 1 and _are_alike(known) and not claim.identity:
        return _add_note(test, f"{n} seeds, no variance: decides nothing")
    test = replace(test, low=low, high=high)
    # The interval of two seeds is shown, since it is so wide: the reader sees why.
    if n < FEWEST and not claim.identity:
        return _add_note(test, "two seeds decide nothing") if n > 1 else test
    if inside is not None:
        up, down = compute_equivalence_p(
            value, low, high, n - 1, inside, claim.bounds or UNBOUNDED
        )
        return replace(test, inside=inside, up=up, down=down)
    return _test_against_limit(test, limit)


def _describe_seeds(values: Array, reason: str) -> str:
    """Describe what must be known of `values` [seed]: the `reason`, how many are missing (NaN), and if it is only
    one.
    """
    n = int((~np.isnan(values)).sum())
    notes = [reason]
    if n < len(values):
        notes.append(f"{len(values) - n} of {len(values)} seeds have no number")
    if n == 1:
        notes.append("one seed decides nothing")
    return _join_notes(*notes)


def _are_alike(values: Array) -> bool:
    """Return whether values are equal but for rounding."""
    return bool(np.ptp(values) <= SAME * np.abs(values).max())


def _add_note(test: Test, note: str) -> Test:
    """Return a test with one more note."""
    return replace(test, note=_join_notes(test.note, note))


def _join_notes(*notes: str) -> str:
    """Join notes by semicolons; empty ones are left out."""
    return "; ".join(filter(None, notes))


def _test_against_limit(test: Test, limit: float) -> Test:
    """Return a test over seeds with its three one-sided p added, from its interval and Student's t.

    A small `up` says that the number lies where the claim says; a small `down`, that it does not; a small `against`,
    that it lies on the other side of "no effect". `limit`: what it is compared with, before the floor is added.
    """
    claim = test.claim
    threshold = claim.threshold(limit)
    assert test.n is not None
    freedom = test.n - 1
    interval = (test.value, test.low, test.high)
    none = find_no_effect(claim, limit)
    above, below = _compute_two_p(*interval, freedom, threshold)
    above_none, below_none = _compute_two_p(*interval, freedom, none)
    # What holds by construction need not vary: without an interval, the number itself decides.
    if claim.identity and np.isnan(above):
        above = float(test.value <= threshold)
        below = float(test.value >= threshold)
    # For a claim of "less than" both directions change roles.
    if claim.below is not None:
        return replace(test, up=below, down=above, against=above_none)
    return replace(test, up=above, down=below, against=below_none)


def find_no_effect(claim: Claim, limit: float | None = None) -> float:
    """Return the number that means "no effect" for a claim: its `none` if given, else its limit.

    `limit`: in place of the claim's own limit.
    """
    if claim.none is not None:
        return claim.none
    return float(claim.limit if limit is None else limit)


def _describe_side(
    claim: Claim, limit: float, inside: tuple[float, float] | None
) -> str:
    """Describe in words where the claim says that its number lies: `> 0 by 0.05` (limit and floor), or `0.1 to 0.3`
    (`inside`).
    """
    if inside is not None:
        return f"{inside[0]:.3g} to {inside[1]:.3g}"
    sign = ">" if claim.below is None else "<"
    words = f"{sign} {limit:.3g}"
    if claim.floor:
        words += f" by {claim.floor:.3g}"
    return words


def look_up_bounds(metric: str) -> Bounds:
    """Return (smallest, largest) value that a metric, and means of it, can have; infinite if not known."""
    for begin, bounds in BOUNDS.items():
        if metric.startswith(begin):
            return bounds
    return UNBOUNDED


def average_over_seeds(rows: pd.DataFrame, *keys: str) -> pd.DataFrame:
    """Average each metric over seeds, with an interval that stays inside the metric's bounds.

    One row for each combination of the columns `keys`, with the columns `value`, `low`, `high`.
    """
    # Rows are sorted by group once and split there: pandas' own aggregation calls a function for each group, slowly.
    group = rows.groupby(list(keys), sort=False, dropna=False).ngroup().to_numpy()
    order = np.argsort(group, kind="stable")
    begins = np.flatnonzero(np.diff(group[order], prepend=-1))
    first = rows.iloc[order[begins]]
    values = (
        np.split(rows["value"].to_numpy(float)[order], begins[1:]) if len(rows) else ()
    )
    # Once for each metric, not for each of thousands of rows.
    bounds = {}
    for metric in first["metric"].unique():
        bounds[str(metric)] = look_up_bounds(str(metric))
    found = []
    for x, metric in zip(values, first["metric"], strict=True):
        found.append(estimate_over_seeds(x, bounds=bounds[str(metric)]))
    ends = pd.DataFrame(
        found, columns=["value", "low", "high"], index=first.index, dtype=float
    )
    return pd.concat([first[list(keys)], ends], axis=1).reset_index(drop=True)


def judge_tests(tests: Sequence[Test]) -> list[Verdict]:
    """Turn tests into verdicts, after a Holm correction of their p (`_correct_p`).

    Tests of the same claim and subject whose field `over` is set (all, any, most, last: how many of them must hold)
    make one verdict together. If a subject was trained with several seeds, the claim holds only if it holds with every
    seed, fails only if it fails with every seed, and is undecided otherwise. The verdict then shows the value measured
    with the seed that supports it least, and n counts seeds.
    """
    up = _correct_p(tests, "up")
    down = _correct_p(tests, "down")
    against = _correct_p(tests, "against")
    outcomes = list(map(_decide, tests, up, down))
    # In which way it fails is asked of a second correction, as these p are other tests.
    ways = list(map(find_way_of_failing, tests, outcomes, against))
    verdicts = []
    for members in _group_into_verdicts(tests):
        of_one = [tests[i] for i in members]
        outcomes_of_one = [outcomes[i] for i in members]
        verdict = _make_verdict(of_one, outcomes_of_one, up[members])
        # `_make_verdict` knows outcomes alone; on which side a test lies is known here.
        if verdict.outcome == "fails":
            failing = _pick_worst([ways[i] for i in members], of_one[0].over)
            verdict = replace(verdict, failing=failing)
        verdicts.append(verdict)
    return verdicts


def _group_into_verdicts(tests: Sequence[Test]) -> list[list[int]]:
    """Return the indices of the tests that make one verdict together, a list for each verdict."""
    members: dict[object, list[int]] = {}
    for i, test in enumerate(tests):
        key: object = i  # a verdict of its own
        if test.over is not None:
            key = (test.claim, test.subject)
        members.setdefault(key, []).append(i)
    return list(members.values())


def find_way_of_failing(
    test: Test, outcome: Outcome, against: float
) -> Failing | Literal[""]:
    """Return how a test with this outcome fails; "" if it does not fail.

    `beyond`: the number lies outside of the two ends of its claim; `contrary`: it is significantly on the other side;
    `too small`: anything else. `against`: the corrected p that it is on the other side.
    """
    if outcome != "fails":
        return ""
    if test.inside is not None:
        return "beyond"
    if against < LEVEL:
        return "contrary"
    return "too small"


def _pick_worst(ways: Sequence[Failing | Literal[""]], over: Over | None) -> Failing:
    """Return in which way a verdict fails, given the ways in which its tests fail.

    It is the worst one, in the order contrary, beyond, too small. If one test that holds would have been enough (`over`
    = "any"), it is the mildest.

    ways   of each test; empty: it does not fail
    over   how many of the tests must hold: any, all, most, or the last; None: there is one test
    """
    order: tuple[Failing, ...] = ("contrary", "beyond", "too small")
    # One success would have done: the nearest miss says how far it is.
    if over == "any":
        order = order[::-1]
    return next(way for way in order if way in ways)


def _correct_p(tests: Sequence[Test], side: Literal["up", "down", "against"]) -> Array:
    """Return the Holm-corrected p [test] of one direction: `up`, `down` or `against`, as in `Test` (`side`).

    Each family is corrected apart: tests of primary claims, of identities, of claims added afterwards, of claims on how
    models were made, and of all others. Tests that must all hold count as one test of their family, by the largest of
    their p (for "last": by the last one's). They need no correction for each other (Berger 1982). In the opposite
    direction one is enough, so they count one by one.
    """
    # What is not judged is no test of the family either.
    p = np.array(
        [np.nan if test.apart else getattr(test, side) for test in tests],
        dtype=np.float64,
    )
    # Family by family: a secondary claim must not make the primary one harder to hold.
    for family in _group_into_families(tests, together=side == "up"):
        of_each = np.array(
            [_pick_p(tests[members[0]], p[members]) for members in family]
        )
        pairs = zip(family, of_each, holm(of_each), strict=True)
        for members, before, corrected in pairs:
            # The factor of the p that counts is applied to all p that it stands for. A p of 0 has no factor: the
            # largest one that Holm can give is taken.
            factor = corrected / before if before > 0 else len(family)
            p[members] = np.minimum(1.0, p[members] * factor)
    return p


def _group_into_families(
    tests: Sequence[Test], *, together: bool
) -> list[list[list[int]]]:
    """Return the families of tests that are corrected together; in each, the indices of tests that count as one.

    `together`: tests that must all hold count as one. Otherwise every test counts.
    """
    families: dict[object, dict[object, list[int]]] = {}
    for i, test in enumerate(tests):
        one: object = i
        if together and test.over in ("all", "last"):
            # Of one model: seeds are combined later, by agreement.
            one = (test.claim, test.subject, test.seed)
        kind = (
            test.claim.primary,
            test.claim.identity,
            test.claim.afterwards,
            test.claim.makes,
        )
        families.setdefault(kind, {}).setdefault(one, []).append(i)
    return [list(family.values()) for family in families.values()]


def _pick_p(first: Test, p: Array) -> float:
    """Return the p of several tests that count as one: the largest, or the last one's if only the last must hold.

    first   the first of these tests
    p       of each test
    """
    return float(p[-1] if first.over == "last" else p.max())


def _decide(test: Test, up: float, down: float) -> Outcome:
    """Return the outcome of one test from its corrected p (up, down); by its interval if it has no p."""
    # Quantiles of simulated draws, for example, have an interval but no p.
    if test.inside is not None and np.isnan(test.up):
        return judge_by_place(test.low, test.high, test.inside)
    if up < LEVEL:
        return "holds"
    if down < LEVEL:
        return "fails"
    return "undecided"


def judge_by_place(low: float, high: float, inside: tuple[float, float]) -> Outcome:
    """Return "holds" if the interval (low, high) lies between the two ends `inside`, "fails" if outside, else
    "undecided".
    """
    within = inside[0] <= low and high <= inside[1]
    outside = high < inside[0] or low > inside[1]
    if within:
        return "holds"
    if outside:
        return "fails"
    return "undecided"


def make_verdict_without_test(
    claim: Claim,
    holds: bool | None,
    statistic: str,
    value: float | None = None,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
    p: float | None = None,
    reason: str = "",
    subject: str = "",
) -> Verdict:
    """Make a verdict from facts, without a statistical test. `holds`: None means undecided.

    If it fails, the way of failing is `contrary`, or `beyond` for a claim with two ends (`inside`). NaN becomes None.
    The other arguments are the fields of the `Verdict`.
    """
    outcome: Outcome = "undecided"
    failing: Failing | Literal[""] = ""
    if holds:
        outcome = "identity" if claim.identity else "holds"
    elif holds is not None:
        outcome = "fails"
        failing = "contrary" if claim.inside is None else "beyond"
    # Verdicts are written as JSON, which has no NaN.
    numbers = []
    for x in (value, low, high, p):
        numbers.append(None if x is None or np.isnan(x) else x)
    value, low, high, p = numbers
    return Verdict(
        claim.name, outcome, statistic, value, low, high, n, p, reason, subject, failing
    )


def _find_agreement(outcomes: Sequence[Outcome]) -> bool | None:
    """Return True if all outcomes are "holds", False if all are "fails"; else None."""
    # An undecided outcome, or two that differ, leave the whole undecided.
    if len(set(outcomes)) == 1:
        return {"holds": True, "fails": False}.get(outcomes[0])
    return None


def _make_verdict(tests: list[Test], outcomes: list[Outcome], p: Array) -> Verdict:
    """Make one verdict from the tests that decide it together, with a reason in words.

    `outcomes` and `p` (corrected) are those of the tests, in the same order. The numbers shown are those of the
    decisive test.
    """
    # All tests of one verdict are of one claim: they share how they are combined.
    over = tests[0].over
    seeds = sorted({t.seed for t in tests})
    i = _find_decisive_of_seeds(tests, p) if over else 0
    shown = tests[i]
    n = shown.n
    # An interval over documents is that of one seed: what generalises is the number of seeds.
    if shown.units and len(seeds) > 1:
        n = len(seeds)
    numbers = (shown.value, shown.low, shown.high, n, float(p[i]))
    # Numbers that were measured in another way are shown, and not judged.
    if shown.apart:
        verdict = make_verdict_without_test(
            shown.claim, None, shown.statistic, *numbers, shown.apart, shown.subject
        )
        return replace(verdict, outcome="not comparable")
    if over is None:
        note = shown.note
        # Without the correction it would have been decided: the note says so.
        if outcomes == ["undecided"] and min(shown.up, shown.down) < LEVEL:
            note = _join_notes(note, "open after Holm's correction")
        agreed = _find_agreement(outcomes)
        return make_verdict_without_test(
            shown.claim, agreed, shown.statistic, *numbers, note, shown.subject
        )
    # The unit of inference is the training seed: layers or norms of one model first
    # make one outcome, then the seeds must agree.
    by_seed: dict[int, list[Outcome]] = {seed: [] for seed in seeds}
    for test, outcome in zip(tests, outcomes, strict=True):
        by_seed[test.seed].append(outcome)
    of_seeds = [_combine_outcomes(of_seed, over) for of_seed in by_seed.values()]
    statistic = _describe_shown(shown, over, tests)
    reason = _explain_verdict(shown, over, tests, outcomes, of_seeds)
    agreed = _find_agreement(of_seeds)
    return make_verdict_without_test(
        shown.claim, agreed, statistic, *numbers, reason, shown.subject
    )


def _describe_shown(shown: Test, over: Over, tests: list[Test]) -> str:
    """Say in words which number a verdict on several tests shows, such as `largest A, at encoder layer 3:`.

    shown   the test whose number it is
    over    how many of the tests must hold: any, all, most, or the last
    tests   all tests of the verdict
    """
    # The statistic may end with a colon of its own.
    words = shown.statistic.rstrip(":")
    if sum(test.seed == shown.seed for test in tests) > 1:
        words = {"any": "largest ", "all": "weakest ", "most": "middle ", "last": ""}[
            over
        ] + words
    if len({test.seed for test in tests}) > 1:
        words += ", of the weakest seed"
    if shown.where:
        words += f", at {shown.where}"
    return f"{words}:"


def _explain_verdict(
    shown: Test,
    over: Over,
    tests: list[Test],
    outcomes: list[Outcome],
    of_seeds: list[Outcome],
) -> str:
    """Give the reason of a verdict on several tests in words: how many hold, how seeds decide, and what n counts.

    shown      the test whose number the verdict shows
    over       how many of the tests must hold: any, all, most, or the last
    outcomes   of each test
    of_seeds   the outcome for each seed
    """
    reason = f"{outcomes.count('holds')} of {len(tests)} {shown.words}"
    # Where a series (of norms N) comes to hold is a finding of its own.
    if over == "last":
        reason += _describe_course(tests, outcomes)
    several = len(of_seeds) > 1
    if several:
        reason += f"; {len(of_seeds)} seeds, each: {', '.join(of_seeds)}"
    if shown.units and shown.n is not None:
        if several:
            reason += f"; n counts seeds, the interval is over {shown.n} {shown.units}"
        else:
            reason += f"; n counts {shown.units}"
    if shown.note:
        reason += f"; {shown.note}"
    return reason


def _describe_course(tests: list[Test], outcomes: list[Outcome]) -> str:
    """Describe how the outcomes change along a series of tests (layers, norms): from which on all hold, and which
    fail.
    """
    words = ""
    # The first place from which on no test says otherwise.
    for start in range(len(tests)):
        if all(outcome == "holds" for outcome in outcomes[start:]):
            words = f", from {tests[start].where} on"
            break
    failing = []
    for test, outcome in zip(tests, outcomes, strict=True):
        if outcome == "fails":
            failing.append(test.where)
    if failing:
        words += f"; against the claim at {', '.join(failing)}"
    return words


def _find_decisive_of_seeds(tests: list[Test], p: Array) -> int:
    """Return the index of the test whose numbers a verdict shows: the decisive test of the weakest seed.

    `p`: of each [test].
    """
    by_seed: dict[int, list[int]] = {}
    for i, test in enumerate(tests):
        by_seed.setdefault(test.seed, []).append(i)
    decisive = []
    for members in by_seed.values():
        of_seed = [tests[i] for i in members]
        decisive.append(members[_find_decisive(of_seed, p[members])])
    # Each seed is represented by its decisive test; the one with the least support is
    # shown, since the claim is no stronger than that.
    margins = _list_margins([tests[i] for i in decisive], p[decisive])
    return decisive[int(np.nanargmin(margins))]


def _list_margins(tests: list[Test], p: Array) -> Array:
    """Return how well each test supports its claim, [test]: its `margin`, or, if no test has one, −p.

    Only the order counts: a larger margin and a smaller p both mean more support.
    """
    margins = np.array([test.margin for test in tests])
    if np.isnan(margins).all():
        # A test without p supports nothing, as p = 1 does.
        return -np.nan_to_num(p, nan=1.0)
    return margins


def _find_decisive(tests: list[Test], p: Array) -> int:
    """Return the index of the test whose numbers a verdict shows, among the tests of one seed.

    For "last" it is the last one. Else it is the one with the largest ("any"), the middle ("most") or the smallest
    ("all") margin. If there are no margins, −p is used instead; `p` is that of each [test].
    """
    if len(tests) == 1 or tests[0].over == "last":
        return len(tests) - 1
    margins = _list_margins(tests, p)
    # Sorted from the most support to the least: more than half hold exactly if the
    # middle one does.
    if tests[0].over == "most":
        return int(np.argsort(-margins, kind="stable")[len(tests) // 2])
    if tests[0].over == "any":
        return int(np.nanargmax(margins))
    return int(np.nanargmin(margins))


def _combine_outcomes(outcomes: list[Outcome], over: Over) -> Outcome:
    """Combine the outcomes (holds, fails, undecided) of several tests of one model with one seed into one outcome.

    A test is, for example, of one layer. `over` says how many of them must hold: any, all, most, or the last one; for
    "all" and "last", one that fails is enough to fail.
    """
    holding = outcomes.count("holds")
    failing = outcomes.count("fails")
    n = len(outcomes)
    if over == "any":
        if holding:
            return "holds"
        if failing == n:
            return "fails"
        return "undecided"
    if over == "most":
        if 2 * holding > n:
            return "holds"
        if 2 * failing > n:
            return "fails"
        return "undecided"
    # For "last" the earlier tests may be undecided, but none may contradict.
    whole = holding == n if over == "all" else outcomes[-1] == "holds"
    if failing:
        return "fails"
    if whole:
        return "holds"
    return "undecided"
