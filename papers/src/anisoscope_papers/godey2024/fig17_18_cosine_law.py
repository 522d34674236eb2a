"""Figures 17 and 18: how cosines of isotropic vectors are distributed in dimension d, and where models lie.

Figure 17 is the closed form of that distribution (the law); samples show that it describes what is computed. Figure 18
compares A of a model's layers with q95(d), the cosine that 95 % of isotropic **pairs** stay below. A is a **mean** over
pairs, and the mean over n isotropic vectors is distributed about n times more narrowly: its own 95 % line is drawn as
well.

Records: rows of an isotropic distribution have the model `isotropic d = {d}`; the component of a density is the cosine.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy import stats

from anisoscope.charts import builders as charts
from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import as_records, select
from anisoscope.sums import isotropic
from anisoscope.sums.jackknife import holm
from anisoscope_papers.godey2024 import fig01_04_layers
from anisoscope_papers.godey2024.layer_curves import (
    TRAINED,
    UNTRAINED,
    Systems,
    infer_width,
    make_layer_tests,
    measure,
    measure_if_available,
)
from anisoscope_papers.judge import Array, judge_tests, make_verdict_without_test
from anisoscope_papers.models import PRESETS
from anisoscope_papers.needs import list_needs
from anisoscope_papers.study import Context, Verdict, declare, read_claims
from anisoscope_papers.study_charts import draw_over_dimensions

SHRINKS, CLOSED = read_claims("godey2024", "fig17").values()
(FAR,) = read_claims("godey2024", "fig18").values()
PLACES = np.linspace(-1, 1, 161)
"""Where a density is drawn, in units of its own width (6 standard deviations, at most the whole axis)."""
SHOWN: dict[str, Any] = {
    "metric": ("mean_cosine", "mean_cosine.isotropic_q95", "drift", "norms.mean"),
    "site": ("hidden", "final"),
    "token_policy": "all",
    "head": None,
    "component": None,
}
"""Which records are kept."""
CORPORA = {"text": "wikitext-103", "speech": "common-voice", "image": "imagenet-1k"}
SYSTEMS = tuple((name, CORPORA[preset.modality]) for name, preset in PRESETS.items())


@dataclass(frozen=True)
class Law:
    """Settings of figure 17: the dimensions drawn, and how many pairs of Gaussian vectors are sampled in each."""

    dimensions: tuple[int, ...] = tuple(2**k for k in range(4, 14))
    pairs: int = 20_000
    seed: int = 0


@dataclass(frozen=True)
class Points:
    """Settings of figure 18: models with the corpus each is measured on (`limit`: first units only).

    figures  systems of figures 1 to 4 that are shown as well, trained ones only
    """

    models: tuple[tuple[str, str], ...] = (("builtin:minilm", "builtin:python-docs"),)
    limit: int | None = 60
    figures: tuple[Systems, ...] = ()


def measure_law(law: Law, context: Context) -> pd.DataFrame:
    """Return for each dimension the density of cosines of isotropic pairs, q95, and how well sampled cosines fit it
    (Kolmogorov–Smirnov).

    `law`: the dimensions and the number of samples; `context` receives the progress.
    """
    rows = []
    drawn = np.random.default_rng(law.seed)
    for done, d in enumerate(law.dimensions, start=1):
        shared = {
            "model": f"isotropic d = {d}",
            "n_vectors": 2 * law.pairs,
            "seed": law.seed,
        }
        # The samples check the closed form against the way in which cosines are
        # computed elsewhere: Gaussian vectors have isotropic directions.
        cosines = _sample_cosines(drawn, law.pairs, d)
        test = stats.kstest(cosines, partial(isotropic.cosine_cdf, d=d))
        one = {
            "q95": isotropic.q95(d),
            "dimension": d,
            "ks_distance": test.statistic,
            "ks_p": test.pvalue,
        }
        one |= {"sampled_q95": np.quantile(cosines, 0.95)}
        for name, value in one.items():
            rows.append(
                {**shared, "metric": f"cosine_law.{name}", "value": float(value)}
            )
        # A cosine has the standard deviation 1/√d.
        at = PLACES * min(1.0, 6 / d**0.5)
        density = zip(at, isotropic.cosine_density(at, d), strict=True)
        named = {**shared, "metric": "cosine_law.density"}
        for t, y in density:
            rows.append({**named, "component": f"{t:.6f}", "value": float(y)})
        context.progress(f"d = {d}", done, len(law.dimensions))
    return as_records(pd.DataFrame(rows))


def _sample_cosines(drawn: np.random.Generator, pairs: int, d: int) -> Array:
    """Return the cosines [pair] of independent Gaussian pairs in d dimensions, computed a few at a time. `drawn`:
    the generator.
    """
    found = []
    # In 8,192 dimensions a thousand pairs take 131 MB.
    for start in range(0, pairs, 1000):
        x, y = drawn.standard_normal((2, min(1000, pairs - start), d))
        found.append((x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1)))
    return np.concatenate(found)


def judge_law(records: pd.DataFrame) -> Sequence[Verdict]:
    """Judge that q95 falls from each dimension d to the next, and that no sample departs from the closed form.

    The latter is a Kolmogorov–Smirnov test, Holm-corrected over d.
    """
    one = select(records, component=None).pivot_table(
        index="model", columns="metric", values="value"
    )
    one = one.sort_values("cosine_law.dimension")
    d = one["cosine_law.dimension"].astype(int)
    ends = one["cosine_law.q95"]
    falls = bool((np.diff(ends) < 0).all())
    # For large d the cosine is normal with variance 1/d, so that q95·√d tends to 1.645.
    scaled = (ends * d**0.5).tolist()
    words = f"q95·√d goes from {scaled[0]:.3f} (d = {d.iloc[0]}) to {scaled[-1]:.3f} (d = {d.iloc[-1]})"
    p = float(holm(one["cosine_law.ks_p"].to_numpy(float)).min())
    pairs = int(records["n_vectors"].iloc[0]) // 2
    largest = float(one["cosine_law.ks_distance"].max())
    why = (
        f"smallest p of {len(d)} dimensions with n pairs each, after Holm's correction"
    )
    return [
        make_verdict_without_test(
            SHRINKS,
            falls,
            f"q95 at d = {d.iloc[-1]}:",
            float(ends.iloc[-1]),
            reason=words,
        ),
        make_verdict_without_test(
            CLOSED, p > 0.05, CLOSED.statistic, largest, n=pairs, p=p, reason=why
        ),
    ]


def draw_law(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw the densities of cosines of isotropic pairs, from light to dark as the dimension d grows; return
    {"fig17": chart}.
    """
    rows = select(records, metric="cosine_law.density")
    d = rows["model"].str.rsplit(" ", n=1).str[1].astype(int)
    data = pd.DataFrame(
        {
            "cosine": rows["component"].astype(float),
            "value": rows["value"],
            "log₂ d": np.log2(d),
        }
    )
    titles = ("cosine of an isotropic pair", "density")
    return {
        "fig17": charts.trajectory(
            data, x="cosine", series="log₂ d", titles=titles, gradient=True
        )
    }


def judge_points(records: pd.DataFrame) -> Sequence[Verdict]:
    """Judge each model: the claim holds if every layer is significantly above q95(d) (Holm over all layers)."""
    rows = select_layers(records)
    tests = []
    # `FAR` is about all systems: there is a test for every row, in the order of the
    # rows.
    for test, row in zip(
        make_layer_tests(FAR, rows), rows.to_dict("records"), strict=True
    ):
        times = (rows["value"] / rows["q95"])[rows["model"] == row["model"]]
        # A is a mean over pairs: what an isotropic cloud of as many vectors would give
        # is far below q95, the quantile of one pair.
        below = float(isotropic.mean_cosine_quantile(0.95, row["d"], row["n_vectors"]))
        note = f"q95({row['d']}) = {row['q95']:.3f}, the layers {times.min():.1f} to {times.max():.1f} times it; "
        note += f"95 % of means over {row['n_vectors']} isotropic vectors stay below {below:.2g}"
        tests.append(replace(test, where=f"layer {row['layer']}", note=note))
    return judge_tests(tests)


PLACE = ["model", "stack", "layer"]
"""What tells one layer from another."""


def select_layers(records: pd.DataFrame) -> pd.DataFrame:
    """Return A (mean cosine) of every hidden layer, with the dimension `d` and `q95` (what 95 % of isotropic pairs
    stay below) as columns.
    """
    rows = select(records, metric="mean_cosine", site="hidden")
    bounds = select(
        records, metric="mean_cosine.isotropic_q95", site="hidden"
    ).set_index(PLACE)["value"]
    # Seeds of a model have the same dimension: the first bound of each layer is enough.
    found = bounds[~bounds.index.duplicated()].reindex(
        pd.MultiIndex.from_frame(rows[PLACE])
    )
    # By layer: in a convolutional network the dimension differs between them.
    d = found.map({q: infer_width(q) for q in found.unique()})
    rows = rows.assign(d=d.to_numpy(int), seed=rows["seed"].fillna(0))
    return rows.assign(q95=isotropic.q95(rows["d"].to_numpy(float)))


def measure_trained_layers(
    models: Sequence[tuple[str, str]], limit: int | None, context: Context
) -> pd.DataFrame:
    """Measure A (mean cosine), drift (norm of the mean vector) and norms by layer, for (model, corpus) pairs.

    Runs are shared with figures 1 to 4. `limit`: only the first units (documents, images) of a corpus; None: all.
    """
    found = []
    for done, (model, corpus) in enumerate(models, start=1):
        # The settings of figures 1 to 4, field by field: a run is found again by its
        # settings.
        job = Job(model, corpus=corpus, settings=Systems().settings(), limit=limit)
        job = replace(job, batch_tokens=context.batch_tokens, device=context.device)
        found += measure_if_available(
            job, context, partial(run, root=context.cache, resume=True)
        )
        context.progress(model, done, len(models))
    parts = [select(done.records, **SHOWN) for done in found]
    if parts:
        return pd.concat(parts, ignore_index=True)
    return as_records(pd.DataFrame())


def measure_points(points: Points, context: Context) -> pd.DataFrame:
    """Return the records of figure 18: of models by name, and of the systems of figures 1 to 4, trained ones only."""
    parts = []
    if points.models:
        parts.append(measure_trained_layers(points.models, points.limit, context))
    for systems in points.figures:
        found = measure(systems, context)
        # Figure 18 shows what models are, not what training did to them.
        found = found[~found["model"].astype(str).str.endswith(UNTRAINED)]
        rows = select(found, **SHOWN)
        parts.append(
            rows.assign(model=rows["model"].str.removesuffix(TRAINED)).astype(
                rows.dtypes.to_dict()
            )
        )
    return pd.concat(parts, ignore_index=True)


def keep_by_position(systems: Systems) -> tuple[Systems, ...]:
    """Keep the systems (models) that have a vector for each position, as opposed to one for a whole image.

    The dimension of a whole image lies far beyond the chart's axis.
    """
    # `others` may hold systems of another kind, so that each is looked at alone.
    every = (replace(systems, others=()), *systems.others)
    return tuple(each for each in every if each.flatten == "position")


def draw_points(records: pd.DataFrame) -> dict[str, ChartType]:
    """Draw A (mean cosine) of models' layers against their number of dimensions d; return {"fig18": chart}.

    One line is q95(d): 95 % of cosines of two random directions lie below it. The other is the same of A itself, the
    mean cosine of all pairs of 1,000 random directions.
    """
    d = np.unique(np.round(np.geomspace(4, 16384, 80)).astype(int))
    means = isotropic.mean_cosine_quantile(0.95, d, 1000)
    lines = {
        "95 % of isotropic pairs": isotropic.q95(d),
        "95 % of means over 1,000 vectors": means,
    }
    laws = []
    for name, values in lines.items():
        laws.append(pd.DataFrame({"d": d, "value": values, "law": name}))
    return {
        "fig18": draw_over_dimensions(
            select_layers(records), pd.concat(laws, ignore_index=True)
        )
    }


def _list_packaged() -> tuple[Systems, ...]:
    """List the packaged networks of figures 1 to 4 that have a vector for each position."""
    found: list[Systems] = []
    for of_name in fig01_04_layers.SETTINGS.values():
        found += keep_by_position(of_name["packaged"])
    return tuple(found)


STUDIES = (
    declare(
        "godey2024",
        "fig17",
        settings={"quick": Law(pairs=2000), "paper": Law()},
        measure=measure_law,
        judge=judge_law,
        draw=draw_law,
    ),
    declare(
        "godey2024",
        "fig18",
        settings={
            "quick": Points(),
            "paper": Points(SYSTEMS, None),
            "packaged": Points((), None, _list_packaged()),
        },
        measure=measure_points,
        judge=judge_points,
        draw=draw_points,
        needs=list_needs(SYSTEMS, "position"),
    ),
)
