"""Run folders, and the long table of results in them.

A run folder is complete when `manifest.json` exists: it is written last, and every file by a temporary name and a
rename.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from safetensors import SafetensorError

from anisoscope.errors import OutputError, is_too_long
from anisoscope.renamed import METRICS, SITES, rename_corpus, rename_described

_SUBJECT = ("run", "model", "revision", "step", "seed", "corpus")
_PLACE = (
    "stack",
    "kind",
    "layer",
    "head",
    "site",
    "token_policy",
    "metric",
    "component",
)
KEYS = (*_SUBJECT, *_PLACE)
COLUMNS = (*KEYS, "value", "low", "high", "n_vectors", "n_units")
"""Columns of the long table. `component` is null for the aggregate; `low`, `high`: ends of the 95 % interval."""
Item = TypeVar("Item")
Result = TypeVar("Result")

_INTEGERS = ("step", "seed", "layer", "head", "n_vectors", "n_units")
_NUMBERS = ("value", "low", "high")


def as_records(frame: pd.DataFrame, **constant: Any) -> pd.DataFrame:
    """Return a table with every column of the long table of results, in order and with its type.

    constant   values of columns, in place of what the table has there; columns that neither has are null
    """
    # A constant replaces what the table has; columns that nobody gives are null.
    missing = {
        name: constant.get(name)
        for name in COLUMNS
        if name in constant or name not in frame
    }
    # Types with a null: layers and heads are whole numbers that may be missing.
    kinds = dict.fromkeys(COLUMNS, "string")
    kinds |= dict.fromkeys(_INTEGERS, "Int64")
    kinds |= dict.fromkeys(_NUMBERS, "float64")
    return frame.assign(**missing)[list(COLUMNS)].astype(kinds)


def select(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Return the rows whose columns equal the given values (None: null; a list or tuple: one of them)."""
    # One copy at the end: a table has some twenty columns, and a copy of them for each condition took most of the time.
    chosen = np.ones(len(frame), dtype=bool)
    for name, value in where.items():
        column = frame[name]
        if value is None:
            matches = column.isna()
        elif isinstance(value, list | tuple):
            matches = column.isin(value)
        else:
            # A comparison with null is null, which selects no row.
            matches = (column == value).fillna(False)
        chosen &= matches.to_numpy(dtype=bool)
    return frame[chosen]


def write_atomic(path: Path, write: Callable[[Path], Any]) -> None:
    """Write to a temporary path with `write`, then rename it: `path` is complete or absent, even after a power loss.

    OutputError if it cannot be written.

    write   writes everything to the path that it is given
    """
    # With the process, so that two of them do not write into one file.
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        clear_temporary(path.parent, path.name)
        write(temporary)
        # Else the new name could reach the disk before the content.
        flush_to_disk(temporary)
        temporary.replace(path)
        flush_to_disk(path.parent)
    except (OSError, SafetensorError) as error:
        cure = "free space or choose another --output; the run stays resumable"
        raise OutputError(
            f"to write {path}", str(getattr(error, "strerror", None) or error), cure
        ) from error
    finally:
        # What went wrong above is raised, not that there is nothing to remove.
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk. Does nothing on systems that do not support it."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:  # folders cannot be opened on every system
        return
    try:
        with suppress(OSError):  # nor flushed on every file system
            os.fsync(handle)
    finally:
        os.close(handle)


def write_table(
    path: Path, frame: pd.DataFrame, *, compression: Literal["zstd", "brotli"] = "zstd"
) -> None:
    """Write a table as parquet, completely or not at all.

    compression   brotli makes files 7 % smaller than zstd, and takes ten times as long

    Floats are split into byte streams and the schema is written once: lossless, and small files for small tables.
    """
    from pyarrow import Table, parquet  # type: ignore[import-untyped]

    table = Table.from_pandas(frame, preserve_index=False)
    # Byte streams are for floats; all other columns repeat few values, which a
    # dictionary holds once.
    floats = [name for name in frame if frame[name].dtype.kind == "f"]
    options: dict[str, Any] = {
        "compression": compression,
        "compression_level": {"zstd": 15, "brotli": 11}[compression],
        "write_statistics": False,
        "use_byte_stream_split": floats,
        "use_dictionary": [name for name in frame if name not in floats],
    }

    def write(temporary: Path) -> None:
        """Write the table and its pandas metadata to this path."""
        with parquet.ParquetWriter(
            temporary, table.schema, store_schema=False, **options
        ) as file:
            file.write_table(table)
            file.add_key_value_metadata({"pandas": table.schema.metadata[b"pandas"]})

    write_atomic(path, write)


def read_table(path: Path) -> pd.DataFrame:
    """Read a table from a parquet file, with today's names; ValueError or OSError if it is damaged."""
    try:
        frame = pd.read_parquet(path)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError("what it says of its columns is damaged") from error
    return _rename_in_records(frame)


def _rename_in_records(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table in which old names of metrics, sites and corpora are replaced by today's."""
    names: dict[str, dict[str, str]] = {"metric": METRICS, "site": SITES}
    if "corpus" in frame:
        corpora = [str(corpus) for corpus in frame["corpus"].dropna().unique()]
        names["corpus"] = {
            corpus: rename_corpus(corpus)
            for corpus in corpora
            if rename_corpus(corpus) != corpus
        }
    changed = {}
    for column, today in names.items():
        # Most tables hold no old name, and large ones are not to be copied for nothing.
        if column in frame and frame[column].isin(list(today)).any():
            changed[column] = frame[column].replace(today)
    return frame.assign(**changed) if changed else frame


def write_json(path: Path, content: Any) -> None:
    """Write indented JSON, completely or not at all."""
    text = json.dumps(content, indent=1, default=str, ensure_ascii=False)
    write_atomic(path, lambda temporary: temporary.write_text(text))


def clear_temporary(folder: Path, name: str = "") -> None:
    """Remove temporary files that killed processes have left in a folder (for a file of this `name`, or for any)."""
    for path in folder.glob(f".{escape(name) or '*'}.*"):
        pid = path.name.rpartition(".")[2]
        if pid.isdigit():
            try:
                # Signal 0 only asks whether the process is alive.
                os.kill(int(pid), 0)
            except (ProcessLookupError, OverflowError):
                path.unlink(missing_ok=True)
            except PermissionError:  # of someone else, and alive
                pass


def check_output(folder: Path) -> None:
    """Raise OutputError if a folder cannot be made: at or below a file or device, or under a name that is too long."""
    try:
        if is_too_long(str(folder)):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        # The folder need not exist yet; whatever is above it decides.
        above = next(
            path for path in (folder, *folder.absolute().parents) if path.exists()
        )
    except OSError as error:
        raise OutputError(
            "a folder for --output",
            f"{folder}: {error.strerror}",
            "choose another --output",
        ) from error
    if not above.is_dir():
        what = "file" if above.is_file() else "device"
        raise OutputError(
            "a folder for --output", f"the {what} {above}", "choose another --output"
        )


class Busy(Exception):
    """Raised if another process is making the requested thing, and the caller did not want to wait."""


def make_once(
    key: Path, make: Callable[[], Any], *, marker: str = "", wait: bool = True
) -> None:
    """Make the file `key`, or the folder that is complete once it holds `marker`, unless it exists already.

    Only one process makes it at a time; others wait or, without `wait`, get Busy. `make` must leave it behind (use
    `write_atomic`, the marker last); if it does not, the next caller makes it again. An unfinished folder is given to
    `make` as it is.
    """
    # First without the lock: most calls come when it is made.
    if (key / marker).exists():
        return
    from filelock import (
        FileLock,
        Timeout,
    )  # the system lets go of a lock whose process has ended, however it ended

    key.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(key.with_name(f".{key.name}.lock"))
    try:
        lock.acquire(blocking=wait)
    except Timeout:
        raise Busy(key) from None
    try:
        # Another process may have made it while this one waited.
        if not (key / marker).exists():
            make()
    finally:
        lock.release()


def make_records_once(
    path: Path, make: Callable[[], pd.DataFrame], *, wait: bool = True
) -> pd.DataFrame:
    """Read the table in the file `path`, or let one process make it with `make`."""
    make_once(path, lambda: write_table(path, make()), wait=wait)
    return read_table(path)


def visit_busy_last(
    items: Iterable[Item], attempt: Callable[[Item, bool], Result]
) -> Iterator[Result]:
    """Call `attempt(item, wait)` for every item, and yield the results.

    Items that raise Busy (another process is making them) are tried again last, with `wait` True.
    """
    held = []
    for item in items:
        try:
            yield attempt(item, False)
        except Busy:
            held.append(item)
    yield from (attempt(item, True) for item in held)


MOST_NAMED = 6
"""Differences between two runs that an error names."""
MEASURE_AGAIN = "the run folder is damaged: measure again with --overwrite"


class RunFolder:
    """A run's folder: `records.parquet`, `manifest.json` (written last), `report.html`, `figures/`; `state.*` until it
    ends.
    """

    def __init__(self, folder: Path) -> None:
        """Name the run's files in this folder; nothing is read or written."""
        self.folder = folder
        self.manifest_path = folder / "manifest.json"
        # Of a shard, or of a run that was asked to keep them.
        self.sums_path = folder / "sums.safetensors"

    @classmethod
    def start(
        cls,
        folder: Path,
        identity: dict[str, Any],
        *,
        resume: bool,
        overwrite: bool = False,
    ) -> "RunFolder":
        """Create the folder of a run, or reopen it; OutputError if the folder belongs to something else.

        identity    everything that the run's numbers depend on; it is written into the folder
        resume      accept a folder in which a run with the same identity was begun or finished
        overwrite   delete the files of any run in the folder
        """
        run = cls(folder)
        check_output(folder)
        clear_temporary(folder)
        # A folder with an identity belongs to a run, whatever else is in it.
        if (folder / "identity.json").exists():
            if overwrite:
                run._refuse_foreign_identity(identity)
            else:
                run._refuse_other_run(identity)
                if not resume:
                    cure = "add --resume to continue, or --overwrite to start again"
                    raise OutputError(
                        f"{folder} to be new",
                        "a folder that already holds this run, unfinished or finished",
                        cure,
                    )
        elif folder.is_dir() and any(folder.iterdir()):
            raise OutputError(
                f"{folder} to be empty",
                "files that belong to no run",
                "choose another --output",
            )
        # After all refusals, when it is sure that the files are a run's.
        if overwrite:
            run.clear()
        run.note(identity)
        return run

    def _refuse_other_run(self, identity: dict[str, Any]) -> None:
        """Raise OutputError if the folder was begun with another identity; it names what differs."""
        other = self.identity() or {}
        if other == identity:
            return
        names = list_changed_fields(identity, other)
        differ = ", ".join(names[:MOST_NAMED])
        if len(names) > MOST_NAMED:
            differ += f" and {len(names) - MOST_NAMED} more"
        expected = f"{self.folder} to be new or of this run"
        raise OutputError(
            expected,
            f"another run ({differ} differ)",
            "choose another --output, or --overwrite",
        )

    def _refuse_foreign_identity(self, identity: dict[str, Any]) -> None:
        """Raise OutputError if another program wrote the folder's `identity.json`: it has none of the entries of a
        run.
        """
        try:
            other = self.identity() or {}
        except OutputError:
            # A damaged one is overwritten.
            return
        if other and identity.keys().isdisjoint(other):
            got = "an identity.json that no run has written"
            raise OutputError(
                f"{self.folder} to be new or of a run", got, "choose another --output"
            )

    def note(self, identity: dict[str, Any]) -> None:
        """Write the run's identity to `identity.json`, unless the file holds it already.

        It is called at the start, and again later in case somebody has removed the folder.
        """
        text = json.dumps(identity, indent=1, sort_keys=True)
        path = self.folder / "identity.json"
        if not path.exists() or path.read_text() != text:
            write_atomic(path, lambda temporary: temporary.write_text(text))

    def identity(self) -> dict[str, Any] | None:
        """Return the identity with which the run was started; None if none was started."""
        path = self.folder / "identity.json"
        if not path.exists():
            return None
        return _read_json(path)

    @property
    def complete(self) -> bool:
        """Return whether the run is finished: its manifest exists."""
        return self.manifest_path.exists()

    def state_path(self, rank: int = 0) -> Path:
        """Return the file in which process `rank` saves its progress."""
        return self.folder / f"state.{rank}.safetensors"

    def states(self) -> list[Path]:
        """List the state files of an unfinished run, one for each process."""
        found = self.folder.glob("state.*.safetensors")
        # The pattern fits longer names too: only state.RANK.safetensors is meant.
        return sorted(
            path
            for path in found
            if path.name.split(".")[1].isdigit() and path.name.count(".") == 2
        )

    def list_own_files(self) -> list[Path]:
        """List the files that a run writes, whether they exist or not. Other files in the folder are never touched."""
        names = ("records.parquet", "replicates.parquet", "reservoir.safetensors")
        return [
            self.manifest_path,
            *(self.folder / name for name in names),
            self.sums_path,
            *self.states(),
        ]

    def clear(self) -> None:
        """Delete the run's own files and leave all others."""
        for path in self.list_own_files():
            path.unlink(missing_ok=True)

    def finish(self, records: pd.DataFrame, manifest: dict[str, Any]) -> None:
        """Write the records, then the manifest; then delete the state files."""
        # The manifest comes after the records, since it makes the run complete;
        # progress is needed until then.
        write_table(self.folder / "records.parquet", records)
        write_json(self.manifest_path, manifest)
        for path in self.states():
            path.unlink()

    @property
    def manifest(self) -> dict[str, Any]:
        """What was measured, with which settings and from where. OutputError if the run is not finished."""
        self._check_finished()
        return _read_json(self.manifest_path)

    @property
    def records(self) -> pd.DataFrame:
        """The long table of results. OutputError if the run is not finished."""
        self._check_finished()
        return _read_records(self.folder / "records.parquet")

    def _check_finished(self) -> None:
        """Raise OutputError if the run is not finished."""
        if not self.complete:
            cure = "finish it with --resume, or name another folder"
            raise OutputError(
                f"a finished run in {self.folder}", "no manifest.json", cure
            )


def read_run(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read a finished run, or a series of checkpoints, from its folder: (records, manifest)."""
    # A series has no manifest of its own; it is made from those of its checkpoints.
    if (folder / "series.json").exists():
        return _read_series(folder)
    run = RunFolder(folder)
    return run.records, run.manifest


def _read_records(path: Path) -> pd.DataFrame:
    """Read a long table, known columns first; OutputError if it is damaged."""
    try:
        found = read_table(path)
        return found[
            # Metrics of other packages may add columns, which come last.
            [*COLUMNS, *(name for name in found.columns if name not in COLUMNS)]
        ]
    except (OSError, ValueError, KeyError) as error:
        raise OutputError(
            f"the table of a run in {path}", f"a damaged file ({error})", MEASURE_AGAIN
        ) from error


def _read_series(folder: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read all records of a series of checkpoints, and a manifest made from those of the checkpoints.

    The manifest has `checkpoints` (subject, step, seed, folder and weights of each), `skipped`, `repeated`, and the
    `warnings` of all.
    """
    described = _read_json(folder / "series.json")
    manifests = [
        RunFolder(folder / row["folder"]).manifest
        for row in described.get("checkpoints", ())
    ]
    if not manifests:
        raise OutputError(f"a series of checkpoints in {folder}", "none", MEASURE_AGAIN)
    # The last step speaks for the series: its manifest has what holds for all.
    steps = [row["step"] for row in described["checkpoints"]]
    last = manifests[steps.index(max(steps))]
    warnings: list[str] = []
    for manifest in manifests:
        warnings += manifest.get("warnings") or ()
    warnings += [
        f"{name} left out: {why}" for name, why in described.get("skipped", {}).items()
    ]
    warnings += [
        f"the same weights, bit for bit: {', '.join(names)}"
        for names in described.get("repeated", ())
    ]
    whole: dict[str, Any] = {
        "warnings": list(dict.fromkeys(warnings)),
        "seconds": sum(manifest.get("seconds") or 0 for manifest in manifests),
        # What each checkpoint left out, its own manifest says.
        "excluded": {},
    }
    return _read_records(folder / "records.parquet"), last | described | whole


def list_changed_fields(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Return the names of the fields in which two nested mappings differ, joined by dots: `code.metrics`.

    prefix   put before every name
    """
    names = []
    # Of both: an entry that one lacks differs as well.
    for key in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(key), theirs.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            names += list_changed_fields(a, b, f"{prefix}{key}.")
        elif a != b:
            names.append(f"{prefix}{key}")
    return names


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that describes a run, with today's names. OutputError if it is damaged or no object."""
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError, RecursionError) as error:
        raise OutputError(f"JSON in {path}", str(error), MEASURE_AGAIN) from error
    if not isinstance(found, dict):
        raise OutputError(
            f"a JSON object in {path}", type(found).__name__, MEASURE_AGAIN
        )
    return dict(rename_described(found))
