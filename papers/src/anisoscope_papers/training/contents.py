"""What a training reads beside its corpus, by content: other word vectors or base weights under the same name make it
another training.
"""

import hashlib
import json
from functools import cache
from pathlib import Path

from anisoscope.models.load import checkpoint_path
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
    total = hashlib.sha256()
    file = Path(name).expanduser()
    if file.is_file():
        paths = [file]
    else:
        folder = Path(checkpoint_path(name).path)
        paths = sorted({path for pattern in READ for path in folder.glob(pattern) if path.is_file()})
        base = _base_of(folder)
        if base:
            total.update(f"base {hash_named(base)}\n".encode())
    for path in paths:
        stat = path.stat()
        total.update(f"{path.name} {_hash_file(path.resolve(), stat.st_size, stat.st_mtime_ns)}\n".encode())
    return total.hexdigest()[:16]


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
