"""Figures 11, 12 and 19 to 22: queries and keys of one head along training, in the plane of an uncentred SVD.

The plane, its signs and the records are described in `head_planes.py`; how the heads are chosen, and which of them end
similar or opposite, in `series_claims.py`. Figures 19 to 22 are figures 11 and 12 with the SVD of keys only, then of
queries only.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import series_charts
from anisoscope.store import select
from anisoscope.studies.godey2024 import checkpoints, head_planes
from anisoscope.studies.godey2024.head_planes import Over
from anisoscope.studies.godey2024.series_claims import Alignment, per_seed, table
from anisoscope.studies.judge import judged, of_seeds, within
from anisoscope.studies.study import SHARE, SIGNED, Claim, Context, Study, Verdict

CLOUDS, PATHS = "Godey et al. 2024, section 5, figure 11", "Godey et al. 2024, section 5, figure 12"
APPENDIX = "Godey et al. 2024, appendix C, figures 19 to 22"
EARLY = 0.08
"""Share of training that "the first steps" end with and that opposite dynamics are said to begin after."""
HALF, RIGHT_ANGLE = 0.5, float(np.sqrt(0.5))
CARRIED = Claim(
    "first-direction-carries-drift",
    "The first SVD direction carries the common drift: more than half of ‖Q̄‖² + ‖K̄‖² of the last step, in the mean "
    "over heads",
    CLOUDS,
    bounds=SHARE,
)
SAME_FIRST = Claim(
    "similar-in-first-steps",
    f"Heads that end similar are aligned within the first {EARLY:.0%} of training (median onset)",
    PATHS,
    "first steps",
    bounds=SHARE,
)
LATER = Claim(
    "opposite-later", "Heads that end opposite are aligned later than those that end similar", PATHS, bounds=SIGNED
)
ABOUT = Claim(
    "opposite-at-8-percent",
    "Heads that end opposite are aligned after about 8 % of training (median onset, within a factor 2)",
    PATHS,
    "about 8 %",
    bounds=SHARE,
)
SAME_DIRECTION = Claim(
    "same-first-direction",
    "The SVD of one side alone has the same first direction as that of the union (|cosine| above cos 45°, mean over "
    "heads)",
    APPENDIX,
    bounds=SHARE,
)
SAME_PATH = Claim(
    "same-path",
    "The means move alike along the first direction of one side and of the union (|correlation| above √½, mean over "
    "heads)",
    APPENDIX,
    bounds=SHARE,
)
SHARED = ("query_key.cosine", "mean_cosine.isotropic_q95")


def measure(over: Over, clouds: bool, series: checkpoints.CheckpointSettings, context: Context) -> pd.DataFrame:
    """Alignment of all heads, their means in the plane, and clouds of the two chosen heads of the first seed."""
    pieces = checkpoints.measure(series, context)
    alignment = select(checkpoints.records_of(pieces), metric=SHARED, site="query.raw")
    parts = [alignment, head_planes.measure(pieces, (over,))]
    if clouds:
        parts.append(head_planes.clouds(pieces, over, Alignment.of(alignment).chosen().values()))
    return pd.concat(parts, ignore_index=True)


def judge_clouds(records: pd.DataFrame) -> list[Verdict]:
    """The share that the first direction carries, and its agreement between heads that end similar and opposite."""
    alignment = Alignment.of(records)
    share = table(records, "svd.union.drift_share").values[:, 0]
    ending = alignment.ending()
    groups = {"all heads": np.ones_like(ending, bool), "similar": ending == 1, "opposite": ending == -1}
    tests = [
        of_seeds(
            CARRIED,
            per_seed(share, heads),
            "share on the first direction",
            HALF,
            reason=f"{int(heads.sum())} heads of {len(heads)} seeds",
            subject=name,
        )
        for name, heads in groups.items()
    ]
    return judged(tests)


def judge_paths(records: pd.DataFrame) -> list[Verdict]:
    """When heads that end similar, and opposite, are aligned for good."""
    alignment = Alignment.of(records)
    onset, ending = alignment.onset(), alignment.ending()
    similar, opposite = (per_seed(onset, ending == sign, "median") for sign in (1, -1))
    counts = f"{int((ending == 1).sum())} similar, {int((ending == -1).sum())} opposite, of {ending.size} heads"
    steps = alignment.table.steps
    nearest = steps[int(np.abs(np.array(steps) / steps[-1] - EARLY).argmin())] / steps[-1]
    reason = f"{counts}; the checkpoint nearest to {EARLY:.0%} lies at {nearest:.2g} of training"
    tests = [
        of_seeds(SAME_FIRST, similar, "median onset, share of training", EARLY, True, reason),
        of_seeds(LATER, opposite - similar, "difference of median onsets", reason=counts),
    ]
    about = within(ABOUT, opposite, (EARLY / 2, EARLY * 2), "median onset, share of training", reason)
    return judged([*tests, about])


def judge_agreement(over: Over, claim: Claim, name: str, records: pd.DataFrame) -> list[Verdict]:
    """Agreement of the plane of one side with that of the union, over all heads."""
    values = table(records, f"svd.{over}.{name}").values[:, 0]
    least = f"least of {values[0].size} heads, by seed: " + ", ".join(f"{x.min():.2f}" for x in values)
    words = "|cosine| of first directions" if claim is SAME_DIRECTION else "|correlation| of first coordinates"
    return judged([of_seeds(claim, values.mean((1, 2)), words, RIGHT_ANGLE, reason=least)])


def draw_clouds(name: str, over: Over, records: pd.DataFrame) -> dict[str, ChartType]:
    """One chart for each chosen head: a panel per step."""
    alignment = Alignment.of(records)
    charts: dict[str, ChartType] = {}
    for which, (layer, head) in alignment.chosen().items():
        of_head = records[(records["layer"] == layer) & (records["head"] == head)]
        charts[f"{name}_{which}"] = series_charts.clouds(of_head, over, alignment.name(which))
    return charts


def draw_paths(name: str, over: Over, records: pd.DataFrame) -> dict[str, ChartType]:
    """Both chosen heads side by side."""
    alignment = Alignment.of(records)
    first = records[records["seed"] == alignment.table.seeds[0]]
    panels: list[tuple[str, pd.DataFrame]] = []
    for which, (layer, head) in alignment.chosen().items():
        panels.append((alignment.name(which), first[(first["layer"] == layer) & (first["head"] == head)]))
    return {name: series_charts.paths(panels, over)}


PLANE = "the plane of an uncentred SVD of {} of all steps, exact from second moments"
CHOSEN = "Heads of the first seed: the largest and the smallest cos(Q̄, K̄) at the last step."
VECTORS: dict[Over, str] = {"union": "queries and keys", "key": "keys alone", "query": "queries alone"}


def _clouds(number: int, over: Over, claims: Sequence[Claim]) -> Study:
    name = f"fig{number}"
    judge = partial(judge_agreement, over, SAME_DIRECTION, "agreement") if over != "union" else judge_clouds
    return Study(
        name=name,
        paper="godey2024",
        title=f"Queries and keys of one head along training, SVD of {VECTORS[over]}",
        claims=tuple(claims),
        settings=checkpoints.SETTINGS,
        measure=partial(measure, over, True),
        judge=judge,
        draw=partial(draw_clouds, name, over),
        caption=f"Sampled queries and keys in {PLANE.format(VECTORS[over])}; rings: Q̄ and K̄. {CHOSEN}",
        needs=checkpoints.NEEDS,
    )


def _paths(number: int, over: Over, claims: Sequence[Claim]) -> Study:
    name = f"fig{number}"
    judge = partial(judge_agreement, over, SAME_PATH, "path_agreement") if over != "union" else judge_paths
    return Study(
        name=name,
        paper="godey2024",
        title=f"Paths of the mean query and the mean key along training, SVD of {VECTORS[over]}",
        claims=tuple(claims),
        settings=checkpoints.SETTINGS,
        measure=partial(measure, over, False),
        judge=judge,
        draw=partial(draw_paths, name, over),
        caption=f"One arrow per checkpoint, in {PLANE.format(VECTORS[over])}. {CHOSEN}",
        needs=checkpoints.NEEDS,
    )


STUDIES = (
    _clouds(11, "union", (CARRIED,)),
    _paths(12, "union", (SAME_FIRST, LATER, ABOUT)),
    _clouds(19, "key", (SAME_DIRECTION,)),
    _paths(20, "key", (SAME_PATH,)),
    _clouds(21, "query", (SAME_DIRECTION,)),
    _paths(22, "query", (SAME_PATH,)),
)
