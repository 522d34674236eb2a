"""The entropy penalty: both forms against their definitions, gradients against finite differences, any model."""

import math

import numpy as np
import pytest
import tiny
import torch
from torch.nn.functional import softmax

from anisoscope.batch import Batch, Stream
from anisoscope.classes.cls_entropy import measure_entropies
from anisoscope.errors import MeasureError, UsageError
from anisoscope_papers.networks.attention_classifier import (
    AttentionClassifier,
    AttentionClassifierConfig,
)
from anisoscope_papers.training.entropy_forms import (
    FORMS,
    compute_by_definition,
    find_ends,
)
from anisoscope_papers.training.entropy_penalty import EntropyPenalty
from anisoscope_papers.training.recipe import VARIANTS

LENGTHS = torch.tensor([8, 5, 2, 1])
MASK = torch.arange(8) < LENGTHS[:, None]
IDS = torch.randint(2, 30, (4, 8), generator=torch.Generator().manual_seed(0)) * MASK


def classifier(layers=2, heads=2, backend="sdpa"):
    torch.manual_seed(5)
    config = AttentionClassifierConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_labels=2,
    )
    model = AttentionClassifier(config).double()
    model.set_attn_implementation(backend)
    return model


def given():
    return {"input_ids": IDS, "attention_mask": MASK.long()}


def watched(model, penalty):
    with penalty.watching(model, MASK) as watch:
        model(**given())
    return watch


def maps(model):
    """Attention maps [layer][sequence][head query key] from the weights of the model, padding cut away, one by one."""
    encoder, found = model.attention_classifier, []
    for row, n in enumerate(LENGTHS.tolist()):
        x = encoder.embeddings(IDS[row, :n])[None]
        x = x + encoder._positions(x)
        for i, block in enumerate(encoder.blocks):
            q, k, _ = (
                y.unflatten(-1, (model.config.num_attention_heads, -1)).transpose(1, 2)
                for y in block.attention.in_proj(x).chunk(3, -1)
            )
            found.append(
                (
                    i,
                    row,
                    softmax(q @ k.transpose(2, 3) * block.attention.scaling, -1)[0],
                )
            )
            x = block(x)
    return [
        [a for i, _, a in found if i == layer] for layer in range(len(encoder.blocks))
    ]


def entropy(p):
    """−Σ p ln p, term by term."""
    return -sum(x * math.log(x) for x in p.tolist() if x > 0)


def row_by_definition(model, layers, minus=0):
    rows = []
    for s, n in enumerate(LENGTHS.tolist()):
        heads = [entropy(maps(model)[i - 1][s][h, 0]) for i in layers for h in range(2)]
        rows.append(
            sum(heads) / len(heads) / math.log(n - minus) if n - minus > 1 else 0.0
        )
    return rows


def columns_by_definition(model, layers):
    found = []
    for s, n in enumerate(LENGTHS.tolist()):
        sums = sum(maps(model)[i - 1][s].sum(1) for i in layers)  # [head, key]
        heads = [entropy(softmax(sums[h, 1:], -1)) for h in range(2)]
        found.append(sum(heads) / 2 / math.log(n - 1) if n > 2 else 0.0)
    return found


@torch.no_grad()
@pytest.mark.parametrize("layers", [(1,), (2,), (1, 2)])
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_both_forms_are_their_definitions(layers, backend):
    model = classifier(backend=backend).eval()
    row, columns = (EntropyPenalty(0.5, variant=v, layers=layers) for v in VARIANTS)
    watch = watched(model, row)
    assert watch.row_entropy().tolist() == pytest.approx(
        row_by_definition(model, layers), abs=1e-12
    )
    assert watch.row_entropy(1).tolist() == pytest.approx(
        row_by_definition(model, layers, 1), abs=1e-12
    )
    found = watched(model, columns)
    assert found.column_entropy().tolist() == pytest.approx(
        columns_by_definition(model, layers), abs=1e-12
    )
    for penalty, seen, expected in (
        (row, watch, row_by_definition(model, layers)),
        (columns, found, columns_by_definition(model, layers)),
    ):
        assert float(penalty.value(seen)) == pytest.approx(
            0.5 * sum(expected) / 4, abs=1e-12
        )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("layers", [(1,), (1, 2)])
@pytest.mark.parametrize("row_only", ["training", "never"])
def test_gradients_are_those_of_finite_differences(variant, layers, row_only):
    model = classifier().train()
    model.attention_classifier.row_only = row_only
    penalty = EntropyPenalty(0.7, variant=variant, layers=layers)
    if variant == "entropy-columns" and 2 in layers and row_only == "training":
        with pytest.raises(MeasureError, match="every row of attention"):
            watched(model, penalty)
        return
    penalty.value(watched(model, penalty)).backward()
    weights = [
        block.attention.in_proj.weight for block in model.attention_classifier.blocks
    ]
    weights.append(model.attention_classifier.embeddings.weight)
    step, checked = 1e-6, 0
    for weight in weights:
        flat, gradient = weight.data.view(-1), weight.grad
        for i in (0, 17, len(flat) // 2, len(flat) - 1):
            ends = []
            for sign in (1, -1):
                flat[i] += sign * step
                with torch.no_grad():
                    ends.append(float(penalty.value(watched(model, penalty))))
                flat[i] -= sign * step
            expected = (ends[0] - ends[1]) / (2 * step)
            ours = 0.0 if gradient is None else float(gradient.view(-1)[i])
            assert ours == pytest.approx(expected, abs=2e-9)
            checked += abs(expected) > 1e-6
    assert checked >= 2


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_any_model_on_the_interface_is_penalised(name, variant):
    model = tiny.build(name, torch.float32).train()
    inputs, real = tiny.padded(name, "right")
    mask = next(iter(real.values()))
    penalty = EntropyPenalty(1.0, variant=variant, layers=())
    before = model(**inputs).last_hidden_state
    with penalty.watching(model, mask) as watch:
        model(**inputs)
    value = penalty.value(watch)
    value.backward()
    assert 0 < value.item() <= 1
    assert any(
        p.grad is not None and bool(p.grad.abs().sum() > 0) for p in model.parameters()
    )
    if not any(
        getattr(m, "p", 0) for m in model.modules() if "Dropout" in type(m).__name__
    ):
        assert torch.equal(model(**inputs).last_hidden_state, before)


def test_entropies_of_a_corpus_come_in_its_order():
    model = classifier(layers=1).eval()
    rows = torch.tensor([2, 0, 3, 1])
    batches = []
    for part in rows.split(2):
        mask = MASK[part]
        stream = Stream(mask, torch.zeros_like(mask), torch.zeros(2, dtype=torch.int64))
        batches.append(
            Batch(
                {"input_ids": IDS[part], "attention_mask": mask.long()},
                part,
                {"encoder": stream},
            )
        )
    found = measure_entropies(model, batches)
    with torch.no_grad():
        assert found["row"].tolist() == pytest.approx(
            row_by_definition(model, (1,)), abs=1e-12
        )
        assert found["reported.1"].tolist() == pytest.approx(
            row_by_definition(model, (1,), 1), abs=1e-12
        )
        assert found["columns"].tolist() == pytest.approx(
            columns_by_definition(model, (1,)), abs=1e-12
        )
        slow = [
            [compute_by_definition(head.numpy()) for head in sentence]
            for sentence in maps(model)[0]
        ]
    for form in FORMS:
        expected = [
            sum(head[form] for head in sentence) / len(sentence) for sentence in slow
        ]
        assert found[form].tolist() == pytest.approx(expected, abs=1e-12), form
    assert torch.equal(found["again.1"], found["again"])


def test_no_attention_has_an_entropy_beyond_the_ends_of_its_form():
    generator = np.random.default_rng(0)
    for n in (1, 2, 3, 9, 30):
        reached = find_ends(np.array([n]))
        for sharpness in (0.0, 1.0, 10.0, 1e3):
            scores = sharpness * generator.random((n, n))
            powers = np.exp(scores - scores.max(1, keepdims=True))
            for form, value in compute_by_definition(
                powers / powers.sum(1, keepdims=True)
            ).items():
                low, high = reached[form]
                assert low - 1e-12 <= value <= high + 1e-12, (form, n)
    assert find_ends(np.array([22, 22]))["again"] == pytest.approx(
        (0.987, 1.0), abs=1e-3
    )
    assert find_ends(np.array([60]))["reported"] == pytest.approx(
        (0.0, np.log(60) / np.log(59))
    )


def test_a_penalty_is_on_the_row_of_the_first_layer_unless_another_is_asked_for():
    penalty = EntropyPenalty(0.5)
    assert (penalty.weight, penalty.variant, penalty.layers) == (0.5, "entropy", (1,))


def test_bad_penalties_are_explained():
    for weight in (-1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="weight of at least 0"):
            EntropyPenalty(weight)
    with pytest.raises(UsageError, match="did you mean entropy"):
        EntropyPenalty(1.0, variant="entrpy")
    with pytest.raises(UsageError, match="counted from 1"):
        EntropyPenalty(1.0, layers=(0,))
    for layers in ((7,), (1, 7)):
        with pytest.raises(MeasureError, match=r"attention in layers \[7\]"):
            penalty = EntropyPenalty(1.0, layers=layers)
            penalty.value(watched(classifier().eval(), penalty))


@pytest.mark.parametrize("variant", VARIANTS)
def test_columns_are_summed_only_for_the_form_that_asks_for_them(variant, classifier):
    penalty, (model, _plan) = EntropyPenalty(1.0, variant=variant), classifier
    with penalty.watching(model, torch.ones(1, 4)) as watch:
        assert watch.columns is (variant == "entropy-columns")
