"""The commands: parse, call, print. Results go to stdout, talk to stderr; errors are told by `__main__.py`.

Options are declared beside the fields they fill (`runs/job.py`, `measure/settings.py`, …; see `declared.py`).
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from anisoscope import __version__
from anisoscope.cli import measuring
from anisoscope.cli.declared import command
from anisoscope.cli.measuring import Runs
from anisoscope.cli.view import FORMAT, Quiet, View, here, show, tell
from anisoscope.errors import OutputError, UsageError
from anisoscope.options import INPUT, MACHINE, OUTPUT, WHAT, Option, check_device
from anisoscope.progress import waiting
from anisoscope.runs.job import Place
from anisoscope.studies.names import PAPERS
from anisoscope.training.recipe import ClassifierRecipe, Task, Training

LISTS = ("metrics", "models", "corpora", "studies")
"""What `anisoscope list` lists."""

EXIT_CODES = {
    0: "done",
    1: "unexpected: a bug, to be reported with the lines shown, or a reader of stdout that went away",
    2: "usage: an option, or options that contradict each other",
    3: "model: not found, not readable, not trusted, or a training that diverged",
    4: "corpus: not found, not readable, or nothing in it to measure",
    5: "measurement: a place that never fires, sums that do not fit together",
    6: "output: a folder that cannot be written or read",
    7: "partial: reproduce did all but what a system or corpus that could not be had was needed for",
    130: "interrupted: Ctrl-C (SIGINT); the same command with --resume goes on",
    143: "ended: SIGTERM; the same command with --resume goes on",
}

PARTIAL = 7
"""The exit code of a reproduction without something that could not be had."""

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


SETTINGS = (
    "quick (minutes, no download), paper (the paper's checkpoints and data), or another of the study's: see "
    "anisoscope list studies"
)


@command(app, "reproduce", example="anisoscope reproduce godey2024 --only fig17 --settings quick")
def reproduce(
    paper: Annotated[str, Option(" or ".join(PAPERS), INPUT, argument=True, known=PAPERS)],
    quiet: Quiet = False,
    only: Annotated[
        str, Option("figures and tables, with commas and ranges: fig1-5,fig17,table3; default: all", WHAT)
    ] = "",
    settings: Annotated[str, Option(SETTINGS, WHAT)] = "quick",
    output: Annotated[Path, Option("folder of the results", OUTPUT, ("--output", "-o"))] = Path("runs/reproduction"),
    data: Annotated[
        tuple[str, ...], Option("local copies of corpora, with commas: common-voice=FOLDER,imagenet-1k=FOLDER", INPUT)
    ] = (),
    device: Annotated[str, Option("cpu, cuda, cuda:1, mps", MACHINE, check=check_device)] = "cpu",
    dry_run: Annotated[bool, Option("list what would be measured and loaded: gigabytes, disk, hours", OUTPUT)] = False,
) -> None:
    """Reproduce figures and tables of a paper, claim by claim.

    Records, charts, and a verdict for every claim. A restart skips what is finished. What cannot be had is left out
    and said; the same command asks for it again.
    """
    from anisoscope.data.local import copies, pairs
    from anisoscope.studies import names

    names.check(paper, only, settings)
    given = pairs(data)
    with waiting(f"loading the studies of {paper}", quiet=quiet):
        from anisoscope.api.working import verdicts
        from anisoscope.studies import runner

        studies = runner.choose(paper, only)
    if dry_run:
        tell("\n".join(runner.describe(studies, settings)), indent="           ")
        return
    folder = output / paper / settings
    try:
        with copies(given):
            for verdict in verdicts(studies, folder, device, quiet):
                tell(verdict, indent="        ")
    finally:
        if (folder / "report.html").exists():
            tell(f"report: {here(folder / 'report.html')} (open it in a browser)", err=True)
    missing = runner.without(studies, folder)
    for reason, what in missing.items():
        tell(f"left out: {what}: {reason}", err=True, indent="  ")
    if missing:
        raise typer.Exit(PARTIAL)


@command(app, "list", example="anisoscope list corpora")
def list_(
    what: Annotated[str, Option(", ".join(LISTS), INPUT, argument=True, known=LISTS)], view: Annotated[View, FORMAT]
) -> None:
    """List what can be named: metrics, models, corpora, studies."""
    from anisoscope.cli import tables

    show([tables.listed(what)], view)


of_training = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train a series of checkpoints, or a classifier.\n\n"
    "Everything is written in hub format.\n\n"
    "Example: anisoscope train masked-lm --preset tiny --steps 200",
)


@command(of_training, "masked-lm", example="anisoscope train masked-lm --preset tiny --steps 200 -o runs/mlm")
def masked_lm(training: Training, place: Place, quiet: Quiet = False) -> None:
    """Train a BERT that predicts masked tokens.

    Checkpoints at log-spaced steps, to be measured as a series.
    """
    _train("masked-lm", training, place, quiet)


@command(of_training, "causal-lm", example="anisoscope train causal-lm --preset tiny --steps 200 -o runs/clm")
def causal_lm(training: Training, place: Place, quiet: Quiet = False) -> None:
    """Train a GPT-2 that predicts the next token.

    Checkpoints at log-spaced steps, to be measured as a series.
    """
    _train("causal-lm", training, place, quiet)


def _train(task: Task, training: Training, place: Place, quiet: bool) -> None:
    from anisoscope.api.working import train_language_model

    folder = train_language_model(replace(training, task=task), place, quiet)
    typer.echo(str(folder))
    tell(f"next: anisoscope measure {here(folder, typed=True)} --panel hidden", err=True, indent="  ")


@command(of_training, "classifier", example="anisoscope train classifier --corpus planted --epochs 2 -o runs/planted")
def classifier(
    recipe: ClassifierRecipe,
    place: Place,
    quiet: Quiet = False,
    device: Annotated[str, Option("cpu or cuda; one device", MACHINE, check=check_device)] = "cpu",
) -> None:
    """Train a classifier of utterances or pairs of them.

    The best epoch is kept. The attention-only model, or a fine-tuned encoder.
    """
    from anisoscope.api.working import train_classifier

    trained = train_classifier(recipe, place, quiet, device)
    for split, found in trained.training["results"].items():
        typer.echo(f"{split}: accuracy {found['accuracy']:.3f} of {found['n']:,} (majority {found['majority']:.3f})")
    if trained.collapsed:
        tell("collapsed: not above the majority rate on the test split; try --warmup 100 --clip 1", err=True)
    for split, count in trained.training["truncated"].items():
        if count:
            tell(f"{split}: {count:,} utterances cut at {trained.max_length} tokens", err=True)
    typer.echo(str(trained.folder))
    tell(f"next: anisoscope classes {here(trained.folder, typed=True)}", err=True, indent="  ")


app.add_typer(of_training, name="train")
