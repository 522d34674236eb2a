"""Merge shards: parts of one run that were measured separately and are added up."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import MeasureError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.provenance import make_run_id
from anisoscope.runs.run import finish
from anisoscope.store import RunFolder, list_changed_fields


def merge_runs(folders: Sequence[Path], output: Path) -> RunFolder:
    """Merge the shards in `folders` into one run, in the new folder `output`.

    MeasureError for shards of different runs (model, weights, settings, corpus, code), for batches that two shards
    hold, and if batches of the plan are missing.
    """
    parts = [RunFolder(folder) for folder in folders]
    manifests = [part.manifest for part in parts]
    identities = [_identity(part) for part in parts]
    for folder, identity in zip(folders, identities, strict=True):
        differ = ", ".join(list_changed_fields(identities[0], identity))
        if differ:
            got = f"{folder}, whose {differ} differs from {folders[0]}"
            raise MeasureError("shards of one run", got, "merge shards with the same settings (only --shard differs)")
    whole = _add_shards(parts, identities[0]["plan"], manifests)
    identity = identities[0] | {"shard": [0, 1]}
    target = RunFolder.start(output, identity, resume=False)
    facts = manifests[0] | {
        "run": make_run_id(identity),
        "asked": None,
        "merged": [manifest["run"] for manifest in manifests],
        "settings": manifests[0]["settings"] | {"shard": [0, 1]},
        "notes": list(dict.fromkeys(note for manifest in manifests for note in manifest["notes"])),
        "started": min(manifest["started"] for manifest in manifests),
        "seconds": round(sum(manifest["seconds"] for manifest in manifests), 2),
        "processes": sum(manifest["processes"] for manifest in manifests),
    }
    facts["corpus"] |= {"n_tokens": sum(manifest["corpus"]["n_tokens"] for manifest in manifests)}
    finish(target, whole, facts)
    return target


def _identity(part: RunFolder) -> dict[str, Any]:
    """Return the identity of a shard's run, without the number of the shard. MeasureError if the shard cannot be
    merged.

    part   the shard's folder
    """
    identity = part.identity() or {}
    if "classes" in identity:  # AUC, accuracy and what is replaced or explained are no sums
        cure = "measure them in one go with anisoscope classes"
        raise MeasureError("shards of anisoscope measure", f"classes of a labelled corpus in {part.folder}", cure)
    if not part.sums_path.exists():
        raise MeasureError(f"sums in {part.folder}", "none", "measure it with --shard")
    return {name: value for name, value in identity.items() if name != "shard"}


def _add_shards(parts: Sequence[RunFolder], plan: str, manifests: Sequence[dict[str, Any]]) -> Measurement:
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
            raise MeasureError("shards that have no batch in common", got, "name each shard of one division once")
        owner |= dict.fromkeys(shard.batches, part.folder)
        whole = whole.merge(shard)
    total, shards = manifests[0]["corpus"]["n_batches"], manifests[0]["settings"]["shard"][1]
    missing = sorted({index % shards for index in range(total) if index not in owner})
    if missing:
        named = ", ".join(f"{shard + 1}/{shards}" for shard in missing)
        cure = f"measure with --shard {missing[0] + 1}/{shards}, and name its folder too"
        raise MeasureError(f"shards that hold all {total} batches", f"{len(owner)}; missing: {named}", cure)
    return whole
