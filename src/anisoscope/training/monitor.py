"""The geometry of a model while it trains, on a fixed probe, without touching the training.

>>> monitor = Monitor(probe, output="runs/monitor")      # probe: a few batches, as the model takes them
>>> for step, batch in enumerate(batches, start=1):
...     loss = train_step(model, batch)
...     monitor(model, step)                             # nothing at most steps
"""

import math
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from anisoscope.errors import CorpusError, UsageError
from anisoscope.measure.distributed import rank_and_world
from anisoscope.measure.inputs import Given
from anisoscope.measure.loop import glance
from anisoscope.measure.settings import Settings
from anisoscope.provenance import provenance
from anisoscope.store import as_records, read_table, write_json, write_table

METRICS = ("mean_cosine", "drift", "query_key", "attention")
LOGGED = {"mean_cosine": "A", "drift": "drift", "query_key.cosine": "cosine_query_key", "attention.entropy": "entropy"}
"""Metrics that are logged, and their names there: per layer, means over heads (of the cosine: of its size)."""
EVERY = 500
"""Steps between two looks. A look at 64 windows costs a few steps' time (`benchmarks/monitor.py`)."""


class Monitor:
    """Looks at a model on the same probe now and then: A, drift, cos(Q̄, K̄) and attention entropy of every layer.

    probe   batches as `anisoscope.measure` takes them (dicts of tensors, or `Batch`es); kept, so a few: or
            `Monitor.on_corpus`
    every   steps between looks; steps 0, 1, 2, 4, 8 … below that are looked at too, where `early`
    output  folder for the records of every look, also per head; None: none

    A look runs the model in evaluation mode without gradients and restores modes, gradients and random numbers:
    training is bit for bit the same with and without. Hooks are there during a look only. Of several processes the
    first one looks (models whose weights are spread over devices, as by FSDP, cannot be looked at).
    """

    def __init__(
        self,
        probe: Iterable[Any],
        *,
        every: int = EVERY,
        early: bool = True,
        output: Path | str | None = None,
        blocks: tuple[str, ...] = (),
        prefix: str = "anisoscope",
    ) -> None:
        if every < 1:
            raise UsageError("at least 1 step between two looks", str(every), "raise `every`")
        batches = list(probe)
        if not batches:
            raise CorpusError("a probe with at least one batch", "none", "give it a few batches")
        self.probe = list(Given(batches))
        self.every, self.early, self.prefix = every, early, prefix
        self.output = None if output is None else Path(output)
        self.settings = Settings(metrics=METRICS, policies=("all",), groups=8, sample=0, blocks=blocks)
        self.last: int | None = None

    @classmethod
    def on_corpus(
        cls,
        corpus: str,
        model: nn.Module,
        processor: Any,
        *,
        sequences: int = 64,
        limit: int | None = None,
        **given: Any,
    ) -> "Monitor":
        """A monitor on `sequences` windows of a text corpus, evenly spread over it (its first `limit` units), as
        `anisoscope measure` reads it. Other keywords as for the class.
        """
        from anisoscope.data.opening import open_plan

        plan, _ = open_plan(corpus, model, processor, modality="text", sequences=sequences, limit=limit)
        return cls([plan[i] for i in range(len(plan))], **given)

    def due(self, step: int) -> bool:
        """Whether this step is looked at."""
        return step % self.every == 0 or (self.early and step < self.every and step & (step - 1) == 0)

    def __call__(self, model: nn.Module, step: int) -> dict[str, float] | None:
        """Look at `model` if `step` is due, once a step: {"anisoscope/encoder.3/A": .21, …}; None where it is not."""
        if not self.due(step) or step == self.last or rank_and_world()[0]:
            return None
        return self.look(model, step)

    def look(self, model: nn.Module, step: int) -> dict[str, float]:
        """Look at `model` whatever the step."""
        self.last = step
        records = glance(_body(model), self.probe, self.settings).records()
        if self.output is not None:
            described = {"settings": asdict(self.settings), "every": self.every, "batches": len(self.probe)}
            if not (self.output / "monitor.json").exists():
                write_json(self.output / "monitor.json", described | provenance())
            kept = as_records(records.drop(columns="step"), step=step)
            write_table(self.output / f"step-{step}.parquet", kept)
        return self._logged(records)

    def _logged(self, records: pd.DataFrame) -> dict[str, float]:
        """Means over heads, by layer."""
        rows = records[records["metric"].isin(LOGGED) & records["component"].isna() & (records["kind"] != "cross")]
        rows = rows[rows["site"].isin(("hidden", "query.raw", "attention"))]
        rows = rows.assign(value=rows["value"].where(rows["metric"] != "query_key.cosine", rows["value"].abs()))
        rows = rows[(rows["metric"] != "mean_cosine") | (rows["site"] == "hidden")]
        means = rows.groupby(["stack", "layer", "metric"], sort=False)["value"].mean()
        keys = [f"{self.prefix}/{stack}.{layer}/{LOGGED[metric]}" for stack, layer, metric in means.index]
        named = dict(zip(keys, means.tolist(), strict=True))
        return {name: value for name, value in named.items() if math.isfinite(value)}

    @property
    def records(self) -> pd.DataFrame:
        """Records of all looks in the output folder, by step."""
        if self.output is None:
            raise UsageError("a monitor with an output folder", "none", "give it output=…")
        paths = sorted(self.output.glob("step-*.parquet"), key=lambda path: int(path.stem.split("-")[1]))
        frames = [read_table(path) for path in paths] or [as_records(pd.DataFrame())]
        return pd.concat(frames, ignore_index=True)


def _body(model: nn.Module) -> nn.Module:
    """The model without its head, and out of the wrappers of data parallelism and compilation."""
    for wrapper in ("module", "_orig_mod"):
        while isinstance(getattr(model, wrapper, None), nn.Module) and len(list(model.children())) == 1:
            model = getattr(model, wrapper)
    body = getattr(model, "base_model", model)
    return body if isinstance(body, nn.Module) else model
