"""What measuring costs: ratios to the bare forward pass, interleaved in one run, and the same against the usual script.

    python benchmarks/overhead.py               # by panel and window, then time and memory against the usual script
    python benchmarks/overhead.py --clock cpu --threads 1      # on a machine whose cores others use too

The usual script keeps all hidden states of the corpus and takes the mean cosine of 100,000 sampled pairs per layer.
Peak memory is the highest of a process of its own, less what it holds with the model loaded, before the first batch. It
is read in a second run in which the allocator returns freed buffers at once: glibc keeps those below 32 MiB, more of
them the more batches there were, in the bare forward pass as well.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from anisoscope.batch import BatchPlan
from anisoscope.capture import capture
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.load import Subject, load
from anisoscope.runs.job import Job
from anisoscope.runs.run import plan_of

PANELS = {
    "hidden": ("hidden",),
    "hidden + spectrum": ("hidden", "spectrum"),
    "all": ("hidden", "spectrum", "attention"),
}
BOUNDS = {"hidden": 1.04, "hidden + spectrum": 1.12, "all": 1.35}
WINDOWS = (128, 256, 512)
TOKENS = 4096
PAIRS = 100_000
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
"""What is read: time on the wall, or processor time of all threads (with one thread, what no neighbour disturbs)."""


def planned(subject: Subject, window: int, limit: int | None = None) -> BatchPlan:
    return plan_of(Job(max_length=window, batch_tokens=TOKENS, limit=limit), subject)[0]


class Running:
    """A measurement in progress, one batch at a time, so that cases can take turns."""

    def __init__(self, subject: Subject, panels: tuple[str, ...]) -> None:
        self.model, self.settings = subject.model, Settings(panels=panels)
        self.measurement = Measurement(self.settings)

    def __call__(self, plan: BatchPlan, index: int) -> None:
        batch = plan[index]
        receive = self.measurement.receive
        with capture(self.model, self.settings.what, receive=receive) as tap, torch.no_grad():
            tap.real = self.measurement.begin(batch, torch.device("cpu"))
            self.model(**batch.inputs)
            self.measurement.end()


def overhead(repetitions: int, windows: list[int], clock: Callable[[], float]) -> None:
    """Ratio of every panel to the bare pass over the same batch: median over repetitions, each on its own batch."""
    subject = load("builtin:minilm")

    def bare(plan: BatchPlan, index: int) -> None:
        with torch.no_grad():
            subject.model(**plan[index].inputs)

    for window in windows:
        plan = planned(subject, window)
        cases: dict[str, Callable[[BatchPlan, int], None]] = {name: Running(subject, p) for name, p in PANELS.items()}
        ratios: dict[str, list[float]] = {name: [] for name in cases}
        for repetition in range(-2, repetitions):
            index = repetition % len(plan)
            before = seconds(bare, plan, index, clock)
            for name, case in cases.items():
                ratio = seconds(case, plan, index, clock) / before
                if repetition >= 0:
                    ratios[name].append(ratio)
        for name, values in ratios.items():
            median = statistics.median(values)
            verdict = "within" if median <= BOUNDS[name] else "MISSES"
            spread = f"{min(values):.3f} – {max(values):.3f}"
            print(
                f"window {window:4d}  {name:18s} {median:.3f} × bare   ({spread})   {verdict} {BOUNDS[name]}",
                flush=True,
            )


def seconds(case: Callable[[BatchPlan, int], None], plan: BatchPlan, index: int, clock: Callable[[], float]) -> float:
    start = clock()
    case(plan, index)
    return clock() - start


def usual_script(subject: Subject, plan: BatchPlan) -> None:
    """All hidden states kept; 100,000 random pairs per layer."""
    kept: list[list[torch.Tensor]] = []
    with torch.no_grad():
        for i in range(len(plan)):
            inputs = plan[i].inputs
            states = subject.model(**inputs, output_hidden_states=True).hidden_states
            kept.append([state[inputs["attention_mask"].bool()] for state in states])
        for layer in range(len(kept[0])):
            vectors = torch.cat([states[layer] for states in kept])
            a, b = (torch.randint(len(vectors), (PAIRS,)) for _ in range(2))
            torch.cosine_similarity(vectors[a], vectors[b]).mean()


def ours(subject: Subject, plan: BatchPlan) -> None:
    """A at every layer over all pairs, with its interval and contributions."""
    settings = Settings(metrics=("mean_cosine",), policies=("all",), sample=0)
    run_pass(subject.model, plan, settings).records()


WAYS = {"ours": ours, "usual": usual_script}


def one(way: str, limit: int, threads: int, clock: Callable[[], float]) -> None:
    """One way in this process: tokens, seconds of the whole, seconds of the bare passes, peak memory in MiB."""
    torch.set_num_threads(threads)
    subject = load("builtin:minilm")
    plan = planned(subject, 256, limit)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = memory("VmRSS")
    start = clock()
    WAYS[way](subject, plan)
    spent = clock() - start
    peak = memory("VmHWM") - before
    start = clock()
    with torch.no_grad():
        for i in range(len(plan)):
            subject.model(**plan[i].inputs)
    print(sum(plan.tokens), spent, clock() - start, peak)


def memory(name: str) -> float:
    """MiB of this process, as Linux counts them: `VmRSS` now, `VmHWM` at most so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024


RETURNED = {"MALLOC_MMAP_THRESHOLD_": str(2**20)}
"""Environment in which glibc maps buffers above 1 MiB one by one, and returns them when freed."""


def against(limit: int, threads: int, clock: str) -> None:
    """Ours against the usual script, and ours on ten times the tokens."""
    results = {}
    for name, way, units in (("usual", "usual", limit), ("ours", "ours", limit), ("ours, more", "ours", limit * 10)):
        command = [sys.executable, __file__, "--one", way, "--limit", str(units), "--threads", str(threads)]
        command += ["--clock", clock]
        tokens, spent, bare, kept = child(command, {})
        peak = child(command, RETURNED)[-1]
        results[name] = (tokens, spent - bare, spent, peak)
        beyond = f"{spent:7.2f} s, {spent - bare:+7.2f} s beyond the forward passes"
        memory = f"peak {peak:7.1f} MiB above the model ({kept:.1f} with what the allocator keeps)"
        print(f"{name:12s} {tokens:9,.0f} tokens   {beyond}   {memory}", flush=True)
    usual, mine, more = results["usual"], results["ours"], results["ours, more"]
    print(f"measuring alone, usual / ours: {usual[1] / max(mine[1], 1e-9):.1f} × the time (asked: ≥ 4)")
    print(f"whole pass, usual / ours: {usual[2] / mine[2]:.2f} × the time")
    print(f"peak memory, usual / ours: {usual[3] / max(mine[3], 1e-9):.1f} × (asked: ≥ 10)")
    print(f"peak memory at {more[0] / mine[0]:.1f} × the tokens: {more[3] / max(mine[3], 1e-9):.3f} × (asked: ≤ 1.03)")


def child(command: list[str], environment: dict[str, str]) -> list[float]:
    """What `one` prints, in a process of its own."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return [float(x) for x in done.stdout.split()[-4:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS))
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--limit", type=int, default=20, help="documents of the comparison with the usual script")
    parser.add_argument("--one", choices=sorted(WAYS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    if options.one:
        one(options.one, options.limit, options.threads, clock)
        return
    how = f"{options.threads} threads, {TOKENS} tokens a batch, {options.clock} time"
    print(f"builtin:minilm × builtin:python-docs, {how}")
    overhead(options.repetitions, options.windows, clock)
    if options.limit:
        against(options.limit, options.threads, options.clock)


if __name__ == "__main__":
    main()
