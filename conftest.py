"""Shared fixtures: real data by ANISOSCOPE_DATA, and the packaged model."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

# Bytecode is kept even if the shell has PYTHONDONTWRITEBYTECODE: else each of the hundreds of programs that tests
# start would compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

from shapes import check_shapes  # noqa: E402

check_shapes()  # before a module of the package is imported

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # in the background of a shell, and so would the programs begun here
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.set_threshold(
    100_000, 50, 100
)  # as the program does: looking through what is imported is a third of importing


def pytest_addoption(parser):
    parser.addoption(
        "--nightly",
        action="store_true",
        help="also run the tests marked nightly: minutes, of what smaller tests see too",
    )


def pytest_collection_modifyitems(config, items):
    """Leave out the tests of the night, but for one that is asked for by its whole name."""
    if config.getoption("--nightly"):
        return
    asked = {argument for argument in config.args if "::" in argument}
    left_out = [
        item
        for item in items
        if item.get_closest_marker("nightly") and item.nodeid not in asked
    ]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="module", autouse=True)
def _exempt_old_objects_from_collection():
    """Keep the garbage collector from going through what earlier test files imported and kept.

    Late in a session one collection takes a second, and each training of `transformers` collects when it starts.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def no_page(monkeypatch):
    """Nobody looks at the page of a run."""
    from importlib import import_module

    monkeypatch.setattr(
        import_module("anisoscope.report"),
        "build_page",
        lambda folder, *_: folder / "report.html",
    )


@pytest.fixture(scope="session")
def data_folder():
    """The folder of real data; what needs it is skipped by name where the variable is unset."""
    folder = os.environ.get("ANISOSCOPE_DATA")
    if not folder:
        pytest.skip("ANISOSCOPE_DATA is not set: real data are not at hand")
    if not Path(folder, "wikitext").is_dir():
        pytest.skip(f"ANISOSCOPE_DATA is {folder}, where there is no wikitext/")
    return Path(folder)


@pytest.fixture(scope="session")
def program():
    """The program as it is typed, without a network (`program.Program`)."""
    from program import Program

    with Program(os.environ | {"HF_HUB_OFFLINE": "1"}) as served:
        yield served


@pytest.fixture(scope="session")
def minilm():
    """The packaged pretrained encoder with its tokenizer."""
    from anisoscope.models.load import load

    return load("builtin:minilm")


@pytest.fixture(scope="session")
def small_series(tmp_path_factory):
    """Two seeds of three checkpoints of a tiny random encoder, and a text of many short documents."""
    import tiny

    return tiny.series(tmp_path_factory.mktemp("series"))


@pytest.fixture(scope="session")
def reader_files(tmp_path_factory):
    """A folder with the vectors, the table and the models that the pages of tasks call the reader's own; only read."""
    import task_pages

    place = tmp_path_factory.mktemp("of-the-reader")
    task_pages.write_inputs(place)
    return place


@pytest.fixture
def held():
    """`held(key, seconds=…)`: inside, another process is making `key`; without `seconds`, until the end."""
    import subprocess
    import sys
    from contextlib import contextmanager

    code = (
        "import sys, time; from pathlib import Path; from anisoscope.store import make_once\n"
        "def make(): print('begun', flush=True); time.sleep(float(sys.argv[2]))\n"
        "make_once(Path(sys.argv[1]), make, marker='never')"
    )

    @contextmanager
    def hold(key, seconds=600.0):
        command = [sys.executable, "-c", code, str(key), str(seconds)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
            try:
                assert other.stdout.readline() == "begun\n"
                yield other
            finally:
                other.kill()

    return hold
