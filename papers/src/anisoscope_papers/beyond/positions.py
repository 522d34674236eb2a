"""Ask whether answers depend on positions: the text of Fosse et al. 2023 adds none to the words, their code sinusoids.

Four recipes (no positions, a quarter of the sinusoids, the sinusoids, learned positions) × attention learned, uniform,
or frozen as drawn × depth × corpus × seed. Measured: accuracy, entropy H of the [CLS] row in its published forms,
similarity of keys and values, norms of keys, and accuracy after attention was made uniform. Models with learned
attention are also measured at step 0.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.store import select
from anisoscope_papers.beyond.cells import AFTERWARDS, declare_cell_study
from anisoscope_papers.fosse2023.entry import Evidence, Seeds, average_seeds
from anisoscope_papers.fosse2023.grid import CONTROL, LEARNED, RECIPES, TITLES, Grid
from anisoscope_papers.fosse2023.measurements import KEYS, VALUES
from anisoscope_papers.judge import Test

NONE, QUARTER, SINUSOIDS, OWN_VECTORS = RECIPES
FROZEN = "frozen"
TESTED: dict[str, Any] = {"metric": "accuracy", "component": "test"}
MADE_UNIFORM: dict[str, Any] = {"metric": "accuracy", "component": AFTERWARDS}
ENTROPY: dict[str, Any] = {"metric": "cls_entropy", "component": "reported"}
OF_FIRST = {**ENTROPY, "layer": 1}
ALIKE: dict[str, Any] = {"metric": "intra_sequence", "token_policy": "all"}


class Quantities:
    """The quantities of one corpus that claims use, each by `[layers, recipe]` or `[layers, recipe, arm]` → [seed].

    In place of the number of layers, another option may tell the models apart, such as their word vectors.

    accuracy         of every model, including those that learnt nothing, since that is the outcome of their recipe
    used             accuracy after attention was made uniform, minus that of the model as it is
    entropy          H of the [CLS] row in the first layer, as the paper reports it
    lowest_entropy   the same of each model's layer of the lowest H
    keys, values     similarity in the last layer (`…_at_start`: at step 0)
    """

    def __init__(self, here: Evidence, option: str = "layers") -> None:
        """Read the quantities from the evidence on one corpus.

        here     the evidence
        option   the column of the records that tells the models apart
        """
        # Every model counts for accuracy, since to learn nothing is an outcome of its
        # recipe; vectors of collapsed ones coincide for that reason alone, so that
        # geometry is of the sound ones.
        every = name_recipes(here.records)
        sound = name_recipes(here.sound)
        learned = select(sound, arm=LEARNED)
        trained = learned[learned["family"] != CONTROL]
        start = learned[learned["family"] == CONTROL]
        self.accuracy = here.by(
            select(every[every["family"] != CONTROL], **TESTED), option, "recipe", "arm"
        )
        afterwards = here.by(select(trained, **MADE_UNIFORM), option, "recipe")
        as_it_is = here.by(select(trained, **TESTED), option, "recipe")
        used = {key: afterwards[key] - as_it_is[key] for key in afterwards}
        self.used = Seeds(used, afterwards.nothing)
        self.entropy = here.by(select(trained, **OF_FIRST), option, "recipe")
        self.lowest_entropy = here.by(select_sharpest_layer(trained), option, "recipe")
        self.keys = here.by(select_last_layer(trained, KEYS), option, "recipe")
        self.values = here.by(select_last_layer(trained, VALUES), option, "recipe")
        self.keys_at_start = here.by(select_last_layer(start, KEYS), option, "recipe")
        self.values_at_start = here.by(
            select_last_layer(start, VALUES), option, "recipe"
        )

    @property
    def depths(self) -> list[float]:
        """The numbers of layers of the models that were trained on this corpus."""
        return sorted({layers for layers, _, _ in self.accuracy}) or [1.0]


def name_recipes(records: pd.DataFrame) -> pd.DataFrame:
    """Add the column `recipe` to the records: the positions of each model, as `RECIPES` names them."""
    positions = records["positions"]
    scale = records["scale"]
    # Two columns, kind and scale, tell the four recipes apart.
    matches = [
        (positions == kind) & (scale == factor) for kind, factor in RECIPES.values()
    ]
    return records.assign(recipe=np.select(matches, list(RECIPES), ""))


def select_last_layer(rows: pd.DataFrame, site: str) -> pd.DataFrame:
    """Return the records of the mean cosine at a site (keys or values) in each model's last layer."""
    rows = select(rows, site=site, **ALIKE)
    return rows[rows["layer"] == rows["layers"]]


def select_sharpest_layer(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, of each model, the record of H (as the paper reports it) in its layer of the lowest H."""
    rows = select(rows, **ENTROPY)
    lowest = rows.groupby(["corpus", "model", "seed"], observed=True)["value"].idxmin()
    # In the order of the records, as `select` leaves them.
    return rows.loc[lowest.sort_values()]


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield, for each depth, the tests of the paper's claims under each kind of positions, and of the differences that
    positions make.

    `whole`: the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        found = Quantities(here)
        # Claims on deeper models are listed as undecided where none was trained.
        if max(found.depths) == 1:
            yield here.test(
                "so in deeper models", here.by(here.records.iloc[:0], "layers").nothing
            )
        for layers in found.depths:
            yield from _test_recipes(here, found, layers)
            yield from _test_positions(here, found, layers)


def _test_recipes(here: Evidence, found: Quantities, layers: float) -> Iterator[Test]:
    """Yield the tests of the paper's claims on models of one depth (`layers`), for every recipe of positions.

    Attention is nearly uniform, not used, not needed, enough as it was drawn; keys and values become similar in
    training. `here`: the evidence on one corpus; `found`: its numbers.
    """
    for recipe in RECIPES:
        # Not every recipe is trained at every depth.
        if (layers, recipe, LEARNED) not in found.accuracy:
            continue
        which = f"L = {layers:g}, {recipe}"
        key = (layers, recipe)
        learned = found.accuracy[layers, recipe, LEARNED]
        yield here.test("nearly uniform", found.entropy[key], which)
        if layers > 1:
            yield here.test(
                "nearly uniform in every layer", found.lowest_entropy[key], which
            )
        yield here.test("not used", found.used[key], which)
        yield here.test(
            "not needed", found.accuracy[layers, recipe, "uniform"] - learned, which
        )
        yield here.test(
            "untrained attention is enough",
            found.accuracy[layers, recipe, FROZEN] - learned,
            which,
        )
        yield here.test(
            "keys converge", found.keys[key] - found.keys_at_start[key], which
        )
        yield here.test(
            "values converge", found.values[key] - found.values_at_start[key], which
        )


def _test_positions(here: Evidence, found: Quantities, layers: float) -> Iterator[Test]:
    """Yield the tests of what positions change in models of one depth: each recipe with positions minus the one
    without.

    Entropy, use of attention, similarity of keys, accuracy. `here`: the evidence on one corpus; `found`: its numbers.
    """
    which = f"L = {layers:g}"
    entropy = found.entropy
    used = found.used
    keys = found.keys
    own = (layers, SINUSOIDS)
    without = (layers, NONE)
    # The claim is registered for one layer; deeper models have one of their own.
    sharp = "positions make attention sharp" if layers == 1 else "so in deeper models"
    yield here.test(sharp, entropy[own] - entropy[without], which)
    yield here.test("positions make attention used", used[own] - used[without], which)
    yield here.test("positions make keys alike", keys[own] - keys[without], which)
    accuracy = (
        found.accuracy[layers, SINUSOIDS, LEARNED]
        - found.accuracy[layers, NONE, LEARNED]
    )
    yield here.test("positions cost accuracy", accuracy, which)
    # Is it the size of the sinusoids, or are positions of any kind enough?
    for recipe in (QUARTER, OWN_VECTORS):
        other = (layers, recipe)
        yield here.test(
            "other positions make attention sharp",
            entropy[other] - entropy[without],
            f"{which}, {recipe}",
        )
        yield here.test(
            "other positions make attention used",
            used[other] - used[without],
            f"{which}, {recipe}",
        )


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw three accuracies by corpus, depth and recipe, and another chart of entropy H and similarities.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    every = name_recipes(whole.records)
    trained = every[every["family"] != CONTROL]
    accuracy = {
        "trained with attention": select(trained, arm=LEARNED, **TESTED),
        "trained without": select(trained, arm="uniform", **TESTED),
        "taken away afterwards": select(trained, arm=LEARNED, **MADE_UNIFORM),
    }
    drawn = _draw_bars(whole, accuracy, "positions_1", "accuracy")
    learned = select(trained, arm=LEARNED)
    others = {
        "H of [CLS]": select(learned, **OF_FIRST),
        "sim(K)": select_last_layer(learned, KEYS),
        "sim(V)": select_last_layer(learned, VALUES),
    }
    return drawn | _draw_bars(whole, others, "positions_2", "H, similarity")


def _draw_bars(
    whole: Evidence, rows: dict[str, pd.DataFrame], name: str, title: str
) -> dict[str, ChartType]:
    """Draw a bar for each corpus, depth, recipe and quantity; return {`name`: chart}.

    `whole`: the records of all corpora; `rows`: {quantity: its records}.
    """
    frames = [
        average_seeds(found, "corpus", "layers", "recipe").assign(quantity=what)
        for what, found in rows.items()
    ]
    frame = pd.concat(frames, ignore_index=True)
    where = (
        frame["corpus"].replace(TITLES) + ", L = " + frame["layers"].map("{:g}".format)
    )
    frame["what"] = (
        where + ", " + frame["recipe"].astype(str) + ": " + frame["quantity"]
    )
    frame = frame.sort_values(["corpus", "layers", "recipe"], kind="stable")
    return whole.chart(
        charts.bars, frame, name, category="what", titles=(title, ""), size=(560, 17)
    )


STUDY = declare_cell_study("positions", Grid.by_positions, tests=make_tests, draw=draw)
