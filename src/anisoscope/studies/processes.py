"""Independent pieces of a study side by side, one thread each: small blocks gain little from several threads."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from typing import Any

import torch


def side_by_side(
    work: Callable[..., None], pieces: Sequence[tuple[Any, ...]], processes: int | None = None
) -> Iterator[int]:
    """Call `work(*piece)` for every piece in `processes` processes (None: torch's number of threads; 1: in this one);
    yields how many are done. `work` is a function of a module and keeps its results itself. The first error ends it.
    """
    processes = min(processes or torch.get_num_threads(), len(pieces))
    if processes <= 1:
        for done, piece in enumerate(pieces, start=1):
            work(*piece)
            yield done
        return
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin)
    try:
        with _uninterrupted():
            running = [pool.submit(work, *piece) for piece in pieces]
        pending, done = set(running), 0
        while pending:  # by the half second: a signal that another thread catches does not wake this one
            finished, pending = wait(pending, 0.5, FIRST_COMPLETED)
            for future in finished:
                future.result()
                done += 1
                yield done
    except KeyboardInterrupt:
        for child in active_children():
            child.kill()
        raise
    finally:  # also where the caller goes away: what has begun is finished and kept, nothing else begins
        pool.shutdown(cancel_futures=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """SIGINT waits here, and never comes through to processes begun here: the caller ends them."""
    resource_tracker.ensure_running()  # as it begins it lets the signal through again
    came: list[int] = []
    heard = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # not in the background of a shell
    ours = heard and threading.current_thread() is threading.main_thread()  # which handles what reaches any thread
    handler = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number)) if ours else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if ours:
            signal.signal(signal.SIGINT, handler or signal.SIG_DFL)
    if came:
        raise KeyboardInterrupt


def _begin() -> None:
    """One thread for the work; the process goes with a caller who is killed."""

    def end_with_caller() -> None:
        caller = parent_process()
        if caller is not None:
            caller.join()
            os._exit(1)

    torch.set_num_threads(1)
    threading.Thread(target=end_with_caller, daemon=True).start()
