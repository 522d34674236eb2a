"""Claims about the biased block judged over seeds: Student t on paired differences, Holm over the grid of N."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pandas as pd
from scipy import stats

from anisoscope.store import select
from anisoscope.studies.godey2024.untrained_models import label
from anisoscope.studies.judge import Array, Test, judged, means_over_seeds, of_seeds, stated
from anisoscope.studies.study import Claim, Over, Verdict, claims


@dataclass(frozen=True)
class Curves:
    """One quantity of one system: `values` [seed, norm] at ascending `norms`."""

    system: str
    norms: tuple[float, ...]
    values: Array


def systems(records: pd.DataFrame) -> list[str]:
    """Untrained systems, in the order they were run."""
    untrained = records["seed"].notna() & records["corpus"].str.startswith("uniform")
    return list(dict.fromkeys(records.loc[untrained, "model"]))


def width(records: pd.DataFrame, system: str) -> int:
    """The dimension of its hidden states."""
    return int(select(records, model=system)["corpus"].iloc[0].rsplit(" ", 1)[1])


def curves(records: pd.DataFrame, metric: str, site: str, layer: int | None = None) -> Iterator[Curves]:
    """The mean over heads of `metric` at `site`, per system; layer None: the last one."""
    rows = select(records, metric=metric, site=site, head=None)
    for system in systems(rows):
        of_system = select(rows, model=system)
        table = select(of_system, layer=of_system["layer"].max() if layer is None else layer)
        table = table.assign(norm=table["component"].astype(float))
        wide = table.pivot_table(index="seed", columns="norm", values="value")
        yield Curves(system, tuple(map(float, wide.columns)), wide.to_numpy(float))


def judge(
    figure: str, others: Mapping[str, Callable[[Claim, pd.DataFrame], Iterator[Verdict]]], records: pd.DataFrame
) -> list[Verdict]:
    """Verdicts on the claims of a figure: trends of their metric at their site, and `others` by name."""
    named = claims("godey2024", figure).items()
    return [verdict for name, claim in named for verdict in others.get(name, trends)(claim, records)]


def trends(claim: Claim, records: pd.DataFrame) -> Iterator[Verdict]:
    """The trend of the claim's metric in every system."""
    return (judge_trend(claim, curve) for curve in curves(records, claim.metric, claim.site))


def judge_above(claim: Claim, lower: Curves, upper: Curves) -> Verdict:
    """`upper` > `lower` at every N, paired over seeds: the smallest difference relative to its error decides."""
    return _at_every_norm(claim, upper, upper.values - lower.values, "difference", "all")


def judge_trend(claim: Claim, curve: Curves) -> Verdict:
    """Growth (or fall) from N = 0 to the largest N; it may nowhere go the other way."""
    words = f"change from N = 0 ({curve.values[:, 0].mean():.4g})"
    later = Curves(curve.system, curve.norms[1:], curve.values[:, 1:])
    return _at_every_norm(claim, later, later.values - curve.values[:, :1], words, "last")


def _at_every_norm(claim: Claim, curve: Curves, values: Array, statistic: str, over: Over) -> Verdict:
    """Tests that `values` [seed, norm] are above (or below) 0, one per N: Holm over all N."""
    tests: list[Test] = []
    for norm, of_norm in zip(curve.norms, values.T, strict=True):
        test = of_seeds(claim, of_norm, statistic, subject=curve.system)
        tests.append(replace(test, over=over, where=f"N = {norm:g}", statistic=statistic, words="N hold"))
    (verdict,) = judged(tests)
    return verdict


def judge_at(claim: Claim, curve: Curves, norm: float, threshold: float, words: str) -> Verdict:
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


KEYS = ("model", "site", "layer", "metric", "component")


def summary(records: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds with its interval, one row per key and N (column `N`): what the charts draw."""
    table = means_over_seeds(records, *KEYS)
    return table.assign(N=table["component"].astype(float), reading=table["model"].map(label))


def with_heads(records: pd.DataFrame) -> pd.DataFrame:
    """`summary` of the means over heads, with the range over all heads and seeds in `lowest` and `highest`."""
    of_heads = records[records["head"].notna()]
    ranges = of_heads.groupby(list(KEYS))["value"].agg(lowest="min", highest="max").reset_index()
    return summary(select(records, head=None)).merge(ranges, on=list(KEYS), how="left")
