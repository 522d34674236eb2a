"""The few numbers of a measurement that trackers draw as curves: per layer, means and maxima over heads."""

import math

import pandas as pd

LOGGED = {
    "mean_cosine": "A",
    "drift": "drift",
    "query_key.cosine": "cosine_query_key",
    "attention.entropy": "entropy",
    "attention.entropy_normalised": "entropy_normalised",
    "attention.first_mass": "first_mass",
    "logits.largest": "logit",
    "sinks.rate .3": "sink_rate",
    "massive.largest 1": "activation",
    "massive.over_median": "activation_over_median",
    "matrix_entropy": "matrix_entropy",
    "kurtosis": "kurtosis",
}
"""Metrics that are logged, with their component if they have some, and their names there: per layer, means over heads
(of the cosine: of its size)."""
OF_HEADS = {
    "query_key.cosine",
    "attention.entropy",
    "attention.entropy_normalised",
    "attention.first_mass",
}
OF_HEADS |= {"sinks.rate .3"}
"""Those of single heads: the largest of a layer's heads is logged too, as `<name>_max`."""
OF_MAXIMA = {"logits.largest", "massive.largest 1"}
"""Those that are the largest of all heads or dimensions of a layer: they are logged as `<name>_max` alone."""
OF_VECTORS = {"mean_cosine", "drift"}
"""Those that queries, keys and values have as well: those of hidden states are logged."""
SITES = ("hidden", "query.raw", "attention", "extremes")


def summarise_layers(
    records: pd.DataFrame, prefix: str = "anisoscope"
) -> dict[str, float]:
    """Return the values to log from the records of one model: {"anisoscope/encoder.3/A": .21, …}.

    For each layer: the metrics that `LOGGED` names, averaged over heads, and the largest value of any head as
    `<name>_max`. Under several token policies (which tokens count) the values are those of the first.
    """
    records = _keep_first_policy(records)
    # A metric of several components has a name for each, such as `sinks.rate .3`.
    component = records["component"].fillna("").astype(str)
    full_names = (records["metric"].astype(str) + " " + component).str.strip()
    records = records.assign(metric=full_names)
    logged = (
        records["metric"].isin(LOGGED)
        & (records["kind"] != "cross")
        & records["site"].isin(SITES)
    )
    other_vectors = records["metric"].isin(OF_VECTORS) & (records["site"] != "hidden")
    rows = records[logged & ~other_vectors]
    # Heads whose cosines have opposite signs must not cancel in the mean.
    is_cosine = rows["metric"] == "query_key.cosine"
    rows = rows.assign(value=rows["value"].where(~is_cosine, rows["value"].abs()))
    named: dict[str, float] = {}
    for (stack, layer, metric), values in rows.groupby(
        ["stack", "layer", "metric"], sort=False
    )["value"]:
        name = f"{prefix}/{stack}.{layer}/{LOGGED[str(metric)]}"
        if metric not in OF_MAXIMA:
            named[name] = float(values.mean())
        if metric in OF_HEADS | OF_MAXIMA:
            named[f"{name}_max"] = float(values.max())
    return {name: value for name, value in named.items() if math.isfinite(value)}


def _keep_first_policy(records: pd.DataFrame) -> pd.DataFrame:
    """Return the records of the first token policy (which tokens count), and those that have none."""
    policy = records["token_policy"]
    first = policy.dropna().head(1)
    return records[policy.isna() | policy.isin(first)]
