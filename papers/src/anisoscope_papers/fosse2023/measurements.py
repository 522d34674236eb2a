"""Measure a trained classifier. Results are saved next to it, so that studies share them and measure nothing twice."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.classes.cls_entropy import measure_entropies
from anisoscope.classes.pooling import make_separability_records, pool_vectors
from anisoscope.data.encoding import LabelledPlan
from anisoscope.data.labelled import TEST
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.load import load
from anisoscope.provenance import make_run_id
from anisoscope.store import as_records, make_records_once
from anisoscope_papers.fosse2023.grid import PRETRAINED, SHORT, Cell, Grid
from anisoscope_papers.fosse2023.trained_cells import (
    DIVERGED,
    CellAtStart,
    Trained,
    apply_to_each,
    name_folder,
    open_corpus,
)
from anisoscope_papers.origin import hash_measuring_code
from anisoscope_papers.study import Context
from anisoscope_papers.training.classifier import measure_result
from anisoscope_papers.training.entropy_forms import find_ends

# `all` is the paper's population (with [CLS]); the two others show what special tokens
# do to it.
MEASURED = Settings(
    metrics=("intra_sequence", "norms", "attention"),
    tokens=("all", "content", "no-first"),
)
KEPT = (
    "intra_sequence",
    "norms.mean",
    "norms.variation",
    "attention.entropy_normalised",
    "attention.row_similarity",
)
# Keys as their projection gives them, with biases; values before the output projection
# W_O, as in the authors' code.
KEYS, VALUES = "key.raw", "value"
ENTROPIES = ("cls_entropy", "cls_entropy.floor", "cls_entropy.ceiling")

Look = Callable[[Trained], pd.DataFrame]


def gather(
    cells: Sequence[Cell], plan: Grid, context: Context, *looks: Look
) -> pd.DataFrame:
    """Return the records of all measurements of all cells (classifiers), trained first if the plan says so.

    A cell that is unavailable gives one row, `missing` or `diverged`. `looks`: functions that measure a trained
    classifier; `context`: the study's cache, device and progress.
    """
    seen: set[Cell] = set()

    def look(trained: Trained) -> pd.DataFrame:
        """Run all measurements of one classifier, and remember that it was found."""
        seen.add(trained.cell)
        return pd.concat([look(trained) for look in looks], ignore_index=True)

    parts: list[pd.DataFrame] = list(apply_to_each(cells, plan, context, look))
    # A row for each cell that is lacking: notes of verdicts count them.
    for c in cells:
        if c in seen:
            continue
        lost = (
            "diverged"
            if (name_folder(c, plan, context.cache) / DIVERGED).exists()
            else "missing"
        )
        row = pd.DataFrame([{"metric": lost, "value": 1.0}])
        parts.append(as_records(row, model=c.label, corpus=c.corpus, seed=c.seed))
    return pd.concat(parts, ignore_index=True)


def measure_once(
    trained: Trained, name: str, make: Callable[[], pd.DataFrame]
) -> pd.DataFrame:
    """Return the records that `make` computes for a classifier, computed once and saved as `name` next to it.

    Rows without a model get the classifier's name.
    """
    cell = trained.cell
    plan = trained.plan
    # A changed formula or number of utterances means another file.
    code = hash_measuring_code(__name__, make.__module__)
    path = (
        trained.folder
        / f"{name}-{make_run_id([code, plan.utterances, plan.erased])[:8]}.parquet"
    )
    found = make_records_once(
        path,
        lambda: as_records(make(), corpus=cell.corpus, seed=cell.seed),
        wait=trained.wait,
    )
    return found.assign(model=found["model"].fillna(trained.label))


def read_accuracies(trained: Trained) -> pd.DataFrame:
    """Return accuracy and majority rate by split, accuracy by class, and whether the training collapsed.

    A classifier that was trained on a part of a corpus is tested on the same test split as the others.
    """
    cell = trained.cell
    training = trained.found.training
    # Trained on all: its own test split is the common one. The others were trained on a
    # limited corpus, whose test split is limited too: they are tested again.
    whole = cell.attention and cell.examples is None
    rows: list[dict[str, Any]] = []
    for split, result in training["results"].items():
        if whole or split != TEST:
            rows += _make_share_rows(split, result)
    for name in ("collapsed", "parameters", "epochs"):
        rows.append({"metric": name, "value": float(training[name])})
    rows.append({"metric": "truncated", "value": sum(training["truncated"].values())})
    found = as_records(
        pd.DataFrame(rows), model=cell.label, corpus=cell.corpus, seed=cell.seed
    )
    if whole:
        return found
    return pd.concat([found, _test_split_model(trained)], ignore_index=True)


def _make_share_rows(split: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows (`metric`, `component`, `value`) of accuracy and majority rate on a split; on the test split also
    accuracy by class.

    `found`: the result of testing on the split (`training.classifier.result`).
    """
    of_split = {"component": split, "n_units": found["n"]}
    rows: list[dict[str, Any]] = []
    for name in ("accuracy", "majority"):
        rows.append({"metric": name, "value": found[name], **of_split})
    # Figure 2 compares the directions of classes with these.
    if split == TEST:
        for name, value in found["by_class"].items():
            row = {"metric": "class_accuracy", "component": name, "value": value}
            rows.append(row)
    return rows


def _test_split_model(trained: Trained) -> pd.DataFrame:
    """Return how a classifier that was trained on part of the corpus does on the common test split: accuracy and
    majority rate.
    """
    limit = trained.plan.limit

    def make() -> pd.DataFrame:
        """Test the classifier on the common test split."""
        corpus = open_corpus(trained.cell.corpus, limit)
        found = measure_result(
            corpus, TEST, trained.predicted(trained.encoded(corpus.splits[TEST]))
        )
        return as_records(pd.DataFrame(_make_share_rows(TEST, found)))

    return measure_once(trained, f"tested-{limit or 'all'}", make)


def measure_geometry(trained: Trained) -> pd.DataFrame:
    """Measure the similarity (eq. 3) of hidden states, keys and values by token policy, their norms, and entropies.

    An encoder is also measured as it was before fine-tuning.
    """

    def make() -> pd.DataFrame:
        """Measure the classifier; an encoder also before fine-tuning."""
        parts = [_measure_split(trained, TEST)]
        # Section 3 compares an encoder before and after. At step 0 it has random
        # weights, and no before.
        if not trained.cell.attention and not isinstance(trained, CellAtStart):
            before = load(trained.cell.model).model
            found = measure_similarities(
                before, trained.batches(trained.plan.utterances)
            )
            parts.append(found.assign(model=trained.cell.model + PRETRAINED))
        return pd.concat(parts, ignore_index=True)

    return measure_once(trained, "geometry", make)


def measure_population(trained: Trained) -> pd.DataFrame:
    """Run `measure_geometry` on the utterances that table 4 is about: on YelpHat, its reviews of 50 words."""
    # Only YelpHat has such a split; similarity depends on the number of words.
    if SHORT not in trained.corpus.splits:
        return measure_geometry(trained)
    return measure_once(
        trained, "geometry-short", lambda: _measure_split(trained, SHORT)
    )


def measure_separation(trained: Trained) -> pd.DataFrame:
    """Measure how well directions of classes tell the final [CLS] vectors apart (`class_direction.*`)."""

    def make() -> pd.DataFrame:
        """Measure how well class directions tell the final [CLS] vectors apart."""
        labels, _ = trained.classes
        vectors = pool_vectors(
            trained.classifier[0], trained.batches(trained.plan.utterances)
        )[:, -1:]
        return make_separability_records(vectors, labels, trained.corpus.labels).assign(
            layer=trained.cell.layers
        )

    return measure_once(trained, "separated", make)


def _measure_split(trained: Trained, split: str) -> pd.DataFrame:
    """Measure similarities and, for attention-only models, entropies on a split."""
    model = trained.classifier[0]
    batches = trained.batches(trained.plan.utterances, split)
    parts = [measure_similarities(model, batches)]
    # H is published of the attention-only model alone.
    if trained.cell.attention:
        parts += [measure_entropy(model, batches)]
    return pd.concat(parts, ignore_index=True)


def measure_similarities(model: Any, batches: LabelledPlan) -> pd.DataFrame:
    """Return similarities, norms and entropies per layer, averaged over heads, with intervals over the utterances of
    `batches`.
    """
    records = run_pass(model, batches, MEASURED).records()
    records = records[records["metric"].isin(KEPT) & records["component"].isna()]
    # The paper has one head; numbers of an encoder's heads are averaged.
    heads = records["head"].notna()
    keys = ["stack", "kind", "layer", "site", "token_policy", "metric"]
    means = records[heads].groupby(keys, dropna=False)[["value"]].mean().reset_index()
    return as_records(
        pd.concat([records[~heads], as_records(means)], ignore_index=True)
    )


def measure_entropy(model: Any, batches: LabelledPlan, layer: int = 1) -> pd.DataFrame:
    """Return the entropy H of a layer's [CLS] attention row in every published form, with its possible range.

    The mean is over the utterances of `batches`. The range (`cls_entropy.floor`, `.ceiling`) depends on their lengths.
    """
    found = measure_entropies(model, batches, (layer,))
    # What H can be depends on how many tokens an utterance has.
    lengths = np.array(batches.encoded.lengths)
    rows = []
    for form, (low, high) in find_ends(lengths).items():
        for metric, value in zip(
            ENTROPIES, (float(found[form].mean()), low, high), strict=True
        ):
            rows.append({"metric": metric, "component": form, "value": value})
    return as_records(pd.DataFrame(rows), layer=layer, n_units=len(lengths))
