"""Record how numbers were made: hash of the code, commit, versions, machine and command.

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

from anisoscope.provenance.sources import find_file, hash_function, hash_modules, unwrap
from anisoscope.registry import list_packages

PACKAGE = Path(__file__).resolve().parents[1]
NUMBERS = (
    "axes",
    "batch",
    "sums",
    "reads",
    "metrics",
    "models",
    "data",
    "capture",
    "measure",
    "classes",
)
"""Packages and modules whose code makes numbers; the others start it, or arrange, judge and show what it gave."""


def json_roundtrip(x: Any) -> Any:
    """Return the value as JSON reads it back, so that saved and requested values compare equal."""
    return json.loads(json.dumps(x, default=str))


def make_run_id(*parts: Any) -> str:
    """Return a run's id: 16 hex digits of the hash of the parts (settings, weights, corpus and code version)."""
    return hashlib.sha256(
        json.dumps(parts, sort_keys=True, default=str).encode()
    ).hexdigest()[:16]


@cache
def hash_code(*modules: str, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
    """Hash the code of `modules` and of everything they import. Return a hash for each module.

    The hashes are part of a run's identity, so that a changed formula means a new run. Comments, docstrings and layout
    do not count.

    modules    full names of the modules to begin with
    leave_out  full names of modules that are not hashed, although they are imported

    Of this package, only modules in `NUMBERS` are hashed, which can change numbers; of other packages that `modules`
    names, all of them; of the rest, none.
    """
    # Other packages are hashed only if one of their modules was named.
    named = {name.partition(".")[0] for name in modules}

    def makes_numbers(name: str) -> bool:
        """Return whether a module can change numbers, so that it is hashed."""
        package, _, inside = name.partition(".")
        if package == PACKAGE.name:
            return inside.partition(".")[0] in NUMBERS
        return package in named and name not in leave_out

    # The modules to begin with are among those found even if they make no numbers.
    found = hash_modules(modules, makes_numbers)
    return {name: meaning for name, meaning in found.items() if makes_numbers(name)}


def hash_code_used(*used: Any) -> dict[str, str]:
    """Hash the code that computes the numbers of a run, as `hash_code` does.

    used  full names of modules; and what was chosen at run time, which no import statement shows: functions (of
          metrics), and classes (of a model's modules, of a plan). Classes of unrelated packages are ignored
    """
    modules: set[str] = set()
    # Functions typed into a session have no file: they are hashed themselves.
    typed: dict[str, str] = {}
    for each in used:
        if isinstance(each, str):
            modules.add(each)
            continue
        if isinstance(each, type):
            # With base classes, whose methods a class uses.
            modules.update(
                kind.__module__ for kind in each.__mro__ if is_tracked(kind.__module__)
            )
            continue
        function = unwrap(each)
        if (
            function.__module__ != "__main__"
            and find_file(function.__module__) is not None
        ):
            modules.add(function.__module__)
        else:
            typed[f"{function.__module__}.{function.__qualname__}()"] = hash_function(
                each
            )
    return hash_code(*sorted(modules)) | typed


def is_tracked(module: str) -> bool:
    """Return whether a module belongs to this package, or to one that extends it by an entry point."""
    return module.partition(".")[0] in {PACKAGE.name, *list_packages()}


@cache
def hash_all_code() -> dict[str, str]:
    """Hash every module of this package whose code can change numbers, whether it is used or not."""
    names = []
    for first in NUMBERS:
        for path in (PACKAGE / f"{first}.py", *(PACKAGE / first).rglob("*.py")):
            if path.is_file():
                parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
                names.append(".".join(parts).removesuffix(".__init__"))
    return hash_code(*names)


@cache
def describe_code_version() -> dict[str, Any]:
    """Return {`version` of the package, `sources`: hash of the code that computes numbers, `commit`}.

    `dirty` is added if the sources differ from the git commit.
    """
    from anisoscope import __version__

    described = {"version": __version__, "sources": make_run_id(hash_all_code())}
    return described | find_commit(PACKAGE, (*NUMBERS, "runs"))


def find_commit(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return {`commit`: of a package's folder, None outside git}, with `dirty` if some of its modules differ from it.

    folder   of the package
    names    its modules that are looked at
    """

    def run_git(*words: str) -> str | None:
        """Return the output of a git command; None if it fails."""
        try:
            words = ("git", "-C", str(folder), *words)
            return subprocess.check_output(
                words, stderr=subprocess.DEVNULL, text=True, timeout=10
            ).strip()
        except (OSError, subprocess.SubprocessError):
            return None

    found: dict[str, Any] = {"commit": None}
    # An installed package may lie inside a repository of something else.
    if not run_git("ls-files", "--error-unmatch", "__init__.py"):
        return found
    found["commit"] = run_git("rev-parse", "HEAD")
    # A module that is no folder is a file, which git knows by its ending.
    paths = [name if (folder / name).is_dir() else f"{name}.py" for name in names]
    if found["commit"] is not None and run_git("status", "--porcelain", "--", *paths):
        found["dirty"] = True
    return found


_CONFIG: dict[str, Any] = {}
"""The file of options that the command read, if it read one."""


def note_config(config: dict[str, Any]) -> None:
    """Record, for manifests, which options came from which configuration file.

    config  {`file`: its path, `options`: {name: value} read from it, `overrides`: those given on the command line}
    """
    _CONFIG.clear()
    _CONFIG.update(config)


def describe_environment() -> dict[str, Any]:
    """Return what a manifest says of how numbers were computed: {`command`, `code`, `versions`, `platform`}.

    `config` is added if options came from a configuration file.
    """
    described = {
        "command": _describe_command(),
        "code": describe_code_version(),
        "versions": {"python": platform.python_version()} | _find_versions(),
        "platform": platform.platform(),
    }
    if _CONFIG:
        described["config"] = dict(_CONFIG)
    return described


@cache
def _find_versions() -> dict[str, str]:
    """Return the versions of the installed libraries that compute numbers."""
    versions = {}
    for name in ("torch", "transformers", "datasets", "numpy", "scipy"):
        # Some come with extras only.
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _describe_command() -> str:
    """Return the command line; empty in a notebook, whose command line says nothing."""
    name = Path(sys.argv[0]).name
    if name.startswith("ipykernel"):
        return ""
    # This is `python -m anisoscope`.
    if name == "__main__.py":
        name = "anisoscope"
    return shlex.join([name, *sys.argv[1:]])
