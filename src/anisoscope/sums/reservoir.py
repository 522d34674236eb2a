"""A uniform sample of vectors for what sums cannot give: the k tokens with the smallest hash of (seed, unit, index).

The same tokens are kept at every site of a stack. Deterministic, independent of batches and their order, and mergeable.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_GOLDEN = -7046029254386353131  # 2⁶⁴ divided by the golden ratio, as a signed integer
_NONE = (1 << 63) - 1  # above every hash


Kept = tuple[Tensor, Tensor, dict[str, Tensor]]
"""Hashes of tokens, their units, and their vectors by site."""


def hash_tokens(seed: int, unit: Tensor, index: Tensor) -> Tensor:
    """Hash each token to 63 well-mixed bits (splitmix64, Steele et al. 2014), by which a sample is chosen.

    unit    number of the token's unit (document, clip)
    index   number of the token in its unit; `unit` and `index` broadcast
    """
    # Two rounds, so that token i of unit u and token u of unit i have unrelated hashes;
    # without + 1, the first token of unit 0 would hash to 0 under seed 0.
    x = _mix(unit.long() * _GOLDEN + seed)
    x = _mix(x + (index.long() + 1) * _GOLDEN)
    # The sign bit is dropped: a hash is compared as a number, and is never negative.
    return x & 0x7FFFFFFFFFFFFFFF


def draw_tokens(
    share: float, seed: int, unit: Tensor, index: Tensor
) -> Bool[Tensor, "..."]:
    """Return which tokens belong to a random share of all tokens: those whose hash is among the smallest.

    The result does not depend on batches and their order.

    share   from 0 (none) to 1 (nearly all)
    seed    of the hashes
    unit    number of the unit (document, clip) of each token
    index   number of each token in its unit
    """
    # The product is rounded: at a share of 1 it would be 2⁶³, which no integer of torch can hold.
    limit = min(int(share * _NONE), _NONE)
    return hash_tokens(seed, unit, index) < limit


def _mix(x: Tensor) -> Tensor:
    """Mix the bits of 64-bit numbers (a step of splitmix64)."""
    # The constants are those of splitmix64, as signed integers. Torch shifts the sign
    # in from the left: the masks make the shifts unsigned, as the generator wants them.
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * -4658895280553007687
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * -7723592293110705685
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


class Reservoir:
    """A uniform sample of at most `size` tokens of one stack: their hash and unit, and their vector at every site.

    New tokens are appended, and sorted in once there are as many as are kept.
    """

    def __init__(self, size: int, seed: int) -> None:
        """Start an empty sample of at most `size` tokens; `seed` decides which tokens it will hold."""
        self.size = size
        self.seed = seed
        nothing = torch.empty(0, dtype=torch.int64)
        self._kept: Kept = nothing, nothing, {}
        self._appended: list[Kept] = []
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
        self,
        unit: Int[Tensor, " sequence"],
        start: Int[Tensor, " sequence"],
        real: Bool[Tensor, "sequence token"],
    ) -> None:
        """Choose the tokens of a batch that may belong to the sample, before the batch's vectors are added.

        unit    [sequence]: number of the unit (document, clip) of each sequence
        start   [sequence]: number of the sequence's first token in its unit
        real    which tokens may be sampled

        All arguments are on the CPU.
        """
        tokens = real.shape[1]
        index = start[:, None] + torch.arange(tokens)
        hashes = torch.where(
            real, hash_tokens(self.seed, unit[:, None], index), _NONE
        ).flatten()
        kept_hashes = self._kept[0]
        # A full sample takes only hashes under its largest: after the first batches
        # most tokens end here, and their vectors are never copied.
        limit = _NONE
        if len(kept_hashes) == self.size:
            limit = int(kept_hashes[-1])
        rows = torch.nonzero(hashes < limit).squeeze(1)
        if len(rows) > self.size:
            rows = rows[torch.argsort(hashes[rows])[: self.size]]
        sequence = rows // tokens
        self._rows = rows
        self._places = {torch.device("cpu"): (sequence, rows % tokens)}
        self._new_hash = hashes[rows]
        self._new_unit = unit[sequence]
        self._new = {}

    def add(self, site: str, x: Float[Tensor, "sequence token *head dim"]) -> None:
        """Keep the vectors at a site (place in the model) of this batch's tokens that the last `begin` chose.

        x   all vectors of the batch
        """
        if self._rows is None or not len(self._rows):
            return
        if x.device not in self._places:
            sequence, token = self._places[torch.device("cpu")]
            self._places[x.device] = sequence.to(x.device), token.to(x.device)
        # Chosen by both indices: to flatten a convolutional map would copy it as a whole.
        chosen = x[self._places[x.device]]
        if chosen.dtype.itemsize < 4:
            chosen = chosen.float()
        self._new[site] = chosen

    def end(self) -> None:
        """Finish a batch: keep the tokens with the smallest hashes among the old and the new."""
        if self._rows is not None and len(self._rows):
            self._appended.append((self._new_hash, self._new_unit, _to_cpu(self._new)))
            appended = sum(len(hashes) for hashes, _, _ in self._appended)
            # Sorting at every batch would copy the whole sample each time.
            if appended >= self.size:
                self._sort_in_new()
        self._rows = None

    def _sort_in_new(self) -> Kept:
        """Merge the new tokens into the kept ones by their hashes, and return (hashes, units, vectors by site) of all
        that is kept.
        """
        if not self._appended:
            return self._kept
        parts = list(self._appended)
        if len(self._kept[0]):
            parts.insert(0, self._kept)
        hashes, units, vectors = zip(*parts, strict=True)
        joined = torch.cat(hashes)
        # Stable, so that equal hashes stay in the order in which they came.
        order = torch.argsort(joined, stable=True)[: self.size]
        by_site: dict[str, Tensor] = {}
        for site in vectors[-1]:
            by_site[site] = torch.cat([part[site] for part in vectors])[order]
        self._kept = joined[order], torch.cat(units)[order], by_site
        self._appended = []
        return self._kept

    def merge(self, other: "Reservoir") -> "Reservoir":
        """Return the uniform sample of the tokens of both samples."""
        merged = Reservoir(self.size, self.seed)
        merged._appended = [
            part._sort_in_new() for part in (self, other) if len(part.hash)
        ]
        return merged

    def all_reduce(self) -> "Reservoir":
        """Return the uniform sample of the tokens of all processes, in each of them. All processes must call it."""
        import torch.distributed as dist

        rank = dist.get_rank()
        hashes, units, vectors = self._sort_in_new()
        sites = {site: (tuple(x.shape[1:]), x.dtype) for site, x in vectors.items()}
        # Not the vectors: most of them are dropped below, when all hashes are known.
        ours = hashes, units, sites
        everyone = [ours] * dist.get_world_size()
        dist.all_gather_object(everyone, ours)
        counts = [len(their_hashes) for their_hashes, _, _ in everyone]
        joined = torch.cat([their_hashes for their_hashes, _, _ in everyone])
        joined_units = torch.cat([their_units for _, their_units, _ in everyone])
        order = torch.argsort(joined, stable=True)[: self.size]
        # Which of the tokens to keep are here, and at which place.
        owner = torch.repeat_interleave(torch.tensor(counts))
        mine = owner[order] == rank
        local = order[mine] - sum(counts[:rank])
        all_sites: set[tuple[str, tuple[tuple[int, ...], torch.dtype]]] = set()
        for _, _, their_sites in everyone:
            all_sites |= set(their_sites.items())
        device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
        kept: dict[str, Tensor] = {}
        # In the same order in each process. A vector is on one process, and zero on the others: the sum shares it.
        for site, (shape, dtype) in sorted(all_sites, key=str):
            rows = torch.zeros(len(order), *shape, dtype=dtype)
            if site in vectors:
                rows[mine] = vectors[site][local]
            shared = rows.to(device)
            dist.all_reduce(shared)
            kept[site] = shared.cpu()
        reduced = Reservoir(self.size, self.seed)
        reduced._kept = joined[order], joined_units[order], kept
        return reduced

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """Return the sample as named tensors, to be saved under names with `prefix`."""
        named = {f"{prefix}hash": self.hash, f"{prefix}unit": self.unit}
        for site, vectors in self.vectors.items():
            named[f"{prefix}at {site}"] = vectors.contiguous()
        return named

    def restore(self, tensors: dict[str, Tensor], prefix: str) -> None:
        """Load the state that `tensors` returned with the same prefix."""
        start = f"{prefix}at "
        vectors: dict[str, Tensor] = {}
        for name, value in tensors.items():
            if name.startswith(start):
                vectors[name.removeprefix(start)] = value
        self._kept = tensors[f"{prefix}hash"], tensors[f"{prefix}unit"], vectors


def _to_cpu(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Move vectors to the CPU, with one transfer for all sites of a device and dtype.

    vectors   tensors by name of their site
    """
    moved: dict[str, Tensor] = {}
    together: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for site, x in vectors.items():
        together.setdefault((x.device, x.dtype), []).append(site)
    for (device, _), sites in together.items():
        parts = [vectors[site] for site in sites]
        if device.type != "cpu":
            flat = torch.cat([x.flatten() for x in parts]).cpu()
            pieces = torch.split(flat, [x.numel() for x in parts])
            # Copied, so that no site keeps the memory of all.
            parts = [
                piece.view(x.shape).clone()
                for piece, x in zip(pieces, parts, strict=True)
            ]
        moved |= zip(sites, parts, strict=True)
    return moved
