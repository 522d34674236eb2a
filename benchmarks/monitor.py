"""What `Monitor` costs a training: the time of a look against the steps between two looks, interleaved in one run.

    python benchmarks/monitor.py                                   # presets tiny and small, the default interval

A step is forward, backward and AdamW of a masked language model of the preset, on random windows; a look is
`Monitor.look` on 64 windows, as by default, without writing files. Looks of
the first steps (0, 1, 2, 4 …) come on top, ten in all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from pairs import BARE, against, keep, options, told, with_threads
from transformers import BertConfig, BertForMaskedLM

from anisoscope.monitor.monitor import EVERY, Monitor

AIM = 0.03
PROBE = 64


class Size(NamedTuple):
    """A model and what one of its steps reads: sequences (`batch`) of so many tokens (`window`)."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    window: int
    batch: int


SIZES = {"tiny": Size(2, 64, 2, 1024, 32, 16), "small": Size(4, 128, 4, 4096, 64, 32)}
"""Those of `anisoscope train masked-lm --preset`."""


class Case:
    """A model in training, and its monitor."""

    def __init__(self, size: Size, probe: int) -> None:
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

    def step(self, _item: object = None) -> None:
        ids = self.windows(self.size.batch)
        masked = torch.rand(ids.shape) < 0.15
        labels = ids.masked_fill(~masked, -100)
        loss = self.model(input_ids=ids.masked_fill(masked, 4), labels=labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def look(self, _item: object = None) -> None:
        self.monitor.look(self.model, 0)


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument("--presets", nargs="+", choices=sorted(SIZES), default=["tiny", "small"])
    parser.add_argument("--windows", type=int, default=PROBE, help="windows that a look reads")
    given = parser.parse_args(argv)
    for name in given.presets:
        case = Case(SIZES[name], given.windows)
        for threads in given.threads:
            with with_threads(threads):
                found = against(case.step, {"look": case.look}, [None], given.pairs)
            share = {clock: round(found["look"][clock][0] / EVERY, 5) for clock in ("processor", "wall")}
            said = f"a look is {told(found['look'])} steps, one in {EVERY}: {share['processor']:.2%} of the time"
            print(f"{name:8s} {threads} threads: {said}; step again {told(found[BARE])}; aim {AIM:.0%}", flush=True)
            both = {clock: found[BARE][clock] for clock in ("processor", "wall")}
            row = {"preset": name, "threads": threads, "aim": AIM, "share": share, "bare": both} | found["look"]
            keep(given.results, "monitor", [row], ("preset", "threads"))


if __name__ == "__main__":
    main()
