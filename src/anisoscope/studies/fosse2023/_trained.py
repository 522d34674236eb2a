"""Trained classifiers of the grid, each in a folder of its own that every study and every restart finds again:

<cache>/classifiers/<cell>-<hash>/    the checkpoint, and beside it what was measured of it (`_measured.py`)
<cache>/classifiers/<cell>-<hash>.lock      held while one process works on it
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
from anisoscope.runs.run import slug
from anisoscope.store import claimed, run_id, write_atomic
from anisoscope.studies.fosse2023._grid import Cell, Plan
from anisoscope.studies.study import Context
from anisoscope.training.classifier import Recipe, TrainedClassifier, train_classifier

DIVERGED = "diverged.json"


@cache
def opened(recipe: Recipe) -> LabelledCorpus:
    """The corpus of a recipe; read once for all seeds and depths."""
    return recipe.open()


def corpus_of(recipe: Recipe) -> LabelledCorpus:
    """The corpus a recipe trains on."""
    return opened(Recipe(corpus=recipe.corpus, limit=recipe.limit, split_seed=recipe.split_seed))


@dataclass(frozen=True)
class Trained:
    """A finished cell of a plan."""

    cell: Cell
    plan: Plan
    folder: Path

    @cached_property
    def found(self) -> TrainedClassifier:
        return TrainedClassifier(self.folder, json.loads((self.folder / "training.json").read_text()))

    @cached_property
    def corpus(self) -> LabelledCorpus:
        """What it was trained on. OutputError where that is no longer what its name stands for."""
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
    """Where a cell lives: a function of how it is trained."""
    name = f"{slug(cell.corpus)}-{slug(cell.model)}-L{cell.layers}-s{cell.seed}"
    return cache_folder / "classifiers" / f"{name}-{run_id(asdict(plan.recipe(cell).filled()))[:8]}"


def finished(cell: Cell, plan: Plan, cache_folder: Path) -> Trained | None:
    """A cell where it is trained."""
    folder = folder_of(cell, plan, cache_folder)
    return Trained(cell, plan, folder) if (folder / "training.json").exists() else None


def why_lost(cell: Cell, plan: Plan, context: Context) -> str:
    """Why a cell is not to be had: `diverged` where its loss was not finite, else `missing`."""
    return "diverged" if (folder_of(cell, plan, context.cache) / DIVERGED).exists() else "missing"


def each(
    cells: Sequence[Cell], plan: Plan, context: Context, look: Callable[[Trained], Any], *, train: bool | None = None
) -> Iterator[Any]:
    """`look` at every cell of a plan, trained now where it is not yet and the plan says so; cells that cannot be had
    are left out. What another process holds is left to it, and waited for at the end.
    """
    done: set[Cell] = set()
    for wait in (False, True):
        for cell in [c for c in cells if c not in done]:
            with claimed(folder_of(cell, plan, context.cache).with_suffix(".lock"), wait=wait) as mine:
                if not mine:
                    continue
                done.add(cell)
                trained = _trained(cell, plan, context, plan.train if train is None else train)
                if trained is not None:
                    yield look(trained)
            context.progress("classifiers", len(done), len(cells))
        if not plan.train:
            return  # a cell that is being trained is not finished


def _trained(cell: Cell, plan: Plan, context: Context, train: bool) -> Trained | None:
    folder = folder_of(cell, plan, context.cache)
    if not (folder / "training.json").exists():
        if not train or (folder / DIVERGED).exists():
            return None
        recipe = plan.recipe(cell)
        try:
            train_classifier(recipe, folder, resume=True, device=context.device, corpus=corpus_of(recipe))
        except DivergedError as error:  # reported, and not tried again
            text = json.dumps({"cell": asdict(cell), "error": str(error)})
            write_atomic(folder / DIVERGED, lambda path: path.write_text(text))
            return None
    return Trained(cell, plan, folder)
