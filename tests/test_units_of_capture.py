"""Small decisions of a capture, each on a few numbers: which pair is visible, which axis, which of two names."""

import math
import threading
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from random_numbers import draw_tensor
from torch import nn

from anisoscope.axes import Site
from anisoscope.capture import (
    counting,
    entry_points,
    fallback,
    heads,
    projections,
    proof as proofs,
    splitting,
    tap,
    vectors,
)
from anisoscope.capture.masking import HIDDEN, Call, Masking, Span
from anisoscope.capture.proof import Outputs, Positions, Proof
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.errors import MeasureError, UsageError

NONE = Masking(None, False, None)


def visible(masking, queries, keys, sequences=1):
    """Which query sees which key, as lists of the visible keys by sequence and query (of the first head)."""
    seen = torch.ones(sequences, queries, keys, dtype=torch.bool)
    if masking.keys is not None:
        seen = seen & masking.keys[:, 0, :, :keys]
    if masking.causal:
        seen = seen & torch.ones(queries, keys, dtype=torch.bool).tril()
    return [[row.nonzero().flatten().tolist() for row in each] for each in seen]


# ---- which query sees which key


def test_the_flag_of_a_call_comes_before_that_of_its_module():
    """And a single query is never causal: with a cache it is the last one."""
    loud, silent = SimpleNamespace(is_causal=True), SimpleNamespace()
    query, one = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 1, 4)
    table = [
        (loud, query, {}, "sdpa", True),
        (loud, query, {"is_causal": False}, "sdpa", False),
        (loud, query, {"is_causal": None}, "other", True),
        (silent, query, {"is_causal": True}, "other", True),
        (silent, query, {}, "flash_attention_2", False),
        (loud, query, {}, "flash_attention_2", True),
        (loud, query, {}, "eager", False),
        (loud, query, {"is_causal": True}, "flex_attention", False),
        (loud, one, {"is_causal": True}, "sdpa", False),
        (loud, torch.zeros(1, 2, 2, 4), {}, "sdpa", True),
    ]
    for module, asked, settings, backend, causal in table:
        read = Masking.read(module, asked, None, settings, backend=backend)
        assert read.causal == causal, (settings, backend)


def test_an_added_mask_hides_from_five_thousand_below_the_largest_of_its_row_on():
    """What is left of it is a bias, added to the one that the call has; a row that sees nothing stays so."""
    lowest = torch.finfo(torch.float64).min
    mask = torch.tensor(
        [[1.0, -4999.0], [1.0, -4999.5], [lowest, lowest], [0.0, 0.0]]
    ).double()[None, None]
    own = torch.full((1, 1, 4, 2), 0.5).double()
    query = torch.zeros(1, 1, 4, 2)
    read = Masking.read(None, query, mask, {"position_bias": own})
    assert visible(read, 4, 2) == [[[0, 1], [0], [], [0, 1]]]
    assert read.bias[0, 0].tolist() == [
        [1.5, -4998.5],
        [1.5, 0.5],
        [0.5, 0.5],
        [0.5, 0.5],
    ]
    assert not read.causal
    plain = Masking.read(None, query, torch.zeros(1, 1, 4, 2), {})
    assert plain.keys is None and plain.bias is None
    alone = Masking.read(None, query, mask[:, :, 3:], {"position_bias": own})
    assert alone.keys is None and alone.bias is own
    as_bias = Masking.read(None, query, mask[:, :, :1], {})
    assert as_bias.keys is None and as_bias.bias.flatten().tolist() == [1, -4999]


def test_masks_of_truth_and_of_integers_keep_the_bias_of_their_call():
    bias = torch.ones(1, 1, 1, 1)
    given = torch.tensor([[[[1, 0, 2]]]])
    for mask in (given, given.bool(), given.to(torch.uint8)):
        read = Masking.read(
            SimpleNamespace(is_causal=True),
            torch.zeros(1, 1, 3, 2),
            mask,
            {"position_bias": bias},
            backend="sdpa",
        )
        assert read.keys.tolist() == [[[[True, False, True]]]]
        assert read.bias is bias and not read.causal


CAUSAL, BOTH_WAYS = SimpleNamespace(is_causal=True), SimpleNamespace(is_causal=False)


def test_padding_and_windows_of_flash_attention_pair_by_pair():
    """A window of 2 reaches one real token back, and one forward if the module is not causal."""
    query = torch.zeros(2, 1, 4, 2)
    real = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 1]])

    def read(module, mask=real, **settings):
        masking = Masking.read(module, query, mask, settings, backend="flash")
        return visible(masking, 4, 4, 2)

    whole = [[0, 1, 3]] * 4, [[1, 2, 3]] * 4
    assert read(BOTH_WAYS) == [*whole]
    assert read(CAUSAL) == [
        [[0], [0, 1], [0, 1], [0, 1, 3]],
        [[], [1], [1, 2], [1, 2, 3]],
    ]
    assert read(CAUSAL, sliding_window=2) == [
        [[0], [0, 1], [0, 1], [1, 3]],
        [[], [1], [1, 2], [2, 3]],
    ]
    assert read(BOTH_WAYS, sliding_window=2)[0][3] == [1, 3]
    assert read(BOTH_WAYS, sliding_window=2)[1][1:] == [[1, 2], [1, 2, 3], [2, 3]]
    assert read(CAUSAL, None, sliding_window=3)[0] == [
        [0],
        [0, 1],
        [0, 1, 2],
        [1, 2, 3],
    ]
    assert read(CAUSAL, None) == [[[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]] * 2
    bias = torch.ones(1, 1, 1, 4)
    for mask, more in ((None, {}), (real, {}), (real, {"sliding_window": 2})):
        kept = Masking.read(
            CAUSAL, query, mask, {"position_bias": bias} | more, backend="flash"
        )
        assert kept.bias is bias
    by_mask = Masking.read(CAUSAL, query, real, {}, backend="")
    assert visible(by_mask, 4, 4, 2) == read(CAUSAL)


def test_a_cache_that_is_not_full_and_one_that_is_longer():
    """The mask is of the last keys; the last query is at the place of the last key."""
    query = torch.zeros(1, 1, 2, 2)
    short = torch.tensor([[0, 1, 1]])
    read = Masking.read(BOTH_WAYS, query, short, {}, keys=5, backend="flash")
    assert visible(read, 2, 5) == [[[1, 2], [1, 2]]]
    long = torch.tensor([[1, 0, 1, 1]])
    read = Masking.read(BOTH_WAYS, query, long, {}, keys=3, backend="flash")
    assert visible(read, 2, 3) == [[[1, 2], [1, 2]]]
    read = Masking.read(CAUSAL, query, None, {}, keys=4, backend="flash")
    assert visible(read, 2, 4) == [[[0, 1, 2], [0, 1, 2, 3]]]


def test_packed_sequences_begin_where_their_positions_begin_again():
    """Positions may begin at any number; with a window, and with causality, each sequence is by itself."""
    query = torch.zeros(1, 1, 5, 2)
    position = torch.tensor([[2, 3, 4, 2, 3]])

    def read(module, given=position, asked=query, keys=5, **settings):
        settings = {"position_ids": given} | settings
        masking = Masking.read(
            module, asked, None, settings, keys=keys, backend="flash"
        )
        return visible(masking, asked.shape[2], keys, len(asked))

    apart = [[0, 1, 2]] * 3 + [[3, 4]] * 2
    assert read(BOTH_WAYS) == [apart]
    assert read(CAUSAL) == [[[0], [0, 1], [0, 1, 2], [3], [3, 4]]]
    assert read(CAUSAL, sliding_window=2) == [[[0], [0, 1], [1, 2], [3], [3, 4]]]
    one = torch.arange(7, 12)[None]
    assert read(BOTH_WAYS, one) == [[[0, 1, 2, 3, 4]] * 5]
    assert read(BOTH_WAYS, position, query[:, :, :2]) == [[[3, 4], [3, 4]]]
    two = torch.zeros(2, 1, 5, 2)
    assert read(BOTH_WAYS, position, two) == [[[0, 1, 2, 3, 4]] * 5] * 2
    assert read(BOTH_WAYS, position.repeat(2, 1), two) == [[[0, 1, 2, 3, 4]] * 5] * 2


def test_a_range_of_visible_keys_replaces_a_mask():
    """Each sequence has its own; a gap, a window, or heads that differ are no range."""
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    real = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]]).bool()
    by_key = Masking(real[:, None, None], False, None)
    assert by_key.span(2, 4, 4) == Span((0, 2), (3, 4), False)
    both = Masking(real[:, None, None] & causal, False, None)
    assert both.span(2, 4, 4) == Span((0, 2), (3, 4), True)
    shared = Masking(real[None, None, 1:2], False, None)
    assert shared.span(3, 4, 4) == Span((2, 2, 2), (4, 4, 4), False)
    assert NONE.span(2, 4, 3) == Span((0, 0), (3, 3), False)
    assert Masking(None, True, None).span(1, 4, 3) == Span((0,), (3,), True)
    longer = Masking(torch.ones(1, 1, 1, 6, dtype=torch.bool), False, None)
    assert longer.span(1, 4, 4) == Span((0,), (4,), False)
    nothing = Masking(torch.zeros(1, 1, 1, 4, dtype=torch.bool), False, None)
    assert nothing.span(1, 4, 4) == Span((0,), (0,), False)
    gap = Masking(torch.tensor([[[[True, False, True]]]]), False, None)
    window = Masking((causal & causal.flip(0, 1))[None, None], False, None)
    of_heads = Masking(real[None, :, None], False, None)
    with_flag = Masking(real[:, None, None], True, None)
    for masking, keys in ((gap, 3), (window, 4), (of_heads, 4), (with_flag, 4)):
        assert masking.span(2, 4, keys) is None
    fewer = Masking(causal[None, None, 1:], False, None)
    assert fewer.span(1, 3, 4) is None, "later queries see keys after their own place"
    by_size = Masking(None, False, None)
    assert by_size.span(1, 2, 2).stop == (2,) and by_size.span(1, 2, 5).stop == (5,)


def test_a_flag_and_a_mask_become_one_mask():
    keys = torch.tensor([[[[True, True, False, True, True]]]])
    bias = torch.ones(1, 1, 1, 4)
    both = Masking(keys, True, bias).without_flag(3, 4)
    assert visible(both, 3, 4) == [[[0], [0, 1], [0, 1]]]
    assert both.bias is bias and not both.causal
    for masking in (Masking(keys, False, None), Masking(None, True, None)):
        assert masking.without_flag(3, 4) is masking


def test_the_spread_of_a_bias_is_that_of_visible_keys_inside_one_row():
    bias = torch.tensor([[[[1.0, 4.0, -50.0], [100.0, 101.0, 60.0]]]])
    assert NONE.spread == 0 and Masking(None, False, bias).spread == 54
    keys = torch.tensor([[[[True, True, False, True]]]])
    assert Masking(keys, False, bias).spread == 3
    assert Masking(None, False, bias[..., :0]).spread == 0


# ---- the arguments of one call


def called(query, key, mask=None, module=None, **settings):
    return Call(module, query, key, key, mask, settings, backend="eager")


def test_logits_are_capped_then_biased_then_hidden_and_end_with_the_sink():
    """Four heads share two heads of keys; each number differs from every other."""
    query, key = draw_tensor(2, 4, 3, 5), draw_tensor(2, 2, 6, 5, seed=1)
    bias, sinks = draw_tensor(1, 4, 3, 6, seed=2), draw_tensor(4, seed=3)
    keys = torch.tensor([1, 1, 0, 1, 1, 1]).bool().view(1, 1, 1, 6)
    known = Masking(keys, True, bias)
    call = Call(
        None,
        query,
        key,
        key,
        None,
        {"scaling": 0.7, "softcap": 1.5, "s_aux": sinks},
        known=known,
    )
    expected = torch.empty(2, 4, 3, 7, dtype=torch.float64)
    for b in range(2):
        for h in range(4):
            for q in range(3):
                for k in range(6):
                    dot = float(query[b, h, q] @ key[b, h // 2, k]) * 0.7
                    logit = 1.5 * math.tanh(dot / 1.5) + float(bias[0, h, q, k])
                    expected[b, h, q, k] = logit if k <= q and k != 2 else HIDDEN
                expected[b, h, q, 6] = sinks[h]
    torch.testing.assert_close(call.scores(), expected)
    torch.testing.assert_close(call.scores(2), expected[:, :, :2])
    torch.testing.assert_close(call.scores(slice(1, 3)), expected[:, :, 1:])
    torch.testing.assert_close(call.weights(), expected.softmax(-1)[..., :6])
    torch.testing.assert_close(call.weights(1), expected.softmax(-1)[:, :, :1, :6])
    free = call.scores(masking=NONE)[..., :6]
    assert (free > HIDDEN).all()
    wide = Masking(keys, False, bias[:, :, :1])
    torch.testing.assert_close(
        call.scores(slice(2, 3), wide)[0, 1, 0, 5],
        torch.tanh(query[0, 1, 2] @ key[0, 0, 5] * 0.7 / 1.5) * 1.5 + bias[0, 1, 0, 5],
    )


def test_the_largest_score_is_a_bound_of_every_head():
    query, key = torch.zeros(2, 1, 2, 4), torch.zeros(2, 1, 3, 4)
    query[1, 0, 0] = torch.tensor([3.0, 0.0, 4.0, 0.0])
    key[0, 0, 2] = torch.tensor([0.0, 2.0, 0.0, 0.0])
    assert called(query, key).largest_score() == 5 * 2 * 0.5
    assert called(query, key, scaling=-3.0).largest_score() == 30
    assert called(query, key, softcap=7).largest_score() == 7
    assert called(query[:, :, :0], key).largest_score() == 0
    assert called(query, key[:, :, :0]).largest_score() == 0
    assert (
        called(query, key).scale == 0.5 and called(query, key, scaling=0.0).scale == 0
    )


def test_a_pair_whose_weight_is_rounded_to_nothing_is_hidden():
    """By the type in which the softmax runs; what a mask or the flag hides is hidden still, and so is an empty row."""
    query = torch.zeros(1, 1, 3, 2)
    bias = torch.tensor([0.0, -120.0, -1.0]).view(1, 1, 1, 3)
    call = called(query, query, position_bias=bias)
    assert visible(call.masking, 3, 3) == [[[0, 2]] * 3]
    assert call.masking.bias is bias
    wide = replace(call, query=query.double(), key=query.double())
    assert wide.masking.keys is None
    deep = called(query.double(), query.double(), position_bias=bias.double() * 7)
    assert visible(deep.masking, 3, 3) == [[[0, 2]] * 3]
    causal = replace(call, known=Masking(None, True, bias))
    assert visible(causal.masking, 3, 3) == [[[0], [0], [0, 2]]]
    assert not causal.masking.causal
    keys = torch.tensor([[[[1, 1, 0]], [[1, 1, 0]]]]).bool()[:, :1]
    masked = replace(call, known=Masking(keys, False, bias))
    assert visible(masked.masking, 3, 3) == [[[0]] * 3]
    flat = called(query, query, position_bias=bias / 4)
    assert flat.masking.keys is None
    assert visible(call.read_masking(), 3, 3) == [[[0, 1, 2]] * 3]


# ---- statistics of rows and of scores against plain numbers


FORMS = ("none", "causal", "keys", "pairs", "by head", "bias", "keys and flag")


def a_form(form):
    keys = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1]]).bool()[:, None, None]
    pairs = draw_tensor(2, 1, 4, 5, seed=5) > -0.5
    pairs[0, 0, 1] = False
    by_head = draw_tensor(1, 4, 4, 5, seed=6) > -0.5
    bias = 3 * draw_tensor(1, 4, 4, 5, seed=7)
    return {
        "none": NONE,
        "causal": Masking(None, True, None),
        "keys": Masking(keys, False, None),
        "pairs": Masking(pairs, False, None),
        "by head": Masking(by_head, False, None),
        "bias": Masking(keys, False, bias),
        "keys and flag": Masking(keys, True, bias),
    }[form]


def plain_pairs(masking):
    seen = torch.ones(2, 4, 4, 5, dtype=torch.bool)
    if masking.keys is not None:
        seen = seen & masking.keys
    if masking.causal:
        seen = seen & torch.ones(4, 5, dtype=torch.bool).tril()
    return seen


@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_everything_of_rows_is_what_their_weights_say(form, with_sinks):
    """Also what each key receives, the output, the ends of logits and the histogram, with padded queries left out."""
    query, key, value = (
        draw_tensor(2, 4, 4, 3),
        draw_tensor(2, 2, 5, 3, seed=1),
        draw_tensor(2, 2, 5, 2),
    )
    real = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]).bool()
    masking, seen = a_form(form), plain_pairs(a_form(form))
    edges = torch.tensor([-1.0, 0.25, 1.0])
    sinks = draw_tensor(4, seed=9) if with_sinks else None
    found = attention_rows(
        query,
        key,
        masking,
        scale=0.8,
        sinks=sinks,
        real=real,
        median=True,
        histogram=edges,
        value=value,
        columns=True,
    )
    score = query @ key.repeat_interleave(2, 1).mT * 0.8
    logits = score if masking.bias is None else score + masking.bias
    parts = torch.where(seen, logits.exp(), 0.0)
    total = parts.sum(-1)
    of_sinks = torch.zeros(1, 4, 1) if sinks is None else sinks.exp().view(1, 4, 1)
    weights = parts / (total + of_sinks).clamp(min=1e-300).unsqueeze(-1)
    sees = seen.any(-1)
    left = of_sinks / (total + of_sinks).clamp(min=1e-300)
    entropy = -torch.xlogy(weights, weights).sum(-1) - torch.xlogy(left, left)
    output = (weights @ value.repeat_interleave(2, 1)).transpose(1, 2)
    giving = (real[:, None] & sees).double()
    expected = {
        "entropy": entropy,
        "row_max": weights.amax(-1),
        "row_min": torch.where(seen, weights, torch.inf).amin(-1),
        "largest": torch.where(seen, logits, -torch.inf).amax(-1),
        "smallest": torch.where(seen, logits, torch.inf).amin(-1),
        "score": torch.where(seen, score, 0.0).sum(-1),
    }
    for name, exact in expected.items():
        torch.testing.assert_close(found[name][sees], exact[sees], msg=name)
    keys = seen.sum(-1)
    assert torch.equal(found["keys"].long(), keys)
    assert torch.equal(found["outcomes"].long(), keys + with_sinks)
    by_row = sees.transpose(1, 2)
    torch.testing.assert_close(found["output"][by_row], output[by_row])
    assert found["output"][~by_row].isnan().all()
    mass = (weights * giving.unsqueeze(-1)).sum(2)
    torch.testing.assert_close(found["mass"], mass)
    counted = (seen * real[:, None, :, None]).sum(2)
    assert torch.equal(found["seen"].long(), counted)
    for b in range(2):
        for h in range(4):
            pairs = seen[b, h] & real[b, :, None]
            bins = torch.bucketize(score[b, h][pairs], edges.double())
            counts = torch.bincount(bins, minlength=4)
            assert found["score_histogram"][b, h].tolist() == counts.tolist()
            rows = weights[b, h][real[b]]
            if bool(sees[b, h][real[b]].all()):
                unit = rows / rows.norm(dim=1, keepdim=True)
                cosine = ((unit @ unit.T).sum() - 3) / 6
                assert float(found["row_similarity"][b, h]) == pytest.approx(
                    float(cosine)
                )
            for q in range(4):
                if sees[b, h, q]:
                    median = weights[b, h, q][seen[b, h, q]].quantile(0.5)
                    assert float(found["row_median"][b, h, q]) == pytest.approx(
                        float(median)
                    )


@pytest.mark.parametrize("form", FORMS)
def test_sums_of_scores_are_those_of_each_row_in_turn(form):
    """One query and one key are not finite: neither counts, nor does what is padding."""
    query, key = draw_tensor(2, 4, 4, 3), draw_tensor(2, 2, 5, 3, seed=1)
    query[1, 2, 3] = math.inf
    key[0, 1, 2, 0] = math.nan
    real = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]]).bool()
    seen = plain_pairs(a_form(form))
    found = sum_scores(query, key, a_form(form), scale=0.8, real=real)
    for b in range(2):
        for h in range(4):
            k = key[b, h // 2]
            rows = []
            used = torch.zeros(5, dtype=torch.bool)
            for q in range(4):
                fits = real[b, q] and seen[b, h, q].any()
                if fits and query[b, h, q].isfinite().all():
                    rows.append(q)
                    used |= seen[b, h, q]
            used &= k.isfinite().all(-1)
            scaled = query[b, h][rows] * 0.8
            variance, lean, spread = 0.0, torch.zeros(3), torch.zeros(3, 3)
            for q in rows:
                inside = k[seen[b, h, q] & used]
                covariance = torch.zeros(3, 3).double()
                if len(inside):
                    covariance = torch.cov(inside.T, correction=0)
                one = query[b, h, q] * 0.8
                variance += float(one @ covariance @ one)
                lean = lean + covariance @ one
                spread = spread + covariance
            expected = {
                "rows": torch.tensor(float(len(rows))),
                "query": scaled.sum(0),
                "query_moment": scaled.T @ scaled,
                "keys": used.sum(),
                "key": k[used].sum(0),
                "row_variance": torch.tensor(variance),
                "row_lean": lean,
                "row_spread": spread,
            }
            for name, exact in expected.items():
                torch.testing.assert_close(
                    found[name][b, h], exact.double(), msg=f"{name} {b} {h}"
                )


# ---- queries and keys before the interface


def numbered(*shape):
    return torch.arange(float(math.prod(shape))).view(shape)


def a_call(query_heads=2, key_heads=2, tokens=3, dim=2, width_of_value=2):
    query = numbered(1, query_heads, tokens, dim) + 1000
    key = numbered(1, key_heads, tokens, dim) + 2000
    value = numbered(1, key_heads, tokens, width_of_value) + 3000
    return Call(nn.Identity(), query, key, value, None, {})


def side_by_side(x):
    return x.transpose(1, 2).flatten(2)


def stages_of(source, call, **seen):
    for name, x in seen.items():
        source.keep(name.replace("_", " "), nn.Identity(), (), x)
    return source.stages(call)


def test_separate_projections_are_split_by_head():
    call = a_call(4, 2)
    query, key = numbered(1, 4, 3, 2), numbered(1, 2, 3, 2) + 500
    for turned in (False, True):
        source = projections.Source("rotated", tokens_first=turned)
        given = [side_by_side(query), side_by_side(key)]
        if turned:
            given = [x.transpose(0, 1) for x in given]
        found = stages_of(source, call, query=given[0], key=given[1])
        assert torch.equal(found["query", "raw"], query)
        assert torch.equal(found["key", "raw"], key)
        assert found["query", "rotated"] is call.query
        assert found["key", "rotated"] is call.key and not source.seen
        assert len(found) == 4


def test_a_gate_behind_each_query_is_cut_off():
    call = a_call(4, 2)
    query, gate = numbered(1, 4, 3, 2), numbered(1, 4, 3, 2) - 900
    both = side_by_side(torch.cat([query, gate], -1))
    key = numbered(1, 2, 3, 2)
    source = projections.Source("normed")
    found = stages_of(source, call, query=both, key=side_by_side(key))
    assert torch.equal(found["query", "raw"], query)
    assert torch.equal(found["key", "raw"], key)


@pytest.mark.parametrize(
    ("name", "heads_of", "layout"),
    [
        ("Wqkv", (2, 2), "in turn"),
        ("c_attn", (2, 2), "in turn"),
        ("query_key_value", (2, 2), "by head"),
        ("qkv_proj", (4, 2), "grouped"),
        ("query_key_value", (4, 1), "grouped"),
        ("c_attn", (4, 1), "grouped"),
        ("query_key_value", (1, 1), "grouped"),
    ],
)
def test_a_fused_projection_is_split_by_its_layout(name, heads_of, layout):
    """And nothing is read from an output of another width."""
    call = a_call(*heads_of)
    query = numbered(1, heads_of[0], 3, 2)
    key, value = numbered(1, heads_of[1], 3, 2) + 50, numbered(1, heads_of[1], 3, 2)
    whole = torch.cat([side_by_side(x) for x in (query, key, value)], -1)
    if layout == "by head":
        whole = side_by_side(torch.cat([query, key, value], -1))
    source = projections.Source("rotated", fused=name)
    found = stages_of(source, call, fused=whole)
    assert torch.equal(found["query", "raw"], query)
    assert torch.equal(found["key", "raw"], key)
    assert len(stages_of(source, call, fused=whole[..., 1:])) == 2
    assert len(stages_of(projections.Source("rotated"), call, fused=whole)) == 2


def test_latent_keys_are_the_own_part_of_a_head_and_the_shared_one():
    """Two own dimensions, one shared, values of width three; the latent vector begins with two of no use."""
    call = a_call(2, 2, tokens=3, dim=3, width_of_value=3)
    query, own, value = numbered(1, 2, 3, 3), numbered(1, 2, 3, 2), numbered(1, 2, 3, 3)
    shared = torch.tensor([[[91.0], [92.0], [93.0]]])
    latent = torch.cat([torch.zeros(1, 3, 2), shared], -1)
    source = projections.Source("rotated")
    source.seen = {
        "query": side_by_side(query),
        "kv_a_proj_with_mqa": latent,
        "kv_b_proj": side_by_side(torch.cat([own, value + 700], -1)),
    }
    found = source.stages(call)
    expected = torch.cat([own, shared.unsqueeze(1).expand(1, 2, 3, 1)], -1)
    assert torch.equal(found["key", "raw"], expected)
    assert torch.equal(found["query", "raw"], query)


def test_outputs_of_norms_are_a_stage_of_their_own():
    call = a_call(4, 2)
    of_query, of_key = numbered(1, 4, 3, 2), numbered(1, 2, 3, 2)
    for turn in (lambda x: x, lambda x: x.transpose(1, 2), side_by_side):
        source = projections.Source("rotated")
        found = stages_of(source, call, query_norm=turn(of_query), key_norm=of_key)
        assert torch.equal(found["query", "normed"], of_query)
        assert torch.equal(found["key", "normed"], of_key)
    two = a_call(2, 2)
    call = replace(two, query=two.query.repeat(2, 1, 1, 1))
    in_a_row = numbered(6, 2, 2)
    found = projections._align_axes(in_a_row, call.query)
    assert torch.equal(found, in_a_row.view(2, 3, 2, 2).transpose(1, 2))
    source = projections.Source("rotated")
    assert len(stages_of(source, two, query_norm=two.query)) == 2
    source.keep("key", nn.Identity(), (), (two.query,))
    assert "key" not in source.seen


def hooked(rotary, scaling=None, **children):
    module = nn.Module()
    for name, child in children.items():
        setattr(module, name, child or nn.Linear(2, 2))
    if scaling is not None:
        module.scaling = scaling
    kept = {}

    def hook(child, function):
        name = next(n for n, c in module.named_children() if c is child)
        kept[function.args[0]] = name

    source = projections.hook_projections(module, rotary, hook, tokens_first=True)
    assert source.tokens_first
    return source.stage, source.fused, kept


def test_only_what_the_interface_does_not_show_is_hooked():
    pair = {"q_proj": None, "k_proj": None}
    norms = {"q_norm": None, "k_norm": None}
    both = {"query": "q_proj", "key": "k_proj"}
    of_norms = {"query norm": "q_norm", "key norm": "k_norm"}
    off = {"q_norm": nn.Identity(), "k_norm": nn.Identity()}
    latent = {"kv_a_proj_with_mqa": None, "kv_b_proj": None}
    same = {name: name for name in latent}
    assert hooked(False, **pair) == ("raw", None, {})
    assert hooked(False, 1.0, **pair) == ("raw", None, {})
    assert hooked(False, 0.5, **pair) == ("raw", None, both)
    assert hooked(False, torch.ones(2), **pair) == ("raw", None, both)
    assert hooked(False, 0.5, query=None, key=None) == ("raw", None, {})
    assert hooked(True, **pair) == ("rotated", None, both)
    assert hooked(True, **pair, **norms) == ("rotated", None, both | of_norms)
    assert hooked(False, **pair, **norms) == ("normed", None, both)
    assert hooked(True, **pair, **off) == ("rotated", None, both)
    assert hooked(False, **pair, **off) == ("raw", None, {})
    assert hooked(True, **pair, **norms, add_q_proj=None) == ("rotated", None, {})
    assert hooked(True, query_key_value=None, qkv_proj=None) == (
        "rotated",
        "query_key_value",
        {"fused": "query_key_value"},
    )
    assert hooked(True, **latent, q_proj=None)[2] == {"query": "q_proj"} | same
    found = hooked(True, **latent, q_proj=None, q_b_proj=None)[2]
    assert found == {"query": "q_b_proj"} | same
    assert hooked(True, q_proj=None) == ("rotated", None, {})


@pytest.mark.parametrize(
    ("query", "key"),
    [("q_proj", "k_proj"), ("query", "key"), ("q", "k"), ("q_lin", "k_lin"), ("query_proj", "key_proj")],
)  # fmt: skip
def test_projections_have_one_of_the_usual_names(query, key):
    found = hooked(True, **{key: None, query: None})
    assert found == ("rotated", None, {"query": query, "key": key})


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("q_norm", "k_norm"),
        ("query_norm", "key_norm"),
        ("q_layernorm", "k_layernorm"),
        ("q_ln", "k_ln"),
        ("norm_q", "norm_k"),
    ],
)
def test_norms_of_queries_and_keys_have_one_of_the_usual_names(query, key):
    found = hooked(True, q_proj=None, k_proj=None, **{key: None, query: None})
    assert found[2] == {
        "query": "q_proj",
        "key": "k_proj",
        "query norm": query,
        "key norm": key,
    }


# ---- layers of attention


class OwnAttention(nn.Module):
    def __init__(self, **children):
        super().__init__()
        for name, child in children.items():
            setattr(self, name, child)


def a_tap(model, *wanted, **how):
    return tap.Tap(
        model, frozenset(wanted or {"attention"}), None, "position", None, **how
    )


def test_the_kind_of_attention_is_read_from_its_path_or_its_numbers_of_keys():
    """Of other names, only a call outside of the interface says by its numbers whether it is cross-attention."""
    paths = {
        "self_attn": "self",
        "EncDecAttention": "cross",
        "encoder_attn": "cross",
        "crossattention": "cross",
        "cross_attn": "cross",
        "attn2": "cross",
        "cross_attention": "cross",
        "encoder_decoder_attention": "cross",
        "no_cross_attention_here": "self",
    }
    for path, kind in paths.items():
        model = nn.Module()
        setattr(model, path, OwnAttention())
        own = a_tap(model)
        module = getattr(model, path)
        own.running[own.stacks[module]].layer = 3
        call = replace(a_call(), module=module)
        site = own.heads._make_site(call, False)("query", "raw")
        assert (site.kind, site.layer, site.label) == (kind, 3, "query.raw"), path
        more = replace(call, key=call.key[:, :, :2])
        assert own.heads._make_site(more, False)("key").kind == kind
        assert own.heads._make_site(more, True)("key").kind == "cross"
        assert own.heads._make_site(call, True)("key").kind == kind
    layer = nn.TransformerDecoderLayer(4, 2, batch_first=True)
    own = a_tap(layer)
    for module, kind in ((layer.multihead_attn, "cross"), (layer.self_attn, "self")):
        found = own.heads._make_site(replace(a_call(), module=module), True)
        assert found("attention").kind == kind


def test_masks_are_read_once_for_equal_calls_alone():
    """Two layers with one mask share what was read; whatever is unlike is read by itself."""
    module, other = OwnAttention(), OwnAttention()
    other.is_causal = True
    model = nn.ModuleList([module, other])
    own = a_tap(model).heads
    mask, bias = torch.ones(1, 1, 3, 3, dtype=torch.bool), torch.ones(1, 1, 3, 3)
    call = replace(a_call(), module=module, mask=mask)
    first = own._share_masking(call).known
    assert own._share_masking(replace(call, settings={"x": 1})).known is first
    unlike = (
        {"mask": mask.clone()},
        {"settings": {"position_bias": bias}},
        {"settings": {"sliding_window": 2}},
        {"settings": {"is_causal": True}},
        {"module": other},
        {"backend": "flash"},
        {"key": call.key[:, :, :2]},
        {"query": call.query[:, :, :2]},
        {"query": call.query.repeat(2, 1, 1, 1)},
    )
    known = [first]
    for change in unlike:
        found = own._share_masking(replace(call, **change)).known
        assert all(found is not each for each in known), change
        known.append(found)


def test_windows_of_a_call_must_be_whole_parts_of_its_sequences():
    module = OwnAttention()
    own = a_tap(module)
    stack = own.stacks[module]
    here = own.running[stack]

    def count(calls, queries, keys=None):
        query = torch.zeros(calls, 1, queries, 2)
        key = torch.zeros(calls, 1, keys or queries, 2)
        return own.heads._count_windows(Call(module, query, key, key, None, {}))

    assert count(6, 4) == 1, "outside of a block nothing is known"
    here.sequences, here.positions = 2, 12
    assert [count(2, 12), count(2, 5), count(6, 4), count(4, 6)] == [1, 1, 3, 2]
    assert [count(3, 8), count(6, 5), count(6, 4, 5), count(1, 24)] == [0, 0, 0, 0]
    own.real[stack] = torch.ones(2, 12, dtype=torch.bool)
    assert [count(6, 4), count(2, 12)] == [0, 1]


def test_all_that_is_emitted_of_windows_is_joined():
    """Each quantity has its axis: of queries, of keys, of the head's width, or sums."""
    x = numbered(4, 2, 3, 5)
    joined = heads._merge_windows(x, 2)
    assert joined.shape == (2, 2, 6, 5)
    assert torch.equal(joined[1, 0, 3:], x[3, 0]) and torch.equal(
        joined[0, 1, :3], x[0, 1]
    )
    by_key = heads._merge_windows({"mass": numbered(4, 2, 3), "query": x}, 2)
    assert by_key["mass"][0, 1].tolist() == [3, 4, 5, 9, 10, 11]
    assert torch.equal(by_key["query"], joined)
    rows = {"entropy": numbered(4, 2, 3)}
    nested = heads._merge_windows({"plain": rows, "key": rows}, 2)
    assert (
        nested["key"]["entropy"].shape == nested["plain"]["entropy"].shape == (2, 2, 6)
    )
    sums = heads._merge_windows({"rows": numbered(4, 2), "query": numbered(4, 2, 3)}, 2)
    assert sums["rows"].tolist() == [[2, 4], [10, 12]]
    assert sums["query"][1, 1].tolist() == [15 + 21, 16 + 22, 17 + 23]
    assert heads._merge_windows(7, 2) == 7


def test_means_are_of_scaled_queries_and_of_each_head_of_keys():
    module = OwnAttention()
    own = a_tap(module)
    call = replace(a_call(4, 2), module=module, settings={"scaling": 0.25})
    query = numbered(4, 2)
    key = numbered(2, 2).repeat_interleave(2, 0) + 70
    own.means[("encoder", 5, "cross")] = (query, key)
    site = Site("encoder", 5, "centred", kind="cross")
    of_query, of_key = own.heads._get_means(site, call)
    assert torch.equal(of_query, (query * 4).unsqueeze(1))
    assert of_key[:, 0].tolist() == [[70, 71], [72, 73]]
    found = own.heads._compute_centred_rows(call, site, None)
    without_query = replace(call, query=call.query - of_query)
    without_key = replace(call, key=call.key - of_key)
    for name, other in (("query", without_query), ("key", without_key)):
        expected = own.heads._compute_rows(other, None)
        assert torch.equal(found[name]["score"], expected["score"])
    with pytest.raises(MeasureError, match="encoder 5 self"):
        own.heads._get_means(replace(site, kind="self"), call)


def test_rows_have_the_cap_the_sinks_and_the_scale_of_their_call():
    module = OwnAttention()
    query, key = draw_tensor(1, 2, 3, 4), draw_tensor(1, 2, 3, 4, seed=1)
    sinks = torch.tensor([0.3, -0.4])
    settings = {"scaling": 0.6, "softcap": 0.5, "s_aux": sinks}
    real = torch.tensor([[True, True, False]])
    call = Call(module, query, key, key, None, settings, known=NONE)
    own = a_tap(module, median=True, histogram=torch.tensor([0.0])).heads
    found = own._compute_rows(call, real, value=True, columns=True)
    expected = attention_rows(
        query,
        key,
        NONE,
        scale=0.6,
        softcap=0.5,
        sinks=sinks,
        real=real,
        median=True,
        histogram=torch.tensor([0.0]),
        value=key,
        columns=True,
    )
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        torch.testing.assert_close(found[name], exact, msg=name)
    assert not {"output", "mass"} & own._compute_rows(call, real).keys()


def test_keys_of_more_positions_are_refused_if_asked_for():
    module = OwnAttention()
    call = replace(a_call(), module=module, query=torch.zeros(1, 2, 2, 2))
    for wanted, kind, fails in (
        ("key", "self", True),
        ("key.raw", "self", True),
        ("value", "self", True),
        ("query", "self", False),
        ("attention", "self", False),
        ("key", "cross", False),
    ):
        own = a_tap(module, wanted).heads

        def at(name, kind=kind):
            return Site("encoder", 1, name, kind=kind)

        if fails:
            with pytest.raises(MeasureError, match="3 keys for 2 positions"):
                own._check_keys(call, at)
        else:
            own._check_keys(call, at)
        own._check_keys(a_call(), at)


def test_when_an_output_may_stand_in_for_the_model_s():
    call = replace(a_call(), backend="sdpa")
    assert heads.is_plain_softmax(call)
    assert heads.is_plain_softmax(replace(call, backend="eager"))
    assert heads.is_plain_softmax(replace(call, settings={"dropout": 0.0}))
    assert heads.is_plain_softmax(replace(call, settings={"dropout": None}))
    assert heads.is_plain_softmax(replace(call, query=call.query.double()))
    for change in (
        {"settings": {"dropout": 0.1}},
        {"backend": "flash_attention_2"},
        {"query": call.query.bfloat16()},
    ):
        assert not heads.is_plain_softmax(replace(call, **change))
    keys, entropy = torch.tensor([1, 2]), torch.tensor([0.0, 1.0])
    assert heads.is_defined({"keys": keys, "entropy": entropy})
    assert not heads.is_defined({"keys": keys - 1, "entropy": entropy})
    spoiled = entropy.log()
    assert not heads.is_defined({"keys": keys, "entropy": spoiled})


def test_errors_in_a_few_words():
    assert heads.explain(MeasureError("a", "what came", "c")) == "what came"
    assert heads.explain(ValueError("x\n  y")) == "ValueError: x y"
    assert heads.explain(ValueError()) == "ValueError"
    assert heads.explain(ValueError("z" * 200)) == "ValueError: " + "z" * 120


# ---- a proof


FULL = Proof(
    outputs=2e-3,
    noise=1e-5,
    limit=1e-4,
    skipped="why",
    attention={
        ("encoder", 1, "self"): (1e-6, 2e-5),
        ("encoder", 2, "cross"): (0.5, 3e-5),
        ("decoder", 3, "self"): (math.inf, 4e-5),
        ("decoder", 4, "self"): (3e-6, 5e-5),
    },
    unheard={("decoder", 9, "cross")},
)


def test_every_field_of_a_proof_comes_back_and_is_described():
    assert Proof.from_json(FULL.to_json()) == FULL
    assert FULL.describe() == {
        "outputs_moved": 2e-3,
        "outputs_limit": 1e-4,
        "outputs_skipped": "why",
        "attention_error": 3e-6,
        "attention_limit": 5e-5,
        "attention_compared": 4,
        "attention_not_compared": 1,
        "attention_refused": {"encoder.2.cross": 0.5, "decoder.3": "not finite"},
    }
    plain = Proof(math.inf).describe()
    assert plain["outputs_moved"] == "other shapes" and plain["attention_error"] is None
    assert not {"outputs_skipped", "attention_refused"} & plain.keys()


def test_of_two_proofs_the_worse_counts_in_every_field():
    other = Proof(
        3e-3,
        2e-5,
        5e-5,
        "other",
        {("encoder", 1, "self"): (2e-6, 1e-5)},
        {("e", 1, "self")},
    )
    for one, two in ((FULL, other), (other, FULL)):
        both = one.merge(two)
        assert (both.outputs, both.noise, both.limit) == (3e-3, 2e-5, 1e-4)
        assert both.skipped == one.skipped and len(both.unheard) == 2
        assert both.attention["encoder", 1, "self"] == (2e-6, 1e-5)
        assert len(both.attention) == 4
    assert Proof(skipped="x").merge(FULL).outputs == 2e-3
    assert (
        Proof().merge(FULL).skipped == "why" and Proof().merge(Proof()).outputs is None
    )


def test_a_capture_moves_a_model_above_rounding_and_ten_times_its_noise():
    table = [
        (None, 0.0, 0.0, False),
        (1e-4, 0.0, 1e-4, False),
        (2e-4, 0.0, 1e-4, True),
        (2e-4, 2e-5, 0.0, False),
        (2e-4, 1e-5, 0.0, True),
        (math.nan, 1.0, 1.0, True),
    ]
    for outputs, noise, limit, moved in table:
        assert Proof(outputs, noise, limit).moved == moved, (outputs, noise, limit)


def test_the_error_of_attention_is_that_of_the_worst_head():
    """Two sequences of three queries and two heads: what is padding, sees nothing or overflows is not compared."""
    ours = torch.ones(2, 3, 2, 4, dtype=torch.float64)
    own = ours.clone()
    own[0, 0, 1] += 0.5
    own[0, 2] = 9.0  # padding
    own[1, 1, 0] = 7.0  # a query that sees no key
    own[1, 2, 1, 3] = math.inf
    keys = torch.ones(2, 2, 3)
    keys[1, 0, 1] = 0
    real = torch.tensor([[1, 1, 0], [1, 1, 1]]).bool()
    call = Call(
        None, ours, ours, ours, None, {"scaling": 0.0}, result=lambda: (own, None)
    )
    error, limit = proofs.compare_attention(call, ours, keys, real)
    assert error == pytest.approx(math.sqrt(0.25 / (3 + 1.5**2)))
    assert limit == proofs.ROUNDING[torch.float64]
    flat = replace(call, result=lambda: own.flatten(2))
    assert proofs.compare_attention(flat, ours, keys, real) == (error, limit)
    spoiled = ours.clone()
    spoiled[1, 0, 0, 0] = math.nan
    assert proofs.compare_attention(call, spoiled, keys, real)[0] == math.inf
    for result in (None, lambda: None, lambda: own.long(), lambda: own[:, :2]):
        assert (
            proofs.compare_attention(replace(call, result=result), ours, keys, real)
            is None
        )
    nobody = torch.zeros(2, 2, 3)
    assert proofs.compare_attention(call, ours, nobody, real) is None

    def finish(x):
        return x.flatten(2) * 2

    layer = replace(call, result=lambda: finish(ours) + 1, finish=finish)
    error, _ = proofs.compare_attention(layer, ours, keys, real)
    assert error == pytest.approx(1 / 3)
    small = torch.ones(1, 1, 2, 1).double() * torch.tensor([[[[0.0], [1.0]]]])
    used = torch.ones(1, 1, 2, dtype=torch.bool)
    error = proofs._measure_error(small + 1e-3, small, used, by_head=True)
    assert error == pytest.approx(1e-3 / math.sqrt(0.5e-4)), "a head that gives nothing"


def test_the_limit_of_rounding_grows_with_the_scores_that_a_model_rounds():
    query = torch.tensor([[[[3.0, 4.0]]]])
    call = Call(None, query, query, query, None, {"scaling": 2.0}, backend="eager")
    fused = replace(call, backend="sdpa")
    limits = {}
    for dtype, rounding, of_scores in (
        (torch.float64, 1e-6, 2e-7),
        (torch.float32, 5e-6, 2e-7),
        (torch.bfloat16, 0.01, 0.008),
        (torch.float16, 0.0015, 0.001),
    ):
        limits[dtype] = limit = proofs._get_limit(call, dtype)
        assert limit == pytest.approx(rounding + 50 * of_scores, rel=1e-12)
        # Fused kernels keep scores in float32, which is what rounds those of two bytes.
        of_fused = rounding if dtype.itemsize < 4 else limit
        assert proofs._get_limit(fused, dtype) == of_fused
    assert proofs._get_limit(call, torch.float8_e4m3fn) == limits[torch.float32]


def test_outputs_are_compared_as_a_share_of_their_largest_number():
    x = torch.tensor([1.0, -4.0, 2.0])
    assert Outputs(x).measure_difference(Outputs(x + torch.tensor([1.0, 0, 0]))) == 0.25
    both = {"a": x, "b": [x, None], "c": "text"}
    other = {"a": x, "b": [x * 2, None], "c": "other"}
    assert Outputs(both).measure_difference(Outputs(other)) == 1
    assert Outputs([]).measure_difference(Outputs([])) == 0
    zero = torch.zeros(2)
    assert Outputs(zero).measure_difference(Outputs(zero + 3)) == 3
    lost = torch.full((2,), math.nan)
    assert Outputs(lost).measure_difference(Outputs(lost)) == 0
    assert Outputs(lost).measure_difference(Outputs(zero)) == math.inf
    assert (
        Outputs(-lost / 0).measure_difference(Outputs(torch.tensor([math.inf, 1.0])))
        == math.inf
    )
    mixed = Outputs([x, x.bfloat16(), x.half(), x.long()])
    assert mixed.dtype == torch.bfloat16
    assert Outputs([x, x.half()]).dtype == torch.float16
    assert Outputs([x.double()]).dtype == torch.float64
    assert Outputs([x.long()]).dtype == torch.float32


class Pair(NamedTuple):
    first: torch.Tensor
    second: int


def test_inputs_are_copied_whatever_holds_them():
    x = torch.ones(2)
    given = {"a": x, "b": [x, (x, 3)], "c": {"d": x}, "e": Pair(x, 5)}
    copied = proofs.copy_inputs(given)
    x += 1
    found = [copied["a"], copied["b"][0], copied["b"][1][0], copied["c"]["d"]]
    found.append(copied["e"].first)
    assert copied["e"].second == 5
    assert all(torch.equal(each, torch.ones(2)) for each in found)
    assert type(copied["b"][1]) is tuple and copied["b"][1][1] == 3


def test_blocks_of_two_stacks_are_numbered_apart():
    blocks = [nn.Sequential(nn.Linear(1, 1)) for _ in range(4)]
    positions = Positions({"encoder": blocks[:3], "decoder": blocks[3:]})

    def site(stack, layer):
        return Site(stack, layer, "attention")

    for number, block in enumerate(blocks[:3], start=1):
        fits = [
            n
            for n in (1, 2, 3)
            if not positions.contradict(block[0], site("encoder", n))
        ]
        assert fits == [number]
    assert positions.contradict(blocks[0], site("decoder", 1))
    assert not positions.contradict(blocks[3], site("decoder", 1))
    assert not positions.contradict(blocks[0], site("decoder", 2)), (
        "beyond the last block"
    )


# ---- what is detected


def test_attention_is_a_softmax_of_three_axes_before_a_product():
    ran = []
    watch = counting.Counting(ran.append)
    weights, other = torch.rand(2, 3, 3), torch.rand(2, 3, 3)
    watch._note("aten::bmm", (weights, other), other)
    watch._note("aten::_softmax", (other,), weights[0])
    watch._note("aten::bmm", (weights[0], other), other)
    assert ran == []
    watch._note("aten::_softmax", (other,), weights)
    watch._note("aten::bmm", (weights[:1], other), other)
    assert ran == [], "a part of the weights is not the weights"
    copy = weights.clone()
    watch._note("aten::mul", (weights,), copy)
    watch._note("aten::mul", (other, weights), other.clone())
    watch._note("aten::bmm", (other, copy.view(6, 3)), other)
    assert ran == ["aten::bmm of a softmax"] and not watch.weights
    watch._note("aten::_flash_attention_forward", (), other)
    # a whole layer of torch, whose kernel computes attention inside
    watch._note("aten::_transformer_encoder_layer_fwd", (), other)
    watch._note("xformers::efficient_attn", (), other)
    assert ran[1:] == [
        "aten::_flash_attention_forward",
        "aten::_transformer_encoder_layer_fwd",
        "xformers::efficient_attn",
    ]
    for number in range(5):
        watch._note("aten::_safe_softmax", (), torch.rand(1, 1, 2) + number)
    assert len(watch.weights) == 4
    found = watch.weights[0]
    watch._note("aten::baddbmm", (other, other, found), other)
    assert ran[4:] == ["aten::baddbmm of a softmax"]


def test_detecting_ends_and_pauses_and_begins_once():
    ran = []
    watch = counting.Counting(ran.append)
    x = torch.rand(2, 3, 3)

    def attend():
        return x.softmax(-1) @ x

    attend()
    watch.start()
    attend()
    with watch.pause():
        attend()
        with watch.pause():
            attend()
        attend()
    attend()
    watch.stop()
    watch.start()
    attend()
    watch.stop()
    assert ran == ["aten::bmm of a softmax"] * 2 and not watch.quiet


# ---- attention that only projections show


def a_layer(**attributes):
    module = nn.Module()
    for name, value in attributes.items():
        setattr(module, name, value)
    calls = []
    return fallback._Layer(module, calls.append), calls


def test_a_layer_that_runs_in_chunks_is_one_call():
    """Each chunk sees itself alone, by its own mask if it has one; the next layer begins with nothing."""
    layer, calls = a_layer(num_attention_heads=2, num_heads=4)
    masks = [torch.tensor([[[1, 0], [1, 1]]]), None]
    chunks = [numbered(1, 2, 4), numbered(1, 3, 4) + 50]
    for mask, x in zip(masks, chunks, strict=True):
        layer.keep_mask(None, (x, None, mask), {})
        for number, kept in enumerate(layer.projected):
            layer.keep(kept, None, None, x + number * 1000)
        layer.keep_output(None, None, (x * 2, "weights"))
    layer.end(nn.Identity(), (), None)
    (call,) = calls
    whole = torch.cat(chunks, 1).view(1, 5, 2, 2).transpose(1, 2)
    assert torch.equal(call.query, whole) and torch.equal(call.key, whole + 1000)
    assert torch.equal(call.value, whole + 2000)
    assert call.scale == 2**-0.5 and call.by == "projections"
    assert call.settings["is_causal"] is False
    found = call.mask[0, 0].long().tolist()
    assert found == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1],
        [0, 0, 1, 1, 1],
    ]
    assert torch.equal(call.result(), torch.cat(chunks, 1) * 2)
    assert not any((*layer.projected, layer.masks, layer.outputs))


def test_a_whole_layer_has_its_own_mask_scale_and_heads():
    layer, calls = a_layer(num_heads=1, scale=0.125)
    mask = torch.zeros(1, 1, 1, 3)
    layer.outputs.append("of the layer before")
    layer.begin(nn.Identity(), ())
    layer.keep_mask(None, (), {"attention_mask": mask})
    for kept in layer.projected:
        layer.keep(kept, None, None, numbered(1, 3, 4))
    layer.keep_output(None, None, numbered(1, 3, 4))
    layer.end(nn.Identity(), (), None)
    (call,) = calls
    assert call.mask is mask and call.scale == 0.125
    assert call.query.shape == (1, 1, 3, 4)
    assert torch.equal(call.result(), numbered(1, 3, 4))
    for given in ((1, 2), (1, 2, "no mask"), (1, 2, None)):
        layer.keep_mask(None, given, {})
    layer.keep_mask(None, (1, 2, mask), {})
    assert layer.masks == [None, None, None, mask]
    # a chunk's mask of 1 and 0 is no bias: a text of one chunk would see its padding
    layer.keep_mask(None, (1, 2, torch.tensor([[[1.0, 0.0]]])), {})
    assert layer.masks[-1].dtype == torch.bool
    assert layer.masks[-1].tolist() == [[[[True, False]]]]


# ---- vectors of a block


def nested_of(*parts):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([*parts])


class JointTransformerBlock(nn.Module):
    pass


def test_the_input_of_a_block_is_its_first_tensor_of_numbers():
    ids, x, y, z = torch.arange(2), torch.zeros(1), torch.ones(1), torch.zeros(2)
    block = nn.Identity()
    assert vectors.find_input(block, (ids, x, y), {"hidden_states": z}) is x
    assert vectors.find_input(block, (ids,), {"other": y, "hidden_states": z}) is z
    assert vectors.find_input(block, (None,), {"mask": ids, "other": y}) is y
    with pytest.raises(
        MeasureError, match=r"Identity .*got \(a tensor of torch.int64, int\)"
    ):
        vectors.find_input(block, (ids,), {"n": 3})


def test_the_output_of_a_block_is_found_in_what_holds_it():
    x, y = torch.zeros(1), torch.ones(1)
    block, joint = nn.Identity(), JointTransformerBlock()
    for output in (x, (x, y), [x], ((x,), y), {"hidden_states": x, "other": y}):
        assert vectors.find_output(block, output) is x
    both = {"hidden_states": y, "last_hidden_state": (x, y)}
    assert vectors.find_output(block, both) is x
    assert vectors.find_output(joint, (y, x)) is x
    for name in ("JointTransformerBlock", "FluxTransformerBlock", "FluxSingleTransformerBlock"):  # fmt: skip
        other = type(name, (nn.Module,), {})()
        assert vectors.find_output(other, (y, x)) is x, name
    assert vectors.find_output(joint, x) is x
    assert vectors.find_output(joint, (x, y, y)) is x
    for bad in ((), None, {"x": x}, torch.arange(2), (None, x)):
        with pytest.raises(MeasureError, match="Identity to return"):
            vectors.find_output(block, bad)


def test_texts_of_joint_blocks():
    last = JointTransformerBlock()
    last.context_pre_only = True
    assert vectors.count_texts([JointTransformerBlock(), nn.Identity(), last]) == 1
    x, y = torch.zeros(1), torch.ones(1)
    assert vectors.find_text({"encoder_hidden_states": x}) is x
    assert vectors.find_text({"encoder_hidden_states": x}, (y, x)) is y
    assert vectors.find_text({}) is None and vectors.find_text({}, (None, x)) is None


def test_where_the_channels_of_a_map_are():
    """By the width of the block's norms; a convolution or norm that fits the first axis decides for it."""
    last = nn.Sequential(nn.LayerNorm(6))
    assert vectors.has_channels_last(last, torch.zeros(1, 6, 4, 6))
    assert not vectors.has_channels_last(last, torch.zeros(1, 4, 6, 5))
    both = nn.Sequential(nn.LayerNorm(6), nn.Conv2d(3, 4, 1))
    assert not vectors.has_channels_last(both, torch.zeros(1, 4, 5, 6))
    assert not vectors.has_channels_last(both, torch.zeros(1, 6, 5, 6))
    assert vectors.has_channels_last(both, torch.zeros(1, 3, 5, 6))
    assert not vectors.has_channels_last(nn.Linear(6, 6), torch.zeros(1, 4, 5, 6))
    count = vectors.count_positions
    assert count(last, torch.zeros(2, 4, 5, 6), tokens_first=False) == (2, 20)
    assert count(both, torch.zeros(2, 4, 5, 7), tokens_first=True) == (2, 35)
    assert count(last, torch.zeros(3, 4, 5), tokens_first=False) == (3, 4)
    assert count(last, torch.zeros(3, 4, 5), tokens_first=True) == (4, 3)
    assert count(last, torch.zeros(3, 5), tokens_first=True) == (3, 1)
    assert count(last, torch.zeros(0, 4, 5), tokens_first=False) == (0, 0)
    nested = nested_of(torch.zeros(2, 5), torch.zeros(3, 5))
    assert count(last, nested, tokens_first=False) == (2, 0)


def test_vectors_of_maps_rows_and_turned_sequences():
    x = numbered(2, 3, 4, 5)
    by_place = vectors.to_vectors(x, "position")
    assert (
        by_place.shape == (2, 20, 3)
        and by_place[1, 7].tolist() == x[1, :, 1, 2].tolist()
    )
    whole = vectors.to_vectors(x, "image")
    assert whole.shape == (2, 1, 60) and torch.equal(whole[1, 0], x[1].flatten())
    assert vectors.to_vectors(x[0, 0], "position").shape == (4, 1, 5)
    turned = vectors.to_vectors(x[0], "position", tokens_first=True)
    assert torch.equal(turned, x[0].transpose(0, 1))
    assert torch.equal(vectors.to_vectors(x[0], "position"), x[0])
    assert torch.equal(vectors.to_vectors(x[0], "image"), x[0])
    for bad in (torch.zeros(3), torch.zeros(1, 1, 1, 1, 1)):
        with pytest.raises(MeasureError, match="shape"):
            vectors.to_vectors(bad, "position")


def test_four_axes_are_streams_if_a_mask_or_the_model_says_so():
    x = torch.zeros(2, 4, 3, 5)
    reads = nn.Sequential()
    reads.main_input_name = "input_ids"
    sees = nn.Sequential(nn.Conv2d(1, 1, 1))
    sees.main_input_name = "input_ids"
    for mask, expected in (
        ((2, 4), True),
        ((4, 3), True),
        ((2, 3), False),
        ((3, 5), False),
    ):
        assert vectors.are_streams(sees, x, torch.ones(mask)) == expected, mask
    found = [
        vectors.are_streams(model, x, None) for model in (reads, sees, nn.Sequential())
    ]
    assert found == [True, False, False]


def test_a_view_of_the_same_memory_is_the_same_output():
    x = torch.zeros(4, 6)
    assert vectors.is_same_memory(x, x) and vectors.is_same_memory(x, x.view(4, 6))
    assert not vectors.is_same_memory(None, x)
    for other in (x.clone(), x.view(6, 4), x[:2], x[1:], x.T):
        assert not vectors.is_same_memory(x, other)
    nested = nested_of(torch.ones(2, 3), torch.ones(1, 3))
    padded = torch.nested.to_padded_tensor(nested, 0.0)
    assert vectors.is_same_memory(nested, padded)
    wider = torch.nested.to_padded_tensor(nested, 0.0, (2, 5, 3))
    assert vectors.is_same_memory(nested, wider)
    assert not vectors.is_same_memory(nested, padded + 1)
    assert not vectors.is_same_memory(padded, nested)


# ---- the tap


class Pipe(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def piped(x=None, **how):
    seen = {}
    with tap.capture(
        Pipe(),
        ("hidden",),
        blocks=("layers.*",),
        receive=lambda s, v: seen.update({s: v}),
        **how,
    ) as own:
        own.model(torch.ones(2, 4, 3) if x is None else x)
    return seen


def test_layers_are_counted_from_either_end():
    for asked, expected in (
        ((), [0, 1, 2, 3]),
        ((1,), [1]),
        ((-1, 0), [0, 3]),
        ((-4,), [0]),
    ):
        assert [site.layer for site in piped(layers=asked)] == expected
    for wrong in (4, -5):
        with pytest.raises(UsageError, match="0 to 3"):
            piped(layers=(0, wrong))


def test_of_a_layer_that_is_refused_nothing_is_kept_or_handed_on():
    own = a_tap(nn.Identity(), "attention", "hidden")
    sites = [
        Site("encoder", 1, "attention"),
        Site("encoder", 1, "attention", kind="cross"),
        Site("encoder", 2, "attention"),
        Site("encoder", 1, "hidden"),
    ]
    for number, site in enumerate(sites):
        own.emit(site, number)
    own.refuse(("encoder", 1, "self"), "first")
    own.refuse(("encoder", 1, "self"), "second")
    assert list(own.kept.values()) == [1, 2, 3]
    assert own.refused == {("encoder", 1, "self"): "first"}
    own.emit(sites[0], 9)
    own.emit(sites[3], 9)
    assert list(own.kept.values()) == [1, 2, 9]
    own.inside = True
    with pytest.raises(MeasureError, match=r"encoder\.1\.hidden"):
        own.emit(sites[3], 9)


def test_reasons_are_listed_by_stack_kind_and_words():
    refused = {
        ("encoder", 3, "self"): "a",
        ("encoder", 1, "self"): "a",
        ("encoder", 2, "self"): "b",
        ("decoder", 1, "cross"): "a",
    }
    assert tap.describe_refused(refused) == [
        "attention of layers 1, 3 of encoder: a",
        "attention of layers 2 of encoder: b",
        "cross-attention of layers 1 of decoder: a",
    ]
    everywhere = {("every stack", None, "self"): "why"}
    assert tap.describe_refused(everywhere | refused) == [
        "attention of every stack: why"
    ]


def test_which_errors_reach_the_caller():
    own = a_tap(nn.Identity())
    ours, other = MeasureError("a", "b", "c"), ValueError("x")
    assert own.must_raise(ours) and not own.must_raise(other)
    own.optional |= {"attention"}
    assert not own.must_raise(ours) and own.must_raise(torch.OutOfMemoryError("full"))

    def fail(_site, _value):
        raise other

    own._receive = fail
    assert not own.receiver_failed
    with pytest.raises(ValueError, match="x"):
        own.emit(Site("encoder", 1, "attention"), 1)
    assert own.receiver_failed and own.must_raise(other)
    assert not own.must_raise(ValueError("x"))


def test_images_of_one_sequence_are_joined_and_counted():
    own = a_tap(nn.Identity(), "hidden")
    x = numbered(3, 2, 4)
    for sequences, shape, parts in (
        (1, (1, 6, 4), 3),
        (3, (3, 2, 4), None),
        (None, (3, 2, 4), None),
    ):
        own.sequences = sequences
        own.emit_vectors(Site("vision", 1, "hidden"), x)
        assert own["vision.1.hidden"].shape == shape
        assert own.parts.get("vision") == parts
    own.sequences = 1
    own.emit_vectors(Site("vision", 2, "hidden"), x[:, :1])
    assert own.parts["vision"] == 1
    assert torch.equal(own["vision.2.hidden"], x[None, :, 0])
    own.emit_vectors(Site("vision", 2, "final"), x)
    assert "vision.final" not in own.kept


def test_pairs_of_two_towers_are_of_one_width():
    own = a_tap(nn.Identity(), "final")
    image, text = numbered(2, 3), numbered(2, 3) + 50
    for other in (None, text[:, :2], text[:1]):
        own._emit_pairs(
            None, None, SimpleNamespace(image_embeds=image, text_embeds=other)
        )
    assert own.sites == []
    own._emit_pairs(None, None, SimpleNamespace(image_embeds=image, text_embeds=text))
    assert torch.equal(own["joint.final"], torch.stack([image, text], 1))


# ---- torch's own functions


def test_equations_of_attention_are_read_by_their_letters():
    parse = entry_points._parse_einsum
    two, one = torch.zeros(2, 3, 4), torch.zeros(3, 4)
    assert parse("b q d, b k d -> b q k", [two, two]) == (("bqd", "bkd"), "bqk")
    assert parse("...qd,kd->...qk", [two, one]) == (("Zqd", "kd"), "Zqk")
    assert parse("...d,...d->...", [torch.zeros(2, 3, 5, 4)] * 2) == (
        ("XYZd", "XYZd"),
        "XYZ",
    )
    for equation in (
        "bqd->bqd",
        "bqd,bkd",
        "bqq,bkd->bqk",
        "bqd,bkd->qk",
        "a,b,c->abc",
    ):
        assert parse(equation, [two] * 2) is None, equation
    assert parse("bqd,bkd->bqk", [two]) is None
    scores = entry_points._find_scores
    assert scores("bhqd", "bhkd", "bhqk") == ("bhqd", "bhkd")
    assert scores("qdbh", "kbhd", "bhqk") == ("bhqd", "bhkd")
    assert scores("bqhd", "bkd", "bhqk") == ("bhqd", "bhkd")
    for bad in (
        ("bhkd", "bhqd", "bhqk"),
        ("bhqde", "bhkde", "bhqk"),
        ("bqd", "bkd", "bhqk"),
        ("bhqk", "bhk", "bhqk"),
        ("bhqd", "bhkdx", "bhqk"),
        ("bhqdx", "bhkd", "bhqk"),
    ):
        assert scores(*bad) is None, bad
    match = entry_points._match_values
    assert match("bhqk", "bhkd", "bhqd") == "bhkd"
    assert match("bhqk", "kbhd", "bqhd") == "bhkd"
    assert match("bhqk", "bkd", "bhqd") == "bhkd"
    for bad in (
        ("bhqk", "bhqd", "bhkd"),
        ("bhqk", "bhkd", "bhqkd"),
        ("bhqk", "bhkde", "bhqde"),
        ("bhqk", "bhkd", "bqd"),
        ("bhqk", "bhkqd", "bhqd"),
    ):
        assert match(*bad) is None, bad
    x = numbered(2, 3, 4)
    turned = entry_points._permute_to(x, "kbd", "bhkd")
    assert torch.equal(turned, x.transpose(0, 1).unsqueeze(1))


def fitted(scale, noise=0.0, dim=4):
    product = draw_tensor(1, 2, 6, 6)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1).expand(1, 2, 6, 6)
    scores = (
        scale * product
        + draw_tensor(1, 2, 6, 1, seed=3)
        + noise * draw_tensor(1, 2, 6, 6, seed=4)
    )
    scores = scores.masked_fill(hidden, -1e9)
    return entry_points._fit_scale(product, scores, hidden, dim)


def test_a_scale_is_fitted_over_visible_pairs_of_each_row():
    """Near to 1/√d or 1 it is that; whatever is added to a whole row, or hidden, has no part in it."""
    for scale, expected in (
        (0.5, 0.5),
        (0.6, 0.5),
        (0.4, 0.5),
        (1.2, 1.0),
        (0.8, 1.0),
        (1.0, 1.0),
    ):
        assert fitted(scale) == expected
    for scale in (0.7, 0.3, 1.3, 2.0, -0.5):
        assert fitted(scale) == pytest.approx(scale)
    assert fitted(0.26, dim=16) == 0.25
    product = draw_tensor(1, 1, 2, 3)
    scores = 3.0 * product
    scores[..., 1, :] = -1e9
    none = torch.zeros(1, 1, 2, 3, dtype=torch.bool)
    assert entry_points._fit_scale(product, scores, none, 4) == pytest.approx(3)


def test_heads_are_counted_and_split_by_shape():
    count, module = entry_points._count_heads, nn.Module()
    assert count(module, torch.zeros(2, 3, 4, 5)) == 3
    assert count(module, torch.zeros(6, 4, 5)) == 1
    module.heads = "many"
    module.n_head = 2
    assert count(module, torch.zeros(6, 4, 5)) == 2
    module.num_heads = 3
    assert count(module, torch.zeros(6, 4, 5)) == 3
    q, k, v, s = (
        numbered(6, 4, 2),
        numbered(6, 5, 2),
        numbered(6, 5, 3),
        numbered(6, 4, 5),
    )
    split = entry_points._split_parts((q, k, v, s), 3)
    assert [x.shape[:2] for x in split] == [(2, 3)] * 4
    assert torch.equal(split[0][1, 2], q[5])
    shared = q[:1].view(1, 1, 4, 2)
    assert entry_points._split_parts((shared, k, v, s), 3)[0].shape == (1, 1, 4, 2)
    assert entry_points._split_parts((q, k, v, s), 4) is None
    assert entry_points._split_parts((q[:3], k, v, s), 3)[0].shape == (1, 3, 4, 2)
    assert entry_points._split_parts((q.view(3, 2, 4, 2), k, v, s), 3) is None
    assert entry_points._split_parts((q[0], k, v, s), 3) is None
    maps = torch.zeros(2, 3, 4, 5)
    same = entry_points._is_same_map
    assert same(torch.zeros(6, 4, 5), maps) and not same(torch.zeros(6, 5, 4), maps)
    assert not same(torch.zeros(3, 4, 5), maps)


class Fused(nn.Module):
    def forward(self, function):
        return function()


def looked_at(function):
    module, calls = Fused(), []
    with entry_points.watch_entry_points({module}, calls.append):
        output = module(function)
    return calls, output


def test_the_arguments_of_the_fused_product_by_place_and_by_name():
    q, k, v = (
        draw_tensor(2, 3, 4, 5),
        draw_tensor(2, 3, 6, 5, seed=1),
        draw_tensor(2, 3, 6, 2, seed=2),
    )
    mask = draw_tensor(4, 6)
    product = nn.functional.scaled_dot_product_attention
    (call,), output = looked_at(
        lambda: nn.functional.scaled_dot_product_attention(
            q, k, v, mask, 0.0, False, scale=0.3
        )
    )
    assert (call.query is q, call.key is k, call.value is v) == (True, True, True)
    assert call.mask.shape == (1, 1, 4, 6) and call.scale == 0.3
    assert call.settings["is_causal"] is False and call.by == "fused product"
    assert torch.equal(call.result(), output.transpose(1, 2))
    (call,), _ = looked_at(
        lambda: nn.functional.scaled_dot_product_attention(q, q, q, None, 0.0, True)
    )
    assert call.settings["is_causal"] is True and call.mask is None
    assert call.scale == 5**-0.5
    three, _ = looked_at(
        lambda: nn.functional.scaled_dot_product_attention(
            q[0], k[0], v[0], attn_mask=mask.expand(3, 4, 6)
        )
    )
    assert three[0].query.shape == (3, 1, 4, 5) and three[0].mask.shape == (3, 1, 4, 6)
    assert nn.functional.scaled_dot_product_attention is product


@pytest.mark.parametrize("how", ["matmul", "baddbmm", "einsum", "swapped"])
def test_products_around_a_softmax_are_one_call(how):
    """The scale is that of the call, and what was added, hidden pairs among it, is its mask."""
    q, k, v = (
        draw_tensor(4, 3, 5),
        draw_tensor(4, 6, 5, seed=1),
        draw_tensor(4, 6, 2, seed=2),
    )
    hidden = torch.ones(3, 6, dtype=torch.bool).triu(4)

    def attend():
        if how == "baddbmm":
            scores = torch.baddbmm(torch.zeros(1, 1, 1).double(), q, k.mT, alpha=2.0)
        elif how == "einsum":
            scores = torch.einsum("bqd,bkd->bqk", q, k) * 2
        elif how == "swapped":
            scores = torch.einsum("bkd,bqd->bqk", k, q) * 2
        else:
            scores = q @ k.transpose(1, 2) * 2
        weights = scores.masked_fill(hidden, -1e9).softmax(2)
        if how == "einsum":
            return torch.einsum("bqk,bkd->bqd", weights, v)
        if how == "swapped":
            return torch.einsum("bkd,bqk->bqd", v, weights)
        return torch.bmm(weights, v)

    (call,), output = looked_at(attend)
    assert torch.equal(call.query, q.unsqueeze(1)) and torch.equal(
        call.key, k.unsqueeze(1)
    )
    assert torch.equal(call.value, v.unsqueeze(1)) and call.scale == pytest.approx(2)
    lowest = torch.finfo(torch.float64).min
    assert torch.equal(call.mask[:, 0] == lowest, hidden.expand(4, 3, 6))
    assert call.mask[:, 0][~hidden.expand(4, 3, 6)].abs().max() < 1e-12
    assert torch.equal(call.result(), output.unsqueeze(2))


def test_only_a_softmax_over_the_last_axis_of_a_product_is_attention():
    q, v = draw_tensor(2, 3, 3), draw_tensor(2, 3, 3, seed=1)
    for function in (
        lambda: (q @ q.mT).softmax(1) @ v,
        lambda: q.softmax(-1) @ v,
        lambda: (q[0] @ q[0].mT).softmax(-1) @ v[0],
    ):
        assert looked_at(function)[0] == []
    with entry_points.suspend():
        assert looked_at(lambda: (q @ q.mT).softmax(-1) @ v)[0] == []
    assert not entry_points.is_suspended()
    assert len(looked_at(lambda: (q @ q.mT).softmax(-1) @ v)[0]) == 1
    calls, module = [], Fused()
    with entry_points.watch_entry_points({module}, calls.append):
        worker = threading.Thread(
            target=lambda: module(lambda: (q @ q.mT).softmax(-1) @ v)
        )
        worker.start()
        worker.join()
        nn.Identity()((q @ q.mT).softmax(-1) @ v)
    assert calls == [], "of another thread, or of no watched module"


def test_lengths_of_nested_tensors_are_those_of_the_keys():
    q = nested_of(torch.ones(1, 2, 3), torch.ones(1, 2, 3))
    k = nested_of(torch.ones(1, 4, 3), torch.ones(1, 1, 3))
    seen, (query, key) = entry_points._pad_hidden([q, k])
    assert seen.long().tolist() == [[[[1, 1, 1, 1]]], [[[1, 0, 0, 0]]]]
    assert query.shape == (2, 1, 2, 3) and key[1, 0, 1:].abs().sum() == 0


# ---- processes of tensor parallelism


class Gathered(splitting.Parts):
    """Parts of which this process is the first; the others hold what `others` makes of its tensors."""

    def __init__(self, *others):
        super().__init__(tuple(range(len(others) + 1)))
        self.others = others

    def join_all(self, x, axis, **how):
        held = [x, *(other(x) for other in self.others)]
        self.held = held
        return self.join(x, axis, **how)

    def _gather(self, x):
        if x.dim() == 1 and x.dtype == torch.float64 and x.numel() == 70:
            return [splitting._summarise(each) for each in self.held]
        longest = max(each.shape[self.axis] for each in self.held)
        padded = []
        for each in self.held:
            missing = [*each.shape]
            missing[self.axis] = longest - each.shape[self.axis]
            padded.append(torch.cat([each, each.new_zeros(missing)], self.axis))
        return padded


def test_parts_that_differ_are_joined_and_copies_are_not():
    x = numbered(2, 3, 4) + 1

    def joined(axis, *others, given=x, **how):
        parts = Gathered(*others)
        parts.axis = axis % given.dim()
        return parts.join_all(given, axis, **how)

    assert torch.equal(joined(1, lambda y: y + 100), torch.cat([x, x + 100], 1))
    assert joined(1, lambda y: y.clone()) is x
    assert joined(1, lambda y: y + 5e-3) is x, "equal up to rounding"
    assert joined(1, lambda y: y + 0.1).shape == (2, 6, 4)
    shorter = joined(1, lambda y: y[:, :2] + 50, lambda y: y[:, :1] - 50)
    assert torch.equal(shorter, torch.cat([x, x[:, :2] + 50, x[:, :1] - 50], 1))
    assert joined(-1, lambda y: y * 3).shape == (2, 3, 8)
    zeros = torch.zeros(2, 3)
    assert joined(1, torch.clone, given=zeros) is zeros
    assert joined(1, torch.clone, given=zeros, zeros_are_split=True).shape == (2, 6)
    assert joined(1, lambda y: y.clone(), zeros_are_split=True) is x
    with pytest.raises(MeasureError, match="axis 1"):
        joined(1, lambda y: y[:1])


def test_tensors_are_compared_by_shape_size_and_some_numbers():
    def alike(*tensors):
        return splitting._are_alike([splitting._summarise(x) for x in tensors])

    x = draw_tensor(5, 40)
    assert alike(x, x.clone(), x + 1e-6) and not alike(x, x.view(40, 5))
    assert not alike(x, x, -x)
    moved = x.clone()
    moved[2, 7] += 100.0  # no number that is kept
    assert not alike(x, moved), "by its size"
    spoiled = x.clone()
    spoiled[0, 0] = math.nan
    assert alike(spoiled, spoiled)
    assert alike(torch.zeros(0, 3), torch.zeros(0, 3))
    swapped = x.flip(1)
    assert not alike(x, swapped)
    tiny = torch.tensor([1.0, 1e-9])
    assert alike(tiny, torch.tensor([1.0, -1e-9])), "a small number may be all rounding"
    assert not alike(tiny, torch.tensor([-1.0, 1e-9]))


class Doubled(splitting.Parts):
    """Two processes: what is joined is there twice, and the axis is noted."""

    def __init__(self):
        super().__init__((0, 1))
        self.axes = []

    def join(self, x, axis, *, zeros_are_split=False):
        self.axes.append((axis, zeros_are_split))
        return torch.cat([x, x], axis)


def test_a_call_is_joined_in_all_that_heads_have_of_their_own():
    """Queries, keys, values, sinks; masks and biases if they have an entry for each head; the output."""
    query, key, value = (
        draw_tensor(3, 2, 4, 5),
        draw_tensor(3, 1, 6, 5),
        draw_tensor(3, 1, 6, 7),
    )
    bias, sinks = draw_tensor(1, 2, 4, 6), draw_tensor(2)
    output = draw_tensor(3, 4, 2, 7)
    settings = {"position_bias": bias, "s_aux": sinks, "softcap": 2.0}
    mask = draw_tensor(3, 2, 4, 6)
    call = Call(
        nn.Linear(1, 1), query, key, value, mask, settings, result=lambda: [output, 1]
    )
    parts = Doubled()
    whole = parts.join_call(call, with_output=True)
    for name, axis in (("query", 1), ("key", 1), ("value", 1), ("mask", 1)):
        x = getattr(call, name)
        assert torch.equal(getattr(whole, name), torch.cat([x, x], axis)), name
    assert torch.equal(whole.settings["position_bias"], torch.cat([bias, bias], 1))
    assert torch.equal(whole.settings["s_aux"], torch.cat([sinks, sinks]))
    assert whole.settings["softcap"] == 2 and settings["s_aux"] is sinks
    assert torch.equal(whole.result(), torch.cat([output, output], 2))
    assert not any(split for _, split in parts.axes)
    for mask in (
        draw_tensor(3, 1, 4, 6),
        draw_tensor(2, 4),
        None,
        draw_tensor(2, 2, 6),
    ):
        found = Doubled().join_call(replace(call, mask=mask), with_output=False)
        assert found.mask is mask and found.result is call.result
    for result in (None, lambda: None, lambda: output[0], lambda: (None, output)):
        found = Doubled().join_call(replace(call, result=result), with_output=True)
        assert found.result() is None
    finished = replace(call, finish=lambda x: x)
    assert Doubled().join_call(finished, with_output=True).result() is None
    for given in (output, (output, None)):
        found = replace(call, result=lambda given=given: given)
        assert splitting._read_output(found) is output


def test_layers_that_do_not_exist_are_named():
    model = Pipe()
    own = a_tap(model, "hidden")
    own._depth = {"encoder": 3, "decoder": 2}
    own.running["encoder"].layer, own.running["decoder"].layer = 3, 2
    for layers in ((0, 3), (-4,), (2,), ()):
        own.layers = layers
        own._check_layers()
    for layers, wrong in (((4, 1), "4"), ((0, -5), "-5")):
        own.layers = layers
        with pytest.raises(UsageError, match=f"0 to 3.*got {wrong}"):
            own._check_layers()
    own.running["decoder"].layer = 4
    own.layers = (3, 4)
    own._check_layers()
    own.layers = (1, -2, 0)
    with pytest.raises(UsageError, match=r"a block more than once; got -2\. .*0 to 4"):
        own._check_layers()


def test_attention_that_nobody_read_is_named_with_its_layer():
    """By its kernel, or by what went wrong; a layer that was read before is given up."""
    own = a_tap(nn.Identity(), "attention")
    block = nn.Linear(1, 1)

    def leave(layer, looks=0, kernels=(), loose=False, trouble=""):
        here = vectors.RunningStack(layer, looks=looks, loose=loose, trouble=trouble)
        here.kernels = list(kernels)
        own._note_unseen_attention("encoder", block, here)

    leave(1, looks=1, kernels=["a"])
    leave(2)
    assert not own._missed and own._seen_places == {("encoder", 1, "self")}
    leave(3, kernels=["a", "b"])
    leave(4, looks=1, kernels=["a"], loose=True)
    leave(5, kernels=["a"], trouble="bmm: why")
    leave(6, trouble="bmm: why")
    assert dict(own._missed) == {
        "encoder (a in Linear)": [3, 4],
        "encoder (bmm: why in Linear)": [5],
    }
    assert own.refused == {}
    leave(1, trouble="bmm: why")
    assert own.refused == {("encoder", 1, "self"): "bmm: why in Linear"}


def test_a_second_call_in_a_block_is_left_out_only_if_it_may_be():
    module = OwnAttention()
    call = replace(a_call(), module=module)
    site = Site("encoder", 2, "attention")

    def refused(windows, times, *, optional=True, inside=True, off=False):
        own = a_tap(module)
        own.inside = inside
        own.optional |= {"attention"} if optional else set()
        for _ in range(times):
            found = own.heads._is_refused(site, call, windows, off)
        return found, list(own.refused.values())

    assert refused(1, 1) == (False, []) and refused(3, 1) == (False, [])
    twice = ["OwnAttention computes it several times in one block"]
    assert refused(1, 2) == (True, twice) and refused(1, 2, off=True) == (True, twice)
    assert refused(1, 2, inside=False) == (False, [])
    parts = (
        "OwnAttention computes it in parts of a sequence that are not complete windows"
    )
    assert refused(0, 1) == (True, [parts])
    assert refused(0, 1, optional=False) == refused(1, 2, optional=False) == (False, [])
    own = a_tap(module)
    own.inside = True
    own.optional |= {"attention"}
    assert not own.heads._is_refused(site, call, 1, False)
    assert not own.heads._is_refused(site, call, 1, True), "of the other way of calling"
    own.heads.begin()
    assert not own.heads._is_refused(site, call, 1, False)
