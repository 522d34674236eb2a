"""My metric: a formula of your own, with an interval beside every number, and the checks that ours undergo."""

# %%
import numpy as np

import anisoscope
from anisoscope.metrics import Metric, Sample, Vectors
from anisoscope.metrics.base import ratio
from anisoscope.testing import check_metric


def mean_energy(totals):
    """The energy of the mean: which share of the squared length of vectors lies in their mean.

    Formula    ‖x̄‖² / (mean of ‖x‖²).
    Range      [0, 1]. 0: a centred cloud; 1: all vectors are the same.
    Unit       none (a share).
    Undefined  no vector.
    Source     this notebook.
    """
    n = totals["n"]
    mean = ratio(totals["vector"], n[..., None])
    return {"": ratio(np.square(mean).sum(-1), ratio(totals["norm_square"], n))}


# `needs` names sums that a pass adds up: a function of sums takes no second look at the data, intervals included.
energy = Metric(
    name="mean_energy",
    reads=Vectors(),
    compute=mean_energy,
    needs=frozenset({"n", "vector", "norm_square"}),
    reference=lambda units: {
        "": float(np.square(np.concatenate(units).mean(0)).sum() / mean_square(units))
    },
    bounds={"": (0.0, 1.0)},
    invariant=frozenset({"rotation", "order"}),
)


def mean_square(units):
    return np.square(np.concatenate(units)).sum(1).mean()


# %%
# A function of the vectors themselves reads a sample; `replicates` calls it without each group of units in turn.
def farthest(vectors):
    return np.linalg.norm(vectors - vectors.mean(0), axis=1).max()


radius = Metric("radius", Sample(), lambda sample: {"": sample.replicates(farthest)})

# %%
texts = ["The cat sat.", "A dog barked.", "A narrow cone.", "Rain fell all night."]
run = anisoscope.measure(
    "builtin:minilm", texts, metrics=(energy, radius), tokens="all"
)
run.table().round(3)

# %%
# Of vectors that lie at hand, with the unit that each is of.
rng = np.random.default_rng(0)
vectors = rng.normal(size=(600, 32)) + 0.5
anisoscope.metric(energy, vectors, unit=np.arange(600) // 10)

# %%
# Every law that ours keep: padding, batches, halves, invariances, the smallest inputs. What is broken is said in words.
check_metric(energy)
try:
    check_metric(radius)
except AssertionError as broken:
    print(broken)
