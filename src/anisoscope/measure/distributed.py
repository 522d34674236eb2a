"""Processes started by torchrun: split a plan of batches among them, and combine their results."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from anisoscope.errors import MeasureError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.models.identity import gather_whole, read_offloaded
from anisoscope.models.parallelism import find_spread

PATIENCE = timedelta(days=7)
"""How long a process waits for the others, whose parts may take longer; one that has ended is noticed at once."""
T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """Return this process's rank and the number of processes; (0, 1) without torchrun."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def open_process_group(device: str = "cpu") -> Iterator[None]:
    """Open the process group of a torchrun job for a `with` block; all processes must enter it.

    Does nothing if there is one process or a group is open already.
    """
    _, world = rank_and_world()
    ours = world > 1 and not dist.is_initialized()
    if ours:
        with _explain_lost_process():
            # NCCL refuses two processes on one GPU.
            here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            alone = (
                device.startswith("cuda") and here <= torch.accelerator.device_count()
            )
            if device.startswith("cuda"):
                torch.accelerator.set_device_index(torch.device(device).index or 0)
            store, rank, world = next(rendezvous("env://", timeout=PATIENCE))
            # A store outlives its group: with a prefix of its own, a second group in
            # the process does not find the signals of the first.
            _Notices.groups += 1
            own_store = PrefixStore(f"anisoscope {_Notices.groups}", store)
            _wait_for_all(own_store, rank, world)
            group = {"store": own_store, "rank": rank, "world_size": world}
            with _end_at_signals():
                dist.init_process_group(
                    "nccl" if alone else "gloo", timeout=PATIENCE, **group
                )
            # Not before: of a group that could not be opened nobody reads the signals.
            _Notices.store = own_store
    try:
        yield
    finally:
        if ours:
            _Notices.store = None
            dist.destroy_process_group()


@contextmanager
def _end_at_signals() -> Iterator[None]:
    """Within a `with` block, let SIGINT and SIGTERM end the process at once, as if Python had no handlers.

    While a backend connects, handlers of Python are not run: a process whose peer has ended would wait for it for days.
    Nothing is measured yet that could be kept.
    """
    kept: dict[int, Any] = {}
    # Python refuses outside of the main thread, which then keeps its handlers.
    with suppress(ValueError):
        for number in (signal.SIGINT, signal.SIGTERM):
            kept[number] = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for caught, handler in kept.items():
            signal.signal(caught, handler)


def _wait_for_all(store: Store, rank: int, world: int) -> None:
    """Wait until all processes of a torchrun job have come here, since some may still be loading. All must call it.

    It waits here and not inside the backend, where signals would not be handled.
    """
    # Each process leaves a mark and waits for those of all others.
    store.set(f"here {rank}", "")
    while not store.check([f"here {each}" for each in range(world)]):
        time.sleep(0.02)


class _Notices:
    """The store by which the processes of a torchrun job announce that they are about to stop, and the number of
    groups.
    """

    store: Store | None = None
    groups = 0


def find_stop_signal(own: list[int]) -> int:
    """Return the signal by which the job must stop; 0 if there is none. Other processes learn of it through a shared
    store.

    own   the signals that this process received; the first one counts, before those of other processes
    """
    # An error means that whoever held the store has ended: the next collective call reports it.
    with suppress(RuntimeError):
        if _Notices.store is not None:
            if own:
                _Notices.store.set("stopped", str(own[0]))
            if not _Notices.store.check(["stopped"]):
                return 0
            return int(_Notices.store.get("stopped"))
    return next(iter(own), 0)


class _SharedTokenizer:
    """A tokenizer that tokenises this process's share of the texts, and gets the tokens of the rest from other
    processes.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Wrap a tokenizer."""
        self._tokenizer = tokenizer

    @property
    def unshared(self) -> Any:
        """The tokenizer itself, for texts that not all processes read; calling the shared one would wait for them."""
        return self._tokenizer

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the tokenizer itself."""
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        """Return the size of the vocabulary."""
        return len(self._tokenizer)

    def __call__(self, texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
        """Return {"input_ids": ids of each text}. All processes must call it with the same texts; each tokenises a
        share.

        MeasureError if processes have different numbers of texts.
        """
        rank, world = rank_and_world()
        # Every `world`-th text: long and short ones are spread evenly.
        share = texts[rank::world]
        ours: list[list[int]] = []
        # Tokenizers refuse an empty list, the share of a process if texts are few.
        if share:
            ours = list(self._tokenizer(share, **options)["input_ids"])
        parts = [ours] * world
        with _explain_lost_process():
            dist.all_gather_object(parts, ours)
        lengths = [len(part) for part in parts]
        if lengths != [len(texts[i::world]) for i in range(world)]:
            expected = "the same corpus for every process"
            came = "texts that differ in number"
            raise MeasureError(expected, came, "give each machine the same copy")
        return {"input_ids": [parts[i % world][i // world] for i in range(len(texts))]}


def share_tokenizer(processor: Any) -> Any:
    """Return a tokenizer that splits its work among the processes of a torchrun job, all of which must then call it.

    Other processors, and any in a job of one process, are returned unchanged.
    """
    shared = (
        dist.is_initialized()
        and rank_and_world()[1] > 1
        and hasattr(processor, "tokenize")
    )
    return _SharedTokenizer(processor) if shared else processor


@contextmanager
def _explain_lost_process() -> Iterator[None]:
    """Raise MeasureError, instead of the backend's own error, if another process ends inside a `with` block."""
    try:
        yield
    except RuntimeError as error:
        raise _ended() from error


def _ended() -> MeasureError:
    """Make the error for a torchrun job in which another process has ended. The caller raises it."""
    expected = "every process of the torchrun job to go on to the end"
    came = "another process that has ended (it says why)"
    return MeasureError(
        expected,
        came,
        "correct what it reports; then the same command with --resume continues",
    )


def is_in_step(model: nn.Module) -> bool:
    """Return whether a forward call of `model` waits for other processes, which must then call it equally often (FSDP,
    DDP, tensor parallelism).

    MeasureError for a model that is spread in two ways at once.
    """
    return find_spread(model).in_step


def reads_same_batches(model: nn.Module) -> bool:
    """Return whether all processes of the job must read the same batches, since each holds a part of every layer
    (tensor parallelism).
    """
    return bool(find_spread(model).ranks)


def reshard(model: nn.Module) -> None:
    """Free the whole weights that the last forward call of an FSDP2 model left in memory."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def read_whole_weight(model: nn.Module, module: nn.Module, name: str) -> Any:
    """Return the whole tensor of a weight, even if it is split over processes (FSDP) or offloaded (accelerate).

    If it is split, all processes must call this.

    module   the part of `model` that has the weight, as the attribute `name`
    """
    from torch.distributed.fsdp import FullyShardedDataParallel

    units = [
        unit for unit in model.modules() if isinstance(unit, FullyShardedDataParallel)
    ]
    around = [unit for unit in units if module in set(unit.modules())]
    if not around:
        value = getattr(module, name)
        if not isinstance(value, Tensor):
            return value
        return gather_whole(read_offloaded(module, name, value))
    # The innermost one holds the weights of FSDP1; the others would be gathered for nothing.
    with FullyShardedDataParallel.summon_full_params(
        around[-1], recurse=False, writeback=False
    ):
        # A copy, since what was gathered is freed at the end of this block.
        return getattr(module, name).clone()


class Steps:
    """Keeps the processes of a torchrun job at the same batch if their models wait for each other (FSDP).

    A process without further batches keeps calling the model until the last one has finished. With tensor parallelism
    all processes read the same batches. Other models run independently in each process.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        """Find out whether forward calls of `model` wait for other processes."""
        spread = find_spread(model)
        self.together = spread.in_step
        self._same = bool(spread.ranks)
        self._device = device

    def agree(self, busy: bool, signal: int) -> tuple[bool, int]:
        """Find out whether the job goes on: (does any process have another batch, a signal that one received or 0).

        If forward calls of the model wait for each other (FSDP), all processes must call this equally often. Otherwise
        the two arguments are returned as they are.

        busy     whether this process has another batch
        signal   the signal that this process received; 0: none
        """
        if not self.together:
            return busy, signal
        # One call for three questions. The maximum of −busy is −1 only if every process
        # is busy.
        flags = torch.tensor([int(busy), signal, -int(busy)], device=self._device)
        with _explain_lost_process():
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        anybody, number, nobody_waits = flags.tolist()
        # Here each process holds a part of every layer: one that has ended its list
        # leaves the others in the middle of a sum.
        if self._same and anybody == 1 and nobody_waits == 0 and not number:
            expected = "the same batches in every process of tensor parallelism"
            raise MeasureError(
                expected,
                "fewer in one of them",
                "give each process the whole list, not a share of it",
            )
        return bool(anybody), number


@contextmanager
def explain_lost_process_in_call(together: bool) -> Iterator[None]:
    """Raise MeasureError if another process ends inside a `with` block around a forward call that waits for it.

    together   whether forward calls of the model wait for other processes; False: errors are raised as they are
    """
    try:
        yield
    except RuntimeError as error:
        lost = (
            "Connection closed",
            "Connection reset",
            "NCCL",
            "Socket",
            "Broken pipe",
        )
        if not together or not any(name in str(error) for name in lost):
            raise
        raise _ended() from error


def broadcast_from_first(value: T) -> T:
    """Return the `value` of the process with rank 0 in every process. All processes must call it."""
    if rank_and_world()[1] == 1:
        return value
    box = [value]
    with _explain_lost_process():
        dist.broadcast_object_list(box)
    return box[0]


def is_true_anywhere(value: bool) -> bool:
    """Return whether `value` is true in any process; every process must call this."""
    every = [value] * rank_and_world()[1]
    if len(every) > 1:
        with _explain_lost_process():
            dist.all_gather_object(every, value)
    return any(every)


def take_over_states(
    states: Sequence[Path], settings: Settings, plan: str, own: Path
) -> frozenset[int]:
    """Add up the state files that the processes of an interrupted run saved, and write the sum to `own`.

    Returns the indices of the batches that it holds. Each batch is counted once. The other state files are deleted.

    states     the files
    settings   of the measurement
    plan       hash of the list of batches, which the states must have too
    """
    parts: list[Measurement] = []
    held: frozenset[int] = frozenset()
    restored = [Measurement.restore(path, settings, plan) for path in states]
    # The largest first: an earlier take-over may have ended between writing the sum and
    # deleting the files that it holds, and the sum is to be kept then.
    for part in sorted(restored, key=lambda part: -len(part.batches)):
        # A file with a batch that is held already is dropped as a whole: its other
        # batches, if any, are measured again.
        if held.isdisjoint(part.batches):
            parts.append(part)
            held |= part.batches
    if len(parts) > 1 or (parts and list(states) != [own]):
        reduce(Measurement.merge, parts).save(own)
    for path in states:
        if path != own:
            path.unlink()
    return held


def gather_parts(part: Measurement) -> Measurement:
    """Combine the measurements of all processes: returns the whole in each. All processes must call it.

    part   what this process measured
    """
    _, world = rank_and_world()
    if world == 1:
        return part
    part.moments.flush()
    # Everything but sums, extremes and samples, each of which has a way of its own to
    # be shared.
    rest = Measurement(
        part.settings, part.plan, part.batches, part.weights, part.classes, part.unseen
    )
    rest.sites = part.sites
    rest.pieces = part.pieces
    rest.refused = part.refused
    rest.proof = part.proof
    every = [(rest, [*part.reservoirs])] * world
    with _explain_lost_process():
        sums = part.sums.all_reduce()
        extremes = part.extremes.all_reduce()
        dist.all_gather_object(every, (rest, [*part.reservoirs]))
        whole = reduce(Measurement.merge, [each for each, _ in every])
        # In one order everywhere. A process without this sample offers an empty one,
        # which looking it up creates.
        for name in sorted({name for _, names in every for name in names}):
            whole.reservoirs[name] = part.reservoirs[name].all_reduce()
    whole.take(sums)
    whole.extremes = extremes
    return whole
