"""What the papers add to the command line: errors in one line, light help, and processes that end with it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_cli import ENV, RUN, call, check_error, check_light

from anisoscope_papers import runner, study_names

TYPOS = [
    (
        ["train", "masked-lm", "--rate", "fast"],
        2,
        "expected a number for --rate; got 'fast'. Cure: give one of at least 0",
    ),
    (
        ["train", "masked-lm", "--dropout", "nan"],
        2,
        "expected a finite --dropout; got nan. Cure: change --dropout",
    ),
    (
        ["train", "masked-lm", "--seed", str(-(1 << 70))],
        2,
        "expected --seed of at least 0",
    ),
    (
        ["reproduce", "godey2024", "--only", "fig1\n"],
        2,
        r"expected --only without control characters",
    ),
    (["measure", "bert-bse"], 3, "did you mean bert-base"),
    (["classes", "--corpus", "yelphatt"], 4, "did you mean yelphat"),
    (["train", "masked-lm", "--preset", "tinny"], 2, "did you mean tiny?"),
    (["train", "classifier", "--penalty", "entrpy"], 2, "did you mean entropy"),
    (["train", "classifier", "--penalty-layers", "one"], 2, "as 1,2; or all"),
    (["train", "clasifier"], 2, "got 'clasifier'. Cure: did you mean classifier?"),
    (["reproduce", "godey"], 2, "did you mean godey2024?"),
    (
        ["reproduce", "godey2024", "--only", "fig99"],
        2,
        "figures or tables of godey2024",
    ),
    (["reproduce", "godey2024", "--only", ","], 2, "leave --only out for all"),
    (["reproduce", "godey2024", "--settings", "quik"], 2, "did you mean quick?"),
]


@pytest.mark.parametrize("command", ["reproduce", "train"])
def test_help_has_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.returncode == 0
    assert f"Example: anisoscope {command}" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "code", "text"),
    TYPOS,
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_errors_are_one_line_with_a_cure_before_anything_heavy_is_loaded(
    words: list[str], code: int, text: str
) -> None:
    check_error(words, code, text)


LIGHT = [
    ["list", "studies"],
    ["reproduce", "--help"],
    ["train", "--help"],
    ["train", "classifier", "--help"],
]


@pytest.mark.parametrize("words", LIGHT, ids=" ".join)
def test_what_is_only_looked_up_loads_nothing_heavy(words: list[str]) -> None:
    check_light(words, "anisoscope_papers.runner")


def test_what_is_listed_is_what_there_is() -> None:
    """The list is read from files, without importing what it study_names."""
    studies = [
        (s.paper, s.name, s.title, list(s.settings)) for s in runner.find_studies()
    ]
    assert study_names.list_studies() == studies, (
        "settings = [...] of a study stand in its published.toml"
    )


# `test_terminal_of_papers.py` presses Ctrl-C in a reproduction
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)],
)
def test_a_signal_ends_a_reproduction_with_its_processes(
    tmp_path: Path, number: signal.Signals
) -> None:
    words = [
        "reproduce",
        "godey2024",
        "--only",
        "fig6",
        "--output",
        str(tmp_path),
        "--quiet",
    ]
    env = ENV | {"OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(
        [*RUN, *words],
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        start_new_session=True,
    )
    while not (pieces := _workers(process.pid)):
        assert process.poll() is None
        time.sleep(0.1)
    (os.killpg if number == signal.SIGINT else os.kill)(
        process.pid, number
    )  # Ctrl-C reaches all, kill only one
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 128 + number, talk
    assert "Traceback" not in talk and talk.strip().splitlines()[-1].startswith(
        "anisoscope: interrupted; "
    )
    until = time.monotonic() + 60
    while (
        any(Path(f"/proc/{piece}").exists() for piece in pieces)
        and time.monotonic() < until
    ):
        time.sleep(0.1)
    assert not any(Path(f"/proc/{piece}").exists() for piece in pieces)


def _workers(parent: int) -> list[int]:
    """Processes begun by `parent` to work for it."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    found = (
        [int(word) for word in children.read_text().split()]
        if children.exists()
        else []
    )
    return [
        pid
        for pid in found
        if b"--multiprocessing-fork" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
