"""Which token positions of a batch are counted, and on which device they are summed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from anisoscope.axes import FREQUENCY_BINS, POSITION_EDGES
from anisoscope.batch import Batch, Stream
from anisoscope.errors import UsageError
from anisoscope.sums.device import choose_sum_device

CPU = torch.device("cpu")
Near = TypeVar("Near", Tensor, "Masks")


def to_accumulation_device(value: Any) -> Any:
    """Move tensors, also those in a mapping, to the device where they are summed."""
    if isinstance(value, Mapping):
        return {name: to_accumulation_device(x) for name, x in value.items()}
    if isinstance(value, Tensor):
        return value.to(choose_sum_device(value.device))
    return value


@dataclass
class Masks:
    """The token masks of one stream (stack) of a batch.

    They say which tokens each policy and each subset counts, which are special, punctuation, or of an image. `places`
    holds where each token is [sequence, token, 4] (`sums.extremes.WHERE`), if asked for. `drawn` says which tokens
    second moments are summed of [sequence, token]; empty: of all.
    """

    real: Tensor
    policies: Tensor
    subsets: Tensor
    special: Tensor
    punctuation: Tensor
    image: Tensor
    places: Tensor
    drawn: Tensor

    @classmethod
    def of(
        cls,
        stream: Stream,
        policies: Sequence[str],
        unit: Tensor | None = None,
        ids: Tensor | None = None,
        drawn: Tensor | None = None,
    ) -> "Masks":
        """Build the token masks of a stream of inputs.

        policies   token policies (which tokens count): `all`, `content` (without special ones), `no-first`
        unit       number of each sequence's unit [sequence]; None: the field `places` stays empty
        ids        the token ids [sequence, token], which `places` includes; None: the model reads no ids
        drawn      which tokens second moments are summed of [sequence, token]; None: of all
        """
        real = stream.mask
        special = stream.special & real
        # Counted over real tokens, so that padding on the left moves nothing.
        position = real.long().cumsum(1) - 1
        first = real & (position == 0)
        by_policy = {"all": real, "content": real & ~special, "no-first": real & ~first}
        places = torch.empty(0, dtype=torch.int64)
        if unit is not None:
            places = _locate_tokens(stream, position, unit, ids)
        none = torch.zeros_like(real)
        punctuation = none
        if stream.punctuation is not None:
            punctuation = stream.punctuation & real
        image = none
        if stream.image is not None:
            image = stream.image & real
        return cls(
            real=real,
            policies=torch.stack([by_policy[policy] for policy in policies], 1),
            subsets=_mark_subsets(real, special, position, stream.frequency),
            special=special,
            punctuation=punctuation,
            image=image,
            places=places,
            drawn=torch.empty(0, dtype=torch.bool) if drawn is None else drawn,
        )

    def cut(self, length: int) -> "Masks":
        """Return the token masks of the first `length` positions only."""
        places = self.places[:, :length] if self.places.numel() else self.places
        return Masks(
            self.real[..., :length],
            self.policies[..., :length],
            self.subsets[..., :length],
            self.special[..., :length],
            self.punctuation[..., :length],
            self.image[..., :length],
            places,
            self.drawn[..., :length],
        )

    def to(self, device: torch.device) -> "Masks":
        """Return copies of the token masks on a device."""
        return Masks(
            *(
                getattr(self, field.name).to(device, non_blocking=True)
                for field in fields(self)
            )
        )


def _mark_subsets(
    real: Tensor, special: Tensor, position: Tensor, frequency: Tensor | None
) -> Tensor:
    """Return which tokens are in each subset [sequence, subset, token], in the order of `axes.SUBSET_FAMILIES`.

    position    number of each real token in its sequence
    frequency   number of its frequency bin; None: unknown, so that these subsets are empty
    """
    first = real & (position == 0)
    subsets = [special & ~first, first, real & ~first & ~special]
    for number in range(FREQUENCY_BINS):
        if frequency is None:
            subsets.append(torch.zeros_like(real))
        else:
            subsets.append(real & (frequency == number))
    edges = torch.tensor(POSITION_EDGES, device=real.device)
    # The last edge that is not above the position begins its bin.
    position_bin = torch.bucketize(position, edges, right=True) - 1
    for number in range(len(POSITION_EDGES)):
        subsets.append(real & (position_bin == number))
    return torch.stack(subsets, 1)


def _locate_tokens(
    stream: Stream, position: Tensor, unit: Tensor, ids: Tensor | None
) -> Tensor:
    """Return for each token its unit, its number in the unit, its position and its id [sequence, token, 4].

    The id is −1 if the model does not read one id per token.
    """
    index = stream.start.unsqueeze(1) + torch.arange(position.shape[1])
    tokens = torch.full_like(position, -1)
    # Ids of another length are those of another stack, such as bytes in front of a
    # model that pools them.
    if ids is not None and ids.shape == position.shape and not ids.is_floating_point():
        tokens = ids.long()
    return torch.stack(
        [unit.unsqueeze(1).expand_as(position), index, position, tokens], -1
    )


def require_labels(batch: Batch, classes: Sequence[str]) -> Tensor:
    """Return the number of each sequence's class [sequence], for metrics of classes; UsageError if the batch has none.

    classes   the names of the classes
    """
    if batch.label is None or not classes:
        got = "labels, but no list of the classes"
        if batch.label is None:
            got = "batches without labels"
        cure = "use anisoscope classes; or give vectors with labels, or `labels` [sequence] in a list of dicts"
        raise UsageError("labelled sequences, for class_direction", got, cure)
    # A larger one would be added to a class of the next group, since `sums.classes`
    # makes one index of both.
    largest = int(batch.label.max())
    if largest >= len(classes):
        expected = f"labels below {len(classes)}, the number of classes"
        raise UsageError(expected, str(largest), "number the classes from 0")
    return batch.label.to(CPU)
