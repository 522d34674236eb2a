"""Intervals of the spectrum from derivatives of eigenvalues, compared with intervals that leave groups out.

    python benchmarks/spectrum_intervals.py                    # built-in encoder, then random vectors: a minute
    python benchmarks/spectrum_intervals.py --dims 768

We compute all eigenvalues again without each group in turn. To first order, eigenvalue i without a group is vᵢᵀCvᵢ: C
is the covariance without that group, vᵢ the eigenvector of the whole. So one decomposition with vectors is enough, and
a product for each group. `widths` are half-widths of intervals, as a multiple of those that leave groups out: the
smallest and largest over layers. `processor` is the time of the derivatives, as a multiple of that of leaving out.

Leaving out computes the centred and the uncentred spectrum by one reduction to a tridiagonal matrix. `separate` is the
time with a decomposition for each, as a multiple of that.
"""

from collections.abc import Sequence

import numpy as np
import torch
from pairs import against, keep, options, with_threads

import anisoscope
from anisoscope.metrics import spectrum
from anisoscope.metrics.base import Array, ratio
from anisoscope.sums.groups import Totals

GROUPS = 8
VALUES = (
    "effective_rank",
    "effective_rank_eigenvalues",
    "participation_ratio",
    "isoscore",
)


def differentiate(totals: Totals) -> dict[str, Array]:
    """Return the values of `metrics.spectrum` [replicate, …] with eigenvalues without a group to first order."""
    n = totals["moment_n"]
    mean = ratio(totals["moment_vector"], n[..., None])
    uncentred = ratio(totals["moment"], n[..., None, None])
    eigenvalues = approximate(uncentred - mean[..., :, None] * mean[..., None, :])
    share = ratio(eigenvalues, eigenvalues.sum(-1, keepdims=True))
    return {
        "effective_rank": spectrum._compute_entropy_rank(np.sqrt(eigenvalues)),
        "effective_rank_eigenvalues": spectrum._compute_entropy_rank(eigenvalues),
        "effective_rank_uncentred": spectrum._compute_entropy_rank(
            np.sqrt(approximate(uncentred))
        ),
        "participation_ratio": 1 / (share**2).sum(-1),
        "isoscore": spectrum.isoscore(eigenvalues),
    }


def approximate(matrices: Array) -> Array:
    """Return eigenvalues: those of the first matrix exactly, those of the others to first order around it."""
    exact, vectors = np.linalg.eigh(matrices[0])
    found = (vectors * (matrices @ vectors)).sum(-2)
    found[0] = exact
    return np.asarray(np.maximum(found, 0))


def decompose_separately(totals: Totals) -> tuple[Array, Array]:
    """Return the eigenvalues of the centred and of the uncentred moments, each by a decomposition of its own."""
    n = totals["moment_n"]
    mean = ratio(totals["moment_vector"], n[..., None])
    uncentred = ratio(totals["moment"], n[..., None, None])
    centred = uncentred - mean[..., :, None] * mean[..., None, :]
    return np.linalg.eigvalsh(centred), np.linalg.eigvalsh(uncentred)


def decompose_together(totals: Totals) -> tuple[Array, Array]:
    """Return the same eigenvalues as `decompose_separately`, as `metrics.spectrum` computes them."""
    n = totals["moment_n"]
    mean = ratio(totals["moment_vector"], n[..., None])
    uncentred = ratio(totals["moment"], n[..., None, None])
    return spectrum._compute_eigenvalues(
        uncentred, mean, np.trace(uncentred, axis1=-2, axis2=-1)
    )


def half_width(values: Array) -> float:
    """Return the standard error of a value [replicate] from its replicates without a group, of the first entry."""
    left_out = values.reshape(len(values), -1)[1:, 0]
    count = len(left_out)
    return float(
        np.sqrt((count - 1) / count * ((left_out - left_out.mean()) ** 2).sum())
    )


def totals_of_encoder(limit: int) -> list[Totals]:
    """Return the sums of each layer of the built-in encoder, as the metric gets them."""
    found: list[Totals] = []
    compute = spectrum.METRIC.compute

    def watch(totals: Totals) -> dict[str, Array]:
        found.append(totals)
        return compute(totals)

    object.__setattr__(spectrum.METRIC, "compute", watch)
    anisoscope.measure(
        "builtin:minilm", corpus="builtin:python-docs", limit=limit, panel=("spectrum",)
    )
    object.__setattr__(spectrum.METRIC, "compute", compute)
    return found


def draw_totals(dim: int) -> Totals:
    """Return the sums of random vectors, four for each dimension, whose variances fall as 1/i."""
    generator = np.random.default_rng(0)
    scale = 1 / np.sqrt(np.arange(1, dim + 1))
    groups = [
        generator.standard_normal((4 * dim // GROUPS, dim)) * scale
        for _ in range(GROUPS)
    ]
    terms = {
        "moment": np.stack([(x.T @ x)[None] for x in groups]),
        "moment_vector": np.stack([x.sum(0)[None] for x in groups]),
        "moment_n": np.array([[float(len(x))] for x in groups]),
    }
    return Totals(terms)


def row(name: str, dim: int, every: Sequence[Totals], pairs: int) -> dict[str, object]:
    """Return what derivatives cost and how wide their intervals are, over the sums of several layers."""
    widths: dict[str, list[float]] = {value: [] for value in VALUES}
    for totals in every:
        left_out, derived = spectrum.compute(totals), differentiate(totals)
        for value, ratios in widths.items():
            ratios.append(half_width(derived[value]) / half_width(left_out[value]))
    times = against(spectrum.compute, {"derivatives": differentiate}, every, pairs)[
        "derivatives"
    ]
    separate = against(
        decompose_together, {"separate": decompose_separately}, every, pairs
    )["separate"]
    ends = {
        value: [round(min(ratios), 3), round(max(ratios), 3)]
        for value, ratios in widths.items()
    }
    found = {
        "of": name,
        "dim": dim,
        "threads": 1,
        "layers": len(every),
        "widths": ends,
    } | times
    found["separate"] = separate["processor"]
    print(found, flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--limit", type=int, default=60, help="documents for the encoder"
    )
    parser.add_argument(
        "--dims",
        type=int,
        nargs="*",
        default=[768, 1536],
        help="dimensions of random vectors",
    )
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    with with_threads(1):
        rows = [
            row("built-in encoder", 384, totals_of_encoder(given.limit), given.pairs)
        ]
        rows += [
            row("random vectors", dim, [draw_totals(dim)], given.pairs)
            for dim in given.dims
        ]
    keep(given.results, "spectrum_intervals", rows, ("of", "dim"))


if __name__ == "__main__":
    main()
