"""Show the progress of long work: on a terminal a bar with rate and time left, elsewhere a line now and then."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from anisoscope.errors import Interrupted, Terminated

SECONDS_BETWEEN_LINES = 15.0
DRAWN: set[Any] = set()
"""Bars that draw themselves now."""

Made = TypeVar("Made")

Progress = Callable[[int, int], None]
"""Called after every batch with tokens (or what else is counted) done and in all (0: not known)."""


class Shown:
    """A progress callback on display, with the unit that it counts, which `set_counted_unit` may change later."""

    def __init__(
        self,
        what: str,
        unit: str,
        show: Callable[[int, int, str, str], None],
        say: Callable[[str], None],
    ) -> None:
        """Keep what is shown.

        what   name of the work
        unit   what is counted
        show   draws (done, total, name, unit)
        say    prints a line above the progress

        `brief` is set if the same work is repeated with other models: its costs are then shown for the first only.
        """
        self.what, self.unit, self.show, self.say = what, unit, show, say
        self.brief = False

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` units are done; a total of 0 means unknown."""
        self.show(done, total, self.what, self.unit)


def set_counted_unit(progress: Progress | None, unit: str, what: str = "") -> None:
    """Change the unit that a displayed progress counts, and the name of the work if `what` is given."""
    if isinstance(progress, Shown):
        progress.unit, progress.what = unit, what or progress.what


def remark(progress: Progress | None, text: str) -> None:
    """Print a line above the displayed progress."""
    if isinstance(progress, Shown) and text:
        progress.say(text)


def scale_progress(
    progress: Progress | None, i: int, n: int, noun: str
) -> Progress | None:
    """Return a progress callback for piece `i` (from 0) of `n` equal pieces, which shows the progress of the whole.

    noun   what a piece is called in the display
    """
    if progress is None:
        return None
    # A function of the user's own knows counts alone.
    if not isinstance(progress, Shown):
        return lambda done, total: progress(i * total + done, n * total)

    def show(done: int, total: int, what: str, unit: str) -> None:
        """Show the progress of one piece as progress of the whole work.

        what   name of the work
        unit   what is counted
        """
        progress.show(i * total + done, n * total, what, unit)

    what = progress.what
    if n > 1:
        what = f"{noun} {i + 1} of {n}: {what}"
    # Remarks are the same for every piece: those of the first are shown.
    say = progress.say if i == 0 else lambda _text: None
    return Shown(what, progress.unit, show, say)


def is_animated() -> bool:
    """Return whether stderr is a terminal that can move its cursor, and not a build log."""
    # Build systems often have a terminal, but keep every frame of a bar in their logs.
    is_build = os.environ.get("CI", "").lower() in ("1", "true", "yes")
    moves_cursor = os.environ.get("TERM", "") not in ("", "dumb", "unknown")
    return sys.stderr.isatty() and moves_cursor and not is_build


@contextmanager
def show_progress(
    what: str, unit: str = "tokens", *, quiet: bool
) -> Iterator[Progress]:
    """Yield a callback `(done, total)` that shows the progress of some work, its rate and the time left.

    what    name of the work; `loading …` is shown until the callback is first called
    unit    what is counted, such as tokens
    quiet   show nothing
    """
    if quiet:
        yield lambda _done, _total: None
    elif is_animated():
        with _show_bar(what) as (update, say):
            yield Shown(what, unit, update, say)
    else:
        yield Shown(what, unit, _make_line_printer(), _print_line)


@contextmanager
def show_spinner(what: str, *, quiet: bool) -> Iterator[None]:
    """Show a spinner next to `what` during work of unknown length; a single line if stderr is no terminal."""
    if quiet:
        yield
    elif is_animated():
        with _show_live_line(what):
            yield
    else:
        _print_line(f"{what} …")
        yield


@contextmanager
def _show_live_line(what: str, *columns: Any) -> Iterator[tuple[Any, Any]]:
    """Show one updating line on stderr during a `with` block; yield (rich's Progress, the id of its one task).

    At the end the line is removed and the cursor restored.

    what      name of the work, shown after a spinner
    columns   rich's columns to show after the name
    """
    from rich.console import Console
    from rich.progress import Progress as Bar, SpinnerColumn, TextColumn
    from rich.table import Column

    # The name gives way, so that counts and rate stay visible in a narrow terminal.
    name = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    described = TextColumn("{task.description}", table_column=name, markup=False)
    bar = Bar(
        SpinnerColumn(),
        described,
        *columns,
        console=Console(stderr=True),
        transient=True,
        expand=True,
    )
    with exit_on_sigterm():
        try:
            # Noted before it starts, so that `end_bars` finds it if a signal comes in
            # between.
            DRAWN.add(bar)
            call_uninterrupted(bar.start)
            yield bar, bar.add_task(f"{what} …", total=None, unit="")
        finally:
            call_uninterrupted(bar.stop)
            DRAWN.discard(bar)


def end_bars() -> None:
    """Stop every bar that is still drawn: a signal can arrive between the end of the work and the end of its bar."""
    while DRAWN:
        DRAWN.pop().stop()


def call_uninterrupted(act: Callable[[], Made]) -> Made:
    """Call `act` and return its result; signals are delayed until it is done.

    A half-started bar would spoil the terminal.
    """
    with deferred_signals() as came:
        made = act()
    # Sent again in their order, now that nothing is half done.
    for number in came:
        signal.raise_signal(number)
    return made


@contextmanager
def _show_bar(
    title: str,
) -> Iterator[tuple[Callable[[int, int, str, str], None], Callable[[str], None]]]:
    """Show a progress bar in a `with` block. Yields (a function that updates it, one that prints a line above it).

    The first takes (done, total, name of the work, unit).
    """
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        """A column of the bar that shows the rate."""

        def render(self, task: Any) -> Text:
            """Show the rate per second."""
            return Text(
                f"{task.speed:,.0f}/s" if task.speed else "",
                style="progress.data.speed",
            )

    drawn = BarColumn(bar_width=max(6, shutil.get_terminal_size().columns // 6))
    unit_column = TextColumn("{task.fields[unit]}")
    columns = (
        drawn,
        MofNCompleteColumn(),
        unit_column,
        Rate(),
        TimeRemainingColumn(compact=True),
    )
    with _show_live_line(f"loading {title}", *columns) as (bar, task):

        def update(done: int, total: int, what: str, unit: str) -> None:
            """Move the bar on the terminal; start again at zero if another part of the work begins.

            what   name of the part
            unit   what is counted
            """
            # Another piece of the work has begun.
            if done < bar.tasks[0].completed:
                bar.reset(task)
            description = what
            if total and done >= total:
                description = f"metrics and intervals of {what} …"
            bar.update(
                task,
                completed=done,
                total=total or None,
                description=description,
                unit=unit,
            )

        yield (
            update,
            lambda text: bar.console.print(text, markup=False, highlight=False),
        )


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Within a `with` block, make SIGTERM end the program as Ctrl-C does, unless it already has a handler."""
    # Only the main thread can set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    # A handler that a program around this one has set stays.
    sets_handler = is_main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if sets_handler:
        signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        if sets_handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _raise_terminated(number: int, _frame: object) -> None:
    """Handle SIGTERM: raise Terminated with the exit status 128 + number."""
    raise Terminated(128 + number)


def _make_line_printer() -> Callable[[int, int, str, str], None]:
    """Return a function (done, total, name, unit) that prints progress and rate as new lines.

    At most one line every `SECONDS_BETWEEN_LINES`; for a file or log, in which no bar can be drawn.
    """
    shown_at = started = time.monotonic()
    first = last = -1

    def update(done: int, total: int, what: str, unit: str) -> None:
        """Print a line of progress, unless one was printed less than `SECONDS_BETWEEN_LINES` ago; at the end always.

        what   name of the work
        unit   what is counted
        """
        nonlocal shown_at, started, first, last
        now = time.monotonic()
        # The work begins, or another part of it: the rate of the part before says
        # nothing of it.
        if first < 0 or done < last:
            first, started = done, now
        last = done
        if now - shown_at < SECONDS_BETWEEN_LINES and done != total:
            return
        shown_at = now
        # Nothing may have been done, and no time have passed.
        rate = (done - first) / max(now - started, 1e-9)
        parts = [f"{done:,}/{total:,} {unit}"]
        if rate:
            parts.append(f"{rate:,.0f}/s")
            if done < total:
                parts.append(f"{(total - done) / rate:,.0f} s left")
        _print_line(f"{', '.join(parts)}: {what}")

    return update


def _print_line(text: str) -> None:
    """Print one line to stderr, cut at the width of the terminal."""
    if sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        if len(text) > width:
            text = f"{text[: width - 1]}…"
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def interrupt_hint(kept: Callable[[], str], again: str = "--resume") -> Iterator[None]:
    """If the `with` block is interrupted, add two notes to the exception: what is kept, and how to continue.

    kept    returns a sentence on what is kept; empty if nothing is, or to keep the sentence of a nested block
    again   the option, or the whole command, that continues the work. Of nested blocks the outermost one decides, since
            it knows what the user typed
    """
    try:
        yield
    except (KeyboardInterrupt, Terminated, Interrupted) as stop:
        notes = getattr(stop, "__notes__", ())
        # A block inside may have noted what is kept.
        text = kept() or (notes[0] if notes else "")
        if text:
            stop.__notes__ = [text, again]
        raise


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Collect the numbers of SIGINT and SIGTERM signals in the yielded list inside a `with` block, instead of ending.

    The caller looks at the list and decides when to stop: the signals are not raised again at the end. Outside the main
    thread signals cannot be caught, and the list stays empty.
    """
    stopped: list[int] = []
    kept: dict[int, Any] = {}
    with suppress(ValueError):  # not the main thread: signals stay with it
        for number in (signal.SIGINT, signal.SIGTERM):
            kept[number] = signal.signal(
                number, lambda got, _frame: stopped.append(got)
            )
    try:
        yield stopped
    # In any case, or Ctrl-C would stay without effect.
    finally:
        for caught, handler in kept.items():
            signal.signal(caught, handler)
