"""A command of the program."""

from anisoscope.cli.command import Command
from anisoscope.cli.view import say


def greet() -> None:
    """Say hello."""
    say("hello from a guest")


GREET = Command(
    run="guest.commands:greet", help="Say hello.", example="anisoscope greet"
)
