"""Share of 95 % intervals of differences between two runs that hold the true difference. A minute.

python benchmarks/paired.py                    # the table of docs/intervals.md
python benchmarks/paired.py --units 20 --corpora 100

Corpora are those of `coverage.py`: units of 4 to 20 vectors around means of their own (clusters weak or strong). The
second run sees the same units after a shift of every vector, with new noise (a model trained again), or other units.
True is the mean difference over all corpora of a case. `width` is the paired interval's as a share of the one that
takes the runs for independent.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from coverage import CLUSTERING, GROUPS, D, sums, vectors
from numpy.typing import NDArray

from anisoscope import metrics
from anisoscope.runs.differences import half_width_paired, half_width_unpaired
from anisoscope.sums.groups import Totals

Array = NDArray[np.float64]
VALUES = {"mean_cosine": ("", "between"), "drift": ("share",), "norms": ("mean",)}
DRIFT, SHIFT, TURN = 0.3, 0.05, 0.3


def second_run(rng: np.random.Generator, x: Array, how: str, clustering: float) -> Array:
    """What the second run sees."""
    if how == "same units, shifted":
        return x + SHIFT
    if how == "same units, trained again":
        return x * (1 - TURN) + TURN * rng.standard_normal(x.shape) + SHIFT
    return vectors(rng, len(x), x.shape[1], clustering, DRIFT) + SHIFT


def cases(rng: np.random.Generator, units: int, corpora: int) -> Iterator[dict[str, Any]]:
    """A row for each value and each way of the second run."""
    found = metrics.find_all()
    for clusters, clustering in CLUSTERING.items():
        for how in ("same units, shifted", "same units, trained again", "other units"):
            x = vectors(rng, units, corpora, clustering, DRIFT)
            first, second = Totals(sums(x)), Totals(sums(second_run(rng, x, how, clustering)))
            for name, values in VALUES.items():
                ours, theirs = found[name].compute(first), found[name].compute(second)
                for value in values:
                    pair = (part[value].reshape(len(part[value]), corpora, -1)[..., 0] for part in (ours, theirs))
                    where = {"value": f"{name}.{value}".rstrip("."), "second run": how, "clusters": clusters}
                    yield where | {"units": units} | judge(*pair, paired=how != "other units")


def judge(ours: Array, theirs: Array, *, paired: bool) -> dict[str, float]:
    """Coverage over corpora [1 + group, corpus], and the width beside that of independent samples."""
    differences = theirs[0] - ours[0]
    true = float(differences.mean())
    held, widths = [], []
    for i, difference in enumerate(differences):
        apart = half_width_unpaired(ours[1:, i], theirs[1:, i])
        half = half_width_paired(ours[0, i], theirs[0, i], ours[1:, i], theirs[1:, i]) if paired else apart
        held.append(abs(difference - true) <= half)
        widths.append(half / apart)
    return {"coverage": float(np.mean(held)), "width": float(np.mean(widths))}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, nargs="+", default=[8, 20, 60, 200])
    parser.add_argument("--corpora", type=int, default=1000)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    rows = []
    for units in options.units:
        rows += cases(rng, units, options.corpora)
    frame = pd.DataFrame(rows)
    print("| second run | clusters | units | coverage: mean (least, most) | width |\n|---|---|---|---|---|")
    for (how, clusters, units), part in frame.groupby(["second run", "clusters", "units"], sort=False):
        ends = f"{part['coverage'].mean():.3f} ({part['coverage'].min():.3f}, {part['coverage'].max():.3f})"
        print(f"| {how} | {clusters} | {units} | {ends} | {part['width'].mean():.2f} |")
    print(f"\n{D} dimensions, {GROUPS} groups, {options.corpora} corpora a case")


if __name__ == "__main__":
    main()
