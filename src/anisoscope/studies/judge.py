"""From records to verdicts: one-sided tests of values against thresholds, Holm-corrected, with the words of the
papers fixed once.

isotropic: upper end of A ≤ q95(d); anisotropic: lower end > q95(d); low < LOW; extreme ≥ EXTREME. Anything between is
undecided.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.studies.study import Outcome, Verdict
from anisoscope.sums.jackknife import holm, interval

LOW = 0.2
EXTREME = 0.8
LEVEL = 0.025  # one-sided, as an end of a 95 % interval
GROUPS = 32


def p_above(frame: pd.DataFrame, threshold: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """One-sided p that `value` is not above the threshold, from its 95 % jackknife interval (t with groups − 1 degrees
    of freedom; a column `groups` says how many there were, else 32 or as many as units).
    """
    groups = frame["n_units"].to_numpy(float)
    groups = np.fmin(frame["groups"].to_numpy(float), groups) if "groups" in frame else np.fmin(groups, GROUPS)
    freedom = np.maximum(groups - 1, 1)
    value, low, high = (frame[end].to_numpy(float) for end in ("value", "low", "high"))
    facing = np.where(
        value > threshold, value - low, high - value
    )  # the half of a bounded value's interval that counts
    error = facing / stats.t.ppf(0.975, freedom)
    return np.asarray(stats.t.sf((value - threshold) / error, freedom), dtype=np.float64)


def outcome_above(p_up: NDArray[np.float64], p_down: NDArray[np.float64], level: float = LEVEL) -> list[Outcome]:
    """`holds` where the value is above, `fails` where it is below, else `undecided`; the p-values already corrected."""
    return [
        "holds" if up < level else "fails" if down < level else "undecided"
        for up, down in zip(p_up, p_down, strict=True)
    ]


def corrected(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Holm's correction over all tests of a figure."""
    return holm(p)


def both_ways(
    frame: pd.DataFrame, threshold: NDArray[np.float64] | float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Corrected one-sided p of above and of below the threshold, over all rows of `frame` as one family."""
    up = p_above(frame, threshold)
    return corrected(up), corrected(1 - up)


Over = Literal["any", "all", "most"]
"""How the tests of one system make its outcome: one of them, all, or more than half must hold."""


@dataclass(frozen=True)
class Test:
    """One value against what a claim says of it.

    up, down   one-sided p of the claim and of its contrary, not yet corrected
    margin     how far the value lies on the claim's side: the decisive test of a system is found by it
    where      which value it is (`encoder layer 3`); `statistic` what it is called; `words` what a holding test is
    note       what else must be known of the system
    """

    claim: str
    subject: str
    value: float
    low: float
    high: float
    n: int
    up: float
    down: float
    margin: float
    over: Over = "all"
    seed: int = 0
    where: str = ""
    statistic: str = "A"
    words: str = "tests hold"
    note: str = ""


def of_replicates(theta: NDArray[np.float64]) -> tuple[float, float, float, float, float]:
    """(value, low, high, p of > 0, p of < 0) of a scalar from jackknife replicates [1 + group]."""
    value, low, high = (float(x) for x in interval(theta))
    freedom = max(len(theta) - 2, 1)
    error = (high - low) / 2 / stats.t.ppf(0.975, freedom)
    ratio = value / error if error > 0 else np.nan if np.isnan(error) or value == 0 else np.inf * value
    return value, low, high, float(stats.t.sf(ratio, freedom)), float(stats.t.cdf(ratio, freedom))


def judged(tests: Sequence[Test]) -> list[Verdict]:
    """One verdict per claim and subject, all tests of the figure corrected as one family (Holm, each direction).

    A subject trained with several seeds holds or fails where it does so with every seed.
    """
    up, down = corrected(np.array([t.up for t in tests])), corrected(np.array([t.down for t in tests]))
    outcomes = outcome_above(up, down)
    members: dict[tuple[str, str], list[int]] = {}
    for i, test in enumerate(tests):
        members.setdefault((test.claim, test.subject), []).append(i)
    return [_verdict([tests[i] for i in m], [outcomes[i] for i in m], up[m]) for m in members.values()]


def _verdict(tests: list[Test], outcomes: list[Outcome], p: NDArray[np.float64]) -> Verdict:
    seeds = sorted({t.seed for t in tests})
    by_seed = [
        _together([o for t, o in zip(tests, outcomes, strict=True) if t.seed == s], tests[0].over) for s in seeds
    ]
    outcome: Outcome = by_seed[0] if len(set(by_seed)) == 1 else "undecided"
    margins = np.array([t.margin for t in tests])
    i = int(np.nanargmax(margins) if tests[0].over == "any" else np.nanargmin(margins)) if len(tests) > 1 else 0
    t = tests[i]
    reason = f"{outcomes.count('holds')} of {len(tests)} {t.words}; n counts units"
    reason += f"; {len(seeds)} seeds, each: {', '.join(by_seed)}" if len(seeds) > 1 else ""
    reason += f"; {t.note}" if t.note else ""
    which = {"any": "largest", "all": "weakest", "most": "weakest"}[t.over] if len(tests) > 1 else ""
    place = f", at {t.where}" if t.where else ""
    statistic = f"{which} {t.statistic}{place}:".strip()
    return Verdict(t.claim, outcome, statistic, t.value, t.low, t.high, t.n, float(p[i]), reason, t.subject)


def _together(outcomes: list[Outcome], over: Over) -> Outcome:
    """The outcome of one system with one seed from those of its tests."""
    holding, failing, n = outcomes.count("holds"), outcomes.count("fails"), len(outcomes)
    if over == "any":
        return "holds" if holding else "fails" if failing == n else "undecided"
    if over == "all":
        return "fails" if failing else "holds" if holding == n else "undecided"
    return "holds" if 2 * holding > n else "fails" if 2 * failing > n else "undecided"


def nothing(claim: str, reason: str) -> Verdict:
    """The verdict on a claim of which these records say nothing."""
    return Verdict(claim, "undecided", "not measured", reason=reason)
