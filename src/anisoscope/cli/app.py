"""The commands: parse, call, print. Results go to stdout, talk to stderr; errors are told by `__main__.py`.

Options are declared beside the fields they fill (`runs/job.py`, `measure/settings.py`, …; see `declared.py`).
"""

from pathlib import Path
from typing import Annotated

import typer

from anisoscope import __version__
from anisoscope.cli import measuring
from anisoscope.cli.declared import command, mount
from anisoscope.cli.measuring import Runs
from anisoscope.cli.view import FORMAT, Quiet, View, show
from anisoscope.errors import OutputError, UsageError
from anisoscope.options import INPUT, OUTPUT, WHAT, Option
from anisoscope.progress import waiting
from anisoscope.registry import entries

LISTS = ("metrics", "models", "corpora", *entries("listings"))
"""What `anisoscope list` lists."""

EXIT_CODES = {
    0: "done",
    1: "unexpected: a bug, to be reported with the lines shown, or a reader of stdout that went away",
    2: "usage: an option, or options that contradict each other",
    3: "model: not found, not readable, not trusted, or a training that diverged",
    4: "corpus: not found, not readable, or nothing in it to measure",
    5: "measurement: a place that never fires, sums that do not fit together",
    6: "output: a folder that cannot be written or read",
    7: "partial: all was done but what needed a system or corpus that could not be had (reproduce)",
    130: "interrupted: Ctrl-C (SIGINT); the same command with --resume goes on",
    143: "ended: SIGTERM; the same command with --resume goes on",
}

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="The geometry of representations and of self-attention, measured exactly, in any model.\n\n"
    "Example: anisoscope measure builtin:minilm --corpus builtin:python-docs",
    epilog="Exit codes: " + ", ".join(f"{code} {means.split(':')[0]}" for code, means in EXIT_CODES.items()),
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Options of the whole command."""


command(app, "measure", example="anisoscope measure builtin:minilm --limit 20 --panel hidden")(measuring.measure)
command(app, "classes", example="anisoscope classes builtin:minilm --corpus planted --limit 100")(measuring.classes)
command(app, "merge", example="anisoscope merge runs/a runs/b --output runs/both")(measuring.merge)


@command(app, "report", example="anisoscope report runs/minilm-python-docs-1a2b3c4d")
def report(
    run: Annotated[Path, Option("run folder, or folder of reproductions: results", INPUT, argument=True)],
    quiet: Quiet = False,
    pdf: Annotated[bool, Option("figures as PDF too, for print", OUTPUT)] = False,
) -> None:
    """Make the page of a run, or of reproductions, anew from records."""
    if not run.is_dir():
        raise OutputError("a run folder", f"{run}, which is none", "name the folder that measure wrote")
    with waiting("drawing the report", quiet=quiet):
        from anisoscope.api import working

        page = working.report(run, pdf=pdf)
    typer.echo(str(page))


@command(app, "compare", example="anisoscope compare runs/a runs/b --metric mean_cosine")
def compare(
    runs: Runs,
    view: Annotated[View, FORMAT],
    metric: Annotated[str, Option("metric to compare", WHAT)] = "mean_cosine",
    tokens: Annotated[str, Option("token policy", WHAT, known=("all", "content", "no-first"))] = "all",
) -> None:
    """Put one metric of several runs side by side, layer by layer.

    What their intervals tell apart is said below the table.
    """
    if len(runs) < 2:
        raise UsageError("at least two run folders", str(len(runs)), "name another one")
    from anisoscope.cli import tables

    table, found = tables.side_by_side(runs, metric, tokens)
    show([table], view, found)


@command(app, "list", example="anisoscope list corpora")
def list_(
    what: Annotated[str, Option(", ".join(LISTS), INPUT, argument=True, known=LISTS)], view: Annotated[View, FORMAT]
) -> None:
    """List what can be named: metrics, models, corpora, and what other packages add."""
    from anisoscope.cli import tables

    show([tables.listed(what)], view)


for _name, _added in entries("commands").items():
    mount(app, _name, _added)
