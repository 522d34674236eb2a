"""A from one pass against every pair of the corpus, compared one by one in float64. Slow: n² pairs a layer.

ANISOSCOPE_DATA=… python benchmarks/exactness.py --corpus wikitext/wiki.valid.raw --layers 5
python benchmarks/exactness.py --limit 10                       # the built-in corpus, ten documents, every layer
"""

import argparse
import time
from collections.abc import Sequence

import torch

from anisoscope.capture import capture
from anisoscope.measure.loop import run_pass
from anisoscope.measure.settings import Settings
from anisoscope.models.load import load
from anisoscope.runs.job import Job
from anisoscope.runs.run import open_plan_of
from anisoscope.store import select

ROWS = 2048


def brute_force(x: torch.Tensor) -> float:
    """Mean cosine over all distinct pairs of x [token, dim], block by block of the upper triangle."""
    u = x.double() / x.double().norm(dim=1, keepdim=True)
    total = 0.0
    blocks = torch.split(u, ROWS)
    for i, rows in enumerate(blocks):
        total += float((rows @ rows.T).triu(1).sum())
        total += sum(float((rows @ others.T).sum()) for others in blocks[i + 1 :])
    return total / (len(u) * (len(u) - 1) / 2)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", default="builtin:python-docs")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--layers", default="", help="layers with commas; default: all")
    options = parser.parse_args(argv)
    subject = load("builtin:minilm")
    plan, _ = open_plan_of(Job(corpus=options.corpus, limit=options.limit), subject)
    settings = Settings(metrics=("mean_cosine",), tokens=("all",), sample=0)
    records = select(
        run_pass(subject.model, plan, settings).records(),
        metric="mean_cosine",
        site="hidden",
    )
    wanted = [int(x) for x in options.layers.split(",") if x] or records[
        "layer"
    ].tolist()
    kept: dict[int, list[torch.Tensor]] = {layer: [] for layer in wanted}
    with capture(subject.model) as tap, torch.no_grad():
        for batch in plan:
            subject.model(**batch.inputs)
            for layer in wanted:
                kept[layer].append(
                    tap[f"encoder.{layer}.hidden"][batch.streams["encoder"].mask]
                )
    for layer in wanted:
        start = time.perf_counter()
        x = torch.cat(kept.pop(layer))
        slow = brute_force(x)
        fast = float(records.set_index("layer")["value"][layer])
        seconds = time.perf_counter() - start
        line = f"layer {layer}: one pass {fast:.12f}, every pair {slow:.12f}, difference {abs(fast - slow):.1e}"
        print(f"{line}  ({len(x):,} vectors, {seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
