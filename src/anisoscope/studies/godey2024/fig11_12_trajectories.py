"""Figures 11, 12 and 19 to 22: queries and keys of one head along training, in the plane of an uncentred SVD.

The plane, its signs and the records are described in `head_planes.py`; how heads are chosen, and which of them end
similar or opposite, in `fig13_14_alignment.py`. Figures 19 to 22 are 11 and 12 with the SVD of keys, then of queries.
"""

from functools import partial

import numpy as np
import pandas as pd
from altair.typing import ChartType

from anisoscope.charts import series_charts
from anisoscope.store import select
from anisoscope.studies.godey2024 import checkpoints, head_planes
from anisoscope.studies.godey2024.fig13_14_alignment import COSINES, Alignment, per_seed, table
from anisoscope.studies.godey2024.head_planes import Over
from anisoscope.studies.judge import judged, of_seeds
from anisoscope.studies.study import Context, Study, Verdict, claims, declare


def measure(over: Over, clouds: bool, series: checkpoints.CheckpointSettings, context: Context) -> pd.DataFrame:
    """Alignment of all heads, their means in the plane, and clouds of the two chosen heads of the first seed."""
    pieces = checkpoints.measure(series, context)
    alignment = checkpoints.records_of(pieces, COSINES)
    parts = [alignment, head_planes.measure(pieces, (over,))]
    if clouds:
        parts.append(head_planes.clouds(pieces, over, Alignment.of(alignment).chosen().values()))
    return pd.concat(parts, ignore_index=True)


def judge_clouds(records: pd.DataFrame) -> list[Verdict]:
    """The share that the first direction carries, and its agreement between heads that end similar and opposite."""
    (claim,) = claims("godey2024", "fig11").values()
    share, groups = table(records, "svd.union.drift_share").values[:, 0], Alignment.of(records).groups()
    tests = []
    for name in ("all heads", "similar", "opposite"):
        reason = f"{groups[name].sum()} heads of {len(share)} seeds"
        tests.append(of_seeds(claim, per_seed(share, groups[name]), reason=reason, subject=name))
    return judged(tests)


def judge_paths(records: pd.DataFrame) -> list[Verdict]:
    """When heads that end similar, and opposite, are aligned for good."""
    first, later, about = claims("godey2024", "fig12").values()
    alignment, early = Alignment.of(records), float(first.limit)
    onset, groups = alignment.onset(), alignment.groups()
    similar, opposite = (per_seed(onset, groups[name], "median") for name in ("similar", "opposite"))
    counts = ", ".join(f"{groups[name].sum()} {name}" for name in ("similar", "opposite"))
    counts += f", of {groups['similar'].size} heads"
    share = np.array(alignment.table.steps) / alignment.table.steps[-1]
    nearest = share[np.abs(share - early).argmin()]
    reason = f"{counts}; the checkpoint nearest to {early:.0%} lies at {nearest:.2g} of training"
    tests = [
        of_seeds(first, similar, reason=reason),
        of_seeds(later, opposite - similar, reason=counts),
        of_seeds(about, opposite, reason=reason),
    ]
    return judged(tests)


def judge_agreement(name: str, metric: str, records: pd.DataFrame) -> list[Verdict]:
    """Agreement of the plane of one side with that of the union, over all heads."""
    (claim,) = claims("godey2024", name).values()
    values = table(records, metric).values[:, 0]
    least = f"least of {values[0].size} heads, by seed: " + ", ".join(f"{x.min():.2f}" for x in values)
    return judged([of_seeds(claim, values.mean((1, 2)), reason=least)])


def draw(name: str, over: Over, clouds: bool, records: pd.DataFrame) -> dict[str, ChartType]:
    """Charts of both chosen heads: clouds, one for each with a panel per step, or paths side by side."""
    alignment = Alignment.of(records)
    first = records[records["seed"] == alignment.table.seeds[0]]
    chosen = {
        which: (alignment.name(which), select(first, layer=layer, head=head))
        for which, (layer, head) in alignment.chosen().items()
    }
    if not clouds:
        return {name: series_charts.paths(list(chosen.values()), over)}
    return {f"{name}_{which}": series_charts.clouds(rows, over, title) for which, (title, rows) in chosen.items()}


def _study(number: int, over: Over) -> Study:
    name, clouds = f"fig{number}", number % 2 == 1
    judge = judge_clouds if clouds else judge_paths
    if over != "union":
        judge = partial(judge_agreement, name, f"svd.{over}.{'agreement' if clouds else 'path_agreement'}")
    return declare(
        "godey2024",
        name,
        **checkpoints.SERIES,
        measure=partial(measure, over, clouds),
        judge=judge,
        draw=partial(draw, name, over, clouds),
    )


FIGURES: dict[int, Over] = {11: "union", 12: "union", 19: "key", 20: "key", 21: "query", 22: "query"}
STUDIES = tuple(_study(number, over) for number, over in FIGURES.items())
