"""An interpreter that begins at once: `[*quick(), "-c", code]` in the place of `[sys.executable, "-c", code]`.

A server that has imported what takes long (nothing of ours, nor what looks at variables of the hub) forks for each;
that of `quick(BARE)` has imported what the program itself does before it loads anything heavy, and that of
`quick(WARM)`, a fork of the first, what looks at variables of the hub too: for those who change none of them.
This file is also its client, whose streams, folder and variables the fork takes over; a signal reaches the client only.
"""

import contextlib
import json
import os
import socket
import struct
import sys

IMPORTED = """torch torch._dynamo torch.distributed.tensor torch.onnx torch.testing torch.export sympy scipy.stats
scipy.optimize pandas pyarrow.parquet altair PIL.Image yaml jinja2 dill cyclopts rich.progress tokenizers
safetensors.torch sentencepiece psutil regex soundfile narwhals.stable.v1 vl_convert"""
WARM = """transformers.modeling_utils transformers.core_model_loading transformers.processing_utils
transformers.integrations.peft transformers.models.auto.modeling_auto transformers.models.auto.tokenization_auto
transformers.models.bert.modeling_bert transformers.models.bert.tokenization_bert transformers.models.t5.modeling_t5"""
BARE = """cyclopts cyclopts.help cyclopts.config pydantic.main pydantic.dataclasses pydantic.type_adapter
pydantic.functional_validators pydantic._internal._generate_schema rich.console rich.panel rich.table rich.markdown
rich.live rich.progress tomllib"""
BASE = f"""{BARE} torch torch.distributed.tensor scipy.stats scipy.optimize pandas pyarrow.parquet safetensors.torch
jinja2"""
"""All of the base installation, and nothing of its extras."""

_begun = {}


def quick(imported=IMPORTED):
    """What to type; the server begins with the first call, and ends with this process."""
    import atexit
    import functools
    import subprocess
    import tempfile

    if imported not in _begun:
        folder = tempfile.TemporaryDirectory(prefix="quick-")
        place = f"{folder.name}/socket"
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        command = [
            *(quick() if imported == WARM else [sys.executable]),
            __file__,
            "--serve",
            place,
            imported,
        ]
        server = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        atexit.register(functools.partial(_end, server, folder))
        assert server.stdout.readline() == b"ready\n"
        _begun[imported] = [sys.executable, "-I", "-S", __file__, place]
    return _begun[imported]


def _end(server, folder):
    server.stdin.close()
    server.wait(timeout=20)
    folder.cleanup()


def _ask(place, *words):
    """Have the server run what is typed; its exit code."""
    asked = {"words": words, "folder": os.getcwd(), "variables": dict(os.environ)}  # noqa: PTH109
    told = json.dumps(asked).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(place)
        socket.send_fds(server, [struct.pack("I", len(told))], [0, 1, 2])
        server.sendall(told)
        code = server.recv(4)
    return struct.unpack("i", code)[0] if code else 1


def _serve(place, imported):
    import gc
    import importlib
    import select
    import signal

    gc.disable()
    for name in imported.split():
        importlib.import_module(name)
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [each for each in sys.path[1:] if each not in own]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        gc.freeze()  # a collection in a fork would go through all that, and copy it
        gc.enable()
        os.write(1, b"ready\n")
        while (
            listener in select.select([listener, 0], [], [])[0]
        ):  # 0 ends with who began this
            asked, _ = listener.accept()
            with asked:
                if os.fork() == 0:
                    listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    _run(asked, path)
    os._exit(0)


def _run(asked, path):
    """The interpreter, in the fork: `-c code`, `-m module` or a file."""
    import atexit
    import gc
    import runpy
    import threading
    import traceback
    from pathlib import Path

    length, streams, _, _ = socket.recv_fds(asked, 4, 3)
    told = json.loads(asked.recv(struct.unpack("I", length)[0], socket.MSG_WAITALL))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["variables"])
    for number, name, mode in (
        (0, "stdin", "r"),
        (1, "stdout", "w"),
        (2, "stderr", "w"),
    ):
        setattr(
            sys,
            name,
            open(number, mode, closefd=False, buffering=1 if number == 2 else -1),  # noqa: SIM115
        )
    first, *sys.argv = (
        told["words"] if told["words"][0] in ("-c", "-m") else ("", *told["words"])
    )
    sys.path[:] = [
        "",
        *filter(None, told["variables"].get("PYTHONPATH", "").split(os.pathsep)),
        *path,
    ]
    _answer_before_exit(asked)
    code = 0
    gc.set_threshold(100_000, 50, 100)  # as the program does
    try:
        if first == "-c":
            text, sys.argv[0] = sys.argv[0], "-c"
            exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})
        elif first == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(sys.argv[0]).absolute().parent)
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        code = (
            ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        )
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code)


def _answer_before_exit(asked):
    """From now on `os._exit` of this process sends its code to the client first; that of its own forks does not."""
    own, leave = os.getpid(), os._exit

    def answer_and_leave(code):
        if os.getpid() == own:
            with contextlib.suppress(OSError):  # whoever asked may have left
                asked.sendall(struct.pack("i", code))
        leave(code)

    os._exit = answer_and_leave


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        _serve(*sys.argv[2:])
    sys.stdout.flush()
    os._exit(_ask(*sys.argv[1:]) & 255)
