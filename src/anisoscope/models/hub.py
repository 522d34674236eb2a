"""Models of the hub: resolve a name, download its files to the local cache, and verify each file's hash.

The hub is asked once. If it cannot be reached or fails, the cached copy is used, and the user is told.
"""

import json
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from anisoscope.errors import ModelError, is_too_long
from anisoscope.models.formats import (
    ADAPTER,
    ENDINGS,
    MODULES,
    choose_weight_file,
    explain_format,
    find_first_module,
    is_adapter,
    list_checkpoint_files,
)
from anisoscope.models.hashes import hash_large_file
from anisoscope.models.hub_faults import Fault, classify_fault
from anisoscope.models.hub_memory import (
    get_answer,
    get_timeout,
    remember,
    with_token_fallback,
)

AT_ONCE = 4
"""Downloads at a time."""
# Endings of files that a model does not need: archives, other libraries' weights,
# pictures, sounds.
_BESIDE = (
    ".npz",
    ".pb",
    ".zip",
    ".tar",
    ".gz",
    ".pkl",
    ".md",
    ".png",
    ".jpg",
    ".gif",
    ".mp4",
    ".wav",
    ".pdf",
)
_MODULE, _OF_MODULE = (
    re.compile(r"[1-9]_\w+"),
    ("config.json", "model.safetensors", "pytorch_model.bin"),
)
"""Folders of sentence-transformers' modules behind the Transformer, and what is read of them."""
_LARGEST = 1 << 26
"""Bytes of the largest file that is downloaded in addition to the weights."""


class ModelPlace(NamedTuple):
    """Where a model is: a local folder, or an id of the hub with the requested revision.

    commit   the commit, if known
    files    for each file at that commit the hash that the hub announced ("" if none)
    token    False if the hub is asked without the user's token
    notice   what the user has to know about how it was found
    """

    path: str
    revision: str | None
    commit: str | None = None
    files: Mapping[str, str] = {}
    sizes: Mapping[str, int | None] = {}
    token: bool | None = None
    notice: str = ""


def split_name(name: str) -> tuple[str, str | None]:
    """Split `id@revision` into id and revision (None if there is none).

    ModelError for a name that is too long, or for a revision of a folder, which has none.
    """
    if is_too_long(name):
        got, cure = (
            f"{name[:40]} … of {len(name)} letters",
            "shorten it: no part may exceed 255, nor all of it 4095",
        )
        raise ModelError("a model's name", got, cure)
    # A folder may have an @ in its name.
    if Path(name).is_dir():
        return name, None
    base, _, revision = name.partition("@")
    if revision and not base:
        raise ModelError(
            "a model's name before @",
            name,
            f"write ID@{revision}",
        )
    if not revision:
        return base, None
    if Path(base).is_dir():
        raise ModelError(
            "a folder without a revision",
            name,
            f"name {base}, or a hub id with @{revision}",
        )
    return base, revision


def locate(
    path: str, revision: str | None, name: str, suggestion: str = ""
) -> ModelPlace:
    """Find a model: a local folder, an id that the hub knows or, if the hub does not answer, a folder of the cache.

    path         the folder or id, without a revision
    revision     branch, tag or commit; None: the newest
    name         the model as the user wrote it, for errors
    suggestion   a sentence with similar names, for errors

    ModelError if it is none of these.
    """
    from huggingface_hub.errors import HFValidationError, RevisionNotFoundError

    if Path(path).is_dir():
        return ModelPlace(path, revision)
    _check_is_hub_id(path, name)
    try:
        place = _ask_hub(path, revision)
    except RevisionNotFoundError:
        raise ModelError(
            f"a revision of {path}",
            str(revision),
            "leave the revision out for the newest one",
        ) from None
    except HFValidationError:
        raise _make_not_found_error(name, suggestion, "") from None
    except Exception as error:  # whatever the hub or the network did: `classify_fault` tells the kinds apart
        return _find_in_cache(path, revision, name, suggestion, classify_fault(error))
    remember("model", path, revision, str(place.commit))
    return place


def _check_is_hub_id(path: str, name: str) -> None:
    """Raise ModelError for a path of a file, or of a folder that does not exist: the hub cannot know it.

    name   as the user wrote it
    """
    if Path(path).is_file():
        cure = (
            explain_format([Path(path).name])
            or "name the folder that holds it, with its config.json"
        )
        raise ModelError(
            "a checkpoint folder with config.json", f"{name!r}, a file", cure
        )
    # An id of the hub is `name` or `owner/name`.
    if Path(path).is_absolute() or path.startswith((".", "~")) or path.count("/") > 1:
        raise ModelError(
            "a folder",
            f"{name!r}, which is neither a folder here nor on the hub",
            "check the path",
        )


def _ask_hub(path: str, revision: str | None) -> ModelPlace:
    """Return what the hub says of a model: its commit, and names, sizes and hashes of its files.

    Raises whatever `huggingface_hub` does, and LookupError for an answer without a commit.
    """
    from huggingface_hub import HfApi

    options: dict[str, Any] = {
        "revision": revision,
        "timeout": get_timeout(),
        "files_metadata": True,
    }
    ask = partial(
        with_token_fallback,
        lambda token: HfApi().model_info(path, token=token, **options),
    )
    # The answer is kept, since one piece of work asks for the same model several times.
    info, token = get_answer(("model", path, revision), ask)
    siblings: list[Any] = info.siblings or []
    files: dict[str, str] = {}
    sizes: dict[str, int | None] = {}
    for file in siblings:
        # Large files have a SHA-256, small ones git's hash of a blob.
        files[file.rfilename] = str(
            (file.lfs or {}).get("sha256") or file.blob_id or ""
        )
        sizes[file.rfilename] = file.size
    # A proxy may answer with JSON of its own.
    if not isinstance(info.sha, str):
        raise LookupError("no commit in the answer")
    notice = ""
    if token is not None:
        notice = (
            f"the hub refuses the token; {path} is public and was loaded without it"
        )
    return ModelPlace(path, revision, info.sha, files, sizes, token, notice)


def does_exist(name: str) -> bool:
    """Return whether a folder, or a repository of the hub (at a revision), exists; if the hub is silent, a cached copy
    counts.
    """
    base, revision = split_name(name)
    try:
        return Path(name).exists() or bool(locate(base, revision, name))
    except ModelError:
        return False


def list_revisions(repository: str) -> list[str]:
    """List the branches and tags of a repository; those in the cache if the hub does not answer."""
    from huggingface_hub import HfApi, constants

    try:
        refs, _ = with_token_fallback(
            lambda token: HfApi().list_repo_refs(repository, token=token)
        )
        return [ref.name for ref in (*refs.branches, *refs.tags)]
    except Exception:  # as in `locate`
        folder = Path(
            constants.HF_HUB_CACHE, f"models--{repository.replace('/', '--')}", "refs"
        )
        return [
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_file()
        ]


def _find_in_cache(
    path: str, revision: str | None, name: str, suggestion: str, fault: Fault
) -> ModelPlace:
    """Return the copy in the hub's cache, used if the hub failed; ModelError if there is none.

    path         id of the model
    name         the model as the user wrote it, for errors
    suggestion   a sentence with similar names, for errors
    fault        why the hub failed
    """
    from huggingface_hub import try_to_load_from_cache

    # Each of them shows that the folder is a checkpoint: of a model, of an adapter, of
    # sentence-transformers.
    for file in ("config.json", ADAPTER, MODULES):
        found = try_to_load_from_cache(path, file, revision=revision)
        # Not a path: the file was never asked for (None), or the hub said that there is none (a marker).
        if isinstance(found, str):
            folder = Path(found).parent
            warning = f"{fault.got}: the copy of {path} in the cache is used (commit {folder.name[:12]})"
            return ModelPlace(str(folder), None, folder.name, notice=warning)
    raise _explain_absence(path, name, suggestion, fault)


def _explain_absence(path: str, name: str, suggestion: str, fault: Fault) -> ModelError:
    """Make the error for a model that neither the hub nor the cache gave. The caller raises it.

    path         id of the model
    name         the model as the user wrote it
    suggestion   a sentence with similar names; may be empty
    fault        why the hub failed
    """
    if fault.absent:
        return _make_not_found_error(name, suggestion, fault.cure)
    if fault.denied:
        return ModelError(f"access to {name}", fault.got, fault.cure)
    # The name may be a mistyped path: what lies in that folder helps more than advice
    # on networks.
    neighbours = describe_folder_of(path)
    if neighbours:
        got = f"{name!r}, which is not there, and not in the cache of the hub"
        return ModelError(
            "a model", got, f"{neighbours}; for a model of the hub: {fault.cure}"
        )
    got = f"{name!r}: {fault.got} and not in the cache"
    cure = f"{suggestion} {fault.cure}; else use builtin:minilm or a local folder (HF_HOME points to the cache)".strip()
    own = split_name(name)[0]
    if (
        Path(own).is_dir()
    ):  # a short name means the hub's model, even if a folder is called the same
        cure = f"for the folder of this name write ./{own}; for the hub's model: {cure}"
    return ModelError("a hub id, a folder, builtin:minilm or module:factory", got, cure)


def describe_folder_of(path: str) -> str:
    """Say which files are in the folder that a missing path would be in; "" if there is no such folder."""
    above = Path(path).parent
    if above == Path() or not above.is_dir():
        return ""
    # A folder may hold millions of files, of which five names are enough.
    names = sorted(other.name for other in islice(above.iterdir(), 100))[:5]
    return (
        f"the folder {above} has {', '.join(names)}"
        if names
        else f"the folder {above} is empty"
    )


def _make_not_found_error(name: str, suggestion: str, cure: str) -> ModelError:
    """Make the error for a model that was found neither here nor on the hub. The caller raises it.

    name         as the user wrote it
    suggestion   a sentence with similar names
    cure         further advice; both may be empty
    """
    cures = [suggestion, "check the spelling, or use a folder or builtin:minilm", cure]
    return ModelError(
        "a model",
        f"{name!r}, which is neither a folder here nor on the hub",
        "; ".join(filter(None, cures)),
    )


def download(
    place: ModelPlace, name: str, *, weights: bool = True, config_only: bool = False
) -> ModelPlace:
    """Download a model from the hub to the cache, verify the hash of every file, and return the folder it is in.

    place         the model at its commit
    name          as the user wrote it, for errors
    weights       also download the weights, in one format
    config_only   only the configuration and code

    ModelError if that fails, or if the files are no checkpoint.
    """
    weights = weights and not config_only
    # A folder of the user's: there is nothing to download, nor a hash to compare with.
    if not place.files and place.commit is None:
        return place
    # A copy in the cache: the hub announced nothing.
    if not place.files:
        return _verify_copy(place, name, weights=weights)
    wanted = _list_small_files(place, name, config_only=config_only)
    try:
        folder = _download(place, wanted)
        if weights:
            # Which files of weights are read follows from the small files.
            _download(place, _list_weight_files(place, folder, name))
    except ModelError:
        raise
    except Exception as error:  # as in `locate`, but for a disk that is full or closed
        # Errors of the hub's library are OSErrors too, but have no number.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        copy = _find_copy_after(error, place, name)
        return _verify_copy(copy, name, weights=weights)
    verify_hashes(folder, place.files, name)
    _remember(place, folder, move=not config_only)
    return ModelPlace(str(folder), None, place.commit, notice=place.notice)


def _find_copy_after(error: Exception, place: ModelPlace, name: str) -> ModelPlace:
    """Return the copy of a model in the cache, after a download failed. ModelError if access to the model is denied.

    error   why the download failed
    place   the model at its commit
    name    as the user wrote it, for errors
    """
    fault = classify_fault(error)
    # A copy in the cache must not hide that the user may not read this model.
    if fault.denied or fault.absent:
        raise ModelError(f"access to {name}", fault.got, fault.cure) from None
    return _find_in_cache(place.path, place.revision, name, "", fault)


def _list_small_files(place: ModelPlace, name: str, *, config_only: bool) -> list[str]:
    """Return which files of a repository are read in addition to the weights. ModelError without a configuration.

    place         the model, with the names and sizes of its files
    name          as the user wrote it, for errors
    config_only   only the configuration and code
    """
    config = find_first_module(place.files) + "config.json"
    if config not in place.files and not is_adapter(place.files):
        cure = explain_format(place.files) or "name another model"
        raise ModelError(f"config.json in {name}", "a repository without one", cure)
    small = [file for file in place.files if _is_small(file, place.sizes.get(file))]
    if not config_only:
        return small
    # Code too: without it, a model with code of its own has no configuration that can be read.
    return [file for file in small if file == config or file.endswith(".py")]


def _verify_copy(place: ModelPlace, name: str, *, weights: bool) -> ModelPlace:
    """Check a cached copy of a model, and return `place` unchanged.

    ModelError if the weights are missing, or a file does not have the hash that the cache keeps of it.

    name      the model as the user wrote it, for errors
    weights   require the weights to be there
    """
    folder = Path(place.path)
    if weights and choose_weight_file(list_checkpoint_files(folder)) is None:
        reason = place.notice.partition(":")[0]
        raise ModelError(
            f"the weights of {name}",
            f"only a part of them in the cache, and {reason}",
            "connect to the network",
        )
    verify_hashes(folder, {}, name)
    return place


def _is_small(name: str, size: int | None) -> bool:
    """Return whether a file of a repository is read in addition to the weights: configuration, vocabulary, code.

    name   its path in the repository
    size   in bytes; None: unknown
    """
    folder, _, file = name.rpartition("/")
    if (size or 0) > _LARGEST or file.startswith("."):
        return False
    if _MODULE.fullmatch(folder):
        return file in _OF_MODULE
    if not folder or re.fullmatch(r"0_\w+", folder):
        return not file.endswith((*ENDINGS, *_BESIDE, ".index.json"))
    # Of other folders only code is needed, which a model's own code may import.
    return file.endswith(".py")


def _list_weight_files(place: ModelPlace, folder: Path, name: str) -> list[str]:
    """Return the names of the files that hold a model's weights, in the one format that is read.

    For weights in several files (shards), the index is downloaded to learn their names. ModelError without weights.

    place    the model at its commit
    folder   where its small files are
    name     as the user wrote it, for errors
    """
    chosen = choose_weight_file(place.files)
    if chosen is None:
        cure = (
            explain_format(place.files, folder / "config.json") or "name another model"
        )
        raise ModelError(
            f"weights of torch in {name}", "a repository without them", cure
        )
    if not chosen.endswith(".index.json"):
        return [chosen]
    index = _download(place, [chosen]) / chosen
    try:
        shards = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
        return sorted(find_first_module(place.files) + shard for shard in shards)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        got = f"{type(error).__name__}: {error}"[:160]
        raise ModelError(
            f"an index of the weights in {chosen} of {name}",
            got,
            "name another revision",
        ) from None


def _download(place: ModelPlace, names: Iterable[str]) -> Path:
    """Download files of a model from the hub, several at a time, and return the folder of the cache they are in.

    place   the model at its commit
    names   paths of the files in the repository
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    def get(name: str) -> Path:
        """Download one file and return the root folder of the snapshot."""
        path = hf_hub_download(
            place.path, name, revision=place.commit, token=place.token
        )
        # `name` may lie in folders of the repository, which come after the snapshot's
        # own.
        return Path(path).parents[name.count("/")]

    disable_progress_bars()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        folders = list(pool.map(get, names))
    return folders[0]


def _remember(place: ModelPlace, folder: Path, *, move: bool) -> None:
    """Write into the hub's cache which commit the requested revision means, as the hub's own library does.

    place    the model, with the revision and its commit
    folder   the snapshot of the commit in the cache
    move     if the cache has another commit for this revision, replace it. This is done only once all files are there:
             until then the older, complete copy must be found if there is no network
    """
    # The cache has snapshots/COMMIT and, next to it, refs/REVISION with the commit as
    # its content.
    reference = folder.parents[1] / "refs" / (place.revision or "main")
    if place.revision == place.commit or (reference.is_file() and not move):
        return
    try:
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(str(place.commit))
    except OSError:  # a cache that is read-only serves as well
        return


def verify_hashes(folder: Path, announced: Mapping[str, str], name: str) -> None:
    """Raise ModelError if the hash of a cached file is wrong, after removing such files from the cache.

    folder      the snapshot of a model in the cache
    announced   {file: hash} as the hub gave it; for other files, the hash is the name of the blob in the cache
    name        the model as the user wrote it, for the error
    """
    wrong = []
    for path in sorted(file for file in folder.rglob("*") if file.is_file()):
        blob = path.readlink().name if path.is_symlink() else ""
        expected = announced.get(path.relative_to(folder).as_posix()) or blob
        came = _hash_like(expected, path)
        if came != expected:
            wrong.append((path.name, expected, came))
            _remove(path)
    if wrong:
        file, expected, came = wrong[0]
        more = f" ({len(wrong)} files in all)" if len(wrong) > 1 else ""
        expected = (
            f"{file} of {name} with the hash that the hub announced, {expected[:16]}…"
        )
        cure = "load it again; if it comes again, something in between changes it: check HF_ENDPOINT and the proxy"
        raise ModelError(expected, f"{came[:16]}…{more}; removed from the cache", cure)


def _hash_like(expected: str, path: Path) -> str:
    """Hash a file in the same way as an expected hash, whose length shows how it was made: SHA-256, or git's blob hash.

    If it is neither, `expected` itself is returned, since nothing can be compared.
    """
    from huggingface_hub.utils.sha import git_hash

    if re.fullmatch("[0-9a-f]{40}", expected):
        return git_hash(
            path.read_bytes()
        )  # a small file: large ones have the other hash
    if not re.fullmatch("[0-9a-f]{64}", expected):
        return expected
    return hash_large_file(path)


def _remove(path: Path) -> None:
    """Delete a file from the cache: the link, and every file that it points to."""
    while path.is_symlink():
        following = path.parent / path.readlink()
        path.unlink(missing_ok=True)
        path = following
    path.unlink(missing_ok=True)
