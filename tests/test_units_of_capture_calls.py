"""What happens to one attention call on its way to a receiver, and to one block on its way through a tap."""

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
from torch import Tensor, nn

from anisoscope.axes import Site
from anisoscope.capture import (
    backends,
    counting,
    entry_points,
    fallback,
    heads,
    projections,
    proof as proofs,
    rows as rows_of,
    splitting,
    tap,
    vectors,
)
from anisoscope.capture.masking import Call, Masking
from anisoscope.capture.rows import attention_rows
from anisoscope.capture.scores import sum_scores
from anisoscope.errors import MeasureError, UsageError

NONE = Masking(None, False, None)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64)


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
    x = [drawn(1, 1, 2, 2, seed=n) for n in range(4)]

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
    module, calls, x = Own(), [], drawn(1, 1, 2, 2)
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
    q = drawn(2, 3, 4)

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
    q = drawn(2, 3, 4)
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
    names = [(o, n) for o, n in (*entry_points.FUSED, *entry_points.PRODUCTS)]
    before = [(n in vars(o), getattr(o, n)) for o, n in names]
    with entry_points.watch_entry_points(set(), lambda _: None):
        assert [n in vars(o) for o, n in names] == [True] * len(names)
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
        weight.data = drawn(*weight.shape, seed=number)
    x, own = drawn(2, 3, 6, seed=50), layer.self_attn
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
        weight.data = drawn(*weight.shape, seed=number)
    x = drawn(2, 3, 6, seed=50)
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
    q, k = drawn(2, 3, 4), drawn(2, 5, 4, seed=1)
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
    q, k, v = (drawn(2, 3, 4, 5, seed=n) for n in range(3))  # [batch, token, head, dim]
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
    x, settings = drawn(4, 3, 5), {"scaling": 0.5, "is_causal": False}
    mask, output = drawn(4, 3, 3, seed=1), drawn(4, 3, 5, seed=2)

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
    q, k, v = drawn(1, 3, 4), drawn(4, 5, 4, seed=1), drawn(4, 5, 4, seed=2)
    bias = drawn(4, 3, 5, seed=3) / 100
    bias[:, 1, 2] = -10_000
    q = q.expand(4, 3, 4)
    scores = q @ k.mT * 0.5 + bias
    output = drawn(4, 3, 4, seed=4)
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
    product, hidden = drawn(1, 1, 5, 5), torch.zeros(1, 1, 5, 5, dtype=torch.bool)
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
    x = drawn(1, 3, 2, 4)
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
    x = drawn(1, 3, 2, 2)
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
    query, key = drawn(2, 4, 3, 5, seed=seed), drawn(2, 2, 3, 5, seed=seed + 1)
    value = drawn(2, 2, 3, 5, seed=seed + 2)
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
    own.heads.sources[parent.attn] = heads.projections.Source("rotated")
    assert own.heads.look(call) is None
    kept = own.kept
    prefix = "encoder.2."
    assert kept.keys() == {
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
    query, key = drawn(4, 5, seed=8), drawn(2, 5, seed=9).repeat_interleave(2, 0)
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
    call = a_call(parent.attn, key=drawn(2, 2, 3, 4))
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
    call = a_call(parent.attn, value=drawn(2, 2, 2, 5))
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
    found, own = verify(own_output=drawn(2, 3, 4, 5, seed=30))
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
    call = a_call(parent.attn, query=drawn(2, 4, 2, 5))
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


# ---- rows block by block


@pytest.mark.parametrize("size", [1, 7, 40, 400])
@pytest.mark.parametrize("form", ["span", "causal", "pairs", "bias"])
def test_blocks_of_any_size_give_everything_of_rows(monkeypatch, size, form):
    """Ranges that begin late, other numbers of queries than of keys, sinks, and a query and a key without numbers."""
    query, key, value = drawn(3, 4, 5, 3), drawn(3, 2, 6, 3, seed=1), drawn(3, 2, 6, 2)
    query[2, 1, 3, 0], key[0, 1, 4, 1] = math.nan, math.inf
    real = torch.tensor([[1, 1, 1, 0, 1], [0, 1, 1, 1, 1], [1, 1, 1, 1, 0]]).bool()
    keys = torch.tensor([[0, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    keys = keys.bool()[:, None, None]
    pairs = drawn(3, 1, 5, 6, seed=5) > -0.7
    masking = {
        "span": Masking(keys, False, None),
        "causal": Masking(None, True, None),
        "pairs": Masking(pairs, False, None),
        "bias": Masking(keys, True, 30 * drawn(1, 4, 5, 6, seed=7)),
    }[form]
    how: dict[str, Any] = {
        "scale": 0.8,
        "sinks": drawn(4, seed=9),
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
    query, key = drawn(1, 4, 3, 2), drawn(1, 2, 4, 2, seed=1)
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
    query, key = drawn(1, 4, 3, 2), drawn(1, 4, 3, 2)
    bias, keys = drawn(1, 1, 3, 3), torch.ones(1, 1, 3, 3, dtype=torch.bool)

    def call(query=query, key=key, masking=NONE, **how):
        attention_rows(query, key, masking, scale=1.0, **how)

    unlike = [
        {},
        {"key": key[:, :2]},
        {"query": query.float(), "key": key.float()},
        {"query": drawn(1, 4, 3, 6), "key": drawn(1, 4, 3, 6)},
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


# ---- blocks on their way through a tap


class Residual(nn.Module):
    """A block that ends with its ReLU, or has one in its middle."""

    def __init__(self, ends, inplace=False):
        super().__init__()
        self.linear, self.relu, self.ends = nn.Linear(3, 3), nn.ReLU(inplace), ends

    def forward(self, x):
        y = self.relu(self.linear(x) + x)
        return y if self.ends else y + 1


class Stacked(nn.Module):
    def __init__(self, *blocks, norm=True, order=None):
        super().__init__()
        self.layers = nn.ModuleList(blocks)
        self.order = order
        if norm:
            self.before, self.norm = nn.LayerNorm(3), nn.LayerNorm(3)

    def forward(self, x):
        if hasattr(self, "norm"):
            x = self.before(x)
        for number in self.order or range(len(self.layers)):
            x = self.layers[number](x)
        return self.norm(x) if hasattr(self, "norm") else x


def captured(model, *what, x=None, blocks=("layers.*",), **how):
    seen: list[tuple[str, Any]] = []
    with tap.capture(
        model,
        what,
        blocks=blocks,
        receive=lambda site, value: seen.append((site.name, value)),
        **how,
    ) as own:
        output = model(torch.ones(2, 4, 3) if x is None else x)
    return dict(seen), own, output


@pytest.mark.parametrize("inplace", [False, True])
def test_what_a_last_relu_was_given_is_of_blocks_that_end_with_one(inplace):
    torch.manual_seed(0)
    model = Stacked(
        Residual(True, inplace), Residual(False), Residual(True), norm=False
    )
    x = torch.randn(2, 4, 3)
    found, _, _ = captured(model, "hidden", "pre_relu", x=x)
    assert [name for name in found if "pre_relu" in name] == [
        "encoder.1.pre_relu",
        "encoder.3.pre_relu",
    ]
    first = model.layers[0]
    torch.testing.assert_close(found["encoder.1.pre_relu"], first.linear(x) + x)
    assert bool((found["encoder.1.pre_relu"] < 0).any())
    assert torch.equal(found["encoder.1.hidden"], found["encoder.1.pre_relu"].relu())


def test_the_final_vectors_are_those_of_the_norm_behind_the_last_block():
    """Norms before the blocks and inside of them are others."""

    class Normed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(3)

        def forward(self, x):
            return self.norm(x)

    model = Stacked(Normed(), Normed())
    for number, weight in enumerate(model.parameters()):
        weight.data = drawn(*weight.shape, seed=number).float()
    x = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(1))
    found, own, output = captured(model, "hidden", "final", x=x)
    assert [*found] == [f"encoder.{n}.hidden" for n in range(3)] + ["encoder.final"]
    assert torch.equal(found["encoder.final"], output)
    assert torch.equal(found["encoder.0.hidden"], model.before(x))
    assert own.fired == {"hidden", "final"}
    for asked, expected in (
        ((-1,), {"encoder.2.hidden", "encoder.final"}),
        ((0,), {"encoder.0.hidden"}),
    ):
        found, _, _ = captured(model, "hidden", "final", x=x, layers=asked)
        assert found.keys() == expected


def test_a_block_runs_again_on_its_own_output_alone():
    """Then it is one more layer; on other input it is an error that names the block."""
    block, other = nn.Linear(3, 3), nn.Linear(3, 3)
    found, _, _ = captured(Stacked(block, norm=False, order=[0, 0, 0]), "hidden")
    assert [*found] == [f"encoder.{n}.hidden" for n in range(4)]

    class Twice(Stacked):
        def forward(self, x):
            self.layers[1](self.layers[0](x))
            return self.layers[0](x + 1)

    model = Twice(block, other, norm=False)
    with pytest.raises(MeasureError) as raised:
        captured(model, "hidden")
    assert raised.value.expected == "Twice to run each block once in a forward call"
    assert raised.value.got == (
        "layers.0 run again on other input: every vector would count twice"
    )
    assert raised.value.cure == (
        "measure the encoder as a model of its own, with one input per call"
    )
    with pytest.raises(UsageError, match="a block more than once; got -1"):
        captured(Stacked(block, norm=False, order=[0, 0]), "hidden", layers=(1, -1))


def test_a_second_call_of_a_model_begins_with_nothing_of_the_first():
    model = Stacked(nn.Linear(3, 3), nn.Linear(3, 3))
    seen: list[str] = []
    with tap.capture(
        model,
        ("hidden", "final"),
        blocks=("layers.*",),
        receive=lambda site, _: seen.append(site.name),
    ) as own:
        for _ in range(2):
            assert not own.inside
            model(torch.ones(1, 2, 3))
        assert own.running["encoder"].layer == 2
        with own.detach():
            model(torch.ones(1, 2, 3))
        assert len(seen) == 8
        model(torch.ones(1, 2, 3))
        model.layers[0](torch.ones(1, 2, 3))
        model.layers[0](torch.ones(1, 2, 3))
    assert seen[:12] == [*seen[:4]] * 3
    assert seen[:4] == [
        "encoder.0.hidden",
        "encoder.1.hidden",
        "encoder.2.hidden",
        "encoder.final",
    ]
    assert seen[12:] == ["encoder.0.hidden", "encoder.1.hidden"] * 2
    model(torch.ones(1, 2, 3))
    assert len(seen) == 16


class Turned(nn.Module):
    """A block that passes on [token, sequence, dim]."""

    def forward(self, x):
        return x + 1


def test_tokens_may_come_first_and_that_is_said_or_read():
    x = torch.arange(24.0).view(4, 2, 3)
    for said, expected in ((True, x.transpose(0, 1)), (False, x), (None, x)):
        found, _, _ = captured(
            Stacked(Turned(), norm=False), "hidden", x=x, tokens_first=said
        )
        assert torch.equal(found["encoder.0.hidden"], expected)
    layer = nn.TransformerEncoderLayer(4, 2, 4, 0.0)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x = torch.arange(24.0).view(3, 2, 4)
    for said, expected in ((None, x.transpose(0, 1)), (False, x)):
        found, _, _ = captured(model, "hidden", x=x, tokens_first=said)
        assert torch.equal(found["encoder.0.hidden"], expected)


def test_nested_vectors_are_padded_to_their_mask_and_streams_are_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)])
    own = a_tap(nn.Identity(), "hidden")
    site = Site("encoder", 1, "hidden")
    own.emit_vectors(site, nested)
    assert own[site.name].shape == (2, 2, 3)
    own.real["encoder"] = torch.ones(2, 5, dtype=torch.bool)
    own.emit_vectors(site, nested)
    assert own[site.name].shape == (2, 5, 3)
    assert own[site.name][1].sum() == 3
    own.turned.add("decoder")
    x = torch.ones(2, 5, 3)
    own.emit_vectors(site, x)
    assert own[site.name] is x
    with pytest.raises(MeasureError) as raised:
        own.emit_vectors(site, torch.ones(2, 5, 4, 3))
    assert raised.value.got == (
        "(2, 5, 4, 3) in Identity: several residual streams per token"
    )
    last = nn.Sequential(nn.LayerNorm(6))
    image = torch.arange(48.0).view(1, 2, 4, 6)
    other = a_tap(nn.Identity(), "hidden")
    other.emit_vectors(site, image, last)
    assert torch.equal(other[site.name], image.view(1, 8, 6))


def test_stages_of_maps_are_numbered_from_one_and_rows_of_positions_are_maps():
    own = a_tap(stage := nn.Identity(), "stage")
    image = torch.arange(24.0).view(1, 2, 3, 4)
    own._emit_stage(1, stage, None, image)
    assert torch.equal(own["encoder.1.stage"], image.flatten(2).mT)
    row = torch.arange(12.0).view(1, 4, 3)
    own._emit_stage(2, stage, None, row)
    assert torch.equal(own["encoder.2.stage"], row)
    own._flatten = "image"
    own._emit_stage(3, stage, None, row)
    assert torch.equal(own["encoder.3.stage"], row.mT.flatten(1).unsqueeze(1))


def test_what_is_missing_is_listed_but_for_what_is_optional():
    """Attention that was asked for by name, and never came: the classes of the model's attention are named."""

    class Model(Stacked):
        pass

    model = Model(nn.Linear(3, 3), norm=False)
    model.zeta, model.eta = OwnAttention(), OwnAttention()
    with pytest.raises(tap.UnseenError) as raised:
        captured(model, "hidden", "value", "attention")
    assert raised.value.expected == "the model to compute attention, value"
    assert raised.value.got == (
        "nothing that can be captured; attention classes of Model: OwnAttention"
    )
    _, own, _ = captured(
        model, "hidden", "value", "attention", "final", optional=("value", "attention")
    )
    assert own.unseen == {"value", "attention"}
    assert own.optional >= {"final", "stage", "pre_relu", "value"}
    own.refused[("encoder", 1, "self")] = "why"
    own.unseen, own.running = set(), own.running
    own._finish(model, None, None)
    assert own.unseen == set()
    own._missed["encoder (a in Linear)"] = [1, 2, 3]
    own._finish(model, None, None)
    assert own.unseen == {"attention of layers 1–3 of encoder (a in Linear)"}
    own.optional = {"value"}
    with pytest.raises(tap.UnseenError, match="attention of layers 1 of encoder: why"):
        own._finish(model, None, None)


def test_what_was_captured_is_named_by_quantity_and_by_stage():
    own = a_tap(nn.Identity(), "hidden", "query", "attention")
    for site in (
        Site("encoder", 1, "hidden"),
        Site("encoder", 1, "query", "raw"),
        Site("encoder", 2, "attention"),
    ):
        own.emit(site, 1)
    assert own.fired == {"hidden", "query", "query.raw", "attention"}
    own.refuse(("encoder", 1, "self"), "why")
    assert own.fired == {"hidden", "attention"}
    assert own.sites == ["encoder.1.hidden", "encoder.2.attention"]
    own.note_looked_at()
    assert own.fired >= {"value", "scores", "extremes"}
    with pytest.raises(MeasureError) as raised:
        own["encoder.1.hiden"]
    assert raised.value.cure == "did you mean encoder.1.hidden?"
    own.kept.clear()
    with pytest.raises(MeasureError) as raised:
        own["encoder.1.hidden"]
    assert raised.value.cure == "run the model first"
    with pytest.raises(MeasureError) as raised:
        own.inside = True
        own.emit(Site("encoder", 2, "attention"), 1)
    assert raised.value.expected == (
        "one call at encoder.2.attention in a forward call of Identity"
    )


def test_final_vectors_go_with_the_last_layer_of_their_own_stack():
    own = a_tap(nn.Identity(), "hidden", "final")
    own._depth = {"encoder": 3, "decoder": 2}

    def asked(*layers):
        own.layers = layers
        sites = [
            Site(s, n, "hidden") for s, d in own._depth.items() for n in range(d + 1)
        ]
        sites += [Site(s, None, "final") for s in own._depth]
        return [
            site.name.removesuffix(".hidden")
            for site in sites
            if own.is_asked_for(site)
        ]

    assert asked(-1) == ["encoder.3", "decoder.2", "encoder.final", "decoder.final"]
    assert asked(2) == ["encoder.2", "decoder.2", "decoder.final"]
    assert asked(-3) == ["encoder.1", "decoder.0"]
    assert len(asked()) == 9


def test_kernels_are_noted_in_the_block_that_runs():
    """Loose is what runs outside of any call that was captured, once and for the whole block."""
    own = a_tap(nn.Identity())
    own.running["encoder"].block = nn.Identity()
    assert own.running["decoder"].block is None
    own._note_kernel("a")
    with entry_points.suspend():
        own._note_kernel("b")
    here = own.running["encoder"]
    assert here.kernels == ["a", "b"] and here.loose
    assert own.running["decoder"].kernels == []
    here.loose = False
    with entry_points.suspend():
        own._note_kernel("c")
    assert not here.loose


def test_a_block_begins_with_nothing_of_the_block_before():
    own = a_tap(nn.Identity(), "hidden")
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    own.running.clear()
    x = torch.ones(4, 2, 3)
    own._enter("encoder", first, first, (x,), {})
    here = own.running["encoder"]
    here.looks, here.loose, here.trouble = 3, True, "why"
    here.kernels.append("a")
    own._enter("encoder", second, second, (x + 1,), {})
    assert (here.looks, here.loose, here.trouble, here.kernels) == (0, False, "", [])
    assert (here.layer, here.sequences, here.positions) == (2, 4, 2)
    assert here.block is second and own.sites == ["encoder.0.hidden"]
    own.sequences = 1
    own._enter("encoder", nn.Linear(3, 3), first, (x,), {})
    assert (here.sequences, here.positions) == (1, 8)


def test_texts_of_blocks_for_two_are_a_stack_from_layer_0_on():
    class JointTransformerBlock(nn.Module):
        def forward(self, hidden_states, encoder_hidden_states):
            return encoder_hidden_states + 1, hidden_states * 2

    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            blocks = [JointTransformerBlock() for _ in range(2)]
            self.layers = nn.ModuleList(blocks)

        def forward(self, x):
            text = torch.zeros(2, 3, 3)
            for layer in self.layers:
                text, x = layer(hidden_states=x, encoder_hidden_states=text)
            return x

    found, own, _ = captured(Last(), "hidden", x=torch.ones(2, 4, 3))
    sums = {name: (tuple(x.shape), float(x[0, 0, 0])) for name, x in found.items()}
    assert sums == {
        "encoder.0.hidden": ((2, 4, 3), 1),
        "text.0.hidden": ((2, 3, 3), 0),
        "encoder.1.hidden": ((2, 4, 3), 2),
        "text.1.hidden": ((2, 3, 3), 1),
        "encoder.2.hidden": ((2, 4, 3), 4),
        "text.2.hidden": ((2, 3, 3), 2),
    }
    assert own._depth[vectors.TEXT] == 2


def test_options_of_a_capture_reach_its_tap():
    edges = torch.zeros(2)
    model = Stacked(nn.Linear(3, 3))
    with tap.capture(
        model,
        ("hidden",),
        blocks=("layers.*",),
        median=True,
        histogram=edges,
        flatten="image",
        tokens_first=True,
        optional=("value",),
        layers=[1, 2],
        fused=True,
    ) as own:
        assert own.heads.of_rows == {"median": True, "histogram": edges}
        assert (own._flatten, own._tokens_first) == ("image", True)
        assert own.optional == {"value", *tap.OPTIONAL}
        assert own.layers == (1, 2) and own.fused
        assert own._block_classes == ("layers.*",)
    with tap.capture(model, ("unrectified",), blocks=("layers.*",)) as own:
        assert own.wanted == {"pre_relu"}, "an older name"
    empty = Stacked(nn.Linear(3, 3, device="meta"), norm=False)
    with pytest.raises(vectors.ModelError), tap.capture(empty, blocks=("layers.*",)):
        pass
    with tap.capture(empty, blocks=("layers.*",), shapes_only=True) as own:
        empty(torch.ones(1, 2, 3, device="meta"))
        assert own["encoder.1.hidden"].shape == (1, 2, 3)
    with pytest.raises(UsageError) as raised, tap.capture(model, ("atention",)):
        pass
    assert raised.value.got == "'atention'"
    assert "did you mean attention?" in str(raised.value)


def test_a_forward_that_was_put_on_a_block_is_put_back():
    block, seen = nn.Linear(3, 3), []
    own = lambda x: x + 1  # noqa: E731
    block.forward = own
    x = torch.ones(1, 3)
    with vectors.wrap_forward(
        block,
        lambda *given: seen.append(given),
        lambda *given: seen.append(given),
    ):
        output = block(x)
    assert block.forward is own and torch.equal(output, x + 1)
    assert seen[0] == (block, (x,), {}) and seen[1][:2] == (block, (x,))
    assert seen[1][2] is output
    plain = nn.Linear(3, 3)
    with vectors.wrap_forward(plain, lambda *_: None, lambda *_: None):
        assert "forward" in vars(plain)
    assert "forward" not in vars(plain)


def test_types_are_described_to_their_last_part():
    described = vectors._describe_type((torch.ones(1), [3, {"b": 1, "a": 2}], None))
    assert described == (
        "(a tensor of torch.float32, (int, a mapping of b, a), NoneType)"
    )
    with pytest.raises(MeasureError) as raised:
        vectors.find_input(nn.Identity(), (1,), {"x": "text"})
    assert raised.value.got == "(int, str)"
    meta = nn.Sequential(nn.Linear(2, 2, device="meta"))
    with pytest.raises(vectors.ModelError) as wrong:
        vectors.check_values(meta)
    assert wrong.value.got == "0 on the meta device, which has shapes only"


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
    query, key = drawn(3, 4, 5, 3).float(), drawn(3, 2, 7, 3, seed=1).float()
    of_keys = torch.tensor(
        [[1, 1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1], [0, 1, 0, 1, 1, 0, 1]]
    ).bool()[:, None, None]
    longer = torch.cat([of_keys, torch.zeros(3, 1, 1, 2, dtype=torch.bool)], -1)
    late = torch.tensor([0, 2, 1])
    ranges = (torch.arange(7) >= late[:, None])[:, None, None]
    pairs = (drawn(3, 1, 5, 7, seed=5) > -0.7) & of_keys
    by_head = (drawn(1, 4, 1, 7, seed=6) > -0.4).expand(3, -1, -1, -1)
    nan_key, inf_query = key.clone(), query.clone()
    nan_key[1, 1, 3, 0], nan_key[0, 0, 4, 2] = math.nan, math.inf
    inf_query[2, 1, 1, 0] = -math.inf
    bias = 150 * drawn(1, 4, 5, 7, seed=7).float()
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
    query, key = drawn(1, 2, 4, 8).to(dtype), drawn(1, 2, 5, 8, seed=1).to(dtype)
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


class Between(nn.Module):
    """Norms between blocks, and two heads behind the last one, each with its norm."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        norms = [nn.LayerNorm(3) for _ in range(3)]
        for number, norm in enumerate(norms):
            norm.bias.data += number
        self.between, self.first, self.second = norms

    def forward(self, x):
        x = self.layers[0](x)
        self.between(x)
        x = self.layers[1](x)
        return self.first(x), self.second(x)


def test_of_several_norms_the_first_one_behind_the_last_block_is_final():
    found, _, (first, second) = captured(Between(), "final")
    assert torch.equal(found["encoder.final"], first)
    assert not torch.equal(first, second)


class Gelu(nn.Module):
    def __init__(self):
        super().__init__()
        self.act = nn.GELU()

    def forward(self, x):
        return self.act(x)


def test_only_a_relu_is_a_relu():
    found, _, _ = captured(Stacked(Gelu(), Residual(True), norm=False), "pre_relu")
    assert [*found] == ["encoder.2.pre_relu"]


def test_attention_classes_are_named_in_order_if_nothing_was_captured():
    class ZetaAttention(nn.Module):
        pass

    model = Stacked(nn.Linear(3, 3), norm=False)
    model.zeta, model.own, model.more = ZetaAttention(), OwnAttention(), OwnAttention()
    own = a_tap(model)
    assert own._explain_missing() == (
        "nothing that can be captured; attention classes of Stacked: OwnAttention, ZetaAttention"
    )
    assert a_tap(nn.Identity())._explain_missing().endswith("Identity: none")


def test_attention_of_a_receiver_is_not_attention_of_the_model():
    own, seen = a_tap(nn.Identity()), []
    own._receive = lambda *_: seen.append(
        (entry_points.is_suspended(), own.counting.quiet)
    )
    own.emit(Site("encoder", 1, "attention"), 1)
    assert seen == [(True, True)] and not entry_points.is_suspended()
    assert not own.counting.quiet


def test_projections_are_hooked_for_keys_alone_too():
    class Rotary(nn.Module):
        pass

    block = nn.Sequential(OwnAttention(), Rotary())
    for name in ("q_proj", "k_proj"):
        setattr(block[0], name, nn.Linear(3, 3))
    for wanted, hooked in (
        ("query", True),
        ("key.raw", True),
        ("key", True),
        ("value", False),
        ("hidden", False),
    ):
        model = Stacked(block, norm=False)
        with tap.capture(model, (wanted,), blocks=("layers.*",)) as own:
            assert bool(own.heads.sources) is hooked, wanted


class Chain(nn.Module):
    """Blocks of two modules in a row each, in lists of their own."""

    def __init__(self):
        super().__init__()
        self.firsts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.lasts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        for first, last in zip(self.firsts, self.lasts, strict=True):
            x = last(first(x))
        return x


def test_a_block_of_several_modules_begins_with_its_first_and_ends_with_its_last(
    monkeypatch,
):
    model, x = Chain(), torch.ones(2, 4, 3)
    parts = [[*pair] for pair in zip(model.firsts, model.lasts, strict=True)]
    monkeypatch.setattr(tap, "find_parts", lambda _: parts)
    monkeypatch.setattr(tap, "find_blocks", lambda *_: {"encoder": [*model.lasts]})
    monkeypatch.setattr(tap, "find_stages", lambda _: [*model.firsts])
    seen: dict[str, Tensor] = {}
    with tap.capture(
        model, ("hidden", "stage"), receive=lambda s, v: seen.update({s.name: v})
    ) as own:
        output = model(x)
        inside = own._hook_blocks({})
        assert inside == set()
    assert torch.equal(seen["encoder.0.hidden"], x)
    assert torch.equal(seen["encoder.1.hidden"], model.lasts[0](model.firsts[0](x)))
    assert torch.equal(seen["encoder.2.hidden"], output)
    assert [name for name in seen if "stage" in name] == [
        "encoder.1.stage",
        "encoder.2.stage",
    ]
    assert torch.equal(seen["encoder.1.stage"], model.firsts[0](x))


def test_a_last_block_that_drops_its_text_is_no_layer_of_texts():
    class FluxTransformerBlock(nn.Module):
        context_pre_only = False

        def forward(self, hidden_states, encoder_hidden_states):
            text = None if self.context_pre_only else encoder_hidden_states + 1
            return text, hidden_states

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(FluxTransformerBlock() for _ in range(2))
            self.layers[1].context_pre_only = True

        def forward(self, x):
            text = torch.zeros(2, 3, 3)
            for layer in self.layers:
                text, x = layer(hidden_states=x, encoder_hidden_states=text)
            return x

    found, own, _ = captured(Two(), "hidden")
    assert own._depth == {"encoder": 2, "text": 1}
    assert [name for name in found if name.startswith("text")] == [
        "text.0.hidden",
        "text.1.hidden",
    ]
    found, _, _ = captured(Two(), "hidden", layers=(-1,))
    assert found.keys() == {"encoder.2.hidden", "text.1.hidden"}


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
    q = drawn(2, 3, 4)
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
    q = drawn(2, 3, 4)
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
    for name in entry_points.HEADS:
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
    like = drawn(2, 3, 3, 4)
    rotated = like.flip(-1)
    align = projections._align_axes
    assert align(rotated, like) is rotated
    turned = rotated.transpose(1, 2).contiguous()
    assert torch.equal(align(turned, like), rotated)
    other = drawn(2, 3, 5, 4)
    assert torch.equal(align(other.transpose(1, 2), other), other)
    assert align(other, other) is other
