"""Figures 5 and 16: is the drift ‖x̄‖ correlated with A across the layers of a model? Spearman (5) and Pearson (16).

A permutation p is the share of all n! pairings whose |coefficient| is at least the observed one (two-sided). With few
layers even the strongest coefficient leaves it above .05: with n = 3 at 2/3! = .333, n = 4 at .083, n = 5 at .017.

If a LayerNorm holds the norm of every vector at √d, ‖x̄‖² is d·A by algebra, and no coefficient is evidence. So each
coefficient is shown with how far E‖x‖ spreads over the layers; if that is below PINNED, the outcome is an identity.
"""

from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import permutations
from math import factorial
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from anisoscope.store import as_records, select
from anisoscope.sums.jackknife import holm, jackknife_interval
from anisoscope_papers.godey2024 import fig01_04_layers, layer_curves
from anisoscope_papers.godey2024.layer_curves import TRAINED, UNTRAINED
from anisoscope_papers.judge import (
    Array,
    Test,
    judge_tests,
    make_test_of_seeds,
    make_verdict_without_test,
)
from anisoscope_papers.needs import Need
from anisoscope_papers.study import (
    SIGNED,
    Claim,
    Context,
    Verdict,
    declare,
    read_claims,
)
from anisoscope_papers.study_charts import draw_p_values

TEXT, VISION, NONE, SPEECH, WALKS = read_claims("godey2024", "fig5").values()
LEVEL = 0.05
NUMBERS = {
    "": "r",
    ".p": "p",
    ".p_smallest": "p_smallest",
    ".p_scipy": "p_scipy",
    ".layers": "layers",
}
"""What is recorded of a system, after `correlation.<kind>`, and its column in `make_table`."""


Kind = Literal["spearman", "pearson"]
KINDS: tuple[Kind, ...] = ("spearman", "pearson")
# 9! = 362,880 orders; ten layers would need ten times as much time and memory.
EXACT_UP_TO = 9
DRAWS = 100_000
# Orders that give the same coefficient but for rounding must count as equal.
_SAME = 1e-12
PINNED = 0.1
"""Spread of E‖x‖ over layers, largest less smallest over their mean, below which drift² is A times one number."""


@dataclass(frozen=True)
class Correlated:
    """Settings of figures 5 and 16: the systems of figures 1 to 4, and the kind of coefficient."""

    kind: Kind
    figures: tuple[layer_curves.Systems, ...]


@dataclass(frozen=True)
class Permuted:
    """The result of a permutation test.

    p         two-sided p
    smallest  the smallest p that any pairing of these values could have
    exact     whether all n! pairings were tried
    n         number of layers
    """

    p: float
    smallest: float
    exact: bool
    n: int


def compute_coefficient(kind: Kind, x: Array, y: Array) -> Array:
    """Return the correlation ("spearman" or "pearson") of x and y [..., layer] over layers, [...]; NaN if one side
    is constant.
    """
    a = _standardise_scores(kind, x)
    b = _standardise_scores(kind, y)
    # A constant side was divided by 0 and is NaN.
    with np.errstate(invalid="ignore"):
        return np.asarray((a * b).sum(-1), dtype=np.float64)


def _standardise_scores(kind: Kind, x: Array) -> Array:
    """Centre values [..., layer] (for "spearman" their ranks, ties shared), and divide them by their length over
    layers.
    """
    z = np.asarray(
        stats.rankdata(x, axis=-1) if kind == "spearman" else x, dtype=np.float64
    )
    z = z - z.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(z / np.sqrt((z * z).sum(-1, keepdims=True)), dtype=np.float64)


def run_permutation_test(kind: Kind, x: Array, y: Array) -> Permuted:
    """Return the two-sided permutation p of a correlation ("spearman" or "pearson") of x and y, both [layer].

    Exact up to 9 layers, else by 100,000 seeded draws: (hits + 1) / (draws + 1). NaN if one side is constant.
    """
    n = len(x)
    a = _standardise_scores(kind, x)
    b = _standardise_scores(kind, y)
    if n < 2 or np.isnan(a).any() or np.isnan(b).any():
        return Permuted(np.nan, np.nan, n <= EXACT_UP_TO, n)
    seen = abs(float(a @ b))
    if n <= EXACT_UP_TO:
        # [n!]: the coefficient is the product of the two standardised rows, whatever
        # the kind.
        sizes = np.abs(b[_list_permutations(n)] @ a)
        return Permuted(
            float((sizes >= seen - _SAME).mean()),
            float((sizes >= sizes.max() - _SAME).mean()),
            True,
            n,
        )
    rng = np.random.default_rng(0)
    rows = np.tile(b, (DRAWS // 10, 1))
    # A tenth of the draws at a time: all of them would fill the memory.
    hits = 0
    for _ in range(10):
        sizes = np.abs(rng.permuted(rows, axis=1) @ a)
        hits += int((sizes >= seen - _SAME).sum())
    # Draws show no p below one in their number. 2/n!, the share of the best order and
    # its reverse, is smaller than that from ten layers on.
    smallest = max(2 / factorial(n), 1 / (DRAWS + 1))
    # The observed order counts as one of the draws: p is never 0 (Phipson and Smyth 2010).
    return Permuted((hits + 1) / (DRAWS + 1), smallest, False, n)


@cache
def _list_permutations(n: int) -> NDArray[np.int64]:
    """Return every order of n things, [n!, n]."""
    return np.array(list(permutations(range(n))), dtype=np.int64)


def default_p(kind: Kind, x: Array, y: Array) -> float:
    """Return the p of scipy's `spearmanr` or `pearsonr` for x and y [layer], as in the paper.

    It is wrong for few or autocorrelated layers. NaN if it is not defined.
    """
    if len(x) < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(
        stats.spearmanr(x, y).pvalue
        if kind == "spearman"
        else stats.pearsonr(x, y).pvalue
    )


def estimate_false_positive_rate(
    kind: Kind, layers: int = 13, walks: int = 4000, seed: int = 0
) -> tuple[float, float, float]:
    """Simulate how often two independent random walks over `layers` steps correlate with p < .05: (share, low, high).

    The interval is the exact binomial one. Each layer adds to the one before it, so curves over layers are like walks,
    not like independent draws.
    """
    rng = np.random.default_rng(seed)
    x, y = rng.standard_normal((2, walks, layers)).cumsum(-1)
    r = compute_coefficient(kind, x, y)
    with np.errstate(divide="ignore"):
        # Scipy's default test, also of ranks: t = r √((n − 2) / (1 − r²)).
        t = np.abs(r) * np.sqrt((layers - 2) / (1 - r**2))
    hits = int((2 * stats.t.sf(t, layers - 2) < 0.05).sum())
    ends = stats.binomtest(hits, walks).proportion_ci(0.95, "exact")
    return hits / walks, float(ends.low), float(ends.high)


def measure(settings: Correlated, context: Context) -> pd.DataFrame:
    """Return the records of the figures, each system's correlation, and how often random walks correlate by chance."""
    parts = [
        layer_curves.measure(drop_relus(systems), context)
        for systems in settings.figures
    ]
    # Figures share models (the small token model is in figures 1 and 2): each counts
    # once.
    records = pd.concat(parts, ignore_index=True).drop_duplicates(ignore_index=True)
    value, low, high = estimate_false_positive_rate(settings.kind)
    walks = {
        "model": "random walks",
        "metric": f"false_positive_rate.{settings.kind}",
        "component": "13 steps",
    }
    found = (
        compute_correlations(records, settings.kind),
        pd.DataFrame([walks | {"value": value, "low": low, "high": high}]),
    )
    return pd.concat([records, *map(as_records, found)], ignore_index=True)


def drop_relus(systems: layer_curves.Systems) -> layer_curves.Systems:
    """Return the systems (models) without those that show one network a second time, at its inner ReLUs."""
    return replace(
        systems, others=tuple(other for other in systems.others if not other.relus)
    )


def compute_correlations(records: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Return rows on the correlation of drift ‖x̄‖ and A (mean cosine) over layers, for each system (model).

    They hold the coefficient with its interval over units (documents, images), p, the smallest possible p, scipy's p,
    and the number of layers.
    """
    rows = []
    for model, seed, layers in layer_curves.iter_systems(
        layer_curves.select_curves(records)
    ):
        a = layer_curves.select_replicates(records, layers, "mean_cosine")
        drift = layer_curves.select_replicates(records, layers, "drift")
        estimate = jackknife_interval(
            compute_coefficient(kind, drift, a), bounds=SIGNED
        )._asdict()
        # p is of the estimate over all units, row 0 of the replicates; the others make
        # the interval of the coefficient.
        test = run_permutation_test(kind, drift[0], a[0])
        # In the order of `NUMBERS`; only the coefficient has an interval.
        numbers = [{end: float(x) for end, x in estimate.items()}]
        for value in (
            test.p,
            test.smallest,
            default_p(kind, drift[0], a[0]),
            float(test.n),
        ):
            numbers.append({"value": value})
        given = {
            "model": model,
            "seed": seed,
            "n_units": int(layers["n_units"].iloc[0]),
            "site": "hidden",
        }
        for name, number in zip(NUMBERS, numbers, strict=True):
            rows.append(given | {"metric": f"correlation.{kind}{name}"} | number)
    return pd.DataFrame(rows)


def make_table(records: pd.DataFrame) -> pd.DataFrame:
    """Return the correlations in the records as a table, a row per system (model) and seed.

    Columns: model, seed, r (coefficient), low, high, p, p_smallest (possible), p_scipy, layers (number of layers),
    n_units.
    """
    parts = (
        records["metric"]
        .str.extract(r"^correlation\.[a-z]+(?P<number>\..*)?$")["number"]
        .fillna("")
    )
    rows = records.assign(name=parts.map(NUMBERS))[
        records["metric"].str.startswith("correlation.").fillna(False)
    ]
    if rows.empty:
        return pd.DataFrame(
            columns=["model", "seed", *NUMBERS.values(), "low", "high", "n_units"]
        )
    # `dropna=False` keeps a number that is undefined for all systems, but makes a row
    # for every model with every seed: the rows of those that do not exist are empty.
    wide = rows.pivot_table(
        index=["model", "seed"],
        columns="name",
        values="value",
        sort=False,
        dropna=False,
    )
    wide = wide.reindex(columns=list(NUMBERS.values())).dropna(how="all")
    ends = rows[rows["name"] == "r"].set_index(["model", "seed"])[
        ["low", "high", "n_units"]
    ]
    return wide.join(ends).reset_index()


def judge(records: pd.DataFrame) -> list[Verdict]:
    """Judge the correlations of all systems (models), and the paper's test itself.

    Systems trained with several seeds are tested by their coefficients over seeds. Single systems are compared with
    random walks, which resemble curves over layers (Holm over these systems).
    """
    rows = make_table(records)
    rows = rows[~rows["model"].astype(str).str.endswith(UNTRAINED)]
    norms = {
        str(model): measure_norms(records, str(model))
        for model in rows["model"].unique()
    }
    systems = [group for _, group in rows.groupby("model", sort=False)]
    # Seeds of one kind of model are real replicates: they need no assumption on how
    # layers depend on each other. A single model must be compared with random walks.
    several = [group for group in systems if len(group) > 1]
    found = judge_tests(
        [_make_test(group, norms[str(group.iloc[0].model)]) for group in several]
    )
    # Records of a study hold one kind of coefficient.
    kind: Kind = (
        "pearson" if records["metric"].eq("correlation.pearson").any() else "spearman"
    )
    found += _judge_single_systems(
        kind, [group.iloc[0] for group in systems if len(group) == 1], norms
    )
    by_subject = {
        model.removesuffix(TRAINED): of_model for model, of_model in norms.items()
    }
    found = [_add_norms(verdict, by_subject[verdict.subject]) for verdict in found]
    undecided = layer_curves.make_undecided((TEXT, VISION, NONE), found, records)
    return found + undecided + _judge_walks(records)


def _judge_single_systems(
    kind: Kind, rows: list[Any], norms: dict[str, "Norms"]
) -> list[Verdict]:
    """Judge the correlations of systems of one seed (`rows` of `make_table`) against random walks, corrected together.

    `norms`: by model. A system whose vectors are about equally long in all layers is no evidence, since drift² is then
    A times a constant; it is left out of the correction.
    """
    of_walks = []
    for row in rows:
        # NaN is passed over by Holm's correction.
        pinned = norms[str(row.model)].spread < PINNED
        of_walks.append(
            np.nan if pinned else walk_p(kind, int(row.layers), float(row.r))
        )
    corrected = holm(np.array(of_walks, dtype=np.float64))
    return [_judge_one(row, float(p)) for row, p in zip(rows, corrected, strict=True)]


def _judge_walks(records: pd.DataFrame) -> list[Verdict]:
    """Judge the paper's test itself: how often two independent random walks correlate by it."""
    walks = records[
        records["metric"].str.startswith("false_positive_rate").fillna(False)
    ]
    # Any share above the level that the test promises is too large: the end is the next number.
    above = (float(np.nextafter(LEVEL, 1)), 1.0)
    note = "4,000 pairs of walks; 0.05 would be right"
    tests = []
    for value, low, high in zip(
        walks["value"], walks["low"], walks["high"], strict=True
    ):
        tests.append(
            Test(WALKS, WALKS.statistic, value, low, high, inside=above, note=note)
        )
    return judge_tests(tests)


@dataclass(frozen=True)
class Norms:
    """How the norms of one system vary over layers.

    spread   largest less smallest mean norm E‖x‖, over their mean; the largest of several seeds; NaN if unknown
    ratio    the least and the largest ‖x̄‖² / A over layers and seeds
    """

    spread: float
    ratio: tuple[float, float]


def measure_norms(records: pd.DataFrame, model: str) -> Norms:
    """Return how far the norms of a system (model) vary over its layers."""
    if not len(select(records, model=model, site="hidden", metric="norms.mean")):
        return Norms(float("nan"), (float("nan"), float("nan")))
    rows = select(
        records,
        model=model,
        site="hidden",
        token_policy="all",
        head=None,
        component=None,
    )
    # Published models have no seed.
    rows = rows.assign(seed=rows["seed"].fillna(0))
    keys = ["seed", "stack", "layer"]
    norm = select(rows, metric="norms.mean").set_index(keys)["value"]
    drift = select(rows, metric="drift").set_index(keys)["value"]
    a = select(rows, metric="mean_cosine").set_index(keys)["value"]
    by_seed = norm.groupby("seed")
    spread = ((by_seed.max() - by_seed.min()) / by_seed.mean()).max()
    # In post-norm models without learnt gains it is d in every layer: ‖x̄‖² = d·A.
    ratio = drift**2 / a
    return Norms(float(spread), (float(ratio.min()), float(ratio.max())))


def _add_norms(verdict: Verdict, norms: Norms) -> Verdict:
    """Add the spread of a system's norms over layers to the reason of its verdict.

    If the vectors are about equally long in all layers, the correlation holds by construction: the outcome is then
    `identity`.
    """
    if np.isnan(norms.spread):
        return verdict
    low, high = norms.ratio
    told = f"E‖x‖ spreads by {norms.spread:.1%} over layers, ‖x̄‖²/A from {low:.3g} to {high:.3g}"
    pinned = norms.spread < PINNED
    if pinned:
        told += ": pinned, so that drift² is A times one number"
    verdict = replace(verdict, reason="; ".join(filter(None, (told, verdict.reason))))
    # The paper expects nothing of speech models, so that there is nothing to call an
    # identity.
    if not pinned or verdict.claim == SPEECH.name:
        return verdict
    return replace(verdict, outcome="identity", failing="")


def _find_claim(model: str) -> Claim:
    """Return the paper's claim about a system (model)."""
    # The claim on text names no systems: it takes what the others leave.
    for claim in (NONE, SPEECH, VISION):
        if model.startswith(claim.systems):
            return claim
    return TEXT


def _make_test(rows: pd.DataFrame, norms: Norms) -> Test:
    """Make the test of the correlation of one system (model) from its coefficients over seeds.

    `rows`: of `make_table`, one per seed. Without a correlation either sign is equally likely, however layers depend on
    each other. If vectors are about equally long in all layers, there is nothing
    to test.
    """
    model = str(rows.iloc[0].model)
    subject = model.removesuffix(TRAINED)
    claim = _find_claim(model)
    # Shown without a test.
    if claim == SPEECH:
        return Test(
            claim,
            "coefficient:",
            float(rows["r"].mean()),
            n=len(rows),
            note=_describe_papers_p(rows),
            subject=subject,
        )
    test = make_test_of_seeds(
        claim,
        rows["r"].to_numpy(float),
        "coefficient",
        reason=_describe_papers_p(rows),
        subject=subject,
    )
    # The number is shown, but no p of it: it could not have come out otherwise.
    if norms.spread < PINNED:
        return replace(test, up=np.nan, down=np.nan, against=np.nan, inside=None)
    return test


def _judge_one(row: Any, p: float) -> Verdict:
    """Judge one system's correlation against random walks: a small p shows a correlation; a large p never shows its
    absence.

    `row`: of `make_table`; `p`: that of random walks, corrected for all systems.
    """
    claim = _find_claim(str(row.model))
    # p is NaN if there is nothing to test; about speech the paper claims nothing that a p could decide.
    found = None
    if p < LEVEL and claim != SPEECH:
        found = claim != NONE
    numbers = (float(row.r), float(row.low), float(row.high), int(row.n_units), p)
    papers = _describe_papers_p(row.to_frame().T)
    reason = f"{papers}; p here is of walks, which are as autocorrelated, corrected for all systems"
    subject = str(row.model).removesuffix(TRAINED)
    return make_verdict_without_test(
        claim,
        found,
        "coefficient, with its interval over units:",
        *numbers,
        reason,
        subject,
    )


def _describe_papers_p(rows: pd.DataFrame) -> str:
    """Describe the p of the paper's own test, which treats layers as exchangeable (they are not), from `rows` of
    `make_table`.
    """
    first = rows.iloc[0]
    p = ", ".join(f"{x:.2g}" for x in rows["p"])
    return f"the paper's test over {int(first.layers)} layers: p {p} (smallest possible {first.p_smallest:.2g})"


@cache
def _walk_sizes(kind: Kind, layers: int) -> Array:
    """Return the sorted |coefficients| of 20,000 pairs of independent random walks over this many layers."""
    # A fixed seed: p of a system must not depend on which others are judged with it.
    x, y = np.random.default_rng(0).standard_normal((2, 20_000, layers)).cumsum(-1)
    return np.sort(np.abs(compute_coefficient(kind, x, y)))


def walk_p(kind: Kind, layers: int, r: float) -> float:
    """Return the share of pairs of independent random walks over `layers` steps whose |coefficient| is at least |r|.

    NaN if r is, or for fewer than three layers. `kind`: spearman or pearson.
    """
    if np.isnan(r) or layers < 3:
        return float("nan")
    sizes = _walk_sizes(kind, layers)
    # Sizes are sorted: all from this place on are at least as large. The observed pair
    # counts as one of the walks, so that p is never 0.
    return float(
        (len(sizes) - np.searchsorted(sizes, abs(r) - _SAME) + 1) / (len(sizes) + 1)
    )


def draw(name: str, records: pd.DataFrame) -> dict[str, Any]:
    """Draw the p of each system on a logarithmic axis, with a line at .05, scipy's p and the smallest possible p.

    `name`: the figure. Returns {chart name: chart}.
    """
    rows = make_table(records)
    if rows.empty:
        return {}
    # A row per system on the axis: seeds of one model need names that differ.
    several = rows.groupby("model")["seed"].transform("nunique") > 1
    rows["system"] = rows["model"].astype(str) + np.where(
        several, ", seed " + rows["seed"].astype(str), ""
    )
    return {
        name: draw_p_values(
            rows[["system", "p", "p_smallest", "p_scipy"]].dropna(subset=["p"]), LEVEL
        )
    }


def _list_needs() -> tuple[Need, ...]:
    """List what figures 1 to 4 download, which these figures measure too: each need once."""
    needs = {}
    for study in fig01_04_layers.STUDIES:
        for need in study.needs:
            needs[need.name] = need
    return tuple(needs.values())


def _build_settings(kind: Kind) -> dict[str, Correlated]:
    """Return the settings of a figure by name: the systems of figures 1 to 4 under the same name."""
    settings = {}
    for key in ("quick", "long", "paper", "packaged"):
        figures = tuple(of_name[key] for of_name in fig01_04_layers.SETTINGS.values())
        settings[key] = Correlated(kind, figures)
    return settings


STUDIES = tuple(
    declare(
        "godey2024",
        name,
        settings=_build_settings(kind),
        measure=measure,
        judge=judge,
        draw=partial(draw, name),
        needs=_list_needs(),
    )
    for name, kind in zip(("fig5", "fig16"), KINDS, strict=True)
)
