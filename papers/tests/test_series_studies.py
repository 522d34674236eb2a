"""Figures 11–15 and 19–23: every claim on records made up to hold, to fail and to leave open; planes against numpy's
own decomposition; parts of scores and centred attention against brute force; a tiny series from end to end.
"""

import itertools
import json

import numpy as np
import pandas as pd
import pytest
import tiny
import torch
from papers_goldens import RESULTS
from scipy import stats

from anisoscope.capture.masking import Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.measure.loop import measure_head_means, run_pass
from anisoscope.measure.settings import Settings
from anisoscope.metrics import centred_attention, score_terms
from anisoscope.store import as_records, select
from anisoscope.sums.groups import Totals
from anisoscope.sums.isotropic import q95
from anisoscope_papers import runner
from anisoscope_papers.godey2024 import (
    checkpoints,
    courses,
    fig11_12_trajectories as planes,
    fig13_14_alignment,
)
from anisoscope_papers.godey2024.fig13_14_alignment import Alignment, read_table
from anisoscope_papers.judge import judge_tests, make_test_of_seeds
from anisoscope_papers.study import Claim

STUDIES = {s.name: s for s in runner.find_studies() if s.paper == "godey2024"}
STEPS = (0, 10, 12, 20, 22, 80, 84, 100, 104, 200, 480, 500, 1000)
SEEDS, LAYERS, HEADS, DIM = 3, 4, 4, 64
BOUND = float(q95(DIM))
LITTLE = 1e-4
SHAPE = (SEEDS, len(STEPS), LAYERS, HEADS)


def rows(metric, site, values, noise=0.0, component=None):
    """Records of a metric of every head from values that broadcast to [seed, step, layer, head]; noise of each seed,
    and a little of every value, since what does not vary over seeds decides nothing.
    """
    of_seed = np.array([1.0, -1.2, 0.2])[:, None, None, None]
    values = np.broadcast_to(values, SHAPE) + noise * of_seed
    values = values + LITTLE * np.random.default_rng(len(metric)).standard_normal(
        SHAPE
    ) * (noise > 0)
    seed, step, layer, head = (x.ravel() for x in np.indices(SHAPE))
    columns = {
        "seed": seed,
        "step": np.array(STEPS)[step],
        "layer": layer + 1,
        "head": head,
        "value": values.ravel(),
    }
    ends = {"low": values.ravel() - 0.01, "high": values.ravel() + 0.01, "n_units": 60}
    return pd.DataFrame(
        {"metric": metric, "site": site, "component": component, **columns, **ends}
    )


def alignment(
    first=0.05,
    last=0.8,
    onset=80,
    noise=0.002,
    signs=(1, 1, -1, -1),
    opposite_onset=None,
):
    """Cosines that jump from `first` to `last` at the step `onset` (of every seed), with the sign of their layer."""
    steps = np.array(STEPS)[:, None, None]
    sign = np.array(signs, float)[:, None]
    of_seed = [
        np.reshape(x, (-1, 1, 1, 1))
        for x in (onset, onset if opposite_onset is None else opposite_onset)
    ]
    when = np.where(sign > 0, *of_seed)
    cosine = sign * np.where(steps >= when, last, first)
    bound = rows("mean_cosine.isotropic_q95", "query.raw", BOUND)
    return as_records(
        pd.concat(
            [rows("query_key.cosine", "query.raw", cosine, noise), bound],
            ignore_index=True,
        )
    )


def last_step(values, metric, noise=0.004):
    """Records of a number per head at the last step."""
    found = rows(metric, None, np.asarray(values, float), noise)
    return as_records(found[found["step"] == STEPS[-1]])


def outcomes(name, *parts):
    """{(claim, subject): outcome}."""
    return {
        (v.claim, v.subject): v.outcome
        for v in STUDIES[name].judge(pd.concat(parts, ignore_index=True))
    }


def spread_over_seeds(values, metric, site):
    """Values of the last step that differ so much from seed to seed that nothing can be said."""
    found = rows(metric, site, values)
    return as_records(found)


# ---- claims ----------------------------------------------------------------------------------------------------------

SURE, UNSURE = 0.002, 0.3


@pytest.mark.parametrize(
    ("last", "noise", "expected"),
    [(0.8, SURE, "holds"), (0.01, SURE, "fails"), (0.2, UNSURE, "undecided")],
)
def test_cosine_grows_and_ends_aligned(last, noise, expected):
    found = outcomes("fig13", alignment(first=0.1, last=last, noise=noise))
    assert found["cosine-grows", ""] == (
        expected if noise == SURE else found["cosine-grows", ""]
    )
    assert found["aligned-at-the-end", ""] == expected


def test_growth_is_undecided_where_seeds_disagree():
    records = alignment(first=0.3, last=0.3)
    rise = (
        (records["metric"] == "query_key.cosine")
        & (records["step"] == STEPS[-1])
        & (records["seed"] == 0)
    )
    records.loc[rise, "value"] *= 2
    found = outcomes("fig13", records)
    assert found["cosine-grows", ""] == "undecided"
    assert found["almost-all-heads", ""] == "undecided"


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(0.1, 0.8, "holds"), (0.8, 0.1, "fails")]
)
def test_almost_all_heads(first, last, expected):
    """Four of 48 heads are otherwise: where no seed differs from another, nothing is known of how much one could."""
    records = alignment(first=first, last=last, noise=0)
    assert outcomes("fig13", records)["almost-all-heads", ""] == "undecided"
    end = (records["metric"] == "query_key.cosine") & (records["step"] == STEPS[-1])
    for seed, heads in enumerate((1, 2, 1)):
        some = (
            end
            & (records["seed"] == seed)
            & (records["layer"] == 1)
            & (records["head"] < heads)
        )
        records.loc[some, "value"] = 2 * first - last
    assert outcomes("fig13", records)["almost-all-heads", ""] == {
        "holds": "undecided"
    }.get(expected, expected)


@pytest.mark.parametrize(
    ("signs", "noise", "expected"),
    [
        ((1, 1, -1, -1), SURE, "holds"),
        ((-1, -1, 1, 1), SURE, "fails"),
        ((1, 1, -1, -1), 2.0, "undecided"),
    ],
)
def test_signs_by_depth(signs, noise, expected):
    found = outcomes("fig13", alignment(signs=signs, noise=noise))
    assert (
        found["first-layer-positive", ""]
        == found["last-layer-negative", ""]
        == expected
    )


@pytest.mark.parametrize(
    ("end", "far", "above"),
    [("high", -0.01, 8), ("low", -1.0, 16), ("high", -0.79, 16)],
)
def test_heads_of_both_signs_are_above_the_bound_if_their_interval_is(end, far, above):
    """Of an opposite head the end of the interval that is nearer to 0 decides, which is the upper one."""
    records = alignment(noise=0)
    opposite = records["metric"].eq("query_key.cosine") & records["value"].lt(-0.5)
    records.loc[opposite, end] = far
    counted = list(fig13_14_alignment.count_heads_above(records))
    assert counted == [(seed, above, LAYERS * HEADS) for seed in range(SEEDS)]


def test_depth_is_undecided_where_seeds_differ():
    records = alignment()
    turned = (records["metric"] == "query_key.cosine") & (records["seed"] == 1)
    records.loc[turned, "value"] *= -1
    assert outcomes("fig13", records)["sign-falls-with-depth", ""] == "undecided"


@pytest.mark.parametrize(
    ("growth", "expected"),
    [(30.0, "holds"), (0.1, "fails"), (1.0, "fails"), (1.105, "undecided")],
)
def test_products_grow(growth, expected):
    steps = np.where(np.array(STEPS) > 50, growth, 1.0)[None, :, None, None]
    wobble = np.exp(
        0.05
        * np.random.default_rng(1).standard_normal(SHAPE)
        * (np.array(STEPS) > 50)[None, :, None, None]
    )
    found = outcomes(
        "fig14",
        alignment(),
        as_records(rows("query_key.dot", "query.raw", steps * wobble)),
    )
    assert found["dot-grows", ""] == expected
    assert {
        found["dot-grows-in-both-kinds", name] for name in ("similar", "opposite")
    } == {expected}
    parts = (
        "norms-grow",
        "cosine-grows-too",
    )  # the cosine grows sixteenfold: the rest of a product is its norms'
    assert tuple(found[name, ""] for name in parts) == (
        "holds" if growth > 16 else "fails",
        "holds",
    )


@pytest.mark.parametrize(
    ("onset", "opposite", "expected"),
    [
        ((10, 12, 10), (100, 104, 104), ("holds", "holds", "holds")),
        ((480, 500, 500), (20, 22, 20), ("fails", "fails", "fails")),
        ((84, 80, 80), (80, 80, 84), ("undecided", "fails", "holds")),
        ((80, 80, 80), (80, 80, 80), ("undecided", "undecided", "undecided")),
    ],
)
def test_onsets(onset, opposite, expected):
    found = outcomes("fig12", alignment(onset=onset, opposite_onset=opposite, noise=0))
    names = ("similar-in-first-steps", "opposite-later", "opposite-at-8-percent")
    assert tuple(found[name, ""] for name in names) == expected
    assert found["opposite-after-the-loss", ""] == "undecided"


@pytest.mark.parametrize(
    ("loss", "expected"),
    [(lambda s: 1 / (1 + s), "holds"), (lambda s: 5 - s / 1000, "fails")],
)
def test_onsets_against_the_loss(loss, expected):
    """Heads aligned after a tenth of the steps, and after nearly all or a tenth of the fall of the loss."""
    told = [
        {"metric": "training.loss", "seed": seed, "step": step, "value": loss(step)}
        for seed in range(SEEDS)
        for step in STEPS[1:]
    ]
    records = alignment(onset=(100, 104, 100), noise=0)
    found = outcomes("fig12", records, as_records(pd.DataFrame(told)))
    assert found["opposite-after-the-loss", ""] == expected
    unknown = outcomes("fig12", records, as_records(pd.DataFrame(told[1:])))
    assert unknown["opposite-after-the-loss", ""] == "undecided"


def test_what_passes_the_bound_by_chance_is_one_cosine_in_twenty():
    drawn = np.random.default_rng(0).standard_normal((2, 20_000, DIM))
    cosines = (drawn[0] * drawn[1]).sum(1) / np.linalg.norm(drawn, axis=2).prod(0)
    bound = Alignment.of(alignment()).bound
    assert (np.abs(cosines) > bound).mean() == pytest.approx(0.05, abs=0.005)
    assert (np.abs(cosines) > BOUND).mean() == pytest.approx(0.10, abs=0.007)


def test_an_onset_that_no_seed_has_is_undecided():
    found = outcomes("fig12", alignment(signs=(1, 1, 1, 1)))
    assert (
        found["opposite-later", ""] == found["opposite-at-8-percent", ""] == "undecided"
    )


@pytest.mark.parametrize(
    ("share", "noise", "expected"),
    [(0.9, 0.01, "holds"), (0.1, 0.01, "fails"), (0.5, 0.2, "undecided")],
)
def test_share_of_the_first_direction(share, noise, expected):
    found = outcomes(
        "fig11", alignment(), last_step(share, "svd.union.drift_share", noise)
    )
    assert found["first-direction-carries-drift", ""] == expected
    assert {
        found["in-both-kinds-of-heads", kind] for kind in ("similar", "opposite")
    } == {expected}


@pytest.mark.parametrize(
    ("name", "metric"), [("fig19", "key.agreement"), ("fig20", "key.path_agreement")]
)
@pytest.mark.parametrize(
    ("value", "noise", "expected"),
    [(0.95, 0.01, "holds"), (0.2, 0.01, "fails"), (0.7, 0.2, "undecided")],
)
def test_projections_agree(name, metric, value, noise, expected):
    claim = {"fig19": "same-first-direction", "fig20": "same-path"}[name]
    assert (
        outcomes(name, alignment(), last_step(value, f"svd.{metric}", noise))[claim, ""]
        == expected
    )
    other = {"fig19": "fig21", "fig20": "fig22"}[name]
    of_queries = last_step(value, f"svd.{metric.replace('key', 'query')}", noise)
    assert outcomes(other, alignment(), of_queries)[claim, ""] == expected


def entropies(
    end=1.0, rise=2.0, share=0.8, noise=0.01, key_rise=0.0, by_layer=(0, 0.1, 0.2, 0.3)
):
    """Records of figure 15: entropy from 4 to `end` (plus something by layer), and what centring gives back."""
    late = (np.array(STEPS) > 50)[None, :, None, None]
    depth = np.array(by_layer)[None, None, :, None]
    entropy = np.where(late, end + depth, 4.0)
    parts = [
        rows("attention.entropy", "attention", entropy, noise * late),
        rows("attention.entropy_normalised", "attention", entropy / 4.2, noise * late),
        rows("centred_attention.query_rise", "centred", rise * late, noise * late),
        rows("centred_attention.key_rise", "centred", key_rise),
        rows(
            "score_terms.mean_query_share",
            "scores",
            np.where(late, share, 0.3),
            noise * late,
        ),
        rows("score_terms.centred_share", "scores", 1 - share),
    ]
    return as_records(pd.concat(parts, ignore_index=True))


ENTROPY_CLAIMS = (
    "mean-query-sharpens",
    "drift-explains-sharpening",
    "mean-query-leads",
    "mean-query-share-grows",
)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ({}, "holds"),
        (
            {"end": 4.5, "rise": -0.5, "share": 0.1, "by_layer": (0.3, 0.2, 0.1, 0)},
            "fails",
        ),
        ({"end": 3.9, "rise": 0.03, "share": 0.45, "noise": 3.0}, "undecided"),
    ],
)
def test_entropy(made, expected):
    found = outcomes("fig15", entropies(**made))
    assert found["entropy-decays", ""] == expected
    assert {
        found["entropy-decays-in-layer", f"layer {layer}"] for layer in (1, 2, 3, 4)
    } == {expected}
    claims = (
        ENTROPY_CLAIMS
        if expected != "fails"
        else [c for c in ENTROPY_CLAIMS if c != "drift-explains-sharpening"]
    )
    assert {found[claim, ""] for claim in claims} == {expected}
    if expected != "undecided":
        assert {
            found["first-layer-sharper", unit] for unit in ("normalised", "nats")
        } == {expected}
    assert found["mean-key-idle", ""] == "identity"


def test_a_layer_that_rises_again_does_not_fall_all_along():
    """From 4 nats to 1 and back to 3: less at the end than at the start."""
    entropy = np.interp(np.arange(len(STEPS)), [0, 4, len(STEPS) - 1], [4, 1, 3])[
        None, :, None, None
    ]
    parts = [entropies()]
    parts[0] = parts[0][parts[0]["metric"] != "attention.entropy"]
    found = outcomes(
        "fig15",
        *parts,
        as_records(rows("attention.entropy", "attention", entropy, 0.01)),
    )
    assert found["entropy-decays", ""] == "holds"
    assert {
        found["entropy-falls-all-along", f"layer {layer}"] for layer in (1, 2, 3, 4)
    } <= {"fails", "undecided"}


def test_drift_that_gives_little_back_does_not_explain():
    assert (
        outcomes("fig15", entropies(rise=0.3))["drift-explains-sharpening", ""]
        == "fails"
    )


def test_a_change_by_centring_keys_fails():
    assert outcomes("fig15", entropies(key_rise=2e-6))["mean-key-idle", ""] == "fails"


def test_first_layer_is_undecided_where_seeds_differ():
    records = entropies()
    turned = (
        records["metric"].str.startswith("attention.entropy")
        & (records["seed"] == 0)
        & (records["layer"] == 4)
    )
    records.loc[turned & (records["step"] == STEPS[-1]), "value"] -= 1.2
    assert outcomes("fig15", records)["first-layer-sharper", "nats"] == "undecided"


def test_numbers_of_heads_of_cells_are_read_as_those_of_a_series(monkeypatch, tmp_path):
    """Their intervals are over seeds alone, and parts of scores are known at the end alone: neither is made up."""
    ended = last_step(0.6, "score_terms.mean_query_share")
    falls = np.linspace(3, 2, len(STEPS))[:, None, None]
    whole = [
        rows(name, "attention", falls, 0.002)
        for name in ("attention.entropy", "attention.entropy_normalised")
    ]
    cells = [alignment(), *whole, ended, last_step(0.3, "score_terms.centred_share")]
    cells += [
        last_step(0.2, "centred_attention.query_rise"),
        last_step(0.0, "centred_attention.key_rise", noise=0),
    ]
    made = pd.concat(cells, ignore_index=True).assign(
        kind="self", low=np.nan, high=np.nan
    )
    made["site"] = made["site"].where(made["site"].notna(), "scores")
    monkeypatch.setattr(checkpoints, "measure_cells", lambda *_: as_records(made))
    read = {
        n: STUDIES[n].measure(checkpoints.CAUSAL["causal"], context(tmp_path))
        for n in ("fig13", "fig15")
    }
    verdicts = {v.claim: v for name in read for v in STUDIES[name].judge(read[name])}
    assert (
        verdicts["cosine-grows"].outcome == "holds"
        and not verdicts["aligned-at-the-end"].reason
    )
    assert verdicts["mean-query-leads"].outcome == "holds"
    assert verdicts["mean-query-share-grows"].outcome == "undecided"
    assert "not measured at step 0" in verdicts["mean-query-share-grows"].reason


def test_layers_that_are_hardly_alike_are_not_alike():
    """Two seeds that correlate by .2 do so beyond chance, and too little."""
    claim = Claim(
        "alike",
        "Alike",
        "",
        floor=0.3,
        because="a tenth of the variance",
        bounds=(-1, 1),
    )
    layers, steps = 4, 4000
    drawn = np.random.default_rng(0).standard_normal((3, layers, steps))
    common = np.random.default_rng(1).standard_normal((1, layers, steps))
    (verdict,) = judge_tests(
        [fig13_14_alignment._test_by_permutation(claim, 0.5 * common + drawn)]
    )
    assert (
        0.1 < verdict.value < 0.3
        and verdict.outcome == "undecided"
        and "too small" in verdict.reason
    )
    (verdict,) = judge_tests(
        [fig13_14_alignment._test_by_permutation(claim, common + drawn)]
    )
    assert verdict.outcome == "holds"


def test_seeds_are_alike_opposed_or_neither():
    steps, layers = (
        np.arange(len(STEPS))[None, :, None, None],
        np.arange(LAYERS)[None, None, :, None],
    )
    alike = np.tanh(steps / 8 * (1 + layers)) * np.where(layers < 2, 1, -1)
    noise = np.random.default_rng(2).standard_normal(SHAPE) * 0.02
    bound = rows("mean_cosine.isotropic_q95", "query.raw", BOUND)

    def judge(values):
        return outcomes(
            "fig23",
            as_records(
                pd.concat([rows("query_key.cosine", "query.raw", values), bound])
            ),
        )

    found = judge(alike + noise)
    assert found["same-trends-over-seeds", ""] == "identity"
    assert (
        found["same-layers-over-seeds", ""]
        == found["same-signs-over-seeds", ""]
        == "holds"
    )
    found = judge(np.tanh(steps / 8) * np.ones((1, 1, LAYERS, 1)) + noise)
    assert found["same-trends-over-seeds", ""] == "identity", (
        "curves that grow are alike"
    )
    assert found["same-layers-over-seeds", ""] == "undecided", (
        "and their layers have nothing in common"
    )
    found = judge(
        np.random.default_rng(3).standard_normal((SEEDS, 1, 1, HEADS)) + noise * 20
    )
    assert found["same-trends-over-seeds", ""] == "undecided"
    # three profiles that are turned against each other by 120°: each is opposed to the mean of the others
    angle = 2 * np.pi * (np.arange(SEEDS)[:, None, None, None] / 3)
    profile = (
        np.cos(angle) * np.array([1, -1, 1, -1])[:, None]
        + np.sin(angle) * np.array([1, 1, -1, -1])[:, None]
    )
    growth = np.linspace(0, 1, len(STEPS))[None, :, None, None]
    found = judge(0.4 * profile * growth + noise / 10)
    assert found["same-signs-over-seeds", ""] == "fails"


def test_trends_over_seeds_can_fail():
    time = np.linspace(0, 1, len(STEPS))[None, :, None, None]
    angle = 2 * np.pi * np.arange(SEEDS)[:, None, None, None] / 3
    values = 0.5 + 0.3 * np.cos(
        angle + 2 * np.pi * time * (len(STEPS) - 1) / len(STEPS)
    )
    bound = rows("mean_cosine.isotropic_q95", "query.raw", BOUND)
    jitter = np.random.default_rng(4).standard_normal(SHAPE) * 1e-3
    records = as_records(
        pd.concat([rows("query_key.cosine", "query.raw", values + jitter), bound])
    )
    assert outcomes("fig23", records)["same-trends-over-seeds", ""] == "fails"


def test_one_seed_decides_nothing():
    one = judge_tests([make_test_of_seeds(ANY, np.array([1.0]), "x")])[0]
    assert one.outcome == "undecided" and "one seed" in one.reason and one.low is None
    assert (
        _place(ANY, np.array([0.08, 0.081, 0.079]), (0.04, 0.16), "x").outcome
        == "holds"
    )
    assert _place(ANY, np.array([0.5, 0.51, 0.5]), (0.04, 0.16), "x").outcome == "fails"
    assert (
        _place(ANY, np.array([0.01, 0.2, 0.1]), (0.04, 0.16), "x").outcome
        == "undecided"
    )


def test_holm_is_over_the_claims_of_a_figure():
    values = np.array([1.0, 1.2, 0.9])
    alone = judge_tests([make_test_of_seeds(ANY, values, "x")])[0]
    many = judge_tests([make_test_of_seeds(ANY, values, "x")] * 8)[0]
    assert many.p == pytest.approx(8 * alone.p)


def test_heads_are_chosen_by_the_rule():
    records = alignment(noise=0)
    best = (
        (records["metric"] == "query_key.cosine")
        & (records["seed"] == 0)
        & (records["step"] == STEPS[-1])
    )
    records.loc[best & (records["layer"] == 2) & (records["head"] == 3), "value"] = 0.99
    records.loc[
        best & (records["layer"] == 4) & (records["head"] == 1), "value"
    ] = -0.97
    assert Alignment.of(records).chosen() == {"similar": (2, 3), "opposite": (4, 1)}


def test_an_onset_is_for_good():
    records = alignment(onset=20, noise=0, signs=(1, 1, 1, 1))
    dip = (
        (records["metric"] == "query_key.cosine")
        & (records["step"] == 100)
        & (records["head"] == 0)
    )
    records.loc[dip, "value"] = 0.0
    onset = Alignment.of(records).onset()
    assert (onset[..., 0] == 0.104).all() and (onset[..., 1:] == 0.02).all()


# ---- planes ----------------------------------------------------------------------------------------------------------


def vectors(steps=3, heads=2, n=40, d=6, seed=0):
    """Queries and keys [step, head, vector, dim] with means that move."""
    rng = np.random.default_rng(seed)
    drift = (
        rng.standard_normal((2, 1, heads, 1, d))
        * np.arange(steps)[None, :, None, None, None]
    )
    return drift + rng.standard_normal((2, steps, heads, n, d)) * (1 + np.arange(d))


ANY = Claim("any", "Any claim", "")


def _place(claim, values, inside, statistic):
    (verdict,) = judge_tests(
        [make_test_of_seeds(claim, values, statistic, inside=inside)]
    )
    return verdict


def pieces_of(x, tmp_path):
    """A measured series of one layer made of vectors [side, step, head, vector, dim]."""
    from safetensors.torch import save_file

    pieces = []
    for step in range(x.shape[1]):
        heads = {}
        for side, of in zip(("query", "key"), torch.as_tensor(x[:, step]), strict=True):
            heads[f"1 {side} moment"] = of.transpose(1, 2) @ of
            heads[f"1 {side} mean"] = of.mean(1)
            heads[f"1 {side} points"] = of.transpose(0, 1)[:5].contiguous()
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        save_file(
            {name: value.contiguous() for name, value in heads.items()},
            folder / "heads.safetensors",
        )
        pieces.append(checkpoints.Piece(step, 0, folder))
    return pieces


@pytest.mark.parametrize("over", planes.BASES)
def test_the_plane_is_that_of_the_stacked_vectors(over, tmp_path):
    x = vectors()
    found = planes.measure_planes(pieces_of(x, tmp_path), (over,))
    for head in range(x.shape[2]):
        stacked = {"union": x, "key": x[1:], "query": x[:1]}[over][:, :, head].reshape(
            -1, x.shape[-1]
        )
        plane = np.linalg.svd(stacked, full_matrices=False)[2][:2].T
        last = x[0, -1, head].mean(0)
        plane *= np.where(last @ plane < 0, -1, 1)
        for side, of in zip(("query", "key"), x, strict=True):
            rows_of = select(found, metric=f"svd.{over}.{side}", head=head)
            got = rows_of.pivot_table(
                index="step", columns="component", values="value"
            ).to_numpy()
            np.testing.assert_allclose(
                got, of[:, head].mean(1) @ plane, rtol=1e-9, atol=1e-9
            )
        means = x[:, -1, head].mean(1)
        expected = ((means @ plane[:, 0]) ** 2).sum() / (means**2).sum()
        share = select(found, metric=f"svd.{over}.drift_share", head=head)[
            "value"
        ].item()
        assert share == pytest.approx(expected, rel=1e-9)


def test_signs_follow_the_last_mean_query(tmp_path):
    for turn in (1, -1):
        folder = tmp_path / str(turn)
        folder.mkdir()
        found = planes.measure_planes(pieces_of(turn * vectors(), folder), ("key",))
        for over in ("union", "key"):
            last = select(found, metric=f"svd.{over}.query", step=2)
            assert (last["value"] >= 0).all()


def test_signs_where_the_mean_says_nothing():
    moment = np.diag([1.0, 4.0, 9.0])
    plane = planes.find_plane(moment, np.zeros(3))
    np.testing.assert_allclose(plane, [[0, 0], [0, 1], [1, 0]], atol=1e-12)


def test_agreement_of_planes(tmp_path):
    same = np.repeat(vectors()[:1], 2, axis=0)
    found = planes.measure_planes(pieces_of(same, tmp_path), ("key", "query"))
    for over in ("key", "query"):
        for name in ("agreement", "path_agreement"):
            np.testing.assert_allclose(
                select(found, metric=f"svd.{over}.{name}")["value"], 1, atol=1e-9
            )


def test_clouds_lie_where_their_means_do(tmp_path):
    x = vectors(n=5)
    found = planes.measure_clouds(pieces_of(x, tmp_path), "union", [(1, 1)])
    means = planes.measure_planes(
        pieces_of(x, tmp_path / "again")
        if (tmp_path / "again").mkdir() is None
        else [],
        (),
    )
    points = select(found, metric="svd.union.cloud.key", step=2).assign(
        k=lambda f: f["component"].str[-1]
    )
    expected = select(means, metric="svd.union.key", step=2, head=1)["value"].to_numpy()
    np.testing.assert_allclose(points.groupby("k")["value"].mean(), expected, rtol=1e-9)


# ---- parts of the scores, and attention without its means ------------------------------------------------------------


def brute_rows(q, k, seen, real, scale):
    """{row: scores of the keys it sees} of one head, in float64."""
    return {
        t: scale * (k[seen[t]] @ q[t])
        for t in range(len(q))
        if real[t] and seen[t].any()
    }


@pytest.mark.parametrize("mask", ["all", "padding", "causal", "window", "left"])
def test_parts_of_scores_are_those_of_every_row(mask):
    torch.manual_seed(0)
    q, k = (
        torch.randn(3, 2, 7, 5).double() + 0.7,
        torch.randn(3, 1, 7, 5).double() - 0.4,
    )
    lengths = torch.tensor([7, 5, 3])
    real = torch.arange(7) < lengths[:, None]
    real = real.flip(1) if mask == "left" else real
    keys, causal = real[:, None, None, :], mask == "causal"
    if mask in ("all", "causal"):
        real, keys = torch.ones_like(real), None
    if mask == "window":
        near = (torch.arange(7)[:, None] - torch.arange(7)).abs() <= 2
        keys = keys & near
    sums = sum_scores(q, k, Masking(keys, causal, None), scale=0.3, real=real)
    got = score_terms.compute(
        Totals({name: value.numpy() for name, value in sums.items()})
    )
    every = (
        torch.ones(3, 1, 7, 7, dtype=torch.bool)
        if keys is None
        else keys.expand(3, 1, 7, 7)
    )
    every = every & torch.ones(7, 7, dtype=torch.bool).tril() if causal else every
    for head in range(2):
        queries = np.concatenate([q[s, head][real[s]].numpy() for s in range(3)])
        mean_q = torch.as_tensor(queries.mean(0))
        mean_k = torch.cat([k[s, 0][real[s]] for s in range(3)]).mean(0)
        parts = {
            "within_rows": (q, k),
            "mean_query": (mean_q.expand_as(q), k),
            "centred": (q - mean_q, k),
        }
        for name, (a, b) in parts.items():
            scores = [
                brute_rows(a[s, head], b[s, 0], every[s, 0], real[s], 0.3)
                for s in range(3)
            ]
            variance = np.mean([x.numpy().var() for of in scores for x in of.values()])
            assert got[name][0, head] == pytest.approx(variance, rel=1e-9)
        assert got["mean_score"][0, head] == pytest.approx(
            float(mean_q @ mean_k) * 0.3, rel=1e-9
        )
        on_key = ((queries - mean_q.numpy()) @ mean_k.numpy() * 0.3).var()
        assert got["between_rows"][0, head] == pytest.approx(on_key, rel=1e-9)


def test_shares_and_their_covariance_make_one():
    q, k = torch.randn(2, 3, 9, 4).double() + 1, torch.randn(2, 3, 9, 4).double()
    sums = sum_scores(q, k, Masking(None, False, None), scale=1.0)
    got = score_terms.compute(
        Totals({name: value.numpy() for name, value in sums.items()})
    )
    mean = q.mean((0, 2), keepdim=True)
    covariance = [
        torch.cov(
            torch.stack(
                [(k[s, h] @ (q[s, h, t] - mean[0, h, 0])), k[s, h] @ mean[0, h, 0]]
            ),
            correction=0,
        )[0, 1]
        for s in range(2)
        for h in range(3)
        for t in range(9)
    ]
    by_head = np.array(covariance).reshape(2, 3, 9).mean((0, 2))
    np.testing.assert_allclose(
        got["mean_query"][0] + got["centred"][0] + 2 * by_head,
        got["within_rows"][0],
        rtol=1e-9,
    )


def test_vectors_that_are_not_finite_are_left_out():
    q, k = torch.randn(1, 1, 6, 4).double(), torch.randn(1, 1, 6, 4).double()
    spoilt_q, spoilt_k = q.clone(), k.clone()
    spoilt_q[0, 0, 5], spoilt_k[0, 0, 5] = float("nan"), float("inf")
    got = sum_scores(spoilt_q, spoilt_k, Masking(None, False, None), scale=1.0)
    expected = sum_scores(
        q[:, :, :5], k[:, :, :5], Masking(None, False, None), scale=1.0
    )
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value)


CENTRED = Settings(
    metrics=("centred_attention", "attention", "score_terms"),
    tokens=("all",),
    groups=8,
    sample=0,
)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "t5", "qwen2"])
@pytest.mark.parametrize("left", [False, True])
def test_centring_keys_changes_no_attention(name, left):
    if name == "t5" and left:
        left = False
    with tiny.exact_softmax():
        plan = tiny.Plan(tiny.documents(12), left=left, decoder=name in tiny.TWO_STACKS)
        records = run_pass(tiny.model(name), plan, CENTRED).records()
    rises = select(records, metric="centred_attention.key_rise")["value"]
    assert len(rises) and rises.abs().max() <= 1e-6
    assert (
        select(records, metric="centred_attention.query_rise")["value"].abs().max()
        > 1e-4
    )


def test_centred_attention_is_that_of_centred_queries():
    plan = tiny.Plan(tiny.documents(10))
    model = tiny.model("bert")
    means = measure_head_means(model, plan, CENTRED)
    records = run_pass(model, plan, CENTRED).records()
    kept = {"query": [], "key": []}
    from anisoscope.capture import capture

    for batch in plan:
        with capture(model, ("query", "key")) as tap:
            model(**batch.inputs)
        for side in kept:
            kept[side].append(
                (tap[f"encoder.2.head.{side}.raw"], batch.streams["encoder"].mask)
            )
    mean = {
        s: torch.cat([x.transpose(1, 2)[m] for x, m in of]).mean(0)
        for s, of in kept.items()
    }
    scale = tiny.HEAD_DIM**-0.5
    torch.testing.assert_close(means["encoder", 2, "self"][0], mean["query"] * scale)
    torch.testing.assert_close(means["encoder", 2, "self"][1], mean["key"])
    entropies_, n = 0, 0
    for (q, mask), (k, _) in zip(kept["query"], kept["key"], strict=True):
        visible = Masking(mask[:, None, None, :], False, None)
        found = attention_rows(
            q - mean["query"][:, None], k, visible, scale=scale, real=mask
        )
        entropies_, n = (
            entropies_ + (found["entropy"] * mask[:, None]).sum((0, 2)),
            n + mask.sum(),
        )
    got = select(records, metric="centred_attention.query", layer=2).sort_values(
        "head"
    )["value"]
    np.testing.assert_allclose(got, (entropies_ / n).numpy(), rtol=1e-9)


def test_centring_takes_a_generator_and_refuses_what_is_read_once_only():
    """A generator is kept, and read twice as a list is; a bare iterator of batches in `run_pass` cannot be."""
    from anisoscope.errors import UsageError

    def inputs():
        return [batch.inputs for batch in tiny.Plan(tiny.documents(12))]

    once_only, kept = (
        tiny.measure(tiny.model("bert"), x, ["centred_attention"])
        for x in (iter(inputs()), inputs())
    )
    assert len(kept) and kept["value"].notna().any()
    pd.testing.assert_frame_equal(once_only, kept)
    with pytest.raises(UsageError, match="read twice"):
        run_pass(tiny.model("bert"), iter(tiny.Plan(tiny.documents(4))), CENTRED)


def test_an_interval_of_paired_entropies_is_narrower_than_that_of_either():
    records = run_pass(
        tiny.model("bert"), tiny.Plan(tiny.documents(30)), CENTRED
    ).records()
    width = {}
    for name in ("attention.entropy", "centred_attention.query_rise"):
        of = select(records, metric=name)
        width[name] = (of["high"] - of["low"]).mean()
    assert width["centred_attention.query_rise"] < width["attention.entropy"]
    assert set(centred_attention.METRIC.needs) >= {"plain.entropy"}


# ---- a series --------------------------------------------------------------------------------------------------------


def test_shown_steps_are_nearest_by_ratio():
    powers = [0, *(2**k for k in range(11)), 1400]
    assert checkpoints.choose_shown_steps(
        powers, checkpoints.CheckpointSettings().shown
    ) == [0, 32, 128, 1400]
    paper = [0, *range(20, 200, 20), *range(200, 2001, 100)]
    assert checkpoints.choose_shown_steps(
        paper, checkpoints.CheckpointSettings().shown
    ) == [0, 40, 200, 2000]
    assert checkpoints.choose_shown_steps([0, 10, 30, 100], [0.19]) == [30], (
        "10 is nearer to 19, 30 by ratio"
    )


def test_the_table_of_a_metric():
    values = np.random.default_rng(0).standard_normal(SHAPE)
    found = read_table(
        as_records(rows("query_key.cosine", "query.raw", values)), "query_key.cosine"
    )
    np.testing.assert_array_equal(found.values, values)
    assert (found.seeds, found.steps, found.layers) == ((0, 1, 2), STEPS, (1, 2, 3, 4))


@pytest.fixture(scope="module")
def series(small_series):
    return checkpoints.CheckpointSettings(
        str(small_series / "checkpoints"),
        corpus=str(small_series / "text.jsonl"),
        sequences=20,
    )


def context(folder):
    from anisoscope_papers.study import Context

    return Context(folder / "study", folder / "cache")


@pytest.fixture(scope="module")
def measured(series, tmp_path_factory):
    """Where the series is measured, and its pieces."""
    at = context(tmp_path_factory.mktemp("measured"))
    return at, checkpoints.measure(series, at)


def test_every_figure_of_a_tiny_series(series, measured):
    from anisoscope.charts import export

    names = [f"fig{n}" for n in (11, 12, 13, 14, 15, 19, 20, 21, 22, 23)]
    for name in names:
        study = STUDIES[name]
        records = study.measure(series, measured[0])
        given = as_records(records)  # as it is written and read
        verdicts = study.judge(given)
        judged = {v.claim for v in verdicts}
        assert judged == {c.name for c in study.claims} - {
            "sign-falls-with-depth"
        }  # of two layers there is no trend
        drawn = study.draw(given)
        assert drawn
        for stem, chart in drawn.items():
            assert export.to_svg(chart, stem).startswith("<svg")


def test_a_step_of_a_series_is_what_measure_gives(series, measured, tmp_path):
    from anisoscope.runs.job import Job
    from anisoscope.runs.run import run

    pieces = measured[1]
    assert [(p.seed, p.step) for p in pieces] == [
        (s, t) for s in (0, 1) for t in (0, 1, 10)
    ]
    subject = f"{series.checkpoints}/seed-1/step-10"
    job = Job(
        subject,
        corpus=series.corpus,
        settings=Settings(panel=("attention", "alignment")),
        sequences=series.sequences,
    )
    plain = run(job, tmp_path / "plain").records
    metrics = ("query_key.cosine", "attention.entropy", "score_terms.mean_query_share")
    ours = checkpoints.read_records(pieces[-1:], metrics)
    keys = ["layer", "head", "site", "metric"]
    of_plain = plain[plain["token_policy"].fillna("all") == "all"]
    both = ours.merge(of_plain, on=keys, suffixes=("", "_plain"))
    assert set(both["metric"]) == set(metrics)
    for name in ("value", "low", "high"):
        np.testing.assert_allclose(
            both[name], both[f"{name}_plain"], rtol=1e-9, atol=1e-9
        )
    assert (
        both["n_units"].iloc[0] > 5
    )  # spread over the documents, not the first of them


def test_a_series_goes_on_where_it_stopped(series, tmp_path, monkeypatch):
    from anisoscope.runs import series as runner

    measured, written = runner._SeriesInProgress.measure, []

    def some(work, checkpoint, progress):
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(checkpoint)
        measured(work, checkpoint, progress)

    monkeypatch.setattr(runner._SeriesInProgress, "measure", some)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.measure(series, context(tmp_path))
    monkeypatch.setattr(
        runner._SeriesInProgress,
        "measure",
        lambda work, c, progress: (written.append(c), measured(work, c, progress)),
    )
    pieces = checkpoints.measure(series, context(tmp_path))
    assert len(written) == len(set(written)) == len(pieces) == 6
    written.clear()
    assert len(checkpoints.measure(series, context(tmp_path))) == 6 and not written
    assert not list(tmp_path.rglob("sums.safetensors")) and not list(
        tmp_path.rglob("reservoir.safetensors")
    )


def test_a_sampled_svd_is_near_the_exact_one(series, measured, tmp_path):
    from dataclasses import replace

    exact = planes.measure_planes(measured[1], ())
    sampled = planes.measure_planes(
        checkpoints.measure(replace(series, share=0.5), context(tmp_path)), ()
    )
    share = [
        select(x, metric="svd.union.drift_share")["value"].to_numpy()
        for x in (exact, sampled)
    ]
    assert 0 < np.abs(share[0] - share[1]).max() < 0.2


def test_heads_of_a_vision_model_along_training(tmp_path):
    """Models trained on the spot, whose seeds may stop at different steps: those common to all are measured."""
    from anisoscope_papers.training.train_small import SmallModelRecipe

    recipe = SmallModelRecipe(share=1e-3, seeds=2)
    series = checkpoints.CheckpointSettings(
        "", recipe, "vit", "builtin:digits", 20, None
    )
    measured = STUDIES["fig13"].measure(series, context(tmp_path))
    assert set(measured["step"]) == {0, 1, 2} and set(measured["seed"]) == {0, 1}
    assert len(STUDIES["fig13"].judge(as_records(measured))) == 7
    clouds = STUDIES["fig11"].measure(series, context(tmp_path))
    assert STUDIES["fig11"].draw(as_records(clouds)) and STUDIES["fig11"].judge(
        as_records(clouds)
    )
    (last,) = (tmp_path / "cache" / "small").glob("vit-1-*/step-2")
    last.rename(last.with_name("step-3"))
    assert [
        c.step for c in checkpoints.list_checkpoints(series, context(tmp_path))
    ] == [0, 1, 0, 1]


def test_a_series_of_spoken_digits_needs_them(monkeypatch, tmp_path):
    from anisoscope.errors import UsageError

    monkeypatch.delenv("ANISOSCOPE_DATA", raising=False)
    with pytest.raises(UsageError, match="ANISOSCOPE_DATA"):
        checkpoints.measure(checkpoints.SETTINGS["speech"], context(tmp_path))


def test_a_series_of_one_step_is_refused(small_series, tmp_path):
    from anisoscope.errors import UsageError

    alone = checkpoints.CheckpointSettings(
        str(small_series / "nowhere"), corpus=str(small_series / "text.jsonl")
    )
    with pytest.raises(UsageError):
        checkpoints.measure(alone, context(tmp_path))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (
            {0: (0, 1, 9), 1: (0, 1, 9)},
            [(0, 0), (0, 1), (0, 9), (1, 0), (1, 1), (1, 9)],
        ),
        ({0: (0, 1, 5, 9), 1: (9, 0)}, [(0, 0), (0, 9), (1, 0), (1, 9)]),
        ({0: (0, 1, 9), 1: (0, 1)}, "seed 1 at step 1 of 9"),
        ({0: (0, 9), 1: (1, 9)}, "fewer, of 2 seeds"),
        ({0: (9,)}, "fewer, of 1 seeds"),
    ],
)
def test_seeds_of_a_given_series_end_together_and_share_two_steps(
    steps, expected, tmp_path
):
    from anisoscope.errors import UsageError

    for seed, of_seed in steps.items():
        for step in of_seed:
            (tmp_path / f"seed-{seed}" / f"step-{step}").mkdir(parents=True)
    series = checkpoints.CheckpointSettings(f"{tmp_path}/seed-*/step-*")
    if isinstance(expected, str):
        with pytest.raises(UsageError, match=expected):
            checkpoints.list_checkpoints(series, context(tmp_path))
    else:
        assert [
            (c.seed, c.step)
            for c in checkpoints.list_checkpoints(series, context(tmp_path))
        ] == expected


def test_seeds_that_are_trained_on_the_spot_may_stop_each_at_its_own_step(
    monkeypatch, tmp_path
):
    from anisoscope.models.series import Checkpoint

    places = [(0, 0), (0, 10), (0, 100), (1, 0), (1, 10), (1, 100), (1, 1000)]
    uneven = [Checkpoint("x", step, seed) for seed, step in places]
    monkeypatch.setattr(checkpoints, "_train_small", lambda *_: uneven)
    kept = checkpoints.list_checkpoints(
        checkpoints.CheckpointSettings(), context(tmp_path)
    )
    assert [(c.seed, c.step) for c in kept] == [
        place for place in places if place[1] < 1000
    ]


def test_what_has_fallen_of_the_loss_is_of_its_lowest_and_never_given_back(tmp_path):
    """Losses of 4, 2, 3, 1 and 1.5: two thirds are behind the second step, and all of it behind the fourth."""
    losses = {1: 4.0, 10: 2.0, 20: 3.0, 30: 1.0, 40: 1.5}
    pieces = []
    for seed in (0, 1):
        folder = tmp_path / f"seed-{seed}"
        folder.mkdir()
        told = {
            "validation_loss": [[step, loss + seed] for step, loss in losses.items()]
        }
        (folder / "training.json").write_text(json.dumps(told))
        pieces += [
            checkpoints.Piece(step, seed, folder, subject=str(folder / f"step-{step}"))
            for step in (0, *losses)
        ]
    records = checkpoints.read_losses(pieces)
    assert records.set_index(["seed", "step"])["value"].to_dict() == {
        (seed, step): loss + seed for seed in (0, 1) for step, loss in losses.items()
    }
    found = checkpoints.compute_fall(records, (0, 1), (0, *losses))
    np.testing.assert_allclose(found, [[0, 0, 2 / 3, 2 / 3, 1, 1]] * 2)
    assert (
        checkpoints.compute_fall(records[records["step"] != 20], (0, 1), (0, *losses))
        is None
    )


def test_a_head_reads_the_keys_of_its_own_group():
    """Four heads of queries, two of keys: the first two read the first."""
    moments = {
        f"1 {side} moment": torch.arange(1.0, n + 1)[:, None, None] * torch.eye(3)
        for side, n in SHARED
    }
    keys = planes.read_moment(moments, 1, "key")[:, 0, 0]
    assert keys.tolist() == [1, 1, 2, 2] and planes.read_moment(moments, 1, "union")[
        :, 0, 0
    ].tolist() == [2, 3, 5, 6]
    means = [
        {
            f"1 {side} mean": torch.arange(1.0, n + 1)[:, None] * torch.ones(n, 3)
            for side, n in SHARED
        }
    ] * 2
    paths = planes._project_paths(means, 1, np.tile(np.eye(3)[:, :2], (4, 1, 1)))
    assert paths["key"][0, :, 0].tolist() == [1, 1, 2, 2] and paths["query"][
        0, :, 0
    ].tolist() == [1, 2, 3, 4]


SHARED = (("query", 4), ("key", 2))


@pytest.mark.parametrize("block", [1, 40, 20_000])
def test_all_orders_of_the_layers_are_tried_where_they_are_finite(monkeypatch, block):
    """p near .025 turned with the random seed of the drawn orders: 70 of 200 seeds said the other."""
    generator = np.random.default_rng(0)
    monkeypatch.setattr(fig13_14_alignment, "BLOCK", block)
    for seeds, layers in ((2, 3), (3, 4), (4, 3), (5, 3)):
        rows_of = generator.standard_normal(
            (seeds, layers, 5)
        ) + generator.standard_normal((1, layers, 5))
        unit = rows_of / np.sqrt((rows_of**2).sum((1, 2), keepdims=True))
        by_hand = []
        for others in itertools.product(
            itertools.permutations(range(layers)), repeat=seeds - 1
        ):
            turned = [
                unit[0],
                *(unit[i + 1][list(order)] for i, order in enumerate(others)),
            ]
            by_hand.append(
                np.mean([(a * b).sum() for a, b in itertools.combinations(turned, 2)])
            )
        found = np.concatenate(list(fig13_14_alignment._correlate_all_orders(unit)))
        assert found[0] == pytest.approx(by_hand[0])
        assert fig13_14_alignment._correlate_as_they_stand(unit) == pytest.approx(
            by_hand[0]
        )
        np.testing.assert_allclose(np.sort(found), np.sort(by_hand), atol=1e-12)
        test = fig13_14_alignment._test_by_permutation(
            Claim("alike", "Alike", "", floor=-1.0, because="any"), rows_of
        )
        assert test.up == pytest.approx(
            np.mean(np.array(by_hand) >= by_hand[0] - 1e-12)
        )
        assert f"all {len(by_hand):,} orders" in test.note


def test_p_over_eight_million_orders_is_that_of_one_table_of_them():
    """The p of figure 23 over 24^5 orders took seconds, so that no world could be drawn of it 200 times."""
    folder = RESULTS / "godey2024/causal/fig23"
    cosine = fig13_14_alignment.Alignment.of(
        runner.open_finished(folder).records
    ).cosine
    profile = cosine[:, -1].mean(-1)
    rows_of = profile - profile.mean(1, keepdims=True)
    unit = rows_of / np.linalg.norm(rows_of, axis=1, keepdims=True)
    orders = np.array(list(itertools.permutations(range(4))))
    pairs = list(itertools.combinations(range(6), 2))
    total = np.zeros([1, *[24] * 5])
    for a, b in pairs:
        of_a = unit[a][orders[:1] if a == 0 else orders]
        table = np.einsum("il,jl->ij", of_a, unit[b][orders]) / len(pairs)
        shape = [1] * 6
        shape[a], shape[b] = table.shape
        total = total + table.reshape(shape)
    test = fig13_14_alignment._test_by_permutation(ANY, rows_of[..., None])
    assert test.up == np.mean(total >= total.flat[0] - 1e-12)
    assert test.down == np.mean(total <= total.flat[0] + 1e-12)
    verdicts = {
        v["claim"]: v for v in json.loads((folder / "verdicts.json").read_text("utf-8"))
    }
    committed = verdicts["same-signs-over-seeds"]
    assert (test.value, test.up) == (committed["value"], committed["p"]), (
        "to the last digit"
    )


def test_where_orders_are_too_many_they_are_drawn(monkeypatch):
    monkeypatch.setattr(fig13_14_alignment, "ALL_ORDERS", 500)
    rows_of = np.random.default_rng(0).standard_normal(
        (3, 4, 5)
    ) + 2 * np.random.default_rng(1).standard_normal((4, 5))
    drawn = fig13_14_alignment._test_by_permutation(ANY, rows_of)
    monkeypatch.undo()
    every = fig13_14_alignment._test_by_permutation(ANY, rows_of)
    assert "100,000 drawn orders" in drawn.note and drawn.value == pytest.approx(
        every.value
    )
    assert drawn.up == pytest.approx(every.up, abs=0.005)


def falling_then_rising(turn, end, seeds=4, noise=0.01, steps=STEPS):
    """Courses [seed, step] that fall from 4 to 3 at step `turn`, then go to `end`."""
    course = np.interp(steps, [0, turn, steps[-1]], [4.0, 3.0, end])
    return course + noise * np.random.default_rng(0).standard_normal(
        (seeds, len(steps))
    )


def test_a_trend_counts_every_checkpoint_for_the_time_it_stands_for():
    """A layer that fell for a tenth of training and rose for the rest was said to fall all along: ρ over log-spaced
    checkpoints was −.8.
    """
    steps = np.array([0, *2 ** np.arange(11)])
    course = np.interp(steps, [0, 64, 1024], [4.0, 2.8, 3.5])
    assert stats.spearmanr(steps, course).statistic < 0
    assert courses.correlate_with_clock(course, steps.astype(float)) > 0.7
    assert courses.correlate_with_clock(
        -np.log1p(steps), steps.astype(float)
    ) == pytest.approx(-1)
    loss = np.array([0.0, *[0.1] * 10, 1.0])
    assert courses.correlate_with_clock(course, loss) == pytest.approx(
        courses.correlate_with_clock(course[[0, 10, 11]], loss[[0, 10, 11]])
    )
    assert np.isnan(courses.correlate_with_clock(np.ones(12), steps.astype(float)))


def test_where_a_course_turns_is_read_from_the_other_seeds():
    """The lowest of noisy values lies below the last by chance: the rise of a course that stays is 0 on average."""
    rises = [
        courses.measure_rise_since_turning(
            np.random.default_rng(i).standard_normal((4, 13))
        ).mean()
        for i in range(300)
    ]
    assert abs(np.mean(rises)) < 0.15
    own = [np.random.default_rng(i).standard_normal(13) for i in range(300)]
    assert np.mean([x[-1] - x.min() for x in own]) > 1
    found = courses.measure_rise_since_turning(falling_then_rising(100, 3.5))
    np.testing.assert_allclose(found, 0.5, atol=0.05)


def test_which_of_two_courses_leads():
    steps = np.array(STEPS)
    first = (
        0.1
        + 0.5 * (steps >= 20)
        + 0.01 * np.random.default_rng(0).standard_normal((4, len(steps)))
    )
    second = (
        0.2
        + 0.5 * (steps >= 200)
        + 0.01 * np.random.default_rng(1).standard_normal((4, len(steps)))
    )
    ahead, at = courses.measure_lead(first, second, (0.1, 0.1))
    assert set(at) == {STEPS.index(20)} and (ahead > 0.8).all()
    behind, at = courses.measure_lead(second, first, (0.1, 0.1))
    assert set(at) == {STEPS.index(200)} and (np.abs(behind) < 0.15).all()
    still = np.zeros_like(first)
    assert np.isnan(courses.measure_lead(first, still, (0.1, 0.1))[0]).all()


def test_a_rise_goes_to_the_step_where_the_other_seeds_are_highest():
    """A seed's own highest value is a chance one: one that jumps at the second step alone has made no such rise."""
    first = np.array([[0.0, 0.5, 0.9, 1.0], [0.0, 0.5, 0.9, 1.0], [0.0, 4.0, 0.9, 1.0]])
    second = np.array([[0.0, 0.2, 0.6, 1.0]] * 3)
    ahead, at = courses.measure_lead(first, second, (0.1, 0.1))
    assert at.tolist() == [1, 1, 1]
    # of the first two the other seeds are highest at the second step, through the jump
    np.testing.assert_allclose(ahead, [1 - 0.2, 1 - 0.2, 4.0 - 0.2])


@pytest.mark.parametrize(
    ("early", "late", "words"),
    [
        (
            20,
            500,
            {
                "alignment-before-sharpness": "holds",
                "sharpens-after-alignment": "holds",
            },
        ),
        (
            500,
            20,
            {
                "alignment-before-sharpness": "too small",
                "sharpens-after-alignment": "too small",
            },
        ),
    ],
)
def test_alignment_before_sharpness_and_after(early, late, words):
    """|cos| jumps at one step and recedes; the entropy falls at another."""
    steps = np.array(STEPS)
    rising = (
        np.where(steps >= early, 0.7, 0.1) - 0.2 * (steps == 1000) - 0.05 * (steps == 0)
    )
    entropy = np.where(steps >= late, 2.0, 4.0)
    parts = entropies()
    parts = parts[parts["metric"] != "attention.entropy"]
    made = [
        rows("query_key.cosine", "query.raw", rising[None, :, None, None], 0.005),
        rows("attention.entropy", "attention", entropy[None, :, None, None], 0.005),
    ]
    found = {
        v.claim: v
        for v in STUDIES["fig15"].judge(
            pd.concat([parts, *map(as_records, made)], ignore_index=True)
        )
    }
    assert {name: found[name].word for name in words} == words
    bound = rows("mean_cosine.isotropic_q95", "query.raw", BOUND)
    cosines = as_records(pd.concat([made[0], bound], ignore_index=True))
    recedes = {v.claim: v for v in STUDIES["fig13"].judge(cosines)}["alignment-recedes"]
    assert recedes.word == "holds"


def test_a_course_that_is_extreme_at_the_end_does_not_turn():
    found = {
        (v.claim, v.subject): v for v in STUDIES["fig15"].judge(entropies_falling())
    }
    verdict = found["entropy-rises-again", "layer 1"]
    assert verdict.word == "too small" and "lowest at the last step" in verdict.reason
    assert (
        found["alignment-before-sharpness", ""].reason
        == "cosines of means are not in these records"
    )


def entropies_falling():
    parts = entropies()
    falls = np.linspace(4, 1, len(STEPS))[None, :, None, None]
    return pd.concat(
        [
            parts[parts["metric"] != "attention.entropy"],
            as_records(rows("attention.entropy", "attention", falls, 0.001)),
        ],
        ignore_index=True,
    )
