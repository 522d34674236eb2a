"""Uniformity: how evenly directions are spread over the sphere, from pairs that lie close.

Formula    log of the mean over distinct pairs of exp(−2‖u − v‖²), u = x/‖x‖. isotropic: its value for directions
           spread evenly over the sphere in d dimensions, log ₀F₁(d/2; 4) − 4. No cloud of many vectors has less.
Range      [−8, 0]. 0: all in one direction. At the value `isotropic` (near −4 in many dimensions): evenly spread.
           It sees clusters whose mean cosine is 0, which A does not.
Unit       none (a logarithm).
Undefined  fewer than two vectors in the sample.
Source     Wang & Isola 2020, section 4.1.2, at their t = 2 (of a uniform sample of vectors; theirs is of a batch).
"""

import numpy as np
from scipy.spatial.distance import pdist
from scipy.special import hyp0f1

from anisoscope.metrics.base import Array, Metric, Values, normalise, ratio
from anisoscope.reads import Sample
from anisoscope.reads.sample import SampledVectors

SHARPNESS = 2.0
"""The paper's t."""


def compute(sample: SampledVectors) -> Values:
    """Return the uniformity of the directions of sampled vectors [replicate].

    Its key is "", the main value of the metric; `isotropic` is the uniformity of isotropic directions. Replicate 0
    is over all data; each other replicate leaves out one group of units (documents, clips).
    """
    close = sample.sum_pairs(_compute_closeness)
    count = sample.count_pairs()
    d = sample.vectors.shape[1]
    # E[exp(−2t(1 − cos))] = e^(−2t)·₀F₁(d/2; t²) for a cosine of isotropic directions.
    isotropic = np.log(hyp0f1(d / 2, SHARPNESS**2)) - 2 * SHARPNESS
    return {
        "": np.log(ratio(close, count)),
        "isotropic": np.full_like(close, isotropic),
    }


def _compute_closeness(rows: Array, vectors: Array) -> Array:
    """Return exp(−t‖u − v‖²) for the directions u of `rows` and v of `vectors`."""
    # ‖u − v‖² = 2 − 2 cos; rounding may give a cosine above 1.
    cosine = np.minimum(normalise(rows) @ normalise(vectors).T, 1.0)
    return np.asarray(np.exp(2 * SHARPNESS * (cosine - 1)))


def reference(units: list[Array]) -> dict[str, float]:
    """Compute the uniformity of directions slowly, for tests: from the distance of every pair.

    units   vectors [token, dim] of each unit

    Returns {name of a value or component: its number}, to compare with those of `compute`.
    """
    x = np.concatenate(units)
    distances = pdist(x / np.linalg.norm(x, axis=1, keepdims=True))
    return {"": float(np.log(np.exp(-SHARPNESS * distances**2).mean()))}


METRIC = Metric(
    name="uniformity",
    reads=Sample(),
    compute=compute,
    reference=reference,
    bounds={"": (-4 * SHARPNESS, 0.0)},
    invariant=frozenset({"rotation", "scaling", "order"}),
)
