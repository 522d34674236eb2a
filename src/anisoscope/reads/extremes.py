"""Data of metrics of extremes: sequences of hidden vectors, attention logits, and keys with the attention they receive.

Each keeper here keeps two kinds of state: sums over sequences, which give intervals, and largest values, which do not.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.reads.base import (
    Array,
    Batching,
    Declared,
    FedMeasurement,
    Gathered,
    Keeper,
    Pass,
    Reading,
    Reads,
    Unit,
    draw_pairs,
    make_batch,
    make_totals,
    pad,
    pad_pairs,
    split_batches,
)
from anisoscope.reads.vectors import is_whole_image
from anisoscope.sums.extremes import find_largest_over_tokens
from anisoscope.sums.groups import Totals

TOP = 3
"""Largest activations of a sequence that are summed (Sun et al. 2024, figure 4)."""
MASSIVE = 100.0
"""Size that a massive activation exceeds (Sun et al. 2024)."""
OVER_MEDIAN = 1000.0
"""How many times the median of its sequence a massive activation has at least."""
EPSILONS = (0.2, 0.3, 0.4, 0.5)
"""Lines above which a key that gets so much attention on average is a sink; Gu et al. (2025) take .3."""
FEWEST_QUERIES = 8
"""Queries that must see a key, if it is not the first, before its mean attention counts: of a causal head that attends
to the token before, or to the same one, a key that k queries see gets 1/k.
"""
PARTS = ("first", "last", "special", "punctuation", "other")
"""Which keys there are: each real key is of the first of these that fits."""


@dataclass(frozen=True)
class SumsAndExtremes:
    """Sums at one place of the model, and its largest values by name: values [...], and where each was [..., 4]
    (`sums.extremes.WHERE`).
    """

    totals: Totals
    extremes: Mapping[str, tuple[Array, Array]]

    @property
    def n_groups(self) -> int:
        """Return how many groups of units (documents, clips) hold any data."""
        return self.totals.n_groups

    @property
    def present(self) -> NDArray[np.bool_]:
        """Return which groups of units (documents, clips) hold any data."""
        return np.asarray(self.totals.present, dtype=bool)

    def without(self, index: int) -> "SumsAndExtremes":
        """Return the sums without one group.

        Largest values stay those of all groups, since they are not kept by group.
        """
        return SumsAndExtremes(self.totals.without(index), self.extremes)


class _WithExtremes(Reads):
    """Base of the kinds of data that combine sums with largest values, at sites of one kind."""

    counted: str
    """The term that says how many sequences are behind a value."""

    @abstractmethod
    def reads_at(self, site: Site) -> bool:
        """Return whether this kind of data is read at a site (place in the model)."""

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield sums and largest values at each site (place in the model) where the metric applies."""
        yield from self.iter_readings(metric, gathered, self.counted)

    def iter_readings(
        self, metric: Declared, gathered: Gathered, counted: str
    ) -> Iterator[Reading]:
        """Yield sums and largest values at each site (place in the model) where the metric applies.

        gathered   everything that the finished pass has accumulated
        counted    name of the sum that says how many sequences are behind a value
        """
        for name, site in gathered.sites.items():
            if not self.reads_at(site):
                continue
            totals = make_totals(gathered.sums.at(name, metric.needs))
            if totals is not None:
                count = np.asarray(gathered.sums.at(name, (counted,))[counted].sum(0))
                data = SumsAndExtremes(totals, gathered.extremes.at(name))
                yield Reading(data, gathered.make_columns(site), count)


# ---- sequences of hidden vectors -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceSums(Keeper):
    """Keep sums over the sequences of a layer, and the largest activation of each dimension."""

    needs: frozenset[str]
    needs_places = True

    def join(self, other: "SequenceSums") -> "SequenceSums":
        """Return one keeper that accumulates the sums of both, so that tensors are read once."""
        return SequenceSums(self.needs | other.needs)

    def takes(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds hidden vectors of a layer."""
        return site.measured_as in LAYER_QUANTITIES

    def add(self, site: Site, value: Tensor, running: Pass) -> None:
        """Add the per-sequence terms of a layer's vectors [sequence, token, dim], as far as `needs` names them.

        Zero and non-finite vectors are left out.
        """
        if is_whole_image(value, running):
            return
        x = _widen(value)
        positions = running.copy_to(running.find_masks(site, value), value.device)
        # The largest |x| of each vector: NaN and Inf show in it, and it is needed below
        # anyway.
        size = torch.linalg.vector_norm(x, ord=torch.inf, dim=-1)
        real = positions.real & size.isfinite() & (size > 0)
        terms: dict[str, Tensor] = {}
        if "activation_sequences" in self.needs:
            terms |= _sum_activations(x, size, real)
            self._offer_largest(site, x, real, positions.places, running)
        if "matrix_entropy" in self.needs:
            terms |= _compute_matrix_entropy(x, real)
        # A measurement may need only some of them, and a pass must keep no sums that
        # nobody reads.
        needed = {name: term for name, term in terms.items() if name in self.needs}
        running.add_sums(site.name, needed)

    def _offer_largest(
        self, site: Site, x: Tensor, real: Tensor, places: Tensor, running: Pass
    ) -> None:
        """Keep the largest absolute activation of each dimension so far, and the token that had it.

        x        vectors [sequence, token, dim]
        real     which tokens are counted [sequence, token]
        places   which token each one is [sequence, token, 4] (`sums.extremes.WHERE`)
        running  the running measurement
        """
        # A maximum over nothing is an error.
        if x.shape[0] * x.shape[1] == 0:
            return
        absolute = torch.where(real.unsqueeze(-1), x.abs(), -torch.inf)
        values, where = find_largest_over_tokens(absolute, places)
        running.extremes.offer(site.name, "activation", values, where)


def _widen(x: Tensor) -> Tensor:
    """Return half-precision numbers as float32; others unchanged."""
    if x.dtype.itemsize < 4:
        return x.float()
    return x


def _sum_activations(
    x: Float[Tensor, "sequence token dim"],
    size: Float[Tensor, "sequence token"],
    real: Bool[Tensor, "sequence token"],
) -> dict[str, Tensor]:
    """Return sums by sequence on its largest activations (absolute entries of vectors), in float64.

    activation_sequences   1 if the sequence has a real vector
    top              [sequence, rank]: the `TOP` largest activations
    median           median of all activations
    over_median      largest activation / median; 0 if undefined. `over_sequences` is 1 if it is defined
    massive          1 if the largest is above `MASSIVE` and at least `OVER_MEDIAN` times the median

    x      vectors
    size   largest absolute entry of each vector
    real   which tokens are counted
    """
    has_real = real.any(1)
    top = _find_top(x, size, real)
    largest = top[:, 0]
    median = _find_medians(x.abs(), real)
    is_defined = has_real & (median > 0)
    # The inner choice keeps 0 / 0 from ever being computed.
    over_median = torch.where(
        is_defined, largest / torch.where(is_defined, median, 1.0), 0.0
    )
    is_massive = has_real & (largest > MASSIVE) & (largest >= OVER_MEDIAN * median)
    return {
        "activation_sequences": has_real.double(),
        "top": top.double(),
        "median": median.double(),
        "over_median": over_median.double(),
        "over_sequences": is_defined.double(),
        "massive": is_massive.double(),
    }


def _find_top(
    x: Float[Tensor, "sequence token dim"],
    size: Float[Tensor, "sequence token"],
    real: Bool[Tensor, "sequence token"],
) -> Float[Tensor, "sequence rank"]:
    """Return the `TOP` largest activations of each sequence, largest first; 0 if it has fewer.

    The arguments are those of `_sum_activations`.
    """
    # The largest entries are in the tokens that have the largest ones, so that only these few tokens are sorted.
    tokens = torch.where(real, size, 0.0).topk(min(TOP, x.shape[1]), 1).indices
    candidates = x.gather(1, tokens.unsqueeze(-1).expand(-1, -1, x.shape[2])).abs()
    candidates = torch.where(
        real.gather(1, tokens).unsqueeze(-1), candidates, 0.0
    ).flatten(1)
    top = x.new_zeros(len(x), TOP)
    count = min(TOP, candidates.shape[1])
    top[:, :count] = candidates.topk(count, 1).values
    return top


def _find_medians(
    absolute: Float[Tensor, "sequence token dim"], real: Bool[Tensor, "sequence token"]
) -> Float[Tensor, " sequence"]:
    """Return the median of all activations of each sequence (of an even number the lower middle one); 0 if it has none.

    absolute   absolute entries of vectors; not finite only at tokens that are not counted
    real       which tokens are counted
    """
    if absolute.device.type != "cpu":
        kept = torch.where(real.unsqueeze(-1), absolute, torch.nan)
        return kept.flatten(1).nanmedian(1).values.nan_to_num(0.0)
    # NumPy partitions numbers alone, torch numbers and their indices, which takes 5 to 25 times as long.
    # Padding as ∞ comes after every real number: the middle of the first `count` is the
    # median.
    kept = torch.where(real.unsqueeze(-1), absolute, torch.inf).flatten(1)
    counts = (real.sum(1) * absolute.shape[2]).tolist()
    median = absolute.new_zeros(len(absolute))
    for number, (row, count) in enumerate(zip(kept.numpy(), counts, strict=True)):
        if count:
            middle = (count - 1) // 2
            median[number] = float(np.partition(row, middle)[middle])
    return median


def _compute_matrix_entropy(x: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return the matrix entropy of each sequence: the entropy of the normalised eigenvalues of its Gram matrix.

    Returns three tensors [sequence]: `matrix_entropy` in nats; `matrix_entropy_normalised`, divided by its largest
    possible value; `matrix_sequences`, 1 if the sequence counts. Sequences of fewer than two real vectors get 0 and do
    not count.

    x      vectors [sequence, token, dim]
    real   which tokens are counted [sequence, token]
    """
    x = torch.where(real.unsqueeze(-1), x, 0.0).double()
    tokens, dim = x.shape[1], x.shape[2]
    # The products over dimensions and over tokens have the same eigenvalues beyond 0: the smaller one is faster.
    gram = x @ x.transpose(1, 2) if tokens <= dim else x.transpose(1, 2) @ x
    # The cost of a pass is estimated with tensors that have shapes only.
    if gram.device.type == "meta":
        eigenvalues = gram.diagonal(dim1=1, dim2=2)
    else:
        eigenvalues = torch.linalg.eigvalsh(gram).clamp(min=0)
    # A sequence without real vectors has the sum 0, and gets shares of 0 instead of
    # NaN.
    share = eigenvalues / eigenvalues.sum(1, keepdim=True).clamp(
        min=torch.finfo(eigenvalues.dtype).tiny
    )
    entropy = -torch.special.xlogy(share, share).sum(1)
    count = real.sum(1)
    # The rank of a sequence is at most the smaller number: so many shares can be equal.
    most = torch.minimum(count, torch.full_like(count, dim))
    is_counted = most > 1
    normalised = entropy / torch.where(is_counted, most, 2).double().log()
    return {
        "matrix_entropy": torch.where(is_counted, entropy, 0.0),
        "matrix_entropy_normalised": torch.where(is_counted, normalised, 0.0),
        "matrix_sequences": is_counted.double(),
    }


class Sequences(_WithExtremes):
    """The vectors of a layer, sequence by sequence: their largest activations, or the entropy of their Gram matrix.

    `compute` is called with `SumsAndExtremes`: `data.totals["top"]` is the sum over sequences of the three largest
    activations [replicate, 3], and `data.extremes["activation"]` the largest of each dimension over all tokens, and
    where it was. All real tokens count, whatever the token policy: the first one is often the one with the extremes.
    """

    word = "sequences of hidden vectors"
    terms = frozenset(
        {
            "activation_sequences",
            "top",
            "median",
            "over_median",
            "over_sequences",
            "massive",
        }
        | {"matrix_entropy", "matrix_entropy_normalised", "matrix_sequences"}
    )

    @property
    def arrays(self) -> int:
        """Return 1: `anisoscope.metric` takes one array of hidden vectors."""
        return 1

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantities to capture from the model: hidden states."""
        return frozenset(LAYER_QUANTITIES)

    def is_of_sequences(self, needs: frozenset[str]) -> bool:
        """Return whether the matrix entropy is asked for, which needs whole sequences."""
        return "matrix_entropy" in needs

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:
        """Yield one keeper: the accumulator of per-sequence sums."""
        yield SequenceSums(needs)

    def reads_at(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds hidden vectors of a layer."""
        return site.measured_as in LAYER_QUANTITIES

    def readings(self, metric: Declared, gathered: Gathered) -> Iterator[Reading]:
        """Yield sums and largest values of each layer, with the number of sequences that count for this metric."""
        # The two metrics count differently: one vector has activations, but no matrix
        # entropy.
        is_of_activations = "activation_sequences" in metric.needs
        counted = "activation_sequences" if is_of_activations else "matrix_sequences"
        yield from self.iter_readings(metric, gathered, counted)

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as hidden states of a layer: each unit is a sequence of its own."""
        for first, part in split_batches(units, batching):
            x, real = pad([np.asarray(unit) for unit in part], batching)
            if real.shape[1]:
                measurement.begin(make_batch(first, real), torch.device("cpu"))
                measurement.receive(Site("encoder", 1, "hidden"), x)
                measurement.end()


# ---- logits ----------------------------------------------------------------------------------------------------------


class LogitExtremes(Keeper):
    """Keep the largest and the smallest attention logit of each head, and the sum over sequences of the largest."""

    needs_places = True

    def join(self, other: "LogitExtremes") -> "LogitExtremes":  # noqa: ARG002
        """Return this keeper unchanged: two of this class accumulate the same values."""
        return self

    def takes(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds statistics of attention rows."""
        return site.quantity == "attention"

    def add(self, site: Site, value: Mapping[str, Tensor], running: Pass) -> None:
        """Keep the largest and the smallest attention logit of each head, and sum the largest of each sequence.

        value   statistics of attention rows [sequence, head, query]; only real queries that see a key are read
        """
        keys = value["keys"]
        # A query that sees no key has no logit.
        counts = running.find_real_queries(site, keys).unsqueeze(1) & (keys > 0)
        counts = counts & value["largest"].isfinite() & value["smallest"].isfinite()
        if counts.shape[0] * counts.shape[2] == 0:
            return
        largest = torch.where(counts, value["largest"], -torch.inf)
        of_sequence = largest.amax(-1)
        has_any = counts.any(-1)
        terms = {
            "logit_sequences": has_any.double(),
            "largest_logit": torch.where(has_any, of_sequence, 0.0).double(),
        }
        running.add_sums(site.name, terms)
        places = running.locate_queries(site, keys)
        # Negated, so that the smallest logit is a largest value too.
        negated = torch.where(counts, -value["smallest"], -torch.inf)
        for name, rows in (("logit", largest), ("negative_logit", negated)):
            # To [sequence, query, head]: the places are those of the queries.
            values, where = find_largest_over_tokens(rows.transpose(1, 2), places)
            running.extremes.offer(site.name, name, values, where)


class Logits(_WithExtremes):
    """The attention logits of each head: what the softmax takes for visible pairs, with scale, bias and soft cap
    applied.

    `compute` is called with `SumsAndExtremes`: `data.extremes["logit"]` is the largest logit of each head [head], and
    the query that had it; `"negative_logit"` is the largest of the negated logits.
    """

    word = "attention logits"
    terms = frozenset({"logit_sequences", "largest_logit"})
    counted = "logit_sequences"

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantity to capture from the model: `attention` (statistics of attention rows)."""
        return frozenset({"attention"})

    def list_axes(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return `head`: values have one entry per head."""
        return ("head",)

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield one keeper: the accumulator of the largest and smallest logits."""
        yield LogitExtremes()

    def reads_at(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds statistics of attention rows."""
        return site.quantity == "attention"

    def draw(
        self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7
    ) -> list[Unit]:
        """Draw random queries and keys for each unit."""
        return draw_pairs(seed, sizes, d)

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as queries and keys of one head: each unit is a sequence of its own.

        Every query sees all keys of its sequence, and logits are scaled by 1.
        """
        for site, value, first, real in _iter_rows(units, batching):
            measurement.begin(make_batch(first, real), torch.device("cpu"))
            measurement.receive(site, value)
            measurement.end()


def _iter_rows(
    units: Sequence[Unit], batching: Batching, *, columns: bool = False
) -> Iterator[tuple[Site, dict[str, Tensor], int, Tensor]]:
    """Compute the attention of test data, batch by batch, and yield it as if it was captured from a model.

    units     (queries, keys) of each unit
    columns   yield the attention that each key receives, instead of statistics of each query's row

    Yields (site, captured value by name, number of the batch's first unit, which tokens are real [sequence, token]).
    """
    # Imported here, since only test data need the capture.
    from anisoscope.capture.masking import Masking
    from anisoscope.capture.rows import attention_rows

    for first, part in split_batches(units, batching):
        query, key, real = pad_pairs(part, batching)
        if not real.shape[1]:
            continue
        q = query.unsqueeze(1)
        k = key.unsqueeze(1)
        masking = Masking(real[:, None, None, :], causal=False, bias=None)
        rows = attention_rows(q, k, masking, scale=1.0, real=real, columns=columns)
        if columns:
            by_key = {"mass": rows["mass"], "seen": rows["seen"]}
            yield (
                Site("encoder", 1, "extremes"),
                by_key | {"query": q, "key": k, "value": k},
                first,
                real,
            )
        else:
            yield Site("encoder", 1, "attention"), rows, first, real


# ---- keys, and what attention gives them -----------------------------------------------------------------------------


class KeySums(Keeper):
    """Keep sums over sequences of the attention that keys receive, and the largest norms of queries and keys."""

    needs_places = True

    def join(self, other: "KeySums") -> "KeySums":  # noqa: ARG002
        """Return this keeper unchanged: two of this class accumulate the same values."""
        return self

    def takes(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds the attention that each key receives."""
        return site.quantity == "extremes"

    def add(self, site: Site, value: Mapping[str, Tensor], running: Pass) -> None:
        """Add the attention that each key receives in every head to the sums, and keep the largest norms of queries
        and keys.

        value   `mass` and `seen` [sequence, head, key] (see `capture.rows.attention_rows`); `query`, `key`, `value`
                [sequence, head, token, dim]
        """
        mass = value["mass"]
        if mass.shape[0] * mass.shape[2] == 0:
            return
        heads = mass.shape[1]
        device = value["key"].device
        # In cross-attention keys are tokens of the encoder and queries those of the
        # decoder: each side has masks of its own.
        of_key = Site(site.stack, site.layer, "key", kind=site.kind)
        of_query = Site(site.stack, site.layer, "query", kind=site.kind)
        keys = running.copy_to(running.find_masks(of_key, value["key"]), device)
        queries = running.copy_to(running.find_masks(of_query, value["query"]), device)
        parts = _classify_keys(keys)
        norm = _measure_norms(value["value"], heads)
        running.add_sums(
            site.name, _sum_keys(mass, value["seen"], keys.real, parts, norm)
        )
        for side, positions in (("query", queries), ("key", keys)):
            length = _measure_norms(value[side], heads).transpose(1, 2)
            is_counted = positions.real.unsqueeze(-1) & length.isfinite()
            length = torch.where(is_counted, length, -torch.inf)
            values, where = find_largest_over_tokens(length, positions.places)
            running.extremes.offer(site.name, f"{side}_norm", values, where)


def _measure_norms(
    x: Float[Tensor, "sequence key_head token dim"], heads: int
) -> Float[Tensor, "sequence head token"]:
    """Return the norm of each vector, one row per query head; the norms of keys that several heads share are repeated.

    heads   the number of query heads
    """
    norm: Tensor = torch.linalg.vector_norm(_widen(x), dim=-1)
    return norm.repeat_interleave(heads // x.shape[1], 1)


def _classify_keys(keys: Any) -> Bool[Tensor, "sequence part key"]:
    """Return the kind of token that each key is: first, last, special, punctuation or other; the first kind that fits.

    The kinds are the axis `part`, in this order; all are false for keys that are not real.

    keys   the token masks of the keys (`measure.masks.Masks`)
    """
    real = keys.real
    # Not the column: with padding on the left the first real key has a higher one.
    number = real.long().cumsum(1)
    first = real & (number == 1)
    last = real & (number == number[:, -1:]) & ~first
    special = keys.special & ~first & ~last
    punctuation = keys.punctuation & ~first & ~last & ~special
    other = real & ~first & ~last & ~special & ~punctuation
    return torch.stack([first, last, special, punctuation, other], 1)


def _sum_keys(
    mass: Float[Tensor, "sequence head key"],
    seen: Float[Tensor, "sequence head key"],
    real: Bool[Tensor, "sequence key"],
    parts: Bool[Tensor, "sequence part key"],
    norm: Float[Tensor, "sequence head key"],
) -> dict[str, Tensor]:
    """Return per sequence and head where attention goes, in float64, by the names of the sums that it is added to.

    key_sequences     1 if the sequence has any attention
    part_mass         share of the attention on each kind of token
    first_above       for each of `EPSILONS`: 1 if the mean weight of the first key is above it, so that it is a sink
    sink_sequences    1 if any key can be a sink: at least `FEWEST_QUERIES` queries see it, or it is the first key
    above             as `first_above`, for the strongest of the keys that can be a sink
    strongest         mean weight of that key
    strongest_part    its kind of token
    value_ratio       norm of its value vector, divided by the mean norm of value vectors
    value_sequences   1 if that ratio is defined

    mass    attention that each key receives from real queries
    seen    number of real queries that see each key
    real    which keys are real tokens
    parts   the kind of token that each key is (`_classify_keys`)
    norm    norm of each key's value vector
    """
    mass = mass.double()
    seen = seen.double()
    real = real.unsqueeze(1).expand(mass.shape)
    # Mean weight over the queries that see a key (Gu et al. 2025, eq. 3).
    mean = torch.where(real & (seen > 0), mass / seen.clamp(min=1), 0.0)
    lines = torch.tensor(EPSILONS, dtype=mass.dtype, device=mass.device)
    mass = torch.where(real, mass, 0.0)
    total = mass.sum(-1, keepdim=True)
    has_attention = total > 0
    of_part = torch.einsum("shk,spk->shp", mass, parts.double())
    part_mass = torch.where(
        has_attention, of_part / torch.where(has_attention, total, 1.0), 0.0
    )
    at_first = torch.einsum("shk,sk->sh", mean, parts[:, 0].double()).unsqueeze(-1)
    is_first = parts[:, :1].expand(mass.shape)
    # Few queries see the last keys of a causal head, and their mean is then large by
    # chance.
    can_be_sink = real & ((seen >= FEWEST_QUERIES) | (is_first & (seen > 0)))
    has_key = can_be_sink.any(-1)
    # −1 is below every weight.
    strongest, place = torch.where(can_be_sink, mean, -1.0).max(-1)
    strongest = torch.where(has_key, strongest, 0.0)
    by_key = parts.transpose(1, 2).double()
    # The kind of the strongest key, as one row of `parts` for each head.
    part = by_key.gather(1, place.unsqueeze(-1).expand(*place.shape, parts.shape[1]))
    value_ratio, has_value = _compare_value_norm(norm.double(), real, place)
    has_value = has_value & has_key
    return {
        "key_sequences": has_attention.squeeze(-1).double(),
        "part_mass": part_mass,
        "first_above": (has_attention & (at_first > lines)).double(),
        "sink_sequences": has_key.double(),
        "above": (has_key.unsqueeze(-1) & (strongest.unsqueeze(-1) > lines)).double(),
        "strongest": strongest,
        "strongest_part": torch.where(has_key.unsqueeze(-1), part, 0.0),
        "value_ratio": torch.where(has_value, value_ratio, 0.0),
        "value_sequences": has_value.double(),
    }


def _compare_value_norm(
    norm: Float[Tensor, "sequence head key"],
    real: Bool[Tensor, "sequence head key"],
    place: Int[Tensor, "sequence head"],
) -> tuple[Float[Tensor, "sequence head"], Bool[Tensor, "sequence head"]]:
    """Compare the norm of one key's value vector with the mean norm, in each sequence and head.

    Returns (norm divided by the mean over real keys, whether this ratio is defined).

    norm    norm of each key's value vector
    real    which keys are real tokens
    place   the number of the key that is compared
    """
    # One overflowing value vector would make the mean of its sequence infinite.
    is_sound = real & norm.isfinite()
    mean = torch.where(is_sound, norm, 0.0).sum(-1) / is_sound.sum(-1).clamp(min=1)
    own = norm.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    ratio = own / torch.where(mean > 0, mean, 1.0)
    return ratio, own.isfinite() & (mean > 0)


class Keys(_WithExtremes):
    """The attention that each key receives from the queries that see it, as sums over sequences for each head.

    `compute` is called with `SumsAndExtremes`: `data.totals["part_mass"]` is the sum over sequences of the share of
    weights on each part of the keys [replicate, head, part], and `data.extremes["key_norm"]` the longest key of each
    head.
    """

    word = "keys and what attention gives them"
    terms = frozenset(
        {
            "key_sequences",
            "part_mass",
            "first_above",
            "sink_sequences",
            "above",
            "strongest",
            "strongest_part",
        }
        | {"value_ratio", "value_sequences"}
    )
    counted = "key_sequences"

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantity to capture from the model: `extremes` (attention that each key receives, queries,
        keys, values).
        """
        return frozenset({"extremes"})

    def list_axes(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return `head`: values have one entry per head."""
        return ("head",)

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield one keeper: the accumulator of sums over keys."""
        yield KeySums()

    def reads_at(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds the attention that each key receives."""
        return site.quantity == "extremes"

    def draw(
        self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7
    ) -> list[Unit]:
        """Draw random queries and keys for each unit."""
        return draw_pairs(seed, sizes, d)

    def feed(
        self,
        metric: Declared,  # noqa: ARG002
        units: Sequence[Unit],
        batching: Batching,
        measurement: FedMeasurement,
    ) -> None:
        """Feed test data to a measurement as queries and keys of one head: each unit is a sequence of its own.

        Every query sees all keys of its sequence, logits are scaled by 1, and the values are the keys.
        """
        for site, value, first, real in _iter_rows(units, batching, columns=True):
            measurement.begin(make_batch(first, real), torch.device("cpu"))
            measurement.receive(site, value)
            measurement.end()
