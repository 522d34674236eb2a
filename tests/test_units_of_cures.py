"""Small decisions of cures: which rows, which half, which groups, which denominator, each against plain Python."""

import numpy as np
import pytest
from safetensors.numpy import save_file
from sklearn.linear_model import Ridge

from anisoscope.cures import tasks, transforms, trial
from anisoscope.cures.transforms import Fit, expand_cures, fit_cure
from anisoscope.cures.trial import CureTrial, Score, Trials, try_cures
from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.metrics.spectrum import isoscore
from anisoscope.sums.jackknife import Estimate, jackknife_interval


def draw(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def cosine(a, b):
    return float(a @ b / np.sqrt(a @ a) / np.sqrt(b @ b))


# ---- tasks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 3, 4, 100])
def test_tasks_over_several_blocks_are_those_of_plain_loops(monkeypatch, block):
    """With more rows than a block holds: the second block has rows and own partners of its own."""
    monkeypatch.setattr(tasks, "BLOCK", block)
    x, partner = draw(10, 4), draw(10, 4, 1)
    partner[[2, 5, 9]] = x[[2, 5, 9]] * 3
    units = np.array([0, 0, 1, 1, 2, 2, 2, 3, 4, 4])
    found = tasks.find_neighbours(x, units, k=3)
    expected = []
    for i in range(10):
        others = [j for j in range(10) if units[j] != units[i]]
        expected.append(sorted(others, key=lambda j, i=i: -cosine(x[i], x[j]))[:3])
    assert found.tolist() == expected
    nearest = [max(range(10), key=lambda j, i=i: cosine(x[i], partner[j])) for i in range(10)]  # fmt: skip
    own = [float(nearest[i] == i) for i in range(10)]
    assert tasks.find_own_pairs(x, partner).tolist() == own
    assert 0 < sum(own) < 10


def test_rows_without_enough_neighbours_are_filled_and_not_counted():
    """Of three vectors of unit 0 and one of unit 1: the first three have one neighbour, the last has three."""
    x = np.array([[1.0, 0], [0.9, 0.1], [0, 1], [0.5, 0.5]])
    units = np.array([0, 0, 0, 1])
    near = tasks.find_neighbours(x, units, k=5)
    assert near.tolist() == [[3, -1, -1, -1, -1]] * 3 + [[1, 0, 2, -1, -1]] or (
        near[:3].tolist() == [[3, -1, -1, -1, -1]] * 3
        and near[3].tolist() == [1, 2, 0, -1, -1]
    )
    assert tasks.find_neighbours(x[:1], units[:1], k=2).tolist() == [[-1, -1]]
    assert tasks.find_neighbours(x, np.arange(4)).shape == (4, tasks.NEIGHBOURS)
    # the last vector has the label of the first: −1 must not read it
    labels = np.array([7, 8, 7, 7])
    shares = tasks.compute_precision(near, labels)
    assert shares.tolist() == [1, 0, 1, pytest.approx(2 / 3)]
    none = np.full((1, 2), -1)
    assert np.isnan(tasks.compute_precision(none, labels[:1])).all()


def test_neighbours_that_stay_are_a_share_of_those_before():
    before = np.array([[1, 2, 3], [4, -1, -1], [5, 6, -1], [7, 8, 9], [-1, -1, -1]])
    after = np.array([[3, 9, 1], [4, 5, 6], [-1, -1, 6], [1, 2, 3], [1, 2, 3]])
    found = tasks.compare_neighbours(before, after)
    np.testing.assert_allclose(found, [2 / 3, 1, 1 / 2, 0, np.nan])


def test_a_zero_vector_stays_zero_and_others_get_length_one():
    x = np.array([[3.0, 4], [0, 0], [-5, 0]])
    assert tasks.divide_by_norms(x).tolist() == [[0.6, 0.8], [0, 0], [-1, 0]]


@pytest.mark.parametrize("ridge", [1e-3, 0.7])
def test_the_probe_is_ridge_regression_on_directions(monkeypatch, ridge):
    """Against scikit-learn's, with an intercept that is not penalised; unequal classes, one in the test only."""
    monkeypatch.setattr(tasks, "RIDGE", ridge)
    rng = np.random.default_rng(5)
    labels = rng.choice(4, 240, p=[0.6, 0.2, 0.1, 0.1])
    x = (rng.normal(size=(240, 5)) + np.eye(5)[labels] + 1) * rng.gamma(2, 1, (240, 1))
    keep = labels[:120] != 3
    train, seen = x[:120][keep], labels[:120][keep]
    test, truth = x[120:], labels[120:]
    inputs, held_out = (y / np.linalg.norm(y, axis=1)[:, None] for y in (train, test))
    penalty = ridge * np.square(inputs - inputs.mean(0)).sum() / 5
    model = Ridge(alpha=penalty).fit(inputs, np.eye(4)[seen])
    right = model.predict(held_out).argmax(1) == truth
    found = tasks.run_probe(train, seen, test, truth, 4)
    assert found.dtype == np.float64 and found.tolist() == right.tolist()
    assert 0 < found.mean() < 1


# ---- transforms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("remove-top", ["remove-top:1"]),
        ("remove-top:1,remove-top:1..3", [f"remove-top:{k}" for k in (1, 2, 3)]),
        ("remove-top:2..2 , centre", ["remove-top:2", "centre"]),
        (["drop-dims:7", "8", " 9"], ["drop-dims:7,8,9"]),
        ("drop-dims:auto,drop-dims", ["drop-dims:auto"]),
        ("drop-dims:1,2,drop-dims:3", ["drop-dims:1,2", "drop-dims:3"]),
        ("whiten,standardise,whiten", ["whiten", "standardise"]),
    ],
)
def test_what_a_list_of_cures_means(asked, names):
    assert expand_cures(asked) == names


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("centr", r"cures among centre, .*drop-dims; got 'centr'. Cure: .*centre"),
        ("3", r"cures among .*got '3'"),
        ("centre,3", r"cures among .*got '3'"),
        ("whiten:2", r"whiten without an argument; got 'whiten:2'. Cure: write whiten"),
        (
            "drop-dims:1-3",
            r"drop-dims:J,K.*got 'drop-dims:1-3'. Cure: .*drop-dims:12,588",
        ),
        ("remove-top:0", r"remove-top:K .*got 'remove-top:0'. Cure: .*remove-top:1..8"),
        ("remove-top:0..2", r"1 ≤ A ≤ B; got 'remove-top:0..2'"),
        ("remove-top:3..2", r"1 ≤ A ≤ B; got 'remove-top:3..2'"),
        ("remove-top:a", r"1 ≤ A ≤ B; got 'remove-top:a'"),
        ("drop-dims:autos", r"drop-dims:auto or drop-dims:J,K"),
    ],
)
def test_a_name_of_no_cure_is_refused_with_what_was_meant(asked, message):
    with pytest.raises(UsageError, match=message):
        expand_cures(asked)


def test_a_fit_takes_one_width_and_has_one():
    square = Fit("a", np.zeros(3), scale=np.array([1.0, 2, 4]))
    narrow = Fit("b", np.ones(3), matrix=np.arange(6.0).reshape(3, 2))
    both = Fit("c", np.ones(3), np.array([1.0, 2, 4]), np.arange(6.0).reshape(3, 2))
    assert [(fit.dim, fit.out) for fit in (square, narrow, both)] == [
        (3, 3),
        (3, 2),
        (3, 2),
    ]
    x = np.array([2.0, 3, 5])
    assert square.apply(x).tolist() == [2, 6, 20]
    # (1, 2, 4) · [[0, 1], [2, 3], [4, 5]]
    assert narrow.apply(x).tolist() == [20, 27]
    # (1, 4, 16) · the same
    assert both.apply(x).tolist() == [72, 93]
    assert both.apply(np.zeros((2, 4, 3))).shape == (2, 4, 2)
    assert square.apply(np.zeros(3, np.float64)).dtype == np.float64
    for wrong in (np.float64(3), np.zeros((3, 2))):
        shape = list(np.shape(wrong))
        with pytest.raises(UsageError) as caught:
            square.apply(wrong)
        assert "3 dimensions, like those that a was fitted on" in str(caught.value)
        assert f"shape {shape}" in str(caught.value)


def test_a_fit_keeps_every_part_in_its_file(tmp_path):
    """Folders on the way are made; a matrix in column order is not scrambled; a scale is no matrix."""
    place = tmp_path / "new" / "folder" / "fit.safetensors"
    matrix = np.asfortranarray(np.arange(6.0).reshape(3, 2))
    for scale, turned in ((None, matrix), (np.array([1.0, 2, 3]), None), (None, None)):
        fit = Fit("whiten", np.arange(3.0), scale, turned, {"directions": 2})
        fit.save(place)
        back = Fit.load(place)
        assert (back.name, back.notes) == ("whiten", {"directions": 2})
        for name in ("mean", "scale", "matrix"):
            np.testing.assert_array_equal(getattr(back, name), getattr(fit, name))


@pytest.mark.parametrize(
    ("tensors", "metadata"),
    [
        ({"mean": np.zeros(2)}, None),
        ({"mean": np.zeros(2)}, {"format": "pt", "name": "a", "notes": "{}"}),
        ({"scale": np.zeros(2)}, {"format": transforms.FORMAT, "name": "a", "notes": "{}"}),
    ],
)  # fmt: skip
def test_other_files_of_tensors_are_no_fits(tmp_path, tensors, metadata):
    save_file(tensors, tmp_path / "x.safetensors", metadata=metadata)
    with pytest.raises(OutputError, match=r"fitted cure; got .*x.safetensors, which"):
        Fit.load(tmp_path / "x.safetensors")


def test_a_constant_dimension_becomes_zero_and_is_counted():
    x = draw(50, 4) * [1, 1e-7, 3, 0] + [5, 5, 5, 5]
    fit = fit_cure("standardise", x)
    assert fit.notes == {"constant_dimensions": 2}
    assert not fit.apply(x)[:, [1, 3]].any()
    np.testing.assert_allclose(fit.apply(x)[:, [0, 2]].std(0), 1)


def test_what_is_kept_of_few_directions_and_of_none():
    """The limits: two vectors are enough, one is not; of equal ones nothing can be whitened."""
    assert fit_cure("centre", np.array([[1.0, 3], [5, 9]])).mean.tolist() == [3, 6]
    with pytest.raises(
        MeasureError, match=r"two vectors to fit .*; got 1. Cure: give more"
    ):
        fit_cure("centre", np.ones((1, 2)))
    with pytest.raises(MeasureError, match=r"differ from one another.*all equal"):
        fit_cure("whiten", np.ones((5, 2)))
    flat = np.zeros((40, 3))
    flat[:, :2] = draw(40, 2) * [5, 1]
    whitened = fit_cure("whiten", flat + 2)
    assert (whitened.out, whitened.notes) == (2, {"directions": 2})
    y = whitened.apply(flat + 2)
    np.testing.assert_allclose(y.T @ y / 40, np.eye(2), atol=1e-9)


def test_what_removing_directions_leaves_and_says():
    x = draw(60, 3) * [5, 2, 1] + 4
    variances = np.linalg.eigvalsh(np.cov(x.T, bias=True))[::-1]
    for k in (1, 2):
        notes = fit_cure(f"remove-top:{k}", x).notes
        share = variances[:k].sum() / variances.sum()
        assert notes == {"variance_removed": pytest.approx(share)}
    assert fit_cure("remove-top:1", np.ones((4, 3))).notes == {"variance_removed": 0.0}
    with pytest.raises(
        MeasureError, match=r"than the 3 dimensions; got 3. Cure: remove at most 2"
    ):
        fit_cure("remove-top:3", x)


def test_dimensions_are_dropped_by_number():
    x = draw(30, 4) + 3
    fit = fit_cure("drop-dims:3,1,3", x)
    assert fit.notes == {"dropped": [1, 3]}
    np.testing.assert_array_equal(fit.apply(x), x * [1, 0, 1, 0])
    with pytest.raises(MeasureError, match=r"from 0 to 3; got 4. Cure: count from 0"):
        fit_cure("drop-dims:4", x)
    with pytest.raises(MeasureError, match=r"not dropped; got all 4 dropped"):
        fit_cure("drop-dims:0,1,2,3", x)


def test_dominant_dimensions_come_largest_first_from_a_share_on():
    """A zero vector has no direction; a dimension with exactly the share is one of them."""
    x = draw(400, 8) * 0.05 + [0, 3, 0, 0, 5, 0, 1, 0]
    x[7] = 0
    norm = np.linalg.norm(x, axis=1, keepdims=True)
    u = np.divide(x, norm, out=np.zeros_like(x), where=norm > 0)
    parts = u.sum(0) ** 2 - (u**2).sum(0)
    shares = parts / parts.sum()
    assert transforms.find_dominant_dimensions(x, share=0.02) == [4, 1, 6]
    assert transforms.find_dominant_dimensions(x) == [4, 1]
    assert transforms.find_dominant_dimensions(x, share=shares[6] * 1.001) == [4, 1]
    assert fit_cure("drop-dims:auto", x).notes == {"dropped": [4, 1]}
    y = draw(200, 1, 3) * 0 + [[1.0, 1.0]]
    assert sorted(transforms.find_dominant_dimensions(y, share=0.5)) == [0, 1]


# ---- a trial ---------------------------------------------------------------------------------------------------------


def count_effective(values):
    """exp of the entropy of the shares of the singular values."""
    shares = np.sqrt(values[0]) / np.sqrt(values[0]).sum()
    return np.exp(-(shares * np.log(shares)).sum(keepdims=True))


def brute_a(y):
    """Mean cosine over distinct pairs of vectors that are not zero."""
    y = [v for v in y if v.any()]
    pairs = [cosine(a, b) for i, a in enumerate(y) for b in y[:i]]
    return np.mean(pairs) if pairs else np.nan


def test_replicates_of_a_leave_one_group_out_each():
    y = draw(14, 3) + 1
    y[[2, 9]] = 0
    group = np.array([4, 4, 0, 0, 0, 7, 7, 7, 7, 4, 0, 7, 7, 4])
    found = trial._compute_mean_cosine(y, group)
    expected = [brute_a(y)] + [brute_a(y[group != g]) for g in (0, 4, 7)]
    np.testing.assert_allclose(found, expected)
    alone = trial._compute_mean_cosine(y[:2], np.array([0, 1]))
    np.testing.assert_allclose(alone, [cosine(y[0], y[1]), np.nan, np.nan])


def test_replicates_of_the_spectrum_are_of_eight_coarser_groups():
    """Group 9 is with group 1; a vector of which nothing is left is not counted."""
    y = draw(80, 3) * [3, 2, 1] + [1, 0, 2]
    y[[5, 30]] = 0
    group = np.arange(80) % 11
    found = trial._compute_spectrum(y, group)
    is_left = y.any(1)
    for name, formula in (("isoscore", isoscore), ("effective rank", count_effective)):
        expected = []
        for g in (None, *range(8)):
            chosen = is_left & (group % 8 != g) if g is not None else is_left
            values = np.linalg.eigvalsh(np.cov(y[chosen].T, bias=True))[None]
            expected.append(float(formula(values)[0]))
        np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_half_of_the_units_are_fitted_on_and_the_others_dealt_into_groups():
    units = np.repeat(np.arange(30, 41), [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 6])
    fitting, group = trial._split_units(units, 3, 4)
    fitted_on = set(units[fitting])
    assert len(fitted_on) == 5 and not fitted_on & set(units[~fitting])
    of_unit = {unit: {*group[units == unit]} for unit in set(units) - fitted_on}
    assert all(len(groups) == 1 for groups in of_unit.values())
    dealt = sorted(groups.pop() for groups in of_unit.values())
    assert dealt == [0, 0, 1, 1, 2, 3]
    again, _ = trial._split_units(units, 4, 4)
    assert (again != fitting).any()


def test_a_sample_of_rows_is_in_the_order_of_the_data(monkeypatch):
    monkeypatch.setattr(trial, "MOST_FOR_NEIGHBOURS", 5)
    rows = np.arange(10, 15)
    assert trial._sample_rows(rows, 0) is rows
    more = np.arange(100, 140, 2)
    found = trial._sample_rows(more, 1)
    assert len(set(found.tolist())) == 5 and set(found) <= set(more)
    assert found.tolist() == sorted(found) != trial._sample_rows(more, 2).tolist()


def test_unusable_vectors_are_left_out_with_all_that_belongs_to_them():
    x, partner = draw(6, 2), draw(6, 2, 1)
    x[1], x[2, 0], partner[4], partner[5, 1] = 0, np.inf, 0, np.nan
    units, labels = np.arange(6) + 10, np.arange(6) + 20
    notes = []
    kept = trial._drop_unusable(x, units, labels, partner, notes)
    assert [part.tolist() for part in kept] == [
        x[[0, 3]].tolist(),
        [10, 13],
        [20, 23],
        partner[[0, 3]].tolist(),
    ]
    assert notes == ["4 vectors that are zero or not finite were left out"]
    kept = trial._drop_unusable(x[:2], units[:2], None, None, notes)
    assert kept[1].tolist() == [10] and kept[2:] == (None, None)
    notes.clear()
    trial._drop_unusable(x[:1], units[:1], None, None, notes)
    assert notes == []


def test_every_score_is_that_of_plain_loops(monkeypatch):
    """Units of several vectors, labels, pairs, few groups, and a sample of neighbours: each filter has its own rows."""
    monkeypatch.setattr(trial, "MOST_FOR_NEIGHBOURS", 30)
    rng = np.random.default_rng(2)
    n = 90
    units = np.repeat(np.arange(30), 3)
    labels = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 4)) + np.eye(4)[labels] + 1
    partner = x + rng.normal(size=(n, 4)) * 0.8
    found = try_cures(
        x, "centre,drop-dims:2", units=units, labels=labels, partner=partner,
        seed=5, groups=6,
    )  # fmt: skip
    fitting, group = trial._split_units(units, 5, 6)
    tried = np.flatnonzero(~fitting)
    sample = trial._sample_rows(tried, 5)
    assert (found.n_fitted, found.n_tried, found.units_tried) == (45, 45, 15)
    assert found.notes == ["neighbours among 30 of 45 vectors, drawn with seed 5"]
    both = np.concatenate([x[fitting], partner[fitting]])
    for one in found.trials:
        fit = fit_cure(one.fit.name, both)
        np.testing.assert_array_equal(one.fit.mean, fit.mean)
        near = tasks.find_neighbours(fit.apply(x[sample]), units[sample])
        near_before = tasks.find_neighbours(x[sample], units[sample])
        plain = {
            "neighbours kept": tasks.compare_neighbours(near_before, near),
            "retrieval": tasks.compute_precision(near, labels[sample]),
            "pairs found": tasks.find_own_pairs(
                fit.apply(x[sample]), fit.apply(partner[sample])
            ),
        }
        for name, each in plain.items():
            values = tasks.average_by_group(each, group[sample], 6)
            ends = jackknife_interval(
                values, bounds=(0, 1), counted=None if "kept" in name else 15
            )
            after = one.scores[name].after
            assert tuple(map(float, after)) == pytest.approx(tuple(map(float, ends)))
        right = tasks.run_probe(
            fit.apply(x[fitting]), labels[fitting], fit.apply(x[tried]), labels[tried], 3
        )  # fmt: skip
        values = tasks.average_by_group(right, group[tried], 6)
        ends = jackknife_interval(values, bounds=(0, 1), counted=15)
        after = one.scores["probe"].after
        assert tuple(map(float, after)) == pytest.approx(tuple(map(float, ends)))
        a = trial._compute_mean_cosine(fit.apply(x[tried]), group[tried])
        ends = jackknife_interval(a, bounds=(-1, 1))
        after = one.scores["A"].after
        assert tuple(map(float, after)) == pytest.approx(tuple(map(float, ends)))


def test_scores_with_unlike_groups_have_no_difference():
    """A group without a defined score is missing on one side only."""
    before = {"A": np.linspace(0.5, 0.6, 9), "retrieval": np.linspace(0.5, 0.6, 9)}
    after = {"A": np.linspace(0.1, 0.2, 9), "retrieval": np.linspace(0.7, 0.8, 8)}
    found = trial._compare(Fit("centre", np.zeros(2)), before, after, 0.3, 12)
    assert np.isnan(found.scores["retrieval"].difference.value)
    assert found.scores["A"].difference.value == pytest.approx(-0.4)
    assert found.scores["retrieval"].after.value == pytest.approx(0.7)


def test_to_move_neighbours_is_no_harm_and_other_scores_are_no_tasks():
    steady = np.full(17, 0.5) + 0.001 * np.resize([0.0, 1, -1], 17)
    names = ("A", "isoscore", "neighbours kept", "retrieval", "probe", "pairs found")
    before = dict.fromkeys(names, steady)
    for change in (-0.2, 0.2):
        after = dict.fromkeys(names, steady + change)
        found = trial._compare(Fit("centre", np.zeros(2)), before, after, 0.1, 12)
        moved = ("retrieval", "probe", "pairs found")
        assert (found.harmed, found.helped) == ((moved, ()) if change < 0 else ((), moved))  # fmt: skip


def test_an_interval_of_the_effective_rank_ends_at_one_and_has_no_upper_end():
    ranks = np.array([1.2, 1.0, 2.2, 0.9, 1.4, 3.0])
    many = ranks * 40
    found = trial._compare(
        Fit("centre", np.zeros(2)), {"A": ranks / 9, "effective rank": ranks},
        {"A": ranks / 9, "effective rank": many}, 0.1, 5,
    ).scores["effective rank"]  # fmt: skip
    assert found.before.low == 1 and found.before.high > 2
    plain = jackknife_interval(many)
    assert found.after.high == pytest.approx(float(plain.high))


def a_trial(name, a, kept=0.5, **how):
    after = Estimate(np.float64(a), np.float64(a - 0.01), np.float64(a + 0.01))
    near = Estimate(np.float64(kept), np.float64(kept - 0.1), np.float64(kept + 0.1))
    scores = {"A": Score("A", after, after, after)}
    scores["neighbours kept"] = Score("neighbours kept", near, near, near)
    return CureTrial(Fit(name, np.zeros(2)), scores, **how)


def test_the_sentence_on_cures_has_the_numbers_of_its_cure():
    """Five ends: none is needed, the best one, the best one that helps, those with a cost, none at all."""
    anisotropic = {"A": np.linspace(0.41, 0.42, 9)}
    isotropic = {"A": np.linspace(0.041, 0.042, 9)}
    poor = a_trial("centre", 0.31, isotropic=False)
    far = a_trial("standardise", -0.21, isotropic=False)
    good = a_trial("whiten", 0.011, 0.23, isotropic=True)
    helpful = a_trial("whiten", 0.011, 0.23, isotropic=True, helped=("retrieval", "probe"))  # fmt: skip
    costly = a_trial("remove-top:1", 0.02, isotropic=True, harmed=("probe",))
    costlier = a_trial(
        "remove-top:3", 0.01, isotropic=True, harmed=("retrieval", "probe")
    )
    say = trial._describe
    text = "No cure is needed: A is .041, below .100, what isotropic directions stay under."
    assert say([good], None, isotropic, 0.1) == text
    text = "Best cure: whiten. On held-out units A falls from .410 to .011, .23 of the nearest neighbours stay"
    assert say([poor, good], good, anisotropic, 0.1) == f"{text}."
    improved = f"{text}, and the task improves (retrieval and probe)."
    assert say([poor, helpful], helpful, anisotropic, 0.1) == improved
    text = (
        "No cure that was tried is free: A becomes isotropic with remove-top:1 (probe) "
        "and remove-top:3 (retrieval and probe), at the cost of the task in brackets."
    )
    assert say([poor, costly, costlier], None, anisotropic, 0.1) == text
    text = "None of the cures tried makes the vectors isotropic; A is lowest with standardise (−.210)."
    assert say([poor, far], None, anisotropic, 0.1) == text


def test_the_table_of_trials_has_each_number_in_its_column():
    numbers = iter(np.arange(18) / 100)

    def some():
        return Estimate(*(np.float64(next(numbers)) for _ in range(3)))

    scores = {name: Score(name, some(), some(), some()) for name in ("A", "probe")}
    one = CureTrial(Fit("centre", np.zeros(2)), scores, harmed=("probe",))
    rows = Trials([one], 1, 2, 3, 0.1, None, "").table().to_dict("records")
    labels, ends = ("before", "after", "difference"), ("", "_low", "_high")
    columns = [f"{label}{end}" for label in labels for end in ends]
    assert [row[column] for row in rows for column in columns] == [k / 100 for k in range(18)]  # fmt: skip
    assert [(row["cure"], row["score"], row["harmed"]) for row in rows] == [
        ("centre", "A", False),
        ("centre", "probe", True),
    ]


def test_shapes_that_do_not_fit_are_named():
    x = draw(9, 2)
    for given, message in (
        ({"x": x[0]}, r"\[vector, dim\] of vectors .*; got shape \[2\]"),
        ({"x": x[:, :1]}, r"two dimensions; got shape \[9, 1\]"),
        ({"x": x, "units": [1]}, r"units for each of 9 vectors; got 1. Cure: give units one"),
        ({"x": x, "labels": [1, 2]}, r"labels for each of 9 vectors; got 2. Cure: give labels"),
        ({"x": x, "partner": x[:, :1]}, r"pairs of shape \[9, 2\]; got \[9, 1\]"),
        ({"x": x[:7]}, r"at least 8 units, half of them to fit on; got 7"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            try_cures(given.pop("x"), "centre", **given)
    assert try_cures(x[:8], "centre").units_tried == 4


# ---- which cure is recommended, and on what it was fitted ------------------------------------------------------------


def test_a_cure_to_use_is_fitted_on_all_usable_pairs():
    """A pair whose partner is unusable is left out on both sides; without pairs only the vectors count."""
    x, partner = draw(6, 2) + 3, draw(6, 2, 1) - 5
    x[1], partner[4, 0] = 0, np.nan
    alone = trial.fit_to_use("centre", x.tolist())
    np.testing.assert_allclose(alone.mean, x[[0, 2, 3, 4, 5]].mean(0))
    both = trial.fit_to_use("remove-top:1", x, partner)
    kept = np.concatenate([x[[0, 2, 3, 5]], partner[[0, 2, 3, 5]]])
    np.testing.assert_allclose(both.mean, kept.mean(0))
    assert both.name == "remove-top:1" and both.matrix.shape == (2, 2)


def test_the_half_that_is_tried_has_the_odd_unit_and_its_own_number_of_vectors():
    units = np.repeat(np.arange(9), [1, 2, 3, 4, 5, 6, 7, 8, 9])
    x = draw(45, 3) + 2
    found = try_cures(x, "centre", units=units, seed=1)
    fitting, _ = trial._split_units(units, 1, 32)
    assert (found.n_fitted, found.n_tried) == (fitting.sum(), 45 - fitting.sum())
    assert found.n_fitted != found.n_tried and found.units_tried == 5
    np.testing.assert_allclose(found.trials[0].fit.mean, x[fitting].mean(0))


def test_isotropic_vectors_get_no_cure_even_if_cures_leave_them_so():
    x = draw(400, 12, 4)
    found = try_cures(x, "centre,remove-top:1")
    assert all(one.isotropic for one in found.trials) and found.chosen is None
    assert found.text.startswith("No cure is needed: A is ")
    shifted = try_cures(x + 1, "remove-top:1,centre")
    assert shifted.chosen in shifted.trials


def test_a_class_that_no_text_of_the_fitting_half_has_is_never_right():
    units = np.arange(16)
    fitting, _ = trial._split_units(units, 0, 32)
    labels = np.where(fitting, np.arange(16) % 2, 2)
    labels[np.flatnonzero(~fitting)[0]] = 0
    x = np.eye(3)[labels] + 0.01 * draw(16, 3)
    found = try_cures(x, "centre", labels=labels)
    assert found.trials[0].scores["probe"].before.value == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    ("change", "spread", "isotropic", "harmed", "helped"),
    [
        (-0.2, 0.001, True, True, False),
        (0.2, 0.001, False, False, True),
        (-0.01, 0.2, False, False, False),
        (0.01, 0.2, False, False, False),
    ],
)
def test_what_chance_may_do_is_no_harm_no_help_and_no_cure(
    change, spread, isotropic, harmed, helped
):
    """The whole interval of a difference is below or above 0, and that of A after the cure below the floor."""
    wave = np.resize([0.0, 1, -1], 17)
    before = {"A": np.full(17, 0.5), "probe": np.full(17, 0.5)}
    after = {"A": 0.3 + change + spread * wave, "probe": 0.5 + change + spread * wave}
    found = trial._compare(Fit("centre", np.zeros(2)), before, after, 0.3, 12)
    assert found.isotropic == isotropic
    assert found.harmed == (("probe",) if harmed else ())
    assert found.helped == (("probe",) if helped else ())
    assert found.scores["probe"].difference.value == pytest.approx(change)
    plain = jackknife_interval(change + spread * wave)
    assert found.scores["probe"].difference.low == pytest.approx(float(plain.low))


@pytest.mark.parametrize("name", ["retrieval", "pairs found", "probe"])
def test_an_interval_of_answers_that_are_all_right_counts_units(name):
    right = {"A": np.full(9, 0.5), name: np.ones(9), "neighbours kept": np.ones(9)}
    found = trial._compare(Fit("centre", np.zeros(2)), right, right, 0.1, 12).scores
    z = 1.959963984540054
    for estimate in (found[name].before, found[name].after):
        assert (
            estimate.low == pytest.approx(1 / (1 + z * z / 12)) and estimate.high == 1
        )
    assert found["neighbours kept"].before.low == 1


def test_units_of_tasks_are_those_of_the_sample(monkeypatch):
    """Twenty units of four vectors, half tried; of these a sample whose pairs are all found."""
    monkeypatch.setattr(trial, "MOST_FOR_NEIGHBOURS", 12)
    x = draw(80, 6)
    units = np.repeat(np.arange(20), 4)
    found = try_cures(x, "centre", units=units, partner=x * 2, seed=3)
    fitting, _ = trial._split_units(units, 3, 32)
    sample = trial._sample_rows(np.flatnonzero(~fitting), 3)
    count = len(np.unique(units[sample]))
    assert count < len(sample) == 12 and found.units_tried == 10
    z = 1.959963984540054
    low = found.trials[0].scores["pairs found"].before.low
    assert low == pytest.approx(1 / (1 + z * z / count))


def test_the_first_free_cure_is_chosen_or_one_that_clearly_keeps_more_neighbours():
    """Intervals of the neighbours kept are .1 to either side of the number."""
    first = a_trial("a", 0, 0.3, isotropic=True)
    near = a_trial("b", 0, 0.45, isotropic=True)
    more = a_trial("c", 0, 0.55, isotropic=True)
    most = a_trial("d", 0, 0.7, isotropic=True)
    costly = a_trial("e", 0, 0.95, isotropic=True, harmed=("probe",))
    vain = a_trial("f", 0, 0.95, isotropic=False)
    for trials, chosen in (
        ([first, near], first), ([first, near, more], more), ([first, more, most], more),
        ([costly, vain, near, first], near), ([most, more], most), ([costly, vain], None),
        ([first, more, a_trial("g", 0, 0.76, isotropic=True)], "g"), ([], None),
    ):  # fmt: skip
        found = trial._choose(trials)
        if isinstance(chosen, str):
            assert found.fit.name == chosen
        else:
            assert found is chosen


def test_a_cure_that_cannot_be_fitted_is_left_out_only_if_it_chose_its_dimensions():
    notes = []
    x = np.ones((9, 2)) + 0.001 * draw(9, 2)
    assert [fit.name for fit in trial._fit_cures(["drop-dims:auto", "centre"], x, notes)] == ["centre"]  # fmt: skip
    assert len(notes) == 1 and notes[0].startswith("drop-dims:auto is left out: ")
    for names in (["drop-dims:auto"], ["drop-dims:7", "centre"], ["centre", "remove-top:2"]):  # fmt: skip
        with pytest.raises(MeasureError):
            list(trial._fit_cures(names, x, notes))
    assert len(notes) == 1


def test_the_lowest_a_is_the_one_nearest_to_zero():
    anisotropic = {"A": np.linspace(0.41, 0.42, 9)}
    trials = [a_trial("whiten", -0.31), a_trial("centre", 0.21), a_trial("standardise", 0.33)]  # fmt: skip
    text = "None of the cures tried makes the vectors isotropic; A is lowest with centre (.210)."
    assert trial._describe(trials, None, anisotropic, 0.1) == text


def test_groups_of_a_probe_are_those_of_its_units():
    """Sixteen of 32 units are tried, each a group of its own: as many replicates, and an interval of them."""
    labels = np.arange(32) % 3
    x = draw(32, 4) + np.eye(4)[labels]
    scorer_groups = {}
    for groups in (4, 16):
        fitting, group = trial._split_units(np.arange(32), 0, groups)
        scorer = trial._Scorer(
            x, np.arange(32), labels, x, fitting, ~fitting, np.flatnonzero(~fitting),
            group, groups,
        )  # fmt: skip
        scores = scorer.score(None)
        scorer_groups[groups] = {name: len(value) for name, value in scores.items()}
    for groups, lengths in scorer_groups.items():
        assert lengths == {
            "A": 1 + groups, "isoscore": min(9, 1 + groups) if groups > 8 else 1 + groups,
            "effective rank": min(9, 1 + groups), "neighbours kept": 1 + groups,
            "retrieval": 1 + groups, "probe": 1 + groups, "pairs found": 1 + groups,
        }  # fmt: skip


def test_whole_sentences_name_the_cure_and_the_dimension_that_do_not_fit():
    with pytest.raises(UsageError) as caught:
        expand_cures("whiten:2")
    assert str(caught.value) == (
        "expected whiten without an argument; got 'whiten:2'. Cure: write whiten"
    )
    with pytest.raises(MeasureError) as caught:
        fit_cure("drop-dims:1,9", draw(5, 4))
    assert str(caught.value) == (
        "expected dimensions from 0 to 3; got 9. Cure: count from 0"
    )


def test_one_constant_dimension_of_three_and_one_unused_direction():
    x = draw(60, 3) * [1, 0, 4] + 2
    assert fit_cure("standardise", x).notes == {"constant_dimensions": 1}
    small = draw(60, 3, 1) * [1, 1e-7, 4]
    assert fit_cure("whiten", small).notes == {"directions": 2}
    assert fit_cure("whiten", draw(60, 3) * [1, 1e-4, 4]).out == 3


def test_dimensions_dominate_beyond_what_chance_gives_once_in_a_thousand(monkeypatch):
    """Of three vectors the squares of the vectors themselves are no small part of the sum."""
    u = np.array([[0.6, 0.8, 0.0], [0.8, 0.0, 0.6], [1.0, 0.0, 0.0]])
    x = u * np.array([[2.0], [3.0], [5.0]])
    parts = u.sum(0) ** 2 - (u**2).sum(0)
    assert parts == pytest.approx([2 * (0.48 + 0.6 + 0.8), 0, 0])
    asked = []

    def quantile(level, width, n):
        asked.append((level, width, n))
        return 0.6

    monkeypatch.setattr(transforms, "mean_cosine_quantile", quantile)
    assert transforms.find_dominant_dimensions(x) == [0] and asked == [(0.999, 3, 3)]
    # A is 3.76 / 6 = .627
    monkeypatch.setattr(transforms, "mean_cosine_quantile", lambda *_: 0.63)
    assert transforms.find_dominant_dimensions(x) == []


def test_types_of_vectors_are_kept_from_single_precision_on():
    fit = Fit("centre", np.array([0.5, 0.25]))
    for given, kept in (
        ("float16", "float32"), ("int64", "float32"), ("bool", "float32"),
        ("float32", "float32"), ("float64", "float64"),
    ):  # fmt: skip
        found = fit.apply(np.ones((2, 2), dtype=given))
        assert found.dtype == kept and found.tolist() == [[0.5, 0.75]] * 2


def test_means_without_each_group_count_defined_scores_alone():
    """A tie is no pair that was found."""
    scores = np.array([1.0, np.nan, 0.0, 1.0, 1.0, np.nan])
    group = np.array([0, 0, 2, 2, 3, 4])
    found = tasks.average_by_group(scores, group, 6)
    assert found.tolist() == pytest.approx([3 / 4, 2 / 3, 1, 2 / 3])
    alone = tasks.average_by_group(scores[:2], group[:2], 6)
    assert alone[0] == 1 and np.isnan(alone[1:]).all() and len(alone) == 2
    assert np.isnan(tasks.average_by_group(scores[1:2], group[:1], 6)).tolist() == [
        True
    ]
    x = np.array([[1.0, 0], [0, 1]])
    assert tasks.find_own_pairs(x, np.array([[1.0, 0], [2, 0]])).tolist() == [0, 0]
    assert tasks.find_own_pairs(x[:1], -x[:1]).tolist() == [1]
