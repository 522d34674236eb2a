"""Sections on the axes of the space: which dimensions carry A, and how many directions a layer uses."""

import pandas as pd

from anisoscope.charts import builders as charts
from anisoscope.report.parts import RIBBON, Figure, Section, columns, height, span_of
from anisoscope.report.results import LAYER_SITES, PANEL, Results, panel_of
from anisoscope.report.words import listing, measured, percent

TOP_DIMENSIONS = 10


def dimensions(results: Results) -> Section | None:
    """How few dimensions carry A: shares of the largest ones per layer, and the largest of all at the peak."""
    shares = results.components("mean_cosine.top_share")
    shares = shares[shares["site"].isin(LAYER_SITES) & shares["layer"].notna()]
    if shares.empty:
        return None
    lead = (
        "A is a sum over dimensions: the contributions of all dimensions add up to it. Where a few of them carry "
        "nearly all, a handful of outlier coordinates makes every cosine large."
    )
    named = shares.assign(series="top " + shares["component"].astype(str))
    number_of = shares["component"].astype(int)
    named = named.loc[number_of.sort_values(kind="stable").index]
    figures = [
        Figure(
            "top-share",
            "Share of A carried by the largest dimensions",
            "The 1, 3 and 10 dimensions that contribute most at each layer. A share above 1 means that the other "
            f"dimensions pull the other way; where A is near 0 shares say little. {RIBBON}",
            results.basis(named),
            "Line chart of the share of A of the largest dimensions against the layer: "
            f"{span_of(named, results.place_name)}.",
            lambda width: charts.layer_curve(
                named,
                series="series",
                panel=panel_of(named),
                title="share of A",
                size=(width, height(width)),
                columns=columns(width),
            ),
        )
    ]
    largest = _largest_dimensions(results)
    if len(largest):
        figures.append(_dimension_bars(results, largest))
    return Section("dimensions", "Which dimensions carry it?", lead, tuple(figures))


def _largest_dimensions(results: Results) -> pd.DataFrame:
    peak, frame = results.peak, results.components("mean_cosine.contribution")
    if peak is None:
        return frame.iloc[:0]
    for key in ("stack", "layer", "site"):
        frame = frame[frame[key].eq(peak[key])]
    return frame.nlargest(TOP_DIMENSIONS, "value")


def _dimension_bars(results: Results, frame: pd.DataFrame) -> Figure:
    place = results.place_name(frame.iloc[0])
    peak = results.peak
    total = f", where A is {measured(peak)}" if peak is not None else ""
    return Figure(
        "top-dimensions",
        f"The {len(frame)} largest dimensions at {place}",
        f"Contributions to A at the most anisotropic place, {place}{total}. The labels are indices of dimensions, "
        "counted from 0; lines are 95 % intervals.",
        results.basis(frame),
        f"Bar chart of the contributions of {len(frame)} dimensions: the largest is dimension "
        f"{frame.iloc[0]['component']} with {measured(frame.iloc[0])}.",
        lambda width: charts.bars(
            frame, category="component", titles=("contribution to A", "dimension"), size=(width, 22)
        ),
    )


SPECTRUM = {
    "spectrum.effective_rank": "effective rank (dimensions)",
    "spectrum.participation_ratio": "participation ratio (dimensions)",
    "spectrum.isoscore": "IsoScore (1: isotropic)",
    "spectrum.cosine_square": "d · E[cos²] (1: isotropic)",
}


def spectrum(results: Results) -> Section | None:
    """How many directions a layer uses: ranks, IsoScore, d·E[cos²], and the variance of its leading axes."""
    frame = results.stacked(SPECTRUM)
    explained = results.components("spectrum.explained")
    explained = explained[explained["site"].eq("hidden") & explained["layer"].notna()]
    lead = (
        "A sees only a common direction. The spectrum of the covariance also sees clouds that are stretched along a "
        "few axes but centred at 0."
    )
    figures = ([_readings(results, frame)] if len(frame) else []) + (
        [_explained(results, explained)] if len(explained) else []
    )
    return Section("spectrum", "How many directions are used?", lead, tuple(figures)) if figures else None


def _readings(results: Results, frame: pd.DataFrame) -> Figure:
    shape = f" of {results.width}" if results.width else ""
    peak = results.at(results.peak, "spectrum.effective_rank") if results.peak is not None else None
    rank = (
        f" The most anisotropic place has an effective rank of {peak['value']:.1f}{shape}." if peak is not None else ""
    )
    return Figure(
        "spectrum",
        "Four readings of the spectrum",
        "Each panel has its own axis. Effective rank is the exponential of the entropy of the singular values, the "
        "participation ratio weighs large variances more; IsoScore is 1 for equal variances and 0 for one axis; d · "
        f"E[cos²] is 1 for isotropic vectors and grows as they gather along an axis, either way round.{rank} "
        "Ribbons, where intervals were asked for, are 95 % intervals.",
        results.basis(frame),
        f"Line charts of {listing(list(dict.fromkeys(frame['series'])))} against the layer.",
        lambda width: charts.layer_curve(
            frame,
            series=PANEL,
            panel="series",
            title="",
            independent=True,
            size=(width, height(width, 170, 150)),
            columns=columns(width),
        ),
    )


def _explained(results: Results, frame: pd.DataFrame) -> Figure:
    curve = frame.assign(axes=frame["component"].astype(int), layer=frame["layer"].astype(int))
    first = curve[curve["axes"].eq(1)]
    most = (
        f": the first axis explains {percent(first['value'].min())} to {percent(first['value'].max())}"
        if len(first)
        else ""
    )
    return Figure(
        "explained-variance",
        "Variance explained by the leading axes",
        "Cumulative share of the variance on the k leading principal axes, one line per layer, from light (first) "
        f"to dark (last). A line that starts high has one dominant axis{most}.",
        results.basis(frame),
        f"Line chart of the cumulative explained variance against the number of axes, one line per layer{most}.",
        lambda width: charts.trajectory(
            curve,
            x="axes",
            series="layer",
            panel=panel_of(curve),
            titles=("leading axes k", "share of the variance"),
            gradient=True,
            band=False,
            size=(width, height(width)),
            columns=columns(width),
        ),
    )
