"""What this package adds to the program: `anisoscope reproduce`, `train` and `list studies`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from anisoscope.cli.command import Command, Group
from anisoscope.cli.view import Quiet, here, say, tell
from anisoscope.options import INPUT, MACHINE, OUTPUT, WHAT, Option, check_device
from anisoscope.progress import waiting
from anisoscope.runs.job import Place
from anisoscope_papers.names import PAPERS, listed
from anisoscope_papers.training.recipe import ClassifierRecipe, Task, Training

PARTIAL = 7
"""The exit code of a reproduction without something that could not be had (`EXIT_CODES` of the program)."""

SETTINGS = (
    "quick (minutes, no download), paper (the paper's checkpoints and data), or another of the study's: see "
    "anisoscope list studies"
)


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
) -> int | None:
    """Reproduce figures and tables of a paper, claim by claim.

    Records, charts, and a verdict for every claim. A restart skips what is finished. What cannot be had is left out
    and said; the same command asks for it again.
    """
    from anisoscope.data.local import copies, pairs
    from anisoscope_papers import names

    names.check(paper, only, settings)
    given = pairs(data)
    with waiting(f"loading the studies of {paper}", quiet=quiet):
        from anisoscope_papers import runner
        from anisoscope_papers.api import verdicts

        studies = runner.choose(paper, only)
    if dry_run:
        tell("\n".join(runner.describe(studies, settings)), indent="           ")
        return None
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
    return PARTIAL if missing else None


def masked_lm(training: Training, place: Place, quiet: Quiet = False) -> None:
    """Train a BERT that predicts masked tokens.

    Checkpoints at log-spaced steps, to be measured as a series.
    """
    _train("masked-lm", training, place, quiet)


def causal_lm(training: Training, place: Place, quiet: Quiet = False) -> None:
    """Train a GPT-2 that predicts the next token.

    Checkpoints at log-spaced steps, to be measured as a series.
    """
    _train("causal-lm", training, place, quiet)


def _train(task: Task, training: Training, place: Place, quiet: bool) -> None:
    from anisoscope_papers.api import train_language_model

    folder = train_language_model(replace(training, task=task), place, quiet)
    say(str(folder))
    tell(f"next: anisoscope measure {here(folder, typed=True)} --panel hidden", err=True, indent="  ")


def classifier(
    recipe: ClassifierRecipe,
    place: Place,
    quiet: Quiet = False,
    device: Annotated[str, Option("cpu or cuda; one device", MACHINE, check=check_device)] = "cpu",
) -> None:
    """Train a classifier of utterances or pairs of them.

    The best epoch is kept. The attention-only model, or a fine-tuned encoder.
    """
    from anisoscope_papers.api import train_classifier

    trained = train_classifier(recipe, place, quiet, device)
    for split, found in trained.training["results"].items():
        say(f"{split}: accuracy {found['accuracy']:.3f} of {found['n']:,} (majority {found['majority']:.3f})")
    if drawn := describe_drawn_splits(trained.training["corpus"]):
        tell(drawn, err=True, indent="  ")
    if trained.collapsed:
        tell("collapsed: not above the majority rate on the test split; try --warmup 100 --clip 1", err=True)
    for split, count in trained.training["truncated"].items():
        if count:
            tell(f"{split}: {count:,} utterances cut at {trained.max_length} tokens", err=True)
    say(str(trained.folder))
    tell(f"next: anisoscope classes {here(trained.folder, typed=True)}", err=True, indent="  ")


def describe_drawn_splits(corpus: dict[str, Any]) -> str:
    """What a manifest's corpus says of splits that it does not have; empty if it has all."""
    drawn = corpus.get("drawn", [])
    if not drawn:
        return ""
    counts = {split: sum(classes.values()) for split, classes in corpus["counts"].items()}
    uses = {"train": "to train on", "validation": "to choose the epoch by", "test": "to test on"}
    rows = ", ".join(f"{counts[split]:,} {uses[split]}" for split in uses)
    lacks = "splits" if set(uses) <= set(drawn) else f"{' or '.join(drawn)} split"
    return f"{corpus['name']} has no {lacks}: rows were drawn at random (--split-seed): {rows}"


def list_studies() -> list[tuple[str, str]]:
    """(name, one line) of every study."""
    return [(f"{paper} {name}", f"{title} (settings: {', '.join(how)})") for paper, name, title, how in listed()]


TRAIN = Group(
    "Train a series of checkpoints, or a classifier.\n\n"
    "Everything is written in hub format.\n\n"
    "Example: anisoscope train masked-lm --preset tiny --steps 200",
    {
        "masked-lm": Command(masked_lm, "anisoscope train masked-lm --preset tiny --steps 200 -o runs/mlm"),
        "causal-lm": Command(causal_lm, "anisoscope train causal-lm --preset tiny --steps 200 -o runs/clm"),
        "classifier": Command(classifier, "anisoscope train classifier --corpus planted --epochs 2 -o runs/planted"),
    },
)
REPRODUCE = Command(reproduce, "anisoscope reproduce godey2024 --only fig17 --settings quick")
