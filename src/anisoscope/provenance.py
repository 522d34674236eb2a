"""Where numbers came from: a hash of the code that makes them, the commit, versions, the machine and the command."""

import hashlib
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent
NUMBERS = ("axes", "batch", "sums", "reads", "metrics", "models", "data", "capture", "measure", "classes")
"""Packages and modules whose code makes numbers; the others start it, or arrange, judge and show what it gave."""


def plain(x: Any) -> Any:
    """The value as JSON gives it back, so that what is kept and what is asked for compare equal."""
    return json.loads(json.dumps(x, default=str))


def run_id(*parts: Any) -> str:
    """The name of a run: a hash of settings, weights, corpus and code version."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@cache
def code_of(*names: str) -> dict[str, str]:
    """A hash of the source of each package or module of `names` (none given: of all `NUMBERS`): part of a run's
    identity, so that no run is found again once a formula has changed.
    """
    return {name: hash_sources(PACKAGE, name) for name in names or NUMBERS}


def hash_sources(folder: Path, *names: str) -> str:
    """A hash of the sources of some modules and packages in a folder."""
    total = hashlib.sha256()
    for name in names:
        for path in sorted((folder / name).rglob("*.py")) or [folder / f"{name}.py"]:
            total.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:12]


@cache
def code_version() -> dict[str, Any]:
    """Package version, a hash of the sources that make numbers, and the commit where the code lies in a git checkout,
    `dirty` where those sources are not as in the commit.
    """
    from anisoscope import __version__

    described = {"version": __version__, "sources": run_id(code_of())}
    return described | commit_of_sources(PACKAGE, (*NUMBERS, "runs"))


def commit_of_sources(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """The `commit` that a package's folder is at (None outside git), and `dirty` where some of its modules differ."""

    def git(*words: str) -> str | None:
        try:
            words = ("git", "-C", str(folder), *words)
            return subprocess.check_output(words, stderr=subprocess.DEVNULL, text=True, timeout=10).strip()
        except (OSError, subprocess.SubprocessError):
            return None

    commit = git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", "__init__.py") else None
    paths = [name if (folder / name).is_dir() else f"{name}.py" for name in names]
    changed = commit is not None and git("status", "--porcelain", "--", *paths)
    return {"commit": commit} | ({"dirty": True} if changed else {})


def provenance() -> dict[str, Any]:
    """Versions of what computed the numbers, the machine's kind, and the command."""
    return {
        "command": _command(),
        "code": code_version(),
        "versions": {"python": platform.python_version()} | _versions(),
        "platform": platform.platform(),
    }


@cache
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("torch", "transformers", "datasets", "numpy", "scipy")}


def _command() -> str:
    """What was typed; nothing of a notebook, whose kernel was not."""
    name = Path(sys.argv[0]).name
    words = ["anisoscope" if name == "__main__.py" else name, *sys.argv[1:]]
    return "" if name.startswith("ipykernel") else shlex.join(words)
