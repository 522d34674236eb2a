"""Sums of vectors on a GPU by kernels that read each vector as the model has it, in its own precision.

The first measures the length of each vector. The second goes through the tokens of each sequence once and adds up all
sums for all token policies and subsets at once. The third finds the mean cosine of pairs inside each sequence. Numbers
are those of `sums.device.sum_on_device`: vectors are taken times a power of two that makes them about 1 long.

Triton compiles the kernels; with TRITON_INTERPRET=1 it runs them on a CPU, one operation at a time. This module can be
imported only if Triton is installed.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float
from torch import Tensor

TOKENS_OF_LENGTH, DIMS_OF_LENGTH = 8, 256
"""Tokens and dimensions that a program of the first kernel holds at once."""
TOKENS, DIMS = 16, 64
"""Tokens and dimensions of a program of the second: so few that the registers of its threads suffice."""
LEAST_ROWS = 16
"""Rows that a product on the chip has at least; fewer are filled up with zeros."""
WARPS = 8
"""Groups of 32 threads that share a program."""


def sum_on_chip(
    x: Float[Tensor, "sequence head token dim"],
    masks: Bool[Tensor, "sequence policy token"],
    subsets: Bool[Tensor, "sequence subset token"],
    *,
    squares: bool,
) -> tuple[dict[str, Tensor], Float[Tensor, "sequence head token"]]:
    """Return per-sequence sums over tokens by name (float64), and the inverse norm of every vector (0 if left out).

    masks, subsets   which tokens each policy, and each subset, counts
    squares          whether Σu∘u is among the sums
    """
    norms, powers = _launch_lengths(x)
    found = _launch_sums(x, norms, powers, masks, subsets, squares)
    vector, unit, square, counts, left_out = found
    policies = masks.shape[1]
    cosine = _launch_cosine(unit, counts, policies)
    n, norm, norm_square = counts
    zero, nonfinite = left_out.sum(-1)
    out = {
        "n": n[:, :policies],
        "norm": norm[:, :policies],
        "norm_square": norm_square[:, :policies],
        "zero": zero,
        "nonfinite": nonfinite,
        "subset_n": n[:, policies:],
        "vector": vector,
        "unit": unit[:, :policies],
        "subset_unit": unit[:, policies:],
        "sequence_cosine": cosine[0],
        "sequences": cosine[1],
    }
    if squares:
        out["unit_square"] = square
    return out, norms[1]


def _launch_lengths(
    x: Tensor,
) -> tuple[
    Float[Tensor, "two sequence head token"], Float[Tensor, "sequence head token"]
]:
    """Run the kernel that measures vectors: returns (norms and inverse norms, powers).

    The power is the power of two next above the numbers of a vector: 0 for a vector of zeros, −1 if it is not finite.
    """
    sequences, heads, tokens, dim = x.shape
    norms = torch.empty(
        2, sequences, heads, tokens, dtype=torch.float64, device=x.device
    )
    powers = torch.empty(sequences, heads, tokens, dtype=torch.float32, device=x.device)
    if powers.numel():
        grid = (triton.cdiv(tokens, TOKENS_OF_LENGTH), heads, sequences)
        sizes = {"TOKENS": TOKENS_OF_LENGTH, "DIMS": DIMS_OF_LENGTH, "num_warps": WARPS}
        _measure_lengths[grid](
            norms, powers, powers.numel(), (x, *x.stride()), (tokens, dim), **sizes
        )
    return norms, powers


def _launch_sums(
    x: Tensor,
    norms: Tensor,
    powers: Tensor,
    masks: Tensor,
    subsets: Tensor,
    squares: bool,
) -> tuple[Tensor, ...]:
    """Run the kernel that sums vectors x and unit vectors u over the tokens of each sequence.

    Returns Σx, Σu and Σu∘u [sequence, row, head, dim]; (n, Σ‖x‖, Σ‖x‖²) [3, sequence, row, head]; and the numbers of
    vectors left out (zero, not finite) [2, sequence, head]. A row is a policy or a subset.
    """
    sequences, heads, tokens, dim = x.shape
    policies = masks.shape[1]
    rows = policies + subsets.shape[1]
    of_sums: Any = {"dtype": torch.float64, "device": x.device}
    found = (
        torch.empty(sequences, policies, heads, dim, **of_sums),
        torch.empty(sequences, rows, heads, dim, **of_sums),
        torch.empty(sequences, policies if squares else 0, heads, dim, **of_sums),
        torch.empty(3, sequences, rows, heads, **of_sums),
        torch.empty(2, sequences, heads, **of_sums),
    )
    if sequences and heads:
        grid = (max(1, triton.cdiv(dim, DIMS)), heads, sequences)
        weights = [
            (mask.view(torch.uint8), *mask.stride()) for mask in (masks, subsets)
        ]
        sizes = {
            "ROWS": max(LEAST_ROWS, triton.next_power_of_2(rows)),
            "TOKENS": TOKENS,
            "DIMS": DIMS,
        }
        numbers = (tokens, dim, policies, rows)
        how = {"SQUARES": squares, "num_warps": WARPS} | sizes
        _sum_tokens[grid](
            found, norms, powers, (x, *x.stride()), *weights, numbers, **how
        )
    return found


def _launch_cosine(
    unit: Tensor, counts: Tensor, policies: int
) -> Float[Tensor, "two sequence policy head"]:
    """Run the kernel that computes the mean cosine of pairs inside each sequence.

    Returns these cosines, and 1 or 0 for whether the sequence has pairs.

    unit       Σ of unit vectors [sequence, row, head, dim]; the first rows are token policies, the others subsets
    counts     number of vectors n [sequence, row, head]
    policies   number of token policies
    """
    sequences, rows, heads, dim = unit.shape
    cosine = torch.empty(
        2, sequences, policies, heads, dtype=torch.float64, device=unit.device
    )
    if cosine.numel():
        _compare_inside[policies, heads, sequences](
            cosine, unit, counts, (rows, dim), DIMS=DIMS_OF_LENGTH
        )
    return cosine


# Arguments of the kernels: vectors are (place of the first number, strides of sequence, head, token and dimension);
# masks are (place of the first, strides of sequence, row and token).


@triton.jit
def _load_vectors(vectors, sequence, head, at, column, sizes):
    """Load numbers [token, dim] of one head as float32; 0 beyond the last token or dimension."""
    first = vectors[0] + sequence * vectors[1] + head * vectors[2]
    places = (
        first + at.to(tl.int64)[:, None] * vectors[3] + column[None, :] * vectors[4]
    )
    return tl.load(
        places, mask=(at < sizes[0])[:, None] & (column < sizes[1])[None, :], other=0.0
    ).to(tl.float32)


@triton.jit
def _measure_lengths(
    norms, powers, count, vectors, sizes, TOKENS: tl.constexpr, DIMS: tl.constexpr
):
    """Write each vector's norm, its inverse (both 0 if it is left out), and the power of two next above its numbers.

    The power is 0 for a vector of zeros (as float32 knows them) and -1 for one that is not finite.
    """
    head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    at = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    largest = tl.zeros((TOKENS,), tl.float32)
    undefined = tl.zeros((TOKENS,), tl.int32)
    for begin in range(0, sizes[1], DIMS):
        size = tl.abs(
            _load_vectors(
                vectors, sequence, head, at, begin + tl.arange(0, DIMS), sizes
            )
        )
        # NaN and Inf are counted apart and left out of the maximum, whose bits are read
        # below.
        finite = size < float("inf")
        undefined += tl.sum(
            (size != size).to(tl.int32) | (size == float("inf")).to(tl.int32), 1
        )
        largest = tl.maximum(largest, tl.max(tl.where(finite, size, 0.0), 1))
    # from the bits of a float32: its exponent, so that the numbers times 2^(-exponent) are between -1 and 1
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) - 126
    exponent = tl.minimum(tl.maximum(exponent, -125), 125)
    power = ((127 + exponent) << 23).to(tl.float32, bitcast=True)
    shrink = ((127 - exponent) << 23).to(tl.float32, bitcast=True)
    squares = tl.zeros((TOKENS, DIMS), tl.float32)
    for begin in range(0, sizes[1], DIMS):
        scaled = (
            _load_vectors(
                vectors, sequence, head, at, begin + tl.arange(0, DIMS), sizes
            )
            * shrink[:, None]
        )
        squares += scaled * scaled
    norm = tl.sqrt_rn(tl.sum(squares, 1)).to(tl.float64) * power.to(tl.float64)
    finite = undefined == 0
    # 1.2e-38 is the smallest normal float32: a norm under it has lost digits, and
    # counts as zero.
    counted = finite & (norm > 1.2e-38)
    place = (sequence * tl.num_programs(1) + head) * sizes[0] + at
    inside = at < sizes[0]
    tl.store(norms + place, tl.where(counted, norm, 0.0), mask=inside)
    tl.store(
        norms + count + place,
        tl.where(counted, 1 / tl.where(counted, norm, 1.0), 0.0),
        mask=inside,
    )
    tl.store(
        powers + place,
        tl.where(counted, power, tl.where(finite, 0.0, -1.0)),
        mask=inside,
    )


@triton.jit
def _load_weights(mask, sequence, row, rows, at, tokens):
    """Load the rows [row, token] of a mask as float32; 0 beyond the last row or token."""
    places = (
        mask[0] + sequence * mask[1] + row[:, None] * mask[2] + at[None, :] * mask[3]
    )
    inside = (row >= 0)[:, None] & (row < rows)[:, None] & (at < tokens)[None, :]
    return tl.load(places, mask=inside, other=0).to(tl.float32)


@triton.jit
def _count_tokens(counts, weights, power, norm):
    """Add a block of tokens to counts by row of weights: n, Σ‖x‖, Σ‖x‖², vectors of zeros, vectors not finite."""
    n, norm_sum, square_sum, zeros, undefined = counts
    n += tl.sum(weights * (power > 0).to(tl.float32)[None, :], 1)
    norm_sum += tl.sum(weights * norm[None, :], 1)
    square_sum += tl.sum(weights * (norm * norm)[None, :], 1)
    zeros += tl.sum(weights * (power == 0).to(tl.float32)[None, :], 1)
    undefined += tl.sum(weights * (power < 0).to(tl.float32)[None, :], 1)
    return n, norm_sum, square_sum, zeros, undefined


@triton.jit
def _store_counts(found, counts, row, sequence, head, sizes):
    """Write the counts of a sequence and head into the result tensors `found`.

    The numbers of vectors that are left out (zero, not finite) are those of the first token policy.
    """
    heads, sequences = tl.num_programs(1), tl.num_programs(2).to(tl.int64)
    of_row = found[3] + (sequence * sizes[3] + row) * heads + head
    for i in tl.static_range(3):
        tl.store(
            of_row + i * sequences * sizes[3] * heads, counts[i], mask=row < sizes[3]
        )
    # `row` counts from 0: only the first row, that of all real tokens, is stored.
    first = found[4] + sequence * heads + head + row
    tl.store(first, counts[3], mask=row == 0)
    tl.store(first + sequences * heads, counts[4], mask=row == 0)


@triton.jit
def _add_tokens(sums, weights, x, power, inverse, SQUARES: tl.constexpr):
    """Add a block of tokens to Σx, Σu and Σu∘u, for each row of weights.

    x         numbers [token, dim]
    power     power of two next above each vector's numbers; not positive: the vector is left out
    inverse   of the vectors' norms
    """
    vector, unit, square = sums
    counted = power > 0
    scaled = tl.where(
        counted[:, None], x * (1 / tl.where(counted, power, 1.0))[:, None], 0.0
    )
    direction = tl.where(counted, inverse * power, 0.0).to(tl.float32)
    # vectors of a block are added relative to the longest, so that no product overflows
    # The lower limit is 2^-125, the smallest power that `_measure_lengths` writes.
    top = tl.maximum(tl.max(power, 0), 2.350988701644575e-38)
    ratio = tl.where(counted, power / top, 0.0)
    vector += tl.dot(weights * ratio[None, :], scaled, input_precision="ieee").to(
        tl.float64
    ) * top.to(tl.float64)
    unit += tl.dot(weights * direction[None, :], scaled, input_precision="ieee").to(
        tl.float64
    )
    if SQUARES:
        by_square = weights * (direction * direction)[None, :]
        square += tl.dot(by_square, scaled * scaled, input_precision="ieee").to(
            tl.float64
        )
    return vector, unit, square


@triton.jit
def _sum_tokens(
    found,
    norms,
    powers,
    vectors,
    masks,
    subsets,
    sizes,
    SQUARES: tl.constexpr,
    ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Write the sums of some dimensions over all tokens of a sequence, for each row of weights.

    found   places of Σx, Σu, Σu∘u [sequence, row, head, dim], of (n, Σ‖x‖, Σ‖x‖²) [3, sequence, row, head], and of the
            numbers of vectors (zero, not finite) [2, sequence, head]
    sizes   numbers of tokens, dimensions, policies, and rows (policies and subsets)
    """
    head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1)
    column, row = tl.program_id(0) * DIMS + tl.arange(0, DIMS), tl.arange(0, ROWS)
    of_head = (sequence * heads + head) * sizes[0]
    count = tl.num_programs(2).to(tl.int64) * heads * sizes[0]
    nothing = tl.zeros((ROWS, DIMS), tl.float64)
    none = tl.zeros((ROWS,), tl.float64)
    sums, counts = (nothing, nothing, nothing), (none, none, none, none, none)
    for begin in range(0, sizes[0], TOKENS):
        at = begin + tl.arange(0, TOKENS)
        inside = at < sizes[0]
        weights = _load_weights(masks, sequence, row, sizes[2], at, sizes[0])
        # A row number beyond the policies is one of a subset; outside its range each
        # load gives 0, so the sum of both is the row's weights.
        weights += _load_weights(
            subsets, sequence, row - sizes[2], sizes[3] - sizes[2], at, sizes[0]
        )
        power = tl.load(powers + of_head + at, mask=inside, other=0.0)
        norm = tl.load(norms + of_head + at, mask=inside, other=0.0)
        inverse = tl.load(norms + count + of_head + at, mask=inside, other=0.0)
        # Programs share the dimensions of a sequence; counts have none, so one program
        # counts.
        if tl.program_id(0) == 0:
            counts = _count_tokens(counts, weights, power, norm)
        x = _load_vectors(vectors, sequence, head, at, column, sizes)
        sums = _add_tokens(sums, weights, x, power, inverse, SQUARES)
    if tl.program_id(0) == 0:
        _store_counts(found, counts, row, sequence, head, sizes)

    in_policy = (row < sizes[2])[:, None] & (column < sizes[1])[None, :]
    in_row = (row < sizes[3])[:, None] & (column < sizes[1])[None, :]
    of_policy = ((sequence * sizes[2] + row) * heads + head) * sizes[1]
    of_row = ((sequence * sizes[3] + row) * heads + head) * sizes[1]
    tl.store(found[0] + of_policy[:, None] + column[None, :], sums[0], mask=in_policy)
    tl.store(found[1] + of_row[:, None] + column[None, :], sums[1], mask=in_row)
    if SQUARES:
        tl.store(
            found[2] + of_policy[:, None] + column[None, :], sums[2], mask=in_policy
        )


@triton.jit
def _compare_inside(cosine, unit, counts, sizes, DIMS: tl.constexpr):
    """Write the mean cosine of pairs inside a sequence, and whether it has pairs (0 and 0 if not).

    cosine   [2, sequence, policy, head]
    unit     Σu [sequence, row, head, dim]; `counts`: n [sequence, row, head]
    sizes    numbers of rows and dimensions
    """
    policy, head, sequence = (
        tl.program_id(0),
        tl.program_id(1),
        tl.program_id(2).to(tl.int64),
    )
    policies, heads = tl.num_programs(0), tl.num_programs(1)
    of_row = (sequence * sizes[0] + policy) * heads + head
    squares = tl.zeros((DIMS,), tl.float64)
    for begin in range(0, sizes[1], DIMS):
        column = begin + tl.arange(0, DIMS)
        u = tl.load(
            unit + of_row * sizes[1] + column, mask=column < sizes[1], other=0.0
        )
        squares += u * u
    n = tl.load(counts + of_row)
    several = n > 1
    mean = (tl.sum(squares, 0) - n) / tl.where(several, n * (n - 1), 1.0)
    place = cosine + (sequence * policies + policy) * heads + head
    tl.store(place, tl.where(several, mean, 0.0))
    tl.store(
        place + tl.num_programs(2).to(tl.int64) * policies * heads,
        several.to(tl.float64),
    )
