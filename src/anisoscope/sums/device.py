"""Sums of vectors on an accelerator, as `sums.groups` makes them, without a transfer that the host would wait for.

Each vector is taken times a power of two that makes it about 1 long, so that no square overflows, and no digit is lost.
A launch costs as much as a read of some million numbers, and a read as much as the products: so weights of tokens and
lengths of vectors go into one product over all vectors, and bfloat16 is read as it is.
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
    x = x.transpose(1, 2)
    single = torch.promote_types(x.dtype, torch.float32)
    most, least = LIMITS[single]
    largest = torch.linalg.vector_norm(x, torch.inf, dim=-1, dtype=single)  # not finite where one number is not
    finite = largest < torch.inf
    power = torch.frexp(largest)[1].clamp(-most, most).to(single).exp2()
    scaled = x.new_empty(x.shape, dtype=single)  # head by head, as the product below takes it
    torch.div(torch.where(finite.unsqueeze(-1), x, 0.0), power.unsqueeze(-1), out=scaled)
    length = torch.linalg.vector_norm(scaled, dim=-1)
    norm = length * power.double()
    finite &= norm < LARGEST
    held = finite & (norm > least)
    norm, inverse = torch.where(held, norm, 0.0), torch.where(held, length.reciprocal(), 0.0)
    policies, every = masks.shape[1], torch.cat([masks, subsets], 1)
    each = torch.cat([norm, norm.square(), held, finite ^ held, ~finite], 1)
    counts = torch.matmul(every.double(), each.transpose(1, 2)).chunk(5, -1)
    out = dict(zip(("norm", "norm_square", "n"), (part[:, :policies] for part in counts), strict=False))
    out |= dict(zip(("zero", "nonfinite"), (part[:, 0].sum(-1) for part in counts[3:]), strict=True))
    out["subset_n"] = counts[2][:, policies:]
    top = (power * held).amax().clamp(min=least)
    rows = every.to(single).unsqueeze(1)
    share = rows[:, :, :policies] * (power * held / top).unsqueeze(2)
    found = torch.matmul(torch.cat([share, rows * inverse.unsqueeze(2)], 2), scaled).transpose(1, 2)
    out["vector"] = found[:, :policies].double() * top.double()
    out["unit"], out["subset_unit"] = found[:, policies : 2 * policies], found[:, 2 * policies :]
    if "unit_square" in terms:
        square = torch.matmul(rows[:, :, :policies] * inverse.square().unsqueeze(2), scaled.square_())
        out["unit_square"] = square.transpose(1, 2)
    return out, torch.where(held, norm.reciprocal(), 0.0).transpose(1, 2)


def sum_weighted(
    rows: Shaped[Tensor, "sequence row token"], vectors: Shaped[Tensor, "sequence token head dim"]
) -> Float[Tensor, "sequence row head dim"]:
    """Return weighted sums of vectors over the tokens of each sequence, for each row of weights and each head.

    rows   weights of the tokens, one row for each sum
    """
    linear = torch.matmul(rows, vectors.flatten(2))
    return linear.view(*linear.shape[:2], *vectors.shape[2:])
