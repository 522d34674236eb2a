"""Every command on a real pseudo-terminal: no line wider than it, clean ends, plain words where nothing can move."""

import re
import shlex
import shutil
import signal

import numpy as np
import pytest
import tiny
from program import ESCAPES, NO_PAGE
from rich.cells import cell_len

from anisoscope.cli.app import command_names
from anisoscope.registry import list_entries_of

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
SMALL = "{model} --corpus {text} --documents line --panel hidden --sample 16"
COMMANDS = {
    "measure": f"measure {SMALL} -o {{folder}}/new --overwrite",
    "merge": "merge {folder}/part-1 {folder}/part-2 -o {folder}/merged-{columns}",
    "report": "report {folder}/run",
    "compare": "compare {folder}/run {folder}/run",
    "classes": "classes {model} --corpus synthetic --limit 12 --parts directions -o {folder}/classes --overwrite",
    "cure": "cure {folder}/vectors.npy --cures centre --save {folder}/fit-{columns}.safetensors",
    "apply": "apply {folder}/fit-{columns}.safetensors {folder}/vectors.npy -o {folder}/cured-{columns}.npy",
    "atlas": "atlas {folder}/list.toml -o {folder}/atlas",
    "push": "push {folder}/run jane/geometry --dry-run -o {folder}/pushed",
    "card": "card {folder}/run",
    "doctor": "doctor",
    "list": "list corpora",
}
"""A tiny working example of every command; a new command needs one."""


def on_a_terminal(program, words, columns, **how):
    """Exit status and everything shown, on a pseudo-terminal of that many columns."""
    ended = program(words, terminal=True, columns=columns, **how)
    return ended.code, ended.shown


def lines(shown):
    """What stood on the terminal, line by line, what was overwritten too."""
    return [
        part
        for line in ESCAPES.sub("", shown).split("\n")
        for part in line.rstrip("\r").split("\r")
    ]


@pytest.fixture(scope="module")
def folder(program, tmp_path_factory):
    """A folder with a text, a model, a run of them, and the run in two shards."""
    path = tmp_path_factory.mktemp("t")
    shutil.copytree(tiny.small_encoder(), path / "model")
    text = path / "text.txt"
    text.write_text(
        "\n".join(
            f"{i}. The cat sat on the mat; a dog barked {i} times, and rain fell."
            for i in range(40)
        )
    )
    np.save(path / "vectors.npy", np.random.default_rng(0).normal(size=(80, 6)) + 2)
    of_networks = f'model = "{path / "model"}"\ncorpus = "{text}"\ndocuments = "line"\npanel = "hidden"'
    path.joinpath("list.toml").write_text(f"[[network]]\n{of_networks}\n")
    small = SMALL.format(model=path / "model", text=text).split()
    for name, more in (
        ("run", []),
        ("part-1", ["--shard", "1/2"]),
        ("part-2", ["--shard", "2/2"]),
    ):
        code, shown = on_a_terminal(
            program,
            ["measure", *small, "--batch-tokens", "256", "-o", str(path / name), *more],
            100,
            setup=NO_PAGE,
        )
        assert code == 0, shown
    return path


def typed(command, folder, columns, commands=COMMANDS, model="{folder}/model"):
    """The words of an example, on the small model of the folder or on another one."""
    places = {
        "text": folder / "text.txt",
        "folder": folder,
        "columns": columns,
        "model": model.format(folder=folder),
    }
    return commands[command].format(**places).split()


def test_every_command_has_an_example_here():
    added = list_entries_of("commands")
    assert {
        name for name in command_names() if name.split()[0] not in added
    } == COMMANDS.keys()


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_fits_the_terminal(program, folder, command, columns):
    """On a terminal every long command ended in a traceback, and tables were twice as wide as it."""
    if columns != 80 and command == "classes":
        pytest.skip(
            "its lines are those of the others: looked at where they are narrowest"
        )
    # lines with the path of a model are not looked at, so a model with a name is there, too
    model = "builtin:minilm" if columns == 80 else "{folder}/model"
    check_fits(
        program,
        folder,
        typed(command, folder, columns, model=model),
        columns,
        setup="" if command == "report" else NO_PAGE,
    )


def check_fits(program, folder, words, columns, setup):
    """A command ends well, with no line wider than the terminal, and a cursor."""
    code, shown = on_a_terminal(program, words, columns, setup=setup)
    assert code == 0, shown
    assert "Traceback" not in shown
    own = [
        line for line in lines(shown) if str(folder) not in line
    ]  # a path is never broken
    assert max(map(cell_len, own)) <= columns, max(own, key=cell_len)
    assert shown.count(HIDDEN) <= shown.count(SHOWN), "the cursor comes back"


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_the_terminal(program, command, columns):
    code, shown = on_a_terminal(program, [*command.split(), "--help"], columns)
    assert code == 0
    assert "Example: anisoscope" in shown
    assert max(map(cell_len, lines(shown))) <= columns, max(lines(shown), key=cell_len)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"CI": "true"}])
def test_nothing_moves_where_nothing_can(program, folder, environment):
    code, shown = on_a_terminal(
        program, typed("measure", folder, 80), 80, setup=NO_PAGE, **environment
    )
    assert code == 0, shown
    assert "\x1b" not in shown
    assert "drawing the report …" in shown
    assert "Anisotropic" in shown


def test_no_colours_where_none_are_wanted(program, folder):
    code, shown = on_a_terminal(
        program, typed("measure", folder, 80), 80, setup=NO_PAGE, NO_COLOR="1"
    )
    assert code == 0, shown
    assert not re.search(r"\x1b\[(3|4|9|38|48)\d", shown)


def test_findings_come_before_the_report_is_drawn(program, folder):
    """The first answer waited for the pictures."""
    _, shown = on_a_terminal(program, typed("measure", folder, 80), 80, setup=NO_PAGE)
    assert (
        shown.index("nisotropic")
        < shown.index("drawing the report")
        < shown.rindex("next: anisoscope compare")
    )


STOPS = [
    (["measure"], "loading", "nothing to keep", "anisoscope {words}"),
    (
        ["measure"],
        "drawing the report",
        "the run is finished, but for its page",
        "anisoscope report {folder}/new",
    ),
]
"""A command, what stands on the terminal when Ctrl-C comes, what is kept, and how it goes on."""


@pytest.mark.parametrize(
    ("command", "stop", "kept", "again"),
    STOPS,
    ids=lambda x: " ".join(x) if isinstance(x, list) else x,
)
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    program, folder, command, stop, kept, again
):
    """It said `interrupted`, and where nothing was kept that --resume goes on."""
    check_ctrl_c(
        program,
        folder,
        [*typed(command[0], folder, 80), *command[1:]],
        stop,
        kept,
        again,
    )


def check_ctrl_c(program, folder, words, stop, kept, again):
    """Ctrl-C when `stop` stands on the terminal ends in a line that says what is `kept`, and how to go on."""
    code, shown = on_a_terminal(program, words, 80, stop_at=stop)
    assert code == 130, shown
    assert "Traceback" not in shown
    resumed = shlex.join(
        [*(word for word in words if word != "--overwrite"), "--resume"]
    )
    text, _, last = lines(shown.strip())[-1].partition("; to go on: ")
    assert (
        text.startswith("anisoscope: interrupted; ")
        and kept.format(folder=folder) in text
    )
    assert last == again.format(folder=folder, words=shlex.join(words), resumed=resumed)
    assert shown.rindex(SHOWN) > shown.rindex(HIDDEN)


STOPS_AS_IT_BEGINS = """
import os, signal
from rich.live import Live
drawn = Live.refresh
def refresh(self):
    Live.refresh = drawn
    drawn(self)
    os.kill(os.getpid(), {number})
Live.refresh = refresh
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_as_a_bar_begins(program, folder, number):
    """The bar was half begun, drew itself over the last line and left the cursor hidden."""
    setup = STOPS_AS_IT_BEGINS.format(number=int(number))
    code, shown = on_a_terminal(program, typed("measure", folder, 80), 80, setup=setup)
    assert code == 128 + number, shown
    assert lines(shown.strip())[-1].startswith(
        "anisoscope: interrupted; nothing to keep"
    )
    assert shown.rindex(SHOWN) > shown.rindex(HIDDEN)


@pytest.mark.parametrize(
    ("module", "name", "kept"),
    [
        ("models.load", "hash_loaded_weights", "nothing to keep"),
        ("report", "build_page", "the run is finished, but for its page"),
    ],
)
def test_sigterm_outside_a_pass_ends_in_one_line(program, folder, module, name, kept):
    """It ended by the signal, without a word, where no bar was drawn; with one, by its code only."""
    ends = "import importlib, os; importlib.import_module('{}').{} = lambda *_, **__: os.kill(os.getpid(), {})"
    setup = ends.format(f"anisoscope.{module}", name, int(signal.SIGTERM))
    ended = program([*typed("measure", folder, 80), "--quiet"], setup=setup)
    assert ended.code == 143, ended.shown
    assert (
        ended.told.strip()
        .splitlines()[-1]
        .startswith(f"anisoscope: interrupted; {kept}; to go on: ")
    )
    assert "Traceback" not in ended.told


STOPS_BEFORE_A_BAR_ENDS = """
from anisoscope import progress
whole, calls = progress.call_uninterrupted, []
def stopping(act):
    calls.append(act)
    if len(calls) == 2:  # the end of the first bar
        raise KeyboardInterrupt
    return whole(act)
progress.call_uninterrupted = stopping
"""


def test_a_bar_that_a_signal_kept_from_ending_is_ended_before_the_last_line(
    program, folder
):
    """It drew itself on, over the line that says how to go on, and kept stderr to itself."""
    code, shown = on_a_terminal(
        program, typed("measure", folder, 80), 80, setup=STOPS_BEFORE_A_BAR_ENDS
    )
    assert code == 130 and lines(shown.strip())[-1].startswith(
        "anisoscope: interrupted; "
    ), shown
    assert shown.rindex(SHOWN) > shown.rindex(HIDDEN)


STOPS_IN_A_FINALISER = """
import os, signal, time
from rich.progress import Progress
class Dying:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
added = Progress.add_task
def add_task(self, *given, **more):
    Progress.add_task = added
    Dying()
    return added(self, *given, **more)
Progress.add_task = add_task
"""


def test_ctrl_c_inside_a_finaliser(program, folder):
    """Python printed a traceback and went on to the end."""
    code, shown = on_a_terminal(
        program, typed("measure", folder, 80), 80, setup=STOPS_IN_A_FINALISER
    )
    assert code == 130, shown
    assert "Traceback" not in shown
    assert lines(shown.strip())[-1].startswith(
        "anisoscope: interrupted; nothing to keep"
    )
