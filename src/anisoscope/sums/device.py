"""Sums of vectors on an accelerator, as `sums.groups` makes them, without a transfer that the host would wait for.

Each vector is taken times a power of two that makes it about 1 long, so that no square overflows, and no digit is lost.
"""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

SINGLE_ONLY = {"mps"}  # kinds of device without float64
LARGEST = 1e153  # norms whose squares float64 holds
LIMITS = {torch.float32: (125, 1.2e-38), torch.float64: (1000, 1 / LARGEST)}
"""Largest power of two that a vector is taken by, and the norm up to which a vector counts as zero."""


def choose_sum_device(device: torch.device) -> torch.device:
    """Return the device on which sums are accumulated: the given one, or the CPU if it has no float64."""
    return torch.device("cpu") if device.type in SINGLE_ONLY else device


def sum_on_device(
    x: Float[Tensor, "sequence token head dim"],
    masks: Shaped[Tensor, "sequence policy token"],
    subsets: Shaped[Tensor, "sequence subset token"],
    terms: frozenset[str],
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence token head"]]:
    """Return per-sequence sums over tokens by name, and the inverse norm of every vector (0 if it is left out).

    As `sums.groups.sum_vectors`, for an accelerator; the token axis comes before the head axis.
    """
    finite = x.isfinite().all(-1)
    x = torch.where(finite.unsqueeze(-1), x, 0.0)
    most, least = LIMITS[x.dtype]
    power = torch.frexp(x.abs().amax(-1))[1].clamp(-most, most).to(x.dtype).exp2()
    x = x / power.unsqueeze(-1)
    length = torch.linalg.vector_norm(x, dim=-1)
    norm = length.double() * power.double()
    finite &= norm < LARGEST
    held = finite & (norm > least)
    norm, inverse = torch.where(held, norm, 0.0), torch.where(held, length.reciprocal(), 0.0)
    real = masks[:, 0].bool().unsqueeze(-1)
    out = {"zero": (real & finite & ~held).sum((1, 2)), "nonfinite": (real & ~finite).sum((1, 2))}
    masks, subsets, counted = masks.to(x.dtype), subsets.to(x.dtype), held.double()
    lengths = torch.matmul(masks.double(), torch.cat([counted, norm, norm.square()], -1))
    out |= dict(zip(("n", "norm", "norm_square"), lengths.chunk(3, -1), strict=True))
    out["subset_n"] = torch.matmul(subsets, counted.to(x.dtype))
    unit = x * inverse.unsqueeze(-1)
    found = sum_weighted(torch.cat([masks, subsets], 1), unit)
    out["unit"], out["subset_unit"] = found[:, : masks.shape[1]], found[:, masks.shape[1] :]
    top = torch.where(held, power, 0.0).amax()
    share = torch.where(held, power / top.clamp(min=least), 0.0)
    out["vector"] = sum_weighted(masks, x * share.unsqueeze(-1)).double() * top.double()
    if "unit_square" in terms:
        out["unit_square"] = sum_weighted(masks, unit.square())
    return out, torch.where(held, norm.reciprocal(), 0.0)


def sum_weighted(
    rows: Shaped[Tensor, "sequence row token"], vectors: Shaped[Tensor, "sequence token head dim"]
) -> Float[Tensor, "sequence row head dim"]:
    """Return weighted sums of vectors over the tokens of each sequence, for each row of weights and each head.

    rows   weights of the tokens, one row for each sum
    """
    linear = torch.matmul(rows, vectors.flatten(2))
    return linear.view(*linear.shape[:2], *vectors.shape[2:])
