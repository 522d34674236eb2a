"""A uniform sample of vectors for what sums cannot give: the k tokens with the smallest hash of (seed, unit, index).

The same tokens are kept at every site of a stack. Deterministic, independent of batches and their order, and mergeable.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2⁶⁴ divided by the golden ratio, as a signed integer
_NONE = (1 << 63) - 1  # above every hash


def hash_tokens(seed: int, unit: Tensor, index: Tensor) -> Tensor:
    """Hash each token to 63 well-mixed bits (splitmix64, Steele et al. 2014), by which a sample is chosen.

    unit    number of the token's unit (document, clip)
    index   number of the token in its unit; `unit` and `index` broadcast
    """
    x = _mix(unit.long() * _GOLDEN + seed)
    x = _mix(x + (index.long() + 1) * _GOLDEN)
    return x & 0x7FFFFFFFFFFFFFFF


def _mix(x: Tensor) -> Tensor:
    """Mix the bits of 64-bit numbers (a step of splitmix64)."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


class Reservoir:
    """A uniform sample of at most `size` tokens of one stack: their hash and unit, and their vector at every site.

    New tokens are appended, and sorted in once there are as many as are kept.
    """

    def __init__(self, size: int, seed: int) -> None:
        """Start an empty sample of at most `size` tokens; `seed` decides which tokens it will hold."""
        self.size, self.seed = size, seed
        nothing = torch.empty(0, dtype=torch.int64)
        self._kept: tuple[Tensor, Tensor, dict[str, Tensor]] = nothing, nothing, {}
        self._appended: list[tuple[Tensor, Tensor, dict[str, Tensor]]] = []
        self._rows: Tensor | None = None
        self._new: dict[str, Tensor] = {}

    @property
    def hash(self) -> Int[Tensor, " token"]:
        """Return the hashes of the kept tokens, in ascending order."""
        return self._sort_in_new()[0]

    @property
    def unit(self) -> Int[Tensor, " token"]:
        """Return the unit (document, clip) of each kept token."""
        return self._sort_in_new()[1]

    @property
    def vectors(self) -> dict[str, Tensor]:
        """Return the kept vectors [token, ...] by site."""
        return self._sort_in_new()[2]

    def begin(
        self, unit: Int[Tensor, " sequence"], start: Int[Tensor, " sequence"], real: Bool[Tensor, "sequence token"]
    ) -> None:
        """Choose the tokens of a batch that may belong to the sample, before the batch's vectors are added.

        unit    [sequence]: number of the unit (document, clip) of each sequence
        start   [sequence]: number of the sequence's first token in its unit
        real    which tokens may be sampled

        All arguments are on the CPU.
        """
        index = start[:, None] + torch.arange(real.shape[1])
        hashes = hash_tokens(self.seed, unit[:, None], index)
        held = self._kept[0]
        limit = int(held[-1]) if len(held) == self.size else _NONE
        chosen = torch.where(real, hashes, _NONE).flatten()
        rows = torch.nonzero(chosen < limit).squeeze(1)
        if len(rows) > self.size:
            rows = rows[torch.argsort(chosen[rows])[: self.size]]
        self._rows = rows
        self._places = {torch.device("cpu"): (rows // real.shape[1], rows % real.shape[1])}
        self._new_hash, self._new_unit = chosen[rows], unit[rows // real.shape[1]]
        self._new = {}

    def add(self, site: str, x: Float[Tensor, "sequence token *head dim"]) -> None:
        """Keep the vectors at a site (place in the model) of the tokens that `begin` chose.

        x   all vectors of the batch
        """
        if self._rows is not None and len(self._rows):
            if x.device not in self._places:
                sequence, token = self._places[torch.device("cpu")]
                self._places[x.device] = sequence.to(x.device), token.to(x.device)
            chosen = x[self._places[x.device]]  # a convolutional map is not copied as a whole
            self._new[site] = chosen.float() if x.dtype.itemsize < 4 else chosen

    def end(self) -> None:
        """Finish a batch: keep the tokens with the smallest hashes among the old and the new."""
        if self._rows is not None and len(self._rows):
            self._appended.append((self._new_hash, self._new_unit, _to_cpu(self._new)))
            if sum(len(hashes) for hashes, _, _ in self._appended) >= self.size:
                self._sort_in_new()
        self._rows = None

    def _sort_in_new(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Merge the new tokens into the kept ones by their hashes, and return (hashes, units, vectors by site) of all
        that is kept.
        """
        if self._appended:
            parts = [self._kept] if len(self._kept[0]) else []
            hashes, units, vectors = zip(*parts, *self._appended, strict=True)
            joined = torch.cat(hashes)
            order = torch.argsort(joined, stable=True)[: self.size]
            sorted_in = {site: torch.cat([part[site] for part in vectors])[order] for site in vectors[-1]}
            self._kept, self._appended = (joined[order], torch.cat(units)[order], sorted_in), []
        return self._kept

    def merge(self, other: "Reservoir") -> "Reservoir":
        """Return the uniform sample of the tokens of both samples."""
        merged = Reservoir(self.size, self.seed)
        merged._appended = [part._sort_in_new() for part in (self, other) if len(part.hash)]
        return merged

    def all_reduce(self) -> "Reservoir":
        """Return the uniform sample of the tokens of all processes, in each of them. All processes must call it."""
        import torch.distributed as dist

        hashes, units, vectors = self._sort_in_new()
        ours = hashes, units, {site: (tuple(x.shape[1:]), x.dtype) for site, x in vectors.items()}
        everyone = [ours] * dist.get_world_size()
        dist.all_gather_object(everyone, ours)
        owner = torch.cat([torch.full_like(held, rank) for rank, (held, _, _) in enumerate(everyone)])
        joined, of_unit = (torch.cat([each[i] for each in everyone]) for i in (0, 1))  # type: ignore[misc]
        order = torch.argsort(joined, stable=True)[: self.size]
        mine = owner[order] == dist.get_rank()
        local = order[mine] - sum(len(held) for held, _, _ in everyone[: dist.get_rank()])
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        kept: dict[str, Tensor] = {}
        for site, (shape, dtype) in sorted({item for _, _, sites in everyone for item in sites.items()}, key=str):
            kept[site] = torch.zeros(len(order), *shape, dtype=dtype)
            if site in vectors:
                kept[site][mine] = vectors[site][local]
            shared = kept[site].to(device)
            dist.all_reduce(shared)
            kept[site] = shared.cpu()
        reduced = Reservoir(self.size, self.seed)
        reduced._kept = joined[order], of_unit[order], kept
        return reduced

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the sample as named tensors, to be saved under names with `prefix`."""
        return {f"{prefix}hash": self.hash, f"{prefix}unit": self.unit} | {
            f"{prefix}at {site}": vectors.contiguous() for site, vectors in self.vectors.items()
        }

    def restore(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Load the state that `tensors` returned with the same prefix."""
        start = f"{prefix}at "
        vectors = {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}
        self._kept = tensors[f"{prefix}hash"], tensors[f"{prefix}unit"], vectors


def _to_cpu(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move vectors to the CPU, with one transfer for all sites of a device and dtype.

    vectors   tensors by name of their site
    """
    found: dict[str, Tensor] = {}
    together: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for site, x in vectors.items():
        together.setdefault((x.device, x.dtype), []).append(site)
    for (device, _), sites in together.items():
        parts = [vectors[site] for site in sites]
        if device.type != "cpu":
            flat = torch.cat([x.flatten() for x in parts]).cpu()
            pieces = torch.split(flat, [x.numel() for x in parts])
            parts = [piece.view(x.shape).clone() for piece, x in zip(pieces, parts, strict=True)]
        found |= zip(sites, parts, strict=True)
    return found
