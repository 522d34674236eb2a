"""Figure 15: entropy of attention rows along training, and what the drift of queries and keys does to it.

The paper takes from the growth of Q̄·K̄ that drift makes attention sharp. A softmax does not see Q̄·K̄, nor anything else
that is constant along a row; so the entropy is measured once more with the queries centred and with the keys centred,
and the variance of scores inside rows is divided into what the mean query and what deviations alone put there
(`metrics/score_terms.py`, `metrics/centred_attention.py`).
"""

from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType
from scipy import stats

from anisoscope.store import select
from anisoscope_papers import series_charts
from anisoscope_papers.godey2024 import checkpoints
from anisoscope_papers.godey2024.fig13_14_alignment import table
from anisoscope_papers.judge import Array, judged, means_over_seeds, of_seeds, stated
from anisoscope_papers.study import Verdict, claims, declare

KEPT = (
    *("attention.entropy", "attention.entropy_normalised", "score_terms.mean_query_share", "score_terms.centred_share"),
    *(f"centred_attention.{name}" for name in ("query", "query_rise", "key", "key_rise")),
)


def judge(records: pd.DataFrame) -> list[Verdict]:
    claim = claims("godey2024", "fig15")
    names = ("attention.entropy", "attention.entropy_normalised", "centred_attention.query_rise")
    entropy, normalised, rise = (table(records, name).values.mean(-1) for name in names)  # [seed, step, layer]
    lost = entropy[:, 0] - entropy[:, -1]
    tests = [of_seeds(claim["entropy-decays"], -lost.mean(1), reason=f"by layer: {_listed(-lost.mean(0), '.2f')}")]
    for i, layer in enumerate(table(records, "attention.entropy").layers):
        tests.append(of_seeds(claim["entropy-decays-in-layer"], -lost[:, i], subject=f"layer {layer}"))
        trend = np.array([_trend(of_seed) for of_seed in entropy[:, :, i]])
        tests.append(of_seeds(claim["entropy-falls-all-along"], trend, subject=f"layer {layer}"))
    if entropy.shape[-1] > 1:
        for name, values in (("normalised", normalised), ("nats", entropy)):
            reason = f"first, last: {_listed(values[:, -1, [0, -1]].mean(0), '.3f')}"
            apart = values[:, -1, 0] - values[:, -1, -1]
            tests.append(of_seeds(claim["first-layer-sharper"], apart, reason=reason, subject=name))
    gain, share = rise[:, -1], table(records, "score_terms.mean_query_share").values.mean(-1)
    others = table(records, "score_terms.centred_share").values[:, -1].mean()
    back = pd.DataFrame(_share_of(gain, lost)).mean().to_numpy(float)  # over seeds that lost entropy
    parts = f"(q − Q̄)·(k − K̄): {others:.2f}; by layer: {_listed(share[:, -1].mean(0), '.2f')}"
    start = "not measured at step 0" if np.isnan(share[:, 0]).all() else f"at step 0: {share[:, 0].mean():.2f}"
    explained = _share_of(gain.mean(-1), lost.mean(-1))
    tests += [
        of_seeds(claim["mean-query-sharpens"], gain.mean(-1), reason=f"by layer: {_listed(gain.mean(0), '.3f')}"),
        of_seeds(claim["drift-explains-sharpening"], explained, reason=f"by layer: {_listed(back, '.2f')}"),
        of_seeds(claim["mean-query-leads"], share[:, -1].mean(-1), reason=parts),
        of_seeds(claim["mean-query-share-grows"], (share[:, -1] - share[:, 0]).mean(-1), reason=start),
    ]
    idle, rises = claim["mean-key-idle"], select(records, metric="centred_attention.key_rise")
    largest = float(rises["value"].abs().max())  # no statistics: softmax cannot see it, or something is wrong
    reason = "queries and keys as they are scored; any more would be an error of the measurement"
    holds = largest <= float(idle.limit)
    return [*judged(tests), stated(idle, holds, idle.statistic, largest, n=len(rises), reason=reason)]


def _trend(entropy: Array) -> float:
    """Rank correlation of the entropy with the step, over all steps; NaN where it never changes."""
    return float(stats.spearmanr(np.arange(len(entropy)), entropy).statistic) if np.ptp(entropy) > 0 else np.nan


def _share_of(part: Array, whole: Array) -> Array:
    """NaN where the whole is not positive."""
    return np.asarray(np.where(whole > 0, part / np.where(whole > 0, whole, 1), np.nan))


def _listed(values: Array, form: str) -> str:
    return ", ".join(f"{x:{form}}" for x in values)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """Entropy per layer in nats and normalised; beside it with centred queries and keys; and parts of the scores."""

    def over_seeds(metric: str) -> pd.DataFrame:
        heads = select(records, metric=metric).groupby(["metric", "layer", "step", "seed"])["value"]
        return means_over_seeds(heads.mean().reset_index(), "layer", "step")

    entropy, normalised = over_seeds("attention.entropy"), over_seeds("attention.entropy_normalised")
    query, key = over_seeds("centred_attention.query"), over_seeds("centred_attention.key")
    terms = {"by the mean query": "score_terms.mean_query_share", "by deviations": "score_terms.centred_share"}
    centred = {"as it is": entropy, "queries centred": query, "keys centred": key}
    shares = {name: over_seeds(metric) for name, metric in terms.items()}
    return {
        "fig15": series_charts.layers(entropy, "entropy (nats)"),
        "fig15_normalised": series_charts.layers(normalised, "entropy / ln(keys)"),
        "fig15_centred": series_charts.parts(centred, "entropy (nats)"),
        "fig15_terms": series_charts.parts(shares, "share of the variance in rows", zero=True),
    }


MEASURE = partial(checkpoints.measure_heads, KEPT)
STUDY = declare("godey2024", "fig15", **checkpoints.OF_HEADS, measure=MEASURE, judge=judge, draw=draw)
