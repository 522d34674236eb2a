"""Accept models of other libraries: pipelines of transformers and models of sentence-transformers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anisoscope.data.in_memory import library_of
from anisoscope.errors import UsageError

if TYPE_CHECKING:
    from anisoscope.models.load import Subject


@contextmanager
def unwrap_model(model: Any, processor: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (model, processor) taken from a transformers pipeline or a sentence-transformers model, in a `with` block.

    Any other model and its processor are yielded unchanged. What is added to a user's model is removed at the end.
    """
    # By its attributes, so that transformers is not imported for this.
    is_pipeline = (
        hasattr(model, "model")
        and hasattr(model, "preprocess")
        and hasattr(model, "tokenizer")
    )
    if library_of(model) == "sentence_transformers":
        with _unwrap_sentence_transformer(model) as subject:
            yield subject, processor
    elif is_pipeline:
        yield model.model, processor or _find_processor(model)
    else:
        yield model, processor


def _find_processor(pipeline: Any) -> Any:
    """Return the tokenizer, image processor or feature extractor of a transformers pipeline; None if it has none."""
    for name in ("tokenizer", "image_processor", "feature_extractor"):
        part = getattr(pipeline, name, None)
        if part is not None:
            return part
    return None


@contextmanager
def _unwrap_sentence_transformer(model: Any) -> Iterator["Subject"]:
    """Yield the Transformer of a sentence-transformers model, with the modules that make text vectors from its
    output.
    """
    from torch import nn

    from anisoscope.models.identity import hash_weights
    from anisoscope.models.load import Subject
    from anisoscope.models.other_libraries import LAST_STATES, try_text_pooling

    # The model is a sequence of modules: the Transformer, then pooling and so on.
    modules = list(model)
    first, behind = modules[0], modules[1:]
    base = getattr(first, "auto_model", None)
    if not isinstance(base, nn.Module):
        got = f"a {type(model).__name__} whose first module is {type(first).__name__}"
        raise UsageError(
            "a sentence-transformers model built on transformers",
            got,
            "measure its vectors: anisoscope.measure(model.encode(texts))",
        )
    notes: list[str] = []
    if behind:
        # Capture finds the modules behind the Transformer as its attribute `sentence`.
        base.sentence = nn.ModuleList(behind)
        # Which output of the Transformer the modules behind it read.
        text_config = getattr(first, "modality_config", {}).get("text", {})
        base.sentence.reads = text_config.get("method_output_name", LAST_STATES)
        chain = ", ".join(type(module).__name__ for module in modules)
        notes = try_text_pooling(base, model.tokenizer, chain)
    prompt = getattr(model, "default_prompt_name", None)
    if prompt:
        notes.append(
            f"texts are measured without the prompt that encode() would put first, {prompt!r}"
        )
    try:
        yield Subject(
            base, model.tokenizer, type(model).__name__, None, hash_weights(base), notes
        )
    finally:
        if hasattr(base, "sentence"):
            del base.sentence


def wrap_module(model: Any, processor: Any) -> "Subject":
    """Return a torch module as a `Subject`: the model with its processor and the hash of its weights.

    model       a torch module; a `Subject` (what `anisoscope.load` returns) is returned as it is
    processor   tokenizer or the like; if given, it replaces that of a `Subject`
    """
    from anisoscope.measure.calls import check_module
    from anisoscope.models.families import class_of
    from anisoscope.models.identity import hash_weights
    from anisoscope.models.load import Subject

    if isinstance(model, Subject):
        return model if processor is None else replace(model, processor=processor)
    check_module(model)
    return Subject(
        model, processor, class_of(model).__name__, None, hash_weights(model)
    )
