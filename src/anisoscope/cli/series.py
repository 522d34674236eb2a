"""`anisoscope measure` where the model is a series of checkpoints."""

from pathlib import Path
from typing import Any

import typer


def measure(job: Any, output: Path | None, *, dry_run: bool, keep: int, overwrite: bool, quiet: bool) -> None:
    """Show the series `job.model`; measure it unless `dry_run`; A by step and layer on stdout."""
    from anisoscope.models.series import describe, expand
    from anisoscope.progress import shown
    from anisoscope.runs.run import slug
    from anisoscope.runs.series import measure_series

    checkpoints = expand(job.model)
    typer.echo(f"{len(checkpoints)} checkpoints\n{describe(checkpoints)}", err=not dry_run)
    if dry_run:
        for checkpoint in checkpoints:
            typer.echo(f"seed {checkpoint.seed:<3d} step {checkpoint.step:<9,d} {checkpoint.subject}")
        return
    folder = output or Path("runs") / f"series-{slug(job.model)}"
    with shown(f"{len(checkpoints)} checkpoints × {job.corpus or 'the built-in corpus'}", quiet=quiet) as progress:
        series = measure_series(
            checkpoints, job, folder, skip_bad=job.skip_bad, keep=keep, overwrite=overwrite, progress=progress
        )
    _print_table(series.records, job.settings.policies[0])
    for name, why in series.skipped.items():
        typer.echo(f"skipped: {name}: {why}", err=True)
    for names in series.repeated:
        typer.echo(f"note: the same weights, bit for bit: {', '.join(names)}", err=True)
    typer.echo(f"series: {folder}; a page of one checkpoint: anisoscope report {folder}/seed-…", err=True)


def _print_table(records: Any, policy: str) -> None:
    """A of every checkpoint's hidden states, layer by layer (without hidden states: the mean entropy of attention)."""
    from anisoscope.store import select

    rows = select(records, metric="mean_cosine", site="hidden", component=None, token_policy=policy)
    name = "A"
    if not len(rows):
        rows, name = select(records, metric="attention.entropy", component=None, kind="self"), "entropy (nats)"
    if not len(rows):
        return
    table = rows.assign(layer=rows["stack"].str.cat(rows["layer"].astype("string"), " ")).pivot_table(
        index=["seed", "step"], columns="layer", values="value", aggfunc="mean", sort=False
    )
    typer.echo(table.rename_axis(columns=f"{name} by layer").to_string(float_format="{:.4f}".format))
