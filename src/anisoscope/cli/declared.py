"""Commands whose parameters are settings: an option for every field that says how it is asked for (`options.Option`).

    @command(app, "merge", example="anisoscope merge runs/a runs/b -o runs/both")
    def merge(runs: Runs, place: Place, view: View) -> None: ...

What is typed is read, checked against the names there are, and made into the settings before the command begins.
"""

import inspect
import signal
from collections.abc import Callable
from dataclasses import MISSING
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from anisoscope.cli.command import Command, Group
from anisoscope.errors import Interrupted
from anisoscope.options import INPUT, MACHINE, MODEL, OUTPUT, TRAINING, WHAT, AskedField, leaves, made, range_of

HEADINGS = ("Arguments", INPUT, WHAT, MODEL, TRAINING, MACHINE, OUTPUT, "Help")
"""The headings of `--help`, in order."""
METAVARS: dict[Any, str] = {int: "<int>", float: "<float>", list[Path]: "<path>"}


def _parameter(field: AskedField) -> inspect.Parameter:
    """An option in the form that typer wants. Numbers are typed as text: what is none is told by `AskedField.read`."""
    option, kind, default = field.option, field.plain, field.default
    assert option is not None
    typed = kind if kind in (bool, Path) or kind == list[Path] else str
    if option.parse is not None:
        default = option.shown
    elif field.listed:
        default = option.every if option.every and default else ",".join(map(str, default))
    elif kind in (int, float) and default not in (None, MISSING):
        default = str(default)
    ranged = f"{option.help}; {range_of(option)}" if range_of(option) else option.help
    more: dict[str, Any] = {"help": ranged, "metavar": METAVARS.get(kind)}
    if option.argument:
        spec = typer.Argument(**more)
    else:
        spec = typer.Option(*(option.flags or (field.flag,)), **more, rich_help_panel=option.group)
    empty = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=Annotated[typed, spec]
    )


def declared(function: Callable[..., int | None]) -> Callable[..., None]:
    """`function` with an option for each field of its parameters that are settings, as typer reads it."""
    given: dict[str, tuple[AskedField, list[AskedField]]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        default = MISSING if parameter.default is inspect.Parameter.empty else parameter.default
        own = AskedField.of(name, parameter.annotation, default)
        found = [own] if own.settings is None else list(leaves(own.settings, own.only))
        given[name] = own, [field for field in found if field.option is not None]

    def call(**typed: Any) -> None:
        values = {f.name: f.read(typed[f.name], f.flag) for _, found in given.values() for f in found}
        owned = {name: own for name, (own, _) in given.items()}
        read = {n: made(own.settings, values, own.only) if own.settings else values[n] for n, own in owned.items()}
        try:
            code = function(**read)
        except KeyboardInterrupt as stop:  # the parser would make an exit code of it
            interrupted = Interrupted(signal.SIGINT)
            interrupted.__notes__ = getattr(stop, "__notes__", [])
            raise interrupted from stop
        if code:
            raise typer.Exit(code)

    parameters = [_parameter(field) for _, found in given.values() for field in found]
    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # two of one name are refused
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
        for heading, rows in sorted(sections.items(), key=lambda section: HEADINGS.index(section[0])):
            with formatter.section(heading):
                formatter.write_dl(rows)

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        if self.epilog:
            formatter.write_paragraph()
            formatter.write(f"{self.epilog}\n")


def mount(app: typer.Typer, name: str, added: Command | Group) -> None:
    """Make what another package adds a command of `app`, or a group of commands."""
    if isinstance(added, Command):
        command(app, name, example=added.example)(added.run)
        return
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=added.help)
    for own_name, own in added.commands.items():
        mount(group, own_name, own)
    app.add_typer(group, name=name)


Run = Callable[..., int | None]


def command(app: typer.Typer, name: str, *, example: str) -> Callable[[Run], Run]:
    """Make a function, whose parameters are settings, a command of `app`."""

    def register(function: Run) -> Run:
        app.command(name, cls=Grouped, epilog=f"Example: {example}")(declared(function))
        return function

    return register
