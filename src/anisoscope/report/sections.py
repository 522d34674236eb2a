"""The page's sections in order, and the table of all layers. A section whose numbers a run lacks is left out."""

from dataclasses import replace
from typing import Any, cast

import pandas as pd

from anisoscope.report import classes, dimensions, groups, heads, hidden
from anisoscope.report.parts import PageTable, Section
from anisoscope.report.results import Results
from anisoscope.report.words import count, in_words, interval, number

QUESTIONS = (
    classes.classes,
    classes.replaced,
    classes.explained,
    hidden.anisotropy,
    hidden.drift,
    dimensions.dimensions,
    groups.groups,
    dimensions.spectrum,
    heads.attention,
    heads.alignment,
    heads.likeness,
)
TABLE_COLUMNS = {
    "mean_cosine": "A",
    "mean_cosine.between": "A, between groups",
    "intra_sequence": "A, inside a sequence",
    "calibrated.centred": "A, after centring",
    "mean_cosine.centred": "A, after centring",
    "calibrated.pairs_above_q95": "pairs above q95",
    "drift": "drift ‖x̄‖",
    "drift.share": "drift share",
    "norms.mean": "mean norm",
    "norms.variation": "norm variation",
    "spectrum.effective_rank": "effective rank",
    "spectrum.participation_ratio": "participation ratio",
    "spectrum.isoscore": "IsoScore",
    "spectrum.cosine_square": "d · E[cos²]",
}


def sections(results: Results) -> list[Section]:
    """Every section the run has numbers for."""
    built = [question(results) for question in QUESTIONS]
    found = [section for section in (*built, embeddings(results), layer_table(results)) if section is not None]
    return [_in_words(section, results) for section in found]


def _in_words(section: Section, results: Results) -> Section:
    """A section, and its figures, in the words of the corpus: of frames, patches or tokens."""

    def said(part: Any, *names: str) -> Any:
        return replace(part, **{name: in_words(getattr(part, name), results.words) for name in names})

    figures = tuple(said(figure, "title", "caption", "basis", "alt") for figure in section.figures)
    table = None if section.table is None else said(section.table, "caption")
    return replace(cast(Section, said(section, "title", "lead")), figures=figures, table=table)


def embeddings(results: Results) -> Section | None:
    """Isotropy of the embedding matrices themselves."""
    frame = results.rows("partition")
    if frame.empty:
        return None
    rows = []
    for _, row in frame.iterrows():
        rows.append(((str(row["site"]), ""), (number(row["value"]), interval(row)), (count(row["n_vectors"]), "")))
    table = PageTable(
        "I(W) = min Z(c) / max Z(c) over the eigenvectors c of WᵀW at both signs; Z(c) is the sum of exp(c · w) "
        "over rows w.",
        ("matrix", "I(W)", "rows"),
        tuple(rows),
    )
    lead = (
        "Partition-function isotropy of the weights, before any text: 1 where no direction is preferred, near 0 "
        "where one dominates. It depends on the scale of the matrix."
    )
    return Section("embeddings", "Embedding matrices", lead, table=table)


def layer_table(results: Results) -> Section | None:
    """Every aggregate of every layer, with its interval."""
    columns: dict[str, dict[tuple[str, float, str], pd.Series]] = {}
    places: dict[tuple[str, float, str], str] = {}
    for metric, label in TABLE_COLUMNS.items():
        for _, row in results.layers(metric).iterrows():
            place = (str(row["stack"]), float(row["layer"]), str(row["site"]))
            places.setdefault(place, results.place_name(row))
            columns.setdefault(label, {})[place] = row
    if not columns:
        return None
    order = {name: i for i, name in enumerate(dict.fromkeys(place[0] for place in places))}
    ranked = sorted(places, key=lambda place: (order[place[0]], place[1], place[2] == "final"))
    rows = tuple(((places[place], ""), *(_cell(cells.get(place)) for cells in columns.values())) for place in ranked)
    basis = results.basis(results.layers("mean_cosine"))
    caption = f"Below each value its 95 % interval; – where a value was not measured or is not defined. {basis}".strip()
    lead = "Every aggregate of every layer. All rows, heads and components stand in records.parquet beside this page."
    return Section("table", "All layers in numbers", lead, table=PageTable(caption, ("site", *columns), rows))


def _cell(row: pd.Series | None) -> tuple[str, str]:
    return ("–", "") if row is None else (number(row["value"]), interval(row))
