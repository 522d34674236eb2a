"""What only a GPU can show, the larger series of the studies too: `make gpu`.

    python papers/benchmarks/gpu_studies.py --results papers/results/gpu.json --minutes 40

The steps of `benchmarks/gpu.py`, then `training`; options as there.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import gpu

LARGER = (
    ("godey2024", "fig1-5,fig16", "long"),
    ("godey2024", "fig11-15", "small"),
    ("fosse2023", "table1-2", "paper"),
    ("beyond", "", "paper"),
)
"""Paper, figures and settings that take hours on a CPU."""


def training(device: torch.device, tiny: bool) -> dict[str, Any]:
    """The larger series of the studies; in miniature, that there are such settings. What is not finished is no record:
    the next start goes on with it.
    """
    if tiny:
        from anisoscope_papers import runner

        return {
            " ".join(words): len(runner.describe(runner.choose(*words[:2]), words[2]))
            for words in LARGER
        }
    codes = {}
    for paper, only, settings in LARGER:
        words = [
            "reproduce",
            paper,
            "--only",
            only,
            "--settings",
            settings,
            "--device",
            device.type,
            "--quiet",
        ]
        codes[f"{paper} {only}"] = subprocess.run(
            [sys.executable, "-m", "anisoscope", *words], check=False
        ).returncode
    if any(codes.values()):
        raise RuntimeError(f"not all is finished: exit codes {codes}")
    return codes


def main(given: list[str] | None = None) -> None:
    gpu.main(given, (*gpu.STEPS, training))


if __name__ == "__main__":
    main()
