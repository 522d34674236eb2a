"""One pass over a corpus that measures every metric at every site; it can be resumed and run in several processes."""

import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from anisoscope.axes import EVERYWHERE, LAYER_QUANTITIES, Site
from anisoscope.batch import Batch, BatchPlan
from anisoscope.capture import capture
from anisoscope.capture.heads import Means
from anisoscope.errors import (
    CorpusError,
    Interrupted,
    MeasureError,
    UnseenError,
    UsageError,
)
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.distributed import (
    Steps,
    explain_lost_process_in_call,
    find_stop_signal,
    gather_parts,
    is_in_step,
    rank_and_world,
    read_whole_weight,
    reads_same_batches,
    reshard,
)
from anisoscope.measure.random_state import fork_random_state
from anisoscope.measure.settings import Settings
from anisoscope.measure.trial import MovedError, Trial
from anisoscope.models.blocks import TokenPositions
from anisoscope.models.devices import is_out_of_memory
from anisoscope.models.identity import is_packed
from anisoscope.models.modes import evaluation_mode, full_precision
from anisoscope.progress import Progress, deferred_signals, remark
from anisoscope.reads.weights import summarise_matrix

SAVE_SECONDS, SAVE_RATE = 60.0, 5e6
"""A state is saved every minute, or as rarely as it takes to write so many bytes a second: large ones seldom."""
PINNED = ("cuda", "xpu", "npu")
"""Kinds of devices that copy from pinned memory of the host while it goes on; MPS shares the memory of the host."""


def run_pass(
    model: nn.Module,
    plan: BatchPlan | Iterable[Batch],
    settings: Settings,
    *,
    state: Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    only: Container[int] | None = None,
    prove: bool = False,
) -> Measurement:
    """Run one pass of `model` over `plan`, or over its batches whose indices are in `only` (possibly none).

    With `state`, the measurement is saved there from time to time (`SAVE_SECONDS`), and on SIGINT/SIGTERM (then
    `Interrupted` is raised); `resume` continues from it, with the same numbers as an uninterrupted pass. If memory runs
    out, each batch is run in two parts, then four, and so on, which gives the same sums. The pass then continues from
    the last saved state or, without one, starts again.

    With `prove`, the first batch also runs without the capture (`measure.trial`): attention is left out, with the
    reason, if the capture changes the model's outputs. MeasureError if only attention was asked for.
    """
    what, optional = settings.what_of(model)
    means: Means = {}
    if "centred" in what:
        try:
            means = measure_head_means(model, plan, settings)
        except UnseenError:
            if "centred" not in optional:
                raise
            what = what - {"centred"}
    pieces = 1
    # Shared by all attempts: one that starts again continues from what an earlier one
    # saved.
    saves = [resume]
    moved_by = None
    while True:
        seen = _Captured(what, optional, means, prove, moved_by)
        try:
            return _run_pass_in_pieces(
                model, plan, settings, seen, state, saves, progress, only, pieces
            )
        except _MemoryFull as full:
            sequences = full.sequences
        # Attention cannot be read without changing the outputs, so every layer's would
        # be in doubt: the hidden states need only hooks.
        except MovedError as moved:
            if not optional:
                expected = f"attention of {type(model).__name__} that gives the same outputs while it is captured"
                raise MeasureError(
                    expected,
                    moved.why,
                    "measure hidden states (--panel hidden,spectrum)",
                ) from moved
            what = what & {*LAYER_QUANTITIES}
            optional = set()
            means = {}
            moved_by = moved.why
            remark(progress, f"{moved.why}: goes on with hidden states alone")
            continue
        # The other processes wait within the call that did not end here.
        if is_in_step(model):
            expected = "memory for every batch of a model that is spread over processes"
            raise MeasureError(
                expected,
                "a full memory in one process",
                "give smaller batches (--batch-tokens)",
            )
        if pieces >= sequences:
            cure = "shorten sequences (--max-length), or use --dtype bfloat16, fewer --layers or panels"
            raise MeasureError(
                "memory for a batch of one sequence", "a full memory", cure
            )
        # Sums do not depend on how sequences are batched: smaller parts give the same
        # numbers.
        pieces *= 2
        remark(progress, f"out of memory: goes on with batches in {pieces} parts")


@dataclass(frozen=True)
class _Captured:
    """What a pass captures from the model.

    what       quantities to capture, such as `hidden` and `query`
    optional   which of them the model may lack without an error
    means      mean queries and keys to centre attention on
    prove      whether the capture is verified on the first batch
    moved_by   why attention was given up in an earlier attempt
    """

    what: set[str]
    optional: set[str]
    means: Means
    prove: bool = False
    moved_by: str | None = None


class _MemoryFull(Exception):
    """Raised if memory runs out at a batch; holds its number of sequences."""

    def __init__(self, sequences: int) -> None:
        """Keep the number of sequences of the batch that did not fit."""
        self.sequences = sequences


@contextmanager
def _detect_full_memory(batch: Batch) -> Iterator[None]:
    """Raise _MemoryFull if memory runs out inside a `with` block."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise _MemoryFull(len(batch.unit)) from error


def _run_pass_in_pieces(
    model: nn.Module,
    plan: BatchPlan | Iterable[Batch],
    settings: Settings,
    seen: _Captured,
    state: Path | None,
    saves: list[bool],
    progress: Progress | None,
    only: Container[int] | None,
    pieces: int,
) -> Measurement:
    """Run a pass with every batch split into `pieces` parts, and return the measurement.

    seen    what to capture from the model
    state   file in which the measurement is saved from time to time; None: it is not saved
    saves   the pass continues from that file if an entry is true; True is appended whenever it saves
    only    indices of the batches to run; None: all

    Other arguments are those of `run_pass`. Interrupted after SIGINT or SIGTERM; _MemoryFull if memory runs out.
    """
    # Only a file that this pass wrote, or was asked to continue, is read.
    measurement = _begin_or_restore(
        plan, settings, state if any(saves) else None, seen.moved_by
    )
    measurement.pieces = pieces
    # For the progress only, which counts tokens since batches differ in size.
    tokens = _get_sizes(plan, only)
    total = sum(tokens.values())
    done = sum(tokens.get(i, 0) for i in measurement.batches)
    steps = Steps(model, find_device(model))
    last = None
    # A signal in the middle of a batch waits for its end: a state holds whole batches.
    with deferred_signals() as stopped:
        with capture_into(
            model, measurement, seen, together=steps.together
        ) as run_batch:
            _add_embeddings(model, measurement, together=steps.together)
            saved = time.monotonic()
            batches = prefetch(
                pending_batches(plan, only, frozenset(measurement.batches)),
                find_device(model),
            )
            while True:
                item = next(batches, None)
                # Processes that run the model together must leave the loop at the same batch.
                busy, number = steps.agree(item is not None, find_stop_signal(stopped))
                if number or item is None:
                    break
                index, last = item
                with (
                    _detect_full_memory(last),
                    explain_lost_process_in_call(steps.together),
                ):
                    run_batch(last, index)
                # A plan that knows its sizes beforehand may count something else than tokens, such as images.
                done += tokens.get(index) or last.n_tokens
                if progress is not None:
                    progress(done, total)
                if state is not None and _is_save_due(
                    measurement, time.monotonic() - saved
                ):
                    measurement.save(state)
                    saves.append(True)
                    saved = time.monotonic()
        # Others still have batches, for which they need this process.
        if busy and not number:
            number = _keep_in_step(
                model, last or _get_first_batch(plan), steps, stopped
            )
        # A signal during the last batch.
        # Processes in step have agreed on a signal already, and must all act on the
        # same.
        if not steps.together:
            number = number or find_stop_signal(stopped)
        if number:
            _save_and_interrupt(measurement, state, number)
    _require_batches(measurement, only)
    return measurement


def _save_and_interrupt(
    measurement: Measurement, state: Path | None, number: int
) -> NoReturn:
    """Save a measurement to the file `state`, if there is one, and raise Interrupted for the signal `number`."""
    if state is not None:
        measurement.save(state)
    raise Interrupted(number)


def _get_sizes(
    plan: BatchPlan | Iterable[Batch], only: Container[int] | None
) -> dict[int, int]:
    """Return {index of a batch: its number of tokens} of the batches to run; empty if the plan does not know them.

    only   indices of the batches to run; None: all
    """
    sizes: dict[int, int] = {}
    for index, size in enumerate(getattr(plan, "tokens", [])):
        if only is None or index in only:
            sizes[index] = size
    return sizes


def _require_batches(measurement: Measurement, only: Container[int] | None) -> None:
    """Raise CorpusError if nothing was measured, because the corpus is empty.

    only   indices of the batches that this process runs, of which there may be none; None: it runs all
    """
    if only is None and not measurement.batches:
        raise CorpusError("a corpus with at least one batch", "none", "give more data")


def _is_save_due(measurement: Measurement, seconds: float) -> bool:
    """Return whether to save the measurement now, `seconds` after it was last saved.

    Large ones are saved less often, so that writing takes a small part of the time.
    """
    return seconds > SAVE_SECONDS and seconds > measurement.nbytes / SAVE_RATE


def _begin_or_restore(
    plan: BatchPlan | Iterable[Batch],
    settings: Settings,
    state: Path | None,
    moved_by: str | None,
) -> Measurement:
    """Return the measurement that the file `state` holds; an empty one if there is no such file.

    plan       the batches; a plan also has a fingerprint, which must be that of the file, and class names
    moved_by   why attention was given up in an earlier attempt, and is dropped from the state too; None: it was not
    """
    classes = getattr(plan, "classes", ()) if settings.labelled else ()
    measurement = Measurement(
        settings, getattr(plan, "fingerprint", ""), classes=classes
    )
    if state is not None and state.exists():
        measurement = Measurement.restore(state, settings, measurement.plan)
    if moved_by is not None:
        # The state may be from an attempt before the capture was given up.
        measurement.refuse({EVERYWHERE: moved_by})
    return measurement


def _add_embeddings(
    model: nn.Module, measurement: Measurement, *, together: bool
) -> None:
    """Add what metrics need of the model's embedding matrices to the measurement, unless it has that already.

    together   whether weights are split over processes, so that all of them must read them at the same time: this
               process must take part, even if its saved state has them already
    """
    if not measurement.settings.summaries or (measurement.weights and not together):
        return
    if together:
        reshard(model)
    measurement.weights = summarise_embeddings(model, measurement.settings)


def _keep_in_step(
    model: nn.Module, batch: Batch, steps: Steps, stopped: list[int]
) -> int:
    """Call the model without counting anything, as long as other processes have batches.

    The model waits in every forward call until all processes have called theirs.

    batch     any batch, which is read repeatedly
    steps     exchanges with the other processes who is finished
    stopped   signals that this process received

    Returns the signal to stop by (0: none).
    """
    busy = True
    number = 0
    with evaluation_mode(model), torch.no_grad():
        while busy and not number:
            with explain_lost_process_in_call(steps.together):
                (batch.call or model)(**move_batch(batch.inputs, find_device(model)))
            busy, number = steps.agree(False, find_stop_signal(stopped))
    return number


def _get_first_batch(plan: BatchPlan | Iterable[Batch]) -> Batch:
    """Return the first batch of a plan."""
    return plan[0] if hasattr(plan, "__getitem__") else next(iter(plan))


def measure_into(
    model: nn.Module,
    measurement: Measurement,
    batches: Iterable[Batch],
    *,
    prove: bool = False,
) -> None:
    """Run a model on batches and add the results to a measurement.

    With `prove`, the capture is verified on the first batch.
    """
    seen = _Captured(*measurement.settings.what_of(model), {}, prove)
    with capture_into(model, measurement, seen) as run_batch:
        for index, batch in enumerate(batches, len(measurement.batches)):
            run_batch(batch, index)


def measure_probe(
    model: nn.Module, batches: Iterable[Batch], settings: Settings
) -> Measurement:
    """Measure a model in the middle of training; its modes, gradients and the random state do not change."""
    measurement = Measurement(settings)
    device = find_device(model)
    with (
        fork_random_state([device]),
        # The training around it may run under autocast, on which what is measured must
        # not depend.
        torch.autocast(device.type, enabled=False),
    ):
        measure_into(model, measurement, batches)
    return measurement


def find_device(model: nn.Module) -> torch.device:
    """Return the device of a model's weights."""
    for parameter in model.parameters():
        if not parameter.is_meta:
            return parameter.device
    for module in model.modules():
        # Accelerate has offloaded every weight, and says where it will compute.
        hook = getattr(module, "_hf_hook", None)
        computes_on = getattr(hook, "execution_device", None)
        if computes_on is not None:
            return torch.device(computes_on)
    return torch.device("cpu")


def move_batch(item: Any, device: torch.device) -> Any:
    """Move every tensor of a batch to a device; pinned ones go to an accelerator without the host waiting."""
    return _map_tensors(
        lambda x: x.to(device, non_blocking=device.type in PINNED), item
    )


def _map_tensors(act: Callable[[Tensor], Tensor], item: Any) -> Any:
    """Apply `act` to every tensor of a batch."""
    if isinstance(item, Mapping):
        return {name: _map_tensors(act, value) for name, value in item.items()}
    if isinstance(item, tuple | list):
        return type(item)(_map_tensors(act, value) for value in item)
    return act(item) if isinstance(item, Tensor) else item


def _pin(x: Tensor) -> Tensor:
    """Return a tensor of the host in pinned memory; unchanged if the accelerator's library cannot pin."""
    if x.device.type != "cpu":
        return x
    with suppress(NotImplementedError):
        return x.pin_memory()
    return x


def prefetch(
    batches: Iterator[tuple[int, Batch]], device: torch.device
) -> Iterator[tuple[int, Batch]]:
    """Yield (index, batch) unchanged; for a device of `PINNED`, a thread prepares and pins the next batch while the
    current one is measured.
    """
    if device.type not in PINNED:
        yield from batches
        return

    def following() -> tuple[int, Batch] | None:
        """Return (index, pinned batch) of the next batch; None at the end."""
        for index, batch in batches:
            return index, replace(batch, inputs=_map_tensors(_pin, batch.inputs))
        return None

    # One thread, one batch ahead: the work of the host then overlaps with that of the
    # device.
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(following)
        while (pair := coming.result()) is not None:
            coming = pool.submit(following)
            yield pair


class Arrays(nn.Module):
    """A stand-in for a model if vectors are given: nothing runs, each array of a batch is the hidden states of a
    layer.
    """


@contextmanager
def capture_into(
    model: nn.Module,
    measurement: Measurement,
    seen: _Captured,
    *,
    together: bool = False,
) -> Iterator[Callable[[Batch, int], None]]:
    """Yield a function that runs the model on a batch, given its index, and adds what is captured to `measurement`.

    seen       what is captured from the model
    together   whether forward calls wait for other processes, so that the capture cannot be verified
    """
    if isinstance(model, Arrays):
        yield partial(_add_arrays, measurement)
        return
    settings = measurement.settings
    positions = TokenPositions(model)
    device = find_device(model)
    with (
        evaluation_mode(model),
        full_precision(),
        capture(
            model,
            seen.what,
            optional=seen.optional,
            receive=measurement.receive,
            blocks=settings.blocks,
            tokens_first=settings.tokens_first,
            median=settings.medians,
            histogram=torch.tensor(settings.bins).to(device) if settings.bins else None,
            flatten=settings.flatten,
            fused=settings.attention == "fused",
            layers=settings.layers,
        ) as tap,
    ):
        tap.means = seen.means
        # Shared, so that what the capture learns about parts of images decides which
        # positions are special.
        tap.parts = positions.parts
        skipped = ""
        if together:
            skipped = "the model is spread over processes, which wait for each other"
        # Without attention there is nothing that a second attempt could leave out.
        of_attention = seen.what - {*LAYER_QUANTITIES}
        trial = Trial(tap, gives_up=bool(of_attention), skipped=skipped)

        def run_batch(batch: Batch, index: int) -> None:
            """Run the model on a batch, in `measurement.pieces` parts, and add what is captured to the measurement.

            index   the batch's number in the plan
            """
            for part in batch.split(measurement.pieces):
                # The masks must be there before the model runs: attention is summed
                # while it does.
                tap.real = measurement.begin(part, device, positions)
                tap.sequences = len(part.unit)
                run = part.call or model
                inputs = move_batch(part.inputs, device)
                with torch.no_grad():
                    # Once is enough: a model computes every batch in the same way.
                    if seen.prove and trial.proof is None:
                        trial(run, inputs)
                        measurement.note_proof(trial.proof)
                    else:
                        run(**inputs)
                measurement.unseen |= tap.unseen
                measurement.refuse(tap.refused)
                measurement.end(index)

        yield run_batch


def _add_arrays(measurement: Measurement, batch: Batch, index: int) -> None:
    """Add the arrays of a batch as hidden states of layers; UsageError if a layer that was asked for does not exist."""
    measurement.begin(batch, torch.device("cpu"))
    (stack,) = batch.streams
    chosen = set(measurement.settings.layers)
    count = len(batch.inputs)
    # Here layers are known only from the first batch on, so the option is checked with
    # it.
    missing = [layer for layer in chosen if not -count <= layer < count]
    if missing:
        raise UsageError(
            f"--layers of vectors from 0 to {count - 1}, or from the end: −1, −2 …",
            str(missing[0]),
        )
    for layer, x in enumerate(batch.inputs.values()):
        from_end = layer - count
        if not chosen or layer in chosen or from_end in chosen:
            measurement.receive(Site(stack, layer, "hidden"), x)
    measurement.end(index)


def measure_head_means(
    model: nn.Module, plan: BatchPlan | Iterable[Batch], settings: Settings
) -> Means:
    """Measure the mean query and the mean key of every attention head over the whole plan, in a pass of its own.

    Returns them by layer (stack, number, self- or cross-attention). In a torchrun job all processes must call it.
    UsageError if `plan` is an iterator, which can be read only once.
    """
    # A generator would be at its end when the second pass begins.
    source = getattr(plan, "batches", plan)
    if not hasattr(source, "__getitem__") and iter(source) is source:
        expected = "batches that can be read twice (attention is centred on means, which take a pass of their own)"
        raise UsageError(expected, "an iterator", "give a list of batches")
    options = {
        name: getattr(settings, name) for name in ("blocks", "tokens_first", "layers")
    }
    # Means need no groups for their intervals: two are the fewest that there can be.
    # The metric whose sums hold those of queries and keys as they enter the logits.
    terms = Settings(
        metrics=("score_terms",), groups=2, tokens=settings.tokens[:1], **options
    )
    measured = _measure_shared(model, plan, terms)
    means: Means = {}
    for name, site in measured.sites.items():
        # Sums of queries and keys [head, dim], and their numbers [head].
        total = {
            term: measured.sums.terms[name, term].sum(0)
            for term in ("query", "key", "rows", "keys")
        }
        # A head without a single query or key has a mean of zeros.
        mean_query = total["query"] / total["rows"].clamp(min=1).unsqueeze(-1)
        mean_key = total["key"] / total["keys"].clamp(min=1).unsqueeze(-1)
        means[site.stack, site.layer or 0, site.kind] = mean_query, mean_key
    return means


def _measure_shared(
    model: nn.Module, plan: BatchPlan | Iterable[Batch], settings: Settings
) -> Measurement:
    """Run a pass over a plan, whose batches the processes of a torchrun job share among themselves if they can.

    They cannot if there are fewer batches than processes, or if the model needs all processes for every batch.
    """
    rank, world = rank_and_world()
    count = len(plan) if isinstance(plan, Sized) else 0
    is_job = world > 1 and dist.is_initialized()
    if not is_job or count < world or reads_same_batches(model):
        return run_pass(model, plan, settings)
    own = range(rank, count, world)
    return gather_parts(run_pass(model, plan, settings, only=own))


def pending_batches(
    plan: Any, only: Container[int] | None, held: Container[int]
) -> Iterator[tuple[int, Batch]]:
    """Yield (index, batch) of the batches that are to be measured.

    plan   the batches; if it can be indexed, other batches are not built
    only   indices of the requested batches; None: all
    held   indices of those that are measured already
    """
    is_indexed = hasattr(plan, "__getitem__")
    items = range(len(plan)) if is_indexed else plan
    for index, item in enumerate(items):
        if index not in held and (only is None or index in only):
            yield index, plan[index] if is_indexed else item


def unwrap_single(model: nn.Module, name: str) -> nn.Module:
    """Return the module with the attribute `name` inside wrappers that hold nothing else (DDP, Lightning).

    The innermost one, if none has it.
    """
    while not hasattr(model, name):
        # A module with several children is no wrapper: which of them is meant cannot be
        # known.
        children = list(model.children())
        if len(children) != 1:
            break
        model = children[0]
    return model


SLOW = 3e11
"""Rows times squared dimensions of an embedding matrix from which on what metrics need of it takes half a minute."""


def summarise_embeddings(
    model: nn.Module, settings: Settings
) -> dict[str, dict[str, Tensor]]:
    """Return what metrics need of the embedding matrices: {`embedding.input` or `embedding.output`: {name: array}}.

    A matrix that the model does not have is left out. Of a large one (`SLOW`) only the number of its `rows` is
    returned, unless the metrics were named: it would keep users waiting for minutes before the first batch.
    """
    inner = unwrap_single(model, "get_input_embeddings")
    summarised: dict[str, dict[str, Tensor]] = {}
    for side in ("input", "output"):
        # Models without the method, or of transformers without such a matrix.
        try:
            embedding = getattr(inner, f"get_{side}_embeddings")()
        except (AttributeError, NotImplementedError):
            continue
        # Some models return None, or a bare weight.
        if not isinstance(embedding, nn.Module):
            continue
        summary = _summarise_embedding(model, embedding, settings)
        if summary is not None:
            summarised[f"embedding.{side}"] = summary
    return summarised


def _summarise_embedding(
    model: nn.Module, embedding: nn.Module, settings: Settings
) -> dict[str, Tensor] | None:
    """Return the arrays that the settings' metrics need of one embedding matrix, by name; None without a matrix.

    Of a large matrix (`SLOW`) only the number of `rows` is returned, unless the settings name single metrics.

    embedding   the module of `model` that holds the matrix; packed or integer weights count as no matrix
    """
    shape = _find_shape(embedding)
    if shape is None:
        return None
    rows, dim = shape
    if rows * dim**2 > SLOW and not settings.metrics:
        return {"rows": torch.tensor([rows], dtype=torch.float64)}
    # Only now: reading a weight that is spread over processes gathers it in each of
    # them.
    matrix = read_whole_weight(model, embedding, "weight")
    # Quantised weights are packed, or whole numbers.
    if is_packed(matrix) or matrix.shape != shape or not matrix.is_floating_point():
        return None
    matrix = matrix.detach().cpu()
    # numpy has no bfloat16.
    if matrix.dtype.itemsize < 4:
        matrix = matrix.float()
    return summarise_matrix(matrix.numpy(), settings.summaries)


def _find_shape(embedding: nn.Module) -> tuple[int, int] | None:
    """Return the number of rows of an embedding matrix and their width; None if it has none.

    FSDP1 keeps weights flat, so the module is asked first.
    """
    for names in (("num_embeddings", "embedding_dim"), ("out_features", "in_features")):
        rows, dim = (getattr(embedding, name, None) for name in names)
        if isinstance(rows, int) and isinstance(dim, int):
            return rows, dim
    weight = getattr(embedding, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    return weight.shape[0], weight.shape[1]
