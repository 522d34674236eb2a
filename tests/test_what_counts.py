"""Which vectors, rows, heads and policies count: in every metric, by every road that numbers come by."""

import math
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch

import anisoscope
from anisoscope.axes import POLICIES, Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture import capture
from anisoscope.capture.heads import Heads, is_plain_softmax
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.projections import _split_fused
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.capture.vectors import find_output
from anisoscope.errors import UsageError
from anisoscope.measure import cost, masks
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.inputs import _open_batches
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.metrics import (
    calibrated,
    common_direction,
    mean_cosine,
    query_key,
    scan,
)
from anisoscope.reads.vectors import FEW_GROUPS
from anisoscope.sums.classes import pool_sequences
from anisoscope.sums.device import sum_on_device
from anisoscope.sums.groups import Sums, Totals, sum_rows, sum_vectors
from anisoscope.sums.moments import add_head_moments


def drawn(*shape, seed=0):
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def measured(x, settings, mask=None, unit=None):
    """A measurement of hidden vectors [sequence, token, dim], each sequence a unit."""
    real = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
    special = real & (real.cumsum(1) == 2)  # the second real token
    stream = Stream(real, special, torch.arange(len(x)) * x.shape[1])
    done = Measurement(settings)
    done.begin(
        Batch({}, torch.arange(len(x)) if unit is None else unit, {"encoder": stream}),
        x.device,
    )
    done.receive(Site("encoder", 0, "hidden"), x)
    done.end()
    return done


# ---- vectors ---------------------------------------------------------------------------------------------------------

OF_HIDDEN = sorted(name for name, metric in scan().items() if metric.reads.arrays == 1)


OF_SEQUENCES = ("intra_sequence", "massive", "matrix_entropy")
"""Metrics whose values are means over sequences."""


@pytest.mark.parametrize("name", OF_HIDDEN)
def test_what_is_left_out_changes_no_value_and_no_end_of_an_interval(name):
    """Zero vectors, NaN and padding, whatever stands there: in sums, second moments and the sample alike."""
    x, settings = (
        drawn(12, 4, 6) + 0.5,
        Settings(metrics=(name,), groups=5, spectrum_groups=5, sample=999),
    )
    bad = torch.cat([drawn(12, 1, 6, seed=1), x, drawn(12, 2, 6, seed=2)], 1)
    mask = torch.ones(bad.shape[:2], dtype=torch.bool)
    mask[:, 0] = mask[:, 6] = False
    bad[:, 5] = 0.0
    bad[3, 5] = bad[:, 0] = torch.nan
    rows = [
        measured(each, settings, real).records()
        for each, real in ((x, None), (bad, mask))
    ]
    for column in ("metric", "component", "token_policy"):
        assert rows[0][column].tolist() == rows[1][column].tolist()
    for column in ("value", "low", "high", "n_vectors", "n_units"):
        ours, theirs = (each[column].to_numpy(np.float64) for each in rows)
        np.testing.assert_allclose(theirs, ours, rtol=1e-9, atol=1e-12, err_msg=column)
    assert rows[0]["value"].notna().any() and len(rows[0])


@pytest.mark.parametrize("name", OF_HIDDEN)
def test_every_metric_tells_of_how_many_vectors_it_is(name):
    x = drawn(9, 5, 6)
    records = measured(
        x, Settings(metrics=(name,), groups=4, spectrum_groups=4, sample=999)
    ).records()
    counts = (
        dict.fromkeys(POLICIES, 9)
        if name in OF_SEQUENCES
        else {"all": 45, "content": 36, "no-first": 36}
    )
    for row in records.itertuples():
        policy = row.token_policy if isinstance(row.token_policy, str) else "all"
        assert (row.n_vectors, row.n_units) == (counts[policy], 9), row


@pytest.mark.parametrize("sums_of", [sum_vectors, sum_on_device], ids=["cpu", "device"])
def test_only_real_vectors_are_counted_as_left_out(sums_of):
    x = drawn(2, 3, 5, 4)  # [sequence head token dim]
    x[:, :, [1, 4]] = 0.0
    x[0, 1, [2, 4]] = torch.inf
    x[1, 2, 3] = 1e200  # float64 does not hold its square
    real = torch.tensor([[True, True, True, True, False]] * 2)
    if sums_of is sum_vectors:
        out, _ = sums_of(x, real.unsqueeze(1), None, frozenset({"n"}))
    else:
        none = torch.zeros(2, 0, 5, dtype=torch.bool)
        out, _ = sums_of(x.transpose(1, 2), real.unsqueeze(1), none, frozenset({"n"}))
    assert out["zero"].tolist() == [3, 3] and out["nonfinite"].tolist() == [1, 1]
    assert out["n"].flatten(1).sum(1).tolist() == [3 * 4 - 4, 3 * 4 - 4]


@pytest.mark.parametrize("at", ["first", "last", "mean"])
def test_a_pooled_vector_is_of_real_tokens_whatever_stands_at_padding(at):
    x, mask = drawn(2, 4, 3), torch.tensor([[0, 1, 1, 0], [1, 1, 1, 0]]).bool()
    expected = {
        "first": [x[0, 1], x[1, 0]],
        "last": [x[0, 2], x[1, 2]],
        "mean": [x[0, 1:3].mean(0), x[1, :3].mean(0)],
    }
    spoiled = x.masked_fill(~mask.unsqueeze(-1), torch.nan)
    torch.testing.assert_close(
        pool_sequences(spoiled, mask, at), torch.stack(expected[at])
    )


def test_a_sample_is_centred_on_the_mean_of_all_vectors():
    x = drawn(40, 1, 6) + 2
    done = measured(x, Settings(metrics=("calibrated",), groups=4, sample=9))
    kept = done.reservoirs["encoder"].vectors["encoder.0.hidden"].numpy()
    assert len(kept) == 9
    row = done.records().query("metric == 'calibrated.centred'").iloc[0]
    assert row["value"] == pytest.approx(
        mean_cosine.reference([kept - x.flatten(0, 1).mean(0).numpy()])[""], abs=1e-9
    )


def test_what_lies_on_the_mean_has_no_direction_from_it():
    vectors = np.array([[1.0, 2.0], [3.0, 1.0], [2.0, 2.0], [0.0, 1.0]])
    sums = calibrated.sum_sample(
        vectors, np.array([2.0, 2.0]), np.array([0, 1, 1, 0]), 2
    )
    assert sums["n"].tolist() == [2, 1] and sums["pairs"].tolist() == [[2, 4], [4, 2]]


def test_a_share_of_a_may_lie_above_one():
    """Dimensions below 0 take some of A away: those above it hold more than the whole."""
    u = np.array([[3**0.5, 1], [3**0.5, -1]] * 2) / 2
    terms = {
        "n": np.ones((4, 1, 1)),
        "unit": u[:, None, None],
        "unit_square": u[:, None, None] ** 2,
    }
    totals = Totals(terms)
    share = mean_cosine.compute(totals)["top_share"][0, 0, 0, 0]
    low, high = (
        np.broadcast_to(end, (1, 1, 3))[0, 0, 0]
        for end in mean_cosine.METRIC.range_of("top_share", totals)
    )
    assert share == pytest.approx(9 / 8) and (low, high) == (0.0, 1.5)


# ---- policies --------------------------------------------------------------------------------------------------------


def test_what_is_of_one_policy_is_of_the_first():
    """Spectrum, sample and common direction were of all tokens, whatever came first."""
    plan, names = (
        tiny.Plan(tiny.documents(10)),
        sorted(
            name for name, m in scan().items() if m.first_policy and m.reads.layers == 1
        ),
    )
    assert {"spectrum", "calibrated", "common_direction"} <= {*names}

    def table(*policies):
        settings = Settings(
            metrics=tuple(names),
            tokens=policies,
            groups=4,
            spectrum_groups=2,
            sample=99,
        )
        done = run_pass(tiny.model("bert"), plan, settings)
        moments = [
            x for (_, term), x in done.sums.terms.items() if term == "head_moment"
        ]
        assert moments and all(len(x) == 2 for x in moments)
        frame = done.records()
        return frame[frame["metric"].str.split(".").str[0].isin(names)]

    both, content, every = table("content", "all"), table("content"), table("all")
    for column in (
        "metric",
        "layer",
        "site",
        "token_policy",
        "value",
        "low",
        "high",
        "n_vectors",
    ):
        assert (
            both[column].fillna("—").tolist() == content[column].fillna("—").tolist()
        ), column
    streams = [plan[i].streams["encoder"] for i in range(len(plan))]
    for frame, tokens in (
        (content, [stream.mask & ~stream.special for stream in streams]),
        (every, [s.mask for s in streams]),
    ):
        assert set(frame["n_vectors"]) == {sum(int(each.sum()) for each in tokens)}
    for name in names:
        values = [
            frame[frame["metric"].str.startswith(name)]["value"].tolist()
            for frame in (content, every)
        ]
        assert len(values[0]) == len(values[1]) and values[0] != values[1], name


def test_whole_images_have_eight_groups():
    settings = Settings(panel=("hidden",), flatten="image", groups=32, sample=0)
    done = Measurement(settings)
    done.begin(Batch({}, torch.arange(20)), torch.device("cpu"))
    done.receive(Site("encoder", 0, "hidden"), drawn(20, 1, 6))
    n = done.sums.terms["encoder.0.hidden", "n"][:, 0, 0]
    assert n.tolist() == [3.0] * 4 + [2.0] * 4 + [0.0] * 24 and FEW_GROUPS == 8


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [0, 1])
def test_sums_of_rows_are_those_of_the_real_and_finite_ones(sink):
    """Term by term: a sink is an outcome and no key; rows of padding count nowhere, not even as left out."""
    shape, draw = (2, 3, 5), np.random.default_rng(0)
    keys = torch.tensor(draw.integers(1, 4, shape)).double()
    rows = {
        name: torch.tensor(draw.random(shape))
        for name in ("entropy", "score", "row_max", "row_min", "first_mass")
    }
    rows |= {
        "keys": keys,
        "outcomes": keys + sink,
        "row_similarity": torch.tensor([[0.5, torch.nan, 0.25]] * 2),
    }
    real = (
        torch.tensor([[True, True, True, True, False], [True, True, False, True, True]])
        .unsqueeze(1)
        .expand(shape)
    )
    rows["entropy"][0, 1, [2, 4]] = torch.nan
    rows["score"][1, 0, 3] = torch.inf
    bad = ~(rows["entropy"].isfinite() & rows["score"].isfinite())
    sums, used = sum_rows(rows, real), real & ~bad
    assert sums["nonfinite"].tolist() == [1, 1] and torch.equal(
        sums["rows"], used.sum(-1).double()
    )
    several = used & (keys + sink > 1)
    assert torch.equal(sums["normalised_rows"], several.sum(-1).double())
    outcomes = (keys + sink).clamp(min=2)
    expected = {
        name: torch.where(used, rows[name], 0).sum(-1)
        for name in ("entropy", "score", "row_max", "first_mass")
    }
    expected |= {"pairs": torch.where(used, keys, 0).sum(-1)}
    expected |= {
        "entropy_normalised": torch.where(
            several, rows["entropy"] / outcomes.log(), 0
        ).sum(-1)
    }
    for name, total in expected.items():
        torch.testing.assert_close(sums[name], total, msg=name)
    assert (
        sums["row_similarity"].tolist() == [[0.5, 0, 0.25]] * 2
        and sums["row_sequences"].tolist() == [[1, 0, 1]] * 2
    )


# ---- heads -----------------------------------------------------------------------------------------------------------


def test_grouped_keys_belong_to_the_heads_that_lie_together():
    """Query heads 0 and 1 share the first of two keys' heads, 2 and 3 the second: wherever keys meet queries."""
    q, k, v = drawn(2, 4, 6, 3), drawn(2, 2, 6, 3, seed=1), drawn(2, 2, 6, 5, seed=2)
    every, how = k.repeat_interleave(2, 1), {"scale": 0.7}
    masking = Masking(None, causal=True, bias=None)
    for ours, theirs in (
        (
            attention_rows(q, k, masking, value=v, **how),
            attention_rows(q, every, masking, value=v.repeat_interleave(2, 1), **how),
        ),
        (sum_scores(q, k, masking, **how), sum_scores(q, every, masking, **how)),
    ):
        for name, x in theirs.items():
            torch.testing.assert_close(ours[name], x, msg=name)
    calls = [
        Call(None, q, each, v, None, {"scaling": 0.7, "is_causal": True})
        for each in (k, every)
    ]
    torch.testing.assert_close(calls[0].weights(), calls[1].weights())
    site = Site("decoder", 1, "centred")
    mean_key = every.mean((0, 2))
    tap = SimpleNamespace(
        means={("decoder", 1, "self"): (q.mean((0, 2)) * 0.7, mean_key)}
    )
    query, key = Heads._get_means(SimpleNamespace(tap=tap), site, calls[0])
    torch.testing.assert_close(query, q.mean((0, 2)).unsqueeze(1))
    torch.testing.assert_close(key, k.mean((0, 2)).unsqueeze(1))


@pytest.mark.parametrize("metric", [query_key, common_direction])
def test_a_metric_of_queries_and_keys_gives_each_head_its_own_key(metric):
    draw = np.random.default_rng(0)

    def terms(heads):
        x = draw.normal(size=(4, heads, 9, 5)) + draw.normal(size=(heads, 1, 5))
        n = np.full((4, heads), 9.0)
        one = {"n": n[:, None], "vector": x.sum(2)[:, None]}
        return one | {
            "head_moment": np.einsum("ghnd,ghne->ghde", x, x),
            "head_moment_n": n,
        }

    query, key = terms(4), terms(2)

    def values(key):
        named = {f"query.{t}": x for t, x in query.items()} | {
            f"key.{t}": x for t, x in key.items()
        }
        return metric.compute(
            Totals(
                {
                    t: x
                    for t, x in named.items()
                    if t.partition(".")[2] in metric.METRIC.needs
                }
            )
        )

    axis = {"n": 2, "vector": 2, "head_moment": 1, "head_moment_n": 1}
    apart = values({term: np.repeat(x, 2, axis[term]) for term, x in key.items()})
    for name, value in values(key).items():
        np.testing.assert_allclose(value, apart[name], err_msg=name)
    assert (
        len({*np.round(apart["dot" if metric is query_key else "share"][0].ravel(), 9)})
        == 4
    )


def test_second_moments_of_heads_are_of_the_tokens_that_count():
    x, weight = drawn(3, 2, 4, 5), torch.tensor([1.0, 0, 1, 1]).expand(3, 2, 4).clone()
    weight[1, 1, 0] = 0
    x[0, 0, 1] = torch.nan
    sums = Sums(2)
    add_head_moments(sums, "site", x, weight, torch.tensor([0, 1, 0]), 2)
    kept = torch.where(weight.bool().unsqueeze(-1), x, 0.0)
    products = torch.einsum("shtd,shte->shde", kept, kept)
    torch.testing.assert_close(
        sums.terms["site", "head_moment"],
        torch.stack([products[0] + products[2], products[1]]),
    )
    assert sums.terms["site", "head_moment_n"].tolist() == [[6, 6], [3, 2]]


def test_rows_give_the_output_only_where_it_is_the_model_s_own_product():
    q = torch.zeros(1, 1, 2, 2)
    call = Call(None, q, q, q, None, {"dropout": 0.0}, backend="sdpa")
    assert is_plain_softmax(call) and is_plain_softmax(
        replace(call, settings={}, backend="eager")
    )
    for other in (
        {"settings": {"dropout": 0.1}},
        {"backend": "flex_attention"},
        {"query": q.bfloat16()},
    ):
        assert not is_plain_softmax(replace(call, **other))


def test_a_block_that_names_all_its_states_passes_on_the_last():
    x, y = drawn(1, 2, 3), drawn(1, 2, 3, seed=1)
    assert find_output(None, {"hidden_states": (y, x), "last_hidden_state": x}) is x
    assert (
        find_output(None, ((x, y), y)) is x
        and find_output(None, {"hidden_states": (y, x)}) is y
    )


@pytest.mark.parametrize(
    ("how", "key_heads"),
    [("q, k, v", 4), ("by head", 4), ("grouped", 2), ("q, k, v", 1), ("by head", 1)],
)
def test_fused_projections_are_taken_apart_as_they_lie(how, key_heads):
    """All queries, keys and values one after the other, all three inside each head, or grouped ones behind."""
    q, k, v = (
        drawn(2, heads, 5, 3, seed=seed)
        for seed, heads in enumerate((4, key_heads, key_heads))
    )
    parts = [x.transpose(1, 2) for x in (q, k, v)]  # [sequence token head dim]
    fused = (
        torch.stack(parts, 3)
        if how == "by head" and key_heads == 4
        else torch.cat(parts, 2)
    )
    found_here = _split_fused(fused.flatten(2), how, Call(None, q, k, v, None, {}))
    assert all(
        torch.equal(ours, theirs)
        for ours, theirs in zip(found_here, (q, k), strict=True)
    )
    assert (
        _split_fused(fused.flatten(2)[..., 1:], how, Call(None, q, k, v, None, {}))
        is None
    )


def test_raw_queries_are_projections_before_the_model_scales_them():
    """Whisper scales its queries on the way to the attention interface."""
    from transformers import WhisperConfig, WhisperModel

    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {
        "d_model": 8,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "num_mel_bins": 4,
        "max_source_positions": 6,
    }
    torch.manual_seed(0)
    model = WhisperModel(
        WhisperConfig(**sizes, **heads, vocab_size=20, pad_token_id=0)
    ).eval()
    seen = []
    model.encoder.layers[0].self_attn.q_proj.register_forward_hook(
        lambda _m, _a, output: seen.append(output)
    )
    with torch.no_grad(), capture(model, ("query",)) as tap:
        model(
            input_features=torch.randn(2, 4, 12),
            decoder_input_ids=torch.ones(2, 3).long(),
        )
    assert torch.equal(
        tap["encoder.1.head.query.raw"].transpose(1, 2).flatten(2), seen[0]
    )


# ---- put together ----------------------------------------------------------------------------------------------------


def test_what_could_not_be_seen_stays_said_in_a_merge_and_a_state(tmp_path):
    parts = [
        measured(drawn(3, 4, 5, seed=i), Settings(panel=("hidden",), sample=0))
        for i in range(2)
    ]
    for i, part in enumerate(parts):
        part.unseen, part.pieces, part.batches, part.plan = (
            {f"place {i}"},
            1 + 3 * i,
            {i},
            "plan",
        )
    for one, two in (parts, parts[::-1]):
        merged = one.merge(two)
        assert (
            merged.unseen == {"place 0", "place 1"}
            and merged.pieces == 4
            and merged.batches == {0, 1}
        )
    merged.save(tmp_path / "state")
    again = Measurement.restore(tmp_path / "state", merged.settings, "plan")
    assert (
        again.unseen == merged.unseen
        and again.batches == merged.batches
        and again.sums.units == {0, 1, 2}
    )


def test_a_metric_alone_counts_what_it_leaves_out():
    x = drawn(8, 5).clone()
    x[2], x[3] = 0.0, torch.nan
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        value = anisoscope.metric("norms", x)["norms.mean"].value
    assert [str(each.message) for each in said] == [
        "norms: of 8 vectors, these were left out: 1 with NaN or infinity, 1 zero"
    ]
    assert value == pytest.approx(
        float(x[[0, 1, 4, 5, 6, 7]].norm(dim=1).mean())
    ) and math.isfinite(value)


@pytest.mark.parametrize("heads", [False, True])
def test_a_sample_holds_queries_and_keys_where_asked_for_and_no_other_vectors_of_heads(
    heads,
):
    settings = Settings(
        metrics=("query_key", "calibrated", "mean_cosine"), sample=8, sample_heads=heads
    )
    plan = tiny.Plan(tiny.documents(6), batch=3)
    measured = run_pass(tiny.build("bert", torch.float32), plan, settings)
    kinds = {
        name.split(".", 2)[2]
        for each in measured.reservoirs.values()
        for name in each.vectors
    }
    assert kinds == {"hidden"} | (
        {"head.query.raw", "head.key.raw"} if heads else set()
    )


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999 "),
        (999.4, "999 "),
        (1000, "1 k"),
        (999_600, "1 M"),
        (2.5e9, "2.5 G"),
        (7e12, "7 T"),
    ],
)
def test_sizes_are_told_in_the_unit_that_fits(count, text):
    assert cost.format_scaled(count) == text


def test_a_batch_falls_into_as_many_parts_as_asked_for():
    real = torch.ones(6, 4, dtype=torch.bool)
    batch = Batch(
        {"input_ids": torch.arange(24).view(6, 4)},
        list("aabbcc"),
        {"encoder": Stream(real, ~real, torch.arange(6))},
    )
    for count in (1, 2, 3, 6):
        parts = batch.split(count)
        assert len(parts) == count and {len(part.unit) for part in parts} == {
            6 // count
        }
        assert torch.equal(
            torch.cat([part.inputs["input_ids"] for part in parts]),
            batch.inputs["input_ids"],
        )


def test_tensors_go_to_where_sums_are_made_and_nothing_else_does(monkeypatch):
    monkeypatch.setattr(
        masks, "choose_sum_device", lambda _device: torch.device("meta")
    )
    given = masks.to_accumulation_device(
        {"rows": {"entropy": torch.ones(2)}, "name": "x"}
    )
    assert given["name"] == "x" and given["rows"]["entropy"].device.type == "meta"


def test_layers_counted_from_the_end_are_those_of_their_own_stack():
    sites = [Site("encoder", k, "hidden") for k in range(4)] + [
        Site("decoder", k, "hidden") for k in range(6)
    ]
    sites += [Site("encoder", 3, "final"), Site("decoder", 5, "attention")]
    chosen = [
        site for site in sites if cost._is_chosen(site, sites, Settings(layers=(-1, 0)))
    ]
    assert [
        (site.stack, site.layer) for site in chosen if site.quantity == "hidden"
    ] == [
        ("encoder", 0),
        ("encoder", 3),
        ("decoder", 0),
        ("decoder", 5),
    ]
    assert sites[-2:] == [site for site in chosen if site.quantity != "hidden"]
    assert [site for site in sites if cost._is_chosen(site, sites, Settings())] == sites


def test_lists_within_a_list_hold_tensors_or_are_refused():
    given = [[torch.ones(1, 2)], [np.ones((1, 2))]]
    for item in given:
        assert _open_batches([item]) == [item]
    with pytest.raises(UsageError, match="got a list of lists of int"):
        _open_batches([[1, 2], [3]])
