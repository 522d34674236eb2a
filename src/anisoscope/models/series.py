"""A series of checkpoints as one subject: names in, checkpoints with their steps and seeds out, before any download.

google/multiberts-seed_{0..4}-step_{0,20,…,2000}k     repositories by pattern (see `models.patterns`)
EleutherAI/pythia-70m@step{0,1,2,4,…,143000}          revisions of one
runs/series                                           folder of step-* or checkpoint-*, or of such folders (seed-*)
steps.txt                                             a list: `name [step [seed]]` a line, # for remarks
"""

import re
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from anisoscope.errors import ModelError, UsageError
from anisoscope.models import patterns
from anisoscope.models.formats import ENDINGS
from anisoscope.models.hub import exists, revisions

_UNIT = {"": 1, "k": 1_000, "m": 1_000_000}
_STEP = re.compile(r"(?:step|checkpoint|ckpt|iter)s?[-_=]?(\d+)(?:([kKmM])(?![A-Za-z0-9]))?")
_SEED = re.compile(r"seed[-_=]?(\d+)")
STEPS = re.compile(r"(?:step|checkpoint)[-_](\d+)")
"""Names of the folders of steps."""
AT_ONCE = 8
"""Questions to the hub at a time."""


@dataclass(frozen=True)
class Checkpoint:
    """A model at one step of one training: `subject` is what `models.load` takes."""

    subject: str
    step: int
    seed: int


def is_series(spec: str) -> bool:
    """Whether `spec` stands for several checkpoints: a pattern, a folder of checkpoints, a list in a file."""
    path = Path(spec)
    if patterns.is_pattern(spec) or (path.is_file() and not path.name.endswith(ENDINGS)):
        return True
    if path.is_dir():
        return not (path / "config.json").exists() and bool(_folders(path))
    return not path.exists() and bool(_globbed(spec))


def expand(spec: str) -> list[Checkpoint]:
    """The checkpoints of a series by seed and step. Nothing is downloaded; the hub is asked only which of the names
    that an ellipsis stands for exist.

    ModelError for a series without checkpoints, UsageError for steps that cannot be read or come twice.
    """
    path = Path(spec)
    if path.is_file():
        found = _listed(path)
    elif path.is_dir():
        found = [_named(str(folder), folder.relative_to(path.parent).as_posix()) for folder in _folders(path)]
    elif patterns.is_pattern(spec):
        found = [_named(name, name) for name in _matching(spec)]
    else:
        found = [_named(name, name) for name in _globbed(spec) or [spec]]
    if not found:
        cure = "check the spelling; a folder must hold step-* or checkpoint-* with a config.json each"
        raise ModelError("a series of checkpoints", f"{spec!r}, which matches nothing", cure)
    _check_order(found, spec)
    return sorted(found, key=lambda c: (c.seed, c.step))


def describe(checkpoints: Iterable[Checkpoint]) -> str:
    """The series in a few lines: seeds, and steps of each where they differ."""
    steps: dict[tuple[int, ...], list[int]] = {}
    by_seed: dict[int, list[int]] = {}
    for checkpoint in checkpoints:
        by_seed.setdefault(checkpoint.seed, []).append(checkpoint.step)
    for seed, of_seed in sorted(by_seed.items()):
        steps.setdefault(tuple(sorted(of_seed)), []).append(seed)
    lines = []
    for of_seeds, seeds in steps.items():
        which = f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
        lines.append(f"{which}: {len(of_seeds)} steps {', '.join(f'{step:,}' for step in of_seeds)}")
    return "\n".join(lines)


def _matching(spec: str) -> list[str]:
    """Names of a pattern: all that are written out, and of those an ellipsis stands for the ones that exist."""
    names, gaps = patterns.expand(spec)
    supposed = [name.text for name in names if name.supposed]
    if not supposed and not gaps:
        return [name.text for name in names]
    base, _, _revision = spec.partition("@")
    if "@" in spec and not patterns.is_pattern(base):
        there = {f"{base}@{revision}" for revision in revisions(base)}
        for gap in gaps:
            read = patterns.matcher(spec, gap.group)
            between = (m for m in map(read.fullmatch, there) if m and gap.low < int(m[1]) < gap.high)
            supposed += sorted((m[0] for m in between), key=lambda name: int(read.fullmatch(name)[1]))  # type: ignore[index]
        known = [name for name in dict.fromkeys(supposed) if name in there]
    else:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            known = [name for name, is_there in zip(supposed, pool.map(exists, supposed), strict=True) if is_there]
    return list(dict.fromkeys([*(name.text for name in names if not name.supposed), *known]))


def _folders(path: Path) -> list[Path]:
    """Folders of steps in a folder, or in the folders in it."""
    for level in ("*", "*/*"):
        found = [f for f in sorted(path.glob(level)) if STEPS.fullmatch(f.name) and f.is_dir()]
        if found:
            return found
    return []


def _globbed(spec: str) -> list[str]:
    """Folders that a pattern with * or ? matches here."""
    if "@" in spec or not set(spec) & set("*?"):
        return []
    root = Path(Path(spec).anchor)
    return sorted(str(path) for path in root.glob(str(Path(spec).relative_to(root))) if path.is_dir())


def _listed(path: Path) -> list[Checkpoint]:
    """Checkpoints of a list: what a line does not say is read from the name."""
    found = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"a list of checkpoints in {path}", str(error), "one name a line") from None
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) > 3 or not all(word.isdigit() for word in words[1:]):
            raise UsageError(
                f"`name [step [seed]]` in {path}, a list of checkpoints",
                f"line {number}: {line.strip()[:80]!r}",
                f"mend the line; a text to be read is given as --corpus {path}",
            )
        given = [int(word) for word in words[1:]]
        read = _named(words[0], words[0]) if not given else Checkpoint(words[0], given[0], _seed_of(words[0]))
        found.append(Checkpoint(read.subject, read.step, given[1]) if len(given) > 1 else read)
    return found


def _named(subject: str, name: str) -> Checkpoint:
    """A checkpoint by its name; the step stands in the revision where there is one."""
    place = name.rpartition("@")[2] if "@" in name else name
    steps = list(_STEP.finditer(place))
    if not steps:
        cure = "name them …step-1000, …checkpoint-1000 or …step_20k, or write `name step` lines into a file"
        raise UsageError("a step that can be read from each name", repr(name), cure)
    number, unit = steps[-1].groups()
    return Checkpoint(subject, int(number) * _UNIT[(unit or "").lower()], _seed_of(name))


def _seed_of(name: str) -> int:
    seeds = _SEED.findall(name)
    return int(seeds[-1]) if seeds else 0


def _check_order(found: list[Checkpoint], spec: str) -> None:
    """An error where two checkpoints are the same step of the same seed."""
    twice = [place for place, count in Counter((c.seed, c.step) for c in found).items() if count > 1]
    if twice:
        seed, step = twice[0]
        names = [c.subject for c in found if (c.seed, c.step) == twice[0]]
        cure = "put the seed into the names (seed-0/step-100), or write `name step seed` lines into a file"
        raise UsageError(
            f"every step once a seed in {spec}", f"step {step} of seed {seed} is {' and '.join(names)}", cure
        )
