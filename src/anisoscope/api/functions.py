"""`measure` and `series`, and the functions behind them that the command line shares.

They accept a model and data in many forms, show progress, and return a `Run`.
"""

import json
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from anisoscope.api.keywords import read_keywords
from anisoscope.api.objects import is_table, read_texts_of_table, read_vectors_of_table, unwrap_model
from anisoscope.api.run import Run, run_to_folder_or_memory
from anisoscope.data.check_names import check_corpus, check_model, require_for_model
from anisoscope.errors import UsageError
from anisoscope.options import list_field_names, select_fields
from anisoscope.progress import interrupt_hint, show_progress
from anisoscope.runs.job import Job, LoadOptions, OutputOptions, ReadOptions, VectorColumns

if TYPE_CHECKING:
    from torch import nn

    from anisoscope.batch import BatchPlan
    from anisoscope.models.load import Subject
    from anisoscope.runs.run import OpenedCorpus
    from anisoscope.runs.series import Series
    from anisoscope.store import RunFolder


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
    **options: Any,
) -> Run:
    """Measure the geometry of a model's representations and attention on data, with 95 % intervals.

    model      a name or folder, what `anisoscope.load` returned, any `torch.nn.Module`, a pipeline of transformers, a
               model of sentence-transformers; or vectors in its place: an array [vector, dim] or [sequence, token,
               dim], a list or dict of them by layer, a list of [token, dim] of different lengths, a generator of
               vectors or of [token, dim], a `DataFrame` or another table, a file (.npy, .parquet …)
    inputs     what the model takes: a tensor, array, dict, `BatchEncoding` or tuple of arguments, a list or generator
               of those, a `DataLoader` (of (inputs, labels) too); with a processor a list of strings, or a table with
               a column of texts (`column=`). From a dict `attention_mask`, `special_tokens_mask` and `unit` [sequence]
               are read
    corpus     instead of inputs: a built-in name, a hub data set, a file or folder; none: the built-in one
    processor  tokenizer of a `torch.nn.Module`, for texts and corpora
    units      name of the unit (independent piece of data: a document, a speaker) of every sequence or vector, in
               order; none: each is its own
    labels     the class of every vector [vector, dim]
    mask       [sequence, token] for vectors: True for real tokens
    forward    `forward(model, inputs)`, if the model needs a special call
    options    as of `anisoscope measure`: `output`, `panel`, `limit`, `seed` …; without `output` the run is in memory.
               `metrics` chooses single metrics, by name or as objects (a `Metric` of your own). For a file of vectors
               `columns` (`"0-7"`, `"dim_*"`, `"embedding"`), `unit_column` and `label_column` name its columns, which
               are otherwise decided by rules; `run.manifest["corpus"]["reading"]` says how it was read

    Read `run.manifest["warnings"]`: they say what the user must know about the result.
    """
    job, place, quiet = read_keywords(Job, options | {"corpus": corpus})
    if are_vectors(model):
        _refuse_argument(
            "a model", "vectors alone", inputs=inputs, corpus=corpus or None, processor=processor, forward=forward
        )
        return run_to_folder_or_memory(
            lambda where: measure_vectors(job, model, where, quiet, units, labels, mask), place
        )
    _refuse_argument("vectors", "a model", labels=labels, mask=mask)
    texts = read_texts_of_table(inputs, job.column)
    if texts is not inputs:  # the column has been read: what is measured now is a list
        inputs, job = texts, replace(job, column=None)
    with unwrap_model(model, processor) as (opened, own_processor):
        job, subject = _load_given_model(job, opened, own_processor, options)
        if inputs is None or isinstance(inputs, str | Path):
            _refuse_argument("inputs", "a corpus", units=units, forward=forward)
            if subject is not None and subject.processor is None and subject.modality == "text":
                cure = "give processor=, or inputs"
                raise UsageError("a tokenizer for a corpus", f"{subject.name} without one", cure)
            check_corpus(str(inputs or corpus))
            job, reading = replace(job, corpus=str(inputs or corpus)), None
        else:
            job, subject, reading = _open_inputs(job, subject, inputs, units, forward, options, place)
        return run_to_folder_or_memory(lambda where: measure_job(job, where, quiet, subject, reading), place)


def measure_job(
    job: Job,
    place: OutputOptions,
    quiet: bool,
    subject: "Subject | None" = None,
    reading: "OpenedCorpus | None" = None,
) -> "RunFolder":
    """Measure one model on one corpus and return its run folder, with progress shown unless `quiet`.

    UsageError for a series of checkpoints.

    place     the folder to write, and what to do if it exists
    subject   the model, if it is loaded already
    reading   the opened inputs, if they are not a corpus
    """
    from anisoscope.models.series import is_series

    _refuse_columns_of_vectors(job)
    if subject is None and is_series(job.model):
        raise UsageError("one model", f"the series {job.model}", "use anisoscope.series")
    if subject is None:
        require_for_model(job.model)
    with show_progress(f"{job.model} × {job.corpus or 'the built-in corpus'}", quiet=quiet) as progress:
        from anisoscope.runs.run import run

        return run(job, **asdict(place), progress=progress, subject=subject, reading=reading)


def are_vectors(model: Any) -> bool:
    """Return whether vectors (arrays, a table, a file) were given in place of a model."""
    if isinstance(model, str | Path):
        from anisoscope.data.vector_files import holds_vectors

        return holds_vectors(model)
    if is_table(model) or isinstance(model, Iterator):
        return True
    parts = model if isinstance(model, list | tuple) and model else [model]
    kinds = [type(x) for x in parts]  # a nested tensor has no shape that can be asked for
    are_arrays = all(hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(x, "parameters") for x in kinds)
    return isinstance(model, dict) or are_arrays


def measure_vectors(
    job: Job, vectors: Any, place: OutputOptions, quiet: bool, units: Any = None, labels: Any = None, mask: Any = None
) -> "RunFolder":
    """Measure vectors in memory or in a file and return the run folder; the job may name columns of units (documents,
    clips, images) and labels.
    """
    named = isinstance(vectors, str | Path)
    if job.corpus:
        raise UsageError("vectors alone", f"the corpus {job.corpus}", "leave it out: the file is what will be measured")
    with show_progress(str(vectors) if named else "vectors", "vectors", quiet=quiet) as progress:
        from anisoscope.data.arrays import wrap_vectors
        from anisoscope.data.vector_files import open_vectors
        from anisoscope.runs.vectors import run_vectors

        if is_table(vectors):
            _refuse_argument("a table, whose rows are vectors", type(vectors).__name__, mask=mask)
            found = read_vectors_of_table(vectors, units=units, labels=labels, **select_fields(job, VectorColumns))
        elif named:
            _refuse_argument(
                "vectors in memory",
                "a file: name its columns with unit_column and label_column",
                units=units,
                labels=labels,
                mask=mask,
            )
            found = open_vectors(vectors, **select_fields(job, VectorColumns), split=job.split)
        else:
            _refuse_columns_of_vectors(job)
            found = wrap_vectors(vectors, units=units, labels=labels, mask=mask)
        return run_vectors(found, job, **asdict(place), progress=progress)


def _refuse_columns_of_vectors(job: Job) -> None:
    """Raise UsageError if columns of a vector file are named but no vectors are measured."""
    columns = select_fields(job, VectorColumns)
    if any(column is not None for column in columns.values()):
        from anisoscope.data.vector_files import ENDINGS

        _refuse_argument(f"a file of vectors ({', '.join(ENDINGS)})", job.model, **columns)


def _load_given_model(job: Job, model: Any, processor: Any, options: Mapping[str, Any]) -> "tuple[Job, Subject | None]":
    """Return (job with the model's name, hash and device; the loaded model).

    model     a name, a loaded `Subject`, or a torch module
    options   the caller's other keywords

    A model given by name is loaded later: its second result is None.
    """
    if isinstance(model, str | Path):
        _refuse_argument("a torch.nn.Module", "a name", processor=processor)
        check_model(str(model))
        return replace(job, model=str(model)), None
    from anisoscope.measure.calls import check_module
    from anisoscope.models.families import class_of
    from anisoscope.models.identity import hash_weights
    from anisoscope.models.load import Subject

    loading = {name: value for name, value in options.items() if name in list_field_names(LoadOptions)}
    _refuse_argument("the name of a model", "a model that is loaded: change the model itself", **loading)
    if isinstance(model, Subject):
        subject = model if processor is None else replace(model, processor=processor)
    else:
        check_module(model)
        subject = Subject(model, processor, class_of(model).__name__, None, hash_weights(model))
    weight = next((p for p in subject.model.parameters() if p.is_floating_point()), None)
    if weight is None:
        return replace(job, model=subject.name), subject
    dtype: Any = str(weight.dtype).removeprefix("torch.")
    return replace(job, model=subject.name, dtype=dtype, device=str(weight.device)), subject


def _open_inputs(
    job: Job,
    loaded: "Subject | None",
    inputs: Any,
    units: Any,
    forward: Any,
    options: Mapping[str, Any],
    place: OutputOptions,
) -> "tuple[Job, Subject, OpenedCorpus]":
    """Turn inputs given by the caller into batches. Returns (job, model, opened inputs).

    loaded    the model; None: it is loaded here by its name
    units     name of each sequence's unit, or None
    forward   `forward(model, inputs)`, if the model needs a special call
    options   the caller's other keywords; those that say how a corpus is read are refused for batches

    A list of strings is a corpus with a document (and unit) for each.
    """
    from anisoscope.measure.calls import check_module
    from anisoscope.measure.inputs import GivenInputs
    from anisoscope.runs.run import OpenedCorpus, load_subject, open_plan_of

    subject = loaded or load_subject(job)
    if isinstance(inputs, list | tuple) and inputs and all(isinstance(text, str) for text in inputs):
        if not hasattr(subject.processor, "tokenize"):
            got = f"{subject.name} without one" if subject.processor is None else type(subject.processor).__name__
            raise UsageError("a tokenizer for a list of strings", got, "give processor=, the model's tokenizer")
        if units is not None:
            raise UsageError("texts without units (each is one)", "units", "join the texts of a unit")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "texts.jsonl")
            path.write_text("\n".join(json.dumps({"text": text}) for text in inputs))
            read_plan, described = open_plan_of(replace(job, corpus=str(path)), subject)
        described = {name: value for name, value in described.items() if name != "path"} | {"name": "texts"}
        return replace(job, corpus="texts"), subject, OpenedCorpus(read_plan, described)
    _refuse_argument(
        "a corpus or texts",
        "inputs that are batches",
        **{n: options[n] for n in list_field_names(ReadOptions) if n in options},
    )
    check_module(subject.model)
    plan = GivenInputs(inputs, subject.model, units=units, forward=forward)
    named = replace(job, corpus=job.corpus or "inputs")
    described = {"name": named.corpus, "kind": type(inputs).__name__, "warnings": plan.warnings}
    if place.resume and not isinstance(plan.batches, list):
        cure = "give a list of batches, or leave resume out"
        raise UsageError("inputs that are the same the next time, where a run is resumed", type(inputs).__name__, cure)
    return named, subject, OpenedCorpus(cast("BatchPlan", plan), described)


def _refuse_argument(place: str, came: str, **given: Any) -> None:
    """Raise UsageError if one of the arguments was given although it does not fit the others.

    place   where such an argument fits, in words
    came    what was given instead, in words
    given   the arguments by name; None: not given
    """
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} with {place}", came, f"leave {name} out")


def series(
    checkpoints: str | Path,
    corpus: str = "",
    *,
    output: Path | str,
    **options: Any,
) -> Run:
    """Measure every checkpoint of a training run.

    Records carry `step` and `seed`; finished checkpoints are not repeated.

    checkpoints  a pattern (`multiberts-seed_{0..4}-step_{0,20}k`), a folder of step-* or checkpoint-*, a list in a file
    output       the folder of the series: one run folder for every checkpoint, and all records together

    Other keywords as in `measure`. `keep`: how many downloaded checkpoints may be on disk at a time. ModelError for
    checkpoints of different models.
    """
    given = options | {"output": output, "corpus": corpus, "model": str(checkpoints)}
    job, place, quiet = read_keywords(Job, given)
    return Run(measure_checkpoints(job, place, quiet).folder)


def measure_checkpoints(job: Job, place: OutputOptions, quiet: bool) -> "Series":
    """Measure every checkpoint of the series that `job.model` names, with progress shown unless `quiet`.

    place   the folder to write, and what to do if it exists
    """
    from anisoscope.models.series import expand

    require_for_model(job.model)
    found = expand(job.model)
    with show_progress(f"{len(found)} checkpoints × {job.corpus or 'the built-in corpus'}", quiet=quiet) as progress:
        from anisoscope.runs.run import make_slug
        from anisoscope.runs.series import measure_series

        folder = place.output or Path("runs") / f"series-{make_slug(job.model)}"
        more: dict[str, Any] = {"keep": job.keep, "overwrite": place.overwrite, "progress": progress}

        def kept() -> str:
            """Say, after an interruption, how many checkpoints are finished."""
            finished = len(list(folder.glob("*/manifest.json")))
            return f"{folder} holds {finished} of {len(found)} checkpoints" if folder.exists() else ""

        with interrupt_hint(kept):
            return measure_series(found, job, folder, skip_bad=job.skip_bad, **more)
