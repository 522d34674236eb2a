"""The program, `anisoscope` or `python -m anisoscope`: errors of the commands become one line and an exit code
(`EXIT_CODES` of `cli/app.py`).
"""

import errno
import gc
import os
import shlex
import signal
import sys
import threading
import traceback
from typing import Any

from anisoscope.errors import Interrupted, Terminated
from anisoscope.progress import end_bars, exit_on_sigterm

OUTPUT_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG)
"""A disk that is full, over quota, read-only, closed, or a file over its limit."""
INTERRUPTED = 130


def main() -> None:
    """Run the command line as the program `anisoscope`, and exit with its status."""
    os.environ.setdefault(
        "OMP_WAIT_POLICY", "PASSIVE"
    )  # threads that spin while they wait keep others from computing
    gc.set_threshold(
        100_000, 50, 100
    )  # what libraries make when imported stays: looking it through is a third of that
    # A signal may arrive inside a finaliser, whose exceptions Python prints and drops.
    sys.unraisablehook = _raise_again
    try:
        with exit_on_sigterm():
            code = _run()
    except (KeyboardInterrupt, Terminated) as stop:  # also while modules are loaded
        code = _report_interruption(stop)
    if code:
        sys.exit(code)


def _run() -> int:
    """Run the command that was typed, and return the exit code; an error is printed as one message."""
    from anisoscope.cli.app import run_command_line

    try:
        return run_command_line(sys.argv[1:])
    except Interrupted as stop:
        return _report_interruption(stop)
    except BrokenPipeError:
        # Python flushes stdout once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        from anisoscope.cli.view import (
            echo_wrapped,
        )  # with the settings, which take time

        text, code = _explain_error(error)
        echo_wrapped(text, err=True)
        return code


def _raise_again(lost: Any) -> None:
    """Handle an exception that Python would only print (`sys.unraisablehook`), as those raised in a finaliser are.

    If SIGINT or SIGTERM caused it, the signal is sent to this process once more, so that it still ends the program.
    Any other exception is printed as usual.

    lost   what Python passes to the hook
    """
    if isinstance(lost.exc_value, KeyboardInterrupt | Terminated):
        number = getattr(lost.exc_value, "number", signal.SIGINT)
        # A moment later, when the finaliser is left and the exception can reach `main`.
        threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
    else:
        sys.__unraisablehook__(lost)


def _report_interruption(stop: BaseException) -> int:
    """Tell the user which results an interrupted command has kept and how to continue it; return the exit code.

    stop   the exception; its two notes, if it has any, are those of `progress.interrupt_hint`
    """
    # Else the bar would be drawn over the message.
    end_bars()
    kept, more = "nothing to keep", ""
    notes = getattr(stop, "__notes__", [])
    if len(notes) == 2:
        kept, more = notes
    words = sys.argv[1:]
    if more == "--resume":
        # What was typed may already have --resume, and --overwrite would delete what is kept.
        words = [word for word in words if word not in ("--overwrite", "--resume")]
    # The note is a whole command, or an option to add to the command that was typed.
    again = more
    if " " not in more:
        again = shlex.join(["anisoscope", *words, *([more] if more else [])])
    over = (
        "\r" if sys.stderr.isatty() else ""
    )  # what the terminal shows of Ctrl-C itself
    sys.stderr.write(f"{over}anisoscope: interrupted; {kept}; to go on: {again}\n")
    return 128 + getattr(stop, "number", INTERRUPTED - 128)


def _explain_error(error: Exception) -> tuple[str, int]:
    """Return the message to print for an error, and the exit code. An unforeseen error also prints its traceback."""
    from cyclopts import CycloptsError

    from anisoscope.cli.faults import explain_usage_error
    from anisoscope.errors import AnisoscopeError

    if isinstance(error, AnisoscopeError):
        return f"anisoscope: {error}", error.exit_code
    if isinstance(error, OSError) and error.errno in OUTPUT_ERRNOS:
        cure = "free space, or --output"
        return (
            f"anisoscope: cannot write {error.filename or ''}: {error.strerror}. Cure: {cure}",
            6,
        )
    if isinstance(error, OSError) and error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        name = str(error.filename)[:40]
        return (
            f"anisoscope: expected a file or folder; got {name} …: {error.strerror}. Cure: check the name",
            2,
        )
    if isinstance(error, CycloptsError):
        fault = explain_usage_error(error)
        return f"anisoscope: {fault}", fault.exit_code
    # Nobody foresaw it, so whoever reads the report needs all of it.
    traceback.print_exception(error)
    name = type(error).__name__
    return (
        f"anisoscope: this is a bug ({name}). Please report it with the command and the lines above.",
        1,
    )


if __name__ == "__main__":
    main()
