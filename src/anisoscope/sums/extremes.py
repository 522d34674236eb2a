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
"""What is kept about the place of a value: its unit, the number of its token in the unit (so that tokens of one unit
differ), its position in its sequence, and the id of its token (below 0: none)."""
NOWHERE = (1 << 62, 1 << 62, -1, -1)
"""The place of the largest of no values."""
VALUE, AT = "value", "where"


class Extremes:
    """Largest values by (site name, term): a float64 tensor, and where each was [..., 4] as `WHERE` describes.

    Of equal values, the one with the smallest unit and index is kept, so that the order of batches does not matter.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.terms: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}

    def offer(
        self,
        site: str,
        term: str,
        value: Float[Tensor, "*shape"],
        where: Int[Tensor, "*shape 4"],
    ) -> None:
        """Keep `value` wherever it is larger than the value kept so far; NaN and −∞ are ignored.

        site    the place in the model, by name
        term    what the values are, such as `logit`
        where   for each value the token that had it, as `WHERE` describes

        MeasureError if the shape differs from that of earlier batches.
        """
        empty = value.isnan() | value.isneginf()
        value = torch.where(empty, -torch.inf, value).double()
        # A place after every real one, so that it never wins a tie.
        nowhere = torch.tensor(NOWHERE, device=where.device)
        where = torch.where(empty.unsqueeze(-1), nowhere, where)
        if (site, term) not in self.terms:
            self.terms[site, term] = value, where
            return
        kept_value, kept_where = self.terms[site, term]
        if kept_value.shape != value.shape:
            expected = f"{term} of shape {tuple(kept_value.shape)} at {site}, as in the batches before"
            cure = "a site must have one width in the whole corpus"
            raise MeasureError(expected, str(tuple(value.shape)), cure)
        kept = kept_value.to(value.device), kept_where.to(value.device)
        self.terms[site, term] = take_larger(kept, (value, where))

    def merge(self, other: "Extremes") -> "Extremes":
        """Return the larger value of both states, everywhere; the order does not matter."""
        merged = Extremes()
        for part in (self, other):
            for (site, term), (value, where) in part.terms.items():
                merged.offer(site, term, value.cpu(), where.cpu())
        return merged

    def at(self, site: str) -> dict[str, tuple[Array, Array]]:
        """Return {name: (largest values, where they were [..., 4])} of one site, as numpy arrays."""
        of_site: dict[str, tuple[Array, Array]] = {}
        for (name, term), (value, where) in self.terms.items():
            if name == site:
                of_site[term] = value.cpu().numpy(), where.cpu().numpy()
        return of_site

    def without(self, sites: Iterable[str]) -> "Extremes":
        """Return the largest values without those of some sites (places in the model)."""
        left_out = set(sites)
        kept = Extremes()
        for (site, term), pair in self.terms.items():
            if site not in left_out:
                kept.terms[site, term] = pair
        return kept

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the state as named tensors, to be saved: the largest values, and the tokens that had them.

        prefix   put before every name, so that the file can hold other tensors too
        """
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

        # A copy on the CPU: what is gathered is pickled, and goes to processes with
        # other devices.
        ours = self.merge(Extremes())
        everyone = [ours] * dist.get_world_size()
        dist.all_gather_object(everyone, ours)
        return reduce(Extremes.merge, everyone)

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of the values that are kept."""
        size = 0
        for value, where in self.terms.values():
            size += value.nbytes + where.nbytes
        return size


def take_larger(
    first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return elementwise the larger of two values, with the token that had it.

    first, second   (values, where each was [..., 4], as `WHERE` describes)

    Of equal values, the one of the smaller unit wins, then that of the earlier token in the unit.
    """
    value, where = first
    other, other_where = second
    unit, index = where[..., 0], where[..., 1]
    other_unit, other_index = other_where[..., 0], other_where[..., 1]
    # The index counts within a unit, so it decides only between tokens of one unit.
    is_earlier = other_unit < unit
    is_earlier |= (other_unit == unit) & (other_index < index)
    wins = (other > value) | ((other == value) & is_earlier)
    larger = torch.where(wins, other, value)
    place = torch.where(wins.unsqueeze(-1), other_where, where)
    return larger, place


def find_largest_over_tokens(
    x: Float[Tensor, "sequence token *rest"], places: Int[Tensor, "sequence token 4"]
) -> tuple[Float[Tensor, "*rest"], Int[Tensor, "*rest 4"]]:
    """Return the largest value over all tokens of a batch, and the token that had it.

    x        values, −∞ at tokens that are not counted
    places   four numbers that identify each token: unit, number in the unit, position, id (`WHERE`)

    Of equal values, the one in the unit (document) with the lowest number wins, then that of the earliest token in it.
    """
    values = x.flatten(0, 1)
    tokens = places.flatten(0, 1)
    if not _are_in_order(tokens):
        order = _order_by_place(tokens)
        values = values[order]
        tokens = tokens[order]
    # In order of place, the first of equal values is the one that `take_larger` would
    # keep.
    largest = values.amax(0)
    is_largest = values == largest
    # argmax returns the first of equal values on a CPU only: so the smallest number of a row is looked for.
    count = len(values)
    number = torch.arange(count, dtype=torch.int32, device=values.device).view(
        -1, *[1] * (values.dim() - 1)
    )
    # A column with a NaN equals its maximum nowhere: any row will do, since `offer`
    # ignores NaN.
    first = torch.where(is_largest, number, count).amin(0).clamp(max=count - 1)
    return largest, tokens[first]


def _are_in_order(places: Int[Tensor, "token 4"]) -> bool:
    """Return whether tokens are sorted by unit, then by their number in the unit, already.

    On an accelerator the answer is False, since the host would wait for it.

    places   of each token: number of its unit, its number in the unit, its position, its id
    """
    if places.device.type != "cpu":
        return False
    unit, index = places[:-1, 0], places[:-1, 1]
    next_unit, next_index = places[1:, 0], places[1:, 1]
    in_order = (next_unit > unit) | ((next_unit == unit) & (next_index >= index))
    return bool(in_order.all())


def _order_by_place(places: Int[Tensor, "token 4"]) -> Int[Tensor, " token"]:
    """Return the indices that sort tokens by unit, then by their number in the unit.

    places   of each token: number of its unit, its number in the unit, its position, its id
    """
    # Two stable sorts, the less important key first, sort by both.
    by_index = torch.argsort(places[:, 1], stable=True)
    return by_index[torch.argsort(places[by_index, 0], stable=True)]
