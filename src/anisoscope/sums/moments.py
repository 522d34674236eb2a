"""Σxxᵀ and Σuuᵀ of a site, as one symmetric update per batch and group.

They are slow (d² flops a token each), so they have few groups; wide models have a single one by default.

Products are summed in float32 over a fixed number of batches, then in float64. The mean of a site's first batch is
subtracted before: the common direction may be a thousand times the spread, and rounding would be in proportion to it.

Two kinds of vectors are summed in float64 at once. Vectors that are few for their dimensions: directions without
variance would get float32's rounding as their variance, whose square root moves an effective rank of 200 vectors in 384
dimensions by .3 %. And vectors of few dimensions, which cost little: one such direction is a large part of their rank.
"""

from collections.abc import Callable
from functools import cache, partial

import torch
from jaxtyping import Bool, Float, Int
from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]
from torch import Tensor

from anisoscope.sums.groups import Sums, as_slice
from anisoscope.sums.threads import run_in_parallel

EVERY = 32  # batches summed in float32 before they are added in float64
FEW = 4
"""Vectors for each dimension up to which products are in float64 (beyond it: docstring of `metrics/spectrum.py`)."""
NARROW = 128
"""Dimensions up to which products are in float64, however many vectors there are."""
MOST, WIDE, WIDEST = 8, 1024, 2048
"""Groups of the second moments by default: `MOST` up to `WIDE` dimensions; one, and no interval, up to `WIDEST`; beyond
it none, and no spectrum.
"""
MOST_NORM = 1e12  # of vectors on an accelerator whose products are in float32
TERMS = ("moment", "unit_moment", "moment_vector", "moment_n")


class Moments:
    """Collects second moments (Σxxᵀ, Σuuᵀ) of all sites and adds them to `sums`.

    The terms are `moment`, `unit_moment`, `moment_n` and `moment_vector`. `pending` holds, by site, term and group,
    products in float32 that are not added yet: for `moment` those of [x − c, 1], so that Σ(x − c) and n are among them;
    and c itself, as the `shift` of a site.
    """

    def __init__(
        self,
        sums: Sums,
        groups: int | None = None,
        widest: float = WIDEST,
        share: float = 1.0,
    ) -> None:
        """Start empty; `groups` None means as many as fit the width of a site, and none for sites wider than
        `widest`.

        share   of all vectors that are added
        """
        self.sums, self._groups, self._widest, self._share = sums, groups, widest, share
        self.pending: dict[tuple[str, str, int], Tensor] = {}
        # Sites on an accelerator whose products are in float32.
        self.many: set[str] = set()

    @property
    def groups(self) -> int | None:
        """Return the smallest number of groups that the moments of any site have; None without moments."""
        counts = [
            len(total)
            for (_, term), total in self.sums.terms.items()
            if term == "moment"
        ]
        return min(counts, default=None)

    def begin(self, group: Int[Tensor, " sequence"]) -> None:
        """Prepare for a batch; `group` is the group of units that each of its sequences is in."""
        self._group = group.cpu()
        # Both are the same for all sites of a batch: they are found once, at the first
        # site.
        self._parts: dict[int, list[tuple[int, Tensor | slice]]] = {}
        self._drawn: dict[tuple[int, torch.device, int, int], Tensor] = {}

    def add(
        self,
        site: str,
        x: Float[Tensor, "sequence token dim"],
        weight: Bool[Tensor, "sequence token"],
        inverse: Float[Tensor, "sequence token"],
        drawn: Bool[Tensor, "sequence token"] | None = None,
    ) -> None:
        """Add the second moments of a site's vectors that have weight 1; `n` in `sums` must count these already.

        x         the vectors
        weight    which vectors count
        inverse   1 / norm of each vector
        drawn     which vectors belong to the share that is added, on the CPU; None: all
        """
        dim = x.shape[-1]
        groups = self._count_groups(dim)
        if not groups:
            return
        on_cpu = x.device.type == "cpu"
        dtype = self._choose_dtype(site, x, inverse)
        if drawn is None:
            # Once for all groups: of parts of a batch the conversion would take longer.
            x = x.to(dtype)
        all_count = on_cpu and bool(weight.all())
        buffers = self._get_buffers(site, dim, groups, x.device)
        for g, chosen in self._split_by_group(groups):
            # Vectors of the group [vector, dim], their inverse norms [vector], and which of them count [vector].
            if drawn is None:
                rows = x[chosen].flatten(0, 1)
                inv = inverse[chosen].flatten().to(dtype)
                real = weight[chosen].flatten()
            else:
                places = self._list_drawn(drawn, x.device, groups, g, chosen)
                rows = x.flatten(0, 1)[places].to(dtype)
                inv = inverse.flatten()[places].to(dtype)
                real = weight.flatten()[places]
            if on_cpu and not all_count:
                rows, inv, real = rows[real], inv[real], real[real]
            if not len(rows):
                continue
            if not on_cpu:
                # The host would wait for a choice of rows: those left out are zero instead.
                rows = torch.where(real.unsqueeze(1), rows, 0.0)
            unit = rows * inv.unsqueeze(1)
            if dtype is torch.float64:
                products = (rows.T @ rows, unit.T @ unit, rows.sum(0), real.sum())
                for buffer, product in zip(buffers, products, strict=True):
                    buffer[g, 0] += product
            else:
                # In float32, less a mean: of large equal parts no digits would be left for the differences.
                shifted = self._shift(site, rows, real)
                self._update(site, g, {"moment": shifted, "unit_moment": unit})

    def _choose_dtype(self, site: str, x: Tensor, inverse: Tensor) -> torch.dtype:
        """Return the type in which a site's products are computed: float64, or that of the vectors, float32 at least.

        inverse   1 / norm of each vector
        """
        if self._needs_float64(site, x, inverse):
            return torch.float64
        # Inverse norms in float64 say that float32 does not hold the squares.
        if x.device.type == "cpu" and inverse.dtype is torch.float64:
            return torch.float64
        return torch.promote_types(x.dtype, torch.float32)

    def _get_buffers(
        self, site: str, dim: int, groups: int, device: torch.device
    ) -> list[Tensor]:
        """Return the sums of a site to which products are added, in the order of `TERMS`: each [group, 1, …].

        dim   width of the vectors
        """
        shapes: tuple[tuple[int, ...], ...] = ((dim, dim), (dim, dim), (dim,), ())
        buffers = []
        for term, shape in zip(TERMS, shapes, strict=True):
            buffers.append(self.sums.buffer(site, term, (groups, 1, *shape), device))
        return buffers

    def _shift(self, site: str, rows: Tensor, real: Tensor) -> Tensor:
        """Return [x − c, 1] of vectors [vector, dim]: c is the mean of the site's first batch.

        The column of ones makes Σ(x − c) and n parts of the product.

        real   which vectors count; on an accelerator the others are here too, and become zeros
        """
        shift = self._get_pending(
            (site, "shift", 0), rows, partial(_compute_mean, rows, real.sum())
        )
        shifted = rows.new_ones(len(rows), rows.shape[1] + 1)
        torch.sub(rows, shift, out=shifted[:, :-1])
        if rows.device.type != "cpu":
            shifted *= real.unsqueeze(1)
        return shifted

    def _needs_float64(self, site: str, x: Tensor, inverse: Tensor) -> bool:
        """Return whether a site's products are computed in float64 instead of float32.

        They are if vectors are narrow or still few, so that it costs little. On an accelerator they also are if
        float32 cannot hold the squared norms; once the answer is False there, it is not computed again.
        """
        dim = x.shape[-1]
        if dim <= NARROW:
            return True
        if site in self.many:
            return False
        # Of the first policy, all real tokens. On an accelerator the host waits for
        # this number: hence `many`.
        count = float(self.sums.terms[site, "n"][:, 0].sum()) * self._share
        if count <= FEW * dim:
            return True
        if x.device.type == "cpu":
            return False
        # Over counted vectors, as those left out have 0. Far from 1, float32 cannot
        # hold the squares of typical vectors.
        mean_inverse = float(inverse.sum() / (inverse > 0).sum())
        if not 1 / MOST_NORM < mean_inverse < MOST_NORM:
            return True
        self.many.add(site)
        return False

    def _split_by_group(self, groups: int) -> list[tuple[int, Tensor | slice]]:
        """Return (group, its sequences in the batch) for each group of units; the sequences as a slice if equally
        spaced.
        """
        if groups not in self._parts:
            group = self._group % groups
            self._parts[groups] = []
            for g in torch.unique(group).tolist():
                chosen = (group == g).nonzero().squeeze(1)
                self._parts[groups].append((g, as_slice(chosen)))
        return self._parts[groups]

    def _list_drawn(
        self,
        drawn: Tensor,
        device: torch.device,
        groups: int,
        group: int,
        chosen: Tensor | slice,
    ) -> Int[Tensor, " vector"]:
        """Return the places of a group's drawn vectors among all vectors of the batch, one sequence after another.

        drawn    which vectors are drawn [sequence, token], on the CPU
        device   where the places are wanted
        groups   number of groups of units
        group    the number of the group
        chosen   which sequences of the batch are in the group
        """
        # All sites of a stack have the same tokens.
        key = id(drawn), device, groups, group
        if key not in self._drawn:
            of_group = torch.zeros_like(drawn)
            of_group[chosen] = drawn[chosen]
            self._drawn[key] = of_group.flatten().nonzero().squeeze(1).to(device)
        return self._drawn[key]

    def _count_groups(self, width: int) -> int:
        """Return the number of groups for the second moments of vectors of this width; 0 if they are too wide to
        keep.
        """
        if width <= WIDE:
            groups = MOST
        elif width <= self._widest:
            groups = 1
        else:
            groups = 0
        # A number that was asked for is taken at any width. Moments cannot be split
        # more finely than the other sums.
        return min(self._groups or groups, self.sums.groups)

    def _get_pending(
        self, key: tuple[str, str, int], rows: Tensor, make: Callable[[], Tensor]
    ) -> Tensor:
        """Return the pending product of this key on the device of `rows`; `make` creates it the first time.

        key   (site name, name of the product, group of units)
        """
        if key not in self.pending:
            self.pending[key] = make()
        elif self.pending[key].device != rows.device:
            self.pending[key] = self.pending[key].to(rows.device)
        return self.pending[key]

    def _update(self, site: str, group: int, rows: dict[str, Tensor]) -> None:
        """Add rowsᵀ·rows to the pending products of one site and group of units, for each name in `rows` [vector,
        dim].
        """
        pairs: list[tuple[Tensor, Tensor]] = []
        for term, x in rows.items():
            dim = x.shape[1]
            make = partial(x.new_zeros, dim, dim)
            into = self._get_pending((site, term, group), x, make)
            pairs.append((into, x))
        if x.device.type != "cpu":
            for into, x in pairs:
                into.addmm_(x.T, x)
            return
        # The products run in parallel, each on one thread.
        with _single_numpy_thread().limit(limits=1):
            run_in_parallel([partial(_add_product, into, x) for into, x in pairs])

    def flush(self) -> None:
        """Add all pending products (in float32) to the sums (in float64)."""
        for (site, term, g), matrix in self.pending.items():
            if term == "shift":
                continue
            # Both halves are taken from the upper one, so that the sum is exactly symmetric.
            upper = matrix.double().triu_()
            product = upper + upper.triu(1).T
            if term == "moment":
                # From the moments of x − c to those of x.
                shift = self.pending[site, "shift", 0].to(product)
                total, n = product[:-1, -1], product[-1, -1]
                # Σxxᵀ = Σ(x−c)(x−c)ᵀ + c tᵀ + t cᵀ + n ccᵀ with t = Σ(x−c); `crossed`
                # and its transpose share n ccᵀ.
                crossed = torch.outer(shift, total + n / 2 * shift)
                product = product[:-1, :-1] + crossed + crossed.T
                self.sums.terms[site, "moment_vector"][g, 0] += total + n * shift
                self.sums.terms[site, "moment_n"][g, 0] += n
            self.sums.terms[site, term][g, 0] += product
            # Kept as a buffer for the next batches.
            matrix.zero_()

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return pending products as tensors, to be saved under names with `prefix`."""
        return {
            f"{prefix}{site}|{term}|{g}": matrix
            for (site, term, g), matrix in self.pending.items()
        }

    def restore(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Load the pending products that `tensors` returned with the same prefix."""
        for name, matrix in tensors.items():
            if name.startswith(prefix):
                site, term, g = name.removeprefix(prefix).split("|")
                self.pending[site, term, int(g)] = matrix


def _add_product(into: Tensor, rows: Tensor) -> None:
    """Add rowsᵀ·rows to `into` with NumPy, which computes only one half of it and does not block other threads."""
    x = rows.numpy()
    into += torch.from_numpy(x.T @ x)


@cache
def _single_numpy_thread() -> ThreadpoolController:
    """Return a controller that can limit NumPy's matrix products to one thread."""
    return ThreadpoolController().select(user_api="blas")


def _compute_mean(rows: Tensor, count: Tensor) -> Tensor:
    """Return the mean of some vectors [dim].

    rows    [vector, dim]; vectors that do not count are 0
    count   number of vectors that count
    """
    return rows.sum(0) / count.clamp(min=1)


def add_head_moments(
    sums: Sums,
    site: str,
    x: Float[Tensor, "sequence head token dim"],
    weight: Tensor,
    group: Tensor,
    groups: int,
) -> None:
    """Add Σxxᵀ of every head in float64 to `sums` (terms `head_moment`, `head_moment_n`).

    weight   [sequence, head, token]: 0 or 1
    group    [sequence]: below `groups`
    groups   number of groups of units
    """
    # Not weight · x: padding may hold NaN, and NaN · 0 is NaN.
    rows = torch.where(weight.bool().unsqueeze(-1), x, 0.0).double()
    heads, dim = x.shape[1], x.shape[3]
    moment = sums.buffer(site, "head_moment", (groups, heads, dim, dim), x.device)
    moment.index_add_(0, group, rows.transpose(2, 3) @ rows)
    count = sums.buffer(site, "head_moment_n", (groups, heads), x.device)
    count.index_add_(0, group, weight.sum(-1).double())
