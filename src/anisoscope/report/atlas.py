"""The report page of an atlas (a table of many networks): one figure of all networks, and one table."""

from collections.abc import Mapping
from os.path import relpath
from pathlib import Path
from typing import Any

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.report.page import HERE, draw_figures, write_page
from anisoscope.report.parts import Figure, PageTable
from anisoscope.wording import count_noun, format_count, format_number, has_interval, iter_rows

TEMPLATE = "atlas.html.j2"
HEAD = (
    "network",
    "reads",
    "family",
    "blocks",
    "A weakest",
    "A strongest",
    "A last block",
    "A final norm",
    "q95",
    "share of 1 dimension",
    "A centred",
    "carried by",
    "sink heads",
    "entropy",
    "units",
)


def write_atlas_page(
    table: pd.DataFrame,
    folder: Path,
    *,
    runs: Mapping[str, Path] | None = None,
    left_out: Mapping[str, str] | None = None,
    formats: tuple[str, ...] = ("svg",),
) -> Path:
    """Write the page `report.html` and its figure into the folder of an atlas (a table of many networks); return its
    path.

    table     the table that `runs.atlas` makes
    runs      the run folder of each network, for links
    left_out  networks that were not measured, and why
    """
    figures = [_draw_strongest(table)]
    return write_page(
        folder,
        HERE.joinpath(TEMPLATE),
        title=f"Atlas of {count_noun(table['network'].nunique(), 'network')}",
        headline=describe_atlas(table),
        left_out=dict(left_out or {}),
        figures=figures,
        drawn=draw_figures(figures, folder / "figures", formats),
        formats=formats,
        table=tabulate(table),
        links={name: relpath(path, folder) for name, path in (runs or {}).items()},
    )


def describe_atlas(table: pd.DataFrame) -> list[str]:
    """Return sentences on all networks: how many are anisotropic in some layer, what causes it, how many have sink
    heads.
    """
    total = len(table)
    rows = iter_rows(table)
    somewhere = [row for row in rows if row.verdict == "anisotropic"]
    sentences = [f"Anisotropic in the strongest layer: {len(somewhere)} of {total}."]
    if somewhere:
        by_mean = sum("the mean" in str(row.cause).split(", ") for row in somewhere)
        by_few = sum("dimension" in str(row.cause) for row in somewhere)
        text = f"Of these, centring removes it in {by_mean}, and ten dimensions or fewer carry more than half of it in"
        sentences.append(f"{text} {by_few}.")
    heads = table[table["heads"].notna()]
    if len(heads):
        with_sinks = int(heads["sink_heads"].gt(0).sum())
        sentences.append(f"Heads that are sinks: in {with_sinks} of {len(heads)} whose attention was measured.")
    return sentences


def _label_rows(table: pd.DataFrame) -> list[str]:
    """Return the label of each row: the network, with its stack (encoder, decoder) if it has several."""
    names = []
    for row, has_several in zip(iter_rows(table), table.duplicated("network", keep=False), strict=True):
        names.append(f"{row.network}, {row.stack}" if has_several else str(row.network))
    return names


def _draw_strongest(table: pd.DataFrame) -> Figure:
    """Return the figure of anisotropy A in the strongest layer of every network."""
    frame = table.assign(network=_label_rows(table), value=table["strongest"])
    frame = frame.assign(low=table["strongest_low"], high=table["strongest_high"])
    frame = frame.sort_values("value", ascending=False, kind="stable")

    def draw(width: int) -> ChartType:
        """Draw the bars at this width in pixels."""
        return charts.bars(frame, category="network", titles=("A of the strongest layer", ""), size=(width, 22))

    top, bottom = frame.iloc[0], frame.iloc[-1]
    lowest = f"{format_number(bottom['value'])} ({bottom['network']})"
    highest = f"{format_number(top['value'])} ({top['network']})"
    alt = f"Bars of A by network: from {lowest} to {highest}."
    caption = "Whiskers are 95 % intervals over units of each network’s own corpus, so that bars are no ranking."
    return Figure("strongest", "Anisotropy of the strongest layer", caption, "", alt, {"": draw})


def tabulate(table: pd.DataFrame) -> PageTable:
    """Return the table of the atlas page: values with their intervals, one row for each network and stack."""
    rows = []
    for label, row in zip(_label_rows(table), iter_rows(table), strict=True):
        cells = [(label, ""), (row.modality, ""), (row.family, ""), (format_count(row.layers), "")]
        for name in ("weakest", "strongest", "last"):
            value, ends = _cell(row, name)
            cells.append((f"{value} @{getattr(row, f'{name}_layer')}", ends))
        cells += [_cell(row, "final"), (_number(row.q95), ""), _cell(row, "dimension_share"), _cell(row, "centred")]
        cells.append((row.cause if isinstance(row.cause, str) and row.cause else "–", ""))
        cells.append(("–" if pd.isna(row.heads) else f"{row.sink_heads:g} of {row.heads:g}", ""))
        cells += [_cell(row, "entropy"), (format_count(row.n_units), "")]
        rows.append(tuple(cells))
    caption = "A with its 95 % interval; behind @ stands the layer, 0 is the input of the first block."
    return PageTable(caption, HEAD, tuple(rows))


class _Estimate:
    """A value and the ends of its interval, taken from the columns NAME, NAME_low and NAME_high of a row."""

    def __init__(self, row: Any, name: str) -> None:
        """Take the value and the ends of its interval from a row of the table."""
        self.value, self.low, self.high = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))


def _cell(row: Any, name: str) -> tuple[str, str]:
    """Return a table cell: (formatted value, its interval or an empty string).

    row    a row of the atlas
    name   of the value: its columns are NAME, NAME_low and NAME_high
    """
    found = _Estimate(row, name)
    if pd.isna(found.value):
        return "–", ""
    known = not pd.isna(found.low) and has_interval(found) and found.low != found.high
    return format_number(found.value), f"[{format_number(found.low)}, {format_number(found.high)}]" if known else ""


def _number(value: Any) -> str:
    """Format a number; a dash if it is missing."""
    return "–" if pd.isna(value) else format_number(value)
