"""Sections on hidden states: how anisotropic each layer is, and how much of that a common vector explains."""

from collections.abc import Callable

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import builders as charts
from anisoscope.report.parts import DEPTH, RIBBON, Figure, Section, columns, height, span_of
from anisoscope.report.results import PANEL, Results, panel_of
from anisoscope.report.words import count, number


def anisotropy(results: Results) -> Section | None:
    """A per layer and token policy; all pairs against pairs of different units and pairs inside a sequence."""
    every = results.layers("mean_cosine", every_policy=True)
    if every.empty:
        return None
    lead = (
        "A is the mean cosine over all distinct pairs of token vectors: 0 where their directions cancel out, 1 where "
        "all of them point one way."
    )
    figures = [_by_policy(results, every)]
    labels = {"mean_cosine": "all pairs", "mean_cosine.between": "pairs from different groups"}
    labels["intra_sequence"] = "pairs inside one sequence"
    pairs = results.stacked(labels)
    if pairs["series"].nunique() > 1:
        figures.append(_by_pair(results, pairs))
    return Section("anisotropy", "Anisotropy, layer by layer", lead, tuple(figures))


def _by_policy(results: Results, frame: pd.DataFrame) -> Figure:
    law = results.layers("mean_cosine.isotropic_q95")["value"]
    q95 = float(law.max()) if len(law) else None
    dimensions = f" in {results.width} dimensions" if results.width else ""
    band = (
        f" The grey band ends at {number(q95)}, below which lie 95 % of the cosines of isotropic pairs{dimensions}: "
        "a layer whose ribbon lies wholly above it is called anisotropic, one whose ribbon lies wholly inside it "
        "isotropic."
        if q95 is not None
        else ""
    )
    final = ", the open diamond the output after the final norm" if frame["site"].eq("final").any() else ""
    lead = results.layers("mean_cosine")

    def drawing(policy: str) -> Callable[[int], ChartType]:
        chosen = frame[frame["token_policy"].fillna(policy).eq(policy)]
        return lambda width: charts.layer_curve(
            chosen,
            series="stack",
            panel=panel_of(chosen),
            isotropic=q95,
            size=(width, height(width, 320)),
            columns=columns(width),
        )

    policies = results.policies or ["all"]
    return Figure(
        "anisotropy",
        "Anisotropy A of every layer",
        f"{RIBBON}{band} {DEPTH}{final}.",
        results.basis(frame),
        f"Line chart of A against the layer: {span_of(lead, results.place_name)}.",
        drawing(policies[0]),
        tuple((policy, drawing(policy)) for policy in policies) if len(policies) > 1 else (),
    )


def _by_pair(results: Results, frame: pd.DataFrame) -> Figure:
    inside, main = (frame[frame["metric"].eq(name)] for name in ("intra_sequence", "mean_cosine"))
    return Figure(
        "pairs",
        "Which pairs are alike",
        "The mean cosine over all pairs, over pairs whose tokens come from different groups of units (documents, "
        "clips, images), and inside single sequences. What the upper lines have over the line of different groups "
        f"is due to shared content rather than to the model alone. {RIBBON}",
        "; ".join(filter(None, (results.basis(main), results.basis(inside, "sequences", policy=False)))),
        f"Line chart of three mean cosines against the layer: {span_of(frame, results.place_name)}.",
        lambda width: charts.layer_curve(
            frame,
            series="series",
            panel=panel_of(frame),
            title="mean cosine",
            coincide=True,
            size=(width, height(width)),
            columns=columns(width),
        ),
    )


def drift(results: Results) -> Section | None:
    """Does a common vector explain A: drift share beside A and what centring leaves; drift against A; norms."""
    labels = {"mean_cosine": "A", "drift.share": "drift share"}
    frame = results.stacked(
        labels | {"calibrated.centred": "A after centring", "mean_cosine.centred": "A after centring"}
    )
    if "drift.share" not in set(frame["metric"]):
        return None
    lead = (
        "Drift is the norm ‖x̄‖ of the mean vector. Where all tokens share one large common vector, its share of the "
        "mean norm is near 1, A is near the square of that share, and removing the mean removes the anisotropy."
    )
    figures = [_beside_drift(results, frame)]
    points = _drift_points(results)
    if len(points) > 1:
        figures.append(_drift_scatter(results, points))
    norms = results.stacked({"norms.mean": "mean norm", "drift": "norm of the mean (drift)"})
    if norms["series"].nunique() > 1:
        figures.append(_norms(results, norms))
    return Section("drift", "Drift: is there a common vector?", lead, tuple(figures))


def _beside_drift(results: Results, frame: pd.DataFrame) -> Figure:
    return Figure(
        "drift",
        "Anisotropy, drift, and what centring leaves",
        "Where A follows the drift share and nothing is left of it after centring, a common vector causes it. "
        f"{_sample(frame)}{RIBBON}",
        results.basis(frame[frame["metric"].eq("mean_cosine")]),
        "Line chart of A, the drift share and A after centring against the layer: "
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


def _sample(frame: pd.DataFrame) -> str:
    """How many vectors stand behind A after centring, where they are fewer than all."""
    centred = frame.loc[frame["metric"].str.endswith(".centred"), "n_vectors"].dropna()
    return f"A after centring is taken on a uniform sample of {count(centred.max())} vectors. " if len(centred) else ""


def _drift_points(results: Results) -> pd.DataFrame:
    shares = results.layers("drift.share")[["stack", "layer", "site", "value"]].rename(columns={"value": "share"})
    points = results.layers("mean_cosine").merge(shares, on=["stack", "layer", "site"])
    names = points["layer"].astype(int).astype(str).mask(points["site"].eq("final"), "final")
    return points.assign(name=names, joined=points["site"].ne("final"))


def _drift_scatter(results: Results, points: pd.DataFrame) -> Figure:
    return Figure(
        "drift-scatter",
        "Anisotropy against drift, over layers",
        "One point per layer, numbered and joined in order of depth; bars are 95 % intervals of A. Points along a "
        "rising curve mean that layers with a larger common vector are the more anisotropic ones.",
        results.basis(points),
        f"Scatter plot of A against the drift share with {len(points)} points: {span_of(points, results.place_name)}.",
        lambda width: charts.scatter(
            points,
            x="share",
            series=PANEL,
            label="name",
            path=True,
            titles=("drift share (norm of the mean / mean norm)", "anisotropy A"),
            size=(width, height(width, 320, 240)),
        ),
    )


def _norms(results: Results, frame: pd.DataFrame) -> Figure:
    return Figure(
        "norms",
        "Norm of the mean, mean of the norms",
        "Both in the units of the activations. The closer the two lines, the more of each vector is the part that "
        f"all tokens share. {RIBBON}",
        results.basis(frame),
        "Line chart of the norm of the mean vector and of the mean norm against the layer: "
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
