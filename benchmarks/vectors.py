"""What measuring a file of vectors costs, as a multiple of plain NumPy that makes the same sums block by block.

    python benchmarks/vectors.py                     # 1 M × 768 numbers of float32: 3 GB on the disk, minutes
    python benchmarks/vectors.py --count 200000

NumPy reads the file once and adds up n, Σx, Σu, Σ‖x‖, Σ‖x‖², Σu∘u in 32 groups, and Σxxᵀ and Σuuᵀ in 8 (those of every
eighth vector). Ours is the whole of `anisoscope measure FILE` but the start of Python: hash of the file, sums, sample,
spectra with intervals, records and page.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pairs import CLOCKS, keep, options, seconds, summary, told, with_threads

from anisoscope.data.vector_files import open_vectors
from anisoscope.runs.job import Job
from anisoscope.runs.vectors import run_vectors

BLOCK, GROUPS, OF_MOMENTS = 4096, 32, 8


def write(path: Path, count: int, dim: int) -> Path:
    """A file of `count` vectors drawn anew, with a mean of their own."""
    rng, x = (
        np.random.default_rng(0),
        np.lib.format.open_memmap(path, "w+", np.float32, (count, dim)),
    )
    for start in range(0, count, BLOCK):
        rows = min(BLOCK, count - start)
        x[start : start + rows] = (
            rng.standard_normal((rows, dim), dtype=np.float32) + 0.3
        )
    x.flush()
    return path


def sum_plainly(path: Path) -> dict[str, np.ndarray]:
    """The sums as one would write them: one read, blocks, groups as slices."""
    x = np.load(path, mmap_mode="r")
    dim = x.shape[1]
    sums = {name: np.zeros((GROUPS, dim)) for name in ("vector", "unit", "unit_square")}
    sums |= {name: np.zeros(GROUPS) for name in ("n", "norm", "norm_square")}
    sums |= {
        name: np.zeros((OF_MOMENTS, dim, dim)) for name in ("moment", "unit_moment")
    }
    for start in range(0, len(x), BLOCK):
        block = np.array(x[start : start + BLOCK])
        norm = np.linalg.norm(block, axis=1)
        unit = block / norm[:, None]
        for group in range(min(GROUPS, len(block))):
            rows, units, lengths = (
                block[group::GROUPS],
                unit[group::GROUPS],
                norm[group::GROUPS].astype(np.float64),
            )
            sums["n"][group] += len(rows)
            sums["norm"][group] += lengths.sum()
            sums["norm_square"][group] += np.square(lengths).sum()
            sums["vector"][group] += rows.sum(0)
            sums["unit"][group] += units.sum(0)
            sums["unit_square"][group] += np.square(units).sum(0)
        for group in range(OF_MOMENTS):
            rows, units = (
                np.ascontiguousarray(y[group::OF_MOMENTS]) for y in (block, unit)
            )
            sums["moment"][group] += rows.T @ rows
            sums["unit_moment"][group] += units.T @ units
    return sums


def measure(path: Path) -> None:
    with tempfile.TemporaryDirectory() as place:
        run_vectors(open_vectors(path), Job(), Path(place, "run"))


def compare(path: Path, pairs: int) -> dict[str, Any]:
    """Ratios of ours to the mean of NumPy before and after it, and of NumPy after to NumPy before (`bare`)."""
    ours, control, spent = [], [], []
    before = seconds(lambda: sum_plainly(path))
    for _ in range(pairs):
        between = seconds(lambda: measure(path))
        after = seconds(lambda: sum_plainly(path))
        ours.append(
            {
                clock: 2 * between[clock] / (before[clock] + after[clock])
                for clock in CLOCKS
            }
        )
        control.append({clock: after[clock] / before[clock] for clock in CLOCKS})
        spent.append(round(between["processor"], 1))
        before = after
    return summary(ours) | {"bare": summary(control), "processor s": min(spent)}


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.set_defaults(pairs=1)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=768)
    given = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as place:
        path = write(Path(place, "vectors.npy"), given.count, given.dim)
        measure(
            write(Path(place, "few.npy"), 64, given.dim)
        )  # imports, and the caches of charts
        for threads in given.threads:
            with with_threads(threads):
                found = compare(path, given.pairs)
            print(
                f"{given.count:,} × {given.dim}: {told(found)} × NumPy; NumPy again {told(found['bare'])}"
            )
            rows.append(
                {"vectors": given.count, "dim": given.dim, "threads": threads} | found
            )
    keep(given.results, "vectors", rows, ("vectors", "dim", "threads"))


if __name__ == "__main__":
    main()
