"""Sums of attention rows on a GPU by two kernels, whose scores never leave the chip.

The first goes through the keys of a block of queries and adds up what each row needs. The second goes through the
queries of a block of keys and adds up what each key receives. Both compute the scores anew, from the queries and keys
as the model has them: nothing is converted to float32 or repeated for grouped heads, and no [query, key] map is stored.

Triton compiles the kernels; with TRITON_INTERPRET=1 it runs them on a CPU, one operation at a time. This module can be
imported only if Triton is installed.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

BLOCK, SMALL_BLOCK = 64, 32
"""Queries, and keys, of a block of scores; the small one if each pair or vector needs more of the chip."""
WIDE = 128
"""Vectors of more dimensions need small blocks."""
WARPS = 8
"""Groups of 32 threads that share a block: with these, on an H100, the registers suffice for every form."""
LEAST = 16
"""Dimensions that a product on the chip has at least; shorter vectors are filled up with zeros."""


@dataclass(frozen=True)
class ScoreKernels:
    """The scores of one attention call, as the kernels compute them.

    scale        factor of q·k; the result is in bits, or in nats if there is a `softcap`, which is applied next
    bias         what is added to the scores, in nats; its axes may have length 1
    hidden       which pairs are hidden; its axes may have length 1. None: see `start`, `stop`, `causal`
    start, stop  the range of keys that each sequence sees
    causal       True: a query sees no key that comes after it
    first        the key of each sequence whose weight is recorded
    """

    query: Float[Tensor, "sequence head query dim"]
    key: Float[Tensor, "sequence key_head key dim"]
    scale: float
    softcap: float | None
    bias: Float[Tensor, "..."] | None
    hidden: Bool[Tensor, "..."] | None
    start: Int[Tensor, " sequence"] | None
    stop: Int[Tensor, " sequence"] | None
    causal: bool
    first: Int[Tensor, " sequence"]

    def sum_rows(self) -> Float[Tensor, "sum sequence head query"]:
        """Compute eight sums over the visible keys of every row of attention.

        With s a score in bits and e = 2^(s − shift), these are Σe, Σe·(s − shift), √Σe², shift (the largest s), largest
        and smallest s, e of the first key, and Σ q·k·scale. A row is NaN if any visible q·k is not finite; its sums are
        0 if it sees no key.
        """
        sequences, heads, queries, _ = self.query.shape
        sums = torch.empty(
            8, sequences, heads, queries, dtype=torch.float32, device=self.query.device
        )
        sizes = self._block_sizes()
        grid = (triton.cdiv(queries, sizes["QUERIES"]), heads, sequences)
        _sum_rows[grid](
            sums, sums.stride(0), *self._arguments(), **self._options(), **sizes
        )
        return sums

    def sum_columns(
        self,
        shift: Float[Tensor, "sequence head query"],
        weights: Float[Tensor, "weight sequence head query"],
    ) -> Float[Tensor, "weight sequence head key"]:
        """Sum weight · 2^(s − shift) over the queries that see each key; s is the score in bits.

        shift     what is subtracted from the scores of each query
        weights   one or two sets of weights of the queries; each set gives its own sums

        Rows that are NaN count as zero.
        """
        count, sequences, heads, _ = weights.shape
        keys = self.key.shape[2]
        sums = torch.empty(
            count, sequences, heads, keys, dtype=torch.float32, device=self.query.device
        )
        sizes = self._block_sizes()
        grid = (triton.cdiv(keys, sizes["KEYS"]), heads, sequences)
        of_rows = (shift.contiguous(), weights.contiguous(), weights[0].numel())
        two = {"TWO_WEIGHTS": count > 1}
        _sum_columns[grid](
            sums, *of_rows, *self._arguments(), **self._options(), **two, **sizes
        )
        return sums

    def _block_sizes(self) -> dict[str, int]:
        """Choose the block sizes of the kernels.

        Returns {QUERIES, KEYS: of a block of scores; DIM: width of a head, rounded up to a power of 2; num_warps}.
        """
        width = self.query.shape[3]
        of_pairs = self.hidden is not None or self.bias is not None
        is_large = width > WIDE or self.query.dtype.itemsize >= 4 or of_pairs
        block = SMALL_BLOCK if is_large else BLOCK
        return {
            "QUERIES": block,
            "KEYS": block,
            "DIM": max(LEAST, triton.next_power_of_2(width)),
            "num_warps": WARPS,
        }

    def _arguments(self) -> list[object]:
        """Return the arguments that both kernels share, in their order: tensors with their strides, then numbers."""
        query, key = self.query, self.key
        empty = query  # stands for a tensor that is not read
        hidden, bias = (_expand(x, query, key) for x in (self.hidden, self.bias))
        mask = empty if hidden is None else hidden.view(torch.uint8)
        added = empty if bias is None else bias
        start, stop = (empty if x is None else x for x in (self.start, self.stop))
        tensors = [(x, *x.stride()) for x in (query, key, mask, added)]
        sizes = (
            query.shape[2],
            key.shape[2],
            query.shape[3],
            query.shape[1] // key.shape[1],
        )
        numbers = (self.scale, 1.0 if self.softcap is None else self.softcap)
        return [*tensors, (start, stop, self.first), sizes, numbers]

    def _options(self) -> dict[str, bool]:
        """Return the flags that a kernel is compiled with: whether there is a soft cap, a bias, a mask …"""
        return {
            "SOFTCAP": self.softcap is not None,
            "BIAS": self.bias is not None,
            "HIDDEN": self.hidden is not None,
            "CAUSAL": self.causal,
            "EXACT": self.query.dtype == torch.float32,
        }


def _expand(x: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Expand a tensor of pairs to [sequence, head, query, key] without a copy: repeated axes get stride 0."""
    if x is None:
        return None
    return x[..., : key.shape[2]].expand(*query.shape[:3], key.shape[2])


# Arguments of the kernels: a tensor is (place of its first number, its four strides); `bounds` are the first key of
# each sequence, the one after its last, and the key whose weight is recorded; `sizes` are the numbers of queries, keys
# and dimensions, and how many heads share a key head; `numbers` are scale and soft cap.


@triton.jit
def _find_head(tensor, sequence, head):
    """Compute the address of the first number of a head in a tensor [sequence, head, …]."""
    return tensor[0] + sequence * tensor[1] + head * tensor[2]


@triton.jit
def _load_vectors(tensor, sequence, head, position, length, dim, DIM: tl.constexpr):
    """Load vectors [position, DIM] of one head; what lies beyond the last position or dimension is 0."""
    column = tl.arange(0, DIM)
    places = (
        _find_head(tensor, sequence, head)
        + position.to(tl.int64)[:, None] * tensor[3]
        + column[None, :] * tensor[4]
    )
    return tl.load(
        places, mask=(position < length)[:, None] & (column < dim)[None, :], other=0.0
    )


@triton.jit
def _find_range(bounds, sequence, keys, HIDDEN: tl.constexpr):
    """Load the range of keys that a sequence sees; with a mask (`HIDDEN`), which says the rest, all keys."""
    start, stop = 0, keys
    if not HIDDEN:
        start, stop = (
            tl.load(bounds[0] + sequence).to(tl.int32),
            tl.load(bounds[1] + sequence).to(tl.int32),
        )
    return start, stop


@triton.jit
def _find_pairs(tensor, sequence, head, at_query, at_key):
    """Compute the addresses of a block of pairs [query, key] in a tensor [sequence, head, query, key]."""
    first = _find_head(tensor, sequence, head)
    return (
        first + at_query.to(tl.int64)[:, None] * tensor[3] + at_key[None, :] * tensor[4]
    )


@triton.jit
def _score(
    q,
    k,
    at_query,
    at_key,
    place,
    hidden,
    bias,
    sight,
    sizes,
    numbers,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    HIDDEN: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXACT: tl.constexpr,
):
    """Compute a block of attention scores [query, key].

    at_query, at_key   positions of the queries and keys of the block
    place              (number of the sequence, number of the head)
    sight              (first, end) of the range of keys that the sequence sees

    Returns (q·k·scale, the score in bits with soft cap and bias, whether the query sees the key).
    """
    # Without "ieee" the chip multiplies with 10 bits of mantissa (TF32).
    if EXACT:
        raw = tl.dot(q, tl.trans(k), input_precision="ieee") * numbers[0]
    else:
        raw = tl.dot(q, tl.trans(k)) * numbers[0]
    # NaN goes through every sum of the row and marks it as undefined.
    raw = tl.where(tl.abs(raw) < float("inf"), raw, float("nan"))
    inside = (at_query < sizes[0])[:, None] & (at_key < sizes[1])[None, :]
    if HIDDEN:
        seen = inside & (
            tl.load(
                _find_pairs(hidden, place[0], place[1], at_query, at_key),
                mask=inside,
                other=1,
            )
            == 0
        )
    else:
        seen = inside & (at_key >= sight[0])[None, :] & (at_key < sight[1])[None, :]
    if CAUSAL:
        seen = seen & (at_key[None, :] <= at_query[:, None])
    score = raw
    if SOFTCAP:
        # tanh by the exponential of a number that is not positive, which cannot overflow
        small = tl.exp2(-2 * 1.4426950408889634 * tl.abs(raw / numbers[1]))
        size = (1 - small) / (1 + small)
        score = tl.where(raw < 0, -size, size) * (numbers[1] * 1.4426950408889634)
        score = tl.where(raw == raw, score, raw)
    if BIAS:
        added = tl.load(
            _find_pairs(bias, place[0], place[1], at_query, at_key),
            mask=seen,
            other=0.0,
        )
        score += added.to(tl.float32) * 1.4426950408889634
    return raw, score, seen


@triton.jit
def _add_block(sums, raw, score, seen, first_one):
    """Add a block of scores [query, key] to the running sums of its rows, and return the new sums.

    sums        largest and smallest score in bits; with e = 2^(score − largest): Σe, Σe·(score − largest), Σe²; then
                Σ q·k·scale, the score of the first key, and whether it is seen
    raw         q·k·scale
    score       the score in bits
    seen        whether the query sees the key
    first_one   True in the column of the key whose weight is recorded (the first of the sequence)
    """
    largest, smallest, total, weighted, squares, score_sum, of_first, sees_first = sums
    higher = tl.maximum(largest, tl.max(tl.where(seen, score, -1e30), 1))
    smallest = tl.minimum(smallest, tl.min(tl.where(seen, score, 1e30), 1))
    # what was summed relative to the earlier maximum becomes relative to the new one
    lower, shrink = largest - higher, tl.exp2(largest - higher)
    below = tl.where(seen, score - higher[:, None], 0.0)
    e = tl.where(seen, tl.exp2(below), 0.0)
    weighted = shrink * (weighted + lower * total) + tl.sum(e * below, 1)
    total = shrink * total + tl.sum(e, 1)
    squares = shrink * shrink * squares + tl.sum(e * e, 1)
    score_sum += tl.sum(tl.where(seen, raw, 0.0), 1)
    # Only one key of a row is the first, so this sum picks out its score.
    at_first = seen & first_one
    of_first += tl.sum(tl.where(at_first, score, 0.0), 1)
    sees_first += tl.sum(at_first.to(tl.float32), 1)
    return higher, smallest, total, weighted, squares, score_sum, of_first, sees_first


@triton.jit
def _store_rows(row, stride, inside, sums):
    """Turn the running sums of rows into those that `ScoreKernels.sum_rows` documents, and write them to memory."""
    largest, smallest, total, weighted, squares, score_sum, of_first, sees_first = sums
    shift = tl.where(total > 0, largest, 0.0)
    undefined = total != total
    largest = tl.where(undefined, total, largest)
    smallest = tl.where(undefined, total, smallest)
    first = tl.where(sees_first > 0, tl.exp2(of_first - shift), 0.0)
    found = (
        total,
        weighted,
        tl.sqrt(squares),
        shift,
        largest,
        smallest,
        first,
        score_sum,
    )
    for i in tl.static_range(8):
        tl.store(row + i * stride, found[i], mask=inside)


@triton.jit
def _sum_rows(
    sums,
    sum_stride,
    query,
    key,
    hidden,
    bias,
    bounds,
    sizes,
    numbers,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    HIDDEN: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXACT: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    """Compute the eight sums of `ScoreKernels.sum_rows` for a block of queries: a Triton kernel."""
    head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    place = (sequence, head)
    at_query = tl.program_id(0) * QUERIES + tl.arange(0, QUERIES)
    q = _load_vectors(query, sequence, head, at_query, sizes[0], sizes[2], DIM)
    first_key = tl.load(bounds[2] + sequence)
    start, stop = _find_range(bounds, sequence, sizes[1], HIDDEN)
    last = stop
    if CAUSAL:
        last = tl.minimum(stop, (tl.program_id(0) + 1) * QUERIES)

    zero = tl.zeros((QUERIES,), tl.float32)
    sums_of_row = (zero - 1e30, zero + 1e30, zero, zero, zero, zero, zero, zero)
    # From the border of a block on, so that loads are aligned; keys before `start` are
    # not seen.
    for begin in range(start // KEYS * KEYS, last, KEYS):
        at_key = begin + tl.arange(0, KEYS)
        k = _load_vectors(
            key, sequence, head // sizes[3], at_key, sizes[1], sizes[2], DIM
        )
        pairs = (
            q,
            k,
            at_query,
            at_key,
            place,
            hidden,
            bias,
            (start, stop),
            sizes,
            numbers,
        )
        raw, score, seen = _score(*pairs, SOFTCAP, BIAS, HIDDEN, CAUSAL, EXACT)
        first_one = (at_key == first_key)[None, :]
        sums_of_row = _add_block(sums_of_row, raw, score, seen, first_one)

    row = sums + (sequence * tl.num_programs(1) + head) * sizes[0] + at_query
    _store_rows(row, sum_stride, at_query < sizes[0], sums_of_row)


@triton.jit
def _sum_columns(
    sums,
    shift,
    weights,
    weight_stride,
    query,
    key,
    hidden,
    bias,
    bounds,
    sizes,
    numbers,
    SOFTCAP: tl.constexpr,
    BIAS: tl.constexpr,
    HIDDEN: tl.constexpr,
    CAUSAL: tl.constexpr,
    EXACT: tl.constexpr,
    TWO_WEIGHTS: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    """Compute the sums of `ScoreKernels.sum_columns` for a block of keys: a Triton kernel."""
    head, sequence = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    place = (sequence, head)
    at_key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    k = _load_vectors(key, sequence, head // sizes[3], at_key, sizes[1], sizes[2], DIM)
    row = (sequence * tl.num_programs(1) + head) * sizes[0]
    start, stop = _find_range(bounds, sequence, sizes[1], HIDDEN)
    begin_at = 0
    if CAUSAL:
        # No query before the first key of the block sees any of its keys.
        begin_at = tl.program_id(0) * KEYS // QUERIES * QUERIES

    received = tl.zeros((KEYS,), tl.float32)
    other = tl.zeros((KEYS,), tl.float32)
    for begin in range(begin_at, sizes[0], QUERIES):
        at_query = begin + tl.arange(0, QUERIES)
        inside = at_query < sizes[0]
        q = _load_vectors(query, sequence, head, at_query, sizes[0], sizes[2], DIM)
        pairs = (
            q,
            k,
            at_query,
            at_key,
            place,
            hidden,
            bias,
            (start, stop),
            sizes,
            numbers,
        )
        _, score, seen = _score(*pairs, SOFTCAP, BIAS, HIDDEN, CAUSAL, EXACT)
        below = score - tl.load(shift + row + at_query, mask=inside, other=0.0)[:, None]
        e = tl.where(seen & (below == below), tl.exp2(below), 0.0)
        weight = tl.load(weights + row + at_query, mask=inside, other=0.0)
        received += tl.sum(e * weight[:, None], 0)
        if TWO_WEIGHTS:
            weight = tl.load(
                weights + weight_stride + row + at_query, mask=inside, other=0.0
            )
            other += tl.sum(e * weight[:, None], 0)

    column = sums + (sequence * tl.num_programs(1) + head) * sizes[1] + at_key
    tl.store(column, received, mask=at_key < sizes[1])
    if TWO_WEIGHTS:
        beyond = tl.num_programs(2).to(tl.int64) * tl.num_programs(1) * sizes[1]
        tl.store(column + beyond, other, mask=at_key < sizes[1])
