"""Measure one metric on a tensor of vectors."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from anisoscope import metrics as all_metrics
from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.data.arrays import to_dense, to_native
from anisoscope.errors import UsageError, suggest_names
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.metrics import Metric
from anisoscope.sums.jackknife import Estimate

Vectors = (
    Float[Tensor, "sequence token dim"] | Float[Tensor, "token dim"] | NDArray[Any]
)


def metric(
    name: str | Metric,
    x: Vectors | tuple[Vectors, Vectors],
    *,
    mask: Tensor | NDArray[Any] | None = None,
    unit: Tensor | NDArray[Any] | Sequence[int] | None = None,
    groups: int = 32,
) -> dict[str, Estimate]:
    """Measure one metric of vectors: {name of a value: (value, low, high)}, with the ends of its 95 % interval.

    name    a metric by name (`anisoscope list metrics`, or `module:NAME`), one of its values (`isoscore`,
            `spectrum.isoscore`), a name from the literature (`rankme`, `anisotropy`), or a `Metric` of your own
    x       a tensor or an array [sequence, token, dim] or [token, dim] of floating point; a tuple of two of these, of
            the same tokens, for a metric of two layers
    mask    [sequence, token] or [token] bool: real tokens
    unit    [sequence]: the unit of each sequence (default: each its own; of a matrix [token, dim]: each token)
    groups  groups of units that are left out in turn for the interval

    Vectors that are zero or not finite are left out, with a warning that counts them. UsageError if none is left, for
    an unknown metric, or for one that needs more than vectors.

        >>> import anisoscope, numpy
        >>> float(anisoscope.metric("drift", numpy.ones((9, 4)))["drift.share"].value)
        1.0
    """
    (name_or_value,) = all_metrics.list_metric_names(name)
    given, value = all_metrics.resolve_alias(name_or_value)
    chosen = all_metrics.find_metric_by_name(given)
    layers = _split_layers(chosen, x)
    real = _to_mask(layers[0], mask)
    # One policy: whoever passes arrays says in the mask what counts. Fewer groups for
    # second moments, which take dim² numbers each.
    settings = Settings(
        metrics=(given,), tokens=("all",), groups=groups, spectrum_groups=min(groups, 8)
    )
    measurement = Measurement(settings)
    # Different numbers for all tokens, even if several sequences are of one unit: the
    # sample is chosen by them.
    starts = torch.arange(len(real), device=real.device) * real.shape[1]
    stream = Stream(real, torch.zeros_like(real), starts)
    measurement.begin(
        Batch({}, _to_units(layers[0], unit), {"encoder": stream}), real.device
    )
    for layer, vectors in enumerate(layers):
        measurement.receive(Site("encoder", layer, "hidden"), vectors)
    measurement.end()
    _warn_of_left_out(measurement, chosen.name, int(real.sum()))
    estimates = _read_estimates(measurement, chosen)
    if not value:
        return estimates
    # A component follows the name of its value, after a blank.
    wanted = {
        key: estimate
        for key, estimate in estimates.items()
        if key.split(" ")[0] == value
    }
    if not wanted and estimates:
        known = sorted({key.split(" ")[0] for key in estimates})
        raise UsageError(
            f"a value of {chosen.name}", value, suggest_names(value, known)
        )
    return wanted


def _read_estimates(measurement: Measurement, chosen: Metric) -> dict[str, Estimate]:
    """Return the results of a measurement of one metric: {name of a value: (value, low end, high end)}.

    If a value has components, the name of each follows after a blank.
    """
    records = measurement.records()
    names = records["metric"]
    # The component of a metric of two layers names the other layer, and there is but one.
    if chosen.reads.layers == 1:
        names = names.str.cat(" " + records["component"], na_rep="")
    rows = zip(names, records["value"], records["low"], records["high"], strict=True)
    return {name: Estimate(*numbers) for name, *numbers in rows}


def _split_layers(chosen: Metric, x: Any) -> list[Tensor]:
    """Return the vectors of each layer that a metric takes, as tensors [sequence, token, dim].

    UsageError if the metric needs more than vectors, or another number of arrays.
    """
    reads = chosen.reads
    if not reads.arrays:
        cure = "use anisoscope.measure(model, …)"
        if reads.labelled:
            cure = "use anisoscope classes"
        raise UsageError(
            "a metric of hidden vectors", f"{chosen.name}, of {reads.word}", cure
        )
    if reads.arrays == 1:
        return [_to_vectors(x)]
    if not isinstance(x, tuple | list) or len(x) != reads.arrays:
        came = type(x).__name__
        if isinstance(x, tuple | list):
            came = f"{came} of {len(x)}"
        cure = f"anisoscope.metric({chosen.name!r}, (x, y))"
        raise UsageError(f"two arrays of the same tokens for {chosen.name}", came, cure)
    layers = [_to_vectors(each) for each in x]
    if layers[0].shape[:2] != layers[1].shape[:2]:
        shapes = " and ".join(str(tuple(layer.shape)) for layer in layers)
        raise UsageError(
            "two arrays of the same tokens",
            shapes,
            "give both for the same sequences and tokens",
        )
    return layers


def _warn_of_left_out(measurement: Measurement, name: str, count: int) -> None:
    """Warn of vectors that were left out (zero, not finite); UsageError if all were.

    name    of the metric
    count   number of vectors given
    """
    # Of each array: two layers can lose different vectors.
    for excluded in measurement.excluded().values():
        left_out = f"{excluded.get('nonfinite', 0)} with NaN or infinity, {excluded.get('zero', 0)} zero"
        if sum(excluded.values()) == count:
            cure = "a direction needs a finite vector that is not zero; find out where the others come from"
            raise UsageError("vectors to measure", f"{count}, of them {left_out}", cure)
        warnings.warn(
            f"{name}: of {count} vectors, these were left out: {left_out}", stacklevel=3
        )


def _to_vectors(x: Any) -> Tensor:
    """Return `x` as a tensor [sequence, token, dim]; UsageError for another shape or type."""
    x = to_dense(x)
    if isinstance(x, np.ndarray) and x.dtype.kind == "f":
        x = torch.from_numpy(to_native(x))
    if not isinstance(x, Tensor) or not x.is_floating_point():
        came = type(x).__name__
        if hasattr(x, "dtype"):
            came = f"{came} of {x.dtype}"
        raise UsageError(
            "vectors of floating point, in a tensor or an array",
            came,
            "convert them: x.float() or np.asarray(x)",
        )
    if x.dim() not in (2, 3):
        expected = "vectors [sequence, token, dim] or [token, dim]"
        raise UsageError(expected, f"shape {tuple(x.shape)}", "flatten the other axes")
    if not x.numel():
        raise UsageError(
            "at least one vector",
            f"shape {tuple(x.shape)}",
            "find out why there are none",
        )
    vectors = x.detach()
    # A matrix is a set of single vectors, each a sequence of its own.
    if vectors.dim() == 2:
        return vectors.unsqueeze(1)
    return vectors


def _to_mask(x: Tensor, mask: Any) -> Tensor:
    """Return the real tokens [sequence, token] of `x`; for a matrix the mask may be [token]."""
    if mask is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    real = torch.as_tensor(mask).bool().to(x.device)
    if real.dim() == 1 and x.shape[1] == 1:
        real = real.unsqueeze(1)
    if real.shape != x.shape[:2]:
        raise UsageError(
            f"a mask of shape {tuple(x.shape[:2])}",
            str(tuple(real.shape)),
            "give one entry per vector",
        )
    if not bool(real.any()):
        raise UsageError(
            "a mask with a real token", "none", "True is a real token, False is padding"
        )
    return real


def _to_units(x: Tensor, unit: Any) -> Tensor:
    """Return the number of the unit of each sequence of `x` [sequence]; without `unit`, each sequence is its own.

    UsageError for units that are not one whole number per sequence.
    """
    if unit is None:
        return torch.arange(len(x), device=x.device)
    owner = torch.as_tensor(unit).to(x.device)
    if owner.shape != (len(x),) or owner.is_floating_point() or owner.is_complex():
        came = f"{owner.dtype} of shape {tuple(owner.shape)}"
        raise UsageError(
            f"{len(x)} whole numbers as units, one for each sequence",
            came,
            "number the units from 0",
        )
    return owner.long()
