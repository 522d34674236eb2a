"""Checkpoints of a series on this disk: locate them, download them ahead, and delete them after use."""

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from anisoscope.errors import ModelError
from anisoscope.models.formats import VOCABULARIES, WEIGHTS
from anisoscope.models.hub import ModelPlace, download, locate, split_name
from anisoscope.models.hub_memory import recall_commit, remember

FETCHED = "fetched"
"""What is remembered of a checkpoint that a series fetched: its name; nothing once it was let go of."""
STATE = ("*.safetensors", "*.bin", "*.json", "*.txt", "*.model", "*.py")
"""Files of a checkpoint that a model, its tokenizer or its own code is made of."""
SHAPE = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
)
"""What the checkpoints of one series have in common, besides the words of the vocabulary if its file is on disk."""


def locate_checkpoint(subject: str) -> ModelPlace:
    """Find where a checkpoint is: a folder or the hub. ModelError if it is nowhere.

    subject   name of the checkpoint
    """
    return locate(
        *split_name(subject), subject, "Check the names that the pattern matches."
    )


def compute_stamp(subject: str, place: ModelPlace) -> str:
    """Return a text that changes whenever a checkpoint changes, without reading its weights.

    It is the commit on the hub or, for a local folder, sizes and modification times of the files.

    subject   the checkpoint's name
    place     where it is
    """
    if place.commit is not None:
        return place.commit
    folder = Path(split_name(subject)[0])
    files = sorted(path for name in STATE for path in folder.glob(name))
    return json.dumps(
        [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    )


def read_shape(
    subject: str, place: ModelPlace, trust_remote_code: bool = False
) -> dict[str, Any]:
    """Return what the checkpoints of one series must have in common: {name: value} of architecture and sizes.

    They are read from the configuration. `vocabulary`, a hash of the tokenizer's file, is added if there is one.
    ModelError if there is no configuration.

    trust_remote_code   code in the checkpoint may be run to read the configuration

    subject   the checkpoint's name
    place     where it is
    """
    from transformers import AutoConfig

    place = download(place, subject, config_only=True)
    try:
        config: Any = AutoConfig.from_pretrained(
            place.path, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        got = " ".join(str(error).split())[:200]
        raise ModelError(
            f"a configuration of {subject}", got, "download or save it again"
        ) from None
    form = {name: getattr(config, name) for name in SHAPE if hasattr(config, name)}
    # Two vocabularies of one size may hold other words.
    words = (Path(place.path, name) for name in VOCABULARIES)
    for path in words:
        if path.is_file():
            return form | {
                "vocabulary": hashlib.sha256(path.read_bytes()).hexdigest()[:16]
            }
    return form


def is_on_disk(subject: str) -> bool:
    """Return whether the weights of a checkpoint are on this disk."""
    from huggingface_hub import try_to_load_from_cache

    base, revision = split_name(subject)
    cached = (try_to_load_from_cache(base, name, revision=revision) for name in WEIGHTS)
    return Path(base).is_dir() or any(isinstance(found, str) for found in cached)


def fetch(subject: str, lent: bool = True) -> None:
    """Download a checkpoint into the hub's cache, with weights in one format.

    Failures are silent: loading will report them.

    subject   name of the checkpoint
    lent      note on disk that it is there for a series only: then `is_left_over` is true until it is deleted
    """
    with suppress(ModelError, OSError):
        if lent:
            # Noted first, so that a download that was interrupted is found and deleted
            # too.
            remember(FETCHED, *split_name(subject), subject)
        download(locate_checkpoint(subject), subject)


def is_left_over(subject: str) -> bool:
    """Return whether a checkpoint is on disk only because a series downloaded it.

    This includes an earlier start of the series that was interrupted.
    """
    return recall_commit(FETCHED, *split_name(subject)) == subject and is_on_disk(
        subject
    )


def delete_checkpoint(subject: str) -> None:
    """Delete a checkpoint from the hub's cache, except files that other revisions share."""
    from huggingface_hub import scan_cache_dir

    base, revision = split_name(subject)
    # From now on nothing is noted of it, even if deleting it fails.
    with suppress(OSError):
        remember(FETCHED, base, revision, "")
    cache = scan_cache_dir()
    for repository in cache.repos:
        if repository.repo_id == base and repository.repo_type == "model":
            wanted = revision or "main"
            gone = []
            for found in repository.revisions:
                if wanted in (*found.refs, found.commit_hash):
                    gone.append(found.commit_hash)
            alone = replace(
                cache, repos=frozenset({repository})
            )  # a copy of a repository has the same commits
            alone.delete_revisions(*gone).execute()
