"""How far long work is: a bar with rate and time left on a terminal, a plain line now and then elsewhere. Talk goes
to stderr.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SECONDS_BETWEEN_LINES = 15.0
TERMINATED = 143

Progress = Callable[[int, int], None]
"""Called after every batch with tokens (or what else is counted) done and in all (0: not known)."""


class Shown:
    """A callback of `shown`, and the plural of what it counts, which is often known only once the data are open."""

    def __init__(self, unit: str, show: Callable[[int, int, str], None]) -> None:
        self.unit, self.show = unit, show

    def __call__(self, done: int, total: int) -> None:
        self.show(done, total, self.unit)


def counting(progress: Progress | None, unit: str) -> None:
    """Tell what a progress that is shown counts."""
    if isinstance(progress, Shown):
        progress.unit = unit


def animated() -> bool:
    """Whether stderr is a terminal that can move its cursor, and no log of a build."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown") and not _in_a_build()


def _in_a_build() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true", "yes")


@contextmanager
def shown(what: str, unit: str = "tokens", *, quiet: bool = False) -> Iterator[Progress]:
    """A callback `(done, total)` that shows `what` with units done, rate and time left; `loading …` until it is first
    called.
    """
    if quiet:
        yield lambda _done, _total: None
    elif animated():
        with _bar(what) as update:
            yield Shown(unit, update)
    else:
        yield Shown(unit, _lines(what))


@contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[None]:
    """A spinner beside `what` while work goes on whose end is not known; one line where nothing can spin."""
    if quiet:
        yield
    elif animated():
        with _live(what):
            yield
    else:
        _line(f"{what} …")
        yield


@contextmanager
def _live(what: str, *columns: Any) -> Iterator[tuple[Any, Any]]:
    """A line of `columns` on stderr, and its task; gone at the end, whatever ended it, and the cursor there again."""
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import SpinnerColumn, TextColumn
    from rich.table import Column

    name = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    described = TextColumn("{task.description}", table_column=name, markup=False)
    with (
        _ends_on_sigterm(),
        Bar(SpinnerColumn(), described, *columns, console=Console(stderr=True), transient=True) as bar,
    ):
        bar.expand = True
        yield bar, bar.add_task(f"{what} …", total=None, unit="")


@contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int, str], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="progress.data.speed")

    width = shutil.get_terminal_size().columns
    columns = (
        BarColumn(bar_width=max(6, width // 6)),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        Rate(),
        TimeRemainingColumn(compact=True),
    )
    with _live(f"loading {what}", *columns) as (bar, task):

        def update(done: int, total: int, unit: str) -> None:
            ended = bool(total) and done >= total
            named = f"metrics and intervals of {what} …" if ended else what
            bar.update(task, completed=done, total=total or None, description=named, unit=unit)

        yield update


@contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    """SIGTERM as an exit, so that the cursor comes back; what has a handler of its own keeps it."""

    def end(_number: int, _frame: Any) -> None:
        raise SystemExit(TERMINATED)

    try:
        ours = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if ours:
            signal.signal(signal.SIGTERM, end)
    except ValueError:  # not the main thread
        ours = False
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _lines(what: str) -> Callable[[int, int, str], None]:
    last, measured = time.monotonic(), _Rate()

    def update(done: int, total: int, unit: str) -> None:
        nonlocal last
        now, rate = time.monotonic(), measured(done)
        if now - last < SECONDS_BETWEEN_LINES and done != total:
            return
        last = now
        left = f", {(total - done) / rate:,.0f} s left" if total and rate and done < total else ""
        _line(f"{done:,}/{total:,} {unit}, {rate:,.0f}/s{left}: {what}")

    return update


def _line(text: str) -> None:
    """One line on stderr, cut where a terminal ends."""
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else len(text)
    text = text if len(text) <= width else f"{text[: width - 1]}…"
    print(text, file=sys.stderr, flush=True)  # noqa: T201


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
