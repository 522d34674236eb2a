"""Ask for the causes of anisotropy by comparing changed models (arms) with unchanged ones, paired by seed.

Does sharp attention need the drift of queries and keys? Where does A (mean cosine) come from? Does the recipe turn the
heads? Does the softmax ask for sinks? Is A harmful? Claims, with how large an effect they need and why, were written in
published.toml before any trained model (cell) was judged.

A cell that has learnt little more than word frequencies (skill over the unigrams below LEARNT) is no evidence on
trained models: it is counted and left out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope.sums.isotropic import cosine_quantile
from anisoscope.sums.jackknife import estimate_over_seeds
from anisoscope_papers.beyond.arms import BASE
from anisoscope_papers.beyond.trained import LOSS, SKILL, Experiment, Recipe, measure
from anisoscope_papers.judge import (
    Test,
    average_over_seeds,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.study import Claim, Context, Verdict, declare, read_claims
from anisoscope_papers.training.recipe import SIZES, ModelSize

LEARNT = 0.05
"""Skill from which on a model is said to have learnt: a twentieth of what there is to know beyond the unigrams."""
SIZE = ModelSize(
    layers=4,
    width=128,
    heads=4,
    vocabulary=1024,
    window=32,
    batch=32,
    rate=2e-3,
    steps=1500,
)
"""Small enough for two cores. Masked tokens, 15 % of a window, leave it at the loss of the unigrams for 1,200 steps and
more (skill .01); every token from those before it is learnt within minutes."""
# `paper`: as registered. `quick`: enough to see that everything runs, and nothing else.
FULL = Recipe("causal-lm", SIZE, SIZE.steps, looks=(125, 250, 500, 1000))
BRIEF = Recipe("causal-lm", SIZE, 120, looks=(40,))
ARMS = {
    "drift": (BASE, "queries-centred", "keys-centred", "qk-norm", "no-qk-bias"),
    "origins": (BASE, "balanced", "type", "untied", "decay"),
    "heads": (BASE, "type", "untied", "no-qk-bias"),
    "sinks": (BASE, "softmax1", "sigmoid"),
    "useful": (BASE, "held-0", "held-.2", "held-.5"),
}
ASKED = {"sinks": 4, "useful": 4}
"""Studies of cells that are asked for more than a look, and their seeds; others have six."""


def _list_settings(name: str, arms: tuple[str, ...]) -> dict[str, Experiment]:
    """Return {name of settings: what is trained} of the study `name`, on these arms (changed models)."""
    asked = name in ASKED
    whole = Experiment(arms, ASKED.get(name, 6), FULL, asked=asked)
    return {
        "quick": Experiment(arms[:2], 2, BRIEF, asked=asked),
        "paper": whole,
        "finished": replace(whole, train=False),
    }


SETTINGS = {name: _list_settings(name, arms) for name, arms in ARMS.items()}
MASKED = Recipe(
    "masked-lm",
    SIZES["small"],
    SIZES["small"].steps,
    looks=(250, 500, 1000, 2000, 4000, 7000),
)
SETTINGS["origins"]["masked"] = Experiment((BASE, "type"), 6, MASKED)
"""`quick`: two arms and two seeds that have hardly begun to learn, which decides nothing; `paper`: as registered;
`finished`: as far as `paper` is trained, nothing is; `masked`: the models of figure 1, as BERT is trained and until the
skill no longer grows, without and with a type vector that all tokens share (six core-hours).
"""
OPPOSITE = "heads.opposite"
"""Read from `query_key.cosine`: 1 for a head whose means end opposite, else 0."""


SHOWN = ("attention.entropy", "mean_cosine", "query_key.cosine", LOSS, SKILL)
"""What every study of arms keeps of its cells (A: of hidden states), beside what its claims are about. The cells hold
more.
"""


def measure_arms(name: str, experiment: Experiment, context: Context) -> pd.DataFrame:
    """Measure all trained models (cells) of an experiment, and return the records that the study `name` uses.

    These are the metrics of its claims and figures. An arm is a model with one or more changes, or `base` without.
    """
    records = measure(experiment, context)
    read = {*SHOWN, *(claim.metric for claim in read_claims("beyond", name).values())}
    # A is also measured of queries and keys, head by head; no figure shows those rows
    is_of_heads = (records["metric"] == "mean_cosine") & ~records["site"].isin(
        ["hidden"]
    )
    return records[records["metric"].isin(read) & ~is_of_heads].reset_index(drop=True)


def average_cells(
    records: pd.DataFrame,
    metric: str,
    site: str = "",
    *,
    last: bool = False,
    start: bool = False,
) -> pd.Series:
    """Average a metric within each trained model (cell); return one number per model, indexed by (arm, seed).

    An arm is a changed model. The mean is over heads and layers, at the last step of training, or with `start` at the
    first one. Cosines of mean query and mean key count by absolute value. For hidden states, the input of the blocks is
    left out; `last` takes only the last layer.
    """
    cosine = "query_key.cosine"
    # The share of opposite heads is counted from the cosines of all heads.
    rows = select(records, metric=cosine if metric == OPPOSITE else metric)
    if site:
        rows = select(rows, site=site)
    step = rows["step"].min() if start else rows["step"].max()
    rows = rows[rows["step"] == step]
    if site == "hidden" and last:
        rows = rows[rows["layer"] == rows["layer"].max()]
    elif site == "hidden":
        # Layer 0 is the input of the blocks: embeddings, which no attention has mixed.
        rows = rows[rows["layer"] > 0]
    values = rows["value"]
    if metric == cosine:
        # Heads end similar or opposite; a mean of signed cosines would cancel them.
        values = values.abs()
    elif metric == OPPOSITE:
        # below what chance gives two directions of this many dimensions
        values = (
            values < -float(cosine_quantile(0.975, SIZE.width // SIZE.heads))
        ).astype(float)
    by_cell: pd.Series = values.groupby(
        [rows["model"].astype(str), rows["seed"].astype(int)]
    ).mean()
    return by_cell


def judge(
    name: str, records: pd.DataFrame, *, baseline: str = "the unigrams"
) -> list[Verdict]:
    """Judge every claim of the study `name`, by differences between models of the same seed.

    A difference is that of the claim's arm (changed model) and what the claim compares it with: another arm, or the
    same model before training. Claims without a finished pair are undecided.

    baseline   the guess that skill is measured against, in words
    """
    of_study = list(read_claims("beyond", name).values())
    # Nothing is trained yet: the claims are listed all the same, so that a page shows
    # what is asked.
    if records.empty:
        verdicts = []
        for claim in of_study:
            verdict = make_verdict_without_test(
                claim, None, "not trained", reason="no finished cell"
            )
            verdicts.append(verdict)
        return verdicts
    skill = average_cells(records, SKILL)
    tests = []
    untrained = []
    for claim in of_study:
        for arm in claim.systems:
            # A claim on several arms has a verdict for each.
            subject = arm if len(claim.systems) > 1 else ""
            pairs = subtract_paired(claim, records, arm)
            if len(pairs):
                tests.append(
                    _make_test(claim, records, arm, pairs, skill, baseline, subject)
                )
            else:
                why = f"no seed of {arm} beside {claim.against} is finished"
                untrained.append(
                    make_verdict_without_test(
                        claim, None, "not trained", reason=why, subject=subject
                    )
                )
    return [*_discount_failed_arms(of_study, judge_tests(tests)), *untrained]


def _make_test(
    claim: Claim,
    records: pd.DataFrame,
    arm: str,
    pairs: pd.Series,
    skill: pd.Series,
    baseline: str,
    subject: str,
) -> Test:
    """Make the test of a claim on one arm (changed model).

    pairs     differences of the arm to what the claim compares it with, by seed
    skill     of every cell, by (arm, seed)
    baseline  what skill is relative to, in words
    subject   the arm, if the claim has several
    """
    learnt = skill[skill >= LEARNT].index
    # `start` and `zero` are no arms: there the arm alone must have learnt something.
    other = claim.against if claim.against in skill else arm
    # a model that has learnt nothing is no evidence on trained models: its pair is left out
    is_known = [
        (arm, seed) in learnt and (other, seed) in learnt for seed in pairs.index
    ]
    values = np.where(is_known, pairs.to_numpy(float), np.nan)
    reasons = [
        f"skill over {baseline} {skill[arm].mean():.2f}, of {BASE} {skill[BASE].mean():.2f}"
    ]
    if not all(is_known):
        reasons.append(f"a cell whose skill is below {LEARNT:g} says nothing")
    nothing = _explain_untestable(claim, records)
    if not nothing:
        return make_test_of_seeds(
            claim, values, reason="; ".join(reasons), subject=subject
        )
    test = make_test_of_seeds(
        claim, values, reason="; ".join([nothing, *reasons]), subject=subject
    )
    # The number is shown, and judged neither way.
    return replace(test, up=np.nan, down=np.nan)


def _discount_failed_arms(
    of_study: Iterable[Claim], verdicts: Sequence[Verdict]
) -> list[Verdict]:
    """Make verdicts undecided if they rest on an arm (changed model) whose change did not do what its name says.

    An example is a penalty that was to hold A at 0 and did not. `of_study`: all claims of the study; those with `makes`
    say what an arm must do.
    """
    by_name = {claim.name: claim for claim in of_study}
    # First which arms failed, then every verdict that rests on one of them.
    not_made = _find_failed_arms(by_name, verdicts)
    marked = []
    for verdict in verdicts:
        claim = by_name[verdict.claim]
        # A verdict without a subject is on the claim's arm and what it is compared
        # with.
        arms = {verdict.subject} if verdict.subject else {*claim.systems, claim.against}
        why = "; ".join(not_made[arm] for arm in not_made if arm in arms)
        # The claim that found it out keeps its own verdict.
        if why and not claim.makes:
            reason = "; ".join(filter(None, (f"{why}: no conclusion", verdict.reason)))
            verdict = replace(verdict, outcome="undecided", failing="", reason=reason)
        marked.append(verdict)
    return marked


def _find_failed_arms(
    by_name: Mapping[str, Claim], verdicts: Sequence[Verdict]
) -> dict[str, str]:
    """Return {arm: why its change did not do what its name says}, from the verdicts on claims with `makes`."""
    not_made: dict[str, str] = {}
    for name, claim in by_name.items():
        if not claim.makes:
            continue
        for verdict in verdicts:
            if verdict.claim == name and verdict.outcome != "holds":
                number = ""
                if verdict.value is not None:
                    number = f": {claim.statistic} {verdict.value:.3g}"
                arm = claim.systems[0]
                not_made[arm] = f"`{arm}` is not what its name says{number}"
    return not_made


def _explain_untestable(claim: Claim, records: pd.DataFrame) -> str:
    """Return why a claim cannot be tested: the model that it compares with shows too little of the effect. "" if it can
    be.
    """

    def average(*, start: bool) -> float:
        """Return the claim's number of the model that it compares with, at the first step or the last; NaN if none."""
        by_cell = average_cells(records, claim.metric, claim.site, start=start)
        return float(by_cell.get(claim.against, pd.Series(dtype=float)).mean())

    if claim.lost is None and claim.premise is None:
        return ""
    # Nothing to lose: if `base` is hardly sharp, or training took nothing off, a change
    # that keeps it so proves nothing.
    now = average(start=False)
    if claim.lost is not None:
        lost = 1 - now / average(start=True)
        # Written so that NaN, without a model to compare with, does not pass.
        if not lost >= claim.lost:
            return f"training took {lost:.1%} off {claim.against}, and a test needs {claim.lost:.0%}"
    if claim.premise is None or now > claim.premise:
        return ""
    return (
        f"{claim.against} has {now:.3f}, and a test needs more than {claim.premise:g}"
    )


def subtract_paired(claim: Claim, records: pd.DataFrame, arm: str) -> pd.Series:
    """Return the differences, by seed, between an arm (changed model) at the end and what the claim compares it
    with.
    """
    # Claims on hidden states are about the mean over all layers, unless they say otherwise.
    last = claim.over == "last"
    at_end = average_cells(records, claim.metric, claim.site, last=last)
    if arm not in at_end:
        return pd.Series(dtype=float)
    own: pd.Series = at_end[arm]
    if claim.against == "zero":
        return own
    # a claim compares the arm with another arm at the end, or with itself before training
    others = at_end
    against = claim.against
    if claim.against == "start":
        others = average_cells(records, claim.metric, claim.site, last=last, start=True)
        against = arm
    if against not in others:
        return pd.Series(dtype=float)
    # By seed, since both began with the same weights; a seed that one lacks drops out.
    paired: pd.Series = (own - others[against]).dropna()
    return paired


def draw(
    name: str, records: pd.DataFrame, *, loss: str = "loss (nats)"
) -> dict[str, ChartType]:
    """Draw entropy and loss along training, A (mean cosine) by layer at the end, and what each arm (changed model)
    changes in the claims' numbers.

    `name`: the study; `loss`: title of the axis of losses. Returns {chart name: chart}.
    """
    if records.empty:
        return {}
    charted = {
        f"{name}_entropy": charts.trajectory(
            _average_course(records, "attention.entropy"),
            titles=("step", "entropy (nats)"),
        ),
        f"{name}_loss": charts.trajectory(
            _average_course(records, LOSS), titles=("step", loss)
        ),
    }
    rows = select(records, metric="mean_cosine", site="hidden")
    rows = rows[rows["step"] == rows["step"].max()]
    charted[f"{name}_layers"] = charts.layer_curve(
        average_over_seeds(rows, "metric", "model", "layer")
    )
    # One chart for each number that claims compare with `base`.
    of_metric = {}
    for claim in read_claims("beyond", name).values():
        if claim.against == BASE:
            of_metric[claim.metric] = claim
    for metric, claim in of_metric.items():
        bars = compute_effects(claim, records)
        if len(bars):
            drawn = charts.bars(
                bars, category="arm", titles=(claim.statistic, ""), size=(420, 17)
            )
            charted[f"{name}_{metric.replace('.', '_')}"] = drawn
    return charted


def compute_effects(claim: Claim, records: pd.DataFrame) -> pd.DataFrame:
    """Return how every arm (changed model) differs from `base` in the number of a claim: arm, value, low, high (over
    seeds).
    """
    rows = []
    for arm in dict.fromkeys(records["model"].astype(str)):
        if arm == BASE:
            continue
        pairs = subtract_paired(claim, records, arm)
        if len(pairs) > 1:  # one seed has no interval
            rows.append(
                {"arm": arm, **estimate_over_seeds(pairs.to_numpy(float))._asdict()}
            )
    return pd.DataFrame(rows)


def _average_course(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return a metric by arm (changed model) and step: averaged over heads and layers, then over seeds."""
    rows = select(records, metric=metric)
    cells = (
        rows.groupby(["metric", "model", "step", "seed"], sort=False)["value"]
        .mean()
        .reset_index()
    )
    return average_over_seeds(cells, "metric", "model", "step")


STUDIES = tuple(
    declare(
        "beyond",
        name,
        settings=of_name,
        measure=partial(measure_arms, name),
        judge=partial(judge, name),
        draw=partial(draw, name),
    )
    for name, of_name in SETTINGS.items()
)
