"""Train small models (cells) in seconds, and measure them before and after, for questions on what training does.

<cache>/small/<cell>-<hash>.json        a hash of the corpus that it read
<cache>/small/<cell>-<hash>.parquet     its records

In records, `model` is `read=each blocks=norm L=3 d=64`, with ` untrained` appended at step 0. Apart from the metrics of
`measure` there are `class_cosine.mean` and `.most`: cosines of the mean directions of two classes.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from anisoscope.classes.pooling import make_separability_records
from anisoscope.data.encoding import LabelledPlan
from anisoscope.data.labelled import TEST
from anisoscope.data.local import find_copy
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.metrics.base import normalise
from anisoscope.models.modes import evaluation_mode
from anisoscope.provenance import make_run_id
from anisoscope.runs.run import make_slug
from anisoscope.store import as_records, make_records_once, visit_busy_last, write_json
from anisoscope_papers.beyond.small_models import (
    EACH,
    TREEBANK,
    UNTAGGED,
    Reader,
    Sentences,
    SmallCell,
    SmallGrid,
    build_untrained,
    open_material,
    train,
)
from anisoscope_papers.fosse2023.entry import Evidence, declare_entry
from anisoscope_papers.study import Context
from anisoscope_papers.training.contents import check_noted, hash_corpora

STAND_INS = {TREEBANK: "synthetic:5", "hatexplain": "synthetic:3"}
"""What is read in place of a corpus that is not under ANISOSCOPE_DATA."""
MEASURED = Settings(metrics=("intra_sequence",), tokens=("all", "content"))
SITES = ("hidden", "value")
MOST = 4000
"""Words at most whose directions are looked at."""
VERSION = 1
"""Raise it when what a cell holds changes."""


@torch.no_grad()
def measure_model(model: Reader, cell: SmallCell, sentences: Sentences) -> pd.DataFrame:
    """Measure a small model on the test split of these sentences; return the records.

    Accuracy, majority rate and whether the model learnt nothing (`collapsed`); the similarity of the words of a
    sentence by layer; cosines between the directions of classes; and how well these directions separate the classes.
    """
    vectors, truth, units = _read(model, sentences)
    with evaluation_mode(model):
        found = model.classifier(vectors).argmax(-1)
        batches = LabelledPlan(
            sentences.encoded[TEST], int(sentences.tokenizer.pad_token_id)
        )
        alike = run_pass(model, batches, MEASURED).records()
    alike = alike[
        (alike["metric"] == "intra_sequence")
        & alike["component"].isna()
        & alike["site"].isin(SITES)
    ]
    majority = float(truth.bincount().max()) / len(truth)
    right = float((found == truth).double().mean())
    # What the majority class alone exceeds by chance in one of twenty test splits (one-sided, normal).
    chance = majority + 1.645 * math.sqrt(majority * (1 - majority) / len(truth))
    shares = {
        "accuracy": right,
        "majority": majority,
        "collapsed": float(right <= chance),
    }
    rows: list[dict[str, Any]] = []
    for name, value in shares.items():
        rows.append({"metric": name, "component": TEST, "value": value})
    states = vectors.double().numpy()
    labels = truth.numpy()
    for name, x in compare_classes(states, labels).items():
        rows.append({"metric": f"class_cosine.{name}", "value": x})
    # Separation compares all pairs: its cost grows with the square of the number of words.
    few = slice(0, MOST)
    names = sentences.labels(cell.read)
    apart = make_separability_records(
        states[few, None], labels[few], names, units=units.numpy()[few]
    )
    shared = as_records(pd.DataFrame(rows), n_units=len(sentences.encoded[TEST]))
    # These models have one head, so that its number can be dropped.
    return pd.concat(
        [shared, apart.assign(layer=cell.layers), alike.assign(head=np.nan)],
        ignore_index=True,
    )


def _read(
    model: Reader, sentences: Sentences
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what the model's head reads in the test split: vectors [vector, dim], labels [vector] and sentence
    numbers [vector].
    """
    kept = []
    with evaluation_mode(model):
        # By 256 sentences: the states of all words at once would be large.
        for chosen in torch.split(torch.arange(len(sentences.encoded[TEST])), 256):
            inputs, labels = sentences.batch(TEST, chosen.tolist(), model.read)
            # Words of a sentence are not independent: intervals are over sentences.
            unit = chosen
            if model.read == EACH:
                unit = chosen[:, None].expand(labels.shape)
            # Special tokens and padding have no tag.
            known = labels != UNTAGGED
            kept.append((model.states(**inputs)[known], labels[known], unit[known]))
    vectors, truth, units = (torch.cat(parts) for parts in zip(*kept, strict=True))
    return vectors, truth, units


def compare_classes(
    vectors: NDArray[np.float64], labels: NDArray[np.int64]
) -> dict[str, float]:
    """Return {"mean": …, "most": …}: mean and largest cosine over all pairs of classes, between directions of class
    means.

    The direction of a class is the mean of its vectors, each scaled to length 1 first. vectors [vector, dim], labels
    (class index) [vector].
    """
    unit = normalise(vectors)
    means = normalise(np.stack([unit[labels == c].mean(0) for c in np.unique(labels)]))
    # Every pair of classes once, without the diagonal.
    cosine = (means @ means.T)[np.triu_indices(len(means), 1)]
    return {"mean": float(cosine.mean()), "most": float(cosine.max())}


def read_or_measure(
    cell: SmallCell, plan: SmallGrid, context: Context, wait: bool
) -> pd.DataFrame | None:
    """Return the records of a small model (cell), untrained and trained, computed once.

    `plan`: how small models are trained, and whether; `wait`: wait for another process that trains it. None if it has
    not been trained and the plan does not train.
    """
    # Fields of the plan that say which cells there are do not change a cell.
    recipe = {
        name: value for name, value in asdict(plan).items() if name in plan.RECIPE
    }
    digest = make_run_id([asdict(cell), recipe, VERSION])[:8]
    name = f"{make_slug(cell.task)}-{make_slug(cell.label)}-s{cell.seed}-{digest}"
    path = context.cache / "small" / f"{name}.parquet"

    noted = path.with_suffix(".json")
    # A corpus may have changed under its name since the cell was trained.
    read = hash_corpora(cell.task)
    if path.exists():
        check_noted(noted, read, path)

    def make() -> pd.DataFrame:
        """Train the model and measure it before and after."""
        # Before the records, whose file marks the cell as finished.
        write_json(noted, read)
        sentences = open_material(cell.task, plan.limit, plan.held, cell.seed)
        model = build_untrained(cell, sentences)
        # The very model that is trained next: step 0 and the end are paired.
        before = measure_model(model, cell, sentences)
        train(model, cell, sentences, plan)
        after = measure_model(model, cell, sentences)
        same = {"corpus": cell.task, "seed": cell.seed}
        parts = [
            as_records(before, model=cell.label + UNTRAINED, **same),
            as_records(after, model=cell.label, **same),
        ]
        return pd.concat(parts, ignore_index=True)

    if plan.train or path.exists():
        return make_records_once(path, make, wait=wait)
    return None


def measure(plan: SmallGrid, context: Context) -> pd.DataFrame:
    """Return the records of all small models (cells) of `plan`, trained or read from the cache in `context`."""
    instead = {}
    for task, _ in plan.tasks:
        if task in STAND_INS and not find_copy(task):
            instead[task] = STAND_INS[task]
    for task, other in instead.items():
        context.note_stand_in(other, task, "not under ANISOSCOPE_DATA")
    cells = plan.cells(instead)
    parts = []
    for done, part in enumerate(
        visit_busy_last(
            cells, lambda cell, wait: read_or_measure(cell, plan, context, wait)
        ),
        start=1,
    ):
        if part is not None:
            parts += [part]
        context.progress("small models", done, len(cells))
    if parts:
        return pd.concat(parts, ignore_index=True)
    return as_records(pd.DataFrame())


UNTRAINED = " untrained"
_LABEL = r"read=(?P<read>\S+) blocks=(?P<blocks>\S+) L=(?P<layers>\d+) d=(?P<dim>\d+)(?P<untrained> untrained)?"


def add_setting_columns(records: pd.DataFrame) -> pd.DataFrame:
    """Add columns to the records, read from the name of each model: `read`, `blocks`, `layers`, `dim`, `untrained`."""
    found = (
        records["model"]
        .astype(str)
        .str.extract(_LABEL)
        .astype({"layers": float, "dim": float})
    )
    found = records.join(found.assign(untrained=found["untrained"].notna()))
    # At step 0 no model has learnt anything: `collapsed` is a finding on trained ones only.
    return found[~(found["untrained"] & (found["metric"] == "collapsed"))]


TITLES = {TREEBANK: "UD English EWT"}


# Generated sentences are the subject of these studies, not a substitute for real ones.
class OfSmall(Evidence):
    """Evidence (records with helpers to test claims) from small models.

    Generated corpora do not replace others, and models that learnt nothing are counted so.
    """

    meant: Mapping[str, str] = MappingProxyType({})
    lost: Mapping[str, str] = MappingProxyType({"collapsed": "{} learnt nothing"})

    def __init__(
        self, study: str, records: pd.DataFrame, corpus: str = "", paper: str = "beyond"
    ) -> None:
        super().__init__(study, records, corpus, paper)
        generated, _, classes = corpus.partition(":")
        self.title = TITLES.get(generated, "all corpora")
        # A generated corpus is named by its number of classes: `synthetic:5`.
        if classes:
            self.title = f"{classes} synthetic classes"


small_study = partial(
    declare_entry,
    measure=measure,
    needs=(),
    paper="beyond",
    read=lambda name, records: OfSmall(name, add_setting_columns(records)),
)
"""A study whose records are those of a grid of small models."""
