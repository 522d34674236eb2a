"""Train classifiers (cells) of the grid, measure them once and delete them. Only a small table of records is kept.

<cache>/cells/<cell>-<hash>.parquet    the records; the hash is of its recipe
<cache>/cells/<cell>-<hash>.json       hashes of what it read: corpus, word vectors or encoder
<cache>/cells/<cell>-<hash>/           its training, while it is running

If the study's own folder has records of a cell from another machine, they are used: copy `records.parquet` into
`<output>/beyond/paper/<study>` and reproduce the study with the settings `paper`.
"""

import base64
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.classes.ablation import average_outcome
from anisoscope.data.labelled import TEST
from anisoscope.errors import CorpusError, ModelError
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.provenance import describe_code_version, make_run_id
from anisoscope.store import (
    as_records,
    make_once,
    read_table,
    select,
    visit_busy_last,
    write_json,
    write_table,
)
from anisoscope_papers.fosse2023.entry import Evidence, declare_entry
from anisoscope_papers.fosse2023.grid import (
    LEARNED,
    NEEDS,
    PAPER,
    QUICK,
    SHORT,
    Cell,
    Grid,
)
from anisoscope_papers.fosse2023.measurements import KEYS, VALUES, measure_entropy
from anisoscope_papers.fosse2023.trained_cells import (
    DIVERGED,
    TOLD,
    CellAtStart,
    Trained,
    name_folder,
    open_corpus,
    train_cell,
)
from anisoscope_papers.judge import Test
from anisoscope_papers.study import Context, Study
from anisoscope_papers.training.contents import check_noted, hash_read

# Component of rows on the test split whose attention was made uniform.
AFTERWARDS = "test, uniform afterwards"
RIGHT = "right"
"""Metric of rows whose `component` says which test utterances a model has right, a bit each (`unpack_bits`)."""
OF_UTTERANCES = (RIGHT, "accuracy", "majority", "collapsed", "missing", "diverged")
# What the claims are about and no more: thousands of cells are measured once each.
MEASURED = Settings(metrics=("intra_sequence", "norms"), tokens=("all",))
SITES = ("hidden", KEYS, VALUES)


def declare_cell_study(
    name: str,
    cells: Callable[[Grid], Sequence[Cell]],
    *,
    tests: Callable[[Evidence], Iterable[Test]],
    draw: Callable[[Evidence], dict[str, ChartType]],
    utterances: bool = False,
) -> Study:
    """Declare a study of classifiers (cells) that are measured once and not kept.

    cells        grid → the classifiers that the study needs
    tests        yields the tests of the study's claims, from the evidence on all corpora
    draw         makes the charts, {name: chart}
    utterances   True: keep accuracies, and which single test utterances each classifier has right; False: keep all
                 records but those of single utterances
    """
    settings = {"quick": QUICK, "paper": PAPER, "finished": replace(PAPER, train=False)}

    def measure(plan: Grid, context: Context) -> pd.DataFrame:
        """Return the records of the study's cells (classifiers), trained if needed. `plan`: the grid of classifiers."""
        found = collect_records(cells(plan), plan, context)
        # Rows with a bit for each utterance are large; only `crossed` reads them.
        is_kept = found["metric"] != RIGHT
        if utterances:
            is_kept = found["metric"].isin(OF_UTTERANCES)
        return found[is_kept].reset_index(drop=True)

    def at_hand(plan: Grid, cache: Path) -> bool:
        """Return whether any of the study's cells (classifiers) of the grid `plan` has been measured in this cache."""
        return any(find_table(cell, plan, cache).exists() for cell in cells(plan))

    code: dict[str, Any] = {
        "measure": measure,
        "tests": tests,
        "draw": draw,
        "at_hand": at_hand,
    }
    return declare_entry(name, **code, paper="beyond", settings=settings, needs=NEEDS)


def find_table(cell: Cell, plan: Grid, cache: Path) -> Path:
    """Return the path, in the folder `cache`, of the records of a cell (classifier) trained as `plan` says."""
    return cache / "cells" / f"{name_folder(cell, plan, cache).name}.parquet"


def collect_records(
    cells: Sequence[Cell], plan: Grid, context: Context
) -> pd.DataFrame:
    """Return the records of all cells (classifiers), trained now if the plan says so.

    A cell that is unavailable gives one row, `missing` or `diverged`. `context`: the study's cache, device and
    progress.
    """
    earlier = _read_earlier(context)
    lost: set[str] = set()

    def attempt(cell: Cell, wait: bool) -> pd.DataFrame:
        """Return the records of a cell (classifier); `wait`: wait for another process that trains it."""
        # The recipe names a cell, on every machine: records that were copied here are
        # found by it.
        identity = make_run_id(plan.recipe(cell).filled().described())
        known = select(earlier, run=identity)
        if len(known):
            return known
        # One look for a missing corpus is enough: a download that fails takes long to fail.
        if cell.corpus in lost:
            return _note_absent(cell, "missing")
        table = find_table(cell, plan, context.cache)
        try:
            if table.exists():
                # Under the same recipe a corpus may have changed since.
                check_inputs(cell, plan, table)
            # Another process may train the same grid: each cell is made by one of them.
            if plan.train:
                make_once(
                    table,
                    lambda: _keep_measured(cell, plan, table, context.device),
                    wait=wait,
                )
        except (CorpusError, ModelError) as error:
            lost.add(cell.corpus)
            context.note_unavailable(cell.corpus, error)
        if table.exists():
            return read_table(table).assign(run=identity)
        return _note_absent(cell, "missing")

    parts = []
    for done, found in enumerate(visit_busy_last(cells, attempt), 1):
        parts.append(found)
        context.progress("classifiers", done, len(cells))
    return as_records(pd.concat(parts, ignore_index=True))


def _read_earlier(context: Context) -> pd.DataFrame:
    """Return the records in the study's own folder: of an earlier run, or copied from another machine."""
    path = context.folder / "records.parquet"
    if path.exists():
        return read_table(path)
    # No rows, but with all columns, so that `select` finds nothing without complaint.
    return as_records(pd.DataFrame({"metric": []}))


def _note_absent(cell: Cell, why: str) -> pd.DataFrame:
    """Return a table of one row for a cell (classifier) that has no measurements, with the reason as its metric.

    why   the reason: "missing" (it was not trained) or "diverged" (its training did)
    """
    row = pd.DataFrame([{"metric": why, "value": 1.0}])
    return as_records(row, model=cell.label, corpus=cell.corpus, seed=cell.seed)


def hash_inputs(cell: Cell, plan: Grid) -> dict[str, str]:
    """Hash the inputs of a cell's (classifier's) training: {"corpus": hash, and "vectors" or "model": hash}.

    `vectors`: pretrained word vectors; `model`: the encoder to fine-tune. `plan` says how the cell is trained.
    CorpusError or ModelError if an input is unavailable.
    """
    recipe = plan.recipe(cell).filled()
    corpus = open_corpus(recipe.corpus, recipe.limit, recipe.split_seed)
    return {"corpus": corpus.fingerprint, **hash_read(recipe)}


def check_inputs(cell: Cell, plan: Grid, table: Path) -> None:
    """Raise OutputError if the inputs that a saved cell (classifier) was trained on have changed since.

    Hashes of the corpus and of word vectors or encoder were saved with the cell. Nothing is checked if there are none,
    or if an input is unavailable here. `table`: the file of the cell's records.
    """
    noted = table.with_suffix(".json")
    if not noted.exists():
        return
    # Records copied from another machine can be read without the corpus.
    with suppress(CorpusError, ModelError):
        check_noted(noted, hash_inputs(cell, plan), table)


def _keep_measured(cell: Cell, plan: Grid, table: Path, device: str) -> None:
    """Train and measure a cell (classifier) as `plan` says, and save its records as `table`.

    What it read is noted first, since the table marks it as done.
    """
    write_json(table.with_suffix(".json"), hash_inputs(cell, plan))
    write_table(table, _train_and_measure(cell, plan, table.with_suffix(""), device))


def _train_and_measure(
    cell: Cell, plan: Grid, folder: Any, device: str
) -> pd.DataFrame:
    """Train a cell (classifier) in `folder` as `plan` says; return its measurements, and delete the folder."""
    train_cell(cell, plan, folder, device)
    # A loss that is not finite is a finding, and the next run must not train it again.
    if (folder / DIVERGED).exists():
        found = _note_absent(cell, "diverged")
    else:
        assert (folder / TOLD).exists()
        trained = Trained(cell, plan, folder)
        found = pd.concat(
            [_measure_accuracies(trained), _measure_geometry(trained)],
            ignore_index=True,
        )
        # The start is the same for every arm of a seed: it is measured with one of
        # them. It is also the same for any number of steps, and is named without it.
        if cell.arm == LEARNED:
            at_start = CellAtStart(replace(cell, steps=None), plan, folder)
            found = pd.concat([found, _measure_geometry(at_start)], ignore_index=True)
    # Hundreds of checkpoints would fill a disk; the records hold what is asked.
    shutil.rmtree(folder, ignore_errors=True)
    return as_records(found.assign(revision=str(describe_code_version()["sources"])))


def _measure_accuracies(trained: Trained) -> pd.DataFrame:
    """Return the accuracy of a cell (classifier), which test utterances it classifies correctly, the majority rate, and
    how long it was trained.

    Accuracy is measured on the whole test split, on reviews of 50 words if there are any, and on the test split with
    attention made uniform after training.
    """
    cell = trained.cell
    training = trained.found.training
    rows: list[dict[str, Any]] = []
    for split, found in training["results"].items():
        rows.append(
            {
                "metric": "accuracy",
                "component": split,
                "value": found["accuracy"],
                "n_units": found["n"],
            }
        )
    of_test = training["results"][TEST]
    rows.append(
        {
            "metric": "majority",
            "component": TEST,
            "value": of_test["majority"],
            "n_units": of_test["n"],
        }
    )
    for name in ("collapsed", "steps", "kept_step"):
        rows.append({"metric": name, "value": float(training[name])})
    model = trained.classifier[0]
    # All of the split: as many of each class as there are examples leaves out none.
    everything = trained.batches(of_test["n"] * len(trained.corpus.labels))
    labels = np.array(everything.encoded.labels)
    # The layers whose attention is made uniform; where it was uniform in training, that would change nothing.
    kinds: dict[str, tuple[int, ...]] = {TEST: ()}
    if cell.arm != "uniform":
        kinds[AFTERWARDS] = tuple(range(1, cell.layers + 1))
    for component, replaced in kinds.items():
        right = average_outcome(model, everything, "uniform", replaced)[0] == labels
        if component != TEST:
            value = float(right.mean())
            rows.append(
                {
                    "metric": "accuracy",
                    "component": component,
                    "value": value,
                    "n_units": len(right),
                }
            )
        rows.append(
            {
                "metric": RIGHT,
                "component": pack_bits(component, right),
                "value": float(right.mean()),
            }
        )
    return as_records(
        pd.DataFrame(rows), model=cell.label, corpus=cell.corpus, seed=cell.seed
    )


def pack_bits(name: str, right: np.ndarray) -> str:
    """Encode which utterances a model has right, `right` [utterance], as text: `name`, then the bits."""
    # A bit for each utterance: 1,924 of HateXplain take 322 letters.
    return f"{name}:{base64.b64encode(np.packbits(right).tobytes()).decode()}"


def unpack_bits(text: str, count: int) -> tuple[str, np.ndarray]:
    """Decode the text of `pack_bits` into (name, bits [utterance]); `count`: the number of utterances."""
    name, _, bits = text.partition(":")
    return name, np.unpackbits(
        np.frombuffer(base64.b64decode(bits), np.uint8), count=count
    ).astype(bool)


def _measure_geometry(trained: Trained) -> pd.DataFrame:
    """Return the similarity of hidden states, keys and values inside utterances, norms of keys, and attention entropy
    H.

    H is of every layer, in each published form. On YelpHat, its reviews of 50 words are measured.
    """
    split = SHORT if SHORT in trained.corpus.splits else TEST
    model = trained.classifier[0]
    batches = trained.batches(trained.plan.utterances, split)
    records = run_pass(model, batches, MEASURED).records()
    alike = (records["metric"] == "intra_sequence") & records["site"].isin(SITES)
    norms = records["metric"].isin(["norms.mean", "norms.variation"]) & (
        records["site"] == KEYS
    )
    found = records[(alike | norms) & records["component"].isna()]
    of_head = found["head"].notna()
    columns = ["layer", "site", "token_policy", "metric", "value"]
    # These models have one head, so that the number of the head can be dropped.
    parts = [found.loc[~of_head, columns], found.loc[of_head, columns]]
    # Uniform rows have the largest entropy by construction: nothing is measured there.
    if trained.cell.arm != "uniform":
        for layer in range(1, trained.cell.layers + 1):
            entropy = measure_entropy(model, batches, layer)
            parts.append(
                entropy[entropy["metric"] == "cls_entropy"][
                    ["metric", "component", "layer", "value"]
                ]
            )
    whole = pd.concat(parts, ignore_index=True)
    return as_records(
        whole, model=trained.label, corpus=trained.cell.corpus, seed=trained.cell.seed
    )
