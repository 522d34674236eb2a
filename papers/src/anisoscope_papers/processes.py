"""Compute independent pieces of a study in parallel processes, one thread each (small blocks gain
little from threads).
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from multiprocessing import (
    active_children,
    get_context,
    parent_process,
    resource_tracker,
)
from typing import Any

import torch

from anisoscope.errors import Terminated
from anisoscope.progress import call_uninterrupted


def run_in_parallel(
    work: Callable[..., None],
    pieces: Sequence[tuple[Any, ...]],
    processes: int | None = None,
) -> Iterator[int]:
    """Call `work(*piece)` for every piece, in parallel processes; yield how many pieces are done.

    `processes`: None for torch's number of threads; 1 computes in this process. `work` must be a function of a module,
    and must save its results itself. The first error ends it.
    """
    processes = min(processes or torch.get_num_threads(), len(pieces))
    if processes <= 1:
        for done, piece in enumerate(pieces, start=1):
            work(*piece)
            yield done
        return
    # Spawned, not forked: a fork of a process whose torch has threads may hang.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _begin)
    try:
        pending = call_uninterrupted(partial(_submit_all, pool, work, pieces))
        done = 0
        # By the half second: a signal that another thread catches does not wake this one.
        while pending:
            finished, pending = wait(pending, 0.5, FIRST_COMPLETED)
            for future in finished:
                # Raises the error of the piece, if it failed.
                future.result()
                done += 1
                yield done
    except (KeyboardInterrupt, Terminated):
        # They would finish their pieces first, while the user waits.
        for child in active_children():
            child.kill()
        raise
    finally:
        # Also if the caller stops iterating: what has begun is finished and kept, and
        # nothing else begins.
        pool.shutdown(cancel_futures=True)


def _submit_all(
    pool: ProcessPoolExecutor,
    work: Callable[..., None],
    pieces: Sequence[tuple[Any, ...]],
) -> set[Any]:
    """Submit `work(*piece)` for all pieces to the pool; return the futures.

    SIGINT is blocked meanwhile, so that Ctrl-C reaches only the caller, which ends its workers.
    """
    # Started first: as it starts it lets the signal through again.
    resource_tracker.ensure_running()
    # Workers inherit the mask of the thread that starts them.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return {pool.submit(work, *piece) for piece in pieces}
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """Prepare a worker process: one thread, and exit if the caller is killed."""

    def end_with_caller() -> None:
        """Wait until the caller ends, then exit at once."""
        caller = parent_process()
        if caller is not None:
            caller.join()
            os._exit(1)

    # One process for each core: more threads would compete for them.
    torch.set_num_threads(1)
    # A caller that is killed outright (SIGKILL) cannot end its workers.
    threading.Thread(target=end_with_caller, daemon=True).start()
