"""Exceptions that say what was expected, what came, and the cure.

Each class has the exit code of the command line. The command line exits with `exit_code`.
"""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 1900
"""Characters of one part of a message: what a user typed or a file holds may have thousands."""


def _shorten(part: str) -> str:
    """Cut the middle out of a text longer than `LONGEST`, and append its full length; return shorter texts as is.

    part   one of the three parts of an error message: what was expected, what was given, or the cure
    """
    if len(part) <= LONGEST:
        return part
    return f"{part[: LONGEST - 200]} … {part[-150:]} ({len(part):,} characters)"


class AnisoscopeError(Exception):
    """Base of all errors a user can cause and cure. `exit_code` is the exit status of the command line."""

    exit_code = 1

    def __init__(self, expected: str, got: str, cure: str = "") -> None:
        self.expected, self.got, self.cure = expected, got, cure
        message = f"expected {_shorten(expected)}; got {_shorten(got)}"
        super().__init__(message + (f". Cure: {_shorten(cure)}" if cure else ""))


class UsageError(AnisoscopeError, ValueError):
    """Arguments that contradict each other or lie outside their range."""

    exit_code = 2


class ExtraError(UsageError):
    """Packages that an optional feature needs are not installed."""


class ModelError(AnisoscopeError):
    """A model that cannot be found, loaded or trusted."""

    exit_code = 3


class DivergedError(ModelError):
    """A training whose loss is no longer finite."""


class CorpusError(AnisoscopeError):
    """A corpus that cannot be found or read, or that holds nothing to measure."""

    exit_code = 4


class MeasureError(AnisoscopeError):
    """A measurement that cannot be made: a site that never fires, sums that do not fit together."""

    exit_code = 5


class UnseenError(MeasureError):
    """A place of a model that does not run in a forward call."""


class OutputError(AnisoscopeError):
    """A run folder that cannot be written or read."""

    exit_code = 6


class Terminated(SystemExit):
    """SIGTERM arrived and nothing else handles it; `number` is the signal's."""

    number = 15


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived; finished work is kept and can be resumed. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        """Keep the number of the signal."""
        self.number = number
        super().__init__(f"interrupted by signal {number}")


def is_too_long(name: str) -> bool:
    """Tell whether a name is too long for a file: more than 255 bytes in a part or 4,095 in all, as on Linux."""
    # A path in Python may hold bytes that are no UTF-8, as surrogates.
    sizes = [len(part.encode("utf-8", "surrogateescape")) for part in name.split("/")]
    # The separators and the zero at the end count too.
    return max(sizes) > 255 or sum(sizes) + len(sizes) > 4096


def suggest_names(name: str, known: Iterable[str], *, all_names: str = "") -> str:
    """Return a sentence with the known names nearest to a wrong one, for an error's cure; all names if none is near.

    all_names   a sentence to use instead of the list of all names
    """
    known = sorted(set(known) - {name})
    # A name that is nearly the same is meant alone; otherwise several may be.
    near = get_close_matches(name, known, n=1, cutoff=0.9) or get_close_matches(
        name, known, n=3, cutoff=0.5
    )
    if near:
        return f"did you mean {' or '.join(near)}?"
    return all_names or f"known names: {', '.join(known)}"
