"""Load what turns data into a model's inputs: tokenizer, feature extractor or image processor."""

from importlib import import_module
from pathlib import Path
from typing import Any

from anisoscope.errors import ModelError
from anisoscope.models.families import family_of

SAVE = "copy its files there, or save it there with tokenizer.save_pretrained(folder)"


def processor_of(model: Any, modality: str, path: str, name: str, trust: bool) -> Any:
    """Load the processor (tokenizer, feature extractor or image processor) that was saved with a model's weights.

    path    folder of the checkpoint
    name    the model as the user wrote it, for errors
    trust   whether code in the checkpoint may be run

    None for a speech or image model saved without one: the corpus then uses defaults, which the run records. ModelError
    for a text model without one.
    """
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor
    from transformers.utils import FEATURE_EXTRACTOR_NAME, PROCESSOR_NAME

    if modality == "text":
        return _load_tokenizer(model, path, name, trust)
    if (
        model.config.model_type == "timm_wrapper"
    ):  # timm's own way to prepare an image stands in its configuration
        from transformers import TimmWrapperImageProcessor

        return TimmWrapperImageProcessor(
            model.config.pretrained_cfg, model.config.architecture
        )
    if not any(
        Path(path, file).is_file() for file in (FEATURE_EXTRACTOR_NAME, PROCESSOR_NAME)
    ):
        return None
    # A speech model is saved with a processor, which holds a tokenizer too, or with its
    # feature extractor alone.
    failure, kinds = "", (AutoProcessor, AutoFeatureExtractor)
    for kind in (AutoImageProcessor,) if modality == "image" else kinds:
        try:
            return kind.from_pretrained(path, trust_remote_code=trust)  # type: ignore[no-untyped-call]
        except Exception as error:
            failure = _write_on_one_line(error)
    raise ModelError(
        f"a readable preprocessor with {name}", failure, "download or save it again"
    )


def processor_of_images_and_texts(model: Any, path: str, trust: bool) -> Any:
    """Load the processor of a model that reads texts with images.

    None for other models. If it cannot be loaded, the reason as a text: texts alone can still be read.
    """
    from transformers import AutoProcessor

    if not {"image", "text"} <= {*(getattr(model, "input_modalities", None) or ())}:
        return None
    try:
        made: Any = AutoProcessor.from_pretrained(path, trust_remote_code=trust)  # type: ignore[no-untyped-call]
    except Exception as error:  # whatever is missing of it
        return _write_on_one_line(error)
    return (
        made
        if reads_images_and_texts(made)
        else f"{type(made).__name__}, which reads no images"
    )


def reads_images_and_texts(processor: Any) -> bool:
    """Return whether a processor has both a tokenizer and an image processor."""
    return all(hasattr(processor, name) for name in ("tokenizer", "image_processor"))


def _load_tokenizer(model: Any, path: str, name: str, trust: bool) -> Any:
    """Load a model's tokenizer.

    path    folder of the checkpoint
    name    the model as the user wrote it, for errors
    trust   whether code in the checkpoint may be run

    ModelError if there is none, if transformers invented one because files are missing, or if its length limit is no
    number.
    """
    from transformers import AutoTokenizer

    family, config = family_of(model), model.config
    # A port may share its `model_type` with a model of transformers, which has a tokenizer of its own.
    is_of_family = not family.port or type(config).__module__ == family.module
    if family.tokenizer and is_of_family:
        module, _, cls = family.tokenizer.partition(":")
        return getattr(import_module(module), cls)()
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path, trust_remote_code=trust)
    except Exception as error:
        raise ModelError(
            f"a tokenizer with {name}", _write_on_one_line(error), SAVE
        ) from error
    _check_vocabulary(tokenizer, config, path, name)
    _check_longest(tokenizer.model_max_length, name)
    return tokenizer


def _check_vocabulary(tokenizer: Any, config: Any, path: str, name: str) -> None:
    """Raise ModelError for a tokenizer that transformers made up, because its files are missing.

    config   the model's configuration
    path     folder of the checkpoint
    name     the model as the user wrote it
    """
    files = {"tokenizer.json", *getattr(tokenizer, "vocab_files_names", {}).values()}
    if len(files) == 1 or any(Path(path, file).exists() for file in files):
        return  # a tokenizer of bytes or characters names no file of its own, and needs none
    # transformers 5 makes a tokenizer with an empty vocabulary if the files are
    # missing, and every word becomes "unknown".
    if len(tokenizer) < (getattr(config, "vocab_size", None) or 0):
        raise ModelError(
            f"a tokenizer with {name}", f"none of {', '.join(sorted(files))}", SAVE
        )


def _check_longest(longest: Any, name: str) -> None:
    """Raise ModelError if a tokenizer's limit on the length of texts is not a positive number."""
    # JSON may have `true` there, which Python counts as a number.
    is_number = isinstance(longest, int | float) and not isinstance(longest, bool)
    if not is_number or not longest > 0:
        expected = f"a number as model_max_length in tokenizer_config.json of {name}"
        raise ModelError(expected, repr(longest), "write a number into that file")


def _write_on_one_line(error: Exception) -> str:
    """Write an error on one line, shortened."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
