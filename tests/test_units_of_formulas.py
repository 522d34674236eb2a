"""Formulas of metrics where groups have gaps, blocks end and data are degenerate; names by which metrics are found."""

import math
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from random_numbers import draw_array

from anisoscope import metrics
from anisoscope.errors import UsageError
from anisoscope.metrics import (
    Metric,
    Sample,
    Vectors,
    attention,
    base,
    calibrated,
    centred_attention,
    cka,
    class_direction,
    common_direction,
    drift,
    floor,
    group_cosine,
    intra_sequence,
    kurtosis,
    logits,
    mean_cosine,
    modality_gap,
    neighbours,
    norms,
    partition,
    procrustes,
    score_terms,
    spectrum,
    twonn,
    uniformity,
)
from anisoscope.reads import sample as of_sample
from anisoscope.reads.pairs import SampledPair
from anisoscope.reads.sample import SampledVectors
from anisoscope.registry import registered
from anisoscope.sums.groups import Totals
from anisoscope.sums.isotropic import q95
from anisoscope.sums.jackknife import jackknife_interval

FOREIGN = replace(drift.METRIC, name="foreign", panel="")


# ---- samples ---------------------------------------------------------------------------------------------------------

GROUP = np.array([7, 1, 4, 4, 1, 7, 7, 4, 1, 1, 4, 7] * 4)


def sampled(x: Any, group: Any = GROUP, mean: Any = None) -> SampledVectors:
    return SampledVectors(x, group[: len(x)], 9, x.mean(0) if mean is None else mean)


@pytest.mark.parametrize("rows", [5, 47, 100])
@pytest.mark.parametrize(
    "module", [calibrated, floor, kurtosis, neighbours, twonn, uniformity],
    ids=lambda module: module.METRIC.name,
)  # fmt: skip
def test_a_sample_in_blocks_and_groups_with_gaps_has_the_values_of_its_definition(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, rows: int
) -> None:
    """Every replicate is what the definition says of the other groups; some vectors are twice there."""
    for place in (module, of_sample):
        if hasattr(place, "ROWS"):
            monkeypatch.setattr(place, "ROWS", rows)
    x = draw_array(48, 4) + 0.5
    x[30:34] = x[2:6]
    found = module.compute(sampled(x))
    for replicate, left_out in enumerate((None, 1, 4, 7)):
        units = [x[(g == GROUP)] for g in (1, 4, 7) if g != left_out]
        for name, value in module.reference(units).items():
            if name in module.METRIC.extremes and replicate:
                assert len(found[name]) == 1
                continue
            if name == "centred" and replicate:
                continue
            got = found[name][replicate]
            assert got == pytest.approx(value, rel=1e-7), (name, left_out)


def test_vectors_are_centred_by_the_mean_of_all_that_were_measured() -> None:
    """One vector is that mean, and has no direction; on a line directions have no quantile."""
    mean = np.array([1.0, 2.0, 0.5])
    x = draw_array(9, 3) + mean
    x[4] = mean
    found = calibrated.compute(sampled(x, mean=mean))
    around = np.delete(x - mean, 4, axis=0)
    exact = mean_cosine.reference([around])[""]
    assert found["centred"][0] == pytest.approx(exact)
    kept = GROUP[:9] != 4
    exact = mean_cosine.reference([(x - mean)[kept & (np.arange(9) != 4)]])[""]
    assert found["centred"][2] == pytest.approx(exact)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    close = [unit[i] @ unit[j] > q95(3) for i in range(9) for j in range(9) if i != j]
    assert found["pairs_above_q95"][0] == pytest.approx(np.mean(close))
    assert calibrated.compute(sampled(x[:, :1])) == {}
    assert set(calibrated.compute(sampled(x[:2]))) == {"centred", "pairs_above_q95"}


def test_vectors_in_a_plane_have_calibrated_values() -> None:
    """A twentieth of a plane's directions are within 9 degrees: 8 are a close pair, 10 are not."""
    angles = np.deg2rad([0.0, 8.0, 18.0])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    found = calibrated.compute(sampled(x, mean=np.zeros(2)))
    assert found["pairs_above_q95"][0] == pytest.approx(1 / 3)
    cosines = np.cos(np.deg2rad([8.0, 10.0, 18.0]))
    assert found["centred"][0] == pytest.approx(cosines.mean())


@pytest.mark.parametrize("n", [3, 4, 5])
def test_cka_is_defined_from_four_tokens_on(n: int) -> None:
    x, y = draw_array(n, 4, seed=1) * 3 + 7, draw_array(n, 2, seed=2)
    one = np.arange(n)
    pair = SampledPair(sampled(x, one), sampled(y, one))
    found = cka.compute(pair)[""]
    assert len(found) == n + 1
    for replicate in range(n + 1):
        kept = one != replicate - 1
        count = int(kept.sum())
        if count < 4:
            assert math.isnan(found[replicate])
            continue
        both = [cka._u_centre(side[kept]) for side in (x, y)]
        sizes = [(u * u).sum() for u in both]
        exact = (both[0] * both[1]).sum() / math.sqrt(sizes[0] * sizes[1])
        assert found[replicate] == pytest.approx(exact)
    assert cka.METRIC.reads.most == 1024


def test_two_layers_without_a_positive_variance_have_no_cka(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grams = [
        SimpleNamespace(variance=np.array(row))
        for row in ([4.0, -1.0, 4.0, 0.0], [9.0, -1.0, -9.0, 9.0])
    ]
    pair: Any = SimpleNamespace(
        first=SimpleNamespace(get_cached=lambda _: grams[0]),
        second=SimpleNamespace(get_cached=lambda _: grams[1]),
    )
    given: list[Any] = []

    def shared(*asked: Any) -> Any:
        given.append(asked)
        return np.full(4, 3.0)

    monkeypatch.setattr(cka, "_compute_hsic", shared)
    found = cka.compute(pair)[""]
    assert found[0] == 0.5 and np.isnan(found[1:]).all()
    assert given == [(pair.first, *grams)]


def test_kurtosis_of_dimensions_that_are_flat_constant_or_heavy() -> None:
    """By hand: two values equally often have −2; one of four has 1/3 + 3 − 4 … as central moments say."""
    flat = np.array([1.0, -1, 1, -1, 1, -1, 1, -1])
    constant = np.full(8, 1e9)
    constant[3] += 1e-4
    x = np.stack([constant, flat, flat * 2 + 5], 1)
    group = np.arange(8) // 2
    found = kurtosis.compute(SampledVectors(x, group, 4, x.mean(0)))
    assert found[""] == pytest.approx(np.full(5, -2.0))
    assert found["largest"] == pytest.approx(np.full(5, -2.0))
    assert found["dimension"].tolist() in ([1.0], [2.0])
    heavy = flat.copy()
    heavy[0] = 9
    x = np.stack([flat, heavy, constant], 1)
    found = kurtosis.compute(SampledVectors(x, group, 4, x.mean(0)))
    central = heavy - heavy.mean()
    exact = (central**4).mean() / (central**2).mean() ** 2 - 3
    assert found["largest"][0] == pytest.approx(exact)
    assert found["largest"][1] == pytest.approx(-2)
    assert found[""][0] == pytest.approx((exact - 2) / 2)
    assert found["dimension"].tolist() == [1]
    none = kurtosis.compute(SampledVectors(np.ones((4, 2)), group[:4], 4, np.ones(2)))
    assert all(np.isnan(values).all() for values in none.values())


def test_neighbourhoods_need_two_more_than_there_are_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Directions at right angles: ties go to the first; equality is enough for a duplicate."""
    monkeypatch.setattr(neighbours, "NEAR", 0.0)
    x = np.eye(13)
    found = neighbours.compute(sampled(x, np.array([5] * 1 + [8] * 12)))
    assert found["duplicates"][:1] == [1] and found["equal"][0] == 0
    # without the one vector twelve are left, without the twelve one
    assert found["duplicates"][1] == 1 and math.isnan(found["duplicates"][2])
    # the first eleven are among the ten nearest of all others or nearly so
    counts = np.array([12.0] * 10 + [10.0] + [0.0] * 2)
    assert found["largest"][0] == 1
    assert found["never"][0] == pytest.approx(2 / 13)
    deviation = counts - counts.mean()
    skewness = (deviation**3).mean() / (deviation**2).mean() ** 1.5
    assert found["hubness"][0] == pytest.approx(skewness)
    few = neighbours.compute(sampled(np.eye(12)[:11], np.zeros(11, dtype=np.int64)))
    assert all(math.isnan(values[0]) for values in few.values())
    assert math.isnan(neighbours._compute_skewness(np.ones(3)))


def test_intrinsic_dimension_of_points_by_hand() -> None:
    """Distances 1 and 2, or 1 and 3; equal vectors of two groups stay if one of these goes."""
    points = np.array([[0.0], [1.0], [3.0]])
    # nearest and next: 1 and 3; 1 and 2; 2 and 3
    x = np.concatenate([points, points[:1]])
    sample = SampledVectors(x, np.array([2, 2, 6, 6]), 9, x.mean(0))
    found = twonn.compute(sample)
    ratios = np.log([3, 2, 1.5])
    assert found["likelihood"][0] == pytest.approx(2 / ratios.sum())
    assert found["distinct"].tolist() == [0.75, 1, 1]
    assert np.isnan(found["likelihood"][1:]).all()
    first = np.sort(ratios)[:2]
    y = [-math.log(1 - 1 / 3), -math.log(1 - 2 / 3)]
    assert found[""][0] == pytest.approx((first @ y) / (first @ first))
    _, group = twonn._find_distinct(sample)
    assert group.tolist() == [twonn.SEVERAL, 2, 6]
    # a dense group: without it the nearest of what is left are found again
    dense = np.concatenate([draw_array(40, 2) * 1e-3, draw_array(6, 2, seed=1)])
    dense[40] = 0
    sample = SampledVectors(dense, np.repeat([0, 1], [40, 6]), 2, dense.mean(0))
    alone = twonn.reference([dense[40:]])
    found = twonn.compute(sample)
    assert found["likelihood"][1] == pytest.approx(alone["likelihood"])
    assert found[""][1] == pytest.approx(alone[""])


@pytest.mark.parametrize("d", [1, 3])
def test_even_directions_have_the_uniformity_of_a_closed_form(d: int) -> None:
    """On a line half of the pairs are 2 apart; on a sphere the cosine is even over [−1, 1]."""
    found = uniformity.compute(sampled(draw_array(6, d)))["isotropic"]
    exact = {
        1: math.log((1 + math.exp(-8)) / 2),
        3: math.log(math.exp(-4) * math.sinh(4) / 4),
    }
    assert found == pytest.approx(np.full(len(found), exact[d]))
    same = uniformity.compute(sampled(np.ones((5, 3)) * np.arange(1, 6)[:, None]))[""]
    assert same[0] == 0 and not (same > 0).any()


def test_what_is_left_between_two_clouds_after_the_best_rotation() -> None:
    turn = np.linalg.qr(draw_array(3, 3, seed=5))[0]
    x = draw_array(8, 3) + 4
    distance = procrustes._compute_distance
    assert distance(x, 7 * x @ turn - 3) == pytest.approx(0, abs=1e-12)
    assert distance(x[:2], x[:2] * 5 + 1) == pytest.approx(0, abs=1e-12)
    flat = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    other = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    assert distance(flat, other + 9) == pytest.approx(2)
    for pair in ((x[:1], x[:1]), (x, np.ones((8, 2)))):
        assert math.isnan(distance(*pair))
    y = draw_array(8, 5, seed=2) + x @ draw_array(3, 5, seed=3)
    assert distance(x, y) == pytest.approx(procrustes.reference([(x, y)])[""])
    reads = procrustes.METRIC.reads
    assert (reads.most, reads.groups) == (2048, 8)  # type: ignore[attr-defined]


# ---- sums ------------------------------------------------------------------------------------------------------------


def totals_of(**terms: Any) -> Totals:
    """Sums of one group of two that is all there is."""
    return Totals({name: np.stack([x, np.zeros_like(x)]) for name, x in terms.items()})


def test_the_spectrum_by_hand_from_three_variances() -> None:
    """Variances 6, 3 and 1 around a mean; one head has a moment that is not finite, one no variance."""
    variances, mean = np.array([6.0, 3.0, 1.0]), np.array([2.0, 0.0, -1.0])
    n = 5.0
    moment = n * (np.diag(variances) + np.outer(mean, mean))
    broken = moment.copy()
    broken[0, 1] = np.nan
    still = n * np.outer(mean, mean)
    # one direction has nearly all of a variance that is below the resolution
    little = still + n * np.diag([6e-7, 6e-7, 6e-7])
    found = spectrum.compute(
        totals_of(
            moment_n=np.array([n, n, n, 1.0, n]),
            moment_vector=np.array([mean * n] * 3 + [mean] + [mean * n]),
            moment=np.stack([moment, broken, still, np.outer(mean, mean), still * 0 + little * 1]),
        )
    )  # fmt: skip
    values = {name: x[0] for name, x in found.items()}
    p = variances / 10
    q = np.sqrt(variances) / np.sqrt(variances).sum()
    whole = np.linalg.eigvalsh(moment / n)
    w = np.sqrt(whole) / np.sqrt(whole).sum()
    exact = {
        "effective_rank": np.exp(-(q * np.log(q)).sum()),
        "effective_rank_eigenvalues": np.exp(-(p * np.log(p)).sum()),
        "effective_rank_uncentred": np.exp(-(w * np.log(w)).sum()),
        "participation_ratio": 1 / (p**2).sum(),
    }
    for name, value in exact.items():
        assert values[name][0] == pytest.approx(value), name
        assert np.isnan(values[name][1]) and np.isnan(values[name][3])
        if name != "effective_rank_uncentred":
            assert np.isnan(values[name][2])
    assert values["explained"][0] == pytest.approx([0.6, 0.9, 1, 1, 1, 1, 1])
    # 1.8e-6 of 5: below the resolution of 1e-6 · 5 = 5e-6
    assert np.isnan(values["participation_ratio"][4])
    delta = np.linalg.norm(math.sqrt(3) * variances / np.linalg.norm(variances) - 1)
    delta /= math.sqrt(2 * (3 - math.sqrt(3)))
    score = ((3 - delta**2 * (3 - math.sqrt(3))) ** 2 / 3 - 1) / 2
    assert values["isoscore"][0] == pytest.approx(score)
    assert "cosine_square" not in values
    ends = spectrum.isoscore(np.array([[5.0, 5, 5], [5, 0, 0]]))
    assert ends.tolist() == pytest.approx([1, 0], abs=1e-12)
    assert np.isnan(spectrum.isoscore(np.array([[5.0]]))).all()


def test_a_variance_spread_over_dimensions_counts_as_a_whole() -> None:
    """Each of 40 variances is below the resolution, all together are above."""
    mean = np.zeros(40)
    mean[0] = 1
    for variance, is_defined in ((1e-7, True), (1e-8, False)):
        moment = 9 * (np.eye(40) * variance + np.outer(mean, mean))
        found = spectrum.compute(
            totals_of(
                moment_n=np.array([9.0]), moment_vector=mean[None] * 9, moment=moment[None]
            )
        )["participation_ratio"][0]  # fmt: skip
        assert math.isfinite(found[0]) == is_defined


def test_the_mean_square_cosine_of_pairs() -> None:
    u = draw_array(6, 3)
    u /= np.linalg.norm(u, axis=1, keepdims=True)
    found = spectrum.compute(
        totals_of(
            moment_n=np.array([6.0]), moment_vector=u.sum(0)[None],
            moment=(u.T @ u)[None], unit_moment=(u.T @ u)[None],
        )
    )["cosine_square"]  # fmt: skip
    square = base.leave_diagonal_out((u @ u.T) ** 2)
    assert found[0, 0] == pytest.approx(3 * square.mean())


def test_cosines_of_subsets_are_of_pairs_of_one_family() -> None:
    """Thirteen subsets in two heads, some of one vector or none."""
    sizes = [3, 1, 0, 2, 2, 1, 0, 4, 2, 3, 1, 2, 5]
    draws = [
        [draw_array(n, 3, seed=10 * h + k) for k, n in enumerate(sizes)] for h in (0, 1)
    ]
    units = [[x / np.linalg.norm(x, axis=1, keepdims=True) for x in of_head] for of_head in draws]  # fmt: skip
    n = np.array([[float(size)] * 2 for size in sizes])
    total = np.array([[of_head[k].sum(0) for of_head in units] for k in range(13)])
    found = group_cosine.compute(totals_of(subset_n=n, subset_unit=total))[""][0]
    families = [range(3), range(3, 8), range(8, 13)]
    pairs = [(a, b) for family in families for a in family for b in family if a <= b]
    assert found.shape == (2, len(pairs)) and pairs == group_cosine.PAIRS
    for head in (0, 1):
        for place, (a, b) in enumerate(pairs):
            cosine = units[head][a] @ units[head][b].T
            if a == b:
                cosine = base.leave_diagonal_out(cosine)
            if cosine.size:
                assert found[head, place] == pytest.approx(cosine.mean())
            else:
                assert math.isnan(found[head, place])
    labels = group_cosine.METRIC.labels_of("", len(pairs))
    assert labels[:3] == ("special × special", "special × first", "special × content")
    assert labels[-1] == "position 128+ × position 128+" and len(labels) == 36
    assert labels[7] == "frequency 1 × frequency 2"


def test_images_and_texts_of_unlike_numbers() -> None:
    images, texts = draw_array(5, 3) + 1, draw_array(2, 3, seed=1) - 0.5
    sides = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images, texts)]
    found = modality_gap.compute(
        totals_of(
            modality_n=np.array([[5.0], [2.0]]),
            modality_unit=np.array([[side.sum(0)] for side in sides]),
        )
    )
    exact = modality_gap.reference([(images, texts)])
    assert set(found) == {"distance", "cosine", "image", "text", "across"}
    for name, value in found.items():
        assert value[0, 0] == pytest.approx(exact[name]), name
    assert exact["image"] != pytest.approx(exact["text"], abs=0.05)


@pytest.mark.parametrize("rows", [1, 2, 5, 9])
def test_the_partition_function_is_summed_over_all_rows(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """In blocks of any size, along and against each direction; of numbers that exp could not hold."""
    monkeypatch.setattr(partition, "ROWS", rows)
    whole = draw_array(5, 3) + np.array([0.3, 0, 0])
    matrix = whole.astype(np.float32)
    kept = partition.sum_partition(matrix)
    assert kept["rows"].tolist() == [5] and kept["log_z"].shape == (1, 6)
    found = partition.compute(Totals(kept))[""]
    exact = partition.reference([matrix.astype(np.float64)])[""]
    assert found.tolist() == [pytest.approx(exact)] and 0 < exact < 1
    large = partition.sum_partition(matrix * 1e4)
    assert np.isfinite(large["log_z"]).all()
    np.testing.assert_array_equal(matrix, whole.astype(np.float32))
    nothing = partition.sum_partition(np.zeros((0, 3), np.float32))
    assert nothing["rows"].tolist() == [0] and np.isfinite(nothing["log_z"]).all()


def test_logits_of_heads_without_any_are_undefined_and_the_smallest_has_its_sign() -> (
    None
):
    data: Any = SimpleNamespace(
        totals=totals_of(
            largest_logit=np.array([6.0, -4.0, 0.0]),
            logit_sequences=np.array([3.0, 2.0, 0.0]),
        ),
        extremes={
            "logit": (np.array([5.0, -1.0, -np.inf]), None),
            "negative_logit": (np.array([7.0, 2.0, -np.inf]), None),
        },
    )
    found = {name: x[0].tolist() for name, x in logits.compute(data).items()}
    assert found["typical"][:2] == [2, -2] and math.isnan(found["typical"][2])
    assert found["largest"][:2] == [5, -1] and math.isnan(found["largest"][2])
    assert found["smallest"][:2] == [-7, -2] and math.isnan(found["smallest"][2])
    data.extremes = {}
    assert set(logits.compute(data)) == {"typical"}


def test_contributions_of_dimensions_and_the_shares_of_the_largest() -> None:
    """Of three dimensions one contributes less than nothing; pairs of different groups have their own mean."""
    x = [np.array([[1.0, 0.2, 0.5], [0.9, -0.3, 0.4]]), np.array([[1.2, 0.3, -0.6]])]
    units = [u / np.linalg.norm(u, axis=1, keepdims=True) for u in x]
    totals = Totals(
        {
            "n": np.array([[[2.0]], [[1.0]]]),
            "unit": np.array([[[u.sum(0)]] for u in units]),
            "unit_square": np.array([[[np.square(u).sum(0)]] for u in units]),
        }
    )
    found = {
        name: value[0, 0, 0] for name, value in mean_cosine.compute(totals).items()
    }
    u = np.concatenate(units)
    pairs = [(0, 1), (0, 2), (1, 2)]
    by_dimension = np.mean([u[a] * u[b] for a, b in pairs], axis=0)
    assert found["contribution"] == pytest.approx(by_dimension)
    assert found[""] == pytest.approx(by_dimension.sum())
    assert by_dimension.min() < 0
    largest = np.sort(by_dimension)[::-1]
    shares = [largest[0], largest.sum(), largest.sum()] / by_dimension.sum()
    assert found["top_share"] == pytest.approx(shares)
    assert found["between"] == pytest.approx((u[0] @ u[2] + u[1] @ u[2]) / 2)
    assert found["isotropic_q95"] == pytest.approx(q95(3))
    bare = Totals({name: totals.groups(name) for name in ("n", "unit")})
    assert set(mean_cosine.compute(bare)) == {"", "between", "isotropic_q95"}


# ---- classes ---------------------------------------------------------------------------------------------------------


def test_cosines_of_pairs_of_classes_leave_out_each_vector_with_itself() -> None:
    sizes = (4, 1, 2)
    units = [draw_array(n, 3, seed=n) for n in sizes]
    units = [u / np.linalg.norm(u, axis=1, keepdims=True) for u in units]
    found = class_direction.compute(
        totals_of(
            class_n=np.array(sizes, dtype=np.float64),
            class_unit=np.array([u.sum(0) for u in units]),
        )
    )[""][0]
    exact = class_direction.reference(units)
    names = class_direction.name_pairs(("0", "1", "2"))
    for name, value in zip(names, found, strict=True):
        if name == "1 × 1":
            assert math.isnan(value) and name not in exact
        else:
            assert value == pytest.approx(exact[name]), name
    assert names == ("0 × 0", "0 × 1", "0 × 2", "1 × 1", "1 × 2", "2 × 2")


def test_dimensions_count_classes_of_two_and_more() -> None:
    """Four classes of which one has a single text: at most two dimensions; short vectors count as long ones."""
    x = np.concatenate([np.eye(4)[[0, 0, 1, 1, 2, 2]], [[0, 0, 0, 1.0]]])
    x = (x + 0.01 * draw_array(7, 4)) * np.array([1, 9, 1e-3, 5, 1, 2, 1])[:, None]
    labels = np.array([0, 0, 1, 1, 2, 2, 3])
    assert class_direction.dimensions(x, labels, 4) == pytest.approx(2, abs=1e-2)
    cosine = class_direction.cosine_to_classes(x, labels, 4)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    assert cosine[2, 1] == pytest.approx(unit[2] @ unit[3])
    assert math.isnan(cosine[6, 3]) and cosine[0, 3] == pytest.approx(unit[0] @ unit[6])
    nearly = np.ones((3, 4)) + np.array([[0, 0, 0, 0], [1e-7, 0, 0, 0], [1.0, 0, 0, 0]])
    assert class_direction.are_equal(nearly[:2])
    assert not class_direction.are_equal(nearly)


def test_intervals_of_separability_count_units_in_their_groups() -> None:
    """All right: Wilson's interval of three units, not of six texts; dimensions end at one less than classes."""
    x = np.concatenate([np.eye(3)[[0, 0, 1, 1, 2, 2]]] * 2) + 0.01 * draw_array(12, 3)
    labels = np.array([0, 0, 1, 1, 2, 2] * 2)
    units = np.array([0] * 3 + [1] * 3 + [2] * 3 + [3] * 3)
    by_unit = class_direction.separability(x, labels, 3, 32, units)
    alone = class_direction.separability(x, labels, 3, 32)
    z = 1.959963984540054
    for found, n in ((by_unit, 4), (alone, 12)):
        assert found["nearest"].value == 1 == found["nearest"].high
        assert found["nearest"].low == pytest.approx(1 / (1 + z * z / n))
        assert found["auc.1"].low <= found["auc.1"].value <= found["auc.1"].high
        assert found["dimensions"].high <= 2
    same = np.ones((12, 3))
    replicates = class_direction.separability_replicates(same, labels, 3, 32, units)
    assert replicates.shape == (5, 6) and np.isnan(replicates).all()
    few = class_direction.separability_replicates(x, labels, 3, 2)
    assert few.shape == (3, 6)


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "metric", "value"),
    [
        ("anisotropy", "mean_cosine", ""),
        ("Average-Cosine  similarity", "mean_cosine", ""),
        ("average_cosine", "mean_cosine", ""),
        ("cosine similarity", "mean_cosine", ""),
        ("intra-sentence similarity", "intra_sequence", ""),
        ("isotropy", "partition", ""),
        ("Partition Function", "partition", ""),
        ("attention entropy", "attention", ""),
        ("entropy", "attention", ""),
        ("linear CKA", "cka", ""),
        (" Intrinsic dimension ", "twonn", ""),
        ("erank", "spectrum", "spectrum.effective_rank"),
        ("effective rank", "spectrum", "spectrum.effective_rank"),
        ("RankMe", "spectrum", "spectrum.effective_rank_uncentred"),
        ("participation ratio", "spectrum", "spectrum.participation_ratio"),
        ("IsoScore", "spectrum", "spectrum.isoscore"),
        ("explained variance", "spectrum", "spectrum.explained"),
        ("drift", "drift", ""),
        ("Norms", "norms", ""),
        ("My Thing", "My Thing", ""),
        ("my.module:THING", "my.module:THING", ""),
        ("isotropy:X", "isotropy:X", ""),
    ],
)  # fmt: skip
def test_a_name_of_the_literature_means_a_metric_or_one_of_its_values(
    name: str, metric: str, value: str
) -> None:
    assert metrics.resolve_alias(name) == (metric, value)


def test_a_metric_of_a_package_comes_before_a_word_of_the_literature() -> None:
    with registered(replace(FOREIGN, name="isotropy")):
        assert metrics.resolve_alias("isotropy") == ("isotropy", "")
        assert metrics.find_metric_by_name("isotropy").name == "isotropy"
    assert metrics.resolve_alias("isotropy") == ("partition", "")


def test_who_names_no_metric_hears_what_is_meant() -> None:
    for name, message in (
        (
            "anisotropy",
            "expected the name of a metric"
            "; got 'anisotropy', which is called mean_cosine here. "
            "Cure: name mean_cosine",
        ),
        (
            "RankMe",
            "expected the name of a metric"
            "; got 'RankMe', which is the value spectrum.effective_rank_uncentred of spectrum here. "
            "Cure: name spectrum",
        ),
        (
            "driftt",
            "expected the name of a metric"
            "; got 'driftt'. Cure: did you mean drift?"
            "; one of your own: module:NAME, or anisoscope.register(metric)",
        ),
        (
            "isoscor",
            "expected the name of a metric"
            "; got 'isoscor'. Cure: did you mean isoscore?"
            "; one of your own: module:NAME, or anisoscope.register(metric)",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            metrics.find_metric_by_name(name)
        assert str(caught.value) == message
    with pytest.raises(
        UsageError,
        match=r"expected a Metric in math:pi; got float. Cure: declare it: NAME = Metric\(…\)",
    ):
        metrics.find_metric_by_name("math:pi")
    with pytest.raises(UsageError, match="metrics, or their names; got 3"):
        metrics.list_metric_names(3)


def test_metrics_are_chosen_in_one_order_ours_first() -> None:
    """By name, whatever order they are named in; without names those of the panels, ours alone."""
    mine = replace(FOREIGN, name="aaa")
    with registered(mine):
        chosen = metrics.choose_metrics(["norms", "aaa", "drift", "norms"], ["hidden"])
        assert [metric.name for metric in chosen] == ["drift", "norms", "aaa"]
        object.__setattr__(mine, "panel", "hidden")
        of_panel = [metric.name for metric in metrics.choose_metrics([], ["hidden", "class"])]  # fmt: skip
        assert set(of_panel) == {
            "calibrated", "class_direction", "drift", "group_cosine", "intra_sequence",
            "mean_cosine", "norms", "partition",
        }  # fmt: skip
        assert metrics.list_metric_names(mine) == ("aaa",)
        assert metrics.list_metric_names("drift") == ("drift",)
        assert metrics.list_metric_names(["drift", mine, "x"]) == ("drift", "aaa", "x")
        again = replace(FOREIGN, name="aaa")
        assert metrics.list_metric_names([again]) == ("aaa",)
        assert metrics.find_all()["aaa"] is again
    assert "aaa" not in metrics.find_all()


def test_a_declaration_is_kept_as_sets_and_names_its_parts() -> None:
    made = Metric(
        "m1_a", Vectors(), drift.compute, needs=["n", "norm"], invariant=["order"],  # type: ignore[arg-type]
        extremes=["x"], bounds={"": (0.0, 1.0), "b": lambda data: (data, 2.0)},  # type: ignore[arg-type]
        components={"c": ("p", "q"), "d": lambda names: tuple(f"of {n}" for n in names)},
    )  # fmt: skip
    assert made.needs == {"n", "norm"} and made.extremes == {"x"}
    assert isinstance(made.needs, frozenset) and isinstance(made.extremes, frozenset)
    assert isinstance(made.invariant, frozenset)
    assert made.range_of("", None) == (0, 1) and made.range_of("b", -3.0) == (-3, 2)
    assert made.range_of("other", None) == (-math.inf, math.inf)
    assert made.labels_of("c", 2) == ("p", "q")
    assert made.labels_of("d", 2, ("z", "a")) == ("of z", "of a")
    assert made.labels_of("e", 3) == ("0", "1", "2")
    assert made.axes == ("policy", "head") and not made.first_policy
    moments = Metric("m", Vectors(), drift.compute, needs=frozenset({"moment"}))
    assert moments.axes == ("head",) and moments.first_policy
    assert made.documentation == drift.__doc__

    def compute(_: Any) -> Any:
        """Of a notebook."""

    compute.__module__ = "__main__"
    assert replace(made, compute=compute).documentation == "Of a notebook."
    compute.__module__ = "no.such.module"
    assert replace(made, compute=compute).documentation == "Of a notebook."
    compute.__doc__ = None
    assert replace(made, compute=compute).documentation == ""


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"name": "1st"},
            "expected a name for the metric, which becomes its name in the records"
            "; got '1st'. Cure: use small letters, digits and _, as in mean_cosine",
        ),
        (
            {"name": "Ab"},
            "expected a name for the metric, which becomes its name in the records"
            "; got 'Ab'. Cure: use small letters, digits and _, as in mean_cosine",
        ),
        (
            {"reads": Vectors},
            "expected what foreign reads: Vectors(), Sample(), …"
            "; got <class 'anisoscope.reads.vectors.Vectors'>, a class: call it. Cure: see anisoscope.reads",
        ),
        (
            {"reads": 3},
            "expected what foreign reads: Vectors(), Sample(), …"
            "; got 3. Cure: see anisoscope.reads",
        ),
        (
            {"compute": {}},
            "expected a function as `compute` of foreign"
            "; got {}. Cure: pass the function itself, without ()",
        ),
        (
            {"reads": Sample(), "needs": ["n"]},
            "expected `needs` of foreign empty, since it reads no sums"
            "; got 'n'. Cure: leave it out",
        ),
        (
            {"invariant": ["ordr"]},
            "expected `invariant` of foreign among order, rotation, scaling, translation"
            "; got 'ordr'. Cure: did you mean order?",
        ),
    ],
)
def test_a_declaration_that_cannot_be_is_refused_in_whole_sentences(
    how: Any, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        replace(FOREIGN, **how)
    assert str(caught.value) == message


def test_vectors_are_scaled_along_their_own_axis() -> None:
    x = np.array([[[3.0, 4.0], [0.0, 0.0]], [[0.0, -2.0], [6.0, 8.0]]])
    assert base.normalise(x).tolist() == [[[0.6, 0.8], [0, 0]], [[0, -1], [0.6, 0.8]]]
    found = base.ratio(np.array([3.0, 3.0]), np.array([-2.0, 0.0]))
    assert found[0] == -1.5 and math.isnan(found[1])
    units = [(np.full((n, 1), n), np.full((n, 1), -n)) for n in (2, 1)]
    first, second = base.concatenate_pairs(units)
    assert first[:, 0].tolist() == [2, 2, 1] and second[:, 0].tolist() == [-2, -2, -1]


def test_each_value_of_attention_has_its_own_denominator() -> None:
    terms = {
        "rows": 4.0, "normalised_rows": 3.0, "pairs": 10.0, "row_sequences": 2.0, "entropy": 6.0,
        "row_max": 2.0, "row_min": 0.5, "first_mass": 1.0, "row_median": 0.8, "entropy_normalised": 1.5,
        "score": -5.0, "row_similarity": 0.5,
    }  # fmt: skip
    sums = {name: np.array([x, 0.0]) for name, x in terms.items()}
    found = attention.compute(
        totals_of(**sums, score_histogram=np.array([[7.0, 3.0]] * 2))
    )
    assert {name: value[0].tolist()[0] for name, value in found.items()} == {
        "entropy": 1.5, "row_max": 0.5, "row_min": 0.125, "first_mass": 0.25, "row_median": 0.2,
        "entropy_normalised": 0.5, "score": -0.5, "row_similarity": 0.25, "rows_seeing_one_key": 1,
        "score_histogram": [7, 3],
    }  # fmt: skip
    assert math.isnan(found["score"][0, 1]) and found["rows_seeing_one_key"][0, 1] == 0
    del sums["row_median"]
    assert not {"row_median", "score_histogram"} & set(
        attention.compute(totals_of(**sums))
    )


def test_attention_with_a_mean_taken_away_rises_from_the_plain_one() -> None:
    numbers = {
        "plain.entropy": 4.0, "plain.rows": 8.0, "plain.entropy_normalised": 9.0, "plain.normalised_rows": 9.0,
        "query.entropy": 6.0, "query.rows": 4.0, "query.entropy_normalised": 3.0, "query.normalised_rows": 5.0,
        "key.entropy": 1.0, "key.rows": 10.0, "key.entropy_normalised": 1.0, "key.normalised_rows": 8.0,
    }  # fmt: skip
    sums = {name: np.array([x]) for name, x in numbers.items()}
    found = centred_attention.compute(totals_of(**sums))
    assert {name: float(value[0, 0]) for name, value in found.items()} == {
        "query": 1.5, "query_normalised": 0.6, "query_rise": 1.0,
        "key": 0.1, "key_normalised": 0.125, "key_rise": -0.4,
    }  # fmt: skip


def test_drift_norms_and_similarity_by_hand() -> None:
    sums = totals_of(
        n=np.array([[4.0]]), vector=np.array([[[6.0, 8.0]]]), norm=np.array([[20.0]]),
        norm_square=np.array([[112.0]]), sequence_cosine=np.array([[0.9]]), sequences=np.array([[3.0]]),
    )  # fmt: skip
    found = {name: float(x[0, 0, 0]) for name, x in drift.compute(sums).items()}
    assert found == {"": 2.5, "share": 0.5}
    found = {name: float(x[0, 0, 0]) for name, x in norms.compute(sums).items()}
    # (112 − 4 · 25) / 3
    assert found == {"mean": 5, "std": 2, "variation": 0.4}
    assert intra_sequence.compute(sums)[""][0, 0, 0] == pytest.approx(0.3)
    one = totals_of(
        n=np.array([1.0, 0]), norm=np.array([3.0, 0]), norm_square=np.array([9.0, 0])
    )
    found = {name: value[0] for name, value in norms.compute(one).items()}
    assert (
        found["mean"][0] == 3
        and np.isnan(found["std"]).all()
        and np.isnan(found["variation"]).all()
    )


def test_the_first_direction_is_the_column_of_the_largest_eigenvalue() -> None:
    moments = np.stack(
        [np.array([[2.0, 1, 0], [1, 2, 0], [0, 0, 0.5]]), np.zeros((3, 3))]
    )
    largest, direction = common_direction.find_first_direction(moments)
    assert largest[0] == pytest.approx(3) and math.isnan(largest[1])
    assert np.abs(direction[0]) == pytest.approx([0.5**0.5, 0.5**0.5, 0])
    assert np.isnan(direction[1]).all()


def test_a_quantile_just_behind_the_sorted_cosines_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 100 pairs ten are sorted, and the one at 90 % is the eleventh from above."""
    monkeypatch.setattr(floor, "FEW", 0.1)
    x = draw_array(20, 3)
    group = np.repeat([2, 5], 10)
    found = floor.compute(SampledVectors(x, group, 6, x.mean(0)))
    exact = floor.reference([x[:10], x[10:]])
    for name, value in exact.items():
        assert found[name][0] == pytest.approx(value)
        assert np.isnan(found[name][1:]).all()


def test_the_dimension_of_the_heaviest_tail_is_that_of_all_data() -> None:
    x = draw_array(32, 3)
    x[31, 2], x[0, 0] = 99, 30
    group = np.repeat([0, 1, 2, 3], 8)
    found = kurtosis.compute(SampledVectors(x, group, 4, x.mean(0)))
    assert found["dimension"].tolist() == [2]
    assert found["largest"][4] < found["largest"][0]


def test_a_group_more_or_less_changes_the_interval_of_separability() -> None:
    """A zero vector lies at the mean of two opposite ones, which are not equal for that."""
    x = draw_array(18, 3) + np.eye(3)[np.arange(18) % 3]
    labels = np.arange(18) % 3
    found = class_direction.separability(x, labels, 3, 4)
    replicates = class_direction.separability_replicates(x, labels, 3, 4)
    assert len(replicates) == 5
    exact = jackknife_interval(replicates[:, 0], bounds=(0.0, 1.0), counted=18)
    assert found["auc"].low == pytest.approx(float(exact.low))
    assert found["auc"].high == pytest.approx(float(exact.high))
    other = class_direction.separability(x, labels, 3, 9)["auc"]
    assert other.low != pytest.approx(float(found["auc"].low), abs=1e-6)
    assert not class_direction.are_equal(np.array([[1.0, 0], [-1, 0], [0, 0]]))


def test_directions_of_classes_fill_at_most_one_dimension_less_than_classes() -> None:
    """Three classes far apart lie nearly in a plane with equal extents; the interval ends below 2."""
    x = draw_array(18, 3, seed=2) + 3 * np.eye(3)[np.arange(18) % 3]
    labels = np.arange(18) % 3
    found = class_direction.separability(x, labels, 3, 4)["dimensions"]
    replicates = class_direction.separability_replicates(x, labels, 3, 4)[:, 2]
    exact = jackknife_interval(replicates, bounds=(1.0, 2.0))
    assert (found.low, found.high) == (
        pytest.approx(exact.low),
        pytest.approx(exact.high),
    )
    assert 1 < found.low < found.value < found.high < 2


def test_a_metric_of_a_module_takes_the_place_of_another_of_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = ModuleType("module_of_a_metric")
    module.METRIC = replace(FOREIGN, name="bbb")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "module_of_a_metric", module)
    with registered(replace(FOREIGN, name="bbb")):
        found = metrics.find_metric_by_name("module_of_a_metric:METRIC")
        assert found is module.METRIC and metrics.find_all()["bbb"] is found
        assert metrics.find_metric_by_name("module_of_a_metric:METRIC") is found


def test_the_partition_function_is_taken_along_and_against_each_eigenvector() -> None:
    matrix = draw_array(6, 3) + np.array([0.5, 0, 0])
    found = partition.sum_partition(matrix)["log_z"][0]
    axes = np.linalg.eigh(matrix.T @ matrix)[1].T
    for k, axis in enumerate(axes):
        both = [math.log(np.exp(matrix @ way).sum()) for way in (axis, -axis)]
        assert sorted(found[[k, 3 + k]]) == pytest.approx(sorted(both))


def test_parts_of_scores_by_hand() -> None:
    """Two queries that see two keys each, of one dimension: q is 1 and 3, k is 2 and −1, and more rows than keys."""
    numbers = {
        "rows": np.array([2.0]), "query": np.array([[4.0]]), "keys": np.array([4.0]), "key": np.array([[2.0]]),
        "query_moment": np.array([[[10.0]]]), "row_variance": np.array([9 / 4 * (1 + 9)]),
        "row_lean": np.array([[9 / 4 * (1 + 3)]]), "row_spread": np.array([[[9 / 2]]]),
    }  # fmt: skip
    found = {
        name: float(x[0, 0])
        for name, x in score_terms.compute(totals_of(**numbers)).items()
    }
    # Q̄ = 2, K̄ = .5; q·K̄ is .5 and 1.5; the variance of keys in a row is 9/4
    assert found["mean_score"] == 1 and found["between_rows"] == pytest.approx(0.25)
    assert found["within_rows"] == pytest.approx(9 / 4 * 5)
    assert found["mean_query"] == pytest.approx(9 / 4 * 4)
    assert found["centred"] == pytest.approx(9 / 4)
    assert found["mean_query_share"] == pytest.approx(0.8)
    assert found["centred_share"] == pytest.approx(0.2)
