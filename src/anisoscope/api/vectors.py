"""Vectors in place of a model: an array, arrays by layer, or a file of them."""

from pathlib import Path
from typing import Any

from anisoscope.api.run import Run, kept_or_not
from anisoscope.errors import UsageError
from anisoscope.runs.job import Job


def are_vectors(model: Any) -> bool:
    """Whether vectors were given in place of a model."""
    if isinstance(model, str | Path):
        from anisoscope.data.arrays import holds_vectors

        return holds_vectors(model)
    if isinstance(model, list | tuple) and model:
        return all(_is_array(x) for x in model)
    return isinstance(model, dict) or _is_array(model)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and not hasattr(x, "parameters")


def measure_vectors(job: Job, vectors: Any, units: Any, labels: Any, mask: Any, writing: dict[str, Any]) -> Run:
    """The run of vectors; of a file `units` and `labels` are names of its columns."""
    from anisoscope.data.arrays import given_vectors, open_vectors
    from anisoscope.progress import shown
    from anisoscope.runs.vectors import run_vectors

    if isinstance(vectors, str | Path):
        for name, column in (("units", units), ("labels", labels)):
            if column is not None and not isinstance(column, str):
                raise UsageError(f"{name} as the name of a column of the file", type(column).__name__, "name it")
        found = open_vectors(vectors, unit_column=units, label_column=labels)
    else:
        found = given_vectors(vectors, units=units, labels=labels, mask=mask)
    chosen = {name: writing[name] for name in ("resume", "overwrite")}
    with shown(found.name, "vectors", quiet=writing["quiet"]) as progress:
        return kept_or_not(
            lambda folder: run_vectors(found, job, folder, progress=progress, **chosen), writing["output"]
        )
