"""Ask whether maps show the words that a task is learnt from (remove and retrain, Hooker et al. 2019).

The highest-scored words of every sentence are erased from all splits, and the same recipe is trained again. If words
are erased only *after* training (`fosse2023 explained`), the loss may come from texts of a kind that the classifier
never saw.

attention      the attention row of [CLS]       random    uniform noise, by seed
directions     cosine of a word's value to the direction of a class less the mean of the others, the largest of any
               class
class found    as directions, but for the predicted class; it chooses by the answer, so what is missing reveals the
               class: a control

Every map erases equally many words of a sentence, so that its length carries no information.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import compress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.classes.attributions import (
    average_over_words,
    compute_attributions,
    iter_captured,
    measure_class_directions,
)
from anisoscope.classes.faithfulness import DIRECTED, Array, Marks, select_highest
from anisoscope.data.labelled import SPLITS, TEST, VALIDATION, Example, LabelledCorpus
from anisoscope.errors import DivergedError
from anisoscope.runs.run import make_slug
from anisoscope.store import as_records, make_records_once
from anisoscope_papers.fosse2023.entry import Evidence, average_seeds, declare_entry
from anisoscope_papers.fosse2023.explained_words import ONE_LAYER, VALUES
from anisoscope_papers.fosse2023.grid import PUBLISHED, Cell, Grid
from anisoscope_papers.fosse2023.measurements import gather, read_accuracies
from anisoscope_papers.fosse2023.trained_cells import Trained
from anisoscope_papers.judge import Test
from anisoscope_papers.study import Context
from anisoscope_papers.training.classifier import train_classifier

ATTENTION, DIRECTIONS, FOUND, RANDOM = MAPS = (
    "attention",
    "directions",
    "class found",
    "random",
)
HALF, FIFTH = 0.5, 0.2
NOTHING = "nothing erased"
VERSION = 1
"""Raise it when what is kept of an erased corpus changes."""


def choose_shares(corpus: str) -> dict[float, tuple[str, ...]]:
    """Return {share of words to erase: the maps (scores of words) that choose them}.

    For corpora of pairs, which train longest, only one half is erased.
    """
    shares: dict[float, tuple[str, ...]] = {HALF: MAPS}
    if PUBLISHED.get(corpus) != "esnli":
        shares[FIFTH] = (ATTENTION, DIRECTIONS, RANDOM)
    return shares


def name_arm(name: str, share: float) -> str:
    """Return the name of a condition: a map (scores of words) and a share of erased words, as in `attention, 50%`."""
    return f"{name}, {share:.0%}"


class Maps:
    """Scores of the words of every sentence under a trained classifier, by split, sentence and map (way to score
    words).
    """

    def __init__(self, trained: Trained) -> None:
        self.trained = trained

    @cached_property
    def predicted(self) -> dict[str, list[int]]:
        """The predicted classes: {split: [index of the class that the classifier predicts for each example]}."""
        classes = {}
        for split, ones in self.scored.items():
            classes[split] = [found for found, _ in ones]
        return classes

    @cached_property
    def scored(self) -> dict[str, list[tuple[int, dict[str, Array]]]]:
        """Predicted classes and scores of words: {split: [(class index, {map: scores [word]}) of each example]}."""
        # Of validation texts: no test text has a part in the directions that score it.
        (model, _), trained = self.trained.classifier, self.trained
        classes = len(trained.corpus.labels)
        draw = np.random.default_rng(trained.cell.seed)
        directions = measure_class_directions(
            model, trained.batches(DIRECTED, VALIDATION), classes
        )
        made: dict[str, list[tuple[int, dict[str, Array]]]] = {}
        for split in SPLITS:
            examples = trained.corpus.splits[split]
            # So many of each class that no example of the split is left out.
            batches = trained.batches(len(examples) * classes, split)
            ones = {}
            for number, one in iter_captured(model, batches):
                words = batches.encoded.words[number]
                count = len(examples[number].all_words)
                # A score depends on the class that it is asked for; here every class is asked for in turn.
                of_class = [
                    compute_attributions(replace(one, found=c), directions)
                    for c in range(classes)
                ]
                tokens = {
                    # The attention of [CLS] is the same whatever class is asked for.
                    # One layer: layer 1.
                    ATTENTION: of_class[0][ATTENTION, 1],
                    FOUND: of_class[one.found][VALUES, 1],
                }
                # The largest over classes does not say which class was predicted, as `FOUND` does.
                tokens[DIRECTIONS] = np.max(
                    [found[VALUES, 1] for found in of_class], axis=0
                )
                scores = {
                    name: average_over_words(x, words, count)
                    for name, x in tokens.items()
                }
                ones[number] = one.found, {**scores, RANDOM: draw.random(count)}
            # Batches are sorted by length: back to the order of the corpus.
            made[split] = [ones[number] for number in range(len(examples))]
        return made

    def erased(self, name: str, share: float) -> LabelledCorpus:
        """Return the corpus without the share of words that the map `name` scores highest, in training, validation
        and test.
        """
        # From all splits, so that test texts are of the kind that is learnt (ROAR).
        corpus = self.trained.corpus
        splits: dict[str, tuple[Example, ...]] = {}
        for split, ones in self.scored.items():
            kept = []
            for example, (_, scores) in zip(corpus.splits[split], ones, strict=True):
                erased = select_highest(scores[name], share)
                kept.append(keep_words(example, ~erased))
            splits[split] = tuple(kept)
        # The name says in training.json what was trained on.
        shown = f"{corpus.name} without {name_arm(name, share)}"
        return replace(corpus, name=shown, splits=splits)


def keep_words(example: Example, keep: Marks) -> Example:
    """Return an example with only the words that `keep` [word] marks."""
    first = len(example.words)
    second = None
    if example.second is not None:
        second = tuple(compress(example.second, keep[first:]))
    # Rationales mark the words of the whole text, which are not there any more.
    return replace(
        example,
        words=tuple(compress(example.words, keep[:first])),
        second=second,
        rationale=None,
    )


def measure_retrained(trained: Trained) -> pd.DataFrame:
    """Measure classifiers that are trained again on the erased corpus, by map and share (`component`).

    Records: accuracy on the erased test split, and the share of it with the same predicted class as before erasing.
    """
    maps = Maps(trained)
    parts = []
    for share, names in choose_shares(trained.cell.corpus).items():
        for name in names:
            path = (
                trained.folder / f"erased-{make_slug(name)}-{share:g}-{VERSION}.parquet"
            )
            # Settings `finished` train nothing: notes count what is missing.
            if not (trained.plan.train or path.exists()):
                row = {"metric": "missing", "component": name_arm(name, share)}
                parts.append(pd.DataFrame([row | {"value": 1.0}]))
                continue
            parts.append(
                make_records_once(
                    path,
                    partial(_retrain, trained, maps, name, share),
                    wait=trained.wait,
                )
            )
    cell = trained.cell
    return as_records(
        pd.concat(parts, ignore_index=True),
        model=cell.label,
        corpus=cell.corpus,
        seed=cell.seed,
    )


def _retrain(trained: Trained, maps: Maps, name: str, share: float) -> pd.DataFrame:
    """Train again on the corpus erased by the map `name` and a share, and return the records; `diverged` if the loss is
    not finite.

    `trained`: the classifier before erasing; `maps`: its scores of words.
    """
    corpus = maps.erased(name, share)
    found = np.array(maps.predicted[TEST])
    # Unless the training below ends.
    values: dict[str, float] = {"diverged": 1.0}
    # The classifier is needed for two numbers only.
    with TemporaryDirectory() as folder:
        place = Path(folder) / "classifier"
        try:
            done = train_classifier(
                trained.plan.recipe(trained.cell), place, corpus=corpus
            )
            anew = Trained(trained.cell, trained.plan, place)
            named = np.array(anew.predicted(anew.encoded(corpus.splits[TEST])))
            values = {
                "retrained.accuracy": done.accuracy(),
                "retrained.agreement": float((named == found).mean()),
            }
        except DivergedError:
            # Counted as `diverged`, and not tried again.
            pass
    rows = []
    for metric, x in values.items():
        row = {"metric": metric, "component": name_arm(name, share), "value": x}
        rows.append(row)
    return as_records(pd.DataFrame(rows), n_units=len(found))


def measure(plan: Grid, context: Context) -> pd.DataFrame:
    """Return the records for one layer at λ = 0 (no penalty), before and after erasing words.

    All corpora of a seed come before the next seed. `plan`: the grid of classifiers; `context`: cache, device,
    progress.
    """
    cells = []
    # A run that is interrupted has all corpora with some seeds, which is a result.
    for seed in range(plan.seeds):
        for corpus in plan.names():
            cells.append(Cell(corpus, seed=seed))
    return gather(cells, plan, context, read_accuracies, measure_retrained)


def make_tests(whole: Evidence) -> Iterator[Test]:
    """Yield the tests on which map (scores of words) finds the words that a classifier needs.

    Classifiers are trained again without the words that a map scores highest: the better the map, the lower their
    accuracy. Scores by directions of values are compared with scores by attention, and both with random scores. A
    control tests that erasing by the predicted class tells the class: which words are missing depends on it. `whole`:
    the records of all corpora; a test has one number per seed of one corpus.
    """
    for here in whole.corpora:
        accuracy = here.table("component", metric="retrained.accuracy")
        agreement = here.table("component", metric="retrained.agreement")
        for share in choose_shares(here.corpus):
            which = f"{share:.0%} erased"
            by: Mapping[str, Array] = {
                name: accuracy[name_arm(name, share)] for name in MAPS
            }
            better = {
                HALF: "directions are more faithful than attention",
                FIFTH: "same with a fifth of the words",
            }[share]
            yield here.test(better, by[ATTENTION] - by[DIRECTIONS], which)
            yield here.test("attention is faithful", by[RANDOM] - by[ATTENTION], which)
            yield here.test(
                "directions are faithful", by[RANDOM] - by[DIRECTIONS], which
            )
        leak = agreement[name_arm(FOUND, HALF)] - agreement[name_arm(DIRECTIONS, HALF)]
        yield here.test("the predicted class leaks", leak, "50% erased")


def draw(whole: Evidence) -> dict[str, ChartType]:
    """Draw the accuracy of classifiers trained again without the highest-scored words, by corpus, share and map of
    scores.

    `whole`: the records of all corpora. Returns {chart name: chart}.
    """
    before = whole.find(metric="accuracy", component=TEST, **ONE_LAYER).assign(
        component=NOTHING
    )
    rows = pd.concat(
        [before, whole.find(metric="retrained.accuracy")], ignore_index=True
    )
    settings: dict[str, Any] = {
        "category": "component",
        "panel": "corpus",
        "titles": ("accuracy", ""),
        "columns": 3,
    }
    return whole.chart(
        charts.bars,
        average_seeds(rows, "corpus", "component", bounds=(0, 1)),
        **settings,
        size=(660, 20),
    )


STUDY = declare_entry(
    "erased", measure=measure, tests=make_tests, draw=draw, paper="beyond"
)
