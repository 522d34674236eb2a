"""Examples of the small models' tasks, made with the very processors that are saved beside their checkpoints."""

import os
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anisoscope.data.text import TextCorpus, open_text
from anisoscope.errors import CorpusError
from anisoscope.training.kinds import MEASURED, SPEECH_CORPUS, TEXT_CORPUS, Kind

Examples = list[dict[str, Any]]
Collate = Callable[[Examples], dict[str, Any]]

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VALIDATION = {"text": 30, "image": 200}
"""Units after the measured ones that only tell when to stop."""
RATE, LONGEST = 8000, 8000
"""Sampling rate of the spoken digits, and the most samples of a clip in training (one second)."""


def of(kind: Kind) -> tuple[Any, Examples, Examples, Collate]:
    """(processor, training examples, validation examples, collate) of a kind."""
    if kind.modality == "text":
        return _text(kind)
    return _images() if kind.modality == "image" else _speech()


def identity(kind: Kind) -> list[object]:
    """What the examples are made of, for a hash."""
    if kind.modality == "text":
        return [_corpus().fingerprint, "masks of the validation drawn once"]
    if kind.modality == "image":
        return ["digits of scikit-learn"]
    paths = Path(os.environ.get("ANISOSCOPE_DATA", ""), SPEECH_CORPUS).glob("*_*_*.wav")
    return [f"{path.name} {path.stat().st_size}" for path in sorted(paths)]


@cache
def _corpus() -> TextCorpus:
    return open_text(TEXT_CORPUS)


def _text(kind: Kind) -> tuple[Any, Examples, Examples, Collate]:
    """Windows of documents for masked language modelling: 15 % of the tokens, as BERT (Devlin et al. 2019). Those of
    the validation are masked once, so that its loss changes by learning alone.
    """
    from transformers import DataCollatorForLanguageModeling, DataCollatorForTokenClassification

    documents = _corpus().documents
    first = MEASURED["text"]
    held, seen = documents[first : first + VALIDATION["text"]], documents[first + VALIDATION["text"] :]
    tokenizer = _tokenizer(kind, tuple(seen))
    masking = partial(DataCollatorForLanguageModeling, tokenizer, mlm_probability=0.15, return_tensors="pt")
    mask, once, pad = masking(), masking(seed=0), DataCollatorForTokenClassification(tokenizer)
    masked = [
        {name: x[0].tolist() for name, x in once([row]).items()} for row in _windows(held, tokenizer, kind.window)
    ]

    def collate(examples: Examples) -> dict[str, Any]:
        made: dict[str, Any] = (pad if "labels" in examples[0] else mask)(examples)
        return made

    return tokenizer, _windows(seen, tokenizer, kind.window), masked, collate


def _windows(documents: list[str], tokenizer: Any, window: int) -> Examples:
    """Every document cut into windows of `window` tokens, special tokens counted; ends shorter than 8 are left out."""
    room = window - 2
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    encoded = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    pieces = (ids[i : i + room] for ids in encoded for i in range(0, len(ids), room))
    return [{"input_ids": [cls, *piece, sep]} for piece in pieces if len(piece) >= 8]


@cache
def _tokenizer(kind: Kind, documents: tuple[str, ...]) -> Any:
    """WordPiece learnt from `documents`, or single bytes."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    size = dict(kind.sizes)["vocab_size"]
    if kind.name == "byte-lm":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate([*SPECIAL, *alphabet])}, [], unk_token="[UNK]"))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=list(SPECIAL), show_progress=False)
        tokenizer.train_from_iterator(documents, trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ids)
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, model_max_length=kind.window, **names)


@cache
def _images() -> tuple[Any, Examples, Examples, Collate]:
    """The digits of scikit-learn (8 × 8, Alpaydin & Kaynak 1998), enlarged to 32 × 32, with their classes."""
    from PIL import Image
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    from transformers import ViTImageProcessorPil, default_data_collator

    digits = load_digits()
    processor = ViTImageProcessorPil(size={"height": 32, "width": 32}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    pictures = [Image.fromarray(np.uint8(np.rint(x * (255 / 16)))).convert("RGB") for x in digits.images]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    examples = [{"pixel_values": x, "labels": int(y)} for x, y in zip(pixels, digits.target, strict=True)]
    first = MEASURED["image"]
    last = first + VALIDATION["image"]
    return processor, examples[last:], examples[first:last], default_data_collator


@cache
def _speech() -> tuple[Any, Examples, Examples, Collate]:
    """Spoken digits (free-spoken-digit-dataset, Jackson et al. 2018): `DIGIT_SPEAKER_TAKE.wav`; last takes validate."""
    import soundfile  # type: ignore[import-untyped]
    from transformers import Wav2Vec2FeatureExtractor

    folder = Path(os.environ.get("ANISOSCOPE_DATA", ""), SPEECH_CORPUS)
    paths = sorted(folder.glob("*_*_*.wav"))
    if not paths:
        raise CorpusError(f"spoken digits in {folder}", "none", "set ANISOSCOPE_DATA to a folder that holds them")
    made_by: Any = Wav2Vec2FeatureExtractor
    extractor = made_by(sampling_rate=RATE, do_normalize=True, return_attention_mask=True)
    train: Examples = []
    validation: Examples = []
    last = max(path.stem.split("_")[2] for path in paths)
    for path in paths:
        digit, _speaker, take = path.stem.split("_")
        samples, _rate = soundfile.read(path, dtype="float32", frames=LONGEST)
        (validation if take == last else train).append({"samples": samples, "labels": int(digit)})

    def collate(examples: Examples) -> dict[str, Any]:
        made = extractor([e["samples"] for e in examples], sampling_rate=RATE, padding=True, return_tensors="pt")
        return {**made, "labels": torch.tensor([e["labels"] for e in examples])}

    return extractor, train, validation, collate
