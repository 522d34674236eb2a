"""The page on speed: what `benchmarks/` measured, and how far it is from what the machine can do."""

import json
from collections.abc import Collection
from pathlib import Path
from statistics import median
from typing import Any

from anisoscope.sums.moments import MOST
from anisoscope.wording import count_noun

RESULTS = Path(__file__).resolve().parents[1] / "benchmarks" / "results.json"
TOKENS, DIM, LAYERS, HEADS = 4096, 384, 6, 12
"""Of a batch of `benchmarks/overhead.py` with full windows, and of the built-in encoder."""
PASSES = 6
"""Sums and extremes of a row that nothing else gives: largest, smallest, Σe, Σe·s, ‖e‖, and sums of columns."""

Rows = list[dict[str, Any]]


def page() -> str:
    """Return docs/limit.md."""
    held: dict[str, Rows] = json.loads(RESULTS.read_text("utf-8"))
    rates = {row["what"]: row["rate"] for row in held["limit"] if row["threads"] == 1}
    machine = held["limit"][0]
    plan = {
        row["panels"]: f"{row['processor'][0]:.2f}"
        for row in held["overhead"]
        if _is_plan(row)
    }
    return TEXT.format(
        short=_table(SHORT, _short(held["overhead"])),
        demo=plan["all"],
        demo_fused=plan["all, fused"],
        machine=machine["machine"],
        versions=machine["versions"],
        overhead=_table(OVERHEAD, _overhead(held["overhead"])),
        rates=_table(("operation", "in a processor second"), _rates(held["limit"])),
        limits=_table(LIMITS, _limits(held["overhead"], rates)),
        others="\n\n".join(_others(held)),
        **_attention_shapes(held["attention_shapes"]),
        **_fused_rows(held["fused_rows"]),
        **_spectrum_intervals(held["spectrum_intervals"]),
        **_tabulate_shares(held["spectrum_share"]),
        **_dtypes(held["dtypes"]),
        dtypes_machine=held["dtypes"][0]["machine"],
    )


SHORT = ("panels", "one thread", "two threads")
OVERHEAD = (
    "threads",
    "windows",
    "panels",
    "processor time",
    "wall",
    "bare against bare",
    "aim",
    "load",
)
FUSED_ROWS = (
    "heads of",
    "length",
    "dtype",
    "three calls",
    "one call",
    "blocks, output",
    "calls apart",
    "blocks apart",
)
SHARED_RANKS = {
    "effective_rank": "effective rank",
    "effective_rank_uncentred": "effective rank, uncentred",
    "participation_ratio": "participation ratio",
}
"""Columns of the table of shares of the tokens."""
SPECTRUM_INTERVALS = (
    "of",
    "dimensions",
    "separate",
    "derivatives",
    "effective rank",
    "participation ratio",
    "IsoScore",
)
COSTS = (
    "dtype, attention",
    "bare pass",
    "all / bare pass",
    "added time",
    "bare against bare",
    "load",
)
LIMITS = (
    "window",
    "panel",
    "work",
    "time at these rates",
    "measured time",
    "measured / time at these rates",
)


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


def _short(rows: Rows) -> list[list[Any]]:
    """Return a row for each choice of panels: the smallest and largest ratio by the clock, with one thread and two."""
    found = []
    for panels in ("hidden", "hidden + spectrum", "all", "all, fused"):
        cells = [panels]
        for threads in (1, 2):
            ratios = [
                row["wall"][0]
                for row in rows
                if (row["threads"], row["panels"]) == (threads, panels)
            ]
            cells.append(f"{min(ratios):.2f} to {max(ratios):.2f}")
        found.append(cells)
    return found


def _rates(rows: Rows) -> list[list[Any]]:
    return [
        [
            row["what"],
            f"{row['rate']:.3g} {row['unit'].removesuffix(' a processor second')}",
        ]
        for row in rows
    ]


def _limits(rows: Rows, rates: dict[str, float]) -> list[list[Any]]:
    """Each panel's least, and what it takes, in parts of the forward pass."""
    found = []
    one = {
        (row["windows"], row["panels"]): row
        for row in rows
        if row["threads"] == 1 and "processor" in row
    }
    for window in sorted({int(w) for w, _ in one if w.isdigit()}):
        ratio = {
            panels: row["processor"][0]
            for (w, panels), row in one.items()
            if w == str(window)
        }
        bare = next(
            row["bare processor s"] for (w, _), row in one.items() if w == str(window)
        )
        taken = {
            "hidden": ratio["hidden"] - 1,
            "spectrum": ratio["hidden + spectrum"] - ratio["hidden"],
            "attention": ratio["all"] - ratio["hidden + spectrum"],
        }
        for panel, (needs, seconds) in _least(window, rates).items():
            limit = seconds / bare
            share = [
                f"{limit:.1%}",
                f"{taken[panel]:.1%}",
                f"{taken[panel] / limit:.1f}",
            ]
            found.append([window, panel, needs, *share])
    return found


def _least(window: int, rates: dict[str, float]) -> dict[str, tuple[str, float]]:
    """(what a panel cannot do without in a batch, its processor seconds)."""
    vectors = 4e-9 * TOKENS * DIM
    hidden = vectors * (LAYERS + 1)
    spectrum = 2e-9 * (LAYERS + 1) * TOKENS * DIM * DIM
    scores, weights = (
        2e-9 * LAYERS * TOKENS * window * DIM,
        1e-9 * LAYERS * HEADS * TOKENS * window,
    )
    heads = 3 * LAYERS * vectors
    rows = (
        scores / rates["scores"]
        + weights / rates["power of 2"]
        + PASSES * weights / rates["sum of rows"]
    )
    needs = f"{scores:.0f} Gflop of scores, {weights:.2f} G powers of 2, {PASSES} passes over them, {heads:.2f} GB of q, k, v"  # noqa: E501
    return {
        "hidden": (
            f"{hidden:.2f} GB of vectors, read once",
            2 * hidden / rates["read and write"],
        ),
        "spectrum": (
            f"{spectrum:.0f} Gflop of two symmetric products",
            spectrum / rates["symmetric"],
        ),
        "attention": (needs, rows + 2 * heads / rates["read and write"]),
    }


def _attention_shapes(rows: Rows) -> dict[str, str]:
    """Return the table of calls of every shape: ratios over kinds of heads and dtypes, by pattern, side and length."""
    lengths = sorted({row["length"] for row in rows})
    ratios: dict[tuple[str, str], dict[int, list[float]]] = {}
    for row in rows:
        of_shape = ratios.setdefault((row["pattern"], row["side"]), {})
        of_shape.setdefault(row["length"], []).append(row["processor"][0])
    cells = []
    for (pattern, side), of_lengths in ratios.items():
        ranges = []
        for length in lengths:
            found = of_lengths.get(length, [])
            ranges.append(f"{min(found):.1f} to {max(found):.1f}" if found else "")
        cells.append([pattern, side, *ranges])
    columns = [count_noun(n, "token") for n in lengths]
    head = ("who sees whom", "padding", *columns)
    return {
        "attention_shapes": _table(head, cells),
        "attention_shapes_machine": rows[0]["machine"],
        "attention_shapes_short": f"{_median_of_bare(rows, range(3)):.2f}",
        "attention_shapes_long": f"{_median_of_bare(rows, lengths[2:]):.2f}",
    }


def _median_of_bare(rows: Rows, lengths: Collection[int]) -> float:
    """Return what torch's product takes as a multiple of itself, for calls of these lengths."""
    ratios: list[float] = []
    for row in rows:
        if row["length"] in lengths:
            ratios.append(row["bare"]["processor"][0])
    return median(ratios)


def _fused_rows(rows: Rows) -> dict[str, str]:
    """Return the table of fused products, and the numbers that the text takes from it."""
    places = {(row["model"], row["length"], row["dtype"]): row["apart"] for row in rows}
    ratio = {
        (row["model"], row["length"], row["dtype"], row["products"]): row["processor"]
        for row in rows
    }
    cells = [
        [
            *place,
            *(
                _told(ratio[*place, products])
                for products in ("three", "one", "output")
            ),
            *(f"{x:.1e}" for x in apart),
        ]
        for place, apart in places.items()
    ]
    three, one = (
        [row["processor"][0] for row in rows if row["products"] == products]
        for products in ("three", "one")
    )
    return {
        "fused_rows": _table(FUSED_ROWS, cells),
        "fused_least": f"{min(three):.1f}",
        "fused_most": f"{max(three):.1f}",
        "one_least": f"{min(one):.2f}",
        "one_most": f"{max(one):.2f}",
        "fused_apart": f"{max(apart[0] for apart in places.values()):.4f}",
    }


def _spectrum_intervals(rows: Rows) -> dict[str, str]:
    """Return the table of derivatives of eigenvalues."""
    cells = []
    for row in rows:
        widths = []
        for value in ("effective_rank", "participation_ratio", "isoscore"):
            least, most = row["widths"][value]
            widths.append(
                f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"
            )
        cells.append(
            [
                row["of"],
                row["dim"],
                _told(row["separate"]),
                _told(row["processor"]),
                *widths,
            ]
        )
    return {
        "spectrum_intervals": _table(SPECTRUM_INTERVALS, cells),
        "groups": str(MOST),
    }


def _tabulate_shares(rows: Rows) -> dict[str, str]:
    """Return the table of what ranks from a share of the tokens differ by."""
    cells = []
    for row in rows:
        errors = [f"{row['errors'][value]:.2f} %" for value in SHARED_RANKS]
        cells.append(
            [row["of"], row["dim"], f"{row['tokens']:.1f} of {row['all']:.1f}", *errors]
        )
    head = ("of", "dimensions", "tokens for each dimension", *SHARED_RANKS.values())
    return {"spectrum_share": _table(head, cells)}


def _dtypes(rows: Rows) -> dict[str, str]:
    """Return the tables of dtypes: what they move, and what they cost."""
    names = [f"{row['dtype']}, {row['attention']}" for row in rows]
    moved = [
        [
            f"`{metric}`",
            *(_moved(row["apart"][metric]) for row in rows),
            f"{rows[0]['half width'][metric]:.1e}",
        ]
        for metric in rows[0]["apart"]
    ]
    costs = [
        [
            name,
            _told(row["bare of float32"]),
            _told(row["processor"]),
            f"{row['bare of float32'][0] * (row['processor'][0] - 1):.2f}",
            _told(row["bare"]["processor"]),
            row["load"],
        ]
        for name, row in zip(names, rows, strict=True)
    ]
    return {
        "moved": _table(("metric", *names, "interval ±"), moved),
        "costs": _table(COSTS, costs),
    }


def _moved(apart: float) -> str:
    return f"{apart:.1e}" if apart else "0"


def _others(held: dict[str, Rows]) -> list[str]:
    """Return the tables of what else was measured; one from another machine than the others' says from which."""
    usual = held["limit"][0]["machine"]
    parts = []
    for name, (title, columns) in OTHERS.items():
        rows = held.get(name, [])
        if not rows:
            continue
        machines = sorted({row["machine"] for row in rows} - {usual})
        if machines:
            title += f" Machine: {', '.join(machines)}."
        cells = [[_cell(row.get(column)) for column in columns] for row in rows]
        parts.append(f"{title}\n\n{_table(columns, cells)}")
        if name == "sizes":
            parts.append(SIZES)
    return [*parts, PEERS]


def _cell(value: Any) -> str:
    if (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(x, float) for x in value)
    ):
        return _told(value)
    return (
        ""
        if value is None
        else f"{value:.2g}"
        if isinstance(value, float) and value < 1e-3
        else str(value)
    )


OTHERS = {
    "first_answer": (
        "**The first answer.** Seconds from the start of the command of `make demo` until it prints what it found, and until the report is written. Two threads; median (smallest – largest); *times* is the number of runs. `benchmarks/first_answer.py`",  # noqa: E501
        ("until", "seconds", "times", "load"),
    ),
    "modalities": (
        "**Images and speech.** Ratios to the bare pass, panel `hidden`. `benchmarks/modalities.py`",
        ("model", "threads", "processor", "wall", "load"),
    ),
    "scale": (
        "**Scale.** Time and memory as the corpus grows. The model is tiny, so nearly all time is spent on measuring. *size* is the size of the corpus: 1, 10 or 100 times 20,000 tokens. The last row is the time to merge 1,000 shards. *peak MiB* is the peak memory of a process, minus its memory before the first batch. `benchmarks/scale.py`",  # noqa: E501
        ("size", "processes", "tokens", "wall s", "processor s", "peak MiB"),
    ),
    "sizes": (
        "**Sizes that people use.** Ratios to the bare pass, for the first layers of models with random weights. Sequences are of unequal lengths. `benchmarks/sizes.py`",  # noqa: E501
        (
            "model",
            "layers",
            "dtype",
            "length",
            "padding",
            "panels",
            "processor",
            "wall",
            "load",
        ),
    ),
    "vectors": (
        "**Files of vectors.** `measure FILE.npy` with spectra, intervals, records and page, as a ratio to plain NumPy that makes the same sums in one read. `benchmarks/vectors.py`",  # noqa: E501
        ("vectors", "dim", "threads", "processor", "wall", "processor s", "load"),
    ),
    "classifier": (
        "**Training of the attention-only classifier**, compared with a plain loop. Pairs are [ours, plain loop]; *processor* says how many times as fast ours is. `papers/benchmarks/classifier.py`",  # noqa: E501
        ("corpus", "layers", "utterances a second", "processor", "accuracy", "load"),
    ),
    "training": (
        "**A step of training.** Shares of its processor time. *rest* is the training loop itself (the `Trainer` of transformers), the check of the loss, and the log. `papers/benchmarks/training.py`",  # noqa: E501
        (
            "case",
            "threads",
            "ms a step",
            "batches",
            "forward",
            "backward",
            "penalty",
            "optimiser",
            "rest",
            "load",
        ),
    ),
    "peers": (
        "**Other tools** for the same statistic. *processor* is their time divided by ours. *beyond* is the same after the time of the forward passes is subtracted from both. *apart* is the largest difference between their numbers and ours. `usual` is a script that keeps all hidden states, `eager` is transformers with `output_attentions=True`, `lens` is TransformerLens. `benchmarks/peers.py`",  # noqa: E501
        ("peer", "of", "packages", "processor", "beyond", "apart", "load"),
    ),
}

SIZES = """- Vectors are measured before the first layer too, so a model of few layers has a larger ratio than the whole one.
- This CPU multiplies bfloat16 matrices in hardware (AMX), and the bare pass in bfloat16 takes a third of its time in float32. Measuring stays in float32,
  because the results of bfloat16 products are rounded to 8 bits on a CPU. So for models in bfloat16 the share of measuring is largest.
- This machine reads and writes memory at a quarter of the rate of the machine of the other tables, which slows measuring more than matrix products."""  # noqa: E501

PEERS = """- A tool that keeps all vectors (the usual script, nnsight, scikit-learn) takes about three times as long as ours. What
  measuring adds to the forward passes is compared in the column *beyond*, where the difference is much larger.
- torchmetrics with one object per site makes the same sums, and takes about as long.
- IsoScore's package is quicker than ours on a corpus this short. Ours computes seven measures with intervals, which takes 63 reductions of
  384 × 384, however long the corpus is. IsoScore's package needs 7 for one measure without an interval."""  # noqa: E501

TEXT = """# Speed, and how far it is from the limit

## In short

Time of a measurement, as a multiple of the time of the forward pass alone (the *bare* pass). This is wall-clock time. Each cell has the smallest and the
largest ratio over four kinds of windows (of 128, 256 and 512 tokens, and those of `make demo`):

{short}

- `hidden` is the cheapest panel, `all` has hidden states, spectrum and attention.
- `all, fused` skips the model's own attention call (`--attention fused`): measuring computes the attention weights anyway, and the output of attention comes from these.
- With more threads, measuring speeds up less than the forward pass, so the ratio rises.
- The measured values are the same bit for bit with any number of threads.
- These numbers are of the built-in encoder in float32. Other models cost more: see *Sizes that people use*, near the end. A model in bfloat16 took 2.4
  to 4.2 times the bare pass on a CPU.

## Every case

Built-in encoder, 4,096 tokens a batch. Bare and measured passes take turns in one process. Each number is the median ratio (with quartiles).

- *processor time* and *wall*: the ratio in processor time, and in wall-clock time.
- *bare against bare*: the bare pass compared with itself, as a control. It should be 1.00.
- *aim*: what we wanted to reach in processor time.
- *load*: the load of the machine. Other programs increase even processor time, because they share caches.
- `demo`: the windows and padding of `make demo`. The time begins before the first batch, with empty sums, and ends when the last batch is added.

{machine}; {versions}.

{overhead}

`--attention fused` is not the default, because it changes the model's rounding. Most values hardly move. But after a final norm one direction has no
variance, only rounding, and the effective rank counts this direction, too. So the effective rank changes by 1.4e-4 (`tests/test_fused.py`).

## The limit

What one thread of this machine can do in a second of processor time. *product*: a matrix product, as in the model. *symmetric*: a product of a matrix
with its own transpose, of which half is computed. *scores*: queries times keys, by torch's default library and by oneDNN.

{rates}

The next table has, for each panel, the *work* that it cannot avoid, the time that this work would take at the rates above, and the measured time. Both
times are shares of the time of the forward pass (`benchmarks/limit.py`):

{limits}

## What is in the way

Times of single operations are the best of five on a busy machine. They are not exact, but show which operations take long.

- **The demo misses its aim with default options.** `make demo` uses the default `--attention model` and takes {demo} times the bare pass; the aim is
  1.30. With `--attention fused` it takes {demo_fused} times.
- **Threads.** A block of attention rows consists of operations of 10 to 200 µs, which is shorter than the time to wake a thread. So each thread
  computes whole blocks, or one of the two products of the spectrum. There is still a loss, because the two cores slow each other down: two symmetric
  products at the same time took 12.4 ms each, and one alone 8. The bare pass itself takes 1.2 to 1.3 times as much processor time on two threads.
- **Hidden.** Each vector is read once. Its sums are matrix products with one factor of only 6 to 9 rows. Libraries
  compute such narrow products at a fraction of their best rate.
- **Spectrum.** The two products Σxxᵀ and Σuuᵀ take 12.9 of the 14.3 ms that a site needs in a batch (4,096 vectors of 384 numbers). The copies
  that they need take 1.4.
- **Attention.** One attention weight takes 1.4 ns in a block: .75 for its score, .16 for its power of 2, .09 for its product with the score, and
  .05 to .08 for each of six sums and extremes. Each sum is a separate operation. A single kernel for all of them exists only for GPUs.
- **Fused.** `--attention fused` saves the model's own attention call, 1.7 ns per weight, and adds .8 ns for weights times values.
- **Fused attention of torch** is not faster than our blocks on this CPU: see the next section.
- **Training** of small models (`anisoscope train`). The model takes more than nine tenths of the time of a step. In the smallest one, the attention-only
  classifier, it takes less: of the 10 ms of a step, the training loop takes a tenth, making batches a thirtieth, and the optimiser an eighth.

## Attention calls of every shape

How long the statistics of attention rows take for calls of every shape, as a multiple of the time of torch's own attention
product of the same call. The shapes are those of `make matrix`: who sees whom, side of padding, kind of heads (plain, grouped, with sinks, with a softcap) and
dtype. A padded batch has a sequence of the length, one of half of it, and one of a single token. Each cell has the smallest and the largest ratio over
kinds of heads and dtypes (one thread, processor time, {attention_shapes_machine}, `benchmarks/attention_shapes.py`):

{attention_shapes}

torch's product takes neither caps nor sinks, so it is timed without them. A product of one or two tokens takes microseconds: repeated at once,
it takes {attention_shapes_short} of its own time (median), so the first two columns are rough. From 127 tokens on that is {attention_shapes_long}.

## Attention rows from torch's fused attention

Our blocks of rows compute attention weights and then statistics of them. torch's fused attention never forms the weights, but three calls of it give
some of the statistics:

1. the entropy of each row. The call gets the keys in place of the values, and it also returns the log-sum-exp of each row; the two give the entropy;
2. the length (norm) of each row, from the log-sum-exp at twice the scale;
3. the attention that each key receives, with queries and keys exchanged.

They do not give the largest or the smallest weight. The table has their time as a multiple of the time of our blocks, which give all of these
statistics (one thread, processor time, `benchmarks/fused_rows.py`).

- *three calls*: all three, which would replace the blocks of `--attention model`.
- *one call*: only the first of the three, for the entropy. (It takes as long as the model's own attention call.)
- *blocks, output*: blocks that also give the output of attention (`--attention fused`), so that the model's own call is saved.
- *calls apart*, *blocks apart*: the largest error of an entropy, compared with float64, in nats.

{fused_rows}

The three calls take {fused_least} to {fused_most} times as long as the blocks, at every length and in both dtypes. So attention rows are
always computed in blocks. Even one call, which gives only the entropy, takes {one_least} to {one_most} times as long as the blocks. In bfloat16 a fused
product rounds weights before it multiplies them, so the entropy is wrong by up to {fused_apart} nats. The blocks convert queries and keys to float32
first. None of this was tried on a GPU.

## Intervals of the spectrum by derivatives: measured, and not used

For the intervals of ranks, all eigenvalues are computed again with each group left out: {groups} groups, and two spectra, centred and uncentred. One
reduction to a tridiagonal matrix serves both spectra. The table compares this with two other ways (one thread, processor time,
`benchmarks/spectrum_intervals.py`):

- *separate*: the time with a decomposition for each spectrum, as a multiple of ours. The eigenvalues are the same.
- *derivatives*: to first order, one decomposition with eigenvectors is enough for all groups. The column has the time of the whole metric, as a multiple
  of ours. The next columns have the width of the intervals, as a multiple of ours (the smallest and the largest of all layers).

{spectrum_intervals}

A decomposition with eigenvectors takes two to three times as long as one without, and each group still needs a product. So little or no time is saved,
and intervals of real layers get wider. Ranks are biased if there are few vectors. Leaving out groups shows this bias, and derivatives do not. So we leave out groups.

## The spectrum of a share of the tokens

Second moments cost dim² operations for each token. But a small part of a corpus is enough to determine the ranks. `--spectrum-share .1` sums the second moments of a
tenth of the tokens, drawn at random. The same tokens are used at every site, however the corpus is cut into batches. All other metrics read every token. The table has the largest
difference over layers from the ranks of all tokens (`benchmarks/spectrum_share.py`). With few tokens for each dimension ranks are too low:

{spectrum_share}

So about 16 tokens for each dimension (65,000 tokens in 4,096 dimensions) fix the ranks of random vectors to 1 %. Real layers need about 50, because
tokens of one document resemble each other.

## Dtypes

How much `--dtype` changes the numbers, on a CPU. The table has the largest difference from records of the same windows in float64 with `eager`
attention, over all layers, heads and token policies (built-in encoder, 10 documents, `benchmarks/dtypes.py`). The difference of the effective rank is
relative. *interval ±* is the median half-width of the 95 % intervals of that metric.

{moved}

- Queries and keys in bfloat16 or float16 are converted to float32 before their rows are computed, and sums are kept in float64. The float32 columns
  show how little this changes. So nearly all of the difference in bfloat16 and float16 is the model's own rounding. We conclude this from how numbers
  are summed; we did not measure the two parts separately.
- Attention rows come from the exact softmax of the queries and keys that the model computed. `eager` and `sdpa` round the output of attention
  differently, so later layers differ.

Processor time of each dtype, one thread ({dtypes_machine}):

{costs}

- *bare pass*: its time, as a multiple of the bare pass in float32 with `sdpa`.
- *all / bare pass*: the time with all panels, as a multiple of the bare pass of the same row.
- *added time*: the time that all panels add to the bare pass, as a multiple of the bare pass in float32 with `sdpa`.
- *bare against bare*: a control, as above.

Measuring uses at least float32, whatever the model's dtype is. So all dtypes but float64 have about the same *added time*, and measuring has a larger share
of the time if the model itself is faster. No dtype was timed or compared on a GPU.

## Other measurements

{others}
"""  # noqa: E501
