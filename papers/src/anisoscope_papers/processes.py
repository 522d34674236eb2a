"""Compute independent pieces of a study in parallel, one thread each: small blocks gain little from several
threads.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import active_children, get_context, parent_process, resource_tracker
from typing import Any

import torch

from anisoscope.errors import Terminated
from anisoscope.progress import call_uninterrupted


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
        pending, done = call_uninterrupted(partial(_submitted, pool, work, pieces)), 0
        while pending:  # by the half second: a signal that another thread catches does not wake this one
            finished, pending = wait(pending, 0.5, FIRST_COMPLETED)
            for future in finished:
                future.result()
                done += 1
                yield done
    except (KeyboardInterrupt, Terminated):
        for child in active_children():
            child.kill()
        raise
    finally:  # also where the caller goes away: what has begun is finished and kept, nothing else begins
        pool.shutdown(cancel_futures=True)


def _submitted(pool: ProcessPoolExecutor, work: Callable[..., None], pieces: Sequence[tuple[Any, ...]]) -> set[Any]:
    """Submit pieces to processes, which SIGINT never reaches: the caller ends them."""
    resource_tracker.ensure_running()  # as it begins it lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(work, *piece) for piece in pieces}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Prepare a worker process: one thread, and an end when its caller is killed."""

    def end_with_caller() -> None:
        caller = parent_process()
        if caller is not None:
            caller.join()
            os._exit(1)

    torch.set_num_threads(1)
    threading.Thread(target=end_with_caller, daemon=True).start()
