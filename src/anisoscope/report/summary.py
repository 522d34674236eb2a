"""What a reader should know first: the findings, and a few telling numbers."""

from dataclasses import dataclass

import pandas as pd

from anisoscope.report.parts import extremes
from anisoscope.report.results import Results
from anisoscope.report.words import interval, number, percent
from anisoscope.runs.findings import findings


@dataclass(frozen=True)
class Tile:
    """One number at a glance: what it is, its value, and where or how sure."""

    label: str
    value: str
    note: str


def headline(results: Results) -> list[str]:
    """What was found, in the sentences that the terminal and Python give too."""
    found = [finding.text for finding in findings(results.records)]
    return found or ["This run holds no anisotropy of hidden states."]


def tiles(results: Results) -> list[Tile]:
    """Telling numbers, as many as the run holds."""
    found = [*_peak_tiles(results), *_head_tiles(results)]
    return found[:6]


def _peak_tiles(results: Results) -> list[Tile]:
    peak = results.peak
    if peak is None:
        return []
    place = results.place_name(peak)
    tiles = [Tile("highest anisotropy A", number(peak["value"]), f"{interval(peak)} at {place}")]
    share = results.at(peak, "drift.share")
    if share is not None:
        tiles.append(Tile("drift share there", percent(share["value"]), "of the mean norm is the mean vector"))
    top = results.at(peak, "mean_cosine.top_share", component="3")
    if top is not None:
        tiles.append(Tile("carried by 3 dimensions", percent(top["value"]), f"of A at {place}"))
    rank = results.at(peak, "spectrum.effective_rank")
    if rank is not None:
        out_of = f" of {results.width}" if results.width else ""
        tiles.append(Tile("effective rank there", f"{rank['value']:.0f}{out_of}", "directions used"))
    return tiles


def _head_tiles(results: Results) -> list[Tile]:
    tiles = []
    entropy = results.heads("attention.entropy_normalised")
    if len(entropy):
        sharp = extremes(entropy)[0]
        tiles.append(Tile("sharpest head", number(sharp["value"]), f"normalised entropy, {_head(sharp)}"))
    cosine = results.heads("query_key.cosine")
    if len(cosine):
        strong = cosine.iloc[int(cosine["value"].abs().argmax())]
        tiles.append(Tile("strongest alignment", number(strong["value"]), f"cos(Q̄, K̄), {_head(strong)}"))
    return tiles


def _head(row: pd.Series) -> str:
    return f"layer {row['layer']}, head {row['head']}"
