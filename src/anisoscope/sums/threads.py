"""Compute parts of a sum in parallel, on as many threads as torch has, each part on one.

Torch's own threads share every operation and meet at its end, which takes longer than an operation of some 20 µs.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache
from threading import Barrier

import torch

CPU = torch.device("cpu")
MOST = 8
"""Threads: for a part of the time each holds Python's own lock."""


def run_in_parallel(
    parts: Sequence[Callable[[], object]], device: torch.device = CPU
) -> None:
    """Call each part once, in any order, on several threads on a CPU.

    When this returns, no part is running. An exception of a part, or a signal, is raised. On an accelerator the calls
    are made one after another.

    parts   functions without arguments
    """
    threads = 1
    if device.type == CPU.type:
        threads = min(torch.get_num_threads(), MOST)
    if threads < 2 or len(parts) < 2:
        for part in parts:
            part()
        return
    # One iterator for all threads: each takes the next part that is left, so slow parts
    # hold up nobody.
    remaining = iter(parts)
    # Torch keeps these modes for each thread apart; a new thread would record
    # gradients.
    inference = torch.is_inference_mode_enabled()
    grad = torch.is_grad_enabled()

    def work() -> None:
        """Run the remaining parts one after another, in the gradient mode of the calling thread."""
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            try:
                for part in remaining:
                    part()
            finally:
                deque(remaining, maxlen=0)  # after an error no other part begins

    running: list[Future[None]] = []
    try:
        for _ in range(min(threads, len(parts))):
            running.append(_get_pool(os.getpid(), threads).submit(work))
        # Wake every half second: a signal that another thread catches wakes nobody.
        while wait(running, 0.5).not_done:
            pass
    finally:
        deque(remaining, maxlen=0)
        wait(running)
    # After all have ended: here an exception of a part is raised.
    for future in running:
        future.result()


@lru_cache(maxsize=1)
def _get_pool(_process: int, threads: int) -> ThreadPoolExecutor:
    """Return the pool of worker threads, each of which lets torch use one thread; a forked process gets a new pool."""
    threads_of_process = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads, "anisoscope")
    # A worker that has begun waits here, so each of the tasks below gets a thread of
    # its own.
    all_here = Barrier(threads + 1)

    def begin() -> None:
        """Set torch to one thread in a worker thread, and wait until all workers have done so."""
        torch.get_num_threads()  # a thread takes over the process's number when it first asks
        torch.set_num_threads(1)
        all_here.wait()

    try:
        for _ in range(threads):
            pool.submit(begin)
        all_here.wait()
    finally:
        # If a signal came, no thread waits for the others.
        all_here.abort()
        # Threads to come take over the number of the process.
        torch.set_num_threads(threads_of_process)
    return pool
