"""A series of checkpoints on one fixed probe: what figures 11 to 15 and 19 to 23 have in common.

Every checkpoint is one ordinary run (`runner.run`), so that its numbers are those of `anisoscope measure`. What the
figures need of it is kept in a folder of its own, which every figure and every restart finds again:

    <cache>/series/<checkpoint>-<hash>/heads.safetensors   per layer: second moments, means and sampled points of heads
    <cache>/series/<checkpoint>-<hash>/series.parquet      records that the figures need, written last
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from anisoscope.data.documents import local_names
from anisoscope.errors import UsageError
from anisoscope.measure.accumulator import Measurement
from anisoscope.measure.settings import Settings
from anisoscope.models.load import Subject, load
from anisoscope.models.series import Checkpoint, expand
from anisoscope.runs.job import Job
from anisoscope.runs.run import plan_of, run
from anisoscope.store import as_records, claimed, code_version, run_id, select, write_atomic
from anisoscope.studies.study import Context
from anisoscope.training.kinds import KINDS
from anisoscope.training.small import LONG, Recipe, train_all

Array = NDArray[np.float64]

METRICS = ("mean_cosine", "query_key", "attention", "score_terms", "centred_attention", "common_direction")
KEPT = {
    "query.raw": ("query_key.cosine", "query_key.dot", "mean_cosine", "mean_cosine.isotropic_q95"),
    "key.raw": ("mean_cosine",),
    "attention": ("attention.entropy", "attention.entropy_normalised"),
    "scores": ("score_terms.within_rows", "score_terms.mean_query_share", "score_terms.centred_share"),
    "centred": ("query", "query_normalised", "query_rise", "key", "key_normalised", "key_rise"),
}
"""Site → metrics that the figures read, per head (those of `centred` without `centred_attention.`)."""
SHOWN = (0.0, 0.02, 0.1, 1.0)
"""Shares of training whose clouds figure 11 shows: the paper's 0, 40k, 200k and 2M of 2M steps."""
WIKITEXT, BUILTIN = "wikitext/wiki.valid.raw", "builtin:python-docs"
FOLDER = "runs/series/small"
PROBED = 128
TRAINED_HERE = Recipe(seconds=300.0, seeds=3, kinds=("token-lm",))


@dataclass(frozen=True)
class Series:
    """Checkpoints of one architecture by step and seed, and the probe.

    checkpoints  a pattern as `models.series.expand` reads it; empty: small models of one `kind` trained on the spot
                 by `recipe`, at the steps that all seeds took
    corpus       empty: the validation set of WikiText where ANISOSCOPE_DATA has it, else the built-in text
    sequences    windows of the probe, evenly spread over the text (`limit`: over its first units); None: all units
    points       tokens kept for the clouds, at the steps nearest to the shares `shown` of training
    share        None: SVD of all vectors, exact; else of this share of the tokens, sampled as in the paper (.2)
    """

    checkpoints: str = ""
    recipe: Recipe = TRAINED_HERE
    kind: str = "token-lm"
    corpus: str = ""
    limit: int | None = None
    sequences: int | None = PROBED
    points: int = 400
    shown: tuple[float, ...] = SHOWN
    share: float | None = None

    def probe(self) -> str:
        """Name of the corpus."""
        return self.corpus or (WIKITEXT if WIKITEXT in local_names() else BUILTIN)


PAPER_STEPS = (*range(0, 200, 20), *range(200, 2001, 100))
PAPER = f"google/multiberts-seed_{{0..4}}-step_{{{','.join(map(str, PAPER_STEPS))}}}k"


def _of_kind(name: str) -> Series:
    """The checkpoints of the long trainings of figures 1 to 4."""
    kind = KINDS[name]
    text = kind.modality == "text"
    return Series("", LONG, name, kind.corpus, kind.limit if text else PROBED, PROBED if text else None)


SETTINGS = {
    "quick": Series(corpus=BUILTIN, limit=60),
    "bytes": _of_kind("byte-lm"),
    "vision": _of_kind("vit"),
    "speech": _of_kind("speech-transformer"),
    "small": Series(os.environ.get("ANISOSCOPE_SERIES", FOLDER)),
    "paper": Series(PAPER, corpus="wikitext-103"),
    "paper-sampled": Series(PAPER, corpus="wikitext-103", share=0.2),
}
"""`bytes`, `vision` and `speech`: the same of other modalities, where the paper found no checkpoints to study.
`small` reads the series in the folder ANISOSCOPE_SERIES (default `runs/series/small`): seed-0/step-0, …"""
NEEDS = (
    *(
        f"google/multiberts-seed_{seed}-step_{{{'k,'.join(map(str, PAPER_STEPS))}k}} (110M, apache-2.0)"
        for seed in range(5)
    ),
    "Salesforce/wikitext (wikitext-103-raw-v1, validation; licence cc-by-sa-3.0)",
)


@dataclass(frozen=True)
class Piece:
    """One measured checkpoint."""

    step: int
    seed: int
    folder: Path

    def records(self) -> pd.DataFrame:
        return pd.read_parquet(self.folder / "series.parquet")

    def heads(self) -> dict[str, Tensor]:
        """`{layer} {query|key} {moment|mean|points}` → [head, dim, dim], [head, dim], [point, head, dim]."""
        return load_file(self.folder / "heads.safetensors")


def measure(series: Series, context: Context) -> list[Piece]:
    """Every checkpoint of the series, measured or found again, ordered by seed and step.

    A checkpoint that another process is measuring is left to it, and waited for at the end.
    """
    checkpoints = found(series, context)
    shown = shown_steps(sorted({c.step for c in checkpoints}), series.shown)
    pieces: dict[Checkpoint, Piece] = {}
    for wait in (False, True):
        for checkpoint in [c for c in checkpoints if c not in pieces]:
            piece = _measured(checkpoint, series, context, checkpoint.step in shown, wait)
            if piece is not None:
                pieces[checkpoint] = piece
                context.progress("checkpoints measured", len(pieces), len(checkpoints))
    return sorted(pieces.values(), key=lambda piece: (piece.seed, piece.step))


def found(series: Series, context: Context) -> list[Checkpoint]:
    """The checkpoints; steps that not every seed has are left out. UsageError where fewer than two are left."""
    if series.checkpoints:
        every = expand(series.checkpoints)
        _check_trained(every, series.checkpoints)
    else:
        every = _trained(series, context)
    seeds = {c.seed for c in every}
    common = {s for s in {c.step for c in every} if {c.seed for c in every if c.step == s} == seeds}
    if len(common) < 2:
        got = f"{len(common)} common to {len(seeds)} seeds"
        cure = "train one (anisoscope train masked-lm --help), or name its folder in ANISOSCOPE_SERIES"
        raise UsageError(f"at least two steps in the series {series.checkpoints}", got, cure)
    return sorted((c for c in every if c.step in common), key=lambda c: (c.seed, c.step))


def _trained(series: Series, context: Context) -> list[Checkpoint]:
    """Trained on the spot, or found. UsageError where their data are not at hand."""
    missing = KINDS[series.kind].missing
    if missing:
        raise UsageError(f"the data of {KINDS[series.kind].label}", missing, "set ANISOSCOPE_DATA")
    trained = train_all(series.recipe, (series.kind,), context.cache, context.progress)
    return [Checkpoint(str(t.checkpoint(step)), step, t.seed) for t in trained for step in t.steps]


def _check_trained(every: Sequence[Checkpoint], spec: str) -> None:
    """An error where seeds end at different steps: one of them is still being trained."""
    last = {seed: max(c.step for c in every if c.seed == seed) for seed in {c.seed for c in every}}
    short = [seed for seed, step in last.items() if step < max(last.values())]
    if short:
        got = ", ".join(f"seed {seed} at step {last[seed]:,} of {max(last.values()):,}" for seed in sorted(short))
        cure = "wait until it is trained, or name the finished ones with a pattern, as in seed-[01]/step-*"
        raise UsageError(f"every seed of {spec} at the same last step", got, cure)


def shown_steps(steps: Sequence[int], shares: Sequence[float]) -> list[int]:
    """For each share of training, the step nearest to it (log-spaced steps: by their ratio)."""
    last = max(steps)
    wanted = np.log(np.array(shares) * last + 1)
    apart = np.abs(np.log(np.array(steps) + 1.0) - wanted[:, None])  # [share, step]
    return sorted({steps[int(i)] for i in apart.argmin(1)})


def _measured(checkpoint: Checkpoint, series: Series, context: Context, clouds: bool, wait: bool) -> Piece | None:
    """The piece of one checkpoint; None where another process has it in hand and we do not `wait`."""
    settings = Settings(metrics=METRICS, policies=("all",), sample=series.points * clouds, sample_heads=True)
    job = Job(
        checkpoint.subject,
        series.probe(),
        settings,
        limit=series.limit,
        sequences=series.sequences,
        batch_tokens=context.batch_tokens,
        dtype=context.dtype,
        device=context.device,
        step=checkpoint.step,
    )
    key = run_id(asdict(job), series.share, _stamp(checkpoint.subject), KEPT, code_version()["version"])
    name = "-".join(checkpoint.subject.replace("@", "/").split("/")[-2:])
    piece = Piece(checkpoint.step, checkpoint.seed, context.cache / "series" / f"{name}-{key[:8]}")
    if not (piece.folder / "series.parquet").exists():
        with claimed(piece.folder.with_suffix(".lock"), wait=wait) as ours:
            if not ours:
                return None
            if not (piece.folder / "series.parquet").exists():
                _write(piece, job, series.share)
    return piece


def _stamp(subject: str) -> list[tuple[str, int, int]]:
    """Size and time of the weights in a local folder: other weights, another piece."""
    files = sorted(Path(subject).glob("*.safetensors")) + sorted(Path(subject).glob("*.bin"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _write(piece: Piece, job: Job, share: float | None) -> None:
    """Measure one checkpoint, and keep what the figures need of it."""
    subject = load(job.model, dtype=job.dtype, device=job.device)
    if share is not None:
        tokens = sum(plan_of(job, subject)[0].tokens)
        job = replace(job, settings=replace(job.settings, sample=round(share * tokens)))
    done = run(job, piece.folder / "run", resume=True, subject=subject, keep_sums=True)
    sums = done.folder / "sums.safetensors"
    if not sums.exists():
        done = run(job, piece.folder / "run", overwrite=True, subject=subject, keep_sums=True)
    measurement = Measurement.restore(sums, job.settings)
    heads = _heads(measurement, share is not None)
    write_atomic(piece.folder / "heads.safetensors", lambda path: save_file(heads, path))
    rows = as_records(_kept(done.records, subject)).assign(step=piece.step, seed=piece.seed)
    rows = rows.astype({"step": "Int64", "seed": "Int64"})
    write_atomic(piece.folder / "series.parquet", lambda path: rows.to_parquet(path, index=False))
    sums.unlink()
    (done.folder / "reservoir.safetensors").unlink(missing_ok=True)


def _kept(records: pd.DataFrame, subject: Subject) -> pd.DataFrame:
    """The rows that the figures read, and one that names the weights."""
    parts = []
    for site, names in KEPT.items():
        prefix = "centred_attention." if site == "centred" else ""
        parts.append(select(records, site=site, metric=[prefix + name for name in names], kind="self", component=None))
    rows = pd.concat(parts, ignore_index=True)
    weights = rows.head(1)[["run", "model", "revision", "corpus", "stack"]].assign(
        metric="weights", component=subject.weights_sha256
    )
    of_stack: pd.DataFrame = rows[rows["stack"] == rows["stack"].min()]
    return pd.concat([of_stack, as_records(weights)], ignore_index=True)


def _heads(measurement: Measurement, sampled: bool) -> dict[str, Tensor]:
    """Moments, means and points of every head of the (first) stack; moments of the points alone where `sampled`."""
    out: dict[str, Tensor] = {}
    sites = [s for s in measurement.sites.values() if s.stage == "raw" and s.kind == "self"]
    stack = min(site.stack for site in sites)
    for site in sites:
        if site.stack != stack:
            continue
        of = {term: measurement.sums.terms[site.name, term].sum(0) for term in ("vector", "n", "head_moment")}
        name = f"{site.layer} {site.quantity}"
        out[f"{name} mean"] = of["vector"][0] / of["n"][0].unsqueeze(-1)
        out[f"{name} moment"] = of["head_moment"]
        kept = [measurement.reservoirs[of] for of in (stack, site.name) if of in measurement.reservoirs]
        points = kept[0].vectors.get(site.name) if kept else None
        if points is not None:
            out[f"{name} points"] = points.contiguous()
            if sampled:
                x = points.double().transpose(0, 1)
                out[f"{name} moment"] = x.transpose(1, 2) @ x
    return out


def records_of(pieces: Sequence[Piece]) -> pd.DataFrame:
    """The records of all checkpoints."""
    return pd.concat([piece.records() for piece in pieces], ignore_index=True)


def by_seed(pieces: Sequence[Piece]) -> Iterator[tuple[int, list[Piece]]]:
    """(seed, its pieces by step)."""
    for seed in sorted({piece.seed for piece in pieces}):
        yield seed, sorted((p for p in pieces if p.seed == seed), key=lambda p: p.step)
