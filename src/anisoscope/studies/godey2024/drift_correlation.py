"""Drift against A across the layers of each model: what figures 5 and 16 have in common."""

from dataclasses import dataclass
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from anisoscope.charts.style import INK, MUTED
from anisoscope.store import as_records
from anisoscope.studies.godey2024 import layer_curves, permutation
from anisoscope.studies.godey2024.curve_claims import per_system
from anisoscope.studies.godey2024.layer_curves import TRAINED, UNTRAINED
from anisoscope.studies.godey2024.left_out import replicates
from anisoscope.studies.godey2024.permutation import Kind
from anisoscope.studies.judge import Test, detected, judged, nothing, stated
from anisoscope.studies.study import SIGNED, Claim, Context, Verdict
from anisoscope.sums.jackknife import holm, interval

SOURCE = "Godey et al. 2024, section 4.1 and appendix A, figures 5 and 16"
TEXT = Claim(
    "text Transformers", "Drift and A are correlated across the layers of sub-word and character models", SOURCE
)
VISION = Claim("vision Transformers", "Drift and A are correlated across the layers of vision Transformers", SOURCE)
NONE = Claim(
    "not correlated",
    "No significant correlation in convolutional networks, nor in GPT-2, CANINE-c, MANTa-base, HuBERT, Whisper-base",
    SOURCE,
)
SPEECH = Claim("other speech models", "Reported without an expectation: the paper names none", SOURCE)
WALKS = Claim(
    "false positives",
    "Two independent random walks of 13 steps come out significant far more often than in 5 % of cases",
    "ours: layers are autocorrelated, the test assumes they are not",
)
CLAIMS = (TEXT, VISION, NONE, SPEECH, WALKS)

NOT_SIGNIFICANT = (
    *("gpt2", "canine-c", "manta", "hubert", "whisper"),
    *("resnet", "efficientnet", "cvt", "convnext", "van", "small ResNet", "small ConvNeXt", "small speech CNN"),
)
IMAGES = ("vit", "beit", "deit", "mit", "small ViT")
UNKNOWN = ("wav2vec2", "small wav2vec")
LEVEL = 0.05
SMALLEST_DRAWN = 1e-7
"""Smaller p of scipy (0 where ranks agree entirely) are drawn here."""


@dataclass(frozen=True)
class Correlated:
    """The systems of figures 1 to 4, and the coefficient."""

    kind: Kind
    figures: tuple[layer_curves.Systems, ...]


def measure(settings: Correlated, context: Context) -> pd.DataFrame:
    """Records of the figures (runs that are finished are read), and the correlation of every system."""
    parts = [layer_curves.measure(systems, context) for systems in settings.figures]
    records = pd.concat(parts, ignore_index=True).drop_duplicates(ignore_index=True)
    found = pd.concat([as_records(correlations(records, settings.kind)), _walks(settings.kind)], ignore_index=True)
    return pd.concat([records, found], ignore_index=True)


def correlations(records: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """One row per system and quantity: coefficient with its interval over units, p, smallest p, scipy's p, layers."""
    rows = []
    for model, seed, layers in per_system(layer_curves.curves(records)):
        a, drift = (replicates(records, layers, metric) for metric in ("mean_cosine", "drift"))
        estimate = interval(permutation.coefficient(kind, drift, a), bounds=SIGNED)
        test = permutation.permutation_test(kind, drift[0], a[0])
        values = {
            "": (float(estimate.value), float(estimate.low), float(estimate.high)),
            ".p": (test.p, np.nan, np.nan),
            ".p_smallest": (test.smallest, np.nan, np.nan),
            ".p_scipy": (permutation.default_p(kind, drift[0], a[0]), np.nan, np.nan),
            ".layers": (float(test.n), np.nan, np.nan),
        }
        given = {"model": model, "seed": seed, "n_units": int(layers["n_units"].iloc[0]), "site": "hidden"}
        rows += [
            given | {"metric": f"correlation.{kind}{name}", "value": v, "low": low, "high": high}
            for name, (v, low, high) in values.items()
        ]
    return pd.DataFrame(rows)


def _walks(kind: Kind) -> pd.DataFrame:
    value, low, high = permutation.false_positive_rate(kind)
    row = {"model": "random walks", "metric": f"false_positive_rate.{kind}", "component": "13 steps"}
    return as_records(pd.DataFrame([row | {"value": value, "low": low, "high": high}]))


def table(records: pd.DataFrame) -> pd.DataFrame:
    """One row per system and seed: model, seed, r, low, high, p, p_smallest, p_scipy, layers, n_units."""
    rows = records[records["metric"].str.startswith("correlation.").fillna(False).astype(bool)]
    if rows.empty:
        return pd.DataFrame(
            columns=["model", "seed", "r", "low", "high", "p", "p_smallest", "p_scipy", "layers", "n_units"]
        )
    kind = str(rows["metric"].iloc[0]).split(".")[1]
    names = {f"correlation.{kind}{suffix}": name for suffix, name in zip(("", *_SUFFIXES), ("r", *_NAMES), strict=True)}
    rows = rows.assign(name=rows["metric"].map(names))
    wide = rows.pivot_table(index=["model", "seed"], columns="name", values="value", sort=False, dropna=False)
    wide = wide.reindex(columns=["r", *_NAMES]).dropna(how="all")
    ends = rows[rows["name"] == "r"].set_index(["model", "seed"])[["low", "high", "n_units"]]
    return wide.join(ends).reset_index()


_SUFFIXES = (".p", ".p_smallest", ".p_scipy", ".layers")
_NAMES = ("p", "p_smallest", "p_scipy", "layers")


def judge(records: pd.DataFrame) -> list[Verdict]:
    """One verdict per trained system (Holm over all of them) and one on the test itself."""
    rows = table(records)
    rows = rows[~rows["model"].str.endswith(UNTRAINED)] if len(rows) else rows
    worst = rows.groupby("model", sort=False)["p"].max().astype(float)  # a claim must hold with every seed
    corrected = pd.Series(holm(np.asarray(worst, dtype=np.float64)), index=worst.index)
    rows = rows.assign(
        corrected=rows["model"].map(corrected).astype(float),
        systems=int(worst.notna().sum()),
        claim=[_claim(str(m)).name for m in rows["model"]],
    )
    verdicts = [_system(of_model) for _, of_model in rows.groupby("model", sort=False)]
    why = "; ".join(f"{system}: {reason}" for system, reason in layer_curves.skipped(records).items())
    absent = [c for c in (TEXT, VISION, NONE) if c.name not in set(rows["claim"])]
    verdicts += [nothing(claim, why or "no system of these settings is one the claim is about") for claim in absent]
    return [*verdicts, *_judge_walks(records)]


def _claim(model: str) -> Claim:
    if model.startswith(NOT_SIGNIFICANT):
        return NONE
    if model.startswith(UNKNOWN):
        return SPEECH
    return VISION if model.startswith(IMAGES) else TEXT


def _system(rows: pd.DataFrame) -> Verdict:
    ps = rows[["p", "corrected", "p_smallest"]].to_numpy(float).tolist()
    first, claim = rows.iloc[0], _claim(str(rows["model"].iloc[0]))
    found = [None if claim == SPEECH else detected(*numbers, expected=claim != NONE) for numbers in ps]
    agreed = found[0] if len(set(found)) == 1 else None
    reason = f"{int(first.layers)} layers, smallest p {first.p_smallest:.2g}, permutation p {first.p:.2g}"
    reason += f", scipy's {first.p_scipy:.2g}"
    if first.p_smallest >= LEVEL:
        reason += "; p could not have been below .05"
    elif first.p_smallest * first.systems >= LEVEL:
        reason += f"; p corrected for {first.systems} systems could not have been below .05"
    if len(rows) > 1:
        named = ", ".join(f"{p:.2g}" for p, *_ in ps)
        reason += f"; {len(rows)} seeds, p {named}, each: {', '.join(stated(claim, x, '').outcome for x in found)}"
    subject = str(first.model).removesuffix(TRAINED)
    numbers = (float(first.r), float(first.low), float(first.high), int(first.n_units), float(first.corrected))
    return stated(claim, agreed, "coefficient:", *numbers, reason, subject)


def _judge_walks(records: pd.DataFrame) -> list[Verdict]:
    rows = records[records["metric"].str.startswith("false_positive_rate").fillna(False).astype(bool)]
    note, above = "4,000 pairs of walks; 0.05 would be right", (np.nextafter(LEVEL, 1), 1.0)
    return [
        verdict
        for value, low, high in rows[["value", "low", "high"]].to_numpy(float).tolist()
        for verdict in judged([Test(WALKS, "share with p < .05:", value, low, high, inside=above, note=note)])
    ]


def draw(records: pd.DataFrame, name: str) -> dict[str, Any]:
    """p of each system on a logarithmic axis, the line at .05, scipy's p and the smallest p beside it."""
    rows = table(records)
    if rows.empty:
        return {}
    rows = rows.assign(
        system=rows["model"].astype(str) + np.where(_seeded(rows), ", seed " + rows["seed"].astype(str), "")
    )
    data = rows[["system", "p", "p_smallest", "p_scipy"]].dropna(subset=["p"])
    data = data.assign(p_scipy=data["p_scipy"].clip(lower=SMALLEST_DRAWN))
    order = list(data["system"])
    across = alt.Scale(type="log", nice=False, domain=[SMALLEST_DRAWN / 2, 1.2])
    base = alt.Chart(data).encode(
        y=alt.Y("system:N", sort=order, title=None, axis=alt.Axis(labelLimit=260, ticks=False))
    )

    def at(field: str) -> alt.X:
        return alt.X(f"{field}:Q", title="p (log scale)", scale=across, axis=alt.Axis(format=".1g", tickCount=6))

    line = alt.Chart(pd.DataFrame({"p": [LEVEL]})).mark_rule(strokeDash=[4, 3], color=MUTED).encode(x=at("p"))
    layers = alt.layer(
        line,
        base.mark_tick(color=MUTED, thickness=2).encode(x=at("p_smallest")),
        base.mark_point(shape="cross", filled=False, color=INK, size=50).encode(x=at("p_scipy")),
        base.mark_point(size=60).encode(x=at("p")),
    )
    return {name: layers.properties(width=420, height=22 * len(order))}


def _seeded(rows: pd.DataFrame) -> Any:
    return rows.groupby("model")["seed"].transform("nunique") > 1
