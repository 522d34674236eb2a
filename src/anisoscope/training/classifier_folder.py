"""The folder of a classifier's training: whether it may be trained into, and what stands in it meanwhile.

<folder>/identity.json, training.json       of the finished training; of a first one under way only the former
<folder>/checkpoints/identity.json          of one under way that is to take the place of a finished one
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anisoscope.errors import OutputError
from anisoscope.store import write_atomic


def finished(folder: Path, identity: dict[str, Any], *, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """training.json, where the folder holds this very training and `resume` is set; None where it may be trained.
    OutputError where the folder holds something else. Nothing is written.
    """
    if folder.is_file():
        raise OutputError("a folder for --output", f"the file {folder}", "choose another --output")
    described, kept, waiting = _places(folder)
    if overwrite:
        return None
    if not kept.exists():
        if folder.is_dir() and any(folder.iterdir()):
            raise OutputError(f"{folder} to be empty", "files that are no training", "choose another --output")
        return None
    done = described.exists() and _read(kept) == identity
    if not done and _read(waiting if waiting.exists() else kept) != identity:
        raise OutputError(f"another training in {folder}", "other settings", "choose another --output, or --overwrite")
    if not resume:
        raise OutputError(f"{folder} to be new", "this very training", "add --resume to go on, or --overwrite")
    return _read(described) if done else None


def begin(folder: Path, identity: dict[str, Any], *, overwrite: bool) -> None:
    """Note what is trained from now on. A finished training in the folder stays as it is until `finish`."""
    described, kept, waiting = _places(folder)
    if overwrite:
        shutil.rmtree(waiting.parent, ignore_errors=True)
    _write(waiting if described.exists() or waiting.exists() else kept, identity)


def finish(folder: Path, identity: dict[str, Any], training: dict[str, Any], parts: Sequence[Any]) -> None:
    """Save the model's parts, then training.json, in place of what was there; no checkpoints remain."""
    described, kept, waiting = _places(folder)
    described.unlink(missing_ok=True)
    for part in parts:
        part.save_pretrained(folder)
    _write(kept, identity)
    write_atomic(described, lambda path: path.write_text(json.dumps(training, indent=1)))
    shutil.rmtree(waiting.parent, ignore_errors=True)


def _places(folder: Path) -> tuple[Path, Path, Path]:
    return folder / "training.json", folder / "identity.json", folder / "checkpoints" / "identity.json"


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def _write(path: Path, identity: dict[str, Any]) -> None:
    write_atomic(path, lambda part: part.write_text(json.dumps(identity, indent=1, sort_keys=True)))
