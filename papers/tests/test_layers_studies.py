"""Figures 1–5 and 16 on records made up to hold, to fail and to leave open; permutation p against brute force."""

from itertools import permutations

import numpy as np
import pandas as pd
import pytest
import soundfile
import tiny
import torch
from scipy import stats
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperModel

from anisoscope.data.corpora import named_corpora
from anisoscope.errors import CorpusError, ModelError
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.runs.job import Job
from anisoscope.store import as_records, select
from anisoscope.sums.isotropic import q95
from anisoscope_papers import runner
from anisoscope_papers.godey2024 import fig05_16_drift, layer_curves
from anisoscope_papers.judge import Test as Check, compute_p_of_replicates, judge_tests
from anisoscope_papers.study import Claim, Context, read_published

STUDIES = {s.name: s for s in runner.find_studies() if s.paper == "godey2024"}
LAYERED = ("fig1", "fig2", "fig3a", "fig3b", "fig4")
GROUPS, DIM = 32, 768
BOUND = q95(DIM)


def system(
    model,
    values,
    *,
    error=0.002,
    stack="encoder",
    seed=0,
    drift=None,
    groups=GROUPS,
    site="hidden",
):
    """Records of one model: A per layer, its interval from leaving groups out, and the drift."""
    rng = np.random.default_rng(len(model) + seed)
    rows, units = [], 60
    drift = 10 * np.asarray(values, float) if drift is None else drift
    for layer, (a, x) in enumerate(zip(values, drift, strict=True)):
        noise = rng.standard_normal(groups)
        noise = (noise - noise.mean()) / noise.std() * error / np.sqrt(groups - 1)
        half = stats.t.ppf(0.975, groups - 1) * error
        place = {
            "model": model,
            "seed": seed,
            "stack": stack,
            "layer": layer,
            "site": site,
            "token_policy": "all",
        }
        place |= {"kind": "self", "n_units": units}
        rows.append(
            place
            | {"metric": "mean_cosine", "value": a, "low": a - half, "high": a + half}
        )
        rows.append(
            place
            | {
                "metric": "mean_cosine.isotropic_q95",
                "value": BOUND,
                "low": BOUND,
                "high": BOUND,
            }
        )
        rows.append(place | {"metric": "drift", "value": x})
        for g, delta in enumerate(noise):
            rows.append(
                place
                | {
                    "metric": "mean_cosine.left_out",
                    "component": str(g),
                    "value": a + delta,
                }
            )
            rows.append(
                place
                | {"metric": "drift.left_out", "component": str(g), "value": x + delta}
            )
    return as_records(pd.DataFrame(rows))


def judge(name, *parts):
    """{(claim, subject): outcome}."""
    records = pd.concat(parts, ignore_index=True)
    return {(v.claim, v.subject): v.outcome for v in STUDIES[name].judge(records)}


HIGH, ZERO, NEAR = (0.3, 0.5, 0.6), (0.0, 0.0, 0.0), (0.0, BOUND, 0.0)


@pytest.mark.parametrize(
    ("values", "expected"), [(HIGH, "holds"), (ZERO, "fails"), (NEAR, "undecided")]
)
def test_one_anisotropic_layer_is_enough(values, expected):
    assert (
        judge("fig1", system("bert-base", values))["anisotropic", "bert-base"]
        == expected
    )


@pytest.mark.parametrize("lost", [(), ("first",), ("first", "other")])
def test_another_corpus_stands_in_for_one_that_cannot_be_had_and_is_not_had_for_sure(
    tmp_path, lost
):
    """If that cannot be had either, the model is left out, and nothing is said to stand in."""
    first, other = next(
        (name, row.stand_in) for name, row in named_corpora().items() if row.stand_in
    )
    names, context = {"first": first, "other": other}, Context(tmp_path, tmp_path)
    gone = [names[which] for which in lost]

    def measure_it(job):
        if job.corpus in gone:
            raise CorpusError(f"the corpus {job.corpus}", "none", "fetch it")
        return job.corpus

    found = layer_curves.measure_if_available(
        Job("a-model", corpus=first), context, measure_it
    )
    noted = [(row["metric"], row.get("corpus")) for row in context.lacking]
    assert (found, noted) == {
        0: ([first], []),
        1: ([other], [("stands in", other)]),
        2: ([], [("withheld", None)]),
    }[len(lost)]


def test_left_out_values_are_those_of_a_pass_without_the_group(tmp_path):
    """Group by group, and of no group that holds nothing."""
    documents, model = tiny.documents(9, shortest=6), tiny.model("bert")
    settings = Settings(
        metrics=("mean_cosine", "drift"), tokens=("all",), groups=4, sample=0
    )
    units = [unit for unit in range(9) if unit % 4 != 2]
    run_pass(model, tiny.Plan(documents, units=units), settings).save(tmp_path / "sums")
    found = layer_curves.tabulate_left_out(tmp_path / "sums", settings)
    assert set(found["component"]) == {"0", "1", "3"} and set(
        found["token_policy"]
    ) == {"all"}
    for group in (0, 1, 3):
        others = [unit for unit in units if unit % 4 != group]
        wanted = run_pass(model, tiny.Plan(documents, units=others), settings).records()
        for metric in ("mean_cosine", "drift"):
            keys = {"site": "hidden", "component": None, "metric": metric}
            whole = select(wanted, **keys).sort_values("layer")
            ours = select(
                found,
                **keys | {"component": str(group), "metric": f"{metric}.left_out"},
            ).sort_values("layer")
            assert ours["layer"].tolist() == whole["layer"].tolist() == [0, 1, 2, 3]
            np.testing.assert_allclose(ours["value"], whole["value"], rtol=1e-9)


def test_made_up_intervals_are_those_of_the_left_out_values():
    records = system("m", HIGH, error=0.01)
    layers = layer_curves.select_curves(records)
    theta = _layers_replicates(records, layers)[:, 1]
    value, low, high, *_ = compute_p_of_replicates(theta)
    assert (value, low, high) == pytest.approx(
        tuple(layers.loc[1, ["value", "low", "high"]])
    )


def _layers_replicates(records, layers):
    from anisoscope_papers.godey2024.layer_curves import select_replicates

    return select_replicates(records, layers, "mean_cosine")


def test_replicates_have_all_layers_and_stand_in_the_order_of_the_groups():
    """Group 10 comes after group 9; one that lacks a layer is left out; a layer without any is no matter of taste."""
    records = system("m", HIGH, groups=12)
    layers = layer_curves.select_curves(records)
    left = select(records, metric="mean_cosine.left_out", layer=1)["value"].to_numpy(
        float
    )
    theta = _layers_replicates(records.sample(frac=1, random_state=0), layers)
    np.testing.assert_array_equal(theta[:, 1], [HIGH[1], *left])
    of_one = (records["metric"] == "mean_cosine.left_out") & (records["layer"] == 1)
    lacking = _layers_replicates(
        records[~(of_one & (records["component"] == "9"))], layers
    )
    np.testing.assert_array_equal(lacking[:, 1], [HIGH[1], *np.delete(left, 9)])
    np.testing.assert_array_equal(
        _layers_replicates(select(records, metric="mean_cosine"), layers), [HIGH]
    )
    with pytest.raises(
        ValueError, match="a layer of m has no mean_cosine with a group left out"
    ):
        _layers_replicates(records[~of_one], layers)
    with pytest.raises(
        ValueError, match="several values for one component and stack and layer"
    ):
        _layers_replicates(pd.concat([records, records[of_one]]), layers)


@pytest.mark.parametrize(
    ("others", "expected"), [(0.1, "holds"), (0.9, "fails"), (0.48, "undecided")]
)
def test_characters_only_against_the_others(others, expected):
    found = judge(
        "fig2",
        system("byt5-base", (0.1, 0.5, 0.5)),
        system("canine-s", (0.1, others, others)),
    )
    assert found["characters only", "byt5-base above canine-s"] == expected


def test_a_first_run_says_whether_it_measures_what_others_measured():
    """Published values of BERT and GPT-2 stand beside ours, and nothing does beside other models."""
    expected = read_published("godey2024")["fig1"]["expected"]
    bert, gpt2 = (np.array([0.1, *expected[model]]) for model in ("bert-base", "gpt2"))
    bert[5] += 0.06
    gpt2[7] += 0.04
    records = pd.concat(
        [system("bert-base", bert), system("gpt2", gpt2), system("t5-base", HIGH)],
        ignore_index=True,
    )
    found = {one.place: one.verdict for one in STUDIES["fig1"].compare(records)}
    assert len(found) == 24
    assert found.pop("bert-base, layer 5") == "differs"
    assert found.pop("gpt2, layer 12") == "not comparable", (
        "published after the final norm"
    )
    assert set(found.values()) == {"agrees"}
    (lacking,) = {
        one.verdict for one in STUDIES["fig1"].compare(system("bert-base", [0.1]))
    }
    assert lacking == "open"
    assert not STUDIES["fig1"].compare(system("t5-base", HIGH))


def test_decoders_are_extreme_where_one_layer_is():
    encoder = system("byt5-base", HIGH)
    for top, expected in ((0.9, "holds"), (0.5, "fails")):
        decoder = system("byt5-base", (0.2, top, 0.3), stack="decoder")
        assert (
            judge("fig2", encoder, decoder)["extreme decoders", "byt5-base"] == expected
        )
    assert judge("fig2", encoder)["extreme decoders", ""] == "undecided"


def test_speech_needs_every_layer():
    for lowest, expected in ((0.3, "holds"), (0.1, "fails"), (0.2, "undecided")):
        assert (
            judge("fig3a", system("hubert-base", (0.4, lowest, 0.5)))[
                "every layer at least 0.2", "hubert-base"
            ]
            == expected
        )


def test_vision_claims():
    systems = [
        system("vit-base", (0.1, 0.15)),
        system("beit-base", (0.3, 0.4)),
        system("mit-b0", (0.0, -0.01)),
    ]
    found = judge("fig3b", *systems)
    assert (
        found["several anisotropic", ""]
        == found["MiT isotropic", "mit-b0"]
        == found["ViT low", "vit-base"]
        == "holds"
    )
    found = judge("fig3b", system("vit-base", (0.1, 0.3)), system("mit-b0", (0.0, 0.3)))
    assert found["MiT isotropic", "mit-b0"] == found["ViT low", "vit-base"] == "fails"


def test_convolutions():
    falling, flat = (0.5, 0.4, 0.3, 0.25), (0.1, 0.1, 0.15, 0.3)
    found = judge("fig4", system("resnet-50", falling), system("convnext-tiny", flat))
    assert (
        found["mostly isotropic", "convnext-tiny"]
        == found["ResNet with depth", "resnet-50"]
        == "holds"
    )
    assert ("mostly isotropic", "resnet-50") not in found, (
        "the exception that the paper names"
    )
    assert found["ResNet the exception", "resnet-50"] == "holds"
    assert (
        judge("fig4", system("resnet-50", flat))["ResNet the exception", "resnet-50"]
        == "fails"
    )
    assert found["below an isotropic pair", "convnext-tiny"] == "fails", (
        "one pair's quantile is apart"
    )
    before = judge(
        "fig4", system("resnet-50", falling), system("resnet-50", flat, site="pre_relu")
    )
    assert before["ResNet the exception", "resnet-50"] == "holds"
    assert before["mostly isotropic before the ReLU", "resnet-50"] == "holds"
    assert (
        judge("fig4", system("resnet-50", falling[::-1]))[
            "ResNet with depth", "resnet-50"
        ]
        == "fails"
    )


@pytest.mark.parametrize(
    ("before", "expected"), [(0.1, "holds"), (0.8, "fails"), (0.5, "undecided")]
)
def test_before_and_after_the_last_relu(before, expected):
    raw = system("resnet-50", (0.0, before, before), site="pre_relu")
    found = judge("fig4", system("resnet-50", (0.6, 0.5, 0.5)), raw[raw["layer"] > 0])
    assert found["before the ReLU", "resnet-50"] == expected
    assert (
        judge("fig4", system("convnext-tiny", HIGH))["before the ReLU", ""]
        == "undecided"
    )


def test_seeds_must_agree_and_untrained_models_are_only_compared_with():
    parts = [system("small token LM, untrained", ZERO, seed=s) for s in (0, 1)]
    parts += [
        system("small token LM, trained", values, seed=s)
        for s, values in enumerate((HIGH, HIGH))
    ]
    found = judge("fig1", *parts)
    assert found["anisotropic", "small token LM"] == "holds"
    assert found["effect of training", "small token LM"] == "undecided", (
        "its tokens share a vector before training"
    )
    images = [
        system(f"small ViT, {state}", x, seed=s)
        for state, x in (("untrained", ZERO), ("trained", HIGH))
        for s in (0, 1)
    ]
    assert judge("fig3b", *images)["effect of training", "small ViT"] == "holds"
    parts[-1] = system("small token LM, trained", ZERO, seed=1)
    assert judge("fig1", *parts)["anisotropic", "small token LM"] == "undecided"


def test_tests_of_a_figure_are_one_family():
    """Evidence that would do alone does not among forty layers."""
    claim = Claim("c", "Any claim", "")
    check = Check(claim, "A", 1.0, 0.9, 1.1, 60, up=0.02, down=0.98, margin=0.1)
    others = [
        Check(claim, "A", 0.0, -1.0, 1.0, 60, 0.5, 0.5, subject=f"s{i}", margin=0.0)
        for i in range(40)
    ]
    assert judge_tests([check])[0].outcome == "holds"
    assert judge_tests([check, *others])[0].outcome == "undecided"


@pytest.mark.parametrize("name", [*LAYERED, "fig5", "fig16"])
def test_a_study_of_skipped_systems_says_why(name):
    records = as_records(
        pd.DataFrame(
            [
                {
                    "model": "small wav2vec 2.0",
                    "metric": "skipped",
                    "component": "no data here",
                }
            ]
        )
    )
    verdicts = STUDIES[name].judge(records)
    assert {v.outcome for v in verdicts} == {"undecided"}
    assert any("no data here" in v.reason for v in verdicts)
    assert STUDIES[name].draw(records) == {}


@pytest.mark.parametrize("name", LAYERED)
def test_figures_are_drawn(name):
    records = pd.concat(
        [
            system("vit-base", HIGH),
            system("t5", HIGH),
            system("t5", ZERO, stack="decoder"),
        ]
    )
    chart = STUDIES[name].draw(records)[name].to_dict()
    assert chart["layer"] or chart["hconcat"]
    curves = layer_curves.select_curves(records)
    assert curves.loc[curves["model"] == "t5", "place"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("kind", fig05_16_drift.KINDS)
@pytest.mark.parametrize("n", [3, 4, 5, 6])
def test_permutation_p_against_brute_force(kind, n):
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal((2, n))
    statistic = stats.spearmanr if kind == "spearman" else stats.pearsonr
    ranked = (
        stats.rankdata if kind == "spearman" else np.array
    )  # Pearson's coefficient of ranks is Spearman's
    orders = np.array([ranked(order) for order in permutations(y)])
    sizes = np.abs(
        stats.pearsonr(
            np.broadcast_to(ranked(x), orders.shape), orders, axis=1
        ).statistic
    )
    found = fig05_16_drift.run_permutation_test(kind, x, y)
    assert found.exact
    assert found.p == pytest.approx(
        (sizes >= abs(statistic(x, y).statistic) - 1e-12).mean()
    )
    assert found.smallest == pytest.approx((sizes >= sizes.max() - 1e-12).mean())


@pytest.mark.parametrize(("n", "smallest"), [(3, 1 / 3), (4, 1 / 12), (5, 1 / 60)])
def test_smallest_attainable_p(n, smallest):
    x = np.arange(n, dtype=float)
    found = fig05_16_drift.run_permutation_test("spearman", x, x**3)
    assert found.smallest == found.p == pytest.approx(smallest)


def test_many_layers_are_drawn_at_random_and_repeatably():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(13)
    y = x + rng.standard_normal(13)
    first, second = (
        fig05_16_drift.run_permutation_test("pearson", x, y) for _ in range(2)
    )
    assert first == second
    assert not first.exact
    law = stats.permutation_test(
        (x,),
        lambda a, axis: (
            stats.pearsonr(a, np.broadcast_to(y, a.shape), axis=axis).statistic
        ),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=4000,
        rng=1,
    )
    assert first.p == pytest.approx(law.pvalue, abs=0.01)


def test_constant_layers_have_no_p():
    assert np.isnan(
        fig05_16_drift.run_permutation_test("spearman", np.ones(5), np.arange(5.0)).p
    )
    assert np.isnan(fig05_16_drift.default_p("pearson", np.ones(5), np.arange(5.0)))


@pytest.mark.parametrize("kind", fig05_16_drift.KINDS)
def test_independent_random_walks_come_out_significant_a_third_of_the_time(kind):
    share, low, high = fig05_16_drift.estimate_false_positive_rate(kind)
    assert 0.25 < share < 0.45
    assert low < share < high < low + 0.05


def correlated(*parts, kind="spearman"):
    records = pd.concat(parts, ignore_index=True)
    return pd.concat(
        [records, as_records(fig05_16_drift.compute_correlations(records, kind))],
        ignore_index=True,
    )


def test_correlation_of_drift_and_anisotropy():
    rising = np.linspace(0.1, 0.7, 13)
    mixed = np.array([3, 11, 0, 7, 12, 2, 9, 5, 1, 10, 4, 8, 6], float)
    parts = [
        system("bert-base", rising),
        system("gpt2", rising, drift=mixed),
        system("vit-base", rising[:4], drift=rising[:4]),
        system("resnet-50", rising),
        system("wav2vec2-base", rising),
    ]
    found = {(v.claim, v.subject): v for v in STUDIES["fig5"].judge(correlated(*parts))}
    assert found["text Transformers", "bert-base"].outcome == "holds"
    assert found["text Transformers", "bert-base"].value == pytest.approx(1.0)
    assert found["not correlated", "gpt2"].outcome == "undecided", (
        "no significance is no absence"
    )
    assert found["not correlated", "resnet-50"].outcome == "fails"
    assert found["other speech models", "wav2vec2-base"].outcome == "undecided"
    four = found["vision Transformers", "vit-base"]
    assert four.outcome == "undecided"
    assert "smallest possible 0.083" in four.reason and four.p > 0.2, (
        "walks of four steps are often so alike"
    )


def with_norms(records, norms):
    """Records with E‖x‖ of every layer."""
    rows = records[records["metric"] == "drift"].copy()
    rows["metric"], rows["value"] = "norms.mean", np.resize(norms, len(rows))
    return pd.concat([records, rows], ignore_index=True)


@pytest.mark.parametrize(("last", "word"), [(8.5, "identity"), (12.0, "holds")])
def test_where_norms_are_pinned_a_coefficient_is_an_identity(last, word):
    """Post-norm layers hold ‖x‖ = √d, so that ‖x̄‖² = d·A: it was said that drift and A are correlated."""
    rising = np.linspace(0.1, 0.7, 13)
    norms = np.linspace(8.0, last, 13)
    records = with_norms(
        system("bert-base", rising, drift=8.0 * np.sqrt(rising)), norms
    )
    found = {v.claim: v for v in STUDIES["fig5"].judge(correlated(records))}
    verdict = found["text Transformers"]
    assert (
        verdict.word == word
        and f"spreads by {(last - 8) / norms.mean():.1%}" in verdict.reason
    )
    seeds = []
    for seed in range(3):
        drift = (
            8.0
            * np.sqrt(rising)
            * (1 + 0.02 * np.random.default_rng(seed).standard_normal(13))
        )
        seeds.append(
            with_norms(
                system("small token LM, trained", rising, seed=seed, drift=drift), norms
            )
        )
    (several,) = (
        v
        for v in STUDIES["fig16"].judge(correlated(*seeds, kind="pearson"))
        if v.subject
    )
    assert several.word == word


def test_coefficients_over_seeds_decide_where_layers_are_few():
    """Of five layers no p tells anything; six trainings whose coefficients agree do."""
    rising = np.linspace(0.1, 0.7, 5)
    drifts = {
        "small token LM": rising,
        "small ViT": rising[::-1],
        "small ConvNeXt": np.array([3, 1, 0, 4, 1.5]),
    }
    parts = [
        system(
            f"{name}, trained",
            rising,
            seed=s,
            drift=drift + 0.05 * np.random.default_rng(s).standard_normal(5),
        )
        for name, drift in drifts.items()
        for s in range(6)
    ]
    found = {
        v.subject: v for v in STUDIES["fig16"].judge(correlated(*parts, kind="pearson"))
    }
    assert [found[name].outcome for name in drifts] == ["holds", "fails", "holds"]
    same = [system("small token LM, trained", rising, seed=s) for s in range(6)]
    (verdict,) = (v for v in STUDIES["fig5"].judge(correlated(*same)) if v.subject)
    assert verdict.outcome == "undecided" and "no variance" in verdict.reason


@pytest.mark.parametrize("kind", fig05_16_drift.KINDS)
def test_random_walks_pass_the_test_of_walks_once_in_twenty(kind):
    x, y = np.random.default_rng(7).standard_normal((2, 2000, 9)).cumsum(-1)
    r = fig05_16_drift.compute_coefficient(kind, x, y)
    passed = np.mean([fig05_16_drift.walk_p(kind, 9, one) < 0.05 for one in r])
    assert 0.02 < passed < 0.065, (
        "ranks come in steps, which keeps p above what it could be"
    )
    assert np.isnan(fig05_16_drift.walk_p(kind, 2, 1.0)) and np.isnan(
        fig05_16_drift.walk_p(kind, 9, np.nan)
    )


@pytest.mark.parametrize("power", [1, 3])
def test_coefficient_has_an_interval_over_units(power):
    """It is one of correlations: of a coefficient of 1 it ended at 1.27."""
    rows = fig05_16_drift.compute_correlations(
        system(
            "m", np.linspace(0.1, 0.7, 9), error=0.05, drift=np.arange(9.0) ** power
        ),
        "pearson",
    )
    r = rows[rows["metric"] == "correlation.pearson"].iloc[0]
    assert -1 <= r["low"] < r["value"] <= r["high"] <= 1
    assert power == 1 or r["value"] < r["high"]


def test_correlations_are_drawn():
    records = correlated(
        system("bert-base", np.linspace(0.1, 0.7, 13)), system("m", HIGH)
    )
    assert len(STUDIES["fig5"].draw(records)["fig5"].to_dict()["layer"]) == 4


def test_packaged_networks_stand_beside_their_untrained_selves_on_each_corpus(
    tmp_path, monkeypatch
):
    """One that cannot be had is noted, and the others are measured."""
    asked = []

    def measured(job, _context):
        if "crepe" in job.model:
            raise ModelError("the package", "it is not installed", "install it")
        asked.append((job.model, job.corpus, job.untrained))
        return system("m", (0.4, 0.6) if job.untrained else (0.4, 0.3))

    monkeypatch.setattr(layer_curves, "run_measurement", measured)
    settings, context = (
        STUDIES["fig4"].settings["packaged"],
        Context(tmp_path, tmp_path),
    )
    records = layer_curves.measure(settings, context)
    assert (
        len(asked) == 14
        and len({(corpus, untrained) for _, corpus, untrained in asked}) == 4
    )
    found = {(v.claim, v.subject): v.outcome for v in STUDIES["fig4"].judge(records)}
    photographs = "resnet20 on cifar10"
    assert found["effect of training", photographs] == "fails"
    assert found["ResNet the exception", photographs] == "holds"


def test_inner_relus_are_measured_after_and_before(tmp_path, monkeypatch):
    """Where one looks decides in figure 4: a block's linear end has a low A, the maps inside it a high one."""
    asked = []

    def measured(job, _context):
        asked.append((job.settings.blocks, job.settings.tokens))
        return system(
            "m",
            (0.1, 0.6, 0.7) if job.settings.blocks == ("ReLU6",) else (0.1, 0.0, 0.1),
        )

    monkeypatch.setattr(layer_curves, "run_measurement", measured)
    relus = layer_curves.Systems(
        corpus="vision/some",
        packaged=("builtin:net",),
        relus=("ReLU6", "blocks.*.norm"),
    )
    records = layer_curves.measure(relus, Context(tmp_path, tmp_path))
    assert asked == [(("ReLU6",), ("all",)), (("blocks.*.norm",), ("all",))] * 2
    trained = select(
        records,
        model="net, ReLUs on some, trained",
        metric="mean_cosine",
        component=None,
    )
    after, before = (select(trained, site=site) for site in ("hidden", "pre_relu"))
    assert list(after["layer"]) == list(before["layer"]) == [1, 2]
    assert (after["value"].to_numpy() > 0.5).all() and (
        before["value"].to_numpy() < 0.2
    ).all()
    assert fig05_16_drift.drop_relus(layer_curves.Systems(others=(relus,))).others == ()


@pytest.mark.parametrize(
    "name", ["minilm", "rxnfp-pretrained", "rxnmapper", "antiberty"]
)
def test_packaged_models_that_share_a_type_vector_have_no_start(name):
    """AntiBERTy seemed to lose .30 by training: its untrained twin stood at the type vector's A of a third."""
    records = pd.concat(
        [
            system(f"{name} on texts{state}", (0.4, 0.6), error=0.01)
            for state in (", trained", ", untrained")
        ]
    )
    found = [
        v for v in STUDIES["fig1"].judge(records) if v.claim == "effect of training"
    ]
    assert [v.outcome for v in found] == ["undecided"] and "type vector" in found[
        0
    ].reason


def test_a_model_and_its_untrained_self_have_one_colour():
    records = pd.concat(
        [
            system(f"m{i}{state}", (0.4, 0.6))
            for i in (1, 2)
            for state in (", untrained", ", trained")
        ]
    )
    chart = layer_curves.draw("fig1", records)["fig1"].to_dict()
    scale = next(
        layer["encoding"]["color"]["scale"]
        for layer in chart["layer"]
        if "color" in layer["encoding"]
    )
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    assert colours["m1, trained"] == "#0072b2" and colours["m1, untrained"] == "#aad0e6"
    assert colours["m2, trained"] == "#d55e00" and colours["m2, untrained"] == "#f1caaa"


def test_a_decoder_that_reads_one_prompt_is_no_layer_of_speech(tmp_path):
    """Whisper's read its start token with every clip: A of 1, which would have passed for anisotropy of speech."""
    torch.manual_seed(1)
    sizes = {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 24,
        "decoder_ffn_dim": 24,
    }
    sizes |= {
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "num_mel_bins": 8,
        "vocab_size": 20,
    }
    special = {
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    config = WhisperConfig(
        max_source_positions=50, max_target_positions=8, **sizes, **special
    )
    WhisperModel(config).save_pretrained(tmp_path / "model")
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(
        tmp_path / "model"
    )
    (tmp_path / "clips").mkdir()
    rng = np.random.default_rng(1)
    for clip in range(3):
        soundfile.write(
            tmp_path / "clips" / f"{clip}.wav", rng.standard_normal(9_000) / 9, 16_000
        )
    job = Job(
        str(tmp_path / "model"),
        corpus=str(tmp_path / "clips"),
        settings=layer_curves.Systems().settings(),
    )
    rows = layer_curves.run_measurement(job, Context(tmp_path, tmp_path / "cache"))
    assert set(rows["stack"]) == {"encoder"}
    assert set(select(rows, metric="mean_cosine", site="hidden")["layer"]) == {0, 1, 2}
    assert set(select(rows, metric="mean_cosine.left_out")["layer"]) == {0, 1, 2}


@pytest.mark.parametrize(
    "manifest",
    [{}, {"corpus": "a name"}, {"corpus": {"preprocessing": {"decoder_prompt": []}}}],
)
def test_a_decoder_that_reads_text_counts(manifest):
    assert not layer_curves.reads_prompt_only(manifest)


def test_a_packaged_network_keeps_its_whole_name():
    assert layer_curves._label("builtin:whisper-tiny.en") == "whisper-tiny.en"
    assert layer_curves._label("weights/resnet20-12fca82f.th") == "resnet20"


def test_figure_18_places_each_layer_at_its_own_dimension():
    """Stages of a convolutional network differ in d: all layers stood at that of the first."""
    from anisoscope_papers.godey2024 import fig17_18_cosine_law

    wide = pd.concat(
        [system("net", (0.4,)), system("net", (0.5,)).assign(layer=1)],
        ignore_index=True,
    )
    bound = (wide["metric"] == "mean_cosine.isotropic_q95") & (wide["layer"] == 1)
    wide.loc[bound, "value"] = q95(512)
    found = fig17_18_cosine_law.select_layers(wide)
    first, second = found["d"]
    assert second == 512 != first


def test_every_setting_of_the_paper_names_what_it_needs():
    from anisoscope_papers.models import PRESETS

    for name in LAYERED:
        paper = STUDIES[name].settings["paper"]
        assert len(STUDIES[name].needs) == len(paper.models) + 1
        unknown = [model for model in paper.models if model not in PRESETS]
        wrong = [
            m
            for m in paper.models
            if m in PRESETS
            and not any(PRESETS[m].hub_id in need.name for need in STUDIES[name].needs)
        ]
        assert not unknown and not wrong, (name, unknown, wrong)
