"""Numbers behind the claims of figures 1 to 5 and 13 to 15 of Godey et al. 2024, by formula from random arrays.

Every value differs from every other, so that a wrong step, layer, seed or metric gives another number.
"""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from anisoscope.store import as_records
from anisoscope.sums.isotropic import cosine_quantile, q95
from anisoscope_papers.godey2024 import (
    fig01_04_layers,
    fig05_16_drift,
    fig13_14_alignment,
    fig15_entropy,
    layer_curves,
    norm_claims,
)
from anisoscope_papers.study import read_claims

SEEDS, LAYERS, HEADS, DIM = 3, 4, 2, 64
STEPS = (0, 10, 100, 400)


def heads_of(metric, site, values):
    """Records of a metric of every head from values [seed, step, layer, head]."""
    rows = []
    for seed, step, layer, head in np.ndindex(values.shape):
        place = {"seed": seed, "step": STEPS[step], "layer": layer + 1, "head": head}
        value = float(values[seed, step, layer, head])
        rows.append({"metric": metric, "site": site, "value": value, **place})
    return rows


def losses():
    """Validation losses that fall by another share in each seed."""
    lost = np.array([[5.0, 4.0, 3.0], [6.0, 5.5, 4.0], [5.0, 3.5, 3.0]])
    rows = [
        {"metric": "training.loss", "seed": seed, "step": step, "value": lost[seed, i]}
        for seed, (i, step) in product(range(SEEDS), enumerate(STEPS[1:]))
    ]
    return rows, (lost[:, :1] - lost) / (lost[:, :1] - lost[:, -1:])


def random(seed, low=-1.0, high=1.0):
    draw = np.random.default_rng(seed)
    return draw.uniform(low, high, (SEEDS, len(STEPS), LAYERS, HEADS))


def reasons_of(verdicts):
    """What was said of every verdict, without that it was one of several."""
    return {
        (v.claim, v.subject): v.reason.partition("open after")[0].removesuffix("; ")
        for v in verdicts
    }


def numbers(verdicts):
    return {(v.claim, v.subject): v.value for v in verdicts}


@pytest.fixture(scope="module")
def cosine():
    """Cosines of mean queries and keys that are largest half-way."""
    values = random(0) * np.array([0.2, 0.8, 1.0, 0.7])[:, None, None]
    # Of every seed a head that ends similar and one that ends opposite.
    values[:, -1, 0, 0], values[:, -1, 3, 1] = 0.8, -0.75
    return values


@pytest.fixture(scope="module")
def aligned(cosine):
    bound = np.full_like(cosine, q95(DIM))
    return [
        *heads_of("query_key.cosine", "query.raw", cosine),
        *heads_of("mean_cosine.isotropic_q95", "query.raw", bound),
    ]


def test_figure_13(cosine, aligned):
    verdicts = fig13_14_alignment.judge_cosine(as_records(pd.DataFrame(aligned)))
    found = numbers(verdicts)
    first, last = np.abs(cosine[:, 0]), np.abs(cosine[:, -1])
    by_layer = cosine[:, -1].mean(-1)
    depth = [stats.spearmanr(range(LAYERS), x).statistic for x in by_layer]
    course = np.abs(cosine).mean((2, 3))
    highest = [np.delete(course, seed, 0).mean(0).argmax() for seed in range(SEEDS)]
    back = [course[seed, step] - course[seed, -1] for seed, step in enumerate(highest)]
    assert found == {
        ("cosine-grows", ""): pytest.approx((last - first).mean()),
        ("almost-all-heads", ""): pytest.approx((last > first).mean()),
        ("aligned-at-the-end", ""): pytest.approx(last.mean()),
        ("first-layer-positive", ""): pytest.approx(by_layer[:, 0].mean()),
        ("last-layer-negative", ""): pytest.approx(by_layer[:, -1].mean()),
        ("sign-falls-with-depth", ""): pytest.approx(np.mean(depth)),
        ("alignment-recedes", ""): pytest.approx(np.mean(back)),
    }
    reasons = {name: words for (name, _), words in reasons_of(verdicts).items()}
    assert reasons["cosine-grows"] == f"at step 0 {first.mean():.3f}"
    # No intervals over documents are recorded here.
    assert reasons["aligned-at-the-end"] == ""
    steps = " and ".join(str(STEPS[i]) for i in sorted(set(highest)))
    assert reasons["alignment-recedes"] == f"highest at step {steps} of 400"
    means = ", ".join(f"{x:+.2f}" for x in by_layer.mean(0)).replace("-", "−")
    assert reasons["sign-falls-with-depth"] == f"4 layers: {means}" and "−" in means


def test_figure_14(cosine, aligned):
    """log |Q̄·K̄| is that of the norms plus that of the cosine."""
    dot = random(1, 0.5, 3.0) * np.where(random(2) > 0, 1, -1)
    rows = [*aligned, *heads_of("query_key.dot", "query.raw", dot)]
    verdicts = fig13_14_alignment.judge_dot(as_records(pd.DataFrame(rows)))
    found = numbers(verdicts)
    growth, turning = (np.log(np.abs(x[:, -1] / x[:, 0])) for x in (dot, cosine))
    bound = cosine_quantile(0.975, DIM)
    ends = {"similar": cosine[:, -1] > bound, "opposite": cosine[:, -1] < -bound}
    expected = {
        ("dot-grows", ""): growth.mean(),
        ("norms-grow", ""): (growth - turning).mean(),
        ("cosine-grows-too", ""): turning.mean(),
    }
    for name, mask in ends.items():
        of_seeds = [growth[seed][mask[seed]].mean() for seed in range(SEEDS)]
        expected["dot-grows-in-both-kinds", name] = np.mean(of_seeds)
    assert found == {key: pytest.approx(x) for key, x in expected.items()}
    reasons = {who: words for (_, who), words in reasons_of(verdicts).items() if who}
    assert reasons == {
        name: f"{mask.sum()} heads of 3 seeds" for name, mask in ends.items()
    }


def test_figure_15(cosine, aligned):
    falling = np.array([4.0, 3.5, 2.0, 2.4])[:, None, None]
    entropy = falling + random(3, -0.3, 0.3)
    # One layer of one seed loses nothing: of that there is no share to give back.
    entropy[1, -1, 2] = entropy[1, 0, 2] + 0.25
    normalised = random(4, 0.2, 0.9)
    gain, share, others = random(5, 0.2, 0.9), random(6, 0.1, 0.5), random(7, 0.3, 0.6)
    idle = random(8, 0.0, 1e-9)
    told, fallen = losses()
    rows = [*aligned, *told]
    for metric, site, values in (
        ("attention.entropy", "attention", entropy),
        ("attention.entropy_normalised", "attention", normalised),
        ("centred_attention.query_rise", "centred", gain),
        ("centred_attention.key_rise", "centred", -idle),
        ("score_terms.mean_query_share", "scores", share),
        ("score_terms.centred_share", "scores", others),
    ):
        rows += heads_of(metric, site, values)
    verdicts = fig15_entropy.judge(as_records(pd.DataFrame(rows)))
    found = numbers(verdicts)
    by_layer = entropy.mean(-1)
    lost = by_layer[:, 0] - by_layer[:, -1]
    gained = gain.mean(-1)[:, -1]
    expected = {
        ("entropy-decays", ""): -lost.mean(),
        ("mean-query-sharpens", ""): gained.mean(),
        ("drift-explains-sharpening", ""): (gained.mean(-1) / lost.mean(-1)).mean(),
        ("mean-query-leads", ""): share[:, -1].mean(),
        ("mean-query-share-grows", ""): (share[:, -1] - share[:, 0]).mean(),
        ("mean-key-idle", ""): idle.max(),
    }
    for name, values in (("nats", entropy), ("normalised", normalised)):
        ends = values[:, -1].mean(-1)
        expected["first-layer-sharper", name] = (ends[:, 0] - ends[:, -1]).mean()
    clocks = {
        "": np.tile(np.array(STEPS, float), (SEEDS, 1)),
        ", by the fall of the loss": np.hstack([np.zeros((SEEDS, 1)), fallen]),
    }
    for layer in range(LAYERS):
        subject = f"layer {layer + 1}"
        expected["entropy-decays-in-layer", subject] = -lost[:, layer].mean()
        for name, clock in clocks.items():
            trends = []
            for seed in range(SEEDS):
                # Step 0 and the first loss have the same fall: the later value counts.
                moved = [*(np.diff(clock[seed]) > 0), True]
                places = np.linspace(clock[seed][0], clock[seed][-1], 401)
                known = by_layer[seed, :, layer][moved]
                read = np.interp(places, clock[seed][moved], known)
                trends.append(stats.spearmanr(places, read).statistic)
            expected["entropy-falls-all-along", subject + name] = np.mean(trends)
        course = by_layer[:, :, layer]
        lowest = [np.delete(course, seed, 0).mean(0).argmin() for seed in range(SEEDS)]
        rise = [course[seed, -1] - course[seed, at] for seed, at in enumerate(lowest)]
        expected["entropy-rises-again", subject] = np.mean(rise)
    sized, means = np.abs(cosine).mean((2, 3)), by_layer.mean(-1)
    peaks = [np.delete(sized, seed, 0).mean(0).argmax() for seed in range(SEEDS)]
    since = [means[seed, -1] - means[seed, at] for seed, at in enumerate(peaks)]
    expected["sharpens-after-alignment", ""] = np.mean(since)
    lead = []
    for seed in range(SEEDS):
        other = np.delete(sized, seed, 0).mean(0)
        at = (other >= (other[0] + other.max()) / 2).argmax()
        deepest = np.delete(means, seed, 0).mean(0).argmin()
        of_cosine = (sized[seed, at] - sized[seed, 0]) / (
            sized[seed, peaks[seed]] - sized[seed, 0]
        )
        of_entropy = (means[seed, 0] - means[seed, at]) / (
            means[seed, 0] - means[seed, deepest]
        )
        lead.append(of_cosine - of_entropy)
    expected["alignment-before-sharpness", ""] = np.mean(lead)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == pytest.approx(value, abs=1e-9), key
    reasons = reasons_of(verdicts)
    assert (
        f"(q − Q̄)·(k − K̄): {others[:, -1].mean():.2f}; by layer"
        in (reasons["mean-query-leads", ""])
    )
    assert (
        f"at step 0: {share[:, 0].mean():.2f}" in reasons["mean-query-share-grows", ""]
    )

    def by_layer_of(values, form):
        return "by layer: " + ", ".join(f"{x:{form}}" for x in values)

    of_seeds = gained / lost
    assert (of_seeds[1, 2] < 0) and (np.delete(of_seeds.ravel(), 6) > 0).all()
    of_seeds[1, 2] = np.nan
    for name, words in (
        ("entropy-decays", by_layer_of(-lost.mean(0), ".2f")),
        ("mean-query-sharpens", by_layer_of(gained.mean(0), ".3f")),
        ("drift-explains-sharpening", by_layer_of(np.nanmean(of_seeds, 0), ".2f")),
    ):
        assert reasons[name, ""] == words
    assert reasons["mean-query-leads", ""].endswith(
        by_layer_of(share[:, -1].mean((0, 2)), ".2f")
    )
    for name, values in (("nats", entropy), ("normalised", normalised)):
        ends = values[:, -1][:, [0, -1]].mean((0, 2))
        words = f"first, last: {ends[0]:.3f}, {ends[1]:.3f}"
        assert reasons["first-layer-sharper", name] == words

    def list_steps(places):
        return " and ".join(str(STEPS[i]) for i in sorted(set(places)))

    read_at = []
    for seed in range(SEEDS):
        other = np.delete(sized, seed, 0).mean(0)
        read_at.append((other >= (other[0] + other.max()) / 2).argmax())
    assert reasons["alignment-before-sharpness", ""] == (
        f"read at step {list_steps(read_at)}"
    )
    highest = np.mean([sized[seed, at] for seed, at in enumerate(peaks)])
    assert reasons["sharpens-after-alignment", ""] == (
        f"|cos| is highest at step {list_steps(peaks)}, {highest:.2f}, and ends at "
        f"{sized[:, -1].mean():.2f}; the entropy falls by {lost.mean():.2f} in all"
    )


# layers


def layered(model, values, *, step=None, seed=0, stack="encoder", site="hidden"):
    """Records of A by layer, with 8 groups of units left out one by one: each moves every layer by its own number."""
    draw = np.random.default_rng([len(model), seed or 0, len(site)])
    moved = draw.normal(size=(8, len(values))) * 0.004
    rows = []
    for layer, value in enumerate(values):
        place = {"model": model, "seed": seed, "step": step, "stack": stack}
        place |= {"layer": layer, "site": site, "token_policy": "all", "n_units": 40}
        ends = {"low": value - 0.01, "high": value + 0.01}
        rows.append({"metric": "mean_cosine", "value": value, **ends, **place})
        rows.append({"metric": "mean_cosine.isotropic_q95", "value": q95(DIM), **place})
        for group in range(8):
            left_out = {"metric": "mean_cosine.left_out", "component": str(group)}
            rows.append({"value": value + moved[group, layer], **left_out, **place})
    return rows


def judged(name, *systems):
    records = as_records(pd.DataFrame([row for rows in systems for row in rows]))
    return {(v.claim, v.subject): v for v in fig01_04_layers.judge(name, records)}


def test_what_is_compared_over_layers_leaves_out_their_input():
    """Layer 0 is the input of the blocks; each small model is compared with the one of its own seed."""
    systems = [
        layered("byt5-base", (0.9, 0.5, 0.7)),
        layered("canine-s", (0.1, 0.2, 0.3)),
    ]
    for seed, high in enumerate((0.6, 0.62)):
        systems += [
            layered("small byte LM, trained", (0.9, high, 0.8), seed=seed, step=70),
            layered("small token LM, trained", (0.0, 0.3, 0.5), seed=seed, step=70),
        ]
    found = {
        subject: verdict
        for (claim, subject), verdict in judged("fig2", *systems).items()
        if claim == "characters only"
    }
    assert found["byt5-base above small token LM"].value == pytest.approx(0.6 - 0.4)
    twins = found["small byte LM above small token LM"]
    assert twins.value == pytest.approx(0.7 - 0.4)
    assert "trained for 70 steps" in twins.reason


def test_training_is_the_change_of_the_same_seed():
    systems = []
    for seed, change in enumerate((0.2, 0.3)):
        start = np.array([0.9, 0.1, 0.3]) + seed / 100
        systems += [
            layered("small ViT, untrained", start, seed=seed, step=0),
            layered(
                "small ViT, trained",
                start + np.array([5, change, change]),
                seed=seed,
                step=60,
            ),
        ]
    verdict = judged("fig3b", *systems)["effect of training", "small ViT"]
    assert verdict.value == pytest.approx(0.2) and verdict.n == 2, "the weaker seed"


def test_a_resnet_falls_by_the_slope_over_its_depth():
    verdict = judged("fig4", layered("resnet-50", (0.9, 0.5, 0.3, 0.2)))[
        "ResNet with depth", "resnet-50"
    ]
    slope = np.polyfit(np.linspace(0, 1, 4), (0.9, 0.5, 0.3, 0.2), 1)[0]
    assert verdict.value == pytest.approx(-slope)


def test_before_the_relu_only_layers_that_have_one_are_compared():
    after = layered("resnet-50", (0.9, 0.5, 0.3, 0.2))
    before = layered("resnet-50", (0.0, 0.1, 0.0, 0.15), site="pre_relu")
    before = [row for row in before if row["layer"] in (1, 3)]
    verdict = judged("fig4", after, before)["before the ReLU", "resnet-50"]
    assert verdict.value == pytest.approx((0.5 - 0.1 + 0.2 - 0.15) / 2)


def test_replicates_of_unequal_groups_are_independent():
    a, b = np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.25, 0.75, 0.0])
    found = fig01_04_layers._subtract_replicates(a, b)
    assert found.tolist() == [0.5, 1.5, 2.5, 0.75, 0.25, 1.0]
    assert fig01_04_layers._subtract_replicates(a, b[:3]).tolist() == [0.5, 1.75, 2.25]


def test_curves_hold_each_model_s_own_layers_in_their_order():
    """Rows come back by model as first met, then seed, then place; a decoder's layers follow those of its encoder."""
    rows = [
        *layered("t5", (0.1, 0.2), stack="decoder"),
        *layered("bert", (0.5, 0.6, 0.7), seed=None),
        *layered("t5", (0.3, 0.4)),
        *layered("gpt2", (0.8, 0.9), stack="decoder"),
        *layered("bert", (0.0, 0.0), site="final"),
    ]
    other = [row | {"token_policy": "content", "value": 9.0} for row in rows]
    found = layer_curves.select_curves(as_records(pd.DataFrame([*other, *rows])))
    seen = found[["model", "stack", "layer", "place", "value"]].to_numpy().tolist()
    assert seen == [
        ["t5", "encoder", 0, 0, 0.3],
        ["t5", "encoder", 1, 1, 0.4],
        ["t5", "decoder", 0, 2, 0.1],
        ["t5", "decoder", 1, 3, 0.2],
        ["bert", "encoder", 0, 0, 0.5],
        ["bert", "encoder", 1, 1, 0.6],
        ["bert", "encoder", 2, 2, 0.7],
        ["gpt2", "decoder", 0, 0, 0.8],
        ["gpt2", "decoder", 1, 1, 0.9],
    ]
    assert set(found["groups"]) == {8.0} and set(found["seed"]) == {0}
    assert found["q95"].tolist() == pytest.approx([q95(DIM)] * 9)
    assert [(m, s, len(x)) for m, s, x in layer_curves.iter_systems(found)] == [
        ("t5", 0, 4),
        ("bert", 0, 3),
        ("gpt2", 0, 2),
    ]
    assert layer_curves.infer_widths(as_records(pd.DataFrame(rows))) == dict.fromkeys(
        ("t5", "bert", "gpt2"), DIM
    )


def test_tests_of_layers_have_the_numbers_of_their_layer():
    rows = layer_curves.select_curves(
        as_records(
            pd.DataFrame(
                layered("hubert-base, trained", (0.4, 0.1, 0.5), seed=2, step=1500)
            )
        )
    )
    above = read_claims("godey2024", "fig3a")["every layer at least 0.2"]
    found = list(layer_curves.make_layer_tests(above, rows))
    assert [test.value for test in found] == [0.4, 0.1, 0.5]
    assert [test.low for test in found] == pytest.approx([0.39, 0.09, 0.49])
    assert [test.high for test in found] == pytest.approx([0.41, 0.11, 0.51])
    assert [test.margin for test in found] == pytest.approx([0.2, -0.1, 0.3])
    first = found[0]
    assert (first.subject, first.seed, first.n) == ("hubert-base", 2, 40)
    assert first.where == "encoder layer 0, against threshold 0.2"
    assert first.note == "trained for 1,500 steps" and first.units == "units"
    assert first.up < 1e-6 < found[1].up and found[1].down < 1e-6
    isotropic = read_claims("godey2024", "fig3b")["MiT isotropic"]
    (low, high) = layer_curves.make_layer_tests(
        isotropic,
        layer_curves.select_curves(
            as_records(pd.DataFrame(layered("mit-b0", (0.1, 0.3))))
        ),
    )
    assert low.margin == pytest.approx(q95(DIM) - 0.1) and low.up < 0.01 < low.down
    assert high.margin == pytest.approx(q95(DIM) - 0.3) and high.down < 0.01 < high.up
    assert f"against q95 {q95(DIM):.3g}" in low.where


# drift


def test_numbers_of_a_correlation_are_those_of_its_table():
    rows = []
    for i, (name, value) in enumerate(
        {
            "": 0.7,
            ".p": 0.1,
            ".p_smallest": 0.02,
            ".p_scipy": 0.04,
            ".layers": 5.0,
        }.items()
    ):
        ends = {"low": 0.5, "high": 0.9} if not i else {}
        row = {"metric": f"correlation.pearson{name}", "value": value, "n_units": 9}
        rows += [
            {"model": "a", "seed": 0, **row, **ends},
            {"model": "b", "seed": 1, **row, "value": value / 2, **ends},
        ]
    table = fig05_16_drift.make_table(as_records(pd.DataFrame(rows)))
    assert table["model"].tolist() == ["a", "b"] and table["seed"].tolist() == [0, 1]
    first, second = table.to_dict("records")
    names = ("r", "p", "p_smallest", "p_scipy", "layers", "low", "high", "n_units")
    assert [first[name] for name in names] == [0.7, 0.1, 0.02, 0.04, 5.0, 0.5, 0.9, 9]
    assert [second[name] for name in names[:5]] == [0.35, 0.05, 0.01, 0.02, 2.5]


def test_norms_spread_as_far_as_in_the_seed_where_they_spread_most():
    rows = []
    norms = {0: (8.0, 10.0, 12.0), 1: (8.0, 9.0, 10.0)}
    for seed, of_layers in norms.items():
        for layer, norm in enumerate(of_layers):
            place = {"model": "m", "seed": seed, "stack": "encoder", "layer": layer}
            place |= {"site": "hidden", "token_policy": "all"}
            drift, a = 1.0 + layer + seed, 0.2 + layer / 10
            for metric, value in (
                ("norms.mean", norm),
                ("drift", drift),
                ("mean_cosine", a),
            ):
                rows.append({"metric": metric, "value": value, **place})
                other = place | {"token_policy": "content"}
                rows.append({"metric": metric, "value": 99.0, **other})
    found = fig05_16_drift.measure_norms(as_records(pd.DataFrame(rows)), "m")
    assert found.spread == pytest.approx(4 / 10)
    ratios = [
        (1 + layer + seed) ** 2 / (0.2 + layer / 10)
        for seed, layer in product((0, 1), range(3))
    ]
    assert found.ratio == pytest.approx((min(ratios), max(ratios)))
    none = fig05_16_drift.measure_norms(as_records(pd.DataFrame(rows)), "other")
    assert np.isnan(none.spread)


def test_each_system_has_the_claim_of_its_kind():
    of = {
        model: fig05_16_drift._find_claim(model)
        for model in (
            "bert-base",
            "gpt2",
            "vit-base",
            "resnet-50",
            "wav2vec2-base",
            "hubert-base",
            "whisper-base",
        )
    }
    assert of["bert-base"] == fig05_16_drift.TEXT
    assert of["vit-base"] == fig05_16_drift.VISION
    assert of["gpt2"] == of["resnet-50"] == fig05_16_drift.NONE
    assert of["hubert-base"] == of["whisper-base"] == fig05_16_drift.NONE
    assert of["wav2vec2-base"] == fig05_16_drift.SPEECH


@pytest.mark.parametrize("kind", fig05_16_drift.KINDS)
def test_p_of_walks_is_the_share_of_walks_that_are_as_alike(kind):
    sizes = fig05_16_drift._walk_sizes(kind, 6)
    assert len(sizes) == 20_000 and (np.diff(sizes) >= 0).all()
    for r in (0.0, -0.5, 0.9, 1.0):
        more = (sizes >= abs(r) - 1e-12).sum()
        assert fig05_16_drift.walk_p(kind, 6, r) == (more + 1) / 20_001
    assert not np.isnan(fig05_16_drift.walk_p(kind, 3, 0.5))


def test_default_p_is_scipy_s():
    x, y = np.array([1.0, 2.0, 4.0, 3.0, 7.0]), np.array([2.0, 1.0, 3.0, 9.0, 5.0])
    assert fig05_16_drift.default_p("spearman", x, y) == stats.spearmanr(x, y).pvalue
    assert fig05_16_drift.default_p("pearson", x, y) == stats.pearsonr(x, y).pvalue
    assert not np.isnan(fig05_16_drift.default_p("pearson", x[:3], y[:3]))
    assert np.isnan(fig05_16_drift.default_p("pearson", x[:2], y[:2]))


# the biased block


def curve(values, norms=(0.0, 1.0, 10.0)):
    return norm_claims.Curves("net", norms, np.array(values))


VALUES = np.array([[0.1, 0.3, 0.9], [0.2, 0.5, 0.7], [0.1, 0.2, 0.6]])


def test_trends_are_changes_from_the_first_norm():
    claim = read_claims("godey2024", "fig6")
    claim = next(each for each in claim.values() if each.below is None and each.floor)
    for relative, changed in (
        (False, VALUES[:, 1:] - VALUES[:, :1]),
        (True, VALUES[:, 1:] / VALUES[:, :1] - 1),
    ):
        found = list(norm_claims.test_trend(claim, curve(VALUES), relative=relative))
        assert [test.where for test in found] == ["N = 1", "N = 10"]
        assert [test.value for test in found] == pytest.approx(changed.mean(0))
        assert {test.over for test in found} == {"last"}
        assert {test.subject for test in found} == {"net"}
        assert all(test.claim == claim for test in found)
        assert found[0].statistic.startswith("relative " if relative else "change")
    # On the way to the largest N no floor is asked for.
    (early, last) = norm_claims.test_trend(claim, curve(VALUES))
    assert "by" not in early.statistic.partition("(claim")[2]
    assert f"by {claim.floor:.3g}" in last.statistic


def test_gaps_are_shares_of_what_is_left():
    claim = read_claims("godey2024", "fig6")
    claim = next(each for each in claim.values() if each.below is None)
    lower, upper = curve(VALUES / 2), curve(VALUES)
    share = (VALUES - VALUES / 2) / (1 - VALUES / 2)
    closing = list(norm_claims.test_gap_closes(claim, lower, upper))
    above = list(norm_claims.test_above(claim, lower, upper))
    assert [test.value for test in closing] == pytest.approx(share.mean(0))
    assert [test.value for test in above] == pytest.approx((VALUES / 2).mean(0))
    assert [test.where for test in above] == ["N = 0", "N = 1", "N = 10"]
    assert {test.over for test in above} == {"all"}
    assert [test.margin for test in above] == [test.value for test in above]
    one = norm_claims.test_at_norm(claim, curve(VALUES), 1.0, 0.25, "because")
    assert one.value == pytest.approx(VALUES[:, 1].mean())
    assert "at N = 1" in one.statistic and "0.25" in one.statistic
    assert one.note.startswith("because; one more draw")


def test_the_share_of_seeds_that_rise():
    claim = next(iter(read_claims("godey2024", "fig6").values()))
    mixed = VALUES.copy()
    mixed[2] = mixed[2, ::-1]
    verdict = norm_claims.judge_share(claim, curve(mixed))
    exact = stats.binomtest(2, 3).proportion_ci(0.95, "exact")
    assert (verdict.value, verdict.low, verdict.high, verdict.n) == pytest.approx(
        (2 / 3, exact.low, exact.high, 3)
    )
    assert verdict.outcome == "holds" and "2 seeds up, 1 down" in verdict.reason
    for values in (VALUES, VALUES[:, ::-1]):
        assert norm_claims.judge_share(claim, curve(values)).outcome == "undecided"


def test_one_more_draw_lies_in_the_interval_of_a_single_one():
    draws = np.array([1.0, 2.0, 3.0, 6.0])
    half = stats.t.ppf(0.975, 3) * draws.std(ddof=1) * np.sqrt(1 + 1 / 4)
    text = f"one more draw: {3 - half:.3g} to {3 + half:.3g}"
    assert norm_claims.describe_one_more(draws) == text
    assert norm_claims.describe_one_more(draws[:2]) == ""


def test_curves_over_norms_are_of_one_layer_and_the_mean_over_heads():
    rows = []
    for system, seed, layer, norm in product(
        ("b", "a"), (1, 0), (1, 2), (10.0, 2.0, 0.0)
    ):
        place = {"model": system, "corpus": "uniform 8", "seed": seed, "layer": layer}
        place |= {"site": "hidden", "component": str(norm)}
        value = ord(system) + seed / 10 + layer / 100 + norm / 1e4
        rows.append({"metric": "m", "value": value, **place})
        rows.append({"metric": "m", "value": 0.0, "head": 1, **place})
        rows.append({"metric": "other", "value": 0.0, **place})
    rows.append(
        {"metric": "m", "value": 1.0, "model": "trained", "corpus": "text", "seed": 0}
    )
    records = as_records(pd.DataFrame(rows))
    assert norm_claims.list_systems(records) == ["b", "a"]
    assert norm_claims.read_width(records, "a") == 8
    for layer, own in ((None, 2), (1, 1)):
        found = list(norm_claims.iter_curves(records, "m", "hidden", layer))
        assert [each.system for each in found] == ["b", "a"]
        for each in found:
            assert each.norms == (0.0, 2.0, 10.0)
            expected = [
                [
                    ord(each.system) + seed / 10 + own / 100 + norm / 1e4
                    for norm in each.norms
                ]
                for seed in (0, 1)
            ]
            np.testing.assert_allclose(each.values, expected)
