"""The report page of a comparison: all runs in one figure, their differences in another, every number in a table."""

from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.report.page import HERE, draw_figures, write_page
from anisoscope.report.parts import WIDE, Figure, PageTable, find_extremes
from anisoscope.report.results import describe_extent
from anisoscope.runs.comparison import ComparedRuns
from anisoscope.runs.short_tables import A
from anisoscope.store import check_output, write_json, write_table
from anisoscope.wording import format_number, format_signed_interval, iter_rows

TEMPLATE = "comparison.html.j2"
FINAL_AT = 1.04
"""Position of the final norm on an axis of relative depth; the last block is at 1."""
MOST_LINES = 8
"""Components that are drawn as lines of their own."""


def write_comparison(
    compared: ComparedRuns, folder: Path, formats: tuple[str, ...] = ("svg",)
) -> Path:
    """Write `report.html`, `figures/`, `differences.parquet` and `comparison.json` into a folder, and return the
    page's path.

    formats   of the files of figures next to the page: svg, pdf, png
    """
    # Before anything is drawn, which takes seconds.
    check_output(folder)
    figures = list(build_figures(compared))
    drawn = draw_figures(figures, folder / "figures", formats)
    write_table(folder / "differences.parquet", compared.table)
    write_json(folder / "comparison.json", _describe(compared))
    return write_page(
        folder,
        HERE.joinpath(TEMPLATE),
        title=" · ".join(compared.names),
        metric=name_metric(compared.metric),
        headline=[finding.text for finding in compared.findings],
        notes=list(compared.notes),
        facts=[
            (run.name, str(run.manifest.get("model") or "–")) for run in compared.runs
        ],
        figures=figures,
        drawn=drawn,
        formats=formats,
        table=_build_table(compared),
    )


def _describe(compared: ComparedRuns) -> dict[str, Any]:
    """Return what was compared and found, for `comparison.json`."""
    runs = []
    for run in compared.runs:
        model, identifier = run.manifest.get("model"), run.manifest.get("run")
        runs.append({"name": run.name, "model": model, "run": identifier})
    return {
        "metric": compared.metric,
        "tokens": compared.tokens,
        "heads": compared.heads,
        "runs": runs,
        "notes": compared.notes,
        "findings": [finding.text for finding in compared.findings],
    }


def name_metric(metric: str) -> str:
    """Return how an axis of a figure names a metric: `anisotropy A` for the mean cosine."""
    return "anisotropy A" if metric == A else metric


def build_figures(compared: ComparedRuns) -> list[Figure]:
    """Build the figures of a comparison: the metric of all runs by layer, and the differences from the first run.

    Metrics of heads are drawn as a heat map.
    """
    table = compared.table
    if not len(table):
        return []
    if compared.heads:
        return [_build_head_map(compared, table)]
    values = _collect_values(compared)
    # A classifier as a whole, and a matrix of embeddings, are in no layer.
    if values["layer"].isna().all():
        return [_build_bars(compared, _select_whole(values))]
    places = values.drop_duplicates(["panel", "layer", "site"])
    # A line through a single point says nothing.
    if len(places) < 2:
        return [_build_bars(compared, values)]
    differences = _collect_differences(compared, table)
    # The final norm comes after the last block in any depth, so that it does not
    # decide.
    blocks = table[table["site"].ne("final").fillna(True)]
    # Models of different depths have no common numbers of layers.
    is_relative = bool(blocks["layer_other"].ne(blocks["layer"]).fillna(False).any())
    axis = "relative depth" if is_relative else "layer"
    metric = name_metric(compared.metric)
    against = compared.names[0]
    return [
        _build_lines(
            "values", _title_values(metric), values, (axis, metric), is_relative
        ),
        _build_lines(
            "differences",
            f"Difference from {against}",
            differences,
            (axis, "difference"),
            is_relative,
        ),
    ]


def _title_values(metric: str) -> str:
    """Return the title of a figure with the values of every run."""
    return f"{metric[0].upper()}{metric[1:]} of every run"


def _build_lines(
    name: str,
    title: str,
    frame: pd.DataFrame,
    titles: tuple[str, str],
    is_relative: bool,
) -> Figure:
    """Build a line figure over the layers, with intervals as ribbons.

    name          of its file
    frame         values by layer, with the columns of `_to_plain_types`
    titles        of the two axes
    is_relative   whether layers are placed by relative depth
    """
    panel = "panel" if frame["panel"].nunique() > 1 else None

    def draw(width: int) -> ChartType:
        """Draw the lines at this width in pixels."""
        height, columns = 210, 1
        if width >= WIDE:
            height, columns = 290, 2
        options: dict[str, Any] = {
            "series": "run",
            "panel": panel,
            "size": (width, height),
            "columns": columns,
        }
        # `layer_curve` has the numbers of layers on its axis, which models of different
        # depths do not share.
        if is_relative:
            return charts.trajectory(
                frame, x="depth", titles=titles, zero=True, **options
            )
        return charts.layer_curve(frame, title=titles[1], **options)

    lowest, highest = find_extremes(frame)
    span = f"lowest {format_number(lowest['value'])} ({lowest['run']}), "
    span += f"highest {format_number(highest['value'])} ({highest['run']})"
    caption = "Ribbons are 95 % intervals."
    if not frame["joined"].all():
        caption = (
            "Ribbons are 95 % intervals; a diamond is the output after the final norm."
        )
    if name == "differences":
        caption = (
            "An interval that does not hold 0 tells a layer of two runs apart. "
            + caption
        )
    basis = ""
    if frame["n"].notna().any():
        basis = f"n = {describe_extent(frame['n'])} units"
    return Figure(
        name,
        title,
        caption,
        basis,
        f"Line chart of {titles[1]} by {titles[0]}: {span}.",
        {"": draw},
    )


def _select_whole(values: pd.DataFrame) -> pd.DataFrame:
    """Return the values of all classes together; all values if there are none for all together."""
    whole = values[values["component"].isna()]
    return whole if len(whole) else values


def _build_bars(compared: ComparedRuns, values: pd.DataFrame) -> Figure:
    """Build a figure with a bar for each run, used if there is only one layer, or none.

    values   a row per run; if there are more, one per run and site, or per run and panel, which are drawn apart
    """
    metric = name_metric(compared.metric)
    panels = [name for name in ("site", "panel") if values[name].nunique() > 1]

    def draw(width: int) -> ChartType:
        """Draw the bars at this width in pixels."""
        return charts.bars(
            values,
            category="run",
            titles=(metric, ""),
            panel=panels[0] if panels else None,
            size=(width, 26),
        )

    caption = "Whiskers are 95 % intervals of each run by itself; those of the differences stand in the table."
    return Figure(
        "values",
        _title_values(metric),
        caption,
        "",
        f"Bars of {metric} by run.",
        {"": draw},
    )


def _build_head_map(compared: ComparedRuns, table: pd.DataFrame) -> Figure:
    """Build a heat map of the differences of all heads; a number is in brackets if its interval contains 0.

    table   one row per difference
    """
    frame = table[table["head"].notna() & table["layer"].notna()]
    frame = frame.assign(
        value=frame["difference"],
        layer=frame["layer"].astype(int),
        head=frame["head"].astype(int),
    )
    panels = list(dict.fromkeys(frame["run"]))
    # Zero in the middle of the colours: the sign of a difference is what matters.
    drawn = partial(
        charts.heatmap,
        frame,
        diverging=True,
        title="difference",
        panel="run" if len(panels) > 1 else None,
    )

    def draw(width: int) -> ChartType:
        """Draw the heat map at this width in pixels."""
        # Heat maps take the height of a row, not of the chart.
        return drawn(size=(width, 22 if width >= WIDE else 18))

    caption = "In brackets, or with a dot: the interval of the difference contains 0."
    title = f"{name_metric(compared.metric)}: difference from {compared.names[0]}, head by head"
    return Figure(
        "heads",
        title,
        caption,
        "",
        f"Heat map of differences over {len(frame)} heads.",
        {"": draw},
    )


def _name_panels(table: pd.DataFrame) -> pd.Series:
    """Return the panel (small multiple) of each row: its stack, cross-attention apart, and its component."""
    # Records of a classifier as a whole have no stack.
    stack = table["stack"].astype("string").fillna("")
    kind = table["kind"].astype("string").eq("cross").fillna(False)
    parts = stack.mask(kind, stack + ", cross-attention")
    component = table["component"].astype("string").fillna("")
    # More components would give more panels than anybody reads: they share one.
    if component.nunique() > MOST_LINES:
        return parts.str.strip()
    return parts.where(component.eq(""), parts + " " + component).str.strip()


def _scale_depths(table: pd.DataFrame, column: str) -> pd.Series:
    """Return the depth of each row from 0 (input) to 1 (last block); the output after the final norm comes a little
    later.

    column   the column that holds the numbers of layers
    """
    layer = table[column].astype("float64")
    # At least 1: a model of which only layer 0 was measured has no depth to divide by.
    deepest = layer.groupby(table["run"]).transform("max").clip(lower=1)
    return (layer / deepest).mask(table["site"].eq("final").fillna(False), FINAL_AT)


def _collect_values(compared: ComparedRuns) -> pd.DataFrame:
    """Return the values of every run at each of its layers, including layers without a match in other runs."""
    frame = compared.values
    n = {run.name: _count_units(run.manifest) for run in compared.runs}
    # Here with the layers that have no counterpart: a curve should not end where the
    # other model does.
    frame = frame.assign(
        panel=_name_panels(frame),
        depth=_scale_depths(frame, "layer"),
        n=frame["run"].map(n),
    )
    stacks = frame.groupby("run")["stack"].nunique()
    # Runs of one stack each, such as an encoder and a decoder, share a panel.
    if stacks.max() == 1:
        frame = frame.assign(panel=frame["component"].astype("string").fillna(""))
    return _to_plain_types(frame.assign(joined=frame["site"].ne("final").fillna(True)))


def _collect_differences(compared: ComparedRuns, table: pd.DataFrame) -> pd.DataFrame:
    """Return the differences of every run from the first, by the first run's layers; the first run itself is 0."""
    frame = table.assign(
        value=table["difference"],
        depth=_scale_depths(table, "layer"),
        panel=_name_panels(table),
    )
    frame = frame.assign(n=float("nan"), joined=table["site"].ne("final").fillna(True))
    # The first run as a line at 0, so that it has a colour and a name in the legend.
    zero = frame.drop_duplicates(["panel", "layer", "site", "component"])
    zero = zero.assign(
        run=compared.names[0], value=0.0, low=float("nan"), high=float("nan")
    )
    return _to_plain_types(pd.concat([zero, frame], ignore_index=True))


def _to_plain_types(frame: pd.DataFrame) -> pd.DataFrame:
    """Return only the columns that a chart needs (`run`, `panel`, `layer`, `value`, …), as text and floats.

    Rows without a value are left out, and those without a layer if others have one.
    """
    kept = frame[
        [
            "run",
            "panel",
            "layer",
            "site",
            "component",
            "depth",
            "joined",
            "value",
            "low",
            "high",
            "n",
        ]
    ]
    kept = kept[kept["value"].notna()]
    in_layer = kept["layer"].notna()
    if in_layer.any():
        kept = kept[in_layer]
    # Plain columns, with NaN for what is missing, as the builders expect.
    text = dict.fromkeys(("run", "panel", "site", "component"), "object")
    numbers = dict.fromkeys(("layer", "depth", "value", "low", "high", "n"), "float64")
    return kept.astype(text | numbers).astype({"joined": bool})


def _count_units(manifest: Any) -> float:
    """Return the number of units of a run's corpus; NaN if unknown."""
    corpus = manifest.get("corpus")
    # Old manifests hold only the name of the corpus.
    if not hasattr(corpus, "get") or corpus.get("n_units") is None:
        return float("nan")
    return float(corpus["n_units"])


def _build_table(compared: ComparedRuns) -> PageTable:
    """Build the table of the page, with one row for each difference."""
    table = compared.table
    optional = []
    for name in ("stack", "head", "component"):
        # Missing entries count: some rows may have a component, and others none.
        if table[name].nunique(dropna=False) > 1:
            optional.append(name)
    head = (
        "run",
        "layer",
        *optional,
        compared.names[0],
        "run’s own value",
        "difference",
    )
    rows = []
    for one in iter_rows(table):
        cells = [(str(one.run), ""), (_name_layers(one), "")]
        # Columns in which all rows are alike are left out.
        cells += [(_format_entry(getattr(one, name)), "") for name in optional]
        cells.append(_format_estimate(one.first, one.first_low, one.first_high))
        cells.append(_format_estimate(one.second, one.second_low, one.second_high))
        text = format_signed_interval(one.difference, one.low, one.high)
        # Value and interval have lines of their own in a cell.
        difference, _, ends = text.partition(" [")
        interval = f"[{ends}" if ends else ""
        cells.append((difference, interval))
        rows.append(tuple(cells))
    caption = f"Every difference from {compared.names[0]}; two layers: of {compared.names[0]}, and of the other run."
    return PageTable(caption, head, tuple(rows))


def _name_layers(row: Any) -> str:
    """Return the layer that a difference is about: `3`, or `3 · 6` if the matched layers have different numbers."""
    if row.site == "final":
        return "final"
    layer = _format_entry(row.layer)
    if pd.isna(row.layer_other) or row.layer_other == row.layer:
        return layer
    return f"{layer} · {_format_entry(row.layer_other)}"


def _format_estimate(value: Any, low: Any, high: Any) -> tuple[str, str]:
    """Return a table cell: (formatted value, its interval or an empty string)."""
    interval = ""
    if not pd.isna(low) and not pd.isna(high) and low != high:
        interval = f"[{format_number(low)}, {format_number(high)}]"
    if pd.isna(value):
        return "–", interval
    return format_number(value), interval


def _format_entry(value: Any) -> str:
    """Format a table entry as text; empty if it is missing."""
    if pd.isna(value):
        return ""
    if isinstance(value, int | float):
        return f"{value:g}"
    return str(value)
