"""`train`, `reproduce`, `compare` and `report`: what else the program does, from Python and on the command line."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import pandas as pd

from anisoscope.api.keywords import LearningClasses, LearningLanguage, read, written
from anisoscope.api.run import Run
from anisoscope.errors import UsageError, near_matches
from anisoscope.options import leaves, made
from anisoscope.progress import keeping, shown, waiting
from anisoscope.runs.job import Place
from anisoscope.runs.tables import named, side_by_side
from anisoscope.training.recipe import TASKS, ClassifierRecipe, Task, Training

if TYPE_CHECKING:
    from anisoscope.training.classifier import TrainedClassifier


@overload
def train(task: Task, **options: Unpack[LearningLanguage]) -> Path: ...


@overload
def train(task: Literal["classifier"], **options: Unpack[LearningClasses]) -> Path: ...


def train(task: str, **options: Any) -> Path:
    """Train a model to be measured; the folder it is in: a series of checkpoints, or a classifier.

    task     `masked-lm`, `causal-lm`, or `classifier`
    options  those of `anisoscope train TASK`: `corpus`, `preset`, `steps`, `seed` …; of a classifier `model`, `layers`,
             `epochs` …; `output`, the folder (none: below runs/, as on the command line), `resume`, `overwrite`;
             `quiet=False` shows progress

    UsageError for a task or keyword that is not known; CorpusError for an empty corpus.
    """
    given, place, quiet = written(options)
    if task == "classifier":
        device, recipe = given.pop("device", "cpu"), made(ClassifierRecipe, read(given, leaves(ClassifierRecipe)))
        return train_classifier(recipe, place, quiet, device).folder
    if task not in TASKS:
        raise UsageError("a task", repr(task), near_matches(task, (*TASKS, "classifier")))
    return train_language_model(made(Training, read(given, leaves(Training)) | {"task": task}), place, quiet)


def train_classifier(recipe: ClassifierRecipe, place: Place, quiet: bool, device: str) -> "TrainedClassifier":
    """Train a classifier, with progress shown."""
    with shown(f"{recipe.model} × {recipe.corpus}, seed {recipe.seed}", "steps", quiet=quiet) as progress:
        from anisoscope.training.classifier import train_classifier as fit

        with keeping(lambda: "" if place.overwrite else "the steps that are done are kept"):
            return fit(recipe, place.output, **place.again, device=device, progress=progress)


def train_language_model(training: Training, place: Place, quiet: bool) -> Path:
    """Train a language model, with progress shown; its folder."""
    name = training.corpus.replace("builtin:", "").strip("/").replace("/", "-")
    described = f"{training.task}-{training.preset}"
    folder = place.output or Path("runs") / f"{described}-{name}" / f"seed-{training.seed}"
    title = f"{training.task} {training.preset} × {training.corpus}, seed {training.seed}"
    with shown(title, "steps", quiet=quiet) as progress:
        from anisoscope.training.language_model import train as fit

        with keeping(lambda: f"{folder} holds the last state" if (folder / "resume").exists() else ""):
            return fit(training, folder, **place.again, progress=progress)


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
    """Reproduce figures and tables of a paper; a row for every verdict. What is finished is read, not run again.

    paper     `godey2024` or `fosse2023`
    only      figures and tables, with commas and ranges: `fig1-5,fig17,table3`; none: all
    settings  `quick` (minutes, no download), `paper`, or another of the study's
    output    folder of the results, with charts, records and a page (`report.html`) in `<output>/<paper>/<settings>`
    data      local copies of corpora by name, which go before the hub's: `{"common-voice": folder}`

    Columns: `study`, `claim`, `subject`, `outcome` (holds, fails, undecided, identity), `statistic`, `value`, `low`,
    `high`, `n`, `p`, `reason`; in `attrs["without"]` of the table what could not be had, by its reason. UsageError for
    a paper, study or settings that are not known.
    """
    from anisoscope.data.local import copies
    from anisoscope.studies import runner

    studies, folder = runner.choose(paper, only), Path(output) / paper / settings
    with copies(data or {}):
        for _ in verdicts(studies, folder, device, quiet):
            pass
    rows = [{"study": s.name} | asdict(v) for s in studies for v in runner.finished(folder / s.name).verdicts]
    table = pd.DataFrame(rows)
    table.attrs = {"without": runner.without(studies, folder)}
    return table


def verdicts(studies: Any, folder: Path, device: str, quiet: bool) -> Iterator[str]:
    """Run studies with progress, each verdict a line; what is finished has its page, also where a later one fails."""
    from anisoscope.models.hub_memory import asked_once
    from anisoscope.report import build_studies
    from anisoscope.studies import runner

    def kept() -> str:
        finished = sum((folder / study.name / "study.json").exists() for study in studies)
        return f"{folder} holds {finished} of {len(studies)} studies, and what is done of the next"

    try:
        with keeping(kept, again=""), asked_once():
            yield from runner.reproduce(studies, folder.name, folder.parents[1], device=device, quiet=quiet)
    except Exception:
        if runner.reproductions(folder):
            build_studies(folder)
        raise
    with waiting("drawing the report", quiet=quiet):
        build_studies(folder)


def compare(*runs: Run | Path | str, metric: str = "mean_cosine", tokens: str = "all") -> pd.DataFrame:
    """One metric of several runs side by side: a row per stack, layer and site, and of each run `value`, `low`, `high`.

    runs    `Run`s or folders, two or more
    metric  a name in the `metric` column of their records (`anisoscope list metrics`)
    tokens  token policy

    What the intervals tell apart, each run against the first, stands in sentences in `attrs["findings"]` of the table.
    UsageError, with near names, for a metric that a run has not, or that has no aggregate value of hidden states.
    """
    if len(runs) < 2:
        raise UsageError("at least two runs", str(len(runs)), "name another one")
    opened = [given if isinstance(given, Run) else Run(given) for given in runs]
    table, _, found = side_by_side(named((run.name, run.records) for run in opened), metric, tokens)
    table.attrs = {"findings": [finding.text for finding in found]}
    return table


def report(run: Run | Path | str, folder: Path | str | None = None, *, pdf: bool = False) -> Path:
    """Make the page of a run anew from its records, or that of reproductions; its path.

    run      a `Run`, a run folder, or a folder of reproductions
    folder   where a run in memory is to be written
    pdf      figures as PDF too
    """
    from anisoscope.report import build_studies
    from anisoscope.studies.runner import reproductions

    if not isinstance(run, Run) and reproductions(Path(run)):
        return build_studies(Path(run))
    return (run if isinstance(run, Run) else Run(run)).report(folder, pdf=pdf)
