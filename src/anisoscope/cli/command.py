"""What a command of the program is, so that other packages can add some (`anisoscope.commands`); light."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command of the program.

    run      a function whose parameters are settings, each with an option (`options.Option`); its docstring is the
             text of `--help`, and what it returns the exit code (None: 0)
    example  the command as it is typed
    """

    run: Callable[..., int | None]
    example: str


@dataclass(frozen=True)
class Group:
    """Commands under a common word, as in `anisoscope train masked-lm`; `help` is the text of `--help`."""

    help: str
    commands: Mapping[str, Command]
