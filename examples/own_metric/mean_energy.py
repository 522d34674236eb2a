"""The energy of the mean: which share of the squared length of vectors lies in their mean.

Formula    ‖x̄‖² / (mean of ‖x‖²).
Range      [0, 1]. 0: a centred cloud; 1: all vectors are the same.
Unit       none (a share).
Undefined  no vector.
Source     write the paper and its equation here, and where yours differs.
"""

import numpy as np

from anisoscope.metrics import Metric, Vectors
from anisoscope.metrics.base import SHARE, ratio


def compute(totals):
    """The formula on sums, whose first axis is replicates: all data, then all but one group. The interval follows."""
    n = totals["n"]  # [replicate, policy, head]
    mean = ratio(totals["vector"], n[..., None])  # [replicate, policy, head, dim]
    return {"": ratio(np.square(mean).sum(-1), ratio(totals["norm_square"], n))}


def reference(units):
    """The definition, from the vectors themselves: `units` is a list of arrays [token, dim]."""
    x = np.concatenate(units)
    mean = x.mean(0)
    return {"": float(mean @ mean / np.square(x).sum(1).mean())}


METRIC = Metric(
    name="mean_energy",
    reads=Vectors(),  # or Sample(), LayerPair(), QueryKey(), Rows() …: see anisoscope.reads
    compute=compute,
    needs=frozenset({"n", "vector", "norm_square"}),
    reference=reference,
    bounds={"": SHARE},
    invariant=frozenset({"rotation", "order"}),
)
