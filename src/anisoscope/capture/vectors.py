"""Read the vectors that a block takes and returns, in whatever form."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.axes import Flatten
from anisoscope.errors import MeasureError, ModelError
from anisoscope.models.devices import find_without_values
from anisoscope.models.families import class_of
from anisoscope.models.kinds import check_kind

NAMED = ("last_hidden_state", "hidden_states")
"""Where a mapping keeps the vectors that are passed on."""

JOINT = ("JointTransformerBlock", "FluxTransformerBlock", "FluxSingleTransformerBlock")
"""Blocks of diffusers (SD3, Flux) that take and return the vectors of a text and those of an image."""
TEXT = "text"
"""The stack of these vectors of a text."""


@dataclass
class RunningStack:
    """The state of one stack (encoder, decoder) during a forward call."""

    layer: int = 0
    block: nn.Module | None = None
    sequences: int = 0
    positions: int = 0
    looks: int = 0
    loose: bool = False
    trouble: str = ""
    kernels: list[str] = field(default_factory=list)
    ran: set[nn.Module] = field(default_factory=set)
    last: Tensor | None = None
    rectified: tuple[Tensor, Tensor | None] | None = None


@contextmanager
def wrap_forward(
    block: nn.Module, enter: Callable[..., None], leave: Callable[..., None]
) -> Iterator[None]:
    """Call `enter` before and `leave` after each call of a block, for a `with` block.

    They are called like hooks, but the block's `forward` is replaced instead: hooks would turn off torch's fast path.
    """
    # Another library may have put a `forward` on this very block: it is put back then.
    own = block.__dict__.get("forward")
    forward = block.forward

    def watched_forward(*args: Any, **kwargs: Any) -> Any:
        """Run the block's own `forward` between `enter` and `leave`."""
        enter(block, args, kwargs)
        output = forward(*args, **kwargs)
        leave(block, args, output)
        return output

    block.forward = watched_forward
    try:
        yield
    finally:
        del block.forward
        block.__dict__ |= {} if own is None else {"forward": own}


def find_input(
    block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tensor:
    """Return the first float tensor among a block's arguments: by position, as `hidden_states`, or by any name.

    MeasureError if there is none.

    args, kwargs   the arguments of the call
    """
    for x in (*args, kwargs.get("hidden_states"), *kwargs.values()):
        if isinstance(x, Tensor) and x.is_floating_point():
            return x
    expected = f"{type(block).__name__} to be called with a tensor of vectors"
    raise MeasureError(
        expected,
        _describe_type((*args, *kwargs.values())),
        "name other blocks (--blocks)",
    )


def find_output(block: nn.Module, output: Any) -> Tensor:
    """Return the vectors in a block's output: a tensor, the first of a tuple, or the hidden states of a mapping.

    MeasureError if there are none.
    """
    x = output
    # Of a text and an image, in this order.
    if is_joint(block) and isinstance(output, tuple) and len(output) == 2:
        x = output[1]
    while not isinstance(x, Tensor):
        part = _open_container(x)
        if part is None:
            break
        x = part
    if isinstance(x, Tensor) and x.is_floating_point():
        return x
    expected = f"{type(block).__name__} to return a tensor of vectors, or a tuple that begins with one"
    raise MeasureError(expected, _describe_type(output), "name other blocks (--blocks)")


def _open_container(x: Any) -> Any:
    """Return the first part of a list or tuple, or the hidden states of a mapping; None if there is neither."""
    if isinstance(x, list | tuple) and x:
        return x[0]
    if isinstance(x, Mapping):
        for name in NAMED:
            if name in x:
                return x[name]
    return None


def is_joint(block: nn.Module) -> bool:
    """Return whether a block takes and returns both the vectors of a text and those of an image (SD3, Flux)."""
    return class_of(block).__name__ in JOINT


def count_texts(blocks: Iterable[nn.Module]) -> int:
    """Return how many of these blocks return the vectors of a text in addition to those of an image."""
    count = 0
    for block in blocks:
        # The last block of SD3 drops the text.
        drops_text = getattr(block, "context_pre_only", False)
        if is_joint(block) and not drops_text:
            count += 1
    return count


def find_text(kwargs: Mapping[str, Any], output: Any = None) -> Tensor | None:
    """Return the text's vectors [sequence, token, dim] of a block that processes a text and an image (`is_joint`).

    kwargs   the arguments of the call, by name, in which they are looked for if there is no output
    output   the output of the block, in which they are looked for if it is given

    None if there are none: the last block of SD3 drops them.
    """
    x = kwargs.get("encoder_hidden_states") if output is None else output[0]
    return x if isinstance(x, Tensor) else None


def has_channels_last(block: nn.Module, x: Tensor) -> bool:
    """Return whether a feature map `x` of this block is [sequence, height, width, channel] (SAM, Swin).

    This is seen from the sizes of the block's weights.
    """
    norms: set[int] = set()
    convolutions: set[int] = set()
    for module in block.modules():
        weight = getattr(module, "weight", None)
        if "Norm" in type(module).__name__ and isinstance(weight, Tensor):
            norms.add(len(weight))
        if isinstance(module, nn.Conv2d):
            convolutions.add(module.out_channels)
    fits_first_axis = bool(convolutions) and x.shape[1] in norms | convolutions
    return x.shape[3] in norms and not fits_first_axis


def are_streams(model: nn.Module, x: Tensor, real: Tensor | None) -> bool:
    """Return whether a tensor `x` with four axes holds several vectors per token, rather than a feature map.

    real   the mask of real tokens [sequence, token]; None: not known

    Several residual streams occur in models with hyper-connections (DeepSeek-V4) and AltUp (Gemma 3n).
    """
    if real is not None:
        return real.shape in (x.shape[:2], x.shape[1:3])
    reads_ids = getattr(model, "main_input_name", "") == "input_ids"
    return reads_ids and not any(isinstance(m, nn.Conv2d) for m in model.modules())


def count_positions(
    block: nn.Module, x: Tensor, *, tokens_first: bool
) -> tuple[int, int]:
    """Return (number of sequences, number of positions) of a block's input.

    block          tells for images whether channels come last
    tokens_first   the axes are [token, sequence, dim] instead of [sequence, token, dim]
    """
    if x.is_nested:
        return x.size(0), 0
    if x.dim() == 4:
        channel_axis = 3 if has_channels_last(block, x) else 1
        return len(x), x.shape[1:].numel() // x.shape[channel_axis]
    sequences = len(x)
    if tokens_first and x.dim() == 3:
        sequences = x.shape[1]
    return sequences, x.shape[:-1].numel() // max(1, sequences)


def to_vectors(x: Tensor, flatten: Flatten, *, tokens_first: bool = False) -> Tensor:
    """Reshape [token, sequence, dim], [sequence, dim], or maps to vectors [sequence, token, dim].

    Maps give one vector per position, or per image with `flatten="image"`. MeasureError for other shapes.
    """
    if x.dim() == 4:
        if flatten == "image":
            return x.flatten(1).unsqueeze(1)
        return x.flatten(2).transpose(1, 2)
    if x.dim() == 2:
        return x.unsqueeze(1)
    if x.dim() != 3:
        expected = "vectors [sequence, token, dim], [sequence, dim] or maps [sequence, channel, height, width]"
        raise MeasureError(
            expected,
            f"shape {tuple(x.shape)}",
            "name blocks that pass on vectors of such a shape (--blocks)",
        )
    if tokens_first:
        return x.transpose(0, 1)
    return x


def pad_nested(x: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
    """Pad a nested tensor with zeros (`nn.TransformerEncoder` makes one of a padded batch)."""
    return torch.nested.to_padded_tensor(x, 0.0, shape)  # type: ignore[no-any-return]


def is_same_memory(x: Tensor | None, y: Tensor) -> bool:
    """Return whether `y` is `x`, a view of the same memory, or `x` (a nested tensor) with padding.

    If they are split over processes, the parts in this process are compared.
    """
    if x is None or x is y:
        return x is y
    x, y = (part.to_local() if hasattr(part, "to_local") else part for part in (x, y))
    if y.is_nested and not x.is_nested:
        return False
    if x.is_nested:
        return (
            not y.is_nested
            and y.dim() == 3
            and torch.equal(pad_nested(x, tuple(y.shape)), y)
        )
    return (x.shape, x.stride(), x.data_ptr()) == (y.shape, y.stride(), y.data_ptr())


def check_values(model: nn.Module) -> None:
    """Raise ModelError if weights are on the meta device, which has shapes only; offloaded weights are accepted.

    UsageError if the model is of a kind that cannot be hooked.
    """
    check_kind(model)
    name = find_without_values(model)
    if name is not None:
        got = (
            f"{name or type(model).__name__} on the meta device, which has shapes only"
        )
        raise ModelError(
            "a model whose weights have values", got, "load it on cpu, cuda or mps"
        )


def _describe_type(x: Any) -> str:
    """Return the type of an object in words, for an error message."""
    if isinstance(x, list | tuple):
        return f"({', '.join(_describe_type(part) for part in x)})"
    if isinstance(x, Mapping):
        return f"a mapping of {', '.join(map(str, x))}"
    if isinstance(x, Tensor):
        return f"a tensor of {x.dtype}"
    return type(x).__name__
