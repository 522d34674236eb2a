"""`measure`, `series` and `classes`: from a model and data, however they were handed over, to a `Run`."""

import tempfile
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from anisoscope.api.keywords import Looking, Measuring, refuse, taken
from anisoscope.api.run import Run, kept_or_not
from anisoscope.api.vectors import are_vectors, measure_vectors
from anisoscope.data.corpora import Columns
from anisoscope.errors import UsageError
from anisoscope.measure.settings import Settings
from anisoscope.runs.job import Classes, Job

if TYPE_CHECKING:
    from torch import nn

    from anisoscope.batch import BatchPlan
    from anisoscope.models.load import Subject
    from anisoscope.runs.run import OpenedCorpus
    from anisoscope.store import RunFolder

OF_LOADING = ("dtype", "device", "untrained", "trust_remote_code")
OF_CORPUS = ("split", "column", "documents", "limit", "sequences", "max_length", "batch_tokens", "skip_bad")


def measure(
    model: "str | Path | nn.Module | Subject | Any" = "builtin:minilm",
    inputs: Any = None,
    *,
    corpus: str = "",
    processor: Any = None,
    units: Iterable[Hashable] | None = None,
    labels: Iterable[Hashable] | None = None,
    mask: Any = None,
    forward: "Callable[[nn.Module, Any], Any] | None" = None,
    output: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
    **options: Unpack[Measuring],
) -> Run:
    """Measure the geometry of a model's representations and attention on data, with 95 % intervals.

    model      a name or folder (as on the command line), what `anisoscope.load` gave, or any `torch.nn.Module`; or
               vectors in its place: an array or tensor [vector, dim] or [sequence, token, dim], a list or dict of
               them by layer, a file (.npy, .npz, .safetensors, .parquet, .csv)
    inputs     what the model takes: a tensor, an array, a dict or `BatchEncoding`, a tuple of arguments, a list or
               generator of those, a `DataLoader` (of (inputs, labels) too); with a processor a list of strings
    corpus     instead of inputs: a built-in name, a hub data set, a file or folder; none: the built-in one
    processor  tokenizer of a `torch.nn.Module`, for texts and corpora
    units      the unit of every sequence, in order (any labels): the independent pieces of data that intervals leave
               out in groups; none: `unit` in the dicts, else every sequence (or vector) is its own. Of a file of
               vectors `units` and `labels` may be the names of its columns
    labels     the class of every vector [vector, dim]: then the directions of classes are measured too
    mask       [sequence, token] of vectors: what is real
    forward    `forward(model, inputs)`, where the model needs a special call
    output     a run folder to write; none: the run is in memory. `resume`, `overwrite`: as on the command line

    Other keywords are the options of `anisoscope measure`: `panel`, `tokens`, `limit`, `groups`, `seed` …; `metrics`
    chooses single ones. An `attention_mask` [sequence, token] is honoured, `special_tokens_mask` read; anomalies stand
    in `run.manifest["warnings"]`. UsageError, ModelError or CorpusError, with the cure, for what cannot be measured.

        >>> import anisoscope, torch
        >>> encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        >>> run = anisoscope.measure(encoder, torch.randn(20, 6, 8), panel="hidden", blocks="TransformerEncoderLayer")
        >>> run.table()["layer"].tolist()
        [0, 1, 2]
    """
    job = _job(dict(options), corpus)
    writing: dict[str, Any] = {"output": output, "resume": resume, "overwrite": overwrite, "quiet": quiet}
    if are_vectors(model):
        if inputs is not None or forward is not None or corpus or processor is not None:
            raise UsageError("vectors alone", "inputs, a corpus or forward beside them", "leave it out")
        return measure_vectors(job, model, units, labels, mask, writing)
    for name, value in (("labels", labels), ("mask", mask)):
        if value is not None:
            raise UsageError(f"{name} with vectors", "a model", f"leave {name} out; a dict has its attention_mask")
    if isinstance(model, str | Path):
        return _named(replace(job, model=str(model)), inputs, units, forward, options, writing)
    subject = _subject_of(model, processor, options)
    job = _job_of(job, subject)
    if inputs is None or isinstance(inputs, str | Path):
        _refuse_calling(units, forward)
        if subject.processor is None and subject.modality == "text":
            raise UsageError("a tokenizer for a corpus", f"{subject.name} without one", "give processor=, or inputs")
        given = replace(job, corpus=str(inputs or corpus))
        return _run(given, subject, None, **writing)
    return _given(job, subject, inputs, units, forward, options, writing)


def _named(job: Job, inputs: Any, units: Any, forward: Any, options: Mapping[str, Any], writing: dict[str, Any]) -> Run:
    """Measure a model given by name, on a corpus or on inputs."""
    if inputs is None or isinstance(inputs, str | Path):
        _refuse_calling(units, forward)
        job = replace(job, corpus=str(inputs) if inputs is not None else job.corpus)
        return _run(job, None, None, **writing)
    from anisoscope.runs.run import subject_of

    chosen = {name: value for name, value in options.items() if name not in OF_LOADING}
    return _given(job, subject_of(job), inputs, units, forward, chosen, writing)


def _given(
    job: Job, subject: "Subject", inputs: Any, units: Any, forward: Any, options: Mapping[str, Any], writing: Any
) -> Run:
    """Measure inputs as they were handed over; texts become documents of a corpus."""
    from anisoscope.measure.inputs import Given, check_model
    from anisoscope.runs.run import OpenedCorpus

    if _are_texts(inputs):
        return _texts(job, subject, inputs, units, writing)
    for name in OF_CORPUS:
        if name in options:
            raise UsageError(f"{name} with a corpus or texts", "inputs that are batches", f"leave {name} out")
    check_model(subject.model)
    plan = Given(inputs, subject.model, units=units, forward=forward)
    named = replace(job, corpus=job.corpus or "inputs")
    described = {"name": named.corpus, "kind": type(inputs).__name__, "warnings": plan.warnings}
    if writing["resume"] and not isinstance(plan.batches, list):
        cure = "give a list of batches, or leave resume out"
        raise UsageError("inputs that are the same the next time, where a run is resumed", type(inputs).__name__, cure)
    return _run(named, subject, OpenedCorpus(cast("BatchPlan", plan), described), **writing)


def _texts(job: Job, subject: "Subject", texts: Any, units: Any, writing: dict[str, Any]) -> Run:
    """Measure a list of strings as a corpus: each is a document, and a unit."""
    import json

    from anisoscope.runs.run import OpenedCorpus, plan_of

    if not hasattr(subject.processor, "tokenize"):
        got = f"{subject.name} without one" if subject.processor is None else type(subject.processor).__name__
        raise UsageError("a tokenizer for a list of strings", got, "give processor=, the model's tokenizer")
    if units is not None:
        raise UsageError("texts without units (each is one)", "units", "join the texts of a unit")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.jsonl")
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        plan, described = plan_of(replace(job, corpus=str(path)), subject)
    described = {name: value for name, value in described.items() if name != "path"} | {"name": "texts"}
    return _run(replace(job, corpus="texts"), subject, OpenedCorpus(plan, described), **writing)


def _are_texts(inputs: Any) -> bool:
    return isinstance(inputs, list | tuple) and bool(inputs) and all(isinstance(text, str) for text in inputs)


def _run(
    job: Job,
    subject: "Subject | None",
    reading: "OpenedCorpus | None",
    *,
    output: Path | str | None,
    resume: bool,
    overwrite: bool,
    quiet: bool,
) -> Run:
    """The run of a job, by the road of the command line: in its folder, or read back from one that goes."""
    from anisoscope.models.series import is_series
    from anisoscope.progress import shown
    from anisoscope.runs.run import run

    if subject is None and is_series(job.model):
        raise UsageError("one model", f"the series {job.model}", "use anisoscope.series")
    with shown(f"{job.model} × {job.corpus or 'the built-in corpus'}", quiet=quiet) as progress:

        def go(folder: Path) -> "RunFolder":
            return run(
                job, folder, subject=subject, reading=reading, resume=resume, overwrite=overwrite, progress=progress
            )

        return kept_or_not(go, output)


def series(
    checkpoints: str | Path,
    corpus: str = "",
    *,
    output: Path | str,
    keep: int = 2,
    overwrite: bool = False,
    quiet: bool = True,
    **options: Unpack[Measuring],
) -> Run:
    """Measure every checkpoint of a series: its records carry `step` and `seed`. What is finished is not done again.

    checkpoints  a pattern (`multiberts-seed_{0..4}-step_{0,20}k`), a folder of step-* or checkpoint-*, a list in a file
    output       the folder of the series: one run folder for every checkpoint, and all records together
    keep         downloaded checkpoints on the disk at a time

    Other keywords as in `measure`. ModelError for checkpoints that do not belong together.
    """
    from anisoscope.models.series import expand
    from anisoscope.progress import shown
    from anisoscope.runs.series import measure_series

    job = replace(_job(dict(options), corpus), model=str(checkpoints))
    found = expand(job.model)
    with shown(f"{len(found)} checkpoints × {corpus or 'the built-in corpus'}", quiet=quiet) as progress:
        done = measure_series(
            found, job, Path(output), skip_bad=job.skip_bad, keep=keep, overwrite=overwrite, progress=progress
        )
    return Run(done.folder)


def classes(
    model: str | Path = "builtin:minilm",
    corpus: str = "",
    *,
    output: Path | str | None = None,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = True,
    **options: Unpack[Looking],
) -> Run:
    """Is the direction of an utterance its class, layer by layer? What is attention worth, and what explains it?

    model    a classifier, or any other text model (then less is measured)
    corpus   labelled: a name, a table, a folder of them, a hub data set; none: what the model was trained on

    Other keywords are the options of `anisoscope classes`; the run is in memory where no `output` is named.
    """
    from contextlib import AbstractContextManager

    from anisoscope.progress import Progress, shown
    from anisoscope.runs.classes import run_classes

    given: dict[str, Any] = dict(options)
    columns = Columns(**taken(given, Columns)).build()
    of_job = {name: given.pop(name) for name in ("batch_tokens", *OF_LOADING) if name in given}
    look = Classes(corpus=corpus, columns=columns, **taken(given, Classes))
    job = Job(model=str(model), **taken(of_job, Job))
    refuse(given, Looking, Classes)

    def bar(title: str, unit: str) -> AbstractContextManager[Progress]:
        return shown(title, unit, quiet=quiet)

    return kept_or_not(
        lambda folder: run_classes(job, look, folder, resume=resume, overwrite=overwrite, shown=bar), output
    )


def _job(given: dict[str, Any], corpus: str) -> Job:
    """The job that keywords describe. UsageError for one that is not known."""
    settings = Settings(**taken(given, Settings))
    job = Job(corpus=corpus, settings=settings, **taken(given, Job))
    refuse(given, Measuring, Settings, Job)
    return job


def _subject_of(model: Any, processor: Any, options: Mapping[str, Any]) -> "Subject":
    """A module as a subject; one that is loaded stays as it is."""
    from anisoscope.measure.inputs import check_model
    from anisoscope.models.load import Subject, weights_hash

    for name in OF_LOADING:
        if name in options:
            raise UsageError(f"{name} with the name of a model", "a model that is loaded", "change the model itself")
    if isinstance(model, Subject):
        return model if processor is None else replace(model, processor=processor)
    check_model(model)
    return Subject(model, processor, type(model).__name__, None, weights_hash(model))


def _job_of(job: Job, subject: "Subject") -> Job:
    """The job with what is true of a loaded model: its name, numbers and device."""
    weight = next((p for p in subject.model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return replace(job, model=subject.name)
    return replace(job, model=subject.name, dtype=str(weight.dtype).removeprefix("torch."), device=str(weight.device))


def _refuse_calling(units: Any, forward: Any) -> None:
    for name, value in (("units", units), ("forward", forward)):
        if value is not None:
            raise UsageError(f"{name} with inputs", "a corpus", f"leave {name} out")
