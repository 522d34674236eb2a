"""Define the small models that are trained on the spot: architecture, data and task of each kind, in one table.

Text     windows of documents for masked language modelling: 15 % of the tokens, as BERT (Devlin et al. 2019)
Images   the digits of scikit-learn (8 × 8, Alpaydin & Kaynak 1998), enlarged to 32 × 32, with their classes
Speech   spoken digits (free-spoken-digit-dataset, Jackson et al. 2018), `DIGIT_SPEAKER_TAKE.wav`, with their classes

If ANISOSCOPE_DATA holds them, also (measured on held-out data, `photographs_and_speech.py`):

Images   photographs of CIFAR-10 (Krizhevsky 2009), with their classes, or patches to be filled in; its test split
Speech   clips of LibriSpeech (Panayotov et al. 2015), spans to be found again (Baevski et al. 2020); other speakers

Examples are made with the same processors that are saved with the checkpoints.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anisoscope.data.plans import hash_parts
from anisoscope.data.text import TextCorpus, open_text
from anisoscope.errors import CorpusError, UsageError, suggest_names
from anisoscope_papers.training import photographs_and_speech

TEXT, IMAGE, SPEECH = "text", "image", "speech"
PHOTOGRAPHS, CLIPS = "cifar10/test.parquet", "speech/librispeech_test_other"
CORPORA = {
    TEXT: "builtin:python-docs",
    IMAGE: "builtin:digits",
    SPEECH: "speech/fsdd_test",
}
MEASURED = {TEXT: 60, IMAGE: 400, PHOTOGRAPHS: 400, CLIPS: 5}
"""First units of the corpus: measured, never trained on. (Spoken digits: all 300 are measured.)"""
VALIDATION = {TEXT: 30, IMAGE: 200}
"""Units after the measured ones that only tell when to stop."""
RATE, LONGEST = 8000, 8000
"""Sampling rate of the spoken digits, and the most samples of a clip in training (one second)."""
Examples = list[dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """One kind of small model. `steps` and `batch` are what it needs to learn its task.

    architecture  `Bert` for `BertConfig` and `BertForMaskedLM`, of transformers or of `networks.speech_cnn`
    sizes         arguments of the configuration
    window        tokens of a text
    real          corpus of photographs or clips it is measured on, in place of digits
    masked        whether it is trained to find hidden parts, not classes
    """

    name: str
    label: str
    modality: str
    architecture: str
    steps: int
    batch: int
    rate: float
    sizes: tuple[tuple[str, Any], ...]
    window: int = 0
    real: str = ""
    masked: bool = False

    @property
    def corpus(self) -> str:
        """The name of the corpus that models of this kind are measured on."""
        return self.real or CORPORA[self.modality]

    @property
    def limit(self) -> int | None:
        """How many first units (documents, images, clips) of the corpus are measured; None: all."""
        return MEASURED.get(self.real or self.modality)

    @property
    def missing(self) -> str:
        """Why the data of this kind are unavailable; empty if they are available."""
        root = os.environ.get("ANISOSCOPE_DATA")
        if self.corpus.startswith("builtin:") or (
            root and Path(root, self.corpus).exists()
        ):
            return ""
        if root:
            return f"no {self.corpus} below {root}"
        return f"ANISOSCOPE_DATA is not set: no {self.corpus}"

    @property
    def data(self) -> str:
        """A hash of the training examples, part of a model's identity."""
        # The digits are a part of scikit-learn: there is no file of ours to hash.
        made: list[object] = ["digits of scikit-learn"]
        if self.modality == TEXT:
            made = [
                _open_corpus().fingerprint,
                "masks of the validation drawn once",
                "word pieces in order",
            ]
        elif self.real:
            made = _describe_files(photographs_and_speech.list_files(self.real))
        elif self.modality == SPEECH:
            made = _describe_files(_list_clips())
        return hash_parts(made)[:16]


def _describe_files(paths: Sequence[Path]) -> list[object]:
    """Return name and size of each file, as text: enough for files that are never edited, without reading them."""
    return [f"{path.name} {path.stat().st_size}" for path in paths]


def _list_arguments(base: dict[str, Any], **more: Any) -> tuple[tuple[str, Any], ...]:
    """Return the arguments of a configuration, those of `base` and `more`, as a tuple of (name, value)."""
    return tuple((base | more).items())


_BLOCK = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}
_STAGES = {"depths": (2, 2, 2, 2), "hidden_sizes": (32, 64, 96, 128)}
# Strides of 10 · 4 · 2 · 2 = 160 samples at 8 kHz: a frame is 20 ms, as in wav2vec 2.0.
_WAVES = {
    **_BLOCK,
    "conv_dim": (64, 64, 64, 64),
    "conv_kernel": (20, 8, 4, 4),
    "conv_stride": (10, 4, 2, 2),
    "num_feat_extract_layers": 4,
    "feat_extract_norm": "layer",
    "num_conv_pos_embeddings": 32,
    "num_conv_pos_embedding_groups": 8,
    # With it off, transformers masks no frame, neither at random nor those that a batch
    # names (`mask_time_indices`).
    "apply_spec_augment": False,
    "layerdrop": 0.0,
}
_WAV2VEC2 = _list_arguments(_WAVES, classifier_proj_size=128)
# At 16 kHz the strides multiply to 320 samples: a frame is 20 ms here too.
_LISTENING = _list_arguments(
    # Spans are hidden only if this is on: with it off the model sees what it must find.
    _WAVES | {"conv_stride": (10, 4, 4, 2), "apply_spec_augment": True},
    codevector_dim=64,
    proj_codevector_dim=64,
    num_negatives=20,
)
_VIT = _list_arguments(_BLOCK, image_size=32, patch_size=4, encoder_stride=4)
_EVERY = (
    Kind(
        "token-lm",
        "small token LM",
        TEXT,
        "Bert",
        1000,
        16,
        1e-3,
        _list_arguments(_BLOCK, vocab_size=4096),
        64,
    ),
    Kind(
        "byte-lm",
        "small byte LM",
        TEXT,
        "Bert",
        1000,
        16,
        1e-3,
        # 256 bytes and five special tokens.
        _list_arguments(_BLOCK, vocab_size=261),
        128,
    ),
    Kind(
        "vit",
        "small ViT",
        IMAGE,
        "ViT",
        1000,
        64,
        1e-3,
        _list_arguments(_BLOCK, image_size=32, patch_size=8),
    ),
    Kind(
        "resnet",
        "small ResNet",
        IMAGE,
        "ResNet",
        400,
        64,
        2e-3,
        _list_arguments(_STAGES, embedding_size=32, layer_type="basic"),
    ),
    Kind(
        "convnext",
        "small ConvNeXt",
        IMAGE,
        "ConvNext",
        600,
        64,
        2e-3,
        _list_arguments(_STAGES, image_size=32, patch_size=4),
    ),
    Kind(
        "speech-transformer",
        "small wav2vec 2.0",
        SPEECH,
        "Wav2Vec2",
        800,
        16,
        5e-4,
        _WAV2VEC2,
    ),
    Kind(
        "speech-cnn",
        "small speech CNN",
        SPEECH,
        "SpeechCnn",
        800,
        16,
        1e-3,
        _list_arguments(_WAVES),
    ),
    Kind(
        "vit-photographs",
        "small ViT of photographs",
        IMAGE,
        "ViT",
        3000,
        64,
        1e-3,
        _VIT,
        0,
        PHOTOGRAPHS,
    ),
    Kind(
        "vit-masked",
        "small ViT of masked photographs",
        IMAGE,
        "ViT",
        3000,
        64,
        1e-3,
        _VIT,
        0,
        PHOTOGRAPHS,
        True,
    ),
    Kind(
        "speech-masked",
        "small wav2vec 2.0 of speech",
        SPEECH,
        "Wav2Vec2",
        2000,
        8,
        5e-4,
        _LISTENING,
        0,
        CLIPS,
        True,
    ),
)
KINDS = {kind.name: kind for kind in _EVERY}
"""Every small model by name. Transformers and convolutional networks of a modality read the same inputs."""
_HEADS = {
    TEXT: "ForMaskedLM",
    IMAGE: "ForImageClassification",
    SPEECH: "ForSequenceClassification",
}
_MASKED_HEADS = {IMAGE: "ForMaskedImageModeling", SPEECH: "ForPreTraining"}


def find_kind(name: str) -> Kind:
    """Return the kind of small model called `name`. UsageError with similar names for an unknown one."""
    if name not in KINDS:
        raise UsageError(
            "a kind of small model", repr(name), suggest_names(name, KINDS)
        )
    return KINDS[name]


def prepare_material(kind: Kind, seed: int) -> Any:
    """Return what `fit` trains: a model with weights drawn from `seed`, its processor, and its examples."""
    import transformers

    from anisoscope_papers.networks import speech_cnn
    from anisoscope_papers.training.fit import Material  # loads the Trainer

    library: Any = speech_cnn if kind.architecture == "SpeechCnn" else transformers
    # Tuples are hashable, as a `Kind` must be; configurations want lists.
    sizes = {name: list(x) if isinstance(x, tuple) else x for name, x in kind.sizes}
    if kind.modality == TEXT:
        sizes["max_position_embeddings"] = kind.window
    else:
        # Digits, spoken digits and CIFAR-10 have ten classes each.
        sizes["num_labels"] = 10
    # Weights are drawn when the model is built.
    torch.manual_seed(seed)
    config = getattr(library, f"{kind.architecture}Config")(**sizes)
    heads = _MASKED_HEADS if kind.masked else _HEADS
    model = getattr(library, f"{kind.architecture}{heads[kind.modality]}")(config)
    return Material(model, *make_examples(kind))


def make_examples(kind: Kind) -> tuple[Any, Examples, Examples, Any]:
    """Return (processor, training examples, validation examples, collate function) of a kind of small model."""
    if kind.modality == TEXT:
        return _make_text(kind)
    if kind.real:
        # Photographs and clips know by these which units are measured, and what the
        # model's sizes are.
        given = (kind.real, MEASURED[kind.real], dict(kind.sizes), kind.masked)
        if kind.modality == SPEECH:
            return photographs_and_speech.make_clips(*given)
        return photographs_and_speech.make_photographs(*given)
    if kind.modality == IMAGE:
        return _make_images()
    return _make_speech()


@cache
def _open_corpus() -> TextCorpus:
    """Open the text corpus that small models are trained on, once."""
    return open_text(CORPORA[TEXT])


def _make_text(kind: Kind) -> tuple[Any, Examples, Examples, Any]:
    """Return (tokenizer, training windows, validation windows, collate function) for masked language modelling.

    Validation windows are masked only once, so that their loss changes by learning alone.
    """
    from transformers import (
        DataCollatorForLanguageModeling,
        DataCollatorForTokenClassification,
    )

    documents = _open_corpus().documents
    # Documents in three parts, none in two: measured, validation, training.
    first = MEASURED[TEXT]
    held = documents[first : first + VALIDATION[TEXT]]
    seen = documents[first + VALIDATION[TEXT] :]
    tokenizer = _build_tokenizer(kind, tuple(seen))
    masking = partial(
        DataCollatorForLanguageModeling,
        tokenizer,
        mlm_probability=0.15,
        return_tensors="pt",
    )
    mask = masking()
    once = masking(seed=0)
    pad = DataCollatorForTokenClassification(tokenizer)
    masked = []
    for window in _cut_windows(held, tokenizer, kind.window):
        # One window at a time: the collator pads a batch, and these windows have
        # several lengths.
        batch = once([window])
        masked.append({key: x[0].tolist() for key, x in batch.items()})

    def collate(examples: Examples) -> dict[str, Any]:
        """Make a batch of input_ids, attention_mask and labels [sequence, token]; examples without labels are masked
        now.
        """
        made: dict[str, Any] = (pad if "labels" in examples[0] else mask)(examples)
        return made

    return tokenizer, _cut_windows(seen, tokenizer, kind.window), masked, collate


def _cut_windows(documents: Sequence[str], tokenizer: Any, window: int) -> Examples:
    """Cut every document into windows of `window` tokens, special tokens included: {"input_ids": [id]} each.

    Last parts below 8 tokens are dropped.
    """
    # [CLS] and [SEP] take two places.
    room = window - 2
    cls = tokenizer.cls_token_id
    sep = tokenizer.sep_token_id
    encoded = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    windows = []
    for ids in encoded:
        for start in range(0, len(ids), room):
            part = ids[start : start + room]
            if len(part) >= 8:
                windows.append({"input_ids": [cls, *part, sep]})
    return windows


@cache
def _build_tokenizer(kind: Kind, documents: tuple[str, ...]) -> Any:
    """Build the tokenizer of a kind: bytes, or word pieces learnt from the documents."""
    from anisoscope_papers.training.text import build_single_bytes, train_word_pieces

    if kind.name == "byte-lm":
        return build_single_bytes(model_max_length=kind.window)
    return train_word_pieces(
        documents, dict(kind.sizes)["vocab_size"], model_max_length=kind.window
    )


@cache
def _make_images() -> tuple[Any, Examples, Examples, Any]:
    """Return (processor, training examples, validation examples, collate function) of scikit-learn's digits."""
    from PIL import Image
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from transformers import ViTImageProcessorPil, default_data_collator

    digits = load_digits()
    processor = ViTImageProcessorPil(
        size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    # Levels 0 to 16 become 0 to 255.
    pictures = [
        Image.fromarray(np.uint8(np.rint(x * (255 / 16)))).convert("RGB")
        for x in digits.images
    ]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    examples = [
        {"pixel_values": x, "labels": int(y)}
        for x, y in zip(pixels, digits.target, strict=True)
    ]
    # As with text: measured, validation, training.
    first = MEASURED[IMAGE]
    last = first + VALIDATION[IMAGE]
    return processor, examples[last:], examples[first:last], default_data_collator


def _list_clips() -> list[Path]:
    """List the recordings of spoken digits. CorpusError if there are none."""
    folder = Path(os.environ.get("ANISOSCOPE_DATA", ""), CORPORA[SPEECH])
    paths = sorted(folder.glob("*_*_*.wav"))
    if not paths:
        raise CorpusError(
            f"spoken digits in {folder}",
            "none",
            "set ANISOSCOPE_DATA to a folder that holds them",
        )
    return paths


@cache
def _make_speech() -> tuple[Any, Examples, Examples, Any]:
    """Return (processor, training examples, validation examples, collate function) of spoken digits.

    The last take of every speaker and digit is for validation.
    """
    import soundfile  # type: ignore[import-untyped]
    from transformers import Wav2Vec2FeatureExtractor

    made_by: Any = Wav2Vec2FeatureExtractor
    extractor = made_by(
        sampling_rate=RATE, do_normalize=True, return_attention_mask=True
    )
    train: Examples = []
    validation: Examples = []
    # Takes are one digit, so that the largest text is the last take.
    last = max(path.stem.split("_")[2] for path in _list_clips())
    for path in _list_clips():
        digit, _speaker, take = path.stem.split("_")
        # Cut after a second, so that one long clip does not lengthen its whole batch.
        samples, _rate = soundfile.read(path, dtype="float32", frames=LONGEST)
        example = {"samples": samples, "labels": int(digit)}
        if take == last:
            validation.append(example)
        else:
            train.append(example)

    def collate(examples: Examples) -> dict[str, Any]:
        """Make a batch of padded clips: input_values and attention_mask [clip, sample], labels [clip]."""
        made = extractor(
            [e["samples"] for e in examples],
            sampling_rate=RATE,
            padding=True,
            return_tensors="pt",
        )
        return {**made, "labels": torch.tensor([e["labels"] for e in examples])}

    return extractor, train, validation, collate
