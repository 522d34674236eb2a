"""Shapes in signatures, checked at every call while tests run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import beartype
import jaxtyping
from jaxtyping import AbstractArray, install_import_hook

SOURCES = Path(__file__).parents[1] / "src"


def check_shapes() -> None:
    """Checks arguments and results of every module that names shapes; not ports, whose configurations are
    dataclasses with an `__init__` of transformers' own, which the hook would replace, nor what refuses wrong arrays
    in words of its own."""
    modules = [path.relative_to(SOURCES) for path in SOURCES.rglob("*.py") if "from jaxtyping" in path.read_text()]
    jaxtyping.jaxtyped = _where_shapes_are_named(jaxtyping.jaxtyped)
    checked_here = [path for path in modules if not {"ports", "functional.py"} & set(path.parts)]
    install_import_hook([".".join(path.with_suffix("").parts) for path in checked_here], "shapes.checked")


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as beartype checks it, by the annotations that name shapes; mypy holds the others."""
    if isinstance(function, type):
        return function
    function.__annotations__ = {k: hint for k, hint in function.__annotations__.items() if _names_a_shape(hint)}
    return beartype.beartype(function)


def _where_shapes_are_named(jaxtyped: Callable[..., Any]) -> Callable[..., Any]:
    """The decorator of the import hook, which leaves functions as they are whose annotations name no shape."""

    def decorator(*, typechecker: Any) -> Callable[..., Any]:
        check = jaxtyped(typechecker=typechecker)

        def decorate(function: Any) -> Any:
            named = isinstance(function, type) or any(map(_names_a_shape, function.__annotations__.values()))
            return check(function) if named else function

        return decorate

    return decorator


def _names_a_shape(hint: object) -> bool:
    return (isinstance(hint, type) and issubclass(hint, AbstractArray)) or any(map(_names_a_shape, get_args(hint)))
