"""A, drift and norms by layer of trained models: what figures 6 and 18 put beside untrained blocks and a law."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import as_records, select
from anisoscope.studies.godey2024.layer_curves import Systems, had
from anisoscope.studies.study import Context


def trained_layers(models: Sequence[tuple[str, str]], limit: int | None, context: Context) -> pd.DataFrame:
    """Records of A, drift and norms by layer of models on their corpora: runs shared with figures 1 to 4."""
    found = []
    for done, (model, corpus) in enumerate(models, start=1):
        job = Job(model, corpus, Systems().settings(), limit=limit)
        job = replace(job, batch_tokens=context.batch_tokens, device=context.device)
        found += had(job, context, partial(run, root=context.cache, resume=True))
        context.progress(model, done, len(models))
    metrics = ("mean_cosine", "mean_cosine.isotropic_q95", "drift", "norms.mean")
    where = {"metric": metrics, "site": ("hidden", "final"), "token_policy": "all", "head": None, "component": None}
    parts = [select(done.records, **where) for done in found]
    return pd.concat(parts, ignore_index=True) if parts else as_records(pd.DataFrame())
