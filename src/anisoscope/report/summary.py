"""What a reader should know first: the range of A in words, verdicts over the layers, and a few telling numbers."""

from dataclasses import dataclass

import pandas as pd

from anisoscope.report.parts import extremes
from anisoscope.report.results import Results
from anisoscope.report.words import interval, listing, measured, number, percent, plural

EXTREME = 0.8
"""From this A on a layer is called extreme (the fixed words of the verdicts)."""


@dataclass(frozen=True)
class Tile:
    """One number at a glance: what it is, its value, and where or how sure."""

    label: str
    value: str
    note: str


def headline(results: Results) -> list[str]:
    """The range of A with intervals, and how many layers are anisotropic; before them where directions tell classes."""
    curve = results.layers("mean_cosine")
    if curve.empty:
        return ["This run holds no anisotropy of hidden states.", *_classes(results)]
    low, high = extremes(curve)
    if len(curve) == 1:
        first = f"The mean cosine between two tokens is {measured(low)} at {results.place_name(low)}."
    else:
        first = (
            f"The mean cosine between two tokens ranges from {measured(low)} at {results.place_name(low)} to "
            f"{measured(high)} at {results.place_name(high)}."
        )
    return [*_classes(results), first, *_verdicts(results, curve)]


def _classes(results: Results) -> list[str]:
    """How well directions tell classes, where these were measured."""
    curve = results.layers("class_direction.auc")
    if curve.empty:
        return []
    best = extremes(curve)[1]
    return [f"The direction of an utterance tells its class best at {results.place_name(best)}: AUC {measured(best)}."]


def _verdicts(results: Results, curve: pd.DataFrame) -> list[str]:
    law = results.layers("mean_cosine.isotropic_q95")[["stack", "layer", "site", "value"]].rename(
        columns={"value": "q95"}
    )
    judged = curve.merge(law, on=["stack", "layer", "site"])
    judged = judged[judged["low"].notna() & judged["high"].notna()]
    if judged.empty:
        return []
    counts = {
        "anisotropic": int((judged["low"] > judged["q95"]).sum()),
        "isotropic": int((judged["high"] <= judged["q95"]).sum()),
    }
    counts["undecided"] = len(judged) - sum(counts.values())
    shares = [f"{n} {'is' if n == 1 else 'are'} {word}" for word, n in counts.items() if n]
    extreme = int((judged["low"] >= EXTREME).sum())
    tail = f" ({extreme} of them extreme: A ≥ {EXTREME})" if extreme else ""
    against = number(float(judged["q95"].max()))
    judgement = f"judged against {against}, which 95 % of isotropic pairs stay below"
    return [f"Of {plural(len(judged), 'site')}, {listing(shares)}{tail}, {judgement}."]


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
        of = f" of {results.width}" if results.width else ""
        tiles.append(Tile("effective rank there", f"{rank['value']:.0f}{of}", "directions used"))
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
