"""A and drift of every layer with each group of units left out: what joint functions of layers and models need for
their intervals. They are kept as records, `mean_cosine.left_out` and `drift.left_out`, `component` the group.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.metrics import drift, mean_cosine
from anisoscope.store import as_records, select
from anisoscope.sums.groups import Totals

Array = NDArray[np.float64]
SUFFIX = ".left_out"
_METRICS = {"mean_cosine": (mean_cosine, ("n", "unit")), "drift": (drift, ("n", "vector", "norm"))}


def left_out(sums: Path, settings: Settings) -> pd.DataFrame:
    """The rows of a run from the sums it kept: first token policy, outputs of blocks (also before their last ReLU)."""
    measurement = Measurement.restore(sums, settings)
    rows = []
    for name, site in measurement.sites.items():
        if site.quantity not in ("hidden", "unrectified"):
            continue
        terms = measurement.sums.at(name)
        for metric, (module, needed) in _METRICS.items():
            totals = Totals({term: terms[term][:, :1] for term in needed})
            if not totals.present.any():
                continue
            values = module.compute(totals)[""].reshape(-1, 1)[1:, 0]
            place = {"stack": site.stack, "kind": site.kind, "layer": site.layer, "site": site.label}
            given = place | {"metric": metric + SUFFIX, "token_policy": settings.policies[0]}
            groups = np.flatnonzero(totals.present)
            rows += [given | {"component": str(g), "value": v} for g, v in zip(groups, values, strict=True)]
    return as_records(pd.DataFrame(rows))


def replicates(records: pd.DataFrame, of_layers: pd.DataFrame, metric: str, site: str = "hidden") -> Array:
    """[1 + group, layer] of one model and seed: all groups, then each left out; layers as in `of_layers` (rows of
    `curves`: `model`, `seed`, `stack`, `layer`). No rows of left-out values: no groups.
    """
    first = of_layers.iloc[0]
    rows = select(records, model=first["model"], site=site, token_policy="all", head=None)
    rows = rows[rows["seed"].fillna(0) == first["seed"]]
    keys = list(zip(of_layers["stack"], of_layers["layer"], strict=True))
    value = select(rows, metric=metric, component=None).set_index(["stack", "layer"])["value"].loc[keys]
    without = select(rows, metric=metric + SUFFIX)
    if not len(without):
        return value.to_numpy(float)[None]
    wide = without.assign(group=without["component"].astype(int)).pivot(
        index="group", columns=["stack", "layer"], values="value"
    )
    return np.vstack([value.to_numpy(float), wide[keys].dropna().to_numpy(float)])
