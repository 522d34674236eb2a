"""What only a GPU can show, in the order of its worth: `make gpu`, or with `--tiny` its miniature on any machine.

    python benchmarks/gpu.py --results gpu.json --minutes 40

Each step's records are written as it ends, with the device's name; a second start goes on after the last finished one.
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

import torch
from transformers import AutoModel, BertConfig, LlamaConfig

from anisoscope.batch import Batch, Stream
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.devices import device_of
from anisoscope.store import KEYS, RunFolder, write_json

PANELS = ("hidden", "spectrum", "attention")
PLACE = [name for name in KEYS if name not in ("run", "model", "revision", "step", "seed", "corpus")]
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99}
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
    kinds: dict[str, tuple[Any, dict[str, Any]]] = {"bert-base": (BertConfig, {}), "decoder-1b": (LlamaConfig, BILLION)}
    kind, sizes = kinds[name]
    config = kind(**(sizes | (TINY | {"num_key_value_heads": 2} if tiny else {})), use_cache=False)
    auto: Any = AutoModel
    return auto.from_config(config, **options).eval()


def batches(model: Any, tokens: int, rows: int, count: int) -> list[Batch]:
    """Random ids in sequences of unequal lengths, from a quarter of the tokens to all of them, padded on the right; a
    unit a sequence.
    """
    lengths = torch.linspace(tokens, max(1, tokens // 4), rows).round().unsqueeze(1)
    made = []
    for i in range(count):
        ids = torch.randint(3, model.config.vocab_size, (rows, tokens), generator=torch.Generator().manual_seed(i))
        real = torch.arange(tokens) < lengths
        stream = Stream(real, torch.zeros_like(real), torch.zeros(rows, dtype=torch.int64))
        inputs = {"input_ids": ids, "attention_mask": real.long()}
        made.append(Batch(inputs, torch.arange(i * rows, (i + 1) * rows), {"encoder": stream, "decoder": stream}))
    return made


def correctness(device: torch.device, tiny: bool) -> dict[str, Any]:
    """Every metric on the device against the CPU, in float64: the largest difference, relative above 1."""
    found = {}
    for name in ("bert-base", "decoder-1b"):
        model = model_of(name, tiny=tiny or name != "bert-base").double()
        data = batches(model, 150 if tiny else 300, 4, 4)  # of more rows than a block has
        tables = []
        for place in ("cpu", device):
            measured = run_pass(model.to(place), data, Settings(panel=PANELS, sample=64, groups=8))
            tables.append(measured.records().set_index(PLACE)["value"].astype(float))
        ours, theirs = tables[0], tables[1].reindex(tables[0].index)
        difference = (ours - theirs).abs() / ours.abs().clip(lower=1)
        found[name] = {"records": len(ours), "largest": float(difference.max()), "missing": int(theirs.isna().sum())}
        found[name]["missing"] -= int(ours.isna().sum())
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


def overhead(device: torch.device, tiny: bool, backend: str = "sdpa", tokens: int = 512) -> dict[str, Any]:
    """Seconds of each panel in parts of the bare forward pass, in float32 and bfloat16; the largest memory."""
    found: dict[str, Any] = {}
    for name in ("bert-base", "decoder-1b"):
        model = model_of(name, tiny, attn_implementation=backend).to(device)
        data = batches(
            model, min(tokens, 32) if tiny else tokens, 2 if tiny else max(1, 16_384 // tokens), 2 if tiny else 8
        )
        if not tiny and tokens > getattr(model.config, "max_position_embeddings", tokens):
            continue
        for dtype in (torch.float32, torch.bfloat16) if backend != "flash_attention_2" else (torch.bfloat16,):
            model = model.to(dtype)
            timed(model, data, None)
            bare = min(timed(model, data, None) for _ in range(3))
            parts = {}
            for panels in (("hidden",), ("spectrum",), ("attention",), PANELS):
                chosen = [m.name for m in Settings(panel=panels).chosen if m.reads.summary() is None]
                settings = Settings(metrics=tuple(chosen), sample=0)  # matrices of weights are looked at once a run
                timed(model, data[:1], settings)
                parts["+".join(panels)] = round(min(timed(model, data, settings) for _ in range(2)) / bare, 3)
            memory = torch.accelerator.max_memory_allocated() if device.type != "cpu" else None
            found[f"{name} {str(dtype).removeprefix('torch.')}"] = {"bare": bare, "parts": parts, "memory": memory}
    return found


def backends(device: torch.device, tiny: bool) -> dict[str, Any]:
    """The same of each attention that transformers has here."""
    from transformers.utils import is_flash_attn_2_available

    names = ["eager", *(["flash_attention_2"] if is_flash_attn_2_available() else [])]
    return {name: overhead(device, tiny, name, 256) for name in names}


def long_context(device: torch.device, tiny: bool) -> dict[str, Any]:
    """The same in long windows."""
    return {str(tokens): overhead(device, tiny, tokens=tokens) for tokens in ((48,) if tiny else (8_192, 32_768))}


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
            subprocess.run(given, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        one, two = (RunFolder(Path(folder, n)).records.set_index(PLACE)["value"].astype(float) for n in ("one", "two"))
    difference = (one - two.reindex(one.index)).abs() / one.abs().clip(lower=1)
    return {"records": len(one), "largest": float(difference.max())}


Step = Callable[[torch.device, bool], dict[str, Any]]
STEPS: tuple[Step, ...] = (
    correctness,
    overhead,
    backends,
    long_context,
    processes,
)


def main(given: list[str] | None = None, steps: tuple[Step, ...] = STEPS) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, help="where records are kept; none: they are shown only")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--only", default="", help="steps, with commas")
    parser.add_argument("--tiny", action="store_true", help="small models, on any machine")
    asked = parser.parse_args(given)
    device, started = device_of(asked.device), time.monotonic()
    if device.type == "cpu" and not asked.tiny:
        sys.exit("expected an accelerator; got a CPU only. Cure: run it where there is a GPU, or with --tiny")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    name += " in miniature" * asked.tiny  # which is no record of the device
    kept = json.loads(asked.results.read_text()) if asked.results is not None and asked.results.exists() else {}
    done = kept.setdefault(name, {"torch": torch.__version__, "tiny": asked.tiny})
    for step in steps:
        if step.__name__ in done or (asked.only and step.__name__ not in asked.only.split(",")):
            continue
        if time.monotonic() - started > 60 * asked.minutes:
            print(f"{step.__name__}: not begun, the time is over; start again to go on")
            continue
        begun = time.monotonic()
        try:
            done[step.__name__] = step(device, asked.tiny) | {"seconds": round(time.monotonic() - begun, 1)}
        except Exception as error:  # the steps after it are worth their time
            print(f"{step.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        if asked.results is not None:
            write_json(asked.results, kept)
        print(f"{step.__name__}: {json.dumps(done[step.__name__])}")


if __name__ == "__main__":
    main()
