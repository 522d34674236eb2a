"""Independent pieces of a study side by side, one thread each: small blocks gain little from several threads."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
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
    pool = ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,))
    try:
        running = [pool.submit(work, *piece) for piece in pieces]
        for done, future in enumerate(as_completed(running), start=1):
            future.result()
            yield done
    finally:  # also where the caller goes away: what has begun is finished and kept, nothing else begins
        pool.shutdown(cancel_futures=True)
