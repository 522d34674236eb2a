"""Shapes in signatures, checked at every call while tests run."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import beartype
import jaxtyping
from beartype.roar import (
    BeartypeCallHintParamViolation,
    BeartypeCallHintReturnViolation,
)
from jaxtyping import AbstractArray, TypeCheckError, install_import_hook

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src", ROOT / "papers" / "src"


def check_shapes() -> None:
    """Checks arguments and results of every module that names shapes; not networks, whose configurations are
    dataclasses with an `__init__` of transformers' own, which the hook would replace, nor what refuses wrong arrays
    in words of its own."""
    files = [(place, path) for place in SOURCES for path in place.rglob("*.py")]
    modules = [
        path.relative_to(place)
        for place, path in files
        if "from jaxtyping" in path.read_text()
    ]
    checked_here = [
        path for path in modules if not {"networks", "functional.py"} & set(path.parts)
    ]
    jaxtyping.jaxtyped = _decorator(jaxtyping.jaxtyped)
    install_import_hook(
        [".".join(path.with_suffix("").parts) for path in checked_here],
        "shapes.checked",
    )


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as beartype checks it, by the annotations that name shapes; mypy holds the others."""
    if isinstance(function, type):
        return function
    function.__annotations__ = {
        k: hint for k, hint in function.__annotations__.items() if _names_a_shape(hint)
    }
    return beartype.beartype(function)


def _names_a_shape(hint: object) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(
        map(_names_a_shape, get_args(hint))
    )


def _decorator(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """What the hook writes before each function and class. Arguments are bound to their names only once a shape is
    wrong, to be told; a function that names no shape stays as it is.
    """

    def decorator(function: Any = None, *, typechecker: Callable[..., Any]) -> Any:
        if function is None:
            return functools.partial(decorator, typechecker=typechecker)
        if isinstance(function, type):
            return jaxtyped(function, typechecker=typechecker)
        annotations = function.__annotations__
        if not any(map(_names_a_shape, annotations.values())):
            return function
        quick = typechecker(function)
        function.__annotations__ = annotations

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            __tracebackhide__ = True
            try:
                with jaxtyped("context"):  # of what a letter stands for in this call
                    return quick(*args, **named)
            except BeartypeCallHintParamViolation:
                return jaxtyped(function, typechecker=typechecker)(
                    *args, **named
                )  # says which, and what came
            except BeartypeCallHintReturnViolation as error:
                raise TypeCheckError(str(error)) from error

        return call

    return decorator
