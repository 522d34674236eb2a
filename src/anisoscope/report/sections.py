"""Build the sections of a report page in the order of page.toml (for a series: series.toml), and their tables."""

import tomllib
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pandas as pd

from anisoscope.report.figures import FIGURES, select_heads
from anisoscope.report.head_map import HeadMap, build_head_map
from anisoscope.report.parts import Entry, Figure, PageTable
from anisoscope.report.results import Results, describe_extent
from anisoscope.runs.extremes import activations_table, sinks_table
from anisoscope.wording import format_count, format_ends, format_number

Cell = tuple[str, str]
"""A value and its interval, as text."""
NOTHING: Cell = ("–", "")
KINDS = "kinds of heads"
"""Head of the last column of the table of attention."""
OF_EXTREMES = (
    "largest |x|",
    "token",
    "medians",
    "massive",
    "sink rate",
    "at first",
    "mass on punctuation",
    "value norm",
    "smallest logit",
    "largest logit",
)
"""Columns of the table of extremes, in their order."""


@dataclass(frozen=True)
class Section:
    """A section of a page: a question about the model in a sentence or two, and the figures that answer it.

    figures    all of them can be drawn alone, and have files
    head_map   shows the figures of heads as one map; None without heads
    """

    slug: str
    title: str
    lead: str
    figures: tuple[Figure, ...] = ()
    table: PageTable | None = None
    head_map: HeadMap | None = None

    @property
    def mapped(self) -> list[Figure]:
        """Return the figures whose quantities the interactive map of heads shows instead."""
        if self.head_map is None:
            return []
        return [quantity.figure for quantity in self.head_map.quantities]

    @property
    def drawn(self) -> list[Figure]:
        """Return the figures that are drawn on the page one by one."""
        mapped = {figure.name for figure in self.mapped}
        return [figure for figure in self.figures if figure.name not in mapped]


def build_sections(results: Results) -> list[Section]:
    """Build the sections of a report page; a section is left out if the run or series has no numbers for it."""
    # Over the steps of a training other questions arise than about one model.
    page = "series.toml" if "checkpoints" in results.manifest else "page.toml"
    content = tomllib.loads(
        files("anisoscope.report").joinpath(page).read_text("utf-8")
    )
    sections = [_build_section(results, entry) for entry in content["section"]]
    return [section for section in sections if section is not None]


def _build_section(results: Results, entry: Entry) -> Section | None:
    """Build one section of a page; None if there are no numbers for any of its figures or its table.

    entry   the section in page.toml
    """
    figures: list[Figure] = []
    of_heads: list[tuple[Entry, pd.DataFrame, Figure]] = []
    for described in entry.get("figure", ()):
        # A name that is missing there is a mistake in page.toml, and stops the page.
        draw = FIGURES[described["by"]]
        drawn = draw(results, described)
        figures += drawn
        # The map of heads shows these as quantities to choose from.
        if described["by"] == "heads":
            for figure in drawn:
                rows = select_heads(results, described)
                of_heads.append((described, rows, figure))
    table = None
    if "table" in entry:
        build_table = TABLES[entry["table"]["by"]]
        table = build_table(results, entry["table"])
    if not figures and table is None:
        return None
    return Section(
        slug=entry["slug"],
        title=results.put_in_words(entry["title"]),
        lead=results.put_in_words(entry["lead"]),
        figures=tuple(figures),
        table=table,
        head_map=build_head_map(results, of_heads),
    )


def tabulate_layers(results: Results, entry: Entry) -> PageTable | None:
    """Build a table with the values of every layer and their intervals; metrics with one label share a column.

    entry   the table's entry in page.toml

    None if none of its metrics was measured.
    """
    frame = results.stack_metrics(entry["columns"])
    if frame.empty:
        return None
    # Only what was measured gets a column.
    labels = list(dict.fromkeys(frame["series"]))
    # Metrics may lack some layers: rows are those that any of them has.
    places = results.sort_by_depth(frame.drop_duplicates(["stack", "layer", "site"]))
    rows = []
    for _, place in places.iterrows():
        cells = {}
        for _, row in results.select_place(frame, place).iterrows():
            cells[row["series"]] = _format_estimate(row)
        rows.append(_build_row(results.name_place(place), cells, labels))
    caption = (
        entry["caption"]
        .format(basis=results.describe_basis(results.select_layers("mean_cosine")))
        .strip()
    )
    return PageTable(results.put_in_words(caption), ("site", *labels), tuple(rows))


def _build_row(
    name: str, cells: Mapping[str, Cell], columns: Iterable[str]
) -> tuple[Cell, ...]:
    """Return a row of a table: its name, then its cell of each column, or a dash."""
    row = [(name, "")]
    for column in columns:
        row.append(cells.get(column, NOTHING))
    return tuple(row)


def tabulate_steps(results: Results, entry: Entry) -> PageTable | None:
    """Build a table with a row for every checkpoint and a column for every layer; None if its metric was not measured.

    entry   the table's entry in page.toml
    """
    frame = results.select_layers(entry["metric"])
    if frame.empty:
        return None
    # Layers as columns: a training has more steps than a model has layers.
    frame = frame.assign(place=[results.name_place(row) for _, row in frame.iterrows()])
    places = list(dict.fromkeys(frame["place"]))
    has_seeds = frame["seed"].nunique() > 1
    rows = []
    for (seed, step), part in frame.groupby(["seed", "step"], dropna=False):
        name = f"step {step:,.0f}"
        if has_seeds:
            name += f", seed {seed:.0f}"
        cells = {row["place"]: _format_estimate(row) for _, row in part.iterrows()}
        rows.append(_build_row(name, cells, places))
    caption = entry["caption"].format(basis=results.describe_basis(frame))
    return PageTable(
        results.put_in_words(caption), ("checkpoint", *places), tuple(rows)
    )


def tabulate_attention(results: Results, entry: Entry) -> PageTable | None:
    """Build a table of means over the heads of every layer with their intervals, and the kinds of heads."""
    table, means = results.attention, results.attention_layers
    if table.empty:
        return None
    measured = set(means["metric"])
    columns = {}
    for metric, label in entry["columns"].items():
        if metric in measured:
            columns[metric] = label
    # Stack and kind of attention are named only if there are several.
    prefixes = [name for name in ("stack", "kind") if table[name].nunique() > 1]
    place = ["stack", "kind", "layer"]
    rows = []
    for _, line in table.iterrows():
        here = means[means[place].eq(line[place]).all(axis=1)]
        cells = {}
        for _, row in here.drop_duplicates("metric").iterrows():
            cells[row["metric"]] = _format_estimate(row)
        # The second text of a cell is small: here the number of heads instead of an
        # interval.
        cells[KINDS] = (_list_kinds(line), f"of {line['heads']}")
        words = [str(line[prefix]) for prefix in prefixes]
        words.append(f"layer {line['layer']}")
        rows.append(_build_row(" ".join(words), cells, (*columns, KINDS)))
    return PageTable(
        results.put_in_words(entry["caption"]),
        ("layer", *columns.values(), KINDS),
        tuple(rows),
    )


def _list_kinds(line: pd.Series) -> str:
    """Return how many heads of each kind a layer has: `3 sink, 1 aligned`; a dash if none has a kind.

    line   a row of the table of attention, with a column `… heads` for each kind
    """
    parts = []
    for column, count in line.items():
        name = str(column)
        if name.endswith(" heads") and count:
            parts.append(f"{count} {name.removesuffix(' heads')}")
    return ", ".join(parts) or NOTHING[0]


def tabulate_extremes(results: Results, entry: Entry) -> PageTable | None:
    """Build a table of the largest activations and of attention sinks by layer; None if neither was measured."""
    activations = activations_table(results.records)
    sinks = sinks_table(results.records, replicates=results.replicates)
    if activations.empty and sinks.empty:
        return None
    tokens = results.manifest.get("tokens") or {}
    cells_at = _collect_extremes(activations, sinks, tokens)
    measured: set[str] = set()
    for cells in cells_at.values():
        measured.update(cells)
    columns = [name for name in OF_EXTREMES if name in measured]
    several_stacks = len({stack for stack, _, _ in cells_at}) > 1
    rows = []
    # By stack and layer; the empty word sorts a layer before its cross-attention and
    # its final norm.
    for place in sorted(cells_at):
        stack, layer, what = place
        name = f"layer {layer} {what}".strip()
        if several_stacks:
            name = f"{stack} {name}"
        rows.append(_build_row(name, cells_at[place], columns))
    caption = results.put_in_words(entry["caption"])
    return PageTable(caption, ("layer", *columns), tuple(rows))


def _collect_extremes(
    activations: pd.DataFrame, sinks: pd.DataFrame, words: Mapping[str, str]
) -> dict[tuple[str, int, str], dict[str, Cell]]:
    """Return the cells of the table of extremes by place: stack, layer, and `final`, `cross` or nothing.

    words   the text of each token by its number, as far as it is known
    """
    cells_at: dict[tuple[str, int, str], dict[str, Cell]] = {}
    for line in activations.to_dict("records"):
        site = "final" if line["site"] == "final" else ""
        cells = cells_at.setdefault((line["stack"], int(line["layer"]), site), {})
        cells |= _format_activations(line, words)
    for line in sinks.to_dict("records"):
        kind = "" if line["kind"] == "self" else str(line["kind"])
        # Sinks of self-attention join the row of their layer's activations;
        # cross-attention gets a row of its own.
        cells = cells_at.setdefault((line["stack"], int(line["layer"]), kind), {})
        cells |= _format_sinks(line)
    return cells_at


def _format_activations(
    line: Mapping[Hashable, Any], words: Mapping[str, str]
) -> dict[str, Cell]:
    """Return the cells of the largest activation of a layer.

    words   the text of each token by its number, as far as it is known
    """
    cells: dict[str, Cell] = {}
    for name in ("medians", "massive"):
        # A metric that was not measured is no column of the table.
        if name in line:
            cells[name] = (format_number(line[name]), "")
    if "largest" in line:
        cells["largest |x|"] = (
            format_number(line["largest"]),
            f"dimension {line['dimension']}",
        )
        cells["token"] = (
            words.get(str(line.get("token")), "–"),
            f"position {line['position']}",
        )
    return cells


def _format_sinks(line: Mapping[Hashable, Any]) -> dict[str, Cell]:
    """Return the cells that describe the attention sinks of a layer: {column: cell}.

    line   the layer's values by column
    """
    cells: dict[str, Cell] = {}
    if "sink rate" in line:
        interval = ""
        if pd.notna(line["low"]) and pd.notna(line["high"]):
            interval = f"[{format_number(line['low'])}, {format_number(line['high'])}]"
        cells["sink rate"] = (format_number(line["sink rate"]), interval)
    for name in (
        "at first",
        "mass on punctuation",
        "value norm",
        "smallest logit",
        "largest logit",
    ):
        if pd.notna(line.get(name)):
            cells[name] = (format_number(line[name]), "")
    return cells


def tabulate_embeddings(results: Results, entry: Entry) -> PageTable | None:
    """Build a table of the isotropy of the embedding matrices; None if it was not measured."""
    frame = results.select_rows(entry["metric"])
    if frame.empty:
        return None
    rows = []
    for _, row in frame.iterrows():
        matrix = (str(row["site"]), "")
        size = (format_count(row["n_vectors"]), "")
        rows.append((matrix, _format_estimate(row), size))
    return PageTable(
        results.put_in_words(entry["caption"]), tuple(entry["head"]), tuple(rows)
    )


def tabulate_effects(results: Results, entry: Entry) -> PageTable | None:
    """Build a table with a row for every component and layer, and a column for every measure.

    entry   the table's entry in page.toml: the `prefix` of its metrics, its `columns`, and the name of rows without a
            layer (`whole`). None if nothing was measured
    """
    frame = results.table[results.table["metric"].str.startswith(entry["prefix"])]
    if frame.empty:
        return None
    cells_of: dict[str, dict[str, Cell]] = {}
    for _, row in frame.iterrows():
        place = entry["whole"]
        if not pd.isna(row["layer"]):
            place = f", layer {row['layer']:.0f}"
        # One row for each component and layer, with the metrics of the prefix side by
        # side.
        cells = cells_of.setdefault(f"{row['component']}{place}", {})
        cells[row["metric"].removeprefix(entry["prefix"])] = (
            format_number(row["value"]),
            "",
        )
    measured: set[str] = set()
    for cells in cells_of.values():
        measured.update(cells)
    columns = {key: label for key, label in entry["columns"].items() if key in measured}
    rows = tuple(_build_row(name, cells, columns) for name, cells in cells_of.items())
    return PageTable(
        f"{describe_extent(frame['n_units'])} utterances.",
        (entry["first"], *columns.values()),
        rows,
    )


def _format_estimate(row: pd.Series) -> Cell:
    """Return a table cell: (formatted value, its interval)."""
    return format_number(row["value"]), format_ends(row)


TABLES: dict[str, Callable[[Results, Entry], PageTable | None]] = {
    "all_layers": tabulate_layers,
    "attention_by_layer": tabulate_attention,
    "extremes_by_layer": tabulate_extremes,
    "by_step": tabulate_steps,
    "embeddings": tabulate_embeddings,
    "effects": tabulate_effects,
}
"""By the name that page.toml calls them."""
