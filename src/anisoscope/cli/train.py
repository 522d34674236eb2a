"""`anisoscope train`: models trained from scratch, kept along the way, for everything else to be measured on."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from anisoscope.cli.declared import command
from anisoscope.cli.view import Quiet, here, tell
from anisoscope.options import MACHINE, OUTPUT, Option, check_device
from anisoscope.progress import shown
from anisoscope.training.recipe import ClassifierRecipe, Task, Training

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train language models from scratch, with checkpoints along the way, or a classifier, whose best epoch is "
    "kept; in hub format.\n\n"
    "Example: anisoscope train masked-lm --preset tiny --steps 200",
)


@dataclass(frozen=True)
class TrainingPlace:
    """The folder of a training, and what becomes of one that is there."""

    output: Annotated[
        Path | None,
        Option("folder; default: runs/<task>-<preset>-<corpus>/seed-<seed>", OUTPUT, ("--output", "-o")),
    ] = None
    resume: Annotated[bool, Option("go on with a training that was interrupted", OUTPUT)] = False
    overwrite: Annotated[bool, Option("begin anew in a folder that holds a training", OUTPUT)] = False


@command(app, "masked-lm", example="anisoscope train masked-lm --preset tiny --steps 200 -o runs/mlm")
def masked_lm(training: Training, place: TrainingPlace, quiet: Quiet) -> None:
    """A BERT that predicts masked tokens, with checkpoints at log-spaced steps: a series to be measured."""
    _train("masked-lm", training, place, quiet)


@command(app, "causal-lm", example="anisoscope train causal-lm --preset tiny --steps 200 -o runs/clm")
def causal_lm(training: Training, place: TrainingPlace, quiet: Quiet) -> None:
    """A GPT-2 that predicts the next token, with checkpoints at log-spaced steps: a series to be measured."""
    _train("causal-lm", training, place, quiet)


def _train(task: Task, training: Training, place: TrainingPlace, quiet: Quiet) -> None:
    training = replace(training, task=task)
    name = training.corpus.replace("builtin:", "").strip("/").replace("/", "-")
    folder = place.output or Path("runs") / f"{task}-{training.preset}-{name}" / f"seed-{training.seed}"
    described = f"{task} {training.preset} × {training.corpus}, seed {training.seed}"
    with shown(described, "steps", quiet=quiet.quiet) as progress:
        from anisoscope.training.language_model import train

        train(training, folder, resume=place.resume, overwrite=place.overwrite, progress=progress)
    typer.echo(str(folder))
    tell(f"next: anisoscope measure {here(folder)} --panel hidden", err=True, indent="  ")


@command(app, "classifier", example="anisoscope train classifier --corpus planted --epochs 2 -o runs/planted")
def classifier(
    recipe: ClassifierRecipe,
    place: TrainingPlace,
    quiet: Quiet,
    device: Annotated[str, Option("cpu or cuda; one device", MACHINE, check=check_device)] = "cpu",
) -> None:
    """A classifier of utterances or pairs, the best epoch kept: the attention-only model, or a fine-tuned encoder."""
    described = f"{recipe.model} × {recipe.corpus}, seed {recipe.seed}"
    with shown(described, "steps", quiet=quiet.quiet) as progress:
        from anisoscope.training.classifier import train_classifier

        written = {"resume": place.resume, "overwrite": place.overwrite, "device": device}
        trained = train_classifier(recipe, place.output, **written, progress=progress)  # type: ignore[arg-type]
    for split, found in trained.training["results"].items():
        typer.echo(f"{split}: accuracy {found['accuracy']:.3f} of {found['n']:,} (majority {found['majority']:.3f})")
    if trained.collapsed:
        tell("collapsed: not above the majority rate on the test split; try --warmup 100 --clip 1", err=True)
    for split, count in trained.training["truncated"].items():
        if count:
            tell(f"{split}: {count:,} utterances cut at {trained.max_length} tokens", err=True)
    typer.echo(str(trained.folder))
    tell(f"next: anisoscope classes {here(trained.folder)}", err=True, indent="  ")
