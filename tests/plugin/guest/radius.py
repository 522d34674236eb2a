"""The radius: the distance from the mean to the farthest vector of a sample.

Formula    max ‖x − x̄‖ over the sample, x̄ its mean.
Range      [0, ∞). 0: one point.
Unit       that of the activations.
Undefined  fewer than two vectors.
Source     the tests.
"""

import numpy as np

from anisoscope.metrics import Metric, Sample
from anisoscope.metrics.base import POSITIVE


def _radius(vectors):
    return (
        np.linalg.norm(vectors - vectors.mean(0), axis=1).max()
        if len(vectors) > 1
        else np.nan
    )


def compute(sample):
    return {"": sample.replicates(_radius)}


def reference(units):
    x = np.concatenate(units)
    return {"": float(np.sqrt(np.square(x - x.mean(0)).sum(1).max()))}


METRIC = Metric(
    name="guest_radius",
    reads=Sample(),
    compute=compute,
    reference=reference,
    bounds={"": POSITIVE},
    invariant=frozenset({"rotation", "translation", "order"}),
)
