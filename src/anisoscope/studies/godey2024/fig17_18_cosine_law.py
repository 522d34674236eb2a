"""Figures 17 and 18: what a cosine means in dimension d, and where models lie.

Figure 17 is the closed form; the samples beside it show that it is the law of what is computed. Figure 18 puts the
layer-wise A of models on q95(d), the cosine that 95 % of isotropic **pairs** stay below. A is a **mean** over pairs,
and the mean over n isotropic vectors has a law about n times narrower: its own 95 % line is drawn as well.

Records: rows of an isotropic law have the model `isotropic d = {d}`; the component of a density is the cosine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy import stats

from anisoscope.charts import norm_charts
from anisoscope.charts.style import MUTED, appearance, facet
from anisoscope.models.families import PRESETS
from anisoscope.store import as_records, select
from anisoscope.studies.godey2024.trained_layers import trained_layers, widths
from anisoscope.studies.judge import Test, judged, p_above, stated
from anisoscope.studies.study import Claim, Context, Study, Verdict
from anisoscope.sums import isotropic
from anisoscope.sums.jackknife import holm

TEXT_MODELS = tuple(name for name, preset in PRESETS.items() if preset.figure == "1")

DENSITY = "Godey et al. 2024, appendix B, figure 17"
QUANTILE = "Godey et al. 2024, appendix B, figure 18"
SHRINKS = Claim("support-shrinks", "The cosines of isotropic pairs gather around 0 as d grows", DENSITY)
LAW = Claim("closed-form", "Cosines of pairs of Gaussian vectors follow the closed form", DENSITY)
FAR = Claim("layers-above-q95", "The A of every layer lies above the 95 % quantile of an isotropic pair", QUANTILE)
DIMENSIONS = tuple(2**k for k in range(4, 14))
PLACES = np.linspace(-1, 1, 161)
"""Where a density is drawn, in units of its own width (6 standard deviations, at most the whole axis)."""


@dataclass(frozen=True)
class Law:
    """Dimensions drawn, and how many pairs of Gaussian vectors are sampled in each."""

    dimensions: tuple[int, ...] = DIMENSIONS
    pairs: int = 20_000
    seed: int = 0


@dataclass(frozen=True)
class Points:
    """Models with the corpus each is measured on (`limit`: first units), and folders of finished runs to show too."""

    models: tuple[tuple[str, str], ...] = (("builtin:minilm", "builtin:python-docs"),)
    limit: int | None = 60
    runs: tuple[Path, ...] = ()


CORPORA = {"text": "wikitext-103", "speech": "common-voice", "image": "imagenet-1k"}
PUBLISHED = Points(tuple((name, CORPORA[preset.modality]) for name, preset in PRESETS.items()), None)


def measure_law(law: Law, context: Context) -> pd.DataFrame:
    """The density, q95 and sampled cosines' agreement (Kolmogorov–Smirnov) for every dimension."""
    rows = []
    drawn = np.random.default_rng(law.seed)
    for done, d in enumerate(law.dimensions, start=1):
        shared = {"model": f"isotropic d = {d}", "n_vectors": 2 * law.pairs, "seed": law.seed}
        cosines = _sampled(drawn, law.pairs, d)
        test = stats.kstest(cosines, partial(isotropic.cosine_cdf, d=d))
        one = {"q95": float(isotropic.q95(d)), "dimension": d, "ks_distance": test.statistic, "ks_p": test.pvalue}
        rows += [{**shared, "metric": f"cosine_law.{name}", "value": float(value)} for name, value in one.items()]
        rows.append({**shared, "metric": "cosine_law.sampled_q95", "value": float(np.quantile(cosines, 0.95))})
        cosines = PLACES * min(1.0, 6 / d**0.5)
        density = isotropic.cosine_density(cosines, d)
        rows += [
            {**shared, "metric": "cosine_law.density", "component": f"{t:.6f}", "value": float(y)}
            for t, y in zip(cosines, density, strict=True)
        ]
        context.progress(f"d = {d}", done, len(law.dimensions))
    return as_records(pd.DataFrame(rows))


def _sampled(drawn: np.random.Generator, pairs: int, d: int) -> np.ndarray:
    """Cosines of independent Gaussian pairs, a few at a time."""
    found = []
    for start in range(0, pairs, 1000):
        x, y = drawn.standard_normal((2, min(1000, pairs - start), d))
        found.append((x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1)))
    return np.concatenate(found)


def judge_law(records: pd.DataFrame) -> Sequence[Verdict]:
    """q95 falls from each d to the next; no sample departs from the closed form (Kolmogorov–Smirnov, Holm over d)."""
    one = select(records, component=None).pivot_table(index="model", columns="metric", values="value")
    one = one.sort_values("cosine_law.dimension")
    falls = bool((np.diff(one["cosine_law.q95"]) < 0).all())
    d, ends = one["cosine_law.dimension"].astype(int), one["cosine_law.q95"]
    p = holm(one["cosine_law.ks_p"].to_numpy(float))
    scaled = (ends * d**0.5).tolist()
    words = f"q95·√d from {scaled[0]:.3f} (d = {d.iloc[0]}) to {scaled[-1]:.3f}"
    pairs, last = int(records["n_vectors"].iloc[0]) // 2, float(ends.iloc[-1])
    apart, largest = "largest distance of the distribution functions:", float(one["cosine_law.ks_distance"].max())
    why = f"n pairs in each of {len(d)} dimensions; smallest p, Holm"
    return [
        stated(SHRINKS, falls, f"q95 at d = {d.iloc[-1]}:", last, reason=words),
        stated(LAW, bool(p.min() > 0.05), apart, largest, n=pairs, p=float(p.min()), reason=why),
    ]


def draw_law(records: pd.DataFrame) -> dict[str, ChartType]:
    rows = select(records, metric="cosine_law.density")
    data = pd.DataFrame({"cosine": rows["component"].astype(float), "density": rows["value"]})
    data["d"] = rows["model"].str.rsplit(" ", n=1).str[1].astype(int)
    scale = alt.Scale(type="log", range=["#bcd5e8", "#0b3c66"], interpolate="lab")
    legend = alt.Legend(
        title="dimension d", type="symbol", symbolType="stroke", values=sorted(data["d"].unique()), columns=10
    )
    base = alt.Chart().encode(
        x=alt.X("cosine:Q", title="cosine of an isotropic pair", scale=alt.Scale(domain=[-1, 1])),
        y=alt.Y("density:Q", title="density"),
        color=alt.Color("d:Q", scale=scale, legend=legend),
        detail="d:N",
    )
    return {"fig17": facet([base.mark_line(strokeWidth=1.6)], data, None, (640, 300), 1)}


def measure_points(points: Points, context: Context) -> pd.DataFrame:
    """A per layer of the models, and of every finished run in the folders given."""
    return trained_layers(points.models, points.limit, context, points.runs)


def judge_points(records: pd.DataFrame) -> Sequence[Verdict]:
    """One verdict per model: holds where every layer is significantly above q95(d) (Holm over all layers)."""
    rows = layers(records)
    above = p_above(rows, rows["q95"].to_numpy(float))
    return judged([_point(row, float(p), rows) for (_, row), p in zip(rows.iterrows(), above, strict=True)])


def _point(row: pd.Series, p: float, rows: pd.DataFrame) -> Test:
    """One layer against q95(d); the note is about all layers of its model."""
    times = (rows["value"] / rows["q95"])[rows["model"] == row["model"]]
    note = f"q95({row['d']}) = {row['q95']:.3f}, the layers {times.min():.1f} to {times.max():.1f} times it; "
    note += f"95 % of means over {int(row['n_vectors'])} isotropic vectors stay below {_mean_line(row):.2g}"
    numbers = (float(row["value"]), float(row["low"]), float(row["high"]), int(row["n_units"]), p, 1 - p)
    test = Test(FAR, "A", *numbers, subject=str(row["model"]), over="all", margin=float(row["value"] - row["q95"]))
    return replace(test, where=f"layer {row['layer']}", words="layers above; n counts units", note=note)


def layers(records: pd.DataFrame) -> pd.DataFrame:
    """A of every hidden layer, with the dimension `d` and `q95` beside it."""
    rows = select(records, metric="mean_cosine", site="hidden")
    rows = rows.assign(d=rows["model"].map(widths(records)).astype(int))
    return rows.assign(q95=isotropic.q95(rows["d"].to_numpy(float)))


def _mean_line(row: pd.Series) -> float:
    return float(isotropic.mean_cosine_quantile(0.95, row["d"], row["n_vectors"]))


def draw_points(records: pd.DataFrame) -> dict[str, ChartType]:
    """Layers of models over q95(d), and the 95 % line of means over 1,000 vectors, which is A's own."""
    rows = layers(records)
    d = np.unique(np.round(np.geomspace(4, 16384, 80)).astype(int))
    means = isotropic.mean_cosine_quantile(0.95, d, 1000)
    lines = {"95 % of isotropic pairs": isotropic.q95(d), "95 % of means over 1,000 vectors": means}
    laws = pd.concat([pd.DataFrame({"d": d, "value": y, "law": name}) for name, y in lines.items()], ignore_index=True)
    x = alt.X(
        "d:Q",
        title="dimension d",
        scale=alt.Scale(type="log", domain=[4, 16384], nice=False),
        axis=alt.Axis(values=[4**k for k in range(1, 8)], labelExpr="toString(datum.value)"),
    )
    y = alt.Y(
        "value:Q",
        title="cosine; A of layers",
        scale=alt.Scale(type="log", domain=[1e-5, 1], nice=False, clamp=True),
        axis=alt.Axis(values=[10.0**k for k in range(-5, 1)], labelExpr=norm_charts.PLAIN),
    )
    dash = alt.StrokeDash(
        "law:N", scale=alt.Scale(domain=list(lines), range=[[1, 0], [4, 3]]), legend=alt.Legend(title=None)
    )
    line = alt.Chart(laws).mark_line(color=MUTED, strokeWidth=1.6).encode(x=x, y=y, strokeDash=dash)
    return {"fig18": alt.layer(line, *_points(rows, x, y)).properties(width=640, height=320)}


def _points(rows: pd.DataFrame, x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """Every layer with its interval; each model named at its highest one."""
    data = rows[["d", "value", "low", "high", "model", "layer"]].astype({"model": str})
    data["name"] = data["model"].where(data["value"] == data.groupby("model")["value"].transform("max"), "")
    known = alt.Chart(data).encode(
        x=x, color=alt.Color("model:N", scale=alt.Scale(domain=appearance(data["model"])), legend=None)
    )
    rule = known.transform_filter("isValid(datum.low)").mark_rule(opacity=0.5).encode(y=alt.Y("low:Q"), y2="high:Q")
    text = known.mark_text(align="left", dx=8, fontSize=11)
    return [rule, known.mark_point(size=46).encode(y=y), text.encode(y=y, text="name:N")]


STUDIES = (
    Study(
        name="fig17",
        paper="godey2024",
        title="Density of the cosine of isotropic pairs in dimension d",
        claims=(SHRINKS, LAW),
        settings={"quick": Law(pairs=2000), "paper": Law()},
        measure=measure_law,
        judge=judge_law,
        draw=draw_law,
        caption="Closed form: (1 + t)/2 ~ Beta((d − 1)/2, (d − 1)/2), for d = 16 … 8192.",
    ),
    Study(
        name="fig18",
        paper="godey2024",
        title="The 95 % quantile of an isotropic pair against the anisotropy of models' layers",
        claims=(FAR,),
        settings={"quick": Points(), "paper": PUBLISHED},
        measure=measure_points,
        judge=judge_points,
        draw=draw_points,
        caption=(
            "Points: A of every layer, with 95 % intervals over documents. The solid line is of one isotropic pair; A "
            "is a mean over pairs, and the mean over 1,000 isotropic vectors stays below the dashed line."
        ),
        needs=tuple(PRESETS[name].hub_id for name in TEXT_MODELS),
    ),
)
