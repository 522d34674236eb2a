"""Provide `train` and `reproduce` for Python; the commands use the same functions."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from anisoscope.api.keywords import read_keywords
from anisoscope.errors import UsageError, suggest_names
from anisoscope.progress import interrupt_hint, show_progress, show_spinner
from anisoscope.runs.job import OutputOptions
from anisoscope_papers.training.recipe import TASKS, ClassifierRecipe, Training

if TYPE_CHECKING:
    from anisoscope_papers.training.classifier import TrainedClassifier


def train(task: str, **options: Any) -> Path:
    """Train a model to be measured, and return its folder: a series of checkpoints, or a classifier.

    task     `masked-lm`, `causal-lm`, or `classifier`
    options  those of `anisoscope train TASK`: `corpus`, `preset`, `steps`, `seed` …; for a classifier `model`, `layers`
             and others; `output`, the folder (none: below runs/, as on the command line), `resume`, `overwrite`;
             `quiet=False` shows progress

    UsageError for an unknown task or keyword; CorpusError for an empty corpus.
    """
    # A classifier has a recipe of its own, and only it can be put on a device here: a
    # language model's device is a field of `Training`.
    if task == "classifier":
        device = options.pop("device", "cpu")
        recipe, place, quiet = read_keywords(ClassifierRecipe, options)
        return train_classifier(recipe, place, quiet, device).folder
    if task not in TASKS:
        raise UsageError(
            "a task", repr(task), suggest_names(task, (*TASKS, "classifier"))
        )
    training, place, quiet = read_keywords(Training, options | {"task": task})
    return train_language_model(training, place, quiet)


def train_classifier(
    recipe: ClassifierRecipe, place: OutputOptions, quiet: bool, device: str
) -> "TrainedClassifier":
    """Train a classifier by a recipe, with progress shown unless `quiet`, and return it.

    `place`: the output folder, and whether to resume or overwrite it.
    """
    with show_progress(
        f"{recipe.model} × {recipe.corpus}, seed {recipe.seed}", "steps", quiet=quiet
    ) as progress:
        # Loads torch and transformers, while the progress is on display already.
        from anisoscope_papers.training.classifier import train_classifier as fit

        with interrupt_hint(
            # Another attempt with --overwrite would delete these steps.
            lambda: "" if place.overwrite else "the steps that are done are kept"
        ):
            return fit(recipe, **asdict(place), device=device, progress=progress)


def train_language_model(training: Training, place: OutputOptions, quiet: bool) -> Path:
    """Train a language model, with progress shown unless `quiet`, and return its folder.

    `place`: the output folder, and whether to resume or overwrite it.
    """
    # The name of a corpus may be a path, or begin with builtin: neither fits a folder.
    name = training.corpus.replace("builtin:", "").strip("/").replace("/", "-")
    described = f"{training.task}-{training.preset}"
    folder = (
        place.output or Path("runs") / f"{described}-{name}" / f"seed-{training.seed}"
    )
    title = (
        f"{training.task} {training.preset} × {training.corpus}, seed {training.seed}"
    )
    with show_progress(title, "steps", quiet=quiet) as progress:
        from anisoscope_papers.training.language_model import train as fit

        # Before the first save there is nothing to resume.
        with interrupt_hint(
            lambda: (
                f"{folder} holds the last state" if (folder / "resume").exists() else ""
            )
        ):
            return fit(
                training,
                folder,
                resume=place.resume,
                overwrite=place.overwrite,
                progress=progress,
            )


def reproduce(
    paper: str,
    only: str = "",
    *,
    settings: str = "quick",
    output: Path | str = "runs/reproduction",
    data: Mapping[str, str | Path] | None = None,
    device: str = "cpu",
    quiet: bool = True,
) -> pd.DataFrame:
    """Reproduce figures and tables of a paper; return a table with a row per verdict. Finished studies are not run
    again.

    paper     `godey2024`, `fosse2023` or `beyond`
    only      figures and tables, with commas and ranges: `fig1-5,fig17,table3`; none: all
    settings  `quick` (minutes, no download), `paper`, or another of the study's
    output    folder of the results, with charts, records and a page (`report.html`) in `<output>/<paper>/<settings>`
    data      local copies of corpora by name, used before the hub's: `{"common-voice": folder}`

    Columns: `study`, `claim`, `subject`, `outcome` (holds, fails, undecided, identity, not comparable), `failing`
    (contrary, too small, beyond; empty if it does not fail), `statistic`, `value`, `low`, `high`, `n`, `p`, `reason`.
    `attrs["without"]` of the table holds what was unavailable, by reason. UsageError for an unknown paper, study or
    settings.
    """
    # Charts and the judge are loaded for this call alone; `train` does without them.
    from anisoscope.data.local import use_copies
    from anisoscope_papers import runner
    from anisoscope_papers.exporting import build_verdict_table

    studies = runner.choose(paper, only)
    folder = Path(output) / paper / settings
    with use_copies(data or {}):
        # A generator: studies run as their verdicts are asked for.
        for _ in run_studies(studies, folder, device, quiet):
            pass
    table = build_verdict_table(studies, folder)
    table.attrs = {"without": runner.explain_lacking(studies, folder)}
    return table


def run_studies(studies: Any, folder: Path, device: str, quiet: bool) -> Iterator[str]:
    """Run studies with progress shown unless `quiet`, and yield each verdict as a line of text.

    `folder`: <output>/<paper>/<settings>. The report page is written at the end; if a study fails, it is written for
    those finished before.
    """
    from anisoscope.models.hub_memory import ask_once
    from anisoscope_papers import runner
    from anisoscope_papers.studies_page import build_studies

    def kept() -> str:
        """Say how many studies are finished; shown if the run is interrupted."""
        finished = sum(
            (folder / study.name / "study.json").exists() for study in studies
        )
        return f"{folder} holds {finished} of {len(studies)} studies, and what is done of the next"

    try:
        # Finished studies are skipped without an option: no `--resume` is suggested.
        # All studies measure the same weights, as the hub is asked for them once.
        with interrupt_hint(kept, again=""), ask_once():
            yield from runner.reproduce(
                studies, folder.name, folder.parents[1], device=device, quiet=quiet
            )
    # What was finished before has its page, whatever ended the next study.
    except Exception:
        if runner.list_reproductions(folder):
            build_studies(folder)
        raise
    with show_spinner("drawing the report", quiet=quiet):
        build_studies(folder)
