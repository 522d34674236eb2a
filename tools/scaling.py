# ruff: noqa: E501 (lines of the page)
"""The page on large models and many processes; its tables are made by the function that tells the cost of a run."""

import json
from functools import cache
from typing import Any

import speed
import torch

from anisoscope.measure.cost import Cost, estimate_cost, find_shapes_on_meta, format_bytes, format_scaled
from anisoscope.measure.settings import PANELS, Settings
from anisoscope.models.load import load_on_meta

MODELS: dict[str, tuple[str, int, dict[str, int]]] = {
    "BERT-base": ("BertConfig", 12, {}),
    "8B (Llama 3)": (
        "LlamaConfig",
        32,
        {
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14336,
            "vocab_size": 128256,
        },
    ),
    "70B (Llama 3)": (
        "LlamaConfig",
        80,
        {
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "intermediate_size": 28672,
            "vocab_size": 128256,
        },
    ),
}
WINDOWS, TOKENS = 512, 10**9
FLOPS = 1e14
"""Products a second that a large GPU may reach in bfloat16: for hours, not a measurement."""


def costs() -> dict[str, tuple[Cost, Cost]]:
    """By model: the cost as it is by default, and with the spectrum of every site. All is linear in the layers: two
    models, of one block and of two, tell the rest.
    """
    import transformers

    found = {}
    for name, (config, layers, sizes) in MODELS.items():
        made = getattr(transformers, config)
        small = [_made(made(**sizes, num_hidden_layers=depth, use_cache=False)) for depth in (1, 2)]
        pair = []
        for settings in (Settings(), Settings(spectrum_groups=1)):
            one, two = (estimate_cost(find_shapes_on_meta(model, settings), settings, WINDOWS) for model in small)
            pair.append(_grown(one, two, layers - 1))
        found[name] = (pair[0], pair[1])
    return found


def _made(config: Any) -> Any:
    import transformers

    auto: Any = transformers.AutoModel
    with torch.device("meta"):
        return auto.from_config(config).eval().to(torch.bfloat16)


def _grown(one: Cost, two: Cost, more: int) -> Cost:
    """The cost of `more` blocks than `one` has, from that of one more."""

    def grown(a: Any, b: Any) -> Any:
        return {k: grown(a[k], b[k]) for k in a} if isinstance(a, dict) else a + more * (b - a)

    return Cost(
        **{name: grown(a, vars(two)[name]) for name, a in vars(one).items() if name != "tokens"}, tokens=one.tokens
    )


PARTS = {"hidden": ("hidden",), "hidden + spectrum": ("hidden", "spectrum"), "all": PANELS}
"""Panels as `benchmarks/overhead.py` names them."""


def checked() -> list[str]:
    """Rows: what products say that panels add to a pass of the built-in encoder, beside what was measured."""
    settings = Settings(panel=PANELS, spectrum_groups=1)
    shapes, rows = find_shapes_on_meta(load_on_meta("builtin:minilm"), settings), []
    held = json.loads(speed.RESULTS.read_text("utf-8"))["overhead"]
    cost_at = cache(lambda windows: estimate_cost(shapes, settings, windows))
    for row in sorted((row for row in held if row["windows"].isdigit()), key=lambda row: int(row["windows"])):
        if row["threads"] == 1 and row["panels"] in PARTS:
            cost = cost_at(int(row["windows"]))
            said = sum(cost.panels[panel] for panel in PARTS[row["panels"]]) / cost.model
            rows.append(f"| {row['windows']} | {row['panels']} | {said:.1%} | {row['processor'][0] - 1:.1%} |")
    return rows


def page() -> str:
    """docs/scaling.md."""
    rows, run = [], []
    for name, (plain, spectrum) in costs().items():
        cells = [
            format_bytes(plain.weights),
            format_bytes(plain.sums),
            format_bytes(plain.sample),
            format_bytes(plain.moments),
            format_bytes(spectrum.moments),
        ]
        rows.append(f"| {name} | {' | '.join(cells)} | {format_bytes(plain.state)} |")
        parts = {"hidden": plain, "attention": plain, "spectrum": spectrum}
        shares = [f"{cost.panels[panel] / cost.model:.2%}" for panel, cost in parts.items()]
        hours = plain.model * TOKENS / FLOPS / 3600
        run.append(f"| {name} | {format_scaled(plain.model)}flop | {' | '.join(shares)} | {hours:,.1f} |")
    return TEXT.format(
        memory="\n".join(rows),
        products="\n".join(run),
        windows=WINDOWS,
        flops=f"{FLOPS:.0e}",
        checked="\n".join(checked()),
    )


TEXT = """# Large models and many processes

A pass keeps sums, not vectors: what it holds does not grow with the corpus. What it will hold is said before it begins, and by
`anisoscope measure MODEL --dry-run` from the model's configuration alone. The same function makes the tables below, on the meta device,
with the code that makes the sums; `tests/test_large.py` holds it to what a pass allocates, to the byte.

## What it costs

Bytes in bfloat16, with default settings (32 groups, sample of 2,048 vectors), and second moments if the spectrum is measured:

| model | weights | sums | sample | second moments, by default | with `--spectrum-groups 1` | state file |
|---|---|---|---|---|---|---|
{memory}

Matrix products for one token, in windows of {windows} tokens. The columns of panels are shares of the model's own products. The hours, for a sense of
scale, are those of the model alone for 10⁹ tokens at {flops} products a second. Products are not time. They leave out exponentials and reads of memory. On
a CPU the second moments take half of what is shown here (a symmetric product), and on a GPU a float32 product takes longer than one in bfloat16.

| model | model | hidden | attention | spectrum | hours |
|---|---|---|---|---|---|
{products}

Against what one thread of a quiet CPU took ([the figures](limit.md); the built-in encoder, float32), products are the smaller part of what
`hidden` and `attention` take, and more than the spectrum takes:

| window | panels | products, in parts of the model's | processor time, in parts of the bare pass |
|---|---|---|---|
{checked}

- Sites wider than 2,048 dimensions have no spectrum unless it is asked for (`--spectrum-groups 1`, or `--panel spectrum` alone). A random
  projection was not taken in its place: the participation ratio survives one, effective ranks and IsoScore do not.
- `--layers 0,8,16,-1` measures these layers only, with the records that the whole run has there.
- A state is saved every minute. A large state is saved less often, so that saving writes 5 MB a second at most: 16 GB every 55 minutes.
  Ctrl-C and SIGTERM save it at once.
- Out of memory, the pass goes on with each batch in two parts, four, …; the sums are the same, and the run says so.

## One machine

```bash
anisoscope measure MODEL --corpus wikitext-103 --dtype auto             # the accelerator that is there, the checkpoint's own numbers
anisoscope measure MODEL --device-map auto --dtype auto --layers 0,20,40,-1   # larger than one device: blocks over all of them
```

Sums stay beside their layer. Quantised checkpoints (bitsandbytes, GPTQ …) load by their own configuration; where its library is missing
the error names it. On MPS, which has no float64, vectors are summed on the CPU.

## Several devices, several machines

Every process measures every N-th batch, and rank 0 writes one run, equal to that of one process:

```bash
torchrun --standalone --nproc-per-node 4 -m anisoscope measure MODEL --corpus wikitext-103 -o runs/model      # four GPUs
torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m anisoscope measure MODEL -o /shared/model
torchrun --standalone --nproc-per-node 2 -m anisoscope measure builtin:minilm --device cpu                   # Gloo
```

Each process takes the GPU of its local rank. They talk by NCCL if each has a GPU of its own, else by Gloo. All machines must see the folder.
Each process tokenises its share of the texts and gets the rest from the others. A signal to one process ends all of them at the end of their
current batch, with their states saved. `--resume` goes on, with any number of processes.

## Job arrays

Shards need no connection between jobs, and may run at any time:

```bash
anisoscope measure MODEL --corpus wikitext-103 --shard $((SLURM_ARRAY_TASK_ID + 1))/16 -o runs/part-$SLURM_ARRAY_TASK_ID
anisoscope merge runs/part-* -o runs/whole
```

Every job first reads and tokenises the whole corpus to know which windows are its own, which takes time and 15 MiB for each million tokens.
For more than some hundred million tokens, or for many files, let each job read its own files (below).

## Data that no program reads as a whole

`anisoscope.State` is the measurement itself, for programs that read their data their own way: each worker adds vectors, or batches of a model,
and whoever has all states merges them in any order and finishes the run.

```python
import numpy as np

import anisoscope

rng = np.random.default_rng(0)
first, second = (anisoscope.State(panel="hidden") for _ in range(2))
first.add(rng.normal(size=(500, 16)) + 1, units=[f"a-{{i}}" for i in range(500)])  # one worker
second.add(rng.normal(size=(500, 16)) + 1, units=[f"b-{{i}}" for i in range(500)])  # another
run = first.merge(second).finish()  # State.save, State.load and pickle carry them
print(run.table()[["A", "low", "high"]].round(2))
```

Name the units (documents, speakers): a name is the same unit in every state. A state does not grow with the data, but for 8 bytes a unit.

| your data | use | what is planned |
|---|---|---|
| fits one machine's disk, one model | `anisoscope measure`, with `torchrun` on several GPUs | everything, once |
| one corpus, jobs that start at any time | `measure --shard I/N`, then `merge` | everything, in every job |
| many files, SLURM or another job array | `examples/scale/job_array.py`: a state a job | nothing: each job reads its files |
| the same on GPUs that run together | `examples/scale/with_torchrun.py` | nothing |
| the same on a Ray cluster | `examples/scale/with_ray.py`: Ray Data reads, workers add | nothing |

Copy an example and change how it reads: its first lines say how to start it. On SLURM, for a folder `texts` of parquet files with the columns
`text` and `document`:

```bash
sbatch --array=0-7 --wrap 'python job_array.py texts states $SLURM_ARRAY_TASK_ID 8'
python job_array.py texts states          # when all have ended: adds the states up to one run
```

The three examples are run in miniature by the tests (that of Ray only if it is installed), and give the numbers of one process to 1e-12.

## What was not run

There was no GPU where this was written. The tests use a simulated device instead (`tests/devices.py`: tensors that compute on the CPU, refuse to mix
devices and count how often the host waits). On it, records equal those of the CPU to 1e-8, and the host waits equally often in a batch of one layer
and of three. For a GPU, batches are made and pinned in a thread while the batch before is measured. Tests show that only a GPU gets its batches this way;
they do not show that it saves time. CUDA itself, NCCL, flash attention, MPS and the quantised kernels were not run. `make gpu` runs what a
GPU can show, the most important first, in 40 minutes at most a start.
"""
