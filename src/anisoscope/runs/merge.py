"""Merge runs: shards of one run that were measured separately, or runs of different files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anisoscope.data.plans import hash_parts
from anisoscope.errors import MeasureError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.provenance import make_run_id
from anisoscope.runs.differences import identify_units
from anisoscope.runs.run import finish
from anisoscope.store import RunFolder, list_changed_fields

NAMED = 3
"""Files that an error names; the rest are counted."""
BATCHES, FILES, RUNS = "shards of batches", "shards of files", "runs of different files"
"""What can be merged."""
COUNTED = ("n_batches", "empty", "skipped")
"""Entries of the manifest on a corpus that add up over its parts."""


def merge_runs(folders: Sequence[Path], output: Path) -> RunFolder:
    """Merge the shards, or the runs of different files, in `folders` into one run, in the new folder `output`.

    MeasureError for runs of different models, weights, settings or code, and of shards of different corpora; for
    batches or files that two of them hold; and if batches of the plan, or files of the corpus, are missing.
    """
    parts = [RunFolder(folder) for folder in folders]
    manifests = _read_manifests(parts)
    first = manifests[0]
    kind = _find_kind(manifests)
    identity = _require_one_run(parts, kind)
    facts = dict(first)
    if kind == BATCHES:
        # The shards read the same corpus, and their plan is that of the whole.
        corpus = first["corpus"]
        whole = _add_shards(parts, identity["plan"], manifests)
    else:
        join = _join_files if kind == FILES else _join_runs
        corpus = join(parts, manifests)
        whole = _add_files(parts, manifests)
        # Each part had a plan and a corpus of its own files; none of them describes the whole.
        identity |= {"files": corpus["fingerprint"], "corpus": corpus["name"]}
        facts["plan"] = ""
        facts["units"] = identify_units(corpus, None, whole.settings)
        facts["settings"] = first["settings"] | {"corpus": corpus["name"]}

    # After all checks, so that a merge that is refused leaves no folder.
    target = RunFolder.start(output, identity, resume=False)
    facts |= _add_up_facts(manifests)
    facts["run"] = make_run_id(identity)
    # The whole is no shard any more.
    facts["settings"] = facts["settings"] | {"shard": [0, 1]}
    facts["corpus"] = corpus | {
        "n_tokens": sum(manifest["corpus"]["n_tokens"] for manifest in manifests)
    }
    if kind == RUNS:
        # The sums are kept so that runs of more files can be added later. Shards are complete: nothing can follow.
        whole.save(target.sums_path)
    finish(target, whole, facts)
    return target


def _add_up_facts(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the manifest entries of a merged run that its parts' entries add up to: notes, time, processes."""
    notes: list[str] = []
    for manifest in manifests:
        for note in manifest["notes"]:
            # The same caution often holds for all parts, and is written once.
            if note not in notes:
                notes.append(note)
    return {
        # `measure --resume` finds runs by this key; a merged run is the answer to no single command.
        "asked": None,
        "merged": [manifest["run"] for manifest in manifests],
        "notes": notes,
        "started": min(manifest["started"] for manifest in manifests),
        "seconds": round(sum(manifest["seconds"] for manifest in manifests), 2),
        "processes": sum(manifest["processes"] for manifest in manifests),
    }


def _find_kind(manifests: Sequence[dict[str, Any]]) -> str:
    """Return what is merged: shards of batches, shards of files, or runs of different files."""
    corpora = [manifest.get("corpus", {}) for manifest in manifests]
    # A shard of files knows the list that it was divided from.
    if all("all_files" in corpus for corpus in corpora):
        return FILES
    # A run measured with --to-merge lists its own files only.
    if all("files" in corpus and "all_files" not in corpus for corpus in corpora):
        return RUNS
    return BATCHES


def _read_manifests(parts: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """Read the manifests of shards. The list of all files of the corpus, which each of them has, is kept once.

    parts   the shards' folders
    """
    manifests: list[dict[str, Any]] = []
    for part in parts:
        manifest = part.manifest
        corpus = manifest.get("corpus", {})
        if manifests and "all_files" in corpus:
            # Thousands of shards may list thousands of files each: equal lists share the memory of the first one.
            of_first = manifests[0].get("corpus", {}).get("all_files")
            if of_first == corpus["all_files"]:
                corpus["all_files"] = of_first
        manifests.append(manifest)
    return manifests


def _require_one_run(parts: Sequence[RunFolder], kind: str) -> dict[str, Any]:
    """Return the identity of the run whose parts these are. MeasureError if they are of different runs.

    parts   the folders
    kind    what is merged (`_find_kind`)
    """
    # shards of files have a plan each, of their own files; runs of different files have a corpus each
    left_out = {BATCHES: [], FILES: ["plan"], RUNS: ["plan", "corpus", "files"]}[kind]
    identities = [_read_identity(part, *left_out) for part in parts]
    for part, identity in zip(parts, identities, strict=True):
        changed = list_changed_fields(identities[0], identity)
        if not changed:
            continue
        got = (
            f"{part.folder}, whose {', '.join(changed)} differs from {parts[0].folder}"
        )
        if kind == RUNS:
            raise MeasureError(
                "runs that differ only in their files",
                got,
                "measure all with the same settings",
            )
        cure = "merge shards with the same settings (only --shard differs)"
        if changed[0] in ("plan", "corpus"):
            # Perhaps these are no shards at all, but runs of different files measured without --to-merge.
            cure += "; runs of different files, if all were measured with --to-merge"
        raise MeasureError("shards of one run", got, cure)
    return identities[0] | {"shard": [0, 1]}


def _read_identity(part: RunFolder, *left_out: str) -> dict[str, Any]:
    """Return the identity of a shard's run, without the number of the shard. MeasureError if the shard cannot be
    merged.

    part       the shard's folder
    left_out   further entries that need not agree
    """
    identity = part.identity() or {}
    # AUC, accuracy and what is replaced or explained are no sums, which could be added.
    if "classes" in identity:
        cure = "measure them in one go with anisoscope classes"
        raise MeasureError(
            "shards of anisoscope measure",
            f"a run of anisoscope classes in {part.folder}",
            cure,
        )
    if not part.sums_path.exists():
        cure = "measure it with --shard, or with --to-merge if the others are of other files"
        raise MeasureError(f"the sums that are merged in {part.folder}", "none", cure)
    for name in ("shard", *left_out):
        identity.pop(name, None)
    return identity


def _join_files(
    parts: Sequence[RunFolder], manifests: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the manifest's entry on the whole corpus, of which each shard read some files.

    parts       the shards' folders
    manifests   of the shards, in the same order

    MeasureError if two shards read the same file, if the corpus had other files for one of them, or if some files were
    read by none.
    """
    first = manifests[0]["corpus"]
    files = first["all_files"]
    owner: dict[str, Path] = {}
    hashes: dict[str, str] = {}
    for part, manifest in zip(parts, manifests, strict=True):
        corpus = manifest["corpus"]
        # Files that came or went between two shards: the shards would divide different lists.
        changed = set(corpus["all_files"]) ^ set(files)
        if changed:
            got = f"{min(changed)}, which is in only one of {parts[0].folder} and {part.folder}"
            raise MeasureError(
                "a corpus of the same files for all shards",
                got,
                "measure all shards of the same files",
            )
        twice = sorted(corpus["files"].keys() & owner.keys())
        if twice:
            got = f"{_name_some(twice)}, in {owner[twice[0]]} and in {part.folder}"
            raise MeasureError(
                "shards that have no file in common",
                got,
                "name each shard of one division once",
            )
        # Whose file is whose, for the error that names the shard which read it first.
        owner |= dict.fromkeys(corpus["files"], part.folder)
        hashes |= corpus["files"]
    _require_all_files(files, owner, manifests[0]["settings"]["shard"][1])

    whole = dict(first)
    # Thousands of names that say no more than the fingerprint does.
    del whole["files"], whole["all_files"]
    for name in COUNTED:
        whole[name] = sum(manifest["corpus"][name] for manifest in manifests)
    # In the order of the corpus, so that the fingerprint does not depend on how it was divided.
    whole["fingerprint"] = hash_parts([hashes[file] for file in files])
    return whole


def _join_runs(
    parts: Sequence[RunFolder], manifests: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return the manifest's entry on a corpus whose files were measured by runs of their own.

    parts       the runs' folders
    manifests   of the runs, in the same order

    MeasureError if two runs read the same texts, or separated documents by different rules.
    """
    first = manifests[0]["corpus"]
    # By the hash of the content: a copy of a file under another name would be counted twice.
    owner: dict[str, Path] = {}
    files: dict[str, str] = {}
    for part, manifest in zip(parts, manifests, strict=True):
        corpus = manifest["corpus"]
        rule, rule_of_first = corpus.get("documents"), first.get("documents")
        if rule != rule_of_first:
            got = f"{rule_of_first} in {parts[0].folder} and {rule} in {part.folder}"
            cure = "measure all with the same --documents"
            raise MeasureError(
                "documents that are separated by the same rule", got, cure
            )
        _refuse_files_of_others(part, corpus["files"], owner)
        for name, content in corpus["files"].items():
            owner[content] = part.folder
            files[_find_free_name(name, files, part)] = content

    whole = dict(first)
    whole["files"] = files
    # Sorted, so that the fingerprint does not depend on the order in which the runs are named.
    whole["fingerprint"] = hash_parts(sorted(files.values()))
    for name in COUNTED:
        whole[name] = sum(manifest["corpus"].get(name) or 0 for manifest in manifests)
    corpora = dict.fromkeys(manifest["corpus"]["name"] for manifest in manifests)
    whole["name"] = _name_some(list(corpora))
    # The path of the first run's file is not that of the whole.
    whole.pop("path", None)
    return whole


def _refuse_files_of_others(
    part: RunFolder, files: Mapping[str, str], owner: Mapping[str, Path]
) -> None:
    """Raise MeasureError if a run read files whose content another run read.

    files   {name of a file of the run: hash of its content}
    owner   {hash: folder of the other run that read it}
    """
    twice = [name for name, content in files.items() if content in owner]
    if twice:
        other = owner[files[twice[0]]]
        got = f"{_name_some(twice)} of {part.folder}, whose content is in {other} too"
        raise MeasureError(
            "runs that have no file in common",
            got,
            "name each run once, and each file in one run",
        )


def _find_free_name(name: str, taken: Mapping[str, str], part: RunFolder) -> str:
    """Return the name of a file; with the folder of its run before it, if a file of another run has the same name.

    taken   {name of a file of other runs: hash of its content}
    part    the run that read the file
    """
    return f"{part.folder.name}: {name}" if name in taken else name


def _require_all_files(
    files: Sequence[str], owner: dict[str, Path], shards: int
) -> None:
    """Raise MeasureError, with the missing shards, if some files of the corpus were read by none.

    owner    the shard that read each file
    shards   how many the corpus was divided into
    """
    missing = [index for index, file in enumerate(files) if file not in owner]
    if missing:
        lacking = _list_missing_shards(missing, shards)
        named = _name_shards(lacking, shards)
        got = f"{len(owner)}; missing: {named} ({_name_some([files[index] for index in missing])})"
        cure = (
            f"measure with --shard {lacking[0] + 1}/{shards}, and name its folder too"
        )
        raise MeasureError(f"shards that hold all {len(files)} files", got, cure)


def _list_missing_shards(missing: Sequence[int], shards: int) -> list[int]:
    """Return the shards to which batches or files belong: they are dealt out in turn.

    missing   indices of the batches or files
    shards    how many the corpus was divided into
    """
    # Entry i went to shard i modulo their number.
    return sorted({index % shards for index in missing})


def _name_shards(lacking: Sequence[int], shards: int) -> str:
    """Name shards as --shard does, which counts from 1: `2/8, 5/8`."""
    return ", ".join(f"{shard + 1}/{shards}" for shard in lacking)


def _name_some(files: Sequence[str]) -> str:
    """Name the first files, and count the others."""
    named = ", ".join(files[:NAMED])
    more = len(files) - NAMED
    if more > 0:
        named += f" and {more} more"
    return named


def _add_files(
    parts: Sequence[RunFolder], manifests: Sequence[dict[str, Any]]
) -> Measurement:
    """Add up the sums of shards of files; only one is in memory at a time.

    parts       the shards' folders
    manifests   of the shards, in the same order
    """
    settings = Settings.read(manifests[0]["settings"]["settings"])
    # Without a plan: each part had its own.
    whole = Measurement(settings)
    for part in parts:
        whole = whole.merge(Measurement.restore(part.sums_path, settings))
    return whole


def _add_shards(
    parts: Sequence[RunFolder], plan: str, manifests: Sequence[dict[str, Any]]
) -> Measurement:
    """Add up the sums of all shards; only one is in memory at a time.

    parts       the shards' folders
    plan        hash of the list of batches, which all must have
    manifests   of the shards, in the same order

    MeasureError if two shards hold the same batches, or if some batches are in none.
    """
    owner: dict[int, Path] = {}
    settings = Settings.read(manifests[0]["settings"]["settings"])
    whole = Measurement(settings, plan)
    for part in parts:
        shard = Measurement.restore(part.sums_path, settings, plan)
        twice = shard.batches & owner.keys()
        if twice:
            got = f"{len(twice)} batches of {part.folder} that {owner[min(twice)]} holds too"
            raise MeasureError(
                "shards that have no batch in common",
                got,
                "name each shard of one division once",
            )
        owner |= dict.fromkeys(shard.batches, part.folder)
        whole = whole.merge(shard)

    total = manifests[0]["corpus"]["n_batches"]
    shards = manifests[0]["settings"]["shard"][1]
    missing = [index for index in range(total) if index not in owner]
    if missing:
        lacking = _list_missing_shards(missing, shards)
        cure = (
            f"measure with --shard {lacking[0] + 1}/{shards}, and name its folder too"
        )
        got = f"{len(owner)}; missing: {_name_shards(lacking, shards)}"
        raise MeasureError(f"shards that hold all {total} batches", got, cure)
    return whole
