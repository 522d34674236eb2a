"""Ask how much attention a classifier needs, and when: attention is frozen after some steps of training.

All trainings have the same number of steps, so that corpora with short and long epochs are comparable.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope_papers.beyond.cells import declare_cell_study
from anisoscope_papers.beyond.positions import TESTED, name_recipes
from anisoscope_papers.fosse2023.entry import (
    Evidence,
    Seeds,
    average_seeds,
    compute_spearman,
)
from anisoscope_papers.fosse2023.grid import CONTROL, LEARNED, Grid
from anisoscope_papers.judge import Array, Test

FEWEST_STEPS = 4
"""Numbers of steps that a rank correlation needs."""


def group_by_steps(here: Evidence) -> dict[str, Seeds]:
    """Return the accuracies of all seeds by the step at which attention was frozen, for each kind of position codes.

    here   the evidence on one corpus

    {kind of position codes: {step: accuracies [seed]}}. Step −1: attention was uniform all along; the last step:
    it was trained throughout.
    """
    rows = name_recipes(select(here.records, **TESTED))
    # Models at step 0 have no accuracy of interest here.
    rows = rows[rows["family"] != CONTROL]
    rows = rows.assign(after=count_attention_steps(rows))
    grouped = {}
    for recipe, found in rows.groupby("recipe", sort=False):
        grouped[str(recipe)] = here.by(found, "after")
    return grouped


def count_attention_steps(rows: pd.DataFrame) -> "pd.Series[float]":
    """Return, for each record, in how many steps of training its model's attention was trained.

    All of them for learned attention, −1 for uniform attention, which has nothing to train.
    """
    # Learned attention is trained in all steps, frozen attention in its first ones.
    steps = rows["freeze_after"].where(rows["arm"] != LEARNED, rows["steps"])
    return steps.where(rows["arm"] != "uniform", -1.0)


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on how long attention must be trained for full accuracy, that of training it to the end.

    In the models compared, attention is frozen at its random start, or after a tenth or half of the steps, or it is
    uniform; the rest of the model goes on training. One test per claim and kind of position codes. `whole`: the
    records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        for recipe, accuracy in group_by_steps(here).items():
            # Keys are steps, of 480; among those at which attention was frozen, 38 is the nearest to a tenth.
            throughout = accuracy[max(accuracy)]
            yield here.test(
                "a tenth of training is enough", accuracy[38.0] - throughout, recipe
            )
            yield here.test(
                "untrained attention is enough", accuracy[0.0] - throughout, recipe
            )
            yield here.test(
                "half of training is enough", accuracy[240.0] - throughout, recipe
            )
            yield here.test(
                "more steps of attention, more accuracy",
                correlate_with_steps(accuracy),
                recipe,
                with_collapsed=True,
            )
            yield here.test(
                "uniform is as good as drawn", accuracy[-1.0] - accuracy[0.0], recipe
            )


def correlate_with_steps(accuracy: Seeds) -> Array:
    """Return the rank correlation of accuracy with the number of steps in which attention was trained, [seed].

    `accuracy`: its values [seed] by that number.
    """
    # Uniform attention, −1, has no place on the scale of steps.
    steps = sorted(step for step in accuracy if step >= 0)
    # [seed, step]
    table = np.array([accuracy[step] for step in steps] or [accuracy.nothing]).T
    x = np.array(steps, dtype=float)
    return np.array([compute_spearman(x, values, FEWEST_STEPS) for values in table])


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw accuracy against the steps of attention training, a line for each corpus; uniform attention is at −1.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    rows = name_recipes(select(whole.records, **TESTED))
    rows = rows.assign(steps_of_attention=count_attention_steps(rows))
    frame = average_seeds(rows, "corpus", "recipe", "steps_of_attention")
    frame = pd.DataFrame(frame).rename(columns={"recipe": "positions"})
    return whole.chart(
        charts.trajectory,
        frame,
        "frozen_1",
        x="steps_of_attention",
        series="corpus",
        panel="positions",
        titles=("steps of attention (−1: uniform)", "accuracy"),
        size=(680, 220),
    )


STUDY = declare_cell_study("frozen", Grid.by_length, tests=make_tests, draw=draw)
