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
from anisoscope.cli.view import Format, Quiet, Table, count_columns, echo_wrapped, format_path, show
from anisoscope.errors import UsageError
from anisoscope.options import INPUT, OUTPUT, WHAT, FilePath, Names, Text, option, separate_names
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
    runs: Annotated[tuple[Text, ...], option("run folders or that of a series; or models to be measured", INPUT)],
    /,
    measuring: ModelsOptions = MODELS,
    *,
    view: Format = FORMAT,
    metric: Annotated[Text, option("metric to compare, or one of its values (attention.entropy)", WHAT)] = "A",
    tokens: Annotated[TokenPolicy, option("token policy: all, content, no-first", WHAT)] = "all",
    heads: Annotated[bool, option("head by head; else means over the heads of a layer", WHAT)] = False,
    component: Annotated[
        Names, option("of a metric with components (classes, dimensions): these alone", WHAT, metavar="NAME,…")
    ] = (),
    across: Annotated[
        Text,
        option("compare each layer of the first run with each of the others, by cka, procrustes, module:NAME", WHAT),
    ] = "",
    fail_if: Annotated[
        tuple[Text, ...],
        option(
            "exit with code 8 if a run differs from the first by more than this, as 'A.last > +.02'; "
            "METRIC.PLACE, where PLACE is last, first, max, min, any or a layer; the whole interval counts",
            OUTPUT,
            metavar="CONDITION",
        ),
    ] = (),
    output: Annotated[FilePath | None, option("folder for a page with figures and all numbers", OUTPUT, "-o")] = None,
    quiet: Quiet = False,
) -> int:
    """Compare runs with the first one, with an interval of each difference; models are measured first."""
    runs = _expand_series(runs)
    if across:
        _refuse_beside_across({"--fail-if": fail_if, "--output": output, "--component": component, "--heads": heads})
        opened = _open_or_measure(runs, measuring, [across], quiet)
        _show_layers(opened, across, view, quiet)
        return 0
    with show_spinner("comparing runs", quiet=quiet):
        from anisoscope.runs.comparison import compare as compare_kept, describe_met
        from anisoscope.runs.differences import parse_condition

        conditions = [parse_condition(text) for text in fail_if]
    opened = _open_or_measure(runs, measuring, [metric, *(one.metric for one in conditions)], quiet)
    with show_spinner("comparing runs", quiet=quiet):
        found = compare_kept(opened, metric, tokens=tokens, heads=heads)
        found = found.of_components(separate_names(component)) if component else found
        met = [(text, *one) for text in fail_if for one in found.judge(text)]
    failed = [describe_met(text, name, beyond) for text, name, beyond in met]
    _show_differences(found, failed, view)
    _tell_notes_and_page(found, view, output, quiet)
    for text in failed:
        echo_wrapped(f"fails: {text}", err=True, indent="  ")
    if fail_if and not met:
        echo_wrapped(f"passes: {', '.join(fail_if)}", err=True, indent="  ")
    return CONDITION_MET if met else 0


def _expand_series(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names with a measured series replaced by the run folders of its checkpoints.

    UsageError if fewer than two are named then.
    """
    from anisoscope.runs.measured_series import expand_series

    runs = tuple(expand_series(names))
    if len(runs) < 2:
        raise UsageError("at least two run folders or models", str(len(runs)), "name another one")
    return runs


def _show_differences(found: "ComparedRuns", failed: Sequence[str], view: Format) -> None:
    """Show the table of differences and the findings.

    failed   the conditions that are met, in words
    """
    tables = tabulate_comparison(found, count_columns(sys.stdout))
    show(tables, view, found.findings, found.notes, {"failed": failed})
    if view.format == "table" and any(STAR in cell for table in tables for row in table.rows for cell in row):
        echo_wrapped(f"{STAR} {STARRED.format(found.names[0])}", err=True, indent="  ")


def _tell_notes_and_page(found: "ComparedRuns", view: Format, output: Path | None, quiet: bool) -> None:
    """Print on stderr what else differs between the runs, and where the page is, which is drawn if a folder is named.

    output   folder of the page, or None
    """
    if view.format != "json":
        for note in found.notes:
            echo_wrapped(f"note: {note}", err=True, indent="  ")
    if output is not None:
        page = _write_page(found, output, quiet)
        echo_wrapped(f"page: {format_path(page)} (open it in a browser)", err=True, indent="  ")
    elif view.format == "table":
        echo_wrapped("for a page with figures: add --output FOLDER", err=True, indent="  ")


def _refuse_beside_across(options: Mapping[str, Any]) -> None:
    """UsageError for an option, by name, that says something of differences alone."""
    for name, given in options.items():
        if given:
            raise UsageError("--across alone", f"{name} too", "compare the runs twice, once without --across")


def _open_or_measure(
    names: Sequence[str], measuring: ModelsOptions, wanted: Sequence[str], quiet: bool
) -> "list[KeptRun]":
    """Open the runs of a comparison; measure the models among them that are not measured yet.

    wanted   names of metrics that are compared
    """
    with show_spinner("opening runs", quiet=quiet):
        from anisoscope.runs.models_as_runs import open_or_measure

    started = time.time()

    def finished() -> str:
        """Say, after an interruption, that models which are measured stay so."""
        since = [path for path in Path("runs").glob("*/manifest.json") if path.stat().st_mtime >= started]
        return f"runs holds {len(since)} models measured by this command" if since else ""

    with interrupt_hint(finished, "the same command"):
        return open_or_measure(names, measuring, wanted, lambda title: show_progress(title, quiet=quiet))


def _show_layers(runs: "Sequence[KeptRun]", metric: str, view: Format, quiet: bool) -> None:
    """Show a metric of two layers of each run with the first, a table for each run."""
    with show_spinner("comparing layers", quiet=quiet):
        from anisoscope.runs.across import compare_layers

        found = compare_layers(runs, metric)
    width = count_columns(sys.stdout)
    show([tabulate_layers(part, width) for _, part in found.groupby(["run", "metric"], sort=False)], view)
    if view.format == "table":
        tokens = int(found["n_vectors"].max())
        echo_wrapped(f"{tokens:,} tokens that both runs sampled; all intervals: --format csv", err=True, indent="  ")


def tabulate_layers(found: pd.DataFrame, width: int | None = None) -> Table:
    """A row for each layer of the first run: the value at the same layer of the other with its interval, if both are
    equally deep, and the value at each layer; of a deep run at some of them, evenly spread.

    width   columns of the terminal; None: there is none
    """
    several = found["stack"].nunique() > 1
    ours, theirs = (_name_places(found, end, several) for end in ("", "_other"))
    values: dict[tuple[str, str], Any] = dict(zip(zip(ours, theirs, strict=True), found.itertuples(), strict=True))
    columns = list(dict.fromkeys(theirs))
    for step in range(-(-len(columns) // MOST_COLUMNS), len(columns) + 1):
        table = _tabulate_some_layers(found, values, columns[::-1][::step][::-1])
        if width is None or _count_width(table.head, table.rows) <= width:
            break
    return table


def _tabulate_some_layers(found: pd.DataFrame, values: Mapping[tuple[str, str], Any], shown: Sequence[str]) -> Table:
    """Return the table of `tabulate_layers` with these layers of the other run as columns.

    values   row of the comparison by layer of the first run and layer of the other
    """
    from anisoscope.wording import format_interval, format_short

    one = found.iloc[0]
    rows, columns = (list(dict.fromkeys(pair[side] for pair in values)) for side in (0, 1))
    equally_deep = rows == columns
    head = [f"{one.metric}: {one.against}", *(["same layer"] if equally_deep else [])]
    head += [f"{one.run} {name}" if name == shown[0] else name for name in shown]
    lines = []
    for name in rows:
        cells = [name]
        if equally_deep:
            same = values[name, name]
            cells.append(format_interval(same.value, same.low, same.high))
        for other in shown:
            cells.append(format_short(values[name, other].value) if (name, other) in values else "")
        lines.append(cells)
    return Table(tuple(head), lines, found)


def _name_places(found: pd.DataFrame, end: str, several: bool) -> list[str]:
    """The layer of each row, or `final`; with its stack if there are several."""
    names = []
    for row in found[[f"stack{end}", f"layer{end}", f"site{end}"]].itertuples(index=False):
        stack, layer, site = row
        name = "final" if site == "final" else f"{layer}"
        names.append(f"{stack} {name}" if several else name)
    return names


def _write_page(found: "ComparedRuns", folder: Path, quiet: bool) -> Path:
    """Write the page of a comparison into a folder, and return the page's path. ExtraError without packages for it."""
    from anisoscope.extras import require_extra

    require_extra("report", "to draw a page")
    with show_spinner("drawing the page", quiet=quiet):
        from anisoscope.report.comparison import write_comparison

        return write_comparison(found, folder)


def tabulate_comparison(found: "ComparedRuns", width: int | None = None) -> list[Table]:
    """Return a table with a row for each place: the value in the first run, then value and difference of each other
    run.

    Of two runs values have their intervals; of more, those of the differences alone. If that does not fit the terminal,
    the values alone are shown (`_tabulate_values`).

    width   columns of the terminal; None: there is none
    """
    table = found.table
    if not len(table):
        return [Table(("layer",), [], table)]
    names = found.names[1:]
    keys = ["stack", "kind", "layer", "head", "site", "component"]
    shown = _choose_key_columns(table, keys)
    rows = _group_by_place(table, keys)
    two = len(names) == 1
    head = (*shown, found.names[0], *(part for name in names for part in (name, "difference")))
    lines = []
    for place, of_runs in rows.items():
        cells = _name_place(place, keys, shown)
        cells.append(_format_value(next(iter(of_runs.values())), "first", with_ends=two))
        for name in names:
            cells += _format_other_run(of_runs.get(name), with_ends=two)
        lines.append(cells)
    if width is not None and not two and _count_width(head, lines) > width:
        labels = [_name_place(place, keys, shown) for place in rows]
        return [_tabulate_values(found, shown, labels, list(rows.values()), width)]
    return [Table(head, lines, table)]


def _group_by_place(table: pd.DataFrame, keys: Sequence[str]) -> dict[tuple[str, ...], dict[str, Any]]:
    """Return {place: {run: its row}}; of more than `MOST_ROWS` places those with the largest differences.

    keys   columns that a place consists of
    """
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for one in table.itertuples():
        place = tuple(_format_cell(getattr(one, key)) for key in keys)
        rows.setdefault(place, {})[str(one.run)] = one
    if len(rows) <= MOST_ROWS:
        return rows
    biggest = sorted(rows, key=lambda place: -max(abs(one.difference) for one in rows[place].values()))
    chosen = set(biggest[:MOST_ROWS])
    return {place: found_there for place, found_there in rows.items() if place in chosen}


def _name_place(place: Sequence[str], keys: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Return the cells that name a place: of the chosen key columns, with `final` as the layer of the final norm."""
    at_final = place[keys.index("site")] == "final"
    return ["final" if key == "layer" and at_final else place[keys.index(key)] for key in shown]


def _tabulate_values(
    found: "ComparedRuns", shown: Sequence[str], labels: list[list[str]], rows: list[dict[str, Any]], width: int
) -> Table:
    """Return a table of values alone, with a star at those whose difference from the first run is clear: a column for
    each run, or, if they are too many, a row for each run and a column for each place, of which some are shown, evenly
    spread.

    shown, labels   names of the columns that say where; their cells in each row
    rows            of each place: {run: its row of the comparison}
    """
    cells = [[_format_value(next(iter(of_runs.values())), "first", with_ends=False)] for of_runs in rows]
    for line, of_runs in zip(cells, rows, strict=True):
        line += [_format_starred(of_runs.get(name)) for name in found.names[1:]]
    head, lines = (*shown, *found.names), [[*label, *line] for label, line in zip(labels, cells, strict=True)]
    if _count_width(head, lines) <= width:
        return Table(head, lines, found.table)
    names = [" ".join(label) for label in labels]
    for step in range(1, len(rows) + 1):
        places = range(len(rows))[::-step][::-1]
        head = ("run", *(names[place] for place in places))
        lines = [[run, *(cells[place][i] for place in places)] for i, run in enumerate(found.names)]
        if _count_width(head, lines) <= width:
            break
    return Table(head, lines, found.table)


def _count_width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width in characters of a table with no cell folded."""
    columns = zip(head, *rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns) - 2


def _format_starred(one: Any) -> str:
    """Format the value in another run, with the layer if that differs, and a star if the difference is clear."""
    if one is None:
        return ""
    value, _ = _format_other_run(one, with_ends=False)
    return f"{value}{STAR}" if one.low > 0 or one.high < 0 else value


def _choose_key_columns(table: pd.DataFrame, keys: list[str]) -> list[str]:
    """Choose the columns that tell rows apart: the layer, and others if they differ."""
    shown = []
    for key in keys:
        several = table[key].nunique(dropna=False) > 1
        if key == "layer" or (several and key != "site"):
            shown.append(key)
    sites = table["site"].dropna().unique()
    if len(set(sites) - {"final", "hidden"}) > 1:
        shown.append("site")
    return shown


def _format_other_run(one: Any, *, with_ends: bool) -> list[str]:
    """Format the value in another run (with its layer, if that differs) and the difference with its interval."""
    from anisoscope.wording import format_signed_interval

    if one is None:
        return ["", ""]
    moved = not pd.isna(one.layer_other) and one.layer_other != one.layer and one.site != "final"
    value = _format_value(one, "second", with_ends=with_ends) + (f" @{one.layer_other:g}" if moved else "")
    return [value, format_signed_interval(one.difference, one.low, one.high)]


def _format_value(one: Any, side: str, *, with_ends: bool) -> str:
    """Format the value of one side, with its interval if asked for."""
    from anisoscope.wording import format_interval, format_short

    value = getattr(one, side)
    if not with_ends:
        return format_short(value)
    return format_interval(value, getattr(one, f"{side}_low"), getattr(one, f"{side}_high"))


def _format_cell(value: Any) -> str:
    """Format one cell of the table."""
    return "" if pd.isna(value) else f"{value:g}" if isinstance(value, int | float) else str(value)
