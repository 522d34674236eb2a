"""Lines of both distributions that each test executes: a plugin of pytest for `tools/mutants.py` (`pytest -p lines`).

LINES names the file of coverage.py to write; contexts are ids of tests, and files of tests for what a fixture that
several tests share executes. How long each test took goes into the same name with `.json`.
"""

import importlib
import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

SHARED = ("class", "module", "package", "session")
TREE = Path(__file__).parents[1]
PACKAGES = [
    str(TREE / "src" / "anisoscope"),
    str(TREE / "papers" / "src" / "anisoscope_papers"),
]
found = importlib.import_module("coverage").Coverage(
    os.environ["LINES"], source_dirs=PACKAGES, config_file=False
)
found.start()
seconds: dict[str, float] = {}
asked: list[str] = [""]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    asked[0] = item.nodeid
    found.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        found.switch_context("")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object],
) -> Generator[None, object, object]:
    if fixturedef.scope not in SHARED:
        return (yield)
    found.switch_context(asked[0].split("::")[0])
    try:
        return (yield)
    finally:
        found.switch_context(asked[0])


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[report.nodeid] = seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        seconds[report.nodeid] = float("inf")


def pytest_sessionfinish() -> None:
    found.stop()
    found.save()
    Path(os.environ["LINES"] + ".json").write_text(json.dumps(seconds))
