"""Data of metrics of a model's weights: its input and output embedding matrices, each reduced once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from anisoscope.reads.base import (
    Array,
    Batching,
    Declared,
    FedMeasurement,
    Gathered,
    Reading,
    Reads,
    Unit,
    make_totals,
)

Summary = Callable[[NDArray[Any]], Mapping[str, Array]]


@dataclass(frozen=True)
class Weights(Reads):
    """The embedding matrices of a model, each reduced by the function `summarise`.

    summarise  matrix [row, dim] → {term: array with a leading axis of 1}; nothing else is kept of the matrix

    `compute` is called with `Totals` of these terms, in one group. There is no interval: a matrix does not depend on
    the corpus.
    """

    summarise: Summary

    word = "embedding matrices"
    terms = None
    adds_up = False

    @property
    def captured(self) -> frozenset[str]:
        """Return an empty set: weights are read without capturing anything of the running model."""
        return frozenset()

    def summary(self) -> Summary:
        """Return the function that reduces an embedding matrix to the named arrays that are kept of it."""
        return self.summarise

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield the terms kept of each embedding matrix, with its number of rows."""
        # A matrix is in no layer and of no units: these columns stay empty.
        columns = dict.fromkeys(("stack", "kind", "layer", "n_units"))
        prefix = f"{metric.name}."
        for matrix, terms in gathered.weights.items():
            of_metric: dict[str, Array] = {}
            for name, x in terms.items():
                if name.startswith(prefix):
                    of_metric[name.removeprefix(prefix)] = x.numpy()
            totals = make_totals(of_metric)
            if totals is not None:
                yield Reading(
                    totals,
                    columns | {"site": matrix},
                    np.asarray(terms["rows"].numpy()[0]),
                )

    def feed(
        self,
        metric: Declared,
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as a weight matrix: the vectors of all units are its rows."""
        matrix = torch.as_tensor(
            np.concatenate([np.asarray(unit) for unit in units])
        ).to(batching.dtype)
        measurement.weights["embedding.input"] = summarise_matrix(
            matrix.numpy(), {metric.name: self.summarise}
        )


def summarise_matrix(
    matrix: NDArray[Any], summaries: Mapping[str, Summary]
) -> dict[str, torch.Tensor]:
    """Return what is kept of a weight matrix: its number of `rows`, and each metric's arrays as `METRIC.TERM`.

    summaries   functions that reduce the matrix to named arrays, by name of the metric
    """
    terms = {"rows": np.array([float(len(matrix))])}
    for metric, summarise in summaries.items():
        for term, value in summarise(matrix).items():
            terms[f"{metric}.{term}"] = value
    return {name: torch.from_numpy(value) for name, value in terms.items()}
