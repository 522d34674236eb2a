"""Describe courses, the values of a quantity along training: their trend, where they turn, and which of two moves
first.

Checkpoints lie at log-spaced steps, so a rank over checkpoints sees the first hundredth of training and little else.
Here every checkpoint counts for the part of training (or of the fall of the loss) that it represents. Where a course
turns is read from the *other* seeds: the lowest of several noisy values lies below the last by chance alone.
"""

import numpy as np
from scipy import stats

from anisoscope_papers.judge import Array

PLACES = 401
"""Evenly spaced places of a clock at which a course is read."""


def correlate_with_clock(course: Array, clock: Array) -> float:
    """Return the rank correlation of a course [step] with a clock [step] that never goes back, such as time.

    Every part of the clock counts alike. NaN if the course or the clock does not move.
    """
    if np.ptp(course) == 0 or np.ptp(clock) == 0:
        return float("nan")
    # Where the clock stands still, the last value is the one it has.
    last_of_each = np.append(np.diff(clock) > 0, True)
    # Reading at evenly spaced places weights each checkpoint by the time that it
    # covers. Without it, a rank over log-spaced steps would see the first hundredth of
    # training and little else.
    places = np.linspace(clock[0], clock[-1], PLACES)
    read = np.interp(places, clock[last_of_each], course[last_of_each])
    return float(stats.spearmanr(places, read).statistic)


def find_turning_places(courses: Array) -> Array:
    """Return for each seed of courses [seed, step] the index of the step at which the mean of the other seeds is
    lowest.

    A single seed gets its own lowest step.
    """
    if len(courses) == 1:
        return np.array(courses.argmin(1))
    places = []
    for seed in range(len(courses)):
        # Where a seed's own values are lowest, they lie below their end by chance
        # alone; the other seeds have other noise.
        others = np.delete(courses, seed, 0)
        places.append(others.mean(0).argmin())
    return np.array(places)


def measure_rise_since_turning(courses: Array) -> Array:
    """Return how much each seed of courses [seed, step] rises to the end, from the step where the other seeds are
    lowest.
    """
    seeds = np.arange(len(courses))
    # Each seed's own value, at the step that the others chose.
    lowest = courses[seeds, find_turning_places(courses)]
    return np.asarray(courses[:, -1] - lowest, dtype=np.float64)


def measure_lead(
    first: Array, second: Array, least: tuple[float, float]
) -> tuple[Array, Array]:
    """Return how far a course is ahead of another, [seed], and the index of the checkpoint where that is read, [seed].

    Both courses are [seed, step] and rise. The lead is the share of its own rise that each seed of `first` has made,
    minus that of `second`. It is read at the first checkpoint at which the other seeds have made half of the rise of
    `first`; nothing is interpolated. A rise goes from the first step to the highest step of the other seeds; NaN if
    either rise is less than its `least`.
    """
    seeds = np.arange(len(first))
    rises = []
    for course, smallest in zip((first, second), least, strict=True):
        rise = course[seeds, find_turning_places(-course)] - course[:, 0]
        # The share of a rise that is hardly there would be noise over noise.
        rises.append(np.where(rise >= smallest, rise, np.nan))
    places = []
    for seed in seeds:
        others = np.delete(first, seed, 0).mean(0) if len(first) > 1 else first[0]
        # Half of the way up from the first step. `argmax` finds the first step that is
        # there.
        half = others[0] + (others.max() - others[0]) / 2
        places.append(int((others >= half).argmax()))
    at = np.array(places)
    of_first, of_second = (
        (course[seeds, at] - course[:, 0]) / rise
        for course, rise in zip((first, second), rises, strict=True)
    )
    return np.asarray(of_first - of_second, dtype=np.float64), at
