"""Turn what a caller passes into batches: tensors, tuples, dicts, arrays, loaders, generators."""

import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.batch import Batch, Stream
from anisoscope.data.arrays import to_dense
from anisoscope.data.plans import hash_parts
from anisoscope.errors import CorpusError, UsageError
from anisoscope.measure.calls import PADDING_MASKS, TARGETS, Caller, said, to_array

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
        self.batches, self._caller = _open_batches(inputs), Caller(model, forward)
        self.units = None if units is None else _number_units(units)
        self.tokens = [0] * len(self.batches)
        self.warnings = self._caller.warnings

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches; UsageError if the number of given units is not that of sequences."""
        seen, nth = 0, Counter[int]()
        for i, item in enumerate(self.batches):
            batch = item if isinstance(item, Batch) else self._batch(item, seen, nth)
            seen += len(batch.unit)
            self.tokens[i] = batch.n_tokens
            yield batch
        if self.units is not None and seen != len(self.units):
            raise UsageError(f"units for {seen} sequences, one each", str(len(self.units)), "name the unit of each")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """Return the class names of labelled sequences: a plan's own, else numbers up to the largest label.

        Empty for a loader without class names, since it is not read yet.
        """
        if not isinstance(self.batches, list):
            return tuple(getattr(self.batches, "classes", ()))
        labels = (label for item in self.batches if (label := _find_labels(item)) is not None)
        return tuple(map(str, range(max((int(label.max()) + 1 for label in labels), default=0))))

    @cached_property
    def fingerprint(self) -> str:
        """Return a hash of all inputs; for a loader, which may give other batches next time, a random one."""
        if not isinstance(self.batches, list) or any(isinstance(item, Batch) for item in self.batches):
            return uuid.uuid4().hex
        units = [] if self.units is None else [self.units.numpy()]
        return hash_parts([*units, *(part for item in self.batches for part in _iter_parts(item))])

    def _batch(self, item: Any, seen: int, nth: Counter[int]) -> Batch:
        """Build one batch from an item of the inputs.

        seen   number of sequences before it
        nth    how many sequences of each unit came before; it is counted on

        UsageError if the item holds no tensor, or the number of units is wrong.
        """
        caller = self._caller
        arguments = caller.named(item) if caller.forward is None else _select_entries(item)
        special, unit = arguments.pop("special_tokens_mask", None), arguments.pop("unit", None)
        # of a text with images the text says how many sequences there are: images may come as patches of all of them
        known = (*(arguments.get(name) for name in COUNTED), *arguments.values())
        first = next((value for value in known if isinstance(value, Tensor) and value.dim()), None)
        if first is None:
            raise UsageError("at least one tensor in a batch", ", ".join(arguments) or "none", "see docs/inputs.md")
        rows = len(first)
        if self.units is not None:
            unit = self.units[seen : seen + rows]
        unit = torch.arange(seen, seen + rows) if unit is None else torch.as_tensor(unit)
        if len(unit) != rows:
            raise UsageError(f"a unit for each of {rows} sequences", str(len(unit)), "one entry a sequence, in order")
        start = []
        for owner in unit.tolist():
            start.append(nth[owner] * LONGEST)  # a range of its own for every sequence of a unit
            nth[owner] += 1
        streams, label = _build_streams(arguments, special, torch.tensor(start)), _find_labels(item)
        if caller.model is None:
            return Batch(arguments, unit, streams, label=label)
        inputs = {"inputs": item} if caller.forward is not None else caller.select_accepted(arguments)
        return Batch(inputs, unit, streams, caller, label)


def _open_batches(inputs: Any) -> Any:
    """Return a sized iterable of batches; CorpusError if it is empty, UsageError for inputs that no model reads."""
    if isinstance(inputs, Tensor):
        return [to_dense(inputs)]
    if isinstance(inputs, np.ndarray | Mapping | tuple | Batch):
        return [inputs]
    kind = type(inputs).__name__
    if kind in ("DataFrame", "Series"):
        cure = "vectors: measure(frame.to_numpy()); texts: list(frame['text'])"
        raise UsageError(ACCEPTED, f"a pandas {kind}", cure)
    if isinstance(inputs, str):
        cure = (
            "give processor= (its tokenizer) and a list of strings, or a corpus: measure(model, corpus=…, processor=…)"
        )
        raise UsageError(ACCEPTED, f"str {inputs!r}", cure)
    if isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
        raise UsageError(ACCEPTED, kind, "see docs/inputs.md")
    try:
        again = len(inputs) >= 0 and iter(inputs) is not inputs  # type: ignore[arg-type]
    except TypeError:  # a generator, the loader of a stream
        again = False
    found: Any = inputs if again and not isinstance(inputs, Sequence) else list(inputs)
    if not len(found):
        raise CorpusError("a corpus with at least one batch", "none", f"the {kind} is empty; give it more data")
    if not isinstance(found, list):
        return found
    if any(isinstance(item, str) for item in found):
        if not isinstance(inputs, list | tuple):
            raise UsageError("texts in a list", f"a {kind} of them", "give list(texts)")
        raise UsageError("a processor for a list of strings", "none", "give processor=, the model's tokenizer")
    first = found[0]
    if isinstance(first, Tensor | np.ndarray) and first.ndim < 2:
        cure = "pad them to [sequence, token] (torch.nn.utils.rnn.pad_sequence) and give an attention_mask"
        raise UsageError("batches with a sequence axis", f"single sequences {said(first)}", cure)
    if isinstance(first, list) and first and not isinstance(first[0], Tensor | np.ndarray | list):
        raise UsageError(ACCEPTED, f"a list of lists of {type(first[0]).__name__}", "make tensors of them")
    return found


def _select_entries(item: Any) -> dict[str, Any]:
    """Return the tensors of a batch for the user's own function (`measure(…, forward=function)`), by name.

    A dict gives all its tensors under their names. A tensor gives itself under the name "0"; a tuple or list gives its
    first element under that name.
    """
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items() if isinstance(value, Tensor)}
    first = item[0] if isinstance(item, tuple | list) else item
    return {"0": torch.as_tensor(first) if isinstance(first, np.ndarray) else first}


def _find_labels(item: Any) -> Tensor | None:
    """Return the class of each sequence [sequence] if a batch or a dict holds integer labels; else None."""
    if isinstance(item, Batch):
        return item.label
    given = next((item[name] for name in TARGETS if name in item), None) if isinstance(item, Mapping) else None
    classes = to_array(given.cpu() if isinstance(given, Tensor) else given)
    if classes.dtype.kind not in "iu" or classes.ndim != 1 or not len(classes):
        return None
    return torch.from_numpy(classes.astype(np.int64))


def _number_units(units: Iterable[Hashable]) -> Tensor:
    """Replace the names of units by numbers [sequence], in order of appearance."""
    names = units.tolist() if isinstance(units, Tensor | np.ndarray) else list(units)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return torch.tensor([numbers[name] for name in names], dtype=torch.int64)


def _iter_parts(item: Any) -> Iterator[Any]:
    """Yield everything in a batch that can be hashed."""
    if isinstance(item, Mapping | tuple | list):
        for value in chain.from_iterable(item.items()) if isinstance(item, Mapping) else item:
            yield from _iter_parts(value)
    elif isinstance(item, Tensor):
        yield item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if item.numel() else "empty"
        yield f"{item.dtype} {list(item.shape)}"
    else:
        yield item if isinstance(item, np.ndarray) else repr(item)


def _build_streams(inputs: Mapping[str, Any], special: Tensor | None, start: Tensor) -> dict[str, Stream]:
    """Build the token masks of each stack from attention masks, or from the shape of ids; for sound, of samples or
    frames.

    inputs    the model's arguments by name
    special   which tokens are special [sequence, token]; None: unknown
    start     number of each sequence's first token in its unit [sequence]
    """
    streams: dict[str, Stream] = {}
    sound = [name for key, name in (("input_values", "samples"), ("input_features", "frames")) if key in inputs][:1]
    sound = [] if "input_ids" in inputs else sound  # then masks are those of the text
    for prefix, stacks in (("", sound or ["encoder", "decoder"]), ("decoder_", ["decoder"])):
        ids, mask = inputs.get(f"{prefix}input_ids"), inputs.get(f"{prefix}attention_mask")
        real = mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None
        if real is None and not prefix:
            real = next((~inputs[name].bool() for name in PADDING_MASKS if isinstance(inputs.get(name), Tensor)), None)
        if real is None and isinstance(ids, Tensor):
            real = torch.ones(ids.shape[:2], dtype=torch.bool)
        if real is not None:
            marks = torch.zeros_like(real) if special is None or prefix else torch.as_tensor(special).bool()
            streams |= dict.fromkeys(stacks, Stream(real, marks, start - real.int().argmax(1)))
    return streams
