"""The attention-only classifier against slow formulas: every choice of its configuration, with weights all unlike."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from anisoscope.errors import UsageError
from anisoscope_papers.networks import attention_classifier as networks
from anisoscope_papers.networks.attention_classifier import (
    AttentionClassifier,
    AttentionClassifierConfig,
    AttentionClassifierModel,
)

DIM, TOKENS = 8, 5
IDS = torch.tensor([[1, 7, 3, 9, 2], [1, 4, 6, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
LENGTHS = (5, 3)


def make(**changes):
    given = {
        "vocab_size": 12,
        "hidden_size": DIM,
        "num_hidden_layers": 2,
        "max_position_embeddings": 6,
        "position_scale": 0.5,
        "attention_seed": 3,
        "num_labels": 3,
        "attn_implementation": "eager",
    }
    config = AttentionClassifierConfig(**given | changes)
    model = AttentionClassifier(config).double().eval()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=draw) / 2)
    return model


def sinusoids(position, dim=DIM):
    """sin and cos of each wavelength, one after the other."""
    row = []
    for k in range(0, dim, 2):
        angle = position / 10_000 ** (k / dim)
        row += [math.sin(angle), math.cos(angle)]
    return np.array(row)


def compute_row(config, weights, layer, x, query):
    """The output of a block at one position, from all rows x [token, dim] of one sequence."""
    at = f"attention_classifier.blocks.{layer}"
    matrices = np.split(weights[f"{at}.attention.in_proj.weight"], 3)
    biases = np.split(weights.get(f"{at}.attention.in_proj.bias", np.zeros(3 * DIM)), 3)
    q, k, v = (x @ w.T + b for w, b in zip(matrices, biases, strict=True))
    heads = config.num_attention_heads
    size = DIM // heads
    drawn = torch.randn(
        *(6, 6),
        generator=torch.Generator().manual_seed(1000 * config.attention_seed + layer),
    ).numpy()
    parts = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        scores = k[:, own] @ q[query, own] / math.sqrt(size)
        if config.attention == "uniform":
            scores = np.zeros(len(x))
        if config.attention == "random":
            scores = drawn[query, : len(x)].astype(float)
        share = np.exp(scores - scores.max())
        parts.append(share / share.sum() @ v[:, own])
    mixed = np.concatenate(parts)
    if config.output_projection:
        mixed = weights[f"{at}.attention.out_proj.weight"] @ mixed
        mixed = mixed + weights.get(f"{at}.attention.out_proj.bias", 0)
    if config.residual:
        mixed = mixed + x[query]
    if config.norm == "plain":
        return (mixed - mixed.mean()) / mixed.std(ddof=1)
    if config.norm == "layer_norm":
        mixed = (mixed - mixed.mean()) / np.sqrt(mixed.var() + 1e-5)
        return mixed * weights[f"{at}.norm.weight"] + weights[f"{at}.norm.bias"]
    return mixed


def compute_states(model):
    """The last states of both sequences, without their padding."""
    config = model.config
    weights = {name: w.numpy() for name, w in model.state_dict().items()}
    found = []
    for ids, length in zip(IDS.numpy(), LENGTHS, strict=True):
        x = weights["attention_classifier.embeddings.weight"][ids[:length]]
        if config.positions == "sinusoidal":
            x = x + config.position_scale * np.stack([*map(sinusoids, range(length))])
        if config.positions == "learned":
            x = x + weights["attention_classifier.positions.weight"][:length]
        for layer in range(config.num_hidden_layers):
            x = np.stack(
                [compute_row(config, weights, layer, x, i) for i in range(length)]
            )
        found.append(x)
    return found


CHOICES = (
    {},
    {"num_attention_heads": 2},
    {"attention_bias": False},
    {"output_projection": False},
    {"output_projection": False, "attention_bias": False, "positions": "learned"},
    {"attention": "uniform", "num_attention_heads": 4},
    {"attention": "random", "num_attention_heads": 2, "num_hidden_layers": 3},
    {"attention": "random", "positions": "learned"},
    {"norm": "layer_norm", "positions": "none"},
    {"norm": "none", "residual": False},
    networks.PAPER_TEXT,
)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
@pytest.mark.parametrize("how", ["eager", "sdpa"])
@torch.no_grad()
def test_every_state_is_that_of_the_slow_formulas(choice, how):
    model = make(**choice, attn_implementation=how)
    expected = compute_states(model)
    inner = model.attention_classifier
    found = inner(IDS, MASK).last_hidden_state.numpy()
    for row, states, length in zip(found, expected, LENGTHS, strict=True):
        np.testing.assert_allclose(row[:length], states, atol=2e-5)
    # Only the first row, by folded matrices: the same numbers.
    inner.row_only = "always"
    short = inner(IDS, MASK).last_hidden_state.numpy()
    assert short.shape == (2, 1, DIM)
    first = np.stack([states[0] for states in expected])
    np.testing.assert_allclose(short[:, 0], first, atol=2e-5)
    # Scores of classes are of the first token.
    head = model.classifier
    scores = first @ head.weight.numpy().T + head.bias.numpy()
    for when in ("always", "never"):
        inner.row_only = when
        logits = model(IDS, MASK).logits.numpy()
        np.testing.assert_allclose(logits, scores, atol=1e-4)


@torch.no_grad()
def test_states_of_every_block_are_handed_on_if_they_are_asked_for():
    model = make(num_hidden_layers=3)
    found = model(IDS, MASK, output_hidden_states=True).hidden_states
    states = model.attention_classifier(IDS, MASK, output_hidden_states=True)
    # What goes into the first block, and what comes out of each.
    assert len(found) == len(states.hidden_states) == 4
    for one, other in zip(found, states.hidden_states, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(found[-1], states.last_hidden_state)
    assert model(IDS, MASK).hidden_states is None


@torch.no_grad()
def test_in_training_the_first_row_alone_is_computed_unless_that_is_refused():
    model = make().train().attention_classifier
    shapes = {}
    for when in ("training", "always", "never"):
        model.row_only = when
        for training in (True, False):
            model.train(training)
            rows = model(IDS, MASK).last_hidden_state.shape[1]
            shapes[when, training] = rows
    assert shapes == {
        ("training", True): 1,
        ("training", False): TOKENS,
        ("always", True): 1,
        ("always", False): 1,
        ("never", True): TOKENS,
        ("never", False): TOKENS,
    }


def test_the_loss_is_the_mean_cross_entropy_of_the_classes():
    model = make()
    labels = torch.tensor([2, 0])
    found = model(IDS, MASK, labels=labels)
    scores = found.logits.detach().numpy()
    each = [
        np.log(np.exp(row).sum()) - row[label]
        for row, label in zip(scores, (2, 0), strict=True)
    ]
    assert found.loss.item() == pytest.approx(np.mean(each))
    assert model(IDS, MASK).loss is None


def test_frozen_attention_passes_no_gradient_to_queries_and_keys():
    model = make(num_hidden_layers=1)
    attention = model.attention_classifier.blocks[0].attention
    for detach, moves in ((False, True), (True, False)):
        attention.detach = detach
        model.zero_grad()
        model(IDS, MASK, labels=torch.tensor([2, 0])).loss.backward()
        query, key, value = attention.in_proj.weight.grad.chunk(3)
        assert bool(query.abs().max() > 1e-9) == bool(key.abs().max() > 1e-9) == moves
        assert value.abs().max() > 1e-9


def test_utterances_may_be_as_long_as_there_are_positions():
    model = make(positions="learned")
    assert model(torch.ones(1, 6, dtype=torch.long)).logits.shape == (1, 3)
    with pytest.raises(UsageError) as error:
        model(torch.ones(1, 7, dtype=torch.long))
    assert str(error.value) == (
        "expected at most 6 tokens; got 7. Cure: cut the utterances, or raise --max-length"
    )


@torch.no_grad()
def test_positions_follow_the_model_to_another_type():
    model = make(num_hidden_layers=1).attention_classifier
    for dtype in (torch.float64, torch.float32, torch.float64):
        model.to(dtype)
        assert model(IDS, MASK).last_hidden_state.dtype == dtype
        table = model._positions(torch.zeros(2, 4, DIM, dtype=dtype))
        assert table.dtype == dtype
        expected = 0.5 * np.stack([*map(sinusoids, range(4))])
        np.testing.assert_allclose(table.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"positions": "sinus"}, "positions among sinusoidal, none, learned"),
        ({"norm": "layernorm"}, "norm among plain, layer_norm, none"),
        ({"attention": "unifrom"}, "attention among learned, uniform, random"),
    ],
)
def test_an_unknown_choice_is_named_with_those_that_are_known(given, words):
    with pytest.raises(UsageError) as error:
        AttentionClassifierConfig(**given).checked()
    ((name, value),) = given.items()
    assert error.value.expected == words and error.value.got == repr(value)
    near = {"positions": "sinusoidal", "norm": "layer_norm", "attention": "uniform"}
    assert near[name] in error.value.cure


def test_a_width_must_be_even_and_divided_by_the_heads():
    for width, heads in ((9, 3), (8, 3), (7, 1)):
        config = AttentionClassifierConfig(hidden_size=width, num_attention_heads=heads)
        with pytest.raises(UsageError) as error:
            config.checked()
        assert str(error.value) == (
            "expected an even width that the number of heads divides; "
            f"got {width} and {heads}. Cure: change --dim or --heads"
        )
    config = AttentionClassifierConfig(hidden_size=6, num_attention_heads=3)
    assert config.checked() is config


def test_weights_are_drawn_as_the_authors_draw_them():
    config = AttentionClassifierConfig(
        vocab_size=400,
        hidden_size=100,
        positions="learned",
        max_position_embeddings=300,
        embedding_std=3.0,
        pad_token_id=2,
    )
    torch.manual_seed(0)
    model = AttentionClassifier(config)
    inner = model.attention_classifier
    words = inner.embeddings.weight
    assert (words[2] == 0).all() and (words[[0, 1, 3]] != 0).all()
    assert words.std().item() == pytest.approx(3.0, rel=0.03)
    assert inner.positions.weight.std().item() == pytest.approx(0.02, rel=0.03)
    attention = inner.blocks[0].attention
    assert (attention.in_proj.bias == 0).all() and (attention.out_proj.bias == 0).all()
    bounds = {
        # Of the whole matrix: from 100 to 300.
        attention.in_proj: math.sqrt(6 / 400),
        attention.out_proj: 0.1,
        model.classifier: 0.1,
    }
    for layer, bound in bounds.items():
        largest = layer.weight.abs().max().item()
        assert 0.95 * bound < largest <= bound
    assert 0 < model.classifier.bias.abs().max().item() <= 0.1


def test_a_plain_norm_divides_by_the_unbiased_deviation():
    x = torch.tensor([[1.0, 2.0, 6.0], [-3.0, 0.0, 9.0]], dtype=torch.float64)
    found = networks.PlainNorm(3)(x).numpy()
    for row, given in zip(found, x.numpy(), strict=True):
        np.testing.assert_allclose(row, (given - given.mean()) / given.std(ddof=1))


def test_random_scores_are_those_of_the_seed_and_of_the_layer():
    drawn = {}
    for seed, layer in product((0, 1), (0, 1)):
        config = make(attention="random", attention_seed=seed).config
        attention = networks.ClassifierAttention(config, layer)
        key = torch.zeros(1, 1, 4, DIM)
        scores = attention._with_random_scores(None, 3, key)
        assert scores.shape == (1, 1, 3, 4)
        drawn[seed, layer] = scores
        # Masks that are added keep their own numbers, those of truth hide.
        added = torch.full((1, 1, 3, 4), -5.0)
        torch.testing.assert_close(
            attention._with_random_scores(added, 3, key), scores - 5
        )
        seen = torch.tensor([[[[True, False, True, True]]]]).expand(1, 1, 3, 4)
        hidden = attention._with_random_scores(seen, 3, key)
        assert (hidden[..., 1] == torch.finfo(torch.float32).min).all()
        torch.testing.assert_close(hidden[..., 2:], scores[..., 2:])
    firsts = {float(scores[0, 0, 0, 0]) for scores in drawn.values()}
    assert len(firsts) == 4


def test_a_model_without_its_head_checks_its_configuration():
    with pytest.raises(UsageError, match="norm among"):
        AttentionClassifierModel(AttentionClassifierConfig(norm="other"))
