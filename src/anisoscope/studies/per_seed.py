"""Claims about one number per seed: Student t over seeds, Holm over the claims of a figure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from anisoscope.studies.judge import LEVEL, outcome_above
from anisoscope.studies.study import Outcome, Verdict
from anisoscope.sums.jackknife import holm, over_seeds

Array = NDArray[np.float64]


@dataclass(frozen=True)
class SeedTest:
    """A number of every seed against what a claim says of it: above `threshold`, or below it.

    values     [seed]; NaN where a seed says nothing
    statistic  what the number is; `reason` what else to know; `subject` which part of the figure it is about
    """

    claim: str
    values: Array
    statistic: str
    threshold: float = 0.0
    below: bool = False
    reason: str = ""
    subject: str = ""

    @property
    def usable(self) -> Array:
        return np.asarray(self.values[~np.isnan(self.values)])

    def p(self) -> tuple[float, float]:
        """One-sided p that the claim, and that its contrary, is due to chance; NaN with fewer than two seeds."""
        apart = (self.usable - self.threshold) * (-1 if self.below else 1)
        if len(apart) < 2:
            return float("nan"), float("nan")
        error = apart.std(ddof=1) / np.sqrt(len(apart))
        if error == 0:
            sure = float(np.sign(apart[0]))
            return (1 - sure) / 2, (1 + sure) / 2
        t = apart.mean() / error
        return float(stats.t.sf(t, len(apart) - 1)), float(stats.t.cdf(t, len(apart) - 1))


def judged(tests: Sequence[SeedTest]) -> list[Verdict]:
    """One verdict per test, all of them one family for Holm's correction (in each direction)."""
    both = np.array([test.p() for test in tests]).reshape(-1, 2)
    up, down = holm(both[:, 0]), holm(both[:, 1])
    outcomes = outcome_above(up, down, LEVEL)
    return [_verdict(test, outcome, float(p)) for test, outcome, p in zip(tests, outcomes, up, strict=True)]


def _verdict(test: SeedTest, outcome: Outcome, p: float) -> Verdict:
    n = len(test.usable)
    missing = len(test.values) - n
    notes = [test.reason] if test.reason else []
    notes += [f"{missing} of {len(test.values)} seeds say nothing"] if missing else []
    notes += ["one seed decides nothing"] if n == 1 else []
    if not n:
        return Verdict(test.claim, "undecided", "no seed has it", n=0, reason="; ".join(notes), subject=test.subject)
    mean, low, high = (float(x) for x in over_seeds(test.usable))
    statistic = f"{test.statistic} (claim: {'<' if test.below else '>'} {test.threshold:.3g}):"
    known = not np.isnan(low)
    corrected = None if np.isnan(p) else p
    ends = (low, high) if known else (None, None)
    return Verdict(test.claim, outcome, statistic, mean, ends[0], ends[1], n, corrected, "; ".join(notes), test.subject)


def judged_inside(
    claim: str, values: Array, inside: tuple[float, float], statistic: str, reason: str = "", subject: str = ""
) -> Verdict:
    """Holds where the interval over seeds lies inside, fails where it lies outside, else undecided."""
    usable = values[~np.isnan(values)]
    if len(usable) < 2:
        return Verdict(claim, "undecided", "too few seeds have it", n=len(usable), reason=reason, subject=subject)
    mean, low, high = (float(x) for x in over_seeds(usable))
    within, outside = inside[0] <= low and high <= inside[1], high < inside[0] or low > inside[1]
    outcome: Outcome = "holds" if within else "fails" if outside else "undecided"
    named = f"{statistic} (claim: {inside[0]:.3g} to {inside[1]:.3g}):"
    return Verdict(claim, outcome, named, mean, low, high, len(usable), None, reason, subject)
