"""Hidden states of trained models, measured or read from finished runs: what untrained blocks and laws stand beside."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from anisoscope.measure.settings import Settings
from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import RunFolder, as_records, finished_runs, select
from anisoscope.studies.study import Context
from anisoscope.sums.isotropic import q95

MEASURED = Settings(panels=("hidden",), sample=0)
"""As figures 1 to 4 measure, so that a run is shared with them."""
KEPT = ("mean_cosine", "mean_cosine.isotropic_q95", "drift", "norms.mean")


def trained_layers(
    models: Sequence[tuple[str, str]], limit: int | None, context: Context, runs: Sequence[Path] = ()
) -> pd.DataFrame:
    """Records of A, drift and norms per layer: each of `models` on its corpus, and every finished run below `runs`."""
    found: list[RunFolder] = []
    for done, (model, corpus) in enumerate(models, start=1):
        job = Job(model, corpus, MEASURED, limit=limit, batch_tokens=context.batch_tokens, device=context.device)
        found.append(run(job, root=context.cache, resume=True))
        context.progress(model, done, len(models))
    found += [done for folder in runs for done in finished_runs(folder)]
    where = {"metric": KEPT, "site": ("hidden", "final"), "token_policy": "all", "head": None, "component": None}
    parts = [select(done.records, **where) for done in found]
    return pd.concat(parts, ignore_index=True) if parts else as_records(pd.DataFrame())


def width(threshold: float) -> int:
    """The dimension d whose q95(d) is the recorded `mean_cosine.isotropic_q95` (it falls strictly with d)."""
    low, high = 2, 1 << 24
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if q95(middle) > threshold * (1 + 1e-12) else (low, middle)
    return low


def widths(records: pd.DataFrame) -> dict[str, int]:
    """{model: width of its hidden states} of trained models in `records`."""
    rows = select(records, metric="mean_cosine.isotropic_q95", site="hidden")
    return {str(model): width(float(values.iloc[0])) for model, values in rows.groupby("model", sort=False)["value"]}
