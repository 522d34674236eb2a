"""Figure 8: queries and keys of the untrained block: their anisotropy and their norms as the bias grows."""

from collections.abc import Sequence

import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import norm_charts
from anisoscope.store import select
from anisoscope.studies.godey2024 import biased_block, norm_claims
from anisoscope.studies.study import Claim, Context, Study, Verdict
from anisoscope.sums.isotropic import q95

SOURCE = "Godey et al. 2024, section 4.2, figure 8"
SIDES = {"query": "query.raw", "key": "key.raw"}
ANISOTROPY_GROWS = {
    side: Claim(f"{side}-anisotropy-grows", f"The anisotropy of {side} vectors grows with N", f"{SOURCE}a")
    for side in SIDES
}
NORM_GROWS = {
    side: Claim(f"{side}-norm-grows", f"The mean norm of {side} vectors grows with N", f"{SOURCE}b") for side in SIDES
}
ALREADY = {
    side: Claim(
        f"{side}-anisotropic-without-bias", f"Vectors of the {side} are anisotropic already at N = 0", f"{SOURCE}a"
    )
    for side in SIDES
}


def measure(settings: biased_block.BlockSettings, context: Context) -> pd.DataFrame:
    """A and mean norm of the raw queries and keys, per head and averaged."""
    return select(biased_block.experiment(settings, context), site=tuple(SIDES.values())).reset_index(drop=True)


def judge(records: pd.DataFrame) -> Sequence[Verdict]:
    verdicts: list[Verdict] = []
    for side, site in SIDES.items():
        anisotropy = list(norm_claims.curves(records, "mean_cosine", site))
        norms = norm_claims.curves(records, "norms.mean", site)
        verdicts += [norm_claims.judge_trend(ANISOTROPY_GROWS[side], curve, 1) for curve in anisotropy]
        verdicts += [norm_claims.judge_trend(NORM_GROWS[side], curve, 1) for curve in norms]
        for curve in anisotropy:
            threshold = float(q95(_head_dim(records, curve.system)))
            words = "q95 of the dimension of a head"
            verdicts.append(norm_claims.judge_above_value(ALREADY[side], curve, 0.0, threshold, words))
    return verdicts


def _head_dim(records: pd.DataFrame, system: str) -> int:
    rows = select(records, model=system)
    width = int(rows["corpus"].iloc[0].rsplit(" ", 1)[1])
    return width // (int(rows["head"].max()) + 1)


def draw(records: pd.DataFrame) -> dict[str, ChartType]:
    """8a: anisotropy, 8b: norms; the pale band holds every head of every seed. Of a stack, the last block."""
    rows = norm_claims.with_heads(records[records["layer"] == records["layer"].max()])
    rows["vectors"] = rows["site"].map({SIDES["query"]: "queries", SIDES["key"]: "keys"})
    dims = {_head_dim(records, system) for system in norm_claims.systems(records)}
    line = (float(q95(dims.pop())), "q95 of one pair") if len(dims) == 1 else None
    anisotropy, norms = (rows[rows["metric"] == metric] for metric in ("mean_cosine", "norms.mean"))
    return {
        "fig8a": norm_charts.against_norm(anisotropy, series="vectors", title="anisotropy A", zero=True, line=line),
        "fig8b": norm_charts.against_norm(norms, series="vectors", title="mean norm", scale="log"),
    }


STUDY = Study(
    name="fig8",
    paper="godey2024",
    title="Anisotropy and norm of queries and keys as the norm of the bias grows",
    claims=(*ANISOTROPY_GROWS.values(), *NORM_GROWS.values(), *ALREADY.values()),
    settings=biased_block.SETTINGS,
    measure=measure,
    judge=judge,
    draw=draw,
    caption=(
        "Queries and keys of the untrained block of figure 6, averaged over heads, with 95 % intervals over seeds; "
        "the pale band holds every head of every seed. Dashed: q95 of one isotropic pair in the dimension of a head."
    ),
)
