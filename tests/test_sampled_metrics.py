"""Metrics of sampled vectors and of two layers, against other ways to the same number, and in cases that are known."""

from itertools import permutations

import numpy as np
import pytest
import tiny
import torch
from scipy.spatial import cKDTree
from scipy.special import hyp0f1

import anisoscope
from anisoscope.axes import Site
from anisoscope.errors import UsageError
from anisoscope.metrics import cka, mean_cosine, neighbours, twonn, uniformity
from anisoscope.reads.pairs import SampledPair
from anisoscope.reads.run_pairs import RunPair, SampledStack, read_across
from anisoscope.reads.sample import SampledVectors


def sample_of(x, groups=5):
    return SampledVectors(x, np.arange(len(x)) % groups, groups, x.mean(0))


# ---- uniformity ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "d"), [(40, 3), (1500, 20)]
)  # within one block of rows, and over two
def test_uniformity_is_the_published_loss(n, d):
    x = (
        torch.randn(
            n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64
        )
        + 0.4
    )
    loss = (
        torch.pdist(torch.nn.functional.normalize(x, dim=1))
        .pow(2)
        .mul(-2)
        .exp()
        .mean()
        .log()
    )
    got = anisoscope.metric("uniformity", x)
    assert got["uniformity"].value == pytest.approx(float(loss), rel=1e-12)
    assert got["uniformity"].low < got["uniformity"].value < got["uniformity"].high


def test_uniformity_of_evenly_spread_directions_and_of_one():
    x = np.random.default_rng(0).standard_normal((2000, 6))
    got = anisoscope.metric("uniformity", x)
    expected = np.log(hyp0f1(3, 4)) - 4
    assert got["uniformity.isotropic"].value == pytest.approx(expected)
    assert got["uniformity"].low < expected < got["uniformity"].high
    poles = np.array(
        [[1.0], [-1.0]] * 500
    )  # of all ordered pairs 499 agree and 500 are opposite
    assert anisoscope.metric("uniformity", poles)["uniformity"].value == pytest.approx(
        np.log((499 + 500 * np.exp(-8)) / 999)
    )
    assert np.cosh(4) == pytest.approx(hyp0f1(0.5, 4))
    assert anisoscope.metric("uniformity", np.ones((9, 3)))[
        "uniformity"
    ].value == pytest.approx(0, abs=1e-12)


# ---- intrinsic dimension ---------------------------------------------------------------------------------------------


def by_tree(x):
    """The published steps, with neighbours from a tree."""
    points = np.unique(x, axis=0)
    distance, _ = cKDTree(points).query(points, k=3)
    log_ratio = np.sort(np.log(distance[:, 2] / distance[:, 1]))
    n = len(points)
    kept = int(0.9 * n)
    y = [-np.log(1 - i / n) for i in range(1, kept + 1)]
    return float(log_ratio[:kept] @ y / (log_ratio[:kept] @ log_ratio[:kept])), float(
        (n - 1) / log_ratio.sum()
    )


@pytest.mark.parametrize(("n", "d", "k"), [(50, 4, 4), (300, 30, 3), (1400, 12, 8)])
@pytest.mark.parametrize("drift", [0.0, 1e4])
def test_twonn_is_that_of_neighbours_from_a_tree(n, d, k, drift):
    """Also of a cloud that is far from the origin, where products of vectors lose the digits of their distances."""
    rng = np.random.default_rng(n)
    x = np.tanh(rng.standard_normal((n, k)) @ rng.standard_normal((k, d))) + drift
    x = np.concatenate([x, x[: n // 5]])  # equal vectors count once
    got = anisoscope.metric("twonn", x)
    slope, likelihood = by_tree(x)
    assert got["twonn"].value == pytest.approx(slope, rel=1e-9)
    assert got["twonn.likelihood"].value == pytest.approx(likelihood, rel=1e-9)
    assert got["twonn.distinct"].value == pytest.approx(n / (n + n // 5))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_twonn_finds_the_dimension_of_a_curved_surface(k):
    rng = np.random.default_rng(k)
    x = np.sin(rng.uniform(size=(2000, k)) @ rng.standard_normal((k, 40)))
    got = anisoscope.metric("twonn", x)
    for name in ("twonn", "twonn.likelihood"):
        assert got[name].value == pytest.approx(k, rel=0.1)


def test_twonn_without_a_group_is_that_of_the_other_vectors():
    """In groups that are clusters, the remembered neighbours of a vector are left out together with its group."""
    rng = np.random.default_rng(3)
    clusters = [
        rng.standard_normal((30, 3)) * 0.01 + centre
        for centre in rng.standard_normal((4, 3))
    ]
    lonely = np.array(
        [[5.0, 0, 0], [0, 6.0, 0], [0, 0, 7.0]]
    )  # nearest to whole clusters
    x = np.concatenate(
        [*clusters, lonely, clusters[0][:4]]
    )  # four vectors are of two groups
    group = np.concatenate([np.repeat(np.arange(4), 30), [4, 4, 4], [1, 1, 1, 1]])
    got = twonn.compute(SampledVectors(x, group, 8, x.mean(0)))
    for index, left_out in enumerate((None, 0, 1, 2, 3, 4)):
        slope, likelihood = by_tree(x if left_out is None else x[group != left_out])
        assert got[""][index] == pytest.approx(slope, rel=1e-9)
        assert got["likelihood"][index] == pytest.approx(likelihood, rel=1e-9)


def test_neighbours_without_a_group_are_those_of_the_other_vectors():
    """A vector beside a dense group of 60 remembers 48 of them: without that group it is compared with all others."""
    rng = np.random.default_rng(5)
    dense = rng.standard_normal((60, 4)) * 0.01 + [3, 0, 0, 0]
    beside = rng.standard_normal((6, 4)) * 0.01 + [3, 0.5, 0, 0]
    x = np.concatenate([dense, beside, rng.standard_normal((40, 4))])
    group = np.repeat([0, 1, 2, 3], [60, 6, 20, 20])
    sample = SampledVectors(x, group, 4, x.mean(0))
    got = neighbours.compute(sample)
    for index in range(4):
        alone = neighbours.compute(sample.without(index))
        for name, values in got.items():
            assert values[1 + index] == pytest.approx(alone[name][0], rel=1e-12), (
                index,
                name,
            )


def test_centring_takes_away_the_mean_of_all_vectors_not_that_of_the_sample():
    x = np.random.default_rng(6).standard_normal((400, 5)) + 1
    run = anisoscope.measure(x, metrics=("calibrated",), sample=12)
    sampled = run.sample["vectors at vectors.0.hidden"].double().numpy()
    assert len(sampled) == 12
    (row,) = run.records[run.records["metric"] == "calibrated.centred"].itertuples()
    assert row.value == pytest.approx(
        mean_cosine.reference([sampled - x.mean(0)])[""], rel=1e-6
    )
    assert row.value != pytest.approx(
        mean_cosine.reference([sampled - sampled.mean(0)])[""], rel=0.01
    )


# ---- two runs --------------------------------------------------------------------------------------------------------


def test_tokens_of_two_runs_are_in_the_group_of_their_own_unit():
    """The second run lacks some tokens, so that a token's place differs in the two samples."""
    rng = np.random.default_rng(7)
    hashes, units = np.arange(40) * 3, rng.permutation(np.repeat(np.arange(8), 5))
    x, y = rng.standard_normal((40, 4)), rng.standard_normal((40, 6))
    site = Site("encoder", 1, "hidden")
    kept = np.flatnonzero(np.arange(40) % 3)
    first = SampledStack(hashes, units, {site: x})
    second = SampledStack(hashes[kept], units[kept], {site: y[kept]})
    for one, other, vectors in ((first, second, x), (second, first, y)):
        (reading,) = read_across(RunPair(), one, other, groups=8)
        assert np.array_equal(reading.data.first.group, units[kept] % 8)
        assert np.array_equal(reading.data.first.vectors, vectors[kept])


# ---- alignment of layers ---------------------------------------------------------------------------------------------


def common_variance(x, y):
    """The unbiased HSIC as its definition: the mean over all quadruples of distinct tokens."""
    a, b = x @ x.T, y @ y.T
    quadruples = list(permutations(range(len(x)), 4))
    return np.mean(
        [a[i, j] * (b[i, j] + b[q, r] - 2 * b[i, q]) for i, j, q, r in quadruples]
    )


def test_cka_is_that_of_all_quadruples_of_tokens():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((9, 4)) + 1
    y = x[:, :3] @ rng.standard_normal((3, 5)) + rng.standard_normal((9, 5)) - 2
    expected = common_variance(x, y) / np.sqrt(
        common_variance(x, x) * common_variance(y, y)
    )
    got = anisoscope.metric("cka", (x, y), groups=9)["cka"]
    assert got.value == pytest.approx(expected, rel=1e-9)
    assert got.low < got.value < got.high
    replicates = cka.compute(SampledPair(sample_of(x, 3), sample_of(y, 3)))[""]
    kept = np.arange(9) % 3 != 1
    part = [common_variance(a[kept], b[kept]) for a, b in ((x, y), (x, x), (y, y))]
    assert replicates[2] == pytest.approx(
        part[0] / np.sqrt(part[1] * part[2]), rel=1e-9
    )


def test_cka_of_the_same_cloud_is_1_and_of_nothing_in_common_0():
    rng = np.random.default_rng(1)
    x, other = rng.standard_normal(
        (2, 200, 500)
    )  # fewer tokens than dimensions: plain CKA is near 1 for both
    turned = 3 * x @ np.linalg.qr(rng.standard_normal((500, 500)))[0] + 10
    assert anisoscope.metric("cka", (x, turned))["cka"].value == pytest.approx(
        1, abs=1e-9
    )
    apart = anisoscope.metric("cka", (x, other))["cka"]
    assert apart.low < 0 < apart.high and abs(apart.value) < 0.05
    with np.errstate(all="raise"):
        assert np.isnan(
            anisoscope.metric("cka", (x, np.ones((200, 3))))["cka"].value
        )  # no variance


def test_cka_of_every_pair_of_layers_of_a_model():
    records = tiny.measure(
        tiny.model("bert"),
        [tiny.model("bert").dummy_inputs["input_ids"]] * 6,
        ["cka"],
        sample=50,
    )
    rows = records[["layer", "site", "component"]].astype("string").values.tolist()
    assert rows == [
        [str(i), "hidden", f"hidden {j}"] for i in range(4) for j in range(i + 1, 4)
    ]
    t5 = tiny.measure(
        tiny.model("t5"), [tiny.model("t5").dummy_inputs] * 3, ["cka"], sample=50
    )
    assert set(t5["stack"]) == {"encoder", "decoder"} and "final" in set(
        t5["component"]
    )
    within = t5[t5["stack"].eq("decoder")]
    assert (
        len(within) == 10
        and within["value"].between(-1, 1).all()
        and within["token_policy"].eq("all").all()
    )


def test_a_token_that_one_layer_cannot_use_is_in_no_layer():
    x = np.random.default_rng(2).standard_normal((60, 6))
    y = x @ np.diag(np.arange(1.0, 7)) + 0.1
    spoiled = y.copy()
    spoiled[::10] = np.nan
    with pytest.warns(UserWarning, match="vectors, these were left out"):
        got = anisoscope.metric("cka", (x, spoiled), unit=np.arange(60))
    kept = np.arange(60) % 10 > 0
    alone = anisoscope.metric("cka", (x[kept], y[kept]), unit=np.arange(60)[kept])
    assert got["cka"] == pytest.approx(alone["cka"], rel=1e-9)


def test_one_array_for_two_layers_is_refused_and_says_how():
    x = np.random.default_rng(0).standard_normal((10, 3))
    with pytest.raises(
        UsageError,
        match=r"two arrays of the same tokens for cka.*metric\('cka', \(x, y\)\)",
    ):
        anisoscope.metric("cka", x)
    with pytest.raises(UsageError, match=r"got \(10, 1, 3\) and \(9, 1, 3\)"):
        anisoscope.metric("cka", (x, x[:9]))


def test_what_the_metrics_of_a_sample_cost_grows_with_its_square_in_blocks():
    """No matrix of all pairs is held for more vectors than a block of rows has."""
    rows = []
    kernel = lambda part, every: (  # noqa: E731
        rows.append(len(part)) or np.ones((len(part), len(every)))
    )
    sample = sample_of(np.random.default_rng(0).standard_normal((2500, 2)))
    assert sample.sum_pairs(kernel)[0] == 2500 * 2499 == sample.count_pairs()[0]
    assert rows == [1024, 1024, 452]
    np.testing.assert_array_equal(sample.sum_pairs(kernel), sample.count_pairs())
    assert uniformity.METRIC.axes == ()


def test_the_skewness_of_equal_numbers_is_undefined():
    """On a circle each vector is among the ten nearest of its ten nearest."""
    angle = 2 * np.pi * np.arange(60) / 60
    found = anisoscope.metric("neighbours", np.stack([np.cos(angle), np.sin(angle)], 1))
    assert np.isnan(found["neighbours.hubness"].value)
    assert (
        found["neighbours.largest"].value == 10 / 59
        and found["neighbours.never"].value == 0
    )
