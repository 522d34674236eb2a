"""Build the sections of a report page in the order of page.toml (for a series: series.toml), and their tables."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files

import pandas as pd

from anisoscope.report.figures import FIGURES, select_heads
from anisoscope.report.head_map import HeadMap, build_head_map
from anisoscope.report.parts import Entry, Figure, PageTable
from anisoscope.report.results import Results, describe_extent
from anisoscope.runs.extremes import activations_table, sinks_table
from anisoscope.wording import format_count, format_ends, format_number

NOTHING = ("–", "")


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
        """Return the figures that the map of heads shows."""
        return [quantity.figure for quantity in self.head_map.quantities] if self.head_map else []

    @property
    def drawn(self) -> list[Figure]:
        """Return the figures that are drawn on the page one by one."""
        mapped = {figure.name for figure in self.mapped}
        return [figure for figure in self.figures if figure.name not in mapped]


def build_sections(results: Results) -> list[Section]:
    """Build the sections of a report page; a section is left out if the run or series has no numbers for it."""
    page = "series.toml" if "checkpoints" in results.manifest else "page.toml"
    content = tomllib.loads(files("anisoscope.report").joinpath(page).read_text("utf-8"))
    found = []
    for entry in content["section"]:
        figures: list[Figure] = []
        heads = []
        for one in entry.get("figure", ()):
            drawn = FIGURES[one["by"]](results, one)
            figures += drawn
            heads += [(one, select_heads(results, one), figure) for figure in drawn if one["by"] == "heads"]
        table = None
        if "table" in entry:
            table = TABLES[entry["table"]["by"]](results, entry["table"])
        if figures or table:
            title, lead = results.worded(entry["title"]), results.worded(entry["lead"])
            found.append(Section(entry["slug"], title, lead, tuple(figures), table, build_head_map(results, heads)))
    return found


def all_layers(results: Results, entry: Entry) -> PageTable | None:
    """Build a table with the values of every layer and their intervals; metrics with one label share a column.

    entry   the table's entry in page.toml. None if none of its metrics was measured
    """
    frame = results.stacked(entry["columns"])
    if frame.empty:
        return None
    labels = list(dict.fromkeys(frame["series"]))
    rows = []
    for _, place in results.by_depth(frame.drop_duplicates(["stack", "layer", "site"])).iterrows():
        here = {row["series"]: _cell(row) for _, row in results.beside(frame, place).iterrows()}
        rows.append(((results.place_name(place), ""), *(here.get(label, NOTHING) for label in labels)))
    caption = entry["caption"].format(basis=results.basis(results.layers("mean_cosine"))).strip()
    return PageTable(results.worded(caption), ("site", *labels), tuple(rows))


def by_step(results: Results, entry: Entry) -> PageTable | None:
    """Build a table with a row for every checkpoint and a column for every layer.

    entry   the table's entry in page.toml. None if its metric was not measured
    """
    frame = results.layers(entry["metric"])
    if frame.empty:
        return None
    frame = frame.assign(place=[results.place_name(row) for _, row in frame.iterrows()])
    places, several = list(dict.fromkeys(frame["place"])), frame["seed"].nunique() > 1
    rows = []
    for (seed, step), part in frame.groupby(["seed", "step"], dropna=False):
        here = {row["place"]: _cell(row) for _, row in part.iterrows()}
        name = f"step {step:,.0f}" + (f", seed {seed:.0f}" if several else "")
        rows.append(((name, ""), *(here.get(place, NOTHING) for place in places)))
    caption = entry["caption"].format(basis=results.basis(frame))
    return PageTable(results.worded(caption), ("checkpoint", *places), tuple(rows))


def attention_by_layer(results: Results, entry: Entry) -> PageTable | None:
    """Build a table of means over the heads of every layer with their intervals, and the kinds of heads."""
    table, means = results.attention, results.attention_layers
    if table.empty:
        return None
    there = [metric for metric in entry["columns"] if metric in set(means["metric"])]
    several = [name for name in ("stack", "kind") if table[name].nunique() > 1]
    kinds = [name.removesuffix(" heads") for name in table.columns if name.endswith(" heads")]
    rows = []
    for _, line in table.iterrows():
        here = means[means[["stack", "kind", "layer"]].eq(line[["stack", "kind", "layer"]]).all(axis=1)]
        place = " ".join([*(str(line[name]) for name in several), f"layer {line['layer']}"])
        cells = [(place, "")]
        for metric in there:
            found = here[here["metric"].eq(metric)]
            cells.append(_cell(found.iloc[0]) if len(found) else NOTHING)
        named = [f"{line[f'{kind} heads']} {kind}" for kind in kinds if line[f"{kind} heads"]]
        cells.append((", ".join(named) or NOTHING[0], f"of {line['heads']}"))
        rows.append(tuple(cells))
    head = ("layer", *(entry["columns"][metric] for metric in there), "kinds of heads")
    return PageTable(results.worded(entry["caption"]), head, tuple(rows))


def extremes_by_layer(results: Results, entry: Entry) -> PageTable | None:
    """Build a table of the largest activations and of attention sinks by layer; None if neither was measured."""
    activations = activations_table(results.records)
    sinks = sinks_table(results.records, replicates=results.replicates)
    if activations.empty and sinks.empty:
        return None
    words = results.manifest.get("tokens") or {}
    by_place: dict[tuple[str, int, str], dict[str, tuple[str, str]]] = {}
    for line in activations.to_dict("records"):
        place = "final" if line["site"] == "final" else ""
        cells = by_place.setdefault((line["stack"], int(line["layer"]), place), {})
        cells |= {name: (format_number(line[name]), "") for name in ("medians", "massive") if name in line}
        if "largest" in line:
            cells["largest |x|"] = format_number(line["largest"]), f"dimension {line['dimension']}"
            cells["token"] = words.get(str(line.get("token")), "–"), f"position {line['position']}"
    for line in sinks.to_dict("records"):
        kind = "" if line["kind"] == "self" else str(line["kind"])
        cells = by_place.setdefault((line["stack"], int(line["layer"]), kind), {})
        if "sink rate" in line:
            low, high = line["low"], line["high"]
            known = f"[{format_number(low)}, {format_number(high)}]" if pd.notna(low) and pd.notna(high) else ""
            cells["sink rate"] = format_number(line["sink rate"]), known
        for name in ("at first", "mass on punctuation", "value norm", "smallest logit", "largest logit"):
            if pd.notna(line.get(name)):
                cells[name] = format_number(line[name]), ""
    order = ["largest |x|", "token", "medians", "massive", "sink rate", "at first", "mass on punctuation"]
    order += ["value norm", "smallest logit", "largest logit"]
    head = [name for name in order if any(name in cells for cells in by_place.values())]
    several = len({stack for stack, _, _ in by_place}) > 1
    rows = []
    for (stack, layer, kind), cells in sorted(by_place.items(), key=lambda item: item[0]):
        place = " ".join(filter(None, [stack if several else "", f"layer {layer}", kind]))
        rows.append(((place, ""), *(cells.get(name, NOTHING) for name in head)))
    return PageTable(results.worded(entry["caption"]), ("layer", *head), tuple(rows))


def embeddings(results: Results, entry: Entry) -> PageTable | None:
    """Build a table of the isotropy of the embedding matrices; None if it was not measured."""
    frame = results.rows(entry["metric"])
    rows = [((str(row["site"]), ""), _cell(row), (format_count(row["n_vectors"]), "")) for _, row in frame.iterrows()]
    return PageTable(results.worded(entry["caption"]), tuple(entry["head"]), tuple(rows)) if rows else None


def effects(results: Results, entry: Entry) -> PageTable | None:
    """Build a table with a row for every component and layer, and a column for every measure.

    entry   the table's entry in page.toml: the `prefix` of its metrics, its `columns`, and the name of rows without a
            layer (`whole`). None if nothing was measured
    """
    frame = results.table[results.table["metric"].str.startswith(entry["prefix"])]
    if frame.empty:
        return None
    cells: dict[str, dict[str, tuple[str, str]]] = {}
    for _, row in frame.iterrows():
        place = entry["whole"] if pd.isna(row["layer"]) else f", layer {row['layer']:.0f}"
        measure = row["metric"].removeprefix(entry["prefix"])
        cells.setdefault(f"{row['component']}{place}", {})[measure] = (format_number(row["value"]), "")
    columns = {key: label for key, label in entry["columns"].items() if any(key in row for row in cells.values())}
    rows = tuple(((name, ""), *(row.get(key, NOTHING) for key in columns)) for name, row in cells.items())
    return PageTable(f"{describe_extent(frame['n_units'])} utterances.", (entry["first"], *columns.values()), rows)


def _cell(row: pd.Series) -> tuple[str, str]:
    """Return a table cell: (formatted value, its interval)."""
    return format_number(row["value"]), format_ends(row)


TABLES = {
    made.__name__: made for made in (all_layers, attention_by_layer, extremes_by_layer, by_step, embeddings, effects)
}
"""By the name that page.toml calls them."""
