"""Trained classifiers of the grid, each in a folder of its own that every study and every restart finds again:

<cache>/classifiers/<cell>-<hash>/    the checkpoint, and beside it what was measured of it (`measurements.py`)
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from anisoscope.data.encoding import Encoded, LabelledPlan, encode
from anisoscope.data.labelled import TEST, LabelledCorpus, balanced
from anisoscope.errors import DivergedError, OutputError
from anisoscope.provenance import run_id
from anisoscope.runs.run import slug
from anisoscope.store import in_turn, once, write_atomic
from anisoscope.studies.fosse2023.grid import Cell, Plan
from anisoscope.studies.study import Context
from anisoscope.training.classifier import TrainedClassifier, train_classifier
from anisoscope.training.recipe import ClassifierRecipe

TOLD, DIVERGED = "training.json", "diverged.json"


@cache
def opened(recipe: ClassifierRecipe) -> LabelledCorpus:
    """The corpus of a recipe; read once for all seeds and depths."""
    return recipe.open()


def corpus_of(recipe: ClassifierRecipe) -> LabelledCorpus:
    """The corpus a recipe trains on."""
    return opened(ClassifierRecipe(corpus=recipe.corpus, limit=recipe.limit, split_seed=recipe.split_seed))


@dataclass(frozen=True)
class Trained:
    """A finished cell of a plan. `wait`: for what other processes are measuring of it."""

    cell: Cell
    plan: Plan
    folder: Path
    wait: bool = True

    @cached_property
    def found(self) -> TrainedClassifier:
        return TrainedClassifier(self.folder, json.loads((self.folder / TOLD).read_text()))

    @cached_property
    def corpus(self) -> LabelledCorpus:
        """The corpus it was trained on. OutputError where that is no longer what its name stands for."""
        corpus = corpus_of(self.plan.recipe(self.cell))
        if corpus.fingerprint != self.found.training["corpus"]["fingerprint"]:
            expected = f"the {corpus.name} that the classifiers in {self.folder.parent} were trained on"
            raise OutputError(expected, "another version of it", "choose another --output, or the data of then")
        return corpus

    @cached_property
    def classifier(self) -> tuple[Any, Any]:
        """(model, tokenizer)."""
        return self.found.classifier()

    def examples(self, limit: int, split: str = TEST) -> tuple[Any, ...]:
        """The first utterances of a split, as many of each class."""
        return balanced(self.corpus.splits[split], limit, len(self.corpus.labels))

    def encoded(self, limit: int, split: str = TEST) -> Encoded:
        return encode(self.examples(limit, split), self.classifier[1], self.found.max_length)

    def batches(self, limit: int, split: str = TEST) -> LabelledPlan:
        tokenizer = self.classifier[1]
        return LabelledPlan(self.encoded(limit, split), int(tokenizer.pad_token_id or 0))


def folder_of(cell: Cell, plan: Plan, cache_folder: Path) -> Path:
    """Folder of a cell: a function of how it is trained."""
    name = f"{slug(cell.corpus)}-{slug(cell.model)}-L{cell.layers}-s{cell.seed}"
    return cache_folder / "classifiers" / f"{name}-{run_id(asdict(plan.recipe(cell).filled()))[:8]}"


def finished(cell: Cell, plan: Plan, cache_folder: Path) -> Trained | None:
    """A cell where it is trained."""
    folder = folder_of(cell, plan, cache_folder)
    return Trained(cell, plan, folder) if (folder / TOLD).exists() else None


def why_lost(cell: Cell, plan: Plan, context: Context) -> str:
    """Why a cell has no classifier: `diverged` where its loss was not finite, else `missing`."""
    return "diverged" if (folder_of(cell, plan, context.cache) / DIVERGED).exists() else "missing"


def each(
    cells: Sequence[Cell], plan: Plan, context: Context, look: Callable[[Trained], Any], *, train: bool | None = None
) -> Iterator[Any]:
    """`look` at every cell of a plan, trained now where it is not yet and the plan says so; cells that cannot be had
    are left out. What another process is training or measuring comes last.
    """

    def attempt(cell: Cell, wait: bool) -> Any:
        trained = _trained(cell, plan, context, plan.train if train is None else train, wait)
        return None if trained is None else (look(trained),)

    for done, looked in enumerate(in_turn(cells, attempt), 1):
        context.progress("classifiers", done, len(cells))
        if looked is not None:
            yield looked[0]


def _trained(cell: Cell, plan: Plan, context: Context, train: bool, wait: bool) -> Trained | None:
    folder = folder_of(cell, plan, context.cache)

    def make() -> None:
        if (folder / DIVERGED).exists():
            return
        recipe = plan.recipe(cell)
        try:
            train_classifier(recipe, folder, resume=True, device=context.device, corpus=corpus_of(recipe))
        except DivergedError as error:  # reported, and not tried again
            text = json.dumps({"cell": asdict(cell), "error": str(error)})
            write_atomic(folder / DIVERGED, lambda path: path.write_text(text))

    if train:
        once(folder, make, marker=TOLD, wait=wait)
    return Trained(cell, plan, folder, wait) if (folder / TOLD).exists() else None
