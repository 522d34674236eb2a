"""The checkpoints of a measured series, as a comparison takes them: their run folders by step, under short names."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anisoscope.errors import OutputError, UsageError
from anisoscope.models.series import is_series
from anisoscope.options import expand_home

if TYPE_CHECKING:
    from anisoscope.runs.differences import KeptRun

SERIES = "series.json"
"""The list of checkpoints in the folder of a measured series."""
_OF_CHECKPOINT = re.compile(r"(seed-\d+)-(step-\d+)-[0-9a-f]+")
"""Name of the run folder of a checkpoint in that of its series."""


def expand_series(names: Sequence[Any]) -> list[Any]:
    """Return names of runs and models, with the folder of a measured series replaced by the run folders of its
    checkpoints, in the order of their steps.

    names   anything but a text is returned unchanged

    UsageError for two such folders, for a series of several seeds, and for one that is not measured.
    """
    # A series may be named among single runs: it is replaced where it is.
    folders = [name for name in names if _is_measured_series(name)]
    if len(folders) > 1:
        # Which checkpoint belongs to which of the other series, only the user knows.
        one = _list_checkpoints(folders[0])[-1]
        other = _list_checkpoints(folders[1])[-1]
        raise UsageError(
            "one series of checkpoints",
            f"{len(folders)} ({', '.join(folders)})",
            f"name one checkpoint of each: {one} {other}",
        )
    if len(names) == 1 and not folders:
        # A single name cannot be compared with anything, unless it was meant as a series. A file holds vectors.
        only = names[0]
        if isinstance(only, str) and not Path(only).is_file():
            refuse_unmeasured_series(only)
    expanded: list[Any] = []
    for name in names:
        if name in folders:
            expanded += _list_checkpoints(name)
        else:
            expanded.append(name)
    return expanded


def _is_measured_series(name: Any) -> bool:
    """Return whether a name is that of a folder with a measured series."""
    return isinstance(name, str) and (expand_home(name) / SERIES).exists()


def _list_checkpoints(series: str) -> list[str]:
    """Return the run folders of the checkpoints of a measured series, by step.

    UsageError if they are of several seeds, OutputError if the folder's own list is damaged.
    """
    folder = expand_home(series)
    try:
        rows = json.loads((folder / SERIES).read_text("utf-8"))["checkpoints"]
        # By number: in the names of folders step 1000 sorts before step 20.
        rows = sorted(rows, key=lambda row: int(row["step"]))
        seeds = sorted({int(row["seed"]) for row in rows})
        found = [str(folder / row["folder"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        cure = "measure the series again"
        raise OutputError(
            f"the list of checkpoints in {folder}",
            f"a damaged {SERIES} ({error})",
            cure,
        ) from error
    if len(seeds) > 1:
        cure = f"name the checkpoints of one seed ({folder}/seed-{seeds[0]}-step-*), or one step of every seed"
        raise UsageError(
            "a series of one seed",
            f"{series}, of the seeds {', '.join(map(str, seeds))}",
            cure,
        )
    return found


def name_checkpoints(
    runs: "Sequence[KeptRun]", names: Sequence[str]
) -> "list[KeptRun]":
    """Return runs with short names for checkpoints of series: `step-20`; with their seed, and with the folder of their
    series, if these differ.

    names   how each run was named by the user
    """
    places = [_parse_checkpoint_folder(name) for name in names]
    checkpoints = [place for place in places if place]
    several_series = len({folder for folder, _, _ in checkpoints}) > 1
    several_seeds = len({seed for _, seed, _ in checkpoints}) > 1
    named = []
    for kept, place in zip(runs, places, strict=True):
        if place is None:
            named.append(kept)
            continue
        folder, seed, step = place
        # As short as it can be without two checkpoints of one name.
        short = f"{seed}-{step}" if several_seeds else step
        if several_series:
            short = f"{folder.name}/{short}"
        named.append(replace(kept, name=short))
    return named


def _parse_checkpoint_folder(name: str) -> tuple[Path, str, str] | None:
    """Return (folder of the series, `seed-S`, `step-N`) of a run folder in that of its series; None for other names."""
    path = expand_home(name)
    # The name alone may be chance: the list of the series must be there too.
    if not (path.parent / SERIES).exists():
        return None
    match = _OF_CHECKPOINT.fullmatch(path.name)
    if match is None:
        return None
    return path.parent, match[1], match[2]


def refuse_unmeasured_series(name: str) -> None:
    """Raise UsageError if a name means checkpoints not yet measured: a folder of them, a pattern or a list."""
    if not is_series(name):
        return
    # A text file may list checkpoints or hold vectors: what is inside decides.
    if Path(name).is_file():
        from anisoscope.data.vector_files import holds_vectors  # loads torch

        if holds_vectors(name):
            return
    cure = f"anisoscope measure {name} -o series, then anisoscope compare series"
    raise UsageError(
        "single models, or a series that was measured before",
        f"the checkpoints {name}",
        cure,
    )
