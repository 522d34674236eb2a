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
from anisoscope.models.download import (
    compute_stamp,
    delete_checkpoint,
    fetch,
    is_left_over,
    is_on_disk,
    locate_checkpoint,
    read_shape,
)
from anisoscope.models.families import families
from anisoscope.models.hub import split_name
from anisoscope.models.hub_memory import ask_once, recall_commit
from anisoscope.models.series import AT_ONCE, Checkpoint
from anisoscope.progress import Progress, scale_progress
from anisoscope.provenance import describe_environment, hash_code_used, make_run_id
from anisoscope.runs.job import NOT_IN_IDENTITY, Job
from anisoscope.runs.run import load_subject, run
from anisoscope.runs.run_cache import identify_corpus_state
from anisoscope.store import (
    RunFolder,
    make_once,
    visit_busy_last,
    write_atomic,
    write_json,
    write_table,
)

SHAPE = "shape.json"
"""In each run folder: what its checkpoint has in common with the others, so that it is not needed again."""


@dataclass(frozen=True)
class Series:
    """A measured series of checkpoints.

    runs       run folder of each checkpoint
    skipped    why a checkpoint has no run, by its name
    repeated   groups of checkpoints whose weights are the same bit for bit
    """

    folder: Path
    runs: dict[Checkpoint, RunFolder]
    skipped: dict[str, str] = field(default_factory=dict)
    repeated: list[list[str]] = field(default_factory=list)

    @property
    def records(self) -> pd.DataFrame:
        """Return the records of all checkpoints in one table."""
        return pd.concat(
            [done.records for done in self.runs.values()], ignore_index=True
        )


@dataclass(frozen=True)
class Derived:
    """A file `name` to make in each run folder by `make(sums, settings, path)`, before the run's large sums are
    deleted.
    """

    name: str
    make: Callable[[Path, Settings, Path], None]


class _SeriesInProgress:
    """A series being measured: the folder of each checkpoint that can be measured, and why others cannot."""

    def __init__(
        self,
        job: Callable[[Checkpoint], Job],
        output: Path,
        derived: Derived | None,
        skip_bad: bool,
        name: str,
    ) -> None:
        """Prepare a series; nothing is read yet.

        job      returns the job of a checkpoint
        derived  file to make from each run before its sums are deleted; None: none
        name     of the series, for `series.json`
        """
        self.job, self.output, self.derived, self.skip_bad, self.name = (
            job,
            output,
            derived,
            skip_bad,
            name,
        )
        self.folders: dict[Checkpoint, Path] = {}
        self.forms: dict[Checkpoint, dict[str, Any]] = {}
        self.skipped: dict[str, str] = {}
        # Its state, as `identify_corpus_state` returns it.
        self.corpus: Any = None
        self.overwrite = False
        # The file that is written last into a run folder.
        self.marker = "manifest.json" if derived is None else derived.name

    def job_of(self, checkpoint: Checkpoint) -> Job:
        """Return the job that measures this checkpoint, with its model, step and seed filled in."""
        return replace(
            self.job(checkpoint),
            model=checkpoint.subject,
            step=checkpoint.step,
            train_seed=checkpoint.seed,
        )

    def skip_or_raise(self, checkpoint: Checkpoint, error: Exception) -> None:
        """Skip a checkpoint that cannot be measured, and note why; raise the error if `skip_bad` is not set."""
        if not self.skip_bad:
            raise error
        self.skipped[checkpoint.subject] = str(error)
        # Without a folder it is neither measured nor read at the end.
        self.folders.pop(checkpoint, None)

    def examine(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Locate every checkpoint and compare their architectures and vocabularies, before anything is measured."""
        # Once, before several threads want it.
        import transformers  # noqa: F401

        if checkpoints:
            # All checkpoints read the same corpus.
            self.corpus = identify_corpus_state(self.job_of(checkpoints[0]))
        pending: dict[Checkpoint, Future[tuple[dict[str, Any], Path]]] = {}
        # In threads, since each may ask the hub and wait for its answer.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for checkpoint in checkpoints:
                pending[checkpoint] = pool.submit(self._read_form, checkpoint)
        # If none can be found, the reason is hardly a single bad checkpoint.
        is_any_there = any(read.exception() is None for read in pending.values())
        known: dict[str, Any] = {}
        for checkpoint, read in pending.items():
            error = read.exception()
            # If all fail, `result` below raises the error of the first.
            if is_any_there and isinstance(error, ModelError):
                self.skip_or_raise(checkpoint, error)
                continue
            form, folder = read.result()
            known = known or form
            _require_same_form(checkpoint, form, known)
            self.folders[checkpoint], self.forms[checkpoint] = folder, form

    def _read_form(self, checkpoint: Checkpoint) -> tuple[dict[str, Any], Path]:
        """Return (form of a checkpoint, its run folder).

        The form is {name: value} of architecture, sizes and vocabulary, which all checkpoints of a series share. If the
        checkpoint is measured already, it is read from the run folder.
        """
        try:
            place = locate_checkpoint(checkpoint.subject)
        except ModelError:
            # The checkpoint is not there, but it may have been measured earlier.
            folder = self._find_folder(
                checkpoint,
                recall_commit("model", *split_name(checkpoint.subject)) or "",
            )
            if not self._is_measured(folder):
                raise
            return json.loads((folder / SHAPE).read_text()), folder
        folder = self._find_folder(checkpoint, compute_stamp(checkpoint.subject, place))
        if self._is_measured(folder):
            return json.loads((folder / SHAPE).read_text()), folder
        return read_shape(
            checkpoint.subject, place, self.job_of(checkpoint).trust_remote_code
        ), folder

    def _is_measured(self, folder: Path) -> bool:
        """Return whether a run folder is finished, and holds the form of its checkpoint."""
        return (folder / self.marker).exists() and (folder / SHAPE).exists()

    def _find_folder(self, checkpoint: Checkpoint, state: str) -> Path:
        """Return a checkpoint's run folder, whose name holds seed, step, and a hash of everything the numbers depend
        on.

        state   key of the checkpoint's current state (commit, or sizes and times of files)
        """
        job = self.job_of(checkpoint)
        # The device and the like change the folder's name as little as they change the
        # numbers.
        described = {k: v for k, v in asdict(job).items() if k not in NOT_IN_IDENTITY}
        key = make_run_id(described, self.corpus, state, self._hash_code(job))
        return self.output / f"seed-{checkpoint.seed}-step-{checkpoint.step}-{key[:8]}"

    def _hash_code(self, job: Job) -> dict[str, str]:
        """Return hashes of the code that computes the numbers.

        No model is loaded yet, so the modules of all model families are counted.
        """
        families_of_ours = []
        for family in families().values():
            if family.module:
                families_of_ours.append(family.module)
        derived = [] if self.derived is None else [self.derived.make]
        return hash_code_used(*job.code, *families_of_ours, *derived)

    def measure(self, checkpoint: Checkpoint, progress: Progress | None) -> None:
        """Measure one checkpoint, make the derived file if one is wanted, and delete the sums that it was made from."""
        folder = self.folders[checkpoint]
        job = self.job_of(checkpoint)
        derived = self.derived
        try:
            subject = load_subject(job)
        except ModelError as error:
            self.skip_or_raise(checkpoint, error)
            return
        # The derived file is made from the sums, which an ordinary run does not keep.
        how: dict[str, Any] = {
            "progress": progress,
            "subject": subject,
            "keep_sums": derived is not None,
        }
        run(job, folder, resume=not self.overwrite, overwrite=self.overwrite, **how)
        write_json(folder / SHAPE, self.forms[checkpoint])
        if derived is None:
            return
        # The run may have been finished earlier, without sums: then it is measured
        # again.
        sums = folder / "sums.safetensors"
        if not sums.exists():
            run(job, folder, overwrite=True, **how)
        write_atomic(
            folder / derived.name, lambda path: derived.make(sums, job.settings, path)
        )
        # Large files for each checkpoint of a series, which nothing reads any more.
        for spent in (sums, folder / "reservoir.safetensors"):
            spent.unlink(missing_ok=True)

    def delete_earlier_runs(self) -> None:
        """Delete the earlier runs of these checkpoints (option `overwrite`); other files in their folders are kept."""
        self.overwrite = True
        for folder in self.folders.values():
            RunFolder(folder).clear()
            # `clear` knows the files of a run; these two are the series' own.
            for name in {SHAPE, self.marker}:
                (folder / name).unlink(missing_ok=True)

    def list_unfinished(self) -> list[Checkpoint]:
        """Return the checkpoints whose run folder lacks the file that is written last."""
        unfinished = []
        for checkpoint, folder in self.folders.items():
            if not (folder / self.marker).exists():
                unfinished.append(checkpoint)
        return unfinished

    def finish(self) -> Series:
        """Write `records.parquet` and `series.json` from the run folders, and return the series.

        MeasureError if the checkpoints were measured on different tokens.
        """
        runs = {
            checkpoint: RunFolder(folder) for checkpoint, folder in self.folders.items()
        }
        # The plan is a hash of all tokens: with another tokenizer a curve over steps
        # would compare different texts.
        plans = {(done.identity() or {}).get("plan") for done in runs.values()}
        if len(plans) > 1:
            cure = "measure checkpoints of one vocabulary as one series"
            raise MeasureError(
                "the same tokens for every checkpoint",
                f"{len(plans)} different ones",
                cure,
            )
        # Some published series name one set of weights twice, as two steps: a curve over them would be flat there.
        weights: dict[Checkpoint, str] = {}
        same: dict[str, list[str]] = {}
        for checkpoint, done in runs.items():
            weights[checkpoint] = done.manifest["weights_sha256"]
            same.setdefault(weights[checkpoint], []).append(checkpoint.subject)
        repeated = [names for names in same.values() if len(names) > 1]
        series = Series(self.output, runs, self.skipped, repeated)
        # All processes see the same folders; one writes.
        if rank_and_world()[0] == 0:
            self._write(series, weights)
        return series

    def _write(self, series: Series, weights: dict[Checkpoint, str]) -> None:
        """Write the records and the list of checkpoints of a series, unless they are written already.

        weights   hash of the weights of each checkpoint
        """
        for checkpoint, folder in self.folders.items():
            # A process may have been killed between a run and its shape.
            if not (folder / SHAPE).exists():
                write_json(folder / SHAPE, self.forms[checkpoint])
        rows = []
        for checkpoint, done in series.runs.items():
            rows.append(
                asdict(checkpoint)
                | {"folder": done.folder.name, "weights_sha256": weights[checkpoint]}
            )
        # The environment is left out of the comparison: another version of a library is
        # no reason to write again.
        described = {
            "model": self.name,
            "checkpoints": rows,
            "skipped": series.skipped,
            "repeated": series.repeated,
        }
        if not self._is_written(described):
            write_table(self.output / "records.parquet", series.records)
            write_json(self.output / "series.json", described | describe_environment())

    def _is_written(self, described: dict[str, Any]) -> bool:
        """Return whether the output folder already holds the records of exactly these runs, so that nothing is left to
        write.

        described   the content of `series.json` that would be written
        """
        # A file that is missing or damaged is not the right one: it is written again.
        with suppress(OSError, ValueError):
            written = json.loads((self.output / "series.json").read_text("utf-8"))
            is_same = all(written.get(key) == described[key] for key in described)
            return is_same and (self.output / "records.parquet").exists()
        return False


def _require_same_form(
    checkpoint: Checkpoint, form: dict[str, Any], known: dict[str, Any]
) -> None:
    """Raise ModelError if a checkpoint's architecture, sizes or vocabulary are not those of the first one."""
    for name in sorted(known.keys() & form.keys()):
        if known[name] != form[name]:
            expected = (
                f"checkpoints of one architecture and vocabulary ({name} {known[name]})"
            )
            got = f"{name} {form[name]} in {checkpoint.subject}"
            raise ModelError(expected, got, "measure them as two series")


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
    """Measure every checkpoint of a series one after another, as `run` does; finished ones are read from their
    folders.

    job        settings of all checkpoints, or a function that returns them for one
    derived    a file to make from each run while its sums exist
    skip_bad   skip and report checkpoints that cannot be loaded, instead of raising
    keep       how many downloaded checkpoints may be on disk at a time; those that were there before are never removed

    ModelError for checkpoints of different architectures or vocabularies (all are compared before anything is
    measured) and for those that cannot be loaded.
    """
    if keep < 1:
        raise UsageError("--keep of at least 1 checkpoint", str(keep), "raise --keep")
    if isinstance(job, Job):
        # A name that does not change, since the function below is called later.
        same_job = job
        work = _SeriesInProgress(
            lambda _: same_job, output, derived, skip_bad, job.model
        )
    else:
        work = _SeriesInProgress(job, output, derived, skip_bad, output.name)
    work.examine(checkpoints)
    if overwrite:
        work.delete_earlier_runs()
    _measure_unfinished(work, keep, progress)
    return work.finish()


def _measure_unfinished(
    work: _SeriesInProgress, keep: int, progress: Progress | None
) -> None:
    """Measure the checkpoints of a series whose run folders are not finished.

    keep   how many downloaded checkpoints may be on disk at a time
    """
    todo = work.list_unfinished()
    # With nothing left to measure, nothing is downloaded, and nobody's files need be looked at.
    done: list[str] = []
    if todo:
        for checkpoint in work.folders:
            if checkpoint not in todo:
                done.append(checkpoint.subject)
    store = _CheckpointStore([checkpoint.subject for checkpoint in todo], keep, done)

    def attempt(i: int, wait: bool) -> None:
        """Download checkpoint number `i` if needed and measure it, unless it is finished.

        wait   if another process is measuring it, wait until it is done; False: raise Busy
        """

        def make() -> None:
            """Get checkpoint `i` and measure it; meanwhile the next one is downloaded, unless `wait`."""
            # Waiting comes last, when the following checkpoints are measured already.
            following = None if wait else i + 1
            store.get(i, following)
            work.measure(todo[i], scale_progress(progress, i, len(todo), "checkpoint"))

        if rank_and_world()[1] > 1:
            # The processes of one torchrun job measure every checkpoint together: none may claim it alone.
            make()
        else:
            make_once(work.folders[todo[i]], make, marker=work.marker, wait=wait)

    try:
        # Checkpoints that another process is measuring are put off until the others are done.
        list(visit_busy_last(range(len(todo)), attempt))
    finally:
        store.close()


class _CheckpointStore:
    """The downloaded checkpoints of a series on this disk. The next one is downloaded while one is measured.

    Only checkpoints that the series itself downloaded (also in an earlier, interrupted start) are removed, so that at
    most `keep` of them remain. Those left of `done` checkpoints are removed at once.
    """

    def __init__(self, subjects: list[str], keep: int, done: list[str]) -> None:
        """Delete what an earlier start downloaded of the finished checkpoints `done`, and prepare to download
        `subjects`.
        """
        self.subjects, self.keep = subjects, keep
        for spent in filter(is_left_over, done):
            delete_checkpoint(spent)
        self.fetched: list[int] = []
        self.coming: dict[int, Future[None]] = {}
        # One download at a time: two would share the line and neither would be there in
        # time.
        self.pool = ThreadPoolExecutor(1)

    def get(self, i: int, following: int | None) -> None:
        """Wait until checkpoint `i` is on disk, and start to download number `following` if there is room for it."""
        self._begin(i)
        # Waits, and raises what went wrong with the download.
        self.coming[i].result()
        if self.keep > 1 and following is not None:
            self._begin(following)

    def _begin(self, i: int) -> None:
        """Start to download checkpoint number `i` in the background, after removing old ones so that at most `keep`
        remain.
        """
        if i in self.coming or i == len(self.subjects):
            return
        # What was on disk before belongs to the user, unless an interrupted start of ours left it there.
        is_ours = not is_on_disk(self.subjects[i]) or is_left_over(self.subjects[i])
        if is_ours:
            while len(self.fetched) >= self.keep:
                old = self.fetched.pop(0)
                delete_checkpoint(self.subjects[old])
                del self.coming[old]
            self.fetched.append(i)
        self.coming[i] = self.pool.submit(fetch, self.subjects[i], is_ours)

    def close(self) -> None:
        """Stop the background thread; downloads that have not begun are cancelled."""
        self.pool.shutdown(cancel_futures=True)
