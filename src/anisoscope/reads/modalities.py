"""Data of metrics that relate images to texts: sums over the tokens of each, in a stack that reads both."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from anisoscope.axes import LAYER_QUANTITIES, Site
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
    draw_pairs,
    make_batch,
    make_totals,
    pad,
    split_batches,
)
from anisoscope.sums.groups import sum_vectors

TERMS = {"modality_n": "n", "modality_unit": "unit"}
"""Sums by modality, and the sums of vectors that they are."""


@dataclass(frozen=True)
class ModalitySums(Keeper):
    """Keep the number and the sum of unit vectors of image tokens, and of text tokens that are not special."""

    def join(self, other: "ModalitySums") -> "ModalitySums":  # noqa: ARG002
        """Return this keeper unchanged: two of this class accumulate the same values."""
        return self

    def takes(self, site: Site) -> bool:
        """Return whether a site holds hidden states."""
        return site.measured_as in ("hidden", "final")

    def add(self, site: Site, value: Tensor, running: Pass) -> None:
        """Add the unit vectors of a layer [sequence, token, dim]: one sum for image tokens, one for text tokens."""
        positions = running.copy_to(running.find_masks(site, value), value.device)
        # Special tokens are of neither kind: markers around an image would count as
        # text.
        text = positions.real & ~positions.image & ~positions.special
        masks = torch.stack([positions.image, text], 1)
        values, _ = sum_vectors(
            value.unsqueeze(1), masks, None, frozenset(TERMS.values())
        )
        running.add_sums(
            site.name, {term: values[of_all] for term, of_all in TERMS.items()}
        )


class Modalities(Reads):
    """The tokens of images and those of texts at one site that both pass through, as sums.

    `compute` is called with `Totals`: `modality_n` [replicate, modality, head] counts vectors, `modality_unit`
    [replicate, modality, head, dim] is the sum of their unit vectors. The first modality is images, the second texts
    without special tokens; there is one head.
    """

    word = "image tokens and text tokens"
    terms = frozenset(TERMS)

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantities to capture from the model: hidden states."""
        return frozenset(LAYER_QUANTITIES)

    def list_axes(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return the leading axes of values: only the head."""
        return ("head",)

    def is_of_sequences(self, needs: frozenset[str]) -> bool:  # noqa: ARG002
        """Return True: sequences say which of their tokens belong to images; single vectors do not."""
        return True

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield one keeper: the accumulator of sums by modality."""
        yield ModalitySums()

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield the sums of each site that has tokens of images and of texts."""
        for name, site in gathered.sites.items():
            terms = gathered.sums.at(name, metric.needs)
            # Stacks that read only one of the two, such as the vision tower itself,
            # have no gap.
            if not terms or not bool((terms["modality_n"].sum(0) > 0).all()):
                continue
            totals = make_totals(terms)
            if totals is not None:
                count = np.asarray(terms["modality_n"].sum(0).sum(0))
                yield Reading(totals, gathered.make_columns(site), count)

    def draw(
        self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7
    ) -> list[Unit]:
        """Draw random tokens of an image and of a text for each unit."""
        return draw_pairs(seed, sizes, d)

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as tokens of a layer: each unit is a sequence of an image and a text."""
        for first, part in split_batches(units, batching):
            x, real = pad([np.concatenate(unit) for unit in part], batching)
            if not real.shape[1]:
                continue
            image_tokens = torch.tensor([len(image) for image, _ in part])
            is_image = real & (torch.arange(real.shape[1]) < image_tokens.unsqueeze(1))
            batch = make_batch(first, real)
            batch.streams["encoder"] = replace(batch.streams["encoder"], image=is_image)
            measurement.begin(batch, torch.device("cpu"))
            measurement.receive(Site("encoder", 1, "hidden"), x)
            measurement.end()
