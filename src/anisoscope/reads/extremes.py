"""Data of metrics of extremes: sequences of hidden vectors, attention logits, and keys with the attention they receive.

Each keeper here keeps two kinds of state: sums over sequences, which give intervals, and largest values, which do not.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from anisoscope.axes import LAYER_QUANTITIES, Site
from anisoscope.reads.base import (
    Array,
    Declared,
    Gathered,
    Keeper,
    Pass,
    Reading,
    Reads,
    TrialLayout,
    TrialPass,
    Unit,
    batch_of,
    draw_pairs,
    in_batches,
    pad,
    totals_of,
)
from anisoscope.reads.vectors import is_whole_image
from anisoscope.sums.extremes import largest_over_tokens
from anisoscope.sums.groups import Totals

TOP = 3
"""Largest activations of a sequence that are summed (Sun et al. 2024, figure 4)."""
MASSIVE, OVER_MEDIAN = 100.0, 1000.0
"""An activation is massive if its size is above the first and at least so many times the median of its sequence."""
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

    def readings(self, metric: Declared, kept: Gathered) -> Iterator[Reading]:
        """Yield sums and largest values at each site (place in the model) where the metric applies."""
        for name, site in kept.sites.items():
            if not self.reads_at(site):
                continue
            totals = totals_of(kept.sums.at(name, metric.needs))
            if totals is not None:
                count = np.asarray(kept.sums.at(name, (self.counted,))[self.counted].sum(0))
                yield Reading(SumsAndExtremes(totals, kept.extremes.at(name)), kept.columns_of(site), count)


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

    def add(self, site: Site, value: Tensor, done: Pass) -> None:
        """Add the per-sequence terms of a layer's vectors [sequence, token, dim], as far as `needs` names them.

        Zero and non-finite vectors are left out.
        """
        if is_whole_image(value, done):
            return
        x = value.float() if value.dtype.itemsize < 4 else value
        positions = done.copy_to(done.find_masks(site, value), value.device)
        size = torch.linalg.vector_norm(x, ord=torch.inf, dim=-1)
        real = positions.real & size.isfinite() & (size > 0)
        terms: dict[str, Tensor] = {}
        if "activation_sequences" in self.needs:
            terms |= _activation_terms(x, size, real)
            self._offer_largest(site, x, real, positions.places, done)
        if "matrix_entropy" in self.needs:
            terms |= _matrix_terms(x, real)
        done.add_sums(site.name, {name: term for name, term in terms.items() if name in self.needs})

    def _offer_largest(self, site: Site, x: Tensor, real: Tensor, places: Tensor, done: Pass) -> None:
        """Keep the largest absolute activation of each dimension so far, and the token that had it.

        x        vectors [sequence, token, dim]
        real     which tokens are counted [sequence, token]
        places   which token each one is [sequence, token, 4] (`sums.extremes.WHERE`)

        done     the running measurement
        """
        if x.shape[0] * x.shape[1]:
            absolute = torch.where(real.unsqueeze(-1), x.abs(), -torch.inf)
            done.extremes.offer(site.name, "activation", *largest_over_tokens(absolute, places))


def _activation_terms(
    x: Float[Tensor, "sequence token dim"], size: Float[Tensor, "sequence token"], real: Bool[Tensor, "sequence token"]
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
    any_real = real.any(1)
    # the largest entries lie within the tokens that have the largest ones
    tokens = torch.where(real, size, 0.0).topk(min(TOP, x.shape[1]), 1).indices
    chosen = x.gather(1, tokens.unsqueeze(-1).expand(-1, -1, x.shape[2])).abs()
    chosen = torch.where(real.gather(1, tokens).unsqueeze(-1), chosen, 0.0).flatten(1)
    top = x.new_zeros(len(x), TOP)
    count = min(TOP, chosen.shape[1])
    top[:, :count] = chosen.topk(count, 1).values
    median = _median_by_sequence(x.abs(), real)
    defined = any_real & (median > 0)
    over = torch.where(defined, top[:, 0] / torch.where(defined, median, 1.0), 0.0)
    return {
        "activation_sequences": any_real.double(),
        "top": top.double(),
        "median": median.double(),
        "over_median": over.double(),
        "over_sequences": defined.double(),
        "massive": (any_real & (top[:, 0] > MASSIVE) & (top[:, 0] >= OVER_MEDIAN * median)).double(),
    }


def _median_by_sequence(
    absolute: Float[Tensor, "sequence token dim"], real: Bool[Tensor, "sequence token"]
) -> Float[Tensor, " sequence"]:
    """Return the median of all activations of each sequence (of an even number the lower middle one); 0 if it has none.

    absolute   absolute entries of vectors; not finite only at tokens that are not counted
    real       which tokens are counted
    """
    if absolute.device.type != "cpu":
        kept = torch.where(real.unsqueeze(-1), absolute, torch.nan)
        return kept.flatten(1).nanmedian(1).values.nan_to_num(0.0)
    # NumPy partitions numbers alone, torch numbers and their indices, which takes 5 to 25 times as long
    kept = torch.where(real.unsqueeze(-1), absolute, torch.inf).flatten(1)
    counts = (real.sum(1) * absolute.shape[2]).tolist()
    median = absolute.new_zeros(len(absolute))
    for number, (row, count) in enumerate(zip(kept.numpy(), counts, strict=True)):
        if count:
            middle = (count - 1) // 2
            median[number] = float(np.partition(row, middle)[middle])
    return median


def _matrix_terms(x: Tensor, real: Tensor) -> dict[str, Tensor]:
    """Return the matrix entropy of each sequence: the entropy of the normalised eigenvalues of its Gram matrix.

    Returns three tensors [sequence]: `matrix_entropy` in nats; `matrix_entropy_normalised`, divided by its largest
    possible value; `matrix_sequences`, 1 if the sequence counts. Sequences of fewer than two real vectors get 0 and do
    not count.

    x      vectors [sequence, token, dim]
    real   which tokens are counted [sequence, token]
    """
    x = torch.where(real.unsqueeze(-1), x, 0.0).double()
    count = real.sum(1)
    wide = x.shape[1] <= x.shape[2]
    gram = x @ x.transpose(1, 2) if wide else x.transpose(1, 2) @ x
    without_values = gram.device.type == "meta"  # where the cost of a pass is looked at
    share = gram.diagonal(dim1=1, dim2=2) if without_values else torch.linalg.eigvalsh(gram).clamp(min=0)
    share = share / share.sum(1, keepdim=True).clamp(min=torch.finfo(share.dtype).tiny)
    entropy = -torch.special.xlogy(share, share).sum(1)
    most = torch.minimum(count, torch.full_like(count, x.shape[2]))
    several = most > 1
    normalised = entropy / torch.where(several, most, 2).double().log()
    return {
        "matrix_entropy": torch.where(several, entropy, 0.0),
        "matrix_entropy_normalised": torch.where(several, normalised, 0.0),
        "matrix_sequences": several.double(),
    }


class Sequences(_WithExtremes):
    """The vectors of a layer, sequence by sequence: their largest activations, or the entropy of their Gram matrix.

    `compute` is called with `SumsAndExtremes`: `data.totals["top"]` is the sum over sequences of the three largest
    activations [replicate, 3], and `data.extremes["activation"]` the largest of each dimension over all tokens, and
    where it was. All real tokens count, whatever the token policy: the first one is often the one with the extremes.
    """

    word = "sequences of hidden vectors"
    terms = frozenset(
        {"activation_sequences", "top", "median", "over_median", "over_sequences", "massive"}
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
        """Yield the keeper (accumulator) of per-sequence sums."""
        yield SequenceSums(needs)

    def reads_at(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds hidden vectors of a layer."""
        return site.measured_as in LAYER_QUANTITIES

    def readings(self, metric: Declared, kept: Gathered) -> Iterator[Reading]:
        """Yield sums and largest values of each layer, with the number of sequences that count for this metric."""
        self_counted = "activation_sequences" if "activation_sequences" in metric.needs else "matrix_sequences"
        for name, site in kept.sites.items():
            totals = totals_of(kept.sums.at(name, metric.needs)) if self.reads_at(site) else None
            if totals is not None:
                count = np.asarray(kept.sums.at(name, (self_counted,))[self_counted].sum(0))
                yield Reading(SumsAndExtremes(totals, kept.extremes.at(name)), kept.columns_of(site), count)

    def feed(self, metric: Declared, units: Sequence[Unit], layout: TrialLayout, trial: TrialPass) -> None:  # noqa: ARG002
        """Feed test data as hidden states: each unit is a sequence of its own."""
        for first, part in in_batches(units, layout):
            x, real = pad([np.asarray(unit) for unit in part], layout)
            if real.shape[1]:
                trial.begin(batch_of(first, real), torch.device("cpu"))
                trial.receive(Site("encoder", 1, "hidden"), x)
                trial.end()


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

    def add(self, site: Site, value: Mapping[str, Tensor], done: Pass) -> None:
        """Keep the largest and the smallest attention logit of each head, and add the largest of each sequence to the
        sums.

        value   statistics of attention rows [sequence, head, query]; only real queries that see a key are read
        """
        real = done.find_real_queries(site, value["keys"]).unsqueeze(1) & (value["keys"] > 0)
        real = real & value["largest"].isfinite() & value["smallest"].isfinite()
        if not real.shape[0] * real.shape[2]:
            return
        largest = torch.where(real, value["largest"], -torch.inf)
        of_sequence = largest.amax(-1)
        any_real = real.any(-1)
        terms = {
            "logit_sequences": any_real.double(),
            "largest_logit": torch.where(any_real, of_sequence, 0.0).double(),
        }
        done.add_sums(site.name, terms)
        places = done.locate_queries(site, value["keys"])
        smallest = torch.where(real, -value["smallest"], -torch.inf)
        for name, rows in (("logit", largest), ("negative_logit", smallest)):
            done.extremes.offer(site.name, name, *largest_over_tokens(rows.transpose(1, 2), places))


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

    def axes_of(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return `head`: values have one entry per head."""
        return ("head",)

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield the keeper (accumulator) of the largest and smallest logits."""
        yield LogitExtremes()

    def reads_at(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds statistics of attention rows."""
        return site.quantity == "attention"

    def draw(self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7) -> list[Unit]:
        """Draw random queries and keys for each unit."""
        return draw_pairs(seed, sizes, d)

    def feed(self, metric: Declared, units: Sequence[Unit], layout: TrialLayout, trial: TrialPass) -> None:  # noqa: ARG002
        """Feed queries and keys of one head: each unit is a sequence, every query sees all keys, and the scale is 1."""
        for site, value, first, real in _rows_of_units(units, layout):
            trial.begin(batch_of(first, real), torch.device("cpu"))
            trial.receive(site, value)
            trial.end()


def _rows_of_units(
    units: Sequence[Unit], layout: TrialLayout, *, columns: bool = False
) -> Iterator[tuple[Site, dict[str, Tensor], int, Tensor]]:
    """Compute the attention of test data, batch by batch.

    Yields (site, value that a capture would hand on, number of the first unit, mask of real tokens [sequence, token]).
    The value is the statistics of attention rows; with `columns`, it is what each key receives.
    """
    from anisoscope.capture.masking import Masking
    from anisoscope.capture.rows import attention_rows

    for first, part in in_batches(units, layout):
        (query, real), (key, _) = (pad([unit[side] for unit in part], layout) for side in (0, 1))
        if not real.shape[1]:
            continue
        q, k = query.unsqueeze(1), key.unsqueeze(1)
        masking = Masking(real[:, None, None, :], causal=False, bias=None)
        rows = attention_rows(q, k, masking, scale=1.0, real=real, columns=columns)
        if columns:
            by_key = {"mass": rows["mass"], "seen": rows["seen"]}
            yield Site("encoder", 1, "extremes"), by_key | {"query": q, "key": k, "value": k}, first, real
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

    def add(self, site: Site, value: Mapping[str, Tensor], done: Pass) -> None:
        """Add the attention that each key receives in every head to the sums, and keep the largest norms of queries
        and keys.

        value   `mass` and `seen` [sequence, head, key] (see `capture.rows.attention_rows`); `query`, `key`, `value`
                [sequence, head, token, dim]
        """
        mass, seen, key = value["mass"], value["seen"], value["key"]
        if not mass.shape[0] * mass.shape[2]:
            return
        of_key = Site(site.stack, site.layer, "key", kind=site.kind)
        of_query = Site(site.stack, site.layer, "query", kind=site.kind)
        keys = done.copy_to(done.find_masks(of_key, key), key.device)
        queries = done.copy_to(done.find_masks(of_query, value["query"]), key.device)
        parts = _parts_of(keys)
        norm = _norms_by_head(value["value"], mass.shape[1])
        done.add_sums(site.name, _key_terms(mass, seen, keys.real, parts, norm))
        sides = (("query_norm", value["query"], queries), ("key_norm", key, keys))
        for name, x, positions in sides:
            length = _norms_by_head(x, mass.shape[1]).transpose(1, 2)
            length = torch.where(positions.real.unsqueeze(-1) & length.isfinite(), length, -torch.inf)
            done.extremes.offer(site.name, name, *largest_over_tokens(length, positions.places))


def _norms_by_head(x: Float[Tensor, "sequence key_head token dim"], heads: int) -> Float[Tensor, "sequence head token"]:
    """Return the norm of each vector, one row per query head; the norms of keys that several heads share are repeated.

    heads   the number of query heads
    """
    x = x.float() if x.dtype.itemsize < 4 else x
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return norm.repeat_interleave(heads // x.shape[1], 1)


def _parts_of(keys: Any) -> Bool[Tensor, "sequence part key"]:
    """Return the kind of token that each key is: first, last, special, punctuation or other; the first kind that fits.

    The kinds are the axis `part`, in this order; all are false for keys that are not real.

    keys   the token masks of the keys (`measure.masks.Masks`)
    """
    real = keys.real
    number = real.long().cumsum(1)
    first = real & (number == 1)
    last = real & (number == number[:, -1:]) & ~first
    special = keys.special & ~first & ~last
    punctuation = keys.punctuation & ~first & ~last & ~special
    other = real & ~first & ~last & ~special & ~punctuation
    return torch.stack([first, last, special, punctuation, other], 1)


def _key_terms(
    mass: Float[Tensor, "sequence head key"],
    seen: Float[Tensor, "sequence head key"],
    real: Bool[Tensor, "sequence key"],
    parts: Bool[Tensor, "sequence part key"],
    norm: Float[Tensor, "sequence head key"],
) -> dict[str, Tensor]:
    """Return sums by sequence and head on where attention goes, in float64.

    key_sequences                  1 if the sequence has any attention
    part_mass                      share of the attention on each kind of token
    first_above, above             1 if the first key, the strongest key is a sink: above each of `EPSILONS`
    sink_sequences                 1 if any key can be a sink: at least `FEWEST_QUERIES` see it, or it is the first
    strongest, strongest_part      mean weight of the strongest key, and its kind of token
    value_ratio, value_sequences   its value's norm over the mean norm; 1 if that is defined

    mass    attention that each key receives from real queries; `seen`: by how many of them it is seen
    real    which keys are real tokens
    parts   the kind of token that each key is (`_parts_of`)
    norm    norm of each key's value vector
    """
    mass, seen = mass.double(), seen.double()
    real = real.unsqueeze(1).expand(mass.shape)
    mean = torch.where(real & (seen > 0), mass / seen.clamp(min=1), 0.0)  # Gu et al. 2025, eq. 3
    rows = torch.where(real, mass, 0.0).sum(-1, keepdim=True)
    of_part = torch.einsum("shk,spk->shp", torch.where(real, mass, 0.0), parts.double())
    given = rows > 0
    at_first = torch.einsum("shk,sk->sh", mean, parts[:, 0].double()).unsqueeze(-1)
    is_first = parts[:, :1].expand(mass.shape)
    eligible = real & ((seen >= FEWEST_QUERIES) | (is_first & (seen > 0)))
    any_key = eligible.any(-1)
    strongest, place = torch.where(eligible, mean, -1.0).max(-1)
    strongest = torch.where(any_key, strongest, 0.0)
    line = torch.tensor(EPSILONS, dtype=mass.dtype, device=mass.device)
    part = parts.transpose(1, 2).double().gather(1, place.unsqueeze(-1).expand(*place.shape, parts.shape[1]))
    norm = norm.double()
    sound = real & norm.isfinite()
    typical = torch.where(sound, norm, 0.0).sum(-1) / sound.sum(-1).clamp(min=1)
    own = norm.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    valued = any_key & own.isfinite() & (typical > 0)
    return {
        "key_sequences": given.squeeze(-1).double(),
        "part_mass": torch.where(given, of_part / torch.where(given, rows, 1.0), 0.0),
        "first_above": (given & (at_first > line)).double(),
        "sink_sequences": any_key.double(),
        "above": (any_key.unsqueeze(-1) & (strongest.unsqueeze(-1) > line)).double(),
        "strongest": strongest,
        "strongest_part": torch.where(any_key.unsqueeze(-1), part, 0.0),
        "value_ratio": torch.where(valued, own / torch.where(typical > 0, typical, 1.0), 0.0),
        "value_sequences": valued.double(),
    }


class Keys(_WithExtremes):
    """The attention that each key receives from the queries that see it, as sums over sequences for each head.

    `compute` is called with `SumsAndExtremes`: `data.totals["part_mass"]` is the sum over sequences of the share of
    weights on each part of the keys [replicate, head, part], and `data.extremes["key_norm"]` the longest key of each
    head.
    """

    word = "keys and what attention gives them"
    terms = frozenset(
        {"key_sequences", "part_mass", "first_above", "sink_sequences", "above", "strongest", "strongest_part"}
        | {"value_ratio", "value_sequences"}
    )
    counted = "key_sequences"

    @property
    def captured(self) -> frozenset[str]:
        """Return the quantity to capture from the model: `extremes` (attention that each key receives, queries,
        keys, values).
        """
        return frozenset({"extremes"})

    def axes_of(self, needs: frozenset[str]) -> tuple[str, ...]:  # noqa: ARG002
        """Return `head`: values have one entry per head."""
        return ("head",)

    def keepers(self, needs: frozenset[str]) -> Iterable[Keeper]:  # noqa: ARG002
        """Yield the keeper (accumulator) of sums over keys."""
        yield KeySums()

    def reads_at(self, site: Site) -> bool:
        """Return whether a site (place in the model) holds the attention that each key receives."""
        return site.quantity == "extremes"

    def draw(self, seed: int = 0, sizes: Sequence[int] = (9, 5, 1, 7, 12), d: int = 7) -> list[Unit]:
        """Draw random queries and keys for each unit."""
        return draw_pairs(seed, sizes, d)

    def feed(self, metric: Declared, units: Sequence[Unit], layout: TrialLayout, trial: TrialPass) -> None:  # noqa: ARG002
        """Feed queries and keys of one head: each unit is a sequence, every query sees all keys, the scale is 1,
        values = keys.
        """
        for site, value, first, real in _rows_of_units(units, layout, columns=True):
            trial.begin(batch_of(first, real), torch.device("cpu"))
            trial.receive(site, value)
            trial.end()
