"""Turn what a caller passes into batches: tensors, tuples, dicts, arrays, loaders, generators."""

import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anisoscope.batch import Batch, Stream
from anisoscope.data.arrays import to_dense
from anisoscope.data.plans import hash_parts
from anisoscope.errors import CorpusError, UsageError
from anisoscope.measure.calls import (
    PADDING_MASKS,
    TARGETS,
    Caller,
    describe_value,
    to_array,
)

LONGEST = 1 << 32  # more tokens than a sequence has
COUNTED = ("input_ids", "image_grid_thw", "grid_thw", "target_sizes")
"""Arguments of one row for each sequence or image, whatever shape the others have: the first that is given counts."""
ACCEPTED = "a tensor, an array, a dict, a tuple of arguments, a list of those, a DataLoader or a generator"


class GivenInputs:
    """A caller's inputs as a sequence of batches; a `Batch` among them is used unchanged.

    model    the module they are for: its `forward` decides the names of arguments
    units    the unit (document, clip) of every sequence, in order, with any labels; None: `unit` in the dicts, else
    each          sequence is its own unit
    forward  called as `forward(model, inputs)` with each batch as it was given, on the model's device

    A generator is read to its end at once; what can be read again (a list, a DataLoader) is read when needed.
    """

    def __init__(
        self,
        inputs: Any,
        model: nn.Module | None = None,
        *,
        units: Iterable[Hashable] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
    ) -> None:
        """Open the inputs as batches; UsageError for inputs that no model reads, CorpusError if they are empty."""
        self.batches = _open_batches(inputs)
        self._caller = Caller(model, forward)
        self.units = None if units is None else _number_units(units)
        self.tokens = [0] * len(self.batches)
        self.warnings = self._caller.warnings

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches; UsageError if the number of given units is not that of sequences."""
        sequences = 0
        sequences_of_unit = Counter[int]()
        for i, item in enumerate(self.batches):
            batch = item
            if not isinstance(item, Batch):
                batch = self._build_batch(item, sequences, sequences_of_unit)
            sequences += len(batch.unit)
            # Known only now: a loader does not say beforehand how many tokens its
            # batches have.
            self.tokens[i] = batch.n_tokens
            yield batch
        # Only at the end is it known how many sequences there were.
        if self.units is not None and sequences != len(self.units):
            expected = f"units for {sequences} sequences, one each"
            raise UsageError(
                expected, str(len(self.units)), "give one unit per sequence"
            )

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Return the class names of labelled sequences: a plan's own, else numbers up to the largest label.

        Empty for a loader without class names, since it is not read yet.
        """
        if not isinstance(self.batches, list):
            return tuple(getattr(self.batches, "classes", ()))
        count = 0
        for item in self.batches:
            labels = _find_labels(item)
            if labels is not None:
                count = max(count, int(labels.max()) + 1)
        return tuple(map(str, range(count)))

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of all inputs; for a DataLoader, which may give other batches next time, a random text."""
        if not isinstance(self.batches, list) or any(
            isinstance(item, Batch) for item in self.batches
        ):
            # Nothing that can be hashed: such a pass never continues from the state of
            # another.
            return uuid.uuid4().hex
        parts: list[Any] = [] if self.units is None else [self.units.numpy()]
        for item in self.batches:
            parts += _iter_parts(item)
        return hash_parts(parts)

    def _build_batch(
        self, item: Any, sequences: int, sequences_of_unit: Counter[int]
    ) -> Batch:
        """Build one batch from an item of the inputs.

        sequences           number of sequences before it
        sequences_of_unit   how many sequences of each unit came before; those of this batch are added

        UsageError if the item holds no tensor, or the number of units is wrong.
        """
        caller = self._caller
        has_own_call = caller.forward is not None
        arguments = (
            _select_entries(item) if has_own_call else caller.name_arguments(item)
        )
        special = arguments.pop("special_tokens_mask", None)
        unit = arguments.pop("unit", None)
        rows = _count_rows(arguments)
        if self.units is not None:
            unit = self.units[sequences : sequences + rows]
        elif unit is None:
            unit = torch.arange(sequences, sequences + rows)
        unit = torch.as_tensor(unit)
        if len(unit) != rows:
            raise UsageError(
                f"a unit for each of {rows} sequences",
                str(len(unit)),
                "give one unit per sequence, in order",
            )
        start = []
        for number in unit.tolist():
            # Every sequence of a unit has a range of token numbers of its own.
            start.append(sequences_of_unit[number] * LONGEST)
            sequences_of_unit[number] += 1
        streams = _build_streams(arguments, special, torch.tensor(start))
        label = _find_labels(item)
        if caller.model is None:
            return Batch(arguments, unit, streams, label=label)
        # The user's function gets the batch as it was given, not what was made of it to
        # find the masks.
        if has_own_call:
            return Batch({"inputs": item}, unit, streams, caller, label)
        return Batch(caller.select_accepted(arguments), unit, streams, caller, label)


def _open_batches(inputs: Any) -> Any:
    """Return a sized iterable of batches; CorpusError if it is empty, UsageError for inputs that no model reads."""
    if isinstance(inputs, Tensor):
        return [to_dense(inputs)]
    # A tuple is one call's arguments, as a loader of pairs gives them; a list is
    # several batches.
    if isinstance(inputs, np.ndarray | Mapping | tuple | Batch):
        return [inputs]
    _check_kind(inputs)
    # A loader is read when its batches are needed; what can be read only once is read now.
    is_loader = _can_be_read_again(inputs) and not isinstance(inputs, Sequence)
    batches: Any = inputs if is_loader else list(inputs)
    if not len(batches):
        kind = type(inputs).__name__
        raise CorpusError(
            "a corpus with at least one batch",
            "none",
            f"give more data: the {kind} is empty",
        )
    if isinstance(batches, list):
        _check_listed(batches, inputs)
    return batches


def _check_kind(inputs: Any) -> None:
    """Raise UsageError for inputs that are no iterable of batches: a frame of pandas, a string, bytes, a number …"""
    # By name, since pandas may not be installed.
    kind = type(inputs).__name__
    if kind in ("DataFrame", "Series"):
        cure = "vectors: measure(frame.to_numpy()); texts: list(frame['text'])"
        raise UsageError(ACCEPTED, f"a pandas {kind}", cure)
    # Strings and bytes can be iterated over, but give single characters.
    if isinstance(inputs, str):
        instead = "a corpus: measure(model, corpus=…, processor=…)"
        cure = f"give processor= (its tokenizer) and a list of strings, or {instead}"
        raise UsageError(ACCEPTED, f"str {inputs!r}", cure)
    if isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
        raise UsageError(ACCEPTED, kind, "see docs/inputs.md")


def _can_be_read_again(inputs: Any) -> bool:
    """Return whether inputs have a length and start again each time, as a DataLoader; a generator does not."""
    try:
        return len(inputs) >= 0 and iter(inputs) is not inputs
    except TypeError:
        return False


def _check_listed(batches: list[Any], inputs: Any) -> None:
    """Raise UsageError for a list of texts, of single sequences, or of lists of numbers, in place of batches.

    inputs   what the caller gave, from which the list was made
    """
    if any(isinstance(item, str) for item in batches):
        if not isinstance(inputs, list | tuple):
            raise UsageError(
                "texts in a list",
                f"a {type(inputs).__name__} of them",
                "give list(texts)",
            )
        raise UsageError(
            "a processor for a list of strings",
            "none",
            "give processor=, the model's tokenizer",
        )
    first = batches[0]
    if isinstance(first, Tensor | np.ndarray) and first.ndim < 2:
        cure = "pad them to [sequence, token] (torch.nn.utils.rnn.pad_sequence) and give an attention_mask"
        raise UsageError(
            "batches with an axis of sequences",
            f"single sequences without that axis: {describe_value(first)}",
            cure,
        )
    if (
        isinstance(first, list)
        and first
        and not isinstance(first[0], Tensor | np.ndarray | list)
    ):
        raise UsageError(
            ACCEPTED,
            f"a list of lists of {type(first[0]).__name__}",
            "make tensors of them",
        )


def _select_entries(item: Any) -> dict[str, Any]:
    """Return the tensors of a batch for the user's own function (`measure(…, forward=function)`), by name.

    A dict gives all its tensors under their names. A tensor gives itself under the name "0"; a tuple or list gives its
    first element under that name.
    """
    if isinstance(item, Mapping):
        return {
            str(name): value
            for name, value in item.items()
            if isinstance(value, Tensor)
        }
    first = item[0] if isinstance(item, tuple | list) else item
    if isinstance(first, np.ndarray):
        first = torch.as_tensor(first)
    return {"0": first}


def _find_labels(item: Any) -> Tensor | None:
    """Return the class of each sequence [sequence] if a batch or a dict holds integer labels; else None."""
    if isinstance(item, Batch):
        return item.label
    if not isinstance(item, Mapping):
        return None
    names = [name for name in TARGETS if name in item]
    if not names:
        return None
    labels = item[names[0]]
    if isinstance(labels, Tensor):
        labels = labels.cpu()
    classes = to_array(labels)
    # Labels of tokens, or of a regression, are no classes of sequences.
    if classes.dtype.kind not in "iu" or classes.ndim != 1 or not len(classes):
        return None
    return torch.from_numpy(classes.astype(np.int64))


def _count_rows(arguments: Mapping[str, Any]) -> int:
    """Return the number of sequences in a batch: the length of its first tensor. UsageError without a tensor."""
    # The text of a text with images says how many sequences there are: images may come as patches of all of them.
    ordered = [*(arguments.get(name) for name in COUNTED), *arguments.values()]
    for value in ordered:
        if isinstance(value, Tensor) and value.dim():
            return len(value)
    raise UsageError(
        "at least one tensor in a batch",
        ", ".join(arguments) or "none",
        "see docs/inputs.md",
    )


def _number_units(units: Iterable[Hashable]) -> Tensor:
    """Replace the names of units by numbers [sequence], in order of appearance."""
    # The entries of a tensor are tensors, which hash by identity: as Python's numbers
    # they can be keys.
    names = units.tolist() if isinstance(units, Tensor | np.ndarray) else list(units)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names], dtype=torch.int64)


def _iter_parts(item: Any) -> Iterator[Any]:
    """Yield everything in a batch that can be hashed."""
    if isinstance(item, Mapping):
        for name, value in item.items():
            yield from _iter_parts(name)
            yield from _iter_parts(value)
    elif isinstance(item, tuple | list):
        for value in item:
            yield from _iter_parts(value)
    elif isinstance(item, Tensor):
        yield _to_bytes(item)
        yield f"{item.dtype} {list(item.shape)}"
    elif isinstance(item, np.ndarray):
        yield item
    else:
        yield repr(item)


def _to_bytes(x: Tensor) -> NDArray[np.uint8] | str:
    """Return the bytes of a tensor, since numpy does not know every type of torch, such as bfloat16."""
    if not x.numel():
        return "empty"
    return x.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def _build_streams(
    inputs: Mapping[str, Any], special: Tensor | None, start: Tensor
) -> dict[str, Stream]:
    """Build the token masks of each stack from attention masks, or from the shape of ids; for sound, of samples or
    frames.

    inputs    the model's arguments by name
    special   which tokens are special [sequence, token]; None: unknown
    start     number of each sequence's first token in its unit [sequence]
    """
    stacks = ["encoder", "decoder"]
    # With a text and a sound the mask is that of the text.
    if "input_ids" not in inputs and "input_values" in inputs:
        stacks = ["samples"]
    elif "input_ids" not in inputs and "input_features" in inputs:
        stacks = ["frames"]
    streams: dict[str, Stream] = {}
    for prefix, names in (("", stacks), ("decoder_", ["decoder"])):
        real = _find_real_tokens(inputs, prefix)
        if real is None:
            continue
        is_special = torch.zeros_like(real)
        # They are known of the first text only.
        if special is not None and not prefix:
            is_special = torch.as_tensor(special).bool()
        # `start` is the number of the first real token, a stream's that of column 0:
        # with padding on the left it lies before.
        first_real = real.int().argmax(1)
        streams |= dict.fromkeys(names, Stream(real, is_special, start - first_real))
    return streams


def _find_real_tokens(inputs: Mapping[str, Any], prefix: str) -> Tensor | None:
    """Return which tokens are real [sequence, token], from a mask among a model's arguments, or from the shape of ids.

    prefix   of the arguments' names: empty, or `decoder_`
    """
    mask = inputs.get(f"{prefix}attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2:
        return mask.bool()
    if not prefix:
        for name in PADDING_MASKS:
            padding = inputs.get(name)
            if isinstance(padding, Tensor):
                return ~padding.bool()
    ids = inputs.get(f"{prefix}input_ids")
    if isinstance(ids, Tensor):
        return torch.ones(ids.shape[:2], dtype=torch.bool)
    return None
