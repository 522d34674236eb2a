"""Brace patterns of names: `seed_{0..4}-step_{0,20,…,2000}k` → every name, and which of them are only supposed.

{a,b,c}        these
{0..4}         0 to 4; {0..2000..20} every 20th
{0,20,…,2000}  goes on in the same steps; `...` is the same. Names that an ellipsis alone stands for need not exist
{1,2,4,…,64}   goes on by the same factor; of revisions: whatever the repository has in between
"""

import re
from dataclasses import dataclass
from itertools import pairwise, product

from anisoscope.errors import UsageError

ELLIPSIS = ("…", "...")
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\.\.(\d+))?")
_GROUP = re.compile(r"\{([^{}]*)\}")
MOST = 100_000
"""Names of one pattern; more are a slip of the pen."""


@dataclass(frozen=True)
class Name:
    """A name that a pattern stands for; `supposed`: by an ellipsis alone."""

    text: str
    supposed: bool = False


@dataclass(frozen=True)
class Gap:
    """What an ellipsis leaves open: numbers in group `group` above `low` and below `high`."""

    group: int
    low: int
    high: int


def is_pattern(text: str) -> bool:
    """Whether the text has a brace group."""
    return _GROUP.search(text) is not None


def expand(pattern: str) -> tuple[list[Name], list[Gap]]:
    """Every name of a pattern, in order, without repeats; gaps are those of ellipses that go on neither in equal steps
    nor only by a factor up to the end. UsageError for what cannot be read.
    """
    parts = _GROUP.split(pattern)
    if "{" in "".join(parts[::2]) or "}" in "".join(parts[::2]):
        raise UsageError(
            "a pattern whose braces close", repr(pattern), "write google/multiberts-seed_{0..4}-step_{0,20}k"
        )
    groups, gaps = [], []
    for i, text in enumerate(parts[1::2]):
        items, low_high = _items(text, pattern)
        groups.append(items)
        gaps += [Gap(i, low, high) for low, high in low_high]
    names: dict[str, bool] = {}
    for choice in product(*groups):
        text = "".join(a + b for a, b in zip(parts[::2], [*(item for item, _ in choice), ""], strict=True))
        names[text] = names.get(text, True) and any(supposed for _, supposed in choice)
        if len(names) > MOST:
            raise UsageError(f"a pattern of at most {MOST:,} names", repr(pattern), "narrow its ranges")
    return [Name(text, supposed) for text, supposed in names.items()], gaps


def matcher(pattern: str, group: int) -> re.Pattern[str]:
    """An expression for the names of a pattern that reads the number in one of its groups."""
    parts = _GROUP.split(pattern)
    texts = [re.escape(text) if i % 2 == 0 else "(?:.*?)" for i, text in enumerate(parts)]
    texts[2 * group + 1] = r"(\d+)"
    return re.compile("".join(texts))


def _items(text: str, pattern: str) -> tuple[list[tuple[str, bool]], list[tuple[int, int]]]:
    """(item, supposed) of one brace group, and its gaps (low, high)."""
    items: list[tuple[str, bool]] = []
    gaps: list[tuple[int, int]] = []
    words = [word.strip() for word in text.split(",")]
    for i, word in enumerate(words):
        if word in ELLIPSIS:
            before, end = [item for item, _ in items], words[i + 1] if i + 1 < len(words) else ""
            more, gap = _continued(before, end, pattern)
            items += [(str(number), True) for number in more]
            gaps += gap
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
    """What stands between the numbers `before` an ellipsis and the `end` behind it."""
    if len(before) < 2 or not all(item.isdigit() for item in (*before[-2:], end)):
        got = f"{{{','.join(before[-2:])},…,{end}}} in {pattern!r}"
        raise UsageError("at least two numbers before an ellipsis and one behind it", got, "write {0,20,…,2000}")
    numbers, last = [int(item) for item in before if item.isdigit()], int(end)
    if any(b <= a for a, b in pairwise([*numbers, last])):
        raise UsageError("numbers that rise", f"{numbers} … {last} in {pattern!r}", "order them")
    one, two = numbers[-2:]
    steps = {b - a for a, b in pairwise(numbers[-3:])}
    if len(steps) == 1:
        return list(range(two + (two - one), last, two - one)), []
    more: list[int] = []
    while one and two % one == 0 and (following := (more or [two])[-1] * (two // one)) < last:
        more.append(following)
    return more, [(two, last)]
