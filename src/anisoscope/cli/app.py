"""The commands: parse, call, print. Results go to stdout, talk to stderr; errors are told by `__main__.py`.

Options are declared beside the fields they fill (`runs/job.py`, `measure/settings.py`, …; see `declared.py`).
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from anisoscope.cli import classes, tables, train
from anisoscope.cli.declared import command
from anisoscope.cli.series import measure_checkpoints
from anisoscope.cli.view import Place, Quiet, View, close, here, show, tell
from anisoscope.errors import AnisoscopeError, OutputError, UsageError
from anisoscope.options import INPUT, MACHINE, OUTPUT, WHAT, Option, check_device
from anisoscope.progress import shown, waiting
from anisoscope.runs.job import Job
from anisoscope.studies.names import PAPERS

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="The geometry of representations and of self-attention, measured exactly, in any model.\n\n"
    "Example: anisoscope measure builtin:minilm --corpus builtin:python-docs",
    epilog="Exit codes: 0 done, 1 unexpected, 2 usage, 3 model, 4 corpus, 5 measurement, 6 output, "
    "130/143 interrupted (add --resume to go on).",
)
Runs = Annotated[list[Path], Option("run folders", INPUT, argument=True)]


def _version(asked: bool) -> None:
    if asked:
        from anisoscope import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options of the whole command."""


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


@command(app, "measure", example="anisoscope measure builtin:minilm --limit 20 --panel hidden")
def measure(job: Job, series: OfSeries, vectors: OfVectors, place: Place, view: View, quiet: Quiet) -> None:
    """Measure one model, or each checkpoint of a series, on one corpus, or a file of vectors: a run folder with
    records, figures and a report; a table and what was found on stdout.
    """
    from anisoscope.models.series import is_series

    if series.dry_run and not is_series(job.model):
        raise UsageError("a series of checkpoints with --dry-run", f"the model {job.model}", "leave --dry-run out")
    from anisoscope.data.arrays import ENDINGS, holds_vectors

    if holds_vectors(job.model):
        _measure_vectors(job, vectors, place, view, quiet.quiet)
        return
    if vectors != OfVectors():
        expected = f"a file of vectors ({', '.join(ENDINGS)}) with --unit-column or --label-column"
        raise UsageError(expected, f"the model {job.model}", "leave them out")
    if is_series(job.model):
        measure_checkpoints(job, place, view, dry_run=series.dry_run, keep=series.keep, quiet=quiet.quiet)
        return
    with shown(f"{job.model} × {job.corpus or 'the built-in corpus'}", quiet=quiet.quiet) as progress:
        from anisoscope.runs.run import run

        more: dict[str, Any] = {"resume": place.resume, "overwrite": place.overwrite, "progress": progress}
        done = run(job, place.output, **more)
    if int(os.environ.get("RANK", "0")) == 0:  # one process of a torchrun job speaks for all
        _show_run(done, view, quiet.quiet)


def _measure_vectors(job: Job, vectors: OfVectors, place: Place, view: View, quiet: bool) -> None:
    """Measure what is in a file; the page and the table are those of a model."""
    if job.corpus:
        raise UsageError("vectors alone", f"--corpus {job.corpus}", "leave it out: the file is what is measured")
    with shown(job.model, "vectors", quiet=quiet) as progress:
        from anisoscope.data.arrays import open_vectors
        from anisoscope.runs.vectors import run_vectors

        found = open_vectors(job.model, unit_column=vectors.unit_column, label_column=vectors.label_column)
        again: dict[str, Any] = {"resume": place.resume, "overwrite": place.overwrite, "progress": progress}
        done = run_vectors(found, job, place.output, **again)
    _show_run(done, view, quiet)


def _show_run(done: Any, view: View, quiet: bool) -> None:
    """Table and findings; only then the report is drawn."""
    from anisoscope.runs.findings import findings

    table = tables.layer_by_layer(done.records, wide=view.wide)
    if not table.rows and view.format == "table":
        tell(f"No hidden states were measured; all records are in {here(done.folder / 'records.parquet')}")
    show([table], view, findings(done.records))
    close(done.folder, done.manifest["warnings"], quiet=quiet)


command(app, "classes", example="anisoscope classes builtin:minilm --corpus planted --limit 100")(classes.classes)


@command(app, "merge", example="anisoscope merge runs/a runs/b --output runs/both")
def merge(
    runs: Runs, output: Annotated[Path, Option("new run folder", OUTPUT, ("--output", "-o"))], view: View, quiet: Quiet
) -> None:
    """Add up shards of one run (measure --shard), measured apart, to the run they are parts of."""
    if len(runs) < 2:
        raise UsageError("at least two run folders", str(len(runs)), "name all shards")
    with waiting("adding up shards", quiet=quiet.quiet):
        from anisoscope.runs.merge import merge_runs

        done = merge_runs(runs, output)
    _show_run(done, view, quiet.quiet)


@command(app, "report", example="anisoscope report runs/minilm-python-docs-1a2b3c4d")
def report(
    run: Annotated[Path, Option("run folder, or folder of reproductions: results", INPUT, argument=True)],
    quiet: Quiet,
    pdf: Annotated[bool, Option("figures as PDF too, for print", OUTPUT)] = False,
) -> None:
    """Make the page of a run anew from its records; of reproductions, every figure and verdict."""
    if not run.is_dir():
        raise OutputError("a run folder", f"{run}, which is none", "name the folder that measure wrote")
    with waiting("drawing the report", quiet=quiet.quiet):
        from anisoscope.report import build, build_studies
        from anisoscope.studies.runner import reproductions

        formats = ("svg", "pdf") if pdf else ("svg",)
        page = build_studies(run) if reproductions(run) else build(run, formats)
    typer.echo(str(page))


@command(app, "compare", example="anisoscope compare runs/a runs/b --metric mean_cosine")
def compare(
    runs: Runs,
    view: View,
    metric: Annotated[str, Option("metric to compare", WHAT)] = "mean_cosine",
    tokens: Annotated[str, Option("token policy", WHAT, known=("all", "content", "no-first"))] = "all",
) -> None:
    """Put one metric of several runs side by side, layer by layer, with intervals."""
    show([tables.side_by_side(runs, metric, tokens)], view)


@command(app, "reproduce", example="anisoscope reproduce godey2024 --only fig17 --settings quick")
def reproduce(
    paper: Annotated[str, Option(" or ".join(PAPERS), INPUT, argument=True, known=PAPERS)],
    quiet: Quiet,
    only: Annotated[
        str, Option("figures and tables, with commas and ranges: fig1-5,fig17,table3; default: all", WHAT)
    ] = "",
    settings: Annotated[
        str,
        Option(
            "quick (minutes, no download), paper (the paper's checkpoints and data), or another of the study's: see "
            "anisoscope list studies",
            WHAT,
        ),
    ] = "quick",
    output: Annotated[Path, Option("folder of the results", OUTPUT, ("--output", "-o"))] = Path("runs/reproduction"),
    device: Annotated[str, Option("cpu, cuda, cuda:1, mps", MACHINE, check=check_device)] = "cpu",
    dry_run: Annotated[bool, Option("list what would be measured and downloaded", OUTPUT)] = False,
) -> None:
    """Reproduce figures and tables of a paper: records, charts, and a verdict for every claim. A restart skips what
    is finished.
    """
    from anisoscope.studies import names

    names.check(paper, only, settings)
    with waiting(f"loading the studies of {paper}", quiet=quiet.quiet):
        from anisoscope.report import build_studies
        from anisoscope.studies import runner

        studies = runner.choose(paper, only)
    if dry_run:
        tell(runner.describe(studies, settings), indent="           ")
        return
    folder, failed = output / paper / settings, None
    try:
        for verdict in runner.reproduce(studies, settings, output, device=device, quiet=quiet.quiet):
            tell(verdict, indent="        ")
    except AnisoscopeError as error:  # what is finished is shown all the same
        failed = error
    if runner.reproductions(folder):
        with waiting("drawing the report", quiet=quiet.quiet):
            page = build_studies(folder)
        tell(f"report: {here(page)} (open it in a browser)", err=True)
    if failed is not None:
        raise failed


@command(app, "list", example="anisoscope list corpora")
def list_(
    what: Annotated[str, Option(", ".join(tables.LISTS), INPUT, argument=True, known=tables.LISTS)], view: View
) -> None:
    """List what can be named: metrics, models, corpora, studies."""
    show([tables.listed(what)], view)


app.add_typer(train.app, name="train")
