"""Largest values and where they were; two states are merged by taking the larger value.

A maximum is associative, commutative and neutral if empty, as sums are. It has no interval, since the jackknife does
not hold for a maximum. The smallest of some values is kept as the largest of their negatives.
"""

from collections.abc import Iterable
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from anisoscope.errors import MeasureError
from anisoscope.sums.jackknife import Array

WHERE = ("unit", "index", "position", "token")
"""What is known of where a value was: its unit, the number of its token in the unit (which tells tokens of one unit
apart), its position in its sequence, and the id of its token (below 0: none)."""
NOWHERE = (1 << 62, 1 << 62, -1, -1)
"""Where the largest of nothing was."""
VALUE, AT = "value", "where"


class Extremes:
    """Largest values by (site name, term): a float64 tensor, and where each was [..., 4] as `WHERE` describes.

    Of equal values, the one with the smallest unit and index is kept, so that the order of batches does not matter.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.terms: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def offer(self, site: str, term: str, value: Float[Tensor, "*shape"], where: Int[Tensor, "*shape 4"]) -> None:
        """Keep `value` wherever it is larger than the value kept so far; NaN and −∞ are ignored.

        site    the place in the model, by name
        term    what the values are, such as `logit`
        where   for each value the token that had it, as `WHERE` describes

        MeasureError if the shape differs from that of earlier batches.
        """
        empty = value.isnan() | value.isneginf()
        value = torch.where(empty, -torch.inf, value).double()
        where = torch.where(empty.unsqueeze(-1), torch.tensor(NOWHERE, device=where.device), where)
        held = self.terms.get((site, term))
        if held is None:
            self.terms[site, term] = value, where
            return
        if held[0].shape != value.shape:
            expected = f"{term} of shape {tuple(held[0].shape)} at {site}, as in the batches before"
            cure = "a site must have one width in the whole corpus"
            raise MeasureError(expected, str(tuple(value.shape)), cure)
        self.terms[site, term] = larger((held[0].to(value.device), held[1].to(value.device)), (value, where))

    def merge(self, other: "Extremes") -> "Extremes":
        """Return the larger value of both states, everywhere; the order does not matter."""
        merged = Extremes()
        for part in (self, other):
            for (site, term), (value, where) in part.terms.items():
                merged.offer(site, term, value.cpu(), where.cpu())
        return merged

    def at(self, site: str) -> dict[str, tuple[Array, Array]]:
        """Return {name: (largest values, where they were [..., 4])} of one site, as numpy arrays."""
        found = {term: pair for (name, term), pair in self.terms.items() if name == site}
        return {term: (value.cpu().numpy(), where.cpu().numpy()) for term, (value, where) in found.items()}

    def without(self, sites: Iterable[str]) -> "Extremes":
        """Return the largest values without those of some sites (places in the model)."""
        gone = {*sites}
        kept = Extremes()
        kept.terms = {key: pair for key, pair in self.terms.items() if key[0] not in gone}
        return kept

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the largest values and where they were as named tensors, to be saved under names with `prefix`."""
        named: dict[str, Tensor] = {}
        for (site, term), (value, where) in self.terms.items():
            named[f"{prefix}{site}|{term}|{VALUE}"] = value
            named[f"{prefix}{site}|{term}|{AT}"] = where
        return named

    def restore(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Load the state that `tensors` returned with the same prefix."""
        for name, value in tensors.items():
            if name.startswith(prefix) and name.endswith(f"|{VALUE}"):
                site, term, _ = name.removeprefix(prefix).split("|")
                self.terms[site, term] = value, tensors[f"{prefix}{site}|{term}|{AT}"]

    def all_reduce(self) -> "Extremes":
        """Return the larger values over all processes, in each of them. All processes must call it."""
        import torch.distributed as dist

        ours = self.merge(Extremes())
        everyone = [ours] * dist.get_world_size()
        dist.all_gather_object(everyone, ours)
        return reduce(Extremes.merge, everyone)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the values that are kept."""
        return sum(x.numel() * x.itemsize for pair in self.terms.values() for x in pair)


def larger(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return elementwise the larger of two values, with the token that had it.

    first, second   (values, where each was [..., 4], as `WHERE` describes)

    Of equal values, the one of the smaller unit wins, then that of the earlier token in the unit.
    """
    (value, where), (other, other_where) = first, second
    earlier = other_where[..., 0] < where[..., 0]
    earlier |= (other_where[..., 0] == where[..., 0]) & (other_where[..., 1] < where[..., 1])
    takes = (other > value) | ((other == value) & earlier)
    return torch.where(takes, other, value), torch.where(takes.unsqueeze(-1), other_where, where)


def largest_over_tokens(
    x: Float[Tensor, "sequence token *rest"], places: Int[Tensor, "sequence token 4"]
) -> tuple[Float[Tensor, "*rest"], Int[Tensor, "*rest 4"]]:
    """Return the largest value over all tokens of a batch, and the token that had it.

    x        values, −∞ at tokens that are not counted
    places   which token each one is, as `WHERE` describes

    Of equal values, the one of the smallest unit wins, then that of the earliest token in the unit.
    """
    flat, flat_places = x.flatten(0, 1), places.flatten(0, 1)
    if not _are_in_order(flat_places):
        order = _by_place(flat_places)
        flat, flat_places = flat[order], flat_places[order]
    largest = flat.amax(0)
    tied = flat == largest
    # torch promises the first of equal values on a CPU only
    number = torch.arange(len(flat), dtype=torch.int32, device=flat.device).view(-1, *[1] * (flat.dim() - 1))
    first = torch.where(tied, number, len(flat)).amin(0).clamp(max=len(flat) - 1)
    return largest, flat_places[first]


def _are_in_order(places: Int[Tensor, "token 4"]) -> bool:
    """Return whether tokens are in the order of `_by_place` already; on an accelerator False, since the host would
    wait for the answer.
    """
    if places.device.type != "cpu":
        return False
    (unit, index), (next_unit, next_index) = (part[:, :2].unbind(1) for part in (places[:-1], places[1:]))
    return bool(((next_unit > unit) | ((next_unit == unit) & (next_index >= index))).all())


def _by_place(places: Int[Tensor, "token 4"]) -> Int[Tensor, " token"]:
    """Return the order of tokens by unit, then by their number in the unit, as indices."""
    by_index = torch.argsort(places[:, 1], stable=True)
    return by_index[torch.argsort(places[by_index, 0], stable=True)]
