"""`cure` from Python: try corrections of anisotropy on vectors, and use the one that fits on others."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.api.run import Run
from anisoscope.cures.transforms import DEFAULT, Fit, expand_cures
from anisoscope.cures.trial import Trials, fit_to_use, try_cures
from anisoscope.data.vector_files import open_vectors
from anisoscope.errors import UsageError
from anisoscope.options import expand_home
from anisoscope.reads.base import Array
from anisoscope.runs.curing import (
    is_run_folder,
    read_layer_of_run,
    read_layer_of_vectors,
)


class Cures:
    """The cures that were tried on vectors, each fitted on one half of the units and scored on the other.

    text     what was found, in a sentence
    chosen   name of the cure that fits; None if there is none, or no need of one
    fit      that cure, or the single one that was named, fitted on all vectors; None if neither exists
    """

    def __init__(
        self,
        trials: Trials,
        named: Sequence[str],
        vectors: Array,
        partner: Array | None = None,
    ) -> None:
        """Keep the trials of the cures that were named, and fit the one to use on all vectors and their partners."""
        self._trials = trials
        self.text: str = trials.text
        self.notes: list[str] = list(trials.notes)
        self.chosen: str | None = None
        if trials.chosen is not None:
            self.chosen = trials.chosen.fit.name
        # A single cure that was named is used whether it fits or not.
        wanted = named[0] if len(named) == 1 else self.chosen
        self.fit: Fit | None = None
        if wanted is not None:
            self.fit = fit_to_use(wanted, vectors, partner)

    def table(self) -> pd.DataFrame:
        """Return a row for each cure and score: value before and after, difference, each with its 95 % interval."""
        return self._trials.table()

    def apply(self, vectors: Any) -> Array:
        """Transform other vectors [vector, dim], such as queries, by the cure; UsageError if no cure fits."""
        return self._require_fit().apply(_read_array(vectors))

    def save(self, path: Path | str) -> None:
        """Write the cure to a `.safetensors` file, for `anisoscope apply`; UsageError if no cure fits."""
        self._require_fit().save(expand_home(path))

    def _require_fit(self) -> Fit:
        """Return the fitted cure; UsageError if there is none."""
        if self.fit is None:
            raise UsageError(
                "a cure that works",
                self.text.rstrip("."),
                "to use a cure all the same, name it alone: cures='centre'",
            )
        return self.fit

    def __repr__(self) -> str:
        return f"Cures: {self.text}"

    def _repr_html_(self) -> str:
        """Return a notebook's table: a row for each cure, with its scores on the half that was not fitted on."""
        table = self.table()
        # In the order in which cures were tried, not in that of the alphabet.
        scores = table.pivot_table(
            index="cure", columns="score", values="after", sort=False
        )
        # The value before is the same for every cure, so it gets a single row.
        before = table.drop_duplicates("score").set_index("score")["before"]
        shown = pd.concat([before.to_frame("as it is").T, scores])
        return f"<p>{escape(self.text)}</p>" + shown.to_html(
            float_format="{:.3f}".format, na_rep="–", border=0
        )


def cure(
    vectors: Any,
    *,
    cures: str | Sequence[str] = DEFAULT,
    pairs: Any = None,
    units: Any = None,
    labels: Any = None,
    layer: str | None = None,
    seed: int = 0,
) -> Cures:
    """Try cures (transforms that reduce anisotropy) on vectors, and say which one fits, if any does.

    A cure fits if it makes the vectors isotropic and harms no task that is tried, such as finding nearest neighbours.

    vectors  an array or tensor [vector, dim], a file of vectors, or a run (a `Run` or its folder) that kept a sample
    cures    names as on the command line: `centre`, `standardise`, `whiten`, `remove-top:1..8`, `drop-dims:auto`
    pairs    partners of the vectors (an array [vector, dim] or a file): row i belongs to row i of `vectors`, as an
             answer to its question. Each cure is then also scored by how often a vector's nearest partner is its own
    units    for an array: the unit (independent piece of data) that each vector comes from; None: each is its own
    labels   for an array: the class of each vector, as numbers from 0
    layer    which layer, if the file or run has several; None: that of a run with the highest anisotropy A
    seed     decides which half of the units cures are fitted on; they are scored on the other half

    UsageError for shapes that do not fit, and if there are too few units to divide into halves.
    """
    names = expand_cures(cures)
    if isinstance(vectors, Run):
        if vectors.folder is None:
            raise UsageError(
                "a run that is saved in a folder",
                "a run in memory",
                "save it: run.save(folder), or give measure an output",
            )
        vectors = vectors.folder
    if isinstance(vectors, str | Path):
        if units is not None or labels is not None:
            raise UsageError(
                "`units` and `labels` only with an array of vectors",
                f"them with {vectors}",
                "leave units and labels out",
            )
        array, units, labels = _read_path(vectors, layer)
    else:
        array = _read_array(vectors)
    partner = None
    # A partner may be a file too, of which the same layer is read.
    if pairs is not None:
        partner = _read_array(pairs, layer)
    trials = try_cures(
        array, names, units=units, labels=labels, partner=partner, seed=seed
    )
    return Cures(trials, names, array, partner)


def _read_path(path: str | Path, layer: str | None) -> tuple[Array, Any, Any]:
    """Read one layer of a run folder or of a file of vectors.

    Returns (vectors [vector, dim], the unit that each comes from, the label of each or None).
    """
    folder = expand_home(path)
    if is_run_folder(folder):
        of_run = read_layer_of_run(folder, layer)
        return of_run.vectors, of_run.units, None
    # A file has its own units and labels; those of a caller were refused above.
    opened = open_vectors(path)
    return read_layer_of_vectors(opened, layer), opened.units, opened.labels


def _read_array(vectors: Any, layer: str | None = None) -> Array:
    """Return an array, a tensor or a file as vectors [vector, dim] in float64."""
    if isinstance(vectors, str | Path):
        return read_layer_of_vectors(open_vectors(vectors), layer)
    # torch is not imported for this: a tensor is known by its method. numpy reads
    # neither tensors on a device nor bfloat16.
    if hasattr(vectors, "detach"):
        vectors = vectors.detach().cpu().double()
    return np.asarray(vectors, dtype=np.float64)
