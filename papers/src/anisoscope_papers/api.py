"""`train` and `reproduce`, from Python and on the command line."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

import pandas as pd

from anisoscope.api.keywords import Written, read, written
from anisoscope.errors import UsageError, near_matches
from anisoscope.options import leaves, made
from anisoscope.progress import keeping, shown, waiting
from anisoscope.runs.job import Place
from anisoscope_papers.training.recipe import TASKS, ClassifierRecipe, Task, Training

if TYPE_CHECKING:
    from anisoscope_papers.training.classifier import TrainedClassifier


class LearningLanguage(Written, total=False):
    """Keywords of `train` for a language model, as the options of `anisoscope train masked-lm`."""

    corpus: str
    preset: str
    vocab_size: int | None
    window: int | None
    batch: int | None
    rate: float | None
    dropout: float | None
    steps: int | None
    seed: int
    data_seed: int | None
    vocabulary: str | None
    per_octave: int
    dtype: str
    accumulate: int
    split: str | None
    column: str | None
    limit: int | None
    device: str
    report_to: str | Sequence[str]


class LearningClasses(Written, total=False):
    """Keywords of `train` for a classifier, as the options of `anisoscope train classifier`."""

    model: str
    corpus: str
    text_column: str | None
    second_column: str | None
    label_column: str | None
    rationale_column: str | None
    split_column: str | None
    limit: int | None
    layers: int
    heads: int
    dim: int | None
    text: bool
    vectors: str
    vector_norm: float | None
    frozen: bool
    tokens: str
    separator: bool
    attention: str
    penalty: str
    weight: float
    penalty_layers: str | Sequence[int]
    rate: float | None
    decay: float | None
    batch: int | None
    epochs: int | None
    patience: int | None
    warmup: int
    clip: float
    buckets: bool
    max_length: int | None
    seed: int
    split_seed: int
    device: str


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
        from anisoscope_papers.training.classifier import train_classifier as fit

        with keeping(lambda: "" if place.overwrite else "the steps that are done are kept"):
            return fit(recipe, place.output, **place.again, device=device, progress=progress)


def train_language_model(training: Training, place: Place, quiet: bool) -> Path:
    """Train a language model, with progress shown; its folder."""
    name = training.corpus.replace("builtin:", "").strip("/").replace("/", "-")
    described = f"{training.task}-{training.preset}"
    folder = place.output or Path("runs") / f"{described}-{name}" / f"seed-{training.seed}"
    title = f"{training.task} {training.preset} × {training.corpus}, seed {training.seed}"
    with shown(title, "steps", quiet=quiet) as progress:
        from anisoscope_papers.training.language_model import train as fit

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
    from anisoscope_papers import runner

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
    from anisoscope_papers import runner
    from anisoscope_papers.studies_page import build_studies

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
