"""`anisoscope atlas`: measure every network of a list, and make one table and one page of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd

from anisoscope.cli.view import Format, Quiet, Table, echo_wrapped, format_path, show
from anisoscope.errors import UsageError, suggest_names
from anisoscope.extras import find_missing_packages
from anisoscope.options import INPUT, OUTPUT, FilePath, Names, option, separate_names
from anisoscope.progress import interrupt_hint, show_progress, show_spinner

if TYPE_CHECKING:
    from anisoscope.runs.atlas import Atlas

FORMAT = Format()
PARTIAL = 7
"""Exit code if networks were left out."""
OUTPUT_FOLDER = Path("runs/atlas")


def atlas(
    networks: Annotated[
        FilePath,
        option("TOML file that lists the networks, each in a [[network]] table", INPUT),
    ],
    /,
    *,
    only: Annotated[
        Names,
        option(
            "measure only these networks, by their names in the list",
            INPUT,
            metavar="NAME,…",
        ),
    ] = (),
    output: Annotated[
        FilePath, option("folder to write runs, table and page to", OUTPUT, "-o")
    ] = OUTPUT_FOLDER,
    view: Format = FORMAT,
    quiet: Quiet = False,
) -> int:
    """Measure every network of a list that is not finished, and show all in one table."""
    with show_spinner(f"reading {networks}", quiet=quiet):
        from anisoscope.runs.atlas import make_atlas, read_list

        entries = read_list(networks)
    # Names are checked before the first network is measured, since a list takes hours.
    names = [entry.name for entry in entries]
    wanted = separate_names(only)
    for name in wanted:
        if name not in names:
            raise UsageError(
                f"a network of {networks}", repr(name), suggest_names(name, names)
            )
    chosen = [entry for entry in entries if not wanted or entry.name in wanted]

    def count_finished() -> str:
        """Say, after an interruption, how many finished runs the folder holds; empty if none."""
        # A manifest is written last: a run that has one is finished.
        count = len(list(output.glob("runs/*/manifest.json")))
        return f"{output} holds {count} finished runs" if count else ""

    with interrupt_hint(count_finished, "the same command"):
        made = make_atlas(
            chosen, output, lambda title: show_progress(title, quiet=quiet)
        )
    show(
        [tabulate_atlas(made.table)],
        view,
        notes=_describe_left_out(made),
        more={"left_out": made.left_out},
    )
    _print_files(made, quiet)
    # Not an error: the table is complete for what could be had, but a script must
    # notice.
    return PARTIAL if made.left_out else 0


def _describe_left_out(atlas: "Atlas") -> list[str]:
    """Return a line for each network that was left out of an atlas, with the reason."""
    return [f"left out: {name}: {why}" for name, why in atlas.left_out.items()]


def _print_files(atlas: "Atlas", quiet: bool) -> None:
    """Write the HTML page of the atlas, and print on stderr what was left out and where the files are."""
    for line in _describe_left_out(atlas):
        echo_wrapped(line, err=True, indent="  ")
    echo_wrapped(
        f"table: {format_path(atlas.folder / 'atlas.csv')}", err=True, indent="  "
    )
    # The table is written already; a page can be drawn later, so its packages are no
    # condition.
    missing = find_missing_packages("report")
    if missing:
        lacking = f"no page was drawn: {' and '.join(missing)} not installed (pip install 'anisoscope[report]')"
        echo_wrapped(lacking, err=True, indent="  ")
        return
    with show_spinner("drawing the page", quiet=quiet):
        from anisoscope.report.atlas import write_atlas_page

        page = write_atlas_page(
            atlas.table, atlas.folder, runs=atlas.runs, left_out=atlas.left_out
        )
    echo_wrapped(
        f"page: {format_path(page)} (open it in a browser)", err=True, indent="  "
    )


def tabulate_atlas(table: pd.DataFrame) -> Table:
    """Return the table for a terminal: a row for each network and stack, with A of its most anisotropic layer.

    table   rows of the atlas, as `runs.atlas` builds them
    """
    from anisoscope.wording import format_interval, format_short, iter_rows

    # A network of two stacks (encoder, decoder) has two rows.
    several_stacks = table.duplicated("network", keep=False).any()
    head = ["network", "stack"] if several_stacks else ["network"]
    head += ["weakest", "strongest", "last", "q95", "carried by", "sinks"]
    rows = []
    for row in iter_rows(table):
        cells: list[Any] = [row.network, row.stack] if several_stacks else [row.network]
        strongest = format_interval(
            row.strongest, row.strongest_low, row.strongest_high
        )
        # A dash: A was judged, and there is no cause to name. Without a verdict the
        # cell is empty.
        no_cause = "–" if row.verdict else ""
        cells.append(f"{format_short(row.weakest)} @{row.weakest_layer}")
        cells.append(f"{strongest} @{row.strongest_layer}")
        cells += [format_short(row.last), format_short(row.q95), row.cause or no_cause]
        cells.append(
            "" if pd.isna(row.heads) else f"{row.sink_heads:g} of {row.heads:g}"
        )
        rows.append(cells)
    return Table(tuple(head), rows, table)
