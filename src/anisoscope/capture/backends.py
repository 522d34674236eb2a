"""One attention function in the attention interface: whoever asks looks on at every call, or stands in for it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from anisoscope.capture import entry_points
from anisoscope.capture.masking import Call

Look = Callable[[Call], Tensor | None]
_LOOKING: WeakKeyDictionary[nn.Module, tuple[Look, ...]] = WeakKeyDictionary()
_PREFIX = "anisoscope_"


@contextmanager
def looking_on(model: nn.Module, look: Look) -> Iterator[None]:
    """Call `look` at every attention call of `model` through the interface. A tensor that it returns [sequence, query,
    head, dim] stands in for the output of the kept backend. Every sub-model keeps its own, with its mask function
    registered beside it: without that the masks would silently be lost.
    """
    configs = {id(m.config): m.config for m in model.modules() if isinstance(m, PreTrainedModel) and _asks(m)}
    kept = {key: config._attn_implementation for key, config in configs.items()}
    before = {module: _LOOKING.get(module, ()) for module in model.modules()}  # captures may be nested
    _LOOKING.update({module: (*looks, look) for module, looks in before.items()})
    try:
        for key, config in configs.items():
            config._attn_implementation_internal = _registered(kept[key] or "eager")
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = kept[key]
        _LOOKING.update(before)


def _asks(model: nn.Module) -> bool:
    """Whether modules of a model go through the interface; others may take another way where its name is not known."""
    files = {type(module).__module__ for module in model.modules()}
    return any(hasattr(sys.modules.get(file), "ALL_ATTENTION_FUNCTIONS") for file in files)


def _registered(backend: str) -> str:
    """The name of the looking-on form of `backend`, registered when first asked for."""
    name = backend if backend.startswith(_PREFIX) else _PREFIX + backend
    if name in ALL_ATTENTION_FUNCTIONS:
        return name

    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **settings: Any
    ) -> tuple[Tensor, Tensor | None]:
        call = Call(module, query, key, value, attention_mask, settings, backend=backend)
        with entry_points.resting():
            instead = [output for look in _LOOKING.get(module, ()) if (output := look(call)) is not None]
            if instead:
                return instead[-1], None
            forward = _eager_of(module) if backend == "eager" else ALL_ATTENTION_FUNCTIONS[backend]
            return forward(module, query, key, value, attention_mask, **settings)  # type: ignore[no-any-return]

    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[backend])
    return name


def _eager_of(module: nn.Module) -> Callable[..., Any]:
    """Each modelling file has its own eager function."""
    for cls in type(module).__mro__:
        eager = getattr(sys.modules.get(cls.__module__), "eager_attention_forward", None)
        if eager is not None:
            return eager  # type: ignore[no-any-return]
    raise LookupError(f"no eager_attention_forward beside {type(module).__name__}")
