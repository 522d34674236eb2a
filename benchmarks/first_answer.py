"""Seconds from the start of the first command until what was found stands on a terminal, and until the report is drawn.

    python benchmarks/first_answer.py [times]

Two threads, a pseudo-terminal of 80 columns, the documentation of the standard library; the
first run warms the caches and is not counted.
"""

import argparse
import os
import pty
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from pairs import RESULTS, keep
from program import watched

COMMAND = "measure builtin:minilm --corpus builtin:python-docs --limit 60 --overwrite"
FOUND, DRAWN = "nisotropic from", b"report: "


def timed(folder: Path) -> tuple[float, float]:
    """Seconds until the first sentence stands, and until the end."""
    started = time.monotonic()
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {
            "OMP_NUM_THREADS": "2",
            "TERM": "xterm-256color",
            "COLUMNS": "80",
        }
        os.execv(
            sys.executable,
            [
                sys.executable,
                "-m",
                "anisoscope",
                *COMMAND.split(),
                "--output",
                str(folder),
            ],
        )
    found: list[float] = []
    code, shown = watched(
        pid, fd, 300, stop_at=FOUND, at=lambda: found.append(time.monotonic() - started)
    )
    assert code == 0, shown.decode(errors="replace")
    assert found and DRAWN in shown, "no finding"
    return found[0], time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("times", nargs="?", type=int, default=3)
    times: int = parser.parse_args().times
    with tempfile.TemporaryDirectory() as place:
        runs = [timed(Path(place, "run")) for _ in range(times + 1)][1:]
    load, rows = os.getloadavg()[0], []
    for name, values in zip(
        ("finding", "report"), zip(*runs, strict=True), strict=True
    ):
        middle, low, high = (
            round(x, 1) for x in (statistics.median(values), min(values), max(values))
        )
        print(f"{name}: {middle} s (of {times}: {low} to {high}; load {load:.1f})")
        rows.append({"until": name, "times": times, "seconds": [middle, low, high]})
    keep(RESULTS, "first_answer", rows, ("until",))


if __name__ == "__main__":
    main()
