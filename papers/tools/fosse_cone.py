"""Figure 1 of Fosse et al. 2023 from a trained layer: the values of one utterance, and the outputs of attention.

python papers/tools/fosse_cone.py      train one layer (YelpHat, seed 0, as table 4 at λ = 0) and keep what is drawn

A vector is kept as its angle to the mean direction of the values, its length, and the side it lies on: the sign of its
part along the first principal direction of what is left of the values beside that mean. No text is kept.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.capture.tap import capture
from anisoscope.metrics.base import normalise
from anisoscope.store import write_json
from anisoscope_papers.fosse2023.grid import PAPER, SHORT, Cell
from anisoscope_papers.fosse2023.trained_cells import Trained, train_cell

CELL = Cell("yelphat")
CONE = Path(__file__).resolve().parents[1] / "results" / "fosse2023" / "cone.json"


@torch.no_grad()
def values_and_outputs(trained: Trained) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values [token, dim], outputs [token, dim] and weights [token, token] for the first review of 50 words."""
    model = trained.classifier[0]
    caught: dict[str, Tensor] = {}
    with capture(
        model,
        ("query.raw", "key.raw", "value"),
        # The first utterance, and the only head.
        receive=lambda site, x: caught.update({site.label: x[0, 0]}),
    ):
        for batch in trained.batches(1, SHORT):
            model(**batch.inputs)
            break
    query, key, value = (
        caught[name].double() for name in ("query.raw", "key.raw", "value")
    )
    # Recomputed in float64 from what the model multiplies, so that the drawn outputs
    # are exact averages of the drawn values.
    weights = torch.softmax(query @ key.T / query.shape[-1] ** 0.5, -1)
    return value.numpy(), (weights @ value).numpy(), weights.numpy()


def seen_from_the_mean(
    vectors: np.ndarray, axis: np.ndarray, side: np.ndarray
) -> list[dict[str, float]]:
    """Return each vector's angle to the axis in degrees, its length, and its side of the axis."""
    angles = np.degrees(np.arccos(np.clip(normalise(vectors) @ axis, -1, 1)))
    rows = zip(
        angles, np.linalg.norm(vectors, axis=1), np.sign(vectors @ side), strict=True
    )
    return [
        {"angle": round(float(a), 2), "length": round(float(n), 4), "side": float(s)}
        for a, n, s in rows
    ]


def cone(values: np.ndarray, outputs: np.ndarray) -> dict[str, Any]:
    """Return what figure 1 draws: values and outputs, seen from the mean direction of the values."""
    units = normalise(values)
    axis = normalise(units.mean(0)[None])[0]
    # What is left of each value at right angles to the mean direction; its first
    # principal direction decides left and right.
    across = units - (units @ axis)[:, None] * axis
    side = np.linalg.svd(across, full_matrices=False)[2][0]
    return {
        "of": CELL.label,
        "corpus": CELL.corpus,
        "seed": CELL.seed,
        "values": seen_from_the_mean(values, axis, side),
        "outputs": seen_from_the_mean(outputs, axis, side),
    }


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        place = Path(folder) / "cell"
        train_cell(CELL, PAPER, place, "cpu")
        values, outputs, _ = values_and_outputs(Trained(CELL, PAPER, place))
    write_json(CONE, cone(values, outputs))
    sys.stdout.write(f"{CONE}\n")
