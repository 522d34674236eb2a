"""`train` and `reproduce` on a real pseudo-terminal: no line wider than it, and clean ends."""

import pytest
from program import NO_PAGE
from test_terminal import (
    check_ctrl_c,
    check_fits,
    folder,
    test_help_fits_the_terminal,
    typed,
)

from anisoscope.cli.app import command_names
from anisoscope.registry import list_entries_of

__all__ = ["folder"]  # a fixture
check_help = test_help_fits_the_terminal
del test_help_fits_the_terminal  # it is called here, and collected there
COMMANDS = {
    "reproduce": "reproduce godey2024 --only fig17 -o {folder}/reproduced",
    "train masked-lm": "train masked-lm --preset tiny --steps 2 --limit 2 -o {folder}/masked --overwrite",
    "train causal-lm": "train causal-lm --preset tiny --steps 2 --limit 2 -o {folder}/causal --overwrite",
    "train classifier": "train classifier --vectors random --dim 8 --limit 60 --epochs 1 -o {folder}/cls --overwrite",
}
"""A tiny working example of every command; a new command needs one."""


def test_every_command_has_an_example_here():
    added = list_entries_of("commands")
    assert {name for name in command_names() if name.split()[0] in added} - {
        "train"
    } == COMMANDS.keys()


@pytest.mark.parametrize("command", [*COMMANDS, "list"])
def test_a_command_fits_the_terminal(program, folder, command):
    words = (
        ["list", "studies"]
        if command == "list"
        else typed(command, folder, 80, COMMANDS)
    )
    check_fits(program, folder, words, 80, setup=NO_PAGE)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["train", *COMMANDS])
def test_help_fits_the_terminal(program, command, columns):
    check_help(program, command, columns)


STOPS = [
    (
        ["train masked-lm", "--steps", "9999"],
        "/9999",
        "{folder}/masked holds",
        "anisoscope {resumed}",
    ),
    (
        ["reproduce", "--only", "fig6"],
        "/20",
        "quick holds 0 of 1 studies",
        "anisoscope {words}",
    ),
]
"""A command, what stands on the terminal when Ctrl-C comes, what is kept, and how it goes on."""


@pytest.mark.parametrize(
    ("command", "stop", "kept", "again"), STOPS, ids=["train", "reproduce"]
)
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    program, folder, command, stop, kept, again
):
    check_ctrl_c(
        program,
        folder,
        [*typed(command[0], folder, 80, COMMANDS), *command[1:]],
        stop,
        kept,
        again,
    )
