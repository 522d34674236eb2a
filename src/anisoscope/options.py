"""How a field of settings is asked for, on the command line and in Python: said once, beside the field.

limit: Annotated[int | None, Option("first N units only", INPUT, least=1)] = None
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from anisoscope.errors import UsageError, near_matches

INPUT, WHAT, OUTPUT, MACHINE = "Input", "What to measure", "Output", "Machine"
TRAINING, MODEL = "Training", "Model"
"""Headings under which `--help` lists options."""

DTYPES = ("float32", "float64", "bfloat16", "float16")
DEVICES = ("cpu", "cuda", "mps", "xpu", "hpu", "npu", "mtia", "xla")
"""Kinds of devices; a number after a colon names one of several (`cuda:1`)."""
BITS = 63
"""Whole numbers are kept in 64 bits, one of them the sign."""
UNREADABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and what a name that is not in UTF-8 becomes: neither a manifest nor a page can hold them."""
LONGEST = 60
"""Characters of what was given that an error shows."""


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


@dataclass(frozen=True)
class BuiltFrom:
    """A field that is not typed itself but comes from `settings().build()`, whose fields are."""

    settings: type


@dataclass(frozen=True)
class AskedField:
    """A field of settings, or a parameter of a command: its type and default, and how it is asked for.

    option   None where the command line does not ask; `built`: the settings it is built from; `only`: the fields of
             settings that are asked for (`job: Annotated[Job, ("device",)]`)
    """

    name: str
    kind: Any
    default: Any = MISSING
    option: Option | None = None
    built: type | None = None
    only: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, annotation: Any, default: Any) -> "AskedField":
        kind, *extras = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
        found: dict[type, Any] = {type(extra): extra for extra in extras}
        built = found.get(BuiltFrom)
        return cls(name, kind, default, found.get(Option), built and built.settings, found.get(tuple, ()))

    @property
    def settings(self) -> type | None:
        """The settings whose fields are asked for in place of this one."""
        return self.built or (self.kind if isinstance(self.kind, type) and is_dataclass(self.kind) else None)

    @property
    def flag(self) -> str:
        """As typed, or the name of an argument."""
        if self.option is None or self.option.argument:
            return self.name
        return self.option.flags[0].partition("/")[0] if self.option.flags else f"--{self.name.replace('_', '-')}"

    @property
    def keyword(self) -> str:
        """The name in Python."""
        return self.flag.removeprefix("--").replace("-", "_")

    @property
    def plain(self) -> Any:
        """The type, but for None."""
        parts = get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)
        found = next(part for part in parts if part is not NoneType)
        return str if get_origin(found) is Literal else found

    @property
    def listed(self) -> bool:
        """Whether it holds several values, typed with commas."""
        return get_origin(self.plain) is tuple

    def read(self, value: Any, label: str) -> Any:
        """The value of what was given: of a text what the type makes of it. UsageError, by the name `label`, for what
        is not of the type, in the range, or among the names there are.
        """
        option = self.option or Option("", "")
        if isinstance(value, str):
            value = self._from_text(value, option, label)
        elif self.listed and isinstance(value, Iterable):
            value = tuple(value)
        self.check(value, label)
        if option.check is not None and value is not None:
            option.check(value)
        return value

    def _from_text(self, text: str, option: Option, label: str) -> Any:
        if option.parse is not None:
            return option.parse(text)
        if self.listed:
            if option.every and text.strip() == option.every:
                return self.default
            names = tuple(name.strip() for name in text.split(",") if name.strip())
            if not names and (text or self.default):
                cure = f"name some of {', '.join(option.known)}" if option.known else "leave it out"
                raise UsageError(f"names for {label}", repr(text), cure)
            return names
        if self.plain in (int, float):
            try:
                return self.plain(text)
            except ValueError:
                what = "a whole number" if self.plain is int else "a number"
                cure = f"give one of {range_of(option)}, in digits" if range_of(option) else "give one in digits"
                raise UsageError(f"{what} for {label}", shortened(text), cure) from None
        return text

    def check(self, value: Any, label: str) -> None:
        """UsageError, by the name `label`, for a value that is not of the type, in the range, or among the names."""
        if not _fits(value, self.kind):
            kind = str(self.kind).replace("typing.", "") if get_origin(self.kind) else self.kind.__name__
            raise UsageError(f"{label} of type {kind}", f"{shortened(value)}, {type(value).__name__}", f"mend {label}")
        option = self.option or Option("", "")
        for part in value if isinstance(value, tuple | list) else () if value is None else (value,):
            if option.known and part not in option.known:
                cure = near_matches(str(part), option.known)
                raise UsageError(f"{label} among {', '.join(option.known)}", shortened(part), cure)
            if isinstance(part, int) or (isinstance(part, float) and self.option is not None):
                _check_range(part, option, label)
            elif isinstance(part, str | Path) and UNREADABLE.search(str(part)):
                got = shortened(part)
                raise UsageError(f"{label} without control characters, in UTF-8", got, "mend or rename it")


def _check_range(value: float, option: Option, label: str) -> None:
    widest = (1 << BITS) - 1 if isinstance(value, int) else math.inf
    least = -widest if option.least is None else option.least
    most = widest if option.most is None else option.most
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"a finite {label}", str(value), f"change {label}")
    if value < least:
        raise UsageError(f"{label} of at least {least:,}", shortened(value), f"raise {label}")
    if value > most:
        raise UsageError(f"{label} of at most {most:,}", shortened(value), f"lower {label}")


def range_of(option: Option) -> str:
    """The range of a number in words, for help and cures."""
    if option.most is not None:
        return f"{option.least or 0:,} to {option.most:,}"
    return "" if option.least is None else f"at least {option.least:,}"


def shortened(value: Any) -> str:
    """What was given, as an error shows it."""
    if isinstance(value, int) and value.bit_length() > 4 * LONGEST:
        return f"a number of {value.bit_length():,} bits"
    text = ascii(str(value)) if isinstance(value, str | Path) else repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"


@cache
def asked(settings: Any) -> tuple[AskedField, ...]:
    """The fields of a dataclass."""
    hints = get_type_hints(settings, include_extras=True)
    return tuple(AskedField.of(field.name, hints[field.name], field.default) for field in fields(settings))


def leaves(settings: Any, only: Sequence[str] = ()) -> Iterator[AskedField]:
    """The fields of a dataclass and of the settings in it; `only`: of the dataclass' own the ones of these names."""
    for field in asked(settings):
        if not only or field.name in only:
            yield from leaves(field.settings) if field.settings else (field,)


def made(settings: Any, values: Mapping[str, Any], only: Sequence[str] = ()) -> Any:
    """The settings, from values of their fields and of those of settings in them; where there are none, defaults."""
    chosen = {}
    for field in asked(settings):
        if only and field.name not in only:
            continue
        if field.settings:
            inner = made(field.settings, values)
            chosen[field.name] = inner.build() if field.built else inner
        elif field.name in values:
            chosen[field.name] = values[field.name]
    return settings(**chosen)


def check_fields(given: Any) -> None:
    """UsageError where a field of a dataclass does not fit its type or `Option`. Lists become tuples."""
    kind: Any = type(given)
    for field in asked(kind):
        value = getattr(given, field.name)
        if isinstance(value, list):
            value = tuple(value)
            object.__setattr__(given, field.name, value)
        field.check(value, field.name)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, to the depth of a tuple's parts."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str)  # the names there are stand in the option
    if origin in (tuple, list):
        of_parts = [parts[0]] * len(value) if origin is list or parts[-1] is ... else parts
        return isinstance(value, origin) and len(value) == len(of_parts) and all(map(_fits, value, of_parts))
    if origin is not None:
        return isinstance(value, Mapping)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, kind) and (kind is not int or not isinstance(value, bool))


def check_device(name: str) -> None:
    """UsageError unless `name` is a kind of device, with a number or without; whether it is there is seen later."""
    if name == "auto":
        return
    kind, colon, number = name.partition(":")
    if kind == "meta":  # a device of torch that is near "mtia" by its letters only
        got = f"{name!r}, which knows shapes only"
        raise UsageError("a device that computes", got, "use --device cpu, cuda or mps")
    if kind not in DEVICES or (colon and not number.isdigit()):
        expected = f"--device {', '.join(DEVICES)}, or one of several as cuda:1"
        raise UsageError(expected, repr(name), "use cuda" if kind == "gpu" else near_matches(kind, DEVICES))
