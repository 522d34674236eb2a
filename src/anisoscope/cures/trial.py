"""Try cures (transforms that reduce anisotropy): fit each on one half of the units, score it on the other half.

Scores are compared with those of the unchanged vectors. Every difference has a paired interval: the same groups of
units are left out before and after, so that what both share does not widen it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.cures import tasks
from anisoscope.cures.transforms import DEFAULT, Fit, expand_cures, fit_cure
from anisoscope.errors import MeasureError, UsageError
from anisoscope.metrics import spectrum
from anisoscope.metrics.base import COSINE, SHARE
from anisoscope.sums.isotropic import q95
from anisoscope.sums.jackknife import Bounds, Estimate, jackknife_interval

Array = NDArray[np.float64]
Numbers = NDArray[np.int64]

GROUPS = 32
FEWEST_UNITS = 8
"""Units that a trial needs: half of them to fit on, half to try on, three groups at least for an interval."""
MOST_FOR_NEIGHBOURS = 20_000
"""Test vectors that neighbours are searched among; a seeded sample of them if there are more."""
TASKS = {
    "neighbours kept": "share of the ten nearest vectors of other units that stay among the ten nearest",
    "retrieval": "share of the ten nearest vectors of other units that carry the same label",
    "pairs found": "share of vectors whose nearest partner is their own",
    "probe": "accuracy of a linear probe trained on the fitting half",
}


@dataclass(frozen=True)
class Score:
    """One number before and after a cure, with the paired difference, on the half of the units that was not fitted
    on.
    """

    name: str
    before: Estimate
    after: Estimate
    difference: Estimate


@dataclass(frozen=True)
class CureTrial:
    """The result of one cure: its fit, and scores by name (`A`, `isoscore`, `effective rank`, and tasks)."""

    fit: Fit
    scores: dict[str, Score]
    harmed: tuple[str, ...] = ()
    helped: tuple[str, ...] = ()
    isotropic: bool = False


@dataclass(frozen=True)
class Trials:
    """The results of all cures tried on one set of vectors, and the one that is recommended."""

    trials: list[CureTrial]
    n_fitted: int
    n_tried: int
    units_tried: int
    floor: float
    chosen: CureTrial | None
    text: str
    notes: list[str] = field(default_factory=list)

    def table(self) -> pd.DataFrame:
        """Return a row for each cure and score: value before and after, difference, each with its 95 % interval."""
        rows = []
        for trial in self.trials:
            for score in trial.scores.values():
                row: dict[str, Any] = {"cure": trial.fit.name, "score": score.name}
                for label in ("before", "after", "difference"):
                    estimate = getattr(score, label)
                    row[label] = float(estimate.value)
                    row[f"{label}_low"] = float(estimate.low)
                    row[f"{label}_high"] = float(estimate.high)
                row["harmed"] = score.name in trial.harmed
                rows.append(row)
        return pd.DataFrame(rows)


def try_cures(
    x: Any,
    cures: str | Sequence[str] = DEFAULT,
    *,
    units: Any = None,
    labels: Any = None,
    partner: Any = None,
    seed: int = 0,
    groups: int = GROUPS,
) -> Trials:
    """Fit each cure (a transform that reduces anisotropy) on half of the units and score it on the other half.

    x        vectors [vector, dim], an array
    cures    names as in `expand_cures`: `centre`, `standardise`, `whiten`, `remove-top:1..8`, `drop-dims:auto`
    units    the independent piece of data that each vector comes from; None: each its own
    labels   the class of each vector, as numbers from 0: retrieval and a probe are scored
    partner  [vector, dim]: row i is the pair of row i of `x` (a question and its answer): retrieval of pairs is scored,
             and cures are fitted on both sides together
    seed     decides which units are fitted on, and which vectors are compared if there are many

    UsageError if shapes do not fit, or fewer than `FEWEST_UNITS` units have a usable vector.
    """
    x = np.asarray(x, dtype=np.float64)
    units = np.arange(len(x)) if units is None else np.asarray(units)
    if labels is not None:
        labels = np.asarray(labels)
    _check_shapes(x, units, labels, partner)
    if partner is not None:
        partner = np.asarray(partner, dtype=np.float64)
    notes: list[str] = []
    x, units, labels, partner = _drop_unusable(x, units, labels, partner, notes)
    # After that: a unit whose vectors were all left out is none to fit or try on.
    _require_units(units)
    fitting, group = _split_units(units, seed, groups)
    trying = ~fitting
    # Neighbours need the cosines of all pairs, so that their cost grows with the square
    # of the number of vectors.
    sample = _sample_rows(np.flatnonzero(trying), seed)
    if len(sample) < trying.sum():
        notes.append(
            f"neighbours among {len(sample):,} of {int(trying.sum()):,} vectors, drawn with seed {seed}"
        )
    scorer = _Scorer(x, units, labels, partner, fitting, trying, sample, group, groups)
    # Unchanged vectors come first: the scorer compares the neighbours after each cure
    # with theirs.
    before = scorer.score(None)
    fitted_on = _join_sides(x, partner, fitting)
    floor = q95(x.shape[1])
    units_of_tasks = len(np.unique(units[sample]))
    trials = []
    for fit in _fit_cures(expand_cures(cures), fitted_on, notes):
        trials.append(_compare(fit, before, scorer.score(fit), floor, units_of_tasks))
    chosen = None
    # Isotropic vectors need no cure, but most cures would leave them isotropic, and
    # the first of these would be recommended.
    if not _is_isotropic(before, floor):
        chosen = _choose(trials)
    return Trials(
        trials,
        n_fitted=int(fitting.sum()),
        n_tried=int(trying.sum()),
        units_tried=len(np.unique(units[trying])),
        floor=floor,
        chosen=chosen,
        text=_describe(trials, chosen, before, floor),
        notes=notes,
    )


def fit_to_use(name: str, x: Any, partner: Any = None) -> Fit:
    """Fit a cure (a transform that reduces anisotropy) on all vectors, to be used on other ones.

    For a test a cure is fitted on half of the vectors only. Once it is chosen, the other half serves better in the fit.

    name      of the cure, such as `centre` or `remove-top:3`
    x         vectors [vector, dim]; those that are zero or not finite are left out
    partner   [vector, dim]: row i is the pair of row i of `x`; the cure is fitted on both sides. None: no pairs
    """
    x = np.asarray(x, dtype=np.float64)
    if partner is not None:
        partner = np.asarray(partner, dtype=np.float64)
    return fit_cure(name, _join_sides(x, partner, _find_usable(x, partner)))


def _drop_unusable(
    x: Array,
    units: Numbers,
    labels: Numbers | None,
    partner: Array | None,
    notes: list[str],
) -> tuple[Array, Numbers, Numbers | None, Array | None]:
    """Leave out vectors that are zero or not finite; return the others with their units, labels and partners.

    notes   receives a sentence with the number of vectors left out, if any
    """
    is_usable = _find_usable(x, partner)
    left_out = int((~is_usable).sum())
    if left_out:
        notes.append(f"{left_out} vectors that are zero or not finite were left out")
    if labels is not None:
        labels = labels[is_usable]
    if partner is not None:
        partner = partner[is_usable]
    return x[is_usable], units[is_usable], labels, partner


def _find_usable(x: Array, partner: Array | None) -> NDArray[np.bool_]:
    """Return which vectors are finite and not zero [vector]; of a pair both sides must be."""
    sides = [x]
    if partner is not None:
        sides.append(partner)
    is_usable = np.ones(len(x), dtype=bool)
    for side in sides:
        # A zero vector has no direction, so that no cosine with it is defined.
        is_usable &= np.isfinite(side).all(axis=1) & side.any(axis=1)
    return is_usable


def _join_sides(x: Array, partner: Array | None, chosen: NDArray[np.bool_]) -> Array:
    """Return the chosen vectors, followed by their partners if there are pairs.

    chosen   which vectors to take [vector]
    """
    if partner is None:
        return x[chosen]
    return np.concatenate([x[chosen], partner[chosen]])


def _fit_cures(names: Sequence[str], x: Array, notes: list[str]) -> Iterator[Fit]:
    """Fit several cures on vectors and yield them one by one.

    A cure that chooses itself which dimensions to drop (`drop-dims:auto`) is left out with a note if no dimension would
    be left; MeasureError if it is the only one.

    names   of the cures
    x       vectors [vector, dim]
    notes   receives the note
    """
    for name in names:
        try:
            yield fit_cure(name, x)
        except MeasureError as error:
            # A user who named dimensions must hear that they do not fit. `auto` chose
            # them itself, and is one of the default cures: the others still run.
            if len(names) == 1 or not name.endswith(":auto"):
                raise
            notes.append(f"{name} is left out: {error}")


def _check_shapes(
    x: Array, units: Numbers, labels: Numbers | None, partner: Array | None
) -> None:
    """Raise UsageError if the shapes do not fit together."""
    if x.ndim != 2 or x.shape[1] < 2:
        raise UsageError(
            "an array [vector, dim] of vectors with at least two dimensions",
            f"shape {list(x.shape)}",
            "reshape it to [vector, dim]",
        )
    for name, given in (("units", units), ("labels", labels)):
        if given is not None and len(given) != len(x):
            raise UsageError(
                f"{name} for each of {len(x)} vectors",
                str(len(given)),
                f"give {name} one entry per vector",
            )
    if partner is not None and np.shape(partner) != x.shape:
        raise UsageError(
            f"pairs of shape {list(x.shape)}",
            str(list(np.shape(partner))),
            "give one partner per vector, in the same order",
        )


def _require_units(units: Numbers) -> None:
    """Raise UsageError if there are fewer than `FEWEST_UNITS` units.

    units   number of the unit of each usable vector
    """
    # Intervals are over units, however many vectors each has.
    count = len(np.unique(units))
    if count < FEWEST_UNITS:
        expected = f"at least {FEWEST_UNITS} units, half of them to fit on"
        raise UsageError(
            expected,
            str(count),
            "give more data, or leave units out if vectors are independent",
        )


def _split_units(
    units: Numbers, seed: int, groups: int
) -> tuple[NDArray[np.bool_], Numbers]:
    """Draw half of the units to fit cures on, and put the units of the other half into groups for the jackknife.

    units    number of the unit of each vector
    groups   number of groups

    Returns (which vectors cures are fitted on [vector], the group of each vector [vector]).
    """
    # Whole units are drawn: vectors of one document on both sides would let the fit see
    # the test.
    names, number = np.unique(units, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(names))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    is_fitting = rank < len(names) // 2
    # Units of the half that is tried are dealt out to groups in turn, so that groups are of nearly the same size.
    group = (rank - len(names) // 2) % groups
    return is_fitting[number], group[number]


def _sample_rows(rows: Numbers, seed: int) -> Numbers:
    """Return row numbers unchanged, or a random sample if there are more than `MOST_FOR_NEIGHBOURS`."""
    if len(rows) <= MOST_FOR_NEIGHBOURS:
        return rows
    chosen = np.random.default_rng(seed).choice(
        rows, MOST_FOR_NEIGHBOURS, replace=False
    )
    # In the order of the data, as without a sample.
    return np.sort(chosen)


@dataclass
class _Scorer:
    """Computes scores of vectors after a cure: of all test vectors, then with each group left out [1 + group].

    x, units, labels, partner   as for `try_cures`
    fitting, trying             which vectors cures are fitted on, and which they are tested on [vector]
    sample                      row numbers of the test vectors whose neighbours are compared
    group, groups               the group of units of each vector, and the number of groups
    neighbours                  nearest neighbours of the unchanged vectors, once they were scored
    """

    x: Array
    units: Numbers
    labels: Numbers | None
    partner: Array | None
    fitting: NDArray[np.bool_]
    trying: NDArray[np.bool_]
    sample: Numbers
    group: Numbers
    groups: int
    neighbours: Numbers | None = None

    def score(self, fit: Fit | None) -> dict[str, Array]:
        """Return the scores of the test vectors after a cure as jackknife replicates [1 + group], by name.

        Names are `A`, `isoscore`, `effective rank`, `neighbours kept`, and with labels `retrieval` and `probe`, with
        pairs `pairs found`.

        fit   the fitted cure; None: the vectors are scored unchanged
        """
        transform: Callable[[Array], Array] = np.asarray if fit is None else fit.apply
        tried = transform(self.x[self.trying])
        group = self.group[self.trying]
        sampled = transform(self.x[self.sample])
        group_of_sample = self.group[self.sample]
        scores = {"A": _compute_mean_cosine(tried, group)} | _compute_spectrum(
            tried, group
        )
        neighbours = tasks.find_neighbours(sampled, self.units[self.sample])
        # The unchanged vectors are scored first, and the others compared with them.
        if self.neighbours is None:
            self.neighbours = neighbours
        kept = tasks.compare_neighbours(self.neighbours, neighbours)
        # Scores of the sample have fewer vectors, hence groups of their own.
        scores["neighbours kept"] = self._average(kept, group_of_sample)
        if self.labels is not None:
            precision = tasks.compute_precision(neighbours, self.labels[self.sample])
            scores["retrieval"] = self._average(precision, group_of_sample)
            # The probe learns from the fitting half, so that it is tested on units that
            # neither it nor the cure has seen.
            fitted = transform(self.x[self.fitting])
            classes = int(self.labels.max()) + 1
            is_right = tasks.run_probe(
                fitted,
                self.labels[self.fitting],
                tried,
                self.labels[self.trying],
                classes,
            )
            scores["probe"] = self._average(is_right, group)
        if self.partner is not None:
            is_nearest = tasks.find_own_pairs(
                sampled, transform(self.partner[self.sample])
            )
            scores["pairs found"] = self._average(is_nearest, group_of_sample)
        return scores

    def _average(self, scores: Array, group: Numbers) -> Array:
        """Return the mean of scores [vector], then the mean without each group of units [1 + group].

        group   the group of each vector
        """
        return tasks.average_by_group(scores, group, self.groups)


def _compute_mean_cosine(y: Array, group: Numbers) -> Array:
    """Return the anisotropy A (mean cosine over distinct pairs), then A without each group of units [1 + group].

    y       vectors [vector, dim]
    group   the group of units of each vector
    """
    direction = tasks.divide_by_norms(y)
    counts: list[float] = []
    sums: list[Array] = []
    for number in np.unique(group):
        of_group = direction[group == number]
        # A cure may make a vector zero (its dimensions were dropped): it has no direction and is not counted.
        counts.append(float(of_group.any(axis=1).sum()))
        sums.append(of_group.sum(axis=0))
    count = np.array(counts)
    total = np.stack(sums)
    # Replicate 0 is of all vectors; each other one is the total without a group.
    n = np.concatenate([[count.sum()], count.sum() - count])
    u = np.concatenate([total.sum(axis=0, keepdims=True), total.sum(axis=0) - total])
    # A = (‖Σu‖² − n) / (n(n − 1)): a vector's cosine with itself is taken out.
    pairs = n * (n - 1)
    square = np.square(u).sum(axis=1)
    return np.asarray(
        np.divide(square - n, pairs, out=np.full(len(n), np.nan), where=pairs > 0)
    )


SPECTRUM_GROUPS = 8
"""Groups of units for the intervals of the spectrum: fewer, since each needs a matrix [dim, dim]."""


def _compute_spectrum(y: Array, group: Numbers) -> dict[str, Array]:
    """Return {"isoscore", "effective rank"} of vectors: of all, then without each of a few coarser groups of units.

    y       vectors [vector, dim]
    group   the group of units of each vector
    """
    from anisoscope.sums.groups import Totals

    # Vectors of which a cure leaves nothing are not counted, as in a measurement.
    is_counted = y.any(axis=1)
    # Group −1 is in none of the parts.
    coarse = np.where(is_counted, group % SPECTRUM_GROUPS, -1)
    parts = [y[coarse == number] for number in range(SPECTRUM_GROUPS)]
    terms = {
        # [group, 1, …]: a site with a single head, as `metrics.spectrum` takes sums of
        # a measurement.
        "moment_n": np.array([[len(part)] for part in parts], dtype=np.float64),
        "moment_vector": np.stack([part.sum(axis=0)[None] for part in parts]),
        "moment": np.stack([(part.T @ part)[None] for part in parts]),
    }
    values = spectrum.compute(Totals(terms))
    return {
        "isoscore": values["isoscore"][:, 0],
        "effective rank": values["effective_rank"][:, 0],
    }


RANGES: dict[str, Bounds] = {
    "A": COSINE,
    "isoscore": SHARE,
    "effective rank": (1.0, np.inf),
}


COUNTED = frozenset({"retrieval", "pairs found", "probe"})
"""Shares of right answers: if all are right, or none, the interval is Wilson's of one answer a unit."""


def _compare(
    fit: Fit,
    before: dict[str, Array],
    after: dict[str, Array],
    floor: float,
    units: int,
) -> CureTrial:
    """Return the result of a cure: scores before and after with intervals, and which tasks it harmed or helped.

    before, after   replicates of each score, by name
    floor           the largest A that counts as isotropic
    units           number of units that tasks were tried on
    """
    scores: dict[str, Score] = {}
    for name, raw in before.items():
        bounds = RANGES.get(name, SHARE)
        counted = units if name in COUNTED else None
        cured = after[name]
        # Groups without a defined score are missing, so that the two may have different ones.
        difference = np.full(1, np.nan)
        if cured.shape == raw.shape:
            difference = cured - raw
        scores[name] = Score(
            name,
            before=jackknife_interval(raw, bounds=bounds, counted=counted),
            after=jackknife_interval(cured, bounds=bounds, counted=counted),
            difference=jackknife_interval(difference),
        )
    # Every transform moves neighbours: that alone harms no task.
    of_tasks = [name for name in scores if name in TASKS and name != "neighbours kept"]
    return CureTrial(
        fit,
        scores,
        harmed=tuple(name for name in of_tasks if scores[name].difference.high < 0),
        helped=tuple(name for name in of_tasks if scores[name].difference.low > 0),
        isotropic=bool(scores["A"].after.high <= floor),
    )


def _choose(trials: list[CureTrial]) -> CureTrial | None:
    """Choose the cure to recommend: the first that makes vectors isotropic and harms no task; None if there is none.

    A later one is preferred if it keeps significantly more neighbours.

    trials   results of the cures, in the order in which the user named them
    """
    good = [trial for trial in trials if trial.isotropic and not trial.harmed]
    if not good:
        return None
    best = good[0]
    for trial in good[1:]:
        kept_by_best = best.scores["neighbours kept"].after
        kept = trial.scores["neighbours kept"].after
        # A difference that chance could make does not overrule the user's order.
        if kept.low > kept_by_best.high:
            best = trial
    return best


def _is_isotropic(before: dict[str, Array], floor: float) -> bool:
    """Return whether vectors need no cure: the interval of A (anisotropy) ends at or below `floor`.

    before   replicates of each score of the unchanged vectors, by name; A is one of them
    floor    the largest A that counts as isotropic
    """
    return float(jackknife_interval(before["A"], bounds=COSINE).high) <= floor


def _describe(
    trials: list[CureTrial],
    chosen: CureTrial | None,
    before: dict[str, Array],
    floor: float,
) -> str:
    """Say in one sentence which cure to use, or why none.

    chosen   the recommended cure; None: none
    before   replicates of each score of the unchanged vectors, by name
    floor    the largest A (anisotropy) that counts as isotropic
    """
    from anisoscope.wording import format_short, join_words

    a = float(before["A"][0])
    if _is_isotropic(before, floor):
        return (
            f"No cure is needed: A is {format_short(a)}, below {format_short(floor)}, "
            "what isotropic directions stay under."
        )
    if chosen is not None:
        after = chosen.scores["A"].after
        kept = chosen.scores["neighbours kept"].after
        text = f"Best cure: {chosen.fit.name}. On held-out units A falls from {format_short(a)}"
        text += f" to {format_short(float(after.value))}"
        text += f", {format_short(float(kept.value), 2)} of the nearest neighbours stay"
        if chosen.helped:
            text += f", and the task improves ({join_words(list(chosen.helped))})"
        return f"{text}."
    # Nothing was chosen: either every cure that works has a cost, or none works.
    harmful = [trial for trial in trials if trial.isotropic and trial.harmed]
    if harmful:
        costs = []
        for trial in harmful:
            costs.append(f"{trial.fit.name} ({join_words(list(trial.harmed))})")
        names = join_words(costs)
        return f"No cure that was tried is free: A becomes isotropic with {names}, at the cost of the task in brackets."
    lowest = min(trials, key=lambda trial: abs(float(trial.scores["A"].after.value)))
    value = format_short(float(lowest.scores["A"].after.value))
    return f"None of the cures tried makes the vectors isotropic; A is lowest with {lowest.fit.name} ({value})."
