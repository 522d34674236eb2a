"""Records of this code against those of a commit before it, on tiny models of every family: values and intervals.

    python benchmarks/same_records.py --before HEAD~1
    python benchmarks/same_records.py --before main --families bert gpt2 --dtype float64
    python benchmarks/same_records.py --fused      # attention's own product against the fused one, of this code

Every number may differ by 1e-6 of itself, or by 1e-6 where it is below 1. All panels, three batches of padded windows.
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = ("value", "low", "high")
CLOSE = 1e-6
LENGTHS = ((12, 9, 7, 5), (12, 12, 11, 12), (16, 3, 10, 2))
OF_FAMILY = {
    "manta": ((12,), (9,), (16,), (7,)),
    "wav2vec2": ((12,) * 4,) * 3,
}  # read no padding


def write(folder: Path, families: Sequence[str], dtype: str, **chosen: str) -> None:
    """The records of each family, by the code that this process imports."""
    import tiny_models as tiny
    import torch

    import anisoscope

    torch.set_num_threads(1)
    for name in families:
        kind = getattr(torch, dtype)
        model = tiny.build(name, kind)
        lengths = OF_FAMILY.get(name, LENGTHS)
        batches = [
            tiny.inputs(name, each, kind, seed=i) for i, each in enumerate(lengths)
        ]
        run = anisoscope.measure(model, batches, seed=0, sample=32, **chosen)
        run.records.to_parquet(folder / f"{name}.parquet")


def in_a_process(
    source: Path, folder: Path, families: Sequence[str], dtype: str, *more: str
) -> None:
    folder.mkdir()
    command = [
        sys.executable,
        __file__,
        "--write",
        str(folder),
        "--dtype",
        dtype,
        "--families",
        *families,
        *more,
    ]
    paths = os.pathsep.join((str(source), str(ROOT / "tools")))
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": paths})


def source_of(commit: str, folder: Path) -> Path:
    """The package as it was at a commit."""
    packed = subprocess.check_output(["git", "-C", str(ROOT), "archive", commit, "src"])
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def difference(before: pd.DataFrame, now: pd.DataFrame) -> tuple[float, str]:
    """The largest difference as a share of the number or of 1, and where it is; the tables have the same rows."""
    names = [name for name in before.columns if name not in (*NUMBERS, "run", "model")]
    pd.testing.assert_frame_equal(before[names], now[names], check_dtype=False)
    old, new = (frame[list(NUMBERS)].to_numpy(float) for frame in (before, now))
    apart = np.abs(old - new) / np.maximum(np.abs(old), 1)
    apart[np.isnan(old) & np.isnan(new)] = 0
    apart[np.isnan(apart)] = np.inf
    row, column = np.unravel_index(apart.argmax(), apart.shape)
    where = " ".join(
        str(before[name].iloc[row]) for name in ("metric", "site", "layer", "head")
    )
    return float(
        apart[row, column]
    ), f"{where} {NUMBERS[column]}: {old[row, column]:.9g} → {new[row, column]:.9g}"


def main(argv: Sequence[str] | None = None) -> None:
    sys.path.append(str(ROOT / "tools"))
    import tiny_models as tiny

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="HEAD", help="commit to compare with")
    parser.add_argument(
        "--families",
        nargs="+",
        choices=sorted(tiny.ARCHITECTURES),
        default=list(tiny.ARCHITECTURES),
    )
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument(
        "--fused",
        action="store_true",
        help="compare this code with its fused attention",
    )
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.write:
        return write(
            given.write,
            given.families,
            given.dtype,
            **({"attention": "fused"} if given.fused else {}),
        )
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        before = (
            ROOT / "src"
            if given.fused
            else source_of(given.before, Path(place, "code"))
        )
        folders = {"before": before, "now": ROOT / "src"}
        for which, source in folders.items():
            more = ["--fused"] if given.fused and which == "now" else []
            in_a_process(source, Path(place, which), given.families, given.dtype, *more)
        for name in given.families:
            tables = [
                pd.read_parquet(Path(place, which, f"{name}.parquet"))
                for which in folders
            ]
            apart, where = difference(*tables)
            worst = max(worst, apart)
            print(
                f"{name:16s} {len(tables[0]):6,d} records, largest difference {apart:.1e}   {where}",
                flush=True,
            )
    if worst > CLOSE:
        raise SystemExit(f"a record differs by {worst:.1e}, more than {CLOSE:.0e}")
    return None


if __name__ == "__main__":
    main()
