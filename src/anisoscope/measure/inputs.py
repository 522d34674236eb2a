"""What a caller hands over, as batches: tensors, tuples, dicts, arrays, loaders, generators. Everything else is
refused, with the cure.
"""

import inspect
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.batch import Batch, Stream
from anisoscope.data.plans import digest
from anisoscope.errors import AnisoscopeError, CorpusError, UsageError, near_matches

LONGEST = 1 << 32
"""More tokens than a sequence has."""
TARGETS = ("labels", "label", "target", "targets")
"""Entries that a model which does not take them can do without."""
PADDING_MASKS = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
"""Masks that are True where there is padding (torch.nn.TransformerEncoder and kin)."""
ACCEPTED = "a tensor, an array, a dict, a tuple of arguments, a list of those, a DataLoader or a generator"
OF_CALLS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError)
"""What a model raises that is called with inputs it does not take."""

Forward = Callable[[nn.Module, Any], Any]


class Given:
    """Inputs as they were handed over, as a plan of batches: `Batch`es pass as they are.

    model    the module they are for: what its `forward` takes decides what an argument is called
    units    the unit of every sequence, in order (any labels); none: `unit` in the dicts, else each its own
    forward  called as `forward(model, inputs)` with each batch as it was given, on the model's device

    A generator is read to its end at once; what can be read again (a list, a DataLoader) is read as it is needed.
    """

    def __init__(
        self,
        inputs: Any,
        model: nn.Module | None = None,
        *,
        units: Iterable[Hashable] | None = None,
        forward: Forward | None = None,
    ) -> None:
        self.batches = _batches_of(inputs)
        self.units = None if units is None else _numbered(units)
        self.warnings: list[str] = []
        self.tokens = [0] * len(self.batches)
        self._model, self._forward = model, forward

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
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
        """Names of the classes of labelled sequences: those of a plan, else the numbers up to the largest. None of a
        loader, all of which would have to be read for it.
        """
        if not isinstance(self.batches, list):
            return tuple(getattr(self.batches, "classes", ()))
        labels = (label for item in self.batches if (label := _labels(item)) is not None)
        return tuple(map(str, range(max((int(label.max()) + 1 for label in labels), default=0))))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of everything given; of a loader, which may give other batches the next time, one that never comes
        again.
        """
        if not isinstance(self.batches, list) or any(isinstance(item, Batch) for item in self.batches):
            return uuid.uuid4().hex
        units = [] if self.units is None else [self.units.numpy()]
        return digest([*units, *(part for item in self.batches for part in _parts(item))])

    def _batch(self, item: Any, seen: int, nth: Counter[int]) -> Batch:
        """One batch, after `seen` sequences, `nth` of each unit among them."""
        arguments = self._named(item) if self._forward is None else _entries(item)
        special, unit = arguments.pop("special_tokens_mask", None), arguments.pop("unit", None)
        first = next((value for value in arguments.values() if isinstance(value, Tensor) and value.dim()), None)
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
        streams, label = _streams(arguments, special, torch.tensor(start)), _labels(item)
        if self._model is None:
            return Batch(arguments, unit, streams, label=label)
        inputs = {"inputs": item} if self._forward is not None else self._taken(self._model, arguments)
        return Batch(inputs, unit, streams, self._called, label)

    def _named(self, item: Any) -> dict[str, Any]:
        """The arguments of one call by name; those of a tuple by what `forward` calls them."""
        model = self._model
        if isinstance(item, Mapping):
            return {str(name): _tensor(value, str(name), model) for name, value in item.items()}
        given = list(item) if isinstance(item, tuple | list) else [item]
        if model is None:
            name = "pixel_values" if isinstance(given[0], Tensor) and given[0].is_floating_point() else "input_ids"
            return {name: given[0]}
        tensors = [_tensor(value, f"argument {i + 1}", model) for i, value in enumerate(given)]
        first, second = tensors[0], tensors[1] if len(tensors) == 2 else None
        names = _parameters(model, Parameter.POSITIONAL_OR_KEYWORD)
        if not names:
            cure = "give forward=lambda model, inputs: model(*inputs)"
            raise UsageError(f"{type(model).__name__}.forward with named arguments", "none", cure)
        if _is_floating(first) and first.dim() == 3 and names[0] == "input_ids" and "inputs_embeds" in names:
            names = ["inputs_embeds"]  # vectors for a model of token ids
        targets = isinstance(second, Tensor) and second.dim() <= 1 and isinstance(first, Tensor) and len(first)
        if len(tensors) == 2 and (len(names) < 2 or targets):
            self._note("the second of each pair was taken for its labels and not given to the model")
            tensors = tensors[:1]
        if len(tensors) > len(names):
            expected = f"at most {len(names)} arguments ({', '.join(names)}), as {type(model).__name__} takes"
            raise UsageError(expected, str(len(tensors)), "give a dict with their names, or forward=")
        return dict(zip(names, tensors, strict=False))

    def _taken(self, model: nn.Module, arguments: dict[str, Any]) -> dict[str, Any]:
        """Arguments that `forward` takes; labels and masks that it does not are ours. UsageError for others, and for
        what a model cannot read, before anything runs.
        """
        names = _parameters(model, Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        more = bool(_parameters(model, Parameter.VAR_KEYWORD))
        for name in list(arguments):
            if name in names or (more and not (names and isinstance(arguments[name], Tensor))):
                continue  # tensors among options that a model takes by any name would be lost unseen
            if name in TARGETS:
                self._note(f"{name} is no argument of {type(model).__name__}: not given to it")
            elif name != "attention_mask":
                took = f"arguments of {type(model).__name__} ({', '.join(names)})"
                raise UsageError(took, repr(name), f"leave it out, or {near_matches(name, names)}")
            arguments.pop(name)
        first = next((value for value in arguments.values() if isinstance(value, Tensor)), None)
        embeds = any(isinstance(module, nn.Embedding) for module in model.modules())
        if first is not None and not first.is_floating_point() and not embeds and _dtype(model) is not None:
            got = f"{_said(first)} for a model without an embedding of ids"
            raise UsageError("floating-point inputs", got, "convert them: x.float()")
        if _is_floating(ids := arguments.get("input_ids")):
            raise UsageError("token ids (integers) as input_ids", _said(ids), "give ids, or name it inputs_embeds")
        for name, mask in arguments.items():
            if name.endswith("attention_mask") and isinstance(mask, Tensor) and mask.dim() == 2:
                if not bool(((mask == 0) | (mask == 1)).all()):
                    cure = "give a dict with the names of its entries"
                    raise UsageError(f"0 and 1 in {name}", f"values up to {mask.max()}", cure)
            elif name.endswith("mask") and name not in (*PADDING_MASKS, "attention_mask", "decoder_attention_mask"):
                self._note(f"{name} is given to the model; every position counts (attention_mask would leave some out)")
        return arguments

    def _called(self, **inputs: Any) -> Any:
        """The model's output; what goes wrong in it says what it was given."""
        model = self._model
        assert model is not None
        calls: list[None] = []
        handle = model.register_forward_pre_hook(lambda _model, _args: calls.append(None))
        try:
            if self._forward is None:
                return model(**inputs)
            output = self._forward(model, moved(inputs["inputs"], device_of(model)))
            if len(calls) != 1:  # its layers could not be counted
                cure = "measure the part that it calls, or give one batch a call"
                raise UsageError("forward= to call the model once", f"{len(calls)} calls", cure)
            return output
        except (AnisoscopeError, torch.OutOfMemoryError, MemoryError):
            raise
        except OF_CALLS as error:
            given = ", ".join(f"{name} {_said(value)}" for name, value in inputs.items())
            got = f"{given}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            cure = "give what you would call it with, or forward=lambda model, inputs: …"
            raise UsageError(f"inputs that {type(model).__name__} takes", got, cure) from error
        finally:
            handle.remove()

    def _note(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)


def check_model(model: Any) -> None:
    """UsageError where `model` is no module that can be run."""
    if isinstance(model, type):
        raise UsageError("a model", f"the class {model.__name__}", f"make one: {model.__name__}(…)")
    if not isinstance(model, nn.Module):
        expected = "the name of a model, a loaded one or a torch.nn.Module"
        raise UsageError(expected, type(model).__name__, "load it first")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("a model with weights", "weights on the device meta", "load it on cpu, cuda or mps")


def device_of(model: nn.Module) -> torch.device:
    """Where a model's weights are."""
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def moved(item: Any, device: torch.device) -> Any:
    """Every tensor of a batch on a device."""
    if isinstance(item, Mapping):
        return {name: moved(value, device) for name, value in item.items()}
    if isinstance(item, tuple | list):
        return type(item)(moved(value, device) for value in item)
    return item.to(device) if isinstance(item, Tensor) else item


def _batches_of(inputs: Any) -> Any:
    """A sized iterable of batches. UsageError where it holds none, or what no model reads."""
    if isinstance(inputs, Tensor | np.ndarray | Mapping | tuple | Batch):
        return [inputs]
    kind = type(inputs).__name__
    if kind in ("DataFrame", "Series"):
        cure = "vectors: measure(frame.to_numpy()); texts: list(frame['text'])"
        raise UsageError(ACCEPTED, f"a pandas {kind}", cure)
    if isinstance(inputs, str):
        cure = "give processor= (its tokenizer) and a list of strings, or a corpus: measure(model, corpus=…, "
        raise UsageError(ACCEPTED, f"str {inputs!r}", f"{cure}processor=…)")
    if isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
        raise UsageError(ACCEPTED, kind, "see docs/inputs.md")
    try:
        again = len(inputs) >= 0 and iter(inputs) is not inputs  # type: ignore[arg-type]
    except TypeError:  # a generator, the loader of a stream
        again = False
    found: Any = inputs if again and not isinstance(inputs, Sequence) else list(inputs)
    if not len(found):
        raise CorpusError("a corpus with at least one batch", "none", f"the {kind} is empty; give it more data")
    if isinstance(found, list):
        _check_items(found)
    return found


def _check_items(found: list[Any]) -> None:
    if any(isinstance(item, str) for item in found):
        raise UsageError("a processor for a list of strings", "none", "give processor=, the model's tokenizer")
    first = found[0]
    if isinstance(first, Tensor | np.ndarray) and first.ndim < 2:
        cure = "pad them to [sequence, token] (torch.nn.utils.rnn.pad_sequence) and give an attention_mask"
        raise UsageError("batches with a sequence axis", f"single sequences {_said(first)}", cure)
    if isinstance(first, list) and first and not isinstance(first[0], Tensor | np.ndarray | list):
        raise UsageError(ACCEPTED, f"a list of lists of {type(first[0]).__name__}", "make tensors of them")


def _entries(item: Any) -> dict[str, Any]:
    """Entries of a batch for `forward=`: those of a dict, else its first tensor."""
    if isinstance(item, Mapping):
        return {str(name): value for name, value in item.items() if isinstance(value, Tensor)}
    first = item[0] if isinstance(item, tuple | list) else item
    return {"0": torch.as_tensor(first) if isinstance(first, np.ndarray) else first}


def _labels(item: Any) -> Tensor | None:
    """The class of each sequence [sequence], where a batch or a dict tells whole numbers for them."""
    if isinstance(item, Batch):
        return item.label
    given = next((item[name] for name in TARGETS if name in item), None) if isinstance(item, Mapping) else None
    classes = _array(given.cpu() if isinstance(given, Tensor) else given)
    if classes.dtype.kind not in "iu" or classes.ndim != 1 or not len(classes):
        return None
    return torch.from_numpy(classes.astype(np.int64))


def _array(value: Any) -> np.ndarray[Any, Any]:
    """An array of anything; of objects where lists have different lengths."""
    try:
        return np.asarray(value)
    except ValueError:
        return np.asarray(None)


def _tensor(value: Any, name: str, model: nn.Module | None) -> Any:
    """Arrays and rectangular lists as tensors; floats of an array in the model's own type."""
    if not isinstance(value, list | np.ndarray):
        return value
    array = _array(value)
    if array.dtype == object and isinstance(value, list):
        cure = "padding=True, return_tensors='pt' in the tokenizer's call"
        raise UsageError(f"{name} as a tensor", "lists of different lengths", cure)
    if array.dtype.kind not in "biuf":
        raise UsageError(f"numbers in {name}", f"an array of {array.dtype}", "convert it: array.astype('float32')")
    tensor = torch.as_tensor(array)
    own = None if model is None else _dtype(model)
    return tensor.to(own) if own is not None and tensor.is_floating_point() else tensor


def _dtype(model: nn.Module) -> torch.dtype | None:
    """The model's own type of floating point."""
    return next((p.dtype for p in model.parameters() if p.is_floating_point()), None)


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _parameters(model: nn.Module, *kinds: Any) -> list[str]:
    """Names of the arguments of these kinds that `forward` takes, in order."""
    return [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in kinds]


def _said(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__


def _numbered(units: Iterable[Hashable]) -> Tensor:
    """Units of any labels as numbers, in order of appearance."""
    names = units.tolist() if isinstance(units, Tensor | np.ndarray) else list(units)
    known: dict[Any, int] = {}
    return torch.tensor([known.setdefault(name, len(known)) for name in names], dtype=torch.int64)


def _parts(item: Any) -> Iterator[Any]:
    """Everything in a batch that a hash can take."""
    if isinstance(item, Mapping):
        for name, value in item.items():
            yield str(name)
            yield from _parts(value)
    elif isinstance(item, tuple | list):
        for value in item:
            yield from _parts(value)
    elif isinstance(item, Tensor):
        yield item.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() if item.numel() else "empty"
        yield f"{item.dtype} {list(item.shape)}"
    else:
        yield item if isinstance(item, np.ndarray) else repr(item)


def _streams(inputs: Mapping[str, Any], special: Tensor | None, start: Tensor) -> dict[str, Stream]:
    """Streams of both stacks from attention masks, or from the ids' shape; of sound the samples or frames."""
    streams: dict[str, Stream] = {}
    sound = next(
        (name for key, name in (("input_values", "samples"), ("input_features", "frames")) if key in inputs), ""
    )
    for prefix, stacks in (("", (sound,) if sound else ("encoder", "decoder")), ("decoder_", ("decoder",))):
        ids, mask = inputs.get(f"{prefix}input_ids"), inputs.get(f"{prefix}attention_mask")
        real = mask.bool() if isinstance(mask, Tensor) and mask.dim() == 2 else None
        if real is None and not prefix:
            real = next((~inputs[name].bool() for name in PADDING_MASKS if isinstance(inputs.get(name), Tensor)), None)
        if real is None and isinstance(ids, Tensor):
            real = torch.ones(ids.shape[:2], dtype=torch.bool)
        if real is not None:
            given = special is not None and not prefix
            marks = torch.as_tensor(special).bool() if given else torch.zeros_like(real)
            streams |= dict.fromkeys(stacks, Stream(real, marks, start - real.int().argmax(1)))
    return streams
