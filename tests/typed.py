"""A command line, run in this process: what it prints, its exit code, and what it raises."""

import io
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass


@dataclass(frozen=True)
class Ended:
    """How a command line ended."""

    exit_code: int
    stdout: str
    stderr: str
    exception: BaseException | None = None

    @property
    def output(self):
        return self.stdout + self.stderr


def invoke(words):
    """Run a command line, as a text or as words."""
    from anisoscope.cli.app import run_command_line

    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code, raised = (
                run_command_line(
                    words.split()
                    if isinstance(words, str)
                    else [str(word) for word in words]
                ),
                None,
            )
        except Exception as error:
            code, raised = getattr(error, "exit_code", 1), error
    return Ended(code, out.getvalue(), err.getvalue(), raised)
