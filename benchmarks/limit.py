"""What this machine can do of what measuring cannot do without: `docs/limit.md` sets it beside `overhead.py`.

    python benchmarks/limit.py

Rates are those of the very operations and shapes that a pass of the built-in encoder uses, each alone and again and
again, so that what it reads lies in the cache where a pass can have it there too.
"""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from pairs import keep, options, with_threads
from scipy.linalg.blas import ssyrk

TOKENS, DIM, HEAD_DIM, WINDOW = 4096, 384, 32, 512


def operations() -> Iterator[tuple[str, str, float, Callable[[], object]]]:
    """(name, unit, how many of it a call does, call)."""
    g = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(TOKENS, DIM, generator=g),
        torch.randn(4 * DIM, DIM, generator=g),
    )
    query, key = (torch.randn(1, WINDOW, HEAD_DIM, generator=g) for _ in range(2))
    scores, powers = (
        torch.randn(1, WINDOW, WINDOW, generator=g),
        torch.empty(1, WINDOW, WINDOW),
    )
    rows, into = torch.empty(1, WINDOW), torch.zeros(DIM, DIM)
    large, copy = torch.zeros(1 << 24), torch.zeros(1 << 24)
    of_scores = 2e-9 * WINDOW * WINDOW * HEAD_DIM
    yield (
        "product",
        "Gflop",
        8e-9 * TOKENS * DIM * DIM,
        lambda: torch.nn.functional.linear(x, weight),
    )
    half = 1e-9 * TOKENS * DIM * DIM  # the diagonal and one side of it
    yield (
        "symmetric",
        "Gflop",
        half,
        lambda: ssyrk(1.0, x.numpy().T, 1.0, into.numpy().T, lower=1, overwrite_c=1),
    )
    yield (
        "scores",
        "Gflop",
        of_scores,
        lambda: torch.bmm(query, key.transpose(1, 2), out=powers),
    )
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        dnn = torch.ops.mkldnn._linear_pointwise
        yield (
            "scores, oneDNN",
            "Gflop",
            of_scores,
            lambda: dnn(query[0], key[0], None, "none", [], ""),
        )
    yield (
        "power of 2",
        "G elements",
        1e-9 * WINDOW**2,
        lambda: torch.exp2(scores, out=powers),
    )
    yield (
        "sum of rows",
        "G elements",
        1e-9 * WINDOW**2,
        lambda: torch.sum(scores, -1, out=rows),
    )
    yield "read and write", "GB", 8e-9 * large.numel(), lambda: copy.copy_(large)


def rate(count: float, call: Callable[[], object], seconds: float) -> float:
    """The most that was done in a processor second, of five goes."""
    call()
    best = 0.0
    for _ in range(5):
        begun, calls = time.process_time(), 0
        while (spent := time.process_time() - begun) < seconds / 5:
            call()
            calls += 1
        best = max(best, calls * count / spent)
    return best


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each operation")
    given = parser.parse_args(argv)
    for threads in given.threads:
        found = []
        with with_threads(threads):
            for name, unit, count, call in operations():
                found.append(
                    {
                        "threads": threads,
                        "what": name,
                        "rate": round(rate(count, call, given.seconds), 3),
                    }
                )
                found[-1]["unit"] = f"{unit} a processor second"
                print(
                    f"{name:16s} {found[-1]['rate']:8.2f} {found[-1]['unit']}",
                    flush=True,
                )
        keep(given.results, "limit", found, ("what", "threads"))


if __name__ == "__main__":
    main()
