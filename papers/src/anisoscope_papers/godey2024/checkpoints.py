"""Measure a series of checkpoints on one fixed probe text: shared by figures 11 to 15 and 19 to 23.

Each checkpoint is a run of a series (`runs.series`), cached in `<cache>/series-<hash>`. heads.safetensors is stored
with its records: second moments, means and sampled points of heads, per layer.
"""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from anisoscope.data.local import find_path
from anisoscope.errors import ModelError, UsageError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.models.series import Checkpoint, expand
from anisoscope.provenance import make_run_id
from anisoscope.runs.job import Job
from anisoscope.runs.run import load_subject, open_plan_of
from anisoscope.runs.series import Derived, measure_series
from anisoscope.store import RunFolder, as_records, select
from anisoscope_papers.beyond.arms import BASE
from anisoscope_papers.beyond.causes import FULL
from anisoscope_papers.beyond.trained import Experiment, measure as measure_cells
from anisoscope_papers.needs import Need, make_corpus_need
from anisoscope_papers.origin import hash_measuring_code
from anisoscope_papers.study import Context
from anisoscope_papers.training.kinds import KINDS, TEXT
from anisoscope_papers.training.train_small import (
    BRIEF,
    LONG,
    PART,
    SmallModelRecipe,
    train_all,
)

METRICS = (
    "mean_cosine",
    "query_key",
    "attention",
    "score_terms",
    "centred_attention",
    "common_direction",
)
SITES = ("query.raw", "attention", "scores", "centred")
"""Where the figures read numbers of heads; those of keys alone are not read."""
WIKITEXT, BUILTIN = "wikitext/wiki.valid.raw", "builtin:python-docs"
PROBED = 128
LOSS = "training.loss"


@dataclass(frozen=True)
class CheckpointSettings:
    """Which series of checkpoints is measured, and on what probe text.

    checkpoints  a pattern as `models.series.expand` reads it; empty: small models of one `kind`, trained on the spot by
                 `recipe`, at the steps that all seeds took
    corpus       empty: the validation set of WikiText if ANISOSCOPE_DATA has it, else the built-in text
    sequences    windows of the probe, evenly spread over the text (`limit`: over its first units); None: all units
    points       tokens kept for the clouds, at the steps nearest to the shares `shown` of training: for figure 11, the
                 paper's 0, 40k, 200k and 2M of 2M steps
    share        None: SVD of all vectors, exact; else of this share of the tokens, sampled as in the paper (.2)
    cells        trained models of an experiment, measured in place of checkpoints
    """

    checkpoints: str = ""
    recipe: SmallModelRecipe = BRIEF
    kind: str = "token-lm"
    corpus: str = ""
    limit: int | None = None
    sequences: int | None = PROBED
    points: int = 400
    shown: tuple[float, ...] = (0.0, 0.02, 0.1, 1.0)
    share: float | None = None
    cells: Experiment | None = None


SEEDS = 6
"""Trainings of each kind of small model: with three of them most claims on checkpoints were undecided."""
# The steps, in thousands, of which the MultiBERTs have checkpoints.
STEPS = (*range(0, 200, 20), *range(200, 2001, 100))
# The doubled braces are those of the pattern, which `models.series.expand` reads.
PAPER = f"google/multiberts-seed_{{0..4}}-step_{{{','.join(map(str, STEPS))}}}k"


def _make_settings(
    name: str, recipe: SmallModelRecipe = LONG, seeds: int = SEEDS
) -> CheckpointSettings:
    """Return settings for the checkpoints of a kind of small model that figures 1 to 4 train (`KINDS[name]`).

    seeds   trainings of the kind; the first three are those of figures 1 to 4
    """
    kind = KINDS[name]
    # At most as many units as the probe has windows, and none beyond those that figures
    # 1 to 4 measure.
    limit = min(kind.limit or PROBED, PROBED)
    recipe = replace(recipe, seeds=seeds)
    # A text is cut into windows, of which the probe takes `PROBED`; clips and images
    # are units as they are.
    return CheckpointSettings(
        "", recipe, name, kind.corpus, limit, PROBED if kind.modality == TEXT else None
    )


SETTINGS = {
    "quick": CheckpointSettings(corpus=BUILTIN, limit=60),
    "bytes": _make_settings("byte-lm"),
    "vision": _make_settings("vit"),
    "speech": _make_settings("speech-transformer"),
    "photographs": _make_settings("vit-masked", PART),
    "clips": _make_settings("speech-masked", PART),
    "small": CheckpointSettings(
        os.environ.get("ANISOSCOPE_SERIES", "runs/series/small")
    ),
    "paper": CheckpointSettings(PAPER, corpus="wikitext-103"),
    "paper-sampled": CheckpointSettings(PAPER, corpus="wikitext-103", share=0.2),
}
"""`bytes`, `vision` and `speech`: the same of other modalities, where the paper found no checkpoints to study;
`photographs` and `clips`: of real ones, self-supervised, measured on what was not trained on.
`small` reads the series in the folder ANISOSCOPE_SERIES (default `runs/series/small`): seed-0/step-0, …"""
CAUSAL = {"causal": CheckpointSettings(cells=Experiment((BASE,), 6, FULL))}
"""Six small models that predict each token from those before it (`beyond.causes`), looked at six times: what a number
of heads is enough for (figures 13, 14, 15 and 23).
"""
# Tokens of the probe. Attention with centred queries and keys costs about as much as
# the pass itself.
_TOKENS = PROBED * 512
_PANELS = 2.0
NEEDS = (
    Need(
        f"google/multiberts-seed_{{0..4}}-step_{{0..2000}}k, {5 * len(STEPS)} checkpoints",
        5 * len(STEPS) * 0.44,
        "0.4 GB each, two on the disk at a time; apache-2.0",
        kept=0.88,
        # Two operations for each of BERT-base's 110 million parameters and each token,
        # in units of 10¹².
        work={"multiberts": 5 * len(STEPS) * _TOKENS * _PANELS * 2e-12 * 110e6},
    ),
    make_corpus_need("wikitext-103"),
)
SERIES: dict[str, Any] = {"settings": SETTINGS, "needs": NEEDS}
"""What every study of a series has."""
OF_HEADS: dict[str, Any] = SERIES | {"settings": SETTINGS | CAUSAL}
"""What those have that read numbers of heads alone."""


@dataclass(frozen=True)
class Piece:
    """A measured checkpoint: its run folder, the name of the file with numbers of its heads, and which model it is."""

    step: int
    seed: int
    folder: Path
    named: str = "heads.safetensors"
    subject: str = ""

    def heads(self) -> dict[str, Tensor]:
        """Load the numbers of heads, {`{layer} {query|key} {moment|mean|points}`: tensor}.

        Shapes: moment [head, dim, dim], mean [head, dim], points (sampled vectors) [point, head, dim].
        """
        return load_file(self.folder / self.named)


def measure(series: CheckpointSettings, context: Context) -> list[Piece]:
    """Measure every checkpoint of the series, or read it from the cache; ordered by seed and step.

    ModelError if fewer than two steps are left that every seed has. `context`: cache, device and progress of the study.
    """
    checkpoints = list_checkpoints(series, context)
    shown = choose_shown_steps(sorted({c.step for c in checkpoints}), series.shown)
    # Without a sample of vectors at first: `job_of` adds it to the few steps whose
    # clouds are drawn.
    job = Job(
        checkpoints[0].subject,
        corpus=series.corpus or (WIKITEXT if find_path(WIKITEXT) else BUILTIN),
        settings=Settings(
            metrics=METRICS, tokens=("all",), sample=0, sample_heads=True
        ),
        limit=series.limit,
        sequences=series.sequences,
        batch_tokens=context.batch_tokens,
        dtype=context.dtype,
        device=context.device,
    )
    # The paper projects 20 % of the vectors. How many that are is known only once the
    # probe is tokenised, with a model of the same architecture and no weights.
    sampled = 0
    if series.share is not None:
        plan = open_plan_of(job, load_subject(replace(job, untrained=True)))[0]
        sampled = round(series.share * sum(plan.tokens))

    def job_of(checkpoint: Checkpoint) -> Job:
        """Return the measurement job of a checkpoint, with a sample of vectors only at the steps that are shown."""
        sample = sampled or series.points * (checkpoint.step in shown)
        return replace(job, settings=replace(job.settings, sample=sample))

    def progress(done: int, total: int) -> None:
        """Report the progress in whole checkpoints, from `done` of `total` parts of the measurement."""
        if total:
            context.progress(
                "checkpoints", len(checkpoints) * done // total, len(checkpoints)
            )

    # Two files may lie in one run folder: moments of all vectors, and of a sample.
    named = "sampled.safetensors" if sampled else Piece.named
    derived = Derived(named, partial(_write_heads, sampled=bool(sampled)))
    # A series that was measured by other code or settings gets another folder.
    output = (
        context.cache
        / f"series-{make_run_id(asdict(series), hash_measuring_code(__name__))[:8]}"
    )
    # A pattern names checkpoints of the hub, which may lack some; what lies here must be
    # whole.
    published = "{" in series.checkpoints
    done = measure_series(
        checkpoints,
        job_of,
        output,
        derived=derived,
        progress=progress,
        skip_bad=published,
    )
    # A checkpoint that the hub lacks must not end the study: it is listed on the page.
    for name, reason in done.skipped.items():
        context.note_unavailable(name, reason)
    pieces = [
        Piece(c.step, c.seed, done.runs[c].folder, named, c.subject)
        for c in select_common(done.runs)
    ]
    if not pieces:
        got = f"fewer ({len(done.skipped)} could not be loaded)"
        raise ModelError(
            f"two steps that every seed of {series.checkpoints} has",
            got,
            "start the study again",
        )
    return pieces


def select_common(checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Select the checkpoints at steps that every seed has, sorted by seed and step; none if fewer than two steps are
    common.
    """
    ordered = sorted(
        checkpoints, key=lambda checkpoint: (checkpoint.seed, checkpoint.step)
    )
    by_seed: dict[int, set[int]] = {}
    for checkpoint in ordered:
        by_seed.setdefault(checkpoint.seed, set()).add(checkpoint.step)
    common = set.intersection(*by_seed.values()) if by_seed else set()
    # One checkpoint is no series: nothing can change along it.
    if len(common) < 2:
        return []
    return [checkpoint for checkpoint in ordered if checkpoint.step in common]


def list_checkpoints(series: CheckpointSettings, context: Context) -> list[Checkpoint]:
    """List the checkpoints of the series, training them first if they are small models.

    Steps that some seed lacks are left out. UsageError if fewer than two steps are left, or if given seeds end at
    different steps: then one is still being trained.
    """
    every = (
        expand(series.checkpoints)
        if series.checkpoints
        else _train_small(series, context)
    )
    # Seeds are compared at equal steps. One that ends earlier is still being trained,
    # and would silently cut all others to its last step.
    last: dict[int, int] = {}
    for checkpoint in every:
        last[checkpoint.seed] = max(checkpoint.step, last.get(checkpoint.seed, 0))
    if series.checkpoints:
        _require_same_end(series.checkpoints, last)
    kept = select_common(every)
    if not kept:
        got = f"fewer, of {len(last)} seeds"
        cure = "train one (anisoscope train masked-lm --help), or name its folder in ANISOSCOPE_SERIES"
        raise UsageError(
            f"at least two steps in the series {series.checkpoints}", got, cure
        )
    return kept


def _require_same_end(pattern: str, last: Mapping[int, int]) -> None:
    """Raise UsageError if the seeds of the checkpoints that `pattern` names end at different steps.

    `last`: {seed: its last step}.
    """
    end = max(last.values(), default=0)
    short = []
    for seed in sorted(last):
        if last[seed] < end:
            short.append(f"seed {seed} at step {last[seed]:,} of {end:,}")
    if short:
        cure = "wait until it is trained, or name the finished ones with a pattern, as in seed-[01]/step-*"
        raise UsageError(
            f"every seed of {pattern} at the same last step", ", ".join(short), cure
        )


def _train_small(series: CheckpointSettings, context: Context) -> list[Checkpoint]:
    """Train the small models of the series, or find them in the cache. UsageError if their data are missing."""
    missing = KINDS[series.kind].missing
    if missing:
        raise UsageError(
            f"the data of {KINDS[series.kind].label}",
            missing,
            "set ANISOSCOPE_DATA to the folder that holds it",
        )
    trained = train_all(series.recipe, (series.kind,), context.cache, context.progress)
    checkpoints = []
    for model in trained:
        for step in model.steps:
            subject = str(model.checkpoint(step))
            checkpoints.append(Checkpoint(subject, step, model.seed))
    return checkpoints


def choose_shown_steps(steps: Sequence[int], shares: Sequence[float]) -> list[int]:
    """Return the steps nearest to each of some shares (0 to 1) of training, measured on a logarithmic scale of
    steps.
    """
    last = max(steps)
    # The + 1 gives step 0 a logarithm.
    wanted = np.log(np.array(shares) * last + 1)
    apart = np.abs(np.log(np.array(steps) + 1.0) - wanted[:, None])  # [share, step]
    return sorted({steps[int(i)] for i in apart.argmin(1)})


def _write_heads(sums: Path, settings: Settings, path: Path, *, sampled: bool) -> None:
    """Write second moments, means and sampled points of every head of the (first) stack to the file `path`.

    `sums`: the file with the sums of the run. With `sampled`, the moments are those of the sampled points only.
    """
    measurement = Measurement.restore(sums, settings)
    # Queries and keys as projected, of self-attention: figures 11 to 14 read drift
    # before rotation and normalisation.
    sites = [
        site
        for site in measurement.sites.values()
        if site.stage == "raw" and site.kind == "self"
    ]
    # One stack, the same that `read_records` chooses.
    stack = min(site.stack for site in sites)
    numbers: dict[str, Tensor] = {}
    for site in sites:
        if site.stack != stack:
            continue
        name = f"{site.layer} {site.quantity}"
        # Sums over all groups. Vectors and counts also have an axis of token policies,
        # here `all` alone; moments have none.
        total, count, moment = (
            measurement.sums.terms[site.name, term].sum(0)
            for term in ("vector", "n", "head_moment")
        )
        numbers[f"{name} mean"] = total[0] / count[0].unsqueeze(-1)
        numbers[f"{name} moment"] = moment
        points = _find_points(measurement, site.name, stack)
        if points is not None:
            numbers[f"{name} points"] = points.contiguous()
            # As in the paper: the SVD sees only the vectors that are drawn, and not the
            # exact moment of all.
            if sampled:
                by_head = points.double().transpose(0, 1)
                numbers[f"{name} moment"] = by_head.transpose(1, 2) @ by_head
    save_file(numbers, path)


def _find_points(measurement: Measurement, site: str, stack: str) -> Tensor | None:
    """Return the sampled vectors [point, head, dim] of a site (its name); None if none were sampled.

    A sample is common to all sites of a stack, or it is the site's own.
    """
    for name in (stack, site):
        if name in measurement.reservoirs:
            return measurement.reservoirs[name].vectors.get(site)
    return None


def read_losses(pieces: Sequence[Piece]) -> pd.DataFrame:
    """Return the validation loss of every measured checkpoint (`training.loss`), from the `training.json` next to it.

    Checkpoints without one have no row.
    """
    rows = []
    for piece in pieces:
        record = Path(piece.subject).parent / "training.json"
        # Published checkpoints have no such file: then claims on the fall of the loss
        # are undecided.
        by_step: dict[int, float] = {}
        if record.is_file():
            described = json.loads(record.read_text("utf-8"))
            by_step = dict(described.get("validation_loss", ()))
        if piece.step in by_step:
            rows.append(
                {
                    "metric": LOSS,
                    "step": piece.step,
                    "seed": piece.seed,
                    "value": by_step[piece.step],
                }
            )
    return as_records(pd.DataFrame(rows))


def compute_fall(
    records: pd.DataFrame, seeds: Sequence[int], steps: Sequence[int]
) -> NDArray[np.float64] | None:
    """Return how much of the total fall of the loss each of the given steps has behind it, [seed, step] from 0 to 1.

    The fall is counted from the first checkpoint with a loss to the lowest loss. Step 0 has no loss and gets 0. None if
    another checkpoint has no loss.
    """
    table = select(records, metric=LOSS).pivot_table(
        index="seed", columns="step", values="value"
    )
    # In the order of the arrays that it is combined with. A missing step becomes a
    # column of NaN, which is found below.
    table = table.reindex(index=list(seeds), columns=[step for step in steps if step])
    if table.empty or table.isna().to_numpy().any():
        return None
    loss = table.to_numpy(float)
    # A loss that rises again takes nothing back: the clock must not run backwards, so
    # that its running maximum counts.
    share = (loss[:, :1] - loss) / (loss[:, :1] - loss.min(1, keepdims=True))
    share = np.clip(np.maximum.accumulate(share, 1), 0, 1)
    return np.asarray(
        np.hstack([np.zeros((len(share), 1)), share]) if 0 in steps else share
    )


def read_records(pieces: Sequence[Piece], metrics: Sequence[str]) -> pd.DataFrame:
    """Return the records of the named metrics, for every head of the first stack at every measured checkpoint."""
    where = {"kind": "self", "component": None, "site": SITES, "metric": metrics}
    rows = pd.concat(
        [select(RunFolder(piece.folder).records, **where) for piece in pieces],
        ignore_index=True,
    )
    # One stack, the same whose moments `_write_heads` keeps.
    return select(rows, stack=rows["stack"].min()).reset_index(drop=True)


def measure_heads(
    metrics: Sequence[str], series: CheckpointSettings, context: Context
) -> pd.DataFrame:
    """Measure `metrics` of every head along a series of checkpoints, or along the trained models (cells) of an
    experiment.

    `context`: cache, device and progress of the study.
    """
    if series.cells is None:
        return read_records(measure(series, context), metrics)
    cells = measure_cells(series.cells, context)
    return select(
        cells, kind="self", component=None, site=SITES, metric=metrics
    ).reset_index(drop=True)
