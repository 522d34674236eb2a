"""Figure 15: entropy of attention rows along training, and what the drift of queries and keys does to it.

The paper takes from the growth of Q̄·K̄ that drift makes attention sharp. A softmax does not see Q̄·K̄, nor anything else
that is constant along a row; so the entropy is measured once more with the queries centred and with the keys centred,
and the variance of scores inside rows is divided into what the mean query and what deviations alone put there
(`metrics/score_terms.py`, `metrics/centred_attention.py`).
"""

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import series_charts
from anisoscope.store import select
from anisoscope.studies.godey2024 import checkpoints
from anisoscope.studies.godey2024.series_claims import Array, table
from anisoscope.studies.judge import Test, judged, of_seeds, stated
from anisoscope.studies.study import Claim, Context, Study, Verdict

SOURCE = "Godey et al. 2024, section 5, figure 15"
OURS = "ours: what the paper infers from the growth of Q̄·K̄"
DECAYS = Claim("entropy-decays", "The entropy of attention rows falls from step 0 to the end, in every layer", SOURCE)
SHARPER = Claim(
    "first-layer-sharper", "The first layer ends sharper than the last (lower normalised entropy; nats)", SOURCE
)
IDLE = Claim(
    "mean-key-idle", "Centring the keys leaves the entropy as it is (within 1e-6 nats, every head)", OURS, identity=True
)
RISES = Claim("mean-query-sharpens", "Centring the queries raises the entropy at the end", OURS)
EXPLAINS = Claim(
    "drift-explains-sharpening",
    "Centring the queries gives back more than half of the entropy lost since step 0, in the mean over layers",
    OURS,
)
LEADS = Claim(
    "mean-query-leads",
    "At the end Q̄·(k − K̄) makes more than half of the variance of scores inside rows, in the mean over heads",
    OURS,
    bounds=(0.0, np.inf),
)
SHARE_GROWS = Claim("mean-query-share-grows", "That share is larger at the end than at step 0", OURS)
ROUNDING = 1e-6
KEPT = {
    "attention": ("attention.entropy", "attention.entropy_normalised"),
    "centred": tuple(f"centred_attention.{name}" for name in ("query", "query_rise", "key", "key_rise")),
    "scores": ("score_terms.mean_query_share", "score_terms.centred_share"),
}


def measure(series: checkpoints.CheckpointSettings, context: Context) -> pd.DataFrame:
    """Entropies, centred entropies and parts of the scores of every head at every checkpoint."""
    records = checkpoints.records_of(checkpoints.measure(series, context))
    parts = [select(records, site=site, metric=names) for site, names in KEPT.items()]
    return pd.concat(parts, ignore_index=True)


def judge(records: pd.DataFrame) -> list[Verdict]:
    entropy = table(records, "attention.entropy")
    by_layer = entropy.values.mean(-1)  # [seed, step, layer]
    normalised = table(records, "attention.entropy_normalised").values.mean(-1)
    rise = table(records, "centred_attention.query_rise").values.mean(-1)
    tests = [
        of_seeds(DECAYS, change, "change in nats", below=True, subject=f"layer {layer}")
        for layer, change in zip(entropy.layers, (by_layer[:, -1] - by_layer[:, 0]).T, strict=True)
    ]
    if len(entropy.layers) > 1:
        for name, values in (("normalised", normalised), ("nats", by_layer)):
            first_last = ", ".join(f"{x:.3f}" for x in (values[:, -1, 0].mean(), values[:, -1, -1].mean()))
            apart, reason = values[:, -1, 0] - values[:, -1, -1], f"first, last: {first_last}"
            tests.append(of_seeds(SHARPER, apart, "first − last", below=True, reason=reason, subject=name))
    layers = "by layer: " + ", ".join(f"{x:.3f}" for x in rise[:, -1].mean(0))
    tests.append(of_seeds(RISES, rise[:, -1].mean(-1), "rise in nats, mean over layers", reason=layers))
    return [*judged([*tests, *_explanation(records, by_layer, rise)]), _idle(records)]


def _explanation(records: pd.DataFrame, entropy: Array, rise: Array) -> list[Test]:
    """Whether the drift explains the sharpening; of layers that lost entropy."""
    lost = entropy[:, 0] - entropy[:, -1]  # [seed, layer]
    back = np.where(lost > 0, rise[:, -1] / np.where(lost > 0, lost, 1), np.nan)
    overall = np.where(lost.mean(-1) > 0, rise[:, -1].mean(-1) / lost.mean(-1), np.nan)
    layers = "by layer: " + ", ".join(f"{x:.2f}" for x in _means(back))
    share = table(records, "score_terms.mean_query_share").values.mean(-1)
    others = table(records, "score_terms.centred_share").values[:, -1].mean()
    parts = f"(q − Q̄)·(k − K̄): {others:.2f}; by layer: " + ", ".join(f"{x:.2f}" for x in share[:, -1].mean(0))
    start = f"at step 0: {share[:, 0].mean():.2f}"
    return [
        of_seeds(EXPLAINS, overall, "share given back", 0.5, reason=layers),
        of_seeds(LEADS, share[:, -1].mean(-1), "share of the variance inside rows", 0.5, reason=parts),
        of_seeds(SHARE_GROWS, (share[:, -1] - share[:, 0]).mean(-1), "change of the share", reason=start),
    ]


def _means(values: Array) -> Array:
    """Mean over seeds [seed, layer] of what is defined; NaN where nothing is."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known.any(0), np.nansum(values, 0) / np.maximum(known.sum(0), 1), np.nan))


def _idle(records: pd.DataFrame) -> Verdict:
    """No statistics: softmax cannot see it, so it holds up to rounding or something is wrong."""
    largest = float(np.nanmax(np.abs(table(records, "centred_attention.key_rise").values)))
    reason = "queries and keys as they are scored; any more would be an error of the measurement"
    heads = int((records["metric"] == "centred_attention.key_rise").sum())
    return stated(IDLE, largest <= ROUNDING, "largest change:", largest, n=heads, reason=reason)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Entropy per layer in nats and normalised; beside it with centred queries and keys; and parts of the scores."""
    return {
        "fig15": series_charts.layers(records, "attention.entropy", "entropy (nats)"),
        "fig15_normalised": series_charts.layers(records, "attention.entropy_normalised", "entropy / ln(keys)"),
        "fig15_centred": series_charts.centred(records),
        "fig15_terms": series_charts.terms(records),
    }


STUDY = Study(
    name="fig15",
    paper="godey2024",
    title="Entropy of attention rows along training, and what the drift does to it",
    claims=(DECAYS, SHARPER, RISES, EXPLAINS, LEADS, SHARE_GROWS, IDLE),
    settings=checkpoints.SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "Means over heads and seeds with 95 % intervals over seeds (Student t). First layer in blue, last in orange. "
        "Then, per layer: the entropy with queries and with keys centred; and what share of the variance of scores "
        "inside rows is due to the mean query, Q̄·(k − K̄), and to deviations, (q − Q̄)·(k − K̄)."
    ),
    needs=checkpoints.NEEDS,
)
