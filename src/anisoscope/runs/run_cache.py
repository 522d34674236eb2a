"""Find finished runs by their settings before anything is loaded; at most the hub is asked for commits."""

import platform
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from anisoscope.data.corpora import (
    CorpusOptions,
    HubPart,
    named_corpora,
    resolve_corpus,
)
from anisoscope.data.hub import find_commit_of_set
from anisoscope.data.items import Item
from anisoscope.data.local import detect_modality
from anisoscope.data.media import find_local_items
from anisoscope.errors import AnisoscopeError, ModelError
from anisoscope.models.download import locate_checkpoint
from anisoscope.models.hub import split_name
from anisoscope.models.hub_memory import recall_commit
from anisoscope.models.named import hub_id
from anisoscope.models.packaged import BUILTIN, BUILTIN_SHA256
from anisoscope.provenance import json_roundtrip, make_run_id
from anisoscope.provenance.sources import are_unchanged
from anisoscope.runs.job import Job
from anisoscope.store import RunFolder

LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "numpy",
    "scipy",
    "scikit-learn",
    "pillow",
    "torchvision",
)
"""What may give a model another configuration, or a corpus other tokens or pixels, in another version."""

ADAPTER = "adapter_config.json"
"""The file of an adapter, which changes another model: of that one's state it says nothing."""


def make_key(job: Job) -> str | None:
    """Return a job's key: a hash of its settings, of the state of model and corpus, and of library versions.

    None if model or corpus would have to be read to know their state. Two jobs with the same key have the same
    identity, if the code that they use is unchanged.
    """
    # Code that comes with a model may change without a sign of it.
    if (
        job.trust_remote_code
        or (model := identify_model_state(job.model)) is None
        or (corpus := identify_corpus_state(job)) is None
    ):
        return None
    versions = dict.fromkeys(LIBRARIES, "") | {"python": platform.python_version()}
    for name in LIBRARIES:
        # What is not installed was not used; its version stays empty.
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return make_run_id(json_roundtrip(asdict(job)), model, corpus, versions)


def find_finished(key: str | None, folders: list[Path]) -> RunFolder | None:
    """Return the finished run with this key among the folders, if the code that it used is unchanged; else None."""
    for folder in folders if key is not None else ():
        run = RunFolder(folder)
        # A damaged run is reported where it is read; here it is just not the one.
        with suppress(AnisoscopeError):
            if run.complete and run.manifest.get("asked") == key:
                # The key knows settings and data, not our code: the run lists what it
                # used, and its hashes are compared with today's.
                code = (run.identity() or {}).get("code")
                if isinstance(code, dict) and code and are_unchanged(code):
                    return run
    return None


def identify_model_state(name: str) -> Any:
    """Return what identifies the state of the model `name` without reading it: a commit, or sizes and times of files.

    None if it is unknown.
    """
    # Part of the package: its hash is known.
    if name == BUILTIN:
        return BUILTIN_SHA256
    folder = Path(name)
    if folder.is_dir():
        alone = (folder / "config.json").exists() and not (folder / ADAPTER).exists()
        return _list_stamps([folder]) if alone else None
    # A factory of the user's, which may return another model each time.
    if ":" in name:
        return None
    try:
        base, revision = split_name(name)
    except ModelError:
        # Reported when it is loaded.
        return None
    try:
        base = hub_id(base)
        place = locate_checkpoint(f"{base}@{revision}" if revision else base)
    except ModelError:
        # Offline, or the hub does not answer: the commit that the name meant last time.
        return recall_commit("model", base, revision)
    return None if ADAPTER in place.files else place.commit


def identify_corpus_state(job: Job) -> Any:
    """Return what identifies a corpus' state without reading it: a commit, or sizes and times of files.

    None: unknown. For a manifest of clips or images the files that it lists count too.
    """
    if not job.corpus:
        return "built in"
    row = named_corpora().get(job.corpus)
    # Labelled corpora are read as texts here.
    modality = row.modality if row and row.modality != "labelled" else "text"
    try:
        place = resolve_corpus(
            job.corpus, modality, CorpusOptions(job.split, job.column)
        )
        if isinstance(place, HubPart):
            return find_commit_of_set(place)
        if not isinstance(place, Path):
            return "made here"
        items = _list_media(place, job)
    except AnisoscopeError:
        # Whatever is wrong with the corpus is reported when it is read.
        return None
    names = [(item.name, item.unit, item.fault) for item in items]
    files = [item.place for item in items if isinstance(item.place, Path)]
    return [_list_stamps([place]), names, _list_stamps(files)]


def _list_media(place: Path, job: Job) -> list[Item]:
    """Return the clips or images of a corpus on this disk; empty for texts, which are in the file itself."""
    modality = detect_modality(place)
    if modality not in ("speech", "image"):
        return []
    return list(find_local_items(place, modality, job.column).items)


def _list_stamps(paths: list[Path]) -> list[tuple[str, int, int]]:
    """Return (path, bytes, time of change in ns) of each file, and of all files below each folder."""
    stamps = []
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file():
                stat = file.stat()
                # Size and time instead of content: a corpus of many gigabytes is not
                # read for a key.
                stamps.append((str(file.resolve()), stat.st_size, stat.st_mtime_ns))
    return stamps
