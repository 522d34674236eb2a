"""Ask whether a common direction of the word vectors changes the answers of Fosse et al. 2023.

GloVe's vectors, from which the paper starts, have a common direction: the mean cosine of two tokens of an utterance is
.31 to .38. The word vectors of the other studies have GloVe's norm, and a mean cosine of .09 to .15. Here one vector is
added to all of them, so that it is .27 to .35 and the norm stays, and the same models are trained again.
"""

from collections.abc import Iterator

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope_papers.beyond.cells import declare_cell_study
from anisoscope_papers.beyond.positions import (
    MADE_UNIFORM,
    NONE,
    OF_FIRST,
    SINUSOIDS,
    TESTED,
    Quantities,
    name_recipes,
    select_last_layer,
)
from anisoscope_papers.fosse2023.entry import Evidence, average_seeds
from anisoscope_papers.fosse2023.grid import (
    COMMON,
    CONTROL,
    LEARNED,
    SCALED,
    TITLES,
    Grid,
)
from anisoscope_papers.fosse2023.measurements import KEYS, VALUES
from anisoscope_papers.judge import Test


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests of what a common direction of the word vectors changes, and of the paper's claims with it.

    `whole`: the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        # All models have one layer: their word vectors tell them apart.
        found = Quantities(here, "start")
        # The recipe of the authors' code and that of their text.
        for recipe in (SINUSOIDS, NONE):
            common = (COMMON, recipe)
            plain = (SCALED, recipe)
            yield here.test(
                "attention stays as sharp",
                found.entropy[common] - found.entropy[plain],
                recipe,
            )
            yield here.test(
                "attention is used as much",
                found.used[common] - found.used[plain],
                recipe,
            )
            accuracy = (
                found.accuracy[COMMON, recipe, LEARNED]
                - found.accuracy[SCALED, recipe, LEARNED]
            )
            yield here.test("accuracy stays", accuracy, recipe)
            yield here.test(
                "keys are more alike", found.keys[common] - found.keys[plain], recipe
            )
            yield here.test(
                "values are more alike",
                found.values[common] - found.values[plain],
                recipe,
            )
            # From here on the paper's own claims, on models that start nearly as its
            # own.
            yield here.test("nearly uniform", found.entropy[common], recipe)
            yield here.test("not used", found.used[common], recipe)
            yield here.test(
                "keys converge",
                found.keys[common] - found.keys_at_start[common],
                recipe,
            )
            yield here.test(
                "values converge",
                found.values[common] - found.values_at_start[common],
                recipe,
            )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw entropy H, similarities, accuracy and use of attention by corpus and positions, with and without the common
    direction.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    rows = name_recipes(whole.records)
    trained = rows[rows["family"] != CONTROL]
    quantities = {
        "accuracy": select(trained, **TESTED),
        "accuracy without attention": select(trained, **MADE_UNIFORM),
        "H of [CLS]": select(trained, **OF_FIRST),
        "sim(K)": select_last_layer(trained, KEYS),
        "sim(V)": select_last_layer(trained, VALUES),
    }
    # One bar for each, so that with and without are neighbours.
    frames = [
        average_seeds(found, "corpus", "recipe", "start").assign(quantity=name)
        for name, found in quantities.items()
    ]
    frame = pd.concat(frames, ignore_index=True)
    vectors = (
        frame["start"].astype(str).replace({SCALED: "without", COMMON: "with"})
        + " common direction"
    )
    corpus = frame["corpus"].astype(str).replace(TITLES)
    frame["what"] = (
        corpus
        + ", "
        + frame["recipe"].astype(str)
        + ", "
        + vectors
        + ": "
        + frame["quantity"]
    )
    frame = frame.sort_values(["corpus", "recipe", "quantity", "start"], kind="stable")
    titles = ("accuracy, H, similarity", "")
    return whole.chart(
        charts.bars, frame, "common_1", category="what", titles=titles, size=(560, 17)
    )


STUDY = declare_cell_study("common", Grid.by_direction, tests=make_tests, draw=draw)
