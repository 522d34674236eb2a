"""`anisoscope push` and `card`: a run as a data set of the hub, and as a section of a model's card."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from anisoscope.cli.view import Format, Quiet, echo_wrapped, format_path, say, show_row
from anisoscope.errors import OutputError
from anisoscope.options import INPUT, OUTPUT, FilePath, Text, option
from anisoscope.progress import show_spinner

if TYPE_CHECKING:
    from anisoscope.report.pushing import Publication

FORMAT = Format()


def push(
    run: Annotated[FilePath, option("run folder, or folder of a series", INPUT)],
    repository: Annotated[
        Text,
        option("data set on the Hugging Face hub to push to, as OWNER/NAME", OUTPUT),
    ],
    /,
    *,
    create: Annotated[
        bool, option("make the data set if it does not exist", OUTPUT)
    ] = False,
    private: Annotated[
        bool,
        option(
            "make the data set private: only you or your organisation can read it",
            OUTPUT,
        ),
    ] = False,
    licence: Annotated[
        Text,
        option("licence to name on the card of the data set, as cc-by-4.0", OUTPUT),
    ] = "",
    dry_run: Annotated[
        bool, option("write the folder that would be pushed, and push nothing", OUTPUT)
    ] = False,
    output: Annotated[
        FilePath | None,
        option(
            "with --dry-run: the folder to write; default: RUN-to-push, next to the "
            "run",
            OUTPUT,
            "-o",
        ),
    ] = None,
    view: Format = FORMAT,
    quiet: Quiet = False,
) -> None:
    """Push records, card and badge of a run to the hub."""
    from anisoscope.report.pushing import (
        check_repository,
        push as push_publication,
        write_publication,
    )

    name = check_repository(repository)
    # Before a name is made of it: `.` has no name.
    run = run.resolve()
    writing = "writing records and card"
    if dry_run:
        with show_spinner(writing, quiet=quiet):
            target = output or run.with_name(f"{run.name}-to-push")
            written = write_publication(run, target, name, licence)
        _show_files(written, view)
        return
    # What is pushed is a copy without paths of this machine; nothing of it stays behind.
    with tempfile.TemporaryDirectory(prefix="anisoscope-push-") as folder:
        with show_spinner(writing, quiet=quiet):
            written = write_publication(run, Path(folder, "run"), name, licence)
        with show_spinner(f"pushing {len(written.files)} files to {name}", quiet=quiet):
            address = push_publication(written, name, create=create, private=private)
    if view.format == "table":
        say(address)
        snippet = f"anisoscope card {format_path(run, typed=True)} --repository {name}"
        echo_wrapped(
            f"next, a section for the model's card: {snippet}", err=True, indent="  "
        )
    else:
        show_row({"pushed": address, "files": len(written.files)}, view)


def _show_files(written: "Publication", view: Format) -> None:
    """Say on stderr which files would be pushed."""
    for file, size in written.files.items():
        echo_wrapped(f"{size:>12,} bytes  {file}", err=True, indent="  ")
    echo_wrapped(
        f"nothing was pushed; the folder: {format_path(written.folder)}",
        err=True,
        indent="  ",
    )
    if view.format != "table":
        show_row({"written": str(written.folder), "files": len(written.files)}, view)


def card(
    run: Annotated[FilePath, option("run folder, or folder of a series", INPUT)],
    /,
    *,
    repository: Annotated[
        Text,
        option(
            "data set that the run was pushed to (OWNER/NAME); badge and section then "
            "link to it",
            INPUT,
        ),
    ] = "",
    badge: Annotated[
        FilePath | None, option("file to write a badge to (.svg)", OUTPUT)
    ] = None,
    view: Format = FORMAT,
    quiet: Quiet = False,
) -> None:
    """Print a section for the card of a model: what was found, and A of every layer."""
    with show_spinner(f"reading {run}", quiet=quiet):
        from anisoscope.report.card import draw_badge, write_model_card
        from anisoscope.report.pushing import check_repository, hide_folders
        from anisoscope.store import read_run, write_atomic

        # A wrong name would give a badge that leads nowhere.
        name = check_repository(repository) if repository else ""
        if not run.is_dir():
            raise OutputError(
                "a run folder",
                f"{run}, which is not one",
                "name a folder that anisoscope measure wrote",
            )
        records, manifest = read_run(run)
        text = write_model_card(records, hide_folders(manifest), name)
    if badge is not None:
        if badge.suffix != ".svg":
            raise OutputError(
                "a file that ends in .svg",
                str(badge),
                "name the file so: --badge anisotropy.svg",
            )
        drawn = draw_badge(records)
        write_atomic(
            badge, lambda temporary: temporary.write_text(drawn, encoding="utf-8")
        )
        echo_wrapped(f"badge: {format_path(badge)}", err=True, indent="  ")
    if view.format == "table":
        echo_wrapped(text, indent="  ")
    else:
        show_row({"card": text}, view)
