"""Call a model with a batch: name its arguments, select those that it accepts, explain errors."""

import inspect
from collections.abc import Callable, Collection, Mapping
from inspect import Parameter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anisoscope.errors import AnisoscopeError, UsageError, suggest_names
from anisoscope.measure.loop import find_device, move_batch
from anisoscope.models.kinds import check_kind

TARGETS = ("labels", "label", "target", "targets")
"""Entries that a model which does not take them can do without."""
PADDING_MASKS = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
"""Masks that are True where there is padding (torch.nn.TransformerEncoder and kin)."""
OF_CALLS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError)
"""What a model raises that is called with inputs it does not take."""


class Caller:
    """Calls `model`, or `forward(model, inputs)`, on its device.

    `warnings` lists what was done that the caller did not ask for, such as labels that were not passed on.
    """

    def __init__(self, model: nn.Module | None, forward: Callable[[nn.Module, Any], Any] | None) -> None:
        """Prepare to call a model, or `forward(model, inputs)` if given."""
        self.model, self.forward, self.warnings = model, forward, list[str]()
        weights = () if model is None else model.parameters()
        self._dtype = next((p.dtype for p in weights if p.is_floating_point()), None)

    def named(self, item: Any) -> dict[str, Any]:
        """Return the arguments of one call of the model by name.

        item   one batch as the caller gave it: a mapping, a tuple or list of arguments, or a single one

        Items of a tuple are named after the parameters of `forward`. UsageError if there are more items than
        parameters.
        """
        model = self.model
        if isinstance(item, Mapping):
            return {str(name): self._to_tensor(value, str(name)) for name, value in item.items()}
        given = list(item) if isinstance(item, tuple | list) else [item]
        if model is None:
            name = "pixel_values" if isinstance(given[0], Tensor) and given[0].is_floating_point() else "input_ids"
            return {name: given[0]}
        tensors = [self._to_tensor(value, f"argument {i + 1}") for i, value in enumerate(given)]
        first, second = tensors[0], tensors[1] if len(tensors) == 2 else None
        names = _list_parameters(model, Parameter.POSITIONAL_OR_KEYWORD)
        if not names:
            cure = "give forward=lambda model, inputs: model(*inputs)"
            raise UsageError(f"{type(model).__name__}.forward with named arguments", "none", cure)
        if _is_floating(first) and first.dim() == 3 and names[0] == "input_ids" and "inputs_embeds" in names:
            names = ["inputs_embeds"]  # vectors for a model of token ids
        targets = isinstance(second, Tensor) and isinstance(first, Tensor) and second.shape in ((), first.shape[:1])
        if len(tensors) == 2 and (len(names) < 2 or targets):
            self._note("the second of each pair was taken for its labels and not given to the model")
            tensors = tensors[:1]
        if len(tensors) > len(names):
            expected = f"at most {len(names)} arguments ({', '.join(names)}), as {type(model).__name__} takes"
            raise UsageError(expected, str(len(tensors)), "give a dict with their names, or forward=")
        return dict(zip(names, tensors, strict=False))

    def select_accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the model's `forward` accepts; labels and attention masks that it does not take are
        dropped.

        UsageError for other arguments that it does not take, and for inputs of the wrong type.
        """
        model: Any = self.model
        names = _list_parameters(
            model, Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        )
        more = bool(_list_parameters(model, Parameter.VAR_KEYWORD))
        for name in list(arguments):
            if name in names or (more and not (names and isinstance(arguments[name], Tensor))):
                continue  # tensors among options that a model takes by any name would be lost unseen
            if name in TARGETS:
                self._note(f"{name} is no argument of {type(model).__name__}: not given to it")
            elif name != "attention_mask":
                took = f"arguments of {type(model).__name__} ({', '.join(names)})"
                raise UsageError(took, repr(name), f"leave it out, or {suggest_names(name, names)}")
            arguments.pop(name)
        first = next((value for value in arguments.values() if isinstance(value, Tensor)), None)
        # embeddings of one's own kind (I-BERT's quantised ones) are known by what `forward` calls its ids
        embeds = any(isinstance(module, nn.Embedding) for module in model.modules()) or "input_ids" in arguments
        if first is not None and not first.is_floating_point() and not embeds and self._dtype is not None:
            got = f"{said(first)} for a model without an embedding of ids"
            raise UsageError("floating-point inputs", got, "convert them: x.float()")
        if _is_floating(ids := arguments.get("input_ids")):
            raise UsageError("token ids (integers) as input_ids", said(ids), "give ids, or name it inputs_embeds")
        for name, mask in arguments.items():
            if name.endswith("attention_mask") and isinstance(mask, Tensor) and mask.dim() == 2:
                if not bool(((mask == 0) | (mask == 1)).all()):
                    cure = "give a dict with the names of its entries"
                    raise UsageError(f"0 and 1 in {name}", f"values up to {mask.max()}", cure)
            elif name.endswith("mask") and name not in (*PADDING_MASKS, "attention_mask", "decoder_attention_mask"):
                self._note(f"{name} is given to the model; every position counts (attention_mask would leave some out)")
        return arguments

    def __call__(self, **inputs: Any) -> Any:
        """Call the model and return its output; UsageError if the model does not accept the inputs."""
        model: Any = self.model
        calls: list[None] = []
        handle = model.register_forward_pre_hook(lambda _model, _args: calls.append(None))
        try:
            if self.forward is None:
                return model(**inputs)
            output = self.forward(model, move_batch(inputs["inputs"], find_device(model)))
            if len(calls) != 1:  # its layers could not be counted
                cure = "measure the part that it calls, or give one batch a call"
                raise UsageError("forward= to call the model once", f"{len(calls)} calls", cure)
            return output
        except (AnisoscopeError, torch.OutOfMemoryError, MemoryError):
            raise
        except OF_CALLS as error:
            given = ", ".join(f"{name} {said(value)}" for name, value in inputs.items())
            got = f"{given}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            cure = "give what you would call it with, or forward=lambda model, inputs: …"
            raise UsageError(f"inputs that {type(model).__name__} takes", got, cure) from error
        finally:
            handle.remove()

    def _to_tensor(self, value: Any, name: str) -> Any:
        """Turn an array or a rectangular list into a tensor; floating-point arrays get the model's own type.

        name   what the value is called, for errors. Other values are returned unchanged
        """
        if not isinstance(value, list | np.ndarray):
            return value
        array = to_array(value)
        if array.dtype == object and isinstance(value, list):
            cure = "padding=True, return_tensors='pt' in the tokenizer's call"
            raise UsageError(f"{name} as a tensor", "lists of different lengths", cure)
        if array.dtype.kind not in "biuf":
            raise UsageError(f"numbers in {name}", f"an array of {array.dtype}", "convert it: array.astype('float32')")
        tensor = torch.as_tensor(array)
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor

    def _note(self, text: str) -> None:
        """Add a warning on how inputs were understood, unless it is there already."""
        if text not in self.warnings:
            self.warnings.append(text)


def check_called_by_name(model: nn.Module, names: Collection[str]) -> Caller:
    """Check that a module's `forward` takes these input names of a corpus, and return a `Caller` of it.

    UsageError if it does not.
    """
    taken = inspect.signature(model.forward).parameters
    if not _list_parameters(model, Parameter.VAR_KEYWORD) and not set(names) <= taken.keys():
        expected = f"a model that takes {' and '.join(names)}, which the corpus gives it"
        cure = "wrap it in a module that does, or measure it in Python with inputs of its own"
        raise UsageError(expected, f"{type(model).__name__}.forward({', '.join(taken)})", cure)
    return Caller(model, None)


def check_module(model: Any) -> None:
    """Raise UsageError unless `model` is a torch module that can be run."""
    if isinstance(model, type):
        raise UsageError("a model", f"the class {model.__name__}", f"make one: {model.__name__}(…)")
    check_kind(model)
    if not isinstance(model, nn.Module):
        expected = "the name of a model, a loaded one or a torch.nn.Module"
        raise UsageError(expected, type(model).__name__, _cure_of(model))
    if any(parameter.is_meta for parameter in model.parameters()):
        raise UsageError("a model with weights", "weights on the device meta", "load it on cpu, cuda or mps")


def _cure_of(thing: Any) -> str:
    """Return advice for an object that was passed instead of a model, for an error message."""
    if isinstance(thing, list | tuple) and any(isinstance(part, nn.Module) for part in thing):
        return "give the model first, and its tokenizer as processor="
    if isinstance(thing, list | tuple):
        return "vectors go as one array or tensor: np.asarray(…)"
    return "load it first"


def to_array(value: Any) -> np.ndarray[Any, Any]:
    """Turn anything into an array; lists of different lengths give an array of type object."""
    try:
        return np.asarray(value)
    except ValueError:
        return np.asarray(None)


def _is_floating(value: Any) -> bool:
    """Return whether a value is a floating-point tensor."""
    return isinstance(value, Tensor) and value.is_floating_point()


def _list_parameters(model: nn.Module, *kinds: Any) -> list[str]:
    """List the parameters of a model's `forward` that are of these kinds, in order."""
    return [name for name, p in inspect.signature(model.forward).parameters.items() if p.kind in kinds]


def said(value: Any) -> str:
    """Describe a value for a message: number type and shape of a tensor or array, else the name of its class."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
