"""What exists on the hub, or in its cache where the hub cannot be reached: repositories, revisions, files."""

from pathlib import Path

_TIMEOUT = 10.0
"""Seconds to wait for the hub's answer."""


def exists(name: str) -> bool:
    """Whether a folder, or a repository (at a revision) of the hub, is there."""
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import (  # type: ignore[attr-defined]
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if Path(name).exists():
        return True
    base, _, revision = name.partition("@")
    try:
        HfApi().model_info(base, revision=revision or None, timeout=_TIMEOUT)
        return True
    except HFValidationError:
        return False
    except (RepositoryNotFoundError, RevisionNotFoundError):
        return False
    except (HTTPError, OSError):
        return isinstance(try_to_load_from_cache(base, "config.json", revision=revision or None), str)


def revisions(repository: str) -> list[str]:
    """Branches and tags of a repository; those in the cache where the hub cannot be reached."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]

    try:
        refs = HfApi().list_repo_refs(repository)
        return [ref.name for ref in (*refs.branches, *refs.tags)]
    except HFValidationError:
        return []
    except (HTTPError, OSError):
        folder = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "refs")
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
