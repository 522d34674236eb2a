"""Figures 9 and 10: the softmax of the untrained block as the bias grows: extreme and median weights, and entropy.

Figure 9 averages extremes of each row (one query). Figure 10 takes the extremes over a whole sequence, per head, and
averages over the batch and heads. Rows that see one key (the first of a causal block) are left out.
"""

from collections.abc import Sequence
from functools import partial

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import norm_charts
from anisoscope.store import select
from anisoscope.studies.godey2024 import biased_block, norm_claims
from anisoscope.studies.study import Claim, Context, Study, Verdict

ROWS = {"row_max": "largest", "row_median": "median", "row_min": "smallest"}
SEQUENCES = {"sequence_max": "largest", "sequence_min": "smallest"}
NINE, TEN = "Godey et al. 2024, section 4.2, figure 9", "Godey et al. 2024, section 4.2, figure 10"
DOUBLED_AT = 100.0
"""Where a growth that is significant but too small to see is told from sharpening: half a decade past the crossings."""
ROW_MAX = Claim("row-max-grows", "The largest weight of a row grows with N", NINE)
ROW_MIN = Claim("row-min-shrinks", "The smallest weight of a row shrinks with N", NINE)
ENTROPY = Claim("entropy-falls", "The entropy of attention rows falls with N", "Godey et al. 2024, section 4.2")
SEQUENCE_MAX = Claim("sequence-max-grows", "The largest weight of a whole sequence grows with N", f"{TEN}a")
SEQUENCE_MIN = Claim("sequence-min-shrinks", "The smallest weight of a whole sequence shrinks with N", f"{TEN}b")
DOUBLES = Claim("row-max-doubles", f"By N = {DOUBLED_AT:g} the largest weight of a row has more than doubled", NINE)
CLEARER = Claim("clearer-than-in-rows", "Over whole sequences the largest weight grows by more than over rows", TEN)

Trend = tuple[Claim, str, int]
TRENDS_9: tuple[Trend, ...] = ((ROW_MAX, "row_max", 1), (ROW_MIN, "row_min", -1), (ENTROPY, "entropy", -1))
TRENDS_10: tuple[Trend, ...] = ((SEQUENCE_MAX, "sequence_max", 1), (SEQUENCE_MIN, "sequence_min", -1))


def measure(metrics: Sequence[str], settings: biased_block.BlockSettings, context: Context) -> pd.DataFrame:
    """Records of the named statistics of attention, per head and averaged."""
    names = [f"attention.{name}" for name in metrics]
    records = select(biased_block.experiment(settings, context), metric=names)
    once = records["head"].isna() | (records["metric"] != "attention.entropy")  # of a head: normalised alone
    return records[once].reset_index(drop=True)


def judge_trends(trends: Sequence[Trend], records: pd.DataFrame) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for claim, name, direction in trends:
        of_systems = norm_claims.curves(records, f"attention.{name}", "attention")
        verdicts += [norm_claims.judge_trend(claim, curve, direction) for curve in of_systems]
    return verdicts


def judge_9(records: pd.DataFrame) -> list[Verdict]:
    """The trends, and whether the growth is one that can be seen: the ratio to N = 0, per seed."""
    verdicts = judge_trends(TRENDS_9, records)
    for curve in norm_claims.curves(records, "attention.row_max", "attention"):
        ratio = norm_claims.Curves(curve.system, curve.norms, curve.values / curve.values[:, :1])
        verdicts.append(norm_claims.judge_above_value(DOUBLES, ratio, DOUBLED_AT, 2.0, "ratio to N = 0"))
    return verdicts


def judge_10(records: pd.DataFrame) -> list[Verdict]:
    """The trends, and the growth up to the largest N, over sequences against over rows, paired over seeds."""
    verdicts = judge_trends(TRENDS_10, records)
    sequences = norm_claims.curves(records, "attention.sequence_max", "attention")
    rows = norm_claims.curves(records, "attention.row_max", "attention")
    for pair in zip(rows, sequences, strict=True):
        growth = [
            norm_claims.Curves(curve.system, curve.norms[-1:], curve.values[:, -1:] - curve.values[:, :1])
            for curve in pair
        ]
        verdicts.append(norm_claims.judge_above(CLEARER, *growth))
    return verdicts


def draw(names: dict[str, dict[str, str]], records: pd.DataFrame) -> dict[str, ChartType]:
    """{chart: {statistic: its name in the legend}} → charts against N, with the uniform weight."""
    rows = norm_claims.with_heads(records[records["layer"] == records["layer"].max()])
    charts = {}
    for chart, statistics in names.items():
        parts = [rows[rows["metric"] == f"attention.{name}"].assign(weight=word) for name, word in statistics.items()]
        chosen = pd.concat(parts, ignore_index=True)
        if "entropy" in chart:
            charts[chart] = norm_charts.against_norm(chosen, series="weight", title="entropy / ln(keys)")
            continue
        title = f"{next(iter(statistics.values())) if len(statistics) == 1 else 'attention'} weight"
        charts[chart] = norm_charts.against_norm(
            chosen, series="weight", title=title, scale="log", line=_uniform(records)
        )
    return charts


def _uniform(records: pd.DataFrame) -> tuple[float, str] | None:
    """The weight that all keys have alike, where it is one number: in bidirectional blocks of one length."""
    if records["corpus"].nunique() > 1 or not records["model"].str.startswith("bert").all():
        return None
    return 1 / int(records["corpus"].iloc[0].split(" × ")[1]), "uniform"


STUDIES = (
    Study(
        name="fig9",
        paper="godey2024",
        title="Largest, median and smallest attention weight of a row as the norm of the bias grows",
        claims=(*(claim for claim, _, _ in TRENDS_9), DOUBLES),
        settings=biased_block.SETTINGS,
        measure=partial(measure, (*ROWS, "entropy", "entropy_normalised")),
        judge=judge_9,
        draw=partial(draw, {"fig9": ROWS, "fig9_entropy": {"entropy_normalised": "entropy"}}),
        caption=(
            "Weights of the softmax of the untrained block of figure 6, averaged over rows, heads and seeds, with 95 % "
            "intervals over seeds; the pale band holds every head of every seed; dashed: the uniform weight. Medians "
            "and entropies are of every 16th row."
        ),
    ),
    Study(
        name="fig10",
        paper="godey2024",
        title="Largest and smallest attention weight of a whole sequence as the norm of the bias grows",
        claims=(*(claim for claim, _, _ in TRENDS_10), CLEARER),
        settings=biased_block.SETTINGS,
        measure=partial(measure, (*SEQUENCES, "row_max")),
        judge=judge_10,
        draw=partial(draw, {"fig10a": {"sequence_max": "largest"}, "fig10b": {"sequence_min": "smallest"}}),
        caption=(
            "Extremes over all rows of a sequence, per head, averaged over the batch, heads and seeds; the pale band "
            "holds every head of every seed."
        ),
    ),
)
