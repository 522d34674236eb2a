"""Small decisions of metrics and of what they read: ties, ends, groups left out, which of two layers or runs."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from random_numbers import draw_array

from anisoscope import metrics
from anisoscope.axes import Site
from anisoscope.metrics import (
    base,
    class_direction,
    massive,
    neighbours,
    sinks,
    spectrum,
)
from anisoscope.reads import LayerPair, Vectors
from anisoscope.reads.base import Batching, Gathered, pad, pad_pairs, split_batches
from anisoscope.reads.pairs import SampledPair
from anisoscope.reads.run_pairs import (
    RunPair,
    SampledStack,
    _parse_site,
    read_across,
    read_sampled_stacks,
)
from anisoscope.reads.sample import (
    SampledVectors,
    find_reservoir,
    is_usable,
    leave_out_groups,
    select_sample,
)
from anisoscope.sums import jackknife
from anisoscope.sums.groups import (
    Sums,
    Totals,
    sum_rows,
    sum_single_vectors,
    sum_vectors,
)
from anisoscope.sums.reservoir import Reservoir, draw_tokens, hash_tokens

# ---- arithmetic that metrics share


def test_ratios_directions_and_pairs():
    found = base.ratio(np.array([1.0, 0.0, 2.0]), np.array([2.0, 0.0, 0.0]))
    assert found[0] == 0.5 and np.isnan(found[1:]).all()
    unit = base.normalise(np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert unit.tolist() == [[0.6, 0.8], [0, 0]]
    assert base.dot(
        np.array([[1.0, 2], [3, 4]]), np.array([[5.0, 6], [7, 8]])
    ).tolist() == [17, 53]
    assert base.leave_diagonal_out(np.arange(9).reshape(3, 3)).tolist() == [
        1,
        2,
        3,
        5,
        6,
        7,
    ]
    first, second = base.concatenate_pairs(
        [(np.ones((1, 2)), np.zeros((2, 2))), (np.ones((2, 2)) * 2, np.ones((1, 2)))]
    )
    assert first[:, 0].tolist() == [1, 2, 2] and second[:, 0].tolist() == [0, 0, 1]


# ---- classes


def test_an_area_under_the_curve_counts_ties_half():
    values = np.array([3.0, 1.0, 2.0, 2.0, 0.0])
    positive = np.array([True, False, True, False, False])
    assert class_direction.auc(values, positive) == (3 + 1 + 0.5 + 1) / 6
    assert class_direction.auc(values, ~positive) == pytest.approx(1 - 5.5 / 6)
    assert math.isnan(class_direction.auc(values, values > 9))
    assert math.isnan(class_direction.auc(values, values < 9))


LABELS = np.array([0, 0, 0, 1, 1, 2, 3, 3])


def test_a_vector_is_left_out_of_its_own_class_alone():
    x = draw_array(8, 4)
    x[1] = 0
    unit = base.normalise(x)
    found = class_direction.cosine_to_classes(x, LABELS, 5)
    for text in range(8):
        for c in range(5):
            others = [i for i in range(8) if LABELS[i] == c and i != text]
            total = unit[others].sum(0) if others else np.zeros(4)
            if not others or not np.linalg.norm(total):
                assert math.isnan(found[text, c])
            else:
                expected = unit[text] @ total / np.linalg.norm(total)
                assert found[text, c] == pytest.approx(expected)
    one = class_direction.cosine_to_one(x, 2)
    assert one.tolist() == pytest.approx((unit @ unit[2]).tolist()) and one[2] == 1


def test_separability_is_that_of_classes_of_two_and_more():
    """Each class by itself; the nearest is judged for those that have others; groups are those of units."""
    x = draw_array(8, 4, seed=3) + 2 * np.eye(4)[LABELS]
    cosine = class_direction.cosine_to_classes(x, LABELS, 4)
    whole = class_direction.separability_replicates(x, LABELS, 4, groups=3)
    aucs = [class_direction.auc(cosine[:, c], c == LABELS) for c in (0, 1, 3)]
    assert whole.shape == (4, 7)
    assert whole[0, [3, 4, 6]].tolist() == pytest.approx(aucs) and np.isnan(whole[0, 5])
    assert whole[0, 0] == pytest.approx(np.mean(aucs))
    filled = np.where(np.isnan(cosine), -2, cosine)
    right = (filled.argmax(1) == LABELS)[LABELS != 2]
    assert whole[0, 1] == pytest.approx(right.mean())
    assert whole[0, 2] == pytest.approx(class_direction.dimensions(x, LABELS, 4))
    for g in range(3):
        kept = np.arange(8) % 3 != g
        alone = class_direction.separability_replicates(x[kept], LABELS[kept], 4, 99)
        np.testing.assert_allclose(whole[1 + g], alone[0])
    units = np.array([4, 4, 7, 7, 9, 9, 4, 7])
    by_unit = class_direction.separability_replicates(x, LABELS, 4, 5, units)
    assert len(by_unit) == 3, "units 4 and 9 are in one group"
    kept = units % 5 != 2
    alone = class_direction.separability_replicates(x[kept], LABELS[kept], 4, 99)
    np.testing.assert_allclose(by_unit[1], alone[0])
    same = np.ones((8, 4)) * np.arange(1, 9)[:, None]
    assert np.isnan(class_direction.separability_replicates(same, LABELS, 4, 3)).all()
    assert class_direction.are_equal(same) and not class_direction.are_equal(x)
    found = class_direction.separability(x, LABELS, 4, 3)
    assert list(found) == [
        "auc",
        "nearest",
        "auc.0",
        "auc.1",
        "auc.2",
        "auc.3",
        "dimensions",
    ]
    assert found["nearest"].value == whole[0, 1] and found["auc.3"].value == whole[0, 6]
    assert found["dimensions"].value == whole[0, 2]


def test_dimensions_of_classes_on_a_line_and_in_the_plane():
    def clouds(*middles):
        rows = [np.array(m) + e for m in middles for e in (0.01 * np.eye(3)[:2])]
        return np.array(rows), np.repeat(np.arange(len(middles)), 2)

    line = clouds([1, 0, 0.0], [-1, 0, 0.0])
    assert class_direction.dimensions(*line, 2) == 1
    plane = clouds([1, 0, 0.0], [0, 1, 0.0], [0, 0, 1.0])
    assert class_direction.dimensions(*plane, 3) == pytest.approx(2, abs=0.01)
    single = np.array([0, 1, 2, 2, 2, 2])
    assert math.isnan(class_direction.dimensions(plane[0], single, 3))
    assert class_direction.name_pairs(["a", "b"]) == ("a × a", "a × b", "b × b")


# ---- neighbours, sinks, largest activations


def test_neighbours_of_some_vectors_are_found_among_those_alone():
    """Also where the group that is left out holds most of what is remembered; ties go to smaller indices."""
    x = np.concatenate([draw_array(60, 5) * 0.05 + 1, draw_array(15, 5, seed=1)])
    unit = base.normalise(x)
    order, cosine = neighbours._find_nearest(unit, neighbours.REMEMBERED)
    kept = np.ones(75, dtype=bool)
    kept[5:60] = False
    near, nearest = neighbours._find_nearest_among_kept(unit, order, cosine, kept)
    places = np.flatnonzero(kept)
    for row, place in enumerate(places):
        of_row = unit[place] @ unit.T
        of_row[place] = -np.inf
        of_row[~kept] = -np.inf
        expected = np.argsort(-of_row, kind="stable")[: neighbours.K]
        assert near[row].tolist() == expected.tolist()
        assert nearest[row] == pytest.approx(of_row.max())
    indices, values = neighbours._find_largest(np.array([[1.0, 3, 3, 2, 3]]), 4)
    assert indices.tolist() == [[1, 2, 4, 3]] and values.tolist() == [[3, 3, 3, 2]]
    assert neighbours._compute_skewness(np.array([0.0, 0, 0, 4])) == pytest.approx(
        1.1547, abs=1e-4
    )


def totals_of(**terms):
    """Sums of two groups that are the same in each: the whole is twice what is given."""
    return Totals({name: np.stack([x, x]) for name, x in terms.items()})


def test_largest_activations_are_named_in_descending_order():
    where = np.zeros((7, 4))
    where[:, 0], where[:, 2], where[:, 3] = range(10, 17), range(20, 27), range(30, 37)
    largest = np.array([1.0, 5.0, 5.0, -np.inf, 9.0, 2.0, 3.0])
    data = SimpleNamespace(
        totals=totals_of(
            activation_sequences=np.array(2.0),
            top=np.array([8.0, 6.0]),
            median=np.array(3.0),
            over_median=np.array(20.0),
            over_sequences=np.array(5.0),
            massive=np.array(1.0),
        ),
        extremes={"activation": (largest, where)},
    )
    found = {name: value[0].tolist() for name, value in massive.compute(data).items()}
    assert found == {
        "top": [4, 3],
        "median": 1.5,
        "over_median": 4,
        "rate": 0.5,
        "largest": [9, 5, 5, 3, 2],
        "largest_dimension": [4, 1, 2, 6, 5],
        "largest_unit": [14, 11, 12, 16, 15],
        "largest_position": [24, 21, 22, 26, 25],
        "largest_token": [34, 31, 32, 36, 35],
    }
    data.extremes = {}
    assert set(massive.compute(data)) == {"top", "median", "over_median", "rate"}


def test_each_value_of_sinks_has_its_own_denominator():
    one = np.ones(1)
    data = SimpleNamespace(
        totals=totals_of(
            key_sequences=4 * one,
            sink_sequences=5 * one,
            value_sequences=8 * one,
            above=np.array([[1.0, 2.0]]),
            first_above=np.array([[3.0, 1.0]]),
            strongest=2 * one,
            strongest_part=np.array([[5.0, 0.0]]),
            part_mass=np.array([[1.0, 3.0]]),
            value_ratio=12 * one,
        ),
        extremes={
            "key_norm": (np.array([7.0]), None),
            "query_norm": (np.array([-np.inf]), None),
        },
    )
    found = {name: value[0].tolist() for name, value in sinks.compute(data).items()}
    assert math.isnan(found.pop("query_norm")[0])
    assert found == {
        "rate": [[0.2, 0.4]],
        "first_rate": [[0.75, 0.25]],
        "strongest": [0.4],
        "at": [[1, 0]],
        "mass": [[0.25, 0.75]],
        "value_norm": [1.5],
        "key_norm": [7],
    }


# ---- sums


def test_sums_of_vectors_are_those_of_each_policy_and_head():
    """Zero vectors and those that are not finite are counted, once, and enter nothing."""
    x = draw_array(3, 2, 6, 4)
    x[0, 1, 2] = 0
    x[1, 0, 1, 3] = np.inf
    masks = np.random.default_rng(5).random((3, 2, 6)) > 0.3
    masks[0, 0] = masks[1, 0] = True
    masks[:, 1] &= masks[:, 0]
    subsets = np.random.default_rng(6).random((3, 4, 6)) > 0.5
    terms = frozenset({"n", "norm", "norm_square", "vector", "unit", "unit_square"})
    terms |= {"subset_n", "subset_unit", "sequence_cosine", "sequences"}
    found, inverse = sum_vectors(
        torch.from_numpy(x), torch.from_numpy(masks), torch.from_numpy(subsets), terms
    )
    norm = np.linalg.norm(x, axis=-1)
    usable = np.isfinite(norm) & (norm > 0)
    for s in range(3):
        assert float(found["zero"][s].sum()) == (s == 0)
        assert float(found["nonfinite"][s].sum()) == (s == 1)
        for h in range(2):
            for token in range(6):
                expected = 1 / norm[s, h, token] if usable[s, h, token] else 0.0
                assert float(inverse[s, h, token]) == pytest.approx(expected)
            for p in range(2):
                rows = x[s, h][masks[s, p] & usable[s, h]]
                length = np.linalg.norm(rows, axis=1)
                unit = rows / length[:, None]
                n = len(rows)
                cosine = (
                    (np.square(unit.sum(0)).sum() - n) / (n * (n - 1)) if n > 1 else 0
                )
                expected = {
                    "n": n,
                    "norm": length.sum(),
                    "norm_square": np.square(length).sum(),
                    "vector": rows.sum(0),
                    "unit": unit.sum(0),
                    "unit_square": np.square(unit).sum(0),
                    "sequence_cosine": cosine,
                    "sequences": n > 1,
                }
                for name, exact in expected.items():
                    np.testing.assert_allclose(
                        found[name][s, p, h].numpy(), exact, atol=1e-12, err_msg=name
                    )
            for subset in range(4):
                rows = x[s, h][subsets[s, subset] & usable[s, h]]
                unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
                np.testing.assert_allclose(
                    found["subset_unit"][s, subset, h].numpy(), unit.sum(0), atol=1e-12
                )
                assert float(found["subset_n"][s, subset, h]) == len(rows)
    few, _ = sum_vectors(
        torch.from_numpy(x), torch.from_numpy(masks), None, frozenset({"n"})
    )
    assert set(few) == {"n", "zero", "nonfinite"}


@pytest.mark.parametrize(
    "group", [(0, 1, 2, 0, 1, 2), (2, 0, 0, 1, 2, 2), (3, 1, 3, 1, 3, 1)]
)
def test_single_vectors_are_summed_by_their_group(group):
    x = torch.from_numpy(draw_array(6, 1, 3))
    masks = (
        torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1], [1, 0], [1, 1]])
        .bool()
        .unsqueeze(-1)
    )
    groups = torch.tensor(group)
    terms = frozenset({"n", "vector", "unit", "sequences"})
    found, inverse, present = sum_single_vectors(x, masks, None, terms, groups)
    torch.testing.assert_close(inverse.flatten(), 1 / x.norm(dim=-1).flatten())
    assert sorted(present.tolist()) == sorted(set(group))
    for row, g in enumerate(present.tolist()):
        for p in range(2):
            rows = x[(groups == g) & masks[:, p, 0], 0]
            assert float(found["n"][row, p].sum()) == len(rows)
            torch.testing.assert_close(found["vector"][row, p, 0], rows.sum(0))


def test_sums_of_rows_leave_out_padding_and_what_is_not_finite():
    names = (
        "entropy",
        "score",
        "row_max",
        "row_min",
        "first_mass",
        "row_median",
        "keys",
    )
    rows = {
        name: torch.from_numpy(draw_array(2, 3, 4, seed=i)).abs()
        for i, name in enumerate(names)
    }
    rows["entropy"][0, 1, 2] = math.nan
    rows["score"][1, 2, 0] = -math.inf
    rows["row_median"][0, 0, 0] = math.nan
    outcomes = torch.tensor([1.0, 2.0, 3.0, 5.0]).expand(2, 3, 4)
    similarity = torch.tensor([[0.5, math.nan, 0.25], [0.1, 0.2, 0.3]])
    histogram = torch.ones(2, 3, 2)
    rows |= {
        "outcomes": outcomes,
        "row_similarity": similarity,
        "score_histogram": histogram,
    }
    real = torch.ones(2, 3, 4, dtype=torch.bool)
    real[1, :, 3] = False
    found = sum_rows(rows, real)
    for s in range(2):
        lost = 0
        for h in range(3):
            counted = []
            for q in range(4):
                fits = math.isfinite(rows["entropy"][s, h, q]) and math.isfinite(
                    rows["score"][s, h, q]
                )
                lost += bool(real[s, h, q]) and not fits
                if real[s, h, q] and fits:
                    counted.append(q)
            for name in names[:5]:
                assert float(found[name][s, h]) == pytest.approx(
                    float(rows[name][s, h, counted].sum())
                )
            assert float(found["pairs"][s, h]) == pytest.approx(
                float(rows["keys"][s, h, counted].sum())
            )
            several = [q for q in counted if q > 0]
            exact = sum(
                float(rows["entropy"][s, h, q] / outcomes[s, h, q].log())
                for q in several
            )
            assert float(found["entropy_normalised"][s, h]) == pytest.approx(exact)
            assert float(found["rows"][s, h]) == len(counted)
            assert float(found["normalised_rows"][s, h]) == len(several)
        assert int(found["nonfinite"][s]) == lost
    torch.testing.assert_close(found["row_similarity"], similarity.nan_to_num(0.0))
    assert found["row_sequences"].tolist() == [[1, 0, 1], [1, 1, 1]]
    assert found["score_histogram"] is histogram and "keys" not in found


def test_means_of_units_and_seeds_have_their_own_degrees_of_freedom():
    x = np.arange(8.0)
    by_pairs = jackknife.estimate_mean(x, groups=4)
    replicates = [3.5] + [x[np.arange(8) % 4 != g].mean() for g in range(4)]
    expected = jackknife.jackknife_interval(replicates)
    assert (by_pairs.low, by_pairs.high) == (expected.low, expected.high)
    inside = jackknife.estimate_mean(np.ones(9), bounds=(-1.0, 1.0))
    assert inside.high == 1 and inside.low == pytest.approx(
        1 - float(jackknife.wilson_interval(0, 9)[1])
    )
    below = jackknife.estimate_mean(-np.ones(9), bounds=(-1.0, 1.0))
    assert below.low == -1 and below.high == pytest.approx(-inside.low)
    assert jackknife.estimate_mean(np.full(9, 0.5)).low == 0.5
    seeds = np.array([[1.0, 5.0], [2.0, 9.0], [3.0, 1.0]])
    found = jackknife.estimate_over_seeds(seeds, bounds=(0.0, np.inf))
    assert found.value.tolist() == [2, 5] and found.low[1] == 0
    assert found.high[0] == pytest.approx(2 + 4.302653 / 3**0.5)
    assert found.high[1] == pytest.approx(5 + 4.302653 * 4 / 3**0.5)
    narrow = jackknife.estimate_over_seeds([1.0, 2.0, 3.0], level=0.5)
    assert narrow.high == pytest.approx(2 + 0.816497 / 3**0.5)


def test_tokens_are_drawn_by_share_and_kept_by_the_smallest_hash():
    unit, index = torch.arange(50).unsqueeze(1), torch.arange(40).unsqueeze(0)
    for share in (0.1, 0.5):
        chosen = draw_tokens(share, 3, unit, index)
        assert float(chosen.double().mean()) == pytest.approx(share, abs=0.04)
        assert not torch.equal(chosen, draw_tokens(share, 4, unit, index))
    smaller, larger = (draw_tokens(s, 3, unit, index) for s in (0.1, 0.5))
    assert bool((larger | ~smaller).all()), "a larger share holds the smaller one"
    hashes = hash_tokens(3, unit, index)
    assert len(hashes.unique()) == 2000 and bool((hashes >= 0).all())

    def fill(size):
        kept = Reservoir(size, 3)
        for batch in range(5):
            units = torch.arange(10) + 10 * batch
            real = torch.ones(10, 40, dtype=torch.bool)
            real[:, 30:] = False
            kept.begin(units, torch.zeros(10, dtype=torch.int64) + 2, real)
            places = torch.stack(
                [
                    units.unsqueeze(1).expand(10, 40),
                    (torch.arange(40) + 2).expand(10, 40),
                ],
                -1,
            )
            kept.add("a", places.bfloat16())
            kept.add("b", places.double())
            kept.end()
        return kept

    every = hash_tokens(
        3, torch.arange(50).unsqueeze(1), torch.arange(30).unsqueeze(0) + 2
    )
    for size in (7, 100):
        kept = fill(size)
        assert kept.hash.tolist() == every.flatten().sort().values[:size].tolist()
        places = kept.vectors["b"].long()
        assert hash_tokens(3, places[:, 0], places[:, 1]).tolist() == kept.hash.tolist()
        assert kept.unit.tolist() == places[:, 0].tolist()
        assert kept.vectors["a"].dtype == torch.float32
    again = Reservoir(7, 3)
    named = fill(7).tensors("p ") | {"q hash": torch.zeros(1), "q at a": torch.zeros(1)}
    again.restore(named, "p ")
    assert (
        list(again.vectors) == ["a", "b"]
        and again.unit.tolist() == fill(7).unit.tolist()
    )


# ---- samples


def a_sample(n=9, groups=4, seed=0):
    group = np.array([3, 1, 1, 3, 1, 0, 0, 3, 1])[:n]
    return SampledVectors(draw_array(n, 3, seed=seed), group, groups, np.zeros(3))


def test_pairs_of_a_sample_are_left_out_with_either_vector(monkeypatch):
    monkeypatch.setattr("anisoscope.reads.sample.ROWS", 4)
    sample = a_sample()
    products = sample.vectors @ sample.vectors.T
    np.fill_diagonal(products, 0)
    kept = [np.ones(9, bool), *(sample.group != g for g in (0, 1, 3))]
    found = sample.sum_pairs(lambda rows, every: rows @ every.T)
    assert found.tolist() == pytest.approx([products[np.ix_(k, k)].sum() for k in kept])
    assert sample.count_pairs().tolist() == [k.sum() * (k.sum() - 1) for k in kept]
    assert sample.present.tolist() == [0, 1, 3] and sample.n_groups == 3
    assert sample.member[0].tolist() == [0, 0, 1]
    firsts = sample.replicates(lambda x: x[0])
    assert firsts.tolist() == [sample.vectors[0].tolist()] * 3 + [
        sample.vectors[1].tolist()
    ]
    left = sample.without(2)
    assert left.group.tolist() == [1, 1, 1, 0, 0, 1] and left.groups == 4
    alone = sample.take([5, 6]).replicates(lambda x: x.sum())
    assert not math.isnan(alone[0]) and math.isnan(alone[1])
    sums = leave_out_groups(np.array([[1.0, 2], [2, 7]]))
    assert sums.tolist() == [12, 7, 1]
    pair = SampledPair(sample, a_sample(seed=1))
    means = pair.replicates(lambda x, y: (x[:, 0] - 2 * y[:, 0]).sum())
    both = sample.vectors[:, 0] - 2 * pair.second.vectors[:, 0]
    assert means.tolist() == pytest.approx([both[k].sum() for k in kept])
    assert pair.without(0).second.group.tolist() == sample.without(0).group.tolist()


def gathered(**vectors):
    sites, reservoir, sums = {}, Reservoir(9, 0), Sums(3)
    units = torch.arange(6)
    for name in vectors:
        layer = None if name == "final" else int(name[1:])
        site = Site("e", layer, "final" if layer is None else "hidden")
        sites[site.name] = site
        sums.terms[site.name, "vector"] = (
            torch.ones(3, 2, 1, 2, dtype=torch.float64) * 6
        )
        sums.terms[site.name, "n"] = torch.ones(3, 2, 1, dtype=torch.float64) * 2
    reservoir._kept = (
        units,
        units * 5,
        {n: torch.as_tensor(x) for n, x in zip(sites, vectors.values(), strict=True)},
    )
    sums.units = {1, 2, 3}
    return Gathered(sums, sites, {"e": reservoir}, {})


def test_pairs_of_layers_are_of_the_tokens_that_all_of_them_can_use():
    x, y, z = draw_array(6, 2), draw_array(6, 2, seed=1), draw_array(6, 2, seed=2)
    x[1], y[4, 1] = 0, np.nan
    kept = gathered(h1=x, h2=y, final=z)
    found = list(LayerPair().readings(None, kept))
    places = [
        (r.columns["layer"], r.columns["site"], r.columns["component"]) for r in found
    ]
    assert places == [
        (1, "hidden", "hidden 2"),
        (1, "hidden", "final"),
        (2, "hidden", "final"),
    ]
    used = [0, 2, 3, 5]
    assert found[0].data.first.vectors.tolist() == x[used].tolist()
    assert found[0].data.second.vectors.tolist() == y[used].tolist()
    assert found[2].data.second.vectors.tolist() == z[used].tolist()
    assert found[0].data.first.group.tolist() == [0, 1, 0, 1] and found[0].count == 4
    assert found[0].data.first.mean.tolist() == [3, 3]
    few = next(iter(LayerPair(most=3).readings(None, kept)))
    assert few.data.first.vectors.tolist() == x[[0, 2]].tolist()
    alone = select_sample("e.1.hidden", kept.reservoirs["e"], kept)
    assert (
        len(alone) == 5
        and select_sample("e.1.hidden", kept.reservoirs["e"], kept, 2) is None
    )
    assert is_usable(x).tolist() == [True, False, True, True, True, True]
    assert find_reservoir("e.3.hidden", Site("e", 3, "hidden"), kept) is None
    assert find_reservoir("e.1.key", Site("e", 1, "key"), kept) is None
    columns = kept.make_columns(Site("e", None, "final"))
    assert columns == {
        "stack": "e",
        "kind": "self",
        "layer": 2,
        "site": "final",
        "n_units": 3,
        "head": None,
    }
    assert "head" not in kept.make_columns(Site("e", 1, "key"))


def test_tokens_of_two_runs_are_matched_by_their_hashes():
    def stack(hashes, **layers):
        sites = {}
        for name, x in layers.items():
            layer = None if name == "final" else int(name[1:])
            sites[Site("e", layer, "final" if layer is None else "hidden")] = x
        return SampledStack(np.array(hashes), np.array(hashes) * 10, sites)

    x, y = draw_array(4, 2), draw_array(5, 2, seed=1)
    y[1] = 0
    first = stack([1, 3, 5, 7], h1=x, final=x * 2)
    second = stack([3, 4, 5, 7, 9], h0=y, h6=y + 1, h7=y * 0)
    found = list(read_across(LayerPair(), first, second, 4))
    places = [
        tuple(r.columns[c] for c in ("layer", "site", "layer_other", "site_other"))
        for r in found
    ]
    assert places == [
        (1, "hidden", 0, "hidden"),
        (1, "hidden", 6, "hidden"),
        (1, "final", 0, "hidden"),
        (1, "final", 6, "hidden"),
    ]
    assert found[1].data.first.vectors.tolist() == x[1:].tolist()
    assert found[1].data.second.vectors.tolist() == (y[[0, 2, 3]] + 1).tolist()
    assert found[0].data.first.group.tolist() == [30 % 4, 50 % 4, 70 % 4]
    assert found[0].count == 3 and found[0].columns["n_units"] == 3
    assert found[0].data.second.mean.tolist() == pytest.approx(
        y[[0, 2, 3]].mean(0).tolist()
    )
    most = list(read_across(LayerPair(most=2), first, second, 4))
    assert most[0].data.first.vectors.tolist() == x[1:3].tolist()
    few = next(read_across(RunPair(groups=3), first, second, 8)).data.first
    assert few.group.tolist() == [30 % 8 % 3, 50 % 8 % 3, 70 % 8 % 3]
    assert few.groups == 3
    assert list(read_across(LayerPair(most=1), first, second, 4)) == []
    assert list(read_across(LayerPair(), first, stack([2, 4], h1=y[:2]), 4)) == []
    assert second.depth == 7 and first.number_layer(Site("e", None, "final")) == 1


def test_sites_of_samples_are_read_from_their_names():
    assert _parse_site("e.12.hidden") == Site("e", 12, "hidden")
    assert _parse_site("vision.tower.3.hidden") == Site("vision.tower", 3, "hidden")
    assert _parse_site("e.final") == Site("e", None, "final")
    for name in ("final", "e.x.hidden", "e.3.head.query", "hidden"):
        assert _parse_site(name) is None
    kept = Reservoir(2, 0)
    kept._kept = (
        torch.tensor([1, 2]),
        torch.tensor([5, 6]),
        {
            "e.final": torch.ones(2, 1),
            "e.3.hidden": torch.zeros(2, 1),
            "e.1.hidden": torch.zeros(2, 1),
            "e.1.head.key": torch.zeros(2, 1),
        },
    )
    named = kept.tensors("e ") | kept.tensors("")
    (stack,) = read_sampled_stacks(named).values()
    assert [site.layer for site in stack.layers] == [1, 3, None]
    assert (stack.hash.tolist(), stack.unit.tolist()) == ([1, 2], [5, 6])
    own = Reservoir(2, 0)
    own._kept = torch.tensor([1]), torch.tensor([5]), {"e.1.hidden": torch.ones(1, 1)}
    assert read_sampled_stacks(own.tensors("e.1.hidden ")) == {}


def test_units_of_a_test_are_batched_and_padded():
    units = [np.full((n, 2), n) for n in (3, 1, 2)]
    assert [(s, len(p)) for s, p in split_batches(units, Batching())] == [(0, 3)]
    assert [(s, len(p)) for s, p in split_batches(units, Batching(batch=2))] == [
        (0, 2),
        (2, 1),
    ]
    x, real = pad(units, Batching(padding=1, filler=9.0, dtype=torch.float32))
    assert x.shape == (3, 4, 2) and x.dtype == torch.float32
    assert real.long().tolist() == [[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 0, 0]]
    assert x[1, :, 0].tolist() == [1, 9, 9, 9]
    a, b, both = pad_pairs(
        [(units[0], units[0] * 2), (units[1], units[1] * 2)], Batching()
    )
    assert torch.equal(a[both] * 2, b[both]) and both.sum() == 4


# ---- what each metric can be, by its mathematics

ANY = (-math.inf, math.inf)
POSITIVE, SHARE, COSINE = (0, math.inf), (0, 1), (-1, 1)
RANGES = {
    "attention": {
        POSITIVE: "entropy rows_seeing_one_key score_histogram",
        SHARE: "row_max row_min first_mass row_median entropy_normalised row_similarity",
        ANY: "score",
    },
    "calibrated": {COSINE: "centred", SHARE: "pairs_above_q95"},
    "centred_attention": {
        POSITIVE: "query key",
        SHARE: "query_normalised key_normalised",
        ANY: "query_rise key_rise",
    },
    "cka": {COSINE: "="},
    "class_direction": {COSINE: "="},
    "common_direction": {SHARE: "share query_alone key_alone alone"},
    "drift": {POSITIVE: "=", SHARE: "share"},
    "floor": {COSINE: "q90 q95 q99 q999"},
    "group_cosine": {COSINE: "="},
    "intra_sequence": {COSINE: "="},
    # a distribution of two equally likely values has the least excess kurtosis, −2
    "kurtosis": {(-2, math.inf): "= largest", ANY: "dimension"},
    "logits": {ANY: "largest smallest typical"},
    "massive": {
        POSITIVE: "top median over_median largest",
        SHARE: "rate",
        ANY: "largest_dimension",
    },
    "matrix_entropy": {SHARE: "=", POSITIVE: "nats"},
    "mean_cosine": {COSINE: "between contribution"},
    "modality_gap": {(0, 2): "distance", COSINE: "cosine image text across"},
    "neighbours": {SHARE: "largest never duplicates equal", ANY: "hubness"},
    "norms": {POSITIVE: "mean std variation"},
    "partition": {SHARE: "="},
    "procrustes": {(0, 2): "="},
    "query_key": {POSITIVE: "query_norm key_norm", COSINE: "cosine", ANY: "dot"},
    "score_terms": {
        POSITIVE: "between_rows within_rows mean_query centred mean_query_share centred_share",
        ANY: "mean_score",
    },
    "sinks": {
        SHARE: "rate first_rate strongest at mass",
        POSITIVE: "value_norm key_norm query_norm",
    },
    "spectrum": {SHARE: "isoscore explained"},
    "twonn": {POSITIVE: "= likelihood", SHARE: "distinct"},
    # opposite directions are 2 apart: ln exp(−2·2²)
    "uniformity": {(-8, 0): "="},
}
COUNTED = {
    "calibrated": {"pairs_above_q95"},
    "massive": {"rate"},
    "neighbours": {"never", "duplicates", "equal"},
    "sinks": {"at", "rate", "first_rate"},
    "twonn": {"distinct"},
}
EXTREMES = {
    "kurtosis": {"dimension"},
    "logits": {"largest", "smallest"},
    "massive": {
        f"largest{of}" for of in ("", "_dimension", "_position", "_token", "_unit")
    },
    "sinks": {"query_norm", "key_norm"},
}
COMPONENTS = {
    "massive": {"top": "1 2 3"}
    | dict.fromkeys(sorted(EXTREMES["massive"]), "1 2 3 4 5"),
    "mean_cosine": {"top_share": "1 3 10"},
    "sinks": dict.fromkeys(("rate", "first_rate"), ".2 .3 .4 .5")
    | dict.fromkeys(("at", "mass"), "first last special punctuation other"),
    "spectrum": {"explained": "1 2 3 5 10 20 50"},
}
PANELS = {
    "hidden": "calibrated drift group_cosine intra_sequence mean_cosine norms partition",
    "spectrum": "spectrum",
    "attention": "attention query_key",
    "alignment": "centred_attention common_direction score_terms",
    "extremes": "kurtosis logits massive matrix_entropy sinks",
    "floor": "floor",
    "class": "class_direction",
    "": "cka modality_gap neighbours procrustes twonn uniformity",
}
HEADS_TOO = {"drift", "intra_sequence", "mean_cosine", "norms"}
METRICS = metrics.scan()


@pytest.mark.parametrize("name", sorted(METRICS))
def test_a_metric_says_what_it_can_be(name):
    """Its intervals end there, its shares have Wilson's, and its extremes have none."""
    metric = METRICS[name]
    for bounds, values in RANGES[name].items():
        for value in values.split():
            value = value.removeprefix("=")
            assert metric.range_of(value, None) == bounds, value
    assert metric.counted == COUNTED.get(name, set())
    assert metric.extremes == EXTREMES.get(name, set())
    for value, labels in COMPONENTS.get(name, {}).items():
        assert metric.labels_of(value, len(labels.split())) == tuple(labels.split())
    assert name in PANELS[metric.panel].split()
    if isinstance(metric.reads, Vectors):
        quantities = {"hidden", "final"}
        if name in HEADS_TOO:
            quantities |= {"query", "key", "value"}
        assert set(metric.reads.at) == quantities


def test_ranges_that_follow_from_the_data():
    """Of n vectors A is at least −1/(n − 1); ranks end at the number of dimensions."""
    totals = Totals(
        {
            "n": np.array([[[2.0]], [[3.0]]]),
            "unit": np.array([[[[2.0, 0.0]]], [[[1.0, 0.0]]]]),
            "moment": np.zeros((2, 1, 3, 3)),
        }
    )
    found = METRICS["mean_cosine"]
    low, high = found.range_of("", totals)
    assert low.tolist() == [[-0.25]] and high == 1
    # ‖Σu‖² − n = 9 − 5 = 4, and a share exceeds 1 by at most n/4
    low, high = found.range_of("top_share", totals)
    assert low.tolist() == [[[0]]] and high.tolist() == [[[1 + 5 / 4]]]
    opposite = Totals({"n": np.full((1, 1, 1), 2.0), "unit": np.zeros((1, 1, 1, 2))})
    low, high = found.range_of("top_share", opposite)
    assert low.tolist() == [[[-math.inf]]] and high.tolist() == [[[math.inf]]]
    assert found.range_of("", opposite)[0].tolist() == [[-1]]
    ranks = (
        "effective_rank",
        "effective_rank_eigenvalues",
        "effective_rank_uncentred",
        "participation_ratio",
    )
    for value in ranks:
        assert METRICS["spectrum"].range_of(value, totals) == (1, 3)
    assert METRICS["spectrum"].range_of("cosine_square", totals) == (0, 3)


def fill(shape, seed):
    """Sums of four groups that are positive, so that no ratio is undefined."""
    return np.random.default_rng(seed).uniform(1, 2, size=(4, *shape))


def moments_of(shape, seed):
    """Sums of products of pairs of dimensions, as those of eight vectors are."""
    x = np.random.default_rng(seed).normal(size=(4, *shape[:-2], 8, shape[-1]))
    return x.swapaxes(-1, -2) @ x


P, H, D = 2, 3, 4
SUMS = {
    "attention": dict.fromkeys(
        (
            "entropy",
            "row_max",
            "row_min",
            "first_mass",
            "row_median",
            "rows",
            "normalised_rows",
            "entropy_normalised",
            "score",
            "pairs",
            "row_similarity",
            "row_sequences",
        ),
        (H,),
    ),
    "centred_attention": {
        f"{which}.{term}": (H,)
        for which in ("plain", "query", "key")
        for term in ("rows", "entropy", "normalised_rows", "entropy_normalised")
    },
    "common_direction": {f"{side}.head_moment": (H, D, D) for side in ("query", "key")},
    "drift": {"n": (P, H), "norm": (P, H), "vector": (P, H, D)},
    "intra_sequence": {"sequence_cosine": (P, H), "sequences": (P, H)},
    "mean_cosine": {"n": (P, H), "unit": (P, H, D), "unit_square": (P, H, D)},
    "norms": {"n": (P, H), "norm": (P, H), "norm_square": (P, H)},
    "query_key": {
        f"{side}.{term}": shape
        for side in ("query", "key")
        for term, shape in (("n", (P, H)), ("vector", (P, H, D)))
    },
    "score_terms": {
        **dict.fromkeys(("rows", "keys", "row_variance"), (H,)),
        **dict.fromkeys(("query", "key", "row_lean"), (H, D)),
        **dict.fromkeys(("query_moment", "row_spread"), (H, D, D)),
    },
    "spectrum": {
        "moment_n": (H,),
        "moment_vector": (H, D),
        "moment": (H, D, D),
        "unit_moment": (H, D, D),
    },
}


@pytest.mark.parametrize("name", sorted(SUMS))
def test_each_head_policy_and_replicate_is_computed_from_its_own_sums(name):
    """Of many at once each value is what its own sums alone give, for the whole and without each group."""
    metric = METRICS[name]
    terms = {}
    for seed, (term, shape) in enumerate(SUMS[name].items()):
        is_moment = "moment" in term and len(shape) > 2
        terms[term] = moments_of(shape, seed) if is_moment else fill(shape, seed)
        if term in ("n", "moment_n"):
            terms[term] = np.ceil(20 * terms[term])
    found = metric.compute(Totals(terms))
    axes = {"policy": P, "head": H}
    places = list(np.ndindex(*(axes[axis] for axis in metric.axes)))
    for place in places:
        for replicate in range(5):
            alone = {}
            for term, x in terms.items():
                kept = x[(slice(None), *(slice(i, i + 1) for i in place))]
                kept = np.delete(kept, replicate - 1, axis=0) if replicate else kept
                alone[term] = kept
            of_one = metric.compute(Totals(alone))
            for value, x in found.items():
                expected = of_one[value][0][(0,) * len(place)]
                np.testing.assert_allclose(
                    x[replicate][place], expected, rtol=1e-7, err_msg=value
                )


def test_heads_of_queries_go_with_the_key_head_that_they_share():
    """Of four heads of queries and two of keys, the first two have the first."""
    vectors = {"query": fill((P, 4, D), 0), "key": fill((P, 2, D), 1)}
    counts = {"query": np.full((4, P, 4), 3.0), "key": np.full((4, P, 2), 5.0)}
    sums = {f"{side}.vector": x for side, x in vectors.items()}
    sums |= {f"{side}.n": x for side, x in counts.items()}
    found = METRICS["query_key"].compute(Totals(sums))
    for policy in range(P):
        for head in range(4):
            q = vectors["query"][:, policy, head].sum(0) / 12
            k = vectors["key"][:, policy, head // 2].sum(0) / 20
            assert found["dot"][0, policy, head] == pytest.approx(q @ k)
            assert found["key_norm"][0, policy, head] == pytest.approx(
                np.linalg.norm(k)
            )
            assert found["query_norm"][0, policy, head] == pytest.approx(
                np.linalg.norm(q)
            )
            cosine = q @ k / np.linalg.norm(q) / np.linalg.norm(k)
            assert found["cosine"][0, policy, head] == pytest.approx(cosine)
    moments = {
        "query.head_moment": moments_of((4, D, D), 2),
        "key.head_moment": moments_of((2, D, D), 3),
    }
    found = METRICS["common_direction"].compute(Totals(moments))
    for head in range(4):
        q = moments["query.head_moment"][:, head].sum(0)
        k = moments["key.head_moment"][:, head // 2].sum(0)
        values, axes = np.linalg.eigh(q + k)
        assert found["share"][0, head] == pytest.approx(values[-1] / values.sum())
        of_key = np.linalg.eigh(k)[1][:, -1]
        assert found["key_alone"][0, head] == pytest.approx(abs(axes[:, -1] @ of_key))


@pytest.mark.parametrize("first", [3.0, -3.0])
def test_a_mean_along_the_first_axis_is_taken_out_on_either_side(first):
    """Reflected with the other sign, it would be divided by 0."""
    mean = np.array([first, 0.0, 0.0])
    covariance = np.diag([1.0, 2.0, 4.0])
    matrix = covariance + np.outer(mean, mean)
    centred, whole = spectrum._decompose_once(matrix, mean)
    np.testing.assert_allclose(centred, [1, 2, 4])
    np.testing.assert_allclose(whole, np.linalg.eigvalsh(matrix))
