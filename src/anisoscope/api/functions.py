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
from anisoscope.api.objects import unwrap_model, wrap_module
from anisoscope.api.run import Run, run_to_folder_or_memory
from anisoscope.data.check_names import check_corpus, check_model, require_for_model
from anisoscope.data.in_memory import (
    are_texts,
    fill_missing_texts,
    is_table,
    read_texts_of_table,
    read_vectors_of_table,
)
from anisoscope.errors import UsageError
from anisoscope.options import list_field_names, select_fields
from anisoscope.progress import interrupt_hint, show_progress
from anisoscope.runs.job import (
    Job,
    LoadOptions,
    OutputOptions,
    ReadOptions,
    VectorColumns,
)

if TYPE_CHECKING:
    from torch import nn

    from anisoscope.batch import BatchPlan
    from anisoscope.data.arrays import VectorArrays
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

    model      a name or folder, what `anisoscope.load` returned, any `torch.nn.Module`, a pipeline of transformers, or
               a model of sentence-transformers. Vectors may be given instead of a model: an array [vector, dim] or
               [sequence, token, dim], a list or dict of such arrays by layer, a list of arrays [token, dim] of
               different lengths, a generator of vectors or of arrays [token, dim], a `DataFrame` or another table, a
               file (.npy, .parquet …)
    inputs     what the model takes: a tensor, array, dict, `BatchEncoding` or tuple of arguments, a list or generator
               of these, or a `DataLoader` (also of (inputs, labels)). With a processor also a list or generator of
               strings, or a table with a column of texts (`column=`). If it is a dict, its entries `attention_mask`,
               `special_tokens_mask` and `unit` [sequence] are used
    corpus     instead of inputs: a built-in name, a hub data set, a file or folder; default: the built-in corpus
    processor  tokenizer of a `torch.nn.Module`, for texts and corpora
    units      name of the unit (independent piece of data: a document, a speaker) of every sequence or vector, in
               order; default: each sequence or vector is a unit
    labels     the class of every vector [vector, dim]
    mask       [sequence, token] for vectors: True for real tokens, False for padding
    forward    `forward(model, inputs)`, if the model needs a special call
    options    those of `anisoscope measure`: `output`, `panel`, `limit`, `seed` …; without `output` the run is kept in
               memory. `metrics` chooses single metrics, by name or as objects (a `Metric` of your own). For a file of
               vectors, `columns` (`"0-7"`, `"dim_*"`, `"embedding"`), `unit_column` and `label_column` name its
               columns; otherwise they are guessed, and `run.manifest["corpus"]["reading"]` says how it was read

    Returns the run. Read `run.manifest["warnings"]`: they say what the user must know about the result.
    """
    # Options are checked first, before anything is loaded.
    job, output, quiet = read_keywords(Job, options | {"corpus": corpus})
    if are_vectors(model):
        # An empty corpus is the default, and does not count as given.
        refused = {
            "inputs": inputs,
            "corpus": corpus or None,
            "processor": processor,
            "forward": forward,
        }
        _refuse_argument("a model", "vectors alone", **refused)
        about = (units, labels, mask)
        return run_to_folder_or_memory(
            lambda where: measure_vectors(job, model, where, quiet, *about), output
        )
    _refuse_argument("vectors", "a model", labels=labels, mask=mask)
    texts = read_texts_of_table(inputs, job.column)
    if texts is not inputs:
        inputs = texts
        # If a column has been read, what is measured now is a list.
        if isinstance(texts, list):
            job = replace(job, column=None)
    with unwrap_model(model, processor) as (opened, own_processor):
        job, subject = _load_given_model(job, opened, own_processor, options)
        # A text here is the name of a corpus; texts to measure are given in a list.
        if inputs is None or isinstance(inputs, str | Path):
            _refuse_argument("inputs", "a corpus", units=units, forward=forward)
            job = _set_corpus(job, subject, str(inputs or corpus))
            # The corpus is opened later, by its name in the job.
            reading = None
        else:
            job, subject, reading = _open_inputs(
                job, subject, inputs, units, forward, options, output
            )
        return run_to_folder_or_memory(
            lambda where: measure_job(job, where, quiet, subject, reading), output
        )


def _set_corpus(job: Job, subject: "Subject | None", corpus: str) -> Job:
    """Return the job with the corpus of this name. UsageError for an unknown name, and for texts without a tokenizer.

    subject   the model, if it is loaded already
    """
    # The tokenizer of a model that is loaded later comes with its checkpoint.
    if subject is not None and subject.processor is None and subject.modality == "text":
        cure = "give processor= (the model's tokenizer), or inputs"
        raise UsageError(
            "a tokenizer that reads the corpus", f"{subject.name} without one", cure
        )
    check_corpus(corpus)
    return replace(job, corpus=corpus)


def measure_job(
    job: Job,
    output: OutputOptions,
    quiet: bool,
    subject: "Subject | None" = None,
    reading: "OpenedCorpus | None" = None,
) -> "RunFolder":
    """Measure one model on one corpus and return its run folder, with progress shown unless `quiet`.

    UsageError for a series of checkpoints.

    output    the folder to write, and what to do if it exists
    subject   the model, if it is loaded already
    reading   the opened inputs, if they were given in memory; None: the job's corpus is opened
    """
    from anisoscope.models.series import is_series

    _refuse_columns_of_vectors(job)
    if subject is None and is_series(job.model):
        raise UsageError(
            "one model", f"the series {job.model}", "use anisoscope.series"
        )
    if subject is None:
        require_for_model(job.model)
    with show_progress(
        f"{job.model} × {job.corpus or 'the built-in corpus'}", quiet=quiet
    ) as progress:
        # Imported while the progress is shown: torch and transformers take seconds.
        from anisoscope.runs.run import run

        return run(
            job, **asdict(output), progress=progress, subject=subject, reading=reading
        )


def are_vectors(model: Any) -> bool:
    """Return whether vectors (arrays, a table, a file) were given in place of a model."""
    if isinstance(model, str | Path):
        from anisoscope.data.vector_files import holds_vectors

        return holds_vectors(model)
    # A generator cannot be looked into without using it up; a dict holds arrays by
    # layer.
    if is_table(model) or isinstance(model, Iterator | dict):
        return True
    # Nothing can be seen of an empty list: it is asked itself, and is no array.
    parts = model if isinstance(model, list | tuple) and model else [model]
    return all(_is_array_class(type(part)) for part in parts)


def _is_array_class(kind: type) -> bool:
    """Return whether a class is one of arrays or tensors.

    The class is examined, not an object of it: a nested tensor raises an error if its shape is asked for.
    """
    # Models of transformers have a `dtype` too, and any model may have a `shape`.
    return (
        hasattr(kind, "shape")
        and hasattr(kind, "dtype")
        and not hasattr(kind, "parameters")
    )


def measure_vectors(
    job: Job,
    vectors: Any,
    output: OutputOptions,
    quiet: bool,
    units: Any = None,
    labels: Any = None,
    mask: Any = None,
) -> "RunFolder":
    """Measure vectors in memory or in a file and return the run folder, with progress shown unless `quiet`.

    job       what to measure; for a file or table it may name the columns of vectors, units and labels
    vectors   arrays, a table, or the path of a file
    output    the folder to write, and what to do if it exists
    units, labels, mask   as for `measure`; only for vectors in memory

    UsageError if the job names a corpus, which is only for models.
    """
    is_path = isinstance(vectors, str | Path)
    if job.corpus:
        raise UsageError(
            "no corpus with vectors",
            f"the corpus {job.corpus}",
            "leave corpus out: the vectors are measured as they are",
        )
    title = str(vectors) if is_path else "vectors"
    with show_progress(title, "vectors", quiet=quiet) as progress:
        # Imported while the progress is shown: torch takes seconds.
        from anisoscope.runs.vectors import run_vectors

        arrays = _open_vectors(job, vectors, units, labels, mask)
        return run_vectors(arrays, job, **asdict(output), progress=progress)


def _open_vectors(
    job: Job, vectors: Any, units: Any, labels: Any, mask: Any
) -> "VectorArrays":
    """Read vectors from a table, a file or arrays in memory.

    UsageError for an argument that does not fit the source, such as a mask for a table.
    """
    from anisoscope.data.arrays import wrap_vectors
    from anisoscope.data.vector_files import open_vectors

    columns = select_fields(job, VectorColumns)
    if is_table(vectors):
        _refuse_argument(
            "a table, whose rows are vectors", type(vectors).__name__, mask=mask
        )
        return read_vectors_of_table(vectors, units=units, labels=labels, **columns)
    if isinstance(vectors, str | Path):
        instead = "a file: name its columns with unit_column and label_column"
        _refuse_argument(
            "vectors in memory", instead, units=units, labels=labels, mask=mask
        )
        return open_vectors(vectors, **columns, split=job.split)
    # Arrays have no columns that could be named.
    _refuse_columns_of_vectors(job)
    return wrap_vectors(vectors, units=units, labels=labels, mask=mask)


def _refuse_columns_of_vectors(job: Job) -> None:
    """Raise UsageError if columns of a vector file are named but no vectors are measured."""
    columns = select_fields(job, VectorColumns)
    if all(column is None for column in columns.values()):
        return
    from anisoscope.data.vector_files import ENDINGS

    _refuse_argument(f"a file of vectors ({', '.join(ENDINGS)})", job.model, **columns)


def _load_given_model(
    job: Job, model: Any, processor: Any, options: Mapping[str, Any]
) -> "tuple[Job, Subject | None]":
    """Return (the job completed by the model's name, dtype and device, the model).

    model     a name, a loaded `Subject`, or a torch module
    options   the caller's other keywords; those that say how to load a model are refused for a loaded one

    If the model is given by name, it is loaded later: the second result is None.
    """
    from anisoscope.measure.loop import find_device

    if isinstance(model, str | Path):
        _refuse_argument("a torch.nn.Module", "a name", processor=processor)
        check_model(str(model))
        return replace(job, model=str(model)), None
    # The model is there already: options that say how to load it would be ignored in
    # silence.
    loading = {
        name: value
        for name, value in options.items()
        if name in list_field_names(LoadOptions)
    }
    _refuse_argument(
        "the name of a model",
        "a model that is loaded: change the model itself",
        **loading,
    )
    subject = wrap_module(model, processor)
    job = replace(job, model=subject.name)
    # The settings of the run say where and how the model computes, which its first float weight shows.
    for weight in subject.model.parameters():
        if weight.is_floating_point():
            dtype: Any = str(weight.dtype).removeprefix("torch.")
            # Weights that accelerate laid off have no device of their own.
            device = find_device(subject.model) if weight.is_meta else weight.device
            return replace(job, dtype=dtype, device=str(device)), subject
    return job, subject


def _open_inputs(
    job: Job,
    loaded: "Subject | None",
    inputs: Any,
    units: Any,
    forward: Any,
    options: Mapping[str, Any],
    output: OutputOptions,
) -> "tuple[Job, Subject, OpenedCorpus]":
    """Turn inputs given by the caller into batches. Returns (job, model, opened inputs).

    loaded    the model; None: it is loaded here by its name
    units     name of each sequence's unit, or None
    forward   `forward(model, inputs)`, if the model needs a special call
    options   the caller's other keywords; those that say how a corpus is read are refused for batches

    If the inputs are a list of strings, each is tokenised as a document of its own.
    """
    from anisoscope.measure.calls import check_module
    from anisoscope.measure.inputs import GivenInputs
    from anisoscope.runs.run import OpenedCorpus, load_subject

    # Inputs are made into batches by the model's own rules, so it is needed at once.
    subject = loaded or load_subject(job)
    inputs = fill_missing_texts(inputs)
    if are_texts(inputs):
        return (
            replace(job, corpus="texts"),
            subject,
            _open_texts(job, subject, inputs, units),
        )
    reading = {
        name: options[name] for name in list_field_names(ReadOptions) if name in options
    }
    _refuse_argument("a corpus or texts", "inputs that are batches", **reading)
    check_module(subject.model)
    plan = GivenInputs(inputs, subject.model, units=units, forward=forward)
    # What the user calls the data stays; it is a name alone, since nothing is looked
    # up.
    job = replace(job, corpus=job.corpus or "inputs")
    described = {
        "name": job.corpus,
        "kind": type(inputs).__name__,
        "warnings": plan.warnings,
    }
    # A loader or generator may give other batches the next time, so that two halves of a run would not fit.
    if output.resume and not isinstance(plan.batches, list):
        cure = "give a list of batches, or leave resume out"
        raise UsageError(
            "inputs that are the same each time, so that a run can be resumed",
            type(inputs).__name__,
            cure,
        )
    return job, subject, OpenedCorpus(cast("BatchPlan", plan), described)


def _open_texts(
    job: Job, subject: "Subject", texts: Iterable[str], units: Any
) -> "OpenedCorpus":
    """Open a list of strings as a corpus in which each string is a document and a unit.

    UsageError for a model without a tokenizer, and if `units` are given.
    """
    from anisoscope.runs.run import OpenedCorpus, open_plan_of

    if not hasattr(subject.processor, "tokenize"):
        got = (
            f"{subject.name} without one"
            if subject.processor is None
            else type(subject.processor).__name__
        )
        raise UsageError(
            "a tokenizer for a list of strings",
            got,
            "give processor=, the model's tokenizer",
        )
    if units is not None:
        raise UsageError(
            "no units with a list of texts, as each text is one unit",
            "units",
            "join the texts of a unit into one text",
        )
    # Corpora are read from files; the texts are in memory once the plan is open.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.jsonl")
        # As JSON, since a text may have line breaks.
        path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        plan, described = open_plan_of(replace(job, corpus=str(path)), subject)
    # The temporary file is gone by now.
    described.pop("path", None)
    return OpenedCorpus(plan, described | {"name": "texts"})


def _refuse_argument(wanted: str, got: str, **arguments: Any) -> None:
    """Raise UsageError if any of these arguments is not None, because it only makes sense in another situation.

    wanted      that situation, for the error: "a torch.nn.Module" for the argument `processor`
    got         the situation here, for the error: "a name"
    arguments   the values by name
    """
    for name, value in arguments.items():
        if value is not None:
            raise UsageError(f"{name} only with {wanted}", got, f"leave {name} out")


def series(
    checkpoints: str | Path,
    corpus: str = "",
    *,
    output: Path | str,
    **options: Any,
) -> Run:
    """Measure every checkpoint of a training run, and return all records as one run.

    The records have the columns `step` and `seed`. Checkpoints that were measured before are not measured again.

    checkpoints  a pattern (`multiberts-seed_{0..4}-step_{0,20}k`), a folder that holds folders step-* or checkpoint-*,
                 or a text file that lists checkpoints
    output       the folder of the series: it gets one run folder for every checkpoint, and all records together

    Other keywords are as for `measure`; `keep` says how many downloaded checkpoints may be on disk at a time.
    ModelError for checkpoints of different models.
    """
    given = options | {"output": output, "corpus": corpus, "model": str(checkpoints)}
    job, output_options, quiet = read_keywords(Job, given)
    return Run(measure_checkpoints(job, output_options, quiet).folder)


def measure_checkpoints(job: Job, output: OutputOptions, quiet: bool) -> "Series":
    """Measure every checkpoint of the series that `job.model` names, with progress shown unless `quiet`.

    output   the folder to write, and what to do if it exists
    """
    from anisoscope.models.series import expand

    require_for_model(job.model)
    checkpoints = expand(job.model)
    title = f"{len(checkpoints)} checkpoints × {job.corpus or 'the built-in corpus'}"
    with show_progress(title, quiet=quiet) as progress:
        # Imported while the progress is shown: torch and transformers take seconds.
        from anisoscope.runs.run import make_slug
        from anisoscope.runs.series import measure_series

        folder = output.output or Path("runs") / f"series-{make_slug(job.model)}"
        how: dict[str, Any] = {
            "keep": job.keep,
            "overwrite": output.overwrite,
            "progress": progress,
        }

        def count_finished() -> str:
            """Say, after an interruption, how many checkpoints are finished."""
            # A run folder with a manifest is complete.
            finished = len(list(folder.glob("*/manifest.json")))
            return (
                f"{folder} holds {finished} of {len(checkpoints)} checkpoints"
                if folder.exists()
                else ""
            )

        with interrupt_hint(count_finished):
            return measure_series(
                checkpoints, job, folder, skip_bad=job.skip_bad, **how
            )
