"""Sums of vectors on an accelerator, as `sums.groups` makes them, without a transfer that the host would wait for.

Each vector is taken times a power of two that makes it about 1 long, so that no square overflows, and no digit is lost.
A launch costs as much as a read of some million numbers, and a read as much as the products: so weights of tokens and
lengths of vectors go into one product over all vectors, and bfloat16 is read as it is.
"""

from functools import partial

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from anisoscope.sums.on_chip import compute_checked, has_kernels, load_kernels

KERNELS = "anisoscope.sums.vector_kernel"
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
    """Compute on an accelerator what `sums.groups.sum_vectors` computes; here the token axis comes before the heads.

    Returns sums over the tokens of each sequence, by name, and the inverse norm of every vector (0 if it is left out).
    Triton's kernels are used if they are installed, run on this device, and agree with plain operations on the first
    call for vectors of this shape and type.
    """
    squares = "unit_square" in terms
    call = (x.transpose(1, 2), masks, subsets, squares)
    # Kernels read a mask byte by byte, as truth values.
    if masks.dtype == subsets.dtype == torch.bool and has_kernels(x, KERNELS):
        form = (
            x.device,
            x.dtype,
            x.shape[2:],
            x.stride(-1),
            masks.shape[1],
            subsets.shape[1],
            squares,
        )
        by_kernel = partial(_sum_by_kernels, *call)
        by_torch = partial(_sum_by_products, *call)
        out = compute_checked(form, by_kernel, by_torch, what="sums of vectors")
    else:
        out = _sum_by_products(*call)
    return out, out.pop("inverse").transpose(1, 2)


def _sum_by_kernels(
    x: Tensor, masks: Tensor, subsets: Tensor, squares: bool
) -> dict[str, Tensor]:
    """Return the sums and inverse norms by the kernels of Triton; arguments as for `_sum_by_products`."""
    kernels = load_kernels(KERNELS)
    assert kernels is not None
    out: dict[str, Tensor]
    out, inverse = kernels.sum_on_chip(x, masks, subsets, squares=squares)
    return out | {"inverse": inverse}


def _sum_by_products(
    x: Float[Tensor, "sequence head token dim"],
    masks: Shaped[Tensor, "sequence policy token"],
    subsets: Shaped[Tensor, "sequence subset token"],
    squares: bool,
) -> dict[str, Tensor]:
    """Sum vectors, unit vectors u = x/‖x‖ and norms over tokens in plain torch, and return the sums by name.

    Also returned are the inverse norms [sequence, head, token], as `inverse`.

    masks     which tokens each token policy counts
    subsets   which tokens are in each random subset
    squares   whether Σu∘u is among the sums
    """
    single = torch.promote_types(x.dtype, torch.float32)
    most, least = LIMITS[single]
    # The largest number of a vector, which is not finite if one of them is not.
    largest = torch.linalg.vector_norm(x, torch.inf, dim=-1, dtype=single)
    finite = largest < torch.inf
    # The power of two next above the largest number: dividing by it is exact, and no
    # square overflows.
    power = torch.frexp(largest)[1].clamp(-most, most).to(single).exp2()
    # Stored head by head, as the product below reads it.
    scaled = x.new_empty(x.shape, dtype=single)
    torch.div(
        torch.where(finite.unsqueeze(-1), x, 0.0), power.unsqueeze(-1), out=scaled
    )
    length = torch.linalg.vector_norm(scaled, dim=-1)
    norm = length * power.double()
    finite &= norm < LARGEST
    counted = finite & (norm > least)
    norm = torch.where(counted, norm, 0.0)
    inverse_length = torch.where(counted, length.reciprocal(), 0.0)
    policies = masks.shape[1]
    weights = torch.cat([masks, subsets], 1)
    out = _count_on_device(norm, counted, finite, weights, policies)
    # One product gives Σx by policy, then Σu by policy, then Σu by subset.
    weights = weights.to(single).unsqueeze(1)
    # Powers relative to the longest vector: as weights in float32 they would overflow.
    # `top` is put back in float64.
    top = (power * counted).amax().clamp(min=least)
    by_norm = weights[:, :, :policies] * (power * counted / top).unsqueeze(2)
    by_direction = weights * inverse_length.unsqueeze(2)
    linear = torch.matmul(torch.cat([by_norm, by_direction], 2), scaled).transpose(1, 2)
    out["vector"] = linear[:, :policies].double() * top.double()
    out["unit"] = linear[:, policies : 2 * policies]
    out["subset_unit"] = linear[:, 2 * policies :]
    if squares:
        by_square = weights[:, :, :policies] * inverse_length.square().unsqueeze(2)
        out["unit_square"] = torch.matmul(by_square, scaled.square_()).transpose(1, 2)
    out["inverse"] = torch.where(counted, norm.reciprocal(), 0.0)
    return out


def _count_on_device(
    norm: Float[Tensor, "sequence head token"],
    counted: Bool[Tensor, "sequence head token"],
    finite: Bool[Tensor, "sequence head token"],
    weights: Shaped[Tensor, "sequence row token"],
    policies: int,
) -> dict[str, Tensor]:
    """Return counts and sums of norms by sequence: `n`, `norm`, `norm_square`, `zero`, `nonfinite`, `subset_n`.

    norm       norms of vectors, 0 if they are left out
    counted    which vectors enter the sums
    finite     which vectors are finite
    weights    which tokens count: one row for each policy, then one for each subset
    policies   number of policies
    """
    # One product for all of them, since a launch costs more than the numbers.
    columns = torch.cat([norm, norm.square(), counted, finite ^ counted, ~finite], 1)
    products = torch.matmul(weights.double(), columns.transpose(1, 2))
    norms, squares, n, zero, nonfinite = products.chunk(5, -1)
    return {
        "norm": norms[:, :policies],
        "norm_square": squares[:, :policies],
        "n": n[:, :policies],
        "zero": zero[:, 0].sum(-1),
        "nonfinite": nonfinite[:, 0].sum(-1),
        "subset_n": n[:, policies:],
    }


def sum_weighted(
    rows: Shaped[Tensor, "sequence row token"],
    vectors: Shaped[Tensor, "sequence token head dim"],
) -> Float[Tensor, "sequence row head dim"]:
    """Return weighted sums of vectors over the tokens of each sequence, for each row of weights and each head.

    rows   weights of the tokens, one row for each sum
    """
    linear = torch.matmul(rows, vectors.flatten(2))
    return linear.view(*linear.shape[:2], *vectors.shape[2:])
