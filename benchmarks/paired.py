"""Share of 95 % intervals of differences between two runs that hold the true difference. A minute.

python benchmarks/paired.py                    # the table of docs/intervals.md
python benchmarks/paired.py --units 20 --corpora 100

Corpora are those of `coverage.py`: units of 4 to 20 vectors around means of their own (clusters weak or strong). The
second run sees the same units after a shift of every vector, with new noise (a model trained again), or other units.
True is the mean difference over all corpora of a case. `width` is the paired interval's as a share of the one that
takes the runs for independent.

The second table is of attention: the mean weight that four heads give to a token, whose units have a level of their
own, partly the same in all heads; of each head, and of the mean over heads.
"""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from coverage import CLUSTERING, GROUPS, D, sums, vectors
from numpy.typing import NDArray

from anisoscope import metrics
from anisoscope.metrics.base import ratio
from anisoscope.runs.differences import half_width_paired, half_width_unpaired
from anisoscope.sums.groups import Totals

Array = NDArray[np.float64]
VALUES = {"mean_cosine": ("", "between"), "drift": ("share",), "norms": ("mean",)}
DRIFT, SHIFT, TURN = 0.3, 0.05, 0.3
LEVELS = np.array([-4.0, -1.0, 0.5, 3.0])
"""Mean weight that each of four heads gives to a token, as a logit: .02 to .95."""


def second_run(
    rng: np.random.Generator, x: Array, how: str, clustering: float
) -> Array:
    """What the second run sees."""
    if how == "same units, shifted":
        return x + SHIFT
    if how == "same units, trained again":
        return x * (1 - TURN) + TURN * rng.standard_normal(x.shape) + SHIFT
    return vectors(rng, len(x), x.shape[1], clustering, DRIFT) + SHIFT


def cases(
    rng: np.random.Generator, units: int, corpora: int
) -> Iterator[dict[str, Any]]:
    """A row for each value and each way of the second run."""
    found = metrics.find_all()
    for clusters, clustering in CLUSTERING.items():
        for how in ("same units, shifted", "same units, trained again", "other units"):
            x = vectors(rng, units, corpora, clustering, DRIFT)
            first, second = (
                Totals(sums(x)),
                Totals(sums(second_run(rng, x, how, clustering))),
            )
            for name, values in VALUES.items():
                ours, theirs = found[name].compute(first), found[name].compute(second)
                for value in values:
                    pair = (
                        part[value].reshape(len(part[value]), corpora, -1)[..., 0]
                        for part in (ours, theirs)
                    )
                    where = {
                        "value": f"{name}.{value}".rstrip("."),
                        "second run": how,
                        "clusters": clusters,
                    }
                    yield (
                        where
                        | {"units": units}
                        | judge(*pair, paired=how != "other units")
                    )


def weights(
    rng: np.random.Generator, units: int, corpora: int, clustering: float
) -> Array:
    """Logits of the weight that a head gives to a token [unit, corpus, row, head], NaN after the end of a unit."""
    sizes = rng.integers(4, 21, units)
    own = rng.standard_normal((units, corpora, 1, 1)) + rng.standard_normal(
        (units, corpora, 1, len(LEVELS))
    )
    logit = (
        LEVELS
        + clustering * own
        + rng.standard_normal((units, corpora, 20, len(LEVELS)))
    )
    keep = np.arange(20) < sizes[:, None]
    return np.where(keep[:, None, :, None], logit, np.nan)


def mean_weights(logit: Array) -> Array:
    """Mean weight over rows, of all groups and without each [1 + group, corpus, head]."""
    weight = 1 / (1 + np.exp(-logit))
    groups = min(GROUPS, len(logit))
    terms = {
        "rows": np.isfinite(weight).sum(2).astype(float),
        "weight": np.nansum(weight, 2),
    }
    of_groups = {}
    for name, value in terms.items():
        of_groups[name] = np.zeros((groups, *value.shape[1:]))
        np.add.at(of_groups[name], np.arange(len(logit)) % groups, value)
    totals = Totals(of_groups)
    return ratio(totals["weight"], totals["rows"])


def cases_of_heads(
    rng: np.random.Generator, units: int, corpora: int
) -> Iterator[dict[str, Any]]:
    """A row for each head and for their mean, and each way of the second run."""
    for clusters, clustering in CLUSTERING.items():
        for how in ("same units, shifted", "same units, trained again", "other units"):
            first = weights(rng, units, corpora, clustering)
            second = weights(rng, units, corpora, clustering) + SHIFT
            if how != "other units":
                noise = rng.standard_normal(first.shape) if "again" in how else 0.0
                second = first + TURN * noise + SHIFT
            ours, theirs = mean_weights(first), mean_weights(second)
            of_heads = {
                f"head {i + 1}": (ours[..., i], theirs[..., i])
                for i in range(len(LEVELS))
            }
            for value, pair in (
                of_heads | {"mean over heads": (ours.mean(-1), theirs.mean(-1))}
            ).items():
                where = {
                    "value": value,
                    "second run": how,
                    "clusters": clusters,
                    "units": units,
                }
                yield where | judge(*pair, paired=how != "other units")


def judge(ours: Array, theirs: Array, *, paired: bool) -> dict[str, float]:
    """Coverage over corpora [1 + group, corpus], and the width beside that of independent samples."""
    differences = theirs[0] - ours[0]
    true = float(differences.mean())
    held, widths = [], []
    for i, difference in enumerate(differences):
        apart = half_width_unpaired(ours[1:, i], theirs[1:, i])
        half = (
            half_width_paired(ours[0, i], theirs[0, i], ours[1:, i], theirs[1:, i])
            if paired
            else apart
        )
        held.append(abs(difference - true) <= half)
        widths.append(half / apart)
    return {"coverage": float(np.mean(held)), "width": float(np.mean(widths))}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, nargs="+", default=[8, 20, 60, 200])
    parser.add_argument("--corpora", type=int, default=1000)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    for words, of in (
        ("hidden vectors", cases),
        ("attention of heads", cases_of_heads),
    ):
        rows = [
            row for units in options.units for row in of(rng, units, options.corpora)
        ]
        print(f"{words}:\n\n{format_table(pd.DataFrame(rows))}\n")
    print(f"{D} dimensions, {GROUPS} groups, {options.corpora} corpora a case")


def format_table(frame: pd.DataFrame) -> str:
    """Format rows of cases as Markdown: a line for each kind of second run, clusters and number of units."""
    lines = [
        "| second run | clusters | units | coverage: mean (least, most) | width |",
        "|---|---|---|---|---|",
    ]
    for (how, clusters, units), part in frame.groupby(
        ["second run", "clusters", "units"], sort=False
    ):
        ends = f"{part['coverage'].mean():.3f} ({part['coverage'].min():.3f}, {part['coverage'].max():.3f})"
        lines.append(
            f"| {how} | {clusters} | {units} | {ends} | {part['width'].mean():.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
