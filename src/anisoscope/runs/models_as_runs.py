"""Turn what a comparison names into run folders: a run is taken as it is, a model or a file of vectors is measured."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.data.check_names import check_corpus, check_model, suggest_path
from anisoscope.data.vector_files import holds_vectors, open_vectors
from anisoscope.errors import OutputError, UsageError
from anisoscope.measure.settings import Settings
from anisoscope.metrics import find_metric_by_name, resolve_alias
from anisoscope.models.series import is_series
from anisoscope.options import expand_home, select_fields
from anisoscope.progress import Progress, Shown
from anisoscope.runs.differences import SHORT_NAMES, KeptRun, open_kept_run
from anisoscope.runs.job import Job, ModelsOptions, VectorColumns
from anisoscope.runs.measured_series import (
    SERIES,
    name_checkpoints,
    refuse_unmeasured_series,
)
from anisoscope.runs.run import make_slug, run
from anisoscope.runs.run_cache import find_finished, make_key
from anisoscope.runs.vectors import run_vectors

ROOT = Path("runs")
"""Measured models have their run folders here, as those of `measure` do."""
OF_RUNS = ("manifest.json", "identity.json", SERIES)
OF_MODELS = (
    "*.json",
    "*.safetensors",
    "*.bin",
    "*.pt",
    "*.pth",
    "*.th",
    "*.ckpt",
    "*.msgpack",
)

Show = Callable[[str], AbstractContextManager[Progress]]
"""A function that shows progress next to a title, inside a `with` block."""


def is_model(name: str) -> bool:
    """Return whether a name means something to measure (a model, several, a file of vectors), and not a run folder.

    OutputError for a path that does not exist but is likely a mistyped run folder (see `_refuse_missing_run`).
    """
    path = expand_home(name)
    if path.is_dir():
        # Only a folder can be a run. What is no run may hold a model, or a series of
        # checkpoints.
        return not _is_run(path) and (_has_model_files(path) or is_series(name))
    if not path.exists():
        _refuse_missing_run(name, path)
    return True


def _has_model_files(folder: Path) -> bool:
    """Return whether a folder holds a file of a kind that models are saved in."""
    return any(next(folder.glob(pattern), None) for pattern in OF_MODELS)


def _refuse_missing_run(name: str, path: Path) -> None:
    """Raise OutputError for a name that is more likely a missing run folder than a model on the hub.

    It is if a similar path exists, or if its parent folder holds runs.
    """
    similar = suggest_path(name, surely=True)
    if similar:
        raise OutputError(
            "a run folder or a model",
            f"{name}, which is not there",
            f"did you mean {similar}?",
        )
    # A bare word (`gpt2`) is a model of the hub.
    if "/" not in name:
        return
    # `runs/x` is sooner a run that is not there than a model of the owner "runs".
    runs = sorted(each.name for each in path.parent.glob("*") if _is_run(each))
    if runs:
        more = " …" if len(runs) > 5 else ""
        cure = f"{path.parent} has {', '.join(runs[:5])}{more}"
        raise OutputError(
            "a run folder or a model", f"{name}, which is not there", cure
        )


def _is_run(folder: Path) -> bool:
    """Return whether a folder holds a run, finished or not, or a series of runs."""
    return any((folder / file).exists() for file in OF_RUNS)


def open_or_measure(
    names: Sequence[str], measuring: ModelsOptions, wanted: Iterable[str], show: Show
) -> list[KeptRun]:
    """Open runs for a comparison, in the order of their names; models and vectors among them are measured first.

    names       of runs (folders), models (folders or hub ids) and files of vectors
    measuring   how models are measured
    wanted      names of metrics that will be compared, as `A` or `attention.entropy`
    show        is called with the title of each measurement, and shows its progress

    A model that was measured before with these settings is not measured again. UsageError for a series of
    checkpoints that has not been measured yet, and for options of measuring if there is nothing to measure.
    """
    models = [name for name in names if is_model(name)]
    if not models:
        _refuse_options_without_models(measuring)
        opened = [open_kept_run(expand_home(name)) for name in names]
        return name_checkpoints(opened, names)
    for name in models:
        # All names are checked before the first model is measured: a typo in the last
        # would cost the time of all.
        refuse_unmeasured_series(name)
        check_model(name)
    check_corpus(measuring.corpus)
    settings = choose_settings(wanted)
    job = Job(**select_fields(measuring, ModelsOptions))
    show_once = _tell_costs_once(show)
    found = []
    for name in names:
        if name not in models:
            found.append(open_kept_run(expand_home(name)))
            continue
        folder = find_or_measure(replace(job, model=name), settings, show_once)
        found.append(replace(open_kept_run(folder), name=name_model(name)))
    return name_checkpoints(found, names)


def _tell_costs_once(show: Show) -> Show:
    """Return `show`, changed so that only the first measurement prints its estimated cost."""
    shown: list[str] = []

    @contextmanager
    def show_briefly(title: str) -> Iterator[Progress]:
        """Show progress with a title; mark it as brief unless it is the first."""
        with show(title) as progress:
            if isinstance(progress, Shown):
                progress.brief = bool(shown)
            shown.append(title)
            yield progress

    return show_briefly


def find_or_measure(job: Job, settings: Settings, show: Show) -> Path:
    """Measure one model or file of vectors unless a run of it is in `ROOT`, and return the run folder.

    settings   the metrics that the comparison needs. If these are whole panels, a finished run of the job's own
               settings, as `anisoscope measure` makes it, serves as well
    """
    # Only what the comparison needs, which is faster than a full measurement.
    own = replace(job, settings=settings)
    if holds_vectors(job.model):
        reading = select_fields(job, VectorColumns)
        with show(job.model) as progress:
            vectors = open_vectors(job.model, split=job.split, **reading)
            return run_vectors(
                vectors, own, root=ROOT, resume=True, progress=progress
            ).folder
    folders = sorted(ROOT.glob(f"{make_slug(job.model)}-*"))
    if not settings.metrics and (done := find_finished(make_key(job), folders)):
        return done.folder
    with show(f"{job.model} × {job.corpus or 'the built-in corpus'}") as progress:
        return run(own, root=ROOT, resume=True, progress=progress).folder


def choose_settings(wanted: Iterable[str]) -> Settings:
    """Return settings that measure what is compared: the panels of the metrics, or the metrics if one has no panel.

    UsageError, with similar names, for an unknown metric.
    """
    panels: list[Any] = []
    names = []
    for word in wanted:
        name, _ = resolve_alias(SHORT_NAMES.get(word, word))
        # `attention.entropy` is a value of the metric `attention`; `module:NAME` is a
        # metric of the user's, whose name has dots of its own.
        metric = find_metric_by_name(name if ":" in name else name.partition(".")[0])
        if metric.reads.runs > 1:
            # No run measures it: it is computed of the tokens that both sampled, which
            # runs of hidden states keep.
            metric = find_metric_by_name("mean_cosine")
            panels.append("hidden")
        names.append(metric.name)
        panels.append(metric.panel)
    if all(panels):
        return Settings(panel=tuple(dict.fromkeys(panels)))
    return Settings(metrics=tuple(dict.fromkeys(names)))


def name_model(name: str) -> str:
    """Return the short name of a model for tables and figures: `minilm` of `builtin:minilm`, `b` of `a/b`."""
    return name.removeprefix("builtin:").rstrip("/").rpartition("/")[2] or name


def _refuse_options_without_models(measuring: ModelsOptions) -> None:
    """UsageError if an option says how to measure, but only finished runs are compared."""
    # An option that differs from its default was given by the user.
    plain = select_fields(ModelsOptions(), ModelsOptions)
    for name, value in select_fields(measuring, ModelsOptions).items():
        if value != plain[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} only with a model to measure",
                "runs only",
                f"leave {option} out",
            )
