"""Reject misspelt names of models and corpora before anything heavy is imported.

A name that passes here may still not be found.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice

from anisoscope.data.corpora import EXTRA_OF, NamedCorpus, list_corpora, named_corpora
from anisoscope.data.local import find_copy, find_path
from anisoscope.errors import CorpusError, ModelError, suggest_names
from anisoscope.extras import require_extra
from anisoscope.models.hub import split_name
from anisoscope.options import expand_home
from anisoscope.renamed import rename_typed_corpus

ENDING = re.compile(
    r"\.(txt|md|rst|dat|vec|csv|tsv|jsonl?|ndjson|parquet|arrow|feather|gz|npy|npz|safetensors|pt|pth|th|ckpt|bin|pkl|pickle"
    r"|h5|hdf5|onnx|gguf|zip|tar|wav|flac|mp3|ogg|png|jpe?g)$",
    re.I,
)
"""How names of files end that are no names of the hub."""
MOST_LISTED = 10_000  # names of a folder that are compared with one that is not there
# likeness to a known name, and most difference in length, of what is taken for a slip
NEAR, APART = 0.85, 2


def check_model(name: str) -> None:
    """Raise ModelError for a name that is almost a preset's (a likely typo), or for a path that does not exist."""
    from anisoscope.models.named import converted_models, named_models, packaged_models

    # Of all kinds, since any of them may be meant by a slip.
    known = ["builtin:minilm", *packaged_models(), *converted_models(), *named_models()]
    # a pattern stands for several checkpoints
    if set(name) & set("{}*?"):
        return
    base, _ = split_name(name)
    # A known name may need a package that is not installed: better now than after a
    # download.
    if base in known:
        require_for_model(base)
    if base in known or expand_home(base).exists():
        return
    if _is_slip(base, known):
        raise ModelError("a model's name", repr(name), suggest_names(base, known))
    if _must_be_path(base):
        got = f"{name}, which is not there"
        raise ModelError(
            "a checkpoint or a file of vectors", got, _explain_missing_path(base)
        )
    require_for_model(base)


def require_for_model(name: str) -> None:
    """Raise ExtraError if the packages that load this model are not installed.

    name   of the model; a function `module:function` that returns one needs no packages of ours
    """
    is_factory = ":" in name and not name.startswith("builtin:") and "/" not in name
    if not is_factory:
        require_extra(
            "demo" if name == "builtin:minilm" else "models", f"to load {name}"
        )


def check_corpus(name: str, *, labelled: bool = False) -> None:
    """Raise CorpusError for a misspelt name of a corpus, or for a path that does not exist.

    A name that is almost that of a known corpus is taken for misspelt. ExtraError if packages that read the corpus are
    not installed; a name that is neither known nor a path may be a data set of the hub.

    labelled   the name is to be of a corpus with class labels, so that it is compared with the names of those only
    """
    name = rename_typed_corpus(name)
    # `synthetic:20`: a name with its parameter
    base = name.partition(":")[0] if labelled else name
    row = named_corpora().get(base)
    # A name of the other kind (labelled or not) falls through: a file or a data set may
    # be called so.
    if row is not None and _has_labels(row) == labelled:
        _require_for_corpus(base, row)
        return
    if base == "" or find_path(name):
        return
    _refuse_slip(name, labelled)
    # What is left can only be a data set of the hub, which is asked later, as it takes a network.
    require_extra("data", f"to read {name}, a data set of the hub")


def _refuse_slip(name: str, labelled: bool) -> None:
    """Raise CorpusError if a name that is nothing known cannot be a data set of the hub either.

    It is almost the name of a known corpus, looks like a path, or is a text.
    """
    known = [key for key, row in list_corpora().items() if _has_labels(row) == labelled]
    if _is_slip(name, known):
        raise CorpusError("a corpus' name", repr(name), suggest_names(name, known))
    if _must_be_path(name):
        raise CorpusError(
            "a file or folder",
            f"{name}, which is not there",
            _explain_missing_path(name),
        )
    if len(name.split()) > 1:
        cure = "write texts into a file, one a line; in Python give a list of them"
        raise CorpusError(
            "a file, a folder or the name of a corpus", f"the text {name[:60]!r}", cure
        )


def _has_labels(corpus: NamedCorpus) -> bool:
    """Return whether the texts of a named corpus have class labels."""
    return corpus.modality == "labelled"


def _require_for_corpus(name: str, corpus: NamedCorpus) -> None:
    """Raise ExtraError if the packages that read a named corpus are not installed."""
    if corpus.hub and not find_copy(name):
        require_extra("data", f"to read {name}, a data set of the hub")
    if corpus.modality in EXTRA_OF:
        require_extra(EXTRA_OF[corpus.modality], f"to read {corpus.modality} ({name})")


def check_labelled(name: str) -> None:
    """Check the name of a labelled corpus as `check_corpus` does."""
    check_corpus(name, labelled=True)


def _is_slip(name: str, known: Iterable[str]) -> bool:
    """Return whether a name is probably a misspelling of a known one."""
    if name.startswith("builtin:"):  # only known names begin so
        return True
    if "/" in name:  # a path, or a data set of the hub
        return False
    # long names that differ by a word are alike too, and are other models
    similar = get_close_matches(name, known, n=3, cutoff=NEAR)
    return any(abs(len(found) - len(name)) <= APART for found in similar)


def _must_be_path(name: str) -> bool:
    """Return whether a name can only be meant as a path: by its slashes, its ending, or a file of almost that name."""
    # Ids of the hub are `name` or `owner/name`.
    if name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1:
        return True
    if ENDING.search(name) or _ends_with_doubled_letter(name):
        return True
    similar = suggest_path(name, surely=True)
    if "/" in name:
        return bool(similar)
    # A name of the hub without an owner may be near that of a folder here, but not near that of a file.
    return bool(ENDING.search(similar))


def _ends_with_doubled_letter(name: str) -> bool:
    """Return whether a name ends as files do if one of two equal letters is taken away, such as `.csvv` or `.npyy`."""
    _, dot, ending = name.rpartition(".")
    if not dot:
        return False
    # Other slips are not told from endings that names of the hub may have: `.data` is near `.dat`.
    return any(
        ENDING.search(f".{ending[:place]}{ending[place + 1 :]}")
        for place in range(1, len(ending))
        if ending[place] == ending[place - 1]
    )


def suggest_path(name: str, *, surely: bool = False) -> str:
    """Suggest an existing path with almost the same name as a missing one, in the same folder; "" if there is none.

    name     the missing path
    surely   only names that differ by one letter
    """
    path = expand_home(name)
    try:
        # A folder may hold millions of files.
        names = [other.name for other in islice(path.parent.iterdir(), MOST_LISTED)]
    except OSError:
        return ""
    if path.name in names:
        return ""
    # 0.6 is difflib's own default: for a path that is not there, a wrong suggestion
    # does no harm.
    for other in get_close_matches(path.name, names, n=3, cutoff=0.6):
        if not surely or _is_one_slip(path.name, other):
            return str(path.parent / other)
    return ""


def _is_one_slip(one: str, other: str) -> bool:
    """Return whether two names differ by one letter left out, doubled or changed, or by two swapped letters.

    A number that differs is no typo: it names another model (opt-125m, opt-350m).
    """
    if re.findall(r"\d+", one) != re.findall(r"\d+", other):
        return False
    # One letter left out or doubled: without it, the longer name is the shorter one.
    short, long = sorted((one, other), key=len)
    if len(long) - len(short) == 1:
        return any(
            long[:place] + long[place + 1 :] == short for place in range(len(long))
        )
    if len(long) != len(short):
        return False
    differing = [(a, b) for a, b in zip(one, other, strict=True) if a != b]
    # Two letters that changed places.
    if len(differing) == 2:
        (a, b), (c, d) = differing
        return (a, c) == (d, b)
    return len(differing) == 1


def _explain_missing_path(name: str) -> str:
    """Say which path a missing one may have been meant to be, or which of its folders is missing.

    name   the missing path, as the user wrote it
    """
    similar = suggest_path(name)
    if similar:
        return f"did you mean {similar}?"
    path = expand_home(name)
    above = next((folder for folder in path.parents if folder.is_dir()), None)
    if above is None or above == path.parent:
        return "check the path"
    # the first folder that is missing is the one with the typo
    return f"check the path: there is no {path.relative_to(above).parts[0]} in {above.resolve()}"
