"""`anisoscope train`: models trained from scratch, kept along the way, for everything else to be measured on."""

from dataclasses import replace
from typing import Annotated

import typer

from anisoscope.cli.declared import command
from anisoscope.cli.view import Quiet, here, tell
from anisoscope.options import MACHINE, Option, check_device
from anisoscope.runs.job import Place
from anisoscope.training.recipe import ClassifierRecipe, Task, Training

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Train language models from scratch, with checkpoints along the way, or a classifier, whose best epoch is "
    "kept; in hub format.\n\n"
    "Example: anisoscope train masked-lm --preset tiny --steps 200",
)


@command(app, "masked-lm", example="anisoscope train masked-lm --preset tiny --steps 200 -o runs/mlm")
def masked_lm(training: Training, place: Place, quiet: Quiet = False) -> None:
    """A BERT that predicts masked tokens, with checkpoints at log-spaced steps: a series to be measured."""
    _train("masked-lm", training, place, quiet)


@command(app, "causal-lm", example="anisoscope train causal-lm --preset tiny --steps 200 -o runs/clm")
def causal_lm(training: Training, place: Place, quiet: Quiet = False) -> None:
    """A GPT-2 that predicts the next token, with checkpoints at log-spaced steps: a series to be measured."""
    _train("causal-lm", training, place, quiet)


def _train(task: Task, training: Training, place: Place, quiet: bool) -> None:
    from anisoscope.api.working import train_language_model

    folder = train_language_model(replace(training, task=task), place, quiet)
    typer.echo(str(folder))
    tell(f"next: anisoscope measure {here(folder, typed=True)} --panel hidden", err=True, indent="  ")


@command(app, "classifier", example="anisoscope train classifier --corpus planted --epochs 2 -o runs/planted")
def classifier(
    recipe: ClassifierRecipe,
    place: Place,
    quiet: Quiet = False,
    device: Annotated[str, Option("cpu or cuda; one device", MACHINE, check=check_device)] = "cpu",
) -> None:
    """A classifier of utterances or pairs, the best epoch kept: the attention-only model, or a fine-tuned encoder."""
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
