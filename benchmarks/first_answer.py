"""Seconds from the start of the first command until what was found stands on a terminal, and until the report is drawn.

    python benchmarks/first_answer.py [times]

Two threads, a pseudo-terminal of 80 columns, the documentation of the standard library; the
first run warms the caches and is not counted.
"""

import os
import pty
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from program import watched

COMMAND = "measure builtin:minilm --corpus builtin:python-docs --limit 60 --overwrite"
FOUND, DRAWN = "nisotropic from", b"report: "


def timed(folder: Path) -> tuple[float, float]:
    """Seconds until the first sentence stands, and until the end."""
    started = time.monotonic()
    pid, fd = pty.fork()
    if pid == 0:
        os.environ |= {"OMP_NUM_THREADS": "2", "TERM": "xterm-256color", "COLUMNS": "80"}
        os.execv(sys.executable, [sys.executable, "-m", "anisoscope", *COMMAND.split(), "--output", str(folder)])
    found: list[float] = []
    code, shown = watched(pid, fd, 300, stop_at=FOUND, at=lambda: found.append(time.monotonic() - started))
    assert code == 0, shown.decode(errors="replace")
    assert found and DRAWN in shown, "no finding"
    return found[0], time.monotonic() - started


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as place:
        runs = [timed(Path(place, "run")) for _ in range(times + 1)][1:]
    load = os.getloadavg()[0]
    for name, values in zip(("finding", "report"), zip(*runs, strict=True), strict=True):
        spread = f"of {times}: {min(values):.1f} to {max(values):.1f}; load {load:.1f}"
        print(f"{name}: {statistics.median(values):.1f} s ({spread})")


if __name__ == "__main__":
    main()
