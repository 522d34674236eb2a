"""Data of metrics that compare classes: directions of labelled sequences, summed by class."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.reads.base import (
    Batching,
    Declared,
    FedMeasurement,
    Gathered,
    Keeper,
    Pass,
    Reading,
    Reads,
    Unit,
    make_totals,
    split_batches,
)
from anisoscope.sums.classes import add_class_sums, pool_sequences


class ClassSums(Keeper):
    """Accumulate the sum of the directions (unit vectors) of labelled sequences, for each class."""

    def join(self, other: "ClassSums") -> "ClassSums":  # noqa: ARG002
        """Return self: if two metrics ask for these sums on the same data, one instance serves both.

        Nothing is added; shards are merged elsewhere.
        """
        return self

    def takes(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds hidden states."""
        return site.quantity == "hidden"

    def add(self, site: Site, value: Tensor, running: Pass) -> None:
        """Pool each sequence to one vector, and add its direction to the sum of its class."""
        positions = running.copy_to(running.find_masks(site, value), value.device)
        # Of real tokens, whatever the token policy: [CLS] is special, and is the vector
        # that a classifier reads.
        vectors = pool_sequences(value, positions.real, running.settings.at)
        label = running.copy_to(running.label, value.device)
        group = running.copy_to(running.group, value.device)
        add_class_sums(
            running.sums, site.name, vectors, label, group, len(running.classes)
        )


class Classes(Reads):
    """Directions (unit vectors) of labelled sequences, summed by class, at every layer of hidden states.

    `compute` is called with `Totals`: `class_n` [replicate, class] and `class_unit` [replicate, class, dim]. A value
    may have a component for each class or pair of classes; `Metric.components` then makes their names from the class
    names.
    """

    word = "directions of classes"
    terms = frozenset({"class_n", "class_unit"})
    labelled = True

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantities to capture from the model: hidden states."""
        return frozenset(LAYER_QUANTITIES)

    def has_roles(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Return True: in a test, each unit is one class."""
        return True

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield one keeper: the accumulator of sums by class."""
        yield ClassSums()

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield the class sums of each layer, with the number of sequences and the class names."""
        for name, site in gathered.sites.items():
            if site.quantity != "hidden":
                continue
            totals = make_totals(gathered.sums.at(name, metric.needs))
            if totals is not None:
                count = np.array(gathered.sums.at(name, ("class_n",))["class_n"].sum())
                yield Reading(
                    totals, gathered.make_columns(site), count, tuple(gathered.classes)
                )

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as classes: each test unit is a class, and each of its vectors a sequence.

        The i-th sequences of all classes make up the i-th unit (independent piece of data) of the measurement.
        """
        # Numbered within each class: to leave out a unit takes at most one sequence
        # from any class.
        rows: list[tuple[int, int, Any]] = []
        for label, of_class in enumerate(units):
            for number, vector in enumerate(of_class):
                rows.append((number, label, vector))
        for _, part in split_batches(rows, batching):
            if not part:
                continue
            numbers, labels, vectors = zip(*part, strict=True)
            x = torch.full(
                (len(part), 1 + batching.padding, len(vectors[0])),
                batching.filler,
                dtype=batching.dtype,
            )
            # A sequence of one token: pooled, it is the vector of the test data itself.
            x[:, 0] = torch.as_tensor(np.stack(vectors))
            real = torch.arange(x.shape[1]).unsqueeze(0).expand(len(part), -1) == 0
            stream = Stream(
                real, torch.zeros_like(real), torch.zeros(len(part), dtype=torch.int64)
            )
            batch = Batch(
                {},
                torch.tensor(numbers),
                {"encoder": stream},
                label=torch.tensor(labels),
            )
            measurement.begin(batch, torch.device("cpu"))
            measurement.receive(Site("encoder", 1, "hidden"), x)
            measurement.end()
