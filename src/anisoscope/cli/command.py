"""Declare a command of the program, so that other packages can add some (`anisoscope.commands`); loads quickly."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command of the program.

    run      `module:function`, imported when the command is called. The function's parameters are settings
             (`options.declare_settings`) or single options (`options.option`); it returns the exit code (None: 0)
    help     what `--help` says; its first paragraph is shown in the list of commands
    example  the command as it is typed
    """

    run: str
    help: str
    example: str


@dataclass(frozen=True)
class Group:
    """Commands that share a first word, as in `anisoscope train masked-lm`; `help` is what `--help` says."""

    help: str
    example: str
    commands: Mapping[str, Command]
