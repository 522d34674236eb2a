"""The command line: help with an example, errors in one line with their exit code, interruption and resume."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMANDS = ("measure", "merge", "report", "compare", "reproduce", "list")
RUN = [sys.executable, "-m", "anisoscope"]
ENV = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RUN, *words], capture_output=True, text=True, timeout=200, check=False, env=ENV)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    done = call(command, "--help")
    assert done.returncode == 0
    assert f"Example: anisoscope {command}" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["measur"], 2, "Did you mean 'measure'"),
        (["measure", "--shard", "3/2"], 2, "1 ≤ I ≤ N"),
        (["list", "metric"], 2, "did you mean metrics?"),
        (["measure", "builtin:minilmm"], 3, "did you mean builtin:minilm?"),
        (["reproduce", "godey2024", "--only", "fig99"], 2, "figures or tables of godey2024"),
        (["report", "/nonexistent"], 6, "no manifest.json"),
    ],
)
def test_errors_are_one_line_with_a_cure(words: list[str], code: int, text: str) -> None:
    done = call(*words)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("\n\n".join(f"Paragraph {i} of a text that goes on for a while. " * 30 for i in range(60)))
    return path


def _measure(corpus: Path, output: Path, *more: str) -> list[str]:
    words = ["measure", "--corpus", str(corpus), "--output", str(output), "--panel", "hidden", "--sample", "16"]
    return [*RUN, *words, "--batch-tokens", "64", "--max-length", "64", "--quiet", *more]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_run_that_goes_on(corpus: Path, tmp_path: Path, number: signal.Signals) -> None:
    output = tmp_path / "run"
    process = subprocess.Popen(_measure(corpus, output), stderr=subprocess.PIPE, text=True, env=ENV)
    while not (output / "identity.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 128 + number, talk
    assert "--resume goes on" in talk
    assert (output / "state.0.safetensors").exists()
    if number == signal.SIGINT:
        return
    again = subprocess.run(_measure(corpus, output), capture_output=True, text=True, check=False, env=ENV)
    assert again.returncode == 6
    assert "add --resume" in again.stderr
    done = subprocess.run(_measure(corpus, output, "--resume"), capture_output=True, text=True, check=False, env=ENV)
    assert done.returncode == 0, done.stderr
    assert (output / "report.html").exists()
    assert not (output / "state.0.safetensors").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_reproduction_with_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    words = ["reproduce", "godey2024", "--only", "fig6", "--output", str(tmp_path), "--quiet"]
    env = ENV | {"OMP_NUM_THREADS": "2"}
    process = subprocess.Popen([*RUN, *words], stderr=subprocess.PIPE, text=True, env=env, start_new_session=True)
    while not (pieces := _workers(process.pid)):
        assert process.poll() is None
        time.sleep(0.1)
    (os.killpg if number == signal.SIGINT else os.kill)(process.pid, number)  # Ctrl-C reaches all, kill only one
    _, talk = process.communicate(timeout=60)
    assert process.returncode == (130 if number == signal.SIGINT else -number), talk
    assert number == signal.SIGTERM or "Traceback" not in talk
    until = time.monotonic() + 60
    while any(Path(f"/proc/{piece}").exists() for piece in pieces) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{piece}").exists() for piece in pieces)


def _workers(parent: int) -> list[int]:
    """Processes begun by `parent` to work for it."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    found = [int(word) for word in children.read_text().split()] if children.exists() else []
    return [pid for pid in found if b"--multiprocessing-fork" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_a_full_disk_is_told_and_leaves_no_half_run(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    done = subprocess.run(
        _measure(corpus, output, "--limit", "2"),
        capture_output=True,
        text=True,
        check=False,
        env=ENV,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )
    assert done.returncode == 6, done.stderr
    assert "Cure: free space" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (output / "manifest.json").exists()
