"""Statistics of attention rows: in blocks of any size, in odd forms, of half precision, and of windows."""

import math
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from random_numbers import draw_tensor
from torch import Tensor

from anisoscope.capture import (
    heads,
    rows as rows_of,
)
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.rows import attention_rows

NONE = Masking(None, False, None)


# ---- rows block by block


@pytest.mark.parametrize("size", [1, 7, 40, 400])
@pytest.mark.parametrize("form", ["span", "causal", "pairs", "bias"])
def test_blocks_of_any_size_give_everything_of_rows(monkeypatch, size, form):
    """Ranges that begin late, other numbers of queries than of keys, sinks, and a query and a key without numbers."""
    query, key, value = (
        draw_tensor(3, 4, 5, 3),
        draw_tensor(3, 2, 6, 3, seed=1),
        draw_tensor(3, 2, 6, 2),
    )
    query[2, 1, 3, 0], key[0, 1, 4, 1] = math.nan, math.inf
    real = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
    keys = torch.tensor([[0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    keys = keys.bool()[:, None, None]
    pairs = draw_tensor(3, 1, 5, 6, seed=5) > -0.7
    masking = {
        "span": Masking(keys, False, None),
        "causal": Masking(None, True, None),
        "pairs": Masking(pairs, False, None),
        "bias": Masking(keys, True, 30 * draw_tensor(1, 4, 5, 6, seed=7)),
    }[form]
    how: dict[str, Any] = {
        "scale": 0.8,
        "sinks": draw_tensor(4, seed=9),
        "real": real,
        "median": True,
        "histogram": torch.tensor([-1.0, 0.25, 1.0]),
        "value": value,
        "columns": True,
    }
    whole = attention_rows(query, key, masking, **how)
    monkeypatch.setattr(rows_of, "BLOCK", size)
    monkeypatch.setattr(rows_of, "CAUSAL_ROWS", 2)
    found = attention_rows(query, key, masking, **how)
    assert found.keys() == whole.keys()
    for name, exact in whole.items():
        sees = whole["keys"] > 0
        a, b = found[name], exact
        if a.shape == sees.shape and name not in ("keys", "outcomes", "mass", "seen"):
            a, b = a[sees], b[sees]
        torch.testing.assert_close(a, b, equal_nan=True, msg=name)
    cap = how | {"softcap": 0.9, "sinks": None}
    one = attention_rows(query, key, masking, **cap)
    monkeypatch.undo()
    other = attention_rows(query, key, masking, **cap)
    for name in ("mass", "score", "score_histogram", "row_similarity"):
        torch.testing.assert_close(one[name], other[name], equal_nan=True, msg=name)


def test_rows_of_grouped_keys_without_numbers_by_hand():
    """A key of one head that is not finite spoils the rows of the two query heads that see it, and gives nothing."""
    query, key = draw_tensor(1, 4, 3, 2), draw_tensor(1, 2, 4, 2, seed=1)
    key[0, 0, 1, 0] = math.nan
    masking = Masking(
        torch.tensor([[[[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1]]]]).bool(), False, None
    )
    real = torch.tensor([[True, True, True]])
    found = attention_rows(query, key, masking, scale=1.0, real=real, columns=True)
    spoiled = found["entropy"].isnan()
    assert spoiled[0].tolist() == [[True, False, False]] * 2 + [[False] * 3] * 2
    assert found["row_similarity"].isnan().tolist() == [[True, True, False, False]]
    assert found["seen"][0, :, :].tolist() == [[1, 0, 2, 1]] * 2 + [[2, 1, 2, 1]] * 2
    others = attention_rows(
        query, key, masking, scale=1.0, real=torch.tensor([[False, True, True]])
    )
    assert not bool(others["row_similarity"].isnan().any())
    negative = attention_rows(60 * query, 60 * key, masking, scale=-1.0)
    assert bool(negative["entropy"][~spoiled].isfinite().all())


def test_kernels_of_rows_are_checked_for_each_form_of_a_call(monkeypatch):
    """Anything that another compiled kernel serves has a name of its own; what rows alone give never goes to one."""
    forms = []

    def note(form, _by_kernel, by_blocks, **named):
        forms.append(form)
        assert named == {"what": "attention rows", "counts": "keys"}
        return by_blocks()

    monkeypatch.setattr(rows_of, "compute_checked", note)
    monkeypatch.setattr(rows_of, "has_kernels", lambda *_: True)
    query, key = draw_tensor(1, 4, 3, 2), draw_tensor(1, 4, 3, 2)
    bias, keys = draw_tensor(1, 1, 3, 3), torch.ones(1, 1, 3, 3, dtype=torch.bool)

    def call(query=query, key=key, masking=NONE, **how):
        attention_rows(query, key, masking, scale=1.0, **how)

    unlike = [
        {},
        {"key": key[:, :2]},
        {"query": query.float(), "key": key.float()},
        {"query": draw_tensor(1, 4, 3, 6), "key": draw_tensor(1, 4, 3, 6)},
        {"masking": Masking(None, True, None)},
        {"masking": Masking(None, False, bias)},
        {"masking": Masking(keys, False, None)},
        {"softcap": 2.0},
        {"columns": True},
        {"query": query.mT.contiguous().mT},
        {"key": key.mT.contiguous().mT},
    ]
    for how in unlike:
        call(**how)
    assert len(set(forms)) == len(unlike)
    for how in ({"median": True}, {"histogram": torch.zeros(1)}, {"value": key}):
        call(**how)
    assert len(forms) == len(unlike)


# ---- rows of odd forms by hand


def plain_rows(call: dict[str, Any]) -> dict[str, Tensor]:
    """Every statistic of each row in float64, one query at a time."""
    query, key = call["query"].double(), call["key"].double()
    masking, real = call["masking"], call["real"]
    sequences, heads_of, queries, _ = query.shape
    keys = key.shape[2]
    shared = heads_of // key.shape[1]
    names = ("entropy", "row_max", "row_min", "first_mass", "score", "largest")
    found = {
        name: torch.full((sequences, heads_of, queries), math.nan).double()
        for name in (*names, "smallest")
    }
    weights = torch.zeros(sequences, heads_of, queries, keys).double()
    seen = torch.zeros(sequences, heads_of, queries, keys, dtype=torch.bool)
    for b in range(sequences):
        for h in range(heads_of):
            of_any = torch.zeros(keys, dtype=torch.bool)
            for q in range(queries):
                visible = torch.ones(keys, dtype=torch.bool)
                if masking.keys is not None:
                    whole = masking.keys[..., :keys].expand(sequences, -1, -1, -1)
                    whole = whole.expand(-1, heads_of, queries, -1)
                    visible = visible & whole[b, h, q]
                    of_any |= (
                        masking.keys[..., :keys]
                        .expand(sequences, -1, -1, -1)[b]
                        .any(0)
                        .any(0)
                    )
                if masking.causal:
                    visible = visible & (torch.arange(keys) <= q)
                seen[b, h, q] = visible
            first = int(of_any.to(torch.uint8).argmax()) if bool(of_any.any()) else 0
            for q in range(queries):
                k = key[b, h // shared]
                visible = seen[b, h, q]
                if not bool(visible.any()):
                    continue
                if not bool(k[visible].isfinite().all()):
                    continue
                if not bool(query[b, h, q].isfinite().all()):
                    continue
                score = (k.nan_to_num(0, 0, 0) @ query[b, h, q]) * call["scale"]
                logit = score
                if call["softcap"] is not None:
                    logit = call["softcap"] * torch.tanh(score / call["softcap"])
                if masking.bias is not None:
                    bias = masking.bias.expand(sequences, heads_of, queries, -1)
                    logit = logit + bias[b, h, q].double()
                chosen = logit.masked_fill(~visible, -math.inf)
                w = chosen.softmax(0)
                weights[b, h, q] = w
                found["entropy"][b, h, q] = -torch.xlogy(w, w).sum()
                found["row_max"][b, h, q] = w.max()
                found["row_min"][b, h, q] = w[visible].min()
                found["first_mass"][b, h, q] = w[first]
                found["score"][b, h, q] = score[visible].sum()
                found["largest"][b, h, q] = logit[visible].max()
                found["smallest"][b, h, q] = logit[visible].min()
    sound = ~found["entropy"].isnan()
    giving = real[:, None] & (sound | ~seen.any(-1))
    found["mass"] = (weights * giving.unsqueeze(-1)).sum(2)
    found["seen"] = (seen & giving.unsqueeze(-1)).sum(2).double()
    found["keys"] = seen.sum(-1).double()
    return found


def odd_rows() -> dict[str, dict[str, Any]]:
    query, key = (
        draw_tensor(3, 4, 5, 3).float(),
        draw_tensor(3, 2, 7, 3, seed=1).float(),
    )
    of_keys = torch.tensor(
        [[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 1]]
    ).bool()[:, None, None]
    longer = torch.cat([of_keys, torch.zeros(3, 1, 1, 2, dtype=torch.bool)], -1)
    late = torch.tensor([0, 2, 1])
    ranges = (torch.arange(7) >= late[:, None])[:, None, None]
    pairs = (draw_tensor(3, 1, 5, 7, seed=5) > -0.7) & of_keys
    by_head = (draw_tensor(1, 4, 1, 7, seed=6) > -0.4).expand(3, -1, -1, -1)
    nan_key, inf_query = key.clone(), query.clone()
    nan_key[1, 1, 3, 0], nan_key[0, 0, 4, 2] = math.nan, math.inf
    inf_query[2, 1, 1, 0] = -math.inf
    bias = 150 * draw_tensor(1, 4, 5, 7, seed=7).float()
    forms: dict[str, dict[str, Any]] = {
        "all": {},
        "gaps": {"masking": Masking(of_keys, False, None)},
        "a longer mask": {"masking": Masking(longer, False, None)},
        "ranges that begin late": {"masking": Masking(ranges, False, None)},
        "pairs": {"masking": Masking(pairs, False, None)},
        "by head": {"masking": Masking(by_head, False, None)},
        "causal": {"masking": Masking(None, True, None)},
        "causal ranges": {"masking": Masking(ranges, True, None)},
        "a cap": {"softcap": 0.7},
        "a cap of large scores": {"softcap": 60.0, "scale": 40.0},
        "a large bias": {"masking": Masking(ranges, False, bias)},
        "a bias of each row": {"masking": Masking(None, True, bias / 100)},
        "large negative scale": {"scale": -70.0},
        "large and causal": {"scale": 70.0, "masking": Masking(None, True, None)},
        "lost keys": {"key": nan_key, "query": inf_query},
        "lost keys, causal": {"key": nan_key, "masking": Masking(None, True, None)},
        "lost keys, gaps": {"key": nan_key, "masking": Masking(of_keys, False, None)},
        "lost keys, pairs": {"key": nan_key, "masking": Masking(pairs, False, None)},
        "few keys": {"key": key[:, :, :3], "masking": Masking(None, True, None)},
    }
    plain: dict[str, Any] = {"query": query, "key": key, "masking": NONE}
    plain |= {"scale": 0.8, "softcap": None}
    return {name: plain | form for name, form in forms.items()}


ODD_ROWS = odd_rows()


@pytest.mark.parametrize("blocks", [None, 60])
@pytest.mark.parametrize("form", ODD_ROWS)
def test_rows_of_odd_forms_are_those_of_one_query_at_a_time(monkeypatch, form, blocks):
    """In float32, whose powers overflow at scores of 88; whole, and in blocks of few sequences."""
    if blocks is not None:
        monkeypatch.setattr(rows_of, "BLOCK", blocks)
        monkeypatch.setattr(rows_of, "CAUSAL_ROWS", 2)
    real = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 1, 1, 1], [1, 1, 0, 1, 1]]).bool()
    call = ODD_ROWS[form] | {"real": real}
    found = attention_rows(**call, columns=True)
    for name, exact in plain_rows(call).items():
        value = found[name].double()
        if name not in ("mass", "seen", "keys"):
            sees = found["keys"] > 0
            value, exact = value[sees], exact[sees]
        largest = float(exact.nan_to_num(0).abs().max())
        torch.testing.assert_close(
            value,
            exact,
            rtol=2e-4,
            atol=2e-5 * max(1.0, largest),
            equal_nan=True,
            msg=f"{form}: {name}",
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_half_precision_are_those_of_the_same_numbers_in_float32(dtype):
    query, key = (
        draw_tensor(1, 2, 4, 8).to(dtype),
        draw_tensor(1, 2, 5, 8, seed=1).to(dtype),
    )
    found = attention_rows(query, key, NONE, scale=0.4, value=key, columns=True)
    exact = attention_rows(
        query.float(), key.float(), NONE, scale=0.4, value=key.float(), columns=True
    )
    for name, value in exact.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, msg=name)


def test_statistics_of_windows_are_joined_averaged_or_added():
    """A window with fewer than two real queries has no similarity; bins of a histogram are no queries."""
    nan = math.nan
    statistics = {
        "entropy": torch.arange(8.0).view(4, 1, 2),
        "row_similarity": torch.tensor([[0.5], [nan], [0.25], [0.75]]),
        "score_histogram": torch.arange(8.0).view(4, 1, 2),
        "pairs": torch.tensor([[1.0], [2.0], [4.0], [8.0]]),
    }
    found = heads._merge_windows(statistics, 2)
    assert found["entropy"].tolist() == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    assert found["row_similarity"].tolist() == [[0.5], [0.5]]
    assert found["score_histogram"].tolist() == [[[2, 4]], [[10, 12]]]
    assert found["pairs"].tolist() == [[3], [12]]


# ---- which pairs are seen


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_a_row_of_the_smallest_numbers_sees_nothing(dtype):
    """As it does of −∞; rows of other levels are read each by itself."""
    lowest = torch.finfo(dtype).min
    mask = torch.zeros(1, 1, 4, 2, dtype=dtype)
    mask[0, 0, 1] = lowest
    mask[0, 0, 2] = -math.inf
    mask[0, 0, 3, 1] = lowest
    read = Masking.read(None, torch.zeros(1, 1, 4, 2), mask, {})
    assert read.keys is not None and read.bias is None
    assert read.keys[0, 0].tolist() == [
        [True, True],
        [False, False],
        [False, False],
        [True, False],
    ]
    levels = torch.tensor([[[[-9000.0, -9008.0], [0.0, 0.0]]]], dtype=dtype)
    read = Masking.read(None, torch.zeros(1, 1, 2, 2), levels, {})
    assert read.keys is None and torch.equal(read.bias, levels)


def test_masks_of_integers_see_all_but_zero_and_sdpa_is_causal_by_itself():
    query = torch.zeros(1, 1, 3, 2)
    read = Masking.read(None, query, torch.tensor([[[[-1, 0, 2]]]]), {})
    assert read.keys.tolist() == [[[[True, False, True]]]]
    silent = SimpleNamespace()
    for backend, causal in (("sdpa", True), ("other", False), ("eager", False)):
        assert Masking.read(silent, query, None, {}, backend=backend).causal is causal


def test_a_mask_of_three_axes_is_one_of_pairs_and_no_padding():
    """One row of keys for each query, the same for all heads, whatever the module would do without a mask."""
    pairs = torch.tensor([[[True, False, True], [False, True, True]]])
    causal = SimpleNamespace(is_causal=True)
    for mask in (pairs, pairs.long() * 2):
        read = Masking.read(causal, torch.zeros(1, 1, 2, 2), mask, {}, keys=3)
        assert read.keys is not None and torch.equal(read.keys, pairs)
        assert not read.causal and read.bias is None
    added = torch.tensor([[[0.5, -1e4, 0.25], [-1e4, 0.0, 0.0]]])
    read = Masking.read(causal, torch.zeros(1, 1, 2, 2), added, {}, keys=3)
    assert read.keys is not None and torch.equal(read.keys, pairs)
    assert read.bias is not None
    assert read.bias.tolist() == [[[0.5, 0.0, 0.25], [0.0, 0.0, 0.0]]]


def test_a_bias_hides_pairs_only_if_it_reaches_far_enough_below():
    """By its spread and twice the largest score: 60 + 2 · 30 is beyond 103.2, 60 + 2 · 20 is not."""
    bias = torch.tensor([[[[0.0, -60.0]]]])
    masking = Masking(None, False, bias)

    def may_vanish(length, dtype=torch.float32):
        x = torch.full((1, 1, 1, 1), length, dtype=dtype)
        call = Call(None, x, x, x, None, {"scaling": 1.0}, known=masking)
        return call._may_vanish(masking)

    assert may_vanish(30**0.5) and not may_vanish(20**0.5)
    assert not may_vanish(30**0.5, torch.float64)
    assert may_vanish(350**0.5, torch.float64)
    assert may_vanish(30**0.5, torch.float16)
    assert may_vanish(math.nan), "what is not known may hide anything"
    x = torch.ones(1, 1, 1, 1)
    assert not Call(None, x, x, x, None, {})._may_vanish(NONE)


def test_pairs_of_no_weight_are_hidden_and_empty_rows_stay_empty(monkeypatch):
    """In parts of one query each, with a bias and a mask of each query."""
    keys = torch.tensor([[[[1, 1, 0], [0, 0, 0], [1, 1, 1]]]]).bool()
    bias = torch.tensor([[[[0.0, -200, 0], [0, 0, 0], [-200, 0.0, -1]]]])
    query = torch.zeros(2, 2, 3, 2)
    call = Call(None, query, query, query, None, {}, known=Masking(keys, False, bias))
    for most in (1 << 24, 1):
        monkeypatch.setattr(sys.modules[Call.__module__], "MOST_SCORES", most)
        found = replace(call).masking
        assert found.bias is bias and not found.causal
        assert found.keys.shape == (2, 2, 3, 3)
        assert found.keys[1, 1].long().tolist() == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]


def test_packed_sequences_end_where_their_lengths_say():
    """Two rows of a batch, five tokens each: sequences of 3, 4 (across both rows) and 3."""
    module = SimpleNamespace(is_causal=False)
    query = torch.zeros(2, 1, 5, 2)
    settings = {"cu_seq_lens_k": torch.tensor([0, 3, 7, 10], dtype=torch.int32)}
    read = Masking.read(module, query, None, settings, backend="flash")
    first, second = read.keys[:, 0].long().tolist()
    assert first == [[1, 1, 1, 0, 0]] * 3 + [[0, 0, 0, 1, 1]] * 2
    assert second == [[1, 1, 0, 0, 0]] * 2 + [[0, 0, 1, 1, 1]] * 3
    last = Masking.read(
        module, query[:, :, :2], None, settings, keys=5, backend="flash"
    )
    assert last.keys[0, 0].long().tolist() == [[0, 0, 0, 1, 1]] * 2
