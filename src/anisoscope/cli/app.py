"""The program: its commands, and how a command line is read.

Results go to stdout, remarks to stderr; `__main__.py` prints errors. A command is imported when it is called.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from cyclopts import App, Parameter

from anisoscope import __version__
from anisoscope.cli.command import Command, Group
from anisoscope.cli.config import apply_config
from anisoscope.registry import list_entries_of

EXIT_CODES = {
    0: "done",
    1: "unexpected: a bug (please report it with the lines shown), or the program that reads stdout has ended",
    2: "usage: a wrong option, or options that contradict each other",
    3: "model: not found, not readable or not trusted, or its training diverged",
    4: "corpus: not found, not readable, or nothing in it to measure",
    5: "measurement: the model never computes what was to be measured, or parts of a run do not fit together",
    6: "output: a folder that cannot be written or read",
    7: "partial: some models or data were unavailable and were skipped (reproduce, atlas)",
    8: "condition: a run differs from the first as --fail-if says (compare)",
    130: "interrupted: Ctrl-C (SIGINT); the same command with --resume goes on",
    143: "ended: SIGTERM; the same command with --resume goes on",
}

COMMANDS: dict[str, Command | Group] = {
    "measure": Command(
        "anisoscope.cli.measure_commands:measure",
        "Measure a model on a corpus, a series of checkpoints, or vectors.\n\n"
        "Writes a run folder with records, figures and a report. Prints a table and what was found.",
        "anisoscope measure builtin:minilm --limit 20 --panel hidden",
    ),
    "classes": Command(
        "anisoscope.cli.measure_commands:classes",
        "Find out what separates the classes of a classifier, layer by layer.\n\n"
        "Does the direction of a text's vector tell its class? How much does attention contribute? Which words "
        "explain the decision? For any model and labelled corpus. Writes a run folder with records and a report, "
        "and prints tables.",
        "anisoscope classes builtin:minilm --corpus synthetic --limit 100",
    ),
    "merge": Command(
        "anisoscope.cli.measure_commands:merge",
        "Merge the shards of one run (measure --shard), or runs of different files (measure --to-merge).",
        "anisoscope merge runs/a runs/b --output runs/both",
    ),
    "report": Command(
        "anisoscope.cli.reading:report",
        "Rebuild the page of a run, or of reproductions, from its records.",
        "anisoscope report runs/minilm-python-docs-1a2b3c4d",
    ),
    "compare": Command(
        "anisoscope.cli.comparing:compare",
        "Compare runs with the first one, layer by layer, with an interval for each difference.\n\n"
        "Runs of the same units are paired, so that what they share cancels. A sentence says how they were paired and "
        "what else differs between them. A model or a file of vectors can be named in place of a run. It is measured "
        "first, into runs/, and found there the next time. If one measured series is named, each of its checkpoints "
        "is compared with the first.",
        "anisoscope compare runs/before runs/after --fail-if 'A.last > +.02'",
    ),
    "atlas": Command(
        "anisoscope.cli.atlas:atlas",
        "Measure every network of a list, and make one table and one page of them.\n\n"
        "A list is a TOML file: a [[network]] table for each, with model, corpus and other options of measure, and "
        "[defaults] for all. Networks that are finished are not measured again. Unavailable networks are skipped and "
        "listed; the exit code is then 7.",
        "anisoscope atlas networks.toml --output runs/atlas",
    ),
    "cure": Command(
        "anisoscope.cli.answers:cure",
        "Try cures for anisotropy on vectors, a run or a model, and say which one fits.\n\n"
        "A run has a sample of the vectors of each layer; cures are tried on the sample of one layer. A model is "
        "measured first. Each cure is fitted on one half of the units and tried on the other half. The table shows "
        "how each cure changes A and neighbours. If there are labels or pairs, it also shows how each cure changes "
        "the task, and which cures harm it.",
        "anisoscope cure vectors.npy --cures centre,whiten,remove-top:1..3",
    ),
    "apply": Command(
        "anisoscope.cli.answers:apply",
        "Apply a saved cure to other vectors, such as queries.",
        "anisoscope apply fit.safetensors queries.npy --output cured.npy",
    ),
    "push": Command(
        "anisoscope.cli.publishing:push",
        "Push a run to the hub: a data set of its records, with a card and a badge.\n\n"
        "Paths of this machine are removed from every text, and the sample of vectors is not pushed. --dry-run writes "
        "the folder that would be pushed.",
        "anisoscope push runs/demo OWNER/NAME --dry-run",
    ),
    "card": Command(
        "anisoscope.cli.publishing:card",
        "Print a section for the card of a model: what was found, and A of every layer.",
        "anisoscope card runs/demo",
    ),
    "doctor": Command(
        "anisoscope.cli.answers:doctor",
        "Say what this installation can do: versions, devices, extras, folders.\n\n"
        "Every package of every extra is tried. For each one that is missing, the line that installs it is shown.",
        "anisoscope doctor",
    ),
    "list": Command(
        "anisoscope.cli.reading:list_names",
        "List the names that options accept: metrics, models, corpora, and what other packages add.",
        "anisoscope list corpora",
    ),
}

# Errors are raised to `__main__.py`, which explains them and knows the exit codes; the
# defaults of cyclopts would print and exit on their own.
app = App(
    name="anisoscope",
    help="The geometry of representations and of self-attention, measured exactly, in any model.\n\n"
    "Example: anisoscope measure builtin:minilm --corpus builtin:python-docs",
    help_epilogue="Exit codes: "
    + ", ".join(f"{code} {means.split(':')[0]}" for code, means in EXIT_CODES.items()),
    help_format="plaintext",
    version=__version__,
    # No `--no-…` for every switch; of an option that is typed twice the last value
    # counts.
    default_parameter=Parameter(negative=(), allow_repeating=True),
    config=apply_config,
    exit_on_error=False,
    print_error=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
)
app.register_install_completion_command()


def mount(parent: App, name: str, added: Command | Group, place: int) -> None:
    """Add a command or a group of commands to `parent` under a name, at a place in the list of `--help`."""
    how: dict[str, Any] = {
        "name": name,
        "help_epilogue": f"Example: {added.example}",
        "sort_key": place,
    }
    if isinstance(added, Command):
        parent.command(added.run, help=added.help, **how)
        return
    # A group has no function of its own: typed alone it shows its help.
    group = App(help=added.help, **how)
    for own_place, (own_name, command) in enumerate(added.commands.items()):
        mount(group, own_name, command, own_place)
    parent.command(group)


# Commands of other packages come after our own in `--help`.
COMMANDS |= list_entries_of("commands")
for _place, (_name, _command) in enumerate(COMMANDS.items()):
    mount(app, _name, _command, _place)


def command_names() -> Iterator[str]:
    """Yield the name of every command as it is typed, a group before its own commands: `train`, `train classifier`."""
    for name, command in COMMANDS.items():
        yield name
        if isinstance(command, Group):
            yield from (f"{name} {own}" for own in command.commands)


def run_command_line(words: Sequence[str]) -> int:
    """Run a command line and return its exit code; errors are raised.

    words   what was typed after the name of the program
    """
    if not words:
        # Nothing was asked: help, and the exit code of a usage error, as for a missing
        # argument.
        app.help_print()
        return 2
    # Most commands return nothing, which means 0.
    return int(app(words) or 0)
