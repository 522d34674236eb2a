"""Read or replace attention calls on transformers' attention interface.

The model keeps the name of the backend that it was loaded with. Models read that name: some build their own mask for
`sdpa` and `eager` only, and under another name they would compute something else.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import wraps
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from anisoscope.capture import entry_points
from anisoscope.capture.masking import Call
from anisoscope.models.families import class_of_transformers

Look = Callable[[Call], Tensor | None]
Attention = Callable[..., Any]

EAGER = "eager_attention_forward"
"""How modelling files end the name of their own attention function, which runs for the implementation `eager`."""
Within = Callable[[], AbstractContextManager[None]]
_LOOKS: WeakKeyDictionary[nn.Module, tuple[tuple[Look, Within], ...]] = (
    WeakKeyDictionary()
)
"""Who looks at the calls of each module, and what its own function runs within; captures may be nested."""
_WATCHED: dict[tuple[str, Attention], Attention] = {}
"""Watched forms by backend and function, so that the same function is always given out as the same."""
_FORMS: set[Attention] = set()
"""All watched forms."""
_LOCK = threading.RLock()


@contextmanager
def intercept_attention(
    model: nn.Module, look: Look, within: Within = nullcontext
) -> Iterator[None]:
    """Call `look(call)` for every attention call that `model` makes through transformers' attention interface.

    This lasts for a `with` block. If `look` returns a tensor [sequence, query, head, dim], it replaces the output of
    the backend. Otherwise the backend runs, inside the context that `within` opens.
    """
    entry = (look, within)
    # Noted now: the same modules must be forgotten at the end, even if the model has
    # changed.
    modules = list(model.modules())
    interface = class_of_transformers("modeling_utils", "AttentionInterface")
    with _LOCK:
        _Interface.open(interface)
        restore = _wrap_eager_functions(model)
    for module in modules:
        _LOOKS[module] = (*_LOOKS.get(module, ()), entry)
    try:
        yield
    finally:
        for module in modules:
            _LOOKS[module] = tuple(
                other for other in _LOOKS.get(module, ()) if other is not entry
            )
        with _LOCK:
            restore()
            _Interface.close()


class _Interface:
    """Patches transformers' lookup of attention functions, so that it returns watched ones while any capture is open.

    Nothing is patched if transformers was never imported: then no model uses it.
    """

    captures = 0
    interface: Any = None
    originals: tuple[Any, Any] = (None, None)

    @classmethod
    def open(cls, interface: Any) -> None:
        """Count one more open capture, and patch transformers' lookup of attention functions if it is the first.

        interface   the class of the lookup table; None if this transformers has none
        """
        cls.captures += 1
        if interface is None or cls.interface is not None:
            return
        cls.interface = interface
        get_item: Callable[[Any, str], Attention] = interface.__getitem__
        get_interface: Any = getattr(interface, "get_interface", None)
        cls.originals = (interface.__dict__.get("__getitem__"), get_interface)

        def watched_item(self: Any, name: str) -> Attention:
            """Return the attention function with this name, wrapped so that captures see its calls."""
            return wrap_backend(name, get_item(self, name))

        setattr(interface, "__getitem__", watched_item)  # noqa: B010
        # In older releases, modelling files take their own function for `eager`, which
        # `_wrap_eager_functions` watches.
        if get_interface is None:
            return

        @wraps(get_interface)
        def watched_interface(self: Any, name: str, default: Attention) -> Attention:
            """Return the attention function with this name or the default, wrapped so that captures see its calls."""
            return wrap_backend(name or "eager", get_interface(self, name, default))

        setattr(interface, "get_interface", watched_interface)  # noqa: B010

    @classmethod
    def close(cls) -> None:
        """Count one open capture less; if it was the last, restore transformers' own lookup of attention functions."""
        cls.captures -= 1
        if cls.captures or cls.interface is None:
            return
        interface, cls.interface = cls.interface, None
        own_item, get_interface = cls.originals
        # What was inherited is inherited again: a copy of it would hide later changes.
        if own_item is None:
            del interface.__getitem__
        else:
            setattr(interface, "__getitem__", own_item)  # noqa: B010
        if get_interface is not None:
            setattr(interface, "get_interface", get_interface)  # noqa: B010
        # They hold functions of models, which may be deleted once nothing watches them.
        _WATCHED.clear()
        _FORMS.clear()


def _wrap_eager_functions(model: nn.Module) -> Callable[[], None]:
    """Replace the eager attention functions in the model's source modules, which older code calls by name.

    Returns a function that puts the originals back.
    """
    replaced: list[tuple[ModuleType, str, Attention]] = []
    for source in _find_sources(model):
        for name, function in list(vars(source).items()):
            if not name.endswith(EAGER):
                continue
            watched = wrap_backend("eager", function)
            if watched is not function:
                replaced.append((source, name, function))
                setattr(source, name, watched)

    def restore() -> None:
        """Put the original functions back."""
        for source, name, function in replaced:
            setattr(source, name, function)

    return restore


def _find_sources(model: nn.Module) -> list[ModuleType]:
    """Return the Python modules (source files) that define the classes of a model's parts, and their base classes."""
    files: set[str] = set()
    for module in model.modules():
        files.update(cls.__module__ for cls in type(module).__mro__)
    return [sys.modules[file] for file in files if file in sys.modules]


def wrap_backend(backend: str, function: Attention) -> Attention:
    """Wrap an attention function so that open captures see each of its calls.

    Calls of modules that no capture watches go to the function directly. A function that is wrapped already, or
    cannot be called, is returned unchanged.

    backend    name of the function in transformers (`eager`, `sdpa`, …)
    """
    if function in _FORMS or not callable(function):
        return function
    if (backend, function) in _WATCHED:
        return _WATCHED[backend, function]

    @wraps(function)
    def attention(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any = None,
        *rest: Any,
        **settings: Any,
    ) -> Any:
        """Show the call to every capture that watches this module, then return the output of attention.

        It is the backend's own, or (output, None) with the output that a capture gives instead.
        """
        looks = _LOOKS.get(module, ())
        # A call within a call that is captured already is part of it.
        if not looks or entry_points.is_suspended():
            return function(
                module, query, key, value, attention_mask, *rest, **settings
            )
        # A list as a box for one value: None may be a valid output.
        made: list[Any] = []

        def result() -> Any:
            """Return the backend's own output; it is computed at the first call, and kept."""
            if not made:
                with ExitStack() as contexts:
                    for _, within in looks:
                        contexts.enter_context(within())
                    made.append(
                        function(
                            module, query, key, value, attention_mask, *rest, **settings
                        )
                    )
            return made[0]

        call = Call(
            module,
            query,
            key,
            value,
            attention_mask,
            settings,
            backend=backend,
            result=result,
        )
        # The backend calls torch's own product, which `entry_points` watches too: it is
        # the same attention.
        with entry_points.suspend():
            changed = _show_call(call, looks)
            if changed is not None:
                return changed, None
            return result()

    _WATCHED[backend, function] = attention
    _FORMS.add(attention)
    return attention


def _show_call(call: Call, looks: tuple[tuple[Look, Within], ...]) -> Tensor | None:
    """Show a call to all captures; return the last output that one of them gives to replace the model's, or None."""
    changed = None
    for look, _ in looks:
        output = look(call)
        if output is not None:
            changed = output
    return changed
