"""Test claims about the biased block over seeds; each seed draws weights, inputs and bias.

Student's t on paired differences, Holm over systems, claims and the grid of N.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pandas as pd
from scipy import stats

from anisoscope.store import select
from anisoscope_papers.godey2024.untrained_models import label
from anisoscope_papers.judge import (
    Array,
    Test,
    average_over_seeds,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.study import Claim, Over, Verdict, read_claims


@dataclass(frozen=True)
class Curves:
    """One quantity of one system (model): `values` [seed, norm] at ascending `norms` of the bias."""

    system: str
    norms: tuple[float, ...]
    values: Array


def list_systems(records: pd.DataFrame) -> list[str]:
    """Return the names of the untrained systems (models) in the records, in the order in which they were run."""
    # Records of figure 6 also hold trained models, which have another corpus.
    untrained = records["seed"].notna() & records["corpus"].str.startswith("uniform")
    return list(dict.fromkeys(records.loc[untrained, "model"]))


def read_width(records: pd.DataFrame, system: str) -> int:
    """Return the dimension of a system's hidden states."""
    return int(select(records, model=system)["corpus"].iloc[0].rsplit(" ", 1)[1])


def iter_curves(
    records: pd.DataFrame, metric: str, site: str, layer: int | None = None
) -> Iterator[Curves]:
    """Yield for each system (model) a metric against N (norm of the bias), as the mean over heads at `site`.

    `layer`: None for the last one.
    """
    rows = select(records, metric=metric, site=site, head=None)[
        ["model", "corpus", "seed", "layer", "component", "value"]
    ]
    for system in list_systems(rows):
        of_system = select(rows, model=system)
        table = select(
            of_system, layer=of_system["layer"].max() if layer is None else layer
        )
        table = table.assign(norm=table["component"].astype(float))
        # [seed, norm], both in rising order.
        wide = table.pivot_table(index="seed", columns="norm", values="value")
        yield Curves(system, tuple(map(float, wide.columns)), wide.to_numpy(float))


Found = Iterator[Test | Verdict]
"""Tests, to be judged together, and verdicts that need none."""
Judge = Callable[[Claim, pd.DataFrame], Found]


def judge(
    figure: str, others: Mapping[str, Judge], records: pd.DataFrame
) -> list[Verdict]:
    """Judge the claims of a figure; most of them say how a metric changes with N (norm of the bias), see `test_trends`.

    `others`: for all other claims, {name: function that judges it from the claim and the records}.
    """
    named = read_claims("godey2024", figure).items()
    found: list[Test | Verdict] = []
    for name, claim in named:
        found.extend(others.get(name, test_trends)(claim, records))
    return judge_found(found)


def judge_found(found: Sequence[Test | Verdict]) -> list[Verdict]:
    """Turn tests and verdicts (`found`) into verdicts: the tests are judged together; verdicts stay as they are."""
    tests = []
    verdicts = []
    for one in found:
        if isinstance(one, Test):
            tests.append(one)
        else:
            verdicts.append(one)
    return [*judge_tests(tests), *verdicts]


def test_trends(
    claim: Claim, records: pd.DataFrame, *, relative: bool = False
) -> Found:
    """Yield the tests of the trend of the claim's metric with N (norm of the bias), for every system (model).

    `relative`: as a share of the value at N = 0.
    """
    for curve in iter_curves(records, claim.metric, claim.site):
        yield from test_trend(claim, curve, relative=relative)


relative_trends: Judge = partial(test_trends, relative=True)
"""The same, changes as shares of the value at N = 0: an effect floor of weights of any size."""


def test_gap_closes(claim: Claim, lower: Curves, upper: Curves) -> Iterator[Test]:
    """Yield the tests that the curve `upper` lies above `lower` at every N (norm of the bias), paired over seeds.

    The number is the share of the distance from `lower` to a mean cosine of A = 1 that `upper` has covered, since near
    A = 1 every difference is small.
    """
    # Near A = 1 every difference is small, and a share of what is left is not.
    share = (upper.values - lower.values) / (1 - lower.values)
    return _test_every_norm(claim, upper, share, claim.statistic, "all")


def test_above(claim: Claim, lower: Curves, upper: Curves) -> Iterator[Test]:
    """Yield the tests that the curve `upper` lies above `lower` at every N (norm of the bias), paired over seeds."""
    return _test_every_norm(
        claim, upper, upper.values - lower.values, claim.statistic, "all"
    )


def test_trend(
    claim: Claim, curve: Curves, *, relative: bool = False
) -> Iterator[Test]:
    """Yield the tests that a curve grows (or falls) from norm N = 0 of the bias to the largest N.

    At no N may it go significantly the other way. `relative`: changes are shares of the value at N = 0.
    """
    start = curve.values[:, :1]
    words = f"{'relative ' * relative}change from N = 0 ({start.mean():.4g})"
    change = curve.values[:, 1:] - start
    if relative:
        change = change / start
    # The change at N = 0 itself is 0, and no test.
    later = Curves(curve.system, curve.norms[1:], curve.values[:, 1:])
    return _test_every_norm(claim, later, change, words, "last")


def _test_every_norm(
    claim: Claim, curve: Curves, values: Array, statistic: str, over: Over
) -> Iterator[Test]:
    """Yield a test per N (norm of the bias) that `values` [seed, norm] are above (or below) the claim's threshold.

    over        `all`: every N must pass; the verdict shows the N with the smallest number. `last`: only the largest N
                must pass; at the others, values may only not go significantly the other way, whatever the claim's floor
    curve       gives the norms and the name of the system (model)
    statistic   what the number is, in words
    """
    for norm, of_norm in zip(curve.norms, values.T, strict=True):
        judged_by = claim
        # On the way to the largest N nothing but the direction is asked for: a floor
        # would make every small N fail.
        if over == "last" and norm != curve.norms[-1]:
            judged_by = replace(claim, floor=0.0)
        test = make_test_of_seeds(
            judged_by,
            of_norm,
            statistic,
            subject=curve.system,
            reason=describe_one_more(of_norm),
        )
        # The verdict shows the N that supports the claim least. Of `last` that is
        # always the largest N, which needs no margin.
        margin = test.value if over == "all" and claim.below is None else np.nan
        yield replace(
            test,
            claim=claim,
            over=over,
            margin=margin,
            where=f"N = {norm:g}",
            words="N hold",
        )


def describe_one_more(values: Array) -> str:
    """Describe where one more draw of weights, inputs and bias would lie: by the spread of the draws `values`
    [seed], not of their mean. "" for fewer than three.
    """
    n = len(values)
    if n < 3:
        return ""
    # Half the width of a 95 % prediction interval: t · s · √(1 + 1/n). It holds the
    # spread of one draw and the error of the mean.
    half = stats.t.ppf(0.975, n - 1) * values.std(ddof=1) * np.sqrt(1 + 1 / n)
    return f"one more draw: {values.mean() - half:.3g} to {values.mean() + half:.3g}"


def test_at_norm(
    claim: Claim, curve: Curves, norm: float, threshold: float, words: str
) -> Test:
    """Make the test that the curve's quantity lies above a threshold at one N (`norm` of the bias); `words` names
    the threshold.
    """
    values = curve.values[:, curve.norms.index(norm)]
    reason = "; ".join(filter(None, (words, describe_one_more(values))))
    return make_test_of_seeds(
        claim,
        values,
        f"at N = {norm:g}",
        threshold,
        reason=reason,
        subject=curve.system,
    )


def judge_share(claim: Claim, curve: Curves) -> Verdict:
    """Judge whether seeds differ in direction: the share whose curve rises from norm N = 0 of the bias to the largest
    N.

    The interval is the exact binomial one. The claim holds if some seeds rise and some fall, else it is undecided.
    """
    rises = int((curve.values[:, -1] > curve.values[:, 0]).sum())
    n = len(curve.values)
    exact = stats.binomtest(rises, n).proportion_ci(0.95, "exact")
    # That all seeds go one way refutes nothing: of eight fair coins it happens once in
    # 128 times.
    holds = True if 0 < rises < n else None
    numbers = (rises / n, float(exact.low), float(exact.high), n, None)
    return make_verdict_without_test(
        claim,
        holds,
        "share of seeds upward:",
        *numbers,
        f"{rises} seeds up, {n - rises} down",
        curve.system,
    )


KEYS = ("model", "site", "layer", "metric", "component")


def summarise(records: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over seeds with its interval, per system, site, layer, metric and N (norm of the bias): the rows
    that charts draw.
    """
    table = average_over_seeds(records, *KEYS)
    return table.assign(
        N=table["component"].astype(float), reading=table["model"].map(label)
    )


def summarise_heads(records: pd.DataFrame) -> pd.DataFrame:
    """Return `summarise` of the means over heads, with the range over all heads and seeds in `lowest` and `highest`."""
    of_heads = records[records["head"].notna()]
    ranges = (
        of_heads.groupby(list(KEYS))["value"]
        .agg(lowest="min", highest="max")
        .reset_index()
    )
    return summarise(select(records, head=None)).merge(
        ranges, on=list(KEYS), how="left"
    )
