"""The accumulator: sums over groups of whole units, merged by addition.

Every vector of a site is summed, in float64, into the group of its unit (`unit mod groups`). A quantity of the papers
is a pure function of these sums; its interval is the same function with one group left out (`jackknife.py`). Nothing
else is kept of a pass.

Terms of vectors x with u = x / ‖x‖; after the group axis come policy and head, then what is given in brackets:

    n                       vectors counted
    vector, unit [dim]      Σx, Σu
    unit_square [dim]       Σu∘u
    norm, norm_square       Σ‖x‖, Σ‖x‖²
    sequence_cosine         Σ over sequences of A inside the sequence; `sequences`: their number

and without a policy axis:

    subset_n, subset_unit   n and Σu inside token subsets [subset head (dim)]
    moment, unit_moment     Σxxᵀ, Σuuᵀ of the first policy [head dim dim] in coarser groups, moment_n, moment_vector
    zero, nonfinite         vectors left out, counted
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from anisoscope.errors import MeasureError, suggest_names
from anisoscope.sums.device import LARGEST, sum_on_device, sum_weighted
from anisoscope.sums.jackknife import Array

PIECE = 1 << 20
"""Numbers that are summed at once on a CPU: 4 MiB of float32, about the cache of a core."""
SMALL = {torch.float32: 1e-12, torch.float64: 1e-140}
"""Norms under it, and over its inverse, are taken with care: their squares lose digits or overflow (float32: 1e±38)."""
COUNTED = frozenset({"zero", "nonfinite"})  # terms that are always summed
COUNTS = ("n", "rows", "plain.rows")
"""Terms that say of how many vectors, or rows of attention, a site's sums are: the first that is there."""
ROW_STATISTICS = (
    "entropy",
    "score",
    "row_max",
    "row_min",
    "first_mass",
    "row_median",
    "keys",
)
"""Statistics of attention rows that are summed as they are, those that must be finite first."""


class Sums:
    """Sums over groups of units by (site name, term); two are merged by addition.

    `units` holds the indices of the units seen, so that intervals can say how many there were.
    """

    def __init__(self, groups: int = 32) -> None:
        """Start empty; MeasureError for fewer than two groups, since an interval leaves groups out in turn."""
        if groups < 2:
            raise MeasureError(
                "at least 2 groups",
                str(groups),
                "use groups=32: an interval leaves out one group in turn",
            )
        self.groups = groups
        self.units = set[int]()
        self.terms: dict[tuple[str, str], Tensor] = {}
        self._joined: dict[Any, tuple[Tensor, list[Tensor]]] = {}

    def add(self, site: str, values: Mapping[str, Tensor], group: Tensor) -> None:
        """Add per-sequence `values` [sequence, ...] to the sums of a site; `group` [sequence] is the group of each
        sequence.
        """
        on_accelerator = any(value.device.type != "cpu" for value in values.values())
        if on_accelerator:
            # One launch for all terms.
            self._join(site, values).index_add_(0, group, _to_columns(values.values()))
            return
        for term, value in values.items():
            total = self.buffer(
                site, term, (self.groups, *value.shape[1:]), value.device
            )
            total.index_add_(0, group, value.double())

    def _join(self, site: str, values: Mapping[str, Tensor]) -> Tensor:
        """Return one tensor [group, column] that holds the sums of a site under all names of `values`.

        An accelerator adds to all of them at once this way. The terms are views into this tensor; if one of them was
        replaced, the tensor is built again.
        """
        shapes = {
            term: (self.groups, *value.shape[1:]) for term, value in values.items()
        }
        key = (site, *shapes.items())
        if key in self._joined:
            whole, parts = self._joined[key]
            if all(
                self.terms.get((site, term)) is part
                for term, part in zip(values, parts, strict=True)
            ):
                return whole
        buffers = [
            self.buffer(site, term, shapes[term], value.device)
            for term, value in values.items()
        ]
        whole = _to_columns(buffers)
        sizes = [buffer[:1].numel() for buffer in buffers]
        parts = []
        for (term, shape), columns in zip(
            shapes.items(), torch.split(whole, sizes, 1), strict=True
        ):
            part = columns.view(shape)
            self.terms[site, term] = part
            parts.append(part)
        self._joined[key] = whole, parts
        return whole

    def buffer(
        self,
        site: str,
        term: str,
        shape: Iterable[int],
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """Return the float64 tensor that holds the sums of a site under the name `term`, filled with zeros the first
        time.

        MeasureError if its shape differs from the earlier one.
        """
        shape = tuple(shape)
        total = self.terms.get((site, term))
        if total is None:
            total = self.terms[site, term] = torch.zeros(
                shape, dtype=torch.float64, device=device
            )
        elif total.device != torch.device(device):
            # Sums that were read from a file are on the CPU.
            total = self.terms[site, term] = total.to(device)
        if tuple(total.shape) != shape:
            expected = f"{term} of shape {tuple(total.shape)} at {site}, as in the batches before"
            raise MeasureError(
                expected, str(shape), "a site must have one width in the whole corpus"
            )
        return total

    def merge(self, other: "Sums") -> "Sums":
        """Return the sums of two states together; the order does not matter.

        MeasureError if the numbers of groups, or the shapes of sums of one name, differ.
        """
        if self.groups != other.groups:
            cure = "measure both with the same --groups"
            raise MeasureError(
                f"sums over {self.groups} groups", str(other.groups), cure
            )
        merged = Sums(self.groups)
        merged.units = self.units | other.units
        # Cloned: batches are added in place, and a merged state must not change the two
        # it came from.
        merged.terms = {key: total.clone() for key, total in self.terms.items()}
        for key, total in other.terms.items():
            if key not in merged.terms:
                merged.terms[key] = total.clone()
                continue
            expected = merged.terms[key].shape
            if total.shape != expected:
                came = str(tuple(total.shape))
                raise MeasureError(
                    f"{key} of shape {tuple(expected)}",
                    came,
                    "merge runs of one model only",
                )
            merged.terms[key] = merged.terms[key] + total
        return merged

    def sites(self) -> list[str]:
        """List the names of the sites (places in the model) that have sums."""
        return sorted({site for site, _ in self.terms})

    def at(self, site: str, needs: Iterable[str] | None = None) -> dict[str, Array]:
        """Return {name: sums [group, …]} of one site as numpy arrays: all names, or those of `needs` that exist."""
        if needs is None:
            needs = [term for name, term in self.terms if name == site]
        of_site: dict[str, Array] = {}
        for term in needs:
            if (site, term) in self.terms:
                of_site[term] = self.terms[site, term].cpu().numpy()
        return of_site

    def save(self, path: Path) -> None:
        """Write the sums to a safetensors file."""
        tensors = {
            f"{site}|{term}": value.cpu().contiguous()
            for (site, term), value in self.terms.items()
        }
        # A name without a site cannot clash with a sum. Safetensors keeps text only in
        # its metadata.
        tensors["|units"] = torch.tensor(sorted(self.units), dtype=torch.int64)
        save_file(tensors, path, metadata={"groups": str(self.groups)})

    @classmethod
    def load(cls, path: Path) -> "Sums":
        """Read sums from a file that `save` wrote."""
        with safe_open(path, framework="pt") as file:
            sums = cls(int(file.metadata()["groups"]))
            for name in file.keys():  # noqa: SIM118
                site, term = name.split("|")
                if site:
                    sums.terms[site, term] = file.get_tensor(name)
                else:
                    sums.units = set(file.get_tensor(name).tolist())
        return sums

    def all_reduce(self) -> "Sums":
        """Return the sums of all processes together, in each of them, by one all-reduce. All processes must call it."""
        import torch.distributed as dist

        shapes, units = self._gather_shapes()
        # NCCL reduces tensors on a GPU only, Gloo those on the CPU.
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        # A process without a term of the others adds zeros to it.
        parts = [
            self.buffer(*key, shape, device).flatten().to(device)
            for key, shape in shapes.items()
        ]
        # Without any site there is nothing to concatenate, yet every process must take
        # part in the call.
        nothing = torch.zeros(0, dtype=torch.float64, device=device)
        flat = torch.cat([nothing, *parts])
        dist.all_reduce(flat)
        sizes = [len(part) for part in parts]
        reduced = Sums(self.groups)
        reduced.units = units
        for (key, shape), part in zip(
            shapes.items(), torch.split(flat, sizes), strict=True
        ):
            reduced.terms[key] = part.view(shape)
        return reduced

    def _gather_shapes(self) -> tuple[dict[tuple[str, str], tuple[int, ...]], set[int]]:
        """Return ({(site, term): shape}, units seen) of all processes together, in the same order in each process."""
        import torch.distributed as dist

        ours = {key: tuple(value.shape) for key, value in self.terms.items()}
        everyone = [(ours, self.units)] * dist.get_world_size()
        dist.all_gather_object(everyone, (ours, self.units))
        shapes: dict[tuple[str, str], tuple[int, ...]] = {}
        units: set[int] = set()
        for their_shapes, their_units in everyone:
            shapes |= their_shapes
            units |= their_units
        # Sorted, since the columns of the flattened tensor must mean the same in every
        # process.
        return dict(sorted(shapes.items())), units


def _to_columns(values: Iterable[Tensor]) -> Tensor:
    """Concatenate tensors [row, …] along their flattened other axes, in float64, to [row, column]."""
    return torch.cat([value.reshape(len(value), -1) for value in values], 1).double()


class Totals:
    """The sums of one site as a metric sees them, with a leading replicate axis.

    `totals["unit"]` is [replicate, ...]: replicate 0 sums every group, replicate r leaves group r − 1 out.
    `groups("unit")` is [group, ...], for functions that are not linear in a group's sums; `over` adds such a
    per-group value up, replicate by replicate. Groups that hold nothing of the site are not groups.
    """

    def __init__(self, terms: Mapping[str, Array]) -> None:
        """Take sums by group [group, ...], and note which groups hold any data."""
        self._terms = terms
        # A group without data leaves nothing out. As a replicate it would equal the
        # whole, and the interval would count a degree of freedom too many.
        has_data = [
            value.reshape(len(value), -1).any(axis=1) for value in terms.values()
        ]
        self.present = np.any(has_data, axis=0)

    @property
    def n_groups(self) -> int:
        """Return how many groups of units (documents, clips) hold any data."""
        return int(self.present.sum())

    def without(self, index: int) -> "Totals":
        """Return the sums without one group; `index` counts only groups that hold any data."""
        return Totals(
            {term: np.delete(self.groups(term), index, axis=0) for term in self._terms}
        )

    def groups(self, term: str) -> Array:
        """Return the sums of a term by group [group, ...], only for groups that hold any data; MeasureError for an
        unknown term.
        """
        if term not in self._terms:
            raise MeasureError(
                "a sum that the metric names in `needs`",
                repr(term),
                suggest_names(term, self._terms),
            )
        return self._terms[term][self.present]

    def over(self, per_group: Array) -> Array:
        """Turn sums by group into jackknife replicates: the sum over all groups, then the sums without each of them.

        per_group   [group, …]

        Returns [replicate, …].
        """
        # Sums are linear: what is left without a group is the whole less that group.
        # All replicates cost one pass.
        total = per_group.sum(axis=0, keepdims=True)
        return np.concatenate([total, total - per_group])

    def __getitem__(self, term: str) -> Array:
        """Return the sums of a term [replicate, ...]: over all groups, then without each one."""
        return self.over(self.groups(term))

    def __contains__(self, term: str) -> bool:
        """Return whether the sums include this term."""
        return term in self._terms


def sum_vectors(
    x: Float[Tensor, "sequence head token dim"],
    masks: Shaped[Tensor, "sequence policy token"],
    subsets: Shaped[Tensor, "sequence subset token"] | None,
    terms: frozenset[str],
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence head token"]]:
    """Return sums over the tokens of each sequence, by name, and the inverse norm of every vector (0 if it is left
    out).

    masks     which tokens each token policy counts
    subsets   which tokens are in each subset (special, first, …); None: no sums by subset
    terms     names of the sums: `n`, `norm`, `vector` (Σx), `unit` (Σ of unit vectors), `unit_square`, …

    Vectors that are zero or not finite are counted and enter no sum. On a CPU the vectors are processed piece by piece,
    so that what is read several times is read from the cache.
    """
    on_cpu = x.device.type == "cpu"
    # An accelerator reads half precision as it is.
    if not x.dtype.is_floating_point or (x.dtype.itemsize < 4 and on_cpu):
        x = x.float()
    # [sequence token head dim], as most models keep heads: no copy is made below.
    x = x.transpose(1, 2)
    if subsets is None or "subset_unit" not in terms:
        # No rows, but with the dtype and device of the masks, so that nothing below
        # needs a special case.
        subsets = masks[:, :0]
    if on_cpu:
        out, inverse = _sum_in_pieces(x, masks, subsets, terms)
    else:
        out, inverse = sum_on_device(x, masks, subsets, terms)
    return _select_terms(out, terms), inverse.transpose(1, 2)


def _sum_in_pieces(
    x: Float[Tensor, "sequence token head dim"],
    masks: Shaped[Tensor, "sequence policy token"],
    subsets: Shaped[Tensor, "sequence subset token"],
    terms: frozenset[str],
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence token head"]]:
    """Return the sums of `_sum_piece` over all vectors, by pieces of about `PIECE` numbers."""
    size = max(x.shape[1:].numel(), 1)  # of one sequence
    sequences = max(PIECE // size, 1)
    # A sequence larger than a piece is cut into pieces of equal length.
    cuts = math.ceil(size / PIECE)
    tokens = math.ceil(max(x.shape[1], 1) / cuts)
    sums: list[dict[str, Tensor]] = []
    inverses: list[Tensor] = []
    rows = zip(
        torch.split(x, sequences),
        torch.split(masks, sequences),
        torch.split(subsets, sequences),
        strict=True,
    )
    for vectors, of_masks, of_subsets in rows:
        pieces = zip(
            torch.split(vectors, tokens, 1),
            torch.split(of_masks, tokens, 2),
            torch.split(of_subsets, tokens, 2),
            strict=True,
        )
        parts: list[dict[str, Tensor]] = []
        inverses_of_parts: list[Tensor] = []
        for piece in pieces:
            part, inverse = _sum_piece(*piece, terms)
            parts.append(part)
            inverses_of_parts.append(inverse)
        # Pieces of one long sequence add up; short sequences of one piece have a row
        # each.
        sums.append({name: sum(part[name] for part in parts) for name in parts[0]})  # type: ignore[misc]
        inverses.append(torch.cat(inverses_of_parts, 1))
    return _concatenate_sums(sums), torch.cat(inverses)


def _concatenate_sums(sums: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Concatenate sums of several sequences [sequence, …], name by name."""
    return {name: torch.cat([part[name] for part in sums]) for name in sums[0]}


def _select_terms(sums: dict[str, Tensor], terms: frozenset[str]) -> dict[str, Tensor]:
    """Return the sums by sequence that `terms` names, and the cosine inside sequences if it is among them."""
    if "sequence_cosine" in terms and "sequence_cosine" not in sums:
        sums |= _cosine_inside_sequences(sums["n"], sums["unit"].double())
    return {name: value for name, value in sums.items() if name in terms | COUNTED}


def sum_single_vectors(
    x: Float[Tensor, "sequence 1 dim"],
    masks: Shaped[Tensor, "sequence policy 1"],
    subsets: Shaped[Tensor, "sequence subset 1"] | None,
    terms: frozenset[str],
    group: Int[Tensor, " sequence"],
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence 1 1"], Int[Tensor, " group"]]:
    """Sum vectors by group if each sequence has only one vector: `sum_vectors`, faster.

    x        vectors; masks, subsets: which of them count, for each policy (kind of tokens) and subset
    terms    names of the sums, as of `sum_vectors`
    group    of each vector

    Returns (sums [group, ...] by term, inverse norms of the vectors, the group that each row of the sums is of). The
    vectors of a group are treated as one sequence, so that its sums are matrix products.
    """
    inside_sequences = {"sequence_cosine", "sequences"}
    rest = terms - inside_sequences
    if subsets is None:
        subsets = masks[:, :0]
    present, counts = torch.unique(group, return_counts=True)
    size = len(present)
    # Do the groups come as 0, 1, …, 0, 1, …? A last round that is not full goes the
    # general way.
    have_equal_counts = bool((counts == counts[0]).all())
    if have_equal_counts and torch.equal(group, group[:size].repeat(int(counts[0]))):
        out, inverse = _sum_groups_in_turn(x, masks, subsets, rest, size)
        present = group[:size]
    else:
        out, inverse = _sum_each_group(x, masks, subsets, rest, group, present)
    if "sequence_cosine" in terms:
        # No sequence has two vectors.
        for name in inside_sequences:
            out[name] = torch.zeros_like(out["n"])
    chosen = {name: value for name, value in out.items() if name in terms | COUNTED}
    return chosen, inverse, present


def _sum_groups_in_turn(
    x: Tensor, masks: Tensor, subsets: Tensor, terms: frozenset[str], size: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Return sums by group and inverse norms of vectors whose groups take turns: 0, 1, …, `size` − 1, 0, 1, …

    Units that are numbered one by one have such groups. The vectors of a group are then a view, not a copy.

    x                vectors [sequence, 1, dim]
    masks, subsets   which vectors count, one row per token policy or subset [sequence, row, 1]
    terms            names of the sums
    size             number of groups
    """
    # [sequence 1 dim] to [group turn dim]: the group is now the sequence, its vectors
    # are the tokens.
    vectors = torch.unflatten(x[:, 0], 0, (-1, size)).transpose(0, 1)
    weights = torch.unflatten(masks[:, :, 0], 0, (-1, size)).permute(1, 2, 0)
    of_subsets = torch.unflatten(subsets[:, :, 0], 0, (-1, size)).permute(1, 2, 0)
    out, inverse = sum_vectors(vectors.unsqueeze(1), weights, of_subsets, terms)
    # From [group, head, turn] back to the order in which the vectors came.
    return out, inverse.permute(2, 0, 1).reshape(-1, 1, 1)


def _sum_each_group(
    x: Tensor,
    masks: Tensor,
    subsets: Tensor,
    terms: frozenset[str],
    group: Tensor,
    present: Tensor,
) -> tuple[dict[str, Tensor], Tensor]:
    """Return sums by group and inverse norms of vectors whose groups come in any order.

    x                vectors [sequence, 1, dim]
    masks, subsets   which vectors count, one row per token policy or subset [sequence, row, 1]
    terms            names of the sums
    group            the group of each vector
    present          the groups that have vectors
    """
    sums: list[dict[str, Tensor]] = []
    inverses: list[Tensor] = []
    places: list[Tensor] = []
    for number in present.tolist():
        place = (group == number).nonzero().squeeze(1)
        chosen = as_slice(place)
        vectors = x[chosen].transpose(0, 1).unsqueeze(1)
        weights = masks[chosen].permute(2, 1, 0)
        of_subsets = subsets[chosen].permute(2, 1, 0)
        of_group, inverse = sum_vectors(vectors, weights, of_subsets, terms)
        places.append(place)
        sums.append(of_group)
        inverses.append(inverse.permute(2, 0, 1))
    # Back from the order of groups to that of vectors.
    order = torch.cat(places).argsort()
    return _concatenate_sums(sums), torch.cat(inverses)[order]


def as_slice(index: Int[Tensor, " place"]) -> Tensor | slice:
    """Return ascending indices as a slice if they are equally spaced, which avoids a copy; else unchanged."""
    first, last, count = int(index[0]), int(index[-1]), len(index)
    step = 1
    if count > 1:
        step = int(index[1]) - first
    if last - first != step * (count - 1):
        return index
    # Two indices are always equally spaced.
    if count > 2 and not bool((index.diff() == step).all()):
        return index
    return slice(first, last + 1, step)


def _sum_piece(
    x: Float[Tensor, "sequence token head dim"],
    masks: Shaped[Tensor, "sequence policy token"],
    subsets: Shaped[Tensor, "sequence subset token"],
    terms: frozenset[str],
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence token head"]]:
    """Return the sums over tokens of one piece of the vectors by name, and inverse norms (0 if a vector is left out).

    The arguments are those of `sum_vectors`, with the token axis before the head axis.
    """
    square = None
    if x.stride(-1) != 1:
        # Of a map, whose channels are far apart in memory: squares are made once and used twice.
        square = x.square()
        norm = square.sum(-1).sqrt()
    else:
        norm = torch.linalg.vector_norm(x, dim=-1)
    all_usual, some_extreme = _check_range_of_norms(x, norm)
    finite = None
    if some_extreme:
        x, norm, finite = _redo_in_float64(x)
    # Norms of vectors around a large mean are nearly equal: their variance is a small difference.
    norm = norm.double()
    # Nearly every batch comes here: without masks for left-out vectors the sums take a
    # fifth less.
    if all_usual:
        inverse = norm.reciprocal().to(x.dtype)
        counted = torch.ones_like(norm)
        none = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        out = {"zero": none, "nonfinite": none}
    else:
        usable = norm > 0
        inverse = torch.where(usable, norm.reciprocal(), 0.0).to(x.dtype)
        counted = usable.double()
        if finite is None:
            finite = torch.ones_like(usable)
        # The first token policy is that of all real tokens: padding is zero too, but is
        # not reported as such.
        real = masks[:, 0].bool().unsqueeze(-1)
        out = {
            "zero": (real & finite & ~usable).sum((1, 2)),
            "nonfinite": (real & ~finite).sum((1, 2)),
        }
    masks = masks.to(x.dtype)
    # Counts and norms in one product [sequence, policy, 3 · head], in float64.
    columns = torch.cat([counted, norm, norm.square()], -1)
    out["n"], out["norm"], out["norm_square"] = torch.matmul(
        masks.double(), columns
    ).chunk(3, -1)
    subsets = subsets.to(x.dtype)
    out["subset_n"] = torch.matmul(subsets, counted.to(x.dtype))
    out["vector"], out["unit"], out["subset_unit"] = _sum_linear_terms(
        x, inverse, masks, subsets
    )
    if "unit_square" in terms:
        if some_extreme:
            square = None  # of the vectors as they were
        out["unit_square"] = _sum_unit_squares(
            x, inverse, masks, square, scales_weights=not some_extreme
        )
    return out, inverse


def _check_range_of_norms(x: Tensor, norm: Tensor) -> tuple[bool, bool]:
    """Return (are all norms in the range that can be squared in the dtype of `x`, do some vectors need float64).

    Vectors of zeros are out of that range, but do not need float64: if there are no others, both are False.

    x      vectors [..., dim]
    norm   their norms [...]
    """
    least, most = 1.0, 1.0
    if norm.numel():
        least, most = torch.stack(norm.aminmax()).tolist()  # NaN if one norm is
    small = SMALL[x.dtype]
    large = 1 / small
    if small < least and most < large:
        return True, False
    # Written with "not", so that a norm that is NaN comes here too.
    if not most < large:
        return False, True
    # A norm of 0 may be a vector of zeros, or one whose squares vanished in float32.
    return False, bool(x[norm <= small].any())


def _sum_unit_squares(
    x: Tensor,
    inverse: Tensor,
    masks: Tensor,
    square: Tensor | None,
    scales_weights: bool,
) -> Float[Tensor, "sequence policy head dim"]:
    """Return Σu∘u over the tokens of each mask.

    x                [sequence, token, head, dim]
    inverse          inverse norms [sequence, token, head]
    masks            [sequence, policy, token]
    square           x∘x, if it is known
    scales_weights   whether 1/‖x‖² can be computed without overflow

    For a single head, x∘x is summed with the weights 1/‖x‖², so that unit vectors are never stored.
    """
    if x.shape[2] > 1 or not scales_weights:
        return sum_weighted(masks, (x * inverse.unsqueeze(-1)).square())
    if square is None:
        square = x.square()
    return sum_weighted(masks * inverse.square().transpose(1, 2), square)


def _sum_linear_terms(
    x: Tensor, inverse: Tensor, masks: Tensor, subsets: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σx and Σu over the tokens of each mask, and Σu over those of each subset (x vectors, u unit vectors).

    x         [sequence, token, head, dim]
    inverse   inverse norms [sequence, token, head]
    masks     [sequence, policy, token]
    subsets   [sequence, subset, token]

    For a single head, Σu is a sum of x with the weights 1/‖x‖: one matrix product gives all three, and unit vectors
    are never stored.
    """
    policies = masks.shape[1]
    weights = torch.cat([masks, subsets], 1)
    if x.shape[2] == 1:
        scaled = weights * inverse.transpose(1, 2)
        # Rows of `linear`: Σx by policy, Σu by policy, Σu by subset.
        linear = sum_weighted(torch.cat([masks, scaled], 1), x)
        return (
            linear[:, :policies],
            linear[:, policies : 2 * policies],
            linear[:, 2 * policies :],
        )
    units = sum_weighted(weights, x * inverse.unsqueeze(-1))
    return sum_weighted(masks, x), units[:, :policies], units[:, policies:]


def _cosine_inside_sequences(n: Tensor, unit: Tensor) -> dict[str, Tensor]:
    """Return the mean cosine of pairs of vectors inside each sequence, with the terms that are summed over sequences.

    `sequence_cosine` is this cosine, 0 if the sequence has fewer than two vectors; `sequences` is 1 if it has more,
    else 0.

    n      number of vectors of each sequence
    unit   sum of the unit vectors of each sequence [..., dim]
    """
    several = n > 1
    # A = (‖Σu‖² − n) / (n(n − 1)): the n pairs of a vector with itself are taken off.
    cosine = (unit.square().sum(-1) - n) / (n * (n - 1)).clamp(min=1)
    return {
        "sequence_cosine": torch.where(several, cosine, 0.0),
        "sequences": several.double(),
    }


def _redo_in_float64(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (vectors in float64, their norms, whether each is finite); used if float32 cannot hold squared norms.

    Vectors that are not finite become zero. So do those whose squared norm even float64 cannot hold: with norms under
    1e-153 they count as zero vectors, over 1e153 as not finite.

    x   vectors [..., dim]
    """
    # Set to zero, not weighted by zero: Inf · 0 is NaN, and would spoil the sums of the
    # whole sequence.
    finite = torch.isfinite(x).all(-1)
    x = torch.where(finite.unsqueeze(-1), x, 0.0).double()
    norm = torch.linalg.vector_norm(x, dim=-1)
    finite &= norm < LARGEST
    usable = finite & (norm > 1 / LARGEST)
    x = torch.where(usable.unsqueeze(-1), x, 0.0)
    norm = torch.where(usable, norm, 0.0)
    return x, norm, finite


def sum_rows(
    rows: Mapping[str, Tensor], real: Bool[Tensor, "sequence head query"]
) -> dict[str, Float[Tensor, "sequence head *edges"]]:
    """Sum statistics of attention rows (one row per query) over real queries: {name: [sequence, head, …]}.

    rows   statistics [sequence, head, query] by name, as `capture.rows.attention_rows` returns them
    real   which queries are counted

    `rows` counts the rows, `normalised_rows` those with two outcomes or more (visible keys and the head's sink).
    `entropy_normalised` sums entropy / log(outcomes) over the latter.
    """
    # Stacked, since an accelerator takes longer to launch an operation than to go through the numbers.
    names = [name for name in ROW_STATISTICS if name in rows]
    stacked = torch.stack([rows[name] for name in names])
    # Entropy and score are the first two; a NaN is their largest number.
    sound = torch.linalg.vector_norm(stacked[:2], torch.inf, dim=0) < torch.inf
    counted = real & sound
    weights = counted.to(stacked.dtype)
    cleaned = torch.where(counted, stacked.nan_to_num(0.0), 0.0)
    terms = dict(zip(names, cleaned.sum(-1), strict=True))
    terms["pairs"] = terms.pop("keys")
    # One outcome has no entropy to normalise.
    outcomes = rows["outcomes"]
    several = weights * (outcomes > 1)
    normalised = several * cleaned[0] / outcomes.clamp(min=2).log()
    # NaN for a sequence with fewer than two rows: it adds 0 to the sum and is not
    # counted.
    similarity = rows["row_similarity"]
    terms |= {
        "rows": weights.sum(-1),
        "nonfinite": (real ^ counted).sum((1, 2)),
        "normalised_rows": several.sum(-1),
        "entropy_normalised": normalised.sum(-1),
        "row_similarity": similarity.nan_to_num(0.0),
        "row_sequences": (similarity == similarity).double(),
    }
    if "score_histogram" in rows:
        terms["score_histogram"] = rows["score_histogram"]
    return terms
