"""Whether a model is on the hub, asked before anything is loaded: quickly, with the cached copy as the fallback."""

from pathlib import Path
from typing import NamedTuple

from anisoscope.errors import ModelError

_TIMEOUT = 10.0
"""Seconds to wait for the hub's answer."""


class Place(NamedTuple):
    """Where a model is loaded from: an id or a folder, the revision as asked, and the commit where it is known."""

    path: str
    revision: str | None
    commit: str | None = None


def locate(path: str, revision: str | None, name: str, near: str) -> Place:
    """Where to load `path` at `revision` from: itself (a folder, or an id that the hub knows); else, where the hub
    cannot be reached, the folder of its copy in the local cache, and its commit. ModelError where it is neither.

    Asked first because every later request of transformers, of which there are a dozen, would be tried six times over
    half a minute without a network. `near` names models like this one.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if Path(path).is_dir():
        return Place(path, revision)
    try:
        return Place(path, revision, HfApi().model_info(path, revision=revision, timeout=_TIMEOUT).sha)
    except RevisionNotFoundError:
        raise ModelError(f"a revision of {path}", str(revision), "leave it out for the newest") from None
    except (RepositoryNotFoundError, HFValidationError):
        cure = f"{near} A private model needs `hf auth login`"
        raise ModelError("a model", f"{name!r}, which is neither a folder here nor on the hub", cure) from None
    except (HTTPError, OSError):
        return _cached(path, revision, name, near)


def _cached(path: str, revision: str | None, name: str, near: str) -> Place:
    """Folder and commit of the copy in the cache."""
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(path, "config.json", revision=revision)
    if not isinstance(found, str):
        raise ModelError(
            "a hub id, a folder, builtin:minilm or module:factory",
            f"{name!r} (no network reaches the hub, and its cache has no such copy)",
            f"{near} Without network use builtin:minilm or a local folder (HF_HOME points to the cache)",
        )
    folder = Path(found).parent
    return Place(str(folder), None, folder.name)
