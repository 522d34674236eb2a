"""Fixtures of the papers' tests; those that the tool's tests use too stand in the conftest.py of the repository."""

import pytest


@pytest.fixture(scope="module")
def classifier():
    """A fixed attention-only model in float32, and batches of 100 utterances."""
    import torch

    from anisoscope.data.encoding import LabelledPlan, build_tokenizer, encode
    from anisoscope.data.opening import open_labelled
    from anisoscope_papers.networks.attention_classifier import (
        AttentionClassifier,
        AttentionClassifierConfig,
    )

    corpus = open_labelled("synthetic:3", limit=100)
    tokenizer = build_tokenizer(corpus, max_length=64)
    encoded = encode(corpus.splits["test"][:100], tokenizer, 64)
    torch.manual_seed(5)
    config = AttentionClassifierConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_labels=3
    )
    return AttentionClassifier(config).eval(), LabelledPlan(
        encoded, 0, batch_tokens=400
    )
