"""Share of 95 % intervals that hold the true value, for bounded values of corpora of 3 to 200 units. Two minutes.

python benchmarks/coverage.py                    # the table of docs/intervals.md
python benchmarks/coverage.py --units 3 8 --corpora 500

A corpus is so many units of 4 to 20 vectors around means of their own (clusters weak or strong), around a common mean
(drift none to extreme). True is the mean of a value over all corpora of a case: the bias of small corpora is no matter
of their intervals. `plain` is Student's interval of the same replicates, and how many of them leave what is possible.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope import metrics
from anisoscope.metrics import class_direction
from anisoscope.metrics.base import SHARE, Metric
from anisoscope.reads.sample import SampledVectors
from anisoscope.sums import jackknife
from anisoscope.sums.groups import Totals
from anisoscope.sums.jackknife import Bounds

Array = NDArray[np.float64]
D, GROUPS = 12, 32
CLUSTERING = {"weak": 0.1, "strong": 0.9}
"""Standard deviation of unit means, that of vectors around them being 1."""
DRIFTS = {"none": 0.0, "some": 0.3, "large": 2.0, "extreme": 20.0}
"""Length of the common mean, per dimension."""


@dataclass(frozen=True)
class Case:
    """Values of many corpora: jackknife replicates [1 + group, corpus] of one value, and what it can be at all."""

    name: str
    case: str
    units: int
    replicates: Array
    bounds: Bounds
    counted: int | None = None


def vectors(
    rng: np.random.Generator,
    units: int,
    corpora: int,
    clustering: float,
    drift: float,
    d: int = D,
) -> Array:
    """[unit, corpus, vector, dim], NaN after the end of a unit."""
    sizes = rng.integers(4, 21, units)
    centre = drift * np.linspace(0.5, 1.5, d)
    own = clustering * rng.standard_normal((units, corpora, 1, d))
    x = centre + own + rng.standard_normal((units, corpora, 20, d))
    keep = np.arange(20) < sizes[:, None]
    return np.where(keep[:, None, :, None], x, np.nan)


def sums(x: Array) -> dict[str, Array]:
    """Group sums [group, policy, corpus …] of `vectors`, corpora in the place of heads."""
    groups = min(GROUPS, len(x))
    norm = np.linalg.norm(x, axis=-1)
    u = x / norm[..., None]
    of_unit = {
        "n": np.isfinite(norm).sum(-1).astype(float),
        "unit": np.nansum(u, 2),
        "unit_square": np.nansum(u**2, 2),
        "vector": np.nansum(x, 2),
        "norm": np.nansum(norm, -1),
        "norm_square": np.nansum(norm**2, -1),
    }
    out = {}
    for name, value in of_unit.items():
        total = np.zeros((groups, *value.shape[1:]))
        np.add.at(total, np.arange(len(x)) % groups, value)
        out[name] = total[:, None]
    return out


def of_vectors(rng: np.random.Generator, units: int, corpora: int) -> Iterator[Case]:
    """Values of means and of covariances."""
    found = metrics.find_all()
    wanted = {
        "mean_cosine": ("", "between", "top_share"),
        "drift": ("", "share"),
        "norms": ("mean", "variation"),
    }
    for clustering, scale in CLUSTERING.items():
        for drift, length in DRIFTS.items():
            case = f"clusters {clustering}, drift {drift}"
            x = vectors(rng, units, corpora, scale, length)
            terms, others = (
                sums(x),
                sums(
                    vectors(rng, units, corpora, scale, length)
                    * np.linspace(1, -0.2, D)
                ),
            )
            for name, values in wanted.items():
                yield from _cases(found[name], Totals(terms), values, case, units)
            sides = {"query": terms, "key": others}
            pair = Totals(
                {
                    f"{side}.{t}": of[t]
                    for side, of in sides.items()
                    for t in ("n", "vector")
                }
            )
            yield from _cases(found["query_key"], pair, ("cosine",), case, units)
            yield from spectra(x, case, units)


def spectra(x: Array, case: str, units: int) -> Iterator[Case]:
    """Ranks, from second moments in 8 groups as a run has them."""
    groups = min(GROUPS, 8, units)
    y = np.nan_to_num(x)
    outer = np.einsum("ucti,uctj->ucij", y, y)
    terms = {
        "moment": outer,
        "moment_n": np.isfinite(x[..., 0]).sum(2).astype(float),
        "moment_vector": y.sum(2),
    }
    out = {}
    for name, value in terms.items():
        out[name] = np.zeros((groups, *value.shape[1:]))
        np.add.at(out[name], np.arange(units) % groups, value)
    names = ("effective_rank", "participation_ratio", "explained", "isoscore")
    yield from _cases(metrics.find_all()["spectrum"], Totals(out), names, case, units)


def _cases(
    metric: Metric, totals: Totals, values: tuple[str, ...], case: str, units: int
) -> Iterator[Case]:
    """Of a value with components (shares of the largest dimensions) the second."""
    for name, replicates in metric.compute(totals).items():
        if name in values:
            theta = replicates.reshape(
                len(replicates), -1, *replicates.shape[1 + len(metric.axes) :]
            )
            bounds = metric.range_of(name, totals)
            ends = [
                np.broadcast_to(end, replicates[0].shape).reshape(theta.shape[1:])
                for end in bounds
            ]
            if theta.ndim == 3:
                theta, ends = theta[..., 1], [end[..., 1] for end in ends]
            yield Case(
                f"{metric.name}.{name}".rstrip("."),
                case,
                units,
                theta,
                (ends[0], ends[1]),
            )


def shares(rng: np.random.Generator, units: int, corpora: int) -> Iterator[Case]:
    """Normalised entropy: rows of a unit share its level, which is a Beta variable near 0, in the middle, near 1."""
    groups = min(GROUPS, units)
    metric = metrics.find_all()["attention"]
    for level, (a, b) in {
        "low": (0.3, 10.0),
        "middle": (2.0, 2.0),
        "high": (40.0, 0.4),
    }.items():
        for clustering, rows in (("weak", 20), ("strong", 1)):
            n = rng.integers(4, 21, units)
            mean = rng.beta(a, b, (units, corpora, rows)).mean(2)
            value, count = np.zeros((groups, corpora)), np.zeros((groups, corpora))
            np.add.at(value, np.arange(units) % groups, mean * n[:, None])
            np.add.at(
                count,
                np.arange(units) % groups,
                np.broadcast_to(n[:, None], mean.shape).astype(float),
            )
            totals = Totals({"x": value, "n": count})
            case = f"clusters {clustering}, entropy {level}"
            bounds = metric.range_of("entropy_normalised", totals)
            yield Case(
                "attention.entropy_normalised",
                case,
                units,
                totals["x"] / totals["n"],
                bounds,
            )


OF_SAMPLES = {
    "calibrated": ("pairs_above_q95", "centred"),
    "floor": ("q90", "q95", "q99", "q999"),
}
"""Values of samples, by metric."""


def of_samples(rng: np.random.Generator, units: int, corpora: int) -> Iterator[Case]:
    """Pairs above q95(d), A after centring, and quantiles of cosines, of a sample of six vectors a unit."""
    groups = min(GROUPS, units)
    for clustering, scale in CLUSTERING.items():
        for drift, length in DRIFTS.items():
            samples = []
            for x in vectors(rng, units, corpora, scale, length)[:, :, :6].swapaxes(
                0, 1
            ):
                real = np.isfinite(x[..., 0]).ravel()
                rows = x.reshape(-1, D)[real]
                samples.append(
                    SampledVectors(
                        rows,
                        np.repeat(np.arange(units), 6)[real] % groups,
                        groups,
                        rows.mean(0),
                    )
                )
            for name, values in OF_SAMPLES.items():
                metric = metrics.find_all()[name]
                computed = [metric.compute(sample) for sample in samples]
                for value in values:
                    theta = np.stack([found[value] for found in computed], 1)
                    counted = len(samples[-1]) if value in metric.counted else None
                    case = f"clusters {clustering}, drift {drift}"
                    yield Case(
                        f"{name}.{value}",
                        case,
                        units,
                        theta,
                        metric.range_of(value, samples[-1]),
                        counted,
                    )


def of_classes(rng: np.random.Generator, units: int, corpora: int) -> Iterator[Case]:
    """AUC and nearest direction of two classes of utterances, each a unit."""
    labels = np.arange(units) % 2
    for apart, length in {"mixed": 0.0, "near": 0.5, "apart": 1.2, "far": 3.0}.items():
        side = np.where(labels == 1, length, -length)[:, None] * np.eye(D)[0]
        drawn = (rng.standard_normal((units, D)) + side for _ in range(corpora))
        theta = np.stack(
            [class_direction.separability_replicates(x, labels, 2) for x in drawn], 1
        )
        for i, name in enumerate(("auc", "nearest")):
            yield Case(
                f"class_direction.{name}",
                f"classes {apart}",
                units,
                theta[..., i],
                SHARE,
                units,
            )


def judge(case: Case) -> dict[str, Any]:
    """Coverage of both intervals, and the share of plain ones that leave what is possible."""
    defined = np.isfinite(case.replicates).all(0)
    theta = case.replicates[:, defined]
    low, high = (np.broadcast_to(end, defined.shape)[defined] for end in case.bounds)
    plain, ours = (
        jackknife.jackknife_interval(theta),
        jackknife.jackknife_interval(theta, bounds=(low, high), counted=case.counted),
    )
    true = float(theta[0].mean())
    row = {"value": case.name, "case": case.case, "units": case.units, "true": true}
    row["leaves"] = float(((plain.low < low) | (plain.high > high)).mean())
    for name, estimate in (("plain", plain), ("ours", ours)):
        row[name] = float(((estimate.low <= true) & (true <= estimate.high)).mean())
    return row


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, nargs="+", default=[3, 5, 8, 20, 60, 200])
    parser.add_argument("--corpora", type=int, default=400)
    parser.add_argument(
        "--all",
        action="store_true",
        help="every case, not only the mean and worst of each value",
    )
    options = parser.parse_args(argv)
    rng, rows = np.random.default_rng(0), []
    for units in options.units:
        few = max(20, min(options.corpora, 4000 // units))  # of what is slow
        for of, corpora in (
            (of_vectors, options.corpora),
            (shares, 1000),
            (of_samples, few),
            (of_classes, few),
        ):
            if (of is of_classes and units < 8) or (of is of_samples and units > 60):
                continue
            rows += [judge(case) for case in of(rng, units, corpora)]
    frame = pd.DataFrame(rows)
    if options.all:
        print(frame.round(3).to_string(index=False))
        return
    print(
        "| value | units | plain: mean (worst) | leaves its range | ours: mean (worst) |\n|---|---|---|---|---|"
    )
    for (value, units), part in frame.groupby(["value", "units"], sort=False):
        cells = [
            f"{part[name].mean():.3f} ({part[name].min():.3f})"
            for name in ("plain", "ours")
        ]
        print(
            f"| `{value}` | {units} | {cells[0]} | {part['leaves'].mean():.1%} | {cells[1]} |"
        )


if __name__ == "__main__":
    main()
