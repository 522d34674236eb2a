"""Names that cannot be right, refused before anything heavy is imported. What passes here may still not be found."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from anisoscope.errors import CorpusError, ModelError, near_matches

NEAR, APART = 0.85, 2
"""A name that is this like a known one, and this much longer or shorter at most, is taken for a slip."""


def check_model(name: str) -> None:
    """ModelError for a name that is nearly a preset's, or a path that is not there."""
    from anisoscope.models.families import PRESETS

    known = ["builtin:minilm", *PRESETS]
    base = name.partition("@")[0]
    if base in known or _is_there(base) or set(name) & set("{}*?"):
        return
    if base.startswith("builtin:") or _is_slip(base, known):
        raise ModelError("a model's name", repr(name), near_matches(base, known))
    if _is_path(base):
        raise ModelError("a folder with a checkpoint", f"{name}, which is not there", "check the path")


def check_documents(rule: str) -> None:
    """UsageError for what is no rule of documents."""
    from anisoscope.data.splitting import check_rule

    check_rule(rule)


def check_corpus(name: str) -> None:
    """CorpusError for a name that is nearly a corpus' own, or a path that is not there."""
    from anisoscope.data import CORPORA, list_corpora
    from anisoscope.data.items import find_path

    if name == "" or name in CORPORA or find_path(name) is not None:
        return
    _refuse_corpus(name, list_corpora())


def check_labelled(name: str) -> None:
    """The same for a labelled corpus."""
    from anisoscope.data.items import find_path
    from anisoscope.data.labelled import LABELLED

    if name == "" or name.partition(":")[0] in LABELLED or find_path(name) is not None:
        return
    _refuse_corpus(name, LABELLED)


def _refuse_corpus(name: str, known: Iterable[str]) -> None:
    known = list(known)
    if name in known:
        return
    if name.startswith("builtin:") or _is_slip(name, known):
        raise CorpusError("a corpus' name", repr(name), near_matches(name, known))
    if _is_path(name):
        raise CorpusError("a file or folder", f"{name}, which is not there", "check the path")


def _is_slip(name: str, known: Iterable[str]) -> bool:
    near = get_close_matches(name, known, n=3, cutoff=NEAR)
    return "/" not in name and any(abs(len(found) - len(name)) <= APART for found in near)


def _is_there(name: str) -> bool:
    return Path(name).expanduser().exists()


def _is_path(name: str) -> bool:
    """Whether a name can only be a path: it begins or ends like one, has an ending, or more than one slash."""
    ending = re.search(r"\.(txt|csv|tsv|jsonl?|parquet|gz|npy|npz|safetensors|wav|flac|png|jpe?g)$", name)
    return name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1 or bool(ending)
