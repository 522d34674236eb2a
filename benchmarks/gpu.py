"""What only a GPU can show, in the order of its worth: `make gpu`, or with DRY=1 its miniature on any machine.

    python benchmarks/gpu.py --results gpu.json --minutes 40
    python benchmarks/gpu.py --tiny                             # every step in small, on a CPU too

Each step's records are written as it ends, with the device's name; a second start goes on after the last finished one.
It ends with a table of what was found.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from transformers import AutoModel, BertConfig, LlamaConfig

import anisoscope
from anisoscope.batch import Batch, Stream
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.devices import device_of
from anisoscope.store import KEYS, RunFolder, write_json

PANELS = ("hidden", "spectrum", "attention")
PLACE = [
    name
    for name in KEYS
    if name not in ("run", "model", "revision", "step", "seed", "corpus")
]
TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 99,
}
BILLION = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 32000,
    "max_position_embeddings": 65536,
}


def model_of(name: str, tiny: bool, **options: Any) -> Any:
    """A BERT-base or a decoder of a billion parameters, with weights drawn anew."""
    torch.manual_seed(0)
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {
        "bert-base": (BertConfig, {}),
        "decoder-1b": (LlamaConfig, BILLION),
    }
    kind, sizes = kinds[name]
    config = kind(
        **(sizes | (TINY | {"num_key_value_heads": 2} if tiny else {})), use_cache=False
    )
    auto: Any = AutoModel
    return auto.from_config(config, **options).eval()


def batches(model: Any, tokens: int, rows: int, count: int) -> list[Batch]:
    """Random ids in sequences of unequal lengths, from a quarter of the tokens to all of them, padded on the right; a
    unit a sequence.
    """
    lengths = torch.linspace(tokens, max(1, tokens // 4), rows).round().unsqueeze(1)
    made = []
    for i in range(count):
        ids = torch.randint(
            3,
            model.config.vocab_size,
            (rows, tokens),
            generator=torch.Generator().manual_seed(i),
        )
        real = torch.arange(tokens) < lengths
        stream = Stream(
            real, torch.zeros_like(real), torch.zeros(rows, dtype=torch.int64)
        )
        inputs = {"input_ids": ids, "attention_mask": real.long()}
        made.append(
            Batch(
                inputs,
                torch.arange(i * rows, (i + 1) * rows),
                {"encoder": stream, "decoder": stream},
            )
        )
    return made


def correctness(device: torch.device, tiny: bool) -> dict[str, Any]:
    """Every metric on the device against the CPU, in float64: the largest difference, relative above 1."""
    found = {}
    for name in ("bert-base", "decoder-1b"):
        model = model_of(name, tiny=tiny or name != "bert-base").double()
        data = batches(
            model, 150 if tiny else 300, 4, 4
        )  # of more rows than a block has
        tables = []
        for place in ("cpu", device):
            measured = run_pass(
                model.to(place), data, Settings(panel=PANELS, sample=64, groups=8)
            )
            tables.append(measured.records().set_index(PLACE)["value"].astype(float))
        found[name] = largest_difference(*tables)
    return found


def timed(model: Any, data: list[Batch], settings: Settings | None) -> float:
    """Seconds of a pass, or of the bare forward calls."""
    device = next(model.parameters()).device
    started = time.perf_counter()
    if settings is None:
        with torch.no_grad():
            for batch in data:
                model(**{name: x.to(device) for name, x in batch.inputs.items()})
    else:
        run_pass(model, data, settings)
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - started


def overhead(
    device: torch.device, tiny: bool, backend: str = "sdpa", tokens: int = 512
) -> dict[str, Any]:
    """Seconds of each panel in parts of the bare forward pass, in float32 and bfloat16; the largest memory."""
    found: dict[str, Any] = {}
    for name in ("bert-base", "decoder-1b"):
        model = model_of(name, tiny, attn_implementation=backend).to(device)
        data = batches(
            model,
            min(tokens, 32) if tiny else tokens,
            2 if tiny else max(1, 16_384 // tokens),
            2 if tiny else 8,
        )
        if not tiny and tokens > getattr(
            model.config, "max_position_embeddings", tokens
        ):
            continue
        for dtype in (
            (torch.float32, torch.bfloat16)
            if backend != "flash_attention_2"
            else (torch.bfloat16,)
        ):
            model = model.to(dtype)
            timed(model, data, None)
            bare = min(timed(model, data, None) for _ in range(3))
            parts = {}
            for panels in (("hidden",), ("spectrum",), ("attention",), PANELS):
                chosen = [
                    m.name
                    for m in Settings(panel=panels).chosen
                    if m.reads.summary() is None
                ]
                settings = Settings(
                    metrics=tuple(chosen), sample=0
                )  # matrices of weights are looked at once a run
                timed(model, data[:1], settings)
                parts["+".join(panels)] = round(
                    min(timed(model, data, settings) for _ in range(2)) / bare, 3
                )
            memory = (
                torch.accelerator.max_memory_allocated()
                if device.type != "cpu"
                else None
            )
            found[f"{name} {str(dtype).removeprefix('torch.')}"] = {
                "bare": bare,
                "parts": parts,
                "memory": memory,
            }
    return found


def backends(device: torch.device, tiny: bool) -> dict[str, Any]:
    """The same of each attention that transformers has here."""
    from transformers.utils import is_flash_attn_2_available

    names = ["eager", *(["flash_attention_2"] if is_flash_attn_2_available() else [])]
    return {name: overhead(device, tiny, name, 256) for name in names}


def long_context(device: torch.device, tiny: bool) -> dict[str, Any]:
    """The same in long windows."""
    return {
        str(tokens): overhead(device, tiny, tokens=tokens)
        for tokens in ((48,) if tiny else (8_192, 32_768))
    }


def processes(device: torch.device, tiny: bool) -> dict[str, Any]:
    """Two processes on one device against one: the largest difference of their records."""
    command = [
        "-m",
        "anisoscope",
        "measure",
        "builtin:minilm",
        "--limit",
        "4" if tiny else "400",
        "--device",
        device.type,
    ]
    command += ["--quiet", "--panel", "hidden" if tiny else "all"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with tempfile.TemporaryDirectory() as folder:
        for words, name in ((command, "one"), ([*launcher, *command], "two")):
            given = [sys.executable, *words, "--output", f"{folder}/{name}"]
            subprocess.run(
                given,
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        one, two = (
            RunFolder(Path(folder, n)).records.set_index(PLACE)["value"].astype(float)
            for n in ("one", "two")
        )
    return largest_difference(one, two)


def best_backend() -> str:
    """FlashAttention, if it is installed; else torch's fused product."""
    from transformers.utils import is_flash_attn_2_available

    return "flash_attention_2" if is_flash_attn_2_available() else "sdpa"


def largest_difference(ours: pd.Series, theirs: pd.Series) -> dict[str, Any]:
    """How far records lie apart, relative above 1, and how many are missing."""
    theirs = theirs.reindex(ours.index)
    difference = (ours - theirs).abs() / ours.abs().clip(lower=1)
    missing = int(theirs.isna().sum()) - int(ours.isna().sum())
    return {
        "records": len(ours),
        "largest": float(difference.max()),
        "missing": missing,
    }


def agreement(device: torch.device, tiny: bool) -> dict[str, Any]:
    """Records of padded batches by the fastest attention that is here against those by eager attention."""
    backend = best_backend()
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    tables = []
    for name in (backend, "eager"):
        model = model_of("decoder-1b", tiny, attn_implementation=name).to(device, dtype)
        data = batches(model, 32 if tiny else 512, 4, 4)
        measured = run_pass(model, data, Settings(panel=PANELS, sample=0, groups=8))
        tables.append(measured.records().set_index(PLACE)["value"].astype(float))
    return {
        "backend": backend,
        "dtype": str(dtype).removeprefix("torch."),
        **largest_difference(*tables),
    }


def sharded(device: torch.device, tiny: bool) -> dict[str, Any]:
    """A decoder over all GPUs (on a CPU two processes), by FSDP2 and by tensor parallelism, against one process."""
    parts = torch.accelerator.device_count() if device.type != "cpu" else 2
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(parts),
        __file__,
    ]
    found: dict[str, Any] = {"processes": parts}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for way in ("alone", "fsdp2", "tensor-parallel"):
            words = [
                "--way",
                way,
                "--into",
                f"{folder}/{way}.parquet",
                "--device",
                device.type,
            ]
            started = [__file__] if way == "alone" else launcher
            given = [sys.executable, *started, *words, *(["--tiny"] if tiny else [])]
            subprocess.run(
                given, check=True, stdout=subprocess.DEVNULL, env=environment
            )
        tables = {
            way: pd.read_parquet(f"{folder}/{way}.parquet")
            for way in ("alone", "fsdp2", "tensor-parallel")
        }
    expected = tables["alone"].set_index(PLACE)["value"].astype(float)
    for way in ("fsdp2", "tensor-parallel"):
        found[way] = largest_difference(
            expected, tables[way].set_index(PLACE)["value"].astype(float)
        )
        found[way] |= {"seconds": float(tables[way]["seconds"].iloc[0])}
    found["alone"] = {"seconds": float(tables["alone"]["seconds"].iloc[0])}
    return found


def measure_in_job(way: str, device: torch.device, tiny: bool, path: Path) -> None:
    """Measure a decoder that is spread over the processes of the job, or whole (`alone`), and keep its records."""
    if way != "alone":
        if device.type != "cpu":
            torch.accelerator.set_device_index(device.index or 0)
        dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    model = spread(
        model_of("decoder-1b", tiny, attn_implementation=best_backend()),
        way,
        device,
        tiny,
    )
    data = batches(model, 32 if tiny else 512, 4, 8)
    inputs = [batch.inputs | {"unit": batch.unit} for batch in data]
    started = time.perf_counter()
    run = anisoscope.measure(model, inputs, panel=PANELS, sample=0, groups=8)
    if way == "alone" or dist.get_rank() == 0:
        run.records.assign(seconds=time.perf_counter() - started).to_parquet(path)
    if way != "alone":
        dist.destroy_process_group()


def spread(model: Any, way: str, device: torch.device, tiny: bool) -> Any:
    """The decoder on the device: whole, or spread over the processes of the job."""
    model = (
        model.to(device)
        if tiny and device.type == "cpu"
        else model.to(device, torch.bfloat16)
    )
    if way == "fsdp2":
        for layer in model.layers:
            fully_shard(layer)
        return fully_shard(model)
    if way == "tensor-parallel":
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        columns = dict.fromkeys(
            ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
            ColwiseParallel(),
        )
        columns |= dict.fromkeys(["mlp.gate_proj", "mlp.up_proj"], ColwiseParallel())
        rows = dict.fromkeys(["self_attn.o_proj", "mlp.down_proj"], RowwiseParallel())
        for layer in model.layers:
            parallelize_module(layer, mesh, columns | rows)
    return model


Step = Callable[[torch.device, bool], dict[str, Any]]
STEPS: tuple[Step, ...] = (
    correctness,
    overhead,
    backends,
    agreement,
    sharded,
    long_context,
    processes,
)


def local_device(name: str) -> str:
    """The device of this process in a job on several GPUs."""
    return name if name == "cpu" else f"{name}:{os.environ.get('LOCAL_RANK', '0')}"


def flatten(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Pairs (path, number or word) of what a step found."""
    if not isinstance(value, dict):
        return [(path, value)]
    return [
        pair
        for name, part in value.items()
        for pair in flatten(part, f"{path} {name}".strip())
    ]


def table_of(done: dict[str, Any]) -> str:
    """What all steps found, a line each."""
    rows = []
    for step, found in done.items():
        if isinstance(found, dict):
            rows += [(step, path, value) for path, value in flatten(found)]
    widths = [max((len(str(row[i])) for row in rows), default=0) for i in range(2)]
    lines = []
    for step, path, value in rows:
        shown = f"{value:.3g}" if isinstance(value, float) else value
        lines.append(f"{step:<{widths[0]}}  {path:<{widths[1]}}  {shown}")
    return "\n".join(lines)


def main(given: list[str] | None = None, steps: tuple[Step, ...] = STEPS) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--results", type=Path, help="where records are kept; none: they are shown only"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--only", default="", help="steps, with commas")
    parser.add_argument(
        "--tiny", action="store_true", help="small models, on any machine"
    )
    parser.add_argument(
        "--way", choices=["alone", "fsdp2", "tensor-parallel"], help=argparse.SUPPRESS
    )
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    device, started = (
        device_of(asked.device if not asked.way else local_device(asked.device)),
        time.monotonic(),
    )
    if asked.way:
        measure_in_job(asked.way, device, asked.tiny, asked.into)
        return
    if device.type == "cpu" and not asked.tiny:
        would = ", ".join(step.__name__ for step in steps)
        sys.exit(
            f"expected an accelerator; got a CPU only: on a GPU this would run {would}, in {asked.minutes:g} minutes "
            "at most, and end with a table. Cure: run it where there is a GPU, or make gpu DRY=1 (--tiny) in miniature"
        )
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    name += " in miniature" * asked.tiny  # which is no record of the device
    kept = (
        json.loads(asked.results.read_text())
        if asked.results is not None and asked.results.exists()
        else {}
    )
    done = kept.setdefault(name, {"torch": torch.__version__, "tiny": asked.tiny})
    for step in steps:
        if step.__name__ in done or (
            asked.only and step.__name__ not in asked.only.split(",")
        ):
            continue
        if time.monotonic() - started > 60 * asked.minutes:
            print(f"{step.__name__}: not begun, the time is over; start again to go on")
            continue
        begun = time.monotonic()
        try:
            done[step.__name__] = step(device, asked.tiny) | {
                "seconds": round(time.monotonic() - begun, 1)
            }
        except Exception as error:  # the steps after it are worth their time
            print(f"{step.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if asked.results is not None:
            write_json(asked.results, kept)
        print(f"{step.__name__}: {json.dumps(done[step.__name__])}")
    print(f"\n{name}, torch {torch.__version__}\n{table_of(done)}")
    failed = [step.__name__ for step in steps if step.__name__ not in done]
    if failed and not asked.only:
        sys.exit(f"not finished: {', '.join(failed)}")


if __name__ == "__main__":
    main()
