"""The page on large models and many processes; its tables are made by the function that tells the cost of a run."""

import json
import math
from functools import cache
from typing import Any

import launches
import speed
import torch

from anisoscope.measure.cost import (
    Cost,
    estimate_cost,
    find_shapes_on_meta,
    format_bytes,
    format_scaled,
)
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
LONG = 4096  # tokens of the window whose kernels are counted
FLOPS = 1e14
"""Products a second that a large GPU may reach in bfloat16: for hours, not a measurement."""
SUPERSCRIPT = {14: "¹⁴", 15: "¹⁵"}
"""Powers of ten in print."""


def costs() -> dict[str, tuple[Cost, Cost]]:
    """By model: the cost as it is by default, and with the spectrum of every site. All is linear in the layers: two
    models, of one block and of two, tell the rest.
    """
    import transformers

    found = {}
    for name, (config, layers, sizes) in MODELS.items():
        made = getattr(transformers, config)
        small = [
            _made(made(**sizes, num_hidden_layers=depth, use_cache=False))
            for depth in (1, 2)
        ]
        pair = []
        for settings in (Settings(), Settings(spectrum_groups=1)):
            one, two = (
                estimate_cost(find_shapes_on_meta(model, settings), settings, WINDOWS)
                for model in small
            )
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
        return (
            {k: grown(a[k], b[k]) for k in a}
            if isinstance(a, dict)
            else a + more * (b - a)
        )

    return Cost(
        **{
            name: grown(a, vars(two)[name])
            for name, a in vars(one).items()
            if name != "tokens"
        },
        tokens=one.tokens,
    )


PARTS = {
    "hidden": ("hidden",),
    "hidden + spectrum": ("hidden", "spectrum"),
    "all": PANELS,
}
"""Panels as `benchmarks/overhead.py` names them."""


def checked() -> list[str]:
    """Rows: what products say that panels add to a pass of the built-in encoder, beside what was measured."""
    settings = Settings(panel=PANELS, spectrum_groups=1)
    shapes, rows = find_shapes_on_meta(load_on_meta("builtin:minilm"), settings), []
    held = json.loads(speed.RESULTS.read_text("utf-8"))["overhead"]
    cost_at = cache(lambda windows: estimate_cost(shapes, settings, windows))
    for row in sorted(
        (row for row in held if row["windows"].isdigit()),
        key=lambda row: int(row["windows"]),
    ):
        if row["threads"] == 1 and row["panels"] in PARTS:
            cost = cost_at(int(row["windows"]))
            said = (
                sum(cost.panels[panel] for panel in PARTS[row["panels"]]) / cost.model
            )
            rows.append(
                f"| {row['windows']} | {row['panels']} | {said:.1%} | {row['processor'][0] - 1:.1%} |"
            )
    return rows


def planned() -> list[str]:
    """Rows: what planning one shard of a folder of texts takes, as the folder grows."""
    rows = []
    held = json.loads(speed.RESULTS.read_text("utf-8"))["planning"]
    for row in sorted(held, key=lambda row: (-row["MB a file"], row["files"])):
        size = (
            f"{row['corpus GB'] / 1000:g} TB"
            if row["corpus GB"] >= 1000
            else f"{row['corpus GB']:g} GB"
        )
        rows.append(
            f"| {row['files']:,} | {row['MB a file']} MB | {size} | {row['share']} | {row['tokens'] / 1e6:.1f} M "
            f"| {row['peak MiB']:.0f} MiB |"
        )
    return rows


def page() -> str:
    """docs/scaling.md."""
    rows, run = [], []
    for name, (plain, spectrum) in costs().items():
        cells = [
            format_bytes(plain.weights),
            format_bytes(plain.sums),
            format_bytes(plain.sample),
            format_bytes(plain.moments) if plain.moments else "not measured",
            format_bytes(spectrum.moments),
        ]
        rows.append(f"| {name} | {' | '.join(cells)} | {format_bytes(plain.state)} |")
        parts = {"hidden": plain, "attention": plain, "spectrum": spectrum}
        shares = [
            f"{cost.panels[panel] / cost.model:.2%}" for panel, cost in parts.items()
        ]
        hours = plain.model * TOKENS / FLOPS / 3600
        run.append(
            f"| {name} | {format_scaled(plain.model)}flop | {' | '.join(shares)} | {hours:,.1f} |"
        )
    return TEXT.format(
        memory="\n".join(rows),
        products="\n".join(run),
        windows=WINDOWS,
        flops=f"10{SUPERSCRIPT[round(math.log10(FLOPS))]}",
        checked="\n".join(checked()),
        planned="\n".join(planned()),
        kernels="\n".join(launches.table(LONG)),
        long=f"{LONG:,}",
        rate=f"{launches.BYTES / 1e12:.2f}",
        half=f"{launches.PRODUCTS[torch.bfloat16] / 1e12:.0f}",
        powers=f"{launches.POWERS / 1e12:.1f}",
        single=f"{launches.PRODUCTS[torch.float32] / 1e12:.0f}",
    )


TEXT = """# Large models and many processes

Anisoscope keeps sums, not vectors, so its memory does not grow with the corpus. `anisoscope measure MODEL --dry-run` says how much it
will need, from the model's configuration alone.

Choose by your data:

| your data | use |
|---|---|
| one model, a corpus on one machine | `anisoscope measure`, with `torchrun` on [several GPUs](#several-devices-several-machines) |
| one corpus of any size (best in many files), jobs that start at any time | `measure --shard I/N`, then `merge`: [job arrays](#job-arrays) |
| files that arrive one after the other | `measure --to-merge` of each, then `merge`: [job arrays](#job-arrays) |
| many files on a cluster | `anisoscope.State` in your own program: [one state for each worker](#your-own-program-reads-the-data) |

## Memory

Memory for a model in bfloat16 with default settings (32 groups for intervals, a sample of 2,048 vectors):

- *sums* are for all metrics except the spectrum.
- *sample*: some metrics need single vectors, so a random sample of them is kept.
- *second moments* are the mean products of all pairs of dimensions. The spectrum needs them.
- *state file* is what is saved on disk by default, so that the run can be continued and merged.

| model | weights | sums | sample | second moments, by default | second moments, with `--spectrum-groups 1` | state file |
|---|---|---|---|---|---|---|
{memory}

- By default, the spectrum is measured only at sites of up to 2,048 dimensions. If you want it at wider sites, too, use
  `--spectrum-groups 1`, or measure `--panel spectrum` alone.
- `--layers 0,8,16,-1` measures only these layers. Their records are the same as if all layers were measured.
- The state is saved every minute, and at once on Ctrl-C or SIGTERM. A large state is saved less often, so that at most 5 MB are
  written a second (16 GB every 55 minutes).
- If memory runs out, each batch is split into two parts, then four, and so on. The sums stay the same, and the run's warnings say so.

`tests/test_large.py` compares these sizes with what a pass allocates. They agree to the byte.

## Time

Matrix products for one token, in windows of {windows} tokens. The column *model* counts the model's own products. The next three columns
are panels: the products that they add, as a share of the model's. (The spectrum is with `--spectrum-groups 1`.) *hours* is the time of
the model alone for 10⁹ tokens at {flops} products a second. It was not measured; it only shows the order of magnitude.

| | model | hidden | attention | spectrum | hours |
|---|---|---|---|---|---|
{products}

Products are only a part of the time: exponentials and memory reads are left out. The next table compares the time of products with the measured time, on one thread of a quiet CPU (built-in
encoder, float32; [more on speed](limit.md)). For `hidden` and attention, most of the time is spent on other things than products. The
spectrum takes less time than its products suggest, because a CPU computes only half of a symmetric product.

| window | panels | products added to the model's | processor time added to the forward pass |
|---|---|---|---|
{checked}

### Kernels and bytes on a GPU

On a GPU, most of the time of measuring goes into reading and writing memory. So we counted, for one layer of the 8B model in bfloat16 and a window of
{long} tokens, the kernels that are launched and the bytes that each reads and writes. `tools/launches.py` counts them without a GPU, on the meta device.
There are two ways to measure:

- *Plain operations*: PyTorch launches a kernel for each operation, without a compiler.
- *Kernels of Triton* (`capture/row_kernel.py`, `sums/vector_kernel.py`): attention scores are not written to memory, and all sums of a site come from
  one read of its vectors. They are used on NVIDIA GPUs if Triton is installed; it comes with the CUDA build of torch. The first call of each kind is
  computed both ways. If the kernels fail or the results differ, plain operations are used, and one warning says why.

The *roofline* is a lower bound of the time. For each kernel it is the longest of three times: its bytes at {rate} TB per second, its products at {half}
Tflop per second in bfloat16 and {single} in float32, and its exponentials (as powers of two) at {powers}·10¹² per second. These rates are from the data sheet of an H100.

| measured in a layer | by | kernels | GB | roofline ms | roofline, divided by that of the layer itself |
|---|---|---|---|---|---|
{kernels}

With plain operations, attention rows are the slowest part: their scores are written to memory, and each statistic reads them again.
`--panel hidden` leaves them out, and `--layers` measures fewer of them.

**Not run on a GPU.** The Triton kernels were run on a CPU with Triton's interpreter and compared with float64, and they were compiled for an H100
(`tests/test_kernels.py`). Nothing was timed on a GPU, and the time of a launch is not counted.

## One machine

```bash
anisoscope measure MODEL --corpus wikitext-103 --dtype auto                   # on the GPU if there is one, in the checkpoint's own dtype
anisoscope measure MODEL --device-map auto --dtype auto --layers 0,20,40,-1   # a model larger than one GPU: its blocks on all of them
```

Sums are kept on the device of their layer. Quantised checkpoints (bitsandbytes, GPTQ …) load by their own configuration. If their
library is missing, the error names it. Weights are hashed (1 GB per second). The hash of a file of 128 MiB or more is remembered until the file changes,
and only one of several processes computes it. MPS has no float64, so vectors on MPS are summed on the CPU.

## Several devices, several machines

Each of N processes measures every N-th batch. Rank 0 writes one run, which equals the run of a single process.

```bash
torchrun --standalone --nproc-per-node 4 -m anisoscope measure MODEL --corpus wikitext-103 -o runs/model      # four GPUs
torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500 -m anisoscope measure MODEL -o /shared/model
torchrun --standalone --nproc-per-node 2 -m anisoscope measure builtin:minilm --device cpu                   # Gloo
```

- Each process uses the GPU of its local rank. Processes talk by NCCL if each has its own GPU, else by Gloo.
- All machines must see the output folder.
- Each process tokenises its share of the texts, and gets the rest from the others.
- A signal to one process ends all of them after their current batch. Their states are saved.
- `--resume` continues, with any number of processes.

### Models spread over processes

If the layers of a model are spread over several processes, the model is measured in place. Every process calls `anisoscope.measure` with the same
arguments and gets the same records. In a job of four processes (`torchrun --nproc-per-node 4`):

```text
how = transformers.distributed.DistributedConfig(tp_size=4, tp_plan="auto")
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", distributed_config=how)
run = anisoscope.measure(model, texts, processor=tokenizer)
```

| spread by | batches that a process reads | joined over processes |
|---|---|---|
| FSDP2, DDP | every N-th. All processes must call the model equally often, so one that has no batch left repeats its last one, which is not counted | the sums, at the end |
| tensor parallelism (DTensor; plans of torch or transformers), also if the tokens are split over the processes outside of attention (sequence parallelism) | all: each process holds a part of every layer | heads of attention and split tokens, at each layer |

With tensor parallelism, Anisoscope finds out from the tensors which of them are split, so it needs no parallelism plan. If the inputs differ between
processes, it stops with an error. Every process computes the attention of all heads. On Gloo with 2 and 3 processes, the records equal those of one
process to 1e-6. `tests/test_tensor_parallel.py` tests this for Llama with grouped-query attention, Qwen3, gpt-oss, DeepSeek-V3, and a custom module that torch
splits. A `Monitor` ([while training](tasks/while-training.md)) does not change the losses of such a training. FSDP together with tensor parallelism is not supported and gives an error, because
then no process knows which other processes read the same batch.

## Job arrays

The jobs need no connection to each other and can run at any time:

```bash
anisoscope measure MODEL --corpus wikitext-103 --shard $((SLURM_ARRAY_TASK_ID + 1))/16 -o runs/part-$SLURM_ARRAY_TASK_ID
anisoscope merge runs/part-* -o runs/whole
```

If the corpus is a folder of texts or tables with at least as many files as jobs, each job reads different files: job I of N reads the
files I, I + N, I + 2N … in path order. (It also reads the start of the first table, to find the text column.) It reads one file after the other, so
its memory hardly depends on the corpus, on the number of files or on their size. Texts and token ids of
a file are kept on the disk meanwhile. The table has the peak memory of splitting a corpus into
batches, on one thread (`benchmarks/planning.py`; the files of a folder are links to one file, so 1 TB took 100 MB of disk):

| files | each | corpus | files of a job | tokens of a job | peak memory |
|---|---|---|---|---|---|
{planned}

A job of more than 4 million tokens tokenises each file twice: to count its batches, and to measure them. The merged run equals a run of the whole folder
to 1e-12 in float64, with one exception: bins of token frequency are left out, because no job knows how often a token occurs in all files. `merge`
reports files that two jobs have read, and missing shards.

If files arrive at different times, or are in different folders, measure each with its own command and `--to-merge`. Then `merge`
adds the runs. You can add further files to a merged run later:

```bash
anisoscope measure MODEL --corpus texts/may.jsonl --to-merge -o runs/may
anisoscope measure MODEL --corpus texts/june.jsonl --to-merge -o runs/june
anisoscope merge runs/may runs/june -o runs/both
```

The merged run equals one run (with `--to-merge`) of a folder with both files to 1e-12 in float64: values, intervals and the sample. Intervals differ
slightly from those without this option: it assigns a document to a group by the content of its file, and not by the file's place in the folder. `merge` refuses runs with different settings or weights. It also refuses runs that have read the same text, whatever its file name.

In these cases the jobs divide batches instead of files:

- the corpus is one file;
- a text can continue in the next file (WikiText articles, `--documents tokens:N`);
- `--limit` or `--sequences` is used;
- the panel `alignment` is measured.

Then every job first reads and tokenises the whole corpus, because it
must know which windows are its own. This takes time, and 15 MiB for each million tokens.

## Your own program reads the data

`anisoscope.State` is a measurement that your program feeds. Each worker adds vectors, or batches of a model. Then one program merges all
states, in any order, and finishes the run.

```python
import numpy as np

import anisoscope

rng = np.random.default_rng(0)
first, second = (anisoscope.State(panel="hidden") for _ in range(2))
first.add(rng.normal(size=(500, 16)) + 1, units=[f"a-{{i}}" for i in range(500)])  # one worker
second.add(rng.normal(size=(500, 16)) + 1, units=[f"b-{{i}}" for i in range(500)])  # another
run = first.merge(second).finish()
print(run.table()[["A", "low", "high"]].round(2))
```

A state can be saved, loaded and pickled (`State.save`, `State.load`), so workers can send it. Name the units (documents, speakers): the same
name means the same unit in every state. A state does not grow with the data, except for 8 bytes
for each unit.

There are examples to copy. The first lines of each say how to start it:

| cluster | example |
|---|---|
| SLURM or another job array | `examples/scale/job_array.py`: one state for each job |
| GPUs that run together | `examples/scale/with_torchrun.py` |
| Ray | `examples/scale/with_ray.py`: Ray Data reads, workers add |

On SLURM, for a folder `texts` of parquet files with the columns `text` and `document`:

```bash
sbatch --array=0-7 --wrap 'python job_array.py texts states $SLURM_ARRAY_TASK_ID 8'
python job_array.py texts states          # after all have ended: adds the states to one run
```

The tests run small versions of the three examples. (Ray is tested only if it is installed. We used Ray 2.60 with two workers on one machine.) Their
numbers equal those of one process to 1e-12.

## What was not run

We had no GPU when we wrote this. The tests use a simulated device instead (`tests/devices.py`). It computes on the CPU, refuses to mix
devices, and counts how often the host waits.

- On that device the records equal those of the CPU to 1e-8. The host does not wait more often if more layers are measured: it waits
  equally often in each batch with three layers as with one.
- For a GPU, a thread prepares the next batch while the current one is measured. We have not measured whether this saves time.
- CUDA, NCCL, flash attention, MPS and quantised kernels were not run. `make gpu` tests them on a GPU, the most important first, in at most 40
  minutes: padded batches, FlashAttention if it is installed, FSDP2 and tensor parallelism over as many GPUs as there are. At the end it prints a table.
  `make gpu DRY=1` runs every step in miniature on a CPU.
"""  # noqa: E501
