"""Capture attention that no interface shows (CANINE, CvT) with hooks on its projections."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from anisoscope.capture.masking import Call
from anisoscope.models.families import class_of, families


def list_off_interface() -> dict[str, tuple[str, tuple[str, str, str]]]:
    """Return the model classes whose attention does not go through transformers' attention interface, by class name.

    Each is mapped to (name of its attribute that holds the attention module, names of the three projections in that).
    """
    rows = [
        family.off_interface
        for family in families().values()
        if family.off_interface is not None
    ]
    return {caller: (name, projections) for caller, name, projections in rows}


def find_off_interface(
    model: nn.Module,
) -> dict[nn.Module, tuple[nn.Module, tuple[str, ...]]]:
    """Find the attention modules of a model that are not called through transformers' attention interface.

    Each is mapped to (the module that calls it once per layer, names of its projections).
    """
    off_interface: dict[nn.Module, tuple[nn.Module, tuple[str, ...]]] = {}
    classes = list_off_interface()
    for caller in model.modules():
        name, projections = classes.get(class_of(caller).__name__, ("", ()))
        attention = getattr(caller, name, None)
        if isinstance(attention, nn.Module):
            off_interface[attention] = caller, projections
    return off_interface


@contextmanager
def watch_projections(
    model: nn.Module, look: Callable[[Call], object]
) -> Iterator[None]:
    """Call `look(call)` once per layer for each attention module that does not use transformers' attention interface.

    This lasts for a `with` block. Queries, keys and values are read from the outputs of the module's projections.
    """
    with ExitStack() as ends:
        for attention, (around, projections) in find_off_interface(model).items():
            # Hooks in the order in which a layer runs: it begins, attention with its
            # projections is called, once or chunk by chunk, it ends.
            layer = _Layer(attention, look)
            ends.callback(around.register_forward_pre_hook(layer.begin).remove)
            ends.callback(
                attention.register_forward_pre_hook(
                    layer.keep_mask, with_kwargs=True
                ).remove
            )
            ends.callback(attention.register_forward_hook(layer.keep_output).remove)
            for kept, name in zip(layer.projected, projections, strict=True):
                hook = partial(layer.keep, kept)
                ends.callback(
                    attention.get_submodule(name).register_forward_hook(hook).remove
                )
            ends.callback(around.register_forward_hook(layer.end).remove)
        yield


class _Layer:
    """Collects the calls of one attention module while one layer runs: projected queries, keys and values, and
    masks.
    """

    def __init__(self, attention: nn.Module, look: Callable[[Call], object]) -> None:
        """Start without calls; `look` receives the attention call of each layer."""
        self.attention = attention
        self.look = look
        self.projected: tuple[list[Tensor], list[Tensor], list[Tensor]] = ([], [], [])
        self.masks: list[Tensor | None] = []
        self.outputs: list[Any] = []

    def begin(self, _module: nn.Module, _args: Any) -> None:
        """Forget the attention calls of the previous layer; runs before each layer."""
        for kept in (*self.projected, self.masks, self.outputs):
            kept.clear()

    def keep_mask(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keep the attention mask of a call, in the form of transformers' attention interface; None if it has none."""
        mask = args[2] if len(args) > 2 else None
        mask = kwargs.get("attention_mask", mask)
        if not isinstance(mask, Tensor):
            mask = None
        elif mask.dim() == 3:
            # CANINE's local masks [sequence, query, key] are 1 for what is seen; others are as at the interface.
            mask = mask.unsqueeze(1) > 0
        self.masks.append(mask)

    def keep_output(self, _module: nn.Module, _args: Any, output: Any) -> None:
        """Keep the output of attention [sequence, token, head · dim], alone or first in a tuple."""
        self.outputs.append(output[0] if isinstance(output, tuple) else output)

    def keep(
        self, kept: list[Tensor], _module: nn.Module, _args: Any, output: Tensor
    ) -> None:
        """Keep a projection's output [sequence, token, head · dim] as [sequence, head, token, dim].

        kept   the list to keep it in: of queries, keys or values
        """
        heads = int(
            getattr(self.attention, "num_attention_heads", 0)
            or getattr(self.attention, "num_heads", 1)
        )
        kept.append(output.view(*output.shape[:2], heads, -1).transpose(1, 2))

    def end(self, module: nn.Module, args: Any, _output: Any) -> None:
        """Pass all attention calls of the layer that has just run on to the capture, as one call."""
        query, key, value = [torch.cat(kept, 2) for kept in self.projected]
        # CvT scales by 1/√(width of all heads) and says so; CANINE's modules say
        # nothing and use 1/√d.
        scale = getattr(self.attention, "scale", query.shape[-1] ** -0.5)
        mask = self.masks[0] if len(self.masks) == 1 else self._mask_of_chunks(query)
        settings = {"scaling": float(scale), "is_causal": False}
        # A copy: the list is emptied below, before the call may be asked for its result.
        outputs = list(self.outputs)

        def result() -> Tensor:
            """Return the layer's attention output: the outputs of all its calls, joined."""
            return torch.cat(outputs, 1)

        self.look(
            Call(
                self.attention,
                query,
                key,
                value,
                mask,
                settings,
                by="projections",
                result=result,
            )
        )
        self.begin(module, args)

    def _mask_of_chunks(self, query: Tensor) -> Tensor:
        """Return the mask of a layer that ran in chunks, each of which sees only itself [sequence, 1, query, key].

        query   the joined queries of all chunks [sequence, head, query, dim]
        """
        whole = torch.zeros(
            len(query),
            1,
            query.shape[2],
            query.shape[2],
            dtype=torch.bool,
            device=query.device,
        )
        start = 0
        for chunk, mask in zip(self.projected[0], self.masks, strict=True):
            end = start + chunk.shape[2]
            whole[:, :, start:end, start:end] = True if mask is None else mask
            start = end
        return whole
