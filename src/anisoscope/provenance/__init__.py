"""Where numbers came from: a hash of the code that makes them, the commit, versions, the machine and the command.

May import: `registry`, `errors`.
"""

import hashlib
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from anisoscope.provenance.sources import find_file, hash_function, hash_modules, unwrapped
from anisoscope.registry import packages

PACKAGE = Path(__file__).resolve().parents[1]
NUMBERS = ("axes", "batch", "sums", "reads", "metrics", "models", "data", "capture", "measure", "classes")
"""Packages and modules whose code makes numbers; the others start it, or arrange, judge and show what it gave."""


def plain(x: Any) -> Any:
    """The value as JSON gives it back, so that what is kept and what is asked for compare equal."""
    return json.loads(json.dumps(x, default=str))


def run_id(*parts: Any) -> str:
    """The name of a run: a hash of settings, weights, corpus and code version."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@cache
def code_of(*modules: str, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
    """Hashes of what makes numbers in `modules` and in all that they import, by module: part of a run's identity, so
    that no run is found again once a formula has changed. Comments, docstrings and layout do not count.

    modules    full names; of this package the modules of `NUMBERS` count, of other packages that are named here, all
    leave_out  full names of modules that do not count, although they are imported
    """
    named = {name.partition(".")[0] for name in modules}

    def makes_numbers(name: str) -> bool:
        package, _, inside = name.partition(".")
        if package == PACKAGE.name:
            return inside.partition(".")[0] in NUMBERS
        return package in named and name not in leave_out

    found = hash_modules(modules, makes_numbers)
    return {name: meaning for name, meaning in found.items() if makes_numbers(name)}


def code_used(*used: Any) -> dict[str, str]:
    """Hashes of the code that makes the numbers of a run (`code_of`).

    used  full names of modules; and what was chosen at run time, which no import statement tells: functions (of
          metrics), and classes (of a model's modules, of a plan), of which those of packages that have nothing to do
          with this one are passed over
    """
    roots, typed = set[str](), dict[str, str]()
    for each in used:
        if isinstance(each, str):
            roots.add(each)
            continue
        if isinstance(each, type):
            roots |= {kind.__module__ for kind in each.__mro__ if is_ours(kind.__module__)}
            continue
        function = unwrapped(each)
        if function.__module__ != "__main__" and find_file(function.__module__) is not None:
            roots.add(function.__module__)
        else:
            typed[f"{function.__module__}.{function.__qualname__}()"] = hash_function(each)
    return code_of(*sorted(roots)) | typed


def is_ours(module: str) -> bool:
    """Whether a module is of this package, or of one that adds to it by an entry point."""
    return module.partition(".")[0] in {PACKAGE.name, *packages()}


@cache
def all_code() -> dict[str, str]:
    """Hashes of every module of this package whose code makes numbers, whether it is used or not."""
    names = []
    for first in NUMBERS:
        for path in (PACKAGE / f"{first}.py", *(PACKAGE / first).rglob("*.py")):
            if path.is_file():
                parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
                names.append(".".join(parts).removesuffix(".__init__"))
    return code_of(*names)


@cache
def code_version() -> dict[str, Any]:
    """Package version, a hash of the sources that make numbers, and the commit where the code lies in a git checkout,
    `dirty` where those sources are not as in the commit.
    """
    from anisoscope import __version__

    described = {"version": __version__, "sources": run_id(all_code())}
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


_CONFIG: dict[str, Any] = {}
"""The file of options that the command read, if it read one."""


def note_config(config: dict[str, Any]) -> None:
    """Note for manifests which options came from which file, and which of them were typed over."""
    _CONFIG.clear()
    _CONFIG.update(config)


def provenance() -> dict[str, Any]:
    """Versions of what computed the numbers, the machine's kind, and the command."""
    return {
        "command": _command(),
        "code": code_version(),
        "versions": {"python": platform.python_version()} | _versions(),
        "platform": platform.platform(),
        **({"config": dict(_CONFIG)} if _CONFIG else {}),
    }


@cache
def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "transformers", "datasets", "numpy", "scipy"):
        with suppress(PackageNotFoundError):  # those of extras
            found[name] = version(name)
    return found


def _command() -> str:
    """What was typed; nothing of a notebook, whose kernel was not."""
    name = Path(sys.argv[0]).name
    words = ["anisoscope" if name == "__main__.py" else name, *sys.argv[1:]]
    return "" if name.startswith("ipykernel") else shlex.join(words)
