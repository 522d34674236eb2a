"""A series of checkpoints as one subject: names in, checkpoints with their steps and seeds out, before any download.

google/multiberts-seed_{0..4}-step_{0,20,…,2000}k     repositories by pattern
EleutherAI/pythia-70m@step{0,1,2,4,…,143000}          revisions of one
runs/series                                           folder of step-* or checkpoint-*, or of such folders (seed-*)
steps.txt                                             a list: `name [step [seed]]` a line, # for remarks

{a,b,c}        these
{0..4}         0 to 4; {0..2000..20} every 20th
{0,20,…,2000}  goes on in the same steps; `...` is the same. Names that an ellipsis alone stands for need not exist
{1,2,4,…,64}   goes on by the same factor; of revisions: whatever the repository has in between
"""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby, pairwise, product
from pathlib import Path

from anisoscope.errors import ModelError, UsageError, is_too_long
from anisoscope.models.formats import ENDINGS
from anisoscope.models.hub import does_exist, list_revisions
from anisoscope.models.hub_memory import stop_asking_after_failure

_UNIT = {"": 1, "k": 1_000, "m": 1_000_000}
_STEP = re.compile(r"(?:step|checkpoint|ckpt|iter)s?[-_=]?(\d+)(?:([kKmM])(?![A-Za-z0-9]))?")
_SEED = re.compile(r"seed[-_=]?(\d+)")
_FOLDER = re.compile(r"(?:step|checkpoint)[-_](\d+)")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")
_GROUP = re.compile(r"\{([^{}]*)\}")
MOST = 100_000
"""Names of one pattern; more are a slip of the pen."""
AT_ONCE = 8
"""Questions to the hub at a time."""


@dataclass(frozen=True)
class Checkpoint:
    """A model at one training step of one training run (`seed`). `subject` is the name that `models.load` takes."""

    subject: str
    step: int
    seed: int


def is_series(spec: str) -> bool:
    """Return whether `spec` means several checkpoints: a pattern, a folder of checkpoints, or a list in a file."""
    path = Path(spec)
    if is_too_long(spec):
        return bool(_GROUP.search(spec))
    if _GROUP.search(spec) or (path.is_file() and not path.name.endswith(ENDINGS)):
        return True
    if path.is_dir():
        return not (path / "config.json").exists() and bool(_folders(path))
    return not path.exists() and bool(_globbed(spec))


def expand(spec: str) -> list[Checkpoint]:
    """Return the checkpoints of a series, sorted by seed and step.

    The hub is asked only for names that an ellipsis implies. ModelError for a series without checkpoints, UsageError
    for steps that cannot be read or that occur twice.
    """
    path, may_lie_here = Path(spec), not is_too_long(spec)  # a pattern may be longer than any file's name
    if may_lie_here and path.is_file():
        found = _listed(path)
    elif may_lie_here and path.is_dir():
        found = [_named(str(folder), folder.relative_to(path.parent).as_posix()) for folder in _folders(path)]
    else:
        names = _existing(spec) if _GROUP.search(spec) else _globbed(spec) or [spec]
        found = [_named(name, name) for name in names]
    if not found:
        cure = "check the spelling; a folder must hold step-* or checkpoint-* with a config.json each"
        raise ModelError("a series of checkpoints", f"{spec!r}, which matches nothing", cure)
    found = sorted(found, key=lambda c: (c.seed, c.step))
    for one, two in pairwise(found):
        if (one.seed, one.step) == (two.seed, two.step):
            got = f"step {one.step} of seed {one.seed} is {one.subject} and {two.subject}"
            cure = "put the seed into the names (seed-0/step-100), or write `name step seed` lines into a file"
            raise UsageError(f"every step once a seed in {spec}", got, cure)
    return found


def describe(checkpoints: Iterable[Checkpoint]) -> str:
    """Describe the series in a few lines: the seeds, and the steps of each."""
    ordered = groupby(sorted(checkpoints, key=lambda c: (c.seed, c.step)), key=lambda c: c.seed)
    steps_of = {seed: [f"{checkpoint.step:,}" for checkpoint in group] for seed, group in ordered}
    seeds_of: dict[str, list[str]] = {}
    for seed, steps in steps_of.items():
        seeds_of.setdefault(f"{len(steps)} steps {', '.join(steps)}", []).append(str(seed))
    return "\n".join(f"seed{'s' * (len(n) > 1)} {', '.join(n)}: {steps}" for steps, n in seeds_of.items())


def _folders(path: Path) -> list[Path]:
    """Return the folders named after steps in a folder or, if there are none, one level below."""
    levels = ([f for f in sorted(path.glob(g)) if _FOLDER.fullmatch(f.name) and f.is_dir()] for g in ("*", "*/*"))
    return next(filter(None, levels), [])


def _globbed(spec: str) -> list[str]:
    """Return the local folders that a pattern with * or ? matches; empty if it is no such pattern."""
    if "@" in spec or not set(spec) & set("*?"):
        return []
    root = Path(Path(spec).anchor)
    names = Path(spec).relative_to(root).parts
    pattern = "/".join(name if name == "**" else re.sub(r"\*+", "*", name) for name in names)  # within a name ** is *
    return sorted(str(path) for path in root.glob(pattern) if path.is_dir())


def _listed(path: Path) -> list[Checkpoint]:
    """Read checkpoints from a list file: lines `name [step [seed]]`; what is missing is read from the name."""
    found = []
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"a list of checkpoints in {path}", str(error), "one name a line") from None
    if any("\0" in line for line in lines):
        raise ModelError(
            "a model, a file of vectors or a list of checkpoints", f"{path}, none of them", "check the path"
        )
    for number, line in enumerate(lines, 1):
        name, *numbers = line.split("#")[0].split() or [""]
        if len(numbers) > 2 or not all(word.isdigit() for word in numbers):
            got = f"line {number}: {line.strip()[:80]!r}"
            cure = f"correct the line; a text to read is given as --corpus {path}"
            raise UsageError(f"`name [step [seed]]` in {path}, a list of checkpoints", got, cure)
        if numbers:
            found.append(Checkpoint(name, int(numbers[0]), int(numbers[1]) if numbers[1:] else _seed_of(name)))
        elif name:
            found.append(_named(name, name))
    return found


def _named(subject: str, name: str) -> Checkpoint:
    """Make a checkpoint from its name. UsageError if no step can be read from it.

    If the name has a revision, the step is read from that.
    """
    steps = list(_STEP.finditer(name.rpartition("@")[2]))
    if not steps:
        cure = "name them …step-1000, …checkpoint-1000 or …step_20k, or write `name step` lines into a file"
        raise UsageError("a step that can be read from each name", repr(name), cure)
    number, unit = steps[-1].groups()
    return Checkpoint(subject, int(number) * _UNIT[(unit or "").lower()], _seed_of(name))


def _seed_of(name: str) -> int:
    """Return the seed in a name; 0 if there is none."""
    return int([0, *_SEED.findall(name)][-1])


# ---- names of a pattern


def names_of(pattern: str) -> tuple[dict[str, bool], list[tuple[re.Pattern[str], int, int]]]:
    """Expand a pattern with braces into names. Return {name: whether it is only implied by an ellipsis}, and gaps.

    A gap is (regular expression that reads the number of a name, low, high): an ellipsis that continues neither in
    equal steps nor by a constant factor, so that the existing names between must be looked up. UsageError if it cannot
    be read.
    """
    parts = _GROUP.split(pattern)
    if set("".join(parts[::2])) & set("{}"):
        cure = "write google/multiberts-seed_{0..4}-step_{0,20}k"
        raise UsageError("a pattern whose braces close", repr(pattern), cure)
    groups, gaps = [], []
    for i in range(1, len(parts), 2):
        items, left_open = _items(parts[i], pattern)
        groups.append(items)
        texts = [re.escape(text) if k % 2 == 0 else r"(\d+)" if k == i else "(?:.*?)" for k, text in enumerate(parts)]
        gaps += [(re.compile("".join(texts)), low, high) for low, high in left_open]
    names: dict[str, bool] = {}
    for choice in product(*groups):
        text = parts[0] + "".join(item + after for (item, _), after in zip(choice, parts[2::2], strict=True))
        names[text] = names.get(text, True) and any(supposed for _, supposed in choice)
        if len(names) > MOST:
            raise UsageError(f"a pattern of at most {MOST:,} names", repr(pattern), "narrow its ranges")
    return names, gaps


def _existing(spec: str) -> list[str]:
    """Return the names of a pattern: all that are written out, and those implied by an ellipsis that exist."""
    names, gaps = names_of(spec)
    sure, supposed = ([name for name, maybe in names.items() if maybe is which] for which in (False, True))
    base = spec.partition("@")[0]
    if not supposed and not gaps:
        known = []
    elif "@" in spec and not _GROUP.search(base):
        there = {f"{base}@{revision}" for revision in list_revisions(base)}
        for read, low, high in gaps:
            numbered = sorted((int(found[1]), name) for name in there if (found := read.fullmatch(name)))
            supposed += [name for number, name in numbered if low < number < high]
        known = [name for name in supposed if name in there]
    else:
        with stop_asking_after_failure(), ThreadPoolExecutor(AT_ONCE) as pool:
            known = [name for name, is_there in zip(supposed, pool.map(does_exist, supposed), strict=True) if is_there]
    return list(dict.fromkeys([*sure, *known]))


def _items(text: str, pattern: str) -> tuple[list[tuple[str, bool]], list[tuple[int, int]]]:
    """Return the items of one brace group of a pattern: ([(item, implied by an ellipsis)], its gaps [(low, high)]).

    text      what is between the braces
    pattern   the whole pattern, for errors
    """
    items: list[tuple[str, bool]] = []
    gaps: list[tuple[int, int]] = []
    words = [word.strip() for word in text.split(",")]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word in ("…", "..."):
            more, left_open = _continued([item for item, _ in items], following, pattern)
            items += [(str(number), True) for number in more]
            gaps += left_open
        elif match := _RANGE.fullmatch(word):
            first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
            if step < 1 or last < first:
                raise UsageError("a range from low to high {0..4} or {0..2000..20}", f"{{{word}}} in {pattern!r}")
            items += [(str(number), False) for number in range(first, last + 1, step)]
        elif word:
            items.append((word, False))
    if not items:
        raise UsageError("something between the braces", repr(pattern), "write {0..4} or {0,20,40}")
    return items, gaps


def _continued(before: list[str], end: str, pattern: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers that an ellipsis stands for, and the gap [(low, high)] if it is unclear how it goes on.

    before   the items before the ellipsis; `end`: the one after it
    pattern  the whole pattern, for errors
    """
    if len(before) < 2 or not all(item.isdigit() for item in (*before[-2:], end)):
        got = f"{{{','.join(before[-2:])},…,{end}}} in {pattern!r}"
        raise UsageError("at least two numbers before an ellipsis and one after it", got, "write {0,20,…,2000}")
    numbers, last = [int(item) for item in before if item.isdigit()], int(end)
    if any(b <= a for a, b in pairwise([*numbers, last])):
        raise UsageError("numbers that rise", f"{numbers} … {last} in {pattern!r}", "order them")
    one, two = numbers[-2:]
    if len({b - a for a, b in pairwise(numbers[-3:])}) == 1:
        return list(range(two + (two - one), last, two - one)), []
    more: list[int] = []
    while one and two % one == 0 and (following := (more or [two])[-1] * (two // one)) < last:
        more.append(following)
    return more, [(two, last)]
