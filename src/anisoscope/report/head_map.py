"""The map of heads of a report page: one table of heads, coloured by the quantity that the reader chooses.

The page holds the numbers of all quantities once, as text that is ready to be shown; `head_map.js` puts them into
the table and computes nothing. Without the script the page shows the first quantity.
"""

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup

from anisoscope.charts import style
from anisoscope.report.parts import Entry, Figure
from anisoscope.report.results import CROSSED, PANEL, Results, name_panels
from anisoscope.runs.attention import attention_table
from anisoscope.wording import (
    count_noun,
    format_ends,
    format_measured,
    format_number,
    iter_rows,
)

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxy"
"""One character for each shade, from the lowest value to the highest; an odd number, so that 0 has a shade."""
UNDEFINED = "-"
"""The character in place of a shade, for a head without a value."""
NO_HEAD = " "
"""The character in place of a shade, if a layer has no such head."""
NEGATIVE, DOUBTFUL, PLAIN = "−", "·", " "
"""Marks of heads if numbers do not fit: a value below 0, one whose interval holds 0, and any other."""
SEPARATOR = ";"
"""Between the texts of heads; no number holds it."""
FITS_PHONE = 8
"""The most heads of a layer whose numbers fit their cells on a phone."""
FITS_SCREEN = 20
"""The most heads of a layer whose numbers fit their cells on a wide screen."""
TALL = 24
"""From this many layers on, rows are low enough to fit a screen."""
LABEL_STEP = 8
"""So many columns share a heading, the number of the first, if heads are so many that their numbers do not fit."""
PLACE = [PANEL, "layer", "head"]
NOTHING = "–"
MARK_CLASSES = {NEGATIVE: " minus", DOUBTFUL: " doubt", PLAIN: ""}


@dataclass(frozen=True)
class Panel:
    """Heads of one stack and kind of attention: a table of layers down and heads across.

    name     empty if there is only one
    layers   their numbers, from the first
    heads    numbers of heads of any layer
    """

    name: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]

    @property
    def places(self) -> list[tuple[str, int, int]]:
        """Return the cells row by row, as (panel, layer, head)."""
        return [
            (self.name, layer, head) for layer in self.layers for head in self.heads
        ]


@dataclass(frozen=True)
class Quantity:
    """One quantity of all heads, as texts in the order of the cells.

    figure      its title, caption and drawing
    group       words of the menu above quantities of its kind
    unit        what the scale of colours shows
    diverging   the scale has its middle at 0
    scale       words below the scale of colours: lowest, middle, highest
    texts       values as text; empty if a layer has no such head
    ends        intervals as text; empty if there is none
    cells       values in the few characters that fit a cell
    shades      a character of `DIGITS`, `UNDEFINED` or `NO_HEAD` for each cell
    marks       `NEGATIVE`, `DOUBTFUL` or `PLAIN` for each cell
    ranks       place of each value among those of its panel, highest first
    layers      for each row of each panel, the lowest and the highest value of the layer
    """

    figure: Figure
    group: str
    unit: str
    diverging: bool
    scale: tuple[str, ...]
    texts: tuple[str, ...]
    ends: tuple[str, ...]
    cells: tuple[str, ...]
    shades: str
    marks: str
    ranks: tuple[str, ...]
    layers: tuple[str, ...]

    def list_classes(self) -> list[str]:
        """Return the CSS class of every cell, which gives it its colour."""
        classes = []
        for shade, mark in zip(self.shades, self.marks, strict=True):
            classes.append(name_shade(shade, mark, self.diverging))
        return classes


@dataclass(frozen=True)
class HeadMap:
    """The map of heads of a run.

    kinds    for each cell the kinds of its head by the rules of `runs.attention` (`sink, aligned`)
    layers   for each row of each panel a sentence on its layer
    """

    panels: tuple[Panel, ...]
    quantities: tuple[Quantity, ...]
    kinds: tuple[str, ...]
    layers: tuple[str, ...]
    name: str = "heads"

    @property
    def tables(self) -> list[dict[str, Any]]:
        """Return one table per panel, as the page's template needs it, with the numbers of the first quantity."""
        first = self.quantities[0]
        # An iterator over all cells: each row of each panel takes its share from it, in
        # order.
        cells = zip(first.list_classes(), first.cells, strict=True)
        tables = []
        for panel in self.panels:
            heads = len(panel.heads)
            rows = [(layer, list(islice(cells, heads))) for layer in panel.layers]
            table = {
                "name": _title_panel(panel, self.panels),
                "labels": _label_columns(panel),
                "rows": rows,
                "heads": heads,
                "look": _choose_look(panel),
            }
            tables.append(table)
        return tables

    @property
    def payload(self) -> Markup:
        """Return all numbers as JSON to put into the page's HTML.

        `<`, `>`, `&`, `'` and line separators are escaped, so that no text in it can end the script element.
        """
        content = {
            "digits": DIGITS,
            "panels": [_pack_panel(panel, self.panels) for panel in self.panels],
            "kinds": self.kinds,
            "layers": self.layers,
            "quantities": [_pack(quantity) for quantity in self.quantities],
        }
        # The line separators of Unicode end a line of a script in older engines.
        separators = {0x2028: "\\u2028", 0x2029: "\\u2029"}
        # Without spaces after separators: the numbers are most of the page.
        written = htmlsafe_json_dumps(
            style.escape_control_in(content),
            json.dumps,
            ensure_ascii=False,
            separators=(",", ":"),
        )
        return Markup(str(written).translate(separators))


def read_script() -> str:
    """Return the JavaScript that makes the map of heads interactive; it is the same on every page."""
    return files("anisoscope.report").joinpath("head_map.js").read_text("utf-8")


def build_head_map(
    results: Results, parts: Sequence[tuple[Entry, pd.DataFrame, Figure]]
) -> HeadMap | None:
    """Build the map of heads of a run; None without a quantity of heads.

    parts   of each quantity its entry in page.toml, its rows (one per head), and its figure
    """
    if not parts:
        return None
    heads = _find_heads(results, [frame for _, frame, _ in parts])
    panels = _list_panels(heads)
    cells: list[tuple[str, int, int]] = []
    for panel in panels:
        cells += panel.places
    places = pd.DataFrame(cells, columns=PLACE)
    # All cells of the rectangle, of which some layers may lack heads: those are marked
    # as not existing.
    places = places.merge(heads.assign(exists=1), how="left", on=PLACE)
    places["exists"] = places["exists"].eq(1)
    quantities = tuple(_write_quantity(places, panels, *part) for part in parts)
    kinds = _name_kinds(results, places)
    return HeadMap(panels, quantities, kinds, _describe_layers(results, places, kinds))


def _find_heads(results: Results, frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return panel, layer and head of every head, those without any defined value too, in order of depth."""
    # Heads whose values are all undefined are in no frame, but have a cell.
    measured = [results.head_places, *(frame[PLACE] for frame in frames)]
    heads = pd.concat(measured).astype({"layer": int, "head": int}).drop_duplicates()
    # Panels in the order of the figures.
    names = pd.concat(frame[PANEL] for frame in frames).unique()
    ranks = {name: i for i, name in enumerate(names)}
    # Panels without any defined value come last.
    order = heads[PANEL].map(ranks).fillna(len(ranks))
    return heads.assign(order=order).sort_values(
        ["order", PANEL, "layer", "head"], kind="stable"
    )[PLACE]


def _list_panels(heads: pd.DataFrame) -> tuple[Panel, ...]:
    """Return the panels of the head map: for each stack or kind of attention its layers and the numbers of its heads.

    heads   a row for each head, with columns for panel, layer and head; panels keep their order of appearance
    """
    panels = []
    for name, part in heads.groupby(PANEL, sort=False):
        layers = dict.fromkeys(part["layer"].tolist())
        # Heads of any layer: one layer may have more than another.
        numbers = sorted(set(part["head"].tolist()))
        panels.append(Panel(str(name), tuple(layers), tuple(numbers)))
    return tuple(panels)


def _title_panel(panel: Panel, panels: tuple[Panel, ...]) -> str:
    """Return the name of a panel as the page shows it: none if it is the only one."""
    return panel.name if len(panels) > 1 else ""


def _label_columns(panel: Panel) -> list[tuple[int, int]]:
    """Return the headings of a table: (number of a head, how many columns share its heading)."""
    # Numbers of single columns would overlap.
    step = LABEL_STEP if len(panel.heads) > FITS_SCREEN else 1
    labels = []
    for start in range(0, len(panel.heads), step):
        group = panel.heads[start : start + step]
        labels.append((group[0], len(group)))
    return labels


def _write_quantity(
    places: pd.DataFrame,
    panels: tuple[Panel, ...],
    entry: Entry,
    frame: pd.DataFrame,
    figure: Figure,
) -> Quantity:
    """Return one quantity with the texts, colours and marks of all cells of the map.

    places   the cells: panel, layer, head, and whether there `exists` such a head
    entry    the figure's entry in page.toml
    frame    the rows of the quantity, one per head
    figure   the same quantity as a figure
    """
    # One value for each cell: a quantity measured twice must not double the cells.
    own = frame[[*PLACE, "value", "low", "high"]].drop_duplicates(PLACE)
    cells = places.merge(own, how="left", on=PLACE)
    diverging = bool(entry["draw"].get("diverging", False))
    # Bounds over all panels, so that a colour means the same in each.
    bounds = style.find_bounds(frame["value"], diverging)
    marks = _mark_values(cells, diverging)
    dense = {panel.name for panel in panels if len(panel.heads) > FITS_SCREEN}
    texts: list[str] = []
    ends: list[str] = []
    numbers: list[str] = []
    for row, mark in zip(iter_rows(cells), marks, strict=True):
        has_room = getattr(row, PANEL) not in dense
        text = number = ""
        if row.exists:
            text = format_number(row.value)
            if has_room:
                number = _write_cell(row, mark)
        texts.append(text)
        ends.append(format_ends(row))
        numbers.append(number)
    return Quantity(
        figure=figure,
        group=entry["group"],
        unit=entry["draw"]["title"],
        diverging=diverging,
        scale=_write_scale(bounds),
        texts=tuple(texts),
        ends=tuple(ends),
        cells=tuple(numbers),
        shades=_choose_shades(cells, bounds),
        marks=marks,
        ranks=_write_ranks(cells),
        layers=_write_ranges(cells),
    )


def _mark_values(cells: pd.DataFrame, diverging: bool) -> str:
    """Return one character for each cell, so that the sign can be seen without its colour.

    On a scale with 0 in its middle (`diverging`) it is `NEGATIVE`, `DOUBTFUL` if the interval contains 0, or `PLAIN`;
    on other scales always `PLAIN`.
    """
    if not diverging:
        return PLAIN * len(cells)
    marks = np.where(cells["value"] < 0, NEGATIVE, PLAIN)
    holds_zero = (cells["low"] < 0) & (cells["high"] > 0)
    # After the sign: a value whose interval holds 0 is doubtful, whichever sign it has.
    return "".join(np.where(holds_zero, DOUBTFUL, marks))


def _write_cell(row: Any, mark: str) -> str:
    """Return the text of a cell with room for a number, in brackets if its interval holds 0."""
    if math.isnan(row.value):
        return NOTHING
    text = style.format_compact(float(row.value))
    return f"({text})" if mark == DOUBTFUL else text


def _write_scale(bounds: tuple[float, float]) -> tuple[str, ...]:
    """Return the numbers below the scale of colours: lowest, middle, highest; a single one if all are equal.

    bounds   lowest and highest value
    """
    low, high = bounds
    if low == high:
        return (format_number(low),)
    return format_number(low), format_number((low + high) / 2), format_number(high)


def _choose_shades(cells: pd.DataFrame, bounds: tuple[float, float]) -> str:
    """Return one character for each cell: the step of its value on the scale of colours, from `DIGITS`.

    Cells without a head, and undefined values, have characters of their own.

    bounds   lowest and highest value of the scale
    """
    low, high = bounds
    shades = []
    for value, exists in zip(cells["value"], cells["exists"], strict=True):
        if not exists:
            shades.append(NO_HEAD)
        elif math.isnan(value):
            shades.append(UNDEFINED)
        else:
            share = 0.0
            if high > low:
                share = (value - low) / (high - low)
            # A character for a shade: tens of thousands of cells are short in the page.
            shades.append(DIGITS[round(share * (len(DIGITS) - 1))])
    return "".join(shades)


def _write_ranks(cells: pd.DataFrame) -> tuple[str, ...]:
    """Return the place of each value among those of its panel, the highest first: `3 of 72`."""
    by_panel = cells.groupby(PANEL, sort=False)["value"]
    # Equal values share the better place; undefined ones have none.
    ranks = by_panel.rank(ascending=False, method="min")
    counts = by_panel.transform("count")
    texts = []
    for rank, count in zip(ranks, counts, strict=True):
        text = ""
        if not math.isnan(rank):
            text = f"{int(rank):,} of {count:,}"
        texts.append(text)
    return tuple(texts)


def _write_ranges(cells: pd.DataFrame) -> tuple[str, ...]:
    """Return for each layer its lowest and its highest value in words; empty if it has none."""
    ends = cells.groupby([PANEL, "layer"], sort=False)["value"].agg(["min", "max"])
    texts = []
    for low, high in zip(ends["min"], ends["max"], strict=True):
        if math.isnan(low):
            texts.append("")
        elif low == high:
            texts.append(format_number(low))
        else:
            texts.append(f"{format_number(low)} to {format_number(high)}")
    return tuple(texts)


def _name_kinds(results: Results, places: pd.DataFrame) -> tuple[str, ...]:
    """Return for each cell the kinds of its head, by the rules for findings: `sink, aligned`; empty for no kind."""
    table = attention_table(results.records, heads=True)
    if table.empty:
        return ("",) * len(places)
    kinds: dict[tuple[str, int, int], str] = {}
    rows = iter_rows(table.rename(columns={"kind of head": "kinds"}))
    # Panels are named after stack and kind of attention, as in the map.
    for panel, row in zip(name_panels(table), rows, strict=True):
        kinds[panel, row.layer, row.head] = row.kinds
    cells = places[PLACE].itertuples(index=False, name=None)
    return tuple(kinds.get(place, "") for place in cells)


def _describe_layers(
    results: Results, places: pd.DataFrame, kinds: Sequence[str]
) -> tuple[str, ...]:
    """Return for each layer of each panel a sentence: how many heads of which kind it has, and A of its output."""
    outputs = results.select_layers("mean_cosine")
    outputs = outputs[outputs["site"].eq("hidden")]
    measured = {}
    for row in iter_rows(outputs):
        measured[row.stack, int(row.layer)] = format_measured(row, None)
    heads = places.assign(kinds=kinds)
    heads = heads[heads["exists"]]
    sentences = []
    for (panel, layer), part in heads.groupby([PANEL, "layer"], sort=False):
        counts: Counter[str] = Counter()
        for of_head in part["kinds"]:
            counts.update(filter(None, of_head.split(", ")))
        sentence = f"Layer {layer} has {count_noun(len(part), 'head')}"
        if counts:
            listed = ", ".join(f"{count} {kind}" for kind, count in counts.items())
            sentence += f", among them {listed}"
        sentence += "."
        # Cross-attention belongs to the blocks of the same stack.
        stack = str(panel).removesuffix(CROSSED)
        output = measured.get((stack, int(part["layer"].iloc[0])))
        if output:
            sentence += f" A of its output: {output}."
        sentences.append(sentence)
    return tuple(sentences)


def name_shade(shade: str, mark: str, diverging: bool) -> str:
    """Return the CSS class of a cell from its characters for colour and sign; `head_map.js` has the same rule."""
    if shade == NO_HEAD:
        return "none"
    if shade == UNDEFINED:
        return "undefined"
    name = f"{'d' if diverging else 's'}{DIGITS.index(shade)}"
    return name + MARK_CLASSES[mark]


def write_shades() -> str:
    """Return the CSS rules of all colours of cells, with black or white text on each, and of the bars of the scales."""
    rules = []
    for letter, colours in (("s", style.SEQUENTIAL), ("d", style.DIVERGING)):
        for number, colour in enumerate(style.mix_evenly(colours, len(DIGITS))):
            # The limit at which black and white ink have the same contrast.
            is_dark = style.compute_luminance(colour) < style.WHITE_BELOW
            ink = "#fff" if is_dark else "#000"
            rules.append(f".{letter}{number}{{background:{colour};color:{ink}}}")
        rules.append(
            f".scale-{letter} .bar{{background:linear-gradient(to right,{','.join(colours)})}}"
        )
    return "\n".join(rules)


def _choose_look(panel: Panel) -> str:
    """Return the CSS classes of a table, which depend on its size."""
    names = []
    if len(panel.heads) <= FITS_PHONE:
        names.append("roomy")
    elif len(panel.heads) > FITS_SCREEN:
        names.append("dense")
    if len(panel.layers) >= TALL:
        names.append("tall")
    return " ".join(names)


def _pack_panel(panel: Panel, panels: tuple[Panel, ...]) -> dict[str, Any]:
    """Return a table as the script reads it."""
    return {
        "name": _title_panel(panel, panels),
        "layers": panel.layers,
        "heads": panel.heads,
    }


def _pack(quantity: Quantity) -> dict[str, Any]:
    """Return a quantity as the script reads it: each list of texts is joined to one string; "" if all are empty."""
    figure = quantity.figure
    joined: dict[str, str] = {}
    for name in ("texts", "ends", "cells", "ranks", "layers"):
        texts = getattr(quantity, name)
        # One string instead of a list: quotes around every number would lengthen the
        # page.
        joined[name] = SEPARATOR.join(texts) if any(texts) else ""
    return {
        "name": figure.name,
        "title": figure.title,
        "group": quantity.group,
        "caption": figure.caption,
        "basis": figure.basis,
        "alt": figure.alt,
        "unit": quantity.unit,
        "diverging": quantity.diverging,
        "scale": quantity.scale,
        "shades": quantity.shades,
        "marks": quantity.marks if quantity.marks.strip() else "",
        **joined,
    }
