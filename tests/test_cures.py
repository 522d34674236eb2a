"""Cures: fitted, saved, applied; tried on data whose cause is known, so that the cure that fits is known too."""

import json

import numpy as np
import pandas as pd
import pytest
from typed import invoke

import anisoscope
from anisoscope.axes import Site
from anisoscope.cli.answers import _tabulate_cures
from anisoscope.cures import tasks
from anisoscope.cures.transforms import (
    Fit,
    expand_cures,
    find_dominant_dimensions,
    fit_cure,
)
from anisoscope.cures.trial import (
    CureTrial,
    Score,
    _choose,
    _compare,
    _split_units,
    try_cures,
)
from anisoscope.errors import MeasureError, OutputError, UsageError
from anisoscope.metrics.spectrum import isoscore
from anisoscope.runs.curing import _find_highest, read_layer_of_run
from anisoscope.store import as_records
from anisoscope.sums.jackknife import Estimate, wilson_interval

NAMES = (
    "centre",
    "standardise",
    "whiten",
    "remove-top:1",
    "remove-top:3",
    "drop-dims:auto",
    "drop-dims:0,3",
)


def draw_cloud(n=600, d=16, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_names_are_expanded():
    assert expand_cures("centre,remove-top:2..4") == [
        "centre",
        "remove-top:2",
        "remove-top:3",
        "remove-top:4",
    ]
    assert expand_cures("drop-dims:12,588,whiten") == ["drop-dims:12,588", "whiten"]
    assert expand_cures("drop-dims") == ["drop-dims:auto"]


@pytest.mark.parametrize(
    "name", ["center", "remove-top:0", "remove-top:3..1", "drop-dims:a", "centre:3"]
)
def test_a_name_that_is_none_is_refused_with_a_cure(name):
    with pytest.raises(UsageError, match=r"expected .*got|;"):
        expand_cures(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_fit_is_the_same_after_saving_and_row_by_row(name, tmp_path):
    x = draw_cloud() + np.arange(16)
    fit = fit_cure(name, x)
    fit.save(tmp_path / "fit.safetensors")
    loaded = Fit.load(tmp_path / "fit.safetensors")
    assert loaded.name == name
    assert loaded.notes == fit.notes
    np.testing.assert_array_equal(loaded.apply(x), fit.apply(x))
    np.testing.assert_allclose(fit.apply(x[7]), fit.apply(x)[7], atol=1e-12)
    assert fit.apply(x.astype(np.float32)).dtype == np.float32
    # half precision and whole numbers would round away what a cure leaves
    for kind in (np.float16, np.int64):
        rounded = x.astype(kind)
        assert fit.apply(rounded).dtype == np.float32
        np.testing.assert_allclose(
            fit.apply(rounded),
            fit.apply(rounded.astype(np.float64)),
            atol=1e-5,
            rtol=1e-6,
        )


def test_what_each_cure_leaves():
    x = draw_cloud(d=6) * [1, 2, 3, 4, 5, 6] + 3
    assert np.abs(fit_cure("centre", x).apply(x).mean(0)).max() < 1e-12
    np.testing.assert_allclose(fit_cure("standardise", x).apply(x).std(0), 1)
    np.testing.assert_allclose(
        np.cov(fit_cure("whiten", x).apply(x).T, bias=True), np.eye(6), atol=1e-9
    )
    removed = fit_cure("remove-top:2", x)
    variances = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    left = np.linalg.eigvalsh(np.cov(removed.apply(x).T, bias=True))
    np.testing.assert_allclose(left, [0, 0, *variances[:4]], atol=1e-9)
    assert not fit_cure("drop-dims:1,4", x).apply(x)[:, [1, 4]].any()


@pytest.mark.parametrize("name", ["centre", "standardise", "whiten", "remove-top:3"])
def test_the_spectrum_after_a_cure_follows_from_the_covariance_before(name):
    x = draw_cloud(d=12) @ np.diag(np.linspace(1, 4, 12)) + 1
    fit = fit_cure(name, x)
    matrix = np.eye(12) if fit.matrix is None else fit.matrix
    if fit.scale is not None:
        matrix = fit.scale[:, None] * matrix
    covariance = matrix.T @ np.cov(x.T, bias=True) @ matrix
    again = np.cov(fit.apply(x).T, bias=True)
    expected, found = (
        isoscore(np.linalg.eigvalsh(c)[None]) for c in (covariance, again)
    )
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.filterwarnings("ignore:.*left out")
@pytest.mark.parametrize("name", NAMES)
def test_scores_after_a_cure_are_those_of_the_transformed_vectors_measured_again(name):
    """A, IsoScore and the effective rank of every cure, to 1e-9; of some vectors nothing is left once dimensions go."""
    x = draw_cloud(d=12) @ np.diag(np.linspace(1, 4, 12)) + np.linspace(0, 2, 12)
    x[::50] *= np.isin(np.arange(12), [0, 3])
    units = np.arange(600) // 5
    (trial,) = try_cures(x, name, units=units).trials
    fitting, _ = _split_units(units, 0, 32)
    again = fit_cure(name, x[fitting]).apply(x[~fitting])
    names = {
        "A": ("mean_cosine", "mean_cosine"),
        "isoscore": ("spectrum", "spectrum.isoscore"),
    }
    names["effective rank"] = ("spectrum", "spectrum.effective_rank")
    for score, (metric, column) in names.items():
        measured = anisoscope.metric(metric, again)[column].value
        assert abs(trial.scores[score].after.value - measured) <= 1e-9, score


def test_whitening_of_fewer_vectors_than_dimensions_keeps_what_varies():
    x = draw_cloud(n=10, d=40)
    assert fit_cure("whiten", x).out == 9


def test_dominant_dimensions_are_those_that_carry_a():
    x = draw_cloud(d=32)
    x[:, 5] += 20
    assert find_dominant_dimensions(x) == [5]
    assert find_dominant_dimensions(draw_cloud(d=32)) == []


def test_a_common_offset_is_cured_by_centring():
    found = try_cures(draw_cloud(d=32) + 2, "centre,whiten")
    assert found.chosen is not None
    assert found.chosen.fit.name == "centre"
    assert found.chosen.isotropic
    assert "Best cure: centre." in found.text


def test_an_isotropic_cloud_needs_no_cure_and_none_is_chosen():
    """One was marked, and written, beside the sentence that none is needed."""
    found = try_cures(draw_cloud(d=32))
    assert "No cure is needed" in found.text
    assert found.chosen is None


def test_a_single_cure_that_is_named_is_written_even_if_none_is_needed(tmp_path):
    """The cure of the refusal was to name a single one, which was refused as well."""
    x = draw_cloud(d=32)
    np.save(tmp_path / "x.npy", x)
    words = ["cure", tmp_path / "x.npy", "-q", "--write", tmp_path / "y.npy"]
    refused = invoke(words)
    assert isinstance(refused.exception, UsageError)
    assert "name it alone" in str(refused.exception)
    assert invoke([*words, "--cures", "centre"]).exit_code == 0
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), x - x.mean(axis=0), atol=1e-6
    )


def test_a_cure_that_harms_the_task_is_said_to():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 800)
    # The classes lie on the one direction of largest variance: taking it away makes them alike.
    x = (
        rng.normal(size=(800, 16))
        + 3 * (2 * labels[:, None] - 1) * np.eye(16)[0]
        + 2 * np.eye(16)[1]
        + 1
    )
    found = try_cures(x, "remove-top:1,centre", labels=labels)
    removed, centred = found.trials
    assert removed.isotropic
    assert set(removed.harmed) == {"retrieval", "probe"}
    assert not centred.harmed
    assert found.chosen is centred
    table = found.table().set_index(["cure", "score"])
    assert table.loc[("remove-top:1", "retrieval"), "harmed"]
    assert table.loc[("remove-top:1", "retrieval"), "difference_high"] < 0
    shown = {row[0]: row[-1] for row in _tabulate_cures(found).rows}
    assert shown == {
        "as it is": "",
        "remove-top:1": f"harms {', '.join(removed.harmed)}",
        "centre": "isotropic ←",
    }


def test_a_fall_or_rise_that_chance_may_make_is_neither_harm_nor_help():
    """Of a probe that is 1 % worse or better, give or take 10 %, nothing is said; of 10 %, give or take 1 %, it is."""

    def tried(change, spread):
        probe = np.full(17, 0.8)
        after = probe + change + spread * np.resize([0.0, 1, -1], 17)
        of_a = {"A": np.linspace(0.9, 0.91, 17)}
        return _compare(
            Fit("centre", np.zeros(4)),
            of_a | {"probe": probe},
            of_a | {"probe": after},
            0.1,
            16,
        )

    for change in (-0.01, 0.01):
        unsure = tried(change, 0.1)
        assert unsure.scores["probe"].difference.value == pytest.approx(change)
        assert (unsure.harmed, unsure.helped) == ((), ())
    assert (tried(-0.1, 0.001).harmed, tried(0.1, 0.001).helped) == (
        ("probe",),
        ("probe",),
    )


@pytest.mark.parametrize(
    ("middle", "isotropic"), [(0.05, True), (0.0995, False), (0.15, False)]
)
def test_a_cure_makes_vectors_isotropic_if_the_whole_interval_is_below_the_floor(
    middle, isotropic
):
    after = {"A": np.full(17, middle) + 0.0005 * np.resize([0.0, 1, -1], 17)}
    found = _compare(
        Fit("centre", np.zeros(4)), {"A": np.linspace(0.9, 0.91, 17)}, after, 0.1, 16
    )
    assert found.isotropic == isotropic
    assert found.scores["A"].after.low < middle < found.scores["A"].after.high


def test_pairs_are_found_better_without_a_common_direction():
    rng = np.random.default_rng(2)
    shared = rng.normal(size=(400, 24))
    x, partner = (
        shared + rng.normal(size=shared.shape) * 0.7 + rng.gamma(0.3, 8, (400, 1))
        for _ in range(2)
    )
    found = try_cures(x, "centre,remove-top:1", partner=partner)
    by_name = {trial.fit.name: trial.scores["pairs found"] for trial in found.trials}
    assert by_name["remove-top:1"].difference.low > 0


@pytest.mark.parametrize(("noise", "share"), [(1e-3, 1.0), (None, 0.0)])
def test_a_share_of_all_or_none_has_an_interval(noise, share):
    """`pairs found .000` stood without one, as if it were certain; of n units it is Wilson's."""
    x = np.random.default_rng(3).normal(size=(120, 10))
    partner = -x if noise is None else x + noise
    trials = try_cures(x, "centre", partner=partner)
    found = trials.trials[0].scores["pairs found"].before
    assert found.value == share
    low, high = wilson_interval(share, trials.units_tried)
    assert (found.low, found.high) == (
        pytest.approx(float(low)),
        pytest.approx(float(high)),
    )


def test_the_interval_of_a_share_of_all_counts_units_and_not_vectors():
    """Of 20 units of 12 vectors each, half are tried: ten answers, not 120."""
    units = np.repeat(np.arange(20), 12)
    x = np.random.default_rng(3).normal(size=(240, 10))
    trials = try_cures(x, "centre", partner=x + 1e-3, units=units)
    found = trials.trials[0].scores["pairs found"].before
    assert (trials.units_tried, found.value) == (10, 1)
    assert found.low == pytest.approx(float(wilson_interval(1.0, 10)[0]))


def test_the_probe_is_trained_on_what_the_cure_gives():
    rng = np.random.default_rng(7)
    labels = rng.integers(0, 3, 300)
    x = rng.normal(size=(300, 6)) * [9, 1, 1, 1, 1, 5] + 2 * np.eye(6)[labels] + 1
    fitting, _ = _split_units(np.arange(300), 0, 32)
    for trial in try_cures(x, "drop-dims:0,whiten,remove-top:1", labels=labels).trials:
        y = trial.fit.apply(x)
        right = tasks.run_probe(
            y[fitting], labels[fitting], y[~fitting], labels[~fitting], 3
        )
        assert trial.scores["probe"].after.value == pytest.approx(right.mean()), (
            trial.fit.name
        )


def test_a_later_cure_is_chosen_if_it_clearly_keeps_more_neighbours():
    def of(low, high, **how):
        kept = Estimate((low + high) / 2, low, high)
        score = Score("neighbours kept", kept, kept, kept)
        return CureTrial(
            Fit("centre", np.zeros(2)),
            {"neighbours kept": score},
            **({"isotropic": True} | how),
        )

    first, overlapping, clear = of(0.5, 0.6), of(0.55, 0.8), of(0.61, 0.7)
    assert (
        _choose([first, overlapping]) is first
        and _choose([first, overlapping, clear]) is clear
    )
    assert _choose([clear, first]) is clear
    assert (
        _choose([of(0.9, 1, isotropic=False), of(0.9, 1, harmed=("probe",)), first])
        is first
    )
    assert _choose([of(0.9, 1, isotropic=False)]) is None


def test_nothing_is_fitted_on_the_units_it_is_tried_on():
    x = draw_cloud(n=400)
    units = np.repeat(np.arange(40), 10)
    found = try_cures(x, "centre", units=units)
    assert found.n_fitted + found.n_tried == 400
    assert found.units_tried == 20
    fitted = found.trials[0].fit.mean
    halves = [np.flatnonzero(np.isclose(x, fitted, atol=1e-12).all(1))]
    assert all(len(half) == 0 for half in halves)
    assert not np.allclose(fitted, x.mean(0))


def test_neighbours_are_of_other_units():
    x = np.repeat(np.eye(4), 3, axis=0) + np.linspace(0, 0.01, 12)[:, None]
    units = np.repeat(np.arange(4), 3)
    near = tasks.find_neighbours(x, units, k=2)
    assert (units[near] != units[:, None]).all()
    alone = tasks.find_neighbours(x[:3], np.zeros(3, dtype=int), k=2)
    assert (alone == -1).all()
    assert np.isnan(tasks.compare_neighbours(alone, alone)).all()


@pytest.mark.parametrize(
    ("x", "more", "text"),
    [
        (draw_cloud(n=5), {}, "at least 8 units"),
        (draw_cloud()[:, :1], {}, "two dimensions"),
        (draw_cloud(), {"labels": np.zeros(3, dtype=int)}, "labels for each of 600"),
        (draw_cloud(), {"partner": np.zeros((2, 16))}, "pairs of shape"),
    ],
)
def test_bad_input_is_refused(x, more, text):
    with pytest.raises(UsageError, match=text):
        try_cures(x, **more)


def test_a_fit_of_other_vectors_is_refused(tmp_path):
    with pytest.raises(UsageError, match="16 dimensions"):
        fit_cure("centre", draw_cloud()).apply(np.zeros((3, 5)))
    with pytest.raises(MeasureError, match="fewer directions"):
        fit_cure("remove-top:16", draw_cloud())
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"no fit")
    with pytest.raises(OutputError, match="fitted cure"):
        Fit.load(other)


def test_vectors_that_are_zero_or_not_finite_are_left_out_and_counted():
    x = draw_cloud()
    x[3] = 0
    x[5, 2] = np.nan
    assert "2 vectors" in try_cures(x, "centre").notes[0]


def test_what_is_left_out_of_a_trial_is_left_out_of_the_cure_to_use(tmp_path):
    """One vector of NaN made a cure of NaN, which was saved and applied without a word."""
    x = draw_cloud() + 3.0
    sound = np.delete(x, [3, 5], axis=0)
    x[3], x[5, 2] = 0, np.nan
    found = anisoscope.cure(x, cures="centre")
    np.testing.assert_allclose(found.fit.mean, sound.mean(axis=0), rtol=1e-12)
    np.save(tmp_path / "x.npy", x)
    words = [
        "cure",
        tmp_path / "x.npy",
        "-q",
        "--cures",
        "centre",
        "--save",
        tmp_path / "fit.safetensors",
    ]
    assert invoke(words).exit_code == 0
    np.testing.assert_array_equal(
        Fit.load(tmp_path / "fit.safetensors").mean, found.fit.mean
    )


def test_a_cure_of_pairs_is_fitted_on_both_sides(tmp_path):
    """As in the trial: it was fitted on the first side alone."""
    x, partner = draw_cloud() + 3.0, draw_cloud(seed=1) + 5.0
    partner[7] = np.nan
    both = np.concatenate([np.delete(x, 7, axis=0), np.delete(partner, 7, axis=0)])
    found = anisoscope.cure(x, pairs=partner, cures="centre")
    np.testing.assert_allclose(found.fit.mean, both.mean(axis=0), rtol=1e-12)
    np.save(tmp_path / "x.npy", x), np.save(tmp_path / "y.npy", partner)
    words = [
        "cure",
        tmp_path / "x.npy",
        "--pairs",
        tmp_path / "y.npy",
        "-q",
        "--cures",
        "centre",
    ]
    assert invoke([*words, "--save", tmp_path / "fit.safetensors"]).exit_code == 0
    np.testing.assert_array_equal(
        Fit.load(tmp_path / "fit.safetensors").mean, found.fit.mean
    )


def test_of_several_cures_none_is_used_that_does_not_fit():
    """One that was left out made the other the single one, which was used though nothing chose it."""
    x = np.abs(
        draw_cloud(n=300, d=3)
    )  # so narrow a space that A needs no cure; every dimension is dominant
    found = anisoscope.cure(x, cures="remove-top:1,drop-dims:auto")
    assert set(found.table()["cure"]) == {"remove-top:1"} and found.chosen is None
    assert found.fit is None


def test_a_pair_that_is_no_nearer_than_another_is_not_found():
    """Ties count as misses: of partners that are all equal none is found."""
    x = np.eye(3)
    assert tasks.find_own_pairs(x, x).tolist() == [1, 1, 1]
    assert tasks.find_own_pairs(x, np.ones((3, 3))).tolist() == [0, 0, 0]
    assert tasks.find_own_pairs(
        x, np.array([[1.0, 0, 0], [1, 0, 0], [0, 0, 1]])
    ).tolist() == [0, 0, 1]


def test_a_group_without_a_score_is_no_group_of_the_interval():
    scores = np.array([1.0, 0.0, np.nan, 1.0, np.nan])
    group = np.array([0, 0, 1, 3, 3])
    np.testing.assert_allclose(
        tasks.average_by_group(scores, group, 5), [2 / 3, 1, 1 / 2]
    )
    assert np.isnan(tasks.average_by_group(scores[[2]], group[[2]], 5)).tolist() == [
        True
    ]


# ---- of a run, and of a model ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def drifted(tmp_path_factory):
    """A run of 40 sequences at two layers, the second with a common offset; and its vectors [token, dim] by layer."""
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 40, 6, 12))
    second += 3 * rng.normal(size=12)
    folder = tmp_path_factory.mktemp("runs") / "drifted"
    layers = {"first": first.astype(np.float32), "second": second.astype(np.float32)}
    anisoscope.measure(layers, panel="hidden", tokens="all", output=folder)
    return folder, [x.reshape(-1, 12).astype(np.float64) for x in layers.values()]


def test_a_cure_of_a_run_is_that_of_its_vectors_and_equals_measuring_again(
    drifted, tmp_path
):
    folder, (_, second) = drifted
    kept = read_layer_of_run(folder)
    assert kept.layer == "vectors layer 1"  # where A is highest
    np.testing.assert_allclose(np.sort(kept.vectors, 0), np.sort(second, 0))
    assert len(np.unique(kept.units)) == 40
    assert kept.notes == (
        "240 sampled vectors of vectors layer 1, where A is highest (another: --layer)",
    )
    found = try_cures(
        kept.vectors, "centre,standardise,whiten,remove-top:2", units=kept.units
    )
    fitting, _ = _split_units(kept.units, 0, 32)
    for trial in found.trials:
        again = fit_cure(trial.fit.name, kept.vectors[fitting]).apply(
            kept.vectors[~fitting]
        )
        measured = anisoscope.metric("mean_cosine", again)["mean_cosine"].value
        assert abs(trial.scores["A"].after.value - measured) <= 1e-9
        assert trial.isotropic
    saved = tmp_path / "fit.safetensors"
    done = invoke(
        [
            "cure",
            str(folder),
            "--layer",
            "1",
            "--cures",
            "centre",
            "--save",
            str(saved),
            "-q",
        ]
    )
    assert done.exit_code == 0 and "Best cure: centre." in done.stdout
    np.testing.assert_allclose(Fit.load(saved).mean, second.mean(0), atol=1e-9)


def test_intervals_of_a_cure_of_a_run_are_over_its_sequences(drifted):
    """As of independent vectors they would be far too narrow."""
    folder, _ = drifted
    kept = read_layer_of_run(folder)
    of_run = anisoscope.cure(folder, cures="centre").table()
    of_vectors = anisoscope.cure(kept.vectors, cures="centre", units=kept.units)
    of_independent = anisoscope.cure(kept.vectors, cures="centre")
    assert of_run.equals(of_vectors.table())
    assert not of_run.equals(of_independent.table())


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--layer", "7"], "a layer of this run"),
        (["--corpus", "text.txt"], "--corpus only with a model"),
        (["--limit", "3"], "--limit only with a model"),
    ],
)
def test_what_a_run_cannot_give_is_said(drifted, more, text):
    folder, _ = drifted
    done = invoke(["cure", str(folder), *more, "-q"])
    assert done.exit_code == 2 and text in str(done.exception)


def test_a_run_without_a_sample_is_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3, 5)).astype(np.float32)
    anisoscope.measure(x, panel="hidden", sample=0, output=tmp_path / "run")
    with pytest.raises(UsageError, match="a sample of vectors"):
        read_layer_of_run(tmp_path / "run")


def test_who_cures_a_sample_is_told_how_many_vectors_there_are(tmp_path):
    x = np.random.default_rng(0).normal(size=(400, 5)).astype(np.float32)
    anisoscope.measure(x, panel="hidden", sample=100, output=tmp_path / "run")
    assert read_layer_of_run(tmp_path / "run").notes[1:] == (
        "the run measured 400 vectors: --sample keeps more of them",
    )


@pytest.mark.parametrize("left", [2, 0])
def test_units_without_a_usable_vector_do_not_count(left):
    x = np.random.default_rng(0).normal(size=(80, 6))
    units = np.repeat(np.arange(8), 10)
    x[units >= left] = 0
    with pytest.raises(UsageError, match=f"at least 8 units.*got {left}"):
        try_cures(x, "centre", units=units)


def test_a_sample_of_a_run_that_did_not_measure_a_can_be_cured(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    anisoscope.measure(x, metrics="calibrated", output=tmp_path / "run")
    kept = read_layer_of_run(tmp_path / "run")
    assert kept.vectors.shape == (60, 5) and len(kept.notes) == 1


def test_a_model_is_measured_for_its_vectors(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(
            f"Document {i} tells of {i + 3} dogs and {2 * i} cats." for i in range(12)
        )
    )
    monkeypatch.chdir(tmp_path)
    done = invoke(
        [
            "cure",
            "builtin:minilm",
            "--corpus",
            str(text),
            "--layer",
            "6",
            "--cures",
            "centre",
            "-q",
        ]
    )
    assert done.exit_code == 0 and "sampled vectors of encoder layer 6" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "text.txt"
    ]  # nothing is left behind


def test_python_says_what_the_command_says_and_uses_the_cure_on_others(tmp_path):
    x = draw_cloud(n=300) + 3.0
    partner = x + np.random.default_rng(4).normal(size=x.shape) * 0.1
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "pairs.npy", partner)
    found = anisoscope.cure(x, pairs=partner)
    done = invoke(
        [
            "cure",
            tmp_path / "x.npy",
            "--pairs",
            tmp_path / "pairs.npy",
            "--format",
            "json",
            "-q",
        ]
    )
    told = json.loads(done.stdout)
    assert (found.chosen, found.text) == (
        told["chosen"],
        told["findings"][0]["text"],
    ) and found.chosen
    of_files = anisoscope.cure(tmp_path / "x.npy", pairs=tmp_path / "pairs.npy")
    np.testing.assert_array_equal(of_files.table()["after"], found.table()["after"])
    found.save(tmp_path / "fit.safetensors")
    np.testing.assert_array_equal(
        Fit.load(tmp_path / "fit.safetensors").apply(partner), found.apply(partner)
    )
    both = np.concatenate([x, partner])
    np.testing.assert_array_equal(found.apply(x), fit_cure(found.chosen, both).apply(x))
    assert found.text in repr(found) and "as it is" in found._repr_html_()
    run = anisoscope.measure(x, output=tmp_path / "run", quiet=True)
    assert anisoscope.cure(run, cures="centre").fit.name == "centre"


def test_units_labels_and_layers_of_files_are_those_of_the_arrays(tmp_path):
    """Twelve vectors of a unit are not twelve units, and the pairs are of the layer that is asked for."""
    units, labels = np.repeat(np.arange(20), 12), np.arange(240) % 3
    layers = {
        name: draw_cloud(240, 8, seed) + 2
        for seed, name in enumerate(("first", "second"))
    }
    pairs = {name: x + draw_cloud(240, 8, 7) for name, x in layers.items()}
    np.savez(tmp_path / "x.npz", **layers, units=units, labels=labels)
    np.savez(tmp_path / "pairs.npz", **pairs)
    for name in layers:
        expected = anisoscope.cure(
            layers[name], pairs=pairs[name], units=units, labels=labels, cures="centre"
        ).table()
        assert {"retrieval", "pairs found"} <= {*expected["score"]}
        found = anisoscope.cure(
            tmp_path / "x.npz", pairs=tmp_path / "pairs.npz", layer=name, cures="centre"
        ).table()
        pd.testing.assert_frame_equal(found, expected)
        files = [tmp_path / "x.npz", "--pairs", tmp_path / "pairs.npz", "--layer", name]
        told = invoke(["cure", *files, "--cures", "centre", "--format", "json", "-q"])
        records = pd.DataFrame(json.loads(told.stdout)["records"])
        np.testing.assert_allclose(
            records["after_low"].astype(float), expected["after_low"], atol=1e-9
        )


def test_the_seed_decides_which_half_is_fitted_on_wherever_it_is_given(tmp_path):
    x = draw_cloud(60, 8) + 1
    np.save(tmp_path / "x.npy", x)
    expected = try_cures(x, "centre", seed=3).table()
    assert not expected.equals(try_cures(x, "centre").table())
    pd.testing.assert_frame_equal(
        anisoscope.cure(x, cures="centre", seed=3).table(), expected
    )
    told = invoke(
        [
            "cure",
            tmp_path / "x.npy",
            "--cures",
            "centre",
            "--seed",
            "3",
            "--format",
            "json",
            "-q",
        ]
    )
    records = pd.DataFrame(json.loads(told.stdout)["records"])
    np.testing.assert_allclose(
        records["after"].astype(float), expected["after"], atol=1e-9
    )


def test_the_layer_of_the_highest_a_is_one_of_its_own_stack():
    """Both stacks have a layer 1: the one of the decoder is more anisotropic."""
    rows = [{"stack": stack, "site": "hidden", "layer": layer, "value": value} for stack, layer, value in (
        ("encoder", 0, 0.3), ("encoder", 1, 0.1), ("decoder", 0, 0.2), ("decoder", 1, 0.8)
    )]  # fmt: skip
    records = as_records(pd.DataFrame(rows), metric="mean_cosine")
    for order in (rows, rows[::-1]):
        layers = {}
        for row in order:
            site = Site(row["stack"], row["layer"], "hidden")
            layers[f"{row['stack']} layer {row['layer']}"] = (
                site,
                np.zeros((1, 2)),
                np.zeros(1, np.int64),
            )
        assert _find_highest(records, layers) == "decoder layer 1"


def test_a_cure_is_applied_to_the_layer_that_is_asked_for(tmp_path):
    layers = {
        name: draw_cloud(40, 8, seed) for seed, name in enumerate(("first", "second"))
    }
    np.savez(tmp_path / "x.npz", **layers)
    fit = fit_cure("centre", draw_cloud(50, 8, 9) + 1)
    fit.save(tmp_path / "fit.safetensors")
    for name, x in layers.items():
        files = [
            tmp_path / "fit.safetensors",
            tmp_path / "x.npz",
            "--layer",
            name,
            "-o",
            tmp_path / "y.npy",
        ]
        assert invoke(["apply", *files, "-q"]).exit_code == 0
        np.testing.assert_allclose(
            np.load(tmp_path / "y.npy"), fit.apply(x), atol=1e-12
        )


def test_a_cure_that_cannot_be_fitted_does_not_end_the_others():
    """Every dimension of a shifted cloud of few dimensions is a dominant one: `cure` ended with all 16 dropped."""
    x = draw_cloud(n=300) + 3.0
    found = try_cures(x)
    assert [trial.fit.name for trial in found.trials][
        -1
    ] == "remove-top:3" and found.chosen is not None
    assert any(
        note.startswith(
            "drop-dims:auto is left out: expected at least one dimension that is not dropped"
        )
        for note in found.notes
    )
    with pytest.raises(MeasureError, match="dimension that is not dropped"):
        try_cures(x, "drop-dims:auto")


def test_what_python_cannot_cure_is_told():
    isotropic = np.random.default_rng(0).normal(size=(200, 30))
    found = anisoscope.cure(isotropic)
    assert found.chosen is None
    with pytest.raises(
        UsageError, match=r"a cure that works; got No cure is needed.*cures='centre'"
    ):
        found.apply(isotropic)
    assert anisoscope.cure(isotropic, cures="centre").apply(
        isotropic
    ).mean() == pytest.approx(0, abs=1e-12)
    with pytest.raises(UsageError, match="`units` and `labels` only with an array"):
        anisoscope.cure("x.npy", units=[1])
    with pytest.raises(UsageError, match="a run in memory"):
        anisoscope.cure(anisoscope.measure(isotropic, quiet=True))
