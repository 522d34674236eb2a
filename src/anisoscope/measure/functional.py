"""Each metric alone, on a tensor of vectors."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from anisoscope import metrics as all_metrics
from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.errors import UsageError, near_matches
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.sums import jackknife
from anisoscope.sums.jackknife import Estimate


def metric(
    name: str,
    x: Float[Tensor, "sequence token dim"] | Float[Tensor, "token dim"],
    *,
    mask: Tensor | None = None,
    unit: Tensor | None = None,
    groups: int = 32,
) -> dict[str, Estimate]:
    """One metric of hidden vectors `x`: {value name: (value, low, high)}; the metric itself is named as `name`.

    mask  [sequence, token] bool: real tokens. unit [sequence]: the unit of each sequence (default: each its own; of
    a matrix [token, dim]: each token). The interval leaves out groups of units. UsageError for an unknown metric, or
    one that is not of hidden vectors.
    """
    found = all_metrics.found()
    if name not in found:
        raise UsageError("the name of a metric", repr(name), near_matches(name, found))
    if not {"hidden", "sample"} & set(found[name].quantities):
        raise UsageError(
            "a metric of hidden vectors",
            f"{name}, of {', '.join(found[name].quantities)}",
            "use anisoscope classes" if found[name].panel == "class" else "use anisoscope.measure(model, …)",
        )
    if x.dim() == 2:
        x = x.unsqueeze(1)
    if x.dim() != 3:
        raise UsageError(
            "vectors [sequence, token, dim] or [token, dim]", f"shape {tuple(x.shape)}", "flatten the other axes"
        )
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
    owner = torch.arange(len(x)) if unit is None else torch.as_tensor(unit)
    measurement = Measurement(
        Settings(metrics=(name,), policies=("all",), groups=groups, spectrum_groups=min(groups, 8))
    )
    stream = Stream(real, torch.zeros_like(real), torch.arange(len(x)) * x.shape[1])
    measurement.begin(Batch({}, owner, {"encoder": stream}), x.device)
    measurement.receive(Site("encoder", 0, "hidden"), x)
    measurement.end()
    return _estimates(measurement.records())


def _estimates(records: Any) -> dict[str, Estimate]:
    names = records["metric"].str.cat(" " + records["component"], na_rep="")
    rows = zip(names, records["value"], records["low"], records["high"], strict=True)
    return {name: jackknife.Estimate(*estimate) for name, *estimate in rows}
