"""From names to a finished run folder: load, plan, measure, write. What `anisoscope measure` and the studies both
call.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch.distributed as dist
from safetensors.torch import save_file

from anisoscope.batch import BatchPlan
from anisoscope.data.opening import default_corpus, open_plan
from anisoscope.errors import MeasureError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.distributed import gathered, process_group, rank_and_world
from anisoscope.measure.loop import embedding_records, run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.load import Subject, load
from anisoscope.progress import Progress
from anisoscope.runs.job import Job, plain
from anisoscope.store import RunFolder, as_records, provenance, run_id, write_atomic

FEW_UNITS = 20


@dataclass(frozen=True)
class Reading:
    """How a corpus is read: batches, and what the manifest says of them. `more` is called after the pass and gives
    records and warnings beside its own; `identity` adds to the run's.
    """

    plan: BatchPlan
    corpus: dict[str, Any]
    identity: dict[str, Any] = field(default_factory=dict)
    more: Callable[[], tuple[pd.DataFrame, list[str]]] | None = None


def run(
    job: Job,
    output: Path | None = None,
    *,
    root: Path = Path("runs"),
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    subject: Subject | None = None,
    reading: Reading | None = None,
    keep_sums: bool = False,
) -> RunFolder:
    """Measure and write a run folder: `output`, or one below `root` named after model, corpus and identity.

    A finished run of the same identity is returned as it is where `resume` is set.
    """
    subject = subject or subject_of(job)
    job = replace(job, corpus=job.corpus or default_corpus(subject.modality))
    reading = reading or Reading(*plan_of(job, subject))
    identity = job.identity(subject, reading.plan) | reading.identity
    folder = output or root / f"{slug(job.model)}-{slug(job.corpus)}-{run_id(identity)[:8]}"
    with process_group():
        rank, world = rank_and_world()
        if rank == 0:
            RunFolder.start(folder, identity, resume=resume, overwrite=overwrite)
        if world > 1:
            dist.barrier()
        target = RunFolder(folder)
        if target.complete and resume:
            return target
        started, clock = datetime.now(UTC), time.monotonic()
        part = run_pass(
            subject.model,
            reading.plan,
            job.settings,
            state=target.state_path(rank),
            resume=resume,
            progress=progress if rank == 0 else None,
            shard=(job.shard[0] + job.shard[1] * rank, job.shard[1] * world),
        )
        if reading.more is not None:  # the pass is not lost if that is interrupted
            part.save(target.state_path(rank), reading.plan.fingerprint)
        measurement = gathered(part)
    if rank == 0:
        more, warnings = reading.more() if reading.more is not None else (pd.DataFrame(), [])
        records = _records(measurement, subject, job, run_id(identity), more)
        took = {"started": started.isoformat(timespec="seconds"), "seconds": round(time.monotonic() - clock, 2)}
        manifest = _manifest(measurement, subject, job) | {"run": run_id(identity), "processes": world} | took
        manifest["corpus"] = _counted(reading, measurement, job)
        manifest["warnings"] += reading.corpus.get("warnings", []) + warnings
        if keep_sums:
            measurement.save(folder / "sums.safetensors", reading.plan.fingerprint)
        _write_sample(measurement, folder)
        target.finish(records, manifest)
    return target


def subject_of(job: Job, *, classifier: bool = False) -> Subject:
    """The model of a job; with `classifier` its head for classes too."""
    return load(
        job.model,
        dtype=job.dtype,
        device=job.device,
        trust_remote_code=job.trust_remote_code,
        untrained=job.untrained,
        seed=job.settings.seed,
        classifier=classifier,
    )


def _counted(reading: Reading, measurement: Measurement, job: Job) -> dict[str, Any]:
    """What the manifest says of the corpus, with the units and tokens that were measured."""
    tokens = sum(reading.plan.tokens[job.shard[0] :: job.shard[1]])
    return reading.corpus | {"n_units": len(measurement.sums.units), "n_tokens": tokens}


def _manifest(measurement: Measurement, subject: Subject, job: Job) -> dict[str, Any]:
    """What was measured with what; the corpus, the run's name and times are the caller's."""
    return {
        "model": job.model,
        "revision": subject.revision,
        "weights_sha256": subject.weights_sha256,
        "architecture": type(subject.model).__name__,
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "settings": plain(asdict(job)),
        "backend": getattr(subject.config, "_attn_implementation", None),
        "dtype": job.dtype,
        "device": job.device,
        "excluded": measurement.excluded(),
        "warnings": [*subject.notes, *_warnings(measurement)],
        **provenance(),
    }


def plan_of(job: Job, subject: Subject) -> tuple[BatchPlan, dict[str, Any]]:
    """The batches of a job's corpus for its model, and what the manifest says of the corpus."""
    return open_plan(
        job.corpus or default_corpus(subject.modality),
        subject.model,
        subject.processor,
        modality=subject.modality,
        max_length=job.max_length,
        batch_tokens=job.batch_tokens,
        split=job.split,
        column=job.column,
        limit=job.limit,
        sequences=job.sequences,
        skip_bad=job.skip_bad,
    )


def _records(measurement: Measurement, subject: Subject, job: Job, name: str, more: pd.DataFrame) -> pd.DataFrame:
    """The long table of the pass and of what is beside it, every row with the run's own names."""
    parts = [measurement.records(), more]
    if job.settings.panels and "hidden" in job.settings.panels and not job.settings.metrics:
        parts.append(as_records(embedding_records(subject.model)))
    records = pd.concat([part for part in parts if len(part)], ignore_index=True)
    given = {
        "run": name,
        "model": job.model,
        "revision": subject.revision,
        "seed": job.settings.seed if job.train_seed is None else job.train_seed,
        "corpus": job.corpus,
        "step": job.step,
    }
    return as_records(records.drop(columns=list(given)), **given)


def _warnings(measurement: Measurement) -> list[str]:
    warnings = []
    units = len(measurement.sums.units)
    if units < 2:
        warnings.append("one unit only: no interval can be given; measure more documents")
    elif units < FEW_UNITS:
        warnings.append(f"{units} units only: every unit is a group of its own and the intervals are rough")
    for site, counts in measurement.excluded().items():
        if counts.get("nonfinite"):
            warnings.append(f"{counts['nonfinite']} vectors with NaN or Inf left out at {site}")
        if counts.get("zero"):
            warnings.append(f"{counts['zero']} zero vectors left out at {site}")
    return warnings


def _write_sample(measurement: Measurement, folder: Path) -> None:
    tensors = {
        name: value for stack, r in measurement.reservoirs.items() for name, value in r.tensors(f"{stack} ").items()
    }
    if tensors:
        write_atomic(folder / "reservoir.safetensors", lambda path: save_file(tensors, path))


def slug(name: str) -> str:
    """A name as part of a folder's."""
    return (
        "".join(c if c.isalnum() or c in "-." else "-" for c in name.replace("builtin:", "")).strip("-.").lower()[-60:]
    )


def merge_runs(folders: list[Path], output: Path) -> RunFolder:
    """One run from shards measured apart (`--shard`): their sums are added; everything else must be the same."""
    parts = [RunFolder(folder) for folder in folders]
    manifests = [part.manifest for part in parts]
    first = manifests[0]
    for folder, manifest in zip(folders, manifests, strict=True):
        for key in ("model", "weights_sha256", "dtype"):
            if manifest[key] != first[key]:
                raise MeasureError(
                    f"shards of one run ({key} {first[key]})",
                    f"{manifest[key]} in {folder}",
                    "merge shards of one model only",
                )
        if not (folder / "sums.safetensors").exists():
            raise MeasureError(f"sums in {folder}", "none", "measure it with --shard or --keep-sums")
    stored = first["settings"]["settings"]
    options: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
    settings = Settings(**options)
    merged = Measurement.restore(folders[0] / "sums.safetensors", settings)
    for folder in folders[1:]:
        merged = merged.merge(Measurement.restore(folder / "sums.safetensors", settings))
    identity = {"merged": sorted(m["run"] for m in manifests)}
    run = RunFolder.start(output, identity, resume=False)
    name = run_id(identity)
    given = {key: parts[0].records[key].iloc[0] for key in ("model", "revision", "seed", "corpus", "step")} | {
        "run": name
    }
    records = merged.records()
    corpus = first["corpus"] | {
        "n_units": len(merged.sums.units),
        "n_tokens": sum(m["corpus"]["n_tokens"] for m in manifests),
    }
    manifest = first | {
        "run": name,
        "merged": identity["merged"],
        "corpus": corpus,
        "excluded": merged.excluded(),
        **provenance(),
    }
    merged.save(output / "sums.safetensors", "merged")
    _write_sample(merged, output)
    run.finish(as_records(records.drop(columns=list(given)), **given), manifest)
    return run
