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

from collections.abc import Iterable, Mapping
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


class Sums:
    """Sums over groups of units by (site name, term); two are merged by addition.

    `units` holds the indices of the units seen, so that intervals can say how many there were.
    """

    def __init__(self, groups: int = 32) -> None:
        """Start empty; MeasureError for fewer than two groups, since an interval leaves groups out in turn."""
        if groups < 2:
            raise MeasureError("at least 2 groups", str(groups), "use groups=32; an interval needs groups to leave out")
        self.groups, self.units = groups, set[int]()
        self.terms: dict[tuple[str, str], Tensor] = {}
        self._joined: dict[Any, tuple[Tensor, list[Tensor]]] = {}

    def add(self, site: str, values: Mapping[str, Tensor], group: Tensor) -> None:
        """Add per-sequence `values` [sequence, ...] to the sums of a site; `group` [sequence] is the group of each
        sequence.
        """
        if any(value.device.type != "cpu" for value in values.values()):
            self._join(site, values).index_add_(0, group, _to_columns(values.values()))
            return
        for term, value in values.items():
            self.buffer(site, term, (self.groups, *value.shape[1:]), value.device).index_add_(0, group, value.double())

    def _join(self, site: str, values: Mapping[str, Tensor]) -> Tensor:
        """Return one tensor [group, …] whose parts are the sums of a site under the names of `values`, side by side.

        An accelerator adds to all of them at once so. The parts stay the terms; if one was replaced, all are joined
        anew.
        """
        key = (site, *((term, value.shape[1:]) for term, value in values.items()))
        whole, parts = self._joined.get(key, (None, []))
        if whole is None or any(self.terms.get((site, t)) is not part for t, part in zip(values, parts, strict=True)):
            shapes = {term: (self.groups, *value.shape[1:]) for term, value in values.items()}
            held = [self.buffer(site, t, shapes[t], value.device) for t, value in values.items()]
            whole = _to_columns(held)
            sizes = [part[:1].numel() for part in held]
            columns = torch.split(whole, sizes, 1)
            parts = [part.view(shape) for part, shape in zip(columns, shapes.values(), strict=True)]
            self.terms |= {(site, term): part for term, part in zip(values, parts, strict=True)}
            self._joined[key] = whole, parts
        return whole

    def buffer(self, site: str, term: str, shape: Iterable[int], device: torch.device | str = "cpu") -> Tensor:
        """Return the float64 tensor that holds the sums of a site under the name `term`, filled with zeros the first
        time.

        MeasureError if its shape differs from the earlier one.
        """
        shape = tuple(shape)
        found = self.terms.get((site, term))
        if found is None:
            found = self.terms[site, term] = torch.zeros(shape, dtype=torch.float64, device=device)
        elif found.device != torch.device(device):  # of a state, which lies on the CPU
            found = self.terms[site, term] = found.to(device)
        if tuple(found.shape) != shape:
            expected = f"{term} of shape {tuple(found.shape)} at {site}, as in the batches before"
            raise MeasureError(expected, str(shape), "a site must have one width in the whole corpus")
        return found

    def merge(self, other: "Sums") -> "Sums":
        """Return the sums of two states together; the order does not matter.

        MeasureError if the numbers of groups, or the shapes of sums of one name, differ.
        """
        if self.groups != other.groups:
            cure = "measure both with the same --groups"
            raise MeasureError(f"sums over {self.groups} groups", str(other.groups), cure)
        merged = Sums(self.groups)
        merged.units = self.units | other.units
        for key in self.terms.keys() | other.terms.keys():
            first, *second = (sums.terms[key] for sums in (self, other) if key in sums.terms)
            if any(part.shape != first.shape for part in second):
                came = str(tuple(second[0].shape))
                raise MeasureError(f"{key} of shape {tuple(first.shape)}", came, "merge runs of one model only")
            merged.terms[key] = sum(second, first.clone())
        return merged

    def sites(self) -> list[str]:
        """List the names of the sites (places in the model) that have sums."""
        return sorted({site for site, _ in self.terms})

    def at(self, site: str, needs: Iterable[str] | None = None) -> dict[str, Array]:
        """Return {name: sums [group, …]} of one site as numpy arrays: all names, or those of `needs` that exist."""
        terms = (term for name, term in self.terms if name == site) if needs is None else needs
        return {term: self.terms[site, term].cpu().numpy() for term in terms if (site, term) in self.terms}

    def save(self, path: Path) -> None:
        """Write the sums to a safetensors file."""
        tensors = {f"{site}|{term}": value.cpu().contiguous() for (site, term), value in self.terms.items()}
        tensors["|units"] = torch.tensor(sorted(self.units), dtype=torch.int64)
        save_file(tensors, path, metadata={"groups": str(self.groups)})

    @classmethod
    def load(cls, path: Path) -> "Sums":
        """Read sums from a file that `save` wrote."""
        with safe_open(path, framework="pt") as file:
            sums = cls(int(file.metadata()["groups"]))
            for name in file.keys():  # noqa: SIM118 (safe_open is no mapping)
                site, term = name.split("|")
                if site:
                    sums.terms[site, term] = file.get_tensor(name)
                else:
                    sums.units = set(file.get_tensor(name).tolist())
        return sums

    def all_reduce(self) -> "Sums":
        """Return the sums of all processes together, in each of them, by one all-reduce. All processes must call it."""
        import torch.distributed as dist

        world = dist.get_world_size()
        ours = (sorted((key, tuple(value.shape)) for key, value in self.terms.items()), self.units)
        everyone: list[tuple[list[tuple[tuple[str, str], tuple[int, ...]]], set[int]]] = [ours] * world
        dist.all_gather_object(everyone, ours)
        shapes = dict(sorted({pair for keys, _ in everyone for pair in keys}))
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        parts = [self.buffer(*key, shape, device).flatten().to(device) for key, shape in shapes.items()]
        flat = torch.cat([torch.zeros(0, dtype=torch.float64, device=device), *parts])
        dist.all_reduce(flat)
        reduced = Sums(self.groups)
        reduced.units = set().union(*(units for _, units in everyone))
        for (key, shape), part in zip(shapes.items(), torch.split(flat, [len(part) for part in parts]), strict=True):
            reduced.terms[key] = part.view(shape)
        return reduced


def _to_columns(values: Iterable[Tensor]) -> Tensor:
    """Return tensors [row, …] side by side in float64, as [row, column]."""
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
        self.present = np.any([value.reshape(len(value), -1).any(axis=1) for value in terms.values()], axis=0)

    @property
    def n_groups(self) -> int:
        """Return how many groups of units (documents, clips) hold any data."""
        return int(self.present.sum())

    def without(self, index: int) -> "Totals":
        """Return the sums without one group; `index` counts only groups that hold any data."""
        return Totals({term: np.delete(self.groups(term), index, axis=0) for term in self._terms})

    def groups(self, term: str) -> Array:
        """Return the sums of a term by group [group, ...], only for groups that hold any data; MeasureError for an
        unknown term.
        """
        if term not in self._terms:
            raise MeasureError("a sum that the metric names in `needs`", repr(term), suggest_names(term, self._terms))
        return self._terms[term][self.present]

    def over(self, per_group: Array) -> Array:
        """Return a sum over all groups, then the sums without each group in turn [replicate, …], from sums by group
        [group, …].
        """
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
    away = x.device.type != "cpu"
    if not x.dtype.is_floating_point or (x.dtype.itemsize < 4 and not away):
        x = x.float()
    x = x.transpose(1, 2)  # [sequence token head dim]: as most models keep heads, so that no copy is made below
    subsets = masks[:, :0] if subsets is None or "subset_unit" not in terms else subsets
    if away:
        out, inverse = sum_on_device(x, masks, subsets, terms)
        return _finish(out, terms), inverse.transpose(1, 2)
    sequence = max(x.shape[1:].numel(), 1)
    sequences, tokens = max(PIECE // sequence, 1), -(-max(x.shape[1], 1) // -(-sequence // PIECE))  # taken at once
    sums: list[dict[str, Tensor]] = []
    inverses: list[Tensor] = []
    for rows in zip(*(torch.split(y, sequences) for y in (x, masks, subsets)), strict=True):
        pieces = zip(*(torch.split(y, tokens, axis) for y, axis in zip(rows, (1, 2, 2), strict=True)), strict=True)
        parts = [_sum_piece(vectors, weights, of_subsets, terms) for vectors, weights, of_subsets in pieces]
        sums.append({name: sum(part[name] for part, _ in parts) for name in parts[0][0]})  # type: ignore[misc]
        inverses.append(torch.cat([inverse for _, inverse in parts], 1))
    out = {name: torch.cat([part[name] for part in sums]) for name in sums[0]}
    return _finish(out, terms), torch.cat(inverses).transpose(1, 2)


def _finish(sums: dict[str, Tensor], terms: frozenset[str]) -> dict[str, Tensor]:
    """Return the asked sums by sequence, with the cosine inside sequences, which follows from others."""
    if "sequence_cosine" in terms:
        sums |= _cosine_inside_sequences(sums["n"], sums["unit"].double())
    return {name: value for name, value in sums.items() if name in terms | COUNTED}


def sum_single_vectors(
    x: Float[Tensor, "sequence 1 dim"],
    masks: Shaped[Tensor, "sequence policy 1"],
    subsets: Shaped[Tensor, "sequence subset 1"] | None,
    terms: frozenset[str],
    group: Int[Tensor, " sequence"],
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence 1 1"], Int[Tensor, " group"]]:
    """Return sums by group [group, ...] for sequences of a single vector, the inverse norms of vectors, and the groups.

    The terms are those of `sum_vectors`. The vectors of a group are treated as one sequence, so that its sums are
    matrix products.
    """
    present, counts = torch.unique(group, return_counts=True)
    rest = terms - {"sequence_cosine", "sequences"}
    subsets = masks[:, :0] if subsets is None else subsets
    size = len(present)
    if bool((counts == counts[0]).all()) and torch.equal(group, group[:size].repeat(int(counts[0]))):
        # groups in turn, as units that are numbered one by one have: a view of the vectors, not a copy
        vectors = torch.unflatten(x[:, 0], 0, (-1, size)).transpose(0, 1)
        weights, of_subsets = (torch.unflatten(y[:, :, 0], 0, (-1, size)).permute(1, 2, 0) for y in (masks, subsets))
        out, each = sum_vectors(vectors.unsqueeze(1), weights, of_subsets, rest)
        present, inverse = group[:size], each.permute(2, 0, 1).reshape(-1, 1, 1)
    else:
        sums: list[dict[str, Tensor]] = []
        inverses: list[Tensor] = []
        places: list[Tensor] = []
        for number in present.tolist():
            places.append((group == number).nonzero().squeeze(1))
            chosen = as_slice(places[-1])
            weights, of_subsets = (y[chosen].permute(2, 1, 0) for y in (masks, subsets))
            of_group, each = sum_vectors(x[chosen].transpose(0, 1).unsqueeze(1), weights, of_subsets, rest)
            sums.append(of_group)
            inverses.append(each.permute(2, 0, 1))
        inverse = torch.cat(inverses)[torch.cat(places).argsort()]
        out = {name: torch.cat([part[name] for part in sums]) for name in sums[0]}
    if "sequence_cosine" in terms:  # no sequence has two vectors
        out |= {name: torch.zeros_like(out["n"]) for name in ("sequence_cosine", "sequences")}
    return {name: value for name, value in out.items() if name in terms | COUNTED}, inverse, present


def as_slice(index: Int[Tensor, " place"]) -> Tensor | slice:
    """Return ascending indices as a slice if they are equally spaced, which avoids a copy; else unchanged."""
    first, last, count = int(index[0]), int(index[-1]), len(index)
    step = int(index[1]) - first if count > 1 else 1
    if last - first == step * (count - 1) and (count < 3 or bool((index.diff() == step).all())):
        return slice(first, last + 1, step)
    return index


def _sum_piece(
    x: Float[Tensor, "sequence token head dim"],
    masks: Shaped[Tensor, "sequence policy token"],
    subsets: Shaped[Tensor, "sequence subset token"],
    terms: frozenset[str],
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence token head"]]:
    """Return the sums over tokens of one piece of the vectors by name, and inverse norms (0 if a vector is left out).

    The arguments are those of `sum_vectors`, with the token axis before the head axis.
    """
    square = None if x.stride(-1) == 1 else x.square()  # of a map, whose channels lie apart
    norm = torch.linalg.vector_norm(x, dim=-1) if square is None else square.sum(-1).sqrt()
    least, most = torch.stack(norm.aminmax()).tolist() if norm.numel() else (1.0, 1.0)  # NaN where one is
    small, large = SMALL[x.dtype], 1 / SMALL[x.dtype]
    every = small < least and most < large
    mended = not every and (not most < large or bool(x[norm <= small].any()))
    if mended:
        x, norm, finite = _redo_in_float64(x)
    norm = norm.double()  # norms of a drifting cloud are nearly equal: their variance is a small difference
    if every:
        inverse, counted = norm.reciprocal().to(x.dtype), torch.ones_like(norm)
        out = dict.fromkeys(("zero", "nonfinite"), torch.zeros(len(x), dtype=torch.int64, device=x.device))
    else:
        usable = norm > 0
        inverse, counted = torch.where(usable, norm.reciprocal(), 0.0).to(x.dtype), usable.double()
        real = masks[:, 0].bool().unsqueeze(-1)
        finite = finite if mended else torch.ones_like(usable)
        out = {"zero": (real & finite & ~usable).sum((1, 2)), "nonfinite": (real & ~finite).sum((1, 2))}
    masks = masks.to(x.dtype)
    lengths = torch.matmul(masks.double(), torch.cat([counted, norm, norm.square()], -1))
    out |= dict(zip(("n", "norm", "norm_square"), lengths.chunk(3, -1), strict=True))
    subsets = subsets.to(x.dtype)
    out["subset_n"] = torch.matmul(subsets, counted.to(x.dtype))
    out["vector"], out["unit"], out["subset_unit"] = _sum_linear_terms(x, inverse, masks, subsets)
    if "unit_square" in terms:
        if x.shape[2] == 1 and not mended:
            square = x.square() if square is None else square
            out["unit_square"] = sum_weighted(masks * inverse.square().transpose(1, 2), square)
        else:
            out["unit_square"] = sum_weighted(masks, (x * inverse.unsqueeze(-1)).square())
    return out, inverse


def _sum_linear_terms(x: Tensor, inverse: Tensor, masks: Tensor, subsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return Σx and Σu over the tokens of each mask, and Σu over those of each subset (x vectors, u unit vectors).

    x         [sequence, token, head, dim]
    inverse   inverse norms [sequence, token, head]
    masks     [sequence, policy, token]
    subsets   [sequence, subset, token]

    For a single head one matrix product suffices, and unit vectors are never stored.
    """
    rows, n = torch.cat([masks, subsets], 1), masks.shape[1]
    if x.shape[2] == 1:
        found = sum_weighted(torch.cat([masks, rows * inverse.transpose(1, 2)], 1), x)
        return found[:, :n], found[:, n : 2 * n], found[:, 2 * n :]
    found = sum_weighted(rows, x * inverse.unsqueeze(-1))
    return sum_weighted(masks, x), found[:, :n], found[:, n:]


def _cosine_inside_sequences(n: Tensor, unit: Tensor) -> dict[str, Tensor]:
    """Return the mean cosine of pairs inside each sequence, as sums by sequence and policy.

    `sequence_cosine` is 0 for sequences of fewer than two vectors; `sequences` is 1 for the others.

    n      number of vectors of each sequence
    unit   sum of the unit vectors of each sequence [..., dim]
    """
    several = n > 1
    cosine = (unit.square().sum(-1) - n) / (n * (n - 1)).clamp(min=1)
    return {"sequence_cosine": torch.where(several, cosine, 0.0), "sequences": several.double()}


def _redo_in_float64(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return (vectors in float64, their norms, which are finite), if norms are too small or too large for float32.

    Non-finite vectors become zero, and so do those whose squared norm float64 cannot hold (norms under 1e-153 count as
    zero, over 1e153 as not finite).

    x   vectors [..., dim]
    """
    finite = torch.isfinite(x).all(-1)
    x = torch.where(finite.unsqueeze(-1), x, 0.0).double()
    norm = torch.linalg.vector_norm(x, dim=-1)
    finite &= norm < LARGEST
    held = finite & (norm > 1 / LARGEST)
    return torch.where(held.unsqueeze(-1), x, 0.0), torch.where(held, norm, 0.0), finite


def sum_rows(
    rows: Mapping[str, Tensor], real: Bool[Tensor, "sequence head query"]
) -> dict[str, Float[Tensor, "sequence head *edges"]]:
    """Sum statistics of attention rows (one row per query) over real queries: {name: [sequence, head, …]}.

    rows   statistics [sequence, head, query] by name, as `capture.rows.attention_rows` returns them
    real   which queries are counted

    `rows` counts the rows, `normalised_rows` those with two outcomes or more (visible keys and the head's sink).
    `entropy_normalised` sums entropy / log(outcomes) over the latter.
    """
    sound = rows["entropy"].isfinite() & rows["score"].isfinite()
    rows = {
        name: x.masked_fill(~sound, 0.0) if x.shape == sound.shape else x
        for name, x in rows.items()
        if name not in ("largest", "smallest")
    }
    keys, outcomes, alike = rows["keys"], rows["outcomes"], rows["row_similarity"]
    seen = (real & sound).to(keys.dtype)
    several = seen * (outcomes > 1)
    terms = {
        "rows": seen.sum(-1),
        "nonfinite": (real & ~sound).sum((1, 2)),
        "normalised_rows": several.sum(-1),
        "entropy_normalised": (several * rows["entropy"] / outcomes.clamp(min=2).log()).sum(-1),
        "score": (seen * rows["score"]).sum(-1),
        "pairs": (seen * keys).sum(-1),
        "row_similarity": alike.nan_to_num(0.0),
        "row_sequences": (~alike.isnan()).double(),
    }
    summed = [name for name in ("entropy", "row_max", "row_min", "first_mass", "row_median") if name in rows]
    terms |= {name: (seen * rows[name].nan_to_num(0.0)).sum(-1) for name in summed}
    return terms | {name: x for name, x in rows.items() if name == "score_histogram"}
