"""Measure A (mean cosine) per layer of several systems: shared by figures 1 to 5, 16 and 18.

Published checkpoints are measured on the paper's corpus. Small models are trained on the spot, and measured on the
first units of their own corpus, before their first step and after training. The records also hold A and drift of every
layer with each group of units left out (`mean_cosine.left_out`, `drift.left_out`, `component` the group): joint
functions of layers and models need them for their intervals.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from anisoscope.axes import Flatten, TokenPolicy
from anisoscope.charts import builders as charts
from anisoscope.data.corpora import named_corpora
from anisoscope.data.local import find_path
from anisoscope.errors import AnisoscopeError, CorpusError, ModelError, OutputError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.metrics import drift, mean_cosine
from anisoscope.provenance import make_run_id
from anisoscope.runs.job import Job
from anisoscope.runs.run import run
from anisoscope.store import as_records, make_once, make_records_once, select
from anisoscope.sums.groups import Totals
from anisoscope.sums.isotropic import q95
from anisoscope_papers.judge import (
    Array,
    Test,
    compute_p_of_units,
    make_verdict_without_test,
)
from anisoscope_papers.needs import Need, list_needs
from anisoscope_papers.networks import transcripts
from anisoscope_papers.origin import hash_measuring_code
from anisoscope_papers.study import WITHHELD, Claim, Context, Verdict
from anisoscope_papers.training.kinds import KINDS
from anisoscope_papers.training.train_small import (
    BRIEF,
    LONG,
    SmallModelRecipe,
    train_all,
)

KEPT = (
    "mean_cosine",
    "mean_cosine.isotropic_q95",
    "drift",
    "drift.share",
    "norms.mean",
    "norms",
)
SITES = ("hidden", "pre_relu", "final")
TRAINED, UNTRAINED = ", trained", ", untrained"
SKIPPED = "skipped"
"""Metric of a row that says why a system (`model`) was not measured (`component`)."""
LEFT_OUT = ".left_out"
TRANSCRIBING = ("builtin:whisper-tiny.en",)
"""Packaged networks whose decoder writes what it hears; the clips at hand have no transcripts."""
Item = TypeVar("Item")
_LEFT_OUT = {
    "mean_cosine": (mean_cosine, ("n", "unit")),
    "drift": (drift, ("n", "vector", "norm")),
}


@dataclass(frozen=True)
class Systems:
    """Which models are measured on which corpus, and which small models are trained and measured on their own corpora.

    small    kinds of small models (`training.kinds.KINDS`), trained by `recipe`
    limit    only the first units of the corpus (small models: `Kind.limit`)
    flatten  how convolution maps become vectors: `image` or `position`
    packaged networks from packages or files (below ANISOSCOPE_DATA), measured trained and with newly drawn weights
    relus    inner ReLUs of a packaged network, each a layer: their class, and a name pattern of what they read
    others   systems on other corpora that the figure also shows
    """

    models: tuple[str, ...] = ()
    corpus: str = ""
    limit: int | None = None
    policies: tuple[TokenPolicy, ...] = ("all", "content", "no-first")
    small: tuple[str, ...] = ()
    recipe: SmallModelRecipe = BRIEF
    flatten: Flatten = "position"
    packaged: tuple[str, ...] = ()
    relus: tuple[str, str] | None = None
    others: "tuple[Systems, ...]" = ()

    def settings(self) -> Settings:
        """Return the settings of the measurement: hidden states only, no sample of vectors."""
        # Linear sums give A, drift and norms exactly: no sampled vector is needed.
        return Settings(
            panel=("hidden",), tokens=self.policies, sample=0, flatten=self.flatten
        )

    def needs(self) -> tuple[Need, ...]:
        """Return what must be downloaded, one entry each: the published models and their corpus."""
        return list_needs([(model, self.corpus) for model in self.models], self.flatten)


def build_settings(
    paper: Systems, small: Sequence[str], quick: Systems | None = None
) -> dict[str, Systems]:
    """Return the settings of a figure: `paper`; `quick` with small models in its place, trained briefly; `long`,
    trained longer.

    `small`: kinds of small models (`training.kinds.KINDS`).
    """
    # Small models stand in for the paper's: they are measured in the same way, such as
    # one vector per image in figure 4.
    quick = replace(quick or Systems(flatten=paper.flatten), small=tuple(small))
    return {"quick": quick, "long": replace(quick, recipe=LONG), "paper": paper}


def measure(systems: Systems, context: Context) -> pd.DataFrame:
    """Return the records of hidden states of every system (model). Each system is a run of its own, and is not repeated
    if finished.

    `context`: cache, device and progress of the study.
    """
    parts = []
    for i, model in enumerate(systems.models):
        job = Job(
            model,
            corpus=systems.corpus,
            settings=systems.settings(),
            limit=systems.limit,
        )
        parts += measure_if_available(
            job, context, partial(run_measurement, context=context)
        )
        context.progress(model, i + 1, len(systems.models))
    for kind in systems.small:
        parts.extend(_measure_small(kind, systems, context))
    for name in systems.packaged:
        parts.extend(_measure_packaged(name, systems, context))
    for other in systems.others:
        parts.append(measure(other, context))
    if parts:
        return pd.concat(parts, ignore_index=True)
    return as_records(pd.DataFrame())


def measure_if_available(
    job: Job, context: Context, measure_it: Callable[[Job], Item]
) -> list[Item]:
    """Measure a published system (model) by `measure_it`; return [result], or [] with a note in the context if it is
    unavailable.

    If its corpus is unavailable and has a stand-in, that is read instead. `job`: model, corpus and settings of the
    measurement.
    """
    try:
        return [measure_it(job)]
    # A damaged file of ours is no missing model: it would be left out without anybody knowing.
    except OutputError:
        raise
    except AnisoscopeError as error:
        other = _find_stand_in(job.corpus) if isinstance(error, CorpusError) else ""
        if not other:
            context.note_unavailable(job.model, error)
            return []
        # The note comes only after success: the stand-in may be unavailable as well.
        found = measure_if_available(replace(job, corpus=other), context, measure_it)
        if found:
            context.note_stand_in(other, job.corpus, error)
        return found


def _find_stand_in(corpus: str) -> str:
    """Return the name of the corpus that is read if `corpus` is unavailable; "" if there is none."""
    row = named_corpora().get(corpus)
    return row.stand_in if row else ""


def run_measurement(job: Job, context: Context) -> pd.DataFrame:
    """Run a measurement, and return the records that the figures need, also with each group of units left out.

    The large file of sums is deleted.
    """
    job = replace(job, batch_tokens=context.batch_tokens, device=context.device)
    done = run(job, root=context.cache, resume=True, keep_sums=True)
    # Next to the run, and named by the code that makes it: other code makes it again.
    kept = (
        done.folder
        / f"left_out-{make_run_id(hash_measuring_code(__name__))[:8]}.parquet"
    )
    sums = done.folder / "sums.safetensors"
    # The run was made before, and its sums were deleted; our own code has changed since.
    if not kept.exists() and not sums.exists():
        done = run(job, output=done.folder, overwrite=True, keep_sums=True)
    others = make_records_once(kept, lambda: tabulate_left_out(sums, job.settings))
    # The file is large, and all that the figures need of it is kept now.
    sums.unlink(missing_ok=True)
    # Rows of left-out groups get the columns that say whose they are from the run's own
    # rows.
    given = {
        key: done.records[key].iloc[0]
        for key in ("run", "model", "revision", "seed", "corpus", "step")
    }
    rows = select(done.records, metric=KEPT, site=SITES, head=None, component=None)
    both = pd.concat(
        [rows, as_records(others.drop(columns=list(given)), **given)], ignore_index=True
    )
    # Such layers say nothing about the corpus.
    if reads_prompt_only(done.manifest):
        both = both[both["stack"] != "decoder"].reset_index(drop=True)
    return both


def reads_prompt_only(manifest: Mapping[str, Any]) -> bool:
    """Return whether the decoder of a run read the same prompt with every clip (Whisper without transcripts), by its
    manifest.

    Its states then hardly depend on the corpus, so that A (mean cosine) of its layers is near 1 for any network.
    """
    corpus = manifest.get("corpus")
    preprocessing = (
        corpus.get("preprocessing", {}) if isinstance(corpus, Mapping) else {}
    )
    return bool(preprocessing.get("decoder_prompt")) and not preprocessing.get(
        "decoder_reads"
    )


def _measure_packaged(
    name: str, systems: Systems, context: Context
) -> Iterator[pd.DataFrame]:
    """Yield the records of the network `name` from a package or file, trained and untrained, on the corpus of
    `systems`.

    The decoder of a network of `TRANSCRIBING` reads what the trained network hears in each clip, the untrained one
    too. If a network is unavailable, that is noted in the context.
    """
    label = _describe_system(name, systems)
    transcribes = name in TRANSCRIBING
    try:
        # A file that is not found keeps its name: the error of the run then says which
        # one is missing.
        where = name if name.startswith("builtin:") else str(find_path(name) or name)
        # The untrained network would hear nothing: both read what the trained one hears.
        read = (
            _write_transcripts(name, systems, context)
            if transcribes
            else systems.corpus
        )
        for untrained, state in ((True, UNTRAINED), (False, TRAINED)):
            job = Job(
                where,
                corpus=read,
                settings=systems.settings(),
                limit=systems.limit,
                untrained=untrained,
            )
            if systems.relus:
                rows = _measure_around_relus(job, systems.relus, context)
            else:
                rows = run_measurement(job, context)
            # Named by network and corpus, since one network may be on several. `assign`
            # changes the types of columns; records must keep theirs.
            rows = rows.assign(
                model=label + state, seed=0, corpus=systems.corpus
            ).astype(rows.dtypes.to_dict())
            yield tell_stacks_apart(rows) if transcribes else rows
    except (ModelError, CorpusError) as error:
        context.note_unavailable(label, error)


def _describe_system(name: str, systems: Systems) -> str:
    """Return the label of a packaged network (`name`) on its corpus, as in `crepe-tiny on clips`."""
    corpus = Path(systems.corpus)
    # A file is named by its folder.
    if corpus.suffix:
        corpus = corpus.parent
    layers = ", ReLUs" if systems.relus else ""
    return f"{_label(name)}{layers} on {corpus.name}"


def _write_transcripts(name: str, systems: Systems, context: Context) -> str:
    """Return the path of a manifest of the corpus of `systems` with what the network `name` hears in each clip."""
    where = find_path(systems.corpus)
    made_by = {
        "name": name,
        "corpus": str(where),
        "limit": systems.limit,
        "code": hash_measuring_code(transcripts.__name__),
    }
    path = (
        context.cache
        / "transcripts"
        / f"{_label(name)}-{make_run_id(made_by)[:8]}"
        / "manifest.csv"
    )
    make_once(
        path,
        lambda: transcripts.write_transcripts(
            name, str(where), path, limit=systems.limit
        ),
    )
    return str(path)


def tell_stacks_apart(rows: pd.DataFrame) -> pd.DataFrame:
    """Name the stack in the column `model` of records of one network: its encoder and its decoder are two systems.

    They read different things, sound and text; training can raise A in one and lower it in the other.
    """
    parts = rows["model"].astype(str).str.partition(" on ")
    model = parts[0] + ", " + rows["stack"].astype(str) + parts[1] + parts[2]
    return rows.assign(model=model.astype(rows["model"].dtype))


def _measure_around_relus(
    job: Job, relus: tuple[str, str], context: Context
) -> pd.DataFrame:
    """Measure a network after each of its inner ReLUs (site `hidden`) and before it (`pre_relu`).

    `relus`: the class of the ReLUs, and a pattern of the names of the modules whose outputs they read.
    """
    parts = []
    # Two runs, each of which takes other modules for blocks: the ReLUs themselves, then
    # the modules whose outputs they read.
    for blocks, site in zip(relus, ("hidden", "pre_relu"), strict=True):
        settings = replace(
            job.settings, blocks=(blocks,), tokens=job.settings.tokens[:1]
        )
        rows = run_measurement(replace(job, settings=settings), context)
        rows = select(rows, site="hidden")
        # Layer 0 is what the first module reads.
        parts.append(rows[rows["layer"] > 0].assign(site=site))
    return pd.concat(parts, ignore_index=True).astype(parts[0].dtypes.to_dict())


def _label(name: str) -> str:
    """Return a short name: `builtin:whisper-tiny.en` → whisper-tiny.en; for a file its name without suffix and final
    hash.
    """
    if name.startswith("builtin:"):
        return name.removeprefix("builtin:")
    return re.sub("-[0-9a-f]{8}$", "", Path(name).stem)


def _measure_small(
    name: str, systems: Systems, context: Context
) -> Iterator[pd.DataFrame]:
    """Yield the records of the kind `name` of small models, for every seed, untrained and trained.

    If its data are missing, yields one row that says so. Records are saved next to each checkpoint, named by settings
    and code.
    """
    kind = KINDS[name]
    settings = systems.settings()
    if kind.missing:
        yield as_records(
            pd.DataFrame(
                [{"model": kind.label, "metric": SKIPPED, "component": kind.missing}]
            )
        )
        return
    # A checkpoint is measured once for each set of settings, metrics and code.
    key = make_run_id(asdict(settings), KEPT, SITES, hash_measuring_code(__name__))[:8]
    for found in train_all(systems.recipe, (name,), context.cache, context.progress):
        for step, state in ((0, UNTRAINED), (found.best, TRAINED)):
            # Manifests name the model: a path below the current folder is the same on other machines.
            model = found.checkpoint(step)
            whole = model.resolve()
            if whole.is_relative_to(Path.cwd()):
                model = whole.relative_to(Path.cwd())
            job = Job(
                str(model),
                corpus=kind.corpus,
                settings=settings,
                limit=kind.limit,
                step=step,
            )
            rows = make_records_once(
                found.folder / f"measured-{step}-{key}.parquet",
                partial(run_measurement, job, context),
            )
            yield rows.assign(model=kind.label + state, seed=found.seed).astype(
                rows.dtypes.to_dict()
            )


def infer_width(threshold: float) -> int:
    """Return the dimension d whose q95(d) is `threshold`, the recorded `mean_cosine.isotropic_q95`.

    q95(d), what 95 % of isotropic pairs stay below, falls strictly with d.
    """
    # Records hold q95 and not d. The tolerance is for rounding in the records.
    dimensions = range(2, 1 << 24)
    # `bisect` wants keys that rise: q95 falls with d, and −q95 rises.
    return dimensions[
        bisect_left(dimensions, -threshold * (1 + 1e-12), key=lambda d: -q95(d))
    ]


def infer_widths(records: pd.DataFrame) -> dict[str, int]:
    """Return {model: dimension of its hidden states} for the models in `records`."""
    rows = select(records, metric="mean_cosine.isotropic_q95", site="hidden")
    widths = {}
    for model, values in rows.groupby("model", sort=False)["value"]:
        widths[str(model)] = infer_width(float(values.iloc[0]))
    return widths


def tabulate_left_out(sums: Path, settings: Settings) -> pd.DataFrame:
    """Return A (mean cosine) and drift (norm of the mean vector) with each group of units (documents, images) left out.

    They are computed from the saved `sums` of a run, only for the first token policy, and for outputs of blocks (also
    before their last ReLU).
    """
    measurement = Measurement.restore(sums, settings)
    rows = []
    for name, site in measurement.sites.items():
        if site.quantity not in ("hidden", "pre_relu"):
            continue
        terms = measurement.sums.at(name)
        place = {
            "stack": site.stack,
            "kind": site.kind,
            "layer": site.layer,
            "site": site.label,
        }
        for metric, (module, read) in _LEFT_OUT.items():
            # [group, policy, …]: the first policy alone, which is `all`.
            totals = Totals({term: terms[term][:, :1] for term in read})
            # Groups without data are no groups: the numbers of the others say which
            # units are left out, so that replicates of two layers can be matched.
            groups = np.flatnonzero(totals.present)
            if not len(groups):
                continue
            # The first value is that of all groups, which the records hold already.
            values = module.compute(totals)[""].reshape(-1, 1)[1:, 0]
            given = place | {
                "metric": metric + LEFT_OUT,
                "token_policy": settings.tokens[0],
            }
            for g, v in zip(groups, values, strict=True):
                rows.append(given | {"component": str(g), "value": v})
    return as_records(pd.DataFrame(rows))


def select_replicates(
    records: pd.DataFrame, of_layers: pd.DataFrame, metric: str, site: str = "hidden"
) -> Array:
    """Return the jackknife replicates of a metric at a site, [1 + group, layer], for one model and seed.

    The first row uses all groups, each other row leaves one out. Layers: those of `of_layers` (rows of `select_curves`:
    `model`, `seed`, `stack`, `layer`). One row if the records hold no left-out values.
    """
    first = of_layers.iloc[0]
    rows = select(
        records, model=first["model"], site=site, token_policy="all", head=None
    )
    rows = rows[rows["seed"].fillna(0) == first["seed"]]
    places = list(zip(of_layers["stack"], of_layers["layer"], strict=True))
    whole = _index_values(select(rows, metric=metric, component=None), "stack", "layer")
    without = _index_values(
        select(rows, metric=metric + LEFT_OUT), "component", "stack", "layer"
    )
    # By number: as text, 10 would come before 2.
    groups = sorted({component for component, *_ in without}, key=int)
    found = np.full((1 + len(groups), len(places)), np.nan)
    for column, place in enumerate(places):
        found[0, column] = whole[place]
        for row, group in enumerate(groups, start=1):
            found[row, column] = without.get((group, *place), np.nan)
    # Else the last step would drop all replicates without a word.
    if groups and np.isnan(found[1:]).all(axis=0).any():
        raise ValueError(
            f"a layer of {first['model']} has no {metric} with a group left out"
        )
    # A replicate must have all layers: they are combined.
    complete = ~np.isnan(found[1:]).any(axis=1)
    return np.vstack([found[:1], found[1:][complete]])


def _index_values(rows: pd.DataFrame, *names: str) -> dict[tuple[Any, ...], float]:
    """Return {values of the columns `names`: `value`}.

    A pivot of so small a table takes pandas several times as long.
    """
    keys = zip(*(rows[name].tolist() for name in names), strict=True)
    found = dict(zip(keys, rows["value"].tolist(), strict=True))
    if len(found) < len(rows):
        raise ValueError(f"several values for one {' and '.join(names)}")
    return found


def describe_skipped(records: pd.DataFrame) -> str:
    """Return the systems (models) that were not measured, with the reasons, as text."""
    rows = select(records, metric=(SKIPPED, WITHHELD))
    return "; ".join(
        f"{model}: {reason}"
        for model, reason in zip(rows["model"], rows["component"], strict=True)
    )


def make_undecided(
    stated_ones: Iterable[Claim], verdicts: Sequence[Verdict], records: pd.DataFrame
) -> list[Verdict]:
    """Return a list of undecided verdicts, one for each claim that has none, with the reason why these records do
    not decide it.
    """
    why = (
        describe_skipped(records)
        or "no system of these settings is one the claim is about"
    )
    found = {verdict.claim for verdict in verdicts}
    undecided = []
    for claim in stated_ones:
        if claim.name not in found:
            undecided.append(
                make_verdict_without_test(claim, None, "not measured", reason=why)
            )
    return undecided


def select_curves(records: pd.DataFrame, site: str = "hidden") -> pd.DataFrame:
    """Return a table of A (mean cosine) at a site of every layer, model and seed, with the columns `q95` and `place`.

    `q95`: what 95 % of isotropic pairs stay below. `place`: the horizontal axis, on which the encoder comes before the
    decoder. Published models, which have no seed, get seed 0.
    """
    here = select(records, site=site, token_policy="all", head=None)
    here = here.assign(seed=here["seed"].fillna(0))
    keys = ["model", "seed", "stack", "layer"]
    rows = select(here, metric="mean_cosine", component=None).set_index(keys)
    bound = select(here, metric="mean_cosine.isotropic_q95", component=None).set_index(
        keys
    )["value"]
    # How many groups were left out in turn decides the degrees of freedom of the tests.
    groups = (
        select(here, metric="mean_cosine" + LEFT_OUT)
        .groupby(keys)["value"]
        .size()
        .astype(float)
    )
    # The same bound is recorded for several policies or groups: one is enough.
    rows = rows.assign(
        q95=bound[~bound.index.duplicated()], groups=groups
    ).reset_index()
    rows["place"] = rows["layer"].astype("Int64").astype(int)
    # In an encoder–decoder the decoder's layers follow those of the encoder, as in
    # figures 1 and 2.
    last = rows[rows["stack"] == "encoder"].groupby("model")["layer"].max()
    both = rows["model"].isin(last.index) & (rows["stack"] == "decoder")
    rows.loc[both, "place"] += rows.loc[both, "model"].map(last).astype(int) + 1
    rows = rows.assign(rank=pd.factorize(rows["model"])[0]).sort_values(
        ["rank", "seed", "place"], kind="stable"
    )
    return rows.drop(columns="rank").reset_index(drop=True)


def iter_systems(rows: pd.DataFrame) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Yield (model, seed, rows of its layers) from `rows`, the table that `select_curves` returns."""
    for (model, seed), layers in rows.groupby(["model", "seed"], sort=False):
        yield str(model), int(str(seed)), layers


def make_layer_tests(claim: Claim, rows: pd.DataFrame) -> Iterator[Test]:
    """Yield one test per layer, for the systems (models) that a claim about A (mean cosine) names. `rows`: the table
    of `select_curves`.
    """
    rows = _select_named(claim, rows)
    if rows.empty:
        return
    name = "threshold"
    limits = np.full(
        len(rows), np.nan if claim.limit == "q95" else claim.limit, dtype=np.float64
    )
    if claim.limit == "q95":
        # Of the dimension of each model.
        name = "q95"
        limits = rows["q95"].to_numpy(np.float64)
    # What a failed claim is called depends on "no effect": `too small` on the claim's
    # side of it, `contrary` on the other.
    nothing = limits
    if claim.none is not None:
        nothing = np.full(len(rows), claim.none)
    above, below = compute_p_of_units(rows, limits)
    above_none, below_none = compute_p_of_units(rows, nothing)
    # A claim that A lies below turns the sides: its p is that of "below", and the
    # margin counts downwards.
    if claim.below is not None:
        sides = zip(below, above, above_none, strict=True)
        margins = limits - rows["value"].to_numpy(float)
    else:
        sides = zip(above, below, below_none, strict=True)
        margins = rows["value"].to_numpy(float) - limits
    for row, limit, margin, p in zip(
        rows.to_dict("records"), limits, margins, sides, strict=True
    ):
        numbers = (
            float(row["value"]),
            float(row["low"]),
            float(row["high"]),
            int(row["n_units"]),
        )
        yield Test(
            claim,
            "A",
            *numbers,
            *p,
            subject=str(row["model"]).removesuffix(TRAINED),
            over=claim.over,
            seed=int(row["seed"]),
            margin=float(margin),
            where=f"{row['stack']} layer {row['layer']}, against {name} {limit:.3g}",
            words=claim.words,
            units="units",
            note=describe_steps(row["model"], row["step"]),
        )


def _select_named(claim: Claim, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the models and the stack (encoder or decoder) that a claim is about."""
    if claim.systems:
        rows = rows[rows["model"].str.startswith(claim.systems)]
    if claim.but:
        rows = rows[~rows["model"].str.startswith(claim.but)]
    if claim.stack:
        rows = rows[rows["stack"] == claim.stack]
    return rows


def describe_steps(model: Any, step: Any) -> str:
    """Return in words for how many steps a small model was trained (`trained for 200 steps`); "" for other models."""
    if str(model).endswith(TRAINED) and not pd.isna(step):
        return f"trained for {step:,} steps"
    return ""


def draw(name: str, records: pd.DataFrame, site: str = "hidden") -> dict[str, Any]:
    """Draw A (mean cosine) at a site per layer and model, with the isotropic bound; return {`name`: chart}, {} without
    records.

    Seeds are averaged, with the outer ends of their intervals.
    """
    rows = select_curves(records, site)
    if rows.empty:
        return {}
    # The outer ends over seeds: a band that holds the interval of each.
    ends = {"value": "mean", "low": "min", "high": "max", "q95": "max"}
    drawn = (
        rows.groupby(["model", "place"], sort=False, as_index=False)
        .agg(ends)
        .rename(columns={"place": "layer"})
    )
    bounds = {
        str(model): float(q95)
        for model, q95 in drawn.groupby("model", sort=False)["q95"].max().items()
    }
    # Models of one width share one line.
    isotropic = bounds if len(set(bounds.values())) > 1 else next(iter(bounds.values()))
    names = list(drawn["model"].astype(str).unique())
    # An untrained model gets the colour of its trained twin, paler.
    pale = {}
    for model in names:
        twin = model.removesuffix(UNTRAINED) + TRAINED
        if model.endswith(UNTRAINED) and twin in names:
            pale[model] = twin
    return {name: charts.layer_curve(drawn, isotropic=isotropic, pale=pale)}
