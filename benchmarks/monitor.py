"""What `Monitor` costs a training: the time of a look against the steps between two looks, interleaved in one run.

    python benchmarks/monitor.py                # presets tiny, small and causal, the default interval

A step is forward, backward and AdamW of a masked language model of the preset, on random windows; a look is
`Monitor.look` on 64 windows, as by default, without writing files. Looks of
the first steps (0, 1, 2, 4 …) come on top, ten in all. `causal` is a GPT-2 whose sequences are of unequal lengths,
padded on the right, the longest above the 128 rows that attention is computed in at a time.

What the panel `extremes` takes of it (sinks, massive activations, largest logits) is measured in pairs too: looks with
it against looks without.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from pairs import BARE, against, keep, options, told, with_threads
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from anisoscope.metrics import find_metric_by_name
from anisoscope.monitor.monitor import EVERY, METRICS, Monitor

AIM, AIM_OF_EXTREMES = 0.03, 0.01
PLAIN = tuple(name for name in METRICS if find_metric_by_name(name).panel != "extremes")
PROBE = 64


class Size(NamedTuple):
    """A model and what one of its steps reads: sequences (`batch`) of so many tokens (`window`)."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    window: int
    batch: int
    causal: bool = False


SIZES = {
    "tiny": Size(2, 64, 2, 1024, 32, 16),
    "small": Size(4, 128, 4, 4096, 64, 32),
    "causal": Size(2, 64, 2, 1024, 192, 16, causal=True),
}
"""The first two are those of `anisoscope train masked-lm --preset`."""


def build_model(size: Size) -> torch.nn.Module:
    """Build the model of a size: BERT, or GPT-2 if it is causal."""
    if size.causal:
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=size.vocabulary,
                n_layer=size.layers,
                n_embd=size.width,
                n_head=size.heads,
                n_positions=size.window,
                use_cache=False,
            )
        )
    return BertForMaskedLM(
        BertConfig(
            vocab_size=size.vocabulary,
            hidden_size=size.width,
            num_hidden_layers=size.layers,
            num_attention_heads=size.heads,
            intermediate_size=4 * size.width,
            max_position_embeddings=size.window,
        )
    )


def draw_inputs(size: Size, sequences: int) -> dict[str, torch.Tensor]:
    """Draw random ids and their mask: full windows, or lengths from a window down to one token if causal."""
    ids = torch.randint(5, size.vocabulary, (sequences, size.window))
    lengths = torch.full((sequences,), size.window)
    if size.causal:
        lengths = torch.linspace(size.window, 1, sequences).round().long()
    mask = torch.arange(size.window) < lengths.unsqueeze(1)
    return {"input_ids": ids * mask, "attention_mask": mask.long()}


class Case:
    """A model in training, and its monitor."""

    def __init__(self, size: Size, probe: int) -> None:
        torch.manual_seed(0)
        self.size = size
        self.model = build_model(size).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        batches = [
            draw_inputs(size, min(size.batch, probe))
            for _ in range(-(-probe // size.batch))
        ]
        self.monitor, self.plain = Monitor(batches), Monitor(batches)
        self.plain.settings = replace(self.plain.settings, metrics=PLAIN)

    def step(self, _item: object = None) -> None:
        inputs = draw_inputs(self.size, self.size.batch)
        ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
        if self.size.causal:
            loss = self.model(**inputs, labels=ids.masked_fill(~real, -100)).loss
        else:
            masked = torch.rand(ids.shape) < 0.15
            labels = ids.masked_fill(~masked, -100)
            loss = self.model(input_ids=ids.masked_fill(masked, 4), labels=labels).loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def look(self, _item: object = None) -> None:
        self.monitor.look(self.model, 0)

    def look_without_extremes(self, _item: object = None) -> None:
        self.plain.look(self.model, 0)


def time_looks(case: Case, pairs: int) -> dict[str, Any]:
    """Time looks against steps, and looks with the panel `extremes` against those without.

    Returns a row of results: ratios of a look to a step, and `share`, the part of a training's time at the default
    interval that looks are, and under `extremes` that the panel is.
    """
    found = against(case.step, {"look": case.look}, [None], pairs)
    to_plain = against(case.look_without_extremes, {"look": case.look}, [None], pairs)[
        "look"
    ]
    clocks = ("processor", "wall")
    share = {clock: round(found["look"][clock][0] / EVERY, 5) for clock in clocks}
    of_extremes = {
        clock: round(share[clock] * (1 - 1 / to_plain[clock][0]), 5) for clock in clocks
    }
    ratios = {clock: to_plain[clock] for clock in clocks}
    row = {
        "aim": AIM,
        "share": share,
        "bare": {clock: found[BARE][clock] for clock in clocks},
    } | found["look"]
    return row | {
        "extremes": {"aim": AIM_OF_EXTREMES, "share": of_extremes, "ratio": ratios}
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--presets", nargs="+", choices=sorted(SIZES), default=list(SIZES)
    )
    parser.add_argument(
        "--windows", type=int, default=PROBE, help="windows that a look reads"
    )
    given = parser.parse_args(argv)
    for name in given.presets:
        case = Case(SIZES[name], given.windows)
        for threads in given.threads:
            with with_threads(threads):
                row = {"preset": name, "threads": threads} | time_looks(
                    case, given.pairs
                )
            said = f"a look is {told(row)} steps, one in {EVERY}: {row['share']['processor']:.2%} of the time"
            print(
                f"{name:8s} {threads} threads: {said}; step again {told(row['bare'])}; aim {AIM:.0%}",
                flush=True,
            )
            part = row["extremes"]
            said = f"{told(part['ratio'])} of a look without it, {part['share']['processor']:.2%} of the time"
            print(
                f"{'':8s} with the panel extremes {said}; aim {AIM_OF_EXTREMES:.0%}",
                flush=True,
            )
            keep(given.results, "monitor", [row], ("preset", "threads"))


if __name__ == "__main__":
    main()
