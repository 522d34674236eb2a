"""The program, `anisoscope` or `python -m anisoscope`: errors of the commands become one line and an exit code.

0 done · 1 unexpected · 2 usage · 3 model · 4 corpus · 5 measurement · 6 output · 130 SIGINT, 143 SIGTERM (resumable)
"""

import errno
import os
import sys
import traceback

INTERRUPTED = 130
OUTPUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)
"""A disk that is full, over quota, read-only, closed, or a file over its limit."""


def main() -> None:
    """Entry point."""
    try:
        _main()
    except KeyboardInterrupt:  # also while modules are loaded
        sys.stderr.write("anisoscope: interrupted\n")
        sys.exit(INTERRUPTED)


def _main() -> None:
    from typer import Exit

    from anisoscope.cli.app import app
    from anisoscope.cli.view import tell

    try:
        if app(standalone_mode=False) == INTERRUPTED:  # some versions of the parser return the code of Ctrl-C
            raise KeyboardInterrupt
    except Exit as done:
        if done.exit_code == INTERRUPTED:
            raise KeyboardInterrupt from None
        sys.exit(done.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        text, code = _told(error)
        tell(text, err=True)
        sys.exit(code)


def _told(error: Exception) -> tuple[str, int]:
    """The message of an error, and the exit code. An error that nobody foresaw keeps its traceback."""
    from anisoscope.errors import AnisoscopeError

    name = type(error).__name__
    if isinstance(error, AnisoscopeError):
        return f"anisoscope: {error}", error.exit_code
    if isinstance(error, OSError) and error.errno in OUTPUT_ERRNOS:
        cure = "free space, or --output"
        return f"anisoscope: cannot write {error.filename or ''}: {error.strerror}. Cure: {cure}", 6
    if name == "Interrupted":  # by name: its module loads torch
        return "anisoscope: interrupted; the same command with --resume goes on", 128 + getattr(error, "number", 2)
    if name == "Abort":  # the end of input where an answer was asked for
        raise KeyboardInterrupt from None
    if callable(show := getattr(error, "show", None)):  # a wrong option or command, explained by the parser itself
        show()
        sys.exit(getattr(error, "exit_code", 2))
    traceback.print_exception(error)
    return f"anisoscope: this is a bug ({name}). Please report it with the command and the lines above.", 1


if __name__ == "__main__":
    main()
