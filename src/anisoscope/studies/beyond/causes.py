"""Does sharp attention need the drift of queries and keys, and where does A come from? Arms of one training, paired by
seed; what is claimed, how much must be seen of it and why so much stood in published.toml before any of them ran.

A cell that has learnt no more than how often words are (skill over the unigrams below LEARNT) says nothing of a
trained model: it is counted and left out.
"""

from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope.studies.beyond.arms import BASE
from anisoscope.studies.beyond.trained import LOSS, SKILL, Experiment, Recipe, measure
from anisoscope.studies.judge import judged, means_over_seeds, of_seeds, stated
from anisoscope.studies.study import Claim, Verdict, claims, declare
from anisoscope.training.recipe import SIZES, ModelSize

LEARNT = 0.05
"""Skill from which on a model is said to have learnt: a twentieth of what there is to know beyond the unigrams."""
SIZE = ModelSize(layers=4, width=128, heads=4, vocabulary=1024, window=32, batch=32, rate=2e-3, steps=1500)
"""Small enough for two cores. Masked tokens, 15 % of a window, leave it at the loss of the unigrams for 1,200 steps and
more (skill .01); every token from those before it is learnt within minutes."""
FULL = Recipe("causal-lm", SIZE, SIZE.steps, looks=(125, 250, 500, 1000))
BRIEF = Recipe("causal-lm", SIZE, 300, looks=(100,))
ARMS = {
    "drift": (BASE, "queries-centred", "keys-centred", "qk-norm", "no-qk-bias"),
    "origins": (BASE, "balanced", "type", "untied", "decay"),
}
SETTINGS = {
    name: {
        "quick": Experiment(arms[:2], 2, BRIEF),
        "paper": Experiment(arms, 6, FULL),
        "finished": Experiment(arms, 6, FULL, train=False),
    }
    for name, arms in ARMS.items()
}
MASKED = Recipe("masked-lm", SIZES["small"], SIZES["small"].steps, looks=(250, 500, 1000, 2000, 4000, 7000))
SETTINGS["origins"]["masked"] = Experiment((BASE, "type"), 6, MASKED)
"""`quick`: two arms and two seeds that have hardly begun to learn, which decides nothing; `paper`: as registered;
`finished`: as far as `paper` is trained, nothing is; `masked`: the models of figure 1, as BERT is trained and until the
skill no longer grows, without and with a type vector that all tokens share (six core-hours).
"""
OUTCOMES = {
    LOSS: ("loss", ""),
    "attention.entropy": ("entropy (nats)", "attention"),
    "mean_cosine": ("A of hidden states", "hidden"),
    "query_key.cosine": ("|cos(Q̄, K̄)|", ""),
}


def ends(
    records: pd.DataFrame, metric: str, site: str = "", *, last_layer: bool = False, start: bool = False
) -> pd.Series:
    """A number of every cell, by (arm, seed): at the last step or the first, mean over heads and layers (of a cosine of
    means: of its size; of hidden states: of what the blocks give, not of what they are given).
    """
    rows = select(records, metric=metric, **({"site": site} if site else {}))
    rows = rows[rows["step"] == (rows["step"].min() if start else rows["step"].max())]
    if site == "hidden":
        rows = rows[rows["layer"] == rows["layer"].max()] if last_layer else rows[rows["layer"] > 0]
    values = rows["value"].abs() if metric == "query_key.cosine" else rows["value"]
    found: pd.Series = values.groupby([rows["model"].astype(str), rows["seed"].astype(int)]).mean()
    return found


def judge(name: str, records: pd.DataFrame) -> list[Verdict]:
    """Every claim by the difference of its arm and `base`, paired by seed; those that no finished pair is about."""
    stated_ones = claims("beyond", name)
    if records.empty:
        return [stated(claim, None, "not trained", reason="no finished cell") for claim in stated_ones.values()]
    skill = ends(records, SKILL)
    learnt = skill[skill >= LEARNT].index
    tests, untrained = [], []
    for claim in stated_ones.values():
        (arm,) = claim.systems
        pairs = paired(claim, records, arm)
        known = [(arm, seed) in learnt and (BASE, seed) in learnt for seed in pairs.index]
        if not len(pairs):
            untrained.append(stated(claim, None, "not trained", reason=f"no seed of {arm} beside {BASE} is finished"))
            continue
        of_arm = skill[arm] if arm in skill else skill[BASE]
        reason = f"skill over the unigrams {of_arm.mean():.2f}, of {BASE} {skill[BASE].mean():.2f}"
        reason += "" if all(known) else f"; a cell whose skill is below {LEARNT:g} says nothing"
        tests.append(of_seeds(claim, np.where(known, pairs.to_numpy(float), np.nan), reason=reason))
    return [*judged(tests), *untrained]


def paired(claim: Claim, records: pd.DataFrame, arm: str) -> pd.Series:
    """Differences by seed: arm less `base` at the end; of `base` itself the end less the start."""
    last = "last layer" in claim.statement
    found = ends(records, claim.metric, claim.site, last_layer=last)
    other = ends(records, claim.metric, claim.site, last_layer=last, start=True) if arm == BASE else found
    if arm not in found or BASE not in other:
        return pd.Series(dtype=float)
    apart: pd.Series = (found[arm] - other[BASE]).dropna()
    return apart


def draw(name: str, records: pd.DataFrame) -> dict[str, ChartType]:
    """Entropy and loss along training, A by layer at the end, and every outcome's difference from `base`."""
    if records.empty:
        return {}
    charted = {
        f"{name}_entropy": charts.trajectory(_course(records, "attention.entropy"), titles=("step", "entropy (nats)")),
        f"{name}_loss": charts.trajectory(_course(records, LOSS), titles=("step", "loss (nats)")),
    }
    rows = select(records, metric="mean_cosine", site="hidden")
    rows = rows[rows["step"] == rows["step"].max()]
    return charted | {f"{name}_layers": charts.layer_curve(means_over_seeds(rows, "metric", "model", "layer"))}


def _course(records: pd.DataFrame, metric: str) -> pd.DataFrame:
    """A metric by arm and step, mean over heads and layers, then over seeds."""
    rows = select(records, metric=metric)
    cells = rows.groupby(["metric", "model", "step", "seed"], sort=False)["value"].mean().reset_index()
    return means_over_seeds(cells, "metric", "model", "step")


STUDIES = tuple(
    declare(
        "beyond",
        name,
        settings=of_name,
        measure=measure,
        judge=partial(judge, name),
        draw=partial(draw, name),
    )
    for name, of_name in SETTINGS.items()
)
