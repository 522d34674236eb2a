"""A part of the campaign: its cases one by one, counted by kind; what fails is kept with all it needs.

A part is a module with `cases(draw, folder)`, a generator of `Case`s from a seeded `random.Random`, and `FEWEST`, by
kind how many there must be. A case fails by any exception.
"""

import json
import random
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

PARTS = ("payloads", "numbers", "hub", "inputs", "shards", "kills")
KEPT = 20
"""Failures of a part that are written down; the others are counted."""


class Case(NamedTuple):
    """`check(folder)`, in a new folder of its own, raises where the case fails; `told` says what it is made of."""

    kind: str
    told: str
    check: Callable[[Path], object]


@dataclass
class Found:
    """What a part came to: cases and failures by kind, and the first failures in words."""

    part: str
    seed: int
    seconds: float = 0.0
    cases: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    short: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.failures or self.short)


def run(
    part: str,
    seed: int,
    place: Path,
    *,
    seconds: float = 1500.0,
    most: int | None = None,
) -> Found:
    """All cases of a part, or as many as time and `most` allow; `place` gets `<part>.json` and what failed."""
    module, found = import_module(f"campaign.{part}"), Found(part, seed)
    folder = place / part
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    draw, began = random.Random(f"{part} {seed}"), time.monotonic()
    made = module.cases(draw, folder)
    try:
        for number, case in enumerate(made):
            own = folder / f"{number:05d}"
            own.mkdir()
            found.cases[case.kind] = found.cases.get(case.kind, 0) + 1
            try:
                case.check(own)
                shutil.rmtree(own, ignore_errors=True)
            except Exception:
                _keep(found, case, own)
            if time.monotonic() - began > seconds or number + 1 == most:
                break
    finally:
        made.close()
    found.seconds = round(time.monotonic() - began, 1)
    few = (
        {kind: n for kind, n in module.FEWEST.items() if found.cases.get(kind, 0) < n}
        if most is None
        else {}
    )
    found.short = [
        f"{found.cases.get(kind, 0)} of {n} cases of {kind} in {seconds:.0f} s"
        for kind, n in few.items()
    ]
    (place / f"{part}.json").write_text(json.dumps(asdict(found), indent=1))
    return found


def _keep(found: Found, case: Case, own: Path) -> None:
    """Count a failure, and write down what it was made of beside its files."""
    count = sum(found.failures.values())
    found.failures[case.kind] = found.failures.get(case.kind, 0) + 1
    if count >= KEPT:
        shutil.rmtree(own, ignore_errors=True)
        return
    own.mkdir(exist_ok=True)  # the case may have removed it
    text = traceback.format_exc()
    (own / "case.txt").write_text(
        f"{found.part}, seed {found.seed}, {case.kind}: {case.told}\n\n{text}"
    )
    last = text.strip().splitlines()[-1][:300]
    found.told.append(f"{case.kind}: {case.told[:200]}: {last} ({own}/case.txt)")
    print(f"FAILED {found.told[-1]}", flush=True)
