"""Hash what a training reads apart from its corpus: other word vectors or base weights under the same name count as
new.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from anisoscope.data.local import find_path
from anisoscope.errors import OutputError
from anisoscope.models.load import checkpoint_path
from anisoscope.store import list_changed_fields
from anisoscope_papers.training.recipe import RANDOM, ClassifierRecipe

READ = (
    "config.json",
    "adapter_config.json",
    "*.safetensors",
    "*.bin",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Files of a checkpoint that a model or its tokenizer is made of."""
ADAPTER = "adapter_config.json"
"""Says in the folder of an adapter (LoRA and kin) whose weights it changes."""


def hash_read(recipe: ClassifierRecipe) -> dict[str, str]:
    """Return {field: hash} of what a classifier's training reads by name: `vectors` (word vectors) or `model` (the
    encoder).

    Empty if word vectors are drawn at random.
    """
    name, field = (
        (recipe.vectors, "vectors") if recipe.is_attention else (recipe.model, "model")
    )
    if name == RANDOM:
        return {}
    return {field: hash_named(name)}


def hash_named(name: str) -> str:
    """Hash what `name` means: a file, or a checkpoint's weights, configuration and tokenizer; for an adapter also its
    base model.

    ModelError if one of them is unavailable.
    """
    file = Path(name).expanduser()
    if file.is_file():
        return _hash_all([file])
    folder = Path(checkpoint_path(name).path)
    # An adapter holds a few matrices; the rest of its weights are those of its base.
    base = _read_base(folder)
    # A set, since a file may fit two patterns; sorted, since the hash depends on the
    # order.
    paths = sorted(
        {path for pattern in READ for path in folder.glob(pattern) if path.is_file()}
    )
    return _hash_all(paths, f"base {hash_named(base)}\n" if base else "")


def hash_corpora(*names: str) -> dict[str, str]:
    """Return {name: hash of the files} of corpora; a corpus that is not a file here has its name in place of a hash."""
    return {name: _hash_files(find_path(name)) or name for name in dict.fromkeys(names)}


def _hash_files(place: Path | None) -> str:
    """Hash the file `place`, or all files if it is a folder; "" for None."""
    if place is None:
        return ""
    inside = sorted(path for path in place.rglob("*") if path.is_file())
    return _hash_all(inside if place.is_dir() else [place])


def _hash_all(paths: Sequence[Path], more: str = "") -> str:
    """Return one hash of the names and contents of files, and of the text `more`."""
    # Names count with contents: a file under another name is read as something else.
    total = hashlib.sha256(more.encode())
    for path in paths:
        # The resolved path, size and time are the key of the cache: hub files are links
        # to blobs.
        stat = path.stat()
        total.update(
            f"{path.name} {_hash_file(path.resolve(), stat.st_size, stat.st_mtime_ns)}\n".encode()
        )
    # 64 bits are enough to tell contents apart, and a record stays readable.
    return total.hexdigest()[:16]


def check_noted(noted: Path, now: Mapping[str, str], kept: Path) -> None:
    """Raise OutputError if an input of a finished training (corpus, vectors, encoder) has changed since.

    noted   the file with the hashes of the inputs at that time; without it, as in older trainings, nothing is checked
    now     the present hashes, by name
    kept    the file or folder that the training made, named in the error
    """
    if not noted.exists():
        return
    differ = ", ".join(list_changed_fields(now, json.loads(noted.read_text("utf-8"))))
    if differ:
        expected = f"the {differ} that the model in {kept} was trained with"
        raise OutputError(
            expected,
            "other contents",
            f"remove {kept} to train it again, or use the files of that training",
        )


def _read_base(folder: Path) -> str:
    """Return the name of the base model of the adapter in a folder; "" if it holds none, or names none."""
    path = folder / ADAPTER
    try:
        described = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError:  # a damaged file is told where the model is loaded
        return ""
    named = (
        described.get("base_model_name_or_path")
        if isinstance(described, dict)
        else None
    )
    # An adapter that names its own folder would be read without end.
    if isinstance(named, str) and named != str(folder):
        return named
    return ""


@cache
def _hash_file(path: Path, _size: int, _changed: int) -> str:
    """Return the SHA-256 of a file, cached by path, size and time of change."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
