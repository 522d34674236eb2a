"""Two processes of torchrun give the run that one process gives, and each tokenises its share of the texts."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import program
import pytest
import tiny
from quick import WARM, quick

from anisoscope.measure import distributed
from anisoscope.measure.settings import Settings
from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import RunFolder

TEXT = "\n\n".join(
    f"Document {i} says that {' and '.join(str(j) for j in range(i, 5 * i + 9))}."
    for i in range(24)
)
SCRIPT = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_distributed import job
from transformers import PreTrainedTokenizerBase as Tokenizer
from anisoscope.runs.run import run
call, read = Tokenizer.__call__, []
def counting(self, texts, **options):
    read.extend(text for text in texts if text.startswith("Document"))
    return call(self, texts, **options)
Tokenizer.__call__ = counting
run(job(sys.argv[1], sys.argv[4]), Path(sys.argv[2]))
Path(sys.argv[1]).with_name("read-" + os.environ["RANK"]).write_text(" ".join(text.split()[1] for text in read))
threads = [file.read_text() for file in Path("/proc/self/task").glob("*/comm")]  # none but on Linux
assert not [name for name in threads if "gloo" in name], "a thread of the group lives on, and may abort the exit"
"""


def job(corpus: str, model: str) -> Job:
    metrics = (
        "mean_cosine",
        "drift",
        "query_key",
        "attention",
        "calibrated",
        "centred_attention",
    )
    metrics += ("massive", "sinks", "logits", "matrix_entropy", "kurtosis")
    settings = Settings(metrics=metrics, sample=64)
    # In float64: matrix products in float32 need not repeat to the last bit from one process to the next.
    return Job(
        model,
        corpus=corpus,
        dtype="float64",
        settings=settings,
        max_length=24,
        batch_tokens=96,
    )


def test_torchrun_equals_one_process(tmp_path: Path) -> None:
    corpus, script = tmp_path / "corpus.txt", tmp_path / "script.py"
    corpus.write_text(TEXT)
    script.write_text(SCRIPT)
    model = tiny.small_encoder()
    alone = run(job(str(corpus), model), tmp_path / "one").records
    launcher = [
        *quick(),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--no-python",
    ]
    words = [
        *quick(WARM),
        str(script),
        str(corpus),
        str(tmp_path / "two"),
        str(Path(__file__).parent),
        model,
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launcher, *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env=env,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    read = [(tmp_path / f"read-{rank}").read_text().split() for rank in (0, 1)]
    assert [len(part) for part in read] == [12, 12] and len(
        {*read[0], *read[1]}
    ) == 24, "each text by one process"
    together = RunFolder(tmp_path / "two").records
    keys = [
        "stack",
        "kind",
        "layer",
        "head",
        "site",
        "token_policy",
        "metric",
        "component",
    ]
    both = alone.merge(together, on=keys, suffixes=("", "_two"), validate="1:1")
    assert len(both) == len(alone) == len(together)
    for name in ("value", "low", "high"):
        ours, theirs = both[name].to_numpy(float), both[f"{name}_two"].to_numpy(float)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


def test_a_signal_is_heard_while_a_process_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that had loaded heard none until all had, and waited on for those that had ended."""

    class Heard(Exception):
        pass

    def hear(*_: object) -> None:
        raise Heard

    monkeypatch.setattr(
        distributed.dist,
        "init_process_group",
        lambda *_, **__: pytest.fail("nothing is heard in it"),
    )
    before = signal.signal(signal.SIGALRM, hear)
    with program.job(2) as (first, _):
        for name, value in first.items():
            monkeypatch.setenv(name, value)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            with pytest.raises(Heard), distributed.open_process_group():
                pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)


CONNECTING = """
import os, signal, threading
from anisoscope.measure import distributed
from anisoscope.progress import exit_on_sigterm
distributed._wait_for_all = lambda *_: None  # as if the other had come, and ended just then
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
with exit_on_sigterm(), distributed.open_process_group():
    pass
"""


def test_a_process_ends_while_it_connects_to_one_that_has_ended(tmp_path: Path) -> None:
    """It waited for the other, for up to a week, since handlers of Python are not run while a backend connects."""
    script = tmp_path / "connecting.py"
    script.write_text(CONNECTING)
    with program.job(2) as (first, _):
        env = {**os.environ, **first}
        words = [sys.executable, str(script)]
        done = subprocess.run(
            words, capture_output=True, timeout=60, check=False, env=env
        )
    assert done.returncode in (-signal.SIGTERM, 128 + signal.SIGTERM), done.stderr[
        -2000:
    ]
