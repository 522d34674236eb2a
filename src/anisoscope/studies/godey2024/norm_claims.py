"""Claims about the biased block judged over seeds: Student t on paired differences, Holm over the grid of N."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.store import select
from anisoscope.studies.godey2024.untrained_models import label
from anisoscope.studies.judge import Test, judged, of_seeds, stated
from anisoscope.studies.study import Claim, Over, Verdict
from anisoscope.sums.jackknife import over_seeds

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """One quantity of one system: `values` [seed, norm] at ascending `norms`."""

    system: str
    norms: tuple[float, ...]
    values: Array


def systems(records: pd.DataFrame) -> list[str]:
    """Untrained systems, in the order they were run."""
    return list(
        dict.fromkeys(records.loc[records["seed"].notna() & records["corpus"].str.startswith("uniform"), "model"])
    )


def curves(records: pd.DataFrame, metric: str, site: str, layer: int | None = None) -> Iterator[Curves]:
    """The mean over heads of `metric` at `site`, per system; layer None: the last one."""
    rows = select(records, metric=metric, site=site, head=None)
    for system in systems(rows):
        of_system = rows[rows["model"] == system]
        at = of_system["layer"].max() if layer is None else layer
        table = select(of_system, layer=at).assign(norm=lambda x: x["component"].astype(float))
        wide = table.pivot_table(index="seed", columns="norm", values="value")
        yield Curves(system, tuple(map(float, wide.columns)), wide.to_numpy(float))


def judge_above(claim: Claim, lower: Curves, upper: Curves) -> Verdict:
    """`upper` > `lower` at every N, paired over seeds: the smallest difference relative to its error decides."""
    tests = _at_every_norm(claim, upper, upper.values - lower.values, "difference", "all")
    (verdict,) = judged(tests)
    return verdict


def judge_trend(claim: Claim, curve: Curves, direction: int) -> Verdict:
    """The quantity grows (direction 1) or falls (−1) with N: its change from N = 0 to the largest; it may nowhere go
    the other way.
    """
    words = f"change from N = 0 ({curve.values[:, 0].mean():.4g})"
    later = Curves(curve.system, curve.norms[1:], curve.values[:, 1:] - curve.values[:, :1])
    (verdict,) = judged(_at_every_norm(claim, later, later.values, words, "last", below=direction < 0))
    return verdict


def _at_every_norm(
    claim: Claim, curve: Curves, values: Array, statistic: str, over: Over, *, below: bool = False
) -> list[Test]:
    """Tests that `values` [seed, norm] are above (or below) 0, one per N: Holm over all N."""
    at = [of_seeds(claim, values[:, i], statistic, below=below, subject=curve.system) for i in range(len(curve.norms))]
    where = (f"N = {norm:g}" for norm in curve.norms)
    return [replace(t, over=over, where=w, statistic=statistic, words="N hold") for t, w in zip(at, where, strict=True)]


def judge_above_value(claim: Claim, curve: Curves, norm: float, threshold: float, words: str) -> Verdict:
    """At one N the quantity lies above a threshold, which `words` names."""
    values = curve.values[:, curve.norms.index(norm)]
    (verdict,) = judged([of_seeds(claim, values, f"at N = {norm:g}", threshold, reason=words, subject=curve.system)])
    return verdict


def judge_share(claim: Claim, curve: Curves) -> Verdict:
    """Seeds differ in direction: the share whose value rises from N = 0 to the largest N (exact binomial interval)."""
    rises = int((curve.values[:, -1] > curve.values[:, 0]).sum())
    n = len(curve.values)
    exact = stats.binomtest(rises, n).proportion_ci(0.95, "exact")
    holds = True if 0 < rises < n else None
    numbers = (rises / n, float(exact.low), float(exact.high), n, None)
    return stated(claim, holds, "share of seeds upward:", *numbers, f"{rises} seeds up, {n - rises} down", curve.system)


def summary(records: pd.DataFrame, keys: Sequence[str] = ("model", "site", "layer", "metric")) -> pd.DataFrame:
    """Mean over seeds with its interval, one row per key and N (column `N`): what the charts draw."""
    rows: list[dict[str, Any]] = []
    for names, group in records.groupby([*keys, "component"], sort=False, dropna=False):
        estimate = over_seeds(group["value"].to_numpy(float))
        named = dict(zip((*keys, "component"), names, strict=True))
        rows.append(
            named | {"N": float(str(named["component"]))} | {k: float(v) for k, v in estimate._asdict().items()}
        )
    table = pd.DataFrame(rows)
    return table.assign(reading=[label(model) for model in table["model"]])


def with_heads(records: pd.DataFrame) -> pd.DataFrame:
    """`summary` of the means over heads, with the range over all heads and seeds in `lowest` and `highest`."""
    keys = ["model", "site", "layer", "metric"]
    rows = summary(select(records, head=None), keys)
    of_heads = records[records["head"].notna()].assign(N=lambda x: x["component"].astype(float))
    ranges = of_heads.groupby([*keys, "N"])["value"].agg(lowest="min", highest="max").reset_index()
    return rows.merge(ranges, on=[*keys, "N"], how="left")
