"""Time and peak memory as the corpus grows, over processes, and of merging many shards.

    python benchmarks/scale.py                          # a tiny model, 1 ×, 10 ×, 100 × 20,000 tokens; about 5 minutes
    python benchmarks/scale.py --sizes 1 10 --processes 1 --shards 100

A tiny BERT with random weights reads random windows of all lengths, so that the time is that of measuring. Peak memory
is the highest of a process, less what it held before its first batch. Shards are sums over 32 groups with a spectrum.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from pairs import keep, options, with_threads
from transformers import BertConfig, BertModel

from anisoscope.batch import Batch, Stream
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings

WIDTH, LAYERS, WINDOW, SEQUENCES = 64, 2, 64, 32
SETTINGS = Settings(metrics=(), sample=256)


def model() -> BertModel:
    torch.manual_seed(0)
    sizes = {
        "hidden_size": WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    }
    return BertModel(
        BertConfig(vocab_size=500, max_position_embeddings=WINDOW, **sizes)
    ).eval()


class Windows:
    """A plan of random windows, made when they are asked for."""

    def __init__(self, tokens: int) -> None:
        self.fingerprint, self.frequency_bins, self.n_units = (
            f"random {tokens}",
            list[str](),
            0,
        )
        count = max(1, tokens * 4 // (3 * WINDOW * SEQUENCES))
        self.tokens = [SEQUENCES * WINDOW * 3 // 4] * count

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> Batch:
        g = torch.Generator().manual_seed(index)
        mask = torch.arange(WINDOW) < torch.linspace(
            WINDOW // 2, WINDOW, SEQUENCES
        ).long().unsqueeze(1)
        ids = torch.randint(1, 500, mask.shape, generator=g) * mask
        unit = torch.arange(SEQUENCES) // 4 + index * SEQUENCES // 4
        stream = Stream(
            mask, torch.zeros_like(mask), torch.arange(SEQUENCES) % 4 * WINDOW
        )
        return Batch(
            {"input_ids": ids, "attention_mask": mask.long()}, unit, {"encoder": stream}
        )


def memory(name: str) -> float:
    """MiB of this process, as Linux counts them: `VmRSS` now, `VmHWM` at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return (
        next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024
    )


def one(tokens: int, rank: int, processes: int, state: Path) -> None:
    """The part of a process: prints tokens, seconds on the wall, processor seconds and peak memory; saves its sums."""
    subject, plan = model(), Windows(tokens)
    run_pass(subject, Windows(1), SETTINGS)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, begun, spent = memory("VmRSS"), time.perf_counter(), time.process_time()
    mine = range(rank, len(plan), processes)
    measured = run_pass(subject, plan, SETTINGS, only=mine)
    seconds = time.perf_counter() - begun, time.process_time() - spent
    peak = memory("VmHWM") - before
    measured.save(state)
    print(sum(plan.tokens[i] for i in mine), *seconds, peak)


def grown(size: int, tokens: int, processes: int, folder: Path) -> dict[str, object]:
    """One size over processes of one thread each, which run at the same time; their sums are merged."""
    states = [folder / f"{size}-{processes}-{rank}" for rank in range(processes)]
    command = [sys.executable, __file__, "--one"]
    running = [
        subprocess.Popen(
            [*command, str(size * tokens), str(rank), str(processes), str(path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, path in enumerate(states)
    ]
    said = [process.communicate()[0].split() for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"a process of {processes} failed")
    parts = [[float(x) for x in each[-4:]] for each in said]
    merged = Measurement.restore(states[0], SETTINGS)
    for state in states[1:]:
        merged = merged.merge(Measurement.restore(state, SETTINGS))
    records = merged.records()
    row = {
        "size": size,
        "processes": processes,
        "tokens": int(sum(part[0] for part in parts)),
    }
    row |= {"wall s": round(max(part[1] for part in parts), 2)}
    row |= {
        "processor s": round(sum(part[2] for part in parts), 2),
        "peak MiB": round(max(p[3] for p in parts), 1),
    }
    anisotropy = records.query(
        "metric == 'mean_cosine' and site == 'hidden' and token_policy == 'all'"
    )["value"]
    row |= {"A": [round(value, 9) for value in anisotropy]}
    print(row, flush=True)
    return row


def merged_shards(count: int) -> dict[str, object]:
    """Seconds and memory to merge shards of one batch each, one after the other, and to make the table."""
    subject, plan = model(), Windows(count * SEQUENCES * WINDOW * 3 // 4)
    whole = run_pass(subject, plan, SETTINGS)
    shards = [run_pass(subject, plan, SETTINGS, only=[i]) for i in range(len(plan))]
    begun, spent = time.perf_counter(), time.process_time()
    total = shards[0]
    for shard in shards[1:]:
        total = total.merge(shard)
    seconds = time.perf_counter() - begun, time.process_time() - spent
    apart = (total.records()["value"] - whole.records()["value"]).abs().max()
    row = {"size": f"{len(shards)} shards", "processes": 1, "tokens": sum(plan.tokens)}
    row |= {
        "wall s": round(seconds[0], 2),
        "processor s": round(seconds[1], 2),
        "apart": float(apart),
    }
    print(row, flush=True)
    return row


def main(argv: Sequence[str] | None = None) -> None:
    import tempfile

    parser = options(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument(
        "--tokens", type=int, default=20_000, help="of the corpus of size 1"
    )
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--shards", type=int, default=1000)
    given = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder, with_threads(1):
        for processes in given.processes:
            rows += [
                grown(size, given.tokens, processes, Path(folder))
                for size in given.sizes
            ]
        rows.append(merged_shards(given.shards))
    keep(
        given.results,
        "scale",
        [{"threads": 1} | row for row in rows],
        ("size", "processes"),
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        with with_threads(1):
            one(*map(int, sys.argv[2:5]), Path(sys.argv[5]))
    else:
        main()
