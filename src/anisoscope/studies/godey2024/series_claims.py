"""What claims about a series of checkpoints are about: every metric by seed, step, layer and head, and how cosines end.

Heads of two trainings are not the same heads, so a claim about heads becomes a number of each seed first: a mean, a
share or a median over its heads.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from anisoscope.store import select
from anisoscope.studies.judge import LEVEL, Array, of_units
from anisoscope.sums.jackknife import holm

AXES = ("seed", "step", "layer", "head")


@dataclass(frozen=True)
class HeadTable:
    """One metric of every head: `values` [seed, step, layer, head] with the names of the first three axes."""

    values: Array
    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    layers: tuple[int, ...]


def table(records: pd.DataFrame, metric: str) -> HeadTable:
    """The table of a metric; NaN where a head has no value."""
    rows = select(records, metric=metric)
    axes, places = zip(*(np.unique(rows[name].to_numpy(int), return_inverse=True) for name in AXES), strict=True)
    values = np.full([len(axis) for axis in axes], np.nan)
    values[places] = rows["value"].to_numpy(float)
    seeds, steps, layers = (tuple(map(int, axis)) for axis in axes[:3])
    return HeadTable(values, seeds, steps, layers)


@dataclass(frozen=True)
class Alignment:
    """cos(Q̄, K̄) of every head along training, and what follows from it.

    cosine  [seed, step, layer, head]; bound: q95(d_head), the cosine that 95 % of isotropic pairs stay below
    """

    table: HeadTable
    bound: float

    @classmethod
    def of(cls, records: pd.DataFrame) -> "Alignment":
        bound = select(records, metric="mean_cosine.isotropic_q95", site="query.raw")["value"]
        return cls(table(records, "query_key.cosine"), float(bound.iloc[0]))

    @property
    def cosine(self) -> Array:
        return self.table.values

    def ending(self) -> Array:
        """1 for heads [seed, layer, head] whose means end alike, −1 opposite, 0 neither (against the bound)."""
        last = self.cosine[:, -1]
        return np.asarray(np.where(last > self.bound, 1, np.where(last < -self.bound, -1, 0)))

    def endings(self) -> pd.Series:
        """`ending` by seed, layer and head."""
        ending = self.ending()
        places = (self.table.seeds, self.table.layers, range(ending.shape[2]))
        return pd.Series(ending.ravel(), pd.MultiIndex.from_product(places, names=("seed", "layer", "head")))

    def groups(self) -> dict[str, Array]:
        """Heads [seed, layer, head] that end similar, opposite, and all."""
        ending = self.ending()
        return {"similar": ending == 1, "opposite": ending == -1, "all heads": np.ones_like(ending, bool)}

    def onset(self) -> Array:
        """Share of training [seed, layer, head] from which on |cos| stays above the bound; NaN where it never does."""
        above = np.abs(self.cosine) > self.bound
        staying = np.flip(np.logical_and.accumulate(np.flip(above, 1), axis=1), 1)
        share = np.array(self.table.steps) / self.table.steps[-1]
        return np.asarray(np.where(staying[:, -1], share[staying.argmax(1)], np.nan))

    def chosen(self) -> dict[str, tuple[int, int]]:
        """The rule for the panels: of the first seed, at the last step, the head with the largest cosine is the
        `similar` one, that with the smallest the `opposite` one: {name: (layer, head)}.
        """
        last = self.cosine[0, -1]
        heads = {"similar": np.nanargmax(last), "opposite": np.nanargmin(last)}
        return {n: (self.table.layers[int(i) // last.shape[1]], int(i) % last.shape[1]) for n, i in heads.items()}

    def name(self, which: str) -> str:
        """A chosen head in words."""
        layer, head = self.chosen()[which]
        value = self.cosine[0, -1, self.table.layers.index(layer), head]
        return f"{which}: layer {layer}, head {head} (cos {value:+.2f})".replace("-", "−")


def per_seed(values: Array, mask: Array, reduce: str = "mean") -> Array:
    """Mean or median over the heads [seed, layer, head] in `mask`, by seed; NaN where there is none."""
    kept = pd.DataFrame(np.where(mask, values, np.nan).reshape(len(values), -1))
    return kept.agg(reduce, axis=1).to_numpy(float)


def heads_above(records: pd.DataFrame) -> Iterator[tuple[int, int, int]]:
    """(seed, heads whose |cos| of the last step is above q95(d_head), heads in all): one-sided, from the intervals
    over documents, Holm over the heads of the seed.
    """
    rows = select(records, metric="query_key.cosine")
    rows = rows[rows["step"] == rows["step"].max()]
    turned = rows["value"] < 0
    sized = rows.assign(value=rows["value"].abs(), low=rows["low"].where(~turned, -rows["high"]))
    sized["high"] = rows["high"].where(~turned, -rows["low"])
    bound = Alignment.of(records).bound
    for seed, heads in sized.groupby("seed"):
        yield int(str(seed)), int((holm(of_units(heads, bound)[0]) < LEVEL).sum()), len(heads)
