"""What a training reads beside its corpus, by content: other word vectors or base weights under the same name make it
another training.
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
    """Hashes of what a classifier's training reads, by field of its recipe: word vectors, or the encoder."""
    name, field = (recipe.vectors, "vectors") if recipe.is_attention else (recipe.model, "model")
    return {} if name == RANDOM else {field: hash_named(name)}


def hash_named(name: str) -> str:
    """A hash of the file of that name, or of the checkpoint's weights, configuration and tokenizer; of an adapter those
    of its base model too. ModelError if one of them cannot be had.
    """
    file = Path(name).expanduser()
    if file.is_file():
        return _hash_all([file])
    folder = Path(checkpoint_path(name).path)
    base = _base_of(folder)
    paths = sorted({path for pattern in READ for path in folder.glob(pattern) if path.is_file()})
    return _hash_all(paths, f"base {hash_named(base)}\n" if base else "")


def hash_corpora(*names: str) -> dict[str, str]:
    """Hashes of the files that corpora are read from here, by name; of one that is no file here its name."""
    return {name: _hash_files(find_path(name)) or name for name in dict.fromkeys(names)}


def _hash_files(place: Path | None) -> str:
    """A hash of a file, or of all files in a folder; empty if there is none."""
    if place is None:
        return ""
    inside = sorted(path for path in place.rglob("*") if path.is_file())
    return _hash_all(inside if place.is_dir() else [place])


def _hash_all(paths: Sequence[Path], more: str = "") -> str:
    """A hash of the names and the bytes of files, and of what is said beside them."""
    total = hashlib.sha256(more.encode())
    for path in paths:
        stat = path.stat()
        total.update(f"{path.name} {_hash_file(path.resolve(), stat.st_size, stat.st_mtime_ns)}\n".encode())
    return total.hexdigest()[:16]


def check_noted(noted: Path, now: Mapping[str, str], kept: Path) -> None:
    """OutputError if what was noted of the contents that `kept` was made from differs from those of now. What nothing
    was noted of is taken as it is: it was kept before contents were noted.
    """
    if not noted.exists():
        return
    differ = ", ".join(list_changed_fields(now, json.loads(noted.read_text("utf-8"))))
    if differ:
        expected = f"the {differ} that the model in {kept} was trained with"
        raise OutputError(expected, "other contents", f"remove {kept} to train it again, or bring the files of then")


def _base_of(folder: Path) -> str:
    """The name of the model whose weights the adapter in a folder changes; empty if it holds none, or names none."""
    path = folder / ADAPTER
    try:
        described = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    except ValueError:  # a damaged file is told where the model is loaded
        return ""
    named = described.get("base_model_name_or_path") if isinstance(described, dict) else None
    return named if isinstance(named, str) and named != str(folder) else ""


@cache
def _hash_file(path: Path, _size: int, _changed: int) -> str:
    """SHA-256 of a file as it was last changed then."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
