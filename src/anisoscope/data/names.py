"""Names that cannot be right, refused before anything heavy is imported. What passes here may still not be found."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from anisoscope.data.corpora import EXTRA_OF, NamedCorpus, list_corpora, named_corpora
from anisoscope.data.local import copy_of, find_path
from anisoscope.errors import CorpusError, ModelError, near_matches
from anisoscope.extras import require_extra
from anisoscope.models.hub import split_name

NEAR, APART = 0.85, 2  # likeness to a known name, and most difference in length, by which a name is taken for a slip


def check_model(name: str) -> None:
    """ModelError for a name that is nearly a preset's, or a path that is not there."""
    from anisoscope.models.named import converted_models, named_models, packaged_models

    known = ["builtin:minilm", *packaged_models(), *converted_models(), *named_models()]
    if set(name) & set("{}*?"):
        return
    base, _ = split_name(name)
    if base in known:
        require_for_model(base)
    if base in known or Path(base).expanduser().exists():
        return
    if _is_slip(base, known):
        raise ModelError("a model's name", repr(name), near_matches(base, known))
    if _is_path(base):
        raise ModelError("a checkpoint or a file of vectors", f"{name}, which is not there", "check the path")
    require_for_model(base)


def require_for_model(name: str) -> None:
    """ExtraError if the packages that load models are not installed; what a function of one's own gives needs none."""
    is_factory = ":" in name and not name.startswith("builtin:") and "/" not in name
    if not is_factory:
        require_extra("demo" if name == "builtin:minilm" else "models", f"to load {name}")


def check_corpus(name: str, *, labelled: bool = False) -> None:
    """CorpusError for a name that is nearly a corpus' own, or a path that is not there."""
    base, corpora = name.partition(":")[0] if labelled else name, named_corpora()
    if base in corpora and (corpora[base].modality == "labelled") == labelled:
        _require_for_corpus(base, corpora[base])
        return
    if base == "" or find_path(name):
        return
    known = [key for key, row in list_corpora().items() if (row.modality == "labelled") == labelled]
    if _is_slip(name, known):
        raise CorpusError("a corpus' name", repr(name), near_matches(name, known))
    if _is_path(name):
        raise CorpusError("a file or folder", f"{name}, which is not there", "check the path")
    require_extra("data", f"to read {name}, a data set of the hub")


def _require_for_corpus(name: str, corpus: NamedCorpus) -> None:
    """ExtraError if the packages that read a named corpus are not installed."""
    if corpus.hub and not copy_of(name):
        require_extra("data", f"to read {name}, a data set of the hub")
    if corpus.modality in EXTRA_OF:
        require_extra(EXTRA_OF[corpus.modality], f"to read {corpus.modality} ({name})")


def check_labelled(name: str) -> None:
    """The same for a labelled corpus."""
    check_corpus(name, labelled=True)


def _is_slip(name: str, known: Iterable[str]) -> bool:
    near = get_close_matches(name, known, n=3, cutoff=NEAR)
    alike = "/" not in name and any(abs(len(found) - len(name)) <= APART for found in near)
    return name.startswith("builtin:") or alike


def _is_path(name: str) -> bool:
    """Whether a name can only be a path: it begins or ends like one, has an ending, or more than one slash."""
    ending = re.search(r"\.(txt|csv|tsv|jsonl?|parquet|gz|npy|npz|safetensors|wav|flac|png|jpe?g)$", name)
    return name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1 or bool(ending)
