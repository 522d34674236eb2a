"""What exists on the hub, or in its cache where the hub cannot be reached: repositories, revisions, files."""

from pathlib import Path

from anisoscope.models.hub import TIMEOUT, cached_folder, split_name
from anisoscope.models.hub_faults import fault_of


def exists(name: str) -> bool:
    """Whether a folder, or a repository (at a revision) of the hub, is there; its copy in the cache, where the hub does
    not answer.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError

    if Path(name).exists():
        return True
    base, revision = split_name(name)
    try:
        HfApi().model_info(base, revision=revision, timeout=TIMEOUT)
        return True
    except HFValidationError:
        return False
    except Exception as error:  # as in `hub.locate`
        return not fault_of(error).absent and cached_folder(base, revision) is not None


def revisions(repository: str) -> list[str]:
    """Branches and tags of a repository; those in the cache where the hub does not answer."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError

    try:
        refs = HfApi().list_repo_refs(repository)
        return [ref.name for ref in (*refs.branches, *refs.tags)]
    except HFValidationError:
        return []
    except Exception:  # as in `hub.locate`
        folder = Path(constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "refs")
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
