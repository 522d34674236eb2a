"""The program as it is typed, hundreds of times: a server that has imported everything forks a child for each command.

    with Program() as program:
        ended = program(["measure", "builtin:minilm", "--corpus", "x.txt"], terminal=True, columns=80)

The child's standard streams are a pseudo-terminal of that width, or pipes; its code is what `anisoscope` runs, after
the Python text `setup` where there is one. With `ranks=n` there are n children, the processes of one job.
A chart that a child has drawn is not drawn again: the renderer, which is not ours, is asked once for each description.
"""

import contextlib
import fcntl
import gc
import hashlib
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from quick import quick

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
STOPPED = """
import os, signal
from anisoscope.runs import run as module
pass_, calls = module.run_pass, []
def progress(done, total):
    calls.append(done)
    if len(calls) == 2:
        os.kill(os.getpid(), {number})
module.run_pass = lambda *given, **named: pass_(*given, **(named | {{"progress": progress}}))
"""
"""`setup` of a measurement by which a signal comes after two batches."""
NO_PAGE = """
from importlib import import_module
from unittest.mock import patch
patch.object(import_module("anisoscope.report"), "build_page", lambda folder, *_: folder / "report.html").start()
"""
"""`setup` where nobody looks at the page: drawing it is most of a small run's time. The name has to be there."""
WITHOUT_PAGE = f"{NO_PAGE}import anisoscope.__main__\nanisoscope.__main__.main()"
"""The program in a process of its own, `[*quick(), "-c", WITHOUT_PAGE, "measure", …]`, the same way."""


def sized(fd, columns):
    """Give a terminal its size."""
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))


def watched(pid, fd, seconds, *, stop_at="", at=None):
    """Exit status of a process, killed after so many seconds, and all it wrote; where `stop_at` appears `at()` is
    called, by default for Ctrl-C.
    """
    shown, end, stopped = b"", time.monotonic() + seconds, not stop_at
    while time.monotonic() < end:
        if select.select([fd], [], [], 0.1)[0]:
            try:
                part = os.read(fd, 65536)
            except OSError:  # the terminal is closed
                break
            if not part:
                break
            shown += part
        if not stopped and stop_at.encode() in shown:
            stopped = True
            at() if at else os.write(fd, b"\x03")
    else:
        os.killpg(pid, signal.SIGKILL)
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal that ended it) and all it wrote, as it came; on a pipe
    what it wrote to stderr comes last, and is `told`.
    """

    code: int
    shown: str
    told: str = ""

    @property
    def lines(self):
        """What stood on the terminal, line by line, what was overwritten too; nothing empty."""
        parts = [
            part
            for line in ESCAPES.sub("", self.shown).split("\n")
            for part in line.rstrip("\r").split("\r")
        ]
        return [part.rstrip() for part in parts if part.strip()]


class Program:
    """A server process; `environment` replaces its variables, which libraries read as they are imported."""

    def __init__(self, environment=None):
        environment = dict(environment or os.environ) | {
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [*quick(), __file__]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, **pipes)

    def __call__(
        self,
        words,
        *,
        terminal=False,
        columns=80,
        seconds=240,
        stop_at="",
        setup="",
        ranks=1,
        **variables,
    ):
        """How the command ended, or of several `ranks` how each did; Ctrl-C comes where `stop_at` stands."""
        request = {
            "words": [os.fsencode(w).hex() for w in map(str, words)],
            "terminal": terminal,
            "columns": columns,
        }
        request |= {
            "seconds": seconds,
            "stop_at": stop_at,
            "setup": setup,
            "variables": [variables],
        }
        with contextlib.ExitStack() as stack:
            if ranks > 1:
                request["variables"] = [
                    variables | more for more in stack.enter_context(job(ranks))
                ]
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            ended = [
                Ended(**each) for each in json.loads(self.process.stdout.readline())
            ]
        return ended if ranks > 1 else ended[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@contextlib.contextmanager
def job(ranks):
    """Variables of each process of a torchrun job."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": str(ranks),
    }
    shared["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    yield [
        shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)
    ]


def _child(words, terminal, setup, variables):
    """Run the program, in a forked process whose standard streams are set."""
    for name in ("CI", "NO_COLOR", "COLUMNS"):
        os.environ.pop(name, None)
    os.environ.update({"TERM": "xterm-256color"} if terminal else {}, **variables)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    encoding = {"encoding": "utf-8", "errors": "surrogateescape"}
    sys.stdin = open(0, closefd=False, **encoding)  # noqa: SIM115
    sys.stdout = open(  # noqa: SIM115
        1, "w", buffering=1 if terminal else -1, closefd=False, **encoding
    )
    sys.stderr = open(  # noqa: SIM115
        2, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace"
    )
    sys.argv = ["anisoscope", *words]
    from anisoscope.__main__ import main

    code = 0
    try:
        exec(setup, {})
        main()
    except SystemExit as ended:
        code = (
            ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        )
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _begun(request, variables):
    """A child: its process id, our end of its stream, and the file of its stderr."""
    words = [os.fsdecode(bytes.fromhex(word)) for word in request["words"]]
    ours, theirs = pty.openpty() if request["terminal"] else os.pipe()
    told = tempfile.TemporaryFile()  # noqa: SIM115
    if request["terminal"]:
        sized(ours, request["columns"])
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if request["terminal"]:
            fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        nothing = theirs if request["terminal"] else os.open(os.devnull, os.O_RDONLY)
        for number, stream in enumerate(
            (nothing, theirs, theirs if request["terminal"] else told.fileno())
        ):
            os.dup2(stream, number)
        _child(words, request["terminal"], request["setup"], variables)
    os.close(theirs)
    return pid, ours, told


def _run(request):
    ended = []
    for pid, ours, file in [
        _begun(request, variables) for variables in request["variables"]
    ]:
        code, shown = watched(pid, ours, request["seconds"], stop_at=request["stop_at"])
        with file:
            file.seek(0)
            told = file.read().decode(errors="backslashreplace")
        ended.append(
            {
                "code": code,
                "shown": shown.decode(errors="backslashreplace") + told,
                "told": told,
            }
        )
    return ended


LATE = """pydantic.main pydantic.type_adapter pydantic.json_schema pydantic.functional_validators cyclopts.help
narwhals.stable.v1._namespace narwhals._interchange.dataframe narwhals._pandas_like.namespace
narwhals._pandas_like.selectors narwhals._pandas_like.group_by pandas.core.arrays.arrow._arrow_utils
transformers.models.bert.modeling_bert transformers.models.bert.tokenization_bert rich._emoji_codes"""
"""What libraries import only as they are used: each child would."""


def _drawn_once(folder):
    """The renderer of charts with what it drew kept in a folder."""
    import vl_convert

    draw = vl_convert.vegalite_to_svg

    def drawn(described, **how):
        kept = Path(
            folder, hashlib.sha256(json.dumps([described, how]).encode()).hexdigest()
        )
        if not kept.exists():
            part = kept.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
            part.write_text(draw(described, **how), "utf-8")
            part.rename(kept)
        return kept.read_text("utf-8")

    vl_convert.vegalite_to_svg = drawn


def _import_what_needs_no_missing_triton(name):
    """Import a module of ours, unless it needs Triton and Triton is not installed: kernels for GPUs alone do."""
    import importlib

    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise


def _serve(folder):
    import importlib
    import pkgutil

    import anisoscope
    import anisoscope.cli.app

    gc.disable()
    for module in pkgutil.walk_packages(anisoscope.__path__, "anisoscope."):
        if module.name.partition(".")[2].split(".")[0] not in (
            "__main__",
            "integrations",
            "studies",
        ):
            _import_what_needs_no_missing_triton(module.name)
    for name in LATE.split():
        importlib.import_module(name)
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    get_checkpoint_conversion_mapping(
        "bert"
    )  # makes a table of all architectures, at the first model that is loaded
    _drawn_once(folder)
    gc.freeze()  # a collection in a child would go through all that, and copy it
    gc.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="drawn-") as folder:
        _serve(folder)
