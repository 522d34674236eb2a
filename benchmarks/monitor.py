"""What `Monitor` costs a training: the time of a look against the steps between two looks, interleaved in one run.

    python benchmarks/monitor.py                                   # presets tiny and small, the default interval
    python benchmarks/monitor.py --threads 1 --clock cpu           # on a machine whose cores others use too

A step is forward, backward and AdamW of a masked language model of the preset, on random windows; a look is
`Monitor.look` on 64 windows, as by default, without writing files. Looks of
the first steps (0, 1, 2, 4 …) come on top, ten in all.
"""

import argparse
import os
import statistics

import torch
from overhead import CLOCKS
from transformers import BertConfig, BertForMaskedLM

from anisoscope.training.monitor import EVERY, Monitor
from anisoscope.training.recipe import SIZES, ModelSize

ASKED = 0.03
PROBE = 64


class Case:
    """A model in training, and its monitor."""

    def __init__(self, size: ModelSize, probe: int) -> None:
        torch.manual_seed(0)
        self.size = size
        config = BertConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=4 * size.width,
            max_position_embeddings=size.window,
        )
        self.model = BertForMaskedLM(config).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        batches = [self.windows(min(size.batch, probe)) for _ in range(-(-probe // size.batch))]
        self.monitor = Monitor([{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for ids in batches])

    def windows(self, sequences: int) -> torch.Tensor:
        return torch.randint(5, self.size.vocabulary, (sequences, self.size.window))

    def step(self) -> None:
        ids = self.windows(self.size.batch)
        masked = torch.rand(ids.shape) < 0.15
        labels = ids.masked_fill(~masked, -100)
        loss = self.model(input_ids=ids.masked_fill(masked, 4), labels=labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def look(self) -> None:
        self.monitor.look(self.model, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", choices=sorted(SIZES), default=["tiny", "small"])
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = CLOCKS[options.clock]
    print(f"{options.threads} threads, {options.clock} time, a look every {EVERY} steps at {PROBE} windows")
    for name in options.presets:
        case = Case(SIZES[name], PROBE)
        spent: dict[str, list[float]] = {"step": [], "look": []}
        for repetition in range(-2, options.repetitions):
            for what, do in (("step", case.step), ("look", case.look)):
                start = clock()
                do()
                if repetition >= 0:
                    spent[what].append(clock() - start)
        step, look = (statistics.median(spent[what]) for what in ("step", "look"))
        share = look / (EVERY * step)
        verdict = "within" if share <= ASKED else "MISSES"
        print(
            f"{name:10s} step {1e3 * step:7.1f} ms   look {1e3 * look:7.1f} ms = {look / step:.1f} steps   "
            f"{share:.2%} of the time   {verdict} {ASKED:.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
