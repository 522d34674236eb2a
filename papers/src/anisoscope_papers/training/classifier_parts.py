"""Prepare the training of a classifier: the model, its tokenizer, and the corpus as token ids."""

import os
from dataclasses import dataclass
from typing import Any

import torch

from anisoscope.data.encoding import Encoded, build_tokenizer, encode, pad_batch
from anisoscope.data.labelled import TRAIN, VALIDATION, LabelledCorpus
from anisoscope.data.opening import choose_text_length
from anisoscope.errors import ModelError, UsageError
from anisoscope.models import ports
from anisoscope.models.load import checkpoint_path, load
from anisoscope.models.vectors import WordVectors, adjust_vectors, word_vectors
from anisoscope_papers.networks.attention_classifier import (
    PAPER_TEXT,
    AttentionClassifier,
    AttentionClassifierConfig,
)
from anisoscope_papers.training.fit import Material
from anisoscope_papers.training.recipe import RANDOM, ClassifierRecipe

LONGEST = 1024
"""Number of tokens that the attention-only model can read, if its recipe names none."""
RANDOM_DIM = 300


@dataclass(frozen=True)
class Parts:
    """Model, tokenizer and encoded corpus of a classifier's training; `described` goes into training.json."""

    model: Any
    tokenizer: Any
    encoded: dict[str, Encoded]
    described: dict[str, Any]

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""
        return int(self.tokenizer.pad_token_id or 0)

    @property
    def material(self) -> Material:
        """What `fit` trains on; validation utterances are sorted by length."""
        # Batches of one length are padded least; their order does not change a mean
        # over utterances.
        held = sorted(
            self.encoded[VALIDATION].rows, key=lambda row: len(row["input_ids"])
        )
        train = self.encoded[TRAIN].rows
        pad = self.pad_id
        return Material(
            self.model, self.tokenizer, train, held, lambda rows: pad_batch(rows, pad)
        )


def build_parts(recipe: ClassifierRecipe, corpus: LabelledCorpus) -> Parts:
    """Build model, tokenizer and token ids (by split) for a recipe and its corpus."""
    ports.register()
    if recipe.is_attention:
        model, tokenizer, vectors = _build_attention(recipe, corpus)
    else:
        model, tokenizer, vectors = _load_checkpoint(recipe, corpus)
    # Sinusoidal positions have no natural end, so that the attention-only model gets
    # one; an encoder has its own.
    asked = recipe.max_length or (LONGEST if recipe.is_attention else None)
    longest = choose_text_length(model.config, tokenizer, asked)
    encoded = {
        split: encode(examples, tokenizer, longest)
        for split, examples in corpus.splits.items()
    }
    described = {
        "max_length": longest,
        "truncated": {split: rows.truncated for split, rows in encoded.items()},
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(tokenizer),
        "vectors": vectors,
    }
    return Parts(model, tokenizer, encoded, described)


def _describe_labels(corpus: LabelledCorpus) -> dict[str, Any]:
    """Return the class names as transformers' configuration holds them: {"id2label": …, "label2id": …}."""
    names = dict(enumerate(corpus.labels))
    return {"id2label": names, "label2id": {name: i for i, name in names.items()}}


def _build_attention(
    recipe: ClassifierRecipe, corpus: LabelledCorpus
) -> tuple[Any, Any, dict[str, Any]]:
    """Build the attention-only model: (model, tokenizer, description of its word vectors).

    UsageError if fields of the recipe do not fit each other or the corpus.
    """
    if recipe.separator and not corpus.pairs:
        raise UsageError(
            "pairs of texts for --separator",
            f"{corpus.name}, which has single texts",
            "leave --separator out",
        )
    length = recipe.max_length or LONGEST
    tokenizer, vectors = _prepare_words(recipe, corpus, length)
    dim = vectors.matrix.shape[1] if vectors else recipe.dim or RANDOM_DIM
    # Vectors from a file decide the width. A width that contradicts them is an error
    # and not ignored.
    if recipe.dim not in (None, dim):
        raise UsageError(
            f"--dim {dim}, that of the vectors",
            str(recipe.dim),
            "leave --dim out, or use --vectors random",
        )
    model = AttentionClassifier(_configure_attention(recipe, corpus, tokenizer, dim))
    embedding = model.attention_classifier.embeddings
    if vectors:
        with torch.no_grad():
            embedding.weight.copy_(vectors.matrix)
    embedding.weight.requires_grad_(not recipe.frozen)
    about: dict[str, Any] = {"source": RANDOM}
    if vectors:
        about = {"found": vectors.found, "source": vectors.source}
    return model, tokenizer, about | {"dim": dim}


def _prepare_words(
    recipe: ClassifierRecipe, corpus: LabelledCorpus, length: int
) -> tuple[Any, WordVectors | None]:
    """Return (tokenizer, word vectors) of the attention-only model; None in their place if they are drawn at random.

    `length`: the most tokens of an utterance.
    """
    if recipe.tokens == "checkpoint":
        return _read_matrix(recipe, length)
    tokenizer = build_tokenizer(corpus, max_length=length, separator=recipe.separator)
    if recipe.vectors == RANDOM:
        return tokenizer, None
    # In the order of the token ids, which is that of the rows of the matrix.
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    adjusted = {"norm": recipe.vector_norm, "cosine": recipe.vector_cosine}
    return tokenizer, word_vectors(
        recipe.vectors, words, tokenizer.all_special_tokens, **adjusted
    )


def _configure_attention(
    recipe: ClassifierRecipe, corpus: LabelledCorpus, tokenizer: Any, dim: int
) -> AttentionClassifierConfig:
    """Return the configuration of the attention-only model; `dim`: of its word vectors."""
    changes: dict[str, Any] = {
        "positions": recipe.positions,
        "position_scale": recipe.position_scale,
    }
    if recipe.text:
        changes |= PAPER_TEXT
    # Frozen attention is learnt attention until training freezes it.
    attention = "learned" if recipe.attention == "frozen" else recipe.attention
    return AttentionClassifierConfig(
        vocab_size=len(tokenizer),
        hidden_size=dim,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=recipe.max_length or LONGEST,
        pad_token_id=tokenizer.pad_token_id,
        attention=attention,
        # The arm `random` draws its fixed attention from it.
        attention_seed=recipe.seed,
        **changes,
        **_describe_labels(corpus),
    )


def _read_matrix(recipe: ClassifierRecipe, length: int) -> tuple[Any, WordVectors]:
    """Return (tokenizer, whole embedding matrix) of the checkpoint that the recipe's `vectors` names.

    `length`: how many tokens an utterance can have. UsageError if `vectors` names no checkpoint.
    """
    if recipe.vectors == RANDOM:
        cure = "name one, such as builtin:minilm"
        raise UsageError(
            "a checkpoint in --vectors for --tokens checkpoint", RANDOM, cure
        )
    subject = load(recipe.vectors)
    weight = subject.model.get_input_embeddings().weight.detach()  # type: ignore[operator]
    # Some checkpoints have more rows than tokens, so that their number is a multiple
    # of 8 or so: no token reads those, and they have no part in a mean norm or cosine.
    count = len(subject.processor)
    weight = weight[:count].float().clone()
    adjust_vectors(
        weight, recipe.vectors, norm=recipe.vector_norm, cosine=recipe.vector_cosine
    )
    subject.processor.model_max_length = length
    return subject.processor, WordVectors(weight, count, subject.name)


def _load_checkpoint(
    recipe: ClassifierRecipe, corpus: LabelledCorpus
) -> tuple[Any, Any, dict[str, Any]]:
    """Load a pretrained encoder with a new head for the classes: (model, tokenizer, description of its source).

    ModelError if it cannot be fine-tuned.
    """
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, logging

    # Transformers would warn that the head is newly drawn, which is wanted here.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    path = checkpoint_path(recipe.model).path
    # Tokenizers warn of deadlocks if a process forks after they used threads, as data
    # loaders do.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForSequenceClassification.from_pretrained(
            path, **_describe_labels(corpus)
        )
    except (OSError, ValueError, KeyError) as error:
        got = f"{recipe.model} ({' '.join(str(error).split())[:160]})"
        raise ModelError(
            "an encoder that transformers can fine-tune",
            got,
            "name a hub id or a folder",
        ) from None
    if tokenizer.pad_token_id is None:
        raise ModelError(
            "a tokenizer with a padding token", recipe.model, "name an encoder"
        )
    return model, tokenizer, {"source": recipe.model}
