"""A uniform sample of vectors for what sums cannot give: the k tokens with the smallest hash of (seed, unit, index).

The same tokens are kept at every site of a stack. Deterministic, independent of batches and their order, and mergeable.
"""

import torch
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2⁶⁴ divided by the golden ratio, as a signed integer


def token_hash(seed: int, unit: Tensor, index: Tensor) -> Tensor:
    """63 well-mixed bits per token (splitmix64, Steele et al. 2014); `unit` and `index` broadcast."""
    x = _mix(unit.long() * _GOLDEN + seed)
    x = _mix(x + (index.long() + 1) * _GOLDEN)
    return x & 0x7FFFFFFFFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


class Reservoir:
    """At most `size` tokens of one stream: their hash and unit, and their vector at every site seen."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.hash = torch.empty(0, dtype=torch.int64)
        self.unit = torch.empty(0, dtype=torch.int64)
        self.vectors: dict[str, Tensor] = {}
        self._rows: Tensor | None = None
        self._new: dict[str, Tensor] = {}

    def begin(self, unit: Tensor, start: Tensor, real: Tensor) -> None:
        """Choose the tokens of a batch that may belong to the sample: `unit`, `start` [sequence], `real` [sequence,
        token].
        """
        index = start[:, None] + torch.arange(real.shape[1], device=real.device)
        hashes = token_hash(self.seed, unit[:, None], index)
        limit = int(self.hash[-1]) if len(self.hash) == self.size else (1 << 63) - 1
        chosen = torch.where(real, hashes, (1 << 63) - 1).flatten()
        rows = torch.nonzero(chosen < limit).squeeze(1)
        if len(rows) > self.size:
            rows = rows[torch.argsort(chosen[rows])[: self.size]]
        self._rows, self._places = rows, (rows // real.shape[1], rows % real.shape[1])
        self._new_hash, self._new_unit = chosen[rows].cpu(), unit[:, None].expand_as(real).flatten()[rows].cpu()
        self._new = {}

    def add(self, site: str, x: Tensor) -> None:
        """Take the chosen tokens of `x` [sequence, token, dim]."""
        if self._rows is not None:
            chosen = x[self._places]  # a convolutional map is not copied as a whole
            self._new[site] = (chosen.float() if x.dtype.itemsize < 4 else chosen).cpu()

    def end(self) -> None:
        """Keep the smallest hashes of the old and the new."""
        if self._rows is not None and len(self._rows):
            self._keep(self._new_hash, self._new_unit, self._new)
        self._rows = None

    def _keep(self, hashes: Tensor, unit: Tensor, vectors: dict[str, Tensor]) -> None:
        joined = torch.cat([self.hash, hashes])
        order = torch.argsort(joined, stable=True)[: self.size]
        self.hash, self.unit = joined[order], torch.cat([self.unit, unit])[order]
        self.vectors = {
            site: torch.cat([self.vectors[site], new] if site in self.vectors else [new])[order]
            for site, new in vectors.items()
        }

    def merge(self, other: "Reservoir") -> "Reservoir":
        merged = Reservoir(self.size, self.seed)
        for part in (self, other):
            if len(part.hash):
                merged._keep(part.hash, part.unit, part.vectors)
        return merged

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        return {f"{prefix}hash": self.hash, f"{prefix}unit": self.unit} | {
            f"{prefix}at {site}": vectors.contiguous() for site, vectors in self.vectors.items()
        }

    def restore(self, tensors: dict[str, Tensor], prefix: str) -> None:
        self.hash, self.unit = tensors[f"{prefix}hash"], tensors[f"{prefix}unit"]
        start = f"{prefix}at "
        self.vectors = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
