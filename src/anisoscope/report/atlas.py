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
from anisoscope.wording import (
    count_noun,
    format_count,
    format_number,
    has_interval,
    iter_rows,
)

TEMPLATE = "atlas.html.j2"
MISSING = "–"
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
        # Relative to the page, so that links hold wherever the atlas is moved to.
        links={name: relpath(path, folder) for name, path in (runs or {}).items()},
    )


def describe_atlas(table: pd.DataFrame) -> list[str]:
    """Return sentences on all networks: how many are anisotropic in some layer, what causes it, how many have sink
    heads.
    """
    anisotropic = [row for row in iter_rows(table) if row.verdict == "anisotropic"]
    sentences = [
        f"{len(anisotropic)} of {len(table)} networks are anisotropic in at least one layer."
    ]
    if anisotropic:
        causes = [str(row.cause) for row in anisotropic]
        # Causes are joined by commas: the mean and a few dimensions may both carry A.
        # The words are compared whole, since "more than the mean" holds "the mean" too.
        by_mean = sum("the mean" in cause.split(", ") for cause in causes)
        by_few = sum("dimension" in cause for cause in causes)
        sentences.append(
            f"In {by_mean} of these, centring removes the anisotropy of the layer with the highest A."
        )
        sentences.append(
            f"In {by_few} of these, ten dimensions or fewer contribute more than half of the A of that layer."
        )
    # Networks without attention, and runs that left it out, are not counted.
    heads = table[table["heads"].notna()]
    if len(heads):
        with_sinks = int(heads["sink_heads"].gt(0).sum())
        sentences.append(
            f"{with_sinks} of the {len(heads)} networks whose attention was measured have a sink head."
        )
    return sentences


def _label_rows(table: pd.DataFrame) -> list[str]:
    """Return the label of each row: the network, with its stack (encoder, decoder) if it has several."""
    names = []
    # A network has a row for each of its stacks.
    has_several_stacks = table.duplicated("network", keep=False)
    for row, has_several in zip(iter_rows(table), has_several_stacks, strict=True):
        name = str(row.network)
        if has_several:
            name += f", {row.stack}"
        names.append(name)
    return names


def _draw_strongest(table: pd.DataFrame) -> Figure:
    """Return the figure of anisotropy A in the strongest layer of every network."""
    # The builder of bars expects these names.
    frame = table.assign(network=_label_rows(table), value=table["strongest"])
    frame = frame.assign(low=table["strongest_low"], high=table["strongest_high"])
    frame = frame.sort_values("value", ascending=False, kind="stable")

    def draw(width: int) -> ChartType:
        """Draw the bars at this width in pixels."""
        return charts.bars(
            frame,
            category="network",
            titles=("A of the strongest layer", ""),
            size=(width, 22),
        )

    top, bottom = frame.iloc[0], frame.iloc[-1]
    lowest = f"{format_number(bottom['value'])} ({bottom['network']})"
    highest = f"{format_number(top['value'])} ({top['network']})"
    alt = f"Bars of A by network: from {lowest} to {highest}."
    caption = "Whiskers are 95 % intervals over units of each network’s own corpus, so that bars are no ranking."
    return Figure(
        "strongest", "Anisotropy of the strongest layer", caption, "", alt, {"": draw}
    )


def tabulate(table: pd.DataFrame) -> PageTable:
    """Return the table of the atlas page: values with their intervals, one row for each network and stack."""
    labelled = zip(_label_rows(table), iter_rows(table), strict=True)
    rows = [_build_row(label, row) for label, row in labelled]
    caption = "A with its 95 % interval. The number after @ is the layer; layer 0 is the input of the first block."
    return PageTable(caption, HEAD, tuple(rows))


def _build_row(label: str, row: Any) -> tuple[tuple[str, str], ...]:
    """Return the cells of a row of the table, in the order of `HEAD`.

    label   the name of the network
    row     its row of the atlas
    """
    cells = [
        (label, ""),
        (row.modality, ""),
        (row.family, ""),
        (format_count(row.layers), ""),
    ]
    for name in ("weakest", "strongest", "last"):
        value, interval = _format_estimate(row, name)
        layer = getattr(row, f"{name}_layer")
        # The layer follows the value: three columns fewer on a table that is wide
        # already.
        cells.append((f"{value} @{layer}", interval))
    cells.append(_format_estimate(row, "final"))
    q95 = MISSING
    if not pd.isna(row.q95):
        q95 = format_number(row.q95)
    cells.append((q95, ""))
    cells.append(_format_estimate(row, "dimension_share"))
    cells.append(_format_estimate(row, "centred"))
    # A table that was read from a file has NaN in place of an empty cause.
    has_cause = isinstance(row.cause, str) and row.cause
    cells.append((row.cause if has_cause else MISSING, ""))
    sinks = MISSING
    if not pd.isna(row.heads):
        sinks = f"{row.sink_heads:g} of {row.heads:g}"
    cells.append((sinks, ""))
    cells.append(_format_estimate(row, "entropy"))
    cells.append((format_count(row.n_units), ""))
    return tuple(cells)


class _Estimate:
    """A value and the ends of its interval, taken from the columns NAME, NAME_low and NAME_high of a row."""

    def __init__(self, row: Any, name: str) -> None:
        """Take the value and the ends of its interval from a row of the table."""
        self.value = getattr(row, name)
        self.low = getattr(row, f"{name}_low")
        self.high = getattr(row, f"{name}_high")


def _format_estimate(row: Any, name: str) -> tuple[str, str]:
    """Return a table cell: (formatted value, its interval or an empty string).

    row    a row of the atlas
    name   of the value: its columns are NAME, NAME_low and NAME_high
    """
    estimate = _Estimate(row, name)
    if pd.isna(estimate.value):
        return MISSING, ""
    value = format_number(estimate.value)
    # An interval without width is a value that could not vary: its ends say nothing
    # more.
    if (
        pd.isna(estimate.low)
        or not has_interval(estimate)
        or estimate.low == estimate.high
    ):
        return value, ""
    return value, f"[{format_number(estimate.low)}, {format_number(estimate.high)}]"
