"""Figures 13, 14 and 23: cosine and scalar product of the mean query and the mean key of every head along training.

Heads of two trainings are not the same heads, so a claim about heads becomes a number of each seed first: a mean, a
share or a median over its heads. `read_table` and `Alignment` come first: figures 11, 12 and 15 use them too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations, product
from math import factorial

import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy import stats

from anisoscope.store import select
from anisoscope.sums.isotropic import cosine_quantile
from anisoscope.sums.jackknife import holm
from anisoscope_papers import series_charts
from anisoscope_papers.godey2024 import checkpoints, courses
from anisoscope_papers.godey2024.layer_curves import infer_width
from anisoscope_papers.judge import (
    LEVEL,
    SAME,
    Array,
    Test,
    compute_p_of_units,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.study import Claim, Verdict, declare, read_claims

COSINES = ("query_key.cosine", "mean_cosine.isotropic_q95")
AXES = ("seed", "step", "layer", "head")
ALL_ORDERS = 10_000_000
"""Up to so many orders of the layers, all are tried; if there are more, DRAWN_ORDERS of them are drawn."""
DRAWN_ORDERS = 100_000
BLOCK = 20_000
"""Orders that are tried at once, at most: their correlations stay in the processor's cache."""


@dataclass(frozen=True)
class HeadTable:
    """One metric of every head: `values` [seed, step, layer, head], with the seeds, steps and layers of the first
    three axes.
    """

    values: Array
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    layers: tuple[int, ...]


def read_table(records: pd.DataFrame, metric: str) -> HeadTable:
    """Return one metric as an array over seed, step, layer and head; NaN for a head without a value."""
    rows = select(records, metric=metric)
    axes = {name: np.unique(rows[name].to_numpy(int)) for name in AXES}
    # A metric may be missing at some step, but all tables must have the same steps.
    axes["step"] = np.unique(records.loc[records["head"].notna(), "step"].to_numpy(int))
    # Filled by place: what has no row, as the drift share of an early step, remains
    # NaN.
    values = np.full([len(axis) for axis in axes.values()], np.nan)
    places = [
        np.searchsorted(axis, rows[name].to_numpy(int)) for name, axis in axes.items()
    ]
    values[tuple(places)] = rows["value"].to_numpy(float)
    seeds, steps, layers = (tuple(map(int, axes[name])) for name in AXES[:3])
    return HeadTable(values, seeds, steps, layers)


@dataclass(frozen=True)
class Alignment:
    """The alignment of every head along training: cos(Q̄, K̄), the cosine of its mean query and mean key.

    cosine  [seed, step, layer, head]
    bound   what |cos| stays below for 95 % of isotropic pairs in d_head dimensions (10 % pass q95, on either side)
    """

    table: HeadTable
    bound: float

    @classmethod
    def of(cls, records: pd.DataFrame) -> "Alignment":
        """Read the alignment, cos(Q̄, K̄), from records."""
        recorded = select(
            records, metric="mean_cosine.isotropic_q95", site="query.raw"
        )["value"]
        head_dim = infer_width(float(recorded.iloc[0]))
        # Two-sided: means may end similar or opposite, and each side has 2.5 % of isotropic pairs.
        bound = float(cosine_quantile(0.975, head_dim))
        return cls(read_table(records, "query_key.cosine"), bound)

    @property
    def cosine(self) -> Array:
        """Cosine of mean query and mean key, [seed, step, layer, head]."""
        return self.table.values

    def ending(self) -> Array:
        """Return 1 for heads [seed, layer, head] whose means end similar, −1 for opposite, 0 if |cos| is below the
        bound.
        """
        last = self.cosine[:, -1]
        return np.asarray(
            np.where(last > self.bound, 1, np.where(last < -self.bound, -1, 0))
        )

    def endings(self) -> pd.Series:
        """Return `ending` (1: similar, −1: opposite, 0: neither) as a series, indexed by seed, layer and head."""
        ending = self.ending()
        places = (self.table.seeds, self.table.layers, range(ending.shape[2]))
        return pd.Series(
            ending.ravel(),
            pd.MultiIndex.from_product(places, names=("seed", "layer", "head")),
        )

    def groups(self) -> dict[str, Array]:
        """Return masks [seed, layer, head] of the heads that end similar, of those that end opposite, and of all."""
        ending = self.ending()
        return {
            "similar": ending == 1,
            "opposite": ending == -1,
            "all heads": np.ones_like(ending, bool),
        }

    def onset(self, share: Array | None = None) -> Array:
        """Return the share of training after which |cos| stays above the bound, [seed, layer, head]; NaN if it never
        does.

        `share` [seed, step]: another clock in place of training steps, such as the fall of the loss.
        """
        above = np.abs(self.cosine) > self.bound
        # Read from the end: a head that falls below the bound later on has not stayed.
        staying = np.flip(np.logical_and.accumulate(np.flip(above, 1), axis=1), 1)
        if share is None:
            share = np.tile(
                np.array(self.table.steps) / self.table.steps[-1], (len(self.cosine), 1)
            )
        # The first step from which it stays. For a head that never does this is 0, and
        # the last line makes it NaN.
        first = staying.argmax(1)
        at = np.take_along_axis(share, first.reshape(len(first), -1), 1).reshape(
            first.shape
        )
        return np.asarray(np.where(staying[:, -1], at, np.nan))

    def chosen(self) -> dict[str, tuple[int, int]]:
        """Return the two heads that are drawn: {`similar`: (layer, head) of the largest final cosine, `opposite`: the
        smallest}.

        They are heads of the first seed.
        """
        # Heads of two seeds are not the same heads: those of one are drawn.
        last = self.cosine[0, -1]
        heads = {}
        for which, place in (
            ("similar", np.nanargmax(last)),
            ("opposite", np.nanargmin(last)),
        ):
            layer, head = divmod(int(place), last.shape[1])
            heads[which] = (self.table.layers[layer], head)
        return heads

    def name(self, which: str) -> str:
        """Describe a chosen head in words (`which`: similar or opposite), with its final cosine."""
        layer, head = self.chosen()[which]
        value = self.cosine[0, -1, self.table.layers.index(layer), head]
        return f"{which}: layer {layer}, head {head} (cos {value:+.2f})".replace(
            "-", "−"
        )


def reduce_per_seed(values: Array, mask: Array, reduce: str = "mean") -> Array:
    """Return the mean or median (`reduce`) of values [seed, layer, head] over the heads in `mask`, [seed]; NaN if
    there are none.
    """
    kept = pd.DataFrame(np.where(mask, values, np.nan).reshape(len(values), -1))
    return kept.agg(reduce, axis=1).to_numpy(float)


def count_heads_above(records: pd.DataFrame) -> Iterator[tuple[int, int, int]]:
    """Yield (seed, number of heads whose final |cos| is significantly above the bound, number of heads).

    One-sided tests over documents, Holm-corrected within a seed. Yields nothing if the records have no intervals over
    documents.
    """
    rows = select(records, metric="query_key.cosine")
    rows = rows[(rows["step"] == rows["step"].max()) & rows["low"].notna()]
    # |cos| is tested: of a negative cosine the interval is turned as well.
    turned = rows["value"] < 0
    sized = rows.assign(
        value=rows["value"].abs(), low=rows["low"].where(~turned, -rows["high"])
    )
    sized["high"] = rows["high"].where(~turned, -rows["low"])
    bound = Alignment.of(records).bound
    for seed, heads in sized.groupby("seed"):
        p, _ = compute_p_of_units(heads, bound)
        above = holm(p) < LEVEL
        yield int(str(seed)), int(above.sum()), len(heads)


def judge_cosine(records: pd.DataFrame) -> list[Verdict]:
    """Judge figure 13, on the cosine of mean query and mean key: that its size grows in training, how it ends, and its
    sign.
    """
    claim = read_claims("godey2024", "fig13")
    alignment = Alignment.of(records)
    # |cos|: means that end opposite are aligned as well.
    first = np.abs(alignment.cosine[:, 0])
    last = np.abs(alignment.cosine[:, -1])
    counts = []
    for seed, count, heads in count_heads_above(records):
        counts.append(
            f"seed {seed}: {count} of {heads} heads above (over documents, Holm)"
        )
    above = "; ".join(counts)
    by_layer = alignment.cosine[:, -1].mean(-1)  # [seed, layer]
    start = f"at step 0 {first.mean():.3f}"
    tests = [
        make_test_of_seeds(
            claim["cosine-grows"], (last - first).mean((1, 2)), reason=start
        ),
        make_test_of_seeds(claim["almost-all-heads"], (last > first).mean((1, 2))),
        make_test_of_seeds(
            claim["aligned-at-the-end"],
            last.mean((1, 2)),
            threshold=alignment.bound,
            reason=above,
        ),
        make_test_of_seeds(claim["first-layer-positive"], by_layer[:, 0]),
        make_test_of_seeds(claim["last-layer-negative"], by_layer[:, -1]),
    ]
    # "Larger at the end than at the start" hides a course that peaks early and falls,
    # as in causal models: so its highest step is judged too.
    course = np.abs(alignment.cosine).mean((2, 3))  # [seed, step]
    peaks = courses.find_turning_places(-course)
    steps = alignment.table.steps
    words = f"highest at step {' and '.join(f'{steps[i]:,}' for i in sorted(set(peaks)))} of {steps[-1]:,}"
    recedes = claim["alignment-recedes"]
    untested = []
    # Nothing recedes if all seeds are highest at the end: a test of zeros would decide nothing.
    if (peaks == len(steps) - 1).all():
        nothing = make_verdict_without_test(
            recedes, False, recedes.statistic, 0.0, n=len(course), reason=words
        )
        untested.append(replace(nothing, failing="too small"))
    else:
        tests.append(
            make_test_of_seeds(
                recedes, courses.measure_rise_since_turning(-course), reason=words
            )
        )
    # Two layers have a rank correlation of 1 or −1 whatever they do.
    if by_layer.shape[1] > 2:
        depth = np.arange(by_layer.shape[1])
        rho = [stats.spearmanr(depth, of_seed).statistic for of_seed in by_layer]
        means = ", ".join(f"{x:+.2f}" for x in by_layer.mean(0)).replace("-", "−")
        tests.append(
            make_test_of_seeds(
                claim["sign-falls-with-depth"],
                np.array(rho),
                reason=f"{len(depth)} layers: {means}",
            )
        )
    return [*judge_tests(tests), *untested]


def judge_dot(records: pd.DataFrame) -> list[Verdict]:
    """Judge the growth of the scalar product Q̄·K̄, for all heads and for those that end similar and opposite.

    Its two parts are judged too: growth of the norms and of the cosine, whose logarithms add up to it.
    """
    claim = read_claims("godey2024", "fig14")
    alignment = Alignment.of(records)
    dots = np.abs(read_table(records, "query_key.dot").values)
    cosines = np.abs(alignment.cosine)
    # log |Q̄·K̄| = log ‖Q̄‖‖K̄‖ + log |cos|: what the cosine does not explain of the
    # growth is that of the norms.
    growth, turning = (np.log(x[:, -1] / x[:, 0]) for x in (dots, cosines))
    groups = alignment.groups()
    every = groups.pop("all heads")
    tests = [
        make_test_of_seeds(claim["dot-grows"], reduce_per_seed(growth, every)),
        make_test_of_seeds(
            claim["norms-grow"], reduce_per_seed(growth - turning, every)
        ),
        make_test_of_seeds(claim["cosine-grows-too"], reduce_per_seed(turning, every)),
    ]
    for name, heads in groups.items():
        reason = f"{heads.sum()} heads of {len(heads)} seeds"
        tests.append(
            make_test_of_seeds(
                claim["dot-grows-in-both-kinds"],
                reduce_per_seed(growth, heads),
                reason=reason,
                subject=name,
            )
        )
    return judge_tests(tests)


def judge_seeds(records: pd.DataFrame) -> list[Verdict]:
    """Judge whether seeds agree: in which layers have more alignment (by permuting the layers of each seed), and in
    how alignment grows in training.
    """
    claim = read_claims("godey2024", "fig23")
    cosine = Alignment.of(records).cosine
    # Means over heads, which cannot be matched between seeds: [seed, step, layer], and
    # [seed, layer] with its sign.
    curves = np.abs(cosine).mean(-1)
    profile = cosine[:, -1].mean(-1)
    # Curves that grow together agree whatever they are: this one is shown as an
    # identity.
    r = _correlate_with_others(curves.reshape(len(curves), -1))
    # Fisher's z, which varies alike for small and large correlations.
    trends = make_test_of_seeds(
        claim["same-trends-over-seeds"], np.arctanh(np.clip(r, -0.9999, 0.9999))
    )
    # What all layers have in common is no agreement on which layer does what.
    rest = (curves - curves.mean(2, keepdims=True)).transpose(0, 2, 1)
    return judge_tests(
        [
            _test_by_permutation(claim["same-layers-over-seeds"], rest),
            _test_by_permutation(
                claim["same-signs-over-seeds"],
                (profile - profile.mean(1, keepdims=True))[..., None],
            ),
            replace(trends, note="r by seed: " + ", ".join(f"{x:.2f}" for x in r)),
        ]
    )


def _test_by_permutation(claim: Claim, rows: Array) -> Test:
    """Test that rows [seed, layer, step] are alike over seeds, by permuting the layers.

    The statistic is the mean correlation of two seeds. It is compared with that under random orders of the layers in
    each seed. Below the claim's floor no p makes it hold. Only the relative order of two seeds matters, so the first
    seed keeps its order: layers!^(seeds − 1) orders, all of them tried if they are not too many.
    """
    seeds, layers = rows.shape[:2]
    norms = np.sqrt((rows**2).sum((1, 2), keepdims=True))
    # Two layers have two orders, of which no p below 1/2 could come.
    if seeds < 2 or layers < 3 or not norms.all():
        return Test(
            claim,
            claim.statistic,
            n=seeds,
            note="too few seeds or layers, or nothing that differs",
        )
    # Rows have mean 0 over layers, so that the product of two seeds of length 1 is
    # their correlation.
    unit = rows / norms
    every = factorial(layers) ** (seeds - 1)
    blocks: Iterable[Array]
    if every <= ALL_ORDERS:
        blocks = _correlate_all_orders(unit)
        which = f"all {every:,}"
    else:
        blocks = [_correlate_drawn_orders(unit)]
        which = f"{DRAWN_ORDERS:,} drawn"
    r = _correlate_as_they_stand(unit)
    tried = at_least = at_most = 0
    for block in blocks:
        tried += block.size
        at_least += int(np.count_nonzero(block >= r - SAME))
        at_most += int(np.count_nonzero(block <= r + SAME))
    # The order of the layers themselves is one of those counted: no p is 0.
    up, down = at_least / tried, at_most / tried
    note = f"{layers} layers; one-sided p of {which} orders of the layers"
    if r < claim.floor:
        up, note = np.nan, f"{note}: {up:.2g}, and too small an effect"
    return Test(
        claim, claim.statistic, r, n=seeds, up=up, down=down, against=down, note=note
    )


def _correlate_as_they_stand(unit: Array) -> float:
    """Return the mean correlation of two seeds with the layers in their own order.

    unit   rows [seed, layer, step], divided by the norm of each seed
    """
    pairs = list(combinations(unit, 2))
    r = 0.0
    for a, b in pairs:
        r += float(np.diagonal(a @ b.T).sum()) / len(pairs)
    return r


def _correlate_all_orders(unit: Array) -> Iterator[Array]:
    """Yield the mean correlation of two seeds for every order of the layers of every seed but the first, in blocks.

    unit   rows [seed, layer, step], divided by the norm of each seed

    The first value is that of the layers in their own order. The correlation of a pair depends only on its own two
    orders, so there is a table of orders × orders for each pair. A block tries all orders of the last seeds, and those
    of the first seeds are the same in all of it: what depends on these alone is read from the tables once a block.
    """
    seeds, layers = unit.shape[:2]
    # The first order is that of the layers themselves.
    orders = np.array(list(permutations(range(layers))))
    pairs = list(combinations(range(seeds), 2))
    # {pair: [order of a, order of b]}: what the pair adds to the mean correlation.
    tables = {}
    for a, b in pairs:
        # [layer of a, layer of b]: a pair of orders picks one entry for each place.
        products = unit[a] @ unit[b].T
        of_a = orders[:1] if a == 0 else orders
        tables[a, b] = products[of_a[:, None, :], orders[None, :, :]].sum(-1) / len(
            pairs
        )
    # As many of the last seeds as a block has room for; there is always one.
    varied = seeds - 1
    while varied > 1 and len(orders) ** varied > BLOCK:
        varied -= 1
    first, last = range(seeds - varied), range(seeds - varied, seeds)
    # One axis for each of the last seeds; the table of a pair extends over two of them,
    # and is repeated along the others.
    among_last = np.zeros([len(orders)] * varied)
    for a, b in combinations(last, 2):
        shape = [1] * varied
        shape[a - last[0]] = shape[b - last[0]] = len(orders)
        among_last = among_last + tables[a, b].reshape(shape)
    # Seed 0 keeps its order, number 0.
    for chosen in product(range(len(orders)), repeat=len(first) - 1):
        order = (0, *chosen)
        total = np.array(
            sum(tables[a, b][order[a], order[b]] for a, b in combinations(first, 2)),
            dtype=np.float64,
        )
        for b in last:
            # [order of b]: added along a new axis of its own.
            with_first = np.sum([tables[a, b][order[a]] for a in first], axis=0)
            total = np.add.outer(total, with_first)
        yield (total + among_last).ravel()


def _correlate_drawn_orders(unit: Array) -> Array:
    """Return the mean correlation of two seeds for randomly drawn orders of the layers, [order]; the first is the
    original order.

    unit   rows [seed, layer, step], divided by the norm of each seed
    """
    seeds, layers = unit.shape[:2]
    # [draw, seed, layer]: shuffled within each seed.
    orders = np.random.default_rng(0).permuted(
        np.tile(np.arange(layers), (DRAWN_ORDERS, seeds, 1)), axis=2
    )
    orders[0] = np.arange(layers)
    pairs = list(combinations(range(seeds), 2))
    r = np.zeros(DRAWN_ORDERS)
    for a, b in pairs:
        r += (unit[a] @ unit[b].T)[orders[:, a], orders[:, b]].sum(1) / len(pairs)
    return r


def _correlate_with_others(rows: Array) -> Array:
    """Return the correlation of each row [seed, layer] with the mean of the other rows, [seed]; NaN if there are
    none.
    """
    # Two numbers are correlated by 1 or −1 always.
    if len(rows) < 2 or rows.shape[1] < 3:
        return np.full(len(rows), np.nan)
    correlations = []
    for i, row in enumerate(rows):
        others = np.delete(rows, i, 0).mean(0)
        correlations.append(np.corrcoef(row, others)[0, 1])
    return np.array(correlations)


def draw(name: str, records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw how mean query and mean key of every head are aligned along training. Returns {chart name: chart}.

    name   `fig13`: |cosine|, of the first seed; `fig14`: scalar product, of the first seed; `fig23`: |cosine| of all
           seeds, in a chart with a panel per layer and in another with a panel per layer and seed
    """
    alignment = Alignment.of(records)
    endings = alignment.endings()
    first = select(records, seed=records["seed"].min())
    if name == "fig14":
        return {name: series_charts.draw_products(first, endings)}
    if name == "fig13":
        return {name: series_charts.draw_heads(first, endings, alignment.bound)}
    drawn = partial(series_charts.draw_heads, records, endings, alignment.bound)
    return {name: drawn(), f"{name}_seeds": drawn(apart=True)}


STUDIES = tuple(
    declare(
        "godey2024",
        name,
        **checkpoints.OF_HEADS,
        measure=partial(checkpoints.measure_heads, metrics),
        judge=judge,
        draw=partial(draw, name),
    )
    for name, metrics, judge in (
        ("fig13", COSINES, judge_cosine),
        ("fig14", (*COSINES, "query_key.dot"), judge_dot),
        ("fig23", COSINES, judge_seeds),
    )
)
