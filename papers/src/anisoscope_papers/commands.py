"""Implement `anisoscope reproduce` and `anisoscope train`: check the options, call the work, print the results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anisoscope.cli.view import (
    Format,
    Quiet,
    Table,
    echo_wrapped,
    format_path,
    say,
    show,
    show_row,
)
from anisoscope.data.check_names import check_corpus, check_labelled, check_model
from anisoscope.options import (
    INPUT,
    MACHINE,
    OUTPUT,
    WHAT,
    Device,
    FilePath,
    Names,
    Text,
    option,
    separate_names,
)
from anisoscope.progress import show_spinner
from anisoscope.runs.job import OutputOptions
from anisoscope_papers.study_names import PAPERS
from anisoscope_papers.training.recipe import (
    ATTENTION,
    ClassifierRecipe,
    Task,
    Training,
)

if TYPE_CHECKING:
    from anisoscope_papers.study import Study

PARTIAL = 7
"""The exit code of a reproduction without something that could not be had (`EXIT_CODES` of the program)."""
# Defaults of the commands' groups of options; frozen, so that all calls may share them.
PLACE, TRAINING, RECIPE, FORMAT = (
    OutputOptions(),
    Training(),
    ClassifierRecipe(),
    Format(),
)

ONLY_HELP = (
    "only these figures and tables, with commas and ranges: fig1-5,fig17,table3; "
    "default: all"
)
EXPORT_HELP = "also write all claims with their verdicts for other tools: html (a page each) or csv"


def reproduce(
    paper: Annotated[Text, option(f"paper to reproduce: {', '.join(PAPERS)}", INPUT)],
    /,
    *,
    only: Annotated[Text, option(ONLY_HELP, WHAT)] = "",
    settings: Annotated[
        Text,
        option(
            "quick (minutes, no download), paper (the paper's checkpoints and data), "
            "or other settings of a study (names: anisoscope list studies)",
            WHAT,
        ),
    ] = "quick",
    data: Annotated[
        Names,
        option(
            "local copies of corpora, with commas: common-voice=FOLDER,imagenet-1k=FOLDER",
            INPUT,
            metavar="NAME=FOLDER,…",
        ),
    ] = (),
    device: Annotated[Device, option("cpu, cuda, cuda:1, mps", MACHINE)] = "cpu",
    output: Annotated[
        FilePath, option("folder to write the results to", OUTPUT, "-o")
    ] = Path("runs/reproduction"),
    dry_run: Annotated[
        bool,
        option(
            "list what would be measured and downloaded (gigabytes, disk, hours), and "
            "do nothing else",
            OUTPUT,
        ),
    ] = False,
    export: Annotated[
        Literal["html", "csv"] | None, option(EXPORT_HELP, OUTPUT)
    ] = None,
    view: Format = FORMAT,
    quiet: Quiet = False,
) -> int | None:
    """Reproduce a paper and show each verdict as it comes.

    Returns the exit code if models or data were unavailable, else None.
    """
    from anisoscope.data.local import parse_paths, use_copies
    from anisoscope_papers import study_names

    # A wrong name is refused at once: importing the studies takes seconds.
    study_names.check(paper, only, settings)
    given = parse_paths(separate_names(data))
    with show_spinner(f"loading the studies of {paper}", quiet=quiet):
        from anisoscope_papers import runner
        from anisoscope_papers.api import run_studies

        studies = runner.choose(paper, only)
    if dry_run:
        echo_wrapped(
            "\n".join(runner.describe(studies, settings)), indent="           "
        )
        return None
    folder = output / paper / settings
    # If a study fails or is interrupted, earlier ones may have a page already.
    try:
        with use_copies(given):
            for verdict in run_studies(studies, folder, device, quiet):
                # In formats for other programs stdout holds the records alone.
                echo_wrapped(verdict, err=view.format != "table", indent="        ")
    finally:
        if (folder / "report.html").exists():
            echo_wrapped(
                f"report: {format_path(folder / 'report.html')} (open it in a browser)",
                err=True,
            )
    # Read from the records, since a study may be of an earlier command.
    missing = runner.explain_lacking(studies, folder)
    _export_and_print(studies, folder, export, view, missing)
    for reason, what in missing.items():
        echo_wrapped(f"left out: {what}: {reason}", err=True, indent="  ")
    if missing:
        return PARTIAL
    return None


def _export_and_print(
    studies: Sequence["Study"],
    folder: Path,
    export: str | None,
    view: Format,
    missing: Mapping[str, str],
) -> None:
    """Write the claims for other tools if asked (`export`: html or csv), and print a row per verdict in the format of
    `view`.

    `missing`: {reason: what was unavailable}, printed as notes.
    """
    import pandas as pd

    from anisoscope_papers.exporting import build_verdict_table, export_claims

    if export is not None:
        echo_wrapped(
            f"claims: {format_path(export_claims(studies, folder, export))}", err=True
        )
    # Each verdict was shown as it came.
    if view.format == "table":
        return
    records = build_verdict_table(studies, folder)
    # The columns of a Markdown table; csv and json get all columns of `records`.
    head = (
        "study",
        "claim",
        "subject",
        "outcome",
        "failing",
        "value",
        "low",
        "high",
        "n",
    )
    rows = []
    for row in records.to_dict("records"):
        rows.append(["" if pd.isna(row[name]) else str(row[name]) for name in head])
    notes = [f"left out: {what}: {reason}" for reason, what in missing.items()]
    show([Table(head, rows, records)], view, notes=notes)


def masked_lm(
    training: Training = TRAINING,
    place: OutputOptions = PLACE,
    view: Format = FORMAT,
    *,
    quiet: Quiet = False,
) -> None:
    """Train a BERT, and print its folder."""
    _train("masked-lm", training, place, view, quiet)


def causal_lm(
    training: Training = TRAINING,
    place: OutputOptions = PLACE,
    view: Format = FORMAT,
    *,
    quiet: Quiet = False,
) -> None:
    """Train a GPT-2, and print its folder."""
    _train("causal-lm", training, place, view, quiet)


def _train(
    task: Task, training: Training, place: OutputOptions, view: Format, quiet: bool
) -> None:
    """Train a language model into `place`, print its folder in the format of `view`, and suggest the next command."""
    # Before torch and transformers are imported, which takes seconds.
    check_corpus(training.corpus)
    from anisoscope_papers.api import train_language_model

    folder = train_language_model(replace(training, task=task), place, quiet)
    if view.format == "table":
        say(str(folder))
    else:
        show_row({"folder": str(folder)}, view)
    # Only the folder is on stdout, so that a script can read it.
    echo_wrapped(
        f"next: anisoscope measure {format_path(folder, typed=True)} --panel hidden",
        err=True,
        indent="  ",
    )


def classifier(
    recipe: ClassifierRecipe = RECIPE,
    place: OutputOptions = PLACE,
    view: Format = FORMAT,
    *,
    device: Annotated[Device, option("cpu or cuda (only one GPU)", MACHINE)] = "cpu",
    quiet: Quiet = False,
) -> None:
    """Train a classifier, and print its accuracy and its folder."""
    # `attention` is built here, and is no model to be found.
    if recipe.model != ATTENTION:
        check_model(recipe.model)
    check_labelled(recipe.corpus)
    from anisoscope_papers.api import train_classifier

    trained = train_classifier(recipe, place, quiet, device)
    if view.format == "table":
        for split, found in trained.training["results"].items():
            say(
                f"{split}: accuracy {found['accuracy']:.3f}"
                f" ({found['n']:,} texts; majority rate {found['majority']:.3f})"
            )
    if drawn := describe_drawn_splits(trained.training["corpus"]):
        echo_wrapped(drawn, err=True, indent="  ")
    if trained.collapsed:
        echo_wrapped(
            "collapsed: not above the majority rate on the test split; try --warmup 100 --clip 1",
            err=True,
        )
    # A cut text may lack the words that tell its class: accuracy alone would not show it.
    for split, count in trained.training["truncated"].items():
        if count:
            echo_wrapped(
                f"{split}: {count:,} utterances cut at {trained.max_length} tokens",
                err=True,
            )
    if view.format == "table":
        say(str(trained.folder))
    else:
        row: dict[str, Any] = {
            "folder": str(trained.folder),
            "collapsed": trained.collapsed,
        }
        for split, found in trained.training["results"].items():
            row[split] = found["accuracy"]
        show_row(row, view)
    echo_wrapped(
        f"next: anisoscope classes {format_path(trained.folder, typed=True)}",
        err=True,
        indent="  ",
    )


def describe_drawn_splits(corpus: dict[str, Any]) -> str:
    """Describe which splits a corpus lacked, so that they were drawn at random; "" if it has all.

    `corpus`: the part of a training's manifest on its corpus.
    """
    drawn = corpus.get("drawn", [])
    if not drawn:
        return ""
    counts = {}
    for split, classes in corpus["counts"].items():
        counts[split] = sum(classes.values())
    # In this order: the three splits that every training has.
    uses = {
        "train": "to train on",
        "validation": "to choose the epoch by",
        "test": "to test on",
    }
    rows = ", ".join(f"{counts[split]:,} {uses[split]}" for split in uses)
    # All three were drawn if the corpus is a single table.
    lacks = "splits" if set(uses) <= set(drawn) else f"{' or '.join(drawn)} split"
    return f"{corpus['name']} has no {lacks}: rows were drawn at random (--split-seed): {rows}"
