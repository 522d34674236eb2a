"""Class directions against their definitions pair by pair; similarities and entropies of a fixed model in float64."""

import copy
import math

import numpy as np
import pytest
import torch

from anisoscope.classes.pooling import utterance_states
from anisoscope.data.encoding import LabelledPlan, encode, vocabulary_tokenizer
from anisoscope.data.labelled import open_labelled
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.metrics import class_direction as direction
from anisoscope.models.ports.attention_classifier import AttentionClassifier, AttentionClassifierConfig
from anisoscope.store import select
from anisoscope.training.entropy_penalty import entropies

CLASSES = 3


def cloud(n=41, layers=2, d=6, apart=1.0, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, n)
    labels[:CLASSES] = range(CLASSES)
    centres = rng.standard_normal((CLASSES, layers, d)) * apart
    return centres[labels] + rng.standard_normal((n, layers, d)), labels


def cosine(a, b):
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_matrix_is_the_mean_over_pairs():
    x, labels = cloud()
    for layer in range(2):
        found = direction.cosine_matrix(x[:, layer], labels, CLASSES)
        for a in range(CLASSES):
            for b in range(CLASSES):
                one, two = np.flatnonzero(labels == a), np.flatnonzero(labels == b)
                expected = np.mean([cosine(x[i, layer], x[j, layer]) for i in one for j in two if i != j])
                assert found.value[a, b] == pytest.approx(expected, abs=1e-12)
        assert (found.low < found.value).all() and (found.value < found.high).all()


def test_cosines_to_classes_leave_the_utterance_out():
    x, labels = cloud(layers=1)
    found = direction.to_classes(x[:, 0], labels, CLASSES)
    u = direction.units_of(x[:, 0])
    for i in range(len(u)):
        for c in range(CLASSES):
            others = [j for j in range(len(u)) if labels[j] == c and j != i]
            assert found[i, c] == pytest.approx(cosine(u[i], u[others].mean(0)), abs=1e-10)
    assert direction.to_utterance(x[:, 0], 4)[7] == pytest.approx(cosine(x[7, 0], x[4, 0]))


def test_auc_is_the_share_of_pairs():
    rng = np.random.default_rng(1)
    values, positive = rng.integers(0, 5, 40).astype(float), rng.random(40) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in values[positive] for b in values[~positive]]
    assert direction.auc(values, positive) == pytest.approx(np.mean(pairs))
    assert math.isnan(direction.auc(values, np.zeros(40, bool)))


def test_separability_tells_separate_classes_from_mixed_ones():
    x, labels = cloud(n=200, apart=8.0)
    sure = direction.separability(x[:, 0], labels, CLASSES)
    assert sure["auc"].value > 0.99 and sure["nearest"].value > 0.98
    mixed = direction.separability(
        *(cloud(n=400, apart=0.0)[i][:, 0] if i == 0 else cloud(n=400, apart=0.0)[1] for i in (0, 1)), CLASSES
    )
    assert mixed["auc"].low < 0.5 < mixed["auc"].high
    assert mixed["nearest"].low < 1 / 3 < mixed["nearest"].high
    turn = np.linalg.qr(np.random.default_rng(2).standard_normal((6, 6)))[0]
    again = direction.separability(3 * x[:, 0] @ turn, labels, CLASSES)
    assert again["auc"].value == pytest.approx(sure["auc"].value)


def test_a_class_of_one_has_no_direction_without_its_utterance():
    x, labels = np.eye(3), np.array([0, 0, 1])
    found = direction.to_classes(x, labels, 2)
    assert np.isnan(found[2, 1]) and found[0, 1] == 0
    assert np.isnan(direction.cosine_matrix(x, labels, 2).value[1, 1])


@pytest.fixture(scope="module")
def fixed():
    """A fixed model in float32 on 100 utterances of a corpus."""
    corpus = open_labelled("planted:3", limit=100)
    tokenizer = vocabulary_tokenizer(corpus, max_length=64)
    encoded = encode(corpus.splits["test"][:100], tokenizer, 64)
    torch.manual_seed(0)
    config = AttentionClassifierConfig(vocab_size=len(tokenizer), hidden_size=24, num_hidden_layers=2, num_labels=3)
    return AttentionClassifier(config).eval(), encoded, LabelledPlan(encoded, 0, batch_tokens=300)


def slowly(model, encoded):
    """Each utterance alone, in float64: keys, values, states and attention of every layer."""
    model = copy.deepcopy(model).double()
    encoder = model.attention_classifier
    with torch.no_grad():
        for row in encoded.rows:
            x = encoder.embeddings(torch.tensor([row["input_ids"]]))
            x = x + encoder._positions(x)
            layers = []
            for block in encoder.blocks:
                q, k, v = block.attention.in_proj(x)[0].chunk(3, -1)
                layers.append((x[0], k, v, torch.softmax(q @ k.T * 24**-0.5, -1)))
                x = block(x)
            yield layers, x[0]


def similarity(m):
    """Eq. 3 term by term."""
    n = len(m)
    return sum(cosine(m[i], m[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))


def entropy(p):
    return -sum(float(a) * math.log(a) for a in p if a > 0)


@pytest.mark.parametrize("policy", ["all", "content"])
def test_similarities_and_norms_equal_a_slow_evaluation(fixed, policy):
    model, encoded, plan = fixed
    records = run_pass(
        model, plan, Settings(metrics=("intra_sequence", "norms"), policies=("all", "content"))
    ).records()
    first = 0 if policy == "all" else 1
    for layer in (1, 2):
        for site, part in (("key.raw", 1), ("value", 2)):
            rows = [layers[layer - 1][part][first:].numpy() for layers, _ in slowly(model, encoded)]
            where = {"layer": layer, "site": site, "token_policy": policy}
            (found,) = select(records, metric="intra_sequence", **where)["value"]
            assert found == pytest.approx(np.mean([similarity(m) for m in rows]), abs=1e-6)
            (norm,) = select(records, metric="norms.mean", **where)["value"]
            assert norm == pytest.approx(np.mean([np.linalg.norm(x) for m in rows for x in m]), rel=1e-6)
    (last,) = select(records, metric="intra_sequence", layer=2, site="hidden", token_policy=policy)["value"]
    assert last == pytest.approx(np.mean([similarity(x[first:].numpy()) for _, x in slowly(model, encoded)]), abs=1e-6)


def test_entropies_equal_a_slow_evaluation(fixed):
    model, encoded, plan = fixed
    found = entropies(model, plan, (1,))
    for i, (layers, _) in enumerate(slowly(model, encoded)):
        weights, n = layers[0][3], len(layers[0][0])
        h = entropy(weights[0].tolist())
        second = torch.softmax(weights.sum(0)[1:], -1)
        assert float(found["row"][i]) == pytest.approx(h / math.log(n), abs=1e-6)
        assert float(found["reported"][i]) == pytest.approx(h / math.log(n - 1), abs=1e-6)
        assert float(found["columns"][i]) == pytest.approx(entropy(second.tolist()) / math.log(n - 1), abs=1e-6)


def test_states_of_utterances_come_in_order_of_the_utterances(fixed):
    model, encoded, plan = fixed
    found = utterance_states(model.train(), plan)
    assert model.training and found.shape == (100, 3, 24)
    for i, (layers, last) in enumerate(slowly(model.eval(), encoded)):
        expected = torch.stack([layers[0][0][0], layers[1][0][0], last[0]]).numpy()
        np.testing.assert_allclose(found[i], expected, atol=2e-5)
