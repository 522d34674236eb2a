"""A control for every claim: each judge on data where its claim is false, and where it is true, and how often it errs.

python papers/tools/controls.py            200 draws of every world, written to results/controls.json (about an hour);
                                           worlds that are finished are kept, so that it goes on where it was stopped
python papers/tools/controls.py --edge     at the edge of every claim alone: a minute
python papers/tools/controls.py --draws 20 --only fig13

A *world* makes new records out of committed ones: trainings that vary as those did (`as found`), trained models that
are their untrained selves, time that runs backwards, curves that never move, labels of N that are shuffled, layers
that lie exactly at a threshold, or far on one side of it. Claims about systems that were not measured (GPT-2, ByT5,
MiT) are controlled on small models under their names. Each study's own judge reads them. What is true in a world is
known from the world itself: the number of a claim, averaged over all draws, lies on the claim's side or it does not. A
claim that is false there must not be said to hold, and one that is not contrary there must not be said to be: each in
5 % of draws at most.

Judges that read seeds alone are controlled at the edge, besides: numbers of as many seeds, as far apart, around the
very threshold (`at the threshold`), and around no effect (`no effect`).
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from committed import RESULTS, read_verdicts
from numpy.typing import NDArray
from scipy import stats

from anisoscope.store import as_records, write_json
from anisoscope_papers import runner
from anisoscope_papers.godey2024.layer_curves import TRAINED, UNTRAINED
from anisoscope_papers.judge import (
    find_no_effect,
    judge_tests,
    look_up_bounds,
    make_test_of_seeds,
)
from anisoscope_papers.study import FAILING, Claim, Verdict

CONTROLS = RESULTS / "controls.json"
DRAWS, RATE = 200, 0.05
"""Draws of every world; the share of wrong verdicts from which on a claim is marked."""
SERIES = dict.fromkeys(("fig13", "fig14", "fig15", "fig23"), "causal")
LAYERS = dict.fromkeys(("fig1", "fig2", "fig3a", "fig3b", "fig4"), "long")
BLOCKS = dict.fromkeys(("fig6", "fig8", "fig9", "fig10"), "depth")
"""Which committed records a world is made of, by study."""
OF_A = ("mean_cosine", "mean_cosine.left_out", "mean_cosine.isotropic_q95")
"""What judges of A by layer read."""
# A verdict says in its statistic what its number was held against: `judge` writes
# `(claim: > 0 by 0.05)`, `(claim: 0.1 to 0.3)`, `against q95 0.145`. The limit is read
# from there, since it may depend on the model.
SIDE = re.compile(r"\(claim: ([<>]) (-?[\d.e+-]+)(?: by ([\d.e+-]+))?\)")
BETWEEN = re.compile(r"\(claim: (-?[\d.e+-]+) to (-?[\d.e+-]+)\)")
AGAINST = re.compile(r"against (?:q95|threshold) ([\d.e+-]+)")
COUNTED = re.compile(r"systems of which it holds, of (\d+)")

EDGE = "at the threshold, and no effect"
"""The world of claims that are judged by seeds alone."""

Random = np.random.Generator
World = Callable[[pd.DataFrame, Random], pd.DataFrame]


OF_ONE = ["model", "metric", "site", "layer", "head", "step", "component", "stack"]
"""Columns, besides the seed, that tell one number of records from another."""


# --- worlds -----------------------------------------------------------------------------------------------------------


def as_found(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Draw other trainings of the same kind: the mean over seeds plus a random mixture of the seeds' deviations.

    The mixture is the same for all numbers of a seed, so that numbers that varied together still do.
    """
    keys = [name for name in OF_ONE if name in records]
    numbered = records[records["seed"].notna() & records["value"].notna()]
    seeds = sorted(numbered["seed"].unique())
    # A single training does not vary.
    if len(seeds) < 2:
        return records
    group = numbered.groupby(keys, dropna=False, sort=False).ngroup().to_numpy()
    seed = np.searchsorted(
        np.array(seeds, dtype=float), numbered["seed"].to_numpy(float)
    )
    # [number, seed]; NaN if a seed lacks that number.
    wide = np.full((group.max() + 1, len(seeds)), np.nan)
    wide[group, seed] = numbered["value"].to_numpy(float)
    mean = np.nanmean(wide, axis=1, keepdims=True)
    apart = np.nan_to_num(wide - mean)
    # Deviations [number, seed] times normal weights [seed, new seed] / √(seeds − 1):
    # new trainings with the covariance of those that were found.
    mixing = random.standard_normal((len(seeds), len(seeds))) / np.sqrt(len(seeds) - 1)
    new = (mean + apart @ mixing)[group, seed]
    # A mixture may leave the values that a metric can have: a share above 1, a cosine
    # below −1.
    least, most = np.array(
        [look_up_bounds(str(metric)) for metric in numbered["metric"]]
    ).T
    drawn = records.copy()
    drawn.loc[numbered.index, "value"] = np.clip(new, least, most)
    return as_records(drawn)


def never_moving(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Draw models that never learn: every step is the first one again, with its heads shuffled and a little noise."""
    # Without new noise and shuffled heads all steps would be equal, and a judge would
    # see no variance at all.
    return _with_steps(
        as_found(records, random),
        random,
        lambda steps: np.zeros(len(steps), dtype=int),
        shuffled=True,
    )


def backwards(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Reverse time: what came last comes first."""
    return _with_steps(
        as_found(records, random), random, lambda steps: np.arange(len(steps))[::-1]
    )


def shuffled_layers(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Shuffle the layers of every seed: no two seeds agree on which layer does what."""
    drawn = as_found(records, random)
    placed = drawn["layer"].notna() & drawn["seed"].notna()
    # Every seed gets an order of its own.
    for _, rows in drawn[placed].groupby("seed", sort=False):
        layers = np.sort(rows["layer"].unique())
        turned = dict(
            zip(layers.tolist(), random.permutation(layers).tolist(), strict=True)
        )
        drawn.loc[rows.index, "layer"] = rows["layer"].map(turned)
    return as_records(drawn)


def seeds_alike(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Draw seeds that differ from their mean by a tenth of what they do: what all have in common is most of it."""
    drawn = as_found(records, random)
    mean = drawn.groupby(OF_ONE, dropna=False)["value"].transform("mean")
    return drawn.assign(value=mean + 0.1 * (drawn["value"] - mean))


def seeds_mirrored(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Mirror the layers of every second one of seeds that are alike: what was above the mean of the layers lies as far
    below it.

    So do the mean of the heads of a layer and the mean of their absolute values. Every second head gets the sum of the
    two, the others their difference, so that both means are mirrored.
    """
    drawn = seeds_alike(records, random)
    headed = drawn["head"].notna() & (drawn["metric"] == "query_key.cosine")
    # The second, fourth, … of the seeds.
    mirrored = drawn["seed"].isin(np.sort(drawn.loc[headed, "seed"].unique())[1::2])
    rows = drawn[headed & mirrored]
    whole = (
        rows["value"].abs().groupby([rows[key] for key in ("seed", "step", "layer")])
    )
    size = whole.transform("mean")
    mean = rows.groupby(["seed", "step", "layer"])["value"].transform("mean")
    # 2 · mean over layers − value: as far below as it was above.
    for part, name in ((size, "size"), (mean, "mean")):
        of_all = part.groupby([rows["seed"], rows["step"]]).transform("mean")
        rows = rows.assign(**{name: 2 * of_all - part})
    sign = np.where(rows["head"].astype(int) % 2 == 0, 1.0, -1.0)
    # No mean exceeds the mean of absolute values.
    kept = rows["mean"].clip(-rows["size"].abs(), rows["size"].abs())
    drawn.loc[rows.index, "value"] = kept + sign * rows["size"]
    return as_records(drawn)


def _with_steps(
    records: pd.DataFrame,
    random: Random,
    order: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    *,
    shuffled: bool = False,
) -> pd.DataFrame:
    """Replace the numbers of each step by those of another one; `order` gives which. `shuffled`: shuffle heads, add
    noise.
    """
    timed = records["step"].notna() & records["head"].notna()
    parts = [records[~timed]]
    for metric, rows in records[timed].groupby("metric", sort=False):
        steps = np.sort(rows["step"].astype(int).unique())
        if len(steps) < 2:
            parts.append(rows)
            continue
        source = dict(zip(steps.tolist(), steps[order(steps)].tolist(), strict=True))
        keys = ["seed", "layer", "head", "site", "component"]
        values = rows.set_index(["step", *keys])["value"]
        # A place can be recorded more than once: the first one counts.
        values = values[~values.index.duplicated()]
        heads = sorted(rows["head"].unique())
        for step, from_step in source.items():
            here = rows[rows["step"] == step].copy()
            wanted = here[keys].copy()
            if shuffled:
                turned = dict(
                    zip(heads, random.permutation(heads).tolist(), strict=True)
                )
                wanted["head"] = wanted["head"].map(turned)
            wanted.insert(0, "step", from_step)
            found = values.reindex(pd.MultiIndex.from_frame(wanted)).to_numpy(float)
            # What was not measured at the other step keeps its number.
            here["value"] = np.where(
                np.isnan(found), here["value"].to_numpy(float), found
            )
            if shuffled:
                spread = float(np.nanstd(found)) or 1e-6
                here["value"] = here["value"] + 0.02 * spread * random.standard_normal(
                    len(here)
                )
                least, most = look_up_bounds(str(metric))
                here["value"] = here["value"].clip(least, most)
            parts.append(here)
    return as_records(pd.concat(parts, ignore_index=True))


def shuffled_norms(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Shuffle the labels of N (the norm of the bias) in every seed, including N = 0."""
    drawn = as_found(records, random)
    # Fixed points are found from the whole grid, and the component of a histogram names
    # a bin as well: neither can be exchanged.
    labelled = drawn["component"].notna() & ~drawn["metric"].str.contains(
        "fixed_point|histogram", na=False
    )
    for (_, _), rows in drawn[labelled].groupby(["model", "seed"], sort=False):
        labels = rows["component"].unique()
        turned = dict(zip(labels, random.permutation(labels), strict=True))
        drawn.loc[rows.index, "component"] = rows["component"].map(turned)
    return as_records(drawn)


def never_growing(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Let the bias do nothing: the numbers at every N (norm of the bias) are those at N = 0, with a little noise."""
    drawn = as_found(records, random)
    labelled = drawn["component"].notna() & ~drawn["metric"].str.contains(
        "fixed_point|histogram", na=False
    )
    rows = drawn[labelled]
    keys = ["model", "seed", "metric", "site", "layer", "head"]
    start = rows[rows["component"].astype(float) == 0].set_index(keys)["value"]
    # One start for each quantity of each seed.
    start = start[~start.index.duplicated()]
    # Rows without a number at N = 0 keep their own.
    values = start.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy(float)
    noise = 1 + 1e-3 * random.standard_normal(len(values))
    drawn.loc[rows.index, "value"] = np.where(
        np.isnan(values), rows["value"].to_numpy(float), values * noise
    )
    return as_records(drawn)


CELL = ["model", "seed", "site", "stack", "layer"]
"""What tells one A from another, and the values with a group left out that belong to it."""


def _cells(records: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (positions of the rows of A (mean cosine), with and without left-out groups, which model and layer each
    belongs to).
    """
    places = np.flatnonzero(
        records["metric"].isin(["mean_cosine", "mean_cosine.left_out"])
    )
    rows = records.iloc[places]
    cells = np.asarray(
        rows.groupby(CELL, dropna=False, sort=False).ngroup(), dtype=np.int64
    )
    return np.asarray(places, dtype=np.int64), cells


def _moved(records: pd.DataFrame, by_cell: NDArray[np.float64]) -> pd.DataFrame:
    """Shift A (mean cosine), its interval and its left-out values by an amount for each model and layer."""
    places, cells = _cells(records)
    drawn = records.copy()
    for end in ("value", "low", "high"):
        values = drawn[end].to_numpy(float, copy=True)
        values[places] += by_cell[cells]
        drawn[end] = values
    return drawn


def _other_units(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Draw other documents, images or speakers: each model's A (mean cosine) moves by the deviations of its left-out
    groups.
    """
    places, cells = _cells(records)
    rows = records.iloc[places]
    # Only left-out values say how much A varies with the units; the full value moves
    # with them.
    left = (rows["metric"] == "mean_cosine.left_out").to_numpy(bool)
    of_left, cell = rows[left], cells[left]
    count = np.bincount(cell, minlength=cells.max() + 1)
    value = of_left["value"].to_numpy(float)
    mean = np.bincount(cell, value, minlength=len(count)) / np.maximum(count, 1)
    group = (
        of_left.groupby(["model", "seed", "component"], dropna=False, sort=False)
        .ngroup()
        .to_numpy()
    )
    # A group of units moves all layers of its model together.
    weight = random.standard_normal(group.max() + 1)[group]
    # The jackknife's factor √((G − 1) / G): the shift has the variance that the
    # jackknife gives A.
    scale = np.sqrt(np.maximum(count - 1, 0) / np.maximum(count, 1))
    shift = (
        np.bincount(cell, (value - mean[cell]) * weight, minlength=len(count)) * scale
    )
    return _moved(records, np.asarray(shift, dtype=np.float64))


def other_units(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Draw other units (documents, images or speakers) for the same systems."""
    return _other_units(records, random)


def untrained_selves(records: pd.DataFrame, random: Random) -> pd.DataFrame:
    """Exchange trained models with their untrained selves."""
    names = records["model"].astype(str)
    turned = names.str.replace(TRAINED, "\0", regex=False).str.replace(
        UNTRAINED, TRAINED, regex=False
    )
    turned = turned.str.replace("\0", UNTRAINED, regex=False)
    return _other_units(records.assign(model=turned), random)


def at_a_threshold(
    level: str,
    records: pd.DataFrame,
    random: Random,
    *,
    times: float = 1.0,
    by_training: float = 0.0,
) -> pd.DataFrame:
    """Put every layer exactly at a mean cosine of A = .2, or at q95 (`level`), but for the random draw of units
    (documents, images).

    times        the level is multiplied by it
    by_training  how much larger A is in trained models: untrained selves lie lower by it
    """
    places, cells = _cells(records)
    rows = records.iloc[places]
    # The shift is that of the full value; left-out values of the same layer move by as
    # much.
    whole = (rows["metric"] == "mean_cosine").to_numpy(bool)
    shift = np.zeros(cells.max() + 1)
    limits = (
        records[records["metric"] == "mean_cosine.isotropic_q95"]
        .drop_duplicates(CELL)
        .set_index(CELL)["value"]
    )
    wanted = limits.reindex(pd.MultiIndex.from_frame(rows[whole][CELL])).to_numpy(float)
    limit = wanted if level == "q95" else np.full(int(whole.sum()), float(level))
    untrained = rows[whole]["model"].astype(str).str.endswith(UNTRAINED).to_numpy(bool)
    limit = times * limit - by_training * untrained
    shift[cells[whole]] = np.nan_to_num(limit - rows[whole]["value"].to_numpy(float))
    return _other_units(_moved(records, shift), random)


@dataclass(frozen=True)
class Renamed:
    """A small model (`model`) under the name of a system that was not measured, with all layers in one `stack`."""

    model: str
    name: str
    stack: str


OTHER_SYSTEMS = {
    "fig1": (Renamed("small token LM", "gpt2", "decoder"),),
    "fig2": (
        Renamed("small byte LM", "byt5-base", "decoder"),
        Renamed("small token LM", "gpt2", "decoder"),
    ),
    "fig3b": (
        Renamed("small ViT", "vit-base", "encoder"),
        Renamed("small ViT", "mit-b0", "encoder"),
    ),
}
"""Systems that claims are about and no committed record is of, by study; two of them where a claim asks for several.

The names also matter for the effect of training: it is not judged where all tokens share a type vector, as those of the
small models of text do.
"""


def with_other_systems(
    systems: Sequence[Renamed], world: World, records: pd.DataFrame, random: Random
) -> pd.DataFrame:
    """Replace the records by those of small models under other names (`systems`), then make a world of them."""
    parts = []
    for system in systems:
        rows = records[records["model"].str.startswith(system.model)]
        names = rows["model"].str.replace(system.model, system.name, regex=False)
        parts.append(rows.assign(model=names, stack=system.stack))
    return world(pd.concat(parts, ignore_index=True), random)


def of_other_systems(study: str) -> dict[str, World]:
    """Return the worlds of a study in which small models have the names of systems that were not measured."""
    sides: dict[str, World] = {
        "below 0, less by training": partial(
            at_a_threshold, "q95", times=-1.0, by_training=-0.1
        ),
        "half of q95, hardly more by training": partial(
            at_a_threshold, "q95", times=0.5, by_training=0.01
        ),
        "at q95, by .02 of training": partial(at_a_threshold, "q95", by_training=0.02),
        "at .9, more by training": partial(at_a_threshold, "0.9", by_training=0.1),
    }
    if study == "fig2":
        sides["at .8"] = partial(at_a_threshold, "0.8")
    if study == "fig3b":
        sides["at .2"] = partial(at_a_threshold, "0.2")
    systems = OTHER_SYSTEMS.get(study, ())
    if not systems:
        return {}
    others: dict[str, World] = {}
    for name, world in sides.items():
        others[OTHERS + name] = partial(with_other_systems, systems, world)
    return others


OTHERS = "other systems, "
"""How the names of worlds begin in which small models have the names of systems that were not measured."""
OF_SERIES: dict[str, World] = {
    "as found": as_found,
    "never moving": never_moving,
    "time backwards": backwards,
}
OF_SEEDS: dict[str, World] = {
    "layers shuffled": shuffled_layers,
    "seeds alike": seeds_alike,
    "every second seed mirrored": seeds_mirrored,
}
"""Worlds of figure 23, which asks whether seeds agree."""
OF_BLOCKS: dict[str, World] = {
    "as found": as_found,
    "N shuffled": shuffled_norms,
    "N does nothing": never_growing,
}
OF_LAYERS: dict[str, World] = {
    "other units": other_units,
    "untrained selves": untrained_selves,
    "all layers at .2": partial(at_a_threshold, "0.2"),
    "all layers at q95": partial(at_a_threshold, "q95"),
}


def worlds() -> Iterator[tuple[str, str, dict[str, World]]]:
    """Yield (study, settings of the records used, its worlds): worlds are made-up records, by name."""
    for chosen, of_study in (
        (LAYERS, OF_LAYERS),
        (BLOCKS, OF_BLOCKS),
        (SERIES, OF_SERIES),
    ):
        for study, settings in chosen.items():
            of_one = of_study | of_other_systems(study)
            if study == "fig23":
                of_one |= OF_SEEDS
            yield study, settings, of_one


# --- what is right ----------------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What a judge said about a claim and subject in one world: a word and a number for each draw, and
    its statistic.
    """

    words: list[str] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    statistic: str = ""

    def truth(self, claim: Claim) -> tuple[bool, bool] | None:
        """Return (whether the claim is surely true, whether its contrary is), by the mean number over all draws.

        None if the verdict has no number, or its threshold is unknown, or the number is the place N* of something
        that the claim counts. Of a claim that several systems are anisotropic, the number counts systems: with two it
        is true, with fewer its contrary is; of one system it says nothing.
        """
        if self.statistic.startswith("N* ="):
            return None
        known = [x for x in self.values if np.isfinite(x)]
        if not known:
            return None
        mean = float(np.mean(known))
        # What so many draws leave open of the mean: three standard errors.
        open_by = 3 * float(np.std(known)) / np.sqrt(len(known))
        # The claim is that two systems or more are anisotropic: 1.5 lies between.
        if counted := COUNTED.match(self.statistic):
            if int(counted[1]) < 2:
                return None
            return mean > 1.5 + open_by, mean < 1.5 - open_by
        # Outside of both ends a claim fails as "beyond", which has no contrary.
        if between := BETWEEN.search(self.statistic):
            return float(between[1]) + open_by < mean < float(
                between[2]
            ) - open_by, False
        side, against = SIDE.search(self.statistic), AGAINST.search(self.statistic)
        if side:
            limit, floor = float(side[2]), float(side[3] or 0)
        elif against:
            limit, floor = float(against[1]), 0.0
        # The limit of a claim without one in its statistic: all of its verdicts have
        # the same.
        elif claim.inside is None and isinstance(claim.limit, (int, float)):
            limit, floor = float(claim.limit), claim.floor
        else:
            return None
        nothing = find_no_effect(claim, limit)
        if claim.below is not None:
            return mean < limit - floor - open_by, mean > nothing + open_by
        return mean > limit + floor + open_by, mean < nothing - open_by


def keep_layers(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records that judges of A by layer read, with texts as objects of Python: they are compared faster."""
    kept = records[
        records["metric"].isin(OF_A) & ~(records["token_policy"] != "all")
    ].reset_index(drop=True)
    # Columns that no judge reads: worlds copy the records hundreds of times.
    kept = kept.drop(columns=["run", "revision", "corpus", "n_vectors"])
    for name in (
        "model",
        "stack",
        "kind",
        "site",
        "token_policy",
        "metric",
        "component",
    ):
        kept[name] = kept[name].astype(object).where(kept[name].notna(), None)
    return kept


def control(
    study_name: str, settings: str, world: World, draws: int
) -> tuple[dict[str, Any], dict[tuple[str, str], Told]]:
    """Run the judge of a study on `draws` random draws of a world.

    Returns {claim name: claim}, and what the judge said by (claim, subject).
    """
    done = runner.open_finished(RESULTS / "godey2024" / settings / study_name)
    claims = {claim.name: claim for claim in done.study.claims}
    told: dict[tuple[str, str], Told] = {}
    records = done.records
    if study_name in LAYERS:
        records = keep_layers(records)
    for draw in range(draws):
        # The same draws at every run.
        random = np.random.default_rng([draw, len(study_name)])
        # Worlds without variance divide by 0, which the judges handle.
        with np.errstate(all="ignore"):
            found: list[Verdict] = list(done.study.judge(world(records, random)))
        for verdict in found:
            one = told.setdefault((verdict.claim, verdict.subject), Told())
            one.words.append(verdict.word)
            one.values.append(np.nan if verdict.value is None else verdict.value)
            one.statistic = (
                verdict.statistic if verdict.value is not None else one.statistic
            )
    return claims, told


def rates(
    claims: dict[str, Claim], told: dict[tuple[str, str], Told]
) -> Iterator[dict[str, Any]]:
    """Yield a row per claim: how often it was judged to hold where it is false, and contrary where it is not.

    Also how often it was judged to fail where it is false (`false_fails`), and to hold where it is true (`true_holds`).
    """
    for name, claim in claims.items():
        # It holds by construction: no world makes it false.
        if claim.identity:
            continue
        false = contrary = could_hold = could_be_contrary = no = 0
        fails = holds = of_true = 0
        for (of, _), one in told.items():
            if of != name:
                continue
            # (claim is true, contrary is true), or not known. Between the two neither
            # is.
            truth = one.truth(claim)
            failing = sum(word in FAILING for word in one.words)
            no += failing
            if truth is None:
                continue
            if truth[0]:
                of_true += len(one.words)
                holds += one.words.count("holds")
            else:
                could_hold += len(one.words)
                false += one.words.count("holds")
                fails += failing
            if not truth[1]:
                could_be_contrary += len(one.words)
                contrary += one.words.count("contrary")
        yield {
            "claim": name,
            "false_holds": false,
            "of_false": could_hold,
            "false_contrary": contrary,
            "of_not_contrary": could_be_contrary,
            "said_no": no,
            "false_fails": fails,
            "true_holds": holds,
            "of_true": of_true,
        }


# --- judges that read seeds alone, at the edge ------------------------------------------------------------------------


def at_the_edge(draws: int) -> Iterator[dict[str, Any]]:
    """Yield error rates of every claim that is judged by seeds alone, at its threshold and at no effect.

    Random numbers are as many as a committed verdict has seeds, with the spread of its interval.
    """
    for paper in ("godey2024", "fosse2023", "beyond"):
        seen = set()
        for path in sorted(RESULTS.glob(f"{paper}/*/*/study.json")):
            claims = {
                claim.name: claim
                for claim in runner.open_finished(path.parent).study.claims
            }
            for verdict in read_verdicts(path):
                claim, key = (
                    claims[verdict["claim"]],
                    (path.parent.name, verdict["claim"]),
                )
                side = SIDE.search(verdict["statistic"]) or BETWEEN.search(
                    verdict["statistic"]
                )
                if (
                    # One verdict for each claim is enough: the judge is the same for
                    # all.
                    key in seen
                    or side is None
                    or claim.identity
                    or claim.over
                    or not (verdict["n"] or 0) >= 3
                ):
                    continue
                if verdict["low"] is None or verdict["high"] <= verdict["low"]:
                    continue
                seen.add(key)
                yield {"paper": paper, "study": path.parent.name} | _edge(
                    claim, verdict, draws
                )


def _edge(claim: Claim, verdict: dict[str, Any], draws: int) -> dict[str, Any]:
    """Return the error rates of one claim at its threshold and at no effect."""
    # More than 50 numbers would only cost time.
    n = min(int(verdict["n"]), 50)
    # The standard deviation of seeds, from the interval: half its width is t · s / √n.
    apart = (
        (verdict["high"] - verdict["low"]) / 2 / stats.t.ppf(0.975, n - 1) * np.sqrt(n)
    )
    random = np.random.default_rng(len(claim.name))
    between, side = (
        BETWEEN.search(verdict["statistic"]),
        SIDE.search(verdict["statistic"]),
    )
    inside = (float(between[1]), float(between[2])) if between else None
    limit = float(side[2]) if side else float("nan")
    # For two ends: at the upper end, and in the middle between them.
    threshold = inside[1] if inside else claim.threshold(limit)
    nothing = float(np.mean(inside)) if inside else find_no_effect(claim, limit)
    # A share near 1 cannot vary as much as one near .5.
    least, most = claim.bounds or (-np.inf, np.inf)

    def said(centre: float) -> list[str]:
        """Judge random numbers around `centre`; return the verdicts' words."""
        words = []
        for _ in range(draws):
            values = centre + apart * random.standard_normal(n)
            # Near its bounds a number varies less.
            if least < centre < most:
                reach = min(centre - least, most - centre)
                values = centre + np.clip(values - centre, -reach, reach)
            test = make_test_of_seeds(
                claim, values, threshold=None if inside else limit, inside=inside
            )
            words.append(judge_tests([test])[0].word)
        return words

    at_threshold, at_nothing = said(threshold), said(nothing)
    return {
        "claim": claim.name,
        "world": EDGE,
        "false_holds": at_threshold.count("holds"),
        "of_false": draws,
        "false_contrary": at_nothing.count("contrary"),
        "of_not_contrary": draws,
        "said_no": sum(
            word not in ("holds", "undecided") for word in at_threshold + at_nothing
        ),
    }


# --- the table --------------------------------------------------------------------------------------------------------


def in_worlds(
    draws: int, only: str = "", kept: Sequence[dict[str, Any]] = ()
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of every world of whole records, a list per world; `kept`: rows of worlds that are finished."""
    finished = {
        (row["study"], row["world"]) for row in kept if row.get("draws") == draws
    }
    for study, settings, of_study in worlds():
        for name, world in of_study.items():
            if (only and study != only) or (study, name) in finished:
                continue
            claims, told = control(study, settings, world, draws)
            about = {
                "paper": "godey2024",
                "study": study,
                "world": name,
                "draws": draws,
            }
            yield [about | row for row in rates(claims, told)]
            sys.stderr.write(f"{study}, {name}\n")


def unfinished(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the worlds of whole records that no row is about, as `fig13, time backwards`."""
    known = {(row["study"], row["world"]) for row in rows}
    left = []
    for study, _, made in worlds():
        for name in made:
            if (study, name) not in known:
                left.append(f"{study}, {name}")
    return left


WHY = {
    ("fig23", "same-layers-over-seeds"): (
        "Where nothing moves, seeds have a little in common all the same: the mean correlation of two is about .07. "
        "That is more than nothing and less than the .3 that the claim asks for. The judge asks two things: that the "
        "orders of the layers agree more than by chance, and that the number itself (not its interval) is above .3. "
        "If layers are shuffled in every seed, so that seeds have nothing in common, it errs in 5 % of draws at most."
    ),
}
"""Why a judge errs more often than it may, by study and claim."""
WRONG = (("false_holds", "of_false"), ("false_contrary", "of_not_contrary"))
"""How often a verdict was wrong, and of how many that could be."""


def _mean(rows: list[dict[str, Any]], wrong: str, of: str) -> float:
    """Return the share of wrong verdicts over all rows."""
    return float(sum(row[wrong] for row in rows) / max(sum(row[of] for row in rows), 1))


def share(row: dict[str, Any], wrong: str, of: str) -> float:
    """Return the share of wrong verdicts in a row; NaN if none could be wrong."""
    return float(row[wrong] / row[of]) if row[of] else float("nan")


def marked(row: dict[str, Any]) -> bool:
    """Return whether more than RATE of a row's verdicts are wrong."""
    return any(share(row, wrong, of) > RATE for wrong, of in WRONG)


def beyond_chance(row: dict[str, Any]) -> bool:
    """Return whether so many wrong verdicts are unlikely for a judge with error rate RATE (exact binomial, 95 %)."""
    for wrong, of in WRONG:
        if share(row, wrong, of) > RATE:
            test = stats.binomtest(row[wrong], row[of], RATE, alternative="greater")
            if test.pvalue < 0.05:
                return True
    return False


def never_failed(rows: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return the claims that failed in no draw of any world, as (paper, study, claim)."""
    failed: dict[tuple[str, str, str], int] = {}
    for row in rows:
        key = (row["paper"], row["study"], row["claim"])
        failed[key] = failed.get(key, 0) + row["said_no"]
    return [key for key, times in failed.items() if not times]


def page() -> str:
    """Return the page with the error rates of every judge, by claim: those of its worst world."""
    found: list[dict[str, Any]] = json.loads(CONTROLS.read_text("utf-8"))
    lines = [
        "# A control for every claim",
        "",
        "The rule that gives a claim its verdict (its *judge*) is run on data in which the claim is false, and on data",
        "in which it is true, 200 draws of each: `python papers/tools/controls.py`. *False holds* is the",
        "share of draws in which the judge said *holds* although the claim is false.",
        "*False contrary* is the share in which it said *contrary* although",
        "the contrary is not true. Both should be 5 % at most; a claim with more is **marked**. (A judge that errs",
        "in exactly 5 % of all draws exceeds 5 % in nearly half of all sets of 200.) *Said no* counts the draws in",
        "which the judge said contrary, too small or beyond.",
        "",
        "We call each kind of data a *world*. For each claim the table shows the world in which its judge erred",
        "most. A dash: there is no world in which we know that this verdict would be wrong. The worlds:",
        "",
        "- *at the threshold, and no effect*: as many numbers as our verdict has seeds, with the same",
        "  spread. Their mean is exactly the threshold of the claim (then *holds* is false) or exactly no effect (then",
        "  *contrary* is false).",
        "- All other worlds change whole records. *as found*: records vary as those in `papers/results` do.",
        "  *never moving*: nothing changes during training. *time backwards*: the steps of training in reverse.",
        "  *N shuffled* and *N does nothing*: the values of N are exchanged, or have no effect.",
        "  *other units*: other documents, images or speakers are drawn.",
        "  *untrained selves*: trained and untrained models change places. *all layers at …*: A of",
        "  every layer lies exactly at this threshold. *other systems, …*: small models under the names of the paper's",
        "  models, with A at, above or below the threshold. *layers shuffled*, *seeds alike*, *every second seed",
        "  mirrored*: worlds that change what seeds have in common (figure 23). *at q95, by .02 of",
        "  training*: A lies at q95, and training adds .02 to it.",
        "",
        "`papers/tools/controls.py` describes every world, and all rows are in `papers/results/controls.json`.",
        "",
    ]
    if left := unfinished(found):
        lines += ["These are still to be run: " + "; ".join(left) + ".", ""]
    by_claim: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in found:
        by_claim.setdefault((row["paper"], row["study"], row["claim"]), []).append(row)
    bad = [key for key, rows in by_claim.items() if any(map(marked, rows))]
    never = never_failed(found)
    # Of many sets of 200 draws some exceed 5 % although the judge errs in exactly 5 %.
    rare = [key for key, rows in by_claim.items() if any(map(beyond_chance, rows))]
    lines += [
        f"Of {len(by_claim)} claims {len(bad)} are marked; for {len(rare)} of them, chance in 200 draws does not",
        "explain it.",
        f"{_describe_never_failed(len(never))} Over all draws, *holds* was false in",
        f"{_mean(found, *WRONG[0]):.1%} and *contrary* in {_mean(found, *WRONG[1]):.1%}.",
        "",
    ]
    lines += [
        "| study | claim | false holds | in | false contrary | in | said no | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (paper, study, claim), rows in by_claim.items():
        entries = [f"{paper} {study}", claim]
        for wrong, of in WRONG:
            known = [row for row in rows if row[of]]
            # Each kind of error in the world in which it is most frequent.
            worst = max(known, key=partial(share, wrong=wrong, of=of), default=None)
            entries += (
                ["–", ""]
                if worst is None
                else [f"{share(worst, wrong, of):.1%}", worst["world"]]
            )
        entries += [
            str(sum(row["said_no"] for row in rows)),
            "**marked**" if any(map(marked, rows)) else "",
        ]
        lines.append(
            "| " + " | ".join(entry.replace("|", r"\|") for entry in entries) + " |"
        )
    for _, study, claim in bad:
        if (study, claim) in WHY:
            lines += ["", f"**{study}, {claim}**: {WHY[study, claim]}"]
    return "\n".join([*lines, "", *_both_ways(found), ""])


def _describe_never_failed(count: int) -> str:
    """Say of how many claims the judge never said no."""
    if not count:
        return "Every judge said no at least once."
    return f"{count} judges never said no."


def _both_ways(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return lines with a table of the claims that are false, or true, by construction: how often each was denied, or
    held.

    found   rows of the table of controls
    """
    lines = [
        "## False, and true, by construction",
        "",
        "We have no records of GPT-2, ByT5 or MiT, so the judges of claims about them would never be tested.",
        "Here, records of small models get these names. All layers of a model lie on one side of the claim's",
        "threshold, or at it; training adds to A or takes from it. Figure 23 asks whether seeds agree: in one",
        "world all seeds are nearly alike, in another the layers of every second seed are mirrored. For each",
        "claim, this table asks whether the judge *can* say each verdict. So, unlike the first, it shows the worlds",
        "that are easiest for the judge: where it most often denied a false claim,",
        "and most often said *holds* of a true one.",
        "",
        "| study | claim | failed where false | in | held where true | in |",
        "|---|---|---|---|---|---|",
    ]
    by_claim: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found:
        # Only worlds in which the claim is false, or true, by construction.
        if row["world"].startswith(OTHERS) or row["world"] in OF_SEEDS:
            by_claim.setdefault((row["study"], row["claim"]), []).append(row)
    for (study, claim), rows in by_claim.items():
        entries = [f"godey2024 {study}", claim]
        for right, of in (("false_fails", "of_false"), ("true_holds", "of_true")):
            known = [row for row in rows if row[of]]
            best = max(known, key=partial(share, wrong=right, of=of), default=None)
            if best is None:
                entries += ["–", ""]
            else:
                entries += [
                    f"{share(best, right, of):.1%}",
                    best["world"].removeprefix(OTHERS),
                ]
        lines.append("| " + " | ".join(entries) + " |")
    return lines if by_claim else []


def main() -> None:
    """Run the controls, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--draws",
        type=int,
        default=DRAWS,
        help=f"draws of every world (default {DRAWS})",
    )
    parser.add_argument(
        "--only",
        default="",
        help="one study, as fig13; its rows are shown and not kept",
    )
    parser.add_argument(
        "--edge",
        action="store_true",
        help="at the edge alone: a minute, where all take an hour",
    )
    parser.add_argument(
        "--anew",
        action="store_true",
        help="run finished worlds again, as after a change of a judge",
    )
    given = parser.parse_args()
    # For a look while a judge is being changed: the committed table stays as it is.
    if given.only:
        for rows in in_worlds(given.draws, given.only):
            for row in rows:
                sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        return
    before: list[dict[str, Any]] = (
        json.loads(CONTROLS.read_text("utf-8")) if CONTROLS.exists() else []
    )
    kept = [row for row in before if row["world"] != EDGE and not given.anew]
    edge = list(at_the_edge(given.draws))
    write_json(CONTROLS, kept + edge)
    # Saved after every world: the whole takes an hour, and goes on where it was
    # stopped.
    for rows in () if given.edge else in_worlds(given.draws, kept=kept):
        same = {(row["study"], row["world"]) for row in rows}
        kept = [row for row in kept if (row["study"], row["world"]) not in same] + rows
        write_json(CONTROLS, kept + edge)


if __name__ == "__main__":
    main()
