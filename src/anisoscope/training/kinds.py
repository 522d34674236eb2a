"""The small models that are trained on the spot: architecture, processor and data of each kind, and its task."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anisoscope.errors import UsageError, near_matches

VISION_CORPUS, TEXT_CORPUS, SPEECH_CORPUS = "builtin:digits", "builtin:python-docs", "speech/fsdd_test"
MEASURED = {"text": 60, "image": 400}
"""First units of the corpus: measured, never trained on. (Spoken digits: all 300 are measured.)"""


@dataclass(frozen=True)
class Kind:
    """One kind of small model. `steps` and `batch` are what it takes to learn its task where time allows.

    classes  (configuration class, class with a head) of transformers, or of `models.speech_cnn`
    sizes    arguments of the configuration
    """

    name: str
    label: str
    modality: str
    corpus: str
    classes: tuple[str, str]
    sizes: tuple[tuple[str, Any], ...]
    steps: int
    batch: int
    rate: float
    window: int = 0

    @property
    def limit(self) -> int | None:
        """First units of the corpus that are measured."""
        return MEASURED.get(self.modality)

    @property
    def missing(self) -> str:
        """Why its data cannot be had here; empty where they can."""
        if self.modality != "speech":
            return ""
        root = os.environ.get("ANISOSCOPE_DATA")
        if not root:
            return "ANISOSCOPE_DATA is not set: no spoken digits"
        return "" if Path(root, SPEECH_CORPUS).is_dir() else f"no {SPEECH_CORPUS} below {root}"


def _sizes(**sizes: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sizes.items())


_BLOCK = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}
_IMAGE = {"image_size": 32}
_CONVOLUTIONS = {"depths": (2, 2, 2, 2), "hidden_sizes": (32, 64, 96, 128)}
_FRONT = {
    "conv_dim": (64, 64, 64, 64),
    "conv_kernel": (20, 8, 4, 4),
    "conv_stride": (10, 4, 2, 2),
    "num_feat_extract_layers": 4,
    "feat_extract_norm": "layer",
    "num_conv_pos_embeddings": 32,
    "num_conv_pos_embedding_groups": 8,
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}
_TEXT = ("text", TEXT_CORPUS, ("BertConfig", "BertForMaskedLM"))
_VISION = ("image", VISION_CORPUS)
_SPEECH = ("speech", SPEECH_CORPUS)

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("token-lm", "small token LM", *_TEXT, _sizes(**_BLOCK, vocab_size=4096), 1000, 16, 1e-3, 64),
        Kind("byte-lm", "small byte LM", *_TEXT, _sizes(**_BLOCK, vocab_size=261), 1000, 16, 1e-3, 128),
        Kind(
            "vit",
            "small ViT",
            *_VISION,
            ("ViTConfig", "ViTForImageClassification"),
            _sizes(**_BLOCK, **_IMAGE, patch_size=8),
            1000,
            64,
            1e-3,
        ),
        Kind(
            "resnet",
            "small ResNet",
            *_VISION,
            ("ResNetConfig", "ResNetForImageClassification"),
            _sizes(**_CONVOLUTIONS, embedding_size=32, layer_type="basic"),
            400,
            64,
            2e-3,
        ),
        Kind(
            "convnext",
            "small ConvNeXt",
            *_VISION,
            ("ConvNextConfig", "ConvNextForImageClassification"),
            _sizes(**_CONVOLUTIONS, **_IMAGE, patch_size=4),
            600,
            64,
            2e-3,
        ),
        Kind(
            "speech-transformer",
            "small wav2vec 2.0",
            *_SPEECH,
            ("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification"),
            _sizes(**_BLOCK, **_FRONT, classifier_proj_size=128),
            800,
            16,
            5e-4,
        ),
        Kind(
            "speech-cnn",
            "small speech CNN",
            *_SPEECH,
            ("SpeechCnnConfig", "SpeechCnnForSequenceClassification"),
            _sizes(**_BLOCK, **_FRONT),
            800,
            16,
            1e-3,
        ),
    )
}
"""Every small model by name. Transformers and convolutional networks of a modality read the same inputs."""


def kind_named(name: str) -> Kind:
    """The kind called `name`; UsageError with near matches."""
    if name not in KINDS:
        raise UsageError("a kind of small model", repr(name), near_matches(name, KINDS))
    return KINDS[name]


@dataclass(frozen=True)
class Material:
    """What a training needs: the untrained model, its processor (saved beside every checkpoint), examples and how they
    make a batch.
    """

    model: Any
    processor: Any
    train: list[dict[str, Any]]
    validation: list[dict[str, Any]]
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]]


def material(kind: Kind, seed: int) -> Material:
    """Model with weights drawn from `seed`, processor, examples."""
    from anisoscope.training import examples as examples_module

    processor, train, validation, collate = examples_module.of(kind)
    return Material(_untrained(kind, seed), processor, train, validation, collate)


def _untrained(kind: Kind, seed: int) -> Any:
    import torch
    import transformers

    from anisoscope.models.ports import speech_cnn

    config_name, model_name = kind.classes
    library = speech_cnn if config_name.startswith("SpeechCnn") else transformers
    sizes = {name: list(x) if isinstance(x, tuple) else x for name, x in kind.sizes}
    if kind.modality == "text":
        sizes["max_position_embeddings"] = kind.window
    else:
        sizes["num_labels"] = 10
    torch.manual_seed(seed)
    return getattr(library, model_name)(getattr(library, config_name)(**sizes))
