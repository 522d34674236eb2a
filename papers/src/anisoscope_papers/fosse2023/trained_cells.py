"""Train the classifiers of the grid. Each has a folder of its own, found again by every study and every restart.

<cache>/classifiers/<cell>-<hash>/    the checkpoint, and what was measured of it (`measurements.py`)
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from transformers import set_seed

from anisoscope.classes.pooling import pool_vectors, predict_classes
from anisoscope.data.encoding import Encoded, LabelledPlan, encode
from anisoscope.data.labelled import TEST, TRAIN, Example, LabelledCorpus, take_balanced
from anisoscope.data.opening import open_labelled
from anisoscope.errors import CorpusError, DivergedError, ModelError, OutputError
from anisoscope.metrics.base import normalise
from anisoscope.provenance import make_run_id
from anisoscope.runs.run import make_slug
from anisoscope.store import make_once, visit_busy_last, write_json
from anisoscope_papers.fosse2023.grid import LEARNED, SCALED, UNTRAINED, Cell, Grid
from anisoscope_papers.study import Context
from anisoscope_papers.training.classifier import TrainedClassifier, train_classifier
from anisoscope_papers.training.classifier_parts import Parts, build_parts
from anisoscope_papers.training.contents import hash_read

TOLD, DIVERGED = "training.json", "diverged.json"
Labels = NDArray[np.int64]


@cache
def open_corpus(name: str, limit: int | None = None, split: int = 0) -> LabelledCorpus:
    """Open the corpus `name`, once for all seeds and depths; at most `limit` examples of each split, None: all.

    `split` seeds the random split if the corpus has none of its own.
    """
    return open_labelled(name, limit=limit, seed=split)


@dataclass(frozen=True)
class Trained:
    """A finished classifier (cell) of a plan, with what studies measure of it.

    wait   wait for measurements that another process is making"""

    cell: Cell
    plan: Grid
    folder: Path
    wait: bool = True

    @cached_property
    def found(self) -> TrainedClassifier:
        """The trained classifier, with its training.json."""
        return TrainedClassifier(
            self.folder, json.loads((self.folder / TOLD).read_text())
        )

    @cached_property
    def corpus(self) -> LabelledCorpus:
        """The corpus it was trained on. OutputError if the corpus or the files it read have changed since."""
        corpus = open_corpus(
            self.cell.corpus, self.plan.recipe(self.cell).limit, self.cell.split
        )
        # Nobody would notice that other texts are measured than were trained on.
        if corpus.fingerprint != self.found.training["corpus"]["fingerprint"]:
            expected = f"the {corpus.name} that the classifiers in {self.folder.parent} were trained on"
            raise OutputError(
                expected,
                "another version of it",
                "choose another --output, or use the data of that training",
            )
        # Older trainings did not record it.
        read = self.found.training.get("read")
        if read is not None and read != hash_read(self.plan.recipe(self.cell).filled()):
            expected = f"the {' and '.join(read)} that the classifier in {self.folder} was trained with"
            raise OutputError(
                expected,
                "other contents",
                "choose another --output, or use the files of that training",
            )
        return corpus

    @cached_property
    def classifier(self) -> tuple[Any, Any]:
        """The loaded classifier: (model, tokenizer)."""
        return self.found.classifier()

    def examples(self, limit: int, split: str = TEST) -> tuple[Example, ...]:
        """Return the first utterances of a split, at most `limit` in all, equally many of each class."""
        return take_balanced(self.corpus.splits[split], limit, len(self.corpus.labels))

    @property
    def label(self) -> str:
        """The classifier's name in the column `model` of records."""
        return self.cell.label

    @property
    def max_length(self) -> int:
        """The number of tokens at which the classifier cuts utterances."""
        return self.found.max_length

    def encoded(self, examples: Sequence[Example]) -> Encoded:
        """Tokenize examples as the classifier does."""
        return encode(examples, self.classifier[1], self.max_length)

    def batches(self, limit: int, split: str = TEST) -> LabelledPlan:
        """Return batches of the first utterances of a split, at most `limit` in all."""
        return LabelledPlan(self.encoded(self.examples(limit, split)), self._pad)

    def predicted(self, encoded: Encoded) -> list[int]:
        """Return the index of the predicted class of each tokenized utterance."""
        return predict_classes(self.classifier[0], encoded, self._pad)

    @property
    def _pad(self) -> int:
        """The id of the padding token."""
        return int(self.classifier[1].pad_token_id or 0)

    @cached_property
    def classes(self) -> tuple[Labels, Labels]:
        """(true class, predicted class) of every measured utterance, as class indices [utterance] each."""
        encoded = self.encoded(self.examples(self.plan.utterances))
        return np.array(encoded.labels), np.array(self.predicted(encoded))

    def directions(self, model: Any = None) -> Float[np.ndarray, "utterance dim"]:
        """Return the final [CLS] vector of every measured utterance, scaled to unit length; or that of
        another `model`.
        """
        model = self.classifier[0] if model is None else model
        # The last layer, at the position that the classifier's head reads: [CLS].
        return normalise(pool_vectors(model, self.batches(self.plan.utterances))[:, -1])


@dataclass(frozen=True)
class CellAtStart(Trained):
    """A classifier (cell) at step 0, with the exact weights from which its training begins.

    An encoder has random weights in place of the pre-trained ones.
    """

    @property
    def label(self) -> str:
        """The classifier's name in the column `model` of records."""
        return self.cell.label + UNTRAINED

    @cached_property
    def corpus(self) -> LabelledCorpus:
        """The corpus that the classifier would be trained on."""
        return open_corpus(
            self.cell.corpus, self.plan.recipe(self.cell).limit, self.cell.split
        )

    @cached_property
    def classifier(self) -> tuple[Any, Any]:
        """(model, tokenizer), untrained."""
        return self._parts.model.eval(), self._parts.tokenizer

    @property
    def max_length(self) -> int:
        """The number of tokens at which the classifier would cut utterances."""
        return int(self._parts.described["max_length"])

    @cached_property
    def _parts(self) -> Parts:
        """Model, tokenizer and description, built with the seed by which the classifier is trained."""
        recipe = self.plan.recipe(self.cell).filled()
        # As the training does, so that the weights are those it begins with.
        set_seed(recipe.seed)
        # Training texts make the vocabulary; test texts are measured.
        splits = {split: self.corpus.splits[split] for split in (TRAIN, TEST)}
        parts = build_parts(recipe, replace(self.corpus, splits=splits))
        if not self.cell.attention:
            # `build_parts` has loaded pre-trained weights: the control is the same
            # network with random ones.
            set_seed(recipe.seed)
            parts = replace(parts, model=type(parts.model)(parts.model.config))
        return parts


def iter_untrained(
    cells: Sequence[Cell], plan: Grid, context: Context
) -> Iterator[CellAtStart]:
    """Yield the cells (classifiers) at step 0, one for all cells that differ only in λ (weight of the penalty) or in
    how attention is trained.

    `plan`: the grid of classifiers; `context`: the study's cache, device and progress.
    """
    # The start does not depend on λ, nor on whether attention is trained; other word
    # vectors have no control.
    same = dict.fromkeys(
        replace(cell, weight=0.0, arm=LEARNED) for cell in cells if cell.start == SCALED
    )
    for done, cell in enumerate(same, 1):
        at_start = CellAtStart(
            cell,
            plan,
            context.cache / "untrained" / name_folder(cell, plan, context.cache).name,
        )
        # What is unavailable was noted already, when it was to be trained.
        with suppress(CorpusError, ModelError):
            _ = at_start.corpus, at_start.classifier
            yield at_start
        context.progress("models at step 0", done, len(same))


def name_folder(cell: Cell, plan: Grid, cache_folder: Path) -> Path:
    """Return the folder of a cell (classifier) in `cache_folder`; its name depends on how the plan trains it."""
    name = (
        f"{make_slug(cell.corpus)}-{make_slug(cell.model)}-L{cell.layers}-s{cell.seed}"
    )
    return (
        cache_folder
        / "classifiers"
        / f"{name}-{make_run_id(plan.recipe(cell).filled().described())[:8]}"
    )


def apply_to_each(
    cells: Sequence[Cell], plan: Grid, context: Context, look: Callable[[Trained], Any]
) -> Iterator[Any]:
    """Apply `look` to every cell (classifier) that is available, and yield the results.

    If the plan says so, missing ones are trained first. Those that other processes are training come last. A corpus or
    encoder that is unavailable is noted in `context`, once.
    """
    lost: set[str] = set()

    def attempt(cell: Cell, wait: bool) -> Any:
        """Train a cell (classifier) if needed and look at it; None if it is unavailable. `wait`: wait for another
        process that trains it.
        """
        folder = name_folder(cell, plan, context.cache)
        # A download that fails takes long to fail: it is tried once.
        if lost & {cell.corpus, cell.model}:
            return None
        try:
            if plan.train:
                make_once(
                    folder,
                    lambda: train_cell(cell, plan, folder, context.device),
                    marker=TOLD,
                    wait=wait,
                )
            if (folder / TOLD).exists():
                # In a tuple, since a look may return None.
                return (look(Trained(cell, plan, folder, wait)),)
            return None
        except (CorpusError, ModelError) as error:
            # What is missing: the corpus, the encoder whose word vectors are taken, or
            # the one to fine-tune.
            if isinstance(error, CorpusError):
                name = cell.corpus
            elif cell.attention:
                name = plan.encoder
            else:
                name = cell.model
            lost.add(name)
            context.note_unavailable(name, error)
            return None

    for done, looked in enumerate(visit_busy_last(cells, attempt), 1):
        context.progress("classifiers", done, len(cells))
        if looked is not None:
            yield looked[0]


def train_cell(cell: Cell, plan: Grid, folder: Path, device: str) -> None:
    """Train a cell (classifier) into a folder as the plan says, or resume. If its loss is not finite, it leaves a
    file `DIVERGED` there.
    """
    # Trained already, in vain.
    if (folder / DIVERGED).exists():
        return
    recipe = plan.recipe(cell)
    try:
        corpus = open_corpus(recipe.corpus, recipe.limit, recipe.split_seed)
        train_classifier(recipe, folder, resume=True, device=device, corpus=corpus)
    except DivergedError as error:
        # Reported as `diverged`, and not tried again.
        write_json(folder / DIVERGED, {"cell": asdict(cell), "error": str(error)})
