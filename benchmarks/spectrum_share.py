"""How many tokens fix the ranks of a spectrum: shares of the tokens, compared with all of them.

    python benchmarks/spectrum_share.py                # built-in encoder, then random vectors of 4,096 dimensions
    python benchmarks/spectrum_share.py --dims 1024    # minutes less

`--spectrum-share` sums the second moments of a random share of the tokens. `tokens` are those drawn, for each
dimension; `all` is the number of tokens for each dimension that the whole has; `errors` are the largest differences
from the whole over layers, in percent.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pairs import keep, options

import anisoscope

SHARES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
VALUES = (
    "effective_rank",
    "effective_rank_uncentred",
    "effective_rank_eigenvalues",
    "participation_ratio",
)


def compare(
    of: str, dim: int, whole: pd.DataFrame, part: pd.DataFrame
) -> dict[str, object]:
    """Return the row for one share: the spectra of `part` of the tokens, compared with those of the `whole`."""
    errors = {}
    for value in VALUES:
        ours, theirs = (_read_values(records, value) for records in (part, whole))
        errors[value] = round(float(np.abs(ours / theirs - 1).max()) * 100, 2)
    count = int(
        part.loc[part["metric"] == "spectrum.effective_rank", "n_vectors"].max()
    )
    of_all = int(
        whole.loc[whole["metric"] == "spectrum.effective_rank", "n_vectors"].max()
    )
    found = {
        "of": of,
        "dim": dim,
        "threads": 1,
        "tokens": round(count / dim, 1),
        "all": round(of_all / dim, 1),
        "errors": errors,
    }
    print(found, flush=True)
    return found


def _read_values(records: pd.DataFrame, name: str) -> np.ndarray:
    """Return the values of one rank [layer]."""
    return records.loc[records["metric"] == f"spectrum.{name}", "value"].to_numpy(float)


def measure_encoder(share: float, limit: int) -> pd.DataFrame:
    """Return the spectra of the built-in encoder from a share of the tokens."""
    how = {
        "panel": ("spectrum",),
        "sample": 0,
        "spectrum_groups": 1,
        "spectrum_share": share,
        "limit": limit,
    }
    return anisoscope.measure(
        "builtin:minilm", corpus="builtin:python-docs", **how
    ).records


def draw_vectors(dim: int, per_dimension: int) -> np.ndarray:
    """Return random vectors [vector, dim] in float32 whose variances fall as 1/i, along random axes."""
    generator = np.random.default_rng(0)
    scale = (1 / np.sqrt(np.arange(1, dim + 1))).astype(np.float32)
    axes = np.linalg.qr(generator.standard_normal((dim, dim), dtype=np.float32))[0]
    drawn = generator.standard_normal((per_dimension * dim, dim), dtype=np.float32)
    return (drawn * scale) @ axes + 1


def measure_vectors(vectors: np.ndarray, share: float) -> pd.DataFrame:
    """Return the spectrum of vectors [vector, dim] from a share of them."""
    how = {
        "panel": ("spectrum",),
        "sample": 0,
        "spectrum_groups": 1,
        "spectrum_share": share,
    }
    return anisoscope.measure(vectors, **how).records


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--limit", type=int, default=600, help="documents for the encoder"
    )
    parser.add_argument(
        "--dims",
        type=int,
        nargs="*",
        default=[4096],
        help="dimensions of random vectors",
    )
    parser.add_argument(
        "--per-dimension",
        type=int,
        default=32,
        help="random vectors for each dimension",
    )
    given = parser.parse_args(argv)
    torch.set_num_threads(1)
    whole = measure_encoder(1.0, given.limit)
    rows = [
        compare("built-in encoder", 384, whole, measure_encoder(share, given.limit))
        for share in SHARES
    ]
    for dim in given.dims:
        vectors = draw_vectors(dim, given.per_dimension)
        whole = measure_vectors(vectors, 1.0)
        rows += [
            compare("random vectors", dim, whole, measure_vectors(vectors, share))
            for share in SHARES[3:]
        ]
    keep(given.results, "spectrum_share", rows, ("of", "dim", "tokens"))


if __name__ == "__main__":
    main()
