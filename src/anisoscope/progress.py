"""How far long work is: a bar with rate and time left on a terminal, a plain line now and then elsewhere. Talk goes
to stderr.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 15.0

Progress = Callable[[int, int], None]
"""Called after every batch with tokens done and tokens in all (0: not known)."""


@contextmanager
def shown(what: str, unit: str = "tokens", *, quiet: bool = False) -> Iterator[Progress]:
    """A callback `(done, total)` that shows `what` with units done, rate and time left."""
    if quiet:
        yield lambda _done, _total: None
    elif sys.stderr.isatty():
        with _bar(what, unit) as update:
            yield update
    else:
        yield _lines(what, unit)


@contextmanager
def _bar(what: str, unit: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn(f"{unit}, {{task.fields[rate]:,.0f}}/s"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None, rate=0.0)
        rate = _Rate()

        def update(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None, rate=rate(done))

        yield update


def _lines(what: str, unit: str) -> Progress:
    last, measured = time.monotonic(), _Rate()

    def update(done: int, total: int) -> None:
        nonlocal last
        now, rate = time.monotonic(), measured(done)
        if now - last < SECONDS_BETWEEN_LINES and done != total:
            return
        last = now
        left = f", {(total - done) / rate:,.0f} s left" if total and rate and done < total else ""
        print(f"{what}: {done:,}/{total:,} {unit}, {rate:,.0f}/s{left}", file=sys.stderr, flush=True)  # noqa: T201

    return update


class _Rate:
    """Units a second since the first count, or since the count last fell: then another piece of the work has begun."""

    def __init__(self) -> None:
        self.first = self.last = -1
        self.started = 0.0

    def __call__(self, done: int) -> float:
        now = time.monotonic()
        if self.first < 0 or done < self.last:
            self.first, self.started = done, now
        self.last = done
        return (done - self.first) / max(now - self.started, 1e-9)
