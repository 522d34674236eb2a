"""Measure a series of checkpoints, one at a time: a run folder each, the next one downloaded meanwhile.

    <output>/seed-0-step-1000-1a2b3c4d/   an ordinary run; its records carry step, seed and revision
    <output>/records.parquet, series.json   all of them together, with what was left out or is there twice

A finished checkpoint is found again by what it was measured with (settings, commit or file stamps, code version), and
needs no download. Several processes can work on one series: each claims the checkpoint it measures.
"""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.errors import MeasureError, ModelError, UsageError
from anisoscope.measure.distributed import rank_and_world
from anisoscope.measure.settings import Settings
from anisoscope.models.download import fetch, forget, is_here, left_over, place_of, shape, stamp
from anisoscope.models.families import families
from anisoscope.models.hub import split_name
from anisoscope.models.hub_memory import ask_once, recall_commit
from anisoscope.models.series import AT_ONCE, Checkpoint
from anisoscope.progress import Progress, scale_progress
from anisoscope.provenance import describe_environment, hash_code_used, make_run_id
from anisoscope.runs.job import NOT_IN_IDENTITY, Job
from anisoscope.runs.run import load_subject, run
from anisoscope.runs.run_cache import identify_corpus_state
from anisoscope.store import RunFolder, make_once, visit_busy_last, write_atomic, write_json, write_table

SHAPE = "shape.json"
"""In each run folder: what its checkpoint has in common with the others, so that it is not needed again."""


@dataclass(frozen=True)
class Series:
    """Run folders by checkpoint; `skipped`: why one has none; `repeated`: groups with the same weights, bit for bit."""

    folder: Path
    runs: dict[Checkpoint, RunFolder]
    skipped: dict[str, str] = field(default_factory=dict)
    repeated: list[list[str]] = field(default_factory=list)

    @property
    def records(self) -> pd.DataFrame:
        """The records of all checkpoints, by seed and step."""
        return pd.concat([done.records for done in self.runs.values()], ignore_index=True)


@dataclass(frozen=True)
class Derived:
    """A file `name` in each run folder, made by `make(sums, settings, path)` before the large sums are given up."""

    name: str
    make: Callable[[Path, Settings, Path], None]


class _SeriesInProgress:
    """A series in progress: the folder of each checkpoint that can be measured, and why others cannot."""

    def __init__(
        self, job: Callable[[Checkpoint], Job], output: Path, derived: Derived | None, skip_bad: bool, name: str
    ) -> None:
        self.job, self.output, self.derived, self.skip_bad, self.name = job, output, derived, skip_bad, name
        self.folders: dict[Checkpoint, Path] = {}
        self.forms: dict[Checkpoint, dict[str, Any]] = {}
        self.skipped: dict[str, str] = {}
        self.corpus: Any = None  # its state
        self.overwrite = False
        self.marker = "manifest.json" if derived is None else derived.name  # what a run folder is finished with

    def job_of(self, checkpoint: Checkpoint) -> Job:
        return replace(self.job(checkpoint), model=checkpoint.subject, step=checkpoint.step, train_seed=checkpoint.seed)

    def bad(self, checkpoint: Checkpoint, error: Exception) -> None:
        """Note a checkpoint that cannot be measured; the error itself where such are not skipped."""
        if not self.skip_bad:
            raise error
        self.skipped[checkpoint.subject] = str(error)
        self.folders.pop(checkpoint, None)

    def examine(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Find every checkpoint and compare architecture and vocabulary, before anything is measured."""
        import transformers  # noqa: F401  # once, before several threads want it

        self.corpus = identify_corpus_state(self.job_of(checkpoints[0])) if checkpoints else None

        def look(checkpoint: Checkpoint) -> tuple[dict[str, Any], Path]:
            try:
                place = place_of(checkpoint.subject)
            except ModelError:  # it may have been here once, and be measured
                folder = self._folder(checkpoint, recall_commit("model", *split_name(checkpoint.subject)) or "")
                if (folder / self.marker).exists() and (folder / SHAPE).exists():
                    return json.loads((folder / SHAPE).read_text()), folder
                raise
            folder = self._folder(checkpoint, stamp(checkpoint.subject, place))
            if (folder / self.marker).exists() and (folder / SHAPE).exists():
                return json.loads((folder / SHAPE).read_text()), folder
            return shape(checkpoint.subject, place, self.job_of(checkpoint).trust_remote_code), folder

        with ThreadPoolExecutor(AT_ONCE) as pool:
            looks = {checkpoint: pool.submit(look, checkpoint) for checkpoint in checkpoints}
        some, known = any(found.exception() is None for found in looks.values()), dict[str, Any]()
        for checkpoint, found in looks.items():
            if some and isinstance(error := found.exception(), ModelError):
                self.bad(checkpoint, error)
                continue
            form, folder = found.result()
            known = known or form
            for name in sorted(known.keys() & form.keys()):
                if known[name] != form[name]:
                    expected = f"checkpoints of one architecture and vocabulary ({name} {known[name]})"
                    got = f"{name} {form[name]} in {checkpoint.subject}"
                    raise ModelError(expected, got, "measure them as two series")
            self.folders[checkpoint], self.forms[checkpoint] = folder, form

    def _folder(self, checkpoint: Checkpoint, state: str) -> Path:
        """A run folder; its name: seed, step, and a hash of everything that the numbers depend on."""
        job = self.job_of(checkpoint)
        described = {k: v for k, v in asdict(job).items() if k not in NOT_IN_IDENTITY}
        key = make_run_id(described, self.corpus, state, self._code(job))
        return self.output / f"seed-{checkpoint.seed}-step-{checkpoint.step}-{key[:8]}"

    def _code(self, job: Job) -> dict[str, str]:
        """Hashes of the code that makes the numbers: what a run of texts uses, and, since no model is loaded yet, the
        modules of all families.
        """
        families_of_ours = [family.module for family in families().values() if family.module]
        derived = [] if self.derived is None else [self.derived.make]
        return hash_code_used(*job.code, *families_of_ours, *derived)

    def measure(self, checkpoint: Checkpoint, progress: Progress | None) -> None:
        """Measure one checkpoint, and make what is derived of it."""
        folder, job, derived = self.folders[checkpoint], self.job_of(checkpoint), self.derived
        try:
            subject = load_subject(job)
        except ModelError as error:
            self.bad(checkpoint, error)
            return
        how: dict[str, Any] = {"progress": progress, "subject": subject, "keep_sums": derived is not None}
        run(job, folder, resume=not self.overwrite, overwrite=self.overwrite, **how)
        write_json(folder / SHAPE, self.forms[checkpoint])
        if derived is None:
            return
        sums = folder / "sums.safetensors"
        if not sums.exists():
            run(job, folder, overwrite=True, **how)
        write_atomic(folder / derived.name, lambda path: derived.make(sums, job.settings, path))
        for spent in (sums, folder / "reservoir.safetensors"):
            spent.unlink(missing_ok=True)

    def begin_anew(self) -> None:
        """Take away what runs of these checkpoints left in their folders, and nothing else that lies there."""
        self.overwrite = True
        for folder in self.folders.values():
            RunFolder(folder).clear()
            for name in {SHAPE, self.marker}:
                (folder / name).unlink(missing_ok=True)

    def finished(self) -> Series:
        """The series from its run folders, with its own records and summary written."""
        runs = {checkpoint: RunFolder(folder) for checkpoint, folder in self.folders.items()}
        weights = {checkpoint: done.manifest["weights_sha256"] for checkpoint, done in runs.items()}
        plans = {(done.identity() or {}).get("plan") for done in runs.values()}
        if len(plans) > 1:
            cure = "measure checkpoints of one vocabulary as one series"
            raise MeasureError("the same tokens for every checkpoint", f"{len(plans)} different ones", cure)
        same = [[c.subject for c, own in weights.items() if own == found] for found in dict.fromkeys(weights.values())]
        series = Series(self.output, runs, self.skipped, [names for names in same if len(names) > 1])
        if rank_and_world()[0] == 0:
            for checkpoint, folder in self.folders.items():
                if not (folder / SHAPE).exists():  # where a process was killed between a run and its shape
                    write_json(folder / SHAPE, self.forms[checkpoint])
            rows = [asdict(c) | {"folder": done.folder.name, "weights_sha256": weights[c]} for c, done in runs.items()]
            described = {
                "model": self.name,
                "checkpoints": rows,
                "skipped": series.skipped,
                "repeated": series.repeated,
            }
            if not self._is_written(described):
                write_table(self.output / "records.parquet", series.records)
                write_json(self.output / "series.json", described | describe_environment())
        return series

    def _is_written(self, described: dict[str, Any]) -> bool:
        """Whether the records of just these runs lie there: a second start changes nothing."""
        with suppress(OSError, ValueError):
            written = json.loads((self.output / "series.json").read_text("utf-8"))
            return (self.output / "records.parquet").exists() and described == {k: written.get(k) for k in described}
        return False


@ask_once()
def measure_series(
    checkpoints: Sequence[Checkpoint],
    job: Job | Callable[[Checkpoint], Job],
    output: Path,
    *,
    derived: Derived | None = None,
    skip_bad: bool = False,
    keep: int = 2,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Series:
    """Measure each checkpoint as `run` measures it alone, with everything else as in `job`; finished ones are read.

    derived    what is made of each run while its sums are there
    skip_bad   leave out and report checkpoints that cannot be loaded, where they would be an error
    keep       downloaded checkpoints on the disk at a time; those that were there before are never removed

    ModelError for checkpoints of different architectures or vocabularies (all are compared before anything is
    measured) and for those that cannot be loaded.
    """
    if keep < 1:
        raise UsageError("--keep of at least 1 checkpoint", str(keep), "raise it")
    of_all, name = ((lambda _: job), job.model) if isinstance(job, Job) else (job, output.name)
    work = _SeriesInProgress(of_all, output, derived, skip_bad, name)
    work.examine(checkpoints)
    if overwrite:
        work.begin_anew()
    todo = [c for c, folder in work.folders.items() if not (folder / work.marker).exists()]
    shelf = _CheckpointStore(
        [c.subject for c in todo], keep, [c.subject for c in work.folders if c not in todo] if todo else []
    )

    def attempt(i: int, wait: bool) -> None:
        def make() -> None:
            shelf.get(i, None if wait else i + 1)
            work.measure(todo[i], scale_progress(progress, i, len(todo), "checkpoint"))

        if rank_and_world()[1] > 1:  # processes of one torchrun job measure every checkpoint together
            make()
        else:
            make_once(work.folders[todo[i]], make, marker=work.marker, wait=wait)

    try:
        list(visit_busy_last(range(len(todo)), attempt))
    finally:
        shelf.close()
    return work.finished()


class _CheckpointStore:
    """Checkpoints on this disk; the next is downloaded meanwhile.

    Of those fetched by a series, also by one that was cut off (of `done` ones nothing is needed), `keep` stay, of
    others all.
    """

    def __init__(self, subjects: list[str], keep: int, done: list[str]) -> None:
        self.subjects, self.keep = subjects, keep
        for spent in filter(left_over, done):
            forget(spent)
        self.fetched: list[int] = []
        self.coming: dict[int, Future[None]] = {}
        self.pool = ThreadPoolExecutor(1)

    def get(self, i: int, following: int | None) -> None:
        """Wait until checkpoint i is there, and begin with the one that follows."""
        self._begin(i)
        self.coming[i].result()
        if self.keep > 1 and following is not None:
            self._begin(following)

    def _begin(self, i: int) -> None:
        if i in self.coming or i == len(self.subjects):
            return
        if lent := not is_here(self.subjects[i]) or left_over(self.subjects[i]):
            while len(self.fetched) >= self.keep:
                old = self.fetched.pop(0)
                forget(self.subjects[old])
                del self.coming[old]
            self.fetched.append(i)
        self.coming[i] = self.pool.submit(fetch, self.subjects[i], lent)

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)
