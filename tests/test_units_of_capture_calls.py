"""What happens to one attention call on its way from a backend, or from torch, to a receiver, and its proof."""

import hashlib
import math
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from random_numbers import draw_tensor
from torch import nn

from anisoscope.axes import Site
from anisoscope.capture import (
    backends,
    counting,
    entry_points,
    fallback,
    heads,
    projections,
    proof as proofs,
    splitting,
    tap,
)
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.errors import MeasureError

NONE = Masking(None, False, None)


# ---- attention functions of backends


class Asked(nn.Module):
    """Calls an attention function with all kinds of arguments."""

    function: Callable[..., Any]

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.function(self, *given, **named)


@contextmanager
def watched(
    module: nn.Module, *entries: tuple[Callable[[Call], Any], Callable[[], Any]]
) -> Iterator[None]:
    backends._LOOKS[module] = entries
    try:
        yield
    finally:
        del backends._LOOKS[module]
        backends._WATCHED.clear()
        backends._FORMS.clear()


def test_a_watched_backend_shows_its_call_and_runs_once_within_every_context():
    """Arguments by place and by name reach it; nobody looks at calls inside of it, or at those of other modules."""
    ran, entered, calls, suspended = [], [], [], []
    x = [draw_tensor(1, 1, 2, 2, seed=n) for n in range(4)]

    def own(module, query, key, value, mask, *rest, **named):
        ran.append((module, query, key, value, mask, rest, named))
        suspended.append(entry_points.is_suspended())
        if len(ran) == 1:
            attention(module, *x)
        return "output", "weights"

    def within(name):
        @contextmanager
        def open_it():
            entered.append(name)
            yield
            entered.append(f"end of {name}")

        return open_it

    attention = backends.wrap_backend("sdpa", own)
    assert backends.wrap_backend("sdpa", own) is attention
    assert backends.wrap_backend("eager", own) is not attention
    assert backends.wrap_backend("other", attention) is attention
    assert backends.wrap_backend("none", None) is None
    module, other = Asked(), Asked()
    module.function = other.function = attention

    def look(call):
        calls.append(call)
        assert entry_points.is_suspended()
        assert call.result() is call.result()

    with watched(module, (look, within("a")), (look, within("b"))):
        attention = backends.wrap_backend("sdpa", own)
        module.function = other.function = attention
        assert module(*x, 7, scaling=0.3) == ("output", "weights")
        assert len(calls) == 2 and len(ran) == 2, "one of them inside of the other"
        assert entered == ["a", "b", "end of b", "end of a"]
        other(*x)
        assert len(calls) == 2
        with entry_points.suspend():
            module(*x)
        assert len(calls) == 2 and suspended == [True, True, False, True]
    call = calls[0]
    assert (call.module, call.backend, call.by) == (module, "sdpa", "interface")
    assert call.settings == {"scaling": 0.3} and call.mask is x[3]
    assert (call.query is x[0], call.key is x[1], call.value is x[2]) == (True,) * 3
    given = ran[0]
    assert given[0] is module and given[4] is x[3]
    assert given[5:] == ((7,), {"scaling": 0.3})
    assert not backends._WATCHED and not backends._FORMS


def test_the_last_output_that_is_given_replaces_the_model_s():
    """All captures see the call, whatever one of them gives; the backend does not run then."""
    seen = []
    first, last = torch.zeros(1), torch.ones(1)

    def look(name, gives):
        def show(_call):
            seen.append(name)
            return gives

        return show, nullcontext

    def own(*_given):
        raise AssertionError("the backend ran")

    module = Asked()
    entries = look("a", first), look("b", last), look("c", None)
    with watched(module, *entries):
        module.function = backends.wrap_backend("eager", own)
        output, weights = module(*[torch.ones(1, 1, 1, 1)] * 3)
    assert output is last and weights is None and seen == ["a", "b", "c"]


def test_captures_are_entered_for_the_modules_of_their_model_alone():
    """Inner ones end without those around them."""
    outer, inner = nn.Sequential(nn.Identity()), []
    part = outer[0]
    looks = [lambda _call, n=n: inner.append(n) for n in range(2)]
    with backends.intercept_attention(outer, looks[0]):
        with backends.intercept_attention(part, looks[1]):
            assert [look for look, _ in backends._LOOKS[part]] == looks
            assert [look for look, _ in backends._LOOKS[outer]] == looks[:1]
        assert [look for look, _ in backends._LOOKS[part]] == looks[:1]
        assert backends._Interface.captures == 1
    assert not backends._LOOKS[part] and not backends._LOOKS[outer]
    assert backends._Interface.captures == 0


class Inherited(dict[str, Any]):
    """A table of attention functions as older releases had it: what it looks up with is inherited."""


class Given(Inherited):
    def __getitem__(self, name):
        return super().__getitem__(name)

    def get_interface(self, name, default):
        return self.get(name, default)


@pytest.mark.parametrize("table", [Inherited, Given])
def test_a_table_of_attention_functions_is_patched_while_any_capture_is_open(table):
    before = dict(vars(table))

    def own():
        """Stand in for a function."""

    def default():
        """Stand in for another."""

    interface = backends._Interface
    interface.open(table)
    try:
        interface.open(table)
        found = table(sdpa=own)["sdpa"]
        assert found is not own and found.__wrapped__ is own
        if table is Given:
            for name, key in (("sdpa", "sdpa"), (None, "eager"), ("eager", "eager")):
                backends._WATCHED.clear()
                Given(sdpa=own, eager=default).get_interface(name, default)
                assert [k for k, _ in backends._WATCHED] == [key]
            found = table(sdpa=own)["sdpa"]
        interface.close()
        assert table(sdpa=own)["sdpa"] is found
    finally:
        interface.close()
    assert dict(vars(table)) == before
    assert table(sdpa=own)["sdpa"] is own
    assert interface.captures == 0 and interface.interface is None
    assert not backends._WATCHED and not backends._FORMS
    interface.open(None)
    assert interface.interface is None
    interface.close()


def test_eager_functions_of_a_model_s_file_are_watched_and_put_back(monkeypatch):
    """Of any name that ends as theirs does, and in the files of base classes too."""
    files = [ModuleType(f"modeling_{name}") for name in ("base", "own")]

    class Base(nn.Module):
        pass

    class Own(Base):
        pass

    def eager(_module, query, _key, _value, _mask):
        return query, None

    for kind, file in zip((Base, Own), files, strict=True):
        kind.__module__ = file.__name__
        file.eager_attention_forward = file.old_eager_attention_forward = eager
        file.eager_attention_forward_of_another = file.eager_attention = eager
        monkeypatch.setitem(sys.modules, file.__name__, file)
    module, calls, x = Own(), [], draw_tensor(1, 1, 2, 2)
    before = [dict(vars(file)) for file in files]
    with backends.intercept_attention(module, calls.append):
        for file in files:
            changed = {k for k, v in vars(file).items() if v is not eager}
            plain = {k for k in vars(file) if k.startswith("__")}
            assert changed - plain == {
                "eager_attention_forward",
                "old_eager_attention_forward",
            }
            assert file.old_eager_attention_forward(module, x, x, x, None)[0] is x
    assert [call.backend for call in calls] == ["eager", "eager"]
    assert [dict(vars(file)) for file in files] == before


def test_sources_of_a_model_are_those_of_its_classes_and_their_bases():
    class Own(nn.Linear):
        pass

    Own.__module__ = Asked.__module__
    names = {file.__name__ for file in backends._find_sources(nn.Sequential(Own(1, 1)))}
    assert {Own.__module__, "torch.nn.modules.linear"} <= names
    assert {"torch.nn.modules.module", "torch.nn.modules.container"} <= names


# ---- torch's own functions


def test_what_cannot_be_read_is_reported_by_its_name_and_the_next_call_is_read():
    module, calls, failed = Asked(), [], []
    module.function = lambda _module, function: function()
    q = draw_tensor(2, 3, 4)

    def look(call):
        if len(failed) < 1:
            raise ValueError("first")
        calls.append(call)

    def attend():
        return (q @ q.mT).softmax(-1) @ q

    def note(*given):
        failed.append(given)

    with entry_points.watch_entry_points({module}, look, note):
        expected = module(attend)
        assert torch.equal(module(attend), expected)
    ((found, name, error),) = failed
    assert (found, name, str(error)) == (module, "matmul", "first")
    assert len(calls) == 1
    with (
        entry_points.watch_entry_points({module}, lambda _: 1 / 0),
        pytest.raises(ZeroDivisionError),
    ):
        module(attend)


class OwnSoftmax(nn.Module):
    def forward(self, x):
        return x.softmax(-1)


class Inner(nn.Module):
    """A part that nobody watches computes the attention of its parent."""

    def forward(self, q):
        return (q @ q.mT).softmax(-1) @ q


class Outer(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, q):
        if isinstance(self.part, Inner):
            return self.part(q)
        return self.part(q @ q.mT) @ q


def test_a_call_is_that_of_the_innermost_module_unless_it_is_a_softmax():
    q = draw_tensor(2, 3, 4)
    for part, count in ((OwnSoftmax(), 1), (nn.Softmax(-1), 1), (Inner(), 0)):
        outer, calls = Outer(part), []
        with entry_points.watch_entry_points({outer}, calls.append):
            outer(q)
        assert [call.module for call in calls] == [outer] * count, part
        with entry_points.watch_entry_points({outer, part}, calls.append):
            outer(q)
        innermost = part if isinstance(part, Inner) else outer
        assert calls[count].module is innermost


def test_functions_of_torch_are_put_back_as_they_were_inherited_or_own():
    functional = nn.functional
    names = [
        (functional, "scaled_dot_product_attention"),
        (torch, "_native_multi_head_attention"),
        (torch, "_transformer_encoder_layer_fwd"),
        *((torch, name) for name in ("matmul", "bmm", "baddbmm", "einsum", "softmax")),
        *((torch.Tensor, name) for name in ("matmul", "__matmul__", "bmm", "baddbmm")),
        *((torch.Tensor, "softmax"), (functional, "softmax")),
    ]
    before = [(n in vars(o), getattr(o, n)) for o, n in names]
    with entry_points.watch_entry_points(set(), lambda _: None):
        assert [n in vars(o) for o, n in names] == [True] * len(names)
        for (owner, name), (_, own) in zip(names, before, strict=True):
            assert getattr(owner, name) is not own, name
    assert [(n in vars(o), getattr(o, n)) for o, n in names] == before
    with entry_points.suspend():
        with entry_points.suspend():
            pass
        assert entry_points.is_suspended()
    assert not entry_points.is_suspended()


def a_watch(module):
    calls: list[Call] = []

    def raise_it(_module, _name, error):
        raise error

    watch = entry_points._Watch({module}, calls.append, raise_it, threading.get_ident())
    return watch, calls


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_fused_layer_is_read_with_its_own_norms_and_activation(
    activation, norm_first
):
    """Both norms have weights and biases of their own; keys of the second sequence are hidden."""
    layer = nn.TransformerEncoderLayer(
        6,
        2,
        5,
        0.0,
        activation,
        batch_first=True,
        norm_first=norm_first,
        layer_norm_eps=0.1,
        dtype=torch.float64,
    )
    for number, weight in enumerate(layer.parameters()):
        weight.data = draw_tensor(*weight.shape, seed=number)
    x, own = draw_tensor(2, 3, 6, seed=50), layer.self_attn
    hidden = torch.tensor([[False, False, False], [False, False, True]])
    layer.train()
    expected = layer(x, src_key_padding_mask=hidden)
    watch, calls = a_watch(layer)
    watch.transformer_encoder_layer_fwd(
        layer,
        expected,
        x,
        6,
        2,
        own.in_proj_weight,
        own.in_proj_bias,
        own.out_proj.weight,
        own.out_proj.bias,
        activation == "gelu",
        norm_first,
        0.1,
        layer.norm1.weight,
        layer.norm1.bias,
        layer.norm2.weight,
        layer.norm2.bias,
        layer.linear1.weight,
        layer.linear1.bias,
        layer.linear2.weight,
        layer.linear2.bias,
        hidden,
        1,
    )
    (call,) = calls
    assert call.by == "fast path" and call.settings["is_causal"] is False
    assert call.query.shape == (2, 2, 3, 3) and call.scale == 3**-0.5
    assert torch.equal(call.mask, ~hidden[:, None, None])
    attended = (call.weights() @ call.value).transpose(1, 2)
    torch.testing.assert_close(call.finish(attended), expected)
    assert call.result() is expected


@pytest.mark.parametrize("kind", [None, 0, 1, 2, "added"])
def test_fused_self_attention_is_read_with_its_mask(kind):
    """A boolean mask says what is hidden, by pairs (0), by keys (1) or by both (2); other numbers are added."""
    own = nn.MultiheadAttention(6, 2, batch_first=True, dtype=torch.float64)
    for number, weight in enumerate(own.parameters()):
        weight.data = draw_tensor(*weight.shape, seed=number)
    x = draw_tensor(2, 3, 6, seed=50)
    pairs = torch.ones(3, 3, dtype=torch.bool).triu(1)
    keys = torch.tensor([[False, False, True], [False, True, False]])
    mask, seen, of_kind, named = (
        None,
        torch.ones(2, 2, 3, 3, dtype=torch.bool),
        None,
        {},
    )
    if kind in (0, "added"):
        mask, of_kind, named = pairs, 0, {"attn_mask": pairs}
        seen = ~pairs.expand(2, 2, 3, 3)
        if kind == "added":
            mask = torch.zeros(3, 3).double().masked_fill(pairs, -math.inf)
    elif kind == 1:
        mask, of_kind, named = keys, 1, {"key_padding_mask": keys}
        seen = ~keys[:, None, None].expand(2, 2, 3, 3)
    elif kind == 2:
        mask, of_kind = (pairs | keys[:, None, None]).expand(2, 2, 3, 3), 2
        named = {"attn_mask": pairs, "key_padding_mask": keys}
        seen = ~mask
    own.train()
    expected, _ = own(x, x, x, need_weights=False, **named)
    watch, calls = a_watch(own)
    given = [own.in_proj_weight, own.in_proj_bias, own.out_proj.weight]
    given += [own.out_proj.bias, mask, False, True]
    if kind is not None:
        given.append(of_kind)
    watch.native_multi_head_attention(own, (expected, None), x, x, x, 6, 2, *given)
    (call,) = calls
    assert (call.mask is None) == (kind is None)
    attended = (call.weights() @ call.value).transpose(1, 2)
    torch.testing.assert_close(call.finish(attended), expected)
    read = heads.attention_rows(call.query, call.key, call.masking, scale=call.scale)[
        "keys"
    ]
    assert torch.equal(read.long(), seen.sum(-1))
    assert call.result() is expected


def test_factors_of_products_are_found_by_place_and_by_name():
    """A batched product names its factor of the product; one of two axes, or of unequal axes, is no score."""
    watch, calls = a_watch(module := nn.Identity())
    watch.pending = entry_points._Pending(module)
    q, k = draw_tensor(2, 3, 4), draw_tensor(2, 5, 4, seed=1)
    output = q @ k.mT
    watch.matmul(module, output, input=q, other=k.mT)
    watch.bmm(module, output, q, mat2=k.mT)
    watch.baddbmm(module, output, output, q, batch2=k.mT, beta=3.0, alpha=0.5)
    watch.baddbmm(module, output, input=output, batch1=q, batch2=k.mT)
    scales = [product.scale for product in watch.pending.products]
    assert scales == [None, None, 0.5, 1]
    for product in watch.pending.products:
        assert product.query is q and torch.equal(product.key, k)
    watch.matmul(module, q[0] @ k[0].mT, q[0], k[0].mT)
    watch.matmul(module, q @ k[0].mT, q, k[0].mT)
    watch.matmul(module, q @ q[0, 0], q, q[0, 0])
    assert len(watch.pending.products) == 4
    watch.einsum(module, output, "bqd,bkd->bqk", [q, k])
    watch.einsum(module, output, [q, [0, 1, 2]], [k, [0, 3, 2]])
    assert len(watch.pending.products) == 5
    twice = output.clone()
    watch.softmax(module, None, twice, dim=2)
    assert watch.pending.scores is twice
    assert watch.pending.source is watch.pending.products[0]
    watch.softmax(module, None, output, 1)
    watch.softmax(module, None, output)
    watch.softmax(module, None, q, -1)
    assert watch.pending.scores is twice and not calls


def test_weights_times_values_by_einsum_keep_the_order_of_their_axes():
    """Values and output with heads behind tokens; of weights of another shape nothing is read."""
    watch, calls = a_watch(module := nn.Identity())
    q, k, v = (
        draw_tensor(2, 3, 4, 5, seed=n) for n in range(3)
    )  # [batch, token, head, dim]
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)

    def begin():
        watch.pending = entry_points._Pending(module)
        watch.einsum(module, scores, "bqhd,bkhd->bhqk", q, k)
        watch.softmax(module, None, scores, -1)

    begin()
    weights = scores.softmax(-1)
    output = torch.einsum("bhqk,bkhd->bqhd", weights, v)
    watch.einsum(module, output, "bhqk,bkhd->bqhd", weights, v)
    (call,) = calls
    assert torch.equal(call.query, q.transpose(1, 2))
    assert torch.equal(call.key, k.transpose(1, 2))
    assert torch.equal(call.value, v.transpose(1, 2))
    assert torch.equal(call.result(), output) and call.scale == 1
    assert watch.pending.scores is None and watch.pending.source is None
    begin()
    part = weights[:, :2]
    watch.einsum(
        module,
        torch.einsum("bhqk,bkhd->bqhd", part, v[:, :, :2]),
        "bhqk,bkhd->bqhd",
        part,
        v[:, :, :2],
    )
    assert len(calls) == 1


def test_a_call_of_three_axes_has_one_head_and_its_mask_a_row_for_each():
    module, calls = nn.Identity(), []
    watch = entry_points._Watch({module}, calls.append, None, 0)
    x, settings = draw_tensor(4, 3, 5), {"scaling": 0.5, "is_causal": False}
    mask, output = draw_tensor(4, 3, 3, seed=1), draw_tensor(4, 3, 5, seed=2)

    def pass_on(q, mask, output, finish=None, by="products"):
        calls.clear()
        watch._pass_on(module, (q, q, q), mask, settings, by, output, finish)
        return calls

    (call,) = pass_on(x, mask, output)
    assert call.query.shape == (4, 1, 3, 5) and call.value.shape == (4, 1, 3, 5)
    assert torch.equal(call.mask, mask.unsqueeze(1))
    assert torch.equal(call.result(), output.unsqueeze(2))
    assert call.settings == settings and call.by == "products"
    (call,) = pass_on(x.unsqueeze(1), mask[0], None, by="other")
    assert call.mask.shape == (1, 1, 3, 3) and call.result() is None
    assert call.by == "other"
    (call,) = pass_on(x.unsqueeze(1), mask, output, finish=torch.neg)
    assert call.mask.shape == (1, 4, 3, 3)
    assert call.result() is output and call.finish is torch.neg
    assert pass_on(x[0], None, None) == []
    assert pass_on(x[None, None], None, None) == []


def completed(module, source, scores, value, output):
    watch, calls = a_watch(module)
    watch.pending = entry_points._Pending(module, scores=scores, source=source)
    watch._complete(module, value, output)
    assert watch.pending.scores is None and watch.pending.module is None
    return calls


def test_what_was_added_to_scores_is_the_mask_of_their_call():
    """Queries shared by all, a bias, hidden pairs at −10,000 below the others; half precision becomes float32."""
    module = nn.Identity()
    module.num_attention_heads = 2
    q, k, v = (
        draw_tensor(1, 3, 4),
        draw_tensor(4, 5, 4, seed=1),
        draw_tensor(4, 5, 4, seed=2),
    )
    bias = draw_tensor(4, 3, 5, seed=3) / 100
    bias[:, 1, 2] = -10_000
    q = q.expand(4, 3, 4)
    scores = q @ k.mT * 0.5 + bias
    output = draw_tensor(4, 3, 4, seed=4)
    product = entry_points._Product(q @ k.mT, q, k)
    (call,) = completed(module, product, scores, v, output)
    assert call.query.shape == (2, 2, 3, 4) and call.scale == 0.5
    lowest = torch.finfo(torch.float64).min
    expected = bias.clone().view(2, 2, 3, 5)
    expected[:, :, 1, 2] = lowest
    torch.testing.assert_close(call.mask, expected, rtol=1e-9, atol=1e-9)
    assert torch.equal(call.result(), output.view(2, 2, 3, 4).transpose(1, 2))
    known = replace_scale(product, 3.0)
    (call,) = completed(module, known, scores, v, output[0, 0])
    assert call.scale == 3 and call.result() is None
    half = entry_points._Product(product.output, q.half(), k.half())
    (call,) = completed(module, half, scores.half(), v, output)
    assert call.query.dtype == call.mask.dtype == torch.float32
    assert completed(module, product, scores[:3], v, output) == []
    own = nn.MultiheadAttention(8, 2)
    scaled = entry_points._Product(product.output, q * 0.5, k)
    (call,) = completed(own, scaled, scores, v, output)
    assert call.scale == 0.5
    torch.testing.assert_close(call.query.reshape(4, 3, 4), q.contiguous())


def replace_scale(product, scale):
    return replace(product, scale=scale)


def test_scales_are_near_to_what_is_usual_as_a_share_of_it():
    """At 1/√100 = .1 a fit of .2 is another scale, though it is no further than .25 away."""
    product, hidden = draw_tensor(1, 1, 5, 5), torch.zeros(1, 1, 5, 5, dtype=torch.bool)
    for scale, expected in ((0.12, 0.1), (0.2, 0.2), (0.9, 1.0)):
        found = entry_points._fit_scale(product, scale * product, hidden, 100)
        assert found == pytest.approx(expected)


# ---- what is computed by any means


def test_detecting_goes_on_after_a_pause_and_lets_go_of_weights_at_its_end():
    ran: list[str] = []
    watch = counting.Counting(ran.append)
    x = torch.rand(2, 3, 3)
    watch.start()
    weights = x.softmax(-1)
    assert len(watch.weights) == 1
    watch.stop()
    assert not watch.weights and not watch.active
    watch._note("aten::bmm", (weights, x), x)
    assert ran == []
    with watch.pause():
        with watch.pause():
            pass
        assert watch.quiet
    assert not watch.quiet
    made = torch.rand(2, 3, 3)
    watch._note("aten::_softmax", (x,), weights)
    watch._note("aten::add", (x, weights), made)
    watch._note("aten::bmm", (made, x), x)
    assert ran == [], "a sum that the weights are a part of"
    watch.weights.clear()
    for name in ("aten::_flash_attn", "x::Attention", "attn_y", "aten::addmm"):
        watch._note(name, (), x)
    assert ran == ["aten::_flash_attn", "attn_y"]
    watch._note("aten::_softmax", (), torch.rand(2, 2))
    assert not watch.weights
    rows = torch.rand(1, 2, 2)
    watch._note("aten::_softmax", (), rows)
    watch._note("aten::mm", (rows[0], x), x)
    watch._note("aten::mm", (rows[0], x), x)
    assert ran[2:] == ["aten::mm of a softmax"]


def test_numbers_in_a_row_are_a_range_from_the_first_to_the_last():
    lists = {
        (): "",
        (4,): "4",
        (4, 5): "4, 5",
        (4, 5, 6): "4–6",
        (4, 6, 7): "4, 6, 7",
        (4, 5, 7): "4, 5, 7",
        (9, 10, 11, 12): "9–12",
    }
    assert {given: counting.list_ranges([*given]) for given in lists} == lists


# ---- a proof


def test_outputs_are_compared_in_every_bit_though_only_a_sample_is_kept(monkeypatch):
    monkeypatch.setattr(proofs, "SAMPLED", 4)
    x = torch.arange(40.0)
    own = proofs.Outputs(x)
    (part,) = own.parts
    assert part.sample.tolist() == [0, 10, 20, 30] and part.dtype == torch.float32
    assert own.measure_difference(proofs.Outputs(x.clone())) == 0
    moved, swapped = x.clone(), x.clone()
    moved[3] += 1
    swapped[[3, 5]] = x[[5, 3]]
    tiny = torch.finfo(torch.float64).tiny
    for other in (moved, swapped):
        assert own.measure_difference(proofs.Outputs(other)) == tiny
    far = x.clone()
    far[20] += 3
    assert own.measure_difference(proofs.Outputs(far)) == pytest.approx(3 / 30)
    lost = x.clone()
    lost[10] = math.nan
    both = proofs.Outputs(lost)
    assert both.measure_difference(proofs.Outputs(lost.clone())) == 0
    assert own.measure_difference(both) == both.measure_difference(own) == math.inf
    assert own.measure_difference(proofs.Outputs(x.view(4, 10))) == math.inf


def test_a_checksum_sees_the_order_within_and_among_its_pieces(monkeypatch):
    split = torch.split
    monkeypatch.setattr(torch, "split", lambda x, _size: split(x, 3))
    x = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int32)
    total = proofs._sum_of_bits(x)
    assert total == (1 + 4 + 9) + 3 * (4 + 10 + 18)
    assert proofs._sum_of_bits(x[[3, 4, 5, 0, 1, 2]]) != total
    assert proofs._sum_of_bits(torch.ones(3, dtype=torch.complex64)) == 0
    for dtype in (torch.int8, torch.int16, torch.int64):
        assert proofs._sum_of_bits(x.to(dtype)) == total
    assert proofs._sum_of_bits(torch.tensor([True, False, True])) == 1 + 3


def test_tensors_of_outputs_are_found_in_their_order():
    a, b, c, d = (torch.full((1,), float(n)) for n in range(4))
    output = {"x": [a, None, (b, "text")], "y": {"z": c, "cache": object()}, "w": d}
    assert [int(x) for x in proofs.iter_tensors(output)] == [0, 1, 2, 3]
    assert [*proofs.iter_tensors("text")] == []
    copied = proofs.copy_inputs(output["x"])
    assert copied[0] is not a and type(copied[2]) is tuple
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2, 1), torch.ones(1, 1) * 3])
    assert proofs.Outputs(nested).parts[0].sample.tolist() == [1, 1, 3]


def test_blocks_of_a_second_list_may_be_numbered_from_either():
    """Behind two lists, of two and three blocks, the last list begins after none, one or both of them."""
    lists = [[nn.Sequential(nn.Identity()) for _ in range(n)] for n in (2, 3, 1)]
    names = {
        block: f"{name}.{number}.inner"
        for name, blocks in zip(
            ("tower.layers", "text.layers", "top"), lists, strict=True
        )
        for number, block in enumerate(blocks)
    }
    blocks = [block for each in lists for block in each]
    positions = proofs.Positions({"encoder": blocks}, names)
    accepted = [
        [n for n in range(1, 7) if ("encoder", n) in positions.numbers[block[0]]]
        for block in blocks
    ]
    assert accepted == [[1], [2], [1, 3], [2, 4], [3, 5], [1, 3, 4, 6]]
    assert positions.depth == {"encoder": 6}
    last = Site("encoder", 6, "attention")
    assert positions.contradict(blocks[0], last)
    assert not positions.contradict(blocks[0], replace(last, layer=7))
    assert not positions.contradict(nn.Identity(), last)


def test_a_proof_is_described_by_its_own_limit_and_by_errors_that_are_numbers():
    place = ("encoder", 3, "self")
    described = proofs.Proof(
        outputs=0.5,
        noise=0.25,
        limit=0.125,
        attention={place: (math.nan, 1.0), ("encoder", 4, "cross"): (0.5, 0.5)},
    ).describe()
    assert described == {
        "outputs_moved": 0.5,
        "outputs_limit": 0.125,
        "attention_error": 0.5,
        "attention_limit": 0.5,
        "attention_compared": 2,
        "attention_not_compared": 0,
        "attention_refused": {"encoder.3": "not finite"},
    }
    kept = proofs.Proof(unheard={("encoder", 1, "cross"), place}, noise=0.5)
    assert proofs.Proof.from_json(kept.to_json()) == kept


def test_the_limit_of_rounding_is_that_of_the_model_s_own_type():
    """Before its output is widened for the comparison; a layer that finishes the output gets it in its own type."""
    x = draw_tensor(1, 3, 2, 4)
    keys = torch.ones(1, 2, 3)
    for dtype in proofs.ROUNDING:
        own, seen = x.to(dtype), []
        call = Call(
            nn.Identity(), x, x, x, None, {"scaling": 0.0}, result=lambda own=own: own
        )
        found = proofs.compare_attention(call, x, keys, None)
        assert found is not None and found[1] == proofs.ROUNDING[dtype]

        def finish(y, seen=seen):
            seen.append(y.dtype)
            return y.flatten(2)

        layer = replace(call, finish=finish, result=lambda own=own: own.flatten(2))
        assert proofs.compare_attention(layer, x, keys, None) is not None
        assert seen == [dtype]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2, 1), torch.ones(1, 1)])
    for given in (nested, (nested, None), [], x.long()):
        own_output = replace(call, result=lambda given=given: given)
        assert proofs._get_own_output(own_output) is None
    for given in (x, (x, None), [x]):
        own_output = replace(call, result=lambda given=given: given)
        assert proofs._get_own_output(own_output) is x


def test_only_queries_that_are_real_and_see_a_key_are_compared():
    keys = torch.tensor([[[1, 0, 2], [1, 1, 0]]])
    real = torch.tensor([[True, True, False]])
    x = draw_tensor(1, 3, 2, 2)
    call = Call(nn.Identity(), x, x, x, None, {})
    layer = replace(call, finish=torch.neg)
    find = proofs._find_comparable
    both = [[True, True], [False, True], [True, False]]
    assert find(call, keys, None)[0].tolist() == both
    assert find(call, keys, real)[0].tolist() == [*both[:2], [False, False]]
    assert find(layer, keys, None)[0].tolist() == [True, True, True]
    assert find(layer, keys * 0, None)[0].tolist() == [False] * 3
    assert find(layer, keys, real)[0].tolist() == [True, True, False]


# ---- attention of a model on its way to a receiver


class OwnAttention(nn.Module):
    """An attention module by its name."""


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn, self.other = OwnAttention(), OwnAttention()


def a_tap(model, *wanted, **how):
    own = tap.Tap(
        model, frozenset(wanted or {"attention"}), None, "position", None, **how
    )
    for here in ("encoder",):
        own.running[here].layer = 2
    return own


def a_call(module, seed=0, **changed):
    query, key = (
        draw_tensor(2, 4, 3, 5, seed=seed),
        draw_tensor(2, 2, 3, 5, seed=seed + 1),
    )
    value = draw_tensor(2, 2, 3, 5, seed=seed + 2)
    call = Call(module, query, key, value, None, {"scaling": 0.6}, backend="other")
    return replace(call, **changed)


REAL = torch.tensor([[True, True, False], [True, True, True]])


def test_each_quantity_of_a_call_is_that_of_its_own_tensors_and_of_real_queries():
    parent = Parent()
    own = a_tap(
        parent, "query", "key.rotated", "value", "attention", "scores", "extremes"
    )
    stack = own.stacks[parent.attn]
    assert stack == "encoder"
    own.real[stack] = REAL
    call = a_call(parent.attn)
    # Queries at every stage were asked for, keys at one alone.
    source = heads.projections.Source("rotated")
    source.seen = {"query": draw_tensor(2, 3, 20), "key": draw_tensor(2, 3, 10)}
    own.heads.sources[parent.attn] = source
    assert own.heads.look(call) is None
    kept = own.kept
    prefix = "encoder.2."
    assert kept.keys() == {
        f"{prefix}head.query.raw",
        f"{prefix}head.query.rotated",
        f"{prefix}head.key.rotated",
        f"{prefix}head.value",
        f"{prefix}attention",
        f"{prefix}scores",
        f"{prefix}extremes",
    }
    assert kept[f"{prefix}head.query.rotated"] is call.query
    assert kept[f"{prefix}head.key.rotated"] is call.key
    assert kept[f"{prefix}head.value"] is call.value
    expected = attention_rows(
        call.query, call.key, NONE, scale=0.6, real=REAL, columns=True
    )
    of_keys = kept[f"{prefix}extremes"]
    assert of_keys["query"] is call.query and of_keys["key"] is call.key
    assert of_keys["value"] is call.value
    for name in ("mass", "seen"):
        torch.testing.assert_close(of_keys[name], expected.pop(name))
    found = kept[f"{prefix}attention"]
    assert found.keys() == expected.keys()
    for name, exact in expected.items():
        torch.testing.assert_close(found[name], exact, msg=name)
    sums = sum_scores(call.query, call.key, NONE, scale=0.6, real=REAL)
    for name, exact in sums.items():
        torch.testing.assert_close(kept[f"{prefix}scores"][name], exact, msg=name)
    assert own.running[stack].looks == 1


def test_centred_rows_are_of_real_queries_and_named_by_what_is_taken_off():
    parent = Parent()
    own = a_tap(parent, "centred")
    own.real["encoder"] = REAL
    query, key = (
        draw_tensor(4, 5, seed=8),
        draw_tensor(2, 5, seed=9).repeat_interleave(2, 0),
    )
    own.means["encoder", 2, "self"] = query, key
    call = a_call(parent.attn)
    own.heads.look(call)
    found = own["encoder.2.centred"]
    without = {
        "plain": call,
        "query": replace(call, query=call.query - (query / 0.6).unsqueeze(1)),
        "key": replace(call, key=call.key - key[::2].unsqueeze(1)),
    }
    assert found.keys() == without.keys()
    for name, each in without.items():
        expected = attention_rows(each.query, each.key, NONE, scale=0.6, real=REAL)
        for quantity, exact in expected.items():
            torch.testing.assert_close(
                found[name][quantity], exact, msg=f"{name} {quantity}"
            )


def test_a_mask_of_other_queries_than_those_of_a_call_is_not_its_mask():
    """In cross-attention the mask may be that of the other stack."""
    parent = Parent()
    own = a_tap(parent, "attention")
    own.real["encoder"] = torch.ones(2, 7, dtype=torch.bool)
    call = a_call(parent.attn)
    assert own.heads._find_real_queries("encoder", call) is None
    assert own.heads._find_real_queries("decoder", call) is None
    own.real["encoder"] = REAL
    assert own.heads._find_real_queries("encoder", call) is REAL


def test_a_layer_that_was_not_asked_for_is_looked_at_and_forgotten():
    parent = Parent()
    own = a_tap(parent, "attention", "hidden")
    own._depth = {"encoder": 3}
    own.layers = (3,)
    source = heads.projections.Source("rotated")
    source.seen["query"] = torch.zeros(1)
    own.heads.sources[parent.attn] = source
    assert own.heads.look(a_call(parent.attn)) is None
    assert not source.seen and own.kept == {}
    assert {"attention", "query"} <= own.fired and "hidden" not in own.fired
    assert own.running["encoder"].looks == 1
    own.layers = (-2,)
    own.heads.look(a_call(parent.attn))
    assert own.sites == ["encoder.2.attention"]


def test_a_call_off_the_interface_is_left_out_if_the_interface_has_shown_it():
    parent = Parent()
    own = a_tap(parent, "attention")
    own.heads.look(a_call(parent.attn), off_interface=True)
    first = own["encoder.2.attention"]
    own.heads.look(a_call(parent.attn))
    second = own["encoder.2.attention"]
    own.heads.look(a_call(parent.attn), off_interface=True)
    assert second is not first and own["encoder.2.attention"] is second
    assert own.running["encoder"].looks == 3
    own.heads.begin()
    assert not own.heads.served and not own.heads.off_interface and not own.heads.read
    own.refuse(("encoder", 2, "self"), "why")
    assert own.heads._must_leave_out(
        Site("encoder", 2, "value"), a_call(parent.attn), 1, False
    )
    assert not own.heads._must_leave_out(
        Site("encoder", 3, "value"), a_call(parent.attn), 1, False
    )


def test_a_call_that_cannot_be_read_is_refused_with_its_class_and_reason():
    parent = Parent()
    own = a_tap(parent, "attention")
    call = a_call(parent.attn, key=draw_tensor(2, 2, 3, 4))
    assert own.heads.look(call) is None
    (place,) = own.refused
    assert place == ("encoder", 2, "self")
    assert re.match(r"in OwnAttention: \w+Error: \w+", own.refused[place])
    own = a_tap(parent, "attention")
    own.heads.note_trouble(parent.attn, "bmm", ValueError("odd  words"))
    assert own.running["encoder"].trouble == "bmm: ValueError: odd words"
    with pytest.raises(MeasureError):
        own.heads.note_trouble(parent.attn, "bmm", MeasureError("a", "b", "c"))


def test_rows_are_measured_without_an_output_if_values_do_not_fit():
    parent = Parent()
    own = a_tap(parent, "extremes").heads
    call = a_call(parent.attn, value=draw_tensor(2, 2, 2, 5))
    found = own._compute_rows_with_output(call, REAL, True)
    expected = attention_rows(
        call.query, call.key, NONE, scale=0.6, real=REAL, columns=True
    )
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found["mass"], expected["mass"])
    torch.testing.assert_close(found["row_similarity"], expected["row_similarity"])
    assert "output" in own._compute_rows_with_output(a_call(parent.attn), None, False)


def test_calls_are_shown_whole_and_an_output_may_be_that_of_the_rows():
    """Not of a backend that is unknown, or of rows that see nothing."""
    parent = Parent()
    shown = []
    own = a_tap(parent, "attention")
    own.on_call = lambda site, call: shown.append((site.name, call.module))
    call = a_call(parent.attn, backend="sdpa")
    assert own.heads.look(call) is None
    assert shown == [("encoder.2.attention", parent.attn)]
    own.fused = True
    output = own.heads.look(call)
    expected = call.weights() @ call.value.repeat_interleave(2, 1)
    torch.testing.assert_close(output, expected.transpose(1, 2))
    assert "output" not in own["encoder.2.attention"]
    assert own.heads.look(replace(call, backend="other")) is None
    nothing = Masking(
        torch.tensor([[[[True, True, True]]], [[[False] * 3]]]), False, None
    )
    assert own.heads.look(replace(call, mask=nothing.keys)) is None
    here = own.running["encoder"]
    here.sequences, here.positions = 1, 6
    shown.clear()
    own.heads.begin()
    assert own.heads.look(a_call(parent.attn)) is None
    assert shown == [] and own["encoder.2.attention"]["entropy"].shape == (1, 4, 6)


def test_attention_is_verified_against_the_output_of_its_own_module():
    parent = Parent()
    call = a_call(parent.attn)
    place, site = ("encoder", 2, "self"), Site("encoder", 2, "attention")

    def verify(own_output=None, positions=None):
        own = a_tap(parent, "attention")
        own.proof = proofs.Proof()
        if positions is not None:
            own.positions = positions
        rows = own.heads._compute_rows(call, None, value=True)
        made = rows["output"] if own_output is None else own_output
        found = own.heads._is_verified(
            own.proof, replace(call, result=lambda: made), site, rows, None
        )
        return found, own

    found, own = verify()
    assert found and own.proof.attention[place][0] == 0 and not own.refused
    found, own = verify(own_output="none")
    assert found and own.proof.unheard == {place} and not own.proof.attention
    found, own = verify(own_output=draw_tensor(2, 3, 4, 5, seed=30))
    assert not found and own.proof.attention[place][0] > own.proof.attention[place][1]
    assert own.refused == {
        place: "softmax(scores)·values is not the output of OwnAttention, and by more than rounding"
    }
    elsewhere = proofs.Positions({"encoder": [parent.other, parent.attn, parent.attn]})
    elsewhere.numbers[parent.attn] = {("encoder", 3)}
    found, own = verify(positions=elsewhere)
    assert not found and not own.proof.attention
    assert own.refused == {
        place: "OwnAttention, which belongs to another block, was found there"
    }


def test_more_keys_than_positions_are_named_with_both_numbers():
    parent = Parent()
    own = a_tap(parent, "value").heads
    call = a_call(parent.attn, query=draw_tensor(2, 4, 2, 5))
    with pytest.raises(MeasureError) as raised:
        own._check_keys(call, lambda name: Site("encoder", 2, name))
    assert raised.value.got == "3 keys for 2 positions: some represent several tokens"
    assert raised.value.expected == (
        "one key per token in OwnAttention, which --panel attention needs"
    )


def test_only_the_innermost_attention_modules_have_their_projections_hooked():
    class BlockAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = OwnAttention()
            for name in ("q_proj", "k_proj"):
                setattr(self, name, nn.Linear(2, 2))
                setattr(self.inner, name, nn.Linear(2, 2))

    class RotaryEmbedding(nn.Module):
        pass

    model = nn.Module()
    model.layer, model.rotary = BlockAttention(), RotaryEmbedding()
    own = a_tap(model, "query")
    own.turned.add("encoder")
    with own.ends:
        own.heads.hook_projections()
        assert own.heads.sources.keys() == {model.layer.inner}
        source = own.heads.sources[model.layer.inner]
        assert (source.stage, source.tokens_first) == ("rotated", True)
        x = torch.ones(3, 1, 2)
        model.layer.inner.q_proj(x)
        assert source.seen["query"].shape == (1, 3, 2)
    assert heads.is_rotary(model.rotary) and not heads.is_rotary(model.layer)
    assert heads.is_attention(model.layer) and not heads.is_attention(model.rotary)


# ---- processes of tensor parallelism


class Listed(splitting.Parts):
    """Gathers the given tensors instead of those of processes."""

    def __init__(self, *gathered):
        super().__init__((0, 1))
        self.gathered = gathered

    def _gather(self, x):
        self.own = x
        return [x, *(other(x) for other in self.gathered)]


def test_processes_must_call_a_model_with_the_same_inputs():
    """Shape, type and every number of each tensor, by place or by name, count."""
    model = nn.Linear(1, 1)
    entered = []

    @contextmanager
    def pause():
        entered.append(True)
        yield

    def digest(*args, **kwargs):
        parts = Listed(torch.clone)
        parts.require_same_inputs(pause, model, args, kwargs)
        return int(parts.own)

    x = torch.arange(6.0)
    plain = digest(x)
    assert plain == digest(x.clone()) and entered == [True, True]
    whole = hashlib.blake2b(digest_size=7)
    whole.update(b"(6,)torch.float32")
    whole.update(x.numpy().tobytes())
    assert plain == int.from_bytes(whole.digest())
    others = [
        digest(x.view(2, 3)),
        digest(x.double()),
        digest(x.view(torch.int32)),
        digest(x.flip(0)),
        digest(x, torch.zeros(0)),
        digest(x, mask=x),
    ]
    assert len({plain, *others}) == 7
    with pytest.raises(MeasureError, match="give each process the whole data"):
        Listed(lambda y: y + 1).require_same_inputs(pause, model, (x,), {})


def test_only_a_tensor_of_as_many_entries_as_heads_is_joined_by_head():
    """One for all heads, or of all heads already, or of fewer axes, is whole."""
    parts = Listed(lambda x: x + 100)
    for shape, axis in (
        ((1, 4, 2, 2), 1),
        ((1, 1, 2, 2), 1),
        ((2, 2, 3), 1),
        ((4,), 0),
    ):
        x = draw_tensor(*shape)
        assert parts._join_by_head(x, 2, axis) is x, shape
    for other in (None, 3, "text"):
        assert parts._join_by_head(other, 2, 1) is other
    assert parts._join_by_head(torch.zeros(()), 2, 0).dim() == 0
    joined = splitting.Parts((0, 1))
    joined.join = lambda x, axis: (x, axis)
    x = draw_tensor(1, 2, 3, 3)
    assert joined._join_by_head(x, 2, 1) == (x, 1)
    sinks = draw_tensor(2)
    assert joined._join_by_head(sinks, 2, 0) == (sinks, 0)


def test_parts_are_gathered_in_the_order_of_the_model(monkeypatch):
    def gather(every, x):
        for rank, each in enumerate(every):
            each.copy_(x + 10 * rank)

    monkeypatch.setattr(torch.distributed, "all_gather", gather)
    parts = splitting.Parts((1, 0))
    assert [int(x) for x in parts._gather(torch.tensor([1]))] == [11, 1]


def test_parts_of_unequal_shapes_are_named_with_all_of_them():
    splitting._require_equal_but_for(1, [[2, 3, 4], [2, 5, 4]])
    for axis, shapes in ((1, [[2, 3, 4], [2, 3, 5]]), (1, [[2, 3, 4], [1, 3, 4]])):
        with pytest.raises(MeasureError) as raised:
            splitting._require_equal_but_for(axis, shapes)
        assert raised.value.expected == (
            "parts of a tensor that differ in size only along axis 1"
        )
        assert raised.value.got == f"parts of {shapes}"


def test_a_module_s_weights_say_whether_its_heads_are_split():
    def placed(*axes):
        return tuple(
            SimpleNamespace(is_shard=lambda a, axis=axis: a == axis) for axis in axes
        )

    class Placed(nn.Module):
        def __init__(self, *axes):
            super().__init__()
            self.placements = axes

        def parameters(self, **_):
            return [
                torch.zeros(1),
                SimpleNamespace(placements=placed(*self.placements)),
            ]

    assert splitting._has_split_rows(Placed(0)) and splitting._has_split_rows(
        Placed(1, 0)
    )
    assert not splitting._has_split_rows(Placed(1)) and not splitting._has_split_rows(
        Placed()
    )
    assert not splitting._has_split_rows(nn.Linear(1, 1))


def test_numbers_that_are_compared_lie_all_over_a_tensor():
    """At most 64, evenly; a shape of up to five axes, and the size of the whole."""
    x = torch.arange(130.0).view(2, 65)
    found = splitting._summarise(x)
    assert found[:5].tolist() == [2, 65, 0, 0, 0]
    assert found[5].item() == pytest.approx(float(x.norm()))
    assert found[6:].tolist() == [*range(0, 130, 3)] + [0] * (64 - 44)
    assert splitting._summarise(torch.zeros(0))[5:].abs().sum() == 0
    y = torch.arange(24.0)
    for other, alike in (((2, 3, 4), True), ((2, 4, 3), False), ((2, 12), False)):
        both = [splitting._summarise(y.view(shape)) for shape in ((2, 3, 4), other)]
        assert splitting._are_alike(both) is alike


# ---- small forms of shapes and names


def test_operations_are_named_without_their_overload_and_not_while_quiet():
    ran: list[str] = []
    watch = counting.Counting(ran.append)
    x, aten = torch.rand(2, 3, 3), torch.ops.aten
    watch.quiet = True
    watch.__torch_dispatch__(aten._softmax.default, (), (x, -1, False))
    assert not watch.weights
    watch.quiet = False
    weights = watch.__torch_dispatch__(aten._softmax.default, (), (x, -1, False))
    assert torch.equal(weights, x.softmax(-1)) and len(watch.weights) == 1
    out = torch.empty_like(x)
    watch.__torch_dispatch__(aten.bmm.out, (), (weights, x), {"out": out})
    assert ran == ["aten::bmm of a softmax"] and torch.equal(out, weights @ x)


class Scores(nn.Module):
    def forward(self, q):
        return q @ q.mT


class Mixes(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, q):
        return self.part(q).softmax(-1) @ q


def test_scores_of_one_module_are_not_those_of_another():
    """Both are watched; of scores that the module itself makes the call is read."""
    q = draw_tensor(2, 3, 4)
    part = Scores()
    model, calls = Mixes(part), []
    with entry_points.watch_entry_points({model, part}, calls.append):
        model(q)
        assert calls == []
    own = Inner()
    with entry_points.watch_entry_points({own, part}, calls.append):
        part(q)
        own(q)
    assert [call.module for call in calls] == [own]


def test_products_before_an_error_are_forgotten():
    module = Asked()
    module.function = lambda _module, function: function()
    failed: list[Any] = []
    watch = entry_points._Watch(
        {module},
        lambda _: None,
        lambda *given: failed.append(given),
        threading.get_ident(),
    )
    q = draw_tensor(2, 3, 4)
    product = watch.wrap("matmul", torch.matmul, True)
    module(lambda: product(q, q.mT))
    assert len(watch.pending.products) == 1

    def fail(*_given, **_named):
        raise ValueError("why")

    watch.__dict__["bmm"] = fail
    other = watch.wrap("bmm", torch.bmm, True)
    module(lambda: other(q, q.mT))
    assert not watch.pending.products and watch.pending.module is None
    assert [(name, str(error)) for _, name, error in failed] == [("bmm", "why")]


def test_heads_are_counted_by_any_of_their_names():
    for name in ("num_heads", "num_attention_heads", "n_head", "heads"):
        module = nn.Identity()
        setattr(module, name, 3)
        assert entry_points._count_heads(module, torch.zeros(6, 4, 5)) == 3, name
    q, scores = torch.zeros(2, 2, 4, 3), torch.zeros(2, 4, 4, 5)
    k = torch.zeros(2, 4, 5, 3)
    assert entry_points._split_parts((q, k, k, scores), 4) is None
    assert entry_points._split_parts((q[:1, :1], k, k, scores), 4) is not None
    for name in ("num_attention_heads", "num_heads"):
        attention = nn.Identity()
        setattr(attention, name, 2)
        layer = fallback._Layer(attention, lambda _: None)
        layer.keep(layer.projected[0], None, None, torch.arange(12.0).view(1, 3, 4))
        assert layer.projected[0][0].shape == (1, 2, 3, 2), name
        assert layer.projected[0][0][0, 1].tolist() == [[2, 3], [6, 7], [10, 11]]


def test_an_ellipsis_of_either_operand_is_that_of_the_result():
    two, one = torch.zeros(2, 3, 4), torch.zeros(3, 4)
    parse = entry_points._parse_einsum
    assert parse("qd,...kd->...qk", [one, two]) == (("qd", "Zkd"), "Zqk")
    assert parse("...qd,kd->...qk", [two, one]) == (("Zqd", "kd"), "Zqk")
    four = torch.zeros(1, 2, 3, 4)
    assert parse("...qd,...kd->...qk", [four, two]) == (("YZqd", "Zkd"), "YZqk")


def test_widths_of_values_and_of_fused_projections_may_differ_from_those_of_keys():
    query, key = torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3)
    value = torch.zeros(1, 2, 3, 4)
    call = Call(nn.Identity(), query, key, value, None, {})
    own = torch.arange(12.0).view(1, 3, 2, 2)  # [sequence, token, head, own dim]
    shared = torch.tensor([[[91.0], [92.0], [93.0]]])
    latent = torch.cat([torch.zeros(1, 3, 2), shared], -1)
    expanded = torch.cat([own, torch.full((1, 3, 2, 4), 700.0)], -1)
    source = projections.Source("rotated")
    source.seen = {
        "query": torch.zeros(1, 3, 6),
        "kv_a_proj_with_mqa": latent,
        "kv_b_proj": expanded.flatten(2),
    }
    found = source.stages(call)["key", "raw"]
    assert torch.equal(found[..., :2], own.transpose(1, 2))
    assert torch.equal(found[..., 2:], shared.unsqueeze(1).expand(1, 2, 3, 1))
    for width in (17, 19, 36):
        for how in ("grouped", "by head", "in turn"):
            whole = torch.zeros(1, 3, width)
            assert projections._split_fused(whole, how, call) is None
    assert projections._split_fused(torch.zeros(1, 3, 18), "grouped", call) is not None


def test_the_output_of_a_norm_is_turned_so_that_its_lengths_fit():
    """Of as many heads as tokens: rotation keeps the length of each vector."""
    like = draw_tensor(2, 3, 3, 4)
    rotated = like.flip(-1)
    align = projections._align_axes
    assert align(rotated, like) is rotated
    turned = rotated.transpose(1, 2).contiguous()
    assert torch.equal(align(turned, like), rotated)
    other = draw_tensor(2, 3, 5, 4)
    assert torch.equal(align(other.transpose(1, 2), other), other)
    assert align(other, other) is other
