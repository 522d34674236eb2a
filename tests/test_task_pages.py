"""Pages of docs/tasks/ say what the program answers now: their commands are run, numbers may move."""

import re
import shlex
from importlib import import_module
from importlib.util import find_spec

import pytest
import task_pages
from quick import WARM, quick
from typed import invoke

NUMBER = re.compile(r"[+−-]?\d*\.?\d+")
NEEDS_PAPERS = {"classifier", "reproduce"}
"""Pages whose commands come with anisoscope-papers."""
PAGES = {page.stem: page for page in task_pages.pages()}


def masked(text):
    """A text without its numbers, and with one space for every gap between columns."""
    return re.sub(r"[ \n]+", " ", NUMBER.sub("#", text))


@pytest.fixture(scope="module")
def folder(reader_files, tmp_path_factory):
    """A folder with the files that readers are said to have, which the commands of all pages write into."""
    place = tmp_path_factory.mktemp("reader")
    for file in reader_files.iterdir():
        (place / file.name).symlink_to(file)
    return place


@pytest.fixture(autouse=True)
def run_at_once(monkeypatch, folder):
    """Run commands in this process and scripts in one that begins at once; draw no pages, nobody looks at them."""

    def run_command(line, _folder):
        done = invoke(shlex.split(line, comments=True)[1:])
        assert done.exit_code in (0, task_pages.CONDITION_MET), done.exception
        return task_pages.printed_text(
            done.stdout, done.stderr, done.exit_code
        ).splitlines()

    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", task_pages.COLUMNS)
    pages = import_module("anisoscope.report")  # `anisoscope.report` is a function, too
    monkeypatch.setattr(pages, "build_page", lambda run, *_, **__: run / "report.html")
    monkeypatch.setattr(task_pages, "run_command", run_command)
    monkeypatch.setattr(task_pages, "PYTHON", quick(WARM))


LONG = {
    "attention",
    "classifier",
    "compare-models",
    "compare-and-repair",
    "own-model",
}
"""Pages whose commands take long; those of the other pages see a changed line of the program as well."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in LONG else ())
        for name in PAGES
    ],
)
def test_a_page_shows_what_its_commands_print(name, folder):
    if name in NEEDS_PAPERS and find_spec("anisoscope_papers") is None:
        pytest.skip("anisoscope-papers is not installed")
    text = PAGES[name].read_text("utf-8")
    now = task_pages.refresh(text, folder)
    assert masked(now) == masked(text), (
        f"python tools/task_pages.py {name} writes it again"
    )


def test_every_picture_of_a_page_is_there():
    shown = [
        (page, name)
        for page in PAGES.values()
        for name, _ in task_pages.PICTURE.findall(page.read_text("utf-8"))
    ]
    assert shown and all((page.parent / name).is_file() for page, name in shown)
