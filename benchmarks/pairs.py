"""Pairs that take turns, two clocks, threads, and `results.json`: what all benchmarks share.

A case and its base run one after the other in one process, again and again, so that other work on the machine slows
both; a ratio is the median over pairs. Beside it stands what the same procedure gives for the base against itself.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault(
    "OMP_WAIT_POLICY", "PASSIVE"
)  # as the program has it, before torch is there
import torch
from threadpoolctl import threadpool_limits

from anisoscope.provenance import describe_environment

T = TypeVar("T")
Case = Callable[[T], object]
RESULTS = Path(__file__).with_name("results.json")
CLOCKS = {"processor": time.process_time, "wall": time.perf_counter}
"""Processor time of all threads of the process, which no neighbour lengthens but by the caches; time on the wall."""
BARE = "bare again"


def seconds(case: Callable[[], object]) -> dict[str, float]:
    """What one call takes, by clock."""
    begun = {name: clock() for name, clock in CLOCKS.items()}
    case()
    return {name: clock() - begun[name] for name, clock in CLOCKS.items()}


def against(
    base: Case[T], cases: Mapping[str, Case[T]], items: Sequence[T], pairs: int
) -> dict[str, dict[str, Any]]:
    """{case: ratios} of each case to `base`, which runs before and after it on the same item: their mean is the other
    side of the pair. `BARE` is the base against itself. One pair of each warms up and is not counted.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in (*cases, BARE)}
    spent = []
    for pair in range(-1, pairs):
        item = items[pair % len(items)]
        before = seconds(lambda: base(item))  # called at once  # noqa: B023
        for name, case in {**cases, BARE: base}.items():
            between = seconds(lambda: case(item))  # noqa: B023
            after = seconds(lambda: base(item))  # noqa: B023
            if pair >= 0:
                found[name].append(
                    {c: 2 * between[c] / (before[c] + after[c]) for c in CLOCKS}
                )
                spent.append(after)
            before = after
    base_seconds = {
        f"bare {c} s": round(statistics.median(s[c] for s in spent), 3) for c in CLOCKS
    }
    return {name: summary(each) | base_seconds for name, each in found.items()}


def summary(each: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Median and quartiles of every clock, and how many pairs there were."""
    return {"pairs": len(each)} | {
        clock: middle([one[clock] for one in each]) for clock in CLOCKS
    }


def middle(values: Sequence[float]) -> list[float]:
    """Median, lower and upper quartile."""
    quartiles = (
        statistics.quantiles(values, n=4, method="inclusive")
        if len(values) > 1
        else [values[0]] * 3
    )
    return [round(x, 4) for x in (quartiles[1], quartiles[0], quartiles[2])]


def told(entry: Mapping[str, Any], clock: str = "processor") -> str:
    """A ratio as it is printed."""
    value, low, high = entry[clock]
    return f"{value:.3f} ({low:.3f} – {high:.3f})"


def options(text: str | None, threads: str = "1") -> argparse.ArgumentParser:
    """Options that all benchmarks have."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--pairs", type=int, default=9, help="pairs of each case and its base"
    )
    parser.add_argument(
        "--threads",
        type=_numbers,
        default=_numbers(threads),
        help="with commas: one, then the other",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS,
        help="file that what was found is merged into",
    )
    return parser


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def with_threads(threads: int) -> threadpool_limits:
    """Torch and the linear algebra of NumPy and SciPy on so many threads."""
    torch.set_num_threads(threads)
    return threadpool_limits(threads)


def keep(
    path: Path, name: str, rows: Sequence[Mapping[str, Any]], key: Sequence[str]
) -> None:
    """Merge rows into a benchmark's own, a line each; one with the same values of `key` is replaced."""
    held = json.loads(path.read_text("utf-8")) if path.exists() else {}
    made = machine()
    table = {tuple(row[k] for k in key): row for row in held.get(name, [])}
    table |= {tuple(row[k] for k in key): {**row, **made} for row in rows}
    held[name] = list(table.values())
    parts = []
    for of, its in sorted(held.items()):
        lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in its)
        parts.append(f'"{of}": [\n{lines}\n]')
    path.write_text("{{\n{}\n}}\n".format(",\n".join(parts)), "utf-8")


def keep_by_threads(
    given: argparse.Namespace,
    name: str,
    measure: Callable[[], Iterable[Mapping[str, Any]]],
    key: Sequence[str],
) -> None:
    """Measure on each number of threads that was asked for, and keep the rows with that number.

    given     the options that all benchmarks have
    measure   yields the rows
    key       columns that tell rows of one number of threads apart
    """
    for threads in given.threads:
        with with_threads(threads):
            rows = [{"threads": threads, **row} for row in measure()]
        keep(given.results, name, rows, (*key, "threads"))


def machine() -> dict[str, Any]:
    """What the numbers were measured with, and how busy it was."""
    known = describe_environment()
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text("utf-8").splitlines() if cpu.exists() else []
    model = next(
        (line.partition(": ")[2] for line in lines if line.startswith("model name")),
        platform.processor(),
    )
    versions = known["versions"] | {"anisoscope": known["code"]["version"]}
    return {
        "machine": f"{model}, {os.cpu_count()} cores",
        "load": round(os.getloadavg()[0], 1),
        "versions": ", ".join(
            f"{name} {version}" for name, version in versions.items()
        ),
    }
