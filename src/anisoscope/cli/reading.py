"""`anisoscope report` and `list`: the page of a finished run, and everything that has a name."""

from typing import Annotated

from anisoscope.cli.measure_commands import FORMAT
from anisoscope.cli.view import Format, Quiet, say, show, show_row
from anisoscope.errors import OutputError, UsageError, suggest_names
from anisoscope.options import INPUT, OUTPUT, FilePath, Text, option
from anisoscope.progress import show_spinner
from anisoscope.registry import list_entries_of

LISTS = ("metrics", "models", "corpora", *list_entries_of("listings"))
"""What `anisoscope list` lists."""


def report(
    run: Annotated[
        FilePath, option("run folder, or folder that reproduce wrote", INPUT)
    ],
    /,
    *,
    quiet: Quiet = False,
    pdf: Annotated[
        bool, option("also write figures as PDF, for print", OUTPUT)
    ] = False,
    view: Format = FORMAT,
) -> None:
    """Rebuild the page of a run, and say where it is."""
    if not run.is_dir():
        raise OutputError(
            "a run folder",
            f"{run}, which is not one",
            "name a folder that anisoscope measure wrote",
        )
    with show_spinner("drawing the report", quiet=quiet):
        # After the check of the folder, since this import takes long.
        from anisoscope.api import working

        page = working.report(run, pdf=pdf)
    if view.format == "table":
        say(str(page))
    else:
        show_row({"page": str(page)}, view)


def list_names(
    what: Annotated[Text, option(", ".join(LISTS), INPUT)],
    /,
    *,
    view: Format = FORMAT,
) -> None:
    """Show everything of one kind that has a name: metrics, models, corpora and more."""
    if what not in LISTS:
        raise UsageError(
            f"one of {', '.join(LISTS)} to list",
            repr(what),
            suggest_names(what, LISTS),
        )
    from anisoscope.cli import printed_tables

    show([printed_tables.list_entries(what)], view)
