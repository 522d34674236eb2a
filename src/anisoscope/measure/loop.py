"""The loop: one pass over a corpus, every metric at every site, resumable, over any number of processes."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from anisoscope.batch import Batch, BatchPlan, Stream
from anisoscope.capture import capture
from anisoscope.capture.tap import Means
from anisoscope.errors import CorpusError, UsageError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.metrics import partition
from anisoscope.metrics.base import Metric
from anisoscope.models.modes import evaluating
from anisoscope.models.streams import Layout
from anisoscope.progress import Progress
from anisoscope.sums.groups import Totals

SAVE_SECONDS = 60.0
LONGEST = 1 << 32
"""More tokens than a sequence has."""


class Interrupted(Exception):
    """SIGINT or SIGTERM came; the state is saved and the run can be resumed. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"interrupted by signal {number}")


def measure(
    model: nn.Module,
    batches: Iterable[Any],
    metrics: Sequence[str | Metric] = (),
    **settings: Any,
) -> pd.DataFrame:
    """Measure `model` over `batches` and return the long table of records.

    `batches` yields what the model takes: dicts of tensors (`input_ids`, `attention_mask`, … ; `special_tokens_mask`
    and `unit` are read and not passed on), or tensors. Without `unit` [sequence] every sequence is a unit of its own.
    `metrics`: names; none: all of them. Other keywords are fields of `measure.settings.Settings` (`panels`, `policies`,
    `groups`, `sample`, …).
    """
    names = tuple(m.name if isinstance(m, Metric) else m for m in metrics)
    plan = Listed(batches)
    return run_pass(model, plan, Settings(metrics=names, **settings)).records()


def run_pass(
    model: nn.Module,
    plan: BatchPlan | Iterable[Batch],
    settings: Settings,
    *,
    state: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    shard: tuple[int, int] = (0, 1),
) -> Measurement:
    """One pass of `model` over `plan`, of its batches i ≡ shard[0] modulo shard[1].

    With `state` the measurement is saved there every minute and on SIGINT/SIGTERM (then `Interrupted`); `resume`
    continues from it, to the same numbers as an uninterrupted pass.
    """
    fingerprint = getattr(plan, "fingerprint", "")
    measurement = Measurement(settings)
    if resume and state is not None and state.exists():
        measurement = Measurement.restore(state, settings, fingerprint)
    what = settings.what_of(model)
    total = sum(getattr(plan, "tokens", [])[shard[0] :: shard[1]])
    means = head_means(model, plan, settings) if "centred" in what else {}
    todo = _to_do(plan, measurement.done, shard)
    done = sum(getattr(plan, "tokens", [])[shard[0] :: shard[1]][: measurement.done])
    with listening() as stopped, _looking(model, measurement, what, means) as look:
        saved = time.monotonic()
        for batch in todo:
            look(batch)
            done += batch.n_tokens
            if progress is not None:
                progress(done, total)
            if state is not None and (stopped or time.monotonic() - saved > SAVE_SECONDS):
                measurement.save(state, fingerprint)
                saved = time.monotonic()
            if stopped:
                raise Interrupted(stopped[0])
    if not measurement.done:
        raise CorpusError("a corpus with at least one batch", "none", "give it more data")
    return measurement


def glance(model: nn.Module, batches: Iterable[Batch], settings: Settings) -> Measurement:
    """One quick pass over a few batches in the midst of something else, a training: signals stay with whoever has
    them, and modes, gradients and random numbers stay as they are.
    """
    measurement = Measurement(settings)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.autocast(device.type, enabled=False),
        _looking(model, measurement, settings.what_of(model), {}) as look,
    ):
        for batch in batches:
            look(batch)
    return measurement


@contextmanager
def _looking(
    model: nn.Module, measurement: Measurement, what: Iterable[str], means: Means
) -> Iterator[Callable[[Batch], None]]:
    """A function that runs the model on a batch and adds what is seen to `measurement`."""
    settings, layout = measurement.settings, Layout(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with (
        evaluating(model),
        capture(
            model,
            what,
            receive=measurement.receive,
            blocks=settings.blocks,
            tokens_first=settings.tokens_first,
            median=settings.median,
            histogram=torch.tensor(settings.bins, device=device) if settings.bins else None,
            flatten=settings.flatten,
        ) as tap,
    ):
        tap.means = means

        def look(batch: Batch) -> None:
            tap.real = measurement.begin(batch, device, layout)
            with torch.no_grad():
                model(**_moved(batch.inputs, device))
            measurement.end()

        yield look


def head_means(model: nn.Module, plan: BatchPlan | Iterable[Batch], settings: Settings) -> Means:
    """The mean query and key of every head over the whole plan, as they are scored: a pass before the one that needs
    them, whatever the shard.
    """
    source = getattr(plan, "batches", plan)
    if not hasattr(source, "__getitem__") and iter(source) is source:
        expected = "batches that can be read twice (attention is centred on means, which take a pass of their own)"
        raise UsageError(expected, "an iterator", "give a list of batches")
    first = Settings(
        metrics=("score_terms",),
        policies=settings.policies[:1],
        groups=2,
        blocks=settings.blocks,
        tokens_first=settings.tokens_first,
    )
    measured = run_pass(model, plan, first)
    means: Means = {}
    for name, site in measured.sites.items():
        total = {term: measured.sums.terms[name, term].sum(0) for term in ("query", "key", "rows", "keys")}
        mean = [total[x] / total[n].clamp(min=1).unsqueeze(-1) for x, n in (("query", "rows"), ("key", "keys"))]
        means[site.stack, site.layer or 0, site.kind] = mean[0], mean[1]
    return means


def _to_do(plan: Any, done: int, shard: tuple[int, int]) -> Iterator[Batch]:
    if hasattr(plan, "__getitem__"):
        return (plan[i] for i in range(shard[0], len(plan), shard[1])[done:])
    return islice(iter(plan), shard[0] + done * shard[1], None, shard[1])


@contextmanager
def listening() -> Iterator[list[int]]:
    """While inside, SIGINT and SIGTERM are noted in the list given out instead of ending the process (main thread
    only).
    """
    stopped: list[int] = []
    kept: dict[int, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            kept[number] = signal.signal(number, lambda got, _frame: stopped.append(got))
    except ValueError:
        pass  # not the main thread: signals stay with it
    try:
        yield stopped
    finally:
        for caught, handler in kept.items():
            signal.signal(caught, handler)


def _moved(inputs: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in inputs.items()}


class Listed:
    """Plain batches as `Batch`es, numbered on the fly."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        seen, nth = 0, Counter[int]()
        for item in self.batches:
            if isinstance(item, Batch):
                yield item
                continue
            inputs = (
                dict(item)
                if not isinstance(item, Tensor)
                else {"input_ids" if not item.is_floating_point() else "pixel_values": item}
            )
            special, unit = inputs.pop("special_tokens_mask", None), inputs.pop("unit", None)
            rows = len(next(iter(inputs.values())))
            unit = torch.arange(seen, seen + rows) if unit is None else torch.as_tensor(unit)
            start = []
            for owner in unit.tolist():
                start.append(nth[owner] * LONGEST)  # a range of its own for every sequence of a unit
                nth[owner] += 1
            yield Batch(inputs, unit, _streams(inputs, special, torch.tensor(start)))
            seen += rows


def _streams(inputs: dict[str, Any], special: Tensor | None, start: Tensor) -> dict[str, Stream]:
    """Streams of both stacks from attention masks, or from the ids' shape."""
    streams: dict[str, Stream] = {}
    for prefix, stacks in (("", ("encoder", "decoder")), ("decoder_", ("decoder",))):
        ids = inputs.get(f"{prefix}input_ids")
        mask = inputs.get(f"{prefix}attention_mask")
        if ids is None and mask is None:
            continue
        real = mask.bool() if mask is not None else torch.ones(ids.shape[:2], dtype=torch.bool)  # type: ignore[union-attr]
        marks = special.bool() if special is not None and not prefix else torch.zeros_like(real)
        streams |= {stack: Stream(real, marks, start - real.int().argmax(1)) for stack in stacks}
    return streams


def embedding_records(model: nn.Module) -> pd.DataFrame:
    """I(W) of the input and output embedding matrices, where the model has them."""
    rows = []
    for side, get in (("input", "get_input_embeddings"), ("output", "get_output_embeddings")):
        try:
            weight = getattr(getattr(model, get)(), "weight", None)
        except (AttributeError, NotImplementedError):
            continue
        if isinstance(weight, Tensor) and weight.dim() == 2:
            matrix = weight.detach().double().cpu().numpy()[None]
            value = partition.compute(Totals({"matrix": matrix}))[""]
            rows.append(
                {
                    "site": f"embedding.{side}",
                    "metric": "partition",
                    "value": float(value[0]),
                    "n_vectors": matrix.shape[1],
                }
            )
    return pd.DataFrame(rows)
