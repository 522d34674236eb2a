"""The program, `anisoscope` or `python -m anisoscope`: errors of the commands become one line and an exit code.

0 done · 1 unexpected · 2 usage · 3 model · 4 corpus · 5 measurement · 6 output · 130 SIGINT, 143 SIGTERM (resumable)
"""

import errno
import os
import sys

import typer

from anisoscope.cli.app import app
from anisoscope.errors import AnisoscopeError

INTERRUPTED = 130
OUTPUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)
"""A disk that is full, over quota, read-only, closed, or a file over its limit."""


def main() -> None:
    """Entry point."""
    try:
        code = app(standalone_mode=False)  # the parser swallows Ctrl-C and returns its code
        if code == INTERRUPTED:
            raise KeyboardInterrupt
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except AnisoscopeError as error:
        typer.echo(f"anisoscope: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        if error.errno not in OUTPUT_ERRNOS:
            raise
        typer.echo(
            f"anisoscope: cannot write {error.filename or ''}: {error.strerror}. Cure: free space, or --output",
            err=True,
        )
        sys.exit(6)
    except KeyboardInterrupt:
        typer.echo("anisoscope: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        if type(error).__name__ == "Abort":  # the end of input where an answer was asked for
            sys.exit(INTERRUPTED)
        if type(error).__name__ == "Interrupted":  # by name: its module loads torch
            typer.echo("anisoscope: interrupted; the same command with --resume goes on", err=True)
            sys.exit(128 + getattr(error, "number", 2))
        show = getattr(error, "show", None)  # a wrong option or command, explained by the parser itself
        if not callable(show):
            raise
        show()
        sys.exit(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    main()
