"""Claims about the biased block judged over seeds: Student t on paired differences, Holm over the grid of N."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.store import select
from anisoscope.studies.study import Outcome, Verdict
from anisoscope.sums.jackknife import Estimate, holm, over_seeds

Array = NDArray[np.float64]
LEVEL = 0.05


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


def t_test(x: Array) -> tuple[Estimate, Array]:
    """Mean over seeds [seed, ...] with its interval, and the two-sided p of a mean of 0 (NaN with one seed)."""
    estimate = over_seeds(x)
    if len(x) < 2:
        return estimate, np.full(x.shape[1:], np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        t = estimate.value / (x.std(axis=0, ddof=1) / np.sqrt(len(x)))
    return estimate, np.where(np.isnan(t), 1.0, 2 * stats.t.sf(np.abs(np.nan_to_num(t)), len(x) - 1))


def judge_above(claim: str, lower: Curves, upper: Curves) -> Verdict:
    """`upper` > `lower` at every N, paired over seeds: the smallest difference relative to its error decides."""
    estimate, p = t_test(upper.values - lower.values)
    corrected, norms = holm(p), np.array(upper.norms)
    above, below = (corrected < LEVEL) & (estimate.value > 0), (corrected < LEVEL) & (estimate.value < 0)
    outcome: Outcome = "fails" if below.any() else "holds" if above.all() else "undecided"
    ranked = np.where(estimate.value > 0, corrected, 2 - corrected)
    worst = int(np.argmax(np.nan_to_num(ranked, nan=1.0)))
    if len(norms) == 1:
        named = f"difference at N = {norms[0]:g}:"
        return Verdict(claim, outcome, named, *_numbers(estimate, 0), len(upper.values), float(p[0]), "", upper.system)
    reason = f"Holm over {len(norms)} N; "
    reason += f"below at {_named(norms[below])}" if below.any() else f"above at {above.sum()} of {len(norms)}"
    weakest = f"difference at N = {norms[worst]:g}, the weakest:"
    return Verdict(
        claim,
        outcome,
        weakest,
        *_numbers(estimate, worst),
        len(upper.values),
        float(corrected[worst]),
        reason,
        upper.system,
    )


def judge_trend(claim: str, of: Curves, direction: int) -> Verdict:
    """The quantity grows (direction 1) or falls (−1) with N: its change since N = 0, and from which N on it shows."""
    estimate, p = t_test(of.values[:, 1:] - of.values[:, :1])
    corrected, norms = holm(p), np.array(of.norms[1:])
    right = (corrected < LEVEL) & (estimate.value * direction > 0)
    wrong = (corrected < LEVEL) & (estimate.value * direction < 0)
    outcome: Outcome = "fails" if wrong.any() else "holds" if right[-1] else "undecided"
    start = onset(right)
    reason = "" if start is None else f"significant from N = {norms[start]:g} on"
    reason += f"{'; ' if reason else ''}against the claim at {_named(norms[wrong])}" if wrong.any() else ""
    reason = reason or "never significant"
    statistic = f"change from N = 0 ({of.values[:, 0].mean():.4g}) to N = {norms[-1]:g}:"
    numbers = _numbers(estimate, -1)
    return Verdict(claim, outcome, statistic, *numbers, len(of.values), float(corrected[-1]), reason, of.system)


def onset(right: NDArray[np.bool_]) -> int | None:
    """Index from which on all are true; None where the last is false."""
    if not right[-1]:
        return None
    return int(len(right) - np.argmin(right[::-1])) if not right.all() else 0


def judge_above_value(claim: str, of: Curves, norm: float, threshold: float, words: str) -> Verdict:
    """At one N, the interval over seeds lies above a threshold (holds), or below it (fails)."""
    at = of.norms.index(norm)
    estimate, p = t_test(of.values[:, at : at + 1] - threshold)
    low, high = estimate.low[0] + threshold, estimate.high[0] + threshold
    outcome: Outcome = "holds" if low > threshold else "fails" if high <= threshold else "undecided"
    reason = f"threshold {threshold:.3g}: {words}"
    value = float(estimate.value[0] + threshold)
    return Verdict(
        claim,
        outcome,
        f"at N = {norm:g}:",
        value,
        float(low),
        float(high),
        len(of.values),
        float(p[0]),
        reason,
        of.system,
    )


def judge_share(claim: str, of: Curves) -> Verdict:
    """Seeds differ in direction: the share whose value rises from N = 0 to the largest N (exact binomial interval)."""
    rises = int((of.values[:, -1] > of.values[:, 0]).sum())
    n = len(of.values)
    exact = stats.binomtest(rises, n).proportion_ci(0.95, "exact")
    outcome: Outcome = "holds" if 0 < rises < n else "undecided"
    reason = f"{rises} seeds up, {n - rises} down"
    return Verdict(
        claim,
        outcome,
        "share of seeds upward:",
        rises / n,
        float(exact.low),
        float(exact.high),
        n,
        None,
        reason,
        of.system,
    )


def summary(records: pd.DataFrame, keys: Sequence[str] = ("model", "site", "layer", "metric")) -> pd.DataFrame:
    """Mean over seeds with its interval, one row per key and N (column `N`): what the charts draw."""
    rows: list[dict[str, Any]] = []
    for names, group in records.groupby([*keys, "component"], sort=False, dropna=False):
        estimate = over_seeds(group["value"].to_numpy(float))
        named = dict(zip((*keys, "component"), names, strict=True))
        rows.append(
            named | {"N": float(str(named["component"]))} | {k: float(v) for k, v in estimate._asdict().items()}
        )
    return pd.DataFrame(rows)


def with_heads(records: pd.DataFrame) -> pd.DataFrame:
    """`summary` of the means over heads, with the range over all heads and seeds in `lowest` and `highest`."""
    keys = ["model", "site", "layer", "metric"]
    rows = summary(select(records, head=None), keys)
    of_heads = records[records["head"].notna()].assign(N=lambda x: x["component"].astype(float))
    ranges = of_heads.groupby([*keys, "N"])["value"].agg(lowest="min", highest="max").reset_index()
    return rows.merge(ranges, on=[*keys, "N"], how="left")


def _numbers(estimate: Estimate, at: int) -> tuple[float, float, float]:
    return float(estimate.value[at]), float(estimate.low[at]), float(estimate.high[at])


def _named(norms: Array) -> str:
    return "N = " + ", ".join(f"{n:g}" for n in norms)
