"""What measuring costs a text model: ratios to the bare forward pass, by panels.

    python benchmarks/overhead.py                       # full windows, causal ones, the plan of `make demo`
    python benchmarks/overhead.py --threads 1,2 --windows 512

Full windows: a pair is one batch. Causal: a GPT-2 of the encoder's size reads a batch of unequal lengths, padded on the
right, some of which end where a block of rows does and one token beside it. The plan: a pair is the whole corpus, from
an empty measurement to the last flush, with windows of all lengths. What is done once a run, whatever the corpus,
stands in seconds below.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from pairs import BARE, Case, against, keep, options, seconds, told, with_threads
from transformers import GPT2Config, GPT2Model

from anisoscope.batch import Batch, Stream
from anisoscope.capture import capture
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.loop import summarise_embeddings
from anisoscope.measure.settings import Settings
from anisoscope.models.load import Subject, load
from anisoscope.runs.job import Job
from anisoscope.runs.run import open_plan_of

CASES = {
    "hidden": Settings(panel=("hidden",)),
    "hidden + spectrum": Settings(panel=("hidden", "spectrum")),
    "all": Settings(),
    "all, fused": Settings(attention="fused"),
}
AIMS = {"hidden": 1.04, "hidden + spectrum": 1.12, "all": 1.35, "all, fused": 1.25}
AIM_OF_PLAN = 1.30
DEMO, CAUSAL = "demo", "causal"
LENGTHS = (512, 511, 385, 384, 300, 257, 129, 128, 127, 64, 2, 1)
"""Tokens of the sequences of a causal batch."""
KEY = ("windows", "panels", "threads")


class Running:
    """A measurement in progress, some batches at a time, so that cases can take turns; `whole`: each time anew."""

    def __init__(self, model: Any, settings: Settings, *, whole: bool = False) -> None:
        self.model, self.settings, self.whole = model, settings, whole
        self.measurement = Measurement(settings)

    def __call__(self, batches: Sequence[Batch]) -> None:
        measurement = self.measurement = (
            Measurement(self.settings) if self.whole else self.measurement
        )
        what, spare = self.settings.what_of(self.model)
        fused = self.settings.attention == "fused"
        of_pass = capture(
            self.model, what, optional=spare, receive=measurement.receive, fused=fused
        )
        with of_pass as tap, torch.no_grad():
            for batch in batches:
                tap.real = measurement.begin(batch, torch.device("cpu"))
                self.model(**batch.inputs)
                measurement.end()
        if self.whole:
            measurement.moments.flush()


def bare(model: Any) -> Case[Sequence[Batch]]:
    def passes(batches: Sequence[Batch]) -> None:
        with torch.no_grad():
            for batch in batches:
                model(**batch.inputs)

    return passes


def causal_model(encoder: Any, longest: int) -> GPT2Model:
    """A GPT-2 with as many layers, heads and dimensions as an encoder, and weights drawn anew."""
    torch.manual_seed(0)
    of = encoder.config
    sizes = {
        "n_layer": of.num_hidden_layers,
        "n_head": of.num_attention_heads,
        "n_embd": of.hidden_size,
    }
    return GPT2Model(
        GPT2Config(**sizes, n_positions=longest, vocab_size=1000, use_cache=False)
    ).eval()


def causal_batch(lengths: Sequence[int], seed: int) -> Batch:
    """Random ids in sequences of these lengths, padded on the right; a unit a sequence."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    ids = (
        torch.randint(
            1, 1000, mask.shape, generator=torch.Generator().manual_seed(seed)
        )
        * mask
    )
    unit = torch.arange(len(lengths))
    stream = Stream(mask, torch.zeros_like(mask), torch.zeros_like(unit))
    return Batch(
        {"input_ids": ids, "attention_mask": mask.long()}, unit, {"decoder": stream}
    )


def items(subject: Subject, windows: str, pairs: int, job: Job) -> list[list[Batch]]:
    """Batches of each pair, read once: one of full or of causal windows, or all of the plan."""
    if windows == CAUSAL:
        return [[causal_batch(LENGTHS, seed)] for seed in range(pairs)]
    if windows == DEMO:
        return [list(open_plan_of(job, subject)[0])]
    plan, _ = open_plan_of(replace(job, max_length=int(windows)), subject)
    return [[plan[i]] for i in range(min(len(plan), pairs))]


def compared(
    model: Any, windows: str, batches: list[list[Batch]], pairs: int
) -> Iterator[dict[str, object]]:
    """A row for each choice of panels."""
    whole = windows == DEMO
    cases = {
        name: Running(model, settings, whole=whole) for name, settings in CASES.items()
    }
    found = against(bare(model), cases, batches, pairs)
    for name in cases:
        aim = AIM_OF_PLAN if whole and name == "all" else AIMS[name]
        print(
            f"{windows:>6}  {name:18s} {told(found[name])} × bare; bare {told(found[BARE])}; aim {aim}",
            flush=True,
        )
        both = {clock: found[BARE][clock] for clock in ("processor", "wall")}
        yield {"windows": windows, "panels": name, "aim": aim, "bare": both} | found[
            name
        ]


def once(model: Any, measurement: Measurement) -> Iterator[dict[str, object]]:
    """Seconds of what a run does once."""
    for what, do in (
        (
            "partition of the embeddings",
            lambda: summarise_embeddings(model, Settings(metrics=("partition",))),
        ),
        ("table of records", measurement.records),
    ):
        spent = {clock: round(s, 2) for clock, s in seconds(do).items()}
        print(f"once a run: {what} {spent['processor']:.2f} s", flush=True)
        yield {"windows": "once", "panels": what, "seconds": spent}


def main(argv: Sequence[str] | None = None) -> None:
    parser = options(__doc__)
    parser.add_argument(
        "--windows", nargs="+", default=["128", "256", "512", CAUSAL, DEMO]
    )
    parser.add_argument(
        "--plan-pairs", type=int, default=3, help="pairs of the whole plan"
    )
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--limit", type=int, default=60, help="documents")
    parser.add_argument("--sequences", type=int, help="that many windows only")
    given = parser.parse_args(argv)
    subject = load("builtin:minilm")
    job = Job(
        limit=given.limit, batch_tokens=given.batch_tokens, sequences=given.sequences
    )
    for threads in given.threads:
        print(
            f"builtin:minilm, {threads} thread{'s' * (threads > 1)}, {given.batch_tokens} tokens a batch"
        )
        rows = []
        with with_threads(threads):
            for windows in given.windows:
                pairs = given.plan_pairs if windows == DEMO else given.pairs
                batches = items(subject, windows, pairs, job)
                model = (
                    causal_model(subject.model, max(LENGTHS))
                    if windows == CAUSAL
                    else subject.model
                )
                rows += compared(model, windows, batches, pairs)
            measured = Running(model, Settings(), whole=True)
            measured(batches[0])
            rows += once(model, measured.measurement)
        keep(
            given.results, "overhead", [{"threads": threads} | row for row in rows], KEY
        )


if __name__ == "__main__":
    main()
