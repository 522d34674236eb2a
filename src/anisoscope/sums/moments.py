"""Σxxᵀ and Σuuᵀ of a site, as one matrix product per batch and group.

They are dear (2d² flops a token each), so they have few groups: none but the whole by default for wide models.
Products are summed in float32 over a fixed number of batches, then in float64. While vectors are few for their
dimensions they are summed in float64 at once: directions without variance would get float32's rounding as theirs, whose
square root moves an effective rank of 200 vectors in 384 dimensions by .3 %.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from anisoscope.sums.groups import Sums

EVERY = 32
"""Batches summed in float32 before they are added in float64."""
FEW = 4
"""Vectors for each dimension up to which products are in float64. Beyond it an effective rank moves with the batch size
by up to 1e-5, relative (MiniLM, 2,000 vectors; a direction that a normalisation takes away), other values by 1e-7.
"""
MOST, WIDE = 8, 1024
"""Groups where nobody says how many, up to so many dimensions; beyond it there is one, and no interval."""
COLUMNS = 64
"""Columns of a block of the product: only blocks on and above the diagonal are computed, little more than half of it.
"""


class Moments:
    """Second moments of all sites, on their way into `sums` (terms `moment`, `unit_moment`, `moment_n`,
    `moment_vector`).
    """

    def __init__(self, sums: Sums, groups: int | None = None) -> None:
        self.sums, self._groups = sums, groups
        self.pending: dict[tuple[str, str, int], Tensor] = {}

    @property
    def groups(self) -> int | None:
        """The fewest groups that the moments of a site have."""
        return min((len(value) for (_, term), value in self.sums.terms.items() if term == "moment_n"), default=None)

    def begin(self, group: Int[Tensor, " sequence"]) -> None:
        """Prepare for the vectors of a batch, whose sequences are in these groups."""
        self._group = group
        self._parts: dict[int, list[tuple[int, Tensor | slice]]] = {}

    def _parts_of(self, groups: int) -> list[tuple[int, Tensor | slice]]:
        """Each of so many groups in the batch, and its sequences: a slice where they lie side by side, as they mostly
        do.
        """
        if groups not in self._parts:
            group = self._group % groups
            self._parts[groups] = [(g, _slice(group == g)) for g in torch.unique(group).tolist()]
        return self._parts[groups]

    def add(
        self,
        site: str,
        x: Float[Tensor, "sequence token dim"],
        weight: Bool[Tensor, "sequence token"],
        inverse: Float[Tensor, "sequence token"],
    ) -> None:
        """Add the vectors of a site, those of weight 1, with their inverse norms."""
        groups = min(self._groups or (MOST if x.shape[-1] <= WIDE else 1), self.sums.groups)
        counted = self.sums.buffer(site, "moment_n", (groups, 1), x.device)
        few = float(counted.sum()) + weight.numel() <= FEW * x.shape[-1]
        if few or inverse.dtype is torch.float64:  # norms so small or large that float32 has no squares of them
            x = x.double()
        elif x.dtype.itemsize < 4:
            x = x.float()
        for g, rows_of in self._parts_of(groups):
            part, w, inv = x[rows_of], weight[rows_of], inverse[rows_of]
            rows, w = part.flatten(0, 1), w.flatten().to(x.dtype)
            if not bool(w.all()):
                rows = torch.where(w.bool().unsqueeze(1), rows, 0.0)
            self._accumulate(site, "moment", g, rows)
            self._accumulate(site, "unit_moment", g, rows * (inv.flatten().to(x.dtype) * w).unsqueeze(1))
            counted[g] += w.double().sum()
            self.sums.buffer(site, "moment_vector", (groups, 1, x.shape[-1]), x.device)[g] += (w @ rows).double()

    def _accumulate(self, site: str, term: str, g: int, rows: Tensor) -> None:
        if rows.dtype is torch.float64:
            shape = (len(self.sums.terms[site, "moment_n"]), 1, rows.shape[1], rows.shape[1])
            self.sums.buffer(site, term, shape, rows.device)[g] += rows.T @ rows
            return
        key = (site, term, g)
        if key not in self.pending:
            self.pending[key] = rows.new_zeros(rows.shape[1], rows.shape[1])
        for start in range(0, rows.shape[1], COLUMNS):
            end = start + COLUMNS
            self.pending[key][start:end, start:].addmm_(rows[:, start:end].T, rows[:, start:])

    def flush(self) -> None:
        """Move what is pending into the sums."""
        for (site, term, g), matrix in self.pending.items():
            upper = matrix.double().triu_()
            self.sums.buffer(site, term, (len(self.sums.terms[site, "moment_n"]), 1, *matrix.shape), matrix.device)[
                g
            ] += upper + upper.triu(1).T
            matrix.zero_()

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        return {f"{prefix}{site}|{term}|{g}": matrix for (site, term, g), matrix in self.pending.items()}

    def restore(self, tensors: dict[str, Tensor], prefix: str) -> None:
        for name, matrix in tensors.items():
            if name.startswith(prefix):
                site, term, g = name.removeprefix(prefix).split("|")
                self.pending[site, term, int(g)] = matrix


def add_head_moments(
    sums: Sums, site: str, x: Float[Tensor, "sequence head token dim"], weight: Tensor, group: Tensor, groups: int
) -> None:
    """Σxxᵀ of every head, in float64, into `sums` (terms `head_moment`, `head_moment_n`, of `groups` groups); 0/1
    `weight` [sequence, head, token], sequences in `group` [sequence].
    """
    rows = torch.where(weight.bool().unsqueeze(-1), x, 0.0).double()
    heads, dim = x.shape[1], x.shape[3]
    moment = sums.buffer(site, "head_moment", (groups, heads, dim, dim), x.device)
    moment.index_add_(0, group, rows.transpose(2, 3) @ rows)
    count = sums.buffer(site, "head_moment_n", (groups, heads), x.device)
    count.index_add_(0, group, weight.sum(-1).double())


def _slice(chosen: Tensor) -> Tensor | slice:
    """A slice where the chosen sequences lie side by side, as they mostly do: no copy then."""
    first, last = int(chosen.nonzero()[0]), int(chosen.nonzero()[-1]) + 1
    return slice(first, last) if bool(chosen[first:last].all()) else chosen
