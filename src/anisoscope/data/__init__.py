"""Corpora: a name, a path or a hub data set in; batches out. Importing this loads neither torch nor transformers.

May import: `models` and `batch`, and what is below them.
"""

from importlib import import_module
from typing import Any, NamedTuple

from anisoscope.errors import UsageError


class NamedCorpus(NamedTuple):
    """A corpus with a name of its own."""

    modality: str
    description: str


CORPORA = {
    "builtin:python-docs": NamedCorpus(
        "text", "documentation of the Python standard library; no download; the default"
    ),
    "wikitext-103": NamedCorpus("text", "WikiText-103 validation, 60 articles (hub: Salesforce/wikitext)"),
    "builtin:digits": NamedCorpus(
        "image", "1,797 handwritten digits of scikit-learn; no download; the default for images"
    ),
    "imagenet-1k": NamedCorpus("image", "ImageNet-1k validation, 50,000 photographs (hub: ILSVRC/imagenet-1k, gated)"),
    "common-voice": NamedCorpus(
        "speech", "Common Voice 11 English validation (no longer on the hub: name its dev.tsv)"
    ),
    "librispeech": NamedCorpus("speech", "LibriSpeech validation, other (hub: openslr/librispeech_asr)"),
}

OPENERS = {
    "text": "anisoscope.data.text:open_text",
    "image": "anisoscope.data.images:open_images",
    "speech": "anisoscope.data.speech:open_speech",
}
"""The function that opens the corpora of each modality; its module is imported when it is first needed."""


def open_corpus(name: str, *, modality: str | None = None, **options: Any) -> Any:
    """The corpus `name`, opened by the function for its modality (the preset's; else the one given; else text)."""
    modality = CORPORA[name].modality if name in CORPORA else modality or "text"
    if modality not in OPENERS:
        raise UsageError(f"a modality out of {', '.join(OPENERS)}", repr(modality))
    module, function = OPENERS[modality].split(":")
    return getattr(import_module(module), function)(name, **options)


def list_corpora() -> dict[str, NamedCorpus]:
    """The presets, and the corpora found under $ANISOSCOPE_DATA."""
    from anisoscope.data.documents import local_names
    from anisoscope.data.items import folders  # loads numpy

    found = {name: NamedCorpus("text", f"file {path}") for name, path in local_names().items()}
    for modality in ("image", "speech"):
        found |= {name: NamedCorpus(modality, f"folder {path}") for name, path in folders(modality).items()}
    return {**CORPORA, **found}
