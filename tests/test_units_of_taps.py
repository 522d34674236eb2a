"""Blocks of a model on their way through a tap: layers, stages, norms, texts, and what is missing at the end."""

import warnings
from typing import Any

import pytest
import torch
from random_numbers import draw_tensor
from torch import Tensor, nn

from anisoscope.axes import Site
from anisoscope.capture import (
    entry_points,
    tap,
    vectors,
)
from anisoscope.capture.masking import Masking
from anisoscope.errors import MeasureError, UsageError

NONE = Masking(None, False, None)


class OwnAttention(nn.Module):
    """An attention module by its name."""


def a_tap(model, *wanted, **how):
    own = tap.Tap(
        model, frozenset(wanted or {"attention"}), None, "position", None, **how
    )
    for here in ("encoder",):
        own.running[here].layer = 2
    return own


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
        weight.data = draw_tensor(*weight.shape, seed=number).float()
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


def test_tokens_may_come_first_and_that_is_given_or_read():
    x = torch.arange(24.0).view(4, 2, 3)
    for given, expected in ((True, x.transpose(0, 1)), (False, x), (None, x)):
        found, _, _ = captured(
            Stacked(Turned(), norm=False), "hidden", x=x, tokens_first=given
        )
        assert torch.equal(found["encoder.0.hidden"], expected)
    layer = nn.TransformerEncoderLayer(4, 2, 4, 0.0)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    x = torch.arange(24.0).view(3, 2, 4)
    for given, expected in ((None, x.transpose(0, 1)), (False, x)):
        found, _, _ = captured(model, "hidden", x=x, tokens_first=given)
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
