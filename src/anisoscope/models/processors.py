"""What turns data into a model's inputs: tokenizer, feature extractor or image processor, saved with a checkpoint."""

from pathlib import Path
from typing import Any

from anisoscope.errors import ModelError

SAVE = "copy its files there, or save it there with tokenizer.save_pretrained(folder)"
NO_FILES = ("character_bert", "canine", "manta")
"""Families that read characters or bytes: their tokenizers need no files."""


def processor_of(model: Any, modality: str, path: str, name: str, trust: bool) -> Any:
    """The processor beside the weights. None for a speech or image model saved without one: the corpus then falls back
    on defaults that the run records. ModelError for a text model without one.
    """
    options: dict[str, Any] = {"trust_remote_code": trust}
    if modality == "text":
        return _tokenizer(model.config, path, name, options)
    return _preprocessor(modality, path, name, options)


def _tokenizer(config: Any, path: str, name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer, ByT5Tokenizer, CanineTokenizer

    from anisoscope.models.ports.character_bert import CharacterBertTokenizer

    family = str(config.model_type)
    if family in NO_FILES and (family == "canine" or type(config).__module__.startswith("anisoscope.")):
        own: dict[str, Any] = {
            "character_bert": CharacterBertTokenizer,
            "canine": CanineTokenizer,
            "manta": ByT5Tokenizer,
        }
        return own[family]()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **options)
    except Exception as error:
        raise ModelError(
            f"a tokenizer beside {name}", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}", SAVE
        ) from error
    _check(tokenizer, getattr(config, "vocab_size", None) or 0, path, name)
    return tokenizer


def _check(tokenizer: Any, words: int, path: str, name: str) -> None:
    """ModelError for a tokenizer that transformers made up for want of files, or whose limit is no number."""
    files = {"tokenizer.json", *getattr(tokenizer, "vocab_files_names", {}).values()}
    if len(files) > 1 and len(tokenizer) < words and not any(Path(path, file).exists() for file in files):
        raise ModelError(f"a tokenizer beside {name}", f"none of {', '.join(sorted(files))}", SAVE)
    longest = tokenizer.model_max_length
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not longest > 0:
        cure = "write a number there"
        raise ModelError(f"a number as model_max_length in tokenizer_config.json of {name}", repr(longest), cure)


def _preprocessor(modality: str, path: str, name: str, options: dict[str, Any]) -> Any:
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor
    from transformers.utils import PROCESSOR_NAME
    from transformers.utils.hub import cached_file

    files = {"image": "preprocessor_config.json", "speech": "preprocessor_config.json"}
    where = {"_raise_exceptions_for_missing_entries": False}
    if not any(cached_file(path, file, **where) for file in (files[modality], PROCESSOR_NAME)):
        return None
    kinds: tuple[Any, ...] = {"image": (AutoImageProcessor,), "speech": (AutoProcessor, AutoFeatureExtractor)}[modality]
    failures = []
    for kind in kinds:
        try:
            return kind.from_pretrained(path, **options)
        except Exception as error:
            failures.append(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
    raise ModelError(f"a readable preprocessor beside {name}", failures[-1], "download or save it again")
