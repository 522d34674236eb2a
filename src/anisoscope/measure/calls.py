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
from anisoscope.models.devices import find_without_values
from anisoscope.models.kinds import check_kind

TARGETS = ("labels", "label", "target", "targets")
"""Names of inputs that are left out if the model does not take them."""
PADDING_MASKS = ("src_key_padding_mask", "key_padding_mask", "padding_mask")
"""Masks that are True where there is padding (torch.nn.TransformerEncoder and kin)."""
OF_CALLS = (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError)
"""What a model may raise if it is called with inputs that it does not take."""


class Caller:
    """Calls `model`, or `forward(model, inputs)`, on its device.

    `warnings` lists what was done that the caller did not ask for, such as labels that were not passed on.
    """

    def __init__(
        self, model: nn.Module | None, forward: Callable[[nn.Module, Any], Any] | None
    ) -> None:
        """Prepare to call a model, or `forward(model, inputs)` if given."""
        self.model = model
        self.forward = forward
        self.warnings: list[str] = []
        self._dtype: torch.dtype | None = None
        # Arrays of numpy are float64 by default; a model in float32 or bfloat16 would
        # refuse them.
        for weight in () if model is None else model.parameters():
            if weight.is_floating_point():
                self._dtype = weight.dtype
                break

    def name_arguments(self, item: Any) -> dict[str, Any]:
        """Return the arguments of one call of the model by name.

        item   one batch as the caller gave it: a mapping, a tuple or list of arguments, or a single one

        Items of a tuple are named after the parameters of `forward`. UsageError if there are more items than
        parameters.
        """
        if isinstance(item, Mapping):
            return {
                str(name): self._to_tensor(value, str(name))
                for name, value in item.items()
            }
        given = list(item) if isinstance(item, tuple | list) else [item]
        # Without a model there is no signature: whole numbers are ids, others pixels.
        if self.model is None:
            is_of_pixels = isinstance(given[0], Tensor) and given[0].is_floating_point()
            return {"pixel_values" if is_of_pixels else "input_ids": given[0]}
        tensors = [
            self._to_tensor(value, f"argument {i + 1}") for i, value in enumerate(given)
        ]
        return self._name_tensors(self.model, tensors)

    def _name_tensors(self, model: nn.Module, tensors: list[Any]) -> dict[str, Any]:
        """Name the arguments of a call after the parameters of the model's `forward`, in order; leave out labels.

        UsageError if the model names no parameters, or takes fewer.
        """
        names = _list_parameters(model, Parameter.POSITIONAL_OR_KEYWORD)
        if not names:
            cure = "give forward=lambda model, inputs: model(*inputs)"
            raise UsageError(
                f"{type(model).__name__}.forward with named arguments", "none", cure
            )
        first = tensors[0]
        # Vectors for a model of token ids go by its argument for vectors.
        if (
            _is_floating(first)
            and first.dim() == 3
            and names[0] == "input_ids"
            and "inputs_embeds" in names
        ):
            names = ["inputs_embeds"]
        # A loader of a training gives pairs of inputs and labels.
        if len(tensors) == 2 and (len(names) < 2 or _are_labels(tensors[1], first)):
            self._note(
                "the second of each pair was taken for its labels and not given to the model"
            )
            tensors = tensors[:1]
        if len(tensors) > len(names):
            expected = f"at most {len(names)} arguments ({', '.join(names)}), as {type(model).__name__} takes"
            raise UsageError(
                expected,
                str(len(tensors)),
                "give a dict with their names, or forward=lambda model, inputs: …",
            )
        return dict(zip(names, tensors, strict=False))

    def select_accepted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments that the model's `forward` accepts; labels and attention masks that it does not take are
        dropped.

        UsageError for other arguments that it does not take, and for inputs of the wrong type.
        """
        model: Any = self.model
        names = _list_parameters(
            model,
            Parameter.POSITIONAL_ONLY,
            Parameter.POSITIONAL_OR_KEYWORD,
            Parameter.KEYWORD_ONLY,
        )
        takes_any_name = bool(_list_parameters(model, Parameter.VAR_KEYWORD))
        for name in list(arguments):
            if name in names:
                continue
            # A model that takes options by any name would ignore a tensor among them silently.
            if takes_any_name and not (names and isinstance(arguments[name], Tensor)):
                continue
            if name in TARGETS:
                self._note(
                    f"{name} is no argument of {type(model).__name__}: not given to it"
                )
            elif name != "attention_mask":
                took = f"arguments of {type(model).__name__} ({', '.join(names)})"
                raise UsageError(
                    took,
                    repr(name),
                    f"leave that argument out, or {suggest_names(name, names)}",
                )
            arguments.pop(name)
        # After dropping, so that errors speak of what the model would be given.
        self._check_types(model, arguments)
        self._check_masks(arguments)
        return arguments

    def _check_types(self, model: nn.Module, arguments: Mapping[str, Any]) -> None:
        """Raise UsageError for integers given to a model without an embedding, and for floating-point token ids."""
        # Only the first is checked: masks and positions that come with floating-point
        # inputs are whole numbers too.
        tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
        # An embedding of another class (I-BERT's quantised one) is known by what `forward` calls its ids.
        has_embedding = "input_ids" in arguments or any(
            isinstance(module, nn.Embedding) for module in model.modules()
        )
        if (
            tensors
            and not tensors[0].is_floating_point()
            and not has_embedding
            and self._dtype is not None
        ):
            got = (
                f"{describe_value(tensors[0])} for a model without an embedding of ids"
            )
            raise UsageError("floating-point inputs", got, "convert them: x.float()")
        ids = arguments.get("input_ids")
        if _is_floating(ids):
            cure = "give ids, or name it inputs_embeds"
            raise UsageError(
                "token ids (integers) as input_ids", describe_value(ids), cure
            )

    def _check_masks(self, arguments: Mapping[str, Any]) -> None:
        """Raise UsageError for an attention mask of other numbers than 0 and 1; note masks that are not understood."""
        for name, mask in arguments.items():
            if (
                name.endswith("attention_mask")
                and isinstance(mask, Tensor)
                and mask.dim() == 2
            ):
                # A tuple in another order than the parameters shows here: ids or token
                # types in the place of the mask.
                if not bool(((mask == 0) | (mask == 1)).all()):
                    cure = "give a dict with the names of its entries"
                    raise UsageError(
                        f"0 and 1 in {name}", f"values up to {mask.max()}", cure
                    )
            elif name.endswith("mask") and name not in (
                *PADDING_MASKS,
                "attention_mask",
                "decoder_attention_mask",
            ):
                self._note(
                    f"{name} is given to the model; every position counts (attention_mask would leave some out)"
                )

    def __call__(self, **inputs: Any) -> Any:
        """Call the model and return its output; UsageError if the model does not accept the inputs."""
        model: Any = self.model
        calls: list[None] = []
        # Counts how often the user's function calls the model.
        handle = model.register_forward_pre_hook(
            lambda _model, _args: calls.append(None)
        )
        try:
            if self.forward is None:
                return model(**inputs)
            output = self.forward(
                model, move_batch(inputs["inputs"], find_device(model))
            )
            # If it was called twice, each layer was captured twice for one batch of units.
            if len(calls) != 1:
                cure = "measure the module that it calls, or give the inputs of each call as a batch"
                raise UsageError(
                    "forward= to call the model once", f"{len(calls)} calls", cure
                )
            return output
        # These are not about the inputs: ours say what they mean, and a full memory
        # leads to smaller batches.
        except (AnisoscopeError, torch.OutOfMemoryError, MemoryError):
            raise
        except OF_CALLS as error:
            given = ", ".join(
                f"{name} {describe_value(value)}" for name, value in inputs.items()
            )
            # Errors of torch run over many lines, of which the first hundreds of
            # letters say what matters.
            message = " ".join(str(error).split())[:300]
            cure = (
                "give what you would call it with, or forward=lambda model, inputs: …"
            )
            got = f"{given}: {type(error).__name__}: {message}"
            raise UsageError(
                f"inputs that {type(model).__name__} takes", got, cure
            ) from error
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
            raise UsageError(
                f"numbers in {name}",
                f"an array of {array.dtype}",
                "convert it: array.astype('float32')",
            )
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
    if (
        not _list_parameters(model, Parameter.VAR_KEYWORD)
        and not set(names) <= taken.keys()
    ):
        expected = (
            f"a model that takes {' and '.join(names)}, which the corpus gives it"
        )
        cure = "wrap it in a module that takes them, or measure it in Python with inputs of its own"
        raise UsageError(
            expected, f"{type(model).__name__}.forward({', '.join(taken)})", cure
        )
    return Caller(model, None)


def check_module(model: Any) -> None:
    """Raise UsageError unless `model` is a torch module that can be run."""
    if isinstance(model, type):
        raise UsageError(
            "a model", f"the class {model.__name__}", f"make one: {model.__name__}(…)"
        )
    check_kind(model)
    if not isinstance(model, nn.Module):
        expected = "the name of a model, a loaded one or a torch.nn.Module"
        raise UsageError(expected, type(model).__name__, _advise_on(model))
    if find_without_values(model) is not None:
        raise UsageError(
            "a model with weights",
            "weights on the device meta",
            "load it on cpu, cuda or mps",
        )


def _advise_on(thing: Any) -> str:
    """Return advice for an object that was passed instead of a model, for an error message."""
    if not isinstance(thing, list | tuple):
        return "load it first"
    if any(isinstance(part, nn.Module) for part in thing):
        return "give the model first, and its tokenizer as processor="
    return "vectors go as one array or tensor: np.asarray(…)"


def to_array(value: Any) -> np.ndarray[Any, Any]:
    """Turn anything into an array; lists of different lengths give an array of type object."""
    try:
        return np.asarray(value)
    # NumPy refuses lists of different lengths; None gives an array of objects, which
    # callers check for.
    except ValueError:
        return np.asarray(None)


def _is_floating(value: Any) -> bool:
    """Return whether a value is a floating-point tensor."""
    return isinstance(value, Tensor) and value.is_floating_point()


def _are_labels(second: Any, first: Any) -> bool:
    """Return whether the second of two arguments looks like labels of the first: one number, or one per sequence."""
    if not isinstance(second, Tensor) or not isinstance(first, Tensor):
        return False
    return second.shape in ((), first.shape[:1])


def _list_parameters(model: nn.Module, *kinds: Any) -> list[str]:
    """List the parameters of a model's `forward` that are of these kinds, in order."""
    parameters = inspect.signature(model.forward).parameters
    return [name for name, parameter in parameters.items() if parameter.kind in kinds]


def describe_value(value: Any) -> str:
    """Describe a value for a message: number type and shape of a tensor or array, else the name of its class."""
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return type(value).__name__
