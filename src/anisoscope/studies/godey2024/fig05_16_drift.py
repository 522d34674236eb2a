"""Figures 5 and 16: is the drift ‖x̄‖ correlated with A across the layers of a model? Spearman (5) and Pearson (16).

A permutation p is the share of all n! pairings whose |coefficient| is at least the observed one (two-sided). With few
layers even the strongest coefficient leaves it above .05: with n = 3 at 2/3! = .333, n = 4 at .083, n = 5 at .017.
"""

from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from math import factorial
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.charts.study_charts import p_values
from anisoscope.store import as_records
from anisoscope.studies.godey2024 import fig01_04_layers, layer_curves
from anisoscope.studies.godey2024.layer_curves import TRAINED, UNTRAINED
from anisoscope.studies.judge import Array, Test, detected, judged, stated
from anisoscope.studies.study import SIGNED, Context, Verdict, claims, declare
from anisoscope.sums.jackknife import holm, interval

TEXT, VISION, NONE, SPEECH, WALKS = claims("godey2024", "fig5").values()
LEVEL = 0.05
NUMBERS = {"": "r", ".p": "p", ".p_smallest": "p_smallest", ".p_scipy": "p_scipy", ".layers": "layers"}
"""What is recorded of a system, after `correlation.<kind>`, and its column in `table`."""


Kind = Literal["spearman", "pearson"]
KINDS: tuple[Kind, ...] = ("spearman", "pearson")
EXACT_UP_TO = 9
DRAWS = 100_000
_SAME = 1e-12


@dataclass(frozen=True)
class Correlated:
    """The systems of figures 1 to 4, and the coefficient."""

    kind: Kind
    figures: tuple[layer_curves.Systems, ...]


# --- correlation over a few layers, and what autocorrelation does ---


@dataclass(frozen=True)
class Permuted:
    """`p` of the permutation test; `smallest` p that any pairing of these values could have; `exact`: all n! tried."""

    p: float
    smallest: float
    exact: bool
    n: int


def coefficient(kind: Kind, x: Array, y: Array) -> Array:
    """Correlation over the last axis [..., layer] → [...]; NaN where one side is constant."""
    a, b = _scores(kind, x), _scores(kind, y)
    with np.errstate(invalid="ignore"):
        return np.asarray((a * b).sum(-1), dtype=np.float64)


def _scores(kind: Kind, x: Array) -> Array:
    """Values (or ranks, ties shared) centred and divided by their length."""
    z = np.asarray(stats.rankdata(x, axis=-1) if kind == "spearman" else x, dtype=np.float64)
    z = z - z.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(z / np.sqrt((z * z).sum(-1, keepdims=True)), dtype=np.float64)


def permutation_test(kind: Kind, x: Array, y: Array, seed: int = 0) -> Permuted:
    """Two-sided p: exact up to 9 layers, else by 100,000 seeded draws, (hits + 1) / (draws + 1)."""
    n = len(x)
    a, b = _scores(kind, x), _scores(kind, y)
    if n < 2 or np.isnan(a).any() or np.isnan(b).any():
        return Permuted(np.nan, np.nan, n <= EXACT_UP_TO, n)
    seen = abs(float(a @ b))
    if n <= EXACT_UP_TO:
        sizes = np.abs(b[_all(n)] @ a)
        return Permuted(float((sizes >= seen - _SAME).mean()), float((sizes >= sizes.max() - _SAME).mean()), True, n)
    rng, rows = np.random.default_rng(seed), np.tile(b, (DRAWS // 10, 1))
    hits = sum(int((np.abs(rng.permuted(rows, axis=1) @ a) >= seen - _SAME).sum()) for _ in range(10))
    return Permuted((hits + 1) / (DRAWS + 1), max(2 / factorial(n), 1 / (DRAWS + 1)), False, n)


@cache
def _all(n: int) -> NDArray[np.int64]:
    """[n!, n] every order of n things."""
    return np.array(list(permutations(range(n))), dtype=np.int64)


def default_p(kind: Kind, x: Array, y: Array) -> float:
    """What scipy's `spearmanr` or `pearsonr` say, as in the paper: a t law, wrong for few or autocorrelated layers."""
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(stats.spearmanr(x, y).pvalue if kind == "spearman" else stats.pearsonr(x, y).pvalue)


def false_positive_rate(kind: Kind, layers: int = 13, walks: int = 4000, seed: int = 0) -> tuple[float, float, float]:
    """(share, low, high): how often two independent Gaussian random walks over `layers` steps come out with p < .05.

    Exact binomial interval. A layer adds to the one before it, so curves over layers are like walks, not like draws.
    """
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, walks, layers)).cumsum(-1)
    r = coefficient(kind, x, y)
    with np.errstate(divide="ignore"):
        t = np.abs(r) * np.sqrt((layers - 2) / (1 - r**2))
    hits = int((2 * stats.t.sf(t, layers - 2) < 0.05).sum())
    ends = stats.binomtest(hits, walks).proportion_ci(0.95, "exact")
    return hits / walks, float(ends.low), float(ends.high)


# --- the studies ---


def measure(settings: Correlated, context: Context) -> pd.DataFrame:
    """Records of the figures, the correlation of every system, and how often two random walks are correlated."""
    parts = [layer_curves.measure(systems, context) for systems in settings.figures]
    records = pd.concat(parts, ignore_index=True).drop_duplicates(ignore_index=True)
    value, low, high = false_positive_rate(settings.kind)
    walks = {"model": "random walks", "metric": f"false_positive_rate.{settings.kind}", "component": "13 steps"}
    found = (correlations(records, settings.kind), pd.DataFrame([walks | {"value": value, "low": low, "high": high}]))
    return pd.concat([records, *map(as_records, found)], ignore_index=True)


def correlations(records: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """One row per system and quantity: coefficient with its interval over units, p, smallest p, scipy's p, layers."""
    rows = []
    for model, seed, layers in layer_curves.per_system(layer_curves.curves(records)):
        a, drift = (layer_curves.replicates(records, layers, metric) for metric in ("mean_cosine", "drift"))
        estimate = interval(coefficient(kind, drift, a), bounds=SIGNED)._asdict()
        test = permutation_test(kind, drift[0], a[0])
        scipys = default_p(kind, drift[0], a[0])
        values = (None, test.p, test.smallest, scipys, float(test.n))
        given = {"model": model, "seed": seed, "n_units": int(layers["n_units"].iloc[0]), "site": "hidden"}
        for name, value in zip(NUMBERS, values, strict=True):
            numbers = {k: float(x) for k, x in estimate.items()} if value is None else {"value": value}
            rows.append(given | {"metric": f"correlation.{kind}{name}"} | numbers)
    return pd.DataFrame(rows)


def table(records: pd.DataFrame) -> pd.DataFrame:
    """One row per system and seed: model, seed, r, low, high, p, p_smallest, p_scipy, layers, n_units."""
    parts = records["metric"].str.extract(r"^correlation\.[a-z]+(?P<number>\..*)?$")["number"].fillna("")
    rows = records.assign(name=parts.map(NUMBERS))[records["metric"].str.startswith("correlation.").fillna(False)]
    if rows.empty:
        return pd.DataFrame(columns=["model", "seed", *NUMBERS.values(), "low", "high", "n_units"])
    wide = rows.pivot_table(index=["model", "seed"], columns="name", values="value", sort=False, dropna=False)
    wide = wide.reindex(columns=list(NUMBERS.values())).dropna(how="all")
    ends = rows[rows["name"] == "r"].set_index(["model", "seed"])[["low", "high", "n_units"]]
    return wide.join(ends).reset_index()


def judge(records: pd.DataFrame) -> list[Verdict]:
    """One verdict per trained system (Holm over all of them) and one on the test itself."""
    rows = table(records)
    rows = rows[~rows["model"].astype(str).str.endswith(UNTRAINED)]
    worst = rows.groupby("model", sort=False)["p"].max().astype(float)  # a claim must hold with every seed
    corrected = pd.Series(holm(np.asarray(worst, dtype=np.float64)), index=worst.index)
    systems = int(worst.notna().sum())
    verdicts = [_system(group, corrected[model], systems) for model, group in rows.groupby("model", sort=False)]
    walks = records[records["metric"].str.startswith("false_positive_rate").fillna(False)]
    above, note = (float(np.nextafter(LEVEL, 1)), 1.0), "4,000 pairs of walks; 0.05 would be right"
    ends = zip(walks["value"], walks["low"], walks["high"], strict=True)
    of_walks = [Test(WALKS, WALKS.statistic, v, low, high, inside=above, note=note) for v, low, high in ends]
    return verdicts + layer_curves.unmeasured((TEXT, VISION, NONE), verdicts, records) + judged(of_walks)


def _system(rows: pd.DataFrame, corrected: float, systems: int) -> Verdict:
    """The verdict on one system, of which every seed must say the same."""
    first = rows.iloc[0]
    claim = next((c for c in (NONE, SPEECH, VISION) if str(first.model).startswith(c.systems)), TEXT)
    found = [
        None if claim == SPEECH else detected(float(p), corrected, float(smallest), expected=claim != NONE)
        for p, smallest in zip(rows["p"], rows["p_smallest"], strict=True)
    ]
    reason = f"{int(first.layers)} layers, smallest p {first.p_smallest:.2g}, permutation p {first.p:.2g}"
    reason += f", scipy's {first.p_scipy:.2g}"
    if first.p_smallest >= LEVEL:
        reason += "; p could not have been below .05"
    elif first.p_smallest * systems >= LEVEL:
        reason += f"; p corrected for {systems} systems could not have been below .05"
    if len(rows) > 1:
        named = ", ".join(f"{p:.2g}" for p in rows["p"])
        reason += f"; {len(rows)} seeds, p {named}, each: {', '.join(stated(claim, x, '').outcome for x in found)}"
    agreed = found[0] if len(set(found)) == 1 else None
    numbers = (float(first.r), float(first.low), float(first.high), int(first.n_units), float(corrected))
    return stated(claim, agreed, "coefficient:", *numbers, reason, str(first.model).removesuffix(TRAINED))


def draw(name: str, records: pd.DataFrame) -> dict[str, Any]:
    """p of each system on a logarithmic axis, the line at .05, scipy's p and the smallest p beside it."""
    rows = table(records)
    if rows.empty:
        return {}
    several = rows.groupby("model")["seed"].transform("nunique") > 1
    rows["system"] = rows["model"].astype(str) + np.where(several, ", seed " + rows["seed"].astype(str), "")
    return {name: p_values(rows[["system", "p", "p_smallest", "p_scipy"]].dropna(subset=["p"]), LEVEL)}


STUDIES = tuple(
    declare(
        "godey2024",
        name,
        settings={
            key: Correlated(kind, tuple(of_name[key] for of_name in fig01_04_layers.SETTINGS.values()))
            for key in ("quick", "long", "paper")
        },
        measure=measure,
        judge=judge,
        draw=partial(draw, name),
        needs=tuple({need.name: need for study in fig01_04_layers.STUDIES for need in study.needs}.values()),
    )
    for name, kind in zip(("fig5", "fig16"), KINDS, strict=True)
)
