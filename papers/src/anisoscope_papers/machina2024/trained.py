"""Ask whether small models of Pythia's architecture are isotropic, and whether their final norm makes them so.

The models are those of `gu2025` (softmax). Settings `causal` read the models of `beyond` that predict the next token:
their norms stand at the end of each block, so that last hidden states are those after the final norm, and there are
none before it. Settings `paper` measure the Pythias of the hub along their training; every size counts as a seed.
"""

from dataclasses import replace
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import as_records, select
from anisoscope_papers.beyond.causes import FULL as CAUSAL
from anisoscope_papers.beyond.trained import SKILL, Experiment, measure as measure_cells
from anisoscope_papers.godey2024 import courses
from anisoscope_papers.gu2025.sinks import LEARNT, Published, has_trained_model
from anisoscope_papers.gu2025.small_models import BASE, BRIEF, FULL
from anisoscope_papers.judge import (
    Array,
    Test,
    average_over_seeds,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.study import Claim, Context, Verdict, declare, read_claims

PAPER = "machina2024"
A, TOP, Q95 = "mean_cosine", "mean_cosine.top_share", "mean_cosine.isotropic_q95"
# The records of these models hold sinks as well, which are of `gu2025`.
KEPT = (A, TOP, Q95, "partition", SKILL)
DIMENSIONS = "3"
"""The component of `TOP`: how much of A the three dimensions with the largest contributions make."""
LAST, FINAL, PLAIN, LARGEST = "last", "final", "plain", "largest"
"""Where A is read: after the last block, after the final norm, after a norm without learnt weights, and in the layer
(or after the final norm) where it is largest at the end."""
FALL = "final, fall"
"""The `site` of a claim on how much A after the final norm falls from its largest value to the end."""
# Ten of the steps that the Pythias have: 0, powers of two to 512, and every thousandth
# to the last, 143,000.
STEPS = (0, 1, 16, 128, 1000, 4000, 14000, 40000, 80000, 143000)
PYTHIAS = Published(
    {
        "70m": 70e6,
        "160m": 162e6,
        "410m": 405e6,
        "1b": 1.01e9,
        "1.4b": 1.41e9,
        "2.8b": 2.78e9,
        "6.9b": 6.86e9,
    },
    STEPS,
    window=512,
)
SETTINGS: dict[str, Experiment | Published] = {
    "quick": Experiment((BASE,), 2, BRIEF),
    "long": Experiment((BASE,), 6, FULL),
    "finished": Experiment((BASE,), 6, FULL, train=False),
    "causal": Experiment((BASE,), 6, CAUSAL, train=False),
    "paper": PYTHIAS,
}


def measure(settings: Experiment | Published, context: Context) -> pd.DataFrame:
    """Return A (mean cosine) by layer and isotropy I(W) of embeddings (Mu & Viswanath 2018) of all models.

    They are trained here, read from the cache, or published, as `settings` say.
    """
    if isinstance(settings, Published):
        records = measure_published(settings, context)
    else:
        records = measure_cells(settings, context)
    return records[records["metric"].isin(KEPT)].reset_index(drop=True)


def measure_published(published: Published, context: Context) -> pd.DataFrame:
    """Measure published checkpoints: A of each layer, and the isotropy I(W) of the embedding matrix W.

    The columns have the same names as those of the models that we trained.
    """
    found = published.measure((A, "partition"), context)
    # Every size counts as a seed of one arm, so that the same claims are judged from
    # them.
    parts = [
        as_records(rows.assign(model=BASE, step=step, seed=number))
        for number, step, rows in found
    ]
    return pd.concat([as_records(pd.DataFrame()), *parts], ignore_index=True)


def has_final_norm(records: pd.DataFrame) -> bool:
    """Return whether these models have a norm after their last block."""
    return len(select(records, site=FINAL)) > 0


def select_courses(
    records: pd.DataFrame, metric: str, site: str, component: str | None = None
) -> pd.DataFrame:
    """Return a metric along training, as a table [seed] × [step], at a site: embeddings, `LAST`, or `FINAL`.

    `LAST` is after the last block and before the final norm, `FINAL` after that norm. In models without a final norm,
    the last block itself ends with a norm: its output is then `FINAL`, and `LAST` is empty.
    """
    # The output of the last block has passed that block's own norm: nothing is left to
    # call `LAST`.
    if not has_final_norm(records) and site in (LAST, FINAL):
        site = LAST if site == FINAL else ""
    rows = select(
        records,
        metric=metric,
        site="hidden" if site == LAST else site,
        component=component,
    )
    if site == LAST:
        rows = rows[rows["layer"] == rows.groupby("seed")["layer"].transform("max")]
    return pd.DataFrame(rows.pivot_table(index="seed", columns="step", values="value"))


def find_largest(records: pd.DataFrame) -> pd.DataFrame:
    """Return, for each seed, the row of the layer with the largest A (mean cosine) at the end of training.

    The output of the final norm counts as a layer; the input of the blocks does not.
    """
    rows = select(records, metric=A, site=("hidden", FINAL), component=None)
    rows = rows[
        (rows["step"] == rows["step"].max())
        & ~((rows["site"] == "hidden") & (rows["layer"] == 0))
    ]
    return pd.DataFrame(
        rows.loc[rows.groupby("seed")["value"].idxmax()].set_index("seed")
    )


def read_top_share(records: pd.DataFrame) -> pd.Series:
    """Return the share of A that three dimensions carry, by seed, in the layer where A is largest at the end."""
    found: dict[Any, float] = {}
    # The models of `beyond` were measured without these shares.
    if not len(select(records, metric=TOP)):
        return pd.Series(found, dtype=float)
    for seed, row in find_largest(records).iterrows():
        here = select(
            records,
            metric=TOP,
            component=DIMENSIONS,
            seed=seed,
            step=row["step"],
            site=row["site"],
        )
        # After the final norm there is one row, which has no layer number.
        if row["site"] != FINAL:
            here = here[here["layer"] == row["layer"]]
        found[seed] = float(here["value"].iloc[0])
    return pd.Series(found, dtype=float)


def compute_values(claim: Claim, records: pd.DataFrame) -> pd.Series:
    """Return the number that a claim is about, by seed: its metric at its site, at the last step.

    A site `x less y` means the metric at x minus that at y. The site `FALL` means how much A falls from its largest
    value on.
    """
    if claim.metric == TOP:
        return read_top_share(records)
    if claim.site == LARGEST:
        return find_largest(records)["value"].astype(float)
    if claim.site == FALL:
        course = select_courses(records, A, FINAL)
        # The step of the largest A is read from the other seeds: a seed's own largest
        # value lies above its end by chance alone. With −A, its largest value is the
        # lowest one.
        return pd.Series(
            courses.measure_rise_since_turning(-course.to_numpy(float)), course.index
        )
    # Without ` less `, `other` is empty, and the number is the metric itself.
    here, _, other = claim.site.partition(" less ")
    found = select_courses(records, claim.metric, here)
    if not other:
        if len(found):
            return found.iloc[:, -1]
        return pd.Series(dtype=float)
    less = select_courses(records, claim.metric, other)
    # Models without a final norm have no such difference: the claim is then undecided.
    if not len(less):
        return pd.Series(dtype=float)
    ends: pd.Series = found.iloc[:, -1] - less.iloc[:, -1]
    return ends


def describe_notes(claim: Claim, records: pd.DataFrame) -> str:
    """Describe what lies behind a claim's number: the values it subtracts, or where A (mean cosine) was largest.

    Returns "" for other claims.
    """
    if claim.site == FALL:
        mean = select_courses(records, A, FINAL).mean()
        return f"largest at step {int(str(mean.idxmax())):,} of {int(mean.index.max()):,}: {mean.max():.2f}"
    if " less " in claim.site:
        ends = []
        for part in claim.site.split(" less "):
            course = select_courses(records, claim.metric, part)
            ends.append(f"{part} {course.iloc[:, -1].mean():.3f}")
        return ", ".join(ends)
    if claim.site == LARGEST:
        rows = find_largest(records)
        counted = (
            rows["site"].where(
                rows["site"] == FINAL, "layer " + rows["layer"].astype(str)
            )
        ).value_counts()
        return "largest in: " + ", ".join(
            f"{place} ({count} of {len(rows)})" for place, count in counted.items()
        )
    return ""


def judge(records: pd.DataFrame) -> list[Verdict]:
    """Judge every claim on isotropy, from one number per seed; seeds whose model has learnt too little are left out."""
    tests: list[Test] = []
    missing = []
    skill = select(records, metric=SKILL)
    skill = skill[skill["step"] == skill["step"].max()]
    # A model that learnt next to nothing says nothing about trained models. Published
    # ones have no recorded skill, and stay.
    unlearnt = skill.loc[skill["value"] < LEARNT, "seed"].unique()
    for claim in read_claims(PAPER, "trained").values():
        values = compute_values(claim, records)
        if not len(values):
            why = f"no {claim.metric} at {claim.site} in these settings"
            missing.append(
                make_verdict_without_test(claim, None, "not measured", reason=why)
            )
            continue
        # A is largest at the end, with every seed.
        if claim.site == FALL and (values == 0).all():
            # Numbers that are all 0 have no spread to test.
            never = make_verdict_without_test(
                claim,
                False,
                claim.statistic,
                0.0,
                n=len(values),
                reason=describe_notes(claim, records),
            )
            missing.append(replace(never, failing="too small"))
            continue
        known: Array = values.where(~values.index.isin(unlearnt)).to_numpy(float)
        # All layers of these models have one width, and so one q95.
        bound = None
        if claim.limit == "q95":
            bound = float(select(records, metric=Q95)["value"].max())
        tests.append(
            make_test_of_seeds(
                claim, known, threshold=bound, reason=describe_notes(claim, records)
            )
        )
    return [*judge_tests(tests), *missing]


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw A along training after the last block and after the final norm, and by layer at the end."""
    parts = []
    for site, title in (
        (LAST, "after the last block"),
        (FINAL, "after the final norm"),
    ):
        course = (
            select_courses(records, A, site)
            .melt(ignore_index=False, var_name="step")
            .reset_index()
        )
        parts.append(course.assign(model=title, metric=A))
    along = average_over_seeds(
        pd.concat(parts, ignore_index=True), "metric", "model", "step"
    )
    bound = float(select(records, metric=Q95)["value"].max())
    # By layer only at the last step.
    ends = select(records, metric=A, site=("hidden", FINAL), component=None)
    ends = ends[ends["step"] == ends["step"].max()]
    # What follows the final norm has no layer number: it is drawn at the last one.
    deepest = ends["layer"].max()
    ends = ends.assign(layer=ends["layer"].fillna(deepest), model="trained")
    by_layer: Any = average_over_seeds(ends, "metric", "model", "site", "layer")
    return {
        "trained_A": charts.trajectory(
            along, titles=("step", "anisotropy A"), isotropic=bound
        ),
        "trained_layers": charts.layer_curve(by_layer, isotropic=bound),
    }


STUDY = declare(
    PAPER,
    "trained",
    settings=SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    needs=PYTHIAS.needs(),
    at_hand=has_trained_model,
)
