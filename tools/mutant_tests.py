"""Tests of a mutant: those that execute its lines, in a fork of a process that has imported what takes long."""

import ast
import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

MORE = """transformers datasets huggingface_hub accelerate sklearn.linear_model transformers.models.bert.modeling_bert
transformers.models.gpt2.modeling_gpt2 transformers.models.llama.modeling_llama transformers.pipelines hypothesis
transformers.models.auto.modeling_auto beartype jaxtyping IPython vl_convert soundfile nbclient coverage"""
ROOT = Path(__file__).parents[1]
IMPORTED_FROM = ("src", "papers/src", "tests", "tools", "papers/tests", "papers/tools")
"""Folders of a tree that Python imports from: of the tool and of the papers."""
OURS = ("anisoscope", "anisoscope_papers")
"""Packages that a fork imports itself, out of its own tree."""
TESTS_IN = ("tests", "papers/tests")
"""Folders of a tree that hold files of tests."""
STARTING = 20
"""Seconds that a fork has to begin with, before its tests."""


def import_slow() -> None:
    """What tests import that is not ours, and the server that begins interpreters."""
    quick = importlib.import_module("quick")
    quick.quick()
    for name in [*quick.IMPORTED.split(), *MORE.split()]:
        try:
            importlib.import_module(name)
        except ImportError:
            print(f"not imported beforehand: {name}")
    if ours := sorted(name for name in sys.modules if name.partition(".")[0] in OURS):
        raise RuntimeError(
            f"{ours[0]} is imported already: every fork would test it, and not the mutant"
        )


def in_fork(
    tree: Path, arguments: list[str], seconds: float, *, lines: Path | None = None
) -> tuple[int | None, str]:
    """Exit code of pytest in the copy of the tree (None: it took too long), and the first test that failed."""
    told, folder = tree.parent / "failed", tree.parent / "tmp"
    told.write_text("")
    pid = os.fork()
    if pid == 0:
        os.setsid()
        code = 70
        try:
            code = _pytest(tree, arguments, told, folder, lines)
        finally:
            os._exit(code)
    end, status = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.01)
    else:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    in_time = time.monotonic() < end
    if in_time:
        with contextlib.suppress(ProcessLookupError):  # what the tests began
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    return os.waitstatus_to_exitcode(status) if in_time else None, told.read_text()


def _pytest(
    tree: Path, arguments: list[str], told: Path, folder: Path, lines: Path | None
) -> int:
    output = os.open(tree.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(output, number)
    os.chdir(tree)
    own = [str(tree / name) for name in IMPORTED_FROM]
    theirs = {str(ROOT / name) for name in IMPORTED_FROM}
    sys.path[:] = [*own, *(each for each in sys.path if each not in theirs)]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    common = [
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        f"--basetemp={folder}",
        *(["-p", "lines"] if lines else []),
    ]
    if lines:
        os.environ["LINES"] = str(lines)
    import pytest

    return int(pytest.main([*common, *arguments], plugins=[_First(told)]))


class _First:
    """Writes down the test that fails first."""

    def __init__(self, told: Path) -> None:
        self.told = told

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.told.read_text():
            self.told.write_text(report.nodeid)


@dataclass
class Tests:
    """Which tests execute a line, and how long each takes; `broken`: fail without a mutant."""

    lines: dict[str, dict[int, set[str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(set))
    )
    seconds: dict[str, float] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def add(self, data: Path) -> None:
        """What the plugin `lines` wrote."""
        coverage = importlib.import_module("coverage")
        self.seconds |= json.loads(data.with_suffix(".json").read_text())
        read = coverage.CoverageData(str(data))
        read.read()
        for file in read.measured_files():
            module = path_in_tree(file)
            for line, contexts in read.contexts_by_lineno(file).items():
                self.lines[module][line] |= set(contexts)

    def of(
        self, module: str, lines: range, named: str, outside: str = ""
    ) -> tuple[list[str], bool]:
        """Tests that execute one of the lines, and whether any does; with those of the named files where the lines are
        the whole module; where none does those of its module and the named files, or those that see it from `outside`.
        """
        found = {test for line in lines for test in self.lines[module][line]} - {""}
        if not (executed := bool(found)):
            near = {test for tests in self.lines[module].values() for test in tests} - {
                ""
            }
            found = set() if outside else near
        if not executed or lines.start == 1:
            names = (outside or named).split()
            found |= {
                f"{folder}/test_{name}.py" for folder in TESTS_IN for name in names
            }
        files = {each for each in found if "::" not in each}
        tests = [
            t
            for t, took in self.seconds.items()
            if took < 300 and (t in found or t.split("::")[0] in files)
        ]
        return [test for test in tests if test not in self.broken], executed

    def ordered(self, tests: list[str], budget: float) -> list[str]:
        """So many that `budget` seconds do: the quickest first, of a test with many parameters each in its turn. They
        stand file by file, as what the tests of a file share is made anew whenever it is begun.
        """
        turn: dict[str, int] = {}
        order = []
        for test in sorted(tests, key=lambda test: self.seconds[test]):
            name = test.partition("[")[0]
            order.append((turn.get(name, 0) // 4 * 0.5 + self.seconds[test], test))
            turn[name] = turn.get(name, 0) + 1
        chosen: list[str] = []
        spent = 0.0
        for _, test in sorted(order):
            if chosen and spent + self.seconds[test] > budget:
                continue
            chosen.append(test)
            spent += self.seconds[test]
        files: dict[str, list[str]] = defaultdict(list)
        for test in chosen:
            files[test.split("::")[0]].append(test)
        return [
            t
            for f in sorted(
                files, key=lambda f: sum(map(self.seconds.__getitem__, files[f]))
            )
            for t in files[f]
        ]


def lines_of(source: str, line: int) -> range:
    """Lines whose tests see a change at one: those of its statement, of one with a body its head alone; of the head of
    a function the whole function; the whole module for what stands in no function, as its import alone executes it.
    """
    found, inside = range(1, source.count("\n") + 2), False
    for node in ast.walk(ast.parse(source)):  # what holds others comes before them
        first = min(
            [each.lineno for each in getattr(node, "decorator_list", ())],
            default=getattr(node, "lineno", 0),
        )
        if not isinstance(node, ast.stmt) or not first <= line <= (
            last := node.end_lineno or first
        ):
            continue
        body = getattr(node, "body", None)
        head = range(first, max(body[0].lineno if body else last + 1, first + 1))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found, inside = range(first, last + 1), line not in head
        elif inside and line in head:
            found = head
    return found


def digest(paths: Iterable[Path]) -> str:
    """Of the contents of files."""
    return sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[
        :12
    ]


def path_in_tree(file: str) -> str:
    """The path of a module of either distribution from the top of its tree."""
    for package in ("papers/src/anisoscope_papers/", "src/anisoscope/"):
        if package in file:
            return file[file.rindex(package) :]
    raise ValueError(f"{file} is in neither distribution")


def mapped(tree: Path, kept: Path, only: Collection[str] = ()) -> Tests:
    """Lines and tests of a tree; what `kept` has of a file of tests, for the same source, is not run again. `only`:
    names of the files of tests that are looked at, without `test_`; none: all.
    """
    source = digest(
        path
        for folder in ("src", "papers/src")
        for path in (tree / folder).rglob("*.py")
    )
    tests = Tests()
    files = [
        file
        for folder in TESTS_IN
        for file in sorted((tree / folder).glob("test_*.py"))
    ]
    for file in files:
        if only and file.stem.removeprefix("test_") not in only:
            continue
        data = kept / f"{file.stem}-{digest([file])}-{source}"
        if not data.with_suffix(".json").exists():
            kept.mkdir(parents=True, exist_ok=True)
            code, _ = in_fork(tree, ["--maxfail=1000", str(file)], 1200, lines=data)
            print(f"{file.name}: its lines, pytest ended with {code}", flush=True)
        if data.with_suffix(".json").exists():
            tests.add(data)
    return tests


@dataclass
class Trial:
    """Tries mutants in a tree, one after the other."""

    tree: Path
    tests: Tests
    named: Callable[[str], str]
    outside: Mapping[str, str]
    budget: float
    sound: set[str] = field(default_factory=set)

    def __call__(self, module: str, line: int, text: str) -> dict[str, Any]:
        """How it ended: the test that killed it (`""` where it survives), and how many looked at it."""
        path = self.tree / module
        before = path.read_text("utf-8")
        found, executed = self.tests.of(
            module,
            lines_of(before, line),
            self.named(module),
            self.outside.get(module, ""),
        )
        while True:
            chosen = self.tests.ordered(found, self.budget)
            if not chosen:
                return {"killer": "", "tests": 0, "executed": False}
            killer = self._killer(path, text, chosen)
            if (
                not killer
                or killer in self.sound
                or self._passes_without(killer, chosen)
            ):
                return {"killer": killer, "tests": len(chosen), "executed": executed}
            self.tests.broken.add(killer)
            found = [test for test in found if test != killer]

    def _killer(self, path: Path, text: str, chosen: list[str]) -> str:
        before = path.read_text("utf-8")
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            stale.unlink()
        path.write_text(text, "utf-8")
        try:
            code, failed = in_fork(self.tree, chosen, self._limit(chosen))
        finally:
            path.write_text(before, "utf-8")
            for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
                stale.unlink()
        return failed or {None: "time", 0: "", 5: ""}.get(code, f"collection, {code}")

    def _passes_without(self, killer: str, chosen: list[str]) -> bool:
        """Whether what saw the mutant passes in the tree as it is."""
        if killer == "time" or killer.startswith("collection"):
            code, _ = in_fork(self.tree, chosen, self._limit(chosen))
            return code == 0
        code, _ = in_fork(self.tree, [killer], self._limit([killer]))
        if code == 0:
            self.sound.add(killer)
        return code == 0

    def _limit(self, chosen: list[str]) -> float:
        return STARTING + 5 * sum(self.tests.seconds[test] for test in chosen)


def written(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of a file of results."""
    if path.exists():
        yield from map(json.loads, path.read_text("utf-8").splitlines())
