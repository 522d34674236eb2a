"""Figures 5 and 16: is the drift ‖x̄‖ correlated with A across the layers of a model? Spearman (5) and Pearson (16)."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from anisoscope.charts.study_charts import p_values
from anisoscope.store import as_records
from anisoscope.studies.godey2024 import fig01_04_layers, layer_curves, permutation
from anisoscope.studies.godey2024.layer_curves import TRAINED, UNTRAINED
from anisoscope.studies.godey2024.permutation import Kind
from anisoscope.studies.judge import Test, detected, judged, stated
from anisoscope.studies.study import SIGNED, Context, Verdict, claims, declare
from anisoscope.sums.jackknife import holm, interval

TEXT, VISION, NONE, SPEECH, WALKS = claims("godey2024", "fig5").values()
LEVEL = 0.05
NUMBERS = {"": "r", ".p": "p", ".p_smallest": "p_smallest", ".p_scipy": "p_scipy", ".layers": "layers"}
"""What is recorded of a system, after `correlation.<kind>`, and its column in `table`."""


@dataclass(frozen=True)
class Correlated:
    """The systems of figures 1 to 4, and the coefficient."""

    kind: Kind
    figures: tuple[layer_curves.Systems, ...]


def measure(settings: Correlated, context: Context) -> pd.DataFrame:
    """Records of the figures (runs that are finished are read), the correlation of every system, and how often two
    random walks are correlated.
    """
    parts = [layer_curves.measure(systems, context) for systems in settings.figures]
    records = pd.concat(parts, ignore_index=True).drop_duplicates(ignore_index=True)
    value, low, high = permutation.false_positive_rate(settings.kind)
    walks = {"model": "random walks", "metric": f"false_positive_rate.{settings.kind}", "component": "13 steps"}
    found = (correlations(records, settings.kind), pd.DataFrame([walks | {"value": value, "low": low, "high": high}]))
    return pd.concat([records, *map(as_records, found)], ignore_index=True)


def correlations(records: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """One row per system and quantity: coefficient with its interval over units, p, smallest p, scipy's p, layers."""
    rows = []
    for model, seed, layers in layer_curves.per_system(layer_curves.curves(records)):
        a, drift = (layer_curves.replicates(records, layers, metric) for metric in ("mean_cosine", "drift"))
        estimate = interval(permutation.coefficient(kind, drift, a), bounds=SIGNED)._asdict()
        test = permutation.permutation_test(kind, drift[0], a[0])
        scipys = permutation.default_p(kind, drift[0], a[0])
        values = (None, test.p, test.smallest, scipys, float(test.n))
        given = {"model": model, "seed": seed, "n_units": int(layers["n_units"].iloc[0]), "site": "hidden"}
        for name, value in zip(NUMBERS, values, strict=True):
            numbers = {k: float(x) for k, x in estimate.items()} if value is None else {"value": value}
            rows.append(given | {"metric": f"correlation.{kind}{name}"} | numbers)
    return pd.DataFrame(rows)


def table(records: pd.DataFrame) -> pd.DataFrame:
    """One row per system and seed: model, seed, r, low, high, p, p_smallest, p_scipy, layers, n_units."""
    parts = records["metric"].str.extract(r"^correlation\.[a-z]+(?P<number>\..*)?$")["number"].fillna("")
    rows = records.assign(name=parts.map(NUMBERS))[records["metric"].str.startswith("correlation.").fillna(False)]
    if rows.empty:
        return pd.DataFrame(columns=["model", "seed", *NUMBERS.values(), "low", "high", "n_units"])
    wide = rows.pivot_table(index=["model", "seed"], columns="name", values="value", sort=False, dropna=False)
    wide = wide.reindex(columns=list(NUMBERS.values())).dropna(how="all")
    ends = rows[rows["name"] == "r"].set_index(["model", "seed"])[["low", "high", "n_units"]]
    return wide.join(ends).reset_index()


def judge(records: pd.DataFrame) -> list[Verdict]:
    """One verdict per trained system (Holm over all of them) and one on the test itself."""
    rows = table(records)
    rows = rows[~rows["model"].astype(str).str.endswith(UNTRAINED)]
    worst = rows.groupby("model", sort=False)["p"].max().astype(float)  # a claim must hold with every seed
    corrected = pd.Series(holm(np.asarray(worst, dtype=np.float64)), index=worst.index)
    systems = int(worst.notna().sum())
    verdicts = [_system(group, corrected[model], systems) for model, group in rows.groupby("model", sort=False)]
    return verdicts + layer_curves.unmeasured((TEXT, VISION, NONE), verdicts, records) + _judge_walks(records)


def _system(rows: pd.DataFrame, corrected: float, systems: int) -> Verdict:
    """The verdict on one system, of which every seed must say the same."""
    first = rows.iloc[0]
    claim = next((c for c in (NONE, SPEECH, VISION) if str(first.model).startswith(c.systems)), TEXT)
    expected = claim != NONE
    found = [
        None if claim == SPEECH else detected(float(p), corrected, float(smallest), expected=expected)
        for p, smallest in zip(rows["p"], rows["p_smallest"], strict=True)
    ]
    reason = f"{int(first.layers)} layers, smallest p {first.p_smallest:.2g}, permutation p {first.p:.2g}"
    reason += f", scipy's {first.p_scipy:.2g}"
    if first.p_smallest >= LEVEL:
        reason += "; p could not have been below .05"
    elif first.p_smallest * systems >= LEVEL:
        reason += f"; p corrected for {systems} systems could not have been below .05"
    if len(rows) > 1:
        named = ", ".join(f"{p:.2g}" for p in rows["p"])
        reason += f"; {len(rows)} seeds, p {named}, each: {', '.join(stated(claim, x, '').outcome for x in found)}"
    agreed = found[0] if len(set(found)) == 1 else None
    numbers = (float(first.r), float(first.low), float(first.high), int(first.n_units), float(corrected))
    return stated(claim, agreed, "coefficient:", *numbers, reason, str(first.model).removesuffix(TRAINED))


def _judge_walks(records: pd.DataFrame) -> list[Verdict]:
    rows = records[records["metric"].str.startswith("false_positive_rate").fillna(False)]
    above, note = (float(np.nextafter(LEVEL, 1)), 1.0), "4,000 pairs of walks; 0.05 would be right"
    ends = zip(rows["value"], rows["low"], rows["high"], strict=True)
    return judged([Test(WALKS, WALKS.statistic, v, low, high, inside=above, note=note) for v, low, high in ends])


def draw(name: str, records: pd.DataFrame) -> dict[str, Any]:
    """p of each system on a logarithmic axis, the line at .05, scipy's p and the smallest p beside it."""
    rows = table(records)
    if rows.empty:
        return {}
    several = rows.groupby("model")["seed"].transform("nunique") > 1
    rows["system"] = rows["model"].astype(str) + np.where(several, ", seed " + rows["seed"].astype(str), "")
    return {name: p_values(rows[["system", "p", "p_smallest", "p_scipy"]].dropna(subset=["p"]), LEVEL)}


STUDIES = tuple(
    declare(
        "godey2024",
        name,
        settings={
            key: Correlated(kind, tuple(of_name[key] for of_name in fig01_04_layers.SETTINGS.values()))
            for key in ("quick", "long", "paper")
        },
        measure=measure,
        judge=judge,
        draw=partial(draw, name),
        needs=tuple(dict.fromkeys(need for study in fig01_04_layers.STUDIES for need in study.needs)),
    )
    for name, kind in zip(("fig5", "fig16"), permutation.KINDS, strict=True)
)
