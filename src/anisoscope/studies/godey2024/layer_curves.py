"""A per layer of several systems: what figures 1 to 4 have in common.

Published checkpoints are measured on the paper's corpus; small models, trained on the spot, on the first units of their
own, beside the same models before their first step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from anisoscope.axes import Flatten
from anisoscope.charts import builders as charts
from anisoscope.measure.settings import Settings
from anisoscope.models.families import PRESETS
from anisoscope.provenance import measuring_code, run_id
from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import RunFolder, as_records, records_once, select
from anisoscope.studies.godey2024.left_out import SUFFIX, left_out
from anisoscope.studies.study import Context
from anisoscope.training.kinds import KINDS
from anisoscope.training.small import LONG, SmallModel, SmallModelRecipe, train_all

METRICS = ("mean_cosine", "drift", "norms", "calibrated")
KEPT = ("mean_cosine", "mean_cosine.isotropic_q95", "drift", "drift.share", "norms.mean", "norms")
SITES = ("hidden", "unrectified", "final")
TRAINED, UNTRAINED = ", trained", ", untrained"
QUICK = SmallModelRecipe()
CORPORA = {
    "wikitext-103": "Salesforce/wikitext (wikitext-103-raw-v1, validation; licence cc-by-sa-3.0)",
    "common-voice": "mozilla-foundation/common_voice_11_0 (en, validation; licence cc0-1.0; no longer on the hub)",
    "imagenet-1k": "ILSVRC/imagenet-1k (validation; terms of ImageNet; gated)",
}
"""The paper's corpora, as a dry run lists them."""
SKIPPED = "skipped"
"""Metric of a row that says why a system (`model`) was not measured (`component`)."""


@dataclass(frozen=True)
class Systems:
    """Which models on which corpus, and which small ones (`training.kinds.KINDS`), trained by `recipe` on their own.

    limit    first units of the corpus only (small models: `Kind.limit`)
    flatten  how convolution maps become vectors: `image` or `position`
    """

    models: tuple[str, ...] = ()
    corpus: str = ""
    limit: int | None = None
    policies: tuple[str, ...] = ("all", "content", "no-first")
    small: tuple[str, ...] = ()
    recipe: SmallModelRecipe = QUICK
    flatten: Flatten = "position"

    def settings(self) -> Settings:
        """Settings of the measurement: hidden states only, no sample."""
        return Settings(panels=("hidden",), policies=self.policies, sample=0, flatten=self.flatten)


def needs(systems: Systems) -> tuple[str, ...]:
    """Hub ids with sizes and licences of the published `systems`, and their corpus."""
    presets = [PRESETS[model] for model in systems.models]
    return (*(f"{p.hub_id} ({p.size} parameters, licence {p.licence})" for p in presets), CORPORA[systems.corpus])


def small_systems(systems: Systems, kinds: Sequence[str], *, long: bool = False) -> Systems:
    """The same with small models in place of published ones."""
    return replace(systems, small=tuple(kinds), recipe=LONG if long else QUICK)


def measure(systems: Systems, context: Context) -> pd.DataFrame:
    """Every system's records of hidden states; each is a run of its own, found again when it is finished."""
    parts = []
    for i, model in enumerate(systems.models):
        job = Job(model, systems.corpus, systems.settings(), limit=systems.limit)
        parts.append(measured(job, context))
        context.progress(model, i + 1, len(systems.models))
    parts += [part for kind in systems.small for part in _small(kind, systems, context)]
    return pd.concat(parts, ignore_index=True) if parts else as_records(pd.DataFrame())


def measured(job: Job, context: Context) -> pd.DataFrame:
    """Records of one run that the figures need, with its left-out values."""
    job = replace(job, batch_tokens=context.batch_tokens, device=context.device)
    done = run(job, root=context.cache, resume=True, keep_sums=True)
    if not any((done.folder / name).exists() for name in (_left_out_name(), "sums.safetensors")):
        done = run(job, output=done.folder, overwrite=True, keep_sums=True)
    records = done.records
    rows = select(records, metric=KEPT, site=SITES, head=None, component=None)
    given = {key: records[key].iloc[0] for key in ("run", "model", "revision", "seed", "corpus", "step")}
    others = as_records(_left_out_of(done, job.settings).drop(columns=list(given)), **given)
    return pd.concat([rows, others], ignore_index=True)


def _left_out_of(done: RunFolder, settings: Settings) -> pd.DataFrame:
    """Computed once from the sums of a run, which are then given up: they are large."""
    sums = done.folder / "sums.safetensors"
    rows = records_once(done.folder / _left_out_name(), lambda: left_out(sums, settings))
    sums.unlink(missing_ok=True)
    return rows


def _left_out_name() -> str:
    return f"left_out-{run_id(measuring_code())[:8]}.parquet"


def _small(name: str, systems: Systems, context: Context) -> Iterator[pd.DataFrame]:
    """Records of one kind of small model, every seed, untrained and trained; or one row that says why not."""
    kind = KINDS[name]
    if kind.missing:
        yield as_records(pd.DataFrame([{"model": kind.label, "metric": SKIPPED, "component": kind.missing}]))
        return
    for found in train_all(systems.recipe, (name,), context.cache, context.progress):
        for step, state in ((0, UNTRAINED), (found.best, TRAINED)):
            rows = _measured_once(found, step, systems.settings(), context)
            yield rows.assign(model=kind.label + state, seed=found.seed).astype(rows.dtypes.to_dict())


def _measured_once(found: SmallModel, step: int, settings: Settings, context: Context) -> pd.DataFrame:
    """Records of one checkpoint, kept beside it, by settings and code: weights and corpus are in the folder's name."""
    path = found.folder / f"measured-{step}-{run_id(asdict(settings), KEPT, SITES, measuring_code())[:8]}.parquet"
    kind = found.kind
    job = Job(_relative(found.checkpoint(step)), kind.corpus, settings, limit=kind.limit, step=step)
    return records_once(path, lambda: measured(job, context))


def _relative(path: Path) -> str:
    """The path as given where that is short: names of models stand in manifests."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def skipped(records: pd.DataFrame) -> dict[str, str]:
    """{system: why it was not measured}."""
    rows = select(records, metric=SKIPPED)
    return dict(zip(rows["model"].astype(str), rows["component"].astype(str), strict=True))


def curves(
    records: pd.DataFrame, policy: str = "all", metric: str = "mean_cosine", site: str = "hidden"
) -> pd.DataFrame:
    """A of every layer, model and seed, with q95(d) beside it: encoder layers first, then decoder layers, on one axis
    `place`. Published models have seed 0.
    """
    of_policy = select(records, site=site, token_policy=policy, head=None)
    of_policy = of_policy.assign(seed=of_policy["seed"].fillna(0))
    here = select(of_policy, component=None)
    keys = ["model", "seed", "stack", "layer"]
    rows = select(here, metric=metric).set_index(keys)
    bound = select(here, metric="mean_cosine.isotropic_q95").set_index(keys)["value"]
    groups = of_policy[of_policy["metric"] == metric + SUFFIX].groupby(keys)["value"].size().astype(float)
    rows = rows.assign(q95=bound[~bound.index.duplicated()], groups=groups).reset_index()
    rows["place"] = rows["layer"].astype("Int64").astype(int)
    last = rows[rows["stack"] == "encoder"].groupby("model")["layer"].max()
    both = rows["model"].isin(last.index) & (rows["stack"] == "decoder")
    rows.loc[both, "place"] += rows.loc[both, "model"].map(last).astype(int) + 1
    order = {model: i for i, model in enumerate(dict.fromkeys(rows["model"]))}
    rows = rows.assign(rank=rows["model"].map(order)).sort_values(["rank", "seed", "place"], kind="stable")
    return rows.drop(columns="rank").reset_index(drop=True)


def draw(records: pd.DataFrame, names: Sequence[str] = (), site: str = "hidden") -> dict[str, Any]:
    """The paper's figure: A per layer, a curve with its interval per model, the isotropic bound dashed.

    Over seeds: the mean, and from the lowest to the highest end of their intervals.
    """
    rows = curves(records, site=site)
    if rows.empty:
        return {}
    ends = {"value": "mean", "low": "min", "high": "max", "q95": "max"}
    drawn = rows.groupby(["model", "place"], sort=False, as_index=False).agg(ends).rename(columns={"place": "layer"})
    bounds = {str(model): float(q95) for model, q95 in drawn.groupby("model", sort=False)["q95"].max().items()}
    isotropic = bounds if len(set(bounds.values())) > 1 else next(iter(bounds.values()))
    chart = charts.layer_curve(drawn, series="model", isotropic=isotropic, title="anisotropy A")
    return {(names[0] if names else "layers"): chart}
