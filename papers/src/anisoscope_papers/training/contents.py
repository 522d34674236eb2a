"""What a training reads beside its corpus, by content: other word vectors or base weights under the same name make it
another training.
"""

import hashlib
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


def hash_read(recipe: ClassifierRecipe) -> dict[str, str]:
    """Hashes of what a classifier's training reads, by field of its recipe: word vectors, or the encoder."""
    name, field = (recipe.vectors, "vectors") if recipe.is_attention else (recipe.model, "model")
    return {} if name == RANDOM else {field: hash_named(name)}


def hash_named(name: str) -> str:
    """A hash of the file of that name, or of the checkpoint's weights, configuration and tokenizer. ModelError if it
    cannot be had.
    """
    file = Path(name).expanduser()
    if file.is_file():
        paths = [file]
    else:
        folder = Path(checkpoint_path(name).path)
        paths = sorted({path for pattern in READ for path in folder.glob(pattern) if path.is_file()})
    total = hashlib.sha256()
    for path in paths:
        stat = path.stat()
        total.update(f"{path.name} {_hash_file(path.resolve(), stat.st_size, stat.st_mtime_ns)}\n".encode())
    return total.hexdigest()[:16]


@cache
def _hash_file(path: Path, _size: int, _changed: int) -> str:
    """SHA-256 of a file as it was last changed then."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
