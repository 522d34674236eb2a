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
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple

from anisoscope.errors import ModelError, UsageError, is_too_long
from anisoscope.models.formats import ENDINGS
from anisoscope.models.hub import does_exist, list_revisions
from anisoscope.models.hub_memory import stop_asking_after_failure
from anisoscope.options import expand_home

_UNIT = {"": 1, "k": 1_000, "m": 1_000_000}
# k or m is a unit only if no letter or digit follows.
_STEP = re.compile(
    r"(?:step|checkpoint|ckpt|iter)s?[-_=]?(\d+)(?:([kKmM])(?![A-Za-z0-9]))?"
)
_SEED = re.compile(r"seed[-_=]?(\d+)")
_FOLDER = re.compile(r"(?:step|checkpoint)[-_](\d+)")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")
_GROUP = re.compile(r"\{([^{}]*)\}")
MOST = 100_000
"""Names of one pattern; more are a slip of the pen."""
AT_ONCE = 8
"""Questions to the hub at a time."""


Item = tuple[str, bool]
"""One of the texts that a brace group stands for, and whether it is only implied by an ellipsis."""


class Gap(NamedTuple):
    """An ellipsis that continues neither in equal steps nor by a constant factor alone.

    The existing names between must be looked up.

    reader      regular expression that reads the number of a name
    low, high   numbers around the gap
    """

    reader: re.Pattern[str]
    low: int
    high: int


@dataclass(frozen=True)
class Checkpoint:
    """A model at one training step of one training run (`seed`). `subject` is the name that `models.load` takes."""

    subject: str
    step: int
    seed: int


def is_series(spec: str) -> bool:
    """Return whether `spec` means several checkpoints: a pattern, a folder of checkpoints, or a list in a file."""
    if _GROUP.search(spec):
        return True
    if is_too_long(spec):
        return False
    path = expand_home(spec)
    if path.is_file():
        # A file with weights is one model; any other file is a list of names.
        return not path.name.endswith(ENDINGS)
    if path.is_dir():
        # A training may leave step folders inside a checkpoint, which is then still one
        # model.
        return not (path / "config.json").exists() and bool(_find_step_folders(path))
    return not path.exists() and bool(_match_folders(spec))


def expand(spec: str) -> list[Checkpoint]:
    """Return the checkpoints of a series, sorted by seed and step.

    The hub is asked only for names that an ellipsis implies. ModelError for a series without checkpoints, UsageError
    for steps that cannot be read or that occur twice.
    """
    checkpoints = sorted(_find_checkpoints(spec), key=lambda c: (c.seed, c.step))
    if not checkpoints:
        cure = "check the spelling; a folder must hold step-* or checkpoint-* with a config.json each"
        raise ModelError(
            "a series of checkpoints", f"{spec!r}, which matches nothing", cure
        )
    for one, two in pairwise(checkpoints):
        if (one.seed, one.step) == (two.seed, two.step):
            got = (
                f"step {one.step} of seed {one.seed} is {one.subject} and {two.subject}"
            )
            cure = "put the seed into the names (seed-0/step-100), or write `name step seed` lines into a file"
            raise UsageError(f"every step only once per seed in {spec}", got, cure)
    return checkpoints


def _find_checkpoints(spec: str) -> list[Checkpoint]:
    """Return the checkpoints that a list file, a folder or a pattern stands for, in any order."""
    path = expand_home(spec)
    # A pattern may be longer than any file's name, about which the file system would raise an error.
    may_be_here = not is_too_long(spec)
    if may_be_here and path.is_file():
        return _read_list(path)
    if may_be_here and path.is_dir():
        # Without the folders above: a number in their names is no step.
        checkpoints = []
        for folder in _find_step_folders(path):
            name = folder.relative_to(path.parent).as_posix()
            checkpoints.append(_parse_name(str(folder), name))
        return checkpoints
    if _GROUP.search(spec):
        return [_parse_name(name, name) for name in _list_existing(spec)]
    # What matches no folder is a single name, perhaps of a model on the hub.
    names = _match_folders(spec) or [spec]
    return [_parse_name(name, name) for name in names]


def describe(checkpoints: Iterable[Checkpoint]) -> str:
    """Describe the series in a few lines: the seeds, and the steps of each."""
    steps_of: dict[int, list[str]] = {}
    for checkpoint in sorted(checkpoints, key=lambda c: (c.seed, c.step)):
        steps_of.setdefault(checkpoint.seed, []).append(f"{checkpoint.step:,}")
    # Seeds with the same steps share a line.
    seeds_of: dict[str, list[str]] = {}
    for seed, steps in steps_of.items():
        seeds_of.setdefault(f"{len(steps)} steps {', '.join(steps)}", []).append(
            str(seed)
        )
    lines = []
    for steps_text, seeds in seeds_of.items():
        plural = "s" if len(seeds) > 1 else ""
        lines.append(f"seed{plural} {', '.join(seeds)}: {steps_text}")
    return "\n".join(lines)


def _find_step_folders(path: Path) -> list[Path]:
    """Return the folders named after steps in a folder or, if there are none, one level below."""
    for pattern in ("*", "*/*"):
        folders = []
        for folder in sorted(path.glob(pattern)):
            if _FOLDER.fullmatch(folder.name) and folder.is_dir():
                folders.append(folder)
        if folders:
            return folders
    return []


def _match_folders(spec: str) -> list[str]:
    """Return the local folders that a pattern with * or ? matches; empty if it is no such pattern."""
    if "@" in spec or not set(spec) & set("*?"):
        return []
    place = expand_home(spec)
    root = Path(place.anchor)
    names = []
    for name in place.relative_to(root).parts:
        # Python before 3.13 refuses ** inside a name, where a shell reads it as *.
        names.append(name if name == "**" else re.sub(r"\*+", "*", name))
    return sorted(str(path) for path in root.glob("/".join(names)) if path.is_dir())


def _read_list(path: Path) -> list[Checkpoint]:
    """Read checkpoints from a list file: lines `name [step [seed]]`; what is missing is read from the name."""
    checkpoints = []
    for number, line in enumerate(_read_lines(path), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        name, *numbers = words
        if len(numbers) > 2 or not all(word.isdigit() for word in numbers):
            got = f"line {number}: {line.strip()[:80]!r}"
            cure = f"correct the line; a text to read is given as --corpus {path}"
            raise UsageError(
                f"`name [step [seed]]` in {path}, a list of checkpoints", got, cure
            )
        if not numbers:
            checkpoints.append(_parse_name(name, name))
            continue
        step, *seeds = map(int, numbers)
        seed = seeds[0] if seeds else _read_seed(name)
        checkpoints.append(Checkpoint(name, step, seed))
    return checkpoints


def _read_lines(path: Path) -> list[str]:
    """Return the lines of a list file. ModelError if it is no text."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"a list of checkpoints in {path}", str(error), "write one name per line"
        ) from None
    # Binary files may be valid UTF-8; a null character gives them away.
    if any("\0" in line for line in lines):
        expected = "a model, a file of vectors or a list of checkpoints"
        raise ModelError(expected, f"{path}, which is none of these", "check the path")
    return lines


def _parse_name(subject: str, name: str) -> Checkpoint:
    """Make a checkpoint from its name. UsageError if no step can be read from it.

    If the name has a revision, the step is read from that.
    """
    steps = list(_STEP.finditer(name.rpartition("@")[2]))
    if not steps:
        cure = "name them …step-1000, …checkpoint-1000 or …step_20k, or write `name step` lines into a file"
        raise UsageError("a step that can be read from each name", repr(name), cure)
    # The last one counts: the name of the training may hold a number of steps too.
    number, unit = steps[-1].groups()
    return Checkpoint(
        subject, int(number) * _UNIT[(unit or "").lower()], _read_seed(name)
    )


def _read_seed(name: str) -> int:
    """Return the seed in a name; 0 if there is none."""
    return int([0, *_SEED.findall(name)][-1])


# ---- names of a pattern


def expand_pattern(pattern: str) -> tuple[dict[str, bool], list[Gap]]:
    """Expand a pattern such as `org/model-step_{0,20,…,2000}k` into the names that it stands for.

    Returns ({name: is it only implied by the ellipsis, so that it may not exist}, gaps: ranges in which the ellipsis
    does not determine the numbers). UsageError if the pattern cannot be read.
    """
    # Texts outside of braces are at even places, those inside at odd ones.
    parts = _GROUP.split(pattern)
    # Braces outside of groups have no partner.
    if set("".join(parts[::2])) & set("{}"):
        cure = "write google/multiberts-seed_{0..4}-step_{0,20}k"
        raise UsageError("a pattern whose braces close", repr(pattern), cure)
    groups: list[list[Item]] = []
    gaps: list[Gap] = []
    for place in range(1, len(parts), 2):
        items, open_ranges = _parse_group(parts[place], pattern)
        groups.append(items)
        reader = _make_reader(parts, place)
        for low, high in open_ranges:
            gaps.append(Gap(reader, low, high))
    return _combine_items(parts[::2], groups, pattern), gaps


def _make_reader(parts: list[str], place: int) -> re.Pattern[str]:
    """Return a regular expression that matches the names of a pattern and captures the number of one brace group.

    parts   the pattern split at its braces: texts outside and inside of them in turn
    place   index of the group in `parts`
    """
    expression = ""
    for index, text in enumerate(parts):
        if index == place:
            expression += r"(\d+)"
        elif index % 2:
            expression += "(?:.*?)"
        else:
            expression += re.escape(text)
    return re.compile(expression)


def _combine_items(
    between: list[str], groups: list[list[Item]], pattern: str
) -> dict[str, bool]:
    """Combine the items of all brace groups into names: {name: is it only implied by an ellipsis}.

    between   the texts before, between and after the groups
    groups    items of each group as (text, is it implied by an ellipsis)
    pattern   the whole pattern, for errors
    """
    names: dict[str, bool] = {}
    for choice in product(*groups):
        name = between[0]
        for (item, _), text in zip(choice, between[1:], strict=True):
            name += item + text
        is_implied = any(implied for _, implied in choice)
        # A name that is also written out must exist, whichever way came first.
        names[name] = names.get(name, True) and is_implied
        # Checked at every name, before millions of them fill the memory.
        if len(names) > MOST:
            raise UsageError(
                f"a pattern of at most {MOST:,} names",
                repr(pattern),
                "narrow its ranges",
            )
    return names


def _list_existing(spec: str) -> list[str]:
    """Return the names of a pattern: all that are written out, and those implied by an ellipsis that exist."""
    names, gaps = expand_pattern(spec)
    written: list[str] = []
    implied: list[str] = []
    for name, is_implied in names.items():
        if is_implied:
            implied.append(name)
        else:
            written.append(name)
    # Nothing to look up, so the hub is not asked.
    if not implied and not gaps:
        return written
    repository = spec.partition("@")[0]
    if "@" in spec and not _GROUP.search(repository):
        # Revisions of one repository: a single question lists them all.
        existing = _select_revisions(repository, implied, gaps)
    else:
        existing = _select_repositories(implied)
    return list(dict.fromkeys([*written, *existing]))


def _select_repositories(names: list[str]) -> list[str]:
    """Return the names of models that exist, each of which is asked for."""
    with stop_asking_after_failure(), ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(does_exist, names))
    return [name for name, is_there in zip(names, answers, strict=True) if is_there]


def _select_revisions(
    repository: str, implied: list[str], gaps: list[Gap]
) -> list[str]:
    """Return the names `repository@revision` that exist on the hub, of those that an ellipsis may mean.

    implied   names that it implies, which may not exist
    gaps      ranges in which every revision that exists is meant
    """
    there = {f"{repository}@{revision}" for revision in list_revisions(repository)}
    existing = [name for name in implied if name in there]
    for gap in gaps:
        numbered = []
        for name in there:
            match = gap.reader.fullmatch(name)
            if match and gap.low < int(match[1]) < gap.high:
                numbered.append((int(match[1]), name))
        # `there` is a set, without an order.
        existing += [name for _, name in sorted(numbered)]
    return existing


def _parse_group(text: str, pattern: str) -> tuple[list[Item], list[tuple[int, int]]]:
    """Return the items of one brace group of a pattern, and the ranges (low, high) that an ellipsis leaves open.

    text      what is between the braces
    pattern   the whole pattern, for errors
    """
    items: list[Item] = []
    open_ranges: list[tuple[int, int]] = []
    words = [word.strip() for word in text.split(",")]
    # An ellipsis is read with the word after it, up to which it goes.
    for word, following in zip(words, [*words[1:], ""], strict=True):
        match = _RANGE.fullmatch(word)
        if word in ("…", "..."):
            before = [item for item, _ in items]
            more, left_open = _continue_numbers(before, following, pattern)
            items += [(str(number), True) for number in more]
            open_ranges += left_open
        elif match:
            numbers = _read_range(match, pattern)
            items += [(str(number), False) for number in numbers]
        elif word:
            items.append((word, False))
    if not items:
        raise UsageError(
            "something between the braces", repr(pattern), "write {0..4} or {0,20,40}"
        )
    return items, open_ranges


def _read_range(match: re.Match[str], pattern: str) -> range:
    """Return the numbers of a range such as `0..4` or `0..2000..20`, with its end. UsageError if it does not rise.

    match     the match of `_RANGE` with the range
    pattern   the whole pattern, for errors
    """
    first = int(match[1])
    last = int(match[2])
    step = int(match[3] or 1)
    if step < 1 or last < first:
        raise UsageError(
            "a range that rises, such as {0..4} or {0..2000..20}",
            f"{{{match[0]}}} in {pattern!r}",
        )
    return range(first, last + 1, step)


def _continue_numbers(
    before: list[str], end: str, pattern: str
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the numbers that an ellipsis stands for: (numbers, ranges).

    Equal steps (0, 20, …) are continued to the end, and there are no ranges. A constant factor (1, 2, 4, …) is
    continued too, but series such as Pythia's go on in equal steps later. So unless steps are equal, `ranges` is
    [(low, high)], the range in which existing numbers must be looked up.

    before    the items before the ellipsis
    end       the item after it
    pattern   the whole pattern, for errors
    """
    if len(before) < 2 or not all(item.isdigit() for item in (*before[-2:], end)):
        got = f"{{{','.join(before[-2:])},…,{end}}} in {pattern!r}"
        raise UsageError(
            "at least two numbers before an ellipsis and one after it",
            got,
            "write {0,20,…,2000}",
        )
    numbers = [int(item) for item in before if item.isdigit()]
    last = int(end)
    if not _are_rising([*numbers, last]):
        raise UsageError(
            "numbers that rise",
            f"{numbers} … {last} in {pattern!r}",
            "write them in rising order",
        )
    one, two = numbers[-2:]
    # Equal steps, as in 0, 20, 40, …: those of the last three numbers decide, since a series may begin in another way.
    steps = {b - a for a, b in pairwise(numbers[-3:])}
    if len(steps) == 1:
        step = two - one
        return list(range(two + step, last, step)), []
    return _continue_by_factor(one, two, last), [(two, last)]


def _continue_by_factor(one: int, two: int, last: int) -> list[int]:
    """Return the numbers after `one` and `two`, below `last`, if these grow by a whole factor, as in 1, 2, 4, …

    Empty if they do not.
    """
    if not one or two % one:
        return []
    factor = two // one
    numbers: list[int] = []
    number = two * factor
    while number < last:
        numbers.append(number)
        number *= factor
    return numbers


def _are_rising(numbers: list[int]) -> bool:
    """Return whether each number is greater than the one before."""
    return all(a < b for a, b in pairwise(numbers))
