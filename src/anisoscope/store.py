"""The long table of results, the run folder that holds it, and where it all came from.

A run folder is complete when `manifest.json` exists: it is written last, and every file by a temporary name and a
rename.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from safetensors import SafetensorError

from anisoscope.errors import OutputError

KEYS = (
    "run",
    "model",
    "revision",
    "step",
    "seed",
    "corpus",
    "stack",
    "kind",
    "layer",
    "head",
    "site",
    "token_policy",
    "metric",
    "component",
)
COLUMNS = (*KEYS, "value", "low", "high", "n_vectors", "n_units")
"""Columns of the long table. `component` is null for the aggregate; `low` and `high` are the ends of the 95 %
interval.
"""
Item = TypeVar("Item")
Result = TypeVar("Result")

_INTEGERS = ("step", "seed", "layer", "head", "n_vectors", "n_units")
_TEXT = ("run", "model", "revision", "corpus", "stack", "kind", "site", "token_policy", "metric", "component")


def as_records(frame: pd.DataFrame, **constant: Any) -> pd.DataFrame:
    """`frame` with every column of the long table, in order and with its type; `constant` fills columns it lacks."""
    frame = frame.copy()
    for name in COLUMNS:
        if name in constant:
            frame[name] = constant[name]
        elif name not in frame:
            frame[name] = None
    for name in _INTEGERS:
        frame[name] = frame[name].astype("Int64")
    for name in _TEXT:
        frame[name] = frame[name].astype("string")
    for name in ("value", "low", "high"):
        frame[name] = frame[name].astype("float64")
    return frame[list(COLUMNS)]


def select(frame: pd.DataFrame, **where: Any) -> pd.DataFrame:
    """Rows whose columns equal the given values (None: null; a list or tuple: one of them)."""
    for name, value in where.items():
        column = frame[name]
        if value is None:
            frame = frame[column.isna()]
        elif isinstance(value, list | tuple):
            frame = frame[column.isin(value)]
        else:
            frame = frame[(column == value).fillna(False)]
    return frame


def run_id(*parts: Any) -> str:
    """The name of a run: a hash of settings, weights, corpus and code version."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@cache
def code_version() -> dict[str, Any]:
    """Package version, and the commit with a dirty flag where the code lies in a git checkout."""
    from anisoscope import __version__

    here = Path(__file__).resolve().parent

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", str(here / "store.py")) else None
    return {
        "version": __version__,
        "commit": commit,
        "dirty": bool(git("status", "--porcelain", "--", str(here))) if commit else None,
    }


def provenance() -> dict[str, Any]:
    """Versions of what computed the numbers, the machine's kind, and the command."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "datasets", "numpy", "scipy"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "code": code_version(),
        "versions": versions,
        "platform": platform.platform(),
    }


def write_atomic(path: Path, write: Callable[[Path], Any]) -> None:
    """Call `write` with a temporary path, then rename: `path` is whole or absent. OutputError on a full or read-only
    disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        temporary.replace(path)
    except (OSError, SafetensorError) as error:
        raise OutputError(
            f"to write {path}",
            str(getattr(error, "strerror", None) or error),
            "free space or choose another --output; the run stays resumable",
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _claimed(path: Path, wait: bool) -> Iterator[bool]:
    """Whether this process has the lock file `path` to itself; with `wait`, once the others have let go of it.

    The system lets go of a lock whose process has ended, however it ended.
    """
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


class Busy(Exception):
    """What was asked for is being made by another process, and the caller did not want to wait."""


def once(key: Path, make: Callable[[], Any], *, marker: str = "", wait: bool = True) -> None:
    """Make the file `key`, or the folder that is whole when it holds `marker`, unless it is there: by one process at
    a time, however many ask for it.

    `make` leaves it behind (by `write_atomic`, the marker last); where it does not, the next who asks makes it again.
    What another process is making is waited for; without `wait`, Busy. An unfinished folder is handed to `make` as is.
    """
    if (key / marker).exists():
        return
    with _claimed(key.with_name(f".{key.name}.lock"), wait) as ours:
        if not ours:
            raise Busy(key)
        if not (key / marker).exists():
            make()


def records_once(path: Path, make: Callable[[], pd.DataFrame], *, wait: bool = True) -> pd.DataFrame:
    """The table in the file `path`, which `make` gives `once`."""

    def write() -> None:
        frame = make()
        write_atomic(path, lambda temporary: frame.to_parquet(temporary, index=False))

    once(path, write, wait=wait)
    return pd.read_parquet(path)


def in_turn(items: Iterable[Item], attempt: Callable[[Item, bool], Result]) -> Iterator[Result]:
    """`attempt(item, wait)` for every item. Those that another process has in hand (Busy) come last, and are waited
    for then.
    """
    held = []
    for item in items:
        try:
            result = attempt(item, False)
        except Busy:
            held.append(item)
        else:
            yield result
    for item in held:
        yield attempt(item, True)


class RunFolder:
    """A run folder: `records.parquet`, `manifest.json` (last), `report.html`, `figures/`; `state.*` while it is under
    way.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def start(cls, folder: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool = False) -> "RunFolder":
        """A folder to write into: new or empty, or one begun with the same `identity` where `resume` is set."""
        run = cls(folder)
        if folder.is_file():
            raise OutputError("a folder for --output", f"the file {folder}", "choose another --output")
        other = run.identity()
        if other is not None and other != identity and not overwrite:
            changed = sorted(key for key in identity.keys() | other.keys() if identity.get(key) != other.get(key))
            raise OutputError(
                f"{folder} to be new or of this run",
                f"another run ({', '.join(changed)} differ)",
                "choose another --output, or --overwrite",
            )
        if other is not None and not resume and not overwrite:
            raise OutputError(
                f"{folder} to be new",
                "this very run, begun or finished",
                "add --resume to go on, or --overwrite to begin anew",
            )
        if other is None and folder.is_dir() and any(folder.iterdir()):
            raise OutputError(f"{folder} to be empty", "files that are no run", "choose another --output")
        if overwrite:
            for path in (run.manifest_path, *run.states()):
                path.unlink(missing_ok=True)
        write_atomic(
            run.folder / "identity.json", lambda path: path.write_text(json.dumps(identity, indent=1, sort_keys=True))
        )
        return run

    def identity(self) -> dict[str, Any] | None:
        path = self.folder / "identity.json"
        return _read_json(path) if path.exists() else None

    @property
    def manifest_path(self) -> Path:
        return self.folder / "manifest.json"

    @property
    def complete(self) -> bool:
        return self.manifest_path.exists()

    def state_path(self, rank: int = 0) -> Path:
        return self.folder / f"state.{rank}.safetensors"

    def states(self) -> list[Path]:
        return sorted(self.folder.glob("state.*.safetensors"))

    def finish(self, records: pd.DataFrame, manifest: dict[str, Any]) -> None:
        """Write the table, then the manifest; the state files are no longer needed."""
        write_atomic(self.folder / "records.parquet", lambda path: records.to_parquet(path, index=False))
        text = json.dumps(manifest, indent=1, default=str, ensure_ascii=False)
        write_atomic(self.manifest_path, lambda path: path.write_text(text))
        for path in self.states():
            path.unlink()

    @property
    def manifest(self) -> dict[str, Any]:
        """What was measured, with what and from where. OutputError where the run is not finished."""
        self._check_finished()
        return _read_json(self.manifest_path)

    @property
    def records(self) -> pd.DataFrame:
        """The long table. OutputError where the run is not finished."""
        self._check_finished()
        return pd.read_parquet(self.folder / "records.parquet")

    def _check_finished(self) -> None:
        if not self.complete:
            cure = "finish it with --resume, or name another folder"
            raise OutputError(f"a finished run in {self.folder}", "no manifest.json", cure)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise OutputError(
            f"JSON in {path}", str(error), "the run folder is damaged; measure again with --overwrite"
        ) from error
    if not isinstance(found, dict):
        raise OutputError(f"a JSON object in {path}", type(found).__name__, "measure again with --overwrite")
    return found


def finished_runs(root: Path) -> Iterator[RunFolder]:
    """Every complete run below a folder, found by its manifest."""
    for path in sorted(root.rglob("manifest.json")):
        if (path.parent / "records.parquet").exists():
            yield RunFolder(path.parent)
