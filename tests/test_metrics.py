"""Every metric of ours keeps every law of `anisoscope.testing`; closed forms, and what is published, beside it.

A new metric is tested by being there. Sums are built by the functions that build them in a run.
"""

import re
import sys
import warnings

import numpy as np
import pytest
import tiny
import torch

import anisoscope
from anisoscope import metrics
from anisoscope.axes import POSITION_EDGES, SUBSET_FAMILIES
from anisoscope.capture.masking import Masking
from anisoscope.metrics import LayerPair, Sample, Vectors, group_cosine, spectrum
from anisoscope.reads.base import draw_cloud
from anisoscope.reads.query_key import HEAD_MOMENTS
from anisoscope.reads.vectors import MOMENTS
from anisoscope.sums.groups import Sums, Totals, sum_vectors
from anisoscope.sums.isotropic import q95
from anisoscope.testing import laws

METRICS = metrics.scan()
N_SUBSETS = sum(map(len, SUBSET_FAMILIES.values()))
EXACT = laws.EXACT

EACH = [
    pytest.param(metric, law, id=f"{name}-{law.name}")
    for name, metric in METRICS.items()
    for law in laws.laws_of(metric)
]


OF_VECTORS = [
    name
    for name, metric in METRICS.items()
    if isinstance(metric.reads, Vectors | Sample | LayerPair) and metric.reads.runs == 1
]


@pytest.mark.parametrize("exponent", [-400, 400])
@pytest.mark.parametrize("name", OF_VECTORS)
def test_values_are_right_for_vectors_of_any_length(name, exponent):
    """Ranks of vectors of 1e-113 were wrong by as much as a sixth: squares of their eigenvalues were 0."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 10, 12)) + 0.5
    layers = {"0": x, "1": x @ rng.standard_normal((12, 12))}
    factor = 2.0**exponent
    scaled = {layer: vectors * factor for layer, vectors in layers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before, after = (
            anisoscope.measure(given, metrics=name).records["value"].to_numpy(float)
            for given in (layers, scaled)
        )
    assert len(before) and len(before) == len(after)
    found = np.isclose(after, before, rtol=1e-9, atol=1e-12, equal_nan=True)
    # lengths, and squares of lengths
    for lengths in (before * factor, before * factor**2):
        found |= np.isclose(after, lengths, rtol=1e-9, atol=0)
    assert found.all()


@pytest.mark.parametrize(("metric", "law"), EACH)
def test_a_metric_keeps_the_law(metric, law):
    law.hold(metric)


def check_reference(name):
    laws.require_reference(METRICS[name], METRICS[name].reads.draw())


def check_padding(name, filler):
    laws.require_padding_ignored(METRICS[name], filler)


def cloud(seed=0, sizes=(9, 5, 1, 7, 12), d=7):
    return draw_cloud(seed, sizes, d)


def values(metric, units, **layout):
    """Values of test data; those of token subsets from units that are one subset each."""
    if "subset_unit" not in metric.needs:
        return laws.compute_values(metric, units, **layout)
    x = torch.as_tensor(np.concatenate(units))[None, None]
    owner = torch.arange(len(units)).repeat_interleave(
        torch.tensor([len(unit) for unit in units])
    )
    subsets = torch.stack([owner == i for i in range(N_SUBSETS)])[None]
    sums = Sums(2)
    found, _ = sum_vectors(
        x, torch.ones(1, 1, x.shape[2], dtype=torch.bool), subsets, metric.needs | {"n"}
    )
    sums.add("site", found, torch.zeros(1, dtype=torch.int64))
    (computed,) = metric.compute(Totals(sums.at("site", metric.needs))).values()
    return dict(zip(metric.components[""], computed[0, 0].tolist(), strict=True))


# ---- the smallest inputs ---------------------------------------------------------------------------------------------


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
        assert all(np.isnan(got.get(key, np.nan)) for key in keys), (
            name,
            got,
        )  # or there is no row at all
    assert values(METRICS["norms"], one)["mean"] == 1
    assert values(METRICS["drift"], one) == {"": 1, "share": 1}
    assert values(METRICS["mean_cosine"], two)["between"] == 0
    assert not values(METRICS["intra_sequence"], two)  # no sequence of two vectors
    assert np.isnan(
        values(METRICS["spectrum"], [np.random.default_rng(0).standard_normal((9, 1))])[
            "isoscore"
        ]
    )  # d = 1


@pytest.mark.parametrize("shift", [0.0, 3.0, -100.0])
@pytest.mark.parametrize("d", [1, 2, 3, 64])
def test_both_spectra_of_one_reduction_are_those_of_two_decompositions(d, shift):
    rng = np.random.default_rng(d)
    x = rng.standard_normal((3, 4 * d + 2, d)) * np.linspace(0.01, 1, d) + shift
    whole, mean = x.mT @ x / x.shape[1], x.mean(1)
    mean[0] = x[0].mean(0) if shift else 0  # a mean of exactly 0 has no direction
    centred = whole - mean[..., :, None] * mean[..., None, :]
    scale = np.trace(whole, axis1=-2, axis2=-1)
    as_they_are = np.zeros(3, dtype=np.int32)
    got = spectrum._compute_eigenvalues(whole, mean, scale, as_they_are)
    for found, matrix in zip(got, (centred, whole), strict=True):
        assert np.abs(found - np.linalg.eigvalsh(matrix)).max() <= 1e-14 * scale.max()
    whole[1, 0, 0] = np.nan
    for found in spectrum._compute_eigenvalues(whole, mean, scale, as_they_are):
        assert np.isnan(found[1]).all() and np.isfinite(found[[0, 2]]).all()


def test_spectrum_of_a_constant_cloud_is_undefined():
    """Variance that is rounding alone must not pass for a spectrum."""
    for dtype in (torch.float32, torch.float64):
        got = values(
            METRICS["spectrum"],
            [np.tile(np.linspace(0.3, 1.7, 16), (50, 1))] * 2,
            dtype=dtype,
        )
        for key in (
            "effective_rank",
            "effective_rank_eigenvalues",
            "participation_ratio",
            "isoscore",
            "explained 1",
        ):
            assert np.isnan(got[key]), key
        assert got["cosine_square"] == pytest.approx(16, rel=1e-5)
        noise = np.sqrt(
            torch.finfo(dtype).eps
        )  # of a singular value, from rounding ε of an eigenvalue
        assert got["effective_rank_uncentred"] == pytest.approx(
            1, abs=-16 * noise * np.log(noise)
        )


def test_a_spread_that_rounding_may_give_is_no_spectrum():
    """Vectors that are equal but for 1e-5 of their length, as float32 leaves them, have no rank; of 1e-2 they have."""
    rng = np.random.default_rng(4)
    for spread, defined in ((1e-5, False), (1e-2, True)):
        units = [1 + spread * rng.standard_normal((40, 6)) for _ in range(3)]
        for dtype in (torch.float32, torch.float64):
            got = values(METRICS["spectrum"], units, dtype=dtype)
            for key in (
                "effective_rank",
                "effective_rank_eigenvalues",
                "participation_ratio",
                "isoscore",
            ):
                assert np.isfinite(got[key]) == defined, (spread, key)


def test_dimensions_that_do_not_vary_have_no_kurtosis():
    """However far from 0 they are: that their last bit differs is rounding."""
    rng = np.random.default_rng(5)
    units = cloud(3, sizes=(40, 33, 27), d=5)
    for constant in (1000.1, 1e-3, 7.7):
        ends = np.array([constant, np.nextafter(constant, np.inf)])
        given = [np.column_stack([unit, rng.choice(ends, len(unit))]) for unit in units]
        got, expected = (values(METRICS["kurtosis"], each) for each in (given, units))
        for key in ("", "largest", "dimension"):
            assert got[key] == pytest.approx(expected[key], rel=1e-9), (constant, key)


def test_partition_functions_are_over_all_rows_of_a_large_matrix():
    """It is read in blocks of 1,024 rows; the last is here another cloud than the first."""
    rng = np.random.default_rng(6)
    rows = np.concatenate(
        [rng.standard_normal((1400, 4)) + 1, 0.3 * rng.standard_normal((700, 4))]
    )
    for units in ([rows], [rows[::-1]], [-rows]):
        assert values(METRICS["partition"], units)[""] == pytest.approx(
            METRICS["partition"].reference(units)[""]
        )


# ---- closed forms ----------------------------------------------------------------------------------------------------

E = np.eye(4)
C = np.array([3.0, 0, 4, 0])
CLOSED = [
    ("mean_cosine", [E[:1], E[1:2]], {"": 0, "between": 0}),
    (
        "mean_cosine",
        [np.tile(C, (3, 1)), 2 * C[None]],
        {"": 1, "between": 1, "top_share 1": 0.64, "top_share 3": 1},
    ),
    ("mean_cosine", [C[None], -C[None]], {"": -1, "between": -1}),
    (
        "mean_cosine",
        [E[:2], E[:2]],
        {"": 1 / 3, "between": 1 / 2, "contribution 0": 1 / 6, "contribution 2": 0},
    ),
    ("mean_cosine", [E, -E], {"": -1 / 7, "between": -1 / 4}),
    ("drift", [np.tile(C, (2, 1)), C[None]], {"": 5, "share": 1}),
    ("drift", [C[None], -C[None]], {"": 0, "share": 0}),
    ("drift", [3 * E[:1], 4 * E[1:2]], {"": 2.5, "share": 5 / 7}),
    (
        "norms",
        [3 * E[:1], 5 * E[1:2]],
        {"mean": 4, "std": 2**0.5, "variation": 2**0.5 / 4},
    ),
    ("intra_sequence", [np.tile(C, (3, 1)), E[:2], E[:1]], {"": 0.5}),
    (
        "group_cosine",
        [E[:2], np.tile(E[0], (3, 1))],
        {"special × special": 0, "special × first": 0.5, "first × first": 1},
    ),
    (
        "query_key",
        [(np.array([[1.5, 0], [0.5, 0]]), np.array([[-4, 3], [-4, -3.0]]))],
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
        {
            "effective_rank": 1,
            "participation_ratio": 1,
            "isoscore": 0,
            "explained 1": 1,
            "cosine_square": 4,
        },
    ),
    (
        "spectrum",
        [np.array([[3, 0], [-3, 0]]), np.array([[0, 1.0], [0, -1]])],
        {"explained 1": 0.9, "participation_ratio": 1 / 0.82},
    ),
    (
        "partition",
        [np.array([[0.3, 0.4]])],
        {"": np.exp(-1)},
    ),  # both signs of the only direction: e^−.5 / e^.5
    (
        "partition",
        [np.diag([1.0, 0.5]), -np.diag([1.0, 0.5])],
        {"": (np.cosh(0.5) + 1) / (np.cosh(1) + 1)},
    ),
    ("calibrated", [np.tile(C, (2, 1)), C[None]], {"pairs_above_q95": 1}),
    ("calibrated", [9 + E[:2], 9 - E[:2]], {"centred": -1 / 3, "pairs_above_q95": 1}),
]


@pytest.mark.parametrize(
    "name, units, expected",
    CLOSED,
    ids=[f"{name}-{i}" for i, (name, *_) in enumerate(CLOSED)],
)
def test_closed_forms(name, units, expected):
    got = values(METRICS[name], units)
    for key, value in expected.items():
        assert got[key] == pytest.approx(
            value, abs=1e-6 if name == "spectrum" else 1e-12
        ), key  # 1e-6: 0·ln 0 at rounding


def test_contributions_of_dimensions_add_up_to_the_mean_cosine():
    units = cloud(3, d=20)
    got = values(METRICS["mean_cosine"], units)
    u = np.concatenate(units)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    n = len(u)
    each = np.array(
        [
            (np.outer(column, column).sum() - (column**2).sum()) / (n * (n - 1))
            for column in u.T
        ]
    )
    np.testing.assert_allclose(
        [got[f"contribution {j}"] for j in range(20)], each, rtol=EXACT
    )
    assert each.sum() == pytest.approx(got[""], rel=EXACT)
    for k in (1, 3, 10):
        assert got[f"top_share {k}"] == pytest.approx(
            np.sort(each)[::-1][:k].sum() / each.sum(), rel=EXACT
        )
    assert got["isotropic_q95"] == q95(20)


def test_every_pair_of_subsets_in_a_family_is_compared_and_no_other():
    names = [
        f"{a} × {b}"
        for family in SUBSET_FAMILIES.values()
        for i, a in enumerate(family)
        for b in family[i:]
    ]
    assert list(METRICS["group_cosine"].components[""]) == names
    units = [
        np.random.default_rng(i).standard_normal((2 + i, 5)) + i % 3
        for i in range(N_SUBSETS)
    ]
    got = values(METRICS["group_cosine"], units)
    flat = [name for family in SUBSET_FAMILIES.values() for name in family]
    u = {
        name: x / np.linalg.norm(x, axis=1, keepdims=True)
        for name, x in zip(flat, units, strict=True)
    }
    for name in names:
        a, b = (u[part] for part in name.split(" × "))
        pairs = [
            p @ q
            for i, p in enumerate(a)
            for j, q in enumerate(b)
            if a is not b or i != j
        ]
        assert got[name] == pytest.approx(np.mean(pairs), rel=EXACT)
    assert len(group_cosine.PAIRS) == len(names)


# ---- against what is published ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, d", [(50, 3), (400, 10), (2000, 96), (30, 64)])
@pytest.mark.parametrize("drift", [0.0, 4.0])
def test_isoscore_is_the_published_package_s(n, d, drift):
    """Within 1e-6, which is the package's own precision: it takes √d in float32. At d = 1 it divides by zero; ours
    says undefined.
    """
    package = pytest.importorskip(
        "IsoScore.IsoScore", reason="the published package is an extra of [dev]"
    )
    rng = np.random.default_rng(n)
    x = drift + rng.standard_normal((n, d)) * np.linspace(0.1, 2, d)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        published = float(package.IsoScore(torch.tensor(x)))
    assert values(METRICS["spectrum"], np.array_split(x, 4))[
        "isoscore"
    ] == pytest.approx(published, abs=1e-6)


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
    assert values(METRICS["spectrum"], np.array_split(x, 3))[
        "isoscore"
    ] == pytest.approx(score, rel=EXACT)
    for k in range(1, 10):
        used = np.r_[np.ones(k), np.zeros(9 - k)]
        assert spectrum.isoscore(used) == pytest.approx((k - 1) / 8, abs=1e-12)


def partition_by_rows(w):
    """What two published files do: `for v in eigenvectors` walks the rows of a matrix whose eigenvectors are its
    columns.
    """
    z = [
        np.exp(sign * w @ row).sum()
        for row in np.linalg.eigh(w.T @ w)[1]
        for sign in (1, -1)
    ]
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
    drawn = torch.randn(3, 16, 200, 8, generator=generator) + 0.3 * torch.randn(
        8, generator=generator
    )
    for x in torch.nn.functional.layer_norm(drawn, (8,)).numpy():
        every = x.reshape(-1, 8).astype(np.float64)
        found = np.linalg.svd(every - every.mean(0), compute_uv=False)[:-1]
        share = found / found.sum()
        got = values(METRICS["spectrum"], list(x), dtype=torch.float32)[
            "effective_rank"
        ]
        assert got == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-6)


def test_effective_rank_is_of_singular_values_and_centred():
    """reptrix took eigenvalues for singular values; RankMe does not centre. The three are given apart and differ."""
    got = values(METRICS["spectrum"], cloud(8, sizes=(40, 40), d=6))
    x = np.concatenate(cloud(8, sizes=(40, 40), d=6))
    s = np.linalg.svd(x, compute_uv=False)
    p = s / s.sum()
    assert got["effective_rank_uncentred"] == pytest.approx(
        np.exp(-(p * np.log(p)).sum()), rel=EXACT
    )
    assert (
        len(
            {
                round(got[f"effective_rank{kind}"], 3)
                for kind in ("", "_eigenvalues", "_uncentred")
            }
        )
        == 3
    )


@pytest.mark.parametrize("causal", [False, True])
def test_attention_rows_are_the_same_bit_for_bit_with_any_number_of_threads(
    causal, monkeypatch
):
    from anisoscope.capture import rows

    monkeypatch.setattr(
        rows, "BLOCK", 600
    )  # blocks of some heads, and of some rows of a head
    g = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(3, 4, 40, 8, generator=g) for _ in range(3))
    visible = torch.ones(3, 1, 1, 40, dtype=torch.bool)
    visible[1, ..., 33:] = visible[2, ..., ::3] = False
    before, found = torch.get_num_threads(), []
    how = {
        "scale": 0.3,
        "sinks": torch.ones(4),
        "median": True,
        "histogram": torch.linspace(-1, 1, 5),
        "value": value,
    }
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            for keys in (None, visible):
                found.append(
                    rows.attention_rows(query, key, Masking(keys, causal, None), **how)
                )
    finally:
        torch.set_num_threads(before)
    for i, got in enumerate(found):
        for name, expected in found[i % 2].items():
            torch.testing.assert_close(
                got[name], expected, rtol=0, atol=0, equal_nan=True
            )


# ---- declarations ----------------------------------------------------------------------------------------------------


def test_a_file_without_its_declaration_fails_by_name(tmp_path, monkeypatch):
    from anisoscope.errors import MeasureError

    (tmp_path / "nameless.py").write_text("")
    monkeypatch.setattr(metrics, "__path__", [*metrics.__path__, str(tmp_path)])
    metrics.scan.cache_clear()
    try:
        with pytest.raises(
            MeasureError, match=r"METRIC = Metric\(name='nameless'.*docs/adding\.md"
        ):
            metrics.scan()
    finally:
        metrics.scan.cache_clear()
        sys.modules.pop("anisoscope.metrics.nameless", None)


@pytest.mark.parametrize("name", ["mean_cosine", "norms"])
def test_a_mask_of_a_matrix_leaves_its_rows_out(name):
    import anisoscope

    x, kept = (
        torch.randn(60, 7, generator=torch.Generator().manual_seed(0)),
        torch.arange(60) % 3 > 0,
    )
    got = anisoscope.metric(
        name, x, mask=kept, groups=60
    )  # each vector a group of its own
    alone = anisoscope.metric(name, x[kept], groups=60)
    assert {key: found.value for key, found in got.items()} == pytest.approx(
        {k: e.value for k, e in alone.items()}
    )


def test_embedding_matrices_of_a_model():
    """Asked for by name among others, where it was left out without a word."""
    model = tiny.model("bert")
    records = tiny.measure(model, [model.dummy_inputs["input_ids"]], ["partition"])
    row = (
        records[records["metric"] == "partition"]
        .set_index("site")
        .loc["embedding.input"]
    )
    weight = model.get_input_embeddings().weight.detach().numpy()
    assert row.value == pytest.approx(
        METRICS["partition"].reference([weight])[""], rel=EXACT
    )
    assert row.n_vectors == tiny.VOCABULARY


def test_pairs_of_groups_are_defined_for_both_and_between():
    units = [np.array([[1.0, 0], [1, 1]]), np.array([[0.0, 1], [2, 0]])]
    a, b = group_cosine._NAMES[:2]
    found = group_cosine.reference(units)
    assert found == pytest.approx(
        {f"{a} × {a}": 0.5**0.5, f"{a} × {b}": (1 + 2**0.5) / 4, f"{b} × {b}": 0}
    )


def test_metrics_of_the_first_token_policy_alone_say_so():
    """Each is a row or a matrix a site, which other policies would double."""
    for name, metric in METRICS.items():
        of_sample = isinstance(metric.reads, Sample | LayerPair)
        of_moments = bool(metric.needs & (MOMENTS | HEAD_MOMENTS))
        assert metric.first_policy == (of_sample or of_moments), name
    assert (
        METRICS["spectrum"].first_policy
        and METRICS["cka"].first_policy
        and not METRICS["drift"].first_policy
    )


def test_bins_of_positions_are_named_by_their_edges():
    first = [int(re.search(r"\d+", name)[0]) for name in SUBSET_FAMILIES["position"]]
    last = [
        int(found[1])
        for name in SUBSET_FAMILIES["position"]
        if (found := re.search(r"–(\d+)", name))
    ]
    assert tuple(first) == POSITION_EDGES and last == [
        edge - 1 for edge in POSITION_EDGES[2:]
    ]
    assert SUBSET_FAMILIES["frequency"] == tuple(
        f"frequency {k}" for k in (1, 2, 3, 4, 5)
    )
