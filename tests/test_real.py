"""The packaged pretrained encoder on real text, against every pair taken one by one. The whole corpus is checked in
benchmarks/.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anisoscope.capture import capture
from anisoscope.data.text import open_text, plan_text
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.load import load
from anisoscope.store import select

DOCUMENTS = 4
CHARACTERS = 2500  # of each: about 2,000 tokens
LAYERS = 6


@pytest.fixture(scope="session")
def corpus(data_folder):
    assert data_folder.is_dir()
    found = open_text("wikitext/wiki.valid.raw", limit=DOCUMENTS)
    return replace(found, documents=[text[:CHARACTERS] for text in found.documents])


def plan(subject, corpus, batch_tokens, max_length=256):
    return plan_text(
        corpus,
        subject.processor,
        max_length=max_length,
        batch_tokens=batch_tokens,
        vocab_size=subject.config.vocab_size,
    )


def every_pair(units, chunk=1024):
    """(mean cosine over all distinct pairs, over those of different units), Gram matrix by Gram matrix in float64."""
    x = np.concatenate(units).astype(np.float64)
    u = x / np.linalg.norm(x, axis=1, keepdims=True)
    owner = np.repeat(np.arange(len(units)), [len(part) for part in units])
    total = apart = 0.0
    for i in range(0, len(u), chunk):
        for j in range(i, len(u), chunk):
            gram = u[i : i + chunk] @ u[j : j + chunk].T
            if i == j:
                np.fill_diagonal(gram, 0.0)
            twice = 1 if i == j else 2
            total += twice * gram.sum()
            apart += (
                twice
                * gram[owner[i : i + chunk, None] != owner[None, j : j + chunk]].sum()
            )
    n, sizes = len(u), np.array([len(part) for part in units], dtype=float)
    return total / (n * (n - 1)), apart / (n**2 - (sizes**2).sum())


def test_mean_cosine_is_that_of_all_pairs_at_every_layer(minilm, corpus):
    batches = plan(minilm, corpus, 4096)
    vectors = [[[] for _ in range(batches.n_units)] for _ in range(LAYERS + 1)]
    with torch.no_grad(), capture(minilm.model, ("hidden",)) as tap:
        for batch in batches:
            minilm.model(**batch.inputs)
            real = batch.streams["encoder"].mask
            for layer in range(LAYERS + 1):
                hidden = tap[f"encoder.{layer}.hidden"]
                for row, unit in enumerate(batch.unit.tolist()):
                    vectors[layer][unit].append(hidden[row][real[row]].numpy())
    records = run_pass(
        minilm.model, batches, Settings(metrics=("mean_cosine",), groups=8)
    ).records()
    tokens = sum(batches.tokens)
    assert 1_500 < tokens < 3_000
    for layer in range(LAYERS + 1):
        units = [np.concatenate(parts) for parts in vectors[layer]]
        assert sum(map(len, units)) == tokens
        whole, between = every_pair(units)
        for metric, expected in (
            ("mean_cosine", whole),
            ("mean_cosine.between", between),
        ):
            row = select(
                records, site="hidden", layer=layer, metric=metric, token_policy="all"
            ).iloc[0]
            assert abs(row.value - expected) <= 1e-6, (layer, metric)
            assert row.n_vectors == tokens and row.n_units == DOCUMENTS
            assert row.low < row.value < row.high


def differences(a, b):
    """Largest difference of value, low and high over the aggregate rows of hidden states."""
    frames = [r[r["component"].isna()].reset_index(drop=True) for r in (a, b)]
    keys = ["layer", "site", "token_policy", "metric", "n_vectors"]
    assert frames[0][keys].equals(frames[1][keys])
    return max(
        float((frames[0][c] - frames[1][c]).abs().max())
        for c in ("value", "low", "high")
    )


@pytest.mark.parametrize(
    "dtype, most", [("float64", 1e-9), ("float32", torch.finfo(torch.float32).eps)]
)
def test_batch_size_does_not_matter(corpus, dtype, most):
    """Values and both ends of the intervals. In float32 the model itself answers to batch shapes with other
    roundings, relative ε each.
    """
    subject, settings = (
        load("builtin:minilm", dtype=dtype),
        Settings(metrics=("mean_cosine", "intra_sequence"), groups=8),
    )
    short = replace(corpus, documents=[text[:800] for text in corpus.documents])
    first, second = (
        run_pass(subject.model, plan(subject, short, tokens, 64), settings).records()
        for tokens in (4096, 300)
    )
    assert differences(first, second) <= most


TEXTS = [
    "Isotropy is the exception.",
    "A longer sentence, which says hardly anything, leaves the shorter one with padding to carry.",
]


@pytest.mark.parametrize("side", ["right", "left"])
def test_attention_of_a_pretrained_model_is_the_eager_one(minilm, side):
    """Float32: probabilities of a softmax over 24 keys carry a few ε, entropies a few ε times ln n."""
    minilm.processor.padding_side = side
    inputs = minilm.processor(TEXTS, padding=True, return_tensors="pt")
    minilm.processor.padding_side = "right"
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        with capture(minilm.model, ("hidden", "attention")) as tap:
            tap.real = {"encoder": real}
            minilm.model(**inputs)
        try:
            minilm.model.set_attn_implementation("eager")
            expected = minilm.model(
                **inputs, output_attentions=True, output_hidden_states=True
            )
        finally:
            minilm.model.set_attn_implementation("sdpa")
    for layer, state in enumerate(expected.hidden_states):
        torch.testing.assert_close(
            tap[f"encoder.{layer}.hidden"][real], state[real], rtol=1e-4, atol=1e-5
        )
    for layer, p in enumerate(expected.attentions, start=1):
        rows = tap[f"encoder.{layer}.attention"]
        entropy = -torch.xlogy(p, p).sum(-1)
        for name, value in (("entropy", entropy), ("row_max", p.amax(-1))):
            torch.testing.assert_close(
                rows[name].transpose(1, 2)[real],
                value.transpose(1, 2)[real],
                rtol=1e-4,
                atol=1e-5,
            )
        assert torch.equal(
            rows["keys"].transpose(1, 2)[real],
            real.sum(1)[torch.nonzero(real)[:, 0], None].expand(-1, 12).to(p.dtype),
        )
