"""Commands whose parameters are settings: an option for every field that says how it is asked for (`options.Option`).

    @command(app, "merge", example="anisoscope merge runs/a runs/b -o runs/both")
    def merge(runs: Runs, place: Place, view: View) -> None: ...

What is typed is read, checked against the names there are, and made into the settings before the command begins.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from anisoscope.errors import UsageError, near_matches
from anisoscope.options import BuiltFrom, Option

EXAMPLE = "Example: "


@dataclass(frozen=True)
class Only:
    """The fields of some settings that a command asks for: `job: Annotated[Job, Only("device")]`."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Leaf:
    """A field, or a parameter of a command, that is asked for."""

    name: str
    kind: Any
    default: Any
    option: Option

    @property
    def flags(self) -> tuple[str, ...]:
        return self.option.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def listed(self) -> bool:
        """Whether names with commas are typed."""
        return get_origin(self.kind) is tuple and self.option.parse is None

    def parameter(self) -> inspect.Parameter:
        """The option in the form that typer wants."""
        option, typed, default = self.option, _typed(self.kind), self.default
        if self.listed:
            typed, default = str, option.every if option.every and default else ",".join(map(str, default))
        if option.parse is not None:
            typed, default = str, option.shown
        more: dict[str, Any] = {"help": option.help, "min": option.least, "max": option.most}
        if option.argument:
            spec = typer.Argument(**more)
        else:
            spec = typer.Option(*self.flags, **more, rich_help_panel=option.group)
        empty = inspect.Parameter.empty if default is MISSING else default
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(self.name, kind, default=empty, annotation=Annotated[typed, spec])

    def read(self, typed: Any) -> Any:
        """The value of what was typed. UsageError where it is none of the names there are."""
        value = typed
        if self.option.parse is not None:
            value = self.option.parse(typed)
        elif self.listed:
            value = self._names(typed)
        for name in value if isinstance(value, tuple) else (value,):
            if self.option.known and name is not None and name not in self.option.known:
                known = ", ".join(self.option.known)
                what = self.name if self.option.argument else self.flags[0]
                raise UsageError(f"{what} among {known}", repr(name), near_matches(name, self.option.known))
        if self.option.check is not None and value is not None:
            self.option.check(value)
        return value

    def _names(self, typed: str) -> tuple[str, ...]:
        if self.option.every and typed.strip() == self.option.every:
            return self.default  # type: ignore[no-any-return]
        names = tuple(name.strip() for name in typed.split(",") if name.strip())
        if not names and (typed or self.default):
            cure = f"name some of {', '.join(self.option.known)}" if self.option.known else "leave it out"
            raise UsageError(f"names for {self.flags[0]}", repr(typed), cure)
        return names


def _typed(kind: Any) -> Any:
    """The type that typer reads: of the alternatives of a literal, text."""
    parts = [str if get_origin(part) is Literal else part for part in _alternatives(kind)]
    return parts[0] | None if len(parts) > 1 and NoneType in parts else parts[0]


def _alternatives(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if isinstance(kind, UnionType) or str(get_origin(kind)).endswith("Union") else (kind,)


def leaves(settings: type, only: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The fields of a dataclass that are asked for, and those of the settings in it."""
    for field in fields(settings):
        if only and field.name not in only:
            continue
        kind, option = _declaration(field.type)
        if built := _built(field.type):
            yield from leaves(built)
        elif isinstance(kind, type) and is_dataclass(kind):
            yield from leaves(kind)
        elif option is not None:
            yield Leaf(field.name, kind, field.default, option)


def _declaration(annotation: Any) -> tuple[Any, Option | None]:
    if get_origin(annotation) is not Annotated:
        return annotation, None
    kind, *extras = get_args(annotation)
    return kind, next((one for one in extras if isinstance(one, Option)), None)


def _built(annotation: Any) -> type | None:
    extras = get_args(annotation) if get_origin(annotation) is Annotated else ()
    return next((one.settings for one in extras if isinstance(one, BuiltFrom)), None)


def made(settings: type, typed: dict[str, Any], only: tuple[str, ...] = ()) -> Any:
    """The settings, from what was typed for their fields."""
    values = {}
    for field in fields(settings):
        kind, option = _declaration(field.type)
        if only and field.name not in only:
            continue
        if built := _built(field.type):
            values[field.name] = made(built, typed).build()
        elif isinstance(kind, type) and is_dataclass(kind):
            values[field.name] = made(kind, typed)
        elif option is not None:
            values[field.name] = Leaf(field.name, kind, field.default, option).read(typed[field.name])
    return settings(**values)


def declared(function: Callable[..., None]) -> Callable[..., None]:
    """`function` with an option for each field of its parameters that are settings, as typer reads it."""
    asked: dict[str, tuple[Any, tuple[str, ...], list[Leaf]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, option = _declaration(parameter.annotation)
        only = next((one.names for one in get_args(parameter.annotation) if isinstance(one, Only)), ())
        if option is not None:
            default = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
            asked[name] = kind, (), [Leaf(name, kind, default, option)]
        else:
            asked[name] = kind, only, list(leaves(kind, only))

    def call(**typed: Any) -> None:
        given = {}
        for name, (kind, only, found) in asked.items():
            settings = isinstance(kind, type) and is_dataclass(kind)
            given[name] = made(kind, typed, only) if settings else found[0].read(typed[name])
        function(**given)

    parameters = [leaf.parameter() for _, _, found in asked.values() for leaf in found]
    twice = {leaf.name for leaf in parameters if [other.name for other in parameters].count(leaf.name) > 1}
    if twice:
        raise TypeError(f"two settings of {function.__name__} have the fields {', '.join(sorted(twice))}")
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


class Grouped(TyperCommand):
    """A command whose `--help` lists options under headings, and its example as it is typed."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                heading = "Arguments" if parameter.param_type_name == "argument" else None
                heading = heading or getattr(parameter, "rich_help_panel", None) or "Help"
                sections.setdefault(heading, []).append(record)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows)

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(f"{self.epilog}\n")


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function, whose parameters are settings, a command of `app`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name, cls=Grouped, epilog=f"{EXAMPLE}{example}")(declared(function))
        return function

    return register
