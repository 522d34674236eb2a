"""`anisoscope compare`: each run or model compared with the first, as a table of differences, sentences, a page, and
an exit code.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pandas as pd

from anisoscope.axes import TokenPolicy
from anisoscope.cli.measure_commands import FORMAT
from anisoscope.cli.view import (
    Format,
    Quiet,
    Table,
    count_columns,
    echo_wrapped,
    format_path,
    show,
)
from anisoscope.errors import UsageError
from anisoscope.options import (
    INPUT,
    OUTPUT,
    WHAT,
    FilePath,
    Names,
    Text,
    option,
    separate_names,
)
from anisoscope.progress import interrupt_hint, show_progress, show_spinner
from anisoscope.runs.job import ModelsOptions

if TYPE_CHECKING:
    from anisoscope.runs.comparison import ComparedRuns
    from anisoscope.runs.differences import KeptRun

MODELS = ModelsOptions()
CONDITION_MET = 8
"""Exit code if a condition of `--fail-if` holds."""
STAR = "*"
"""Stands at a value whose difference from the first run is clear, in tables without intervals."""
STARRED = "the interval of the difference from {} does not contain 0; intervals: --format csv, or a wider terminal"
MOST_COLUMNS = 14
"""Layers of the other run that a table on the terminal has; of more some are shown, evenly spread."""
MOST_ROWS = 60
"""Rows of a table on the terminal; of more the largest differences are shown."""


def compare(
    runs: Annotated[
        tuple[Text, ...],
        option(
            "run folders; or one folder of a series; or models, which are measured "
            "first",
            INPUT,
        ),
    ],
    /,
    measuring: ModelsOptions = MODELS,
    *,
    view: Format = FORMAT,
    metric: Annotated[
        Text,
        option("metric to compare, or one value of a metric (attention.entropy)", WHAT),
    ] = "A",
    tokens: Annotated[
        TokenPolicy,
        option(
            "which tokens count: all, content (no special tokens), no-first (without "
            "the first token)",
            WHAT,
        ),
    ] = "all",
    heads: Annotated[
        bool,
        option(
            "compare each attention head; default: the mean over the heads of a layer",
            WHAT,
        ),
    ] = False,
    component: Annotated[
        Names,
        option(
            "only these components, if the metric has some (classes, dimensions)",
            WHAT,
            metavar="NAME,…",
        ),
    ] = (),
    across: Annotated[
        Text,
        option(
            "compare each layer of the first run with each layer of the other runs, by cka, procrustes, module:NAME",
            WHAT,
        ),
    ] = "",
    fail_if: Annotated[
        tuple[Text, ...],
        option(
            "exit with code 8 if a run differs from the first by more than this, as 'A.last > +.02'. "
            "METRIC.PLACE is on the left; PLACE is last, first, max, min, any or a layer. "
            "The whole interval must lie beyond the number",
            OUTPUT,
            metavar="CONDITION",
        ),
    ] = (),
    output: Annotated[
        FilePath | None,
        option("folder to write a page with figures and all numbers to", OUTPUT, "-o"),
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Compare runs with the first one, with an interval of each difference; models are measured first."""
    # A series is replaced by its checkpoints, and the others are compared with the
    # first.
    runs = _expand_series(runs)
    if across:
        # Each layer is compared with all layers: such a table has no heads, no components,
        # no condition and no page.
        _refuse_with_across(
            {
                "--fail-if": fail_if,
                "--output": output,
                "--component": component,
                "--heads": heads,
            }
        )
        opened = _open_or_measure(runs, measuring, [across], quiet)
        _show_layers(opened, across, view, quiet)
        return 0
    # The imports load torch, which takes seconds.
    with show_spinner("comparing runs", quiet=quiet):
        from anisoscope.runs.comparison import compare as compare_kept
        from anisoscope.runs.differences import parse_condition

        # A condition that cannot be read is refused before models are measured, which may take hours.
        conditions = [parse_condition(text) for text in fail_if]
    # Models are measured for all that is asked for here, conditions included, so that
    # nothing is measured twice.
    metrics = [metric, *(condition.metric for condition in conditions)]
    opened = _open_or_measure(runs, measuring, metrics, quiet)
    with show_spinner("comparing runs", quiet=quiet):
        compared = compare_kept(opened, metric, tokens=tokens, heads=heads)
        if component:
            compared = compared.of_components(separate_names(component))
        failed = _describe_failed(compared, fail_if)
    _show_differences(compared, failed, view)
    _print_notes_and_page(compared, view, output, quiet)
    # Last, so that whoever reads the log of a failed job finds the reason at its end.
    for sentence in failed:
        echo_wrapped(f"fails: {sentence}", err=True, indent="  ")
    if failed:
        return CONDITION_MET
    if fail_if:
        echo_wrapped(f"passes: {', '.join(fail_if)}", err=True, indent="  ")
    return 0


def _describe_failed(compared: "ComparedRuns", conditions: Sequence[str]) -> list[str]:
    """Return a sentence for each run in which a condition of `--fail-if` holds."""
    from anisoscope.runs.comparison import describe_met

    failed = []
    for text in conditions:
        for name, beyond in compared.judge(text):
            failed.append(describe_met(text, name, beyond))
    return failed


def _expand_series(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of runs and models, with each measured series replaced by the run folders of its checkpoints.

    UsageError if fewer than two runs are left to compare.
    """
    from anisoscope.runs.measured_series import expand_series

    runs = tuple(expand_series(names))
    # After the expansion: one series may be enough.
    if len(runs) < 2:
        raise UsageError(
            "at least two run folders or models", str(len(runs)), "name one more"
        )
    return runs


def _show_differences(
    compared: "ComparedRuns", failed: Sequence[str], view: Format
) -> None:
    """Show the table of differences and the findings.

    failed   the conditions that are met, in words
    """
    tables = tabulate_comparison(compared, count_columns(sys.stdout))
    show(tables, view, compared.findings, compared.notes, {"failed": failed})
    # Only if a star is shown: the line explains it.
    if view.format == "table" and any(_has_star(table) for table in tables):
        echo_wrapped(
            f"{STAR} {STARRED.format(compared.names[0])}", err=True, indent="  "
        )


def _has_star(table: Table) -> bool:
    """Return whether any cell of a table is marked with a star."""
    return any(STAR in cell for row in table.rows for cell in row)


def _print_notes_and_page(
    compared: "ComparedRuns", view: Format, output: Path | None, quiet: bool
) -> None:
    """Draw the page of a comparison, if a folder is named; print where it is, and what else differs between the runs.

    These lines go to stderr.

    output   folder of the page; None: no page
    """
    # In JSON the notes are in the answer itself.
    if view.format != "json":
        for note in compared.notes:
            echo_wrapped(f"note: {note}", err=True, indent="  ")
    if output is not None:
        page = _write_page(compared, output, quiet)
        echo_wrapped(
            f"page: {format_path(page)} (open it in a browser)", err=True, indent="  "
        )
    elif view.format == "table":
        echo_wrapped(
            "for a page with figures: add --output FOLDER", err=True, indent="  "
        )


def _refuse_with_across(options: Mapping[str, Any]) -> None:
    """Raise UsageError if an option was given that cannot be combined with `--across`.

    options   {option that cannot be combined: its value, false if it was not given}
    """
    for name, value in options.items():
        if value:
            raise UsageError(
                "--across alone",
                f"{name} too",
                "compare the runs twice, once without --across",
            )


def _open_or_measure(
    names: Sequence[str], measuring: ModelsOptions, wanted: Sequence[str], quiet: bool
) -> "list[KeptRun]":
    """Open the runs of a comparison; measure the models among them that are not measured yet.

    names       run folders, or names of models
    measuring   how models are measured
    wanted      names of metrics that are compared
    """
    with show_spinner("opening runs", quiet=quiet):
        from anisoscope.runs.models_as_runs import open_or_measure

    # `runs` may hold older runs, which are not what this command did.
    started = time.time()

    def count_measured() -> str:
        """Say, after an interruption, how many models were measured and are not measured again."""
        manifests = Path("runs").glob("*/manifest.json")
        new = [path for path in manifests if path.stat().st_mtime >= started]
        return f"runs holds {len(new)} models measured by this command" if new else ""

    with interrupt_hint(count_measured, "the same command"):
        return open_or_measure(
            names, measuring, wanted, lambda title: show_progress(title, quiet=quiet)
        )


def _show_layers(
    runs: "Sequence[KeptRun]", metric: str, view: Format, quiet: bool
) -> None:
    """Compare the layers of the first run with those of each other run, and show a table for each.

    metric   one that compares two layers, such as `cka`
    """
    with show_spinner("comparing layers", quiet=quiet):
        from anisoscope.runs.across import compare_layers

        compared = compare_layers(runs, metric)
    width = count_columns(sys.stdout)
    tables = []
    for _, part in compared.groupby(["run", "metric"], sort=False):
        tables.append(tabulate_layers(part, width))
    show(tables, view)
    if view.format == "table":
        tokens = int(compared["n_vectors"].max())
        echo_wrapped(
            f"{tokens:,} tokens that both runs sampled; all intervals: --format csv",
            err=True,
            indent="  ",
        )


def tabulate_layers(compared: pd.DataFrame, width: int | None = None) -> Table:
    """Tabulate how similar the layers of two runs are: a row for each layer of one, a column for each of the other.

    If both runs have equally many layers, the value at the same layer comes first, with its interval. If there are too
    many columns for the terminal, some layers are left out, evenly spread.

    compared   a row for each pair of layers, with the value of a metric that compares two layers (such as CKA)
    width      columns of the terminal; None: there is none
    """
    several_stacks = compared["stack"].nunique() > 1
    ours = _name_layers(compared, "", several_stacks)
    theirs = _name_layers(compared, "_other", several_stacks)
    values: dict[tuple[str, str], Any] = {}
    for layer, other_layer, row in zip(
        ours, theirs, compared.itertuples(), strict=True
    ):
        values[layer, other_layer] = row
    columns = list(dict.fromkeys(theirs))
    # Every layer, every second one, … until the table fits; the last layer is always among them.
    fewest_steps = -(-len(columns) // MOST_COLUMNS)
    for step in range(fewest_steps, len(columns) + 1):
        # Counted from the end, so that the last layer is always shown.
        shown = columns[::-1][::step][::-1]
        table = _tabulate_some_layers(compared, values, shown)
        if width is None or _count_width(table.head, table.rows) <= width:
            break
    return table


def _tabulate_some_layers(
    compared: pd.DataFrame, values: Mapping[tuple[str, str], Any], shown: Sequence[str]
) -> Table:
    """Tabulate how similar the layers of two runs are, with only some layers of the second run as columns.

    compared   a row for each pair of layers
    values     {(layer of the first run, layer of the second): its row}
    shown      layers of the second run that get a column
    """
    from anisoscope.wording import format_interval, format_short

    layers = list(dict.fromkeys(ours for ours, _ in values))
    others = list(dict.fromkeys(theirs for _, theirs in values))
    equally_deep = layers == others
    first = compared.iloc[0]
    head = [f"{first.metric}: {first.against}"]
    # The diagonal is what is compared first, so it comes first and has its interval;
    # off it there is no room for one.
    if equally_deep:
        head.append("same layer")
    # Headings are layers of the other run; the first of them says so.
    head.append(f"{first.run} {shown[0]}")
    head += shown[1:]
    rows = []
    for layer in layers:
        cells = [layer]
        if equally_deep:
            same = values[layer, layer]
            cells.append(format_interval(same.value, same.low, same.high))
        for other in shown:
            pair = values.get((layer, other))
            cells.append("" if pair is None else format_short(pair.value))
        rows.append(cells)
    return Table(tuple(head), rows, compared)


def _name_layers(compared: pd.DataFrame, end: str, several_stacks: bool) -> list[str]:
    """Return the name of each row's layer: its number or `final`, after the name of its stack if there are several.

    compared   a row for each pair of layers of two runs
    end        ending of the columns that describe one run: empty for the first, `_other` for the second
    """
    names = []
    for stack, layer, site in compared[
        [f"stack{end}", f"layer{end}", f"site{end}"]
    ].itertuples(index=False):
        name = "final" if site == "final" else f"{layer}"
        names.append(f"{stack} {name}" if several_stacks else name)
    return names


def _write_page(compared: "ComparedRuns", folder: Path, quiet: bool) -> Path:
    """Write the page of a comparison into a folder, and return the page's path. ExtraError without packages for it."""
    from anisoscope.extras import require_extra

    require_extra("report", "to draw a page")
    with show_spinner("drawing the page", quiet=quiet):
        from anisoscope.report.comparison import write_comparison

        return write_comparison(compared, folder)


def tabulate_comparison(
    compared: "ComparedRuns", width: int | None = None
) -> list[Table]:
    """Tabulate a comparison: a row for each layer or head, with its value in the first run and the differences from it.

    Two runs are shown with the intervals of values and differences; more than two with those of differences only. If
    this does not fit the terminal, differences are left out (`_tabulate_values`).

    width   columns of the terminal; None: there is none
    """
    table = compared.table
    if not len(table):
        return [Table(("layer",), [], table)]
    others = compared.names[1:]
    keys = ["stack", "kind", "layer", "head", "site", "component"]
    shown = _choose_key_columns(table, keys)
    by_place = _group_by_place(table, keys)
    only_two = len(others) == 1
    head = [*shown, compared.names[0]]
    for name in others:
        head += [name, "difference"]
    rows = []
    for place, of_runs in by_place.items():
        # The row of any other run holds the value of the first one too.
        any_row = next(iter(of_runs.values()))
        cells = _name_place(place, keys, shown)
        cells.append(_format_value(any_row, "first", with_ends=only_two))
        for name in others:
            cells += _format_other_run(of_runs.get(name), with_ends=only_two)
        rows.append(cells)
    # With two runs the table is folded if need be; with more, values alone say more
    # than folded intervals.
    if width is not None and not only_two and _count_width(head, rows) > width:
        labels = [_name_place(place, keys, shown) for place in by_place]
        return [
            _tabulate_values(compared, shown, labels, list(by_place.values()), width)
        ]
    return [Table(tuple(head), rows, table)]


def _group_by_place(
    table: pd.DataFrame, keys: Sequence[str]
) -> dict[tuple[str, ...], dict[str, Any]]:
    """Group the rows of a comparison by layer or head: {place: {run: its row}}.

    Of more than `MOST_ROWS` places, only those with the largest differences are returned.

    table   rows of the comparison
    keys    columns that a place (stack, layer, head …) consists of
    """
    places: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in table.itertuples():
        place = tuple(_format_cell(getattr(row, key)) for key in keys)
        places.setdefault(place, {})[str(row.run)] = row
    if len(places) <= MOST_ROWS:
        return places

    def find_largest_difference(place: tuple[str, ...]) -> float:
        """Return the largest difference from the first run at a place."""
        return float(max(abs(row.difference) for row in places[place].values()))

    # Chosen by size, shown in the order of layers.
    chosen = set(sorted(places, key=find_largest_difference, reverse=True)[:MOST_ROWS])
    return {place: of_runs for place, of_runs in places.items() if place in chosen}


def _name_place(
    place: Sequence[str], keys: Sequence[str], shown: Sequence[str]
) -> list[str]:
    """Return the cells that name a place (a layer or head); the output of the final norm is the layer `final`.

    place   values of the columns `keys`
    shown   those of the columns that get a cell
    """
    values = dict(zip(keys, place, strict=True))
    if values["site"] == "final":
        values["layer"] = "final"
    return [values[key] for key in shown]


def _tabulate_values(
    compared: "ComparedRuns",
    shown: Sequence[str],
    labels: list[list[str]],
    places: list[dict[str, Any]],
    width: int,
) -> Table:
    """Tabulate the values of all runs without differences; a star marks what clearly differs from the first run.

    Each run has a column. If there are too many runs for the terminal, each run has a row and each layer or head a
    column; some of these are then left out, evenly spread.

    shown    names of the columns that name a place (layer, head …)
    labels   their cells, for each place
    places   {run: its row of the comparison}, for each place
    width    columns of the terminal
    """
    values = []
    for of_runs in places:
        any_row = next(iter(of_runs.values()))
        of_others = [_format_starred(of_runs.get(name)) for name in compared.names[1:]]
        values.append([_format_value(any_row, "first", with_ends=False), *of_others])
    head = [*shown, *compared.names]
    rows = []
    for label, cells in zip(labels, values, strict=True):
        rows.append([*label, *cells])
    if _count_width(head, rows) > width:
        names = [" ".join(label) for label in labels]
        head, rows = _turn_table(compared.names, names, values, width)
    return Table(tuple(head), rows, compared.table)


def _turn_table(
    runs: Sequence[str], places: list[str], values: list[list[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Return (head, rows) of a table with a row for each run, and as many places as fit into the width.

    places   names of layers or heads, which become columns
    values   cells [place][run]
    width    columns of the terminal
    """
    # Every place, every second one, … until the table fits; the last place is always among them.
    for step in range(1, len(places) + 1):
        chosen = range(len(places))[::-step][::-1]
        head = ["run", *(places[place] for place in chosen)]
        rows = []
        for number, run in enumerate(runs):
            rows.append([run, *(values[place][number] for place in chosen)])
        # If not even one place fits, the last table is kept, and its cells are folded.
        if _count_width(head, rows) <= width:
            break
    return head, rows


def _count_width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width in characters of a table with no cell folded."""
    columns = zip(head, *rows, strict=True)
    # Two blanks between columns.
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _format_starred(row: Any) -> str:
    """Format the value in another run than the first, with a star if its difference from the first run is clear.

    If it is of a layer with another number, that is added. Empty if the run has no value there.

    row   of the comparison; None: the run has no value there
    """
    if row is None:
        return ""
    value, _ = _format_other_run(row, with_ends=False)
    # A comparison with NaN is false: without an interval there is no star.
    is_clear = row.low > 0 or row.high < 0
    return f"{value}{STAR}" if is_clear else value


def _choose_key_columns(table: pd.DataFrame, keys: list[str]) -> list[str]:
    """Choose which key columns a table shows: the layer, and those whose values differ between rows."""
    shown = []
    for key in keys:
        several = table[key].nunique(dropna=False) > 1
        # A column with one value in all rows takes width and says nothing.
        if key == "layer" or (several and key != "site"):
            shown.append(key)
    # `final` is shown as a layer, so that it needs no column of sites.
    sites = set(table["site"].dropna()) - {"final", "hidden"}
    if len(sites) > 1:
        shown.append("site")
    return shown


def _format_other_run(row: Any, *, with_ends: bool) -> list[str]:
    """Return two cells: the value in another run than the first, and its difference from the first with an interval.

    A layer with another number is added to the value. Both are empty if the run has no value there.

    row         of the comparison; None: the run has no value there
    with_ends   format the value with its interval too
    """
    from anisoscope.wording import format_signed_interval

    if row is None:
        return ["", ""]
    value = _format_value(row, "second", with_ends=with_ends)
    # Layers of runs of different depth are matched by relative depth.
    has_other_layer = not pd.isna(row.layer_other) and row.layer_other != row.layer
    if has_other_layer and row.site != "final":
        value += f" @{row.layer_other:g}"
    return [value, format_signed_interval(row.difference, row.low, row.high)]


def _format_value(row: Any, side: str, *, with_ends: bool) -> str:
    """Format the value of the first or the other run in a row of a comparison.

    side        `first`, or `second` for the other run
    with_ends   with its interval
    """
    from anisoscope.wording import format_interval, format_short

    value = getattr(row, side)
    if not with_ends:
        return format_short(value)
    return format_interval(
        value, getattr(row, f"{side}_low"), getattr(row, f"{side}_high")
    )


def _format_cell(value: Any) -> str:
    """Format one cell of the table: numbers without trailing zeros, missing values empty."""
    if pd.isna(value):
        return ""
    return f"{value:g}" if isinstance(value, int | float) else str(value)
