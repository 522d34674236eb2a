"""Sections on hidden states: anisotropy, drift, dimensions, token groups, spectrum."""

import pandas as pd

from anisoscope import charts
from anisoscope.axes import SUBSET_FAMILIES
from anisoscope.report.parts import Figure, Section, columns, height, span_of
from anisoscope.report.results import PANEL, Results, panel_of
from anisoscope.report.words import listing, measured, number, percent

DEPTH = "Layer 0 is the input of the first block, layer i the output of block i"
FINAL = "the open diamond the output after the final norm"
RIBBON = "Ribbons are 95 % intervals."
TOP_DIMENSIONS = 10


def anisotropy(results: Results) -> Section | None:
    """A per layer and token policy; all pairs against pairs of different units and pairs inside a sequence."""
    every = results.layers("mean_cosine", every_policy=True)
    if every.empty:
        return None
    lead = (
        "A is the mean cosine over all distinct pairs of token vectors: 0 where their directions cancel out, "
        "1 where all of them point one way."
    )
    figures = [_by_policy(results, every)]
    labels = {"mean_cosine": "all pairs", "mean_cosine.between": "pairs from different groups of units"}
    labels["intra_sequence"] = "pairs inside one sequence"
    pairs = _stacked(results, labels)
    if pairs["series"].nunique() > 1:
        figures.append(_by_pair(results, pairs))
    return Section("anisotropy", "Anisotropy, layer by layer", lead, tuple(figures))


def _by_policy(results: Results, frame: pd.DataFrame) -> Figure:
    law = results.layers("mean_cosine.isotropic_q95")["value"]
    q95 = float(law.max()) if len(law) else None
    dimensions = f" in {results.width} dimensions" if results.width else ""
    band = (
        f" The grey band ends at {number(q95)}, below which lie 95 % of the cosines of isotropic pairs{dimensions}: "
        "a layer whose ribbon lies wholly above it is called anisotropic, one whose ribbon lies wholly inside it isotropic."
        if q95 is not None
        else ""
    )
    named = frame.assign(series=frame["token_policy"].fillna("all"))
    lead = results.layers("mean_cosine")
    return Figure(
        "anisotropy",
        "Anisotropy A of every layer",
        f"One line per choice of tokens. {RIBBON}{band} {DEPTH}{_final(frame)}.",
        results.basis(frame),
        f"Line chart of A against the layer for {listing(results.policies) or 'all'} tokens: "
        f"{span_of(lead, results.place_name)}.",
        lambda width: charts.layer_curve(
            named,
            series="series",
            panel=panel_of(named),
            isotropic=q95,
            size=(width, height(width, 320)),
            columns=columns(width),
        ),
    )


def _by_pair(results: Results, frame: pd.DataFrame) -> Figure:
    return Figure(
        "pairs",
        "Which pairs are alike",
        "The mean cosine over all pairs, over pairs whose tokens come from different groups of units (documents, clips, "
        "images), and inside single sequences. What the upper lines have over the line of different groups is due to "
        f"shared content rather than to the model alone. {RIBBON}",
        results.basis(frame),
        f"Line chart of three mean cosines against the layer: {span_of(frame, results.place_name)}.",
        lambda width: charts.layer_curve(
            frame,
            series="series",
            panel=panel_of(frame),
            title="mean cosine",
            size=(width, height(width)),
            columns=columns(width),
        ),
    )


def drift(results: Results) -> Section | None:
    """Does a common vector explain A: drift share beside A and what centring leaves; drift against A; norms."""
    labels = {"mean_cosine": "A", "drift.share": "drift share ‖x̄‖ / mean ‖x‖"}
    frame = _stacked(results, labels | {"calibrated.centred": "A after centring", "mean_cosine.centred": "A after centring"})
    if "drift.share" not in set(frame["metric"]):
        return None
    lead = (
        "Drift is the norm of the mean vector. Where all tokens share one large common vector, its share of the mean norm is "
        "near 1, A is near the square of that share, and removing the mean removes the anisotropy."
    )
    figures = [
        Figure(
            "drift",
            "Anisotropy, drift, and what centring leaves",
            "Where A follows the drift share and nothing is left of it after centring, a common vector causes it. "
            f"A after centring is taken on the stored sample of vectors. {RIBBON}",
            results.basis(frame),
            f"Line chart of A, the drift share and A after centring against the layer: "
            f"{span_of(frame, results.place_name)}.",
            lambda width: charts.layer_curve(
                frame,
                series="series",
                panel=panel_of(frame),
                title="cosine, or share",
                size=(width, height(width)),
                columns=columns(width),
            ),
        )
    ]
    points = _drift_points(results)
    if len(points) > 1:
        figures.append(_drift_scatter(results, points))
    norms = _stacked(results, {"norms.mean": "mean norm", "drift": "norm of the mean (drift)"})
    if norms["series"].nunique() > 1:
        figures.append(_norms(results, norms))
    return Section("drift", "Drift: is there a common vector?", lead, tuple(figures))


def _drift_points(results: Results) -> pd.DataFrame:
    shares = results.layers("drift.share")[["stack", "layer", "site", "value"]].rename(columns={"value": "share"})
    points = results.layers("mean_cosine").merge(shares, on=["stack", "layer", "site"])
    names = points["layer"].astype(int).astype(str).mask(points["site"].eq("final"), "final")
    return points.assign(name=names)


def _drift_scatter(results: Results, points: pd.DataFrame) -> Figure:
    return Figure(
        "drift-scatter",
        "Anisotropy against drift, over layers",
        "One point per layer, numbered and joined in order of depth; bars are 95 % intervals of A. Points along a rising "
        "curve mean that layers with a larger common vector are the more anisotropic ones.",
        results.basis(points),
        f"Scatter plot of A against the drift share with {len(points)} points: {span_of(points, results.place_name)}.",
        lambda width: charts.scatter(
            points,
            x="share",
            series=PANEL,
            label="name",
            path=True,
            titles=("drift share ‖x̄‖ / mean ‖x‖", "anisotropy A"),
            size=(width, height(width, 320, 240)),
        ),
    )


def _norms(results: Results, frame: pd.DataFrame) -> Figure:
    return Figure(
        "norms",
        "Norm of the mean, mean of the norms",
        "Both in the units of the activations. The closer the two lines, the more of each vector is the part that all "
        f"tokens share. {RIBBON}",
        results.basis(frame),
        f"Line chart of the norm of the mean vector and of the mean norm against the layer: "
        f"{span_of(frame, results.place_name)}.",
        lambda width: charts.layer_curve(
            frame,
            series="series",
            panel=panel_of(frame),
            title="norm",
            size=(width, height(width, 240, 200)),
            columns=columns(width),
        ),
    )


def dimensions(results: Results) -> Section | None:
    """How few dimensions carry A: shares of the largest ones per layer, and the largest of all at the peak."""
    shares = results.components("mean_cosine.top_share")
    shares = shares[shares["site"].isin(("hidden", "final")) & shares["layer"].notna()]
    if shares.empty:
        return None
    lead = (
        "A is a sum over dimensions: the contributions of all dimensions add up to it. Where a few of them carry nearly "
        "all, a handful of outlier coordinates makes every cosine large."
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
            f"Line chart of the share of A of the largest dimensions against the layer: "
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
        f"Contributions to A at the most anisotropic place, {place}{total}. The labels are indices of dimensions, counted "
        "from 0; lines are 95 % intervals.",
        results.basis(frame),
        f"Bar chart of the contributions of {len(frame)} dimensions: the largest is dimension "
        f"{frame.iloc[0]['component']} with {measured(frame.iloc[0])}.",
        lambda width: charts.bars(
            frame, category="component", titles=("contribution to A", "dimension"), size=(width, 22)
        ),
    )


def groups(results: Results) -> Section | None:
    """Mean cosines within and between token subsets, one matrix per family of subsets."""
    frame = results.components("group_cosine")
    frame = frame[frame["component"].str.contains(" × ") & frame["layer"].notna()]
    if frame.empty:
        return None
    shown = _chosen_places(results, frame)
    families = _families(shown)
    lead = (
        "The mean cosine within and between subsets of tokens. A subset that is alike inside and unlike the others has a "
        "direction of its own: special tokens, the first token, rare words."
    )
    return Section("groups", "Which tokens are alike?", lead, tuple(_matrix(results, *item) for item in families.items()))


def _chosen_places(results: Results, frame: pd.DataFrame) -> pd.DataFrame:
    """First, most anisotropic and last layer of the stack where A is largest; of other stacks, the most anisotropic."""
    hidden = frame[frame["site"].eq("hidden")]
    curve = results.layers("mean_cosine")
    parts = []
    main = results.peak["stack"] if results.peak is not None else hidden["stack"].iloc[0]
    for stack, rows in hidden.groupby("stack", sort=False):
        among = curve[curve["stack"].eq(stack) & curve["site"].eq("hidden") & curve["layer"].isin(rows["layer"])]
        peak = float(among.loc[among["value"].idxmax(), "layer"]) if len(among) else float(rows["layer"].max())
        marks = {peak: "most anisotropic"}
        if stack == main:
            marks = {float(rows["layer"].min()): "first", float(rows["layer"].max()): "last"} | marks
        kept = rows[rows["layer"].isin(list(marks))].sort_values("layer", kind="stable")
        names = kept["layer"].map(lambda layer, marks=marks: f"layer {layer:.0f}, {marks[layer]}")
        parts.append(kept.assign(place=names if hidden["stack"].nunique() == 1 else f"{stack} " + names))
    return pd.concat(parts)


def _families(frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Rows by family of subsets, mirrored into full matrices, subsets in the order of the glossary."""
    order = {name: (family, i) for family, names in SUBSET_FAMILIES.items() for i, name in enumerate(names)}
    frame = frame.assign(first=frame["component"].str.split(" × ").str[0], second=frame["component"].str.split(" × ").str[1])
    frame["family"] = [order.get(name, (name.split(" ")[0], 0))[0] for name in frame["first"]]
    mirrored = frame[frame["first"].ne(frame["second"])].rename(columns={"first": "second", "second": "first"})
    frame = pd.concat([frame, mirrored])
    rank = {name: i for i, name in enumerate(order)}
    key = pd.DataFrame({"p": frame["layer"], "a": frame["first"].map(rank), "b": frame["second"].map(rank)})
    frame = frame.loc[:, :].iloc[key.reset_index(drop=True).sort_values(["p", "a", "b"], kind="stable").index]
    return {str(family): rows for family, rows in frame.groupby("family", sort=False)}


def _matrix(results: Results, family: str, frame: pd.DataFrame) -> Figure:
    short = frame.assign(**{side: frame[side].str.removeprefix(f"{family} ") for side in ("first", "second")})
    notes = {
        "frequency": "Bins hold equal numbers of tokens; bin 1 holds the rarest types.",
        "position": "Positions are counted from 0 within a sequence.",
        "kind": "The first token of a sequence, the other special tokens, and all the rest.",
    }
    return Figure(
        f"groups-{family}",
        f"Mean cosine within and between tokens by {family}",
        f"{notes.get(family, '')} On the diagonal pairs inside a subset, beside it pairs of one token from each. Numbers in "
        "brackets have an interval that holds 0; empty cells had too few tokens.".strip(),
        results.basis(frame),
        f"Heat maps of mean cosines between {short['first'].nunique()} subsets of tokens at "
        f"{listing(list(dict.fromkeys(frame['place'])))}: {span_of(frame, lambda row: row['component'])}.",
        lambda width: charts.heatmap(
            short,
            x="first",
            y="second",
            panel="place",
            title="mean cosine",
            names=(family, family),
            diverging=True,
            size=(width, 30),
            columns=columns(width, 3),
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
    frame = _stacked(results, SPECTRUM)
    explained = results.components("spectrum.explained")
    explained = explained[explained["site"].eq("hidden") & explained["layer"].notna()]
    lead = (
        "A sees only a common direction. The spectrum of the covariance also sees clouds that are stretched along a few "
        "axes but centred at 0."
    )
    figures = ([_readings(results, frame)] if len(frame) else []) + (
        [_explained(results, explained)] if len(explained) else []
    )
    return Section("spectrum", "How many directions are used?", lead, tuple(figures)) if figures else None


def _readings(results: Results, frame: pd.DataFrame) -> Figure:
    shape = f" of {results.width}" if results.width else ""
    peak = results.at(results.peak, "spectrum.effective_rank") if results.peak is not None else None
    rank = f" The most anisotropic place has an effective rank of {number(peak['value'])}{shape}." if peak is not None else ""
    return Figure(
        "spectrum",
        "Four readings of the spectrum",
        "Each panel has its own axis. Effective rank is the exponential of the entropy of the singular values, the "
        "participation ratio weighs large variances more; IsoScore is 1 for equal variances and 0 for one axis; d · E[cos²] "
        f"is 1 for isotropic vectors and grows as they gather along an axis, either way round.{rank} Ribbons, where "
        "intervals were asked for, are 95 % intervals.",
        results.basis(frame),
        f"Line charts of {listing(list(dict.fromkeys(frame['series'])))} against the layer.",
        lambda width: charts.layer_curve(
            frame,
            series=PANEL,
            panel="series",
            title="",
            zero=False,
            independent=True,
            size=(width, height(width, 170, 150)),
            columns=columns(width),
        ),
    )


def _explained(results: Results, frame: pd.DataFrame) -> Figure:
    curve = frame.assign(axes=frame["component"].astype(int), layer=frame["layer"].astype(int))
    first = curve[curve["axes"].eq(1)]
    most = f": the first axis explains {percent(first['value'].min())} to {percent(first['value'].max())}" if len(first) else ""
    return Figure(
        "explained-variance",
        "Variance explained by the leading axes",
        "Cumulative share of the variance on the k leading principal axes, one line per layer, from light (first) to dark "
        f"(last). A line that starts high has one dominant axis{most}.",
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


def _stacked(results: Results, labels: dict[str, str]) -> pd.DataFrame:
    """Layer rows of several metrics in one frame, `series` naming each."""
    return pd.concat([results.layers(metric).assign(series=label) for metric, label in labels.items()])


def _final(frame: pd.DataFrame) -> str:
    return f", {FINAL}" if frame["site"].eq("final").any() else ""
