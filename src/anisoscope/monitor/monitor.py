"""Measure a model's geometry while it trains, on a fixed probe, without touching the training.

>>> monitor = Monitor(probe, output="runs/monitor")      # probe: a few batches or texts, as `measure` takes them
>>> for step, batch in enumerate(batches, start=1):
...     loss = train_step(model, batch)
...     monitor(model, step)                             # nothing at most steps
"""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from anisoscope.batch import Batch
from anisoscope.data.in_memory import (
    are_texts,
    fill_missing_texts,
    read_texts_of_table,
)
from anisoscope.errors import CorpusError, UsageError
from anisoscope.measure.distributed import is_in_step, rank_and_world
from anisoscope.measure.inputs import GivenInputs
from anisoscope.measure.loop import measure_probe
from anisoscope.measure.settings import Settings
from anisoscope.metrics import list_metric_names
from anisoscope.monitor.scalars import summarise_layers
from anisoscope.options import expand_home
from anisoscope.provenance import describe_environment
from anisoscope.store import as_records, read_table, write_json, write_table

METRICS = (
    "mean_cosine",
    "drift",
    "query_key",
    "attention",
    "logits",
    "sinks",
    "massive",
)
"""Metrics of every measurement. Kurtosis and matrix entropy are left to `also`: the first keeps vectors, and the
eigenvalues of the second cost more than all other metrics if sequences have thousands of tokens.
"""
SAMPLE = 1024
"""Tokens of the probe whose vectors are kept during a measurement, if a metric of `also` needs vectors."""
SEQUENCES = 64
"""Windows of text in a probe."""
EVERY = 500
"""Steps between two measurements. One of 64 windows costs the time of a few steps (`benchmarks/monitor.py`)."""


class Monitor:
    """Measures a model on the same probe now and then: A, drift, cos(Q̄, K̄), attention entropy, sinks, massive
    activations, largest logits by layer.

    probe   what `anisoscope.measure` takes as inputs: a tensor, a dict, a tuple, a list or a `DataLoader` of them,
            `Batch`es; texts or a table with a column of them, or the name of a corpus, of which `SEQUENCES` windows are
            taken. It is read once and kept
    every   steps between measurements; with `early`, also at steps 0, 1, 2, 4, 8 … below that
    output  folder for the records of every measurement, also per head; None: not written
    processor, forward  as in `anisoscope.measure`: the tokenizer of texts, a function that calls the model
    prefix  of the names of logged values

    UsageError for a probe that `measure` would not take; CorpusError for an empty one. What depends on the model (such
    as the arguments of its `forward`) is checked at the first measurement.

    The model runs in evaluation mode without gradients; modes, gradients and the random state are restored: training is
    bit for bit the same with and without. Hooks exist only during a measurement. Of several processes, the first one
    measures; if the weights are spread over them (FSDP, tensor parallelism), all of them do, at the same probe, and the
    first one logs.
    """

    def __init__(
        self,
        probe: Any,
        *,
        every: int = EVERY,
        early: bool = True,
        output: Path | str | None = None,
        blocks: tuple[str, ...] = (),
        prefix: str = "anisoscope",
        processor: Any = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        """Read the probe and keep it; UsageError for a probe that `measure` would refuse, or `every` below 1."""
        if every < 1:
            raise UsageError(
                "at least 1 step between two measurements", str(every), "raise `every`"
            )
        self.probe = _to_repeatable_probe(probe, processor)
        self.every, self.early, self.prefix = every, early, prefix
        self.output = None if output is None else expand_home(output)
        self.processor, self.forward = processor, forward
        self.settings = Settings(
            metrics=METRICS, tokens=("all",), groups=8, sample=SAMPLE, blocks=blocks
        )
        self.last: int | None = None
        self._batches: tuple[nn.Module, list[Batch]] | None = None

    @classmethod
    def on_corpus(
        cls,
        corpus: str,
        model: nn.Module,
        processor: Any,
        *,
        sequences: int = SEQUENCES,
        limit: int | None = None,
        **given: Any,
    ) -> "Monitor":
        """Make a monitor that measures `sequences` windows of a text corpus, evenly spread over its first `limit`
        units.

        The corpus is read as by `anisoscope measure`. Other keywords are those of the class.
        """
        return cls(
            _choose_windows(corpus, model, processor, sequences=sequences, limit=limit),
            **given,
        )

    def also(self, *metrics: Any) -> "Monitor":
        """Measure further metrics every time, such as `matrix_entropy` and `kurtosis`; returns the monitor itself.

        metrics   names, or `Metric` objects. For those that need single vectors, up to `SAMPLE` vectors of each layer
                  are kept in memory during a measurement

        UsageError for a metric that does not exist.
        """
        more = [
            name
            for name in list_metric_names(metrics)
            if name not in self.settings.metrics
        ]
        self.settings = replace(self.settings, metrics=(*self.settings.metrics, *more))
        return self

    def is_due(self, step: int) -> bool:
        """Return whether the model is to be measured at this training step."""
        if step % self.every == 0:
            return True
        # Early in training much changes within few steps: 0, 1, 2, 4, 8 …
        is_power_of_two = step & (step - 1) == 0
        return self.early and step < self.every and is_power_of_two

    def __call__(self, model: nn.Module, step: int) -> dict[str, float] | None:
        """Measure `model` if `step` is due: {"anisoscope/encoder.3/A": .21, …}.

        None if it is not due, if this step was measured already, and in every process but the first.
        """
        # A loop may call it more than once at a step.
        if not self.is_due(step) or step == self.last:
            return None
        first = rank_and_world()[0] == 0
        # If forward calls wait for no other process, the first one measures for all.
        if not first and not is_in_step(model):
            return None
        values = self.look(model, step)
        return values if first else None

    def look(self, model: nn.Module, step: int) -> dict[str, float]:
        """Measure `model` now, whatever the step, and return the values to log: {"anisoscope/encoder.3/A": .21, …}.

        In a torchrun job with FSDP or tensor parallelism all processes must call it.
        """
        self.last = step
        # Processes wait for each other in the outermost module, so that it has to be
        # called.
        body = model if is_in_step(model) else _unwrap_body(model)
        batches = self._get_batches(body)
        records = measure_probe(body, batches, self.settings).records()
        if self.output is not None and rank_and_world()[0] == 0:
            self._write_records(self.output, records, step, len(batches))
        return summarise_layers(records, self.prefix)

    def _write_records(
        self, folder: Path, records: pd.DataFrame, step: int, n_batches: int
    ) -> None:
        """Write the records of one measurement, and before the first one the settings of the monitor."""
        if not (folder / "monitor.json").exists():
            described = {
                "settings": asdict(self.settings),
                "every": self.every,
                "batches": n_batches,
            }
            write_json(folder / "monitor.json", described | describe_environment())
        # The records of one model have an empty step.
        of_step = as_records(records.drop(columns="step"), step=step)
        write_table(folder / f"step-{step}.parquet", of_step)

    def _get_batches(self, model: nn.Module) -> list[Batch]:
        """Return the probe (the data that every measurement reads) as batches for `model`; built only once.

        They depend on the model, whose `forward` determines the names of arguments.
        """
        if self._batches is None or self._batches[0] is not model:
            self._batches = model, self._make_batches(model)
        return self._batches[1]

    def _make_batches(self, model: nn.Module) -> list[Batch]:
        """Build batches from the probe, which is a corpus, a list of texts, or inputs of the model."""
        if isinstance(self.probe, str | Path):
            return _choose_windows(
                str(self.probe), model, self.processor, sequences=SEQUENCES
            )
        if are_texts(self.probe):
            from anisoscope.data.opening import open_texts

            plan, _ = open_texts(self.probe, model, self.processor, sequences=SEQUENCES)
            return list(plan)
        return list(GivenInputs(self.probe, model, forward=self.forward))

    @property
    def records(self) -> pd.DataFrame:
        """Return the records of all measurements in the output folder, by step; UsageError without an output folder."""
        if self.output is None:
            raise UsageError(
                "a monitor with an output folder", "none", "make it with output=…"
            )
        # By number: by name, step-1000 would come before step-200.
        paths = sorted(
            self.output.glob("step-*.parquet"),
            key=lambda path: int(path.stem.split("-")[1]),
        )
        frames = [read_table(path) for path in paths]
        # Nothing was measured yet: pandas joins no empty list.
        if not frames:
            frames = [as_records(pd.DataFrame())]
        return pd.concat(frames, ignore_index=True)


def _to_repeatable_probe(probe: Any, processor: Any) -> Any:
    """Return the probe in a form that can be read repeatedly, so that every measurement reads the same data.

    UsageError or CorpusError for a probe that `measure` would refuse.
    """
    probe = fill_missing_texts(read_texts_of_table(probe, None))
    if isinstance(probe, str | Path) or are_texts(probe):
        if not hasattr(processor, "tokenize"):
            got = "none" if processor is None else type(processor).__name__
            raise UsageError(
                "a tokenizer for a probe of texts",
                got,
                "give processor=, the model's tokenizer",
            )
        return probe
    # A loader may shuffle: its batches are drawn once, so that all measurements read the same. The random state is
    # restored, so that the training draws the numbers that it would draw without a monitor.
    with torch.random.fork_rng(devices=[]):
        batches = list(GivenInputs(probe).batches)
    if not batches:
        raise CorpusError(
            "a probe with at least one batch", "none", "make the probe of a few batches"
        )
    return batches


def _choose_windows(
    corpus: str,
    model: nn.Module,
    processor: Any,
    *,
    sequences: int,
    limit: int | None = None,
) -> list[Batch]:
    """Return `sequences` windows of a text corpus, evenly spread over it, as batches."""
    from anisoscope.data.opening import open_plan

    plan, _ = open_plan(
        corpus, model, processor, modality="text", sequences=sequences, limit=limit
    )
    return [plan[i] for i in range(len(plan))]


def _unwrap_body(model: nn.Module) -> nn.Module:
    """Return the model without its head, and without the wrappers of data parallelism and compilation."""
    # DistributedDataParallel keeps the model in `module`, torch.compile in `_orig_mod`.
    for wrapper in ("module", "_orig_mod"):
        while (
            # A wrapper holds nothing but the model; a model of the user's may have a
            # child of this name among others.
            isinstance(getattr(model, wrapper, None), nn.Module)
            and len(list(model.children())) == 1
        ):
            model = getattr(model, wrapper)
    # transformers' models with a head name the model under it.
    body = getattr(model, "base_model", model)
    return body if isinstance(body, nn.Module) else model
