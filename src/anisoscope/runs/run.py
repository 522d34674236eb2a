"""Measure one model on one corpus and write the result as a run folder.

`run` loads the model, plans the batches, measures them, and writes records and manifest.
"""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import save_file

from anisoscope.axes import LAYER_QUANTITIES, TOWER_STACKS, WORDS, pluralise
from anisoscope.batch import BatchPlan
from anisoscope.capture.tap import describe_refused
from anisoscope.data.opening import (
    DEFAULT_LENGTH,
    default_corpus,
    find_longest_input,
    open_plan,
    open_texts_with_images,
)
from anisoscope.data.plans import Plan
from anisoscope.data.text import read_by_files
from anisoscope.data.windows import TextPlan
from anisoscope.errors import MeasureError, UsageError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.calls import check_called_by_name
from anisoscope.measure.cost import (
    Cost,
    estimate_cost,
    explain_missing_spectrum,
    find_shapes,
    find_shapes_on_meta,
)
from anisoscope.measure.distributed import (
    broadcast_from_first,
    gather_parts,
    is_in_step,
    is_true_anywhere,
    open_process_group,
    rank_and_world,
    reads_same_batches,
    share_tokenizer,
    take_over_states,
)
from anisoscope.measure.loop import Arrays, run_pass
from anisoscope.measure.tabulate import Replicates
from anisoscope.models.families import class_of
from anisoscope.models.hub_memory import ask_once
from anisoscope.models.load import Subject, load, load_on_meta, modality_of
from anisoscope.models.processors import reads_images_and_texts
from anisoscope.options import select_fields
from anisoscope.progress import (
    Progress,
    Shown,
    interrupt_hint,
    remark,
    set_counted_unit,
)
from anisoscope.provenance import describe_environment, json_roundtrip, make_run_id
from anisoscope.runs.differences import (
    NAME as REPLICATES,
    SAMPLE,
    identify_units,
    write_replicates,
)
from anisoscope.runs.job import Job, LoadOptions, ReadOptions
from anisoscope.runs.run_cache import find_finished, make_key
from anisoscope.store import (
    RunFolder,
    as_records,
    check_output,
    write_atomic,
    write_json,
)
from anisoscope.sums import jackknife
from anisoscope.sums.extremes import WHERE
from anisoscope.sums.groups import COUNTS

FEW_UNITS = 20


@dataclass(frozen=True)
class OpenedCorpus:
    """A corpus ready to be measured: its batches, and what the manifest records about it.

    plan      the batches
    corpus    the manifest's entry on the corpus (name, warnings, words for its units …)
    identity  entries to add to the run's identity
    more      called after the pass; returns further records and warnings to add to those of the pass
    """

    plan: BatchPlan
    corpus: dict[str, Any]
    identity: dict[str, Any] = field(default_factory=dict)
    more: Callable[[Progress | None], tuple[pd.DataFrame, list[str]]] | None = None


@ask_once()
def run(
    job: Job,
    output: Path | None = None,
    *,
    root: Path = Path("runs"),
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    subject: Subject | None = None,
    reading: OpenedCorpus | None = None,
    keep_sums: bool = False,
) -> RunFolder:
    """Measure one job and write its run folder: `output`, or a folder below `root` named after the job.

    With `resume`, a finished run with the same identity is returned unchanged. If a finished run has the same key
    (`make_key`: settings, model and corpus), it is found before anything is loaded. A shard always keeps its sums on
    disk, and so does a run that is to be merged; other runs keep them only with `keep_sums`.
    """
    # Mistakes that need neither model nor corpus are reported before the minutes that loading may take.
    if output is not None:
        check_output(output)
    if job.to_merge and reading is not None:
        cure = "add them to an anisoscope.State, which merges"
        raise UsageError(
            "a corpus of texts, clips or images with --to-merge",
            "vectors or inputs of your own",
            cure,
        )

    # The key describes what would be loaded by name: objects of the caller have none. The processes of one torchrun
    # job could find different folders on different disks, so they compare identities after loading.
    key = None
    if subject is None and reading is None and rank_and_world()[1] == 1:
        key = make_key(job)
    if resume:
        # Folders are named after the model first, so that only those of this model are
        # opened.
        folders = [output] if output else sorted(root.glob(f"{make_slug(job.model)}-*"))
        finished_run = find_finished(key, folders)
        if finished_run is not None:
            return finished_run

    subject = subject or load_subject(job)
    job = _fill_from_subject(job, subject)
    with open_process_group(job.device):
        # With several processes each tokenises a share of the texts, and they exchange
        # the tokens.
        shared = replace(subject, processor=share_tokenizer(subject.processor))
        reading = reading or OpenedCorpus(*open_plan_of(job, shared))
        # The progress counts tokens, samples or images: the corpus knows which.
        words = reading.corpus.get("words", WORDS)
        set_counted_unit(progress, pluralise(words["counted"]))
        identity = job.identity(subject, reading.plan, reading.more) | reading.identity
        target = RunFolder(output or root / _name_folder(job, identity))
        # One process alone touches the folder: the others would find what it has just
        # begun.
        if rank_and_world()[0] == 0:
            RunFolder.start(target.folder, identity, resume=resume, overwrite=overwrite)
        # Process 0 decides for all: processes on other machines may not see its folder.
        if broadcast_from_first(target.complete and resume):
            if key is not None:
                # The run was found only by its identity. With the key, the next start finds it without loading.
                write_json(target.manifest_path, target.manifest | {"asked": key})
            return target
        _measure_into(
            target,
            identity,
            subject,
            job,
            reading,
            progress,
            keep_sums=keep_sums,
            key=key,
        )
        _copy_to_other_hosts(target)
    return target


def _fill_from_subject(job: Job, subject: Subject) -> Job:
    """Return the job with what its model decides: dtype, device, the usual corpus, and the panel `floor`."""
    job = resolve_dtype_and_device(job, subject)
    job = replace(job, corpus=job.corpus or default_corpus(subject.modality))
    return add_floor_of_sentences(job, subject)


def add_floor_of_sentences(job: Job, subject: Subject) -> Job:
    """Return the job with the panel `floor` if its model makes a vector of each text, and hidden states are measured.

    Who compares such vectors needs to know which cosine is noise. A job that names its metrics is returned unchanged.
    """
    settings = job.settings
    # The floor comes from sampled vectors: without a sample there is none.
    chosen = not settings.metrics and "hidden" in settings.panel and settings.sample > 0
    if not chosen or not hasattr(subject.model, "sentence"):
        return job
    # The user may have named the panel already; twice it would change the identity of the run.
    panel = tuple(dict.fromkeys([*settings.panel, "floor"]))
    return replace(job, settings=replace(settings, panel=panel))


def _measure_into(
    target: RunFolder,
    identity: dict[str, Any],
    subject: Subject,
    job: Job,
    reading: OpenedCorpus,
    progress: Progress | None,
    *,
    keep_sums: bool,
    key: str | None,
) -> None:
    """Measure a job in all processes, and write its records and manifest in the first one.

    target     the run folder, begun
    identity   everything that the numbers depend on, as it is written there
    key        by which the finished run is found again before anything is loaded; None: not
    """
    is_first = rank_and_world()[0] == 0
    cost = None
    if is_first:
        cost = _announce_cost(subject, job, reading.plan, progress)
    # A clock that never jumps for the duration, the date for the reader.
    clock = time.monotonic()
    started = datetime.now(UTC).isoformat(timespec="seconds")
    # A list, so that the hint printed on Ctrl-C sees whether the pass was finished by then.
    part: list[Measurement] = []
    with interrupt_hint(lambda: _describe_kept(target, part)):
        try:
            part.append(_measure_share(target, subject, job, reading, progress))
            # With tensor parallelism each process has the whole.
            measurement = (
                part[0] if reads_same_batches(subject.model) else gather_parts(part[0])
            )
        finally:
            if is_first:
                # Somebody may have removed the folder during the pass: without its identity it could not be resumed.
                target.note(identity)
        if not is_first:
            return
        # Shards are merged by their sums; values with intervals could not be added up.
        if keep_sums or job.shard[1] > 1 or job.to_merge:
            measurement.save(target.sums_path)
        # After the sums are on disk: what follows may fail, and need not be paid for by
        # the pass.
        more, warnings = None, list[str]()
        if reading.more is not None:
            more, warnings = reading.more(progress)
        facts = _collect_facts(subject, job, reading, measurement.batches)
        facts["asked"] = key
        facts |= _decode_tokens(measurement, subject.processor)
        if cost is not None:
            facts["cost"] = asdict(cost)
        facts |= {
            "run": make_run_id(identity),
            "started": started,
            "notes": [*facts["notes"], *warnings],
            "seconds": round(time.monotonic() - clock, 2),
        }
        finish(target, measurement, facts, more)


def _name_folder(job: Job, identity: dict[str, Any]) -> str:
    """Return the name of a run's folder: model, corpus, and the first eight digits of the identity's hash."""
    return f"{make_slug(job.model)}-{make_slug(job.corpus)}-{make_run_id(identity)[:8]}"


def _announce_cost(
    subject: Subject, job: Job, plan: BatchPlan, progress: Progress | None
) -> Cost | None:
    """Print the estimated cost of the pass above the progress bar, and return it; None if it cannot be estimated."""
    cost = _estimate_cost_of_pass(subject, job, plan)
    if cost is not None:
        # Of several measurements of a comparison only the first one says what it costs.
        if not (isinstance(progress, Shown) and progress.brief):
            remark(progress, cost.line)
        remark(progress, cost.without_spectrum)
    return cost


def _decode_tokens(
    measurement: Measurement, processor: Any
) -> dict[str, dict[str, str]]:
    """Return the manifest entry {"tokens": {token id: text}} for the tokens at which the largest values were found.

    Empty if no token ids were kept or the processor cannot decode them.
    """
    # `where` says for each maximum in which unit, at which position and token it was
    # found; the column `token` holds the id, −1 if it is not known.
    ids: set[int] = set()
    for _, where in measurement.extremes.terms.values():
        ids.update(where[..., WHERE.index("token")].flatten().tolist())
    known = sorted(number for number in ids if number >= 0)
    if not known or not hasattr(processor, "decode"):
        return {}
    texts = {}
    for number in known:
        # Many vocabularies keep the blank before a word in its token.
        texts[str(number)] = str(processor.decode([number])).strip(" ")
    return {"tokens": texts}


def _copy_to_other_hosts(target: RunFolder) -> None:
    """Copy the finished run from process 0 to the folders of processes that do not see its disk. All processes must
    call it.

    Such processes run on other machines, or their folder is on a file system in memory. Nothing is copied if every
    process sees a finished run in `target`.
    """
    # A barrier: nobody looks before process 0 has written everything.
    broadcast_from_first(None)
    if not is_true_anywhere(not target.complete):
        return
    # Only process 0 sends; what the others hand in is ignored.
    held: Any = (target.records, target.manifest) if rank_and_world()[0] == 0 else ()
    finished_run = broadcast_from_first(held)
    if not target.complete:
        target.finish(*finished_run)


def _describe_kept(target: RunFolder, part: list[Measurement]) -> str:
    """Say in which folder the measured part of an interrupted run is kept; empty if nothing is kept.

    If this process had finished its whole pass, it is saved first.

    part   the measurement of the finished pass, if there is one already
    """
    own = target.state_path(rank_and_world()[0])
    if part and not target.complete and not own.exists():
        part[0].save(own)
    held = " (the whole pass)" if part else ""
    return f"{target.folder} holds what is measured{held}" if target.states() else ""


def _measure_share(
    target: RunFolder,
    subject: Subject,
    job: Job,
    reading: OpenedCorpus,
    shown: Progress | None,
) -> Measurement:
    """Measure this process's share of the batches and return the measurement. All processes must call it.

    The batches of the job's shard that no saved state holds are dealt out to the processes in turn. If the model is
    spread by tensor parallelism, every process reads all of them.

    target    the run folder, in which states are saved
    reading   the opened corpus
    shown     the progress to show, or None
    """
    rank, world = rank_and_world()
    is_first = rank == 0
    plan = reading.plan
    own_state = target.state_path(rank)

    held = _take_over_interrupted(target, job, plan)
    todo = []
    for batch in _list_batches_of_shard(job, reading):
        if batch not in held:
            todo.append(batch)
    # Dealt out in turn, after those already measured were taken away, so that every
    # process has about as much left to do.
    reads_all = reads_same_batches(subject.model)
    share = frozenset(todo if reads_all else todo[rank::world])
    if is_first:
        # They are not measured again; the progress counts them as done.
        share |= held
    # Process 0 alone goes on from a state: it holds what all processes of the earlier
    # start had measured.
    part = run_pass(
        subject.model,
        plan,
        job.settings,
        # With tensor parallelism all processes would save the same sums.
        state=own_state if is_first or not reads_all else None,
        resume=is_first,
        progress=shown if is_first else None,
        only=share,
        prove=True,
    )

    # What is measured is not lost if what follows fails: further analyses, or the exchange between processes.
    is_exchanged = world > 1 and (is_first or not reads_all)
    if reading.more is not None or is_exchanged:
        part.save(own_state)
    return part


def _take_over_interrupted(
    target: RunFolder, job: Job, plan: BatchPlan
) -> frozenset[int]:
    """Return the batches that an interrupted run measured, whose sums process 0 goes on with. All processes must call
    it.
    """
    rank, _ = rank_and_world()
    held: frozenset[int] = frozenset()
    if rank == 0:
        # There may have been another number of processes: the first one takes over what they all measured.
        held = take_over_states(
            target.states(), job.settings, plan.fingerprint, target.state_path(rank)
        )
    return broadcast_from_first(held)


def _list_batches_of_shard(job: Job, reading: OpenedCorpus) -> range:
    """Return the indices of the batches that belong to the job's shard."""
    n_batches = len(reading.plan)
    if "files" in reading.corpus:
        # A shard of files has a plan of its own, all of which it measures.
        return range(n_batches)
    shard, n_shards = job.shard
    # In turn: batches of texts are in order of length, so that each shard gets short
    # and long ones.
    return range(shard, n_batches, n_shards)


def finish(
    target: RunFolder,
    measurement: Measurement,
    facts: dict[str, Any],
    more: pd.DataFrame | None = None,
) -> None:
    """Write records, sample of vectors, replicates and manifest of a measurement.

    Runs, torchrun jobs and merges end here.

    facts   manifest entries that cannot be computed from the measurement; `notes` come first among the warnings
    more    records to add to those of the measurement

    Replicates are the values recomputed with one group of units (documents, clips, images) left out. MeasureError if
    every vector was left out.
    """
    _check_counted(measurement)
    settings = facts["settings"]
    seed = settings["train_seed"]
    # The columns that are the same in every record of this run. A checkpoint's records
    # carry the seed of its training, others that of the measurement.
    given = {
        "run": facts["run"],
        "model": facts["model"],
        "revision": facts["revision"],
        "seed": settings["settings"]["seed"] if seed is None else seed,
        "corpus": settings["corpus"],
        "step": settings["step"],
    }
    replicates = Replicates(measurement.settings.groups)
    parts = []
    for part in (measurement.records(replicates), more):
        if part is not None and len(part):
            parts.append(part)
    # A shard to which no batch fell has no records, but still the columns.
    records = as_records(pd.DataFrame())
    if parts:
        records = pd.concat(parts, ignore_index=True)
    if not settings.get("no_state", False):
        _write_state(target.folder, measurement, replicates)
    manifest = facts | {
        "state_bytes": _measure_state(target.folder),
        "corpus": facts["corpus"] | {"n_units": len(measurement.sums.units)},
        "excluded": measurement.excluded(),
        "capture": None if measurement.proof is None else measurement.proof.describe(),
        "warnings": [*facts["notes"], *_iter_warnings(measurement)],
        **describe_environment(),
    }
    # These columns are written once for all rows, whatever the parts held in them.
    target.finish(as_records(records.drop(columns=list(given)), **given), manifest)


def _write_state(
    folder: Path, measurement: Measurement, replicates: Replicates
) -> None:
    """Write what later comparisons need: the vector sample, and the replicates, as far as there are any."""
    sample: dict[str, Any] = {}
    for stack, reservoir in measurement.reservoirs.items():
        sample |= reservoir.tensors(f"{stack} ")
    if sample:
        write_atomic(folder / SAMPLE, lambda path: save_file(sample, path))
    rows, left_out = replicates.arrays()
    if len(rows):
        write_replicates(folder / REPLICATES, rows, left_out)


def _measure_state(folder: Path) -> dict[str, int]:
    """Return {file name: bytes} of the files kept for later comparisons.

    These are the vector sample, and replicates (values with one group of units left out).
    """
    paths = (folder / name for name in (SAMPLE, REPLICATES))
    return {path.name: path.stat().st_size for path in paths if path.exists()}


def _check_counted(measurement: Measurement) -> None:
    """Raise MeasureError if every vector of a pass was left out (all were zero, NaN or Inf)."""
    excluded = measurement.excluded()
    # One site that left nothing out is enough: something was counted.
    if not excluded or not set(measurement.sums.sites()) <= excluded.keys():
        return
    terms = measurement.sums.terms
    # Sites count different things (vectors, rows, pairs): the first count that a site
    # has is enough to know whether anything is left.
    for site in excluded:
        counts = next(terms[site, name] for name in COUNTS if (site, name) in terms)
        if int(counts.sum()):
            return
    site, left_out = next(iter(excluded.items()))
    kinds = zip(left_out.values(), ("zero", "NaN or Inf"), strict=True)
    came = " and ".join(f"{n} with {kind}" for n, kind in kinds if n)
    cure = "look at the vectors or weights; if the model overflows, try --dtype float32"
    raise MeasureError(
        "vectors that are finite and not zero",
        f"none at any site ({came} at {site})",
        cure,
    )


def load_subject(job: Job, *, classifier: bool = False) -> Subject:
    """Load the model of a job; with `classifier`, together with its classification head."""
    return load(
        job.model,
        **select_fields(job, LoadOptions),
        seed=job.settings.seed,
        classifier=classifier,
    )


def resolve_dtype_and_device(job: Job, subject: Subject) -> Job:
    """Return the job with `dtype` and `device` as they are in the loaded model, if they were "auto"."""
    weights = []
    for parameter in subject.model.parameters():
        # Weights that a device map keeps on the disk have neither numbers nor a device.
        if parameter.is_floating_point() and not parameter.is_meta:
            weights.append(parameter)
    # Vectors have no model, and a quantised model may have no such weights.
    if not weights:
        return replace(job, device="cpu") if job.device == "auto" else job
    dtype: Any = job.dtype
    # quantised weights have a type of their own, whatever was asked for
    if job.dtype == "auto" or hasattr(subject.model, "quantization_method"):
        dtype = str(weights[0].dtype).removeprefix("torch.")
    return replace(job, dtype=dtype, device=str(weights[0].device))


def open_plan_of(job: Job, subject: Subject) -> tuple[BatchPlan, dict[str, Any]]:
    """Open a job's corpus for its model. Returns (batches, the manifest's entry on the corpus)."""
    corpus = job.corpus or default_corpus(subject.modality)
    reading = select_fields(job, ReadOptions)
    processor = subject.processor

    # A model of images and texts can read a corpus that holds both.
    of_both = subject.of_images_and_texts or processor
    if isinstance(of_both, str) or reads_images_and_texts(of_both):
        with_images = open_texts_with_images(corpus, subject.model, of_both, **reading)
        if with_images is not None:
            _refuse_to_merge_images(job)
            return with_images
        if reads_images_and_texts(processor):
            # The corpus has texts alone, which the processor's own tokenizer reads.
            processor = processor.tokenizer

    # A shard of files reads its own files alone, and never opens the others.
    if reads_own_files(job, corpus, subject.modality):
        reading["files"] = job.shard
    if job.to_merge:
        reading["to_merge"] = True
    plan, described = open_plan(
        corpus, subject.model, processor, modality=subject.modality, **reading
    )
    is_own_module = subject.config is None
    if is_own_module and len(plan):
        # Its `forward` may lack an input of the corpus, which is better found before the pass than in it.
        plan.call = check_called_by_name(subject.model, plan[0].inputs)
    return plan, described


def _refuse_to_merge_images(job: Job) -> None:
    """Raise UsageError if a corpus of images with texts is to be merged: only files of texts can be."""
    if job.to_merge:
        raise UsageError(
            "texts, clips or images with --to-merge",
            "images with texts",
            "use anisoscope.State",
        )


def reads_own_files(job: Job, corpus: str, modality: str) -> bool:
    """Return whether the job's shard consists of whole files of the corpus, so that no others are read.

    Otherwise it consists of batches of the whole corpus. So it does if what is measured depends on the whole corpus:
    evenly spread windows, or mean queries and keys over all texts.
    """
    if (
        job.shard[1] == 1
        or modality != "text"
        or job.sequences is not None
        or "centred" in job.settings.what
    ):
        return False
    names = ("column", "limit", "skip_bad", "documents")
    return read_by_files(
        corpus, job.shard, **{name: getattr(job, name) for name in names}
    )


def _estimate_cost_of_pass(subject: Subject, job: Job, plan: BatchPlan) -> Cost | None:
    """Estimate what the pass costs by a short call of the model.

    None if the inputs may be read only once (not a plan of this package), if there is no model (vectors), or if only
    all processes together can call the model.
    """
    if (
        not isinstance(plan, Plan)
        or not len(plan)
        or isinstance(subject.model, Arrays)
        or is_in_step(subject.model)
    ):
        return None
    # Attention costs most for the longest input; plans may not know how long that is.
    longest = getattr(plan, "longest", None)
    if isinstance(plan, TextPlan):
        longest = int(plan.lengths.max())
    shapes = find_shapes(subject.model, plan[0], job.settings)
    return estimate_cost(shapes, job.settings, longest)


def estimate_cost_before(job: Job) -> Cost:
    """Estimate the cost of a job from the configuration of its model alone: no weights and no corpus are read."""
    # `module:factory` builds a model by its own code: it has no configuration to read.
    if ":" in job.model and not job.model.startswith("builtin:"):
        raise UsageError(
            "--dry-run only for a model with a configuration",
            job.model,
            "leave --dry-run out",
        )
    model = load_on_meta(
        job.model, dtype=job.dtype, trust_remote_code=job.trust_remote_code
    )
    if modality_of(model) != "text":
        expected, came = (
            "--dry-run only for a text model or a series",
            f"{job.model}, which reads {modality_of(model)}",
        )
        raise UsageError(
            expected,
            came,
            "measure with --limit 1, which first says what the measurement costs",
        )
    # As a measurement chooses it: what the model reads, and no more than the usual
    # window.
    longest = job.max_length or min(
        find_longest_input(model.config, None) or DEFAULT_LENGTH, DEFAULT_LENGTH
    )
    return estimate_cost(
        find_shapes_on_meta(model, job.settings), job.settings, longest
    )


def _collect_facts(
    subject: Subject, job: Job, reading: OpenedCorpus, batches: Collection[int]
) -> dict[str, Any]:
    """Return the manifest entries on model, settings, corpus and device, for `finish`; run id and times are added
    later.

    batches   indices of the batches that were measured

    reading   the opened corpus
    """
    plan, corpus = reading.plan, reading.corpus
    return {
        "model": job.model,
        "revision": subject.revision,
        "weights_sha256": subject.weights_sha256,
        "architecture": class_of(subject.model).__name__,
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "settings": json_roundtrip(asdict(job)),
        "backend": getattr(subject.config, "_attn_implementation", None),
        "dtype": job.dtype,
        "device": ", ".join(sorted({str(p.device) for p in subject.model.parameters()}))
        or job.device,
        "corpus": corpus
        | {"n_tokens": sum(plan.tokens[i] for i in batches), "n_batches": len(plan)},
        "notes": [*subject.notes, *corpus.get("warnings", [])],
        "processes": rank_and_world()[1],
        "plan": plan.fingerprint,
        "tokens_hash": getattr(plan, "tokens_hash", None),
        "units": identify_units(
            corpus | {"sequences": job.sequences, "split": job.split},
            plan,
            job.settings,
        ),
    }


def _iter_warnings(measurement: Measurement) -> Iterator[str]:
    """Yield the sentences for the manifest's `warnings`: few units, missing intervals, vectors left out, and the
    like.
    """
    yield from _warn_of_units(measurement)
    yield from _warn_of_spectrum(measurement)
    if measurement.pieces > 1:
        yield f"out of memory: each batch was measured in {measurement.pieces} parts; the results are the same"
    if measurement.unseen:
        what = ", ".join(sorted(measurement.unseen))
        yield f"{what} not seen: this model computes them where no capture looks; the rest is measured"
    for matrix, terms in measurement.weights.items():
        # Of a large matrix only the number of rows was kept, without what I(W) is
        # computed from.
        if terms.keys() == {"rows"}:
            cure = "takes minutes at this size and was left out; --metric partition measures it"
            yield f"I(W), the isotropy of {matrix}, {cure}"
    yield from _warn_of_towers(measurement)
    if measurement.proof is not None and measurement.proof.moved:
        moved = measurement.proof.outputs
        yield f"the outputs of this model move by {moved:.1e} of the largest while its hidden states are looked at"
    for phrase in describe_refused(measurement.refused):
        yield f"not seen and left out, {phrase}; the rest is measured"
    yield from _warn_of_excluded(measurement)


def _warn_of_excluded(measurement: Measurement) -> Iterator[str]:
    """Say at which sites vectors were left out because they are not finite, or have no direction."""
    for site, counts in measurement.excluded().items():
        if counts.get("nonfinite"):
            yield f"{counts['nonfinite']} vectors with NaN or Inf left out at {site}"
        if counts.get("zero"):
            yield f"{counts['zero']} zero vectors left out at {site}"


def _warn_of_units(measurement: Measurement) -> Iterator[str]:
    """Yield a warning if there are too few units for intervals, or so few that intervals are rough."""
    units = len(measurement.sums.units)
    if not measurement.batches:
        yield "no batch fell to this shard: it is empty, and merges as such"
        return
    missing = jackknife.explain_no_interval(min(units, measurement.settings.groups))
    if missing:
        yield f"{missing}; measure more documents, or with more --groups"
    elif units < FEW_UNITS:
        yield f"{units} units only: each forms its own group, so the intervals are rough"


def _warn_of_spectrum(measurement: Measurement) -> Iterator[str]:
    """Yield a sentence if the spectrum has no intervals, and one if some layers have no spectrum."""
    # Second moments [dim, dim] may be kept for fewer groups than other sums, so that
    # their intervals can be missing alone.
    groups = measurement.moments.groups
    if groups is not None:
        missing = jackknife.explain_no_interval(
            min(len(measurement.sums.units), groups)
        )
        if missing:
            yield f"spectrum: {missing}; --spectrum-groups 8 gives them"
    is_asked_for = "moment" in measurement.settings.list_terms("hidden")
    if is_asked_for and measurement.settings.flatten != "image":
        layers = without = 0
        for site in measurement.sites.values():
            if site.quantity in LAYER_QUANTITIES:
                layers += 1
                without += (site.name, "moment") not in measurement.sums.terms
        explained = explain_missing_spectrum(without, layers)
        if explained:
            yield explained


def _warn_of_towers(measurement: Measurement) -> Iterator[str]:
    """Yield a sentence for each tower (image or sound part) that lacks the site `final` while another stack has it."""
    stacks: dict[str, bool] = {}
    for site in measurement.sites.values():
        if site.quantity == "hidden":
            stacks.setdefault(site.stack, False)
        elif site.quantity == "final":
            stacks[site.stack] = True
    for stack, has_final in stacks.items():
        # Only in models like CLIP: there a missing norm of one tower looks like a
        # mistake.
        if not has_final and any(stacks.values()) and stack in TOWER_STACKS:
            yield f"{stack} has no `final`: the rest of the model reads the output of its last block without a norm"


def make_slug(name: str) -> str:
    """Turn a model or corpus name into a part of a folder's name: lower case, `-` for other characters, at most 60."""
    plain_name = ""
    for character in name.replace("builtin:", ""):
        is_plain = character.isalnum() or character in "-."
        plain_name += character if is_plain else "-"
    # The end of a path or hub id names the model; its beginning, whose it is.
    return plain_name.strip("-.").lower()[-60:]
