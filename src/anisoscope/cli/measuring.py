"""`anisoscope measure`, `classes` and `merge`: what is measured, shown as tables and sentences, and its page."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli import tables
from anisoscope.cli.view import Quiet, View, close, here, show, tell
from anisoscope.data.names import check_model
from anisoscope.errors import UsageError
from anisoscope.options import INPUT, MACHINE, OUTPUT, Option
from anisoscope.progress import waiting
from anisoscope.runs.job import OF_CLASSES, Classes, Job, Place

if TYPE_CHECKING:
    from anisoscope.store import RunFolder

Runs = Annotated[list[Path], Option("run folders", INPUT, argument=True)]


@dataclass(frozen=True)
class OfSeries:
    """What only a series of checkpoints has."""

    dry_run: Annotated[bool, Option("of a series: list steps and seeds; measure and download nothing", OUTPUT)] = False
    keep: Annotated[int, Option("of a series: downloaded checkpoints on the disk at a time", MACHINE, least=1)] = 2


@dataclass(frozen=True)
class OfVectors:
    """What only a file of vectors has."""

    unit_column: Annotated[
        str | None, Option("of a file of vectors: the column (or array) that names the unit of each", INPUT)
    ] = None
    label_column: Annotated[str | None, Option("of a file of vectors: the column (or array) of its classes", INPUT)] = (
        None
    )


def measure(job: Job, series: OfSeries, vectors: OfVectors, place: Place, view: View, quiet: Quiet) -> None:
    """Measure one model, or each checkpoint of a series, on one corpus, or a file of vectors: a run folder with
    records, figures and a report; a table and what was found on stdout.
    """
    from anisoscope.models.series import is_series

    if series.dry_run and not is_series(job.model):
        raise UsageError("a series of checkpoints with --dry-run", f"the model {job.model}", "leave --dry-run out")
    with waiting(f"loading {job.model}", quiet=quiet.quiet):
        from anisoscope.api.measuring import measure_job, measure_vectors
        from anisoscope.data.arrays import ENDINGS, holds_vectors

    if holds_vectors(job.model):
        if job.corpus:
            raise UsageError("vectors alone", f"--corpus {job.corpus}", "leave it out: the file is what is measured")
        columns = vectors.unit_column, vectors.label_column
        _show_run(measure_vectors(job, job.model, place, quiet.quiet, *columns), view, quiet)
        return
    if vectors != OfVectors():
        expected = f"a file of vectors ({', '.join(ENDINGS)}) with --unit-column or --label-column"
        raise UsageError(expected, f"the model {job.model}", "leave them out")
    if is_series(job.model):
        _measure_series(job, series, place, view, quiet)
    else:
        _show_run(measure_job(job, place, quiet.quiet), view, quiet)


def _measure_series(job: Job, of_series: OfSeries, place: Place, view: View, quiet: Quiet) -> None:
    """Show the series `job.model`; measure it but for a dry run; A by step and layer on stdout."""
    from anisoscope.api.measuring import measure_checkpoints
    from anisoscope.models.series import describe, expand

    checkpoints = expand(job.model)
    tell(f"{len(checkpoints)} checkpoints\n{describe(checkpoints)}", err=not of_series.dry_run, indent="  ")
    if of_series.dry_run:
        for checkpoint in checkpoints:
            missing = "  (no such folder)" if _is_missing(checkpoint.subject) else ""
            typer.echo(f"seed {checkpoint.seed:<3d} step {checkpoint.step:<9,d} {checkpoint.subject}{missing}")
        return
    series = measure_checkpoints(job, place, quiet.quiet, of_series.keep)
    show([tables.of_series(series.records, job.settings.policies[0])], view)
    for name, why in series.skipped.items():
        tell(f"skipped: {name}: {why}", err=True, indent="  ")
    for names in series.repeated:
        tell(f"note: the same weights, bit for bit: {', '.join(names)}", err=True, indent="  ")
    tell(f"series: {here(series.folder)}", err=True)
    tell(
        f"next, a page of one checkpoint: anisoscope report {here(series.folder, typed=True)}/seed-…",
        err=True,
        indent="  ",
    )


def _is_missing(subject: str) -> bool:
    """Whether a name is that of a folder which should lie beside others here, and does not."""
    path = Path(subject)
    local = "@" not in subject and (subject.startswith(("./", "../")) or path.parent != Path())
    return local and path.parent.is_dir() and not path.exists()


def classes(
    look: Classes,
    job: Annotated[Job, OF_CLASSES],
    place: Place,
    view: View,
    quiet: Quiet,
    model: Annotated[
        str,
        Option(
            "folder or hub id (with @revision) of a classifier; of any other text model, less",
            INPUT,
            argument=True,
            check=check_model,
        ),
    ] = "builtin:minilm",
) -> None:
    """Is the direction of an utterance its class, layer by layer? What is attention worth to the classifier, and what
    explains it? Of any model, on any labelled corpus: a run folder with records and a report; tables on stdout.
    """
    from anisoscope.api.measuring import measure_classes

    _show_run(measure_classes(replace(job, model=model), look, place, quiet.quiet), view, quiet)


def merge(
    runs: Runs, output: Annotated[Path, Option("new run folder", OUTPUT, ("--output", "-o"))], view: View, quiet: Quiet
) -> None:
    """Add up shards of one run (measure --shard), measured apart, to the run they are parts of."""
    if len(runs) < 2:
        raise UsageError("at least two run folders", str(len(runs)), "name all shards")
    with waiting("adding up shards", quiet=quiet.quiet):
        from anisoscope.runs.merge import merge_runs

        done = merge_runs(runs, output)
    _show_run(done, view, quiet)


def _show_run(done: "RunFolder", view: View, quiet: Quiet) -> None:
    """Tables and findings; only then the report is drawn."""
    from anisoscope.runs.findings import findings

    if int(os.environ.get("RANK", "0")):  # one process of a torchrun job speaks for all
        return
    if "classes" in (done.identity() or {}):
        shown = tables.of_classes(done.records)
    else:
        shown = [tables.layer_by_layer(done.records, wide=view.wide)]
    if not any(table.rows for table in shown) and view.format == "table":
        tell(f"No hidden states were measured; all records are in {here(done.folder / 'records.parquet')}")
    show(shown, view, findings(done.records))
    close(done.folder, done.manifest["warnings"], quiet=quiet.quiet)
