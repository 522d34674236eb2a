"""How a field of settings is asked for on the command line: said once, beside the field.

limit: Annotated[int | None, Option("first N units only", INPUT, least=1)] = None
"""

import types
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from anisoscope.errors import UsageError, near_matches

INPUT, WHAT, OUTPUT, MACHINE = "Input", "What to measure", "Output", "Machine"
TRAINING, MODEL = "Training", "Model"
"""Headings under which `--help` lists options."""

DTYPES = ("float32", "float64", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
"""Kinds of devices; a number after a colon names one of several (`cuda:1`)."""


@dataclass(frozen=True)
class Option:
    """What `--help` says of a field, and what may be given.

    help, group   the text and the heading it stands under
    flags         as typed; by default `--name-of-the-field`. `argument`: given without a flag
    least, most   the range of a number
    known         the names there are: of the field, or of each of its parts where it is a tuple
    every         the name that stands for the field's default (`all`)
    parse, shown  from what is typed to the value, and the default as it is typed, where the type does not say how
    check         called with the value, before anything heavy is imported; raises where it cannot be right
    """

    help: str
    group: str
    flags: tuple[str, ...] = ()
    argument: bool = False
    least: float | None = None
    most: float | None = None
    known: tuple[str, ...] = ()
    every: str = ""
    parse: Callable[[str], Any] | None = None
    shown: str = ""
    check: Callable[[Any], None] | None = None


BITS = 63
"""Whole numbers are kept in 64 bits, one of them the sign."""


def check_fields(given: object) -> None:
    """UsageError where a field of the dataclass `given` is not of its type, or outside the range or the names that its
    `Option` tells. Lists become tuples.
    """
    for name, (kind, option) in _declared(cast("Hashable", type(given))).items():
        value = getattr(given, name)
        if isinstance(value, list):
            value = tuple(value)
            object.__setattr__(given, name, value)
        if not _fits(value, kind):
            words = str(kind).replace("typing.", "") if get_origin(kind) else kind.__name__
            raise UsageError(f"{name} of type {words}", f"{value!r}, {type(value).__name__}", f"mend {name}")
        parts = value if isinstance(value, tuple) else () if value is None else (value,)
        for part in parts:
            if option.known and part not in option.known:
                known = ", ".join(option.known)
                raise UsageError(f"{name} among {known}", repr(part), near_matches(str(part), option.known))
            if isinstance(part, int):
                _check_range(name, part, option)


def _check_range(name: str, value: int, option: Option) -> None:
    least = -(1 << BITS) if option.least is None else option.least
    most = (1 << BITS) - 1 if option.most is None else option.most
    if value < least:
        raise UsageError(f"{name} of at least {least:,}", str(value), f"raise {name}")
    if value > most:
        raise UsageError(f"{name} of at most {most:,}", str(value), f"lower {name}")


@cache
def _declared(kind: Any) -> dict[str, tuple[Any, Option]]:
    """{field: (type, option)}; of a field that is not asked for on the command line an empty option."""
    found = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        options = [more for more in get_args(hint)[1:] if isinstance(more, Option)]
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        found[name] = plain, *(options or [Option("", "")])
    return found


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, to the depth of a tuple's parts."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str)  # the names there are stand in the option
    if origin is tuple:
        of_parts = [parts[0]] * len(value) if isinstance(value, tuple) and parts[-1] is ... else parts
        return isinstance(value, tuple) and len(value) == len(of_parts) and all(map(_fits, value, of_parts))
    if origin is not None:
        return isinstance(value, Mapping)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


@dataclass(frozen=True)
class BuiltFrom:
    """A field that is not typed itself but comes from `settings().build()`, whose fields are."""

    settings: type


def check_device(name: str) -> None:
    """UsageError unless `name` is a kind of device, with a number or without; whether it is there is seen later."""
    kind, colon, number = name.partition(":")
    if kind == "meta":  # a device of torch that is near "mtia" by its letters only
        got, cure = f"{name!r}, which knows shapes only", "use --device cpu, cuda or mps"
        raise UsageError("a device that computes", got, cure)
    if kind not in DEVICES or (colon and not number.isdigit()):
        raise UsageError(
            f"--device {', '.join(DEVICES)}, or one of several as cuda:1", repr(name), near_matches(kind, DEVICES)
        )
