"""`anisoscope measure` where the model is a series of checkpoints."""

from pathlib import Path

import typer

from anisoscope.cli import tables
from anisoscope.cli.view import Place, View, here, show, tell
from anisoscope.progress import shown
from anisoscope.runs.job import Job


def measure_checkpoints(job: Job, place: Place, view: View, *, dry_run: bool, keep: int, quiet: bool) -> None:
    """Show the series `job.model`; measure it unless `dry_run`; A by step and layer on stdout."""
    from anisoscope.models.series import describe, expand

    checkpoints = expand(job.model)
    tell(f"{len(checkpoints)} checkpoints\n{describe(checkpoints)}", err=not dry_run, indent="  ")
    if dry_run:
        for checkpoint in checkpoints:
            missing = "  (no such folder)" if _is_missing(checkpoint.subject) else ""
            typer.echo(f"seed {checkpoint.seed:<3d} step {checkpoint.step:<9,d} {checkpoint.subject}{missing}")
        return
    named = f"{len(checkpoints)} checkpoints × {job.corpus or 'the built-in corpus'}"
    with shown(named, quiet=quiet) as progress:
        from anisoscope.runs.run import slug
        from anisoscope.runs.series import measure_series

        folder = place.output or Path("runs") / f"series-{slug(job.model)}"
        series = measure_series(
            checkpoints,
            job,
            folder,
            skip_bad=job.skip_bad,
            keep=keep,
            overwrite=place.overwrite,
            progress=progress,
        )
    show([tables.of_series(series.records, job.settings.policies[0])], view)
    for name, why in series.skipped.items():
        tell(f"skipped: {name}: {why}", err=True, indent="  ")
    for names in series.repeated:
        tell(f"note: the same weights, bit for bit: {', '.join(names)}", err=True, indent="  ")
    tell(f"series: {here(folder)}", err=True)
    tell(f"next, a page of one checkpoint: anisoscope report {here(folder)}/seed-…", err=True, indent="  ")


def _is_missing(subject: str) -> bool:
    """Whether a name is that of a folder which should lie beside others here, and does not."""
    path = Path(subject)
    local = "@" not in subject and (subject.startswith(("./", "../")) or path.parent != Path())
    return local and path.parent.is_dir() and not path.exists()
