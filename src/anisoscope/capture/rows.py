"""Statistics of attention rows from queries, keys and mask, block by block; no map over all heads is ever stored.

The weights are those of the model's own softmax: its scale, its mask, its position bias, its soft cap, its sinks.
"""

import math
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import groupby, product, starmap
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from anisoscope.capture.masking import Masking, Span
from anisoscope.sums.device import choose_sum_device
from anisoscope.sums.on_chip import compute_checked, has_kernels, load_kernels
from anisoscope.sums.threads import run_in_parallel

KERNELS = "anisoscope.capture.row_kernel"
WALL = 1e30  # minus this is a score that no softmax sees; finite, so that weight 0 times score is 0
BLOCK, CAUSAL_ROWS = 1 << 18, 128
"""Scores per block: two such float32 buffers stay in a core's cache. And rows per block if later keys are hidden: few,
so that little is computed above the diagonal in vain.
"""
DEVICE_BLOCK, DEVICE_ROWS = 1 << 26, 1024
"""The same on an accelerator: 512 MiB, and few launches."""
# Scores are in bits: a power of 2 costs a quarter of an exponential.
LOG2E = math.log2(math.e)
LN2 = math.log(2)
SHIFT_ABOVE = 46.0  # largest |score| in bits whose power is taken as it is: float32 overflows at 128
TINY = 1e-30  # length of a row that sees nothing
# Buffers of the last call, by type and device: pages that are mapped already.
SCRATCH = threading.local()
SUMMED = (
    "total",
    "weighted",
    "length",
    "shift",
    "largest",
    "smallest",
    "first",
    "score",
)


@torch.no_grad()
def attention_rows(
    query: Float[Tensor, "sequence head query dim"],
    key: Float[Tensor, "sequence key_head key dim"],
    masking: Masking,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    real: Bool[Tensor, "sequence query"] | None = None,
    median: bool = False,
    histogram: Tensor | None = None,
    value: Float[Tensor, "sequence key_head key value_dim"] | None = None,
    columns: bool = False,
) -> dict[str, Tensor]:
    """Compute statistics of attention rows from queries, keys and mask, without storing a whole attention map.

    A row is the attention of one query: its weights over the keys that it sees. Arguments beyond queries and keys:

    masking    which query sees which key, and position biases
    scale      factor of q·k in the logits
    softcap    the model's soft cap of logits, if it has one
    sinks      learned logit of each head's sink, an outcome of the softmax that is no key
    real       which queries are real tokens, not padding; None: all. Only averages over rows depend on it
    median     also compute `row_median`
    histogram  edges of bins: also compute `score_histogram`
    value      also compute the `output` of attention
    columns    also compute what each key receives

    Returns, by name:

    per row [sequence, head, query]: `entropy` (nats) over its `outcomes`, which are the visible keys and, if the head
    has one, its sink; `row_max`, `row_min` and `row_median` over visible keys, `first_mass` (weight of the first key),
    `keys` (number of visible ones), `score` (sum of q·k·scale over them), `largest` and `smallest` (of the logits that
    the softmax sees, over visible keys; meaningless if no key is visible);

    per sequence [sequence, head]: `row_similarity`, the mean cosine between the rows of real queries, and
    `score_histogram` [sequence, head, bin];

    `output` [sequence, query, head, value_dim], NaN for rows that see no key or a number that is not finite;

    per key [sequence, head, key]: the `mass` that real queries give it, and by how many of them it is `seen`.
    """
    call = _Call(query, key, masking, scale, softcap, sinks, real)
    by_blocks = partial(
        _sum_blocks,
        call,
        median=median,
        histogram=histogram,
        value=value,
        columns=columns,
    )
    if (
        median
        or histogram is not None
        or value is not None
        or not has_kernels(query, KERNELS)
    ):
        return by_blocks()
    by_kernel = partial(_sum_on_chip, call, columns=columns)
    form = _name_form(call, columns)
    return compute_checked(
        form, by_kernel, by_blocks, what="attention rows", counts="keys"
    )


class _Call(NamedTuple):
    """What attention is computed from: the arguments of `attention_rows` that every way needs."""

    query: Tensor
    key: Tensor
    masking: Masking
    scale: float
    softcap: float | None
    sinks: Tensor | None
    real: Tensor | None


def _name_form(call: _Call, columns: bool) -> tuple[object, ...]:
    """Return the features of a call that decide which compiled kernel it runs: type, width, kinds of masks …

    The first call of each form is checked against the computation without kernels.
    """
    query, key, masking = call.query, call.key, call.masking
    of_masking = (masking.keys is None, masking.causal, masking.bias is None)
    strides = (query.stride(-1) == 1, key.stride(-1) == 1)
    grouped = query.shape[1] != key.shape[1]
    return (
        query.device,
        query.dtype,
        query.shape[-1],
        grouped,
        *strides,
        *of_masking,
        call.softcap is None,
        columns,
    )


def _sum_blocks(
    call: _Call,
    *,
    median: bool,
    histogram: Tensor | None,
    value: Tensor | None,
    columns: bool,
) -> dict[str, Tensor]:
    """Compute the statistics of attention rows block by block; the arguments are those of `attention_rows`."""
    query, key = call.query, call.key
    # Scores of 16 bits would be rounded more than those of most models.
    if query.dtype.itemsize < 4:
        query, key = query.float(), key.float()
    walk = _Walk(call._replace(query=query, key=key))
    if value is not None:
        shared = query.shape[1] // value.shape[1]
        walk.value = value.to(query)
        if shared > 1:
            walk.value = walk.value.repeat_interleave(shared, 1)
        # As models give it: tokens before heads.
        walk.output = query.new_empty(
            len(query), query.shape[2], query.shape[1], value.shape[3]
        )
    if columns:
        walk.mass = torch.zeros_like(walk.unit_rows)
        if walk.spoiled is not None:
            walk.giving = walk.real.unsqueeze(1) * ~walk.spoiled
    if median:
        walk.median = torch.zeros_like(walk.sums[0])
    if histogram is not None:
        walk.counts = query.new_zeros(*query.shape[:2], len(histogram) + 1)
        walk.edges = histogram.to(query) * walk.unit
    # Blocks of the same sequences and heads add into the same sums, so that one thread computes them in turn.
    alike = groupby(walk.blocks(), lambda block: walk.away or block[:2])
    tasks: list[Callable[[], object]] = []
    for _, blocks in alike:
        tasks.append(partial(list, starmap(walk.block, list(blocks))))
    run_in_parallel(tasks, query.device)
    return walk.result()


def _sum_on_chip(call: _Call, *, columns: bool) -> dict[str, Tensor]:
    """Compute the statistics of attention rows by GPU kernels; the arguments are those of `attention_rows`."""
    if call.query.dtype == torch.bfloat16 and call.query.device.type == "cpu":
        # Triton's interpreter cannot multiply these; in float32 every product is the same
        call = call._replace(query=call.query.float(), key=call.key.float())
    walk = _Walk(call, on_chip=True)
    walk.sum_on_chip(columns)
    return walk.result()


class _Walk:
    """Computes attention rows block by block [sequence, head, query, key].

    A block holds several whole sequences, or some heads and queries of one. The loop sums only what needs the scores,
    with scores in bits and e = 2^(score − shift), shift 0 unless scores are large: Σe, Σe·(score − shift), ‖e‖,
    extremes. Everything else follows from these sums, once, in `result`. If a sequence sees one range of keys, only
    these are scored and no mask is needed, except on the diagonal of a causal one.
    """

    def __init__(self, call: _Call, *, on_chip: bool = False) -> None:
        """Prepare the queries, keys and masks of one attention call, and empty sums.

        With `on_chip`, kernels compute the sums: they take queries and keys as they are.
        """
        query, key, masking, scale, softcap, sinks, real = call
        self.on_chip = on_chip
        # No question on an accelerator that the host would wait for.
        self.away = query.device.type != "cpu"
        self.softcap = softcap
        self.sinks = sinks
        # Scores are in bits; with a soft cap, only after it.
        self.unit = LOG2E if softcap is None else 1.0
        self.scale = scale * self.unit

        self.q = query
        self.k = key
        shared = query.shape[1] // key.shape[1]
        if shared > 1 and not on_chip:
            self.k = key.repeat_interleave(shared, 1)
        # A mask and a flag together would need two walls for each block: one mask says
        # both.
        self.masking = masking.without_flag(query.shape[2], key.shape[2])
        self._prepare_for_size_of_scores()

        sequences, self.heads, self.queries, _ = self.q.shape
        self.keys = self.k.shape[2]
        self._read_masking()

        # 16 bits do not hold sums.
        self.number = torch.promote_types(query.dtype, torch.float32)
        of_sums: Any = {"dtype": self.number, "device": self.q.device}
        if real is None:
            self.real = torch.ones(sequences, self.queries, **of_sums)
        else:
            self.real = real.to(**of_sums)
        if not on_chip:
            self.sums = torch.zeros(
                len(SUMMED), sequences, self.heads, self.queries, **of_sums
            )
            self.unit_rows = torch.zeros(sequences, self.heads, 1, self.keys, **of_sums)
        self.views: dict[tuple[int, tuple[int, ...]], tuple[Tensor, ...]] = {}
        # Empty: was not asked for.
        self.counts = self.edges = self.median = self.value = self.output = (
            self.mass
        ) = torch.empty(0)
        # [sequence, head, query]: whose weights are added up by key
        self.giving = self.real.unsqueeze(1)

    def _prepare_for_size_of_scores(self) -> None:
        """Decide from a bound of the scores whether they may overflow, and set numbers that are not finite to zero.

        Sets `large`, whether scores may need a shift, and `spoiled`, the rows [sequence, head, query] that are not
        defined, or None.
        """
        # Infinite where it would have to be computed on an accelerator; kernels deal with such rows themselves.
        longest = math.inf
        if not self.away and not self.on_chip:
            longest = self._bound_scores()
        # The bound is of q·k alone. "not <=" holds for NaN too.
        self.large = (
            self.softcap is not None
            or self.masking.bias is not None
            or not longest <= SHIFT_ABOVE
        )
        self.spoiled: Tensor | None = None
        if not self.on_chip and not math.isfinite(longest):
            self.spoiled = self._zero_undefined(self.masking)

    def _read_masking(self) -> None:
        """Set which keys are visible: as a range for each sequence (`span`), or else as a mask (`hidden`).

        Also sets `causal` and `first`, the first visible key of each sequence.
        """
        self.span = self.masking.span(len(self.q), self.queries, self.keys)
        self.causal = self.masking.causal if self.span is None else self.span.causal
        self.hidden: Tensor | None = None
        if self.span is None and self.masking.keys is not None:
            # A mask may be longer than the keys: [sequence, 1 or head, query or 1, key].
            self.hidden = ~self.masking.keys[..., : self.keys]
        self.first = self._find_first_key()

    def sum_on_chip(self, columns: bool) -> None:
        """Compute all sums by two GPU kernels; with `columns`, also the attention that each key receives."""
        kernels = load_kernels(KERNELS)
        assert kernels is not None
        start = stop = None
        first = self.first
        if self.span is not None:
            start, stop = _move_edges(self.span, self.q.device)
            first = start
        elif first is None:
            first = torch.zeros(len(self.q), dtype=torch.int64, device=self.q.device)
        bias, causal = self.masking.bias, bool(self.causal)
        scores = kernels.ScoreKernels(
            self.q,
            self.k,
            self.scale,
            self.softcap,
            bias,
            self.hidden,
            start,
            stop,
            causal,
            first.flatten(),
        )
        self.sums = scores.sum_rows()
        total, _, length, shift = self.sums[:4]
        self.spoiled = total.isnan()
        self.giving = torch.where(self.spoiled, 0.0, self.real.unsqueeze(1))
        weights = [torch.where(self.spoiled, 0.0, self.giving / length.clamp(min=TINY))]
        if columns:
            whole = self._compute_denominators(total, shift, slice(None))
            weights.append(torch.where(self.spoiled, 0.0, self.giving / whole))
        received = scores.sum_columns(shift, torch.stack(weights))
        self.unit_rows = received[0].unsqueeze(2)
        self.mass = received[1:].flatten(0, 1).unsqueeze(2)

    def _zero_undefined(self, masking: Masking) -> Tensor:
        """Set queries and keys with NaN or Inf to zero, and return which rows they make undefined.

        The result [sequence, head, query] is True for rows whose query, or a key that it sees, was not finite.
        """
        finite_q = self.q.isfinite().all(-1)  # [sequence, head, query]
        finite_k = self.k.isfinite().all(-1)  # [sequence, head, key]
        # 0 · NaN is NaN: such a key would spoil the rows that do not see it, too.
        self.q = torch.where(finite_q.unsqueeze(-1), self.q, 0.0)
        self.k = torch.where(finite_k.unsqueeze(-1), self.k, 0.0)
        seen = finite_k.new_ones(1, 1, 1, 1)
        if masking.keys is not None:
            seen = masking.keys[..., : self.k.shape[2]]
        # Each query sees keys of its own: the product counts how many of them are not finite.
        if seen.shape[2] > 1:
            undefined = (~finite_k).float().unsqueeze(-1)
            count = torch.matmul(seen.float(), undefined).squeeze(-1)
            return ~finite_q | (count > 0)
        # All queries see the same keys, or those of them that come no later.
        bad = seen[:, :, 0] & ~finite_k
        if masking.causal:
            met_so_far = bad.cumsum(-1) > 0
            return ~finite_q | met_so_far[..., : self.q.shape[2]]
        return ~finite_q | bad.any(-1, keepdim=True)

    def _bound_scores(self) -> float:
        """Return an upper bound of |logit| in bits: the length of the longest query times that of the longest key."""
        if not self.q.numel() or not self.k.numel():
            return 0.0
        # Transposed: most models keep heads next to dimensions, so that the numbers are read in order.
        longest_query = float(
            torch.linalg.vector_norm(self.q.transpose(1, 2), dim=-1).max()
        )
        longest_key = float(
            torch.linalg.vector_norm(self.k.transpose(1, 2), dim=-1).max()
        )
        return longest_query * longest_key * abs(self.scale)

    def _find_first_key(self) -> Tensor | None:
        """Return the index [sequence, 1, 1, 1] of the first key of each sequence that any query sees.

        None if that is the first of the keys for which scores are computed.
        """
        if self.hidden is None:
            return None
        seen_by_any = ~self.hidden.flatten(1, 2).all(1)  # [sequence or 1, key]
        if not self.away and bool(seen_by_any[:, 0].all()):
            return None
        # `argmax` knows no booleans; of equal numbers it gives the first.
        first = seen_by_any.to(torch.uint8).argmax(-1)
        return first.view(-1, 1, 1, 1).expand(len(self.q), 1, 1, 1)

    def blocks(self) -> Iterator[tuple[slice, slice, slice, slice]]:
        """Yield the slices (sequences, heads, queries, keys) of each block of scores to compute."""
        spans = [(0, self.keys)] * len(self.q)
        if self.span is not None:
            spans = list(zip(self.span.start, self.span.stop, strict=True))
        end = 0
        # Only sequences with the same visible keys fit one block.
        for (start, stop), alike in groupby(spans):
            begin = end
            end = begin + len(list(alike))
            sequences, heads, queries = self._choose_block_size(max(1, stop - start))
            slices = product(
                _cut_range(begin, end, sequences),
                _cut_range(0, self.heads, heads),
                _cut_range(0, self.queries, queries),
            )
            for of_sequences, of_heads, of_queries in slices:
                last = stop
                if self.causal:
                    # No query of the block sees the keys after its last one.
                    last = min(stop, of_queries.stop)
                if last > start:
                    yield of_sequences, of_heads, of_queries, slice(start, last)

    def _choose_block_size(self, width: int) -> tuple[int, int, int]:
        """Return how many sequences, heads and queries a block has, if each query sees `width` keys.

        Queries come first, then heads, then sequences: a block has several sequences only if it has all their heads.
        """
        size = BLOCK
        most_rows = CAUSAL_ROWS
        if self.away:
            size = DEVICE_BLOCK
            most_rows = DEVICE_ROWS
        queries = min(self.queries, max(1, size // width))
        # Rows of a block share the keys of its last one: with few rows little is
        # computed that nobody sees.
        if self.causal:
            queries = min(queries, most_rows)
        heads = min(self.heads, max(1, size // (queries * width)))
        sequences = 1
        if heads == self.heads:
            sequences = max(1, size // (heads * queries * width))
        return sequences, heads, queries

    def block(
        self, sequences: slice, heads: slice, queries: slice, keys: slice
    ) -> None:
        """Compute one block of scores (sequences x heads x queries x keys) and add it to the running sums."""
        q = self.q[sequences, heads, queries]
        k = self.k[sequences, heads, keys]
        # Scores and their exponentials [sequence, head, query, key], and both as [sequence · head, query, key].
        s, e, flat, weights = self._get_buffers((*q.shape[:3], k.shape[2]))
        # With beta = 0 the old numbers of the buffer are not read.
        torch.baddbmm(
            flat,
            q.flatten(0, 1),
            k.flatten(0, 1).transpose(1, 2),
            beta=0,
            alpha=self.scale,
            out=flat,
        )
        # Views [sequence, head, query]: what follows fills them.
        sums = self.sums[:, sequences, heads, queries].unbind(0)
        total, weighted, length, shift, largest, smallest, first, score = sums
        real = self.real[sequences, None, queries]
        # Some pairs may be hidden only in the corner of the block, from key `offset` on.
        wall, offset = self._causal_penalty(sequences, heads, queries, keys)
        corner = s[..., offset:] if offset else s
        # The sum of scores is of q·k·scale alone: before the soft cap, the bias and the wall.
        if self.causal or wall is not None:
            torch.sum(s[..., :offset], -1, out=score)
            unmasked = corner
            if wall is not None:
                unmasked = torch.mul(corner, wall == 0, out=e[..., offset:])
            score += unmasked.sum(-1)
        if self.counts.numel():
            self._add_to_histogram(s, wall, offset, real, self.counts[sequences, heads])
        if self.softcap is not None:
            s.div_(self.softcap).tanh_().mul_(self.softcap * LOG2E)
        if self.masking.bias is not None:
            s.add_(
                _slice_block(self.masking.bias, sequences, heads, queries)[..., keys],
                alpha=LOG2E,
            )
        # Hidden pairs must be neither the smallest nor the largest: the wall is first above all scores, then below.
        if wall is not None:
            corner.add_(wall)
        torch.amin(s, -1, out=smallest)
        if wall is not None:
            corner.sub_(wall, alpha=2)
        torch.amax(s, -1, out=largest)
        if self.away or (self.large and float(largest.abs().max()) > SHIFT_ABOVE):
            # not below every score, so that a row that sees no key has no weights
            s.sub_(torch.clamp(largest, min=-WALL / 2, out=shift).unsqueeze(-1))
        torch.sum(torch.exp2(s, out=e), -1, out=total)
        torch.sum(s.mul_(e), -1, out=weighted)
        torch.linalg.vector_norm(e, dim=-1, out=length)
        at_first = e
        if self.first is not None:
            at_first = e.gather(-1, self.first[sequences].expand(*e.shape[:3], 1))
        first.copy_(at_first[..., 0])
        # Rows of length 1 are added up: their cosines follow from the length of the sum.
        weight = real / (length if wall is None else length.clamp(min=TINY))
        _add_weighted_rows(self.unit_rows[sequences, heads, :, keys], weight, weights)
        if self.mass.numel():
            denominators = self._compute_denominators(total, shift, heads)
            given = _slice_block(self.giving, sequences, heads, queries) / denominators
            _add_weighted_rows(self.mass[sequences, heads, :, keys], given, weights)
        if self.output.numel():
            mixed = torch.bmm(
                weights, self.value[sequences, heads, keys].flatten(0, 1)
            ).view(*e.shape[:3], -1)
            torch.div(
                mixed,
                total.unsqueeze(-1),
                out=self.output[sequences, queries, heads].transpose(1, 2),
            )
        # Last, since hidden pairs become NaN in the exponentials.
        if self.median.numel():
            if wall is not None:
                e[..., offset:].masked_fill_(wall > 0, torch.nan)
            self.median[sequences, heads, queries] = e.nanquantile(0.5, -1)

    def _compute_denominators(
        self, total: Tensor, shift: Tensor, heads: slice
    ) -> Tensor:
        """Compute the softmax denominators of rows: sums of exponentials, with that of the head's sink if it has one.

        total   sum of 2^(score − shift) over the keys [sequence, head, query]; scores are in bits
        shift   what is subtracted from the scores of each row
        heads   the heads of this block
        """
        if self.sinks is not None:
            sink = self.sinks.to(self.real).view(1, -1, 1)[:, heads] * LOG2E
            # A sink far above the scores leaves them nothing.
            total = total + (sink - shift).exp2()
        return total.clamp(min=TINY)

    def _get_buffers(self, shape: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Return two buffers for a block of scores, which are reused by later blocks.

        They are (buffer, buffer, the first as [sequence · head, query, key], the second likewise), with the block's
        shape [sequence, head, query, key].
        """
        # A buffer for each thread, since threads compute blocks side by side.
        place = (threading.get_ident(), shape)
        if place not in self.views:
            size = math.prod(shape)
            key = (self.q.dtype, self.q.device)
            kept: dict[Any, Tensor] = SCRATCH.__dict__
            if key not in kept or kept[key].shape[1] < size:
                kept[key] = self.q.new_empty(2, size)
            s, e = kept[key][:, :size].view(2, *shape)
            self.views[place] = s, e, s.flatten(0, 1), e.flatten(0, 1)
        return self.views[place]

    def _causal_penalty(
        self, sequences: slice, heads: slice, queries: slice, keys: slice
    ) -> tuple[Tensor | None, int]:
        """Return what to subtract from the scores of a block, so that hidden pairs get no weight.

        The slices say which part of [sequence, head, query, key] the block is. Returns (penalty: `WALL` for hidden
        pairs and 0 for others, or None if every pair is visible; from which key of the block on it applies).
        """
        if self.causal:
            # keys from the first query of the block on; none where the sequence ended before it
            corner = min(max(queries.start, keys.start), keys.stop)
            later = torch.arange(corner, keys.stop, device=self.q.device)
            if not len(later):
                return None, 0
            here = torch.arange(queries.start, queries.stop, device=self.q.device)
            hidden = later > here[:, None]
            return hidden.to(self.q.dtype) * WALL, corner - keys.start
        if self.hidden is None:
            return None, 0
        hidden = _slice_block(self.hidden, sequences, heads, queries)
        return hidden.to(self.q.dtype) * WALL, 0

    def _add_to_histogram(
        self, s: Tensor, wall: Tensor | None, offset: int, real: Tensor, counts: Tensor
    ) -> None:
        """Count the scores of visible pairs of real queries in the bins of the histogram `counts`.

        s        scores of a block [sequence, head, query, key]
        wall     what was subtracted from hidden pairs; None: every pair is visible
        offset   from which key of the block on `wall` applies
        real     which queries are counted
        """
        # Every pair has the weight 1 if its query is real and its key visible, else 0.
        weight = real.unsqueeze(-1).expand_as(s).clone()
        if wall is not None:
            weight[..., offset:].masked_fill_(wall > 0, 0.0)
        counts.scatter_add_(
            2, torch.bucketize(s, self.edges).flatten(2), weight.flatten(2)
        )

    def _sum_scores(self) -> Tensor:
        """Return Σ q·k·scale over the visible keys of each row [sequence, head, query].

        If all queries of a sequence see the same range of keys, it is q · Σk, for which no scores are needed.
        """
        if self.on_chip or self.span is None or self.causal:
            return self.sums[SUMMED.index("score")] / self.unit
        k = self.k
        if min(self.span.stop) < self.keys or max(self.span.start) > 0:
            position = torch.arange(self.keys, device=k.device)
            start = torch.tensor(self.span.start).to(k.device).unsqueeze(1)
            stop = torch.tensor(self.span.stop).to(k.device).unsqueeze(1)
            in_span = (position >= start) & (position < stop)  # [sequence, key]
            k = k * in_span[:, None, :, None]
        # As most models keep heads: next to dimensions, so that the numbers are read in order.
        q = self.q.transpose(1, 2)  # [sequence, query, head, dim]
        total = k.sum(2, keepdim=True).transpose(1, 2)  # [sequence, 1, head, dim]
        return (q * total).sum(-1).transpose(1, 2) * (self.scale / self.unit)

    def _count_keys(self) -> Tensor:
        """Return how many keys each query sees [sequence, head, query]."""
        if self.hidden is not None:
            return (~self.hidden).sum(-1).to(self.number).expand(self.q.shape[:3])
        assert self.span is not None
        start = torch.tensor(self.span.start).view(-1, 1, 1)
        stop = torch.tensor(self.span.stop).view(-1, 1, 1)
        if self.causal:
            stop = torch.minimum(torch.arange(1, self.queries + 1), stop)
        return (stop - start).clamp(min=0).to(self.real).expand(self.q.shape[:3])

    def _count_queries_by_key(self) -> Tensor:
        """Return how many queries see each key [sequence, head, key]; only real queries with defined rows count."""
        shape = (len(self.q), self.heads, self.keys)
        if self.hidden is not None:
            # [sequence, 1 or head, query or 1, key]
            pairs = (~self.hidden).to(self.number)
            # All queries see the same keys.
            if pairs.shape[2] == 1:
                return (self.giving.sum(-1, keepdim=True) * pairs[:, :, 0]).expand(
                    shape
                )
            return (
                torch.matmul(self.giving.unsqueeze(2), pairs).squeeze(2).expand(shape)
            )
        assert self.span is not None
        position = torch.arange(self.keys, device=self.q.device)
        start = torch.tensor(self.span.start, device=self.q.device).view(-1, 1)
        stop = torch.tensor(self.span.stop, device=self.q.device).view(-1, 1)
        inside = ((position >= start) & (position < stop)).to(self.number).unsqueeze(1)
        seen = self.giving.sum(-1, keepdim=True).expand(
            *self.giving.shape[:2], self.keys
        )
        if self.causal:
            # Queries from the key's own position on.
            later = self.giving.flip(-1).cumsum(-1).flip(-1)
            # No query sees keys after the last one.
            missing = self.keys - later.shape[-1]
            seen = later[..., : self.keys]
            if missing > 0:
                seen = torch.nn.functional.pad(seen, (0, missing))
        return (seen * inside).expand(shape)

    def result(self) -> dict[str, Tensor]:
        """Return the statistics that `attention_rows` documents, from the running sums."""
        # Each [sequence, head, query].
        total_of_keys, weighted, _, shift, _, _, first, _ = self.sums.unbind(0)
        total, weighted, shift, shrink = self._add_sinks(total_of_keys, weighted, shift)
        # both in one operation: on an accelerator a launch costs more than the numbers
        ends = self.sums[SUMMED.index("largest") : SUMMED.index("smallest") + 1]
        extremes = (ends - shift).exp2() / total
        logits = ends * LN2
        # H = log Σe − Σe·(score − shift) / Σe; rounding may take that of a row with one key below 0.
        entropy = ((total.log2() - weighted / total) * LN2).clamp_(min=0)
        rows = {
            "entropy": entropy,
            "row_max": extremes[0],
            "row_min": extremes[1],
            "first_mass": shrink * first / total,
            "score": self._sum_scores(),
            "largest": logits[0],
            "smallest": logits[1],
        }
        if self.median.numel():
            rows["row_median"] = shrink * self.median / total
        # On a chip, sums of undefined rows are NaN already.
        if self.spoiled is not None and not self.on_chip:
            rows = {
                name: value.masked_fill(self.spoiled, torch.nan)
                for name, value in rows.items()
            }
        keys = self._count_keys()
        if self.output.numel():
            share_of_keys = shrink * total_of_keys / total
            rows["output"] = self._finish_output(keys, share_of_keys)
        if self.mass.numel():
            rows["mass"] = self.mass.squeeze(2)
            rows["seen"] = self._count_queries_by_key()
        rows["keys"] = keys
        # A sink is one more outcome of the softmax.
        rows["outcomes"] = keys if self.sinks is None else keys + 1
        rows["row_similarity"] = self._compute_similarity()
        if self.counts.numel():
            rows["score_histogram"] = self.counts
        return rows

    def _compute_similarity(self) -> Tensor:
        """Compute the mean cosine between the rows of real queries [sequence, head], from the length of their sum.

        NaN for sequences with fewer than two real queries, or with an undefined row among them.
        """
        # n is taken off the squared length, a difference of large numbers.
        exact = choose_sum_device(self.real.device)
        n = self.real.to(exact).sum(-1).double().unsqueeze(-1)  # [sequence, 1]
        # ‖Σu‖² = n + Σ of the cosines of all pairs.
        inside = self.unit_rows.squeeze(2).to(exact).double().square().sum(-1) - n
        pairs = (n * (n - 1)).clamp(min=1)
        similarity = torch.where(n > 1, inside / pairs, torch.nan)
        if self.spoiled is None:
            return similarity
        spoiled = (self.spoiled & self.real.bool().unsqueeze(1)).any(-1)
        return similarity.masked_fill(spoiled.to(exact), torch.nan)

    def _finish_output(self, keys: Tensor, share_of_keys: Tensor) -> Tensor:
        """Return the output of attention, less what sinks take, and NaN for undefined rows.

        keys            how many keys each query sees [sequence, head, query]
        share_of_keys   the part of each row's weights that sinks leave to the keys [sequence, head, query]
        """
        undefined = keys == 0
        if self.spoiled is not None:
            undefined = undefined | self.spoiled
        self.output.masked_fill_(undefined.transpose(1, 2).unsqueeze(-1), torch.nan)
        if self.sinks is None:
            return self.output
        return self.output * share_of_keys.transpose(1, 2).unsqueeze(-1)

    def _add_sinks(
        self, total: Tensor, weighted: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Add each head's sink to the sums of rows as one more outcome of the softmax.

        Returns new (total, weighted, shift), and the factor by which exponentials relative to the old shift are to be
        multiplied, all [sequence, head, query].

        total      sum of 2^(score − shift) over the keys
        weighted   sum of (score − shift) · 2^(score − shift)
        shift      what was subtracted from the scores of each row, in bits
        """
        if self.sinks is None:
            return total, weighted, shift, torch.ones_like(shift)
        sink = self.sinks.to(self.real).view(1, -1, 1) * LOG2E
        top = torch.maximum(shift, sink)  # a sink may lie far above the scores
        # All exponentials are relative to the new shift: 2^(score − top) = 2^(score − shift) · 2^(shift − top).
        shrink = (shift - top).exp2()
        apart = sink - top
        weighted = shrink * (weighted + (shift - top) * total) + apart * apart.exp2()
        return shrink * total + apart.exp2(), weighted, top, shrink


@lru_cache(maxsize=8)
def _move_edges(span: Span, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the ends of the visible ranges of keys as tensors on a device: (first keys, keys after the last).

    They are kept, since all layers of a batch use the same.
    """
    first = torch.tensor(span.start, device=device)
    after_last = torch.tensor(span.stop, device=device)
    return first, after_last


def _cut_range(start: int, stop: int, step: int) -> list[slice]:
    """Cut a range of indices into slices of `step` indices; the last may be shorter."""
    return [slice(i, min(i + step, stop)) for i in range(start, stop, step)]


def _add_weighted_rows(into: Tensor, weight: Tensor, rows: Tensor) -> None:
    """Add up the rows of a block over its queries, each times its weight, in place.

    into     sums [sequence, head, 1, key]
    weight   [sequence, head, query]
    rows     [sequence · head, query, key]
    """
    into.flatten(0, 1).baddbmm_(weight.flatten(0, 1).unsqueeze(1), rows)


def _slice_block(x: Tensor, sequences: slice, heads: slice, queries: slice) -> Tensor:
    """Cut out the part of a tensor [sequence, head, query, key] that belongs to a block.

    The slices say which sequences, heads and queries the block has. Axes of length 1, which are broadcast, stay.
    """
    for axis, part in enumerate((sequences, heads, queries)):
        if x.shape[axis] > 1:
            x = x.narrow(axis, part.start, part.stop - part.start)
    return x
