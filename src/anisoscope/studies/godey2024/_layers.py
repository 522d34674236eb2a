"""A per layer of several systems: what figures 1 to 4 have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from anisoscope import charts
from anisoscope.measurement import Settings
from anisoscope.records import select
from anisoscope.runner import Job, run
from anisoscope.studies._judging import both_ways, outcome_above
from anisoscope.studies._study import Context, Verdict

METRICS = ("mean_cosine", "drift", "norms", "calibrated")


@dataclass(frozen=True)
class Systems:
    """Which models on which corpus. `limit`: first units only."""

    models: tuple[str, ...]
    corpus: str
    limit: int | None = None
    policies: tuple[str, ...] = ("all", "content", "no-first")


def measure(systems: Systems, context: Context) -> pd.DataFrame:
    """Every system's records of hidden states; each is a run of its own, found again when it is finished."""
    parts = []
    for i, model in enumerate(systems.models):
        settings = Settings(metrics=METRICS, policies=systems.policies)
        job = Job(
            model,
            systems.corpus,
            settings,
            limit=systems.limit,
            batch_tokens=context.batch_tokens,
            device=context.device,
        )
        parts.append(run(job, root=context.cache, resume=True).records())
        context.progress(model, i + 1, len(systems.models))
    records = pd.concat(parts, ignore_index=True)
    return records[records["component"].isna() | (records["metric"] != "mean_cosine.contribution")]


def curves(records: pd.DataFrame, policy: str = "all") -> pd.DataFrame:
    """A of every layer and model, with q95(d) beside it: encoder layers first, then decoder layers, on one axis
    `place`.
    """
    rows = select(records, metric="mean_cosine", site="hidden", token_policy=policy, head=None)
    keys = ["model", "stack", "layer"]
    bound = select(
        records, metric="mean_cosine.isotropic_q95", site="hidden", token_policy=policy, head=None
    ).set_index(keys)["value"]
    rows = rows.set_index(keys).assign(q95=bound).reset_index()
    rows["place"] = rows["layer"].astype(int)
    for model, of_model in rows.groupby("model"):
        if of_model["stack"].nunique() > 1:
            shift = int(of_model.loc[of_model["stack"] == "encoder", "layer"].max()) + 1
            rows.loc[(rows["model"] == model) & (rows["stack"] == "decoder"), "place"] += shift
    return rows.sort_values(["model", "place"], kind="stable").reset_index(drop=True)


def judge_anisotropic(records: pd.DataFrame, claim: str) -> list[Verdict]:
    """One verdict per model: A above q95(d) in at least one layer (Holm over all layers of all models)."""
    rows = curves(records)
    up, down = both_ways(rows, rows["q95"].to_numpy(float))
    rows = rows.assign(p=up, outcome=outcome_above(up, down), over=rows["value"] - rows["q95"])
    verdicts = []
    for model, layers in rows.groupby("model", sort=False):
        best = layers.loc[layers["over"].idxmax()]
        outcome = (
            "holds"
            if (layers["outcome"] == "holds").any()
            else "fails"
            if (layers["outcome"] == "fails").all()
            else "undecided"
        )
        verdicts.append(
            Verdict(
                claim,
                outcome,  # type: ignore[arg-type]
                f"largest A, at {best.stack} layer {best.layer}, against q95 = {best.q95:.3f}:",
                float(best.value),
                float(best.low),
                float(best.high),
                int(best.n_units),
                float(best.p),
                f"{(layers['outcome'] == 'holds').sum()} of {len(layers)} layers anisotropic; n counts units",
                str(model),
            )
        )
    return verdicts


def draw(records: pd.DataFrame, names: Sequence[str] = ()) -> dict[str, Any]:
    """The paper's figure: A per layer, a curve with its interval per model, the isotropic band below."""
    rows = curves(records)
    rows["layer"] = rows["place"]
    bound = rows.groupby("model")["q95"].max().to_dict()
    chart = charts.layer_curve(rows, series="model", isotropic=max(bound.values()), title="anisotropy A")
    return {(names[0] if names else "layers"): chart}
