"""`anisoscope measure`, `classes` and `merge`: what is measured, shown as tables and sentences, and its page."""

import os
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anisoscope.cli.view import FORMAT, Quiet, View, here, show, tell
from anisoscope.data.names import check_model
from anisoscope.errors import UsageError
from anisoscope.extras import missing_packages, require_extra
from anisoscope.options import INPUT, MACHINE, OUTPUT, Option
from anisoscope.progress import keeping, waiting
from anisoscope.runs.job import OF_CLASSES, Classes, Job, Place, VectorColumns
from anisoscope.wording import first_of

if TYPE_CHECKING:
    from anisoscope.runs.series import Series
    from anisoscope.store import RunFolder

CLASSIFIER = "folder or hub id (with @revision) of a classifier; of any other text model, less"
Runs = Annotated[list[Path], Option("run folders", INPUT, argument=True)]


def measure(
    job: Job,
    *,
    dry_run: Annotated[
        bool, Option("say what it costs (of a series: list steps and seeds); load and measure nothing", OUTPUT)
    ] = False,
    keep: Annotated[int, Option("of a series: downloaded checkpoints on the disk at a time", MACHINE, least=1)] = 2,
    reading: VectorColumns,
    place: Place,
    view: View,
    quiet: Quiet = False,
) -> None:
    """Measure a model on a corpus, a series of checkpoints, or vectors.

    A run folder with records, figures and a report; a table and what was found on stdout.
    """
    from anisoscope.models.series import describe, expand, is_series

    if dry_run and not Path(job.model).expanduser().exists() and not is_series(job.model):
        _show_cost(job, quiet)
        return
    with waiting(f"loading {job.model}", quiet=quiet):
        from anisoscope.api.measuring import measure_checkpoints, measure_job, measure_vectors
        from anisoscope.data.vector_files import ENDINGS, holds_vectors, open_vectors

    if holds_vectors(job.model):
        if job.corpus:
            raise UsageError("vectors alone", f"--corpus {job.corpus}", "leave it out: the file is what is measured")
        if dry_run:
            tell(open_vectors(job.model, split=job.split, **asdict(reading)).source["reading"], indent="  ")
            return
        units, labels = reading.unit_column, reading.label_column
        _show_run(measure_vectors(job, job.model, place, quiet, units, labels, columns=reading.columns), view, quiet)
        return
    if reading != VectorColumns():
        expected = f"a file of vectors ({', '.join(ENDINGS)}) with --columns, --unit-column or --label-column"
        raise UsageError(expected, f"the model {job.model}", "leave them out")
    if dry_run and not is_series(job.model):
        _show_cost(job, quiet)
        return
    if not is_series(job.model):
        _show_run(measure_job(job, place, quiet), view, quiet)
        return
    checkpoints = expand(job.model)
    tell(f"{len(checkpoints)} checkpoints\n{describe(checkpoints)}", err=not dry_run, indent="  ")
    if dry_run:
        for checkpoint in checkpoints:
            missing = "  (no such folder)" if _is_missing(checkpoint.subject) else ""
            typer.echo(f"seed {checkpoint.seed:<3d} step {checkpoint.step:<9,d} {checkpoint.subject}{missing}")
    else:
        _show_series(measure_checkpoints(job, place, quiet, keep), job.settings.policies[0], view, quiet)


def _show_cost(job: Job, quiet: bool) -> None:
    """What one model costs, from its configuration alone."""
    require_extra("models", f"to read the configuration of {job.model}")
    with waiting(f"reading the configuration of {job.model}", quiet=quiet):
        from anisoscope.measure.cost import size
        from anisoscope.runs.run import cost_before

        cost = cost_before(job)
    tell(f"{job.model}: weights {size(cost.weights)} in {job.dtype}", indent="  ")
    tell(cost.line, indent="  ")
    tell(f"a state that --resume reads: {size(cost.state)}; windows of {cost.tokens:,} tokens", indent="  ")
    if cost.unmeasured:
        tell(cost.without_spectrum, indent="  ")


def _show_series(series: "Series", policy: str, view: View, quiet: bool) -> None:
    """A by step and layer, findings of the last step; what was left out, or is there twice; the page."""
    from anisoscope.cli import tables
    from anisoscope.runs.findings import findings

    if int(os.environ.get("RANK", "0")):
        return
    records = series.records
    show([tables.of_series(records, policy)], view, findings(records))
    alike: dict[str, tuple[str, list[str]]] = {}
    for name, why in series.skipped.items():
        alike.setdefault(why.replace(name, ""), (why, []))[1].append(name)
    for why, names in alike.values():
        tell(f"skipped: {first_of(names)}: {why}", err=True, indent="  ")
    for names in series.repeated:
        tell(f"note: the same weights, bit for bit: {', '.join(names)}", err=True, indent="  ")
    tell(_draw_page(series.folder, quiet), err=True, indent="  ")
    page = f"anisoscope report {here(series.folder, typed=True)}/seed-…"
    tell(f"next, a page of one checkpoint: {page}", err=True, indent="  ")


def _draw_page(folder: Path, quiet: bool) -> str:
    """Draw the page of a finished run or series; a line that says where it is or, without charts, how to get one."""
    missing = missing_packages("report")
    if missing:
        later = f"pip install 'anisoscope[report]', then anisoscope report {here(folder, typed=True)}"
        return f"no page was drawn: {' and '.join(missing)} not installed. For one: {later}"
    return f"report: {here(_drawn(folder, quiet))} (open it in a browser)"


def _drawn(folder: Path, quiet: bool) -> Path:
    """The page of a finished run or series."""
    drawn_later = f"anisoscope report {shlex.quote(str(folder))}"
    with (
        keeping(lambda: "the run is finished, but for its page", drawn_later),
        waiting("drawing the report", quiet=quiet),
    ):
        from anisoscope.report import build

        return build(folder)


def _is_missing(subject: str) -> bool:
    """Whether a name is that of a folder which should lie beside others here, and does not."""
    path = Path(subject)
    local = "@" not in subject and (subject.startswith(("./", "../")) or path.parent != Path())
    return local and path.parent.is_dir() and not path.exists()


def classes(
    look: Classes,
    job: Annotated[Job, OF_CLASSES],
    place: Place,
    view: Annotated[View, FORMAT],
    quiet: Quiet = False,
    model: Annotated[str, Option(CLASSIFIER, INPUT, argument=True, check=check_model)] = "builtin:minilm",
) -> None:
    """Ask a classifier, layer by layer, what makes its classes.

    Is the direction of an utterance its class? What is attention worth, and what explains the decision? Of any model,
    on any labelled corpus: a run folder with records and a report; tables on stdout.
    """
    from anisoscope.api.measuring import measure_classes

    _show_run(measure_classes(replace(job, model=model), look, place, quiet), view, quiet)


def merge(
    runs: Runs,
    output: Annotated[Path, Option("new run folder", OUTPUT, ("--output", "-o"))],
    view: View,
    quiet: Quiet = False,
) -> None:
    """Add up shards of one run, measured apart (measure --shard)."""
    if len(runs) < 2:
        raise UsageError("at least two run folders", str(len(runs)), "name all shards")
    with waiting("adding up shards", quiet=quiet):
        from anisoscope.runs.merge import merge_runs

        done = merge_runs(runs, output)
    _show_run(done, view, quiet)


def _show_run(done: "RunFolder", view: View, quiet: bool) -> None:
    """Tables and findings; only then the report is drawn; notes, where it is, and what to do next, on stderr."""
    from anisoscope.cli import tables
    from anisoscope.runs.findings import findings

    if int(os.environ.get("RANK", "0")):  # one process of a torchrun job speaks for all
        return
    if "classes" in (done.identity() or {}):
        shown = tables.of_classes(done.records)
    else:
        shown = [tables.layer_by_layer(done.records, wide=view.wide)]
    if not any(table.rows for table in shown) and len(done.records):
        shown = tables.of_named(done.records) or shown
    if not any(table.rows for table in shown) and view.format == "table":
        tell(f"No hidden states were measured; all records are in {here(done.folder / 'records.parquet')}")
    show(shown, view, findings(done.records))
    page_line = _draw_page(done.folder, quiet)
    for warning in done.manifest["warnings"]:
        tell(f"note: {warning}", err=True, indent="  ")
    tell(page_line, err=True, indent="  ")
    tell(f"next: anisoscope compare {here(done.folder, typed=True)} ANOTHER-RUN", err=True, indent="  ")
