"""Every metric found on disk: equal to its own slow definition, invariant as it declares and no more, decided on the
smallest input.

A new metric is tested by being there. Sums are built by the functions that build them in a run.
"""

import re
import sys
import warnings

import numpy as np
import pytest
import tiny
import torch

from anisoscope import metrics
from anisoscope.axes import POSITION_EDGES, SUBSET_FAMILIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture.masking import Masking
from anisoscope.capture.scores import score_sums
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.measure.tabulate import _table
from anisoscope.metrics import calibrated, group_cosine, partition, spectrum
from anisoscope.sums.classes import add_class_sums
from anisoscope.sums.groups import Sums, Totals, vector_sums
from anisoscope.sums.isotropic import q95
from anisoscope.sums.moments import Moments, add_head_moments

METRICS = metrics.found()
OF_VECTORS = [name for name, metric in METRICS.items() if metric.reference is not None]
OF_HIDDEN = [n for n in OF_VECTORS if "hidden" in METRICS[n].quantities]
IN_BATCHES = [n for n in OF_VECTORS if {"hidden", "query_key"} & set(METRICS[n].quantities)]
INVARIANCES = ("rotation", "scaling", "translation", "order")
N_SUBSETS = sum(map(len, SUBSET_FAMILIES.values()))
EPS = np.finfo(np.float64).eps
EXACT = 1e-9
SITE = Site("encoder", 1, "hidden")


def cloud(seed=0, sizes=(9, 5, 1, 7, 12), d=7):
    """Units with means of their own, around a common drift."""
    rng = np.random.default_rng(seed)
    drift = rng.standard_normal(d) * 0.5
    return [drift + rng.standard_normal(d) * 0.7 + rng.standard_normal((n, d)) * 0.6 for n in sizes]


# ---- from vectors to totals, as a run does it ------------------------------------------------------------------------


def has_roles(metric):
    """Metrics of two sets of vectors, which their reference takes as the first two units."""
    return bool({"query_key", "scores", "class"} & set(metric.quantities)) or "subset_unit" in metric.needs


def totals(metric, units, **layout):
    """The sums of `units` (each its own group), by the real accumulator of what the metric applies to."""
    if "embedding" in metric.quantities:
        return Totals(partition.terms(np.concatenate(units)))
    if "class" in metric.quantities:
        owner = torch.arange(len(units)).repeat_interleave(torch.tensor([len(u) for u in units]))
        sums = Sums(max(2, len(units)))
        add_class_sums(sums, "site", torch.as_tensor(np.concatenate(units)), owner, owner, len(units))
        return Totals(sums.at("site"))
    if "sample" in metric.quantities:
        x, owner = np.concatenate(units), np.repeat(np.arange(len(units)), [len(u) for u in units])
        mean = x.mean(0) if len(x) else np.zeros(x.shape[1])
        return Totals(calibrated.sample_sums(x, mean, owner, max(2, len(units))))
    if "scores" in metric.quantities:
        q, k = (torch.as_tensor(x)[None, None] for x in units[:2])
        sums = Sums(2)
        sums.add("site", score_sums(q, k, Masking(None, False, None), scale=1.0), torch.zeros(1, dtype=torch.int64))
        return Totals(sums.at("site"))
    if "query_key" in metric.quantities:
        sides = {"query": units[0], "key": units[1]}
        return Totals(
            {f"{side}.{t}": v for side, x in sides.items() for t, v in summed(metric, [x], **layout).at("site").items()}
        )
    assert "hidden" in metric.quantities, f"tests/test_metrics.py does not know how to build the sums of {metric.name}"
    return Totals(summed(metric, units, **layout).at("site"))


def summed(metric, units, *, batch=None, padding=0, filler=7.0, dtype=torch.float64):
    """`units` as sequences of one head in batches of `batch`, `padding` positions of `filler` after the longest of
    each batch.
    """
    sums = Sums(max(2, len(units)))
    moments = Moments(sums, sums.groups)
    batch = batch or max(1, len(units))
    for first in range(0, len(units), batch):
        part = units[first : first + batch]
        width = max(map(len, part)) + padding
        x = torch.full((len(part), 1, width, part[0].shape[1]), filler, dtype=dtype)
        mask = torch.zeros(len(part), 1, width, dtype=torch.bool)
        subsets = torch.zeros(len(part), N_SUBSETS, width, dtype=torch.bool)
        for row, unit in enumerate(part):
            x[row, 0, : len(unit)], mask[row, :, : len(unit)] = torch.as_tensor(unit), True
            if first + row < N_SUBSETS:
                subsets[row, first + row, : len(unit)] = True
        group = torch.arange(first, first + len(part))
        values, inverse = vector_sums(x, mask, subsets, metric.needs | {"n"})
        sums.add("site", values, group)
        if "head_moment" in metric.needs:
            add_head_moments(sums, "site", x, mask[:, :1] * (inverse > 0), group, sums.groups)
        if "moment" in metric.needs:
            moments.begin(group)
            moments.add("site", x[:, 0], mask[:, 0] & (inverse[:, 0] > 0), inverse[:, 0])
    moments.flush()
    if "n" not in metric.needs:
        sums.terms.pop(("site", "n"), None)
    return sums


def values(metric, units, **layout):
    """{name as in the reference: value of all groups together}; a component is named as in `Metric.components`."""
    found = {}
    for name, replicates in metric.compute(totals(metric, units, **layout)).items():
        value = replicates[0].reshape(-1, *replicates.shape[1 + len(metric.axes) :])[0]  # first policy and head
        if value.ndim == 0:
            found[name] = float(value)
        else:
            labels = metric.components.get(name) or [str(i) for i in range(len(value))]
            found |= {(f"{name} {label}" if name else label): float(v) for label, v in zip(labels, value, strict=True)}
    return found


def check_reference(name, units=None, tolerance=EXACT, **layout):
    metric = METRICS[name]
    units = cloud() if units is None else units
    expected, got = metric.reference(units), values(metric, units, **layout)
    assert expected.keys() <= got.keys()
    for key, value in expected.items():
        assert got[key] == pytest.approx(value, rel=tolerance, abs=tolerance), f"{name} {key}"


@pytest.mark.parametrize("name", OF_VECTORS)
@pytest.mark.parametrize("seed", range(3))
def test_equals_its_definition(name, seed):
    check_reference(name, cloud(seed))


@pytest.mark.parametrize("name", OF_HIDDEN)
@pytest.mark.parametrize("drift", [0, 20])
def test_float32_activations_keep_six_digits(name, drift):
    """n products summed in float32 are off by √n·ε, relative. A covariance is a difference of two such sums: their
    ratio to it, 1/(1 − A), is its condition. Norms and their variance are summed in float64 and keep their digits
    whatever the drift.
    """
    units = [(u + drift).astype(np.float32).astype(np.float64) for u in cloud(1, sizes=(300, 200, 500), d=48)]
    rounding = np.sqrt(1000) * np.finfo(np.float32).eps
    condition = 1 / (1 - METRICS["mean_cosine"].reference(units)[""]) if name == "spectrum" else 1
    check_reference(name, units, tolerance=rounding * condition, dtype=torch.float32)


# ---- declared properties, both ways ----------------------------------------------------------------------------------


def transformed(units, invariance, metric):
    rng = np.random.default_rng(5)
    d = units[0].shape[1]
    if invariance == "rotation":
        turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
        return [u @ turn for u in units]
    if invariance == "scaling":
        return [u * np.exp(rng.standard_normal((len(u), 1))) for u in units]
    if invariance == "translation":
        return [u + np.linspace(1, 2, d) for u in units]
    shuffled = [rng.permutation(u) for u in units]
    return shuffled if has_roles(metric) else shuffled[::-1]


@pytest.mark.parametrize("name", OF_VECTORS)
@pytest.mark.parametrize("invariance", INVARIANCES)
def test_declared_invariances_hold_and_others_are_broken(name, invariance):
    metric = METRICS[name]
    assert metric.invariant <= set(INVARIANCES)
    units = cloud(2)
    keys = metric.reference(units).keys()
    before, after = values(metric, units), values(metric, transformed(units, invariance, metric))
    change = max(abs(after[k] - before[k]) / max(1, abs(before[k])) for k in keys)
    if invariance in metric.invariant:
        assert change < EXACT, f"{name} is declared invariant to {invariance}"
    else:
        assert change > 1e-3, f"{name} is invariant to {invariance}: declare it"


@pytest.mark.parametrize("name", IN_BATCHES)
@pytest.mark.parametrize("batch", [1, 2])
def test_batch_split_does_not_matter(name, batch):
    metric = METRICS[name]
    whole, split = (metric.compute(totals(metric, cloud(), batch=b)) for b in (None, batch))
    for key in whole:
        np.testing.assert_allclose(split[key], whole[key], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize(
    "name", [n for n in OF_HIDDEN if not has_roles(METRICS[n])]
)  # each half would lack one of two sets
def test_halves_merge(name):
    metric, units = METRICS[name], cloud()
    halves = [summed(metric, [u if i % 2 == h else u[:0] for i, u in enumerate(units)]) for h in (0, 1)]
    merged, whole = Totals(halves[0].merge(halves[1]).at("site")), totals(metric, units)
    for key, value in metric.compute(whole).items():
        np.testing.assert_allclose(metric.compute(merged)[key], value, rtol=EXACT, atol=EXACT)


def check_padding(name, filler=np.nan):
    metric = METRICS[name]
    bare, padded = (
        metric.compute(totals(metric, cloud(), **layout))
        for layout in ({}, {"padding": 3, "filler": filler, "batch": 2})
    )
    for key in bare:
        np.testing.assert_allclose(padded[key], bare[key], rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("name", IN_BATCHES)
@pytest.mark.parametrize("filler", [1e3, np.nan, np.inf], ids=str)
def test_padding_never_counts(name, filler):
    check_padding(name, filler)


# ---- the smallest inputs ---------------------------------------------------------------------------------------------


def rows_totals(lengths, seed=0, quantity="attention"):
    """Totals of attention rows over random queries and keys, one sequence of each length (0: nothing at all)."""
    measurement = Measurement(Settings(panels=("attention",), groups=4))
    for unit, length in enumerate(lengths):
        x = np.random.default_rng(seed + unit).standard_normal((1, 2, length, 4))
        attention_receives(measurement, torch.tensor(x), torch.tensor(x[..., ::-1].copy()), unit, quantity)
    needs = next(m for m in METRICS.values() if quantity in m.quantities).needs
    return Totals(measurement.sums.at(f"encoder.1.{quantity}") or {t: np.zeros((4, 1)) for t in needs})


def attention_receives(measurement, query, key, unit=0, quantity="attention"):
    from anisoscope.capture.rows import attention_rows

    real = torch.ones(1, query.shape[2], dtype=torch.bool)
    measurement.begin(
        Batch({}, torch.tensor([unit]), {"encoder": Stream(real, ~real, torch.zeros(1).long())}), torch.device("cpu")
    )
    rows = attention_rows(query, key, Masking(None, False, None), scale=0.5, real=real)
    received = rows if quantity == "attention" else dict.fromkeys(("plain", "query", "key"), rows)
    measurement.receive(Site("encoder", 1, quantity), received)
    measurement.end()


SMALLEST = {
    "nothing": [0, 0],
    "one vector": [1, 0],
    "one vector each": [1, 1],
    "one unit": [6, 0],
    "zero vectors": [-3, -2],
}


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("case", SMALLEST)
def test_smallest_inputs_are_decided(name, case):
    """A row or none, a value or NaN; never an exception, a warning, or an infinity. One unit has no interval."""
    metric, sizes = METRICS[name], SMALLEST[case]
    units = [np.zeros((-n, 5)) if n < 0 else np.random.default_rng(n).standard_normal((n, 5)) for n in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lengths, quantity = [n for n in sizes if n > 0], metric.quantities[0]
        of_rows = quantity in ("attention", "centred")
        found = rows_totals(lengths, quantity=quantity) if of_rows else totals(metric, units)
        rows = list(_table(metric, found._terms, ("all",), {"site": "hidden"}))
    for columns in rows:
        assert not np.isinf([columns["value"], columns["low"], columns["high"]]).any()
        if case in ("nothing", "one vector", "one unit"):
            assert np.isnan([columns["low"], columns["high"]]).all() or "query_key" in metric.quantities
    if case == "nothing":
        assert not rows


def test_undefined_values_are_nan_and_defined_ones_are_not():
    one, two = [np.eye(3)[:1]], [np.eye(3)[:1], np.eye(3)[1:2]]
    undefined = {
        "mean_cosine": ["", "between"],
        "norms": ["std", "variation"],
        "intra_sequence": [""],
        "spectrum": ["isoscore", "effective_rank"],
    }
    for name, keys in undefined.items():
        got = values(METRICS[name], one)
        assert all(np.isnan(got[key]) for key in keys), (name, got)
    assert values(METRICS["norms"], one)["mean"] == 1
    assert values(METRICS["drift"], one) == {"": 1, "share": 1}
    assert values(METRICS["mean_cosine"], two)["between"] == 0
    assert np.isnan(values(METRICS["intra_sequence"], two)[""])  # no sequence of two vectors
    assert np.isnan(
        values(METRICS["spectrum"], [np.random.default_rng(0).standard_normal((9, 1))])["isoscore"]
    )  # d = 1


def test_spectrum_of_a_constant_cloud_is_undefined():
    """Variance that is rounding alone must not pass for a spectrum."""
    for dtype in (torch.float32, torch.float64):
        got = values(METRICS["spectrum"], [np.tile(np.linspace(0.3, 1.7, 16), (50, 1))] * 2, dtype=dtype)
        for key in ("effective_rank", "effective_rank_eigenvalues", "participation_ratio", "isoscore", "explained 1"):
            assert np.isnan(got[key]), key
        assert got["cosine_square"] == pytest.approx(16, rel=1e-5)
        noise = np.sqrt(torch.finfo(dtype).eps)  # of a singular value, from rounding ε of an eigenvalue
        assert got["effective_rank_uncentred"] == pytest.approx(1, abs=-16 * noise * np.log(noise))


# ---- closed forms ----------------------------------------------------------------------------------------------------

E = np.eye(4)
C = np.array([3.0, 0, 4, 0])
CLOSED = [
    ("mean_cosine", [E[:1], E[1:2]], {"": 0, "between": 0}),
    ("mean_cosine", [np.tile(C, (3, 1)), 2 * C[None]], {"": 1, "between": 1, "top_share 1": 0.64, "top_share 3": 1}),
    ("mean_cosine", [C[None], -C[None]], {"": -1, "between": -1}),
    ("mean_cosine", [E[:2], E[:2]], {"": 1 / 3, "between": 1 / 2, "contribution 0": 1 / 6, "contribution 2": 0}),
    ("mean_cosine", [E, -E], {"": -1 / 7, "between": -1 / 4}),
    ("drift", [np.tile(C, (2, 1)), C[None]], {"": 5, "share": 1}),
    ("drift", [C[None], -C[None]], {"": 0, "share": 0}),
    ("drift", [3 * E[:1], 4 * E[1:2]], {"": 2.5, "share": 5 / 7}),
    ("norms", [3 * E[:1], 5 * E[1:2]], {"mean": 4, "std": 2**0.5, "variation": 2**0.5 / 4}),
    ("intra_sequence", [np.tile(C, (3, 1)), E[:2], E[:1]], {"": 0.5}),
    (
        "group_cosine",
        [E[:2], np.tile(E[0], (3, 1))],
        {"special × special": 0, "special × first": 0.5, "first × first": 1},
    ),
    (
        "query_key",
        [np.array([[1.5, 0], [0.5, 0]]), np.array([[-4, 3], [-4, -3.0]])],
        {"cosine": -1, "dot": -4, "query_norm": 1, "key_norm": 4},
    ),
    (
        "spectrum",
        [E, -E],
        {
            "effective_rank": 4,
            "participation_ratio": 4,
            "isoscore": 1,
            "explained 1": 0.25,
            "explained 50": 1,
            "cosine_square": 4 / 7,
        },
    ),
    (
        "spectrum",
        [C[None], -C[None]],
        {"effective_rank": 1, "participation_ratio": 1, "isoscore": 0, "explained 1": 1, "cosine_square": 4},
    ),
    (
        "spectrum",
        [np.array([[3, 0], [-3, 0]]), np.array([[0, 1.0], [0, -1]])],
        {"explained 1": 0.9, "participation_ratio": 1 / 0.82},
    ),
    ("partition", [np.array([[0.3, 0.4]])], {"": np.exp(-1)}),  # both signs of the only direction: e^−.5 / e^.5
    ("partition", [np.diag([1.0, 0.5]), -np.diag([1.0, 0.5])], {"": (np.cosh(0.5) + 1) / (np.cosh(1) + 1)}),
    ("calibrated", [np.tile(C, (2, 1)), C[None]], {"pairs_above_q95": 1}),
    ("calibrated", [9 + E[:2], 9 - E[:2]], {"centred": -1 / 3, "pairs_above_q95": 1}),
]


@pytest.mark.parametrize("name, units, expected", CLOSED, ids=[f"{name}-{i}" for i, (name, *_) in enumerate(CLOSED)])
def test_closed_forms(name, units, expected):
    got = values(METRICS[name], units)
    for key, value in expected.items():
        assert got[key] == pytest.approx(value, abs=1e-6 if name == "spectrum" else 1e-12), (
            key
        )  # 1e-6: 0·ln 0 at rounding


def test_contributions_of_dimensions_add_up_to_the_mean_cosine():
    units = cloud(3, d=20)
    got = values(METRICS["mean_cosine"], units)
    u = np.concatenate(units)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    n = len(u)
    each = np.array([(np.outer(column, column).sum() - (column**2).sum()) / (n * (n - 1)) for column in u.T])
    np.testing.assert_allclose([got[f"contribution {j}"] for j in range(20)], each, rtol=EXACT)
    assert each.sum() == pytest.approx(got[""], rel=EXACT)
    for k in (1, 3, 10):
        assert got[f"top_share {k}"] == pytest.approx(np.sort(each)[::-1][:k].sum() / each.sum(), rel=EXACT)
    assert got["isotropic_q95"] == q95(20)


def test_every_pair_of_subsets_in_a_family_is_compared_and_no_other():
    names = [f"{a} × {b}" for family in SUBSET_FAMILIES.values() for i, a in enumerate(family) for b in family[i:]]
    assert list(METRICS["group_cosine"].components[""]) == names
    units = [np.random.default_rng(i).standard_normal((2 + i, 5)) + i % 3 for i in range(N_SUBSETS)]
    got = values(METRICS["group_cosine"], units)
    flat = [name for family in SUBSET_FAMILIES.values() for name in family]
    u = {name: x / np.linalg.norm(x, axis=1, keepdims=True) for name, x in zip(flat, units, strict=True)}
    for name in names:
        a, b = (u[part] for part in name.split(" × "))
        pairs = [p @ q for i, p in enumerate(a) for j, q in enumerate(b) if a is not b or i != j]
        assert got[name] == pytest.approx(np.mean(pairs), rel=EXACT)
    assert len(group_cosine.PAIRS) == len(names)


# ---- against what is published ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, d", [(50, 3), (400, 10), (2000, 96), (30, 64)])
@pytest.mark.parametrize("drift", [0.0, 4.0])
def test_isoscore_is_the_published_package_s(n, d, drift):
    """Within 1e-6, which is the package's own precision: it takes √d in float32. At d = 1 it divides by zero; ours
    says undefined.
    """
    package = pytest.importorskip("IsoScore.IsoScore", reason="the published package is an extra of [dev]")
    rng = np.random.default_rng(n)
    x = drift + rng.standard_normal((n, d)) * np.linspace(0.1, 2, d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = float(package.IsoScore(torch.tensor(x)))
    assert values(METRICS["spectrum"], np.array_split(x, 4))["isoscore"] == pytest.approx(published, abs=1e-6)


def test_isoscore_follows_the_steps_of_the_paper():
    """Rudman et al. 2022, steps 2 to 7, as written, from points in their principal axes; k equal variances score (k −
    1)/(d − 1).
    """
    rng = np.random.default_rng(4)
    x = rng.standard_normal((300, 9)) * np.linspace(0.2, 1.5, 9) + 3
    axes = np.linalg.svd(x - x.mean(0), full_matrices=False)[2]
    variances = np.diag(np.cov((x @ axes.T).T))
    n = len(variances)
    normal = np.sqrt(n) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(normal - 1) / np.sqrt(2 * (n - np.sqrt(n)))
    score = ((n - defect**2 * (n - np.sqrt(n))) ** 2 - n) / (n * (n - 1))
    assert values(METRICS["spectrum"], np.array_split(x, 3))["isoscore"] == pytest.approx(score, rel=EXACT)
    for k in range(1, 10):
        used = np.r_[np.ones(k), np.zeros(9 - k)]
        assert spectrum.isoscore(used) == pytest.approx((k - 1) / 8, abs=1e-12)


def partition_by_rows(w):
    """What two published files do: `for v in eigenvectors` walks the rows of a matrix whose eigenvectors are its
    columns.
    """
    z = [np.exp(sign * w @ row).sum() for row in np.linalg.eigh(w.T @ w)[1] for sign in (1, -1)]
    return min(z) / max(z)


def test_partition_takes_columns_and_both_signs():
    """Rows of the eigenvector matrix are no eigenvectors: their I(W) changes when W is rotated, which no measure of
    isotropy may do.
    One sign only misses half of the directions: an eigenvector has none."""
    w = np.concatenate(cloud(6, sizes=(40, 30), d=6))
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((6, 6)))[0]
    got = values(METRICS["partition"], [w])[""]
    directions = [s * c for c in np.linalg.eigh(w.T @ w)[1].T for s in (1, -1)]
    z = [sum(np.exp(float(c @ row)) for row in w) for c in directions]
    assert got == pytest.approx(min(z) / max(z), rel=EXACT)
    assert values(METRICS["partition"], [w @ turn])[""] == pytest.approx(got, rel=EXACT)
    assert partition_by_rows(w @ turn) != pytest.approx(partition_by_rows(w), rel=0.01)
    one_sign = {min(z[s::2]) / max(z[s::2]) for s in (0, 1)}
    assert all(value > 1.01 * got for value in one_sign)


def test_partition_does_not_overflow():
    w = np.concatenate(cloud(7, d=5)) * 500
    assert 0 <= values(METRICS["partition"], [w])[""] < 1e-300


def test_effective_rank_of_normalised_vectors_of_few_dimensions():
    """The direction that a norm takes away had float32's rounding as its variance: 1e-4 off at 8 dimensions."""
    generator = torch.Generator().manual_seed(8)
    drawn = torch.randn(3, 16, 200, 8, generator=generator) + 0.3 * torch.randn(8, generator=generator)
    for x in torch.nn.functional.layer_norm(drawn, (8,)).numpy():
        every = x.reshape(-1, 8).astype(np.float64)
        found = np.linalg.svd(every - every.mean(0), compute_uv=False)[:-1]
        share = found / found.sum()
        got = values(METRICS["spectrum"], list(x), dtype=torch.float32)["effective_rank"]
        assert got == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-6)


def test_effective_rank_is_of_singular_values_and_centred():
    """reptrix took eigenvalues for singular values; RankMe does not centre. The three are given apart and differ."""
    got = values(METRICS["spectrum"], cloud(8, sizes=(40, 40), d=6))
    x = np.concatenate(cloud(8, sizes=(40, 40), d=6))
    s = np.linalg.svd(x, compute_uv=False)
    p = s / s.sum()
    assert got["effective_rank_uncentred"] == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=EXACT)
    assert len({round(got[f"effective_rank{kind}"], 3) for kind in ("", "_eigenvalues", "_uncentred")}) == 3


def test_attention_rows_against_brute_force():
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, 1, 2, 6, 4))
    measurement = Measurement(Settings(panels=("attention",), groups=4))
    attention_receives(measurement, torch.tensor(query), torch.tensor(key))
    got = METRICS["attention"].compute(Totals(measurement.sums.at("encoder.1.attention")))
    for head in range(2):
        s = query[0, head] @ key[0, head].T * 0.5
        p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
        entropy = -(p * np.log(p)).sum(1)
        u = p / np.linalg.norm(p, axis=1, keepdims=True)
        expected = {
            "entropy": entropy.mean(),
            "entropy_normalised": entropy.mean() / np.log(6),
            "row_max": p.max(1).mean(),
            "row_min": p.min(1).mean(),
            "first_mass": p[:, 0].mean(),
            "score": s.mean(),
            "row_similarity": (u @ u.T)[~np.eye(6, dtype=bool)].mean(),
            "rows_seeing_one_key": 0,
        }
        for name, value in expected.items():
            assert got[name][0, head] == pytest.approx(value, rel=EXACT, abs=1e-12), name


@pytest.mark.parametrize("causal", [False, True])
def test_attention_rows_are_the_same_bit_for_bit_with_any_number_of_threads(causal, monkeypatch):
    from anisoscope.capture import rows
    from anisoscope.capture.masking import Masking

    monkeypatch.setattr(rows, "BLOCK", 600)  # blocks of some heads, and of some rows of a head
    g = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 4, 40, 8, generator=g) for _ in range(3))
    visible = torch.ones(3, 1, 1, 40, dtype=torch.bool)
    visible[1, ..., 33:] = visible[2, ..., ::3] = False
    before, found = torch.get_num_threads(), []
    how = {"scale": 0.3, "sinks": torch.ones(4), "median": True, "histogram": torch.linspace(-1, 1, 5), "value": value}
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for keys in (None, visible):
                found.append(rows.attention_rows(query, key, Masking(keys, causal, None), **how))
    finally:
        torch.set_num_threads(before)
    for i, got in enumerate(found):
        for name, expected in found[i % 2].items():
            torch.testing.assert_close(got[name], expected, rtol=0, atol=0, equal_nan=True)


# ---- declarations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_docstring_has_its_five_points(name):
    """Formula, range and what its ends mean, unit, when undefined, source; one sentence before them."""
    text = sys.modules[f"anisoscope.metrics.{name}"].__doc__
    heads = re.findall(r"^(Formula|Range|Unit|Undefined|Source)\s+\S", text, re.MULTILINE)
    assert heads == ["Formula", "Range", "Unit", "Undefined", "Source"]
    assert len(text.split("\n\n")[0]) > 20


@pytest.mark.parametrize("name", METRICS)
def test_components_are_named(name):
    metric = METRICS[name]
    assert metric.axes in (("policy", "head"), ("head",), ())
    for key, labels in metric.components.items():
        assert len(set(labels)) == len(labels) > 1, key


def test_a_file_without_its_declaration_fails_by_name(tmp_path, monkeypatch):
    from anisoscope.errors import MeasureError

    (tmp_path / "nameless.py").write_text("")
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(tmp_path)])
    metrics.found.cache_clear()
    try:
        with pytest.raises(MeasureError, match=r"METRIC = Metric\(name='nameless'.*docs/adding\.md"):
            metrics.found()
    finally:
        metrics.found.cache_clear()
        sys.modules.pop("anisoscope.metrics.nameless", None)


@pytest.mark.parametrize("name", [n for n in METRICS if {"hidden", "sample"} & set(METRICS[n].quantities)])
def test_each_metric_alone_on_a_tensor(name):
    """`anisoscope.metric`: the value that the definition gives, with an interval, padding masked."""
    import anisoscope

    units = cloud(3)
    x = torch.full((len(units), 12, 7), torch.nan, dtype=torch.float64)
    mask = torch.zeros(len(units), 12, dtype=torch.bool)
    for row, unit in enumerate(units):
        x[row, : len(unit)], mask[row, : len(unit)] = torch.tensor(unit), True
    got = anisoscope.metric(name, x, mask=mask)
    for key, value in METRICS[name].reference(units).items() if name != "group_cosine" else ():
        rounding = 1e-6 if name == "calibrated" else EXACT  # the sample is kept in float32
        estimate = got[f"{name}.{key}" if key else name]
        assert estimate.value == pytest.approx(value, rel=rounding, abs=rounding)
        assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("name", ["mean_cosine", "norms"])
def test_a_mask_of_a_matrix_leaves_its_rows_out(name):
    import anisoscope

    x, kept = torch.randn(60, 7, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 3 > 0
    got = anisoscope.metric(name, x, mask=kept, groups=60)  # each vector a group of its own
    alone = anisoscope.metric(name, x[kept], groups=60)
    assert {key: found.value for key, found in got.items()} == pytest.approx({k: e.value for k, e in alone.items()})


def test_embedding_matrices_of_a_model():
    """Asked for by name among others, where it was left out without a word."""
    model = tiny.model("bert")
    records = tiny.measure(model, [model.dummy_inputs["input_ids"]], ["partition"])
    row = records[records["metric"] == "partition"].set_index("site").loc["embedding.input"]
    weight = model.get_input_embeddings().weight.detach().numpy()
    assert row.value == pytest.approx(METRICS["partition"].reference([weight])[""], rel=EXACT)
    assert row.n_vectors == tiny.VOCABULARY


def test_pairs_of_groups_are_defined_for_both_and_between():
    units = [np.array([[1.0, 0], [1, 1]]), np.array([[0.0, 1], [2, 0]])]
    a, b = group_cosine._NAMES[:2]
    found = group_cosine.reference(units)
    assert found == pytest.approx({f"{a} × {a}": 0.5**0.5, f"{a} × {b}": (1 + 2**0.5) / 4, f"{b} × {b}": 0})


def test_metrics_of_the_first_token_policy_alone_say_so():
    """Each is a row or a matrix a site, which other policies would double."""
    assert {name for name, metric in METRICS.items() if metric.first_policy} == {
        "calibrated",
        "common_direction",
        "spectrum",
    }


def test_bins_of_positions_are_named_by_their_edges():
    first = [int(re.search(r"\d+", name)[0]) for name in SUBSET_FAMILIES["position"]]
    last = [int(found[1]) for name in SUBSET_FAMILIES["position"] if (found := re.search(r"–(\d+)", name))]
    assert tuple(first) == POSITION_EDGES and last == [edge - 1 for edge in POSITION_EDGES[2:]]
    assert SUBSET_FAMILIES["frequency"] == tuple(f"frequency {k}" for k in (1, 2, 3, 4, 5))
