"""The commands: parse, call, print. Results go to stdout, talk to stderr; errors are told by `__main__.py`."""

from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli import classes as cli_classes
from anisoscope.cli import series as cli_series
from anisoscope.cli import tables as cli_tables
from anisoscope.cli import train as cli_train
from anisoscope.errors import AnisoscopeError, UsageError

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

app.add_typer(cli_train.app, name="train")
cli_train.app.command(
    epilog="Example: anisoscope train classifier --corpus hatexplain --layers 2 --penalty entropy --weight 0.01 "
    "--seed 0 -o runs/hatexplain"
)(cli_classes.classifier)

ModelArgument = Annotated[
    str,
    typer.Argument(
        help="hub id (with @revision), folder, preset, builtin:minilm, module:factory; or a series of checkpoints: "
        "pattern {0..4} {0,20,…,2000}, folder of step-* or checkpoint-*, list in a file"
    ),
]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="run folder; default: runs/<model>-<corpus>-<id>")]
Resume = Annotated[
    bool, typer.Option("--resume", help="go on with a run that was interrupted; a finished one is left as it is")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="begin anew in a folder that holds a run")]
Seed = Annotated[int, typer.Option(help="seed of everything random (sample of vectors, untrained weights)")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]


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


@app.command(epilog="Example: anisoscope measure builtin:minilm --corpus wikitext-103 --limit 20 --panel hidden")
def measure(
    model: ModelArgument = "builtin:minilm",
    corpus: Annotated[
        str,
        typer.Option(
            "--corpus",
            "-c",
            help="built-in name, hub data set, file or folder; default: what is built in for the model",
        ),
    ] = "",
    output: Output = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    panel: Annotated[
        str,
        typer.Option(
            help="hidden, spectrum, attention, several with commas, or all; on request only: alignment (what the drift "
            "of queries and keys does)"
        ),
    ] = "all",
    tokens: Annotated[
        str, typer.Option(help="token policies, with commas: all, content, no-first")
    ] = "all,content,no-first",
    documents: Annotated[
        str, typer.Option(help="what a document is in a text: auto, file, blank-line, line, tokens:N")
    ] = "auto",
    limit: Annotated[
        int | None, typer.Option(min=1, help="first N units of the corpus only: documents, clips (or speakers), images")
    ] = None,
    sequences: Annotated[
        int | None, typer.Option(min=1, help="that many windows of the text only, evenly spread over it")
    ] = None,
    split: Annotated[str | None, typer.Option(help="split of a hub data set")] = None,
    column: Annotated[str | None, typer.Option(help="column of a table: text, or paths of clips or images")] = None,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="tokens a window, special ones counted; default: what the model reads, 512 at most"),
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="tokens a batch")] = 4096,
    groups: Annotated[int, typer.Option(min=2, help="groups of units left out in turn for the intervals")] = 32,
    spectrum_groups: Annotated[
        int | None,
        typer.Option(min=1, help="the same for the spectrum; default 8 up to 1,024 dimensions, else 1: no interval"),
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="vectors kept per site for what sums cannot give")] = 2048,
    medians: Annotated[bool, typer.Option(help="medians of attention rows (dear)")] = False,
    flatten: Annotated[
        str, typer.Option(help="convolutional maps as one vector per position, or one per image")
    ] = "position",
    seed: Seed = 0,
    dtype: Annotated[
        str, typer.Option(help="float32, float64, bfloat16, float16; sums are float64 always")
    ] = "float32",
    device: Device = "cpu",
    blocks: Annotated[str, typer.Option(help="class names of the blocks, with commas, where they are not found")] = "",
    untrained: Annotated[
        bool, typer.Option("--untrained", help="draw the weights anew from the architecture's own initialisation")
    ] = False,
    shard: Annotated[
        str, typer.Option(help="I/N: every N-th batch from the I-th; put together with anisoscope merge")
    ] = "1/1",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="run code that comes with the model")
    ] = False,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="leave out and count unreadable items and checkpoints instead of stopping"),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="of a series: list steps and seeds; measure and download nothing")
    ] = False,
    keep: Annotated[int, typer.Option(min=1, help="of a series: downloaded checkpoints on the disk at a time")] = 2,
    quiet: Quiet = False,
) -> None:
    """Measure one model, or each checkpoint of a series, on one corpus: a run folder with records, figures and a
    report; a table on stdout.
    """
    from anisoscope.measure.distributed import rank_and_world
    from anisoscope.measure.settings import PANELS, Settings
    from anisoscope.models.series import is_series
    from anisoscope.progress import shown
    from anisoscope.report import build
    from anisoscope.runs.job import Job
    from anisoscope.runs.run import run

    settings = Settings(
        panels=PANELS if panel == "all" else _names(panel),
        policies=_names(tokens),
        groups=groups,
        spectrum_groups=spectrum_groups,
        sample=sample,
        seed=seed,
        median=medians,
        blocks=_names(blocks),
        flatten=flatten,  # type: ignore[arg-type]  # checked there
    )
    part = _shard(shard)
    job = Job(
        model=model,
        corpus=corpus,
        settings=settings,
        split=split,
        column=column,
        documents=documents,
        limit=limit,
        sequences=sequences,
        max_length=max_length,
        batch_tokens=batch_tokens,
        dtype=dtype,
        untrained=untrained,
        shard=part,
        device=device,
        trust_remote_code=trust_remote_code,
        skip_bad=skip_bad,
    )
    if is_series(model):
        cli_series.measure(job, output, dry_run=dry_run, keep=keep, overwrite=overwrite, quiet=quiet)
        return
    if dry_run:
        raise UsageError("a series of checkpoints with --dry-run", f"the model {model}", "leave --dry-run out")
    with shown(f"{model} × {corpus or 'the built-in corpus'}", quiet=quiet) as progress:
        done = run(job, output, resume=resume, overwrite=overwrite, progress=progress)
    if rank_and_world()[0]:
        return
    page = build(done.folder)
    typer.echo(cli_tables.layer_by_layer(done.records))
    for warning in done.manifest["warnings"]:
        typer.echo(f"note: {warning}", err=True)
    typer.echo(f"report: {page}", err=True)


app.command(epilog="Example: anisoscope classes builtin:minilm --corpus planted --limit 100")(cli_classes.classes)


@app.command(epilog="Example: anisoscope merge runs/a runs/b --output runs/both")
def merge(
    runs: Annotated[list[Path], typer.Argument(help="run folders measured with --shard")],
    output: Annotated[Path, typer.Option("--output", "-o", help="new run folder")],
) -> None:
    """Add up shards of one run, measured apart, to the run they are parts of."""
    from anisoscope.report import build
    from anisoscope.runs.merge import merge_runs

    if len(runs) < 2:
        raise UsageError("at least two run folders", str(len(runs)), "name all shards")
    done = merge_runs(runs, output)
    typer.echo(cli_tables.layer_by_layer(done.records))
    typer.echo(f"report: {build(done.folder)}", err=True)


@app.command(name="report", epilog="Example: anisoscope report runs/minilm-python-docs-1a2b3c4d")
def report_(
    run: Annotated[Path, typer.Argument(help="run folder, or folder of reproductions: results")],
    pdf: Annotated[bool, typer.Option("--pdf", help="figures as PDF too, for print")] = False,
) -> None:
    """Make the page of a run anew from its records; of reproductions, every figure and verdict."""
    from anisoscope.report import build, build_studies
    from anisoscope.studies.runner import reproductions

    formats = ("svg", "pdf") if pdf else ("svg",)
    typer.echo(str(build_studies(run) if reproductions(run) else build(run, formats)))


@app.command(epilog="Example: anisoscope compare runs/a runs/b --metric mean_cosine")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="two run folders or more")],
    metric: Annotated[str, typer.Option(help="metric to compare")] = "mean_cosine",
    tokens: Annotated[str, typer.Option(help="token policy")] = "all",
) -> None:
    """Put one metric of several runs side by side, layer by layer, with intervals."""
    typer.echo(cli_tables.side_by_side(runs, metric, tokens))


@app.command(epilog="Example: anisoscope reproduce godey2024 --only fig1 --settings quick")
def reproduce(
    paper: Annotated[str, typer.Argument(help="godey2024 or fosse2023")],
    only: Annotated[
        str, typer.Option(help="figures and tables, with commas and ranges: fig1-5,fig17,table3; default: all")
    ] = "",
    settings: Annotated[
        str,
        typer.Option(
            help="quick (minutes, no download), paper (the paper's checkpoints and data), or another of the study's: "
            "see anisoscope list studies"
        ),
    ] = "quick",
    output: Annotated[Path, typer.Option("--output", "-o", help="folder of the results")] = Path("runs/reproduction"),
    device: Device = "cpu",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list what would be measured and downloaded")] = False,
    quiet: Quiet = False,
) -> None:
    """Reproduce figures and tables of a paper: records, charts, and a verdict for every claim. A restart skips what
    is finished.
    """
    from anisoscope.report import build_studies
    from anisoscope.studies import runner

    studies = runner.choose(paper, only)
    if dry_run:
        typer.echo(runner.describe(studies, settings))
        return
    folder, failed = output / paper / settings, None
    try:
        for verdict in runner.reproduce(studies, settings, output, device=device, quiet=quiet):
            typer.echo(verdict)
    except AnisoscopeError as error:  # what is finished is shown all the same
        failed = error
    if runner.reproductions(folder):
        typer.echo(f"report: {build_studies(folder)}", err=True)
    if failed is not None:
        raise failed


@app.command(name="list", epilog="Example: anisoscope list corpora")
def list_(what: Annotated[str, typer.Argument(help="metrics, models, corpora or studies")]) -> None:
    """List what can be named: metrics, models, corpora, studies."""
    for name, text in cli_tables.listed(what):
        typer.echo(f"{name:28s} {text}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _shard(text: str) -> tuple[int, int]:
    try:
        part, parts = (int(x) for x in text.split("/"))
    except ValueError:
        part, parts = 0, 0
    if not 1 <= part <= parts:
        raise UsageError("--shard I/N with 1 ≤ I ≤ N", repr(text), "the second of four shards is --shard 2/4")
    return part - 1, parts
