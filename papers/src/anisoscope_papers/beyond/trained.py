"""Train language models of every arm (set of changes) and seed by one recipe. Each is a cell: trained and measured
once.

    <cache>/beyond/<arm>-<seed>-<hash>/step-N.parquet     measurements at step N
    <cache>/beyond/<arm>-<seed>-<hash>/resume             the state of a running training, to resume from
    <cache>/beyond/<arm>-<seed>-<hash>/read.json          hashes of the texts for training and measuring
    <cache>/beyond/<arm>-<seed>-<hash>/records.parquet    measurements at all steps
    <cache>/beyond/<arm>-<seed>-<hash>/asked.parquet      outcomes at the end (`outcomes`); written last

Records have the metrics of `measure`; `model` is the arm. By step there are also `training.loss` (plain, in nats, on
held-out windows, whatever the arm's own loss) and `training.skill`: 1 − loss / loss of the unigrams. Skill is 0 for a
model that only knows word frequencies, and 1 for a perfect one.
"""

import shutil
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from anisoscope.data.local import find_path
from anisoscope.data.opening import open_plan
from anisoscope.measure.loop import measure_probe, run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.modes import evaluation_mode
from anisoscope.provenance import make_run_id
from anisoscope.store import (
    as_records,
    make_once,
    make_records_once,
    select,
    visit_busy_last,
    write_json,
)
from anisoscope_papers.beyond import arms, outcomes
from anisoscope_papers.study import Context
from anisoscope_papers.training.contents import check_noted, hash_corpora
from anisoscope_papers.training.fit import Fitting, Material, fit
from anisoscope_papers.training.language_model import build_settings
from anisoscope_papers.training.recipe import ModelSize, Task, Training
from anisoscope_papers.training.text import (
    UNMASKED,
    Examples,
    Tokens,
    cache_folder,
    open_training_corpus,
    prepare,
)

CORPUS, PROBE, BUILTIN = (
    "pretrain_text",
    "wikitext/wiki.valid.raw",
    "builtin:python-docs",
)
"""The corpus that models are trained on, the one they are measured on, and what replaces both if ANISOSCOPE_DATA lacks
them.
"""
ASKED, SEEN, READ = "asked.parquet", "records.parquet", "read.json"
# What figures show along training; what needs a second pass, or no figure follows, is
# measured at the end alone.
ALONG = ("mean_cosine", "drift", "norms", "query_key", "attention")
AT_THE_END = (*ALONG, "score_terms", "centred_attention", "common_direction")
SITES = ("hidden", "query.raw", "key.raw", "attention", "scores", "centred")
OF_SOFTMAX = ("attention", "centred")
"""Sites whose numbers are of a softmax of the scores, and of no other form of attention."""
LOSS, SKILL = "training.loss", "training.skill"
VERSION = 1
"""Raise it when what a cell holds changes."""


class Cells(Protocol):
    """How an experiment trains and measures its models (cells), one for each arm (set of changes) and seed."""

    def folder(self, arm: str, seed: int) -> Path:
        """Return the folder of the model of an arm (set of changes) and a seed; it depends on every setting."""

    def hash_data(self) -> dict[str, str]:
        """Return {name of a corpus: hash of its files} for the corpora that models are trained and measured on.

        Empty if the name of `folder` depends on these data already.
        """

    def train(self, arm: str, seed: int, folder: Path, device: str) -> None:
        """Train the model of an arm (set of changes) and a seed in `folder`, or resume, and write its records."""


@dataclass(frozen=True)
class Recipe:
    """How language models are trained and measured. Every field is part of a model's identity.

    task           `masked-lm` (as BERT), or `causal-lm`: every token from those before it, which is learnt far sooner
    steps, looks   steps of training; it is measured at the steps `looks`, at step 0 and at the last
    probe          windows it is measured on, evenly spread over a text that no model was trained on
    """

    task: Task
    size: ModelSize
    steps: int
    looks: tuple[int, ...]
    probe: int = 96

    @property
    def seen(self) -> tuple[int, ...]:
        """The training steps at which a model is measured."""
        return tuple(sorted({0, *self.looks, self.steps}))

    def folder(self, arm: str, seed: int) -> Path:
        """Return the folder of the model (cell) of an arm (set of changes) and a seed."""
        # Every setting, and which texts were there: a change of one is another folder.
        identity = make_run_id([asdict(self), VERSION, list_corpora()])
        return cache_folder() / "beyond" / f"{arm}-{seed}-{identity[:8]}"

    def hash_data(self) -> dict[str, str]:
        """Return {name of a corpus: hash of its files} for training and measuring."""
        return hash_corpora(*list_corpora())

    def train(self, arm: str, seed: int, folder: Path, device: str) -> None:
        """Train the model of an arm (set of changes) and a seed in `folder`, or resume, measure its outcomes, and
        write its records.
        """
        _train(arm, seed, self, folder, device)


@dataclass(frozen=True)
class Experiment:
    """The cells (trained models) that a study reads: every arm with every seed, the most important first.

    `train` False: only finished ones are read. `asked`: also the `outcomes` of each; a cell without them is trained
    again.
    """

    arms: tuple[str, ...]
    seeds: int
    recipe: Cells
    train: bool = True
    asked: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The files that a finished cell (trained model) must hold, in the order in which they are written."""
        if self.asked:
            return (SEEN, ASKED)
        return (SEEN,)

    def has(self, arm: str, seed: int) -> bool:
        """Return whether the cell (trained model) of an arm (set of changes) and a seed is finished."""
        folder = self.recipe.folder(arm, seed)
        return all((folder / name).exists() for name in self.files)

    def cells(self) -> list[tuple[str, int]]:
        """List the models to train, as (arm, seed); an arm is a set of changes.

        The first two arms come first with every seed, so that an interrupted run holds one full comparison.
        """
        first = self.arms[:2]
        others = self.arms[2:]
        cells = []
        for part in (first, others):
            for seed, arm in product(range(self.seeds), part):
                cells.append((arm, seed))
        return cells


def measure(experiment: Experiment, context: Context) -> pd.DataFrame:
    """Return the records of all cells (trained models) of an experiment, trained now or read from the cache."""
    cells = experiment.cells()
    recipe = experiment.recipe
    if not experiment.train:
        cells = [cell for cell in cells if experiment.has(*cell)]

    def attempt(cell: tuple[str, int], wait: bool) -> pd.DataFrame:
        """Train a cell (trained model) if needed and return its records; `wait`: wait for another process that trains
        it.
        """
        folder = recipe.folder(*cell)
        # A changed corpus under the old name would mix two trainings in one folder.
        check_noted(folder / READ, recipe.hash_data(), folder)
        make_once(
            folder,
            lambda: _train_noted(recipe, cell, folder, context.device),
            marker=experiment.files[-1],
            wait=wait,
        )
        found = pd.concat(
            [pd.read_parquet(folder / name) for name in experiment.files],
            ignore_index=True,
        )
        return as_records(found.assign(model=cell[0], seed=cell[1]))

    parts = []
    for done, part in enumerate(visit_busy_last(cells, attempt), start=1):
        parts.append(part)
        context.progress("cells", done, len(cells))
    if parts:
        return pd.concat(parts, ignore_index=True)
    return as_records(pd.DataFrame())


def _train_noted(
    recipe: Cells, cell: tuple[str, int], folder: Path, device: str
) -> None:
    """Note what a cell, (arm, seed), reads in training, then train it in `folder`, or resume, and write its records."""
    # First, so that a training that is interrupted knows what it was begun with.
    write_json(folder / READ, recipe.hash_data())
    recipe.train(*cell, folder, device)


def list_corpora() -> tuple[str, str]:
    """Return (corpus for training, corpus for measuring) by name; the built-in text if one is missing."""
    return (
        CORPUS if find_path(CORPUS) else BUILTIN,
        PROBE if find_path(PROBE) else BUILTIN,
    )


def _train(arm: str, seed: int, recipe: Recipe, folder: Path, device: str) -> None:
    """Train the model of an arm (set of changes) and a seed, or resume, measure its outcomes, and write its records.

    Records that `folder` holds already are not written again.
    """
    size = recipe.size
    named, probed = list_corpora()
    tokenizer, tokens = prepare(
        open_training_corpus(named), recipe.task, size.vocabulary, size.window
    )
    windows, held = tokens.parts()
    training = Training(
        task=recipe.task, own_size=size, steps=recipe.steps, seed=seed, device=device
    )
    model = arms.build_untrained(arm, size, tokenizer, seed)
    changes = arms.list_changes(arm)
    shares = compute_unigram_shares(tokens, windows)
    if any(change.balanced for change in changes):
        # In place: the weights are a buffer, which is saved with the model.
        model.token_weights.copy_(torch.from_numpy(compute_balanced_weights(shares)))
    # Not shuffled: the same windows in the same order at every look.
    validation = Examples(tokens, held, len(held), 0, shuffled=False)
    # Two sets of windows: a small one for all metrics, a large one for retrieval.
    sizes = (recipe.probe, outcomes.WINDOWS)
    plan, texts = (
        open_plan(probed, model, tokenizer, modality="text", sequences=n)[0]
        for n in sizes
    )

    made = Material(
        model,
        tokenizer,
        Examples(tokens, windows, recipe.steps * size.batch, seed),
        validation,
        dict,
    )
    # As `anisoscope train` does, but without weight decay unless an arm asks for it.
    settings = build_settings(training) | {
        "weight_decay": max((change.decay for change in changes), default=0.0)
    }
    cell: dict[str, Any] = {"model": arm, "seed": seed, "corpus": probed}
    guess = compute_unigram_loss(shares, validation)
    train_and_measure(
        made,
        Fitting(settings, share=training.share),
        plan,
        recipe.seen,
        guess,
        folder,
        cell,
    )
    given = cell | {"step": recipe.steps}
    make_records_once(
        folder / ASKED,
        lambda: as_records(
            outcomes.measure_outcomes(model, tokenizer, plan, texts).assign(**given)
        ),
    )
    shutil.rmtree(folder / "resume", ignore_errors=True)


def train_and_measure(
    made: Material,
    how: Fitting,
    plan: Any,
    seen: tuple[int, ...],
    guess: float,
    folder: Path,
    named: dict[str, Any],
) -> None:
    """Train a model and measure it along the way; write the records into `folder`, which also serves to resume.

    made    the model, its processor and its examples
    how     settings of the training loop
    plan    the batches on which the model is measured
    seen    the training steps at which it is measured
    guess   validation loss of a guess that ignores the example; skill is 1 − loss / guess
    named   further columns of the records and their values: model, seed, corpus
    """

    def on_step(step: int, _last: int, model: Any) -> None:
        """Measure the model if this step is one of `seen`."""
        # A look that an interrupted training has written is not made again.
        if step in seen:
            make_records_once(
                folder / f"step-{step}.parquet",
                partial(_measure_step, model, plan, last=step == seen[-1]),
            )

    def found() -> pd.DataFrame:
        """Return the measurements of all steps, with validation loss and skill (1 − loss / loss of a guess)."""
        losses = pd.DataFrame(
            history["validation_loss"], columns=["step", "value"]
        ).assign(metric=LOSS)
        skill = losses.assign(metric=SKILL, value=1 - losses["value"] / guess)
        looks = [
            pd.read_parquet(folder / f"step-{step}.parquet").assign(step=step)
            for step in seen
        ]
        return as_records(
            pd.concat([*looks, losses, skill], ignore_index=True).assign(**named)
        )

    # The model at its start: the Trainer calls only after a step.
    on_step(0, 0, made.model)
    # The validation loss is needed at the steps of the looks, for their skill.
    history = fit(
        made, replace(how, evaluated=frozenset(seen)), on_step, folder / "resume"
    )
    make_records_once(folder / SEEN, found)


def _measure_step(model: Any, plan: Any, *, last: bool) -> pd.DataFrame:
    """Measure a model as it is at one training step, on the batches `plan`; return one record per metric and layer or
    head.

    Records of single dimensions are left out. At the `last` step more metrics are measured.
    """
    # Eight groups, the fewest sums: intervals over documents are dropped below.
    settings = Settings(metrics=ALONG, tokens=("all",), groups=8, sample=0)
    if last:
        # `centred_attention` needs the means of heads first, from a pass of its own.
        with evaluation_mode(model):
            measurement = run_pass(
                model.base_model, plan, replace(settings, metrics=AT_THE_END)
            )
    else:
        measurement = measure_probe(
            model.base_model, [plan[i] for i in range(len(plan))], settings
        )
    form = arms.find_form(getattr(model.config, "arm", arms.BASE))
    # These are computed as a softmax, which arms with another form do not use.
    sites = [site for site in SITES if not (form and site in OF_SOFTMAX)]
    rows = select(measurement.records(), site=sites, component=None)
    return as_records(rows.assign(low=np.nan, high=np.nan))  # intervals are over seeds


def compute_unigram_shares(
    tokens: Tokens, windows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the share that each token of the vocabulary has in the training windows, [token].

    `tokens`: the tokenised corpus; `windows`: indices of the windows for training.
    """
    # One is added to every count: a token that training lacks may occur in validation, and its logarithm is taken.
    counts = np.ones(tokens.vocabulary)
    first = len(tokens.affixes.prefix)
    for part in np.array_split(windows, max(1, len(windows) // 4096)):
        # Without [CLS] and [SEP], which are never to be found.
        content = tokens.rows(part)[:, first : first + tokens.room]
        counts += np.bincount(content.ravel(), minlength=tokens.vocabulary)
    return np.asarray(counts / counts.sum(), dtype=np.float64)


def compute_balanced_weights(shares: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the weight that each token's error has in the loss of the arm `balanced`: proportional to share^−½.

    `shares`: of tokens in the training text, [token]. Returns [token]; the mean weight over the tokens of the text is
    1.
    """
    weights = shares**-0.5
    return np.asarray(weights / (shares * weights).sum(), dtype=np.float32)


def compute_unigram_loss(shares: NDArray[np.float64], examples: Examples) -> float:
    """Return the cross-entropy, in nats, of the hidden tokens of `examples`, each predicted by its share in training.

    `shares`: of tokens in training, [token].
    """
    labels = np.concatenate(
        [examples[i]["labels"].numpy() for i in range(len(examples))]
    )
    return float(-np.log(shares[labels[labels != UNMASKED]]).mean())
