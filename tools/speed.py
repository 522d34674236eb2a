# ruff: noqa: E501 (lines of the page)
"""The page on speed: what `benchmarks/` found, and how far it is from what the machine can do."""

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results.json"
TOKENS, DIM, LAYERS, HEADS = 4096, 384, 6, 12
"""Of a batch of `benchmarks/overhead.py` with full windows, and of the built-in encoder."""
PASSES = 6
"""Sums and extremes of a row that nothing else gives: largest, smallest, Σe, Σe·s, ‖e‖, and sums of columns."""

Rows = list[dict[str, Any]]


def page() -> str:
    """docs/limit.md."""
    held: dict[str, Rows] = json.loads(RESULTS.read_text("utf-8"))
    rates = {row["what"]: row["rate"] for row in held["limit"] if row["threads"] == 1}
    machine = held["limit"][0]
    plan = {row["panels"]: f"{row['processor'][0]:.2f}" for row in held["overhead"] if _is_plan(row)}
    return TEXT.format(
        demo=plan["all"],
        demo_fused=plan["all, fused"],
        machine=machine["machine"],
        versions=machine["versions"],
        overhead=_table(OVERHEAD, _overhead(held["overhead"])),
        rates=_table(("operation", "in a processor second"), _rates(held["limit"])),
        limits=_table(LIMITS, _limits(held["overhead"], rates)),
        others="\n\n".join(_others(held)),
    )


OVERHEAD = ("threads", "windows", "panels", "processor time", "wall", "bare against bare", "aim", "load")
LIMITS = ("window", "panel", "cannot do without", "at the rates above", "measured", "measured / limit")


def _table(head: tuple[str, ...], rows: list[list[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _told(ratio: list[float]) -> str:
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} – {ratio[2]:.2f})"


def _windows(row: dict[str, Any]) -> tuple[int, int]:
    return row["threads"], int(row["windows"]) if row["windows"].isdigit() else 1 << 20


def _is_plan(row: dict[str, Any]) -> bool:
    return bool(row["windows"] == "demo" and row["threads"] == 1)


def _overhead(rows: Rows) -> list[list[Any]]:
    ratios = sorted((row for row in rows if "processor" in row), key=_windows)
    return [
        [
            row["threads"],
            row["windows"],
            row["panels"],
            _told(row["processor"]),
            _told(row["wall"]),
            _told(row["bare"]["processor"]),
            row["aim"],
            row["load"],
        ]
        for row in ratios
    ]


def _rates(rows: Rows) -> list[list[Any]]:
    return [[row["what"], f"{row['rate']:.3g} {row['unit'].removesuffix(' a processor second')}"] for row in rows]


def _limits(rows: Rows, rates: dict[str, float]) -> list[list[Any]]:
    """Each panel's least, and what it takes, in parts of the forward pass."""
    found = []
    one = {(row["windows"], row["panels"]): row for row in rows if row["threads"] == 1 and "processor" in row}
    for window in sorted({int(w) for w, _ in one if w.isdigit()}):
        ratio = {panels: row["processor"][0] for (w, panels), row in one.items() if w == str(window)}
        bare = next(row["bare processor s"] for (w, _), row in one.items() if w == str(window))
        taken = {
            "hidden": ratio["hidden"] - 1,
            "spectrum": ratio["hidden + spectrum"] - ratio["hidden"],
            "attention": ratio["all"] - ratio["hidden + spectrum"],
        }
        for panel, (needs, seconds) in _least(window, rates).items():
            limit = seconds / bare
            share = [f"{limit:.1%}", f"{taken[panel]:.1%}", f"{taken[panel] / limit:.1f}"]
            found.append([window, panel, needs, *share])
    return found


def _least(window: int, rates: dict[str, float]) -> dict[str, tuple[str, float]]:
    """(what a panel cannot do without in a batch, its processor seconds)."""
    vectors = 4e-9 * TOKENS * DIM
    hidden = vectors * (LAYERS + 1)
    spectrum = 2e-9 * (LAYERS + 1) * TOKENS * DIM * DIM
    scores, weights = 2e-9 * LAYERS * TOKENS * window * DIM, 1e-9 * LAYERS * HEADS * TOKENS * window
    heads = 3 * LAYERS * vectors
    rows = scores / rates["scores"] + weights / rates["power of 2"] + PASSES * weights / rates["sum of rows"]
    needs = f"{scores:.0f} Gflop of scores, {weights:.2f} G powers of 2, {PASSES} passes over them, {heads:.2f} GB of q, k, v"
    return {
        "hidden": (f"{hidden:.2f} GB of vectors, read once", 2 * hidden / rates["read and write"]),
        "spectrum": (f"{spectrum:.0f} Gflop of two symmetric products", spectrum / rates["symmetric"]),
        "attention": (needs, rows + 2 * heads / rates["read and write"]),
    }


def _others(held: dict[str, Rows]) -> list[str]:
    """Tables of what else was measured."""
    parts = []
    for name, (title, columns) in OTHERS.items():
        rows = [[_cell(row.get(column)) for column in columns] for row in held.get(name, [])]
        if rows:
            parts.append(f"{title}\n\n{_table(columns, rows)}")
    return [*parts, PEERS]


def _cell(value: Any) -> str:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(x, float) for x in value):
        return _told(value)
    return "" if value is None else f"{value:.2g}" if isinstance(value, float) and value < 1e-3 else str(value)


OTHERS = {
    "first_answer": (
        "**The first answer**: seconds from the start of `make demo`'s command, two threads (median, least and most; `benchmarks/first_answer.py`):",
        ("until", "seconds", "times", "load"),
    ),
    "modalities": (
        "**Images and speech**, hidden panel (`benchmarks/modalities.py`):",
        ("model", "threads", "processor", "wall", "load"),
    ),
    "scale": (
        "**Scale** (`benchmarks/scale.py`; a tiny model, so that the time is that of measuring):",
        ("size", "processes", "tokens", "wall s", "processor s", "peak MiB"),
    ),
    "sizes": (
        "**Sizes that people have**, in parts of the bare pass (`benchmarks/sizes.py`: weights drawn anew, sequences of unequal lengths, some of a model's layers):",
        ("model", "layers", "dtype", "length", "padding", "panels", "processor", "wall", "load"),
    ),
    "vectors": (
        "**Files of vectors**: `measure FILE.npy`, sums, spectra with intervals, records and page, in parts of plain NumPy that makes the same sums in one read (`benchmarks/vectors.py`):",
        ("vectors", "dim", "threads", "processor", "wall", "processor s", "load"),
    ),
    "classifier": (
        "**Training of the attention-only classifier** against a plain loop (`papers/benchmarks/classifier.py`; utterances a second, ours in parts of its, and what both end at):",
        ("corpus", "layers", "utterances a second", "processor", "accuracy", "load"),
    ),
    "training": (
        "**A step of training** (`papers/benchmarks/training.py`): shares of its processor time; *rest*: the library's loop, the check of the loss, the log:",
        ("case", "threads", "ms a step", "batches", "forward", "backward", "penalty", "optimiser", "rest", "load"),
    ),
    "peers": (
        "**Peers** on the same statistic (`benchmarks/peers.py`; their time in parts of ours, whole and beyond the forward passes; *apart*: the largest difference of the two numbers):",
        ("peer", "of", "packages", "processor", "beyond", "apart", "load"),
    ),
}

PEERS = """Ours has its intervals, peers have none: with the spectrum that is 126 decompositions of 384 × 384 once a run, however long the corpus,
for seven measures, where IsoScore's package makes 7 for one. So on a corpus as short as this one it is the quicker of the two. A torchmetrics
object per site sums what we sum, and takes as long. Five times is reached beyond the forward passes by what keeps all vectors (the usual
script, nnsight, scikit-learn), by nothing else, and nowhere with them."""

TEXT = """# Speed, and how far it is from the limit

How long measuring takes, as a multiple of the bare forward pass. Bare and measured passes take turns in one process; each number is the median
(and quartiles) of their ratio. *Bare against bare* is a control: the bare pass timed against itself. Built-in encoder, 4,096 tokens a batch; `demo` is
the plan of `make demo` with its padding, from an empty measurement to the last flush. {machine}; {versions}. *load* is the load of the machine
meanwhile; other programs also lengthen processor time, through the caches.

{overhead}

`fused`: the output of attention comes from the weights that are measured (`--attention fused`). It is not the default: a final norm
leaves a direction without variance, and rounding moves the effective rank there by 1.4e-4 (`tests/test_fused.py`).

## The limit

{rates}

What each panel cannot do without, by these rates (`benchmarks/limit.py`), and what it was found to take:

{limits}

## What is in the way

Times of single operations below are the best of five on a machine with other work on it, which lengthens them: good for what is large
and what is small, not to the digit.

- **As typed, the demo is over its aim.** `make demo` measures with `--attention model`, the default: {demo} times the bare pass, where the aim
  is 1.30; with `--attention fused` {demo_fused}.
- **Threads.** With two threads measuring takes more processor time than with one, and it gains less from the second thread than the bare pass does.
  Torch shares every operation between its threads. The operations of a block of attention rows take 10 to 200 µs, less than it takes to
  wake a thread. So whole blocks are dealt to threads instead, and so are the two products of the spectrum. Before this change all panels
  took, by the clock, 1.73 times the bare pass at windows of 128 and 2.05 at 512; the rows of two threads above are from after it. Numbers are the
  same bit for bit with any number of threads. Threads wait without spinning, as the program has it (`OMP_WAIT_POLICY=PASSIVE`).
  What is left is hardly Python's own lock: blocks of half to eight times as many scores, whose operations take so much longer, came out within
  the spread of each other (1.55 to 1.67 at windows of 512 on a busy machine, quartiles .1 to .3 apart). The two cores get in each other's way: two symmetric products
  at once took 12.4 ms of processor time each where one alone took 8, two processes that multiply small matrices 56 and 87 Gflop a second
  where one alone does 85, and the bare pass itself takes 1.2 to 1.3 times its processor time on two threads.
- **Hidden.** One read of each vector and two narrow products; norms are taken once. Rows of weights are three token policies, so that
  products are of 6 to 9 rows, which a library multiplies at a fraction of its rate.
- **Spectrum.** Both Σxxᵀ and Σuuᵀ, each by a symmetric product at the rate of a large one. Of the 14.3 ms that the vectors of a site take in a
  batch (4,096 of 384) the two products take 12.9 and the copies that they need (x less the mean of the first batch with a column of ones, x over its
  norm) 1.4; other ways to copy (kept buffers, 512 or 1,024 vectors at a time) were no quicker. These times are of SciPy's
  product; NumPy's, which is used since and lets other threads run, took 15.2 ms where SciPy's took 15.9, beside other work.
- **Attention.** A weight takes 1.4 ns of this machine, alone in a block: .75 its score (heads of 32 dimensions multiply at 85 Gflop a second),
  .16 its power of 2, .09 its product with the score, .05 to .08 each of the largest, the smallest, three sums and the sum of columns. In a whole pass
  over windows of 512 tokens it takes 1.5 ns, 18 % of the forward pass; sums of queries, keys and values are 3 %, all else is below 2 %. So what is
  left, we infer, is that each sum is an operation of its own. Smaller blocks, which fit the second cache, were slower (1.8 and 2.1 ns at
  a half and a quarter of the size); that it is their calls is likely, and was not measured apart. One kernel for all sums is not written; 1 ns is
  a guess of what it would take. OpenBLAS multiplies scores in .60 ns; oneDNN in half of MKL's on processors that are not Intel's, but in a whole pass nothing came of it (1.51 with it and 1.49 without).
- **Training.** All but the smallest model take more than nine tenths of a step themselves. Of the attention-only classifier's 10 ms the library's
  loop takes a tenth, batches a thirtieth and the optimiser an eighth; once a training the library collects garbage (1.6 s under a profiler
  on a busy machine). Nothing was mended: no part of ours costs what the model does.
- **The product of torch in place of blocks.** Entropy could come from the log-sum-exp of fused products: one with keys as values for E[s], one at
  twice the scale for Σp², one with queries and keys exchanged for the columns. On this CPU, a busy one, a fused product took .67 to .94 of the time that all
  statistics of a block take (3.2 against 4.7 ns a weight for heads of 32 dimensions in float32, 7.4 against 9.7 for causal heads of 64 in bfloat16), so three of them cost two to three
  times as much, and give neither the largest nor the smallest weight. Blocks stay. No GPU was there to try it.
- **Fused.** The model's own call is saved, which takes 1.7 ns a weight, for .8 ns of weights times values.

## Beside other things

{others}
"""
