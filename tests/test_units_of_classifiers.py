"""Parts of what asks classifiers, on numbers by hand: heads, replaced attention, captured texts, erasure."""

import math
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from anisoscope.axes import Site
from anisoscope.batch import Batch, Stream
from anisoscope.capture.masking import Masking
from anisoscope.classes import (
    ablation,
    attributions,
    cls_entropy,
    faithfulness,
    pooling,
    readout,
    sentence,
)
from anisoscope.classes.attributions import CapturedText
from anisoscope.classes.readout import HeadReading
from anisoscope.data.encoding import Encoded, Padding
from anisoscope.data.labelled import Example, LabelledCorpus
from anisoscope.errors import MeasureError, UsageError


def masks_of(*rows: str) -> Any:
    """Masks of tokens as text: x where one counts."""
    return torch.tensor([[letter == "x" for letter in row] for row in rows])


def batch_of(
    mask: Any, units: Any = None, stack: str = "encoder", **inputs: Any
) -> Batch:
    unit = torch.arange(len(mask)) if units is None else torch.tensor(units)
    start = torch.zeros(len(mask), dtype=torch.int64)
    stream = Stream(mask, torch.zeros_like(mask), start)
    return Batch(inputs, unit, {stack: stream})


# ---- what a head reads -----------------------------------------------------------------------------------------------


def test_the_vectors_of_an_output_are_replaced_and_nothing_else() -> None:
    old, new, other = torch.zeros(1), torch.ones(1), torch.zeros(1)
    replace = readout._replace_vectors
    assert replace(old, old, new) is new and replace(other, old, new) is other
    found = replace((old, other, None), old, new)
    assert type(found) is tuple and found[0] is new and found[1:] == (other, None)
    found = replace([old, old], old, new)
    assert type(found) is list and found[0] is new and found[1] is old
    nested = replace(((old, other), 3), old, new)
    assert nested[0][0] is new and nested[0][1] is other and nested[1] == 3
    named = {"cache": other, "states": old}
    assert replace(named, old, new) is named
    assert named["states"] is new and named["cache"] is other
    assert replace((), old, new) == () and replace(None, old, new) is None


def test_real_tokens_are_those_of_the_stack_or_of_the_only_one() -> None:
    one, two = masks_of("x."), masks_of("xx")
    streams = {
        name: SimpleNamespace(mask=mask)
        for name, mask in (("encoder", one), ("decoder", two))
    }
    find = readout.find_real_tokens
    assert find(streams, "encoder") is one and find(streams, "decoder") is two
    assert find({"encoder": streams["encoder"]}, "decoder") is one
    for given, got in ((streams, "encoder, decoder"), ({}, "no streams")):
        with pytest.raises(MeasureError) as caught:
            find(given, "vision")
        assert str(caught.value) == (
            "expected a batch whose `streams` say which tokens of the vision are real; "
            f"got {got}. Cure: add an entry named 'vision' to `streams`"
        )


class Blocks(torch.nn.Module):
    """Two blocks that add 1 to every vector, a norm that halves them, and a head that `read` makes of both."""

    def __init__(self, read: Any) -> None:
        super().__init__()

        class Block(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x + 1

        class HalvingNorm(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x / 2

        self.layers = torch.nn.ModuleList([Block(), Block()])
        self.norm = HalvingNorm()
        self.head = torch.nn.Linear(2, 3)
        self.read = read

    def forward(self, x: Any) -> Any:
        for block in self.layers:
            x = block(x)
        return self.head(self.read(x, self.norm(x)))


@pytest.fixture
def named_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of `Blocks` are blocks of an encoder, sequences first."""
    monkeypatch.setattr(readout, "find_blocks", lambda m: {"encoder": list(m.layers)})
    monkeypatch.setattr(readout, "has_tokens_first", lambda *_: False)


REAL = masks_of("xxx", "xx.")
X = torch.arange(12.0).view(2, 3, 2)
LAST = torch.tensor([2, 1])


@pytest.mark.parametrize(
    ("read", "at", "weights"),
    [
        (lambda x, _: x[:, 0], "first", [[1, 0, 0], [1, 0, 0]]),
        (lambda _, y: y[:, 0], "first", [[1, 0, 0], [1, 0, 0]]),
        (lambda x, _: x[[0, 1], LAST], "last", [[0, 0, 1], [0, 1, 0]]),
        (lambda _, y: (y * REAL[..., None]).sum(1), "mean", [[1 / 3] * 3, [1 / 2, 1 / 2, 0]]),
        # a quarter through the block alone, the rest through the norm
        (lambda x, y: x[:, 1] + 3 * y[:, 0], None, [[0.75, 0.25, 0]] * 2),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("named_blocks")
def test_what_a_head_reads_of_the_last_block_and_of_the_norm_after_it(
    read: Any, at: str | None, weights: Any
) -> None:
    model = Blocks(read).train()
    found = readout.read_tokens(model, batch_of(REAL, x=X.clone()))
    assert found.at == at and found.stack == "encoder"
    np.testing.assert_allclose(found.weights, weights)
    assert torch.equal(found.mask, REAL) and found.logits.shape == (2, 3)
    assert not found.logits.requires_grad and model.training and torch.is_grad_enabled()
    plain = model(X.clone())
    torch.testing.assert_close(found.logits, plain.detach())
    with torch.no_grad():
        readout.read_tokens(model, batch_of(REAL, x=X.clone()))
        assert not torch.is_grad_enabled()
    assert all(not module._forward_hooks for module in model.modules())


def test_of_two_stacks_in_turn_the_head_reads_the_one_that_ran_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks run without gradients, whatever came before them."""
    enabled: list[bool] = []

    class Block(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            enabled.append(torch.is_grad_enabled())
            return x + 1

    class InTurn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Block() for _ in range(3))
            self.head = torch.nn.Linear(2, 3)

        def forward(self, x: Any) -> Any:
            first = self.layers[0](x)
            other = self.layers[1](first)
            last = self.layers[2](first)
            return self.head(last[:, 0] + other[:, 1])

    monkeypatch.setattr(
        readout, "find_blocks", lambda m: {"a": [m.layers[0], m.layers[2]], "b": [m.layers[1]]}
    )  # fmt: skip
    monkeypatch.setattr(readout, "has_tokens_first", lambda *_: False)
    batch = batch_of(REAL, stack="a", x=X.clone())
    batch.streams["b"] = batch.streams["a"]
    found = readout.read_tokens(InTurn(), batch)
    assert (found.stack, found.at) == ("a", "first")
    assert enabled == [False] * 3


@pytest.mark.usefixtures("named_blocks")
def test_a_head_that_cannot_be_read_says_why() -> None:
    def fail(error: Exception) -> Any:
        def read(*_: Any) -> Any:
            raise error

        return read

    def refused(read: Any) -> str:
        with pytest.raises(MeasureError) as caught:
            readout.read_tokens(Blocks(read), batch_of(REAL, x=X.clone()))
        return str(caught.value)

    assert refused(lambda x, _: x) == (
        "expected a head of Blocks that names a class for each sequence; "
        "got logits of shape (2, 3, 3). Cure: name a classifier of sequences"
    )
    assert refused(fail(RuntimeError("no  kernel\nfor this"))) == (
        "expected a head of Blocks that can be differentiated; "
        "got RuntimeError: no kernel for this. Cure: load it in float32"
    )
    assert refused(lambda x, _: x[:, 0].detach() * 0) == (
        "expected logits of Blocks that depend on the last hidden states; "
        "got no gradient there. Cure: name a classifier whose head reads its last block"
    )
    with pytest.raises(torch.OutOfMemoryError):
        readout.read_tokens(
            Blocks(fail(torch.OutOfMemoryError("CUDA out of memory"))),
            batch_of(REAL, x=X.clone()),
        )


def test_gradients_of_turned_stacks_are_turned_back_and_those_of_others_left_out() -> (
    None
):
    turned = torch.ones(3, 2, 4, requires_grad=True)
    plain = torch.ones(2, 3, 4, requires_grad=True)
    unread = torch.ones(2, 3, 4, requires_grad=True)
    states: Any = SimpleNamespace(
        variables={"a": [turned], "b": [plain, unread]}, turned={"a"}
    )
    logits = torch.stack([turned[1].sum(1) + plain[:, 2].sum(1)] * 2, 1)
    found = readout._differentiate(logits, states)
    assert [len(of_stack) for of_stack in found.values()] == [1, 1]
    assert found["a"][0].shape == found["b"][0].shape == (2, 3, 4)
    assert found["a"][0].any(-1).tolist() == [[False, True, False]] * 2
    assert found["b"][0].any(-1).tolist() == [[False, False, True]] * 2
    assert readout._differentiate(logits.detach(), states) == {"a": [], "b": []}


def test_ways_of_reading_that_no_padding_and_no_single_token_feigns() -> None:
    def way(*sequences: Any, mask: Any) -> str | None:
        return readout._find_way(torch.tensor(sequences), mask)

    one, two = [1.0, 0.0], [0.0, 2.0]
    none = [0.0, 0.0]
    assert way([none, [1.0, 2.0]], mask=masks_of(".x")) == "first"
    # the largest of each dimension, of two tokens, and of one
    assert way([one, two], [[3.0, 1.0], none], mask=masks_of("xx", "x.")) == "max"
    assert way([one, two], mask=masks_of("x.")) is None
    assert way([one, [1.0, 2.0]], mask=masks_of("xx")) is None
    # a mean has one gradient for every token, each dimension its own
    assert way([[1.0, 5.0], [1.0, 5.0]], mask=masks_of("xx")) == "mean"
    assert way([[1.0, 5.0], [1.0, 4.9]], mask=masks_of("xx")) is None
    assert way([[1.0, 5.0], [1.0, 5.0]], mask=masks_of("x.")) is None
    logits = torch.zeros(2, 2)
    gradient = torch.tensor([[[1.0], [0.0], [0.0]], [[0.0], [0.0], [0.0]]])
    found = readout._decide_reading("e", gradient, masks_of("xx", ".x"), logits, "M")
    assert found.at == "first" and found.weights.tolist() == [[1, 0], [0, 1]]
    assert found.stack == "e" and found.logits is logits


# ---- replaced attention ----------------------------------------------------------------------------------------------


def test_tokens_are_stretched_from_the_first_to_the_last() -> None:
    tokens = torch.tensor([3, 5, 8, 9])
    for length, chosen in (
        (1, [3]), (2, [3, 9]), (3, [3, 8, 9]), (4, [3, 5, 8, 9]),
        (7, [3, 3, 5, 8, 8, 8, 9]),
    ):  # fmt: skip
        assert ablation._stretch(tokens, length).tolist() == chosen
    assert ablation._stretch(tokens[:1], 3).tolist() == [3, 3, 3]


def test_each_sentence_gets_the_weights_of_the_next_stretched_to_its_length() -> None:
    """Two tokens, three behind padding, one; the last gets those of the first."""
    mask = masks_of("xx..", ".xxx", "x...")
    weights = torch.zeros(3, 1, 4, 4)
    weights[0, 0, :2, :2] = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    weights[1, 0, 1:, 1:] = torch.tensor(
        [[0.6, 0.3, 0.1], [0.2, 0.2, 0.6], [0.5, 0.3, 0.2]]
    )
    weights[2, 0, 0, 0] = 1
    found = ablation.replace_weights(weights, mask, "another")
    # first and last of three, without what the middle one had
    rows = torch.tensor([[0.6, 0.1], [0.5, 0.2]])
    torch.testing.assert_close(found[0, 0, :2, :2], rows / rows.sum(1, keepdim=True))
    torch.testing.assert_close(found[1, 0, 1:, 1:], torch.full((3, 3), 1 / 3))
    assert found[2, 0, 0, 0] == 1
    assert float(found.sum()) == pytest.approx(6)
    # alone in its batch: those of the sentence that is handed over
    alone = ablation.replace_weights(
        weights[:1], mask[:1], "another", other=(weights[1:2], mask[1:2])
    )
    torch.testing.assert_close(alone, found[:1])
    same = ablation.replace_weights(weights[:1], mask[:1], "another")
    torch.testing.assert_close(same, weights[:1])
    # what may be seen: nothing behind; a row without any weight left is even
    allowed = torch.ones(4, 4).tril().bool().expand(3, 1, 4, 4).clone()
    allowed[0, 0, 1] = torch.tensor([False, True, True, True])
    limited = ablation.replace_weights(weights, mask, "another", allowed=allowed)
    assert limited[0, 0, :2, :2].tolist() == [[1, 0], [0, 1]]
    assert limited[1, 0, 3, 1:].tolist() == pytest.approx([1 / 3] * 3)
    assert limited[1, 0, 1, 1:].tolist() == [1, 0, 0]
    taken = torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
    hidden = torch.tensor([[[False, True], [True, True]]])
    found = ablation._limit_to_allowed(taken, hidden)
    assert found.tolist() == [[[0, 1], [0.25, 0.75]]]


def test_even_weights_are_over_what_each_query_may_see() -> None:
    allowed = torch.ones(3, 3).tril().bool()[None, None]
    weights = torch.rand(1, 2, 3, 3, dtype=torch.float64)
    found = ablation.replace_weights(
        weights, masks_of("xxx"), "uniform", allowed=allowed
    )
    assert found.dtype == torch.float64 and found.shape == weights.shape
    for head in (0, 1):
        assert found[0, head].tolist() == [
            [1, 0, 0], [0.5, 0.5, 0], [pytest.approx(1 / 3)] * 3,
        ]  # fmt: skip


def call_of(weights: Any, value: Any, **settings: Any) -> Any:
    """A stand-in for an attention call: all queries see all keys, two heads share a value."""
    return SimpleNamespace(
        query=torch.zeros(*weights.shape[:3], 1),
        key=torch.zeros(*value.shape[:3], 1),
        value=value,
        weights=lambda: weights,
        masking=Masking(None, False, None),
        settings=settings,
    )


def random_weights(*shape: int, seed: int = 0) -> Any:
    x = torch.rand(*shape, generator=torch.Generator().manual_seed(seed))
    return x / x.sum(-1, keepdim=True)


def test_attention_is_replaced_in_its_layers_and_every_output_is_of_its_own_heads() -> (
    None
):
    weights = [random_weights(2, 4, 3, 3, seed=k) for k in (0, 1)]
    value = torch.randn(2, 2, 3, 5, generator=torch.Generator().manual_seed(9))
    made = ablation.Ablation("uniform", (2,))
    for batch in range(2):
        made.begin(masks_of("xxx", "xxx"), 0, torch.eye(3)[[1, 2]])
        outputs = [made.attend(call_of(w, value)) for w in weights]
        assert made.layer == 2 and list(made.cosine) == [2]
        assert len(made.cosine[2]) == batch + 1
    plain = [
        torch.stack([w[:, h] @ value[:, h // 2] for h in range(4)], 2) for w in weights
    ]
    torch.testing.assert_close(outputs[0], plain[0])
    even = value.mean(2, keepdim=True).expand(-1, -1, 3, -1)
    even = even.repeat_interleave(2, 1).transpose(1, 2)
    torch.testing.assert_close(outputs[1], even)
    assert outputs[0].is_contiguous()
    cosine = torch.nn.functional.cosine_similarity(plain[1], even, dim=-1).mean(2)
    expected = torch.stack([cosine[[0, 1], [1, 2]], cosine.mean(1)], 1)
    np.testing.assert_allclose(made.cosine[2][1], expected, atol=1e-5)
    assert {layer: w.shape for layer, (w, _) in made.others.items()} == {
        1: (1, 4, 3, 3), 2: (1, 4, 3, 3),
    }  # fmt: skip
    for layer in (1, 2):
        torch.testing.assert_close(made.others[layer][0], weights[layer - 1][-1:])


def test_a_sentence_alone_gets_those_of_the_last_of_the_batch_before() -> None:
    """In each layer those of this layer; masks go with them."""
    before = [random_weights(2, 1, 3, 3, seed=k) for k in (0, 1)]
    alone = [random_weights(1, 1, 2, 2, seed=k) for k in (2, 3)]
    made = ablation.Ablation("another", (1, 2))
    made.begin(masks_of("xx.", "xxx"), 0)
    for w in before:
        made.attend(call_of(w, torch.zeros(2, 1, 3, 1)))
    made.begin(masks_of("xx"), 0)
    for w, of_layer in zip(alone, before, strict=True):
        value = torch.eye(2)[None, None]
        found = made.attend(call_of(w, value))[0, :, 0]
        taken = of_layer[1, 0][[0, 2]][:, [0, 2]]
        torch.testing.assert_close(found, taken / taken.sum(1, keepdim=True))


def test_each_layer_is_permuted_in_its_own_way_and_sinks_keep_their_share() -> None:
    weights = random_weights(1, 1, 9, 9)
    value = torch.eye(9)[None, None]

    def attend(kind: str, seed: int, share: float = 1.0, **settings: Any) -> Any:
        made = ablation.Ablation(kind, (1, 2))
        made.begin(torch.ones(1, 9, dtype=torch.bool), seed)
        call = call_of(weights * share, value, **settings)
        return [made.attend(call)[0, :, 0] for _ in range(2)]

    first, second = attend("permuted", 5)
    assert not torch.equal(first, second)
    torch.testing.assert_close(first.sort(1).values, second.sort(1).values)
    again, _ = attend("permuted", 6)
    torch.testing.assert_close(again, second)
    with_sink, _ = attend("uniform", 0, 0.75, s_aux=torch.zeros(1))
    torch.testing.assert_close(with_sink, torch.full((9, 9), 0.75 / 9))
    without, _ = attend("uniform", 0, 0.75)
    torch.testing.assert_close(without, torch.full((9, 9), 1 / 9))
    permuted, _ = attend("permuted", 5, 0.75, s_aux=torch.zeros(1))
    torch.testing.assert_close(permuted, first * 0.75)
    # a causal call: what is behind a token stays hidden
    made = ablation.Ablation("uniform", (1,))
    made.begin(torch.ones(1, 9, dtype=torch.bool), 0)
    call = call_of(weights, value)
    call.masking = Masking(None, True, None)
    found = made.attend(call)[0, :, 0]
    assert found[0].tolist() == [1] + [0] * 8 and float(found[3, 3]) == 0.25


class Classified(torch.nn.Module):
    """A classifier whose base calls attention in two layers, and whose logits are its first two states."""

    base_model_prefix = "base"

    def __init__(self, base: bool = True) -> None:
        super().__init__()
        self.attend: Any = None
        self.calls = 2
        if base:
            self.base = torch.nn.Identity()

    def forward(self, x: Any) -> Any:
        for _ in range(self.calls):
            self.attend("call")
        (states,) = self.base((x,))
        return states[:, 0, :2]


def test_what_a_classifier_decides_is_in_the_order_of_the_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Any] = []

    class Recording(ablation.Ablation):
        def begin(self, mask: Any, seed: int, read: Any = None) -> None:
            begun.append((mask, seed, read))
            self.layer = 0

        def attend(self, _call: Any) -> Any:
            self.layer += 1
            if self.layer in self.layers:
                mask, seed, _ = begun[-1]
                rows = np.arange(2.0 * len(mask)).reshape(-1, 2) + seed + self.layer
                self.cosine.setdefault(self.layer, []).append(rows)

    @contextmanager
    def intercept(model: Any, attend: Any) -> Any:
        model.attend = attend
        yield

    monkeypatch.setattr(ablation, "Ablation", Recording)
    monkeypatch.setattr(ablation, "intercept_attention", intercept)
    masks = [masks_of("xx", "x."), masks_of("xx")]
    x = torch.tensor([[[3.0, 4.0], [9, 9]], [[0.0, 2.0], [9, 9]], [[5.0, 0.0], [1, 1]]])
    batches: Any = [
        batch_of(masks[0], units=[2, 0], x=x[:2]),
        batch_of(masks[1], units=[1], x=x[2:]),
    ]
    readings = []
    for mask in masks:
        weights = torch.zeros(mask.shape, dtype=torch.float64)
        weights[:, 0] = 1
        logits = torch.zeros(len(mask), 2)
        readings.append(HeadReading("encoder", "first", weights, mask, logits))
    model = Classified().train()
    found = ablation.measure_outcomes(model, batches, "uniform", (2,), readings)
    assert found.found.tolist() == [1, 0, 1] and model.training
    np.testing.assert_allclose(found.final, [[0, 1], [1, 0], [0.6, 0.8]])
    assert {k: v.tolist() for k, v in found.turned.items()} == {
        2: [[4, 5], [1002, 1003], [2, 3]]
    }
    assert [seed for _, seed, _ in begun] == [0, 1000]
    for (mask, _, read), reading in zip(begun, readings, strict=True):
        assert mask is reading.mask and read is reading.weights
    assert not model.base._forward_hooks
    monkeypatch.setattr(
        ablation, "read_tokens", lambda _, batch: readings[2 - len(batch.unit)]
    )

    class Plan(list[Any]):
        stacks = ("encoder",)

    begun.clear()
    # What the head reads of each batch is found out if it is not handed over.
    plan: Any = Plan(batches)
    unread = ablation.measure_outcomes(model, plan, "uniform", (2,))
    assert [id(read) for _, _, read in begun] == [id(one.weights) for one in readings]
    assert unread.final.tolist() == found.final.tolist()
    ids, final, means = ablation_average(monkeypatch, model)
    assert ids == "found" and final == "final"
    assert means == {3: (2.0, 5.0), 1: (0.5, 1.0)}
    with pytest.raises(MeasureError) as caught:
        ablation.measure_outcomes(model, batches, "uniform", (3, 2, 4), readings)
    assert str(caught.value) == (
        "expected attention of layers 3, 4 to go through transformers' attention interface; "
        "got 2 calls of that interface in Classified. Cure: leave ablation out: --parts directions,attribution"
    )
    with pytest.raises(
        MeasureError, match="with a base model under its head; got Classified"
    ):
        ablation.measure_outcomes(
            Classified(base=False), batches, "uniform", (), readings
        )


def ablation_average(monkeypatch: pytest.MonkeyPatch, model: Any) -> Any:
    """The means of an outcome with two layers: of the token that is read, then of all."""
    turned = {
        3: np.array([[1.0, 4.0], [3.0, 6.0]]),
        1: np.array([[0.0, 1.0], [1.0, 1.0]]),
    }
    given: list[Any] = []

    def measure(*asked: Any) -> Any:
        given.append(asked)
        return SimpleNamespace(found="found", final="final", turned=turned)

    with monkeypatch.context() as patched:
        patched.setattr(ablation, "measure_outcomes", measure)
        found = ablation.average_outcome(model, "batches", "another", (3, 1))  # type: ignore[arg-type]
    assert given == [(model, "batches", "another", (3, 1))]
    return found


def test_attention_of_an_encoder_and_decoder_is_not_replaced() -> None:
    plan: Any = SimpleNamespace(stacks=("encoder", "decoder"))
    with pytest.raises(
        MeasureError,
        match=r"one stack of blocks; got Classified, an encoder–decoder. Cure: leave",
    ):
        ablation.read_batches(Classified(), plan)


# ---- captured texts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_head", "words", "crossed", "fits"),
    [
        ("xx.", "xx.", False, True),
        ("xxx", "xx.", False, False),
        ("xxx", "xx.", True, True),
        ("xx", "xx.", False, False),
        ("xx", "xx.", True, False),
    ],
)
def test_a_head_reads_the_tokens_of_the_words(
    of_head: str, words: str, crossed: bool, fits: bool
) -> None:
    reading: Any = SimpleNamespace(mask=masks_of(of_head), stack="decoder")
    if fits:
        attributions._check_tokens(reading, masks_of(words), crossed=crossed)
        return
    with pytest.raises(MeasureError) as caught:
        attributions._check_tokens(reading, masks_of(words), crossed=crossed)
    assert str(caught.value) == (
        "expected a head that reads the tokens of words; got decoder, whose positions are not those of the words. "
        "Cure: measure only its directions: --parts directions"
    )


def watched(crossed: bool = False, keys: tuple[int, ...] = (1, 2)) -> Any:
    """Two texts of three positions in two layers: states [text, position, 2], two heads of two dimensions each."""
    made: Any = attributions._Capture("encoder", "cross" if crossed else "self")
    draw = torch.Generator().manual_seed(0)
    for layer in (2, 1):
        made.states[layer] = torch.randn(2, 3, 2, generator=draw)
        for name in ("key", "value"):
            if name == "value" or layer in keys:
                made.of_heads[name][layer] = torch.randn(2, 2, 3, 2, generator=draw) * 3
        made.attention[layer] = torch.rand(2, 3, 3, generator=draw)
    return made


def test_vectors_are_of_spaces_that_every_layer_shows_with_heads_side_by_side() -> None:
    seen = watched(keys=(2,))
    spaces = attributions._list_spaces(seen, [1, 2], crossed=False)
    assert list(spaces) == ["hidden", "value"]
    assert [id(x) for x in spaces["hidden"]] == [id(seen.states[k]) for k in (1, 2)]
    for layer in (1, 2):
        value = seen.of_heads["value"][layer]
        joined = spaces["value"][layer - 1]
        assert torch.equal(joined, torch.cat([value[:, 0], value[:, 1]], -1))
    crossed = attributions._list_spaces(watched(), [1, 2], crossed=True)
    assert list(crossed) == ["key", "value"]


def test_each_text_has_what_its_own_row_and_tokens_show() -> None:
    """The head reads by shares; the first text is padded on the right, the second on the left."""
    words = masks_of("xx.", ".xx")
    seen = watched()
    del seen.attention[1]
    weights = torch.tensor([[0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]).double()
    reading = HeadReading("encoder", None, weights, words, torch.zeros(2, 2))
    logits = torch.tensor([[0.5, 1.5], [2.5, -1.0]])
    batch = batch_of(words, units=[7, 4])
    found = dict(
        attributions._iter_captured_of_batch(
            batch, seen, reading, words, logits, crossed=False
        )
    )
    assert list(found) == [7, 4]
    for row, (unit, places) in enumerate(((7, [0, 1]), (4, [1, 2]))):
        one = found[unit]
        assert one.found == int(logits[row].argmax()) and not one.crossed
        assert one.logits.tolist() == logits[row].tolist()
        share = weights[row, places] / weights[row, places].sum()
        assert one.read.tolist() == pytest.approx(share.tolist())
        assert one.attention[0] is None
        own = seen.attention[2][row][places][:, places].numpy()
        np.testing.assert_allclose(one.attention[1], own)
        for layer in (1, 2):
            states = seen.states[layer][row, places].double().numpy()
            length = np.linalg.norm(states, axis=1, keepdims=True)
            np.testing.assert_allclose(
                one.vectors["hidden"][layer - 1], states / length
            )
            of_heads = seen.of_heads["value"][layer][row, :, places].double()
            value = torch.cat([of_heads[0], of_heads[1]], 1).numpy()
            norms = np.linalg.norm(value, axis=1)
            np.testing.assert_allclose(one.norms[layer - 1], norms)
            np.testing.assert_allclose(
                one.vectors["value"][layer - 1], value / norms[:, None]
            )
            pooled = weights[row].double().numpy() @ seen.states[layer][row].double().numpy()  # fmt: skip
            np.testing.assert_allclose(
                one.pooled[layer - 1], pooled / np.linalg.norm(pooled), rtol=1e-6
            )


def test_of_a_decoder_queries_are_its_own_and_keys_are_the_words() -> None:
    words, of_decoder = masks_of("xx."), masks_of("..x")
    seen = watched(crossed=True)
    seen.states = {layer: x[:1] for layer, x in seen.states.items()}
    reading = HeadReading(
        "decoder", "last", torch.tensor([[0.0, 0, 1]]), of_decoder, torch.zeros(1, 2)
    )
    ((_, one),) = attributions._iter_captured_of_batch(
        batch_of(words), seen, reading, words, torch.tensor([[1.0, 0]]), crossed=True
    )
    assert one.crossed and one.read.tolist() == [1]
    assert set(one.vectors) == {"key", "value"}
    assert one.vectors["key"][0].shape == (2, 4)
    np.testing.assert_allclose(one.attention[1], seen.attention[2][0, 2:, :2].numpy())


@pytest.mark.parametrize(
    ("stacks", "stack", "crossed"),
    [
        (("encoder",), "encoder", False),
        (("encoder", "decoder"), "decoder", True),
        (("encoder", "decoder"), "encoder", False),
    ],
)
def test_texts_are_captured_batch_by_batch_and_notes_are_made_once(
    monkeypatch: pytest.MonkeyPatch, stacks: Any, stack: str, crossed: bool
) -> None:
    mask = masks_of("xx")
    model: Any = torch.nn.Linear(1, 1)
    made: list[Any] = []
    batches = [batch_of(mask, units=[n], input_ids=n) for n in (5, 3)]

    class Plan(list[Any]):
        pass

    plan: Any = Plan(batches)
    plan.stacks = stacks

    @contextmanager
    def capture(_model: Any, sites: Any, receive: Any, optional: Any) -> Any:
        assert sites == ("hidden", "key.raw", "value") and optional == sites[1:]
        tap = SimpleNamespace(refused={}, receive=receive)
        made.append(tap)
        yield tap

    monkeypatch.setattr(attributions, "capture", capture)
    monkeypatch.setattr(attributions, "describe_refused", lambda _: ["why"])
    monkeypatch.setattr(
        attributions, "TokenPositions",
        lambda _: SimpleNamespace(streams=lambda batch: batch.streams),
    )  # fmt: skip
    weights = torch.tensor([[0.5, 0.5]])
    reading = HeadReading(stack, "mean", weights, mask, torch.zeros(1, 2))
    monkeypatch.setattr(attributions, "read_tokens", lambda *_: reading)
    model.forward = lambda input_ids: torch.tensor([[0.0, float(input_ids)]])
    notes: list[str] = []
    found = list(attributions.iter_captured(model, plan, notes))
    assert [unit for unit, _ in found] == [5, 3]
    assert [one.logits[1] for _, one in found] == [5, 3]
    assert {one.crossed for _, one in found} == {crossed}
    assert notes[0] == f"maps of attention left out: none is seen in {stack} (why)"
    assert len(notes) == 1 + crossed
    watcher = made[0].on_call.__self__
    assert (watcher.stack, watcher.kind) == (stack, "cross" if crossed else "self")
    assert {name: mask.tolist() for name, mask in made[0].real.items()} == {
        "encoder": [[True, True]]
    }
    assert len(list(attributions.iter_captured(model, plan))) == 2


# ---- erasure, pooling and entropies ----------------------------------------------------------------------------------


def test_faithfulness_is_the_fall_of_the_class_found_for_the_whole_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Class 1 has a tenth of the ids that are left; both texts are found to be of the class that is larger."""
    runs: list[Any] = []

    def predict(_model: Any, rows: Any, pad: Any) -> Any:
        assert pad == Padding(9)
        runs.append([row["input_ids"] for row in rows])
        of_class = np.array([sum(row["input_ids"]) / 10 for row in rows])
        return np.stack([0.35 + 0 * of_class, of_class], 1)

    monkeypatch.setattr(faithfulness, "predict_probabilities", predict)
    monkeypatch.setattr(faithfulness, "SHARES", (0.25, 0.5))
    rows = [{"input_ids": [1, 2, 3, 1], "labels": 0}, {"input_ids": [1, 2], "labels": 1}]  # fmt: skip
    encoded: Any = SimpleNamespace(rows=rows, words=[[0, 1, 2, 3], [0, 1]])
    key, other = ("attention", 2), ("random", None)
    scores: Any = [
        {key: np.array([0.0, 2, 5, 1]), other: np.array([9.0, 0, 0, 8])},
        {key: np.array([3.0, 1]), other: np.array([0.0, 1])},
    ]
    done: list[Any] = []
    found = faithfulness._compute_faithfulness(
        None, Padding(9), encoded, scores, [key, other], lambda *n: done.append(n)
    )
    falls = {name: np.round(values, 6).tolist() for name, values in found.items()}
    # the whole: .7 of class 1, and .35 of class 0, which no word changes
    assert falls == {
        (key, "comprehensiveness"): [[0.3, 0], [0.5, 0]],
        (key, "sufficiency"): [[0.4, 0], [0.2, 0]],
        (other, "comprehensiveness"): [[0.1, 0], [0.2, 0]],
        (other, "sufficiency"): [[0.6, 0], [0.5, 0]],
    }
    assert done == [(1, 2), (2, 2)]
    assert runs[1:3] == [[[1, 2, 1], [2]], [[3], [1]]]
    assert rows[0]["input_ids"] == [1, 2, 3, 1]


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        ("multi_label_classification", [[0.5, 0.75]]),
        ("single_label_classification", [[0.25, 0.75]]),
        (None, [[0.25, 0.75]]),
    ],
)
def test_probabilities_are_of_one_class_or_of_each_label(
    monkeypatch: pytest.MonkeyPatch, problem: str | None, expected: Any
) -> None:
    asked: list[Any] = []

    def predict(model: Any, rows: Any, pad: Any, batch: int) -> Any:
        asked.append((model, rows, pad, batch))
        return torch.tensor([[0.0, math.log(3)]])

    monkeypatch.setattr(faithfulness, "predict_logits", predict)
    model: Any = torch.nn.Linear(1, 1)
    model.config = SimpleNamespace(problem_type=problem)
    found = faithfulness.predict_probabilities(model, ["row"], 3)  # type: ignore[list-item]
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert asked == [(model, ["row"], 3, 16)]
    np.testing.assert_allclose(
        faithfulness.predict_probabilities(torch.nn.Linear(1, 1), [], 3),
        [[0.25, 0.75]],
        rtol=1e-6,
    )


def test_the_first_row_is_computed_alone_within_the_block_and_then_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    families = {"a": SimpleNamespace(cls_row_only="base"), "b": SimpleNamespace(cls_row_only="")}  # fmt: skip
    monkeypatch.setattr(faithfulness, "family_of", lambda model: families[model.family])
    for before in ("never", "auto"):
        base = SimpleNamespace(row_only=before)
        for family, inside in (("a", "always"), ("b", before)):
            model = SimpleNamespace(family=family, base=base)
            with pytest.raises(KeyError), faithfulness._compute_first_row_alone(model):
                assert base.row_only == inside
                raise KeyError
            assert base.row_only == before


def test_vectors_of_texts_are_pooled_layer_by_layer_in_the_order_of_the_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the stack that is asked for, and of its tokens; other stacks and what follows the last layer are left out."""
    model: Any = torch.nn.Linear(1, 1)
    receivers: list[Any] = []

    @contextmanager
    def capture(_model: Any, names: Any, receive: Any) -> Any:
        assert names == ("hidden",)
        receivers.append(receive)
        yield

    def streams(batch: Batch) -> Any:
        one = {"encoder": batch.streams["encoder"]}
        other = SimpleNamespace(mask=~batch.streams["encoder"].mask)
        return one | {"decoder": other}

    monkeypatch.setattr(pooling, "capture", capture)
    monkeypatch.setattr(pooling, "TokenPositions", lambda _: SimpleNamespace(streams=streams))  # fmt: skip
    draw = torch.Generator().manual_seed(0)
    x = {name: torch.randn(3, 2, 4, generator=draw) for name in ("encoder", "decoder")}

    def forward(rows: Any) -> None:
        assert not model.training
        for stack in ("decoder", "encoder"):
            for layer in (10, 2, 0):
                receivers[-1](
                    Site(stack, layer, "hidden"), x[stack][rows] * (layer + 1)
                )
            receivers[-1](Site(stack, None, "final"), x[stack][rows] * 99)

    model.forward = forward
    mask = masks_of("xx", "x.", ".x")
    batches = [
        batch_of(mask[[2, 0]], units=[2, 0], rows=[2, 0]),
        batch_of(mask[[1]], units=[1], rows=[1]),
    ]
    for stack, at, tokens in (
        ("encoder", "first", [0, 0, 1]), ("", "last", [1, 0, 1]), ("decoder", "first", [None, 1, 0]),
    ):  # fmt: skip
        found = pooling.pool_vectors(model, batches, at, stack)  # type: ignore[arg-type]
        if not stack:
            # of several stacks without a name the last one that came
            assert found.shape == (3, 3, 4)
        states = x[stack or "encoder"].double().numpy()
        for text, token in enumerate(tokens):
            for place, layer in enumerate((0, 2, 10)):
                if token is None:
                    assert not found[text, place].any()
                    continue
                np.testing.assert_allclose(
                    found[text, place], states[text, token] * (layer + 1), rtol=1e-6
                )


def test_entropies_are_in_the_order_of_the_texts_and_of_the_layers_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The weight of each text on its tokens is even over two of three, or over one."""
    made: list[Any] = []

    @contextmanager
    def intercept(_model: Any, look: Any) -> Any:
        made.append(look.__self__)
        yield

    forms = iter([{"row": torch.tensor([0.25, 0.5])}, {"row": torch.tensor([0.75])}])
    monkeypatch.setattr(cls_entropy, "intercept_attention", intercept)
    monkeypatch.setattr(cls_entropy, "_compute_forms", lambda _: next(forms))
    model: Any = torch.nn.Linear(1, 1)
    model.forward = lambda: None
    batches = [batch_of(masks_of("xx", "x."), units=[2, 0]), batch_of(masks_of("xxx"), units=[1])]  # fmt: skip
    found = cls_entropy.measure_entropies(model, batches, (2, 5))
    assert found["row"].tolist() == [0.5, 0.75, 0.25]
    assert [watch.layers for watch in made] == [(2, 5), (2, 5)]
    assert all(watch.columns for watch in made)
    assert made[0].mask.tolist() == [[True, True], [True, False]]


def test_columns_are_summed_over_the_rows_of_real_tokens() -> None:
    watch = cls_entropy.Watch(masks_of("xx.", "xxx"), (), columns=True)
    weights = torch.arange(36.0).view(2, 2, 3, 3)
    call: Any = SimpleNamespace(
        scores=lambda _: torch.zeros(2, 2, 1, 3),
        weights=lambda: weights,
        query=torch.zeros(2, 2, 3, 1),
        key=torch.zeros(2, 2, 3, 1),
    )
    watch.look(call)
    assert watch.sums[1][0].tolist() == (weights[0, :, 0] + weights[0, :, 1]).tolist()
    assert watch.sums[1][1].tolist() == weights[1].sum(1).tolist()
    assert watch.firsts[1].tolist() == weights[:, :, 0].tolist()
    # one text whose first token is padding, among others that begin with theirs
    with pytest.raises(
        MeasureError, match="padding behind the tokens; got padding before"
    ):
        cls_entropy.Watch(masks_of("xx", ".x"), (), columns=False)
    none = cls_entropy.Watch(masks_of("xx"), (), columns=False)
    with pytest.raises(
        MeasureError,
        match="in layers of the model; got 0 calls of the attention interface",
    ):
        none.row_entropy()
    short = cls_entropy.Watch(masks_of("x..", "xx."), (), columns=False)
    short.nats, short.sinks = {1: torch.tensor([[0.0], [0.5]])}, {1: 0}
    assert short.rows(1)[1].tolist() == [0, 0]
    assert short.rows()[1].tolist() == pytest.approx([0, 0.5 / math.log(2)])


# ---- one text --------------------------------------------------------------------------------------------------------


class Summing(torch.nn.Module):
    """A classifier whose logits are linear in the embeddings of its words, position by position."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 3)
        self.weight = torch.nn.Parameter(torch.randn(4, 3, 3))
        self.calls = 1

    def get_input_embeddings(self) -> Any:
        return self.embedding

    def forward(self, input_ids: Any, attention_mask: Any, **_: Any) -> Any:
        for _call in range(self.calls):
            x = self.embedding(input_ids)
        x = x * attention_mask[..., None]
        return torch.einsum("std,tdc->sc", x, self.weight[: x.shape[1]])


def test_gradient_times_input_is_exact_for_a_linear_model() -> None:
    """For the class found less the mean of the others; padding on either side; words of several tokens add up."""
    torch.manual_seed(0)
    model = Summing().double()
    rows = [
        {"input_ids": [1, 4, 5, 2], "labels": 0},
        {"input_ids": [6, 7], "labels": 0},
    ]
    encoded = Encoded(rows, [[-1, 0, 0, 1], [0, 2]])
    for side in ("right", "left"):
        padding = Padding(0, side)  # type: ignore[arg-type]
        classifier: Any = SimpleNamespace(model=model, padding=padding, stack="encoder")
        found = sentence._compute_gradient_times_input(classifier, encoded, [2, 3], 1)
        assert found is not None
        table = model.embedding.weight.detach()
        contrast = model.weight[..., 1] - (model.weight[..., 0] + model.weight[..., 2]) / 2  # fmt: skip

        def of(token: int, place: int, contrast: Any = contrast, table: Any = table) -> float:  # fmt: skip
            return float(table[token] @ contrast[place].detach())

        at = 0 if side == "right" else 2
        expected = [of(4, 1) + of(5, 2), of(2, 3), of(6, at), 0.0, of(7, at + 1)]
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert all(not module._forward_hooks for module in model.modules())
    batch: Any = SimpleNamespace(
        inputs={
            "input_ids": torch.tensor([[1, 2]]),
            "attention_mask": torch.ones(1, 2),
        },
    )
    multiply = sentence._multiply_gradient_with_input
    assert multiply(model, batch, 0) is not None
    for calls in (0, 2):
        model.calls = calls
        if calls:
            assert multiply(model, batch, 0) is None
    model.calls = 1
    longer = batch.inputs | {"input_ids": torch.tensor([[1, 2]])}
    model.embedding.register_forward_hook(lambda *given: given[2])
    assert multiply(model, SimpleNamespace(inputs=longer), 0) is not None  # type: ignore[arg-type]


def captured(found: int, spaces: Any = ("value", "key")) -> CapturedText:
    vectors = {space: [np.eye(2)] * 2 for space in spaces}
    return CapturedText([np.eye(2)] * 2, vectors, [], found)


def test_attention_and_values_are_of_the_last_layer_and_of_the_class_of_the_whole_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Any] = []

    def compute(one: CapturedText, directions: Any) -> Any:
        given.append((one.found, sorted(one.vectors), directions))
        k = len(given)
        return {
            ("attention", 1): np.array([9.0, 9.0]),
            ("attention", 2): np.array([k, k + 0.5]),
            ("value, contrast", 2): np.array([-k, -k - 0.5]),
            ("rollout", 5): np.zeros(2),
        }

    def iter_captured(_model: Any, plan: Any, notes: Any) -> Any:
        assert plan[1:] == ("pad", "stack", torch.device("cpu"))
        notes.append("from the capture")
        yield 1, captured(0)
        yield 0, captured(1, ("value", "hidden"))

    monkeypatch.setattr(sentence, "iter_captured", iter_captured)
    monkeypatch.setattr(sentence, "compute_attributions", compute)
    monkeypatch.setattr(
        sentence, "LabelledPlan",
        lambda encoded, padding, stack, device: (encoded, padding, stack, device),
    )  # fmt: skip
    encoded = Encoded([{}, {}], [[0, 0], [-1, 1]])
    directions = {"value": [np.eye(2)] * 2, "key": [np.eye(2)] * 2}
    classifier: Any = SimpleNamespace(
        model=torch.nn.Linear(1, 1), padding="pad", stack="stack", directions=directions
    )
    notes: list[str] = []
    layer, columns = sentence._attribute_by_layer(
        classifier, encoded, [1, 2], 3, notes
    )  # fmt: skip
    assert layer == 2 and notes == ["from the capture"]
    assert given == [(3, ["value"], directions), (3, ["key", "value"], directions)]
    # the first window: a word of both tokens; the second: its word 0 has none and gets the least
    assert {name: x.tolist() for name, x in columns.items()} == {
        "attention": [1.25, 2, 2.5],
        "value, contrast": [-1.25, -2.5, -2.5],
    }
    classifier.directions = None
    given.clear()
    notes.clear()
    sentence._attribute_by_layer(classifier, encoded, [1, 2], 3, notes)
    assert [one[1:] for one in given] == [([], {}), ([], {})]
    assert notes == [
        "from the capture",
        "value, contrast left out: it needs the directions of classes, from a labelled corpus",
    ]
    monkeypatch.setattr(sentence, "compute_attributions", lambda *_: {("rollout", 5): np.zeros(2)})  # fmt: skip
    assert sentence._attribute_by_layer(classifier, encoded, [1, 2], 3, []) == (None, {})  # fmt: skip


def test_an_explanation_has_the_class_and_columns_of_all_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = SimpleNamespace(
        convert_ids_to_tokens=lambda ids: [f"t{i}" for i in ids]
    )

    def encode(examples: Any, given: Any, longest: int) -> Any:
        assert given is tokenizer
        words, rows = [], []
        for example in examples:
            of_text = [i for i, word in enumerate(example.words) for _ in word]
            words.append([-1, *of_text][:longest])
            rows.append({"input_ids": list(range(len(words[-1])))})
        cut = sum(len(example.words[0]) > 5 for example in examples)
        return Encoded(rows, words, cut)

    class Erased:
        def __init__(self, _c: Any, encoded: Any, counts: Any, found: int) -> None:
            self.count, self.given = sum(counts), (len(encoded), counts, found)

        def measure_words(self) -> Any:
            return np.array([3.0, 1, 2, 0, 4, 5, 6, 7])[: self.count]

        def measure_shares(self, scores: Any) -> Any:
            return pd.DataFrame({"attribution": list(scores)})

    asked: list[Any] = []

    def attribute(_c: Any, _e: Any, counts: Any, found: int, _n: Any) -> Any:
        asked.append((counts, found))
        # exponentials: ranks as those of erasure, numbers not
        attention = np.exp(Erased(None, "", counts, 0).measure_words())
        values = np.arange(sum(counts)) * 1.0
        return 4, {"value, contrast": values, "attention": attention}

    monkeypatch.setattr(sentence, "encode", encode)
    monkeypatch.setattr(sentence, "_ErasedTexts", Erased)
    monkeypatch.setattr(sentence, "_attribute_by_layer", attribute)
    monkeypatch.setattr(sentence, "_compute_gradient_times_input", lambda *_: None)
    of_windows = [[0.7, 0.1, 0.2], [0.0, 0.6, 0.4], [0.1, 0.7, 0.2]]
    monkeypatch.setattr(
        sentence, "predict_probabilities",
        lambda _m, rows, _pad: np.array(of_windows)[: len(rows)],
    )  # fmt: skip
    classifier = sentence.Classifier(None, tokenizer, ("a", "b", "c"), 4, Padding(0))
    made = sentence.explain(classifier, "ab c de f")
    assert made.words["word"].tolist() == ["ab", "c", "de", "f"]
    assert list(made.words) == ["word", "attention", "value, contrast", "erasure"]
    assert asked == [([2, 2], 0)] and made.windows == 2 and made.layer == 4
    # the means are .35, .35 and .3: the first of equal ones
    assert made.found == "a" and made.probability == pytest.approx(0.35)
    assert made.notes == [
        "gradient × input left out: the model does not read its words through its input embeddings"
    ]
    assert made.agreement.loc["attention", "erasure"] == pytest.approx(1)
    assert made.agreement.loc["value, contrast", "erasure"] == pytest.approx(-0.8)
    assert made.erasures["attribution"].tolist() == list(made.words)[1:]
    monkeypatch.setattr(sentence, "_compute_gradient_times_input", lambda *_: np.zeros(2))  # fmt: skip
    cut = sentence.explain(classifier, "abcdef g")
    assert cut.notes == ["1 words longer than the model reads were cut"]
    assert cut.windows == 2 and list(cut.words)[3] == "gradient × input"
    monkeypatch.setattr(sentence, "_compute_gradient_times_input", lambda *_: np.zeros(3))  # fmt: skip
    single = sentence.explain(classifier, "abc")
    assert single.words["word"].tolist() == ["t1", "t2", "t3"] and single.windows == 1
    assert single.notes == [
        "the text has no blanks: its tokens are explained in place of words"
    ]
    monkeypatch.setattr(sentence, "_compute_gradient_times_input", lambda *_: np.zeros(1))  # fmt: skip
    assert sentence.explain(classifier, "a").notes == []
    with pytest.raises(UsageError, match="a text with words; got ' '"):
        sentence.explain(classifier, " ")


def test_each_window_of_a_text_is_erased_on_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two windows alike in which words are kept, not in what these are."""
    runs: list[Any] = []

    def predict(_model: Any, rows: Any, pad: Any) -> Any:
        assert pad == Padding(8)
        runs.append([tuple(row["input_ids"]) for row in rows])
        return np.array([[sum(row["input_ids"]) / 100, 0.5] for row in rows])

    monkeypatch.setattr(sentence, "predict_probabilities", predict)
    rows = [{"input_ids": ids} for ids in ([1, 2], [4], [5, 6])]
    encoded = Encoded(rows, [[0, 1], [0], [0, 1]])
    classifier: Any = SimpleNamespace(model=None, padding=Padding(8))
    erased = sentence._ErasedTexts(classifier, encoded, [2, 1, 2], 0)
    assert erased.whole == pytest.approx(18 / 300)
    keep = np.array([False, True, False, True, False])
    # of the second window nothing is left: its padding token is read
    assert erased.predict([keep, ~keep]).tolist() == pytest.approx(
        [(2 + 8 + 5) / 300, (1 + 4 + 6) / 300]
    )
    assert runs == [[(1, 2), (4,), (5, 6)], [(2,), (8,), (5,), (1,), (6,)]]
    falls = erased.measure_words()
    np.testing.assert_allclose(falls, np.array([1, 2, -4, 5, 6]) / 300)


def test_baselines_are_drawn_alike_each_time() -> None:
    corpus: Any = SimpleNamespace(splits={"train": []})
    draws = []
    for _ in range(2):
        scores: list[Any] = [{}, {}]
        examples: Any = [Example(("a", "b"), 0), Example(("a", "b"), 1)]
        faithfulness._add_baselines(scores, examples, corpus)
        draws.append([one["random", None].tolist() for one in scores])
    assert draws[0] == draws[1] and draws[0][0] != draws[0][1]


def test_as_many_words_are_high_as_people_mark_of_a_text_on_average() -> None:
    """A half of two and a tenth of ten: three tenths, not two of twelve."""
    marks = [[1.0, 0.0], [1.0] + [0.0] * 9]
    examples: Any = [SimpleNamespace(rationale=row) for row in marks]
    key = ("attention", 1)
    scores: Any = [{key: np.arange(len(row))[::-1] * 1.0} for row in marks]
    found = faithfulness._compute_plausibility(examples, scores)
    assert found[key, "iou"] == [1, pytest.approx(1 / 3)]


def test_the_texts_that_are_explained_are_of_the_split_and_have_both_kinds_of_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def text(word: str, *marks: float) -> Example:
        return Example((word, word), 0, None, marks or None)

    splits = {
        "train": (text("t"),) * 3,
        "validation": (text("v", 1, 0), text("w", 1, 1), text("x", 0, 1)),
        "test": (text("z", 1, 0),),
    }
    corpus: Any = LabelledCorpus("c", ("a",), splits)
    encoded: list[Any] = []

    def encode(examples: Any, _tokenizer: Any, longest: int) -> Any:
        encoded.append(([one.all_words[0] for one in examples], longest))
        raise KeyError

    monkeypatch.setattr(faithfulness, "encode", encode)
    tokenizer = SimpleNamespace(pad_token_id=0)
    for split, limit, words in (
        ("validation", 9, ["v", "x"]), ("validation", 1, ["v"]), ("test", 9, ["z"]),
        ("train", 9, ["t", "t", "t"]), ("train", 2, ["t", "t"]),
    ):  # fmt: skip
        with pytest.raises(KeyError):
            faithfulness.measure_explanations(
                torch.nn.Linear(1, 1),
                tokenizer,
                corpus,
                split=split,
                limit=limit,
                max_length=7,
            )
        assert encoded.pop() == (words, 7)


def test_a_batch_that_misses_a_layer_does_not_read_that_of_the_batch_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receivers: list[Any] = []

    @contextmanager
    def capture(_model: Any, _names: Any, receive: Any) -> Any:
        receivers.append(receive)
        yield

    monkeypatch.setattr(pooling, "capture", capture)
    monkeypatch.setattr(
        pooling,
        "TokenPositions",
        lambda _: SimpleNamespace(streams=lambda b: b.streams),
    )
    model: Any = torch.nn.Linear(1, 1)

    def forward(layers: Any) -> None:
        for layer in layers:
            receivers[-1](Site("encoder", layer, "hidden"), torch.ones(1, 1, 2) * layer)

    model.forward = forward
    mask = masks_of("x")
    batches = [
        batch_of(mask, units=[n], layers=layers)
        for n, layers in ((1, [0, 1]), (0, [0]))
    ]
    with pytest.raises(RuntimeError):
        pooling.pool_vectors(model, batches)


@pytest.mark.parametrize(
    ("lengths", "change", "side"),
    [
        ((2, 2, 2, 5), 0.0, "right"),
        ((2, 2, 2, 5), 1.0, "none"),
        # the root of the resolution of float32, of logits up to 100, is .035
        ((2, 3, 4, 5), 0.02, "right"),
        ((2, 3, 4, 5), 0.06, "none"),
        ((3, 3, 3, 3), 1.0, "right"),
    ],
)
def test_padding_is_tried_wherever_lengths_differ_and_rounding_is_no_change(
    monkeypatch: pytest.MonkeyPatch, lengths: Any, change: float, side: str
) -> None:
    def predict(_model: Any, rows: Any, pad: Any) -> Any:
        logits = torch.tensor([[100.0, 90.0]] * len(rows))
        if isinstance(pad, Padding):
            logits[0, 1] += change
        return logits

    monkeypatch.setattr(pooling, "predict_logits", predict)
    rows = [{"input_ids": [1] * n, "labels": 0} for n in lengths]
    assert pooling.find_neutral_padding(None, rows, 5) == Padding(5, side)  # type: ignore[arg-type]


def test_a_text_of_one_token_is_read_there_and_nowhere_behind() -> None:
    made = ablation.Ablation("uniform", ())
    made.begin(masks_of("x..", ".xx", "xxx"), 0)
    assert made.read.tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]
    assert made.read.dtype == torch.float64


class Stacks(torch.nn.Module):
    """An encoder of one block and a decoder of two, and a head that `read` makes of both."""

    def __init__(self, read: Any) -> None:
        super().__init__()

        class Block(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x * 2

        self.encoder = torch.nn.ModuleList([Block()])
        self.decoder = torch.nn.ModuleList([Block(), Block()])
        self.head, self.read = torch.nn.Linear(2, 3), read

    def forward(self, x: Any) -> Any:
        states = self.encoder[0](x)
        y = self.decoder[1](self.decoder[0](states + 1))
        return self.head(self.read(states, y))


@pytest.mark.parametrize(
    ("read", "stack", "at"),
    [
        (lambda x, y: x[:, 0] + y[[0, 1], LAST], "decoder", "last"),
        (lambda _, y: y[:, 0], "decoder", "first"),
        (lambda x, y: x[[0, 1], LAST] + 0 * y[:, 0], "encoder", "last"),
        (lambda x, _: x[:, 0], "encoder", "first"),
    ],
)
def test_of_two_stacks_the_last_that_ran_is_read_if_the_head_depends_on_it(
    monkeypatch: pytest.MonkeyPatch, read: Any, stack: str, at: str
) -> None:
    """The decoder is found first and runs last; both have tokens first, or neither has."""
    found = {"decoder": "decoder", "encoder": "encoder"}
    monkeypatch.setattr(
        readout,
        "find_blocks",
        lambda m: {name: list(getattr(m, name)) for name in found},
    )
    for turned in (False, True):
        monkeypatch.setattr(
            readout, "has_tokens_first", lambda *_, turned=turned: turned
        )

        def read_turned(x: Any, y: Any, turned: bool = turned) -> Any:
            return read(x.transpose(0, 1), y.transpose(0, 1)) if turned else read(x, y)

        model = Stacks(read_turned)
        given = X.clone().transpose(0, 1) if turned else X.clone()
        got = readout.read_tokens(model, batch_of(REAL, x=given))
        assert (got.stack, got.at) == (stack, at)
        with torch.no_grad(), readout._watch_last_states(model) as states:
            model(given)
            assert torch.is_grad_enabled()
            assert list(states.variables) == ["encoder", "decoder"]
            assert states.turned == ({"encoder", "decoder"} if turned else set())
        with torch.no_grad():
            with readout._watch_last_states(model):
                torch.set_grad_enabled(True)
            assert not torch.is_grad_enabled()


def test_three_windows_have_their_special_tokens_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def encode(examples: Any, _tokenizer: Any, _longest: int) -> Any:
        words = [i for i, word in enumerate(examples[0].words) for _ in word]
        return Encoded([{}], [[-1, *words, -1]])

    monkeypatch.setattr(sentence, "encode", encode)
    for text, longest, windows in (
        ("ab cd ef gh ij", 6, ["ab cd", "ef gh", "ij"]),
        ("abc def g h", 5, ["abc", "def", "g h"]),
        ("a b c", 3, ["a", "b", "c"]),
    ):
        found = sentence.cut_into_windows(text.split(), None, longest)
        assert [" ".join(window) for window in found] == windows


def test_gradients_of_windows_are_in_the_order_of_the_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mask = torch.ones(1, 2)
    batches = [
        SimpleNamespace(unit=torch.tensor([n]), inputs={"attention_mask": mask})
        for n in (1, 0)
    ]
    asked: list[Any] = []
    monkeypatch.setattr(
        sentence, "LabelledPlan", lambda *of, **how: asked.append((of, how)) or batches
    )
    values = iter([np.array([[5.0, 6.0]]), np.array([[1.0, 2.0]])])
    monkeypatch.setattr(
        sentence,
        "_multiply_gradient_with_input",
        lambda *of: asked.append(of) or next(values),
    )
    stacks = ("encoder", "decoder")
    classifier: Any = SimpleNamespace(
        model=torch.nn.Linear(1, 1), padding=Padding(7), stack=stacks
    )
    encoded = Encoded([{}, {}], [[0, 1], [-1, 0]])
    found = sentence._compute_gradient_times_input(classifier, encoded, [2, 1], 3)
    assert found is not None and found.tolist() == [1, 2, 6]
    how = {"stack": stacks, "device": torch.device("cpu")}
    assert asked[0] == ((encoded, Padding(7)), how)
    assert asked[1:] == [(classifier.model, batch, 3) for batch in batches]


def test_an_attribution_beyond_all_random_orders_is_beyond_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of twelve words each weighs twice the one before; the best order is not among the random ones."""

    def predict(_model: Any, rows: Any, _pad: Any) -> Any:
        return np.array([[sum(row["input_ids"]) / 5000] for row in rows])

    monkeypatch.setattr(sentence, "predict_probabilities", predict)
    ids = [2**k for k in range(12)]
    encoded = Encoded([{"input_ids": ids}], [list(range(12))])
    classifier: Any = SimpleNamespace(model=None, padding=Padding(0))
    erased = sentence._ErasedTexts(classifier, encoded, [12], 0)
    best = np.arange(12.0)
    found = erased.measure_shares({"best": best, "worst": -best})
    found = found.set_index("attribution")
    assert found["beyond_chance"].tolist() == [True, False]
    high = found["comprehensiveness_high"]
    assert high["best"] == high["worst"] < found.loc["best", "comprehensiveness"]
    low = found["comprehensiveness_low"]
    assert low["best"] > found.loc["worst", "comprehensiveness"]
    assert found.loc["best", "sufficiency"] < found.loc["best", "sufficiency_low"]
