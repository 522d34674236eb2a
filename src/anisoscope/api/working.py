"""`train`, `reproduce`, `compare` and `report`: what else the program does."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.api.keywords import taken
from anisoscope.api.run import Run
from anisoscope.errors import UsageError, near_matches
from anisoscope.store import select

TASKS = ("masked-lm", "causal-lm", "classifier")


def train(
    task: str,
    *,
    output: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
    **options: Any,
) -> Path:
    """Train a model to be measured; the folder it is in: a series of checkpoints, or a classifier.

    task     `masked-lm`, `causal-lm`, or `classifier`
    output   the folder; none: below runs/, as on the command line

    Other keywords are the options of `anisoscope train TASK`: `corpus`, `preset`, `steps`, `seed` …; of a classifier
    `model`, `layers`, `epochs` … UsageError for a task or keyword that is not known; CorpusError for an empty corpus.
    """
    if task not in TASKS:
        raise UsageError("a task", repr(task), near_matches(task, TASKS))
    writing: dict[str, Any] = {"resume": resume, "overwrite": overwrite}
    place = None if output is None else Path(output)
    if task == "classifier":
        return _classifier(options, place, quiet, writing)
    return _language_model(task, options, place, quiet, writing)


def _classifier(options: dict[str, Any], output: Path | None, quiet: bool, writing: Mapping[str, Any]) -> Path:
    from anisoscope.data.corpora import Columns
    from anisoscope.progress import shown
    from anisoscope.training.classifier import train_classifier
    from anisoscope.training.recipe import ClassifierRecipe

    columns = Columns(**taken(options, Columns)).build()
    device = options.pop("device", "cpu")
    _refuse(options, ClassifierRecipe)
    recipe = ClassifierRecipe(columns=columns, **options)
    with shown(f"{recipe.model} × {recipe.corpus}, seed {recipe.seed}", "steps", quiet=quiet) as progress:
        return train_classifier(recipe, output, device=device, progress=progress, **writing).folder


SIZES = {"vocab_size": "vocabulary", "window": "window", "batch": "batch", "rate": "rate", "dropout": "dropout"}
"""Options that change a preset, and its field."""


def _language_model(
    task: Any, options: dict[str, Any], output: Path | None, quiet: bool, writing: Mapping[str, Any]
) -> Path:
    from anisoscope.progress import shown
    from anisoscope.training.language_model import train as fit
    from anisoscope.training.recipe import Training, size_named

    preset = options.pop("preset", "small")
    size = size_named(preset, **{field: options.pop(name, None) for name, field in SIZES.items()})
    options = {"precision" if name == "dtype" else name: value for name, value in options.items()}
    _refuse(options, Training)
    training = Training(task=task, size=size, **options)
    corpus = training.corpus.replace("builtin:", "").strip("/").replace("/", "-")
    folder = output or Path("runs") / f"{task}-{preset}-{corpus}" / f"seed-{training.seed}"
    with shown(f"{task} {preset} × {training.corpus}, seed {training.seed}", "steps", quiet=quiet) as progress:
        fit(training, folder, progress=progress, **writing)
    return folder


def _refuse(options: Mapping[str, Any], settings: type[Any]) -> None:
    known = [field.name for field in fields(settings)]
    for name in options:
        if name not in known:
            raise UsageError("a known keyword", repr(name), near_matches(name, known))


def reproduce(
    paper: str,
    only: str = "",
    *,
    settings: str = "quick",
    output: Path | str = "runs/reproduction",
    device: str = "cpu",
    quiet: bool = True,
) -> pd.DataFrame:
    """Reproduce figures and tables of a paper; a row for every verdict. What is finished is read, not run again.

    paper     `godey2024` or `fosse2023`
    only      figures and tables, with commas and ranges: `fig1-5,fig17,table3`; none: all
    settings  `quick` (minutes, no download), `paper`, or another of the study's
    output    folder of the results, with charts, records and a page (`report.html`) in `<output>/<paper>/<settings>`

    Columns: `study`, `claim`, `subject`, `outcome` (holds, fails, undecided, identity), `statistic`, `value`, `low`,
    `high`, `n`, `p`, `reason`. UsageError for a paper, study or settings that are not known.
    """
    from anisoscope.report import build_studies
    from anisoscope.studies import runner

    studies = runner.choose(paper, only)
    folder = Path(output) / paper / settings
    try:
        for _ in runner.reproduce(studies, settings, Path(output), device=device, quiet=quiet):
            pass
    finally:  # what is finished is shown, also where a later study fails
        if runner.reproductions(folder):
            build_studies(folder)
    rows = [{"study": s.name} | asdict(v) for s in studies for v in runner.finished(folder / s.name).verdicts]
    return pd.DataFrame(rows)


def compare(*runs: Run | Path | str, metric: str = "mean_cosine", tokens: str = "all") -> pd.DataFrame:
    """One metric of several runs side by side: a row per stack, layer and site, and of each run `value`, `low`, `high`.

    runs    `Run`s or folders, two or more
    metric  a name in the `metric` column of their records (`anisoscope list metrics`)
    tokens  token policy

    UsageError, with near names, for a metric that a run has not, or that has no aggregate value of hidden states.
    """
    if len(runs) < 2:
        raise UsageError("at least two runs", str(len(runs)), "name another one")
    columns: dict[tuple[str, str], pd.Series] = {}
    for i, given in enumerate(runs):
        run = given if isinstance(given, Run) else Run(given)
        name = str(run.folder.name if run.folder is not None else run.manifest.get("model", "run"))
        name = f"{name} ({i + 1})" if any(name == known for known, _ in columns) else name
        rows = _rows_of(run, name, metric, tokens)
        for part in ("value", "low", "high"):
            columns[name, part] = rows[part]
    return pd.DataFrame(columns)


def _rows_of(run: Run, name: str, metric: str, tokens: str) -> pd.DataFrame:
    where = {"token_policy": [tokens, None], "head": None, "component": None, "site": ("hidden", "final")}
    rows = select(run.records, **where)
    known = sorted(rows["metric"].dropna().unique())
    if metric not in known:
        raise UsageError(f"a metric of {name}", repr(metric), near_matches(metric, known))
    return rows[rows["metric"].eq(metric)].set_index(["stack", "layer", "site"])


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
